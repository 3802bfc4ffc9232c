"""Arrays on disk: ``.npy`` and ``.npz``, memory-mapped where they are stored without compression."""

from __future__ import annotations

import errno
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import DataFileError, Dataset, string_array
from extremax.data.streams import Source, on_disk, open_stream
from extremax.data.text_tables import LABEL_NAMES, TextReader, read_lines
from extremax.runtime.memory import NotEnoughMemoryError, check_memory
from extremax.validation.sparse_structure import check_sparse_structure

FEATURE_KEYS = ("X", "x", "features", "embeddings", "data", "vectors")
LABEL_KEYS = ("y", "Y", *LABEL_NAMES)
_SPARSE_KEYS = {"indices", "indptr", "data", "shape"}
_MAX_UNCHECKED = 1 << 28  # bytes that are unpacked without a look at the available memory


def read_npy(path: Path, name: str) -> Dataset:
    """Return the features of a ``.npy`` file, memory-mapped."""
    X = _open_npy(path, name)
    if X.ndim != 2:
        raise DataFileError(name, f"expected an array of rows and features, got shape {X.shape}.")
    return Dataset(X=X, format="npy")


def read_npz(path: Path, name: str) -> Dataset:
    """Return features and labels of an ``.npz`` archive.

    It holds arrays ``X`` and ``y``, or a matrix saved by `scipy.sparse.save_npz`. Checksums are compared.
    """
    members = _check_archive(path, name)
    keys = list(members)
    if set(keys) >= _SPARSE_KEYS:
        return Dataset(X=_open_sparse(path, name).astype(np.float32, copy=False), format="npz")
    x_key = next((key for key in FEATURE_KEYS if key in keys), keys[0] if len(keys) == 1 else None)
    if x_key is None:
        raise DataFileError(name, f"has no array X; it holds {', '.join(keys[:10])}.")
    X = _open_member(path, name, x_key, members[x_key])
    if X.ndim != 2:
        raise DataFileError(name, f"expected {x_key} to have rows and features, got shape {X.shape}.")
    y_key = next((key for key in LABEL_KEYS if key in keys and key != x_key), None)
    y = None
    if y_key is not None:
        y = np.array(_open_member(path, name, y_key, members[y_key]))
        _check_labels(name, y, X.shape[0])
    return Dataset(X=X, y=y, format="npz")


def read_labels(source: Source, n_samples: int) -> Any:
    """Return the labels of a file of their own.

    The file is an ``.npy`` array, a text file with one label per line, or a sparse indicator matrix.
    """
    with open_stream(source) as stream:
        name = stream.name
        if not stream.head.startswith((b"\x93NUMPY", b"PK\x03\x04")):
            y: Any = _label_lines(TextReader(stream, "lines"), n_samples)
        else:
            with on_disk(source, stream) as path:
                is_array = stream.head.startswith(b"\x93NUMPY")
                y = np.array(_open_npy(path, name)) if is_array else _open_indicator(path, name)
    if not sp.issparse(y):
        _check_labels(name, y, n_samples)
    elif y.shape[0] != n_samples:
        raise DataFileError(name, f"expected a row for each of {n_samples} rows, got shape {y.shape}.")
    return y


def _open_indicator(path: Path, name: str) -> Any:
    if not set(_check_archive(path, name)) >= _SPARSE_KEYS:
        raise DataFileError(name, "expected a matrix saved by scipy.sparse.save_npz as labels.")
    return _open_sparse(path, name)


def _label_lines(reader: TextReader, n_samples: int) -> NDArray[Any]:
    labels = [row.text.strip() for row in read_lines(reader) if row is not None]
    if "" in labels:
        message = "expected a label, got an empty line."
        raise DataFileError(reader.stream.name, message, line=labels.index("") + 1)
    # a first line that is the name of the column
    first = int(len(labels) == n_samples + 1 and labels[0].lower() in LABEL_NAMES)
    return string_array(labels[first:])


def _check_labels(name: str, y: NDArray[Any], n_samples: int) -> None:
    if y.shape != (n_samples,):
        raise DataFileError(name, f"expected one label for each of {n_samples} rows, got shape {y.shape}.")
    with foreign(name, "its labels are damaged"):
        y.tolist()  # raises for characters that do not exist


def _open_npy(path: Path, name: str) -> NDArray[Any]:
    with foreign(name, "is not a whole .npy file of numbers or strings"):
        return _check_type(np.load(path, mmap_mode="r", allow_pickle=False))


def _check_type(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "biufSUmMc":
        raise ValueError(f"it holds {array.dtype}, not numbers or strings")
    return array


def _check_archive(path: Path, name: str) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of an archive by name, after a comparison of all checksums."""
    with foreign(name, "is not a whole .npz archive"), zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"array {damaged.removesuffix('.npy')} does not match its checksum")
        packed = sum(info.file_size for info in archive.infolist() if info.compress_type)
        if packed > _MAX_UNCHECKED:
            hints = ("an archive without compression (np.savez) is mapped, not read", "fewer rows")
            check_memory({"arrays": packed}, hints=hints, what=f"reading {name}")
        return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def _open_member(path: Path, name: str, key: str, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Return an array: mapped where it is stored as it is, else unpacked in memory."""
    with foreign(name, f"array {key} is damaged, or does not hold numbers or strings"):
        if info.compress_type != zipfile.ZIP_STORED:
            with np.load(path, allow_pickle=False) as archive:
                return _check_type(archive[key])
        with path.open("rb") as file:
            file.seek(info.header_offset + 26)  # the lengths of a name and of more fields, before the array
            file.seek(sum(struct.unpack("<HH", file.read(4))), 1)
            version = np.lib.format.read_magic(file)
            read: Any = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            if dtype.hasobject:
                raise ValueError("it holds objects")
            order: Any = "F" if fortran else "C"
            return _check_type(np.memmap(path, dtype, "r", file.tell(), shape, order))


def _open_sparse(path: Path, name: str) -> Any:
    """Return a matrix saved by `scipy.sparse.save_npz` as CSR, after a check that its indices stay inside."""
    with foreign(name, "expected a matrix of numbers saved by scipy.sparse.save_npz"):
        matrix = sp.load_npz(path)
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"its values are {matrix.dtype}")
        check_sparse_structure(matrix, "the matrix")
        return matrix.tocsr()


@contextmanager
def foreign(name: str, what: str) -> Iterator[None]:
    """Turn whatever a damaged file makes a library raise into a `DataFileError`."""
    try:
        yield
    except (DataFileError, ImportError, NotEnoughMemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # a wrong place in a file
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        text = text if len(text) <= 120 else f"{text[:117]}..."
        text = text if text.isprintable() else repr(text)
        raise DataFileError(name, f"{what} ({text}); write it again.") from error
