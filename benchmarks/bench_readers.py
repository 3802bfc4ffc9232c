"""How fast files are read: 1 GB of XMC text on one core within 60 s, and the other formats beside it.

    python benchmarks/bench_readers.py --megabytes 1000

Writes its files to a temporary folder.  Seconds include everything from opening the file to the finished
Dataset, with the kernels compiled before.
"""

from __future__ import annotations

import gzip
import io
import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from extremax.data import load_dataset
from timing import Clock, machine, make_parser, write_rows

NAME = "bench_readers"
_BLOCK_ROWS, _TINY_BLOCK_ROWS = 2000, 50


def sparse_block(rng: np.random.Generator, n_rows: int) -> bytes:
    """Return rows of 80 sorted random indices with six-digit values, like the files of the repository."""
    lines = []
    for _ in range(n_rows):
        indices = np.sort(rng.choice(500_000, 80, replace=False)).tolist()
        values = rng.random(80).tolist()
        labels = ",".join(map(str, rng.integers(0, 10_000, 3).tolist()))
        lines.append(labels + " " + " ".join(f"{i}:{v:.6f}" for i, v in zip(indices, values, strict=True)))
    return ("\n".join(lines) + "\n").encode()


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process on one core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def read(path: Path, case: str) -> None:
    """Read a file and write a row about it."""
    clock = Clock()
    data = load_dataset(path)
    seconds, megabytes = clock.read().wall, path.stat().st_size / 1e6
    row = {
        "case": case,
        "MB": megabytes,
        "seconds": seconds,
        "MB/s": megabytes / seconds,
        "s per GB": 1e3 * seconds / megabytes,
        "rows": data.n_samples,
    }
    write_rows(NAME, [row])


def read_all(root: Path, megabytes: int, block_rows: int) -> None:
    rng = np.random.default_rng(0)
    load_dataset(io.BytesIO(b"1 2 2\n0 1:1\n"))  # compiles
    block = sparse_block(rng, block_rows)
    repeats = max(1, megabytes * 1_000_000 // len(block))
    with (root / "data.txt").open("wb") as file:
        file.write(f"{block_rows * repeats} 500000 10000\n".encode())
        for _ in range(repeats):
            file.write(block)
    read(root / "data.txt", "XMC text (at most 60 s per GB)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    write_rows(NAME, [{"case": "XMC text, peak memory of the process", "GiB": peak}])
    (root / "small.txt.gz").write_bytes(gzip.compress(f"{block_rows} 500000 10000\n".encode() + block, 6))
    read(root / "small.txt.gz", "XMC text, gzip")
    n_rows = max(1, block_rows * megabytes // 10)
    texts = [f"{i % 5000},some words of a short description number {i}\n" for i in range(n_rows)]
    (root / "t.csv").write_text("label,text\n" + "".join(texts))
    read(root / "t.csv", "CSV")
    (root / "t.tsv").write_text("label\ttext\n" + "".join(texts).replace(",", "\t"))
    read(root / "t.tsv", "TSV")
    (root / "t.ft").write_text("".join("__label__" + text.replace(",", " ", 1) for text in texts))
    read(root / "t.ft", "fastText")
    np.save(root / "X.npy", np.zeros((n_rows, 64), dtype=np.float32))
    read(root / "X.npy", "npy, memory-mapped")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    args = parser.parse_args(argv)
    print(machine())
    with one_core(), tempfile.TemporaryDirectory() as folder:
        if args.tiny:
            read_all(Path(folder), 1, _TINY_BLOCK_ROWS)
        else:
            read_all(Path(folder), args.megabytes, _BLOCK_ROWS)


if __name__ == "__main__":
    main()
