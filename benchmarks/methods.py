"""Every per-row solver with every noise against class frequencies, on real data.

    python benchmarks/methods.py --data icd10cm eurlex57k --trials 3

Each method gets a short search over learning rate and, by method, prior variance (One-vs-Each, Augment and
Reduce) or score penalty (the others).  Validation accuracy chooses parameters and epoch; the test rows are
looked at once, with the chosen model.  The noise is fitted once per method and shared by its trials.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import benchmark_data as datasets
from extremax import ExtremeClassifier
from extremax.solvers.registry import SOLVERS
from timing import Clock, machine, make_parser, write_rows

NAME = "methods"
NOISES = ("uniform", "frequency", "tree", "mixture")
SAMPLING = [name for name, solver in SOLVERS.items() if solver.uses_noise]
WITH_PRIOR = ("one_vs_each", "augment_reduce")  # the methods that the paper runs with a prior


def parameters_to_try(solver: str, n_trials: int) -> list[dict[str, Any]]:
    """Return the first `n_trials` of a shuffled grid, the defaults first."""
    if solver in WITH_PRIOR:
        penalties = [{"prior_variance": v, "score_penalty": 0.0} for v in (None, 100.0, 10.0, 1.0)]
    else:
        penalties = [{"score_penalty": v} for v in (1e-4, 1e-3, 1e-5, 0.0)]
    first, *others = (
        {"learning_rate": rate} | penalty for rate, penalty in itertools.product((0.3, 0.1, 1.0), penalties)
    )
    np.random.default_rng(0).shuffle(others)
    return [first, *others][:n_trials]


def search(
    data: datasets.BenchmarkData, rows: np.ndarray, solver: str, noise: str, args: argparse.Namespace
) -> tuple[ExtremeClassifier, dict[str, Any]]:
    """Return the best model on the validation rows, and its parameters."""
    X, y, valid = data.X_train[rows], data.y_train[rows], slice(args.valid_rows)
    known = np.isin(data.y_valid[valid], y)
    X_valid, y_valid = data.X_valid[valid][known], data.y_valid[valid][known]
    start = ExtremeClassifier.with_solver(
        solver, noise=noise, n_negatives=args.negatives, n_epochs=0, random_state=0
    )
    start.fit(X, y)
    best, best_accuracy, chosen = start, -1.0, {}
    for parameters in parameters_to_try(solver, args.trials):
        model = copy.deepcopy(start)
        model.solver.set_params(**parameters)
        for epoch in range(1, args.epochs + 1):
            model.partial_fit(X, y)
            if epoch % args.every == 0 or epoch == args.epochs:
                accuracy = model.score(X_valid, y_valid)
                if accuracy > best_accuracy:
                    best, best_accuracy = copy.deepcopy(model), accuracy
                    chosen = parameters | {"epochs": epoch}
    return best, chosen


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data", nargs="+", default=["icd10cm", "eurlex57k"], choices=list(datasets.BUILDERS)
    )
    parser.add_argument("--solvers", nargs="+", default=SAMPLING, choices=SAMPLING)
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=NOISES)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--every", type=int, default=5, help="epochs between two looks at the validation rows"
    )
    parser.add_argument("--negatives", type=int, default=8)
    parser.add_argument("--rows", type=int, default=None, help="train on the first so many shuffled rows")
    parser.add_argument("--valid-rows", type=int, default=2000)
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.noises, args.trials, args.epochs = ["planted"], ["frequency"], 1, 1
    print(machine())
    for data in datasets.load_available(args.data):
        rows = np.sort(np.random.default_rng(0).permutation(len(data.y_train))[: args.rows])
        counts = np.bincount(data.y_train[rows], minlength=data.n_classes)
        known = counts[data.y_test] > 0
        X_test, y_test = data.X_test[known], data.y_test[known]
        sizes = (
            f"{len(rows):,} training rows, {np.count_nonzero(counts):,} classes, {len(y_test):,} test rows"
        )
        print(f"\n{data.name}: {sizes}\n")
        frequencies = {
            "accuracy": np.mean(y_test == counts.argmax()),
            "log-likelihood": np.log(counts[y_test] / counts.sum()).mean(),
        }
        write_rows(NAME, [{"case": f"{data.name}, class frequencies", **frequencies}])
        for solver, noise in itertools.product(args.solvers, args.noises):
            clock = Clock()
            model, chosen = search(data, rows, solver, noise, args)
            row = {
                "case": f"{data.name}, {solver}, {noise}",
                "accuracy": model.score(X_test, y_test),
                "log-likelihood": model.log_likelihood(X_test, y_test),
                "seconds": clock.read().wall,
                **chosen,
            }
            write_rows(NAME, [row])


if __name__ == "__main__":
    main()
