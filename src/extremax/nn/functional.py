"""The sampled softmax loss: a cross-entropy over very many classes that scores a few of them.

The score of class y for a hidden state h is s_y = h.w_y + b_y. All rows of a minibatch are compared with the
same classes, those that a sampler draws and the targets of the rows. Row i has the loss log Z_i - s_{i,y_i},

    Z_i = exp(s_{i,y_i}) + sum over the other classes j of the set of v_j exp(s_ij),

whose expectation is the sum of the full softmax. There are two choices of v:

- Given the rows, targets are in the set for certain: v_j = 1 for these, and 1 / pi_j for other drawn classes,
  pi_j being the inclusion probability of the draw.
- If rows are independent and class frequencies q_j are known, the n targets are a sample of classes, too,
  with the inclusion probabilities 1 - (1 - q_j)^(n - 1). With the share t of this sample in the estimate,
  v_j = t / (1 - (1 - q_j)^(n - 1)) [j is a target] + (1 - t) / pi_j [j was drawn]. Then a class is pushed
  away from the other rows in the step in which it is pulled towards its own: its gradient is centred, and
  classes learn faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from extremax.nn.kernels import masked_log_sum
from extremax.nn.samplers import Draw


class BatchSample(NamedTuple):
    """Targets of a minibatch as a sample: its share, and 1 / inclusion probability of each target (n,)."""

    share: float
    inverse_pi: Tensor


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
        rows of a `target` of one dimension are taken for independent: flattened sequences would bias the
        estimate.
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
    h, y = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1).long()
    kept = y != ignore_index
    y = torch.where(kept, y, 0)
    draw = sampler()
    batch = batch_sample(sampler, y, kept, draw) if target.ndim == 1 else None
    terms = class_terms(
        h, weight, bias, y, kept, draw, class_weight, batch, smooths=label_smoothing > 0.0, sparse=sparse
    )
    losses, total = row_losses(terms, y, kept, len(weight), label_smoothing, class_weight)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() / total if reduction == "mean" else losses.sum()


def batch_sample(sampler: Any, y: Tensor, kept: Tensor, draw: Draw) -> BatchSample | None:
    """Return the sample that the targets y (n,) are, if the sampler knows frequencies."""
    share = getattr(sampler, "batch_share", 0.0)
    if share == 0.0:
        return None
    n_others = (kept[: len(draw.classes)].sum() - 1).clamp(min=1)
    return BatchSample(share, -1.0 / torch.expm1(n_others * torch.log1p(-sampler.frequencies(y))))


def class_terms(  # noqa: PLR0913 (a minibatch, a table and a set)
    h: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    y: Tensor,
    here: Tensor,
    draw: Draw,
    class_weight: Tensor | None,
    batch: BatchSample | None = None,
    *,
    smooths: bool,
    sparse: bool,
) -> Terms:
    """Compare rows h (n, d) with the drawn classes and with the targets y (n,) that are `here`.

    At most as many rows give their targets to the others as classes are drawn.
    """
    n, n_shared = len(y), min(len(y), len(draw.classes))
    sparse = sparse and not torch.compiler.is_compiling()  # inductor has no sparse tensors
    both = torch.cat([y, draw.classes])
    rows = F.embedding(both, weight, sparse=sparse)
    classes = both if n_shared == n else torch.cat([y[:n_shared], draw.classes])
    columns = rows if n_shared == n else torch.cat([rows[:n_shared], rows[n:]])
    own = (h * rows[:n]).sum(dim=1, dtype=_float(rows.dtype))
    shift = _log_factors(y[:n_shared], here[:n_shared], draw, batch).to(own.dtype)
    if bias is not None:
        biases = torch.gather(bias, 0, both, sparse_grad=sparse).to(own.dtype)
        own = own + biases[:n]
        shift_of_scores = biases if n_shared == n else torch.cat([biases[:n_shared], biases[n:]])
    else:
        shift_of_scores = torch.zeros_like(shift)
    # The score of a row's own target is known for certain: it enters once, beside the columns.
    masked_y = torch.where(here, y, -1)
    own_column = torch.where(here, own, -math.inf)
    log_sum = masked_log_sum(h, columns, shift_of_scores + shift, own_column, classes, masked_y)
    own = torch.where(here, own, 0.0)
    if not smooths:
        return Terms(log_sum, own, None)
    shares, own_share = shift.exp(), here.to(own.dtype)
    if class_weight is not None:
        shares, own_share = shares * class_weight[classes], own_share * class_weight[y]
    shares = shares.expand(n, -1).masked_fill(classes == masked_y.unsqueeze(1), 0.0)
    scores = (h @ columns.mT).to(own.dtype) + shift_of_scores
    score_sum = (scores * shares).sum(dim=1) + own * own_share
    return Terms(log_sum, own, score_sum)


def row_losses(
    terms: Terms,
    y: Tensor,
    kept: Tensor,
    n_classes: int,
    label_smoothing: float,
    class_weight: Tensor | None,
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
        raise ValueError(
            f"target has shape {tuple(target.shape)}; hidden of shape {tuple(hidden.shape)} needs"
            f" {tuple(hidden.shape[:-1])}."
        )
    if target is not None and (target.is_floating_point() or target.dtype == torch.bool):
        raise TypeError(f"target has type {target.dtype}; it needs integer classes.")


def _log_factors(targets: Tensor, here: Tensor, draw: Draw, batch: BatchSample | None) -> Tensor:
    """Return log v of the targets, then of the drawn classes; -inf for repeated ones."""
    keys = torch.where(here, targets, -1)
    ordered, order = keys.sort(stable=True)
    is_first = torch.ones_like(here)
    is_first[1:] = ordered[1:] != ordered[:-1]
    is_first = torch.empty_like(is_first).scatter(0, order, is_first) & here
    places = torch.searchsorted(ordered, draw.classes)
    is_target = F.pad(ordered, (0, 1), value=torch.iinfo(ordered.dtype).max)[places] == draw.classes
    drawn = (-draw.log_pi).exp()
    certain = torch.ones_like(is_first, dtype=drawn.dtype)
    if batch is not None and len(targets) > 0:
        drawn = (1.0 - batch.share) * drawn
        certain = batch.share * batch.inverse_pi[: len(targets)].to(drawn.dtype)
        # A target that was drawn, too, has both: its first place among the targets gets the sum.
        both = torch.where(is_target, drawn, 0.0)
        certain = certain.index_add(0, F.pad(order, (0, 1))[places], both)
    certain = torch.where(is_first, certain, 0.0)
    return torch.cat([certain, torch.where(is_target, 0.0, drawn)]).log()


def _float(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
