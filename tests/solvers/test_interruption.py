"""Ctrl-C in a fit: wherever it comes, the model is whole, and a fit that goes on loses nothing."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest

from coverings import in_turn
from extremax import ExtremeClassifier, load_model
from extremax.calibration import Calibration
from extremax.errors import TrainingInterruptedWarning
from extremax.features.whitening import Whitening
from extremax.model import Model
from extremax.runtime.progress import ProgressLine
from extremax.solvers.loop import Watcher
from extremax.tuned import DEFAULTS, replace_numbers

SOLVERS = ["minibatch_softmax", "negative_sampling"]
N_CLASSES = 16


class Classifier(ExtremeClassifier):
    """A look after every minibatch; cells of the tree and calibration rows for a few hundred rows."""

    _numbers = replace_numbers(
        DEFAULTS,
        batch={"progress_batches": 1, "rows_per_cell": 50},
        rows={"progress_pairs": 1},
        calibration={"min_pairs": 200, "min_rows": 20, "row_fraction": 0.1, "rows_after_interrupt": 10},
    )


@pytest.fixture(scope="module")
def data():
    """Features of very different variance: weights for whitened rows predict nothing from the rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(N_CLASSES, size=600)
    mix = rng.normal(size=(6, 6)) * np.array([30.0, 8.0, 2.0, 0.5, 0.1, 0.03])
    X = (2.0 * rng.normal(size=(N_CLASSES, 6))[y] + 0.3 * rng.normal(size=(600, 6))) @ mix + 5.0
    return X.astype(np.float32), y


def make(solver, **options):
    own = {"n_shared": 8} if solver == "minibatch_softmax" else {}
    settings = {**own, "n_epochs": 12, "batch_size": 40, "random_state": 0, **options}
    return Classifier.with_solver(solver, **settings)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def weights_of(clf):
    return clf.model_.weights.to_dense()


def fit_interrupted(clf, X, y, callback):
    with pytest.warns(
        TrainingInterruptedWarning, match=r"interrupted after \d+ epochs; the model is kept"
    ) as caught:
        clf.fit(X, y, callbacks=[callback])
    assert [warning.filename for warning in caught] == [__file__]
    return clf


def assert_consistent(clf, X, y):
    """The model is one of the features themselves, agrees with its training state, and can be trained on."""
    assert clf.interrupted_ is True
    state = clf._fitted.state
    assert state.in_training_coordinates is False
    assert clf.model_.weights.to_dense() is state.tables.weights
    assert clf.model_.n_epochs == state.n_epochs == clf.history_[-1]["epoch"]
    assert np.isfinite(weights_of(clf)).all()
    assert clf.score(X, y) > 0.9
    np.testing.assert_allclose(clf.predict_proba(X).sum(axis=1), 1.0, atol=1e-5)


class At(Watcher):
    """Calls something at a moment inside an epoch."""

    def __init__(self, epoch, rows, action):
        self.epoch, self.rows, self.action, self.fired = epoch, rows, action, False

    def during_epoch(self, moment):
        record = moment.record
        if not self.fired and record["epoch"] == self.epoch and record["rows"] >= self.rows:
            self.fired = True
            self.action(moment)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("epoch", "rows"), [(1, 1), (3, 200), (3, 400)])
def test_ctrl_c_inside_an_epoch(data, solver, epoch, rows):
    X, y = data
    watcher = At(epoch, rows, lambda moment: press())
    clf = make(solver, n_epochs=12)
    if solver == "negative_sampling" and epoch == 1:  # too early to be any good, but whole
        fit_interrupted(clf, X, y, watcher)
        assert clf.model_.n_epochs == 0
        assert np.isfinite(weights_of(clf)).all()
    else:
        assert_consistent(fit_interrupted(clf, X, y, watcher), X, y)
    assert watcher.fired
    assert clf.model_.n_epochs == epoch - 1
    clf.resume_fit(X, y)
    assert clf.interrupted_ is False
    assert clf.model_.n_epochs == clf.n_epochs
    assert clf.score(X, y) > 0.9
    clf.partial_fit(X, y)


@in_turn(solver=SOLVERS, n_jobs=[1, 2])
def test_ctrl_c_at_random_moments(data, solver, n_jobs):
    """A signal from another thread, in the middle of whatever the main thread does."""
    X, y = data
    rng = np.random.default_rng(n_jobs)
    for delay in rng.uniform(0.0, 0.15, size=6):
        timer = threading.Timer(delay, press)

        class StartTimer(Watcher):
            def __call__(self, record, timer=timer):
                if record["epoch"] == 2:  # one epoch is enough to be good
                    timer.start()

        clf = make(solver, n_epochs=100_000, n_jobs=n_jobs)
        fit_interrupted(clf, X, y, StartTimer())
        timer.join()
        assert 2 <= clf.model_.n_epochs < 100_000
        assert_consistent(clf, X, y)


def press_in(monkeypatch, method, turn):
    """Press Ctrl-C before and after one of the conversions between coordinates."""
    convert, calls = getattr(Whitening, method), itertools.count(1)

    def interrupted(whitening, *args):
        here = next(calls) == turn
        if here:
            press()
        convert(whitening, *args)
        if here:
            press()

    monkeypatch.setattr(Whitening, method, interrupted)


def test_ctrl_c_while_weights_go_to_training_coordinates(data, monkeypatch):
    X, y = data
    press_in(monkeypatch, "to_training", 3)
    clf = fit_interrupted(make("minibatch_softmax"), X, y, lambda record: None)
    assert clf.model_.n_epochs == 2
    assert_consistent(clf, X, y)


@pytest.mark.identity
def test_ctrl_c_while_weights_come_back_from_training_coordinates(data, monkeypatch):
    X, y = data
    press_in(monkeypatch, "to_features", 4)  # the start, and the ends of three epochs
    clf = fit_interrupted(make("minibatch_softmax"), X, y, lambda record: None)
    assert_consistent(clf, X, y)
    monkeypatch.undo()
    assert clf.model_.n_epochs == 3  # the epoch was complete
    three = make("minibatch_softmax").fit(X, y, callbacks=[lambda record: record["epoch"] == 3])
    np.testing.assert_array_equal(weights_of(clf), weights_of(three))


def test_ctrl_c_while_a_moment_makes_its_model(data, monkeypatch):
    X, y = data

    def look(moment):
        press_in(monkeypatch, "to_features", 1)
        moment.model()

    clf = fit_interrupted(make("minibatch_softmax"), X, y, At(3, 200, look))
    assert clf.model_.n_epochs == 2
    assert_consistent(clf, X, y)


@pytest.mark.identity
@in_turn(solver=SOLVERS, through_a_file=[False, True])
def test_fit_resumed_after_ctrl_c_between_epochs_has_the_same_bits(data, solver, through_a_file, tmp_path):
    X, y = data
    n_epochs = 9
    whole = make(solver, n_epochs=n_epochs).fit(X, y)
    clf = make(solver, n_epochs=n_epochs)
    fit_interrupted(clf, X, y, lambda record: press() if record["epoch"] == 3 else None)
    assert clf.model_.n_epochs == 3
    if through_a_file:
        clf.save(tmp_path / "model")
        clf = load_model(tmp_path / "model")
    clf.resume_fit(X, y)
    np.testing.assert_array_equal(weights_of(clf), weights_of(whole))
    np.testing.assert_array_equal(clf.predict_log_proba(X), whole.predict_log_proba(X))
    assert [record["epoch"] for record in clf.history_] == list(range(n_epochs + 1))
    assert [record["loss"] for record in clf.history_[1:]] == [
        record["loss"] for record in whole.history_[1:]
    ]


@pytest.mark.parametrize("solver", SOLVERS)
def test_ctrl_c_in_resume_fit_and_partial_fit(data, solver, monkeypatch):
    X, y = data
    clf = make(solver).fit(X, y, callbacks=[lambda record: record["epoch"] == 3])
    with pytest.warns(TrainingInterruptedWarning, match="after 4 epochs"):
        clf.resume_fit(X, y, callbacks=[At(5, 100, lambda moment: press())])
    assert_consistent(clf, X, y)
    reports = itertools.count()
    monkeypatch.setattr(ProgressLine, "update", lambda *args, **more: press() if next(reports) == 3 else None)
    with pytest.warns(TrainingInterruptedWarning, match="after 4 epochs"):
        clf.partial_fit(X, y)
    assert_consistent(clf, X, y)
    clf.partial_fit(X, y)
    assert clf.interrupted_ is False
    assert clf.model_.n_epochs == 5


@pytest.mark.parametrize("step", ["calibrated", "with_search"])
def test_ctrl_c_after_the_epochs_skips_what_is_left(data, monkeypatch, step):
    """In calibration, or in the index: the trained model stays."""
    X, y = data

    class Indexed(Classifier):
        _numbers = replace_numbers(Classifier._numbers, pq={"min_classes": 4, "min_width_rows": 10})

    options = {"n_epochs": 3, "n_shared": 8, "batch_size": 40, "random_state": 0}
    whole = Indexed.with_solver("minibatch_softmax", **options).fit(X, y)
    assert "beam" in whole.model_.searches
    monkeypatch.setattr(Model, step, lambda *args, **more: press())
    clf = Indexed.with_solver("minibatch_softmax", **options)
    with pytest.warns(TrainingInterruptedWarning, match="after 3 epochs"):
        clf.fit(X, y)
    monkeypatch.undo()
    assert clf.interrupted_ is True
    np.testing.assert_array_equal(weights_of(clf), weights_of(whole))
    assert "beam" not in clf.model_.searches
    expected = Calibration() if step == "calibrated" else whole.model_.calibration
    assert clf.model_.calibration == expected
    clf.resume_fit(X, y)  # nothing to train, but what was skipped is done
    assert clf.interrupted_ is False
    np.testing.assert_array_equal(clf.predict_log_proba(X), whole.predict_log_proba(X))
    assert "beam" in clf.model_.searches


def test_ctrl_c_before_the_first_epoch_leaves_nothing(data, monkeypatch):
    X, y = data
    clf = make("negative_sampling").fit(X, y)
    monkeypatch.setattr("extremax.solvers.negative_sampling.fit_noise", lambda *args, **more: press())
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, y)
    assert not hasattr(clf, "model_")
    assert not hasattr(clf, "classes_")


# -- the model at a moment inside an epoch


@pytest.mark.identity
@in_turn(solver=SOLVERS, n_jobs=[1, 2])
def test_moment_has_the_model_of_a_fit_that_stops_there(data, solver, n_jobs):
    X, y = data
    looks = []

    def look(moment):
        model = moment.model()
        looks.append((model.log_prob_all(X), model.topk(X, 3)[0], moment.record["loss"]))

    options = {"n_jobs": n_jobs, "n_epochs": 4}
    watched = make(solver, **options).fit(X, y, callbacks=[At(2, 200, look), At(3, 1, look)])
    stopped = make(solver, **options)

    def stop(moment):
        raise KeyboardInterrupt

    fit_interrupted(stopped, X, y, At(2, 200, stop))
    model = stopped.model_.with_calibration(type(stopped.model_.calibration)())
    np.testing.assert_array_equal(looks[0][0], model.log_prob_all(X))
    np.testing.assert_array_equal(looks[0][1], model.topk(X, 3)[0])
    assert not np.array_equal(looks[0][0], looks[1][0])
    # Looking changes no bit of training.
    plain = make(solver, **options).fit(X, y)
    np.testing.assert_array_equal(weights_of(watched), weights_of(plain))
    np.testing.assert_array_equal(watched.model_.weights.biases, plain.model_.weights.biases)
    assert watched.history_[-1]["loss"] == plain.history_[-1]["loss"]


def test_moments_inside_an_epoch_lower_the_loss(data):
    """Figures of a model inside an epoch of whitened rows lie between those before and after it."""
    X, y = data
    figures = []

    class Curve(Watcher):
        def at_start(self, moment):
            figures.append(self.loss(moment))

        def during_epoch(self, moment):
            if moment.record["rows"] >= 500:
                figures.append(self.loss(moment))

        def loss(self, moment):
            return -np.mean(moment.model().log_prob_all(X)[np.arange(len(y)), y])

    make("minibatch_softmax", n_epochs=4).fit(X, y, callbacks=[Curve()])
    assert figures[-1] < figures[0]
    assert max(figures) < np.log(N_CLASSES)
