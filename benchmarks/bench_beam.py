"""Beam search of default models against their exact search: how often it finds the same classes, and how much
sooner.

    python benchmarks/bench_beam.py                                  # eurlex57k, icd10cm, npm-owner-124k
    python benchmarks/bench_beam.py --data eurlex57k --models models

Models are trained with all defaults (or opened from --models, where they are kept). Agreement is over random
test rows, with the width that the model chose and with others; so is the error of the best class's
log-probability. Exact and beam search are timed in turns, many rows at once and one at a time, and medians of
the ratios are printed: the machine's mood is in both."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

import datasets
from extremax import ExtremeClassifier, load_model
from timing import machine, stopwatch


def ratio(exact: object, beam: object, repeats: int) -> tuple[float, float, float]:
    """Medians of both times, and of their ratio."""
    times = np.array([[stopwatch(exact), stopwatch(beam)] for _ in range(repeats)])  # type: ignore[arg-type]
    return (
        float(np.median(times[:, 0])),
        float(np.median(times[:, 1])),
        float(np.median(times[:, 0] / times[:, 1])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "icd10cm", "npm-owner-124k"])
    parser.add_argument("--models", type=Path, help="folder in which models are kept")
    parser.add_argument("--test-rows", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=2000, help="rows that are timed together")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(machine())
    for name in args.data:
        data = datasets.load(name)
        kept = None if args.models is None else args.models / name
        if kept is not None and kept.exists():
            clf = load_model(kept)
        else:
            started = time.perf_counter()
            clf = ExtremeClassifier(random_state=0).fit(data.X_train, data.y_train)
            print(f"{name}: fitted in {time.perf_counter() - started:.1f} s, load {os.getloadavg()[0]:.1f}")
            if kept is not None:
                clf.save(kept)
        assert isinstance(clf, ExtremeClassifier)
        rng = np.random.default_rng(1)  # rows of some sets are sorted
        some = rng.permutation(len(data.y_test))[: args.test_rows]
        X = np.ascontiguousarray(data.X_test[some], np.float32)
        model, index = clf.model_, clf.model_.index
        assert index is not None
        size = sum(array.nbytes for array in index.to_arrays().values())
        print(
            f"{name}: {model.linear.n_classes:,} classes, width {index.beam_width}, {index.codes.shape[1]} bytes a class,"
            f" agreement in fit {index.agreement:.2%}, {size / model.linear.weights.nbytes:.1%} of the size of the weights"
        )
        fitting = stopwatch(lambda: model.fit_index(data.X_train, judges=X[:1024]))
        print(f"  the index is fitted in {fitting:.1f} s, load {os.getloadavg()[0]:.0f}")
        model.index = index
        exact, exact_log_prob = model.top_k(X, 5)
        width = index.beam_width or 64
        for factor in (0.125, 0.25, 0.5, 1.0, 2.0):
            wide = max(1, int(width * factor))

            def beam(rows: np.ndarray = X[: args.batch], wide: int = wide) -> object:
                return model.top_k(rows, 5, search="beam", beam_width=wide)

            found, log_prob = model.top_k(X, 5, search="beam", beam_width=wide)
            first = np.mean(found[:, 0] == exact[:, 0])
            error = (log_prob - exact_log_prob)[found[:, 0] == exact[:, 0], 0]
            among = (found[:, :, None] == exact[:, None, :]).any(axis=1).mean()
            a, b, many = ratio(lambda: model.top_k(X[: args.batch], 5), beam, args.repeats)
            _, c, single = ratio(lambda: model.top_k(X[:1], 5), lambda: beam(X[:1]), 5 * args.repeats)
            print(
                f"  width {wide:5d}: top 1 {first:.2%}  top 5 {among:.2%}  log p {error.mean():+.3f} +- {error.std():.3f}"
                f"  {1e6 * a / args.batch:.0f} -> {1e6 * b / args.batch:.0f} us a row: {many:.1f} x;"
                f"  one row {1e3 * c:.2f} ms: {single:.1f} x;  load {os.getloadavg()[0]:.0f}"
            )


if __name__ == "__main__":
    main()
