"""Experiments that recipes describe: runs, parameter searches, and figures of learning curves.

`load_recipe` reads a recipe and `find_recipe` finds those that come with the package. `run` trains one recipe
into one folder, `plot` draws the curves of such folders, and `tune` searches the best parameters of a recipe.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from extremax.experiments.figures import plot
from extremax.experiments.recipe import load_recipe
from extremax.experiments.recipes import find_recipe
from extremax.experiments.runner import run
from extremax.experiments.tuning import tune

__all__ = ["find_recipe", "load_recipe", "plot", "run", "tune"]


def __getattr__(name: str) -> Any:
    if name != "reproduce":
        raise AttributeError(f"module 'extremax.experiments' has no attribute {name!r}")
    warnings.warn(
        "extremax.experiments.reproduce is now extremax.paper.reproduce; the old name will go with the next"
        " release.",
        FutureWarning,
        stacklevel=2,
    )
    return import_module("extremax.paper").reproduce
