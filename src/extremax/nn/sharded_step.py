"""The backward pass in which a rank steps its classes of a minibatch, by Adagrad with one sum per class.

`extremax.nn.fused_step` is the same for one process: here the sum of a softmax is over the classes of all
ranks. Tables may be on any device, in any floating-point type; gradients are in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from extremax.nn.hidden_moments import HiddenMoments, HiddenScale, HiddenSize
from extremax.nn.shard_group import ShardGroup, add_terms
from extremax.nn.shared_classes import SharedSet, SoftmaxTerms
from extremax.runtime.products import one_blas_thread


def replicated_on(device: torch.device | str | None) -> str:
    """Return where a layer on a device has what every rank knows: on the CPU, or nowhere as the layer."""
    return "meta" if torch.empty(0, device=device).is_meta else "cpu"


class Replicated(HiddenScale):
    """What is known of the rows of all ranks, which every rank computes for itself, on its CPU.

    Values are equal on all ranks, bit for bit: a rank adds the same rows in the same order as the others, in
    products on one thread, whatever the number of its threads. Ranks on different kinds of processors may
    round differently. Each steps its own classes, so that nothing needs equal bits.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Stay where and what it is in ``.to(...)``; ``to_empty`` gives memory to buffers without."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if moved.is_meta:
                return moved
            return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor

        result: Self = super()._apply(move, recurse)
        return result

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in [name for name, _ in self.named_buffers() if prefix + name in state_dict]:
            value = state_dict[prefix + name]
            state_dict[prefix + name] = value if value.is_meta else value.cpu()
        super()._load_from_state_dict(state_dict, prefix, *rest)


class ReplicatedMoments(Replicated, HiddenMoments):
    """Second moments of the rows of all ranks."""


class ReplicatedSize(Replicated, HiddenSize):
    """Usual size of the rows of all ranks."""


@dataclass(frozen=True)
class LocalStep:
    """Class sets of a rank, and the tables that `StepInBackward` reads and updates.

    Attributes
    ----------
    sets
        One for each step that the backward pass makes. Loss and gradient of the hidden states are those of
        the first.
    """

    sets: Sequence[SharedSet]
    shards: ShardGroup
    weight: Tensor
    bias: Tensor | None
    squares: Tensor
    bias_squares: Tensor
    row_scale: HiddenScale
    learning_rate: float

    def score(self, x: Tensor, labels: Tensor, shared: SharedSet) -> Scored:
        """Compare rows x (n, d) with a set; labels (n,) are places in the table, -1 elsewhere.

        The terms are those of `extremax.nn.shared_classes.shared_terms`.
        """
        here = (labels >= 0).nonzero().squeeze(1)
        classes, slots = _with_targets(shared.classes, labels[here])
        table, n_set = self.weight[classes].float(), len(shared.classes)
        shift, own = shared.minus_log_pi, (x[here] * table[slots]).sum(dim=1)
        if self.bias is not None:
            biases = self.bias[classes].float()
            shift, own = shift + biases[:n_set], own + biases[slots]
        # A target whose score overflows: the sum over the ranks is NaN on all of them, and none steps.
        own = own.masked_fill(own.isinf(), math.nan)
        scores = torch.addmm(shift, x, table[:n_set].T)
        inside = slots < n_set
        scores[here[inside], slots[inside]] = -math.inf  # a target enters once, with its own score
        column = own.new_full((len(x),), -math.inf).index_copy_(0, here, own)
        top = torch.maximum(scores.amax(dim=1), column) if n_set else column
        top = top.clamp(min=torch.finfo(top.dtype).min)  # a rank without classes has no score
        ratios, own_ratios = scores.sub_(top.unsqueeze(1)).exp_(), (column - top).exp_()
        total = ratios.sum(dim=1) + own_ratios
        terms = SoftmaxTerms(top + total.log(), own.new_zeros(len(x)).index_copy_(0, here, own), None)
        return Scored(classes, table, here, slots, ratios, own_ratios[here], total, terms)

    def scale(self, x: Tensor) -> ScaledRows | None:
        """Return the rows that steps go along and what they are divided by, or None for no step."""
        with one_blas_thread():
            scaled = self.row_scale.scale(np.ascontiguousarray(x.cpu().numpy()))
        return None if scaled is None else (torch.from_numpy(scaled.rows).to(x.device), scaled.size)

    def update(self, scored: Scored, slopes: Slopes, rows: ScaledRows, unit: float) -> None:
        """Step the classes of a set and the targets outside of it; `unit` is that of the slopes."""
        scaled, size = rows
        gradient, bias_gradient = (part.div_(unit) for part in scored.spread(slopes, scaled))
        classes, rate = scored.classes, self.learning_rate / scaled.shape[1]
        sums = self.squares[classes] + gradient.square().mean(dim=1, keepdim=True)
        self.squares[classes] = sums
        self.weight[classes] -= (rate / size * gradient * sums.rsqrt()).to(self.weight.dtype)
        if self.bias is not None:
            sums = self.bias_squares[classes] + bias_gradient.square()
            self.bias_squares[classes] = sums
            self.bias[classes] -= (rate * bias_gradient * sums.rsqrt()).to(self.bias.dtype)


# Derivatives of a loss in the scores of the targets (n_here,) and of the set (n, S).
Slopes = tuple[Tensor, Tensor]
# Hidden states (n, d) at unit mean square, and their size.
ScaledRows = tuple[Tensor, float]


@dataclass(frozen=True)
class Scored:
    """A minibatch compared with a set of S classes of a rank.

    Attributes
    ----------
    classes : (S + targets outside of the set,)
    table : (classes, d)
        Their weights.
    here : (n_here,)
        Rows whose targets this rank has.
    slots : (n_here,)
        Places of these targets in `classes`.
    ratios, own_ratios : (n, S), (n_here,)
        exp(score - log pi) of the set and of the targets, in units of the largest of a row.
    total : (n,)
        Sum of the ratios of a row.
    terms
        Of the loss.
    """

    classes: Tensor
    table: Tensor
    here: Tensor
    slots: Tensor
    ratios: Tensor
    own_ratios: Tensor
    total: Tensor
    terms: SoftmaxTerms

    def differentiate(self, of_log_sum: Tensor, of_own: Tensor) -> Slopes:
        """Return the derivatives of a loss in the scores, from those in the terms."""
        # Where all scores of a rank are -inf its part of the sum is 0, and so are the ratios.
        factor = of_log_sum / self.total.clamp(min=torch.finfo(self.total.dtype).tiny)
        return self.own_ratios * factor[self.here] + of_own[self.here], self.ratios * factor.unsqueeze(1)

    def spread(self, slopes: Slopes, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of `table` and of its biases, for rows (n, d)."""
        own, others = slopes
        n_set = others.shape[1]
        gradient, biases = torch.zeros_like(self.table), self.table.new_zeros(len(self.table))
        torch.mm(others.T, rows, out=gradient[:n_set])
        gradient.index_add_(0, self.slots, own.unsqueeze(1) * rows[self.here])
        biases[:n_set] = others.sum(dim=0)
        return gradient, biases.index_add_(0, self.slots, own)

    def pull(self, slopes: Slopes) -> Tensor:
        """Return the gradient of the hidden states (n, d)."""
        own, others = slopes
        gradient = others @ self.table[: others.shape[1]]
        return gradient.index_add_(0, self.here, own.unsqueeze(1) * self.table[self.slots])


class StepInBackward(torch.autograd.Function):
    """Terms of the loss that a rank adds; the backward pass steps its classes of the minibatch.

    Steps are in the units of `extremax.nn.fused_step`: gradients by the mean weight of a row, along hidden
    states of unit mean square or whitened ones. Each set after the first takes the collectives of
    `add_terms`. A rank without classes takes part. Hidden states, losses and gradients from above that are
    not finite, of any rank, make no step, but all collectives.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, labels: Tensor, step: LocalStep, _: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(h.device.type, enabled=False):
            x = h.detach().float()
            scored = step.score(x, labels, step.sets[0])
        ctx.step, ctx.rows, ctx.scored, ctx.dtype = step, (x, labels), scored, h.dtype
        return scored.terms.log_sum.detach(), scored.terms.own.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        step: LocalStep = ctx.step
        scored: Scored = ctx.scored
        x, labels = ctx.rows
        grad_h = None
        with torch.autocast(x.device.type, enabled=False):
            row_weights = -grads[1]  # a target's own score has this slope
            unit = float(row_weights.abs().mean(dtype=torch.float64)) if len(x) else 0.0
            # The first is NaN on all ranks where the sum over the ranks is not finite.
            can_step = bool(torch.isfinite(grads[0]).all()) and math.isfinite(unit)
            scaled = step.scale(x) if can_step else None
            slopes = scored.differentiate(*grads)
            if ctx.needs_input_grad[0]:
                grad_h = scored.pull(slopes).to(ctx.dtype)
            if scaled is not None:
                step.update(scored, slopes, scaled, unit or 1.0)
            for shared in step.sets[1:]:
                scored = step.score(x, labels, shared)
                fraction = (scored.terms.log_sum - add_terms(scored.terms, step.shards).log_sum).exp()
                if scaled is not None and bool(torch.isfinite(fraction).all()):
                    slopes = scored.differentiate(row_weights * fraction, -row_weights)
                    step.update(scored, slopes, scaled, unit or 1.0)
        return grad_h, None, None, None


def _with_targets(classes: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes (S,), ascending, then targets that are not among them; places of the targets."""
    extra = torch.unique(targets)
    both = torch.cat([classes, extra[torch.isin(extra, classes, invert=True)]])
    order = both.argsort()
    return both, order[torch.searchsorted(both[order], targets)]
