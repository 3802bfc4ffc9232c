"""Dense weights: the score of a class is ``feature_scale * x.w_y + b_y``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.kernels import row_updates, topk
from extremax.runtime.threads import run, split
from extremax.scores.base import Buffers, RowTerms, row_entries
from extremax.storage import checks
from extremax.storage.state import State, register
from extremax.types import Features, Float32, Int32, Int64

_TASK_PAIRS = 4096  # pairs that a thread scores at a time ...
_TASK_ROWS = 512  # ... and rows, at most
_FEW_WEIGHTS = 1 << 13  # weights with which products are computed in float64


class DenseBlock:
    """A block of rows of X, and the weights of all classes."""

    def __init__(self, X: Features, first: int, last: int, weights: Float32) -> None:
        self.weights = weights
        self.used: NDArray[np.intp] | None = None
        if sparse.issparse(X):
            block: Any = X[first:last]
            used = np.unique(block.indices)
            # Few of the many features of a text occur in a block: a product over those alone is far smaller.
            if 2 * len(used) < X.shape[1]:
                self.used = used
                block = block[:, used]
            self.x: Float32 = block.toarray()
        else:
            self.x = np.ascontiguousarray(X[first:last])

    @property
    def n_rows(self) -> int:
        return len(self.x)

    def products(self, start: int, stop: int, buffers: Buffers, out: Float32) -> Float32:
        """Fill `out` with ``x.w_y``; weights that must be copied are copied by parts."""
        width = stop - start
        if self.used is not None:
            width = max(topk.STRIP, buffers.copy_numbers // max(self.x.shape[1], 1))
        with np.errstate(over="ignore", invalid="ignore"):  # callers check the scores and name the row
            for a, b in split(stop - start, max(width, 1)):
                part = self._part(start + a, start + b)
                if self.weights.size <= _FEW_WEIGHTS:
                    # BLAS rounds a product with one row otherwise than one with many
                    out[:, a:b] = self.x.astype(np.float64) @ part.T.astype(np.float64)
                else:
                    np.matmul(self.x, part.T, out=out[:, a:b])
        return out

    def _part(self, start: int, stop: int) -> Float32:
        part = self.weights[start:stop]
        return part if self.used is None else np.take(part, self.used, axis=1)


@register("weights", "dense")
@dataclass(frozen=True, eq=False)
class DenseWeights:
    """Dense weights of all classes.

    Attributes
    ----------
    weights : float32 (n_classes, n_features)
    biases : float32 (n_classes,)
    feature_scale : float
        Factor of the features.

    Examples
    --------
    >>> weights = DenseWeights.zeros(3, 2)
    >>> weights.biases[:] = [1.0, 2.0, 3.0]
    >>> X, pairs = np.zeros((1, 2), np.float32), np.array([[2, 0]], np.int32)
    >>> weights.score_pairs(X, np.array([0]), pairs, 1).tolist()
    [[3.0, 1.0]]
    """

    weights: Float32
    biases: Float32
    feature_scale: float = 1.0

    @classmethod
    def zeros(cls, n_classes: int, n_features: int, feature_scale: float = 1.0) -> DenseWeights:
        """Return weights and biases of zero, which may be written to."""
        weights = np.zeros((n_classes, n_features), np.float32)
        return cls(weights, np.zeros(n_classes, np.float32), feature_scale)

    @property
    def n_classes(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.weights.shape[1])

    @property
    def row_width(self) -> int:
        """Numbers in memory for each row of an open block."""
        return self.n_features

    def open_block(self, X: Features, first: int, last: int) -> DenseBlock:
        """Prepare rows `first` to before `last` of X for products with classes."""
        return DenseBlock(X, first, last, self.weights)

    def score_pairs(self, X: Features, row_index: Int64, classes: Int32, n_threads: int) -> Float32:
        """Return ``feature_scale * x.w_y + b_y`` of given pairs; see `Weights.score_pairs`."""
        scores = np.empty(classes.shape, np.float32)
        # Writable: a read-only array is another type to numba, which would compile the kernel again.
        rows: Any = X
        if sparse.issparse(X):
            parts = ((rows.data, np.float32), (rows.indices, np.int32), (rows.indptr, np.int64))
            rows = row_updates.CSRRows(*(np.require(a, t, ["C", "W"]) for a, t in parts))
        else:
            rows = row_updates.ArrayRows(np.require(X, np.float32, ["C", "W"]))
        scale = np.float32(self.feature_scale)
        tasks = split(len(classes), max(1, min(_TASK_ROWS, _TASK_PAIRS // max(classes.shape[1], 1))))

        def work(i: int) -> None:
            row_updates.score_pairs(
                rows, row_index, classes, self.weights, self.biases, scale, scores, *tasks[i]
            )

        run(work, len(tasks), n_threads)
        return scores

    def class_weights(self, label: int) -> tuple[Int32, Float32]:
        """Return all features, and the weights of a class on them."""
        return np.arange(self.n_features, dtype=np.int32), self.weights[label]

    def class_vectors(self) -> Float32:
        """Return the weights themselves."""
        return self.weights

    def column_maxima(self) -> tuple[Int64, Float32]:
        """Return all features, and the largest magnitude of a weight on each."""
        return np.arange(self.n_features), np.maximum(self.weights.max(axis=0), -self.weights.min(axis=0))

    def contributions(self, X: Features, classes: Int32) -> RowTerms:
        """Return the contributions of the features of the only row of X to the scores of some classes."""
        columns, values = row_entries(X, self.n_features)
        pieces = self.weights[np.ix_(classes, columns)].T * (self.feature_scale * values)[:, None]
        biases = self.biases[classes].astype(np.float64)
        return RowTerms(columns, pieces.astype(np.float64), [("(class bias)", biases)])

    def similarity(self, label: int) -> Float32:
        """Return the cosine between the weights of a class and those of each class."""
        weights = self.weights
        norms = np.sqrt(np.einsum("ij,ij->i", weights, weights))
        products = weights @ weights[label]
        return np.asarray(products / np.maximum(norms * norms[label], np.finfo(np.float32).tiny))

    def to_dense(self) -> Float32:
        """Return the weights themselves."""
        return self.weights

    def take(self, index: Int64) -> DenseWeights:
        """Return the weights of some classes, in a given order."""
        return DenseWeights(self.weights[index], self.biases[index], self.feature_scale)

    nonlinear_part: ClassVar[None] = None

    def coefficients(self) -> tuple[Float32, Float32]:
        """Return weights of the features as given, in a copy, and the biases."""
        return self.weights * np.float32(self.feature_scale), self.biases.copy()

    def state(self) -> State:
        """Return the state that a model folder stores."""
        header = {"kind": "dense", "feature_scale": self.feature_scale}
        return State(header, {"weights": self.weights, "biases": self.biases})

    @classmethod
    def from_state(cls, state: State) -> DenseWeights:
        """Build the weights that `state` described."""
        weights = checks.get_array(state.arrays, "weights", "f4", (None, None))
        if 0 in weights.shape:
            checks.reject(f"array 'weights' has the shape {weights.shape}")
        biases = checks.get_array(state.arrays, "biases", "f4", (len(weights),))
        return cls(weights, biases, checks.get_float(state.header, "feature_scale", 0.0))
