"""XMC repository text and libsvm / svmlight: lines of labels and ``index:value`` pairs, read chunk by chunk.

XMC files begin with a line ``rows features labels``; labels and indices count from 0. libsvm files have no
such line; labels are any integers, and indices count from 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, Dataset, RaggedLabels
from extremax.data.streams import ByteStream, check_room
from extremax.kernels import text_parse as kernel

ZeroBased = bool | Literal["auto"]

_EXPECTED = {
    kernel.LABEL: "expected an integer label",
    kernel.LABEL_END: "expected a comma, a space or the end of the line after a label",
    kernel.INDEX: "expected a feature as index:value with an index >= 0",
    kernel.INDEX_END: "expected a colon after the feature index",
    kernel.VALUE: "expected a finite number after the colon",
    kernel.VALUE_END: "expected a space or the end of the line after a feature value",
    kernel.INDEX_RANGE: "expected a feature index below {n_features}",
    kernel.LABEL_RANGE: "expected a label from 0 to {last_label}",
}
_MAX_REPORTS = 20
_MOST_LINES = 1 << 18  # of a chunk, whose numbers are in memory together
_NO_LIMIT = 2**31 - 1
_MOST = (2**48, _NO_LIMIT, _NO_LIMIT)  # rows, features and labels: indices are numbers of 32 bits
_FIRST_LOOK = 1 << 28  # bytes of rows between two looks at the memory that is left


@dataclass
class SparseChunk:
    """Rows of one chunk: features in the three arrays of CSR, and labels."""

    values: NDArray[np.float32]
    indices: NDArray[np.int32]
    feature_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_ends: NDArray[np.int64]
    last_text_row: int

    @property
    def n_rows(self) -> int:
        return len(self.feature_ends)


@dataclass
class SparseTextReader:
    """Chunks of a file; sizes and bad lines found on the way are in the attributes."""

    stream: ByteStream
    header: bool
    n_features: int | None = None
    skip_bad_lines: bool = False
    n_rows: int | None = None
    n_labels: int | None = None
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    max_index: int = -1
    min_index: int = _NO_LIMIT
    unsorted: bool = False

    def __iter__(self) -> Iterator[SparseChunk]:
        line = 0
        for chunk in self.stream.chunks():
            start = 0
            if self.header and line == 0:
                start = chunk.index(b"\n") + 1
                self._read_header(bytes(chunk[: start - 1]))
                line = 1
            if start == len(chunk):
                continue
            for first, last in _pieces(chunk, start):
                buffer = np.frombuffer(chunk, dtype=np.uint8, count=last - first, offset=first)
                yield self._parse(buffer, line)
                line += self._lines

    def _read_header(self, text: bytes) -> None:
        words = text.split()
        if len(words) != 3 or not all(word.isdigit() for word in words):
            shown = text[:60].decode("utf-8", "replace")
            message = (
                f"expected three numbers, rows features labels, got {shown!r}; a file without this line is"
            )
            message += " libsvm."
            raise DataFileError(self.stream.name, message, line=1)
        for what, word, most in zip(("rows", "features", "labels"), words, _MOST, strict=True):
            if len(word) > 18 or int(word) > most:
                shown = word[:30].decode()
                message = f"announces {shown} {what}; at most {most:,} can be read, in numbers of 32 bits."
                raise DataFileError(self.stream.name, message, line=1)
        n_rows, n_features, n_labels = (int(word) for word in words)
        if self.n_features is not None and n_features > self.n_features:
            message = f"announces {n_features} features, more than n_features={self.n_features}."
            raise DataFileError(self.stream.name, message, line=1)
        self.n_rows, self.n_labels = n_rows, n_labels
        self.n_features = self.n_features or n_features

    def _parse(self, buffer: NDArray[np.uint8], first_line: int) -> SparseChunk:
        lines, colons, commas = kernel.count_marks(buffer)
        out = kernel.SparseLines(
            labels=np.empty(lines + commas, dtype=np.int64),
            label_ends=np.empty(lines, dtype=np.int64),
            indices=np.empty(colons, dtype=np.int32),
            values=np.empty(colons, dtype=np.float32),
            feature_ends=np.empty(lines, dtype=np.int64),
            errors=np.empty((_MAX_REPORTS, 3), dtype=np.int64),
            state=np.zeros(9, dtype=np.int64),
        )
        limit = _NO_LIMIT if self.n_features is None else self.n_features + (0 if self.header else 1)
        n_labels = -1 if self.n_labels is None else self.n_labels
        kernel.parse_sparse_lines(buffer, limit, n_labels, self.header, self.skip_bad_lines, out)
        state = out.state
        self._lines = int(state[kernel.N_LINES])
        for line, column, code in out.errors[: int(state[kernel.N_ERRORS])].tolist():
            error = self._error(buffer, line, column, code, first_line)
            if not self.skip_bad_lines:
                raise error
            if len(self.skipped) < _MAX_REPORTS:
                self.skipped.append(str(error))
        self.n_skipped += int(state[kernel.N_ERRORS])
        self.max_index = max(self.max_index, int(state[kernel.MAX_INDEX]))
        self.min_index = min(self.min_index, int(state[kernel.MIN_INDEX]))
        self.unsorted |= bool(state[kernel.UNSORTED])
        rows, n_labels, n_values = (
            int(state[i]) for i in (kernel.N_ROWS, kernel.N_LABELS, kernel.N_FEATURES)
        )
        return SparseChunk(
            out.values[:n_values],
            out.indices[:n_values],
            out.feature_ends[:rows],
            out.labels[:n_labels],
            out.label_ends[:rows],
            int(state[kernel.LAST_TEXT_ROW]),
        )

    def _error(
        self, buffer: NDArray[np.uint8], line: int, column: int, code: int, first_line: int
    ) -> DataFileError:
        ends = np.flatnonzero(buffer == kernel.NEWLINE)
        start = 0 if line == 0 else int(ends[line - 1]) + 1
        rest = bytes(buffer[start + column : int(ends[line])])
        got = rest.split()[0][:30].decode("utf-8", "replace") if rest.strip() else ""
        most = _NO_LIMIT if self.n_features is None else self.n_features
        expected = _EXPECTED[code].format(n_features=most, last_label=(self.n_labels or 0) - 1)
        message = f"{expected}, got {got!r}" if got else f"{expected}, got the end of the line"
        hint = (
            ""
            if self.skip_bad_lines
            else "; correct it, or pass skip_bad_lines=True to leave such lines out."
        )
        return DataFileError(self.stream.name, message + hint, line=first_line + line + 1, column=column + 1)


def _pieces(chunk: bytearray, start: int) -> Iterator[tuple[int, int]]:
    """Yield the places of whole lines: all at once, or in pieces where blank lines make them very many."""
    if chunk.count(b"\n", start) <= _MOST_LINES:
        yield start, len(chunk)
        return
    while start < len(chunk):
        stop = chunk.find(b"\n", start + _MOST_LINES) + 1 or len(chunk)
        yield start, stop
        start = stop


class _Growing:
    """An array that grows at its end; large ones are moved by the system without a copy."""

    def __init__(self, dtype: type) -> None:
        self._array: NDArray[Any] = np.empty(1024, dtype=dtype)
        self.size = 0

    def extend(self, part: NDArray[Any]) -> None:
        """Append values."""
        stop = self.size + len(part)
        if stop > len(self._array):
            self._array.resize(max(stop, 2 * len(self._array)), refcheck=False)
        self._array[self.size : stop] = part
        self.size = stop

    def take(self) -> NDArray[Any]:
        """Return the array, cut to its size; the object must not be used any more."""
        self._array.resize(self.size, refcheck=False)
        return self._array


class _Rows:
    """Rows of several chunks."""

    def __init__(self) -> None:
        self.values, self.indices = _Growing(np.float32), _Growing(np.int32)
        self.labels = _Growing(np.int64)
        self.feature_ends, self.label_ends = _Growing(np.int64), _Growing(np.int64)
        self.last_text_row = -1

    def add(self, chunk: SparseChunk) -> None:
        """Append the rows of a chunk."""
        if chunk.last_text_row >= 0:
            self.last_text_row = self.feature_ends.size + chunk.last_text_row
        self.feature_ends.extend(chunk.feature_ends + self.values.size)
        self.label_ends.extend(chunk.label_ends + self.labels.size)
        self.values.extend(chunk.values)
        self.indices.extend(chunk.indices)
        self.labels.extend(chunk.labels)

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        counts = 8 * self.values.size, 8 * self.labels.size, 16 * self.feature_ends.size
        return sum(counts)

    def drop_blank_tail(self, n_rows: int) -> int:
        """Drop blank lines after the announced rows; return the number of rows left."""
        keep = max(self.last_text_row + 1, min(n_rows, self.feature_ends.size))
        self.feature_ends.size = self.label_ends.size = keep
        return keep


def read_sparse_text(
    stream: ByteStream,
    *,
    header: bool,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    skip_bad_lines: bool = False,
) -> Dataset:
    """Read a whole file into CSR features and labels."""
    _check_width(n_features)
    reader = SparseTextReader(stream, header, n_features, skip_bad_lines)
    rows, limit = _Rows(), _FIRST_LOOK
    for chunk in reader:
        rows.add(chunk)
        if reader.n_rows is not None:
            rows.drop_blank_tail(reader.n_rows)  # a file may go on with blank lines for ever
            if (found := rows.last_text_row + 1) + reader.n_skipped > reader.n_rows:
                message = f"the first line announces {reader.n_rows} rows, the file has {found} and may go"
                message += " on; fetch it again."
                raise DataFileError(stream.name, message)
        if rows.n_bytes > limit:
            check_room(stream.name, rows.n_bytes)
            limit = rows.n_bytes + _FIRST_LOOK
    if header:
        if reader.n_rows is None:
            raise DataFileError(
                stream.name, "the file is empty; expected a first line of rows features labels."
            )
        found = rows.drop_blank_tail(reader.n_rows)
        if found + reader.n_skipped != reader.n_rows:
            bad = f" and {reader.n_skipped} bad lines" if reader.n_skipped else ""
            message = (
                f"the first line announces {reader.n_rows} rows, the file has {found}{bad}; fetch it again."
            )
            raise DataFileError(stream.name, message)
    return _finish(reader, rows, zero_based)


def _check_width(n_features: int | None) -> None:
    if n_features is not None and not 0 < n_features <= _NO_LIMIT:
        raise ValueError(f"n_features is {n_features}; it must be from 1 to {_NO_LIMIT:,}.")


def iterate_sparse_text(
    stream: ByteStream,
    *,
    header: bool,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    skip_bad_lines: bool = False,
) -> Iterator[Dataset]:
    """Read a file chunk by chunk; without a header, `n_features` and `zero_based` must be given."""
    if not header and (n_features is None or zero_based == "auto"):
        raise ValueError(
            "libsvm text in batches needs n_features and zero_based=True or False: a batch cannot tell."
        )
    _check_width(n_features)
    reader = SparseTextReader(stream, header, n_features, skip_bad_lines)
    for chunk in reader:
        rows = _Rows()
        rows.add(chunk)
        yield _finish(reader, rows, zero_based)
        reader.n_skipped, reader.skipped = 0, []


def _finish(reader: SparseTextReader, rows: _Rows, zero_based: ZeroBased) -> Dataset:
    name = reader.stream.name
    one_based = not reader.header and (
        zero_based is False or (zero_based == "auto" and reader.min_index >= 1)
    )
    if one_based and reader.min_index == 0:
        raise DataFileError(name, "has a feature index 0; with zero_based=False the first index is 1.")
    n_features = reader.n_features
    if n_features is None:
        n_features = max(reader.max_index + 1 - one_based, 0)
    elif reader.max_index - one_based >= n_features:
        raise DataFileError(
            name, f"has feature index {reader.max_index}; with n_features={n_features} that is one too many."
        )
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), rows.feature_ends.take()])
    indices = rows.indices.take()
    if one_based:
        indices -= 1
    X = sp.csr_matrix((rows.values.take(), indices, indptr), shape=(len(indptr) - 1, n_features), copy=False)
    if reader.unsorted:
        X.sum_duplicates()
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), rows.label_ends.take()])
    y, label_names = RaggedLabels(rows.labels.take(), offsets).finish(reader.n_labels)
    return Dataset(
        X=X,
        y=y,
        label_names=label_names,
        n_skipped=reader.n_skipped,
        skipped=list(reader.skipped),
        format="xmc" if reader.header else "libsvm",
    )
