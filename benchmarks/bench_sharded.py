"""A step of ShardedExtremeSoftmax in 1, 2 and 3 processes, and the constants that predict it.

    python benchmarks/bench_sharded.py
    python benchmarks/bench_sharded.py --processes 1 2 --repeats 50

Processes talk by gloo over the loopback interface, with one thread each. Constants: a small all-reduce, bytes
per second of large collectives, multiplications of a product of the step's shape, scores of a softmax, rows
that are read and written by index, a decomposition of moments. Steps: hidden states that want a gradient,
the step of the layer with gradients="fused" and with dense gradients and AdamW, without an encoder. The
prediction is in processor seconds of one process:

    overhead + 6 small all-reduces + 3 N d T / products + N T softmax + 16 d T / row bytes
    + 2 N d^2 / products + decomposition / 16
    + (8 N d + 24 N) / bandwidth,        T = S / P + min(S / 2, N) / P classes of a process

with the overhead of the smallest step in one process, multiply-adds per second of the product, seconds per
score of a softmax and its gradient, bytes per second of rows read and written, and of a large all-reduce. The
second line is whitening: every process has the rows of all, and decomposes moments in every sixteenth step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from timing import machine, make_parser, write_rows

NAME = "bench_sharded"


class Case(NamedTuple):
    """A step: classes, features, rows of all processes together, shared classes, kind of gradients."""

    n_classes: int
    width: int
    n_rows: int
    n_shared: int
    gradients: str

    def __str__(self) -> str:
        return f"C={self.n_classes:,} d={self.width} N={self.n_rows} S={self.n_shared} {self.gradients}"


SMALLEST = Case(1000, 8, 6, 6, "fused")
CASES = [
    SMALLEST,
    Case(100_000, 64, 252, 1024, "fused"),
    Case(1_000_000, 128, 252, 1024, "fused"),
    Case(1_000_000, 128, 1020, 1024, "fused"),
    Case(1_000_000, 128, 1020, 4096, "fused"),
    Case(100_000, 64, 252, 1024, "dense"),
]
FIRST_STEPS = 16  # each decomposes moments; later ones in every sixteenth step
TINY = [SMALLEST, Case(500, 8, 12, 30, "dense")]


def figures(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return milliseconds of a call: least and median on the wall, mean of this process."""
    for _ in range(3):
        work()
    walls, start = [], time.process_time()
    for _ in range(repeats):
        before = time.perf_counter()
        work()
        walls.append(time.perf_counter() - before)
    used = (time.process_time() - start) / repeats
    return {
        "least ms": 1e3 * min(walls),
        "median ms": 1e3 * float(np.median(walls)),
        "processor ms": 1e3 * used,
    }


def measure_constants(size: int, repeats: int, cases: Sequence[Case]) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    from extremax.nn.hidden_moments import inverse_root

    small, n_large = torch.zeros(256), 1 << (12 if cases is TINY else 24)
    rows: list[dict[str, Any]] = []
    if size > 1:
        rows.append({"case": "all-reduce of 1 kB", **figures(lambda: dist.all_reduce(small), 10 * repeats)})
        large = torch.zeros(n_large)
        found = figures(lambda: dist.all_reduce(large), 3)
        for clock in ("least ms", "processor ms"):
            found[f"bytes/s by {clock}"] = 4e3 * n_large / found[clock]
        rows.append({"case": f"all-reduce of {4 * n_large >> 10} kB", **found})
    x, w = torch.randn(256, 128), torch.randn(1024, 128)
    found = figures(lambda: x @ w.T, 10 * repeats)
    found["multiply-adds/s"] = 256 * 128 * 1024 * 1e3 / found["processor ms"]
    rows.append({"case": "product 256 x 128 x 1024", **found})
    scores, is_target = torch.randn(256, 1024, requires_grad=True), torch.zeros(256, 1024, dtype=torch.bool)

    def softmax() -> None:
        logits = (scores + 1.0).masked_fill(is_target, -np.inf)
        torch.logsumexp(torch.cat([logits[:, :1], logits], dim=1), dim=1).sum().backward()

    found = figures(softmax, repeats)
    found["seconds per score"] = found["processor ms"] / 1e3 / (256 * 1024)
    rows.append({"case": "softmax of 256 x 1024 and its gradient", **found})
    table, at = torch.zeros(n_large // 64, 128), torch.randint(n_large // 64, (1024,))

    def read_and_write() -> None:
        table[at] = table[at] + 1.0

    found = figures(read_and_write, repeats)
    found["bytes/s"] = 1024 * 128 * 4 * 2 * 1e3 / found["processor ms"]
    rows.append({"case": "1,024 rows of 128 read and written", **found})
    for width in sorted({case.width for case in cases}):
        x = torch.randn(1024, width)
        moment = (x.T @ x).numpy()
        found = figures(lambda moment=moment: inverse_root(moment, 1024.0), repeats)
        rows.append({"case": decomposition(width), **found})
    return rows


def decomposition(width: int) -> str:
    return f"decomposition of the moments of {width} features"


def measure_step(case: Case, rank: int, size: int, repeats: int) -> dict[str, Any]:
    import torch

    from extremax.nn import ShardedExtremeSoftmax

    torch.manual_seed(rank)
    layer = ShardedExtremeSoftmax(
        case.width,
        case.n_classes,
        n_shared=case.n_shared,
        gradients=case.gradients,  # type: ignore[arg-type]
    )
    optimizer = torch.optim.AdamW(layer.parameters()) if case.gradients == "dense" else None
    n = case.n_rows // size
    hidden = torch.randn(n, case.width, requires_grad=True)
    y = torch.randint(case.n_classes, (n,))

    def step() -> None:
        hidden.grad = None
        layer.zero_grad()
        layer(hidden, y).loss.backward()
        if optimizer is not None:
            optimizer.step()

    for _ in range(FIRST_STEPS):
        step()
    return {"case": str(case), **figures(step, repeats)}


def run_rank(rank: int, size: int, folder: Path, repeats: int, cases: Sequence[Case]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"file://{folder}/meeting{size}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    found = measure_constants(size, repeats, cases)
    found += [measure_step(case, rank, size, repeats) for case in cases]
    if rank == 0:
        (folder / f"{size}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def run_processes(options: argparse.Namespace) -> None:
    """Fork groups of processes from this one, which has imported everything and has no threads."""
    import torch.distributed.tensor  # noqa: F401

    import extremax.nn  # noqa: F401

    cases = TINY if options.tiny else CASES
    for size in options.processes:
        children = []
        for rank in range(size):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    run_rank(rank, size, Path(options.folder), options.repeats, cases)
                    code = 0
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            sys.exit(1)


def add_predictions(found: dict[int, list[dict[str, Any]]], cases: Sequence[Case]) -> None:
    """Add what the constants say to the steps of the fused kind."""
    known = {size: {row["case"]: row for row in rows} for size, rows in found.items()}
    first = known[min(known)]
    overhead = first[str(SMALLEST)]["processor ms"]
    products = first["product 256 x 128 x 1024"]["multiply-adds/s"]
    softmax = first["softmax of 256 x 1024 and its gradient"]["seconds per score"]
    row_bytes = first["1,024 rows of 128 read and written"]["bytes/s"]
    for size, rows in known.items():
        call = rows["all-reduce of 1 kB"]["processor ms"] if size > 1 else 0.0
        large = [
            row for name, row in rows.items() if name.startswith("all-reduce") and "bytes/s by" in str(row)
        ]
        bandwidth = large[0]["bytes/s by processor ms"] if large else np.inf
        for case in cases:
            if case.gradients != "fused":
                continue
            n, d = case.n_rows, case.width
            n_set = (case.n_shared + min(case.n_shared // 2, n)) / size
            work = 3 * n * d * n_set / products + n * n_set * softmax
            work += 2 * n * d * d / products + first[decomposition(d)]["processor ms"] / 1e3 / 16
            traffic = 16 * d * n_set / row_bytes
            sent = (8 * n * d + 24 * n) / bandwidth if size > 1 else 0.0
            collectives = 6 * call if size > 1 else 0.0
            rows[str(case)]["predicted processor ms"] = overhead + collectives + 1e3 * (work + traffic + sent)


def main(argv: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # set in the process that forks the others
    options = parser.parse_args(argv)
    options.processes = options.processes or ([1, 2] if options.tiny else [1, 2, 3])
    options.repeats = options.repeats or (2 if options.tiny else 32)
    if options.folder:
        run_processes(options)
        return
    if not options.tiny:
        print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--folder", folder, "--repeats", str(options.repeats)]
        command += ["--processes", *map(str, options.processes)] + (["--tiny"] if options.tiny else [])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, check=True, env=environment)
        found = {size: json.loads((Path(folder) / f"{size}.json").read_text()) for size in options.processes}
    add_predictions(found, TINY if options.tiny else CASES)
    for size, rows in found.items():
        write_rows(NAME, [{**row, "case": f"{size} processes, {row['case']}"} for row in rows])


if __name__ == "__main__":
    main()
