"""Memory that is available, memory that is needed, and the error for too little."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from extremax.errors import NotEnoughMemoryError as NotEnoughMemoryError


def available_memory(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes this process can still take without swapping, within the limits of its container.

    Returns ``sys.maxsize`` if that is unknown.
    """
    limits = [sys.maxsize]
    meminfo = _read_numbers(proc / "meminfo")
    if "MemAvailable:" in meminfo:
        limits.append(meminfo["MemAvailable:"] * 1024)
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    # cgroups: version 2 has one tree ("0::/path"), version 1 one for memory ("4:memory:/path"); any folder of
    # the path may have a limit
    for line in _read_text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        root = cgroups if controllers == "" else cgroups / "memory"
        names = ("memory.max", "memory.current", "inactive_file")
        if controllers == "memory":
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        elif controllers:
            continue
        folder = root / path.lstrip("/")
        for level in (folder, *folder.parents):
            limit, used = _read_text(level / names[0]).strip(), _read_text(level / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                cache = _read_numbers(level / "memory.stat").get(names[2], 0)  # given back on demand
                limits.append(max(0, int(limit) - max(0, int(used) - cache)))
            if level == root:
                break
    return min(limits)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _read_numbers(path: Path) -> dict[str, int]:
    words = (line.split() for line in _read_text(path).splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def release_memory() -> None:
    """Give freed memory back to the system, where the C library keeps some of it for later."""
    trim = getattr(_c_library(), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@contextmanager
def reuse_freed_memory() -> Iterator[None]:
    """Let the C library keep freed memory for the next arrays, until the block ends.

    glibc does so by itself, unless ``MALLOC_TRIM_THRESHOLD_`` is set, as Dask sets it for its workers: each
    array of 128 KiB or more is then mapped anew, page by page, which may take as long as the work on it. The
    values of the environment come back when no block is left in any thread.
    """
    trim_threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    set_option = getattr(_c_library(), "mallopt", None)
    if set_option is None or not trim_threshold.isdigit():
        yield
        return
    with _reuse_lock:
        _open_blocks.append(None)
        set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        set_option(_M_TRIM_THRESHOLD, 2 * _LARGEST_MMAP_THRESHOLD)
    try:
        yield
    finally:
        with _reuse_lock:
            _open_blocks.pop()
            if not _open_blocks:
                mapped = os.environ.get("MALLOC_MMAP_THRESHOLD_", "")
                set_option(_M_MMAP_THRESHOLD, int(mapped) if mapped.isdigit() else 128 << 10)
                set_option(_M_TRIM_THRESHOLD, int(trim_threshold))
                release_memory()


_reuse_lock = threading.Lock()
_open_blocks: list[None] = []  # of `reuse_freed_memory`, in all threads
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; where glibc stops to raise it by itself


@cache
def _c_library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


def format_bytes(n: float) -> str:
    """Format a number of bytes: ``1536`` as ``1.5 KiB``."""
    power = next((p for p in range(4) if abs(n) < 1024 ** (p + 1)), 4)
    return f"{n / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def describe_memory(need: Mapping[str, int]) -> str:
    """Word a total and its parts, largest first.

    Examples
    --------
    >>> describe_memory({"biases": 4000, "weights": 2048000})
    '2.0 MiB (weights 2.0 MiB, biases 3.9 KiB)'
    """
    parts = sorted(need.items(), key=lambda part: -part[1])
    return (
        f"{format_bytes(sum(need.values()))} ({', '.join(f'{what} {format_bytes(n)}' for what, n in parts)})"
    )


def largest_phase(*phases: Mapping[str, int]) -> dict[str, int]:
    """Return the parts of the phase that needs most, where phases come one after the other.

    Examples
    --------
    >>> largest_phase({"rows": 3, "weights": 4}, {"weights": 4, "index": 2})
    {'rows': 3, 'weights': 4}
    """
    largest: Mapping[str, int] = max(phases, key=lambda phase: sum(phase.values()))
    return dict(largest)


def check_memory(
    need: Mapping[str, int],
    *,
    available: int | None = None,
    hints: Sequence[str],
    what: str = "ExtremeClassifier.fit",
) -> None:
    """Raise if a need of memory exceeds what is available.

    Parameters
    ----------
    need
        Bytes by name of the part.
    available
        Bytes; by default what the machine has free.
    hints
        Ways to need less, for the error message.
    what
        Name of the work in the error message.
    """
    available = available_memory() if available is None else available
    if sum(need.values()) > available:
        raise NotEnoughMemoryError(
            f"{what} needs {describe_memory(need)}, but {format_bytes(available)} are available."
            f" Ways out: {'; '.join(hints)}."
        )
