"""Search for the best parameters of a recipe by Optuna, on validation rows alone.

The folder of a search holds ``study.db`` (SQLite), ``trials.json`` and ``best.toml``, the recipe with the
best parameters. A search that was interrupted or killed is resumed: finished trials are kept, and one that
was cut off is repeated. While a search runs, it locks its folder.

The default space is the paper's grid, with higher learning rates added: here rows are scaled to mean square
length one, the paper's were longer, and a step of Adagrad is as long as the learning rate for any features.
With ``strategy = "grid"`` the trials follow `experiments.grid`, and ``widen`` adds values where they are
needed.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import scipy.sparse as sp

from extremax.classifier import ExtremeClassifier
from extremax.experiments.curve import Evaluator, Schedule
from extremax.experiments.grid import Grid, Values
from extremax.experiments.methods import METHODS, method_of
from extremax.experiments.recipe import MODEL_DEFAULTS, Recipe, comparable, resolve, to_toml
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.runner import complete, record_samples
from extremax.experiments.shared_noise import FittedNoise, TrainingOver, warm_up
from extremax.params import BATCH_OBJECTIVES, PENALIZED
from extremax.runtime.atomic_files import is_stage, sweep_stages, write_json, write_text
from extremax.runtime.locks import LOCK_NAME, hold_folder
from extremax.solvers.loop import Record

LEARNING_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SOFTMAX_RATES = (*LEARNING_RATES, 3.0, 10.0)  # as in the paper: gradients without noise allow longer steps
SCORE_PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03)
PRIOR_VARIANCES = (0.01, 0.1, 1.0, 10.0, 100.0)
_STUDY = "search"
_SEARCH = "search.json"
_POINTS_PER_DECADE = 3  # at most: a look at validation rows may cost more than the epochs before it
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


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: the best recipe, all trials, and the file of the recipe."""

    best: Recipe
    trials: list[Trial]
    path: Path
    widened: dict[str, list[Any]] = field(default_factory=dict)  # values beyond the given lists
    at_end: list[str] = field(default_factory=list)  # parameters whose best value is the last allowed one

    @property
    def best_trial(self) -> Trial:
        return best_trial(self.trials)


def default_space(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paper's grid for a method: learning rate, and lambda or the prior's variance.

    Examples
    --------
    >>> sorted(default_space({"objective": "negative_sampling", "noise": "uniform"}))
    ['learning_rate', 'penalized_scores', 'score_penalty']
    >>> default_space({"objective": "softmax"})["learning_rate"][-1]
    10.0
    """
    parameters = {**MODEL_DEFAULTS, **model}
    rates = SOFTMAX_RATES if parameters["objective"] == "softmax" else LEARNING_RATES
    if parameters["objective"] in ("auto", *BATCH_OBJECTIVES) and parameters["objective"] != "softmax":
        return {"learning_rate": list(rates)}
    method = METHODS.get(method_of(parameters))
    values: dict[str, Any] = {
        "score_penalty": list(SCORE_PENALTIES),
        "penalized_scores": list(PENALIZED),
        "prior_variance": list(PRIOR_VARIANCES),
    }
    searched = ("score_penalty",) if method is None else method.searched
    return {"learning_rate": list(rates), **{name: values[name] for name in searched}}


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
        Trials in total, with those of earlier calls; the recipe's unless given.
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
    except ImportError as error:
        raise ImportError("a search needs optuna: pip install 'extremax[tune]'.") from error
    folder = Path(out)
    space = dict(recipe.search.space) or default_space(recipe.model)
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder):
        _check_folder(folder, recipe, space)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = optuna.storages.RDBStorage(f"sqlite:///{folder / 'study.db'}")
        try:
            study = optuna.create_study(
                study_name=_STUDY,
                storage=storage,
                load_if_exists=True,
                direction="maximize",
                pruner=_pruner(recipe),
            )
            grid = Grid.of(space, recipe.search.widen) if recipe.search.strategy == "grid" else None
            wanted = n_trials or recipe.search.n_trials
            axes = space if grid is None else grid.axes
            task = _Task(recipe, axes, grid, folder, wanted, n_jobs, noise, log, on_trial)
            trials = _search(study, optuna, task, rows)
        finally:
            storage.remove_session()
            storage.engine.dispose()
        return _write_best(folder, recipe, trials, grid)


@dataclass(frozen=True)
class _Task:
    """What `tune` was asked for."""

    recipe: Recipe
    space: Mapping[str, Any]
    grid: Grid | None
    folder: Path
    n_trials: int
    n_jobs: int | None
    noise: FittedNoise | None
    log: Log
    on_trial: Callable[[Trial], None]


def _search(study: Any, optuna: Any, task: _Task, rows: Rows | None) -> list[Trial]:
    """Try parameters until there are as many trials as wanted, and return all of them."""
    recipe, n_jobs = task.recipe, task.n_jobs
    n_done = _finish_cut_off(study, optuna)
    # a sampler starts again in every process; with the count in its seed it does not repeat its draws
    study.sampler = optuna.samplers.TPESampler(
        seed=recipe.search.seed + n_done, n_startup_trials=max(4, task.n_trials // 4)
    )
    if n_done < task.n_trials:
        rows = rows or load_rows(recipe, n_jobs=n_jobs, log=task.log)
        parameters = {**resolve(recipe)["model"], "patience": None}
        warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
        for _ in range(task.n_trials - n_done):
            trial = _ask(study, optuna, task.space) if task.grid is None else _ask_grid(study, task.grid)
            if trial is None:
                task.log("every combination of the space has been tried")
                break
            _try(study, optuna, task, trial, rows)
            trials = _trials(study)
            task.on_trial(trials[-1])
            write_json(task.folder / "trials.json", [vars(trial) for trial in trials])
    return _trials(study)


def _write_best(folder: Path, recipe: Recipe, trials: list[Trial], grid: Grid | None) -> SearchResult:
    chosen = best_trial(trials)
    best = recipe.with_model(**chosen.parameters)
    comment = f"Best of {len(trials)} trials by validation {recipe.search.score}: {chosen.score:.4f} after"
    comment += f" {chosen.n_epochs} epochs."
    path = folder / "best.toml"
    write_text(path, to_toml(best, comment=comment))
    if grid is None:
        return SearchResult(best, trials, path)
    widened = grid.widened([trial.parameters for trial in trials])
    return SearchResult(best, trials, path, widened, grid.at_end(chosen.parameters))


def best_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the best score, whether it was pruned or not."""
    scored = [trial for trial in trials if trial.score is not None]
    if not scored:
        raise ValueError("no trial of the search came to a score; widen its space or look at its errors.")
    return max(scored, key=lambda trial: trial.score or 0.0)


def _ask(study: Any, optuna: Any, space: Mapping[str, Any]) -> Any:
    """Return the next trial, none twice; None if all combinations of a space of lists were tried."""
    known = [trial.parameters for trial in _trials(study)]
    trial = study.ask()
    chosen = {name: _suggest(trial, name, values) for name, values in space.items()}
    if chosen not in known or any(isinstance(values, Mapping) for values in space.values()):
        return trial
    # without user attributes, so that it does not count as a trial
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    left = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    left = [values for values in left if values not in known]
    if not left:
        return None
    # the combination with most values of the one that the sampler wanted again
    study.enqueue_trial(max(left, key=lambda values: sum(values[name] == chosen[name] for name in values)))
    return study.ask()


def _ask_grid(study: Any, grid: Grid) -> Any:
    """Return the next trial of a grid; None if all combinations were tried."""
    tried: list[tuple[Values, float]] = [
        (trial.parameters, -math.inf if trial.score is None else trial.score) for trial in _trials(study)
    ]
    values = grid.next_trial(tried)
    if values is None:
        return None
    study.enqueue_trial(values, skip_if_exists=True)  # the one that a killed process left is there already
    return study.ask()


def _try(study: Any, optuna: Any, task: _Task, trial: Any, rows: Rows) -> None:
    recipe, n_jobs = task.recipe, task.n_jobs
    chosen = {name: _suggest(trial, name, values) for name, values in task.space.items()}
    parameters = {**resolve(recipe.with_model(**chosen))["model"], "patience": None}
    if recipe.search.n_epochs is not None:
        parameters["n_epochs"] = recipe.search.n_epochs
    limit = recipe.evaluation.valid_rows
    evaluate = Evaluator({"valid": rows.sample("valid", limit, recipe.evaluation.seed)}, n_jobs)
    if task.noise is not None:
        parameters["noise"] = task.noise.noise
    clf = ExtremeClassifier(**parameters, n_jobs=n_jobs)
    points_per_decade = min(recipe.evaluation.points_per_decade, _POINTS_PER_DECADE)
    schedule, n_rows = Schedule(recipe.evaluation.first_samples, points_per_decade), len(rows.y["train"])
    best: dict[str, Any] = {"score": None, "epoch": 0, "pruned": False}
    due = float(recipe.evaluation.first_samples)
    started = time.perf_counter()

    def watch(record: Record) -> bool:
        nonlocal due
        epoch, samples = record["epoch"], record_samples(record, n_rows)
        if samples < due and epoch != clf.choices_["n_epochs"]:
            return False
        due = schedule.next_after(samples)
        score = evaluate(clf.model_)[f"valid_{recipe.search.score}"]
        trial.report(score, epoch)
        if best["score"] is None or score > best["score"]:
            best.update(score=score, epoch=epoch)
        best["pruned"] = bool(trial.should_prune())
        if best["pruned"] or epoch == clf.choices_["n_epochs"]:
            raise TrainingOver  # no index: the model of a trial answers no queries
        return False

    failure = ""
    try:
        complete(clf, lambda: clf.fit(rows.X["train"], rows.y["train"], callbacks=[watch]))
    except ValueError as error:  # diverged
        failure = str(error)
    result = {**best, "seconds": time.perf_counter() - started, "failure": failure}
    trial.set_user_attr(_RESULT, result)  # in one write: a process killed before or after it can be resumed
    _tell(study, optuna, trial.number, result)


def _tell(study: Any, optuna: Any, number: int, result: Mapping[str, Any]) -> None:
    """End a trial that has its result."""
    states = optuna.trial.TrialState
    if result["failure"]:
        study.tell(number, state=states.FAIL)
    elif result["pruned"]:
        study.tell(number, state=states.PRUNED)
    else:  # the best epoch counts, as in a run where validation chooses it
        study.tell(number, result["score"], state=states.COMPLETE)


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        return trial.suggest_categorical(name, list(values))
    low, high, log = values["low"], values["high"], values.get("log", True)
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=log)
    return trial.suggest_float(name, float(low), float(high), log=log)


def _pruner(recipe: Recipe) -> Any:
    import optuna

    if recipe.search.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner()
    if recipe.search.pruner == "median":
        # small learning rates begin slowly and may end best: none is stopped before a third of its epochs
        n_epochs = recipe.search.n_epochs or recipe.model.get("n_epochs") or 0
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=max(2, n_epochs // 3))
    return optuna.pruners.NopPruner()


def _finish_cut_off(study: Any, optuna: Any) -> int:
    """End or queue again the trials that a killed process left; return the number of finished ones."""
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if _RESULT in trial.user_attrs:
            _tell(study, optuna, trial.number, trial.user_attrs[_RESULT])
            continue
        chosen = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        if chosen:  # first queued, then ended: a kill between the two repeats a trial, and loses none
            study.enqueue_trial(chosen)
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return len(_trials(study))


def _trials(study: Any) -> list[Trial]:
    """Return the trials that came to an end by themselves."""
    out = []
    for trial in study.get_trials(deepcopy=False):
        marks = trial.user_attrs.get(_RESULT, trial.user_attrs)  # before 0.2, an attribute for each figure
        if trial.state.is_finished() and {"score", "epoch", "seconds"} <= marks.keys():
            state = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "diverged"}[trial.state.name]
            out.append(
                Trial(
                    trial.number, dict(trial.params), marks["score"], state, marks["epoch"], marks["seconds"]
                )
            )
    return out


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder holds something that is not a search; remains of a killed one are no content."""
    if not folder.exists() or (folder / _SEARCH).exists():
        return
    if any(path.name != LOCK_NAME and not is_stage(path) for path in folder.iterdir()):
        raise FileExistsError(
            f"{folder} exists and is not a search, so it is left alone. Choose another folder."
        )


def _check_folder(folder: Path, recipe: Recipe, space: Mapping[str, Any]) -> None:
    """Raise if the folder holds a search of another recipe or space; else make it that of this one."""
    sweep_stages(folder)
    path = folder / _SEARCH
    plain = _as_searched(resolve(replace(recipe, name="", search=replace(recipe.search, n_trials=1))))
    content = json.loads(json.dumps({"recipe": plain, "space": space}))
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        if {**there, "recipe": _as_searched(there["recipe"])} != content:
            raise ValueError(
                f"{folder} holds a search with another recipe or space. Choose another folder, or delete it."
            )
        return
    write_json(path, content)


def _as_searched(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search depends on: not the epochs of the model, where trials have their own."""
    plain = comparable(resolved)
    if plain["search"].get("n_epochs") is not None:
        plain = {**plain, "model": {**plain["model"], "n_epochs": plain["search"]["n_epochs"]}}
    return plain
