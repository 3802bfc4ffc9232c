"""Matrix products: BLAS on one thread, and sparse rows times a matrix."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_info

from extremax.runtime.products import one_blas_thread, read_only, sparse_times_dense


def blas_threads():
    return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]


def test_blas_limit_holds_until_the_last_leaves():
    before, seen = blas_threads(), []
    inside, leave = threading.Event(), threading.Event()

    def other():
        with one_blas_thread():
            inside.set()
            leave.wait(60)
            seen.append(blas_threads())

    thread = threading.Thread(target=other)
    with one_blas_thread():
        thread.start()
        assert inside.wait(60)  # nobody waits for anybody
        seen.append(blas_threads())
    leave.set()
    thread.join(60)
    assert seen == [[1] * len(before)] * 2
    assert blas_threads() == before


@pytest.mark.reference
def test_sparse_times_dense_matches_reference():
    rng = np.random.default_rng(0)
    A = sp.random(9000, 30, 0.1, "csr", dtype=np.float32, random_state=rng)
    B = rng.normal(size=(30, 5)).astype(np.float32)
    out = np.empty((9000, 5), np.float32)
    product = sparse_times_dense(A, B, out=out, n_threads=2)
    assert product is out
    np.testing.assert_allclose(product, A.toarray().astype(np.float64) @ B, atol=1e-5)  # float32 sums
    np.testing.assert_array_equal(sparse_times_dense(A, B), product)  # of one thread, bit by bit


def test_read_only_views_cannot_be_written():
    array = np.zeros((3, 2), np.float32)
    view = read_only(array)
    assert view.base is array
    assert not view.flags.writeable
    assert array.flags.writeable
    assert read_only(np.zeros((2, 3)).T).flags.c_contiguous
