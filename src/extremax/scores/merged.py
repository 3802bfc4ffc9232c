"""Merged classes: several lines of the weights that answer as one class.

Weights, noise and searches know lines alone; a `LabelMap` says to which class each line belongs, and
`MergedPredictor` sums the probabilities of the lines of a class.  The best lines of a row come from any
search; the log-probability of another line then follows from that of the best,

    log p(line|x) = log p(best|x) + (s_line - s_best) / temperature(x).

Uniform mixing gives every line the same, so a class has as much of it as it has lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.calibration import Calibration
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.runtime.threads import split
from extremax.scores.base import Search
from extremax.scores.probabilities import (
    Predictor,
    RankedPairs,
    RankedScores,
    check_targets,
    log_softmax,
)
from extremax.scores.scan import scan
from extremax.scores.topk import ExactSearch
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tuned import CalibrationConfig
from extremax.types import Bool, Features, Float32, Float64, Int32, Int64

_BLOCK_SCORES = 1 << 22  # scores of merged lines that are in memory together
_MORE = 4  # times as many lines where those found are of too few classes


@dataclass(frozen=True, eq=False)
class LabelMap:
    """The class of each line of the weights.

    Attributes
    ----------
    class_of : int32 (n_lines,)
        Every class from 0 to ``n_classes - 1`` has at least one line.

    Examples
    --------
    >>> label_map = LabelMap(np.array([0, 1, 0], np.int32))
    >>> label_map.n_classes, label_map.sizes.tolist()
    (2, [2, 1])
    >>> np.exp(label_map.reduce(np.logaddexp, np.log(np.array([[0.2, 0.5, 0.3]])))).round(6).tolist()
    [[0.5, 0.5]]
    """

    class_of: Int32

    @classmethod
    def identity(cls, n_classes: int) -> LabelMap:
        """Return the map in which line i is class i."""
        return cls(np.arange(n_classes, dtype=np.int32))

    @property
    def n_lines(self) -> int:
        return len(self.class_of)

    @cached_property
    def sizes(self) -> Int64:
        """Lines of each class, (n_classes,)."""
        return np.bincount(self.class_of).astype(np.int64)

    @property
    def n_classes(self) -> int:
        return len(self.sizes)

    @cached_property
    def order(self) -> Int32:
        """All lines, class by class, and ascending within a class."""
        return np.argsort(self.class_of, kind="stable").astype(np.int32)

    @cached_property
    def starts(self) -> Int64:
        """Where the lines of each class begin in `order`, and where the last end: (n_classes + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def merged_classes(self) -> Int32:
        """Classes of several lines, ascending."""
        return np.flatnonzero(self.sizes > 1).astype(np.int32)

    def of(self, label: int) -> Int32:
        """Return the lines of a class."""
        return self.order[self.starts[label] : self.starts[label + 1]]

    def first(self, classes: NDArray[Any]) -> Int32:
        """Return the first line of each of some classes."""
        found: Int32 = self.order[self.starts[classes]]
        return found

    def expand(self, classes: NDArray[Any]) -> tuple[Int32, Int64]:
        """Return the lines of some classes one after the other, and where those of each begin."""
        sizes = self.sizes[classes]
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        inside = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
        return self.order[np.repeat(self.starts[classes], sizes) + inside], starts.astype(np.int64)

    def reduce(self, operation: np.ufunc, table: NDArray[Any]) -> NDArray[Any]:
        """Combine the lines of each class along the last axis: by a sum, a maximum or `np.logaddexp`."""
        found: NDArray[Any] = operation.reduceat(table[..., self.order], self.starts[:-1], axis=-1)
        return found

    def take(self, kept: Bool) -> tuple[Bool, LabelMap | None]:
        """Return which lines some classes have, and the map of these; None where line i is class i."""
        of_kept = kept[self.class_of]
        number = np.cumsum(kept) - 1
        found = LabelMap(number[self.class_of[of_kept]].astype(np.int32))
        return of_kept, None if np.array_equal(found.class_of, np.arange(found.n_lines)) else found

    def state(self) -> State:
        """Return the state that a model folder stores."""
        return State({}, {"class_of": self.class_of})

    @classmethod
    def from_state(cls, state: State) -> LabelMap:
        """Restore a map from its state; every class must have a line."""
        class_of = checks.get_array(state.arrays, "class_of", "i4", (None,))
        if len(class_of) == 0:
            checks.reject("its merged classes have no parts")
        checks.check_range(class_of, "class_of", 0, len(class_of))
        found = cls(np.array(class_of))
        if not found.sizes.all():
            checks.reject("a class of it has no part")
        return found


@dataclass(frozen=True, eq=False)
class _BestLines:
    """The best lines of some rows.

    Attributes
    ----------
    lines, log_prob
        Lines, best first, and their log-probabilities before uniform mixing.
    inverse
        Inverse temperature of each row.
    best
        Score of the best line of each row.
    """

    lines: Int32
    log_prob: Float32
    inverse: Float64
    best: Float64

    def log_prob_of(self, rows: Int64, scores: Float64) -> Float64:
        """Return log-probabilities of lines of some rows, from their scores."""
        found: Float64 = (
            self.log_prob[rows, 0].astype(np.float64) + (scores - self.best[rows]) * self.inverse[rows]
        )
        return found


@dataclass(frozen=True, eq=False, kw_only=True)
class MergedPredictor(Predictor):
    """Answers about classes, from those about their lines."""

    label_map: LabelMap

    # -- best classes

    def topk(self, search: Search, X: Features, k: int, *, width: int | None = None) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities, best first.

        A search that does not look at all lines finds a merged class by any of its lines; the class then has
        all of them.
        """
        labels = np.full((X.shape[0], k), -1, np.int32)
        log_prob = np.full((X.shape[0], k), -np.inf, np.float32)
        n_merged = max(int(self.label_map.sizes[self.label_map.merged_classes].sum()), 1)
        for first, last in split(
            X.shape[0], max(1, min(self.config.pair_block_rows, _BLOCK_SCORES // n_merged))
        ):
            found, values = self._topk_rows(search, X[first:last], k, width)
            labels[first:last, : found.shape[1]] = found
            log_prob[first:last, : found.shape[1]] = values
        return labels, log_prob

    def _topk_rows(self, search: Search, X: Features, k: int, width: int | None) -> tuple[Int32, Float64]:
        label_map = self.label_map
        is_single = label_map.sizes[label_map.class_of] == 1
        size = min(label_map.n_lines, k + int(label_map.sizes.max()))
        while True:
            best = self._best_lines(search, X, size, width)
            single = (best.lines >= 0) & is_single[best.lines]
            # with k classes of one line among them, no class further down is among the best
            if size == label_map.n_lines or (single.sum(axis=1) >= k).all():
                return self._choose(best, X, single, k, exact=isinstance(search, ExactSearch))
            size = min(label_map.n_lines, _MORE * size)

    def _best_lines(self, search: Search, X: Features, size: int = 1, width: int | None = None) -> _BestLines:
        """Return the best lines of rows; uniform mixing comes last."""
        plain = replace(self.scorer, calibration=self.scorer.calibration._replace(uniform_mix=0.0))
        if isinstance(search, ExactSearch):
            plain.check(X, size)
            Z = plain.project(X, self.n_threads)
            lines, log_prob, _, inverse = scan(
                plain, X, Z, size, n_threads=self.n_threads, config=self.config
            )
        else:
            lines, log_prob = search.topk(plain, X, size, width=width, n_threads=self.n_threads)
            inverse = np.full(X.shape[0], plain.inverse_temperature)
            if plain.tempers_rows:
                same = replace(plain, calibration=Calibration(plain.calibration.temperature))
                _, log_top = search.topk(same, X, 1, width=width, n_threads=self.n_threads)
                inverse = plain.temper(log_top[:, 0])
        finite = (lines[:, 0] >= 0) & np.isfinite(log_prob[:, 0])
        if not finite.all():
            raise ScoreOverflowError(int(np.argmin(finite)))
        best = self._line_scores(X, np.arange(X.shape[0]), lines[:, 0])
        return _BestLines(lines, log_prob, inverse.astype(np.float64), best)

    def _line_scores(self, X: Features, rows: Int64, lines: Int32) -> Float64:
        """Return the scores of lines for some rows."""
        pairs = Examples(X, np.ascontiguousarray(lines, np.int32), rows.astype(np.int64))
        found: Float64 = self.score_pairs(pairs, self.scorer.project(X, self.n_threads)).astype(np.float64)
        return found

    def _choose(
        self, best: _BestLines, X: Features, single: Bool, k: int, *, exact: bool
    ) -> tuple[Int32, Float64]:
        """Return the best of the classes of one line that were found, and of all merged ones."""
        label_map, n_rows = self.label_map, X.shape[0]
        class_of = label_map.class_of[np.maximum(best.lines, 0)]
        classes = np.where(single, class_of, -1)
        log_prob = np.where(single, best.log_prob.astype(np.float64), -np.inf)
        merged = label_map.merged_classes
        if len(merged):
            lines, starts = label_map.expand(merged)
            rows = np.repeat(np.arange(n_rows), len(lines))
            table = best.log_prob_of(rows, self._line_scores(X, rows, np.tile(lines, n_rows)))
            of_class = np.logaddexp.reduceat(table.reshape(n_rows, -1), starts, axis=1)
            if not exact:
                found = np.zeros((n_rows, label_map.n_classes), bool)
                at = np.nonzero((best.lines >= 0) & ~single)
                found[at[0], class_of[at]] = True
                of_class = np.where(found[:, merged], of_class, -np.inf)
            classes = np.hstack([classes, np.broadcast_to(merged, (n_rows, len(merged)))])
            log_prob = np.hstack([log_prob, of_class])
        classes = np.where(np.isneginf(log_prob), -1, classes).astype(np.int32)
        mixed = self._mix(log_prob, np.maximum(classes, 0))
        order = np.lexsort((classes, -mixed), axis=-1)[:, :k]
        return np.take_along_axis(classes, order, axis=1), np.take_along_axis(mixed, order, axis=1)

    def _mix(self, log_prob: Float64, classes: Int32 | slice) -> Float64:
        """Return log-probabilities of classes with uniform mixing; -inf marks missing classes and stays."""
        mix = self.scorer.calibration.uniform_mix
        if mix == 0.0:
            return log_prob
        share = (self.label_map.sizes / self.label_map.n_lines)[classes]
        with np.errstate(divide="ignore"):
            mixed = np.log((1.0 - mix) * np.exp(log_prob) + mix * share)
        return np.where(np.isneginf(log_prob), -np.inf, mixed)

    def rank_pairs(self, examples: Examples, k: int) -> RankedPairs:
        """Return the k best classes of each row, and log p(y|x) of each pair."""
        X, rows, exact = examples.X, examples.rows, ExactSearch(self.config)
        targets = check_targets(examples, self.label_map.n_classes)
        labels, log_prob = self.topk(exact, X, k)
        pair_log_prob = np.empty(examples.n_pairs, np.float32)
        for first, last in split(X.shape[0], self.config.pair_block_rows):
            inside = np.flatnonzero((rows >= first) & (rows < last))
            best = self._best_lines(exact, X[first:last])
            lines, starts = self.label_map.expand(targets[inside])
            local = np.repeat(rows[inside] - first, self.label_map.sizes[targets[inside]])
            values = best.log_prob_of(local, self._line_scores(X[first:last], local, lines))
            if len(inside):
                summed = np.logaddexp.reduceat(values, starts)
                pair_log_prob[inside] = self._mix(summed, targets[inside])
        return RankedPairs(labels, log_prob, pair_log_prob)

    def rank_scores(self, X: Features, k: int) -> RankedScores:
        """Return the k best classes of each row by the softmax without calibration, and its normaliser."""
        plain, exact = replace(self, scorer=replace(self.scorer, calibration=Calibration())), ExactSearch()
        labels, log_prob = plain.topk(exact, X, min(k, self.label_map.n_classes))
        normalizer = np.empty(X.shape[0])
        for first, last in split(X.shape[0], self.config.pair_block_rows):
            best = plain._best_lines(exact, X[first:last])
            normalizer[first:last] = best.best - best.log_prob[:, 0]
        return RankedScores(labels, log_prob.astype(np.float64), normalizer)

    # -- tables of all classes

    def log_prob_all(self, X: Features) -> Float32:
        """Return log p(y|x) of every class."""
        found = self.label_map.reduce(np.logaddexp, self._calibrated(X).astype(np.float64))
        return self._mix(found, slice(None)).astype(np.float32)

    def prob_all(self, X: Features) -> Float64:
        """Return p(y|x) of every class, in float64."""
        return self.label_map.reduce(np.add, super().prob_all(X))

    def log_softmax_all(self, X: Features) -> tuple[Float64, Float64]:
        """Return the log-softmax of all classes without calibration, and the log normalisers."""
        table, normalizer = super().log_softmax_all(X)
        return self.label_map.reduce(np.logaddexp, table), normalizer

    def debiased_scores(self, X: Features) -> Float32:
        """Return ``t log sum exp(s / t)`` over the lines of each class, with the temperature t of the row."""
        scores, temperature = self._tempered_scores(X)
        summed = self.label_map.reduce(np.logaddexp, scores / temperature[:, None])
        found: Float32 = (temperature[:, None] * summed).astype(np.float32)
        return found

    def _tempered_scores(self, X: Features) -> tuple[Float32, Float64]:
        """Return the scores of all lines, and the temperature of each row."""
        scores, calibration = self._score_table(X), self.scorer.calibration
        log_top = log_softmax(scores, temperature=calibration.temperature).max(axis=1)
        return scores, calibration.row_temperature(log_top.astype(np.float64))

    # -- single lines

    def weigh_lines(self, X: Features, label: int) -> tuple[Float64, float]:
        """Return the share of each line in the score of a class for one row, and the temperature of the row.

        With shares r and scores s of the lines, the score of the class is ``sum r s - t sum r log r``.
        """
        scores, temperature = self._tempered_scores(X)
        scaled = scores[0, self.label_map.of(label)].astype(np.float64) / float(temperature[0])
        share = np.exp(scaled - scaled.max())
        return share / share.sum(), float(temperature[0])

    def assign(self, examples: Examples) -> Examples:
        """Return the examples with lines as classes: of the lines of its class, that of the highest score."""
        targets, rows, label_map = examples.y, examples.rows, self.label_map
        y = label_map.first(targets).copy()
        several = np.flatnonzero(label_map.sizes[targets] > 1)
        if len(several):
            lines, starts = label_map.expand(targets[several])
            sizes = label_map.sizes[targets[several]]
            values = self._line_scores(examples.X, np.repeat(rows[several], sizes), lines)
            # first of the highest of each group: groups are in order, and so is a stable sort
            group = np.repeat(np.arange(len(several)), sizes)
            order = np.lexsort((lines, -values, group))
            y[several] = lines[order[starts]]
        return replace(examples, y=y.astype(np.int32))

    def choose_calibration(
        self, examples: Examples, *, config: CalibrationConfig | None = None, mixes_rows: bool = False
    ) -> Calibration:
        """Choose temperature and uniform mixing on examples that the model was not trained on."""
        return super().choose_calibration(self.assign(examples), config=config, mixes_rows=mixes_rows)
