"""Weights of the parts of sparse weights where rows are too few to hold any out.

Every row is left out once: start and SVMs are fitted without a fold of the rows, the rows of the fold are
described by their scores, and the weights of both are chosen by all rows together, as
`extremax.solvers.sparse.mix` does by held-out rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_start import Numbers
from extremax.runtime.context import Context
from extremax.scores.sparse import SparseWeights
from extremax.solvers.base import labelled_rows
from extremax.solvers.sparse import correction as steps
from extremax.solvers.sparse.correction import Job, TrainingRows
from extremax.solvers.sparse.mix import fit_joint_mixture
from extremax.solvers.sparse.start import ClassSums, make_start, refit_numbers
from extremax.types import Int64


def mix_by_folds(
    training: TrainingRows, shape: tuple[int, int], numbers: Numbers, job: Job, context: Context
) -> dict[str, float] | None:
    """Choose the weights of start and SVMs by rows that each was fitted without.

    `training` are the rows that both are fitted on, `shape` is (n_classes, n_features). None where hardly any
    row can be left out, because its class has no other.
    """
    config = job.config
    data = training.data.with_features(_matrix(training.rows, shape[1]))
    if config.mix_folds < 2:
        return None
    fold = deal_rows(data, config.mix_folds, job.seed)
    if int((fold >= 0).sum()) < config.min_sample_pairs:
        return None
    folds = []
    for number in range(config.mix_folds):
        left = fold[data.rows] == number
        if left.any():
            experts = fit_without(data.take(~left), training.rows, shape, numbers, job)
            folds.append((experts, data.take(left).compact()))
    return fit_joint_mixture(folds, config, context)


def deal_rows(data: Examples, n_folds: int, seed: int) -> Int64:
    """Return the fold of each row; -1 for rows that stay, because a class of theirs has no other row.

    Rows of a class go to the folds in turn, so that no fold has all of them.
    """
    order = np.random.default_rng((seed, 26)).permutation(data.n_pairs)
    order = order[np.argsort(data.y[order], kind="stable")]
    fold = np.full(data.n_rows, -1, np.int64)
    fold[data.rows[order]] = np.arange(len(order)) % n_folds
    alone = np.bincount(data.y)[data.y] < 2
    fold[data.rows[alone]] = -1
    return fold


def fit_without(
    data: Examples, rows: CSRRows, shape: tuple[int, int], numbers: Numbers, job: Job
) -> dict[str, SparseWeights]:
    """Return start and SVMs of some rows; the smoothing of the start stays that of all rows."""
    n_classes, n_features = shape
    sums = ClassSums.of(data, n_classes, n_features, n_threads=job.n_threads)
    numbers = refit_numbers(sums.arrays, rows, data, job.config, numbers, job.seed % 2**31, job.n_threads)
    start = make_start(sums.arrays, numbers, job.n_threads)
    mean = steps.feature_mean(rows, n_features, labelled_rows(data))
    svm, _ = steps.fit_svms(TrainingRows(data, rows, mean), shape, job)
    return {
        "start": SparseWeights(start.postings, start.biases, start.length_biases),
        "svm": SparseWeights.from_matrix(*svm),
    }


def _matrix(rows: CSRRows, n_features: int) -> Any:
    """Return the rows of a kernel as a CSR matrix that shares their memory."""
    X = sparse.csr_matrix((len(rows.indptr) - 1, n_features), dtype=np.float32)
    X.data, X.indices, X.indptr = rows.data, rows.indices, rows.indptr
    return X
