"""Classes that a minibatch shares: inclusion probabilities, cells of the label tree, draws."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import LabelTree
from extremax.defaults import BatchConfig
from extremax.kernels.batch_softmax import draw_shared
from extremax.training.class_sets import ClassSets, count_cells, inclusion_probabilities, route
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
