"""Experiments: studies and runs whose result is a file or a table, and the pictures drawn from them.

One recipe makes one folder (`run`); `load_recipe` reads one, `find_recipe` knows those that come with the package.
"""

from __future__ import annotations

from extremax.experiments.recipes import KNOWN, find_recipe, load_recipe
from extremax.experiments.runner import run

__all__ = ["KNOWN", "find_recipe", "load_recipe", "run"]
