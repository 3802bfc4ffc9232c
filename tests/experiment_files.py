"""A small data set and its recipe on disk, for tests of experiments."""

from __future__ import annotations

import json
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
    """Write a recipe for Gaussian classes in eight dimensions.

    `more` is added to the file, `model` to its [model]; None takes a parameter out.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    X = (rng.standard_normal((n_classes, 8))[y] + 0.5 * rng.standard_normal((n_rows, 8))).astype(np.float32)
    np.savez(folder / "rows.npz", X=X, y=y)
    plain = {"solver": "negative_sampling", "noise": "tree", "n_negatives": 2, "learning_rate": 0.3}
    parameters = {**plain, "tree_regularization": 0.1, "tree_components": 8, "n_epochs": n_epochs, **model}
    lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items() if value is not None)
    path = folder / "recipe.toml"
    path.write_text(f'[data]\nname = "gauss"\npath = "rows.npz"\n[model]\n{lines}\n{more}', encoding="utf-8")
    return path


def make_recipe(folder: Path, **arguments: object) -> Recipe:
    """Return the recipe that `write_recipe` writes."""
    return load_recipe(write_recipe(folder, **arguments))  # type: ignore[arg-type]


def write_run(
    folder: Path,
    method: str,
    accuracies: list[float],
    *,
    data: str = "icd10cm",
    first: float = 1.0,
) -> Path:
    """Write a finished run: accuracies at 1, 10, 100 ... times `first` seconds."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "data": {"name": data, "path": None},
                "method": method,
                "model": {"learning_rate": 0.1, "score_penalty": 1e-4, "tree_fit": "paper"},
            }
        )
    )
    points = [
        {"epoch": 10**i, "seconds": 3 * first * 10.0**i, "cpu_seconds": first * 10.0**i}
        | {"samples": 48265 * 10**i}
        | {f"{split}_accuracy": a for split in ("valid", "test")}
        | {f"{split}_log_likelihood": -5.0 + 4 * a for split in ("valid", "test")}
        for i, a in enumerate(accuracies)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (folder / "test_rows").mkdir()
    for i, a in enumerate(accuracies):
        hits = np.arange(5000) < round(5000 * a)  # nested: the better method is right where the other is
        log_prob = np.full(5000, -5.0 + 4 * a)
        np.save(folder / "test_rows" / f"{i:03d}.npy", np.stack([hits, log_prob]).astype(np.float32))
    machine = {"processor": "Some CPU", "processors": 2, "memory_bytes": 8e9, "load_average": 0.1}
    summary = {
        "n_classes": 10662,
        "n_train": 48265,
        "machine": machine,
        "threads": 1,
    }
    took = {"session_cpu_seconds": 84.0}
    (folder / "summary.json").write_text(
        json.dumps({**summary, **took, "last": points[-1], "date": "2030-01-01T00:00:00+00:00"})
    )
    return folder


def write_comparison(folder: Path, *, n_seeds: int = 1) -> Path:
    """Write runs of every method: the proposed one is ten times as fast and ends higher."""
    ends = {
        "adversarial": 0.5,
        "uniform": 0.3,
        "frequency": 0.4,
        "nce_from_zero": 0.15,
        "nce": 0.2,
        "augment_reduce": 0.1,
        "one_vs_each": 0.05,
        "softmax": 0.45,
    }
    for method, end in ends.items():
        for seed in range(n_seeds):
            place = folder / "runs" / method
            middle = 0.4 if method == "adversarial" else end / 2
            low = 0.1 if method == "adversarial" else 0.0
            shift = 0.01 * seed
            write_run(
                place / f"seed-{seed}",
                method,
                [low, middle + shift, end + shift],
                first=1.0 + 0.1 * seed,
            )
    return folder
