"""Draws from the label tree, one thread: time against log C, and the other questions one asks of a tree.

    python benchmarks/bench_sample.py            # k = 16; C = 2**10 to 2**22, and C = 213,874

Trees have random parameters, so that walks go everywhere: the worst case for the caches. Log-probabilities
are part of a draw. Times are the best of several calls."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from extremax import LabelTree
from timing import machine, stopwatch

_CALL_ROWS = 20_000


def random_tree(n_classes: int, k: int) -> LabelTree:
    """Structure of a fitted tree, parameters for logits of standard deviation 1."""
    rng = np.random.default_rng(0)
    tree = LabelTree.fit(np.zeros((0, k), np.float32), np.zeros(0, np.int32), n_classes=n_classes)
    weights = rng.standard_normal(tree.weights.shape, dtype=np.float32) / np.float32(np.sqrt(k))
    weights[tree.biases < -1e5] = 0  # padding stays padding
    leaf_class = np.where(tree.leaf_class >= 0, rng.permutation(n_classes)[tree.leaf_class], -1)
    return LabelTree(weights, tree.biases, leaf_class)


def best(call: Callable[[], object], repeats: int) -> float:
    call()
    return min(stopwatch(call) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--components", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--beam-width", type=int, default=64)
    args = parser.parse_args()
    k = args.components
    print(machine())
    print(f"k = {k}, one thread; microseconds per draw, per label, per row")
    print(
        f"{'C':>10}{'depth':>7}{'sample':>9}{'ns/level':>10}{'log_prob':>10}{f'beam {args.beam_width}':>10}"
    )
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((_CALL_ROWS, k), dtype=np.float32)
    sizes = sorted([2**b for b in range(10, 23, 2)] + [213_874])
    tree, per_level = None, []
    for n_classes in sizes:
        tree = random_tree(n_classes, k)
        labels = rng.integers(n_classes, size=_CALL_ROWS).astype(np.int32)
        sample = best(lambda: tree.sample(Z, n_jobs=1), args.repeats) / _CALL_ROWS * 1e6
        log_prob = best(lambda: tree.log_prob(Z, labels, n_jobs=1), args.repeats) / _CALL_ROWS * 1e6
        beam = best(lambda: tree.candidates(Z[:200], args.beam_width, n_jobs=1), args.repeats) / 200 * 1e6
        per_level.append(sample / tree.depth * 1e3)
        print(
            f"{n_classes:>10,}{tree.depth:>7}{sample:>9.3f}{per_level[-1]:>10.1f}{log_prob:>10.3f}{beam:>10.1f}"
        )
    print(
        f"time per level grows by a factor of {per_level[-1] / per_level[0]:.2f} from C = {sizes[0]:,} to {sizes[-1]:,}"
    )
    tree = random_tree(213_874, k)
    out = np.empty((64, tree.n_classes), np.float32)
    for threads in (1, 2):
        seconds = best(lambda: tree.log_prob_all(Z[:64], out=out, n_jobs=threads), max(3, args.repeats // 3))
        print(
            f"log_prob_all, C = {tree.n_classes:,}, {threads} thread(s): {seconds / out.size * 1e9:.2f} ns per class"
        )


if __name__ == "__main__":
    main()
