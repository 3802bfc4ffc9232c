"""Texts at their full width: extremax beside other programs and simple rules, on the same rows and features.

    python benchmarks/text.py --data icd10cm eurlex57k                     # extremax, rules, scikit-learn
    python benchmarks/text.py --peer-python peers/bin/python               # everything, and the peers: hours
    python benchmarks/text.py --data yso-finna-100k --methods extremax-text pecos omikuji \\
        --features words --peer-python peers/bin/python
    python benchmarks/text.py --data icd10cm --methods extremax-text --seeds 0 1 2
    python benchmarks/text.py --out lab/results/scaling.jsonl --scaling lab/results/scaling.svg

The last one fits `extremax-text` to sets of growing size and draws what training and prediction cost.

PECOS, omikuji and napkinXC need an environment of their own, because PECOS needs numpy 1: ``python -m venv
peers && peers/bin/pip install torch==2.13.0``, then ``peers/bin/pip install libpecos omikuji napkinxc``
(wheels for Python 3.11).  What is not installed is left out, and so is a method that does not go with a set;
the table says so.

Texts become the sparse features of `NgramFeatures`, or with ``--features words`` TF-IDF of words and word
pairs that occur twice, which is what most users of PECOS and omikuji have; eurlex57k and bibtex have word
counts, which become TF-IDF (sublinear, unit rows).  Features are made once, on training texts alone, and
given to every method.  Two make features of their own: `extremax-text` (`TextClassifier`, what a user of
texts gets; they are part of its training, and of its milliseconds per row) and `extremax-dense` (512 dense
dimensions, version 0.1).  `extremax-start` is the same as `extremax-text` where there are texts, interrupted,
as by Ctrl-C, before its first epoch.  Data sets are described in benchmark_data.py, methods in peers.py.

Every method runs in a process of its own, on two threads, with defaults. Settings of the rules are chosen on
validation rows; no figure of a test row chooses anything. Scored are all test rows, or a random sample (seed
0) of 10,000. Columns: accuracy and top-5, or with several labels per row P@1/3/5, nDCG@5, F1@5 and the F1 of
the labels that `predict_labels` chooses (means over rows); log-likelihood in nats, of the softmax over all
classes (with several labels per row the mean over pairs); expected calibration error of the best class;
processor seconds of training with the features of the training rows; MB of the saved model, and seconds to
load it; processor milliseconds per row for the five best classes on one thread in one call for all rows, and
on the wall in a call for each; peak memory of the process after training, with its training data.  With
several seeds, a line for each and one with means and standard deviations.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import benchmark_data as datasets
import peers
from benchmark_data import SPLITS, TextData
from extremax import ExtremeClassifier, TextClassifier, evaluate, load_model, metrics
from extremax.errors import TrainingInterruptedWarning
from extremax.experiments import lemmas
from extremax.solvers.loop import Moment, Watcher
from timing import Clock, Seconds, machine, make_parser, write_rows

NAME = "text"
OURS = {
    "extremax": "extremax",
    "extremax-start": "extremax, start alone",
    "extremax-text": "extremax, TextClassifier",
    "extremax-dense": "extremax, dense features (0.1)",
}
PEER_NAMES = {
    "pecos": "PECOS XR-Linear",
    "omikuji": "omikuji",
    "napkinxc": "napkinXC",
    "linear-svc": "LinearSVC",
    "softmax": "full softmax in PyTorch",
    "complement-nb": "ComplementNB",
    "naive-bayes": "naive Bayes",
    "cosine": "cosine with class sums",
    "neighbours": "50 nearest neighbours",
    "prefix": "longest common prefix",
}
METHODS = OURS | PEER_NAMES
FIGURE_NAMES = {"extremax-text": "extremax", "cosine": "nearest class mean", "softmax": "full softmax"}
TITLES = {
    "icd10cm": "ICD-10-CM: 10,662 diagnosis codes",
    "npm-owner-124k": "npm: 124,250 owners of packages",
}
IN_PEER_PYTHON = ("pecos", "omikuji", "napkinxc")
DEFAULT_DATA = tuple(name for name in datasets.TEXT_BUILDERS if name != "planted-texts")
BY_ROWS = (*datasets.YSO_ROWS, "yso-finna")
BY_CLASSES = (
    "debian-section",
    "debian-maintainer",
    "icd10cm",
    "npm-owner-124k",
    "polish-nouns",
    "npm-owner-282k",
)
TINY_METHODS = (
    "extremax",
    "extremax-start",
    "extremax-text",
    "naive-bayes",
    "cosine",
    "neighbours",
    "prefix",
    "linear-svc",
)
SIZES = ((1, 1), (2, 4), (5, 19), (20, 99), (100, 1 << 60))  # training rows of a class
_COMPILING_ROWS = 2000
_QUERIES = 200


@dataclass(frozen=True)
class Prepared:
    """A set on disk, as the methods read it."""

    name: str
    folder: Path
    multilabel: bool
    has_texts: bool
    n_rows: dict[str, int]
    n_classes: int
    n_columns: int
    entries_per_row: float
    n_dropped: dict[str, int]
    features: Seconds
    kind: str


# -- data


def prepare(data: TextData, root: Path, n_test: int, n_threads: int, kind: str = "ngrams") -> Prepared:
    """Make features and write what the methods need to a folder whose name tells its contents."""
    rows = {split: np.arange(data.n_rows(split)) for split in SPLITS}
    if len(rows["test"]) > n_test:
        rows["test"] = np.sort(np.random.default_rng(0).choice(len(rows["test"]), n_test, replace=False))
    data = data.take(rows)
    X, seconds = make_features(data, n_threads, kind)
    Y = {split: _indicator(data.y[split], data.n_classes) for split in SPLITS}
    folder = root / f"{data.name}-{_mark(X, Y):08x}"
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        sp.save_npz(folder / f"X_{split}.npz", X[split], compressed=False)
        sp.save_npz(folder / f"Y_{split}.npz", Y[split], compressed=False)
        if data.texts is not None:
            (folder / f"texts_{split}.json").write_text(json.dumps(data.texts[split]))
    (folder / "labels.json").write_text(json.dumps(data.class_names))
    return Prepared(
        name=data.name,
        folder=folder,
        multilabel=data.multilabel,
        has_texts=data.texts is not None,
        n_rows={split: data.n_rows(split) for split in SPLITS},
        n_classes=data.n_classes,
        n_columns=X["train"].shape[1],
        entries_per_row=X["train"].nnz / X["train"].shape[0],
        n_dropped=data.n_dropped,
        features=seconds,
        kind=kind,
    )


def _mark(X: dict[str, sp.csr_matrix], Y: dict[str, sp.csr_matrix]) -> int:
    """Return a number that tells rows, labels and features, but not the order of the columns."""
    mark = 0
    for split in ("train", "test"):
        total = f"{X[split].data.sum(dtype=np.float64):.5g}".encode()
        counts = np.sort(np.bincount(X[split].indices, minlength=X[split].shape[1]))
        for part in (total, counts, X[split].indptr.astype(np.int64), Y[split].indices.astype(np.int64)):
            mark = zlib.crc32(part, mark)
    return mark


def make_features(data: TextData, n_threads: int, kind: str) -> tuple[dict[str, sp.csr_matrix], Seconds]:
    """Return unit rows of each split, and the seconds of fitting and of the training rows."""
    if data.texts is not None and kind == "words":
        from sklearn.feature_extraction.text import TfidfVectorizer

        clock = Clock()
        words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, dtype=np.float32)
        X = {"train": words.fit_transform(data.texts["train"])}
        seconds = clock.read()
        X |= {split: words.transform(data.texts[split]) for split in SPLITS[1:]}
        return {split: _csr(X[split]) for split in SPLITS}, seconds
    if data.texts is None:
        from sklearn.feature_extraction.text import TfidfTransformer

        assert data.counts is not None
        clock = Clock()
        tfidf = TfidfTransformer(sublinear_tf=True).fit(data.counts["train"])
        X = {"train": tfidf.transform(data.counts["train"])}
        seconds = clock.read()
        X |= {split: tfidf.transform(data.counts[split]) for split in SPLITS[1:]}
        return {split: _csr(X[split]) for split in SPLITS}, seconds
    from extremax.features.ngrams import NgramFeatures

    few = data.texts["train"][:_COMPILING_ROWS]
    NgramFeatures().fit(few, n_jobs=n_threads).transform(few, n_jobs=n_threads)
    clock = Clock()
    features = NgramFeatures().fit(data.texts["train"], n_jobs=n_threads)
    X = {"train": features.transform(data.texts["train"], n_jobs=n_threads)}
    seconds = clock.read()
    X |= {split: features.transform(data.texts[split], n_jobs=n_threads) for split in SPLITS[1:]}
    return {split: _csr(X[split]) for split in SPLITS}, seconds


def _csr(X: Any) -> sp.csr_matrix:
    matrix = sp.csr_matrix(X, dtype=np.float32)
    matrix.sort_indices()
    return matrix


def _indicator(y: Any, n_classes: int) -> sp.csr_matrix:
    if sp.issparse(y):
        return _csr(y)
    ends = np.arange(len(y) + 1)
    return sp.csr_matrix((np.ones(len(y), np.float32), y, ends), shape=(len(y), n_classes))


# -- extremax


def run_ours(method: str, folder: Path, n_threads: int, seed: int = 0) -> None:
    """Train and ask extremax and write what came of it, as `peers.run` does."""
    Y = {split: peers.load_matrix(folder, f"Y_{split}") for split in ("train", "test")}
    single = Y["train"].nnz == Y["train"].shape[0]
    targets = {split: Y[split].indices if single else Y[split] for split in Y}
    from_texts = uses_texts(method, folder)
    X, features = _texts(folder) if from_texts else _rows(method, folder, n_threads)
    result: dict[str, Any] = {"version": "", "data_bytes": peers.peak_bytes(), "features": features}
    few = np.random.default_rng(0).permutation(Y["train"].shape[0])[:_COMPILING_ROWS]
    callbacks = [StopAtStart()] if method == "extremax-start" else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingInterruptedWarning)
        small = _take(X["train"], few), targets["train"][few]
        _make(from_texts, n_threads, seed).fit(*small, callbacks=callbacks)
        clock = Clock()
        clf = _make(from_texts, n_threads, seed).fit(X["train"], targets["train"], callbacks=callbacks)
    result |= {"train": clock.read(), "peak_bytes": peers.peak_bytes()}
    chosen = clf.classifier_ if isinstance(clf, TextClassifier) else clf
    result["choices"] = {key: repr(value) for key, value in chosen.choices_.items()}
    with tempfile.TemporaryDirectory(dir=folder) as work:
        saved = Path(work) / "model"
        clf.save(saved)
        result["model_bytes"] = peers.folder_bytes(saved)
        del clf
        clock = Clock()
        loaded = load_model(saved)
        result["load"] = clock.read()
        labels = _ask(loaded, X["test"], result)
        report = evaluate(loaded, X["test"], targets["test"], n_jobs=n_threads)
        result |= report.as_dict()
    np.savez(folder / f"{method}.npz", labels=labels)
    (folder / f"{method}.json").write_text(json.dumps(result))


class StopAtStart(Watcher):
    """Ctrl-C before the first epoch."""

    def at_start(self, moment: Moment) -> None:
        raise KeyboardInterrupt


def uses_texts(method: str, folder: Path) -> bool:
    """Return whether a method of ours takes texts, and makes its own features: where there are any."""
    return method in ("extremax-text", "extremax-start") and (folder / "texts_train.json").exists()


def _texts(folder: Path) -> tuple[dict[str, Any], None]:
    return {s: json.loads((folder / f"texts_{s}.json").read_text()) for s in ("train", "test")}, None


def _rows(method: str, folder: Path, n_threads: int) -> tuple[dict[str, Any], Seconds | None]:
    """Return the rows of a method and the seconds of features of its own."""
    if method != "extremax-dense":
        return {s: peers.load_matrix(folder, f"X_{s}") for s in ("train", "test")}, None
    from sklearn.decomposition import TruncatedSVD
    from sklearn.pipeline import make_pipeline

    from extremax.features.ngrams import NgramFeatures

    if (folder / "texts_train.json").exists():
        X, _ = _texts(folder)
        dense: Any = make_pipeline(NgramFeatures(), TruncatedSVD(512, random_state=0))
    else:
        X = {s: peers.load_matrix(folder, f"X_{s}") for s in ("train", "test")}
        dense = TruncatedSVD(min(512, min(X["train"].shape) - 1), random_state=0)
    clock = Clock()
    found = {"train": dense.fit_transform(X["train"]).astype(np.float32)}
    seconds = clock.read()
    return found | {"test": dense.transform(X["test"]).astype(np.float32)}, seconds


def _make(from_texts: bool, n_threads: int, seed: int) -> Any:
    classifier = ExtremeClassifier(random_state=seed, n_jobs=n_threads)
    return TextClassifier(classifier) if from_texts else classifier


def _take(X: Any, rows: np.ndarray) -> Any:
    return [X[i] for i in rows] if isinstance(X, list) else X[rows]


def _ask(clf: Any, X: Any, result: dict[str, Any]) -> np.ndarray:
    """Return the five best labels of each row, and note seconds on one thread."""
    inner = clf.classifier_ if isinstance(clf, TextClassifier) else clf
    inner.n_jobs = 1
    k = min(peers.K, len(inner.classes_))
    clf.predict_topk(X[:10], k=k)
    clock = Clock()
    labels, _ = clf.predict_topk(X, k=k)
    result["predict"] = clock.read()
    seconds = []
    for row in range(min(_QUERIES, len(labels))):
        one, clock = X[row : row + 1], Clock()
        clf.predict_topk(one, k=k)
        seconds.append(clock.read().wall)
    result["query_ms"] = 1e3 * float(np.median(seconds))
    return np.asarray(labels)


# -- running and scoring


@dataclass(frozen=True)
class Options:
    """How methods are run."""

    peer_python: str | None = None
    n_threads: int = 2
    limit: float = 3600.0
    in_process: bool = False
    by_size: bool = False
    most_one_vs_rest: int = 2500


def run_method(method: str, data: Prepared, options: Options, seed: int = 0) -> str:
    """Run a method, unless its answer is there already; return why there is none, or nothing."""
    if reason := _unsuitable(method, data, options):
        return reason
    result = data.folder / f"{method}.json"
    if method in OURS:
        result.unlink(missing_ok=True)
    elif result.exists():
        return ""
    if options.in_process:
        if method in OURS:
            run_ours(method, data.folder, options.n_threads, seed)
        else:
            peers.run(method, data.folder, options.n_threads)
        return ""
    python = options.peer_python if method in IN_PEER_PYTHON else sys.executable
    threads = str(options.n_threads)
    if method in OURS:
        command = [python, __file__, "--worker", method, str(data.folder), threads, str(seed)]
    else:
        command = [python, str(Path(peers.__file__)), method, str(data.folder), threads]
    environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    log = data.folder / f"{method}.log"
    with log.open("w") as file:
        try:
            done = subprocess.run(
                command, env=environment, stdout=file, stderr=file, timeout=options.limit, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not finished after {options.limit:.0f} s"
    if done.returncode == 0:
        return ""
    last = (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
    return last.removeprefix("left out: ") if last.startswith("left out") else f"failed: {last}"


def _unsuitable(method: str, data: Prepared, options: Options) -> str:
    if method in IN_PEER_PYTHON and options.peer_python is None:
        return "no --peer-python"
    if method in ("linear-svc", "complement-nb") and data.n_classes > options.most_one_vs_rest:
        return f"more than {options.most_one_vs_rest:,} classes"
    if method == "neighbours" and data.n_rows["train"] > 1_000_000:
        return "more than 1,000,000 training rows"
    if method == "extremax-text" and not data.has_texts:
        return "no texts"
    if method == "prefix" and data.name not in (*lemmas.TABLES, "planted-texts"):
        return "labels are no words of the texts"
    return ""


def score(method: str, data: Prepared) -> dict[str, Any]:
    """Return the figures of a method, from what it wrote."""
    about = json.loads((data.folder / f"{method}.json").read_text())
    arrays = np.load(data.folder / f"{method}.npz")
    Y, labels = peers.load_matrix(data.folder, "Y_test"), arrays["labels"]
    if data.multilabel:
        figures = {f"P@{k}": metrics.precision_at_k(Y, labels, k=k) for k in (1, 3, 5)}
        figures |= {"nDCG@5": metrics.ndcg_at_k(Y, labels, k=5), "F1@5": metrics.f1_at_k(Y, labels, k=5)}
        figures["F1"] = about.get("samples_f1")
    else:
        figures = {"accuracy": metrics.accuracy_at_k(Y.indices, labels, k=1)}
        if labels.shape[1] > 1 and (labels[:, 1] >= 0).any():
            figures["top-5"] = metrics.accuracy_at_k(Y.indices, labels, k=min(5, labels.shape[1]))
    figures |= _probabilities(about, arrays, Y)
    n_rows = Y.shape[0]
    features = 0.0 if uses_texts(method, data.folder) else (about.get("features") or data.features)[1]
    figures |= {
        "processor s": about["train"][1] + features,
        "features processor s": features,
        "wall s": about["train"][0],
        "model MB": about["model_bytes"] / 1e6 if "model_bytes" in about else None,
        "load s": about["load"][0] if "model_bytes" in about else None,
        "ms per row": 1e3 * about["predict"][1] / n_rows if "query_ms" in about else None,
        "ms per query": about.get("query_ms"),
        "peak GiB": about["peak_bytes"] / 2**30,
    }
    if about.get("settings"):
        figures["settings"] = ", ".join(f"{key} {value}" for key, value in about["settings"].items())
    if about["version"]:
        figures["version"] = about["version"]
    return figures


def _probabilities(about: dict[str, Any], arrays: Any, Y: sp.csr_matrix) -> dict[str, Any]:
    """Return log-likelihood and calibration error, None for a method without probabilities."""
    if "log_likelihood" in about:
        errors = {f"ECE@{k}": about.get(f"calibration_error@{k}") for k in (1, 3, 5)}
        if errors["ECE@1"] is None:
            errors["ECE@1"] = about["calibration_error"]
        return {"log-likelihood": about["log_likelihood"], **errors}
    if "log_prob" not in arrays:
        return {"log-likelihood": None, "ECE@1": None}
    rows = arrays["rows"] if "rows" in arrays else np.arange(Y.shape[0])
    part = Y[rows]
    pairs = np.repeat(np.arange(len(rows)), np.diff(part.indptr))
    right = arrays["labels"][rows][pairs, 0] == part.indices
    error = metrics.expected_calibration_error(right, np.clip(arrays["best"][pairs], 0, 1))
    found = {"log-likelihood": float(arrays["log_prob"].mean()), "ECE@1": float(error)}
    return found | ({"likelihood rows": len(rows)} if len(rows) < Y.shape[0] else {})


def by_size(method: str, data: Prepared) -> dict[str, float]:
    """Return the accuracy on rows whose class has so many training rows."""
    Y = {split: peers.load_matrix(data.folder, f"Y_{split}") for split in ("train", "test")}
    sizes = np.asarray(Y["train"].sum(axis=0)).ravel()[Y["test"].indices]
    right = np.load(data.folder / f"{method}.npz")["labels"][:, 0] == Y["test"].indices
    found = {}
    for low, high in SIZES:
        rows = (sizes >= low) & (sizes <= high)
        if rows.any():
            name = f"{low}" if low == high else f"{low}-{high}" if high < 1 << 60 else f"{low}+"
            found[f"accuracy at {name} rows ({int(rows.sum())})"] = float(right[rows].mean())
    return found


# -- tables

SINGLE_HEADS = ("accuracy", "top-5", "log-likelihood", "ECE@1")
MULTI_HEADS = ("P@1", "P@3", "P@5", "nDCG@5", "F1@5", "F1", "log-likelihood", "ECE@1")
PER_CENT = {*SINGLE_HEADS, *MULTI_HEADS} - {"log-likelihood"}
COST_HEADS = ("processor s", "model MB", "load s", "ms per row", "ms per query", "peak GiB")


def compare(
    data: Prepared, methods: Iterable[str], options: Options, out: Path | None, seeds: Sequence[int] = (0,)
) -> None:
    """Run all methods on a set and print its table, a line as soon as it is known."""
    rows = " / ".join(f"{data.n_rows[split]:,}" for split in SPLITS)
    print(
        f"\n### {data.name}\n\n{rows} rows (left out for unknown classes: {data.n_dropped}),"
        f" {data.n_classes:,} classes, {data.kind}: {data.n_columns:,} columns,"
        f" {data.entries_per_row:.0f} entries a row; features of the training rows {data.features.wall:.1f} s"
        f" ({data.features.processor:.1f} of the processor)\n"
    )
    heads = (*(MULTI_HEADS if data.multilabel else SINGLE_HEADS), *COST_HEADS)
    print("| method | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads), flush=True)
    for method in methods:
        found = []
        for seed in seeds if method in OURS else (0,):
            title = METHODS[method] + (f", seed {seed}" if method in OURS and len(seeds) > 1 else "")
            if method not in OURS and (data.folder / f"{method}.json").exists():
                title += " (earlier run)"
            if reason := run_method(method, data, options, seed):
                print(f"| {title} | {reason} |", flush=True)
                break
            figures = score(method, data)
            found.append(figures)
            print(f"| {title} | {' | '.join(_cells(figures, heads))} |", flush=True)
            if options.by_size and not data.multilabel:
                figures |= by_size(method, data)
            row = {"case": f"{data.name}: {title}", **figures}
            write_rows(NAME, [row], show=False)
            if out is not None:
                about = {"data": data.name, "method": method, "seed": seed, "features": data.kind}
                about |= {"rows": data.n_rows["train"], "classes": data.n_classes}
                append_row(out, about | row)
        if len(found) > 1:
            print(f"| {METHODS[method]}, mean | {' | '.join(_mean_cells(found, heads))} |", flush=True)
    if options.by_size and not data.multilabel:
        _print_sizes(data, methods)


def append_row(out: Path, row: dict[str, Any]) -> None:
    """Append a row of figures to a JSON lines file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _cells(figures: dict[str, Any], heads: Iterable[str]) -> list[str]:
    return ["-" if figures.get(head) is None else _cell(head, figures[head]) for head in heads]


def _cell(head: str, value: float) -> str:
    if head in PER_CENT:
        return f"{100 * value:.2f}"
    if head == "log-likelihood":
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _mean_cells(found: Sequence[dict[str, Any]], heads: Iterable[str]) -> list[str]:
    """Return means and standard deviations over seeds."""
    cells = []
    for head in heads:
        values = [figures[head] for figures in found if figures.get(head) is not None]
        both = (np.mean(values), np.std(values, ddof=1)) if len(values) > 1 else ()
        cells.append(" ± ".join(_cell(head, float(value)) for value in both) or "-")
    return cells


def _print_sizes(data: Prepared, methods: Iterable[str]) -> None:
    """Print accuracy by the number of training rows of the class."""
    done = [method for method in methods if (data.folder / f"{method}.json").exists()]
    print("\nAccuracy by training rows of the class (test rows in brackets)\n")
    for number, method in enumerate(done):
        found = by_size(method, data)
        if number == 0:
            names = [name.removeprefix("accuracy at ") for name in found]
            print("| method | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
        cells = " | ".join(f"{100 * value:.1f}" for value in found.values())
        print(f"| {METHODS[method]} | {cells} |", flush=True)


# -- the figure


def draw_accuracy(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against the processor seconds of training, a panel for each set; later rows win."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "extremax"
    last = {(row["data"], row["method"]): row for row in rows if "accuracy" in row}
    names = list(dict.fromkeys(data for data, _ in last))
    figure = Figure(figsize=(5.2 * len(names), 3.9), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        points = [(method, row) for (data, method), row in last.items() if data == name]
        for method, row in points:
            seconds = row["processor s"]
            ours = method in OURS
            axes.plot(
                seconds, 100 * row["accuracy"], "o", color="C1" if ours else "0.45", ms=9 if ours else 6
            )
            axes.annotate(
                FIGURE_NAMES.get(method, METHODS[method]),
                (seconds, 100 * row["accuracy"]),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                weight="bold" if ours else "normal",
            )
        axes.set_xscale("log")
        axes.margins(0.26, 0.14)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(TITLES.get(name, name), fontsize=11)
        axes.set_xlabel("training, seconds of the processor, features included")
        axes.set_ylabel("test accuracy, %")
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)


def draw_costs(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw milliseconds of training and of prediction per row against rows and against classes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "extremax"
    last = {row["data"]: row for row in rows if row["method"] == "extremax-text" and "rows" in row}
    columns = ((BY_ROWS, "rows", "classes"), (BY_CLASSES, "classes", "rows"))
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    for (names, size, other), column in zip(columns, figure.subplots(2, 2).T, strict=True):
        points = [last[name] for name in names if name in last]
        training = [1e3 * row["processor s"] / row["rows"] for row in points]
        heights = (training, "training"), ([row["ms per row"] for row in points], "exact top-5")
        for (values, label), axes in zip(heights, column, strict=True):
            axes.plot([row[size] for row in points], values, "o-", color="C1")
            for row, value in zip(points, values, strict=True):
                note = f"{row['processor s']:,.0f} s" if label == "training" else f"{row[other]:,} {other}"
                axes.annotate(
                    note,
                    (row[size], value),
                    xytext=(0, 7),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
            axes.set_xscale("log")
            axes.margins(0.16, 0.2)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("titles of a library" if size == "rows" else "classes of several sets")
            axes.set_ylabel(f"{label}, ms of the processor a row")
            axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)


# -- command line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=datasets.TEXT_BUILDERS)
    parser.add_argument("--methods", nargs="+", choices=METHODS)
    parser.add_argument("--peer-python", metavar="PYTHON", help="an interpreter that has the peers")
    parser.add_argument("--test-rows", type=int, default=10_000, help="at most so many, at random")
    parser.add_argument("--threads", type=int, default=2, help="of training")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which a method is stopped")
    parser.add_argument("--work", type=Path, help="keep files here, and use answers of peers that are there")
    parser.add_argument("--out", type=Path, help="append figures to this JSON lines file")
    parser.add_argument(
        "--one-vs-rest",
        type=int,
        default=2500,
        metavar="CLASSES",
        help="the most for LinearSVC, ComplementNB",
    )
    parser.add_argument(
        "--figure", type=Path, help="draw accuracy against training time of all rows in --out"
    )
    parser.add_argument(
        "--scaling", type=Path, help="draw costs against rows and classes of all rows in --out"
    )
    parser.add_argument("--by-size", action="store_true", help="also accuracy by training rows of the class")
    parser.add_argument("--features", choices=("ngrams", "words"), default="ngrams", help="made from texts")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,), help="of extremax, a run for each")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.out is None and (args.figure is not None or args.scaling is not None):
        parser.error("--figure and --scaling draw what is in the file of --out: name one")
    costs = args.scaling is not None
    args.data = args.data or ((*BY_ROWS, *BY_CLASSES) if costs else DEFAULT_DATA)
    args.methods = args.methods or (("extremax-text",) if costs else tuple(METHODS))
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.worker:
        method, folder, *numbers = args.worker
        run_ours(method, Path(folder), *map(int, numbers))
        return
    print(machine())
    options = Options(
        args.peer_python, args.threads, args.limit, args.tiny, args.by_size or args.tiny, args.one_vs_rest
    )
    names, methods = (("planted-texts",), TINY_METHODS) if args.tiny else (args.data, args.methods)
    with tempfile.TemporaryDirectory() as temporary:
        root = args.work or Path(temporary)
        for name in names:
            if missing := datasets.texts_available(name):
                print(f"left out: {missing}", flush=True)
                continue
            data = prepare(datasets.load_texts(name), root, args.test_rows, args.threads, args.features)
            compare(data, methods, options, args.out, args.seeds)
    for path, draw in ((args.figure, draw_accuracy), (args.scaling, draw_costs)):
        if path is not None:
            draw([json.loads(line) for line in args.out.read_text().splitlines()], path)


if __name__ == "__main__":
    main()
