"""Exact search of sparse weights, row by row, against full tables of probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax.calibration import Calibration
from extremax.examples import Examples
from extremax.scores import ExactSearch, Scorer
from extremax.scores.base import SearchConfig
from extremax.scores.dense import DenseWeights
from extremax.scores.sparse import DensePart, SparseWeights, add_postings, no_postings, packed_kinds
from extremax.tree.noise import FrequencyNoise
from scorers import assert_same_ranking, debiased_scores, evaluate, log_likelihood, log_prob_all, rank_pairs

N_ROWS, N_FEATURES, N_DENSE = 41, 30, 4
PACKED = 130  # classes of a problem whose weights are packed


class Problem:
    """Random weights; one class, one feature and one row have nothing."""

    def __init__(self, n_classes, n_dense=0, seed=0):
        rng = np.random.default_rng(seed)
        W = rng.normal(size=(n_classes, N_FEATURES)).astype(np.float32)
        W[rng.random(W.shape) < 0.8] = 0.0
        W[n_classes // 2], W[:, 3] = 0.0, 0.0
        biases, lengths = rng.normal(size=(2, n_classes)).astype(np.float32)
        words = rng.random((N_ROWS, N_FEATURES)).astype(np.float32)
        words[rng.random(words.shape) < 0.7] = 0.0
        words[5] = 0.0
        self.table = words.astype(np.float64) @ W.T + words.sum(axis=1, keepdims=True) * lengths + biases
        dense, X = None, words
        if n_dense:
            others = rng.normal(size=(N_ROWS, n_dense)).astype(np.float32)
            dense = DensePart.of_columns(rng.normal(size=(n_classes, n_dense)).astype(np.float32), n_dense)
            self.table += others.astype(np.float64) @ dense.factors.T
            X = np.hstack([words, others])
        self.weights = SparseWeights.from_matrix(sparse.csc_matrix(W), biases, lengths, dense)
        if n_classes == PACKED:
            packed = add_postings(self.weights.postings, no_postings(N_FEATURES), None, 1, packed_kinds(9))
            self.weights = replace(self.weights, postings=packed)
            self.table += words.astype(np.float64) @ (self.weights.to_dense() - W).T
            W = self.weights.to_dense()
        self.X, self.W, self.biases = sparse.csr_matrix(X), W, biases
        self.y = rng.integers(0, n_classes, N_ROWS).astype(np.int32)

    def scorer(self, temperature=1.0, uniform_mix=0.0, noise=None, slope=0.0):
        return Scorer(self.weights, noise, None, Calibration(temperature, uniform_mix, slope))


@pytest.mark.reference
@pytest.mark.parametrize("n_classes", [2, 3, 130, 700])
@pytest.mark.parametrize("n_dense", [0, N_DENSE])
@pytest.mark.parametrize("form", ["csr", "array"])
def test_best_classes_match_the_table(n_classes, n_dense, form):
    p = Problem(n_classes, n_dense)
    X = p.X if form == "csr" else p.X.toarray()
    for k in {1, min(5, n_classes), n_classes}:
        labels, log_prob = ExactSearch().topk(p.scorer(1.3), X, k)
        assert labels.dtype == np.int32
        assert_same_ranking(labels, log_prob, reference.log_softmax(p.table, 1.3))


@pytest.mark.identity
def test_probabilities_of_all_classes_sum_to_one():
    p = Problem(130)
    labels, log_prob = ExactSearch().topk(p.scorer(0.7), p.X, 130)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    assert (np.sort(labels, axis=1) == np.arange(130)).all()


@pytest.mark.reference
@pytest.mark.parametrize("slope", [-0.3, 0.4])
@pytest.mark.parametrize("n_classes", [3, 700])
def test_temperature_of_a_row_follows_its_confidence(n_classes, slope):
    """Top-k, all probabilities and those of pairs agree with the formula."""
    p = Problem(n_classes, N_DENSE)
    scorer = p.scorer(1.3, slope=slope)
    top = np.exp(reference.log_softmax(p.table, 1.3).max(axis=1))
    temperature = 1.3 * (top + 0.1) ** slope
    assert temperature.max() > 1.05 * temperature.min()
    expected = reference.log_softmax(p.table / temperature[:, None])
    labels, log_prob = ExactSearch().topk(scorer, p.X, 3)
    assert_same_ranking(labels, log_prob, expected)
    np.testing.assert_allclose(log_prob_all(scorer, p.X), expected, atol=2e-4)
    of_pairs = expected[np.arange(N_ROWS), p.y].mean()
    assert log_likelihood(scorer, Examples(p.X, p.y)) == pytest.approx(of_pairs, abs=1e-5)
    twice = Examples(p.X, np.repeat(p.y, 2), np.repeat(np.arange(N_ROWS), 2))  # several labels per row
    np.testing.assert_allclose(
        rank_pairs(scorer, twice, 1).pair_log_prob[::2], expected[np.arange(N_ROWS), p.y], atol=2e-4
    )


@pytest.mark.identity
def test_temperature_by_row_keeps_the_order_and_no_bit_depends_on_threads():
    p = Problem(130)
    labels, log_prob = ExactSearch().topk(p.scorer(0.7, 0.01, slope=0.3), p.X, 130)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    np.testing.assert_array_equal(labels, ExactSearch().topk(p.scorer(0.7), p.X, 130)[0])
    again = ExactSearch().topk(p.scorer(0.7, 0.01, slope=0.3), p.X, 130, n_threads=3)
    np.testing.assert_array_equal(again[1], log_prob)


@pytest.mark.identity
def test_empty_rows_are_scored_by_their_biases():
    p = Problem(130)
    labels, log_prob = ExactSearch().topk(p.scorer(), p.X, 3)
    expected = reference.log_softmax(p.biases[None])
    assert_same_ranking(labels[5:6], log_prob[5:6], expected)


@pytest.mark.identity
@pytest.mark.parametrize("noise", [False, True])
def test_sparse_and_dense_weights_find_the_same(noise):
    p = Problem(200)
    term = FrequencyNoise(np.arange(200) % 7 + 1) if noise else None
    flat = SparseWeights(p.weights.postings, p.biases, np.zeros(200, np.float32))
    dense = DenseWeights(p.W, p.biases)
    found = [
        ExactSearch().topk(Scorer(weights, term, None, Calibration(1.2, 0.01)), p.X, 7)
        for weights in (flat, dense)
    ]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


@pytest.mark.invariance
def test_threads_blocks_and_single_rows_change_no_bit():
    p = Problem(130, N_DENSE)
    labels, log_prob = ExactSearch().topk(p.scorer(), p.X, 6, n_threads=1)
    for n_threads in (2, 3):
        again = ExactSearch().topk(p.scorer(), p.X, 6, n_threads=n_threads)
        np.testing.assert_array_equal(again[0], labels)
        np.testing.assert_array_equal(again[1], log_prob)
    configs = (
        SearchConfig(row_task_scores=1),
        SearchConfig(block_rows=7),
        SearchConfig(row_block_scores=400),
        SearchConfig(row_block_scores=1, row_task_scores=1),
    )
    for config in configs:
        for n_threads in (1, 2):
            again = ExactSearch(config).topk(p.scorer(), p.X, 6, n_threads=n_threads)
            np.testing.assert_array_equal(again[0], labels)
            np.testing.assert_array_equal(again[1], log_prob)
    for first, last in ((0, 1), (5, 6), (3, 20), (N_ROWS - 1, N_ROWS)):
        some = ExactSearch().topk(p.scorer(), p.X[first:last], 6)
        np.testing.assert_array_equal(some[0], labels[first:last])
        np.testing.assert_array_equal(some[1], log_prob[first:last])


@pytest.mark.reference
@pytest.mark.parametrize("n_dense", [0, N_DENSE])
@pytest.mark.parametrize("config", [SearchConfig(column_fraction=1.0), SearchConfig(column_bytes=0)])
def test_columns_and_postings_find_the_same(n_dense, config):
    p = Problem(700, n_dense)
    configs = SearchConfig(), config
    with_columns, without = (p.weights.column_table(given) for given in configs)
    assert (with_columns.place[:N_FEATURES] >= 0).any()  # so that there is something to compare
    assert not (without.place[:N_FEATURES] >= 0).any()
    found = [ExactSearch(given).topk(p.scorer(1.3, slope=0.2), p.X, 6) for given in configs]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("n_dense", [0, N_DENSE])
def test_likelihood_evaluation_and_scores_match_the_table(n_dense):
    p = Problem(130, n_dense)
    expected = reference.log_softmax(p.table)[np.arange(N_ROWS), p.y]
    data = Examples(p.X, p.y)
    assert log_likelihood(p.scorer(), data) == pytest.approx(expected.mean(), abs=1e-5)
    figures = evaluate(p.scorer(), data)
    assert figures.log_likelihood == pytest.approx(expected.mean(), abs=1e-5)
    assert figures.accuracy == pytest.approx((p.table.argmax(axis=1) == p.y).mean())
    np.testing.assert_allclose(debiased_scores(p.scorer(), p.X), p.table, atol=1e-4)


def test_no_rows():
    p = Problem(130)
    labels, log_prob = ExactSearch().topk(p.scorer(), p.X[:0], 4)
    assert labels.shape == log_prob.shape == (0, 4)
