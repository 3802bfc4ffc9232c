"""Principal components: the features Z of the label tree (paper, section 3, with k = 16).

They are the directions of largest variance of X around its mean.  Up to 1,024 features the covariance matrix
is summed exactly and decomposed; beyond that a subspace of k + 16 directions is improved by repeated products
with the covariance, which is never formed.  Sparse input is centred in the algebra,
``(X - 1 m^T) Q = X Q - 1 (m^T Q)``, and stays sparse.

Sums run over fixed blocks of rows, on one BLAS thread each, and are added in a fixed order in float64: the
result is bitwise the same for any thread count, and for an array in memory or on disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.features.scaling import ColumnScaling
from extremax.kernels.project import project_rows
from extremax.runtime.products import one_blas_thread, read_only, sparse_times_dense
from extremax.runtime.threads import resolve_threads, run, split
from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Float32, Float64, Int64

_EXACT_FEATURES = 1024  # features up to which the covariance matrix is formed
_OVERSAMPLING = 16  # directions of the subspace beyond those asked for
_POWER_STEPS = 4  # iterations of the subspace
_BLOCK_ROWS = 4096  # rows per partial sum
_ROWS_PER_TASK = 1024  # of a projection
_SPARSE_FEATURES = 4096  # features beyond which sparse rows are not unpacked
_SAMPLE_ROWS = 4096  # rows that tell the size of the numbers
_USUAL_EXPONENT = 20  # numbers between 2**-20 and 2**20 are squared and summed as they are
_RELATIVE_RANK = 1e-7  # of the largest variance: a smaller one is rounding error in float32
MAX_ROWS = 100_000  # rows of a longer X that a fit uses
_MOST_LANES = 16  # partial sums
_SUM_ENTRIES = 2**24  # float64 numbers of all partial sums together, at most


@dataclass(frozen=True)
class PCA:
    """Mean and principal directions of a set of rows.

    Attributes
    ----------
    components : float32 (n_components, n_features)
        Orthonormal rows by decreasing variance, the entry of largest magnitude positive.  Directions
        without variance are zero.
    mean : float32 (n_features,)
        Mean of the rows.
    explained_variance : float64 (n_components,)
        Variance of the rows along each direction.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax.data import PCA
    >>> X = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    >>> pca = PCA.fit(X, 3)
    >>> pca.transform(X).shape
    (100, 3)
    """

    components: Float32
    mean: Float32
    explained_variance: Float64

    @property
    def n_components(self) -> int:
        return int(self.components.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.components.shape[1])

    @classmethod
    def fit(
        cls,
        X: Any,
        n_components: int,
        *,
        sample_weight: NDArray[Any] | None = None,
        max_rows: int | None = MAX_ROWS,
        n_jobs: int | None = None,
        scaling: ColumnScaling | None = None,
    ) -> PCA:
        """Find the directions of largest variance.

        Parameters
        ----------
        X : (n_samples, n_features) array, memory map or CSR matrix
            Features; other types than float32 are converted block by block.
        n_components : int
            Number of directions; ``min(n_components, n_features)`` are returned.
        sample_weight : (n_samples,) array or None
            A row of weight 2 counts as two equal rows.
        max_rows : int or None
            Rows used; of a longer X one row is drawn from each of `max_rows` equal stretches.  None uses all
            rows.
        n_jobs : int or None
            Threads; the result does not depend on it.
        scaling : ColumnScaling or None
            How columns of a dense X are standardised first: the directions are those of standardised rows.
        """
        if X.ndim != 2 or X.shape[0] < 1 or X.shape[1] < 1:
            raise ValueError(
                f"X has shape {X.shape}; PCA needs a two-dimensional array with at least one row and one"
                " column."
            )
        if n_components < 0:
            raise ValueError(f"n_components is {n_components}; it must not be negative.")
        rows = _Rows(X, sample_weight, max_rows, scaling)
        n_threads = resolve_threads(n_jobs)
        n_components = min(n_components, rows.n_features)
        with one_blas_thread():
            total = rows.total_weight()
            if rows.n_features <= _EXACT_FEATURES:
                covariance, mean = _covariance(rows, total, n_threads)
                first = rows.n_features - n_components
                values, vectors = np.zeros(0), np.zeros((rows.n_features, 0))
                if n_components:
                    values, vectors = scipy.linalg.eigh(
                        covariance, subset_by_index=(first, rows.n_features - 1)
                    )
            else:
                values, vectors, mean = _subspace_iteration(rows, total, n_components, n_threads)
        found = cls._from_eigen(values[::-1], vectors[:, ::-1], mean)
        return cls(found.components, found.mean, found.explained_variance / rows.unit**2)

    @classmethod
    def _from_eigen(cls, values: Float64, vectors: Float64, mean: Float64) -> PCA:
        components = np.ascontiguousarray(vectors.T)
        if len(values):
            largest = np.abs(components).argmax(axis=1)
            components *= np.where(components[np.arange(len(values)), largest] < 0, -1.0, 1.0)[:, None]
            # Directions inside the null space are arbitrary; zero is the same on every machine.
            real = values > max(_RELATIVE_RANK * float(values[0]), np.finfo(np.float64).tiny)
            components[~real] = 0.0
            values = np.where(real, values, 0.0)
        return cls(
            components.astype(np.float32), mean.astype(np.float32), np.asarray(values, dtype=np.float64)
        )

    def whitened(self) -> PCA:
        """Return the projection to coordinates of unit variance; directions without variance stay zero.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 5.0, 0.2]
        >>> np.std(PCA.fit(X, 2).whitened().transform(X.astype(np.float32)), axis=0).round(3).tolist()
        [1.0, 1.0]
        """
        varies = self.explained_variance > 0.0
        factor = np.where(varies, 1.0 / np.sqrt(np.where(varies, self.explained_variance, 1.0)), 0.0)
        components = (self.components * factor[:, None]).astype(np.float32)
        return PCA(components, self.mean, varies.astype(np.float64))

    @classmethod
    def identity(cls, n_features: int) -> PCA:
        """Return the projection that leaves features unchanged."""
        return cls(
            np.eye(n_features, dtype=np.float32), np.zeros(n_features, np.float32), np.ones(n_features)
        )

    @property
    def is_identity(self) -> bool:
        """Whether the projection leaves features unchanged."""
        return (
            self.components.shape[0] == self.components.shape[1]
            and not self.mean.any()
            and bool(np.array_equal(self.components, np.eye(len(self.components), dtype=np.float32)))
        )

    def state(self) -> State:
        """Return the state that a model folder stores."""
        arrays = {"components": self.components, "mean": self.mean}
        return State({}, {**arrays, "explained_variance": self.explained_variance})

    @classmethod
    def from_state(cls, state: State) -> PCA:
        """Restore a projection from its state."""
        components = checks.get_array(state.arrays, "components", "f4", (None, None))
        k, n_features = components.shape
        mean = checks.get_array(state.arrays, "mean", "f4", (n_features,))
        return cls(components, mean, checks.get_array(state.arrays, "explained_variance", "f8", (k,)))

    def transform(self, X: Any, *, out: Float32 | None = None, n_jobs: int | None = None) -> Float32:
        """Return the coordinates of rows in the principal directions, (n_samples, n_components) float32.

        `out`, if given, is filled.  The coordinates of a row do not depend on the other rows of X.
        """
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise ValueError(f"X has shape {X.shape}; this PCA was fitted on {self.n_features} features.")
        shape = (int(X.shape[0]), self.n_components)
        if out is None:
            out = np.empty(shape, dtype=np.float32)
        elif out.shape != shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(
                f"out has shape {out.shape} and type {out.dtype}; transform needs a C-ordered float32 array"
                f" {shape}."
            )
        result = out
        offset = (self.components.astype(np.float64) @ self.mean.astype(np.float64)).astype(np.float32)
        sparse = sp.issparse(X)
        if sparse:
            _check_indices(X)
            X = X.tocsr()
        n_threads = resolve_threads(n_jobs)
        if sparse and self.n_features > _SPARSE_FEATURES:
            sparse_times_dense(X, self.components.T, out=result, n_threads=n_threads)
            result -= offset
            return result
        components = read_only(self.components)
        blocks = split(shape[0], _ROWS_PER_TASK)

        def project(i: int) -> None:
            start, stop = blocks[i]
            block = X[start:stop]
            if sparse:
                block = block.toarray()
            project_rows(read_only(block), components, offset, result[start:stop])

        if self.n_components:
            run(project, len(blocks), n_threads)
        return result


class _Rows:
    """The rows that a fit uses, in blocks of float32: dense, or CSR with very many features."""

    def __init__(
        self,
        X: Any,
        sample_weight: NDArray[Any] | None,
        max_rows: int | None,
        scaling: ColumnScaling | None = None,
    ) -> None:
        if sp.issparse(X):
            _check_indices(X)
        self.X = X.tocsr() if sp.issparse(X) else X
        self.n_features = int(X.shape[1])
        self.sparse = bool(sp.issparse(X))
        self.stay_sparse = self.sparse and self.n_features > _SPARSE_FEATURES
        n_samples = int(X.shape[0])
        self.shift: Any
        self.index: Int64 | None = None
        self.weight: Float64 | None = None
        weight = None if sample_weight is None else _check_weight(sample_weight, n_samples)
        if weight is not None and weight.min() == 0:  # such rows are left out
            self.index = np.flatnonzero(weight)
        self.n_rows = n_samples if self.index is None else len(self.index)
        if max_rows is not None and self.n_rows > max_rows:
            drawn = spread_rows(self.n_rows, max_rows)
            self.index, self.n_rows = drawn if self.index is None else self.index[drawn], max_rows
        if weight is not None:
            weight = weight if self.index is None else weight[self.index]
            self.weight = weight / weight.mean()
        self.scaling = scaling
        self.shift, self.unit = (0.0, 1.0) if scaling is not None else self._typical()
        self.blocks = split(self.n_rows, 4 * _BLOCK_ROWS if self.stay_sparse else _BLOCK_ROWS)

    def total_weight(self) -> float:
        return float(self.n_rows) if self.weight is None else float(self.weight.sum())

    def take(self, start: int, stop: int, step: int = 1) -> Any:
        """Return rows start, start + step, ... of those used, float32."""
        where: Any = slice(start, stop, step) if self.index is None else self.index[start:stop:step]
        block = self.X[where]
        if self.stay_sparse:
            return block.astype(np.float32, copy=False)
        if self.sparse:
            block = block.toarray()
        return np.ascontiguousarray(block, dtype=np.float32)

    def _typical(self) -> tuple[Float32, float]:
        """Estimate the mean, and a power of two that brings deviations from it near one.

        Sums of squares around the mean lose no digits in float32, and in that unit they neither overflow nor
        vanish.
        """
        rows = self.take(0, self.n_rows, max(1, self.n_rows // _SAMPLE_ROWS))
        if self.stay_sparse:
            mean = np.zeros(self.n_features, dtype=np.float32)  # subtracting a mean would fill the matrix
            largest = float(np.abs(rows.data).max(initial=0.0))
        else:
            mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
            centre = mean.astype(np.float64)
            largest = float(np.maximum(rows.max(axis=0) - centre, centre - rows.min(axis=0)).max())
        _, exponent = math.frexp(largest)
        return mean, 1.0 if abs(exponent) <= _USUAL_EXPONENT else 2.0 ** -min(max(exponent, -126), 126)

    def around_shift(self, start: int, stop: int) -> Any:
        """Return rows in a new array, around `shift` and in `unit`."""
        block = self.take(start, stop)
        if self.scaling is not None:
            return self.scaling.rows(block)
        if not self.stay_sparse:
            block = block - self.shift
        if self.unit != 1.0:
            block = block * np.float32(self.unit)
        return block

    def root_weight(self, start: int, stop: int) -> Float32 | None:
        return None if self.weight is None else np.sqrt(self.weight[start:stop]).astype(np.float32)


def fit_bytes(
    shape: tuple[int, int],
    n_components: int,
    n_threads: int,
    *,
    is_sparse: bool = False,
) -> int:
    """Return the bytes that `PCA.fit` takes: blocks of rows, products, their sums, eigenvectors."""
    n_rows, n_features = shape
    exact = n_features <= _EXACT_FEATURES
    width = n_features if exact else min(n_components + _OVERSAMPLING, n_features)
    stays_sparse = is_sparse and n_features > _SPARSE_FEATURES
    block_rows = _BLOCK_ROWS * (4 if stays_sparse else 1)
    n_blocks = -(-min(n_rows, MAX_ROWS) // block_rows)
    product = (width + 1) * n_features
    lanes = _count_lanes(product, n_blocks)
    unpacked = 0 if stays_sparse else 2 * min(n_rows, block_rows) * n_features
    return 8 * (lanes + (5 if exact else 3)) * product + 4 * n_threads * (product + unpacked)


def _count_lanes(size: int, n_blocks: int) -> int:
    """Return the number of partial sums, each of `size` numbers."""
    return max(2, min(_MOST_LANES, _SUM_ENTRIES // size, n_blocks))


def find_moments(
    X: Any,
    scaling: ColumnScaling,
    *,
    sample_weight: NDArray[Any] | None = None,
    max_rows: int | None = MAX_ROWS,
    n_threads: int = 1,
) -> tuple[Float64, Float64]:
    """Return covariance (f, f) and mean (f,) of standardised rows; the parameters are those of `PCA.fit`."""
    rows = _Rows(X, sample_weight, max_rows, scaling)
    with one_blas_thread():
        return _covariance(rows, rows.total_weight(), n_threads)


def _check_indices(X: Any) -> None:
    """Raise ValueError for a compressed matrix whose indices lead outside of it."""
    if sp.issparse(X) and X.format in ("csr", "csc", "bsr"):
        X.check_format(full_check=True)


def _check_weight(sample_weight: NDArray[Any], n_samples: int) -> Float64:
    weight: Float64 = np.asarray(sample_weight, dtype=np.float64)
    wrong_shape = weight.shape != (n_samples,)
    if wrong_shape or not np.isfinite(weight).all() or weight.min() < 0 or weight.sum() <= 0:
        raise ValueError(
            f"sample_weight must hold {n_samples} finite numbers >= 0, not all zero; got shape"
            f" {weight.shape}."
        )
    return weight


def spread_rows(n_rows: int, n_drawn: int) -> Int64:
    """Draw a random row from each of `n_drawn` equal stretches.

    They are sorted and distinct, and no period in the order of the rows can bias them.
    """
    jitter = np.random.Generator(np.random.SFC64(0)).random(n_drawn)
    edges = (np.arange(n_drawn + 1, dtype=np.int64) * n_rows) // n_drawn
    drawn: Int64 = edges[:-1] + (jitter * np.diff(edges)).astype(np.int64)
    return drawn


def _sum_blocks(
    rows: _Rows, shape: tuple[int, ...], partial: Callable[[int, int], NDArray[Any]], n_threads: int
) -> Float64:
    """Sum ``partial(start, stop)`` over the blocks.

    Lane j adds blocks j, j + lanes, ...; the number of lanes depends on the shapes alone, and so does every
    rounding.
    """
    lanes = _count_lanes(int(np.prod(shape)), len(rows.blocks))
    sums = np.zeros((lanes, *shape))

    def add(lane: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # an error is raised below
            for start, stop in rows.blocks[lane::lanes]:
                sums[lane] += partial(start, stop)

    run(add, lanes, n_threads)
    total: Float64 = sums.sum(axis=0) if lanes > 2 else np.add(sums[0], sums[1])
    if not np.isfinite(total).all():
        raise ValueError(
            "X holds a few numbers that are more than 1e17 times as large as most; clip or drop them first."
        )
    return total


def _covariance(rows: _Rows, total: float, n_threads: int) -> tuple[Float64, Float64]:
    """Return the covariance (f, f) in the rows' unit, and the mean (f,).

    Products are summed around the shift and corrected by its distance to the mean.
    """
    n_features = rows.n_features

    def partial(start: int, stop: int) -> NDArray[Any]:
        block = rows.around_shift(start, stop)
        root = rows.root_weight(start, stop)
        out = np.empty((n_features + 1, n_features), dtype=np.float32)
        if root is not None:
            block *= root[:, None]
        out[0] = (np.ones(len(block), dtype=np.float32) if root is None else root) @ block
        np.matmul(block.T, block, out=out[1:])
        return out

    sums = _sum_blocks(rows, (n_features + 1, n_features), partial, n_threads)
    drift = sums[0] / total
    covariance = sums[1:] / total - np.outer(drift, drift)
    return (covariance + covariance.T) / 2.0, rows.shift + drift / rows.unit


def _subspace_iteration(
    rows: _Rows, total: float, n_components: int, n_threads: int
) -> tuple[Float64, Float64, Float64]:
    """Return the largest eigenpairs of the covariance C in the rows' unit, ascending, and the mean.

    For many features: only products ``C Q`` are computed.
    """
    n_features = rows.n_features
    width = min(n_components + _OVERSAMPLING, n_features)
    basis = np.random.Generator(np.random.SFC64(0)).standard_normal((n_features, width))
    basis = _orthonormal(basis)
    drift: Float64 = np.zeros(0)  # column `width` of each product holds the column sums

    def product(Q: Float64) -> Float64:
        nonlocal drift
        Q32 = Q.astype(np.float32)

        def partial(start: int, stop: int) -> NDArray[Any]:
            block = rows.around_shift(start, stop)
            weight = rows.weight[start:stop].astype(np.float32) if rows.weight is not None else None
            right = np.empty((stop - start, width + 1), dtype=np.float32)
            right[:, :width] = block @ Q32
            right[:, width] = 1.0
            if weight is not None:
                right *= weight[:, None]
            return np.asarray(block.T @ right)

        sums = _sum_blocks(rows, (n_features, width + 1), partial, n_threads)
        drift = sums[:, width] / total
        image: Float64 = sums[:, :width] / total - np.outer(drift, drift @ Q)
        return image

    for _ in range(_POWER_STEPS):
        # the second pass removes what rounding left in the first
        basis = _orthonormal(_orthonormal(product(basis)))
    small = basis.T @ product(basis)
    values, rotation = scipy.linalg.eigh((small + small.T) / 2.0)
    vectors = basis @ rotation
    return values[width - n_components :], vectors[:, width - n_components :], rows.shift + drift / rows.unit


def _orthonormal(A: Float64) -> Float64:
    """Return orthonormal columns with the span of A's, zero where A's are dependent.

    Through A^T A, five times as fast as QR.
    """
    values, rotation = scipy.linalg.eigh(A.T @ A)
    keep = values > 1e-14 * max(float(values[-1]), np.finfo(np.float64).tiny)
    columns: Float64 = A @ (rotation * np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0))
    return columns
