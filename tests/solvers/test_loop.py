"""The loop over epochs: records, clock, early stopping, callbacks, Ctrl-C, lines in the terminal."""

from __future__ import annotations

import io
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from extremax.examples import Examples
from extremax.model import Model
from extremax.runtime.context import Context
from extremax.runtime.progress import ProgressLine
from extremax.solvers import loop
from extremax.solvers.loop import Hooks, Schedule, Watcher, run_epochs
from extremax.tree.noise import UniformNoise
from extremax.tuned import DEFAULTS, replace_numbers
from planted import around_means
from trainers import run_by_rows

N_ROWS = 60
# A look at progress and keyboard after every minibatch, not after a hundred thousand pairs.
LOOKS = replace_numbers(DEFAULTS, rows={"progress_pairs": 1})
START = {"epoch": 0, "seconds": 0.0, "loss": float("nan"), "learning_rate": 0.2}


def problem(n_threads=1):
    """Four minibatches an epoch."""
    X, y = around_means(N_ROWS, 4, 3, spread=0.5)
    options = {"scale": 1.0, "seed": 0, "numbers": LOOKS, "n_threads": n_threads}
    return run_by_rows(Examples(X, y), UniformNoise(4), **options)


class Fit:
    """A run in the loop; the model that hooks see is the state itself."""

    def __init__(self, run=None, history=None, progress=None):
        self.run = problem() if run is None else run
        self.history = [dict(START)] if history is None else history
        self.context = Context(progress=ProgressLine(0) if progress is None else progress)

    def train(self, n_epochs, rate=0.2, *, patience=None, evaluate=None, callbacks=(), publish=None):
        schedule = Schedule(n_epochs, rate, patience)
        hooks = Hooks(lambda: self.state, publish or (lambda model: None), evaluate, callbacks)
        return run_epochs(
            self.run.trainer, self.state, self.run.prepared, schedule, self.history, hooks, self.context
        )

    @property
    def state(self):
        return self.run.state

    @property
    def weights(self):
        return self.run.weights


class Script:
    """An `evaluate` that reads log-likelihoods from a list and keeps the weights it was asked about."""

    def __init__(self, values):
        self.values, self.seen = iter(values), []

    def __call__(self, state):
        self.seen.append((state.tables.weights.copy(), state.tables.biases.copy()))
        return {"log_likelihood": next(self.values), "accuracy": 0.5}


def assert_parameters(fit, parameters):
    np.testing.assert_array_equal(fit.weights, parameters[0])
    np.testing.assert_array_equal(fit.run.biases, parameters[1])


# -- records


@pytest.mark.small
def test_history_has_one_record_per_epoch():
    fit = Fit()
    assert fit.train(3) is False  # not interrupted
    records = fit.history[1:]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["learning_rate"] for record in records] == [0.2] * 3
    assert all(set(record) == {"epoch", "seconds", "loss", "learning_rate"} for record in records)
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.0


@pytest.mark.small
@pytest.mark.identity
def test_training_is_its_epochs():
    ours, theirs = Fit(), problem().epochs(3)
    ours.train(3)
    assert [record["loss"] for record in ours.history[1:]] == theirs.losses
    assert_parameters(ours, (theirs.weights, theirs.biases))
    assert ours.state.n_epochs == 3


def test_a_second_run_goes_on_where_the_first_ended():
    ours = Fit(history=[{**START, "seconds": 10.0}])
    ours.train(2)
    ours.train(1, 0.1)
    theirs = problem().epochs(2).epochs(1, 0.1)
    assert [record["epoch"] for record in ours.history] == [0, 1, 2, 3]
    assert [record["learning_rate"] for record in ours.history] == [0.2, 0.2, 0.2, 0.1]
    seconds = [record["seconds"] for record in ours.history[1:]]
    assert 10.0 < seconds[0] < seconds[1] < seconds[2]
    assert_parameters(ours, (theirs.weights, theirs.biases))


def test_validation_figures_are_in_the_record():
    fit = Fit()
    fit.train(2, evaluate=Script([-1.5, -1.25]))
    assert [record["valid_log_likelihood"] for record in fit.history[1:]] == [-1.5, -1.25]
    assert [record["valid_accuracy"] for record in fit.history[1:]] == [0.5, 0.5]


@pytest.mark.small
def test_no_epochs_change_nothing():
    fit = Fit()
    assert fit.train(0, patience=1, evaluate=Script([])) is False
    assert len(fit.history) == 1
    assert not fit.weights.any()


@pytest.mark.error
def test_loss_that_is_not_finite_rejects():
    fit = Fit()
    fit.run.trainer = Scripted([0.5, np.inf])
    with pytest.raises(
        ValueError, match=r"the loss of epoch 2 is inf\. Use a smaller learning_rate \(it is 0.2\)"
    ):
        fit.train(3)
    assert len(fit.history) == 2


@pytest.mark.parametrize(
    ("decay_epochs", "rates"),
    [
        (None, [(0.4, 0.4)] * 3),
        (4, [(0.4, 0.3), (0.3, 0.2), (0.2, 0.1)]),
        (2, [(0.4, 0.2), (0.2, 0), (0, 0)]),
    ],
)
def test_step_size_falls_in_a_straight_line(decay_epochs, rates):
    schedule = Schedule(3, 0.4, decay_epochs=decay_epochs)
    np.testing.assert_allclose([schedule.rates(epoch) for epoch in range(3)], rates)


# -- the clock


class Scripted:
    """A trainer whose epochs have given losses; `spend` is called in each of them."""

    def __init__(self, losses, spend=lambda progress: None):
        self.losses, self.spend = iter(losses), spend

    def epoch(self, state, prepared, rates, progress):
        self.spend(progress)
        state.n_epochs += 1
        return next(self.losses)


@pytest.fixture
def now(monkeypatch):
    """A clock of our own: the first element of a list."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_seconds_leave_out_evaluation_and_callbacks(now):
    """An epoch takes 1 s, a validation 100 s, a callback 10,000 s."""

    def spend(seconds, result=None):
        now[0] += seconds
        return result

    fit = Fit(history=[{**START, "seconds": 5.0}])
    fit.run.trainer = Scripted([0.25] * 3, lambda progress: spend(1.0))
    fit.train(
        3,
        evaluate=lambda model: spend(100.0, {"log_likelihood": -1.0, "accuracy": 0.0}),
        callbacks=[lambda record: spend(10_000.0)],
    )
    assert [record["seconds"] for record in fit.history] == [5.0, 6.0, 7.0, 8.0]
    assert now[0] == 3 * 10_101.0


def test_watcher_sees_the_start_and_the_middle_outside_the_clock(now):
    """Minibatches of 1 s, looks of 1,000 s: the seconds told and recorded are those of the minibatches."""
    seen = []

    class Look(Watcher):
        def at_start(self, moment):
            seen.append((moment.record["epoch"], "start", moment.record["seconds"]))
            now[0] += 1_000.0

        def during_epoch(self, moment):
            record = moment.record
            seen.append((record["epoch"], record["rows"], record["seconds"]))
            assert record["loss"] == 0.5
            now[0] += 1_000.0

        def __call__(self, record):
            seen.append((record["epoch"], "end", record["seconds"]))

    def two_minibatches(progress):
        for rows in (30, 60):
            now[0] += 1.0
            progress.report(rows, 0.5)

    fit = Fit(history=[{**START, "seconds": 5.0}])
    fit.run.trainer = Scripted([0.25] * 2, two_minibatches)
    fit.train(2, callbacks=[Look()])
    middles = [(1, 30, 6.0), (1, 60, 7.0), (1, "end", 7.0), (2, 30, 8.0), (2, 60, 9.0), (2, "end", 9.0)]
    assert seen == [(0, "start", 5.0), *middles]


def test_model_is_published_before_callbacks_hear_of_it():
    fit, heard = Fit(), []
    fit.train(
        2,
        evaluate=lambda model: heard.append("evaluated") or {"log_likelihood": 0.0, "accuracy": 0.0},
        publish=lambda model: heard.append("published"),
        callbacks=[lambda record: heard.append(record["epoch"])],
    )
    assert heard == ["evaluated", "published", 1, "evaluated", "published", 2]


# -- early stopping


@pytest.mark.parametrize(
    ("values", "patience", "n_epochs", "best"),
    [
        ([-3.0, -2.0, -2.5, -2.4, -1.0], 2, 4, 2),  # two epochs without a better one; the fifth is never run
        ([-3.0, -2.0, -2.5, -1.0, -1.5], 2, 5, 4),  # a better one in time starts the count again
        ([-3.0, -4.0, -2.0], 1, 2, 1),
        ([-3.0, -2.0, -1.0], 1, 3, 3),
        ([-1.0, -1.0, -1.0, -1.0, 0.0], 3, 4, 1),  # equal is not better
        ([-2.0, -1.0, -3.0], 5, 3, 2),  # ends before its patience does: the best epoch all the same
        ([np.nan, np.nan, np.nan], 2, 2, None),
        ([np.nan, -1.0, -2.0, -2.0, -2.0], 2, 4, 2),
        ([-np.inf, -np.inf, -np.inf, -1.0], 3, 3, None),
    ],
)
@pytest.mark.parametrize("epochs_before", [0, 4])
def test_patience_restores_the_best_epoch(values, patience, n_epochs, best, epochs_before):
    fit, script = Fit(), Script(values)
    fit.train(epochs_before)
    assert fit.train(len(values), patience=patience, evaluate=script) is False
    assert len(fit.history) == 1 + epochs_before + n_epochs
    assert_parameters(fit, script.seen[n_epochs - 1 if best is None else best - 1])
    # every epoch was another model
    assert len({parameters[0].tobytes() for parameters in script.seen}) == n_epochs
    assert fit.state.n_epochs == epochs_before + n_epochs


def test_start_that_was_validated_may_stay_the_best():
    fit = Fit(history=[{**START, "valid_log_likelihood": -0.5}])
    fit.train(3, patience=2, evaluate=Script([-1.0, -1.0, -1.0]))
    assert len(fit.history) == 3
    assert not fit.weights.any()


def test_without_patience_the_last_epoch_stays():
    fit, script = Fit(), Script([-1.0, -2.0, -3.0])
    fit.train(3, evaluate=script)
    assert len(fit.history) == 4
    assert_parameters(fit, script.seen[2])


def test_patience_without_validation_never_stops():
    fit = Fit()
    assert fit.train(4, patience=1) is False
    assert len(fit.history) == 5


def test_run_without_validation_after_one_with_it_keeps_what_it_learns():
    fit = Fit()
    fit.train(1, patience=2, evaluate=Script([-1.0]))
    before = fit.weights.copy()
    fit.train(1, patience=2)
    assert np.any(fit.weights != before)


# -- callbacks


def test_callbacks_get_the_record_and_can_stop():
    fit, first, second = Fit(), [], []

    def stop_at_two(record):
        first.append(record)
        return record["epoch"] == 2

    assert fit.train(5, callbacks=[stop_at_two, second.append]) is False  # a wish, not an accident
    assert first == second == fit.history[1:]  # the later callback also hears of the last epoch
    assert all(a is b for a, b in zip(first, fit.history[1:], strict=True))
    assert fit.state.n_epochs == len(first) == 2


@pytest.mark.parametrize(("values", "best"), [([-1.0, -2.0, -3.0], 0), ([-2.0, -1.0, -3.0], 1)])
def test_stopping_by_callback_keeps_the_best_epoch(values, best):
    fit, script = Fit(), Script(values)
    fit.train(3, patience=3, evaluate=script, callbacks=[lambda record: record["epoch"] == 2])
    assert len(fit.history) == 3
    assert_parameters(fit, script.seen[best])


def test_errors_of_callbacks_come_through():
    def broken(record):
        raise RuntimeError("disk full")

    fit = Fit()
    with pytest.raises(RuntimeError, match="disk full"):
        fit.train(3, callbacks=[broken])
    assert len(fit.history) == 2


# -- Ctrl-C


class Interrupting(ProgressLine):
    """Sends this process the signal of Ctrl-C after some minibatches."""

    def __init__(self, after):
        super().__init__(0)
        self.left, self.closed = after, False

    def update(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("n_threads", [1, 2])
def test_ctrl_c_keeps_the_model_usable(n_threads):
    progress = Interrupting(after=6)  # four minibatches an epoch: in the middle of the second
    fit, reference = Fit(problem(n_threads), progress=progress), problem().epochs(1)
    assert fit.train(5) is True
    assert progress.closed
    assert [record["epoch"] for record in fit.history] == [0, 1]
    assert fit.state.n_epochs == 1
    assert np.any(fit.weights != reference.weights)  # as far as it got ...
    assert np.isfinite(fit.weights).all()
    assert fit.train(1) is False  # ... and it goes on from there
    assert [record["epoch"] for record in fit.history] == [0, 1, 2]


def press(*args):
    signal.raise_signal(signal.SIGINT)
    raise AssertionError("it went on after Ctrl-C")


@pytest.mark.parametrize("where", ["evaluate", "callback", "at_start", "during_epoch"])
def test_ctrl_c_ends_validation_and_callbacks_at_once(where):
    class Look(Watcher):
        at_start = press if where == "at_start" else Watcher.at_start
        during_epoch = press if where == "during_epoch" else Watcher.during_epoch

    fit, reference = Fit(), problem()
    callbacks = [Look(), *([press] if where == "callback" else [])]
    assert fit.train(5, evaluate=press if where == "evaluate" else None, callbacks=callbacks) is True
    n_epochs = 1 if where in ("evaluate", "callback") else 0
    assert fit.state.n_epochs == n_epochs
    assert [record["epoch"] for record in fit.history] == [0, 1][: n_epochs + 1]
    reference.epochs(n_epochs)
    if where != "during_epoch":
        assert_parameters(fit, (reference.weights, reference.biases))


def test_ctrl_c_with_patience_goes_back_to_the_best_epoch():
    fit, script = Fit(progress=Interrupting(after=10)), Script([-1.0, -2.0])  # in the third epoch
    assert fit.train(5, patience=3, evaluate=script) is True
    assert_parameters(fit, script.seen[0])


def test_ctrl_c_before_anything_was_validated_keeps_what_there_is():
    fit = Fit(progress=Interrupting(after=2))
    assert fit.train(5, patience=3, evaluate=Script([])) is True
    assert fit.weights.any()


def test_handler_of_ctrl_c_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    fit = Fit(progress=Interrupting(after=2))
    fit.train(5)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(RuntimeError):
        fit.train(1, callbacks=[lambda record: (_ for _ in ()).throw(RuntimeError)])
    assert signal.getsignal(signal.SIGINT) is before


# -- the lines in the terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_report_has_a_line_per_epoch():
    stream = io.StringIO()
    fit = Fit(progress=ProgressLine(1, stream))
    fit.train(9, patience=2, evaluate=Script([-1.5, -2.5, -2.5]))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4  # no bar: this is no terminal
    assert lines[0].startswith("epoch 1  ")
    assert "valid log-likelihood -1.5000  accuracy 50.00%" in lines[0]
    assert lines[3] == "stopped early: no better validation log-likelihood since epoch 1"


def test_progress_is_drawn_and_wiped_in_a_terminal():
    stream = Terminal()
    Fit(progress=ProgressLine(1, stream)).train(1)
    parts = stream.getvalue().split("\r")
    assert any("epoch 1/1  100%" in part and "rows/s" in part and "loss" in part for part in parts)
    assert parts[-1].startswith("epoch 1  ")  # wiped, then the finished line
    assert parts[-2].strip() == ""


def test_silence_writes_nothing():
    stream = Terminal()
    Fit(progress=ProgressLine(0, stream)).train(2)
    assert stream.getvalue() == ""


def test_bar_counts_the_whole_fit():
    seen = []

    class Counting(ProgressLine):
        def update(self, label, done, total, *more, **options):
            seen.append((label, done, total))

    Fit(progress=Counting(1, Terminal())).train(3)
    assert [entry for entry in seen if entry[1] % N_ROWS == 0] == [
        (f"epoch {epoch}/3", epoch * N_ROWS, 3 * N_ROWS) for epoch in (1, 2, 3)
    ]


def test_moment_makes_the_model_when_it_is_asked():
    made = []

    class Look(Watcher):
        def during_epoch(self, moment):
            if moment.record["rows"] == 32:
                made.append(moment.model())

    run = problem()
    calls = []

    def make_model():
        calls.append(run.state.n_epochs)
        return Model(run.trainer.export(run.state), "negative_sampling")

    hooks = Hooks(make_model, callbacks=[Look()])
    run_epochs(run.trainer, run.state, run.prepared, Schedule(2, 0.2), [dict(START)], hooks, Context())
    # once in each epoch for the watcher, once after it
    assert calls == [0, 1, 1, 2]
    assert made[0].n_classes == 4
