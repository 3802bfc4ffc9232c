"""Train on a stretch of minibatches, on several threads that share the tasks of each phase.

A minibatch has two phases: scores and coefficients of the rows, from frozen weights; then updates of the
classes.  A phase is cut into ``n_parts`` tasks, which threads claim (`extremax.kernels.phases`): on a quiet
machine each thread runs its own, on a busy one a running thread does the work of one that is not running.
Each class is updated in the order of the rows, by whichever thread.  A change of phase costs about a
microsecond, so that minibatches can be small enough for the rows that were scored to be still in the cache
when they are updated.

The classes of ``step.objective`` and ``step.sizes`` select the loss and the optimizer when a kernel is
compiled: a kernel contains one of each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import by_class, helper, njit_extensible
from extremax.kernels.phases import claim_task, finish_task
from extremax.kernels.row_losses import coefficients_of
from extremax.kernels.row_updates import (
    adagrad_csr,
    adagrad_dense,
    along_row_csr,
    along_row_dense,
    score_csr,
    score_dense,
)


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


class PerWeight(NamedTuple):
    """Step sizes of Adagrad with one accumulator per weight."""

    scale: np.float32
    learning_rate: np.float32


class AlongRow(NamedTuple):
    """Step sizes of steps along x: Adagrad with one accumulator per class, or SGD."""

    scale: np.float32
    learning_rate: np.float32


class Step(NamedTuple):
    """What a training kernel does with each minibatch."""

    objective: Any  # settings of a loss; their class selects its kernel
    sizes: Any  # `PerWeight` or `AlongRow`


@helper
def _per_weight_dense(sizes, X, rows, labels, coefficients, model, part, n_parts):
    adagrad_dense(X, rows, labels, coefficients, model, sizes.scale, sizes.learning_rate, part, n_parts)


@helper
def _along_row_dense(sizes, X, rows, labels, coefficients, model, part, n_parts):
    along_row_dense(X, rows, labels, coefficients, model, sizes.scale, sizes.learning_rate, part, n_parts)


@helper
def _per_weight_csr(sizes, X, rows, labels, coefficients, model, part, n_parts):
    adagrad_csr(X, rows, labels, coefficients, model, sizes.scale, sizes.learning_rate, part, n_parts)


@helper
def _along_row_csr(sizes, X, rows, labels, coefficients, model, part, n_parts):
    along_row_csr(X, rows, labels, coefficients, model, sizes.scale, sizes.learning_rate, part, n_parts)


_update_dense = by_class({PerWeight: _per_weight_dense, AlongRow: _along_row_dense})
_update_csr = by_class({PerWeight: _per_weight_csr, AlongRow: _along_row_csr})


@njit_extensible
def train_dense(X, pairs, ends, model, step, schedule, part, n_parts):
    """Train on minibatches of `pairs`, in order, with the other threads of `schedule`; X is an array.

    ``ends`` (n_batches + 1,) int64 is where each minibatch begins, and the end of the last.
    """
    n_phases = 2 * (ends.shape[0] - 1)
    task = claim_task(schedule, part, n_parts, n_phases)
    while task >= 0:
        phase, number = task // n_parts, task % n_parts
        start, stop = ends[phase // 2], ends[phase // 2 + 1]
        if phase % 2 == 0:
            first = start + number * (stop - start) // n_parts
            last = start + (number + 1) * (stop - start) // n_parts
            scale = step.sizes.scale
            score_dense(
                X, pairs.rows, pairs.labels, model.weights, model.biases, scale, pairs.scores, first, last
            )
            coefficients_of(step.objective, pairs, first, last)
        else:
            rows, labels = pairs.rows[start:stop], pairs.labels[start:stop]
            coefficients = pairs.coefficients[start:stop]
            _update_dense(step.sizes, X, rows, labels, coefficients, model, number, n_parts)
        finish_task(schedule, n_parts)
        task = claim_task(schedule, part, n_parts, n_phases)


@njit_extensible
def train_csr(X, pairs, ends, model, step, schedule, part, n_parts):
    """Do the same for X as `CSRRows`."""
    n_phases = 2 * (ends.shape[0] - 1)
    task = claim_task(schedule, part, n_parts, n_phases)
    while task >= 0:
        phase, number = task // n_parts, task % n_parts
        start, stop = ends[phase // 2], ends[phase // 2 + 1]
        if phase % 2 == 0:
            first = start + number * (stop - start) // n_parts
            last = start + (number + 1) * (stop - start) // n_parts
            scale = step.sizes.scale
            score_csr(
                X, pairs.rows, pairs.labels, model.weights, model.biases, scale, pairs.scores, first, last
            )
            coefficients_of(step.objective, pairs, first, last)
        else:
            rows, labels = pairs.rows[start:stop], pairs.labels[start:stop]
            coefficients = pairs.coefficients[start:stop]
            _update_csr(step.sizes, X, rows, labels, coefficients, model, number, n_parts)
        finish_task(schedule, n_parts)
        task = claim_task(schedule, part, n_parts, n_phases)
