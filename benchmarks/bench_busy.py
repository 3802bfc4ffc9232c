"""Seconds of a fit on a quiet and on a busy machine, with one thread and with several.

    python benchmarks/bench_busy.py             # 30,000 rows, 3,000 classes, 64 features
    python benchmarks/bench_busy.py --tiny      # a few seconds: does it run at all

A busy machine has one other computing process per processor; this program starts and ends them.  Each fit is measured in turns,
quiet and busy, and the fastest of the repeats is printed: what other users of the machine take is in the slower ones.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from extremax import ExtremeClassifier
from extremax.data.synthetic import planted_hierarchy
from extremax.runtime.threads import available_threads
from timing import machine

OBJECTIVES = ("negative_sampling", "shared_softmax")
# Ends by itself when its parent is gone, so that not even a killed benchmark leaves the machine busy.
LOAD = """
import os, sys
import numpy as np
parent = os.getppid()
a = np.ones((128, 128), np.float32)
print("ready", flush=True)
while os.getppid() == parent:
    for _ in range(200):
        a = a @ a
        a /= a.max()
"""


class Seconds(NamedTuple):
    """Of one fit: on the wall, and of all processors together."""

    wall: float
    processor: float


@contextmanager
def busy(n_processes: int) -> Iterator[None]:
    """Keep `n_processes` other processes computing inside the block."""
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    load: list[subprocess.Popen[str]] = []
    try:
        for _ in range(n_processes):
            command = [sys.executable, "-c", LOAD]
            load.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **one_thread}))
        for process in load:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in load:
            process.kill()
        for process in load:
            process.wait()


def fit_seconds(X: np.ndarray, y: np.ndarray, objective: str, n_jobs: int, n_epochs: int | None) -> Seconds:
    model = ExtremeClassifier(objective=objective, n_jobs=n_jobs, n_epochs=n_epochs, random_state=0)
    wall, processor = time.perf_counter(), time.process_time()
    model.fit(X, y)
    return Seconds(time.perf_counter() - wall, time.process_time() - processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--classes", type=int, default=3_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=None, help="of each fit; the default's own number unless given")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--load", type=int, default=available_threads(), help="other processes; one per processor unless given")
    parser.add_argument("--objectives", nargs="*", default=OBJECTIVES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a small problem, once")
    args = parser.parse_args()
    if args.tiny:
        args.rows, args.classes, args.features, args.epochs, args.repeats = 1_000, 50, 16, 1, 1

    print(f"{machine()}; load: {args.load} processes")
    print(f"{args.rows:,} rows, {args.classes:,} classes, {args.features} features; the fastest of {args.repeats}")
    data = planted_hierarchy(args.rows, args.classes, args.features, seed=0)
    found: dict[tuple[str, int, bool], list[Seconds]] = {}
    for objective in args.objectives:
        for n_jobs in args.jobs:  # compiles or loads the kernels, and starts the pool of threads
            fit_seconds(data.X, data.y, objective, n_jobs, 1)
    for _, objective, is_busy in itertools.product(range(args.repeats), args.objectives, (False, True)):
        with busy(args.load if is_busy else 0):
            for n_jobs in args.jobs:
                seconds = fit_seconds(data.X, data.y, objective, n_jobs, args.epochs)
                found.setdefault((objective, n_jobs, is_busy), []).append(seconds)

    print(f"{'objective':18s} {'machine':8s} {'n_jobs':>6s} {'wall':>8s} {'processor':>10s} {'wall / one thread':>18s}")
    for objective, is_busy, n_jobs in itertools.product(args.objectives, (False, True), args.jobs):
        seconds = found[objective, n_jobs, is_busy]
        wall, processor = min(s.wall for s in seconds), min(s.processor for s in seconds)
        ratio = wall / min(s.wall for s in found[objective, args.jobs[0], is_busy])
        state = "busy" if is_busy else "quiet"
        print(f"{objective:18s} {state:8s} {n_jobs:6d} {wall:6.2f} s {processor:8.2f} s {ratio:18.2f}")


if __name__ == "__main__":
    main()
