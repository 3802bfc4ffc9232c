"""Reading a file as a Dataset; the format is detected from the content of the file."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from extremax.data import labels
from extremax.data.array_files import read_labels, read_npy, read_npz
from extremax.data.columns import read_columns
from extremax.data.dataset import DataFileError, Dataset
from extremax.data.json_lines import read_json
from extremax.data.options import Column, Kept, Progress, ReadOptions, ZeroBased
from extremax.data.sparse_text import SparseTextReader
from extremax.data.streams import BINARY, HEAD_BYTES, SUFFIXES, ByteStream, Source, on_disk, open_stream
from extremax.data.text_tables import (
    LABEL_NAMES,
    LABEL_PREFIX,
    TEXT_NAMES,
    TextReader,
    read_fasttext,
    read_lines,
    read_table,
)
from extremax.validation.frames import to_arrow_table

TextFormat = Literal["csv", "tsv", "json", "jsonl", "fasttext", "lines"]
Format = Literal["auto", "xmc", "libsvm", "npy", "npz", "parquet", "arrow", TextFormat]
Reduction = Literal["first", "smallest", "rarest", "all"]

_FORMATS = get_args(Format)[1:]
# Formats of files whose names end otherwise than in the format.
_BY_SUFFIX = {"tab": "tsv", "svm": "libsvm", "svmlight": "libsvm", "ft": "fasttext", "ndjson": "jsonl"}
_TEXT_READERS = {
    "lines": read_lines,
    "fasttext": read_fasttext,
    "json": read_json,
    "jsonl": read_json,
    "csv": read_table,
    "tsv": read_table,
}
_JSON = re.compile(rb"\s*(?:\{\s*[\"}]|\[\s*[{\"\]])")
_MOST_SKIPPED, _JUDGED_ROWS = 0.1, 100  # of so many rows or more; more mean a wrong format or encoding
_SNIFFED_LINES = 20  # from which the separator of columns is told
_XMC_HEADER = re.compile(rb"\s*\d+[ \t]+\d+[ \t]+\d+[ \t]*\r?")
_SPARSE_LINE = re.compile(
    rb"[-+\d.,]*([ \t]+\d+:[-+\d.eE]+)+[ \t]*(#.*)?\r?|\d+:[-+\d.eE]+([ \t]+\d+:[-+\d.eE]+)*[ \t]*\r?"
)


def load_dataset(  # noqa: PLR0913 (the parameters are the API)
    path: Source,
    *,
    format: Format = "auto",
    reduce: Reduction | None = None,
    label_counts: Mapping[Any, int] | NDArray[Any] | None = None,
    labels_path: str | os.PathLike[str] | None = None,
    text_column: Column | None = None,
    label_column: Column | None = None,
    vector_column: str | None = None,
    label_separator: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Read a file of features or texts with labels.

    Formats: XMC repository text, libsvm / svmlight, ``.npy`` (memory-mapped) and ``.npz``, Parquet and Arrow
    with a vector or text column, CSV and TSV with a text and a label column, JSON lines and arrays with
    fields for text and label or labels, fastText ``__label__`` lines, and with ``format="lines"`` plain
    lines, each a text. Files may be compressed with gzip, bzip2, xz or Zstandard; arrays and columns are then
    unpacked to a temporary file.

    Parameters
    ----------
    path : path or binary file object, data frame or Hugging Face dataset
        The file; a folder with ``X.npy`` and ``y.npy``; or an open binary stream such as
        ``sys.stdin.buffer``. Columns of a data frame are read as those of an Arrow file.
    format : str
        Format; "auto" detects it from the content.
    reduce : {"first", "smallest", "rarest", "all"} or None
        For rows with sets of labels: keep one label per row, or make each (row, label) pair a row ("all").
        Rows without a label are left out and counted in `n_unlabelled`. None keeps the sets.
    label_counts : mapping or array, or None
        For ``reduce="rarest"``: how often labels occur in the training rows (`extremax.data.label_counts`).
    labels_path : path or None
        For ``.npy`` and ``.npz`` features: the file of labels, an ``.npy`` array, a text file with one label
        per line, or an indicator matrix saved by ``scipy.sparse.save_npz``. By default ``y.npy`` beside
        ``X.npy``.
    text_column, label_column : str, int or None
        Columns of a table, or fields of JSON, by name or position; by default by their usual names.
    vector_column : str or None
        Column of vectors in a Parquet or Arrow file; by default the first column of float lists.
    label_separator : str or None
        Separator of several labels in one field of a table.
    delimiter : str or None
        Separator of the columns of a table; by default a tab in TSV, and in CSV the one of ``, ; | tab`` that
        its first rows have outside quotes.
    encoding : str or None
        Encoding of text, such as "cp1252"; None means UTF-8, or UTF-16 where the file begins with its mark.
    header : bool or None
        Whether the first row of a table holds names; None detects it.
    n_features : int or None
        Width of libsvm rows; None takes the largest index.
    zero_based : bool or "auto"
        Whether libsvm indices count from 0; "auto" means yes if the file has an index 0.
    skip_bad_lines : bool
        Skip and count malformed lines instead of raising an error; more than a tenth of them are one.
    progress : callable or None
        Called with the bytes read so far (rows for Parquet) and the total, which is None for a pipe.

    Returns
    -------
    Dataset

    Raises
    ------
    DataFileError
        With file, line and column, what was expected and what to do.

    Examples
    --------
    >>> import io
    >>> from extremax.data import load_dataset
    >>> data = load_dataset(io.BytesIO(b"2 4 3\\n0,2 1:0.5 3:1\\n1 0:2\\n"))
    >>> data.format, data.X.shape, data.y.toarray().tolist()
    ('xmc', (2, 4), [[1, 0, 1], [0, 1, 0]])
    """
    data = next(_checked(path, format, _options(locals()), None))
    return data if reduce is None else reduce_labels(data, reduce, label_counts)


def iter_dataset(  # noqa: PLR0913 (the parameters are the API)
    path: Source,
    *,
    batch_rows: int = 10_000,
    format: Format = "auto",
    text_column: Column | None = None,
    label_column: Column | None = None,
    vector_column: str | None = None,
    label_separator: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    n_features: int | None = None,
    zero_based: ZeroBased = "auto",
    skip_bad_lines: bool = False,
    keep: Kept = None,
    ignore_labels: bool = False,
    progress: Progress | None = None,
) -> Iterator[Dataset]:
    """Read a file in batches of about `batch_rows` rows, for files larger than memory and for pipes.

    Arguments are as in `load_dataset`. Sparse text comes in batches of some megabytes for any `batch_rows`,
    and libsvm text needs `n_features` and `zero_based`. Label names are those of each batch.

    `keep` names columns of a table, fields of JSON or columns of Parquet and Arrow to be kept in the batches'
    ``columns``: a list, which may be empty, or "all". The rows of a batch are then numbered, too.
    With `ignore_labels` labels are not read, so that some may be missing.

    Examples
    --------
    >>> import io
    >>> from extremax.data import iter_dataset
    >>> file = io.BytesIO(b"text,label\\na b,1\\nc,2\\nd,1\\n")
    >>> [batch.texts for batch in iter_dataset(file, batch_rows=2)]
    [['a b', 'c'], ['d']]
    """
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}; it must be at least 1.")
    return _checked(path, format, _options(locals()), batch_rows)


def _options(arguments: Mapping[str, Any]) -> ReadOptions:
    """Return the arguments of a reader that are fields of the options."""
    names = {field.name for field in fields(ReadOptions)}
    return ReadOptions(**{name: value for name, value in arguments.items() if name in names})


def detect_format(stream: ByteStream) -> str:
    """Detect the format of a stream by its first bytes, its first lines and, for tables, its name."""
    head = stream.head
    for magic, kind in BINARY.items():
        if head.startswith(magic):
            return kind
    name = stream.name.lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    suffix = Path(name).suffix.removeprefix(".")
    by_name = _BY_SUFFIX.get(suffix, suffix)
    if by_name in ("xmc", "libsvm", *_TEXT_READERS):
        return by_name
    lines = head.split(b"\n")
    if len(lines) == 1 and len(head) >= HEAD_BYTES:  # one long line, cut off inside a word
        lines = [lines[0].rpartition(b" ")[0]]
    lines = (lines[:-1] or lines)[:20]  # the last one may be cut off
    if _XMC_HEADER.fullmatch(lines[0]):
        return "xmc"
    text = [line for line in lines if line.strip()]
    if _JSON.match(head):
        return "jsonl"
    if any(line.lstrip().startswith(LABEL_PREFIX.encode()) for line in text[:5]):
        return "fasttext"
    # more than half of the lines decide: the reader will report bad ones
    signs = {
        "libsvm": [bool(_SPARSE_LINE.fullmatch(line)) or line.startswith(b"#") for line in text[:5]],
        "tsv": [b"\t" in line for line in text],
        "csv": [_delimiter(head).encode() in line for line in text],
    }
    for kind, agree in signs.items():
        if 2 * sum(agree) > len(agree):
            return kind
    message = "cannot tell the format from the first lines; pass format= one of"
    raise DataFileError(stream.name, f"{message} {', '.join(_FORMATS)}.", line=1)


def _checked(source: Any, format: str, options: ReadOptions, batch_rows: int | None) -> Iterator[Dataset]:
    """Yield the datasets of a file, and stop where more than a tenth of its rows were skipped."""
    n_rows = n_skipped = 0
    first = ""

    def check() -> None:
        if n_skipped > 1 and _MOST_SKIPPED * n_rows < n_skipped:
            raise ValueError(
                f"{n_skipped:,} of {n_rows:,} rows are malformed, more than a tenth; correct the file, or"
                f" read it with other options. The first is {first}."
            )

    for data in _batches(source, format, options, batch_rows):
        n_rows, n_skipped = n_rows + data.n_samples + data.n_skipped, n_skipped + data.n_skipped
        first = first or (data.skipped[0] if data.skipped else "")
        if batch_rows is None or n_rows >= _JUDGED_ROWS:  # the first lines of a pipe tell little of the rest
            check()
        yield data
    check()


def _batches(source: Any, format: str, options: ReadOptions, batch_rows: int | None) -> Iterator[Dataset]:
    if format not in get_args(Format):
        raise ValueError(f"format is {format!r}; use one of {', '.join(sorted(_FORMATS))} or 'auto'.")
    table = to_arrow_table(source)
    if table is not None:
        yield from read_columns(table, "the data frame", "arrow", options, batch_rows)
        return
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = _packed_or_not(Path(source) / "X.npy") or source
    with open_stream(source, options.progress, options.encoding) as stream:
        kind = detect_format(stream) if format == "auto" else format
        if options.labels_path is not None and kind not in ("npy", "npz"):
            raise ValueError(
                f"labels_path is for features in .npy or .npz; {stream.name} is {kind}, which holds its"
                " labels itself."
            )
        if options.keep and kind in ("npy", "npz", "xmc", "libsvm"):
            raise ValueError(f"{stream.name} holds features alone: there are no columns to be kept.")
        if kind in ("parquet", "arrow"):
            if stream.compression or not stream.is_file:
                options = replace(options, progress=None)  # unpacking has reported it
            with on_disk(source, stream) as path:
                yield from read_columns(path, stream.name, kind, options, batch_rows)
        elif kind in ("npy", "npz"):
            with on_disk(source, stream) as path:
                yield from _array_batches(path, stream.name, kind, options, batch_rows)
        elif kind in ("xmc", "libsvm"):
            sparse = SparseTextReader(stream, kind == "xmc", options)
            yield from [sparse.read()] if batch_rows is None else sparse.batches()
        else:
            delimiter = options.delimiter or ("\t" if kind == "tsv" else _delimiter(stream.head))
            reader = TextReader(stream, kind, replace(options, delimiter=delimiter))
            yield from reader.batches(_TEXT_READERS[kind](reader), batch_rows)


def _array_batches(
    path: Path, name: str, kind: str, options: ReadOptions, batch_rows: int | None
) -> Iterator[Dataset]:
    data = read_npy(path, name) if kind == "npy" else read_npz(path, name)
    labels_path: Any = options.labels_path
    if labels_path is None and data.y is None and Path(name).name.startswith("X.npy"):
        labels_path = _packed_or_not(Path(name).with_name("y.npy"))
    if labels_path is not None:
        data = replace(data, y=read_labels(labels_path, data.n_samples))
    if batch_rows is None:
        yield data
        return
    for start in range(0, data.n_samples, batch_rows):
        rows = slice(start, start + batch_rows)
        yield replace(data, X=data.X[rows], y=None if data.y is None else data.y[rows])


def _packed_or_not(path: Path) -> Path | None:
    """Return a file that exists, compressed or not."""
    choices = (path.with_name(path.name + suffix) for suffix in ("", *SUFFIXES))
    return next((choice for choice in choices if choice.exists()), None)


def _delimiter(head: bytes) -> str:
    """Detect the separator of columns by the first rows; what stands in quotes does not count.

    It is the one that cuts out a usual name and makes rows of the same length; else one that does either.
    """
    lines = head.decode(errors="replace").split("\n")
    lines = lines[:-1] if len(lines) > 2 else lines  # the last one may be cut off
    # a comma outside quotes in the first row yields only to even rows with a usual name
    best, found = int("," in re.sub(r'"[^"]*"', "", lines[0])), ","
    for delimiter in (",", ";", "\t", "|"):
        rows: list[list[str]] = []
        with suppress(csv.Error):  # a quote in the wrong place, or one that is closed further down
            for row in csv.reader(lines[:_SNIFFED_LINES], delimiter=delimiter, strict=True):
                rows += [row] if "".join(row).strip() else []
        if not rows or len(rows[0]) < 2:
            continue
        is_named = not {name.strip().lower() for name in rows[0]}.isdisjoint((*TEXT_NAMES, *LABEL_NAMES))
        is_even = len(rows) > 1 and len({len(row) for row in rows}) == 1
        if is_named + is_even > best:
            best, found = is_named + is_even, delimiter
    return found


def reduce_labels(
    data: Dataset, reduce: str, counts: Mapping[Any, int] | NDArray[Any] | None = None
) -> Dataset:
    """Return a dataset with one label per row; `reduce` and `counts` as in `load_dataset`."""
    if reduce not in ("first", "smallest", "rarest", "all"):
        raise ValueError(f"reduce is {reduce!r}; use 'first', 'smallest', 'rarest' or 'all'.")
    if not data.multilabel:
        return data
    labelled = labels.has_label(data.y)
    if reduce == "all":
        rows, ids = labels.all_pairs(data.y)
    else:
        rows = np.flatnonzero(labelled).astype(np.int64)
        y = data.y[rows]
        if reduce == "rarest":
            if counts is not None and data.label_names is not None and isinstance(counts, Mapping):
                counts = np.array([counts.get(name, 0) for name in data.label_names])
            ids = labels.rarest_label(y, labels.label_counts(data.y) if counts is None else counts)
        else:
            ids = labels.first_label(y) if reduce == "first" else labels.smallest_label(y)
    y = ids if data.label_names is None else np.asarray(data.label_names)[ids]
    same = len(rows) == data.n_samples and bool((rows == np.arange(len(rows))).all())
    return replace(
        data,
        X=data.X if data.X is None or same else data.X[rows],
        texts=data.texts if data.texts is None or same else [data.texts[i] for i in rows],
        y=y,
        label_names=None,
        n_unlabelled=int((~labelled).sum()),
    )
