"""The Gaussian prior: steps against their formula, training against the mode of the posterior."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import reference
from extremax.examples import Examples
from extremax.params import OPTIMIZERS
from extremax.solvers.optimizers import Tables, shrink
from extremax.tree.noise import Noise, UniformNoise
from extremax.tuned import DEFAULTS, replace_numbers
from trainers import run_by_rows

N_CLASSES, N_FEATURES, N_ROWS = 4, 3, 24


def random_tables(optimizer, n_classes=700, n_features=130, seed=0):
    rng = np.random.default_rng(seed)
    tables = Tables.zeros(n_classes, n_features, optimizer)
    for values in (tables.weights, tables.biases):
        values[...] = rng.standard_normal(values.shape)
    for squares in (tables.squares, tables.bias_squares):
        squares[...] = rng.uniform(1e-8, 4.0, squares.shape)
    return tables


@pytest.mark.small
@pytest.mark.reference
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shrink_matches_reference(optimizer):
    before, one, several = (random_tables(optimizer) for _ in range(3))
    shrink(one, 0.7, 0.2, 1)
    shrink(several, 0.7, 0.2, 3)
    rates = (1.0, 1.0) if optimizer == "sgd" else (before.squares**-0.5, before.bias_squares**-0.5)
    np.testing.assert_allclose(one.weights, before.weights / (1.0 + 0.14 * rates[0]), rtol=1e-6)  # float32
    np.testing.assert_allclose(one.biases, before.biases / (1.0 + 0.14 * rates[1]), rtol=1e-6)
    assert np.array_equal(one.squares, before.squares)
    assert np.array_equal(one.weights, several.weights)
    assert np.array_equal(one.biases, several.biases)


class Listed(Noise):
    """A noise whose draws stand in the projected features of each row; all classes are alike to it."""

    n_classes = N_CLASSES

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        return Z[:, :n_draws].astype(np.int32), np.full((len(Z), n_draws), -np.log(N_CLASSES), np.float32)

    def log_prob(self, Z, labels, *, n_jobs=None):
        return np.full(labels.shape, -np.log(N_CLASSES), np.float32)


class OtherClasses:
    """A projection to the list of all classes but a row's own."""

    def __init__(self, y):
        others = [[c for c in range(N_CLASSES) if c != label] for label in y]
        self.others = np.array(others, np.float32)

    def transform(self, X, *, n_jobs=None):
        return self.others


def some_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, N_FEATURES)).astype(np.float32)
    y = rng.integers(N_CLASSES, size=N_ROWS).astype(np.int32)
    return Examples(X, y, weight=rng.uniform(0.5, 2.0, N_ROWS).astype(np.float32))


@pytest.mark.planted
@pytest.mark.parametrize("variance", [0.1, 2.0])
@pytest.mark.parametrize(
    ("solver", "optimizer"),
    [("one_vs_each", "sgd"), ("negative_sampling", "sgd"), ("negative_sampling", "adagrad")],
)  # One-vs-Each leaves what all classes share to the prior alone, where Adagrad is slow
def test_training_finds_the_mode_of_the_posterior(solver, optimizer, variance):
    data = some_rows()
    others = OtherClasses(data.y)
    labels = np.column_stack([data.y, others.others]).astype(np.int32)
    log_noise = np.full(labels.shape, -np.log(N_CLASSES))

    def posterior(flat):
        weights = flat.reshape(N_CLASSES, N_FEATURES + 1)
        scores = reference.score_pairs(data.X, range(N_ROWS), labels, weights[:, :-1], weights[:, -1], 1.0)
        losses = reference.LOSSES[solver](scores, log_noise, log_noise, data.weight, 0.0, labels)
        return losses.sum() + flat @ flat / (2.0 * variance)

    mode = minimize(posterior, np.zeros(N_CLASSES * (N_FEATURES + 1)), tol=1e-10).x.reshape(N_CLASSES, -1)
    run = run_by_rows(
        data,
        Listed(),
        projection=others,
        solver=solver,
        optimizer=optimizer,
        n_negatives=N_CLASSES - 1,
        prior_variance=variance,
        score_penalty=0.0,
        batch_size=N_ROWS,
        scale=1.0,
    )
    run.epochs(1000, 0.01 if optimizer == "sgd" else 0.1)
    # Steps on single rows within an epoch leave a little of their noise where the accumulators differ from
    # weight to weight.
    np.testing.assert_allclose(np.column_stack([run.weights, run.biases]), mode, atol=2e-3)
    assert np.abs(mode).max() > 0.05


def shrunk(rate, variance=0.25, progress_pairs=8, prior_pairs=4):
    """The factor by which an epoch of the prior divides weights: rows of zeros have no other effect."""
    data = some_rows().with_features(np.zeros((N_ROWS, N_FEATURES), np.float32))
    numbers = replace_numbers(DEFAULTS, rows={"progress_pairs": progress_pairs, "prior_pairs": prior_pairs})
    options = {"solver": "one_vs_each", "optimizer": "sgd", "batch_size": 4, "n_negatives": 1}
    run = run_by_rows(data, UniformNoise(N_CLASSES), numbers=numbers, prior_variance=variance, **options)
    run.weights[...] = 3.0
    run.epoch(rate)
    assert len(np.unique(run.weights)) == 1  # every class alike
    return 3.0 / float(run.weights[0, 0])


@pytest.mark.identity
@pytest.mark.parametrize("prior_pairs", [1, 2, 4])
def test_fractions_of_an_epoch_add_up_to_one(prior_pairs):
    # prod(1 + rate * fraction / variance) is 1 + rate / variance, for a small rate, whatever the fractions.
    factor = shrunk(1e-3, prior_pairs=prior_pairs)
    assert (factor - 1.0) / 1e-3 == pytest.approx(1.0 / 0.25, rel=5e-3)  # float32, and rate^2
    # A large rate shows that there are several.
    assert shrunk(1.0, prior_pairs=prior_pairs) > 1.2 * (1.0 + 1.0 / 0.25)


def test_without_a_prior_nothing_shrinks():
    assert shrunk(1.0, variance=None) == 1.0
