"""The sampled softmax loss: a cross-entropy over very many classes that scores a few of them.

The score of class y for a hidden state h is s_y = h.w_y + b_y. All rows of a minibatch are compared with the
same columns, the targets of the rows and the classes that a sampler draws. Row i has the loss
log Z_i - s_{i,y_i},

    Z_i = exp(s_{i,y_i}) + sum over the columns k of another class of v_k exp(s_ik),

whose expectation is the sum of the full softmax. There are two choices of v:

- Given the rows, targets are in the set for certain: v_k = 1 for the first column of each of these, and
  1 / pi for other drawn classes, pi being the inclusion probability of the draw.
- If sequences are independent and class frequencies q are known, the m targets of the other sequences are a
  sample of classes, too. With the share t of this sample in the estimate, v_k = t / (m q) for these targets,
  0 for those of the row's own sequence, and (1 - t) / pi for drawn classes. Then a class is pushed away from
  the other rows in the step in which it is pulled towards its own: its gradient is centred, and classes learn
  faster. Rows of a minibatch without a dimension of sequences are sequences of one row. m is the mean over
  the rows, which is exact for sequences of one length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from extremax.nn.kernels import is_left_out, masked_log_sum
from extremax.nn.samplers import Draw

_MOST_TARGETS = 1024  # columns, or as many as classes are drawn


class BatchSample(NamedTuple):
    """Targets of a minibatch as a sample.

    Attributes
    ----------
    share
        Of the estimate.
    expected : (K,)
        How many of the targets that a row is compared with are expected to be of the class of each.
    own : (n, 2)
        First and last column, plus one, of the row's own sequence.
    """

    share: float
    expected: Tensor
    own: Tensor


class Terms(NamedTuple):
    """What the loss of each row (n,) consists of; tables of other classes add to all three.

    Attributes
    ----------
    log_sum
        Logarithm of the estimated sum of exp(score).
    own
        Score of the target, 0 where the table does not hold it.
    score_sum
        Estimated sum of class weight times score, for label smoothing.
    """

    log_sum: Tensor
    own: Tensor
    score_sum: Tensor | None


def sampled_softmax_loss(  # noqa: PLR0913 (as in torch.nn.functional)
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    sampler: Callable[[], Draw],
    *,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    sparse: bool = False,
) -> Tensor:
    """Estimate ``F.cross_entropy(F.linear(hidden, weight, bias), target)`` from some of the classes.

    All shapes are static and nothing is read back from the device: ``torch.compile(fullgraph=True)`` takes
    it. Under autocast the product is in the lower precision, and the logarithm of the sum in float32.

    Parameters
    ----------
    hidden : (..., d)
        Hidden states.
    weight : (C, d)
        Weights of the classes.
    bias : (C,) or None
        Biases of the classes.
    target : (...)
        Classes from 0 to C - 1.
    sampler
        Called without arguments, returns the classes to compare with and the logarithms of their inclusion
        probabilities: `FrequencySampler`, `UniformSampler` or one of your own. With a `FrequencySampler`,
        the first dimension of `target` is taken for that of independent sequences or rows: flattened
        sequences would bias the estimate.
    reduction : {"mean", "sum", "none"}
        As in ``F.cross_entropy``.
    label_smoothing : float
        As in ``F.cross_entropy``; the mean score over all classes is estimated from the same classes.
    ignore_index : int
        Rows with this target have loss 0 and do not count in the mean.
    class_weight : (C,), optional
        Weights of the classes in the loss, as `weight` in ``F.cross_entropy``.
    sparse : bool
        Whether `weight` and `bias` get sparse gradients, as in ``F.embedding``: for `RowAdagrad`,
        ``torch.optim.SparseAdam``, ``Adagrad`` and ``SGD``. Compiled code returns dense ones all the same:
        with very many classes, compile the encoder alone.

    Examples
    --------
    >>> from extremax.nn import UniformSampler
    >>> hidden, weight = torch.randn(8, 4), torch.randn(100, 4)
    >>> target = torch.randint(100, (8,))
    >>> exact = sampled_softmax_loss(hidden, weight, None, target, UniformSampler(100, n_sampled=100))
    >>> bool(torch.isclose(exact, F.cross_entropy(hidden @ weight.T, target)))
    True
    """
    check_shapes(hidden, weight, target)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; use 'mean', 'sum' or 'none'.")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be between 0 and 1.")
    h, y = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long()
    kept = y != ignore_index
    y = torch.where(kept, y, 0)
    rows = h, y, kept, kept, len(target) if target.ndim > 0 else 1
    smooths = label_smoothing > 0.0
    terms = sampled_terms(rows, weight, bias, sampler, class_weight, smooths=smooths, sparse=sparse)
    losses, total = row_losses(terms, y, kept, len(weight), label_smoothing, class_weight)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() / total if reduction == "mean" else losses.sum()


def shared_rows(n: int, draw: Draw) -> Tensor:
    """Return which of n rows give their targets to the others."""
    most = min(n, max(_MOST_TARGETS, len(draw.classes)))
    return torch.arange(most, device=draw.classes.device) * n // most


def batch_sample(sampler: Any, y: Tensor, kept: Tensor, n_sequences: int, draw: Draw) -> BatchSample | None:
    """Return the sample that the targets y (n,) are, if the sampler knows frequencies."""
    share = getattr(sampler, "batch_share", 0.0)
    if share == 0.0 or n_sequences < 2 or len(y) == 0:
        return None
    sequence = torch.arange(len(y), device=y.device) // (len(y) // n_sequences)
    columns = shared_rows(len(y), draw)
    shared, counted = sequence[columns], F.pad(kept[columns].long().cumsum(0), (1, 0))
    own = torch.stack([torch.searchsorted(shared, sequence, right=right) for right in (False, True)], dim=1)
    n_own = (counted[own[:, 1]] - counted[own[:, 0]]) * kept
    n_others = counted[-1] - n_own.sum() / kept.sum().clamp(min=1)
    return BatchSample(share, n_others.clamp(min=1.0) * sampler.frequencies(y[columns]), own)


def sampled_terms(
    rows: tuple[Tensor, Tensor, Tensor, Tensor, int],
    weight: Tensor,
    bias: Tensor | None,
    sampler: Callable[[], Draw],
    class_weight: Tensor | None = None,
    *,
    smooths: bool,
    sparse: bool,
) -> Terms:
    """Compare rows with classes that are drawn, and with the targets of the rows.

    `rows` are hidden states h (n, d), targets y (n,), which of them are not ignored, which of these are in
    the table, and the number of sequences.
    """
    h, y, kept, here, n_sequences = rows
    draw = sampler()
    batch = batch_sample(sampler, y, kept, n_sequences, draw)
    n, shared = len(y), shared_rows(len(y), draw)
    sparse = sparse and not torch.compiler.is_compiling()  # inductor has no sparse tensors
    both = torch.cat([y, draw.classes])
    table = F.embedding(both, weight, sparse=sparse)
    own = (h * table[:n]).sum(dim=1, dtype=torch.promote_types(table.dtype, torch.float32))
    biases = table.new_zeros(len(both)) if bias is None else torch.gather(bias, 0, both, sparse_grad=sparse)
    biases = biases.to(own.dtype)
    own = own + biases[:n]
    factors = _log_factors(y[shared], here[shared], draw, batch).to(own.dtype)
    columns, biases, classes = (torch.cat([x[:n][shared], x[n:]]) for x in (table, biases, both))
    # The score of a row's own target is known for certain: it enters once, beside the columns.
    masked_y = torch.where(here, y, -1)
    own_column = torch.where(here, own, -math.inf)
    mask = (classes, masked_y, y.new_zeros(n, 2) if batch is None else batch.own)
    log_sum = masked_log_sum(h, columns, biases + factors, own_column, *mask)
    own = torch.where(here, own, 0.0)
    if not smooths:
        return Terms(log_sum, own, None)
    shares, own_share = factors.exp(), here.to(own.dtype)
    if class_weight is not None:
        shares, own_share = shares * class_weight[classes], own_share * class_weight[y]
    shares = shares.expand(n, -1).masked_fill(is_left_out(*mask), 0.0)
    scores = (h @ columns.mT).to(own.dtype) + biases
    score_sum = (scores * shares).sum(dim=1) + own * own_share
    return Terms(log_sum, own, score_sum)


def row_losses(
    terms: Terms, y: Tensor, kept: Tensor, n_classes: int, label_smoothing: float, class_weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the losses (n,), 0 for rows that are not kept, and what a mean divides their sum by."""
    row_weight = kept.to(terms.own.dtype)
    losses = terms.log_sum - terms.own
    weight_sum: float | Tensor = float(n_classes)
    if class_weight is not None:
        row_weight, weight_sum = row_weight * class_weight[y], class_weight.sum()
        losses = losses * class_weight[y]
    if terms.score_sum is not None:
        spread = (terms.log_sum * weight_sum - terms.score_sum) / n_classes
        losses = (1.0 - label_smoothing) * losses + label_smoothing * spread
    return torch.where(kept, losses, 0.0), row_weight.sum()


def check_shapes(hidden: Tensor, weight: Tensor, target: Tensor | None = None) -> None:
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"hidden has shape {tuple(hidden.shape)}; its last dimension must be {weight.shape[-1]}."
        )
    if target is not None and target.shape != hidden.shape[:-1]:
        raise ValueError(f"target has shape {tuple(target.shape)}; hidden needs {tuple(hidden.shape[:-1])}.")
    if target is not None and (target.is_floating_point() or target.dtype == torch.bool):
        raise TypeError(f"target has type {target.dtype}; it needs integer classes.")


def _log_factors(targets: Tensor, here: Tensor, draw: Draw, batch: BatchSample | None) -> Tensor:
    """Return log v of the targets, then of the drawn classes; -inf for those that do not count."""
    drawn = (-draw.log_pi).exp()
    if batch is not None:
        sampled = torch.where(here, batch.share / batch.expected.to(drawn.dtype), 0.0)
        return torch.cat([sampled, (1.0 - batch.share) * drawn]).log()
    ordered, order = torch.where(here, targets, -1).sort(stable=True)
    is_first = torch.ones_like(here)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_first = torch.empty_like(is_first).scatter(0, order, is_first) & here
    places = torch.searchsorted(ordered, draw.classes)
    is_target = F.pad(ordered, (0, 1), value=torch.iinfo(ordered.dtype).max)[places] == draw.classes
    return torch.cat([is_first.to(drawn.dtype), torch.where(is_target, 0.0, drawn)]).log()
