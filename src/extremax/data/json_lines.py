"""Texts with labels in JSON: an object per line, or one array of objects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from extremax.data.dataset import DataFileError
from extremax.data.streams import bad_utf8, encoding_advice
from extremax.data.text_tables import Row, TextReader, split_labels

_HEAD_ROWS = 100  # objects whose fields are looked at
_MAX_ARRAY_BYTES = 1 << 30  # an array is read as a whole


def read_json(reader: TextReader) -> Iterator[Row]:
    """Read objects with a field of text and, if there are labels, a field with a label or a list of labels.

    Fields are given by name, or by position from 0 in the first object. By default they are found by usual
    names. A string in place of an object is a text without a label.
    """
    records = _objects(reader)
    head = list(itertools.islice(records, _HEAD_ROWS if reader.stream.is_file else 1))
    if not head:
        return
    fields = list(dict.fromkeys(name for _, value in head for name in value))
    text_at, label_at = reader.choose_columns(fields, "field")
    if text_at is None:
        shown = ", ".join(repr(name) for name in fields[:10])
        message = "cannot tell which field holds the text; pass text_column and label_column."
        raise DataFileError(reader.stream.name, f"{message} Fields are {shown}.", line=1)
    text = fields[text_at]
    label = None if label_at is None or reader.options.ignore_labels else fields[label_at]
    kept = [fields[i] for i in reader.keep_columns(fields, "field")]
    reader.note = f"JSON: texts from {text!r}, " + (
        "no labels" if label is None else f"labels from {label!r}"
    )
    for line, record in itertools.chain(head, records):
        found = record.get(text)
        if not isinstance(found, str) or bad_utf8(found) >= 0:
            advice = encoding_advice(found) if isinstance(found, str) else ""
            got = f"expected UTF-8 text in {text!r}, got {_shown(found)}"
            reader.bad_lines.add(got, line, advice=advice)
            continue
        labels = None if label is None else _labels(record.get(label), reader.options.label_separator)
        if label is not None and labels is None:
            got = _shown(record.get(label))
            reader.bad_lines.add(f"expected a label or a list of labels in {label!r}, got {got}", line)
            continue
        yield Row(found, labels, tuple(record.get(name) for name in kept))


def _objects(reader: TextReader) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Yield the line, None in an array, and the fields of every object."""
    is_array = reader.stream.head.lstrip().startswith(b"[")
    for line, value in _array(reader) if is_array else _lines(reader):
        if isinstance(value, str):
            value = {"text": value}
        if isinstance(value, dict):
            yield line, value
        else:
            reader.bad_lines.add(f"expected a JSON object, got {_shown(value)}", line)


def _lines(reader: TextReader) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(reader.stream.lines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reader.bad_lines.add(f"expected a JSON object in one line ({_reason(error)})", number)
            continue
        yield number, value


def _array(reader: TextReader) -> Iterator[tuple[None, Any]]:
    name, data = reader.stream.name, reader.stream.file.read(_MAX_ARRAY_BYTES + 1)
    if len(data) > _MAX_ARRAY_BYTES:
        raise DataFileError(
            name, f"a JSON array has at most {_MAX_ARRAY_BYTES:,} bytes; write an object per line."
        )
    try:
        values = json.loads(data.decode(errors="surrogateescape"))
    except (ValueError, RecursionError) as error:
        message = (
            f"expected a JSON array of objects ({_reason(error)}); correct it, or write an object per line."
        )
        raise DataFileError(name, message, line=getattr(error, "lineno", 1)) from None
    yield from ((None, value) for value in values)


def _labels(value: Any, separator: str | None) -> list[str] | None:
    """Return labels as strings; None for what is not a label."""
    if isinstance(value, list):
        labels = [_label(part) for part in value]
        return None if None in labels else labels  # type: ignore[return-value]
    label = _label(value)
    return None if label is None else split_labels(label, separator)


def _label(value: Any) -> str | None:
    if isinstance(value, str):
        return value if value and bad_utf8(value) < 0 else None
    if isinstance(value, bool | int | float) and value == value:
        return json.dumps(value)
    return None


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
