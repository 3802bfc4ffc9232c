"""``extremax train DATA --out MODEL``: train a model on a file and save it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import (
    describe_labels,
    distinct_labels,
    load_labelled,
    named_labels,
    read_texts_of,
)
from extremax.cli.options import (
    DataArgument,
    Json,
    Quiet,
    Reading,
    Reduction,
    Seed,
    TextKind,
    Threads,
    wrong_usage,
)
from extremax.cli.parameters import Parameters, given
from extremax.cli.signals import EXIT_INTERRUPTED


def train(  # noqa: PLR0913 (the parameters are the options)
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to save the model in.")],
    *,
    valid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to validate on, in the format of DATA.")
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
    class_texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV, TSV or JSON lines of labels and their names and synonyms, to learn from.",
        ),
    ] = None,
    features: Annotated[
        TextKind | None,
        typer.Option(
            help="Features of texts; with --encoder, beside the embeddings."
            "  [default: ngrams, or the encoder alone]"
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Name of a sentence-transformers model to embed texts with.")
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
    from extremax.features.ngrams import NgramFeatures
    from extremax.storage.folder import HEADER, check_target
    from extremax.text import TextClassifier

    for path in (descriptions, class_texts):
        if path is not None and not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file.")
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
    rows, counts = _load(data, reading, reduce)
    eval_set = None if valid is None else _pair(_load(valid, reading, reduce, counts)[0])
    model: Any = classifier
    if rows.texts is not None:
        wanted = None if features is None else NgramFeatures()
        model = TextClassifier(classifier, features=wanted, encoder=encoder)
    elif encoder is not None or features is not None or class_texts is not None:
        given_options = "--features, --encoder and --class-texts"
        raise typer.BadParameter(f"{data} holds features, not texts: {given_options} do not apply.")
    kind = "texts" if rows.texts is not None else f"{rows.X.shape[1]:,} features"
    terminal.log(f"{data}: {rows.n_samples:,} rows of {kind}" + (f"; {rows.note}" if rows.note else ""))
    more: dict[str, Any] = {}
    if class_texts is not None:
        more["class_texts"] = read_texts_of(class_texts, distinct_labels(rows))
        n_texts = sum(map(len, more["class_texts"].values()))
        terminal.log(f"{class_texts}: {n_texts:,} texts of {len(more['class_texts']):,} classes")
    model.fit(*_pair(rows), eval_set=eval_set, **more)
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


def _load(path: Path, reading: Reading, reduce: Reduction | None, counts: Any = None) -> tuple[Any, Any]:
    """Return the rows of a file, and how often each label occurs where --reduce rarest needs it.

    `counts` are those of the training rows, for rows to validate on.
    """
    data = load_labelled(path, reading.arguments())
    if not data.multilabel or reduce is None:
        return data, None
    from extremax.data.labels import label_counts
    from extremax.data.readers import reduce_labels

    if reduce is Reduction.rarest and counts is None:
        names, counts = data.label_names, label_counts(data.y)
        counts = counts if names is None else {names[label]: count for label, count in counts.items()}
    data = reduce_labels(data, reduce.value, counts)
    if data.n_unlabelled:
        terminal.warn(f"{data.n_unlabelled:,} rows of {path} have no label; they are left out.")
    return data, counts


def _pair(data: Any) -> tuple[Any, Any]:
    """Return inputs and labels as estimators take them."""
    return data.X if data.texts is None else data.texts, named_labels(data)
