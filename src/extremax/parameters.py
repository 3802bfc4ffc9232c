"""What each parameter of ``ExtremeClassifier`` may be: the one table that checks and words it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extremax.linear import OPTIMIZERS
from extremax.model import find_tree
from extremax.noise import Noise
from extremax.training.objectives import OBJECTIVES, SHARED_OBJECTIVES
from extremax.validation import (
    BOOLEAN,
    RANDOM_STATE,
    Choice,
    ConstraintTable,
    Instance,
    Interval,
    check_parameters,
)

CONSTRAINTS: ConstraintTable = {
    "objective": [Choice(("auto", *OBJECTIVES, *SHARED_OBJECTIVES))],
    "noise": [Choice(("adversarial", "uniform", "frequency", "mixture")), Instance("a Noise", (Noise,))],
    "n_negatives": [Interval(int, 1)],
    "n_shared": [Interval(int, 1)],
    "precondition": [BOOLEAN],
    "n_epochs": [Interval(int, 0), None],
    "learning_rate": [Interval(float, 0.0, closed="neither"), None],
    "optimizer": [Choice(OPTIMIZERS), None],
    "score_penalty": [Interval(float, 0.0)],
    "prior_variance": [Interval(float, 0.0, closed="neither"), None],
    "batch_size": [Interval(int, 1), None],
    "n_components": [Interval(int, 1)],
    "regularization": [Interval(float, 0.0, closed="neither"), Choice(("auto",))],
    "noise_exponent": [Interval(float, 0.0)],
    "tree_share": [Interval(float, 0.0, 1.0, closed="neither")],
    "validation_fraction": [Interval(float, 0.0, 1.0, closed="left")],
    "patience": [Interval(int, 1), None],
    "memory_limit": [Interval(int, 1), None],
    "n_jobs": [Interval(int), None],
    "random_state": [Interval(int, 0), RANDOM_STATE, None],
    "verbose": [Interval(int, 0), BOOLEAN],
}  # fmt: skip


def check_settings(parameters: Mapping[str, Any]) -> None:
    """The parameters by themselves, and those that exclude one another."""
    check_parameters("ExtremeClassifier", parameters, CONSTRAINTS)
    if not isinstance(parameters["noise"], str) and find_tree(parameters["noise"]) is not None:
        raise ValueError(
            "noise holds a label tree fitted elsewhere; ExtremeClassifier projects the features by itself and cannot know"
            " those the tree was fitted on. Use noise='adversarial' or 'mixture', which fit their own tree."
        )
    if parameters["prior_variance"] is not None and parameters["objective"] in SHARED_OBJECTIVES:
        raise ValueError(
            f"prior_variance is {parameters['prior_variance']:g}, but objective={parameters['objective']!r} has no prior; it is"
            " for objectives whose rows draw their own negatives."
        )


def check_patience(patience: int | None) -> None:
    """For a fit without rows to validate on."""
    if patience is not None:
        raise ValueError(
            f"patience is {patience}, but there are no rows to validate on; give fit an eval_set, or set validation_fraction."
        )
