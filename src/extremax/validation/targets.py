"""Labels of rows, one or several each, as pairs of a row and a class.

Labels come as one label per row, as a list of labels per row, or as an indicator matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.types import Int32, Int64
from extremax.validation.frames import is_frame
from extremax.validation.labels import LabelIndex, check_classes, encode_labels, flat_labels, unique_labels
from extremax.validation.sparse_structure import check_sparse_structure
from extremax.validation.wording import short

_MANY = (list, set, np.ndarray)  # a tuple or a frozenset is hashable, and so one label


class _IndicatorPairs(NamedTuple):
    """Row and column of each true entry of an indicator matrix; `names` of its columns, if it has any."""

    rows: Int64
    columns: Int64
    shape: tuple[int, int]
    names: list[Any] | None


class _ListPairs(NamedTuple):
    """Row of each label, the labels one after the other, and `where`, which words the position of label i."""

    rows: Int64
    labels: list[Any]
    n_rows: int
    where: Callable[[int], str]


def encode_targets(
    y: Any, *, n_samples: int | None = None, classes: Any = None, name: str = "y"
) -> tuple[NDArray[Any], Examples]:
    """Return the classes, and the pairs of a row and a class as examples without features.

    Parameters
    ----------
    y
        One label per row; or rows that are lists, sets or arrays of labels (a tuple is one label); or an
        indicator matrix (n_samples, n_classes), sparse or dense, 1 where a row has the label of the column. A
        label that a row repeats counts once.
    n_samples
        Number of rows needed.
    classes
        For an indicator matrix the names of its columns, else all labels there are. Without them, columns are
        named by a DataFrame or numbered, and the classes are the labels that occur.
    name
        Name of `y` in error messages.

    Examples
    --------
    >>> classes, examples = encode_targets([["pear", "apple"], [], ["fig"]])
    >>> classes.tolist(), examples.row_index.tolist(), examples.y.tolist()
    (['apple', 'fig', 'pear'], [0, 0, 2], [0, 2, 1])
    >>> classes, examples = encode_targets(np.array([[1, 0, 1], [0, 1, 0]]))
    >>> classes.tolist(), examples.row_index.tolist(), examples.y.tolist()
    ([0, 1, 2], [0, 0, 1], [0, 2, 1])
    """
    kind = _kind(y)
    if kind == "indicator":
        found = _indicator_pairs(y, n_samples, name)
        names = _column_names(found, classes, name)
        return names, _make_examples(found.rows, found.columns, found.shape[0], name)
    if classes is not None:
        known = check_classes(classes)
        return known, lookup_targets(y, LabelIndex(known), n_samples=n_samples, name=name)
    if kind == "single":
        known, ids = encode_labels(y, n_samples=n_samples, name=name)
        return known, Examples.labels_only(ids, len(ids))
    rows, labels, n_rows, where = _list_pairs(y, n_samples, name)
    known, ids = unique_labels(labels, name, where)
    return known, _make_examples(rows, ids, n_rows, name)


def lookup_targets(
    y: Any,
    index: LabelIndex,
    *,
    n_samples: int | None = None,
    name: str = "y",
    hint: str = "Declare every class beforehand: fit(X, y, classes=all_labels).",
    allow_unseen: bool = False,
) -> Examples:
    """Return the pairs of a row and a known class as examples without features.

    An unknown label raises, with `hint` as the last sentence of the message, or gets the class -1 with
    `allow_unseen`. Columns of an indicator matrix are the classes in their order, or those that the columns
    of a DataFrame name.

    Examples
    --------
    >>> lookup_targets([["pear"], ["fig", "pear"]], LabelIndex(np.array(["fig", "pear"]))).y.tolist()
    [1, 0, 1]
    """
    kind = _kind(y)
    if kind == "single":
        ids = index.lookup(y, n_samples=n_samples, name=name, hint=hint, allow_unseen=allow_unseen)
        return Examples.labels_only(ids, len(ids))
    if kind == "lists":
        rows, labels, n_rows, where = _list_pairs(y, n_samples, name)
        ids = index.find(labels, where=where, hint=hint, allow_unseen=allow_unseen)
        return _make_examples(rows, ids, n_rows, name)
    found = _indicator_pairs(y, n_samples, name)
    if found.names is not None:
        of_column = index.lookup(found.names, name=f"{name}.columns", hint=hint, allow_unseen=allow_unseen)
        return _make_examples(found.rows, of_column[found.columns], found.shape[0], name)
    if found.shape[1] != len(index.classes):
        raise ValueError(
            f"{name} has {found.shape[1]:,} columns, but there are {len(index.classes):,} classes; pass an"
            " indicator matrix with one column per class, in the order of classes_, or lists of labels."
        )
    return _make_examples(found.rows, found.columns, found.shape[0], name)


def _kind(y: Any) -> str:
    if sparse.issparse(y):
        return "indicator"
    if hasattr(y, "__array__"):
        values = np.asarray(y)
        # one column is a vector in disguise, as everywhere in scikit-learn
        if values.ndim == 2 and values.shape[1] != 1:
            return "indicator"
        rows: Any = values if values.ndim == 1 and values.dtype == np.dtype(object) else ()
    else:
        rows = y if isinstance(y, list | tuple) else ()
    return "single" if {*_MANY}.isdisjoint(map(type, rows)) else "lists"


def indicator_format(y: Any) -> tuple[bool, str] | None:
    """Return whether an indicator matrix is sparse, and the name of its dtype; None for other labels."""
    if _kind(y) != "indicator":
        return None
    dtype = y.dtype if sparse.issparse(y) else np.asarray(y).dtype
    return bool(sparse.issparse(y)), str(np.dtype(dtype).name)


def make_indicator(format_: tuple[bool, str], rows: Int64, ids: Int32, shape: tuple[int, int]) -> Any:
    """Return pairs of row and class as a matrix like that of `fit`: whether it is sparse, its dtype."""
    is_sparse, dtype = format_
    if is_sparse:
        return sparse.csr_matrix((np.ones(len(ids), dtype), (rows, ids)), shape=shape)
    table = np.zeros(shape, dtype)
    table[rows, ids] = 1
    return table


def _indicator_pairs(y: Any, n_samples: int | None, name: str) -> _IndicatorPairs:
    names = list(y.columns) if is_frame(y) else None
    if sparse.issparse(y):
        check_sparse_structure(y, name)
        matrix = sparse.csr_array(y)
        n_rows, columns, values = matrix.shape[0], matrix.indices.astype(np.int64), matrix.data
        rows = np.repeat(np.arange(n_rows, dtype=np.int64), np.diff(matrix.indptr))
        shape = matrix.shape
    else:
        table = np.asarray(y)
        if table.dtype.kind not in "biuf":
            raise ValueError(
                f"{name} has shape {table.shape} and dtype {table.dtype}; pass an indicator matrix of 0 and"
                f" 1, or a list of labels per row: {name}.tolist()."
            )
        rows, columns = np.nonzero(table)
        shape, values = table.shape, table[rows, columns]
    if n_samples is not None and shape[0] != n_samples:
        raise ValueError(
            f"{name} has {shape[0]:,} rows of labels, but there are {n_samples:,} rows of features."
        )
    wrong = ~((values == 0) | (values == 1))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(
            f"{name}[{rows[i]}, {columns[i]}] is {short(values[i].item())}; an indicator matrix holds 1 where"
            f" a row has the label of the column, else 0. Pass {name} != 0 if each number other than 0 means"
            f" a label, or {name}.tolist() if the numbers are labels."
        )
    true = values != 0
    return _IndicatorPairs(rows[true], columns[true], (int(shape[0]), int(shape[1])), names)


def _column_names(found: _IndicatorPairs, classes: Any, name: str) -> NDArray[Any]:
    n_columns = found.shape[1]
    given = found.names if classes is None else classes
    if given is None:
        return np.arange(n_columns)
    values = flat_labels(given, None, "classes")
    if len(values) != n_columns:
        raise ValueError(
            f"classes has {len(values):,} names, but {name} has {n_columns:,} columns; give one name per"
            " column."
        )
    distinct, places = unique_labels(values, "classes")
    if len(distinct) < len(places):
        twice = distinct[int(np.argmax(np.bincount(places)))]
        twice = twice.item() if isinstance(twice, np.generic) else twice
        raise ValueError(f"classes names two columns {twice!r}; each column needs a name of its own.")
    return distinct[places]


def _list_pairs(y: Any, n_samples: int | None, name: str) -> _ListPairs:
    lists = [
        (row.ravel().tolist() if isinstance(row, np.ndarray) else row) if isinstance(row, _MANY) else (row,)
        for row in y
    ]
    if n_samples is not None and len(lists) != n_samples:
        raise ValueError(
            f"{name} has {len(lists):,} lists of labels, but there are {n_samples:,} rows of features."
        )
    lengths = np.fromiter(map(len, lists), np.int64, count=len(lists))
    rows = np.repeat(np.arange(len(lists), dtype=np.int64), lengths)

    def where(i: int) -> str:
        return f"a label of {name}[{rows[i]}]"

    return _ListPairs(rows, list(chain.from_iterable(lists)), len(lists), where)


def _make_examples(rows: Int64, ids: NDArray[Any], n_rows: int, name: str) -> Examples:
    """Sort pairs by row and class, and keep each once: sets and matrices come in any order."""
    if len(ids) == 0:
        raise ValueError(f"{name} has no label in any of its {n_rows:,} rows; at least one row needs one.")
    order = np.lexsort((ids, rows))
    rows, classes = rows[order], ids[order].astype(np.int32, copy=False)
    first = np.ones(len(rows), bool)
    # two unknown labels of a row may differ
    first[1:] = (rows[1:] != rows[:-1]) | (classes[1:] != classes[:-1]) | (classes[1:] < 0)
    rows, classes = rows[first], classes[first]
    one_each = len(rows) == n_rows and bool((rows == np.arange(n_rows)).all())
    return Examples.labels_only(classes, n_rows, None if one_each else rows)
