"""Beam search of default models against their exact search: recall, and speed.

    python benchmarks/bench_beam.py                                  # eurlex57k, icd10cm, npm-owner-124k
    python benchmarks/bench_beam.py --data eurlex57k --models models

Models are trained with all defaults (or opened from --models, where they are kept).  Recall is over random
test rows, with the width that the model chose and with others; so is the error of the log-probability of
the best class.  Exact and beam search alternate, many rows at once and one at a time, and ratios are
medians of the ratios of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import benchmark_data as datasets
from extremax import ExtremeClassifier, load_model
from extremax.model import Model
from extremax.runtime.threads import available_threads
from timing import Clock, machine, make_parser, stopwatch, write_rows

NAME = "bench_beam"


def alternate(exact: Callable[[], object], beam: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return medians of both times, and of their ratio."""
    times = np.array([[stopwatch(exact), stopwatch(beam)] for _ in range(repeats)])
    medians = np.median(times, axis=0)
    ratio = float(np.median(times[:, 0] / times[:, 1]))
    return {"exact": float(medians[0]), "beam": float(medians[1]), "ratio": ratio}


def open_model(data: datasets.BenchmarkData, folder: Path | None, n_epochs: int | None) -> ExtremeClassifier:
    """Train a default model, or open the one that is kept in the folder."""
    kept = None if folder is None else folder / data.name
    if kept is not None and kept.exists():
        found: Any = load_model(kept)
        return found
    clock = Clock()
    clf = ExtremeClassifier(n_epochs=n_epochs, random_state=0).fit(data.X_train, data.y_train)
    seconds = clock.read()
    write_rows(
        NAME, [{"case": f"{data.name}, fit", "seconds": seconds.wall, "processor s": seconds.processor}]
    )
    if kept is not None:
        clf.save(kept)
    return clf


def measure_width(model: Model, X: np.ndarray, width: int, batch: int, repeats: int) -> dict[str, float]:
    """Return recall and speed of a beam of so many classes."""
    threads = available_threads()

    def exact(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return model.topk(rows, 5, n_threads=threads)

    def beam(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return model.topk(rows, 5, search="beam", width=width, n_threads=threads)

    (labels, log_prob), (found, found_log_prob) = exact(X), beam(X)
    same = found[:, 0] == labels[:, 0]
    error = (found_log_prob - log_prob)[same, 0]
    some, one = X[:batch], X[:1]
    many = alternate(lambda: exact(some), lambda: beam(some), repeats)
    single = alternate(lambda: exact(one), lambda: beam(one), 5 * repeats)
    return {
        "recall top 1": same.mean(),
        "recall top 5": (found[:, :, None] == labels[:, None, :]).any(axis=1).mean(),
        "log p error": error.mean(),
        "its deviation": error.std(),
        "exact us per row": 1e6 * many["exact"] / len(some),
        "beam us per row": 1e6 * many["beam"] / len(some),
        "exact / beam": many["ratio"],
        "one row ms": 1e3 * single["beam"],
        "exact / beam, one row": single["ratio"],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "icd10cm", "npm-owner-124k"])
    parser.add_argument("--models", type=Path, help="folder in which models are kept")
    parser.add_argument("--test-rows", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=2000, help="rows that are timed together")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(argv)
    n_epochs, factors = None, (0.125, 0.25, 0.5, 1.0, 2.0)
    if args.tiny:
        args.data, args.test_rows, args.batch, args.repeats = ["planted-many"], 200, 100, 1
        n_epochs, factors = 1, (1.0,)
    print(machine())
    for data in datasets.load_available(args.data):
        clf = open_model(data, args.models, n_epochs)
        rng = np.random.default_rng(1)  # rows of some sets are sorted
        some = rng.permutation(len(data.y_test))[: args.test_rows]
        X = np.ascontiguousarray(data.X_test[some], np.float32)
        model = clf.model_
        index: Any = model.searches.get("beam")
        if index is None:
            print(f"left out: {data.name} has too few classes for an index")
            continue
        index_bytes = sum(array.nbytes for array in index.state().arrays.values())
        row = {
            "case": f"{data.name}, index of {model.n_classes:,} classes",
            "width": index.width,
            "recall in fit": index.recall,
            "bytes per class": index.codes.shape[1],
            "size / weights": index_bytes / model.weights.to_dense().nbytes,
            "fit s": stopwatch(lambda: clf.fit_index(data.X_train, held_out=X[:1024])),
        }
        write_rows(NAME, [row])
        for factor in factors:
            width = max(1, int((index.width or 64) * factor))
            figures = measure_width(model, X, width, args.batch, args.repeats)
            write_rows(NAME, [{"case": f"{data.name}, width {width}", **figures}])


if __name__ == "__main__":
    main()
