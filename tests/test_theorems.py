"""Theorem 1 of the paper, by training: whatever the noise, debiased scores converge to those of maximum
likelihood.

The features are one-hot, so that a linear model has a free score for every (x, y): the nonparametric limit of
the theorem. Every x comes with several labels, and maximum likelihood is the table of their frequencies. Most
runs are exact: rows list all draws that the noise could make, weighted by their probability, and full-batch
steps follow the gradient of the expected loss."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

import reference
from extremax.data import planted_softmax
from extremax.linear import EpochOptions, LinearModel, TrainingSet, feature_scale, train_epoch
from extremax.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise
from extremax.search import debiased_scores
from extremax.training.objectives import OBJECTIVES
from extremax.tree import LabelTree

COUNTS = np.array([[40, 10, 6, 30, 14], [5, 60, 20, 5, 10], [25, 20, 15, 10, 30]])  # rows of each (x, label)
LOG_FREQUENCY = np.log(COUNTS / COUNTS.sum(axis=1, keepdims=True))
N_POINTS, N_CLASSES = COUNTS.shape
ONE_HOT = np.eye(N_POINTS, dtype=np.float32)
POINTS = np.array([[-1.0, 0.2], [1.2, -0.3], [0.1, 1.0]], np.float32)  # the tree's features of each x

NOISES = ["uniform", "frequency", "adversarial", "bad adversarial", "mixture"]


@functools.cache
def make_noise(kind):
    x, y = (a.ravel() for a in np.indices(COUNTS.shape))
    match kind:
        case "uniform":
            return UniformNoise(N_CLASSES)
        case "frequency":
            return FrequencyNoise(COUNTS.sum(axis=0))
        case "adversarial":
            return TreeNoise(LabelTree.fit(POINTS[x], y, sample_weight=COUNTS.ravel(), regularization=0.1))
        case "bad adversarial":  # a tree that was fitted to the labels of another x
            return TreeNoise(
                LabelTree.fit(POINTS[::-1][x], y, sample_weight=COUNTS.ravel(), regularization=10.0)
            )
        case "mixture":
            return MixtureNoise(make_noise("bad adversarial"), make_noise("frequency"), weight=0.5)


class Listed:
    """A noise whose draws stand in the tree's features of each row, with their log-probabilities behind
    them.
    """

    n_classes = N_CLASSES

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        return Z[:, :n_draws].astype(np.int32), Z[:, n_draws:]


def expected_gradient_data(noise, n_negatives):
    """All (x, y, negatives) with weight p(y|x) p_n(negatives|x): a full batch of them has the expected
    gradient.
    """
    log_noise = noise.log_prob_all(POINTS)
    rows = np.array(
        list(itertools.product(range(N_POINTS), range(N_CLASSES), *[range(N_CLASSES)] * n_negatives))
    )
    x, y, negatives = rows[:, 0], rows[:, 1], rows[:, 2:]
    log_draws = log_noise[x[:, None], negatives]
    weight = np.exp(LOG_FREQUENCY[x, y] + log_draws.sum(axis=1))
    return TrainingSet(
        X=ONE_HOT[x],
        y=y.astype(np.int32),
        Z=np.hstack([negatives, log_draws]).astype(np.float32),
        weight=weight.astype(np.float32),
        positive_log_noise=log_noise[x, y],
    )


def descend(
    objective, data, n_negatives, *, n_features=N_POINTS, n_classes=N_CLASSES, n_epochs=300, learning_rate=1.0
):
    """Gradient descent on the expected loss, by the library's own epochs."""
    first_bias = -np.log(n_classes) if OBJECTIVES[objective].starts_at_noise else 0.0
    model = LinearModel.zeros(n_classes, n_features, optimizer="sgd", first_bias=first_bias)
    options = EpochOptions(OBJECTIVES[objective], Listed(), n_negatives=n_negatives, batch_size=len(data.y))
    for _ in range(n_epochs):
        train_epoch(model, data, options, learning_rate=learning_rate)
    return model


def scores_of(model, objective, noise):
    """Debiased scores of every (x, y), as prediction makes them."""
    return debiased_scores(ONE_HOT, model, noise if OBJECTIVES[objective].removes_bias else None, POINTS)


# -- Theorem 1, exactly
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_negatives", [1, 2])
@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("objective", ["negative_sampling", "nce"])
def test_scores_are_maximum_likelihood_whatever_the_noise_recovers(objective, kind, n_negatives):
    noise = make_noise(kind)
    model = descend(objective, expected_gradient_data(noise, n_negatives), n_negatives)
    # Linear convergence leaves 1e-4 after 300 steps.  The scores are normalised by themselves: a free score
    # for every (x, y) also takes up the constant of each x.
    np.testing.assert_allclose(scores_of(model, objective, noise), LOG_FREQUENCY, atol=5e-4)


@pytest.mark.parametrize("n_negatives", [1, 2])
@pytest.mark.parametrize("kind", NOISES)
def test_sampled_softmax_is_maximum_likelihood_whatever_the_noise_recovers(kind, n_negatives):
    noise = make_noise(kind)
    model = descend("sampled_softmax", expected_gradient_data(noise, n_negatives), n_negatives)
    scores = scores_of(model, "sampled_softmax", noise)
    # up to a constant of each x
    np.testing.assert_allclose(reference.log_softmax(scores), LOG_FREQUENCY, atol=5e-4)


def test_all_noises_give_the_same_scores_identity():
    """Theorem 1 as it is written: debiased scores of two noises differ by a constant of each x alone."""
    differences = []
    for kind in NOISES:
        noise = make_noise(kind)
        scores = scores_of(
            descend("negative_sampling", expected_gradient_data(noise, 1), 1), "negative_sampling", noise
        )
        differences.append(scores - scores.mean(axis=1, keepdims=True))
    for other in differences[1:]:
        np.testing.assert_allclose(other, differences[0], atol=1e-3)  # both within 5e-4 of their limit


@pytest.mark.parametrize("kind", ["frequency", "adversarial", "bad adversarial", "mixture"])
def test_without_bias_removal_the_scores_are_wrong(kind):
    # Else the tests above would pass for a noise that has no bias to remove.
    noise = make_noise(kind)
    model = descend("negative_sampling", expected_gradient_data(noise, 1), 1)
    raw = reference.log_softmax(debiased_scores(ONE_HOT, model, None, POINTS))
    assert np.abs(raw - LOG_FREQUENCY).max() > 0.4
    np.testing.assert_allclose(
        debiased_scores(ONE_HOT, model, None, POINTS), LOG_FREQUENCY - noise.log_prob_all(POINTS), atol=5e-4
    )  # xi is the log-ratio of data to noise


def test_penalty_pulls_the_debiased_score_not_the_score():
    """Eq. 6: the optimum of each (x, y) solves -p sigma(-xi) + p_n sigma(xi) + 2 lambda (p + p_n) s = 0, s
    = xi + log p_n.
    """
    noise, penalty = make_noise("bad adversarial"), 0.05
    data = expected_gradient_data(noise, 1)
    model = LinearModel.zeros(N_CLASSES, N_POINTS, optimizer="sgd")
    options = EpochOptions(
        OBJECTIVES["negative_sampling"], Listed(), score_penalty=penalty, batch_size=len(data.y)
    )
    for _ in range(300):
        train_epoch(model, data, options, learning_rate=1.0)
    s = scores_of(model, "negative_sampling", noise).astype(np.float64)
    log_noise = noise.log_prob_all(POINTS).astype(np.float64)
    p, p_n, right = np.exp(LOG_FREQUENCY), np.exp(log_noise), 1.0 / (1.0 + np.exp(log_noise - s))
    residual = -p * (1.0 - right) + p_n * right + 2.0 * penalty * (p + p_n) * s
    np.testing.assert_allclose(residual, 0.0, atol=1e-5)  # float32 sums of 75 coefficients below 1
    assert np.abs(s - LOG_FREQUENCY).max() > 0.1  # and the penalty is felt


# -- Theorem 1, by draws
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "kind", "n_negatives"),
    [
        ("negative_sampling", "uniform", 4),
        ("negative_sampling", "frequency", 4),
        ("negative_sampling", "adversarial", 4),
        ("negative_sampling", "bad adversarial", 4),
        ("negative_sampling", "mixture", 4),
        ("nce", "bad adversarial", 4),
        ("sampled_softmax", "bad adversarial", 1),
    ],
)
def test_sampled_training_recovers_maximum_likelihood(objective, kind, n_negatives):
    """Falling steps and an average over the last epochs, with real draws."""
    x = np.repeat(np.arange(N_POINTS), COUNTS.sum(axis=1))
    y = np.concatenate([np.repeat(np.arange(N_CLASSES, dtype=np.int32), row) for row in COUNTS])
    noise, n_epochs, first = make_noise(kind), 300, 100
    data = TrainingSet(ONE_HOT[x], y, POINTS[x], np.ones(len(y), np.float32), noise.log_prob(POINTS[x], y))
    model = LinearModel.zeros(
        N_CLASSES, N_POINTS, optimizer="sgd", first_bias=-np.log(N_CLASSES) if objective == "nce" else 0.0
    )
    options = EpochOptions(OBJECTIVES[objective], noise, n_negatives=n_negatives, batch_size=10, seed=1)
    mean = np.zeros(COUNTS.shape)
    for epoch in range(n_epochs):
        train_epoch(model, data, options, learning_rate=(1.0 + epoch / 10.0) ** -0.7)
        if epoch >= first:
            mean += scores_of(model, objective, noise) / (n_epochs - first)
    # The logarithm of a ratio of counts, positives over negatives seen: variance 1 / positives + 1 /
    # negatives, five standard errors.  (Averaged stochastic gradients reach the variance of the estimate from
    # all draws at once.)
    seen = (n_epochs - first) * COUNTS.sum(axis=1, keepdims=True)
    variance = np.exp(-LOG_FREQUENCY) / seen + np.exp(-noise.log_prob_all(POINTS)) / (n_negatives * seen)
    error = np.abs(reference.log_softmax(mean) - LOG_FREQUENCY)
    assert np.all(error <= 5.0 * np.sqrt(variance))
    assert np.sqrt(variance).max() < 0.05  # a bound that says something: bias that stays in is 0.4 and more


# -- parametric models
# ---------------------------------------------------------------------------------------------------------


def all_classes_data(X, y, n_classes):
    """Every row with all other classes as its negatives, once each."""
    others = np.array([[c for c in range(n_classes) if c != label] for label in range(n_classes)])[y]
    uniform = np.full(others.shape, -np.log(n_classes))
    weight = np.full(len(y), 1.0 / len(y), np.float32)
    return TrainingSet(
        X,
        y,
        np.hstack([others, uniform]).astype(np.float32),
        weight,
        np.full(len(y), uniform[0, 0], np.float32),
    )


@pytest.mark.parametrize("n_classes", [2, 4])
def test_sampled_softmax_with_all_classes_trains_the_softmax_identity(n_classes):
    """With two classes this is logistic regression; the optimum is found by a generic optimiser in
    float64.
    """
    rng = np.random.default_rng(n_classes)
    X = rng.standard_normal((60, 2)).astype(np.float32)
    y = ((X @ rng.standard_normal((2, n_classes)) + rng.gumbel(size=(60, n_classes))).argmax(axis=1)).astype(
        np.int32
    )
    model = descend(
        "sampled_softmax",
        all_classes_data(X, y, n_classes),
        n_classes - 1,
        n_features=2,
        n_classes=n_classes,
        n_epochs=1000,
    )

    def loss(parameters):
        table = parameters.reshape(n_classes, 3)
        return -reference.log_softmax(X @ table[:, :2].T + table[:, 2])[np.arange(60), y].mean()

    best = minimize(loss, np.zeros(3 * n_classes), method="BFGS", options={"gtol": 1e-7}).x.reshape(
        n_classes, 3
    )
    ours = np.column_stack([model.weights, model.biases])
    # Both start at zero, and gradients of a softmax add up to zero over the classes: so do the parameters.
    np.testing.assert_allclose(ours, best, atol=2e-3)  # gradient descent after 1,000 steps


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "sgd"])
@pytest.mark.parametrize("kind", ["uniform", "frequency"])
def test_planted_linear_softmax_recovers(optimizer, kind):
    planted = planted_softmax(8000, 10, 4, seed=1, n_test=1000)
    noise = UniformNoise(10) if kind == "uniform" else FrequencyNoise(np.bincount(planted.y, minlength=10))
    Z, scale = np.empty((8000, 0), np.float32), feature_scale(planted.X)
    data = TrainingSet(planted.X, planted.y, Z, np.ones(8000, np.float32), noise.log_prob(Z, planted.y))
    options = EpochOptions(OBJECTIVES["sampled_softmax"], noise, batch_size=64)
    model = LinearModel.zeros(10, 4, optimizer=optimizer, feature_scale=scale)
    for epoch in range(20):
        train_epoch(model, data, options, learning_rate=0.3 * (1.0 - epoch / 20.0))
    base = noise if OBJECTIVES["sampled_softmax"].removes_bias else None
    truth = planted.truth.log_prob_all(planted.X_test)
    found = reference.log_softmax(debiased_scores(planted.X_test, model, base, Z[:1000]))
    divergence = (np.exp(truth) * (truth - found)).sum(axis=1).mean()
    # Maximum likelihood of 45 parameters from 8,000 rows is off by 45 / 16,000 = 0.003; one negative a row
    # and plain steps cost some of that.  The noise itself is off by 0.8.
    assert divergence < 0.02
