"""The paper's comparison on one data set: the methods of Figure 1, and softmax of the appendix.

Each method is tuned on validation rows over the paper's grid and beyond its ends, with the same number of
trials, or runs with the recipe of its name (``recipes/DATA/METHOD.toml``) as it is. It then trains with
several seeds. The result is a folder with the searches, a run per method and seed, the figure in three
formats, ``outcomes.json`` and ``report.md``.

The tree is the paper's (``tree_fit="paper"``). Nothing in its fit is random, so that it is fitted once and
shared by trials, seeds, and the two methods that use it; its time counts in each of their curves.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from extremax.experiments.figures import plot
from extremax.experiments.methods import FIGURE_1, METHODS
from extremax.experiments.paper.claims import (
    Outcome,
    Verdict,
    check_claims,
    finished_runs,
    read_outcomes,
)
from extremax.experiments.paper.plan import describe_needs
from extremax.experiments.paper.report import write_report
from extremax.experiments.recipe import (
    DataConfig,
    FeaturesConfig,
    Recipe,
    find_recipe,
    load_recipe,
    resolve,
    shipped_recipes,
)
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.runner import FittedNoise, OnPoint, fit_shared_noise, run
from extremax.experiments.tuning import tune
from extremax.runtime.atomic_files import write_json, write_text

# Multiply-adds of an epoch of full softmax (scores and both gradients) above which it is left out by default:
# some minutes on two cores.
SOFTMAX_LIMIT = 2e12
ALL_METHODS = (*FIGURE_1, "softmax")
_TREE_PARAMETERS = (
    "tree_fit",
    "tree_components",
    "tree_regularization",
    "whiten_components",
    "scale_features",
)
_LARGE_SHARE = 0.2  # of the time of a run, from which the fit of the tree is worth a warning


@dataclass(frozen=True)
class Reproduction:
    """Result of `reproduce`."""

    folder: Path
    outcomes: dict[str, Outcome]
    verdicts: list[Verdict]
    report: Path
    figures: list[Path]


def reproduce(  # noqa: PLR0913 (the parameters are the API)
    data: str,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str] = (),
    recipes: Mapping[str, Recipe] | None = None,
    n_trials: int = 0,
    n_finalists: int = 1,
    n_seeds: int = 1,
    max_seconds: float | None = None,
    n_jobs: int | None = None,
    command: str = "",
    log: Log = lambda text: None,
    on_point: OnPoint = lambda point: None,
) -> Reproduction:
    """Run the paper's comparison on a data set, or resume it.

    Parameters
    ----------
    data : str
        A known data set (see `extremax.experiments.catalog`).
    out : path
        Folder for everything.
    methods : sequence of str, optional
        Some of ``adversarial, uniform, frequency, nce_from_zero, nce, augment_reduce, one_vs_each,
        softmax``; by default all, softmax only where an epoch of it takes minutes at most.
    recipes : mapping of str to Recipe, optional
        Recipe of each method, with a grid in ``[search]``, instead of that of its name.
    n_trials : int
        Trials of each method on validation rows, over the recipe's grid or that of `tune`; 0 takes the
        recipes as they are. A trial has the epochs of ``[search]`` in the recipe.
    n_finalists : int
        Best trials that are run to the end, of which validation rows choose one.
    n_seeds : int
        Runs of each method with its best parameters, with seeds 0, 1, ...
    max_seconds : float, optional
        Processor time of training per run, instead of the recipe's epochs.
    n_jobs : int, optional
        Threads; the paper's comparison wants one.
    command : str
        Command line that the report names.
    log, on_point : callable
        Called with messages, and with each point of a curve.
    """
    unknown = [name for name in methods if name not in ALL_METHODS]
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is not a method of the comparison; there are {', '.join(ALL_METHODS)}."
        )
    if recipes is None:
        recipes = {name: recipe_for(data, name) for name in methods or ALL_METHODS}
    effort: dict[str, Any] = {"n_trials": n_trials, "n_finalists": n_finalists}
    compared = {name: recipe for name, recipe in recipes.items() if methods or name != "softmax"}
    for line in describe_needs(compared, **effort, n_seeds=n_seeds, max_seconds=max_seconds)[0]:
        log(line)
    rows = load_rows(next(iter(recipes.values())), n_jobs=n_jobs, log=log)
    if not methods and "softmax" in recipes and softmax_work(rows) > SOFTMAX_LIMIT:
        log("full softmax is left out: an epoch would take too long on this data set")
        recipes = compared
    task = _Task(Path(out), rows, max_seconds, n_jobs, log, on_point)
    tuned = {name: task.choose(name, recipe, **effort) for name, recipe in recipes.items()}
    for seed in range(n_seeds):  # a comparison that is cut off has fewer seeds, not fewer methods
        for name, recipe in tuned.items():
            log(f"running {METHODS[name].label}, seed {seed}")
            task.run(recipe.with_model(random_state=seed), f"runs/{name}/seed-{seed}")
    return report(task.folder, command=command)


@dataclass(frozen=True)
class _Task:
    """What all searches and runs of a comparison share: the rows, the trees, and how they are run."""

    folder: Path
    rows: Rows
    max_seconds: float | None
    n_jobs: int | None
    log: Log
    on_point: OnPoint
    trees: dict[tuple[Any, ...], FittedNoise] = field(default_factory=dict)

    def choose(self, name: str, recipe: Recipe, n_trials: int, n_finalists: int) -> Recipe:
        """Return the recipe of a method with the parameters and the length of its runs."""
        found = [recipe]
        if n_trials:
            self.log(f"searching parameters of {METHODS[name].label}")
            found = self.search(name, recipe, n_trials)[:n_finalists]
        if self.max_seconds is not None:  # the clock ends training, not the number of epochs
            evaluation = replace(recipe.evaluation, max_seconds=self.max_seconds)
            found = [replace(one, evaluation=evaluation).with_model(n_epochs=10**6) for one in found]
        if len(found) == 1:
            return found[0]
        scores = []
        for place, finalist in enumerate(found):
            self.log(f"running {METHODS[name].label}, finalist {place + 1} of {len(found)}")
            summary = self.run(finalist.with_model(random_state=0), f"finals/{name}/{place}")
            scores.append(summary["best_accuracy"]["valid_accuracy"])
        best, kept = scores.index(max(scores)), self.folder / "runs" / name / "seed-0"
        if not kept.exists():
            shutil.copytree(self.folder / "finals" / name / str(best), kept)
        return found[best]

    def search(self, name: str, recipe: Recipe, n_trials: int) -> list[Recipe]:
        """Search the recipe's grid, or that of `tune`, for accuracy; return recipes, the best first."""
        folder = self.folder / "search" / name
        trials = tune(
            replace(recipe, search=replace(recipe.search, score="accuracy")),
            folder,
            n_trials=n_trials,
            rows=self.rows,
            n_jobs=self.n_jobs,
            noise=self.tree_of(recipe),
            log=self.log,
            on_trial=lambda trial: self.log(trial.describe()),
        ).trials
        n_epochs = recipe.search.n_epochs or resolve(recipe)["model"]["n_epochs"]
        figures = {"n_trials": len(trials), "n_epochs": n_epochs, "score": trials[0].score}
        write_json(folder / "result.json", figures)
        return [recipe.with_model(**trial.parameters) for trial in trials]

    def run(self, recipe: Recipe, place: str) -> dict[str, Any]:
        options: dict[str, Any] = {"n_jobs": self.n_jobs, "log": self.log, "on_point": self.on_point}
        options |= {"rows": self.rows, "noise": self.tree_of(recipe), "keep_model": False}
        return run(recipe, self.folder / place, **options)

    def tree_of(self, recipe: Recipe) -> FittedNoise | None:
        """Return the tree that methods and trials share; None where there is none."""
        model = resolve(recipe)["model"]
        if model.get("noise") != "tree":
            return None
        shape = tuple(model[name] for name in _TREE_PARAMETERS)
        if model["tree_fit"] != "paper":  # nothing in the paper's fit is random
            shape += (model["random_state"],)
        if shape not in self.trees:
            self.trees[shape] = fit_shared_noise(model, self.rows, n_jobs=self.n_jobs)
            seconds, budget = self.trees[shape].cpu_seconds, self.max_seconds
            if budget is not None and seconds > _LARGE_SHARE * budget:
                self.log(
                    f"warning: the tree takes {seconds:.1f} of the {budget:g} seconds of each run that uses"
                    " it; give more with --seconds"
                )
        return self.trees[shape]


def recipe_for(data: str, method: str) -> Recipe:
    """Return the recipe of a method for a data set; where there is none, one with the method's parameters."""
    source = "nce" if method == "nce_from_zero" else method  # they differ by their start alone
    if f"{data}/{source}" in shipped_recipes():
        recipe = load_recipe(find_recipe(f"{data}/{source}"))
        return replace(recipe, method=method).with_model(solver=METHODS[method].model["solver"])
    features = FeaturesConfig(kind="tfidf") if data.startswith("eurlex57k") else FeaturesConfig()
    return Recipe(
        name=method,
        method=method,
        data=DataConfig(name=data),
        features=features,
        model=dict(METHODS[method].model),
    )


def softmax_work(rows: Rows) -> float:
    """Return the multiply-adds of an epoch of full softmax."""
    n_rows, n_features = rows.X["train"].shape
    return 3.0 * float(n_rows) * float(n_features) * rows.n_classes


def report(folder: Path, *, methods: Sequence[str] = ALL_METHODS, command: str = "") -> Reproduction:
    """Write figure, tables and verdicts from the finished runs in a folder."""
    outcomes = read_outcomes(folder, methods)
    if not outcomes:
        raise FileNotFoundError(f"{folder} has no finished run; call reproduce first.")
    verdicts = check_claims(outcomes)
    runs = {name: finished_runs(folder, name) for name in outcomes}
    every = [path for paths in runs.values() for path in paths]
    figures = plot(every, folder / "figure.png", clock="cpu_seconds", formats=("png", "svg", "pdf"))
    models = {
        name: json.loads((paths[0] / "config.json").read_text())["model"] for name, paths in runs.items()
    }
    target = folder / "report.md"
    write_text(target, write_report(folder, outcomes, verdicts, models, command))
    plain = {name: outcome.as_dict() for name, outcome in outcomes.items()}
    for name, figures_of in plain.items():
        searched = ("learning_rate", *METHODS[name].searched)
        figures_of["parameters"] = {parameter: models[name].get(parameter) for parameter in searched}
    write_json(folder / "outcomes.json", {"outcomes": plain, "verdicts": [vars(one) for one in verdicts]})
    return Reproduction(folder, outcomes, verdicts, target, figures)
