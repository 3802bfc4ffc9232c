"""Multi-label classification of EU laws (eurlex57k) beside PECOS and omikuji, on the same rows and features.

    python benchmarks/multilabel.py                                  # extremax alone
    python benchmarks/multilabel.py --peers /path/to/bin/python      # ... and the others, in their own interpreter
    python benchmarks/multilabel.py --peers ... --tfidf              # ... also on the sparse TF-IDF features

The peers need an environment of their own, for PECOS wants numpy 1: ``python -m venv peers && peers/bin/pip
install libpecos omikuji``. Rows, features and scoring are the same for all: dense features are TF-IDF reduced
to 512 by SVD, test rows with a label that no training row has are left out (see datasets.py), figures come
from `extremax.metrics`. All run on one thread. Seconds are those of the processor and, behind them, of the
clock on the wall."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import datasets
import timing
from extremax import ExtremeClassifier, metrics
from extremax.data import load_dataset, rarest_label
from peers import Clock

KS = (1, 3, 5)
NAMES = {"svd": "TF-IDF and SVD to 512", "tfidf": "TF-IDF"}
PEERS = {
    "pecos": "PECOS XR-Linear, defaults",
    "omikuji": "omikuji, defaults (three Parabel trees)",
    "omikuji-1": "omikuji, one tree",
}
OURS: dict[str, dict[str, Any]] = {
    "defaults": {},
    '`objective="negative_sampling"`': {"objective": "negative_sampling"},
}


@dataclass(frozen=True)
class Rows:
    """Rows of one kind of features."""

    X_train: Any
    Y_train: sp.csr_matrix
    X_test: Any
    Y_test: sp.csr_matrix


def dense_rows() -> Rows:
    data = datasets.load("eurlex57k")
    return Rows(data.X_train, _binary(data.labels_train), data.X_test, _binary(data.labels_test))


def tfidf_rows() -> Rows:
    """The same rows before the SVD."""
    from sklearn.feature_extraction.text import TfidfTransformer

    folder = datasets.data_folder() / "eurlex57k"
    train, test = (load_dataset(folder / f"{split}.txt.xz") for split in ("train", "test"))
    counts = np.asarray(train.y.sum(axis=0)).ravel()
    labelled = np.diff(train.y.indptr) > 0
    seen = np.isin(rarest_label(test.y, counts), rarest_label(train.y[labelled], counts))
    tfidf = TfidfTransformer(sublinear_tf=True).fit(train.X[labelled])
    X_train, X_test = (tfidf.transform(X).astype(np.float32) for X in (train.X[labelled], test.X[seen]))
    return Rows(X_train, _binary(train.y[labelled]), X_test, _binary(test.y[seen]))


def _binary(Y: Any) -> sp.csr_matrix:
    matrix = sp.csr_matrix(Y, dtype=np.float32)
    matrix.sort_indices()
    return matrix


def run_ours(rows: Rows, settings: dict[str, Any]) -> dict[str, Any]:
    # Compiling is not training: once, on a few rows.
    few = np.arange(0, rows.X_train.shape[0], 100)
    ExtremeClassifier(n_jobs=1, random_state=0, **(settings | {"n_epochs": 1})).fit(
        rows.X_train[few], rows.Y_train[few]
    )
    clock = Clock()
    clf = ExtremeClassifier(n_jobs=1, random_state=0, **settings).fit(rows.X_train, rows.Y_train)
    train, clock = clock.read(), Clock()
    labels, _ = clf.predict_topk(rows.X_test, k=max(KS))
    return {"labels": labels, "train": train, "predict": clock.read()}


def run_peer(name: str, python: str, rows: Rows, folder: Path) -> dict[str, Any]:
    """Train and ask a peer, or read what it answered the last time in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"{name}.json").exists():
        for key in ("X_train", "X_test"):
            X = getattr(rows, key)
            if sp.issparse(X):
                sp.save_npz(folder / f"{key}.npz", X)
            else:
                np.save(folder / f"{key}.npy", X)
        sp.save_npz(folder / "Y_train.npz", rows.Y_train)
        script = Path(__file__).with_name("peers.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""}
        with (folder / f"{name}.log").open("w") as log:  # omikuji draws its progress there
            subprocess.run(
                [python, str(script), name, str(folder)], check=True, env=environment, stdout=log, stderr=log
            )
    return json.loads((folder / f"{name}.json").read_text()) | {
        "labels": np.load(folder / f"{name}.npz")["labels"]
    }


def figures(rows: Rows, labels: np.ndarray) -> list[float]:
    counts = np.asarray(rows.Y_train.sum(axis=0)).ravel()
    chances = metrics.label_propensities(counts, rows.Y_train.shape[0])
    found = [metrics.precision_at_k(rows.Y_test, labels, k=k) for k in KS]
    found += [metrics.ndcg_at_k(rows.Y_test, labels, k=k) for k in KS[1:]]
    return found + [metrics.propensity_scored_precision_at_k(rows.Y_test, labels, chances, k=k) for k in KS]


def print_row(name: str, rows: Rows, result: dict[str, Any], first: list[float] | None) -> list[float]:
    found = figures(rows, result["labels"])
    (wall, cpu), (_, ask_cpu) = result["train"], result["predict"]
    cells = " | ".join(f"{100 * value:.2f}" for value in found)
    ratio = "" if first is None else f"{found[0] / first[0]:.3f}, {found[2] / first[2]:.3f}"
    print(f"| {name} | {cells} | {cpu:.1f} ({wall:.0f}) | {ask_cpu:.1f} | {ratio} |", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has libpecos and omikuji")
    parser.add_argument(
        "--methods", nargs="*", choices=PEERS, default=["pecos", "omikuji"], help="which of the peers"
    )
    parser.add_argument(
        "--work", metavar="FOLDER", help="keep the peers' answers here, and use those that are there"
    )
    parser.add_argument("--tfidf", action="store_true", help="also on the sparse features before the SVD")
    arguments = parser.parse_args()
    missing = datasets.available("eurlex57k")
    if missing:
        sys.exit(missing)
    print(timing.machine())
    work = Path(arguments.work or tempfile.mkdtemp())
    heads = [f"P@{k}" for k in KS] + [f"nDCG@{k}" for k in KS[1:]] + [f"PSP@{k}" for k in KS]
    kinds = [("svd", dense_rows)] + ([("tfidf", tfidf_rows)] if arguments.tfidf else [])
    for kind, make in kinds:
        rows, folder = make(), work / kind
        sizes = (
            f"{rows.X_train.shape[0]:,} / {rows.X_test.shape[0]:,} rows, {rows.X_train.shape[1]:,} features"
        )
        print(f"\n{NAMES[kind]}: {sizes}, {rows.Y_train.nnz / rows.X_train.shape[0]:.2f} labels a row\n")
        print(
            "| method | " + " | ".join(heads) + " | training s (wall) | prediction s | P@1, P@5 over PECOS |"
        )
        print("|---|" + "---|" * (len(heads) + 3))
        first = None
        for peer in arguments.methods if arguments.peers else ():
            found = print_row(PEERS[peer], rows, run_peer(peer, arguments.peers, rows, folder), first)
            first = found if peer == "pecos" else first
        for name, settings in OURS.items():
            print_row(f"extremax, {name}", rows, run_ours(rows, settings), first)


if __name__ == "__main__":
    main()
