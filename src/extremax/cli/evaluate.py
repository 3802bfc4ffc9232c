"""``extremax evaluate MODEL DATA``: figures of merit on labelled rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import load_rows, open_model
from extremax.cli.options import DataArgument, ModelArgument, Opening, Reading, unbundled


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    k: Annotated[str, typer.Option("--k", "-k", help="Values of k, separated by commas.")] = "1,3,5",
    by_class: Annotated[
        Path | None,
        typer.Option(
            "--by-class",
            metavar="FILE",
            help="Write a table of classes, .csv, .tsv or .jsonl: support, precision, recall, most frequent"
            " confusion.",
        ),
    ] = None,
    *,
    opening: Opening,
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

    \b
    The table of --by-class has a row for each class that occurs in DATA or
    is predicted, by the first prediction of each row, most frequent first.

    Rows whose labels were not in the training data are left out and counted.
    """
    terminal.set_quiet(opening.quiet)
    ranks = _ranks(k)
    kind = None if by_class is None else _table_format(by_class)
    if by_class is not None:
        terminal.check_file(by_class)
    clf = open_model(model, opening.threads, opening.encoder)
    rows, labels = load_rows(clf, data, reading)
    figures = measure(clf, rows, labels, ranks)
    if by_class is not None and kind is not None:
        n_classes = _write_classes(clf, rows, labels, by_class, kind)
        terminal.log(f"wrote {n_classes:,} classes to {by_class}")
    if opening.as_json:
        terminal.show_json(figures)
        return
    shown = [
        [name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}"] for name, value in figures.items()
    ]
    terminal.print_table(["figure", "value"], shown, right=["value"])


def _ranks(k: str) -> list[int]:
    try:
        ranks = sorted({int(part) for part in k.split(",")})
    except ValueError:
        ranks = [0]
    if ranks[0] < 1:
        raise typer.BadParameter(f"--k is {k!r}; give numbers from 1 on, separated by commas, such as 1,3,5.")
    return ranks


def _table_format(path: Path) -> str:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("csv", "tsv", "jsonl"):
        raise typer.BadParameter(f"--by-class {path}: the name must end in .csv, .tsv or .jsonl.")
    return kind


def measure(clf: Any, rows: Any, labels: Any, ranks: list[int]) -> dict[str, Any]:
    """Return all figures by name, without those at k above the number of classes."""
    from extremax.evaluation import evaluate as evaluate_model

    report = evaluate_model(clf, rows, labels, ks=[k for k in ranks if k <= len(clf.classes_)] or [1])
    if report.n_left_out:
        terminal.warn(f"{report.n_left_out:,} rows have no label that the model knows; they are left out.")
    return report.as_dict()


def _write_classes(clf: Any, rows: Any, labels: Any, path: Path, kind: str) -> int:
    from extremax.evaluation import evaluate_classes

    names = clf.classes_.tolist()
    table = []
    for figures in evaluate_classes(clf, rows, labels):
        record = vars(figures) | {"label": names[figures.label]}
        if figures.confused_with is not None:
            record["confused_with"] = names[figures.confused_with]
        table.append(record)
    with terminal.atomic_file(path) as file:
        if kind == "jsonl":
            file.writelines(
                json.dumps(record, ensure_ascii=False, default=str).encode() + b"\n" for record in table
            )
        else:
            text = io.StringIO()
            writer = csv.DictWriter(
                text, list(table[0]), delimiter="\t" if kind == "tsv" else ",", lineterminator="\n"
            )
            writer.writeheader()
            for record in table:  # fractions as in all tables
                writer.writerow(
                    {
                        name: terminal.fraction(v) if isinstance(v, float) and name != "label" else v
                        for name, v in record.items()
                    }
                )
            file.write(text.getvalue().encode())
    return len(table)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unbundled(evaluate))
