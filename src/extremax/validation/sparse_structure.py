"""Sparse matrices: index arrays that fit the shape.

scipy checks the ends of the pointers of a compressed matrix and trusts everything between. Its own
conversions, and the kernels, read and write wherever the indices lead, so nothing reaches them before this.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

_UNSIGNED = {4: np.uint32, 8: np.uint64}
_HINT = "Build the matrix again from its rows and columns, or run its check_format()"


def check_sparse_structure(matrix: Any, name: str = "X") -> None:
    """Raise ValueError for a sparse matrix whose index arrays do not fit its shape.

    Every entry is looked at once; nothing is copied, sorted or changed.

    Examples
    --------
    >>> from scipy import sparse
    >>> matrix = sparse.csr_array(np.eye(2, dtype=np.float32))
    >>> check_sparse_structure(matrix)
    >>> matrix.indices[1] = 7
    >>> check_sparse_structure(matrix)
    Traceback (most recent call last):
    ...
    ValueError: X has column number 7 in row 1, but 2 columns. Build the matrix again from its rows and
    columns, or run its check_format().
    """
    if len(matrix.shape) != 2:
        _reject(name, f"has shape {matrix.shape}, which is no table of rows and columns")
    check = _CHECKS.get(matrix.format)
    if check is not None:
        check(matrix, name)


def check_compressed(
    parts: tuple[Any, Any, Any],
    shape: tuple[int, int],
    name: str,
    *,
    lines: str = "row",
    inside: str = "column",
) -> None:
    """Raise ValueError unless ``(data, indices, indptr)`` describe `shape`: (lines, places in a line)."""
    data, indices, indptr = (np.asarray(part) for part in parts)
    n_lines, n_inside = shape
    if data.ndim not in (1, 3):
        _reject(name, f"has values of shape {data.shape}")
    for array in (indices, indptr):
        if array.ndim != 1 or array.dtype not in (np.int32, np.int64):
            _reject(
                name, f"has an index array of {array.dtype} and shape {array.shape}, not of int32 or int64"
            )
    if len(indptr) != n_lines + 1:
        _reject(
            name,
            f"has {len(indptr):,} pointers for {n_lines:,} {lines}s, where one more than {lines}s is needed",
        )
    if len(indices) != len(data):
        _reject(name, f"has {len(indices):,} {inside} numbers for {len(data):,} values")
    if indptr[0] != 0 or not 0 <= int(indptr[-1]) <= len(indices):
        _reject(name, f"has pointers from {indptr[0]} to {indptr[-1]} into {len(indices):,} entries")
    if n_lines > 1:
        falling = indptr[1:] < indptr[:-1]
        if falling.any():
            line = int(np.argmax(falling))
            _reject(
                name, f"has pointers that fall from {indptr[line]} to {indptr[line + 1]} at {lines} {line}"
            )
    used = indices[: int(indptr[-1])]
    if (place := _outside(used, n_inside)) >= 0:
        line = int(np.searchsorted(indptr, place, side="right")) - 1
        _reject(name, f"has {inside} number {used[place]} in {lines} {line}, but {n_inside:,} {inside}s")


def _outside(indices: NDArray[Any], end: int) -> int:
    """Return the place of an index that is not in [0, end), or -1."""
    if len(indices) == 0:
        return -1
    unsigned = indices.view(_UNSIGNED[indices.dtype.itemsize])  # a negative number is a huge one
    return -1 if int(unsigned.max()) < end else int(unsigned.argmax())


def _check_csr(matrix: Any, name: str) -> None:
    check_compressed((matrix.data, matrix.indices, matrix.indptr), matrix.shape, name)


def _check_csc(matrix: Any, name: str) -> None:
    parts = (matrix.data, matrix.indices, matrix.indptr)
    check_compressed(parts, matrix.shape[::-1], name, lines="column", inside="row")


def _check_bsr(matrix: Any, name: str) -> None:
    data = matrix.data
    if (
        data.ndim != 3
        or 0 in data.shape[1:]
        or any(n % b for n, b in zip(matrix.shape, data.shape[1:], strict=True))
    ):
        _reject(name, f"has blocks of shape {data.shape[1:]} for a matrix of shape {matrix.shape}")
    blocks = matrix.shape[0] // data.shape[1], matrix.shape[1] // data.shape[2]
    check_compressed(
        (data, matrix.indices, matrix.indptr), blocks, name, lines="block row", inside="block column"
    )


def _check_coo(matrix: Any, name: str) -> None:
    for what, at, end in (("row", matrix.row, matrix.shape[0]), ("column", matrix.col, matrix.shape[1])):
        index = np.asarray(at)
        if index.ndim != 1 or index.dtype not in (np.int32, np.int64) or len(index) != len(matrix.data):
            _reject(name, f"has {index.size:,} {what} numbers for {len(matrix.data):,} values")
        if (place := _outside(index, end)) >= 0:
            _reject(name, f"has {what} number {index[place]} at entry {place}, but {end:,} {what}s")


def _check_dia(matrix: Any, name: str) -> None:
    offsets = np.asarray(matrix.offsets)
    if offsets.ndim != 1 or matrix.data.ndim != 2 or len(offsets) != len(matrix.data):
        _reject(name, f"has {offsets.size:,} diagonal numbers for data of shape {matrix.data.shape}")


def _check_lil(matrix: Any, name: str) -> None:
    if len(matrix.rows) != matrix.shape[0] or len(matrix.data) != matrix.shape[0]:
        _reject(name, f"has {len(matrix.rows):,} lists for {matrix.shape[0]:,} rows")
    for row, (columns, values) in enumerate(zip(matrix.rows, matrix.data, strict=True)):
        if len(columns) != len(values):
            _reject(name, f"has {len(columns):,} columns for {len(values):,} values in row {row}")
        if columns and not (min(columns) >= 0 and max(columns) < matrix.shape[1]):
            _reject(name, f"has a column number outside its {matrix.shape[1]:,} columns in row {row}")


def _reject(name: str, what: str) -> NoReturn:
    raise ValueError(f"{name} {what}. {_HINT}.")


# Dictionaries of keys check each key themselves when it is set.
_CHECKS = {
    "csr": _check_csr,
    "csc": _check_csc,
    "bsr": _check_bsr,
    "coo": _check_coo,
    "dia": _check_dia,
    "lil": _check_lil,
}
