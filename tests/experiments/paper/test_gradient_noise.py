"""Signal and noise of gradients, against sums over everything that can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coverings import in_turn
from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.examples import Examples
from extremax.experiments.paper.gradient_noise import (
    ClassGradient,
    drawn_gradients,
    estimate_noise,
    softmax_gradients,
)
from extremax.model import Model

N_CLASSES, PENALTY = 7, 0.01


@pytest.fixture(scope="module")
def data() -> Examples:
    made = planted_hierarchy(60, N_CLASSES, 4, seed=1)
    y = made.y.astype(np.int32)
    y[:N_CLASSES] = np.arange(N_CLASSES)
    return Examples(made.X, y)


def fit(data: Examples, **options: Any) -> Model:
    clf = ExtremeClassifier.with_solver(**{"n_epochs": 2, "random_state": 0, "n_jobs": 1, **options})
    return clf.fit(data.X, data.y).model_


def by_hand(model: Model, data: Examples, *, raw: bool) -> tuple[np.ndarray, np.ndarray]:
    """Probability and gradient (Eq. 6, one negative) of every row with every negative."""
    weights, biases = model.weights.coefficients()
    W, X = np.column_stack([weights, biases]).astype(np.float64), data.X.astype(np.float64)
    X = np.column_stack([X, np.ones(len(X))])
    Z = np.zeros((len(X), 0), np.float32) if model.projection is None else model.projection.transform(data.X)
    log_noise = model.noise.log_prob_all(Z).astype(np.float64)
    prob, gradients = [], []
    for x, y, log_p in zip(X, data.y, log_noise, strict=True):
        for negative in range(N_CLASSES):
            g = np.zeros_like(W)
            for label, sign in ((y, 1.0), (negative, -1.0)):
                xi = W[label] @ x
                penalized = xi if raw else xi + log_p[label]
                g[label] += (-sign / (1.0 + np.exp(sign * xi)) + 2 * PENALTY * penalized) * x
            prob.append(np.exp(log_p[negative]) / len(X))
            gradients.append(g)
    return np.array(prob), np.array(gradients)


def exact(prob: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Mean gradient, its square, and the trace of the covariance of one gradient."""
    mean = np.tensordot(prob, gradients, 1)
    signal = float((mean**2).sum())
    return mean, signal, float(prob @ (gradients**2).sum(axis=(1, 2)) - signal)


@pytest.mark.identity
def test_estimates_are_unbiased_identity() -> None:
    """The mean of the estimates over all pairs and triples of draws is what is estimated."""
    rng = np.random.default_rng(0)
    gradients, prob = rng.standard_normal((4, 3, 2)), np.array([0.1, 0.2, 0.3, 0.4])
    _, signal, noise = exact(prob, gradients)
    drawn = [ClassGradient(np.arange(3), gradient) for gradient in gradients]
    for size in (2, 3):
        total = np.zeros(2)
        for outcome in np.ndindex(*(len(prob),) * size):
            total += prob[list(outcome)].prod() * np.array(estimate_noise([drawn[i] for i in outcome], 3))
        np.testing.assert_allclose(total, [signal, noise], rtol=1e-12)
    # of means over two rows each, the noise of one row
    means = [(first, second) for first in range(4) for second in range(4)]
    total = np.zeros(2)
    for one in means:
        for other in means:
            pair = [ClassGradient(np.arange(3), gradients[list(both)].mean(axis=0)) for both in (one, other)]
            weight = prob[list(one + other)].prod()
            total += weight * np.array(estimate_noise(pair, 3, batch_size=2))
    np.testing.assert_allclose(total, [signal, noise], rtol=1e-12)


@pytest.mark.reference
@in_turn(noise=["uniform", "frequency", "tree"], raw=[False, True])
def test_drawn_gradients_match_sum_over_all_draws(data: Examples, noise: str, raw: bool) -> None:
    reading = "raw" if raw else "debiased"
    options = {"noise": noise, "n_negatives": 1, "score_penalty": PENALTY, "penalized_scores": reading}
    model = fit(data, solver="negative_sampling", learning_rate=0.1, **options)
    mean, signal, noise_of_row = exact(*by_hand(model, data, raw=raw))
    found, total = [], np.zeros_like(mean)
    for seed in range(20):
        drawn = list(drawn_gradients(model, data, batch_size=32, n_batches=20, seed=seed))
        found.append(estimate_noise(drawn, N_CLASSES, batch_size=32))
        for gradient in drawn:
            total[gradient.classes] += gradient.values / 400
    np.testing.assert_allclose(total, mean, atol=5 * np.sqrt(noise_of_row / (400 * 32)))
    values, errors = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(20)
    assert np.all(np.abs(values - [signal, noise_of_row]) < 5 * errors)
    assert np.all(errors < 0.1 * np.array([signal, noise_of_row]))  # it could fail


@pytest.mark.gradient
@pytest.mark.parametrize("solver", ["minibatch_softmax", "candidate_softmax"])
def test_softmax_gradients_match_finite_differences(data: Examples, solver: str) -> None:
    model = fit(data, solver=solver)
    weights, biases = model.weights.coefficients()
    W, X = np.column_stack([weights, biases]).astype(np.float64), data.X.astype(np.float64)
    X = np.column_stack([X, np.ones(len(X))])
    shift = np.linspace(-0.5, 0.5, len(X)).astype(np.float32)

    def losses(W: np.ndarray) -> np.ndarray:
        scores, at = X @ W.T, np.arange(len(X))
        scores[at, data.y] += shift
        return np.log(np.exp(scores).sum(axis=1)) - scores[at, data.y]

    per_row = np.zeros((len(X), *W.shape))
    for place in np.ndindex(*W.shape):
        step = np.zeros_like(W)
        step[place] = 1e-5
        per_row[(slice(None), *place)] = (losses(W + step) - losses(W - step)) / 2e-5
    _, signal, noise = exact(np.full(len(X), 1 / len(X)), per_row)
    options: dict[str, Any] = {"batch_size": 16, "n_batches": 10, "own_shift": shift}
    groups = [
        estimate_noise(softmax_gradients(model, data, seed=s, **options), N_CLASSES, batch_size=16)
        for s in range(20)
    ]
    values, errors = np.mean(groups, axis=0), np.std(groups, axis=0, ddof=1) / np.sqrt(20)
    assert np.all(np.abs(values - [signal, noise]) < 5 * errors)
    assert errors[1] < 0.1 * noise
    one = next(iter(softmax_gradients(model, data, seed=0, **{**options, "batch_size": 1})))
    row = np.random.default_rng((0, 0)).integers(len(X), size=1)[0]
    whole = np.zeros_like(W)
    whole[one.classes] = one.values
    np.testing.assert_allclose(whole, per_row[row], atol=1e-4)  # scores are float32


@pytest.mark.error
def test_other_objectives_reject(data: Examples) -> None:
    softmax, drawn = fit(data, solver="minibatch_softmax", n_shared=None), fit(data, solver="one_vs_each")
    with pytest.raises(ValueError, match="'minibatch_softmax' has no gradient of drawn negatives"):
        next(drawn_gradients(softmax, data, batch_size=2, n_batches=2, seed=0))
    with pytest.raises(ValueError, match="'one_vs_each' over 7 classes draws classes"):
        next(softmax_gradients(drawn, data, batch_size=2, n_batches=2, seed=0))
    with pytest.raises(ValueError, match="there are 1 gradients"):
        estimate_noise([ClassGradient(np.array([0]), np.ones((1, 1)))], 2)
    several = Examples(data.X, data.y, np.arange(len(data.y)))
    with pytest.raises(ValueError, match="one label per row"):
        next(softmax_gradients(softmax, several, batch_size=2, n_batches=2, seed=0))
