"""Data frames of any kind that narwhals knows, and Hugging Face datasets, as features, texts and labels.

pandas needs nothing beside itself; polars and pyarrow tables convert themselves.  Lazy frames need narwhals
(``pip install extremax[frames]``), and a Hugging Face ``Dataset`` becomes its Arrow table.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_PLAIN = (np.ndarray, list, tuple, str, bytes, type(None))
_TEXT_NAMES = ("text", "texts", "sentence", "description", "title", "content", "body", "document", "query")
_INSTALL = "pip install extremax[frames]"


def as_frame(X: Any, name: str = "X") -> Any:
    """Return a data frame in memory for anything that is one, and everything else as it is.

    Examples
    --------
    >>> as_frame([[1.0, 2.0]])
    [[1.0, 2.0]]
    """
    if isinstance(X, _PLAIN) or sparse.issparse(X):
        return X
    if _is_lazy(X):
        X = _collect(X, name)
    elif type(X).__module__.partition(".")[0] == "datasets":
        X = _arrow_table(X, name)
    vectors = _vectors(X, name) if is_frame(X) else None
    return X if vectors is None else vectors


def _vectors(X: Any, name: str) -> NDArray[Any] | None:
    """Return the matrix of a frame of one column of vectors; None for other frames."""
    names = column_names(X)
    if len(names) != 1 or len(X) == 0:
        return None
    first = X[names[0]][:1]
    first = first.to_pylist()[0] if hasattr(first, "to_pylist") else list(first)[0]  # noqa: RUF015
    if isinstance(first, str | bytes) or not hasattr(first, "__len__"):
        return None
    try:
        return np.asarray(take_column(X, names[0]), np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {names[0]!r} of {name} holds lists that are no vectors of one length ({error})."
        ) from error


def is_frame(X: Any) -> bool:
    """Tell whether something is a table with named columns."""
    if isinstance(X, _PLAIN) or sparse.issparse(X):
        return False
    names = getattr(X, "column_names", None) if hasattr(X, "schema") else None
    return isinstance(names, list) or (hasattr(X, "columns") and hasattr(X, "shape") and len(X.shape) == 2)


def column_names(X: Any) -> list[Any]:
    """Return the names of the columns of a frame."""
    names = getattr(X, "column_names", None)
    return list(names) if isinstance(names, list) else list(X.columns)


def take_column(X: Any, label: Any) -> Any:
    """Return a column of a frame as labels or texts: an array, or a list for columns of lists."""
    column = X[label]
    if hasattr(column, "to_pylist"):
        return _plain(column.to_pylist())
    return _plain(column.to_list() if hasattr(column, "to_list") else list(column))


def _plain(values: list[Any]) -> Any:
    """Return values of one column: with lists among them as they are, else as a list of labels."""
    return [list(v) if isinstance(v, tuple | np.ndarray) else v for v in values]


def drop_column(X: Any, label: Any) -> Any:
    """Return a frame without one of its columns."""
    names = [name for name in column_names(X) if name != label]
    return X.select(names) if hasattr(X, "select") and not hasattr(X, "iloc") else X[names]


def frame_inputs(X: Any, y: Any) -> tuple[Any, Any]:
    """Return features and labels; `y` may name a column of the frame X.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"a": [1.0, 2.0], "label": ["x", "y"]})
    >>> features, labels = frame_inputs(frame, "label")
    >>> list(features.columns), labels
    (['a'], ['x', 'y'])
    """
    X = as_frame(X)
    if isinstance(y, str) and is_frame(X):
        if y not in column_names(X):
            raise ValueError(f"y is {y!r}, which is none of the columns of X: {_listed(column_names(X))}.")
        return as_frame(drop_column(X, y)), take_column(X, y)
    return X, as_labels(y)


def as_labels(y: Any) -> Any:
    """Return labels of a column or a frame of any kind as lists or arrays; others as they are."""
    if isinstance(y, _PLAIN) or sparse.issparse(y) or hasattr(y, "iloc"):
        return y
    if hasattr(y, "to_pylist") and not is_frame(y):  # an Arrow column
        return _plain(y.to_pylist())
    if type(y).__module__.partition(".")[0] == "datasets" and not is_frame(y):  # a column of a Dataset
        return _plain(list(y))
    if type(y).__module__.partition(".")[0] == "polars" and not is_frame(y) and hasattr(y, "to_list"):
        return _plain(y.to_list())
    return as_frame(y, "y")


def to_numbers(X: Any, name: str = "X") -> NDArray[Any] | None:
    """Return the numbers of a frame that is none of pandas, as an array; None for anything else."""
    if hasattr(X, "iloc") or not is_frame(X):
        return None
    names = column_names(X)
    columns = [np.asarray(take_column(X, label)) for label in names]
    kinds = {label: (c.ndim, c.dtype.kind) for label, c in zip(names, columns, strict=True)}
    wrong = next((n for n, (ndim, kind) in kinds.items() if ndim != 1 or kind not in "biufO"), None)
    if wrong is not None:
        raise ValueError(
            f"column {wrong!r} of {name} holds no numbers; turn text and dates into numeric features first,"
            " or leave the column out."
        )
    return np.stack(columns, axis=1) if columns else np.empty((len(X), 0))


def frame_texts(X: Any) -> Any:
    """Return the texts of a frame: of its only column, or of the one with a usual name.

    Anything but a frame is returned as it is, columns of Arrow tables and datasets as lists.
    """
    X = as_frame(X)
    if not is_frame(X):
        return as_labels(X)
    names = column_names(X)
    by_name = {str(name).lower(): name for name in names}
    usual = [by_name[name] for name in _TEXT_NAMES if name in by_name]
    if len(names) != 1 and not usual:
        raise ValueError(
            f"X is a table of the columns {_listed(names)}, none of which is called text; pass the column of"
            " texts itself: X['...']."
        )
    return take_column(X, names[0] if len(names) == 1 else usual[0])


def _listed(names: list[Any]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _arrow_table(X: Any, name: str) -> Any:
    """Return a Hugging Face dataset as an Arrow table, in its present order and selection."""
    kind = type(X).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise TypeError(f"{name} is a {kind} of the splits {_listed(list(X))}; pass one of them.")
    if kind == "IterableDataset":
        raise TypeError(
            f"{name} is an IterableDataset, which has no end that is known; collect its rows first, such as"
            " Dataset.from_list(list(X.take(n)))."
        )
    return X.with_format("arrow")[:] if kind == "Dataset" else X


def _is_lazy(X: Any) -> bool:
    kind = type(X)
    return "lazy" in kind.__name__.lower() or (
        kind.__module__.partition(".")[0] in ("duckdb", "_duckdb", "ibis", "pyspark", "sqlframe", "dask")
        and "frame" in kind.__name__.lower() + "frame" * hasattr(X, "columns")
    )


def _collect(X: Any, name: str) -> Any:
    """Return a lazy frame in memory."""
    try:
        import narwhals.stable.v1 as nw
    except ImportError as error:
        module = type(X).__module__.partition(".")[0]
        raise ImportError(
            f"{name} is a {module} {type(X).__name__}, which narwhals reads, and that package is not"
            f" installed: {_INSTALL}."
        ) from error
    found: Any = nw.from_native(X)
    return found.collect().to_native() if hasattr(found, "collect") else found.to_native()


def to_arrow_table(X: Any) -> Any:
    """Return a frame or dataset as an Arrow table; None for anything else."""
    if isinstance(X, str | os.PathLike) or hasattr(X, "read"):
        return None
    frame = as_frame(X, "path")
    if not is_frame(frame):
        return None
    if hasattr(frame, "iloc"):
        import pyarrow as pa

        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_arrow() if hasattr(frame, "to_arrow") else frame
