"""What the benchmarks share: a memory-copy yardstick and the statement of what was measured."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np

from extremax.runtime import threads as parallel

_BUFFER_BYTES = 1 << 28  # far larger than any cache


class MemoryCopy:
    """Times a warm memcpy that moves a given number of bytes (reads plus writes) on a given number of
    threads.
    """

    def __init__(self) -> None:
        self.source = np.ones(_BUFFER_BYTES, np.uint8)
        self.target = np.ones(_BUFFER_BYTES, np.uint8)

    def seconds(self, bytes_moved: float, n_threads: int) -> float:
        size = int(bytes_moved / 2)
        parts = parallel.split(size, _BUFFER_BYTES // 16)

        def copy(i: int) -> None:
            start, stop = parts[i]
            offset = start % (_BUFFER_BYTES - (stop - start) + 1)
            np.copyto(
                self.target[offset : offset + stop - start], self.source[offset : offset + stop - start]
            )

        started = time.perf_counter()
        parallel.run(copy, len(parts), n_threads)
        return time.perf_counter() - started


def stopwatch(work: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def machine() -> str:
    """One line about where figures come from."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{platform.machine()}, {parallel.available_threads()} processors, {versions}"
