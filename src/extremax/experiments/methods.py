"""The methods that the paper compares: their names, their parameters, and their look in every figure.

Colours are those of Okabe and Ito, which are distinct for people with any kind of colour blindness; each
method also has a marker of its own, for print without colour. As in the paper, its own method is green and
NCE orange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from extremax.classifier import ExtremeClassifier


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes
    ----------
    label
        Name in figures and tables.
    color, marker
        Look in figures.
    model
        Parameters that define it.
    searched
        Parameters that a search chooses, beside the learning rate.
    """

    label: str
    color: str
    marker: str
    model: Mapping[str, Any] = field(default_factory=dict)
    searched: tuple[str, ...] = ("score_penalty",)


# One negative per row, sixteen components and lambda_n = 0.1 are the paper's values, and its fit of the tree.
_TREE = {"tree_components": 16, "tree_regularization": 0.1, "tree_fit": "paper"}
# Eq. 6 has two readings under noise that does not depend on x: a search takes the better one.
_READINGS = ("score_penalty", "penalized_scores")
METHODS: dict[str, Method] = {
    "adversarial": Method(
        "adversarial neg. sampling (proposed)",
        "#009E73",
        "o",
        {"objective": "negative_sampling", "noise": "adversarial", "n_negatives": 1, **_TREE},
    ),
    "uniform": Method(
        "uniform neg. sampling",
        "#0072B2",
        "s",
        {"objective": "negative_sampling", "noise": "uniform", "n_negatives": 1},
        _READINGS,
    ),
    "frequency": Method(
        "frequency neg. sampling",
        "#56B4E9",
        "^",
        {"objective": "negative_sampling", "noise": "frequency", "n_negatives": 1},
        _READINGS,
    ),
    "nce": Method(
        "NCE", "#E69F00", "D", {"objective": "nce", "noise": "adversarial", "n_negatives": 1, **_TREE}
    ),
    "augment_reduce": Method(
        "Augment & Reduce",
        "#CC79A7",
        "v",
        {"objective": "augment_reduce", "noise": "uniform", "n_negatives": 1},
        ("prior_variance",),
    ),
    "one_vs_each": Method(
        "One-vs-Each",
        "#D55E00",
        "P",
        {"objective": "one_vs_each", "noise": "uniform", "n_negatives": 1},
        ("prior_variance",),
    ),
    # trained like the others: weights of zero, Adagrad at a constant rate, no tree, features as they are
    "softmax": Method(
        "full softmax",
        "#000000",
        "X",
        {
            "objective": "softmax",
            "noise": "uniform",
            "precondition": False,
            "optimizer": "adagrad",
            "learning_rate": 1.0,
        },
    ),
    "sampled_softmax": Method(
        "sampled softmax",
        "#777777",
        "h",
        {"objective": "sampled_softmax", "noise": "frequency", "n_negatives": 1},
    ),
}
FIGURE_1 = ("adversarial", "uniform", "frequency", "nce", "augment_reduce", "one_vs_each")
PROPOSED = "adversarial"
BASELINES = tuple(name for name in FIGURE_1 if name != PROPOSED)


def make_classifier(model: Mapping[str, Any], *, n_jobs: int | None = None) -> ExtremeClassifier:
    """Return the classifier that the ``[model]`` of a recipe describes."""
    return ExtremeClassifier(**model, n_jobs=n_jobs)


def method_of(model: Mapping[str, Any]) -> str:
    """Return the name of the method that the parameters of a model describe.

    Examples
    --------
    >>> method_of({"objective": "negative_sampling", "noise": "frequency"})
    'frequency'
    >>> method_of({"objective": "nce", "noise": "adversarial"})
    'nce'
    """
    if model["objective"] == "negative_sampling":
        return "adversarial" if model["noise"] == "tree" else str(model["noise"])
    return str(model["objective"])
