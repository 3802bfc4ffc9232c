"""Arrays on disk: ``.npy`` and ``.npz``, memory-mapped, and Parquet and Arrow files."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, Dataset, RaggedLabels, string_array
from extremax.data.streams import ByteStream, Progress, in_place
from extremax.data.text_tables import LABEL_NAMES, TEXT_NAMES, Kept, LineReader, name_of_column
from extremax.runtime.memory import NotEnoughMemoryError, check_memory
from extremax.validation.sparse_structure import check_compressed, check_sparse_structure

FEATURE_KEYS = ("X", "x", "features", "embeddings", "data", "vectors")
LABEL_KEYS = ("y", "Y", *LABEL_NAMES)
_SPARSE_KEYS = {"indices", "indptr", "data", "shape"}
_SPARSE_KINDS: dict[str, Any] = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "bsr": sp.bsr_matrix}
_MAX_NPY_HEADER = 10_000  # characters, the limit of numpy: a header is evaluated
_DAMAGED_COLUMNS = "is not a whole Parquet or Arrow file"
_IN_PARTS = ("read it in parts with extremax.data.iter_dataset", "fewer rows")
_MAX_GAP = 24  # bytes of sizes and checksum that may follow the data of an array
_CHECK_BYTES = 1 << 20  # read at a time
_MAX_UNCHECKED = 1 << 28  # bytes of an array that is unpacked without a look at the memory there is
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
    archive = NpzArchive(path)
    if not set(archive.keys) >= _SPARSE_KEYS:
        raise DataFileError(str(path), "expected a matrix saved by scipy.sparse.save_npz as labels.")
    return _open_sparse(archive)


def read_npz(path: str | os.PathLike[str]) -> Dataset:
    """Return features and labels of an ``.npz`` archive.

    It holds arrays ``X`` and ``y``, or a matrix saved by `scipy.sparse.save_npz`. Arrays of an archive
    without compression are memory-mapped, after a check of their checksums."""
    path = Path(path)
    archive = NpzArchive(path)
    keys = archive.keys
    if set(keys) >= _SPARSE_KEYS:
        X: Any = _open_sparse(archive)
        with foreign(str(path), "its values are no numbers"), np.errstate(over="ignore"):
            return Dataset(X=X.astype(np.float32, copy=False), format="npz")
    x_key = next((key for key in FEATURE_KEYS if key in keys), keys[0] if len(keys) == 1 else None)
    if x_key is None:
        raise DataFileError(str(path), f"has no array X; it holds {', '.join(keys[:10])}.")
    X = archive.open(x_key)
    if X.ndim != 2:
        raise DataFileError(str(path), f"expected {x_key} to have rows and features, got shape {X.shape}.")
    y_key = next((key for key in LABEL_KEYS if key in keys and key != x_key), None)
    y = None
    if y_key is not None:
        y = np.asarray(archive.open(y_key))
        _check_labels(str(path), y, X.shape[0])
    return Dataset(X=X, y=y, format="npz")


def _open_sparse(archive: NpzArchive) -> sp.csr_matrix:
    """Return a matrix saved by scipy.sparse.save_npz, after a check that its indices stay inside."""
    name = str(archive.path)
    with foreign(name, "expected a matrix saved by scipy.sparse.save_npz"):
        wanted = [key for key in (*_SPARSE_KEYS, "format") if key in archive.keys]
        parts = {key: np.asarray(archive.open(key)) for key in wanted}
        kind = parts["format"].item() if "format" in parts else "csr"
        kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
        if kind not in _SPARSE_KINDS:
            raise ValueError(f"its format is {kind[:20]!r}")
        if parts["shape"].shape != (2,) or parts["shape"].dtype.kind not in "iu":
            raise ValueError("its shape is not two numbers")
        shape = int(parts["shape"][0]), int(parts["shape"][1])
        if min(shape) < 0 or max(shape) > 2**48:
            raise ValueError(f"its shape is {shape}")
        data, indices, indptr = (parts[key] for key in ("data", "indices", "indptr"))
        if data.dtype.kind not in "biuf":
            raise ValueError(f"its values are {data.dtype}")
        if kind == "csr":
            check_compressed((data, indices, indptr), shape, "the matrix")
        elif kind == "csc":
            check_compressed((data, indices, indptr), shape[::-1], "the matrix", lines="column", inside="row")
        matrix: Any = _SPARSE_KINDS[kind]((data, indices, indptr), shape=shape)
        check_sparse_structure(matrix, "the matrix")
        found: sp.csr_matrix = matrix.tocsr()
        return found


def _check_labels(name: str, y: NDArray[Any], n_samples: int) -> None:
    if y.dtype.kind == "U" and y.size:
        codes = np.ascontiguousarray(y.astype(y.dtype.newbyteorder("="), copy=False)).view(np.uint32)
        if int(codes.max()) > 0x10FFFF:
            raise DataFileError(name, "its labels hold characters that there are not; write it again.")
    if y.shape != (n_samples,):
        raise DataFileError(name, f"expected one label for each of {n_samples} rows, got shape {y.shape}.")


@contextmanager
def foreign(name: str, what: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a library raise into a `DataFileError`.

    Headers of ``.npy`` files are Python literals, archives have lengths and offsets, Arrow files pointers:
    each kind of damage has exceptions of its own.
    """
    try:
        yield
    except (DataFileError, ImportError, OSError, NotEnoughMemoryError) as error:
        if isinstance(error, OSError) and error.errno in (
            None,
            errno.EINVAL,
        ):  # of a library, or a wrong place
            raise DataFileError(name, f"{what} ({_one_line(error)}); write it again.") from error
        raise
    except Exception as error:
        raise DataFileError(name, f"{what} ({_one_line(error)}); write it again.") from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) <= 120 else f"{text[:117]}..."
    return text if text.isprintable() else repr(text)


class NpyHeader(NamedTuple):
    """What the first bytes of an ``.npy`` array say, and where its data begins."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @classmethod
    def read(cls, file: IO[bytes], size: int) -> NpyHeader:
        """Read the header at the place of `file` from which an array of `size` bytes begins."""
        start = file.tell()
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"format version {version}")
        first = version == (1, 0)
        read: Any = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_MAX_NPY_HEADER)
        if dtype.kind not in "biufSUmMc":
            raise ValueError(f"it holds {dtype}, not numbers or strings")
        if any(type(n) is not int or n < 0 for n in shape) or len(shape) > 8:
            raise ValueError(f"shape {shape}")
        needed = file.tell() - start + prod(shape) * dtype.itemsize
        if needed > size:
            raise ValueError(f"{needed:,} bytes are needed for shape {shape}, and there are {size:,}")
        return cls(dtype, shape, bool(fortran), file.tell())

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def map(self, path: Path) -> NDArray[Any]:
        """Map the array of a file; an empty one is made."""
        if self.n_bytes == 0:
            return np.zeros(self.shape, self.dtype)
        return np.memmap(path, self.dtype, "r", self.offset, self.shape, "F" if self.fortran else "C")


def _open_npy(path: Path) -> NDArray[Any]:
    with foreign(str(path), "is not a whole .npy file of numbers or strings"):
        with path.open("rb") as file:
            header = NpyHeader.read(file, path.stat().st_size)
        return header.map(path)


class NpzArchive:
    """Arrays of an ``.npz`` archive, each checked against its checksum when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with foreign(str(path), "is not a whole .npz archive"), zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_directory(path, members, archive.start_dir)
        self._members = {info.filename.removesuffix(".npy"): info for info in members}
        if len(self._members) < len(members):
            raise DataFileError(str(path), "is not a whole .npz archive (it names an array twice).")

    @property
    def keys(self) -> list[str]:
        return list(self._members)

    def open(self, key: str) -> NDArray[Any]:
        """Return an array: mapped where it is stored as it is, else unpacked in memory."""
        info = self._members[key]
        with foreign(str(self.path), f"array {key} is damaged, or holds no numbers or strings"):
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
                return self._map(info)
            return self._unpack(info)

    def _map(self, info: zipfile.ZipInfo) -> NDArray[Any]:
        with self.path.open("rb") as file:
            start = _data_start(file, info)
            if start + info.file_size > self.path.stat().st_size or info.compress_size != info.file_size:
                raise ValueError("the archive ends early")
            file.seek(start)
            checksum, left = 0, info.file_size
            while left:
                data = file.read(min(left, _CHECK_BYTES))
                if not data:
                    raise EOFError("the archive ends early")
                checksum, left = zlib.crc32(data, checksum), left - len(data)
            if checksum != info.CRC:
                raise ValueError("its checksum does not match")
            file.seek(start)
            header = NpyHeader.read(file, info.file_size)
        return header.map(self.path)

    def _unpack(self, info: zipfile.ZipInfo) -> NDArray[Any]:
        with zipfile.ZipFile(self.path) as archive, archive.open(info) as file:
            header = NpyHeader.read(file, info.file_size)
            if header.n_bytes > _MAX_UNCHECKED:
                hints = ("an archive without compression (np.savez) is mapped, not read", "fewer rows")
                check_memory({info.filename: header.n_bytes}, hints=hints, what=f"reading {self.path}")
            data = np.empty(header.n_bytes, np.uint8)
            filled = 0
            while filled < header.n_bytes:
                part = file.read(min(_CHECK_BYTES, header.n_bytes - filled))
                if not part:
                    raise EOFError("it ends early")
                data[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
                filled += len(part)
            while file.read(_CHECK_BYTES):  # to the end, where its checksum is compared
                pass
        array = data.view(header.dtype) if data.size else np.zeros(0, header.dtype)
        return array.reshape(header.shape, order="F" if header.fortran else "C")


def _check_directory(path: Path, members: list[zipfile.ZipInfo], end: int) -> None:
    """Raise ValueError where the directory of an archive, which begins at `end`, hides an array."""
    with path.open("rb") as file:
        places = sorted(
            (info.header_offset, _data_start(file, info) + info.compress_size) for info in members
        )
    starts = [start for start, _ in places[1:]] + [end]
    if any(not 0 <= start - stop <= _MAX_GAP for start, (_, stop) in zip(starts, places, strict=True)):
        raise ValueError("its directory does not name all that it holds")


def _data_start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return where the data of a member begins, after its local header, which repeats its name."""
    file.seek(max(info.header_offset, 0))
    local = file.read(30)
    if local[:4] != b"PK\x03\x04" or len(local) < 30:
        raise ValueError("the place of an array is wrong")
    name_length, extra_length = struct.unpack("<HH", local[26:30])
    name = file.read(name_length)
    if name not in (info.orig_filename.encode("utf-8"), info.orig_filename.encode("cp437", "replace")):
        raise ValueError("the name of an array is damaged")
    return int(info.header_offset + 30 + name_length + extra_length)


def read_columns(  # noqa: PLR0913 (the options of a file)
    path: str | os.PathLike[str],
    *,
    vector_column: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    keep: Kept = None,
    ignore_labels: bool = False,
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
    with foreign(name, _DAMAGED_COLUMNS):
        if is_parquet:
            file = pq.ParquetFile(path, memory_map=True)
            schema, n_rows = file.schema_arrow, file.metadata.num_rows
        else:
            file = _open_arrow(pa, path)
            schema, n_rows = file.schema, sum(batch.num_rows for batch in _arrow_batches(file))
    vector, text, label = _choose_columns(pa, name, schema, vector_column, text_column, label_column)
    chosen = vector, text, None if ignore_labels else label
    kept = _kept_columns(name, schema.names, keep)
    columns = list(dict.fromkeys(column for column in (*chosen, *kept) if column is not None))
    size, kind = batch_rows or 65_536, "parquet" if is_parquet else "arrow"
    with foreign(name, _DAMAGED_COLUMNS):
        parquet = is_parquet and file.iter_batches(size, columns=columns)
        batches = iter(parquet or _sliced(_arrow_batches(file), size))
    parts: list[Any] = []
    X: NDArray[np.float32] | None = None
    done = 0
    for rows, texts, labels, n, values in _read_batches(pa, name, batches, chosen, kept):
        if batch_rows is not None:
            y, names = labels.finish(None) if labels is not None else (None, None)
            yield Dataset(
                X=rows,
                texts=texts,
                y=y,
                label_names=names,
                format=kind,
                row_numbers=None if keep is None else list(range(done, done + n)),
                columns=values,
            )
        else:
            if rows is not None:
                X = _add_rows(name, X, rows, done, n_rows)
            parts.append((texts, labels))
        done += n
        if progress is not None:
            progress(done, n_rows)
    if done != n_rows:
        raise DataFileError(name, f"announces {n_rows:,} rows and has {done:,}; write it again.")
    if batch_rows is None:
        yield _join(parts, X, *chosen, kind)


def _read_batches(
    pa: Any,
    name: str,
    batches: Iterator[Any],
    chosen: tuple[str | None, str | None, str | None],
    kept: list[str],
) -> Iterator[tuple[Any, Any, Any, int, dict[str, list[Any]]]]:
    """Yield vectors, texts and labels of each batch, its number of rows and the columns to be kept."""
    vector, text, label = chosen
    done = 0
    while True:
        with foreign(name, _DAMAGED_COLUMNS):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)  # offsets of strings and lists are followed wherever they lead
            rows = _vectors(pa, name, batch.column(vector), done) if vector else None
            labels = _labels(pa, name, batch.column(label), done) if label else None
            texts = _texts(name, batch.column(text), done) if text else None
            values = {column: batch.column(column).to_pylist() for column in kept}
        yield rows, texts, labels, batch.num_rows, values
        done += batch.num_rows


def _add_rows(
    name: str, X: NDArray[np.float32] | None, rows: NDArray[np.float32], done: int, n_rows: int
) -> NDArray[np.float32]:
    """Return the array of all rows, made by the first batch, with those of one more."""
    if X is None:
        need = {"vectors": 4 * n_rows * rows.shape[1]}
        check_memory(need, hints=_IN_PARTS, what=f"reading {name}")
        X = np.empty((n_rows, rows.shape[1]), dtype=np.float32)
    if rows.shape[1] != X.shape[1]:
        raise DataFileError(
            name, f"row {done} has {rows.shape[1]} features, the rows before have {X.shape[1]}."
        )
    if done + len(rows) > n_rows:
        raise DataFileError(name, f"announces {n_rows:,} rows and has more; write it again.")
    X[done : done + len(rows)] = rows
    return X


def _kept_columns(path: str, names: list[str], keep: Kept) -> list[str]:
    if keep is None or isinstance(keep, str):
        return [] if keep is None else list(names)
    return [names[name_of_column(path, column, names)] for column in keep]


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
    with foreign(name, "the names of its columns are damaged"):
        kinds = {field.name: field.type for field in schema}
    for column in (vector, text, label):
        if column is not None and column not in kinds:
            raise DataFileError(
                name, f"there is no column {column!r}; columns are {', '.join(schema.names[:20])}."
            )
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
