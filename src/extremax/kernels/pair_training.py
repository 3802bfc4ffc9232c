"""Losses of pairs of a row and a class, each for itself: what the classes of one shard are trained by.

The logistic losses of `extremax.kernels.row_losses` compare each score with a number of its own: the
coefficient of a pair depends on the weights of its class alone.  A shard that has all pairs of its classes,
in the order and in the minibatches of all rows, therefore ends with the same weights as training of all
classes together.  `extremax.kernels.row_training` trains both, here with one class per line.

`Pairs.eta` is 0 for the label of a row and 1 for a negative.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.math import exp32, log1p32, sigmoid32
from extremax.kernels.row_losses import register_loss


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


register_loss(NegativeSamplingPairs, negative_sampling_pairs)
register_loss(RawNegativeSamplingPairs, raw_negative_sampling_pairs)
register_loss(NoiseContrastivePairs, noise_contrastive_pairs)
