"""What output layers share: checks, scores, exact prediction, the label tree of hidden states."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from extremax.features.pca import PCA
from extremax.nn.hidden_moments import HiddenMoments, HiddenSize
from extremax.nn.layer_state import SUMS, keep_type
from extremax.nn.noise_state import NoiseState
from extremax.tree import LabelTree
from extremax.tree.tuning import fit_tuned
from extremax.types import Float32, Float64, Int32

BLOCK_SCORES = 1 << 25  # scores that exist at the same time, where nothing is differentiated
GRADIENTS = ("dense", "sparse", "fused")


class OutputLayer(nn.Module):
    """Checks of what an output layer is called with, and types of its buffers."""

    in_features: int
    n_classes: int
    ignore_index: int
    hidden_moments: HiddenMoments | None
    hidden_size: HiddenSize | None

    @property
    def _hidden_scale(self) -> HiddenMoments | HiddenSize | None:
        """What fused steps know of earlier hidden states: moments, or sizes without whitening."""
        return self.hidden_size if self.hidden_moments is None else self.hidden_moments

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the type of Adagrad's sums in ``.half()`` and the like."""
        sums = {name: self.get_buffer(name) for name in SUMS if name in self._buffers}
        result: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._buffers.update({name: keep_type(fn)(buffer) for name, buffer in sums.items()})
        return result

    def _flat(self, hidden: Tensor) -> Tensor:
        if hidden.ndim < 1 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}; its last dimension must be {self.in_features}."
            )
        return hidden.reshape(-1, self.in_features)

    def _flat_pairs(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and targets as (n, in_features) and (n,), without those to be ignored."""
        h = self._flat(hidden)
        if targets.shape != hidden.shape[:-1]:
            raise ValueError(
                f"targets has shape {tuple(targets.shape)}; hidden of shape {tuple(hidden.shape)} needs"
                f" {tuple(hidden.shape[:-1])}."
            )
        y = targets.reshape(-1)
        kept = y != self.ignore_index
        if not bool(kept.all()):
            h, y = h[kept.to(h.device)], y[kept]
        self._check_targets(y)
        return h, y

    def _check_targets(self, y: Tensor) -> None:
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"targets has type {y.dtype}; it needs integer classes.")
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= self.n_classes):
            wrong = int(y.min()) if int(y.min()) < 0 else int(y.max())
            raise ValueError(f"targets holds {wrong}; the classes are 0 to {self.n_classes - 1}.")

    def _check_k(self, k: int) -> None:
        if not 1 <= k <= self.n_classes:
            raise ValueError(f"k is {k}; ask for 1 to {self.n_classes} classes.")


class RecentRows:
    """The latest hidden states and their targets, by minibatch."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._parts: deque[tuple[Tensor, Tensor, int]] = deque()

    def add(self, h: Tensor, y: Tensor, limit: int) -> None:
        """Add a minibatch, and drop the oldest ones as long as `limit` rows stay."""
        self._parts.append((h, y, len(y)))
        self.n_rows += len(y)
        while len(self._parts) > 1 and self.n_rows - self._parts[0][2] >= limit:
            self.n_rows -= self._parts.popleft()[2]

    def tensors(self) -> tuple[Tensor, Tensor]:
        return torch.cat([h for h, _, _ in self._parts]), torch.cat([y for _, y, _ in self._parts])


class SoftmaxLayer(OutputLayer, ABC):
    """Scores h.w_y + b_y of all classes, and a label tree fitted on hidden states.

    Subclasses set the attributes below and say how a training step chooses its classes.
    """

    tree_regularization: float | Literal["auto"]
    refit_rows: int
    random_state: int
    n_jobs: int | None
    counts_are_given: bool
    weight: nn.Parameter
    bias: nn.Parameter | None
    noise: NoiseState
    n_steps: Tensor
    _recent: RecentRows

    def _tables(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases (n_classes,), gathered from all processes where FSDP shards them."""
        bias = None if self.bias is None else _gather(self.bias)
        if bias is not None and bias.ndim == 2:
            bias = bias.squeeze(1)
        return _gather(self.weight), bias

    def _score(self, h: Tensor, labels: Tensor) -> Tensor:
        """Return the scores (n, m) of the given classes of each row."""
        weight, bias = self._tables()
        with torch.autocast(h.device.type, enabled=False):
            w = weight[labels]
            scores = torch.bmm(w, h.to(w.dtype).unsqueeze(-1)).squeeze(-1).float()
            return scores if bias is None else scores + bias[labels].float()

    @abstractmethod
    def _refit_is_due(self, n_steps: int) -> bool:
        """Whether the tree is to be fitted before this training step."""

    @abstractmethod
    def _keeps_rows(self) -> bool:
        """Whether the tree will be fitted again, on the latest rows."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self._recent = RecentRows()  # hidden states of the earlier model
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # -- the tree

    def fit_tree(
        self, features: Tensor | ArrayLike, targets: Tensor | ArrayLike, *, keep_scores: bool | None = None
    ) -> None:
        """Fit the label tree that negatives come from; scores and predictions stay the same.

        Parameters
        ----------
        features : (n, in_features)
            Hidden states of training rows, as the encoder makes them now.
        targets : (n,)
            Their classes.
        keep_scores : bool, optional
            Has no effect; accepted, with a warning, until the next release.
        """
        if keep_scores is not None:
            message = "keep_scores has no effect: a new tree never changes the scores. Leave it out."
            warnings.warn(message, FutureWarning, stacklevel=2)
        X, labels = self._tree_rows(features, targets)
        projection = PCA.fit(X, self.noise.components.shape[0], n_jobs=self.n_jobs)
        tree = self._fit_tree(projection.transform(X, n_jobs=self.n_jobs), labels)
        counts: Float64
        if self.counts_are_given:
            counts = self.noise.class_counts.cpu().numpy().astype(np.float64)
        else:
            counts = np.bincount(labels, minlength=self.n_classes).astype(np.float64)
        self.noise.set_tree(tree, projection, counts)

    def _tree_rows(self, features: Tensor | ArrayLike, targets: Tensor | ArrayLike) -> tuple[Float32, Int32]:
        """Check the rows of `fit_tree` and leave out those to be ignored."""
        X = np.ascontiguousarray(_to_numpy(features), np.float32)
        y = np.ascontiguousarray(_to_numpy(targets), np.int64)
        if X.ndim != 2 or X.shape[1] != self.in_features or y.shape != (len(X),) or len(y) == 0:
            raise ValueError(
                f"features has shape {X.shape} and targets {y.shape}; fit_tree needs (n, {self.in_features})"
                " and (n,), n > 0."
            )
        used = y != self.ignore_index
        if not used.any():
            raise ValueError(
                f"targets holds no row other than ignore_index ({self.ignore_index}); fit_tree needs at least"
                " one."
            )
        X, y = (X, y) if used.all() else (X[used], y[used])
        self._check_targets(torch.from_numpy(y))
        if not np.isfinite(X).all():
            raise ValueError(
                "features hold NaN or infinity; the tree needs finite hidden states. Has training diverged?"
            )
        return X, y.astype(np.int32)

    def _fit_tree(self, Z: Float32, labels: Int32) -> LabelTree:
        n_classes, n_jobs, seed = self.n_classes, self.n_jobs, self.random_state
        if self.tree_regularization == "auto":
            return fit_tuned(Z, labels, n_classes=n_classes, n_jobs=n_jobs, seed=seed).tree
        return LabelTree.fit(
            Z,
            labels,
            n_classes=n_classes,
            regularization=self.tree_regularization,
            n_jobs=n_jobs,
            random_state=seed,
        )

    def _keep(self, h: Tensor, y: Tensor) -> None:
        """Remember the latest rows for the next fit of the tree, and fit it when it is due."""
        if not self._keeps_rows():
            self._recent = RecentRows()  # of steps that wanted a tree
            return
        if self._recent.n_rows and self._refit_is_due(int(self.n_steps)):
            self.fit_tree(*self._recent.tensors())
        self._recent.add(h.detach().float().cpu(), y.cpu(), self.refit_rows)

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
                for a, b in self._blocks(len(h))
            ]
        return torch.cat(parts) if parts else torch.empty(0, device=h.device)

    def log_likelihood(self, hidden: Tensor, targets: Tensor) -> float:
        """Return the mean of log p(target|h) over the rows."""
        values = self.target_log_prob(hidden, targets)
        if len(values) == 0:
            raise ValueError("A mean over no rows is not defined; pass at least one row that is not ignored.")
        return float(values.double().mean())

    def predict_topk(
        self, hidden: Tensor, k: int = 1, *, search: Literal["exact", "beam"] = "exact", beam_width: int = 64
    ) -> tuple[Tensor, Tensor]:
        """Return the k most probable classes of each hidden state and their log-probabilities.

        Both are (..., k), best first.  ``search="beam"`` scores only the classes that survive a beam down the
        tree; log-probabilities are then normalised over these candidates.
        """
        self._check_k(k)
        if search not in ("exact", "beam"):
            raise ValueError(f"search is {search!r}; use 'exact' or 'beam'.")
        h = self._flat(hidden)
        shape = (*hidden.shape[:-1], k)
        labels = torch.empty(len(h), k, dtype=torch.int64, device=h.device)
        log_prob = torch.empty(len(h), k, device=h.device)
        with torch.no_grad():
            if search == "exact":
                for a, b in self._blocks(len(h)):
                    log_prob[a:b], labels[a:b] = self._log_prob_all(h[a:b]).topk(k, dim=1)
            else:
                self._beam(h, max(k, beam_width), labels, log_prob)
        return labels.reshape(shape), log_prob.reshape(shape)

    def _beam(self, h: Tensor, width: int, labels: Tensor, log_prob: Tensor) -> None:
        tree = self.noise.tree
        if tree is None:
            raise ValueError(
                "search='beam' needs a label tree, and none was fitted yet. Call fit_tree, or use"
                " search='exact'."
            )
        width, k = min(width, self.n_classes), labels.shape[1]
        for a, b in self._blocks(len(h), width * self.in_features):
            found, _ = tree.candidates(self.noise.project(h[a:b]), width, n_jobs=self.n_jobs)
            candidates = torch.from_numpy(np.maximum(found, 0).astype(np.int64)).to(h.device)
            scores = self._score(h[a:b], candidates)
            scores.masked_fill_(torch.from_numpy(found < 0).to(h.device), -math.inf)
            best, place = F.log_softmax(scores, dim=1).topk(k, dim=1)
            log_prob[a:b], labels[a:b] = best, candidates.gather(1, place)

    # -- parts

    def _blocks(self, n: int, row_size: int | None = None) -> Iterator[tuple[int, int]]:
        return row_blocks(n, self.n_classes if row_size is None else row_size)


def row_blocks(n: int, row_size: int) -> Iterator[tuple[int, int]]:
    """Return the first row of each block, and the one after its last: rows of `row_size` numbers."""
    step = max(1, BLOCK_SCORES // max(1, row_size))
    return ((a, min(a + step, n)) for a in range(0, n, step))


def score_all(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the scores (n, classes of the table), in float32 at least."""
    with torch.autocast(h.device.type, enabled=False):
        scores = F.linear(h.to(weight.dtype), weight, bias)
    return scores.to(torch.promote_types(weight.dtype, torch.float32))


def _gather(table: Tensor) -> Tensor:
    # Only a DTensor has this; its module is slow to import, and where it is depends on the version of torch.
    gather = getattr(table, "full_tensor", None)
    return table if gather is None else cast("Tensor", gather())


def copy_into(table: Tensor, values: Tensor) -> None:
    """Copy values into a table of the same shape, or into the shards of it that this process has."""
    placements = getattr(table, "placements", None)
    if placements is not None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        mesh = cast("DTensor", table).device_mesh
        values = distribute_tensor(values.to(table.device), mesh, placements)
    table.copy_(values)


def check_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1.")


def check_gradients(gradients: str, label_smoothing: float) -> None:
    if gradients not in GRADIENTS:
        raise ValueError(f"gradients is {gradients!r}; use 'dense', 'sparse' or 'fused'.")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be between 0 and 1.")
    if gradients == "fused" and label_smoothing > 0.0:
        raise ValueError(
            "gradients='fused' has no label smoothing: set label_smoothing=0, or use 'dense' or 'sparse'."
        )


def check_class_counts(class_counts: ArrayLike | None, n_classes: int) -> Float64:
    """Return the counts as numbers, or ones unless they are given."""
    counts: Float64
    counts = np.ones(n_classes) if class_counts is None else np.asarray(class_counts).astype(np.float64)
    if counts.shape != (n_classes,):
        raise ValueError(
            f"class_counts has shape {counts.shape}; it needs one number for each of the {n_classes} classes."
        )
    return counts


def n_processes() -> int:
    """Return the number of processes that train together, in the sense of torch.distributed."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if together else 1


def _to_numpy(values: Tensor | ArrayLike) -> NDArray[np.generic]:
    if isinstance(values, Tensor):
        values = values.detach()
        return np.asarray((values.float() if values.is_floating_point() else values).cpu().numpy())
    return np.asarray(values)
