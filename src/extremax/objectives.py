"""Training objectives: from the scores of a row's sampled classes to a loss and one coefficient per score.

Notation of a row: column 0 is the positive class, columns 1..m the negatives; xi the model's scores; ``log_base`` the fixed part
of the debiased score s = xi + log_base (log p_n for negative sampling, Eq. 5; zero for objectives that learn everything
themselves); ``log_noise`` the log-probability under the distribution that the negatives were drawn from; lambda the
``score_penalty`` of Eq. 6, which acts on s.  A coefficient is c = d loss / d xi; the gradient of a weight row is c x.

negative sampling   a = s - log_noise (= xi where base and noise agree, as in the paper)
                    loss = softplus(-a_0) + lambda s_0^2 + (1/m) sum_j [softplus(a_j) + lambda s_j^2]
                    c_0 = -sigma(-a_0) + 2 lambda s_0,   c_j = [sigma(a_j) + 2 lambda s_j] / m
NCE                 the same logistic loss with log_base = 0 and a_j = xi_j - log(m p_n): xi itself becomes the log-probability,
                    nothing is left to remove at prediction
sampled softmax     cross-entropy of column 0 over a_j = s_j - log(m p_n) with negatives equal to the positive masked; with the noise
                    as base, s starts at log p_n and only what the noise does not know is learned

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
def negative_sampling(scores, log_base, log_noise, row_weight, penalty, coefficients, losses, start, stop):  # type: ignore[no-untyped-def]
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
def noise_contrastive(scores, log_base, log_noise, row_weight, penalty, coefficients, losses, start, stop):  # type: ignore[no-untyped-def]
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
def sampled_softmax(scores, log_base, log_noise, row_weight, penalty, coefficients, losses, start, stop, labels):  # type: ignore[no-untyped-def]
    """Cross-entropy over the positive and its negatives, logits corrected by log(m p_n); accidental hits take no part."""
    width = scores.shape[1]
    log_m = np.float32(np.log(max(width - 1, 1)))
    for i in range(start, stop):
        top = np.float32(-np.inf)
        total = np.float64(0.0)
        for j in range(width):
            s = scores[i, j] + log_base[i, j]
            a = s - log_noise[i, j] - log_m
            total += penalty * s * s
            coefficients[i, j] = a
            if j == 0 or labels[i, j] != labels[i, 0]:
                top = max(top, a)
        norm = np.float32(0.0)
        for j in range(width):
            if j == 0 or labels[i, j] != labels[i, 0]:
                norm += exp32(coefficients[i, j] - top)
        total += np.log(np.float64(norm)) + top - coefficients[i, 0]
        for j in range(width):
            s = scores[i, j] + log_base[i, j]
            c = np.float32(0.0)
            if j == 0:
                c = exp32(coefficients[i, 0] - top) / norm - np.float32(1.0)
            elif labels[i, j] != labels[i, 0]:
                c = exp32(coefficients[i, j] - top) / norm
            coefficients[i, j] = row_weight[i] * (c + np.float32(2.0) * penalty * s)
        losses[i] = row_weight[i] * total


@dataclass(frozen=True)
class Objective:
    """One way to train: its kernel, and how its scores become log-probabilities.

    Attributes
    ----------
    kernel
        Fills coefficients and losses of a block of rows.
    removes_bias
        Whether the debiased score is xi + log p_n (True) or xi itself (False).
    reads_labels
        Whether the kernel also takes the table of labels, to mask negatives that hit the positive.
    starts_normalised
        Whether biases start at -log C: an objective that learns normalised scores stalls when it starts far from them.
    """

    kernel: Callable[..., Any]
    removes_bias: bool
    reads_labels: bool = False
    starts_normalised: bool = False


OBJECTIVES: dict[str, Objective] = {
    "negative_sampling": Objective(negative_sampling, removes_bias=True),
    "nce": Objective(noise_contrastive, removes_bias=False, starts_normalised=True),
    "sampled_softmax": Objective(sampled_softmax, removes_bias=True, reads_labels=True),
}
