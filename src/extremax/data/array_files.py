"""Arrays on disk: ``.npy``, memory-mapped, and ``.npz``."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
_MAX_UNCHECKED = 1 << 28  # bytes that are read without a look at the available memory


def read_npy(path: Path, name: str) -> Dataset:
    """Return the features of a ``.npy`` file, memory-mapped."""
    X = _open_npy(path, name)
    if X.ndim != 2:
        raise DataFileError(name, f"expected an array of rows and features, got shape {X.shape}.")
    return Dataset(X=X, format="npy")


def read_npz(path: Path, name: str) -> Dataset:
    """Return features and labels of an ``.npz`` archive.

    It holds arrays ``X`` and ``y``, or a matrix saved by `scipy.sparse.save_npz`.
    """
    with _open_archive(path, name) as archive:
        keys = archive.files
        if set(keys) >= _SPARSE_KEYS:
            return Dataset(X=_open_sparse(path, name).astype(np.float32, copy=False), format="npz")
        x_key = next((key for key in FEATURE_KEYS if key in keys), keys[0] if len(keys) == 1 else None)
        if x_key is None:
            raise DataFileError(name, f"has no array X; it holds {', '.join(keys[:10])}.")
        X = _read_member(archive, name, x_key)
        if X.ndim != 2:
            raise DataFileError(name, f"expected {x_key} to have rows and features, got shape {X.shape}.")
        y_key = next((key for key in LABEL_KEYS if key in keys and key != x_key), None)
        y = None if y_key is None else _read_member(archive, name, y_key)
    if y is not None:
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
    with _open_archive(path, name) as archive:
        if not set(archive.files) >= _SPARSE_KEYS:
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


@contextmanager
def _open_archive(path: Path, name: str) -> Iterator[Any]:
    """Open an archive whose arrays fit into memory; numpy compares checksums as it reads them."""
    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb"))
        with foreign(name, "is not a whole .npz archive"):
            archive: Any = opened.enter_context(np.load(file, allow_pickle=False))
        members = archive.zip.infolist()
        if odd := [info.filename for info in members if not info.filename.endswith(".npy")]:
            raise DataFileError(name, f"holds {odd[0]!r}, which is no array; save it again with np.savez.")
        size = sum(info.file_size for info in members)
        if size > _MAX_UNCHECKED:
            hints = ("X.npy beside y.npy is mapped, not read", "fewer rows")
            check_memory({"arrays": size}, hints=hints, what=f"reading {name}")
        yield archive


def _read_member(archive: Any, name: str, key: str) -> NDArray[Any]:
    with foreign(name, f"array {key} is damaged, or does not hold numbers or strings"):
        return _check_type(archive[key])


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
