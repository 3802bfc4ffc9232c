"""Temperature and floor: what they do to probabilities, and whether they are found again where they were
hidden.
"""

import pickle

import numpy as np
import pytest

import reference
from extremax import ExtremeClassifier, calibrate, evaluate, fitting, load_model
from extremax.search import ScoreOverflowError, fit_calibration, lift

C = 50


def planted(n, *, sharpness=1.0, floor=0.0, seed=0):
    """Scores of `n` rows, and labels drawn from (1 - floor) softmax(scores / sharpness) + floor / C."""
    rng = np.random.default_rng(seed)
    true = 2.0 * rng.normal(size=(n, C))
    p = (1.0 - floor) * np.exp(reference.log_softmax(true)) + floor / C
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1).astype(np.int32)
    return (sharpness * true).astype(np.float32), y


def fit(scores, y, rows=None, n_threads=1):
    return fit_calibration(
        lambda first, last: scores[first:last].copy(),
        len(scores),
        y,
        rows,
        scores.shape[1],
        n_threads=n_threads,
    )


def test_lifted_probabilities_identity():
    log_prob = reference.log_softmax(np.random.default_rng(0).normal(size=(4, C)) * 5).astype(np.float32)
    lifted = lift(log_prob, 0.2, C)
    expected = np.log(0.8 * np.exp(log_prob.astype(np.float64)) + 0.2 / C)
    np.testing.assert_allclose(lifted, expected, atol=1e-6)  # float32
    np.testing.assert_allclose(np.exp(lifted.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    assert lift(log_prob, 0.0, C) is log_prob
    # no class, no number, and one beyond float32's exp
    some = lift(np.array([-np.inf, np.nan, -200.0], np.float32), 0.1, 10)
    assert np.isneginf(some[0])
    assert np.isnan(some[1])
    assert some[2] == pytest.approx(np.log(0.01), rel=1e-6)


@pytest.mark.parametrize(
    ("sharpness", "floor"), [(1.0, 0.0), (2.0, 0.0), (0.5, 0.0), (1.5, 0.05), (1.0, 0.1)]
)
def test_hidden_calibration_recovers(sharpness, floor):
    found = fit(*planted(20_000, sharpness=sharpness, floor=floor))
    assert found.temperature == pytest.approx(sharpness, rel=0.05)  # 20,000 rows leave about 1.5% of it open
    assert found.floor == pytest.approx(floor, abs=0.02)


def test_first_guess_is_as_probable_as_it_is_right_recovers():
    """Also where the model is wrong in other ways: labels of half of the rows come from other scores than
    it has.
    """
    scores, y = planted(20_000)
    y[::2] = planted(10_000, seed=1)[1]
    found = fit(scores, y)
    log_prob = lift(reference.log_softmax(scores, found.temperature), found.floor, C)
    assert np.exp(log_prob.max(axis=1)).mean() == pytest.approx((scores.argmax(axis=1) == y).mean(), abs=0.01)


def test_sums_between_the_knots_match_reference():
    """The choice agrees with a search that sums anew for every temperature."""
    scores, y = planted(300, sharpness=1.3)
    scores *= 2.0  # sums that bend more
    found = fit(scores, y)
    right = scores.argmax(axis=1) == y

    def loss(temperature):
        p = (
            np.exp(reference.log_softmax(scores, temperature).max(axis=1)) * (1.0 - found.floor)
            + found.floor / C
        )
        return 2.0 * np.log(temperature) ** 2 - np.where(right, np.log(p), np.log1p(-p)).sum()

    grid = np.exp(np.linspace(np.log(found.temperature) - 0.3, np.log(found.temperature) + 0.3, 601))
    best = grid[np.argmin([loss(t) for t in grid])]
    assert found.temperature == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_sums_of_many_classes_match_reference(spread):
    """With 20,000 classes sums leap from one to thousands between two knots."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(300, 20_000)).astype(np.float32)
    scores[:, 7] += 16.0 + spread * rng.normal(size=300)
    y = np.where(rng.random(300) < 0.9, 7, 0).astype(np.int32)
    found = fit(scores, y)
    right = scores.argmax(axis=1) == y

    def loss(log_temperature):
        p = np.exp(reference.log_softmax(scores, np.exp(log_temperature)).max(axis=1))
        p = np.minimum((1.0 - found.floor) * p + found.floor / 20_000, 1.0 - 1e-9)
        return 2.0 * log_temperature**2 - np.where(right, np.log(p), np.log1p(-p)).sum()

    near = np.log(found.temperature)
    grid = np.linspace(near - 0.5, near + 0.5, 41)
    losses = [loss(t) for t in grid]
    # What the interpolation costs is far below what 300 rows can tell: half a nat is one standard deviation.
    assert loss(near) < min(losses) + 0.1


def test_blocks_and_threads_invariant(monkeypatch):
    from extremax.search import calibration

    scores, y = planted(500, sharpness=1.7)
    whole = fit(scores, y)
    assert fit(scores, y, np.arange(500)) == whole
    monkeypatch.setattr(calibration, "_BLOCK_SCORES", 30 * C)
    small = fit(scores, y)
    assert small == pytest.approx(whole, rel=1e-9)  # sums of other blocks: numpy may add in another order
    assert fit(scores, y, n_threads=2) == small


def test_pairs_of_rows_with_several_labels_match_rows_repeated():
    scores, y = planted(2000, sharpness=2.0)
    other = planted(2000, seed=5)[1]
    rows = np.repeat(np.arange(2000), 2)
    both = np.stack([y, other], axis=1).ravel()
    assert fit(scores, both, rows) == pytest.approx(fit(scores[rows], both), rel=1e-6)


def test_a_few_rows_that_are_all_right_ask_for_no_certainty():
    scores = np.zeros((20, C), np.float32)
    scores[:, 3] = 5.0  # probability 0.75
    found = fit(scores, np.full(20, 3, np.int32))
    assert 0.4 < found.temperature < 1.0
    assert found.floor == 0.0


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    y = rng.integers(30, size=900)
    X = (rng.normal(size=(30, 6))[y] + rng.normal(size=(900, 6))).astype(np.float32)
    return ExtremeClassifier(n_epochs=3, random_state=0).fit(X[:600], y[:600]), X[600:], y[600:]


def test_floor_reaches_all_that_leaves_a_model(fitted, tmp_path):
    clf, X, y = fitted
    plain = clf.predict_proba(X)
    labels = clf.predict(X)
    clf.model_.floor = 0.1
    try:
        expected = 0.9 * plain + 0.1 / 30
        np.testing.assert_allclose(clf.predict_proba(X), expected, atol=1e-6)  # float32 logarithms
        np.testing.assert_allclose(clf.predict_log_proba(X), np.log(expected), atol=1e-5)
        assert np.array_equal(clf.predict(X), labels)
        for search in ("exact", "beam"):
            best, log_prob = clf.predict_topk(X, k=3, search=search)
            truth = np.log(np.take_along_axis(expected, np.searchsorted(clf.classes_, best), 1))
            np.testing.assert_allclose(log_prob, truth, atol=1e-5)
        truth = np.log(expected[np.arange(300), y]).mean()
        assert clf.log_likelihood(X, y) == pytest.approx(truth, abs=1e-5)
        assert clf.model_.evaluate(X, y.astype(np.int32)).log_likelihood == pytest.approx(truth, abs=1e-5)
        assert evaluate(clf, X, y).log_likelihood == pytest.approx(truth, abs=1e-5)
        clf.save(tmp_path / "model")
        assert np.array_equal(load_model(tmp_path / "model").predict_proba(X), clf.predict_proba(X))
    finally:
        clf.model_.floor = 0.0


def test_calibrate_sets_what_it_returns(fitted):
    clf, X, y = fitted
    try:
        found = calibrate(clf, X, y)
        assert (clf.model_.temperature, clf.model_.floor) == found
    finally:
        clf.model_.temperature, clf.model_.floor = 1.0, 0.0


def test_improbable_classes_keep_their_order(fitted):
    clf, X, _ = fitted
    X = 2 * X  # scores further apart than float32 can tell beside the floor
    order = np.argsort(clf.decision_function(X), axis=1)
    clf.model_.floor = 0.1
    try:
        p = np.take_along_axis(clf.predict_proba(X), order, axis=1)
        assert (np.diff(p, axis=1) >= 0.0).all()
        assert (np.diff(p, axis=1) > 0.0).mean() > 0.95
    finally:
        clf.model_.floor = 0.0


def test_calibration_of_what_cannot_be_judged_rejects(fitted):
    clf, X, y = fitted
    far = X.copy()
    far[217] = 1e38
    with pytest.raises(ValueError, match=r"X\[217\] overflow"):
        calibrate(clf, far, y)
    with pytest.raises(ValueError, match="holds class 30"):
        clf.model_.calibrate(X[:2], np.array([0, 30], np.int32))
    with pytest.raises(ValueError, match="no rows"):
        clf.model_.calibrate(X[:0], np.zeros(0, np.int32))
    assert (clf.model_.temperature, clf.model_.floor) == (1.0, 0.0)


def test_overflow_error_survives_another_process():
    again = pickle.loads(pickle.dumps(ScoreOverflowError(7)))
    assert again.row == 7
    assert str(again) == str(ScoreOverflowError(7))


def judged_rows(monkeypatch, share, n_classes, n_rows, n_features):
    """Noisy rows around a mean for each class; a share of them is kept back though they are few."""
    monkeypatch.setattr(fitting, "_JUDGED_PAIRS", 1000)
    monkeypatch.setattr(fitting, "_JUDGED_SHARE", share)
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    return (rng.normal(size=(n_classes, n_features))[y] + rng.normal(size=(n_rows, n_features))).astype(
        np.float32
    ), y


def test_judges_whose_scores_overflow_cost_no_model(monkeypatch):
    X, y = judged_rows(monkeypatch, 0.5, 30, 1000, 6)
    X[np.random.default_rng((0, 4)).permutation(1000)[0]] = 1e38  # the first row that is set aside
    clf = ExtremeClassifier(n_epochs=1, random_state=0).fit(X, y)
    assert clf.model_.n_samples == 500
    assert (clf.choices_["temperature"], clf.choices_["floor"]) == (1.0, 0.0)


def test_interrupted_fit_is_calibrated(monkeypatch):
    """In the middle of training, when steps are long, scores are too large; the judges have their say
    there, too.
    """
    X, y = judged_rows(monkeypatch, 0.2, 300, 4000, 8)

    def press(record):
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after 1 epochs"):
        clf = ExtremeClassifier(n_epochs=5, learning_rate=4.0, random_state=0).fit(
            X[:3000], y[:3000], callbacks=[press]
        )
    model = clf.model_
    assert (
        (clf.choices_["temperature"], clf.choices_["floor"]) == (model.temperature, model.floor) != (1.0, 0.0)
    )
    given = model.log_likelihood(X[3000:], y[3000:].astype(np.int32))
    model.temperature, model.floor = 1.0, 0.0
    assert given > model.log_likelihood(X[3000:], y[3000:].astype(np.int32)) + 0.1

    def twice(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(model), "calibrate", twice)
    with pytest.warns(UserWarning, match="interrupted after 1 epochs"):
        again = ExtremeClassifier(n_epochs=5, learning_rate=4.0, random_state=0).fit(
            X[:3000], y[:3000], callbacks=[press]
        )
    np.testing.assert_array_equal(again.model_.linear.weights, model.linear.weights)


@pytest.mark.parametrize("floor", [-0.1, 1.0, float("nan")])
def test_floor_that_is_no_share_rejects(fitted, floor):
    clf, X, _ = fitted
    clf.model_.floor = floor
    try:
        with pytest.raises(ValueError, match="floor is"):
            clf.predict_proba(X)
    finally:
        clf.model_.floor = 0.0
