"""Losses of pairs of a row and a class, each for itself: what the classes of one shard are trained by.

The logistic losses of `extremax.kernels.row_losses` compare each score with a number of its own: the
coefficient of a pair depends on the weights of its class alone.  A shard that has all pairs of its classes,
in the order and in the minibatches of all rows, therefore ends with the same weights as training of all
classes together.  `extremax.kernels.row_training` trains both, here with one class per line.

`Pairs.eta` is 0 for the label of a row and 1 for a negative.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.row_losses import log_count, logistic, register_loss, share_of

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


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


@njit
def negative_sampling_pairs(settings, pairs, start, stop):
    """Compute the paper's Eq. 6, pair by pair."""
    share = share_of(settings.n_negatives)
    logistic(pairs, settings.penalty, False, _ZERO, share, True, (start, stop))


@njit
def raw_negative_sampling_pairs(settings, pairs, start, stop):
    """Compute Eq. 6 with the penalty on xi alone, pair by pair."""
    share = share_of(settings.n_negatives)
    logistic(pairs, settings.penalty, True, _ZERO, share, True, (start, stop))


@njit
def noise_contrastive_pairs(settings, pairs, start, stop):
    """Compute the logistic loss of NCE, pair by pair."""
    log_m = log_count(settings.n_negatives)
    logistic(pairs, settings.penalty, False, log_m, _ONE, True, (start, stop))


register_loss(NegativeSamplingPairs, negative_sampling_pairs)
register_loss(RawNegativeSamplingPairs, raw_negative_sampling_pairs)
register_loss(NoiseContrastivePairs, noise_contrastive_pairs)
