"""XMC repository text and libsvm / svmlight: lines of labels and ``index:value`` pairs, read chunk by chunk.

XMC files begin with a line ``rows features labels``; labels and indices count from 0. libsvm files have no
such line; labels are any integers, and indices count from 0 or 1.

`sklearn.datasets.load_svmlight_file` is twice as fast, but sorts the labels of a row, drops rows without
features, and does not say where a bad line is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import BadLines, DataFileError, Dataset, make_labels
from extremax.data.options import ReadOptions
from extremax.data.streams import ByteStream

_CHUNK_BYTES = 2 << 20  # read at a time
_NO_LIMIT = 2**31 - 1
_MOST = {"rows": 2**48, "features": _NO_LIMIT, "labels": _NO_LIMIT}  # indices are numbers of 32 bits
_ANY_LABEL = (-(2.0**53), 2.0**53)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_COMMENT, _BLANKS = re.compile(rb"#[^\n]*"), bytes.maketrans(b"\t\r", b"  ")
_NUMBER = rb"[-+]?(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+"
_LINE = re.compile(
    rb"(?P<labels>(?:N(?:,N)*+(?![^ ]))?+)(?P<pairs>(?: *+N:N(?![^ ]))*+) *+".replace(b"N", _NUMBER)
)
_WORD = re.compile(rb"[^ ]+")

Row = tuple[NDArray[np.float64], NDArray[np.float64]]  # labels, and index and value of each feature


class _Piece(NamedTuple):
    """Rows of one chunk: labels and features in sequence, and how many of them each row has."""

    labels: NDArray[np.int64]
    label_counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    feature_counts: NDArray[np.int64]


def _join(rows: list[Row]) -> _Piece:
    labels = np.concatenate([np.empty(0), *(row[0] for row in rows)])
    pairs = np.concatenate([np.empty((0, 2)), *(row[1] for row in rows)])
    return _Piece(
        labels.astype(np.int64),
        np.array([len(row[0]) for row in rows], np.int64),
        pairs[:, 0].astype(np.int32),
        pairs[:, 1].astype(np.float32),
        np.array([len(row[1]) for row in rows], np.int64),
    )


class SparseTextReader:
    """Rows of a file as datasets."""

    def __init__(self, stream: ByteStream, header: bool, options: ReadOptions) -> None:
        self.stream, self.header, self.options = stream, header, options
        self.bad_lines = BadLines(stream.name, skip=options.skip_bad_lines)
        self.n_features = options.n_features
        self.n_rows: int | None = None
        self.n_labels: int | None = None
        self.n_done = 0
        if self.n_features is not None and not 0 < self.n_features <= _NO_LIMIT:
            raise ValueError(f"n_features is {self.n_features}; it must be from 1 to {_NO_LIMIT:,}.")

    def read(self) -> Dataset:
        """Read the whole file into CSR features and labels."""
        return self._dataset(list(self._pieces()))

    def batches(self) -> Iterator[Dataset]:
        """Read chunk by chunk; without a header, `n_features` and `zero_based` must be given."""
        if not self.header and (self.n_features is None or self.options.zero_based == "auto"):
            raise ValueError(
                "libsvm text in batches needs n_features and zero_based=True or False: a batch cannot tell."
            )
        for piece in self._pieces():
            yield self._dataset([piece])

    def _pieces(self) -> Iterator[_Piece]:
        number = 0
        for chunk in self.stream.chunks(_CHUNK_BYTES):
            if self._is_complete and chunk.isspace():
                continue
            rows: list[Row] = []
            for line in chunk.removesuffix(b"\n").split(b"\n"):
                number += 1
                if self.header and number == 1:
                    self._read_header(line)
                elif (row := self._read_row(line, number)) is not None:
                    rows.append(row)
            if rows:
                yield _join(rows)
        if self.header and self.n_rows is None:
            message = "the file is empty; expected a first line of rows features labels."
            raise DataFileError(self.stream.name, message)
        if self.header and not self._is_complete:
            raise self._wrong_number_of_rows(str(self.n_done))

    @property
    def _is_complete(self) -> bool:
        """Whether all announced rows are read."""
        return self.n_rows == self.n_done + self.bad_lines.n_seen

    def _read_header(self, text: bytes) -> None:
        words = text.split()
        if len(words) != 3 or not all(word.isdigit() for word in words):
            shown = text[:60].decode("utf-8", "replace")
            message = f"expected three numbers, rows features labels, got {shown!r}; a file without this line"
            raise DataFileError(self.stream.name, f"{message} is libsvm.", line=1)
        for word, (what, most) in zip(words, _MOST.items(), strict=True):
            if len(word) > 18 or int(word) > most:
                message = f"announces {word[:30].decode()} {what}; at most {most:,} can be read."
                raise DataFileError(self.stream.name, message, line=1)
        self.n_rows, n_features, self.n_labels = (int(word) for word in words)
        if self.n_features is not None and n_features > self.n_features:
            message = f"announces {n_features} features, more than n_features={self.n_features}."
            raise DataFileError(self.stream.name, message, line=1)
        self.n_features = self.n_features or n_features

    def _read_row(self, line: bytes, number: int) -> Row | None:
        """Return the row of a line; None for a bad line, and for a blank one that is not a row."""
        text = _COMMENT.sub(b"", line).translate(_BLANKS)
        if not text.strip() and (self._is_complete or not self.header):
            return None
        if self._is_complete:
            raise self._wrong_number_of_rows("more")
        row = self._parse(text)
        if row is None:
            self._report(text, number)
        else:
            self.n_done += 1
        return row

    def _parse(self, text: bytes) -> Row | None:
        """Return the labels of a line, and its features (n, 2); None for a bad line."""
        found = _LINE.fullmatch(text)
        if found is None:
            return None
        labels = np.array(found["labels"].split(b",") if found["labels"] else [], np.float64)
        pairs = np.array(found["pairs"].replace(b":", b" ").split(), np.float64).reshape(-1, 2)
        low, high = _ANY_LABEL if self.n_labels is None else (0.0, self.n_labels - 1.0)
        index, value = pairs.T
        good = (
            ((labels >= low) & (labels <= high) & (labels % 1 == 0)).all()
            and ((index >= 0) & (index < self._index_limit) & (index % 1 == 0)).all()
            and (np.abs(value) <= _FLOAT32_MAX).all()
        )
        return (labels, pairs) if good else None

    @property
    def _index_limit(self) -> int:
        """Smallest index that is too large; indices of libsvm may count from 1."""
        if self.n_features is None:
            return _NO_LIMIT
        return self.n_features + (not self.header and self.options.zero_based is not True)

    def _report(self, text: bytes, line: int) -> None:
        """Report the first word of a bad line that is neither labels nor a feature."""
        for word in _WORD.finditer(text):
            is_first = word.start() == 0
            if self._parse(word[0] if is_first else b" " + word[0]) is None:
                break
        if is_first and b":" not in word[0]:
            expected = f"a label from 0 to {self.n_labels - 1}" if self.n_labels else "an integer label"
        else:
            expected = f"index:value with an index below {self._index_limit} and a finite number"
        got = word[0][:30].decode("utf-8", "replace")
        self.bad_lines.add(f"expected {expected}, got {got!r}", line, word.start() + 1)

    def _wrong_number_of_rows(self, found: str) -> DataFileError:
        n_bad = self.bad_lines.n_seen
        bad = f" and {n_bad} bad lines" if n_bad else ""
        message = f"the first line announces {self.n_rows} rows, the file has {found}{bad}; fetch it again."
        return DataFileError(self.stream.name, message)

    def _dataset(self, pieces: list[_Piece]) -> Dataset:
        name = self.stream.name
        columns = list(zip(_join([]), *pieces, strict=True))
        pieces.clear()  # each array is there twice only while it is joined
        labels, label_counts, indices, values, feature_counts = (
            np.concatenate(columns.pop(0)) for _ in _Piece._fields
        )
        smallest, largest = (int(indices.min()), int(indices.max())) if len(indices) else (0, -1)
        one_based = not self.header and (
            self.options.zero_based is False or (self.options.zero_based == "auto" and smallest >= 1)
        )
        if one_based and len(indices) and smallest == 0:
            raise DataFileError(name, "has a feature index 0; with zero_based=False the first index is 1.")
        n_features = largest + 1 - one_based if self.n_features is None else self.n_features
        if largest - one_based >= n_features > 0:
            message = f"has feature index {largest}; with n_features={n_features} that is one too many."
            raise DataFileError(name, message)
        if one_based:
            indices -= 1
        shape = len(feature_counts), max(n_features, 0)
        indptr = np.concatenate([[0], np.cumsum(feature_counts)]).astype(np.int64)
        X = sp.csr_matrix((values, indices, indptr), shape=shape, copy=False)
        X.sum_duplicates()
        y, label_names = make_labels(labels, label_counts, self.n_labels)
        kind = "xmc" if self.header else "libsvm"
        return Dataset(X=X, y=y, label_names=label_names, format=kind, **self.bad_lines.report())
