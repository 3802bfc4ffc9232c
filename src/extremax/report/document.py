"""The analysis of a model as one JSON document: what the model page shows, and files of it.

A document has the tables, cut to what a page can show, the label hierarchy, and held-out rows by class.  It
knows the labels of its model by a checksum, so that a server does not show it beside another one.  A file of
it is checked like a model folder: it may come from elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.report.hierarchy import HierarchyConfig, LabelHierarchy, hierarchy_of
from extremax.report.model_analysis import Analysis
from extremax.report.names import name_nodes
from extremax.report.tables import Table
from extremax.runtime.atomic_files import write_text
from extremax.types import Int64

FORMAT, FORMAT_VERSION = "extremax analysis", 1
SHOWN = {"figures": 8, "deciles": 64, "reliability": 128, "confusions": 100, "merge": 50, "suspects": 100}
MAX_TEXT, MAX_LABEL = 400, 200  # characters of texts and of labels that are shown
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 64

Document = dict[str, Any]


def make_document(clf: Any, analysis: Analysis | None, config: HierarchyConfig | None = None) -> Document:
    """Return the document of a classifier; without an analysis, one with the tree alone."""
    tree = hierarchy_of(clf.model_, config)
    document: Document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": describe_model(clf),
        "held_out": None,
        "tables": {},
        "tree": {
            "source": tree.source,
            "order": tree.order.tolist(),
            "start": tree.start.tolist(),
            "stop": tree.stop.tolist(),
            "parent": tree.parent.tolist(),
            "names": name_nodes(clf, tree),
        },
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
        "inside": _inside(tree, analysis).tolist(),
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


def _inside(tree: LabelHierarchy, analysis: Analysis) -> Int64:
    """Return the held-out rows of each node whose first prediction is a class of the node."""
    right = tree.sums(analysis.tables["classes"]["n_right"])
    return np.asarray(right + tree.pairs_inside(*analysis.pairs), np.int64)


def _shown(record: dict[str, Any], describe: Any) -> dict[str, Any]:
    """Return a line of a table with short texts, labels as strings, and what these stand for."""
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
    """Put the rows of each confusion beside it; both tables are in the same order."""
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
    """Return what a page says about a model, and the checksum of its labels."""
    model = clf.model_
    return {
        "n_classes": model.n_classes,
        "n_features": model.n_features,
        "n_samples": model.classes.n_samples or None,
        "input": "texts" if hasattr(clf, "features_") else "vectors",
        "objective": model.objective,
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
    index = getattr(clf, "classifier_", clf)._label_id

    def describe(label: Any) -> str | None:
        return None if descriptions is None else cut(descriptions.text(index(label)), MAX_TEXT) or None

    return describe


def cut(text: str, length: int) -> str:
    """Return a text with at most so many characters, of which the last then says that some are missing."""
    return text if len(text) <= length else text[: length - 1] + "…"


def save_document(document: Document, path: str | os.PathLike[str]) -> None:
    """Write a document as a JSON file, completely or not at all."""
    write_text(Path(path), json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def beside(model_folder: str | os.PathLike[str]) -> Path:
    """Return where a server looks for the analysis of a model folder: next to it."""
    folder = Path(os.path.abspath(model_folder))
    return folder.with_name(f"{folder.name}.analysis.json")


def load_analysis(path: str | os.PathLike[str]) -> Document:
    """Read a document that `extremax report --out FILE.json` wrote, and check all of it.

    Raises
    ------
    ValueError
        If the file is none, is damaged, or was written by a newer version.
    """
    file = Path(path)
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size:,} bytes; an analysis has at most {_MAX_BYTES:,}.")
    try:
        found = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{file} is no analysis: it is not JSON ({error}); write one with extremax report."
        ) from None
    try:
        check_document(found)
    except _Unsound as error:
        raise ValueError(
            f"{file} is no analysis that can be shown: {error}; write it again with extremax report."
        ) from None
    return dict(found)


class _Unsound(Exception):
    """A part of a document is not what it must be."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}")


def check_document(found: Any) -> None:
    """Raise for a document whose parts do not fit together."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _Unsound(f"its format is not {FORMAT!r}")
    if found.get("version") != FORMAT_VERSION:
        raise _Unsound(f"its version is {found.get('version')!r}, and this program reads {FORMAT_VERSION}")
    model, held_out = _mapping(found, "model"), found.get("held_out")
    n_classes = model.get("n_classes")
    if type(n_classes) is not int or n_classes < 1:
        raise _Unsound("it does not say how many classes the model has")
    tree = restore_tree(found)
    if tree.n_classes != n_classes:
        raise _Unsound(f"its tree has {tree.n_classes:,} classes, the model {n_classes:,}")
    names = _mapping(found, "tree").get("names")
    if not (isinstance(names, list) and len(names) == tree.n_nodes and all(type(n) is str for n in names)):
        raise _Unsound("nodes of its tree have no names")
    if held_out is not None:
        if not isinstance(held_out, dict):
            raise _Unsound("its held-out rows are no mapping")
        for name, size in (("support", n_classes), ("right", n_classes), ("inside", tree.n_nodes)):
            _integers(held_out, name, size, 0, 2**53)
    for name, table in _mapping(found, "tables").items():
        rows = table.get("rows") if isinstance(table, dict) else None
        if name not in SHOWN or not isinstance(rows, list) or len(rows) > SHOWN[name]:
            raise _Unsound(f"its table {str(name)[:40]!r} is not one of those that a page shows")
        if not all(isinstance(row, dict) for row in rows) or type(table.get("note")) is not str:
            raise _Unsound(f"lines of its table {name!r} are no mappings")


def restore_tree(document: Mapping[str, Any]) -> LabelHierarchy:
    """Return the hierarchy of a document, checked: children divide the range of their parent."""
    part = _mapping(document, "tree")
    order = _integers(part, "order", None, 0, 2**31)
    n_classes = len(order)
    if n_classes == 0 or not np.array_equal(np.sort(order), np.arange(n_classes)):
        raise _Unsound("its tree does not hold every class once")
    start = _integers(part, "start", None, 0, n_classes)
    stop = _integers(part, "stop", len(start), 1, n_classes + 1)
    parent = _integers(part, "parent", len(start), -1, len(start))
    tree = LabelHierarchy(
        order.astype(np.int32),
        start.astype(np.int32),
        stop.astype(np.int32),
        parent.astype(np.int32),
        "label tree" if part.get("source") == "label tree" else "class vectors",
    )
    _check_nodes(tree)
    return tree


def _check_nodes(tree: LabelHierarchy) -> None:
    nodes = np.arange(tree.n_nodes)
    is_root = tree.parent < 0
    if (
        tree.n_nodes == 0
        or not (is_root == (nodes == 0)).all()
        or (tree.parent >= np.maximum(nodes, 1)).any()
    ):
        raise _Unsound("nodes of its tree do not follow their parents")
    if (tree.start[0], tree.stop[0]) != (0, tree.n_classes) or (tree.start >= tree.stop).any():
        raise _Unsound("the root of its tree does not hold all classes")
    below = np.lexsort((tree.start, tree.parent))[1:]
    above = tree.parent[below]
    first = np.ones(len(below), bool)
    first[1:] = above[1:] != above[:-1]
    last = np.ones(len(below), bool)
    last[:-1] = first[1:]
    begins = np.where(first, tree.start[above], np.concatenate([[0], tree.stop[below[:-1]]])[: len(below)])
    if (tree.start[below] != begins).any() or (tree.stop[below][last] != tree.stop[above][last]).any():
        raise _Unsound("children in its tree do not divide the classes of their parent")
    if int(tree.depths().max()) > _MAX_DEPTH:
        raise _Unsound(f"its tree is deeper than {_MAX_DEPTH} levels")


def _mapping(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = found.get(name)
    if not isinstance(part, dict):
        raise _Unsound(f"{name!r} is missing")
    return part


def _integers(found: Mapping[str, Any], name: str, size: int | None, least: int, end: int) -> Int64:
    """Return a list of integers as an array, checked."""
    values = found.get(name)
    if not isinstance(values, list) or (size is not None and len(values) != size):
        raise _Unsound(f"{name!r} is no list of the right length")
    if not all(type(value) is int and least <= value < end for value in values):
        raise _Unsound(f"{name!r} holds something else than numbers from {least} to {end - 1}")
    return np.array(values, np.int64)
