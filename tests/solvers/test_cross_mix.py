"""Weights of start and SVMs by rows left out in turn: folds, what is fitted without them, what is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from extremax.solvers.sparse.correction import Job, TrainingRows
from extremax.solvers.sparse.cross_mix import deal_rows, fit_without, mix_by_folds
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.examples import Examples
from extremax.kernels.sparse_start import Numbers
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse.start import ClassSums, fit_numbers
from extremax.tuned import DEFAULTS, SparseConfig, replace_numbers
from planted import word_rows

N_WORDS = 1100


class Folds(ExtremeClassifier):
    _numbers = replace_numbers(DEFAULTS, sparse={"smoothing": (0.1, 1.0), "max_smoothing_steps": 1})


class NoFolds(ExtremeClassifier):
    _numbers = replace_numbers(
        DEFAULTS, sparse={"smoothing": (0.1, 1.0), "max_smoothing_steps": 1, "mix_folds": 0}
    )


def test_folds_have_every_row_once_and_no_class_whole():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 30, 100).astype(np.int32)
    y[:3] = [30, 31, 32]  # one row each
    fold = deal_rows(Examples.labels_only(y, 100), 5, 7)
    counts = np.bincount(y)[y]
    np.testing.assert_array_equal(fold == -1, counts == 1)
    assert set(fold.tolist()) == {-1, 0, 1, 2, 3, 4}
    assert np.ptp(np.bincount(fold[fold >= 0])) <= 5
    for label in np.unique(y[counts > 1]):
        assert len(set(fold[y == label].tolist())) > 1
    assert (fold != deal_rows(Examples.labels_only(y, 100), 5, 8)).any()


@pytest.mark.invariance
def test_parts_of_a_fold_do_not_depend_on_the_rows_left_out():
    X, y = word_rows(120, 4, N_WORDS)
    _, y = np.unique(y, return_inverse=True)
    data, job = Examples(X, y.astype(np.int32)), Job(SparseConfig(), 0, 1)
    sums = ClassSums.of(data, 4, N_WORDS)
    numbers, _ = fit_numbers(sums.arrays, csr_rows(X), data, job.config, 0, 1)
    left = np.arange(120) % 5 == 0
    other = sparse.csr_matrix(X)
    other.data = other.data.copy()
    other.data[np.repeat(left, np.diff(other.indptr))] *= 3.0
    found = [
        fit_without(Examples(rows, data.y).take(~left), csr_rows(rows), (4, N_WORDS), numbers, job)
        for rows in (X, other)
    ]
    for name in ("start", "svm"):
        a, b = (parts[name] for parts in found)
        np.testing.assert_array_equal(a.to_matrix().toarray(), b.to_matrix().toarray())
        np.testing.assert_array_equal(a.biases, b.biases)
        assert a.n_entries > 0


def test_classes_of_one_row_choose_nothing():
    X, _ = word_rows(30, 4, N_WORDS)
    data = Examples(X, np.arange(30, dtype=np.int32))
    one = np.ones(6)
    numbers = Numbers(1.0, one, one, np.zeros(3), np.array([2, 4, 16, 100, 1000]), np.zeros(0, np.int64))
    training = TrainingRows(data, csr_rows(X), np.ones(N_WORDS, np.float32))
    job = Job(SparseConfig(), 0, 1)
    assert mix_by_folds(training, (30, N_WORDS), numbers, job, None) is None


@pytest.mark.planted
def test_rows_left_out_choose_better_weights_than_the_default():
    (X, y), (X_test, y_test) = word_rows(200, 5, N_WORDS), word_rows(600, 5, N_WORDS, seed=1)
    options = {"solver": "sparse_softmax", "n_jobs": 1, "random_state": 0}
    by_folds, default = Folds.with_solver(**options).fit(X, y), NoFolds.with_solver(**options).fit(X, y)
    assert default.choices_["mix"] == {"start": 0.5, "svm": 2.0}
    assert set(by_folds.choices_["mix"]) == {"start", "svm"}
    likelihood = [clf.log_likelihood(X_test, y_test) for clf in (by_folds, default)]
    assert likelihood[0] > likelihood[1]
    again = Folds.with_solver(**{**options, "n_jobs": 2}).fit(
        4.0 * X, y
    )  # neither threads nor the scale matter
    assert again.choices_["mix"] == pytest.approx(by_folds.choices_["mix"], abs=2e-3)
    same = Folds.with_solver(**{**options, "n_jobs": 2}).fit(X, y)
    assert same.choices_["mix"] == by_folds.choices_["mix"]
