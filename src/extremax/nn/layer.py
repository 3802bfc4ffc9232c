"""ExtremeSoftmax: an output layer over very many classes, in place of a Linear and a cross-entropy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extremax.nn.functional import Terms, check_shapes, row_losses, sampled_terms
from extremax.nn.samplers import FrequencySampler, UniformSampler

_BLOCK_SCORES = 1 << 25  # scores of all classes that exist at the same time
_MANY_CLASSES = 20_000  # from here on, dense gradients cost more than all else
_FIRST_SCORE = 0.1  # size of the first scores, for hidden states of unit mean square


class SoftmaxOutput(NamedTuple):
    """What a forward pass with targets returns, as ``torch.nn.AdaptiveLogSoftmaxWithLoss`` does.

    Attributes
    ----------
    output : (...)
        Log-probability of each row's target: estimated in training mode, exact in evaluation mode.
    loss : scalar
        Mean loss of the rows that are not ignored.
    """

    output: Tensor
    loss: Tensor


class TopK(NamedTuple):
    """Log-probabilities and classes (..., k), best first, in the order of ``torch.topk``."""

    values: Tensor
    indices: Tensor


class ExtremeSoftmax(nn.Module):
    """Softmax over `n_classes`, trained on the classes that a sampler draws.

    ``layer(hidden, target)`` returns a `SoftmaxOutput`: in training mode with the estimate of
    `sampled_softmax_loss`, in evaluation mode with the exact negative log-likelihood. ``layer(hidden)``
    returns the log-probabilities of all classes. The state dict has the names and shapes of ``nn.Linear``.
    Give targets of sequences in two dimensions, (sequences, positions): rows of one dimension are taken for
    independent, and flattened sequences would bias the estimate.

    Parameters
    ----------
    in_features : int
        Width of the hidden states.
    n_classes : int
        Classes 0 to n_classes - 1.
    sampler : FrequencySampler or UniformSampler, optional
        Draws the classes of a step; 1,024 classes, each with the same probability, unless given.
    bias : bool
        Whether classes have a bias. It starts at the logarithms of the frequencies that the sampler knows.
    sparse : bool
        Whether weights and biases get sparse gradients, as in ``nn.Embedding``: for `RowAdagrad`.
        `make_optimizer` sets it.
    label_smoothing : float
        As in ``nn.CrossEntropyLoss``, in training mode.
    ignore_index : int
        Rows with this target are left out.
    device, dtype
        Of the parameters, as in ``nn.Linear``.

    Examples
    --------
    >>> import torch
    >>> from extremax.nn import ExtremeSoftmax, UniformSampler, make_optimizer
    >>> layer = ExtremeSoftmax(16, 1000, sampler=UniformSampler(1000, n_sampled=64))
    >>> optimizer = make_optimizer(layer)
    >>> hidden, target = torch.randn(32, 16), torch.randint(1000, (32,))
    >>> layer(hidden, target).loss.backward()
    >>> optimizer.step()
    >>> layer.topk(hidden, k=5).indices.shape
    torch.Size([32, 5])
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        in_features: int,
        n_classes: int,
        *,
        sampler: FrequencySampler | None = None,
        bias: bool = True,
        sparse: bool = False,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features < 1:
            raise ValueError(f"in_features is {in_features}; it must be at least 1.")
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be between 0 and 1.")
        self.in_features, self.out_features = in_features, n_classes
        if sampler is not None:
            self._check_sampler(sampler, n_classes)
        self.sparse, self.label_smoothing, self.ignore_index = sparse, label_smoothing, ignore_index
        self._warned = False
        self.weight = nn.Parameter(torch.empty(max(0, n_classes), in_features, device=device, dtype=dtype))
        place = self.weight.device
        self.sampler = UniformSampler(n_classes, device=place) if sampler is None else sampler
        if place.type != "meta":  # else to_empty moves it
            self.sampler.to(place)
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(n_classes, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    @staticmethod
    def _check_sampler(sampler: FrequencySampler, n_classes: int) -> None:
        if sampler.n_classes != n_classes:
            raise ValueError(f"sampler has {sampler.n_classes} classes, and the layer {n_classes}.")

    def reset_parameters(self) -> None:
        """Set weights to small random numbers and biases to log-frequencies."""
        nn.init.normal_(self.weight, std=_FIRST_SCORE * self.in_features**-0.5)
        if self.bias is not None:
            with torch.no_grad():
                self.bias.copy_(self.sampler.counts.log() - math.log(self.sampler.total))

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features},"
            f" bias={self.bias is not None}, sparse={self.sparse}"
        )

    def forward(self, hidden: Tensor, target: Tensor | None = None) -> Tensor | SoftmaxOutput:
        """Return log-probabilities of targets (...) with their mean loss, or of all classes without them."""
        if target is None:
            return self.log_prob(hidden)
        check_shapes(hidden, self.weight, target)
        self._warn_of_dense_gradients()
        h, y, weight, bias = self._gather(hidden.reshape(-1, self.in_features), target.reshape(-1).long())
        kept = y != self.ignore_index
        here, own_y = self._find(y, kept)
        smoothing = self.label_smoothing if self.training else 0.0
        if self.training:
            n_sequences = (len(target) if target.ndim > 0 else 1) * len(y) // max(1, target.numel())
            rows, smooths = (h, own_y, kept, here, n_sequences), smoothing > 0.0
            terms = sampled_terms(rows, weight, bias, self.sampler, smooths=smooths, sparse=self.sparse)
        else:
            terms = self._exact_terms(h, own_y, here)
        losses, n_kept = row_losses(self._add(terms), y, kept, self.out_features, smoothing, None)
        return SoftmaxOutput(-self._own(losses).reshape(target.shape), losses.sum() / n_kept)

    # Where a rank has some of the classes, these five differ.

    def _gather(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the rows to score, their targets, and the parameters."""
        return h, y, self.weight, self.bias

    def _find(self, y: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return which targets are rows of the weights, and these rows."""
        return kept, torch.where(kept, y, 0)

    def _add(self, terms: Terms) -> Terms:
        """Return the terms of all classes."""
        return terms

    def _own(self, losses: Tensor) -> Tensor:
        """Return the losses of the rows that the layer was called with."""
        return losses

    def _best(self, h: Tensor, k: int) -> list[Tensor]:
        """Return the best scores, their classes, and the logarithms of the sums (n, 1)."""
        k = min(k, len(self.weight))
        return self._in_blocks(lambda scores: (*scores.topk(k), scores.logsumexp(dim=1, keepdim=True)), h)

    def _warn_of_dense_gradients(self) -> None:
        is_dense = self.training and self.weight.requires_grad and not self.sparse
        told = self._warned or self.out_features < _MANY_CLASSES or torch.compiler.is_compiling()
        if is_dense and not told:
            self._warned = True
            warnings.warn(
                f"Dense gradients of {self.out_features} classes take far longer than the loss: create the"
                " optimizer with extremax.nn.make_optimizer(model), or the layer with sparse=True for"
                " RowAdagrad.",
                stacklevel=5,  # where the layer is called
            )

    def _exact_terms(self, h: Tensor, y: Tensor, here: Tensor) -> Terms:
        log_sums, own = self._in_blocks(
            lambda scores, y: (scores.logsumexp(1), scores.gather(1, y)), h, y[:, None]
        )
        return Terms(log_sums, torch.where(here, own.squeeze(1), 0.0), None)

    def _in_blocks(self, f: Callable[..., tuple[Tensor, ...]], h: Tensor, *others: Tensor) -> list[Tensor]:
        """Return what f makes of the scores of all classes, and of others, a block of rows at a time."""
        size = max(1, _BLOCK_SCORES // self.out_features)
        blocks = zip(*(torch.split(x, size) for x in (h, *others)), strict=True)
        found = [f(self._scores(rows), *rest) for rows, *rest in blocks]
        return [torch.cat(parts) for parts in zip(*found, strict=True)]

    def _scores(self, h: Tensor) -> Tensor:
        """Return the scores of all classes, in float32 at least."""
        scores = F.linear(h, self.weight.to(h.dtype), None if self.bias is None else self.bias.to(h.dtype))
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Return the log-probabilities of all classes, (..., n_classes)."""
        check_shapes(hidden, self.weight)
        return F.log_softmax(self._scores(hidden), dim=-1)

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the most probable class of each row."""
        return self.topk(hidden, 1).indices.squeeze(-1)

    @torch.no_grad()
    def topk(self, hidden: Tensor, k: int) -> TopK:
        """Return the log-probabilities and the numbers of the k most probable classes of each row."""
        check_shapes(hidden, self.weight)
        if not 1 <= k <= self.out_features:
            raise ValueError(f"k is {k}; ask for 1 to {self.out_features} classes.")
        values, indices, log_sums = self._best(hidden.reshape(-1, self.in_features), k)
        shape = (*hidden.shape[:-1], k)
        return TopK((values - log_sums).reshape(shape), indices.reshape(shape))

    @torch.no_grad()
    def resize(self, n_classes: int, sampler: FrequencySampler | None = None) -> None:
        """Append classes, or remove the last ones; the parameters stay the same objects.

        `RowAdagrad` goes on with them. A layer that draws by frequency needs a new `sampler`.
        """
        if sampler is None and not isinstance(self.sampler, UniformSampler):
            raise ValueError("resize needs a sampler with the counts of all classes.")
        old = min(self.out_features, n_classes)
        if sampler is None:
            sampler = UniformSampler(n_classes, self.sampler.n_sampled, generator=self.sampler.generator)
        self._check_sampler(sampler, n_classes)
        self.sampler, self.out_features = sampler.to(self.weight.device), n_classes
        kept = [(p, p.detach()[:old].clone()) for p in self.parameters(recurse=False)]
        for p, rows in kept:
            p.grad, p.data = None, rows.new_empty(n_classes, *rows.shape[1:])
        self.reset_parameters()
        for p, rows in kept:
            p[:old] = rows

    @torch.no_grad()
    def to_index(self) -> Tensor:
        """Return a matrix (n_classes, in_features + 1) for search by inner product.

        Its product with a hidden state and a 1 behind it is the score of each class.
        """
        bias = self.weight.new_zeros(self.out_features) if self.bias is None else self.bias
        return torch.cat([self.weight, bias.unsqueeze(1)], dim=1)
