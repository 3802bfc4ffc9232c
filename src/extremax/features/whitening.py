"""Whitening: features of equal variance in every direction.

Text features, embeddings and principal components have a few directions of large variance and many of small;
a step size that suits the first crawls along the others.  Training on whitened rows sees

    x' = s P (f x - mean),     P = (T + ridge * mean eigenvalue of T)^(-1/2),     s such that E|x'|^2 = 1,

with the model's feature scale f and the covariance T of the rows f x around the means of their classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.storage.state import State
from extremax.types import Float32, Float64

_BLOCK = 4096  # classes that a thread converts at a time


@dataclass(frozen=True)
class Whitening:
    """The map x -> x' = (f x - mean) @ matrix of rows scaled by f, and its inverse without the mean."""

    matrix: Float32
    inverse: Float32
    mean: Float32

    @classmethod
    def fit(
        cls, covariance: Float64, mean: Float32, *, ridge: float = 0.1, no_variance: float = 1e-14
    ) -> Whitening:
        """Find the map from the covariance of the rows, or of the rows around the means of their classes.

        Parameters
        ----------
        covariance, mean
            Of the rows f x.
        ridge
            Fraction of the mean variance that is added to every direction.
        no_variance
            Variance that counts as rounding error: such rows are left as they are.

        Examples
        --------
        >>> import numpy as np
        >>> X = (np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 100.0]).astype(np.float32)
        >>> white = Whitening.fit(np.cov(X.T), X.mean(axis=0), ridge=1e-9)
        >>> bool(np.allclose(np.cov(white.rows(X, 1.0).T), np.eye(3) / 3, atol=0.01))
        True
        """
        variance, basis = scipy.linalg.eigh(covariance)
        variance = np.maximum(variance, 0.0)
        total = float(variance.sum())
        varies = total > no_variance
        floor = ridge * total / len(variance) if varies else 1.0
        scale = float(np.sum(variance / (variance + floor))) ** -0.5 if varies else 1.0
        roots = np.sqrt(variance + floor)
        matrix, inverse = scale * (basis / roots) @ basis.T, (basis * roots) @ basis.T / scale
        return cls(matrix.astype(np.float32), inverse.astype(np.float32), mean.astype(np.float32))

    def rows(self, X: Float32, feature_scale: float, out: Float32 | None = None) -> Float32:
        """Return x' of some rows."""
        centred = X * np.float32(feature_scale)
        centred -= self.mean
        result: Float32 = np.matmul(centred, self.matrix, out=out)
        return result

    def to_features(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for x' into weights for f x, in place."""
        matrix = np.ascontiguousarray(self.matrix.T)
        mean = (self.mean.astype(np.float64) @ self.matrix).astype(np.float32)
        change_blocks(weights, biases, n_threads, lambda w, b: (w @ matrix, b - w @ mean))

    def to_training(self, weights: Float32, biases: Float32, n_threads: int) -> None:
        """Turn weights for f x into weights for x', in place."""
        matrix = np.ascontiguousarray(self.inverse.T)
        change_blocks(weights, biases, n_threads, lambda w, b: (w @ matrix, b + w @ self.mean))

    def state(self) -> State:
        return State({}, {"matrix": self.matrix, "inverse": self.inverse, "mean": self.mean})

    @classmethod
    def from_state(cls, state: State) -> Whitening:
        return cls(*(np.array(state.arrays[name]) for name in ("matrix", "inverse", "mean")))


def change_blocks(
    weights: Float32,
    biases: Float32,
    n_threads: int,
    change: Callable[[Float32, Float32], tuple[Float32, Float32]],
) -> None:
    """Replace weights and biases by a function of them, in place, a block of classes at a time."""
    cuts = split(len(weights), _BLOCK)

    def work(i: int) -> None:
        cut = slice(*cuts[i])
        weights[cut], biases[cut] = change(weights[cut], biases[cut])

    with one_blas_thread():
        run(work, len(cuts), n_threads)
