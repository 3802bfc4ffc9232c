"""What is trained on top of the generative start: a correction by hard negatives, and one-vs-rest SVMs.

The solvers stand in `extremax.kernels.sparse_dual`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels import sparse_dual, sparse_start
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_dual import Candidates, DualOptions, DualState, Listed, Local, Support
from extremax.kernels.sparse_scores import Frequent, Postings
from extremax.kernels.sparse_start import Numbers, Proposals, Scores, Sums
from extremax.runtime.products import count_indices, one_blas_thread, square_sums
from extremax.runtime.scratch import Scratch
from extremax.runtime.threads import run, split
from extremax.scores.base import Buffers
from extremax.scores.sparse import SparseWeights, transpose_structure
from extremax.solvers.sparse.start import ClassSums, Start
from extremax.tuned import SparseConfig
from extremax.types import Bool, Float32, Int64

_ROWS_PER_TASK = 256
_CLASSES_PER_TASK = 64
_LINES_AT_ONCE = 1 << 14  # pairs whose candidates are copied at a time
_SUBSPACE_STEPS, _MORE_DIRECTIONS = 4, 4  # of the factors that stand for frequent columns
_TASKS_BETWEEN_CHECKS = 64
Check = Callable[[float], None]  # told of the fraction done; raises to interrupt


class Job(NamedTuple):
    """How to work: tuned numbers, seed, threads, and whom to tell of progress."""

    config: SparseConfig
    seed: int
    n_threads: int
    check: Check = lambda fraction: None


def run_checked(task: Callable[[int], object], n_tasks: int, job: Job) -> None:
    """Run tasks, with a look at interrupts and progress now and then."""
    for first, last in split(n_tasks, _TASKS_BETWEEN_CHECKS * job.n_threads):
        job.check(first / max(n_tasks, 1))
        run(lambda i, first=first: task(first + i), last - first, job.n_threads)  # type: ignore[misc]
    job.check(1.0)


class TrainingRows(NamedTuple):
    """Pairs, their rows as the kernels take them, and the mean of each feature where it is not zero."""

    data: Examples
    rows: CSRRows
    mean: Float32


class ProposalSource(NamedTuple):
    """The start and the class sums, from which negatives are proposed."""

    sums: Sums
    numbers: Numbers
    start: Start


def feature_mean(rows: CSRRows, n_features: int, used: Bool | None = None) -> Float32:
    """Return the mean size of each feature over the rows that have it, of those that are `used`."""
    indices, sizes = rows.indices, np.abs(rows.data)
    if used is not None:
        kept = np.repeat(used, np.diff(rows.indptr))
        indices, sizes = indices[kept], sizes[kept]
    total = np.bincount(indices, weights=sizes, minlength=n_features)
    count = np.bincount(indices, minlength=n_features)
    return (total / np.maximum(count, 1)).astype(np.float32)


def choose_pairs(training: TrainingRows, source: ProposalSource, postings: Postings, job: Job) -> Int64:
    """Return the pairs to train the correction on: those whose class has other rows, sampled if too many."""
    data, config = training.data, job.config
    counts = np.bincount(data.y, minlength=len(source.sums.counts))
    known = counts[data.y] >= 2
    lengths = np.diff(postings.offsets)
    having = count_indices(training.rows.indices, len(lengths))
    per_row = float((having * lengths).sum()) / max(data.n_rows, 1) + 0.5 * len(counts)
    limit = int(config.max_proposal_work / max(per_row, 1.0))
    chosen = np.flatnonzero(known)
    rows = np.unique(data.rows[chosen])
    if len(rows) > limit:
        kept = np.zeros(data.n_rows, bool)
        kept[np.random.default_rng((job.seed, 22)).permutation(rows)[:limit]] = True
        chosen = chosen[kept[data.rows[chosen]]]
    return chosen


def propose(
    training: TrainingRows,
    pairs: Int64,
    source: ProposalSource,
    postings: Postings,
    n_candidates: int,
    job: Job,
) -> Candidates:
    """Find hard negatives of pairs by the start, with each row left out of its own classes.

    `postings` are the weights of the start, small ones perhaps left out.
    """
    data, rows = training.data, training.rows
    row_of = data.rows[pairs]
    used, first = np.unique(row_of, return_index=True)
    edges = np.append(first, len(pairs)).astype(np.int64)
    labels = np.ascontiguousarray(data.y[pairs], np.int32)
    weights = np.ascontiguousarray(data.pair_weight[pairs], np.float32)
    n_classes = len(source.sums.counts)
    found = Proposals(
        np.empty((len(used), n_candidates), np.int32),
        np.empty((len(used), n_candidates), np.float32),
        np.empty(len(used), np.float32),
        np.empty(len(pairs), np.float32),
    )
    tasks = split(len(used), _ROWS_PER_TASK)
    given, rare = (used.astype(np.int64), edges, labels, weights), job.config.rare_classes
    frequent, n_exact = _frequent(postings, n_classes, n_candidates, job.config)
    start = (postings, (source.start.biases, source.start.length_biases), frequent)

    def make_scratch() -> Scores:
        n_columns, rank = frequent.right.shape
        return Scores(
            np.empty(n_classes, np.float32), np.empty(rank), np.zeros(n_columns, np.float32),
            np.empty(n_exact, np.int32), np.empty(n_exact, np.float32),
        )  # fmt: skip

    scratch = Scratch(make_scratch)

    def work(i: int) -> None:
        with scratch.use() as room:
            sparse_start.propose(
                rows, given, source.sums, source.numbers, start, rare, n_exact, room, found, *tasks[i]
            )

    run_checked(work, len(tasks), job)
    at = np.searchsorted(used, row_of)
    classes, offsets = _join_own(labels, found.classes, at), _join_own(found.own, found.scores, at)
    return Candidates(classes, offsets, found.log_rest[at], row_of.astype(np.int64), weights)


def _join_own(own: NDArray[Any], others: NDArray[Any], at: Int64) -> NDArray[Any]:
    """Return one line per pair: what belongs to its own class, and the line of its row."""
    joined = np.empty((len(own), 1 + others.shape[1]), own.dtype)
    joined[:, 0] = own
    for first, last in split(len(own), _LINES_AT_ONCE):
        joined[first:last, 1:] = others[at[first:last]]
    return joined


def find_frequent(postings: Postings, n_classes: int, min_postings: int, rank: int) -> Frequent | None:
    """Return the columns with more weights than `min_postings`, and factors that stand for their weights.

    The factors are the leading singular vectors, by subspace iteration from fixed random vectors. None where
    there is no such column.
    """
    lengths = np.diff(postings.offsets)
    columns = np.flatnonzero(lengths > min_postings)
    if len(columns) == 0:
        return None
    matrix = _take_columns(postings, columns, n_classes)
    rank = min(rank, len(columns))
    basis = np.random.default_rng(0).standard_normal((len(columns), rank + _MORE_DIRECTIONS))
    for _ in range(_SUBSPACE_STEPS):
        basis, _ = np.linalg.qr(matrix.T @ (matrix @ basis))
    found, _, _ = np.linalg.svd(basis.T @ (matrix.T @ (matrix @ basis)))
    right = np.ascontiguousarray((basis @ found[:, :rank]).astype(np.float32))
    return join_frequent(postings, columns, np.ascontiguousarray((matrix @ right).T, np.float32), right)


def join_frequent(postings: Postings, columns: NDArray[Any], left: Float32, right: Float32) -> Frequent:
    """Return some columns with given factors, and their weights by class."""
    place = np.full(len(postings.offsets) - 1, -1, np.int32)
    place[columns] = np.arange(len(columns), dtype=np.int32)
    by_class = _take_columns(postings, columns, left.shape[1]).tocsr()
    starts, numbers = by_class.indptr.astype(np.int64), by_class.indices.astype(np.int32, copy=False)
    return Frequent(place, left, right, starts, numbers, by_class.data)


def no_frequent(n_features: int, n_classes: int) -> Frequent:
    """Return what stands for no columns at all."""
    none = np.zeros((0, n_classes), np.float32), np.zeros((0, 0), np.float32)
    starts = np.zeros(n_classes + 1, np.int64)
    place = np.full(n_features, -1, np.int32)
    return Frequent(place, *none, starts, np.empty(0, np.int32), np.empty(0, np.float32))


def _take_columns(postings: Postings, columns: NDArray[Any], n_classes: int) -> sparse.csc_matrix:
    """Return some columns of the weights as a matrix (n_classes, n_columns)."""
    parts = [slice(*postings.offsets[f : f + 2]) for f in columns]
    matrix = sparse.csc_matrix((n_classes, len(columns)), dtype=np.float32)
    matrix.indptr = np.concatenate([[0], np.cumsum(np.diff(postings.offsets)[columns])])
    matrix.indices = np.concatenate([postings.classes[part] for part in parts])
    matrix.data = np.concatenate([postings.values[part] for part in parts])
    return matrix


def _frequent(
    postings: Postings, n_classes: int, n_candidates: int, config: SparseConfig
) -> tuple[Frequent, int]:
    """Return the columns that proposals approximate, and the classes to score exactly: none if few."""
    if n_classes >= config.frequent_min_classes:
        limit = int(config.frequent_classes * n_classes)
        found = find_frequent(postings, n_classes, limit, config.frequent_rank)
        if found is not None:
            return found, min(config.frequent_exact * n_candidates, n_classes - 1)
    return no_frequent(len(postings.offsets) - 1, n_classes), 0


def keep_best(candidates: Candidates, n_candidates: int) -> Candidates:
    """Return the first candidates of each pair, its own class beside them; the others join the rest."""
    n_slots = n_candidates + 1
    if candidates.classes.shape[1] <= n_slots:
        return candidates
    with np.errstate(divide="ignore"):  # no candidate, no mass
        left_out = np.logaddexp.reduce(candidates.offsets[:, n_slots:], axis=1)
    return candidates._replace(
        classes=np.ascontiguousarray(candidates.classes[:, :n_slots]),
        offsets=np.ascontiguousarray(candidates.offsets[:, :n_slots]),
        log_rest=np.logaddexp(candidates.log_rest, left_out).astype(np.float32),
    )


def propose_by_weights(
    training: TrainingRows, weights: SparseWeights, n_candidates: int, job: Job
) -> Candidates:
    """Find hard negatives of all pairs by given weights, whose scores are the offsets."""
    data, n_classes = training.data, weights.n_classes
    used, first = np.unique(data.rows, return_index=True)
    edges = np.append(first, data.n_pairs).astype(np.int64)
    labels = np.ascontiguousarray(data.y, np.int32)
    found = Proposals(
        np.empty((len(used), n_candidates), np.int32),
        np.empty((len(used), n_candidates), np.float32),
        np.empty(len(used), np.float32),
        np.empty(data.n_pairs, np.float32),
    )
    tasks = split(len(used), max(1, min(_ROWS_PER_TASK, (1 << 20) // n_classes)))

    def work(i: int) -> None:
        start, stop = tasks[i]
        X: Any = data.X[used[start:stop]]
        scores = np.empty((stop - start, n_classes), np.float32)
        weights.open_block(X, 0, stop - start).products(0, n_classes, Buffers(), scores)
        scores += weights.biases
        sparse_start.keep_best(scores, edges, labels, found, start)

    with one_blas_thread():
        run_checked(work, len(tasks), job)
    at = np.searchsorted(used, data.rows)
    classes, offsets = _join_own(labels, found.classes, at), _join_own(found.own, found.scores, at)
    weight = np.ascontiguousarray(data.pair_weight, np.float32)
    return Candidates(classes, offsets, found.log_rest[at], data.rows.astype(np.int64), weight)


@dataclass
class Correction:
    """The correction in training: candidates, supports and dual variables."""

    rows: CSRRows
    candidates: Candidates
    listed: Listed
    support: Support
    state: DualState
    options: DualOptions
    n_features: int
    n_blocks: int
    n_threads: int
    scratch: Scratch[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        starts, n_slots = self.listed.starts, self.candidates.classes.shape[1]
        lengths = np.diff(self.rows.indptr)[self.candidates.rows[self.listed.entries // n_slots]]
        entries = np.diff(np.append(0, np.cumsum(lengths))[starts]).max(initial=0)
        n = int(np.diff(starts).max(initial=0))
        width = int(np.diff(self.support.starts).max(initial=0)) + 1
        shapes: tuple[tuple[int, Any], ...] = (
            (n, np.int64), (n, np.int64), (n + 1, np.int64), (int(entries), np.int32),
            (int(entries), np.float32), (n, np.float64), (n, np.float64), (width, np.float32),
        )  # fmt: skip

        def make() -> tuple[Any, Local]:
            return np.full(self.n_features, -1, np.int32), Local(*(np.empty(*shape) for shape in shapes))

        self.scratch = Scratch(make)

    @classmethod
    def begin(
        cls,
        rows: CSRRows,
        candidates: Candidates,
        sums: ClassSums,
        job: Job,
        *,
        regularization: float,
        is_wide: bool = False,
    ) -> Correction:
        """Prepare a correction of zero; a wide support has the features of the rows it competes for, too."""
        config = job.config
        n_classes, n_features = sums.matrix.shape
        starts = np.zeros(n_classes + 1, np.int64)
        entries = np.empty(int((candidates.classes >= 0).sum()), np.int64)
        sparse_dual.list_pairs(candidates.classes, starts, entries)
        listed = Listed(starts, entries)
        if is_wide:
            ends, features = _wide_support(rows, candidates, listed, n_features, job)
        else:
            ends, features = transpose_structure(sums.matrix.indptr, sums.matrix.indices, n_classes)
        support = Support(
            ends, features, np.zeros(len(features), np.float32), np.zeros(n_classes, np.float32)
        )
        options = DualOptions(regularization, config.bias_feature, 1, config.max_negatives, job.seed % 2**31)
        shape = candidates.offsets.shape
        state = DualState(
            candidates.offsets.copy(), np.zeros(shape, np.float32), np.empty(shape[0], np.float32)
        )
        n_blocks = min(config.blocks, n_classes)  # few classes one by one: together they would overshoot
        return cls(rows, candidates, listed, support, state, options, n_features, n_blocks, job.n_threads)

    def refresh(self) -> None:
        """Compute the scores of all candidates from the weights."""
        options = self.options._replace(passes=0)
        everything = np.arange(len(self.support.biases), dtype=np.int64)
        self._partition()
        self._train(everything, options, 0)

    def run_round(self, number: int, check: Check) -> float:
        """Train every class once; return the mean loss of the pairs, the constant mass included."""
        order = np.random.default_rng((self.options.seed, number)).permutation(len(self.support.biases))
        size = self.listed.starts[1:] - self.listed.starts[:-1]
        for block in range(self.n_blocks):
            self._partition()
            classes = order[block :: self.n_blocks].astype(np.int64)
            # Large classes first, so that no thread is left with one at the end.
            classes = classes[np.argsort(-size[classes], kind="stable")]
            done = block / self.n_blocks
            part = 1.0 / self.n_blocks
            self._train(classes, self.options, number, lambda f, a=done, b=part: check(a + b * f))  # type: ignore[misc]
        self._partition()
        loss = self.state.log_partition - self.state.scores[:, 0]
        return float(np.average(loss.astype(np.float64), weights=self.candidates.weights))

    def _train(
        self, classes: Int64, options: DualOptions, number: int, check: Check = lambda fraction: None
    ) -> None:
        """Train some classes: as tasks of about equal work, single large classes first."""
        work = np.cumsum(self.listed.starts[classes + 1] - self.listed.starts[classes])
        edges = np.unique(np.searchsorted(work, np.arange(0, work[-1], max(work[-1] // 512, 1)), "right"))
        edges = np.unique(np.concatenate([[0], edges, [len(classes)]]))

        def task(i: int) -> None:
            with self.scratch.use() as (place, local):
                part = classes[edges[i] : edges[i + 1]]
                sparse_dual.correct_classes(
                    self.rows, self.candidates, self.listed, self.support, self.state, options, part, place,
                    local, number,
                )  # fmt: skip

        run_checked(task, len(edges) - 1, Job(SparseConfig(), 0, self.n_threads, check))

    def _partition(self) -> None:
        state, tasks = self.state, split(len(self.candidates.rows), 1 << 14)

        def work(i: int) -> None:
            sparse_dual.sum_candidates(state.scores, self.candidates.log_rest, state.log_partition, *tasks[i])

        run(work, len(tasks), self.n_threads)

    @property
    def matrix(self) -> Any:
        """The weights as a CSR matrix (n_classes, n_features)."""
        shape = (len(self.support.biases), self.n_features)
        matrix = sparse.csr_matrix(shape, dtype=np.float32)
        matrix.indptr, matrix.indices, matrix.data = (
            self.support.starts, self.support.features, self.support.values,
        )  # fmt: skip
        return matrix

    @property
    def biases(self) -> Float32:
        return self.support.biases.copy()


def _wide_support(
    rows: CSRRows, candidates: Candidates, listed: Listed, n_features: int, job: Job
) -> tuple[Int64, Any]:
    n_classes = len(listed.starts) - 1
    counts = np.zeros(n_classes + 1, np.int64)
    scratch = Scratch(lambda: np.zeros(n_features, np.int32))
    tasks = split(n_classes, _CLASSES_PER_TASK)
    features = np.empty(0, np.int32)

    def work(i: int) -> None:
        with scratch.use() as seen:
            sparse_dual.wide_support(
                rows, candidates, listed, job.config.min_pairs_wide, seen, counts, features, *tasks[i]
            )

    run(work, len(tasks), job.n_threads)
    counts = np.cumsum(counts)
    features = np.empty(int(counts[-1]), np.int32)
    if len(features):
        run(work, len(tasks), job.n_threads)
    # by feature and back: ascending features
    by_feature = transpose_structure(counts, features, n_features)
    return transpose_structure(*by_feature, n_classes)


class ClassWeights(NamedTuple):
    """Weights by class: CSR (n_classes, n_features) and biases."""

    matrix: Any
    biases: Float32


class _SVMTable:
    """SVMs as they are fitted, class by class; features are numbered by frequency."""

    def __init__(self, mean: Float32, by_frequency: Any, n_classes: int, config: SparseConfig) -> None:
        self.mean, self.by_frequency, self.config = mean, by_frequency, config
        nothing = np.empty(0, np.int32), np.empty(0, np.float32)
        self.parts: list[tuple[Any, Float32]] = [nothing] * n_classes
        self.biases = np.zeros(n_classes, np.float32)

    def keep(self, c: int, w: Float32) -> None:
        """Take the weights of a class, without small ones; the last is the bias."""
        kept = np.flatnonzero(np.abs(w[:-1]) * self.mean >= self.config.svm_prune).astype(np.int32)
        columns = self.by_frequency[kept]
        rising = np.argsort(columns)
        self.parts[c] = columns[rising], w[kept][rising]
        self.biases[c] = w[-1] * np.float32(self.config.svm_bias_feature)

    def take(self, present: Int64) -> ClassWeights:
        """Return all weights; a class without rows never wins."""
        matrix = sparse.csr_matrix((len(self.parts), len(self.mean)), dtype=np.float32)
        matrix.indptr = np.concatenate([[0], np.cumsum([len(f) for f, _ in self.parts])]).astype(np.int64)
        matrix.indices = np.concatenate([f for f, _ in self.parts]).astype(np.int32, copy=False)
        matrix.data = np.concatenate([v for _, v in self.parts])
        absent = np.ones(len(self.parts), bool)
        absent[present] = False
        if absent.any():
            self.biases[absent] = min(-1.0, float(self.biases[present].min(initial=0.0)))
        return ClassWeights(matrix, self.biases)


def _svm_problem(data: Examples, rows: CSRRows, squares: Any, n_classes: int) -> sparse_dual.SVMData:
    order = np.argsort(data.y, kind="stable")
    starts = np.searchsorted(data.y[order], np.arange(n_classes + 1)).astype(np.int64)
    weights = np.zeros(len(squares), np.float32)
    np.maximum.at(weights, data.rows, data.pair_weight)
    return sparse_dual.SVMData(rows, squares, starts, data.rows[order].astype(np.int64), weights)


def fit_svms(
    training: TrainingRows, shape: tuple[int, int], job: Job, whole: Examples | None = None
) -> tuple[ClassWeights, ClassWeights | None]:
    """Fit one SVM per class against all other rows.

    Weights whose mean contribution to a score is below ``config.svm_prune`` are dropped.

    Returns
    -------
    tuple
        Weights, and weights after more passes with the rows of `whole`: the pairs of `training`, and others
        of the same X.
    """
    (data, rows, mean), config = training, job.config
    n_classes, n_features = shape
    n_rows = len(rows.indptr) - 1
    # Frequent features first: the weights that most rows read stay in the cache.
    by_frequency = np.argsort(-count_indices(rows.indices, n_features), kind="stable").astype(np.int32)
    place = np.empty(n_features, np.int32)
    place[by_frequency] = np.arange(n_features, dtype=np.int32)
    rows, mean = rows._replace(indices=place[rows.indices]), mean[by_frequency]
    squares = square_sums(rows.indptr, rows.data)
    problem = _svm_problem(data, rows, squares, n_classes)
    more = None if whole is None else _svm_problem(whole, rows, squares, n_classes)
    options = sparse_dual.SVMOptions(
        config.svm_cost, config.svm_bias_feature, config.svm_passes, config.svm_tolerance, job.seed % 2**31
    )
    more_options = options._replace(max_passes=1 + config.svm_more_passes)

    def make_scratch() -> tuple[Any, ...]:
        counts = np.zeros(n_rows, np.uint8)
        return (
            np.empty(n_features + 1, np.float32),
            np.empty(n_rows, np.float32),
            np.empty(n_rows, np.int32),
            counts,
        )

    scratch = Scratch(make_scratch)
    found, found_more = (_SVMTable(mean, by_frequency, n_classes, config) for _ in range(2))
    present = np.flatnonzero(np.diff(problem.starts))

    def work(i: int) -> None:
        c = int(present[i])
        with scratch.use() as (w, alpha, active, positive):
            w[:] = 0.0
            sparse_dual.fit_svm(problem, c, options, w, alpha, active, positive, 0)
            found.keep(c, w)
            if more is not None:
                sparse_dual.fit_svm(more, c, more_options, w, alpha, active, positive, 1)
                found_more.keep(c, w)

    run_checked(work, len(present), job)
    return found.take(present), None if more is None else found_more.take(present)


def mean_entries(rows: CSRRows) -> float:
    """Return the number of entries of a mean row."""
    return len(rows.data) / max(len(rows.indptr) - 1, 1)
