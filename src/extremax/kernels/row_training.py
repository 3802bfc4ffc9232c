"""Train on a stretch of minibatches.

A minibatch has two phases: scores and coefficients of the rows, from frozen weights; then updates of the
classes.  A phase is cut into ``n_parts`` parts, which threads may share.  Each class is updated in the order
of the rows, by whichever thread.

The class of ``step.objective`` selects the loss when a kernel is compiled: a kernel contains one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import njit_extensible
from extremax.kernels.row_losses import coefficients_of
from extremax.kernels.row_updates import score_pairs, update_pairs


class Pairs(NamedTuple):
    """Rows of X with their classes, and arrays for what is computed of them."""

    rows: NDArray[np.int64]  # (n,): row of X
    labels: NDArray[np.int32]  # (n, 1 + m): the positive class, then negatives
    log_base: NDArray[np.float32]  # (n, 1 + m): what is added to a score to debias it
    log_noise: NDArray[np.float32]  # (n, 1 + m): log p_n
    row_weight: NDArray[np.float32]  # (n,)
    scores: NDArray[np.float32]  # (n, 1 + m), filled
    coefficients: NDArray[np.float32]  # (n, 1 + m), filled: d loss / d score
    losses: NDArray[np.float64]  # (n,), filled
    eta: NDArray[np.float32]  # (n,), updated: a parameter per row, of objectives that keep one


class Step(NamedTuple):
    """Loss, feature scale and step size of a minibatch."""

    objective: Any  # settings of a loss; their class selects its kernel
    scale: np.float32  # of the features
    learning_rate: np.float32


@njit_extensible
def score_part(X, pairs, model, step, start, stop):
    """Compute scores and coefficients of the rows [start, stop), from frozen weights."""
    weights, biases = model.weights, model.biases
    score_pairs(X, pairs.rows, pairs.labels, weights, biases, step.scale, pairs.scores, start, stop)
    coefficients_of(step.objective, pairs, start, stop)


@njit_extensible
def update_part(X, pairs, model, step, start, stop, n_parts, part):
    """Update the classes of a part by the rows [start, stop), in their order."""
    rows, labels, coefficients = pairs.rows, pairs.labels, pairs.coefficients
    scale, rate = step.scale, step.learning_rate
    update_pairs(X, rows, labels, coefficients, model, scale, rate, start, stop, part, n_parts)


@njit_extensible
def train(X, pairs, ends, model, step):
    """Train on minibatches of `pairs`, in order, all on one thread.

    ``ends`` (n_batches + 1,) int64 is where each minibatch begins, and the end of the last.
    """
    weights, biases, scale, rate = model.weights, model.biases, step.scale, step.learning_rate
    rows, labels, coefficients = pairs.rows, pairs.labels, pairs.coefficients
    for batch in range(ends.size - 1):
        start, stop = ends[batch], ends[batch + 1]
        score_pairs(X, rows, labels, weights, biases, scale, pairs.scores, start, stop)
        coefficients_of(step.objective, pairs, start, stop)
        update_pairs(X, rows, labels, coefficients, model, scale, rate, start, stop, 0, 1)
