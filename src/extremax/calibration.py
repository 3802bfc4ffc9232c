"""Calibration: temperature and uniform mixing, chosen on rows that the model was not trained on.

    p(y|x) = (1 - uniform_mix) softmax(s(x) / temperature)_y + uniform_mix / C

with the debiased scores s of the C classes.  Where scores have a noise term, the temperature is chosen for
the confidence of the top-1 alone: it maximises the likelihood of which top-1 predictions are right.  Uniform
mixing is for labels that the model gives next to no probability.  Without it, the few rows with such a label
would ask for a high temperature at the expense of all others.  Neither changes the order of the classes
(float32 logarithms of classes far below ``uniform_mix / C`` may be equal).

Models are overconfident in rows that they find easy, and underconfident in the others.  Without a noise term
the temperature depends on the row,

    temperature (p_1(x) + 0.1)^temperature_slope,    p_1(x) = max_y softmax(s(x) / temperature)_y,

and all three numbers maximise the likelihood of the labels and of which top-1 predictions are right.

Questions are not worded as training texts are, and rows that were held out from these do not show how sure a
model of texts is of words that do not go together.  Mixed rows do, each the sum of two held-out rows: which
top-1 predictions are the label of the first counts half as much as the same of ordinary rows; or less, or
not at all, where ordinary rows would lose likelihood.

Probabilities of a row sum to one over all classes, so where rows have several labels they do not say whether
a label applies.  `LabelCalibration` gives a probability to each label by itself:

    P(y applies to x) = sigmoid(intercept + slope (s_y - L) + level L),    L = log sum_y exp s_y,

a logistic regression on rows that the model was not trained on.  With the best label of a row having
probability p_1, a row is given the labels with

    P(y applies to x) >= min(threshold sqrt(p_1), p_1),

so at least one: half-way between one threshold for all rows, which leaves uncertain rows empty, and one
relative to the best label, which gives them too many.  The threshold has the best mean F1 on the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_softmax

from extremax.examples import Examples
from extremax.runtime.threads import run, split
from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Bool, Float32, Float64, Int32, Int64

# Added to p_1: with very many classes, a row without any confidence must not get a temperature near zero.
CONFIDENCE_OFFSET = 0.1
_LOG_TEMPERATURES = tuple(-1.6 + 0.2 * i for i in range(17))
_PRIOR_SPREAD = 0.5  # of log temperature; a few rows that are all right must not ask for certainty
# Probability; beyond a tenth, the top-1 loses more calibration than a temperature gives back.
_UNIFORM_MIXES = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1)
_MIN_GAIN = 2.0  # nats over all rows that uniform mixing must gain for the top-1
_TOP1_WEIGHT = 10.0  # of a nat of the top-1, in nats of the labels
_MAX_LOSS_PER_ROW = 0.01  # nats that the labels may lose for the calibration of the top-1
_MAX_PROBABILITY = 1.0 - 1e-9  # the largest probability that counts
_MAX_SLOPE = 0.5  # of the temperature's exponent: from a third to 1.05 times the temperature
_SLOPE_SPREAD = 0.25  # of the prior of the slope
_SLOPE_TOP1_WEIGHT = 1.0  # as above, where the temperature depends on the row
_MIXED_WEIGHTS = (0.5, 0.1)  # of the top-1 of mixed rows; the first that costs next to nothing
_OUTSIDE_PENALTY = 100.0  # nats for a row, per unit of log temperature outside of the grid
_EVALUATIONS = 80  # of the loss, for each uniform mixing
_LABEL_PENALTY = 1.0  # of the squared coefficients of the probability of each label
_BLOCK_SCORES = 1 << 22  # scores of a task
_TILE_CLASSES = 1 << 13  # classes whose exponentials stay in the cache for all temperatures


class Calibration(NamedTuple):
    """How scores become probabilities.

    Attributes
    ----------
    temperature : float
        Divides the debiased scores.
    uniform_mix : float
        Weight of the uniform distribution over all classes.
    temperature_slope : float
        Exponent of the row's confidence in its temperature; 0 where all rows have the same.
    """

    temperature: float = 1.0
    uniform_mix: float = 0.0
    temperature_slope: float = 0.0

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
        if not abs(self.temperature_slope) <= 1.0:
            raise ValueError(
                f"temperature_slope is {self.temperature_slope}; it must be from -1 to 1. 0 gives all rows"
                " the same temperature."
            )

    def row_temperature(self, log_top: Float64) -> Float64:
        """Return the temperature of rows from the log-probability of their best class at `temperature`.

        Examples
        --------
        >>> Calibration(1.2, 0.0, 0.5).row_temperature(np.log([0.9, 0.06])).round(2).tolist()
        [1.2, 0.48]
        """
        found: Float64 = self.temperature * np.exp(self.temperature_slope * _confidence(log_top))
        return found

    def state(self) -> State:
        """Return the state that a model folder stores."""
        return State(self._asdict())

    @classmethod
    def from_state(cls, state: State) -> Calibration:
        """Build the calibration that `state` described; folders of older versions have no slope."""
        header = {"temperature_slope": 0.0, **state.header}
        found = cls(*(checks.get_float(header, name) for name in cls._fields))
        found.check()
        return found


class LabelCalibration(NamedTuple):
    """How the scores of a row become an independent probability of each label.

    Attributes
    ----------
    intercept, slope, level : float
        Coefficients of the log-odds: of one, of the log-softmax of the label, and of the logarithm of its
        normaliser.
    threshold : float
        Times the square root of the row's highest probability: the least probability of a predicted label.
    n_rows : int
        Rows that chose them; 0 where there were none: `without_rows`.
    """

    intercept: float
    slope: float
    level: float
    threshold: float = 0.5
    n_rows: int = 0

    @classmethod
    def without_rows(cls, labels_per_row: float) -> LabelCalibration:
        """Return the calibration without held-out rows: softmax times the mean number of labels.

        A label drawn from those of a row has the probabilities of the softmax; with m labels in every row,
        the label applies with m times that.
        """
        return cls(float(np.log(max(labels_per_row, 1e-30))), 1.0, 0.0)

    def log_odds(self, log_softmax: Float64, normalizer: Float64) -> Float64:
        """Return the log-odds of labels (n, k) from their log-softmax and the log normalisers (n,)."""
        return self.intercept + self.slope * log_softmax + self.level * normalizer[:, None]

    def prob(self, log_softmax: Float64, normalizer: Float64) -> Float64:
        """Return the probabilities of labels (n, k)."""
        odds = self.log_odds(log_softmax, normalizer)
        if self.n_rows == 0:
            return np.minimum(np.exp(np.minimum(odds, 0.0)), 1.0)
        found: Float64 = expit(odds)
        return found

    def least_prob(self, best: Float64) -> Float64:
        """Return the least probability of a predicted label from that of the best label of the row.

        Examples
        --------
        >>> LabelCalibration.without_rows(1.0).least_prob(np.array([1.0, 0.25, 0.01])).tolist()
        [0.5, 0.25, 0.01]
        """
        found: Float64 = np.minimum(self.threshold * np.sqrt(best), best)
        return found

    def state(self) -> State:
        """Return the state that a model folder stores."""
        return State(self._asdict())

    @classmethod
    def from_state(cls, state: State) -> LabelCalibration:
        """Build the calibration that `state` described."""
        return cls(**{name: state.header[name] for name in cls._fields})


def fit_label_calibration(
    log_softmax: Float64,
    normalizer: Float64,
    applies: Bool,
    n_labels: Int64,
) -> LabelCalibration:
    """Fit the logistic regression, and the threshold with the best mean F1 of the rows.

    Parameters
    ----------
    log_softmax, applies : (n_rows, k)
        Of the best classes of each row, and whether they are labels of it.
    normalizer : (n_rows,)
        Log of the sum of exp(scores) of all classes.
    n_labels : (n_rows,)
        Labels of each row, including those that are not among its best classes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> level = rng.normal(size=500)
    >>> scores = np.log(rng.dirichlet(np.full(20, 0.3), size=500))
    >>> truth = rng.random((500, 20)) < expit(3.0 + 1.5 * scores + level[:, None])
    >>> found = fit_label_calibration(scores, level, truth, truth.sum(axis=1))
    >>> bool(abs(found.slope - 1.5) < 0.2 and abs(found.level - 1.0) < 0.2)
    True
    """
    # Centred and in units of their spread: one small penalty fits both.
    columns = np.stack([log_softmax.ravel(), np.repeat(normalizer, log_softmax.shape[1])])
    centre, spread = columns.mean(axis=1), np.maximum(columns.std(axis=1), 1e-6)
    X, y = ((columns.T - centre) / spread), applies.ravel()
    penalty = _LABEL_PENALTY * np.array([0.0, 1.0, 1.0])

    def loss(theta: Float64) -> tuple[float, Float64]:
        odds = theta[0] + X @ theta[1:]
        value = np.logaddexp(0.0, odds).sum() - odds[y].sum() + 0.5 * float(penalty @ theta**2)
        residual = expit(odds) - y
        gradient = np.concatenate([[residual.sum()], X.T @ residual]) + penalty * theta
        return float(value) / len(y), gradient / len(y)

    rate = float(np.clip(y.mean(), 1e-6, 1.0 - 1e-6))
    start = np.array([np.log(rate / (1.0 - rate)), 1.0, 0.0])
    bounds = [(None, None), (1e-3, None), (None, None)]  # a higher score is never less likely to apply
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    slope, level = best[1:] / spread
    intercept = float(best[0] - best[1:] @ (centre / spread))
    found = LabelCalibration(intercept, float(slope), float(level), n_rows=len(normalizer))
    return found._replace(threshold=best_threshold(found.prob(log_softmax, normalizer), applies, n_labels))


def best_threshold(prob: Float64, applies: Bool, n_labels: Int64) -> float:
    """Return the threshold of `LabelCalibration` with the best mean F1 of the rows.

    Arguments are those of `fit_label_calibration`, with the probabilities of labels in place of scores.

    Examples
    --------
    >>> best_threshold(np.array([[0.81, 0.36, 0.18]]), np.array([[True, True, False]]), np.array([2]))
    0.3
    """
    f1 = 2.0 * np.cumsum(applies, axis=1) / (np.arange(1, prob.shape[1] + 1) + n_labels[:, None])
    gain = np.diff(f1, axis=1).ravel()  # of one label more in its row; the first is always predicted
    limit = (prob[:, 1:] / np.sqrt(np.maximum(prob[:, :1], 1e-300))).ravel()  # highest threshold with it
    order = np.argsort(-limit, kind="stable")
    limits = np.concatenate([[1.0], limit[order], [0.0]])
    total = np.concatenate([[0.0], np.cumsum(gain[order])])
    total[limits[:-1] == limits[1:]] = -np.inf  # equal ones are predicted together
    last = int(np.argmax(total))
    return float(round(0.5 * (limits[last] + limits[last + 1]), 6))


def mix_uniform(
    log_prob: Float32, uniform_mix: float, n_classes: int, *, out: Float32 | None = None
) -> Float32:
    """Return log((1 - uniform_mix) p + uniform_mix / n_classes); -inf marks missing classes and stays.

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


def calibrated_log_prob(scores: Float32, y: Int32, calibration: Calibration) -> Float64:
    """Return log p(y|x) of one class of each row, from the debiased scores of all classes.

    Examples
    --------
    >>> scores = np.log(np.array([[0.8, 0.2]], np.float32))
    >>> np.exp(calibrated_log_prob(scores, np.array([1]), Calibration(1.0, 0.1))).round(3).tolist()
    [0.23]
    """
    log_prob = log_softmax(scores.astype(np.float64) / calibration.temperature, axis=1)
    sharper = calibration.temperature / calibration.row_temperature(log_prob.max(axis=1))
    own: Float64 = log_softmax(log_prob * sharper[:, None], axis=1)[np.arange(len(y)), y]
    mix = calibration.uniform_mix
    return np.log((1.0 - mix) * np.exp(own) + mix / scores.shape[1]) if mix else own


def _confidence(log_top: Float64) -> Float64:
    """Return the confidence that sets the temperature of a row: the logarithm of p_1 + 0.1."""
    found: Float64 = np.log(np.exp(log_top) + CONFIDENCE_OFFSET)
    return found


class _Statistics(NamedTuple):
    """Statistics of the scores by which the calibration is chosen.

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

    log_sums: PchipInterpolator
    gap: Float64
    top1: Bool
    rows: Int64
    n_classes: int

    def log_sums_by_row(self, log_temperature: Float64) -> Float64:
        """Return the log-sums of rows at a temperature of their own, within those of the grid."""
        knots, rows = self.log_sums.x, np.arange(len(log_temperature))
        at = np.clip(log_temperature, knots[0], knots[-1])
        piece = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
        step, (cubic, square, linear, constant) = at - knots[piece], self.log_sums.c[:, piece, rows]
        found: Float64 = ((cubic * step + square) * step + linear) * step + constant
        return found


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
    by_row: bool = False,
    mixed: tuple[Callable[[int, int], Float32], Examples] | None = None,
    n_threads: int = 1,
) -> Calibration:
    """Choose temperature and uniform mixing on rows that the model was not trained on.

    Parameters
    ----------
    score_rows
        Returns the debiased scores (last - first, n_classes) of the rows from `first` to before `last`; its
        result is written to.
    examples
        Class and row of each pair; features and weights are not used.
    by_row
        Whether the temperature may depend on the row.
    mixed
        The same of mixed rows, where the temperature depends on the row.
    """
    statistics = _collect(score_rows, examples, n_classes, n_threads)
    if by_row:
        return _fit_with_mixed(statistics, None if mixed is None else _collect(*mixed, n_classes, n_threads))
    choices = [_best_temperature(statistics, mix) for mix in _UNIFORM_MIXES]
    enough = max(choices, key=lambda choice: choice.log_likelihood).log_likelihood
    enough -= _MAX_LOSS_PER_ROW * examples.n_pairs
    allowed = [choice for choice in choices if choice.log_likelihood >= enough]

    def loss(choice: _Choice) -> float:
        price = _MIN_GAIN if choice.uniform_mix else 0.0
        return _TOP1_WEIGHT * (choice.top1_loss + price) - choice.log_likelihood

    chosen = min(allowed, key=loss)
    return Calibration(float(np.exp(chosen.log_temperature)), chosen.uniform_mix)


def _fit_with_mixed(statistics: _Statistics, mixed: _Statistics | None) -> Calibration:
    """Return the calibration by ordinary rows, and by mixed ones as far as it costs next to nothing."""
    plain = _fit_by_row(statistics)
    if mixed is None:
        return plain
    enough = _row_likelihood(plain, statistics) - _MAX_LOSS_PER_ROW * len(statistics.gap)
    for weight in _MIXED_WEIGHTS:
        found = _fit_by_row(statistics, mixed, weight)
        if _row_likelihood(found, statistics) >= enough:
            return found
    return plain


def _row_likelihood(calibration: Calibration, statistics: _Statistics) -> float:
    """Return the log-likelihood of the labels."""
    base = float(np.log(calibration.temperature))
    log_sum, log_temperature, _ = _temper(base, calibration.temperature_slope, statistics)
    return _tempered_likelihood(log_sum, log_temperature, calibration.uniform_mix, statistics)


def _tempered_likelihood(
    log_sum: Float64, log_temperature: Float64, uniform_mix: float, statistics: _Statistics
) -> float:
    """Return the log-likelihood of the labels of tempered rows."""
    rows = statistics.rows
    log_prob = statistics.gap * np.exp(-log_temperature[rows]) - log_sum[rows]
    if uniform_mix != 0.0:
        log_prob = np.log((1.0 - uniform_mix) * np.exp(log_prob) + uniform_mix / statistics.n_classes)
    return float(log_prob.sum())


def _fit_by_row(
    statistics: _Statistics, mixed: _Statistics | None = None, mixed_weight: float = 0.0
) -> Calibration:
    """Maximise the likelihood of the labels and of which top-1 predictions are right, and the prior."""
    knots = _LOG_TEMPERATURES
    bounds = [(knots[0], knots[-1]), (-_MAX_SLOPE, _MAX_SLOPE)]
    step = _PRIOR_SPREAD / 2
    options: dict[str, Any] = {"maxfev": _EVALUATIONS, "xatol": 1e-3, "fatol": 1e-2}
    best, chosen = np.inf, Calibration()
    for mix in _UNIFORM_MIXES:
        args = mix, statistics, mixed, mixed_weight
        # from the best temperature of all rows: there are other minima
        losses = [_row_loss(np.array([knot, 0.0]), *args) for knot in knots]
        first = knots[int(np.argmin(losses))]
        second = first + step if first + step <= knots[-1] else first - step
        simplex = np.array([[first, 0.0], [second, 0.0], [first, _SLOPE_SPREAD]])
        options["initial_simplex"] = simplex
        found = minimize(
            _row_loss, simplex[0], args=args, method="Nelder-Mead", bounds=bounds, options=options
        )
        loss = float(found.fun) + (_MIN_GAIN if mix else 0.0)
        if loss < best:
            best, chosen = loss, Calibration(float(np.exp(found.x[0])), mix, float(found.x[1]))
    return chosen


def _row_loss(
    theta: Float64,
    uniform_mix: float,
    statistics: _Statistics,
    mixed: _Statistics | None = None,
    mixed_weight: float = 0.0,
) -> float:
    """Return the loss of a log temperature and a slope; nats of all pairs."""
    base, slope = float(theta[0]), float(theta[1])
    log_sum, log_temperature, outside = _temper(base, slope, statistics)
    likelihood = _tempered_likelihood(log_sum, log_temperature, uniform_mix, statistics)
    top1_likelihood = _top1_likelihood(log_sum, uniform_mix, statistics)
    if mixed is not None:
        log_sum, _, more = _temper(base, slope, mixed)
        factor, outside = mixed_weight * len(statistics.rows) / len(mixed.rows), outside + more
        top1_likelihood += factor * _top1_likelihood(log_sum, uniform_mix, mixed)
    prior = 0.5 * ((base / _PRIOR_SPREAD) ** 2 + (slope / _SLOPE_SPREAD) ** 2)
    unknown = _OUTSIDE_PENALTY * outside
    return prior + unknown - likelihood - _SLOPE_TOP1_WEIGHT * top1_likelihood


def _temper(base: float, slope: float, statistics: _Statistics) -> tuple[Float64, Float64, float]:
    """Return log-sums and log temperatures of rows, and how far these are outside of the grid."""
    log_temperature = base + slope * _confidence(-statistics.log_sums(base))
    knots = statistics.log_sums.x
    outside = np.abs(log_temperature - np.clip(log_temperature, knots[0], knots[-1])).sum()  # sums unknown
    return statistics.log_sums_by_row(log_temperature), log_temperature, float(outside)


def _top1_likelihood(log_sum: Float64, uniform_mix: float, statistics: _Statistics) -> float:
    """Return the log-likelihood of which top-1 predictions are right."""
    least = uniform_mix / statistics.n_classes
    top1 = np.minimum((1.0 - uniform_mix) * np.exp(-log_sum) + least, _MAX_PROBABILITY)[statistics.rows]
    return float(np.where(statistics.top1, np.log(top1), np.log1p(-top1)).sum())


def _collect(
    score_rows: Callable[[int, int], Float32],
    examples: Examples,
    n_classes: int,
    n_threads: int,
) -> _Statistics:
    """Score all rows once and keep what does not grow with the number of classes."""
    n_rows, y, rows = examples.n_rows, examples.y, examples.rows
    ends = np.searchsorted(rows, np.arange(n_rows + 1))
    grid = np.array(_LOG_TEMPERATURES)
    log_sum = np.empty((len(grid), n_rows))
    gap, top1 = np.empty(len(y)), np.empty(len(y), bool)
    blocks = split(n_rows, max(4, _BLOCK_SCORES // n_classes))

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
        for start in range(0, n_classes, _TILE_CLASSES):
            tile = scores[:, start : start + _TILE_CLASSES]
            for i, log_temperature in enumerate(grid):
                scaled = tile * np.float32(np.exp(-log_temperature))
                sums[i] += np.exp(scaled, out=scaled).sum(axis=1, dtype=np.float64)
        log_sum[:, first:last] = np.log(sums)

    run(work, len(blocks), n_threads)
    # Cubic between the temperatures of the grid, and increasing where the sums are.
    return _Statistics(PchipInterpolator(grid, log_sum), gap, top1, rows, n_classes)


def _top1_loss(log_temperature: float, uniform_mix: float, statistics: _Statistics) -> float:
    """Return minus the log-likelihood of which top-1 predictions are right, and of the prior."""
    top1_prob = (1.0 - uniform_mix) * np.exp(-statistics.log_sums(log_temperature))
    top1_prob = np.minimum(top1_prob + uniform_mix / statistics.n_classes, _MAX_PROBABILITY)
    prob = top1_prob[statistics.rows]
    prior = 0.5 * (log_temperature / _PRIOR_SPREAD) ** 2
    return prior - float(np.where(statistics.top1, np.log(prob), np.log1p(-prob)).sum())


def _log_likelihood(log_temperature: float, uniform_mix: float, statistics: _Statistics) -> float:
    """Return the log-likelihood of all labels."""
    log_sum = statistics.log_sums(log_temperature)[statistics.rows]
    log_prob = statistics.gap * np.exp(-log_temperature) - log_sum
    if uniform_mix != 0.0:
        log_prob = np.log((1.0 - uniform_mix) * np.exp(log_prob) + uniform_mix / statistics.n_classes)
    return float(log_prob.sum())


def _best_temperature(statistics: _Statistics, uniform_mix: float) -> _Choice:
    """Minimise the loss of the top-1 over the temperature, around the best of the grid."""
    grid = np.array(_LOG_TEMPERATURES)
    # there may be several minima
    nearest = int(np.argmin([_top1_loss(knot, uniform_mix, statistics) for knot in grid]))
    bounds = grid[[max(nearest - 1, 0), min(nearest + 1, len(grid) - 1)]]
    found = minimize_scalar(
        _top1_loss,
        bounds=bounds,
        args=(uniform_mix, statistics),
        method="bounded",
        options={"xatol": 1e-3},
    )
    log_temperature = float(found.x)
    likelihood = _log_likelihood(log_temperature, uniform_mix, statistics)
    return _Choice(float(found.fun), likelihood, uniform_mix, log_temperature)
