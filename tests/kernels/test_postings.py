"""Compressed matrices without temporary arrays, against scipy and numpy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.kernels.postings import Postings
from extremax.runtime.products import count_indices, row_blocks, square_sums
from extremax.scores.sparse import (
    SparseWeights,
    add_postings,
    csr_rows,
    no_postings,
    packed_kinds,
    prune_postings,
    select_columns,
    transposed,
)
from extremax.solvers.sparse.plausible import feature_mean

pytestmark = [pytest.mark.small, pytest.mark.reference]
N_CLASSES, N_FEATURES = 13, 17


def make_matrix(seed, shape=(N_CLASSES, N_FEATURES), density=0.3):
    """Random entries, an empty line and an empty column, and some stored zeros."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=shape).astype(np.float32)
    table[rng.random(shape) > density] = 0.0
    table[3], table[:, 5] = 0.0, 0.0
    matrix = sparse.csr_matrix(table)
    matrix.data[::7] = 0.0
    return matrix


def postings_of(matrix):
    columns = matrix.tocsc()
    columns.sort_indices()
    return Postings(columns.indptr.astype(np.int64), columns.indices, columns.data)


def assert_same(found, expected):
    for one, two in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_transposed_is_the_other_format(index):
    matrix = make_matrix(0)
    matrix.indptr = matrix.indptr.astype(index)
    assert_same(transposed(matrix), postings_of(matrix))
    back = transposed(matrix.tocsc())
    assert_same(back, (matrix.indptr, matrix.indices, matrix.data))
    weights = SparseWeights.from_matrix(matrix, np.zeros(N_CLASSES, np.float32))
    assert_same(weights.postings, postings_of(matrix))


def test_sums_of_postings_are_those_of_matrices():
    one, two = make_matrix(1), make_matrix(2)
    two = sparse.vstack([-one[0], two[1:]], format="csr")  # cancels out
    total = sparse.csr_matrix(one.toarray() + two.toarray())
    assert_same(add_postings(postings_of(one), postings_of(two)), postings_of(total))
    nothing = add_postings(postings_of(one), postings_of(-one))
    assert len(nothing.values) == 0
    assert nothing.offsets.tolist() == [0] * (N_FEATURES + 1)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 100.0])
def test_pruned_postings_are_those_of_a_mask(threshold):
    postings = postings_of(make_matrix(3))
    mean = np.random.default_rng(0).random(N_FEATURES).astype(np.float32)
    feature = np.repeat(np.arange(N_FEATURES), np.diff(postings.offsets))
    kept = np.abs(postings.values) * mean[feature] >= np.float32(threshold)
    ends = np.concatenate([[0], np.cumsum(np.bincount(feature[kept], minlength=N_FEATURES))])
    found = prune_postings(postings, mean, threshold)
    assert_same(found, (ends, postings.classes[kept], postings.values[kept]))
    assert (found is postings) == bool(kept.all())


@pytest.mark.reference
@pytest.mark.parametrize("n_classes", [1 << 16, (1 << 16) + 1])
def test_packed_weights_are_within_half_a_step(n_classes):
    one, two = make_matrix(7), make_matrix(8)
    two.data[two.indices == 7] = 1e-42  # below the smallest step
    one.data[one.indices == 7] = 0.0
    whole = sparse.csc_matrix(one.toarray() + two.toarray())
    pruning = np.ones(N_FEATURES, np.float32), 0.0
    kinds = packed_kinds(n_classes)
    packed = add_postings(postings_of(one), postings_of(two), pruning, 2, kinds)
    plain = add_postings(postings_of(one), postings_of(two), pruning)
    assert_same(packed[:2], plain[:2])
    assert (packed.classes.dtype, packed.values.dtype) == kinds
    feature = np.repeat(np.arange(N_FEATURES), np.diff(packed.offsets))
    decoded = packed.steps[feature] * packed.values
    largest = np.abs(whole.toarray()).max(axis=0)
    assert (np.abs(decoded - plain.values) <= 0.5001 / 127 * largest[feature] + 1e-37).all()
    kept, nothing = packed.values != 0, no_postings(N_FEATURES)
    again = add_postings(packed, nothing, None, 1, kinds)  # packed weights stay as they are
    np.testing.assert_array_equal(again.values, packed.values[kept])
    np.testing.assert_allclose(again.steps[feature[kept]], packed.steps[feature[kept]], rtol=1e-6)
    np.testing.assert_array_equal(add_postings(packed, nothing).values, decoded[kept])


def test_selected_columns_are_those_of_scipy():
    matrix = make_matrix(4)
    columns = np.array([0, 4, 5, 11, 16])
    found = select_columns(csr_rows(matrix), columns, N_FEATURES)
    np.testing.assert_array_equal(found.toarray(), matrix[:, columns].toarray())
    assert found.nnz == matrix[:, columns].nnz
    assert select_columns(csr_rows(matrix), columns[2:3], N_FEATURES).nnz == 0


@pytest.mark.parametrize("used", [None, np.arange(N_CLASSES) % 3 > 0])
def test_mean_size_of_a_column_is_that_of_the_rows_that_have_it(used):
    matrix = make_matrix(5, density=0.9)
    rows = csr_rows(matrix)
    kept = np.ones(matrix.nnz, bool) if used is None else np.repeat(used, np.diff(matrix.indptr))
    total, count = np.zeros(N_FEATURES), np.zeros(N_FEATURES, np.int64)
    for f, x in zip(rows.indices[kept], rows.data[kept], strict=True):
        total[f] += abs(x)
        count[f] += 1
    expected = (total / np.maximum(count, 1)).astype(np.float32)
    np.testing.assert_array_equal(feature_mean(rows, N_FEATURES, used), expected)


@pytest.mark.parametrize("size", [1, 5, 40, 1 << 20])
def test_sums_in_blocks_are_those_of_all_at_once(size):
    matrix = make_matrix(6, (200, N_FEATURES), density=0.5)
    row = np.repeat(np.arange(200), np.diff(matrix.indptr))
    squares = np.bincount(row, weights=matrix.data.astype(np.float64) ** 2, minlength=200)
    np.testing.assert_array_equal(square_sums(matrix.indptr, matrix.data, size), squares)
    counts = np.bincount(matrix.indices, minlength=N_FEATURES)
    np.testing.assert_array_equal(count_indices(matrix.indices, N_FEATURES, size), counts)
    blocks = list(row_blocks(matrix.indptr, size))
    assert [first for first, _ in blocks[1:]] == [last for _, last in blocks[:-1]]
    assert (blocks[0][0], blocks[-1][1]) == (0, 200)
    most = max(size, int(np.diff(matrix.indptr).max()))
    assert all(matrix.indptr[last] - matrix.indptr[first] <= most for first, last in blocks)
