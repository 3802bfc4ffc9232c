"""Labels of any hashable type, one per row, as int32 class ids; `targets` handles several per row."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterable
from itertools import pairwise, repeat
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from extremax.validation.wording import ESTIMATOR, short


def encode_labels(
    y: Any, *, n_samples: int | None = None, name: str = "y"
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return the distinct labels and, for every row, the position of its label among them.

    Labels are of any hashable type; equal values (``1``, ``1.0``, ``True``) are one label. The classes are
    sorted if they can be compared with one another, else in order of first appearance. Arrays of numbers and
    strings keep their dtype.

    Examples
    --------
    >>> encode_labels(["pear", "apple", "pear"])
    (array(['apple', 'pear'], dtype='<U5'), array([1, 0, 1], dtype=int32))
    >>> encode_labels([[3], [1, 2, 7]])
    Traceback (most recent call last):
    ...
    ValueError: y[1] does not have one label per row. Reduce them with extremax.data.first_label(y).
    """
    values = flat_labels(y, n_samples, name)
    classes, ids = unique_labels(values, name)
    if (
        classes.dtype.kind == "f"
        and 2 * classes.size > ids.size
        and bool((classes != np.floor(classes)).any())
    ):
        raise ValueError(
            f"Unknown label type: continuous. {name} has {classes.size} distinct fractional numbers in"
            f" {ids.size} rows, which looks like a regression target. If each number names a class, pass them"
            " as strings."
        )
    return classes, ids


def check_classes(classes: Any) -> NDArray[Any]:
    """Return the distinct labels of a declared list of classes, in the order of `encode_labels`."""
    return unique_labels(flat_labels(classes, None, "classes"), "classes")[0]


class LabelIndex:
    """Position of labels among known classes.

    Examples
    --------
    >>> index = LabelIndex(np.array(["apple", "pear"]))
    >>> index.lookup(["pear", "apple"])
    array([1, 0], dtype=int32)
    """

    def __init__(self, classes: NDArray[Any]) -> None:
        self.classes = classes
        self._sorted = classes.dtype.kind in "biufmM" and bool((classes[1:] > classes[:-1]).all())
        self._table: dict[Hashable, int] | None = None

    def lookup(
        self,
        y: Any,
        *,
        n_samples: int | None = None,
        name: str = "y",
        hint: str = "Declare every class at the first call: partial_fit(X, y, classes=all_labels).",
        allow_unseen: bool = False,
    ) -> NDArray[np.int32]:
        """Return ids of the labels; one not among the classes raises, or becomes -1 with `allow_unseen`."""
        values = flat_labels(y, n_samples, name)
        return self.find(values, where=lambda i: f"{name}[{i}]", hint=hint, allow_unseen=allow_unseen)

    def find(
        self,
        values: NDArray[Any] | list[Any],
        *,
        where: Callable[[int], str],
        hint: str,
        allow_unseen: bool,
    ) -> NDArray[np.int32]:
        """Return ids of the labels of an array or list; `where` words the position of an unknown one."""
        if isinstance(values, np.ndarray) and self._sorted and self._comparable(values.dtype):
            place = np.searchsorted(self.classes, values)
            place[place == self.classes.size] = 0
            ids = np.where(self.classes[place] == values, place, -1).astype(np.int32)
        else:
            if self._table is None:
                self._table = dict(zip(self.classes.tolist(), range(self.classes.size), strict=True))
            known = values.tolist() if isinstance(values, np.ndarray) else values
            find = self._table.get
            try:
                ids = np.fromiter(map(find, known, repeat(-1)), dtype=np.int32, count=len(known))
            except TypeError:
                _reject_unhashable(known, where)
        if not allow_unseen and ids.size and ids.min() < 0:
            row = int(np.argmin(ids))
            label = values[row].item() if isinstance(values[row], np.generic) else values[row]
            raise ValueError(
                f"{where(row)} is {label!r}, which is not one of the {self.classes.size:,} known classes."
                f" {hint}"
            )
        return ids

    def _comparable(self, dtype: np.dtype[Any]) -> bool:
        """Tell whether a binary search is exact: comparing large integers as floats is not."""
        kind = self.classes.dtype.kind
        if "m" in (kind.lower(), dtype.kind.lower()):
            return kind == dtype.kind
        return dtype.kind in "biuf" and np.result_type(dtype, self.classes.dtype).kind == kind


def flat_labels(
    y: Any, n_samples: int | None, name: str, estimator_name: str = ESTIMATOR
) -> NDArray[Any] | list[Any]:
    """Return one label per row, as a 1-D array or a list; reject missing labels."""
    if y is None:
        raise ValueError(f"{estimator_name} requires y to be passed, but the target y is None.")
    is_array = hasattr(y, "__array__")
    if isinstance(y, str | bytes) or not (is_array or isinstance(y, Iterable)):
        raise ValueError(f"{name} should be a 1d array of labels, one per row; got {short(y)}.")
    if sparse.issparse(y):
        _reject_many_labels(name)
    values: NDArray[Any] | list[Any] = np.asarray(y) if is_array else list(y)
    if isinstance(values, np.ndarray):
        values = _label_column(values, name, estimator_name)
    if isinstance(values, list) or values.dtype == object:
        values = _one_of_each(values, name)
    if n_samples is not None and len(values) != n_samples:
        raise ValueError(f"{name} has {len(values):,} labels, but there are {n_samples:,} rows of features.")
    if len(values) == 0:
        raise ValueError(f"{name} is empty; {estimator_name} needs at least one label.")
    if isinstance(values, np.ndarray) and values.dtype.kind in "fmM" and not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        _reject_missing(values[row], f"{name}[{row}]")
    return values


def _label_column(values: NDArray[Any], name: str, estimator_name: str) -> NDArray[Any] | list[Any]:
    """Return an array of one dimension, or a list for strings that may be missing and for records."""
    if values.ndim == 2 and values.shape[1] == 1:
        _warn_column()
        values = values[:, 0]
    if values.ndim == 2:
        _reject_many_labels(name)
    if values.ndim != 1:
        raise ValueError(
            f"{name} has shape {values.shape}; {estimator_name} takes a 1d array, one label per row."
        )
    if values.dtype.kind == "c":
        raise ValueError(
            f"Complex data not supported: {name} has dtype {values.dtype}. Pass the labels as strings."
        )
    return values.tolist() if values.dtype.kind == "V" or hasattr(values.dtype, "na_object") else values


def _one_of_each(rows: NDArray[Any] | list[Any], name: str) -> NDArray[Any] | list[Any]:
    """Return labels of rows some of which are lists, sets or arrays of one label each."""
    many = (list, set, np.ndarray)
    if {*many}.isdisjoint(map(type, rows)):
        return rows
    lists = [[*row] if isinstance(row, many) else [row] for row in rows]
    wrong = next((i for i, labels in enumerate(lists) if len(labels) != 1), None)
    if wrong is not None:
        _reject_many_labels(f"{name}[{wrong}]", name)
    _warn_column()
    return [label for (label,) in lists]


def _warn_column() -> None:
    message = "A column-vector y was passed when a 1d array was expected. Pass one label per row: y.ravel()."
    warnings.warn(message, DataConversionWarning, stacklevel=5)


def _reject_many_labels(where: str, name: str | None = None) -> NoReturn:
    raise ValueError(
        f"{where} does not have one label per row."
        f" Reduce them with extremax.data.first_label({name or where})."
    )


def _reject_unhashable(values: NDArray[Any] | list[Any], where: Callable[[int], str]) -> NoReturn:
    row = next(i for i, value in enumerate(values) if not isinstance(value, Hashable))
    kind = type(values[row]).__name__
    raise TypeError(
        f"{where(row)} is of type {kind}, which is not hashable, so it cannot be a label."
    ) from None


def _reject_missing(value: Any, where: str) -> NoReturn:
    raise ValueError(f"{where} is {value}: a missing or infinite value is not a label. Drop such rows first.")


def unique_labels(
    values: NDArray[Any] | list[Any], name: str, where: Callable[[int], str] | None = None
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return the distinct values, sorted if possible, and the position of each value among them.

    `where` words the position of a value for error messages.
    """
    where = where or (lambda i: f"{name}[{i}]")
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        classes, ids = np.unique(values, return_inverse=True)
        return classes, np.asarray(ids, dtype=np.int32)
    try:
        distinct: list[Any] = list(dict.fromkeys(values))
    except TypeError:
        _reject_unhashable(values, where)
    for value in distinct:
        if _is_missing(value):
            _reject_missing(value, where(next(i for i, v in enumerate(values) if v is value)))
    try:
        distinct.sort()
    except TypeError:  # labels of different kinds have no order: keep that of their first appearance
        distinct = list(dict.fromkeys(values))
    table = dict(zip(distinct, range(len(distinct)), strict=True))
    places = np.fromiter(map(table.__getitem__, values), dtype=np.int32, count=len(values))
    return _label_array(distinct, keep_objects=isinstance(values, np.ndarray)), places


def _is_missing(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return not math.isfinite(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _label_array(labels: list[Any], *, keep_objects: bool) -> NDArray[Any]:
    """Return a 1-D array of labels, of a plain dtype if they are all of one kind of number or string."""
    kinds = set(map(type, labels))
    if not keep_objects and len(kinds) == 1:
        kind = next(iter(kinds))
        if issubclass(kind, str):
            longest, total = max(map(len, labels)), sum(map(len, labels))
            # every entry of a fixed-width array is as long as the longest, and cannot end in a zero character
            if longest * len(labels) <= 4 * total + (1 << 20) and not any(s.endswith("\0") for s in labels):
                return np.array(labels)
        elif issubclass(kind, bool | float | np.generic) or (
            kind is int and labels[0] >= -(2**63) and labels[-1] < 2**63
        ):
            return np.array(labels)
    return np.fromiter(labels, dtype=object, count=len(labels))


def join_labels(
    labels: NDArray[Any], new: NDArray[Any], *, in_order: bool = True
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return labels with new ones, and the place of each among both: the old ones from 0, then the new ones.

    Labels that are sorted stay so with `in_order`; else the new ones come last.

    Examples
    --------
    >>> join_labels(np.array(["apple", "pear"]), np.array(["fig"]))
    (array(['apple', 'fig', 'pear'], dtype='<U5'), array([0, 2, 1]))
    """
    if labels.dtype.kind == new.dtype.kind and labels.dtype.kind != "O":
        both = np.concatenate([labels, new])
    else:
        listed = [*labels.tolist(), *new.tolist()]
        both = _label_array(listed, keep_objects=labels.dtype.kind == "O")
    place = np.arange(len(both), dtype=np.int64)
    if in_order:
        values = both.tolist()
        try:
            is_sorted = all(a < b for a, b in pairwise(values[: len(labels)]))
            order = sorted(place.tolist(), key=values.__getitem__) if is_sorted else place.tolist()
        except TypeError:  # labels of different kinds have no order
            order = place.tolist()
        place = np.array(order, np.int64)
    return both[place], place
