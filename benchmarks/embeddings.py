"""The default classifier on embeddings, beside full softmax, the paper's method and the simplest baselines.

    python benchmarks/embeddings.py --data eurlex57k --arrays FOLDER --rows valid

``--arrays`` names folders with X_train.npy, y_train.npy and the same for valid and test: for example sentence
embeddings of ICD-10-CM.  Seconds are those of a whole `fit`, calibration and index included, on the wall and
of all processors together; the baselines have no training but means or an index of rows.

default         ExtremeClassifier() with its defaults
softmax         MinibatchSoftmax(n_shared=None): full softmax from the same start
shared softmax  solver="minibatch_softmax": classes that a minibatch shares
paper           solver="negative_sampling"
class means     cosine with the mean of the class, its scale chosen on validation rows
neighbours      cosine with 50 training rows, each votes for its class by exp(scale * cosine)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import benchmark_data as datasets
from extremax import ExtremeClassifier, evaluate
from timing import Clock, Seconds, machine, make_parser, write_rows

NAME = "embeddings"
METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "softmax": {"solver": "minibatch_softmax", "n_shared": None},
    "shared softmax": {"solver": "minibatch_softmax"},
    "paper": {"solver": "negative_sampling"},
}
BASELINES = ("class means", "neighbours")
_SCALES = (5.0, 10.0, 20.0, 40.0)
_NEIGHBOURS = 50
_BLOCK = 512
_COMPILING_ROWS = 2000
Rows = tuple[np.ndarray, np.ndarray]


def load_arrays(folder: Path) -> datasets.BenchmarkData:
    arrays: dict[str, Any] = {
        f"{part}_{split}": np.load(folder / f"{part}_{split}.npy")
        for part in ("X", "y")
        for split in datasets.SPLITS
    }
    n_classes = int(arrays["y_train"].max()) + 1
    for split in ("valid", "test"):  # rows of classes without training rows cannot be right
        known = arrays[f"y_{split}"] < n_classes
        arrays |= {f"{part}_{split}": arrays[f"{part}_{split}"][known] for part in ("X", "y")}
    names = [str(c) for c in range(n_classes)]
    return datasets.BenchmarkData(folder.name, n_classes=n_classes, class_names=names, **arrays)


def unit(X: np.ndarray) -> np.ndarray:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


def score_blocks(rows: Rows, table: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    X, y = rows
    for a in range(0, len(y), _BLOCK):
        yield unit(X[a : a + _BLOCK]) @ table.T, y[a : a + _BLOCK]


def figures(log_prob: list[np.ndarray], right: list[np.ndarray]) -> tuple[float, float]:
    return float(np.mean(np.concatenate(right))), float(np.mean(np.concatenate(log_prob)))


def by_means(means: np.ndarray, rows: Rows, scale: float) -> tuple[float, float]:
    log_prob, right = [], []
    for scores, y in score_blocks(rows, means):
        scores *= scale
        scores -= np.logaddexp.reduce(scores, axis=1)[:, None]
        log_prob.append(scores[np.arange(len(y)), y])
        right.append(scores.argmax(axis=1) == y)
    return figures(log_prob, right)


def by_neighbours(
    train: Rows, rows: Rows, scale: float, n_classes: int, uniform: float = 0.1
) -> tuple[float, float]:
    """Votes of neighbours, mixed with a uniform distribution: most classes have none."""
    table, labels = train
    log_prob, right = [], []
    for scores, y in score_blocks(rows, table):
        nearest = np.argpartition(-scores, min(_NEIGHBOURS, scores.shape[1] - 1), axis=1)[:, :_NEIGHBOURS]
        votes = np.exp(scale * (np.take_along_axis(scores, nearest, axis=1) - 1.0))
        mass = np.zeros((len(y), n_classes))
        np.add.at(mass, (np.arange(len(y))[:, None], labels[nearest]), votes)
        mass /= mass.sum(axis=1, keepdims=True)
        log_prob.append(np.log((1.0 - uniform) * mass[np.arange(len(y)), y] + uniform / n_classes))
        right.append(mass.argmax(axis=1) == y)
    return figures(log_prob, right)


def run_baseline(method: str, data: datasets.BenchmarkData, rows: Rows) -> tuple[float, float, Seconds]:
    clock = Clock()
    if method == "class means":
        sums = np.zeros((data.n_classes, data.X_train.shape[1]), np.float32)
        np.add.at(sums, data.y_train, unit(data.X_train))
        means = unit(sums)
        seconds = clock.read()
        some = data.X_valid[:_COMPILING_ROWS], data.y_valid[:_COMPILING_ROWS]
        best = max(_SCALES, key=lambda scale: by_means(means, some, scale)[1])
        return *by_means(means, rows, best), seconds
    train = unit(data.X_train), data.y_train
    seconds = clock.read()
    some = data.X_valid[:_COMPILING_ROWS], data.y_valid[:_COMPILING_ROWS]
    best = max(_SCALES, key=lambda scale: by_neighbours(train, some, scale, data.n_classes)[1])
    return *by_neighbours(train, rows, best, data.n_classes), seconds


def run_method(
    parameters: dict[str, Any], data: datasets.BenchmarkData, rows: Rows, threads: int
) -> tuple[float, float, Seconds]:
    clf = ExtremeClassifier.with_solver(random_state=0, n_jobs=threads, **parameters)
    few = slice(0, _COMPILING_ROWS)
    if not parameters:  # the default depends on the size of the data: compile what it will use
        clf.set_params(solver="candidate_softmax").fit(data.X_train[few], data.y_train[few])
        clf.set_params(solver="auto")
    else:
        clf.fit(data.X_train[few], data.y_train[few])
    clock = Clock()
    clf.fit(data.X_train, data.y_train)
    seconds = clock.read()
    report = evaluate(clf, *rows, ks=(1,))
    return report.accuracy[1], report.log_likelihood, seconds


def compare(data: datasets.BenchmarkData, args: argparse.Namespace) -> None:
    """Print one Markdown table."""
    X, y = getattr(data, f"X_{args.rows}"), getattr(data, f"y_{args.rows}")
    sizes = f"{len(data.y_train):,} rows, {data.n_classes:,} classes, {data.X_train.shape[1]} features"
    print(f"## {data.name}: {sizes}; {len(y):,} {args.rows} rows", flush=True)
    print("\n| method | accuracy | log-likelihood | s | processor s |\n|---|---|---|---|---|", flush=True)
    for method in (*METHODS, *BASELINES):
        if args.methods and method not in args.methods:
            continue
        if method in METHODS:
            accuracy, log_likelihood, seconds = run_method(METHODS[method], data, (X, y), args.threads)
        else:
            accuracy, log_likelihood, seconds = run_baseline(method, data, (X, y))
        print(
            f"| {method} | {accuracy:.2%} | {log_likelihood:.3f} | {seconds.wall:.1f}"
            f" | {seconds.processor:.1f} |",
            flush=True,
        )
        row = {"accuracy": accuracy, "log-likelihood": log_likelihood, "seconds": seconds.wall}
        case = f"{data.name}, {args.rows} rows, {method}"
        write_rows(NAME, [{"case": case, **row, "processor seconds": seconds.processor}], show=False)
    print(flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="*", default=["eurlex57k"])
    parser.add_argument("--arrays", nargs="*", type=Path, default=[], help="folders of .npy files")
    parser.add_argument("--rows", choices=("valid", "test"), default="test")
    parser.add_argument("--methods", nargs="+", choices=(*METHODS, *BASELINES))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.arrays = ["planted"], []
    print(f"{machine()}\n", flush=True)
    for data in datasets.load_available(args.data):
        compare(data, args)
    for folder in args.arrays:
        compare(load_arrays(folder), args)


if __name__ == "__main__":
    main()
