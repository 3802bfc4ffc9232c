"""ShardedExtremeSoftmax: an output layer whose classes are split over the ranks of a process group.

Every rank scores the rows of all ranks with its own classes. The terms of the loss, a few numbers for each
row, are then added over the ranks; weights and their gradients never travel. The loss is the mean over the
rows of all ranks, the same number on each.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from extremax.nn.functional import Terms
from extremax.nn.layer import ExtremeSoftmax
from extremax.nn.optim import values_of
from extremax.nn.samplers import FrequencySampler, UniformSampler

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Newer versions of torch have the first names, and warn of the others.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Shard:
    """The block of `n_rows` rows that a rank holds, as ``torch.chunk`` cuts them.

    Attributes
    ----------
    size, rank : int
        Number of ranks, and the place of this one among them.
    start, stop : int
        Rows of this rank.
    """

    def __init__(self, group: dist.ProcessGroup | DeviceMesh | None, n_rows: int) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "ShardedExtremeSoftmax needs a process group: launch with torchrun and call"
                " torch.distributed.init_process_group first."
            )
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(group, DeviceMesh):
            if group.ndim != 1:
                raise ValueError(f"group is a mesh of {group.ndim} dimensions; it must have one.")
            group = group.get_group()
        self.group = cast("dist.ProcessGroup", dist.group.WORLD if group is None else group)
        self.size, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if self.size != dist.get_world_size():
            raise ValueError(
                f"group has {self.size} of {dist.get_world_size()} ranks: the others would hold copies of its"
                " classes, which drift apart. Split the classes over all ranks."
            )
        width = -(-n_rows // self.size)
        if (self.size - 1) * width >= n_rows:
            raise ValueError(f"n_classes is {n_rows}; {self.size} ranks would leave one without classes.")
        self.n_rows, self.start = n_rows, self.rank * width
        self.stop = min(self.start + width, n_rows)
        kind = "cpu" if dist.get_backend(self.group) == "gloo" else torch.accelerator.current_accelerator()
        self.mesh = DeviceMesh.from_group(self.group, str(kind))

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return self  # copies of a layer talk to the same ranks

    def gather(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks (size, ...), which have one shape."""
        out = part.new_empty((self.size * len(part), *part.shape[1:]))
        _all_gather(out, part.contiguous(), group=self.group)
        return out.view(self.size, *part.shape)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        total = value.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def share(self, local: Tensor) -> Tensor:
        """Return the DTensor of which this rank has `local`, in the same memory."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor import Shard as Placement

        shape = torch.Size((self.n_rows, *local.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local.detach(), self.mesh, [Placement(0)], run_check=False, shape=shape, stride=stride
        )

    def take(self, value: Any) -> Any:
        """Return this rank's rows of a DTensor or of a whole table, and all else as it is."""
        if hasattr(value, "full_tensor"):
            same = value.device_mesh.size() == self.size and value.placements[0].is_shard(0)
            value = value.to_local() if same else value.full_tensor()
        is_whole = isinstance(value, Tensor) and value.ndim > 0 and len(value) == self.n_rows
        return value[self.start : self.stop] if is_whole and self.size > 1 else value


class _GatherRows(torch.autograd.Function):
    """Rows (n, d) of all ranks, (size n, d), and the tables of this rank as they are.

    The loss of the ranks is one and the same, and ``DistributedDataParallel`` averages the gradients of an
    encoder over the ranks: the gradient of the rows is multiplied by their number. Gradients of tables that
    are not finite on one rank become NaN on all: a ``GradScaler`` asks its own rank alone, and must skip the
    step of all or of none.
    """

    @staticmethod
    def forward(ctx: Any, shard: Shard, h: Tensor, *tables: Tensor) -> tuple[Tensor, ...]:
        ctx.shard, rows = shard, shard.gather(h).flatten(0, 1)
        ctx.set_materialize_grads(False)
        if not ctx.needs_input_grad[1]:
            ctx.mark_non_differentiable(rows)
        return rows, *(table.view_as(table) for table in tables)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: Tensor | None, *tables: Tensor | None) -> tuple[Tensor | None, ...]:
        shard: Shard = ctx.shard
        wrong = [values_of(table).isfinite().all().logical_not() for table in tables if table is not None]
        spoilt = torch.stack(wrong).any() if wrong else torch.zeros((), dtype=torch.bool)
        if rows is None:
            grad, n_spoilt = None, shard.sum(spoilt.float())
        else:  # one number for each rank goes with the gradients of its rows
            sent = torch.cat([rows.reshape(shard.size, -1), spoilt.to(rows).expand(shard.size, 1)], dim=1)
            out = sent.new_empty(sent.shape[1])
            _reduce_scatter(out, sent.flatten(), group=shard.group)
            grad, n_spoilt = out[:-1].view(-1, rows.shape[1]) * shard.size, out[-1]
        factor = torch.where(n_spoilt > 0.0, torch.nan, 1.0)
        return None, grad, *(None if table is None else table * factor.to(table.dtype) for table in tables)


class ShardedExtremeSoftmax(ExtremeSoftmax):
    """`ExtremeSoftmax` whose classes are split over all ranks of ``torch.distributed``.

    Each rank holds a block of the classes, draws its part of the sampled ones among them, and is called with
    rows of its own, as many as the others; pad with `ignore_index` where there are fewer. Every call is a
    collective. The loss is the mean over the rows of all ranks, and `output` holds this rank's rows without
    a gradient.

    A training step makes three all-gathers (hidden states, targets, and two numbers for each row) and one
    reduce-scatter (gradients of the hidden states), and `RowAdagrad` three small all-reduces; nothing is read
    on the host. On the CPU the numbers of rows are compared first. The layer works inside
    ``DistributedDataParallel`` and ``fully_shard`` of the whole model, which both leave its parameters alone.
    Its state dict has DTensors: ``torch.distributed.checkpoint`` writes one checkpoint for all ranks, for any
    number of ranks to go on from, and loads into and from `ExtremeSoftmax`.

    Parameters
    ----------
    in_features, n_classes
        As in `ExtremeSoftmax`; classes of all ranks together.
    group : ProcessGroup or DeviceMesh, optional
        Ranks that share the classes: all ranks, which is also the default.
    sampler : FrequencySampler or UniformSampler, optional
        Of all classes; each rank draws its share.
    **options
        Of `ExtremeSoftmax`.

    Attributes
    ----------
    weight, bias : Parameter
        Rows of this rank.
    shard : Shard
        Which rows these are: ``shard.start`` to ``shard.stop - 1``.

    Examples
    --------
    Launch with ``torchrun --nproc-per-node=2``; one process is a group too.

    >>> import torch
    >>> from extremax.nn import ShardedExtremeSoftmax, make_optimizer
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> layer = ShardedExtremeSoftmax(16, 1000)
    >>> optimizer = make_optimizer(layer)
    >>> layer(torch.randn(32, 16), torch.randint(1000, (32,))).loss.backward()
    >>> optimizer.step()
    >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        sampler: FrequencySampler | None = None,
        **options: Any,
    ) -> None:
        shard = Shard(group, n_classes)
        sampler = UniformSampler(n_classes) if sampler is None else sampler
        self._check_sampler(sampler, n_classes)
        part = sampler.part(shard.start, shard.stop, -(-sampler.n_sampled // shard.size))
        super().__init__(in_features, shard.stop - shard.start, sampler=part, **options)
        self.out_features, self.shard = n_classes, shard
        self._mark()

    def _mark(self) -> None:
        """Let optimizers know that these are parts of tables, and fully_shard leave them alone."""
        for p in self.parameters(recurse=False):
            p.shard = self.shard  # type: ignore[attr-defined]
        with suppress(ImportError):  # where it is missing, fully_shard takes ignored_params
            from torch.distributed._composable.contract import REGISTRY_KEY

            self.__dict__[REGISTRY_KEY] = {"replicate": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._mark()

    def _gather(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        self._check_rows(h)
        tables: list[Any] = list(self.parameters(recurse=False))
        for p in tables:
            if p.requires_grad and not p._post_accumulate_grad_hooks:
                p.register_post_accumulate_grad_hook(_mark_gradient)
        rows, weight, *bias = _GatherRows.apply(self.shard, h, *tables)  # type: ignore[no-untyped-call]
        y = self.shard.gather(y).flatten()
        self._check_classes(y)
        return rows, y, weight, bias[0] if bias else None

    def _find(self, y: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        here = kept & (y >= self.shard.start) & (y < self.shard.stop)
        return here, torch.where(here, y - self.shard.start, 0)

    def _own(self, losses: Tensor) -> Tensor:
        return losses.detach().view(self.shard.size, -1)[self.shard.rank]

    def _check_rows(self, h: Tensor) -> None:
        """Refuse different numbers of rows, where asking costs little: gloo would end the process."""
        sizes = self.shard.gather(torch.tensor([len(h)])).flatten().tolist() if h.is_cpu else [0]
        if min(sizes) != max(sizes):
            raise ValueError(
                f"The ranks have different numbers of rows, {sizes}: give each as many, padded by targets"
                f" that are ignored ({self.ignore_index})."
            )

    def _check_classes(self, y: Tensor) -> None:
        """Refuse classes that no rank has; other devices must not wait for the host."""
        if y.is_cpu and len(wrong := y[(y != self.ignore_index) & ((y < 0) | (y >= self.out_features))]):
            raise IndexError(
                f"target {int(wrong[0])} is neither a class, 0 to {self.out_features - 1}, nor ignored"
                f" ({self.ignore_index})."
            )

    def _add(self, terms: Terms) -> Terms:
        """Add the terms of all ranks; the gradient of a rank's own terms needs no collective."""
        mine = torch.stack([term for term in terms if term is not None])
        parts = list(self.shard.gather(mine.detach()))
        parts[self.shard.rank] = mine
        log_sums, own, *score_sums = torch.stack(parts, dim=1)
        score_sum = score_sums[0].sum(dim=0) if score_sums else None
        return Terms(log_sums.logsumexp(dim=0), own.sum(dim=0), score_sum)

    def log_prob(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError(
            "No rank has the scores of all classes: use topk, or load the checkpoint into an ExtremeSoftmax."
        )

    def _best(self, h: Tensor, k: int) -> list[Tensor]:
        self._check_rows(h)
        values, indices, log_sums = super()._best(self.shard.gather(h).flatten(0, 1), k)
        pad = (0, k - values.shape[1])  # of a rank with fewer classes
        values = nn.functional.pad(values, pad, value=-torch.inf)
        indices = nn.functional.pad(indices + self.shard.start, pad)
        values, indices, log_sums = (
            self.shard.gather(part).chunk(self.shard.size, dim=1)[self.shard.rank]
            for part in (values, indices, log_sums)
        )
        best, places = values.transpose(0, 1).flatten(1).topk(k)
        classes = indices.transpose(0, 1).flatten(1).gather(1, places)
        return [best, classes, log_sums.logsumexp(dim=0)]

    def resize(self, n_classes: int, sampler: FrequencySampler | None = None) -> None:
        raise NotImplementedError("Resize an ExtremeSoftmax that has loaded the checkpoint of the ranks.")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, p in self.named_parameters(recurse=False):
            destination[prefix + name] = self.shard.share(p)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, _ in self.named_parameters(recurse=False):
            if prefix + name in state_dict:
                state_dict[prefix + name] = self.shard.take(state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._mark()


def _mark_gradient(p: Any) -> None:
    """Let norms of the gradient know that it is a part."""
    p.grad.shard = p.shard


class _Ignored:
    """Names of what DistributedDataParallel must leave alone in any module: it looks for them here.

    These are the parameters of sharded layers, and the tables of samplers, which it would send in every step
    though they never change. It asks the outermost module, which a layer inside of it does not know. A list
    that a user has set on a module hides this one.
    """

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> list[str]:
        return [
            f"{prefix}.{name}" if prefix else name
            for prefix, layer in (module.named_modules() if isinstance(module, nn.Module) else ())
            if isinstance(layer, ExtremeSoftmax)
            for name in (
                *(layer._parameters if isinstance(layer, ShardedExtremeSoftmax) else ()),
                *(f"sampler.{buffer}" for buffer in layer.sampler._buffers),
            )
        ]


nn.Module._ddp_params_and_buffers_to_ignore = _Ignored()  # type: ignore[attr-defined]
