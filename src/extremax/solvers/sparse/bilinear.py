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
from extremax.kernels.bilinear import Adam, Gradient, Similarity
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_dual import Candidates, list_pairs
from extremax.kernels.sparse_scores import Postings
from extremax.runtime.products import count_indices
from extremax.runtime.threads import run, split
from extremax.scores.sparse import DensePart, csr_rows, restore_dense, select_columns, unit_rows
from extremax.solvers.sparse.plausible import Job, TrainingRows
from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Float32, Int64

_LINES_PER_TASK = 256


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
    X = unit_rows(X)
    problem = _Problem.of(X, training.data, n_classes)
    size, batch, n_epochs = config.bilinear_size, config.bilinear_batch, config.bilinear_epochs
    n = len(candidates.rows)
    work = len(problem.sums.data) * size * n_epochs * max(1.0, n / batch)
    if work > config.bilinear_work:  # long rows: fewer coordinates and fewer, larger steps
        size, batch, n_epochs = size // 2, 2 * batch, max(1, 2 * n_epochs // 3)
    generator = np.random.default_rng((job.seed, 24))
    P = np.zeros((len(columns), size + 1), np.float32)
    P[:, :size] = config.bilinear_scale * generator.standard_normal((len(columns), size), dtype=np.float32)
    Q = P.copy()
    fitter = _Fitter(problem, candidates, P, Q, job)
    for epoch in range(n_epochs):
        rate = config.bilinear_rate * min(1.0, 2.0 * (1.0 - epoch / n_epochs))
        order = generator.permutation(n)
        for first, last in split(n, batch):
            job.check((epoch + first / n) / n_epochs)
            drawn = generator.integers(0, n_classes, config.bilinear_drawn)
            fitter.step(order[first:last].astype(np.int64), drawn, rate)
    job.check(1.0)
    V = fitter.class_coordinates() * problem.factor[:, None]
    projection = np.ascontiguousarray(P[:, :size])
    if keeps_length:
        projection /= np.float32(max(length, 1e-9))
    factors = np.ascontiguousarray(V[:, :size])
    part = DensePart(factors, columns.astype(np.int32), projection, unit_rows=not keeps_length)
    return Bilinear(part, V[:, size].copy(), Q)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Rows on the chosen columns, and the sums of the classes by class and by column."""

    X: Any
    sums: CSRRows
    by_column: Postings
    factor: Float32
    own_factor: Float32

    @classmethod
    def of(cls, X: Any, data: Examples, n_classes: int) -> _Problem:
        ones = np.ones(data.n_pairs, np.float32)
        pairs = sparse.csr_matrix((ones, (data.y, data.rows)), shape=(n_classes, data.n_rows))
        sums = (pairs @ X).tocsr()
        sums.sort_indices()
        columns = sums.tocsc()
        counts = data.class_counts(n_classes)
        return cls(
            X, csr_rows(sums),
            Postings(columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data),
            (1.0 / np.maximum(counts, 1)).astype(np.float32),
            (1.0 / np.maximum(counts - 1, 1)).astype(np.float32),
        )  # fmt: skip


class _Fitter:
    """Matrices P and Q, and the steps that change them."""

    def __init__(self, problem: _Problem, candidates: Candidates, P: Float32, Q: Float32, job: Job) -> None:
        self.problem, self.candidates, self.P, self.Q, self.job = problem, candidates, P, Q, job
        self.moments = [np.zeros_like(P) for _ in range(4)]
        n_classes = len(problem.factor)
        self.classes = np.arange(n_classes, dtype=np.int64)
        self.sums = np.empty((n_classes, P.shape[1]), np.float32)
        self.by_class = np.empty_like(self.sums)
        self.n_steps = 0

    def class_coordinates(self) -> Float32:
        """Return Q'S_y of all classes."""
        self._multiply(self.problem.sums, self.classes, self.Q, self.sums)
        return self.sums

    def _run(self, kernel: Any, arguments: tuple[Any, ...], n_lines: int) -> None:
        tasks = split(n_lines, _LINES_PER_TASK)
        run(lambda i: kernel(*arguments, *tasks[i]), len(tasks), self.job.n_threads)

    def _multiply(self, rows: CSRRows, chosen: Int64, matrix: Float32, out: Float32) -> None:
        self._run(kernels.multiply_rows, (rows, chosen, matrix, out), len(out))

    def step(self, pairs: Int64, drawn: Int64, rate: float) -> None:
        """Take one step on a minibatch of pairs."""
        candidates, problem, n = self.candidates, self.problem, len(pairs)
        size, n_slots = self.P.shape[1], candidates.classes.shape[1]
        batch = problem.X[candidates.rows[pairs]]
        read, every = self._with_gaps(batch), np.arange(n, dtype=np.int64)
        z, own, by_row = (np.empty((n, size), np.float32) for _ in range(3))
        self._multiply(csr_rows(read), every, self.P, z)
        z[:, -1] = 1.0
        self._multiply(csr_rows(batch), every, self.Q, own)
        similarity = Similarity(z, own, self.class_coordinates(), problem.factor, problem.own_factor)
        gradient = Gradient(
            by_row, np.empty((n, n_slots), np.float32), np.empty((n, len(drawn)), np.float32), np.empty(n)
        )
        self._run(kernels.differentiate, (pairs, candidates, similarity, drawn, gradient), n)
        chosen = np.ascontiguousarray(candidates.classes[pairs])
        starts = np.zeros(len(problem.factor) + 1, np.int64)
        slots = np.empty(int((chosen >= 0).sum()), np.int64)
        list_pairs(chosen, starts, slots)
        self._run(
            kernels.gather_classes, (starts, slots, n_slots, gradient.slots, z, self.by_class),
            len(problem.factor),
        )  # fmt: skip
        np.add.at(self.by_class, drawn, gradient.drawn.T @ z)
        by_column, read_column = _by_column(batch), _by_column(read)
        self.n_steps += 1
        nothing = by_column._replace(offsets=np.zeros_like(by_column.offsets))
        own_change = -gradient.slots[:, :1] * z
        self._adam(nothing, read_column, by_row, self.P, rate, size - 1)
        self._adam(problem.by_column, by_column, own_change, self.Q, rate, -1)

    def _with_gaps(self, batch: Any) -> Any:
        """Return rows from which words are missing at random, as questions are shorter than descriptions."""
        config = self.job.config
        generator = np.random.default_rng((self.job.seed, 25, self.n_steps))
        n_rows = batch.shape[0]
        share = np.where(generator.random(n_rows) < config.bilinear_gap_rows, config.bilinear_gaps, 0.0)
        row = np.repeat(np.arange(n_rows), np.diff(batch.indptr))
        kept = generator.random(len(batch.data)) >= share[row]
        read = sparse.csr_matrix(batch.shape, dtype=np.float32)
        read.data, read.indices = batch.data[kept], batch.indices[kept]
        read.indptr = np.concatenate([[0], np.cumsum(kept)])[batch.indptr]
        return unit_rows(read)

    def _adam(
        self, postings: Postings, columns: Postings, by_row: Float32, matrix: Float32, rate: float, fixed: int
    ) -> None:
        config, first = self.job.config, 0 if matrix is self.P else 2
        adam = Adam(
            self.moments[first], self.moments[first + 1], rate, config.bilinear_penalty,
            1.0 / (1.0 - 0.9**self.n_steps), 1.0 / (1.0 - 0.99**self.n_steps),
        )  # fmt: skip
        arguments = (postings, self.by_class, columns, by_row, 1.0 / len(by_row), fixed, adam, matrix)
        self._run(kernels.step_columns, arguments, len(matrix))


def _by_column(batch: Any) -> Postings:
    columns = batch.tocsc()
    return Postings(columns.indptr.astype(np.int64), columns.indices.astype(np.int32), columns.data)
