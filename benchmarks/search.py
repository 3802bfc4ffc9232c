"""How far the defaults are from what a search finds: 30 settings judged on validation rows, the best then on
test rows.

    python benchmarks/search.py --data eurlex57k --trials 30

Settings whose validation log-likelihood after an epoch is below the median of those before are given up
(Optuna's median pruner), once eight have run to their end. The search sees validation rows alone. Needs ``pip
install optuna``."""

from __future__ import annotations

import argparse
import time

import numpy as np
import optuna

import datasets
from extremax import ExtremeClassifier


def some(X: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[:size])
    return np.ascontiguousarray(X[rows]), y[rows]


def settings(trial: optuna.Trial) -> dict:
    found = {
        "learning_rate": trial.suggest_float("learning_rate", 0.05, 2.0, log=True),
        "n_epochs": trial.suggest_int("n_epochs", 3, 10),
        "n_shared": trial.suggest_categorical("n_shared", [512, 1024, 2048]),
        "batch_size": trial.suggest_categorical("batch_size", [128, 256, 512]),
        "noise": trial.suggest_categorical("noise", ["adversarial", "frequency"]),
        "precondition": trial.suggest_categorical("precondition", [True, False]),
    }
    if found["noise"] == "frequency":
        found["noise_exponent"] = trial.suggest_float("noise_exponent", 0.0, 1.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "npm-owner-124k"])
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--rows", type=int, default=6000, help="validation and test rows, drawn at random")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--study",
        default="sqlite:///search.db",
        help="where an interrupted search is kept and taken up again",
    )
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for name in arguments.data:
        data = datasets.load(name)
        X_valid, y_valid = some(data.X_valid, data.y_valid, arguments.rows)
        X_test, y_test = some(data.X_test, data.y_test, arguments.rows)
        same = {"random_state": 0, "n_jobs": arguments.threads}

        def objective(trial: optuna.Trial, data=data, X=X_valid, y=y_valid, same=same) -> float:
            started, clf = (
                time.perf_counter(),
                ExtremeClassifier(objective="shared_softmax", **settings(trial), **same),
            )

            def look(record: dict) -> None:
                figures = clf.model_.evaluate(X, y)
                trial.report(figures.log_likelihood, record["epoch"])
                if trial.should_prune():
                    raise optuna.TrialPruned

            clf.fit(data.X_train, data.y_train, callbacks=[look])
            figures = clf.model_.evaluate(X, y)
            print(f"{name} {trial.number:2d} {figures.accuracy:.2%} / {figures.log_likelihood:.3f}", end=" ")
            print(f"{time.perf_counter() - started:.0f} s {trial.params}", flush=True)
            trial.set_user_attr("log_likelihood", figures.log_likelihood)
            return figures.accuracy

        study = optuna.create_study(
            study_name=name,
            storage=arguments.study,
            load_if_exists=True,
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=10),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=8),
        )
        study.optimize(objective, n_trials=max(0, arguments.trials - len(study.trials)))
        for title, chosen in (
            ("defaults", {}),
            ("best of the search", {"objective": "shared_softmax", **study.best_params}),
        ):
            started = time.perf_counter()
            clf = ExtremeClassifier(**chosen, **same).fit(data.X_train, data.y_train)
            seconds = time.perf_counter() - started
            valid, test = clf.model_.evaluate(X_valid, y_valid), clf.model_.evaluate(X_test, y_test)
            print(f"{name}, {title}: validation {valid.accuracy:.2%} / {valid.log_likelihood:.3f}", end=", ")
            print(
                f"test {test.accuracy:.2%} / {test.log_likelihood:.3f}, {seconds:.0f} s {chosen}", flush=True
            )


if __name__ == "__main__":
    main()
