"""Training kernels: scores and updates of (row, class) pairs against loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import in_turn, pairwise
from extremax.kernels import row_updates as updates
from extremax.kernels.row_updates import ArrayRows, CSRRows, ModelArrays

pytestmark = pytest.mark.small

OPTIMIZERS = ["adagrad", "adagrad_row", "sgd"]
STORAGES = ["dense", "csr"]
N_FEATURES = [1, 3, 16, 37]  # less than, exactly and more than a cache line of 16 floats
SCALE, RATE = np.float32(0.7), np.float32(0.3)


class Problem:
    """Rows of X in some order, classes that repeat within and across them, and a model in training."""

    def __init__(self, n_features=5, *, n=12, n_rows=9, width=3, n_classes=6, optimizer="adagrad", seed=0):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.6)
        X[0] = 0.0  # a row without features: only biases move
        self.X = X.astype(np.float32)
        self.rows = rng.integers(n_rows, size=n)
        self.labels = rng.integers(n_classes, size=(n, width)).astype(np.int32)
        self.coefficients = rng.standard_normal((n, width)).astype(np.float32)
        columns = {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]
        self.optimizer = optimizer
        self.start = ModelArrays(
            rng.standard_normal((n_classes, n_features)).astype(np.float32),
            rng.standard_normal(n_classes).astype(np.float32),
            rng.uniform(1e-8, 0.5, (n_classes, columns)).astype(np.float32),
            rng.uniform(1e-8, 0.5, n_classes).astype(np.float32),
        )

    def stored(self, storage):
        if storage == "dense":
            return ArrayRows(self.X)
        matrix = sparse.csr_matrix(self.X)
        return CSRRows(matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64))

    def update(self, storage, n_parts=1, order=None):
        """The model after the update, its parts done in the given order."""
        model = ModelArrays(*(a.copy() for a in self.start))
        for part in range(n_parts) if order is None else order:
            arguments = self.stored(storage), self.rows, self.labels, self.coefficients, model
            updates.update_pairs(*arguments, SCALE, RATE, 0, len(self.rows), part, n_parts)
        return model

    def expected(self):
        arrays = tuple(a.astype(np.float64) for a in self.start)
        reference.update_pairs(
            self.optimizer,
            self.X,
            self.rows,
            self.labels,
            self.coefficients.astype(np.float64),
            arrays,
            float(SCALE),
            float(RATE),
        )
        return arrays


def assert_close(model, expected):
    for ours, theirs in zip(model, expected, strict=True):
        # The reciprocal root is good to 6e-6; up to 20 float32 steps of about RATE add up.
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.reference
@pairwise(storage=STORAGES, n_features=N_FEATURES, width=[1, 3])
def test_scores_match_reference(storage, n_features, width):
    problem = Problem(n_features, width=width)
    scores = np.full((12, width), np.nan, np.float32)
    weights, biases = problem.start.weights, problem.start.biases
    for start, stop in [(0, 5), (5, 6), (6, 12)]:
        updates.score_pairs(
            problem.stored(storage), problem.rows, problem.labels, weights, biases, SCALE, scores, start, stop
        )
    expected = reference.score_pairs(problem.X, problem.rows, problem.labels, weights, biases, float(SCALE))
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)  # float32 sums of up to 37 terms


@pytest.mark.invariance
@pytest.mark.parametrize("storage", STORAGES)
def test_scores_write_only_their_rows_invariant(storage):
    problem = Problem(37)
    whole, part = np.full((12, 3), np.nan, np.float32), np.full((12, 3), np.nan, np.float32)
    arguments = (
        problem.stored(storage),
        problem.rows,
        problem.labels,
        problem.start.weights,
        problem.start.biases,
        SCALE,
    )
    updates.score_pairs(*arguments, whole, 0, 12)
    updates.score_pairs(*arguments, part, 4, 7)
    np.testing.assert_array_equal(part[4:7], whole[4:7])  # bit by bit, wherever a thread's rows begin
    assert np.isnan(part[:4]).all()
    assert np.isnan(part[7:]).all()


@pytest.mark.reference
@pairwise(optimizer=OPTIMIZERS, storage=STORAGES, n_features=N_FEATURES, width=[1, 2, 5])
def test_update_matches_reference(optimizer, storage, n_features, width):
    problem = Problem(n_features, width=width, optimizer=optimizer)
    assert_close(problem.update(storage), problem.expected())


@pytest.mark.reference
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_update_of_one_row_matches_reference(optimizer, storage):
    problem = Problem(3, n=1, n_rows=1, width=1, n_classes=1, optimizer=optimizer)
    problem.X[0] = [1.0, 0.0, -2.0]
    assert_close(problem.update(storage), problem.expected())


@pytest.mark.invariance
@pairwise(optimizer=OPTIMIZERS, storage=STORAGES, n_parts=[2, 3, 8])  # 8: more parts than classes
def test_update_parts_invariant(optimizer, storage, n_parts):
    problem = Problem(37, n=20, optimizer=optimizer)
    whole = problem.update(storage)
    for order in [range(n_parts), reversed(range(n_parts))]:  # whichever thread comes first
        for ours, theirs in zip(problem.update(storage, n_parts, order), whole, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_part_changes_only_its_classes(optimizer, storage):
    problem = Problem(5, optimizer=optimizer)
    for ours, before in zip(problem.update(storage, 3, [1]), problem.start, strict=True):
        np.testing.assert_array_equal(ours[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
        assert before.size == 0 or optimizer == "sgd" or np.any(ours[[1, 4]] != before[[1, 4]])


@in_turn(optimizer=OPTIMIZERS, n_features=N_FEATURES)
def test_dense_and_sparse_updates_agree(optimizer, n_features):
    problem = Problem(n_features, optimizer=optimizer)
    assert_close(problem.update("csr"), problem.update("dense"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_sparse_updates_touch_only_stored_columns(optimizer):
    problem = Problem(5, optimizer=optimizer)
    problem.X[:, 2] = 0.0
    model = problem.update("csr")
    np.testing.assert_array_equal(model.weights[:, 2], problem.start.weights[:, 2])
    if optimizer == "adagrad":
        np.testing.assert_array_equal(model.squares[:, 2], problem.start.squares[:, 2])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_zero_coefficient_moves_nothing(optimizer, storage):
    problem = Problem(5, optimizer=optimizer)
    problem.coefficients[...] = 0.0
    for ours, before in zip(problem.update(storage), problem.start, strict=True):
        np.testing.assert_array_equal(ours, before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_step_goes_downhill(optimizer, storage):
    """Of a loss whose derivative by the score is c, one small step changes the score by the sign of -c."""
    problem = Problem(16, n=1, n_rows=2, width=1, n_classes=2, optimizer=optimizer)
    problem.rows[:] = 1
    arguments = problem.stored(storage), problem.rows, problem.labels
    scores = np.empty((2, 1, 1), np.float32)
    for i, model in enumerate((problem.start, problem.update(storage))):
        updates.score_pairs(*arguments, model.weights, model.biases, SCALE, scores[i], 0, 1)
    assert np.sign(scores[1] - scores[0]) == -np.sign(problem.coefficients)


@pytest.mark.identity
@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row"])
@pytest.mark.parametrize("storage", STORAGES)
def test_first_adagrad_step_has_the_length_of_the_rate_identity(optimizer, storage):
    # With empty accumulators g / sqrt(g^2) is a sign: the step does not depend on the size of the gradient.
    problem = Problem(4, n=1, n_rows=1, width=1, n_classes=1, optimizer=optimizer)
    problem.X[0] = [2.0, -2.0, 2.0, 2.0]
    for array in problem.start:
        array[...] = 1e-30
    problem.coefficients[...] = 25.0
    model = problem.update(storage)
    # reciprocal root
    np.testing.assert_allclose(model.weights[0], -RATE * np.array([1.0, -1.0, 1.0, 1.0]), rtol=1e-5)
    np.testing.assert_allclose(model.biases[0], -RATE, rtol=1e-5)
