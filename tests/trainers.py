"""Trainers on given tables, noise and class sets: one epoch at a time, without a start of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.solvers.base import TrainState
from extremax.solvers.config import resolve
from extremax.solvers.minibatch import MinibatchTrainer, PreparedBatches
from extremax.solvers.negative_sampling import RowTrainer
from extremax.solvers.optimizers import Tables
from extremax.solvers.registry import SOLVERS
from extremax.tuned import DEFAULTS, ProblemSize, replace_numbers

SAMPLING = [name for name, solver in SOLVERS.items() if solver.uses_noise]


class Progress:
    """Keeps what it is told; `stop_after` reports it raises KeyboardInterrupt."""

    def __init__(self, stop_after=None):
        self.reports, self.stop_after = [], stop_after

    def check(self):
        pass

    def report(self, pairs_done, loss):
        self.reports.append((pairs_done, loss))
        if len(self.reports) == self.stop_after:
            raise KeyboardInterrupt


def make_config(data: Examples, n_classes: int, *, numbers=DEFAULTS, **parameters):
    """The resolved parameters of an `ExtremeClassifier` for these examples."""
    problem = ProblemSize(data.n_rows, data.n_pairs, int(data.X.shape[1]), n_classes)
    clf = ExtremeClassifier.with_solver(**parameters)
    return resolve(clf.solver, problem, n_epochs=clf.n_epochs, numbers=numbers)


@dataclass
class Run:
    """A trainer with its state and prepared examples."""

    trainer: Any
    state: TrainState
    prepared: Any
    losses: list[float] = field(default_factory=list)

    def epoch(self, rate=0.2, progress=None):
        rates = rate if isinstance(rate, tuple) else (rate, rate)
        loss = self.trainer.epoch(self.state, self.prepared, rates, progress or Progress())
        self.losses.append(loss)
        return loss

    def epochs(self, number, rate=0.2):
        for _ in range(number):
            self.epoch(rate)
        return self

    @property
    def weights(self):
        return self.state.tables.weights

    @property
    def biases(self):
        return self.state.tables.biases

    @property
    def arrays(self):
        tables = self.state.tables
        return tables.weights, tables.biases, tables.squares, tables.bias_squares


def run_by_rows(data, noise, *, projection=None, scale=0.4, first_bias=None, seed=3, n_threads=1, **options):
    """A `RowTrainer` whose weights start at zero and whose negatives come from `noise`."""
    options = {
        "solver": "negative_sampling",
        "n_negatives": 2,
        "score_penalty": 0.01,
        "batch_size": 16,
        "optimizer": "adagrad",
        **options,
    }
    n_classes = noise.n_classes
    config = make_config(data, n_classes, noise="uniform", **options)
    tables = Tables.zeros(n_classes, int(data.X.shape[1]), config.solver.optimizer)
    starts_at_noise = config.solver.starts_at_noise
    tables.biases[:] = (-np.log(n_classes) if starts_at_noise else 0.0) if first_bias is None else first_bias
    state = TrainState(tables, scale, noise, projection)
    trainer = RowTrainer(config, Context(seed, n_threads))
    return Run(trainer, state, trainer.prepare(state, data))


def run_by_batches(
    data,
    sets,
    tables,
    *,
    batch_size,
    scale=1.0,
    cells=None,
    whitening=None,
    max_step=np.inf,
    n_threads=1,
    score_penalty=None,
):
    """A `MinibatchTrainer` with given tables and class sets, whose steps have the rate they are given."""
    numbers = replace_numbers(DEFAULTS, batch={"warm_up": 0.0})
    options = {"solver": "minibatch_softmax", "score_penalty": score_penalty}
    config = make_config(data, tables.n_classes, numbers=numbers, **options)
    state = TrainState(tables, scale, whitening=whitening)
    trainer = MinibatchTrainer(config, Context(7, n_threads))
    return Run(trainer, state, PreparedBatches(data, sets, cells, batch_size, max_step))


def random_tables(n_classes, n_features, optimizer, rng, square=0.5):
    """Tables with random weights and biases."""
    tables = Tables.zeros(n_classes, n_features, optimizer)
    tables.weights[...] = rng.normal(size=tables.weights.shape)
    tables.biases[...] = rng.normal(size=n_classes)
    tables.squares[...] = square
    tables.bias_squares[...] = square
    return tables


def assert_same_bits(first, second):
    """Weights, biases and accumulators of two runs are equal."""
    for a, b in zip(first.arrays, second.arrays, strict=True):
        np.testing.assert_array_equal(a, b)
