"""``extremax evaluate MODEL DATA``: figures of merit on labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import load_rows, open_model, warn_left_out
from extremax.cli.options import DataArgument, ModelArgument, Opening, Reading
from extremax.cli.predict import csv_bytes, json_line

_LABELS = ("label", "confused_with")


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    k: Annotated[str, typer.Option("--k", "-k", help="Values of k, separated by commas.")] = "1,3,5,10",
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
    ece@k              the same for the first k

    \b
    With several labels per row:
    f1@k               F1 of the first k, the mean over rows
    recall@100         fraction of the true labels among the first 100
    samples_f1, micro_f1, macro_f1  F1 of the labels that predict --threshold
                       auto gives: by row, of all pairs, by label

    \b
    The table of --by-class has a row for each class that occurs in DATA or
    is predicted, by the first prediction of each row, most frequent first.

    Rows whose labels were not in the training data are left out and counted.
    """
    terminal.set_quiet(opening.quiet)
    from extremax.evaluation import evaluate as evaluate_model
    from extremax.evaluation import evaluate_classes

    ranks = _ranks(k)
    if by_class is not None:
        if by_class.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
            raise typer.BadParameter(f"--by-class {by_class}: the name must end in .csv, .tsv or .jsonl.")
        terminal.check_file(by_class)
    clf = open_model(model, opening.threads, opening.encoder)
    rows, labels = load_rows(clf, data, reading)
    report = evaluate_model(clf, rows, labels, ks=[k for k in ranks if k <= len(clf.classes_)] or [1])
    warn_left_out(report.n_left_out)
    if by_class is not None:
        names = clf.classes_.tolist()
        table = [vars(figures) for figures in evaluate_classes(clf, rows, labels)]
        for record in table:
            record |= {name: names[record[name]] for name in _LABELS if record[name] is not None}
        with terminal.atomic_file(by_class) as file:
            if by_class.suffix.lower() == ".jsonl":
                file.writelines(map(json_line, table))
            else:
                figures = [[_cell(name, value) for name, value in record.items()] for record in table]
                delimiter = "\t" if by_class.suffix.lower() == ".tsv" else ","
                file.write(csv_bytes([list(table[0]), *figures], delimiter))
        terminal.log(f"wrote {len(table):,} classes to {by_class}")
    if opening.as_json:
        terminal.show_json(report.as_dict())
    else:
        ks = report.precision.keys()
        by_k = {name: at for name, at in vars(report).items() if isinstance(at, dict) and at.keys() == ks}
        others = [item for item in report.as_dict().items() if item[0].split("@")[0] not in by_k]
        terminal.print_table(["figure", "value"], others)
        terminal.print_table(
            ["figure", *(f"@{k}" for k in ks)], [[name, *at.values()] for name, at in by_k.items()]
        )


def _cell(name: str, value: Any) -> Any:
    return terminal.fraction(value) if isinstance(value, float) and name not in _LABELS else value


def _ranks(k: str) -> list[int]:
    try:
        ranks = sorted({int(part) for part in k.split(",")})
    except ValueError:
        ranks = [0]
    if ranks[0] < 1:
        raise typer.BadParameter(f"--k is {k!r}; give numbers from 1 on, separated by commas, such as 1,3,5.")
    return ranks
