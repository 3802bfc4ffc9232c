"""Draws from the label tree on one thread: time against log C, and the other questions to a tree.

    python benchmarks/bench_sample.py            # k = 16; C = 2**10 to 2**22, and C = 213,874

Trees have random parameters, so that draws reach all nodes: the worst case for the caches.  A draw includes
its log-probability.  Times are the best of several calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from extremax import LabelTree
from timing import best_of, count, machine, make_parser, write_rows

NAME = "bench_sample"


def random_tree(n_classes: int, k: int) -> LabelTree:
    """Return a tree with the structure of a fitted one, and logits of standard deviation 1."""
    rng = np.random.default_rng(0)
    tree = LabelTree.fit(np.zeros((0, k), np.float32), np.zeros(0, np.int32), n_classes=n_classes)
    weights = rng.standard_normal(tree.weights.shape, dtype=np.float32) / np.float32(np.sqrt(k))
    weights[tree.biases < -1e5] = 0  # padding stays padding
    leaf_class = np.where(tree.leaf_class >= 0, rng.permutation(n_classes)[tree.leaf_class], -1)
    return LabelTree(weights, tree.biases, leaf_class)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--beam-width", type=int, default=64)
    args = parser.parse_args(argv)
    k, n_rows, sizes, large = (
        args.components,
        20_000,
        sorted([2**b for b in range(10, 23, 2)] + [213_874]),
        213_874,
    )
    if args.tiny:
        args.repeats, n_rows, sizes, large = 2, 500, [64, 300], 300
    print(machine())
    print(f"k = {k}, one thread; microseconds per draw, per label, per row of a beam of {args.beam_width}")
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((n_rows, k), dtype=np.float32)
    per_level = []
    for n_classes in sizes:
        tree = random_tree(n_classes, k)
        labels = rng.integers(n_classes, size=n_rows).astype(np.int32)
        sample = best_of(lambda: tree.sample(Z, n_jobs=1), args.repeats).wall / n_rows
        log_prob = best_of(lambda: tree.log_prob(Z, labels, n_jobs=1), args.repeats).wall / n_rows
        beam = best_of(lambda: tree.candidates(Z[:200], args.beam_width, n_jobs=1), args.repeats).wall / 200
        per_level.append(1e9 * sample / tree.depth)
        row = {
            "case": f"{n_classes:,} classes, depth {tree.depth}",
            "sample us": 1e6 * sample,
            "sample ns per level": per_level[-1],
            "log_prob us": 1e6 * log_prob,
            "beam us": 1e6 * beam,
        }
        write_rows(NAME, [row])
    growth = per_level[-1] / per_level[0]
    write_rows(NAME, [{"case": f"time per level, {sizes[-1]:,} over {sizes[0]:,} classes", "ratio": growth}])
    tree = random_tree(large, k)
    out = np.empty((64, tree.n_classes), np.float32)
    for threads in (1, 2):
        repeats = max(2, args.repeats // 3)
        seconds = best_of(lambda: tree.log_prob_all(Z[:64], out=out, n_jobs=threads), repeats).wall
        case = f"log_prob_all, {tree.n_classes:,} classes, {count(threads, 'thread')}"
        write_rows(NAME, [{"case": case, "ns per class": 1e9 * seconds / out.size}])


if __name__ == "__main__":
    main()
