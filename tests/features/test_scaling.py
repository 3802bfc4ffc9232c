"""Standardised columns and rows of limited length."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.features.scaling import ColumnScaling, LargeColumns, limit_sparse_rows
from extremax.features.whitening import Whitening
from extremax.storage.state import State
from extremax.tuned import ScaleConfig

pytestmark = pytest.mark.small


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(3000, 5)) * [0.01, 1.0, 100.0, 1e6, 3.0] + [0, 5, 0, 1e6, -2]).astype(np.float32)


@pytest.mark.reference
def test_ordinary_rows_have_the_usual_standard_scores(X):
    u = ColumnScaling.fit(X).rows(X)
    expected = (X - X.mean(axis=0, dtype=np.float64)) / X.std(axis=0, dtype=np.float64) / np.sqrt(5)
    np.testing.assert_allclose(u, expected, atol=1e-4)


@pytest.mark.invariance
def test_powers_of_two_change_no_bit_and_threads_none(X):
    factors = np.array([2.0**k for k in (-9, 3, 0, 20, -1)], np.float32)
    one, other = ColumnScaling.fit(X), ColumnScaling.fit(X * factors, n_threads=3)
    np.testing.assert_array_equal(one.rows(X), other.rows(X * factors))
    np.testing.assert_allclose(ColumnScaling.fit(X * 3.3).rows(X * np.float32(3.3)), one.rows(X), atol=1e-3)


@pytest.mark.planted
@pytest.mark.parametrize("value", [1e6, 1e30])
def test_a_few_outlying_rows_move_no_scale(X, value):
    scaling, dirty = ColumnScaling.fit(X), X.copy()
    dirty[[7, 90]] = value
    limited = ColumnScaling.fit(dirty)
    np.testing.assert_allclose(limited.factor, scaling.factor, rtol=0.05)
    u = limited.rows(dirty)
    assert limited.count_limited(dirty, 2) == 2
    assert scaling.count_limited(X) == 0
    np.testing.assert_allclose(np.linalg.norm(u[[7, 90]], axis=1), limited.max_length, rtol=1e-5)


@pytest.mark.identity
def test_weights_there_and_back_score_the_same(X):
    scaling, rng = ColumnScaling.fit(X), np.random.default_rng(1)
    u = scaling.rows(X)
    white = Whitening.fit(np.cov(u.T), u.mean(axis=0), scaling=scaling)
    weights, biases = rng.normal(size=(7, 5)).astype(np.float32), rng.normal(size=7).astype(np.float32)
    given, given_biases = weights.copy(), biases.copy()
    f = scaling.feature_scale
    white.to_features(given, given_biases, 1)
    expected = white.rows(X, f) @ weights.T + biases
    np.testing.assert_allclose(f * X @ given.T + given_biases, expected, atol=1e-3)
    np.testing.assert_array_equal(Whitening.from_state(white.state()).rows(X, f), white.rows(X, f))
    white.to_training(given, given_biases, 1)
    np.testing.assert_allclose(given, weights, atol=1e-4)
    np.testing.assert_allclose(given_biases, biases, atol=1e-4)


def test_constant_columns_and_rows_of_weight_zero_do_not_count(X):
    dirty = X.copy()
    dirty[:, 1] = 4.0
    dirty[1] = 1e9
    weight = np.ones(len(X))
    weight[1] = 0.0
    scaling = ColumnScaling.fit(dirty, weight)
    np.testing.assert_array_equal(scaling.rows(dirty[2:])[:, 1], 0.0)
    restored = ColumnScaling.from_state(scaling.state())
    np.testing.assert_array_equal(restored.rows(X), scaling.rows(X))
    few = ColumnScaling.fit(X[:9])
    assert few.max_length == ColumnScaling.from_state(few.state()).max_length == np.inf


@pytest.mark.error
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("centre", np.zeros(4, np.float32)),
        ("factor", np.zeros(5, np.float32)),
        ("factor", np.full(5, np.nan, np.float32)),
        ("max_length", "long"),
        ("feature_scale", None),
    ],
)
def test_a_state_that_does_not_fit_is_refused(X, part, value):
    state = ColumnScaling.fit(X).state()
    damaged = State(dict(state.header), dict(state.arrays))
    (damaged.arrays if part in damaged.arrays else damaged.header)[part] = value
    with pytest.raises(ModelFileError, match="does not fit together"):
        ColumnScaling.from_state(damaged)


@pytest.mark.error
def test_rows_at_the_end_of_float32_are_refused():
    with pytest.raises(ValueError, match="near the end of float32; divide all features"):
        ColumnScaling.fit(np.full((4, 9), 3.0, np.float32), config=ScaleConfig(max_length=5.0))


def test_sparse_rows_are_shortened_only_where_they_are_outlying():
    X = sparse.random(400, 60, 0.2, format="csr", dtype=np.float32, random_state=0)
    assert limit_sparse_rows(X, ScaleConfig()) == (X, 0)
    dirty = X.copy()
    dirty.data[dirty.indptr[3]] = 1e6
    limited, n_limited = limit_sparse_rows(dirty, ScaleConfig())
    assert n_limited == 1
    lengths = np.sqrt(limited.multiply(limited).sum(axis=1)).A1
    assert lengths[3] == pytest.approx(lengths.max())
    assert lengths[3] < 20.0
    np.testing.assert_array_equal(limited[4:].data, dirty[4:].data)
    assert limit_sparse_rows(dirty, ScaleConfig(standardize=False)) == (dirty, 0)


def columns_with(factors):
    X = sparse.random(400, 60, 0.2, format="csr", dtype=np.float32, random_state=0)
    of_column = np.ones(60, np.float32)
    of_column[list(factors)] = list(factors.values())
    return X, (X @ sparse.diags(of_column)).tocsr().astype(np.float32)


def test_large_columns_are_found_and_brought_to_the_size_of_others():
    X, dirty = columns_with({3: 2.0**20, 40: 2.0**10})
    assert LargeColumns.find(X, ScaleConfig()) is None
    found = LargeColumns.find(dirty, ScaleConfig())
    assert found.columns.tolist() == [3, 40]
    ratio = found.factors * [2.0**20, 2.0**10]
    assert ((ratio >= 0.5) & (ratio <= 2.0)).all()
    np.testing.assert_array_equal(found.scale(dirty).toarray(), found.scale(dirty.toarray()))
    clean = found.scale(dirty)[:, [3, 40]].toarray() / ratio
    np.testing.assert_allclose(clean, X[:, [3, 40]].toarray(), rtol=1e-6)
    assert LargeColumns.find(dirty, ScaleConfig(), n_columns=3) is None  # dense ones beside sparse ones
    assert LargeColumns.find(dirty, ScaleConfig(standardize=False)) is None


def test_outlying_entries_do_not_make_a_column_large():
    X, _ = columns_with({3: 1.0})
    X.data[X.indptr[5] : X.indptr[6]] = 1e6
    assert LargeColumns.find(X, ScaleConfig()) is None


@pytest.mark.identity
def test_weights_of_large_columns_are_those_of_scaled_ones():
    _, dirty = columns_with({3: 1e6})
    found = LargeColumns.find(dirty, ScaleConfig())
    weights = np.random.default_rng(0).normal(size=(4, 60)).astype(np.float32)
    expected = found.scale(dirty) @ weights.T
    np.testing.assert_allclose(dirty @ found.to_given(weights).T, expected, rtol=1e-4, atol=1e-4)
    sparse_ones = found.to_given(sparse.csr_matrix(weights))
    np.testing.assert_array_equal(sparse_ones.toarray(), found.to_given(weights))


@pytest.mark.error
@pytest.mark.parametrize(
    "header",
    [
        {"columns": [60], "factors": [0.5]},
        {"columns": [1, 1], "factors": [0.5, 0.5]},
        {"columns": [1], "factors": []},
        {"columns": [1], "factors": [0.0]},
        {"columns": [1.5], "factors": [0.5]},
        {"columns": [1]},
    ],
)
def test_factors_that_do_not_fit_are_refused(header):
    with pytest.raises(ModelFileError, match="does not fit together"):
        LargeColumns.from_header(header, 60)


@pytest.mark.identity
def test_weights_for_standardised_rows_convert_and_give_the_same_scores(X):
    scaling = ColumnScaling.fit(X)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(7, X.shape[1])).astype(np.float32)
    biases = rng.normal(size=7).astype(np.float32)
    kept = weights.copy(), biases.copy()
    ordinary = scaling._squared_lengths(X) < scaling.max_length**2
    expected = scaling.rows(X[ordinary]) @ weights.T + biases
    scaling.to_features(weights, biases, 2)
    found = (X[ordinary].astype(np.float64) * scaling.feature_scale) @ weights.T + biases
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    scaling.to_training(weights, biases, 2)
    np.testing.assert_allclose(weights, kept[0], rtol=1e-5)
    np.testing.assert_allclose(biases, kept[1], atol=1e-4)
