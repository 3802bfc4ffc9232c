"""The registry of training objectives: which trainer runs each, by which kernel, from which start.

Formulas stand beside the kernels: `extremax.kernels.row_losses` for objectives that draw negatives for each
row (negative sampling is the paper's Eq. 6), `extremax.kernels.batch_softmax` for those whose minibatches
share classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.kernels.row_losses import (
    AugmentReduce,
    NegativeSampling,
    NoiseContrastive,
    OneVsEach,
    RawNegativeSampling,
    SampledSoftmax,
)


@dataclass(frozen=True)
class Objective:
    """One way to train.

    Attributes
    ----------
    trainer
        "rows": negatives for each row; "batch": classes that a minibatch shares; "candidates": the best
        classes of each row; "sparse": sparse weights.
    adds_log_noise
        Whether prediction adds log p_n to the scores (Eq. 5).
    loss
        For "rows": makes the parameters of the kernel from the score penalty, the epoch (from 0) and the
        decay of Augment and Reduce. Their class selects the kernel when the training loop is compiled.
    raw_loss
        The same with the penalty on scores without log p_n, where that is another loss.
    starts_at_noise
        Whether biases start at the mean of log p_n: scores that are log-probabilities stall far from them.
    pair_state
        Whether each training pair keeps a number (eta) from epoch to epoch.
    all_classes
        For "batch": every minibatch sees all classes, the exact softmax.
    """

    trainer: str
    adds_log_noise: bool = False
    loss: Callable[[float, int, float], Any] | None = None
    raw_loss: Callable[[float, int, float], Any] | None = None
    starts_at_noise: bool = False
    pair_state: bool = False
    all_classes: bool = False

    @property
    def shares_classes(self) -> bool:
        return self.trainer == "batch"


def _with_penalty(cls: type[Any]) -> Callable[[float, int, float], Any]:
    return lambda penalty, epoch, decay: cls(np.float32(penalty))


def _augment_reduce(penalty: float, epoch: int, decay: float) -> Any:
    return AugmentReduce(np.float32(penalty), np.float32((1.0 + epoch) ** -decay))


OBJECTIVES: dict[str, Objective] = {
    "negative_sampling": Objective(
        "rows",
        adds_log_noise=True,
        loss=_with_penalty(NegativeSampling),
        raw_loss=_with_penalty(RawNegativeSampling),
    ),
    "nce": Objective("rows", loss=_with_penalty(NoiseContrastive), starts_at_noise=True),
    "sampled_softmax": Objective("rows", adds_log_noise=True, loss=_with_penalty(SampledSoftmax)),
    "one_vs_each": Objective("rows", adds_log_noise=True, loss=_with_penalty(OneVsEach)),
    "augment_reduce": Objective("rows", adds_log_noise=True, loss=_augment_reduce, pair_state=True),
    "shared_softmax": Objective("batch"),
    "softmax": Objective("batch", all_classes=True),
    "candidate_softmax": Objective("candidates"),
    "sparse_softmax": Objective("sparse"),
}


def register_objective(name: str, objective: Objective) -> None:
    """Make an objective known by its name, to the estimator and to saved models.

    The kernel of an objective of trainer "rows" is registered with
    `extremax.kernels.row_losses.register_loss`."""
    if name in OBJECTIVES or name == "auto":
        raise ValueError(f"there is an objective {name!r} already; choose another name.")
    OBJECTIVES[name] = objective
