"""The product and the softmax of a sampled loss: torch on any device, numba in float32 on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extremax.kernels.compile import njit
from extremax.kernels.math import exp32
from extremax.runtime.threads import run, split

_ROW_BLOCK = 64  # rows of one task
_LEAST = np.float32(-60.0)  # below, exp is 0: denormal ratios would make products ten times as slow


def masked_log_sum(
    h: Tensor, columns: Tensor, shift: Tensor, own: Tensor, classes: Tensor, y: Tensor, left_out: Tensor
) -> Tensor:
    """Return log(exp(own_i) + sum over j of exp(h_i.columns_j + shift_j)), (n,).

    Columns of the class y_i do not count, nor do those from ``left_out[i, 0]`` to ``left_out[i, 1]`` - 1.
    """
    inputs = h, columns, shift, own, classes, y, left_out
    in_float32 = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in inputs[:4])
    if not in_float32 or torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():
        return _compose(*inputs)
    out: Tensor = _MaskedLogSum.apply(*inputs)  # type: ignore[no-untyped-call]
    return out


class _MaskedLogSum(torch.autograd.Function):
    """Keeps the ratios (n, K) of the summands to the sum for the backward pass, and nothing else."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        h, columns, *others = inputs
        ratios = h @ columns.mT
        log_sum: Tensor = softmax_in_place(ratios, *others)
        ctx.save_for_backward(*inputs, ratios, log_sum)
        return log_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), saved = grads, ctx.saved_tensors
        h, columns, shift, own, *mask, ratios, log_sum = saved
        if torch.is_grad_enabled():  # a gradient of this gradient will be wanted
            # Views, each a node of its own: else the gradient of h would hold that of own, which h leads to.
            h, columns, shift, own = (x.view_as(x) for x in (h, columns, shift, own))
            tables = (h, columns, shift, own)
            wanted = [x for x, is_wanted in zip(tables, ctx.needs_input_grad, strict=False) if is_wanted]
            found = iter(torch.autograd.grad(_compose(*tables, *mask), wanted, grad, create_graph=True))
            return (*(next(found) if is_wanted else None for is_wanted in ctx.needs_input_grad),)
        by_row, own_share = grad.unsqueeze(1), (own - log_sum).exp()
        grad_columns = ratios.mT @ (h * by_row)
        return (ratios @ columns) * by_row, grad_columns, ratios.mT @ grad, own_share * grad, None, None, None


def is_left_out(classes: Tensor, y: Tensor, left_out: Tensor) -> Tensor:
    """Return which columns do not count, (n, K)."""
    places = torch.arange(len(classes), device=classes.device)
    inside = (places >= left_out[:, :1]) & (places < left_out[:, 1:])
    return inside | (classes == y.unsqueeze(1))


def _compose(h: Tensor, columns: Tensor, shift: Tensor, own: Tensor, *mask: Tensor) -> Tensor:
    scores = ((h @ columns.mT).to(own.dtype) + shift).masked_fill(is_left_out(*mask), -math.inf)
    return torch.logsumexp(torch.cat([own.unsqueeze(1), scores], dim=1), dim=1)


@torch.library.custom_op("extremax::softmax_in_place", mutates_args=("scores",))
def softmax_in_place(
    scores: Tensor, shift: Tensor, own: Tensor, classes: Tensor, y: Tensor, left_out: Tensor
) -> Tensor:
    """Overwrite scores (n, K) by their ratios to the sum; return its logarithm (n,)."""
    log_sum = torch.empty_like(own)
    arrays = [x.detach().contiguous().numpy() for x in (shift, own, classes, y, left_out)]
    table, out, blocks = scores.detach().numpy(), log_sum.numpy(), split(len(own), _ROW_BLOCK)
    kernel: Any = _softmax_rows
    run(lambda i: kernel(table, *arrays, out, *blocks[i]), len(blocks), torch.get_num_threads())
    return log_sum


@softmax_in_place.register_fake
def _(scores: Tensor, shift: Tensor, own: Tensor, *mask: Tensor) -> Tensor:
    return torch.empty_like(own)


@njit
def _softmax_rows(scores, shift, own, classes, y, left_out, log_sum, start, stop):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    """Do what `softmax_in_place` does, for rows [start, stop)."""
    width = scores.shape[1]
    for i in range(start, stop):
        row, target, top = scores[i], y[i], own[i]
        for j in range(left_out[i, 0], left_out[i, 1]):
            row[j] = np.float32(-np.inf)
        for j in range(width):
            s = row[j] + shift[j]
            s = np.float32(-np.inf) if classes[j] == target else s
            row[j] = s
            top = max(top, s)
        if top == -np.inf:
            for j in range(width):
                row[j] = np.float32(0.0)
            log_sum[i] = top
            continue
        total = exp32(own[i] - top)
        for j in range(width):
            s = row[j] - top
            e = exp32(s) if s > _LEAST else np.float32(0.0)
            row[j] = e
            total += e
        log_sum[i] = np.float32(np.log(np.float64(total))) + top
        factor = np.float32(1.0) / total
        for j in range(width):
            row[j] *= factor
