"""``extremax train DATA --out MODEL``: train a model on a file and save it."""

from __future__ import annotations

import signal
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.batches import train_in_batches
from extremax.cli.models import (
    describe_labels,
    distinct_labels,
    load_labelled,
    named_labels,
    read_texts_of,
)
from extremax.cli.options import (
    FILES,
    MORE,
    TRAINING,
    DataArgument,
    Json,
    Quiet,
    Reading,
    Reduction,
    Seed,
    TextKind,
    Threads,
    option_of,
    wrong_usage,
)
from extremax.cli.parameters import Parameters, given
from extremax.cli.signals import EXIT_INTERRUPTED

_FEW_ROWS, _FOLDS = 1000, 5  # fewer rows are measured by so many models of their parts
_TEXTS = "Texts"


@dataclass(frozen=True)
class TextOptions:
    """Options of the features of texts."""

    kind: Annotated[
        TextKind | None,
        typer.Option(
            "--features",
            help="Features of texts; with --encoder, added to the embeddings."
            "  [default: ngrams, or the encoder alone]",
            rich_help_panel=_TEXTS,
        ),
    ] = None
    encoder: Annotated[
        str | None,
        typer.Option(
            help="minilm (with n-grams), or the name of a sentence-transformers model.",
            rich_help_panel=_TEXTS,
        ),
    ] = None
    word_ngrams: Annotated[
        int | None,
        typer.Option(help="Longest run of words; 0 for none.  [default: 2]", rich_help_panel=_TEXTS),
    ] = None
    char_ngrams: Annotated[
        tuple[int, int] | None,
        typer.Option(
            metavar="MIN MAX",
            help="Shortest and longest n-gram of characters; 0 0 for none.  [default: 4 4, for names 2 5]",
            rich_help_panel=_TEXTS,
        ),
    ] = None
    hash_bits: Annotated[
        int | None,
        typer.Option(
            help="Binary logarithm of the largest number of n-grams.  [default: 20]",
            rich_help_panel=_TEXTS,
        ),
    ] = None
    class_texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Names and synonyms of labels to learn from, as CSV, TSV or JSON lines.",
            rich_help_panel=_TEXTS,
        ),
    ] = None

    @property
    def given(self) -> str:
        """The first option that was given."""
        name = next(name for name, value in vars(self).items() if value is not None)
        return option_of({"kind": "features"}.get(name, name))

    def classifier(self, classifier: Any) -> Any:
        """Return a classifier of texts; raise for bad values."""
        from extremax.features.ngrams import NgramFeatures
        from extremax.text import TextClassifier

        names = ("word_ngrams", "char_ngrams", "hash_bits")
        given = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        features = NgramFeatures(**given)
        _ = features.options  # checks them
        wanted = features if given or self.kind is not None else None
        return TextClassifier(classifier, features=wanted, encoder=self.encoder)


def train(  # noqa: PLR0913 (the parameters are the options)
    data: DataArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to save the model in.")],
    *,
    reading: Reading,
    batch_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train on this many rows at a time, for a file of texts that does not fit into memory.",
            rich_help_panel=FILES,
        ),
    ] = None,
    valid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to validate on, in the format of DATA.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Skip training and keep the initial model, for a first look."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model in MODEL even if training is interrupted.")
    ] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    texts: TextOptions,
    reduce: Annotated[
        Reduction | None,
        typer.Option(
            help="For rows with several labels: keep one, or make each label a row.  [default: keep all]",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    parameters: Parameters,
    descriptions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV of labels and their descriptions, shown by ask and inspect.",
            rich_help_panel=MORE,
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train a model on a file, and save it.

    \b
    DATA may be CSV or TSV with a text and a label column, JSON lines or a
    JSON array with fields for text and label or labels, fastText lines,
    Parquet or Arrow with a text or vector column, .npy or .npz features,
    XMC repository or libsvm text; .gz, .xz and .zst are read as they are.

    \b
    Ctrl-C or SIGTERM ends training early and saves the model as far as it got,
    beside a model that is there already.

    \b
    extremax train tickets.csv --out model
    extremax train train.txt.gz --valid test.txt.gz --reduce rarest --out model
    """
    terminal.set_quiet(quiet)
    from extremax.classifier import ExtremeClassifier
    from extremax.storage.folder import HEADER, check_target

    for path in (descriptions, texts.class_texts):
        if path is not None and not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file.")
    if texts.class_texts is not None and batch_rows is not None:
        raise typer.BadParameter("--class-texts needs all rows at once; it does not go with --batch-rows.")
    # before an hour of training, not after
    with wrong_usage():
        options = given(parameters)
        if batch_rows is not None and (fast or valid or reduce):
            raise typer.BadParameter("--batch-rows does not go with --fast, --valid or --reduce.")
        if fast and options.setdefault("n_epochs", 0) != 0:
            raise typer.BadParameter("--fast trains no epochs; leave out --n-epochs.")
        classifier = ExtremeClassifier(**options, random_state=seed, n_jobs=threads, verbose=int(not quiet))
        classifier.check_params()
        texts.classifier(classifier)
    replaces = (out / HEADER).exists()
    beside = out.with_name(out.name + "-interrupted") if replaces and not overwrite else out
    for target in {out, beside}:
        check_target(target)
    if replaces:
        terminal.log(f"{out} holds a model, which this one will replace")
    started, named = time.perf_counter(), {}
    if batch_rows is None:
        rows, eval_set = _load_all(data, valid, reading, reduce)
        model, n_samples = _estimator(classifier, rows, texts, data), rows.n_samples
        named = _class_texts(rows, texts.class_texts, reading.encoding)
        model.fit(*_pair(rows), eval_set=eval_set, **named)
    else:
        rows, model = None, texts.classifier(classifier.set_params(verbose=0))
        n_samples = train_in_batches(model, data, reading.arguments(), batch_rows, seed)
    if descriptions is not None:
        describe_labels(model, descriptions)
    out, replaces = (beside, False) if model.interrupted_ and beside != out else (out, replaces)
    _save(model, out)
    _report(model, out, replaces)
    found = {} if quiet and not as_json else _measure(model, rows, seed, named)
    if as_json:
        terminal.show_json(
            {
                "model": str(out),
                "n_samples": n_samples,
                "n_classes": len(model.classes_),
                "n_features": model.model_.n_features,
                "interrupted": model.interrupted_,
                "replaced": replaces,
                "seconds": time.perf_counter() - started,
                **model.history_[-1],
                **found,
            }
        )
    if model.interrupted_:
        raise typer.Exit(EXIT_INTERRUPTED)


def _load_all(path: Path, valid: Path | None, reading: Reading, reduce: Reduction | None) -> tuple[Any, Any]:
    """Return the rows to train on, and those to validate on as a pair."""
    rows, counts = _load(path, reading, reduce)
    kind = "texts" if rows.texts is not None else f"{rows.X.shape[1]:,} features"
    terminal.log(f"{path}: {rows.n_samples:,} rows of {kind}" + (f"; {rows.note}" if rows.note else ""))
    return rows, None if valid is None else _pair(_load(valid, reading, reduce, counts)[0])


def _estimator(classifier: Any, rows: Any, texts: TextOptions, path: Path) -> Any:
    """Return the classifier of rows, or one of texts."""
    if rows.texts is not None:
        return texts.classifier(classifier)
    if texts != TextOptions():
        raise typer.BadParameter(f"{path} holds features, not texts: {texts.given} does not apply.")
    return classifier


def _class_texts(rows: Any, path: Path | None, encoding: str | None) -> dict[str, Any]:
    """Return the argument of `fit` with the class texts of a file, if there is one."""
    if path is None:
        return {}
    labels = distinct_labels(rows)
    found, known = read_texts_of(path, labels, encoding), set(labels)
    named = dict.fromkeys(name for kind in found for name in kind)
    new = [name for name in named if name not in known]
    more = f"; {len(new):,} of these have no row, such as {new[0]!r}" if new else ""
    n_texts = sum(len(texts) for kind in found for texts in kind.values())
    terminal.log(f"{path}: {n_texts:,} texts of {len(named):,} classes{more}")
    return {"class_texts": found}


def _save(model: Any, out: Path) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would lose the model
    try:
        model.save(out)
    finally:
        signal.signal(signal.SIGINT, previous)


def _report(model: Any, out: Path, replaced: bool) -> None:
    last = model.history_[-1]
    epochs = f"{last['epoch']} epoch{'' if last['epoch'] == 1 else 's'}" if last["epoch"] else "no epochs"
    loss = f": loss {last['loss']:.4f}" if last["loss"] == last["loss"] else ""  # unknown on few rows
    terminal.log(f"{len(model.classes_):,} classes, {epochs} in {last['seconds']:.1f} s{loss}")
    place = f"saved in {out}" + (", in place of the model that was there" if replaced else "")
    terminal.log(place + ("; training was interrupted" if model.interrupted_ else ""))


def _measure(model: Any, data: Any, seed: int | None, named: dict[str, Any]) -> dict[str, float]:
    """Tell how good the model is, and return figures that are not in its history; `data` are all rows."""
    last = model.history_[-1]
    if "valid_accuracy" in last:
        terminal.log(f"validation: {_figures(last, 'valid')}")
    elif "held_out_accuracy" in last:
        rows = f"{last['held_out_rows']:,} rows that were not trained on"
        terminal.log(f"held out: {_figures(last, 'held_out')}, on {rows}")
    elif data is None or data.n_samples >= _FEW_ROWS or model.interrupted_:
        how = "give --valid FILE, or --validation-fraction 0.1"
        terminal.log(f"held out: none, as rows are few; {how}, to measure the model")
    else:
        try:
            accuracy, error = cross_validate(model, *_pair(data), seed, named)
        except KeyboardInterrupt:  # the model is saved
            terminal.log("cross-validation was interrupted")
            return {}
        n = min(_FOLDS, data.n_samples)
        by = f"{n} models of {n - 1} in {n} rows each"
        terminal.log(f"cross-validated: accuracy {accuracy:.3f} ± {error:.3f}, by {by}")
        return {"cross_validated_accuracy": accuracy, "cross_validated_error": error}
    return {}


def cross_validate(
    model: Any, inputs: Any, labels: Any, seed: int | None, named: dict[str, Any] | None = None
) -> tuple[float, float]:
    """Return the accuracy on rows that a model of the others predicts, and its standard error.

    `named` are the class texts of all fits.
    """
    import numpy as np
    from sklearn.base import clone

    def take(rows: Any, numbers: Any) -> Any:
        return [rows[i] for i in numbers] if isinstance(rows, list) else rows[numbers]

    n_rows = len(labels) if isinstance(labels, list) else labels.shape[0]
    order = np.random.default_rng(seed).permutation(n_rows)
    labels_are_single = not isinstance(labels, list) and labels.ndim == 1
    if labels_are_single:  # the rows of a class go to different folds
        order = order[np.argsort(labels[order], kind="stable")]
    quiet = {"classifier__verbose" if model.takes_texts else "verbose": 0}
    hits = 0.0
    for fold in range(min(_FOLDS, n_rows)):
        out = np.sort(order[fold::_FOLDS])
        rest = np.setdiff1d(order, out)
        known = _distinct(take(labels, rest))
        if len(known) < 2:  # nothing to learn: the answer is always the same
            hits += sum(label in known for label in take(labels, out)) if labels_are_single else 0
            continue
        copy = clone(model).set_params(**quiet)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit of all rows has given them
            copy.fit(take(inputs, rest), take(labels, rest), **(named or {}))
            if copy.interrupted_:
                raise KeyboardInterrupt
            hits += len(out) * copy.score(take(inputs, out), take(labels, out))
    hedged = (hits + 2.0) / (n_rows + 4.0)  # after Agresti and Coull: few rows without a mistake prove little
    return hits / n_rows, float(np.sqrt(hedged * (1.0 - hedged) / (n_rows + 4.0)))


def _distinct(labels: Any) -> set[Any]:
    """Return the different labels of rows."""
    if isinstance(labels, list):
        return {label for row in labels for label in row}
    return set((labels if labels.ndim == 1 else labels.indices).tolist())


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
