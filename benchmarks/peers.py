"""Other programs and simple rules on the files that `multilabel` and `text` write.

Both start this program in an interpreter that has the package in question:

    python benchmarks/peers.py NAME FOLDER [THREADS]

FOLDER holds ``X_train``, ``X_test`` (.npy dense or .npz CSR), ``Y_train.npz`` and, where there are any,
``Y_test.npz``, ``X_valid``, ``Y_valid.npz``, ``texts_test.json`` and ``labels.json``.  Written there:
``NAME.npz`` with the five best labels of each test row, and ``NAME.json`` with versions, seconds (on the wall
and of the processor), bytes of the saved model and peak memory.  The interpreter needs neither numpy 2 nor
extremax, as PECOS needs numpy 1.  Training uses THREADS threads (one if not given), questions one.

pecos            XR-Linear with its defaults: PIFA embeddings, hierarchical 2-means, TFN negatives, beam 10
omikuji          defaults: three Parabel trees, beam 10; omikuji-1: one tree.  It reads text, and training
                 seconds include the reading
napkinxc         hierarchical softmax with its defaults; with several labels per row a probabilistic label
                 tree
linear-svc       scikit-learn's LinearSVC, C = 1, one-vs-rest; where its dense weights would not fit, class by
                 class, keeping only the scores of the test rows
complement-nb    scikit-learn's ComplementNB
softmax          full softmax in PyTorch: a vector for each feature, a text their weighted sum divided by its
                 length, one linear layer, Adagrad, minibatches of 256.  Rate by the likelihood of validation
                 rows after 20 processor seconds for each of four, which are not counted; ends when the
                 likelihood of validation rows falls, or after 20 processor minutes
naive-bayes      classes as sums S of their rows; score = scale (sum_f x_f log(1 + S_yf / (a p_f))
                 - |x|_1 log(1 + m_y / a) + prior log n_y), with the mass m_y of the class and the share p_f
                 of the feature; a, prior and scale by the likelihood of validation rows
cosine           with the class's summed row, times a scale chosen likewise
neighbours       50 nearest by cosine, weights exp(20 cosine), a tenth of the probability to the class shares
prefix           the label whose spelling shares the longest prefix with the text; of several the shortest
"""

from __future__ import annotations

import itertools
import json
import resource
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

K = 5
_QUERIES = 200  # rows asked one by one
_SCORE_BYTES = 1 << 26  # scores of all classes that are held at once
_CHOICE_ROWS = 500  # validation rows that choose the settings of a rule
_MAX_DENSE_BYTES = 1_500_000_000  # weights of one-vs-rest classifiers that are kept
_MAX_PAIRS = 20_000_000  # rows times classes that napkinXC lists for likelihoods


class Clock:
    """Wall-clock and processor seconds since it was made."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.processor


def load_matrix(folder: Path, name: str) -> Any:
    path = folder / f"{name}.npz"
    return sp.load_npz(path).tocsr().astype(np.float32) if path.exists() else np.load(folder / f"{name}.npy")


def peak_bytes() -> int:
    """Return the most memory that this process or a child has had.

    ``ru_maxrss`` of the process itself is at least that of the program that started it, so the figure of the
    kernel for this address space is taken where there is one.
    """
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, children)
    own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return max(own, children)


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


class Peer:
    """A program that is trained, saved, loaded and asked.

    Attributes
    ----------
    package
        The distribution that it needs.
    """

    package = ""

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        """Train and return wall and processor seconds of what counts."""
        raise NotImplementedError

    def choose(self, X: Any, Y: sp.csr_matrix) -> None:
        """Choose settings on validation rows; part of training."""

    def save(self, path: Path) -> None:
        raise NotImplementedError

    def load(self, path: Path) -> None:
        raise NotImplementedError

    def topk(self, X: Any) -> np.ndarray:
        """Return the five best labels of each row, on one thread; -1 for none."""
        raise NotImplementedError

    def log_probabilities(self, X: Any, Y: sp.csr_matrix) -> dict[str, np.ndarray] | None:
        """Return log p of each (row, label) of Y and the largest p of each row; None: no probabilities.

        "rows" are the numbers of the rows if not all were taken.
        """
        return None


class Pecos(Peer):
    package = "libpecos"

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        from pecos.xmc import Indexer, LabelEmbeddingFactory
        from pecos.xmc.xlinear.model import XLinearModel

        clock = Clock()
        embeddings = LabelEmbeddingFactory.create(Y, sp.csr_matrix(X), method="pifa", threads=threads)
        chain = Indexer.gen(embeddings, seed=0, threads=threads)
        self.model = XLinearModel.train(X, Y, C=chain, threads=threads)
        self.dense = not sp.issparse(X)
        return clock.read()

    def save(self, path: Path) -> None:
        self.model.save(str(path))

    def load(self, path: Path) -> None:
        from pecos.xmc.xlinear.model import XLinearModel

        kind = {"weight_matrix_type": "CSC"} if self.dense else {}
        self.model = XLinearModel.load(str(path), is_predict_only=True, **kind)

    def topk(self, X: Any) -> np.ndarray:
        found = self.model.predict(X, only_topk=K, threads=1).tocsr()
        labels = np.full((found.shape[0], K), -1)
        for row in range(found.shape[0]):
            cut = slice(found.indptr[row], found.indptr[row + 1])
            best = found.indices[cut][np.argsort(-found.data[cut], kind="stable")]
            labels[row, : len(best)] = best
        return labels


class Omikuji(Peer):
    package = "omikuji"

    def __init__(self, n_trees: int | None = None) -> None:
        self.n_trees = n_trees

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        import omikuji

        text = folder / f"train-{self.n_trees}.txt"
        write_xmc(text, sp.csr_matrix(X), Y)
        parameters = omikuji.Model.default_hyper_param()
        if self.n_trees is not None:
            parameters.n_trees = self.n_trees
        clock = Clock()
        self.model = omikuji.Model.train_on_data(str(text), parameters, n_threads=threads)
        seconds = clock.read()
        text.unlink()
        return seconds

    def save(self, path: Path) -> None:
        self.model.save(str(path))

    def load(self, path: Path) -> None:
        import omikuji

        self.model = omikuji.Model.load(str(path))
        self.model.init_prediction_thread_pool(1)

    def topk(self, X: Any) -> np.ndarray:
        X = sp.csr_matrix(X)
        labels = np.full((X.shape[0], K), -1)
        for row in range(X.shape[0]):
            cut = slice(X.indptr[row], X.indptr[row + 1])
            pairs = list(zip(X.indices[cut].tolist(), X.data[cut].tolist(), strict=True))
            best = [label for label, _ in self.model.predict(pairs, top_k=K)]
            labels[row, : len(best)] = best
        return labels


def write_xmc(path: Path, X: sp.csr_matrix, Y: sp.csr_matrix) -> None:
    """Write XMC repository text: a header ``N D L``, then ``l1,l2 f:v f:v ...``."""
    with path.open("w") as file:
        file.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for row in range(X.shape[0]):
            labels = ",".join(map(str, Y.indices[Y.indptr[row] : Y.indptr[row + 1]]))
            cut = slice(X.indptr[row], X.indptr[row + 1])
            pairs = zip(X.indices[cut].tolist(), X.data[cut].tolist(), strict=True)
            file.write(labels + "".join(f" {f}:{v:.6g}" for f, v in pairs) + "\n")


class NapkinXC(Peer):
    package = "napkinxc"

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        from napkinxc.models import HSM, PLT

        self.single = Y.nnz == Y.shape[0]
        self.place = folder / "napkinxc"
        self.make = lambda n: (HSM if self.single else PLT)(str(self.place), threads=n, seed=0)
        labels: Any = Y.indices.tolist() if self.single else np.split(Y.indices, Y.indptr[1:-1])
        model = self.make(threads)
        clock = Clock()
        model.fit(X, labels if self.single else [part.tolist() for part in labels])
        return clock.read()

    def save(self, path: Path) -> None:
        shutil.move(self.place, path)  # training has written it

    def load(self, path: Path) -> None:
        self.place = path
        self.model = self.make(1)
        self.model.load()

    def topk(self, X: Any) -> np.ndarray:
        labels = np.full((X.shape[0], K), -1)
        for row, best in enumerate(self.model.predict(X, top_k=K)):
            labels[row, : len(best)] = best
        return labels

    def log_probabilities(self, X: Any, Y: sp.csr_matrix) -> dict[str, np.ndarray] | None:
        if not self.single:
            return None
        n_rows = min(X.shape[0], max(500, _MAX_PAIRS // Y.shape[1]))
        rows = np.sort(np.random.default_rng(0).choice(X.shape[0], n_rows, replace=False))
        true, best = np.empty(n_rows), np.empty(n_rows)
        for start in range(0, n_rows, 50):
            few = rows[start : start + 50]
            for i, pairs in enumerate(self.model.predict_proba(X[few])):
                chances = dict(pairs)
                total = sum(chances.values())
                label = int(Y.indices[Y.indptr[few[i]]])
                true[start + i] = chances.get(label, 0.0) / total
                best[start + i] = pairs[0][1] / total
        return {"log_prob": np.log(np.maximum(true, 1e-30)), "best": best, "rows": rows}


class Prefix(Peer):
    """The label whose spelling shares the longest prefix with the text."""

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        names = json.loads((folder / "labels.json").read_text())
        self.texts = json.loads((folder / "texts_test.json").read_text())
        clock = Clock()
        self.best: dict[str, int] = {}
        for label in sorted(range(len(names)), key=lambda i: (len(names[i]), names[i])):
            name = names[label]
            for stop in range(len(name) + 1):
                self.best.setdefault(name[:stop], label)
        return clock.read()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.best))

    def load(self, path: Path) -> None:
        self.best = json.loads(path.read_text())

    def topk(self, X: Any) -> np.ndarray:
        labels = np.full((X.shape[0], K), -1)
        for row, name in enumerate(self.texts[: X.shape[0]]):
            stop = next(n for n in range(len(name), -1, -1) if name[:n] in self.best)
            labels[row, 0] = self.best[name[:stop]]
        return labels


# -- rules and classifiers that score every class


class Scorer(Peer):
    """Scores of all classes, a block of rows at a time."""

    normalised = True  # whether the scores are log-probabilities, up to a constant of the row

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        raise NotImplementedError

    def blocks(self, X: sp.csr_matrix, n_classes: int) -> Any:
        size = max(1, _SCORE_BYTES // (4 * n_classes))
        for start in range(0, X.shape[0], size):
            yield start, self.scores(X[start : start + size])

    def topk(self, X: sp.csr_matrix) -> np.ndarray:
        labels = np.full((X.shape[0], K), -1)
        for start, scores in self.blocks(X, self.n_classes):
            k = min(K, scores.shape[1])
            best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            order = np.lexsort((best, -np.take_along_axis(scores, best, axis=1)), axis=1)
            labels[start : start + len(best), :k] = np.take_along_axis(best, order, axis=1)
        return labels

    def log_probabilities(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> dict[str, np.ndarray] | None:
        if not self.normalised:
            return None
        true, best = np.empty(Y.nnz), np.empty(Y.shape[0])
        for start, scores in self.blocks(X, self.n_classes):
            ptr = Y.indptr[start : start + len(scores) + 1]
            rows = np.repeat(np.arange(len(scores)), np.diff(ptr))
            total = log_sum_exp(scores)
            cut = slice(ptr[0], ptr[-1])
            true[cut] = scores[rows, Y.indices[cut]] - total[rows]
            best[start : start + len(scores)] = np.exp(scores.max(axis=1) - total)
        return {"log_prob": true, "best": best}


def log_sum_exp(scores: np.ndarray) -> np.ndarray:
    top = scores.max(axis=1)
    return top + np.log(np.exp(scores - top[:, None]).sum(axis=1, dtype=np.float64))


def likelihood(scores: np.ndarray, Y: sp.csr_matrix) -> float:
    rows = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    return float((scores[rows, Y.indices] - log_sum_exp(scores)[rows]).mean())


class ClassSums(Scorer):
    """What both rules of class sums share: weights (features, classes) in `weights`, and numbers."""

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        clock = Clock()
        self.n_classes = Y.shape[1]
        self.sums = (Y.T.tocsr() @ X).tocsr()
        self.counts = np.maximum(np.asarray(Y.sum(axis=0)).ravel(), 1)
        self.mass = np.asarray(self.sums.sum(axis=1)).ravel()
        self.shares = np.asarray(X.sum(axis=0)).ravel()
        self.shares = np.maximum(self.shares / self.shares.sum(), 1e-12).astype(np.float32)
        self.prepare()
        return clock.read()

    def prepare(self) -> None:
        raise NotImplementedError

    def save(self, path: Path) -> None:
        path.mkdir()
        sp.save_npz(path / "weights.npz", self.weights, compressed=False)
        np.savez(path / "numbers.npz", biases=self.biases, length=self.length, scale=self.scale)

    def load(self, path: Path) -> None:
        self.weights = sp.load_npz(path / "weights.npz")
        numbers = np.load(path / "numbers.npz")
        self.biases, self.length, self.scale = numbers["biases"], numbers["length"], float(numbers["scale"])

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        product = (X @ self.weights).toarray()
        lengths = np.asarray(X.sum(axis=1))
        product -= lengths * self.length
        product += self.biases
        product *= self.scale
        return product


class NaiveBayes(ClassSums):
    def prepare(self) -> None:
        self.set(300.0, 0.5, 0.7)

    def set(self, a: float, prior: float, scale: float) -> None:
        data = np.log1p(self.sums.data / (np.float32(a) * self.shares[self.sums.indices]))
        self.weights = sp.csr_matrix((data, self.sums.indices, self.sums.indptr), self.sums.shape).T.tocsr()
        self.length = np.log1p(self.mass / a).astype(np.float32)
        self.biases = (prior * np.log(self.counts)).astype(np.float32)
        self.scale = np.float32(scale)
        self.settings = {"a": a, "prior": prior, "scale": scale}

    def choose(self, X: Any, Y: sp.csr_matrix) -> None:
        found = []
        for a in (3.0, 30.0, 300.0):
            self.set(a, 0.0, 1.0)
            scores, log_counts = self.scores(X), np.log(self.counts).astype(np.float32)
            for prior, scale in itertools.product((0.0, 0.5, 1.0), (0.3, 0.5, 0.7, 1.0)):
                some = np.float32(scale) * (scores + np.float32(prior) * log_counts)
                found.append((likelihood(some, Y), a, prior, scale))
        self.set(*max(found)[1:])


class Cosine(ClassSums):
    def prepare(self) -> None:
        norms = np.sqrt(np.asarray(self.sums.multiply(self.sums).sum(axis=1)).ravel())
        scaled = sp.diags(1 / np.maximum(norms, 1e-12).astype(np.float32)) @ self.sums
        self.weights = scaled.T.tocsr().astype(np.float32)
        self.biases = self.length = np.zeros(self.n_classes, np.float32)
        self.scale = np.float32(20)
        self.settings = {"scale": 20.0}

    def choose(self, X: Any, Y: sp.csr_matrix) -> None:
        self.scale = np.float32(1)
        scores = self.scores(X)
        scale = max((5.0, 10.0, 20.0, 40.0), key=lambda s: likelihood(np.float32(s) * scores, Y))
        self.scale, self.settings = np.float32(scale), {"scale": scale}


class Neighbours(Scorer):
    N_NEIGHBOURS, SCALE, UNIFORM = 50, 20.0, 0.1

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        clock = Clock()
        self.columns, self.Y, self.n_classes = X.T.tocsr(), Y, Y.shape[1]
        counts = np.maximum(np.asarray(Y.sum(axis=0)).ravel(), 1)
        self.shares = self.UNIFORM * counts / counts.sum()
        return clock.read()

    def save(self, path: Path) -> None:
        path.mkdir()
        sp.save_npz(path / "columns.npz", self.columns, compressed=False)
        sp.save_npz(path / "Y.npz", self.Y, compressed=False)

    def load(self, path: Path) -> None:
        self.columns, self.Y = sp.load_npz(path / "columns.npz"), sp.load_npz(path / "Y.npz")

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        out = np.empty((X.shape[0], self.n_classes), np.float32)
        for row in range(X.shape[0]):
            found = X[row] @ self.columns
            k = min(self.N_NEIGHBOURS, found.nnz)
            near = np.argpartition(-found.data, k - 1)[:k] if k else np.empty(0, np.int64)
            weights = np.exp(self.SCALE * (found.data[near].astype(np.float64) - 1))
            votes = self.Y[found.indices[near]].T @ weights if k else np.zeros(self.n_classes)
            total = votes.sum()
            out[row] = np.log((1 - self.UNIFORM) * votes / total + self.shares if total else self.shares)
        return out


class ComplementNB(Scorer):
    package = "scikit-learn"

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        from sklearn.naive_bayes import ComplementNB as Model

        check_dense(X, Y)
        clock = Clock()
        self.n_classes = Y.shape[1]
        if Y.nnz != Y.shape[0]:  # several labels per row: one row per pair
            X = X[np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))]
        self.model = Model().fit(X, Y.indices)
        return clock.read()

    def save(self, path: Path) -> None:
        save_pickle(path, self.model)

    def load(self, path: Path) -> None:
        self.model = load_pickle(path)

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        scores = np.full((X.shape[0], self.n_classes), -1e9)
        scores[:, self.model.classes_] = self.model.predict_joint_log_proba(X)
        return scores


class LinearSVC(Scorer):
    package = "scikit-learn"
    normalised = False

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        from joblib import parallel_config
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.svm import LinearSVC as Model

        self.n_classes, self.folder = Y.shape[1], folder
        self.parts = 8 * X.shape[1] * Y.shape[1] > _MAX_DENSE_BYTES
        clock = Clock()
        if self.parts:
            self.model = self.train_in_parts(Model, X, Y, threads, load_matrix(folder, "X_test"))
            self.settings = {"class by class": True}
        elif Y.nnz == Y.shape[0]:
            self.model = Model().fit(X, Y.indices)
        else:
            with parallel_config(backend="threading"):
                self.model = OneVsRestClassifier(Model(), n_jobs=threads).fit(X, Y.astype(np.int32))
        return clock.read()

    def train_in_parts(self, Model: Any, X: Any, Y: sp.csr_matrix, threads: int, X_test: Any) -> np.ndarray:
        """Return the scores of the test rows; the weights of a class are dropped when it is done."""
        from joblib import Parallel, delayed

        columns = Y.tocsc()

        def one(label: int) -> np.ndarray:
            y = np.zeros(Y.shape[0], np.int8)
            y[columns.indices[columns.indptr[label] : columns.indptr[label + 1]]] = 1
            return Model().fit(X, y).decision_function(X_test).astype(np.float32)

        jobs = Parallel(n_jobs=threads, prefer="threads")(delayed(one)(i) for i in range(Y.shape[1]))
        return np.stack(list(jobs), axis=1)

    def save(self, path: Path) -> None:
        if not self.parts:
            save_pickle(path, self.model)

    def load(self, path: Path) -> None:
        if not self.parts:
            self.model = load_pickle(path)

    def topk(self, X: sp.csr_matrix) -> np.ndarray:
        if self.parts:
            order = np.argsort(-self.model, axis=1, kind="stable")[: X.shape[0], :K]
            return np.ascontiguousarray(order)
        return super().topk(X)

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        return np.asarray(self.model.decision_function(X))


class Softmax(Scorer):
    """Full softmax on the mean of the features' vectors: what fastText has, with a loss over all classes."""

    package = "torch"
    n_hidden, n_batch = 256, 256
    rates = (0.03, 0.1, 0.3, 1.0)
    search, limit = 20.0, 1200.0  # seconds of the processor
    check_every = 40.0

    def train(self, X: Any, Y: sp.csr_matrix, threads: int, folder: Path) -> tuple[float, float]:
        import torch

        torch.set_num_threads(threads)
        self.n_classes, y = Y.shape[1], torch.from_numpy(Y.indices.astype(np.int64))
        rows, labels = choice_rows(folder)
        found = {}
        for rate in self.rates:
            self.start(X.shape[1], rate)
            self.run(X, y, Clock(), self.search)
            found[rate] = likelihood(self.scores(rows), labels)
        rate = max(found, key=found.get)  # type: ignore[arg-type]
        self.start(X.shape[1], rate)
        best, checking, clock = -np.inf, np.zeros(2), Clock()
        while (spent := clock.read()[1] - checking[1]) < self.limit:
            self.run(X, y, Clock(), min(self.check_every, self.limit - spent))
            check = Clock()
            reached = likelihood(self.scores(rows), labels)
            checking += check.read()
            if reached < best:
                break
            best = reached
        self.settings = {"rate": rate, "rows seen": self.seen}
        wall, processor = clock.read()
        return wall - checking[0], processor - checking[1]

    def start(self, n_features: int, rate: float) -> None:
        import torch

        torch.manual_seed(0)
        self.bag = torch.nn.EmbeddingBag(n_features, self.n_hidden, mode="sum", sparse=True)
        self.layer = torch.nn.Linear(self.n_hidden, self.n_classes)
        torch.nn.init.zeros_(self.layer.weight)
        parameters = [*self.bag.parameters(), *self.layer.parameters()]
        self.optimizer = torch.optim.Adagrad(parameters, lr=rate)
        self.seen = 0

    def run(self, X: sp.csr_matrix, y: Any, clock: Clock, seconds: float) -> None:
        import torch

        random = np.random.default_rng(self.seen)
        while True:
            order = random.permutation(X.shape[0])
            for first in range(0, len(order), self.n_batch):
                if clock.read()[1] >= seconds:
                    return
                part = order[first : first + self.n_batch]
                loss = torch.nn.functional.cross_entropy(self.layer(self.hidden(X[part])), y[part])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.seen += len(part)

    def hidden(self, X: sp.csr_matrix) -> Any:
        import torch

        lengths = np.repeat(
            np.maximum(np.sqrt(np.asarray(X.multiply(X).sum(1)).ravel()), 1e-9), np.diff(X.indptr)
        )
        return self.bag(
            torch.from_numpy(X.indices.astype(np.int64)),
            torch.from_numpy(X.indptr[:-1].astype(np.int64)),
            per_sample_weights=torch.from_numpy((X.data / lengths).astype(np.float32)),
        )

    def scores(self, X: sp.csr_matrix) -> np.ndarray:
        import torch

        with torch.no_grad():
            return self.layer(self.hidden(X)).numpy()

    def save(self, path: Path) -> None:
        import torch

        torch.save([self.bag.state_dict(), self.layer.state_dict()], path)

    def load(self, path: Path) -> None:
        import torch

        bag, layer = torch.load(path)
        self.bag.load_state_dict(bag)
        self.layer.load_state_dict(layer)
        torch.set_num_threads(1)


class NotRunError(RuntimeError):
    """A method does not go with this set; the message says why."""


def check_dense(X: Any, Y: sp.csr_matrix) -> None:
    size = 8 * X.shape[1] * Y.shape[1]
    if size > 2 * _MAX_DENSE_BYTES:
        raise NotRunError(f"dense weights of {size / 1e9:.0f} GB")


def save_pickle(path: Path, model: Any) -> None:
    import pickle

    with path.open("wb") as file:
        pickle.dump(model, file, protocol=5)


def load_pickle(path: Path) -> Any:
    import pickle

    with path.open("rb") as file:
        return pickle.load(file)


PEERS: dict[str, Any] = {
    "pecos": Pecos,
    "omikuji": Omikuji,
    # One tree takes an hour on dense features: the solver of each node goes through all 512 of them.
    "omikuji-1": lambda: Omikuji(1),
    "napkinxc": NapkinXC,
    "linear-svc": LinearSVC,
    "softmax": Softmax,
    "complement-nb": ComplementNB,
    "naive-bayes": NaiveBayes,
    "cosine": Cosine,
    "neighbours": Neighbours,
    "prefix": Prefix,
}


def run(name: str, folder: Path, threads: int = 1) -> None:
    """Train and ask one of `PEERS` and write what came of it."""
    peer = PEERS[name]()
    X, Y = load_matrix(folder, "X_train"), load_matrix(folder, "Y_train")
    result: dict[str, Any] = {"version": version(peer.package) if peer.package else ""}
    result["data_bytes"] = peak_bytes()
    train = np.array(peer.train(X, Y, threads, folder))
    if (folder / "Y_valid.npz").exists():
        few, clock = choice_rows(folder), Clock()
        peer.choose(*few)
        train += clock.read()
    result |= {"train": train.tolist(), "peak_bytes": peak_bytes(), "settings": getattr(peer, "settings", {})}
    del X, Y
    work = Path(tempfile.mkdtemp(dir=folder))
    peer.save(work / "model")
    saved = work / "model"
    if saved.exists():
        result["model_bytes"] = folder_bytes(saved) if saved.is_dir() else saved.stat().st_size
    clock = Clock()
    peer.load(saved)
    result["load"] = clock.read()
    X_test, clock = load_matrix(folder, "X_test"), Clock()
    labels = peer.topk(X_test)
    result["predict"] = clock.read()
    if saved.exists():
        result["query_ms"] = query_ms(peer, X_test)
    arrays = {"labels": labels}
    if (folder / "Y_test.npz").exists():
        arrays |= peer.log_probabilities(X_test, load_matrix(folder, "Y_test")) or {}
    shutil.rmtree(work)
    np.savez(folder / f"{name}.npz", **arrays)
    (folder / f"{name}.json").write_text(json.dumps(result))


def choice_rows(folder: Path) -> tuple[Any, sp.csr_matrix]:
    X, Y = load_matrix(folder, "X_valid"), load_matrix(folder, "Y_valid")
    rows = np.random.default_rng(0).permutation(X.shape[0])[:_CHOICE_ROWS]
    return X[rows], Y[rows]


def query_ms(peer: Peer, X: Any) -> float:
    """Return the milliseconds of one row asked alone: the median of some."""
    seconds = []
    for row in range(min(_QUERIES, X.shape[0])):
        one, clock = X[row : row + 1], Clock()
        peer.topk(one)
        seconds.append(clock.read()[0])
    return 1e3 * float(np.median(seconds))


def main(name: str, folder: Path, threads: int = 1) -> None:
    try:
        run(name, folder, threads)
    except (ImportError, NotRunError) as error:
        sys.exit(f"left out: {error}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:4]))
