"""The registry of training objectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.kernels.row_losses import (
    AugmentReduce,
    MaskedSoftmax,
    NegativeSampling,
    NoiseContrastive,
    OneVsEach,
    SampledSoftmax,
    augment_reduce,
    masked_softmax,
    negative_sampling,
    noise_contrastive,
    one_vs_each,
    sampled_softmax,
)


@dataclass(frozen=True)
class Objective:
    """One way to train: its kernel, and how its scores become log-probabilities.

    Attributes
    ----------
    settings
        Class of its settings, by which `coefficients_of` finds the kernel.
    kernel
        Fills coefficients and losses of a block of rows.
    removes_bias
        Whether the debiased score is xi + log p_n (True) or xi itself (False).
    starts_at_noise
        Whether biases start at the mean of log p_n over the rows: an objective whose scores are
        log-probabilities stalls when it starts far from them, and what the noise hardly ever draws is never
        pushed down to where it belongs.
    keeps_eta
        Whether each training row keeps a parameter eta of its own from epoch to epoch.
    """

    settings: type[Any]
    kernel: Callable[..., Any]
    removes_bias: bool
    starts_at_noise: bool = False
    keeps_eta: bool = False

    def settings_of(self, penalty: float, epoch: int) -> Any:
        """What the kernel is told in an epoch, the first being 0."""
        if self.settings is AugmentReduce:
            return AugmentReduce(np.float32(penalty), np.float32((1.0 + epoch) ** -0.9))
        return self.settings(np.float32(penalty))


# Trained by extremax.shared: every row of a minibatch against the same classes, drawn or (softmax) all.
SHARED_OBJECTIVES = ("shared_softmax", "softmax")

OBJECTIVES: dict[str, Objective] = {
    "negative_sampling": Objective(NegativeSampling, negative_sampling, removes_bias=True),
    "nce": Objective(NoiseContrastive, noise_contrastive, removes_bias=False, starts_at_noise=True),
    "sampled_softmax": Objective(SampledSoftmax, sampled_softmax, removes_bias=True),
    "sampled_softmax_masked": Objective(MaskedSoftmax, masked_softmax, removes_bias=True),
    "one_vs_each": Objective(OneVsEach, one_vs_each, removes_bias=True),
    "augment_reduce": Objective(AugmentReduce, augment_reduce, removes_bias=True, keeps_eta=True),
}


def removes_bias(objective: str) -> bool:
    """Whether prediction adds log p_n to the scores that this objective trains."""
    return objective not in SHARED_OBJECTIVES and OBJECTIVES[objective].removes_bias
