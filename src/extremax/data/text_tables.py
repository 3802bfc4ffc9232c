"""Texts with labels: CSV and TSV with a text and a label column, and fastText's ``__label__`` lines.

Readers yield rows ``(text, labels)``, so that a file can be read as a whole or in batches.
"""

from __future__ import annotations

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from extremax.data.dataset import DataFileError, Dataset, RaggedLabels
from extremax.data.streams import BYTE_ORDER_MARK, ByteStream, bad_utf8

Column = str | int

TEXT_NAMES = ("text", "description", "sentence", "title", "content", "body", "document", "query", "name", "x")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "code", "y")
LABEL_PREFIX = "__label__"
_MAX_REPORTS = 20


@dataclass
class TextReader(ABC):
    """Common part of the readers of texts: bad lines, and batches of rows as Datasets."""

    stream: ByteStream
    skip_bad_lines: bool = False
    n_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    format: str = ""

    @abstractmethod
    def rows(self) -> Iterator[tuple[str, list[str] | None]]:
        """Yield text and labels of every row; labels are None if the file has none."""

    def bad_line(self, message: str, line: int, column: int | None = None) -> None:
        """Raise for a bad line, or with `skip_bad_lines` count it."""
        if not self.skip_bad_lines:
            hint = "; correct it, or pass skip_bad_lines=True to leave such lines out."
            raise DataFileError(self.stream.name, message + hint, line=line, column=column)
        self.n_skipped += 1
        if len(self.skipped) < _MAX_REPORTS:
            self.skipped.append(str(DataFileError(self.stream.name, message, line=line, column=column)))

    def batches(self, batch_rows: int | None) -> Iterator[Dataset]:
        """Yield datasets of `batch_rows` rows each, or one of all rows."""
        texts: list[str] = []
        labels: list[list[str]] = []
        labelled = False
        for text, row_labels in self.rows():
            texts.append(text)
            labelled |= row_labels is not None
            labels.append(row_labels or [])
            if len(texts) == batch_rows:
                yield self._finish(texts, labels if labelled else None)
                texts, labels = [], []
        if texts or batch_rows is None:
            yield self._finish(texts, labels if labelled else None)

    def _finish(self, texts: list[str], labels: list[list[str]] | None) -> Dataset:
        y, names = (None, None) if labels is None else RaggedLabels.from_lists(labels).finish(None)
        data = Dataset(
            texts=texts,
            y=y,
            label_names=names,
            n_skipped=self.n_skipped,
            skipped=self.skipped,
            format=self.format,
        )
        self.n_skipped, self.skipped = 0, []
        return data


@dataclass
class FastTextReader(TextReader):
    """Lines of ``__label__a __label__b text``; a line without labels is a text alone."""

    format: str = "fasttext"

    def rows(self) -> Iterator[tuple[str, list[str] | None]]:
        with self.stream.readable_text() as file:
            for number, line in enumerate(file, start=1):
                line = line.rstrip("\r\n")
                if not line:
                    continue
                if (at := bad_utf8(line)) >= 0:
                    self.bad_line("expected UTF-8 text", number, at + 1)
                    continue
                words = line.split()
                labels = [word.removeprefix(LABEL_PREFIX) for word in words if word.startswith(LABEL_PREFIX)]
                if "" in labels:
                    self.bad_line(
                        f"expected a name after {LABEL_PREFIX}", number, line.index(LABEL_PREFIX) + 1
                    )
                    continue
                yield " ".join(word for word in words if not word.startswith(LABEL_PREFIX)), labels or None


@dataclass
class LineReader(TextReader):
    """Lines that are texts, empty ones too, without labels; in batches, a pipe's lines come at once."""

    format: str = "lines"

    def rows(self) -> Iterator[tuple[str, list[str] | None]]:
        for texts in self._chunks():
            yield from ((text, None) for text in texts)

    def batches(self, batch_rows: int | None) -> Iterator[Dataset]:
        if batch_rows is None:
            yield from super().batches(None)
            return
        for texts in self._chunks():
            for start in range(0, len(texts), batch_rows):
                yield self._finish(texts[start : start + batch_rows], None)

    def _chunks(self) -> Iterator[list[str]]:
        """Yield the texts of whole lines, as many as one read gives."""
        rest, number = b"", 0
        if self.stream.peek(3) == BYTE_ORDER_MARK:
            self.stream.read(3)
        more = True
        while more:
            data = self.stream.read(1 << 20)
            more = bool(data)
            *lines, rest = (rest + data).split(b"\n") if more or not rest else (rest, b"")
            texts = []
            for line in lines:
                number += 1
                text = line.removesuffix(b"\r").decode(errors="surrogateescape")
                if (at := bad_utf8(text)) >= 0:
                    self.bad_line("expected UTF-8 text", number, at + 1)
                else:
                    texts.append(text)
            yield texts


@dataclass
class TableReader(TextReader):
    """CSV or TSV.

    Columns are given by name or by position from 0. By default they are found by usual names in the first
    row; else, in a file of two columns, the text is the column with longer values on average. A file of one
    column holds texts."""

    delimiter: str = ","
    text_column: Column | None = None
    label_column: Column | None = None
    label_separator: str | None = None
    header: bool | None = None

    def rows(self) -> Iterator[tuple[str, list[str] | None]]:
        # the limit on the length of a field is one for the whole process; documents may exceed its default
        csv.field_size_limit(max(csv.field_size_limit(), min(sys.maxsize, 2**31 - 1)))
        with self.stream.readable_text() as file:
            records = self._records(csv.reader(file, **self._dialect()))
            head: list[tuple[int, list[str]]] = []
            for record in records:
                head.append(record)
                # rows from a pipe are not kept waiting without need
                if len(head) == (100 if self.text_column is None else 1):
                    break
            if not head:
                return
            text_at, label_at, skip_first = self._columns([fields for _, fields in head])
            width = len(head[0][1])
            first = skip_first
            for line, fields in _chain(head, records):
                if first:
                    first = False
                    continue
                if len(fields) != width:
                    self.bad_line(f"expected {width} columns, got {len(fields)}", line)
                    continue
                text = fields[text_at]
                label = None if label_at is None else fields[label_at]
                if bad_utf8(text) >= 0 or (label is not None and bad_utf8(label) >= 0):
                    self.bad_line(
                        "expected UTF-8 text", line, (text_at if bad_utf8(text) >= 0 else label_at or 0) + 1
                    )
                    continue
                if label is None:
                    yield text, None
                elif self.label_separator:
                    yield text, [name for part in label.split(self.label_separator) if (name := part.strip())]
                elif not label:
                    self.bad_line("expected a label, got an empty field", line, (label_at or 0) + 1)
                else:
                    yield text, [label]

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

    def _columns(self, head: list[list[str]]) -> tuple[int, int | None, bool]:
        names = [name.strip().lower() for name in head[0]]
        by_name = any(isinstance(column, str) for column in (self.text_column, self.label_column))
        # "x" may well be a value
        usual = any(name in names for name in (*TEXT_NAMES, *LABEL_NAMES) if len(name) > 1)
        header = self.header if self.header is not None else (by_name or usual)
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
        return text_at, label_at, header

    def _position(self, column: Column | None, names: list[str], header: bool) -> int | None:
        if column is None:
            return None
        if isinstance(column, int):
            if not 0 <= column < len(names):
                raise DataFileError(
                    self.stream.name,
                    f"there is no column {column}; columns are 0 to {len(names) - 1}.",
                    line=1,
                )
            return column
        if column not in names:
            shown = ", ".join(repr(name) for name in names[:10])
            raise DataFileError(
                self.stream.name, f"there is no column {column!r}; columns are {shown}.", line=1
            )
        return names.index(column)


def _chain(
    head: list[tuple[int, list[str]]], rest: Iterator[tuple[int, list[str]]]
) -> Iterator[tuple[int, list[str]]]:
    yield from head
    yield from rest
