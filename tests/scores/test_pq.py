"""Product-quantization search: codes, approximate scores, the width, and the tail-mass correction."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from extremax.calibration import Calibration, mix_uniform
from extremax.scores import ExactSearch, PQSearch, Scorer, index_bytes
from extremax.scores.dense import DenseWeights
from extremax.scores.pq import _order_classes, _subvectors
from extremax.storage.state import State, restore
from extremax.tree.noise import FrequencyNoise, TreeNoise
from extremax.tuned import PQConfig
from scorers import make_problem, random_linear


@pytest.fixture(scope="module")
def indexed():
    weights, X = random_linear()
    return Scorer(weights), X, PQSearch.fit(X, weights)


def exact(scorer, X, k):
    return ExactSearch().topk(scorer, X, k)


def at(scorer, temperature, uniform_mix=0.0):
    return replace(scorer, calibration=Calibration(temperature, uniform_mix))


def numbers(search):
    return search.state().header


@pytest.mark.parametrize(
    ("n_features", "expected"), [(1, (8, 1)), (16, (16, 1)), (57, (32, 2)), (256, (56, 5)), (512, (56, 10))]
)
def test_subvectors_cover_the_weights(n_features, expected):
    n_subvectors, size = _subvectors(n_features, PQConfig())
    assert (n_subvectors, size) == expected
    assert n_subvectors * size >= n_features


def test_consecutive_classes_are_alike():
    rng = np.random.default_rng(0)
    lengths, bases = rng.random(3205).astype(np.float32), rng.random(3205).astype(np.float32)
    order = _order_classes(lengths, bases)
    assert np.array_equal(np.sort(order), np.arange(3205))
    for values in (lengths, bases):
        blocks = values[order][:3200].reshape(100, 32)
        assert np.ptp(blocks, axis=1).mean() < 0.15  # ten strips of ten blocks; 0.94 in any order


@pytest.mark.parametrize(("n_classes", "n_features"), [(3000, 30), (6000, 150)])
def test_memory_is_what_index_bytes_says(n_classes, n_features):
    weights, _ = random_linear(n_classes, n_features)
    X = np.random.default_rng(0).normal(size=(2400 + 8 * n_features, n_features)).astype(np.float32)
    PQSearch.fit(X[:300], weights, n_threads=2)  # compiles
    tracemalloc.start()
    try:
        search = PQSearch.fit(X, weights, n_threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size, additional = index_bytes(n_classes, n_features)
    kept = [*search.state().arrays.values(), *search.sample]
    assert size == pytest.approx(sum(array.nbytes for array in kept), rel=0.1)
    assert peak < size + additional
    assert index_bytes(100, 30) == index_bytes(10**6, 5000) == (0, 0)


@pytest.mark.parametrize("n_classes", [3000, 8192, 32_768])
def test_as_many_classes_as_asked_for_are_scored(n_classes):
    """The classes that set a threshold are a fair sample of all."""
    weights, X = random_linear(n_classes)
    weights.biases[:] *= 3.0
    search = PQSearch.fit(X, weights, n_threads=2)
    for n_threshold in (8, 32):  # of the sample; fewer are a matter of luck
        width = n_threshold * search.stride
        places, counts = np.empty((900, n_classes), np.int32), np.empty(900, np.int32)
        search._find_candidates(X, n_threshold, np.ones(1, np.float32), places, counts)
        assert 0.7 * width < counts.mean() < 1.5 * width
        assert np.mean(counts > 4 * width) < 0.02  # these go to exact search, which takes longer


@pytest.mark.parametrize("k", [1, 4, 3000])
def test_width_of_all_classes_is_exact_search_identity(indexed, k):
    scorer, X, search = indexed
    scorer = at(scorer, 0.7)
    for rows in (X[:101], sparse.csr_matrix(X[:101]), X[:1], X[:0]):
        for got, expected in zip(
            search.topk(scorer, rows, k, width=3000), exact(scorer, rows, k), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


def test_result_is_the_best_of_the_classes_scored(indexed):
    scorer, X, search = indexed
    scores = 0.5 * X[:200].astype(np.float64) @ scorer.weights.weights.T + scorer.weights.biases
    for rows in (X[:200], sparse.csr_matrix(X[:200])):
        labels, log_prob = search.topk(scorer, rows, 5, width=40)
        own = np.take_along_axis(scores, labels, axis=1)
        assert (np.diff(own, axis=1) <= 0).all()
        # Differences within a row are exact, whatever the tail mass.
        np.testing.assert_allclose(np.diff(log_prob, axis=1), np.diff(own, axis=1), atol=2e-5)
        assert all(len(set(row)) == 5 for row in labels)
        best = np.sort(scores, axis=1)[:, :-6:-1]
        assert np.mean(own == best) > 0.9


@pytest.mark.parametrize("temperature", [0.05, 0.3, 0.7, 1.0, 1.5, 5.0])
def test_log_prob_counts_classes_that_were_not_scored(indexed, temperature):
    scorer, X, search = indexed
    scorer, rows = at(scorer, temperature), X[600:]
    best, expected = exact(scorer, rows, 1)
    labels, log_prob = search.topk(scorer, rows, 1)
    error = (log_prob - expected)[labels == best]
    assert abs(error.mean()) < (0.05 if 0.5 < temperature < 2.0 else 0.25)
    assert error.std() < 0.2
    if temperature < 0.5:  # the other classes have no mass
        return
    _, alone = replace(search, tail_correction=(np.inf, 0.0)).topk(scorer, rows, 1)
    assert (alone - expected)[labels == best].mean() > 0.3  # normalised over the classes scored alone


def test_far_rows_have_finite_log_prob(indexed):
    scorer, X, search = indexed
    for factor in (30.0, 1e3, 1e15, 1e-15, 1e-38):
        rows = X[:50] * np.float32(factor)
        labels, log_prob = search.topk(scorer, rows, 3, width=40)
        best, expected = exact(scorer, rows, 3)
        assert np.isfinite(log_prob).all()
        same = labels[:, 0] == best[:, 0]
        assert same.mean() > 0.9
        assert np.median(np.abs(log_prob - expected)[same, 0]) < 0.3


def test_held_out_rows_that_overflow_cost_no_log_prob():
    weights, X = random_linear()
    held_out = X[:600].copy()
    held_out[:12] = 1e30  # more than one in a hundred
    search = PQSearch.fit(X, weights, held_out=held_out)
    assert np.isfinite(search.max_square)
    assert np.isfinite(search.topk(Scorer(weights), X[:50], 3, width=40)[1]).all()


def test_log_prob_is_right_around_the_temperature_given():
    weights, X = random_linear()
    weights.weights[:] *= 4.0
    weights.biases[:] *= 4.0
    search = PQSearch.fit(X, weights, temperature=4.0)
    scorer = Scorer(weights, calibration=Calibration(4.0))
    best, expected = exact(scorer, X[600:], 1)
    labels, log_prob = search.topk(scorer, X[600:], 1)
    assert abs((log_prob - expected)[labels == best].mean()) < 0.05


def test_offsets_count_as_biases_identity(indexed):
    scorer, X, _ = indexed
    noise = FrequencyNoise(1 + np.arange(3000) % 11)
    weights, offsets = scorer.weights, noise.shared_log_prob
    shifted = DenseWeights(weights.weights, weights.biases + offsets, weights.feature_scale)
    search = PQSearch.fit(X, weights, offsets=offsets)
    np.testing.assert_array_equal(search.codes, PQSearch.fit(X, shifted).codes)
    for got, expected in zip(
        search.topk(Scorer(weights, noise), X[:50], 3, width=9),
        search.topk(Scorer(shifted), X[:50], 3, width=9),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


def test_threads_and_other_rows_change_nothing_invariant(indexed):
    scorer, X, search = indexed
    again = PQSearch.fit(X, scorer.weights, n_threads=3)
    assert numbers(again) == numbers(search)
    for name, array in search.state().arrays.items():
        np.testing.assert_array_equal(again.state().arrays[name], array)
    for width in (6, 40):
        whole = search.topk(scorer, X, 5, width=width, n_threads=1)
        threaded = search.topk(scorer, X, 5, width=width, n_threads=3)
        one_by_one = [search.topk(scorer, X[i : i + 1], 5, width=width) for i in range(40)]
        for part in range(2):
            np.testing.assert_array_equal(threaded[part], whole[part])
            np.testing.assert_array_equal(
                np.concatenate([single[part] for single in one_by_one]), whole[part][:40]
            )


def test_chosen_width_has_the_recall_that_is_stored(indexed):
    scorer, X, search = indexed
    held_out = X[600:]
    best, _ = exact(scorer, held_out, 1)
    found, _ = search.topk(scorer, held_out, 1)
    assert np.mean(found == best) == search.recall >= 0.99
    narrow, _ = search.topk(scorer, held_out, 1, width=1)
    assert np.mean(narrow == best) < search.recall
    assert search.cost(1) < search.cost(10) < search.cost(1000)


def test_higher_target_recall_takes_a_larger_width(indexed):
    scorer, X, search = indexed
    lower = PQSearch.fit(X, scorer.weights, config=PQConfig(target_recall=0.9))
    assert lower.width < search.width
    assert 0.9 <= lower.recall <= search.recall


def test_held_out_rows_choose_the_width_identity(indexed):
    scorer, X, search = indexed
    few = PQSearch.fit(X, scorer.weights, held_out=X[:300])  # too few: rows of X take their place
    assert numbers(few) == numbers(search)
    config = PQConfig(enough_width_rows=300)
    again = PQSearch.fit(X[:600], scorer.weights, held_out=X[600:], config=config)
    assert {**numbers(again), "config": None} == {**numbers(search), "config": None}
    np.testing.assert_array_equal(again.codes, search.codes)


def test_crowded_rows_go_to_exact_search_identity():
    """Where most classes are equal, more of them reach the threshold than there is room for."""
    weights, X = random_linear()
    weights.weights[1:] = weights.weights[0]
    weights.biases[1:] = weights.biases[0]
    search, scorer = PQSearch.fit(X, weights), Scorer(weights)
    labels, log_prob = search.topk(scorer, X[:20], 3, width=8)
    np.testing.assert_array_equal(labels, exact(scorer, X[:20], 3)[0])
    np.testing.assert_allclose(log_prob, -np.log(3000.0), atol=1e-4)


def test_few_rows_choose_no_width():
    weights, X = random_linear()
    scorer = Scorer(weights)
    assert PQSearch.fit(X[:299], weights).width is None
    for rows in (X[:2], np.ones((2, 30), np.float32)):
        search = PQSearch.fit(rows, weights)
        labels, log_prob = search.topk(scorer, X, 3, width=300)
        assert search.width is None
        assert np.isfinite(log_prob).all()
        assert ((labels >= 0) & (labels < 3000)).all()
        for got, expected in zip(search.topk(scorer, X[:9], 3), exact(scorer, X[:9], 3), strict=True):
            np.testing.assert_array_equal(got, expected)  # without a width, all classes are scored


def test_uniform_mixing_of_candidates_identity(indexed):
    scorer, X, search = indexed
    plain = search.topk(scorer, X, 3, width=4)
    mixed = search.topk(at(scorer, 1.0, 0.1), X, 3, width=4)
    np.testing.assert_array_equal(mixed[0], plain[0])
    np.testing.assert_array_equal(mixed[1], mix_uniform(plain[1], 0.1, 3000))
    assert (mixed[1] != plain[1]).all()


def test_pq_search_is_restored_from_its_state_identity(indexed):
    scorer, X, _ = indexed
    config = PQConfig(target_recall=0.95, tail_scales=(0.5, 1.0, 2.0))
    search = PQSearch.fit(X, scorer.weights, n_epochs=3, config=config)
    again = restore("search", search.state())
    assert numbers(again) == numbers(search)
    assert again.config == config
    for a, b in zip(again.topk(scorer, X[:50], 4), search.topk(scorer, X[:50], 4), strict=True):
        np.testing.assert_array_equal(a, b)
    stored = search.state()
    without = {name: value for name, value in stored.header.items() if name != "config"}
    assert PQSearch.from_state(State(without, stored.arrays)).config == PQConfig()  # as version 1 stored it


def test_wrong_arguments_rejects(indexed):
    scorer, X, search = indexed
    with pytest.raises(ValueError, match="k is 0"):
        search.topk(scorer, X, 0, width=3)
    p = make_problem()
    with pytest.raises(ValueError, match="linear in the features"):
        search.topk(p.scorer(TreeNoise(p.tree)), p.X, 1, width=3)
