"""AdversarialSoftmax: an output layer whose step reads the weights of a few classes, not of all.

The score of class y for a hidden state h is s_y(h) = h.w_y + b_y, and p(y|h) is the softmax of the scores.
Training compares the class of a row with a few negatives from a distribution p_n(y|h): a label tree over
principal components of the hidden states, mixed with the class frequencies.  The logits of the loss are
``s - log p_n(y|h)``, which makes up for the choice of the negatives (the correction of sampled softmax).
Scores therefore do not contain log p_n: prediction needs no tree, and a new tree changes no prediction.

Only the rows of drawn classes get a gradient, as sparse tensors: use ``torch.optim.SparseAdam``, ``Adagrad``
or ``SGD``.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor, nn

from extremax.nn.layer import RecentRows, SoftmaxLayer, check_class_counts, check_positive, n_processes
from extremax.nn.noise_state import NoiseState
from extremax.params import rename_parameters

OBJECTIVES = ("negative_sampling", "sampled_softmax")


class HeadOutput(NamedTuple):
    """What a forward pass returns.

    Attributes
    ----------
    loss : scalar
        Mean over the rows, to be differentiated.
    losses : (n,)
        Loss of each row; ignored rows are left out.
    labels : int64 (n, 1 + n_negatives)
        The target of each row, then the negatives that were drawn.
    debiased_scores : (n, 1 + n_negatives)
        Scores of these classes: log p(y|h) up to a constant of the row.
    """

    loss: Tensor
    losses: Tensor
    labels: Tensor
    debiased_scores: Tensor


class AdversarialSoftmax(SoftmaxLayer):
    """Softmax over `n_classes`, trained with negatives from a label tree.

    Parameters
    ----------
    in_features : int
        Width of the hidden states.
    n_classes : int
        Classes 0 to n_classes - 1.
    n_negatives : int
        Negatives per row and step.
    objective : {"sampled_softmax", "negative_sampling"}
        Cross-entropy of the target among itself and its negatives, or the paper's Eq. 6; both with logits
        ``s - log p_n``.
    tree_components : int
        Principal components of the hidden states that the tree is fitted on.
    tree_share : float
        Probability that a negative comes from the tree and not from the class frequencies, which bound the
        probability of every class from below when the tree is out of date.  1 is the tree alone, as in the
        paper.
    score_penalty : float
        The paper's lambda: square penalty on the scores.
    tree_regularization : float or "auto"
        Square penalty on the weights of the tree; "auto" chooses one per level by held-out likelihood.
    class_counts : (n_classes,), optional
        Training rows of each class: the noise before there is a tree, and what it is mixed with.  Unless
        given: uniform noise, then the counts of the rows that the tree is fitted on.
    refit_every : int, optional
        Fit the tree after every so many training steps, on hidden states and targets of the latest
        `refit_rows` rows, which are kept on the CPU.  None: only when `fit_tree` is called.  Under
        ``DistributedDataParallel`` every process draws from the tree of the first, which reaches it with the
        buffers of the next step.
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
    device : torch.device or str, optional
        Where parameters and buffers are.
    base : {"none"}, optional
        Has no effect; accepted, with a warning, until the next release.

    Attributes
    ----------
    weight, bias : Parameter
        (n_classes, in_features) and (n_classes, 1).

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

    bias: nn.Parameter

    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        in_features: int,
        n_classes: int,
        *,
        n_negatives: int = 8,
        objective: Literal["negative_sampling", "sampled_softmax"] = "sampled_softmax",
        tree_components: int = 32,
        tree_share: float = 0.5,
        score_penalty: float = 0.0,
        tree_regularization: float | Literal["auto"] = "auto",
        class_counts: ArrayLike | None = None,
        refit_every: int | None = None,
        refit_rows: int = 50_000,
        ignore_index: int = -100,
        sparse: bool = True,
        random_state: int = 0,
        n_jobs: int | None = None,
        device: torch.device | str | None = None,
        base: str | None = None,
        **renamed: Any,
    ) -> None:
        super().__init__()
        for name, value in rename_parameters(renamed).items():
            if name == "tree_components":
                tree_components = value
            elif name == "tree_regularization":
                tree_regularization = value
            else:
                raise TypeError(f"AdversarialSoftmax has no parameter {name!r}.")
        _check_base(base)
        check_positive(
            in_features=in_features,
            n_classes=n_classes,
            n_negatives=n_negatives,
            tree_components=tree_components,
            refit_every=refit_every,
            refit_rows=refit_rows,
        )
        if objective not in OBJECTIVES:
            raise ValueError(f"objective is {objective!r}; use {' or '.join(map(repr, OBJECTIVES))}.")
        if not 0.0 < tree_share <= 1.0:
            raise ValueError(f"tree_share is {tree_share}; it must be above 0 and at most 1.")
        counts = check_class_counts(class_counts, n_classes)
        self.in_features = in_features
        self.n_classes = n_classes
        self.n_negatives = n_negatives
        self.objective = objective
        self.score_penalty = score_penalty
        self.tree_regularization = tree_regularization
        self.refit_every = refit_every
        self.refit_rows = refit_rows
        self.ignore_index = ignore_index
        self.sparse = sparse
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.counts_are_given = class_counts is not None
        self.weight = nn.Parameter(torch.zeros(n_classes, in_features, device=device))
        self.bias = nn.Parameter(torch.zeros(n_classes, 1, device=device))
        self.noise = NoiseState(in_features, n_classes, tree_components, tree_share, counts).to(device)
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64, device=device))
        self.reset_parameters()
        self._recent = RecentRows()

    def reset_parameters(self) -> None:
        """Set weights to zero and biases to the log-frequencies of the classes."""
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(torch.from_numpy(self.noise.frequencies().log_prob_[:, None]))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, n_classes={self.n_classes}, n_negatives={self.n_negatives}"

    # -- training

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, hidden: Tensor, targets: Tensor) -> HeadOutput:
        """Return the loss of hidden states (..., in_features) and targets (...), with new negatives."""
        h, y = self._flat_pairs(hidden, targets)
        if len(y) == 0:
            raise ValueError(
                f"targets holds no row other than ignore_index ({self.ignore_index}); a mean needs at least"
                " one."
            )
        if self.training:
            if self.sparse and n_processes() > 1:
                raise RuntimeError(
                    "sparse=True trains in one process; use sparse=False with DistributedDataParallel."
                )
            self._keep(h, y)
        labels, log_noise = self._draw(h, y)
        if self.training:
            self.n_steps += 1
        scores = self._score(h, labels)
        logits = scores - log_noise
        penalty = self.score_penalty * scores.square()
        if self.objective == "negative_sampling":
            positive = F.softplus(-logits[:, 0]) + penalty[:, 0]
            losses = positive + (F.softplus(logits[:, 1:]) + penalty[:, 1:]).mean(dim=1)
        else:
            losses = -F.log_softmax(logits, dim=1)[:, 0] + penalty.sum(dim=1)
        return HeadOutput(losses.mean(), losses, labels, scores.detach())

    def _draw(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return target and negatives of each row, and log p_n of all of them."""
        noise, Z = self.noise.current(), self.noise.project(h)
        targets = y.cpu().numpy().astype(np.int32)
        rank = torch.distributed.get_rank() if n_processes() > 1 else 0
        seeds = np.random.SeedSequence((self.random_state, int(self.n_steps), rank))
        seed = int(seeds.generate_state(1, np.uint64)[0])
        negatives, log_noise = noise.sample(Z, self.n_negatives, seed, n_jobs=self.n_jobs)
        labels = np.concatenate([targets[:, None], negatives], axis=1)
        positive = noise.log_prob(Z, targets, n_jobs=self.n_jobs)
        log_prob = np.concatenate([positive[:, None], log_noise], axis=1)
        return torch.from_numpy(labels.astype(np.int64)).to(h.device), torch.from_numpy(log_prob).to(h.device)

    def _score(self, h: Tensor, labels: Tensor) -> Tensor:
        """Return the scores of the given classes (n, m)."""
        with torch.autocast(h.device.type, enabled=False):
            w = F.embedding(labels, self.weight, sparse=self.sparse)
            b = F.embedding(labels, self.bias, sparse=self.sparse)
            return torch.bmm(w, h.to(w.dtype).unsqueeze(-1)).squeeze(-1).float() + b.squeeze(-1).float()

    def _keeps_rows(self) -> bool:
        return self.refit_every is not None

    def _refit_is_due(self, n_steps: int) -> bool:
        return self.refit_every is not None and n_steps > 0 and n_steps % self.refit_every == 0


def _check_base(base: str | None) -> None:
    """Warn of the former parameter `base` where it has the value that is left, else raise."""
    if base is None:
        return
    if base != "none":
        raise ValueError(
            f"base is {base!r}, but scores no longer contain log p_n: leave base out and train anew,"
            " or use ExtremeClassifier(objective='negative_sampling') for hidden states that do not change."
        )
    message = "base='none' is now the only way and the parameter will go with the next release; leave it out."
    warnings.warn(message, FutureWarning, stacklevel=3)
