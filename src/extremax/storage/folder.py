"""Folders of arrays on disk: safetensors for the arrays, JSON for the rest, no pickle.

``header.json`` states the format and its version, the kind of content, and for every array its dtype, shape
and checksums; it has a checksum of itself. Each array is a
`safetensors <https://huggingface.co/docs/safetensors>`_ file of its own whose data starts at a multiple of 64
bytes, so that it can be memory-mapped and read at full speed.

A folder is written under another name, flushed, and then renamed or exchanged: a reader finds the old content
or the new one, never a part of either.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.errors import ModelFileError as ModelFileError
from extremax.runtime.atomic_files import naming, stage_of
from extremax.storage import checks
from extremax.storage.dtypes import DTYPES
from extremax.storage.labels import pack_labels, unpack_labels
from extremax.storage.limits import (
    MAX_ARRAYS,
    MAX_HEADER_BYTES,
    MAX_NAME,
    open_regular,
    parse_json,
    read_limited,
)
from extremax.storage.stages import OLD, new_stage, read_steadily

FORMAT = "extremax"
FORMAT_VERSION = 3  # the newest that is read
USUAL_VERSION = 2  # of content that earlier versions of the package read
HEADER = "header.json"

CHUNK_BYTES = 1 << 18  # bytes under one checksum: 32 kB of checksums for a model of 1 GB
_SAMPLED = 16  # chunks of each array that every load checks: all of an array of up to 4 MiB
_ALIGNMENT = 64
_MAX_CHUNK, _MAX_PREFIX = 64 << 20, 1 << 16  # bytes that are read at a time, and before the data of an array
_ARRAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
_HINT = "Copy or save the model again."


class ModelFolder(NamedTuple):
    """Content of a folder."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    labels: NDArray[Any] | None
    format_version: int = USUAL_VERSION
    kind: str = ""


def save_folder(  # noqa: PLR0913 (what a folder holds, part by part)
    path: str | os.PathLike[str],
    *,
    kind: str,
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    labels: NDArray[Any] | None = None,
    texts: Mapping[str, str] | None = None,
    format_version: int = USUAL_VERSION,
    fill: Callable[[Path], Mapping[str, Any]] | None = None,
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
    format_version : int
        A later one where earlier versions of the package would misread the content: they refuse it.
    fill : callable, optional
        Called with the folder before it gets its name: it may write folders of its own there, and returns
        what the header says of them.

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
    if reserved := [name for name in arrays if _is_reserved(name)]:
        raise ValueError(
            f"{reserved[0]!r} cannot be the name of an array: it is where the labels are stored."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # at the end, the stage is a failed one, or the model that was replaced
    with naming(target), new_stage(target) as stage:
        label_coding, label_arrays = (None, {}) if labels is None else pack_labels(np.asarray(labels))
        more = {} if fill is None else fill(stage)
        content: dict[str, Any] = {
            "format": FORMAT,
            "format_version": format_version,
            "package_version": package_version(),
            "kind": kind,
            "header": {**header, **more},
            "labels": label_coding,
            "arrays": {
                name: _write_array(stage, name, array) for name, array in {**arrays, **label_arrays}.items()
            },
        }
        text = _canonical_json(content)
        document = json.dumps({"checksum": _checksum(text), **json.loads(text)}, indent=1)
        if len(document) > MAX_HEADER_BYTES or len(content["arrays"]) > MAX_ARRAYS:
            raise ValueError(
                f"the header of the model has {len(document):,} bytes and {len(content['arrays']):,} arrays;"
                f" a model folder holds at most {MAX_HEADER_BYTES:,} and {MAX_ARRAYS:,}. Use shorter feature"
                " names, or none."
            )
        parse_json(document.encode())  # what cannot be read again is not written
        for name, text in {HEADER: document, **(texts or {})}.items():
            with open(stage / name, "xb") as file:
                file.write(text.encode("utf-8", "replace"))
                _flush(file.fileno())
        _flush_folder(stage)
        _refuse_foreign(target)
        _put_in_place(stage, target)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise if `save_folder` could not write to `path`; for a call before long work."""
    target = Path(os.path.realpath(path))
    _refuse_foreign(target)
    above = next(folder for folder in target.parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{above} is a file; {target} cannot be a folder in it.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(f"{above} may not be written to; choose another place for the model.")
    probe = stage_of(above / target.name)  # the disk may be full, or read-only
    try:
        with naming(above), open(probe, "xb") as file:
            file.write(bytes(CHUNK_BYTES))
            _flush(file.fileno())
    except OSError as error:
        error.filename = str(above)
        raise
    finally:
        probe.unlink(missing_ok=True)


def folder_checksum(path: str | os.PathLike[str]) -> str:
    """Return the checksum of the header of a folder, which changes with everything in it."""
    _read_header(Path(path))
    return checks.get_text(parse_json(read_limited(Path(path) / HEADER)), "checksum")


def load_folder(
    path: str | os.PathLike[str],
    *,
    kind: str | tuple[str, ...],
    verify: bool = False,
    copy_on_write: bool = False,
) -> ModelFolder:
    """Open a folder; its arrays are memory-mapped, so that large ones open as fast as small ones.

    Every load checks the header, the size of every file and a sample of the data.

    Parameters
    ----------
    path : path-like
        A folder written by `save_folder`.
    kind : str or tuple of str
        Kind of content that is expected.
    verify : bool
        Read and check all of the data.
    copy_on_write : bool
        Return arrays that may be written to, in memory only: a page is copied when it is first changed. By
        default the arrays are read-only.

    Raises
    ------
    ModelFileError
        If the folder is no model, is of another kind, is damaged or was written in a newer format.
    """
    folder = Path(path)
    kinds = (kind,) if isinstance(kind, str) else kind
    return read_steadily(folder, lambda: _load(folder, kinds, verify=verify, copy_on_write=copy_on_write))


def _load(folder: Path, kinds: tuple[str, ...], *, verify: bool, copy_on_write: bool) -> ModelFolder:
    content = _read_header(folder)
    if content["kind"] not in kinds:
        raise ModelFileError(f"{folder} holds a {content['kind']!r}, not a {kinds[0]!r}.")
    arrays = {
        name: _open_array(folder, name, entry, verify=verify, copy_on_write=copy_on_write)
        for name, entry in content["arrays"].items()
    }
    labels = None
    if content["labels"] is not None:
        stored = {name: arrays.pop(name) for name in list(arrays) if _is_reserved(name)}
        with checks.whole_model(folder):
            labels = unpack_labels(content["labels"], stored)
    return ModelFolder(content["header"], arrays, labels, content["format_version"], content["kind"])


# -- the header


def _read_header(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise FileNotFoundError(f"There is no model at {folder}: the folder does not exist.")
    try:
        content = parse_json(read_limited(folder / HEADER))
        content_format = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f" ({error})" if str(error).startswith("it has") else ""
        raise ModelFileError(
            f"{folder} is not an extremax model: it has no readable {HEADER}{why}."
        ) from None
    if content_format != FORMAT:
        raise ModelFileError(
            f"{folder} is not an extremax model: its {HEADER} says format {checks.shown(content_format)}."
        )
    found = content.get("format_version")
    if isinstance(found, int) and found > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} is in format {checks.shown(found)}, written by extremax"
            f" {checks.shown(str(content.get('package_version')))}; this is"
            f" extremax {package_version()}, which reads up to format {FORMAT_VERSION}. Upgrade extremax to"
            " open it."
        )
    checksum = content.pop("checksum", None)
    if checksum != _checksum(_canonical_json(content)):
        raise ModelFileError(f"{folder / HEADER} is damaged: its checksum does not match. {_HINT}")
    with checks.whole_model(folder):
        _check_header(content)
    return content  # type: ignore[no-any-return]


def _check_header(content: dict[str, Any]) -> None:
    """Raise for a header without one of its parts, or with one of another type."""
    checks.get_int(content, "format_version", 1, FORMAT_VERSION)
    checks.get_text(content, "kind")
    checks.get_mapping(content, "header")
    if checks.get(content, "labels") is not None:
        checks.get_mapping(content, "labels")
    entries = checks.get_mapping(content, "arrays")
    if len(entries) > MAX_ARRAYS:
        checks.reject(f"it has {len(entries):,} arrays where at most {MAX_ARRAYS:,} are allowed")
    for name in entries:
        if len(name) > MAX_NAME or _ARRAY_NAME.fullmatch(name) is None:
            checks.reject(
                f"{checks.shown(name)} cannot be the name of an array: it may lead out of the folder"
            )
        entry = checks.get_mapping(entries, name)
        if checks.get_text(entry, "dtype") not in DTYPES:
            checks.reject(f"array {name!r} has the unknown type {checks.shown(entry['dtype'])}")
        shape = checks.get_list(entry, "shape", (int,))
        if len(shape) > 8 or min(shape, default=0) < 0 or prod(max(n, 1) for n in shape) > 2**59:
            checks.reject(f"array {name!r} has the shape {checks.shown(shape)}")
        checks.get_int(entry, "offset", 8, _MAX_PREFIX)
        checks.get_int(entry, "chunk", 1, _MAX_CHUNK)
        checks.get_text(entry, "prefix_checksum")
        checks.get_text(entry, "checksums")


def _canonical_json(content: Any) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(
            f"A model header holds numbers, strings, lists and dicts; got a {type(value).__name__}."
        )

    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False, default=plain)


def _checksum(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def package_version() -> str:
    try:
        return version("extremax")
    except PackageNotFoundError:  # run from a source folder
        return "unknown"


# -- arrays


def _is_reserved(name: str) -> bool:
    return name in ("labels", "label_offsets")


def _write_array(folder: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    if len(name) > MAX_NAME or _ARRAY_NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} cannot be the name of an array: use letters, digits, dots and underscores, at most"
            f" {MAX_NAME}."
        )
    array = np.asarray(array)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"Array {name!r} has dtype {array.dtype}, which a model folder cannot hold.")
    shape = array.shape
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    entry = {name: {"dtype": DTYPES[array.dtype.name], "shape": shape, "data_offsets": [0, array.nbytes]}}
    text = json.dumps(entry, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)  # the format allows spaces after its header
    prefix = len(text).to_bytes(8, "little") + text
    data = array.reshape(-1).view(np.uint8).data if array.nbytes else memoryview(b"")
    sums = []
    with open(folder / f"{name}.safetensors", "xb") as file:
        file.write(prefix)
        for start in range(0, len(data), CHUNK_BYTES):
            chunk = data[start : start + CHUNK_BYTES]
            sums.append(_sum_of(chunk))
            file.write(chunk)
        _flush(file.fileno())
    return {
        "dtype": array.dtype.name,
        "shape": list(shape),
        "offset": len(prefix),
        "prefix_checksum": _sum_of(prefix),
        "chunk": CHUNK_BYTES,
        "checksums": "".join(sums),
    }


def _open_array(
    folder: Path, name: str, entry: Mapping[str, Any], *, verify: bool, copy_on_write: bool
) -> NDArray[Any]:
    path = folder / f"{name}.safetensors"
    dtype, shape, offset = (
        np.dtype(entry["dtype"]).newbyteorder("<"),
        tuple(entry["shape"]),
        int(entry["offset"]),
    )
    size = prod(shape) * dtype.itemsize
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != offset + size:
                raise ModelFileError(
                    f"{path} has {found:,} bytes instead of {offset + size:,}: it was cut off or replaced."
                    f" {_HINT}"
                )
            prefix = file.read(offset)
            mode: Any = "c" if copy_on_write else "r"
            data = np.memmap(file, dtype=np.uint8, mode=mode, offset=offset, shape=(size,)) if size else None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror}). {_HINT}") from error
    if _sum_of(prefix) != entry["prefix_checksum"]:
        raise ModelFileError(f"{path} is damaged in its first {offset} bytes. {_HINT}")
    _check_prefix(path, prefix, name, entry, size)
    if data is None:
        empty = np.empty(shape, dtype=dtype)
        empty.flags.writeable = copy_on_write
        return empty
    chunk, sums = int(entry["chunk"]), entry["checksums"]
    n_chunks = -(-size // chunk)
    if len(sums) != 8 * n_chunks:
        raise ModelFileError(f"{path} has {len(sums) // 8:,} checksums instead of {n_chunks:,}. {_HINT}")
    chosen = range(n_chunks) if verify else np.unique(np.linspace(0, n_chunks - 1, _SAMPLED).astype(int))
    for i in chosen:
        if _sum_of(data[i * chunk : (i + 1) * chunk].data) != sums[8 * i : 8 * i + 8]:
            raise ModelFileError(f"{path} is damaged near byte {offset + i * chunk:,}. {_HINT}")
    array: NDArray[Any] = np.asarray(data).view(dtype).reshape(shape)
    return array


def _check_prefix(path: Path, prefix: bytes, name: str, entry: Mapping[str, Any], size: int) -> None:
    """Raise unless the array's own description says what the header of the folder says."""
    expected = {"dtype": DTYPES[entry["dtype"]], "shape": entry["shape"], "data_offsets": [0, size]}
    try:
        same = int.from_bytes(prefix[:8], "little") == len(prefix) - 8 and parse_json(prefix[8:]) == {
            name: expected
        }
    except ValueError:
        same = False
    if not same:
        raise ModelFileError(f"{path} describes another array than {HEADER} does. {_HINT}")


def _sum_of(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


# -- atomic replacement


def _refuse_foreign(target: Path) -> None:
    """Raise for a target that is neither missing, nor empty, nor a folder of this format."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    try:
        ours = parse_json(read_limited(target / HEADER))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise FileExistsError(
            f"{target} exists and is not an extremax model, so it is left alone. Choose another folder."
        )


def _put_in_place(stage: Path, target: Path) -> None:
    """Rename `stage` to `target`; a model that was there ends up at `stage`."""
    if not target.exists():
        os.rename(stage, target)
    elif not _exchange(stage, target):
        aside = stage.with_name(stage.name + OLD)
        os.rename(target, aside)
        try:
            os.rename(stage, target)
        except OSError:
            os.rename(aside, target)
            raise
        os.rename(aside, stage)
    _flush_folder(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one step, and return whether the system can: there is always a model then."""
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or an old C library
        return False
    at_cwd, rename_exchange = -100, 2
    return swap(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), rename_exchange) == 0  # type: ignore[no-any-return]


def _flush(descriptor: int) -> None:
    os.fsync(descriptor)


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some systems cannot open or flush a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)
