"""A stretch of minibatches on several threads that run side by side and wait for one another between the phases.

Every thread runs the same kernel with its own ``part``.  Per minibatch: scores and coefficients of its share of the rows from
frozen weights; wait; updates of the classes it owns; wait.  Waiting inside the kernel costs about a microsecond, so minibatches
can be small enough that the rows read for scoring are still in the cache when they are updated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax._jit import njit, wait_for_all
from extremax.kernels.updates import adagrad_csr, adagrad_dense, along_row_csr, along_row_dense, score_csr, score_dense
from extremax.objectives import coefficients_of


class Pairs(NamedTuple):
    """Rows of X with their classes, positive first, then negatives; and room for what is computed of them."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    log_base: NDArray[np.float32]
    log_noise: NDArray[np.float32]
    row_weight: NDArray[np.float32]
    scores: NDArray[np.float32]
    coefficients: NDArray[np.float32]
    losses: NDArray[np.float64]


class Step(NamedTuple):
    """Number of the objective, rows per minibatch, whether each weight has its own accumulator, and the three step sizes."""

    objective: int
    batch_size: int
    per_weight: bool
    scale: np.float32
    learning_rate: np.float32
    penalty: np.float32


@njit
def train_dense(X, pairs, model, step, barrier, part, n_parts):
    """All minibatches of `pairs`, in order, for thread `part` of `n_parts`; X is an array."""
    for start in range(0, pairs.rows.shape[0], step.batch_size):
        stop = min(start + step.batch_size, pairs.rows.shape[0])
        first, last = start + part * (stop - start) // n_parts, start + (part + 1) * (stop - start) // n_parts
        score_dense(X, pairs.rows, pairs.labels, model.weights, model.biases, step.scale, pairs.scores, first, last)
        coefficients_of(step.objective, pairs, step.penalty, first, last)
        wait_for_all(barrier, n_parts)
        rows, labels, coefficients = pairs.rows[start:stop], pairs.labels[start:stop], pairs.coefficients[start:stop]
        if step.per_weight:
            adagrad_dense(X, rows, labels, coefficients, model, step.scale, step.learning_rate, part, n_parts)
        else:
            along_row_dense(X, rows, labels, coefficients, model, step.scale, step.learning_rate, part, n_parts)
        wait_for_all(barrier, n_parts)


@njit
def train_csr(X, pairs, model, step, barrier, part, n_parts):
    """The same for X as `CSRRows`."""
    for start in range(0, pairs.rows.shape[0], step.batch_size):
        stop = min(start + step.batch_size, pairs.rows.shape[0])
        first, last = start + part * (stop - start) // n_parts, start + (part + 1) * (stop - start) // n_parts
        score_csr(X, pairs.rows, pairs.labels, model.weights, model.biases, step.scale, pairs.scores, first, last)
        coefficients_of(step.objective, pairs, step.penalty, first, last)
        wait_for_all(barrier, n_parts)
        rows, labels, coefficients = pairs.rows[start:stop], pairs.labels[start:stop], pairs.coefficients[start:stop]
        if step.per_weight:
            adagrad_csr(X, rows, labels, coefficients, model, step.scale, step.learning_rate, part, n_parts)
        else:
            along_row_csr(X, rows, labels, coefficients, model, step.scale, step.learning_rate, part, n_parts)
        wait_for_all(barrier, n_parts)
