"""Second moments of hidden states, and the directions in which a fused step is shortened by them.

Hidden states of an encoder that has just begun to learn have most of their length in a few directions which
all rows share. A step along a hidden state then mostly moves the score of a class for all rows alike. The
fused step goes along

    x' = s h M^(-1/2),     M = running mean of h h^T + ridge,     s such that x' has unit mean square,

which is Adagrad with one full matrix for the features, common to all classes, beside one sum per class. Wide
hidden states have a matrix for each block of 256 features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from extremax.nn.layer_state import TypedBuffers
from extremax.types import Float32

_BLOCK = 256  # features: a decomposition takes their number cubed
_MEMORY = 0.99  # weight of the earlier rows, per step
_SHORT_MEMORY = 0.1  # the same, where rows are far shorter than the earlier ones
_RIDGE = 1e-3  # of the mean eigenvalue, added to each
_LARGEST = float(np.finfo(np.float32).max) / 4  # trace of a block that a decomposition takes
_SMALLEST = float(np.finfo(np.float32).tiny) * 2.0**24  # diagonal entries whose float32 has all digits
_EVERY_STEP, _EVERY = 16, 16  # steps: first a new decomposition in each, then in every sixteenth
_LEAST = float(np.finfo(np.float32).smallest_subnormal)
_N_SIZES = 15  # steps: seven of unusual hidden states do not change the median
_USUAL = 4.0  # mean square of the rows of a step over that of the earlier rows, or its inverse, at most


class ScaledRows(NamedTuple):
    """Hidden states (n, d) at unit mean square, whitened or not, and the size that steps are divided by."""

    rows: Float32
    size: float


class HiddenScale(TypedBuffers, ABC):
    """What fused steps know of earlier hidden states; buffers, so that training can go on from a state."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = in_features

    def reset(self) -> None:
        """Forget all rows."""
        for buffer in self.buffers():
            buffer.zero_()

    def scale(self, x: Float32) -> ScaledRows | None:
        """Add the rows x (n, in_features) of a step, and return what it goes along.

        None where there are no rows, or where they are not finite: they make no step. Steps are divided by
        the usual size of hidden states and at least by 1: rows that are short for once, or while an encoder
        is young, must not make weights so long that the next scores explode.
        """
        square_sum = sum_of_squares(x)
        if len(x) == 0 or not math.isfinite(square_sum):
            return None
        return self._scale(x, square_sum)

    @abstractmethod
    def _scale(self, x: Float32, square_sum: float) -> ScaledRows:
        """Scale finite rows, given the sum of their squares."""

    @abstractmethod
    def size(self) -> float:
        """Return the root mean square of the rows so far, 0 if there were none."""


class HiddenSize(HiddenScale):
    """The usual size of hidden states, for steps that are not whitened: the median of the latest minibatches.

    Attributes
    ----------
    sizes : (15,)
        Root mean squares of the rows of the latest steps, newest first, 0 before the first.
    """

    sizes: Tensor

    def __init__(self, in_features: int, device: torch.device | str | None = None) -> None:
        super().__init__(in_features)
        self.register_buffer("sizes", torch.empty(_N_SIZES, dtype=torch.float64, device=device))

    def _scale(self, x: Float32, square_sum: float) -> ScaledRows:
        """Return x at unit mean square; rows that are long for once make shorter steps."""
        own = root_mean_square(square_sum, x.size)
        size = max(self.size(), own, 1.0)
        if square_sum:
            sizes = self.sizes.numpy()
            sizes[:] = np.concatenate([[own], sizes[:-1]])
        return ScaledRows(x / np.float32(own), size)

    def size(self) -> float:
        known = np.sort(self.sizes.numpy()[self.sizes.numpy() > 0.0])
        return float(known[(len(known) - 1) // 2]) if len(known) else 0.0


class HiddenMoments(HiddenScale):
    """Running second moments of hidden states.

    Attributes
    ----------
    moments : (in_features, width)
        Sums of h h^T, weighted; rows [a, b) belong to the block of these features.
    directions : (in_features, width)
        s M^(-1/2), in the same form.
    n_rows, n_steps : scalar
        Weighted number of rows; steps.
    """

    moments: Tensor
    directions: Tensor
    n_rows: Tensor
    n_steps: Tensor

    def __init__(self, in_features: int, device: torch.device | str | None = None) -> None:
        super().__init__(in_features)
        shape = (in_features, min(in_features, _BLOCK))
        self.register_buffer("moments", torch.empty(shape, device=device))
        self.register_buffer("directions", torch.empty(shape, device=device))
        self.register_buffer("n_rows", torch.empty((), dtype=torch.float64, device=device))
        self.register_buffer("n_steps", torch.empty((), dtype=torch.int64, device=device))

    def _scale(self, x: Float32, square_sum: float) -> ScaledRows:
        own = root_mean_square(square_sum, x.size)
        scaled, size = self._whiten(x, square_sum, own), self.size()
        # Rows that become longer and stay so enter the moments slowly: meanwhile, their own size counts.
        is_long = own * own > _USUAL * size * size
        return ScaledRows(scaled, max(own if is_long else size, 1.0))

    def _whiten(self, x: Float32, square_sum: float, own: float) -> Float32:
        """Add the rows x of size `own` and return x'.

        Rows of more than twice the usual length count as rows of twice that length. They are returned at unit
        mean square, and so are rows of less than half the usual length, and those whose squares overflow or
        underflow, which are left out of the moments.
        """
        moments, directions = self.moments.numpy(), self.directions.numpy()
        bounds = [(a, min(a + _BLOCK, self.in_features)) for a in range(0, self.in_features, _BLOCK)]
        ratio = self._relative_square(len(x), square_sum)
        share = np.float32(min(1.0, _USUAL / ratio))
        # Long rows that came once must not shorten steps for ever.
        memory = _MEMORY if ratio >= 1.0 / _USUAL else _SHORT_MEMORY
        with np.errstate(over="ignore", invalid="ignore"):
            sums = [
                np.float32(memory) * moments[a:b, : b - a] + share * (x[:, a:b].T @ x[:, a:b])
                for a, b in bounds
            ]
        # No entry is larger than the largest of the diagonal.
        if not _SMALLEST * self.in_features <= _traces(sums) <= _LARGEST:
            return x / np.float32(own)
        n_steps = int(self.n_steps)
        self.n_steps.add_(1)
        self.n_rows.mul_(memory).add_(len(x))
        out = np.empty_like(x)
        for (a, b), block in zip(bounds, sums, strict=True):
            moments[a:b, : b - a] = block
            if n_steps < _EVERY_STEP or n_steps % _EVERY == 0:
                directions[a:b, : b - a] = inverse_root(block, float(self.n_rows))
            np.matmul(x[:, a:b], directions[a:b, : b - a], out=out[:, a:b])
        if 1.0 / _USUAL <= ratio <= _USUAL:
            return out
        return out / np.float32(root_mean_square(sum_of_squares(out), out.size))

    def size(self) -> float:
        n_rows = float(self.n_rows)
        return math.sqrt(self._square_sum() / n_rows / self.in_features) if n_rows else 0.0

    def _square_sum(self) -> float:
        moments = self.moments.numpy()
        return _traces([moments[a : a + _BLOCK] for a in range(0, self.in_features, _BLOCK)])

    def _relative_square(self, n: int, square_sum: float) -> float:
        """Return the mean square of n rows with this sum over that of the earlier rows, 1 if it has none."""
        earlier = self._square_sum()
        if earlier == 0.0 or square_sum == 0.0:
            return 1.0
        return (square_sum / n) / (earlier / float(self.n_rows))


def _traces(blocks: Sequence[Float32]) -> float:
    return sum(float(np.trace(block, dtype=np.float64)) for block in blocks)


def inverse_root(moment: Float32, n_rows: float) -> Float32:
    """Return s (moment / n_rows + ridge)^(-1/2), s such that these rows have unit mean square.

    The ridge is larger while there are few rows: directions that none of them has must not get long steps.
    """
    values, vectors = np.linalg.eigh(moment)
    values = np.maximum(values, 0.0) / n_rows
    mean = float(values.mean())
    if mean == 0.0:
        return np.eye(len(moment), dtype=np.float32)
    roots = 1.0 / np.sqrt(values + (_RIDGE + len(moment) / n_rows) * mean)
    roots /= math.sqrt(float((values * roots * roots).mean()))
    out: Float32 = ((vectors * roots) @ vectors.T).astype(np.float32)
    return out


def sum_of_squares(x: Float32) -> float:
    """Return the sum in double precision, where it is finite if and only if all entries are."""
    return float(np.square(x, dtype=np.float64).sum())


def root_mean_square(square_sum: float, n: int) -> float:
    """Return the size of n entries, 1 if all are 0.

    Sizes that float32 has not are taken for the least that it has.
    """
    return max(math.sqrt(square_sum / n), _LEAST) if square_sum else 1.0
