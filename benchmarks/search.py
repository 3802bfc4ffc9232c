"""How far the defaults are from the best parameters that a search finds on validation rows.

    python benchmarks/search.py --data eurlex57k --trials 30

Trials whose validation log-likelihood after an epoch is below the median of those before are given up
(Optuna's median pruner), once eight have run to their end.  The search sees validation rows alone.  Needs
``pip install optuna``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optuna

import benchmark_data as datasets
from extremax import ExtremeClassifier, evaluate
from timing import Clock, machine, make_parser, write_rows

NAME = "search"


def some_rows(X: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[:size])
    return np.ascontiguousarray(X[rows]), y[rows]


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """Return the parameters of a trial."""
    found = {
        "learning_rate": trial.suggest_float("learning_rate", 0.05, 2.0, log=True),
        "n_epochs": trial.suggest_int("n_epochs", 3, 10),
        "n_shared": trial.suggest_categorical("n_shared", [512, 1024, 2048]),
        "batch_size": trial.suggest_categorical("batch_size", [128, 256, 512]),
        "noise": trial.suggest_categorical("noise", ["tree", "frequency"]),
        "precondition": trial.suggest_categorical("precondition", [True, False]),
    }
    if found["noise"] == "frequency":
        found["noise_exponent"] = trial.suggest_float("noise_exponent", 0.0, 1.0)
    return found


def figures(clf: ExtremeClassifier, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    report = evaluate(clf, X, y, ks=(1,))
    return {"accuracy": report.accuracy[1], "log-likelihood": report.log_likelihood}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "npm-owner-124k"])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--rows", type=int, default=6000, help="validation and test rows, drawn at random")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--study",
        help="where a search is kept and taken up again, such as sqlite:///search.db; unless given, nowhere",
    )
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.trials = ["planted"], 2
    print(machine())
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for data in datasets.load_available(args.data):
        X_valid, y_valid = some_rows(data.X_valid, data.y_valid, args.rows)
        X_test, y_test = some_rows(data.X_test, data.y_test, args.rows)
        same = {"random_state": 0, "n_jobs": args.threads}

        def objective(trial: optuna.Trial) -> float:
            clock, clf = Clock(), ExtremeClassifier.with_solver("minibatch_softmax", **suggest(trial), **same)

            def prune(record: dict[str, Any]) -> None:
                trial.report(figures(clf, X_valid, y_valid)["log-likelihood"], record["epoch"])
                if trial.should_prune():
                    raise optuna.TrialPruned

            clf.fit(data.X_train, data.y_train, callbacks=[prune])
            found = figures(clf, X_valid, y_valid)
            case = f"{data.name}, trial {trial.number}, validation"
            write_rows(NAME, [{"case": case, **found, "seconds": clock.read().wall, **trial.params}])
            return found["accuracy"]

        study = optuna.create_study(
            study_name=data.name,
            storage=args.study,
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=10),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=8),
        )
        study.optimize(objective, n_trials=max(0, args.trials - len(study.trials)))
        best = {"solver": "minibatch_softmax", **study.best_params}
        for title, chosen in (("defaults", {}), ("best of the search", best)):
            clock = Clock()
            clf = ExtremeClassifier.with_solver(**chosen, **same).fit(data.X_train, data.y_train)
            seconds, case = clock.read().wall, f"{data.name}, {title}"
            validation, test = figures(clf, X_valid, y_valid), figures(clf, X_test, y_test)
            rows = [
                {"case": f"{case}, validation", **validation},
                {"case": f"{case}, test", **test, "seconds": seconds},
            ]
            write_rows(NAME, rows)


if __name__ == "__main__":
    main()
