"""Exact search, which scores every class, and beam search down the label tree of the noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from extremax.calibration import mix_uniform
from extremax.kernels import topk
from extremax.runtime.threads import run, split
from extremax.scores.base import Scorer, SearchConfig, remove_bias
from extremax.scores.scan import scan
from extremax.storage.state import State, register
from extremax.types import Features, Float32, Int32

if TYPE_CHECKING:
    from extremax.tree import LabelTree

_TASK_ROWS = 64  # rows whose best candidates a thread chooses at a time


@register("search", "exact")
@dataclass(frozen=True)
class ExactSearch:
    """Score every class; log-probabilities are normalised over all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax.scores.dense import DenseWeights
    >>> weights = DenseWeights.zeros(3, 2)
    >>> weights.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> labels, log_prob = ExactSearch().topk(Scorer(weights), np.zeros((1, 2), np.float32), 2)
    >>> labels.tolist(), np.exp(log_prob).round(3).tolist()
    ([[2, 1]], [[0.5, 0.375]])
    """

    config: SearchConfig = field(default_factory=SearchConfig)

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities; `width` is not used."""
        scorer.check(X, k)
        Z = scorer.project(X, n_threads)
        found = scan(scorer, X, Z, k, n_threads=n_threads, config=self.config)
        mixed = mix_uniform(found.log_prob, scorer.calibration.uniform_mix, scorer.n_classes)
        return found.labels, mixed

    def state(self) -> State:
        """Return the state that a model folder stores: the kind alone."""
        return State({"kind": "exact"})

    @classmethod
    def from_state(cls, state: State) -> ExactSearch:
        """Build the search that `state` described."""
        return cls()


@register("search", "tree_beam")
@dataclass(frozen=True, eq=False)
class TreeBeamSearch:
    """Score the classes that survive a beam down a label tree.

    The time per row is O(width (n_components log n_classes + n_features)).  **Log-probabilities are
    normalised over the candidates alone**, not over all classes: they are too large by minus the logarithm
    of the probability of the candidates.  A beam as wide as the tree is exact search.

    Attributes
    ----------
    tree
        Proposes candidates; the projection of the scorer makes its features.

    Examples
    --------
    >>> from extremax.features.pca import PCA
    >>> from extremax.tree.noise import TreeNoise
    >>> from extremax.scores.dense import DenseWeights
    >>> Z = np.array([[-1.0], [1.0], [-1.1], [0.9]], np.float32)
    >>> from extremax import LabelTree
    >>> tree = LabelTree.fit(Z, np.array([0, 1, 0, 1]))
    >>> identity = PCA(np.ones((1, 1), np.float32), np.zeros(1, np.float32), np.ones(1, np.float32))
    >>> scorer = Scorer(DenseWeights.zeros(2, 1), TreeNoise(tree), identity)  # the tree alone
    >>> TreeBeamSearch(tree).topk(scorer, Z, 1)[0].ravel().tolist()
    [0, 1, 0, 1]
    """

    tree: LabelTree
    config: SearchConfig = field(default_factory=SearchConfig)

    @property
    def n_classes(self) -> int:
        return self.tree.n_classes

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best candidates of each row; `width` nodes are kept per level, at least k."""
        scorer.check(X, k)
        width = max(self.config.tree_beam_width if width is None else width, k)
        Z = scorer.project_for_tree(X, n_threads)
        n_rows = X.shape[0]
        labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        for first, last in split(n_rows, self.config.beam_block_rows):
            rows = slice(first, last)
            candidates, log_noise = self._candidates(scorer, Z[rows], width, n_threads)
            scores = _score_candidates(scorer, X[rows], candidates, log_noise, n_threads)
            _choose(scorer, scores, candidates, labels[rows], log_prob[rows], n_threads)
        return labels, mix_uniform(log_prob, scorer.calibration.uniform_mix, scorer.n_classes)

    def _candidates(
        self, scorer: Scorer, Z: Float32, width: int, n_threads: int
    ) -> tuple[Int32, Float32 | None]:
        """Return the leaves of the beam, -1 where there are fewer, and their log p_n if it is needed."""
        candidates, log_prob = self.tree.candidates(Z, width, n_jobs=n_threads)
        noise = scorer.noise_term
        if noise is None:
            return candidates, None
        if noise.leaf_tree is self.tree:
            return candidates, log_prob
        return candidates, noise.log_prob(Z, np.maximum(candidates, 0), n_jobs=n_threads)

    def state(self) -> State:
        """Return the tree; a model does not store it, as its noise already does."""
        return State({"kind": "tree_beam"}, self.tree.to_arrays())

    @classmethod
    def from_state(cls, state: State) -> TreeBeamSearch:
        """Build the search that `state` described."""
        from extremax.tree import LabelTree

        return cls(LabelTree.from_state(state))


def _score_candidates(
    scorer: Scorer, X: Features, candidates: Int32, log_noise: Float32 | None, n_threads: int
) -> Float32:
    # Kernels must not read the weights of class -1.
    known = np.maximum(candidates, 0)
    scores = scorer.weights.score_pairs(X, np.arange(len(candidates)), known, n_threads)
    return remove_bias(scores, log_noise, out=scores)


def _choose(
    scorer: Scorer, scores: Float32, candidates: Int32, labels: Int32, log_prob: Float32, n_threads: int
) -> None:
    """Fill `labels` and `log_prob` with the best candidates of each row."""
    tasks = split(len(candidates), _TASK_ROWS)
    inverse = np.full(len(candidates), scorer.inverse_temperature)
    nothing = np.full(len(candidates), -np.inf, np.float32)

    def work(i: int) -> None:
        topk.choose_candidates(scores, candidates, inverse, nothing, *tasks[i], labels, log_prob)

    run(work, len(tasks), n_threads)
    if scorer.tempers_rows:
        inverse = scorer.temper(log_prob[:, 0])
        run(work, len(tasks), n_threads)
