"""The backward pass that steps the classes of a minibatch itself, by Adagrad with one sum per class.

The same kernels as in the training of `ExtremeClassifier`, on the CPU in float32, in blocks that do not
depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from extremax.kernels.batch_softmax import apply_shared, find_slots, shared_softmax
from extremax.kernels.row_updates import ModelArrays
from extremax.nn.hidden_moments import HiddenScale, ScaledRows
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.types import Float32, Int32

_ROW_BLOCK, _CLASS_BLOCK = 64, 256  # of one task


class FusedArguments(NamedTuple):
    """Class sets with the tables that `FusedStep` reads and updates.

    Attributes
    ----------
    sets
        Classes and their -log pi: one set for each step that the backward pass makes. Loss and gradient of
        the hidden states are those of the first.
    model
        Weights and biases of all classes, and Adagrad's sums.
    place : (n_classes,)
        Holds -1 everywhere.
    scale
        What is known of earlier hidden states: steps go along the rows that it returns.
    """

    sets: Sequence[tuple[Int32, Float32]]
    model: ModelArrays
    place: Int32
    scale: HiddenScale
    learning_rate: float
    has_bias: bool
    n_threads: int


class FusedStep(torch.autograd.Function):
    """Losses of the rows; the backward pass steps weights and biases.

    What the steps do to the scores does not depend on the scale of the loss, nor on that of hidden states
    with a mean square above 1: gradients are in units of the mean weight of a row and of the root mean square
    of the hidden states, steps in units of its inverse. Hidden states, losses and gradients from above that
    are not finite make no step.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, y: Tensor, step: FusedArguments, _: Tensor) -> Tensor:
        x, labels = np.ascontiguousarray(h.float().numpy()), y.numpy().astype(np.int32)
        with one_blas_thread():
            scored = _score(x, labels, step.sets[0], step)
        ctx.rows, ctx.scored = (x, labels), scored
        ctx.step, ctx.dtype = step, h.dtype
        return torch.from_numpy(scored.losses)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, labels = ctx.rows
        step: FusedArguments = ctx.step
        factor = grads[0].detach().numpy().astype(np.float64)
        unit = float(np.abs(factor).mean()) if len(factor) else 0.0
        can_step = math.isfinite(unit) and bool(np.isfinite(ctx.scored.losses).all())
        unit = unit if math.isfinite(unit) and unit else 1.0
        relative = (factor / unit).astype(np.float32)
        scored = _weigh(ctx.scored, relative)
        grad_h = None
        with one_blas_thread():
            if ctx.needs_input_grad[0]:
                grad_h = torch.from_numpy(_differentiate(scored, unit, step.n_threads)).to(ctx.dtype)
            scaled = step.scale.scale(x) if can_step else None
            if scaled is None:
                return grad_h, None, None, None
            _update(scaled, scored, step)
            for drawn in step.sets[1:]:
                scored = _score(x, labels, drawn, step)
                if np.isfinite(scored.losses).all():
                    _update(scaled, _weigh(scored, relative), step)
        return grad_h, None, None, None


class _Scored(NamedTuple):
    """A minibatch compared with a class set of S classes.

    Attributes
    ----------
    classes : (S + targets outside of the set,)
    table : (S + targets outside of the set, in_features)
        Their weights: a copy, since another backward pass may step the classes before this one's.
    slots : (n,)
        Place of each row's target in `classes`.
    coefficients, positive : (n, S), (n,)
        Derivatives of the losses in the scores of the set, and of the targets.
    losses : (n,)
    """

    classes: Int32
    table: Float32
    slots: Int32
    coefficients: Float32
    positive: Float32
    losses: Float32


def _score(x: Float32, labels: Int32, drawn: tuple[Int32, Float32], step: FusedArguments) -> _Scored:
    (members, minus_log_pi), model = drawn, step.model
    n, width = len(x), len(members)
    slots, extra = np.empty(n, np.int32), np.empty(n, np.int32)
    n_extra = find_slots(members, width, labels, step.place, slots, extra)
    classes = np.concatenate([members, extra[:n_extra]])
    table = model.weights[classes]
    scores = np.empty((n, width), np.float32)
    positive, losses = np.empty(n, np.float32), np.empty(n)
    shift = minus_log_pi + model.biases[members]
    ones, blocks = np.ones(n, np.float32), split(n, _ROW_BLOCK)

    def score(i: int) -> None:
        a, b = blocks[i]
        with np.errstate(over="ignore", invalid="ignore"):
            np.matmul(x[a:b], table[:width].T, out=scores[a:b])
        shared_softmax(
            scores, shift, x, labels, slots, model.weights, model.biases, ones, positive, losses, a, b
        )

    run(score, len(blocks), step.n_threads)
    with np.errstate(over="ignore"):
        return _Scored(classes, table, slots, scores, positive, losses.astype(np.float32))


def _weigh(scored: _Scored, relative: Float32) -> _Scored:
    if (relative == 1.0).all():
        return scored
    with np.errstate(invalid="ignore"):  # of a gradient that is not finite
        return scored._replace(
            coefficients=scored.coefficients * relative[:, None], positive=scored.positive * relative
        )


def _differentiate(scored: _Scored, unit: float, n_threads: int) -> Float32:
    """Return the gradient of the hidden states (n, in_features)."""
    coefficients, positive, table = scored.coefficients, scored.positive, scored.table
    n, width = coefficients.shape
    grad_h = np.empty((n, table.shape[1]), np.float32)
    blocks = split(n, _ROW_BLOCK)

    def differentiate(i: int) -> None:
        a, b = blocks[i]
        with np.errstate(over="ignore", invalid="ignore"):
            np.matmul(coefficients[a:b], table[:width], out=grad_h[a:b])
            grad_h[a:b] += positive[a:b, None] * table[scored.slots[a:b]]
            grad_h[a:b] *= np.float32(unit)

    run(differentiate, len(blocks), n_threads)
    return grad_h


def _update(scaled: ScaledRows, scored: _Scored, step: FusedArguments) -> None:
    """Step the classes of a set and the targets outside of it."""
    x, size = scaled
    classes, _, slots, coefficients, positive, *_ = scored
    width, model = coefficients.shape[1], step.model
    blocks = split(width, _CLASS_BLOCK)
    blocks += [(width + a, width + b) for a, b in split(len(classes) - width, _CLASS_BLOCK)]
    gradients = np.zeros((len(classes), x.shape[1]), np.float32)
    rate = step.learning_rate / x.shape[1]
    rates = np.float32(rate / size), np.float32(rate)

    def update(i: int) -> None:
        a, b = blocks[i]
        if a < width:
            np.matmul(coefficients[:, a:b].T, x, out=gradients[a:b])
        rows = coefficients, x, positive, slots, classes
        apply_shared(gradients, *rows, a, b, width, model, *rates, np.float32(np.inf))

    run(update, len(blocks), step.n_threads)
    if not step.has_bias:
        model.biases[classes] = 0.0
