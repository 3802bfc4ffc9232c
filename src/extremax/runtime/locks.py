"""Locks that end with their process: a killed process leaves none behind.

They are locks of the operating system (``flock``, on Windows ``locking``), not files that exist. Where a file
system has none, work goes on without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

LOCK_NAME = ".lock"
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder: True if it is ours now, False if another holds it, None without locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return None
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold an existing folder for this process while the block runs.

    Raises
    ------
    BlockingIOError
        If another process, or another call in this one, holds it.
    """
    path = folder / LOCK_NAME
    descriptor = _open_lock(path, folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # removed while it is ours: another call makes a new one
            path.unlink()
        os.close(descriptor)


def _open_lock(path: Path, folder: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        locked = try_lock(descriptor)
        if locked is False:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise BlockingIOError(
                f"{folder} is in use by another process{owner}. Wait until it ends, or choose another folder."
            )
        if is_at(descriptor, path):
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
            return descriptor
        os.close(descriptor)  # its owner removed it before it was ours


def is_at(descriptor: int, path: Path) -> bool:
    """Tell whether an open file or folder still has this name."""
    try:
        there = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _owner(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 200, 0).decode(errors="replace") if hasattr(os, "pread") else ""
    except OSError:
        return ""
    return f" ({text})" if text.isprintable() and text else ""
