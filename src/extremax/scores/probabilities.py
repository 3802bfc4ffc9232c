"""Best classes, probabilities and scores of rows, as a model answers them.

Tables of all classes are for results that fit in memory.  Elsewhere one pass over all classes gives the k
best classes of a row with their normalised log-probabilities, and the log-probability of another class of the
row follows from that of the best:

    log p(y|x) = log p(best|x) + (s_y - s_best) / temperature

with debiased scores s (Eq. 5).  A row is scanned once, however many labels it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.calibration import (
    Calibration,
    LabelCalibration,
    fit_calibration,
    fit_label_calibration,
    mix_uniform,
)
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples, mix_rows
from extremax.metrics import accuracy_at_k, label_hits
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import split
from extremax.scores.base import Buffers, Scorer, Search, SearchConfig, remove_bias
from extremax.scores.scan import Tiles, scan
from extremax.scores.sparse import SparseWeights
from extremax.tuned import CalibrationConfig
from extremax.types import Features, Float32, Float64, Int32

_LABEL_CANDIDATES = 64  # best classes of a row that the probability of each label is fitted on


class RankedPairs(NamedTuple):
    """Best classes of each row, and the log-probability of each pair.

    Attributes
    ----------
    labels : int32 (n_rows, k)
        Best first.
    log_prob : float32 (n_rows, k)
        Of these classes.
    pair_log_prob : float32 (n_pairs,)
        Of the given pairs.
    """

    labels: Int32
    log_prob: Float32
    pair_log_prob: Float32


class RankedScores(NamedTuple):
    """Best classes of each row, their log-softmax without calibration, and its normaliser.

    Attributes
    ----------
    labels : int32 (n_rows, k)
        Best first.
    log_softmax : float64 (n_rows, k)
        Score minus the normaliser.
    normalizer : float64 (n_rows,)
        Log of the sum of exp(scores) of all classes.
    """

    labels: Int32
    log_softmax: Float64
    normalizer: Float64


class Evaluation(NamedTuple):
    """Weighted means over labelled rows."""

    log_likelihood: float
    accuracy: float
    top_k_accuracy: float


@dataclass(frozen=True, eq=False)
class Predictor:
    """Answers about rows, from the scores of a model.

    Attributes
    ----------
    scorer
        Defines scores and probabilities.
    n_threads
        Threads; no result depends on it.
    config
        Sizes of blocks and tiles.

    Examples
    --------
    >>> from extremax.scores.dense import DenseWeights
    >>> weights = DenseWeights.zeros(3, 2)
    >>> weights.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> predictor = Predictor(Scorer(weights))
    >>> predictor.prob_all(np.zeros((1, 2), np.float32)).round(3).tolist()
    [[0.125, 0.375, 0.5]]
    >>> pairs = Examples(np.zeros((1, 2), np.float32), np.array([0, 2], np.int32), np.array([0, 0]))
    >>> found = predictor.rank_pairs(pairs, 1)
    >>> found.labels.tolist(), np.exp(found.pair_log_prob).round(3).tolist()
    ([[2]], [0.125, 0.5])
    """

    scorer: Scorer
    n_threads: int = 1
    config: SearchConfig = field(default_factory=SearchConfig)

    # -- best classes

    def topk(self, search: Search, X: Features, k: int, *, width: int | None = None) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities, best first."""
        return search.topk(self.scorer, X, k, width=width, n_threads=self.n_threads)

    def rank_pairs(self, examples: Examples, k: int) -> RankedPairs:
        """Return the k best classes of each row, and log p(y|x) of each pair."""
        scorer, X, rows = self.scorer, examples.X, examples.row_index
        scorer.check(X, k)
        targets, Z = check_targets(examples, scorer.n_classes), scorer.project(X, self.n_threads)
        options: dict[str, Any] = {"n_threads": self.n_threads, "config": self.config}
        if rows is None:
            labels, log_prob, pair_log_prob, _ = scan(scorer, X, Z, k, targets=targets, **options)
        else:
            labels, log_prob, _, inverse = scan(scorer, X, Z, k, **options)
            # Class -1 means scores that are not numbers; its weights must not be read.
            best, finite = np.maximum(labels[:, 0], 0), labels[:, 0] >= 0
            # The best class of each row comes behind the pairs.
            both = np.append(rows, np.arange(X.shape[0], dtype=np.int64))
            scores = self.score_pairs(Examples(X, np.append(targets, best), both), Z)
            difference = scores[: len(rows)] - scores[len(rows) :][rows]
            pair_log_prob = log_prob[rows, 0] + difference * inverse[rows]
            pair_log_prob[~finite[rows]] = np.nan
        mix = scorer.calibration.uniform_mix
        return RankedPairs(
            labels,
            mix_uniform(log_prob, mix, scorer.n_classes),
            mix_uniform(pair_log_prob, mix, scorer.n_classes),
        )

    def rank_scores(self, X: Features, k: int) -> RankedScores:
        """Return the k best classes of each row, at most as many as there are, and the normaliser.

        There is no calibration in them.
        """
        plain = replace(self, scorer=replace(self.scorer, calibration=Calibration()))
        k = min(k, self.scorer.n_classes)
        plain.scorer.check(X, k)
        Z = plain.scorer.project(X, self.n_threads)
        best, log_softmax, *_ = scan(plain.scorer, X, Z, k, n_threads=self.n_threads, config=self.config)
        finite = (best >= 0).all(axis=1) & np.isfinite(log_softmax[:, 0])
        if not finite.all():
            raise ScoreOverflowError(int(np.argmin(finite)))
        first = plain.score_pairs(Examples(X, best[:, 0]), Z)
        as_float64 = log_softmax.astype(np.float64)
        return RankedScores(best, as_float64, first.astype(np.float64) - as_float64[:, 0])

    def log_softmax_of(self, X: Features, ids: Int32) -> tuple[Float64, Float64]:
        """Return the log-softmax of some classes (n, k) and the normaliser (n,), without calibration."""
        n, k = ids.shape
        normalizer = self.rank_scores(X, 1).normalizer
        plain = replace(self, scorer=replace(self.scorer, calibration=Calibration()))
        pairs = Examples(X, ids.reshape(-1), np.repeat(np.arange(n), k))
        scores = plain.score_pairs(pairs, plain.scorer.project(X, self.n_threads)).reshape(n, k)
        return scores.astype(np.float64) - normalizer[:, None], normalizer

    def score_pairs(self, pairs: Examples, Z: Float32 | None) -> Float32:
        """Return the debiased score of each pair, block by block of rows; pairs are in any order.

        `Z` is ``scorer.project(X)``.
        """
        noise, X, row_index, classes = self.scorer.noise_term, pairs.X, pairs.rows, pairs.y
        scores = np.empty(len(row_index), np.float32)
        order = np.argsort(row_index, kind="stable")
        size = self.config.pair_block_rows
        bounds = np.searchsorted(row_index[order], np.arange(0, X.shape[0] + size, size))
        for number, (first, last) in enumerate(split(X.shape[0], size)):
            chosen = order[bounds[number] : bounds[number + 1]]
            local, labels = row_index[chosen] - first, np.ascontiguousarray(classes[chosen, None], np.int32)
            out = self.scorer.weights.score_pairs(X[first:last], local, labels, self.n_threads)
            if noise is not None:
                projected = np.empty((last - first, 0), np.float32) if Z is None else Z[first:last]
                remove_bias(out, noise.log_prob(projected[local], labels, n_jobs=self.n_threads), out=out)
            scores[chosen] = out[:, 0]
        return scores

    # -- tables of all classes, (n_samples, n_classes)

    def debiased_scores(self, X: Features) -> Float32:
        """Return ``feature_scale * x.w_y + b_y + log p_n(y|x)`` of every class."""
        return self._score_table(X)

    def _score_table(self, X: Features, caller: str = "decision_function") -> Float32:
        """Return the scores of all lines of the weights.

        `caller` is the public name in the error for a result of more than ``config.max_result_bytes``.
        """
        self.scorer.check(X)
        self._check_result(X, 4, caller)
        return self._fill_scores(X, self.scorer.project(X, self.n_threads))

    def log_prob_all(self, X: Features) -> Float32:
        """Return log p(y|x) of every class."""
        log_prob = self._calibrated(X)
        return mix_uniform(log_prob, self.scorer.calibration.uniform_mix, self.scorer.n_classes, out=log_prob)

    def prob_all(self, X: Features) -> Float64:
        """Return p(y|x) of every class in float64: float32 rounds too much near 1."""
        self._check_result(X, 8, "predict_proba")
        prob: Float64 = np.exp(self._calibrated(X), dtype=np.float64)
        mix = self.scorer.calibration.uniform_mix
        if mix > 0.0:  # as `mix_uniform`, but classes far below the uniform probability keep their order
            prob *= 1.0 - mix
            prob += mix / prob.shape[1]
        prob /= prob.sum(axis=1, keepdims=True)  # of float32 logarithms; sums are one to float64 rounding
        return prob

    def log_softmax_all(self, X: Features) -> tuple[Float64, Float64]:
        """Return the log-softmax of all scores without calibration, and the log normalisers (n_samples,)."""
        self._check_result(X, 8, "predict_label_proba")
        scores = self._score_table(X).astype(np.float64)
        largest = scores.max(axis=1)
        normalizer = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
        scores -= normalizer[:, None]
        return scores, normalizer

    def _fill_scores(self, X: Features, Z: Float32 | None, first_row: int = 0) -> Float32:
        """Compute all scores; `first_row` is the number of X[0] in error messages."""
        scorer, weights, n_rows = self.scorer, self.scorer.weights, X.shape[0]
        out = np.empty((n_rows, scorer.n_classes), np.float32)
        tiles = Tiles(scorer, Z, n_rows, self.config, self.n_threads)
        for first, last in split(n_rows, tiles.block_rows):
            block, buffers = out[first:last], Buffers(self.config.tile_scores)
            weights.open_block(X, first, last).products(0, scorer.n_classes, buffers, block)
            block *= np.float32(weights.feature_scale)
            block += weights.biases
            log_noise = None if scorer.noise_term is None else tiles.start_block(first, last)
            remove_bias(block, log_noise, out=block)
            finite = np.isfinite(block.max(axis=1)) & np.isfinite(block.min(axis=1))
            if not finite.all():
                raise ScoreOverflowError(first_row + first + int(np.argmin(finite)))
        return out

    def _calibrated(self, X: Features) -> Float32:
        """Return log-probabilities of all classes before uniform mixing."""
        scores, calibration = self._score_table(X, "predict_log_proba"), self.scorer.calibration
        if not self.scorer.tempers_rows:
            return log_softmax(scores, temperature=calibration.temperature, out=scores, config=self.config)
        n_rows = max(1, self.config.table_block_scores // max(scores.shape[1], 1))
        for start, stop in split(len(scores), n_rows):
            block = scores[start:stop]
            log_top = log_softmax(block, temperature=calibration.temperature, config=self.config).max(axis=1)
            block *= self.scorer.temper(log_top)[:, None]
            log_softmax(block, out=block, config=self.config)
        return scores

    def _check_result(self, X: Features, item_bytes: int, caller: str) -> None:
        n_rows, n_classes, limit = X.shape[0], self.scorer.n_classes, self.config.max_result_bytes
        needed = item_bytes * n_rows * n_classes
        if needed > limit:
            raise ValueError(
                f"{caller} would return {n_rows} rows x {n_classes} classes, {needed / 2**30:.1f} GiB, more"
                f" than the limit of {limit / 2**30:.1f} GiB. Use predict_topk, which keeps only the best"
                " classes, or pass fewer rows."
            )

    # -- calibration

    def choose_calibration(
        self, examples: Examples, *, config: CalibrationConfig | None = None, mixes_rows: bool = False
    ) -> Calibration:
        """Choose temperature and uniform mixing on examples that the model was not trained on.

        With `mixes_rows`, a temperature that depends on the row is also for rows unlike them.
        """
        scorer, config = self.scorer, config or CalibrationConfig()
        scorer.check(examples.X)
        X, targets = examples.X, check_targets(examples, scorer.n_classes)
        Z = scorer.project(X, self.n_threads)
        single = replace(self, n_threads=1)
        may_temper = isinstance(scorer.weights, SparseWeights) or (
            scorer.n_classes <= config.max_tempered_classes
        )

        def score_rows(first: int, last: int) -> Float32:
            return single._fill_scores(X[first:last], None if Z is None else Z[first:last], first)

        given, mixed = Examples(X, targets, examples.row_index), None
        if mixes_rows and Z is None and given.label_edges is None:
            both = mix_rows(given, config.mixed_rows)

            def score_mixed(first: int, last: int) -> Float32:
                return single._fill_scores(both.X[first:last], None, first)

            mixed = score_mixed, both
        with one_blas_thread():
            return fit_calibration(
                score_rows,
                given,
                scorer.n_classes,
                by_row=scorer.noise_term is None and may_temper,
                mixed=mixed,
                n_threads=self.n_threads,
            )

    def choose_label_calibration(self, examples: Examples, n_classes: int) -> LabelCalibration:
        """Choose probabilities of single labels on examples that the model was not trained on."""
        found = self.rank_scores(examples.X, _LABEL_CANDIDATES)
        offsets = np.searchsorted(examples.rows, np.arange(examples.n_rows + 1))
        ones = np.ones(examples.n_pairs, np.int8)
        truth = sparse.csr_array((ones, examples.y, offsets), shape=(examples.n_rows, n_classes))
        applies = label_hits(truth, found.labels)
        return fit_label_calibration(found.log_softmax, found.normalizer, applies, np.diff(offsets))


def log_softmax(
    scores: Float32,
    *,
    temperature: float = 1.0,
    out: Float32 | None = None,
    config: SearchConfig | None = None,
) -> Float32:
    """Return the logarithm of the softmax of each row of ``scores / temperature``; sums are in float64.

    Examples
    --------
    >>> np.exp(log_softmax(np.log(np.array([[1.0, 3.0]], np.float32)))).round(3).tolist()
    [[0.25, 0.75]]
    """
    block_scores = (config or SearchConfig()).table_block_scores
    if out is None:
        out = np.empty_like(scores)
    for start, stop in split(len(scores), max(1, block_scores // max(scores.shape[1], 1))):
        block = np.multiply(scores[start:stop], np.float32(1.0 / temperature), out=out[start:stop])
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    return out


def check_targets(examples: Examples, n_classes: int) -> Int32:
    """Return the classes of all pairs as the kernels take them, or raise ValueError."""
    n_pairs = examples.n_rows if examples.row_index is None else len(examples.row_index)
    targets = np.require(examples.y, np.int32, ["C", "W"])
    if targets.shape != (n_pairs,):
        raise ValueError(f"y has shape {targets.shape} but X has {n_pairs} rows; pass one class per row.")
    if n_pairs == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    if targets.min() < 0 or targets.max() >= n_classes:
        bad = int(targets.min() if targets.min() < 0 else targets.max())
        raise ValueError(
            f"y holds class {bad}; the model has classes 0 to {n_classes - 1}."
            " Leave out rows of unknown classes."
        )
    return targets


def summarize(ranked: RankedPairs, examples: Examples) -> Evaluation:
    """Return mean log p(y|x), accuracy and top-k accuracy of ranked pairs.

    The likelihood is a mean over pairs, weighted by ``examples.weight``.  A row with several labels counts as
    right where one of them is predicted, with the weight of its first pair.

    Examples
    --------
    >>> from extremax.scores.dense import DenseWeights
    >>> rows = Examples(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32))
    >>> summarize(Predictor(Scorer(DenseWeights.zeros(2, 1))).rank_pairs(rows, 2), rows).accuracy
    0.5
    """
    y, weight = examples.y, examples.weight
    labels, _, log_prob = ranked
    k = labels.shape[1]
    likelihood = float(np.average(log_prob.astype(np.float64), weights=weight))
    if examples.row_index is None:
        return Evaluation(
            log_likelihood=likelihood,
            accuracy=accuracy_at_k(y, labels, k=1, sample_weight=weight),
            top_k_accuracy=accuracy_at_k(y, labels, k=k, sample_weight=weight),
        )
    rows = examples.row_index
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    row_weight = None if weight is None else weight[first]
    # Rank of each pair among the predictions; k where it is not among them.
    rank = np.where(labels[rows] == np.asarray(y)[:, None], np.arange(k), k).min(axis=1)
    best = np.minimum.reduceat(rank, first)
    return Evaluation(
        log_likelihood=likelihood,
        accuracy=float(np.average(best == 0, weights=row_weight)),
        top_k_accuracy=float(np.average(best < k, weights=row_weight)),
    )
