"""Files of class texts: a label and its names, one row or JSON object for each."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from extremax.data.dataset import DataFileError
from extremax.data.streams import ByteStream, Source, bad_utf8, encoding_advice, open_stream
from extremax.data.text_tables import LABEL_NAMES, looks_like_header

_IDENTIFIERS = (*LABEL_NAMES, "id", "uri", "notation")
_HEAD_ROWS = 1000  # that tell whether there is a header


def read_class_texts(path: Source, *, encoding: str | None = None) -> list[dict[str, list[str]]]:
    """Read texts by label from CSV, TSV or JSON lines, compressed or not: a dict for each column or field.

    The first column of a table has the label, unless a header calls another one ``label`` or so; all other
    columns have texts, and a label may have several rows. JSON objects have a field for the label, and texts
    or lists of texts in all others, such as ``prefLabel`` and ``altLabel`` of SKOS. The result is what
    `TextClassifier.fit` takes as `class_texts`: each column or field is a kind of text.

    Examples
    --------
    >>> import io
    >>> read_class_texts(io.BytesIO(b"N20;kidney stones;renal calculus\\nH93;ringing in the ears;\\n"))
    [{'N20': ['kidney stones'], 'H93': ['ringing in the ears']}, {'N20': ['renal calculus']}]
    >>> read_class_texts(io.BytesIO(b'{"id": "p1", "prefLabel": "cats", "altLabel": ["felines"]}'))
    [{'p1': ['cats']}, {'p1': ['felines']}]
    """
    found: dict[str, dict[str, list[str]]] = {}
    with open_stream(path, encoding=encoding) as stream:
        head = stream.head.lstrip()
        if head.startswith(b"["):
            raise DataFileError(
                stream.name, "is one JSON array; write each of its objects on a line of its own."
            )
        for line, label, kinds in _objects(stream) if head.startswith(b"{") else _rows(stream):
            if not label.strip():
                raise DataFileError(stream.name, "expected a label before its texts, got none.", line=line)
            for kind, texts in kinds.items():
                bad = next((text for text in (label, *texts) if bad_utf8(text) >= 0), None)
                if bad is not None:
                    advice = encoding_advice(bad) or "it has half a character"
                    raise DataFileError(stream.name, f"expected UTF-8 text; {advice}.", line=line)
                own = [text for text in texts if text.strip()]
                if own:
                    found.setdefault(kind, {}).setdefault(label, []).extend(own)
        if not found:
            raise DataFileError(stream.name, "has no class text; give a label and its texts in each row.")
    return list(found.values())


def _rows(stream: ByteStream) -> Iterator[tuple[int, str, dict[str, list[str]]]]:
    """Yield line, label and texts by column of the rows of a table."""
    first = re.sub(r'"[^"]*"', "", stream.head.decode(errors="replace").lstrip().split("\n", 1)[0])
    # the separator is what ends the first field, which is a label, or the name of a column
    delimiter = "\t" if "\t" in first else next((c for c in first if c in ",;|"), ",")
    plain: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {"strict": True}
    reader = csv.reader(stream.lines(), delimiter=delimiter, **plain)
    rows = ((reader.line_num, fields) for fields in _whole_rows(reader, stream.name) if fields)
    head = list(itertools.islice(rows, _HEAD_ROWS))
    names = [field.strip().lower() for field in head[0][1]] if head else []
    usual = [i for i, name in enumerate(names) if name in _IDENTIFIERS]
    at = usual[0] if usual else 0
    has_header = bool(usual) or (len(head) > 1 and looks_like_header([fields for _, fields in head]))
    for line, fields in itertools.chain(head[has_header:], rows):
        if len(fields) <= max(at, 1):
            raise DataFileError(
                stream.name, f"expected a label and at least one text, got {fields!r}.", line=line
            )
        yield line, fields[at].strip(), {str(i): [text] for i, text in enumerate(fields) if i != at}


def _whole_rows(rows: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise DataFileError(
            name, f"expected fields, plain or in quotes: {error}.", line=rows.line_num
        ) from None


def _objects(stream: ByteStream) -> Iterator[tuple[int, str, dict[str, list[str]]]]:
    """Yield line, label and texts by field of JSON objects."""
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
        parts = {name: part if isinstance(part, list) else [part] for name, part in value.items()}
        label = str(parts.pop(names[0])[0])
        texts = {name: [text for text in part if isinstance(text, str)] for name, part in parts.items()}
        yield number, label, texts
