"""Columns of Parquet and Arrow files and of data frames: vectors or texts, and labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.data.array_files import LABEL_KEYS, foreign
from extremax.data.dataset import DataFileError, Dataset, RaggedLabels, string_array
from extremax.data.streams import Progress
from extremax.data.text_tables import LABEL_NAMES, TEXT_NAMES, Kept, find_columns
from extremax.runtime.memory import check_memory

VECTOR_NAMES = ("vector", "embedding", "embeddings", "features", "X", "x")
_DAMAGED = "is not a whole Parquet or Arrow file"
_FIRST_ROWS = 1000  # from which the memory of all rows is estimated


@dataclass
class ColumnFile:
    """A Parquet or Arrow file, or an Arrow table, and the columns to read."""

    source: Any  # a path or a table
    name: str
    format: str
    vector_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    keep: Kept = None
    ignore_labels: bool = False
    progress: Progress | None = None

    def batches(self, batch_rows: int | None) -> Iterator[Dataset]:
        """Yield datasets of at most `batch_rows` rows each, or one of all rows."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise ImportError(f"{self.name} needs pyarrow: pip install extremax[parquet].") from error
        with foreign(self.name, _DAMAGED):
            file = _open(pa, self.source)
            n_rows, names = file.count_rows(), file.schema.names
        self._choose_columns(pa, file.schema)
        kept = [names[i] for i in find_columns(self.name, self.keep, names)]
        wanted = (self.vector_column, self.text_column, self.label_column, *kept)
        columns = list(dict.fromkeys(column for column in wanted if column is not None))
        with foreign(self.name, _DAMAGED):
            tables = self._tables(pa, file, columns, n_rows, batch_rows)
            done = 0
            for table in tables:
                table.validate(full=True)  # offsets of strings and lists are followed wherever they lead
                data = self._dataset(pa, table, kept, done)
                done += table.num_rows
                if self.progress is not None:
                    self.progress(done, n_rows)
                yield data
        if done != n_rows:
            raise DataFileError(self.name, f"announces {n_rows:,} rows and has {done:,}; write it again.")

    def _tables(
        self, pa: Any, file: Any, columns: list[str], n_rows: int, batch_rows: int | None
    ) -> Iterator[Any]:
        if batch_rows is not None:
            batches = file.to_batches(columns=columns, batch_size=batch_rows, batch_readahead=1)
            yield from (pa.Table.from_batches([batch]) for batch in batches if batch.num_rows)
            return
        first = file.head(_FIRST_ROWS, columns=columns)
        need = {"rows": 2 * n_rows * first.nbytes // max(len(first), 1)}
        hints = ("read it in parts with extremax.data.iter_dataset", "fewer rows")
        check_memory(need, hints=hints, what=f"reading {self.name}")
        yield file.to_table(columns=columns)

    def _dataset(self, pa: Any, table: Any, kept: list[str], first_row: int) -> Dataset:
        X, texts, y, names = None, None, None, None
        if self.vector_column is not None:
            X = self._vectors(pa, table.column(self.vector_column).combine_chunks(), first_row)
        if self.text_column is not None:
            column = table.column(self.text_column)
            self._no_nulls(column, first_row, "text")
            texts = [str(text) for text in column.to_pylist()]
        if self.label_column is not None:
            y, names = self._labels(pa, table.column(self.label_column).combine_chunks(), first_row).finish(
                None
            )
        return Dataset(
            X=X,
            texts=texts,
            y=y,
            label_names=names,
            format=self.format,
            row_numbers=None if self.keep is None else list(range(first_row, first_row + table.num_rows)),
            columns={column: table.column(column).to_pylist() for column in kept},
        )

    def _choose_columns(self, pa: Any, schema: Any) -> None:
        """Complete the names of the columns by those with a fitting type or a usual name."""
        kinds = {field.name: field.type for field in schema}
        shown = f"columns are {', '.join(schema.names[:20])}."
        for column in (self.vector_column, self.text_column, self.label_column):
            if column is not None and column not in kinds:
                raise DataFileError(self.name, f"there is no column {column!r}; {shown}")

        def choose(usual: tuple[str, ...], fitting: list[str]) -> str | None:
            return next((column for column in (*usual, *fitting) if column in fitting), None)

        if self.vector_column is None and self.text_column is None:
            lists = [
                c for c, kind in kinds.items() if _is_list(pa, kind) and pa.types.is_floating(kind.value_type)
            ]
            self.vector_column = choose(VECTOR_NAMES, lists)
        if self.vector_column is not None:
            self.text_column = None
        elif self.text_column is None:
            is_string = pa.types.is_string, pa.types.is_large_string
            strings = [c for c, kind in kinds.items() if any(test(kind) for test in is_string)]
            strings = [c for c in strings if c != self.label_column and c not in LABEL_NAMES]
            self.text_column = choose(TEXT_NAMES, strings)
            if self.text_column is None:
                raise DataFileError(self.name, f"has no column of float vectors or texts; {shown}")
        if self.label_column is None:
            taken = self.vector_column, self.text_column
            self.label_column = next((c for c in LABEL_KEYS if c in kinds and c not in taken), None)
        if self.ignore_labels:
            self.label_column = None

    def _no_nulls(self, column: Any, first_row: int, what: str) -> None:
        if column.null_count:
            row = first_row + int(np.flatnonzero(~np.asarray(column.is_valid()))[0])
            raise DataFileError(self.name, f"row {row} has no {what}; leave such rows out of the file.")

    def _vectors(self, pa: Any, column: Any, first_row: int) -> NDArray[np.float32]:
        if not _is_list(pa, column.type):
            raise DataFileError(
                self.name, f"expected a column of lists of numbers as vectors, got {column.type}."
            )
        self._no_nulls(column, first_row, "vector")
        flat = column.flatten()
        self._no_nulls(flat, first_row, "number in its vector")
        lengths = _lengths(column)
        width = int(lengths[0]) if len(lengths) else 0
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            message = f"row {first_row + row} has {lengths[row]} features, the rows before have {width}."
            raise DataFileError(self.name, message)
        values = flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        return np.asarray(values.reshape(len(lengths), width))

    def _labels(self, pa: Any, column: Any, first_row: int) -> RaggedLabels:
        self._no_nulls(column, first_row, "label")
        lengths = np.ones(len(column), np.int64)
        if _is_list(pa, column.type):
            lengths, column = _lengths(column), column.flatten()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_integer(column.type):
            flat: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        else:
            flat = string_array([str(value) for value in column.to_pylist()])
        return RaggedLabels(flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _open(pa: Any, source: Any) -> Any:
    """Return a file or a table as a `pyarrow.dataset.Dataset`."""
    from pyarrow import dataset

    if isinstance(source, pa.Table):
        return dataset.dataset(source)
    with Path(source).open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1" or magic == b"ARROW1":
        return dataset.dataset(source, format="parquet" if magic[:4] == b"PAR1" else "ipc")
    with pa.memory_map(str(source)) as file:
        return dataset.dataset(pa.ipc.open_stream(file).read_all())


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lengths(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.value_lengths(), np.int64)
