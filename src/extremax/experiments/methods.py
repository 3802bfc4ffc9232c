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
ALL_CLASSES = 1 << 30  # shared by a minibatch: the exact softmax
_READINGS = ("score_penalty", "penalized_scores")
METHODS: dict[str, Method] = {
    "adversarial": Method(
        "adversarial neg. sampling (proposed)",
        "#009E73",
        "o",
        {"solver": "negative_sampling", "noise": "tree", "n_negatives": 1, **_TREE},
    ),
    "uniform": Method(
        "uniform neg. sampling",
        "#0072B2",
        "s",
        {"solver": "negative_sampling", "noise": "uniform", "n_negatives": 1},
        _READINGS,
    ),
    "frequency": Method(
        "frequency neg. sampling",
        "#56B4E9",
        "^",
        {"solver": "negative_sampling", "noise": "frequency", "n_negatives": 1},
        _READINGS,
    ),
    "nce": Method(
        "NCE, biases from log p_n",
        "#E69F00",
        "D",
        {"solver": "nce", "noise": "tree", "n_negatives": 1, **_TREE},
    ),
    "nce_from_zero": Method(
        "NCE, biases from zero",
        "#F0E442",
        "d",
        {"solver": "nce_from_zero", "noise": "tree", "n_negatives": 1, **_TREE},
    ),
    "augment_reduce": Method(
        "Augment & Reduce",
        "#CC79A7",
        "v",
        {"solver": "augment_reduce", "noise": "uniform", "n_negatives": 1},
        ("prior_variance",),
    ),
    "one_vs_each": Method(
        "One-vs-Each",
        "#D55E00",
        "P",
        {"solver": "one_vs_each", "noise": "uniform", "n_negatives": 1},
        ("prior_variance",),
    ),
    # trained like the others: weights of zero, Adagrad at a constant rate, no tree, features as they are
    "softmax": Method(
        "full softmax",
        "#000000",
        "X",
        {
            "solver": "minibatch_softmax",
            "n_shared": ALL_CLASSES,
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
        {"solver": "sampled_softmax", "noise": "frequency", "n_negatives": 1},
    ),
}
# The paper's NCE starts at zero; the other one is ours.
FIGURE_1 = ("adversarial", "uniform", "frequency", "nce", "nce_from_zero", "augment_reduce", "one_vs_each")
PROPOSED = "adversarial"
BASELINES = tuple(name for name in FIGURE_1 if name != PROPOSED)


def make_classifier(model: Mapping[str, Any], *, n_jobs: int | None = None) -> ExtremeClassifier:
    """Return the classifier that the ``[model]`` of a recipe describes."""
    return ExtremeClassifier.with_solver(**model, n_jobs=n_jobs)


def method_of(model: Mapping[str, Any]) -> str:
    """Return the name of the method that the parameters of a model describe.

    Examples
    --------
    >>> method_of({"solver": "negative_sampling", "noise": "frequency"})
    'frequency'
    >>> method_of({"solver": "nce", "noise": "tree"})
    'nce'
    """
    if model["solver"] == "negative_sampling":
        return "adversarial" if model["noise"] == "tree" else str(model["noise"])
    return "softmax" if model.get("n_shared") == ALL_CLASSES else str(model["solver"])
