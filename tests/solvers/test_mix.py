"""Weights of several linear models: those that were planted are found."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.scores.sparse import SparseWeights
from extremax.solvers.sparse.mix import _Objective, fit_mixture
from extremax.tuned import SparseConfig
from planted import softmax

N_CLASSES, N_FEATURES = 30, 20
ALL, SOME = {"mix_candidates": N_CLASSES}, {"mix_candidates": 6, "mix_drawn": 10}


def make_experts(rng, n=3):
    tables = rng.normal(size=(n, N_CLASSES, N_FEATURES + 2)).astype(np.float32)
    experts = {}
    for name, table in zip("abc", tables, strict=False):
        W = sparse.csc_matrix(np.where(rng.random((N_CLASSES, N_FEATURES)) < 0.5, table[:, 2:], 0.0))
        experts[name] = SparseWeights.from_matrix(W, table[:, 0], 0.3 * table[:, 1])
    return experts


def scores_of(experts, X):
    pairs = np.tile(np.arange(N_CLASSES, dtype=np.int32), (X.shape[0], 1))
    return np.stack([e.score_pairs(X, np.arange(X.shape[0]), pairs, 1) for e in experts.values()])


@pytest.fixture(scope="module")
def problem():
    """Labels drawn from 0.8 a + 0.4 b; c is of no use."""
    rng = np.random.default_rng(0)
    experts = make_experts(rng)
    X = sparse.random(2000, N_FEATURES, density=0.3, format="csr", dtype=np.float32, random_state=1)
    p = softmax(np.tensordot([0.8, 0.4, 0.0], scores_of(experts, X).astype(np.float64), axes=1))
    y = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1).astype(np.int32)
    return experts, Examples(X, y)


def fit(experts, data, n_threads=1, seed=0, **numbers):
    found = fit_mixture(experts, data, SparseConfig(**numbers), Context(seed, n_threads))
    assert list(found) == list(experts)
    return np.array(list(found.values()))


@pytest.mark.planted
@pytest.mark.parametrize("numbers", [ALL, SOME])
def test_planted_weights_are_found(problem, numbers):
    found = fit(*problem, **numbers)
    # Errors of estimation are about 0.03; draws of candidates add some.
    np.testing.assert_allclose(found, [0.8, 0.4, 0.0], atol=0.1)
    assert (found >= 0.0).all()


@pytest.mark.planted
def test_a_model_that_misleads_gets_no_weight(problem):
    experts, data = problem
    wrong = SparseWeights.from_matrix(-experts["a"].to_matrix(), -experts["a"].biases)
    found = fit({"wrong": wrong, "b": experts["b"]}, data, **ALL)
    assert found[0] == pytest.approx(0.0, abs=1e-6)
    assert found[1] > 0.1


@pytest.mark.planted
def test_hard_rows_do_not_switch_all_models_off(problem):
    """At weights of zero every row is a tie, which a smoothed accuracy counts as half right."""
    experts, data = problem
    y = data.y.copy()
    noisy = np.random.default_rng(4).random(len(y)) < 0.8
    y[noisy] = np.random.default_rng(5).integers(0, N_CLASSES, int(noisy.sum()))
    found = fit({"start": experts["a"], "linear": experts["b"]}, Examples(data.X, y), **ALL)
    assert found.sum() > 0.1


@pytest.mark.identity
def test_few_and_many_classes_have_their_own_weight_on_accuracy(problem):
    experts, data = problem
    named = {"start": experts["a"], "linear": experts["b"]}
    data = Examples(data.X[:100], data.y[:100])
    slope = {"accuracy_slope": 3.0, **ALL}
    few = {"few_classes": N_CLASSES, "accuracy_weight_many": 7.0, **slope}
    many = {"few_classes": N_CLASSES - 1, "accuracy_weight": 7.0, **slope}
    plain = fit(named, data, accuracy_weight=0.0, **few)
    np.testing.assert_array_equal(fit(named, data, accuracy_weight_many=0.0, **many), plain)
    found = fit(named, data, accuracy_weight=100.0, **few)
    np.testing.assert_array_equal(fit(named, data, accuracy_weight_many=100.0, **many), found)
    assert np.abs(found - plain).max() > 0.03


@pytest.mark.planted
def test_weights_for_accuracy_keep_the_scale_of_the_likelihood(problem):
    """Where most rows are wrong, weights next to zero have the largest smoothed accuracy, and the order."""
    experts, data = problem
    found = fit({"start": experts["a"], "linear": experts["c"]}, data, **ALL)
    np.testing.assert_allclose(found, [0.75, 0.0], atol=0.1)


@pytest.mark.planted
@pytest.mark.parametrize(("most", "expected"), [(0.7, 0.7), (0.1, 0.8)])
def test_a_bound_that_costs_too_much_does_not_apply(problem, most, expected):
    """The bilinear part has a weight of 0.8: a bound of 0.7 costs little, one of 0.1 much."""
    experts, data = problem
    named = {"bilinear": experts["a"], "start": experts["b"]}
    found = fit(named, data, max_bilinear_weight=most, **ALL)
    assert found[0] == pytest.approx(expected, abs=1e-6 if expected == most else 0.1)
    strict = fit(named, data, max_bilinear_weight=most, max_bound_loss=np.inf, **ALL)
    assert strict[0] == pytest.approx(most, abs=1e-6)


@pytest.mark.planted
def test_beside_the_cosine_the_bilinear_part_has_no_bound(problem):
    experts, data = problem
    named = {"bilinear": experts["a"], "centroid": experts["b"]}
    bounds = {"max_bilinear_weight": 0.1, "min_centroid_weight": 1.0, "max_bound_loss": np.inf}
    found = fit(named, data, **bounds, **ALL)
    assert found[0] > 0.3
    assert found[1] >= 1.0


@pytest.mark.reference
def test_weights_match_the_likelihood_over_all_classes(problem):
    experts, data = problem
    scores, rows = scores_of(experts, data.X).astype(np.float64), np.arange(data.n_rows)
    weight = np.random.default_rng(3).uniform(0.0, 2.0, data.n_rows).astype(np.float32)

    def loss(theta):
        total = np.tensordot(theta, scores, axes=1)
        per_row = np.logaddexp.reduce(total, axis=1) - total[rows, data.y]
        return float(np.average(per_row, weights=weight))

    best = minimize(loss, [0.5] * 3, method="L-BFGS-B", bounds=[(0.0, None)] * 3).x
    weighted = Examples(data.X, data.y, None, weight)
    np.testing.assert_allclose(
        fit(experts, weighted, max_mix_rows=data.n_rows, **ALL), best, atol=0.01
    )  # a small penalty


@pytest.mark.planted
def test_rows_with_several_labels(problem):
    """Two labels of a row are drawn one after the other; the second does not compete with the first."""
    experts, data = problem
    rng = np.random.default_rng(4)
    scores = np.tensordot([0.8, 0.4, 0.0], scores_of(experts, data.X).astype(np.float64), axes=1)
    scores[np.arange(data.n_rows), data.y] = -np.inf
    second = (softmax(scores).cumsum(axis=1) > rng.random((len(scores), 1))).argmax(axis=1)
    labels = np.sort(np.stack([data.y, second], axis=1), axis=1).astype(np.int32)
    several = Examples(data.X, labels.ravel(), np.repeat(np.arange(data.n_rows), 2))
    found = fit(experts, several, **ALL)
    assert found[0] == pytest.approx(0.8, abs=0.2)
    assert found[1] == pytest.approx(0.4, abs=0.2)
    assert found[2] < 0.05


@pytest.mark.invariance
def test_mixture_is_the_same_for_any_number_of_threads(problem):
    experts, data = problem
    few = Examples(data.X[:500], data.y[:500])
    np.testing.assert_array_equal(fit(experts, few, **SOME), fit(experts, few, n_threads=3, **SOME))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_few_classes_and_few_rows(n_classes):
    rng = np.random.default_rng(5)
    X = sparse.csr_matrix(rng.random((7, 4)).astype(np.float32))
    experts = {
        name: SparseWeights.from_matrix(rng.normal(size=(n_classes, 4)), np.zeros(n_classes)) for name in "ab"
    }
    found = fit(experts, Examples(X, rng.integers(0, n_classes, 7).astype(np.int32)))
    assert np.isfinite(found).all()
    found = fit(experts, Examples(X, rng.integers(0, n_classes, 7).astype(np.int32)), max_mix_rows=3)
    assert np.isfinite(found).all()


@pytest.mark.gradient
@pytest.mark.parametrize("rows", [None, np.array([0, 0, 1, 2, 2, 2])])
def test_gradient_of_likelihood_and_smoothed_accuracy(rows):
    rng = np.random.default_rng(6)
    phi, log_weight = rng.normal(size=(6, 5, 3)).astype(np.float32), np.zeros((6, 5), np.float32)
    weight = rng.uniform(0.5, 2.0, 6) if rows is None else np.ones(6)
    objective = _Objective(phi, log_weight, weight, np.zeros(3), (10.0, 3.0), rows)
    theta, h = np.array([0.5, 0.2, 0.3]), 1e-2
    expected = [(objective(theta + h * e)[0] - objective(theta - h * e)[0]) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(objective(theta)[1], expected, rtol=0.01, atol=0.01)


@pytest.mark.reference
def test_accuracy_of_several_labels_counts_the_best_of_each_row():
    """At a steep slope: all labels but the last are above other classes, and each row has one that is."""
    phi = np.zeros((5, 2, 1), np.float32)
    phi[:, 0, 0], phi[4, 0, 0] = 1.0, -1.0
    parts = phi, np.zeros((5, 2), np.float32), np.ones(5), np.ones(1)
    one = np.ones(1)
    plain = _Objective(*parts)(one)[0]
    of_pairs = plain - _Objective(*parts, (1.0, 50.0))(one)[0]
    both = plain - _Objective(*parts, (1.0, 50.0), np.array([0, 1, 1, 2, 2]))(one)[0]
    assert of_pairs == pytest.approx(4 / 5)
    assert both == pytest.approx(0.5 * (4 / 5 + 1.0))
