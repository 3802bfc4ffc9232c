"""The content of a data file: features or texts, labels, label names, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

_MAX_MESSAGES = 20  # about skipped lines


class DataFileError(ValueError):
    """Raised for a file that is not as expected; the message names the place and what to do.

    Attributes
    ----------
    path : str
        The file.
    line, column : int or None
        Position, counted from 1.
    """

    def __init__(
        self, path: str, message: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        where = path + (f", line {line}" if line else "") + (f", column {column}" if column else "")
        super().__init__(f"{where}: {message}")
        self.path, self.line, self.column = path, line, column


@dataclass(frozen=True)
class Dataset:
    """Rows of a file.

    Attributes
    ----------
    X : (n_samples, n_features) array, memory map or CSR matrix, or None
        Features, float32 unless a memory-mapped file holds another type; None for a file of texts.
    texts : list of str or None
        Texts; None for a file of features.
    y : (n_samples,) array, CSR indicator matrix (n_samples, n_labels), or None
        One label per row, or a set of labels per row (in the order of the file), or no labels.
    label_names : list of str or None
        Names of the columns of a CSR `y`, where they are not 0, 1, 2, ...
    n_skipped : int
        Number of bad lines that were skipped.
    skipped : list of str
        Messages about the first of them.
    n_unlabelled : int
        Number of rows that a label reduction left out because they have no label.
    format : str
        Format of the file.
    row_numbers : list of int or None
        Position of each row in the file, from 0, where columns are kept; bad rows count.
    columns : dict of str to list
        Columns that were to be kept, by name.
    note : str
        What was taken for what: the header, the columns of texts and labels.
    """

    X: Any = None
    texts: list[str] | None = None
    y: Any = None
    label_names: list[str] | None = None
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    n_unlabelled: int = 0
    format: str = ""
    row_numbers: list[int] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    note: str = ""

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return len(self.texts) if self.texts is not None else int(self.X.shape[0])

    @property
    def multilabel(self) -> bool:
        """Whether `y` holds a set of labels per row."""
        return bool(sp.issparse(self.y))


class BadLines:
    """Malformed lines of a file: the first one is an error, or all are skipped and counted.

    Attributes
    ----------
    n_seen : int
        Number of lines skipped so far.
    """

    def __init__(self, path: str, *, skip: bool) -> None:
        self._path, self._skip = path, skip
        self.n_seen = 0
        self._n_reported, self._messages = 0, list[str]()

    def add(
        self, message: str, line: int | None = None, column: int | None = None, *, advice: str = ""
    ) -> None:
        """Raise for a bad line, or count it; advice says what else to do than correct it."""
        hint = f"; {advice}" if advice else ""
        if not self._skip:
            hint = f"{hint or '; correct it'}, or pass skip_bad_lines=True to leave such lines out."
        error = DataFileError(self._path, message + hint, line=line, column=column)
        if not self._skip:
            raise error
        self.n_seen += 1
        if len(self._messages) < _MAX_MESSAGES:
            self._messages.append(str(error))

    def report(self) -> dict[str, Any]:
        """Return the fields of a `Dataset` about the lines skipped since the last call."""
        found = {"n_skipped": self.n_seen - self._n_reported, "skipped": self._messages}
        self._n_reported, self._messages = self.n_seen, []
        return found


def make_labels(flat: NDArray[Any], counts: Any, n_labels: int | None = None) -> tuple[Any, list[str] | None]:
    """Return `y` and `label_names` of a Dataset.

    Parameters
    ----------
    flat : array
        Labels of all rows in sequence.
    counts : sequence of int
        Number of labels of each row.
    n_labels : int or None
        Columns of the indicator matrix; None makes one only if a row does not have exactly one label.
    """
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if n_labels is not None:
        return indicator(flat, offsets, n_labels), None
    if len(flat) == 0:
        return None, None
    if (np.diff(offsets) == 1).all():
        return flat, None
    names, ids = np.unique(flat, return_inverse=True)
    return indicator(ids, offsets, len(names)), [str(name) for name in names]


def indicator(ids: NDArray[Any], offsets: NDArray[np.int64], n_labels: int) -> sp.csr_matrix:
    """Return a CSR matrix with a 1 for every (row, label), each once, in the order of each row."""
    rows = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    ids = np.asarray(ids, dtype=np.int64)
    _, first = np.unique(rows * max(n_labels, 1) + ids, return_index=True)
    if len(first) < len(ids):
        first.sort()
        rows, ids = rows[first], ids[first]
        offsets = np.searchsorted(rows, np.arange(len(offsets)))
    matrix = sp.csr_matrix((len(offsets) - 1, n_labels), dtype=np.int8)
    # set one by one: the constructor may sort
    matrix.data = np.ones(len(ids), dtype=np.int8)
    matrix.indices, matrix.indptr = ids.astype(np.int32), offsets.astype(np.int64)
    return matrix


def string_array(values: list[str]) -> NDArray[Any]:
    """Return strings as an array, of fixed width or, if one is very long, of objects."""
    # every entry of a fixed-width array is as long as the longest
    longest = max(map(len, values), default=0)
    return np.array(values, dtype=object if longest > 200 else f"<U{max(longest, 1)}")
