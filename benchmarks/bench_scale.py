"""Time per row and peak memory as the number of classes grows, up to the shape of Amazon-3M.

    python benchmarks/bench_scale.py      # K = 256, row-wise Adagrad, one negative; C = 10^4 to 2,812,281

Each size runs in a process of its own, so that its peak resident memory (projection, tree and data
included) is its own.  The last size has all of Amazon-3M's 1,717,899 rows, the smaller ones a quarter of
them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence

import numpy as np

from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.solvers import NegativeSampling
from timing import Clock, MemoryCopy, machine, make_parser, write_rows

NAME = "bench_scale"
SIZES = [(10_000, 429_475), (100_000, 429_475), (1_000_000, 429_475), (2_812_281, 1_717_899)]


def measure_size(
    n_classes: int, n_rows: int, n_features: int, *, tiny: bool = False
) -> dict[str, float | str]:
    """Train two epochs over all declared classes; the second is timed, as the first compiles."""
    copy = MemoryCopy(tiny=tiny)
    data = planted_hierarchy(n_rows, n_classes, n_features, seed=0)
    clf = ExtremeClassifier(
        NegativeSampling(optimizer="adagrad_row", n_negatives=1, tree_components=16, tree_regularization=0.1),
        random_state=0,
    )
    clock = Clock()
    clf.partial_fit(data.X, data.y, classes=np.arange(n_classes))
    clf.partial_fit(data.X, data.y)
    total = clock.read().wall
    if len(clf.classes_) != n_classes:
        raise RuntimeError("the model does not have all classes")
    start, first, last = (record["seconds"] for record in clf.history_)
    return {
        "case": f"{n_classes:,} classes, {n_rows:,} rows",
        "projection and tree s": start,
        "epoch s": last - first,
        "us per row": 1e6 * (last - first) / n_rows,
        "times a memory copy": (last - first) / copy.seconds(n_rows * 4 * n_features * 5, 2),
        "two epochs in all s": total,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--classes", type=int, help="measure one size only, in this process")
    parser.add_argument("--rows", type=int, default=429_475)
    args = parser.parse_args(argv)
    if args.tiny:
        write_rows(NAME, [measure_size(300, 1000, 16, tiny=True)])
        return
    if args.classes:
        print(json.dumps(measure_size(args.classes, args.rows, args.features)))
        return
    print(machine())
    for n_classes, n_rows in SIZES:
        options = {"--classes": n_classes, "--rows": n_rows, "--features": args.features}
        command = [sys.executable, __file__, *(str(part) for option in options.items() for part in option)]
        out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        write_rows(NAME, [json.loads(out.splitlines()[-1])])


if __name__ == "__main__":
    main()
