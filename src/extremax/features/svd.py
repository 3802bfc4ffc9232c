"""Truncated SVD of a large sparse matrix: leading right singular vectors by subspace iteration.

From a random subspace Q, each step takes ``Q <- orthonormal(A^T A Q)``; a small eigenvalue problem inside the
last subspace gives the vectors (the randomized SVD of Halko, Martinsson and Tropp, as in scikit-learn's
TruncatedSVD).  Every sum has a fixed order, so that the thread count changes nothing.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from extremax.runtime.products import one_blas_thread, sparse_times_dense
from extremax.runtime.threads import run, split
from extremax.tuned import SVDConfig
from extremax.types import Float32, Float64

_CONFIG = SVDConfig()


def truncated_svd(
    A: sp.csr_matrix,
    n_components: int,
    *,
    n_iter: int = _CONFIG.n_iter,
    oversampling: int = _CONFIG.oversampling,
    seed: int = 0,
    n_threads: int = 1,
) -> tuple[Float32, Float64]:
    """Return the leading right singular vectors and singular values.

    Parameters
    ----------
    A : CSR float32 (n, f)
        The matrix.
    n_components : int
        Number of vectors; at most ``min(n, f)`` are returned, and none whose singular value is rounding
        error.
    n_iter : int
        Steps of the iteration.
    oversampling : int
        Directions of the subspace beyond those asked for.
    seed : int
        Seed of the random start.
    n_threads : int
        Threads; the result does not depend on it.

    Returns
    -------
    vectors : float32 (f, n_components)
        Orthonormal columns, the entry of largest magnitude positive.
    values : float64 (n_components,)
        Singular values, decreasing.
    """
    n_components = min(n_components, *A.shape)
    width = min(n_components + oversampling, *A.shape)
    if width == 0 or A.nnz == 0:
        return np.zeros((A.shape[1], 0), dtype=np.float32), np.zeros(0)
    transposed = A.T.tocsr()
    product = partial(sparse_times_dense, n_threads=n_threads)
    blocked = _Blocked(_CONFIG.block_rows, n_threads)
    rng = np.random.Generator(np.random.SFC64(seed))
    Q = rng.standard_normal((A.shape[1], width), dtype=np.float32)
    with one_blas_thread():
        for _ in range(n_iter):
            Q = blocked.orthonormal(product(transposed, product(A, Q)))
        squares, rotation = scipy.linalg.eigh(blocked.gram(product(A, Q)))
        squares, rotation = squares[::-1][:n_components], rotation[:, ::-1][:, :n_components]
        real = squares > 1e-10 * squares[0]
        vectors = blocked.times(Q, rotation[:, real].astype(np.float32))
    largest = np.abs(vectors).argmax(axis=0)
    vectors *= np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, np.float32(-1), np.float32(1))
    return vectors, np.sqrt(squares[real])


class _Blocked(NamedTuple):
    """Products of dense matrices in blocks of rows, on several threads."""

    block_rows: int
    n_threads: int

    def times(self, A: Float32, B: Float32) -> Float32:
        """Return A B."""
        out = np.empty((A.shape[0], B.shape[1]), dtype=np.float32)
        blocks = [slice(*block) for block in split(A.shape[0], self.block_rows)]
        run(lambda i: np.matmul(A[blocks[i]], B, out=out[blocks[i]]), len(blocks), self.n_threads)
        return out

    def gram(self, A: Float32) -> Float64:
        """Return A^T A in float64: its condition number is the square of A's."""
        blocks = split(A.shape[0], self.block_rows)
        parts = np.empty((len(blocks), A.shape[1], A.shape[1]))

        def multiply(i: int) -> None:
            rows = A[slice(*blocks[i])].astype(np.float64)
            np.matmul(rows.T, rows, out=parts[i])

        run(multiply, len(blocks), self.n_threads)
        total: Float64 = parts.sum(axis=0)
        return total

    def orthonormal(self, A: Float32) -> Float32:
        """Return orthonormal columns with the span of A's, zero where A's are dependent."""
        values, rotation = scipy.linalg.eigh(self.gram(A))
        keep = values > 1e-12 * max(float(values[-1]), np.finfo(np.float64).tiny)
        scaled = rotation * np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
        return self.times(A, scaled.astype(np.float32))
