"""Calibration of a classifier: by held-out rows of a fit, by `calibrate`, and in everything it predicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from extremax import ExtremeClassifier, calibrate, evaluate, load_model
from extremax.calibration import Calibration
from extremax.errors import TrainingInterruptedWarning
from extremax.examples import Examples
from extremax.solvers import MinibatchSoftmax
from extremax.tuned import DEFAULTS, CalibrationConfig


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    y = rng.integers(30, size=900)
    X = (rng.normal(size=(30, 6))[y] + rng.normal(size=(900, 6))).astype(np.float32)
    clf = ExtremeClassifier(MinibatchSoftmax(), n_epochs=3, random_state=0)  # not calibrated
    return clf.fit(X[:600], y[:600]), X[600:], y[600:]


@pytest.fixture
def mixed(fitted):
    """The classifier with uniform mixing of a tenth, while a test runs."""
    clf, X, y = fitted
    plain = clf.model_
    clf._replace_model(plain.with_calibration(Calibration(1.0, 0.1)))
    yield clf, X, y
    clf._replace_model(plain)


def test_uniform_mixing_reaches_all_predictions(mixed, tmp_path):
    clf, X, y = mixed
    plain = clf.model_.with_calibration(Calibration()).prob_all(X)
    expected = 0.9 * plain + 0.1 / 30
    np.testing.assert_allclose(clf.predict_proba(X), expected, atol=1e-6)  # float32 logarithms
    np.testing.assert_allclose(clf.predict_log_proba(X), np.log(expected), atol=1e-5)
    assert np.array_equal(clf.predict(X), clf.classes_[plain.argmax(axis=1)])
    for search in ("exact", "beam"):
        best, log_prob = clf.predict_topk(X, k=3, search=search)
        truth = np.log(np.take_along_axis(expected, np.searchsorted(clf.classes_, best), 1))
        np.testing.assert_allclose(log_prob, truth, atol=1e-5)
    truth = np.log(expected[np.arange(300), y]).mean()
    assert clf.log_likelihood(X, y) == pytest.approx(truth, abs=1e-5)
    examples = Examples(X, y.astype(np.int32))
    assert clf.model_.evaluate(examples).log_likelihood == pytest.approx(truth, abs=1e-5)
    assert evaluate(clf, X, y).log_likelihood == pytest.approx(truth, abs=1e-5)
    clf.save(tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict_proba(X), clf.predict_proba(X))


def test_improbable_classes_keep_their_order(mixed):
    clf, X, _ = mixed
    X = 2 * X  # scores further apart than float32 can tell beside the uniform probability
    order = np.argsort(clf.decision_function(X), axis=1)
    p = np.take_along_axis(clf.predict_proba(X), order, axis=1)
    assert (np.diff(p, axis=1) >= 0.0).all()
    assert (np.diff(p, axis=1) > 0.0).mean() > 0.95


def test_calibrate_sets_what_it_returns(fitted):
    clf, X, y = fitted
    plain = clf.model_
    try:
        found = calibrate(clf, X, y)
        assert clf.model_.calibration == found
        assert clf.choices_["temperature"] == found.temperature
        assert plain.calibration == Calibration()  # a model never changes
    finally:
        clf._replace_model(plain)


def test_calibration_on_unusable_rows_rejects(fitted):
    clf, X, y = fitted
    far = X.copy()
    far[217] = 1e38
    with pytest.raises(ValueError, match=r"X\[217\] overflow"):
        calibrate(clf, far, y)
    with pytest.raises(ValueError, match="holds class 30"):
        clf.model_.calibrated(Examples(X[:2], np.array([0, 30], np.int32)))
    with pytest.raises(ValueError, match="no rows"):
        clf.model_.calibrated(Examples(X[:0], np.zeros(0, np.int32)))
    with pytest.raises(ValueError, match=r"uniform_mix is 1\.0"):
        clf.model_.with_calibration(Calibration(1.0, 1.0))
    assert clf.model_.calibration == Calibration()


def with_held_out_rows(row_fraction):
    """A classifier that holds out a fraction of the rows though they are few."""

    class Calibrated(ExtremeClassifier):
        _numbers = replace(DEFAULTS, calibration=CalibrationConfig(min_pairs=1000, row_fraction=row_fraction))

    return Calibrated


def noisy_rows(n_classes, n_rows, n_features):
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    X = rng.normal(size=(n_classes, n_features))[y] + rng.normal(size=(n_rows, n_features))
    return X.astype(np.float32), y


def test_held_out_rows_whose_scores_overflow_cost_no_model():
    X, y = noisy_rows(30, 1000, 6)
    X[np.random.default_rng((0, 4)).permutation(1000)[0]] = 1e38  # the first row that is held out
    clf = with_held_out_rows(0.5)(n_epochs=1, random_state=0).fit(X, y)
    assert clf.model_.classes.n_samples == 500
    assert (clf.choices_["temperature"], clf.choices_["uniform_mix"]) == (1.0, 0.0)


def test_interrupted_fit_is_calibrated():
    """In the middle of training, when steps are long, scores are too large."""
    X, y = noisy_rows(300, 4000, 8)
    held_out = Examples(X[3000:], y[3000:].astype(np.int32))

    def press(record):
        raise KeyboardInterrupt

    clf = with_held_out_rows(0.2)(MinibatchSoftmax(learning_rate=4.0), n_epochs=5, random_state=0)
    with pytest.warns(TrainingInterruptedWarning, match="interrupted after 1 epochs"):
        clf.fit(X[:3000], y[:3000], callbacks=[press])
    assert clf.interrupted_
    model, chosen = clf.model_, clf.choices_
    names = ("temperature", "uniform_mix", "temperature_slope")
    assert tuple(chosen[name] for name in names) == model.calibration != (1.0, 0.0, 0.0)
    plain = model.with_calibration(Calibration())
    assert model.log_likelihood(held_out) > plain.log_likelihood(held_out) + 0.1
