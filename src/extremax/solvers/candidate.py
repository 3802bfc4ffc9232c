"""Softmax over the candidates of each row: its own classes, and the classes of the highest scores.

Most of the mass of a softmax is in a few classes of each row.  An epoch scores all rows against all classes
once, keeps the best classes of each row and the mass of the others, and then solves class after class over
the rows that list it (`extremax.kernels.dense_dual`).  It starts from the weights that it finds and is pulled
towards them: the shares of all epochs in the regularization of a fit add up to one, so that more epochs come
closer to the same solution and do not fit more.

The first weights are a linear discriminant.  Each row had a part in the mean of its own class: what it would
score without is `TrainState.pair_values`, as a difference, and is added to the score of its class.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from extremax.examples import Examples
from extremax.kernels import sparse_dual, sparse_start
from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.dense_dual import DenseOptions, Listing, Pairs, train_classes
from extremax.kernels.sparse_dual import Candidates, Listed
from extremax.kernels.sparse_start import Proposals
from extremax.runtime.context import Context
from extremax.runtime.executor import Work
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.solvers.base import Progress, TrainState, whitening_memory
from extremax.solvers.optimizers import Tables
from extremax.solvers.warm_start import WhitenedTrainer, leave_one_out_shift, start_discriminant
from extremax.tuned import ProblemSize
from extremax.types import Float32, Int32, Int64

_ROW_BLOCK = 4096  # rows that a thread whitens at a time; no block depends on the threads
_TASK_SCORES, _MAX_TASK_ROWS = 1 << 22, 256  # scores of all classes that a thread computes at a time
_SUM_PAIRS = 1 << 13  # pairs of a task
_TASKS_PER_BLOCK = 64  # groups of classes that threads take one by one
_KEY_VALUES = 1 << 16  # values of X in the checksum of the pairs


@dataclass(frozen=True)
class PreparedRows:
    """Examples, what own scores are shifted by, and weights of mean one.

    `shared` are the whitened rows and their square lengths, as the executor shares them.
    """

    data: Examples
    shared: Any
    shift: Float32
    weight: Float32


@dataclass(frozen=True)
class CandidateTrainer(WhitenedTrainer):
    """Objectives that compare each row with its candidates."""

    remedy = "solver='minibatch_softmax', which whitens a minibatch at a time"

    def memory(self, problem: ProblemSize, data: Examples | None = None) -> int:
        config, n_threads = self.config.numbers.candidates, self.context.n_threads
        n_pairs, n_classes = problem.n_pairs, problem.n_classes
        slots = min(config.n_candidates, n_classes - 1) + 1
        rows = 4 * problem.n_rows * (problem.n_features + 1)
        need = 4 * n_classes * (problem.n_features + 1) + (1 if problem.n_entries is None else 2) * rows
        need += n_pairs * (48 + 20 * slots)  # candidates: classes, scores, and by class
        need += 4 * n_threads * min(_TASK_SCORES, _MAX_TASK_ROWS * n_classes)
        return need + whitening_memory(problem, self.config, n_threads)

    def start(self, data: Examples, n_classes: int) -> TrainState:
        """Set the weights to the linear discriminant, and find what own scores are shifted by."""
        context, n_features = self.context, int(data.X.shape[1])
        moments, chosen = self.find_moments(data)
        scale = moments.feature_scale
        tables = Tables.zeros(n_classes, n_features, "sgd")  # without accumulators
        state = TrainState(tables, scale, chosen=chosen)
        # rows are compared as if left out of their class: the best scale is right as it is
        config = replace(self.config.numbers.warm_start, init_scale_factor=1.0)
        data = replace(data, weight=_unit_weight(data))
        start = start_discriminant(
            tables, moments, data, config, context, shrinkages=self.config.numbers.candidates.shrinkages
        )
        state.whitening = start.whitening
        state.chosen |= start.chosen | {"shrinkage": start.shrinkage}
        state.pair_values = leave_one_out_shift(tables, scale, start, data, config, context.n_threads)
        state.pair_key = _pair_key(data)
        start.whitening.to_features(tables.weights, tables.biases, context.n_threads)
        return state

    def prepare(self, state: TrainState, data: Examples) -> PreparedRows:
        """Whiten the rows; own scores are shifted where the rows are those of the start."""
        source: Any = data.X
        X = np.empty(source.shape, np.float32)
        blocks = split(len(X), _ROW_BLOCK)
        white = state.whitening
        assert white is not None  # the start has made it

        def work(i: int) -> None:
            a, b = blocks[i]
            white.rows(np.ascontiguousarray(source[a:b], dtype=np.float32), state.feature_scale, out=X[a:b])

        with one_blas_thread():
            run(work, len(blocks), self.context.n_threads)
        shift = state.pair_values
        if shift is None or len(shift) != data.n_pairs or state.pair_key != _pair_key(data):
            shift = np.zeros(data.n_pairs, np.float32)  # rows that had no part in the start
        shared = self.context.executor.share((X, np.einsum("ik,ik->i", X, X)))
        return PreparedRows(data, shared, shift, _unit_weight(data))

    def epoch(
        self, state: TrainState, prepared: PreparedRows, rates: tuple[float, float], progress: Progress
    ) -> float:
        threads = 1 if JIT_DISABLED else self.context.n_threads
        config, n_pairs = self.config.numbers.candidates, prepared.data.n_pairs
        share = max(sum(rates), 1e-6) / max(self.config.n_epochs, 1)  # of the regularization of a fit
        root = state.tables.weights.shape[1] ** 0.5
        regularization = max(config.regularization, config.regularization_root / root)
        options = DenseOptions(
            regularization / share,
            config.bias_feature,
            config.passes,
            config.small_dual,
            self.context.seed % 2**31,
        )
        with self.training_coordinates(state, threads), one_blas_thread():
            candidates = self._propose(state, prepared, threads, progress)
            rounds = _Round(state, prepared, candidates, options, self.context, threads)
            order = np.random.default_rng((options.seed, state.n_epochs)).permutation(state.tables.n_classes)
            n_blocks = min(config.blocks, len(order))
            for block in range(n_blocks):
                rounds.train(order[block::n_blocks].astype(np.int64), progress)
                progress.report(n_pairs * (block + 1) // n_blocks, rounds.loss())
        state.n_epochs += 1
        return rounds.loss()

    def _propose(
        self, state: TrainState, prepared: PreparedRows, threads: int, progress: Progress
    ) -> Candidates:
        """Score all rows against all classes; keep the best classes, and the mass of the others."""
        data, tables = prepared.data, state.tables
        n_classes = tables.n_classes
        size = max(1, min(self.config.numbers.candidates.n_candidates, n_classes - 1))
        used, first = np.unique(data.rows, return_index=True)
        edges = np.append(first, data.n_pairs).astype(np.int64)
        found = _empty_proposals(len(used), data.n_pairs, size)
        cuts = split(len(used), max(1, min(_MAX_TASK_ROWS, _TASK_SCORES // n_classes)))

        def task(i: int) -> tuple[Int64, Int64, Int32]:
            a, b = cuts[i]
            return used[a:b], edges[a : b + 1] - edges[a], data.y[edges[a] : edges[b]]

        shared = (prepared.shared, tables.weights, tables.biases, size)
        parts = self.context.executor.map(
            _begin_proposals, shared, len(cuts), task, threads, lambda fraction: progress.check()
        )
        for (a, b), part in zip(cuts, parts, strict=True):
            found.classes[a:b], found.scores[a:b], found.log_rest[a:b], found.own[edges[a] : edges[b]] = part
        at = np.searchsorted(used, data.rows)
        classes = np.concatenate([data.y[:, None], found.classes[at]], axis=1)
        scores = np.concatenate([(found.own + prepared.shift)[:, None], found.scores[at]], axis=1)
        return Candidates(classes, scores, found.log_rest[at], data.rows, prepared.weight)


def _empty_proposals(n_rows: int, n_pairs: int, size: int) -> Proposals:
    return Proposals(
        np.empty((n_rows, size), np.int32),
        np.empty((n_rows, size), np.float32),
        np.empty(n_rows, np.float32),
        np.empty(n_pairs, np.float32),
    )


def _begin_proposals(rows: tuple[Float32, Float32], weights: Float32, biases: Float32, size: int) -> Work:
    """Score some rows against all classes, and keep the best."""
    X, _ = rows

    def propose(used: Int64, edges: Int64, labels: Int32) -> Proposals:
        found = _empty_proposals(len(used), len(labels), size)
        scores = X[used] @ weights.T
        scores += biases
        sparse_start.keep_best(scores, edges, labels, found, 0)
        return found

    return propose


def _begin_training(rows: tuple[Float32, Float32], pairs: Pairs, options: DenseOptions, number: int) -> Work:
    """Train some classes by the pairs that list them."""
    X, squares = rows

    def train(
        classes: Int64, listing: Listing, weights: Float32, biases: Float32
    ) -> tuple[Float32, Float32, Float32]:
        weights, biases = weights.copy(), biases.copy()
        listing = listing._replace(scores=listing.scores.copy())
        train_classes(X, squares, pairs, listing, weights, biases, options, classes, number)
        return weights, biases, listing.scores

    return train


class _Round:
    """One round over all classes: scores of the candidates, and which pairs list a class."""

    def __init__(
        self,
        state: TrainState,
        prepared: PreparedRows,
        candidates: Candidates,
        options: DenseOptions,
        context: Context,
        threads: int,
    ) -> None:
        self.tables, self.prepared, self.threads = state.tables, prepared, threads
        self.scores, self.log_rest = candidates.offsets, candidates.log_rest
        starts = np.zeros(state.tables.n_classes + 1, np.int64)
        entries = np.empty(int((candidates.classes >= 0).sum()), np.int64)
        sparse_dual.list_pairs(candidates.classes, starts, entries)
        self.listed = Listed(starts, entries)
        self.log_partition = np.empty(len(self.scores), np.float32)
        pairs = Pairs(candidates.rows, candidates.weights, prepared.shift, self.scores.shape[1])
        self.executor = context.executor
        self.shared = prepared.shared, self.executor.share(pairs), options, state.n_epochs
        self._partition()

    def _partition(self) -> None:
        tasks = split(len(self.scores), _SUM_PAIRS)

        def work(i: int) -> None:
            sparse_dual.sum_candidates(self.scores, self.log_rest, self.log_partition, *tasks[i])

        run(work, len(tasks), self.threads)

    def train(self, classes: Int64, progress: Progress) -> None:
        """Train some classes, all against the same scores of the others."""
        sizes = np.diff(self.listed.starts)[classes]
        by_size = np.argsort(-sizes, kind="stable")  # no thread is left with a large class at the end
        groups = [classes[by_size[i::_TASKS_PER_BLOCK]] for i in range(min(_TASKS_PER_BLOCK, len(classes)))]
        tables, scores = self.tables, self.scores.reshape(-1)
        listings = [self._list(group, scores) for group in groups]

        def task(i: int) -> tuple[Int64, Listing, Float32, Float32]:
            return groups[i], listings[i], tables.weights[groups[i]], tables.biases[groups[i]]

        parts = self.executor.map(
            _begin_training, self.shared, len(groups), task, self.threads, lambda fraction: progress.check()
        )
        for group, listing, part in zip(groups, listings, list(parts), strict=True):
            tables.weights[group], tables.biases[group], scores[listing.entries] = part
        self._partition()

    def _list(self, classes: Int64, scores: Float32) -> Listing:
        """Return the entries of some classes, with their current scores."""
        first, last = self.listed.starts[classes], self.listed.starts[classes + 1]
        starts = np.append(0, np.cumsum(last - first))
        places = np.arange(starts[-1]) + np.repeat(first - starts[:-1], last - first)
        entries = self.listed.entries[places]
        return Listing(starts, entries, scores[entries], self.log_partition[entries // self.scores.shape[1]])

    def loss(self) -> float:
        """Return the mean loss of the pairs, each compared as if left out of the start."""
        losses = (self.log_partition - self.scores[:, 0]).astype(np.float64)
        return float(np.average(losses, weights=self.prepared.weight))


def _unit_weight(data: Examples) -> Float32:
    """Return weights with a mean of one: weights that sum to one train like weights of one."""
    weight: Float32 = data.pair_weight / np.float32(data.pair_weight.mean(dtype=np.float64))
    return weight


def _pair_key(data: Examples) -> int:
    """Return a checksum of the pairs, never zero."""
    X: Any = data.X
    some = np.ascontiguousarray(X[:: max(1, X.size // _KEY_VALUES)], dtype=np.float32)
    key = 0
    for array in (data.y, data.rows, some):
        key = zlib.crc32(np.ascontiguousarray(array).tobytes(), key)
    return key or 1
