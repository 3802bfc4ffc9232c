"""The methods that the paper compares: their names, how they are set up, and how they look in every figure.

Colours are those of Okabe and Ito, which people with any kind of colour blindness can tell apart; each method
also has a marker of its own, for print without colour. The paper draws its own method in green and NCE in
orange; so does this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes
    ----------
    label
        In figures and tables.
    color, marker
        In figures.
    model
        The parameters that make it what it is.
    searched
        The parameters that a search chooses, beside the learning rate.
    """

    label: str
    color: str
    marker: str
    model: Mapping[str, Any] = field(default_factory=dict)
    searched: tuple[str, ...] = ("score_penalty",)


# One negative per row, sixteen components and lambda_n = 0.1 are the paper's own settings.
_TREE = {"n_components": 16, "regularization": 0.1}
METHODS: dict[str, Method] = {
    "adversarial": Method(
        "adversarial neg. sampling (proposed)", "#009E73", "o",
        {"objective": "negative_sampling", "noise": "adversarial", "n_negatives": 1, **_TREE},
    ),
    "uniform": Method(
        "uniform neg. sampling", "#0072B2", "s", {"objective": "negative_sampling", "noise": "uniform", "n_negatives": 1}
    ),
    "frequency": Method(
        "frequency neg. sampling", "#56B4E9", "^", {"objective": "negative_sampling", "noise": "frequency", "n_negatives": 1}
    ),
    "nce": Method("NCE", "#E69F00", "D", {"objective": "nce", "noise": "adversarial", "n_negatives": 1, **_TREE}),
    "augment_reduce": Method(
        "Augment & Reduce", "#CC79A7", "v", {"objective": "augment_reduce", "noise": "uniform", "n_negatives": 1},
        ("prior_variance",),
    ),
    "one_vs_each": Method(
        "One-vs-Each", "#D55E00", "P", {"objective": "one_vs_each", "noise": "uniform", "n_negatives": 1}, ("prior_variance",)
    ),
    # Set up as the others are: weights of zero, Adagrad at a constant rate, no tree, features as they are.
    "softmax": Method(
        "full softmax", "#000000", "X",
        {"objective": "softmax", "noise": "uniform", "precondition": False, "optimizer": "adagrad", "learning_rate": 1.0}, (),
    ),
    "sampled_softmax": Method(
        "sampled softmax", "#777777", "h", {"objective": "sampled_softmax", "noise": "frequency", "n_negatives": 1}
    ),
}  # fmt: skip
FIGURE_1 = ("adversarial", "uniform", "frequency", "nce", "augment_reduce", "one_vs_each")
PROPOSED = "adversarial"
BASELINES = tuple(name for name in FIGURE_1 if name != PROPOSED)


def method_of(model: Mapping[str, Any]) -> str:
    """Name of the method that a model's parameters amount to.

    Examples
    --------
    >>> method_of({"objective": "negative_sampling", "noise": "frequency"})
    'frequency'
    >>> method_of({"objective": "nce", "noise": "adversarial"})
    'nce'
    """
    if model["objective"] == "negative_sampling":
        return str(model["noise"])
    return str(model["objective"])
