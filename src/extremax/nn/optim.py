"""RowAdagrad: Adagrad with one sum per row, on gradients that are whitened by their second moments.

With the gradient g_j of row j of a table, mean(.) over its columns, and u^2 the usual mean(g'_j^2) of a row
that is somebody's target,

    M   = running sum of g_j^T g_j over rows and steps,        g'_j = s g_j (M + ridge)^(-1/2),
    q_j = sum over the steps of mean(g'_j^2),                  w_j <- w_j - lr g'_j / sqrt(q_j + u^2 / 10).

The gradient of a class is a sum of hidden states, so that M is their second moment, weighted by how badly the
rows are predicted. Hidden states of a young encoder have most of their length in a few directions that all
rows share; without M, a step would mostly move the score of a class for all rows alike. The summand u^2 / 10
keeps the first step of a class that was merely drawn below that of a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_MEMORY = 0.99  # weight of the earlier steps, per step
_RIDGE = 1e-3  # of the mean eigenvalue, added to each
_BLOCK = 256  # columns that are whitened together, at most
_EVERY_STEP, _EVERY = 16, 16  # steps: at first a new root in each, then in every sixteenth
_ITERATIONS = 22  # of the root: enough for a ridge of 1e-3 and 256 columns
_FIRST_SUM = 0.1  # of the sums of a row, in units of u^2
_TINY = torch.finfo(torch.float32).tiny
_SCORE_RATE = 10.0  # of make_optimizer: what the first step of a target adds to its score


class _RowOptimizer(torch.optim.Optimizer):
    """An optimizer whose state keeps its own types, and is whole where a process has some of the rows."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the parameters that have a gradient; of `RowAdagrad`, the rows that have one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_all()
        return loss

    def _step_all(self) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state; sums of sharded tables are DTensors, which checkpoints split anew."""
        state = super().state_dict()
        for number, p in enumerate(self._params()):
            shard, known = getattr(p, "shard", None), state["state"].get(number)
            if shard is not None and known is not None:
                state["state"][number] = {**known, "sum": shard.share(known["sum"])}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, of any number of processes."""
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        params = dict(zip(names, self._params(), strict=False))  # torch compares their numbers
        taken = dict(state_dict["state"])
        for name, p in params.items():
            shard = getattr(p, "shard", None)
            if shard is not None and name in taken:
                taken[name] = {key: shard.take(value) for key, value in taken[name].items()}
        super().load_state_dict({**state_dict, "state": taken})
        # torch gives all of a state the type of its parameter, which sums and moments must not have.
        for name, known in taken.items():
            p = params[name]
            for key, value in known.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    self.state[p][key] = value.to(self.state[p][key].device, copy=True)

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


class RowAdagrad(_RowOptimizer):
    """Adagrad with one sum per row for tables with sparse gradients, such as those of output layers.

    Rows without a gradient do not move. The scale of the loss does not matter, unless it changes.

    Parameters
    ----------
    params
        Parameters, or groups of them: matrices (n_rows, n_columns) and vectors (n_rows,).
    lr : float
        Length of the first step of a target along a column. With hidden states of unit mean square, it adds
        about ``lr * n_columns`` to the score of its row.
    whiten : bool
        Whether to whiten the gradients of matrices.

    Examples
    --------
    >>> table = nn.Embedding(1000, 8, sparse=True)
    >>> optimizer = RowAdagrad(table.parameters(), lr=0.1)
    >>> before = table.weight.detach().clone()
    >>> table(torch.tensor([3, 5])).square().sum().backward()
    >>> optimizer.step()
    >>> (table.weight != before).any(dim=1).nonzero().flatten().tolist()
    [3, 5]
    """

    def __init__(self, params: Any, lr: float | Tensor = 0.08, *, whiten: bool = True) -> None:
        if lr < 0.0:
            raise ValueError(f"lr is {lr}; it must not be negative.")
        super().__init__(params, {"lr": lr, "whiten": whiten})

    def _step_all(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, p.grad, group)

    def _step(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            _start(state, p, whiten=group["whiten"])
        if len(state["sum"]) != len(p):  # the layer was resized
            state["sum"] = nn.functional.pad(state["sum"], (0, len(p) - len(state["sum"])))
        grad = grad.coalesce() if grad.is_sparse else grad
        rows = grad.indices()[0] if grad.is_sparse else torch.arange(len(p), device=p.device)
        grad = values_of(grad)
        g = grad.to(state["sum"].dtype).reshape(len(grad), math.prod(p.shape[1:]))
        g = torch.where(g.sum().isfinite(), g, 0.0)  # a loss that overflowed must not end up in the state
        state["step"] += 1
        shard = getattr(p, "shard", None)
        add = (lambda x: x) if shard is None else shard.sum  # over the ranks that have the other rows
        if "moments" in state:
            g = _whiten(g, state, add)
        squares = g.square().mean(dim=1)
        square_sum, fourth_sum = add(torch.stack([squares.sum(), squares.square().sum()]))
        unit = fourth_sum / square_sum.clamp(min=_TINY)
        state["unit"].lerp_(unit, max(1.0 / state["step"], 1.0 - _MEMORY))
        sums = squares + state["sum"][rows]
        g.mul_((sums + _FIRST_SUM * state["unit"]).clamp_(min=_TINY).rsqrt_().unsqueeze(1))
        g = g.reshape(grad.shape).mul_(-group["lr"]).to(p.dtype)
        state["sum"].index_copy_(0, rows, sums)
        p.index_add_(0, rows, g)


def _start(state: dict[str, Any], p: Tensor, *, whiten: bool) -> None:
    shapes: dict[str, tuple[int, ...]] = {"sum": (len(p),), "unit": ()}
    width = math.prod(p.shape[1:])
    if whiten and p.ndim == 2 and width > 1:
        block = max(k for k in range(1, min(width, _BLOCK) + 1) if width % k == 0)
        square = (width // block, block, block)
        shapes |= {"moments": square, "directions": square, "n_rows": ()}
    dtype = torch.promote_types(p.dtype, torch.float32)
    zeros = {name: torch.zeros(shape, dtype=dtype, device=p.device) for name, shape in shapes.items()}
    state.update(step=0, **zeros)


def _whiten(g: Tensor, state: dict[str, Any], add: Callable[[Tensor], Tensor]) -> Tensor:
    """Add the gradients (n, d) of a step to the moments, and return them whitened, by blocks of columns."""
    moments = state["moments"]
    n_blocks, block, _ = moments.shape
    parts = g.view(len(g), n_blocks, block).transpose(0, 1)
    squares = g.square().sum(dim=1)
    sums = add(
        torch.cat([(parts.mT @ parts).flatten(), torch.stack([squares.sum(), squares.square().sum()])])
    )
    square_sum, fourth_sum = sums[-2:]
    moments.mul_(_MEMORY).add_(sums[:-2].view_as(moments))
    # As many rows of one size would have the same two sums.
    state["n_rows"].mul_(_MEMORY).add_(square_sum.square() / fourth_sum.clamp(min=_TINY))
    if state["step"] <= _EVERY_STEP or state["step"] % _EVERY == 0:
        state["directions"].copy_(_inverse_root(moments, state["n_rows"]))
    return torch.bmm(parts, state["directions"]).transpose(0, 1).reshape(g.shape)


def _inverse_root(moments: Tensor, n_rows: Tensor) -> Tensor:
    """Return s (moments + ridge)^(-1/2), s such that the trace of each block stays the same.

    The ridge is larger while there are few rows: directions that none of them has must not get long steps.
    The root is found by the coupled iteration of Newton and Schulz, which takes products alone: an
    eigendecomposition would make a GPU wait.
    """
    block = moments.shape[-1]
    eye = torch.eye(block, dtype=moments.dtype, device=moments.device)
    mean = moments.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[:, None, None]
    moments = torch.where(mean > 0.0, moments / mean.clamp(min=_TINY), eye)  # as long as all gradients were 0
    a = moments + (_RIDGE + block / n_rows.clamp(min=1.0)) * eye
    norm = a.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    y, z = a / norm, eye.expand_as(a)
    for _ in range(_ITERATIONS):
        t = 1.5 * eye - 0.5 * (z @ y)
        y, z = y @ t, t @ z
    # The trace of z moments z.
    kept = (z @ moments * z.mT).sum(dim=(-2, -1), keepdim=True) / block
    return z * kept.clamp(min=_TINY).rsqrt()


class Combined(_RowOptimizer):
    """Several optimizers as one: their groups are its groups, and their state is its state."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = list(parts)
        for number, part in enumerate(parts):
            for group in part.param_groups:
                group["part"] = number
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        for number, part in enumerate(self.parts):
            part.param_groups = [group for group in self.param_groups if group["part"] == number]
            part.state = self.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as layers that are unfrozen later need: the first part steps it."""
        if "part" in param_group:  # of a part
            super().add_param_group(param_group)
        else:
            super().add_param_group({**self.parts[0].defaults, "part": 0, **param_group})
            self._share()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _step_all(self) -> None:
        for part in self.parts:
            part.step()


def make_optimizer(
    model: nn.Module,
    lr: float = 1e-3,
    *,
    row_lr: float | None = None,
    embedding_lr: float = 0.3,
    dense: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> torch.optim.Optimizer:
    """Create one optimizer for a model with output layers of extremax.

    Output layers and embeddings tied to them get sparse gradients and `RowAdagrad`, as do other embeddings
    with ``sparse=True``; all else gets `dense`. Schedulers, ``state_dict`` and ``zero_grad`` see one
    optimizer, with a group for each rate.

    Parameters
    ----------
    model : Module
        The whole model. Frozen parameters are left out, but for those of output layers, which do not move
        until they are unfrozen.
    lr : float
        Learning rate of `dense`.
    row_lr : float, optional
        Learning rate of output layers: 10 / in_features unless given.
    embedding_lr : float
        Learning rate of embeddings with ``sparse=True`` that are not tied.
    dense
        Optimizer class of the other parameters.
    **options
        For `dense`, such as ``weight_decay``.
    """
    from extremax.nn.layer import ExtremeSoftmax

    heads = [m for m in model.modules() if isinstance(m, ExtremeSoftmax)]
    if not heads:
        raise ValueError("model has no ExtremeSoftmax layer: use an optimizer of torch.optim.")
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    rates = {
        id(p): _SCORE_RATE / head.in_features if row_lr is None else row_lr
        for head in heads
        for p in head.parameters(recurse=False)
    }
    for module in (*heads, *(m for m in tables if id(m.weight) in rates)):
        module.sparse = True
    sparse = {id(m.weight) for m in tables if m.sparse} - rates.keys()
    others: list[Tensor] = []
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for p in model.parameters():
        if id(p) in rates or (id(p) in sparse and p.requires_grad):
            group = (embedding_lr, False) if id(p) in sparse else (rates[id(p)], True)
            groups.setdefault(group, []).append(p)
        elif p.requires_grad:
            others.append(p)
    rows = [{"params": params, "lr": rate, "whiten": whiten} for (rate, whiten), params in groups.items()]
    return Combined([*([dense(others, lr=lr, **options)] if others else []), RowAdagrad(rows)])


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor] | Tensor, max_norm: float) -> Tensor:
    """Scale gradients to a norm of at most `max_norm`, and return the norm before.

    ``torch.nn.utils.clip_grad_norm_`` does the same, but does not take sharded layers beside parameters of
    ``fully_shard``, nor sharded layers with dense gradients.
    """
    params: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    params = [p for p in params if p.grad is not None]
    total = torch.zeros((), device=params[0].device if params else None)
    for p in params:
        p.grad = p.grad.coalesce() if p.grad.is_sparse else p.grad
        square = values_of(p.grad).float().square().sum()
        square = square.full_tensor() if hasattr(square, "full_tensor") else square  # of fully_shard
        total += (p.shard.sum(square) if hasattr(p, "shard") else square).to(total.device)
    norm = total.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        values_of(p.grad).mul_(scale.to(p.device))
    return norm


def values_of(grad: Any) -> Any:
    """Return the numbers of a gradient, in the same memory."""
    return grad._values() if grad.is_sparse else grad


def _sparse_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the norm of a sparse gradient, over all ranks that have a part of it.

    torch lacks it, and its own ``clip_grad_norm_`` needs it.
    """
    if dim is not None or keepdim:
        raise NotImplementedError("Norms of sparse tensors are norms of all their values: give no dim.")
    norm: Tensor = torch.linalg.vector_norm(x.coalesce().values(), ord, dtype=dtype)
    shard = getattr(x, "shard", None)
    return norm if shard is None else torch.linalg.vector_norm(shard.gather(norm[None]), ord)


_norms: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
for _key in ("SparseCPU", "SparseCUDA"):
    if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::linalg_vector_norm", _key):
        _norms.impl("linalg_vector_norm", _sparse_norm, _key)
