"""Dense weights: products of blocks, scores of pairs, and their state."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import pairwise
from extremax.scores.base import Buffers
from extremax.scores.dense import DenseWeights
from extremax.storage.state import restore

pytestmark = pytest.mark.small


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    found = DenseWeights.zeros(40, 12, feature_scale=0.5)
    found.weights[:] = rng.standard_normal((40, 12))
    found.biases[:] = rng.standard_normal(40)
    return found


def rows(n=9, n_features=12, used=12):
    X = np.zeros((n, n_features), np.float32)
    X[:, :used] = np.random.default_rng(1).standard_normal((n, used))
    return X


# used: few of the features of a sparse block, or all
@pairwise(form=["dense", "csr"], used=[3, 12], copy_numbers=[1, 1 << 20])
def test_products_of_a_block_match_reference(weights, form, used, copy_numbers):
    X = rows(used=used)
    block = weights.open_block(X if form == "dense" else sparse.csr_matrix(X), 2, 8)
    assert block.n_rows == 6
    out = np.empty((6, 25), np.float32)
    assert block.products(10, 35, Buffers(copy_numbers), out) is out
    expected = X[2:8].astype(np.float64) @ weights.weights[10:35].T.astype(np.float64)
    np.testing.assert_allclose(out, expected, atol=1e-5)  # float32 sums of 12 products


@pairwise(form=["dense", "csr"], width=[1, 5], n_threads=[1, 3])
def test_scores_of_pairs_match_reference(weights, form, width, n_threads):
    rng = np.random.default_rng(3)
    X, row_index = rows(), rng.integers(9, size=30)
    classes = rng.integers(40, size=(30, width)).astype(np.int32)
    given = X if form == "dense" else sparse.csr_matrix(X)
    got = weights.score_pairs(given, row_index, classes, n_threads)
    expected = reference.score_pairs(X, row_index, classes, weights.weights, weights.biases, 0.5)
    np.testing.assert_allclose(got, expected, atol=1e-5)  # float32 sums of 12 products


def test_read_only_rows_score_the_same_invariant(weights):
    X, pairs = rows(), np.zeros((9, 1), np.int32)
    expected = weights.score_pairs(X, np.arange(9), pairs, 1)
    X.flags.writeable = False
    np.testing.assert_array_equal(weights.score_pairs(X, np.arange(9), pairs, 1), expected)


def test_buffers_are_reused():
    buffers = Buffers()
    first = buffers.get("products", 4, 5)
    assert np.shares_memory(buffers.get("products", 2, 3), first)
    assert not np.shares_memory(buffers.get("logits", 2, 3), first)
    assert buffers.get("products", 10, 10).shape == (10, 10)


def test_dense_weights_are_restored_from_their_state(weights):
    again = restore("weights", weights.state())
    assert (again.n_classes, again.n_features, again.feature_scale) == (40, 12, 0.5)
    np.testing.assert_array_equal(again.to_dense(), weights.weights)
    np.testing.assert_array_equal(again.biases, weights.biases)
