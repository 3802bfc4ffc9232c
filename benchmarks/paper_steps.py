"""From the paper's algorithm to the default, one change at a time, on real data.

    python benchmarks/paper_steps.py --data icd10cm eurlex57k

Every row is `ExtremeClassifier.paper` with one thing changed.  Accuracy on validation rows chooses learning
rate, lambda and epoch of the first row and of rows with another noise; the others keep rate and lambda of the
first.  The test rows are looked at once, with the chosen model.  The noise is fitted once per row and shared
by its trials.  Processor seconds are those of all threads: of projection and tree, and of the epochs up to
the chosen one.
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
from timing import Clock, machine, make_parser, write_rows

NAME = "paper_steps"
STEPS: dict[str, dict[str, Any]] = {
    "paper": {},
    "whitened components (authors' code)": {"whiten_components": True},
    "half of lambda_n (authors' code)": {"tree_regularization": 0.05},
    "fast tree fit": {"tree_fit": "default"},
    "fast tree fit, regularization by level": {"tree_fit": "default", "tree_regularization": "auto"},
    "32 components": {"tree_components": 32},
    "4 negatives": {"n_negatives": 4},
    "scaled features": {"scale_features": True},
    "all of these but whitened components": {
        "tree_fit": "default",
        "tree_regularization": "auto",
        "tree_components": 32,
        "n_negatives": 4,
        "scale_features": True,
    },
    "uniform noise": {"noise": "uniform"},
    "uniform noise, penalty on raw scores": {"noise": "uniform", "penalized_scores": "raw"},
    "frequency noise": {"noise": "frequency"},
    "frequency noise, penalty on raw scores": {"noise": "frequency", "penalized_scores": "raw"},
}


def search(
    data: datasets.BenchmarkData,
    changes: dict[str, Any],
    grid: Sequence[tuple[float, float]],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Return the figures of the best model on validation rows, of learning rates and lambdas of a grid."""
    some = np.random.default_rng(0).permutation(len(data.y_valid))[: args.valid_rows]
    X_valid, y_valid = data.X_valid[some], data.y_valid[some]
    clock = Clock()
    start = ExtremeClassifier.paper(**changes, n_epochs=0, random_state=0, n_jobs=args.threads)
    start.fit(data.X_train, data.y_train)
    tree_seconds = clock.read().processor
    best: dict[str, Any] = {"accuracy": -1.0}
    model = start
    for rate, penalty in grid:
        trial = copy.deepcopy(start).set_params(learning_rate=rate, score_penalty=penalty)
        seconds = 0.0
        for epoch in range(1, args.epochs + 1):
            clock = Clock()
            trial.partial_fit(data.X_train, data.y_train)
            seconds += clock.read().processor
            if epoch % args.every == 0 or epoch == args.epochs:
                accuracy = trial.score(X_valid, y_valid)
                if accuracy > best["accuracy"]:
                    model = copy.deepcopy(trial)
                    best = {"accuracy": accuracy, "rate": rate, "lambda": penalty, "epochs": epoch}
                    best["epoch seconds"] = seconds
    return {
        "accuracy": model.score(data.X_test, data.y_test),
        "log-likelihood": model.log_likelihood(data.X_test, data.y_test),
        "log-likelihood of the noise": start.log_likelihood(data.X_test, data.y_test),
        "tree processor seconds": tree_seconds,
        "training processor seconds": best["epoch seconds"],
        **{name: best[name] for name in ("rate", "lambda", "epochs")},
    }


def run_default(data: datasets.BenchmarkData, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of `ExtremeClassifier` as it is."""
    clock = Clock()
    clf = ExtremeClassifier(random_state=0, n_jobs=args.threads).fit(data.X_train, data.y_train)
    seconds = clock.read().processor
    return {
        "accuracy": clf.score(data.X_test, data.y_test),
        "log-likelihood": clf.log_likelihood(data.X_test, data.y_test),
        "training processor seconds": seconds,
        "epochs": clf.choices_["n_epochs"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--data", nargs="+", default=["icd10cm", "eurlex57k"], choices=list(datasets.BUILDERS)
    )
    parser.add_argument("--steps", nargs="+", default=[*STEPS, "default"], choices=[*STEPS, "default"])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.03, 0.1, 0.3])
    parser.add_argument("--penalties", nargs="+", type=float, default=[1e-5, 1e-4, 1e-3])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="epochs between looks at the validation rows")
    parser.add_argument("--valid-rows", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.rates, args.penalties, args.epochs = ["planted"], [0.1], [1e-3], 1
        args.steps = ["paper", "uniform noise, penalty on raw scores", "default"]
    print(machine())
    for data in datasets.load_available(args.data):
        print(f"\n{data.name}: {len(data.y_train):,} training rows, {data.n_classes:,} classes\n")
        grid = kept = list(itertools.product(args.rates, args.penalties))
        for step in args.steps:
            if step == "default":
                figures = run_default(data, args)
            else:
                figures = search(data, STEPS[step], grid if "noise" in STEPS[step] else kept, args)
            if step == "paper":
                kept = [(figures["rate"], figures["lambda"])]
            write_rows(NAME, [{"case": f"{data.name}, {step}", **figures}])


if __name__ == "__main__":
    main()
