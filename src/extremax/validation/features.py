"""Features: finite float32, two-dimensional, dense in C order or CSR."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_array

from extremax.validation.frames import is_pandas, to_numbers
from extremax.validation.sparse_structure import check_sparse_structure
from extremax.validation.wording import ESTIMATOR

_BLOCK_BYTES = 4 << 20  # checked at a time: stays in cache, and a memmap is not loaded whole
_INT32_MAX = np.iinfo(np.int32).max


def check_features(
    X: Any,
    *,
    name: str = "X",
    n_features: int | None = None,
    estimator_name: str = ESTIMATOR,
    allow_empty: bool = False,
) -> Any:
    """Return features as float32: a C-ordered array, or a CSR array with sorted, unique column indices.

    The input is never changed, and is returned itself when it already has that form. A float32 ``np.memmap``
    in C order stays one: it is read block by block to look for NaN and infinity, never copied.

    Parameters
    ----------
    X : array-like, sparse matrix or sparse array of shape (n_samples, n_features)
        Numbers; anything that numpy, pandas or scipy can turn into float32.
    name : str
        Name of the data in error messages.
    n_features : int, optional
        Number of columns needed.
    estimator_name : str
        Name of the model in error messages.
    allow_empty : bool
        Accept zero rows.

    Returns
    -------
    ndarray, memmap or csr_array of float32
        Column indices and row offsets of a CSR array are int32 where they fit, else int64.

    Examples
    --------
    >>> check_features([[1, 2], [3, 4]])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    >>> check_features([[1, float("nan")]])
    Traceback (most recent call last):
    ...
    ValueError: X[0, 1] is NaN; ExtremeClassifier needs finite numbers. Drop such rows or fill the gaps first.
    """
    if type(X) not in (np.ndarray, np.memmap) and not sparse.issparse(X):
        X = _as_numpy(X, name)
    if isinstance(X, np.ndarray) and X.ndim == 1 and len(X) and isinstance(X[0], str):
        raise ValueError(
            f"{name} is a sequence of texts; {estimator_name} needs numbers. For texts use TextClassifier."
        )
    _check_number_type(X.dtype, name, estimator_name)
    _check_shape(X.shape, name, n_features, estimator_name, allow_empty)
    if sparse.issparse(X):
        return _check_sparse(X, name, estimator_name)
    array = _to_float32(X, name, estimator_name)
    rows = max(1, _BLOCK_BYTES // (4 * array.shape[1]))
    for start in range(0, array.shape[0], rows):
        finite = np.isfinite(array[start : start + rows])
        if not finite.all():
            row, column = (int(i) for i in np.argwhere(~finite)[0])
            _reject_value(X[start + row, column], f"{name}[{start + row}, {column}]", estimator_name)
    return array


def _as_numpy(X: Any, name: str) -> Any:
    if is_pandas(X):  # scikit-learn knows its nullable, sparse and categorical columns
        any_shape = {"ensure_2d": False, "allow_nd": True, "ensure_min_samples": 0, "ensure_min_features": 0}
        return check_array(
            X, dtype=None, accept_sparse=True, ensure_all_finite=False, input_name=name, **any_shape
        )
    numbers = to_numbers(X, name)
    if numbers is not None:
        return numbers
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.float32), np.nan)
    try:
        return np.asarray(X)
    except ValueError as error:
        raise ValueError(f"{name} is not a table: its rows have different lengths ({error}).") from error


def _check_number_type(dtype: np.dtype[Any], name: str, estimator_name: str) -> None:
    if dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {dtype}."
            " Give its real and imaginary parts as two columns."
        )
    if dtype.kind not in "biufO":
        raise ValueError(
            f"{name} has dtype {dtype}; {estimator_name} needs numbers."
            " Turn text and dates into numeric features first."
        )


# Some messages begin with scikit-learn's words because its estimator checks look for them.
def _check_shape(
    shape: tuple[int, ...], name: str, n_features: int | None, estimator_name: str, allow_empty: bool
) -> None:
    if len(shape) < 2:
        raise ValueError(
            f"Expected 2D array, got {len(shape)}D array instead: {name} has shape {shape}. Reshape your data"
            f" with {name}.reshape(1, -1) if it is one row, or {name}.reshape(-1, 1) if it is one feature."
        )
    if len(shape) > 2:
        raise ValueError(f"{name} has shape {shape}; {estimator_name} needs one row per sample, a 2D array.")
    if shape[0] == 0 and not allow_empty:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={shape}) while a minimum of 1 is required by"
            f" {estimator_name} in {name}."
        )
    if shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is required by"
            f" {estimator_name} in {name}."
        )
    if n_features is not None and shape[1] != n_features:
        raise ValueError(
            f"{name} has {shape[1]} features, but {estimator_name} is expecting {n_features} features as"
            " input."
        )
    if shape[1] > _INT32_MAX:
        raise ValueError(
            f"{name} has {shape[1]:,} features; at most {_INT32_MAX:,} fit into int32 column numbers."
        )


def _to_float32(values: Any, name: str, estimator_name: str) -> NDArray[np.float32]:
    if values.dtype == np.float32 and values.flags.c_contiguous:
        return values  # type: ignore[no-any-return]
    try:
        with np.errstate(over="ignore"):  # an overflow becomes infinite and is reported with its position
            return np.ascontiguousarray(np.asarray(values), dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} holds something that is not a number ({error}); {estimator_name} needs numbers."
        ) from error


def _check_sparse(X: Any, name: str, estimator_name: str) -> Any:
    check_sparse_structure(X, name)
    if X.dtype.kind == "O" or X.dtype == np.float16:  # scipy has no conversions for these
        X = X.astype(np.float32)
    csr = sparse.csr_array(X)
    if not csr.has_canonical_format:
        # sorting and merging work in place: CSR input that needs them is copied, the rest is a copy already
        csr = csr.copy() if X.format == "csr" else csr
        csr.sum_duplicates()
    given, data = csr.data, _to_float32(csr.data, name, estimator_name)
    for start in range(0, data.size, _BLOCK_BYTES // 4):
        finite = np.isfinite(data[start : start + _BLOCK_BYTES // 4])
        if not finite.all():
            place = start + int(np.argmin(finite))
            row = int(np.searchsorted(csr.indptr, place, side="right")) - 1
            _reject_value(given[place], f"{name}[{row}, {csr.indices[place]}]", estimator_name)
    index = np.int32 if max(csr.nnz, csr.shape[1]) <= _INT32_MAX else np.int64
    if data is not given or csr.indices.dtype != index or csr.indptr.dtype != index:
        parts = (data, csr.indices.astype(index, copy=False), csr.indptr.astype(index, copy=False))
        csr = sparse.csr_array(parts, shape=csr.shape)
        csr.has_canonical_format = True
    return csr


def _reject_value(value: Any, place: str, estimator_name: str) -> NoReturn:
    number = float(value)
    if math.isnan(number):
        raise ValueError(
            f"{place} is NaN; {estimator_name} needs finite numbers. Drop such rows or fill the gaps first."
        )
    if math.isinf(number):
        raise ValueError(
            f"{place} is {number} (infinity); {estimator_name} needs finite numbers."
            " Drop or clip such values first."
        )
    raise ValueError(
        f"{place} is {number:g}, which becomes infinity in float32; scale the features down first."
    )


def copied_bytes(given: Any, features: Any) -> int:
    """Return the bytes of checked features that are not those of the given ones.

    Examples
    --------
    >>> X = np.zeros((10, 2), np.float32)
    >>> copied_bytes(X, check_features(X)), copied_bytes(X.tolist(), check_features(X.tolist()))
    (0, 80)
    """
    sources = _arrays(given)
    return sum(
        int(array.nbytes)
        for array in _arrays(features)
        if not any(np.may_share_memory(array, source) for source in sources)
    )


def _arrays(X: Any) -> list[NDArray[Any]]:
    """Return the arrays of a matrix, where it has any."""
    if sparse.issparse(X):
        return [array for array in vars(X).values() if isinstance(array, np.ndarray)]
    return [X] if isinstance(X, np.ndarray) else []


def join_pair(X: Any, name: str = "X") -> tuple[Any, int]:
    """Return a pair of sparse and dense features as one CSR matrix, and the number of dense columns.

    The dense columns come last and are explicit in every row, zeros too. Anything but a pair is returned as
    it is, with no dense columns.

    Examples
    --------
    >>> words, embeddings = sparse.csr_matrix([[0.0, 1.0]]), np.zeros((1, 2))
    >>> joined, n_dense = join_pair((words, embeddings))
    >>> joined.shape, joined.nnz, n_dense
    ((1, 4), 3, 2)
    """
    if not isinstance(X, tuple | list) or len(X) != 2 or not sparse.issparse(X[0]):
        return X, 0
    words = check_features(X[0], name=f"{name}[0]")
    if sparse.issparse(X[1]):
        raise TypeError(f"{name} is a pair of sparse matrices; the second must be a dense array.")
    dense = check_features(X[1], name=f"{name}[1]")
    if dense.shape[0] != words.shape[0]:
        raise ValueError(
            f"{name}[0] has {words.shape[0]} rows and {name}[1] has {dense.shape[0]}; both must describe"
            " the same rows."
        )
    n_rows, n_dense = dense.shape
    ends = np.arange(0, n_rows * n_dense + 1, max(n_dense, 1))
    columns = np.tile(np.arange(n_dense, dtype=np.int32), n_rows)
    explicit = sparse.csr_array((dense.ravel(), columns, ends), shape=dense.shape)
    return sparse.hstack([sparse.csr_array(words), explicit], format="csr"), n_dense
