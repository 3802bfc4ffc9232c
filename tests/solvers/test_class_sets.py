"""Classes that a minibatch shares: inclusion probabilities, cells of the label tree, draws."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier, LabelTree
from extremax.kernels.batch_softmax import draw_shared
from extremax.kernels.compile import JIT_DISABLED
from extremax.solvers import MinibatchSoftmax
from extremax.solvers.class_sets import (
    ClassSets,
    cell_gain,
    count_cells,
    inclusion_probabilities,
    route,
)
from extremax.tuned import DEFAULTS, BatchConfig, replace_numbers
from planted import a_dozen_classes

pytestmark = pytest.mark.small


@pytest.mark.identity
@pytest.mark.parametrize("size", [1, 10, 100, 499])
def test_inclusion_probabilities_sum_to_the_size(size):
    weights = np.random.default_rng(0).pareto(1.0, size=500) + 1e-3
    pi = inclusion_probabilities(weights, size)
    assert pi.sum() == pytest.approx(size)
    assert pi.max() <= 1.0
    free = pi < 1.0
    ratio = pi[free] / weights[free]
    np.testing.assert_allclose(ratio, ratio[0])


def test_set_of_all_classes_has_each_for_certain():
    assert (inclusion_probabilities(np.random.default_rng(0).pareto(1.0, size=500) + 1e-3, 500) == 1.0).all()


def test_drawn_sets_have_their_inclusion_probabilities():
    rng = np.random.default_rng(0)
    counts = np.ceil(20 * rng.pareto(1.0, size=60))
    y = np.repeat(np.arange(60), counts.astype(int)).astype(np.int32)
    cells = rng.integers(3, size=len(y)).astype(np.int32)
    sets = ClassSets.build(counts, 20, exponent=0.5, cells=cells, y=y)
    classes, minus = np.empty(40, np.int32), np.empty(40, np.float32)
    scratch = np.empty(80, np.int64)
    seen, stated, n_draws = np.zeros(60), np.zeros(60), 4000
    for first, second in rng.random((n_draws, 2)):
        n = draw_shared(sets.everywhere, *sets.of_cell(1), first, second, classes, minus, scratch)
        assert (np.diff(classes[:n]) > 0).all()
        seen[classes[:n]] += 1
        stated[classes[:n]] = np.exp(-minus[:n])
    assert (seen > 0).sum() > 50
    error = np.sqrt(np.maximum(stated * (1 - stated), 1e-12) / n_draws)
    assert (np.abs(seen / n_draws - stated)[seen > 0] <= 5 * error[seen > 0] + 1e-9).all()


def test_half_of_a_set_comes_from_the_cell():
    rng = np.random.default_rng(0)
    y = rng.integers(60, size=2000).astype(np.int32)
    cells = (y // 20).astype(np.int32)
    sets = ClassSets.build(np.bincount(y).astype(float), 12, exponent=0.5, cells=cells, y=y)
    assert sets.everywhere[-1] == pytest.approx(6.0)
    for cell in range(3):
        classes, cumulative = sets.of_cell(cell)
        assert classes.tolist() == list(range(20 * cell, 20 * cell + 20))
        assert cumulative[-1] == pytest.approx(6.0)


def test_cells_without_rows_have_no_classes():
    """Of many cells, some are empty in a small sample; nothing is drawn from them."""
    cells, y = np.array([0, 0, 3, 3], np.int32), np.array([0, 1, 1, 2], np.int32)
    sets = ClassSets.build(np.array([1.0, 2.0, 1.0]), 2, exponent=0.5, cells=cells, y=y)
    assert [sets.of_cell(cell)[0].tolist() for cell in range(4)] == [[0, 1], [], [], [1, 2]]


def test_rounding_adds_no_class_to_a_set():
    # probabilities that sum to a hair more than two
    whole = np.array([0.5, 1.0, 1.5, np.nextafter(2.0, 3.0)])
    classes, minus, scratch = np.empty(8, np.int32), np.empty(8, np.float32), np.empty(8, np.int64)
    empty = np.empty(0, np.int32), np.empty(0)
    assert draw_shared(whole, *empty, 0.0, 0.0, classes, minus, scratch) == 2


@pytest.mark.reference
def test_cells_are_the_subtrees_of_greedy_decisions():
    X, y = a_dozen_classes()
    tree = LabelTree.fit(X, y, n_classes=12)
    for i, cell in enumerate(route(tree, X, 8, 1)):
        node = 0
        for _ in range(3):
            node = 2 * node + 1 + int(tree.weights[node] @ X[i] + tree.biases[node] > 0)
        assert cell == node - 7


@pytest.mark.invariance
def test_cells_thread_count_invariant():
    X, y = a_dozen_classes()
    tree = LabelTree.fit(X, y, n_classes=12)
    many = np.tile(X, (60, 1))  # more rows than one thread routes at a time
    np.testing.assert_array_equal(route(tree, many, 4, 1), route(tree, many, 4, 3))
    np.testing.assert_array_equal(route(tree, many, 4, 1), np.tile(route(tree, X, 4, 1), 60))


@pytest.mark.parametrize(
    ("n_pairs", "depth", "n_cells"),
    [
        (99, 9, 1),  # fewer rows than two cells should have
        (200, 9, 2),
        (799, 9, 4),  # a power of two
        (10**6, 9, 16),  # no more than the limit
        (10**6, 5, 8),  # two levels of the tree stay below a cell
        (10**6, 1, 1),
    ],
)
def test_number_of_cells(n_pairs, depth, n_cells):
    config = BatchConfig(rows_per_cell=100, max_cells=16, cell_levels=2)
    assert count_cells(n_pairs, depth, config) == n_cells


@pytest.mark.reference
def test_inclusion_probabilities_are_those_that_draws_state():
    rng = np.random.default_rng(3)
    y = rng.integers(60, size=900).astype(np.int32)
    cells = (rng.integers(3, size=900) * 2).astype(np.int32)  # cells 1 and 3 have no row
    sets = ClassSets.build(np.bincount(y).astype(float), 20, exponent=0.5, cells=cells, y=y)
    classes, minus = np.empty(40, np.int32), np.empty(40, np.float32)
    for first, second in rng.random((50, 2)):
        n = draw_shared(
            sets.everywhere, *sets.of_cell(2), first, second, classes, minus, np.empty(80, np.int64)
        )
        found = sets.inclusion(classes[:n], np.full(n, 2, np.int32))
        np.testing.assert_allclose(found, np.exp(-minus[:n]), rtol=1e-5)
    everywhere = np.diff(sets.everywhere, prepend=0.0)
    np.testing.assert_allclose(sets.inclusion(y, np.full(len(y), 3, np.int32)), everywhere[y])


@pytest.mark.reference
def test_gain_of_cells_is_that_of_the_variance_they_save():
    """Classes of the same size, half of each set from a cell: written out."""
    n_classes, size, n_cells = 64, 8, 4
    y = np.tile(np.arange(n_classes, dtype=np.int32), 10)
    cells = (y // 16).astype(np.int32)
    held_out = np.arange(len(y)) >= 9 * n_classes
    rng = np.random.default_rng(0)
    cells[held_out] = np.where(rng.random(n_classes) < 0.7, cells[held_out], (cells[held_out] + 1) % n_cells)
    right = float(np.mean(cells[held_out] == y[held_out] // 16))
    a, b = (size / 2) / n_classes, (size / 2) / 16
    expected = (n_classes / size - 1) / (right / (1 - (1 - a) * (1 - b)) + (1 - right) / a - 1)
    assert cell_gain(cells, y, held_out, n_classes, size, 0.5) == pytest.approx(expected)


def fit_with_cells(X, y):
    numbers = replace_numbers(DEFAULTS, batch={"rows_per_cell": 256})
    estimator = type("SmallCells", (ExtremeClassifier,), {"_numbers": numbers})
    solver = MinibatchSoftmax(n_shared=64)
    return estimator(solver, n_epochs=1, random_state=0, n_jobs=1).fit(X, y)


@pytest.mark.planted
@pytest.mark.skipif(JIT_DISABLED, reason="fits a tree to 4,000 rows: minutes when interpreted")
def test_cells_are_used_where_they_hold_the_labels_of_new_rows():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(1000), 4)
    nothing = rng.normal(size=(4000, 8)).astype(np.float32)  # many classes of four rows, and no structure
    choices = fit_with_cells(nothing, y).choices_
    assert choices["n_cells"] == 0
    assert choices["cell_gain"] < 0.8
    clear = rng.normal(size=(1000, 8))[y] + 0.2 * rng.normal(size=(4000, 8))
    choices = fit_with_cells(clear.astype(np.float32), y).choices_
    assert choices["n_cells"] == 8
    assert choices["cell_gain"] > 1.5
