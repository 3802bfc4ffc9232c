"""Weights on dense columns beside sparse ones: the default training of dense features, on these alone."""

from __future__ import annotations

from typing import Any

from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.scores.sparse import DensePart, dense_columns
from extremax.solvers.config import FitConfig, resolve
from extremax.solvers.loop import Schedule
from extremax.solvers.registry import CandidateSoftmax, MinibatchSoftmax, Solver, is_scored_once
from extremax.solvers.sparse.bilinear import Bilinear
from extremax.tuned import Defaults, ProblemSize


class _Silent:
    """Progress of the inner training: interrupts are looked at, nothing is shown."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def check(self) -> None:
        self.context.interrupts.check()

    def report(self, pairs_done: int, loss: float) -> None:
        pass


def dense_solver(problem: ProblemSize, numbers: Defaults) -> Solver:
    """Return the solver of dense columns: that of the default, up to any number of them."""
    return CandidateSoftmax() if is_scored_once(problem, numbers) else MinibatchSoftmax()


def fit_dense(data: Examples, n_classes: int, config: FitConfig, context: Context) -> Bilinear:
    """Train on the last columns of X alone, as `ExtremeClassifier` does on dense features."""
    Z = dense_columns(data.X, config.layout.n_dense)
    rows = data.with_features(Z)
    problem = ProblemSize(rows.n_rows, rows.n_pairs, config.layout.n_dense, n_classes)
    inner = resolve(dense_solver(problem, config.numbers), problem, numbers=config.numbers)
    trainer = inner.make_trainer(context)
    rows = trainer.accept(rows)
    state = trainer.start(rows, n_classes)
    prepared = trainer.prepare(state, rows)
    schedule = Schedule(inner.n_epochs, inner.solver.learning_rate, None, inner.decay_epochs)
    context.progress.log(f"training on {config.layout.n_dense} dense features, {inner.n_epochs} epochs")
    for epoch in range(inner.n_epochs):
        trainer.epoch(state, prepared, schedule.rates(epoch), _Silent(context))
    found: Any = trainer.export(state)
    factors = found.to_dense() * found.feature_scale
    return Bilinear(DensePart.of_columns(factors.astype("float32"), config.layout.n_dense), found.biases)
