"""Measure what one fit takes beside its input, and print it with the bound that the fit stated.

    python measure_fit.py KIND

A small fit comes first, so that compiled code and imports are in memory before the measurement.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax import ExtremeClassifier, TextClassifier
from extremax import fit as fit_module
from extremax.tuned import DEFAULTS, replace_numbers


class Problem(NamedTuple):
    """Input of a fit and the estimator."""

    X: Any
    y: Any
    estimator: Any


def read_status(name: str) -> int:
    """Return a size of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def dense(n_rows: int, n_classes: int, n_features: int = 256) -> tuple[Any, Any]:
    """Return planted rows and classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    X[:, :8] += 2.0 * rng.standard_normal((n_classes, 8), dtype=np.float32)[y]
    return X, y


def words(n_rows: int, n_classes: int, n_columns: int, length: int = 100) -> tuple[Any, Any]:
    """Return rows of words by Zipf's law, a tenth of them from a few words of the class; and classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(n_classes, size=n_rows)
    drawn = (n_columns ** rng.random((n_rows, length))).astype(np.int64) - 1
    own = rng.integers(n_columns, size=(n_classes, 20))
    n_own = length // 10
    drawn[:, :n_own] = own[y[:, None], rng.integers(20, size=(n_rows, n_own))]
    drawn.sort(axis=1)
    rows = np.repeat(np.arange(n_rows), length)
    X = sparse.csr_matrix((np.ones(drawn.size, np.float32), (rows, drawn.ravel())), shape=(n_rows, n_columns))
    X.sum_duplicates()
    X.data[:] = 1.0 / np.sqrt(np.repeat(np.diff(X.indptr), np.diff(X.indptr)))
    return X, y


def texts(n_rows: int, n_classes: int, length: int = 20) -> tuple[Any, Any]:
    """Return texts of words by Zipf's law, and classes."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    vocabulary = ["".join(letters[rng.integers(22, size=rng.integers(2, 10))]) for _ in range(50_000)]
    y = rng.integers(n_classes, size=n_rows)
    drawn = (50_000 ** rng.random((n_rows, length))).astype(np.int64) - 1
    drawn[:, :2] = rng.integers(50_000, size=(n_classes, 6))[y[:, None], rng.integers(6, size=(n_rows, 2))]
    return [" ".join([vocabulary[i] for i in row]) for row in drawn.tolist()], y


def make(kind: str, size: float) -> Problem:
    """Return the problem of a kind; `size` is one for the measurement, less for the fit before it."""
    n, options = int(150_000 * size), {"n_epochs": 1, "n_jobs": 2, "random_state": 0}
    # One pass of everything that takes passes: the memory is that of many.
    ExtremeClassifier._numbers = replace_numbers(DEFAULTS, sparse={"passes": 1, "bilinear_epochs": 1})
    if kind.startswith("text"):
        n_classes = 25_000 if kind == "text_many" else 40
        options["n_jobs"] = 12 if kind == "text_threads" else 2
        return Problem(*texts(int(24_000 * size), n_classes), TextClassifier(ExtremeClassifier(**options)))
    if kind in ("csr", "pair"):
        X, y = words(n, 200, 30_000)
        return Problem(X if kind == "csr" else (X, dense(n, 200, 64)[0]), y, ExtremeClassifier(**options))
    if kind == "rows":
        return Problem(*dense(3 * n, 20, 64), ExtremeClassifier("negative_sampling", **options))
    if kind == "shared":
        return Problem(*dense(n, n // 5), ExtremeClassifier("minibatch_softmax", **options))
    return Problem(*dense(n, 2000), ExtremeClassifier(**options))


def measure(problem: Problem) -> int:
    """Return the greatest number of bytes that a fit held beside its input."""
    Path("/proc/self/clear_refs").write_text("5")
    before = read_status("VmRSS")
    problem.estimator.fit(problem.X, problem.y)
    return read_status("VmHWM") - before


def main(kind: str) -> None:
    """Print the peak, the stated bound and its parts."""
    stated: list[dict[str, int]] = []
    describe: Callable[[Any], str] = fit_module.describe_memory
    fit_module.describe_memory = lambda need: stated.append(dict(need)) or describe(need)  # type: ignore[func-returns-value]
    measure(make(kind, 0.02))
    problem = make(kind, 1.0)
    stated.clear()
    peak = measure(problem)
    sys.stdout.write(json.dumps({"peak": peak, "stated": sum(stated[-1].values()), "parts": stated[-1]}))


if __name__ == "__main__":
    main(sys.argv[1])
