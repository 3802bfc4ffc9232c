"""Sparse text weights against the limits of the machine: features, scores through postings, training.

    python benchmarks/bench_sparse.py          # 100,000 made-up names of 20,000 classes

N-gram features: short texts per second and core (goal 50,000).  Scores of all classes: nanoseconds per weight
that a row touches, beside a streaming read of as many bytes (a class number and a value, 8 bytes).  The five
best classes of one row, beside its scores alone.  Training: the start, and rounds of the correction per row
(the first also finds the hard negatives), from the history of a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from extremax import ExtremeClassifier
from extremax.features.ngrams import NgramFeatures
from extremax.kernels import sparse_scores
from extremax.runtime.threads import available_threads
from extremax.scores.sparse import csr_rows
from timing import Clock, best_of, count, machine, make_parser, measure, write_rows

NAME = "bench_sparse"
_WORD_BYTES = 8  # class number and value of a weight
_VOCABULARY, _OWN_WORDS = 20_000, 6


def make_texts(n_rows: int, n_classes: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Return names like those of packages: words of the class and words of all, by Zipf's law."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    chances = 1 / np.arange(1, 27)
    lengths = rng.integers(3, 10, _VOCABULARY)
    pool = rng.choice(letters, lengths.sum(), p=chances / chances.sum())
    words = ["".join(part) for part in np.split(pool, np.cumsum(lengths)[:-1])]
    shares = 1 / np.arange(1, _VOCABULARY + 1)
    shares /= shares.sum()
    own = rng.choice(_VOCABULARY, (n_classes, _OWN_WORDS), p=shares)
    sizes = 1 / np.arange(1, n_classes + 1) ** 0.5
    y = np.concatenate([np.arange(n_classes), rng.choice(n_classes, n_rows, p=sizes / sizes.sum())])[:n_rows]
    common = rng.choice(_VOCABULARY, (n_rows, 2), p=shares)
    chosen = own[y[:, None], rng.integers(0, _OWN_WORDS, (n_rows, 2))]
    texts = [
        f"@{words[a]}/{words[b]}-{words[c]} {words[d]}"
        for (a, b), (c, d) in zip(chosen.tolist(), common.tolist(), strict=True)
    ]
    return texts, y


def bench_features(texts: list[str], repeats: int) -> Any:
    """Write texts per second and return the features of all texts."""
    features = NgramFeatures().fit(texts[:1000])  # compiles
    features.transform(texts[:1000])
    n_bytes = sum(map(len, texts))
    for threads in sorted({1, available_threads()}):
        fitting = measure(lambda: features.fit(texts, n_jobs=threads))
        making = best_of(lambda: features.transform(texts, n_jobs=threads), repeats)
        rows = []
        for name, seconds in (("fit", fitting), ("transform", making)):
            row = {
                "case": f"n-gram features, {name}, {count(threads, 'thread')} (goal 50,000 texts/s and core)",
                "texts/s": len(texts) / seconds.wall,
                "texts/processor s": len(texts) / seconds.processor,
                "characters a text": n_bytes / len(texts),
            }
            rows.append(row)
        write_rows(NAME, rows)
    return features.transform(texts)


def bench_training(X: Any, y: np.ndarray) -> ExtremeClassifier:
    """Write the seconds of the start and of each round, and return the classifier."""
    threads = available_threads()
    few = np.arange(min(len(y), 2000))
    ExtremeClassifier("sparse_softmax", random_state=0, n_jobs=threads).fit(X[few], y[few])  # compiles
    clock = Clock()
    clf = ExtremeClassifier("sparse_softmax", random_state=0, n_jobs=threads).fit(X, y)
    whole = clock.read()
    size = f"{len(y):,} rows, {len(clf.classes_):,} classes, {X.nnz / len(y):.0f} entries a row"
    seconds = {"case": f"fit, {size}", "seconds": whole.wall, "processor s": whole.processor}
    write_rows(NAME, [seconds | {"us per row": 1e6 * whole.wall / len(y)}])
    times = [record["seconds"] for record in clf.history_]
    names = ["start", *(f"round {i}" for i in range(1, len(times)))]
    steps = [times[0], *(after - before for before, after in pairwise(times))]
    rows = [
        {"case": f"training, {name}", "seconds": step, "us per row": 1e6 * step / len(y)}
        for name, step in zip(names, steps, strict=True)
    ]
    write_rows(NAME, rows)
    return clf


def bench_scores(clf: ExtremeClassifier, X: Any, repeats: int) -> None:
    """Write the cost of a weight, of a streaming read of as many bytes, and of the five best of a row."""
    weights: Any = clf.model_.weights
    postings, rows = weights.postings, csr_rows(X)
    out = np.empty((1, len(clf.classes_)), np.float32)
    touched = int(np.diff(postings.offsets)[X.indices].sum())

    def scatter() -> None:
        for row in range(X.shape[0]):
            sparse_scores.score_rows(rows, row, row + 1, postings, weights.length_biases, out)

    scores = best_of(scatter, repeats)
    buffer = np.ones(1 << 26 if touched > 1 << 20 else 1 << 18, np.float32)
    reading = best_of(buffer.sum, repeats).wall / buffer.nbytes
    row = {
        "case": "scores of all classes through postings, 1 thread",
        "ms per row": 1e3 * scores.wall / X.shape[0],
        "weights per row": touched / X.shape[0],
        "ns per weight": 1e9 * scores.wall / max(touched, 1),
        "ns of a streaming read": 1e9 * _WORD_BYTES * reading,
        "times the read": scores.wall / max(touched, 1) / (_WORD_BYTES * reading),
        "weights": len(postings.values),
    }
    write_rows(NAME, [row])
    clf.n_jobs = 1
    k = min(5, len(clf.classes_))
    for name, size in (("one call a row", 1), ("one call", X.shape[0])):

        def ask(size: int = size) -> None:
            for start in range(0, X.shape[0], size):
                clf.predict_topk(X[start : start + size], k=k)

        asking = best_of(ask, repeats)
        row = {
            "case": f"five best classes, {name}, 1 thread",
            "ms per row": 1e3 * asking.wall / X.shape[0],
            "times the scores": asking.wall / scores.wall,
        }
        write_rows(NAME, [row])


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    if args.tiny:
        args.rows, args.classes, args.queries, args.repeats = 800, 60, 20, 1
    print(machine())
    texts, y = make_texts(args.rows + args.queries, args.classes)
    X = bench_features(texts, args.repeats)
    clf = bench_training(X[: args.rows], y[: args.rows])
    bench_scores(clf, X[args.rows :], args.repeats)


if __name__ == "__main__":
    main()
