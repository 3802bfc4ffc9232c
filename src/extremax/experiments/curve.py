"""A learning curve: when it gets a point, what a point holds, and its file, one JSON object a line.

``seconds`` is training alone: projection, tree and epochs, without evaluation, checkpoints and compilation; ``cpu_seconds`` is
the processor time of the same, all threads together. Points are about evenly spaced in the logarithm of
``seconds``, within an epoch too. Rows are scored completely, over all classes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from extremax.experiments.recipe import EvaluationConfig
from extremax.model import ExtremeModel
from extremax.runtime.atomic_files import write_text

Point: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Schedule:
    """Times of points: ``first_seconds * 10 ** (i / points_per_decade)``."""

    first_seconds: float
    points_per_decade: int

    @classmethod
    def of(cls, evaluation: EvaluationConfig) -> Schedule:
        return cls(evaluation.first_seconds, evaluation.points_per_decade)

    def next_after(self, seconds: float) -> float:
        """The first time of the grid that lies after `seconds`.

        Examples
        --------
        >>> Schedule(0.1, 1).next_after(0.5), Schedule(0.1, 1).next_after(0.0)
        (1.0, 0.1)
        """
        if seconds < self.first_seconds:
            return self.first_seconds
        # Rounding may put a time of the grid a hair before itself.
        step = math.floor(self.points_per_decade * math.log10(seconds / self.first_seconds) + 1e-9) + 1
        return float(self.first_seconds * 10.0 ** (step / self.points_per_decade))


class Evaluator:
    """Validation and test figures of a model, from fixed rows."""

    def __init__(self, samples: dict[str, tuple[Any, NDArray[np.int32]]], n_jobs: int | None) -> None:
        self.samples, self.n_jobs = samples, n_jobs
        self.seconds = 0.0

    def __call__(self, model: ExtremeModel) -> dict[str, float]:
        """``valid_log_likelihood``, ``test_accuracy`` and so on."""
        started = time.perf_counter()
        out: dict[str, float] = {}
        for split, (X, y) in self.samples.items():
            figures = model.evaluate(X, y, n_jobs=self.n_jobs)._asdict()
            out |= {f"{split}_{name}": float(value) for name, value in figures.items()}
        self.seconds += time.perf_counter() - started
        return out


class CurveFile:
    """``curve.jsonl``: a point is on disk as soon as it is known; `points` holds them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points = read_curve(path) if path.exists() else []

    def cut(self, n_points: int) -> None:
        """Forget what was written after a checkpoint: it will be written again."""
        self.points = self.points[:n_points]
        write_text(self.path, "".join(_line(point) for point in self.points))

    def add(self, point: Point) -> None:
        self.points.append(point)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(point))


def _line(point: Point) -> str:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in point.items()
    }
    return json.dumps(plain) + "\n"


def read_curve(path: Path) -> list[Point]:
    """Points of a ``curve.jsonl``; a last line that a crash cut off is left out."""
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


def best_point(points: Sequence[Point], figure: str) -> Point:
    """The point that validation chooses for a figure ("accuracy" or "log_likelihood"); of equal ones the
    first.

    Examples
    --------
    >>> points = [{"valid_accuracy": 0.1, "test_accuracy": 0.3}, {"valid_accuracy": 0.2, "test_accuracy": 0.25}]
    >>> best_point(points, "accuracy")["test_accuracy"]
    0.25
    """
    if not points:
        raise ValueError("the curve has no points yet.")
    return max(points, key=lambda point: point[f"valid_{figure}"])


def first_time(points: Sequence[Point], reached: Callable[[Point], bool]) -> float | None:
    """Training seconds at the first point for which `reached` holds, or None."""
    return next((float(point["seconds"]) for point in points if reached(point)), None)
