"""The loop over epochs: clock, history, validation, early stopping, interruption.

The clock counts training alone; time spent in validation, in callbacks and in watchers is left out of
``seconds``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from extremax.runtime.context import Context
from extremax.runtime.progress import ProgressLine, format_seconds

if TYPE_CHECKING:
    from extremax.model import Model
    from extremax.solvers.base import Trainer, TrainState

Record: TypeAlias = dict[str, Any]
Callback: TypeAlias = Callable[[Record], bool | None]
Evaluate: TypeAlias = Callable[["Model"], dict[str, float]]


@dataclass(frozen=True)
class Moment:
    """A moment of training: its figures, and the model as it is.

    Attributes
    ----------
    record
        ``epoch``, ``seconds`` and ``loss`` so far; inside an epoch also ``rows``, the pairs done of it.
    model
        Makes a model for prediction when it is called; it must not be kept beyond the moment.
    """

    record: Record
    model: Callable[[], Model]


class Watcher:
    """A callback that is also told of the start and of moments inside an epoch; the clock stands still
    meanwhile.
    """

    def at_start(self, moment: Moment) -> None:
        """Look at the model before the first epoch."""

    def during_epoch(self, moment: Moment) -> None:
        """Look at the model inside an epoch, every few hundred milliseconds."""

    def __call__(self, record: Record) -> bool | None:
        """Look at the record of an epoch; True ends training."""
        return None


@dataclass(frozen=True)
class Schedule:
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
        Epochs, counted from the model's first, over which the step size falls linearly to zero; None keeps
        it.
    """

    n_epochs: int
    learning_rate: float
    patience: int | None = None
    decay_epochs: int | None = None

    def rates(self, epoch: int) -> tuple[float, float]:
        """Return the step size at the beginning and at the end of epoch 0, 1, ..."""
        if self.decay_epochs is None:
            return self.learning_rate, self.learning_rate
        left = (max(self.decay_epochs - done, 0) / self.decay_epochs for done in (epoch, epoch + 1))
        first, last = (self.learning_rate * fraction for fraction in left)
        return first, last


@dataclass
class _Best:
    """The best epoch so far; weights are copied because a later epoch may be worse and is then undone."""

    log_likelihood: float = -np.inf
    epoch: int = 0
    parameters: Any = field(default=None, repr=False)

    def keep(self, state: TrainState, record: Record) -> None:
        self.log_likelihood, self.epoch = record["valid_log_likelihood"], record["epoch"]
        if self.parameters is None:
            self.parameters = state.tables.copy()
        else:
            self.parameters.restore(state.tables)

    def is_over(self, state: TrainState, record: Record, patience: int | None, log: ProgressLine) -> bool:
        """Keep the epoch if it is the best; return whether patience is at its end."""
        if patience is None or "valid_log_likelihood" not in record:
            return False
        if record["valid_log_likelihood"] > self.log_likelihood:
            self.keep(state, record)
        elif record["epoch"] - self.epoch >= patience:
            log.log(f"stopped early: no better validation log-likelihood since epoch {self.epoch}")
            return True
        return False

    def restore(self, state: TrainState) -> None:
        if self.parameters is not None:
            state.tables.restore(self.parameters)


@dataclass(frozen=True)
class Hooks:
    """Functions that the loop calls.

    Attributes
    ----------
    make_model
        Makes the model of a state.
    publish
        Told of the model at the start and after each epoch, before callbacks are.
    evaluate
        Figures of a model on validation rows, or None.
    callbacks
        Each gets every record and may return True to stop; a `Watcher` among them also sees the start and the
        middle.
    """

    make_model: Callable[[], Model]
    publish: Callable[[Model], None] = lambda model: None
    evaluate: Evaluate | None = None
    callbacks: Sequence[Callback] = ()

    @property
    def watchers(self) -> list[Watcher]:
        return [callback for callback in self.callbacks if isinstance(callback, Watcher)]


class _Clock:
    """Training time, progress line, interrupts and watchers; pauses are not part of the training time."""

    def __init__(self, context: Context, hooks: Hooks, n_epochs: int, seconds: float, n_before: int) -> None:
        self.context, self.make_model, self.watchers = context, hooks.make_model, hooks.watchers
        self.n_epochs, self.n_before, self.began = n_epochs, n_before, time.perf_counter()
        self.seconds, self.started, self.epoch, self.n_pairs = seconds, 0.0, 0, 0

    def begin(self, epoch: int, n_pairs: int) -> None:
        self.epoch, self.n_pairs, self.started = epoch, n_pairs, time.perf_counter()

    def end(self) -> None:
        """Add the time since the last pause to the training time."""
        self.seconds += time.perf_counter() - self.started

    def check(self) -> None:
        self.context.interrupts.check()

    def report(self, pairs_done: int, loss: float) -> None:
        label = f"epoch {self.epoch}/{self.n_before + self.n_epochs}"
        done = (self.epoch - self.n_before - 1) * self.n_pairs + pairs_done
        total = self.n_epochs * self.n_pairs
        detail = f"loss {loss:.4f}" if loss == loss else ""
        self.context.progress.update(label, done, total, self.began, detail, unit="rows")
        if self.watchers:
            self.end()
            record = {"epoch": self.epoch, "rows": pairs_done, "seconds": self.seconds, "loss": loss}
            with self.context.interrupts.immediate():
                for watcher in self.watchers:
                    watcher.during_epoch(Moment(record, self.make_model))
            self.started = time.perf_counter()


def run_epochs(
    trainer: Trainer,
    state: TrainState,
    prepared: Any,
    schedule: Schedule,
    history: list[Record],
    hooks: Hooks,
    context: Context,
) -> bool:
    """Train `state` in place, appending one record per epoch to `history`.

    With `patience`, the parameters of the best validated epoch are put back at the end, however it ends.
    Returns whether the run was cut short by Ctrl-C; without a best epoch to go back to, the state is then as
    after the last minibatch. A loss that is no longer finite is a ValueError."""
    best, log = _Best(epoch=state.n_epochs), context.progress
    # Only a run that is validated has a best epoch to go back to, whatever the runs before it were.
    validated = hooks.evaluate is not None and history[-1].get("valid_log_likelihood") is not None
    if schedule.patience is not None and validated:
        best.keep(state, history[-1])  # where the run starts may stay the best
    clock = _Clock(context, hooks, schedule.n_epochs, history[-1]["seconds"], state.n_epochs)
    interrupts = context.interrupts
    n_last, state.cut_short = state.n_epochs + schedule.n_epochs, False
    try:
        with interrupts.deferred():
            try:
                with interrupts.immediate():
                    for watcher in hooks.watchers:
                        watcher.at_start(Moment(history[-1], hooks.make_model))
                for _ in range(schedule.n_epochs):
                    clock.begin(state.n_epochs + 1, prepared.data.n_pairs)
                    rates = schedule.rates(state.n_epochs)
                    loss = trainer.epoch(state, prepared, rates, clock)
                    clock.end()
                    loss = _check_loss(loss, state.n_epochs, schedule.learning_rate)
                    record = {"epoch": state.n_epochs, "seconds": clock.seconds, "loss": loss}
                    history.append({**record, "learning_rate": rates[0]})
                    stop = _close_epoch(history[-1], hooks, context)
                    is_over = best.is_over(state, history[-1], schedule.patience, log)
                    state.cut_short = stop and not is_over and state.n_epochs < n_last
                    if is_over or stop:
                        break
                    interrupts.check()
            finally:  # Ctrl-C must not put the best epoch back by half
                log.close()
                best.restore(state)
    except KeyboardInterrupt:
        return True
    return False


def _close_epoch(record: Record, hooks: Hooks, context: Context) -> bool:
    """Validate the model after an epoch and tell callbacks of it; return whether one wants to stop.

    Both may take long: Ctrl-C ends them at once, and the record stays as far as it got.
    """
    if hooks.evaluate is not None or hooks.callbacks:  # nobody else looks at a model between epochs
        model = hooks.make_model()
        if hooks.evaluate is not None:
            with context.interrupts.immediate():
                record |= {f"valid_{name}": value for name, value in hooks.evaluate(model).items()}
        hooks.publish(model)
    context.progress.log(_line(record))
    with context.interrupts.immediate():
        wishes = [callback(record) for callback in hooks.callbacks]  # each hears of it, whatever others want
    return any(wishes)


def _check_loss(loss: float | None, epoch: int, learning_rate: float) -> float:
    """Return the loss, NaN where none is known; refuse one that is not finite."""
    if loss is None:
        return float("nan")
    if not np.isfinite(loss):
        raise ValueError(
            f"Training diverged: the loss of epoch {epoch} is {loss}. Use a smaller learning_rate (it is"
            f" {learning_rate:g}), optimizer='adagrad', or smaller sample weights."
        )
    return loss


def _line(record: Record) -> str:
    text = f"epoch {record['epoch']}  {format_seconds(record['seconds'])}"
    if record["loss"] == record["loss"]:  # unknown on few rows
        text += f"  loss {record['loss']:.4f}"
    if "valid_log_likelihood" in record:
        text += f"  valid log-likelihood {record['valid_log_likelihood']:.4f}"
        text += f"  accuracy {record['valid_accuracy']:.2%}"
    return text
