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
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from extremax.types import Float32

_BLOCK = 256  # features: a decomposition takes their number cubed
_MEMORY = 0.99  # weight of the earlier rows, per step
_SHORT_MEMORY = 0.1  # the same, where rows are far shorter than the earlier ones
_RIDGE = 1e-3  # of the mean eigenvalue, added to each
_LARGEST = float(np.finfo(np.float32).max) / 4  # trace of a block that a decomposition takes
_SMALLEST = float(np.finfo(np.float32).tiny) * 2.0**24  # diagonal entries whose float32 has all digits
_EVERY_STEP, _EVERY = 16, 16  # steps: first a new decomposition in each, then in every sixteenth
_LEAST = float(np.finfo(np.float32).smallest_subnormal)
_USUAL = 4.0  # mean square of the rows of a step over that of the earlier rows, or its inverse, at most


class HiddenMoments(nn.Module):
    """Running second moments of hidden states; all of it is buffers, so that training can go on from a state.

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
        super().__init__()
        self.in_features = in_features
        shape = (in_features, min(in_features, _BLOCK))
        self.register_buffer("moments", torch.empty(shape, device=device))
        self.register_buffer("directions", torch.empty(shape, device=device))
        self.register_buffer("n_rows", torch.empty((), dtype=torch.float64, device=device))
        self.register_buffer("n_steps", torch.empty((), dtype=torch.int64, device=device))

    def reset(self) -> None:
        """Forget all rows."""
        for buffer in self.buffers():
            buffer.zero_()

    def add(self, x: Float32) -> Float32:
        """Add the rows x (n, in_features) of a step and return x' (n, in_features).

        Rows of more than twice the usual length count as rows of twice that length. They are returned at unit
        mean square, and so are rows of less than half the usual length, and those whose squares overflow or
        underflow, which are left out of the moments.
        """
        if len(x) == 0 or not np.isfinite(x).all():
            return x  # the loss is not a number either
        moments, directions = self.moments.numpy(), self.directions.numpy()
        bounds = [(a, min(a + _BLOCK, self.in_features)) for a in range(0, self.in_features, _BLOCK)]
        with np.errstate(over="ignore", invalid="ignore"):
            new = [x[:, a:b].T @ x[:, a:b] for a, b in bounds]
            ratio = self._relative_square(len(x), float(np.square(x, dtype=np.float64).sum()))
            share = np.float32(min(1.0, _USUAL / ratio))
            # Long rows that came once must not shorten steps for ever.
            memory = _MEMORY if ratio >= 1.0 / _USUAL else _SHORT_MEMORY
            sums = [
                np.float32(memory) * moments[a:b, : b - a] + share * block
                for (a, b), block in zip(bounds, new, strict=True)
            ]
        # No entry is larger than the largest of the diagonal.
        if not _SMALLEST * self.in_features <= _traces(sums) <= _LARGEST:
            return unit_size(x)
        n_steps = int(self.n_steps)
        self.n_steps.add_(1)
        self.n_rows.mul_(memory).add_(len(x))
        out = np.empty_like(x)
        for (a, b), block in zip(bounds, sums, strict=True):
            moments[a:b, : b - a] = block
            if n_steps < _EVERY_STEP or n_steps % _EVERY == 0:
                directions[a:b, : b - a] = inverse_root(block, float(self.n_rows))
            np.matmul(x[:, a:b], directions[a:b, : b - a], out=out[:, a:b])
        return out if 1.0 / _USUAL <= ratio <= _USUAL else unit_size(out)

    def size(self) -> float:
        """Return the root mean square of the rows so far, 0 if there were none."""
        n_rows = float(self.n_rows)
        return math.sqrt(self._square_sum() / n_rows / self.in_features) if n_rows else 0.0

    def _square_sum(self) -> float:
        moments = self.moments.numpy()
        return _traces([moments[a : a + _BLOCK] for a in range(0, self.in_features, _BLOCK)])

    def _relative_square(self, n: int, square_sum: float) -> float:
        """Return the mean square of n rows with this sum over that of the earlier rows, 1 if it has none."""
        earlier = self._square_sum()
        if earlier == 0.0 or square_sum == 0.0 or not math.isfinite(square_sum):
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


def scale_rows(x: Float32, moments: HiddenMoments | None) -> tuple[Float32, float]:
    """Return hidden states at unit mean square, whitened or not, and the size that steps are divided by.

    That is the usual size of hidden states, without moments that of x, and at least 1: rows that are short
    for once, or while an encoder is young, must not make weights so long that the next scores explode.
    """
    if moments is None:
        return unit_size(x), max(root_mean_square(x), 1.0)
    scaled = moments.add(x)
    return scaled, max(moments.size() or root_mean_square(x), 1.0)


def unit_size(x: Float32) -> Float32:
    """Return x at unit mean square."""
    scaled: Float32 = x / np.float32(root_mean_square(x))
    return scaled


def root_mean_square(x: Float32) -> float:
    """Return the size of the entries of x, 1 if there is none other than 0 or if it cannot be told.

    Sizes that float32 has not are taken for the least that it has.
    """
    size = math.sqrt(float(np.square(x, dtype=np.float64).mean())) if x.size else 0.0
    return max(size, _LEAST) if math.isfinite(size) and size else 1.0
