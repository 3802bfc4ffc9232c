"""The Gaussian prior: its steps against their formula, and training with it against the mode of the
posterior.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import reference
from extremax import linear
from extremax.kernels.row_updates import ModelArrays
from extremax.linear import EpochOptions, LinearModel, TrainingSet, train_epoch
from extremax.noise import UniformNoise
from extremax.prior import shrink
from extremax.training.objectives import OBJECTIVES

N_CLASSES, N_FEATURES, N_ROWS = 4, 3, 24


def random_model(optimizer, n_classes=700, n_features=130, seed=0):
    rng = np.random.default_rng(seed)
    model = LinearModel.zeros(n_classes, n_features, optimizer=optimizer)
    for values in (model.weights, model.biases):
        values[...] = rng.standard_normal(values.shape)
    for squares in (model.squares, model.bias_squares):
        squares[...] = rng.uniform(1e-8, 4.0, squares.shape)
    return model


@pytest.mark.small
@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "sgd"])
def test_shrink_matches_reference(optimizer):
    models = [random_model(optimizer) for _ in range(3)]
    for model, threads in zip(models[1:], (1, 3), strict=True):
        shrink(ModelArrays(model.weights, model.biases, model.squares, model.bias_squares), 0.7, 0.2, threads)
    before, one, several = models
    rates = (1.0, 1.0) if optimizer == "sgd" else (before.squares**-0.5, before.bias_squares**-0.5)
    np.testing.assert_allclose(one.weights, before.weights / (1.0 + 0.14 * rates[0]), rtol=1e-6)  # float32
    np.testing.assert_allclose(one.biases, before.biases / (1.0 + 0.14 * rates[1]), rtol=1e-6)
    assert np.array_equal(one.squares, before.squares)
    assert np.array_equal(one.weights, several.weights)
    assert np.array_equal(one.biases, several.biases)


class Listed:
    """A noise whose draws stand in the tree's features of each row; all classes are alike to it."""

    n_classes = N_CLASSES

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        return Z[:, :n_draws].astype(np.int32), np.full((len(Z), n_draws), -np.log(N_CLASSES), np.float32)


def listed_data():
    """Rows whose negatives are every other class once."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES)).astype(np.float32)
    y = rng.integers(N_CLASSES, size=N_ROWS).astype(np.int32)
    others = np.array([[c for c in range(N_CLASSES) if c != label] for label in y], np.float32)
    weight = rng.uniform(0.5, 2.0, N_ROWS).astype(np.float32)
    return TrainingSet(X, y, others, weight, np.full(N_ROWS, -np.log(N_CLASSES), np.float32))


@pytest.mark.parametrize("variance", [0.1, 2.0])
@pytest.mark.parametrize(
    ("objective", "optimizer"),
    [("one_vs_each", "sgd"), ("negative_sampling", "sgd"), ("negative_sampling", "adagrad")],
)  # One-vs-Each leaves what all classes share to the prior alone, where Adagrad is slow
def test_training_finds_the_mode_of_the_posterior_recovers(objective, optimizer, variance):
    data = listed_data()
    labels = np.column_stack([data.y, data.Z]).astype(np.int32)
    log_noise = np.full(labels.shape, -np.log(N_CLASSES))

    def posterior(flat):
        parameters = flat.reshape(N_CLASSES, N_FEATURES + 1)
        scores = reference.score_pairs(
            data.X, range(N_ROWS), labels, parameters[:, :-1], parameters[:, -1], 1.0
        )
        losses = reference.LOSSES[objective](scores, log_noise, log_noise, data.weight, 0.0, labels)
        return losses.sum() + flat @ flat / (2.0 * variance)

    mode = minimize(posterior, np.zeros(N_CLASSES * (N_FEATURES + 1)), tol=1e-10).x.reshape(N_CLASSES, -1)
    model = LinearModel.zeros(N_CLASSES, N_FEATURES, optimizer=optimizer)
    options = EpochOptions(
        OBJECTIVES[objective], Listed(), n_negatives=N_CLASSES - 1, prior_variance=variance, batch_size=N_ROWS
    )
    for _ in range(1000):
        train_epoch(model, data, options, learning_rate=0.01 if optimizer == "sgd" else 0.1)
    # Steps on single rows within an epoch leave a little of their noise where the accumulators differ from
    # weight to weight.
    np.testing.assert_allclose(np.column_stack([model.weights, model.biases]), mode, atol=2e-3)
    assert np.abs(mode).max() > 0.05


def test_shares_of_an_epoch_add_up_to_one_identity(monkeypatch):
    strengths = []
    monkeypatch.setattr(linear, "shrink", lambda arrays, strength, *more: strengths.append(strength))
    monkeypatch.setattr(linear, "_STRETCH_PAIRS", 8)
    data, model = listed_data(), LinearModel.zeros(N_CLASSES, N_FEATURES)
    options = EpochOptions(
        OBJECTIVES["one_vs_each"], UniformNoise(N_CLASSES), prior_variance=0.25, batch_size=4
    )
    train_epoch(model, data, options, learning_rate=0.1)
    assert len(strengths) > 1
    assert sum(strengths) == pytest.approx(1.0 / 0.25, rel=1e-6)  # float32 weights
    strengths.clear()
    train_epoch(
        model, data, EpochOptions(OBJECTIVES["one_vs_each"], UniformNoise(N_CLASSES)), learning_rate=0.1
    )
    assert not strengths
