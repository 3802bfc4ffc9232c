"""Texts with labels: plain lines, fastText's ``__label__`` lines, CSV and TSV."""

from __future__ import annotations

import csv
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from extremax.data.dataset import BadLines, DataFileError, Dataset, make_labels, string_array
from extremax.data.options import Column, Kept, ReadOptions
from extremax.data.streams import MAX_LINE_BYTES, ByteStream, bad_utf8, encoding_advice

TEXT_NAMES = ("text", "description", "sentence", "title", "content", "body", "document", "query", "name", "x")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "code", "y")
LABEL_PREFIX = "__label__"
_HEAD_ROWS = 1000  # of a file, from which columns and a header are recognised
_HEAD_ROWS_PIPED = 100
_LINE_BYTES = 1 << 20  # of plain lines, read at a time
_NAME = re.compile(r"[^\W\d]\w*(?:[ _./,(-]{0,2}\w+\)?){0,2}")


class Row(NamedTuple):
    """A text, its labels (None in a file without labels), and the values of the columns to keep."""

    text: str
    labels: list[str] | None
    kept: tuple[Any, ...] = ()


@dataclass
class TextReader:
    """A reader of texts, with its notes and bad lines so far."""

    stream: ByteStream
    format: str
    options: ReadOptions = field(default_factory=ReadOptions)
    note: str = ""  # the columns of texts and labels, for users
    kept_names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bad_lines = BadLines(self.stream.name, skip=self.options.skip_bad_lines)

    def batches(self, rows: Iterable[Row | None], batch_rows: int | None) -> Iterator[Dataset]:
        """Yield datasets of `batch_rows` rows each, or one of all rows.

        None among the rows means that a pipe has no more for now: it ends a batch.
        """
        batch: list[Row] = []
        numbers: list[int] = []
        n_good = 0
        for row in rows:
            if row is not None:
                batch.append(row)
                numbers.append(n_good + self.bad_lines.n_seen)
                n_good += 1
            if len(batch) == batch_rows or (row is None and batch and batch_rows):
                yield self._dataset(batch, numbers)
                batch, numbers = [], []
        if batch or batch_rows is None:
            yield self._dataset(batch, numbers)

    def _dataset(self, rows: list[Row], numbers: list[int]) -> Dataset:
        labels = [row.labels or [] for row in rows]
        flat = string_array([label for of_row in labels for label in of_row])
        y, names = make_labels(flat, [len(of_row) for of_row in labels])
        return Dataset(
            texts=[row.text for row in rows],
            y=y,
            label_names=names,
            format=self.format,
            row_numbers=None if self.options.keep is None else numbers,
            columns={name: [row.kept[i] for row in rows] for i, name in enumerate(self.kept_names)},
            note=self.note,
            **self.bad_lines.report(),
        )

    def add_not_utf8(self, text: str, line: int | None, column: int | None = None) -> None:
        """Add a line whose text is not UTF-8 to the bad ones."""
        self.bad_lines.add("expected UTF-8 text", line, column, advice=encoding_advice(text))

    def choose_columns(self, names: Sequence[str], what: str = "column") -> tuple[int | None, int | None]:
        """Return the positions of text and label: those asked for, else those with usual names."""
        plain = [name.strip().lower() for name in names]

        def find(column: Column | None, usual: tuple[str, ...], other: int | None) -> int | None:
            if column is not None:
                return find_column(self.stream.name, column, names, what)
            places = (plain.index(name) for name in usual if name in plain)
            return next((place for place in places if place != other), None)

        asked = None if self.options.label_column is None else find(self.options.label_column, (), None)
        text = find(self.options.text_column, TEXT_NAMES, asked)
        return text, find(self.options.label_column, LABEL_NAMES, text)

    def keep_columns(self, names: Sequence[str], what: str = "column") -> list[int]:
        """Return the positions of the columns to keep, and note their names."""
        places = find_columns(self.stream.name, self.options.keep, names, what)
        self.kept_names = [names[i].strip() for i in places]
        return places


def find_columns(path: str, keep: Kept, names: Sequence[str], what: str = "column") -> list[int]:
    """Return the positions of the columns to keep."""
    if keep == "all":
        return list(range(len(names)))
    return [find_column(path, column, names, what) for column in keep or ()]


def find_column(path: str, column: Column, names: Sequence[str], what: str = "column") -> int:
    """Return the position of a column given by name or position; raise if there is none."""
    plain = [name.strip().lower() for name in names]
    if str(column) in names:
        return list(names).index(str(column))
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    if isinstance(column, str) and column.strip().lower() in plain:
        return plain.index(column.strip().lower())
    shown = ", ".join(repr(name) for name in names[:10])
    raise DataFileError(path, f"there is no {what} {column!r}; {what}s are {shown}.", line=1)


def split_labels(label: str, separator: str | None) -> list[str]:
    """Return the labels of one field."""
    return [name for part in label.split(separator) if (name := part.strip())] if separator else [label]


def read_lines(reader: TextReader) -> Iterator[Row | None]:
    """Read lines that are texts without labels, empty ones too."""
    n_kept = len(reader.keep_columns(["text"]))
    number = 0
    for chunk in reader.stream.chunks(_LINE_BYTES):
        for line in chunk.removesuffix(b"\n").split(b"\n"):
            number += 1
            text = line.removesuffix(b"\r").decode(errors="surrogateescape")
            if (at := bad_utf8(text)) >= 0:
                reader.add_not_utf8(text, number, at + 1)
            else:
                yield Row(text, None, (text,) * n_kept)
        yield None


def read_fasttext(reader: TextReader) -> Iterator[Row]:
    """Read lines of ``__label__a __label__b text``; a line without labels is a text."""
    n_kept = len(reader.keep_columns(["text"]))
    for number, line in enumerate(reader.stream.lines(), start=1):
        line = line.rstrip("\r\n")
        if not line:
            continue
        if (at := bad_utf8(line)) >= 0:
            reader.add_not_utf8(line, number, at + 1)
            continue
        words = line.split()
        labels = [word.removeprefix(LABEL_PREFIX) for word in words if word.startswith(LABEL_PREFIX)]
        if "" in labels:
            place = line.index(LABEL_PREFIX)
            reader.bad_lines.add(f"expected a name after {LABEL_PREFIX}", number, place + 1)
            continue
        text = " ".join(word for word in words if not word.startswith(LABEL_PREFIX))
        yield Row(text, labels or None, (text,) * n_kept)


def read_table(reader: TextReader) -> Iterator[Row]:
    """Read CSV or TSV.

    Columns are given by name or by position from 0. By default they are found by usual names in the first
    row; else, in a file of two columns, the text is the one with longer values on average. A file of one
    column holds texts.
    """
    # one limit on the length of a field serves the whole process; documents may exceed its default
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    delimiter = reader.options.delimiter or ","
    # in tab-separated files a quote is a character like others, except in those that Excel writes as UTF-16
    is_plain = delimiter == "\t" and not reader.stream.is_utf16
    dialect: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if is_plain else {"strict": True}
    records = _records(reader, csv.reader(reader.stream.lines(), delimiter=delimiter, **dialect))
    n_head = _HEAD_ROWS if reader.stream.is_file else _HEAD_ROWS_PIPED
    if not reader.stream.is_file and reader.options.text_column is not None:
        n_head = 1  # a pipe is not kept waiting
    head = list(itertools.islice(records, n_head))
    if not head:
        return
    text_at, label_at, kept, header = _choose(reader, [fields for _, fields in head])
    used, width = [i for i in (text_at, label_at, *kept) if i is not None], len(head[0][1])
    for line, fields in itertools.chain(head[header:], records):
        if len(fields) != width:
            reader.bad_lines.add(f"expected {width} columns, got {len(fields)}", line)
            continue
        bad = next((i for i in used if bad_utf8(fields[i]) >= 0), None)
        if bad is not None:
            reader.add_not_utf8(fields[bad], line, bad + 1)
            continue
        labels = None
        if label_at is not None:
            if not any(fields):
                continue  # an empty row of a spreadsheet
            if not fields[label_at] and not reader.options.label_separator:
                reader.bad_lines.add("expected a label, got an empty field", line, label_at + 1)
                continue
            labels = split_labels(fields[label_at], reader.options.label_separator)
        yield Row(fields[text_at], labels, tuple(fields[i] for i in kept))


def _records(reader: TextReader, rows: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of every row."""
    while True:
        line = rows.line_num + 1
        try:
            fields = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            # the rest of the file was read as one field
            if "unexpected end of data" in str(error):
                message = "a quote that opens in this row is never closed; double or remove it."
                raise DataFileError(reader.stream.name, message, line=line) from None
            reader.bad_lines.add(f"expected a row of quoted or plain fields, got: {error}", line)
            continue
        if fields:
            yield line, fields


def _choose(reader: TextReader, head: list[list[str]]) -> tuple[int, int | None, list[int], bool]:
    """Return the positions of text, label and kept columns, and whether the first row is a header."""
    # a column given by name asks for a header
    by_name = any(
        isinstance(column, str) for column in (reader.options.text_column, reader.options.label_column)
    )
    header = (
        reader.options.header if reader.options.header is not None else (by_name or looks_like_header(head))
    )
    width = len(head[0])
    names = head[0] if header else [str(i) for i in range(width)]
    bad = next((i for i in range(width) if bad_utf8(head[0][i]) >= 0), None)
    if header and bad is not None:
        reader.add_not_utf8(names[bad], 1, bad + 1)
    text, label = reader.choose_columns(names)
    if width == 1:
        text = 0
    if width == 2 and text is None and label is None:
        length = [sum(len(fields[i]) for fields in head[header:] if len(fields) == 2) for i in (0, 1)]
        text = 0 if length[0] >= length[1] else 1
    if width == 2:
        text = 1 - label if text is None and label is not None else text
        label = 1 - text if label is None and text is not None else label
    shown = [repr(name.strip()) if header else f"column {name}" for name in names]
    if text is None:
        message = "cannot tell which column holds the text; pass text_column and label_column. Columns are"
        of_first = shown if header else [f"{i} ({value[:20]!r})" for i, value in enumerate(head[0])]
        raise DataFileError(reader.stream.name, f"{message} {', '.join(of_first[:10])}.", line=1)
    if header:
        _warn_of_duplicates(reader.stream.name, [name.strip().lower() for name in names])
    kept = reader.keep_columns(names if header else [f"column_{i}" for i in range(width)])
    label = None if reader.options.ignore_labels else label
    reader.note = (
        f"{reader.format.upper()} {'with' if header else 'without'} a header: texts from {shown[text]}, "
    )
    reader.note += "no labels" if label is None else f"labels from {shown[label]}"
    others = shown[:text] + shown[text + 1 :]
    if label is None and others and not reader.options.ignore_labels:
        reader.note += f" among {', '.join(others[:10])}"
    return text, label, kept, header


def _warn_of_duplicates(path: str, names: list[str]) -> None:
    for name in dict.fromkeys(names):
        at = [str(i) for i, other in enumerate(names) if other == name]
        if len(at) > 1:
            warnings.warn(
                f"{path}: columns {', '.join(at)} are all named {name!r}; the name means the first of them."
                " Give another by its number.",
                stacklevel=2,
            )


def looks_like_header(head: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first of some rows holds the names of the columns.

    It does if it has a usual name, such as "text" or "label", that is not a value of its column further down.
    Other cells are names if they are short, differ from each other, occur nowhere else in their columns, and
    look unlike the values below: no digits over numbers or codes; or few words over longer texts, beside a
    column whose values repeat.

    Examples
    --------
    >>> looks_like_header([["ticket", "queue"], ["the printer is broken", "7"], ["no invoice", "12"]])
    True
    >>> looks_like_header([["lost key", "access"], ["the printer is broken", "it"], ["no key", "access"]])
    False
    """
    first = [cell.strip() for cell in head[0]]
    below = [[row[i].strip() for row in head[1:] if len(row) == len(first)] for i in range(len(first))]
    columns = list(zip(first, below, strict=True))
    usual = {name for name in (*TEXT_NAMES, *LABEL_NAMES) if len(name) > 1}  # "x" may well be a value
    if any(cell.lower() in usual and cell not in values for cell, values in columns):
        return True
    if len(first) < 2 or not below[0] or len({cell.lower() for cell in first}) < len(first):
        return False
    if any(cell in values or len(cell) > 30 or not _NAME.fullmatch(cell) for cell, values in columns):
        return False
    if any(not _has_digit(cell) and _most(map(_has_digit, values)) for cell, values in columns):
        return True
    is_short = [_most(len(value.split()) > len(cell.split()) for value in values) for cell, values in columns]
    return any(is_short) and any(len(set(values)) <= len(values) / 2 for values in below)


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _most(conditions: Iterable[bool]) -> bool:
    found = list(conditions)
    return 10 * sum(found) >= 9 * len(found)
