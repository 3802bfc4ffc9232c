"""``extremax inspect MODEL``: facts about a model, its memory by part, and classes it confuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import classifier_of, description_of, find_labels, open_model
from extremax.cli.options import Json, ModelArgument

# Beginnings of the names of arrays in a model folder, and what they hold; the longest that fits counts.
_PARTS = {
    "weights": "weights",
    "training": "accumulators (for further training)",
    "training.whitening": "whitening (for further training)",
    "noise": "noise",
    "search": "index (for beam search)",
    "projection": "projection",
    "reference": "reference (for monitors)",
    "text": "text features",
    "classes.means": "class means",
    "classes.counts": "class counts",
    "classes.descriptions": "descriptions",
    "labels": "label names",
    "label_offsets": "label names",
    "README": "model card",
    "parts": "merged classes",
}


def inspect(
    model: ModelArgument,
    label: Annotated[
        str | None, typer.Option(metavar="X", help="Show the classes that are hardest to distinguish from X.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Classes to show with --label.")] = 10,
    as_json: Json = False,
) -> None:
    """Show facts about a model, or confusable classes.

    \b
    --label X lists the words and n-grams with the greatest weights for X, and
    the classes to which the label tree gives the highest probability for a
    typical row of X; without a tree, weights are compared.
    """
    from extremax.runtime.memory import format_bytes

    clf = open_model(model)
    if label is not None:
        _show_label(clf, label, k, as_json)
        return
    facts = describe(clf, model)
    if as_json:
        terminal.show_json(facts)
        return
    memory, changes = facts.pop("memory"), facts.pop("changes")
    rows = [[name.replace("_", " "), value] for name, value in facts.items() if value is not None]
    terminal.print_table([str(model), ""], [[name, terminal.show(value)] for name, value in rows])
    if changes:
        names = ("what", "when", "n_changed", "n_rows", "n_classes")
        head = ["changes of the classes", "when", "how many", "rows", "classes then"]
        terminal.print_table(head, [[change[name] for name in names] for change in changes])
    total = sum(memory.values())
    parts = sorted(memory.items(), key=lambda item: -item[1])
    table = [[part, format_bytes(size), f"{size / total:.0%}"] for part, size in [*parts, ("total", total)]]
    terminal.print_table(["memory", "size", "fraction"], table)


def describe(clf: Any, folder: Path) -> dict[str, Any]:
    """Return facts about a model by name; None for what it does not have."""
    import numpy as np

    classifier = classifier_of(clf)
    has_ngrams = clf.takes_texts and clf.features_ is not None
    fitted, choices, last = classifier.model_, classifier.choices_, classifier.history_[-1]
    tree, counts = fitted.tree, fitted.classes.counts
    facts: dict[str, Any] = {
        "input": _input(clf),
        "text_features": "words and character n-grams" if has_ngrams else None,
        "n_classes": len(clf.classes_),
        "n_features": fitted.n_features,
        "nonzero_weights": getattr(fitted.weights, "n_entries", None),
        "n_samples": fitted.classes.n_samples or None,
        "solver": fitted.solver,
        "noise": None if fitted.noise is None else type(fitted.noise).__name__,
        "optimizer": choices.get("optimizer"),
        "temperature": fitted.calibration.temperature,
        "temperature_slope": fitted.calibration.temperature_slope or None,
        "uniform_mix": fitted.calibration.uniform_mix,
        "epochs": last["epoch"],
        "training_seconds": last["seconds"],
        "loss": last["loss"] if last["epoch"] else None,
        "valid_log_likelihood": last.get("valid_log_likelihood"),
        "valid_accuracy": last.get("valid_accuracy"),
        "tree_depth": None if tree is None else tree.depth,
        "tree_components": None if tree is None else tree.n_components,
        "tree_held_out_log_likelihood": choices.get("tree_held_out_log_likelihood"),
    }
    if counts is not None and counts.sum() > 0:
        frequency = counts[counts > 0] / counts.sum()
        facts["frequencies_log_likelihood"] = float((frequency * np.log(frequency)).sum())
        low, middle, high = np.quantile(counts, [0.0, 0.5, 1.0]).tolist()
        facts["rows_per_class"] = {"smallest": int(low), "median": middle, "largest": int(high)}
    facts["choices"] = {
        name: value for name, value in choices.items() if name != "tree_held_out_log_likelihood"
    } or None
    facts["n_merged_classes"] = None if fitted.label_map is None else len(fitted.label_map.merged_classes)
    facts["changes"] = classifier.changes_ or None
    facts["memory"] = _memory(folder, fitted.noise)
    return facts


def _input(clf: Any) -> str:
    if not clf.takes_texts:
        return "features"
    encoder = f"the encoder {clf.encoder or clf._encoder_name or '(an object)'}"
    if clf.features_ is None:
        return f"texts through {encoder}"
    return f"texts, and through {encoder}" if clf._encodes else "texts"


def _memory(folder: Path, noise: Any) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for file in sorted(folder.iterdir()):
        stem = file.name.removesuffix(".safetensors")
        found = [name for name in _PARTS if re.match(rf"{re.escape(name)}(?![a-z])", stem)]
        part = _PARTS[max(found, key=len)] if found else "header"
        part = f"noise ({type(noise).__name__})" if part == "noise" else part
        sizes[part] = sizes.get(part, 0) + file.stat().st_size
    return sizes


def _show_label(clf: Any, label: str, k: int, as_json: bool) -> None:
    fitted = classifier_of(clf).model_
    (known,) = find_labels(clf, [label])
    position = int(clf.label_ids([known])[0])
    by_words = clf.takes_texts and clf.features_ is not None
    strongest = clf.explain_label(known, k).features if by_words else []
    by_tree = fitted.tree is not None and fitted.classes.means is not None
    ids, hardness = fitted.confusable(position, min(k, len(clf.classes_) - 1))
    measure = "tree_probability" if by_tree else "cosine_of_weights"
    names, counts = clf.classes_[ids].tolist(), fitted.classes.counts
    found = [{"label": name, measure: float(h)} for name, h in zip(names, hardness, strict=True)]
    if counts is not None:
        found = [{**entry, "rows": int(counts[i])} for entry, i in zip(found, ids, strict=True)]
    if as_json:
        features = {"features": [list(term) for term in strongest]} if by_words else {}
        terminal.show_json({"label": label, "hardest": found, **features})
        return
    if by_words:
        title = f"features with the greatest weights for {label}"
        rows = [[name, f"{weight:+.2f}"] for name, weight in strongest]
        terminal.print_table(["feature", "weight"], rows, title=title)
    method = "the label tree" if by_tree else "the cosine of their weights"
    terminal.print_table(
        ["label", measure.replace("_", " "), "rows", "description"],
        [[str(e["label"]), e[measure], e.get("rows"), description_of(clf, e["label"])] for e in found],
        title=f"classes hardest to distinguish from {label}, by {method}",
    )
