"""Search for the best parameters of a recipe at random, on validation rows alone.

A trial is a run without test rows, in the folder ``trials`` of the search; combinations are drawn without
repetition and do not depend on earlier scores, so that all methods of a comparison are searched alike. The
same call resumes a search: finished trials are kept, and the one that was cut off is resumed. ``trials.json``
holds the scores, and ``best.toml`` the recipe with the best parameters.

The default space is the paper's grid (section 5: rates of 0.0003 to 0.03), with the higher rates added that
are best on rows of unit length.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from extremax.experiments.curve import best_point, read_curve
from extremax.experiments.methods import METHODS, method_of
from extremax.experiments.recipe import Range, Recipe, model_defaults, resolve, to_toml
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.runner import FittedNoise, open_folder, run
from extremax.params import PARAMETERS
from extremax.runtime.atomic_files import write_json, write_text

LEARNING_RATES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SOFTMAX_RATES = (*LEARNING_RATES, 3.0, 10.0)  # as in the paper: gradients without noise allow longer steps
SCORE_PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03)
PRIOR_VARIANCES = (
    0.1,
    1.0,
    10.0,
    100.0,
    1000.0,
)  # the paper does not print the range; its Table 1 has 0.1 to 10
_NEVER = 1 << 60  # training rows
_POINTS_PER_DECADE = 3  # at most: evaluating validation rows may cost more than the epochs before it


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes
    ----------
    number
        Number in the search.
    parameters
        Parameters that were tried.
    score
        Best score on validation rows; None if training diverged.
    n_epochs
        Epoch of the best score.
    seconds
        Time of training.
    """

    number: int
    parameters: dict[str, Any]
    score: float | None
    n_epochs: float
    seconds: float

    def describe(self) -> str:
        """Return one line about the trial."""
        score = "diverged" if self.score is None else f"{self.score:.4f}"
        words = "  ".join(f"{name} {value}" for name, value in self.parameters.items())
        return f"trial {self.number:<4} {score:>9} {self.seconds:7.1f} s  {words}"


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: the best recipe, its file, and all trials, the best first."""

    best: Recipe
    trials: list[Trial]
    path: Path


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


def draw_parameters(space: Mapping[str, Any], n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Draw combinations from lists and ranges; of lists alone none twice, and no more than there are.

    Examples
    --------
    >>> [*draw_parameters({"learning_rate": [0.1, 0.3]}, 5, seed=0)]
    [{'learning_rate': 0.1}, {'learning_rate': 0.3}]
    """
    rng = np.random.default_rng(seed)
    if all(isinstance(values, list) for values in space.values()):
        every = [*itertools.product(*space.values())]
        for i in rng.permutation(len(every))[:n]:
            yield dict(zip(space, every[i], strict=True))
        return
    for _ in range(n):
        yield {name: _draw(values, rng) for name, values in space.items()}


def _draw(values: list[Any] | Range, rng: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[rng.integers(len(values))]
    if values.log:
        drawn = math.exp(rng.uniform(math.log(values.low), math.log(values.high)))
    else:
        drawn = float(rng.uniform(values.low, values.high))
    return round(drawn) if isinstance(values.low, int) and isinstance(values.high, int) else drawn


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
        Called with messages, and with each trial that was not finished before.
    """
    folder, search = Path(out), recipe.search
    space = dict(search.space) or default_space(recipe.model)
    sparse_points = min(recipe.evaluation.points_per_decade, _POINTS_PER_DECADE)
    evaluation = replace(recipe.evaluation, test_rows=0, points_per_decade=sparse_points)
    if evaluation.until_plateau:  # a look at many classes costs as much as an epoch: one, at the end
        evaluation = replace(evaluation, until_plateau=False, first_samples=_NEVER)
    tried = replace(recipe, evaluation=evaluation)
    if search.n_epochs is not None:
        tried = tried.with_model(n_epochs=search.n_epochs)
    content = json.loads(json.dumps({**resolve(tried), "seed": search.seed, "space": str(space)}))
    trials: list[Trial] = []
    with open_folder(folder, "search.json", content, what="search"):
        rows = rows or load_rows(recipe, n_jobs=n_jobs, log=log)
        drawn = draw_parameters(space, n_trials or search.n_trials, search.seed)
        for number, parameters in enumerate(drawn):
            place = folder / "trials" / f"{number:03d}"
            is_new = not (place / "summary.json").exists()
            try:
                run(
                    tried.with_model(**parameters),
                    place,
                    rows=rows,
                    n_jobs=n_jobs,
                    noise=noise,
                    keep_model=False,
                )
            except ValueError as error:  # with these parameters: others may do
                log(f"trial {number}: {error}")
            trials.append(_read_trial(number, parameters, place, search.score))
            if is_new:
                on_trial(trials[-1])
        trials.sort(key=lambda trial: -math.inf if trial.score is None else trial.score, reverse=True)
        if not trials or trials[0].score is None:
            raise ValueError("no trial of the search came to a score; widen its space or look at its errors.")
        write_json(folder / "trials.json", [vars(trial) for trial in trials])
        best = recipe.with_model(**trials[0].parameters)
        words = f"Best of {len(trials)} trials by validation {search.score}: {trials[0].score:.4f}"
        write_text(
            folder / "best.toml", to_toml(best, comment=f"{words} after {trials[0].n_epochs:g} epochs.")
        )
    return SearchResult(best, trials, folder / "best.toml")


def _read_trial(number: int, parameters: dict[str, Any], folder: Path, figure: str) -> Trial:
    """Return a trial from the folder of its run."""
    if not (folder / "summary.json").exists():
        return Trial(number, parameters, None, 0.0, 0.0)
    points = read_curve(folder / "curve.jsonl")
    best = best_point(points, figure)
    return Trial(number, parameters, best[f"valid_{figure}"], best["epoch"], points[-1]["seconds"])
