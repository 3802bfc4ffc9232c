"""The best classes of a row, by exact or by beam search, and the likelihood of given ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.calibration import lift
from extremax.kernels import row_updates as updates
from extremax.kernels import topk
from extremax.metrics import accuracy_at_k
from extremax.noise import Noise, TreeNoise
from extremax.runtime.threads import resolve_threads, run, split
from extremax.search.pairs import judge_pairs
from extremax.search.scan import SCRATCH_BYTES, Features, Scorer, scan
from extremax.search.scores import check_arguments, remove_bias
from extremax.tree import LabelTree

BEAM_WIDTH = 64  # of a beam down the label tree, unless given
_BEAM_BLOCK = 16384  # rows at a time
_BEAM_ROWS = 64  # rows of these that a thread takes at a time


class Evaluation(NamedTuple):
    """Figures of one pass over labelled rows; all are weighted means."""

    log_likelihood: float
    accuracy: float
    top_k_accuracy: float


def exact_topk(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    k: int,
    *,
    temperature: float = 1.0,
    floor: float = 0.0,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best classes of each row and their log-probabilities, by scoring every class.

    Parameters
    ----------
    X, Z
        Features of the rows, and their projection for the tree.
    model
        Weights (n_classes, n_features), biases and feature scale.
    noise
        The distribution the model was trained against; None if its scores are unbiased already.
    k
        Classes per row.
    temperature
        Divides the debiased scores before they are normalised.
    floor
        Share of the probability that all classes have alike.
    scratch_bytes
        Bound of the working memory on up to eight threads: it decides how many rows are taken at a time.
    n_jobs
        Threads, as in scikit-learn; BLAS is kept to one thread in each. The result does not depend on it.

    Returns
    -------
    labels : (n, k) int32
        Best first, ties by smaller class; -1 beyond the number of classes.
    log_prob : (n, k) float32
        Normalised over all classes; minus infinity where the label is -1.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> model = LinearModel.zeros(3, 2)
    >>> model.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> labels, log_prob = exact_topk(np.zeros((1, 2), np.float32), model, None, np.zeros((1, 0), np.float32), 2)
    >>> labels.tolist(), np.exp(log_prob).round(3).tolist()
    ([[2, 1]], [[0.5, 0.375]])
    """
    check_arguments(X, Z, model, k, temperature, floor)
    labels, log_prob, _ = scan(
        X, model, noise, Z, k, temperature=temperature, scratch_bytes=scratch_bytes, n_jobs=n_jobs
    )
    return labels, lift(log_prob, floor, len(model.weights))


def beam_topk(
    X: Features,
    model: Scorer,
    tree: LabelTree,
    noise: Noise | None,
    Z: NDArray[np.float32],
    k: int,
    *,
    beam_width: int = BEAM_WIDTH,
    temperature: float = 1.0,
    floor: float = 0.0,
    n_jobs: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best classes of each row among the leaves that survive a beam down `tree`.

    The cost per row is O(beam_width (n_components log n_classes + n_features)). **Log-probabilities are
    normalised over the candidates alone**, not over all classes: they are too large by minus the logarithm of
    the probability that the beam kept. A beam as wide as the tree is exact search.

    Parameters are those of `exact_topk`, and

    tree
        Proposes candidates.
    noise
        Debiases them: `tree` itself or its `TreeNoise`, another distribution, or None for unbiased scores.
    beam_width
        Nodes kept at each level of the tree; at least k are.

    Returns
    -------
    labels, log_prob : (n, k) int32, float32
        Best first, ties by smaller class; -1 and minus infinity beyond the number of classes.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> Z = np.array([[-1.0], [1.0], [-1.1], [0.9]], np.float32)
    >>> tree = LabelTree.fit(Z, np.array([0, 1, 0, 1]))
    >>> labels, _ = beam_topk(Z, LinearModel.zeros(2, 1), tree, TreeNoise(tree), Z, 1)  # weights of zero: the tree alone
    >>> labels.ravel().tolist()
    [0, 1, 0, 1]
    """
    check_arguments(X, Z, model, k, temperature, floor)
    n_rows = X.shape[0]
    labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
    for first, last in split(n_rows, _BEAM_BLOCK):  # so that X may lie on disk and candidates stay few
        cut = slice(first, last)
        candidates, log_noise = _candidates(tree, noise, Z[cut], max(beam_width, k), n_jobs)
        _rescore(
            X[cut],
            model,
            candidates,
            log_noise,
            1.0 / temperature,
            labels[cut],
            log_prob[cut],
            resolve_threads(n_jobs),
        )
    return labels, lift(log_prob, floor, len(model.weights))


def _candidates(
    tree: LabelTree, noise: Noise | None, Z: NDArray[np.float32], beam_width: int, n_jobs: int | None
) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
    """Leaves of the beam, -1 where there are fewer than its width, and their log p_n."""
    candidates, log_prob = tree.candidates(Z, beam_width, n_jobs=n_jobs)
    if noise is None:
        return candidates, None
    if noise is tree or (isinstance(noise, TreeNoise) and noise.tree is tree):
        return candidates, log_prob
    return candidates, noise.log_prob(Z, np.maximum(candidates, 0), n_jobs=n_jobs)


def _rescore(
    X: Features,
    model: Scorer,
    candidates: NDArray[np.int32],
    log_noise: NDArray[np.float32] | None,
    sharpness: float,
    labels: NDArray[np.int32],
    log_prob: NDArray[np.float32],
    threads: int,
) -> None:
    """Fill `labels` and `log_prob` with the best of each row's candidates."""
    scores, rows = np.empty(candidates.shape, np.float32), np.arange(len(candidates))
    known = np.maximum(candidates, 0)  # a kernel must never read the weights of class -1
    # Always writable and of one type: a read-only array is another type to numba, and would compile the
    # kernel again.
    score: Any
    matrix: Any = X
    if sparse.issparse(X):
        parts = ((matrix.data, np.float32), (matrix.indices, np.int32), (matrix.indptr, np.int64))
        score, matrix = updates.score_csr, updates.CSRRows(*(np.require(a, t, ["C", "W"]) for a, t in parts))
    else:
        score, matrix = updates.score_dense, np.require(X, np.float32, ["C", "W"])
    tasks = split(len(candidates), _BEAM_ROWS)

    def work(i: int) -> None:
        start, stop = tasks[i]
        score(
            matrix,
            rows,
            known,
            model.weights,
            model.biases,
            np.float32(model.feature_scale),
            scores,
            start,
            stop,
        )
        remove_bias(
            scores[start:stop], None if log_noise is None else log_noise[start:stop], out=scores[start:stop]
        )
        topk.choose_candidates(scores, candidates, np.float32(sharpness), start, stop, labels, log_prob)

    run(work, len(tasks), threads)


def evaluate(
    X: Features,
    y: NDArray[np.int32],
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    k: int = 5,
    sample_weight: NDArray[np.floating] | None = None,
    temperature: float = 1.0,
    floor: float = 0.0,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Evaluation:
    """Mean log p(y|x), accuracy and top-k accuracy in one pass; parameters as in `exact_topk`.

    Where `rows` gives the row of each entry of `y`, a row has several true labels: the likelihood is a mean
    over these pairs, and a row counts as right when one of its labels is among the first predicted. Weights
    are then those of the pairs, and a row's is that of its first.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> model = LinearModel.zeros(2, 1)
    >>> evaluate(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32), model, None, np.zeros((2, 0), np.float32)).accuracy
    0.5
    """
    options: dict[str, Any] = {
        "temperature": temperature,
        "floor": floor,
        "scratch_bytes": scratch_bytes,
        "n_jobs": n_jobs,
    }
    labels, _, log_prob = judge_pairs(X, y, rows, model, noise, Z, k=k, **options)
    likelihood = float(np.average(log_prob.astype(np.float64), weights=sample_weight))
    if rows is None:
        return Evaluation(
            log_likelihood=likelihood,
            accuracy=accuracy_at_k(y, labels, k=1, sample_weight=sample_weight),
            top_k_accuracy=accuracy_at_k(y, labels, k=k, sample_weight=sample_weight),
        )
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    weight = None if sample_weight is None else sample_weight[first]
    # of each pair in its ranking
    place = np.where(labels[rows] == np.asarray(y)[:, None], np.arange(k), k).min(axis=1)
    best = np.minimum.reduceat(place, first)
    return Evaluation(
        log_likelihood=likelihood,
        accuracy=float(np.average(best == 0, weights=weight)),
        top_k_accuracy=float(np.average(best < k, weights=weight)),
    )


def log_likelihood(
    X: Features,
    y: NDArray[np.int32],
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    sample_weight: NDArray[np.floating] | None = None,
    temperature: float = 1.0,
    floor: float = 0.0,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> float:
    """Weighted mean of log p(y|x), normalised over all classes, bias removed; parameters as in `exact_topk`
    and `evaluate`.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> round(log_likelihood(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32), LinearModel.zeros(4, 1), None, None), 4)
    -1.3863
    """
    options: dict[str, Any] = {
        "temperature": temperature,
        "floor": floor,
        "scratch_bytes": scratch_bytes,
        "n_jobs": n_jobs,
    }
    _, _, log_prob = judge_pairs(X, y, rows, model, noise, Z, k=1, **options)
    return float(np.average(log_prob.astype(np.float64), weights=sample_weight))
