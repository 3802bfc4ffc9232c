"""The classes that the rows of a minibatch are compared with, and the loss that they give.

The estimate is that of `extremax.kernels.batch_softmax`, whose kernels draw the classes here too: class y is
in the set with the exact inclusion probability pi_y, and

    Z_i = exp(s_{i,y_i}) + sum over j in the set, j != y_i, of exp(s_ij) / pi_j

has the sum of the full softmax as its expectation, given the hidden states. Classes of the rows' own targets
may be in the set for certain, with pi = 1: the expectation is over the draws, given the rows.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from extremax.kernels.batch_softmax import draw_shared
from extremax.solvers.class_sets import inclusion_probabilities
from extremax.types import Float32, Float64, Int32, Int64

Key = TypeVar("Key")
Sets = TypeVar("Sets")

# Of Adagrad's sums, in squares of the gradient of one row: the first draw of a class that no row wants has a
# gradient far below 1, and must not make a step as long as that of a target.
INITIAL_SQUARE = 0.1


class SharedSet(NamedTuple):
    """Classes of a minibatch (S,), in ascending order, and -log of their inclusion probabilities (S,)."""

    classes: Tensor
    minus_log_pi: Tensor


class ClassDraws:
    """Draws of class sets by weight.

    Parameters
    ----------
    weights : (n_classes,)
        Inclusion probabilities are proportional to these, up to 1.
    size : int
        Classes of a set, at most.
    """

    def __init__(self, weights: Float64, size: int) -> None:
        self.n_classes, self.size = len(weights), min(size, len(weights))
        self.cumulative = np.cumsum(inclusion_probabilities(weights, self.size))
        n_certain = self.n_classes if self.size == self.n_classes else 0
        self._all = np.arange(n_certain, dtype=np.int32), np.zeros(n_certain, np.float32)

    def draw(self, positions: Float64) -> tuple[Int32, Float32]:
        """Return sorted classes and their -log pi; the two `positions` are in [0, 1)."""
        if self.size == self.n_classes:
            return self._all
        no_cells = np.empty(0, np.int32), np.empty(0)
        classes, minus_log_pi = np.empty(self.size, np.int32), np.empty(self.size, np.float32)
        scratch = np.empty(2 * self.size + 4, np.int64)
        n = draw_shared(
            self.cumulative, *no_cells, positions[0], positions[1], classes, minus_log_pi, scratch
        )
        return classes[:n], minus_log_pi[:n]


def draw_key(numbers: Sequence[float], targets: Tensor) -> tuple[float | bytes, ...]:
    """Return the key under which the class set of a training step is kept.

    Activation checkpointing repeats a forward pass with the same random numbers, and must get the same set.
    A training loop that sets the seed again gets the same numbers too, for other rows: the key tells them
    apart by their targets.
    """
    digest = hashlib.blake2b(targets.detach().cpu().numpy().tobytes(), digest_size=16).digest()
    return (*numbers, digest)


def remember(kept: OrderedDict[Key, Sets], key: Key, sets: Sets, limit: int) -> Sets:
    """Keep the sets of a training step, and drop the oldest of more than `limit`; return the sets."""
    kept[key] = sets
    while len(kept) > limit:
        kept.popitem(last=False)
    return sets


def add_targets(drawn: tuple[Int32, Float32], y: Int64, limit: int) -> tuple[Int32, Float32]:
    """Return a drawn set with the targets of the rows in it for certain, that is with -log pi = 0.

    At most `limit` distinct targets, those of the most rows first, ties by class.
    """
    targets, counts = np.unique(y, return_counts=True)
    if len(targets) > limit:
        targets = np.sort(targets[np.lexsort((targets, -counts))[:limit]])
    classes, minus_log_pi = drawn
    at = np.searchsorted(classes, targets)
    known = np.zeros(len(targets), np.bool_)
    inside = at < len(classes)
    known[inside] = classes[at[inside]] == targets[inside]
    minus_log_pi = minus_log_pi.copy()
    minus_log_pi[at[known]] = 0.0
    added = targets[~known].astype(np.int32)
    all_classes = np.insert(classes, at[~known], added)
    return all_classes, np.insert(minus_log_pi, at[~known], np.float32(0.0))


def padded(classes: Int32, minus_log_pi: Float32, size: int, device: torch.device) -> SharedSet:
    """Return tensors of one fixed length, so that compiled code is used again; padding has no weight."""
    out, shift = np.zeros(size, np.int64), np.full(size, -math.inf, np.float32)
    out[: len(classes)], shift[: len(classes)] = classes, minus_log_pi
    return SharedSet(torch.from_numpy(out).to(device), torch.from_numpy(shift).to(device))


def shared_losses(
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shared: SharedSet,
    *,
    label_smoothing: float,
    sparse: bool,
) -> Tensor:
    """Return the loss of each row, differentiable in hidden states, weights and biases.

    Label smoothing needs the mean score of all classes; its estimate divides by pi in the same way.
    """
    terms = shared_terms(h, y, weight, bias, shared, smooths=label_smoothing > 0.0, sparse=sparse)
    return smoothed_losses(terms, label_smoothing, weight.shape[0])


class SoftmaxTerms(NamedTuple):
    """What the loss of each row (n,) is made of; tables of other classes add to all three.

    Attributes
    ----------
    log_sum : (n,)
        log of the estimated sum of exp(score) over the classes of the table.
    own : (n,)
        Score of the target, 0 where the table does not have it.
    score_sum : (n,) or None
        Estimated sum of the scores over the classes of the table, where label smoothing wants it.
    """

    log_sum: Tensor
    own: Tensor
    score_sum: Tensor | None


def smoothed_losses(terms: SoftmaxTerms, label_smoothing: float, n_classes: int) -> Tensor:
    """Return the losses from terms over all classes."""
    if terms.score_sum is None:
        return terms.log_sum - terms.own
    mean_score = terms.score_sum / n_classes
    return terms.log_sum - (1.0 - label_smoothing) * terms.own - label_smoothing * mean_score


def shared_terms(  # noqa: PLR0913 (a minibatch, a table and a set)
    h: Tensor,
    y: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shared: SharedSet,
    *,
    smooths: bool,
    sparse: bool,
    here: Tensor | None = None,
) -> SoftmaxTerms:
    """Return the terms of the loss that a table of classes adds, differentiable as `shared_losses`.

    ``here`` are the rows whose target the table has, all unless given; y is -1 at the others.
    """
    dtype = torch.promote_types(weight.dtype, torch.float32)
    with torch.autocast(h.device.type, enabled=False):
        h = h.to(dtype)
        x, labels = (h, y) if here is None else (h[here], y[here])
        # One look into the table for both: with dense gradients, each costs a gradient of all classes.
        both, n_own = torch.cat([labels, shared.classes]), len(labels)
        rows = _rows(weight, both, sparse=sparse).to(dtype)
        own = (x * rows[:n_own]).sum(dim=1)
        scores = h @ rows[n_own:].T
        if bias is not None:
            biases = torch.gather(bias, 0, both, sparse_grad=sparse).to(dtype)
            own = own + biases[:n_own]
            scores = scores + biases[n_own:]
        column = own
        if here is not None:
            column = own.new_full((len(h),), -math.inf).index_copy(0, here, own)
            own = own.new_zeros(len(h)).index_copy(0, here, own)
        is_target = shared.classes == y.unsqueeze(1)
        logits = (scores + shared.minus_log_pi).masked_fill(is_target, -math.inf)
        log_sum = torch.logsumexp(torch.cat([column.unsqueeze(1), logits], dim=1), dim=1)
        if not smooths:
            return SoftmaxTerms(log_sum, own, None)
        inverse_pi = shared.minus_log_pi.exp().masked_fill(is_target, 0.0)
        return SoftmaxTerms(log_sum, own, own + (scores * inverse_pi).sum(dim=1))


def _rows(weight: Tensor, classes: Tensor, *, sparse: bool) -> Tensor:
    return F.embedding(classes, weight, sparse=True) if sparse else weight.index_select(0, classes)
