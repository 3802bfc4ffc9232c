"""A small data set and its recipe on disk, for the tests of experiments."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from extremax.experiments import load_recipe
from extremax.experiments.recipe import Recipe


def write_recipe(
    folder: Path,
    *,
    n_rows: int = 1200,
    n_classes: int = 24,
    n_epochs: int = 4,
    more: str = "",
    **model: object,
) -> Path:
    """A recipe for Gaussian classes in eight dimensions; `more` is added to the file, `model` to its
    [model].
    """
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    X = (rng.standard_normal((n_classes, 8))[y] + 0.5 * rng.standard_normal((n_rows, 8))).astype(np.float32)
    np.savez(folder / "rows.npz", X=X, y=y)
    plain = {"objective": "negative_sampling", "noise": "adversarial", "n_negatives": 2, "learning_rate": 0.3}
    settings = {**plain, "regularization": 0.1, "n_components": 8, "n_epochs": n_epochs, **model}
    lines = "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    path = folder / "recipe.toml"
    path.write_text(f'[data]\nname = "gauss"\npath = "rows.npz"\n[model]\n{lines}\n{more}', encoding="utf-8")
    return path


def make_recipe(folder: Path, **arguments: object) -> Recipe:
    return load_recipe(write_recipe(folder, **arguments))  # type: ignore[arg-type]
