"""Scores through postings against products with the same weights as an array."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax.kernels import sparse_scores
from extremax.kernels.compile import njit
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows

pytestmark = pytest.mark.small

N_ROWS, N_FEATURES, N_CLASSES = 9, 13, 11


def random_weights(rng, density=0.4):
    W = rng.normal(size=(N_CLASSES, N_FEATURES)).astype(np.float32)
    W[rng.random(W.shape) > density] = 0.0
    W[3] = 0.0  # a class without weights
    W[:, 5] = 0.0  # a feature without classes
    return W


def random_rows(rng):
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    X[rng.random(X.shape) > 0.5] = 0.0
    X[4] = 0.0  # an empty row
    return X


def postings_of(W):
    columns = sparse.csc_matrix(W)
    return Postings(columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data)


def rows_of(X):
    rows = sparse.csr_matrix(X)
    return CSRRows(rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int64))


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    W, X = random_weights(rng), random_rows(rng)
    biases, lengths = rng.normal(size=(2, N_CLASSES)).astype(np.float32)
    return W, X, biases, lengths


@pytest.mark.reference
@pytest.mark.parametrize(("first", "last"), [(0, N_ROWS), (2, 7), (4, 5), (3, 3)])
def test_scores_of_some_rows_match_the_product(problem, first, last):
    W, X, _, lengths = problem
    out = np.full((last - first, N_CLASSES), np.nan, np.float32)
    sparse_scores.score_rows(rows_of(X), first, last, postings_of(W), lengths, out)
    X = X.astype(np.float64)
    expected = X @ W.T + X.sum(axis=1, keepdims=True) * lengths
    np.testing.assert_allclose(out, expected[first:last], atol=2e-6)  # sums of ten float32


@pytest.mark.reference
@pytest.mark.parametrize(("first", "last"), [(0, 6), (1, 4)])
def test_scores_of_pairs_match_the_product(problem, first, last):
    W, X, biases, lengths = problem
    rng = np.random.default_rng(2)
    row_index = np.array([8, 0, 4, 4, 2, 7])
    labels = rng.integers(0, N_CLASSES, (6, 5)).astype(np.int32)
    labels[0] = [0, 3, N_CLASSES - 1, 3, 0]
    out = np.full((6, 5), np.nan, np.float32)
    sparse_scores.score_row_pairs(
        rows_of(X), row_index, labels, postings_of(W), (biases, lengths), out, first, last
    )
    X = X.astype(np.float64)
    table = X @ W.T + X.sum(axis=1, keepdims=True) * lengths + biases
    np.testing.assert_allclose(out[first:last], table[row_index[:, None], labels][first:last], atol=2e-6)
    assert np.isnan(out[:first]).all()
    assert np.isnan(out[last:]).all()


@pytest.mark.identity
def test_entries_of_a_repeated_feature_add_up(problem):
    W, _, biases, lengths = problem
    once = CSRRows(np.array([3.0], np.float32), np.array([2], np.int32), np.array([0, 1]))
    twice = CSRRows(np.array([1.0, 2.0], np.float32), np.array([2, 2], np.int32), np.array([0, 2]))
    labels, found = np.arange(N_CLASSES, dtype=np.int32)[None], []
    for rows in (once, twice):
        out = np.empty((1, N_CLASSES), np.float32)
        sparse_scores.score_row_pairs(
            rows, np.array([0]), labels, postings_of(W), (biases, lengths), out, 0, 1
        )
        found.append(out)
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_find_class_finds_each_class_and_no_other():
    classes = np.array([9, 1, 4, 5, 8, 2], np.int32)  # the feature has 1, 4, 5, 8
    assert [sparse_scores.find_class(classes, 1, 5, label) for label in range(11)] == [
        -1, 1, -1, -1, 2, 3, -1, -1, 4, -1, -1,
    ]  # fmt: skip
    assert sparse_scores.find_class(classes, 2, 2, 4) == -1


@pytest.mark.reference
def test_squares_of_each_class(problem):
    W = problem[0]
    postings, squares = postings_of(W), np.zeros(N_CLASSES)
    sparse_scores.sum_squares(postings, squares)
    np.testing.assert_allclose(squares, (W.astype(np.float64) ** 2).sum(axis=1), rtol=1e-6)


@pytest.mark.reference
@pytest.mark.parametrize("k", [1, 3, 128, 300])
@pytest.mark.parametrize("n", [1, 2, 127, 129, 300])
def test_best_scores_match_a_full_sort(n, k):
    rng = np.random.default_rng(n + k)
    for values in (rng.normal(size=n), rng.integers(0, 4, n), np.zeros(n), np.arange(n), -np.arange(n)):
        scores = values.astype(np.float32)
        labels, best = np.full(k, -7, np.int32), np.empty(k, np.float32)
        found = sparse_scores.select_top(scores, k, labels, best)
        assert found == min(n, k)
        np.testing.assert_array_equal(labels[:found], reference.ranked(scores[None], k)[0, :found])
        np.testing.assert_array_equal(best[:found], scores[labels[:found]])


def test_best_scores_leave_out_minus_infinity():
    scores = np.full(200, -np.inf, np.float32)
    scores[[150, 3]] = [1.0, -5.0]
    labels, best = np.empty(4, np.int32), np.empty(4, np.float32)
    assert sparse_scores.select_top(scores, 4, labels, best) == 2
    assert labels[:2].tolist() == [150, 3]
    assert best[:2].tolist() == [1.0, -5.0]
    assert sparse_scores.select_top(np.full(9, -np.inf, np.float32), 4, labels, best) == 0


@pytest.mark.small
def test_products_are_added() -> None:
    rng = np.random.default_rng(0)
    rows, factors = (rng.normal(size=(n, 5)).astype(np.float32) for n in (3, 7))
    out = np.ones((3, 7), np.float32)
    sparse_scores.add_products(rows, factors, out)
    np.testing.assert_allclose(out, 1.0 + rows @ factors.T, rtol=1e-5)


@pytest.mark.property
@pytest.mark.parametrize("n_classes", [1, 2, 40, 300])
def test_a_class_is_found_from_where_it_would_be_among_even_ones(n_classes):
    rng = np.random.default_rng(n_classes)
    for _ in range(40):
        size = int(rng.integers(1, n_classes + 1))
        # half of the lists are crowded at one end
        among = n_classes if rng.random() < 0.5 else min(n_classes, size + 3)
        classes = np.sort(rng.choice(among, size, replace=False)).astype(np.int32)
        low = int(rng.integers(0, size))
        high = int(rng.integers(low + 1, size + 1))
        label = np.int32(rng.integers(0, n_classes))
        place = np.flatnonzero(classes[low:high] == label)
        expected = low + place[0] if len(place) else -1
        assert look_near(classes, low, high, label, n_classes) == expected


@njit
def look_near(classes, low, high, label, n_classes):
    return sparse_scores.find_class_near(classes, low, high, label, n_classes)
