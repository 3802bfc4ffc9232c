"""Search of sparse weights without their frequent columns: exact scores of the best by the others.

A few columns, those that a large fraction of the classes have a weight on, hold most of the weights that a
row touches and decide least.  Factors of low rank stand for them in the scores of all classes; the classes of
best approximate score are then scored exactly.  The mass of the others is that of their approximate scores,
times a factor that held-out rows choose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from extremax.calibration import Calibration, mix_uniform
from extremax.errors import ModelFileError
from extremax.kernels import sparse_scores
from extremax.kernels.sparse_scores import Frequent
from extremax.runtime.scratch import Scratch
from extremax.runtime.threads import run, split
from extremax.scores.base import Scorer
from extremax.scores.exact import ExactSearch
from extremax.scores.sparse_weights import SparseWeights, csr_rows, find_frequent, join_frequent
from extremax.storage.state import State, register
from extremax.tuned import SparseConfig
from extremax.types import Features, Float32, Int32, Int64

_ROWS_PER_TASK = 64
_ARRAYS = ("columns", "left", "right")
_NUMBERS = ("width", "recall", "tail_factor", "n_features", "n_epochs")


@register("search", "sparse")
@dataclass(frozen=True, eq=False)
class SparseSearch:
    """Approximate search of sparse weights that have no dense part.

    Attributes
    ----------
    columns : int32 (n_columns,)
        The frequent columns, of `n_features`.
    left, right : float32 (rank, n_classes), (n_columns, rank)
        Factors that stand for their weights.
    width : int or None
        Classes that are scored exactly; None where exact search is as fast.
    recall : float
        Fraction of held-out rows whose exact best class that width finds.
    tail_factor : float
        Mass of the other classes over that of their approximate scores.
    n_epochs : int
        Epochs of the model that it was made for.
    """

    columns: Int32
    left: Float32
    right: Float32
    n_features: int
    width: int | None = None
    recall: float = 1.0
    tail_factor: float = 1.0
    n_epochs: int = 0

    @classmethod
    def fit(
        cls, scorer: Scorer, X: Features, config: SparseConfig, *, n_epochs: int = 0, n_threads: int = 1
    ) -> SparseSearch | None:
        """Choose columns and width by rows like those to be predicted; None where it would not pay."""
        weights: Any = scorer.weights
        if not cls.takes(scorer, config):
            return None
        limit = int(config.frequent_classes * weights.n_classes)
        frequent = find_frequent(weights.postings, weights.n_classes, limit, config.frequent_rank)
        if frequent is None or not _pays(weights, X, frequent, config):
            return None
        columns = np.flatnonzero(frequent.place >= 0).astype(np.int32)
        search = cls(columns, frequent.left, frequent.right, len(frequent.place), n_epochs=n_epochs)
        exact, _ = ExactSearch().topk(scorer, X, 1, n_threads=n_threads)
        for width in config.search_widths:
            labels, _ = search.topk(scorer, X, 1, width=width, n_threads=n_threads)
            recall = float((labels == exact).mean())
            if recall >= config.search_recall:
                found = replace(search, width=width, recall=recall)
                return found._with_tail_factor(scorer, X, n_threads)
        return None

    def take_classes(self, index: Int64, scorer: Scorer) -> SparseSearch:
        """Return the search among some classes, in a given order."""
        return replace(self, left=np.ascontiguousarray(self.left[:, index]))

    def plus_classes(self, scorer: Scorer) -> SparseSearch:
        """Return the search with the last classes of a scorer, which it does not know yet."""
        weights: Any = scorer.weights
        first = self.left.shape[1]
        matrix = weights.to_matrix()[:, self.columns].tocsr()[first:]
        more = np.asarray(matrix @ self.right, np.float32).T
        return replace(self, left=np.ascontiguousarray(np.hstack([self.left, more])))

    @staticmethod
    def takes(scorer: Scorer, config: SparseConfig) -> bool:
        """Whether the search is made for such weights: sparse, without a dense part, many classes."""
        weights: Any = scorer.weights
        is_sparse = weights.row_major and weights.dense is None
        return is_sparse and scorer.noise_term is None and weights.n_classes >= config.frequent_min_classes

    def _with_tail_factor(self, scorer: Scorer, X: Features, n_threads: int) -> SparseSearch:
        """Return the search with the factor that makes the summed mass of all rows right."""
        width = self.width or 1
        plain = replace(scorer, calibration=Calibration(scorer.calibration.temperature))
        _, exact = ExactSearch().topk(plain, X, 1, n_threads=n_threads)
        _labels, approximate, log_rest = self._find(plain, X, 1, width, n_threads)
        # With a mass of one for the best class: 1 / p is the whole mass, inside and outside the width.
        whole, found = np.exp(-exact[:, 0].astype(np.float64)), np.exp(-approximate[:, 0].astype(np.float64))
        rest = np.exp(log_rest.astype(np.float64))
        inside = found - self.tail_factor * rest
        missing = np.maximum(whole - inside, 0.0)
        # Weights by the whole mass: what counts is the error of the logarithm.
        factor = float((missing / whole).sum() / max((rest / whole).sum(), 1e-30))
        return replace(self, tail_factor=float(np.clip(factor, 0.5, 2.0)))

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best of `width` classes with the highest approximate scores."""
        scorer.check(X, k)
        wanted = self.width if width is None else width
        if wanted is None or max(wanted, k) >= scorer.n_classes:
            return ExactSearch().topk(scorer, X, k, n_threads=n_threads)
        labels, log_prob, _ = self._find(scorer, X, k, max(wanted, 2 * k), n_threads)
        return labels, mix_uniform(log_prob, scorer.calibration.uniform_mix, scorer.n_classes)

    def _find(
        self, scorer: Scorer, X: Features, k: int, width: int, n_threads: int
    ) -> tuple[Int32, Float32, Float32]:
        weights: Any = scorer.weights
        n_rows, n_classes = X.shape[0], scorer.n_classes
        width = min(width, n_classes)
        rows, biases = csr_rows(X), (weights.biases, weights.length_biases)
        labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        log_rest, tasks = np.empty(n_rows, np.float32), split(n_rows, _ROWS_PER_TASK)
        options = (width, scorer.inverse_temperature, self.tail_factor, scorer.tempering)
        frequent, scratch = self._frequent(weights), Scratch(lambda: np.empty(n_classes, np.float32))

        def work(i: int) -> None:
            with scratch.use() as scores:
                sparse_scores.topk_rows(
                    rows, *tasks[i], weights.postings, biases, frequent, options, scores, labels, log_prob,
                    log_rest,
                )  # fmt: skip

        run(work, len(tasks), n_threads)
        return labels, log_prob, log_rest

    def _frequent(self, weights: SparseWeights) -> Frequent:
        """Return the columns with their weights by class: made at the first search, and kept."""
        kept = self.__dict__.get("_kept")
        if kept is None or kept[0] is not weights:
            found = join_frequent(weights.postings, self.columns, self.left, self.right)
            kept = self.__dict__["_kept"] = weights, found
        return kept[1]

    def state(self) -> State:
        """Return what a model folder stores."""
        header: dict[str, Any] = {"kind": "sparse", **{name: getattr(self, name) for name in _NUMBERS}}
        return State(header, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def from_state(cls, state: State) -> SparseSearch:
        """Build the search that `state` described."""
        columns, left, right = (state.arrays[name] for name in _ARRAYS)
        numbers: dict[str, Any] = {name: state.header[name] for name in _NUMBERS}
        inside = len(columns) == 0 or (int(columns.min()) >= 0 and int(columns.max()) < numbers["n_features"])
        if not inside or right.shape != (len(columns), len(left)):
            raise ModelFileError(
                "the index of beam search does not fit together (columns, left, right); copy or save the"
                " model again."
            )
        return cls(columns, left, right, **numbers)


def _pays(weights: SparseWeights, X: Any, frequent: Frequent, config: SparseConfig) -> bool:
    """Whether enough of the weights that rows touch are on frequent columns."""
    lengths = np.diff(weights.postings.offsets)[X.indices]
    skipped = lengths[frequent.place[X.indices] >= 0].sum()
    return bool(skipped >= config.search_min_saving * (lengths.sum() + X.shape[0] * weights.n_classes))
