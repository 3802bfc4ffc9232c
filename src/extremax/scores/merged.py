"""Searches and probabilities of models with merged classes: sums over the parts of each class.

Weights, noise and indexes know parts alone.  The best parts of a row come from any search; the
log-probability of each part of a merged class then follows from that of the best part of the row,

    log p(part|x) = log p(best|x) + (s_part - s_best) / temperature(x),

and the probability of a class is the sum over its parts.  Uniform mixing gives every part the same, so that a
class has as much of it as it has parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from extremax.calibration import Calibration
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.runtime.threads import split
from extremax.scores import probabilities as scores
from extremax.scores.base import Scorer, Search
from extremax.scores.exact import ExactSearch
from extremax.scores.pairs import RankedPairs, RankedScores, score_pairs
from extremax.scores.parts import Parts
from extremax.scores.scan import scan
from extremax.tuned import SearchConfig
from extremax.types import Features, Float32, Float64, Int32, Int64

_BLOCK_SCORES = 1 << 22  # scores of merged parts that are in memory together
_MORE = 4  # times as many parts where those found are of too few classes


@dataclass(frozen=True, eq=False)
class _Block:
    """The best parts of some rows.

    Attributes
    ----------
    labels, log_prob
        Parts, best first, and their log-probabilities before uniform mixing.
    inverse
        Inverse temperature of each row.
    best
        Score of the best part of each row.
    """

    labels: Int32
    log_prob: Float32
    inverse: Float64
    best: Float64

    def log_prob_of(self, rows: Int64, scores: Float64) -> Float64:
        """Return log-probabilities of parts of some rows, from their scores."""
        found: Float64 = (
            self.log_prob[rows, 0].astype(np.float64) + (scores - self.best[rows]) * self.inverse[rows]
        )
        return found


def _scores_all(search: Search) -> bool:
    """Whether a search is the exact one."""
    return bool(getattr(search, "scores_all", False))


@dataclass(frozen=True, eq=False)
class MergedClasses:
    """Predictions of classes from those of their parts.

    Attributes
    ----------
    scorer
        Scores of the parts.
    parts
        The class of each part.
    n_threads
        Threads; no result depends on it.
    """

    scorer: Scorer
    parts: Parts
    n_threads: int = 1
    config: SearchConfig = field(default_factory=SearchConfig)

    @property
    def _unmixed(self) -> Scorer:
        """The scorer without uniform mixing, which comes last."""
        return replace(self.scorer, calibration=self.scorer.calibration._replace(uniform_mix=0.0))

    def _mix(self, log_prob: Float64, classes: Int32 | slice) -> Float64:
        """Return log-probabilities of classes with uniform mixing; -inf, which is no class, stays."""
        mix = self.scorer.calibration.uniform_mix
        if mix == 0.0:
            return log_prob
        share = self.parts.shares()[classes]
        with np.errstate(divide="ignore"):
            mixed = np.log((1.0 - mix) * np.exp(log_prob) + mix * share)
        return np.where(np.isneginf(log_prob), -np.inf, mixed)

    # -- the best classes

    def topk(self, search: Search, X: Features, k: int, *, width: int | None = None) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities, best first.

        Of a search that does not look at all parts, a merged class is found by any of its parts, and then has
        all of them.
        """
        labels = np.full((X.shape[0], k), -1, np.int32)
        log_prob = np.full((X.shape[0], k), -np.inf, np.float32)
        for first, last in self._blocks(X.shape[0]):
            rows = X[first:last]
            found, values = self._topk_rows(search, rows, k, width)
            width_found = min(k, found.shape[1])
            labels[first:last, :width_found] = found[:, :width_found]
            log_prob[first:last, :width_found] = values[:, :width_found]
        return labels, log_prob

    def _blocks(self, n_rows: int) -> list[tuple[int, int]]:
        n_merged = max(len(self.parts.merged_parts), 1)
        return split(n_rows, max(1, min(self.config.pair_block_rows, _BLOCK_SCORES // n_merged)))

    def _topk_rows(self, search: Search, X: Features, k: int, width: int | None) -> tuple[Int32, Float64]:
        n_parts = self.parts.n_parts
        size = min(n_parts, k + int(self.parts.sizes.max()))
        while True:
            block = self._best_parts(search, X, size, width)
            single = (block.labels >= 0) & self.parts.is_single[block.labels]
            # with k classes of one part among them, no class further down is among the best
            if size == n_parts or (single.sum(axis=1) >= k).all():
                return self._choose(block, X, single, k, exact=_scores_all(search))
            size = min(n_parts, _MORE * size)

    def _best_parts(self, search: Search, X: Features, size: int, width: int | None) -> _Block:
        plain = self._unmixed
        if _scores_all(search):
            plain.check(X, size)
            Z = plain.project(X, self.n_threads)
            labels, log_prob, _, inverse = scan(
                plain, X, Z, size, n_threads=self.n_threads, config=self.config
            )
        else:
            labels, log_prob = search.topk(plain, X, size, width=width, n_threads=self.n_threads)
            inverse = np.full(X.shape[0], plain.inverse_temperature)
            if plain.calibration.temperature_slope != 0.0:
                same = replace(plain, calibration=Calibration(plain.calibration.temperature))
                _, log_top = search.topk(same, X, 1, width=width, n_threads=self.n_threads)
                inverse = plain.temper(log_top[:, 0])
        finite = (labels[:, 0] >= 0) & np.isfinite(log_prob[:, 0])
        if not finite.all():
            raise ScoreOverflowError(int(np.argmin(finite)))
        best = self._scores(X, np.arange(X.shape[0]), labels[:, 0])
        return _Block(labels, log_prob, inverse.astype(np.float64), best)

    def _scores(self, X: Features, rows: Int64, classes: Int32) -> Float64:
        """Return the scores of parts of some rows."""
        pairs = Examples(X, np.ascontiguousarray(classes, np.int32), rows.astype(np.int64))
        Z = self.scorer.project(X, self.n_threads)
        found: Float64 = score_pairs(self.scorer, pairs, Z, self.n_threads, self.config).astype(np.float64)
        return found

    def _choose(
        self, block: _Block, X: Features, single: np.ndarray, k: int, *, exact: bool
    ) -> tuple[Int32, Float64]:
        """Return the best of the classes of one part that were found, and of all merged ones."""
        parts, n_rows = self.parts, X.shape[0]
        known = np.maximum(block.labels, 0)
        classes = np.where(single, parts.class_of[known], -1).astype(np.int32)
        log_prob = np.where(single, block.log_prob.astype(np.float64), -np.inf)
        merged = parts.merged_classes
        if len(merged):
            rows = np.repeat(np.arange(n_rows), len(parts.merged_parts))
            values = self._scores(X, rows, np.tile(parts.merged_parts, n_rows))
            table = block.log_prob_of(rows, values).reshape(n_rows, -1)
            of_class = np.logaddexp.reduceat(table, parts.merged_starts, axis=1)
            if not exact:
                found = np.zeros((n_rows, parts.n_classes), bool)
                at = np.nonzero((block.labels >= 0) & ~single)
                found[at[0], parts.class_of[block.labels[at]]] = True
                of_class = np.where(found[:, merged], of_class, -np.inf)
            classes = np.hstack([classes, np.broadcast_to(merged, (n_rows, len(merged)))])
            log_prob = np.hstack([log_prob, of_class])
        classes = np.where(np.isneginf(log_prob), -1, classes).astype(np.int32)
        mixed = self._mix(log_prob, np.maximum(classes, 0))
        order = np.lexsort((classes, -mixed), axis=-1)[:, :k]
        return np.take_along_axis(classes, order, axis=1), np.take_along_axis(mixed, order, axis=1)

    def rank_pairs(self, examples: Examples, k: int) -> RankedPairs:
        """Return the k best classes of each row, and log p(y|x) of each pair."""
        X = examples.X
        targets = scores.check_targets(examples, self.parts.n_classes)
        labels, log_prob = self.topk(ExactSearch(self.config), X, k)
        pair_log_prob = np.empty(examples.n_pairs, np.float32)
        rows = examples.rows
        for first, last in split(X.shape[0], self.config.pair_block_rows):
            inside = np.flatnonzero((rows >= first) & (rows < last))
            block = self._best_parts(ExactSearch(self.config), X[first:last], 1, None)
            expanded, starts = self.parts.expand(targets[inside])
            local = np.repeat(rows[inside] - first, self.parts.sizes[targets[inside]])
            values = block.log_prob_of(local, self._scores(X[first:last], local, expanded))
            if len(inside):
                summed = np.logaddexp.reduceat(values, starts)
                pair_log_prob[inside] = self._mix(summed, targets[inside])
        return RankedPairs(labels, log_prob, pair_log_prob)

    def rank_scores(self, X: Features, k: int) -> RankedScores:
        """Return the k best classes of each row by the softmax without calibration, and its normaliser."""
        plain = replace(self, scorer=replace(self.scorer, calibration=Calibration()))
        k = min(k, self.parts.n_classes)
        labels, log_softmax = plain.topk(ExactSearch(self.config), X, k)
        normalizer = np.empty(X.shape[0])
        for first, last in split(X.shape[0], self.config.pair_block_rows):
            block = plain._best_parts(ExactSearch(self.config), X[first:last], 1, None)
            normalizer[first:last] = block.best - block.log_prob[:, 0]
        return RankedScores(labels, log_softmax.astype(np.float64), normalizer)

    # -- all classes

    def log_prob_all(self, X: Features) -> Float32:
        """Return log p(y|x) of every class: (n, n_classes)."""
        of_parts = scores.log_prob_all(self._unmixed, X, n_threads=self.n_threads, config=self.config)
        return self._mix(self.parts.sum_log(of_parts.astype(np.float64)), slice(None)).astype(np.float32)

    def prob_all(self, X: Features) -> Float64:
        """Return p(y|x) of every class, in float64: (n, n_classes)."""
        of_parts = scores.prob_all(self.scorer, X, n_threads=self.n_threads, config=self.config)
        return self.parts.sum(of_parts)

    def log_softmax_all(self, X: Features) -> tuple[Float64, Float64]:
        """Return the log-softmax of all classes without calibration, and the log normalisers."""
        table, normalizer = scores.log_softmax_all(
            self.scorer, X, n_threads=self.n_threads, config=self.config
        )
        return self.parts.sum_log(table), normalizer

    def debiased_scores(self, X: Features) -> Float32:
        """Return ``t log sum exp(s / t)`` over the parts of each class, with the temperature t of the row."""
        of_parts = scores.debiased_scores(self.scorer, X, n_threads=self.n_threads, config=self.config)
        temperature = self._temperatures(of_parts)[:, None]
        found: Float32 = (temperature * self.parts.sum_log(of_parts / temperature)).astype(np.float32)
        return found

    def _temperatures(self, of_parts: Float32) -> Float64:
        calibration = self.scorer.calibration
        log_top = scores.log_softmax(of_parts, temperature=calibration.temperature).max(axis=1)
        return calibration.row_temperature(log_top.astype(np.float64))

    def weigh_parts(self, X: Features, label: int) -> tuple[Float64, float]:
        """Return the share of each part in the score of a class for one row, and the temperature of the row.

        With shares r and scores s of the parts, the score of the class is ``sum r s - t sum r log r``.
        """
        of_parts = scores.debiased_scores(self.scorer, X, n_threads=self.n_threads, config=self.config)
        temperature = float(self._temperatures(of_parts)[0])
        scaled = of_parts[0, self.parts.of(label)].astype(np.float64) / temperature
        share = np.exp(scaled - scaled.max())
        return share / share.sum(), temperature

    def assign(self, examples: Examples) -> Examples:
        """Return the examples with parts as classes: of the parts of its class, that of the highest score."""
        targets, rows = examples.y, examples.rows
        several = np.flatnonzero(~self.parts.is_single[self.parts.order[self.parts.starts[targets]]])
        y = self.parts.order[self.parts.starts[targets]].copy()
        if len(several):
            expanded, starts = self.parts.expand(targets[several])
            sizes = self.parts.sizes[targets[several]]
            values = self._scores(examples.X, np.repeat(rows[several], sizes), expanded)
            # first of the highest of each group: groups are in order, and so is a stable sort
            group = np.repeat(np.arange(len(several)), sizes)
            order = np.lexsort((expanded, -values, group))
            y[several] = expanded[order[starts]]
        return replace(examples, y=y.astype(np.int32))
