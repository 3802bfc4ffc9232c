"""Time per sample and peak memory as the number of classes grows, up to the shape of Amazon-3M.

    python benchmarks/bench_scale.py      # K = 256, row-wise Adagrad, one negative; C = 10^4, 10^5, 10^6, 2,812,281

Each size runs in a process of its own, so that its peak resident memory (projection, tree and data included)
is its own. The last size has all of Amazon-3M's 1,717,899 rows; the smaller ones a quarter of them."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from timing import MemoryCopy, machine

SIZES = [(10_000, 429_475), (100_000, 429_475), (1_000_000, 429_475), (2_812_281, 1_717_899)]


def measure(n_classes: int, n_rows: int, n_features: int) -> dict[str, float]:
    """Two epochs over all declared classes, with rows or without; the second is timed, for the first
    compiles.
    """
    from extremax import ExtremeClassifier
    from extremax.data.synthetic import planted_hierarchy

    copy = MemoryCopy()
    data = planted_hierarchy(n_rows, n_classes, n_features, seed=0)
    model = ExtremeClassifier(
        optimizer="adagrad_row", n_negatives=1, n_components=16, regularization=0.1, random_state=0
    )
    started = time.perf_counter()
    model.partial_fit(data.X, data.y, classes=np.arange(n_classes))
    model.partial_fit(data.X, data.y)
    total = time.perf_counter() - started
    if model.model_.linear.n_classes != n_classes:
        raise RuntimeError("the model does not have all classes")
    first, last = model.history_[-2]["seconds"], model.history_[-1]["seconds"]
    return {
        "classes": n_classes,
        "rows": n_rows,
        "tree and projection, s": model.history_[0]["seconds"],
        "epoch, s": last - first,
        "us per sample": 1e6 * (last - first) / n_rows,
        "ratio to memcpy": (last - first) / copy.seconds(n_rows * 4 * n_features * 5, 2),
        "two epochs in all, s": total,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, help="measure one size only, in this process")
    parser.add_argument("--rows", type=int, default=429_475)
    args = parser.parse_args()
    if args.classes:
        print(json.dumps(measure(args.classes, args.rows, args.features)))
        return
    print(machine())
    for n_classes, n_rows in SIZES:
        command = [
            sys.executable,
            __file__,
            "--classes",
            str(n_classes),
            "--rows",
            str(n_rows),
            "--features",
            str(args.features),
        ]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        figures = json.loads(out.splitlines()[-1])
        print(
            "  ".join(
                f"{name} {value:,.2f}" if isinstance(value, float) else f"{name} {value:,}"
                for name, value in figures.items()
            )
        )


if __name__ == "__main__":
    main()
