"""A stretch of minibatches on several threads that run side by side and wait for one another between the
phases.

Every thread runs the same kernel with its own ``part``. Per minibatch: scores and coefficients of its share
of the rows from frozen weights; wait; updates of the classes it owns; wait. Waiting inside the kernel costs
about a microsecond, so minibatches can be small enough that the rows read for scoring are still in the cache
when they are updated.

The classes of ``step.objective`` and ``step.sizes`` choose the objective and the optimiser when a kernel is
compiled, so that only what is used is compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.barrier import wait_for_all
from extremax.kernels.compile import by_class, helper, njit
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
    """Rows of X with their classes, positive first, then negatives; and room for what is computed of them."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    log_base: NDArray[np.float32]
    log_noise: NDArray[np.float32]
    row_weight: NDArray[np.float32]
    scores: NDArray[np.float32]
    coefficients: NDArray[np.float32]
    losses: NDArray[np.float64]
    eta: NDArray[np.float32]  # one parameter per row, of objectives that keep one


class PerWeight(NamedTuple):
    """Step sizes, for Adagrad with one accumulator per weight."""

    scale: np.float32
    learning_rate: np.float32


class AlongRow(NamedTuple):
    """Step sizes, for steps along x: Adagrad with one accumulator per class, or none."""

    scale: np.float32
    learning_rate: np.float32


class Step(NamedTuple):
    """Rows per minibatch, and what chooses the code by its class: an objective's settings and a kind of
    step.
    """

    batch_size: int
    objective: Any
    sizes: Any


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


@njit
def train_dense(X, pairs, model, step, barrier, part, n_parts):
    """All minibatches of `pairs`, in order, for thread `part` of `n_parts`; X is an array."""
    for start in range(0, pairs.rows.shape[0], step.batch_size):
        stop = min(start + step.batch_size, pairs.rows.shape[0])
        first, last = start + part * (stop - start) // n_parts, start + (part + 1) * (stop - start) // n_parts
        score_dense(
            X,
            pairs.rows,
            pairs.labels,
            model.weights,
            model.biases,
            step.sizes.scale,
            pairs.scores,
            first,
            last,
        )
        coefficients_of(step.objective, pairs, first, last)
        wait_for_all(barrier, n_parts)
        rows, labels, coefficients = (
            pairs.rows[start:stop],
            pairs.labels[start:stop],
            pairs.coefficients[start:stop],
        )
        _update_dense(step.sizes, X, rows, labels, coefficients, model, part, n_parts)
        wait_for_all(barrier, n_parts)


@njit
def train_csr(X, pairs, model, step, barrier, part, n_parts):
    """The same for X as `CSRRows`."""
    for start in range(0, pairs.rows.shape[0], step.batch_size):
        stop = min(start + step.batch_size, pairs.rows.shape[0])
        first, last = start + part * (stop - start) // n_parts, start + (part + 1) * (stop - start) // n_parts
        score_csr(
            X,
            pairs.rows,
            pairs.labels,
            model.weights,
            model.biases,
            step.sizes.scale,
            pairs.scores,
            first,
            last,
        )
        coefficients_of(step.objective, pairs, first, last)
        wait_for_all(barrier, n_parts)
        rows, labels, coefficients = (
            pairs.rows[start:stop],
            pairs.labels[start:stop],
            pairs.coefficients[start:stop],
        )
        _update_csr(step.sizes, X, rows, labels, coefficients, model, part, n_parts)
        wait_for_all(barrier, n_parts)
