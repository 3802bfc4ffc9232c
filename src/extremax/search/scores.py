"""Scores and probabilities of all classes, debiased: the tables that fit in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.calibration import lift
from extremax.noise import Noise
from extremax.runtime.threads import split
from extremax.search.scan import SCRATCH_BYTES, Buffers, ClassTiles, Features, Rows, Scorer

RESULT_BYTES = 2 << 30  # largest (n, n_classes) array returned without being asked for
_BLOCK_SCORES = 4 << 20


def remove_bias(
    scores: NDArray[np.float32],
    log_noise: NDArray[np.float32] | None,
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Debiased scores ``scores + log_noise`` (Eq. 5); the scores themselves where there is no bias
    (``log_noise`` None).

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
    for start, stop in split(len(scores), max(1, _BLOCK_SCORES // max(scores.shape[1], 1))):
        block = np.multiply(scores[start:stop], np.float32(1.0 / temperature), out=out[start:stop])
        block -= block.max(axis=1, keepdims=True)
        block -= np.log(np.exp(block).sum(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    return out


def check_arguments(
    X: Features, Z: NDArray[np.float32] | None, model: Scorer, k: int, temperature: float, floor: float = 0.0
) -> None:
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
        raise ValueError(
            f"temperature is {temperature}; it must be positive. 1 leaves the probabilities as they are."
        )
    if not 0.0 <= floor < 1.0:
        raise ValueError(
            f"floor is {floor}; it must be at least 0, which leaves the probabilities as they are, and below 1."
        )


def check_targets(y: NDArray[np.int32], n_rows: int, n_classes: int) -> NDArray[np.int32]:
    targets = np.require(y, np.int32, ["C", "W"])
    if targets.shape != (n_rows,):
        raise ValueError(f"y has shape {targets.shape} but X has {n_rows} rows; pass one class per row.")
    if n_rows == 0:
        raise ValueError("A mean over no rows is not defined; pass at least one row.")
    if targets.min() < 0 or targets.max() >= n_classes:
        bad = int(targets.min() if targets.min() < 0 else targets.max())
        raise ValueError(
            f"y holds class {bad}; the model has classes 0 to {n_classes - 1}. Leave out rows of unknown classes."
        )
    return targets


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
    first_row: int = 0,
) -> NDArray[np.float32]:
    """x.w_y + b_y + log p_n(y|x) of every class: (n, n_classes).

    Refuses when the result would exceed `memory_limit` bytes; `caller` is the public name in that sentence.
    `first_row` is the number of X[0] for the user.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> from extremax.noise import UniformNoise
    >>> scores = debiased_scores(np.zeros((1, 3), np.float32), LinearModel.zeros(2, 3), UniformNoise(2), None)
    >>> bool(np.allclose(scores, -np.log(2)))
    True
    """
    check_arguments(X, Z, model, 1, 1.0)
    n_rows, n_classes = X.shape[0], len(model.weights)
    _check_result(n_rows, n_classes, 4, memory_limit, caller)
    out = np.empty((n_rows, n_classes), np.float32)
    source = ClassTiles(noise, Z, model, n_rows, scratch_bytes, n_jobs)
    for first, last in split(n_rows, source.block_rows):
        block = out[first:last]
        Rows(X, first, last, model.weights, None).products(0, n_classes, Buffers(), block)
        block *= np.float32(model.feature_scale)
        block += model.biases
        remove_bias(block, None if noise is None else source.start_block(first, last), out=block)
        finite = np.isfinite(block.max(axis=1)) & np.isfinite(block.min(axis=1))
        if not finite.all():
            raise ScoreOverflowError(first_row + first + int(np.argmin(finite)))
    return out


class ScoreOverflowError(ValueError):
    """For a row of X whose scores are no numbers."""

    def __init__(self, row: int) -> None:
        super().__init__(
            f"The scores of X[{row}] overflow float32; scale the row down to the size of the training rows."
        )
        self.row = row

    def __reduce__(self) -> tuple[type[ScoreOverflowError], tuple[int]]:
        return type(self), (self.row,)  # else it comes out of another process with a sentence for a row


def predict_log_proba(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    temperature: float = 1.0,
    floor: float = 0.0,
    memory_limit: int = RESULT_BYTES,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> NDArray[np.float32]:
    """log p(y|x) of every class: (n, n_classes), normalised; refuses beyond `memory_limit` bytes and names
    predict_topk.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> np.exp(predict_log_proba(np.zeros((1, 3), np.float32), LinearModel.zeros(2, 3), None, None)).tolist()
    [[0.5, 0.5]]
    """
    check_arguments(X, Z, model, 1, temperature, floor)
    options: dict[str, Any] = {
        "scratch_bytes": scratch_bytes,
        "n_jobs": n_jobs,
        "caller": "predict_log_proba",
    }
    scores = debiased_scores(X, model, noise, Z, memory_limit=memory_limit, **options)
    return lift(log_softmax(scores, temperature=temperature, out=scores), floor, scores.shape[1], out=scores)


def predict_proba(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    temperature: float = 1.0,
    floor: float = 0.0,
    memory_limit: int = RESULT_BYTES,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> NDArray[np.float64]:
    """p(y|x) of every class, in float64 because float32 rounds too much near 1; else as `predict_log_proba`.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> predict_proba(np.zeros((1, 3), np.float32), LinearModel.zeros(2, 3), None, None).round(6).tolist()
    [[0.5, 0.5]]
    """
    _check_result(X.shape[0], len(model.weights), 8, memory_limit, "predict_proba")
    check_arguments(X, Z, model, 1, temperature, floor)
    options: dict[str, Any] = {"temperature": temperature, "scratch_bytes": scratch_bytes, "n_jobs": n_jobs}
    prob = np.exp(
        predict_log_proba(X, model, noise, Z, memory_limit=memory_limit, **options), dtype=np.float64
    )
    if floor > 0.0:  # as `lift`; in float64 classes far below the floor keep their order
        prob *= 1.0 - floor
        prob += floor / prob.shape[1]
    return prob


def _check_result(n_rows: int, n_classes: int, item_bytes: int, memory_limit: int, caller: str) -> None:
    needed = item_bytes * n_rows * n_classes
    if needed > memory_limit:
        raise ValueError(
            f"{caller} would return {n_rows} rows x {n_classes} classes, {needed / 2**30:.1f} GiB, more than the limit of"
            f" {memory_limit / 2**30:.1f} GiB. Use predict_topk, which keeps only the best classes, or pass fewer rows."
        )
