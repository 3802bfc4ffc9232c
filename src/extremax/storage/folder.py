"""Folders of arrays on disk: safetensors for the arrays, JSON for the rest, no pickle.

``header.json`` holds the kind of content, a checksum of itself and, for every array, dtype, shape and
checksums. Each array is a `safetensors <https://huggingface.co/docs/safetensors>`_ file, which is
memory-mapped.

Every save writes its arrays under new names, of a higher generation, and replaces the header last, in one
step: a reader finds the old content or the new one, never a part of either, and no open file is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from extremax.errors import ModelFileError as ModelFileError
from extremax.runtime import atomic_files
from extremax.runtime.atomic_files import is_stage, naming, write_text
from extremax.storage import checks
from extremax.storage.labels import pack_labels, unpack_labels

FORMAT = "extremax"
FORMAT_VERSION = 4  # versions 2 and 3 can still be read; they have no generations
HEADER = "header.json"
MAX_HEADER_BYTES = 64 << 20  # a header has 32 kB per GB of arrays, and the names of features
CHUNK_BYTES = 1 << 18  # bytes under one checksum
_SAMPLED = 16  # chunks of each array that every load checks: all of an array of up to 4 MiB
_LOCK = ".saving.lock"
_SAVED = ".saving.json"  # names that a save has written or will write, until those that are old are removed
_LABELS = ("labels", "label_offsets")
_ARRAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,199}")
_UNFINISHED = re.compile(r"\.tmp[A-Za-z0-9]{6}")  # safetensors writes under such a name

T = TypeVar("T")


class ArrayEntry(msgspec.Struct):
    """Entry of an array in a header."""

    dtype: Literal[
        "float64", "float32", "float16", "bool",
        "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
    ]  # fmt: skip
    shape: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=8)]
    checksums: str  # 8 hexadecimal digits per chunk
    chunk: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = CHUNK_BYTES


class FolderHeader(msgspec.Struct):
    """``header.json`` without its format and checksum."""

    format_version: int
    package_version: str
    kind: str
    header: dict[str, Any]
    labels: dict[str, Any] | None
    arrays: Annotated[dict[str, ArrayEntry], msgspec.Meta(max_length=4096)]
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0


class ModelFolder(NamedTuple):
    """Content of a folder."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    labels: NDArray[Any] | None
    kind: str


def save_folder(
    path: str | os.PathLike[str],
    *,
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    labels: NDArray[Any] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write a model to the folder `path`, replacing a model that is there.

    Parameters
    ----------
    path : path-like
        The folder. If it exists, it must be empty or a model of this format: anything else is an error.
    kind : str
        Kind of content; `load_folder` asks for it.
    header : dict
        Any JSON; numpy scalars become numbers and tuples lists.
    arrays : dict of str to ndarray
        Numbers and booleans; names of letters, digits, dots and underscores.
    labels : ndarray, optional
        The names of the classes: numbers, strings, dates, or tuples of such; each comes back with its type.
    texts : dict of str to str, optional
        Files for people, such as ``README.md``, by name: written with the rest, and never read.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     arrays, labels = {"w": np.ones(2)}, np.array(["a", "b"])
    ...     save_folder(f"{folder}/model", kind="demo", header={"depth": 3}, arrays=arrays, labels=labels)
    ...     model = load_folder(f"{folder}/model", kind="demo")
    >>> model.header, model.arrays["w"].shape, model.labels
    ({'depth': 3}, (2,), array(['a', 'b'], dtype='<U1'))
    """
    target = Path(os.path.realpath(path))
    _refuse_foreign(target)
    coding, label_arrays = (None, {}) if labels is None else pack_labels(np.asarray(labels))
    content: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "package_version": package_version(),
        "kind": kind,
        "header": dict(header),
        "labels": coding,
    }
    _canonical_json(content)  # raises for what JSON cannot hold, before anything is written
    stored = {name: _storable(name, array) for name, array in arrays.items()} | label_arrays
    with naming(target), _saving(target, list(stored)) as generation:
        content["generation"] = generation
        content["arrays"] = {
            name: _write_array(_array_path(target, name, generation), name, array)
            for name, array in stored.items()
        }
        text = json.dumps({"checksum": _checksum(content), **json.loads(_canonical_json(content))}, indent=1)
        if len(text) > MAX_HEADER_BYTES:
            raise ValueError(
                f"the header of the model has {len(text):,} bytes; a model folder holds at most"
                f" {MAX_HEADER_BYTES:,}. Use shorter feature names, or none."
            )
        for name, readable in (texts or {}).items():
            write_text(target / name, readable)
        write_text(target / HEADER, text)
        _flush_folder(target)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise if `save_folder` could not write to `path`; for a call before long work."""
    target = Path(os.path.realpath(path))
    _refuse_foreign(target)
    above = next(folder for folder in (target, *target.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=above) as file:  # the disk may be full, or read-only
            file.write(bytes(CHUNK_BYTES))
            file.flush()
    except OSError as error:
        error.filename = str(above)
        raise


def folder_checksum(path: str | os.PathLike[str]) -> str:
    """Return the checksum of the header of a folder, which changes with everything in it."""
    return _read_header(Path(path))[1]


def load_folder(
    path: str | os.PathLike[str],
    *,
    kind: str | tuple[str, ...],
    verify: bool = False,
    copy_on_write: bool = False,
    mapped: bool = True,
) -> ModelFolder:
    """Open a folder; its arrays are memory-mapped, so that large ones open as fast as small ones.

    Every load checks the header, the size of every file and a sample of the data.

    Parameters
    ----------
    path : path-like
        A folder written by `save_folder`.
    kind : str or tuple of str
        Kinds of content that are accepted.
    verify : bool
        Read and check all of the data.
    copy_on_write : bool
        Return arrays that may be written to, in memory only: a page is copied when it is first changed. By
        default the arrays are read-only.
    mapped : bool
        False reads the arrays into memory: a mapped file must not be written to or cut by anybody.

    Raises
    ------
    ModelFileError
        If the folder is not a model, is of another kind, is damaged or was written in a newer format.
    """
    folder = Path(path)
    kinds = (kind,) if isinstance(kind, str) else kind

    def load() -> ModelFolder:
        content, _ = _read_header(folder)
        if content.kind not in kinds:
            raise ModelFileError(f"{folder} holds a {content.kind!r}, not a {kinds[0]!r}.")
        with checks.whole_model(folder):
            arrays = {
                name: _open_array(_array_path(folder, name, content.generation), entry, verify, mapped)
                for name, entry in content.arrays.items()
            }
            for array in arrays.values():
                array.flags.writeable = copy_on_write
            labels = None
            if content.labels is not None:
                packed = {name: arrays.pop(name) for name in _LABELS if name in arrays}
                labels = unpack_labels(content.labels, packed)
        return ModelFolder(content.header, arrays, labels, content.kind)

    return read_steadily(folder, load)


def read_steadily(folder: Path, read: Callable[[], T]) -> T:
    """Return ``read()``, which opens files of a folder; where a save met it and it failed, read again."""
    while True:
        before = _stamp(folder)
        try:
            return read()
        except (ModelFileError, OSError):
            if _stamp(folder) == before:
                raise


def _stamp(folder: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(folder / HEADER)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


# -- the header


def _read_json(folder: Path) -> Any:
    path = folder / HEADER
    if not path.is_file():  # a pipe or a device is not waited for
        raise OSError(errno.ENOENT, "not a regular file", str(path))
    with open(path, "rb") as file:
        text = file.read(MAX_HEADER_BYTES + 1)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"it has more than {MAX_HEADER_BYTES:,} bytes")
    return checks.parse_json(text)


def _read_header(folder: Path) -> tuple[FolderHeader, str]:
    """Return the checked header and its checksum."""
    if not folder.exists():
        raise FileNotFoundError(f"There is no model at {folder}: the folder does not exist.")
    try:
        content = _read_json(folder)
        found = content["format"], content["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f" ({error})" if str(error).startswith("it has") else ""
        raise ModelFileError(
            f"{folder} is not an extremax model: it has no readable {HEADER}{why}."
        ) from None
    if found[0] != FORMAT:
        raise ModelFileError(
            f"{folder} is not an extremax model: its {HEADER} says format {checks.shown(found[0])}."
        )
    if type(found[1]) is not int or not 2 <= found[1] <= FORMAT_VERSION:
        advice = "Open it with the version that wrote it, or a later one."
        if found[1] == 1:
            advice = "Open it with the version that wrote it, or fit the model again."
        raise ModelFileError(
            f"{folder} is in format {checks.shown(found[1])}, written by extremax"
            f" {checks.shown(str(content.get('package_version')))}; this is extremax {package_version()},"
            f" which reads formats 2 to {FORMAT_VERSION}. {advice}"
        )
    with checks.whole_model(folder):
        checksum = content.pop("checksum", None)
        if checksum != _checksum(content):
            raise ModelFileError(f"{folder / HEADER} is damaged: its checksum does not match. {checks.HINT}")
        header = msgspec.convert(content, FolderHeader)
        for name in header.arrays:
            if _ARRAY_NAME.fullmatch(name) is None:
                checks.reject(f"{checks.shown(name)} cannot be the name of an array")
    return header, checksum


def _canonical_json(content: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(
            f"A model header holds numbers, strings, lists and dicts; got a {type(value).__name__}."
        )

    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=plain)


def _checksum(content: Any) -> str:
    return sha256(_canonical_json(content).encode()).hexdigest()


def package_version() -> str:
    """Return the version of extremax that runs."""
    try:
        return version("extremax")
    except PackageNotFoundError:  # run from a source folder
        return "unknown"


# -- arrays


def _array_path(folder: Path, name: str, generation: int) -> Path:
    return folder / (f"{name}-{generation}.safetensors" if generation else f"{name}.safetensors")


def _storable(name: str, array: Any) -> NDArray[Any]:
    """Return an array as it is stored: contiguous and little-endian."""
    if name in _LABELS:
        raise ValueError(f"{name!r} cannot be the name of an array: it is where the labels are stored.")
    if _ARRAY_NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} cannot be the name of an array: use letters, digits, dots and underscores, at most"
            " 200."
        )
    array = np.asarray(array)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise TypeError(f"Array {name!r} has dtype {array.dtype}, which a model folder cannot hold.")
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def _write_array(path: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    path.touch()
    if path.with_name(HEADER).exists():
        shutil.copymode(path.with_name(HEADER), path)
    mode = path.stat().st_mode  # save_file makes files that only their owner can read
    try:
        save_file({name: array}, path)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        number = errno.EIO if code is None else int(code[1])
        raise OSError(number, str(error) if code is None else os.strerror(number), str(path)) from error
    path.chmod(mode)
    with open(path, "rb+") as file:
        atomic_files.flush(file.fileno())
    data = array.reshape(-1).view(np.uint8)
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "checksums": "".join(_sum_of(data, i, CHUNK_BYTES) for i in range(-(-len(data) // CHUNK_BYTES))),
    }


def _sum_of(data: NDArray[np.uint8], i: int, chunk: int) -> str:
    return f"{zlib.crc32(data[i * chunk : (i + 1) * chunk].data):08x}"


def _open_array(path: Path, entry: ArrayEntry, verify: bool, mapped: bool) -> NDArray[Any]:
    """Map or read an array; `safetensors.safe_open` would copy it, and the header has said all about it."""
    dtype = np.dtype(entry.dtype).newbyteorder("<")
    size = prod(entry.shape) * dtype.itemsize
    if not path.is_file():
        raise ModelFileError(f"{path} is missing. {checks.HINT}")
    try:
        with open(path, "rb") as file:
            found, offset = os.fstat(file.fileno()).st_size, 8 + int.from_bytes(file.read(8), "little")
            if found != offset + size:
                raise ModelFileError(
                    f"{path} has {found:,} bytes instead of {offset + size:,}: it was cut off or replaced."
                    f" {checks.HINT}"
                )
            if mapped and size:
                # Behind a memoryview, joblib copies arrays to its processes. It would map a file that it sees
                # again: without what training has changed, and not once the model was saved again.
                view = memoryview(mmap.mmap(file.fileno(), found, access=mmap.ACCESS_COPY))
                data: NDArray[np.uint8] = np.frombuffer(view, np.uint8, size, offset)
            else:
                data = np.fromfile(file, np.uint8, size, offset=offset - 8)  # the first 8 are read
            if len(data) != size:
                raise ModelFileError(f"{path} was cut off while it was read. {checks.HINT}")
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror}). {checks.HINT}") from error
    n_chunks = -(-size // entry.chunk)
    chosen = range(n_chunks)
    if not verify and n_chunks > _SAMPLED:
        chosen = np.linspace(0, n_chunks - 1, _SAMPLED).astype(int).tolist()
    for i in chosen:
        if _sum_of(data, i, entry.chunk) != entry.checksums[8 * i : 8 * i + 8]:
            raise ModelFileError(f"{path} is damaged near byte {offset + i * entry.chunk:,}. {checks.HINT}")
    array: NDArray[Any] = np.asarray(data).view(dtype).reshape(entry.shape)
    return array


# -- replacement


def _refuse_foreign(target: Path) -> None:
    """Raise for a target that is neither missing, nor empty, nor a folder of this format."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        ours = _read_json(target)["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = (target / _LOCK).exists() and not (target / HEADER).exists()  # a first save was killed
    if not ours:
        raise FileExistsError(
            f"{target} exists and is not an extremax model, so it is left alone. Choose another folder."
        )


@contextlib.contextmanager
def _saving(target: Path, names: list[str]) -> Iterator[int]:
    """Yield the generation of a save of some arrays, alone in the folder; then remove the one before."""
    is_new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(target / _LOCK):
            _sweep(target)
            before = _written(target)
            generation = 0 if before is None else before.generation + 1
            saved = [] if before is None else before.files
            new = [_array_path(target, name, generation).name for name in names]
            (target / _SAVED).write_text(json.dumps([*saved, *new]))
            try:
                yield generation
            finally:
                _sweep(target)
    finally:
        if not (target / HEADER).exists():
            with contextlib.suppress(OSError):
                (target / _LOCK).unlink()
                if is_new:
                    target.rmdir()


class _Written(NamedTuple):
    """Generation of a folder, and the names of its files and folders but the header."""

    generation: int
    files: list[str]


def _written(target: Path) -> _Written | None:
    try:
        content = _read_json(target)
        generation = int(content.get("generation", 0))
        arrays = [_array_path(target, name, generation).name for name in content["arrays"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    shards = [] if generation else [path.parent.name for path in target.glob(f"shard-[0-9]*/{HEADER}")]
    return _Written(generation, [*arrays, *shards, f"shards-{generation}"])


def _sweep(target: Path) -> None:
    """Remove the files of earlier saves and of saves that were killed; others are not ours.

    Windows refuses to remove files that are mapped: a later save does.
    """
    try:
        listed = msgspec.json.decode((target / _SAVED).read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        listed = []
    kept = _written(target)
    # the list may come from elsewhere
    old = {name for name in listed if Path(name).name == name} - set([] if kept is None else kept.files)
    paths = [target / name for name in old if name.endswith(".safetensors") or name.startswith("shard")]
    paths += [path for path in target.iterdir() if is_stage(path) or _UNFINISHED.fullmatch(path.name)]
    for path in paths:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if not any(path.exists() for path in paths):
        (target / _SAVED).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some systems cannot open or flush a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            atomic_files.flush(descriptor)
        finally:
            os.close(descriptor)
