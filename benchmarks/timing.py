"""What the benchmarks share: clocks, the speed of memory, the machine, and rows of figures.

A benchmark is a module with ``main(argv=None) -> None`` that understands ``--tiny``: the smallest problem
that runs all of its code, in a few seconds and without data files.  It calls ``write_rows(name, rows)`` for
every group of figures; `run_all` runs all benchmarks and makes one table of their rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from extremax.runtime.threads import available_threads, run, split

ROWS_FILE = "EXTREMAX_BENCH_ROWS"  # environment variable: the JSON lines file that `write_rows` appends to
_BUFFER_BYTES = 1 << 28  # far larger than any cache
_TINY_BUFFER_BYTES = 1 << 22


class Seconds(NamedTuple):
    """Seconds on the wall, and of all processors together."""

    wall: float
    processor: float


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        return Seconds(time.perf_counter() - self._wall, time.process_time() - self._processor)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let PyTorch use one thread, and say nothing of its own default for sparse tensors."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse invariant checks")
            yield
    finally:
        torch.set_num_threads(threads)


def measure(work: Callable[[], object]) -> Seconds:
    """Return the seconds of one call."""
    clock = Clock()
    work()
    return clock.read()


def stopwatch(work: Callable[[], object]) -> float:
    """Return the wall seconds of one call."""
    return measure(work).wall


def best_of(work: Callable[[], object], repeats: int) -> Seconds:
    """Return the least wall and processor seconds of several calls, after one that is not measured."""
    work()
    found = [measure(work) for _ in range(repeats)]
    return Seconds(min(s.wall for s in found), min(s.processor for s in found))


class MemoryCopy:
    """A warm memory copy: the least time in which a number of bytes can be read and written.

    Parameters
    ----------
    tiny
        Whether to copy a small buffer, whose figures mean nothing.
    """

    def __init__(self, *, tiny: bool = False) -> None:
        self._size = _TINY_BUFFER_BYTES if tiny else _BUFFER_BYTES
        self._source = np.ones(self._size, np.uint8)
        self._target = np.ones(self._size, np.uint8)

    def seconds(self, bytes_moved: float, n_threads: int) -> float:
        """Return the seconds that moving so many bytes takes, reads and writes together."""
        parts = split(int(bytes_moved / 2), self._size // 16)

        def copy(i: int) -> None:
            start, stop = parts[i]
            offset = start % (self._size - (stop - start) + 1)
            cut = slice(offset, offset + stop - start)
            np.copyto(self._target[cut], self._source[cut])

        return stopwatch(lambda: run(copy, len(parts), n_threads))

    def bandwidth(self, n_threads: int) -> float:
        """Return the bytes per second that a copy moves, reads and writes together."""
        moved = 8 * self._size
        return moved / min(self.seconds(moved, n_threads) for _ in range(3))


def machine() -> str:
    """Return one line about where figures come from."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{_processor()}, {available_threads()} processors, {versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the docstring as help and the option that every benchmark has."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=formatter)
    parser.add_argument("--tiny", action="store_true", help="the smallest problem: does it run at all")
    return parser


def count(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count(1, "thread"), count(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def write_rows(name: str, rows: Iterable[Mapping[str, Any]], *, show: bool = True) -> None:
    """Print rows of figures, and append them to the file of a run of all benchmarks.

    Parameters
    ----------
    name
        Name of the benchmark.
    rows
        Each has a "case" and figures by name, with the unit in the name; None is a figure that is not known.
    show
        Whether to print them; False for a benchmark that prints a table of its own.
    """
    path = os.environ.get(ROWS_FILE)
    for row in rows:
        if show:
            print(f"{row['case']}: {describe(row)}", flush=True)
        if path:
            with Path(path).open("a") as file:
                file.write(json.dumps({"benchmark": name, **{key: _plain(row[key]) for key in row}}) + "\n")


def describe(row: Mapping[str, Any]) -> str:
    """Return the figures of a row as text.

    >>> describe({"benchmark": "bench_epoch", "case": "adagrad", "seconds": 1.23456, "rows/s": 397261})
    'seconds 1.235, rows/s 397,300'
    """
    figures = {name: value for name, value in row.items() if name not in ("benchmark", "case")}
    return ", ".join(f"{name} {_format(value)}" for name, value in figures.items() if value is not None)


def _format(value: Any) -> str:
    if isinstance(value, str):
        return value
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
