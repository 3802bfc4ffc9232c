"""Memory that is available, memory that is needed, and the error for too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from extremax.errors import NotEnoughMemoryError as NotEnoughMemoryError

_CGROUP = Path("/sys/fs/cgroup")  # a Linux container sees its own limits here
_THREAD_SPACE = 96 << 20  # address space of a thread: its stack, its heap, and what BLAS keeps for it


def available_memory(n_threads: int = 1, *, cgroup: Path = _CGROUP) -> int:
    """Return the bytes this process can still take without swapping.

    The limit of its container counts, and so does one of its address space (``ulimit -v``), of which threads
    take more than memory: BLAS waits for ever, or ends the process, where it finds no room.
    """
    process = psutil.Process()
    free = int(psutil.virtual_memory().available)
    if hasattr(process, "rlimit"):  # on Linux
        space, _ = process.rlimit(psutil.RLIMIT_AS)
        if space >= 0:
            taken = int(process.memory_info().vms) + n_threads * _THREAD_SPACE
            free = max(0, min(free, space - taken))
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        usage = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        cached = int(usage["inactive_file"])  # which the kernel gives back on demand
    except (OSError, ValueError, KeyError):  # another system, or no limit ("max")
        return free
    return min(free, max(0, limit - used + cached))


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


def check_memory(
    need: Mapping[str, int],
    *,
    available: int | None = None,
    hints: Sequence[str],
    what: str = "ExtremeClassifier.fit",
) -> None:
    """Raise if more memory is needed than available.

    Parameters
    ----------
    need
        Bytes by name of the part.
    available
        Bytes; by default the free memory of the machine.
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
