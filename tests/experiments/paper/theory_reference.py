"""The signal-to-noise ratio of section 4, computed from full matrices and from simulated gradients.

Neither shares a formula with `extremax.experiments.paper.theory` beyond the distribution of a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from extremax.experiments.paper.theory import _check_tables
from extremax.types import Float64, Int64

_DRAWS_PER_BLOCK = 1 << 16


@dataclass(frozen=True)
class SimulatedSnr:
    """SNR from simulated gradients, with the standard error that follows from the number of draws."""

    snr: float
    standard_error: float
    n_draws: int


def expected_loss(scores: ArrayLike, p_data: ArrayLike, p_noise: ArrayLike) -> tuple[float, Float64]:
    """Return l(xi) for a table of scores, and its gradient as a table (appendix of the paper)."""
    data, noise = _check_tables(p_data, p_noise)
    xi = np.asarray(scores, np.float64)
    loss = float((data * np.logaddexp(0.0, -xi) + noise * np.logaddexp(0.0, xi)).sum())
    return loss, -data * _sigmoid(-xi) + noise * _sigmoid(xi)


def optimal_scores(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return xi* = log p_D - log p_n, the scores at which `expected_loss` is smallest."""
    data, noise = _check_tables(p_data, p_noise)
    scores: Float64 = np.log(data) - np.log(noise)
    return scores


def hessian(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return the Hessian of `expected_loss` at its minimum, (n C, n C)."""
    data, noise = _check_tables(p_data, p_noise)
    xi = optimal_scores(data, noise)
    return np.diag(((data + noise) * _sigmoid(xi) * _sigmoid(-xi)).ravel())


def gradient_covariance(p_data: ArrayLike, p_noise: ArrayLike, *, n_negatives: int = 1) -> Float64:
    """Return Cov[g, g] at the minimum, (n C, n C), as a sum over all possible draws.

    Positive and negatives of one x are independent: the covariance given x is that of the positive's gradient
    plus that of one negative's divided by `n_negatives`; the means of both enter through the mean given x.
    """
    data, noise = _check_tables(p_data, p_noise)
    n, n_classes = data.shape
    xi, single = optimal_scores(data, noise), np.eye(n_classes)
    second_moment, mean = np.zeros((data.size, data.size)), np.zeros(data.size)
    for x in range(n):
        cut = slice(x * n_classes, (x + 1) * n_classes)
        # Row y of each table is the gradient (divided by N) that drawing class y makes.
        from_positive, from_negative = -_sigmoid(-xi[x])[:, None] * single, _sigmoid(xi[x])[:, None] * single
        given_x = data[x] @ from_positive + noise[x] @ from_negative
        spread = _covariance(from_positive, data[x]) + _covariance(from_negative, noise[x]) / n_negatives
        # N**2, and each x has probability 1 / N
        second_moment[cut, cut] += n * (spread + np.outer(given_x, given_x))
        mean[cut] += given_x
    covariance: Float64 = second_moment - np.outer(mean, mean)
    return covariance


def snr_from_matrices(p_data: ArrayLike, p_noise: ArrayLike, *, n_negatives: int = 1) -> float:
    """Return ``1 / Tr[Cov[g, g] H^-1]`` from the full matrices, for small problems."""
    curvature = hessian(p_data, p_noise)
    covariance = gradient_covariance(p_data, p_noise, n_negatives=n_negatives)
    # the covariance is singular at p_n = p_D, the Hessian never
    return float(1.0 / np.trace(np.linalg.solve(curvature, covariance)))


def simulate_snr(
    p_data: ArrayLike, p_noise: ArrayLike, *, n_negatives: int = 1, n_draws: int = 200_000, seed: int = 0
) -> SimulatedSnr:
    """Estimate the signal-to-noise ratio from simulated stochastic gradients.

    Every term divides by the probability of the class drawn: classes of probability far below ``1 / n_draws``
    are missed, and the standard error does not show it.

    Parameters
    ----------
    p_data, p_noise, n_negatives
        As in `snr`; all probabilities must be positive.
    n_draws
        Number of gradients, at least 2.
    seed
        Seed of all draws.
    """
    data, noise = _check_tables(p_data, p_noise)
    n = len(data)
    xi = optimal_scores(data, noise).ravel()
    curvature = (data + noise).ravel() * _sigmoid(xi) * _sigmoid(-xi)
    rng = np.random.default_rng(seed)
    positive_draw, negative_draw = _Draws(data), _Draws(noise)
    total, sum_terms, sum_squares = np.zeros(data.size), 0.0, 0.0
    for start in range(0, n_draws, _DRAWS_PER_BLOCK):
        count = min(_DRAWS_PER_BLOCK, n_draws - start)
        x = rng.integers(n, size=count)
        entries = np.column_stack(
            [positive_draw(x, rng), *(negative_draw(x, rng) for _ in range(n_negatives))]
        )
        values = n * np.where(
            np.arange(n_negatives + 1) == 0, -_sigmoid(-xi[entries]), _sigmoid(xi[entries]) / n_negatives
        )
        # a class drawn twice, for instance as positive and negative, is one component of the gradient
        keys = (np.arange(count)[:, None] * data.size + entries).ravel()
        component, inverse = np.unique(keys, return_inverse=True)
        gradient, where = np.bincount(inverse, values.ravel()), component % data.size
        # g^T H^-1 g of each draw
        terms = np.bincount(component // data.size, gradient**2 / curvature[where], minlength=count)
        total += np.bincount(where, gradient, minlength=data.size)
        sum_terms += float(terms.sum())
        sum_squares += float((terms**2).sum())
    mean_term = sum_terms / n_draws
    mean_gradient = total / n_draws
    trace = n_draws / (n_draws - 1) * (mean_term - float((mean_gradient**2 / curvature).sum()))
    spread = max(sum_squares / n_draws - mean_term**2, 0.0)
    return SimulatedSnr(1.0 / trace, float(np.sqrt(spread / (n_draws - 1))) / trace**2, n_draws)


class _Draws:
    """Draws of classes from the rows of a table, as positions in the flattened table."""

    def __init__(self, table: Float64) -> None:
        self.n_classes = table.shape[1]
        cumulative = np.cumsum(table, axis=1)
        # row x owns the numbers from x to x + 1: one sorted array serves all rows
        self.steps = (cumulative / cumulative[:, -1:] + np.arange(len(table))[:, None]).ravel()

    def __call__(self, x: Int64, rng: np.random.Generator) -> Int64:
        place = np.searchsorted(self.steps, x + rng.random(len(x)), side="right")
        # x + u may round up to x + 1
        drawn: Int64 = np.minimum(place, (x + 1) * self.n_classes - 1)
        return drawn


def _covariance(values: Float64, prob: Float64) -> Float64:
    """Return the covariance of a vector that is row i of `values` with probability prob[i]."""
    mean = prob @ values
    result: Float64 = (values.T * prob) @ values - np.outer(mean, mean)
    return result


def _sigmoid(z: Float64) -> Float64:
    result: Float64 = np.exp(-np.logaddexp(0.0, -z))
    return result
