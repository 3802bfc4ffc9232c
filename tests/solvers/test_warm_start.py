"""The linear discriminant that training starts from, and the projection of the label tree that it gives."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.runtime.context import Context
from extremax.solvers.optimizers import Tables
from extremax.solvers.warm_start import Moments, discriminant_projection, start_discriminant
from extremax.tuned import WarmStartConfig

pytestmark = pytest.mark.small
N_CLASSES, N_FEATURES = 20, 6
SMALL_RIDGE = WarmStartConfig(ridge=1e-6)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(N_CLASSES, size=2000).astype(np.int32)
    mix = rng.normal(size=(N_FEATURES, N_FEATURES)) * np.array([5.0, 2.0, 1.0, 0.5, 0.2, 0.1])
    X = (1.5 * rng.normal(size=(N_CLASSES, 6))[y] + rng.normal(size=(2000, 6))) @ mix + 3.0
    return X.astype(np.float32), y


def started(X, y, *, scale=0.5, config=SMALL_RIDGE, weight=None, pca=None, n_threads=1):
    tables = Tables.zeros(N_CLASSES, X.shape[1], "adagrad_row")
    pca = PCA.fit(X, X.shape[1], max_rows=None) if pca is None else pca
    context = Context(n_threads=n_threads)
    data = Examples(X, y, weight=weight)
    start = start_discriminant(tables, Moments.from_pca(pca, scale), data, config, context)
    return tables, start.whitening, start.scale


@pytest.mark.identity
def test_rows_around_class_means_are_white(data):
    X, y = data
    _, white, _ = started(X, y)
    x = white.rows(X, 0.5)
    means = np.stack([x[y == c].mean(axis=0) for c in range(N_CLASSES)])
    within = (x - means[y]).T @ (x - means[y]) / len(x)
    np.testing.assert_allclose(within, np.eye(6) / 6, atol=1e-3)  # float32 sums of 2,000 rows, ridge 1e-6


@pytest.mark.reference
@pytest.mark.parametrize(("factor", "shrinkage"), [(0.6, 1.0), (1.0, 3.0)])
def test_start_is_the_linear_discriminant(data, factor, shrinkage):
    X, y = data
    config = WarmStartConfig(ridge=1e-6, init_scale_factor=factor, shrinkage=shrinkage)
    tables, white, scale = started(X, y, config=config)
    x = white.rows(X, 0.5).astype(np.float64)
    n = np.bincount(y)
    means = np.stack([x[y == c].sum(axis=0) / (n[c] + shrinkage) for c in range(N_CLASSES)])
    used = factor * scale
    np.testing.assert_allclose(tables.weights, used * means, rtol=1e-3, atol=1e-2)
    expected = np.log(n / n.sum()) - used * (means**2).sum(axis=1) / 2
    np.testing.assert_allclose(tables.biases, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.planted
def test_start_predicts_nearly_as_well_as_the_true_means(data):
    X, y = data
    tables, white, scale = started(X[:1500], y[:1500])
    scores = white.rows(X[1500:], 0.5) @ tables.weights.T + tables.biases
    assert (scores.argmax(axis=1) == y[1500:]).mean() > 0.6
    # Unit variance inside the classes would make 6 the right scale for rows of mean square length one.
    assert 2.0 <= scale <= 16.0


@pytest.mark.reference
@pytest.mark.parametrize("n_rows", [70, 400])
def test_scale_is_the_most_likely_one_of_rows_left_out(data, n_rows):
    """The scale written out: each row left out of the mean of its class, all classes compared."""
    X, y = data[0][:n_rows], data[1][:n_rows]
    scales = tuple(1.1**i for i in range(36))
    options = {"ridge": 1e-6, "scales": scales, "sample_rows": n_rows}
    _, white, scale = started(X, y, config=WarmStartConfig(tolerance=0.0, **options))
    x, n = white.rows(X, 0.5).astype(np.float64), np.bincount(y, minlength=N_CLASSES)
    sums = np.stack([x[y == c].sum(axis=0) for c in range(N_CLASSES)])

    def likelihoods(leave_out):
        figures = []
        for factor in scales:
            total = 0.0
            for row, label in zip(x, y, strict=True):
                means = sums / (n + 1.0)[:, None]
                if leave_out:
                    means[label] = (sums[label] - row) / n[label]
                log_prior = np.log(np.maximum(n, 0.5) / n.sum())
                scores = factor * (means @ row - (means**2).sum(axis=1) / 2) + log_prior
                total += scores[label] - np.logaddexp.reduce(scores)
            figures.append(total)
        return figures

    assert scale == scales[int(np.argmax(likelihoods(True)))]
    if n_rows == 70:  # with few rows per class it matters that they are left out
        assert scale < scales[int(np.argmax(likelihoods(False)))]
    # The smallest scale that is nearly as good is taken.
    assert started(X, y, config=WarmStartConfig(tolerance=100.0, **options))[2] == scales[0]


@pytest.mark.identity
def test_rows_of_weight_two_count_twice(data):
    X, y = data
    double = np.where(np.arange(len(y)) < 100, 2.0, 1.0).astype(np.float32)
    pca = PCA.fit(X, 6, sample_weight=double, max_rows=None)
    config = WarmStartConfig(own_unevenness=np.inf)  # samples of rows, which differ, would decide
    tables, white, _ = started(X, y, scale=1.0, config=config, weight=double, pca=pca)
    repeated_X, repeated_y = np.concatenate([X, X[:100]]), np.concatenate([y, y[:100]])
    again, same, _ = started(repeated_X, repeated_y, scale=1.0, config=config, pca=pca)
    np.testing.assert_allclose(white.matrix, same.matrix, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(tables.weights, again.weights, rtol=1e-3, atol=1e-3)


@pytest.mark.identity
def test_pairs_that_share_rows_match_repeated_rows(data):
    X, y = data
    row_index = np.repeat(np.arange(len(y)), 2)
    labels = np.column_stack([y, (y + 1) % N_CLASSES]).ravel().astype(np.int32)
    pca = PCA.fit(X, 6, max_rows=None)
    made = []
    for examples in (Examples(X, labels, row_index), Examples(X[row_index], labels)):
        tables = Tables.zeros(N_CLASSES, 6, "adagrad_row")
        start_discriminant(tables, Moments.from_pca(pca, 0.5), examples, SMALL_RIDGE, Context())
        made.append(tables)
    np.testing.assert_array_equal(made[0].weights, made[1].weights)
    np.testing.assert_array_equal(made[0].biases, made[1].biases)


def test_constant_features_and_single_rows(data):
    X, y = data[0].copy(), data[1]
    X[:, 2] = 7.0
    tables, white, _ = started(X, y, config=WarmStartConfig(ridge=0.1))
    assert np.isfinite(white.matrix).all()
    assert np.isfinite(tables.weights).all()
    same = np.ones((40, 3), np.float32)
    flat, _, _ = started(same, np.repeat(np.arange(N_CLASSES), 2).astype(np.int32), config=WarmStartConfig())
    assert np.isfinite(flat.weights).all()


@pytest.mark.identity
@pytest.mark.parametrize("copies", [1, 3])
def test_classes_without_spread_do_not_blow_up_rows(copies):
    X = np.repeat(np.random.default_rng(4).normal(size=(20, 6)), copies, axis=0).astype(np.float32)
    y = np.repeat(np.arange(20), copies).astype(np.int32)
    _, white, _ = started(X, y, config=WarmStartConfig(ridge=0.1, min_within=0.05))
    lengths = np.square(white.rows(X, 0.5)).sum(axis=1)
    # One twentieth of the variance is taken to be inside the classes, where rows have unit length: 20 in all.
    assert 10.0 < lengths.mean() < 21.0


@pytest.mark.invariance
def test_thread_count_invariant(data):
    X, y = data
    one, three = started(X, y, n_threads=1)[0], started(X, y, n_threads=3)[0]
    assert np.array_equal(one.weights, three.weights)
    assert np.array_equal(one.biases, three.biases)


@pytest.mark.reference
def test_discriminants_separate_the_classes_most(data):
    X, y = data
    tables = Tables.zeros(N_CLASSES, 6, "adagrad_row")
    pca = PCA.fit(X, 6, max_rows=None)
    start = start_discriminant(tables, Moments.from_pca(pca, 0.5), Examples(X, y), SMALL_RIDGE, Context())
    found = discriminant_projection(tables, 0.5, start, np.bincount(y), 2, SMALL_RIDGE, 1)
    Z = found.transform(X)
    assert np.mean(np.sum(Z.astype(np.float64) ** 2, axis=1)) == pytest.approx(1.0, rel=0.1)

    def ratio(Z):  # variance between the classes by variance inside them
        means = np.stack([Z[y == c].mean(axis=0) for c in range(N_CLASSES)])
        return np.var(means[y], axis=0) / np.var(Z - means[y], axis=0)

    both = ratio(Z)
    assert both[0] >= both[1]
    directions = np.random.default_rng(1).normal(size=(6, 200))
    assert both[0] >= ratio(X @ directions).max() * 0.99  # Fisher's criterion: no direction does better


@pytest.mark.identity
def test_one_row_per_class_starts_at_the_nearest_row():
    rng = np.random.default_rng(5)
    n = 3000
    X = rng.normal(size=(n, 4)).astype(np.float32)
    tables = Tables.zeros(n, 4, "adagrad_row")
    moments = Moments.from_pca(PCA.fit(X, 4, max_rows=None), 1.0)
    data = Examples(X, np.arange(n, dtype=np.int32))
    white = start_discriminant(tables, moments, data, WarmStartConfig(), Context(n_threads=1)).whitening
    near = X[:100] + 0.01 * rng.normal(size=(100, 4)).astype(np.float32)
    x, z = white.rows(near, 1.0), white.rows(X, 1.0)
    nearest = np.argmin(np.square(x[:, None] - z).sum(axis=2), axis=1)
    assert np.array_equal(np.argmax(x @ tables.weights.T + tables.biases, axis=1), nearest)
