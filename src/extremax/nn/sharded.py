"""ShardedExtremeSoftmax: an output layer whose classes are split over the ranks of a process group."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from extremax.nn.layer import (
    OutputLayer,
    check_class_counts,
    check_gradients,
    check_positive,
    gather,
    row_blocks,
    score_all,
)
from extremax.nn.layer_state import adapt_state
from extremax.nn.shard_group import (
    AverageGradient,
    SameRows,
    ShardGroup,
    TakeRows,
    add_terms,
    gather_rows,
)
from extremax.nn.sharded_step import (
    LocalStep,
    ReplicatedMoments,
    ReplicatedSize,
    StepInBackward,
    replicated_on,
)
from extremax.nn.shared_classes import (
    INITIAL_SQUARE,
    ClassDraws,
    SharedSet,
    SoftmaxTerms,
    add_targets,
    draw_key,
    remember,
    shared_terms,
    smoothed_losses,
)
from extremax.nn.softmax import KEPT_DRAWS, SoftmaxOutput
from extremax.tree.noise import class_weights
from extremax.types import Float32, Int32, Int64

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Checked = TypeVar("Checked")


class ShardedExtremeSoftmax(OutputLayer):
    """`ExtremeSoftmax` whose classes are split over the ranks of a process group.

    Rank r of P has a block of ceil(n_classes / P) weights and biases, as ``torch.chunk`` makes them, and
    draws its part of the classes of a step among its own: each with its exact inclusion probability, so that
    the sum over the ranks of exp(score) / probability has the sum of the full softmax as its expectation. The
    sets of different ranks are independent. Every method is a collective: all ranks of the group call it
    together, with rows or without.

    A training step makes 6 collectives with ``rows="own"``, where a rank has n rows of d features of b bytes
    and all ranks together have N; ranks with fewer rows than others pad theirs. In the forward pass, three
    numbers for each row in two all-reduces:

    - all-gather of n, 8 bytes from each rank,
    - all-gather of the rows, n (b d + 8) bytes from each rank,
    - all-reduce of the maximum, 4 N bytes,
    - all-reduce of the sum and of the target's score, 8 N bytes (12 N with label smoothing);

    in the backward pass:

    - all-gather of the gradients of the losses, 4 n bytes from each rank,
    - reduce-scatter of the gradient of the hidden states, 4 N d bytes.

    With ``rows="same"`` nothing is gathered: 3 collectives, the two all-reduces of the forward pass and an
    all-reduce of the gradient of the hidden states. Each step of `steps_per_batch` after the first makes two
    more in the backward pass, all-reduces of 4 N and 8 N bytes as in the forward pass. Whitening needs none:
    every rank sees all rows. Weights and their gradients do not travel, except on a mesh of two dimensions:
    there the gradient of each of the two tables takes an all-reduce over the other dimension. The exact loss
    in evaluation mode has the collectives of the forward pass; `predict_topk` has the gathers, and an
    all-gather of (16 k + 8) N bytes from each rank.

    Parameters
    ----------
    in_features : int
        Width of the hidden states.
    n_classes : int
        Classes 0 to n_classes - 1, on all ranks together.
    bias : bool
        Whether classes have a bias.
    mesh : DeviceMesh or ProcessGroup, optional
        Ranks that share the classes; unless given, all ranks. A mesh of two dimensions has copies of the
        shards along the dimension other than `class_dim`.
    class_dim : str or int, optional
        Dimension of the mesh that the classes are split over; needed where there are two.
    rows : {"own", "same"}
        "own": each rank is called with rows of its own, their number may differ, and the rows of all ranks
        are gathered. Losses are those of the rank's rows, and gradients the means over ranks, as with
        ``ExtremeSoftmax`` in ``DistributedDataParallel``. "same": the ranks of the group are called with the
        same rows, as in tensor parallelism; nothing is gathered.
    n_shared : int
        Classes that are drawn for a minibatch, at most; each rank draws ceil(n_shared / P), and compares all
        rows with their targets among its classes too, of which half as many count.
    class_counts : (n_classes,), optional
        Training rows of each class; unless given, all alike.
    class_exponent : float
        Of the class counts, in the choice of the classes.
    gradients : {"dense", "sparse", "fused"}
        "dense": parameters are DTensors, for optimizers that take them. "sparse": parameters are plain
        tensors of the rank's classes with sparse gradients, for ``SGD``, ``Adagrad`` and ``SparseAdam``; the
        state dict has DTensors. "fused": none; the backward pass itself steps the rank's classes by Adagrad
        with one sum per class.
    learning_rate : float
        Of ``gradients="fused"``, in units of the scores as in `ExtremeSoftmax`; assign to the attribute to
        change it.
    steps_per_batch : int
        Steps of the classes in one backward pass with ``gradients="fused"``, each on newly drawn classes, for
        the same hidden states.
    whiten : bool
        With ``gradients="fused"``, shorten steps along directions in which all hidden states are long, by the
        inverse square root of their second moments (in blocks of 256 features). Every rank computes it for
        the rows of all ranks, on its CPU.
    label_smoothing : float
        As in ``torch.nn.CrossEntropyLoss``, in training mode; not with ``gradients="fused"``.
    ignore_index : int
        Rows with this target are left out.
    device, dtype
        Of the parameters, as in ``torch.nn.Linear``.

    Attributes
    ----------
    weight, bias : Parameter
        (n_classes, in_features) and (n_classes,), or None: DTensors with placement ``Shard(0)``; see
        `gradients`.
    class_range : tuple
        First class of this rank, and the one after its last.

    Notes
    -----
    Draws come from torch's default generator and from the number of the rank: ranks draw differently, whether
    their seeds differ or not.

    Examples
    --------
    Launch with ``torchrun --nproc-per-node=2``; one process is a group too.

    >>> import torch
    >>> from extremax.nn import ShardedExtremeSoftmax
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> layer = ShardedExtremeSoftmax(in_features=16, n_classes=1000, n_shared=64)
    >>> hidden, targets = torch.randn(32, 16, requires_grad=True), torch.randint(1000, (32,))
    >>> layer(hidden, targets).loss.backward()
    >>> labels, log_prob = layer.predict_topk(hidden, k=5)
    >>> labels.shape
    torch.Size([32, 5])
    >>> torch.distributed.destroy_process_group()
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    class_counts: Tensor
    n_steps: Tensor
    squares: Tensor
    bias_squares: Tensor

    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        in_features: int,
        n_classes: int,
        bias: bool = True,
        *,
        mesh: DeviceMesh | dist.ProcessGroup | None = None,
        class_dim: str | int | None = None,
        rows: Literal["own", "same"] = "own",
        n_shared: int = 1536,
        class_counts: ArrayLike | None = None,
        class_exponent: float = 0.75,
        gradients: Literal["dense", "sparse", "fused"] = "dense",
        learning_rate: float = 10.0,
        steps_per_batch: int = 1,
        whiten: bool = True,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(
            in_features=in_features, n_classes=n_classes, n_shared=n_shared, steps_per_batch=steps_per_batch
        )
        check_gradients(gradients, label_smoothing)
        if rows not in ("own", "same"):
            raise ValueError(f"rows is {rows!r}; use 'own' or 'same'.")
        counts = check_class_counts(class_counts, n_classes)
        self._layout = Layout.of(mesh, class_dim, n_classes)
        if gradients == "fused" and self._layout.replicas is not None:
            raise ValueError(
                "gradients='fused' steps the shards of each rank alone, and a mesh of two dimensions has"
                " copies of them: use 'dense' or 'sparse', or a mesh of one dimension."
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.rows, self.n_shared, self.class_exponent = rows, n_shared, class_exponent
        self.gradients, self.learning_rate = gradients, learning_rate
        self.steps_per_batch = steps_per_batch
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index
        shards = self._layout.shards
        known = class_weights(counts, 1.0)
        prior = np.log(known / known.sum())
        self._counts = counts[shards.start : shards.stop].copy()
        self._prior = prior[shards.start : shards.stop].copy()

        def table(width: int | None, *, of: torch.dtype | None = None) -> Tensor:
            shape = (shards.n_local,) if width is None else (shards.n_local, width)
            return torch.empty(shape, device=device, dtype=of)

        self.weight = self._parameter(table(in_features, of=dtype))
        self.bias = self._parameter(table(None, of=dtype)) if bias else None
        self.register_buffer("class_counts", self._layout.share(table(None, of=torch.float32)))
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64, device=device))
        if gradients == "fused":
            self.register_buffer("squares", self._layout.share(table(1, of=torch.float32)))
            self.register_buffer("bias_squares", self._layout.share(table(None, of=torch.float32)))
        else:
            self.register_buffer("squares", torch.empty(0, 1, device=device))
            self.register_buffer("bias_squares", torch.empty(0, device=device))
        is_fused, place = gradients == "fused", replicated_on(device)
        self.hidden_moments = ReplicatedMoments(in_features, place) if whiten and is_fused else None
        self.hidden_size = ReplicatedSize(in_features, place) if is_fused and not whiten else None
        self._draws: ClassDraws | None = None
        self._kept: OrderedDict[tuple[float | bytes, ...], list[tuple[Int64, Float32]]] = OrderedDict()
        self.reset_parameters()

    def _parameter(self, local: Tensor) -> nn.Parameter:
        whole = local if self.gradients == "sparse" else self._layout.share(local)
        # The fused step is the optimizer of these parameters; no other must find them.
        return nn.Parameter(whole, requires_grad=self.gradients != "fused")

    def reset_parameters(self) -> None:
        """Set weights to zero and biases to log-frequencies, and forget steps, Adagrad's sums and moments."""
        with torch.no_grad():
            self.weight.zero_()
            self.n_steps.zero_()
            _local(self.squares).fill_(INITIAL_SQUARE)
            _local(self.bias_squares).fill_(INITIAL_SQUARE)
            _local(self.class_counts).copy_(torch.from_numpy(self._counts))
            if self._hidden_scale is not None:
                self._hidden_scale.reset()
            if self.bias is not None:
                _local(self.bias).copy_(torch.from_numpy(self._prior))
        self._draws = None
        self._kept.clear()

    @property
    def class_range(self) -> tuple[int, int]:
        """First class of this rank, and the one after its last."""
        return self._layout.shards.start, self._layout.shards.stop

    def extra_repr(self) -> str:
        start, stop = self.class_range
        return (
            f"in_features={self.in_features}, n_classes={self.n_classes}, bias={self.bias is not None},"
            f" n_shared={self.n_shared}, gradients={self.gradients!r}, rows={self.rows!r},"
            f" classes {start} to {stop - 1} here"
        )

    # -- forward

    @overload
    def forward(self, hidden: Tensor) -> Tensor: ...
    @overload
    def forward(self, hidden: Tensor, targets: Tensor) -> SoftmaxOutput: ...
    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor | SoftmaxOutput:
        """Return the loss of hidden states (..., in_features) and targets (...), or log p of all classes."""
        if targets is None:
            return self.log_prob(hidden)
        losses = self._losses(hidden, targets, exact=not self.training)
        return SoftmaxOutput(losses.mean(), losses)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _losses(self, hidden: Tensor, targets: Tensor, *, exact: bool) -> Tensor:
        h, y = self._agree(lambda: self._flat_pairs(hidden, targets))
        shards = self._layout.shards
        h, y, sizes = self._rows_of_all(h, y.to(h.device))
        super()._check_targets(y)
        labels = shards.localize(y)
        here = (labels >= 0).nonzero().squeeze(1)
        weight, bias = self._tables()
        smoothing = 0.0 if exact else self.label_smoothing
        sets = None if exact else self._class_sets(y, labels[here])
        if sets is not None and self.gradients == "fused":
            terms = self._fused_terms(h, labels, sets)
        elif shards.n_local == 0:
            terms = _no_terms(h, weight, bias, smooths=smoothing > 0.0)
        elif sets is None:
            terms = self._exact_terms(h, labels, here, weight, bias)
        else:
            how = {"smooths": smoothing > 0.0, "sparse": self.gradients == "sparse"}
            terms = shared_terms(h, labels, weight, bias, sets[0], here=here, **how)
        losses = smoothed_losses(add_terms(terms, shards), smoothing, self.n_classes)
        if sizes is None:
            return losses
        own: Tensor = TakeRows.apply(losses, shards, sizes)  # type: ignore[no-untyped-call]
        return own

    def _agree(self, check: Callable[[], Checked]) -> Checked:
        """Return the checked input; if the check raises here, ranks that wait for these rows raise too."""
        try:
            return check()
        except (TypeError, ValueError):
            if self.rows == "own":
                self._layout.shards.refuse(_local(self.weight).device)
            raise

    def _check_targets(self, y: Tensor) -> None:
        super()._check_targets(y[:0])  # the type; all ranks check the range together, and say the same

    def _rows_of_all(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[int] | None]:
        """Return all rows that the ranks have together, and how many each has, or None if all have them."""
        if self.rows == "own":
            return gather_rows(h, y, self._layout.shards)
        same: Tensor = SameRows.apply(h, self._layout.shards)  # type: ignore[no-untyped-call]
        return same, y, None

    def _tables(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases of this rank, whose gradients copies on other ranks average."""
        weight, bias = _local(self.weight), None if self.bias is None else _local(self.bias)
        replicas = self._layout.replicas
        if replicas is not None:
            weight = AverageGradient.apply(weight, replicas)  # type: ignore[no-untyped-call]
            if bias is not None:
                bias = AverageGradient.apply(bias, replicas)  # type: ignore[no-untyped-call]
        return weight, bias

    def _exact_terms(
        self, h: Tensor, labels: Tensor, here: Tensor, weight: Tensor, bias: Tensor | None
    ) -> SoftmaxTerms:
        def log_sum(rows: Tensor) -> Tensor:
            return torch.logsumexp(score_all(rows, weight, bias), dim=1)

        if torch.is_grad_enabled():
            total = log_sum(h)
        else:
            parts = [log_sum(h[a:b]) for a, b in self._blocks(len(h))]
            total = torch.cat(parts) if parts else log_sum(h)
        with torch.autocast(h.device.type, enabled=False):
            y = labels[here]
            own = (h[here].to(weight.dtype) * weight[y]).sum(dim=1).to(total.dtype)
            if bias is not None:
                own = own + bias[y].to(total.dtype)
        return SoftmaxTerms(total, own.new_zeros(len(h)).index_copy(0, here, own), None)

    def _fused_terms(self, h: Tensor, labels: Tensor, sets: Sequence[SharedSet]) -> SoftmaxTerms:
        scale = self._hidden_scale
        assert scale is not None  # with fused steps
        step = LocalStep(
            sets=sets,
            shards=self._layout.shards,
            weight=_local(self.weight).detach(),
            bias=None if self.bias is None else _local(self.bias).detach(),
            squares=_local(self.squares),
            bias_squares=_local(self.bias_squares),
            row_scale=scale,
            learning_rate=float(self.learning_rate),
        )
        # A backward pass must come even where nothing else wants a gradient.
        wanted = torch.zeros((), requires_grad=torch.is_grad_enabled())
        found = StepInBackward.apply(h, labels, step, wanted)  # type: ignore[no-untyped-call]
        return SoftmaxTerms(found[0], found[1], None)

    def _class_sets(self, y: Tensor, own: Tensor) -> list[SharedSet]:
        """Draw this rank's classes of a training step, given the targets of all rows, and count it.

        ``own`` are the targets among this rank's classes, as places in its table. A rank without classes
        takes its random number and counts the step too.

        Activation checkpointing repeats a forward pass with the same random numbers and targets, and must get
        the same classes: a pair of both that came before gives the sets that it gave then.
        """
        seed = int(torch.randint(1 << 62, ()))
        key = draw_key([seed], y)
        if key not in self._kept:
            self.n_steps += 1
            drawn = self._draw_classes(seed, own.cpu().numpy())
            sets = [(classes.astype(np.int64), minus_log_pi) for classes, minus_log_pi in drawn]
            remember(self._kept, key, sets, KEPT_DRAWS)
        tensors = [[torch.from_numpy(part).to(y.device) for part in kept] for kept in self._kept[key]]
        return [SharedSet(*each) for each in tensors]

    def _draw_classes(self, seed: int, own: Int64) -> list[tuple[Int32, Float32]]:
        n_sets = self.steps_per_batch if self.gradients == "fused" else 1
        if self._layout.shards.n_local == 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32))] * n_sets
        draws = self._current_draws()
        positions = np.random.default_rng([seed, dist.get_rank()]).random((n_sets, 2))
        sets = [draws.draw(position) for position in positions]
        if draws.size == draws.n_classes:
            return sets
        return [add_targets(drawn, own, draws.size // 2) for drawn in sets]

    def _current_draws(self) -> ClassDraws:
        if self._draws is None:
            counts = _local(self.class_counts).cpu().numpy().astype(np.float64)
            size = -(-self.n_shared // self._layout.shards.size)
            self._draws = ClassDraws(class_weights(counts, self.class_exponent), size)
        return self._draws

    # -- prediction

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Return log p(y|h) of every class, (..., n_classes), without a gradient.

        Takes memory for the scores of all rows of all ranks and all classes: for few classes.
        """
        shards = self._layout.shards
        with torch.no_grad():
            h, sizes = self._hidden_of_all(hidden)
            part = torch.full((shards.width, len(h)), -math.inf, device=h.device)
            part[: shards.n_local] = score_all(h, *self._tables()).T
            whole = shards.gather(part).flatten(0, 1)[: self.n_classes].T
            log_prob = F.log_softmax(whole if sizes is None else shards.take(whole, sizes), dim=1)
        return log_prob.reshape(*hidden.shape[:-1], self.n_classes)

    def target_log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return log p(target|h) of each row of this rank (n,), over all classes, without a gradient.

        Ignored rows are left out.
        """
        with torch.no_grad():
            losses: Tensor = self._losses(hidden, targets, exact=True)
        return -losses

    def log_likelihood(self, hidden: Tensor, targets: Tensor) -> float:
        """Return the mean of log p(target|h) over the rows of all ranks of the group."""
        values = self.target_log_prob(hidden, targets).double()
        sums = torch.stack([values.sum(), values.new_tensor(len(values))])
        total, n = self._layout.shards.sum(sums).tolist()
        if n == 0:
            raise ValueError("A mean over no rows is not defined; pass at least one row that is not ignored.")
        return float(total / n)

    def predict_topk(self, hidden: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        """Return the k most probable classes of each hidden state and their log-probabilities.

        Both are (..., k), best first.  Each rank finds the best k of its classes, and all merge them.
        """
        self._check_k(k)
        shards = self._layout.shards
        with torch.no_grad():
            h, sizes = self._hidden_of_all(hidden)
            gathered = shards.gather(self._best_here(h, k))
            if sizes is not None:
                gathered = shards.take(gathered.transpose(0, 1), sizes).transpose(0, 1)
            log_sum = torch.logsumexp(gathered[..., -1], dim=0)
            scores, classes = (gathered[..., a : a + k].transpose(0, 1).flatten(1) for a in (0, k))
            best, place = scores.topk(k, dim=1)
            labels = classes.gather(1, place).long()
        shape = (*hidden.shape[:-1], k)
        return labels.reshape(shape), (best - log_sum.unsqueeze(1)).float().reshape(shape)

    def _best_here(self, h: Tensor, k: int) -> Tensor:
        """Return scores and classes of the best of this rank, and the log of its sum: (n, 2 k + 1)."""
        shards = self._layout.shards
        out = torch.full((len(h), 2 * k + 1), -math.inf, dtype=torch.float64, device=h.device)
        n, tables = min(k, shards.n_local), self._tables()
        for a, b in self._blocks(len(h)):
            if n > 0:
                scores = score_all(h[a:b], *tables)
                out[a:b, :n], places = scores.topk(n, dim=1)
                out[a:b, k : k + n] = (places + shards.start).double()
                out[a:b, -1] = torch.logsumexp(scores, dim=1)
        return out

    def _hidden_of_all(self, hidden: Tensor) -> tuple[Tensor, list[int] | None]:
        h = self._agree(lambda: self._flat(hidden))
        if self.rows == "same":
            return h, None
        no_targets = torch.zeros(len(h), dtype=torch.int64, device=h.device)
        h, _, sizes = gather_rows(h, no_targets, self._layout.shards)
        return h, sizes

    def _blocks(self, n: int) -> Iterator[tuple[int, int]]:
        return row_blocks(n, self._layout.shards.n_local)

    # -- state

    def unsharded_state_dict(self) -> dict[str, Tensor]:
        """Return the state of an `ExtremeSoftmax` with the same weights, on every rank.

        ``load_state_dict`` of this layer takes such a state too.
        """
        return {name: gather(value) for name, value in self.state_dict().items()}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in ("weight", "bias") if self.gradients == "sparse" else ():
            if prefix + name in destination:
                destination[prefix + name] = self._layout.share(destination[prefix + name].detach())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the state of an `ExtremeSoftmax` too, and of a layer with other `gradients` or `whiten`."""
        self._draws = None
        self._kept.clear()
        adapt_state(self, state_dict, prefix)
        self._layout.take_shards(state_dict, prefix, dict(self.named_parameters(recurse=False)))
        self._layout.take_shards(state_dict, prefix, dict(self.named_buffers(recurse=False)))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@dataclass(frozen=True)
class Layout:
    """Where tables are: split over the ranks of `shards`, copied over those of `replicas`."""

    mesh: DeviceMesh
    class_dim: int
    shards: ShardGroup
    replicas: dist.ProcessGroup | None

    @classmethod
    def of(
        cls, mesh: DeviceMesh | dist.ProcessGroup | None, class_dim: str | int | None, n_classes: int
    ) -> Layout:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "ShardedExtremeSoftmax needs a process group: launch with torchrun and call"
                " torch.distributed.init_process_group before."
            )
        from torch.distributed.device_mesh import DeviceMesh

        if not isinstance(mesh, DeviceMesh):
            group = dist.group.WORLD if mesh is None else mesh
            device = "cpu" if dist.get_backend(group) == "gloo" else torch.accelerator.current_accelerator()
            mesh = DeviceMesh.from_group(
                cast("dist.ProcessGroup", group), device if isinstance(device, str) else str(device)
            )
        dim = _dimension(mesh, class_dim)
        replicas = mesh.get_group(1 - dim) if mesh.ndim == 2 else None
        return cls(mesh, dim, ShardGroup(mesh.get_group(dim), n_classes), replicas)

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:
        return self  # copies of a layer talk to the same ranks

    def share(self, local: Tensor) -> Tensor:
        """Return the DTensor (n_classes, ...) of which this rank has `local`, in the same memory."""
        from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

        placements: list[Placement] = [Replicate() for _ in range(self.mesh.ndim)]
        placements[self.class_dim] = Shard(0)
        shape = torch.Size((self.shards.n_classes, *local.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local, self.mesh, placements, run_check=False, shape=shape, stride=tuple(stride)
        )

    def take_shards(self, state: dict[str, Any], prefix: str, wanted: Mapping[str, Tensor]) -> None:
        """Replace the entries of a state dict by what tensors of the given names take."""
        for name, tensor in wanted.items():
            value = state.get(prefix + name)
            if value is None:
                continue
            is_sharded, comes_sharded = hasattr(tensor, "to_local"), hasattr(value, "to_local")
            if is_sharded and not comes_sharded and value.shape == tensor.shape:
                local = value[self.shards.start : self.shards.stop]
                state[prefix + name] = self.share(local)  # moves it to the device of the mesh
            elif not is_sharded and comes_sharded:
                state[prefix + name] = _local(value)
            elif not is_sharded and tensor.ndim > 0 and len(value) == self.shards.n_classes:
                state[prefix + name] = value[self.shards.start : self.shards.stop]


def _dimension(mesh: DeviceMesh, class_dim: str | int | None) -> int:
    names = mesh.mesh_dim_names or ()
    if mesh.ndim == 1:
        return 0
    if mesh.ndim != 2:
        raise ValueError(f"mesh has {mesh.ndim} dimensions; ShardedExtremeSoftmax takes one or two.")
    dim = names.index(class_dim) if class_dim in names else class_dim
    if dim not in (0, 1):
        raise ValueError(
            f"class_dim is {class_dim!r}; name the dimension of the mesh that the classes are split over:"
            f" {' or '.join(map(repr, names or (0, 1)))}."
        )
    return int(dim)


# -- what a rank computes


def _local(table: Tensor) -> Tensor:
    to_local = getattr(table, "to_local", None)
    return table if to_local is None else cast("Tensor", to_local())


def _no_terms(h: Tensor, weight: Tensor, bias: Tensor | None, *, smooths: bool) -> SoftmaxTerms:
    """Return the terms of a rank without classes, linked to all that other ranks differentiate."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    zeros = h[:, :0].sum(dim=1).to(dtype) + weight.sum().to(dtype)
    zeros = zeros if bias is None else zeros + bias.sum().to(dtype)
    return SoftmaxTerms(torch.full_like(zeros, -math.inf), zeros, zeros.clone() if smooths else None)
