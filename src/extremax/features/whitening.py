"""Whitening: features of equal variance in every direction.

Text features, embeddings and principal components have a few directions of large variance and many of small;
a step size that suits the first crawls along the others.  Training on whitened rows sees

    x' = s P (f x - mean),     P = (T + ridge * mean eigenvalue of T)^(-1/2),     s such that E|x'|^2 = 1,

with the model's feature scale f and the covariance T of the rows f x around the means of their classes, or
the same for columns divided by their standard deviations. Where
columns are standardised (`extremax.features.scaling`), u stands in the place of f x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from extremax.features.scaling import ColumnScaling, change_blocks
from extremax.storage import checks
from extremax.storage.state import State, merge
from extremax.types import Float32, Float64

_LEAST_VARIANCE = 1e-10  # of the largest variance of a column


@dataclass(frozen=True)
class WhiteningFamily:
    """The whitenings of one covariance, by the ridge.

    The ridge is a fraction of the mean variance, or of each column's own: the covariance is then taken of
    columns divided by `unit`, their standard deviations, and the rows x' do not depend on the scale of any
    column.
    """

    variance: Float64
    basis: Float64
    unit: Float64
    varies: bool

    @classmethod
    def of(
        cls, covariance: Float64, *, own_variance: bool = False, no_variance: float = 1e-14
    ) -> WhiteningFamily:
        """Decompose a covariance, or with `own_variance` that of columns over their standard deviations."""
        diagonal = np.diag(covariance)
        varies = float(diagonal.sum()) > no_variance
        unit = np.ones(len(diagonal))
        if own_variance and varies:
            # a column that varies no more than others do by rounding stays as small as it is
            unit = np.sqrt(np.maximum(diagonal, _LEAST_VARIANCE * diagonal.max()))
            covariance = covariance / unit / unit[:, None]
        variance, basis = scipy.linalg.eigh(covariance)
        return cls(np.maximum(variance, 0.0), basis, unit, varies)

    def fit(self, mean: Float32, ridge: float, scaling: ColumnScaling | None = None) -> Whitening:
        """Return the whitening with a ridge: a fraction of the mean variance, added to every direction."""
        variance, basis = self.variance, self.basis
        floor = ridge * float(variance.sum()) / len(variance) if self.varies else 1.0
        scale = float(np.sum(variance / (variance + floor))) ** -0.5 if self.varies else 1.0
        roots = np.sqrt(variance + floor)
        matrix, inverse = scale * (basis / roots) @ basis.T, (basis * roots) @ basis.T / scale
        matrix /= self.unit[:, None]
        inverse *= self.unit
        return Whitening(
            matrix.astype(np.float32), inverse.astype(np.float32), mean.astype(np.float32), scaling
        )


@dataclass(frozen=True)
class Whitening:
    """The map x -> x' = (u - mean) @ matrix of standardised rows u, and its inverse without the mean.

    Without a `scaling`, u = f x with the feature scale f.
    """

    matrix: Float32
    inverse: Float32
    mean: Float32
    scaling: ColumnScaling | None = None

    @classmethod
    def fit(
        cls,
        covariance: Float64,
        mean: Float32,
        *,
        ridge: float = 0.1,
        no_variance: float = 1e-14,
        scaling: ColumnScaling | None = None,
    ) -> Whitening:
        """Find the map from the covariance of the rows, or of the rows around the means of their classes.

        Parameters
        ----------
        covariance, mean
            Of the rows u.
        ridge
            Fraction of the mean variance that is added to every direction.
        no_variance
            Variance that counts as rounding error: such rows are left as they are.
        scaling
            The map x -> u.

        Examples
        --------
        >>> import numpy as np
        >>> X = (np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 100.0]).astype(np.float32)
        >>> white = Whitening.fit(np.cov(X.T), X.mean(axis=0), ridge=1e-9)
        >>> bool(np.allclose(np.cov(white.rows(X, 1.0).T), np.eye(3) / 3, atol=0.01))
        True
        """
        return WhiteningFamily.of(covariance, no_variance=no_variance).fit(mean, ridge, scaling)

    @property
    def max_length(self) -> float:
        """Length of the longest row u."""
        return np.inf if self.scaling is None else self.scaling.max_length

    def rows(self, X: Float32, feature_scale: float, out: Float32 | None = None) -> Float32:
        """Return x' of some rows."""
        centred = X * np.float32(feature_scale) if self.scaling is None else self.scaling.rows(X)
        centred -= self.mean
        result: Float32 = np.matmul(centred, self.matrix, out=out)
        return result

    def to_features(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for x' into weights for f x, in place."""
        matrix = np.ascontiguousarray(self.matrix.T)
        mean = (self.mean.astype(np.float64) @ self.matrix).astype(np.float32)
        change_blocks(weights, biases, n_threads, lambda w, b: (w @ matrix, b - w @ mean))
        if self.scaling is not None:
            self.scaling.to_features(weights, biases, n_threads)

    def to_training(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for f x into weights for x', in place."""
        matrix = np.ascontiguousarray(self.inverse.T)
        if self.scaling is None:
            change_blocks(weights, biases, n_threads, lambda w, b: (w @ matrix, b + w @ self.mean))
            return
        inverse, centre = self.scaling.inverse_factor, self.scaling.centre.astype(np.float64)

        def change(w: Float32, b: Float32) -> tuple[Float32, Float32]:
            standard = (w * inverse).astype(np.float32)
            return standard @ matrix, (b + standard @ self.mean + w @ centre).astype(np.float32)

        change_blocks(weights, biases, n_threads, change)

    def state(self) -> State:
        arrays = {"matrix": self.matrix, "inverse": self.inverse, "mean": self.mean}
        return merge({}, {} if self.scaling is None else {"scaling": self.scaling.state()}, arrays)

    @classmethod
    def from_state(cls, state: State) -> Whitening:
        mean = checks.get_array(state.arrays, "mean", "f4", (None,))
        square = (len(mean), len(mean))
        matrix, inverse = (
            checks.get_array(state.arrays, name, "f4", square) for name in ("matrix", "inverse")
        )
        scaling = ColumnScaling.from_state(state.nested("scaling")) if "scaling" in state.header else None
        if scaling is not None and len(scaling.centre) != len(mean):
            checks.reject(
                f"the scaling is of {len(scaling.centre):,} columns, the whitening of {len(mean):,}"
            )
        return cls(np.array(matrix), np.array(inverse), np.array(mean), scaling)
