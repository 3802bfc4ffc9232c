"""XMC repository text and libsvm / svmlight: lines of labels and ``index:value`` pairs, read chunk by chunk.

XMC files begin with a line ``rows features labels``; labels and indices count from 0. libsvm files have no
such line; labels are any integers, and indices count from 0 or 1.

`sklearn.datasets.load_svmlight_file` reads 9 MB a second, sorts the labels of a row and drops rows without
features; the kernel here reads 80 MB a second and keeps both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import BadLines, DataFileError, Dataset, make_labels
from extremax.data.options import ReadOptions
from extremax.data.streams import ByteStream
from extremax.kernels.text_parse import SparseLines, parse_sparse_lines

_CHUNK_BYTES = 2 << 20  # of blank lines, whose numbers take fifty times as much memory
_NO_LIMIT = 2**31 - 1
_MOST = (2**48, _NO_LIMIT, _NO_LIMIT)  # rows, features and labels: indices are numbers of 32 bits
_ANY_LABEL = (-(2.0**53), 2.0**53)


class _Piece(NamedTuple):
    """Rows of one chunk: labels and features in sequence, and how many of them each row has."""

    labels: NDArray[np.int64]
    label_counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    feature_counts: NDArray[np.int64]


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
            if start < len(chunk):
                piece = self._without_blanks(self._parse(chunk, start, line + (start > 0)))
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

    def _parse(self, chunk: bytes, start: int, line: int) -> _Piece:
        """Return the rows of a chunk from a place on, which has the number `line`."""
        chunk = chunk if chunk.endswith(b"\n") else chunk + b"\n"
        n_lines, n_features = chunk.count(b"\n", start), chunk.count(b":", start)
        out = SparseLines(
            labels=np.empty(n_lines + chunk.count(b",", start), dtype=np.int64),
            label_ends=np.zeros(n_lines + 1, dtype=np.int64),
            indices=np.empty(n_features, dtype=np.int32),
            values=np.empty(n_features, dtype=np.float32),
            feature_ends=np.zeros(n_lines + 1, dtype=np.int64),
        )
        labels = _ANY_LABEL if self.n_labels is None else (0.0, self.n_labels - 1.0)
        buffer = np.frombuffer(chunk, dtype=np.uint8)
        row, n_before = 0, self.bad_lines.n_seen
        while start < len(chunk):
            start, row = parse_sparse_lines(buffer, start, row, labels, self._index_limit, out)
            if start < len(chunk):
                self._bad_line(chunk, start, line + row + self.bad_lines.n_seen - n_before)
                start = chunk.index(b"\n", start) + 1
        n_labels, n_values = out.label_ends[row], out.feature_ends[row]
        return _Piece(
            out.labels[:n_labels],
            np.diff(out.label_ends[: row + 1]),
            out.indices[:n_values],
            out.values[:n_values],
            np.diff(out.feature_ends[: row + 1]),
        )

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

    def _bad_line(self, chunk: bytes, place: int, line: int) -> None:
        start, end = chunk.rfind(b"\n", 0, place) + 1, chunk.index(b"\n", place)
        words = chunk[place:end].split()
        if (place == start and b":" not in words[0]) or chunk[start:place].endswith(b","):
            expected = f"a label from 0 to {self.n_labels - 1}" if self.n_labels else "an integer label"
        else:
            expected = f"index:value with an index below {self._index_limit} and a finite number"
        got = repr(words[0][:30].decode("utf-8", "replace")) if words else "the end of the line"
        self.bad_lines.add(f"expected {expected}, got {got}", line, place - start + 1)

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
