"""Texts with labels: CSV and TSV with a text and a label column, and fastText's ``__label__`` lines.

Readers yield rows of text and labels, so that a file can be read as a whole or in batches.
"""

from __future__ import annotations

import csv
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from extremax.data.dataset import DataFileError, Dataset, RaggedLabels
from extremax.data.streams import MAX_LINE_BYTES, ByteStream, bad_utf8, check_room

Column = str | int
Kept = Sequence[Column] | Literal["all"] | None

TEXT_NAMES = ("text", "description", "sentence", "title", "content", "body", "document", "query", "name", "x")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "code", "y")
LABEL_PREFIX = "__label__"
_MAX_REPORTS = 20
_HEAD_ROWS = 1000  # of a file, from which columns and a header are recognised
_HEAD_ROWS_PIPED = 100  # rows from a pipe are not kept waiting without need
_NAME = re.compile(r"[^\W\d]\w*(?:[ _./-]?\w+){0,2}")


class Row(NamedTuple):
    """A text, its labels (None if the file has none), and the values of the columns to be kept."""

    text: str
    labels: list[str] | None
    kept: tuple[Any, ...] = ()


_ROW_BYTES = 200  # of memory for the objects of a row, beside its text
_FIRST_LOOK = 1 << 28  # bytes of rows between two looks at the memory that is left


@dataclass
class TextReader(ABC):
    """Common part of the readers of texts: bad lines, and batches of rows as Datasets."""

    stream: ByteStream
    skip_bad_lines: bool = False
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    format: str = ""
    keep: Kept = None  # columns to be kept beside texts and labels; then rows are numbered, too
    note: str = ""  # what was taken for what
    kept_names: list[str] = field(default_factory=list)
    n_read: int = 0  # rows, bad ones too

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Yield every row."""

    def bad_line(self, message: str, line: int, column: int | None = None) -> None:
        """Raise for a bad line, or with `skip_bad_lines` count it."""
        if not self.skip_bad_lines:
            hint = "; correct it, or pass skip_bad_lines=True to leave such lines out."
            raise DataFileError(self.stream.name, message + hint, line=line, column=column)
        self.n_skipped += 1
        self.n_read += 1
        if len(self.skipped) < _MAX_REPORTS:
            self.skipped.append(str(DataFileError(self.stream.name, message, line=line, column=column)))

    def batches(self, batch_rows: int | None) -> Iterator[Dataset]:
        """Yield datasets of `batch_rows` rows each, or one of all rows."""
        rows: list[Row] = []
        numbers: list[int] = []
        size, limit = 0, _FIRST_LOOK
        for row in self.rows():
            rows.append(row)
            if self.keep is not None:
                numbers.append(self.n_read)
            self.n_read += 1
            size += len(row.text) + _ROW_BYTES
            if size > limit:
                limit = self._check_room(size)
            if len(rows) == batch_rows:
                size = 0
                yield self._finish(rows, numbers)
                rows, numbers = [], []
        if rows or batch_rows is None:
            yield self._finish(rows, numbers)

    def _check_room(self, size: int) -> int:
        """Raise if rows take more memory than there is; return the size at which to look again."""
        check_room(self.stream.name, size)
        return size + _FIRST_LOOK

    def _finish(self, rows: list[Row], numbers: list[int]) -> Dataset:
        labels = [row.labels or [] for row in rows]
        labelled = any(row.labels is not None for row in rows)
        y, names = RaggedLabels.from_lists(labels).finish(None) if labelled else (None, None)
        data = Dataset(
            texts=[row.text for row in rows],
            y=y,
            label_names=names,
            n_skipped=self.n_skipped,
            skipped=self.skipped,
            format=self.format,
            row_numbers=None if self.keep is None else numbers,
            columns={name: [row.kept[i] for row in rows] for i, name in enumerate(self.kept_names)},
            note=self.note,
        )
        self.n_skipped, self.skipped = 0, []
        return data

    def wanted_columns(self, names: list[str], what: str = "column") -> list[int]:
        """Return the positions of the columns that are to be kept."""
        if self.keep is None:
            return []
        if isinstance(self.keep, str):
            return list(range(len(names)))
        return [name_of_column(self.stream.name, column, names, what) for column in self.keep]


def name_of_column(path: str, column: Column, names: Sequence[str], what: str = "column") -> int:
    """Return the position of a column that is given by name or by position; raise if there is none."""
    plain = [name.strip().lower() for name in names]
    if str(column) in names:
        return list(names).index(str(column))
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    if isinstance(column, str) and column.strip().lower() in plain:
        return plain.index(column.strip().lower())
    shown = ", ".join(repr(name) for name in names[:10])
    raise DataFileError(path, f"there is no {what} {column!r}; {what}s are {shown}.", line=1)


@dataclass
class _UnnamedReader(TextReader):
    """Common part of files that have no columns: the text alone can be kept."""

    def _keep_texts(self) -> None:
        self.kept_names = ["text" for _ in self.wanted_columns(["text"])]


@dataclass
class FastTextReader(_UnnamedReader):
    """Lines of ``__label__a __label__b text``; a line without labels is a text alone."""

    format: str = "fasttext"

    def rows(self) -> Iterator[Row]:
        self._keep_texts()
        for number, line in enumerate(self.stream.text_lines(), start=1):
            line = line.rstrip("\r\n")
            if not line:
                continue
            if (at := bad_utf8(line)) >= 0:
                self.bad_line("expected UTF-8 text", number, at + 1)
                continue
            words = line.split()
            labels = [word.removeprefix(LABEL_PREFIX) for word in words if word.startswith(LABEL_PREFIX)]
            if "" in labels:
                self.bad_line(f"expected a name after {LABEL_PREFIX}", number, line.index(LABEL_PREFIX) + 1)
                continue
            text = " ".join(word for word in words if not word.startswith(LABEL_PREFIX))
            yield Row(text, labels or None, (text,) * len(self.kept_names))


@dataclass
class LineReader(_UnnamedReader):
    """Lines that are texts, empty ones too, without labels; in batches, a pipe's lines come at once."""

    format: str = "lines"

    def rows(self) -> Iterator[Row]:
        for part in self._chunks():
            yield from (row for row, _ in part)

    def batches(self, batch_rows: int | None) -> Iterator[Dataset]:
        if batch_rows is None:
            yield from super().batches(None)
            return
        for part in self._chunks():
            for start in range(0, len(part), batch_rows):
                rows, numbers = zip(*part[start : start + batch_rows], strict=True)
                yield self._finish(list(rows), list(numbers))

    def _chunks(self) -> Iterator[list[tuple[Row, int]]]:
        """Yield the rows of whole lines with their numbers, as many as one read gives."""
        self._keep_texts()
        number = 0
        for chunk in self.stream.line_chunks(1 << 20):
            lines = bytes(chunk).removesuffix(b"\n").split(b"\n")
            part = []
            for line in lines:
                number += 1
                text = line.removesuffix(b"\r").decode(errors="surrogateescape")
                if (at := bad_utf8(text)) >= 0:
                    self.bad_line("expected UTF-8 text", number, at + 1)
                else:
                    part.append((Row(text, None, (text,) * len(self.kept_names)), number - 1))
            yield part


@dataclass
class ColumnReader(TextReader):
    """Common part of files with named columns or fields."""

    text_column: Column | None = None
    label_column: Column | None = None
    label_separator: str | None = None
    ignore_labels: bool = False
    may_look_ahead: bool = True  # False for a pipe


class _Columns(NamedTuple):
    """Positions of the columns, and whether the first row has their names."""

    text: int
    label: int | None
    has_header: bool
    kept: list[int]


@dataclass
class TableReader(ColumnReader):
    """CSV or TSV.

    Columns are given by name or by position from 0. By default they are found by usual names in the first
    row; else, in a file of two columns, the text is the column with longer values on average. A file of one
    column holds texts. See `looks_like_header` for what is taken for a header."""

    delimiter: str = ","
    header: bool | None = None

    def rows(self) -> Iterator[Row]:
        # the limit on the length of a field is one for the whole process; documents may exceed its default
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        with closing(self.stream.text_lines()) as lines:
            records = self._records(csv.reader(lines, **self._dialect()))
            head: list[tuple[int, list[str]]] = []
            wanted = (
                _HEAD_ROWS if self.may_look_ahead else _HEAD_ROWS_PIPED if self.text_column is None else 1
            )
            for record in records:
                head.append(record)
                if len(head) == wanted:
                    break
            if not head:
                return
            columns = self._columns([fields for _, fields in head])
            width = len(head[0][1])
            rows = _chain(head, records)
            if columns.has_header:
                next(rows)
            for line, fields in rows:
                if len(fields) != width:
                    self.bad_line(f"expected {width} columns, got {len(fields)}", line)
                    continue
                row = self._row(line, fields, columns)
                if row is not None:
                    yield row

    def _row(self, line: int, fields: list[str], columns: _Columns) -> Row | None:
        """Return the row of a record; None if it is a bad one."""
        text, label_at = fields[columns.text], columns.label
        kept = tuple(fields[i] for i in columns.kept)
        used = [columns.text, *([] if label_at is None else [label_at]), *columns.kept]
        bad = next((i for i in used if bad_utf8(fields[i]) >= 0), None)
        if bad is not None:
            self.bad_line("expected UTF-8 text", line, bad + 1)
            return None
        if label_at is None:
            return Row(text, None, kept)
        label = fields[label_at]
        if self.label_separator:
            names = [name for part in label.split(self.label_separator) if (name := part.strip())]
            return Row(text, names, kept)
        if not label:
            self.bad_line("expected a label, got an empty field", line, label_at + 1)
            return None
        return Row(text, [label], kept)

    def _dialect(self) -> dict[str, Any]:
        # in tab-separated files a quote is a character like others
        if self.delimiter == "\t":
            return {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        return {"delimiter": self.delimiter, "strict": True}

    def _records(self, reader: Any) -> Iterator[tuple[int, list[str]]]:
        line = 1
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                # the rest of the file was read as one field
                if "unexpected end of data" in str(error):
                    message = "a quote that opens in this row is never closed; double or remove it."
                    raise DataFileError(self.stream.name, message, line=line) from None
                self.bad_line(f"expected a row of quoted or plain fields, got: {error}", line)
                line = reader.line_num + 1
                continue
            if fields:
                yield line, fields
            line = reader.line_num + 1

    def _columns(self, head: list[list[str]]) -> _Columns:
        names = [name.strip().lower() for name in head[0]]
        # a name, not a number, asks for a header; a piped file shows too little of itself
        by_name = any(isinstance(column, str) for column in (self.text_column, self.label_column))
        header = self.header if self.header is not None else (by_name or looks_like_header(head))
        text_at = self._position(self.text_column, head[0], header)
        label_at = self._position(self.label_column, head[0], header)
        if text_at is None and header:
            text_at = next(
                (names.index(name) for name in TEXT_NAMES if name in names and names.index(name) != label_at),
                None,
            )
        if label_at is None and header:
            label_at = next(
                (names.index(name) for name in LABEL_NAMES if name in names and names.index(name) != text_at),
                None,
            )
        width = len(head[0])
        if width == 2 and text_at is None and label_at is None:
            length = [sum(len(fields[i]) for fields in head[header:] if len(fields) == 2) for i in (0, 1)]
            text_at = 0 if length[0] >= length[1] else 1
        if width == 2:
            text_at = 1 - label_at if text_at is None and label_at is not None else text_at
            label_at = 1 - text_at if label_at is None and text_at is not None else label_at
        if width == 1:
            text_at = 0 if text_at is None else text_at
        if text_at is None:
            columns = ", ".join(repr(name) for name in head[0][:10]) if header else f"0 to {width - 1}"
            message = "cannot tell which column holds the text; pass text_column and label_column."
            message += f" Columns are {columns}."
            raise DataFileError(self.stream.name, message, line=1)
        label_at = None if self.ignore_labels else label_at
        if header:
            self._warn_of_duplicates(names)
        kept = self.wanted_columns(head[0] if header else [f"column_{i}" for i in range(width)])
        self.kept_names = [head[0][i].strip() if header else f"column_{i}" for i in kept]
        shown = [repr(name.strip()) if header else f"column {i}" for i, name in enumerate(head[0])]
        self.note = f"{self.format.upper() or 'table'} {'with' if header else 'without'} a header:"
        self.note += f" texts from {shown[text_at]},"
        self.note += " no labels" if label_at is None else f" labels from {shown[label_at]}"
        return _Columns(text_at, label_at, header, kept)

    def _warn_of_duplicates(self, names: list[str]) -> None:
        for name in dict.fromkeys(names):
            at = [str(i) for i, other in enumerate(names) if other == name]
            if len(at) > 1:
                warnings.warn(
                    f"{self.stream.name}: columns {', '.join(at)} are all named {name!r}; the name means the"
                    " first of them. Give another by its number.",
                    stacklevel=2,
                )

    def _position(self, column: Column | None, names: list[str], header: bool) -> int | None:
        if column is None:
            return None
        if isinstance(column, int) and not (header and str(column) in names):
            if not 0 <= column < len(names):
                raise DataFileError(
                    self.stream.name,
                    f"there is no column {column}; columns are 0 to {len(names) - 1}.",
                    line=1,
                )
            return column
        return name_of_column(self.stream.name, column, names)


def looks_like_header(head: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first of some rows holds the names of the columns.

    It does if it has a usual name, such as "text" or "label", that is no value of its column further down.
    With other names it does if all are names, differ from each other, occur nowhere else in their columns,
    and look unlike the values below: no digits over numbers or codes; or few words over longer texts, beside
    a column whose values occur again and again.

    Examples
    --------
    >>> looks_like_header([["ticket", "queue"], ["the printer is broken", "7"], ["no invoice", "12"]])
    True
    >>> looks_like_header([["lost key", "access"], ["the printer is broken", "it"], ["no key", "access"]])
    False
    """
    first = [cell.strip() for cell in head[0]]
    below = [[row[i].strip() for row in head[1:] if len(row) == len(first)] for i in range(len(first))]
    again = [cell in values for cell, values in zip(first, below, strict=True)]
    # "x" may well be a value
    usual = {name for name in (*TEXT_NAMES, *LABEL_NAMES) if len(name) > 1}
    if any(cell.lower() in usual and not known for cell, known in zip(first, again, strict=True)):
        return True
    if len(first) < 2 or not below[0] or any(again) or len({cell.lower() for cell in first}) < len(first):
        return False
    if not all(len(cell) <= 30 and _NAME.fullmatch(cell) for cell in first):
        return False
    columns = list(zip(first, below, strict=True))
    if any(not _has_digit(cell) and _most(_has_digit(value) for value in values) for cell, values in columns):
        return True
    is_short = [_most(len(value.split()) > len(cell.split()) for value in values) for cell, values in columns]
    repeats = [len(set(values)) <= len(values) / 2 for values in below]
    return any(is_short) and any(repeats)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _most(conditions: Iterator[bool]) -> bool:
    found = list(conditions)
    return 10 * sum(found) >= 9 * len(found)


def _chain(
    head: list[tuple[int, list[str]]], rest: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    yield from head
    yield from rest
