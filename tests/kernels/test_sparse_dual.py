"""Parts that solvers in the dual share: candidates by class, normalisers, the step of one variable."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from scipy.optimize import brentq

from extremax.kernels import sparse_dual

pytestmark = [pytest.mark.small, pytest.mark.reference]


@njit
def step(target, weight, score, old, q):
    return sparse_dual.solve_dual(target, weight, score, old, q)


@njit
def offset(score, log_partition):
    return sparse_dual.share_offset(score, log_partition)


@njit
def shuffle(order, seed, c):
    for k in range(order.size - 1, 0, -1):
        sparse_dual.swap_random(order, k, seed, c)


def test_pairs_of_each_class():
    classes = np.array([[2, 0, -1], [0, 2, 1], [2, -1, -1]], np.int32)
    starts, entries = np.zeros(5, np.int64), np.empty(6, np.int64)
    sparse_dual.list_pairs(classes, starts, entries)
    assert starts.tolist() == [0, 2, 3, 6, 6]
    assert entries.tolist() == [1, 3, 5, 0, 4, 6]


def test_normaliser_sums_candidates_and_the_rest():
    rng = np.random.default_rng(0)
    scores, rest = 20.0 * rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=6).astype(np.float32)
    scores[1, 2:], scores[2] = -np.inf, -np.inf
    rest[3] = 90.0
    out = np.full(6, -1.0, np.float32)
    sparse_dual.sum_candidates(scores, rest, out, 1, 5)
    expected = np.logaddexp(np.logaddexp.reduce(scores.astype(float), axis=1), rest)
    np.testing.assert_allclose(out[1:5], expected[1:5], rtol=1e-6)
    assert out[0] == out[5] == -1.0


@pytest.mark.parametrize("q", [0.01, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("target", [0.0, 1.0])
@pytest.mark.parametrize("weight", [0.3, 1.0, 5.0])
def test_step_solves_the_equation_of_one_variable(q, target, weight):
    low, high = weight * (target - 1.0), weight * target
    for score in (-30.0, -2.0, 0.0, 1.5, 25.0):
        for old in (low, 0.5 * (low + high), high):

            def excess(new, score=score, old=old):
                z = np.clip(score + (new - old) * q, -80.0, 80.0)
                return new - weight * (target - 1.0 / (1.0 + np.exp(-z)))

            found = step(target, weight, score, old, q)
            assert low <= found <= high
            assert found == pytest.approx(brentq(excess, low, high, xtol=1e-12), abs=2e-3 * weight)


def test_log_of_the_mass_of_all_other_candidates():
    scores = np.array([1.0, -2.0, 0.5])
    total = np.logaddexp.reduce(scores)
    for j in range(3):
        assert offset(scores[j], total) == pytest.approx(np.logaddexp.reduce(np.delete(scores, j)))
    assert np.isfinite(offset(total, total))
    assert np.isfinite(offset(total + 1e-3, total))  # rounding


def test_swaps_give_permutations_of_about_equal_frequency():
    places, orders = np.zeros((5, 5)), set()
    for seed in range(2000):
        order = np.arange(5)
        shuffle(order, np.uint64(seed), 3)
        assert sorted(order) == [0, 1, 2, 3, 4]
        orders.add(tuple(order))
        places[np.arange(5), order] += 1
    assert len(orders) == 120
    assert np.abs(places / 2000 - 0.2).max() < 0.05
