"""The recipes that come with the package."""

from __future__ import annotations

import os
from pathlib import Path

from extremax.experiments.recipe import nearest


def recipe_folder() -> Path:
    """Return the folder of the shipped recipes: in the package if installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, such as ``icd10cm/adversarial``."""
    folder = recipe_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """Return a recipe file by its path, or by its name among those that come with the package."""
    path = Path(name)
    if path.exists():
        return path
    shipped = recipe_folder() / f"{os.fspath(name).removesuffix('.toml')}.toml"
    if shipped.exists():
        return shipped
    close = nearest(os.fspath(name).removesuffix(".toml"), shipped_recipes())
    hint = f" Did you mean {close!r}?" if close else ""
    raise FileNotFoundError(
        f"There is no recipe {os.fspath(name)!r}, neither as a file nor in the package.{hint}"
    )
