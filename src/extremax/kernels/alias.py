"""Draw from a fixed distribution over classes in constant time, by Walker's alias table."""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.rng import draw_key, mix64, uniform_bits


@njit
def build_alias(prob, threshold, alias):
    """Fill the table for normalised float64 `prob`; column i is i below threshold[i], else alias[i]."""
    n = prob.shape[0]
    small = np.empty(n, np.int32)
    large = np.empty(n, np.int32)
    n_small = 0
    n_large = 0
    rest = prob * n
    for i in range(n):
        alias[i] = i
        threshold[i] = 1.0
        if rest[i] < 1.0:
            small[n_small] = i
            n_small += 1
        else:
            large[n_large] = i
            n_large += 1
    while n_small > 0 and n_large > 0:
        n_small -= 1
        lower, upper = small[n_small], large[n_large - 1]
        threshold[lower] = rest[lower]
        alias[lower] = upper
        rest[upper] -= 1.0 - rest[lower]
        if rest[upper] < 1.0:
            n_large -= 1
            small[n_small] = upper
            n_small += 1


@njit
def draw_alias(threshold, alias, log_prob, seed, labels, log_noise, start, stop):
    """Draw rows [start, stop) of `labels` and `log_noise`.

    A draw is a function of (seed, row, column) alone.
    """
    n = threshold.shape[0]
    # without this, the seeds 2 s and 2 s + 1 would exchange the draws of neighbouring rows
    mixed_seed = mix64(seed)
    for i in range(start, stop):
        for j in range(labels.shape[1]):
            first, second = uniform_bits(draw_key(mixed_seed, i, j))
            column = min(np.int64(first * n), n - 1)
            label = column if second < threshold[column] else np.int64(alias[column])
            labels[i, j] = label
            log_noise[i, j] = log_prob[label]


@njit
def choose_component(seed, weight, first, second, labels):
    """Set labels[i, j] to first[i, j] with probability `weight`, else to second[i, j]."""
    mixed_seed = mix64(seed)
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            u, _ = uniform_bits(draw_key(mixed_seed, i, j))
            labels[i, j] = first[i, j] if u < weight else second[i, j]
