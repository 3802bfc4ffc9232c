"""Fit a solver with negatives for each row on a Dask cluster, class range by class range.

Scale, projection and label tree are those of one machine: sums over rows are taken over the same stretches
of rows and added in the same order, samples are the same rows, and the tree is fitted on the projected rows
of all blocks by one worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.dask import blocks as b
from extremax.dask.job import Job, import_distributed
from extremax.dask.shards import (
    DrawingRows,
    Plan,
    ShardState,
    class_bounds,
    count_windows,
    draw_pairs,
    leave_epoch,
    start_shard,
    train_shard,
)
from extremax.examples import Examples
from extremax.features.pca import PCA, spread_rows
from extremax.features.scaling import (
    BLOCK_ROWS,
    ClipLimits,
    ColumnScaling,
    LargeColumns,
    add_block_sums,
    column_maxima,
    length_limit,
    sample_places,
    shorten_rows,
    sparse_stride,
)
from extremax.fit import Fitted, fit_index_on, index_rows
from extremax.model import ClassInfo, Model
from extremax.runtime.context import Context
from extremax.runtime.interrupts import Interrupts
from extremax.runtime.products import one_blas_thread, square_sums
from extremax.scores.dense import DenseWeights
from extremax.solvers.base import (
    TrainState,
    class_means,
    limit_projected,
    scale_block_rows,
    scale_of_squares,
)
from extremax.solvers.config import FitConfig
from extremax.solvers.loop import Record
from extremax.solvers.negative_sampling import RowTrainer
from extremax.solvers.noise_fit import fit_noise
from extremax.solvers.optimizers import Tables
from extremax.storage.card import make_card
from extremax.storage.models import save_model, save_shard, shard_name
from extremax.storage.state import State
from extremax.tree.noise import Noise, draws_by_position
from extremax.tuned import ScaleConfig
from extremax.types import Features, Float32, Float64, Int32, Int64

_REPLICATED_FRACTION = 0.4  # of a worker's memory that all rows may take to be held by every shard


@dataclass
class DistributedRows:
    """Checked blocks of rows on the cluster.

    Attributes
    ----------
    X, y, weight
        Futures of features, classes and weights of each block; no weights where all are one.
    edges
        Number of the first row of each block, and of all rows.
    entries
        The same for the stored entries of sparse features; None for dense ones.
    """

    X: list[Any]
    y: list[Any]
    weight: list[Any] | None
    edges: Int64
    entries: Int64 | None
    n_features: int
    n_classes: int

    @property
    def n_rows(self) -> int:
        return int(self.edges[-1])

    def take(self, job: Job, places: Int64) -> Any:
        """Return the future of some rows, by rising number."""
        parts = b.split_places(places, self.edges)
        found = [job.submit(b.take_rows, X, part) for X, part in zip(self.X, parts, strict=True) if len(part)]
        return job.submit(b.stack_rows, *found)

    def take_weight(self, job: Job, places: Int64) -> Any:
        """Return the future of the weights of some rows; None where there are none."""
        if self.weight is None:
            return None
        parts = b.split_places(places, self.edges)
        pairs = zip(self.weight, parts, strict=True)
        return job.submit(b.stack_rows, *(job.submit(b.take_rows, w, part) for w, part in pairs if len(part)))


class Start(NamedTuple):
    """What one worker finds from the projected rows: noise, choices, class means and first biases."""

    noise: Noise
    chosen: dict[str, Any]
    class_means: NDArray[np.float16] | None
    biases: Float32 | None


@dataclass
class RowFit:
    """A fit in progress, or finished: futures of its parts, and what the client knows of it."""

    job: Job
    rows: DistributedRows
    config: FitConfig
    seed: int
    n_shards: int
    routed: bool
    plan: Any = None
    start: Any = None
    projection: PCA | None = None
    scaling: ColumnScaling | None = None
    scale: float = 1.0
    chosen: dict[str, Any] = field(default_factory=dict)
    shards: list[Any] = field(default_factory=list)
    history: list[Record] = field(default_factory=list)
    interrupted: bool = False
    is_finished: bool = False

    # -- the start -----------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Find scale, projection, noise and the ranges of the shards."""
        began, job, rows, config = time.perf_counter(), self.job, self.rows, self.config
        if rows.entries is not None and config.solver.scale_features:
            rows.X = limit_sparse(job, rows, config.numbers.scale, self.chosen)
        self._find_scale()
        projection = self._find_projection()
        if projection is None:
            Z = [job.submit(_no_projection, y) for y in rows.y]
        else:
            Z = [job.submit(_project, X, projection, self.scaling) for X in rows.X]
        weights = rows.weight or []
        self.start = job.submit(
            _fit_start,
            config,
            self.seed,
            rows.n_classes,
            job.lone_threads,
            len(rows.X),
            *rows.y,
            *Z,
            *weights,
        )
        self._counts = job.submit(_count, rows.n_classes, len(rows.X), *rows.y, *weights)
        counts, total = job.gather(self._counts)
        self._find_index_rows()
        self.plan = Plan(
            config=config,
            seed=self.seed,
            n_rows=rows.n_rows,
            n_features=rows.n_features,
            n_classes=rows.n_classes,
            bounds=class_bounds(counts, config, min(self.n_shards, rows.n_classes)),
            whole_weight=total,
            scale=self.scale,
            scaling=self.scaling,
            routed=self.routed,
        )
        self._drawing = [
            job.submit(
                _drawing_rows, int(rows.edges[i]), rows.y[i], Z[i],
                None if rows.weight is None else rows.weight[i],
                rows.X[i] if self.routed else None, self.start, job.task_threads,
            )
            for i in range(len(rows.X))
        ]  # fmt: skip
        self._noise = job.submit(_noise_of, self.start)
        biases = job.submit(_biases_of, self.start) if config.solver.starts_at_noise else None
        places = [job.workers[s % len(job.workers)] for s in range(self.plan.n_shards)]
        self._places = places
        self._all_rows = [None] * len(places)
        if not self.routed:  # one copy for each worker that trains
            copies = {
                place: job.submit(b.stack_rows, *rows.X, worker=place) for place in dict.fromkeys(places)
            }
            self._all_rows = [copies[place] for place in places]
        self.shards = [job.submit(start_shard, self.plan, s, biases, worker=p) for s, p in enumerate(places)]
        self._all_weights = None
        if config.solver.prior_variance is not None and rows.weight is not None:
            self._all_weights = job.submit(b.stack_rows, *rows.weight)
        self._inside_epoch = False
        self._wait([self.start, *self.shards])
        record: Record = {"epoch": 0, "seconds": time.perf_counter() - began, "loss": float("nan")}
        self.history = [{**record, "learning_rate": config.solver.learning_rate}]

    def _find_index_rows(self) -> None:
        """Take the rows that the index of beam search is fitted on, where there may be one."""
        rows, numbers = self.rows, self.config.numbers.pq
        self._index_rows: Any = (None, None)
        if rows.n_classes >= numbers.min_classes and rows.n_features <= numbers.max_features:
            some, order = index_rows(rows.n_rows, rows.n_features, numbers, self.seed)
            self._index_rows = (rows.take(self.job, some), order)

    def _wait(self, futures: list[Any]) -> None:
        """Wait for futures; raise what went wrong in one of them."""
        for future in import_distributed().wait(futures).done:
            if future.status == "error":
                future.result()

    def _find_scale(self) -> None:
        job, rows, config = self.job, self.rows, self.config
        numbers = config.numbers.scale
        if not config.solver.scale_features:
            return
        if rows.entries is None and numbers.standardize:
            self._find_scaling(numbers)
            if self.scaling is not None:
                self.scale = self.scaling.feature_scale
                return
        if rows.entries is None:
            cuts = b.even_cuts(rows.n_rows, scale_block_rows(rows.n_features))
            firsts = rows.edges[:-1].tolist()
        else:
            cuts, firsts = b.pairwise_cuts(int(rows.entries[-1])), rows.entries[:-1].tolist()
        parts = [job.submit(_square_sums, first, X, cuts) for first, X in zip(firsts, rows.X, strict=True)]
        n_entries = None if rows.entries is None else int(rows.entries[-1])
        self.scale = job.gather(job.submit(_finish_scale, rows.n_rows, n_entries, numbers, *parts))

    def _find_scaling(self, numbers: ScaleConfig) -> None:
        """Find how columns are standardised, where they need it."""
        job, rows = self.job, self.rows
        sample = rows.take(job, sample_places(rows.n_rows, numbers))
        limits = job.submit(ClipLimits.of, sample, numbers)
        weights = rows.weight or [None] * len(rows.X)
        cuts = b.even_cuts(rows.n_rows, BLOCK_ROWS)
        parts = [
            job.submit(_clipped_sums, first, X, weight, limits, cuts)
            for first, X, weight in zip(rows.edges[:-1].tolist(), rows.X, weights, strict=True)
        ]
        scaling = job.submit(
            _finish_scaling, sample, limits, rows.n_rows, numbers, len(parts), *parts, *(rows.weight or [])
        )
        limited = [job.submit(_count_limited, scaling, X) for X in rows.X]
        found, *counts = job.gather([scaling, *limited])
        n_limited = sum(counts)
        if found.is_needed(n_limited):
            self.scaling = found
            if n_limited:
                self.chosen["limited_rows"] = n_limited

    def _find_projection(self) -> Any:
        """Return the future of the tree's projection; None without one."""
        job, rows = self.job, self.rows
        trainer = RowTrainer(self.config, Context(self.seed))
        if not self.config.solver.uses_tree:
            dense = np.empty((0, rows.n_features), np.float32)
            self.projection = trainer.find_projection(dense, None, self.scale, self.scaling)
            return self.projection
        most = trainer.projection_rows
        places = np.arange(rows.n_rows)
        if most is not None and rows.n_rows > most:
            places = spread_rows(rows.n_rows, most)
        future = job.submit(
            _fit_projection, self.config, self.seed, rows.take(job, places), rows.take_weight(job, places),
            self.scale, self.scaling, job.lone_threads,
        )  # fmt: skip
        self.projection = job.gather(future)
        return future

    # -- training ------------------------------------------------------------------------------------------

    def train(self, report: Callable[[Record], bool], interrupts: Interrupts) -> None:
        """Train all epochs, or until `report` of an epoch returns True.

        After Ctrl-C or an error, shards and history are those of the last step that all shards have finished.
        """
        try:
            with interrupts.deferred():
                self._train(report, interrupts)
            self.is_finished = True
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            # Rows are not needed any more; the scheduler keeps the recipe of what shards were made of.
            self._all_rows, self._drawing, self.rows.X, self.rows.y, self.rows.weight = [], [], [], [], None

    def _train(self, report: Callable[[Record], bool], interrupts: Interrupts) -> None:
        """Train step by step; negatives of the next step are drawn while shards train."""
        plan, began = self.plan, time.perf_counter() - self.history[0]["seconds"]
        n_windows = count_windows(plan.n_rows, plan.n_features, plan.config.numbers.order)
        groups = [[w] for w in range(n_windows)] if self.routed else [list(range(n_windows))]
        steps = [(epoch, group) for epoch in range(plan.config.n_epochs) for group in groups]
        pieces = self._draw(*steps[0]) if steps else []
        for i, (epoch, windows) in enumerate(steps):
            shards = [
                self.job.submit(
                    _train_shard, plan, shard, windows, self._all_rows[s], self._all_weights,
                    self.job.task_threads, *(of_block[s] for of_block in pieces), worker=self._places[s],
                )
                for s, shard in enumerate(self.shards)
            ]  # fmt: skip
            pieces = self._draw(*steps[i + 1]) if i + 1 < len(steps) else []
            self._finish_step(shards, interrupts, inside_epoch=windows[-1] < n_windows - 1)
            if windows[-1] == n_windows - 1:
                losses = self.job.gather([self.job.submit(_loss_of, shard) for shard in self.shards])
                loss = sum(losses) / plan.whole_weight
                if not np.isfinite(loss):
                    raise ValueError(
                        f"Training diverged: the loss of epoch {epoch + 1} is {loss}. Use a smaller"
                        f" learning_rate (it is {plan.config.solver.learning_rate:g}), optimizer='adagrad',"
                        " or smaller sample weights."
                    )
                record = {"epoch": epoch + 1, "seconds": time.perf_counter() - began, "loss": loss}
                self.history.append({**record, "learning_rate": plan.config.solver.learning_rate})
                with interrupts.immediate():
                    wants_end = report(self.history[-1])
                if wants_end:
                    break

    def _finish_step(self, shards: list[Any], interrupts: Interrupts, *, inside_epoch: bool) -> None:
        """Wait for the shards of a step; if that fails, go back to those before it."""
        try:
            with interrupts.immediate():
                self._wait(shards)
        except BaseException:
            self.job.client.cancel(shards)
            if self._inside_epoch:
                self.shards = [self.job.submit(leave_epoch, self.plan, shard) for shard in self.shards]
                self._inside_epoch = False
            raise
        self.shards, self._inside_epoch = shards, inside_epoch

    def _draw(self, epoch: int, windows: list[int]) -> list[list[Any]]:
        """Return futures of the pieces of an epoch, by block and shard."""
        job, plan = self.job, self.plan
        found = []
        for block in self._drawing:
            drawn = job.submit(draw_pairs, plan, block, self._noise, epoch, windows, job.task_threads)
            found.append([job.submit(_piece_of, drawn, s) for s in range(plan.n_shards)])
        return found

    # -- the model -----------------------------------------------------------------------------------------

    def assemble(self) -> Any:
        """Return the future of the whole model, as a fit on one machine leaves it."""
        sample = self._index_rows if self.is_finished else (None, None)
        return self.job.submit(
            assemble, self.head(), self._counts, self.start, *sample, self.job.lone_threads, *self.shards
        )

    def save(self, path: str, labels: NDArray[Any], header: dict[str, Any]) -> None:
        """Write the model to a folder; every worker writes the shards that it has."""
        head = self.head()
        start, (counts, _) = self.job.gather([self.start, self._counts])
        state = head.train_state(start, _Elsewhere(self.plan))
        model = head.model(state, _Elsewhere(self.plan), counts)
        if self.is_finished and model.takes_index:
            fitted = self.job.gather(self.job.submit(_searches_of, self.assemble()))
            for name, index in fitted.items():
                model = model.with_search(name, index)

        def write_shards(folder: Path) -> int:
            tasks = [
                self.job.submit(_save_shard, str(folder), i, shard) for i, shard in enumerate(self.shards)
            ]
            self._wait(tasks)
            missing = [i for i in range(len(tasks)) if not (folder / shard_name(i)).is_dir()]
            if missing:
                raise OSError(
                    f"the workers have written shard {missing[0]} to a folder {folder} that this process does"
                    " not see; choose a folder that all of them share, or use to_local().save(path)."
                )
            return len(tasks)

        card = make_card(model, labels, history=self.history, parameters=header.get("parameters", {}))
        save_model(path, model, state, labels=labels, header=header, card=card, write_shards=write_shards)

    def head(self) -> Head:
        """Return what the model has beside noise and weights."""
        history = [dict(record) for record in self.history]
        return Head(self.plan, self.projection, self.chosen, history, self.interrupted)


class Head(NamedTuple):
    """What a model has beside noise and weights."""

    plan: Plan
    projection: PCA | None
    chosen: dict[str, Any]
    history: list[Record]
    interrupted: bool = False

    def train_state(self, start: Start, tables: Any) -> TrainState:
        """Return the state from which training can go on."""
        plan = self.plan
        return TrainState(
            tables,
            plan.scale,
            start.noise,
            self.projection,
            scaling=plan.scaling,
            n_epochs=self.history[-1]["epoch"],
            class_means=start.class_means,
            chosen={**self.chosen, **start.chosen},
        )

    def model(self, state: TrainState, weights: Any, counts: Int64) -> Model:
        """Return the model of a state."""
        classes = ClassInfo(counts, self.plan.n_rows)
        return Model(weights, self.plan.config.solver.name, classes=classes).trained(state, self.plan.config)


def assemble(
    head: Head,
    counted: tuple[Int64, float],
    start: Start,
    sample: Any,
    order: Any,
    n_threads: int,
    *shards: ShardState,
) -> Fitted:
    """Join the shards, and fit the index of beam search where there is one."""
    tables = Tables.join([shard.tables for shard in shards])
    state = head.train_state(start, tables)
    model = head.model(state, DenseWeights(tables.weights, tables.biases, head.plan.scale), counted[0])
    if sample is not None and model.takes_index:
        index = fit_index_on(model, sample[order], None, n_threads=n_threads)
        model = model.with_search("beam", index)
    return Fitted(model, state, head.history, head.interrupted)


class _Elsewhere:
    """Weights and tables that stay on the workers: their shape alone."""

    kind = "dense"

    def __init__(self, plan: Plan) -> None:
        self.feature_scale = plan.scale
        self.n_classes, self.n_features = plan.n_classes, plan.n_features

    def state(self) -> State:
        return State({"kind": self.kind, "feature_scale": self.feature_scale})

    def training_state(self) -> State:
        return State({})


def _save_shard(folder: str, number: int, shard: ShardState) -> None:
    if not os.path.isdir(folder):
        raise OSError(
            f"a worker does not see the folder {folder}; choose one that all workers share, or use"
            " to_local().save(path)."
        )
    save_shard(folder, number, shard.first, shard.tables)


def _searches_of(fitted: Fitted) -> dict[str, Any]:
    return dict(fitted.model.searches)


def wants_routing(job: Job, row_bytes: int) -> bool:
    """Whether all rows take too much of a worker's memory to be held by every shard."""
    limits = [limit for limit in job.memory_limits() if limit]
    return bool(limits) and row_bytes > _REPLICATED_FRACTION * min(limits)


def require_drawable(noise: Any) -> None:
    """Refuse noise of one's own that cannot draw for some rows of many."""
    if not isinstance(noise, str) and not draws_by_position(noise):
        raise ValueError(
            f"noise of type {type(noise).__name__} cannot draw negatives for some of the rows alone; use"
            " UniformNoise, FrequencyNoise, TreeNoise or a mixture of them."
        )


# -- tasks of the start


def limit_sparse(job: Job, rows: DistributedRows, config: ScaleConfig, chosen: dict[str, Any]) -> list[Any]:
    """Return blocks without rows that are far longer than others."""
    if not config.standardize or rows.n_rows < config.min_rows:
        return rows.X
    lengths = [job.submit(row_lengths, X) for X in rows.X]
    limit, n_limited = job.gather(job.submit(_find_limit, config, *lengths))
    if not n_limited:
        return rows.X
    chosen["limited_rows"] = n_limited
    return [job.submit(_shorten, X, of_X, limit) for X, of_X in zip(rows.X, lengths, strict=True)]


def row_lengths(X: Any) -> Float64:
    """Return the length of each row of a sparse block."""
    lengths: Float64 = np.sqrt(square_sums(X.indptr, X.data))
    return lengths


def _find_limit(config: ScaleConfig, *lengths: Float64) -> tuple[float, int]:
    joined = np.concatenate(lengths)
    limit = length_limit(joined, config)
    return limit, int((joined > limit).sum())


def _shorten(X: Any, lengths: Float64, limit: float) -> Any:
    return shorten_rows(X, lengths, limit)[0]


def find_large_columns(job: Job, X: list[Any], entries: Int64, n_columns: int, config: ScaleConfig) -> Any:
    """Return columns of sparse blocks that are far larger than others; None where there are none."""
    if not config.standardize or entries[-1] == 0:
        return None
    stride = sparse_stride(int(entries[-1]), config)
    firsts = entries[:-1].tolist()
    sizes = [job.submit(_entry_sizes, block, first, stride) for block, first in zip(X, firsts, strict=True)]
    if not job.gather(job.submit(_may_be_large, config, *sizes)):
        return None
    maxima = [job.submit(_column_maxima, block, n_columns) for block in X]
    found = job.submit(_candidate_columns, config, *maxima)
    entries_of = [job.submit(_entries_of, block, found) for block in X]
    return job.gather(job.submit(_choose_large, config, found, *entries_of))


def _entry_sizes(X: Any, first: int, stride: int) -> tuple[float, Float32]:
    values = np.abs(X.data)
    return float(values.max(initial=0.0)), values[-first % stride :: stride]


def _may_be_large(config: ScaleConfig, *sizes: tuple[float, Float32]) -> bool:
    some = np.concatenate([values for _, values in sizes])
    return LargeColumns.may_exist(max(largest for largest, _ in sizes), some, config)


def _column_maxima(X: Any, n_columns: int) -> Float32:
    return column_maxima(np.abs(X.data), X.indices, n_columns)


def _candidate_columns(config: ScaleConfig, *maxima: Float32) -> Any:
    return LargeColumns.candidates(np.max(maxima, axis=0), config)


def _entries_of(X: Any, found: Any) -> tuple[Float32, Int32]:
    among = found[1][X.indices]
    return np.abs(X.data[among]), X.indices[among]


def _choose_large(config: ScaleConfig, found: Any, *entries: tuple[Float32, Int32]) -> LargeColumns | None:
    values, indices = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    return LargeColumns.among(values, indices, found[0], config)


def scale_columns(X: Features, large: LargeColumns) -> Features:
    """Return a block with large columns scaled down."""
    return large.scale(X)


def _square_sums(first: int, X: Any, cuts: Int64) -> b.Partials:
    lines = X.data if sparse.issparse(X) else X
    return b.work_on_stretches(first, (lines,), cuts, b.sum_squares)


def _finish_scale(n_rows: int, n_entries: int | None, config: ScaleConfig, *parts: b.Partials) -> float:
    sums = b.complete(parts, b.sum_squares)
    if n_entries is not None:
        return scale_of_squares(b.pairwise_total(sums, n_entries), n_rows, config)
    total = 0.0
    for part in sums:
        total += part
    return scale_of_squares(total, n_rows, config)


def _clipped_sums(first: int, X: Any, weight: Any, limits: ClipLimits, cuts: Int64) -> b.Partials:
    with one_blas_thread():
        if weight is None:
            return b.work_on_stretches(first, (X,), cuts, lambda rows: limits.block_sums(rows, None))
        return b.work_on_stretches(first, (X, weight), cuts, limits.block_sums)


def _finish_scaling(
    sample: Any, limits: ClipLimits, n_rows: int, config: ScaleConfig, n_parts: int, *rest: Any
) -> ColumnScaling:
    parts, weights = rest[:n_parts], rest[n_parts:]
    with one_blas_thread():
        if weights:
            sums = b.complete(parts, limits.block_sums)
        else:
            sums = b.complete(parts, lambda rows: limits.block_sums(rows, None))
    total = float(np.sum(np.concatenate(weights), dtype=np.float64)) if weights else float(n_rows)
    sample = np.ascontiguousarray(sample, dtype=np.float32)
    return ColumnScaling.from_moments(sample, limits, add_block_sums(sums, total), n_rows, config)


def _count_limited(scaling: ColumnScaling, X: Any) -> int:
    return scaling.count_limited(X)


def _fit_projection(
    config: FitConfig, seed: int, X: Any, weight: Any, scale: float, scaling: Any, n_threads: int
) -> PCA | None:
    return RowTrainer(config, Context(seed, n_threads)).find_projection(X, weight, scale, scaling)


def _project(X: Any, projection: PCA, scaling: ColumnScaling | None) -> Float32:
    Z = projection.transform(X, n_jobs=1)
    if scaling is not None:
        limit_projected(Z, scaling)
    return Z


def _no_projection(y: Int32) -> Float32:
    return np.empty((len(y), 0), np.float32)


def _fit_start(
    config: FitConfig, seed: int, n_classes: int, n_threads: int, n_blocks: int, *arrays: Any
) -> Start:
    """Fit the noise on the projected rows of all blocks."""
    y, Z, weight = (arrays[i * n_blocks : (i + 1) * n_blocks] for i in range(3))
    labels, joined = np.concatenate(y), np.concatenate(Z)
    data = Examples.labels_only(labels, len(labels))
    if weight:
        data = data.with_row_weight(np.concatenate(weight))
    context = Context(seed, n_threads)
    noise, chosen = fit_noise(data, joined, n_classes, config, context)
    means = None if noise.tree is None else class_means(joined, data, n_classes)
    biases = None
    if config.solver.starts_at_noise:
        biases = RowTrainer(config, context).mean_log_noise(noise, data, joined)
    return Start(noise, chosen, means, biases)


def _noise_of(start: Start) -> Noise:
    return start.noise


def _biases_of(start: Start) -> Float32 | None:
    return start.biases


def _count(n_classes: int, n_blocks: int, *arrays: Any) -> tuple[Int64, float]:
    """Return the rows of each class, and the weight of all."""
    y, weight = arrays[:n_blocks], arrays[n_blocks:]
    counts = np.bincount(np.concatenate(y), minlength=n_classes)
    # the sum of an array of float32 ones, and of float32 weights, in float64
    total = float(np.concatenate(weight).sum(dtype=np.float64)) if weight else float(counts.sum())
    return counts, total


def _drawing_rows(
    first: int, y: Int32, Z: Float32, weight: Any, X: Any, start: Start, n_threads: int
) -> DrawingRows:
    log_noise = start.noise.log_prob(Z, y, n_jobs=n_threads)
    return DrawingRows(first, y, Z, log_noise, weight, X)


def _piece_of(drawn: Any, shard: int) -> Any:
    return drawn[shard]


def _train_shard(
    plan: Plan, state: ShardState, windows: list[int], X: Any, weight: Any, n_threads: int, *pieces: Any
) -> ShardState:
    return train_shard(plan, state, windows, pieces, X, weight, n_threads)


def _loss_of(state: ShardState) -> float:
    return state.loss
