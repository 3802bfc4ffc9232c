"""Search for the best parameters of a recipe by Optuna, on validation rows alone.

The folder of a search holds ``study.db`` (SQLite), ``trials.json`` and ``best.toml``, the recipe with the
best parameters. An interrupted or killed search is resumed: finished trials are kept, and one that was cut
off is repeated. While a search runs, it locks its folder.

The default space is the paper's grid, with higher learning rates added: the best ones on rows of unit length.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from extremax.experiments.curve import Evaluator, Schedule
from extremax.experiments.methods import METHODS, make_classifier, method_of
from extremax.experiments.recipe import Recipe, model_defaults, resolve, to_toml
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.runner import complete, open_folder, record_samples
from extremax.experiments.shared_noise import FittedNoise, TrainingOver, warm_up
from extremax.params import PARAMETERS
from extremax.runtime.atomic_files import write_json, write_text
from extremax.solvers.loop import Record

LEARNING_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SOFTMAX_RATES = (*LEARNING_RATES, 3.0, 10.0)  # as in the paper: gradients without noise allow longer steps
SCORE_PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03)
PRIOR_VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0)
_POINTS_PER_DECADE = 3  # at most: evaluating validation rows may cost more than the epochs before it
_RESULT = "result"  # attribute of a trial that came to an end


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes
    ----------
    number
        Number in the study.
    parameters
        Parameters that were tried.
    score
        Best score on validation rows; None if it ended before any.
    state
        "complete", "pruned" or "diverged".
    n_epochs
        Epoch of the best score.
    seconds
        Elapsed time.
    """

    number: int
    parameters: dict[str, Any]
    score: float | None
    state: str
    n_epochs: int
    seconds: float

    def describe(self) -> str:
        """Return one line about the trial."""
        score = "-" if self.score is None else f"{self.score:.4f}"
        words = "  ".join(f"{name} {value}" for name, value in self.parameters.items())
        return f"trial {self.number:<4} {score:>9}  {self.state:9} {self.seconds:7.1f} s  {words}"


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: the best recipe, all trials, and the file of the recipe."""

    best: Recipe
    trials: list[Trial]
    path: Path

    @property
    def best_trial(self) -> Trial:
        return best_trial(self.trials)


def default_space(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paper's grid for a method: learning rate, and lambda or the prior's variance.

    Examples
    --------
    >>> sorted(default_space({"solver": "negative_sampling", "noise": "uniform"}))
    ['learning_rate', 'penalized_scores', 'score_penalty']
    >>> default_space(METHODS["softmax"].model)["learning_rate"][-1]
    10.0
    """
    parameters = {**model_defaults(model.get("solver", "auto")), **model}
    name = method_of(parameters)
    rates, method = SOFTMAX_RATES if name == "softmax" else LEARNING_RATES, METHODS.get(name)
    if method is None:
        return {"learning_rate": list(rates)}
    values: dict[str, Any] = {
        "score_penalty": list(SCORE_PENALTIES),
        "penalized_scores": list(PARAMETERS["penalized_scores"].choices),
        "prior_variance": list(PRIOR_VARIANCES),
    }
    return {"learning_rate": list(rates), **{name: values[name] for name in method.searched}}


def tune(  # noqa: PLR0913 (the parameters are the API)
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    n_trials: int | None = None,
    rows: Rows | None = None,
    n_jobs: int | None = None,
    noise: FittedNoise | None = None,
    log: Log = lambda text: None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> SearchResult:
    """Search the space of a recipe for the best validation score, or resume the search in `out`.

    Parameters
    ----------
    recipe : Recipe
        Model to train; its ``[search]`` holds the space.
    out : path
        Folder of the search.
    n_trials : int, optional
        Trials in total, with those of earlier calls; by default the recipe's.
    rows : Rows, optional
        Rows of the recipe's data, if they are loaded already.
    n_jobs : int, optional
        Threads.
    noise : FittedNoise, optional
        The recipe's noise, if it is fitted already; no parameter of the space may change it.
    log, on_trial : callable
        Called with messages, and with each finished trial.
    """
    try:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise ImportError("a search needs optuna: pip install 'extremax[tune]'.") from error
    folder, n_trials = Path(out), n_trials or recipe.search.n_trials
    space = dict(recipe.search.space) or default_space(recipe.model)
    with open_folder(folder, "search.json", _description(recipe, space), what="search"):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage: Any = None
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'study.db'}")
            study = optuna.create_study(
                study_name="search",
                storage=storage,
                load_if_exists=True,
                direction="maximize",
                pruner=_pruner(optuna, recipe),
            )
            n_done = _repeat_cut_off(study)
            # The count is part of the seed, so that a resumed sampler does not repeat its draws.
            study.sampler = optuna.samplers.TPESampler(
                seed=recipe.search.seed + n_done, n_startup_trials=max(4, n_trials // 4)
            )
            if n_done < n_trials:
                rows = rows or load_rows(recipe, n_jobs=n_jobs, log=log)
                parameters = {**resolve(recipe)["model"], "patience": None}
                warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
                for _ in range(n_trials - n_done):
                    trial = _ask(study, optuna, space)
                    if trial is None:
                        log("every combination of the space has been tried")
                        break
                    _try(study, optuna, trial, recipe, rows, n_jobs, noise)
                    on_trial(_trials(study)[-1])
            trials = _trials(study)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the words of SQLite, without the statement
                cause = cause.__cause__
            raise OSError(
                f"{folder / 'study.db'} cannot be read or written ({cause}); the same command goes on from"
                " the trials that are in it."
            ) from error
        finally:
            if storage is not None:
                storage.remove_session()
                storage.engine.dispose()
        write_json(folder / "trials.json", [vars(trial) for trial in trials])
        chosen = best_trial(trials)
        best = recipe.with_model(**chosen.parameters)
        comment = f"Best of {len(trials)} trials by validation {recipe.search.score}: {chosen.score:.4f}"
        write_text(folder / "best.toml", to_toml(best, comment=f"{comment} after {chosen.n_epochs} epochs."))
        return SearchResult(best, trials, folder / "best.toml")


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the best score, whether it was pruned or not."""
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        raise ValueError("no trial of the search came to a score; widen its space or look at its errors.")
    return max(scored, key=lambda trial: trial.score or 0.0)


def _ask(study: Any, optuna: Any, space: Mapping[str, Any]) -> Any:
    """Return the next trial, none twice; None if all combinations of a space of lists were tried."""
    known = [trial.parameters for trial in _trials(study)]
    distributions = {name: _distribution(optuna, values) for name, values in space.items()}
    trial = study.ask(distributions)
    if trial.params not in known or not all(isinstance(values, list) for values in space.values()):
        return trial
    study.tell(trial, state=optuna.trial.TrialState.FAIL)  # without a result it does not count
    combinations = (dict(zip(space, values, strict=True)) for values in itertools.product(*space.values()))
    left = [values for values in combinations if values not in known]
    if not left:
        return None
    # The combination with most values of the one that the sampler wanted again.
    wanted = trial.params
    study.enqueue_trial(max(left, key=lambda values: sum(values[name] == wanted[name] for name in values)))
    return study.ask(distributions)


def _distribution(optuna: Any, values: Any) -> Any:
    if isinstance(values, list):
        return optuna.distributions.CategoricalDistribution(values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return optuna.distributions.IntDistribution(values.low, values.high, log=values.log)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _try(
    study: Any,
    optuna: Any,
    trial: Any,
    recipe: Recipe,
    rows: Rows,
    n_jobs: int | None,
    noise: FittedNoise | None,
) -> None:
    parameters = {**resolve(recipe.with_model(**trial.params))["model"], "patience": None}
    parameters["n_epochs"] = recipe.search.n_epochs or parameters["n_epochs"]
    if noise is not None:
        parameters["noise"] = noise.noise
    evaluation = recipe.evaluation
    evaluate = Evaluator({"valid": rows.sample("valid", evaluation.valid_rows, evaluation.seed)}, n_jobs)
    clf = make_classifier(parameters, n_jobs=n_jobs)
    schedule = Schedule(evaluation.first_samples, min(evaluation.points_per_decade, _POINTS_PER_DECADE))
    result: dict[str, Any] = {"score": None, "n_epochs": 0, "state": "complete"}
    due, started = float(evaluation.first_samples), time.perf_counter()

    def watch(record: Record) -> bool:
        nonlocal due
        epoch, samples = record["epoch"], record_samples(record, len(rows.y["train"]))
        if samples < due and epoch != clf.choices_["n_epochs"]:
            return False
        due = schedule.next_after(samples)
        score = evaluate(clf.model_)[f"valid_{recipe.search.score}"]
        trial.report(score, epoch)
        if result["score"] is None or score > result["score"]:
            result.update(score=score, n_epochs=epoch)
        if trial.should_prune():
            result["state"] = "pruned"
        if result["state"] == "pruned" or epoch == clf.choices_["n_epochs"]:
            raise TrainingOver
        return False

    try:
        complete(clf, lambda: clf.fit(rows.X["train"], rows.y["train"], callbacks=[watch]))
    except ValueError:
        result["state"] = "diverged"
    trial.set_user_attr(_RESULT, {**result, "seconds": time.perf_counter() - started})
    states = optuna.trial.TrialState
    if result["state"] == "complete":  # the best epoch counts, as in a run where validation chooses it
        study.tell(trial, result["score"])
    else:
        study.tell(trial, state=states.PRUNED if result["state"] == "pruned" else states.FAIL)


def _pruner(optuna: Any, recipe: Recipe) -> Any:
    if recipe.search.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner()
    if recipe.search.pruner == "median":
        # Small learning rates begin slowly and may end best: none is stopped in the first third.
        n_epochs = recipe.search.n_epochs or recipe.model.get("n_epochs") or 0
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=max(2, n_epochs // 3))
    return optuna.pruners.NopPruner()


def _repeat_cut_off(study: Any) -> int:
    """Queue again the trials that a killed process left; return the number of finished ones."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if trial.params and _RESULT not in trial.user_attrs:
            study.enqueue_trial(trial.params)  # before it is ended: a kill in between loses none
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return len(_trials(study))


def _trials(study: Any) -> list[Trial]:
    """Return the trials that came to an end by themselves."""
    finished = [trial for trial in study.get_trials(deepcopy=False) if _RESULT in trial.user_attrs]
    return [Trial(trial.number, dict(trial.params), **trial.user_attrs[_RESULT]) for trial in finished]


def _description(recipe: Recipe, space: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search depends on, in types that JSON has."""
    plain = resolve(recipe)
    search = plain.pop("search")
    model = {**plain["model"], "n_epochs": search["n_epochs"] or plain["model"]["n_epochs"]}
    depends = {name: search[name] for name in ("score", "pruner", "seed")}
    lists = {name: values if isinstance(values, list) else str(values) for name, values in space.items()}
    content = {**plain, "name": "", "model": model, "trials": depends, "space": lists}
    found: dict[str, Any] = json.loads(json.dumps(content))
    return found
