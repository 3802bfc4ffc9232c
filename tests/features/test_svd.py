"""Truncated SVD against planted singular vectors."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from extremax.features.svd import truncated_svd


@pytest.mark.reference
def test_truncated_svd_matches_reference():
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.standard_normal((300, 40)))[0], np.linalg.qr(rng.standard_normal((200, 40)))[0]
    A = (U * 0.7 ** np.arange(40)) @ V.T
    vectors, values = truncated_svd(sp.csr_matrix(A, dtype=np.float32), 6, n_iter=3)
    np.testing.assert_allclose(values, 0.7 ** np.arange(6), rtol=1e-4)  # float32 products
    np.testing.assert_allclose(np.abs((vectors * V[:, :6]).sum(axis=0)), 1.0, atol=1e-4)
    low_rank, values = truncated_svd(sp.csr_matrix(A[:, :1] @ np.ones((1, 200)), dtype=np.float32), 6)
    assert low_rank.shape == (200, 1)
    assert len(values) == 1


@pytest.mark.invariance
def test_threads_invariant():
    A = sp.random(20_000, 100, 0.05, "csr", dtype=np.float32, random_state=0)
    for one, two in zip(truncated_svd(A, 5, n_threads=1), truncated_svd(A, 5, n_threads=2), strict=True):
        np.testing.assert_array_equal(one, two)


def test_empty_matrices_have_no_vectors():
    for shape in ((0, 4), (5, 4)):
        vectors, values = truncated_svd(sp.csr_matrix(shape, dtype=np.float32), 3)
        assert vectors.shape == (4, 0)
        assert values.shape == (0,)
