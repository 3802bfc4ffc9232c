"""Reductions of multi-label data: to one label per row, or to pairs of a row and a label.

Labels are a CSR indicator matrix (rows by labels, in the stored order of each row) or one list of labels per
row. From a matrix the results are column numbers, from lists the labels themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.types import Bool, Int64
from extremax.validation.sparse_structure import check_sparse_structure


def has_label(y: Any) -> Bool:
    """Tell for each row whether it has any label.

    Examples
    --------
    >>> from extremax.data import has_label
    >>> has_label([["a"], [], ["b", "c"]]).tolist()
    [True, False, True]
    """
    _, offsets = _flatten(y)
    return np.asarray(np.diff(offsets) > 0)


def first_label(y: Any) -> NDArray[Any]:
    """Return the first label of every row, in the stored order.

    Examples
    --------
    >>> from extremax.data import first_label
    >>> first_label([[7, 3], [5]]).tolist()
    [7, 5]
    """
    flat, offsets = _flatten(y)
    _check_all_labelled(offsets)
    return flat[offsets[:-1]]


def smallest_label(y: Any) -> NDArray[Any]:
    """Return the smallest label of every row.

    Examples
    --------
    >>> from extremax.data import smallest_label
    >>> smallest_label([[7, 3], [5]]).tolist()
    [3, 5]
    """
    flat, offsets = _flatten(y)
    _check_all_labelled(offsets)
    return flat[_best_of_row(flat, np.zeros(len(flat)), offsets)]


def rarest_label(y: Any, counts: Mapping[Any, int] | NDArray[Any] | None = None) -> NDArray[Any]:
    """Return the label of every row that is rarest overall; of equally rare ones the smallest.

    Parameters
    ----------
    y : CSR indicator matrix or list of lists
        Labels.
    counts : mapping or array, or None
        Occurrences of each label, 0 for labels not in it; for validation and test rows give `label_counts` of
        the training rows. None counts in `y`.

    Examples
    --------
    >>> from extremax.data import rarest_label
    >>> rarest_label([["a", "b"], ["a"], ["c", "b"]]).tolist()
    ['a', 'a', 'c']
    """
    flat, offsets = _flatten(y)
    _check_all_labelled(offsets)
    if counts is None:
        _, inverse, occurrences = np.unique(flat, return_inverse=True, return_counts=True)
        rarity = occurrences[inverse]
    elif isinstance(counts, Mapping):
        rarity = np.array([counts.get(label, 0) for label in flat.tolist()])
    else:
        counts = np.asarray(counts)
        rarity = np.where(flat < len(counts), counts[np.minimum(flat, len(counts) - 1)], 0)
    return flat[_best_of_row(flat, rarity, offsets)]


def label_counts(y: Any) -> dict[Any, int]:
    """Return the number of occurrences of each label, for `rarest_label` on other rows.

    Examples
    --------
    >>> from extremax.data import label_counts
    >>> label_counts([["a", "b"], ["a"]])
    {'a': 2, 'b': 1}
    """
    flat, _ = _flatten(y)
    labels, counts = np.unique(flat, return_counts=True)
    return dict(zip(labels.tolist(), counts.tolist(), strict=True))


def all_pairs(y: Any) -> tuple[Int64, NDArray[Any]]:
    """Return row numbers and labels of all pairs, to be used as ``X[rows], labels``.

    Examples
    --------
    >>> from extremax.data import all_pairs
    >>> rows, labels = all_pairs([[7, 3], [], [5]])
    >>> rows.tolist(), labels.tolist()
    ([0, 0, 2], [7, 3, 5])
    """
    flat, offsets = _flatten(y)
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets)), flat


def _flatten(y: Any) -> tuple[NDArray[Any], Int64]:
    if sp.issparse(y):
        check_sparse_structure(y, "y")
        y = y.tocsr()
        if (y.data == 0).any():
            y = y.copy()
            y.eliminate_zeros()
        return y.indices, y.indptr.astype(np.int64)
    rows = [[row] if isinstance(row, str) or np.ndim(row) == 0 else list(row) for row in y]
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    flat = [label for row in rows for label in row]
    kinds = {type(label) for label in flat}
    if len(kinds) <= 1 or all(issubclass(kind, int | np.integer) for kind in kinds):
        return np.array(flat) if flat else np.zeros(0, dtype=np.int64), offsets
    raise ValueError(
        f"labels have the types {', '.join(sorted(kind.__name__ for kind in kinds))}; use one type for"
        " all labels."
    )


def _check_all_labelled(offsets: Int64) -> None:
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        more = f" and {len(empty) - 1} more rows" if len(empty) > 1 else ""
        raise ValueError(
            f"y[{empty[0]}]{more} has no label; leave such rows out: keep = extremax.data.has_label(y)."
        )


def _best_of_row(flat: NDArray[Any], key: NDArray[Any], offsets: Int64) -> Int64:
    """Return the position of each row's label with the smallest key, ties by smaller label."""
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    order = np.lexsort((flat, key, rows))
    return np.asarray(order[offsets[:-1]], dtype=np.int64)
