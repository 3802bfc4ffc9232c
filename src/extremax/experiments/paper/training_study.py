"""Section 4 of the paper along training: does the signal-to-noise ratio tell which method learns faster?

Uniform, frequency and tree noise train with their recipes, `ExtremeClassifier` with its defaults. At fixed
numbers of samples (training rows seen), `gradient_noise` estimates the signal-to-noise ratio
of the gradient of one row, and the validation rows are scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from extremax.data import planted_hierarchy
from extremax.examples import Examples
from extremax.experiments.methods import METHODS, make_classifier
from extremax.experiments.paper import gradient_noise
from extremax.experiments.recipe import Recipe, find_recipe, load_recipe
from extremax.experiments.recipe import resolve as resolve_recipe
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.fit import Fitted, Request, run_training, start_model
from extremax.model import Model
from extremax.runtime.context import Context
from extremax.runtime.threads import resolve_threads
from extremax.solvers.config import resolve
from extremax.solvers.loop import Moment, Record, Schedule, Watcher
from extremax.solvers.registry import SOLVERS
from extremax.tuned import ProblemSize

DEFAULT, PLANTED = "default", "planted"
_REPORTS = 8  # moments of an epoch at which training can be looked at
NAMES = {"uniform": "uniform", "frequency": "frequency", "tree": "adversarial"}  # noise: name of its recipe


class Effort(NamedTuple):
    """How many gradients a point is estimated from: `n_groups` estimates, each of `n_batches` minibatches."""

    n_groups: int = 4
    n_batches: int = 8
    batch_size: int = 256


@dataclass(frozen=True)
class TrainingPoint:
    """A moment of training.

    Attributes
    ----------
    method
        Name of the noise, or "default".
    samples
        Training rows seen.
    ratio, error
        Signal-to-noise ratio of the gradient of one row, and its standard error.
    log_likelihood, accuracy
        Of validation rows.
    """

    method: str
    samples: int
    ratio: float
    error: float
    log_likelihood: float
    accuracy: float


@dataclass(frozen=True)
class TrainingStudy:
    """Signal-to-noise ratios along training on one data set, and what was learned meanwhile.

    Attributes
    ----------
    data, n_rows, n_classes
        Name of the data, training rows, and classes.
    points
        All points, method after method.
    """

    data: str
    n_rows: int
    n_classes: int
    points: tuple[TrainingPoint, ...]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(point.method for point in self.points))

    def curve(self, method: str) -> list[TrainingPoint]:
        """Return the points of one method."""
        return [point for point in self.points if point.method == method]

    def as_dict(self) -> dict[str, Any]:
        """Return the study as JSON can hold it."""
        return {
            "data": self.data,
            "n_rows": self.n_rows,
            "n_classes": self.n_classes,
            "points": [asdict(point) for point in self.points],
            "orders": [order._asdict() for order in compare_orders(self)],
        }


class Orders(NamedTuple):
    """Methods at one number of samples, best first: by ratio, and by validation log-likelihood."""

    samples: int
    by_ratio: tuple[str, ...]
    by_log_likelihood: tuple[str, ...]


def compare_orders(study: TrainingStudy) -> list[Orders]:
    """Return the order of the methods at each number of samples that at least two of them have.

    Examples
    --------
    >>> points = [TrainingPoint("a", 9, 0.2, 0.0, -1.0, 0.5), TrainingPoint("b", 9, 0.1, 0.0, -2.0, 0.4)]
    >>> compare_orders(TrainingStudy("data", 9, 3, tuple(points)))
    [Orders(samples=9, by_ratio=('a', 'b'), by_log_likelihood=('a', 'b'))]
    """
    out = []
    for samples in sorted({point.samples for point in study.points}):
        here = [point for point in study.points if point.samples == samples]
        if len(here) > 1:
            ranked = [
                tuple(point.method for point in sorted(here, key=key, reverse=True))
                for key in (lambda point: point.ratio, lambda point: point.log_likelihood)
            ]
            out.append(Orders(samples, *ranked))
    return out


def training_study(  # noqa: PLR0913 (the parameters are the API)
    data: str = "icd10cm",
    *,
    n_epochs: int = 16,
    n_valid: int = 2000,
    effort: Effort | None = None,
    rows: Rows | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    log: Log = lambda text: None,
) -> TrainingStudy:
    """Measure signal-to-noise ratios along training with uniform, frequency and tree noise and the default.

    Parameters
    ----------
    data
        A known data set that has recipes, or "planted".
    n_epochs
        Epochs of the noises; the default trains as many as it does by itself.
    n_valid
        Validation rows at most, a random sample.
    effort
        Gradients per point.
    rows
        Rows of the data, if they are loaded already.
    seed
        Seed of training and of the gradients.
    log
        Called with messages.
    """
    recipes = {name: _recipe(data, method) for name, method in NAMES.items()}
    if rows is None:
        rows = _planted_rows(seed) if data == PLANTED else load_rows(recipes["tree"], n_jobs=n_jobs, log=log)
    valid = rows.sample("valid", n_valid, seed)
    parameters = {name: _parameters(recipe, n_epochs) for name, recipe in recipes.items()}
    parameters[DEFAULT] = resolve_recipe(Recipe())["model"]
    points: list[TrainingPoint] = []
    for name, model in parameters.items():
        log(f"training with {name} {'parameters' if name == DEFAULT else 'noise'}")
        context = Context(seed, resolve_threads(n_jobs))
        points += _follow(name, model, rows, valid, effort or Effort(), context)
    return TrainingStudy(rows.name, len(rows.y["train"]), rows.n_classes, tuple(points))


def _recipe(data: str, method: str) -> Recipe:
    if data != PLANTED:
        return load_recipe(find_recipe(f"{data}/{method}"))
    return Recipe(model={**METHODS[method].model, "learning_rate": 0.3, "score_penalty": 0.001})


def _planted_rows(seed: int) -> Rows:
    made = planted_hierarchy(4000, 150, 16, seed=seed, n_latent=12, noise_scale=0.8, n_test=2000)
    X = {"train": made.X, "valid": made.X_test[:1000], "test": made.X_test[1000:]}
    y = {"train": made.y, "valid": made.y_test[:1000], "test": made.y_test[1000:]}
    classes, train = np.unique(made.y, return_inverse=True)
    place = {int(label): i for i, label in enumerate(classes)}
    ids = {"train": train.astype(np.int32)}
    for split in ("valid", "test"):
        known = np.isin(y[split], classes)
        X[split] = X[split][known]
        ids[split] = np.array([place[int(label)] for label in y[split][known]], np.int32)
    return Rows("planted hierarchy", X, ids, classes, dict.fromkeys(ids, 0))


def _parameters(recipe: Recipe, n_epochs: int) -> dict[str, Any]:
    return {**resolve_recipe(recipe)["model"], "n_epochs": n_epochs}


def sample_counts(n_rows: int, n_epochs: int) -> list[int]:
    """Return the numbers of samples after which points are due: parts of the first epoch, then epochs.

    Examples
    --------
    >>> sample_counts(1000, 8)
    [0, 125, 250, 500, 1000, 2000, 4000, 8000]
    """
    counts = [0, n_rows // 8, n_rows // 4, n_rows // 2]
    epoch = 1
    while epoch <= n_epochs:
        counts.append(epoch * n_rows)
        epoch *= 2
    return counts


def _follow(
    name: str, parameters: Mapping[str, Any], rows: Rows, valid: Examples, effort: Effort, context: Context
) -> list[TrainingPoint]:
    """Train one method, and return its points."""
    data = Examples(rows.X["train"], rows.y["train"])
    n_rows, n_features = data.X.shape
    problem = ProblemSize(n_rows, n_rows, n_features, rows.n_classes)
    clf = make_classifier(parameters)
    config = resolve(clf.solver, problem, n_epochs=clf.n_epochs)
    if config.solver.uses_noise:
        between = n_rows // _REPORTS + config.solver.batch_size  # rows between two reports
        by_rows = replace(config.numbers.rows, progress_pairs=(1 + config.solver.n_negatives) * between)
        config = replace(config, numbers=replace(config.numbers, rows=by_rows))
    trainer = config.make_trainer(context)
    data = trainer.accept(data)
    fitted = start_model(trainer, data, rows.n_classes, config, time.perf_counter())
    watcher = _PointWatcher(name, fitted, data, valid, effort, context)
    schedule = Schedule(config.n_epochs, config.solver.learning_rate, None, config.decay_epochs)
    watcher.counts = sample_counts(n_rows, config.n_epochs)
    run_training(trainer, fitted, data, schedule, context, Request(callbacks=[watcher]))
    return watcher.points


class _PointWatcher(Watcher):
    """Makes a point at each of some numbers of samples."""

    def __init__(
        self, name: str, fitted: Fitted, data: Examples, valid: Examples, effort: Effort, context: Context
    ) -> None:
        self.name, self.fitted, self.data, self.valid = name, fitted, data, valid
        self.effort, self.context = effort, context
        self.counts: list[int] = []
        self.points: list[TrainingPoint] = []

    def at_start(self, moment: Moment) -> None:
        self._look(0, moment.model)

    def during_epoch(self, moment: Moment) -> None:
        samples = (moment.record["epoch"] - 1) * self.data.n_rows + moment.record["rows"]
        if moment.record["rows"] < self.data.n_rows:  # the end of an epoch has its own call
            self._look(samples, moment.model)

    def __call__(self, record: Record) -> None:
        self._look(record["epoch"] * self.data.n_rows, lambda: self.fitted.model)

    def _look(self, samples: int, make_model: Callable[[], Model]) -> None:
        if all(count > samples for count in self.counts):
            return
        self.counts = [count for count in self.counts if count > samples]
        model, n_threads = make_model(), self.context.n_threads
        ratio, error = measure(model, self.data, self.effort, self.fitted.state.pair_values, self.context)
        figures = model.evaluate(self.valid, n_threads=n_threads)
        self.points.append(
            TrainingPoint(self.name, samples, ratio, error, figures.log_likelihood, figures.accuracy)
        )


def measure(
    model: Model, data: Examples, effort: Effort, own_shift: Any, context: Context
) -> tuple[float, float]:
    """Return the signal-to-noise ratio of the gradient of one row of a model in training, and its error."""
    options: dict[str, Any] = {"batch_size": effort.batch_size, "n_batches": effort.n_batches}
    options["n_threads"] = context.n_threads
    gradients: Callable[..., Any] = gradient_noise.drawn_gradients
    if not SOLVERS[model.solver].uses_noise:
        gradients = partial(gradient_noise.softmax_gradients, own_shift=own_shift)
    found = []
    for group in range(effort.n_groups):
        drawn = gradients(model, data, seed=context.seed + 1000 * group, **options)
        found.append(gradient_noise.estimate_noise(drawn, model.n_classes, batch_size=effort.batch_size))
    signal, noise = np.mean(found, axis=0)
    ratios = [one.signal / noise for one in found]
    error = float(np.std(ratios, ddof=1) / np.sqrt(len(ratios))) if len(ratios) > 1 else float("nan")
    return float(signal / noise), error
