"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_STAGE = re.compile(r"\..+\.[0-9a-f]{12}")
_DESCRIPTORS = "/proc/self/fd"
_ABANDONED_SECONDS = 3600.0  # a write that goes on has touched its file since


def stage_of(path: Path) -> Path:
    """Return a temporary name in the folder of `path`, to write its content to."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def is_stage(path: Path) -> bool:
    """Whether a name comes from `stage_of`: of a write in progress, or of one that was killed."""
    return _STAGE.fullmatch(path.name) is not None


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let errors of the operating system in the block name `path`, as those of a full disk do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place and the mode of `path` when the block ends without error."""
    _remove_abandoned(path)
    stage = stage_of(path)
    try:
        with naming(path), _create(stage, path) as file:
            here = stage if stage.exists() else Path(f"{_DESCRIPTORS}/{file.fileno()}")
            if path.exists():
                shutil.copymode(path, here)
            yield file
            file.flush()
            flush(file.fileno())
            if here != stage:  # given a descriptor, Python follows the link
                os.link(here, stage, src_dir_fd=file.fileno())
        _rename(stage, path)
    finally:
        stage.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, completely or not at all."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", "replace"))


def _create(stage: Path, path: Path) -> IO[bytes]:
    """Open a new file: without a name where the system has such, so that a killed process leaves nothing."""
    if hasattr(os, "O_TMPFILE") and os.path.isdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # not every file system has them
            return open(os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666), "w+b")
    try:
        return open(stage, "xb")
    except OSError as error:
        error.filename = str(path)
        raise


def _remove_abandoned(path: Path) -> None:
    """Remove what killed writes of the same file have left."""
    oldest = time.time() - _ABANDONED_SECONDS
    for other in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            if is_stage(other) and other.is_file() and other.stat().st_mtime < oldest:
                other.unlink()


def flush(descriptor: int) -> None:
    """Have an open file written to the disk."""
    os.fsync(descriptor)


def _rename(stage: Path, path: Path) -> None:
    for _ in range(100 if os.name == "nt" else 0):  # Windows refuses while a reader has the file open
        try:
            os.replace(stage, path)
        except PermissionError:
            time.sleep(0.02)
        else:
            return
    os.replace(stage, path)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON."""
    write_text(path, json.dumps(content, indent=1, default=str) + "\n")
