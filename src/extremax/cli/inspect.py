"""``extremax inspect MODEL``: facts about a model, its memory by part, and classes it confuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import classifier_of, description_of, open_model, takes_texts
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
    # folders of version 1
    "biases": "weights",
    "squares": "accumulators (for further training)",
    "bias_squares": "accumulators (for further training)",
    "eta": "accumulators (for further training)",
    "whitening": "whitening (for further training)",
    "index": "index (for beam search)",
    "class_means": "class means",
    "class_counts": "class counts",
    "descriptions": "descriptions",
}


def inspect(
    model: ModelArgument,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="X", help="Show the classes that are hardest to distinguish from X.", show_default=False
        ),
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
    clf = open_model(model)
    if label is not None:
        _show_label(clf, label, k, as_json)
        return
    facts = describe(clf, model)
    if as_json:
        terminal.show_json(facts)
        return
    memory, changes = facts.pop("memory"), facts.pop("changes")
    rows = [[name.replace("_", " "), _shown(value)] for name, value in facts.items() if value is not None]
    terminal.print_table([str(model), ""], rows)
    if changes:
        head = ["changes of the classes", "when", "how many", "rows", "classes then"]
        terminal.print_table(
            head,
            [
                [c["what"], c["when"], *(f"{c[n]:,}" for n in ("n_changed", "n_rows", "n_classes"))]
                for c in changes
            ],
            right=head[2:],
        )
    total = sum(memory.values())
    table = [
        [part, _bytes(size), f"{size / total:.0%}"]
        for part, size in sorted(memory.items(), key=lambda item: -item[1])
    ]
    terminal.print_table(
        ["memory", "size", "fraction"], [*table, ["total", _bytes(total), ""]], right=["size", "fraction"]
    )


def describe(clf: Any, folder: Path) -> dict[str, Any]:
    """Return facts about a model by name; None for what it does not have."""
    import numpy as np

    classifier = classifier_of(clf)
    fitted, choices, last = classifier.model_, classifier.choices_, classifier.history_[-1]
    tree, counts = fitted.tree, fitted.classes.counts
    facts: dict[str, Any] = {
        "input": _input(clf),
        "text_features": _text_features(clf),
        "n_classes": len(clf.classes_),
        "n_features": fitted.n_features,
        "nonzero_weights": _nonzero(fitted.weights),
        "n_samples": fitted.classes.n_samples or None,
        "objective": fitted.objective,
        "noise": classifier.noise if isinstance(classifier.noise, str) else type(classifier.noise).__name__,
        "optimizer": choices.get("optimizer", classifier.optimizer),
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


def _nonzero(weights: Any) -> int | None:
    """Return the number of stored weights of a sparse model."""
    return getattr(weights, "n_entries", None)


def _input(clf: Any) -> str:
    if not takes_texts(clf):
        return "features"
    encoder = f"the encoder {clf.encoder or clf._encoder_name or '(an object)'}"
    if clf.features_ is None:
        return f"texts through {encoder}"
    return f"texts, and through {encoder}" if clf._encodes else "texts"


def _text_features(clf: Any) -> str | None:
    if not takes_texts(clf) or clf.features_ is None:
        return None
    return "words and character n-grams" if clf.features_.is_sparse else "dense"


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
    classifier = classifier_of(clf)
    position = _find(clf.classes_, label)
    fitted = classifier.model_
    strongest = _strongest(clf, position, k)
    by_tree = fitted.tree is not None and fitted.classes.means is not None
    ids, hardness = fitted.confusable(position, min(k, len(clf.classes_) - 1))
    counts = fitted.classes.counts
    measure = "tree_probability" if by_tree else "cosine_of_weights"
    found = [
        {
            "label": clf.classes_[i].item() if hasattr(clf.classes_[i], "item") else clf.classes_[i],
            measure: float(h),
        }
        | ({} if counts is None else {"rows": int(counts[i])})
        for i, h in zip(ids.tolist(), hardness, strict=True)
    ]
    if as_json:
        features = {} if strongest is None else {"features": [list(term) for term in strongest]}
        terminal.show_json({"label": label, "hardest": found, **features})
        return
    if strongest is not None:
        rows = [[name, f"{weight:+.2f}"] for name, weight in strongest]
        title = f"features with the greatest weights for {label}"
        terminal.print_table(["feature", "weight"], rows, title=title, right=["weight"])
    method = "the label tree" if by_tree else "the cosine of their weights"
    title = f"classes hardest to distinguish from {label}, by {method}"
    columns = ["label", measure.replace("_", " "), "rows", "description"]
    rows = [
        [
            str(entry["label"]),
            terminal.fraction(entry[measure]),
            f"{entry.get('rows', '')}",
            description_of(clf, entry["label"]) or "",
        ]
        for entry in found
    ]
    terminal.print_table(columns, rows, title=title, right=columns[1:3])


def _strongest(clf: Any, position: int, k: int) -> list[tuple[str, float]] | None:
    """Return the features with the greatest weights for a class, of a model of words and n-grams."""
    if not takes_texts(clf) or clf.features_ is None or not clf.features_.is_sparse:
        return None
    features: list[tuple[str, float]] = clf.explain_label(clf.classes_[position], k).features
    return features


def _find(classes: Any, label: str) -> int:
    import difflib

    import numpy as np

    names = classes.astype(str)
    found = np.flatnonzero(names == label)
    if len(found):
        return int(found[0])
    near = difflib.get_close_matches(label, names.tolist(), n=3) if len(names) <= 100_000 else []
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    raise ValueError(f"{label!r} is none of the model's {len(names):,} labels.{hint}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_shown(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(_shown(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _bytes(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size = size / 1000  # type: ignore[assignment]
    return f"{size:,.3g} GB"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(inspect)
