"""Experiments: studies and runs whose result is a file or a table, and the pictures drawn from them.

One recipe makes one folder (`run`), folders make a figure (`plot`), `tune` searches the best settings of a
recipe, and `reproduce` is the paper's comparison. `load_recipe` reads a recipe, `find_recipe` knows those
that come with the package."""

from __future__ import annotations

from extremax.experiments.figures import plot
from extremax.experiments.recipes import KNOWN, find_recipe, load_recipe
from extremax.experiments.runner import run
from extremax.experiments.tuning import tune
from extremax.paper.reproduction import reproduce

__all__ = ["KNOWN", "find_recipe", "load_recipe", "plot", "reproduce", "run", "tune"]
