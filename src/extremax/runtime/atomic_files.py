"""Small files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STAGE = re.compile(r"\..+\.[0-9a-f]{12}")


def stage_of(path: Path) -> Path:
    """Return a new temporary name beside `path`, under which its content is written first."""
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


def write_text(path: Path, text: str) -> None:
    """Write a text file under a temporary name, flush it, then rename it."""
    stage = stage_of(path)
    try:
        with naming(path), open(stage, "xb") as file:
            file.write(text.encode("utf-8", "replace"))
            flush(file.fileno())
        _rename(stage, path)
    finally:
        stage.unlink(missing_ok=True)


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
