"""Classes split over the ranks of a process group: who has which, and the collectives of a layer.

Each function here makes the collectives that its docstring names and no others.  With P ranks in the group,
n rows on a rank, N rows together, d features of b bytes:

    all-gather of n           8 bytes from each rank
    all-gather of rows        n (b d + 8) bytes from each rank
    all-reduce (maximum)      4 N bytes
    all-reduce (sums)         8 N bytes, 12 N with label smoothing
    all-gather of gradients   4 n bytes from each rank
    reduce-scatter            4 N d bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from extremax.nn.shared_classes import SoftmaxTerms

# Newer versions of torch have the first names, and warn of the others.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class ShardGroup:
    """Ranks of a process group that share `n_classes` classes, in blocks as ``torch.chunk`` makes them.

    Attributes
    ----------
    size, index : int
        Number of ranks, and the place of this one among them.
    start, stop : int
        Classes of this rank; the last ranks may have fewer than the others, or none.
    """

    def __init__(self, group: dist.ProcessGroup, n_classes: int) -> None:
        self.group = group
        self.size, self.index = dist.get_world_size(group), dist.get_rank(group)
        self.n_classes, self.width = n_classes, -(-n_classes // self.size)
        self.start = min(self.index * self.width, n_classes)
        self.stop = min(self.start + self.width, n_classes)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardGroup:
        return self  # copies of a layer talk to the same ranks

    @property
    def n_local(self) -> int:
        """Classes of this rank."""
        return self.stop - self.start

    def localize(self, y: Tensor) -> Tensor:
        """Return classes as places in the table of this rank, -1 for those of other ranks."""
        return torch.where((y >= self.start) & (y < self.stop), y - self.start, -1)

    def gather(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks (P, ...), which have one shape; one all-gather."""
        out = part.new_empty((self.size * len(part), *part.shape[1:]))
        _all_gather(out, part.contiguous(), group=self.group)
        return out.view(self.size, *part.shape)

    def gather_sizes(self, n: int, *, wants_grad: bool, device: torch.device) -> tuple[list[int], bool]:
        """Return the rows of each rank, and whether one wants their gradient; one all-gather of 8 bytes."""
        told: list[int] = self.gather(torch.tensor([2 * n + wants_grad], device=device)).flatten().tolist()
        if min(told) < 0:
            raise ValueError(
                f"rank {told.index(-1)} of {self.size} in the group refused what it was called with; its own"
                " message says why."
            )
        return [number // 2 for number in told], any(number % 2 for number in told)

    def refuse(self, device: torch.device) -> None:
        """Make `gather_sizes` of the other ranks raise; one all-gather of 8 bytes."""
        self.gather(torch.tensor([-1], device=device))

    def gather_parts(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all ranks (N, ...), in the order of the ranks; one all-gather, padded."""
        most = max(sizes)
        gathered = self.gather(_pad(part, most))
        if min(sizes) == most:
            return gathered.flatten(0, 1)
        return torch.cat([rows[:n] for rows, n in zip(gathered, sizes, strict=True)])

    def take(self, whole: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return this rank's rows of (N, ...)."""
        first = sum(sizes[: self.index])
        return whole[first : first + sizes[self.index]]

    def scatter_sum(self, whole: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the sum over ranks of this rank's rows of (N, ...); one reduce-scatter, padded."""
        most = max(sizes)
        padded = torch.cat([_pad(rows, most) for rows in torch.split(whole, list(sizes))])
        out = whole.new_empty((most, *whole.shape[1:]))
        _reduce_scatter(out, padded, group=self.group)
        return out[: sizes[self.index]]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks; one all-reduce."""
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.group)
        return total

    def maximum(self, values: Tensor) -> Tensor:
        """Return the maximum over ranks; one all-reduce."""
        top = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        return top


def gather_rows(h: Tensor, y: Tensor, shards: ShardGroup) -> tuple[Tensor, Tensor, list[int]]:
    """Return hidden states and targets of all ranks, and the number of rows of each.

    Two all-gathers: of the numbers of rows, then of hidden states and targets together, as bytes.  The
    gradient takes one reduce-scatter, and is that of the sum of the losses over the ranks; a rank takes part
    in it if any rank wants a gradient.
    """
    enabled = torch.is_grad_enabled()
    sizes, wanted = shards.gather_sizes(len(h), wants_grad=h.requires_grad and enabled, device=h.device)
    if wanted and enabled and not h.requires_grad:
        h = h.detach().requires_grad_()
    rows, targets = GatherRows.apply(h, y, shards, sizes)  # type: ignore[no-untyped-call]
    return rows, targets, sizes


class GatherRows(torch.autograd.Function):
    """Hidden states and targets of all ranks.

    The gradient that comes is of the mean over ranks (see `TakeRows`): it is multiplied by their number.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, y: Tensor, shards: ShardGroup, sizes: list[int]
    ) -> tuple[Tensor, Tensor]:
        ctx.shards, ctx.sizes = shards, sizes
        as_bytes = [_to_bytes(y.to(h.device, torch.int64).unsqueeze(1)), _to_bytes(h)]
        whole = shards.gather_parts(torch.cat(as_bytes, dim=1), sizes)
        targets = _from_bytes(whole[:, :8], torch.int64).squeeze(1)
        ctx.mark_non_differentiable(targets)
        return _from_bytes(whole[:, 8:], h.dtype), targets

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = ctx.shards.scatter_sum(_at_least_float32(grads[0]), ctx.sizes)
        return (total * ctx.shards.size).to(grads[0].dtype), None, None, None


class TakeRows(torch.autograd.Function):
    """Values (n,) of this rank, from those of all rows (N,).

    Backward gathers the gradients of all ranks, one all-gather, and divides by their number: each rank then
    sees the gradient of the mean over ranks, which is what ``DistributedDataParallel`` takes.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, shards: ShardGroup, sizes: list[int]) -> Tensor:
        ctx.shards, ctx.sizes = shards, sizes
        return shards.take(values, sizes).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.shards.gather_parts(grads[0], ctx.sizes) / ctx.shards.size, None, None


class SameRows(torch.autograd.Function):
    """Hidden states that all ranks have; backward sums their gradient over the ranks, one all-reduce."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, shards: ShardGroup) -> Tensor:
        ctx.shards = shards
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total: Tensor = ctx.shards.sum(_at_least_float32(grads[0]))
        return total.to(grads[0].dtype), None


class AverageGradient(torch.autograd.Function):
    """A table that other ranks have too; backward averages its gradient over them, one all-reduce."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, replicas: dist.ProcessGroup) -> Tensor:
        ctx.replicas = replicas
        return table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total = grads[0].coalesce() if grads[0].is_sparse else grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.replicas)
        return total / dist.get_world_size(ctx.replicas), None


def add_terms(terms: SoftmaxTerms, shards: ShardGroup) -> SoftmaxTerms:
    """Return the terms over the classes of all ranks; two all-reduces, and none for the gradient.

    The first has the maximum of log_sum, the second the sums of exp(log_sum - maximum), of the targets'
    scores, and with label smoothing of all scores.
    """
    total, own, score_sum = AddTerms.apply(*terms, shards)  # type: ignore[no-untyped-call]
    return SoftmaxTerms(total, own, None if terms.score_sum is None else score_sum)


class AddTerms(torch.autograd.Function):
    """See `add_terms`."""

    @staticmethod
    def forward(
        ctx: Any, log_sum: Tensor, own: Tensor, score_sum: Tensor | None, shards: ShardGroup
    ) -> tuple[Tensor, Tensor, Tensor]:
        top = shards.maximum(log_sum)
        parts = [(log_sum - top).exp(), own] + ([] if score_sum is None else [score_sum])
        sums = shards.sum(torch.stack(parts))
        total = top + sums[0].log()
        ctx.save_for_backward((log_sum - total).exp())
        ctx.smooths = score_sum is not None
        return total, sums[1].clone(), sums[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (fraction,) = ctx.saved_tensors
        return grads[0] * fraction, grads[1], grads[2] if ctx.smooths else None, None


def _pad(rows: Tensor, n: int) -> Tensor:
    if len(rows) == n:
        return rows
    return torch.cat([rows, rows.new_zeros((n - len(rows), *rows.shape[1:]))])


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _to_bytes(rows: Tensor) -> Tensor:
    """Return (n, bytes of a row)."""
    width = rows.shape[1] * rows.element_size()
    rows = rows.detach().contiguous()
    # `contiguous` leaves one number alone whatever its stride, and `view` wants a stride of 1.
    return rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).reshape(len(rows), width)


def _from_bytes(rows: Tensor, dtype: torch.dtype) -> Tensor:
    # A copy that starts where `dtype` may start.
    return rows.clone(memory_format=torch.contiguous_format).view(dtype)
