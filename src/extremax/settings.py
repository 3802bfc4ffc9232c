"""What each parameter of ``ExtremeClassifier`` may be: the one table that checks and words it."""

from __future__ import annotations

from extremax.linear import OPTIMIZERS
from extremax.noise import Noise
from extremax.objectives import OBJECTIVES
from extremax.validation import BOOLEAN, RANDOM_STATE, Choice, ConstraintTable, Instance, Interval

CONSTRAINTS: ConstraintTable = {
    "objective": [Choice(tuple(OBJECTIVES))],
    "noise": [Choice(("adversarial", "uniform", "frequency", "mixture")), Instance("a Noise", (Noise,))],
    "n_negatives": [Interval(int, 1)],
    "n_epochs": [Interval(int, 0)],
    "learning_rate": [Interval(float, 0.0, closed="neither")],
    "optimizer": [Choice(OPTIMIZERS)],
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
