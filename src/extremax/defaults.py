"""Every number that steers a result: its value, its unit and its reason; and how open parameters are resolved.

A config dataclass belongs to one component, which receives it as an argument.  `FitConfig` holds all of them with
the resolved public parameters of a fit and is stored in the model folder: a fit resumed with a later version goes
on with the numbers it began with.  Measurements behind the values: docs/tuning.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Self, TypeVar, get_type_hints

import numpy as np

from extremax.defaults_search import CalibrationConfig, PQConfig
from extremax.defaults_tree import TreeFitConfig, TreeTuningConfig
from extremax.noise import Noise
from extremax.training.objectives import OBJECTIVES, Objective

T = TypeVar("T")


@dataclass(frozen=True)
class ProblemSize:
    """Shape of a training problem."""

    n_rows: int
    n_pairs: int
    n_features: int
    n_classes: int


@dataclass(frozen=True)
class OrderConfig:
    """Order of the pairs in an epoch: windows of shuffled chunks."""

    chunk_rows: int = 256  # rows; read together from a file
    window_bytes: int = 256 << 20  # bytes of dense rows that are shuffled together


@dataclass(frozen=True)
class RowConfig:
    """Training with negatives drawn for each row (the paper's method and its baselines)."""

    n_epochs: int = 20
    learning_rate: float = 0.3  # for rows of mean square length one
    optimizer: str = "adagrad"
    min_batch: int = 16  # rows
    max_batch: int = 512  # rows; they stay in the cache
    classes_per_row: int = 16  # classes for each row of a minibatch: hardly two rows share a class
    batches_per_epoch: int = 32  # at least
    initial_square: float = 1e-8  # start of Adagrad's sums: a vanishing first gradient makes no full-length step
    prior_pairs: int = 4  # pairs per class between two steps of the Gaussian prior
    start_log_probs: int = 1 << 24  # log-probabilities of the noise averaged for the start of NCE
    min_start_rows: int = 16
    augment_reduce_decay: float = 0.9  # exponent of the weight (1 + epoch)^-decay of the newest estimate
    progress_pairs: int = 1 << 17  # pairs between two looks at clock and interrupts


@dataclass(frozen=True)
class BatchConfig:
    """Softmax over classes that a minibatch shares."""

    max_features: int = 1024  # features up to which whitening is cheap and the objective is the default
    min_batch: int = 16  # rows
    max_batch: int = 256  # rows
    batches_per_epoch: int = 32  # at least
    max_scores: int = 1 << 25  # scores of a minibatch
    min_steps: int = 900  # minibatches of a whole fit, where that takes ...
    min_epochs: int = 5  # ... at least so many epochs ...
    max_epochs: int = 50  # ... and at most so many
    learning_rate: float = 0.5
    learning_rate_many_classes: float = 1.0  # a class that is met rarely must learn from a few steps
    learning_rate_plain: float = 0.1  # without the precondition
    optimizer: str = "adagrad_row"
    class_exponent: float = 0.5  # of the class frequencies, beside the cells of the tree
    many_classes: int = 64  # classes for each shared one above which cells of the tree no longer pay
    rows_per_cell: int = 4096  # rows, on average, at least
    max_cells: int = 256
    cell_levels: int = 2  # levels of the tree below a cell, at least
    max_step: float = 1.5  # longest step of a class in whitened rows: rows of one cell are alike, gradients add up
    initial_gradients: float = 20.0  # gradients of full length that a class's Adagrad sum starts with
    min_initial_square: float = 0.08  # with many features no first step changes a score by more than 3.5 rates
    initial_bias_square: float = 0.02
    progress_batches: int = 64  # minibatches between two looks at the clock


@dataclass(frozen=True)
class WarmStartConfig:
    """Whitening of the features, and the linear discriminant that training starts from."""

    ridge: float = 0.1  # of the mean variance, added to every direction
    shrinkage: float = 1.0  # rows at the mean of all rows that each class is given
    min_within: float = 0.05  # fraction of the variance taken to be inside the classes, at least
    no_variance: float = 1e-14  # variance of rows of unit length that is the rounding of float32
    sample_rows: int = 512  # training rows, each left out of its class's mean, that choose the scale of the start
    sample_classes: int = 2048  # classes they are compared with
    scales: tuple[float, ...] = tuple(float(2**i) for i in range(-2, 9))
    tolerance: float = 0.01  # nats; the smallest scale so close to the best one is taken
    init_scale_factor: float = 0.6  # fraction of the best scale to start from: training sharpens, and rarely takes back


@dataclass(frozen=True)
class ScaleConfig:
    """Scaling of the features to rows of mean square length one."""

    max_length: float = 1e34  # mean row length above which products leave float32
    min_length: float = 1e-30  # below which rows count as zero


@dataclass(frozen=True)
class Defaults:
    """The configs of all components."""

    order: OrderConfig = field(default_factory=OrderConfig)
    rows: RowConfig = field(default_factory=RowConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    tree_fit: TreeFitConfig = field(default_factory=TreeFitConfig)
    tree_tuning: TreeTuningConfig = field(default_factory=TreeTuningConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    pq: PQConfig = field(default_factory=PQConfig)


DEFAULTS = Defaults()
CUSTOM_NOISE = "custom"


@dataclass(frozen=True)
class FitConfig:
    """The public parameters of one fit, resolved, and the tuned numbers of every component."""

    objective: str
    noise: str | Noise
    optimizer: str
    n_epochs: int
    learning_rate: float
    n_negatives: int
    n_shared: int
    precondition: bool
    score_penalty: float
    prior_variance: float | None
    batch_size: int
    tree_components: int
    tree_regularization: float | str
    noise_exponent: float
    tree_share: float
    numbers: Defaults = field(default_factory=Defaults)

    @property
    def definition(self) -> Objective:
        """The objective's entry in the registry."""
        return OBJECTIVES[self.objective]

    @property
    def uses_tree(self) -> bool:
        return self.noise in ("adversarial", "tree", "mixture")

    @property
    def decays(self) -> bool:
        """Whether the learning rate of a whole fit falls to zero."""
        return self.definition.shares_classes and self.precondition

    def set_size(self, n_classes: int) -> int:
        """Return how many classes a minibatch shares."""
        return n_classes if self.definition.all_classes else min(self.n_shared, n_classes)

    def to_dict(self) -> dict[str, Any]:
        """Return the config as JSON can hold it."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        noise = self.noise if isinstance(self.noise, str) else CUSTOM_NOISE
        return {**plain, "noise": noise, "numbers": asdict(self.numbers)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], noise: Noise | None = None) -> Self:
        """Restore a config; numbers that an earlier version did not have get today's values."""
        known = {entry.name for entry in fields(cls)}
        given = {name: value for name, value in content.items() if name in known}
        given["numbers"] = _restore(Defaults, content.get("numbers", {}))
        if given["noise"] == CUSTOM_NOISE and noise is not None:
            given["noise"] = noise
        return cls(**given)


def _restore(cls: type[T], content: Mapping[str, Any]) -> T:
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in hints:
            continue
        if is_dataclass(hints[name]):
            values[name] = _restore(hints[name], value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def has_many_classes(n_classes: int, n_shared: int, config: BatchConfig) -> bool:
    """Whether classes are so many that those of a tree's cell are no harder than others."""
    return n_classes > config.many_classes * n_shared


def row_batch_size(problem: ProblemSize, config: RowConfig) -> int:
    """Return a minibatch in which hardly two rows share a class, and which stays in the cache."""
    wanted = min(problem.n_classes // config.classes_per_row, problem.n_pairs // config.batches_per_epoch)
    return int(np.clip(wanted, config.min_batch, config.max_batch))


def resolve(
    parameters: Mapping[str, Any], problem: ProblemSize, *, streaming: bool = False, numbers: Defaults = DEFAULTS
) -> FitConfig:
    """Fill in what the parameters of `ExtremeClassifier` leave open, from the size of the problem.

    `streaming` is for rows that arrive in parts: a start and a scale taken from the first part would be arbitrary.
    """
    names = {entry.name for entry in fields(FitConfig)} - {"numbers"}
    given = {name: value for name, value in parameters.items() if name in names}
    batch, rows = numbers.batch, numbers.rows
    if given["objective"] == "auto":
        fits = problem.n_features <= batch.max_features and isinstance(given["noise"], str) and not streaming
        fits = fits and given["prior_variance"] is None
        given["objective"] = "shared_softmax" if fits else "negative_sampling"
    objective = OBJECTIVES[given["objective"]]
    if objective.shares_classes and not isinstance(given["noise"], str):
        raise ValueError(
            f"objective={given['objective']!r} draws the classes of a minibatch by itself and cannot use noise of type"
            f" {type(given['noise']).__name__}. Use noise='adversarial', 'frequency' or 'uniform', or another objective."
        )
    defaults: dict[str, Any]
    if objective.shares_classes:
        size = problem.n_classes if objective.all_classes else min(given["n_shared"], problem.n_classes)
        wanted = min(problem.n_pairs // batch.batches_per_epoch, batch.max_scores // size)
        defaults = {"batch_size": int(np.clip(wanted, batch.min_batch, batch.max_batch))}
        n_batches = -(-problem.n_pairs // (given["batch_size"] or defaults["batch_size"]))
        epochs = int(np.clip(-(-batch.min_steps // n_batches), batch.min_epochs, batch.max_epochs))
        rate = batch.learning_rate_plain
        if given["precondition"]:
            many = has_many_classes(problem.n_classes, size, batch)
            rate = batch.learning_rate_many_classes if many else batch.learning_rate
        defaults |= {"n_epochs": epochs, "learning_rate": rate, "optimizer": batch.optimizer}
    else:
        defaults = {
            "batch_size": row_batch_size(problem, rows),
            "n_epochs": rows.n_epochs,
            "learning_rate": rows.learning_rate,
            "optimizer": rows.optimizer,
        }
    given |= {name: value for name, value in defaults.items() if given[name] is None}
    return FitConfig(**given, numbers=numbers)


def resume_config(
    begun: FitConfig, parameters: Mapping[str, Any], problem: ProblemSize, noise: Noise | None
) -> FitConfig:
    """Return the config with which a fit goes on: parameters that are left open stay as they were begun."""
    open_ones = {name: getattr(begun, name) for name in RESOLVED if parameters.get(name, "") is None}
    given = {**parameters, **open_ones, "objective": begun.objective}
    if not isinstance(given["noise"], str) and noise is not None:
        given["noise"] = noise
    return resolve(given, problem, numbers=begun.numbers)


RESOLVED = ("objective", "optimizer", "n_epochs", "learning_rate", "batch_size")  # parameters that may be left open


def replace_numbers(numbers: Defaults, **parts: Mapping[str, Any]) -> Defaults:
    """Return numbers with some fields of some configs replaced.

    Examples
    --------
    >>> replace_numbers(DEFAULTS, batch={"max_cells": 4}).batch.max_cells
    4
    """
    changed: dict[str, Any] = {name: replace(getattr(numbers, name), **values) for name, values in parts.items()}
    return replace(numbers, **changed)
