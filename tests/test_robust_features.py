"""Columns of any scale and a few outlying rows: what a fit makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.defaults import DEFAULTS, replace_numbers

N_CLASSES, N_FEATURES = 40, 24


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(N_CLASSES, size=4000)
    # scikit-learn's linear discriminant has 99.6% here
    X = rng.normal(size=(N_CLASSES, N_FEATURES))[y] + 0.8 * rng.normal(size=(4000, N_FEATURES))
    return X.astype(np.float32), y


def accuracy(X, y, **options):
    clf = ExtremeClassifier(random_state=0, n_jobs=1, **options).fit(X[:2000], y[:2000])
    return clf.score(X[2000:], y[2000:]), clf


def large_column(X):
    return np.where(np.arange(N_FEATURES) == 3, np.float32(1e6) * X, X)


def column_far_away(X):
    return np.where(np.arange(N_FEATURES) == 3, X + np.float32(1e6), X)


def many_scales(X):
    return (X * np.logspace(-2, 2, N_FEATURES)).astype(np.float32)


def outlying_row(X):
    X = X.copy()
    X[17] = 1e6
    return X


def outlying_entry(X):
    X = X.copy()
    X[17, 3] = -1e6
    return X


@pytest.mark.planted
@pytest.mark.parametrize("change", [large_column, column_far_away, many_scales, outlying_row, outlying_entry])
@pytest.mark.parametrize("objective", ["auto", "candidate_softmax", "shared_softmax"])
def test_accuracy_survives(data, change, objective):
    X, y = data
    found, clf = accuracy(change(X), y, objective=objective)
    assert found > 0.985  # 0.9935 with the features as they were
    assert clf.choices_.get("limited_rows", 0) == (1 if "outlying" in change.__name__ else 0)


@pytest.mark.invariance
@pytest.mark.parametrize("options", [{}, {"objective": "candidate_softmax"}])
def test_columns_times_powers_of_two_predict_the_same(data, options):
    X, y = data
    X = many_scales(X)
    factors = 2.0 ** np.random.default_rng(1).integers(-1, 2, size=N_FEATURES).astype(np.float32)
    one, other = accuracy(X, y, **options)[1], accuracy(X * factors, y, **options)[1]
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X * factors))


@pytest.mark.invariance
def test_ordinary_features_stay_as_they_are(data):
    X, y = data
    plain = type(
        "Plain", (ExtremeClassifier,), {"_numbers": replace_numbers(DEFAULTS, scale={"standardize": False})}
    )
    expected = plain(random_state=0, n_jobs=1).fit(X[:2000], y[:2000])
    np.testing.assert_array_equal(accuracy(X, y)[1].predict_proba(X), expected.predict_proba(X))


@pytest.mark.invariance
def test_columns_times_any_factors_predict_nearly_the_same(data):
    X, y = data
    X = many_scales(X)
    factors = np.exp(np.random.default_rng(1).normal(scale=0.5, size=N_FEATURES)).astype(np.float32)
    one, other = accuracy(X, y)[1], accuracy(X * factors, y)[1]
    assert "limited_rows" not in one.choices_
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X * factors), atol=0.01)


@pytest.mark.planted
def test_one_huge_entry_of_a_sparse_matrix():
    rng = np.random.default_rng(2)
    y = rng.integers(20, size=1500)
    words = y[:, None] * 50 + rng.integers(50, size=(1500, 6))  # each class has words of its own
    columns = np.hstack([words, rng.integers(1000, 2000, size=(1500, 6))])
    X = sparse.csr_matrix(
        (np.ones(columns.size, np.float32), (np.repeat(np.arange(1500), 12), columns.ravel())), (1500, 2000)
    )
    X.sum_duplicates()
    dirty = X.copy()
    dirty.data[dirty.indptr[40]] = 1e6
    for options in ({}, {"objective": "negative_sampling", "n_epochs": 5}):
        usual = ExtremeClassifier(random_state=0, n_jobs=1, **options).fit(X[:1000], y[:1000])
        found = ExtremeClassifier(random_state=0, n_jobs=1, **options).fit(dirty[:1000], y[:1000])
        assert found.choices_["limited_rows"] == 1
        assert "limited_rows" not in usual.choices_
        assert found.score(X[1000:], y[1000:]) > usual.score(X[1000:], y[1000:]) - 0.02
