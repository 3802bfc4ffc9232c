"""Experiments that recipes describe: runs, parameter searches, and figures of learning curves.

`load_recipe` reads a recipe and `find_recipe` finds those that come with the package. `run` trains one recipe
into one folder, `plot` draws the curves of such folders, and `tune` searches the best parameters of a recipe.
"""

from __future__ import annotations

from extremax.experiments.figures import plot
from extremax.experiments.recipe import find_recipe, load_recipe
from extremax.experiments.runner import run
from extremax.experiments.tuning import tune

__all__ = ["find_recipe", "load_recipe", "plot", "run", "tune"]
