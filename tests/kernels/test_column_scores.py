"""Best classes by columns and postings, against products in float64 and the kernels of tiles."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax.kernels import topk
from extremax.kernels.column_scores import RowParts
from extremax.kernels.simd import TILE
from extremax.runtime.scratch import aligned_empty
from extremax.scores.base import SearchConfig
from extremax.scores.scan import ScanResult
from extremax.scores.sparse import ColumnBlock, DensePart, SparseWeights

pytestmark = pytest.mark.small

N_WORDS, N_DENSE, N_PROJECTED, N_ROWS = 14, 3, 4, 9
LIMITS = SearchConfig(column_fraction=0.4, column_bytes=1 << 20)


class Case:
    """Weights with long and short columns, rows, and their scores in float64."""

    def __init__(self, n_classes, *, projects=True, n_dense=N_DENSE, unit_rows=False):
        rng = np.random.default_rng(n_classes)
        W = rng.normal(size=(n_classes, N_WORDS)).astype(np.float32)
        W[rng.random(W.shape) > np.linspace(0.05, 0.9, N_WORDS)] = 0.0
        W[:, 5] = 0.0  # a word without weights
        words = rng.normal(size=(N_ROWS, N_WORDS)).astype(np.float32)
        words[rng.random(words.shape) < 0.5] = 0.0
        words[4] = 0.0  # an empty row
        others = rng.normal(size=(N_ROWS, n_dense)).astype(np.float32)
        columns = np.arange(1, N_WORDS, 3, dtype=np.int32) if projects else np.empty(0, np.int32)
        words[2, columns] = 0.0  # a row of which the projection reads nothing
        n_projected = N_PROJECTED if projects else 0
        projection = rng.normal(size=(len(columns), n_projected)).astype(np.float32)
        factors = rng.normal(size=(n_classes, n_projected + n_dense)).astype(np.float32)
        dense = DensePart(factors, columns, projection, n_dense, unit_rows) if factors.shape[1] else None
        self.biases, lengths = rng.normal(size=(2, n_classes)).astype(np.float32)
        self.weights = SparseWeights.from_matrix(sparse.csc_matrix(W), self.biases, lengths, dense)
        self.X = sparse.csr_matrix(np.hstack([words, others]))
        self.table = (
            words.astype(np.float64) @ W.T + words.sum(axis=1, keepdims=True, dtype=np.float64) * lengths
        )
        read = words[:, columns].astype(np.float64)
        if unit_rows:
            read /= np.maximum(np.linalg.norm(read, axis=1, keepdims=True), 1e-9)
        self.table += np.hstack([read @ projection, others]) @ factors.T
        self.lengths = (W != 0).mean(axis=0)

    def columns(self, n_bytes):
        return self.weights.column_table(SearchConfig(column_fraction=0.4, column_bytes=n_bytes))

    def scores(self, first, last, cut):
        """Return the scores of the columns, tiles in two parts."""
        block = ColumnBlock(self.weights, self.weights.column_table(LIMITS), self.X, first, last)
        scores = aligned_empty(block.n_rows * block.n_tiles * TILE).reshape(block.n_rows, -1)
        block.sum_tiles(min(cut, block.n_tiles), block.n_tiles, scores)
        block.sum_tiles(0, min(cut, block.n_tiles), scores)
        return block, scores

    def find_best(self, tempering, k, targets):
        """Return the best classes of all rows, and the scores of the last row."""
        block, scores = self.scores(0, N_ROWS, 3)
        found, line = ScanResult.empty(N_ROWS, k, np.float32(0.0)), np.empty(len(self.biases), np.float32)
        block.find_best(0, tempering, scores, targets, line, found)
        return found, line


CASES = [
    {},
    {"projects": False},
    {"n_dense": 0},
    {"unit_rows": True},
    {"projects": False, "n_dense": 0},
]


@pytest.mark.reference
@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("n_classes", [1, TILE - 1, TILE, 300])
def test_best_classes_match_the_product(options, n_classes):
    case = Case(n_classes, **options)
    targets = np.arange(N_ROWS, dtype=np.int32) % n_classes
    found, line = case.find_best((1 / 1.3, 0.2, 0.1), min(5, n_classes), targets)
    np.testing.assert_allclose(line, case.table[-1] + case.biases, atol=2e-5)
    inverse = found.inverse_temperature[:, None].astype(np.float64)
    expected = reference.log_softmax((case.table + case.biases) * inverse)
    np.testing.assert_allclose(found.target_log_prob, expected[np.arange(N_ROWS), targets], atol=3e-5)
    np.testing.assert_allclose(found.log_prob, np.take_along_axis(expected, found.labels, axis=1), atol=3e-5)
    np.testing.assert_allclose(
        found.log_prob, -np.sort(-expected, axis=1)[:, : found.labels.shape[1]], atol=3e-5
    )


@pytest.mark.invariance
def test_neither_tiles_nor_other_rows_change_a_bit():
    case = Case(300)
    _, whole = case.scores(0, N_ROWS, 0)
    for first, last, cut in ((0, N_ROWS, 4), (2, 3, 1), (3, 8, 9), (4, 5, 2)):
        _, part = case.scores(first, last, cut)
        np.testing.assert_array_equal(part, whole[first:last])


@pytest.mark.identity
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_rows_by_columns_equal_tiles(slope):
    """The same scores through the kernels of dense weights: several strips, several tiles."""
    case, k, tempering = Case(1100), 4, (1 / 1.3, slope, 0.1)
    targets = np.full(N_ROWS, -1, np.int32)
    targets[:3] = 7, 1099, 0
    found, _ = case.find_best(tempering, k, targets)
    products = case.table.astype(np.float32)
    state = topk.empty_states(1, N_ROWS, k, targets)
    scaling = topk.Scaling(np.float32(1.0), np.float32(tempering[0]))
    columns = topk.Columns(np.arange(1100, dtype=np.int32), case.biases, 0)
    noise = topk.LogNoise(np.zeros((1, 1100), np.float32), 0, 0)
    group = state._replace(
        heap_scores=state.heap_scores[0],
        heap_labels=state.heap_labels[0],
        peak=state.peak[0],
        mass=state.mass[0],
    )
    strip = np.empty(topk.STRIP, np.float32)
    topk.scan_tile(products, columns, noise, scaling, group, strip)
    expected = ScanResult.empty(N_ROWS, k, scaling.inverse_temperature)
    if slope:
        topk.temper_groups(state, tempering, expected.inverse_temperature)
        assert len(np.unique(expected.inverse_temperature)) == N_ROWS
        topk.sum_tile(
            products,
            case.biases,
            scaling.features,
            expected.inverse_temperature,
            state.peak[0],
            state.mass[0],
        )
    expected.finish(state, 0, N_ROWS)
    np.testing.assert_array_equal(found.labels, expected.labels)
    for array, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(array, other, atol=3e-5)
    assert np.isfinite(found.target_log_prob[:3]).all()
    assert np.isnan(found.target_log_prob[3:]).all()


def test_long_columns_are_taken_the_longest_first():
    case = Case(300)
    table = case.weights.column_table(LIMITS)
    n_fixed = 1 + N_PROJECTED + N_DENSE
    taken = np.flatnonzero(table.place[:N_WORDS] >= 0)
    np.testing.assert_array_equal(taken, np.flatnonzero(case.lengths > 0.4))
    assert table.tiles.shape == (-(-300 // TILE), n_fixed + len(taken), TILE)
    assert table.tiles.ctypes.data % 64 == 0
    assert case.weights.column_table(LIMITS) is table  # made once
    column_bytes = table.tiles.nbytes // table.tiles.shape[1]
    fewer = case.columns((n_fixed + 2) * column_bytes)
    longest = np.sort(np.argsort(-case.lengths, kind="stable")[:2])
    np.testing.assert_array_equal(np.flatnonzero(fewer.place[:N_WORDS] >= 0), longest)
    assert (case.columns(n_fixed * column_bytes).place[:N_WORDS] == -1).all()
    assert (case.columns(1 << 40).place >= 0).sum() == len(taken) + N_DENSE


def test_columns_are_not_copied_to_other_processes():
    case = Case(300)
    table = case.weights.column_table(LIMITS)
    copied = pickle.loads(pickle.dumps(case.weights))
    assert "_kept_columns" not in vars(copied)
    np.testing.assert_array_equal(copied.column_table(LIMITS).tiles, table.tiles)


def test_words_without_weights_have_no_postings():
    case = Case(300, projects=False, n_dense=0)
    row = sparse.csr_matrix((np.ones(1, np.float32), [5], [0, 1]), shape=(1, N_WORDS))
    block = ColumnBlock(case.weights, case.weights.column_table(LIMITS), row, 0, 1)
    assert isinstance(block.parts, RowParts)
    assert block.parts.firsts.tolist() == [0, 0]
    assert block.parts.starts.tolist() == [0, 1]  # the sum of the row alone
