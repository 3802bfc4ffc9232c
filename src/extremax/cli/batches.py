"""Training on a file of texts larger than memory: a random sample of its rows first, then all others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from extremax.cli import terminal
from extremax.cli.models import named_labels, report_skipped, without_labels

_HELD_OUT, _HELD_OUT_SHARE = 2000, 0.02  # rows that calibrate the model, at most


def train_in_batches(
    model: Any, path: Path, arguments: Mapping[str, Any], batch_rows: int, seed: int | None
) -> int:
    """Train a model of texts on `batch_rows` rows at a time, and return how many there are.

    The file is read for its labels, for the sample, which fixes the n-grams, for all other rows, and for a
    few that were held out to calibrate and measure the model.
    """
    import numpy as np

    from extremax.evaluation import calibrate, prepare

    if str(path) == "-":
        raise typer.BadParameter("--batch-rows reads the file more than once; give a file, not a pipe.")
    names: set[str] = set()
    n_rows, several = 0, False
    with terminal.progress(f"reading {path.name}") as progress:
        for data in _parts(path, arguments, batch_rows, progress):
            if data.y is None:
                raise ValueError(without_labels(data, path))
            report_skipped(data)
            labels = named_labels(data)
            names.update(itertools.chain(*labels) if data.multilabel else labels.tolist())
            n_rows, several = n_rows + data.n_samples, several or data.multilabel
    terminal.log(f"{path}: {n_rows:,} rows of texts, {len(names):,} labels; {data.note}")
    n_held = min(_HELD_OUT, int(_HELD_OUT_SHARE * n_rows))
    drawn = np.random.default_rng(seed).permutation(n_rows)[: n_held + batch_rows]
    held, sample = np.sort(drawn[:n_held]), np.sort(drawn[n_held:])

    def rows(chosen: Any, keep: bool) -> Iterator[tuple[list[str], list[Any]]]:
        """Yield texts and labels of the chosen rows, or of all others, of every part."""
        start = 0
        for data in _parts(path, arguments, batch_rows):
            at = np.flatnonzero(np.isin(np.arange(start, start + data.n_samples), chosen) == keep).tolist()
            labels = named_labels(data)
            if several and not data.multilabel:
                labels = [[label] for label in labels.tolist()]
            yield [data.texts[i] for i in at], [labels[i] for i in at]
            start += data.n_samples

    def together(chosen: Any) -> tuple[list[str], list[Any]]:
        texts, labels = zip(*rows(chosen, keep=True), strict=True)
        return list(itertools.chain(*texts)), list(itertools.chain(*labels))

    with terminal.progress("training") as progress:
        model.partial_fit(*together(sample), classes=sorted(names))
        done = len(sample)
        for texts, labels in rows(drawn, keep=False):
            progress(done, n_rows - n_held)
            if model.interrupted_:
                return n_rows
            if texts:
                model.partial_fit(texts, labels)
            done += len(texts)
    if n_held and not model.interrupted_:
        texts, labels = together(held)
        calibrate(model, texts, labels)
        core, examples, n_threads = prepare(model, texts, labels)
        figures = core.evaluate(examples.usable().compact(), n_threads=n_threads)._asdict()
        model.history_[-1] |= {"held_out_rows": n_held} | {f"held_out_{n}": v for n, v in figures.items()}
    return n_rows


def _parts(path: Path, arguments: Mapping[str, Any], batch_rows: int, progress: Any = None) -> Iterator[Any]:
    from extremax.data import iter_dataset

    options = {name: value for name, value in arguments.items() if name != "labels_path"}  # of .npy alone
    for data in iter_dataset(path, batch_rows=batch_rows, **options, progress=progress):
        if data.texts is None:
            raise typer.BadParameter("--batch-rows is for texts; .npy features are mapped, not read, anyway.")
        yield data
