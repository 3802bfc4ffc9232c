"""Exact top-k against the bare matrix product of the same shapes, and a beam down the label tree.

    python benchmarks/bench_topk.py            # C = 213,874, K = 512, batches of 1,000 rows, beam of 64

The model is trained for a moment on a planted hierarchy, so that the recall of the beam means something.
Product and searches alternate, and ratios are medians of the ratios of neighbours: what other programs take
of the machine then slows down all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.runtime.threads import available_threads
from extremax.scores import ExactSearch, Scorer, TreeBeamSearch
from extremax.solvers import NegativeSampling
from timing import count, machine, make_parser, stopwatch, write_rows

NAME = "bench_topk"


@dataclass(frozen=True)
class Projected:
    """A projection that was computed before: to time a search alone."""

    Z: np.ndarray

    def transform(self, X: object, *, n_jobs: int | None = None) -> np.ndarray:
        return self.Z


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--train-rows", type=int, default=300_000)
    parser.add_argument("--classes", type=int, default=213_874)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--beam-width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(argv)
    if args.tiny:
        args.train_rows, args.classes, args.features, args.batch, args.repeats = 2000, 100, 16, 100, 2
        args.beam_width = 8
    print(machine())
    sizes = f"C = {args.classes:,}  K = {args.features}  batch = {args.batch:,}"
    print(f"{sizes}  top {args.k}  beam width = {args.beam_width}")

    n_rows = max(args.train_rows, args.classes)
    data = planted_hierarchy(n_rows, args.classes, args.features, seed=0, n_test=args.batch)
    clf = ExtremeClassifier(
        NegativeSampling(n_negatives=1, optimizer="adagrad_row"), n_epochs=args.epochs, random_state=0
    )
    fitting = stopwatch(lambda: clf.fit(data.X, data.y, classes=np.arange(args.classes)))
    write_rows(NAME, [{"case": f"fit, {args.epochs} epochs of {n_rows:,} rows", "seconds": fitting}])
    model, X, threads = clf.model_, data.X_test, available_threads()
    weights, tree, projection = model.weights.to_dense(), model.tree, model.projection
    if tree is None or projection is None:
        raise RuntimeError("the model has no label tree")
    table = np.empty((len(X), len(weights)), np.float32)
    Z = projection.transform(X)
    projected = replace(model.scorer, projection=Projected(Z))
    exact_search, tree_search = ExactSearch(), TreeBeamSearch(tree)

    def exact(scorer: Scorer = projected) -> tuple[np.ndarray, np.ndarray]:
        return exact_search.topk(scorer, X, args.k, n_threads=threads)

    def beam(n_threads: int = threads, scorer: Scorer = projected) -> tuple[np.ndarray, np.ndarray]:
        return tree_search.topk(scorer, X, args.k, width=args.beam_width, n_threads=n_threads)

    searches = {
        "matrix product": lambda: np.matmul(X, weights.T, out=table),
        "exact": exact,
        "exact, no noise term": lambda: exact(Scorer(model.weights)),
        "beam": beam,
        "beam, 1 thread": lambda: beam(1),
        "beam, with projection": lambda: beam(scorer=model.scorer),
        "candidates of the tree alone": lambda: tree.candidates(Z, args.beam_width),
    }
    for work in searches.values():  # compiles, and touches every page
        work()
    seconds = {name: np.empty(args.repeats) for name in searches}
    for i in range(args.repeats):
        for name, work in searches.items():
            seconds[name][i] = stopwatch(work)
    product = seconds["matrix product"]
    for name, times in seconds.items():
        row = {
            "case": name,
            "seconds": float(np.median(times)),
            "best seconds": float(times.min()),
            "us per row": 1e6 * float(np.median(times)) / len(X),
            "times the product": float(np.median(times / product)),
        }
        write_rows(NAME, [row])
    gigaflops = 2.0 * table.size * args.features / product.min() / 1e9
    rows = [
        {"case": f"product, {count(threads, 'thread')}", "Gflop/s": gigaflops},
        {"case": "exact / product (goal 1.5)", "ratio": float(np.median(seconds["exact"] / product))},
        {"case": "exact / beam (goal 25)", "ratio": float(np.median(seconds["exact"] / seconds["beam"]))},
    ]
    write_rows(NAME, rows)
    best, found = exact()[0], beam()[0]
    recall = (found[:, :, None] == best[:, None, :]).any(axis=1).mean()
    same = np.mean(best[:, 0] == found[:, 0])
    write_rows(NAME, [{"case": "recall of the beam", "top 1": same, f"top {args.k}": recall}])
    for name, labels in (("exact", best), ("beam", found)):
        hits = labels == data.y_test[:, None]
        accuracy = {"top 1": hits[:, 0].mean(), f"top {args.k}": hits.any(axis=1).mean()}
        write_rows(NAME, [{"case": f"accuracy, {name}", **accuracy}])


if __name__ == "__main__":
    main()
