"""The analysis of a model as one JSON document, which the model page shows.

A document has the tables, shortened for a page, and held-out rows by class. A checksum of the labels keeps a
server from showing it beside another model. Files are checked when they are read, as they may come from
elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from numpy.typing import NDArray

from extremax.runtime.atomic_files import write_text

if TYPE_CHECKING:
    from extremax.report.model_analysis import Analysis
    from extremax.report.tables import Table

FORMAT, FORMAT_VERSION = "extremax analysis", 2
SHOWN = {"figures": 8, "deciles": 64, "reliability": 128, "confusions": 100, "merge": 50, "suspects": 100}
MAX_TEXT, MAX_LABEL = 400, 200  # characters of texts and of labels that are shown
_MAX_BYTES = 1 << 28
_EXAMPLES, _MAX_EXAMPLE = 5, 80  # texts to try, and characters of each

Document = dict[str, Any]


def make_document(
    clf: Any,
    analysis: Analysis | None,
    *,
    examples: Sequence[str] = (),
) -> Document:
    """Return the document of a classifier; without an analysis, one without tables.

    Some of the `examples`, texts, are offered on the page of a server: short ones.
    """
    document: Document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": describe_model(clf),
        "held_out": None,
        "tables": {},
        "examples": [text for text in dict.fromkeys(examples) if 0 < len(text) <= _MAX_EXAMPLE][:_EXAMPLES],
    }
    if analysis is None:
        return document
    classes = analysis.tables["classes"]
    document["held_out"] = {
        "n_rows": analysis.n_samples,
        "n_pairs": analysis.n_pairs,
        "n_left_out": analysis.n_left_out,
        "n_unknown": analysis.n_unknown,
        "support": classes["n_held_out"].tolist(),
        "right": classes["n_right"].tolist(),
        "confusions": [part.tolist() for part in analysis.pairs],
    }
    describe = describer(clf)
    document["tables"] = {
        name: {
            "note": analysis.tables[name].note,
            "n": analysis.tables[name].n_rows,
            "rows": [_shown(record, describe) for record in analysis.tables[name].records(limit)],
        }
        for name, limit in SHOWN.items()
    }
    _add_examples(document["tables"]["confusions"]["rows"], analysis.tables["examples"], analysis)
    return document


def _shown(record: dict[str, Any], describe: Any) -> dict[str, Any]:
    """Return a line of a table with short texts, labels as strings, and their descriptions."""
    shown: dict[str, Any] = {}
    for name, value in record.items():
        if name in ("label", "predicted", "other"):
            shown[name] = cut(str(value), MAX_LABEL)
            if (text := describe(value)) is not None:
                shown[f"{name}_description"] = text
        else:
            shown[name] = cut(value, MAX_TEXT) if isinstance(value, str) else value
    return shown


def _add_examples(rows: list[dict[str, Any]], examples: Table, analysis: Analysis) -> None:
    """Attach to each confusion its rows; both tables are in the same order."""
    listed = iter(examples.records())
    for i, row in enumerate(rows):
        n = min(int(analysis.pairs[2][i]), analysis.config.n_examples)
        row["examples"] = [
            {
                name: cut(value, MAX_TEXT) if isinstance(value, str) else value
                for name, value in next(listed).items()
                if name in ("row", "text", "probability", "predicted_probability")
            }
            for _ in range(n if i < analysis.config.max_pairs else 0)
        ]


def describe_model(clf: Any) -> dict[str, Any]:
    """Return the facts about a model for a page, and the checksum of its labels."""
    model = clf.model_
    return {
        "n_classes": model.n_classes,
        "n_features": model.n_features,
        "n_samples": model.classes.n_samples or None,
        "input": "texts" if clf.takes_texts else "vectors",
        "objective": model.solver,
        "labels_checksum": labels_checksum(clf.classes_),
    }


def labels_checksum(classes: NDArray[Any]) -> str:
    """Return a checksum of the labels in their order."""
    digest = sha256()
    for label in classes.tolist():
        coded = str(label).encode(errors="replace")
        digest.update(len(coded).to_bytes(8, "little"))
        digest.update(coded)
    return digest.hexdigest()[:32]


def describer(clf: Any) -> Any:
    """Return a function from a label to the text on it, or to None."""
    descriptions = clf.model_.classes.descriptions

    def describe(label: Any) -> str | None:
        if descriptions is None:
            return None
        return cut(descriptions.text(int(clf.label_ids([label])[0])), MAX_TEXT) or None

    return describe


def cut(text: str, length: int) -> str:
    """Return a text shortened to at most `length` characters, with an ellipsis at the end."""
    return text if len(text) <= length else text[: length - 1] + "…"


def save_document(document: Document, path: str | os.PathLike[str]) -> None:
    """Write a document as a JSON file, completely or not at all."""
    write_text(Path(path), json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def beside(model_folder: str | os.PathLike[str]) -> Path:
    """Return where a server looks for the analysis of a model folder: next to it."""
    folder = Path(os.path.abspath(model_folder))
    return folder.with_name(f"{folder.name}.analysis.json")


_Counts = list[Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]


class _HeldOut(msgspec.Struct):
    support: _Counts
    right: _Counts
    n_rows: int
    n_pairs: int
    n_left_out: int
    n_unknown: int
    confusions: tuple[_Counts, _Counts, _Counts] = ([], [], [])  # not in version 1


class _TablePart(msgspec.Struct):
    note: str
    rows: list[dict[str, Any]]


class _ModelPart(msgspec.Struct):
    n_classes: Annotated[int, msgspec.Meta(ge=1)]
    labels_checksum: str


class _Schema(msgspec.Struct):
    """What a document must hold; `_check` looks at how its parts fit together."""

    format: Literal["extremax analysis"]
    version: Literal[1, 2]
    model: _ModelPart
    held_out: _HeldOut | None
    tables: dict[Literal["figures", "deciles", "reliability", "confusions", "merge", "suspects"], _TablePart]
    examples: list[str] = []


def load_analysis(path: str | os.PathLike[str]) -> Document:
    """Read a document that `extremax report --out FILE.json` wrote, and check all of it.

    Raises
    ------
    ValueError
        If the file is not an analysis, is damaged, or was written by a newer version.
    """
    file = Path(path)
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes; an analysis has at most {_MAX_BYTES:,}.")
    try:
        found: Document = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        _check(msgspec.convert(found, _Schema))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not an analysis: {error}; write one with extremax report.") from None
    return found


def _check(found: _Schema) -> None:
    """Raise for a document whose parts do not fit together."""
    n_classes, held_out = found.model.n_classes, found.held_out
    if held_out is not None:
        label, predicted, n = held_out.confusions
        if not len(held_out.support) == len(held_out.right) == n_classes:
            raise ValueError("its counts of held-out rows are not one for each class")
        if not len(label) == len(predicted) == len(n) or max([*label, *predicted], default=0) >= n_classes:
            raise ValueError("its confusions are not of classes of the model")
    if any(len(table.rows) > SHOWN[name] for name, table in found.tables.items()):
        raise ValueError("its tables have more lines than a page shows")
