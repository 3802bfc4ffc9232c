"""Texts with labels in JSON: an object per line, or one array of objects."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from extremax.data.dataset import DataFileError
from extremax.data.streams import bad_utf8
from extremax.data.text_tables import LABEL_NAMES, TEXT_NAMES, ColumnReader, Row, name_of_column

_HEAD_ROWS = 100  # objects whose fields are looked at
_READ_CHARACTERS = 1 << 16
_MAX_CHARACTERS = 1 << 26  # of one object of an array
_BETWEEN = re.compile(r"[\s,]*")
_ERRORS = (ValueError, RecursionError)


@dataclass
class JsonReader(ColumnReader):
    """Objects with a field of text and, if there are labels, a field with a label or a list of labels.

    Fields are given by name, or by position from 0 in the first object. By default they are found by usual
    names. A string in place of an object is a text without a label.
    """

    def rows(self) -> Iterator[Row]:
        records = self._objects()
        head = list(itertools.islice(records, _HEAD_ROWS if self.may_look_ahead else 1))
        if not head:
            return
        fields = list(dict.fromkeys(name for _, value in head for name in value))
        text = self._choose(self.text_column, fields, TEXT_NAMES, "text_column")
        label = None
        if not self.ignore_labels:
            label = self._choose(self.label_column, fields, LABEL_NAMES, "label_column", but=text)
        if text is None:
            shown = ", ".join(repr(name) for name in fields[:10])
            message = "cannot tell which field holds the text; pass text_column and label_column."
            raise DataFileError(self.stream.name, f"{message} Fields are {shown}.", line=1)
        kept = self._kept_fields(fields)
        self.note = f"JSON: texts from {text!r}, " + (f"labels from {label!r}" if label else "no labels")
        for line, record in itertools.chain(head, records):
            found = record.get(text)
            if not isinstance(found, str) or bad_utf8(found) >= 0:
                self.bad_line(f"expected UTF-8 text in {text!r}, got {_shown(found)}", line)
                continue
            labels = None if label is None else _labels(record.get(label), self.label_separator)
            if label is not None and labels is None:
                self.bad_line(
                    f"expected a label or a list of labels in {label!r}, got {_shown(record.get(label))}",
                    line,
                )
                continue
            yield Row(found, labels, tuple(record.get(name) for name in kept))

    def _choose(
        self,
        column: str | int | None,
        fields: list[str],
        usual: tuple[str, ...],
        option: str,
        but: str | None = None,
    ) -> str | None:
        if column is None:
            by_name = {name.strip().lower(): name for name in reversed(fields) if name != but}
            return next((by_name[name] for name in usual if name in by_name), None)
        return fields[name_of_column(self.stream.name, column, fields, "field")]

    def _kept_fields(self, fields: list[str]) -> list[str]:
        chosen = self.wanted_columns(fields, "field")
        self.kept_names = [fields[i] for i in chosen]
        return self.kept_names

    def _objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield line and fields of every object."""
        with self.stream.readable_text() as file:
            first = file.read(1)
            while first.isspace():
                first = file.read(1)
            values = self._array(file) if first == "[" else self._lines(file, first)
            for line, value in values:
                if isinstance(value, str):
                    value = {"text": value}
                if isinstance(value, dict):
                    yield line, value
                else:
                    self.bad_line(f"expected a JSON object, got {_shown(value)}", line)

    def _lines(self, file: Any, first: str) -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(file, start=1):
            text = first + line if number == 1 else line
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except _ERRORS as error:
                self.bad_line(f"expected a JSON object in one line ({_reason(error)})", number)
                continue
            yield number, value

    def _array(self, file: Any) -> Iterator[tuple[int, Any]]:
        decoder, text, line, size = json.JSONDecoder(), "", 1, _READ_CHARACTERS
        while True:
            start = _end_of_space(text)
            line += text.count("\n", 0, start)
            text = text[start:]
            if text.startswith("]"):
                return
            try:
                value, end = decoder.raw_decode(text)
            except _ERRORS as error:
                more = file.read(size) if len(text) < _MAX_CHARACTERS else ""
                if not more:
                    message = f"expected a JSON array of objects ({_reason(error)}); correct it, or write one"
                    raise DataFileError(self.stream.name, f"{message} object per line.", line=line) from None
                text, size = text + more, 2 * size
                continue
            yield line, value
            line += text.count("\n", 0, end)
            text, size = text[end:], _READ_CHARACTERS


def _end_of_space(text: str) -> int:
    found = _BETWEEN.match(text)
    return found.end() if found else 0


def _labels(value: Any, separator: str | None) -> list[str] | None:
    """Return labels as strings; None for what is no label."""
    if isinstance(value, list):
        parts = [_label(part) for part in value]
        return None if None in parts else [part for part in parts if part is not None]
    label = _label(value)
    if label is None:
        return None
    if separator:
        return [name for part in label.split(separator) if (name := part.strip())]
    return [label]


def _label(value: Any) -> str | None:
    if isinstance(value, str):
        return value if value and bad_utf8(value) < 0 else None
    if isinstance(value, bool | int | float) and value == value:
        return json.dumps(value)
    return None


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
