"""Losses of (row, class) pairs, with one coefficient per score: the objectives of the row trainer.

A row has 1 + m columns: column 0 is the positive class, columns 1..m are negatives drawn from the noise.
Per column,

    xi          the model's score
    log_base    the fixed part of the debiased score s = xi + log_base: log p_n where prediction removes the
                bias (Eq. 5 of the paper), zero for NCE, whose scores are log-probabilities
    log_noise   log-probability under the distribution that the negatives were drawn from
    lambda      the penalty of Eq. 6 on s
    c           the coefficient, d loss / d xi; the gradient of a weight vector is c x

negative sampling   a = s - log_noise (= xi where base and noise agree, as in the paper)
                    loss = softplus(-a_0) + lambda s_0^2 + (1/m) sum_j [softplus(a_j) + lambda s_j^2]
                    c_0 = -sigma(-a_0) + 2 lambda s_0,   c_j = [sigma(a_j) + 2 lambda s_j] / m
                    with the penalty on raw scores, lambda s^2 is lambda xi^2 in both places
NCE                 the same logistic loss with log_base = 0 and a_j = xi_j - log(m p_n)
sampled softmax     cross-entropy of column 0 over a_j = s_j - log p_n.  A negative that equals the positive
                    stays: with independent draws the columns are exchangeable, and p(column 0 is the data |
                    columns) is proportional to exp(a_0) exactly then.  With the noise as base, s starts at
                    log p_n and only the difference to the noise is learned
One-vs-Each         log p(y|x) >= sum over y' != y of log sigma(s_y - s_y') (Titsias 2016)
                    loss = sum_j v_j softplus(s_j - s_0),   c_j = v_j sigma(s_j - s_0),   c_0 = -sum_j c_j
Augment and Reduce  log p(y|x) >= 1 - log(1 + eta) - (1 + T) / (1 + eta), tight at eta = T (Ruiz et al. 2018),
                    T = sum over y' != y of exp(s_y' - s_y).  Each row keeps its running estimate eta of T:
                    eta <- (1 - rate) eta + rate sum_j v_j exp(s_j - s_0), rate = (1 + epoch)^-0.9, and then
                    c_j = v_j exp(s_j - s_0) / (1 + eta),   c_0 = -sum_j c_j

The last two sum over all classes but y.  The draws estimate that sum with the weights v_j of
`_log_weight_of_others`, without bias for any noise.  Their penalty is that of Eq. 6.

Negative sampling, NCE and sampled softmax are consistent estimates of the softmax: at the optimum s differs
from log p(y|x) by a constant of the row.  The last two maximise lower bounds of it.

A kernel is called as ``kernel(settings, pairs, start, stop)`` with `Pairs` of `extremax.kernels.row_training`
and fills ``coefficients`` and ``losses`` of the rows [start, stop).  `register_loss` adds another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.compile import by_class, helper, njit
from extremax.kernels.math import exp32, sigmoid32, softplus32


class Logistic(NamedTuple):
    """Settings of `logistic`; the class of the settings selects the kernel."""

    penalty: np.float32
    log_m: np.float32  # subtracted from the logits
    share: np.float32  # weight of a negative
    is_raw: bool = False  # whether the penalty is on xi instead of s


def negative_sampling(penalty: Any, n_negatives: int, *, is_raw: bool = False) -> Logistic:
    """Return the paper's Eq. 6 with m negatives per positive.

    The authors' code has the penalty on xi alone (`is_raw`), for noise that does not depend on x.
    """
    share = np.float32(1.0) / np.float32(max(n_negatives, 1))
    return Logistic(np.float32(penalty), np.float32(0.0), share, is_raw)


def noise_contrastive(penalty: Any, n_negatives: int) -> Logistic:
    """Return the loss of NCE, with logits xi - log(m p_n)."""
    return Logistic(np.float32(penalty), np.float32(np.log(max(n_negatives, 1))), np.float32(1.0))


class SampledSoftmax(NamedTuple):
    """Settings of `sampled_softmax`."""

    penalty: np.float32


class OneVsEach(NamedTuple):
    """Settings of `one_vs_each`."""

    penalty: np.float32


class AugmentReduce(NamedTuple):
    """Settings of `augment_reduce`; `rate` is the weight of the newest estimate in each row's eta."""

    penalty: np.float32
    rate: np.float32


# exp of a larger margin counts as exp of this: otherwise the eta of such a row stays too large for epochs
_MARGIN_MAX = np.float32(20.0)


@njit
def logistic(settings: Any, pairs: Any, start: int, stop: int) -> None:
    """Compute a logistic loss of every score by itself: negative sampling and NCE."""
    penalty = settings.penalty
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    for i in range(start, stop):
        total = np.float64(0.0)
        for j in range(scores.shape[1]):
            s = scores[i, j] + log_base[i, j]
            a = s - log_noise[i, j] - settings.log_m
            penalized = scores[i, j] if settings.is_raw else s
            weight, sign = settings.share, np.float32(1.0)
            if j == 0:
                weight, sign = np.float32(1.0), np.float32(-1.0)
            c = np.float32(2.0) * penalty * penalized + sign * sigmoid32(sign * a)
            pairs.coefficients[i, j] = row_weight[i] * weight * c
            total += weight * (softplus32(sign * a) + penalty * penalized * penalized)
        pairs.losses[i] = row_weight[i] * total


@njit
def sampled_softmax(settings: Any, pairs: Any, start: int, stop: int) -> None:
    """Compute the cross-entropy of the positive among its columns, logits corrected by log p_n."""
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients = settings.penalty, pairs.coefficients
    width = scores.shape[1]
    for i in range(start, stop):
        top = np.float32(-np.inf)
        total = np.float64(0.0)
        for j in range(width):
            s = scores[i, j] + log_base[i, j]
            coefficients[i, j] = s - log_noise[i, j]
            total += penalty * s * s
            top = max(top, coefficients[i, j])
        norm = np.float32(0.0)
        for j in range(width):
            norm += exp32(coefficients[i, j] - top)
        total += np.log(np.float64(norm)) + top - coefficients[i, 0]
        for j in range(width):
            s = scores[i, j] + log_base[i, j]
            c = exp32(coefficients[i, j] - top) / norm + np.float32(2.0) * penalty * s
            coefficients[i, j] = row_weight[i] * (c - np.float32(1.0) if j == 0 else c)
        pairs.losses[i] = row_weight[i] * total


@helper
def _log_weight_of_others(labels: Any, log_noise: Any, i: int) -> Any:
    """Return log(v_j p_n(y_j)), the same for all negatives of row i that are not its positive y.

    Given that n of m draws are not y, they are independent draws from p_n without y, and
    v_j = (1 - p_n(y)) / (n p_n(y_j)) makes a sum over them unbiased.  With probability p_n(y)^m there is
    none: dividing by 1 - p_n(y)^m corrects for that.  Negatives that are y have weight zero.
    """
    m = labels.shape[1] - 1
    n = 0
    for j in range(1, m + 1):
        if labels[i, j] != labels[i, 0]:
            n += 1
    log_positive = np.float64(log_noise[i, 0])
    if n == 0 or log_positive > -1e-9:  # the limit of p_n(y) = 1
        return np.float32(-np.log(np.float64(m * max(n, 1))))
    return np.float32(np.log(np.expm1(log_positive) / np.expm1(m * log_positive) / n))


@njit
def one_vs_each(settings: Any, pairs: Any, start: int, stop: int) -> None:
    """Compute the bound of Titsias: the positive against each other class by itself."""
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients, labels = settings.penalty, pairs.coefficients, pairs.labels
    width = scores.shape[1]
    inverse_m = np.float32(1.0) / np.float32(width - 1)
    for i in range(start, stop):
        log_weight = _log_weight_of_others(labels, log_noise, i)
        first = scores[i, 0] + log_base[i, 0]
        pull = np.float64(0.0)
        total = np.float64(penalty * first * first)
        for j in range(1, width):
            c = np.float32(0.0)
            if labels[i, j] != labels[i, 0]:
                s = scores[i, j] + log_base[i, j]
                v = exp32(log_weight - log_noise[i, j])
                c = v * sigmoid32(s - first)
                pull += c
                total += np.float64(v) * softplus32(s - first) + inverse_m * penalty * s * s
                c += inverse_m * np.float32(2.0) * penalty * s
            coefficients[i, j] = row_weight[i] * c
        coefficients[i, 0] = row_weight[i] * (np.float32(2.0) * penalty * first - np.float32(pull))
        pairs.losses[i] = row_weight[i] * total


@njit
def augment_reduce(settings: Any, pairs: Any, start: int, stop: int) -> None:
    """Compute the bound of Ruiz et al. for the softmax, and update `pairs.eta`.

    An eta below zero means that a row has none yet.  The estimate of this step enters eta before eta divides
    it, so that the coefficients of a row stay below 1 / rate.
    """
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients, labels = settings.penalty, pairs.coefficients, pairs.labels
    width = scores.shape[1]
    inverse_m = np.float32(1.0) / np.float32(width - 1)
    for i in range(start, stop):
        log_weight = _log_weight_of_others(labels, log_noise, i)
        first = scores[i, 0] + log_base[i, 0]
        estimate = np.float64(0.0)
        total = np.float64(penalty * first * first)
        for j in range(1, width):
            term = np.float32(0.0)
            if labels[i, j] != labels[i, 0]:
                s = scores[i, j] + log_base[i, j]
                term = exp32(min(s - first, _MARGIN_MAX) + log_weight - log_noise[i, j])
                estimate += term
                total += inverse_m * penalty * s * s
            coefficients[i, j] = term
        rate = np.float64(settings.rate) if pairs.eta[i] >= np.float32(0.0) else 1.0
        pairs.eta[i] = np.float32(rate * estimate + (1.0 - rate) * pairs.eta[i])
        scale = 1.0 / (1.0 + np.float64(pairs.eta[i]))
        for j in range(1, width):
            c = np.float32(coefficients[i, j] * scale)
            if labels[i, j] != labels[i, 0]:
                c += inverse_m * np.float32(2.0) * penalty * (scores[i, j] + log_base[i, j])
            coefficients[i, j] = row_weight[i] * c
        coefficients[i, 0] = row_weight[i] * (
            np.float32(2.0) * penalty * first - np.float32(estimate * scale)
        )
        pairs.losses[i] = row_weight[i] * (total + (1.0 + estimate) * scale - np.log(scale) - 1.0)


_LOSSES: dict[type, Callable[..., Any]] = {
    Logistic: logistic,
    SampledSoftmax: sampled_softmax,
    OneVsEach: one_vs_each,
    AugmentReduce: augment_reduce,
}

# Called from kernels as coefficients_of(settings, pairs, start, stop).
coefficients_of = by_class(_LOSSES)


def register_loss(settings: type, kernel: Callable[..., Any]) -> None:
    """Make a loss known to the training kernels.

    Parameters
    ----------
    settings
        A class of named tuples, of numbers that the kernel needs; its class selects the kernel.
    kernel
        Compiled by `extremax.kernels.compile.njit` and called as ``kernel(settings, pairs, start, stop)``.

    Examples
    --------
    >>> class Margin(NamedTuple):
    ...     penalty: np.float32
    >>> @helper
    ... def margin(settings, pairs, start, stop):
    ...     for i in range(start, stop):
    ...         pairs.losses[i] = 0.0
    >>> register_loss(Margin, margin)
    """
    if not (issubclass(settings, tuple) and hasattr(settings, "_fields")):
        raise TypeError(f"{settings.__name__} is no named tuple; the settings of a loss must be one.")
    if _LOSSES.get(settings, kernel) is not kernel:
        raise ValueError(
            f"{settings.__name__} has a loss already; give each loss a class of settings of its own."
        )
    _LOSSES[settings] = kernel
