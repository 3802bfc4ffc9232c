"""Columns of Parquet and Arrow files and of data frames: vectors or texts, and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.data.array_files import LABEL_KEYS, foreign
from extremax.data.dataset import DataFileError, Dataset, make_labels, string_array
from extremax.data.options import ReadOptions
from extremax.data.text_tables import LABEL_NAMES, TEXT_NAMES, find_column, find_columns
from extremax.runtime.memory import check_memory

VECTOR_NAMES = ("vector", "embedding", "embeddings", "features", "X", "x")
_DAMAGED = "is not a whole Parquet or Arrow file"
_FIRST_ROWS = 1000  # from which the memory of all rows is estimated
_HINTS = ("read it in parts with extremax.data.iter_dataset", "fewer rows")


class _Chosen(NamedTuple):
    """Names of the columns to read."""

    vector: str | None
    text: str | None
    label: str | None
    kept: list[str]


def read_columns(
    source: Any, name: str, kind: str, options: ReadOptions, batch_rows: int | None
) -> Iterator[Dataset]:
    """Yield datasets of a file or an Arrow table, of at most `batch_rows` rows each, or one of all rows."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(f"{name} needs pyarrow: pip install extremax[parquet].") from error
    with foreign(name, _DAMAGED):
        file = _open(pa, source)
        n_rows = file.count_rows()
        chosen = _choose(pa, name, file.schema, options)
        columns = list(dict.fromkeys(column for column in (*chosen[:3], *chosen.kept) if column is not None))
        if batch_rows is None:
            first = file.head(_FIRST_ROWS, columns=columns)
            need = {"rows": 2 * n_rows * first.nbytes // max(len(first), 1)}
            check_memory(need, hints=_HINTS, what=f"reading {name}")
            tables = iter([file.to_table(columns=columns)])
        else:
            batches = file.to_batches(columns=columns, batch_size=batch_rows, batch_readahead=1)
            tables = (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
        done = 0
        for table in tables:
            table.validate(full=True)  # offsets of strings and lists are followed wherever they lead
            row_numbers = None if options.keep is None else list(range(done, done + len(table)))
            data = replace(_dataset(pa, name, table, chosen, done), format=kind, row_numbers=row_numbers)
            done += len(table)
            if options.progress is not None:
                options.progress(done, n_rows)
            yield data
    if done != n_rows:
        raise DataFileError(name, f"announces {n_rows:,} rows and has {done:,}; write it again.")


def _open(pa: Any, source: Any) -> Any:
    """Return a file or a table as a `pyarrow.dataset.Dataset`."""
    from pyarrow import dataset

    if isinstance(source, pa.Table):
        return dataset.dataset(source)
    with Path(source).open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1" or magic == b"ARROW1":
        return dataset.dataset(source, format="parquet" if magic[:4] == b"PAR1" else "ipc")
    with pa.memory_map(str(source)) as mapped:
        return dataset.dataset(pa.ipc.open_stream(mapped).read_all())


def _choose(pa: Any, name: str, schema: Any, options: ReadOptions) -> _Chosen:
    """Return the columns asked for, else those with a fitting type and, if possible, a usual name."""
    kinds = {field.name: field.type for field in schema}
    vector, text, label = (
        None if column is None else schema.names[find_column(name, column, schema.names)]
        for column in (options.vector_column, options.text_column, options.label_column)
    )

    def choose(usual: tuple[str, ...], fitting: list[str]) -> str | None:
        return next((column for column in (*usual, *fitting) if column in fitting), None)

    if vector is None and text is None:
        lists = {column: kind for column, kind in kinds.items() if _is_list(pa, kind)}
        floats = [column for column, kind in lists.items() if pa.types.is_floating(kind.value_type)]
        vector = choose(VECTOR_NAMES, floats)
    if vector is None and text is None:
        strings = [c for c, kind in kinds.items() if kind in (pa.string(), pa.large_string())]
        text = choose(TEXT_NAMES, [c for c in strings if c != label and c not in LABEL_NAMES])
    if vector is None and text is None:
        columns = ", ".join(schema.names[:20])
        raise DataFileError(name, f"has no column of float vectors or texts; columns are {columns}.")
    if label is None:
        label = next((c for c in LABEL_KEYS if c in kinds and c not in (vector, text)), None)
    kept = [schema.names[i] for i in find_columns(name, options.keep, schema.names)]
    return _Chosen(vector, text if vector is None else None, None if options.ignore_labels else label, kept)


def _dataset(pa: Any, name: str, table: Any, chosen: _Chosen, first_row: int) -> Dataset:
    X, texts, y, label_names = None, None, None, None

    def take(column: str, what: str) -> Any:
        values = table.column(column).combine_chunks()
        _check_nulls(name, values, first_row, what)
        return values

    if chosen.vector is not None:
        X = _vectors(pa, name, take(chosen.vector, "vector"), first_row)
    if chosen.text is not None:
        texts = [str(text) for text in take(chosen.text, "text").to_pylist()]
    if chosen.label is not None:
        y, label_names = _labels(pa, take(chosen.label, "label"))
    columns = {column: table.column(column).to_pylist() for column in chosen.kept}
    return Dataset(X=X, texts=texts, y=y, label_names=label_names, columns=columns)


def _check_nulls(name: str, column: Any, first_row: int, what: str) -> None:
    if column.null_count:
        row = first_row + int(np.flatnonzero(~np.asarray(column.is_valid()))[0])
        raise DataFileError(name, f"row {row} has no {what}; leave such rows out of the file.")


def _vectors(pa: Any, name: str, column: Any, first_row: int) -> NDArray[np.float32]:
    if not _is_list(pa, column.type):
        raise DataFileError(name, f"expected a column of lists of numbers as vectors, got {column.type}.")
    flat, lengths = column.flatten(), np.asarray(column.value_lengths())
    _check_nulls(name, flat, first_row, "number in its vector")
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int(np.flatnonzero(lengths != width)[0])
        message = f"row {first_row + row} has {lengths[row]} features, the rows before have {width}."
        raise DataFileError(name, message)
    values = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return np.asarray(values.reshape(len(lengths), width))


def _labels(pa: Any, column: Any) -> tuple[Any, list[str] | None]:
    lengths = np.ones(len(column), np.int64)
    if _is_list(pa, column.type):
        lengths, column = np.asarray(column.value_lengths()), column.flatten()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        flat: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    else:
        flat = string_array([str(value) for value in column.to_pylist()])
    return make_labels(flat, lengths)


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
