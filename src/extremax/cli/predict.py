"""``extremax predict MODEL DATA``: the most probable labels of every row, as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Protocol

import typer

from extremax.cli import terminal
from extremax.cli.models import batches, inputs_of, open_model, takes_texts
from extremax.cli.options import DataArgument, ModelArgument, Quiet, Reading, Search, Threads, unbundled

SEARCH_HELP = "exact scores all classes; beam scores those that an index, or the label tree, finds best."
_ROWS = 4096  # predicted at a time
_ROWS_PIPED = 256  # predicted at a time from a pipe, where answers should not wait for thousands of rows


class Output(StrEnum):
    """Formats of predictions."""

    csv = "csv"
    jsonl = "jsonl"
    parquet = "parquet"


def predict(  # noqa: PLR0913 (the parameters are the options)
    model: ModelArgument,
    data: DataArgument = Path("-"),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write; standard output if not given."),
    ] = None,
    to: Annotated[
        Output | None,
        typer.Option("--to", help="Format to write.  [default: by the name of --out, else csv]"),
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Labels per row, best first.")] = 1,
    search: Annotated[Search, typer.Option(help=SEARCH_HELP)] = Search.exact,
    beam_width: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Classes that --search beam scores per row.  [default: chosen when the model was trained]",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    *,
    reading: Reading,
) -> None:
    """Predict the k most probable labels of every row.

    \b
    Rows are read as by `extremax train`; labels in DATA are ignored.
    A model of texts takes plain lines from standard input, one text each.

    \b
    extremax predict model new.csv --k 5 --out answers.csv
    echo "fell off a ladder" | extremax predict model --to jsonl
    """
    terminal.set_quiet(quiet)
    kind = to or _output_of(out)
    clf = open_model(model, threads)
    k = min(k, len(clf.classes_))
    with terminal.atomic_file(out) as file:
        writer = _WRITERS[kind](file, k)
        n_rows = 0
        for batch in batches(clf, data, reading, _ROWS_PIPED if str(data) == "-" else _ROWS):
            inputs = inputs_of(clf, batch, data)
            for start in range(0, batch.n_samples, _ROWS):  # sparse text comes in large batches
                part = inputs[start : start + _ROWS]
                labels, log_prob = clf.predict_topk(part, k, search=search.value, beam_width=beam_width)
                writer.write(labels, log_prob)
            n_rows += batch.n_samples
            if out is None:
                file.flush()
        writer.close()
    if out is not None:
        what = "texts" if takes_texts(clf) else "rows"
        terminal.log(f"wrote predictions for {n_rows:,} {what} to {out}")


def _output_of(out: Path | None) -> Output:
    if out is None or not out.suffix:
        return Output.csv
    if out.suffix[1:].lower() not in Output.__members__:
        raise typer.BadParameter(
            f"cannot tell what to write from the name {out}; end it in .csv, .jsonl or .parquet, or use --to."
        )
    return Output(out.suffix[1:].lower())


class Writer(Protocol):
    """Writes labels and their log-probabilities, some rows at a time."""

    def __init__(self, file: IO[bytes], k: int) -> None: ...

    def write(self, labels: Any, log_prob: Any) -> None:
        """Write labels (n, k) and log-probabilities (n, k)."""

    def close(self) -> None:
        """Finish the file."""


class _CsvWriter:
    """``label,probability``, or for k > 1 ``label_1,probability_1,label_2,...``."""

    def __init__(self, file: IO[bytes], k: int) -> None:
        self._file = file
        names = (
            [("label", "probability")]
            if k == 1
            else [(f"label_{i}", f"probability_{i}") for i in range(1, k + 1)]
        )
        self._head: list[list[Any]] = [[name for pair in names for name in pair]]

    def _send(self, rows: list[list[Any]]) -> None:
        rows, self._head = [*self._head, *rows], []  # the head waits for the first rows: they may be bad
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.write(text.getvalue().encode())

    def write(self, labels: Any, log_prob: Any) -> None:
        rows = []
        for names, p in zip(labels.tolist(), probabilities(log_prob), strict=True):
            rows.append([cell for pair in zip(names, p, strict=True) for cell in pair])
        self._send(rows)

    def close(self) -> None:
        self._send([])


class _JsonLinesWriter:
    """``{"labels": [...], "probabilities": [...]}`` for each row."""

    def __init__(self, file: IO[bytes], k: int) -> None:
        self._file = file

    def write(self, labels: Any, log_prob: Any) -> None:
        for names, p in zip(labels.tolist(), probabilities(log_prob), strict=True):
            line = json.dumps({"labels": names, "probabilities": p}, ensure_ascii=False, default=str)
            self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        pass


class _ParquetWriter:
    """Columns ``labels`` and ``probabilities``, lists of k each."""

    def __init__(self, file: IO[bytes], k: int) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, labels: Any, log_prob: Any) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise ImportError("--to parquet needs pyarrow: pip install extremax[parquet].") from error
        names = labels.tolist()
        if names and not isinstance(names[0][0], str | int | float):
            names = [[str(name) for name in row] for row in names]
        table = pa.table(
            {"labels": names, "probabilities": pa.array(probabilities(log_prob), pa.list_(pa.float64()))}
        )
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


_WRITERS: dict[Output, type[Writer]] = {
    Output.csv: _CsvWriter,
    Output.jsonl: _JsonLinesWriter,
    Output.parquet: _ParquetWriter,
}


def probabilities(log_prob: Any) -> list[list[float]]:
    """Return probabilities with seven digits, the precision of float32."""
    import numpy as np

    return [[float(f"{p:.7g}") for p in row] for row in np.exp(log_prob.astype(np.float64)).tolist()]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(unbundled(predict))
