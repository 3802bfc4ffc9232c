"""Standardised columns, and rows of limited length: features as training on whitened rows reads them.

    u = t (f x - centre) * factor,     factor_j = 1 / (s_j sqrt(k)),     t = min(1, max_length / |u|),

with the standard deviation s_j of column j of f x and the number k of columns that vary, so that E|u|^2 = 1.
The feature scale f is a power of two that brings rows to a length near one.

Deviations count up to a multiple of a high quantile, and rows that are longer than such a multiple are pulled
towards the centre: a few outlying rows or entries then move neither scale nor weights. Ordinary rows stay as
they are.

Everything is computed column by column in float64 from float32 features: a column times a power of two gives
the same bits of u, a column times any other factor the same numbers up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.runtime.products import one_blas_thread, row_blocks, square_sums
from extremax.runtime.threads import run, split
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tuned import ScaleConfig
from extremax.types import Bool, Features, Float32, Float64, Int64

BLOCK_ROWS = 1024  # rows that are summed together
BLOCK_CLASSES = 4096  # classes that a thread converts at a time
_LANES = 8  # partial sums
_MAX_UNEVENNESS = 100.0  # mean over median variance of the columns up to which they stay as they are
_QUANTILE = 0.995  # of deviations and of row lengths: fewer than one row in 200 may be outlying
_MARGIN = 3.0  # times that quantile, up to which deviations and lengths count
_MIN_LIMIT = 2.0  # root mean square lengths that a row may have in any case
_SPARSE_SAMPLE = 100_000  # entries of a sparse matrix that tell whether any is far larger
_ROUNDING = 5e-7  # of the size of a column; a smaller deviation is the rounding of float32


@dataclass(frozen=True)
class ColumnScaling:
    """The map x -> u of dense rows.

    Attributes
    ----------
    centre, factor : float32 (n_features,)
        What is subtracted from a column of f x, and what it is then multiplied by.
    feature_scale
        The number f, a power of two.
    max_length
        Length of the longest u.
    """

    centre: Float32
    factor: Float32
    feature_scale: float
    max_length: float

    @classmethod
    def fit(
        cls,
        X: Any,
        weight: NDArray[Any] | None = None,
        *,
        config: ScaleConfig | None = None,
        n_threads: int = 1,
    ) -> ColumnScaling:
        """Find centre and scale of every column, and the length of ordinary rows.

        Parameters
        ----------
        X : (n_samples, n_features) float32 array or memory map
        weight
            Weight of each row; rows of weight zero do not count.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(2000, 3)) * [0.01, 1.0, 1e6]
        >>> X[7] = 1e9  # an outlying row
        >>> scaling = ColumnScaling.fit(X.astype(np.float32))
        >>> u = scaling.rows(X.astype(np.float32))
        >>> bool(abs(np.mean(np.sum(u * u, axis=1)) - 1.0) < 0.1)
        True
        """
        config = config or ScaleConfig()
        used = None if weight is None else np.flatnonzero(np.asarray(weight) > 0)
        n_rows = int(X.shape[0]) if used is None else len(used)
        where = _sample_places(n_rows, config)
        sample = np.ascontiguousarray(X[where if used is None else used[where]], dtype=np.float32)
        median = np.median(sample.astype(np.float64), axis=0).astype(np.float32)
        bound = _bounds(np.abs(sample.astype(np.float64) - median), config)
        first, second = _clipped_moments(X, weight, median, bound, n_threads)
        spread = np.sqrt(np.maximum(second - first * first, 0.0))
        centre = median.astype(np.float64) + first
        length = float(np.sqrt(np.sum(spread * spread + centre * centre)))
        if length > config.max_length:
            raise ValueError(
                f"the rows of X are {length:g} long on average, near the end of float32; divide all features"
                " by one large number."
            )
        f = 2.0 ** -round(math.log2(length)) if length >= config.min_length else 1.0
        rounding = np.maximum(_ROUNDING * np.abs(centre), config.min_length)
        varies = spread > rounding
        # A constant column may vary in later rows: it is then as one of the largest.
        others = np.maximum(float(spread[varies].max()) if varies.any() else 1.0, rounding)
        factor = 1.0 / (np.where(varies, spread, others) * f * np.sqrt(max(int(varies.sum()), 1)))
        found = cls((centre * f).astype(np.float32), factor.astype(np.float32), f, np.inf)
        lengths = np.sqrt(found._squared_lengths(sample))
        limit = _MARGIN * _high(lengths) if n_rows >= config.min_rows else np.inf
        return cls(found.centre, found.factor, f, max(limit, _MIN_LIMIT))

    def rows(self, X: Float32, out: Float32 | None = None) -> Float32:
        """Return u of dense rows, float32 (n, n_features)."""
        u, is_long = self._standardise(X, out)
        for i in np.flatnonzero(is_long):
            long = self._precisely(X[i])
            u[i] = long * (self.max_length / np.sqrt(long @ long))
        return u

    def _standardise(self, X: Float32, out: Float32 | None = None) -> tuple[Float32, Bool]:
        """Return u in float32 before any is shortened, and which are too long."""
        with np.errstate(over="ignore", invalid="ignore"):
            u = np.multiply(X, np.float32(self.feature_scale), out=out)
            u -= self.centre
            u *= self.factor
            return u, ~(np.einsum("ij,ij->i", u, u) <= self.max_length**2)

    def _precisely(self, X: Float32) -> Float64:
        """Return u in float64, of unlimited length."""
        u: Float64 = (X.astype(np.float64) * self.feature_scale - self.centre) * self.factor
        return u

    def count_limited(self, X: Any, n_threads: int = 1, weight: NDArray[Any] | None = None) -> int:
        """Return the number of rows that are longer than `max_length`; rows of weight zero do not count."""
        cuts = split(int(X.shape[0]), BLOCK_ROWS)
        found = np.zeros(len(cuts), np.int64)

        def work(i: int) -> None:
            _, is_long = self._standardise(np.asarray(X[slice(*cuts[i])], np.float32))
            found[i] = np.sum(is_long if weight is None else is_long & (weight[slice(*cuts[i])] > 0))

        run(work, len(cuts), n_threads)
        return int(found.sum())

    def _squared_lengths(self, rows: Float32) -> Float64:
        lengths: Float64 = np.zeros(len(rows))
        for a, b in split(len(rows), BLOCK_ROWS):
            u = self._precisely(rows[a:b])
            lengths[a:b] = np.einsum("ij,ij->i", u, u)
        return lengths

    @property
    def unevenness(self) -> float:
        """Mean over median variance of the columns of X: how far a few columns outweigh the others."""
        variance = self.inverse_factor**2
        return float(variance.mean() / np.median(variance))

    @property
    def offset(self) -> float:
        """Squared distance of the centre from zero over the mean squared distance of rows from the centre."""
        variance = float(np.sum(self.inverse_factor**2)) / len(self.factor)
        return float(np.sum(self.centre.astype(np.float64) ** 2)) / variance

    @property
    def inverse_factor(self) -> Float64:
        """One over `factor`."""
        return 1.0 / self.factor.astype(np.float64)

    def is_needed(self, n_limited: int) -> bool:
        """Whether rows are outlying, columns of very different scales, or rows far from zero."""
        return n_limited > 0 or max(self.unevenness, self.offset) > _MAX_UNEVENNESS

    def to_features(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for u into weights for f x, in place."""
        centre = self.centre.astype(np.float64)

        def change(w: Float32, b: Float32) -> tuple[Float32, Float32]:
            given = w * self.factor
            return given, (b - given @ centre).astype(np.float32)

        change_blocks(weights, biases, n_threads, change)

    def to_training(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for f x into weights for u, in place."""
        inverse, centre = self.inverse_factor, self.centre.astype(np.float64)

        def change(w: Float32, b: Float32) -> tuple[Float32, Float32]:
            return (w * inverse).astype(np.float32), (b + w @ centre).astype(np.float32)

        change_blocks(weights, biases, n_threads, change)

    def to_given(self, components: NDArray[Any], mean: NDArray[Any]) -> tuple[Float64, Float64]:
        """Turn a projection of u, components and mean, into one of x."""
        centre: Float64 = (self.centre + mean * self.inverse_factor) / self.feature_scale
        given: Float64 = components.astype(np.float64) * self.factor * self.feature_scale
        return given, centre

    def state(self) -> State:
        limit = None if self.max_length == np.inf else self.max_length  # JSON has no infinity
        header = {"feature_scale": self.feature_scale, "max_length": limit}
        return State(header, {"centre": self.centre, "factor": self.factor})

    @classmethod
    def from_state(cls, state: State) -> ColumnScaling:
        centre = checks.check_finite(checks.get_array(state.arrays, "centre", "f4", (None,)), "centre")
        factor = checks.check_finite(checks.get_array(state.arrays, "factor", "f4", centre.shape), "factor")
        if not (factor > 0.0).all():
            checks.reject("array 'factor' holds a number that is not positive")
        scale = checks.get_float(state.header, "feature_scale", 0.0)
        limit = np.inf
        if checks.get(state.header, "max_length") is not None:
            limit = checks.get_float(state.header, "max_length", 0.0)
        return cls(np.array(centre), np.array(factor), scale, limit)


def change_blocks(
    weights: Float32,
    biases: Float32,
    n_threads: int,
    change: Callable[[Float32, Float32], tuple[Float32, Float32]],
) -> None:
    """Replace weights and biases by a function of them, in place, a block of classes at a time."""
    cuts = split(len(weights), BLOCK_CLASSES)

    def work(i: int) -> None:
        cut = slice(*cuts[i])
        weights[cut], biases[cut] = change(weights[cut], biases[cut])

    with one_blas_thread():
        run(work, len(cuts), n_threads)


@dataclass(frozen=True)
class LargeColumns:
    """Columns of sparse features that are far larger than others, and their factors.

    Factors are powers of two, so that no digit of a feature or of a weight is lost.
    """

    columns: Int64
    factors: Float32

    @classmethod
    def find(cls, X: Any, config: ScaleConfig, n_columns: int | None = None) -> LargeColumns | None:
        """Look for such columns among the first `n_columns` of a CSR matrix; None where there are none.

        The size of a column is the median of its stored entries: a few outlying rows do not make it large.
        """
        n_columns = int(X.shape[1]) if n_columns is None else n_columns
        inside = slice(None) if n_columns == X.shape[1] else X.indices < n_columns
        values, indices = np.abs(X.data[inside]), X.indices[inside]
        if not config.standardize or not len(values):
            return None
        some = values[:: max(1, len(values) // _SPARSE_SAMPLE)]
        if values.max() <= config.max_column * float(np.median(some)):
            return None
        largest = np.zeros(n_columns, np.float32)  # entry of each column
        np.maximum.at(largest, indices, values)
        typical = float(np.median(largest[largest > 0.0]))
        among = (largest > config.max_column * typical)[indices]
        values, indices = values[among], indices[among]
        if not len(values):
            return None
        order = np.lexsort((values, indices))
        columns, first, number = np.unique(indices[order], return_index=True, return_counts=True)
        size = values[order][first + (number - 1) // 2].astype(np.float64)
        large = size > config.max_column * typical
        if not large.any():
            return None
        factors = 2.0 ** -np.round(np.log2(size[large] / typical))
        return cls(columns[large].astype(np.int64), factors.astype(np.float32))

    def scale(self, X: Features) -> Features:
        """Return the features with these columns multiplied by their factors, in a copy."""
        of_column = np.ones(X.shape[1], np.float32)
        of_column[self.columns] = self.factors
        if not sp.issparse(X):
            return X * of_column
        rows: Any = X
        return _with_values(rows, rows.data * of_column[rows.indices])

    def to_given(self, weights: Any) -> Any:
        """Turn weights for scaled columns, an array or a sparse matrix, into weights for those given."""
        of_column = np.ones(weights.shape[1], np.float32)
        of_column[self.columns] = self.factors
        return weights @ sp.diags(of_column) if sp.issparse(weights) else weights * of_column

    def header(self) -> dict[str, list[float]]:
        """Return the columns and factors as JSON can hold them."""
        return {"columns": self.columns.tolist(), "factors": self.factors.tolist()}

    @classmethod
    def from_header(cls, header: Any, n_features: int) -> LargeColumns:
        """Restore the columns of a header; anything else is a ModelFileError."""
        columns = checks.get_list(header, "columns", (int,))
        factors = checks.get_list(header, "factors", (float,))
        sound = all(0 <= c < n_features for c in columns) and all(0.0 < f < 1.0 for f in factors)
        if not sound or len(columns) != len(factors) or len(set(columns)) != len(columns):
            checks.reject("its factors of large columns do not fit")
        return cls(np.array(columns, np.int64), np.array(factors, np.float32))


def limit_sparse_rows(X: Any, config: ScaleConfig) -> tuple[Any, int]:
    """Return a CSR matrix without rows that are far longer than others, and how many were shortened.

    The same matrix is returned where there are none.
    """
    n_rows = int(X.shape[0])
    if not config.standardize or n_rows < config.min_rows:
        return X, 0
    lengths = np.sqrt(square_sums(X.indptr, X.data))
    some = lengths[lengths > 0.0]
    limit = _MARGIN * _high(some) if len(some) >= config.min_rows else np.inf
    long = lengths > limit
    if not long.any():
        return X, 0
    factor = np.where(long, limit / np.where(long, lengths, 1.0), 1.0)
    values = np.empty(len(X.data), np.float32)
    for first, last in row_blocks(X.indptr):
        part = slice(X.indptr[first], X.indptr[last])
        values[part] = X.data[part] * np.repeat(factor[first:last], np.diff(X.indptr[first : last + 1]))
    return _with_values(X, values), int(long.sum())


def _with_values(X: Any, values: Float32) -> Any:
    """Return a CSR matrix with the entries of X at other values; their places are not copied."""
    found = sp.csr_matrix(X.shape, dtype=np.float32)
    found.data, found.indices, found.indptr = values, X.indices, X.indptr
    found.has_sorted_indices = X.has_sorted_indices
    return found


def _sample_places(n_rows: int, config: ScaleConfig) -> Int64:
    """Return numbers of rows from all over X, of every one where they are few."""
    where = (np.arange(min(n_rows, config.sample_rows), dtype=np.int64) * n_rows) // min(
        n_rows, config.sample_rows
    )
    if len(where) < n_rows:  # one from each stretch: no period in the order of the rows biases them
        step = n_rows / len(where)
        where = where + (np.random.Generator(np.random.SFC64(0)).random(len(where)) * step).astype(np.int64)
        where = np.minimum(where, n_rows - 1)
    return where


def _high(values: NDArray[Any]) -> float:
    """Return a high quantile: one of the values, never the largest of several."""
    place = int(_QUANTILE * (len(values) - 1))
    return float(np.partition(values, place)[place])


def _bounds(deviation: Float64, config: ScaleConfig) -> Float64:
    """Return the deviation up to which a column's entries count, (n_features,)."""
    n_rows, n_features = deviation.shape
    bounds = np.full(n_features, np.inf)
    if n_rows < config.min_rows:
        return bounds
    place = int(_QUANTILE * (n_rows - 1))
    high = np.partition(deviation, place, axis=0)[place]
    for j in np.flatnonzero(high == 0.0):  # nearly always the same number: ask those that differ
        others = deviation[deviation[:, j] > 0.0, j]
        high[j] = _high(others) if len(others) > 1 else np.inf
    bounds[:] = _MARGIN * high
    return bounds


def _clipped_moments(
    X: Any, weight: NDArray[Any] | None, median: Float32, bound: Float64, n_threads: int
) -> tuple[Float64, Float64]:
    """Return the mean and the mean square of the deviations from the median, clipped to a bound.

    The order of the sums depends on no thread.
    """
    cuts = split(int(X.shape[0]), BLOCK_ROWS)
    blocks: list[Any] = [None] * len(cuts)

    def add(i: int) -> None:
        part = slice(*cuts[i])
        deviation = np.asarray(X[part]).astype(np.float64)
        deviation -= median
        np.clip(deviation, -bound, bound, out=deviation)
        factor = np.ones(len(deviation)) if weight is None else np.asarray(weight[part], np.float64)
        first = factor @ deviation
        np.square(deviation, out=deviation)
        blocks[i] = first, factor @ deviation

    with one_blas_thread():
        run(add, len(cuts), n_threads)
    total = float(X.shape[0]) if weight is None else float(np.sum(weight, dtype=np.float64))
    sums = np.zeros((min(_LANES, len(blocks)), 2, len(blocks[0][0])))
    for i, (first, second) in enumerate(blocks):
        sums[i % len(sums), 0] += first
        sums[i % len(sums), 1] += second
    mean, square = sums.sum(axis=0) / total
    return mean, square
