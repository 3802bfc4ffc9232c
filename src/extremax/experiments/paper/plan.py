"""What a reproduction needs before it starts: files, memory and time, measured on this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from extremax.classifier import ExtremeClassifier
from extremax.examples import Examples
from extremax.experiments import catalog, xml_cnn
from extremax.experiments.recipe import Recipe
from extremax.experiments.recipe import resolve as resolve_recipe
from extremax.fit import make_trainer
from extremax.runtime.context import Context
from extremax.runtime.memory import available_memory, describe_memory, format_bytes
from extremax.runtime.threads import resolve_threads
from extremax.solvers.config import resolve
from extremax.tuned import ProblemSize

# Training rows, test rows, features and classes of the paper's data sets: its Table 1, and the repository.
PAPER_SIZES = {
    "amazon-670k": (490_449, 153_025, 512, 213_874),
    "wikipedia-500k": (1_646_302, 783_743, 512, 217_240),
}
SOURCE = (
    "labels from the Extreme Classification Repository, features by XML-CNN (Liu et al. 2017), as the"
    " authors' repository mandt-lab/adversarial-negative-sampling describes"
)
_PROBE_ROWS, _PROBE_CLASSES = 20_000, 20_000
_READ_BYTES = 10e6  # bytes of a text file that are read in a second
_TREE_COST = 7e-6  # seconds of one point on one level of the tree, 16 components, one thread (ICD-10-CM)


@dataclass(frozen=True)
class DataSize:
    """Rows, features and classes of a data set, and the files they were read from."""

    n_train: int
    n_test: int
    n_features: int
    n_classes: int
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Seconds of a training pair with one negative, and of one score in evaluation."""

    pair: float
    score: float


@dataclass(frozen=True)
class Plan:
    """Needs of a reproduction: bytes by part, and seconds by part."""

    data: str
    size: DataSize
    memory: dict[str, int]
    seconds: dict[str, float]

    def describe(self) -> list[str]:
        """Word the plan: files, memory, time."""
        size = self.size
        where = f"{catalog.FOLDER_VARIABLE}/{catalog.xml_cnn_folder(self.data)}/"
        found = "found" if size.files else f"not found; {SOURCE}"
        parts = ", ".join(f"{what} {_words(seconds)}" for what, seconds in self.seconds.items())
        rows = f"{size.n_train:,} training rows, {size.n_test:,} test rows"
        return [
            f"{self.data} needs {', '.join(xml_cnn.FILES)} in {where} ({found})",
            f"{rows}, {size.n_features:,} features, about {size.n_classes:,} classes",
            f"memory: {describe_memory(self.memory)}; {format_bytes(available_memory())} are free",
            f"time: about {_words(sum(self.seconds.values()))} ({parts})",
        ]


def make_plan(
    data: str,
    recipes: Mapping[str, Recipe],
    *,
    n_trials: int = 0,
    n_seeds: int = 1,
    n_jobs: int | None = None,
) -> Plan | None:
    """Return what trials and runs of the recipes need on one of the paper's data sets; None for other data.

    Sizes are those of the files, or the paper's where they are missing. A short training run measures the
    speed of this machine.
    """
    if data not in PAPER_SIZES:
        return None
    size = find_size(data)
    speed = measure_speed(size.n_features, n_jobs)
    memory = {"rows of the files": 4 * (size.n_train + size.n_test) * size.n_features}
    needs = [_training_memory(recipe, size) for recipe in recipes.values()]
    largest: dict[str, int] = max(needs, key=_total)
    memory |= largest
    seconds = {"reading": sum(path.stat().st_size for path in size.files) / _READ_BYTES}
    trials = [_as_trial(recipe) for recipe in recipes.values()]
    for part, count in (("training", _training_seconds), ("evaluation", _evaluation_seconds)):
        runs = sum(count(recipe, size, speed) for recipe in recipes.values())
        seconds[part] = n_seeds * runs + n_trials * sum(count(trial, size, speed) for trial in trials)
    # one tree for all methods
    seconds["tree"] = max(_tree_seconds(recipe, size, n_jobs) for recipe in recipes.values())
    return Plan(data, size, memory, {what: value for what, value in seconds.items() if value > 0.0})


def find_size(data: str) -> DataSize:
    """Return the size of one of the paper's data sets: that of the headers of its files, if it has them."""
    n_train, n_test, n_features, n_classes = PAPER_SIZES[data]
    folder = os.environ.get(catalog.FOLDER_VARIABLE)
    try:
        found = xml_cnn.find_files(Path(folder or "", catalog.xml_cnn_folder(data) or ""))
    except FileNotFoundError:
        return DataSize(n_train, n_test, n_features, n_classes)
    n_train, n_features = xml_cnn.read_header(found["trn_ft_mat_dense.txt"])
    n_test, _ = xml_cnn.read_header(found["tst_ft_mat_dense.txt"])
    _, n_labels = xml_cnn.read_header(found["trn_lbl_mat.txt"])
    return DataSize(n_train, n_test, n_features, min(n_labels, n_classes, n_train), tuple(found.values()))


def measure_speed(n_features: int, n_jobs: int | None = None) -> Speed:
    """Time a little training with one uniform negative, and a little evaluation, each after a first run."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((_PROBE_ROWS, n_features), dtype=np.float32)
    y = rng.permutation(np.arange(_PROBE_ROWS) % _PROBE_CLASSES).astype(np.int32)
    options = {"noise": "uniform", "n_negatives": 1, "random_state": 0, "n_jobs": n_jobs}
    clf = ExtremeClassifier("negative_sampling", **options).partial_fit(X, y)
    started = time.perf_counter()
    clf.partial_fit(X, y).partial_fit(X, y)
    seconds = time.perf_counter() - started
    some = Examples(X[:256], y[:256])
    started = time.perf_counter()
    clf.model_.evaluate(some, n_threads=resolve_threads(n_jobs))
    middle = time.perf_counter()
    clf.model_.evaluate(some, n_threads=resolve_threads(n_jobs))
    evaluated = min(middle - started, time.perf_counter() - middle)
    return Speed(seconds / (2 * _PROBE_ROWS), evaluated / (256 * _PROBE_CLASSES))


def _as_trial(recipe: Recipe) -> Recipe:
    """Return a recipe with the epochs of a trial, and without test rows."""
    shorter = recipe if recipe.search.n_epochs is None else recipe.with_model(n_epochs=recipe.search.n_epochs)
    return replace(shorter, evaluation=replace(recipe.evaluation, test_rows=0))


def _total(need: Mapping[str, int]) -> int:
    """Return the bytes of all parts."""
    return sum(need.values())


def _training_memory(recipe: Recipe, size: DataSize) -> dict[str, int]:
    problem = ProblemSize(size.n_train, size.n_train, size.n_features, size.n_classes)
    config = resolve(resolve_recipe(recipe)["model"], problem)
    return {"training": make_trainer(config, Context(0, 1)).memory(problem)}


def _training_seconds(recipe: Recipe, size: DataSize, speed: Speed) -> float:
    model = resolve_recipe(recipe)["model"]
    return float(size.n_train * speed.pair * model["n_epochs"] * (1 + model["n_negatives"]) / 2)


def _tree_seconds(recipe: Recipe, size: DataSize, n_jobs: int | None) -> float:
    model = resolve_recipe(recipe)["model"]
    if model["noise"] not in ("adversarial", "tree", "mixture"):
        return 0.0
    levels = math.ceil(math.log2(size.n_classes))
    work = size.n_train * levels * _TREE_COST
    return float(work * (model["tree_components"] / 16) ** 2 / resolve_threads(n_jobs))


def _evaluation_seconds(recipe: Recipe, size: DataSize, speed: Speed) -> float:
    evaluation = recipe.evaluation
    n_samples = size.n_train * resolve_recipe(recipe)["model"]["n_epochs"]
    decades = max(0.0, math.log10(max(n_samples, 1) / evaluation.first_samples))
    n_points = 2 + decades * evaluation.points_per_decade
    n_rows = min(evaluation.valid_rows + evaluation.test_rows, size.n_test)
    return float(n_points * n_rows * size.n_classes * speed.score)


def _words(seconds: float) -> str:
    """Word a time: seconds, minutes or hours.

    Examples
    --------
    >>> _words(12.3), _words(1500), _words(9000)
    ('12 s', '25 minutes', '2.5 hours')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
