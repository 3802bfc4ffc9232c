"""The paper's comparison on one data set: the six methods of Figure 1, and softmax of the appendix.

Each method runs with the recipe of its name (``recipes/DATA/METHOD.toml``), or with what a search finds. The
result is a folder with a run per method, the figure in three formats, ``outcomes.json`` and ``report.md``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extremax.experiments.curve import read_curve
from extremax.experiments.figures import describe_data, plot, read_run
from extremax.experiments.machine import describe_machine
from extremax.experiments.methods import BASELINES, FIGURE_1, METHODS
from extremax.experiments.recipe import DataConfig, FeaturesConfig, Recipe, load_recipe
from extremax.experiments.recipes import find_recipe, shipped_recipes
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.runner import OnPoint, run
from extremax.experiments.tuning import tune
from extremax.paper.claims import PAPER, Outcome, Verdict, check_claims, outcome_of, time_to_accuracy
from extremax.paper.plan import make_plan
from extremax.runtime.atomic_files import write_json, write_text

# Multiply-adds of an epoch of full softmax (scores and both gradients) above which it is left out by default:
# some minutes on two cores.
SOFTMAX_LIMIT = 2e12
ALL_METHODS = (*FIGURE_1, "softmax")


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
    max_seconds: float | None = None,
    n_trials: int = 0,
    clock: str = "seconds",
    n_jobs: int | None = None,
    command: str = "",
    log: Log = lambda text: None,
    on_point: OnPoint = lambda point: None,
) -> Reproduction:
    """Run the paper's comparison on a data set, or resume it.

    Parameters
    ----------
    data : str
        A known data set (see `extremax.data.catalog`).
    out : path
        Folder for everything.
    methods : sequence of str, optional
        Some of ``adversarial, uniform, frequency, nce, augment_reduce, one_vs_each, softmax``; by default
        all, softmax only where an epoch of it takes minutes at most.
    max_seconds : float, optional
        Training time per method, instead of the recipe's epochs.
    n_trials : int
        Trials of a parameter search for each method before its run; 0 takes the recipes as they are.
    clock : {"seconds", "cpu_seconds"}
        Elapsed time, or processor time, which runs evenly on a machine that others use as well.
    n_jobs : int, optional
        Threads.
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
    folder = Path(out)
    recipes = {name: recipe_for(data, name) for name in methods or ALL_METHODS}
    compared = {name: recipe for name, recipe in recipes.items() if methods or name != "softmax"}
    plan = make_plan(data, compared, n_jobs=n_jobs)
    for line in () if plan is None else plan.describe():
        log(line)
    rows = load_rows(next(iter(recipes.values())), n_jobs=n_jobs, log=log)
    if not methods and softmax_work(rows) > SOFTMAX_LIMIT:
        log("full softmax is left out: an epoch would take too long on this data set")
        del recipes["softmax"]
    for name, recipe in recipes.items():
        if n_trials:
            log(f"searching parameters of {METHODS[name].label}")
            recipe = tune(
                recipe, folder / "search" / name, n_trials=n_trials, rows=rows, n_jobs=n_jobs, log=log
            ).best
        if max_seconds is not None:
            # the clock ends training, not the number of epochs
            recipe = replace(
                recipe, evaluation=replace(recipe.evaluation, max_seconds=max_seconds)
            ).with_model(n_epochs=10**6)
        log(f"running {METHODS[name].label}")
        run(recipe, folder / "runs" / name, rows=rows, n_jobs=n_jobs, clock=clock, log=log, on_point=on_point)
    return report(folder, methods=list(recipes), clock=clock, command=command)


def recipe_for(data: str, method: str) -> Recipe:
    """Return the recipe of a method for a data set; where there is none, one with the method's parameters."""
    if f"{data}/{method}" in shipped_recipes():
        return load_recipe(find_recipe(f"{data}/{method}"))
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


def report(
    folder: Path, *, methods: Sequence[str] = ALL_METHODS, clock: str = "seconds", command: str = ""
) -> Reproduction:
    """Write figure, table and verdicts from the finished runs in a folder."""
    runs = {
        name: folder / "runs" / name for name in methods if (folder / "runs" / name / "summary.json").exists()
    }
    if not runs:
        raise FileNotFoundError(f"{folder} has no finished run; call reproduce first.")
    summaries = {
        name: json.loads((path / "summary.json").read_text(encoding="utf-8")) for name, path in runs.items()
    }
    outcomes = {
        name: outcome_of(
            name,
            read_curve(path / "curve.jsonl"),
            n_test=summaries[name]["evaluated_rows"]["test"],
            clock=clock,
        )
        for name, path in runs.items()
    }
    verdicts = check_claims(outcomes, clock=clock)
    figures = plot(runs.values(), folder / "figure.png", clock=clock, formats=("png", "svg", "pdf"))
    parameters = {
        name: json.loads((path / "config.json").read_text(encoding="utf-8"))["model"]
        for name, path in runs.items()
    }
    title = describe_data(read_run(next(iter(runs.values()))))
    text = _markdown(title, outcomes, verdicts, summaries, parameters, clock, command)
    target = folder / "report.md"
    write_text(target, text)
    plain = {
        name: {key: value for key, value in vars(outcome).items() if key != "points"}
        for name, outcome in outcomes.items()
    }
    verdict_list = [vars(verdict) for verdict in verdicts]
    write_json(folder / "outcomes.json", {"outcomes": plain, "verdicts": verdict_list})
    return Reproduction(folder, outcomes, verdicts, target, figures)


def _markdown(
    title: str,
    outcomes: Mapping[str, Outcome],
    verdicts: Sequence[Verdict],
    summaries: Mapping[str, dict[str, Any]],
    parameters: Mapping[str, dict[str, Any]],
    clock: str,
    command: str,
) -> str:
    some = next(iter(summaries.values()))
    n_test = some["evaluated_rows"]["test"]
    lines = [f"# The paper's comparison on {title}", ""]
    made = f"Made by `{command}` on " if command else "Made on "
    busiest = max(summary["machine"]["load_average"] or 0.0 for summary in summaries.values())
    shared = busiest > some["machine"]["processors"] + 0.5
    lines += [
        f"{made}{describe_machine(some['machine'])}, {some['date'][:10]}. Times are "
        + ("elapsed time" if clock == "seconds" else "processor time, all threads together")
        + " of training, with the tree, without evaluation, checkpoints and compilation."
        + (
            f" Other programs used the machine at the same time (load up to {busiest:.0f})." if shared else ""
        ),
        "",
        "![Learning curves](figure.png)",
        "",
        f"The point of each curve is the best on validation rows; figures are of {n_test:,} test rows, ± one"
        " standard error. Every method trains the same affine model by Adagrad at a constant rate ρ, from"
        " weights of zero. " + _whole_time(summaries.values()),
        "",
    ]
    if any(_reading(model) for model in parameters.values()):
        words = "λ penalises (ξ + log p_n)², as the text of Eq. 6 says; where the table says raw, ξ², as the"
        lines += [f"{words} authors' code does for noise that does not depend on x.", ""]
    best = max((outcomes[name].accuracy for name in BASELINES if name in outcomes), default=None)
    header = ["method", "ρ", "λ or σ₀²", "epochs", "training time", "test accuracy", "test log-likelihood"]
    header += ["time to the best baseline's accuracy", *(f"paper, {name}" for name in PAPER)]
    lines += ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    for name, outcome in outcomes.items():
        model, last = parameters[name], summaries[name]["last"]
        strength = next((model.get(searched) for searched in METHODS[name].searched), None)
        reached = None if best is None else time_to_accuracy(outcome.points, best, clock=clock)
        rate = model["learning_rate"]
        cells = [
            METHODS[name].label,
            "default" if rate is None else f"{rate:g}",
            "-" if strength is None else f"{strength:g}{_reading(model)}",
        ]
        cells += [
            f"{last['epoch']:g}",
            f"{last[clock]:.1f} s",
            f"{outcome.accuracy:.1%} ± {outcome.standard_error:.1%}",
        ]
        cells += [f"{outcome.log_likelihood:.3f}", "never" if reached is None else f"{reached:.1f} s"]
        cells += [f"{PAPER[source][name]:.1%}" if name in PAPER[source] else "-" for source in PAPER]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "The paper's figures are of other data and other features; only the order can be compared.",
        "",
    ]
    lines += ["## Claims of the paper", "", *(f"- {verdict}" for verdict in verdicts), ""]
    return "\n".join(lines)


def _reading(model: Mapping[str, Any]) -> str:
    """Return a word on the reading of Eq. 6, where it is not that of the text."""
    return " (raw)" if model.get("penalized_scores") == "raw" else ""


def _whole_time(summaries: Iterable[dict[str, Any]]) -> str:
    """Word the elapsed time of all runs together, without reading the data."""
    parts = dict.fromkeys(("training", "evaluation", "compilation"), 0.0)
    for summary in summaries:
        for part in parts:
            parts[part] += summary[f"{part}_seconds"]
    listed = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in parts.items())
    return f"All runs together took {sum(parts.values()) / 60:.1f} minutes: {listed}."
