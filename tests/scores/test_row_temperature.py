"""Dense weights whose temperature depends on the row, against full tables of probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax.calibration import Calibration
from extremax.examples import Examples
from extremax.scores import ExactSearch, PQSearch, Scorer, TreeBeamSearch
from extremax.scores.base import SearchConfig
from extremax.scores.dense import DenseWeights
from extremax.scores.pq import _interpolate, _tail_temperatures
from extremax.tree.noise import FrequencyNoise
from extremax.tuned import CalibrationConfig
from scorers import (
    assert_same_ranking,
    choose_calibration,
    log_likelihood,
    log_prob_all,
    make_problem,
    random_linear,
    rank_pairs,
)


def make(n_classes, n_rows=61, n_features=9, seed=0):
    """Rows of very different lengths, and so of very different confidence."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(n_classes, n_features)).astype(np.float32)
    biases = rng.normal(size=n_classes).astype(np.float32)
    X = (rng.normal(size=(n_rows, n_features)) * rng.uniform(0.1, 3.0, (n_rows, 1))).astype(np.float32)
    weights = DenseWeights(W, biases, 0.5)
    return weights, X, 0.5 * X.astype(np.float64) @ W.T + biases


def expected_log_prob(table, temperature, slope):
    top = np.exp(reference.log_softmax(table, temperature).max(axis=1))
    by_row = temperature * (top + 0.1) ** slope
    assert by_row.max() > 1.2 * by_row.min()
    return reference.log_softmax(table / by_row[:, None])


@pytest.mark.reference
@pytest.mark.parametrize("slope", [-0.3, 0.4])
@pytest.mark.parametrize("n_classes", [3, 700, 5000])
def test_temperature_of_a_row_follows_its_confidence(n_classes, slope):
    """Top-k, all probabilities and those of pairs agree with the formula."""
    weights, X, table = make(n_classes)
    scorer = Scorer(weights, calibration=Calibration(1.3, 0.0, slope))
    expected = expected_log_prob(table, 1.3, slope)
    for rows in (X, sparse.csr_matrix(X)):
        labels, log_prob = ExactSearch().topk(scorer, rows, 3)
        assert_same_ranking(labels, log_prob, expected)
    np.testing.assert_allclose(log_prob_all(scorer, X), expected, atol=3e-4)
    y = np.random.default_rng(1).integers(n_classes, size=len(X)).astype(np.int32)
    of_pairs = expected[np.arange(len(X)), y]
    assert log_likelihood(scorer, Examples(X, y)) == pytest.approx(of_pairs.mean(), abs=1e-5)
    twice = Examples(X, np.repeat(y, 2), np.repeat(np.arange(len(X)), 2))  # several labels per row
    np.testing.assert_allclose(rank_pairs(scorer, twice, 1).pair_log_prob[::2], of_pairs, atol=3e-4)


@pytest.mark.invariance
def test_neither_threads_nor_small_blocks_change_a_result():
    weights, X, _ = make(700, n_rows=300)
    scorer = Scorer(weights, calibration=Calibration(0.8, 0.01, 0.3))
    labels, log_prob = ExactSearch().topk(scorer, X, 700)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    plain = replace(scorer, calibration=Calibration(0.8, 0.01))
    np.testing.assert_array_equal(labels, ExactSearch().topk(plain, X, 700)[0])
    for found, again in zip(ExactSearch().topk(scorer, X, 5, n_threads=3), (labels, log_prob), strict=True):
        np.testing.assert_allclose(found, again[:, :5], atol=1e-5)
    one, three = (ExactSearch().topk(scorer, X, 5, n_threads=n)[1] for n in (1, 3))
    np.testing.assert_array_equal(one, three)
    small = ExactSearch(SearchConfig(scratch_bytes=1 << 16, tile_scores=1 << 12)).topk(scorer, X, 5)
    np.testing.assert_array_equal(small[0], labels[:, :5])
    np.testing.assert_allclose(small[1], log_prob[:, :5], atol=1e-5)


@pytest.mark.reference
def test_rows_whose_scores_are_no_numbers_do_not_hide():
    weights, X, _ = make(300)
    X[3] = 3e38
    scorer = Scorer(weights, calibration=Calibration(1.0, 0.0, 0.3))
    log_prob = ExactSearch().topk(scorer, X, 1)[1]
    assert not np.isfinite(log_prob[3, 0])
    assert np.isfinite(np.delete(log_prob, 3, axis=0)).all()


@pytest.mark.planted
@pytest.mark.parametrize("slope", [-0.25, 0.25])
def test_index_counts_classes_that_were_not_scored(slope):
    weights, X = random_linear()
    weights.weights[:] *= np.float32(1.5)
    search = PQSearch.fit(X, weights, temperature=0.9)
    scorer = Scorer(weights, calibration=Calibration(0.9, 0.0, slope))
    best, expected = ExactSearch().topk(scorer, X[600:], 1)
    assert np.exp(expected).min() < 0.2 < 0.6 < np.exp(expected).max()
    labels, log_prob = search.topk(scorer, X[600:], 1)
    error = (log_prob - expected)[labels == best]
    assert abs(error.mean()) < 0.05
    assert error.std() < 0.2
    tiny = replace(scorer, calibration=Calibration(0.9, 0.0, 1e-8))
    flat = replace(scorer, calibration=Calibration(0.9))
    np.testing.assert_allclose(search.topk(tiny, X[600:], 1)[1], search.topk(flat, X[600:], 1)[1], atol=1e-3)
    all_classes = search.topk(scorer, X[600:], 1, width=len(weights.biases))
    np.testing.assert_array_equal(all_classes[1], expected)


@pytest.mark.reference
@pytest.mark.parametrize(("slope", "atol"), [(-0.5, 0.01), (0.02, 0.001), (0.3, 0.01), (0.5, 0.1)])
def test_tails_between_temperatures_follow_the_sums(slope, atol):
    weights, _, _ = make(5)
    scorer = Scorer(weights, calibration=Calibration(1.1, 0.0, slope))
    scores = np.random.default_rng(3).normal(-12.0, 2.0, (50, 800))
    inverse = scorer.temper(np.log(np.linspace(0.001, 1.0, 50)))
    knots = _tail_temperatures(scorer)
    tails = np.logaddexp.reduce(knots[:, None, None] * scores, axis=2).astype(np.float32)
    found = _interpolate(knots, tails, inverse)
    np.testing.assert_allclose(found, np.logaddexp.reduce(inverse[:, None] * scores, axis=1), atol=atol)
    tails[2, 7] = -np.inf  # no class below the threshold
    assert _interpolate(knots, tails, inverse)[7] == -np.inf


@pytest.mark.reference
def test_tree_beam_tempers_its_candidates():
    problem = make_problem()
    scorer = replace(problem.scorer(), calibration=Calibration(1.2, 0.0, 0.4))
    found = TreeBeamSearch(problem.tree).topk(scorer, problem.X, 3, width=512)
    assert_same_ranking(*found, expected_log_prob(problem.table(None), 1.2, 0.4))


@pytest.mark.error
def test_scores_with_a_noise_term_take_none():
    weights, X, _ = make(5)
    noise = FrequencyNoise(np.arange(5) + 1)
    with pytest.raises(ValueError, match="with a noise term"):
        Scorer(weights, noise, calibration=Calibration(1.0, 0.0, 0.2)).check(X)


@pytest.mark.planted
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_slope_is_found_again(slope):
    """Labels are drawn from the calibrated probabilities of known weights."""
    weights, X, _ = make(40, n_rows=6000)
    true = Scorer(weights, calibration=Calibration(1.5, 0.0, slope))
    chances = np.exp(log_prob_all(true, X).astype(np.float64)).cumsum(axis=1)
    draws = np.random.default_rng(2).random((len(X), 1))
    y = np.minimum((chances < draws).sum(axis=1), 39).astype(np.int32)
    found = choose_calibration(Scorer(weights), Examples(X, y))
    assert found.temperature_slope == pytest.approx(slope, abs=0.06)
    assert found.temperature == pytest.approx(1.5, rel=0.1)
    few = CalibrationConfig(max_tempered_classes=39)
    assert choose_calibration(Scorer(weights), Examples(X, y), config=few).temperature_slope == 0.0
