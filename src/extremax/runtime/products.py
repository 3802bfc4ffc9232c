"""Matrix products that do not depend on the thread count: BLAS on one thread, sparse times dense."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import threadpoolctl
from numpy.typing import NDArray

from extremax.kernels.project import multiply_sparse
from extremax.runtime.threads import run, split
from extremax.types import Float32

_ROWS_PER_TASK = 4096
_SUM_ENTRIES = 1 << 20  # entries of a sparse matrix that are summed or counted at a time

_lock = threading.Lock()
_users = 0
_limit: Any = None


def _forget_users() -> None:
    # A child forked while another thread held the lock would wait for a thread that does not exist in it.
    global _lock, _users, _limit
    _lock, _users, _limit = threading.Lock(), 0, None


if os.name == "posix":
    os.register_at_fork(after_in_child=_forget_users)


@lru_cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    """Find the BLAS libraries once: the search takes a millisecond or more."""
    return threadpoolctl.ThreadpoolController()


def _remove(limit: Any) -> None:
    # Since 3.8, threadpoolctl accepts this only from the thread that set the limit, not from the last user.
    release = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    limit.restore_original_limits()
    if release is not None:
        release()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the block; several callers may overlap.

    The limit applies to the whole process: the first of overlapping callers sets it, the last removes it.
    """
    global _users, _limit
    with _lock:
        if _users == 0:
            _limit = _libraries().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _remove(_limit)


def read_only(array: Any, dtype: type = np.float32) -> NDArray[Any]:
    """Return a C-ordered view that cannot be written.

    For numba, writable and read-only arrays are two types, and a file opened read-only is of the second: with
    every array of the second type, a kernel is compiled once.
    """
    view: NDArray[Any] = np.ascontiguousarray(array, dtype=dtype).view()
    view.flags.writeable = False
    return view


def sparse_times_dense(
    A: sp.csr_matrix, B: Float32, *, out: Float32 | None = None, n_threads: int = 1
) -> Float32:
    """Return ``A @ B`` in float32 for CSR A; each row is one sum in the order of A's row."""
    result = np.empty((A.shape[0], B.shape[1]), dtype=np.float32) if out is None else out
    indptr, indices, data = read_only(A.indptr, np.int64), read_only(A.indices, np.int32), read_only(A.data)
    dense = read_only(B)
    blocks = split(A.shape[0], _ROWS_PER_TASK)

    def multiply(i: int) -> None:
        start, stop = blocks[i]
        multiply_sparse(indptr[start : stop + 1], indices, data, dense, result[start:stop])

    run(multiply, len(blocks), n_threads)
    return result


def row_blocks(indptr: NDArray[Any], size: int = _SUM_ENTRIES) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of a CSR matrix with at most `size` entries; one longer row is a range."""
    first, n_rows = 0, len(indptr) - 1
    while first < n_rows:
        last = int(np.searchsorted(indptr, indptr[first] + size, side="right")) - 1
        last = min(max(last, first + 1), n_rows)
        yield first, last
        first = last


def square_sums(indptr: NDArray[Any], data: NDArray[Any], size: int = _SUM_ENTRIES) -> NDArray[np.float64]:
    """Return the sum of the squared entries of each row of a CSR matrix, in float64 and in their order."""
    sums = np.zeros(len(indptr) - 1)
    for first, last in row_blocks(indptr, size):
        row = np.repeat(np.arange(last - first), np.diff(indptr[first : last + 1]))
        squares = data[indptr[first] : indptr[last]].astype(np.float64) ** 2
        sums[first:last] = np.bincount(row, weights=squares, minlength=last - first)
    return sums


def count_indices(indices: NDArray[Any], n: int, size: int = _SUM_ENTRIES) -> NDArray[np.int64]:
    """Return how often each number below n occurs: `np.bincount`, without a copy of the numbers in int64."""
    counts = np.zeros(n, np.int64)
    for first, last in split(len(indices), size):
        counts += np.bincount(indices[first:last], minlength=n)
    return counts
