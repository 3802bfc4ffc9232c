"""The model card: ``README.md`` of a saved folder, for people and for the Hugging Face hub.

It is written with the model and never read by it.  Names of labels and parameters may be anything: they are
escaped, so that they are shown and do nothing else.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from extremax.storage.folder import package_version

if TYPE_CHECKING:
    from extremax.model import Model

_SHOWN_LABELS = 5
_MAX_SHOWN = 60  # characters of a name
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$^:@=/])")
_FIGURES = (
    ("accuracy", "accuracy", "{:.1%}"),
    ("top_k_accuracy", "top-5 accuracy", "{:.1%}"),
    ("log_likelihood", "log-likelihood", "{:.3f}"),
)
_CARD = """\
---
library_name: extremax
pipeline_tag: {task}
tags:
- extremax
- extreme-classification
---

# Classifier of {kind} over {n_classes} classes

A linear softmax classifier trained with extremax {version}. It answers with the most probable of \
its classes and with probabilities that are normalised over all of them.

## How to use it

```python
from extremax import load_model
clf = load_model("this-folder")
labels, log_prob = clf.predict_topk({rows}, k=5)
```

## How it was trained

{training}

## How good it is

{figures}

## Its classes

{classes}

## Limits

- Every row gets one of the classes above, also one that belongs to none of them: look at the probability.
- Probabilities are calibrated for rows like the training data.
- Classes with few training rows are known less well.
{more}{changes}"""
_UNKNOWN_TEXTS = "- A text without any known word is answered with the class frequencies.\n"
_CHANGES = {"add_classes": "added", "remove_classes": "removed", "merge_classes": "renamed or merged"}


def escape(value: Any) -> str:
    """Return a name as one line of Markdown that shows it and does nothing else.

    Examples
    --------
    >>> escape("<b>[x](y)")
    '&lt;b&gt;\\\\[x\\\\]\\\\(y\\\\)'
    """
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else " " for c in text)
    text = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False)) or "(empty)"


def make_card(
    model: Model,
    labels: NDArray[Any],
    *,
    history: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]] = (),
    texts: bool = False,
) -> str:
    """Return the card of a model.

    Parameters
    ----------
    model, labels
        The model and the names of its classes.
    history
        Records of the epochs.
    parameters
        Those that are not the defaults.
    changes
        Changes of the classes since the fit.
    texts
        Whether the model takes texts.
    """
    rows = [
        [
            escape(change["when"]),
            _CHANGES.get(change["what"], "changed"),
            *(f"{change[name]:,}" for name in ("n_changed", "n_rows", "n_classes")),
        ]
        for change in changes
    ]
    head = ["when", "classes were", "how many", "rows", "classes then"]
    return _CARD.format(
        task="text-classification" if texts else "tabular-classification",
        kind="texts" if texts else f"{model.n_features:,} features",
        n_classes=f"{len(labels):,}",
        version=package_version(),
        rows='["a text"]' if texts else "X",
        training=_table(["", ""], _training(model, history, parameters)),
        figures=_held_out(history),
        classes=_classes(model, labels),
        more=_UNKNOWN_TEXTS if texts else "",
        changes=f"\n## Changes since the fit\n\n{_table(head, rows)}\n" if changes else "",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _training(
    model: Model, history: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> list[list[str]]:
    last: Mapping[str, Any] = history[-1] if history else {}
    rows = [
        ["solver", escape(model.solver)],
        ["training rows", f"{model.classes.n_samples:,}" if model.classes.n_samples else "not known"],
        ["epochs", f"{model.n_epochs:,}"],
    ]
    if last.get("seconds"):
        rows.append(["seconds", f"{float(last['seconds']):,.1f}"])
    changed = [f"{escape(name)} = {escape(_shown(value))}" for name, value in sorted(parameters.items())]
    return [*rows, ["parameters", ", ".join(changed) or "the defaults"]]


def _shown(value: Any) -> Any:
    """Return a parameter as it is, or the type of an object, whose text may differ from run to run."""
    return value if isinstance(value, str | int | float | dict | None) else f"({type(value).__name__})"


def _held_out(history: Sequence[Mapping[str, Any]]) -> str:
    last: Mapping[str, Any] = history[-1] if history else {}
    for prefix, what in (
        ("held_out_", "rows of the training data that were kept back; they also chose the calibration"),
        ("valid_", "validation rows"),
    ):
        if f"{prefix}accuracy" in last:
            n_rows = last.get(f"{prefix}rows")
            count = "" if n_rows is None else f"{int(n_rows):,} "
            rows = [
                [name, form.format(float(last[prefix + key]))]
                for key, name, form in _FIGURES
                if last.get(prefix + key) is not None
            ]
            return f"On {count}{what}:\n\n{_table(['', ''], rows)}"
    return "Not measured: no rows were kept back. `extremax evaluate` measures it on rows of your own."


def _classes(model: Model, labels: NDArray[Any]) -> str:
    counts = model.classes.counts
    if counts is None or not len(counts):
        return f"{len(labels):,} classes."
    low, middle, high = np.quantile(counts, [0.0, 0.5, 1.0]).tolist()
    order = np.argsort(-counts, kind="stable")[:_SHOWN_LABELS]
    rows = [[escape(labels.item(int(i))), f"{int(counts[i]):,}"] for i in order]
    about = f"{len(labels):,} classes with {int(low):,} to {int(high):,} training rows, {middle:,.0f} in the"
    return f"{about} middle. The largest:\n\n{_table(['class', 'rows'], rows)}"
