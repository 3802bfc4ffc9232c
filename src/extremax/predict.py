"""Predictions of a linear model with the bias of its noise distribution removed: xi_y(x) + log p_n(y|x) (paper, Eq. 5).

`remove_bias` is the one place where that sum is written for arrays (its scalar twin for compiled tiles is
`extremax.kernels.topk.debias`).  Everything that leaves this module is debiased: scores, probabilities, top-k, log-likelihood.
An objective whose scores need no correction (NCE, softmax) passes ``noise=None``.

Exact search works on blocks of rows and, inside, on tiles of classes that stay in cache: matrix product, then one compiled pass
that keeps the best classes and the normaliser.  Beam search scores only the leaves that survive a beam down the label tree.

Shapes: ``X`` (n, n_features) float32, dense or CSR, unscaled (``model.feature_scale`` is applied here), ``Z`` (n, n_components)
for the tree.  ``temperature`` divides debiased scores before they are normalised; it never changes an order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.kernels import topk, updates
from extremax.metrics import accuracy_at_k
from extremax.noise import Noise, TreeNoise
from extremax.parallel import resolve_threads, run, split
from extremax.tree import LabelTree

Features: TypeAlias = "NDArray[np.float32] | sparse.csr_matrix | sparse.csr_array"

SCRATCH_BYTES = 256 << 20  # scratch memory of one call
RESULT_BYTES = 2 << 30  # largest (n, n_classes) array returned without being asked for
_TILE_SCORES = 4 << 20  # scores per tile at most: 16 MB, within a last-level cache, and long enough for the matrix product
_TASK_ROWS = 16  # rows of a tile that a thread takes at a time
_BEAM_ROWS = 64


class Scorer(Protocol):
    """What prediction needs of `extremax.linear.LinearModel`."""

    @property
    def weights(self) -> NDArray[np.float32]: ...
    @property
    def biases(self) -> NDArray[np.float32]: ...
    @property
    def feature_scale(self) -> float: ...


class Evaluation(NamedTuple):
    """Figures of one pass over labelled rows; all are weighted means."""

    log_likelihood: float
    accuracy: float
    top_k_accuracy: float


def remove_bias(
    scores: NDArray[np.float32], log_noise: NDArray[np.float32] | None, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Debiased scores ``scores + log_noise`` (Eq. 5); the scores themselves where there is no bias (``log_noise`` None).

    Examples
    --------
    >>> remove_bias(np.array([2.0, 3.0], np.float32), np.array([-1.0, -2.5], np.float32)).tolist()
    [1.0, 0.5]
    """
    if log_noise is None:
        if out is None or out is scores:
            return scores
        out[...] = scores
        return out
    return np.add(scores, log_noise, out=out)


def log_softmax(
    scores: NDArray[np.float32], *, temperature: float = 1.0, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Logarithm of the softmax of each row of ``scores / temperature``; sums in float64.

    Examples
    --------
    >>> np.exp(log_softmax(np.log(np.array([[1.0, 3.0]], np.float32)))).round(3).tolist()
    [[0.25, 0.75]]
    """
    if out is None:
        out = np.empty_like(scores)
    for start, stop in split(len(scores), max(1, _TILE_SCORES // max(scores.shape[1], 1))):
        block = np.multiply(scores[start:stop], np.float32(1.0 / temperature), out=out[start:stop])
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    return out


class _Rows:
    """A block of rows of X, ready for products with slices of the weights."""

    def __init__(self, X: Features, start: int, stop: int, model: Scorer) -> None:
        self.weights = model.weights
        self.used: NDArray[np.intp] | None = None
        if sparse.issparse(X):
            block: Any = X[start:stop]
            used = np.unique(block.indices)
            # Text has many features and few of them in any block: a dense product over those that occur is far smaller.
            if 2 * len(used) < X.shape[1]:
                self.used = used
                block = block[:, used]
            self.x = block.toarray()
        else:
            self.x = np.ascontiguousarray(X[start:stop])

    def tile_width(self, tile_scores: int) -> int:
        width = tile_scores // max(len(self.x), 1)
        if self.used is not None:  # the used columns of the weights are copied: no larger than four tiles
            width = min(width, 4 * tile_scores // max(len(self.used), 1))
        return max(topk.STRIP, width // topk.STRIP * topk.STRIP)

    def products(self, start: int, stop: int, out: NDArray[np.float32]) -> NDArray[np.float32]:
        """X . w_y of classes start to stop, in the front part of the flat buffer `out`."""
        part = self.weights[start:stop]
        tile = out[: len(self.x) * len(part)].reshape(len(self.x), len(part))
        if self.used is not None:
            part = part[:, self.used]
        return np.matmul(self.x, part.T, out=tile)


def _plan(n_rows: int, n_classes: int, n_features: int, scratch_bytes: int) -> tuple[int, int]:
    """Rows per block, in blocks of equal size, and scores per tile: three quarters and one quarter of the memory at most."""
    tile_scores = min(_TILE_SCORES, scratch_bytes // 16)
    most = max(1, (scratch_bytes - 4 * tile_scores) // (4 * (n_classes + n_features)))
    n_blocks = max(1, -(-n_rows // most))
    return max(1, -(-n_rows // n_blocks)), tile_scores


class _LogNoise:
    """log p_n of all classes for one block of rows at a time, in a buffer that is used again."""

    def __init__(
        self, noise: Noise | None, Z: NDArray[np.float32] | None, n_classes: int, block_rows: int, n_jobs: int | None
    ) -> None:
        self.noise, self.Z, self.n_jobs = noise, Z, n_jobs
        fixed = np.zeros(n_classes, np.float32) if noise is None else getattr(noise, "log_prob_", None)
        self.row_step = 1 if fixed is None else 0  # an unconditional distribution is one row for all
        self.buffer = np.empty((block_rows, n_classes), np.float32) if fixed is None else np.array(fixed[None, :], np.float32)

    def rows(self, first: int, last: int) -> NDArray[np.float32]:
        if self.noise is None or self.row_step == 0:
            return self.buffer
        if self.Z is None:
            raise ValueError("Z is None; a noise distribution that depends on the row needs the tree's features of each row.")
        return self.noise.log_prob_all(self.Z[first:last], out=self.buffer[: last - first], n_jobs=self.n_jobs)


def _check(X: Features, Z: NDArray[np.float32] | None, model: Scorer, k: int, temperature: float) -> None:
    """Kernels check nothing: what a caller can get wrong stops here."""
    n_rows, n_features = X.shape
    if n_features != model.weights.shape[1]:
        raise ValueError(
            f"X has {n_features} features; the model has {model.weights.shape[1]}. Pass the features it was fitted on."
        )
    if Z is not None and len(Z) != n_rows:
        raise ValueError(f"Z has {len(Z)} rows and X has {n_rows}; both must describe the same rows.")
    if k < 1:
        raise ValueError(f"k is {k}; ask for at least one class per row.")
    if not temperature > 0.0:
        raise ValueError(f"temperature is {temperature}; it must be positive. 1 leaves the probabilities as they are.")


def _check_targets(y: NDArray[np.int32], n_rows: int, n_classes: int) -> NDArray[np.int32]:
    targets = np.require(y, np.int32, ["C", "W"])
    if targets.shape != (n_rows,):
        raise ValueError(f"y has shape {targets.shape} but X has {n_rows} rows; pass one class per row.")
    if n_rows == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    if targets.min() < 0 or targets.max() >= n_classes:
        bad = int(targets.min() if targets.min() < 0 else targets.max())
        raise ValueError(f"y holds class {bad}; the model has classes 0 to {n_classes - 1}. Leave out rows of unknown classes.")
    return targets


def _merge(
    tile: NDArray[np.float32],
    columns: topk.Columns,
    log_noise: NDArray[np.float32],
    noise_row_step: int,
    scaling: topk.Scaling,
    state: topk.RowState,
    threads: int,
) -> None:
    tasks = split(len(tile), _TASK_ROWS)

    def work(i: int) -> None:
        strip = np.empty(topk.STRIP, np.float32)
        topk.scan_tile(tile, columns, log_noise, noise_row_step, scaling, *tasks[i], state, strip)

    run(work, len(tasks), threads)


def _scan(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    k: int,
    targets: NDArray[np.int32],
    temperature: float,
    scratch_bytes: int,
    n_jobs: int | None,
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """One pass over all classes: labels (n, k), their log_prob (n, k), and log_prob of `targets` (n,; -1 for none)."""
    _check(X, Z, model, k, temperature)
    n_rows, (n_classes, n_features) = X.shape[0], model.weights.shape
    threads = resolve_threads(n_jobs)
    labels = np.full((n_rows, k), topk.NO_LABEL, np.int32)
    log_prob, target_log_prob = np.empty((n_rows, k), np.float32), np.empty(n_rows, np.float32)
    scaling = topk.Scaling(np.float32(model.feature_scale), np.float32(1.0 / temperature))
    all_labels = np.arange(n_classes, dtype=np.int32)
    block_rows, tile_scores = _plan(n_rows, n_classes, n_features, scratch_bytes)
    log_noise = _LogNoise(noise, Z, n_classes, block_rows, n_jobs)
    buffer = np.empty(0, np.float32)

    for first, last in split(n_rows, block_rows):
        n = last - first
        state = topk.RowState(
            heap_scores=np.full((n, k), -np.inf, np.float32),
            heap_labels=labels[first:last],
            peak=np.full(n, -np.inf, np.float32),
            mass=np.zeros(n, np.float64),
            target=targets[first:last],
            target_score=np.full(n, np.nan, np.float32),
        )
        rows, noise_rows = _Rows(X, first, last, model), log_noise.rows(first, last)
        width = rows.tile_width(tile_scores)
        if buffer.size < n * min(width, n_classes):
            buffer = np.empty(n * min(width, n_classes), np.float32)
        for start, stop in split(n_classes, width):
            tile = rows.products(start, stop, buffer)
            columns = topk.Columns(all_labels[start:stop], model.biases[start:stop], start, start)

            _merge(tile, columns, noise_rows, log_noise.row_step, scaling, state, threads)
        topk.finish_rows(state, scaling.sharpness, 0, n, log_prob[first:last], target_log_prob[first:last])
    return labels, log_prob, target_log_prob


def exact_topk(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    k: int,
    *,
    temperature: float = 1.0,
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
    scratch_bytes
        Bound of the working memory; more rows per block are faster up to a few hundred.
    n_jobs
        Threads, as in scikit-learn.  The matrix product uses the threads of numpy's BLAS.

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
    targets = np.full(X.shape[0], -1, np.int32)
    labels, log_prob, _ = _scan(X, model, noise, Z, k, targets, temperature, scratch_bytes, n_jobs)
    return labels, log_prob


def beam_topk(
    X: Features,
    model: Scorer,
    tree: LabelTree,
    noise: Noise | None,
    Z: NDArray[np.float32],
    k: int,
    *,
    beam_width: int = 64,
    temperature: float = 1.0,
    n_jobs: int | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best classes of each row among the leaves that survive a beam down `tree`.

    The cost per row is O(beam_width (n_components log n_classes + n_features)).  **Log-probabilities are normalised over the
    candidates alone**, not over all classes: they are too large by minus the logarithm of the probability that the beam kept.
    A beam as wide as the tree is exact search.

    Parameters are those of `exact_topk`, and

    tree
        Proposes candidates.
    noise
        Debiases them: `tree` itself or its `TreeNoise`, another distribution, or None for unbiased scores.
    beam_width
        Nodes kept at each level of the tree.

    Returns
    -------
    labels, log_prob : (n, k) int32, float32
        Best first, ties by smaller class; -1 and minus infinity where there are fewer than k candidates.
    """
    _check(X, Z, model, k, temperature)
    n_rows, threads = X.shape[0], resolve_threads(n_jobs)
    candidates, tree_log_prob = tree.candidates(Z, beam_width, n_jobs=n_jobs)
    missing = candidates < 0
    known = np.where(missing, np.int32(0), candidates)  # a kernel must never see class -1
    if noise is None:
        log_noise = None
    elif noise is tree or (isinstance(noise, TreeNoise) and noise.tree is tree):
        log_noise = tree_log_prob
    else:
        log_noise = noise.log_prob(Z, known, n_jobs=n_jobs)
    del tree_log_prob, missing

    scores = np.empty(candidates.shape, np.float32)
    labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
    row_numbers = np.arange(n_rows)
    scale, sharpness = np.float32(model.feature_scale), np.float32(1.0 / temperature)
    # Always writable and of one type: a read-only array is another type to numba, and would compile the kernel again.
    score: Any
    matrix: Any = X
    if sparse.issparse(X):
        parts = ((matrix.data, np.float32), (matrix.indices, np.int32), (matrix.indptr, np.int64))
        score, matrix = updates.score_csr, updates.CSRRows(*(np.require(a, t, ["C", "W"]) for a, t in parts))
    else:
        score, matrix = updates.score_dense, np.require(X, np.float32, ["C", "W"])
    tasks = split(n_rows, _BEAM_ROWS)

    def work(i: int) -> None:
        start, stop = tasks[i]
        score(matrix, row_numbers, known, model.weights, model.biases, scale, scores, start, stop)
        cut = slice(start, stop)
        remove_bias(scores[cut], None if log_noise is None else log_noise[cut], out=scores[cut])
        topk.choose_candidates(scores, candidates, sharpness, start, stop, labels, log_prob)

    run(work, len(tasks), threads)
    return labels, log_prob


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
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> Evaluation:
    """Mean log p(y|x), accuracy and top-k accuracy in one pass; parameters as in `exact_topk`.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> model = LinearModel.zeros(2, 1)
    >>> evaluate(np.zeros((2, 1), np.float32), np.array([0, 1], np.int32), model, None, np.zeros((2, 0), np.float32)).accuracy
    0.5
    """
    targets = _check_targets(y, X.shape[0], len(model.weights))
    labels, _, log_prob = _scan(X, model, noise, Z, k, targets, temperature, scratch_bytes, n_jobs)
    return Evaluation(
        log_likelihood=float(np.average(log_prob.astype(np.float64), weights=sample_weight)),
        accuracy=accuracy_at_k(targets, labels, k=1, sample_weight=sample_weight),
        top_k_accuracy=accuracy_at_k(targets, labels, k=k, sample_weight=sample_weight),
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
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> float:
    """Weighted mean of log p(y|x) over the rows, normalised over all classes, bias removed."""
    targets = _check_targets(y, X.shape[0], len(model.weights))
    _, _, log_prob = _scan(X, model, noise, Z, 1, targets, temperature, scratch_bytes, n_jobs)
    return float(np.average(log_prob.astype(np.float64), weights=sample_weight))


def debiased_scores(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    memory_limit: int = RESULT_BYTES,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
    caller: str = "decision_function",
) -> NDArray[np.float32]:
    """x.w_y + b_y + log p_n(y|x) of every class: (n, n_classes).

    Refuses when the result would exceed `memory_limit` bytes; `caller` is the public name in that sentence.
    """
    _check(X, Z, model, 1, 1.0)
    n_rows, (n_classes, n_features) = X.shape[0], model.weights.shape
    needed = 4 * n_rows * n_classes
    if needed > memory_limit:
        raise ValueError(
            f"{caller} would return {n_rows} rows x {n_classes} classes, {needed / 2**30:.1f} GiB, more than the limit of"
            f" {memory_limit / 2**30:.1f} GiB. Use predict_topk, which keeps only the best classes, or pass fewer rows."
        )
    out = np.empty((n_rows, n_classes), np.float32)
    block_rows, tile_scores = _plan(n_rows, n_classes, n_features, scratch_bytes)
    log_noise = _LogNoise(noise, Z, n_classes, block_rows, n_jobs)
    for first, last in split(n_rows, block_rows):
        rows, block = _Rows(X, first, last, model), out[first:last]
        if rows.used is None:
            np.matmul(rows.x, model.weights.T, out=block)
        else:
            buffer = np.empty(len(rows.x) * rows.tile_width(tile_scores), np.float32)
            for start, stop in split(n_classes, rows.tile_width(tile_scores)):
                block[:, start:stop] = rows.products(start, stop, buffer)
        block *= np.float32(model.feature_scale)
        block += model.biases
        remove_bias(block, None if noise is None else log_noise.rows(first, last), out=block)
    return out


def predict_log_proba(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    temperature: float = 1.0,
    memory_limit: int = RESULT_BYTES,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
    caller: str = "predict_log_proba",
) -> NDArray[np.float32]:
    """log p(y|x) of every class: (n, n_classes), normalised; refuses beyond `memory_limit` bytes and names predict_topk."""
    _check(X, Z, model, 1, temperature)
    scores = debiased_scores(
        X, model, noise, Z, memory_limit=memory_limit, scratch_bytes=scratch_bytes, n_jobs=n_jobs, caller=caller
    )
    return log_softmax(scores, temperature=temperature, out=scores)
