"""``extremax evaluate MODEL DATA``: figures of merit on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import (
    inputs_of,
    named_labels,
    open_model,
    reading_for,
    report_skipped,
    without_labels,
)
from extremax.cli.options import DataArgument, Json, ModelArgument, Quiet, Reading, Threads, source, unbundled


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    k: Annotated[str, typer.Option("--k", "-k", help="Values of k, separated by commas.")] = "1,3,5",
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
    *,
    reading: Reading,
) -> None:
    """Measure a model on labelled rows.

    \b
    log_likelihood     mean log p(y|x)
    accuracy@k         fraction of rows with a true label among the first k
    precision@k        true labels among the first k, divided by k
    ndcg@k             precision with a discount by rank
    propensity_scored_precision@k  precision with more weight for rare labels
    calibration_error  mean distance of confidence and accuracy

    Rows whose labels were not in the training data are left out and counted.
    """
    terminal.set_quiet(quiet)
    ranks = _ranks(k)
    clf = open_model(model, threads)
    figures = measure(clf, data, reading, ranks)
    if as_json:
        terminal.show_json(figures)
        return
    rows = [
        [name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}"] for name, value in figures.items()
    ]
    terminal.print_table(["figure", "value"], rows, right=["value"])


def _ranks(k: str) -> list[int]:
    try:
        ranks = sorted({int(part) for part in k.split(",")})
    except ValueError:
        ranks = [0]
    if ranks[0] < 1:
        raise typer.BadParameter(f"--k is {k!r}; give numbers from 1 on, separated by commas, such as 1,3,5.")
    return ranks


def measure(clf: Any, path: Path, reading: Reading, ranks: list[int]) -> dict[str, Any]:
    """Return all figures by name, without those at k above the number of classes."""
    from extremax.data import load_dataset
    from extremax.evaluation import evaluate as evaluate_model

    with terminal.Bar(f"reading {path.name}") as bar, source(path) as opened:
        data = load_dataset(opened, **reading_for(clf, reading, path), progress=bar)
    report_skipped(data)
    if data.y is None:
        raise ValueError(without_labels(data, path))
    report = evaluate_model(
        clf,
        inputs_of(clf, data, path),
        named_labels(data),
        ks=[k for k in ranks if k <= len(clf.classes_)] or [1],
    )
    if report.n_left_out:
        terminal.warn(f"{report.n_left_out:,} rows have no label that the model knows; they are left out.")
    return report.as_dict()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unbundled(evaluate))
