"""``extremax run``, ``tune``, ``plot`` and ``reproduce``: experiments from recipes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.options import Json, Quiet, Seed, Threads

RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="Recipe file, or the name of one that comes with extremax.")
]


def run(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")],
    seed: Seed = None,
    threads: Threads = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0.0, help="Least time between two checkpoints.")
    ] = 10.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe: train, record the learning curve, save the model.

    The same command resumes a run that was interrupted or killed, and ends with the same model.
    """
    from extremax.experiments import find_recipe, load_recipe
    from extremax.experiments import run as run_recipe

    terminal.set_quiet(quiet)
    chosen = load_recipe(find_recipe(recipe))
    if seed is not None:
        chosen = chosen.with_model(random_state=seed)
    show: dict[str, Any] = {"log": terminal.log, "on_point": _show_point}
    summary = run_recipe(chosen, out, n_jobs=threads, checkpoint_seconds=checkpoint_seconds, **show)
    if as_json:
        terminal.show_json(summary)
        return
    names = ["epoch", "seconds", "valid_accuracy", "test_accuracy", "test_log_likelihood"]
    points = {"last epoch": summary["last"], "best by validation": summary["best_accuracy"]}
    terminal.print_table(
        ["model", *(name.replace("_", " ") for name in names)],
        [[what, *(point[name] for name in names)] for what, point in points.items()],
        title=f"{summary['method']} on {summary['data']}",
    )
    terminal.log(f"model: {out / 'model'}   curve: {out / 'curve.jsonl'}")


def _show_point(point: dict[str, Any]) -> None:
    figures = "   ".join(
        f"{split} {terminal.fraction(point[f'{split}_accuracy']):>7} {point[f'{split}_log_likelihood']:8.4f}"
        for split in ("valid", "test")
    )
    terminal.log(f"epoch {point['epoch']:<6.3g} {point['seconds']:8.2f} s   {figures}")


def tune(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the search.")],
    trials: Annotated[
        int | None, typer.Option("--trials", "-n", min=1, help="Trials in total.  [default: the recipe's]")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search the best parameters of a recipe on validation rows.

    Combinations are drawn at random. The recipe with the best parameters is written to best.toml. The same
    command resumes a search that was interrupted; more --trials continue one that is finished.
    """
    from extremax.experiments import find_recipe, load_recipe
    from extremax.experiments import tune as tune_recipe

    terminal.set_quiet(quiet)
    chosen = load_recipe(find_recipe(recipe))
    show: dict[str, Any] = {"log": terminal.log, "on_trial": lambda trial: terminal.log(trial.describe())}
    result = tune_recipe(chosen, out, n_trials=trials, n_jobs=threads, **show)
    found = [vars(trial) for trial in result.trials]
    if as_json:
        terminal.show_json({"best": found[0], "recipe": str(result.path), "trials": found})
        return
    names = list(found[0]["parameters"])
    terminal.print_table(
        ["trial", *names, f"valid {chosen.search.score}", "best epoch", "seconds"],
        [
            [t.number, *(str(t.parameters[name]) for name in names), t.score, t.n_epochs, t.seconds]
            for t in result.trials
        ],
        title=f"search for {result.best.name}",
    )
    terminal.log(f"best recipe: {result.path}")


def reproduce(  # noqa: PLR0913 (the parameters are the options)
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="icd10cm, eurlex57k, lemmas, polish-nouns, ...")
    ] = "icd10cm",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the results.", show_default="reproduce-DATA")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="One of the methods; may be repeated.  [default: all]"),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Processor seconds of training per run, instead of epochs.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=0, help="Trials of each method on validation rows; 0: the recipes as they are.")
    ] = 0,
    finalists: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Best trials to run to the end; validation rows choose one.",
            show_default="1; lemmas: 2",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ...")] = 1,
    sizes: Annotated[
        list[int] | None,
        typer.Option("--lemmas", help="For lemmas: 5000, 16000, 50000 or 219109 (all); may be repeated."),
    ] = None,
    features: Annotated[
        list[str] | None, typer.Option(help="For lemmas: learned or text; may be repeated.")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's comparison on a data set.

    Trains the methods of Figure 1 and softmax; writes a figure, tables, and which of the paper's claims hold.
    With --trials each method is tuned first, over the paper's grid; with --seeds 3 verdicts have an error.
    Before it starts it says which files, how much time and how much memory it needs. eurlex57k,
    npm-owner-124k and the XML-CNN features of amazon-670k and wikipedia-500k are read from the folder that
    the environment variable EXTREMAX_DATA names; polish-nouns comes from the package spacy-lookups-data.
    Times are processor seconds; use --threads 1. eurlex57k-smallest with --method softmax and --method
    uniform is the experiment of the paper's appendix A.2. lemmas is 5,000, 16,000 and 50,000 lemmas of
    polish-nouns: it tells how the factors depend on the number of classes. The same command resumes a
    comparison that was interrupted.
    """
    from extremax.experiments.paper.by_classes import reproduce_lemmas
    from extremax.experiments.paper.reproduction import ALL_METHODS
    from extremax.experiments.paper.reproduction import reproduce as reproduce_paper

    terminal.set_quiet(quiet)
    for name in methods or ():
        if name not in ALL_METHODS:
            raise typer.BadParameter(f"--method {name}: use one of {', '.join(ALL_METHODS)}.")
    folder = out or Path(f"reproduce-{data}")
    options: dict[str, Any] = {
        "methods": methods or (),
        "max_seconds": seconds,
        "n_trials": trials,
        "n_seeds": seeds,
        "n_jobs": threads,
        "command": " ".join(["extremax", *sys.argv[1:]]),
        "log": terminal.log,
        "on_point": _show_point,
    }
    if finalists is not None:
        options["n_finalists"] = finalists
    if data == "lemmas":
        chosen: dict[str, Any] = {"sizes": sizes, "features": features}
        chosen = {name: given for name, given in chosen.items() if given}
        reproduce_lemmas(folder, **chosen, **options)
        terminal.write((folder / f"by-classes.{'json' if as_json else 'md'}").read_text())
        return
    result = reproduce_paper(data, folder, **options)
    if as_json:
        outcomes = {name: outcome.as_dict() for name, outcome in result.outcomes.items()}
        terminal.show_json({"outcomes": outcomes, "verdicts": [vars(verdict) for verdict in result.verdicts]})
        return
    terminal.print_table(
        ["method", "test accuracy", "standard error", "test log-likelihood", "processor s"],
        [
            [name, *(o.mean("accuracy"), o.error("accuracy"), o.mean("log_likelihood"), o.seconds())]
            for name, o in result.outcomes.items()
        ],
        title=f"the paper's comparison on {data}",
    )
    for verdict in result.verdicts:
        terminal.write(str(verdict).replace("**", ""))
    terminal.log(f"report: {result.report}   figure: {result.figures[0]}")


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Figure to write: .png, .svg or .pdf.")] = Path(
        "learning-curves.png"
    ),
    kinds: Annotated[
        list[str] | None, typer.Option("--format", "-f", help="png, svg or pdf; may be given several times.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Processor time instead of elapsed time.")] = False,
    quiet: Quiet = False,
) -> None:
    """Draw the learning curves of runs.

    Log-likelihood and accuracy against training time, with a row of panels per data set.
    """
    from extremax.experiments import plot as plot_runs
    from extremax.experiments.figures import FORMATS

    terminal.set_quiet(quiet)
    for kind in kinds or [out.suffix.lstrip(".").lower() or "png"]:
        if kind not in FORMATS:
            raise typer.BadParameter(f"{kind!r} is not a format of figures; use {', '.join(FORMATS)}.")
    # A pattern such as runs/* also finds files beside the runs.
    folders = [path for path in runs if path.is_dir()] or runs
    for path in plot_runs(folders, out, clock="cpu_seconds" if cpu else "seconds", formats=kinds or ()):
        terminal.write(str(path))
