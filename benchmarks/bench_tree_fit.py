"""Fitting the label tree: its time in epochs of training, and what its shortcuts cost in log-likelihood.

    python benchmarks/bench_tree_fit.py                          # N = 490,449, C = 213,874, k = 16
    python benchmarks/bench_tree_fit.py --epoch-seconds 0.55     # also in epochs, timed by bench_epoch.py

A memory copy of the bytes that an epoch has to move (9.04 GB at this size with K = 512) stands in for the
epoch; fits and copies alternate.  The shortcuts are a sample of the points at large nodes, and an end of
the iterations before the last gain; the reference does without either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from extremax import LabelTree
from extremax.data import PCA, planted_hierarchy
from extremax.tuned import TreeFitConfig
from timing import Clock, MemoryCopy, count, machine, make_parser, stopwatch, write_rows

NAME = "bench_tree_fit"
# Per row: x once; weights and Adagrad sums of a positive and a negative, read and written.
_EPOCH_BYTES = 9 * 4 * 512


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--law", choices=["zipf", "uniform"], default="zipf")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epoch-seconds", type=float, default=None)
    parser.add_argument("--skip-reference", action="store_true")
    args = parser.parse_args(argv)
    if args.tiny:
        args.rows, args.classes, args.components, args.repeats = 2000, 100, 8, 1
    print(machine())
    print(f"N = {args.rows:,}  C = {args.classes:,}  k = {args.components}  rows per class: {args.law}")

    data = planted_hierarchy(args.rows, args.classes, 64, seed=0, law=args.law)
    Z = PCA.fit(data.X, args.components).transform(data.X)
    y = data.y
    LabelTree.fit(Z[:2000], y[:2000] % 100).log_prob(Z[:10], y[:10] % 100)  # compiles
    copy = MemoryCopy(tiny=args.tiny)
    moved = args.rows * _EPOCH_BYTES
    copy.seconds(moved, 2)

    def fit(**options: Any) -> LabelTree:
        return LabelTree.fit(Z, y, n_classes=args.classes, **options)

    for threads in args.threads:
        copies, fits = np.empty(args.repeats), np.empty(args.repeats)
        for i in range(args.repeats):
            copies[i] = copy.seconds(moved, threads)
            fits[i] = stopwatch(lambda: fit(n_jobs=threads))
        seconds = float(np.median(fits))
        row = {
            "case": f"fit, {count(threads, 'thread')}",
            "seconds": seconds,
            "best seconds": float(fits.min()),
            f"times a copy of {moved / 1e9:.3g} GB": float(np.median(fits / copies)),
        }
        if args.epoch_seconds is not None:
            row["epochs"] = seconds / args.epoch_seconds
        write_rows(NAME, [row])
    likelihood = float(fit().log_prob(Z, y).mean(dtype=np.float64))
    write_rows(NAME, [{"case": "fit", "log-likelihood of training rows": likelihood}])
    if args.skip_reference:
        return
    for starts in (1, 4):
        clock = Clock()
        converged = fit(
            config=TreeFitConfig(n_starts=starts, max_points=None, tolerance=0.0, max_alternations=1000)
        )
        seconds = clock.read().wall
        best = float(converged.log_prob(Z, y).mean(dtype=np.float64))
        row = {
            "case": f"all points, converged, {count(starts, 'start')}",
            "seconds": seconds,
            "log-likelihood of training rows": best,
            "of the fit, less this": likelihood - best,
        }
        write_rows(NAME, [row])


if __name__ == "__main__":
    main()
