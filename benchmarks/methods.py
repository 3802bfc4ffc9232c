"""Every objective with every noise against class frequencies, on real data: test accuracy and log-likelihood.

    python benchmarks/methods.py --data icd10cm eurlex57k --trials 3

Each method gets a short search over learning rate and, by method, prior variance (One-vs-Each, Augment and
Reduce) or score penalty (the others). Validation accuracy chooses the setting and the epoch; the test rows
are looked at once, with the chosen model. The noise is fitted once per method and shared by its trials."""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from typing import Any

import numpy as np

import datasets
from extremax import ExtremeClassifier
from extremax.training.objectives import OBJECTIVES
from timing import machine

NOISES = ("uniform", "frequency", "adversarial", "mixture")
WITH_PRIOR = ("one_vs_each", "augment_reduce")  # the methods that the paper runs with a prior


def settings_to_try(objective: str, n_trials: int) -> list[dict[str, Any]]:
    """The first `n_trials` of a shuffled grid, the defaults first."""
    if objective in WITH_PRIOR:
        strengths = [{"prior_variance": v, "score_penalty": 0.0} for v in (None, 100.0, 10.0, 1.0)]
    else:
        strengths = [{"score_penalty": v} for v in (1e-4, 1e-3, 1e-5, 0.0)]
    first, *others = (
        {"learning_rate": rate} | s for rate, s in itertools.product((0.3, 0.1, 1.0), strengths)
    )
    np.random.default_rng(0).shuffle(others)
    return [first, *others][:n_trials]


def search(
    data: datasets.BenchmarkData, rows: np.ndarray, objective: str, noise: str, args: argparse.Namespace
) -> tuple[ExtremeClassifier, dict[str, Any]]:
    """The best model on the validation rows, and its settings."""
    X, y, valid = data.X_train[rows], data.y_train[rows], slice(args.valid_rows)
    known = np.isin(data.y_valid[valid], y)
    X_valid, y_valid = data.X_valid[valid][known], data.y_valid[valid][known]
    start = ExtremeClassifier(objective, noise, n_negatives=args.negatives, n_epochs=0, random_state=0).fit(
        X, y
    )
    best, best_accuracy, chosen = start, -1.0, {}
    for settings in settings_to_try(objective, args.trials):
        model = copy.deepcopy(start).set_params(**settings)
        for epoch in range(1, args.epochs + 1):
            model.partial_fit(X, y)
            if epoch % args.every == 0 or epoch == args.epochs:
                accuracy = model.score(X_valid, y_valid)
                if accuracy > best_accuracy:
                    best, best_accuracy, chosen = copy.deepcopy(model), accuracy, settings | {"epochs": epoch}
    return best, chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", nargs="+", default=["icd10cm", "eurlex57k"], choices=list(datasets.BUILDERS)
    )
    parser.add_argument("--objectives", nargs="+", default=list(OBJECTIVES), choices=list(OBJECTIVES))
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=NOISES)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--every", type=int, default=5, help="epochs between two looks at the validation rows"
    )
    parser.add_argument("--negatives", type=int, default=8)
    parser.add_argument(
        "--rows", type=int, default=None, help="train on the first so many rows of a fixed shuffle"
    )
    parser.add_argument("--valid-rows", type=int, default=2000)
    args = parser.parse_args()
    print(machine())
    for name in args.data:
        data = datasets.load(name)
        rows = np.sort(np.random.default_rng(0).permutation(len(data.y_train))[: args.rows])
        counts = np.bincount(data.y_train[rows], minlength=data.n_classes)
        known = counts[data.y_test] > 0
        X_test, y_test = data.X_test[known], data.y_test[known]
        print(
            f"\n{name}: {len(rows):,} training rows, {np.count_nonzero(counts):,} classes, {len(y_test):,} test rows\n"
        )
        print("| objective | noise | test accuracy | test log-likelihood | chosen on validation | seconds |")
        print("|---|---|---|---|---|---|")
        frequency = np.log(counts[y_test] / counts.sum()).mean()
        print(
            f"| class frequencies | | {np.mean(y_test == counts.argmax()):.2%} | {frequency:.3f} | | |",
            flush=True,
        )
        for objective, noise in itertools.product(args.objectives, args.noises):
            started = time.perf_counter()
            model, chosen = search(data, rows, objective, noise, args)
            text = ", ".join(f"{key} {value:g}" for key, value in chosen.items() if value is not None)
            accuracy, log_likelihood = model.score(X_test, y_test), model.log_likelihood(X_test, y_test)
            seconds = time.perf_counter() - started
            print(
                f"| {objective} | {noise} | {accuracy:.2%} | {log_likelihood:.3f} | {text} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
