"""The paper's claims, checked on learning curves: final accuracy, and the time to the best baseline's.

The point of a curve is the best on validation rows; its figures are those of test rows. Two accuracies count
as different when they are more than two standard errors of their difference apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extremax.experiments.curve import Point, best_point
from extremax.experiments.methods import BASELINES, METHODS, PROPOSED

# Test accuracy at the end of the curves of the paper's Figure 1; the appendix states those of EURLex-4K.
PAPER: dict[str, dict[str, float]] = {
    "Amazon-670K": {
        "adversarial": 0.31,
        "nce": 0.24,
        "uniform": 0.27,
        "frequency": 0.28,
        "augment_reduce": 0.04,
        "one_vs_each": 0.04,
    },
    "Wikipedia-500K": {
        "adversarial": 0.175,
        "nce": 0.095,
        "uniform": 0.115,
        "frequency": 0.105,
        "augment_reduce": 0.045,
        "one_vs_each": 0.02,
    },
    "EURLex-4K": {"softmax": 0.336, "uniform": 0.264},
}


@dataclass(frozen=True)
class Outcome:
    """What a method reached on a data set; `seconds` is the time to the point of its accuracy."""

    method: str
    accuracy: float
    standard_error: float
    log_likelihood: float
    seconds: float
    points: Sequence[Point]


@dataclass(frozen=True)
class Verdict:
    """One claim: whether it holds, None where that cannot be told, and the reason."""

    claim: str
    held: bool | None
    words: str

    def __str__(self) -> str:
        answer = {True: "holds", False: "does not hold", None: "cannot be told"}[self.held]
        return f"**{self.claim}**: {answer}. {self.words}"


def outcome_of(method: str, points: Sequence[Point], *, n_test: int, clock: str = "seconds") -> Outcome:
    """Return the figures of a curve at its best points on validation rows."""
    chosen = best_point(points, "accuracy")
    accuracy = float(chosen["test_accuracy"])
    error = math.sqrt(max(accuracy * (1.0 - accuracy), 1e-12) / n_test)
    likelihood = float(best_point(points, "log_likelihood")["test_log_likelihood"])
    return Outcome(method, accuracy, error, likelihood, float(chosen[clock]), points)


def time_to_accuracy(points: Sequence[Point], accuracy: float, *, clock: str = "seconds") -> float | None:
    """Return when a curve first reaches a test accuracy, linear in log time between points; None if never.

    Examples
    --------
    >>> points = [{"seconds": 1.0, "test_accuracy": 0.1}, {"seconds": 100.0, "test_accuracy": 0.3}]
    >>> round(time_to_accuracy(points, 0.2), 6), time_to_accuracy(points, 0.4)
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


def check_claims(outcomes: Mapping[str, Outcome], *, clock: str = "seconds") -> list[Verdict]:
    """Check the paper's claims on the outcomes of methods."""
    verdicts = []
    baselines = [outcomes[name] for name in BASELINES if name in outcomes]
    if PROPOSED in outcomes and baselines:
        proposed, best = outcomes[PROPOSED], max(baselines, key=lambda outcome: outcome.accuracy)
        verdicts += [
            _fastest(proposed, best, clock),
            _most_accurate(proposed, best),
            _log_likelihood(proposed, baselines),
        ]
    unconditional = [outcomes[name] for name in ("uniform", "frequency") if name in outcomes]
    if PROPOSED in outcomes and unconditional:
        verdicts.append(
            _beats_unconditional_noise(
                outcomes[PROPOSED], max(unconditional, key=lambda outcome: outcome.accuracy), clock
            )
        )
    if "nce" in outcomes and PROPOSED in outcomes:
        verdicts.append(_beats_nce(outcomes[PROPOSED], outcomes["nce"]))
    if "softmax" in outcomes and "uniform" in outcomes:
        verdicts.append(_softmax(outcomes["softmax"], outcomes["uniform"]))
    return verdicts


def _difference(first: Outcome, second: Outcome) -> tuple[float, bool]:
    """Return first minus second, and whether that is more than chance."""
    difference = first.accuracy - second.accuracy
    return difference, abs(difference) > 2.0 * math.hypot(first.standard_error, second.standard_error)


def _label(outcome: Outcome) -> str:
    return METHODS[outcome.method].label


def _figure(outcome: Outcome) -> str:
    return f"{outcome.accuracy:.1%} ± {outcome.standard_error:.1%}"


def _fastest(proposed: Outcome, best: Outcome, clock: str) -> Verdict:
    claim = "The proposed method is the fastest to the best baseline's accuracy"
    theirs = time_to_accuracy(best.points, best.accuracy, clock=clock)
    ours = time_to_accuracy(proposed.points, best.accuracy, clock=clock)
    assert theirs is not None  # it reached its own accuracy
    target = f"{best.accuracy:.1%}, the accuracy of {_label(best)}"
    if ours is None:
        return Verdict(claim, False, f"It never reached {target}; that took the baseline {theirs:.1f} s.")
    factor = theirs / ours
    pace = f"{factor:.1f} times faster" if factor >= 1 else f"{1 / factor:.1f} times slower"
    words = f"It reached {target}, after {ours:.1f} s, the baseline after {theirs:.1f} s: {pace}"
    words += " (in the paper, ten times or more)."
    return Verdict(claim, factor > 1.0, words)


def _most_accurate(proposed: Outcome, best: Outcome) -> Verdict:
    difference, clear = _difference(proposed, best)
    words = f"It reached {_figure(proposed)}, the best baseline ({_label(best)}) {_figure(best)}:"
    words += f" {100 * difference:+.1f} points" + (
        "." if clear else ", less than the error of the test rows."
    )
    return Verdict(
        "The proposed method reaches a better accuracy than all baselines",
        difference > 0 if clear else None,
        words,
    )


def _log_likelihood(proposed: Outcome, baselines: Sequence[Outcome]) -> Verdict:
    best = max(baselines, key=lambda outcome: outcome.log_likelihood)
    words = f"It reached {proposed.log_likelihood:.3f}, {_label(best)} {best.log_likelihood:.3f}. "
    words += "(In the paper this held on Wikipedia-500K but not on Amazon-670K.)"
    claim = "The proposed method reaches a better log-likelihood than all baselines"
    return Verdict(claim, proposed.log_likelihood > best.log_likelihood, words)


def _beats_unconditional_noise(proposed: Outcome, best: Outcome, clock: str) -> Verdict:
    difference, clear = _difference(proposed, best)
    theirs = time_to_accuracy(best.points, best.accuracy, clock=clock)
    ours = time_to_accuracy(proposed.points, best.accuracy, clock=clock)
    assert theirs is not None  # it reached its own accuracy
    words = f"{_figure(proposed)} against {_figure(best)} of {_label(best)}"
    pace = "" if ours is None else f", whose accuracy it reached after {ours:.1f} s instead of {theirs:.1f} s"
    claim = "With the same loss, adversarial noise beats noise that does not look at the features"
    return Verdict(claim, difference > 0 if clear else None, f"{words}{pace}.")


def _beats_nce(proposed: Outcome, nce: Outcome) -> Verdict:
    difference, clear = _difference(proposed, nce)
    words = (
        f"{_figure(proposed)} with bias removal, {_figure(nce)} for NCE, whose scores do not contain log p_n."
    )
    return Verdict(
        "Using the tree in prediction, too, beats NCE with the same tree",
        difference > 0 if clear else None,
        words,
    )


def _softmax(softmax: Outcome, uniform: Outcome) -> Verdict:
    difference, clear = _difference(softmax, uniform)
    words = f"{_figure(softmax)} against {_figure(uniform)}: {100 * difference:+.1f} points,"
    words += " in the paper +7.2 on EURLex-4K."
    claim = "Full softmax is more accurate than negative sampling with uniform noise (appendix)"
    return Verdict(claim, difference > 0 if clear else None, words)
