"""Whitening of rows that arrive in parts: moments of all parts so far, and weights from their class means.

The first part of a stream says little of the covariance of the features.  The sums of all parts are kept, and
at doubling numbers of rows the whitening is made anew from them, and with it a linear discriminant.  The next
part, which neither has seen, decides whether training goes on from that or from the weights it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_softmax

from extremax.examples import Examples
from extremax.features.whitening import Whitening
from extremax.runtime.products import one_blas_thread
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tuned import Defaults
from extremax.types import Float32, Float64, Int64

_BLOCK_ROWS = 4096  # rows whose products are summed together


@dataclass(frozen=True)
class StreamMoments:
    """Sums over the rows f x of a stream, around a shift, and when the whitening is made anew.

    Attributes
    ----------
    shift : float32 (n_features,)
        About the mean: that of the first part.
    second : float64 (n_features, n_features)
        Sum of products.
    class_sums, class_weights : float64 (n_classes, n_features), (n_classes,)
        Sums of rows and of weights by class.
    n_rows
        Pairs of row and label in the sums.
    next_refresh
        Number of pairs from which the whitening is made anew.
    """

    shift: Float32
    second: Float64
    class_sums: Float64
    class_weights: Float64
    n_rows: int = 0
    next_refresh: int = 0

    @classmethod
    def begin(cls, data: Examples, n_classes: int, feature_scale: float, next_refresh: int) -> StreamMoments:
        """Return sums without a row, around the mean of a first part."""
        X: Any = data.X
        shift = (X.mean(axis=0, dtype=np.float64) * feature_scale).astype(np.float32)
        n = len(shift)
        return cls(
            shift,
            np.zeros((n, n)),
            np.zeros((n_classes, n)),
            np.zeros(n_classes),
            next_refresh=next_refresh,
        )

    def plus(self, data: Examples, feature_scale: float) -> StreamMoments:
        """Return the sums with those of a further part; the arrays are changed in place."""
        X: Any = data.X
        weight = data.pair_weight.astype(np.float64)
        with one_blas_thread():
            for first in range(0, data.n_pairs, _BLOCK_ROWS):
                pairs = np.arange(first, min(first + _BLOCK_ROWS, data.n_pairs))
                x = X[data.rows_of(pairs)].astype(np.float64) * feature_scale - self.shift
                weighted = x * weight[pairs, None]
                self.second[...] += x.T @ weighted
                np.add.at(self.class_sums, data.y[pairs], weighted)
        self.class_weights[...] += np.bincount(data.y, weights=weight, minlength=len(self.class_weights))
        return replace(self, n_rows=self.n_rows + data.n_pairs)

    def take(self, index: Int64) -> StreamMoments:
        """Return the sums with those of some classes, in a given order."""
        return replace(
            self,
            second=self.second.copy(),
            class_sums=self.class_sums[index],
            class_weights=self.class_weights[index],
        )

    def plus_classes(self, n: int) -> StreamMoments:
        """Return the sums with further classes, without a row, behind the others."""
        n_features = self.class_sums.shape[1]
        return replace(
            self,
            second=self.second.copy(),
            class_sums=np.concatenate([self.class_sums, np.zeros((n, n_features))]),
            class_weights=np.concatenate([self.class_weights, np.zeros(n)]),
        )

    def expects(self, data: Examples, slack: float) -> bool:
        """Whether the labels of a further part are about as probable as those so far made one expect.

        They are not in a stream that is sorted by class.  The probability of classes that were not seen yet
        is estimated as the fraction of rows that are alone in their class (Good and Turing).
        """
        counts = self.class_weights
        total, one = float(counts.sum()), float(counts.sum()) / max(self.n_rows, 1)
        seen = counts > 0.0
        if np.count_nonzero(seen) < 2:
            return False
        alone = np.count_nonzero(seen & (counts < 1.5 * one))
        new = 0.0 if seen.all() else (alone + 0.5) / (self.n_rows + 1)
        prob = np.where(seen, counts * (1.0 - new) / total, new / max(int(np.count_nonzero(~seen)), 1))
        log_prob = np.log(np.maximum(prob, 1e-300))
        expected = float(prob @ log_prob)
        return float(np.average(log_prob[data.y], weights=data.pair_weight)) > expected - slack

    def discriminant(self, numbers: Defaults) -> tuple[Whitening, Float64, Float64]:
        """Return the whitening, the whitened class means (n_classes, n_features), and log priors."""
        config = numbers.warm_start
        counts, total = self.class_weights, float(self.class_weights.sum())
        mean = self.class_sums.sum(axis=0) / total
        means = self.class_sums / np.maximum(counts, 1e-12)[:, None] - mean
        means[counts == 0.0] = 0.0
        spread = self.second / total - np.outer(mean, mean)
        with one_blas_thread():
            within = spread - (means.T * (counts / total)) @ means
        inside = max(float(np.trace(within)), 0.0)
        if inside < config.min_within * float(np.trace(spread)):
            within += (config.min_within - inside / max(float(np.trace(spread)), 1e-300)) * spread
        centre = (mean + self.shift).astype(np.float32)
        white = Whitening.fit(
            (within + within.T) / 2.0, centre, ridge=config.ridge, no_variance=config.no_variance
        )
        means *= (counts / (counts + config.shrinkage))[:, None]
        with one_blas_thread():
            whitened = means @ white.matrix.astype(np.float64)
        return white, whitened, np.log(np.maximum(counts, 0.5) / total)

    def state(self) -> State:
        return State(
            {"n_rows": self.n_rows, "next_refresh": self.next_refresh},
            {
                "shift": self.shift,
                "second": self.second,
                "class_sums": self.class_sums,
                "class_weights": self.class_weights,
            },
        )

    @classmethod
    def from_state(cls, state: State, n_classes: int, n_features: int) -> StreamMoments:
        shapes = {
            "shift": ("f4", (n_features,)),
            "second": ("f8", (n_features, n_features)),
            "class_sums": ("f8", (n_classes, n_features)),
            "class_weights": ("f8", (n_classes,)),
        }
        arrays: dict[str, Any] = {
            name: np.array(checks.check_finite(checks.get_array(state.arrays, name, kind, shape), name))
            for name, (kind, shape) in shapes.items()
        }
        n_rows, next_refresh = (checks.get_int(state.header, name) for name in ("n_rows", "next_refresh"))
        return cls(**arrays, n_rows=n_rows, next_refresh=next_refresh)


def log_likelihood(scores: Float64, y: Any, weight: Any) -> float:
    """Return the mean log-probability of the labels under softmax scores (n, n_classes)."""
    log_prob = log_softmax(scores, axis=1)
    return float(np.average(log_prob[np.arange(len(y)), y], weights=weight))
