"""Fitting the label tree: its time in epochs of training, and what the shortcuts cost in log-likelihood.

    python benchmarks/bench_tree_fit.py                          # shape S: N = 490,449, C = 213,874, k = 16
    python benchmarks/bench_tree_fit.py --epoch-seconds 0.55     # also in epochs, timed by bench_epoch.py

A warm memory copy of the bytes that an epoch has to move (9.04 GB at shape S with K = 512) stands in for the
epoch; fit and copy are timed in turns. The shortcuts are a sample of the points at large nodes and an end of
the iterations before the last gain; the reference does without either."""

from __future__ import annotations

import argparse

import numpy as np

from extremax import LabelTree
from extremax.data import PCA, planted_hierarchy
from timing import MemoryCopy, machine, stopwatch

# per row: x once; weights and Adagrad sums of a positive and a negative, read and written
_EPOCH_BYTES = 9 * 4 * 512


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--law", choices=["zipf", "uniform"], default="zipf")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epoch-seconds", type=float, default=None)
    parser.add_argument("--skip-reference", action="store_true")
    args = parser.parse_args()
    print(machine())
    print(f"N = {args.rows:,}  C = {args.classes:,}  k = {args.components}  rows per class: {args.law}")

    data = planted_hierarchy(args.rows, args.classes, 64, seed=0, law=args.law)
    Z = PCA.fit(data.X, args.components).transform(data.X)
    y = data.y
    LabelTree.fit(Z[:2000], y[:2000] % 100).log_prob(Z[:10], y[:10] % 100)  # compiles
    copy = MemoryCopy()
    copy.seconds(1e9, 2)
    tree = None
    for threads in args.threads:
        fits, copies = [], []
        for _ in range(args.repeats):
            copies.append(copy.seconds(args.rows * _EPOCH_BYTES, threads))

            def fit(threads: int = threads) -> None:
                nonlocal tree
                tree = LabelTree.fit(Z, y, n_classes=args.classes, n_jobs=threads)

            fits.append(stopwatch(fit))
        seconds = float(np.median(fits))
        line = f"{threads} thread{'s' if threads > 1 else ' '}  fit {seconds:6.2f} s (best {min(fits):.2f})"
        line += f"  = {np.median(np.array(fits) / np.array(copies)):5.1f} memory copies of {args.rows * _EPOCH_BYTES / 1e9:.2f} GB"
        if args.epoch_seconds is not None:
            line += f"  = {seconds / args.epoch_seconds:.1f} epochs of {args.epoch_seconds:.2f} s"
        print(line)
    assert tree is not None
    likelihood = tree.log_prob(Z, y).mean(dtype=np.float64)
    print(f"log-likelihood per training point: {likelihood:.4f}")
    if not args.skip_reference:
        options = {"max_points": None, "tolerance": 0.0, "max_alternations": 1000}
        for starts in (1, 4):
            converged = None

            def reference(starts: int = starts) -> None:
                nonlocal converged
                converged = LabelTree.fit(Z, y, n_classes=args.classes, n_starts=starts, **options)

            seconds = stopwatch(reference)
            assert converged is not None
            best = converged.log_prob(Z, y).mean(dtype=np.float64)
            print(
                f"all points, converged, {starts} start(s): {best:.4f} in {seconds:.1f} s; the fit is {likelihood - best:+.4f}"
            )


if __name__ == "__main__":
    main()
