"""Whitened features: their covariance, the way there and back, and the discriminant that training starts
from.
"""

from __future__ import annotations

import numpy as np
import pytest

from extremax.features.pca import PCA
from extremax.features.whitening import Whitening, discriminants, fold, unfold, whiten_and_start
from extremax.linear import LinearModel

pytestmark = pytest.mark.small


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(20, size=2000).astype(np.int32)
    mix = rng.normal(size=(6, 6)) * np.array([5.0, 2.0, 1.0, 0.5, 0.2, 0.1])
    X = (1.5 * rng.normal(size=(20, 6))[y] + rng.normal(size=(2000, 6))) @ mix + 3.0
    return X.astype(np.float32), y


def started(X, y, *, scale=0.5, ridge=1e-6, weight=None, threads=1):
    model = LinearModel.zeros(20, 6, optimizer="adagrad_row", feature_scale=scale)
    weight = np.ones(len(y), np.float32) if weight is None else weight
    white, sharpness = whiten_and_start(
        model, PCA.fit(X, 6, max_rows=None), X, None, y, weight, ridge=ridge, seed=0, n_threads=threads
    )
    return model, white, sharpness


def test_rows_around_class_means_are_white_identity(data):
    X, y = data
    _, white, _ = started(X, y)
    x = white.rows(X, 0.5)
    means = np.stack([x[y == c].mean(axis=0) for c in range(20)])
    within = (x - means[y]).T @ (x - means[y]) / len(x)
    np.testing.assert_allclose(within, np.eye(6) / 6, atol=1e-3)  # float32 sums of 2,000 rows, ridge 1e-6


def test_fold_keeps_scores_and_unfold_undoes_it_identity(data):
    X, y = data
    model, white, _ = started(X, y)
    scores = white.rows(X, 0.5) @ model.weights.T + model.biases
    kept = model.weights.copy(), model.biases.copy()
    fold(model, white, 1)
    # float32, scores to 100
    np.testing.assert_allclose(0.5 * X @ model.weights.T + model.biases, scores, rtol=1e-3, atol=2e-2)
    unfold(model, white, 1)
    np.testing.assert_allclose(model.weights, kept[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(model.biases, kept[1], rtol=1e-3, atol=1e-2)


def test_start_is_the_linear_discriminant_matches_reference(data):
    X, y = data
    model, white, sharpness = started(X, y)
    x = white.rows(X, 0.5).astype(np.float64)
    n = np.bincount(y)
    means = np.stack([x[y == c].sum(axis=0) / (n[c] + 1.0) for c in range(20)])
    used = 0.6 * sharpness
    np.testing.assert_allclose(model.weights, used * means, rtol=1e-3, atol=1e-2)
    expected = np.log(n / n.sum()) - used * (means**2).sum(axis=1) / 2
    np.testing.assert_allclose(model.biases, expected, rtol=1e-3, atol=1e-2)


def test_start_predicts_nearly_as_well_as_the_true_means_recovers(data):
    X, y = data
    model, white, sharpness = started(X[:1500], y[:1500])
    scores = white.rows(X[1500:], 0.5) @ model.weights.T + model.biases
    assert (scores.argmax(axis=1) == y[1500:]).mean() > 0.6
    # Unit variance inside the classes would make 6 the right sharpness for rows of mean square length one.
    assert 2.0 <= sharpness <= 16.0


def test_rows_of_weight_two_count_twice_identity(data):
    X, y = data
    double = np.where(np.arange(len(y)) < 100, 2.0, 1.0).astype(np.float32)
    model = LinearModel.zeros(20, 6, optimizer="adagrad_row")
    repeated_X, repeated_y = np.concatenate([X, X[:100]]), np.concatenate([y, y[:100]])
    again = LinearModel.zeros(20, 6, optimizer="adagrad_row")
    pca = PCA.fit(X, 6, sample_weight=double, max_rows=None)
    white, _ = whiten_and_start(model, pca, X, None, y, double, seed=0, n_threads=1)
    ones = np.ones(len(repeated_y), np.float32)
    same, _ = whiten_and_start(again, pca, repeated_X, None, repeated_y, ones, seed=0, n_threads=1)
    np.testing.assert_allclose(white.matrix, same.matrix, rtol=1e-3, atol=1e-5)


def test_constant_features_and_single_rows(data):
    X, y = data[0].copy(), data[1]
    X[:, 2] = 7.0
    model, white, _ = started(X, y, ridge=0.1)
    assert np.isfinite(white.matrix).all()
    assert np.isfinite(model.weights).all()
    same = np.ones((40, 3), np.float32)
    flat = LinearModel.zeros(20, 3, optimizer="adagrad_row")
    labels = np.repeat(np.arange(20), 2).astype(np.int32)
    whiten_and_start(flat, PCA.fit(same, 3), same, None, labels, np.ones(40, np.float32), seed=0, n_threads=1)
    assert np.isfinite(flat.weights).all()


@pytest.mark.parametrize("copies", [1, 3])
def test_classes_without_spread_do_not_blow_up_rows_identity(copies):
    X = np.repeat(np.random.default_rng(4).normal(size=(20, 6)), copies, axis=0).astype(np.float32)
    y = np.repeat(np.arange(20), copies).astype(np.int32)
    model, white, _ = started(X, y, ridge=0.1)
    lengths = np.square(white.rows(X, model.feature_scale)).sum(axis=1)
    # One twentieth of the variance is taken to be inside the classes, where rows have unit length: 20 in all.
    assert 10.0 < lengths.mean() < 21.0


def test_thread_count_invariant(data):
    X, y = data
    one, three = started(X, y, threads=1)[0], started(X, y, threads=3)[0]
    assert np.array_equal(one.weights, three.weights)


def test_none_changes_only_the_scale_identity(data):
    X = data[0]
    np.testing.assert_allclose(Whitening.none(6).rows(X, 0.5), 0.5 * X, rtol=1e-6)


def test_discriminants_separate_the_classes_most_matches_reference(data):
    X, y = data
    model, white, sharpness = started(X, y)
    n = np.bincount(y)
    found = discriminants(model, white, n, 2, sharpness, 1)
    Z = found.transform(X)
    assert np.mean(np.sum(Z.astype(np.float64) ** 2, axis=1)) == pytest.approx(1.0, rel=0.1)

    def ratio(Z):  # variance between the classes by variance inside them
        means = np.stack([Z[y == c].mean(axis=0) for c in range(20)])
        return np.var(means[y], axis=0) / np.var(Z - means[y], axis=0)

    both = ratio(Z)
    assert both[0] >= both[1]
    directions = np.random.default_rng(1).normal(size=(6, 200))
    assert both[0] >= ratio(X @ directions).max() * 0.99  # Fisher's criterion: no direction does better
