"""``extremax predict MODEL DATA``: the most probable labels of every row, as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from extremax.cli import terminal
from extremax.cli.models import batches, inputs_of, open_model, probabilities
from extremax.cli.options import (
    DataArgument,
    Encoder,
    ModelArgument,
    Quiet,
    Reading,
    Search,
    Threads,
    column_of,
)

SEARCH_HELP = "exact scores all classes; beam scores those that an index, or the label tree, finds best."
_OWN_NAME = re.compile(r"id|labels?|probability|probabilities|(label|probability)_\d+")
# what a spreadsheet takes for a formula; numbers are none
_FORMULA = re.compile(r"(?!-?\d+(\.\d+)?(e-?\d+)?\Z)\s*[=+\-@\t\r]", re.IGNORECASE | re.ASCII)
_ROWS = 4096  # predicted at a time
_ROWS_PIPED = 256  # predicted at a time from a pipe, where answers should not wait for thousands of rows
# Columns of the input, labels and probabilities of some rows.
Answers = tuple[dict[str, list[Any]], list[list[Any]], list[list[float]]]


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
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="[NUMBER|auto]",
            help="Give all labels that apply with at least this probability, instead of the first k;"
            " auto: the probability that was best for F1 in training.",
        ),
    ] = None,
    search: Annotated[Search, typer.Option(help=SEARCH_HELP)] = Search.exact,
    beam_width: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Classes that --search beam scores per row.  [default: chosen when the model was trained]",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of DATA to copy to the output: names or positions, separated by commas; or all."
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Column of row ids: its name, or its position from 0.  [default: number of the row]"
        ),
    ] = None,
    with_text: Annotated[
        bool, typer.Option("--text/--no-text", help="Whether to write the text, too.")
    ] = True,
    guard: Annotated[
        bool,
        typer.Option(
            "--guard/--no-guard",
            help="Whether to put ' before CSV cells that a spreadsheet would take for a formula.",
        ),
    ] = True,
    encoder: Encoder = None,
    threads: Threads = None,
    quiet: Quiet = False,
    *,
    reading: Reading,
) -> None:
    """Predict the k most probable labels of every row.

    \b
    Rows are read as by `extremax train`; labels in DATA are ignored.
    A model of texts takes plain lines from standard input, one text each.
    Answers have an id, which is the number of the row from 0 unless
    --id-column names a column of DATA, the columns of --keep, and the text.

    \b
    extremax predict model new.csv --k 5 --out answers.csv
    extremax predict model new.csv --id-column id --keep date,queue --no-text
    echo "fell off a ladder" | extremax predict model --to jsonl
    extremax predict model laws.csv --threshold auto --out concepts.jsonl
    """
    terminal.set_quiet(quiet)
    kind = to or _output_of(out)
    least = _threshold(threshold)
    wanted = [column_of(name.strip()) for name in (keep or "").split(",") if name.strip()]
    clf = open_model(model, threads, encoder)
    k = min(k, len(clf.classes_))
    columns = Columns(
        column_of(id_column), "all" if wanted == ["all"] else wanted, with_text and clf.takes_texts
    )
    n_rows = 0

    def answers() -> Iterator[Answers]:
        nonlocal n_rows
        at_once = _ROWS_PIPED if str(data) == "-" else _ROWS
        for batch in batches(clf, data, reading, at_once, columns.request):
            inputs, carried = inputs_of(clf, batch, data), columns.of(batch, n_rows)
            for start in range(0, batch.n_samples, _ROWS):  # sparse text comes in large batches
                part = slice(start, start + _ROWS)
                before = {name: values[part] for name, values in carried.items()}
                if threshold is not None:
                    yield before, *_labels_of(clf, inputs[part], least)
                    continue
                found = clf.predict_topk(inputs[part], k, search=search.value, beam_width=beam_width)
                yield before, found[0].tolist(), probabilities(found[1])
            n_rows += batch.n_samples

    with terminal.atomic_file(out) as file:
        if kind is Output.csv:
            show = _guarded if guard else _cell
            _write_csv(file, answers(), k if threshold is None else 0, columns.early_names, show)
        elif kind is Output.jsonl:
            for carried, labels, prob in answers():
                cells = zip(*carried.values(), labels, prob, strict=True)
                names = (*carried, "labels", "probabilities")
                file.writelines(json_line(dict(zip(names, row, strict=True))) for row in cells)
                file.flush()
        else:
            _write_parquet(file, answers())
    if out is not None:
        what = "texts" if clf.takes_texts else "rows"
        terminal.log(f"wrote predictions for {n_rows:,} {what} to {out}")


def _threshold(given: str | None) -> float | None:
    """Return the number of ``--threshold``; None for auto, and where it is not given."""
    if given is None or given == "auto":
        return None
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0.0 < found <= 1.0:
        raise typer.BadParameter(f"--threshold is {given!r}; give a number above 0 and at most 1, or auto.")
    return found


def _labels_of(clf: Any, inputs: Any, threshold: float | None) -> tuple[list[list[Any]], list[list[float]]]:
    """Return the labels that apply to each row, and their probabilities by themselves."""
    import numpy as np

    features = clf.to_features(inputs)
    rows, ids, prob = clf._labels_above(features, threshold)
    ends = np.searchsorted(rows, np.arange(1, features.shape[0] + 1))[:-1]
    names = [part.tolist() for part in np.split(clf.classes_[ids], ends)]
    return names, [[float(f"{p:.7g}") for p in part.tolist()] for part in np.split(prob, ends)]


def _output_of(out: Path | None) -> Output:
    if out is None or not out.suffix:
        return Output.csv
    if out.suffix[1:].lower() not in Output.__members__:
        raise typer.BadParameter(
            f"cannot tell what to write from the name {out}; end it in .csv, .jsonl or .parquet, or use --to."
        )
    return Output(out.suffix[1:].lower())


@dataclass(frozen=True)
class Columns:
    """Columns that are written before the predictions: id, those to be kept, text."""

    id_column: str | int | None
    keep: list[Any] | str
    with_text: bool

    @property
    def request(self) -> list[Any] | str:
        """Columns that the reader is asked for; that of the id is the first."""
        if isinstance(self.keep, str) or self.id_column is None:
            return self.keep
        return [self.id_column, *self.keep]

    @property
    def early_names(self) -> list[str]:
        """Names for a file without rows, where those of DATA are not known."""
        kept = [] if isinstance(self.keep, str) else [str(name) for name in self.keep]
        return ["id", *kept, *(["text"] if self.with_text else [])]

    def of(self, batch: Any, n_before: int) -> dict[str, list[Any]]:
        """Return the columns of a batch, after `n_before` rows."""
        from extremax.data.text_tables import find_column

        kept = dict(batch.columns)
        ids: list[Any] = batch.row_numbers or list(range(n_before, n_before + batch.n_samples))
        if self.id_column is not None:
            at = find_column("DATA", self.id_column, list(kept)) if isinstance(self.keep, str) else 0
            ids = kept.pop(list(kept)[at])
        out: dict[str, list[Any]] = {"id": ids}
        for name, values in kept.items():
            # a column of DATA that has the name of one that is written here
            out[f"input_{name}" if _OWN_NAME.fullmatch(name) else name] = values
        if self.with_text and not any(values == batch.texts for values in kept.values()):
            out["input_text" if "text" in out else "text"] = batch.texts
        return out


def _write_csv(
    file: IO[bytes],
    answers: Iterable[Answers],
    k: int,
    early_names: list[str],
    show: Callable[[Any], Any],
) -> None:
    """Write columns of the input, then labels and probabilities: k of each, or all joined if k is 0."""
    predicted = [f"{name}_{i}" for i in range(1, k + 1) for name in ("label", "probability")]
    if k < 2:
        predicted = ["label", "probability"] if k else ["labels", "probabilities"]
    has_head = False
    for carried, labels, prob in answers:
        # The head waits for the first rows: they may be bad.
        rows = [] if has_head else [[show(name) for name in (*carried, *predicted)]]
        has_head = True
        for before, names, values in zip(zip(*carried.values(), strict=True), labels, prob, strict=True):
            p = [decimal(value) for value in values]
            joined = [";".join(map(str, names)), ";".join(p)]
            found = joined if k == 0 else [cell for pair in zip(names, p, strict=True) for cell in pair]
            rows.append([show(cell) for cell in (*before, *found)])
        file.write(csv_bytes(rows))
        file.flush()
    if not has_head:
        file.write(csv_bytes([[show(name) for name in (*early_names, *predicted)]]))


def _write_parquet(file: IO[bytes], answers: Iterable[Answers]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError("--to parquet needs pyarrow: pip install extremax[parquet].") from error
    writer: Any = None
    for carried, labels, prob in answers:
        if not all(isinstance(name, str | int | float) for row in labels for name in row):
            labels = [[str(name) for name in row] for row in labels]
        first = next((name for row in labels for name in row), "")
        kind = pa.infer_type([first]) if writer is None else writer.schema.field("labels").type.value_type
        table = pa.table(
            {
                **{name: _uniform(values) for name, values in carried.items()},
                "labels": pa.array(labels, pa.list_(kind)),
                "probabilities": pa.array(prob, pa.list_(pa.float64())),
            }
        )
        writer = writer or pq.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else value


def _guarded(value: Any) -> Any:
    cell = _cell(value)
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _uniform(values: list[Any]) -> list[Any]:
    """Return values of one type for a column of Parquet: integers, or strings."""
    if all(isinstance(value, int) for value in values):
        return values
    return [None if value is None else str(_cell(value)) for value in values]


def csv_bytes(rows: Iterable[Iterable[Any]], delimiter: str = ",") -> bytes:
    """Return rows as CSV in UTF-8."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def json_line(record: dict[str, Any]) -> bytes:
    """Return a record as a line of JSON in UTF-8."""
    return json.dumps(record, ensure_ascii=False, default=str).encode() + b"\n"


def decimal(value: float) -> str:
    """Return a probability in one form, seven digits and no exponent.

    Examples
    --------
    >>> decimal(0.25), decimal(1.2345678e-7), decimal(1.0)
    ('0.25', '0.0000001234568', '1')
    """
    import numpy as np

    return str(np.format_float_positional(value, precision=7, fractional=False, trim="-"))
