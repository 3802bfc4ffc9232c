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

    The file is read for its labels, for a sample, which fixes the n-grams, and for all other rows. A few rows
    are held out to calibrate and measure the model.
    """
    import numpy as np

    if str(path) == "-":
        raise typer.BadParameter("--batch-rows reads the file more than once; give a file, not a pipe.")
    file = _File(path, arguments, batch_rows)
    names = file.read_labels()
    n_held = min(_HELD_OUT, int(_HELD_OUT_SHARE * file.n_rows))
    drawn = np.random.default_rng(seed).permutation(file.n_rows)[: n_held + batch_rows]
    sample = [row for part in file.rows(drawn, among=True) for row in zip(*part, strict=True)]
    is_held = np.isin(np.sort(drawn), drawn[:n_held])
    first, held_out = (
        _columns([sample[i] for i in np.flatnonzero(is_held == kind)]) for kind in (False, True)
    )
    model.partial_fit(*first, classes=names)
    done = len(first[0])
    with terminal.progress("training") as progress:
        try:
            for texts, labels in file.rows(drawn, among=False):
                progress(done, file.n_rows - n_held)
                if model.interrupted_:
                    break
                if texts:
                    model.partial_fit(texts, labels)
                done += len(texts)
        except KeyboardInterrupt:  # while a part was read
            model.classifier_.interrupted_ = True
    if n_held and not model.interrupted_:
        _measure(model, *held_out)
    return file.n_rows


def _measure(model: Any, texts: list[str], labels: list[Any]) -> None:
    """Calibrate a model by rows that it was not trained on, and note how good it is on them."""
    from extremax.evaluation import calibrate, prepare

    calibrate(model, texts, labels)
    core, examples, n_threads = prepare(model, texts, labels)
    figures = core.evaluate(examples.usable().compact(), n_threads=n_threads)._asdict()
    model.history_[-1] |= {"held_out_rows": len(texts)} | {f"held_out_{n}": v for n, v in figures.items()}


def _columns(rows: list[tuple[str, Any]]) -> tuple[list[str], list[Any]]:
    return [text for text, _ in rows], [label for _, label in rows]


class _File:
    """A file of texts with labels that is read in parts, several times."""

    def __init__(self, path: Path, arguments: Mapping[str, Any], batch_rows: int) -> None:
        self.path, self.batch_rows, self.n_rows, self.has_several_labels = path, batch_rows, 0, False
        self.arguments = {name: value for name, value in arguments.items() if name != "labels_path"}

    def read_labels(self) -> list[Any]:
        """Count the rows, and return their labels in order."""
        names: set[Any] = set()
        note = ""
        with terminal.progress(f"reading {self.path.name}") as progress:
            for data in self._parts(progress):
                if data.y is None:
                    raise ValueError(without_labels(data, self.path))
                report_skipped(data)
                labels, note = named_labels(data), data.note
                names.update(itertools.chain(*labels) if data.multilabel else labels.tolist())
                self.has_several_labels |= data.multilabel
                self.n_rows += data.n_samples
        if not names:
            raise ValueError(f"{self.path} has no rows.")
        terminal.log(f"{self.path}: {self.n_rows:,} rows of texts, {len(names):,} labels; {note}")
        return sorted(names)

    def rows(self, drawn: Any, *, among: bool) -> Iterator[tuple[list[str], list[Any]]]:
        """Yield texts and labels of the rows of every part that were drawn, or of all others."""
        import numpy as np

        start = 0
        for data in self._parts():
            is_drawn = np.isin(np.arange(start, start + data.n_samples), drawn)
            at = np.flatnonzero(is_drawn == among).tolist()
            labels = named_labels(data)
            if self.has_several_labels and not data.multilabel:
                labels = [[label] for label in labels.tolist()]
            yield [data.texts[i] for i in at], [labels[i] for i in at]
            start += data.n_samples

    def _parts(self, progress: Any = None) -> Iterator[Any]:
        from extremax.data import iter_dataset

        for data in iter_dataset(self.path, batch_rows=self.batch_rows, **self.arguments, progress=progress):
            if data.texts is None:
                raise typer.BadParameter(
                    "--batch-rows is for texts; .npy features are mapped, not read, anyway."
                )
            yield data
