"""``extremax run``, ``tune``, ``plot`` and ``reproduce``: experiments from recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.options import Json, Quiet, Seed, Threads

RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="Recipe file, or the name of one that comes with extremax.", show_default=False)
]


def run(
    recipe: RecipeArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.", show_default=False)],
    seed: Seed = None,
    threads: Threads = None,
    checkpoint_seconds: Annotated[float, typer.Option(min=0.0, help="Least time between two checkpoints.")] = 10.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a recipe: train, draw up the learning curve, save the model.

    The same command goes on with a run that was interrupted or killed, and ends with the same model.
    """
    from extremax.experiments import find_recipe, load_recipe
    from extremax.experiments import run as run_recipe

    terminal.set_quiet(quiet)
    chosen = load_recipe(find_recipe(recipe))
    if seed is not None:
        chosen = chosen.with_model(random_state=seed)
    summary = run_recipe(
        chosen, out, n_jobs=threads, checkpoint_seconds=checkpoint_seconds, say=terminal.say, on_point=_show_point
    )
    if as_json:
        terminal.show_json(summary)
        return
    rows = []
    for name, point in (("last epoch", summary["last"]), ("best by validation", summary["best_accuracy"])):
        figures = [f"{point['valid_accuracy']:.2%}", f"{point['test_accuracy']:.2%}", f"{point['test_log_likelihood']:.4f}"]
        rows.append([name, f"{point['epoch']:g}", f"{point['seconds']:.1f}", *figures])
    columns = ["model", "epoch", "seconds", "valid accuracy", "test accuracy", "test log-likelihood"]
    terminal.print_table(columns, rows, title=f"{summary['method']} on {summary['data']}", right=columns[1:])
    terminal.say(f"model: {out / 'model'}   curve: {out / 'curve.jsonl'}")


def _show_point(point: dict[str, Any]) -> None:
    terminal.say(
        f"epoch {point['epoch']:<6.3g} {point['seconds']:8.2f} s   valid {point['valid_accuracy']:7.2%} "
        f"{point['valid_log_likelihood']:8.4f}   test {point['test_accuracy']:7.2%} {point['test_log_likelihood']:8.4f}"
    )


def register(app: typer.Typer) -> None:
    app.command()(run)
