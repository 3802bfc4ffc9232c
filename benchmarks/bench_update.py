"""Classes added to a fitted model, against a new fit on everything: accuracy and time.

    python benchmarks/bench_update.py                              # all cases of lab/results.md
    python benchmarks/bench_update.py --cases icd10cm:dense --draws 3 --fraction 0.05 --split valid

A random fraction of the classes is kept out of a fit and then added by ``add_classes``, with their training
rows; the other model is fitted on all rows.  ``--draws`` repeats all with other classes and other seeds of
the fits (0, 1, ...), as two fits differ by half a point on the same rows; the table ends with the means.
Accuracy is that of the best class on test rows, or on validation rows (``--split valid``): of all, of those
of the classes that were there, and of those that were added.  `class mean` is the simplest thing to do: the
mean row of each class as its weights, as long as the others' are on average, with their mean bias, and no
training (not on more than 50,000 classes, of which it would need a table of all scores).  `without them` is
the model before classes are added: how two fits differ on the same rows.

Kinds: `dense` (the default on dense features), `negative_sampling` (the same features), `sparse` (word counts
or n-grams as sparse features), `text` (`TextClassifier`).  Seconds are of the processor, on one thread; those
of `add_classes` are the median of three calls, without loading compiled kernels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import benchmark_data as datasets
from extremax import ExtremeClassifier, TextClassifier
from extremax.scores.sparse import SparseWeights
from text import make_features
from timing import Clock, machine, make_parser, write_rows

NAME = "bench_update"
KINDS = ("dense", "negative_sampling", "sparse", "text")
DEFAULT = (
    "icd10cm:dense",
    "icd10cm:negative_sampling",
    "eurlex57k:dense",
    "eurlex57k:sparse",
    "icd10cm:text",
    "npm-owner-124k:text",
)
MANY_CLASSES = 50_000  # no class mean
BLOCK = 1024  # rows whose scores are in memory together


class Rows(NamedTuple):
    """Inputs and classes of training and of the rows that are scored."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray
    n_classes: int


def load(name: str, kind: str, split: str) -> Rows | None:
    """Return the rows of a set in one form; None where it has not that form."""
    if kind in ("dense", "negative_sampling"):
        if name not in datasets.BUILDERS and name not in datasets.PLANTED:
            return None
        data = datasets.load(name)
        X, y = getattr(data, f"X_{split}"), getattr(data, f"y_{split}")
        return Rows(data.X_train, data.y_train, X, y, data.n_classes)
    texts = datasets.load_texts("planted-texts" if name in datasets.PLANTED else name)
    if kind == "text":
        if texts.texts is None:
            return None
        return Rows(
            texts.texts["train"], texts.y["train"], texts.texts[split], texts.y[split], texts.n_classes
        )
    X, _ = make_features(texts, 1)
    return Rows(X["train"], texts.y["train"], X[split], texts.y[split], texts.n_classes)


def take(X: Any, rows: np.ndarray) -> Any:
    return [X[i] for i in rows] if isinstance(X, list) else X[rows]


def make(kind: str, seed: int) -> Any:
    solver = {"negative_sampling": kind, "sparse": "sparse_softmax"}.get(kind, "auto")
    clf = ExtremeClassifier.with_solver(solver, random_state=seed, n_jobs=1)
    return TextClassifier(clf) if kind == "text" else clf


def append_means(clf: Any, X: Any, y: np.ndarray, X_test: Any) -> np.ndarray:
    """Return predictions of a model to which the mean row of each further class is appended as weights."""
    if hasattr(clf, "classifier_"):
        X, X_test, clf = clf.transform(X), clf.transform(X_test), clf.classifier_
    new, ids = np.unique(y, return_inverse=True)
    sums = sp.csr_matrix((1.0 / np.bincount(ids)[ids], (ids, np.arange(len(ids)))))
    means = sums @ X
    weights = clf.model_.weights
    lengths = weights.norms if isinstance(weights, SparseWeights) else np.linalg.norm(weights.weights, axis=1)
    lengths = lengths * weights.feature_scale
    squares = means.multiply(means).sum(axis=1) if sp.issparse(means) else np.square(means).sum(axis=1)
    factor = lengths.mean() / np.maximum(np.sqrt(np.asarray(squares).ravel()), 1e-12)
    bias = float(np.mean(weights.biases))
    found = np.empty(len(range(X_test.shape[0])), clf.classes_.dtype)
    for first in range(0, X_test.shape[0], BLOCK):
        rows = X_test[first : first + BLOCK]
        old = clf.model_.debiased_scores(clf.to_features(rows))
        scores = rows @ means.T
        scores = (scores.toarray() if sp.issparse(scores) else np.asarray(scores)) * factor + bias
        better = scores.max(axis=1) > old.max(axis=1)
        found[first : first + BLOCK] = np.where(
            better, new[scores.argmax(axis=1)], clf.classes_[old.argmax(axis=1)]
        )
    return found


def accuracies(found: np.ndarray, y: np.ndarray, is_new: np.ndarray) -> dict[str, float]:
    right = found == y
    return {
        "all %": 100 * float(right.mean()),
        "old %": 100 * float(right[~is_new].mean()),
        "new %": 100 * float(right[is_new].mean()) if is_new.any() else 0.0,
    }


def compare(
    name: str, kind: str, fraction: float, split: str, draws: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to get to a model of all classes."""
    data = load(name, kind, split)
    if data is None:
        return
    n_new = max(1, round(fraction * data.n_classes))
    for seed in draws:
        clock = Clock()
        whole = make(kind, seed).fit(data.X, data.y)
        fit = clock.read()
        answers = whole.predict(data.X_test)
        del whole
        new = np.random.default_rng(seed).choice(data.n_classes, n_new, replace=False)
        added, is_new = np.flatnonzero(np.isin(data.y, new)), np.isin(data.y_test, new)
        kept = np.flatnonzero(~np.isin(data.y, new))
        case = f"{name}, {kind}, {n_new:,} of {data.n_classes:,} classes, draw {seed}"
        sizes = {"new rows": len(added), "scored new": int(is_new.sum()), "scored": len(is_new)}
        best = accuracies(answers, data.y_test, is_new)
        yield {"case": f"{case}: new fit", **best, "processor s": fit.processor, "wall s": fit.wall, **sizes}
        clf = make(kind, seed).fit(take(data.X, kept), data.y[kept])
        before = accuracies(clf.predict(data.X_test), data.y_test, is_new)
        yield {"case": f"{case}: without them", **before}
        rows, labels = take(data.X, added), data.y[added]
        if data.n_classes <= MANY_CLASSES:
            mean = append_means(clf, rows, labels, data.X_test)
            yield {"case": f"{case}: class mean", **accuracies(mean, data.y_test, is_new)}
        update, clf = add(clf, rows, labels)
        found = accuracies(clf.predict(data.X_test), data.y_test, is_new)
        yield {
            "case": f"{case}: add_classes",
            **found,
            "processor s": update,
            "part of a fit": update / fit.processor,
            "points ahead": found["all %"] - best["all %"],
        }


def add(clf: Any, rows: Any, labels: np.ndarray) -> tuple[float, Any]:
    """Return the median seconds of three calls after a first one, and the model with further classes."""
    copy.deepcopy(clf).add_classes(rows, labels)
    seconds = []
    for _ in range(3):
        grown = copy.deepcopy(clf)
        clock = Clock()
        grown.add_classes(rows, labels)
        seconds.append(clock.read().processor)
    return float(np.median(seconds)), grown


def means(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the mean over draws of each way, where there are several draws."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        before, _, way = row["case"].partition(", draw ")
        groups.setdefault(f"{before}, mean: {way.partition(': ')[2]}", []).append(row)
    for case, group in groups.items():
        if len(group) > 1:
            names = [name for name in group[0] if isinstance(group[0][name], float)]
            yield {"case": case} | {name: float(np.mean([row[name] for row in group])) for name in names}


def show_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print all rows as one table."""
    names = ("all %", "old %", "new %", "processor s", "part of a fit", "points ahead")
    print("| case | " + " | ".join(names) + " |")
    print("|" + "---|" * (len(names) + 1))
    for row in rows:
        figures = [f"{row[name]:.2f}" if name in row else "" for name in names]
        if "part of a fit" in row:
            figures[names.index("part of a fit")] = f"1/{1 / row['part of a fit']:.0f}"
        print(f"| {row['case']} | " + " | ".join(figures) + " |")


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="+", metavar="DATA:KIND", default=list(DEFAULT))
    parser.add_argument("--fraction", type=float, default=0.01, help="of the classes that are added")
    parser.add_argument("--draws", type=int, default=1, help="random sets of classes that are added")
    parser.add_argument("--split", choices=("valid", "test"), default="test")
    args = parser.parse_args(argv)
    print(machine())
    if args.tiny:
        args.cases, args.fraction = [f"planted:{kind}" for kind in KINDS], 0.05
    rows = []
    for case in args.cases:
        name, _, kind = case.partition(":")
        if kind not in KINDS:
            parser.error(f"{case!r} is no case; the kinds are {', '.join(KINDS)}, as in icd10cm:dense.")
        missing = datasets.available(name)
        if missing:
            print(f"left out: {missing}", flush=True)
            continue
        for row in compare(name, kind, args.fraction, args.split, range(args.draws)):
            write_rows(NAME, [row])
            rows.append(row)
    show_table([*rows, *means(rows)])


if __name__ == "__main__":
    main()
