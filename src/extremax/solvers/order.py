"""Order of the training pairs: shuffled windows that are read from disk in long runs.

Pairs come in *windows*: chunks of consecutive ones in random order, gathered until a window is full, then
shuffled one by one. A data set that fits one window is shuffled completely; a larger one can stay on disk.
The same order serves arrays in memory, memory-mapped files and sparse matrices, so all of them train the same
model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from extremax.examples import Examples
from extremax.features.scaling import ColumnScaling
from extremax.kernels.row_updates import CSRRows
from extremax.tuned import OrderConfig
from extremax.types import Features, Float32, Int64


class Window(NamedTuple):
    """Some pairs in the order in which they are trained on.

    Attributes
    ----------
    pairs, rows
        Numbers of the pairs, and the row of X of each.
    X
        The rows in memory, as the kernels take them.
    local
        Row of each pair in `X`.
    """

    pairs: Int64
    rows: Int64
    X: Any
    local: Int64


class RowSource(Protocol):
    """Rows of X as the training kernels take them."""

    def windows(self, order: Iterator[tuple[Int64, Int64]]) -> Iterator[Window]: ...


def epoch_seed(seed: int, epoch: int, window: int) -> int:
    """Return a 64-bit seed for one window of one epoch."""
    state = np.random.SeedSequence(entropy=seed, spawn_key=(epoch, window)).generate_state(1, np.uint64)
    return int(state[0])


def shuffled_windows(
    n_pairs: int, row_bytes: int, seed: int, epoch: int, config: OrderConfig
) -> Iterator[Int64]:
    """Yield the numbers of the pairs of one epoch, window by window, each exactly once."""
    rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)))
    chunk = config.chunk_rows
    window = max(chunk, config.window_bytes // max(row_bytes, 1) // chunk * chunk)
    if n_pairs <= window:
        yield rng.permutation(n_pairs)
        return
    chunks = rng.permutation(-(-n_pairs // chunk))
    n_windows = -(-n_pairs // window)
    for group in np.array_split(chunks, n_windows):
        rows = (np.sort(group)[:, None] * chunk + np.arange(chunk)).ravel()
        yield rng.permutation(rows[rows < n_pairs])


def epoch_windows(
    source: RowSource, data: Examples, seed: int, epoch: int, config: OrderConfig
) -> Iterator[tuple[int, Window]]:
    """Yield the windows of an epoch with their numbers."""
    row_bytes = 4 * int(data.X.shape[1])  # sparse rows count as dense ones: both then come in the same order
    shuffled = shuffled_windows(data.n_pairs, row_bytes, seed, epoch, config)
    yield from enumerate(source.windows((pairs, data.rows_of(pairs)) for pairs in shuffled))


def is_on_disk(X: object) -> bool:
    """Whether an array is a view of a memory-mapped file."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return False


class DenseRows:
    """Dense rows, in memory or read from disk one window ahead."""

    def __init__(self, X: Float32) -> None:
        self.X = X
        self.on_disk = is_on_disk(X)

    def _read(self, rows: Int64) -> tuple[Float32, Int64]:
        distinct, local = np.unique(rows, return_inverse=True)  # in the order of the file, and no row twice
        return np.ascontiguousarray(self.X[distinct]), local.astype(np.int64, copy=False)

    def windows(self, order: Iterator[tuple[Int64, Int64]]) -> Iterator[Window]:
        if not self.on_disk:
            for pairs, rows in order:
                yield Window(pairs, rows, self.X, rows)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="extremax-read") as reader:
            pending = [(window, reader.submit(self._read, window[1])) for window in [next(order)]]
            while pending:
                (pairs, rows), reading = pending.pop()
                X, local = reading.result()
                following = next(order, None)
                if following is not None:
                    pending.append((following, reader.submit(self._read, following[1])))
                yield Window(pairs, rows, X, local)


class ScaledRows(DenseRows):
    """Dense rows, standardised as they are copied into a buffer."""

    def __init__(self, X: Float32, scaling: ColumnScaling) -> None:
        super().__init__(X)
        self.on_disk, self.scaling = True, scaling

    def _read(self, rows: Int64) -> tuple[Float32, Int64]:
        X, local = super()._read(rows)
        return self.scaling.rows(X), local


class SparseRows:
    """Rows of a CSR matrix, which is in memory as a whole."""

    def __init__(self, X: Any) -> None:
        # One index type, one compiled kernel: scipy keeps indptr in int32 for small matrices.
        indices, indptr = X.indices.astype(np.int32, copy=False), X.indptr.astype(np.int64, copy=False)
        self.arrays = CSRRows(X.data, indices, indptr)

    def windows(self, order: Iterator[tuple[Int64, Int64]]) -> Iterator[Window]:
        for pairs, rows in order:
            yield Window(pairs, rows, self.arrays, rows)


def row_source(X: Features, scaling: ColumnScaling | None = None) -> RowSource:
    """Return the rows of X in the form that fits their type."""
    if scaling is not None and not sparse.issparse(X):
        return ScaledRows(X, scaling)
    return SparseRows(X) if sparse.issparse(X) else DenseRows(X)
