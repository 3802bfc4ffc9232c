"""Answers about some labels: their probabilities, the best among them, sets with stated coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

from extremax.examples import Examples
from extremax.types import Float32, Float64, Int32, Int64
from extremax.validation.constraints import ConstraintTable, Interval, check_parameters

if TYPE_CHECKING:
    from extremax.classifier import Classifier

_WIDTH = 16  # best labels of a row that are looked at first


def label_log_probs(clf: Classifier, X: Any, labels: Sequence[Any]) -> Float32:
    """Return log p(y|x) of some labels for each row, (n_samples, n_labels), normalised over all classes."""
    features = clf.to_features(X)
    ids = clf.label_ids(labels)
    if not len(ids):
        raise ValueError("labels is empty; name at least one of classes_.")
    known, place = np.unique(ids, return_inverse=True)
    n_rows = features.shape[0]
    rows = np.repeat(np.arange(n_rows, dtype=np.int64), len(known))
    pairs = Examples(features, np.tile(known, n_rows), rows)
    inner = clf._inner
    found = inner.model_.rank_pairs(pairs, k=1, n_threads=inner._threads).pair_log_prob
    return found.reshape(n_rows, len(known))[:, place]


def topk_among(clf: Classifier, X: Any, k: int, among: Sequence[Any]) -> tuple[Int32, Float32]:
    """Return the k best of some labels and their log-probabilities given that the label is one of them.

    `among` has labels for all rows, or a list of labels for each row.
    """
    if isinstance(among, str | bytes):
        raise TypeError(f"among is {among!r}; give a list of labels.")
    if not len(among):
        raise ValueError("among is empty; name at least one of classes_.")
    features, inner = clf.to_features(X), clf._inner
    listed, n_rows = list(among), features.shape[0]
    by_row = bool(listed) and isinstance(listed[0], list | set | np.ndarray)
    if by_row and len(listed) != n_rows:
        raise ValueError(f"among has {len(listed):,} lists of labels for {n_rows:,} rows.")
    own = [np.unique(clf.label_ids(list(part))) for part in (listed if by_row else [listed])]
    own = own if by_row else own * n_rows
    sizes = np.array([len(part) for part in own], np.int64)
    fewest = int(sizes.min(initial=len(clf.classes_)))
    check_parameters("predict_topk", {"k": k}, {"k": [Interval(int, 1, max(fewest, 1))]})
    if not fewest:
        raise ValueError(f"among has no label for row {int(np.argmin(sizes))}.")
    inside = np.arange(sizes.max(initial=k)) < sizes[:, None]
    ids, log_prob = np.full(inside.shape, -1, np.int32), np.full(inside.shape, -np.inf)
    ids[inside] = np.concatenate([*own, np.empty(0, np.int32)])
    pairs = Examples(features, ids[inside], np.nonzero(inside)[0])
    log_prob[inside] = inner.model_.rank_pairs(pairs, k=1, n_threads=inner._threads).pair_log_prob
    log_prob -= logsumexp(log_prob, axis=1, keepdims=True)
    order = np.argsort(-log_prob, axis=1, kind="stable")[:, :k]  # ids rise: the lower of equals comes first
    best = np.take_along_axis(ids, order, axis=1)
    return best, np.take_along_axis(log_prob, order, axis=1).astype(np.float32)


def conformal_threshold(prob: Float64, coverage: float) -> float:
    """Return the least probability of a label in sets that have the right one with this probability.

    Split conformal prediction: `prob` are those of the right labels of rows that the model was not trained
    on. Of n such rows and a new one, in any order, the new one is among the lowest ``floor((1 - coverage)
    (n + 1))`` with at most the probability ``1 - coverage``.

    Examples
    --------
    >>> conformal_threshold(np.arange(1, 10) / 10, 0.8)
    0.2
    """
    below = math.floor((1.0 - coverage) * (len(prob) + 1) + 1e-9)
    if below < 1:
        needed = math.ceil(1.0 / (1.0 - coverage) - 1e-9) - 1
        raise ValueError(
            f"coverage {coverage} needs at least {needed:,} rows in held_out; there are {len(prob):,}."
        )
    return float(np.sort(prob)[below - 1])


def prediction_sets(clf: Classifier, X: Any, held_out: tuple[Any, Any], coverage: float) -> list[list[Any]]:
    """Return for each row the labels that are at least as probable as the threshold, best first."""
    options: ConstraintTable = {"coverage": [Interval(float, 0.0, 1.0, closed="neither")]}
    check_parameters("predict_set", {"coverage": coverage}, options)
    inner, (given, y) = clf._inner, clf._inputs(*held_out)
    pairs = inner._lookup(
        y, clf.to_features(given, name="held_out[0]"), name="held_out[1]", allow_unseen=True
    )
    if pairs.row_index is not None:
        raise ValueError("predict_set is for one label per row; predict_labels is for several.")
    known = np.flatnonzero(pairs.y >= 0)
    prob = np.zeros(pairs.n_rows)  # of a label that the model does not know
    if len(known):
        rows = Examples(pairs.X[known], pairs.y[known])
        found = inner.model_.rank_pairs(rows, k=1, n_threads=inner._threads).pair_log_prob
        prob[known] = np.exp(found.astype(np.float64))
    least = conformal_threshold(prob, coverage)
    features = clf.to_features(X)
    sets: list[list[Any]] = [[] for _ in range(features.shape[0])]
    left: Int64 = np.arange(features.shape[0])
    width, n_classes = _WIDTH, len(inner.classes_)
    while len(left):
        ids, log_prob = inner._search(features[left], min(width, n_classes))
        kept = np.exp(log_prob.astype(np.float64)) >= least
        kept[:, 0] = True  # a set is never empty
        done = ~kept[:, -1] if width < n_classes else np.ones(len(left), bool)
        for row, line, inside in zip(left[done], ids[done], kept[done], strict=True):
            sets[row] = inner.classes_[line[inside]].tolist()
        left, width = left[~done], 4 * width
    return sets
