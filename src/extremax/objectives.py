"""Training objectives: from the scores of a row's sampled classes to a loss and one coefficient per score.

Notation of a row: column 0 is the positive class, columns 1..m the negatives; xi the model's scores; ``log_base`` the fixed
part of the debiased score s = xi + log_base (log p_n for negative sampling, Eq. 5; zero for objectives that learn everything
themselves); ``log_noise`` the log-probability under the distribution that the negatives were drawn from; lambda the
``score_penalty`` of Eq. 6, which acts on s.  A coefficient is c = d loss / d xi; the gradient of a weight row is c x.

negative sampling   a = s - log_noise (= xi where base and noise agree, as in the paper)
                    loss = softplus(-a_0) + lambda s_0^2 + (1/m) sum_j [softplus(a_j) + lambda s_j^2]
                    c_0 = -sigma(-a_0) + 2 lambda s_0,   c_j = [sigma(a_j) + 2 lambda s_j] / m
NCE                 the same logistic loss with log_base = 0 and a_j = xi_j - log(m p_n): xi itself becomes the log-probability,
                    nothing is left to remove at prediction
sampled softmax     cross-entropy of column 0 over a_j = s_j - log p_n.  A negative that hits the positive stays: with
independent
                    draws the columns are exchangeable, and p(column 0 is the data | columns) is proportional to exp(a_0)
                    exactly then; masking such draws favours frequent classes.  With the noise as base, s starts at log p_n and
                    only what the noise does not know is learned

All three are consistent estimates of the softmax: at the optimum s differs from log p(y|x) by a constant of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax._jit import exp32, log1p32, njit, sigmoid32


@njit
def _softplus(a: Any) -> Any:
    return max(a, np.float32(0.0)) + log1p32(exp32(-abs(a)))


@njit
def negative_sampling(
    scores: Any,
    log_base: Any,
    log_noise: Any,
    row_weight: Any,
    penalty: Any,
    coefficients: Any,
    losses: Any,
    start: int,
    stop: int,
) -> None:
    """Eq. 6 with m negatives per positive, for the rows [start, stop)."""
    width = scores.shape[1]
    share = np.float32(1.0) / np.float32(max(width - 1, 1))
    for i in range(start, stop):
        s = scores[i, 0] + log_base[i, 0]
        a = s - log_noise[i, 0]
        coefficients[i, 0] = row_weight[i] * (np.float32(2.0) * penalty * s - sigmoid32(-a))
        total = np.float64(_softplus(-a) + penalty * s * s)
        for j in range(1, width):
            s = scores[i, j] + log_base[i, j]
            a = s - log_noise[i, j]
            coefficients[i, j] = row_weight[i] * share * (np.float32(2.0) * penalty * s + sigmoid32(a))
            total += share * (_softplus(a) + penalty * s * s)
        losses[i] = row_weight[i] * total


@njit
def noise_contrastive(
    scores: Any,
    log_base: Any,
    log_noise: Any,
    row_weight: Any,
    penalty: Any,
    coefficients: Any,
    losses: Any,
    start: int,
    stop: int,
) -> None:
    """Logistic loss of NCE: logit xi - log(m p_n) for the positive and each of the m negatives."""
    width = scores.shape[1]
    log_m = np.float32(np.log(max(width - 1, 1)))
    for i in range(start, stop):
        total = np.float64(0.0)
        for j in range(width):
            s = scores[i, j] + log_base[i, j]
            a = s - log_noise[i, j] - log_m
            if j == 0:
                c = -sigmoid32(-a)
                total += _softplus(-a) + penalty * s * s
            else:
                c = sigmoid32(a)
                total += _softplus(a) + penalty * s * s
            coefficients[i, j] = row_weight[i] * (c + np.float32(2.0) * penalty * s)
        losses[i] = row_weight[i] * total


@njit
def sampled_softmax(
    scores: Any,
    log_base: Any,
    log_noise: Any,
    row_weight: Any,
    penalty: Any,
    coefficients: Any,
    losses: Any,
    start: int,
    stop: int,
) -> None:
    """Cross-entropy of the positive over itself and its negatives, logits corrected by log p_n."""
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
        losses[i] = row_weight[i] * total


@njit
def coefficients_of(code: int, pairs: Any, penalty: Any, start: int, stop: int) -> None:
    """Coefficients and losses of the rows [start, stop) under the objective with this code; one branch for many rows."""
    scores, base, noise, weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    if code == 0:
        negative_sampling(scores, base, noise, weight, penalty, pairs.coefficients, pairs.losses, start, stop)
    elif code == 1:
        noise_contrastive(scores, base, noise, weight, penalty, pairs.coefficients, pairs.losses, start, stop)
    else:
        sampled_softmax(scores, base, noise, weight, penalty, pairs.coefficients, pairs.losses, start, stop)


@dataclass(frozen=True)
class Objective:
    """One way to train: its kernel, and how its scores become log-probabilities.

    Attributes
    ----------
    code
        Its number in `coefficients_of`.
    kernel
        Fills coefficients and losses of a block of rows.
    removes_bias
        Whether the debiased score is xi + log p_n (True) or xi itself (False).
    starts_at_noise
        Whether biases start at the mean of log p_n over the rows: an objective whose scores are log-probabilities stalls when
        it starts far from them, and what the noise hardly ever draws is never pushed down to where it belongs.
    """

    code: int
    kernel: Callable[..., Any]
    removes_bias: bool
    starts_at_noise: bool = False


OBJECTIVES: dict[str, Objective] = {
    "negative_sampling": Objective(0, negative_sampling, removes_bias=True),
    "nce": Objective(1, noise_contrastive, removes_bias=False, starts_at_noise=True),
    "sampled_softmax": Objective(2, sampled_softmax, removes_bias=True),
}
