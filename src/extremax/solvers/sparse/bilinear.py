"""The bilinear part of sparse weights: what one class teaches about all others.

A weight of a class on a word is learnt from rows of this class alone.  The bilinear part is a similarity
``(P'x).(Q'm_y)`` of a row and the mean row m_y of a class, with P and Q shared by all classes: that "left"
and "right" stand in the same place is learnt once.  It is trained on top of the start, over the same hard
negatives, with every row left out of the mean of its own class.  In prediction it is the dense part of the
weights: coordinates P'x of the row and Q'm_y of the class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels import bilinear as kernels
from extremax.kernels.bilinear import Adam
from extremax.kernels.sparse_dual import Candidates
from extremax.runtime.products import count_indices, one_blas_thread, sparse_times_dense
from extremax.runtime.threads import run, split
from extremax.scores.sparse import DensePart, restore_dense, running_counts, select_columns, unit_rows
from extremax.solvers.sparse.plausible import Job, TrainingRows
from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Float32, Int64

_ROWS_PER_TASK = 512
_LINES_PER_TASK = 2048


@dataclass(frozen=True, eq=False)
class Bilinear:
    """A trained similarity: the dense part of the scores, and a bias of each class.

    `similarity` is Q, from the mean row of a class to its coordinates and bias, where it is known.
    """

    part: DensePart
    biases: Float32
    similarity: Float32 | None = None

    def state(self) -> State:
        """Return what a model folder stores."""
        part = self.part
        arrays = {"factors": part.factors, "columns": part.columns, "projection": part.projection}
        if self.similarity is not None:
            arrays["similarity"] = self.similarity
        return State(part.header, {**arrays, "biases": self.biases})

    @classmethod
    def from_state(cls, state: State) -> Bilinear:
        """Build what `state` described."""
        arrays = state.arrays
        biases = checks.get_array(arrays, "biases", "f4", (None,))
        part, similarity = restore_dense(state, 2**31), None
        if "similarity" in arrays:
            shape = len(part.columns), part.n_projected + 1
            similarity = checks.get_array(arrays, "similarity", "f4", shape)
        return cls(part, biases, similarity)

    def take(self, index: Int64) -> Bilinear:
        """Return what belongs to some classes, in a given order."""
        return replace(self, part=self.part.take(index), biases=self.biases[index])

    def plus(self, factors: Float32, biases: Float32) -> Bilinear:
        """Return the part with further classes behind the others."""
        return replace(self, part=self.part.plus(factors), biases=np.concatenate([self.biases, biases]))

    def check(self, n_classes: int, n_sparse: int, n_dense: int) -> None:
        """Raise ModelFileError for a part that reads columns, or scores classes, that there are not."""
        checks.check_range(self.part.columns, "columns", 0, n_sparse)
        if len(self.biases) != n_classes or self.part.n_dense not in (0, n_dense):
            checks.reject(f"a dense part of the training state is that of {len(self.biases):,} classes")


def choose_columns(training: TrainingRows, first_word: int, job: Job) -> Int64:
    """Return the columns that the similarity reads: words of enough rows, the most frequent if too many.

    Columns before `first_word` are parts of words.
    """
    config, n_columns = job.config, len(training.mean)
    having = count_indices(training.rows.indices, n_columns)
    known = having >= config.bilinear_min_rows
    known[:first_word] = False
    chosen = np.flatnonzero(known)
    most = config.bilinear_max_columns
    if len(chosen) > most:
        chosen = np.sort(chosen[np.argsort(-having[chosen], kind="stable")[:most]])
    return chosen


def fit_bilinear(
    training: TrainingRows,
    candidates: Candidates,
    columns: Int64,
    n_classes: int,
    job: Job,
    *,
    keeps_length: bool = False,
) -> Bilinear:
    """Train the similarity on pairs with hard negatives; offsets of the candidates stay fixed.

    Rows have unit length in the chosen columns. With `keeps_length`, for texts, that holds in training alone:
    in prediction a row keeps its length, in units of the root mean square of the training rows, so that a
    text of which the similarity knows few words hardly says anything by it.
    """
    config = job.config
    X = select_columns(training.rows, columns, len(training.mean))
    length = np.sqrt(np.square(X.data, dtype=np.float64).sum() / max(int((np.diff(X.indptr) > 0).sum()), 1))
    size, n = config.bilinear_size, len(candidates.rows)
    fitter = _Fitter(unit_rows(X), training.data, candidates, n_classes, job)
    n_visits = min(config.bilinear_epochs * n, max(config.bilinear_visits, config.bilinear_min_epochs * n))
    generator = np.random.default_rng((job.seed, 24))
    visits = np.concatenate([generator.permutation(n) for _ in range(-(-n_visits // n))])
    with one_blas_thread():
        for first, last in split(n_visits, max(config.bilinear_batch, -(-n_visits // config.bilinear_steps))):
            job.check(first / n_visits)
            rate = config.bilinear_rate * (1.0 - first / n_visits)
            fitter.step(visits[first:last], rate)
    job.check(1.0)
    V = fitter.class_coordinates()
    projection = np.ascontiguousarray(fitter.P[:, :size])
    if keeps_length:
        projection /= np.float32(max(length, 1e-9))
    factors = np.ascontiguousarray(V[:, :size])
    part = DensePart(factors, columns.astype(np.int32), projection, unit_rows=not keeps_length)
    return Bilinear(part, V[:, size].copy(), fitter.Q)


class _Fitter:
    """Matrices P and Q, and the steps that change them.

    The bias of a class is the last of its coordinates; that of a row is one.
    """

    def __init__(self, X: Any, data: Examples, candidates: Candidates, n_classes: int, job: Job) -> None:
        self.X, self.candidates, self.job = X, candidates, job
        counts = data.class_counts(n_classes)
        weight = (1.0 / np.maximum(counts, 1)).astype(np.float32)[data.y]
        pairs = sparse.csr_matrix((weight, (data.y, data.rows)), shape=(n_classes, data.n_rows))
        means = (pairs @ X).tocsr()
        # The mean of a large class has many small entries, which cost much and change little.
        self.means = means.multiply(abs(means) > job.config.bilinear_prune).tocsr()
        self.means_by_column = self.means.T.tocsr()
        # Without a row of its own, the mean of a class is `times` the mean of all, less `share` of the row.
        self.share = (1.0 / np.maximum(counts - 1, 1)).astype(np.float32)
        self.times = np.maximum(counts, 1).astype(np.float32) * self.share
        self.generator = np.random.default_rng((job.seed, 25))
        size = job.config.bilinear_size
        self.P = np.zeros((X.shape[1], size + 1), np.float32)
        self.P[:, :size] = self.generator.standard_normal((X.shape[1], size), dtype=np.float32)
        self.P *= np.float32(job.config.bilinear_scale)
        self.Q = self.P.copy()
        self.moments = [np.zeros_like(self.P) for _ in range(4)]
        self.n_steps = 0

    def class_coordinates(self) -> Float32:
        """Return Q'm_y of all classes."""
        return self._multiply(self.means, self.Q)

    def _multiply(self, A: Any, B: Float32) -> Float32:
        return sparse_times_dense(A, B, n_threads=self.job.n_threads)

    def step(self, pairs: Int64, rate: float) -> None:
        """Take one step on a minibatch of pairs."""
        n_classes = len(self.share)
        n_drawn = min(self.job.config.bilinear_drawn, n_classes)
        drawn = self.generator.choice(n_classes, n_drawn, replace=False, shuffle=False)
        candidates = Candidates(*(values[pairs] for values in self.candidates))
        batch = self.X[candidates.rows]
        by_P, by_Q = self.gradients(candidates, batch, self._with_gaps(batch), drawn)
        self.n_steps += 1
        self._adam(self.P, by_P, rate, self.moments[:2])
        self._adam(self.Q, by_Q, rate, self.moments[2:])

    def gradients(
        self, candidates: Candidates, batch: Any, read: Any, drawn: Int64
    ) -> tuple[Float32, Float32]:
        """Return the gradients of the mean log-likelihood of some pairs by P and Q.

        `batch` are their rows, and `read` what is left of these to be classified.
        """
        z, own, V = self._multiply(read, self.P), self._multiply(batch, self.Q), self.class_coordinates()
        z[:, -1] = 1.0  # times the bias of the class
        U = V[drawn]
        by_score, by_drawn = self._differentiate(candidates, z, own, V, U)
        label = candidates.classes[:, :1]
        by_own = -self.share[label] * by_score[:, :1]
        by_score[:, :1] *= self.times[label]
        classes, edges = np.maximum(candidates.classes, 0), np.arange(len(z) + 1) * by_score.shape[1]
        chosen = sparse.csr_matrix((by_score.ravel(), classes.ravel(), edges), shape=(len(z), len(V)))
        by_row = self._multiply(chosen, V) + by_drawn @ U + by_own * own
        by_row[:, -1] = 0.0
        by_class = self._multiply(chosen.T.tocsr(), z)
        by_class[drawn] += by_drawn.T @ z
        by_Q = self._multiply(self.means_by_column, by_class) + self._multiply(batch.T.tocsr(), by_own * z)
        return self._multiply(read.T.tocsr(), by_row), by_Q

    def _differentiate(
        self, candidates: Candidates, z: Float32, own: Float32, V: Float32, U: Float32
    ) -> tuple[Float32, Float32]:
        """Return the gradient of the mean log-likelihood by scores of the candidates and of drawn classes.

        The mass of all classes that are not candidates is taken to change as that of the drawn ones does.
        """
        n_slots = candidates.classes.shape[1]
        scores = np.empty((len(z), n_slots + len(U)), np.float32)
        label = candidates.classes[:, 0]
        tasks = split(len(z), _ROWS_PER_TASK)

        def work(i: int) -> None:
            part = slice(*tasks[i])
            s, classes = scores[part], candidates.classes[part]
            kernels.score_candidates(z[part], V, classes, s)
            s[:, 0] *= self.times[label[part]]
            s[:, 0] -= self.share[label[part]] * np.einsum("ij,ij->i", z[part], own[part])
            s[:, :n_slots] += candidates.offsets[part]
            s[:, n_slots:] = z[part] @ U.T
            s[:, n_slots:] += (candidates.log_rest[part] - np.float32(np.log(len(U))))[:, None]
            s -= s.max(axis=1, keepdims=True)
            np.exp(s, out=s)
            weight = candidates.weights[part] / np.float32(len(z))
            s *= (-weight / s.sum(axis=1))[:, None]
            s[:, 0] += weight

        run(work, len(tasks), self.job.n_threads)
        return np.ascontiguousarray(scores[:, :n_slots]), scores[:, n_slots:]

    def _with_gaps(self, batch: Any) -> Any:
        """Return rows from which words are missing at random, as questions are shorter than descriptions."""
        config, n_rows = self.job.config, batch.shape[0]
        gaps = np.where(self.generator.random(n_rows) < config.bilinear_gap_rows, config.bilinear_gaps, 0.0)
        kept = self.generator.random(batch.nnz, np.float32) >= np.repeat(gaps, np.diff(batch.indptr))
        edges = running_counts(kept)[batch.indptr]
        return unit_rows(sparse.csr_matrix((batch.data[kept], batch.indices[kept], edges), shape=batch.shape))

    def _adam(self, matrix: Float32, gradient: Float32, rate: float, moments: list[Float32]) -> None:
        rate /= 1.0 - 0.9**self.n_steps
        adam = Adam(rate, self.job.config.bilinear_penalty, 1.0 / (1.0 - 0.99**self.n_steps))
        tasks = split(len(matrix), _LINES_PER_TASK)

        def work(i: int) -> None:
            lines = slice(*tasks[i])
            values, slopes, mean, square = (a[lines].ravel() for a in (matrix, gradient, *moments))
            kernels.step_adam(values, slopes, mean, square, adam)

        run(work, len(tasks), self.job.n_threads)
