"""ExtremeSoftmax: an output layer whose training step scores the classes that a minibatch shares.

The score of class y for a hidden state h is s_y(h) = h.w_y + b_y, and p(y|h) is the softmax of the scores. A
training step compares each row with its target and with one set of classes for all rows, whose scores one
matrix product makes. They are drawn by a power of the class frequencies. Inclusion probabilities are exact,
and so is the loss in evaluation mode.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from extremax.kernels.row_updates import ModelArrays
from extremax.nn.fused_step import FusedArguments, FusedStep
from extremax.nn.hidden_moments import HiddenMoments, HiddenSize
from extremax.nn.layer import (
    OutputLayer,
    check_class_counts,
    check_gradients,
    check_positive,
    copy_into,
    gather,
    n_processes,
    row_blocks,
    score_all,
)
from extremax.nn.layer_state import adapt_state
from extremax.nn.shared_classes import (
    INITIAL_SQUARE,
    ClassDraws,
    SharedSet,
    add_targets,
    draw_key,
    padded,
    remember,
    shared_losses,
)
from extremax.runtime.threads import resolve_threads
from extremax.tree.noise import class_weights
from extremax.types import Float32, Int32

# n_shared="auto": first classes of fused steps, and how many at most. A young layer learns more from many
# steps than from many classes, if a minibatch makes two; later, few classes make log Z too small, and the
# encoder too sure: lab/notes.md.
_FIRST_SHARED, _MOST_SHARED = 512, 2048
_FIRST_STEPS = 1024  # training steps on the first number
_EXACT_CLASSES = 1024  # no more classes than this are all compared
_LATER_SHARE = 4  # later steps of a minibatch draw a quarter of the classes
_GOLDEN = 0.6180339887498949  # multiples of it are far apart, modulo 1
KEPT_DRAWS = 64  # sets that activation checkpointing may ask for again


class SoftmaxOutput(NamedTuple):
    """What a forward pass with targets returns.

    Attributes
    ----------
    loss : scalar
        Mean over the rows; NaN where all are ignored, as in ``torch.nn.CrossEntropyLoss``.
    losses : (n,)
        Loss of each row; ignored rows are left out.
    """

    loss: Tensor
    losses: Tensor


class StepSets(NamedTuple):
    """Class sets of a training step: the most classes of the first, and classes and -log pi of each."""

    n_drawn: int
    sets: list[tuple[Int32, Float32]]


class ExtremeSoftmax(OutputLayer):
    """Softmax over `n_classes`, trained on classes that the rows of a minibatch share.

    ``layer(hidden, targets)`` returns a `SoftmaxOutput`: in training mode with the estimated loss, in
    evaluation mode with the exact negative log-likelihood. ``layer(hidden)`` returns the log-probabilities of
    all classes. Draws come from torch's default generator: ``torch.manual_seed`` repeats them.

    Parameters
    ----------
    in_features : int
        Width of the hidden states.
    n_classes : int
        Classes 0 to n_classes - 1.
    bias : bool
        Whether classes have a bias.
    n_shared : int or "auto"
        Classes that are drawn for a minibatch, at most. With all classes the loss is the exact softmax.
        "auto": 2,048, but 512 in the first 1,024 steps of ``gradients="fused"``; all, where there are no more
        than 1,024 classes.
    class_counts : (n_classes,), optional
        Training rows of each class; unless given, all alike.
    class_exponent : float
        Of the class counts, in the choice of the classes.
    gradients : {"dense", "sparse", "fused"}
        Dense gradients, for any optimizer and for ``DistributedDataParallel`` and FSDP; sparse ones, for
        ``SGD``, ``Adagrad`` and ``SparseAdam``; or none: the backward pass itself steps the classes of the
        minibatch by Adagrad with one sum per class, which needs no time in proportion to n_classes (float32
        on the CPU, one process). These steps do not depend on the scale of the loss.
    learning_rate : float
        Of ``gradients="fused"``: about what the first step of a class adds to the score of its row, where
        hidden states have a mean square of 1 or more; less where it is smaller. Assign to the attribute to
        change it.
    steps_per_batch : int
        Steps of the classes in one backward pass with ``gradients="fused"``, for the same hidden states. Each
        after the first draws a quarter as many classes anew, and compares all rows with the targets of the
        others too, of which the n_shared / 2 most frequent ones count. More than two pay where the encoder
        takes far longer than the layer: classes keep up with hidden states that change fast.
    whiten : bool
        With ``gradients="fused"``, shorten steps along directions in which all hidden states are long, by the
        inverse square root of their second moments (in blocks of 256 features).
    label_smoothing : float
        As in ``torch.nn.CrossEntropyLoss``, in training mode.
    ignore_index : int
        Rows with this target are left out.
    n_jobs : int, optional
        Threads of the fused step, which takes no more than torch has.
    device, dtype
        Of the parameters, as in ``torch.nn.Linear``.

    Attributes
    ----------
    weight, bias : Parameter
        (n_classes, in_features) and (n_classes,), or None.

    Examples
    --------
    >>> import torch
    >>> from extremax.nn import ExtremeSoftmax
    >>> layer = ExtremeSoftmax(in_features=16, n_classes=1000, n_shared=64)
    >>> hidden, targets = torch.randn(32, 16, requires_grad=True), torch.randint(1000, (32,))
    >>> layer(hidden, targets).loss.backward()
    >>> labels, log_prob = layer.predict_topk(hidden, k=5)
    >>> labels.shape
    torch.Size([32, 5])
    >>> exact = layer.eval()(hidden, targets).loss
    >>> bool(torch.isclose(exact, torch.nn.functional.nll_loss(layer(hidden), targets)))
    True
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
        n_shared: int | Literal["auto"] = "auto",
        class_counts: ArrayLike | None = None,
        class_exponent: float = 0.75,
        gradients: Literal["dense", "sparse", "fused"] = "dense",
        learning_rate: float = 10.0,
        steps_per_batch: int = 2,
        whiten: bool = True,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        n_jobs: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive(
            in_features=in_features,
            n_classes=n_classes,
            n_shared=None if n_shared == "auto" else n_shared,
            steps_per_batch=steps_per_batch,
        )
        check_gradients(gradients, label_smoothing)
        if gradients == "fused" and dtype not in (None, torch.float32):
            raise ValueError(f"gradients='fused' needs parameters in float32, and dtype is {dtype}.")
        counts = check_class_counts(class_counts, n_classes)
        self.in_features = in_features
        self.n_classes = n_classes
        self.n_shared = n_shared
        self.class_exponent = class_exponent
        self.gradients = gradients
        self.learning_rate = learning_rate
        self.steps_per_batch = steps_per_batch
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self.n_jobs = n_jobs
        self._counts = counts
        # The fused step is the optimizer of these parameters; no other must find them.
        is_fused = gradients == "fused"
        table = torch.empty(n_classes, in_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(table, requires_grad=not is_fused)
        self.bias = (
            nn.Parameter(torch.empty(n_classes, device=device, dtype=dtype), requires_grad=not is_fused)
            if bias
            else None
        )
        self.register_buffer("class_counts", torch.empty(n_classes, device=device))
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64, device=device))
        n_sums = n_classes if is_fused else 0
        self.register_buffer("squares", torch.empty(n_sums, 1, device=device))
        self.register_buffer("bias_squares", torch.empty(n_sums, device=device))
        self.hidden_moments = HiddenMoments(in_features, device) if whiten and is_fused else None
        self.hidden_size = HiddenSize(in_features, device) if is_fused and not whiten else None
        self._draws: dict[int, ClassDraws] = {}
        self._kept: OrderedDict[tuple[float | bytes, ...], StepSets] = OrderedDict()
        self._place, self._no_biases = np.empty(0, np.int32), np.empty(0, np.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weights to zero and biases to log-frequencies, and forget steps and Adagrad's sums."""
        with torch.no_grad():
            self.weight.zero_()
            self.n_steps.zero_()
            self.squares.fill_(INITIAL_SQUARE)
            self.bias_squares.fill_(INITIAL_SQUARE)
            self.class_counts.copy_(torch.from_numpy(self._counts))
            if self._hidden_scale is not None:
                self._hidden_scale.reset()
            if self.bias is not None:
                known = class_weights(self._counts, 1.0)
                copy_into(self.bias, torch.from_numpy(np.log(known / known.sum())))
        self._draws = {}
        self._kept.clear()

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, n_classes={self.n_classes}, bias={self.bias is not None},"
            f" n_shared={self.n_shared!r}, gradients={self.gradients!r}"
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state; what a layer with other `gradients` or `whiten` lacks starts anew."""
        self._draws = {}
        self._kept.clear()
        adapt_state(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # -- forward

    @overload
    def forward(self, hidden: Tensor) -> Tensor: ...
    @overload
    def forward(self, hidden: Tensor, targets: Tensor) -> SoftmaxOutput: ...
    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor | SoftmaxOutput:
        """Return the loss of hidden states (..., in_features) and targets (...), or log p of all classes."""
        if targets is None:
            return self.log_prob(hidden)
        h, y = self._kept_pairs(hidden, targets)
        if not self.training:
            losses = self._exact_losses(h, y)
        elif self.gradients != "dense" and n_processes() > 1:
            raise RuntimeError(
                f"gradients={self.gradients!r} trains in one process; use 'dense' with"
                " DistributedDataParallel or FSDP, or ShardedExtremeSoftmax."
            )
        elif self.gradients == "fused":
            losses = self._fused_losses(h, y)
        else:
            shared = self._shared_set(h.device, y)
            weight, bias = self._tables()
            losses = shared_losses(
                h,
                y,
                weight,
                bias,
                shared,
                label_smoothing=self.label_smoothing,
                sparse=self.gradients == "sparse",
            )
        return SoftmaxOutput(losses.mean(), losses)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _kept_pairs(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # The number of rows that are not ignored depends on the data.
        h, y = self._flat_pairs(hidden, targets)
        return h, y.to(h.device)

    def _tables(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases, gathered from all processes where FSDP shards them."""
        return gather(self.weight), None if self.bias is None else gather(self.bias)

    def _exact_losses(self, h: Tensor, y: Tensor) -> Tensor:
        """Return -log p(target|h) of each row, over all classes."""
        if not torch.is_grad_enabled():
            return -self.target_log_prob(h, y)
        return -self._log_prob_all(h).gather(1, y.unsqueeze(1)).squeeze(1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _fused_losses(self, h: Tensor, y: Tensor) -> Tensor:
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            raise RuntimeError(
                f"gradients='fused' needs weights in float32 on the CPU; these are {self.weight.dtype} on"
                f" {self.weight.device}. Use 'dense' or 'sparse'."
            )
        scale = self._hidden_scale
        assert scale is not None  # with fused steps
        sets = self._choose(y).sets
        if len(self._place) == 0:
            self._place = np.full(self.n_classes, -1, np.int32)
            self._no_biases = np.zeros(self.n_classes if self.bias is None else 0, np.float32)
        biases = self._no_biases if self.bias is None else self.bias.detach().numpy()
        tables = (self.weight.detach().numpy(), biases, self.squares.numpy(), self.bias_squares.numpy())
        step = FusedArguments(
            sets=sets,
            model=ModelArrays(*tables),
            place=self._place,
            scale=scale,
            learning_rate=float(self.learning_rate),
            has_bias=self.bias is not None,
            n_threads=min(resolve_threads(self.n_jobs), torch.get_num_threads()),
        )
        # A backward pass must come even where nothing else wants a gradient.
        wanted = torch.zeros((), requires_grad=torch.is_grad_enabled())
        losses: Tensor = FusedStep.apply(h, y, step, wanted)  # type: ignore[no-untyped-call]
        return losses

    # -- classes of a step

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _shared_set(self, device: torch.device, y: Tensor) -> SharedSet:
        n_drawn, (drawn,) = self._choose(y)
        return padded(*drawn, n_drawn, device)

    def _n_drawn(self) -> int:
        """Return how many classes the next training step draws."""
        if self.n_shared != "auto":
            return min(self.n_shared, self.n_classes)
        if self.n_classes <= _EXACT_CLASSES:
            return self.n_classes
        is_young = self.gradients == "fused" and int(self.n_steps) < _FIRST_STEPS
        return min(_FIRST_SHARED if is_young else _MOST_SHARED, self.n_classes)

    def _choose(self, y: Tensor) -> StepSets:
        """Draw the class sets of a training step, and count it.

        Activation checkpointing repeats a forward pass with the same random numbers and targets, and must get
        the same classes: what was drawn for them before.
        """
        rank = torch.distributed.get_rank() if n_processes() > 1 else 0
        # Processes with the same seed must draw different classes.
        numbers = torch.rand(2, dtype=torch.float64).numpy()
        key = draw_key([*numbers, rank], y)
        if key in self._kept:
            return self._kept[key]
        n_drawn, n_sets = self._n_drawn(), self.steps_per_batch if self.gradients == "fused" else 1
        self.n_steps.add_(1)
        sizes = [n_drawn] + [-(-n_drawn // _LATER_SHARE)] * (n_sets - 1)
        labels = y.cpu().numpy()
        sets = [
            draws.draw((numbers + (rank * n_sets + i) * _GOLDEN) % 1.0)
            for i, draws in enumerate(self._current_draws(sizes))
        ]
        # As negatives of a first step, targets do not repay their share of the product: lab/notes.md.
        sets[1:] = [add_targets(drawn, labels, max(n_drawn // 2, 1)) for drawn in sets[1:]]
        return remember(self._kept, key, StepSets(n_drawn, sets), KEPT_DRAWS)

    def _current_draws(self, sizes: Sequence[int]) -> list[ClassDraws]:
        """Return the draws of sets of these sizes, and forget those of others."""
        if self._draws.keys() != set(sizes):
            weights = class_weights(self.class_counts.cpu().numpy().astype(np.float64), self.class_exponent)
            self._draws = {size: ClassDraws(weights, size) for size in set(sizes)}
        return [self._draws[size] for size in sizes]

    # -- prediction

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Return log p(y|h) of every class, (..., n_classes).

        Differentiable in hidden states and weights; takes time and memory in proportion to n_classes.
        """
        h = self._flat(hidden)
        return self._log_prob_all(h).reshape(*hidden.shape[:-1], self.n_classes)

    def _log_prob_all(self, h: Tensor) -> Tensor:
        return F.log_softmax(score_all(h, *self._tables()), dim=1)

    def target_log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return log p(target|h) of each row (n,), over all classes, without a gradient.

        Ignored rows are left out.
        """
        h, y = self._flat_pairs(hidden, targets)
        with torch.no_grad():
            parts = [
                self._log_prob_all(h[a:b]).gather(1, y[a:b, None].to(h.device)).squeeze(1)
                for a, b in row_blocks(len(h), self.n_classes)
            ]
        return torch.cat(parts) if parts else torch.empty(0, device=h.device)

    def log_likelihood(self, hidden: Tensor, targets: Tensor) -> float:
        """Return the mean of log p(target|h) over the rows."""
        values = self.target_log_prob(hidden, targets)
        if len(values) == 0:
            raise ValueError("A mean over no rows is not defined; pass at least one row that is not ignored.")
        return float(values.double().mean())

    def predict_topk(self, hidden: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        """Return the k most probable classes of each hidden state and their log-probabilities.

        Both are (..., k), best first.
        """
        self._check_k(k)
        h = self._flat(hidden)
        shape = (*hidden.shape[:-1], k)
        labels = torch.empty(len(h), k, dtype=torch.int64, device=h.device)
        log_prob = torch.empty(len(h), k, device=h.device)
        with torch.no_grad():
            for a, b in row_blocks(len(h), self.n_classes):
                log_prob[a:b], labels[a:b] = self._log_prob_all(h[a:b]).topk(k, dim=1)
        return labels.reshape(shape), log_prob.reshape(shape)
