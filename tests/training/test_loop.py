"""The loop over epochs: records, clock, early stopping, callbacks, Ctrl-C, and the line that shows it."""

from __future__ import annotations

import io
import itertools
import signal
import threading
import time

import numpy as np
import pytest
from extremax.linear import EpochOptions, LinearModel, TrainingSet, train_epoch

from extremax import linear, progress, training
from extremax.noise import UniformNoise
from extremax.runtime.progress import ProgressLine, format_seconds
from extremax.runtime.threads import run_together
from extremax.training.loop import Plan, train
from extremax.training.objectives import OBJECTIVES

N_ROWS = 60


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    """A look at progress and keyboard after every minibatch, not after a hundred thousand pairs."""
    monkeypatch.setattr(linear, "_STRETCH_PAIRS", 1)


def problem(n_threads=1):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=N_ROWS).astype(np.int32)
    X = (rng.standard_normal((4, 3))[y] + 0.5 * rng.standard_normal((N_ROWS, 3))).astype(np.float32)
    noise, Z = UniformNoise(4), np.empty((N_ROWS, 0), np.float32)
    data = TrainingSet(X, y, Z, np.ones(N_ROWS, np.float32), noise.log_prob(Z, y))
    options = EpochOptions(
        objective=OBJECTIVES["negative_sampling"], noise=noise, batch_size=16, n_threads=n_threads
    )
    return LinearModel.zeros(4, 3), data, options


class Script:
    """An `evaluate` that reads its log-likelihoods from a list and keeps the parameters it was asked
    about.
    """

    def __init__(self, model, values):
        self.model, self.values, self.seen = model, iter(values), []

    def __call__(self):
        self.seen.append((self.model.weights.copy(), self.model.biases.copy()))
        return {"log_likelihood": next(self.values), "accuracy": 0.5}


def assert_parameters(model, parameters):
    np.testing.assert_array_equal(model.weights, parameters[0])
    np.testing.assert_array_equal(model.biases, parameters[1])


# -- records
# -------------------------------------------------------------------------------------------------------------------


@pytest.mark.small
def test_history_has_one_record_per_epoch():
    model, data, options = problem()
    history = []
    assert train(model, data, options, Plan(3, 0.2), history=history) is True
    assert [record["epoch"] for record in history] == [1, 2, 3]
    assert [record["learning_rate"] for record in history] == [0.2] * 3
    assert all(set(record) == {"epoch", "seconds", "loss", "learning_rate"} for record in history)
    seconds = [record["seconds"] for record in history]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0.0


@pytest.mark.small
def test_training_is_its_epochs_identity():
    (ours, data, options), (theirs, _, _) = problem(), problem()
    history = []
    train(ours, data, options, Plan(3, 0.2), history=history)
    losses = [train_epoch(theirs, data, options, learning_rate=0.2) for _ in range(3)]
    assert [record["loss"] for record in history] == losses
    assert_parameters(ours, (theirs.weights, theirs.biases))
    assert ours.n_epochs == 3


def test_a_second_run_goes_on_where_the_first_ended():
    (ours, data, options), (theirs, _, _) = problem(), problem()
    history = [{"epoch": 0, "seconds": 10.0, "loss": float("nan"), "learning_rate": 0.2}]
    train(ours, data, options, Plan(2, 0.2), history=history)
    train(ours, data, options, Plan(1, 0.1), history=history)
    train(theirs, data, options, Plan(2, 0.2), history=[])
    train(theirs, data, options, Plan(1, 0.1), history=[])
    assert [record["epoch"] for record in history] == [0, 1, 2, 3]
    assert [record["learning_rate"] for record in history] == [0.2, 0.2, 0.2, 0.1]
    assert 10.0 < history[1]["seconds"] < history[2]["seconds"] < history[3]["seconds"]
    assert_parameters(ours, (theirs.weights, theirs.biases))


def test_validation_figures_are_in_the_record():
    model, data, options = problem()
    history = []
    train(model, data, options, Plan(2, 0.2), history=history, evaluate=Script(model, [-1.5, -1.25]))
    assert [record["valid_log_likelihood"] for record in history] == [-1.5, -1.25]
    assert [record["valid_accuracy"] for record in history] == [0.5, 0.5]


@pytest.mark.small
def test_no_epochs_change_nothing():
    model, data, options = problem()
    history = []
    assert (
        train(model, data, options, Plan(0, 0.2, patience=1), history=history, evaluate=Script(model, []))
        is True
    )
    assert history == []
    assert not model.weights.any()


def test_seconds_leave_out_evaluation_and_callbacks(monkeypatch):
    """With a clock of our own: an epoch takes 1 s, a validation 100 s, a callback 10,000 s."""
    now = [0.0]
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])

    def spend(seconds, result):
        now[0] += seconds
        return result

    monkeypatch.setattr(training, "train_epoch", lambda model, *args, **kwargs: spend(1.0, 0.25))
    model, data, options = problem()
    history = [{"epoch": 0, "seconds": 5.0}]
    train(
        model,
        data,
        options,
        Plan(3, 0.2),
        history=history,
        evaluate=lambda: spend(100.0, {"log_likelihood": -1.0, "accuracy": 0.0}),
        callbacks=[lambda record: spend(10_000.0, None)],
    )
    assert [record["seconds"] for record in history] == [5.0, 6.0, 7.0, 8.0]
    assert now[0] == 3 * 10_101.0


def test_watcher_sees_the_start_and_the_middle_outside_the_clock(monkeypatch):
    """Minibatches of 1 s, looks of 1,000 s: the seconds told and recorded are those of the minibatches
    alone.
    """
    now, seen = [0.0], []
    monkeypatch.setattr(training.time, "perf_counter", lambda: now[0])

    class Look(training.Watcher):
        def at_start(self, record):
            seen.append((record["epoch"], "start", record["seconds"]))

        def during_epoch(self, record):
            seen.append((record["epoch"], record["rows"], record["seconds"]))
            now[0] += 1_000.0

        def __call__(self, record):
            seen.append((record["epoch"], "end", record["seconds"]))

    def epoch_of_two_minibatches(model, *args, progress, **kwargs):
        for rows in (30, 60):
            now[0] += 1.0
            progress(rows, 0.5)
        model.n_epochs += 1
        return 0.25

    monkeypatch.setattr(training, "train_epoch", epoch_of_two_minibatches)
    model, data, options = problem()
    train(model, data, options, Plan(2, 0.2), history=[{"epoch": 0, "seconds": 5.0}], callbacks=[Look()])
    middles = [(1, 30, 6.0), (1, 60, 7.0), (1, "end", 7.0), (2, 30, 8.0), (2, 60, 9.0), (2, "end", 9.0)]
    assert seen == [(0, "start", 5.0), *middles]


# -- early stopping
# ------------------------------------------------------------------------------------------------------------


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
    model, data, options = problem()
    train(model, data, options, Plan(epochs_before, 0.2), history=[])
    history, script = [], Script(model, values)
    finished = train(
        model, data, options, Plan(len(values), 0.2, patience=patience), history=history, evaluate=script
    )
    assert finished is True
    assert len(history) == n_epochs
    assert_parameters(model, script.seen[n_epochs - 1 if best is None else best - 1])
    # every epoch was another model
    assert len({parameters[0].tobytes() for parameters in script.seen}) == n_epochs
    assert model.n_epochs == epochs_before + n_epochs


def test_without_patience_the_last_epoch_stays():
    model, data, options = problem()
    history, script = [], Script(model, [-1.0, -2.0, -3.0])
    train(model, data, options, Plan(3, 0.2), history=history, evaluate=script)
    assert len(history) == 3
    assert_parameters(model, script.seen[2])


def test_patience_without_validation_never_stops():
    model, data, options = problem()
    history = []
    assert train(model, data, options, Plan(4, 0.2, patience=1), history=history)
    assert len(history) == 4


def test_run_without_validation_after_one_with_it_keeps_what_it_learns():
    model, data, options = problem()
    history = []
    train(model, data, options, Plan(1, 0.2, patience=2), history=history, evaluate=Script(model, [-1.0]))
    before = model.weights.copy()
    assert train(model, data, options, Plan(1, 0.2, patience=2), history=history)
    assert np.any(model.weights != before)


# -- callbacks
# -----------------------------------------------------------------------------------------------------------------


def test_callbacks_get_the_record_and_can_stop():
    model, data, options = problem()
    history, first, second = [], [], []

    def stop_at_two(record):
        first.append(record)
        return record["epoch"] == 2

    finished = train(
        model, data, options, Plan(5, 0.2), history=history, callbacks=[stop_at_two, second.append]
    )
    assert finished is True  # a wish, not an accident
    assert len(history) == 2
    assert first == second == history  # the later callback also hears of the last epoch
    assert all(a is b for a, b in zip(first, history, strict=True))
    assert model.n_epochs == 2


def test_stopping_by_callback_still_restores_the_best_epoch():
    model, data, options = problem()
    script = Script(model, [-1.0, -2.0, -3.0])
    plan = Plan(3, 0.2, patience=3)
    train(
        model,
        data,
        options,
        plan,
        history=[],
        evaluate=script,
        callbacks=[lambda record: record["epoch"] == 2],
    )
    assert_parameters(model, script.seen[0])


def test_errors_of_callbacks_come_through():
    model, data, options = problem()

    def broken(record):
        raise RuntimeError("disk full")

    history = []
    with pytest.raises(RuntimeError, match="disk full"):
        train(model, data, options, Plan(3, 0.2), history=history, callbacks=[broken])
    assert len(history) == 1


# -- Ctrl-C
# --------------------------------------------------------------------------------------------------------------------


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
    (model, data, options), (reference, _, _) = problem(n_threads), problem()
    history, report = [], Interrupting(after=6)  # four minibatches an epoch: in the middle of the second
    assert train(model, data, options, Plan(5, 0.2), history=history, report=report) is False
    assert report.closed
    assert [record["epoch"] for record in history] == [1]
    assert model.n_epochs == 1
    train_epoch(reference, data, options, learning_rate=0.2)
    assert np.any(model.weights != reference.weights)  # as far as it got ...
    assert np.isfinite(model.weights).all()
    assert train(model, data, options, Plan(1, 0.2), history=history) is True  # ... and it goes on from there
    assert [record["epoch"] for record in history] == [1, 2]


def test_ctrl_c_waits_for_threads_that_wait_for_each_other():
    # The first call compiles, for seconds; whoever is interrupted there must not leave the others at the
    # barrier for ever.
    barrier, passed = threading.Barrier(3), []

    def task(part):
        if part == 0:
            signal.raise_signal(signal.SIGINT)  # Python hands it to the main thread, wherever that is
            time.sleep(0.2)
        barrier.wait(timeout=20.0)  # breaks, and raises, if somebody does not come
        time.sleep(0.1)
        passed.append(part)

    with pytest.raises(KeyboardInterrupt):
        run_together(task, 3)
    assert sorted(passed) == [0, 1, 2]  # all have ended: none writes to the arrays any more


def test_threads_that_cannot_all_start_do_not_start_at_all(monkeypatch):
    starts, done, before = itertools.count(), [], threading.active_count()
    start = threading.Thread.start

    def start_two(thread):
        if next(starts) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_two)
    with pytest.raises(RuntimeError, match="can't start"):
        run_together(done.append, 3)
    deadline = time.monotonic() + 20.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
    assert done == []


def test_ctrl_c_in_validation_or_callback_keeps_the_model():
    def interrupt(*args):
        signal.raise_signal(signal.SIGINT)

    for arguments in ({"evaluate": interrupt}, {"callbacks": [interrupt]}):
        (model, data, options), (reference, _, _) = problem(), problem()
        assert train(model, data, options, Plan(5, 0.2), history=[], **arguments) is False
        train_epoch(reference, data, options, learning_rate=0.2)
        assert_parameters(model, (reference.weights, reference.biases))
        assert model.n_epochs == 1


def test_ctrl_c_with_patience_goes_back_to_the_best_epoch():
    model, data, options = problem()
    script = Script(model, [-1.0, -2.0])
    report = Interrupting(after=10)  # in the third epoch
    assert (
        train(model, data, options, Plan(5, 0.2, patience=3), history=[], evaluate=script, report=report)
        is False
    )
    assert_parameters(model, script.seen[0])


def test_ctrl_c_before_anything_was_validated_keeps_what_there_is():
    model, data, options = problem()
    report = Interrupting(after=2)
    assert (
        train(
            model,
            data,
            options,
            Plan(5, 0.2, patience=3),
            history=[],
            evaluate=Script(model, []),
            report=report,
        )
        is False
    )
    assert model.weights.any()


# -- the line in the terminal
# --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_report_has_a_line_per_epoch():
    model, data, options = problem()
    stream = io.StringIO()
    values = [-1.5, -2.5, -2.5]
    plan = Plan(9, 0.2, patience=2)
    train(
        model, data, options, plan, history=[], evaluate=Script(model, values), report=ProgressLine(1, stream)
    )
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4  # no bar: this is no terminal
    assert lines[0].startswith("epoch 1  ")
    assert "valid log-likelihood -1.5000  accuracy 50.00%" in lines[0]
    assert lines[3] == "stopped early: no better validation log-likelihood since epoch 1"


def test_bar_is_drawn_and_wiped_in_a_terminal():
    model, data, options = problem()
    stream = Terminal()
    train(model, data, options, Plan(1, 0.2), history=[], report=ProgressLine(1, stream))
    pieces = stream.getvalue().split("\r")
    assert any(
        "epoch 1/1 [####################" in piece and "] 100%" in piece and "loss" in piece
        for piece in pieces
    )
    assert pieces[-1].startswith("epoch 1  ")  # wiped, then the finished line
    assert pieces[-2].strip() == ""


def test_silence_writes_nothing():
    model, data, options = problem()
    stream = Terminal()
    train(model, data, options, Plan(2, 0.2), history=[], report=ProgressLine(0, stream))
    assert stream.getvalue() == ""


def test_bar_shows_share_rate_and_time_left(monkeypatch):
    ticks = itertools.count(start=10, step=10)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(ticks))
    stream = Terminal()
    line = ProgressLine(1, stream)
    line.update("epoch 3", 250, 1000, 0.0, "loss 0.5", unit="rows")  # at 10 s
    assert stream.getvalue() == "\repoch 3 [######..................]  25%  25 rows/s  loss 0.5  30.0s left"
    line.update("epoch 3", 1000, 1000, 0.0)  # shorter: the rest of the old line is overwritten
    assert len(stream.getvalue().split("\r")[2]) == len(stream.getvalue().split("\r")[1])


def test_bar_counts_the_whole_fit(monkeypatch):
    model, data, options = problem()
    seen = []
    report = ProgressLine(1, Terminal())
    monkeypatch.setattr(
        report, "update", lambda label, done, total, *_, **__: seen.append((label, done, total))
    )
    train(model, data, options, Plan(3, 0.2), history=[], report=report)
    n_rows = len(data.y)
    assert [entry for entry in seen if entry[1] % n_rows == 0] == [
        (f"epoch {epoch}/3", epoch * n_rows, 3 * n_rows) for epoch in (1, 2, 3)
    ]


@pytest.mark.parametrize("columns", [20, 50, 66, 80, 200])
def test_bar_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setattr(progress, "_columns", lambda stream: columns)
    stream = Terminal()
    ProgressLine(1, stream).update("epoch 12/50", 250, 1000, 0.0, "loss 0.5000", unit="rows")
    drawn = stream.getvalue().removeprefix("\r")
    assert len(drawn) < columns
    assert ("[" in drawn) == (columns > 60)


def test_bar_is_redrawn_at_most_five_times_a_second(monkeypatch):
    ticks = itertools.count(start=1)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(ticks) / 100.0 + 1.0)
    stream = Terminal()
    line = ProgressLine(1, stream)
    for i in range(101):
        line.update("x", i, 1000, 0.0)  # one second of updates
    assert stream.getvalue().count("\r") in (5, 6)
    line.update("x", 1000, 1000, 0.0)  # the end is always shown
    assert "100%" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (60.0, "1:00"),
        (75.2, "1:15"),
        (3600.0, "1:00:00"),
        (3725.9, "1:02:05"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
