"""Weights on dense columns beside sparse ones: the default training of dense features, on these alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeAlias

from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.scores.sparse import DensePart, dense_columns
from extremax.solvers.base import Trainer
from extremax.solvers.bilinear import Bilinear
from extremax.solvers.config import FitConfig, choose_objective, resolve
from extremax.solvers.loop import Schedule
from extremax.tuned import ProblemSize

MakeTrainer: TypeAlias = Callable[[FitConfig, Context], Trainer]
_CHOSEN_ANEW = ("optimizer", "n_epochs", "learning_rate", "batch_size", "score_penalty")


class _Silent:
    """Progress of the inner training: interrupts are looked at, nothing is shown."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def check(self) -> None:
        self.context.interrupts.check()

    def report(self, pairs_done: int, loss: float) -> None:
        pass


def fit_dense(
    data: Examples, n_classes: int, config: FitConfig, context: Context, make_trainer: MakeTrainer
) -> Bilinear:
    """Train on the last columns of X alone, as `ExtremeClassifier` does on dense features."""
    Z = dense_columns(data.X, config.n_dense)
    rows = data.with_features(Z)
    problem = ProblemSize(rows.n_rows, rows.n_pairs, config.n_dense, n_classes)
    given: dict[str, Any] = {**asdict(config), "noise": config.noise} | dict.fromkeys(_CHOSEN_ANEW)
    chosen = choose_objective(given, problem, config.numbers)
    given["objective"] = chosen if chosen == "candidate_softmax" else "shared_softmax"
    inner = resolve(given, problem, numbers=config.numbers)
    trainer = make_trainer(inner, context)
    rows = trainer.accept(rows)
    state = trainer.start(rows, n_classes)
    prepared = trainer.prepare(state, rows)
    decay = inner.n_epochs if inner.decays else None
    schedule = Schedule(inner.n_epochs, inner.learning_rate, None, decay)
    context.progress.log(f"training on {config.n_dense} dense features, {inner.n_epochs} epochs")
    for epoch in range(inner.n_epochs):
        trainer.epoch(state, prepared, schedule.rates(epoch), _Silent(context))
    found: Any = trainer.export(state)
    factors = found.to_dense() * found.feature_scale
    return Bilinear(DensePart.of_columns(factors.astype("float32"), config.n_dense), found.biases)
