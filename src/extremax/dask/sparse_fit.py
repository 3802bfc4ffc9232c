"""The generative start of sparse weights on a Dask cluster: class sums in one pass over the rows.

Every row goes to the shard of its class, which sums its classes column by column in the order of the rows, as
one machine does.  The rest needs a few thousand rows: one worker fits the numbers of the start, mixes, prunes
and calibrates with the code of one machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.dask import blocks as b
from extremax.dask.job import Job
from extremax.dask.row_fit import DistributedRows, limit_sparse
from extremax.dask.shards import class_bounds
from extremax.examples import Examples
from extremax.fit import (
    Fitted,
    Request,
    finish_model,
    fit_model,
    run_training,
    split_calibration,
    start_model,
)
from extremax.kernels.postings import copy_lines
from extremax.kernels.row_updates import CSRRows
from extremax.runtime.context import Context
from extremax.runtime.products import square_sums
from extremax.scores.sparse import csr_rows
from extremax.solvers.base import Split
from extremax.solvers.config import FitConfig
from extremax.solvers.loop import Record, Schedule
from extremax.solvers.sparse.solver import SparseTrainer, checksum_pairs, key_stride, without_zeros
from extremax.solvers.sparse.start import ClassSums, sample_pairs, sizes_for
from extremax.tuned import SparseConfig
from extremax.types import Bool, Float32, Float64, Int32, Int64


class SparseSplit(NamedTuple):
    """Labels of all rows, and which of them are held out.

    Attributes
    ----------
    y, weight
        Classes and weights of all rows; None for weights of one.
    training
        Rows to train on; None for all.
    training_weight, whole_weight
        Weights of mean one, of the training rows and of all.
    """

    y: Int32
    weight: Float32 | None
    training: Bool | None
    training_weight: Float32 | None
    whole_weight: Float32 | None

    @property
    def held_out(self) -> Int64:
        """Numbers of the rows that are held out."""
        return np.empty(0, np.int64) if self.training is None else np.flatnonzero(~self.training)

    def examples(self, X: Any) -> Examples:
        """Return the training pairs of rows X."""
        if self.training is None:
            return Examples(X, self.y, None, self.training_weight)
        rows = np.flatnonzero(self.training)
        return Examples(X, self.y[rows], rows, self.training_weight)


class Gathered(NamedTuple):
    """What is known of all rows."""

    scale: float
    mean_entries: float
    sums: ClassSums
    mean: Float32
    whole_sums: ClassSums | None
    whole_mean: Float32 | None
    pair_key: int


@dataclass(frozen=True)
class GatheredSparseTrainer(SparseTrainer):
    """A trainer of examples whose sums were taken elsewhere; X has the rows that are looked at alone."""

    gathered: Gathered | None = None

    @property
    def _sums(self) -> Gathered:
        if self.gathered is None:
            raise ValueError("the sums of the rows are missing.")
        return self.gathered

    def _find_scale(self, data: Examples) -> float:
        return self._sums.scale

    def class_sums(self, data: Examples, n_classes: int, n_features: int, scale: float) -> ClassSums:
        """Return the sums of the training rows, or of all."""
        whole = self._sums.whole_sums
        if data.row_index is None and whole is not None:
            return whole
        return self._sums.sums

    def feature_mean(self, rows: CSRRows, n_features: int, data: Examples) -> Float32:
        """Return the mean size of each feature, over the training rows or over all."""
        whole = self._sums.whole_mean
        if data.row_index is None and whole is not None:
            return whole
        return self._sums.mean

    @property
    def start_config(self) -> SparseConfig:
        """Numbers that ask for as many pairs as the mean length of all rows allows."""
        n_pairs, n_search = sizes_for(self._sums.mean_entries, self.numbers)
        return replace(self.numbers, sample_pairs=n_pairs, search_pairs=n_search, sample_entries=2**62)

    def pair_key(self, data: Examples) -> int:
        """Return the checksum of the pairs that one machine computes."""
        return self._sums.pair_key


@dataclass
class SparseFit:
    """A fit of the start, in progress or finished."""

    job: Job
    rows: DistributedRows
    config: FitConfig
    seed: int
    n_shards: int
    history: list[Record] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    _fitted: Any = None

    def run(self) -> None:
        """Fit; the model stays on a worker."""
        began, job, rows, config = time.perf_counter(), self.job, self.rows, self.config
        given = list(rows.X)  # held-out rows are scored as they are
        n_given = 0 if rows.entries is None else int(rows.entries[-1])
        split = job.submit(
            _split, config, self.seed, rows.n_classes, len(rows.X), *rows.y, *(rows.weight or [])
        )
        rows.X = [job.submit(_clean, X) for X in rows.X]
        rows.X = limit_sparse(job, rows, config.numbers.scale, self.chosen)
        about = [job.submit(_about_rows, X) for X in rows.X]
        known = job.submit(_choose_rows, config, self.seed, rows.n_classes, split, *about)
        facts = job.gather(known)
        scale = facts.scale
        edges = rows.edges.tolist()
        cuts = list(pairwise(edges))
        if scale is None:
            firsts = facts.entries[:-1].tolist()
            stretches = b.pairwise_cuts(int(facts.entries[-1]))
            parts = [
                job.submit(_used_squares, first, X, split, cut, stretches)
                for first, X, cut in zip(firsts, rows.X, cuts, strict=True)
            ]
            scale = job.gather(
                job.submit(_finish_scale, config, facts.n_training, int(facts.entries[-1]), *parts)
            )
        bounds = class_bounds(facts.counts, config, self.n_shards)
        routed = [job.submit(_route, X, split, cut, bounds) for X, cut in zip(rows.X, cuts, strict=True)]
        sums = [
            job.submit(
                _shard_sums, (rows.n_classes, rows.n_features), scale, facts.includes, job.task_threads,
                *(job.submit(_part, pieces, s) for pieces in routed),
            )
            for s in range(len(bounds) - 1)
        ]  # fmt: skip
        del routed
        means: Any = None
        for X, cut in zip(rows.X, cuts, strict=True):
            means = job.submit(_add_sizes, X, split, cut, scale, facts.includes, rows.n_features, means)
        stored = facts.stored.tolist()
        some = [
            job.submit(_some_entries, X, first, stored[-1])
            for X, first in zip(rows.X, stored[:-1], strict=True)
        ]
        key = job.submit(_pair_key, split, rows.n_features, n_given, len(some), *about, *some)
        sampled = rows.take(job, facts.sampled)
        held_out = None
        if len(facts.held_out):
            held_out = replace(rows, X=given).take(job, facts.held_out)
        self._fitted = job.submit(
            _finish, config, self.seed, job.lone_threads, rows.n_classes, known, scale, self.chosen, split,
            sampled, held_out, means, key, *sums,
        )  # fmt: skip
        self.history = job.gather(job.submit(_history_of, self._fitted))
        self.history[0]["seconds"] += time.perf_counter() - began - self.history[-1]["seconds"]
        rows.X, rows.y, rows.weight = [], [], None  # the scheduler keeps the recipe of the model

    def assemble(self) -> Any:
        """Return the future of the whole model."""
        return self.job.submit(copy_fitted, self._fitted)


@dataclass
class OneWorkerFit:
    """A fit that is small enough for one worker."""

    job: Job
    config: FitConfig
    history: list[Record]
    fitted: Any
    interrupted: bool = False

    def assemble(self) -> Any:
        """Return the future of the whole model."""
        return self.job.submit(copy_fitted, self.fitted)


def fit_on_one_worker(job: Job, rows: DistributedRows, config: FitConfig, seed: int) -> OneWorkerFit:
    """Gather all rows on one worker and fit there, as one machine does."""
    weights = rows.weight or []
    fitted = job.submit(
        _fit_alone, config, seed, rows.n_classes, job.lone_threads, len(rows.X), *rows.X, *rows.y, *weights
    )
    return OneWorkerFit(job, config, job.gather(job.submit(_history_of, fitted)), fitted)


# -- tasks


def _fit_alone(
    config: FitConfig, seed: int, n_classes: int, n_threads: int, n_blocks: int, *arrays: Any
) -> Fitted:
    X, y, weight = (arrays[i * n_blocks : (i + 1) * n_blocks] for i in range(3))
    joined = np.concatenate(weight) if weight else None
    data = Examples(b.stack_rows(*X), np.concatenate(y), None, joined)
    return fit_model(data, n_classes, config, Context(seed, n_threads), Request())


def copy_fitted(fitted: Fitted) -> Fitted:
    """Return the model with a state of its own: a worker of this very process would share it."""
    state = replace(fitted.state, tables=fitted.state.tables.copy(), chosen=dict(fitted.state.chosen))
    return Fitted(fitted.model, state, [dict(record) for record in fitted.history], fitted.interrupted)


def _history_of(fitted: Fitted) -> list[Record]:
    return fitted.history


def _split(config: FitConfig, seed: int, n_classes: int, n_blocks: int, *arrays: Any) -> SparseSplit:
    """Hold back rows for mixing and calibration, as `fit_model` does."""
    y = np.concatenate(arrays[:n_blocks])
    weight = np.concatenate(arrays[n_blocks:]) if len(arrays) > n_blocks else None
    data = Examples.labels_only(y, len(y)).with_row_weight(weight)
    rest, held_out = split_calibration(data, n_classes, config, seed)
    trainer = SparseTrainer(config, Context(seed))
    training = None
    if held_out is not None:
        training = np.zeros(len(y), bool)
        training[rest.rows] = True
    return SparseSplit(
        y, weight, training, trainer._unit_weight(rest).weight, trainer._unit_weight(data).weight
    )


def _clean(X: Any) -> Any:
    """Return a block in the form that a sparse trainer reads."""
    return without_zeros(X, X.shape[1])


def _about_rows(X: Any) -> tuple[Int64, Float64]:
    """Return the number of entries of each row, and the sum of their squares."""
    return np.diff(X.indptr).astype(np.int64), square_sums(X.indptr, X.data)


class Facts(NamedTuple):
    """What the client is told of all rows.

    Attributes
    ----------
    scale
        Factor of the features; None where all their squares must be summed to find it.
    counts
        Training pairs of each class.
    entries, stored
        Entries of the training rows before each block, and of all; the same of all rows.
    sampled, held_out
        Rows that fit the numbers of the start, and rows that are held out.
    includes
        Whether held-out rows become a part of the weights in the end.
    """

    scale: float | None
    counts: Int64
    entries: Int64
    stored: Int64
    n_training: int
    mean_entries: float
    sampled: Int64
    held_out: Int64
    includes: bool


def _choose_rows(
    config: FitConfig, seed: int, n_classes: int, split: SparseSplit, *about: tuple[Int64, Float64]
) -> Facts:
    lengths, squares = (np.concatenate(parts) for parts in zip(*about, strict=True))
    n_rows = len(split.y)
    used = np.ones(n_rows, bool) if split.training is None else split.training
    n_training = int(used.sum())
    trainer = SparseTrainer(config, Context(seed))
    rough = float(np.sqrt((squares if split.training is None else squares[used]).sum() / max(n_training, 1)))
    data = split.examples(np.empty((n_rows, 0), np.float32))
    mean_entries = float(lengths.sum()) / max(n_rows, 1)
    weights = data.class_counts(n_classes, weighted=True).astype(np.float64)
    numbers = config.numbers.sparse
    pairs = sample_pairs(weights, data, sizes_for(mean_entries, numbers)[0], seed % 2**31)
    edges = np.cumsum([0, *(len(part) for part, _ in about)])
    ends, kept = (np.concatenate([[0], np.cumsum(part)]) for part in (lengths, np.where(used, lengths, 0)))
    held_out = split.held_out
    return Facts(
        scale=1.0 if trainer.is_surely_usual(rough) else None,
        counts=data.class_counts(n_classes),
        entries=kept[edges].astype(np.int64),
        stored=ends[edges].astype(np.int64),
        n_training=n_training,
        mean_entries=mean_entries,
        sampled=np.unique(data.rows_of(pairs)),
        held_out=held_out,
        includes=bool(len(held_out)) and len(held_out) / max(n_rows, 1) >= numbers.min_included,
    )


def _some_entries(X: Any, first: int, n_entries: int) -> tuple[Int32, Float32]:
    """Return those entries of a block that the checksum of all rows looks at."""
    some = slice(-first % key_stride(n_entries), None, key_stride(n_entries))
    return X.indices[some], X.data[some]


def _pair_key(split: SparseSplit, n_features: int, n_given: int, n_blocks: int, *of_blocks: Any) -> int:
    """Return the checksum of the pairs, with numbers of the type that one machine has them in.

    `of_blocks` are the results of `_about_rows` and of `_some_entries`.
    """
    about, some = of_blocks[:n_blocks], of_blocks[n_blocks:]
    ends = np.concatenate([[0], np.cumsum(np.concatenate([lengths for lengths, _ in about]))])
    kind: Any = np.int32 if max(n_given, n_features) <= np.iinfo(np.int32).max else np.int64
    has_zeros = int(ends[-1]) != n_given  # offsets without them are int64
    ends = ends.astype(np.int64 if has_zeros else kind)
    indices, values = (np.concatenate(parts) for parts in zip(*some, strict=True))
    data = split.examples(np.empty((len(split.y), 0), np.float32))
    return checksum_pairs(data.y, data.rows, ends, indices.astype(kind), values)


def _used_squares(
    first: int, X: Any, split: SparseSplit, cut: tuple[int, int], stretches: Int64
) -> b.Partials:
    values = X.data
    if split.training is not None:
        values = values[np.repeat(split.training[slice(*cut)], np.diff(X.indptr))]
    return b.work_on_stretches(first, (values,), stretches, b.sum_squares)


def _finish_scale(config: FitConfig, n_rows: int, n_entries: int, *parts: b.Partials) -> float:
    total = b.pairwise_total(b.complete(parts, b.sum_squares), n_entries)
    return SparseTrainer(config, Context()).scale_of_squares(total, n_rows)


class RoutedRows(NamedTuple):
    """Rows of one block whose classes belong to one shard.

    Attributes
    ----------
    y
        Their classes, among all.
    training
        Which of them are trained on; None for all.
    training_weight, whole_weight
        Their weights, zero for rows that are held out; None for weights of one.
    """

    X: Any
    y: Int32
    training: Bool | None
    training_weight: Float32 | None
    whole_weight: Float32 | None


def _route(X: Any, split: SparseSplit, cut: tuple[int, int], bounds: Sequence[int]) -> list[RoutedRows]:
    """Return the rows of a block by the shard of their class."""
    part = slice(*cut)
    y = split.y[part]
    training = None if split.training is None else split.training[part]
    of_row = None
    if split.training_weight is not None:
        of_row = np.zeros(len(split.y), np.float32)
        of_row[slice(None) if split.training is None else split.training] = split.training_weight
        of_row = of_row[part]
    whole = None if split.whole_weight is None else split.whole_weight[part]
    found = []
    for low, high in pairwise(bounds):
        rows = np.flatnonzero((y >= low) & (y < high))
        taken: list[Any] = [None if a is None else a[rows] for a in (training, of_row, whole)]
        found.append(RoutedRows(X[rows], y[rows], *taken))
    return found


def _part(pieces: list[RoutedRows], shard: int) -> RoutedRows:
    return pieces[shard]


def _shard_sums(
    shape: tuple[int, int], scale: float, includes: bool, n_threads: int, *pieces: RoutedRows
) -> tuple[Any, Any]:
    """Return the sums of the classes of a shard, over training rows and over all."""
    blocks, *columns = zip(*pieces, strict=True)
    X = b.stack_rows(*blocks)
    y, training, weight, whole = (_joined(list(column)) for column in columns)
    rows = np.arange(len(y)) if training is None else np.flatnonzero(training)
    data = Examples(X, y[rows], rows, None if weight is None else weight[rows])
    found = ClassSums.of(data, *shape, scale, n_threads).matrix if len(rows) else None
    every = None
    if includes:
        every = ClassSums.of(Examples(X, y, None, whole), *shape, scale, n_threads).matrix if len(y) else None
    return found, every


def _joined(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


def join_classes(matrices: Sequence[Any], shape: tuple[int, int]) -> Any:
    """Return the sums of ranges of classes as one CSC matrix; classes rise from matrix to matrix."""
    matrices = [matrix for matrix in matrices if matrix is not None and matrix.nnz]
    counts = [np.diff(matrix.indptr) for matrix in matrices]
    offsets = np.zeros(shape[1] + 1, np.int64)
    np.cumsum(np.sum(counts, axis=0) if counts else np.zeros(shape[1], np.int64), out=offsets[1:])
    classes, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
    first = offsets[:-1].copy()
    for matrix in matrices:
        given = (matrix.indptr, matrix.indices, matrix.data)
        parts: list[Any] = [np.require(array, None, ["C", "W"]) for array in given]
        copy_lines(parts[0], parts[1], parts[2], first, classes, values)
    joined = sparse.csc_matrix(shape, dtype=np.float32)
    joined.indptr, joined.indices, joined.data = offsets, classes, values
    return joined


def _add_sizes(
    X: Any,
    split: SparseSplit,
    cut: tuple[int, int],
    scale: float,
    includes: bool,
    n_features: int,
    before: Any,
) -> Any:
    """Go on with number and size of the entries of each column, in the order of the rows."""
    rows = _scaled_rows(X, scale)
    every = np.ones(len(rows.indptr) - 1, np.bool_)
    training = every if split.training is None else split.training[slice(*cut)]
    masks = [training, every] if includes else [training]
    found = []
    for i, used in enumerate(masks):
        count, total = np.zeros(n_features, np.int64), np.zeros(n_features)
        if before is not None:
            count, total = before[i][0].copy(), before[i][1].copy()
        kept = np.repeat(used, np.diff(rows.indptr))
        indices, sizes = rows.indices[kept], np.abs(rows.data[kept])
        np.add.at(count, indices, 1)
        np.add.at(total, indices, sizes.astype(np.float64))
        found.append((count, total))
    return found


def _scaled_rows(X: Any, scale: float) -> CSRRows:
    arrays: list[Any] = [np.require(array, None, ["C", "W"]) for array in csr_rows(X, 0)]
    rows = CSRRows(*arrays)
    return rows if scale == 1.0 else rows._replace(data=rows.data * np.float32(scale))


def _finish(  # noqa: PLR0913 (a task: each future is an argument of its own)
    config: FitConfig,
    seed: int,
    n_threads: int,
    n_classes: int,
    facts: Facts,
    scale: float,
    accepted: dict[str, Any],
    split: SparseSplit,
    sampled: Any,
    held_out: Any,
    means: Any,
    key: int,
    *sums: tuple[Any, Any],
) -> Fitted:
    """Fit the numbers of the start, mix, prune and calibrate, as `fit_model` does without an epoch."""
    started = time.perf_counter()
    context, n_features = Context(seed, n_threads), len(means[0][0])
    data = split.examples(_with_gaps(sampled, facts.sampled, len(split.y), n_features))
    sizes = [(total / np.maximum(count, 1)).astype(np.float32) for count, total in means]
    whole_sums = None
    if facts.includes:
        whole = Examples.labels_only(split.y, len(split.y)).with_row_weight(split.whole_weight)
        whole_sums = _class_sums([every for _, every in sums], whole, (n_classes, n_features))
    gathered = Gathered(
        scale, facts.mean_entries, _class_sums([found for found, _ in sums], data, (n_classes, n_features)),
        sizes[0], whole_sums, sizes[1] if facts.includes else None, key,
    )  # fmt: skip
    trainer = GatheredSparseTrainer(config, context, gathered=gathered)
    trainer.accepted.update(accepted)
    fitted = start_model(trainer, data, n_classes, config, started)
    schedule = Schedule(config.n_epochs, config.solver.learning_rate, None, config.n_epochs)
    run_training(trainer, fitted, data, schedule, context, Request())
    rows = None
    if held_out is not None:
        weight = None if split.weight is None else split.weight[facts.held_out]
        rows = Examples(held_out, split.y[facts.held_out], None, weight)
    everything = None if rows is None else Examples(data.X, split.y, None, split.weight)
    finish_model(trainer, fitted, Split(data, rows, everything), context, Request().publish)
    return fitted


def _class_sums(matrices: Sequence[Any], data: Examples, shape: tuple[int, int]) -> ClassSums:
    counts = data.class_counts(shape[0], weighted=True).astype(np.float64)
    return ClassSums(join_classes(matrices, shape), counts)


def _with_gaps(rows: Any, places: Int64, n_rows: int, n_features: int) -> Any:
    """Return a matrix of all rows; those outside of `places` are empty."""
    lengths = np.zeros(n_rows, np.int64)
    lengths[places] = np.diff(rows.indptr)
    matrix = sparse.csr_array((n_rows, n_features), dtype=np.float32)
    matrix.indptr = np.concatenate([[0], np.cumsum(lengths)])
    matrix.data, matrix.indices = np.array(rows.data), np.array(rows.indices)
    matrix.has_sorted_indices = True
    return matrix
