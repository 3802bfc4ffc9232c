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

All of this is about one negative: with more, the covariance and the best noise are others.

Tables are (n, n_classes) in float64, one row for every x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from extremax.types import Float64

_SUM_TOLERANCE = 1e-3  # of float32 tables of ten thousand classes, before they are normalised


class NoiseFigures(NamedTuple):
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

    Parameters
    ----------
    p_data
        p_D(y|x), (n, n_classes); rows add up to 1.
    p_noise
        p_n(y|x), in the same shape, or (n_classes,) for noise that does not depend on x.

    Examples
    --------
    >>> alpha([[0.75, 0.25]], [[0.25, 0.75]]).tolist()
    [[0.1875, 0.1875]]
    """
    data, noise = _check_tables(p_data, p_noise)
    # the smaller one times the fraction of the larger one in the sum: the product p_D p_n could underflow
    larger, smaller = np.maximum(data, noise), np.minimum(data, noise)
    result: Float64 = smaller * np.divide(larger, data + noise, out=np.zeros_like(data), where=larger > 0.0)
    return result


def overlap(p_data: ArrayLike, p_noise: ArrayLike) -> Float64:
    """Return ``2 sum_y alpha_{x,y}`` of each row, (n,).

    Examples
    --------
    >>> overlap([[0.75, 0.25], [0.5, 0.5]], [0.5, 0.5]).round(3).tolist()
    [0.933, 1.0]
    """
    shared: Float64 = 2.0 * alpha(p_data, p_noise).sum(axis=1)
    return shared


def snr(p_data: ArrayLike, p_noise: ArrayLike) -> float:
    """Return the signal-to-noise ratio of Eq. 12 through alpha: exact, O(n n_classes).

    A class of probability 0 counts as the limit of small probabilities, in which alpha is 0.

    Examples
    --------
    >>> p = [[0.7, 0.2, 0.1]]
    >>> round(snr(p, p), 6), round(snr(p, [1/3, 1/3, 1/3]), 6)  # at best 1 / (C - 1) for one x
    (0.5, 0.4663)
    """
    shared = overlap(p_data, p_noise)
    return float(1.0 / (len(shared) * (np.shape(p_data)[1] - shared).sum()))


def compare_noises(p_data: ArrayLike, noises: Mapping[str, ArrayLike]) -> tuple[NoiseFigures, ...]:
    """Return SNR, overlap and divergence of each noise distribution, in the order given.

    Examples
    --------
    >>> table = compare_noises([[0.7, 0.2, 0.1]], {"uniform": [1/3, 1/3, 1/3], "p_D": [[0.7, 0.2, 0.1]]})
    >>> [(row.noise, round(row.overlap, 3)) for row in table]
    [('uniform', 0.855), ('p_D', 1.0)]
    """
    best, rows = snr(p_data, p_data), []
    for name, p_noise in noises.items():
        value, shared = snr(p_data, p_noise), overlap(p_data, p_noise)
        divergence = rel_entr(*_check_tables(p_data, p_noise)).sum(axis=1).mean()
        rows.append(NoiseFigures(name, value, value / best, float(shared.mean()), float(divergence)))
    return tuple(rows)


def _check_tables(p_data: ArrayLike, p_noise: ArrayLike) -> tuple[Float64, Float64]:
    """Return both as normalised float64 tables of one shape."""
    data, noise = np.asarray(p_data, np.float64), np.asarray(p_noise, np.float64)
    if data.ndim != 2 or noise.shape not in (data.shape, data.shape[1:]) or data.size == 0:
        raise ValueError(
            f"p_data has shape {data.shape} and p_noise {noise.shape}; they need one row of class"
            " probabilities for each x, p_noise that or one row for all."
        )
    checked = []
    for name, table in (("p_data", data), ("p_noise", np.broadcast_to(noise, data.shape))):
        sums = table.sum(axis=1)
        wrong = np.flatnonzero(~((table >= 0.0).all(axis=1) & (np.abs(sums - 1.0) <= _SUM_TOLERANCE)))
        if len(wrong):
            raise ValueError(
                f"Row {wrong[0]} of {name} is no probability distribution: it adds up to"
                f" {sums[wrong[0]]:.6g}, its least number is {table[wrong[0]].min():.6g}."
            )
        checked.append(table / sums[:, None])
    return checked[0], checked[1]
