"""Metrics: log-likelihood, accuracy, calibration, and those of the Extreme Classification Repository.

Functions take true and predicted labels, and return one float.  True labels are a vector ``y`` (n,), one per
row, or a sparse indicator ``Y`` (n, n_classes), nonzero where a label is true.  Ranked predictions are
``labels`` (n, at least k), best first and distinct within a row; -1 stands for no prediction.

All values are fractions of one, where the repository prints per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse


def log_likelihood(y: ArrayLike, log_prob: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Return the mean of log p(y|x); ``log_prob`` (n, n_classes) is normalised.

    Examples
    --------
    >>> round(log_likelihood([1, 0], np.log([[0.5, 0.5], [0.25, 0.75]])), 4)
    -1.0397
    """
    truth, table = np.asarray(y), np.asarray(log_prob)
    if table.ndim != 2 or truth.shape != table.shape[:1]:
        raise ValueError(
            f"log_likelihood takes y (n,) and log_prob (n, n_classes); got shapes {truth.shape} and"
            f" {table.shape}. Pass one row of log-probabilities per label."
        )
    return _mean(table[np.arange(len(truth)), truth], sample_weight)


def accuracy(y: ArrayLike, predicted: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
    """Return the fraction of rows whose predicted label is the true one.

    Examples
    --------
    >>> accuracy([0, 1, 2, 3], [0, 1, 1, 3])
    0.75
    """
    truth, labels = np.asarray(y), np.asarray(predicted)
    if truth.ndim != 1 or truth.shape != labels.shape:
        raise ValueError(
            f"accuracy takes one predicted label per true label; got shapes {labels.shape} and {truth.shape}."
            " For ranked predictions use accuracy_at_k."
        )
    return _mean(truth == labels, sample_weight)


def accuracy_at_k(
    y: ArrayLike | sparse.csr_array, labels: ArrayLike, *, k: int, sample_weight: ArrayLike | None = None
) -> float:
    """Return the fraction of rows with a true label among the first k of ``labels``.

    Examples
    --------
    >>> accuracy_at_k([0, 1], [[2, 0], [0, 2]], k=2)
    0.5
    >>> accuracy_at_k(sparse.csr_array([[1, 0, 1], [0, 1, 0]]), [[2, 1], [0, 2]], k=2)
    0.5
    """
    if sparse.issparse(y):
        indicator = _indicator(y)
        found: NDArray[np.bool_] = np.asarray(
            label_hits(indicator, _first_k(labels, indicator.shape[0], k)).any(axis=1)
        )
        return _mean(found, sample_weight)
    truth = np.asarray(y)
    ranked = _first_k(labels, len(truth), k)
    return _mean((ranked == truth[:, None]).any(axis=1), sample_weight)


def precision_at_k(Y: sparse.csr_array, labels: ArrayLike, *, k: int) -> float:
    """Return P@k: the fraction of the first k labels that is true, averaged over rows.

    Examples
    --------
    >>> precision_at_k(sparse.csr_array([[1, 0, 1], [0, 1, 0]]), [[0, 1], [1, 2]], k=2)
    0.5
    """
    truth = _indicator(Y)
    return float(label_hits(truth, _first_k(labels, truth.shape[0], k)).sum(axis=1).mean() / k)


def recall_at_k(Y: sparse.csr_array, labels: ArrayLike, *, k: int) -> float:
    """Return recall@k: the fraction of the true labels that is among the first k, averaged over rows.

    A row without true labels counts as 0.

    Examples
    --------
    >>> recall_at_k(sparse.csr_array([[1, 0, 1], [0, 1, 0]]), [[0, 1], [1, 2]], k=2)
    0.75
    """
    truth = _indicator(Y)
    hits = label_hits(truth, _first_k(labels, truth.shape[0], k)).sum(axis=1)
    return float((hits / np.maximum(np.diff(truth.indptr), 1)).mean())


def f1_at_k(Y: sparse.csr_array, labels: ArrayLike, *, k: int) -> float:
    """Return F1@k: the F1 of the first k labels of a row against its true ones, averaged over rows.

    A row has ``2 hits / (predicted + true)``, as Annif and the average "samples" of scikit-learn.

    Examples
    --------
    >>> f1_at_k(sparse.csr_array([[1, 0, 1, 0], [0, 1, 0, 0]]), [[0, 1], [2, 3]], k=2)
    0.25
    """
    truth = _indicator(Y)
    ranked = _first_k(labels, truth.shape[0], k)
    hits = label_hits(truth, ranked).sum(axis=1)
    return float(_f1(hits, np.diff(truth.indptr), (ranked >= 0).sum(axis=1)).mean())


def ndcg_at_k(Y: sparse.csr_array, labels: ArrayLike, *, k: int) -> float:
    """Return nDCG@k, averaged over rows.

    A row has the discounted gain ``sum_r hit_r / log2(1 + r)`` over that of a perfect ranking.  A row
    without true labels counts as 0, as in the repository's scripts and in scikit-learn.

    Examples
    --------
    >>> round(ndcg_at_k(sparse.csr_array([[1, 0, 1]]), [[1, 0]], k=2), 4)
    0.3869
    """
    truth = _indicator(Y)
    hits = label_hits(truth, _first_k(labels, truth.shape[0], k))
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    best = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(np.diff(truth.indptr), k)]
    return float(((hits @ discount) / np.where(best > 0.0, best, 1.0)).mean())


def label_propensities(
    counts: ArrayLike, n_samples: int, *, a: float = 0.55, b: float = 1.5
) -> NDArray[np.float64]:
    """Return the probability that a true label was recorded (Jain et al. 2016).

    ``p_l = 1 / (1 + c (counts_l + b)^-a)`` with ``c = (log n_samples - 1) (b + 1)^a``.

    Parameters
    ----------
    counts
        Training rows with each label.
    n_samples
        Training rows.
    a, b
        The repository uses 0.5, 0.4 for the Wikipedia-LSHTC family, 0.6, 2.6 for Amazon, and the defaults
        elsewhere.

    Examples
    --------
    >>> label_propensities([1, 100], 1000).round(3).tolist()
    [0.145, 0.565]
    """
    if n_samples < 1:
        raise ValueError(
            f"label_propensities needs the number of training rows; got n_samples = {n_samples}."
        )
    c = (np.log(n_samples) - 1.0) * (b + 1.0) ** a
    propensity: NDArray[np.float64] = 1.0 / (1.0 + c * (np.asarray(counts, np.float64) + b) ** -a)
    return propensity


def propensity_scored_precision_at_k(
    Y: sparse.csr_array, labels: ArrayLike, propensity: ArrayLike, *, k: int, normalized: bool = True
) -> float:
    """Return PSP@k: precision in which a true label counts 1 / propensity.

    Parameters
    ----------
    Y, labels
        Truth (n, n_classes) and ranked predictions (n, at least k).
    propensity
        One per class, from `label_propensities` of the training labels.
    normalized
        Divide the sum over rows by that of the best possible predictions, as the repository reports it.

    Examples
    --------
    >>> propensity_scored_precision_at_k(sparse.csr_array([[1, 1, 0]]), [[0, 2]], [0.5, 0.25, 1.0], k=1)
    0.5
    """
    truth = _indicator(Y)
    n_rows, n_classes = int(truth.shape[0]), int(truth.shape[1])
    gain = 1.0 / np.asarray(propensity, np.float64)
    if gain.shape != (n_classes,):
        raise ValueError(
            f"propensity has shape {gain.shape}; the truth has {n_classes} classes. Pass one propensity per"
            " class, from label_propensities."
        )
    ranked = _first_k(labels, n_rows, k)
    # a -1 reads the last class and is multiplied by no hit
    reached = float((label_hits(truth, ranked) * gain[ranked]).sum())
    if not normalized:
        return reached / (k * n_rows)
    rows = np.repeat(np.arange(n_rows), np.diff(truth.indptr))
    # each row's true labels, the most valuable first
    order: NDArray[np.intp] = np.lexsort((-gain[truth.indices], rows))
    rank = np.arange(len(rows)) - truth.indptr[rows]
    possible = float(gain[truth.indices[order]][rank < k].sum())
    return reached / possible if possible > 0.0 else 0.0


def expected_calibration_error(
    correct: ArrayLike, confidence: ArrayLike, *, n_bins: int = 15, sample_weight: ArrayLike | None = None
) -> float:
    """Return the mean distance between confidence and accuracy.

    The sum over bins of ``weight of the bin * |accuracy - mean confidence|``.

    Parameters
    ----------
    correct
        Whether the top prediction of a row was right.
    confidence
        Its probability, in [0, 1].
    n_bins
        Bins of equal width, closed on the right; 0 belongs to the first.

    Examples
    --------
    >>> round(expected_calibration_error([True, False, True, True], [0.9, 0.9, 0.4, 0.6], n_bins=10), 4)
    0.45
    """
    right, p = np.asarray(correct, np.float64), np.asarray(confidence, np.float64)
    if right.shape != p.shape or p.ndim != 1:
        raise ValueError(
            f"correct and confidence must be vectors of one length; got shapes {right.shape} and {p.shape}."
        )
    # float32 probabilities may exceed 1 by rounding
    if p.size and not (p.min() >= 0.0 and p.max() <= 1.0 + 1e-6):
        raise ValueError(
            f"confidence must lie in [0, 1]; got values from {p.min():.4g} to {p.max():.4g}."
            " Pass probabilities, the exponential of log_prob."
        )
    weight = np.ones(p.size) if sample_weight is None else np.asarray(sample_weight, np.float64)
    place = np.clip(np.ceil(p * n_bins).astype(np.int64) - 1, 0, n_bins - 1)
    gap = np.bincount(place, weights=weight * (right - p), minlength=n_bins)
    return float(np.abs(gap).sum() / weight.sum())


def micro_f1(Y: sparse.csr_array, predicted: sparse.csr_array) -> float:
    """Return the F1 of all pairs of a row and a label together; both arguments are (n, n_classes).

    Examples
    --------
    >>> truth = sparse.csr_array([[1, 0, 1], [0, 1, 0]])
    >>> micro_f1(truth, sparse.csr_array([[1, 0, 0], [0, 1, 0]]))
    0.8
    """
    return float(_f1(*_label_counts(Y, predicted).sum(axis=1)))


def macro_f1(Y: sparse.csr_array, predicted: sparse.csr_array) -> float:
    """Return the mean F1 of the labels that are true or predicted for at least one row.

    Examples
    --------
    >>> truth = sparse.csr_array([[1, 0, 1, 0], [0, 1, 0, 0]])
    >>> round(macro_f1(truth, sparse.csr_array([[1, 0, 0, 0], [0, 1, 0, 0]])), 4)
    0.6667
    """
    counts = _label_counts(Y, predicted)
    used = counts.any(axis=0)
    return float(_f1(*counts[:, used]).mean()) if used.any() else 0.0


def samples_f1(Y: sparse.csr_array, predicted: sparse.csr_array) -> float:
    """Return the mean F1 of the rows; one with neither true nor predicted labels counts as 0.

    Examples
    --------
    >>> truth = sparse.csr_array([[1, 0, 1], [0, 1, 0]])
    >>> round(samples_f1(truth, sparse.csr_array([[1, 0, 0], [0, 1, 0]])), 4)
    0.8333
    """
    return float(_f1(*_label_counts(Y, predicted, by_row=True)).mean())


def _f1(hits: NDArray[np.integer], true: NDArray[np.integer], predicted: NDArray[np.integer]) -> Any:
    """Return ``2 hits / (true + predicted)``, or 0 if both are 0."""
    return 2.0 * hits / np.maximum(true + predicted, 1)


def _label_counts(
    Y: sparse.csr_array, predicted: sparse.csr_array, *, by_row: bool = False
) -> NDArray[np.int64]:
    """Count the pairs that are true and predicted, true, and predicted: (3, n_classes), or (3, n) by row."""
    truth, guess = _indicator(Y), _indicator(predicted)
    if truth.shape != guess.shape:
        raise ValueError(
            f"truth has shape {truth.shape} and predictions {guess.shape}; both have a row per sample and a"
            " column per class."
        )
    both = _indicator(truth.astype(bool).multiply(guess.astype(bool)))
    if by_row:
        return np.stack([np.diff(pairs.indptr) for pairs in (both, truth, guess)])
    n_classes = truth.shape[1]
    return np.stack([np.bincount(pairs.indices, minlength=n_classes) for pairs in (both, truth, guess)])


def _mean(values: NDArray[np.generic], sample_weight: ArrayLike | None) -> float:
    if len(values) == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
    return float(np.average(values.astype(np.float64), weights=weight))


def _first_k(labels: ArrayLike, n_rows: int, k: int) -> NDArray[np.integer]:
    ranked = np.asarray(labels)
    if ranked.ndim != 2 or ranked.shape[0] != n_rows or not 1 <= k <= ranked.shape[1]:
        raise ValueError(
            f"Ranked labels have shape {ranked.shape}; {n_rows} rows and k = {k} need at least"
            f" ({n_rows}, {max(k, 1)}). Predict as many labels per row as the largest k."
        )
    if ranked.dtype.kind not in "iu":
        raise TypeError(
            f"Ranked labels are class ids; got dtype {ranked.dtype}. Encode labels as integers first."
        )
    return ranked[:, :k]


def _indicator(Y: sparse.csr_array) -> sparse.csr_array:
    if hasattr(Y, "check_format"):
        Y.check_format(full_check=True)  # a conversion follows indices wherever they lead
    truth = sparse.csr_array(Y)
    if truth.shape[0] == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    if not truth.has_canonical_format or (truth.nnz and not truth.data.all()):
        truth = truth.copy()
        truth.sum_duplicates()
        truth.eliminate_zeros()
    return truth


def label_hits(truth: sparse.csr_array, ranked: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether each ranked label is true for its row: a binary search among the true pairs."""
    n_rows, n_classes = truth.shape
    if ranked.size and ranked.max() >= n_classes:
        raise ValueError(
            f"Class {ranked.max()} was predicted, but the truth has {n_classes} classes."
            " Use the same class ids."
        )
    pairs = np.repeat(np.arange(n_rows, dtype=np.int64), np.diff(truth.indptr)) * n_classes + truth.indices
    wanted = np.arange(n_rows, dtype=np.int64)[:, None] * n_classes + ranked
    if len(pairs) == 0:
        return np.zeros(ranked.shape, np.bool_)
    found = pairs[np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)]
    hits: NDArray[np.bool_] = (found == wanted) & (ranked >= 0)
    return hits
