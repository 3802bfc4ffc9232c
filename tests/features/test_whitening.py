"""Whitened features: their covariance, and weights converted to them and back."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.features.whitening import Whitening, WhiteningFamily

pytestmark = pytest.mark.small


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(6, 6)) * np.array([5.0, 2.0, 1.0, 0.5, 0.2, 0.1])
    return (rng.normal(size=(2000, 6)) @ mix + 3.0).astype(np.float32)


def whitening_of(X, scale=0.5, ridge=1e-6):
    rows = X.astype(np.float64) * scale
    return Whitening.fit(np.cov(rows.T), rows.mean(axis=0).astype(np.float32), ridge=ridge)


def random_weights(n_classes=20, n_features=6):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(n_classes, n_features)).astype(np.float32)
    return weights, rng.normal(size=n_classes).astype(np.float32)


@pytest.mark.identity
def test_rows_are_white(X):
    x = whitening_of(X, ridge=1e-8).rows(X, 0.5)
    np.testing.assert_allclose(np.cov(x.T), np.eye(6) / 6, atol=1e-3)  # float32
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-4)


@pytest.mark.identity
@pytest.mark.parametrize("n_threads", [1, 2])
def test_converted_weights_keep_scores_and_convert_back(X, n_threads):
    white = whitening_of(X)
    weights, biases = random_weights()
    scores = white.rows(X, 0.5) @ weights.T + biases
    kept = weights.copy(), biases.copy()
    white.to_features(weights, biases, n_threads)
    # float32, scores to 100
    np.testing.assert_allclose(0.5 * X @ weights.T + biases, scores, rtol=1e-3, atol=2e-2)
    assert not np.allclose(weights, kept[0], rtol=0.1)
    white.to_training(weights, biases, n_threads)
    np.testing.assert_allclose(weights, kept[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(biases, kept[1], rtol=1e-3, atol=1e-2)


@pytest.mark.invariance
def test_thread_count_invariant(X):
    """More classes than one thread converts at a time."""
    white = whitening_of(X)
    made = []
    for n_threads in (1, 3):
        weights, biases = random_weights(10_000)
        white.to_features(weights, biases, n_threads)
        made.append((weights, biases))
    np.testing.assert_array_equal(made[0][0], made[1][0])
    np.testing.assert_array_equal(made[0][1], made[1][1])


def test_rows_without_variance_are_left_as_they_are():
    X = np.full((40, 3), 2.0, np.float32)
    white = whitening_of(X)
    np.testing.assert_allclose(white.matrix, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(white.rows(X, 0.5), 0.0, atol=1e-6)


def test_direction_without_variance_stays_finite(X):
    flat = X.copy()
    flat[:, 2] = 7.0
    white = whitening_of(flat, ridge=0.1)
    assert np.isfinite(white.matrix).all()
    assert np.isfinite(white.inverse).all()


@pytest.mark.identity
def test_state_restores_the_map(X):
    white = whitening_of(X)
    again = Whitening.from_state(white.state())
    np.testing.assert_array_equal(again.rows(X, 0.5), white.rows(X, 0.5))
    np.testing.assert_array_equal(again.inverse, white.inverse)


@pytest.mark.invariance
def test_rows_by_a_ridge_of_the_own_variance_do_not_depend_on_scales_of_columns(X):
    factors = np.array([1e-3, 0.1, 1.0, 7.0, 50.0, 1e3])

    def rows(X, own_variance):
        covariance, mean = np.cov(X.T), X.mean(axis=0).astype(np.float32)
        family = WhiteningFamily.of(covariance, own_variance=own_variance)
        return family.fit(mean, 0.3).rows(X, 1.0)

    scaled = (X * factors).astype(np.float32)
    np.testing.assert_allclose(rows(scaled, True), rows(X, True), atol=2e-3)
    assert np.abs(rows(scaled, False) - rows(X, False)).max() > 0.1


@pytest.mark.reference
@pytest.mark.parametrize("own_variance", [False, True])
def test_whitening_is_that_of_the_formula(X, own_variance):
    covariance = np.cov(X.T)
    unit = np.sqrt(np.diag(covariance)) if own_variance else np.ones(6)
    relative = covariance / np.outer(unit, unit)
    values, vectors = np.linalg.eigh(relative + 0.3 * np.trace(relative) / 6 * np.eye(6))
    expected = np.diag(1 / unit) @ vectors @ np.diag(values**-0.5) @ vectors.T
    white = WhiteningFamily.of(covariance, own_variance=own_variance).fit(X.mean(axis=0), 0.3)
    scale = np.trace(white.matrix.T @ covariance @ white.matrix)
    np.testing.assert_allclose(scale, 1.0, rtol=1e-4)  # rows of mean square length one
    np.testing.assert_allclose(
        white.matrix / white.matrix[0, 0], expected / expected[0, 0], rtol=1e-3, atol=1e-5
    )
    np.testing.assert_allclose(white.matrix @ white.inverse, np.eye(6), atol=1e-4)
