"""PCA: against numpy's eigenvectors, and the same on any storage and thread count."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from coverings import in_turn
from extremax.data import PCA, planted_hierarchy


def reference(X, k, weight=None):
    """Mean, variances and directions in float64."""
    X = np.asarray(X, dtype=np.float64)
    weight = np.ones(len(X)) if weight is None else weight
    mean = weight @ X / weight.sum()
    _, values, vectors = np.linalg.svd(
        (X - mean) * np.sqrt(weight / weight.sum())[:, None], full_matrices=False
    )
    return mean, values[:k] ** 2, vectors[:k]


def falling(n, f, seed=0, mean=3.0):
    """Rows with well separated variances around a mean."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((f, f)))[0]
    return ((rng.standard_normal((n, f)) * 0.7 ** np.arange(f)) @ basis + mean).astype(np.float32)


def sparse_rows(n, f, seed=0):
    """Few entries per row; the first columns are much larger, so that the leading directions are well
    separated.
    """
    rng = np.random.default_rng(seed)
    X = sp.random(n, f, density=0.02, format="csr", dtype=np.float32, random_state=rng)
    return (X @ sp.diags(0.2 + 20.0 * 0.6 ** np.arange(f)).astype(np.float32)).tocsr().astype(np.float32)


@pytest.mark.reference
@pytest.mark.parametrize("weighted", [False, True])
def test_dense_matches_reference(weighted):
    X = falling(9000, 20)
    weight = np.random.default_rng(1).integers(0, 4, 9000).astype(np.float64) if weighted else None
    pca = PCA.fit(X, 5, sample_weight=weight)
    mean, values, vectors = reference(X, 5, weight)
    np.testing.assert_allclose(pca.mean, mean, atol=2e-6)  # float32 rounding of values near 3
    np.testing.assert_allclose(pca.explained_variance, values, rtol=2e-5)  # float32 products of 4,096 rows
    np.testing.assert_allclose(np.abs((pca.components * vectors).sum(axis=1)), 1.0, atol=1e-4)
    expected = (X - mean) @ pca.components.T.astype(np.float64)
    np.testing.assert_allclose(pca.transform(X), expected, atol=2e-5)  # 20 float32 products of size 3


@pytest.mark.identity
def test_weights_are_repeated_rows_identity():
    X = falling(500, 6)
    weight = np.random.default_rng(0).integers(0, 3, 500)
    a, b = PCA.fit(X, 3, sample_weight=weight), PCA.fit(np.repeat(X, weight, axis=0), 3)
    np.testing.assert_allclose(a.components, b.components, atol=1e-4)  # summed in another order


@pytest.mark.reference
@pytest.mark.parametrize("f", [1500, 6000])  # dense products; products that stay sparse
def test_wide_matches_reference(f):
    X = sparse_rows(300, f)
    pca = PCA.fit(X, 4)
    mean, values, vectors = reference(X.toarray(), 4)
    np.testing.assert_allclose(pca.mean, mean, atol=1e-4)
    np.testing.assert_allclose(pca.explained_variance, values, rtol=1e-3)  # four steps of the iteration
    np.testing.assert_allclose(np.abs((pca.components * vectors).sum(axis=1)), 1.0, atol=2e-3)
    expected = (X.toarray() - mean) @ pca.components.T.astype(np.float64)
    np.testing.assert_allclose(pca.transform(X), expected, atol=1e-3)  # values up to 20
    np.testing.assert_allclose(pca.transform(X.toarray()), expected, atol=1e-3)


@pytest.mark.invariance
@pytest.mark.parametrize("f", [30, 1500])
def test_storage_and_threads_invariant(f, tmp_path):
    X = sparse_rows(9000, f).toarray()
    path = tmp_path / "X.npy"
    np.save(path, X)
    base = PCA.fit(X, 3, n_jobs=1, max_rows=7000)
    Z = base.transform(X, n_jobs=1)
    others = [np.load(path, mmap_mode="r"), sp.csr_matrix(X)]
    if f == 30:
        others += [X, np.asfortranarray(X), X.astype(np.float64)]
    for other in others:
        again = PCA.fit(other, 3, n_jobs=3, max_rows=7000)
        np.testing.assert_array_equal(again.components, base.components)
        np.testing.assert_array_equal(again.mean, base.mean)
        np.testing.assert_array_equal(again.transform(other, n_jobs=3), Z)
    np.testing.assert_array_equal(np.concatenate([base.transform(X[i : i + 1]) for i in range(20)]), Z[:20])
    out = np.empty_like(Z)
    assert base.transform(X, out=out) is out
    np.testing.assert_array_equal(out, Z)


@pytest.mark.invariance
@in_turn(f=[30, 1500, 6000], power=[-100, 60])
def test_unit_of_the_features_invariant(f, power):
    """Squares of these numbers are zero or infinite in float32; a power of two changes no digit."""
    X = sparse_rows(300, f)
    scaled = X * np.float32(2.0**power)
    base, other = PCA.fit(X, 3), PCA.fit(scaled, 3)
    # another order of rounding inside LAPACK
    np.testing.assert_allclose(other.components, base.components, atol=1e-6)
    np.testing.assert_allclose(
        other.explained_variance * 2.0 ** (-2 * power), base.explained_variance, rtol=1e-6
    )
    np.testing.assert_allclose(other.mean * np.float64(2.0**-power), base.mean, rtol=1e-6)


@pytest.mark.identity
def test_rows_of_weight_zero_are_as_good_as_absent_identity():
    X = sparse_rows(9000, 30).toarray()
    kept = np.arange(len(X)) % 3 > 0
    some, all_rows = PCA.fit(X[kept], 3, max_rows=5000), PCA.fit(X, 3, max_rows=5000, sample_weight=kept)
    np.testing.assert_array_equal(some.components, all_rows.components)


@pytest.mark.invariance
def test_wide_sparse_threads_invariant():
    X = sparse_rows(20_000, 5000)
    a, b = PCA.fit(X, 3, n_jobs=1), PCA.fit(X, 3, n_jobs=3)
    np.testing.assert_array_equal(a.components, b.components)
    np.testing.assert_array_equal(a.transform(X, n_jobs=1), a.transform(X, n_jobs=3))


@pytest.mark.invariance
def test_signs_are_fixed_invariant():
    X = falling(300, 8)
    components = PCA.fit(X, 8).components
    assert (components[np.arange(8), np.abs(components).argmax(axis=1)] > 0).all()


def test_subsample_is_close():
    data = planted_hierarchy(30_000, 100, 16, seed=0)
    full, part = PCA.fit(data.X, 2, max_rows=None), PCA.fit(data.X, 2, max_rows=5000)
    # 5,000 rows estimate two directions well
    assert np.abs((full.components * part.components).sum(axis=1)).min() > 0.99
    assert not np.array_equal(full.components, part.components)


@pytest.mark.parametrize("f", [5, 1200])
def test_degenerate_rows(f):
    X = np.full((50, f), 7.0, dtype=np.float32)
    pca = PCA.fit(X, 3)
    np.testing.assert_array_equal(pca.components, 0.0)
    np.testing.assert_array_equal(pca.transform(X), 0.0)
    X[:, 1] = np.arange(50)
    pca = PCA.fit(X, 3)
    np.testing.assert_allclose(pca.components[0], np.eye(f)[1], atol=1e-5)  # one float32 direction
    np.testing.assert_array_equal(pca.components[1:], 0.0)


def test_more_components_than_features():
    X = falling(100, 4)
    pca = PCA.fit(X, 16)
    assert pca.components.shape == (4, 4)
    assert PCA.fit(X[:1], 2).transform(X).shape == (100, 2)
    assert PCA.fit(X, 0).transform(X).shape == (100, 0)


@pytest.mark.error
def test_bad_input_rejects():
    X = falling(10, 4)
    with pytest.raises(ValueError, match="X has shape"):
        PCA.fit(X[:0], 2)
    with pytest.raises(ValueError, match="sample_weight"):
        PCA.fit(X, 2, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="fitted on 4 features"):
        PCA.fit(X, 2).transform(X[:, :3])
    with pytest.raises(ValueError, match="n_components is -1"):
        PCA.fit(X, -1)
    with pytest.raises(ValueError, match="out has shape"):
        PCA.fit(X, 2).transform(X, out=np.empty((10, 2)))


@pytest.mark.reference
@pytest.mark.parametrize("block_rows", [64, 333, 10_000])
def test_block_sums_in_lanes_match_reference(block_rows, monkeypatch):
    X = falling(1000, 7)
    monkeypatch.setattr("extremax.features.pca._BLOCK_ROWS", block_rows)
    pca = PCA.fit(X, 2)
    np.testing.assert_allclose(pca.explained_variance, reference(X, 2)[1], rtol=1e-5)  # float32 products


@pytest.mark.reference
def test_subspace_iteration_matches_reference(monkeypatch):
    X = falling(2000, 40)
    monkeypatch.setattr("extremax.features.pca._EXACT_FEATURES", 10)
    iterated = PCA.fit(X, 3)
    mean, values, vectors = reference(X, 3)
    np.testing.assert_allclose(iterated.mean, mean, atol=2e-6)  # float32 rounding of values near 3
    np.testing.assert_allclose(iterated.explained_variance, values, rtol=1e-4)
    np.testing.assert_allclose(np.abs((iterated.components * vectors).sum(axis=1)), 1.0, atol=1e-4)


@pytest.mark.identity
def test_state_and_back_identity():
    X = falling(100, 6)
    pca = PCA.fit(X, 3)
    np.testing.assert_array_equal(PCA.from_state(pca.state()).transform(X), pca.transform(X))
