"""Temperature and uniform mixing: what they do to probabilities, and whether planted values are found."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import reference
from extremax.calibration import Calibration, fit_calibration, mix_uniform
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.storage.state import State

C = 50


def planted(n, *, scale=1.0, uniform_mix=0.0, seed=0):
    """Return scores ``scale * s``, and labels drawn from (1 - uniform_mix) softmax(s) + uniform_mix / C."""
    rng = np.random.default_rng(seed)
    true = 2.0 * rng.normal(size=(n, C))
    p = (1.0 - uniform_mix) * np.exp(reference.log_softmax(true)) + uniform_mix / C
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1).astype(np.int32)
    return (scale * true).astype(np.float32), y


def fit(scores, y, rows=None, **options):
    examples = Examples.labels_only(y, len(scores), rows)
    return fit_calibration(
        lambda first, last: scores[first:last].copy(), examples, scores.shape[1], **options
    )


def test_mixed_probabilities_identity():
    log_prob = reference.log_softmax(np.random.default_rng(0).normal(size=(4, C)) * 5).astype(np.float32)
    mixed = mix_uniform(log_prob, 0.2, C)
    expected = np.log(0.8 * np.exp(log_prob.astype(np.float64)) + 0.2 / C)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)  # float32
    np.testing.assert_allclose(np.exp(mixed.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    assert mix_uniform(log_prob, 0.0, C) is log_prob
    # no class, not a number, and one beyond float32's exp
    some = mix_uniform(np.array([-np.inf, np.nan, -200.0], np.float32), 0.1, 10)
    assert np.isneginf(some[0])
    assert np.isnan(some[1])
    assert some[2] == pytest.approx(np.log(0.01), rel=1e-6)


@pytest.mark.parametrize(
    ("scale", "uniform_mix"), [(1.0, 0.0), (2.0, 0.0), (0.5, 0.0), (1.5, 0.05), (1.0, 0.1)]
)
def test_planted_calibration_recovers(scale, uniform_mix):
    found = fit(*planted(20_000, scale=scale, uniform_mix=uniform_mix))
    assert found.temperature == pytest.approx(scale, rel=0.05)  # 20,000 rows leave about 1.5% of it open
    assert found.uniform_mix == pytest.approx(uniform_mix, abs=0.02)


def test_top1_is_as_probable_as_it_is_right_recovers():
    """Also where the model is wrong in other ways: half of the labels come from other scores."""
    scores, y = planted(20_000)
    y[::2] = planted(10_000, seed=1)[1]
    found = fit(scores, y)
    log_prob = mix_uniform(reference.log_softmax(scores, found.temperature), found.uniform_mix, C)
    assert np.exp(log_prob.max(axis=1)).mean() == pytest.approx((scores.argmax(axis=1) == y).mean(), abs=0.01)


def test_sums_between_the_grid_match_reference():
    """The choice agrees with a search that sums anew for every temperature."""
    scores, y = planted(300, scale=1.3)
    scores *= 2.0  # sums that bend more
    found = fit(scores, y)
    right = scores.argmax(axis=1) == y

    def loss(temperature):
        p = np.exp(reference.log_softmax(scores, temperature).max(axis=1)) * (1.0 - found.uniform_mix)
        p += found.uniform_mix / C
        return 2.0 * np.log(temperature) ** 2 - np.where(right, np.log(p), np.log1p(-p)).sum()

    grid = np.exp(np.linspace(np.log(found.temperature) - 0.3, np.log(found.temperature) + 0.3, 201))
    best = grid[np.argmin([loss(t) for t in grid])]
    assert found.temperature == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_sums_of_many_classes_match_reference(spread):
    """With 20,000 classes sums leap from one to thousands between two temperatures of the grid."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(150, 20_000)).astype(np.float32)
    scores[:, 7] += 16.0 + spread * rng.normal(size=150)
    y = np.where(rng.random(150) < 0.9, 7, 0).astype(np.int32)
    found = fit(scores, y)
    right = scores.argmax(axis=1) == y
    below = scores - scores.max(axis=1, keepdims=True)

    def loss(log_temperature):
        p = 1.0 / np.exp(below * np.float32(np.exp(-log_temperature))).sum(axis=1, dtype=np.float64)
        p = np.minimum((1.0 - found.uniform_mix) * p + found.uniform_mix / 20_000, 1.0 - 1e-9)
        return 2.0 * log_temperature**2 - np.where(right, np.log(p), np.log1p(-p)).sum()

    near = np.log(found.temperature)
    losses = [loss(t) for t in np.linspace(near - 0.5, near + 0.5, 21)]
    # What the interpolation costs is far below what 150 rows can tell: half a nat is one standard deviation.
    assert loss(near) < min(losses) + 0.1


def test_blocks_and_threads_invariant(monkeypatch):
    scores, y = planted(500, scale=1.7)
    whole = fit(scores, y)
    assert fit(scores, y, np.arange(500)) == whole
    monkeypatch.setattr("extremax.calibration._BLOCK_SCORES", 30 * C)
    small = fit(scores, y)
    assert small == pytest.approx(whole, rel=1e-9)  # sums of other blocks: numpy may add in another order
    assert fit(scores, y, n_threads=2) == small


def test_pairs_of_rows_with_several_labels_match_rows_repeated():
    scores, y = planted(2000, scale=2.0)
    other = planted(2000, seed=5)[1]
    rows = np.repeat(np.arange(2000), 2)
    both = np.stack([y, other], axis=1).ravel()
    assert fit(scores, both, rows) == pytest.approx(fit(scores[rows], both), rel=1e-6)


def test_a_few_rows_that_are_all_right_ask_for_no_certainty():
    scores = np.zeros((20, C), np.float32)
    scores[:, 3] = 5.0  # probability 0.75
    found = fit(scores, np.full(20, 3, np.int32))
    assert 0.4 < found.temperature < 1.0
    assert found.uniform_mix == 0.0


@pytest.mark.parametrize("by_row", [False, True])
def test_temperature_by_row_recovers(by_row):
    """Labels are drawn at the temperature of each row's confidence."""
    truth = Calibration(1.4, 0.0, 0.3)
    n = 20_000 if by_row else 2_000
    scores = planted(n)[0]
    scores *= np.random.default_rng(3).uniform(0.2, 1.5, (n, 1)).astype(np.float32)
    log_top = reference.log_softmax(scores, truth.temperature).max(axis=1)
    p = np.exp(reference.log_softmax(scores / truth.row_temperature(log_top)[:, None]))
    y = (p.cumsum(axis=1) > np.random.default_rng(4).random((n, 1))).argmax(axis=1).astype(np.int32)
    found = fit(scores, y, by_row=by_row)
    if by_row:
        assert found.temperature == pytest.approx(truth.temperature, rel=0.04)
        assert found.temperature_slope == pytest.approx(truth.temperature_slope, abs=0.04)
    else:
        assert found.temperature_slope == 0.0


def test_temperature_by_row_of_few_rows_stays_near_one():
    scores, y = planted(30)
    found = fit(scores, y, by_row=True)
    assert abs(found.temperature_slope) < 0.3
    assert 0.6 < found.temperature < 1.7


def test_folder_without_a_slope_gives_all_rows_the_same_temperature():
    assert Calibration.from_state(State({"temperature": 1.5, "uniform_mix": 0.02})) == Calibration(1.5, 0.02)


def test_grid_of_one_value_is_the_choice(monkeypatch):
    monkeypatch.setattr("extremax.calibration._UNIFORM_MIXES", (0.03,))
    assert fit(*planted(500)).uniform_mix == 0.03


def test_calibration_is_restored_from_its_state():
    calibration = Calibration(1.5, 0.02, 0.2)
    assert Calibration.from_state(calibration.state()) == calibration


def test_overflow_error_survives_another_process():
    again = pickle.loads(pickle.dumps(ScoreOverflowError(7)))
    assert again.row == 7
    assert str(again) == str(ScoreOverflowError(7))


@pytest.mark.parametrize(
    ("calibration", "sentence"),
    [
        (Calibration(0.0), "temperature is 0.0"),
        (Calibration(float("nan")), "temperature is nan"),
        (Calibration(1.0, -0.1), "uniform_mix is -0.1"),
        (Calibration(1.0, 1.0), "uniform_mix is 1.0"),
        (Calibration(1.0, float("nan")), "uniform_mix is nan"),
        (Calibration(1.0, 0.0, -1.5), "temperature_slope is -1.5"),
        (Calibration(1.0, 0.0, float("nan")), "temperature_slope is nan"),
    ],
)
def test_values_that_make_no_probabilities_rejects(calibration, sentence):
    with pytest.raises(ValueError, match=sentence):
        calibration.check()
