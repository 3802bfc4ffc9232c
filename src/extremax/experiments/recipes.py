"""Recipes with the estimator's own names and defaults, and the recipes that come with the package."""

from __future__ import annotations

import inspect
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extremax.estimator import ExtremeClassifier
from extremax.experiments import recipe as config
from extremax.experiments.recipe import Known, Recipe, nearest
from extremax.features.text import TextOptions

# What a machine decides or a terminal shows is no part of an experiment; an experiment without a seed could
# not be repeated.
_NOT_SETTINGS = ("memory_limit", "n_jobs", "verbose", "validation_fraction")
DEFAULT_SEED = 0


def model_defaults() -> dict[str, Any]:
    """Parameters of `ExtremeClassifier` that a recipe may set, with their defaults."""
    signature = inspect.signature(ExtremeClassifier.__init__).parameters
    defaults = {
        name: entry.default
        for name, entry in signature.items()
        if name != "self" and name not in _NOT_SETTINGS
    }
    return {**defaults, "random_state": DEFAULT_SEED}


KNOWN = Known(model=model_defaults(), text_options=asdict(TextOptions()))


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe file.

    Examples
    --------
    >>> from extremax.experiments import find_recipe, load_recipe
    >>> load_recipe(find_recipe("icd10cm/adversarial")).model["noise"]
    'adversarial'
    """
    return config.load_recipe(path, KNOWN)


def recipe_folder() -> Path:
    """Where the recipes of the package are: inside it when it was installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package, such as ``icd10cm/adversarial``."""
    folder = recipe_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """A recipe file by its path, or by its name among those that come with the package."""
    path = Path(name)
    if path.exists():
        return path
    shipped = recipe_folder() / f"{os.fspath(name).removesuffix('.toml')}.toml"
    if shipped.exists():
        return shipped
    close = nearest(os.fspath(name).removesuffix(".toml"), shipped_recipes())
    hint = f" Did you mean {close!r}?" if close else ""
    raise FileNotFoundError(
        f"There is no recipe {os.fspath(name)!r}, as a file or among those of the package.{hint}"
    )
