"""Calibration: a temperature and uniform mixing, chosen on rows that the model was not trained on.

    p(y|x) = (1 - uniform_mix) softmax(s(x) / temperature)_y + uniform_mix / C

with the debiased scores s of the C classes.  The temperature is chosen for the confidence of the top-1 alone:
it maximises the likelihood of which top-1 predictions are right.  Uniform mixing is for labels that the model
gives next to no probability.  Without it, the few rows with such a label would ask for a high temperature at
the expense of all others.  Neither changes the order of the classes (float32 logarithms of classes far below
``uniform_mix / C`` may be equal).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import minimize_scalar

from extremax.defaults import CalibrationConfig
from extremax.examples import Examples
from extremax.runtime.threads import run, split
from extremax.storage.state import State
from extremax.types import Bool, Float32, Float64, Int64


class Calibration(NamedTuple):
    """How scores become probabilities.

    Attributes
    ----------
    temperature : float
        Divides the debiased scores.
    uniform_mix : float
        Weight of the uniform distribution over all classes.
    """

    temperature: float = 1.0
    uniform_mix: float = 0.0

    @property
    def floor(self) -> float:
        """Deprecated name of `uniform_mix`."""
        warnings.warn(
            "Calibration.floor is now called uniform_mix; the old name goes with the next release.",
            FutureWarning,
            stacklevel=2,
        )
        return self.uniform_mix

    def check(self) -> None:
        """Raise ValueError where the values make no probabilities."""
        if not self.temperature > 0.0:
            raise ValueError(
                f"temperature is {self.temperature}; it must be positive."
                " 1 leaves the probabilities as they are."
            )
        if not 0.0 <= self.uniform_mix < 1.0:
            raise ValueError(
                f"uniform_mix is {self.uniform_mix}; it must be at least 0, which leaves the probabilities as"
                " they are, and below 1."
            )

    def state(self) -> State:
        """Return what a model folder stores."""
        return State({"temperature": self.temperature, "uniform_mix": self.uniform_mix})

    @classmethod
    def from_state(cls, state: State) -> Calibration:
        """Build the calibration that `state` described."""
        return cls(state.header["temperature"], state.header["uniform_mix"])


def mix_uniform(
    log_prob: Float32, uniform_mix: float, n_classes: int, *, out: Float32 | None = None
) -> Float32:
    """Return log((1 - uniform_mix) p + uniform_mix / n_classes); -inf, which is no class, stays.

    Examples
    --------
    >>> [f"{p:.2f}" for p in np.exp(mix_uniform(np.log(np.array([1.0, 0.5], np.float32)), 0.1, 10))]
    ['0.91', '0.46']
    """
    if uniform_mix == 0.0:
        return log_prob
    no_class = np.isneginf(log_prob)
    mixed = np.exp(log_prob, out=out)
    mixed *= np.float32(1.0 - uniform_mix)
    mixed += np.float32(uniform_mix / n_classes)
    np.log(mixed, out=mixed)
    mixed[no_class] = -np.inf
    return mixed


class _Statistics(NamedTuple):
    """What the choice needs of the scores.

    Attributes
    ----------
    log_sums
        Log of the sum over classes of exp((s - max s) / temperature), as a function of log temperature:
        (n_rows,).
    gap
        Score of each pair minus the largest of its row, (n_pairs,).
    top1
        Whether each pair is the top-1 of its row, (n_pairs,).
    rows
        Row of each pair.
    """

    log_sums: Callable[[float], Float64]
    gap: Float64
    top1: Bool
    rows: Int64
    n_classes: int


class _Choice(NamedTuple):
    """The best temperature for one value of `uniform_mix`."""

    top1_loss: float
    log_likelihood: float
    uniform_mix: float
    log_temperature: float


def fit_calibration(
    score_rows: Callable[[int, int], Float32],
    examples: Examples,
    n_classes: int,
    *,
    n_threads: int = 1,
    config: CalibrationConfig | None = None,
) -> Calibration:
    """Choose temperature and uniform mixing on rows that the model was not trained on.

    Parameters
    ----------
    score_rows
        Returns the debiased scores (last - first, n_classes) of the rows from `first` to before `last`; its
        result is written to.
    examples
        Class and row of each pair; features and weights are not used.
    """
    config = config or CalibrationConfig()
    statistics = _collect(score_rows, examples, n_classes, n_threads, config)
    choices = [_best_temperature(statistics, mix, config) for mix in config.uniform_mix_grid]
    enough = max(choices, key=lambda choice: choice.log_likelihood).log_likelihood
    enough -= config.max_loss_per_row * examples.n_pairs
    allowed = [choice for choice in choices if choice.log_likelihood >= enough]

    def loss(choice: _Choice) -> float:
        price = config.min_gain if choice.uniform_mix else 0.0
        return config.top1_weight * (choice.top1_loss + price) - choice.log_likelihood

    chosen = min(allowed, key=loss)
    return Calibration(float(np.exp(chosen.log_temperature)), chosen.uniform_mix)


def _collect(
    score_rows: Callable[[int, int], Float32],
    examples: Examples,
    n_classes: int,
    n_threads: int,
    config: CalibrationConfig,
) -> _Statistics:
    """Score all rows once and keep what does not grow with the number of classes."""
    n_rows, y, rows = examples.n_rows, examples.y, examples.rows
    ends = np.searchsorted(rows, np.arange(n_rows + 1))
    grid = np.array(config.log_temperature_grid)
    log_sum = np.empty((len(grid), n_rows))
    gap, top1 = np.empty(len(y)), np.empty(len(y), bool)
    blocks = split(n_rows, max(4, config.block_scores // n_classes))

    def work(number: int) -> None:
        first, last = blocks[number]
        pairs = slice(ends[first], ends[last])
        scores = score_rows(first, last)
        best = scores.argmax(axis=1)
        largest = scores[np.arange(last - first), best]
        local = rows[pairs] - first
        top1[pairs] = best[local] == y[pairs]
        scores -= largest[:, None]
        gap[pairs] = scores[local, y[pairs]]
        sums = np.zeros((len(grid), last - first))
        for start in range(0, n_classes, config.tile_classes):
            tile = scores[:, start : start + config.tile_classes]
            for i, log_temperature in enumerate(grid):
                scaled = tile * np.float32(np.exp(-log_temperature))
                sums[i] += np.exp(scaled, out=scaled).sum(axis=1, dtype=np.float64)
        log_sum[:, first:last] = np.log(sums)

    run(work, len(blocks), n_threads)
    # Cubic between the temperatures of the grid, and increasing where the sums are.
    return _Statistics(PchipInterpolator(grid, log_sum), gap, top1, rows, n_classes)


def _top1_loss(
    log_temperature: float, uniform_mix: float, statistics: _Statistics, config: CalibrationConfig
) -> float:
    """Return minus the log-likelihood of which top-1 predictions are right, and of the prior."""
    top1_prob = (1.0 - uniform_mix) * np.exp(-statistics.log_sums(log_temperature))
    top1_prob = np.minimum(top1_prob + uniform_mix / statistics.n_classes, config.max_probability)
    prob = top1_prob[statistics.rows]
    prior = 0.5 * (log_temperature / config.prior_spread) ** 2
    return prior - float(np.where(statistics.top1, np.log(prob), np.log1p(-prob)).sum())


def _log_likelihood(log_temperature: float, uniform_mix: float, statistics: _Statistics) -> float:
    """Return the log-likelihood of all labels."""
    log_sum = statistics.log_sums(log_temperature)[statistics.rows]
    log_prob = statistics.gap * np.exp(-log_temperature) - log_sum
    if uniform_mix != 0.0:
        log_prob = np.log((1.0 - uniform_mix) * np.exp(log_prob) + uniform_mix / statistics.n_classes)
    return float(log_prob.sum())


def _best_temperature(statistics: _Statistics, uniform_mix: float, config: CalibrationConfig) -> _Choice:
    """Minimise the loss of the top-1 over the temperature, around the best of the grid."""
    grid = np.array(config.log_temperature_grid)
    # there may be several minima
    nearest = int(np.argmin([_top1_loss(knot, uniform_mix, statistics, config) for knot in grid]))
    bounds = grid[[max(nearest - 1, 0), min(nearest + 1, len(grid) - 1)]]
    found = minimize_scalar(
        _top1_loss,
        bounds=bounds,
        args=(uniform_mix, statistics, config),
        method="bounded",
        options={"xatol": 1e-3},
    )
    log_temperature = float(found.x)
    likelihood = _log_likelihood(log_temperature, uniform_mix, statistics)
    return _Choice(float(found.fun), likelihood, uniform_mix, log_temperature)
