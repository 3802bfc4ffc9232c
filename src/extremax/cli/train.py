"""``extremax train DATA --out MODEL``: train a model on a file and save it."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import describe_labels, named_labels, report_skipped, without_labels
from extremax.cli.options import (
    DataArgument,
    Json,
    Quiet,
    Reading,
    Reduction,
    Seed,
    TextKind,
    Threads,
    source,
    unbundled,
    wrong_usage,
)
from extremax.cli.parameters import Parameters, given
from extremax.cli.signals import EXIT_INTERRUPTED


def train(  # noqa: PLR0913 (the parameters are the options)
    data: DataArgument,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="MODEL", help="Folder to save the model in.", show_default=False),
    ],
    *,
    valid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows to validate on, in the format of DATA.", show_default=False),
    ] = None,
    reduce: Annotated[
        Reduction | None,
        typer.Option(
            help="For rows with several labels: keep one, or make each label a row.  [default: keep all]"
        ),
    ] = None,
    descriptions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV of labels and their descriptions, shown by ask and inspect."),
    ] = None,
    features: Annotated[
        TextKind | None,
        typer.Option(
            help="Features of texts; with --encoder, beside the embeddings."
            "  [default: ngrams, or the encoder alone]",
            show_default=False,
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Name of a sentence-transformers model to embed texts with.", show_default=False),
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
    reading: Reading,
    parameters: Parameters,
) -> None:
    """Train a model on a file, and save it.

    \b
    DATA may be CSV or TSV with a text and a label column, JSON lines or a
    JSON array with fields for text and label or labels, fastText lines,
    Parquet or Arrow with a text or vector column, .npy or .npz features,
    XMC repository or libsvm text; .gz, .xz and .zst are read as they are.

    Ctrl-C or SIGTERM ends training early and saves the model as far as it got.

    \b
    extremax train tickets.csv --out model
    extremax train train.txt.gz --valid test.txt.gz --reduce rarest --out model
    """
    terminal.set_quiet(quiet)
    from extremax.classifier import ExtremeClassifier
    from extremax.data import load_dataset
    from extremax.features.ngrams import NgramFeatures
    from extremax.storage.folder import HEADER, check_target
    from extremax.text import TextClassifier

    if descriptions is not None and not descriptions.exists():
        raise FileNotFoundError(f"{descriptions}: there is no such file.")
    verbose = sys.stderr.isatty() and not quiet
    # before an hour of training, not after
    with wrong_usage():
        options = given(parameters)
        classifier = ExtremeClassifier(**options, random_state=seed, n_jobs=threads, verbose=int(verbose))
        classifier.check_params()
    check_target(out)
    replaces = (out / HEADER).exists()
    if replaces:
        terminal.log(f"{out} holds a model, which this one will replace")
    started = time.perf_counter()
    rows = _load(load_dataset, data, reading, reduce)
    checked = None if valid is None else _load(load_dataset, valid, reading, reduce, counts_of=rows)
    model: Any = classifier
    if rows.inputs is rows.texts:
        wanted = None if features is None else NgramFeatures()
        model = TextClassifier(classifier, features=wanted, encoder=encoder)
    elif encoder is not None or features is not None:
        raise typer.BadParameter(f"{data} holds features, not texts: --features and --encoder do not apply.")
    terminal.log(f"{data}: {rows.n_samples:,} rows of {rows.kind}" + (f"; {rows.note}" if rows.note else ""))
    eval_set = None if checked is None else (checked.inputs, checked.labels)
    model.fit(rows.inputs, rows.labels, eval_set=eval_set)
    if descriptions is not None:
        describe_labels(model, descriptions)
    _save(model, out)
    if as_json:
        terminal.show_json(
            {
                "model": str(out),
                "n_samples": rows.n_samples,
                "n_classes": len(model.classes_),
                "n_features": model.model_.n_features,
                "interrupted": model.interrupted_,
                "replaced": replaces,
                "seconds": time.perf_counter() - started,
                **model.history_[-1],
            }
        )
    _report(model, out, replaces)
    if model.interrupted_:
        raise typer.Exit(EXIT_INTERRUPTED)


def _save(model: Any, out: Path) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would lose the model
    try:
        model.save(out)
    finally:
        signal.signal(signal.SIGINT, previous)


def _report(model: Any, out: Path, replaced: bool) -> None:
    last = model.history_[-1]
    loss = f"loss {last['loss']:.4f}" if last["epoch"] else "no epochs"
    epochs = f"{last['epoch']} epoch{'' if last['epoch'] == 1 else 's'}"
    terminal.log(f"{len(model.classes_):,} classes, {epochs} in {last['seconds']:.1f} s: {loss}")
    if "valid_accuracy" in last:
        terminal.log(f"validation: {_figures(last, 'valid')}")
    elif "held_out_accuracy" in last:
        rows = f"{last['held_out_rows']:,} rows that were not trained on"
        terminal.log(f"held out: {_figures(last, 'held_out')}, on {rows}")
    else:
        terminal.log("held out: none, as rows are few; give --valid FILE to measure the model")
    place = f"saved in {out}" + (", in place of the model that was there" if replaced else "")
    terminal.log(place + ("; training was interrupted" if model.interrupted_ else ""))


def _figures(record: dict[str, Any], prefix: str) -> str:
    accuracy, top_5 = record[f"{prefix}_accuracy"], record[f"{prefix}_top_k_accuracy"]
    return (
        f"accuracy {terminal.fraction(accuracy)}, top-5 accuracy {terminal.fraction(top_5)},"
        f" log-likelihood {record[f'{prefix}_log_likelihood']:.4f}"
    )


@dataclass(frozen=True)
class Rows:
    """Inputs and labels as estimators take them."""

    inputs: Any
    labels: Any
    texts: Any
    n_samples: int
    kind: str
    counts: Any
    note: str = ""  # what the reader took for what


def _load(
    load_dataset: Any, path: Path, reading: Reading, reduce: Reduction | None, counts_of: Rows | None = None
) -> Rows:
    with terminal.Bar(f"reading {path.name}") as bar, source(path) as opened:
        data = load_dataset(opened, **reading.arguments(), progress=bar)
    report_skipped(data)
    if data.y is None:
        raise ValueError(without_labels(data, path))
    counts = None
    if data.multilabel and reduce is not None:
        from extremax.data.labels import label_counts
        from extremax.data.readers import reduce_labels

        counts = _by_name(label_counts(data.y), data.label_names) if counts_of is None else counts_of.counts
        data = reduce_labels(data, reduce.value, counts if reduce is Reduction.rarest else None)
        if data.n_unlabelled:
            terminal.warn(f"{data.n_unlabelled:,} rows of {path} have no label; they are left out.")
    inputs = data.texts if data.texts is not None else data.X
    kind = "texts" if data.texts is not None else f"{data.X.shape[1]:,} features"
    return Rows(inputs, named_labels(data), data.texts, data.n_samples, kind, counts, data.note)


def _by_name(counts: dict[int, int], names: list[str] | None) -> dict[Any, int]:
    return counts if names is None else {names[label]: count for label, count in counts.items()}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unbundled(train))
