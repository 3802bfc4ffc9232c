"""Learning curves: where their points lie, their figures, and their file, one JSON object per line.

A point has ``samples``, the training rows seen so far; points are about evenly spaced in its logarithm,
within an epoch too, so that the same recipe has the same points on any machine. ``seconds`` is training
alone: projection, tree and epochs, without evaluation, checkpoints and compilation; ``cpu_seconds`` is its
processor time, all threads together. Rows are scored exactly, over all classes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from extremax.examples import Examples
from extremax.experiments.recipe import EvaluationConfig
from extremax.model import Model
from extremax.runtime.atomic_files import naming, write_text
from extremax.runtime.threads import resolve_threads
from extremax.scores import summarize
from extremax.types import Float32

Point: TypeAlias = dict[str, Any]
PLATEAU = 0.02  # relative gain over a doubling of epochs below which accuracy no longer rises
_FIRST_PLATEAU = 8  # epochs: a method may begin slowly


@dataclass(frozen=True)
class Schedule:
    """Numbers of training rows at which points are due: ``first_samples * 10 ** (i / points_per_decade)``."""

    first_samples: float
    points_per_decade: float

    @classmethod
    def of(cls, evaluation: EvaluationConfig, n_rows: int) -> Schedule:
        if evaluation.until_plateau:
            return cls(n_rows, 1.0 / math.log10(2.0))
        return cls(evaluation.first_samples, evaluation.points_per_decade)

    def next_after(self, samples: float) -> float:
        """Return the first number of the grid after `samples`.

        Examples
        --------
        >>> Schedule(1000, 1).next_after(5000), Schedule(1000, 1).next_after(0)
        (10000.0, 1000.0)
        """
        if samples < self.first_samples:
            return float(self.first_samples)
        # 1e-9: rounding may put a number of the grid just before itself
        step = math.floor(self.points_per_decade * math.log10(samples / self.first_samples) + 1e-9) + 1
        due = self.first_samples * 10.0 ** (step / self.points_per_decade)
        return float(f"{due:.14g}")  # without the rounding of powers: whole epochs are met exactly


class Evaluator:
    """Figures of a model on fixed rows.

    `by_row` holds, by split, whether the best class of each row of the last model was its label, and log
    p(y|x): float32 (2, n_rows).
    """

    def __init__(self, samples: dict[str, Examples], n_jobs: int | None) -> None:
        self.samples, self.n_threads = samples, resolve_threads(n_jobs)
        self.by_row: dict[str, Float32] = {}

    def __call__(self, model: Model) -> dict[str, float]:
        """Return ``valid_log_likelihood``, ``test_accuracy`` and so on."""
        out: dict[str, float] = {}
        for split, examples in self.samples.items():
            ranked = model.rank_pairs(examples, n_threads=self.n_threads)
            figures = summarize(ranked, examples)._asdict()
            out |= {f"{split}_{name}": float(value) for name, value in figures.items()}
            hits = ranked.labels[examples.rows, 0] == examples.y
            self.by_row[split] = np.stack([hits, ranked.pair_log_prob]).astype(np.float32)
        return out


class CurveFile:
    """The file ``curve.jsonl``, written point by point; `points` holds them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points = read_curve(path) if path.exists() else []

    def cut(self, n_points: int) -> None:
        """Keep the first points: those after a checkpoint will be written again."""
        self.points = self.points[:n_points]
        write_text(self.path, "".join(_line(point) for point in self.points))

    def add(self, point: Point) -> None:
        """Append a point."""
        self.points.append(point)
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_line(point))


def _line(point: Point) -> str:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in point.items()
    }
    return json.dumps(plain) + "\n"


def read_curve(path: Path) -> list[Point]:
    """Return the points of a ``curve.jsonl``, without a last line that a crash cut off."""
    points = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            points.append(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ValueError(
                f"{path}, line {number}: not JSON; delete the run's folder and start it again."
            ) from None
    return points


def save_test_rows(folder: Path, number: int, by_row: Float32) -> None:
    """Write hits and log-probabilities of the test rows at a point of the curve."""
    target = folder / "test_rows" / f"{number:03d}.npy"
    target.parent.mkdir(exist_ok=True)
    np.save(target, by_row)


def read_test_rows(folder: Path, number: int) -> Float32:
    """Return what `save_test_rows` wrote."""
    by_row: Float32 = np.load(folder / "test_rows" / f"{number:03d}.npy", allow_pickle=False)
    return by_row


def gain_of_last_doubling(points: Sequence[Point]) -> float:
    """Return the change of validation accuracy from half of the epochs to the end, over the larger of both.

    Examples
    --------
    >>> gain_of_last_doubling([{"epoch": 4, "valid_accuracy": 0.5}, {"epoch": 8, "valid_accuracy": 0.0}])
    -1.0
    """
    last = points[-1]
    half = [point for point in points if point["epoch"] <= last["epoch"] / 2]
    before = half[-1]["valid_accuracy"] if half else 0.0
    return float((last["valid_accuracy"] - before) / max(last["valid_accuracy"], before, 1e-12))


def on_plateau(points: Sequence[Point]) -> bool:
    """Tell whether accuracy neither rose nor fell over the last doubling of epochs.

    Examples
    --------
    >>> on_plateau([{"epoch": 4, "valid_accuracy": 0.50}, {"epoch": 8, "valid_accuracy": 0.505}])
    True
    >>> on_plateau([{"epoch": 4, "valid_accuracy": 0.50}, {"epoch": 8, "valid_accuracy": 0.4}])
    False
    """
    return points[-1]["epoch"] >= _FIRST_PLATEAU and abs(gain_of_last_doubling(points)) < PLATEAU


def best_point(points: Sequence[Point], figure: str) -> Point:
    """Return the point with the best validation "accuracy" or "log_likelihood", of equal ones the first.

    Examples
    --------
    >>> points = [{"valid_accuracy": 0.1, "test_accuracy": 0.3}]
    >>> points += [{"valid_accuracy": 0.2, "test_accuracy": 0.25}]
    >>> best_point(points, "accuracy")["test_accuracy"]
    0.25
    """
    if not points:
        raise ValueError("the curve has no points yet.")
    return max(points, key=lambda point: point[f"valid_{figure}"])
