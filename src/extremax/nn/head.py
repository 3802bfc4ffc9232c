"""AdversarialSoftmax: an output layer whose training cost grows with the logarithm of the number of classes.

Scores xi_y(h) = h.w_y + b_y of a hidden state h are trained on its own class and on a few negatives drawn
from p_n(y|h) (paper, Eq. 6), a label tree over principal components of the hidden states. The softmax score
is s = xi + log p_n(y|h) (Eq. 5), the sum of `extremax.search.remove_bias`. That is ``base="noise"``, for
hidden states that stay as they are.

An encoder that learns moves them, and log p_n(y|h) of a tree that was fitted to older ones would move every
prediction. So by default the scores stand for themselves (``base="none"``): negatives still come from the
tree and are corrected for by
``s - log p_n(y|h)``, as in `extremax.training.objectives`, but prediction does not need the tree, and fitting it anew changes no score.

Only the rows of drawn classes get a gradient, as sparse tensors: use ``torch.optim.SparseAdam``, ``Adagrad``
or ``SGD``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from extremax.features.pca import PCA
from extremax.nn.noise_state import NoiseState
from extremax.nn.rebase import Rebase, fit_change
from extremax.tree import LabelTree
from extremax.tree.tuning import fit_tuned

_BLOCK_SCORES = 1 << 25  # scores of all classes that exist at the same time, when nothing is differentiated
_REBASE_ROWS = 20_000
_REBASE_DRAWS = 4
OBJECTIVES = ("negative_sampling", "sampled_softmax")
BASES = ("none", "noise")


class HeadOutput(NamedTuple):
    """What a forward pass returns.

    Attributes
    ----------
    loss : scalar
        Mean over the rows, to be differentiated.
    losses : (n,)
        Row by row; ignored rows are left out.
    labels : int64 (n, 1 + n_negatives)
        The target of each row, then the negatives that were drawn.
    debiased_scores : (n, 1 + n_negatives)
        ``xi + log p_n`` of these: log p(y|h) up to a constant of the row.
    """

    loss: Tensor
    losses: Tensor
    labels: Tensor
    debiased_scores: Tensor


class AdversarialSoftmax(nn.Module):
    """Softmax over `n_classes`, trained by negative sampling against a label tree.

    Parameters
    ----------
    in_features : int
        Width of the hidden states.
    n_classes : int
        Classes 0 to n_classes - 1.
    n_negatives : int
        Negatives per row and step.
    objective : {"sampled_softmax", "negative_sampling"}
        Cross-entropy of the target among itself and its negatives, or the paper's Eq. 6; both with logits ``s
        - log p_n``.
    base : {"none", "noise"}
        What is added to ``h.w_y + b_y`` to make the debiased score s: nothing, so that a new tree changes no
        prediction; or log p_n(y|h), the paper's method, for hidden states that do not move.
    n_components : int
        Principal components of the hidden states that the tree sees.
    tree_share : float
        Negatives come from the tree with this probability, from the class frequencies otherwise: a floor
        under a tree that was fitted to hidden states of a while ago. 1 is the tree alone, as in the paper.
    score_penalty : float
        The paper's lambda: strength of the square penalty on debiased scores.
    regularization : float or "auto"
        Strength of the tree's own penalty; "auto" chooses one per level by held-out likelihood.
    class_counts : (n_classes,), optional
        Rows of each class; noise before there is a tree, and the floor under it. Unless given: uniform noise,
        then the counts of the rows that the tree is fitted on.
    refit_every : int, optional
        Fit the tree after every so many training steps, on hidden states and targets of the latest
        `refit_rows` rows, which are kept on the CPU. None: only when `fit_tree` is called. Under
        ``DistributedDataParallel`` every process draws from the tree of the first, which reaches it with the
        buffers of the next step; ``base="noise"`` is refused there, see `fit_tree`.
    refit_rows : int
        See `refit_every`.
    ignore_index : int
        Rows with this target are left out, as in ``torch.nn.CrossEntropyLoss``.
    sparse : bool
        Whether gradients of `weight` and `bias` are sparse tensors.
    random_state : int
        Seed of all draws.
    n_jobs : int, optional
        Threads of the tree.

    Attributes
    ----------
    weight, bias : Parameter
        (n_classes, in_features) and (n_classes, 1).
    last_rebase : Rebase or None
        How well scores were carried over when the tree was fitted last, where that was necessary.

    Examples
    --------
    >>> import torch
    >>> from extremax.nn import AdversarialSoftmax
    >>> head = AdversarialSoftmax(in_features=16, n_classes=1000, n_negatives=4)
    >>> hidden, targets = torch.randn(32, 16, requires_grad=True), torch.randint(1000, (32,))
    >>> out = head(hidden, targets)
    >>> out.loss.backward()
    >>> head.weight.grad.is_sparse
    True
    >>> labels, log_prob = head.predict_topk(hidden, k=5)
    >>> labels.shape
    torch.Size([32, 5])
    """

    n_steps: Tensor

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        n_negatives: int = 8,
        objective: Literal["negative_sampling", "sampled_softmax"] = "sampled_softmax",
        n_components: int = 32,
        tree_share: float = 0.5,
        base: Literal["none", "noise"] = "none",
        score_penalty: float = 0.0,
        regularization: float | Literal["auto"] = "auto",
        class_counts: ArrayLike | None = None,
        refit_every: int | None = None,
        refit_rows: int = 50_000,
        ignore_index: int = -100,
        sparse: bool = True,
        random_state: int = 0,
        n_jobs: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_features", in_features),
            ("n_classes", n_classes),
            ("n_negatives", n_negatives),
            ("n_components", n_components),
            ("refit_every", 1 if refit_every is None else refit_every),
            ("refit_rows", refit_rows),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        for name, text, allowed in (("objective", objective, OBJECTIVES), ("base", base, BASES)):
            if text not in allowed:
                raise ValueError(f"{name} is {text!r}; use {' or '.join(map(repr, allowed))}.")
        if not 0.0 < tree_share <= 1.0:
            raise ValueError(f"tree_share is {tree_share}; it must be above 0 and at most 1.")
        counts = np.ones(n_classes) if class_counts is None else np.asarray(class_counts, np.float64)
        if counts.shape != (n_classes,):
            raise ValueError(
                f"class_counts has shape {counts.shape}; it needs one number for each of the {n_classes} classes."
            )
        self.in_features, self.n_classes, self.n_negatives = in_features, n_classes, n_negatives
        self.objective, self.base, self.score_penalty, self.regularization = (
            objective,
            base,
            score_penalty,
            regularization,
        )
        self.refit_every, self.refit_rows = refit_every, refit_rows
        self.ignore_index, self.sparse, self.random_state, self.n_jobs = (
            ignore_index,
            sparse,
            random_state,
            n_jobs,
        )
        self.counts_are_given = class_counts is not None
        self.weight = nn.Parameter(torch.zeros(n_classes, in_features, device=device))
        self.bias = nn.Parameter(torch.zeros(n_classes, 1, device=device))
        self.noise = NoiseState(in_features, n_classes, n_components, tree_share, counts).to(device)
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64, device=device))
        self.last_rebase: Rebase | None = None
        self.reset_parameters()
        self._recent: list[tuple[Tensor, Tensor]] = []

    def reset_parameters(self) -> None:
        """Start from what the noise knows before there is a tree: weights at zero, debiased scores at
        log-frequencies.
        """
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()
            if self.base == "none":
                frequencies = self.noise.frequencies().log_prob_
                self.bias.copy_(torch.from_numpy(frequencies[:, None]))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, n_classes={self.n_classes}, n_negatives={self.n_negatives}"

    # -- training
    # ------------------------------------------------------------------------------------------------------------

    def forward(self, hidden: Tensor, targets: Tensor) -> HeadOutput:
        """Loss of hidden states (..., in_features) with targets (...), by fresh negatives."""
        h, y = self._flat_pairs(hidden, targets)
        if len(y) == 0:
            raise ValueError(
                f"targets holds no row other than ignore_index ({self.ignore_index}); a mean needs at least one."
            )
        if self.training:
            self._keep(h, y)
        labels, log_noise = self._draw(h, y)
        if self.training:
            self.n_steps += 1
        # Logits s - log p_n, as in extremax.training.objectives.
        debiased = self._score(h, labels)
        if self.base == "noise":
            debiased = debiased + log_noise
        logits = debiased - log_noise
        penalty = self.score_penalty * debiased.square()
        if self.objective == "negative_sampling":
            positive = F.softplus(-logits[:, 0]) + penalty[:, 0]
            losses = positive + (F.softplus(logits[:, 1:]) + penalty[:, 1:]).mean(dim=1)
        else:
            losses = -F.log_softmax(logits, dim=1)[:, 0] + penalty.sum(dim=1)
        return HeadOutput(losses.mean(), losses, labels, debiased.detach())

    def _draw(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Target and negatives of each row, and log p_n of all of them."""
        noise, Z = self.noise.current(), self.noise.project(h)
        targets = y.cpu().numpy().astype(np.int32)
        rank = torch.distributed.get_rank() if _n_processes() > 1 else 0
        step = np.random.SeedSequence((self.random_state, int(self.n_steps), rank)).generate_state(
            1, np.uint64
        )
        negatives, log_noise = noise.sample(Z, self.n_negatives, int(step[0]), n_jobs=self.n_jobs)
        labels = np.concatenate([targets[:, None], negatives], axis=1)
        positive = noise.log_prob(Z, targets, n_jobs=self.n_jobs)
        log_prob = np.concatenate([positive[:, None], log_noise], axis=1)
        return torch.from_numpy(labels.astype(np.int64)).to(h.device), torch.from_numpy(log_prob).to(h.device)

    def _score(self, h: Tensor, labels: Tensor) -> Tensor:
        """xi of the given classes (n, m)."""
        with torch.autocast(h.device.type, enabled=False):
            w = F.embedding(labels, self.weight, sparse=self.sparse)
            b = F.embedding(labels, self.bias, sparse=self.sparse)
            return torch.bmm(w, h.to(w.dtype).unsqueeze(-1)).squeeze(-1).float() + b.squeeze(-1).float()

    # -- the tree
    # ------------------------------------------------------------------------------------------------------------

    def fit_tree(
        self, features: Tensor | ArrayLike, targets: Tensor | ArrayLike, *, keep_scores: bool | None = None
    ) -> Rebase | None:
        """Fit the label tree to hidden states and their targets; from now on negatives come from it.

        With ``base="noise"`` the weights change too: where processes train copies of the head together, call
        this in each of them with the same rows.

        Parameters
        ----------
        features : (n, in_features)
            Hidden states of training rows, as the encoder makes them now.
        targets : (n,)
            Their classes.
        keep_scores : bool, optional
            With ``base="noise"``, whether debiased scores shall stay what they are, as far as a linear head
            can follow (`extremax.nn.rebase`); False leaves the weights alone. None: True unless all weights
            are zero. With
            ``base="none"`` scores always stay.

        Returns
        -------
        Rebase or None
            How well scores were kept; None where nothing had to be done.
        """
        X = np.ascontiguousarray(_to_numpy(features), np.float32)
        y = np.ascontiguousarray(_to_numpy(targets), np.int64)
        if X.ndim != 2 or X.shape[1] != self.in_features or y.shape != (len(X),) or len(y) == 0:
            raise ValueError(
                f"features has shape {X.shape} and targets {y.shape}; fit_tree needs (n, {self.in_features}) and (n,), n > 0."
            )
        rows = y != self.ignore_index
        if not rows.any():
            raise ValueError(
                f"targets holds no row other than ignore_index ({self.ignore_index}); fit_tree needs at least one."
            )
        X, y = (X, y) if rows.all() else (X[rows], y[rows])
        self._check_targets(torch.from_numpy(y))
        if not np.isfinite(X).all():
            raise ValueError(
                "features hold NaN or infinity; the tree needs finite hidden states. Has training diverged?"
            )
        labels = y.astype(np.int32)
        if keep_scores is None:
            keep_scores = bool(self.weight.detach().any()) or bool(self.bias.detach().any())
        projection = PCA.fit(X, self.noise.components.shape[0], n_jobs=self.n_jobs)
        Z = projection.transform(X, n_jobs=self.n_jobs)
        if self.regularization == "auto":
            tree = fit_tuned(
                Z, labels, n_classes=self.n_classes, n_jobs=self.n_jobs, seed=self.random_state
            ).tree
        else:
            tree = LabelTree.fit(
                Z, labels, n_classes=self.n_classes, regularization=self.regularization, n_jobs=self.n_jobs,
                random_state=self.random_state,
            )  # fmt: skip
        counts: NDArray[np.float64]
        if self.counts_are_given:
            counts = self.noise.class_counts.cpu().numpy().astype(np.float64)
        else:
            counts = np.bincount(labels, minlength=self.n_classes).astype(np.float64)
        if self.base == "none" or not keep_scores:
            self.noise.set_tree(tree, projection, counts)
            self.last_rebase = None
            return None
        self.last_rebase = self._rebase(X, labels, tree, projection, counts)
        return self.last_rebase

    def _rebase(
        self,
        X: NDArray[np.float32],
        y: NDArray[np.int32],
        tree: LabelTree,
        projection: PCA,
        counts: NDArray[np.float64],
    ) -> Rebase:
        """Change the noise and carry the scores over."""
        rng = np.random.default_rng((self.random_state, int(self.n_steps)))
        if len(X) > _REBASE_ROWS:
            chosen = rng.permutation(len(X))[:_REBASE_ROWS]
            X, y = X[chosen], y[chosen]
        hidden = torch.from_numpy(X).to(self.weight.device)
        seeds = rng.integers(2**63, size=2)
        old, old_Z = self.noise.current(), self.noise.project(hidden)
        from_old, _ = old.sample(old_Z, _REBASE_DRAWS, int(seeds[0]), n_jobs=self.n_jobs)
        self.noise.set_tree(tree, projection, counts)
        new, new_Z = self.noise.current(), self.noise.project(hidden)
        from_new, _ = new.sample(new_Z, _REBASE_DRAWS, int(seeds[1]), n_jobs=self.n_jobs)
        pairs = np.concatenate([y[:, None], from_old, from_new], axis=1)
        log_old = old.log_prob(old_Z, pairs, n_jobs=self.n_jobs)
        delta = log_old - new.log_prob(new_Z, pairs, n_jobs=self.n_jobs)
        with torch.no_grad():
            scores = self._score(hidden, torch.from_numpy(pairs.astype(np.int64)).to(hidden.device)).cpu()
            share = F.softmax(scores + torch.from_numpy(log_old), dim=1).numpy()
        # Mostly where the head puts its probability; the rest keeps classes that are hardly ever probable in
        # place.
        change = fit_change(new_Z, pairs, delta, 0.8 * pairs.shape[1] * share + 0.2)
        # A score changes by u.z + b with z = components (h - mean): w by u components, the bias by b - u
        # components mean.
        with torch.no_grad():
            places = torch.from_numpy(change.classes.astype(np.int64)).to(self.weight.device)
            weights = torch.from_numpy(change.weights @ projection.components.astype(np.float64))
            biases = torch.from_numpy(change.biases) - weights @ torch.from_numpy(
                projection.mean.astype(np.float64)
            )
            self.weight.index_add_(0, places, weights.to(self.weight))
            self.bias.index_add_(0, places, biases.unsqueeze(1).to(self.bias))
        return change.quality

    def _keep(self, h: Tensor, y: Tensor) -> None:
        """Remember the latest rows for the next fit, and fit when it is time."""
        if self.refit_every is None:
            return
        if self.base == "noise" and _n_processes() > 1:
            raise ValueError(
                "refit_every with base='noise' changes the weights, in every process by rows of its own. Use base='none', or"
                " call fit_tree in every process with the same rows."
            )
        steps = int(self.n_steps)
        if steps > 0 and steps % self.refit_every == 0 and self._recent:
            self.fit_tree(
                torch.cat([part for part, _ in self._recent]), torch.cat([part for _, part in self._recent])
            )
        self._recent.append((h.detach().float().cpu(), y.cpu()))
        rows = sum(len(part) for _, part in self._recent)
        while len(self._recent) > 1 and rows - len(self._recent[0][1]) >= self.refit_rows:
            rows -= len(self._recent.pop(0)[1])

    # -- prediction
    # ----------------------------------------------------------------------------------------------------------

    def log_prob(self, hidden: Tensor) -> Tensor:
        """log p(y|h) of every class, (..., n_classes): normalised, bias removed.

        Differentiable in hidden states and weights, log p_n being a constant; takes time and memory in
        proportion to n_classes."""
        h = self._flat(hidden)
        return self._log_prob_all(h).reshape(*hidden.shape[:-1], self.n_classes)

    def _log_prob_all(self, h: Tensor) -> Tensor:
        with torch.autocast(h.device.type, enabled=False):
            scores = F.linear(h.to(self.weight.dtype), self.weight, self.bias.squeeze(1)).float()
        if self.base == "noise":
            log_noise = self.noise.current().log_prob_all(self.noise.project(h), n_jobs=self.n_jobs)
            scores = scores + torch.from_numpy(log_noise).to(h.device)
        return F.log_softmax(scores, dim=1)

    def target_log_prob(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """log p(target|h) of each row (n,), exact, over all classes; ignored rows are left out. Not
        differentiated.
        """
        h, y = self._flat_pairs(hidden, targets)
        with torch.no_grad():
            parts = [
                self._log_prob_all(h[a:b]).gather(1, y[a:b, None].to(h.device)).squeeze(1)
                for a, b in self._blocks(len(h))
            ]
        return torch.cat(parts) if parts else torch.empty(0, device=h.device)

    def log_likelihood(self, hidden: Tensor, targets: Tensor) -> float:
        """Mean log p(target|h) over the rows."""
        values = self.target_log_prob(hidden, targets)
        if len(values) == 0:
            raise ValueError("A mean over no rows is not defined; pass at least one row that is not ignored.")
        return float(values.double().mean())

    def predict_topk(
        self, hidden: Tensor, k: int = 1, *, search: Literal["exact", "beam"] = "exact", beam_width: int = 64
    ) -> tuple[Tensor, Tensor]:
        """The k most probable classes of each hidden state, best first, and their log-probabilities: (..., k)
        each.

        ``search="beam"`` scores only the classes that survive a beam down the tree; log-probabilities are then normalised over
        these candidates.
        """
        if not 1 <= k <= self.n_classes:
            raise ValueError(f"k is {k}; ask for 1 to {self.n_classes} classes.")
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
        tree, noise = self.noise.tree, self.noise.current()
        if tree is None:
            raise ValueError(
                "search='beam' needs a label tree, and none was fitted yet. Call fit_tree, or use search='exact'."
            )
        width, k = min(width, self.n_classes), labels.shape[1]
        for a, b in self._blocks(len(h), width * self.in_features):
            Z = self.noise.project(h[a:b])
            found, _ = tree.candidates(Z, width, n_jobs=self.n_jobs)
            known = np.maximum(found, 0)
            candidates = torch.from_numpy(known.astype(np.int64)).to(h.device)
            scores = self._score(h[a:b], candidates)
            if self.base == "noise":
                scores += torch.from_numpy(noise.log_prob(Z, known, n_jobs=self.n_jobs)).to(h.device)
            scores.masked_fill_(torch.from_numpy(found < 0).to(h.device), -math.inf)
            best, place = F.log_softmax(scores, dim=1).topk(k, dim=1)
            log_prob[a:b], labels[a:b] = best, candidates.gather(1, place)

    # -- parts
    # ---------------------------------------------------------------------------------------------------------------

    def _blocks(self, n: int, row_size: int | None = None) -> Iterator[tuple[int, int]]:
        step = max(1, _BLOCK_SCORES // (self.n_classes if row_size is None else row_size))
        return ((a, min(a + step, n)) for a in range(0, n, step))

    def _flat(self, hidden: Tensor) -> Tensor:
        if hidden.ndim < 1 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"hidden has shape {tuple(hidden.shape)}; its last dimension must be {self.in_features}."
            )
        return hidden.reshape(-1, self.in_features)

    def _flat_pairs(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and targets as (n, in_features) and (n,), without those to be ignored."""
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


def _n_processes() -> int:
    """Processes that train together, in the sense of torch.distributed."""
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if together else 1


def _to_numpy(values: Tensor | ArrayLike) -> NDArray[np.generic]:
    if isinstance(values, Tensor):
        values = values.detach()
        return np.asarray((values.float() if values.is_floating_point() else values).cpu().numpy())
    return np.asarray(values)
