"""Project rows on some directions: ``Z = X W^T - offset``.

Each number is one sum in a fixed order: the projection of a row depends on that row alone.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit

_TILE = 32  # rows that stay in the first cache


@njit
def project_rows(X, components, offset, Z):
    """Fill ``Z[i, j] = X[i] . components[j] - offset[j]``.

    X (n, f), components (k, f), offset (k,), Z (n, k), all float32.
    """
    n_samples, n_features = X.shape
    n_components = components.shape[0]
    whole = n_components - n_components % 4
    for tile in range(0, n_samples, _TILE):
        stop = min(tile + _TILE, n_samples)
        # Four dot products per pass over a row: each number of x is loaded once for four sums.
        for j in range(0, whole, 4):
            for i in range(tile, stop):
                a = np.float32(0.0)
                b = np.float32(0.0)
                c = np.float32(0.0)
                d = np.float32(0.0)
                for f in range(n_features):
                    x = X[i, f]
                    a += x * components[j, f]
                    b += x * components[j + 1, f]
                    c += x * components[j + 2, f]
                    d += x * components[j + 3, f]
                Z[i, j] = a - offset[j]
                Z[i, j + 1] = b - offset[j + 1]
                Z[i, j + 2] = c - offset[j + 2]
                Z[i, j + 3] = d - offset[j + 3]
        for j in range(whole, n_components):
            for i in range(tile, stop):
                a = np.float32(0.0)
                for f in range(n_features):
                    a += X[i, f] * components[j, f]
                Z[i, j] = a - offset[j]


@njit
def multiply_sparse(indptr, indices, data, B, out):
    """Fill ``out = A B`` for rows of a CSR matrix A.

    indptr int64 (n + 1,) into indices int32 and data float32; B (f, k) and out (n, k) float32.
    """
    n_columns = B.shape[1]
    for i in range(len(indptr) - 1):
        row = out[i]
        for j in range(n_columns):
            row[j] = np.float32(0.0)
        for p in range(indptr[i], indptr[i + 1]):
            value = data[p]
            other = B[indices[p]]
            for j in range(n_columns):
                row[j] += value * other[j]
