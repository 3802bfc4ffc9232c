"""The loop over epochs: clock, history, validation, early stopping, interruption.

The clock counts training alone; time spent in validation, in callbacks and in watchers is left out of
``seconds``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.linear import EpochOptions, LinearModel, TrainingSet, train_epoch
from extremax.runtime.progress import ProgressLine, format_seconds
from extremax.shared import SharedSet, train_shared_epoch

Record = dict[str, Any]
Callback = Callable[[Record], bool | None]


class Watcher:
    """A callback that is also told of the start and of moments inside an epoch, with the clock standing still
    meanwhile.

    Subclasses override what they need. All weights are consistent whenever a method is called, so that the
    model can be evaluated; it must not be changed."""

    def at_start(self, record: Record) -> None:
        """Before the first epoch, with the last record so far."""

    def wants(self, record: Record) -> bool:
        """Whether `during_epoch` is worth calling now: for some models, weights have to be made ready for
        it.
        """
        return True

    def during_epoch(self, record: Record) -> None:
        """Every few hundred milliseconds: ``epoch``, ``rows`` done of it, ``seconds`` and ``loss`` so far."""

    def __call__(self, record: Record) -> bool | None:
        """After each epoch; True ends training."""
        return None


@dataclass(frozen=True)
class Plan:
    """How long to train.

    Attributes
    ----------
    n_epochs
        Epochs at most.
    learning_rate
        Step size, at the start.
    patience
        Stop after this many epochs without a better validation log-likelihood; None never stops early.
    decay_epochs
        Epochs, counted from the model's first, over which the step size falls to zero, in a straight line;
        None keeps it.
    """

    n_epochs: int
    learning_rate: float
    patience: int | None = None
    decay_epochs: int | None = None

    def rates(self, epoch: int) -> tuple[float, float]:
        """Step size at the beginning and at the end of epoch 0, 1, ..."""
        if self.decay_epochs is None:
            return self.learning_rate, self.learning_rate
        left = (max(self.decay_epochs - done, 0) / self.decay_epochs for done in (epoch, epoch + 1))
        first, last = (self.learning_rate * share for share in left)
        return first, last


@dataclass
class _Best:
    """The best epoch so far; weights are copied only when a later epoch may be worse and is to be undone."""

    log_likelihood: float = -np.inf
    epoch: int = 0
    parameters: tuple[NDArray[np.float32], NDArray[np.float32]] | None = field(default=None, repr=False)

    def keep(self, model: LinearModel, record: Record) -> None:
        self.log_likelihood, self.epoch = record["valid_log_likelihood"], record["epoch"]
        if self.parameters is None:
            self.parameters = model.weights.copy(), model.biases.copy()
        else:
            np.copyto(self.parameters[0], model.weights)
            np.copyto(self.parameters[1], model.biases)

    def restore(self, model: LinearModel) -> None:
        if self.parameters is not None:
            np.copyto(model.weights, self.parameters[0])
            np.copyto(model.biases, self.parameters[1])


def train(
    model: LinearModel,
    data: TrainingSet | SharedSet,
    options: EpochOptions | None,
    plan: Plan,
    *,
    history: list[Record],
    evaluate: Callable[[], dict[str, float]] | None = None,
    callbacks: Sequence[Callback] = (),
    report: ProgressLine | None = None,
) -> bool:
    """Train `model` in place, appending one record per epoch to `history`.

    A callback gets each record and may return True to stop; a `Watcher` among them also sees the start and
    the middle. With `patience`, the parameters of the best validated epoch are put back at the end, however
    it ends. Returns False when the run was cut short by Ctrl-C; without a best epoch to go back to, the model
    is then as after the last minibatch. A loss that is no longer finite is a ValueError."""
    report = report or ProgressLine(0)
    best = _Best(epoch=model.n_epochs)
    seconds = history[-1]["seconds"] if history else 0.0
    n_rows, n_before = len(data.y), model.n_epochs
    began = time.perf_counter()
    finished = True
    # Only a run that is validated has a best epoch to go back to, whatever the runs before it were.
    if (
        plan.patience is not None
        and evaluate is not None
        and history
        and history[-1].get("valid_log_likelihood") is not None
    ):
        best.keep(model, history[-1])  # where the run starts may stay the best
    watchers = [callback for callback in callbacks if isinstance(callback, Watcher)]
    try:
        for watcher in watchers:
            watcher.at_start(history[-1] if history else {"epoch": model.n_epochs, "seconds": seconds})
        for _ in range(plan.n_epochs):
            epoch = model.n_epochs + 1
            started = time.perf_counter()
            paused = 0.0

            def show(rows: int, loss: float) -> None:
                nonlocal paused
                label, done = (
                    f"epoch {epoch}/{n_before + plan.n_epochs}",
                    (epoch - n_before - 1) * n_rows + rows,
                )
                report.update(label, done, plan.n_epochs * n_rows, began, f"loss {loss:.4f}", unit="rows")
                looked = time.perf_counter()
                moment = {
                    "epoch": epoch,
                    "rows": rows,
                    "seconds": seconds + looked - started - paused,
                    "loss": loss,
                }
                wanted = [watcher for watcher in watchers if watcher.wants(moment)]
                if wanted:
                    with data.for_prediction(model) if isinstance(data, SharedSet) else nullcontext():
                        for watcher in wanted:
                            watcher.during_epoch(moment)
                paused += time.perf_counter() - looked

            rates = plan.rates(model.n_epochs)
            if isinstance(data, SharedSet):
                loss = train_shared_epoch(model, data, learning_rate=rates, progress=show)
            else:
                assert options is not None
                loss = train_epoch(model, data, options, learning_rate=rates[0], progress=show)
            seconds += time.perf_counter() - started - paused
            if not np.isfinite(loss):
                raise ValueError(
                    f"Training diverged: the loss of epoch {epoch} is {loss}. Use a smaller learning_rate (it is"
                    f" {plan.learning_rate:g}), optimizer='adagrad', or smaller sample weights."
                )
            record: Record = {"epoch": epoch, "seconds": seconds, "loss": loss, "learning_rate": rates[0]}
            if evaluate is not None:
                record |= {f"valid_{name}": value for name, value in evaluate().items()}
            history.append(record)
            report.say(_line(record))
            # each hears of the epoch, whatever the others want
            wishes = [callback(record) for callback in callbacks]
            stop = any(wishes)
            if plan.patience is not None and "valid_log_likelihood" in record:
                if record["valid_log_likelihood"] > best.log_likelihood:
                    best.keep(model, record)
                elif epoch - best.epoch >= plan.patience:
                    report.say(f"stopped early: no better validation log-likelihood since epoch {best.epoch}")
                    stop = True
            if stop:
                break
    except KeyboardInterrupt:
        finished = False
    finally:
        report.close()
        best.restore(model)
    return finished


def _line(record: Record) -> str:
    text = f"epoch {record['epoch']}  {format_seconds(record['seconds'])}  loss {record['loss']:.4f}"
    if "valid_log_likelihood" in record:
        text += f"  valid log-likelihood {record['valid_log_likelihood']:.4f}  accuracy {record['valid_accuracy']:.2%}"
    return text
