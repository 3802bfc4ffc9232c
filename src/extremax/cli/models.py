"""Shared by commands on a saved model: opening it, and reading rows for it."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from extremax.cli import terminal
from extremax.cli.options import FileFormat, Reading, source

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def open_model(path: Path, threads: int | None = None, encoder: str | None = None) -> Any:
    """Return the estimator saved in a folder, with the given number of threads and sentence encoder."""
    from extremax.text import load_model

    model = load_model(path, encoder=encoder)
    classifier_of(model).n_jobs = threads
    return model


def load_rows(model: Any, path: Path, reading: Reading) -> tuple[Any, Any]:
    """Return inputs and labels of a file."""
    data = load_labelled(path, reading_for(model, reading, path))
    if data.note:
        terminal.log(f"{path}: {data.note}")
    return inputs_of(model, data, path), as_labels_of(model, named_labels(data))


def load_labelled(path: Path, arguments: dict[str, Any]) -> Any:
    """Return the dataset of a file with labels, read with the arguments of `load_dataset`."""
    from extremax.data import load_dataset

    with terminal.progress(f"reading {path.name}") as progress, source(path) as opened:
        data = load_dataset(opened, **arguments, progress=progress)
    report_skipped(data)
    if data.y is None:
        raise ValueError(without_labels(data, path))
    n_empty = sum(not text.strip() for text in data.texts or [])
    if n_empty:
        terminal.warn(f"{n_empty:,} of {data.n_samples:,} texts in {path} are empty.")
    return data


def as_labels_of(model: Any, labels: Any) -> Any:
    """Return labels as a model has them: where its classes are whole numbers, labels that spell one are."""
    if model.classes_.dtype.kind not in "iu":
        return labels
    if isinstance(labels, list):
        return [[_as_number(label) for label in row] for row in labels]
    if getattr(labels, "ndim", 0) != 1 or labels.dtype.kind not in "OUS":
        return labels
    return [_as_number(label) for label in labels.tolist()]


def _as_number(label: Any) -> Any:
    return int(label) if isinstance(label, str) and _WHOLE_NUMBER.fullmatch(label) else label


def classifier_of(model: Any) -> Any:
    """Return the ExtremeClassifier of a model, inside a TextClassifier or alone."""
    return model.classifier_ if model.takes_texts else model


def inputs_of(model: Any, data: Any, path: Path) -> Any:
    """Return the texts or the features of a dataset, whichever the model takes."""
    if model.takes_texts:
        if data.texts is None:
            raise ValueError(f"{path} holds features, but the model takes texts.")
        return data.texts
    if data.X is None:
        raise ValueError(f"{path} holds texts, but the model takes {model.n_features_in_:,} features.")
    return data.X


def reading_for(model: Any, reading: Reading, path: Path) -> dict[str, Any]:
    """Return the arguments for the readers, completed by what the model knows."""
    arguments = reading.arguments()
    if not model.takes_texts:
        arguments["n_features"] = arguments["n_features"] or model.n_features_in_
    elif reading.format is FileFormat.auto and reading.text_column is None and str(path) == "-":
        arguments["format"] = "lines"  # texts are what is piped into a model of texts
    return arguments


def batches(model: Any, path: Path, reading: Reading, batch_rows: int, keep: Any) -> Iterator[Any]:
    """Yield datasets of about `batch_rows` rows each, without labels, with the columns to `keep`."""
    from extremax.data import iter_dataset

    arguments = reading_for(model, reading, path)
    if arguments.pop("labels_path") is not None:
        raise typer.BadParameter("--labels is for commands that need labels.")
    with terminal.progress(path.name) as progress, source(path) as opened:
        # a bar would be drawn over results in the same terminal
        shown = None if sys.stdout.isatty() else progress
        noted = False
        for data in iter_dataset(
            opened, **arguments, batch_rows=batch_rows, keep=keep, ignore_labels=True, progress=shown
        ):
            report_skipped(data)
            if data.note and not noted:
                terminal.log(f"{path}: {data.note}")
                noted = True
            yield data


def report_skipped(data: Any) -> None:
    """Warn about bad lines that were skipped: their number and the first ones."""
    if data.n_skipped:
        first = "".join(f"\n  {line}" for line in data.skipped[:3])
        terminal.warn(f"{data.n_skipped:,} bad lines were skipped:{first}")


def without_labels(data: Any, path: Path) -> str:
    """Return the error message for a file without labels."""
    if data.n_samples == 0:
        return f"{path} has no rows."
    what = (
        "give their file: --labels FILE"
        if data.format in ("npy", "npz")
        else "name their column: --label-column NAME"
    )
    read_as = f" It was read as {data.note}." if data.note else ""
    return f"{path} has {data.n_samples:,} rows, but no labels; {what}.{read_as}"


def named_labels(data: Any) -> Any:
    """Return labels as estimators take them: one per row, lists of names, or an indicator matrix."""
    if not data.multilabel or data.label_names is None:
        return data.y
    names, y = data.label_names, data.y
    return [[names[j] for j in y.indices[y.indptr[i] : y.indptr[i + 1]]] for i in range(data.n_samples)]


def distinct_labels(data: Any) -> list[Any]:
    """Return the labels that occur in a dataset."""
    if data.multilabel:
        return list(range(data.y.shape[1])) if data.label_names is None else list(data.label_names)
    return list(set(data.y.tolist()))


def describe_labels(model: Any, path: Path) -> None:
    """Store descriptions of labels in a model, from a CSV or TSV file of labels and texts."""
    from extremax.data import load_dataset

    kind: Any = "tsv" if ".tsv" in path.suffixes else "csv"
    data = load_dataset(path, format=kind, text_column=1, label_column=0, header=False)
    rows = dict(zip(data.y.tolist(), data.texts or [], strict=True)) if data.y is not None else {}
    texts = [rows.get(str(label), "") for label in model.classes_.tolist()]
    missing = sum(not text for text in texts)
    if missing:
        terminal.warn(f"{missing:,} of {len(texts):,} labels have no description in {path}.")
    model.describe_classes(texts)


def read_texts_of(
    path: Path, labels: Iterable[Any], encoding: str | None = None
) -> list[dict[Any, list[str]]]:
    """Read class texts by kind, with labels spelled as the given ones are."""
    from extremax.data import read_class_texts

    by_name = {str(label): label for label in labels}
    of_numbers = all(isinstance(label, int) for label in by_name.values())
    with source(path) as opened:
        found = read_class_texts(opened, encoding=encoding)

    def spelled(name: str) -> Any:
        return by_name.get(name, _as_number(name) if of_numbers else name)

    return [{spelled(name): kind[name] for name in kind} for kind in found]


def find_labels(model: Any, words: list[str]) -> list[Any]:
    """Return labels by their spelling: those of numbers are numbers."""
    by_name = {str(label): label for label in model.classes_.tolist()}
    unknown = next((word for word in words if word not in by_name), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, list(by_name), n=3) if len(by_name) <= 100_000 else []
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"{unknown!r} is not one of the model's {len(by_name):,} labels.{hint}")
    return [by_name[word] for word in words]


def warn_left_out(n_rows: int) -> None:
    """Warn about rows without a label that the model knows."""
    if n_rows:
        terminal.warn(f"{n_rows:,} rows have no label that the model knows; they are left out.")


def probabilities(log_prob: Any) -> list[list[float]]:
    """Return probabilities with seven digits, the precision of float32."""
    import numpy as np

    return [[float(f"{p:.7g}") for p in row] for row in np.exp(log_prob.astype(np.float64)).tolist()]


def answers_of(model: Any, inputs: Any, k: int, search: str = "exact") -> list[list[dict[str, Any]]]:
    """Return the k best labels of each row with probabilities and descriptions.

    Where rows may have several labels, each has the probability that it applies.
    """
    import numpy as np

    ids, log_prob = model.predict_ids(inputs, k, search=search)
    labels, found = model.classes_[ids], []
    if model.model_.has_several_labels:
        with np.errstate(divide="ignore"):
            log_prob = np.log(np.take_along_axis(model.predict_label_proba(inputs), ids, axis=1))
    for names, values in zip(labels.tolist(), probabilities(log_prob), strict=True):
        texts = [description_of(model, name) for name in names]
        found.append(
            [
                {"label": name, **({} if text is None else {"description": text}), "probability": p}
                for name, text, p in zip(names, texts, values, strict=True)
            ]
        )
    return found


def description_of(model: Any, label: Any) -> str | None:
    """Return the description of a label, if the model has descriptions."""
    descriptions = model.model_.classes.descriptions
    if descriptions is None:
        return None
    return str(descriptions.text(int(model.label_ids([label])[0])))
