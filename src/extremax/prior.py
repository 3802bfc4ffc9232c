"""A Gaussian prior of variance sigma0^2 on weights and biases: |parameters|^2 / (2 sigma0^2) beside the loss
of all rows.

Its gradient touches every parameter, while a minibatch touches few. It is therefore applied to all parameters
at once, now and then, each time with the share of the data that was trained on since: over an epoch the
shares add up to one, for every class alike, however often it is drawn.

A step is the implicit one, w <- w / (1 + rate share / sigma0^2) with the rate that the optimiser has for w
(learning_rate, over the root of Adagrad's sum where there is one). Together with gradient steps on the loss
its fixed point is the mode of the posterior, and it cannot overshoot, however small the variance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.row_updates import ModelArrays
from extremax.runtime.threads import run, split

_BLOCK_BYTES = 1 << 18


def shrink(model: ModelArrays, strength: float, learning_rate: float, n_threads: int) -> None:
    """One step of the prior on all parameters; `strength` is share / sigma0^2."""
    rate = np.float32(strength * learning_rate)
    blocks = split(len(model.weights), max(1, _BLOCK_BYTES // (4 * model.weights.shape[1])))

    def shrink_block(i: int) -> None:
        part = slice(*blocks[i])
        _shrink(model.weights[part], model.squares[part], rate)
        no_sums = model.squares.shape[1] == 0
        _shrink(model.biases[part, None], model.bias_squares[part, None][:, : 0 if no_sums else 1], rate)

    run(shrink_block, len(blocks), n_threads)


def _shrink(values: NDArray[np.float32], squares: NDArray[np.float32], rate: np.float32) -> None:
    if squares.shape[1] == 0:
        values /= np.float32(1.0) + rate
        return
    divisor = np.sqrt(squares)
    np.divide(rate, divisor, out=divisor)
    divisor += np.float32(1.0)
    values /= divisor
