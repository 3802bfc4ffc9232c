"""Arrays on disk: ``.npy`` and ``.npz``, memory-mapped, and Parquet and Arrow files."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, Dataset, RaggedLabels, string_array
from extremax.data.streams import ByteStream, Progress, in_place
from extremax.data.text_tables import LABEL_NAMES, TEXT_NAMES, LineReader

FEATURE_KEYS = ("X", "x", "features", "embeddings", "data", "vectors")
LABEL_KEYS = ("y", "Y", *LABEL_NAMES)
VECTOR_NAMES = ("vector", "embedding", "embeddings", "features", "X", "x")


def read_npy(path: str | os.PathLike[str]) -> Dataset:
    """Return the features of a ``.npy`` file, memory-mapped."""
    path = Path(path)
    X = _open_npy(path)
    if X.ndim != 2:
        raise DataFileError(str(path), f"expected an array of rows and features, got shape {X.shape}.")
    return Dataset(X=X, format="npy")


def read_labels(path: str | os.PathLike[str], n_samples: int) -> tuple[Any, list[str] | None]:
    """Return `y` and `label_names` of a Dataset from a file of labels.

    The file is an ``.npy`` array, a text file with one label per line, or a sparse indicator matrix.
    """
    name = os.fspath(path)
    with ByteStream(path) as stream:
        head = stream.peek(6)
        if head.startswith((b"\x93NUMPY", b"PK\x03\x04")):
            with in_place(path, stream) as file:
                y: Any = np.array(_open_npy(file)) if head.startswith(b"\x93NUMPY") else _open_indicator(file)
        else:
            y = _label_lines(stream, n_samples)
    if sp.issparse(y):
        if y.shape[0] != n_samples:
            raise DataFileError(name, f"expected a row for each of {n_samples} rows, got shape {y.shape}.")
    else:
        _check_labels(name, y, n_samples)
    return y, None


def _label_lines(stream: ByteStream, n_samples: int) -> NDArray[Any]:
    labels = [text.strip() for batch in LineReader(stream).batches(None) for text in batch.texts or []]
    if "" in labels:
        raise DataFileError(stream.name, "expected a label, got an empty line.", line=labels.index("") + 1)
    # a first line that is the name of the column, not a label
    first = int(len(labels) == n_samples + 1 and labels[0].lower() in LABEL_NAMES)
    return string_array(labels[first:])


def _open_indicator(path: Path) -> sp.csr_matrix:
    try:
        matrix: sp.csr_matrix = sp.load_npz(path).tocsr()
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataFileError(
            str(path), f"expected a matrix saved by scipy.sparse.save_npz as labels ({error})."
        ) from error
    return matrix


def read_npz(path: str | os.PathLike[str]) -> Dataset:
    """Return features and labels of an ``.npz`` archive.

    It holds arrays ``X`` and ``y``, or a matrix saved by `scipy.sparse.save_npz`. Arrays of an archive
    without compression are memory-mapped."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise DataFileError(str(path), f"is not a whole .npz archive ({error}); write it again.") from error
    if {"indices", "indptr", "data", "shape"} <= set(keys):
        X: Any = sp.load_npz(path).tocsr()
        return Dataset(X=X.astype(np.float32, copy=False), format="npz")
    x_key = next((key for key in FEATURE_KEYS if key in keys), keys[0] if len(keys) == 1 else None)
    if x_key is None:
        raise DataFileError(str(path), f"has no array X; it holds {', '.join(keys[:10])}.")
    X = _open_npz_member(path, x_key)
    if X.ndim != 2:
        raise DataFileError(str(path), f"expected {x_key} to have rows and features, got shape {X.shape}.")
    y_key = next((key for key in LABEL_KEYS if key in keys and key != x_key), None)
    y = None
    if y_key is not None:
        y = np.asarray(_open_npz_member(path, y_key))
        _check_labels(str(path), y, X.shape[0])
    return Dataset(X=X, y=y, format="npz")


def _check_labels(name: str, y: NDArray[Any], n_samples: int) -> None:
    if y.shape != (n_samples,):
        raise DataFileError(name, f"expected one label for each of {n_samples} rows, got shape {y.shape}.")


def _open_npy(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except ValueError as error:
        raise DataFileError(
            str(path), f"is not a whole .npy file of numbers or strings ({error})."
        ) from error


def _open_npz_member(path: Path, key: str) -> NDArray[Any]:
    member = f"{key}.npy"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
        if info.compress_type == zipfile.ZIP_STORED:
            with path.open("rb") as file:
                # the local header repeats the name and has an extra field of its own length before the array
                file.seek(info.header_offset + 26)
                name_length, extra_length = struct.unpack("<HH", file.read(4))
                file.seek(name_length + extra_length, os.SEEK_CUR)
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, fortran, dtype = read(file)
                if not dtype.hasobject and int(np.prod(shape)) > 0:
                    return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
    with np.load(path, allow_pickle=False) as archive:
        try:
            return archive[key]  # type: ignore[no-any-return]
        except ValueError as error:
            raise DataFileError(
                str(path), f"array {key} does not hold numbers or strings ({error})."
            ) from error


def read_columns(
    path: str | os.PathLike[str],
    *,
    vector_column: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    batch_rows: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Dataset]:
    """Yield the rows of a Parquet or Arrow file.

    One column holds vectors or texts, another labels or lists of labels. Without `batch_rows` all rows come
    in one dataset."""
    name = os.fspath(path)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError(f"{name} needs pyarrow: pip install extremax[parquet].") from error
    with Path(path).open("rb") as head:
        is_parquet = head.read(4) == b"PAR1"
    try:
        if is_parquet:
            file = pq.ParquetFile(path, memory_map=True)
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
        else:
            file = _open_arrow(pa, path)
            schema, n_rows = file.schema, sum(batch.num_rows for batch in _arrow_batches(file))
    except pa.ArrowInvalid as error:
        raise DataFileError(name, f"is not a whole Parquet or Arrow file ({error}).") from error
    vector, text, label = _choose_columns(pa, name, schema, vector_column, text_column, label_column)
    columns = [column for column in (vector, text, label) if column is not None]
    size = batch_rows or 65_536
    batches = file.iter_batches(size, columns=columns) if is_parquet else _sliced(_arrow_batches(file), size)
    parts: list[Any] = []
    X: NDArray[np.float32] | None = None
    done = 0
    for batch in batches:
        rows = _vectors(pa, name, batch.column(vector), done) if vector else None
        labels = _labels(pa, name, batch.column(label), done) if label else None
        texts = _texts(name, batch.column(text), done) if text else None
        if batch_rows is not None:
            y, names = labels.finish(None) if labels is not None else (None, None)
            yield Dataset(
                X=rows, texts=texts, y=y, label_names=names, format="parquet" if is_parquet else "arrow"
            )
        else:
            if rows is not None:
                X = np.empty((n_rows, rows.shape[1]), dtype=np.float32) if X is None else X
                if rows.shape[1] != X.shape[1]:
                    raise DataFileError(
                        name, f"row {done} has {rows.shape[1]} features, the rows before have {X.shape[1]}."
                    )
                X[done : done + len(rows)] = rows
            parts.append((texts, labels))
        done += batch.num_rows
        if progress is not None:
            progress(done, n_rows)
    if batch_rows is None:
        yield _join(parts, X, vector, text, label, "parquet" if is_parquet else "arrow")


def _join(
    parts: list[Any], X: Any, vector: str | None, text: str | None, label: str | None, kind: str
) -> Dataset:
    if vector and X is None:
        X = np.empty((0, 0), dtype=np.float32)
    y, names = None, None
    if label and parts:
        lengths = np.concatenate([np.diff(labels.offsets) for _, labels in parts])
        flat = np.concatenate([labels.flat for _, labels in parts])
        y, names = RaggedLabels(flat, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)).finish(None)
    texts = [line for lines, _ in parts for line in lines] if text else None
    return Dataset(X=X, texts=texts, y=y, label_names=names, format=kind)


def _open_arrow(pa: Any, path: str | os.PathLike[str]) -> Any:
    source = pa.memory_map(os.fspath(path))
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _arrow_batches(file: Any) -> Iterator[Any]:
    if hasattr(file, "num_record_batches"):
        yield from (file.get_batch(i) for i in range(file.num_record_batches))
    else:
        yield from file.to_batches()


def _sliced(batches: Iterator[Any], size: int) -> Iterator[Any]:
    for batch in batches:
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)


def _choose_columns(
    pa: Any, name: str, schema: Any, vector: str | None, text: str | None, label: str | None
) -> tuple[str | None, str | None, str | None]:
    for column in (vector, text, label):
        if column is not None and column not in schema.names:
            raise DataFileError(
                name, f"there is no column {column!r}; columns are {', '.join(schema.names[:20])}."
            )
    kinds = {field.name: field.type for field in schema}
    if vector is None and text is None:
        lists = [
            column
            for column, kind in kinds.items()
            if _is_list(pa, kind) and pa.types.is_floating(kind.value_type)
        ]
        lists = [column for column in VECTOR_NAMES if column in lists] or lists
        vector = lists[0] if lists else None
        if vector is None:
            strings = [
                c for c, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)
            ]
            usual = [column for column in TEXT_NAMES if column in strings and column != label]
            text = (
                usual[0] if usual else next((c for c in strings if c != label and c not in LABEL_NAMES), None)
            )
        if vector is None and text is None:
            raise DataFileError(
                name, f"has no column of float vectors or texts; columns are {', '.join(schema.names[:20])}."
            )
    if label is None:
        label = next(
            (column for column in LABEL_KEYS if column in kinds and column not in (vector, text)), None
        )
    return vector, text if vector is None else None, label


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _no_nulls(name: str, column: Any, first_row: int, what: str) -> None:
    if column.null_count:
        row = first_row + int(np.flatnonzero(~np.asarray(column.is_valid()))[0])
        raise DataFileError(name, f"row {row} has no {what}; leave such rows out of the file.")


def _vectors(pa: Any, name: str, column: Any, first_row: int) -> NDArray[np.float32]:
    if not _is_list(pa, column.type):
        raise DataFileError(name, f"expected a column of lists of numbers as vectors, got {column.type}.")
    _no_nulls(name, column, first_row, "vector")
    flat = column.flatten()
    _no_nulls(name, flat, first_row, "number in its vector")
    lengths = np.asarray(column.value_lengths())
    width = int(lengths[0]) if len(lengths) else 0
    if (lengths != width).any():
        row = int(np.flatnonzero(lengths != width)[0])
        raise DataFileError(
            name, f"row {first_row + row} has {lengths[row]} features, the rows before have {width}."
        )
    values: NDArray[np.float32] = (
        flat.to_numpy(zero_copy_only=False).astype(np.float32, copy=False).reshape(-1, width)
    )
    return values


def _texts(name: str, column: Any, first_row: int) -> list[str]:
    _no_nulls(name, column, first_row, "text")
    return [str(text) for text in column.to_pylist()]


def _labels(pa: Any, name: str, column: Any, first_row: int) -> RaggedLabels:
    _no_nulls(name, column, first_row, "label")
    if _is_list(pa, column.type):
        offsets = np.concatenate([[0], np.cumsum(np.asarray(column.value_lengths()))]).astype(np.int64)
        column = column.flatten()
    else:
        offsets = np.arange(len(column) + 1, dtype=np.int64)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type):
        return RaggedLabels(column.to_numpy(zero_copy_only=False), offsets)
    strings = RaggedLabels.from_lists([[str(value)] for value in column.to_pylist()])
    return RaggedLabels(strings.flat, offsets)
