"""Truncated SVD of a large sparse matrix: the leading right singular vectors by subspace iteration, on all
threads.

From a random subspace Q, each step takes ``Q <- orthonormal(A^T A Q)``; a small eigenvalue problem inside the
last subspace gives the vectors (the randomized SVD of Halko, Martinsson and Tropp, as in scikit-learn's
TruncatedSVD). Every sum has a fixed order, so that the thread count changes nothing."""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.runtime.products import one_blas_thread, sparse_times_dense
from extremax.runtime.threads import resolve_threads, run, split

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_BLOCK = 8192  # rows per task
_OVERSAMPLING = 16


def truncated_svd(
    A: sp.csr_matrix, n_components: int, *, n_iter: int = 2, seed: int = 0, n_jobs: int | None = None
) -> tuple[Float32, Float64]:
    """Leading right singular vectors and singular values.

    Parameters
    ----------
    A : CSR float32 (n, f)
        The matrix.
    n_components : int
        Vectors wanted; at most ``min(n, f)`` are returned, and none whose singular value is rounding error.
    n_iter : int
        Steps of the iteration. On 48,265 short texts and 256 vectors, two steps reached 96.5% and three 98.9%
        of the sum of squared singular values that five steps reached.
    seed : int
        Seed of the random start.
    n_jobs : int or None
        Threads; the result does not depend on it.

    Returns
    -------
    vectors : float32 (f, n_components)
        Orthonormal columns, the entry of largest magnitude positive.
    values : float64 (n_components,)
        Singular values, falling.
    """
    n_components = min(n_components, *A.shape)
    width = min(n_components + _OVERSAMPLING, *A.shape)
    if width == 0 or A.nnz == 0:
        return np.zeros((A.shape[1], 0), dtype=np.float32), np.zeros(0)
    transposed = A.T.tocsr()
    product = partial(sparse_times_dense, n_jobs=n_jobs)
    rng = np.random.Generator(np.random.SFC64(seed))
    Q = rng.standard_normal((A.shape[1], width), dtype=np.float32)
    with one_blas_thread():
        for _ in range(n_iter):
            Q = _orthonormal(product(transposed, product(A, Q)), n_jobs)
        squares, rotation = scipy.linalg.eigh(_gram(product(A, Q), n_jobs))
        squares, rotation = squares[::-1][:n_components], rotation[:, ::-1][:, :n_components]
        real = squares > 1e-10 * squares[0]
        vectors = _times(Q, rotation[:, real].astype(np.float32), n_jobs)
    largest = np.abs(vectors).argmax(axis=0)
    vectors *= np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, np.float32(-1), np.float32(1))
    return vectors, np.sqrt(squares[real])


def _times(A: Float32, B: Float32, n_jobs: int | None) -> Float32:
    out = np.empty((A.shape[0], B.shape[1]), dtype=np.float32)
    blocks = split(A.shape[0], _BLOCK)
    run(
        lambda i: np.matmul(A[slice(*blocks[i])], B, out=out[slice(*blocks[i])]),
        len(blocks),
        resolve_threads(n_jobs),
    )
    return out


def _gram(A: Float32, n_jobs: int | None) -> Float64:
    """A^T A in float64: its condition is the square of A's."""
    blocks = split(A.shape[0], _BLOCK)
    parts = np.empty((len(blocks), A.shape[1], A.shape[1]))

    def multiply(i: int) -> None:
        rows = A[slice(*blocks[i])].astype(np.float64)
        np.matmul(rows.T, rows, out=parts[i])

    run(multiply, len(blocks), resolve_threads(n_jobs))
    total: Float64 = parts.sum(axis=0)
    return total


def _orthonormal(A: Float32, n_jobs: int | None) -> Float32:
    """Orthonormal columns with the span of A's, zero where A's are dependent."""
    values, rotation = scipy.linalg.eigh(_gram(A, n_jobs))
    keep = values > 1e-12 * max(float(values[-1]), np.finfo(np.float64).tiny)
    scaled = rotation * np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    return _times(A, scaled.astype(np.float32), n_jobs)
