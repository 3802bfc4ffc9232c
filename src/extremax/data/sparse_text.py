"""XMC repository text and libsvm / svmlight: lines of labels and ``index:value`` pairs, read chunk by chunk.

XMC files begin with a line ``rows features labels``; labels and indices count from 0. libsvm files have no
such line; labels are any integers, and indices count from 0 or 1.

`sklearn.datasets.load_svmlight_file` is twice as fast, but sorts the labels of a row, drops rows without
features, and does not say where a bad line is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import BadLines, DataFileError, Dataset, make_labels
from extremax.data.options import ReadOptions
from extremax.data.streams import ByteStream

_CHUNK_BYTES = 2 << 20  # read at a time
_NO_LIMIT = 2**31 - 1
_MOST = (2**48, _NO_LIMIT, _NO_LIMIT)  # rows, features and labels: indices are numbers of 32 bits
_ANY_LABEL = (-(2.0**53), 2.0**53)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_COMMENT, _BLANKS = re.compile(rb"#[^\n]*"), bytes.maketrans(b"\t\r", b"  ")
_NUMBER = rb"[-+]?(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+"
_LABEL, _PAIR = re.compile(_NUMBER), re.compile(rb"(%b):(%b)" % (_NUMBER, _NUMBER))
_LINE = re.compile(
    rb"(?P<labels>(?:N(?:,N)*+(?![^ ]))?+)(?P<pairs>(?: *+N:N(?![^ ]))*+) *+".replace(b"N", _NUMBER)
)


class _Piece(NamedTuple):
    """Rows of one chunk: labels and features in sequence, and how many of them each row has."""

    labels: NDArray[np.int64]
    label_counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    feature_counts: NDArray[np.int64]


_NO_LABELS, _NO_PAIRS, _BLANK = np.empty(0, np.int64), np.empty((0, 2)), (0, 0)


@dataclass
class SparseTextReader:
    """Rows of a file as datasets; sizes and bad lines found on the way are in the attributes."""

    stream: ByteStream
    header: bool
    options: ReadOptions
    n_features: int | None = None
    n_rows: int | None = None
    n_labels: int | None = None
    n_done: int = 0

    def __post_init__(self) -> None:
        self.bad_lines = BadLines(self.stream.name, skip=self.options.skip_bad_lines)
        self.n_features = self.options.n_features
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
        line = 1
        for chunk in self.stream.chunks(_CHUNK_BYTES):
            n_lines = chunk.count(b"\n")
            start = 0
            if self.header and line == 1:
                text, _, _ = chunk.partition(b"\n")
                self._read_header(text)
                start = len(text) + 1
            is_complete = self.n_rows is None or self.n_done + self.bad_lines.n_seen == self.n_rows
            if start < len(chunk) and not (is_complete and chunk.isspace()):
                piece = self._without_blanks(self._parse(chunk[start:], line + (start > 0)))
                if len(piece.label_counts):
                    yield piece
            line += n_lines
        if self.header and self.n_rows is None:
            message = "the file is empty; expected a first line of rows features labels."
            raise DataFileError(self.stream.name, message)
        if self.header and self.n_done + self.bad_lines.n_seen != self.n_rows:
            raise self._wrong_number_of_rows(str(self.n_done))

    def _read_header(self, text: bytes) -> None:
        words = text.split()
        if len(words) != 3 or not all(word.isdigit() for word in words):
            shown = text[:60].decode("utf-8", "replace")
            message = f"expected three numbers, rows features labels, got {shown!r}; a file without this line"
            raise DataFileError(self.stream.name, f"{message} is libsvm.", line=1)
        for what, word, most in zip(("rows", "features", "labels"), words, _MOST, strict=True):
            if len(word) > 18 or int(word) > most:
                message = f"announces {word[:30].decode()} {what}; at most {most:,} can be read."
                raise DataFileError(self.stream.name, message, line=1)
        self.n_rows, n_features, self.n_labels = (int(word) for word in words)
        if self.n_features is not None and n_features > self.n_features:
            message = f"announces {n_features} features, more than n_features={self.n_features}."
            raise DataFileError(self.stream.name, message, line=1)
        self.n_features = self.n_features or n_features

    @property
    def _index_limit(self) -> int:
        """Smallest index that is too large; indices of libsvm may count from 1."""
        if self.n_features is None:
            return _NO_LIMIT
        return self.n_features + (not self.header and self.options.zero_based is not True)

    def _parse(self, chunk: bytes, line: int) -> _Piece:
        """Return the rows of a chunk whose first line has the number `line`."""
        labels, pairs = [_NO_LABELS], [_NO_PAIRS]
        counts = []  # of labels and features of each row
        lines = _COMMENT.sub(b"", chunk.removesuffix(b"\n")).translate(_BLANKS).split(b"\n")
        for number, text in enumerate(lines, start=line):
            if not text:
                counts.append(_BLANK)
                continue
            row = self._read_line(text)
            if row is None:
                self._report(text, number)
                continue
            labels.append(row[0])
            pairs.append(row[1])
            counts.append((len(row[0]), len(row[1])))
        flat, numbers = np.concatenate(pairs), np.array(counts, np.int64).reshape(-1, 2)
        return _Piece(
            np.concatenate(labels),
            numbers[:, 0],
            flat[:, 0].astype(np.int32),
            flat[:, 1].astype(np.float32),
            numbers[:, 1],
        )

    def _read_line(self, text: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """Return the labels of a line, and its features (n, 2); None for a bad line."""
        found = _LINE.fullmatch(text)
        if found is None:
            return None
        labels = np.array(found["labels"].split(b",") if found["labels"] else [], np.float64)
        pairs = np.array(found["pairs"].replace(b":", b" ").split(), np.float64).reshape(-1, 2)
        good = self._are_labels(labels) and self._are_features(pairs)
        return (labels.astype(np.int64), pairs) if good else None

    def _are_labels(self, labels: NDArray[np.float64]) -> bool:
        low, high = _ANY_LABEL if self.n_labels is None else (0.0, self.n_labels - 1.0)
        return bool(((labels >= low) & (labels <= high) & (labels % 1 == 0)).all())

    def _are_features(self, pairs: NDArray[np.float64]) -> bool:
        index, value = pairs.T
        inside = (index >= 0) & (index < self._index_limit) & (index % 1 == 0)
        return bool((inside & (np.abs(value) <= _FLOAT32_MAX)).all())

    def _without_blanks(self, piece: _Piece) -> _Piece:
        """Return a piece without the blank lines that are not rows."""
        is_blank = piece.label_counts + piece.feature_counts == 0
        if self.n_rows is None:
            keep = ~is_blank
        else:
            # blank lines are rows without labels and features, but not after the last announced row
            keep = np.arange(len(is_blank)) < self.n_rows - self.n_done - self.bad_lines.n_seen
            if not is_blank[~keep].all():
                raise self._wrong_number_of_rows("more")
        self.n_done += int(keep.sum())
        return piece._replace(
            label_counts=piece.label_counts[keep], feature_counts=piece.feature_counts[keep]
        )

    def _wrong_number_of_rows(self, found: str) -> DataFileError:
        n_bad = self.bad_lines.n_seen
        bad = f" and {n_bad} bad lines" if n_bad else ""
        message = f"the first line announces {self.n_rows} rows, the file has {found}{bad}; fetch it again."
        return DataFileError(self.stream.name, message)

    def _report(self, text: bytes, line: int) -> None:
        """Report the first word of a bad line that is neither a label nor a feature."""
        place, of_label = self._find_fault(text)
        if of_label:
            expected = f"a label from 0 to {self.n_labels - 1}" if self.n_labels else "an integer label"
        else:
            expected = f"index:value with an index below {self._index_limit} and a finite number"
        words = text[place:].split()
        got = repr(words[0][:30].decode("utf-8", "replace")) if words else "the end of the line"
        self.bad_lines.add(f"expected {expected}, got {got}", line, place + 1)

    def _find_fault(self, text: bytes) -> tuple[int, bool]:
        """Return the place of that word, and whether a label is expected there."""
        place = 0
        first = _LABEL.match(text)
        more = not text.startswith(b" ") and (first is None or text[first.end() : first.end() + 1] != b":")
        while more:
            found = _LABEL.match(text, place)
            after = b"" if found is None else text[found.end() : found.end() + 1]
            if found is None or after not in b", " or not self._are_labels(np.array([float(found[0])])):
                return place, True
            place, more = found.end() + len(after), after == b","
        for word in re.finditer(rb"[^ ]+", text[place:]):
            pair = _PAIR.fullmatch(word[0])
            if pair is None or not self._are_features(np.array([pair.groups()], np.float64)):
                return place + word.start(), False
        raise AssertionError("the line has no fault")

    def _dataset(self, pieces: list[_Piece]) -> Dataset:
        name = self.stream.name
        none = np.zeros(0, np.int64)
        empty = _Piece(none, none, none.astype(np.int32), none.astype(np.float32), none)
        columns = list(zip(empty, *pieces, strict=True))
        pieces.clear()  # each array is there twice only while it is joined
        labels, label_counts, indices, values, feature_counts = (
            np.concatenate(columns.pop(0)) for _ in empty
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
