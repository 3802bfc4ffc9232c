"""The paper's claims, checked on learning curves of several seeds.

The point of a curve is the best on validation rows; its figures are those of test rows. All methods are
evaluated on the same test rows, so that two of them are compared row by row. The error of a difference has
two parts: that of the test rows, and that of the seeds. A difference counts when it is more than two errors
from zero. How many times faster the proposed method is, is told for each baseline at that baseline's final
accuracy, seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from extremax.experiments.curve import (
    Point,
    best_point,
    gain_of_last_doubling,
    read_curve,
    read_test_rows,
)
from extremax.experiments.methods import BASELINES, METHODS, PROPOSED
from extremax.types import Float64

# Test accuracy at the right end of the curves of the paper's Figure 1, from its vector paths for Amazon-670K;
# the appendix states those of EURLex-4K.
PAPER: dict[str, dict[str, float]] = {
    "Amazon-670K": {
        "adversarial": 0.31,
        "nce_from_zero": 0.24,
        "uniform": 0.276,
        "frequency": 0.272,
        "augment_reduce": 0.046,
        "one_vs_each": 0.036,
    },
    "Wikipedia-500K": {
        "adversarial": 0.175,
        "nce_from_zero": 0.095,
        "uniform": 0.115,
        "frequency": 0.105,
        "augment_reduce": 0.045,
        "one_vs_each": 0.02,
    },
    "EURLex-4K": {"softmax": 0.336, "uniform": 0.264},
}
FIGURES = ("accuracy", "log_likelihood")  # in the order of the rows of a file of test rows
ORDER_OF_MAGNITUDE = 10.0
# Units of a factor: rows seen, and processor seconds with the tree and without it.
UNITS: dict[str, dict[str, Any]] = {
    "in samples": {"clock": "samples"},
    "in processor seconds": {},
    "without the tree": {"with_start": False},
    "at 95% of the accuracy": {"fraction": 0.95},
}
ANSWERS = {True: "yes", False: "**no**", None: "cannot be told"}
_TIMING_ERROR = 0.05  # processor times of the same work differ by as much


@dataclass(frozen=True)
class RunResult:
    """The curve of one seed, and hits and log p(y|x) of each test row at the points that validation chose.

    `by_row` has an array for "accuracy" and one for "log_likelihood".
    """

    points: Sequence[Point]
    by_row: Mapping[str, Float64] = field(repr=False)

    def final(self, figure: str) -> float:
        """Return a figure of the test rows at the best point of the validation rows."""
        return float(best_point(self.points, figure)[f"test_{figure}"])


@dataclass(frozen=True)
class Outcome:
    """What a method reached on a data set, with each seed."""

    method: str
    runs: Sequence[RunResult]

    @property
    def label(self) -> str:
        return METHODS[self.method].label

    def values(self, figure: str) -> Float64:
        """Return the final figure of each seed."""
        return np.array([run.final(figure) for run in self.runs])

    def mean(self, figure: str) -> float:
        return float(self.values(figure).mean())

    def error(self, figure: str) -> float:
        """Return the standard error of the mean: of the test rows and of the seeds together."""
        return math.hypot(_row_error([self], figure), _seed_error(self, figure))

    def describe(self, figure: str) -> str:
        return format_figure(figure, self.mean(figure), self.error(figure))

    def seconds(self, point: int = -1) -> float:
        """Return the processor time of training up to a point, mean over seeds; 0 is that of the tree."""
        return float(np.mean([run.points[point]["cpu_seconds"] for run in self.runs]))

    def gain_of_last_doubling(self) -> float:
        """Return the relative gain of validation accuracy from half of the samples to the end."""
        return float(np.mean([gain_of_last_doubling(run.points) for run in self.runs]))

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON can hold them."""
        out: dict[str, Any] = {"n_seeds": len(self.runs)}
        for figure in FIGURES:
            out[figure], out[f"{figure}_error"] = self.mean(figure), self.error(figure)
            out[f"{figure}_by_seed"] = self.values(figure).tolist()
        out |= {"cpu_seconds": self.seconds(), "start_cpu_seconds": self.seconds(0)}
        out["epochs"] = [run.points[-1]["epoch"] for run in self.runs]
        return out | {"gain_of_last_doubling": self.gain_of_last_doubling()}


def read_outcomes(folder: Path, methods: Sequence[str] = tuple(METHODS)) -> dict[str, Outcome]:
    """Return what the finished runs in the folder of a comparison reached, by method."""
    runs = {name: finished_runs(folder, name) for name in methods}
    return {
        name: Outcome(name, [read_result(path) for path in paths]) for name, paths in runs.items() if paths
    }


def finished_runs(folder: Path, method: str) -> list[Path]:
    """Return the folders of a method's finished runs by seed."""
    found = (folder / "runs" / method).glob("seed-*/summary.json")
    return sorted((path.parent for path in found), key=lambda path: int(path.name.removeprefix("seed-")))


def read_result(folder: Path) -> RunResult:
    """Return the curve of a run, with the test rows at the points that validation rows chose."""
    points = read_curve(folder / "curve.jsonl")
    by_row: dict[str, Float64] = {
        figure: read_test_rows(folder, points.index(best_point(points, figure)))[row].astype("f8")
        for row, figure in enumerate(FIGURES)
    }
    return RunResult(points, by_row)


# -- speed


@dataclass(frozen=True)
class Speed:
    """How many times faster the proposed method reaches a baseline's accuracy, by seed; 0 for never."""

    factors: Float64

    @property
    def mean(self) -> float:
        """Return the geometric mean of the factors; 0 where a seed never reaches the accuracy."""
        return 0.0 if (self.factors <= 0).any() else float(np.exp(np.log(self.factors).mean()))

    def exceeds(self, factor: float) -> bool | None:
        """Tell whether the method is so many times faster with all seeds (True) or with none (False).

        Factors that differ by less than the repeatability of a processor's clock count as equal.
        """
        if self.factors.min() >= factor * (1.0 + _TIMING_ERROR):
            return True
        return False if self.factors.max() < factor * (1.0 - _TIMING_ERROR) else None

    def __str__(self) -> str:
        low, high = (format_factor(end) for end in (self.factors.min(), self.factors.max()))
        if self.factors.max() <= 0:
            return "never"
        if self.factors.min() <= 0:
            return f"never to {high}"
        return f"{format_factor(self.mean)}" + (f" ({low} to {high})" if len(self.factors) > 1 else "")


def format_factor(factor: float) -> str:
    """Word a factor with two digits.

    Examples
    --------
    >>> format_factor(1.234), format_factor(0.997), format_factor(123.4), format_factor(math.inf)
    ('1.2', '1.0', '120', '∞')
    """
    if math.isinf(factor):
        return "∞"
    rounded = float(f"{factor:.2g}")
    digits = 1 - math.floor(math.log10(rounded)) if rounded > 0 else 1
    return f"{rounded:.{max(digits, 0)}f}"


def time_to_accuracy(points: Sequence[Point], accuracy: float, clock: str) -> float | None:
    """Return when a curve first reaches a test accuracy, linear in log time between points; None if never.

    Examples
    --------
    >>> points = [{"seconds": 1.0, "test_accuracy": 0.1}, {"seconds": 100.0, "test_accuracy": 0.3}]
    >>> round(time_to_accuracy(points, 0.2, "seconds"), 6), time_to_accuracy(points, 0.4, "seconds")
    (10.0, None)
    """
    before: Point | None = None
    for point in points:
        if point["test_accuracy"] >= accuracy:
            if before is None or before[clock] <= 0:
                return float(point[clock])
            gain = point["test_accuracy"] - before["test_accuracy"]
            fraction = (accuracy - before["test_accuracy"]) / gain if gain > 0 else 1.0
            return float(before[clock] * (point[clock] / before[clock]) ** fraction)
        before = point
    return None


def compare_speed(
    proposed: Outcome,
    baseline: Outcome,
    clock: str = "cpu_seconds",
    *,
    fraction: float = 1.0,
    with_start: bool = True,
) -> Speed:
    """Return how many times faster the proposed method reaches a fraction of the baseline's final accuracy.

    Seeds are paired in order. Without the start, the time of the tree is left out on both sides.
    """
    factors = []
    for runs in zip(proposed.runs, baseline.runs, strict=False):
        target = fraction * runs[1].final("accuracy")
        fast, slow = (time_to_accuracy(run.points, target, clock) for run in runs)
        assert slow is not None  # it reached its own accuracy
        if fast is not None and not with_start:
            fast, slow = fast - runs[0].points[0][clock], slow - runs[1].points[0][clock]
        factors.append(0.0 if fast is None else slow / fast if fast > 0 else math.inf)
    return Speed(np.array(factors))


def speeds_of(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Speed]]:
    """Return the factors of a comparison by baseline and unit."""
    if PROPOSED not in outcomes:
        return {}
    return {
        name: {unit: compare_speed(outcomes[PROPOSED], outcomes[name], **how) for unit, how in UNITS.items()}
        for name in BASELINES
        if name in outcomes
    }


# -- differences and their errors


class Difference(NamedTuple):
    """Mean of one outcome minus another, its standard error, and half of its 95% interval."""

    value: float
    error: float
    margin: float


def compare(first: Outcome, second: Outcome, figure: str) -> Difference:
    """Return the difference of two methods in a figure.

    The rows' part of the error is that of the differences row by row, each the mean over seeds; the seeds'
    part is the spread of each method's means. The interval is Student's, with the degrees of freedom of Welch
    and Satterthwaite: the spread of three seeds is itself known badly, that of thousands of rows well.
    """
    by_seed = [(_seed_error(outcome, figure) ** 2, len(outcome.runs) - 1) for outcome in (first, second)]
    error = math.sqrt(_row_error([first, second], figure) ** 2 + sum(variance for variance, _ in by_seed))
    spread = sum(variance**2 / freedom for variance, freedom in by_seed if freedom > 0)
    quantile = float(stdtrit(error**4 / spread if spread > 0 else math.inf, 0.975))
    return Difference(first.mean(figure) - second.mean(figure), error, quantile * error)


def _row_error(outcomes: Sequence[Outcome], figure: str) -> float:
    """Return the error that the test rows give to the mean of one outcome, or to the difference of two."""
    means = [np.mean([run.by_row[figure] for run in outcome.runs], axis=0) for outcome in outcomes]
    values = means[0] - means[1] if len(means) == 2 else means[0]
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _seed_error(outcome: Outcome, figure: str) -> float:
    values = outcome.values(figure)
    return 0.0 if len(values) < 2 else float(values.std(ddof=1) / math.sqrt(len(values)))


def format_figure(figure: str, value: float, error: float, *, signed: bool = False) -> str:
    """Word a figure with its error: accuracies in percent, or differences of them in points.

    Examples
    --------
    >>> format_figure("accuracy", 0.312, 0.004), format_figure("accuracy", 0.012, 0.004, signed=True)
    ('31.2% ± 0.4%', '+1.2 ± 0.4 points')
    >>> format_figure("log_likelihood", -2.3456, 0.01)
    '-2.346 ± 0.010'
    """
    if figure == "accuracy":
        if signed:
            return f"{100 * value:+.1f} ± {100 * error:.1f} points"
        return f"{value:.1%} ± {error:.1%}"
    words = f"{value:+.3f}" if signed else f"{value:.3f}"
    return f"{words} ± {error:.3f}" + (" nats" if signed else "")


# -- claims


@dataclass(frozen=True)
class Verdict:
    """One claim: whether it holds, None where that cannot be told, the number that decides, and the reason.

    The number is a difference or a factor.
    """

    claim: str
    held: bool | None
    words: str
    value: float

    def __str__(self) -> str:
        answer = {True: "holds", False: "does not hold", None: "cannot be told"}[self.held]
        return f"**{self.claim}**: {answer}. {self.words}"


def check_claims(outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """Check the paper's claims on the outcomes of methods, in processor seconds."""
    verdicts = []
    baselines = [outcomes[name] for name in BASELINES if name in outcomes]
    if PROPOSED in outcomes and baselines:
        verdicts += [_best_final(outcomes[PROPOSED], baselines, figure) for figure in FIGURES]
        for baseline in baselines:
            speed, claim = compare_speed(outcomes[PROPOSED], baseline), f"It is faster than {baseline.label}"
            words = f"To {baseline.mean('accuracy'):.1%}, in processor seconds: {speed}."
            claims = {
                f"{claim}, at that baseline's final accuracy": 1.0,
                f"{claim} by an order of magnitude": ORDER_OF_MAGNITUDE,
            }
            verdicts += [
                Verdict(one, speed.exceeds(least), words, speed.mean) for one, least in claims.items()
            ]
    if "softmax" in outcomes and "uniform" in outcomes:
        verdicts.append(_softmax(outcomes["softmax"], outcomes["uniform"]))
    return verdicts


def _best_final(proposed: Outcome, baselines: Sequence[Outcome], figure: str) -> Verdict:
    """Compare with every baseline; the verdict tells of the one that decides."""
    found = [(compare(proposed, other, figure), other) for other in baselines]
    behind = [case for case in found if case[0].value < -case[0].margin]
    undecided = [case for case in found if abs(case[0].value) <= case[0].margin]
    ahead, deciding = min(behind or undecided or found, key=lambda case: case[0].value)
    words = f"It reached {proposed.describe(figure)}, and {deciding.label}, which decides,"
    words += f" {deciding.describe(figure)}: {format_figure(figure, ahead.value, ahead.error, signed=True)}."
    if figure == "log_likelihood":
        words += " (In the paper this held on Wikipedia-500K, not on Amazon-670K.)"
    claim = f"The proposed method reaches a better final {figure.replace('_l', '-l')} than all baselines"
    return Verdict(claim, False if behind else None if undecided else True, words, ahead.value)


def _softmax(softmax: Outcome, uniform: Outcome) -> Verdict:
    ahead, paper = compare(softmax, uniform, "accuracy"), PAPER["EURLex-4K"]
    words = f"{softmax.describe('accuracy')} against {uniform.describe('accuracy')}:"
    words += (
        f" {format_figure('accuracy', ahead.value, ahead.error, signed=True)}; in the paper, on EURLex-4K,"
    )
    words += f" {paper['softmax']:.1%} against {paper['uniform']:.1%}."
    claim = "Full softmax is more accurate than negative sampling with uniform noise (appendix A.2)"
    held = ahead.value > 0 if abs(ahead.value) > ahead.margin else None
    return Verdict(claim, held, words, ahead.value)
