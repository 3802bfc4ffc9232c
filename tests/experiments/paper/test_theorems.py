"""Theorem 1 of the paper, by training: for any noise, debiased scores converge to maximum likelihood.

The features are one-hot, so that a linear model has a free score for every (x, y): the nonparametric limit of
the theorem. Every x comes with several labels, and maximum likelihood is the table of their frequencies. Most
runs are exact: rows list all draws that the noise could make, weighted by their probability, and full-batch
steps follow the gradient of the expected loss.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

import reference
from coverings import in_turn, pairwise
from extremax.calibration import Calibration
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.runtime.context import Context
from extremax.scores import Scorer
from extremax.solvers.base import TrainState, find_feature_scale
from extremax.solvers.config import resolve
from extremax.solvers.negative_sampling import PreparedRows, RowTrainer
from extremax.solvers.optimizers import Tables
from extremax.solvers.order import row_source
from extremax.solvers.registry import SOLVERS
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, MixtureNoise, Noise, TreeNoise, UniformNoise
from extremax.tuned import ProblemSize
from scorers import debiased_scores

COUNTS = np.array([[40, 10, 6, 30, 14], [5, 60, 20, 5, 10], [25, 20, 15, 10, 30]])  # rows of each (x, label)
LOG_FREQUENCY = np.log(COUNTS / COUNTS.sum(axis=1, keepdims=True))
N_POINTS, N_CLASSES = COUNTS.shape
ONE_HOT = np.eye(N_POINTS, dtype=np.float32)
POINTS = np.array([[-1.0, 0.2], [1.2, -0.3], [0.1, 1.0]], np.float32)  # the tree's features of each x
TO_POINTS = PCA(np.ascontiguousarray(POINTS.T), np.zeros(N_POINTS, np.float32), np.ones(2))  # of one-hot rows

pytestmark = pytest.mark.planted

NOISES = ["uniform", "frequency", "tree", "bad adversarial", "mixture"]


@functools.cache
def make_noise(kind):
    x, y = (a.ravel() for a in np.indices(COUNTS.shape))
    match kind:
        case "uniform":
            return UniformNoise(N_CLASSES)
        case "frequency":
            return FrequencyNoise(COUNTS.sum(axis=0))
        case "tree":
            return TreeNoise(LabelTree.fit(POINTS[x], y, sample_weight=COUNTS.ravel(), regularization=0.1))
        case "bad adversarial":  # a tree that was fitted to the labels of another x
            return TreeNoise(
                LabelTree.fit(POINTS[::-1][x], y, sample_weight=COUNTS.ravel(), regularization=10.0)
            )
        case "mixture":
            return MixtureNoise(make_noise("bad adversarial"), make_noise("frequency"), weight=0.5)


class Listed(Noise):
    """A noise whose draws, followed by their log-probabilities, are the tree's features of each row."""

    n_classes = N_CLASSES

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        return Z[:, :n_draws].astype(np.int32), Z[:, n_draws:]


class NoProgress:
    def check(self):
        pass

    def report(self, pairs_done, loss):
        pass


class Training:
    """Epochs of the library on rows, tree features and a noise that are given."""

    def __init__(
        self,
        solver,
        data,
        Z,
        noise,
        positive_log_noise,
        *,
        n_classes=N_CLASSES,
        feature_scale=1.0,
        **parameters,
    ):
        self.definition = SOLVERS[solver]
        problem = ProblemSize(data.n_rows, data.n_pairs, data.X.shape[1], n_classes)
        chosen = {"optimizer": "sgd", "batch_size": data.n_pairs, "score_penalty": 0.0, **parameters}
        config = resolve(SOLVERS[solver](noise=noise, **chosen), problem)
        self.trainer = RowTrainer(config, Context(seed=1))
        tables = Tables.zeros(n_classes, data.X.shape[1], config.solver.optimizer)
        tables.biases[:] = -np.log(n_classes) if self.definition.starts_at_noise else 0.0
        self.state = TrainState(tables, feature_scale, noise)
        self.prepared = PreparedRows(data, row_source(data.X), Z, positive_log_noise)

    def epoch(self, learning_rate):
        self.trainer.epoch(self.state, self.prepared, (learning_rate, learning_rate), NoProgress())

    def epochs(self, n_epochs, learning_rate=1.0):
        for _ in range(n_epochs):
            self.epoch(learning_rate)
        return self

    def scores(self, noise, *, X=ONE_HOT, projection=TO_POINTS, remove_bias=True):
        """Debiased scores of every (x, y), as prediction makes them."""
        term = noise if self.definition.adds_log_noise and remove_bias else None
        return debiased_scores(Scorer(self.trainer.export(self.state), term, projection, Calibration()), X)


@functools.cache
def expected_gradient(solver, noise, n_negatives, **parameters):
    """Train on all (x, y, negatives), each weighted by its probability.

    A full batch of them has the expected gradient.
    """
    log_noise = noise.log_prob_all(POINTS)
    rows = np.array(
        list(itertools.product(range(N_POINTS), range(N_CLASSES), *[range(N_CLASSES)] * n_negatives))
    )
    x, y, negatives = rows[:, 0], rows[:, 1], rows[:, 2:]
    log_draws = log_noise[x[:, None], negatives]
    weight = np.exp(LOG_FREQUENCY[x, y] + log_draws.sum(axis=1)).astype(np.float32)
    data = Examples(ONE_HOT[x], y.astype(np.int32), weight=weight)
    Z = np.hstack([negatives, log_draws]).astype(np.float32)
    training = Training(solver, data, Z, Listed(), log_noise[x, y], n_negatives=n_negatives, **parameters)
    return training.epochs(300)


# -- Theorem 1, exactly


@pairwise(n_negatives=[1, 2], kind=NOISES, solver=["negative_sampling", "nce"])
def test_scores_are_maximum_likelihood_whatever_the_noise_recovers(solver, kind, n_negatives):
    noise = make_noise(kind)
    scores = expected_gradient(solver, noise, n_negatives).scores(noise)
    # Linear convergence leaves 1e-4 after 300 steps.  The scores are normalised by themselves: a free score
    # for every (x, y) also takes up the constant of each x.
    np.testing.assert_allclose(scores, LOG_FREQUENCY, atol=5e-4)


@in_turn(n_negatives=[1, 2], kind=NOISES)
def test_sampled_softmax_is_maximum_likelihood_whatever_the_noise_recovers(kind, n_negatives):
    noise = make_noise(kind)
    scores = expected_gradient("sampled_softmax", noise, n_negatives).scores(noise)
    # up to a constant of each x
    np.testing.assert_allclose(reference.log_softmax(scores), LOG_FREQUENCY, atol=5e-4)


def test_all_noises_give_the_same_scores_identity():
    """Theorem 1 as it is stated: debiased scores of two noises differ by a constant of each x alone."""
    differences = []
    for kind in NOISES:
        noise = make_noise(kind)
        scores = expected_gradient("negative_sampling", noise, 1).scores(noise)
        differences.append(scores - scores.mean(axis=1, keepdims=True))
    for other in differences[1:]:
        np.testing.assert_allclose(other, differences[0], atol=1e-3)  # both within 5e-4 of their limit


@pytest.mark.parametrize("kind", ["frequency", "tree", "bad adversarial", "mixture"])
def test_without_bias_removal_the_scores_are_wrong(kind):
    # Else the tests above would pass for a noise that has no bias to remove.
    noise = make_noise(kind)
    raw = expected_gradient("negative_sampling", noise, 1).scores(noise, remove_bias=False)
    assert np.abs(reference.log_softmax(raw) - LOG_FREQUENCY).max() > 0.4
    # xi is the log-ratio of data to noise
    np.testing.assert_allclose(raw, LOG_FREQUENCY - noise.log_prob_all(POINTS), atol=5e-4)


def test_penalty_pulls_the_debiased_score_not_the_score():
    """Eq. 6: at the optimum of each (x, y), -p sigma(-xi) + p_n sigma(xi) + 2 lambda (p + p_n) s = 0.

    Here s = xi + log p_n.
    """
    noise, penalty = make_noise("bad adversarial"), 0.05
    training = expected_gradient("negative_sampling", noise, 1, score_penalty=penalty)
    s = training.scores(noise).astype(np.float64)
    log_noise = noise.log_prob_all(POINTS).astype(np.float64)
    p, p_n, right = np.exp(LOG_FREQUENCY), np.exp(log_noise), 1.0 / (1.0 + np.exp(log_noise - s))
    residual = -p * (1.0 - right) + p_n * right + 2.0 * penalty * (p + p_n) * s
    np.testing.assert_allclose(residual, 0.0, atol=1e-5)  # float32 sums of 75 coefficients below 1
    assert np.abs(s - LOG_FREQUENCY).max() > 0.1  # and the penalty is felt


# -- Theorem 1, by draws


@pytest.mark.parametrize(
    ("solver", "kind", "n_negatives"),
    [
        ("negative_sampling", "frequency", 4),
        ("negative_sampling", "bad adversarial", 4),
        ("negative_sampling", "mixture", 4),
        ("nce", "bad adversarial", 4),
        ("sampled_softmax", "bad adversarial", 1),
    ],
)
def test_sampled_training_recovers_maximum_likelihood(solver, kind, n_negatives):
    """Falling steps and an average over the last epochs, with real draws."""
    x = np.repeat(np.arange(N_POINTS), COUNTS.sum(axis=1))
    y = np.concatenate([np.repeat(np.arange(N_CLASSES, dtype=np.int32), row) for row in COUNTS])
    noise, n_epochs, first = make_noise(kind), 300, 100
    log_noise = noise.log_prob(POINTS[x], y)
    data = Examples(ONE_HOT[x], y)
    training = Training(solver, data, POINTS[x], noise, log_noise, n_negatives=n_negatives, batch_size=10)
    mean = np.zeros(COUNTS.shape)
    for epoch in range(n_epochs):
        training.epoch((1.0 + epoch / 10.0) ** -0.7)
        if epoch >= first:
            mean += training.scores(noise) / (n_epochs - first)
    # The logarithm of a ratio of counts, positives over negatives seen: variance 1 / positives + 1 /
    # negatives, five standard errors.  (Averaged stochastic gradients reach the variance of the estimate from
    # all draws at once.)
    seen = (n_epochs - first) * COUNTS.sum(axis=1, keepdims=True)
    variance = np.exp(-LOG_FREQUENCY) / seen + np.exp(-noise.log_prob_all(POINTS)) / (n_negatives * seen)
    error = np.abs(reference.log_softmax(mean) - LOG_FREQUENCY)
    assert np.all(error <= 5.0 * np.sqrt(variance))
    assert np.sqrt(variance).max() < 0.05  # a bound that says something: bias that stays in is 0.4 and more


# -- parametric models


def train_against_all_classes(X, y, n_classes):
    """Train every row with all other classes as its negatives, once each."""
    others = np.array([[c for c in range(n_classes) if c != label] for label in range(n_classes)])[y]
    uniform = np.full(others.shape, -np.log(n_classes))
    data = Examples(X, y, weight=np.full(len(y), 1.0 / len(y), np.float32))
    Z = np.hstack([others, uniform]).astype(np.float32)
    log_noise = np.full(len(y), uniform[0, 0], np.float32)
    parameters = {"n_classes": n_classes, "n_negatives": n_classes - 1}
    return Training("sampled_softmax", data, Z, Listed(), log_noise, **parameters).epochs(1000)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_sampled_softmax_with_all_classes_trains_the_softmax_identity(n_classes):
    """With two classes this is logistic regression; a generic optimizer in float64 finds the optimum."""
    rng = np.random.default_rng(n_classes)
    X = rng.standard_normal((60, 2)).astype(np.float32)
    y = ((X @ rng.standard_normal((2, n_classes)) + rng.gumbel(size=(60, n_classes))).argmax(axis=1)).astype(
        np.int32
    )
    tables = train_against_all_classes(X, y, n_classes).state.tables

    def loss(parameters):
        table = parameters.reshape(n_classes, 3)
        return -reference.log_softmax(X @ table[:, :2].T + table[:, 2])[np.arange(60), y].mean()

    best = minimize(loss, np.zeros(3 * n_classes), method="BFGS", options={"gtol": 1e-7}).x.reshape(
        n_classes, 3
    )
    ours = np.column_stack([tables.weights, tables.biases])
    # Both start at zero, and gradients of a softmax add up to zero over the classes: so do the parameters.
    np.testing.assert_allclose(ours, best, atol=2e-3)  # gradient descent after 1,000 steps


@in_turn(optimizer=["adagrad", "adagrad_row", "sgd"], kind=["uniform", "frequency"])
def test_planted_linear_softmax_recovers(optimizer, kind):
    rng = np.random.default_rng(1)
    weights, biases = rng.standard_normal((10, 4)), 0.5 * rng.standard_normal(10)
    X = rng.standard_normal((9000, 4)).astype(np.float32)
    log_prob = log_softmax(X @ weights.T + biases, axis=1)
    y = np.argmax(log_prob + rng.gumbel(size=log_prob.shape), axis=1).astype(np.int32)
    X, y, X_test, truth = X[:8000], y[:8000], X[8000:], log_prob[8000:]
    noise = UniformNoise(10) if kind == "uniform" else FrequencyNoise(np.bincount(y, minlength=10))
    Z = np.empty((8000, 0), np.float32)
    parameters = {"n_classes": 10, "n_negatives": 1, "batch_size": 64, "optimizer": optimizer}
    parameters["feature_scale"] = find_feature_scale(X)
    training = Training("sampled_softmax", Examples(X, y), Z, noise, noise.log_prob(Z, y), **parameters)
    for epoch in range(20):
        training.epoch(0.3 * (1.0 - epoch / 20.0))
    found = reference.log_softmax(training.scores(noise, X=X_test, projection=None))
    divergence = (np.exp(truth) * (truth - found)).sum(axis=1).mean()
    # Maximum likelihood of 45 parameters from 8,000 rows is off by 45 / 16,000 = 0.003; one negative per row
    # and plain steps add to that.  The noise itself is off by 0.8.
    assert divergence < 0.02
