"""Several labels per row on dense features: EU laws (eurlex57k) beside PECOS and omikuji.

    python benchmarks/multilabel.py                                  # extremax alone
    python benchmarks/multilabel.py --peers /path/to/bin/python      # ... and the others

The peers need an environment of their own, because PECOS needs numpy 1: ``python -m venv peers &&
peers/bin/pip install libpecos omikuji``.  Rows, features and scoring are the same for all: dense features
are TF-IDF reduced to 512 by SVD, test rows with a label that no training row has are left out (see
benchmark_data.py), figures come from `extremax.metrics`.  All run on one thread.  Seconds are those of the
processor and, behind them, of the wall clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import benchmark_data as datasets
from extremax import ExtremeClassifier, metrics
from timing import Clock, machine, make_parser, write_rows

NAME = "multilabel"
KS = (1, 3, 5)
PEERS = {
    "pecos": "PECOS XR-Linear, defaults",
    "omikuji": "omikuji, defaults (three Parabel trees)",
    "omikuji-1": "omikuji, one tree",
}
OURS: dict[str, dict[str, Any]] = {
    "defaults": {},
    '`solver="negative_sampling"`': {"solver": "negative_sampling"},
}


@dataclass(frozen=True)
class Rows:
    """Rows of one kind of features."""

    X_train: Any
    Y_train: sp.csr_matrix
    X_test: Any
    Y_test: sp.csr_matrix


def dense_rows(name: str) -> Rows:
    data = datasets.load(name)
    return Rows(data.X_train, _binary(data.labels_train), data.X_test, _binary(data.labels_test))


def _binary(Y: Any) -> sp.csr_matrix:
    matrix = sp.csr_matrix(Y, dtype=np.float32)
    matrix.sort_indices()
    return matrix


def run_ours(rows: Rows, parameters: dict[str, Any]) -> dict[str, Any]:
    """Train and ask extremax; compiling, on a few rows, is not part of the time."""
    few = np.arange(0, rows.X_train.shape[0], 100)
    once = parameters | {"n_epochs": 1}
    ExtremeClassifier.with_solver(n_jobs=1, random_state=0, **once).fit(rows.X_train[few], rows.Y_train[few])
    clock = Clock()
    clf = ExtremeClassifier.with_solver(n_jobs=1, random_state=0, **parameters).fit(
        rows.X_train, rows.Y_train
    )
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


def figures(rows: Rows, labels: np.ndarray) -> dict[str, float]:
    """Return the ranking figures of the first five labels of each row."""
    Y, counts = rows.Y_test, np.asarray(rows.Y_train.sum(axis=0)).ravel()
    propensity = metrics.label_propensities(counts, rows.Y_train.shape[0])
    found = {f"P@{k}": metrics.precision_at_k(Y, labels, k=k) for k in KS}
    found |= {f"nDCG@{k}": metrics.ndcg_at_k(Y, labels, k=k) for k in KS[1:]}
    found["F1@5"] = metrics.f1_at_k(Y, labels, k=5)
    scored = metrics.propensity_scored_precision_at_k
    return found | {f"PSP@{k}": scored(Y, labels, propensity, k=k) for k in KS}


def print_row(
    name: str, rows: Rows, result: dict[str, Any], first: dict[str, float] | None
) -> dict[str, float]:
    """Print a line of the table and return its figures; `first` are those of PECOS."""
    found = figures(rows, result["labels"])
    (wall, processor), (_, asking) = result["train"], result["predict"]
    cells = " | ".join(f"{100 * value:.2f}" for value in found.values())
    ratio = "" if first is None else ", ".join(f"{found[at] / first[at]:.3f}" for at in ("P@1", "P@5"))
    print(f"| {name} | {cells} | {processor:.1f} ({wall:.0f}) | {asking:.1f} | {ratio} |", flush=True)
    seconds = {"training processor s": processor, "training s": wall, "prediction processor s": asking}
    write_rows(NAME, [{"case": name, **found, **seconds}], show=False)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has libpecos and omikuji")
    parser.add_argument(
        "--methods", nargs="*", choices=PEERS, default=["pecos", "omikuji"], help="which of the peers"
    )
    parser.add_argument(
        "--work", metavar="FOLDER", help="keep the peers' answers here, and use those that are there"
    )
    args = parser.parse_args(argv)
    print(machine())
    if not args.tiny and (missing := datasets.available("eurlex57k")):
        print(f"left out: {missing}")
        return
    with tempfile.TemporaryDirectory() as temporary:
        rows = dense_rows("planted" if args.tiny else "eurlex57k")
        compare(rows, Path(args.work or temporary), args.peers, args.methods)


def compare(rows: Rows, folder: Path, python: str | None, peers: Sequence[str]) -> None:
    """Print the table."""
    sizes = f"{rows.X_train.shape[0]:,} / {rows.X_test.shape[0]:,} rows, {rows.X_train.shape[1]:,} features"
    labels_per_row = rows.Y_train.nnz / rows.X_train.shape[0]
    print(f"\n{sizes}, {labels_per_row:.2f} labels per row\n")
    heads = [f"P@{k}" for k in KS] + [f"nDCG@{k}" for k in KS[1:]] + ["F1@5"] + [f"PSP@{k}" for k in KS]
    print("| method | " + " | ".join(heads) + " | training s (wall) | prediction s | P@1, P@5 over PECOS |")
    print("|---|" + "---|" * (len(heads) + 3))
    first = None
    for peer in peers if python else ():
        found = print_row(PEERS[peer], rows, run_peer(peer, python, rows, folder), first)
        first = found if peer == "pecos" else first
    for name, parameters in OURS.items():
        print_row(f"extremax, {name}", rows, run_ours(rows, parameters), first)


if __name__ == "__main__":
    main()
