"""Fitting the label tree: seconds, epochs of training, and log-likelihood of held-out rows.

    python benchmarks/bench_tree_fit.py                             # 10,000, 100,000 and 1,000,000 classes
    python benchmarks/bench_tree_fit.py --classes 10000 --threads 1 2
    python benchmarks/bench_tree_fit.py --classes 10000 100000 --features 512    # the paper's features

Three fits on the same planted rows: the paper's to the letter (16 components, lambda_n = 0.1), the default
fit with the same numbers, and what `NegativeSampling()` does: 32 components and a penalty per level, chosen
on held-out rows.  An epoch is one of `NegativeSampling(n_negatives=1)` with that last tree.  Processor
seconds of all threads, and seconds on the wall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from extremax import ExtremeClassifier, LabelTree
from extremax.data import PCA, planted_hierarchy
from extremax.solvers import NegativeSampling
from extremax.tree.literal import fit_literal
from extremax.tree.noise import TreeNoise
from extremax.tree.tuning import fit_tuned
from timing import Clock, count, machine, make_parser, write_rows

NAME = "bench_tree_fit"
_EPOCHS = 3  # timed; the first is left out


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--classes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rows-per-class", type=int, default=5)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    args = parser.parse_args(argv)
    if args.tiny:
        args.classes, args.features = [100], 40
    print(machine())
    for n_classes in args.classes:
        measure(n_classes, args.rows_per_class * n_classes, args.features, args.threads)


def measure(n_classes: int, n_rows: int, n_features: int, thread_counts: Sequence[int]) -> None:
    """Time the three fits at one number of classes."""
    data = planted_hierarchy(n_rows, n_classes, n_features, seed=0, n_test=5000)
    y = data.y.astype(np.int32)
    few, many = (PCA.fit(data.X, k) for k in (16, 32))
    Z, Z_many = few.transform(data.X), many.transform(data.X)
    fits: dict[str, tuple[PCA, Callable[[int], LabelTree]]] = {
        "the paper's": (few, lambda n: fit_literal(Z, y, n_classes=n_classes, n_jobs=n).tree),
        "default": (few, lambda n: LabelTree.fit(Z, y, n_classes=n_classes, n_jobs=n)),
        "default, 32 components, penalties by level": (
            many,
            lambda n: fit_tuned(Z_many, y, n_classes=n_classes, n_jobs=n).tree,
        ),
    }
    warm_up = LabelTree.fit(Z[:500], y[:500] % 50)
    fit_literal(Z[:500], y[:500] % 50)
    warm_up.refit(Z[:500], y[:500] % 50)
    for threads in thread_counts:
        trees, seconds = {}, {}
        for name, (_, fit) in fits.items():
            clock = Clock()
            trees[name] = fit(threads)
            seconds[name] = clock.read()
        epoch = epoch_seconds(data.X, data.y, TreeNoise(trees[name], many), threads)
        for name, (projection, _) in fits.items():
            held_out = trees[name].log_prob(projection.transform(data.X_test), data.y_test)
            row = {
                "case": f"{n_classes:,} classes, {name}, {count(threads, 'thread')}",
                "processor seconds": seconds[name].processor,
                "seconds": seconds[name].wall,
                "epochs": seconds[name].processor / epoch,
                "log-likelihood of held-out rows": float(held_out.mean(dtype=np.float64)),
            }
            write_rows(NAME, [row])


def epoch_seconds(X: Any, y: Any, noise: TreeNoise, threads: int) -> float:
    """Return the processor seconds of an epoch with one negative: the least of some."""
    ends: list[float] = []
    clock = Clock()
    clf = ExtremeClassifier(
        NegativeSampling(n_negatives=1, noise=noise), n_epochs=1 + _EPOCHS, n_jobs=threads, random_state=0
    )
    clf.fit(X, y, callbacks=[lambda record: ends.append(clock.read().processor)])
    return float(np.diff(ends).min())


if __name__ == "__main__":
    main()
