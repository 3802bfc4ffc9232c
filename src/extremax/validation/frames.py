"""Data frames of any kind that narwhals knows, and Hugging Face datasets, as features, texts and labels.

pandas frames need no further package; other frames need narwhals (``pip install extremax[frames]``).
"""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

_PLAIN = (np.ndarray, list, tuple, str, bytes, os.PathLike, type(None))
_TEXT_NAMES = ("text", "texts", "sentence", "description", "title", "content", "body", "document", "query")


def as_frame(X: Any, name: str = "X") -> Any:
    """Return a frame in memory, or its vectors if it is one column of them.

    Examples
    --------
    >>> as_frame([[1.0, 2.0]])
    [[1.0, 2.0]]
    """
    table = to_table(X, name)
    if table is None:
        return X
    vectors = _vectors(table, name)
    return vectors if vectors is not None else table if is_pandas(table) else table.to_native()


def is_pandas(X: Any) -> bool:
    """Whether X is a frame or a series of pandas, which need not be installed."""
    return hasattr(X, "iloc")


def is_frame(X: Any) -> bool:
    """Whether X is a table with names of columns."""
    return not isinstance(X, _PLAIN) and hasattr(X, "columns")


def to_table(X: Any, name: str = "X") -> Any:
    """Return a pandas frame, or any other frame as one of narwhals; None for anything else.

    Both have ``columns``, ``head`` and ``frame[name].to_list()``.
    """
    if isinstance(X, _PLAIN) or sparse.issparse(X):
        return None
    if is_pandas(X):
        return X if X.ndim == 2 else None
    if type(X).__module__.partition(".")[0] == "datasets":
        X = _arrow_table(X, name)
    try:
        import narwhals.stable.v1 as nw
    except ImportError as error:
        if not hasattr(type(X), "columns"):
            return None
        raise ImportError(
            f"{name} is a {type(X).__name__}, which needs narwhals: pip install extremax[frames]."
        ) from error
    found: Any = nw.from_native(X, pass_through=True)
    found = found.collect() if isinstance(found, nw.LazyFrame) else found
    return found if isinstance(found, nw.DataFrame) else None


def _vectors(table: Any, name: str) -> NDArray[Any] | None:
    """Return the matrix of a frame of one column of vectors; None for other frames."""
    first = list(table.head(1)[table.columns[0]]) if len(table.columns) == 1 else []
    if not first or isinstance(first[0], str | bytes) or not isinstance(first[0], Sized):
        return None
    try:
        return np.asarray(_take_column(table, table.columns[0]), np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"column {table.columns[0]!r} of {name} does not hold vectors of one length ({error})."
        ) from error


def _take_column(table: Any, label: Any) -> list[Any]:
    """Return a column as a list of labels, texts or lists."""
    return _plain(table[label].to_list())


def _plain(values: list[Any]) -> list[Any]:
    return [list(value) if isinstance(value, tuple | np.ndarray) else value for value in values]


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
    table = to_table(X) if isinstance(y, str) else None
    if table is None:
        return as_frame(X), as_labels(y)
    names = list(table.columns)
    if y not in names:
        raise ValueError(f"y is {y!r}, which is not a column of X: {_listed(names)}.")
    features = table[[name for name in names if name != y]]
    return as_frame(features), _take_column(table, y)


def as_labels(y: Any) -> Any:
    """Return the labels of a column or frame as lists or arrays."""
    if isinstance(y, _PLAIN) or sparse.issparse(y) or is_pandas(y):
        return y
    if to_table(y, "y") is not None:
        return as_frame(y, "y")
    if type(y).__module__.partition(".")[0] in ("datasets", "polars", "pyarrow"):
        return _plain(y.to_pylist() if hasattr(y, "to_pylist") else list(y))
    return y


def to_numbers(X: Any, name: str = "X") -> NDArray[Any] | None:
    """Return the numbers of a frame other than that of pandas as an array; None for anything else."""
    table = None if is_pandas(X) else to_table(X, name)
    if table is None:
        return None
    wrong = next(
        (c for c, kind in table.schema.items() if not kind.is_numeric() and str(kind) != "Boolean"), None
    )
    if wrong is not None:
        raise ValueError(
            f"column {wrong!r} of {name} does not hold numbers; turn text and dates into numeric features"
            " first, or leave the column out."
        )
    return np.asarray(table.to_numpy())


def frame_texts(X: Any) -> Any:
    """Return the texts of a frame: of its only column, or of the one with a usual name.

    Anything but a frame is returned as it is, columns of Arrow tables and datasets as lists.
    """
    table = to_table(X)
    if table is None:
        return as_labels(X)
    names = list(table.columns)
    by_name = {str(name).lower(): name for name in names}
    usual = [by_name[name] for name in _TEXT_NAMES if name in by_name]
    if len(names) != 1 and not usual:
        raise ValueError(
            f"X is a table of the columns {_listed(names)}, none of which is called text; pass the column of"
            " texts itself: X['...']."
        )
    return _take_column(table, names[0] if len(names) == 1 else usual[0])


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
            f"{name} is an IterableDataset, whose length is unknown; collect its rows first, such as"
            " Dataset.from_list(list(X.take(n)))."
        )
    return X.with_format("arrow")[:] if kind == "Dataset" else X


def to_arrow_table(X: Any) -> Any:
    """Return a frame or dataset as an Arrow table; None for anything else."""
    table = None if hasattr(X, "read") else to_table(X, "path")
    if table is None or not is_pandas(table):
        return None if table is None else table.to_arrow()
    import pyarrow as pa

    return pa.Table.from_pandas(table, preserve_index=False)
