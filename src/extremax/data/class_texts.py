"""Files of class texts: a label and its names, one row or JSON object for each."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

from extremax.data.dataset import DataFileError
from extremax.data.streams import ByteStream, Source, bad_utf8, open_stream
from extremax.data.text_tables import LABEL_NAMES

_IDENTIFIERS = (*LABEL_NAMES, "id", "uri", "notation")


def read_class_texts(path: Source) -> dict[str, list[str]]:
    """Read texts by label from CSV, TSV or JSON lines, compressed or not.

    The first column of a table has the label, unless a header calls another one ``label`` or so; all other
    columns have texts, and a label may have several rows. JSON objects have a field for the label, and texts
    or lists of texts in all others, such as ``prefLabel`` and ``altLabel`` of SKOS.

    Examples
    --------
    >>> import io
    >>> read_class_texts(io.BytesIO(b"N20,kidney stones,renal calculus\\nH93,ringing in the ears,\\n"))
    {'N20': ['kidney stones', 'renal calculus'], 'H93': ['ringing in the ears']}
    >>> read_class_texts(io.BytesIO(b'{"id": "p1", "prefLabel": "cats", "altLabel": ["felines"]}'))
    {'p1': ['cats', 'felines']}
    """
    found: dict[str, list[str]] = {}
    with open_stream(path) as stream:
        head = stream.head.lstrip()
        if head.startswith(b"["):
            raise DataFileError(
                stream.name, "is one JSON array; write each of its objects on a line of its own."
            )
        for line, label, texts in _objects(stream) if head.startswith(b"{") else _rows(stream):
            if any(bad_utf8(text) >= 0 for text in (label, *texts)):
                raise DataFileError(stream.name, "expected UTF-8 text; save the file as UTF-8.", line=line)
            found.setdefault(label, []).extend(text for text in texts if text.strip())
        if not any(found.values()):
            raise DataFileError(stream.name, "has no class text; give a label and its texts in each row.")
    return found


def _rows(stream: ByteStream) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line, label and texts of the rows of a table."""
    has_tabs = b"\t" in stream.head.split(b"\n", 1)[0]
    lines = stream.lines()
    plain: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    rows = csv.reader(lines, **(plain if has_tabs else {"strict": True}))
    at = 0
    for number, fields in enumerate(_whole_rows(rows, stream.name)):
        names = [field.strip().lower() for field in fields]
        usual = [i for i, name in enumerate(names) if name in _IDENTIFIERS]
        if number == 0 and usual:
            at = usual[0]
        elif fields:
            if len(fields) <= max(at, 1):
                message = f"expected a label and at least one text, got {fields!r}."
                raise DataFileError(stream.name, message, line=rows.line_num)
            yield rows.line_num, fields[at].strip(), fields[:at] + fields[at + 1 :]


def _whole_rows(rows: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise DataFileError(
            name, f"expected fields, plain or in quotes: {error}.", line=rows.line_num
        ) from None


def _objects(stream: ByteStream) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line, label and texts of JSON objects."""
    for number, line in enumerate(stream.lines(), start=1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        names = [] if not isinstance(value, dict) else [n for n in value if n.lower() in _IDENTIFIERS]
        if not names or not isinstance(value[names[0]], str | int):
            message = "expected a JSON object with a field label, id or uri, and fields of texts."
            raise DataFileError(stream.name, message, line=number)
        parts = (value[name] for name in value if name != names[0])
        texts = [text for part in parts for text in (part if isinstance(part, list) else [part])]
        yield number, str(value[names[0]]), [text for text in texts if isinstance(text, str)]
