"""Seconds of a fit on a quiet and on a busy machine, with one thread and with several.

    python benchmarks/bench_busy.py             # 30,000 rows, 3,000 classes, 64 features
    python benchmarks/bench_busy.py --tiny      # a few seconds: does it run at all

A busy machine has one other computing process per processor; this program starts and ends them.  Quiet and
busy fits alternate, and the fastest of the repeats counts: what other users of the machine take is in the
slower ones.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from extremax import ExtremeClassifier
from extremax.data.synthetic import planted_hierarchy
from extremax.runtime.threads import available_threads
from timing import Clock, Seconds, machine, make_parser, write_rows

NAME = "bench_busy"
SOLVERS = ("negative_sampling", "minibatch_softmax")
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


@contextmanager
def busy(n_processes: int) -> Iterator[None]:
    """Keep `n_processes` other processes computing inside the block."""
    one_thread = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    load: list[subprocess.Popen[str]] = []
    try:
        for _ in range(n_processes):
            command, environment = [sys.executable, "-c", LOAD], {**os.environ, **one_thread}
            load.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        for process in load:
            assert process.stdout is not None
            process.stdout.readline()
        yield
    finally:
        for process in load:
            process.kill()
        for process in load:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def fit_seconds(X: np.ndarray, y: np.ndarray, solver: str, n_jobs: int, n_epochs: int | None) -> Seconds:
    model = ExtremeClassifier.with_solver(solver, n_jobs=n_jobs, n_epochs=n_epochs, random_state=0)
    clock = Clock()
    model.fit(X, y)
    return clock.read()


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--classes", type=int, default=3_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=None, help="of each fit; by default chosen by the fit")
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--load", type=int, default=available_threads(), help="other processes")
    parser.add_argument("--solvers", nargs="*", default=SOLVERS)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    if args.tiny:
        args.rows, args.classes, args.features, args.epochs, args.repeats = 1_000, 50, 16, 1, 1

    print(f"{machine()}; load: {args.load} processes")
    sizes = f"{args.rows:,} rows, {args.classes:,} classes, {args.features} features"
    print(f"{sizes}; the fastest of {args.repeats}")
    data = planted_hierarchy(args.rows, args.classes, args.features, seed=0)
    found: dict[tuple[str, int, bool], list[Seconds]] = {}
    for solver in args.solvers:
        for n_jobs in args.jobs:  # compiles or loads the kernels, and starts the pool of threads
            fit_seconds(data.X, data.y, solver, n_jobs, 1)
    for _, solver, is_busy in itertools.product(range(args.repeats), args.solvers, (False, True)):
        with busy(args.load if is_busy else 0):
            for n_jobs in args.jobs:
                seconds = fit_seconds(data.X, data.y, solver, n_jobs, args.epochs)
                found.setdefault((solver, n_jobs, is_busy), []).append(seconds)

    for solver, is_busy, n_jobs in itertools.product(args.solvers, (False, True), args.jobs):
        wall = min(seconds.wall for seconds in found[solver, n_jobs, is_busy])
        row = {
            "case": f"{solver}, {'busy' if is_busy else 'quiet'}, n_jobs={n_jobs}",
            "seconds": wall,
            "processor s": min(seconds.processor for seconds in found[solver, n_jobs, is_busy]),
            f"over n_jobs={args.jobs[0]}": wall / min(s.wall for s in found[solver, args.jobs[0], is_busy]),
        }
        write_rows(NAME, [row])


if __name__ == "__main__":
    main()
