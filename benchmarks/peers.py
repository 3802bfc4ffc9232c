"""PECOS (XR-Linear) and omikuji on the files that `multilabel` writes.

`multilabel` starts this program in an interpreter that has both:

    python benchmarks/peers.py pecos|omikuji|omikuji-1 FOLDER

FOLDER holds ``X_train``, ``X_test`` (.npy dense or .npz CSR) and ``Y_train.npz``.  Written there:
``NAME.npz`` with the five best labels of each test row, and ``NAME.json`` with versions and seconds.  The
interpreter needs neither numpy 2 nor extremax, as PECOS needs numpy 1.  All methods run on one thread, and
seconds are those on the wall and those of the processor, which other programs change less.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

K = 5


class Clock:
    """Wall-clock and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.processor


def load_matrix(folder: Path, name: str) -> Any:
    path = folder / f"{name}.npz"
    return sp.load_npz(path).tocsr().astype(np.float32) if path.exists() else np.load(folder / f"{name}.npy")


def run_pecos(folder: Path) -> dict[str, Any]:
    """Run XR-Linear with its defaults: PIFA embeddings, hierarchical 2-means, TFN negatives, beam 10."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y = load_matrix(folder, "X_train"), load_matrix(folder, "Y_train")
    clock = Clock()
    embeddings = LabelEmbeddingFactory.create(Y, sp.csr_matrix(X), method="pifa")
    chain = Indexer.gen(embeddings, seed=0)
    model = XLinearModel.train(X, Y, C=chain, threads=1)
    train = clock.read()
    X_test, clock = load_matrix(folder, "X_test"), Clock()
    found = model.predict(X_test, only_topk=K, threads=1).tocsr()
    labels = np.full((found.shape[0], K), -1)
    for row in range(found.shape[0]):
        cut = slice(found.indptr[row], found.indptr[row + 1])
        best = found.indices[cut][np.argsort(-found.data[cut], kind="stable")]
        labels[row, : len(best)] = best
    return {"labels": labels, "version": version("libpecos"), "train": train, "predict": clock.read()}


def run_omikuji(folder: Path, n_trees: int | None = None) -> dict[str, Any]:
    """Run omikuji with its defaults: three Parabel trees, beam 10.

    It reads text, and training seconds include the reading.
    """
    import omikuji

    X, Y = sp.csr_matrix(load_matrix(folder, "X_train")), load_matrix(folder, "Y_train")
    text = folder / f"train-{n_trees}.txt"
    write_xmc(text, X, Y)
    parameters = omikuji.Model.default_hyper_param()
    if n_trees is not None:
        parameters.n_trees = n_trees
    clock = Clock()
    model = omikuji.Model.train_on_data(str(text), parameters, n_threads=1)
    train = clock.read()
    text.unlink()
    X_test, clock = sp.csr_matrix(load_matrix(folder, "X_test")), Clock()
    labels = np.full((X_test.shape[0], K), -1)
    for row in range(X_test.shape[0]):
        cut = slice(X_test.indptr[row], X_test.indptr[row + 1])
        pairs = list(zip(X_test.indices[cut].tolist(), X_test.data[cut].tolist(), strict=True))
        best = [label for label, _ in model.predict(pairs, top_k=K)]
        labels[row, : len(best)] = best
    return {"labels": labels, "version": version("omikuji"), "train": train, "predict": clock.read()}


def write_xmc(path: Path, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    """Write XMC repository text: a header ``N D L``, then ``l1,l2 f:v f:v ...``."""
    with path.open("w") as file:
        file.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for row in range(X.shape[0]):
            labels = ",".join(map(str, Y.indices[Y.indptr[row] : Y.indptr[row + 1]]))
            cut = slice(X.indptr[row], X.indptr[row + 1])
            file.write(
                labels
                + "".join(f" {f}:{v:.6g}" for f, v in zip(X.indices[cut], X.data[cut], strict=True))
                + "\n"
            )


# One tree takes an hour on dense features: the solver of each node goes through all 512 of them.
METHODS = {"pecos": run_pecos, "omikuji": run_omikuji, "omikuji-1": partial(run_omikuji, n_trees=1)}


def main(name: str, folder: Path) -> None:
    result = METHODS[name](folder)
    np.savez(folder / f"{name}.npz", labels=result.pop("labels"))
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
