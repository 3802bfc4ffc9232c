"""Columns of any scale and a few outlying rows: what a fit makes of them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import sparse

from coverings import in_turn
from extremax import ExtremeClassifier, load_model
from extremax.solvers import NegativeSampling
from extremax.tuned import DEFAULTS, replace_numbers

N_CLASSES, N_FEATURES = 40, 24


@functools.cache
def make_data():
    rng = np.random.default_rng(0)
    y = rng.integers(N_CLASSES, size=4000)
    # scikit-learn's linear discriminant has 99.6% here
    X = rng.normal(size=(N_CLASSES, N_FEATURES))[y] + 0.8 * rng.normal(size=(4000, N_FEATURES))
    return X.astype(np.float32), y


@pytest.fixture
def data():
    return make_data()


@functools.cache
def ordinary_accuracy(solver):
    """The accuracy on the features as they are."""
    return accuracy(*make_data(), solver=solver)[0]


def accuracy(X, y, **options):
    clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **options).fit(X[:2000], y[:2000])
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
@pytest.mark.parametrize("solver", ["minibatch_softmax", "candidate_softmax"])
def test_accuracy_survives(data, change, solver):
    X, y = data
    found, clf = accuracy(change(X), y, solver=solver)
    assert found > 0.985  # 0.9935 with the features as they were
    assert clf.choices_.get("limited_rows", 0) == (1 if "outlying" in change.__name__ else 0)


@pytest.mark.planted
@in_turn(
    change=[large_column, column_far_away, many_scales, outlying_row, outlying_entry],
    solver=["negative_sampling", "nce"],
)
def test_negatives_of_each_row_reach_what_they_reach_on_ordinary_features(data, change, solver):
    X, y = data
    ordinary = ordinary_accuracy(solver)
    found, clf = accuracy(change(X), y, solver=solver)
    assert ordinary > 0.92
    assert found > ordinary - 0.02
    assert clf.choices_.get("limited_rows", 0) == (1 if "outlying" in change.__name__ else 0)


@pytest.mark.identity
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_scaled_columns_train_on_disk_resumed_and_saved_the_same(data, tmp_path, n_jobs):
    X, y = data
    X = many_scales(outlying_row(X))[:800]
    options = {"solver": "negative_sampling", "n_epochs": 3, "random_state": 0}
    whole = ExtremeClassifier.with_solver(n_jobs=1, **options).fit(X, y[:800])
    np.save(tmp_path / "X.npy", X)
    stopped = ExtremeClassifier.with_solver(n_jobs=n_jobs, **options)
    stopped.fit(np.load(tmp_path / "X.npy", mmap_mode="r"), y[:800], callbacks=[lambda r: r["epoch"] == 1])
    stopped.save(tmp_path / "model")
    resumed = load_model(tmp_path / "model").resume_fit(X, y[:800])
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


@pytest.mark.invariance
@pytest.mark.parametrize("spread", [0.75, 1.0, 1.5, 2.0])
def test_likelihood_does_not_depend_on_scales_of_columns(data, spread):
    """Scales up to a factor of 10^(2 spread) apart, with classes that overlap."""
    X, y = data
    X = X + 2.0 * np.random.default_rng(3).normal(size=X.shape).astype(np.float32)
    scaled = (X * np.logspace(-spread, spread, N_FEATURES)).astype(np.float32)
    (_, one), (_, other) = accuracy(X, y), accuracy(scaled, y)
    expected = one.log_likelihood(X[2000:], y[2000:])
    assert abs(other.log_likelihood(scaled[2000:], y[2000:]) - expected) < 0.01  # 0.33 once, at 1.0
    assert "evened_columns" not in one.choices_
    assert other.choices_.get("evened_columns", False) == (spread < 2.0)  # beyond, they are standardised


@pytest.mark.invariance
@pytest.mark.parametrize("options", [{}, {"solver": "candidate_softmax"}])
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


def words():
    """Rows of 12 words of 2,000, six of them of the row's class."""
    rng = np.random.default_rng(2)
    y = rng.integers(20, size=1500)
    own = y[:, None] * 50 + rng.integers(50, size=(1500, 6))  # each class has words of its own
    columns = np.hstack([own, rng.integers(1000, 2000, size=(1500, 6))])
    X = sparse.csr_matrix(
        (np.ones(columns.size, np.float32), (np.repeat(np.arange(1500), 12), columns.ravel())), (1500, 2000)
    )
    X.sum_duplicates()
    return X, y


@pytest.mark.planted
def test_one_huge_entry_of_a_sparse_matrix():
    X, y = words()
    dirty = X.copy()
    dirty.data[dirty.indptr[40]] = 1e6
    for options in ({}, {"solver": "negative_sampling", "n_epochs": 5}):
        usual = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **options).fit(X[:1000], y[:1000])
        found = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **options).fit(dirty[:1000], y[:1000])
        assert found.choices_["limited_rows"] == 1
        assert "limited_rows" not in usual.choices_
        assert found.score(X[1000:], y[1000:]) > usual.score(X[1000:], y[1000:]) - 0.02


def with_column(X):
    column = 1e6 * np.abs(np.random.default_rng(5).normal(size=(X.shape[0], 1)))
    return sparse.hstack([X, column]).tocsr().astype(np.float32)


def with_large_word(X):
    X = X.copy()
    X.data[X.indices == 1500] *= np.float32(1e6)
    return X


@pytest.mark.planted
@pytest.mark.parametrize("change", [with_column, with_large_word])
@pytest.mark.parametrize("options", [{}, {"solver": "negative_sampling", "n_epochs": 5}])
def test_one_huge_column_of_a_sparse_matrix(change, options, tmp_path):
    X, y = words()
    dirty = change(X)
    clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=1, **options).fit(dirty[:1000], y[:1000])
    assert clf.choices_["scaled_columns"] == [dirty.shape[1] - 1 if change is with_column else 1500]
    assert clf.score(dirty[1000:], y[1000:]) > 0.99  # 0.06 to 0.1 once
    clf.save(tmp_path / "model")
    same = load_model(tmp_path / "model")
    np.testing.assert_array_equal(same.predict_proba(dirty), clf.predict_proba(dirty))
    np.testing.assert_array_equal(same.predict_proba(dirty.toarray()), clf.predict_proba(dirty))
    assert same.choices_ == clf.choices_


@pytest.mark.identity
def test_coefficients_are_those_of_columns_as_given():
    X, y = words()
    dirty = with_large_word(X)
    clf = ExtremeClassifier(NegativeSampling(noise="uniform"), random_state=0, n_jobs=1).fit(dirty, y)
    expected = clf.decision_function(dirty)
    np.testing.assert_allclose(dirty @ clf.coef_.T + clf.intercept_, expected, rtol=1e-4, atol=1e-4)
