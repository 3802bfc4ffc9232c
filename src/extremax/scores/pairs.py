"""Log-probabilities of labelled rows, and the means that evaluation reports.

One pass over all classes gives the k best classes of a row with their normalised log-probabilities.  The
log-probability of another class of the row follows from that of the best:

    log p(y|x) = log p(best|x) + (s_y - s_best) / temperature

with debiased scores s (Eq. 5).  A row is scanned once, however many labels it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import sparse

from extremax.calibration import Calibration, LabelCalibration, fit_label_calibration, mix_uniform
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.metrics import accuracy_at_k, label_hits
from extremax.runtime.threads import split
from extremax.scores.base import Scorer
from extremax.scores.probabilities import check_targets, remove_bias
from extremax.scores.scan import scan
from extremax.tuned import CalibrationConfig, SearchConfig
from extremax.types import Features, Float32, Float64, Int32


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


class Evaluation(NamedTuple):
    """Weighted means over labelled rows."""

    log_likelihood: float
    accuracy: float
    top_k_accuracy: float


def rank_pairs(
    scorer: Scorer,
    examples: Examples,
    k: int,
    *,
    n_threads: int = 1,
    config: SearchConfig | None = None,
) -> RankedPairs:
    """Return the k best classes of each row, and log p(y|x) of each pair.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> weights = DenseWeights.zeros(3, 2)
    >>> weights.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> pairs = Examples(np.zeros((1, 2), np.float32), np.array([0, 2], np.int32), np.array([0, 0]))
    >>> found = rank_pairs(Scorer(weights), pairs, 1)
    >>> found.labels.tolist(), np.exp(found.pair_log_prob).round(3).tolist()
    ([[2]], [0.125, 0.5])
    """
    config = config or SearchConfig()
    X, rows, n_classes = examples.X, examples.row_index, scorer.n_classes
    scorer.check(X, k)
    targets, Z = check_targets(examples, n_classes), scorer.project(X, n_threads)
    if rows is None:
        labels, log_prob, pair_log_prob, _ = scan(
            scorer, X, Z, k, targets=targets, n_threads=n_threads, config=config
        )
    else:
        labels, log_prob, _, inverse = scan(scorer, X, Z, k, n_threads=n_threads, config=config)
        # Class -1 means scores that are not numbers; its weights must not be read.
        best, finite = np.maximum(labels[:, 0], 0), labels[:, 0] >= 0
        # The best class of each row comes behind the pairs.
        pairs = Examples(X, np.append(targets, best), np.append(rows, np.arange(X.shape[0], dtype=np.int64)))
        scores = score_pairs(scorer, pairs, Z, n_threads, config)
        difference = scores[: len(rows)] - scores[len(rows) :][rows]
        pair_log_prob = log_prob[rows, 0] + difference * inverse[rows]
        pair_log_prob[~finite[rows]] = np.nan
    uniform_mix = scorer.calibration.uniform_mix
    return RankedPairs(
        labels,
        mix_uniform(log_prob, uniform_mix, n_classes),
        mix_uniform(pair_log_prob, uniform_mix, n_classes),
    )


def score_pairs(
    scorer: Scorer, pairs: Examples, Z: Float32 | None, n_threads: int, config: SearchConfig
) -> Float32:
    """Return the debiased score of each pair, block by block of rows; pairs are in any order."""
    noise, X, row_index, classes = scorer.noise_term, pairs.X, pairs.rows, pairs.y
    scores = np.empty(len(row_index), np.float32)
    order = np.argsort(row_index, kind="stable")
    size = config.pair_block_rows
    bounds = np.searchsorted(row_index[order], np.arange(0, X.shape[0] + size, size))
    for number, (first, last) in enumerate(split(X.shape[0], size)):
        chosen = order[bounds[number] : bounds[number + 1]]
        local, labels = row_index[chosen] - first, np.ascontiguousarray(classes[chosen, None], np.int32)
        out = scorer.weights.score_pairs(X[first:last], local, labels, n_threads)
        if noise is not None:
            projected = np.empty((last - first, 0), np.float32) if Z is None else Z[first:last]
            remove_bias(out, noise.log_prob(projected[local], labels, n_jobs=n_threads), out=out)
        scores[chosen] = out[:, 0]
    return scores


def evaluate(
    scorer: Scorer,
    examples: Examples,
    k: int = 5,
    *,
    n_threads: int = 1,
    config: SearchConfig | None = None,
) -> Evaluation:
    """Return mean log p(y|x), accuracy and top-k accuracy from one pass over the rows.

    The likelihood is a mean over pairs, weighted by ``examples.weight``.  A row with several labels counts as
    right where one of them is predicted, with the weight of its first pair.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> rows = Examples(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32))
    >>> evaluate(Scorer(DenseWeights.zeros(2, 1)), rows).accuracy
    0.5
    """
    return summarize(rank_pairs(scorer, examples, k, n_threads=n_threads, config=config), examples)


def summarize(ranked: RankedPairs, examples: Examples) -> Evaluation:
    """Return the means of `evaluate` from ranked pairs."""
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


def log_likelihood(
    scorer: Scorer, examples: Examples, *, n_threads: int = 1, config: SearchConfig | None = None
) -> float:
    """Return the weighted mean of log p(y|x) over pairs, normalised over all classes.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> rows = Examples(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32))
    >>> round(log_likelihood(Scorer(DenseWeights.zeros(4, 1)), rows), 4)
    -1.3863
    """
    ranked = rank_pairs(scorer, examples, 1, n_threads=n_threads, config=config)
    return summarize(ranked, examples).log_likelihood


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


def rank_scores(
    scorer: Scorer, X: Features, k: int, *, n_threads: int = 1, config: SearchConfig | None = None
) -> RankedScores:
    """Return the k best classes of each row, at most as many as there are, and the normaliser.

    Examples
    --------
    >>> from extremax.scores.weights import DenseWeights
    >>> found = rank_scores(Scorer(DenseWeights.zeros(4, 1)), np.zeros((1, 1), np.float32), 2)
    >>> found.normalizer.round(4).tolist(), found.log_softmax.round(4).tolist()
    ([1.3863], [[-1.3863, -1.3863]])
    """
    config = config or SearchConfig()
    plain = replace(scorer, calibration=Calibration())
    k = min(k, scorer.n_classes)
    plain.check(X, k)
    Z = plain.project(X, n_threads)
    best, log_softmax, *_ = scan(plain, X, Z, k, n_threads=n_threads, config=config)
    finite = (best >= 0).all(axis=1) & np.isfinite(log_softmax[:, 0])
    if not finite.all():
        raise ScoreOverflowError(int(np.argmin(finite)))
    first = score_pairs(plain, Examples(X, best[:, 0]), Z, n_threads, config)
    as_float64 = log_softmax.astype(np.float64)
    return RankedScores(best, as_float64, first.astype(np.float64) - as_float64[:, 0])


def choose_label_calibration(
    rank: Callable[[Features, int], RankedScores],
    examples: Examples,
    n_classes: int,
    *,
    config: CalibrationConfig | None = None,
) -> LabelCalibration:
    """Choose probabilities of single labels on examples that the model was not trained on.

    `rank` returns so many best classes of rows, such as `rank_scores`.
    """
    config = config or CalibrationConfig()
    found = rank(examples.X, config.label_candidates)
    offsets = np.searchsorted(examples.rows, np.arange(examples.n_rows + 1))
    ones = np.ones(examples.n_pairs, np.int8)
    shape = (examples.n_rows, n_classes)
    applies = label_hits(sparse.csr_array((ones, examples.y, offsets), shape=shape), found.labels)
    return fit_label_calibration(
        found.log_softmax, found.normalizer, applies, examples.n_pairs, config=config
    )
