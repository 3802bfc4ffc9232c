"""Exact top-k against the bare matrix product of the same shapes, and beam search against exact.

    python benchmarks/bench_topk.py            # C = 213,874, K = 512, k = 16, batches of 1,000 rows, beam of 64

The model is trained for a moment on data of a planted hierarchy, so that the agreement of the two searches
means something. Product, exact and beam search are timed in turns, and medians of the ratios are printed: the
machine's mood is in all of them."""

from __future__ import annotations

import argparse

import numpy as np

from extremax import ExtremeClassifier
from extremax.data.synthetic import planted_hierarchy
from extremax.runtime.threads import available_threads
from extremax.search import beam_topk, exact_topk
from timing import machine, stopwatch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train-rows", type=int, default=300_000)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--beam-width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    print(machine())
    print(
        f"C = {args.classes:,}  K = {args.features}  batch = {args.batch:,}  top {args.k}  beam width = {args.beam_width}"
    )

    data = planted_hierarchy(
        max(args.train_rows, args.classes), args.classes, args.features, seed=0, n_test=args.batch
    )
    classifier = ExtremeClassifier(
        n_epochs=args.epochs, n_negatives=1, optimizer="adagrad_row", random_state=0
    )
    fitting = stopwatch(lambda: classifier.fit(data.X, data.y))
    print(f"trained in {fitting:.0f} s: {args.epochs} epochs of {len(data.y):,} rows")
    model, X = classifier.model_, data.X_test
    Z, tree, weights = model.project(X), model.tree, model.linear.weights
    assert tree is not None
    table = np.empty((len(X), len(weights)), np.float32)

    def product() -> None:
        np.matmul(X, weights.T, out=table)

    def exact(n_jobs: int | None = None, noise: object = model.noise) -> tuple[np.ndarray, np.ndarray]:
        return exact_topk(X, model.linear, noise, Z, args.k, n_jobs=n_jobs)  # type: ignore[arg-type]

    def beam(n_jobs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        return beam_topk(
            X, model.linear, tree, model.noise, Z, args.k, beam_width=args.beam_width, n_jobs=n_jobs
        )

    searches = {
        "matrix product": product,
        "exact": exact,
        "exact, no noise": lambda: exact(noise=None),
        "beam": beam,
        "beam, 1 thread": lambda: beam(1),
        "tree's beam alone": lambda: tree.candidates(Z, args.beam_width),
    }
    for work in searches.values():  # compiles, and touches every page
        work()
    seconds = {name: np.empty(args.repeats) for name in searches}
    for i in range(args.repeats):
        for name, work in searches.items():
            seconds[name][i] = stopwatch(work)
    pairs = len(X) * len(weights)
    flops = 2.0 * pairs * args.features
    for name, times in seconds.items():
        ratio = float(np.median(times / seconds["matrix product"]))
        per_row = float(np.median(times)) / len(X)
        print(
            f"{name:18s} median {np.median(times):7.4f} s  best {times.min():7.4f} s  {1e6 * per_row:8.1f} us per row"
            f"  {1e9 * per_row / len(weights):6.3f} ns per pair  {ratio:6.3f} x product"
        )
    exact_over_product = seconds["exact"] / seconds["matrix product"]
    print(
        f"product: {flops / seconds['matrix product'].min() / 1e9:.0f} Gflop/s on {available_threads()} threads"
    )
    print(
        f"exact / product: {np.median(exact_over_product):.2f} (goal 1.5;"
        f" best / best {seconds['exact'].min() / seconds['matrix product'].min():.2f})"
    )
    print(f"exact / beam:    {np.median(seconds['exact'] / seconds['beam']):.0f} (goal 25)")
    best, near = exact()[0], beam()[0]
    same, found = np.mean(best[:, 0] == near[:, 0]), (near[:, :, None] == best[:, None, :]).any(axis=1).mean()
    print(f"beam finds the exact top 1 in {same:.1%} of rows, and {found:.1%} of the exact top {args.k}")
    for name, labels in (("exact", best), ("beam", near)):
        hits = labels == data.y_test[:, None]
        print(f"{name:5s} accuracy {hits[:, 0].mean():.2%}, top {args.k} {hits.any(axis=1).mean():.2%}")


if __name__ == "__main__":
    main()
