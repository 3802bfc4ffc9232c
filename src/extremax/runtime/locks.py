"""Locks that end with their process: a killed process leaves none behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_NAME = ".lock"


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold an existing folder for this process while the block runs.

    Raises
    ------
    BlockingIOError
        If another process, or another call in this one, holds it.
    """
    try:
        lock = FileLock(folder / LOCK_NAME, timeout=0).acquire()
    except Timeout:
        raise BlockingIOError(
            f"{folder} is in use by another process. Wait until it ends, or choose another folder."
        ) from None
    with lock:
        yield
