"""Signal-to-noise ratio of stochastic gradients of negative sampling (paper, section 4).

Nonparametric limit: one free score xi_{x,y} for every x of the data and every class y. With sigma the
logistic function,

    expected loss   l(xi) = sum_{x,y} [-p_D(y|x) log sigma(xi_{x,y}) - p_n(y|x) log sigma(-xi_{x,y})]
    its minimum     xi* = log p_D(y|x) - log p_n(y|x); xi* + log p_n is the softmax score   (Theorem 1)
    its Hessian     H = diag(alpha), alpha_{x,y} = p_n(y|x) sigma(xi*_{x,y})
                                                 = p_D p_n / (p_D + p_n)                   (Eq. 13)
    one estimate    g = N grad of [-log sigma(xi_{x,y}) - log sigma(-xi_{x,y'})],
                    (x, y) from the data, y' from p_n(.|x)
    SNR             eta = 1 / Tr[Cov[g, g] H^-1] = 1 / (N sum_x [C - 2 sum_y alpha_{x,y}])  (Eq. 12)

The ratio is computed in three ways that share no formula beyond the distribution of g: through alpha, through
the matrices, and from simulated gradients. ``2 sum_y alpha`` is the sum of harmonic means of p_D and p_n, the
*overlap* of the two: 1 if they are equal, 0 if they share no class. Since 1 / eta = N sum_x (C - overlap),
the best noise has only C / (C - 1) times the SNR of the worst: with many classes, compare overlaps.

With m negatives, each weighted 1/m, the covariance changes and with it the best noise: Theorem 2 is about one
negative.

Tables are (n, n_classes) in float64, one row for every x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from extremax.types import Float64, Int64

_SUM_TOLERANCE = 1e-3  # of float32 tables of ten thousand classes, before they are normalised
_MAX_MATRIX_SIZE = 4096  # scores for which full matrices are formed: 128 MB each
_DRAWS_PER_BLOCK = 1 << 16


@dataclass(frozen=True)
class SimulatedSnr:
    """SNR from simulated gradients, with the standard error that follows from the number of draws."""

    snr: float
    standard_error: float
    n_draws: int


@dataclass(frozen=True)
class NoiseFigures:
    """Figures of one noise distribution.

    Attributes
    ----------
    noise
        Name of the distribution.
    snr
        The paper's SNR, Eq. 12.
    relative_snr
        SNR divided by that of p_n = p_D: at most 1 (Theorem 2), at least 1 - 1/C.
    overlap
        Mean over x of ``2 sum_y alpha``, from 0 to 1.
    divergence
        Mean Kullback-Leibler divergence of p_n from p_D, in nats.
    """

    noise: str
    snr: float
    relative_snr: float
    overlap: float
    divergence: float


# -- the loss


def expected_loss(scores: ArrayLike, p_data: ArrayLike, p_noise: ArrayLike) -> tuple[float, Float64]:
    """Return l(xi) for a table of scores, and its gradient as a table (appendix of the paper).

    Examples
    --------
    >>> loss, gradient = expected_loss([[np.log(3.0), -np.log(3.0)]], [[0.75, 0.25]], [[0.25, 0.75]])
    >>> bool(np.allclose(gradient, 0.0))  # the scores are log p_D - log p_n
    True
    """
    data, noise = _check_tables(p_data, p_noise)
    xi = np.asarray(scores, np.float64)
    loss = float((data * np.logaddexp(0.0, -xi) + noise * np.logaddexp(0.0, xi)).sum())
    return loss, -data * _sigmoid(-xi) + noise * _sigmoid(xi)


def optimal_scores(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return xi* = log p_D - log p_n, the scores at which `expected_loss` is smallest.

    Examples
    --------
    >>> np.exp(optimal_scores([[0.75, 0.25]], [[0.5, 0.5]])).round(3).tolist()
    [[1.5, 0.5]]
    """
    data, noise = _check_tables(p_data, p_noise, positive=True)
    scores: Float64 = np.log(data) - np.log(noise)
    return scores


# -- three ways to the signal-to-noise ratio


def alpha(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return the curvature along each score, (n, n_classes).

    It is alpha_{x,y} = p_n(y|x) sigma(xi*_{x,y}) = p_D p_n / (p_D + p_n).

    Examples
    --------
    >>> alpha([[0.75, 0.25]], [[0.25, 0.75]]).tolist()
    [[0.1875, 0.1875]]
    """
    data, noise = _check_tables(p_data, p_noise)
    return _alpha(data, noise)


def overlap(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return ``2 sum_y alpha_{x,y}`` of each row, (n,).

    It is 1 where the distributions are equal, and 0 where they share no class.

    Examples
    --------
    >>> overlap([[0.75, 0.25], [0.5, 0.5]], [0.5, 0.5]).round(3).tolist()
    [0.933, 1.0]
    """
    shared: Float64 = 2.0 * alpha(p_data, p_noise).sum(axis=1)
    return shared


def snr(p_data: ArrayLike, p_noise: ArrayLike, *, n_negatives: int = 1) -> float:
    """Return the signal-to-noise ratio of Eq. 12 through alpha: exact, O(n n_classes).

    Parameters
    ----------
    p_data
        p_D(y|x), (n, n_classes); rows add up to 1.
    p_noise
        p_n(y|x), in the same shape, or (n_classes,) for noise that does not depend on x. A class of
        probability 0 counts as the limit of small probabilities, in which alpha is 0.
    n_negatives
        m, negatives drawn for each positive. The paper's formula is that for 1; for more,
        ``1 / eta = N sum_x [sum_y (sigma(-xi*) + sigma(xi*) / m) - (1 + 1/m) sum_y alpha]``, and all
        probabilities must be positive.

    Examples
    --------
    >>> p = [[0.7, 0.2, 0.1]]
    >>> round(snr(p, p), 6), round(snr(p, [1/3, 1/3, 1/3]), 6)  # at best 1 / (C - 1) for one x
    (0.5, 0.4663)
    """
    data, noise = _check_tables(p_data, p_noise, positive=_check_negatives(n_negatives) > 1)
    n, n_classes = data.shape
    curvature = _alpha(data, noise).sum()
    if n_negatives == 1:
        return float(1.0 / (n * (n * n_classes - 2.0 * curvature)))
    positive_rate = (data / (data + noise)).sum()  # sigma(xi*)
    spread = n * n_classes - (1.0 - 1.0 / n_negatives) * positive_rate
    return float(1.0 / (n * (spread - (1.0 + 1.0 / n_negatives) * curvature)))


def hessian(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return the Hessian of `expected_loss` at its minimum, (n C, n C).

    Examples
    --------
    >>> hessian([[0.5, 0.5]], [[0.5, 0.5]]).tolist()
    [[0.25, 0.0], [0.0, 0.25]]
    """
    data, noise = _check_tables(p_data, p_noise, positive=True)
    _check_size(data.size)
    xi = optimal_scores(data, noise)
    return np.diag(((data + noise) * _sigmoid(xi) * _sigmoid(-xi)).ravel())


def gradient_covariance(p_data: ArrayLike, p_noise: ArrayLike, *, n_negatives: int = 1) -> Float64:
    """Return Cov[g, g] at the minimum, (n C, n C), as a sum over all possible draws.

    Positive and negatives of one x are independent: the covariance given x is that of the positive's gradient
    plus that of one negative's divided by `n_negatives`; the means of both enter through the mean given x.

    Examples
    --------
    >>> # p_n = p_D: the sum of the scores never moves
    >>> gradient_covariance([[0.5, 0.5]], [[0.5, 0.5]]).tolist()
    [[0.125, -0.125], [-0.125, 0.125]]
    """
    data, noise = _check_tables(p_data, p_noise, positive=True)
    _check_negatives(n_negatives)
    _check_size(data.size)
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
    """Return ``1 / Tr[Cov[g, g] H^-1]`` from the full matrices, for small problems.

    Examples
    --------
    >>> round(snr_from_matrices([[0.7, 0.2, 0.1]], [1/3, 1/3, 1/3]), 6)
    0.4663
    """
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

    Examples
    --------
    >>> simulated = simulate_snr([[0.7, 0.2, 0.1]], [1/3, 1/3, 1/3], n_draws=10_000)
    >>> bool(abs(simulated.snr - 0.4663) < 5 * simulated.standard_error)
    True
    """
    data, noise = _check_tables(p_data, p_noise, positive=True)
    _check_negatives(n_negatives)
    if n_draws < 2:
        raise ValueError(f"n_draws is {n_draws}; a covariance needs at least 2.")
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


# -- comparisons


def compare_noises(p_data: ArrayLike, noises: Mapping[str, ArrayLike]) -> tuple[NoiseFigures, ...]:
    """Return SNR, overlap and divergence of each noise distribution, in the order given.

    Examples
    --------
    >>> table = compare_noises([[0.7, 0.2, 0.1]], {"uniform": [1/3, 1/3, 1/3], "p_D": [[0.7, 0.2, 0.1]]})
    >>> [(row.noise, round(row.overlap, 3)) for row in table]
    [('uniform', 0.855), ('p_D', 1.0)]
    """
    best = snr(p_data, p_data)
    rows = []
    for name, p_noise in noises.items():
        value = snr(p_data, p_noise)
        rows.append(
            NoiseFigures(
                name,
                value,
                value / best,
                float(overlap(p_data, p_noise).mean()),
                _divergence(p_data, p_noise),
            )
        )
    return tuple(rows)


# -- parts


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


def _sigmoid(z: Float64) -> Float64:
    result: Float64 = np.exp(-np.logaddexp(0.0, -z))
    return result


def _alpha(data: Float64, noise: Float64) -> Float64:
    total = data + noise
    # the smaller one times the fraction of the larger one in the sum: the product p_D p_n could underflow
    fraction = np.divide(np.maximum(data, noise), total, out=np.zeros_like(total), where=total > 0.0)
    result: Float64 = np.minimum(data, noise) * fraction
    return result


def _covariance(values: Float64, prob: Float64) -> Float64:
    """Return the covariance of a vector that is row i of `values` with probability prob[i]."""
    mean = prob @ values
    result: Float64 = (values.T * prob) @ values - np.outer(mean, mean)
    return result


def _divergence(p_data: ArrayLike, p_noise: ArrayLike) -> float:
    data, noise = _check_tables(p_data, p_noise)
    with np.errstate(divide="ignore"):
        terms = data * (np.log(np.where(data > 0.0, data, 1.0)) - np.log(np.where(data > 0.0, noise, 1.0)))
    return max(0.0, float(terms.sum(axis=1).mean()))  # rounding may fall just below zero


def _check_negatives(n_negatives: int) -> int:
    if n_negatives < 1:
        raise ValueError(f"n_negatives is {n_negatives}; negative sampling needs at least 1.")
    return n_negatives


def _check_size(n_scores: int) -> None:
    if n_scores > _MAX_MATRIX_SIZE:
        raise ValueError(
            f"The tables hold {n_scores} scores; full matrices are formed for at most {_MAX_MATRIX_SIZE}. Use"
            " theory.snr."
        )


def _check_tables(
    p_data: ArrayLike, p_noise: ArrayLike, *, positive: bool = False
) -> tuple[Float64, Float64]:
    """Return both as normalised float64 tables of one shape."""
    data = np.asarray(p_data, np.float64)
    if data.ndim != 2 or 0 in data.shape:
        raise ValueError(
            f"p_data has shape {data.shape}; it needs one row of class probabilities for each x."
        )
    noise = np.asarray(p_noise, np.float64)
    if noise.shape != data.shape and noise.shape != data.shape[1:]:
        raise ValueError(
            f"p_noise has shape {noise.shape}; with p_data of shape {data.shape} it must be that or"
            f" {data.shape[1:]}."
        )
    noise = np.broadcast_to(noise, data.shape)
    return _normalised("p_data", data, positive), _normalised("p_noise", noise, positive)


def _normalised(name: str, table: Float64, positive: bool) -> Float64:
    if not np.all(table >= 0.0):  # NaN fails as well
        raise ValueError(
            f"{name} holds negative or missing values; it needs probabilities. Did you pass logarithms?"
        )
    if positive and not np.all(table > 0.0):
        raise ValueError(
            f"{name} holds a probability of 0, which leaves a score without a finite optimum. Use theory.snr."
        )
    sums = table.sum(axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.abs(sums[:, 0] - 1.0) <= _SUM_TOLERANCE))
    if len(wrong):
        raise ValueError(
            f"Row {wrong[0]} of {name} adds up to {sums[wrong[0], 0]:.6g}; class probabilities add up to 1."
        )
    result: Float64 = table / sums
    return result
