"""Tables of scores and probabilities, likelihood and accuracy of labelled rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import pairwise
from extremax import metrics
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.scores import log_softmax, remove_bias
from extremax.scores.base import SearchConfig
from scorers import (
    assert_same_ranking,
    choose_calibration,
    debiased_scores,
    evaluate,
    log_likelihood,
    log_prob_all,
    make_problem,
    prob_all,
    rank_pairs,
)

NOISES = ["none", "frequency", "tree", "mixture"]


@pytest.fixture(scope="module")
def problem():
    return make_problem()


@pytest.mark.parametrize("which", NOISES)
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_debiased_scores_and_log_prob_match_reference(problem, which, form):
    noise = problem.noises()[which]
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    table, config = problem.table(noise), SearchConfig(scratch_bytes=20_000)
    scores = debiased_scores(problem.scorer(noise), X, config=config)
    np.testing.assert_allclose(scores, table, atol=2e-5)  # float32 scores of size 20
    log_prob = log_prob_all(problem.scorer(noise, 2.0), X, config=config)
    np.testing.assert_allclose(log_prob, reference.log_softmax(table, 2.0), atol=2e-5)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


def test_uniform_mixing_of_tables_matches_reference(problem):
    scorer = problem.scorer(None, 1.0, 0.1)
    expected = 0.9 * np.exp(reference.log_softmax(problem.table(None))) + 0.1 / 300
    np.testing.assert_allclose(prob_all(scorer, problem.X), expected, atol=1e-6)  # float32 logarithms
    np.testing.assert_allclose(np.exp(log_prob_all(scorer, problem.X)), expected, atol=1e-6)
    assert prob_all(scorer, problem.X).dtype == np.float64


@pytest.mark.parametrize("which", NOISES)
def test_evaluate_equals_metrics_of_the_full_table_identity(problem, which):
    noise = problem.noises()[which]
    # right at rank 1 to 8
    y = reference.ranked(problem.table(noise), 8)[np.arange(60), np.arange(60) % 8].astype(np.int32)
    weight = np.random.default_rng(0).random(60).astype(np.float32)
    expected = reference.log_softmax(problem.table(noise), 0.8)
    ranked, scorer = reference.ranked(expected, 5), problem.scorer(noise, 0.8)
    for w in (None, weight):
        examples = Examples(problem.X, y, weight=w)
        got = evaluate(scorer, examples, 5)
        likelihood = metrics.log_likelihood(y, expected, sample_weight=w)
        assert got.log_likelihood == pytest.approx(likelihood, abs=1e-5)  # float32 scores
        assert got.accuracy == pytest.approx(metrics.accuracy(y, ranked[:, 0], sample_weight=w))
        assert got.top_k_accuracy == pytest.approx(metrics.accuracy_at_k(y, ranked, k=5, sample_weight=w))
        assert log_likelihood(scorer, examples) == got.log_likelihood
    assert 0.0 < got.accuracy < got.top_k_accuracy < 1.0


@pairwise(which=NOISES, form=["dense", "csr"], uniform_mix=[0.0, 0.1])
def test_pairs_of_rows_with_several_labels_match_reference(problem, which, form, uniform_mix):
    rng = np.random.default_rng(1)
    noise, rows = problem.noises()[which], np.repeat(np.arange(60), rng.integers(0, 4, 60)).astype(np.int64)
    y = rng.integers(300, size=len(rows)).astype(np.int32)
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    scorer, pairs = problem.scorer(noise, 1.3, uniform_mix), Examples(X, y, rows)
    expected = reference.log_softmax(problem.table(noise), 1.3)
    expected = np.log((1.0 - uniform_mix) * np.exp(expected) + uniform_mix / 300)
    for config in (SearchConfig(), SearchConfig(pair_block_rows=7)):
        found = rank_pairs(scorer, pairs, 4, config=config)
        assert_same_ranking(found.labels, found.log_prob, expected)
        np.testing.assert_allclose(found.pair_log_prob, expected[rows, y], atol=2e-5)  # float32 scores
    assert log_likelihood(scorer, pairs) == pytest.approx(expected[rows, y].mean(), abs=1e-5)


def test_rows_with_several_labels_count_once_identity(problem):
    """A row is right where one of its labels is predicted, with the weight of its first pair."""
    ranked = reference.ranked(problem.table(None), 6)
    rows = np.repeat(np.arange(60, dtype=np.int64), 2)
    second = np.where(np.arange(60) % 2, ranked[:, 0], ranked[:, 3])
    y = np.stack([ranked[:, 5], second], axis=1).ravel().astype(np.int32)
    weight = np.repeat(np.linspace(0.5, 2.0, 60, dtype=np.float32), 2)
    got = evaluate(problem.scorer(), Examples(problem.X, y, rows, weight), 5)
    odd = np.average(np.arange(60) % 2, weights=weight[::2])
    assert got.accuracy == pytest.approx(odd)
    assert got.top_k_accuracy == 1.0


def test_read_only_labels_invariant(problem):
    y = problem.y.copy()
    y.flags.writeable = False
    assert evaluate(problem.scorer(), Examples(problem.X, y)) == evaluate(problem.scorer(), problem.examples)


def test_remove_bias_in_place_and_without_bias():
    scores, log_noise = np.array([[1.0, 2.0]], np.float32), np.array([[-3.0, -4.0]], np.float32)
    assert remove_bias(scores, None) is scores
    assert remove_bias(scores, log_noise, out=scores) is scores
    np.testing.assert_array_equal(scores, [[-2.0, -2.0]])


def test_log_softmax_of_large_scores_matches_reference():
    scores = (200 * np.random.default_rng(1).standard_normal((50, 30))).astype(np.float32)
    got = log_softmax(scores, temperature=2.0, config=SearchConfig(table_block_scores=100))  # several blocks
    np.testing.assert_allclose(got, reference.log_softmax(scores, 2.0), atol=1e-4)  # size 400


def test_full_tables_beyond_the_memory_limit_rejects(problem):
    scorer, X = problem.scorer(), problem.X

    def limit(n_bytes):
        return SearchConfig(max_result_bytes=n_bytes)

    with pytest.raises(
        ValueError, match=r"predict_log_proba would return 60 rows x 300 classes.*predict_topk"
    ):
        log_prob_all(scorer, X, config=limit(60 * 300 * 4 - 1))
    with pytest.raises(ValueError, match=r"decision_function would return.*predict_topk"):
        debiased_scores(scorer, X, config=limit(1000))
    with pytest.raises(ValueError, match=r"predict_proba would return"):  # in float64
        prob_all(scorer, X, config=limit(60 * 300 * 8 - 1))
    assert prob_all(scorer, X, config=limit(60 * 300 * 8)).shape == (60, 300)
    assert log_prob_all(scorer, X, config=limit(60 * 300 * 4)).shape == (60, 300)
    assert log_prob_all(scorer, X[:0]).shape == (0, 300)


def test_scores_that_overflow_rejects(problem):
    far = problem.X.copy()
    far[17] = 1e38
    with pytest.raises(ScoreOverflowError, match=r"X\[17\] overflow"):
        debiased_scores(problem.scorer(), far, config=SearchConfig(block_rows=5))
    with pytest.raises(ScoreOverflowError, match=r"X\[17\] overflow"):
        choose_calibration(problem.scorer(), Examples(far, problem.y))


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.full(60, 300), "y holds class 300; the model has classes 0 to 299"),
        (np.full(60, -1), "class -1"),
        (np.zeros(3), "one class"),
    ],
)
@pytest.mark.parametrize("score", [evaluate, log_likelihood, choose_calibration])
def test_wrong_targets_rejects(problem, score, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        score(problem.scorer(), Examples(problem.X, y.astype(np.int32)))
    with pytest.raises(ValueError, match="no rows"):
        score(problem.scorer(), Examples(problem.X[:0], np.zeros(0, np.int32)))
