"""Kernels of the bilinear part: scores of each row's own candidates, and the steps of Adam."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import njit


class Adam(NamedTuple):
    """The numbers of a step."""

    rate: float  # times the correction of the mean
    penalty: float
    square_correction: float


@njit
def score_candidates(rows, factors, classes, out):
    """Fill ``out[i, a] = rows[i] . factors[classes[i, a]]``, and -inf where there is no class."""
    n_rows, n_slots = classes.shape
    for i in range(n_rows):
        z = rows[i]
        for a in range(n_slots):
            c = classes[i, a]
            if c < 0:
                out[i, a] = np.float32(-np.inf)
                continue
            v, total = factors[c], np.float32(0.0)
            for j in range(z.size):
                total += z[j] * v[j]
            out[i, a] = total


@njit
def step_adam(matrix, gradient, mean, square, adam):
    """Take a step of Adam up the gradient, for arrays of one dimension."""
    penalty, rate = np.float32(adam.penalty), np.float32(adam.rate)
    correction = np.float32(adam.square_correction)
    for j in range(matrix.size):
        d = gradient[j] - penalty * matrix[j]
        mean[j] = np.float32(0.9) * mean[j] + np.float32(0.1) * d
        square[j] = np.float32(0.99) * square[j] + np.float32(0.01) * d * d
        matrix[j] += rate * mean[j] / (np.sqrt(square[j] * correction) + np.float32(1e-6))
