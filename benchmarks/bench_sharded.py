"""A training step of ShardedExtremeSoftmax in 1, 2 and 3 processes.

    python benchmarks/bench_sharded.py
    python benchmarks/bench_sharded.py --processes 1 2 --repeats 50

Processes talk by gloo over the loopback interface, with one thread each. A step is the loss of random hidden
states, the gradient of these, and the update of the classes by `make_optimizer`; there is no encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from timing import machine, make_parser, write_rows

NAME = "bench_sharded"
FIRST_STEPS = 17  # of RowAdagrad, which finds roots of moments more often in its first ones


class Case(NamedTuple):
    """A step: classes, features, rows of all processes together, drawn classes."""

    n_classes: int
    width: int
    n_rows: int
    n_sampled: int

    def __str__(self) -> str:
        return f"C={self.n_classes:,} d={self.width} N={self.n_rows} S={self.n_sampled}"


CASES = [Case(100_000, 64, 252, 1024), Case(1_000_000, 128, 252, 1024), Case(1_000_000, 128, 1020, 4096)]
TINY = [Case(500, 8, 12, 30)]


def time_steps(case: Case, repeats: int) -> dict[str, float]:
    """Return milliseconds of a step: median on the wall, mean of this process."""
    import torch
    import torch.distributed as dist

    from extremax.nn import ShardedExtremeSoftmax, UniformSampler, make_optimizer

    sampler = UniformSampler(case.n_classes, case.n_sampled)
    layer = ShardedExtremeSoftmax(case.width, case.n_classes, sampler=sampler)
    optimizer = make_optimizer(layer)
    n = case.n_rows // dist.get_world_size()
    hidden, y = torch.randn(n, case.width, requires_grad=True), torch.randint(case.n_classes, (n,))
    walls: list[float] = []
    used = 0.0
    for step in range(FIRST_STEPS + repeats):
        wall, processor = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        layer(hidden, y).loss.backward()
        optimizer.step()
        if step >= FIRST_STEPS:
            walls.append(time.perf_counter() - wall)
            used += time.process_time() - processor
    return {"median ms": 1e3 * float(np.median(walls)), "processor ms": 1e3 * used / repeats}


def run_rank(folder: Path, rank: int, size: int, args: argparse.Namespace) -> None:
    """Time all cases as one of the processes; the first writes what it found."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = [time_steps(case, args.repeats) for case in (TINY if args.tiny else CASES)]
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)  # folder, rank and size of a process
    args = parser.parse_args(argv)
    if args.tiny:
        args.processes, args.repeats = [1, 2], 1
    if args.rank:
        run_rank(Path(args.rank[0]), int(args.rank[1]), int(args.rank[2]), args)
        return
    print(machine())
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for size in args.processes:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--repeats", str(args.repeats), *(["--tiny"] if args.tiny else [])]
            command = [sys.executable, str(Path(__file__).resolve()), *options, "--rank", folder]
            started = [
                subprocess.Popen([*command, str(rank), str(size)], env=environment) for rank in range(size)
            ]
            if any(process.wait() for process in started):
                raise SystemExit(f"A process of {size} failed.")
            found = json.loads((Path(folder) / "found.json").read_text())
        for case, figures in zip(TINY if args.tiny else CASES, found, strict=True):
            write_rows(NAME, [{"case": f"{case}, {size} processes", **figures}])


if __name__ == "__main__":
    main()
