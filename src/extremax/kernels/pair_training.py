"""Train the classes of one shard: pairs of a row and a class, each for itself, in given minibatches.

The logistic losses of `extremax.kernels.row_losses` compare each score with a number of its own: the
coefficient of a pair depends on the weights of its class alone.  A shard that has all pairs of its classes,
in the order and in the minibatches of all rows, therefore ends with the same weights as training of all
classes together.  Scores and updates are those of `extremax.kernels.row_updates`, with one class per line.

`Pairs.eta` is 0 for the label of a row and 1 for a negative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.compile import by_class, helper, njit
from extremax.kernels.math import exp32, log1p32, sigmoid32
from extremax.kernels.phases import claim_task, finish_task
from extremax.kernels.row_training import _update_csr, _update_dense
from extremax.kernels.row_updates import score_csr, score_dense


class NegativeSamplingPairs(NamedTuple):
    """Settings of `negative_sampling_pairs`."""

    penalty: np.float32
    n_negatives: int


class RawNegativeSamplingPairs(NamedTuple):
    """Settings of `raw_negative_sampling_pairs`."""

    penalty: np.float32
    n_negatives: int


class NoiseContrastivePairs(NamedTuple):
    """Settings of `noise_contrastive_pairs`."""

    penalty: np.float32
    n_negatives: int


@helper
def _softplus(a: Any) -> Any:
    return max(a, np.float32(0.0)) + log1p32(exp32(-abs(a)))


@njit
def negative_sampling_pairs(settings, pairs, start, stop):
    """Compute the paper's Eq. 6, pair by pair."""
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients = settings.penalty, pairs.coefficients
    inverse_m = np.float32(1.0) / np.float32(max(settings.n_negatives, 1))
    for i in range(start, stop):
        s = scores[i, 0] + log_base[i, 0]
        a = s - log_noise[i, 0]
        if pairs.eta[i] == np.float32(0.0):
            coefficients[i, 0] = row_weight[i] * (np.float32(2.0) * penalty * s - sigmoid32(-a))
            pairs.losses[i] = row_weight[i] * np.float64(_softplus(-a) + penalty * s * s)
        else:
            coefficients[i, 0] = row_weight[i] * inverse_m * (np.float32(2.0) * penalty * s + sigmoid32(a))
            pairs.losses[i] = row_weight[i] * np.float64(inverse_m * (_softplus(a) + penalty * s * s))


@njit
def raw_negative_sampling_pairs(settings, pairs, start, stop):
    """Compute Eq. 6 with the penalty on xi alone, pair by pair."""
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients = settings.penalty, pairs.coefficients
    inverse_m = np.float32(1.0) / np.float32(max(settings.n_negatives, 1))
    for i in range(start, stop):
        xi = scores[i, 0]
        a = xi + log_base[i, 0] - log_noise[i, 0]
        if pairs.eta[i] == np.float32(0.0):
            coefficients[i, 0] = row_weight[i] * (np.float32(2.0) * penalty * xi - sigmoid32(-a))
            pairs.losses[i] = row_weight[i] * np.float64(_softplus(-a) + penalty * xi * xi)
        else:
            coefficients[i, 0] = row_weight[i] * inverse_m * (np.float32(2.0) * penalty * xi + sigmoid32(a))
            pairs.losses[i] = row_weight[i] * np.float64(inverse_m * (_softplus(a) + penalty * xi * xi))


@njit
def noise_contrastive_pairs(settings, pairs, start, stop):
    """Compute the logistic loss of NCE, pair by pair."""
    scores, log_base, log_noise, row_weight = pairs.scores, pairs.log_base, pairs.log_noise, pairs.row_weight
    penalty, coefficients = settings.penalty, pairs.coefficients
    log_m = np.float32(np.log(max(settings.n_negatives, 1)))
    for i in range(start, stop):
        s = scores[i, 0] + log_base[i, 0]
        a = s - log_noise[i, 0] - log_m
        if pairs.eta[i] == np.float32(0.0):
            c = -sigmoid32(-a)
            loss = _softplus(-a) + penalty * s * s
        else:
            c = sigmoid32(a)
            loss = _softplus(a) + penalty * s * s
        coefficients[i, 0] = row_weight[i] * (c + np.float32(2.0) * penalty * s)
        pairs.losses[i] = row_weight[i] * np.float64(loss)


# Called from kernels as _coefficients_of(settings, pairs, start, stop).
_coefficients_of = by_class(
    {
        NegativeSamplingPairs: negative_sampling_pairs,
        RawNegativeSamplingPairs: raw_negative_sampling_pairs,
        NoiseContrastivePairs: noise_contrastive_pairs,
    }
)


@njit
def train_pairs_dense(X, pairs, ends, model, step, schedule, part, n_parts):
    """Train on minibatches of pairs, with the other threads of `schedule`; X is an array.

    Parameters
    ----------
    pairs : Pairs
        Tables of one column, in the order of training.
    ends : (n_batches + 1,) int64
        Where each minibatch begins, and the end of the last.
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
            _coefficients_of(step.objective, pairs, first, last)
        else:
            rows, labels = pairs.rows[start:stop], pairs.labels[start:stop]
            coefficients = pairs.coefficients[start:stop]
            _update_dense(step.sizes, X, rows, labels, coefficients, model, number, n_parts)
        finish_task(schedule, n_parts)
        task = claim_task(schedule, part, n_parts, n_phases)


@njit
def train_pairs_csr(X, pairs, ends, model, step, schedule, part, n_parts):
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
            _coefficients_of(step.objective, pairs, first, last)
        else:
            rows, labels = pairs.rows[start:stop], pairs.labels[start:stop]
            coefficients = pairs.coefficients[start:stop]
            _update_csr(step.sizes, X, rows, labels, coefficients, model, number, n_parts)
        finish_task(schedule, n_parts)
        task = claim_task(schedule, part, n_parts, n_phases)
