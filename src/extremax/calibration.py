"""Honest probabilities: a temperature and a floor, chosen by rows that the model was not trained on.

    p(y|x) = (1 - floor) softmax(s(x) / temperature)_y + floor / C,     s the debiased scores of the C classes.

The temperature decides how sure the model is of its first guess, and is chosen for that alone: whether the
first guess is right is most probable under it. The floor is for certainty that is never quite justified, and
for labels that the model has not thought of: in a softmax over 100,000 classes these have no probability to
speak of, and the few rows with such a label would ask for a high temperature, at the expense of all others;
an equal share for every class costs the others next to nothing. Neither changes an order (float32 logarithms
of classes far below the floor may come out equal)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import minimize_scalar

from extremax.runtime.threads import run, split

# where sums are taken; between them, cubic pieces that rise as the sums do
_LOG_TEMPERATURES = np.linspace(-1.6, 1.6, 17)
# of log temperatures, before the rows have spoken: few rows that are all right must not ask for certainty
_SPREAD = 0.5
# Beyond a tenth, what the likelihood asks for costs more honesty of the first guess than a temperature can
# give back.
_FLOORS = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1)
# nats that the first guesses of all rows together must gain by a floor, or the labels ten times that
_WORTH = 2.0
# In the choice of the floor the first guess weighs more than the label, but the labels may lose only so many
# nats a row for it. On eurlex57k that takes the calibration error from 0.036 to 0.030; ICD-10-CM would give
# 0.06 nats for a third less of it.
_WEIGHT, _PRICE = 10.0, 0.01
_BLOCK_SCORES = 1 << 22
_TILE = 1 << 13  # classes whose exponentials are taken at a time: they stay in the cache for all temperatures
_ALMOST = 1.0 - 1e-9  # the most that a probability counts


class Calibration(NamedTuple):
    """How scores become probabilities."""

    temperature: float = 1.0
    floor: float = 0.0


def lift(
    log_prob: NDArray[np.float32], floor: float, n_classes: int, *, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Log-probabilities of the mixture with equal shares: log((1 - floor) p + floor / n_classes); of nothing
    (-inf), nothing.

    Examples
    --------
    >>> [f"{p:.2f}" for p in np.exp(lift(np.log(np.array([1.0, 0.5], np.float32)), 0.1, 10))]
    ['0.91', '0.46']
    """
    if floor == 0.0:
        return log_prob
    nothing = np.isneginf(log_prob)
    lifted = np.exp(log_prob, out=out)
    lifted *= np.float32(1.0 - floor)
    lifted += np.float32(floor / n_classes)
    np.log(lifted, out=lifted)
    lifted[nothing] = -np.inf
    return lifted


def fit_calibration(
    scores: Callable[[int, int], NDArray[np.float32]],
    n_rows: int,
    y: NDArray[np.int32],
    rows: NDArray[np.int64] | None,
    n_classes: int,
    *,
    n_threads: int,
) -> Calibration:
    """From rows that were not trained on: the temperature by which of their first guesses are right, the
    floor by that and by the likelihood of their labels.

    Parameters
    ----------
    scores
        Debiased scores of all classes for the rows from a first to before a last; its result is written over.
    y, rows
        Class and row of each pair, rows ascending; `rows` None means one pair a row, in order.
    """
    pairs = np.arange(n_rows, dtype=np.int64) if rows is None else rows
    ends = np.searchsorted(pairs, np.arange(n_rows + 1))
    top, log_sum = np.empty(n_rows), np.empty((len(_LOG_TEMPERATURES), n_rows))
    # each pair's score minus the best, and whether it is the best
    below, right = np.empty(len(y)), np.empty(len(y), bool)
    blocks = split(n_rows, max(4, _BLOCK_SCORES // n_classes))

    def work(number: int) -> None:
        first, last = blocks[number]
        own = slice(ends[first], ends[last])
        block = scores(first, last)
        best = block.argmax(axis=1)
        top[first:last] = block[np.arange(last - first), best]
        local = pairs[own] - first
        right[own] = best[local] == y[own]
        block -= top[first:last, None].astype(np.float32)
        below[own] = block[local, y[own]]
        sums = np.zeros((len(_LOG_TEMPERATURES), last - first))
        for start in range(0, n_classes, _TILE):
            tile = block[:, start : start + _TILE]
            for i, log_temperature in enumerate(_LOG_TEMPERATURES):
                scaled = tile * np.float32(np.exp(-log_temperature))
                sums[i] += np.exp(scaled, out=scaled).sum(axis=1, dtype=np.float64)
        log_sum[:, first:last] = np.log(sums)

    run(work, len(blocks), n_threads)
    log_sums = PchipInterpolator(_LOG_TEMPERATURES, log_sum)

    def first_guess(log_temperature: float, floor: float) -> float:
        """Minus the log-likelihood of which first guesses are right."""
        sure = np.minimum((1.0 - floor) * np.exp(-log_sums(log_temperature)) + floor / n_classes, _ALMOST)[
            pairs
        ]
        prior = 0.5 * (log_temperature / _SPREAD) ** 2
        return prior - float(np.where(right, np.log(sure), np.log1p(-sure)).sum())

    def likelihood(log_temperature: float, floor: float) -> float:
        log_prob = below * np.exp(-log_temperature) - log_sums(log_temperature)[pairs]
        lifted = log_prob if floor == 0.0 else np.log((1.0 - floor) * np.exp(log_prob) + floor / n_classes)
        return float(lifted.sum())

    found = []
    for floor in _FLOORS:
        # there may be several minima
        near = int(np.argmin([first_guess(knot, floor) for knot in _LOG_TEMPERATURES]))
        bounds = _LOG_TEMPERATURES[[max(near - 1, 0), min(near + 1, len(_LOG_TEMPERATURES) - 1)]]
        best = minimize_scalar(
            first_guess, bounds=bounds, args=(floor,), method="bounded", options={"xatol": 1e-3}
        )
        found.append((float(best.fun), likelihood(float(best.x), floor), floor, float(best.x)))
    enough = max(found, key=lambda choice: choice[1])[1] - _PRICE * len(y)
    honest = [choice for choice in found if choice[1] >= enough]
    chosen = min(
        honest, key=lambda choice: _WEIGHT * (choice[0] + (_WORTH if choice[2] else 0.0)) - choice[1]
    )
    return Calibration(float(np.exp(chosen[3])), chosen[2])
