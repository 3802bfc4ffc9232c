"""Sparse matrices: index arrays that fit the shape.

Conversions of scipy, and the kernels, read and write wherever the indices lead, so nothing reaches them
before this.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

_HINT = "Build the matrix again from its rows and columns"


def check_sparse_structure(matrix: Any, name: str = "X") -> None:
    """Raise ValueError for a sparse matrix whose index arrays do not fit its shape.

    Every entry is looked at once; nothing is sorted or changed.

    Examples
    --------
    >>> from scipy import sparse
    >>> matrix = sparse.csr_array(np.eye(2, dtype=np.float32))
    >>> check_sparse_structure(matrix)
    >>> matrix.indices[1] = 7
    >>> check_sparse_structure(matrix)
    Traceback (most recent call last):
    ...
    ValueError: X is a damaged csr matrix (indices must be < 2). Build the matrix again from its rows and
    columns.
    """
    try:
        if len(matrix.shape) != 2:
            raise ValueError(f"its shape is {matrix.shape}")
        _check(matrix)
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{name} is a damaged {matrix.format} matrix ({error}). {_HINT}.") from error


def _check(matrix: Any) -> None:
    if matrix.format in ("csr", "csc", "bsr"):
        for index in (matrix.indices, matrix.indptr):
            if index.dtype not in (np.int32, np.int64):
                raise ValueError(f"an index array has dtype {index.dtype}")
        if (matrix.indptr[1:] < matrix.indptr[:-1]).any():  # scipy trusts them if the last is not above 0
            raise ValueError("indptr must not fall")
        copy.copy(matrix).check_format(full_check=True)  # it may replace arrays of the object
    elif matrix.format == "coo":
        type(matrix)((matrix.data, (matrix.row, matrix.col)), shape=matrix.shape)
    elif matrix.format == "dia":
        type(matrix)((matrix.data, matrix.offsets), shape=matrix.shape)
    elif matrix.format == "lil":
        for columns, values in zip(matrix.rows, matrix.data, strict=True):
            if len(columns) != len(values) or not all(0 <= column < matrix.shape[1] for column in columns):
                raise ValueError(f"columns {columns} for {len(values)} values of {matrix.shape[1]} columns")
