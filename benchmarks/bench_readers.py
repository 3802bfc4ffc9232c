"""How fast files are read: 1 GB of XMC text on one core within 60 s, and the other formats for comparison.

    python benchmarks/bench_readers.py [megabytes]

Writes its files to a temporary folder. Seconds include everything from opening the file to the finished
Dataset, with the kernels compiled before."""

from __future__ import annotations

import gzip
import io
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from extremax.data import load_dataset


def sparse_block(
    rng: np.random.Generator, n_rows: int, per_row: int, n_features: int, n_labels: int
) -> bytes:
    """Rows of sorted random indices with six-digit values, as the files of the repository have them."""
    lines = []
    for _ in range(n_rows):
        indices = np.sort(rng.choice(n_features, per_row, replace=False)).tolist()
        values = rng.random(per_row).tolist()
        labels = ",".join(map(str, rng.integers(0, n_labels, 3).tolist()))
        lines.append(labels + " " + " ".join(f"{i}:{v:.6f}" for i, v in zip(indices, values, strict=True)))
    return ("\n".join(lines) + "\n").encode()


def measure(name: str, path: Path, **options: object) -> float:
    started = time.perf_counter()
    data = load_dataset(path, **options)  # type: ignore[arg-type]
    seconds = time.perf_counter() - started
    megabytes = path.stat().st_size / 1e6
    print(
        f"{name:28s} {megabytes:8.0f} MB {seconds:7.2f} s {megabytes / seconds:8.0f} MB/s {data.n_samples:>10,} rows",
        flush=True,
    )
    return seconds


def main(megabytes: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(0)
    load_dataset(io.BytesIO(b"1 2 2\n0 1:1\n"))  # compile
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        block = sparse_block(rng, 2000, 80, 500_000, 10_000)
        repeats = max(1, megabytes * 1_000_000 // len(block))
        with (root / "data.txt").open("wb") as file:
            file.write(f"{2000 * repeats} 500000 10000\n".encode())
            for _ in range(repeats):
                file.write(block)
        seconds = measure("XMC text", root / "data.txt")
        size = (root / "data.txt").stat().st_size
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{'':28s} 1 GB in {seconds * 1e9 / size:.1f} s (at most 60); peak memory {peak:.1f} GB")
        (root / "small.txt.gz").write_bytes(gzip.compress(f"{2000} 500000 10000\n".encode() + block, 6))
        measure("XMC text, gzip", root / "small.txt.gz")
        n_rows = 200 * megabytes
        texts = [f"{i % 5000},some words of a short description number {i}\n" for i in range(n_rows)]
        (root / "t.csv").write_text("label,text\n" + "".join(texts))
        measure("CSV", root / "t.csv")
        (root / "t.tsv").write_text("label\ttext\n" + "".join(texts).replace(",", "\t"))
        measure("TSV", root / "t.tsv")
        (root / "t.ft").write_text("".join("__label__" + text.replace(",", " ", 1) for text in texts))
        measure("fastText", root / "t.ft")
        np.save(root / "X.npy", np.zeros((n_rows, 64), dtype=np.float32))
        measure("npy, memory-mapped", root / "X.npy")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
