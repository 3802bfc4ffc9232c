"""The best classes of rows that have any number of true labels, and the probability of each of those labels.

One pass over all classes gives the k best of a row with their normalised log-probabilities. A true label's
follows from the best class's: log p(y|x) = log p(best|x) + (s_y - s_best) / temperature with debiased scores
s (Eq. 5), so that a row is scanned once however many labels it has."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.calibration import lift
from extremax.kernels import row_updates as updates
from extremax.noise import Noise
from extremax.runtime.threads import resolve_threads, run, split
from extremax.search.scan import SCRATCH_BYTES, Features, Scorer, scan
from extremax.search.scores import check_arguments, check_targets, remove_bias

_BLOCK_ROWS = 16384  # rows whose pairs are scored together, so that X may lie on disk
_TASK_PAIRS = 512  # pairs of these that a thread takes at a time


class Judged(NamedTuple):
    """Ranked classes (n, k) of each row, their log-probabilities (n, k), and those of the given pairs
    (n_pairs,).
    """

    labels: NDArray[np.int32]
    log_prob: NDArray[np.float32]
    pair_log_prob: NDArray[np.float32]


def judge_pairs(
    X: Features,
    y: NDArray[np.int32],
    rows: NDArray[np.int64] | None,
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    *,
    k: int,
    temperature: float = 1.0,
    floor: float = 0.0,
    scratch_bytes: int = SCRATCH_BYTES,
    n_jobs: int | None = None,
) -> Judged:
    """The k best classes of each row of X, and log p(y_i|x) of pair i, which stands on row ``rows[i]``.

    Parameters
    ----------
    y, rows
        Class and row of each pair, rows ascending; `rows` None means one pair a row, in order.
    X, model, noise, Z, k, temperature, floor, scratch_bytes, n_jobs
        As in `exact_topk`.

    Examples
    --------
    >>> from extremax.linear import LinearModel
    >>> model = LinearModel.zeros(3, 2)
    >>> model.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> found = judge_pairs(np.zeros((1, 2), np.float32), np.array([0, 2]), np.array([0, 0]), model, None, None, k=1)
    >>> found.labels.tolist(), np.exp(found.pair_log_prob).round(3).tolist()
    ([[2]], [0.125, 0.5])
    """
    check_arguments(X, Z, model, k, temperature, floor)
    n_classes = len(model.weights)
    options: dict[str, Any] = {"temperature": temperature, "scratch_bytes": scratch_bytes, "n_jobs": n_jobs}
    if rows is None:
        found = scan(X, model, noise, Z, k, targets=check_targets(y, X.shape[0], n_classes), **options)
        return Judged(found[0], *(lift(log_prob, floor, n_classes) for log_prob in found[1:]))
    targets = check_targets(y, len(rows), n_classes)
    labels, log_prob, _ = scan(X, model, noise, Z, k, **options)
    # Behind the pairs, one more for each row: its best class.  Class -1 means scores that are no numbers, and
    # must not be read.
    best, finite = np.maximum(labels[:, 0], 0), labels[:, 0] >= 0
    every_row = np.arange(X.shape[0], dtype=np.int64)
    scores = _debiased(
        X, np.append(targets, best), np.append(rows, every_row), model, noise, Z, resolve_threads(n_jobs)
    )
    shift = scores[: len(rows)] - scores[len(rows) :][rows]
    pair_log_prob = log_prob[rows, 0] + shift * np.float32(1.0 / temperature)
    pair_log_prob[~finite[rows]] = np.nan
    return Judged(labels, lift(log_prob, floor, n_classes), lift(pair_log_prob, floor, n_classes))


def _debiased(
    X: Features,
    classes: NDArray[np.int32],
    rows: NDArray[np.int64],
    model: Scorer,
    noise: Noise | None,
    Z: NDArray[np.float32] | None,
    threads: int,
) -> NDArray[np.float32]:
    """Debiased score of each pair of a row and a class."""
    scores = np.empty(len(rows), np.float32)
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows[order], np.arange(0, X.shape[0] + _BLOCK_ROWS, _BLOCK_ROWS))
    for number, (first, last) in enumerate(split(X.shape[0], _BLOCK_ROWS)):
        chosen = order[bounds[number] : bounds[number + 1]]
        local, labels = rows[chosen] - first, np.ascontiguousarray(classes[chosen, None], np.int32)
        out = np.empty(labels.shape, np.float32)
        # Always writable and of one type: a read-only array is another type to numba, and would compile the
        # kernel again.
        block: Any = X[first:last]
        score: Any = updates.score_dense
        if sparse.issparse(block):
            parts = ((block.data, np.float32), (block.indices, np.int32), (block.indptr, np.int64))
            score, block = (
                updates.score_csr,
                updates.CSRRows(*(np.require(a, t, ["C", "W"]) for a, t in parts)),
            )
        else:
            block = np.require(block, np.float32, ["C", "W"])
        tasks = split(len(chosen), _TASK_PAIRS)

        def work(i: int) -> None:
            score(
                block,
                local,
                labels,
                model.weights,
                model.biases,
                np.float32(model.feature_scale),
                out,
                *tasks[i],
            )

        run(work, len(tasks), threads)
        if noise is not None:
            base = np.empty((last - first, 0), np.float32) if Z is None else Z[first:last]
            remove_bias(out, noise.log_prob(base[local], labels, n_jobs=threads), out=out)
        scores[chosen] = out[:, 0]
    return scores
