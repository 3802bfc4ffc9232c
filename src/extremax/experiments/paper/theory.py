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

``2 sum_y alpha`` is the sum of harmonic means of p_D and p_n, the
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

from extremax.types import Float64

_SUM_TOLERANCE = 1e-3  # of float32 tables of ten thousand classes, before they are normalised


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


def _alpha(data: Float64, noise: Float64) -> Float64:
    total = data + noise
    # the smaller one times the fraction of the larger one in the sum: the product p_D p_n could underflow
    fraction = np.divide(np.maximum(data, noise), total, out=np.zeros_like(total), where=total > 0.0)
    result: Float64 = np.minimum(data, noise) * fraction
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
