"""Parameter tables with the accumulators of their optimizer, and the Gaussian prior.

The prior of variance sigma0^2 adds |parameters|^2 / (2 sigma0^2) to the loss of all rows. Its gradient
touches every parameter, while a minibatch touches few. It is therefore applied to all parameters at once, now
and then, each time with the fraction of the data that was trained on since: over an epoch the fractions add
up to one for every class.

A step is the implicit one, w <- w / (1 + rate * fraction / sigma0^2), with the rate that the optimizer has
for w (learning_rate over the root of Adagrad's sum, where there is one). Its fixed point with gradient steps
on the loss is the mode of the posterior, and it cannot overshoot, however small the variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from extremax.kernels.row_updates import ModelArrays
from extremax.runtime.threads import run, split
from extremax.scores.base import Weights
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tree.layout import aligned
from extremax.types import Float32, Int64

_BLOCK_BYTES = 1 << 18  # of weights that a thread shrinks at a time
_MEDIAN_LINES = 512  # of a table, that its median is taken of


@dataclass(frozen=True)
class Tables:
    """Weights, biases, and Adagrad's sums of squared gradients.

    Attributes
    ----------
    weights, biases : (n_classes, n_features), (n_classes,)
    squares, bias_squares
        A table as large as `weights` ("adagrad"), one column ("adagrad_row"), or none ("sgd"); (n_classes,).
    """

    weights: Float32
    biases: Float32
    squares: Float32
    bias_squares: Float32

    @classmethod
    def zeros(
        cls, n_classes: int, n_features: int, optimizer: str, *, initial_square: float = 1e-8
    ) -> Tables:
        """Start at zero: debiased scores then equal the noise distribution."""
        return cls(
            weights=aligned((n_classes, n_features)),
            biases=np.zeros(n_classes, np.float32),
            squares=aligned((n_classes, _columns(n_features, optimizer)), initial_square),
            bias_squares=np.full(n_classes, initial_square, np.float32),
        )

    @classmethod
    def join(cls, parts: Sequence[Tables]) -> Tables:
        """Return one table of consecutive ranges of the classes."""
        return cls(*map(np.concatenate, zip(*(part.arrays for part in parts), strict=True)))

    @staticmethod
    def bytes_needed(n_classes: int, n_features: int, optimizer: str) -> tuple[int, int]:
        """Return the bytes of weights and biases, and of the accumulators."""
        return 4 * n_classes * (n_features + 1), 4 * n_classes * (_columns(n_features, optimizer) + 1)

    kind: ClassVar[str] = "dense"

    @property
    def n_classes(self) -> int:
        return len(self.weights)

    def copy(self) -> Tables:
        """Return a copy of weights and biases, without the accumulators."""
        return replace(self, weights=self.weights.copy(), biases=self.biases.copy())

    def restore(self, other: Tables) -> None:
        """Take back the weights and biases of a copy."""
        np.copyto(self.weights, other.weights)
        np.copyto(self.biases, other.biases)

    def take(self, index: Int64) -> Tables:
        """Return the lines of some classes, in a given order."""
        return Tables(*(_copied(array, index) for array in self.arrays))

    def plus(self, weights: Float32, biases: Float32) -> Tables:
        """Return the tables with further classes behind the others; their sums are those of a median class.

        A class that is new has not had many steps, but steps as long as the first would throw it off.
        """
        n_old, n = self.n_classes, len(biases)
        given = weights, biases, _median(self.squares, n), _median(self.bias_squares, n)
        whole = Tables(*(aligned((n_old + n, *array.shape[1:]), None) for array in self.arrays))
        for array, old, added in zip(whole.arrays, self.arrays, given, strict=True):
            array[:n_old], array[n_old:] = old, added
        return whole

    def training_state(self) -> State:
        """Return the accumulators, for further training."""
        return State({}, {"squares": self.squares, "bias_squares": self.bias_squares})

    @classmethod
    def from_training_state(cls, weights: Weights, state: State) -> Tables:
        """Restore the tables from the weights of a model and a training state."""
        arrays = weights.state().arrays
        if "weights" not in arrays:
            checks.reject("the training state is of dense weights, and the weights are sparse")
        n_classes, n_features = arrays["weights"].shape
        squares = checks.get_array(state.arrays, "squares", "f4", (n_classes, None))
        if squares.shape[1] not in (0, 1, n_features):
            checks.reject(f"array 'squares' has {squares.shape[1]:,} columns for {n_features:,} features")
        bias_squares = checks.get_array(state.arrays, "bias_squares", "f4", (n_classes,))
        return cls(arrays["weights"], arrays["biases"], squares, bias_squares)

    @property
    def arrays(self) -> ModelArrays:
        """The tables as kernels take them."""
        return ModelArrays(self.weights, self.biases, self.squares, self.bias_squares)


def _copied(array: Float32, index: Int64) -> Float32:
    """Return some lines of a table in memory of its own."""
    out = aligned((len(index), *array.shape[1:]), None)
    np.take(array, index, axis=0, out=out, mode="clip")  # "raise" would copy twice
    return out


def _median(squares: Float32, n: int) -> Float32:
    """Return n copies of the median line of a table, estimated from some of its lines."""
    some = squares[:: max(1, len(squares) // _MEDIAN_LINES)]
    line = np.median(some, axis=0) if squares.size else np.zeros(squares.shape[1:])
    return np.broadcast_to(line.astype(np.float32), (n, *squares.shape[1:]))


def _columns(n_features: int, optimizer: str) -> int:
    return {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]


def shrink(tables: Tables, strength: float, learning_rate: float, n_threads: int) -> None:
    """Take one step of the prior on all parameters; `strength` is fraction / sigma0^2."""
    rate = np.float32(strength * learning_rate)
    blocks = split(tables.n_classes, max(1, _BLOCK_BYTES // (4 * tables.weights.shape[1])))

    def shrink_block(i: int) -> None:
        part = slice(*blocks[i])
        _shrink(tables.weights[part], tables.squares[part], rate)
        no_sums = tables.squares.shape[1] == 0
        _shrink(tables.biases[part, None], tables.bias_squares[part, None][:, : 0 if no_sums else 1], rate)

    run(shrink_block, len(blocks), n_threads)


def _shrink(values: Float32, squares: Float32, rate: np.float32) -> None:
    if squares.shape[1] == 0:
        values /= np.float32(1.0) + rate
        return
    divisor = np.sqrt(squares)
    np.divide(rate, divisor, out=divisor)
    divisor += np.float32(1.0)
    values /= divisor
