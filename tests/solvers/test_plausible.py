"""What stands around the fit of each class: joined searches, candidates, log-odds, interrupts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

from extremax.examples import Examples
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse.plausible import (
    Job,
    Plausible,
    TrainingRows,
    feature_mean,
    fit_linear,
    join_candidates,
    log_odds,
)
from extremax.tuned import SparseConfig

pytestmark = pytest.mark.small

ROWS = np.array([0, 0, 1, 3, 3, 3])
LABELS = np.array([2, 5, 0, 1, 4, 6], np.int32)


def some_data():
    X = sparse.csr_matrix(np.random.default_rng(0).random((4, 3)).astype(np.float32))
    return Examples(X, LABELS, ROWS, np.array([1, 2, 3, 4, 5, 6], np.float32))


def some_found():
    """Row 1 has one other class, row 2 no label."""
    classes = np.array([[1, 3], [7, -1], [-1, -1], [0, 2]], np.int32)
    scores = np.array([[1.5, -0.5], [0.2, -np.inf], [-np.inf, -np.inf], [3.0, 2.9]], np.float32)
    return Plausible(classes, scores, np.array([-1.0, 0.5, -np.inf, -80.0], np.float32))


OWN = np.array([2.0, -1.0, 0.1, 4.0, 5.0, -20.0], np.float32)


@pytest.mark.reference
def test_log_odds_are_those_of_the_probabilities():
    """The normaliser of a pair has its own class and those found; other labels of its row are left out."""
    data, found = some_data(), some_found()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own, others = log_odds(data, found, OWN)
    assert own.dtype == others.dtype == np.float32
    for pair, row in enumerate(ROWS):
        rest = np.exp(found.scores[row].astype(float)).sum() + np.exp(float(found.log_rest[row]))
        p = np.exp(float(OWN[pair])) / (np.exp(float(OWN[pair])) + rest)
        assert own[pair] == pytest.approx(np.log(p / (1.0 - p)), abs=1e-4)
    for row in (0, 1, 3):
        best = np.exp(float(OWN[row == ROWS].max()))
        mass = np.exp(found.scores[row].astype(float))
        total = mass.sum() + np.exp(float(found.log_rest[row])) + best
        for slot in range(2):
            p = mass[slot] / total
            expected = -np.inf if p == 0.0 else np.log(p / (1.0 - p))
            assert others[row, slot] == pytest.approx(expected, abs=1e-4)


@pytest.mark.identity
def test_log_odds_of_certain_classes_are_finite():
    data = Examples(sparse.csr_matrix(np.ones((2, 1), np.float32)), np.array([0, 1], np.int32))
    found = Plausible(
        np.array([[1], [-1]], np.int32),
        np.array([[90.0], [-np.inf]], np.float32),
        np.full(2, -85.0, np.float32),
    )
    own, others = log_odds(data, found, np.array([-90.0, 3.0], np.float32))
    assert np.isfinite(own).all()
    assert 5.0 < others[0, 0] < 20.0
    assert np.isneginf(others[1, 0])


@pytest.mark.identity
def test_joined_searches_name_a_class_once():
    first, second = some_found(), some_found()
    second.classes[0] = [3, 9]
    second.classes[1] = [4, 7]
    joined = first.joined(second)
    assert joined.classes.tolist() == [[1, 3, -1, 9], [7, -1, 4, -1], [-1] * 4, [0, 2, -1, -1]]
    assert joined.scores is first.scores
    assert joined.log_rest is first.log_rest


@pytest.mark.identity
def test_candidates_have_the_own_class_first():
    data, found = some_data(), some_found()
    candidates = join_candidates(data, found, OWN, np.array([1, 2, 5]))
    assert candidates.classes.tolist() == [[5, 1, 3], [0, 7, -1], [6, 0, 2]]
    np.testing.assert_array_equal(candidates.offsets[:, 0], OWN[[1, 2, 5]])
    np.testing.assert_array_equal(candidates.offsets[:, 1:], found.scores[[0, 1, 3]])
    np.testing.assert_array_equal(candidates.log_rest, found.log_rest[[0, 1, 3]])
    assert candidates.rows.tolist() == [0, 1, 3]
    assert candidates.weights.tolist() == [2.0, 3.0, 6.0]


@pytest.mark.parametrize("n_slots", [1, 3])
def test_no_plausible_classes_at_all(n_slots):
    data = some_data()
    rows = csr_rows(data.X)
    training = TrainingRows(data, rows, feature_mean(rows, 3))
    nothing = Plausible(
        np.full((4, n_slots), -1, np.int32),
        np.full((4, n_slots), -np.inf, np.float32),
        np.empty(0, np.float32),
    )
    matrix, biases = fit_linear(training, nothing, 8, Job(SparseConfig(), 0, 1))
    assert np.isfinite(matrix.data).all()
    assert (matrix.toarray()[LABELS] @ data.X.toarray()[ROWS].T).diagonal().min() > 0.0
    assert matrix[3].nnz == matrix[7].nnz == 0
    assert (biases < 0.0).all()
