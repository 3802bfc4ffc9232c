"""Order of the training pairs: every pair once per epoch, shuffled, and read from disk in long runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from extremax.examples import Examples
from extremax.solvers.order import DenseRows, epoch_seed, epoch_windows, row_source, shuffled_windows
from extremax.tuned import OrderConfig
from planted import stored

ROW_BYTES = 20
SHORT = OrderConfig(chunk_rows=8, window_bytes=16 * ROW_BYTES)  # windows of 16 rows in chunks of 8


def order_of(n_pairs, seed=0, epoch=0, config=SHORT, row_bytes=ROW_BYTES):
    return list(shuffled_windows(n_pairs, row_bytes, seed, epoch, config))


@pytest.mark.small
@pytest.mark.property
@given(n_pairs=st.integers(0, 200), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 50))
@example(n_pairs=1000, seed=0, epoch=0)
def test_windows_visit_every_pair_once(n_pairs, seed, epoch):
    windows = order_of(n_pairs, seed, epoch)
    assert len(windows) == max(1, -(-n_pairs // 16))
    assert max(map(len, windows)) <= 16  # the memory that was promised
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(n_pairs))


def test_windows_of_default_size_visit_every_pair_once():
    config = OrderConfig()
    row_bytes = config.window_bytes // (16 * config.chunk_rows)  # a window holds 16 chunks
    n_pairs = 78 * config.chunk_rows + 3
    windows = order_of(n_pairs, config=config, row_bytes=row_bytes)
    assert len(windows) == 5
    assert max(map(len, windows)) * row_bytes <= config.window_bytes
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(n_pairs))


@pytest.mark.parametrize(("row_bytes", "n_windows"), [(0, 1), (1 << 40, 4)])
def test_rows_of_any_size_make_windows(row_bytes, n_windows):
    windows = order_of(1000, config=OrderConfig(chunk_rows=256), row_bytes=row_bytes)
    assert len(windows) == n_windows  # a window has at least one chunk
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(1000))


def test_small_data_is_one_fully_shuffled_window():
    (pairs,) = order_of(5000, config=OrderConfig(), row_bytes=4 * 512)
    # A full shuffle: a pair lands anywhere.  Mean distance of a uniform permutation is n/3; its standard
    # error here is under 20.
    assert abs(np.abs(pairs - np.arange(5000)).mean() - 5000 / 3) < 100


def test_large_data_is_read_in_runs_but_trained_shuffled():
    windows = order_of(1000)
    for pairs in windows:
        assert set(np.bincount(pairs // 8)) <= {0, 8}  # whole chunks
    # Pairs of a window are shuffled over its two chunks (a window in order would change chunk once) ...
    assert np.mean([np.count_nonzero(np.diff(pairs // 8)) for pairs in windows]) > 4
    # ... and the chunks come from all over the data, 125 chunks long (neighbours would lie 1 apart, random
    # ones 42).
    assert np.mean([np.ptp(pairs // 8) for pairs in windows]) > 20


@pytest.mark.parametrize("n_pairs", [40, 1000])
def test_order_differs_by_epoch_and_seed(n_pairs):
    def order(seed, epoch):
        return np.concatenate(order_of(n_pairs, seed, epoch))

    np.testing.assert_array_equal(order(1, 2), order(1, 2))
    for other in [(1, 3), (2, 2), (2, 1)]:
        assert np.mean(order(*other) == order(1, 2)) < 0.2


def test_epoch_seeds_are_all_different():
    seeds = {
        epoch_seed(seed, epoch, window) for seed in range(5) for epoch in range(5) for window in range(5)
    }
    assert len(seeds) == 125
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)


class CountedRows(DenseRows):
    """Counts the rows that are copied from disk."""

    def __init__(self, X):
        super().__init__(X)
        self.sizes = []

    def _read(self, rows):
        self.sizes.append(len(rows))
        return super()._read(rows)


def windows_of(source, X, row_index=None):
    data = Examples(X, np.zeros(X.shape[0] if row_index is None else len(row_index), np.int32), row_index)
    return [window for _, window in epoch_windows(source, data, 0, 0, SHORT)]


def test_rows_on_disk_are_read_window_by_window(X, tmp_path):
    on_disk = stored(X, "memmap", tmp_path)
    for view in (on_disk, on_disk[:], np.asarray(on_disk)):  # itself, a view, a plain array over it
        source = CountedRows(view)
        for window in windows_of(source, view):
            assert type(window.X) is np.ndarray
            assert len(window.X) == len(window.pairs) <= 16
            np.testing.assert_array_equal(window.X[window.local], X[window.pairs])
        assert sum(source.sizes) == 50


def test_rows_in_memory_are_not_copied(X):
    source = CountedRows(X)
    windows = windows_of(source, X)
    assert len(windows) > 1
    assert all(window.X is X and window.local is window.rows for window in windows)
    assert source.sizes == []


@pytest.mark.identity
@pytest.mark.parametrize("storage", ["dense", "memmap"])
def test_windows_of_pairs_hold_the_rows_of_their_pairs(X, storage, tmp_path):
    row_index = np.repeat(np.arange(50), np.arange(50) % 4)
    rows = stored(X, storage, tmp_path)
    windows = windows_of(DenseRows(rows), rows, row_index)
    for window in windows:
        np.testing.assert_array_equal(window.rows, row_index[window.pairs])
        np.testing.assert_array_equal(window.X[window.local], X[window.rows])
        assert storage == "dense" or len(window.X) == len(np.unique(window.rows))  # no row twice
    seen = np.concatenate([window.pairs for window in windows])
    np.testing.assert_array_equal(np.sort(seen), np.arange(len(row_index)))


@pytest.mark.invariance
def test_sparse_rows_come_in_the_order_of_dense_ones(X):
    matrix = sparse.csr_array(X)
    dense, csr = windows_of(row_source(X), X), windows_of(row_source(matrix), matrix)
    for a, b in zip(dense, csr, strict=True):
        np.testing.assert_array_equal(a.pairs, b.pairs)
        np.testing.assert_array_equal(a.local, b.local)
