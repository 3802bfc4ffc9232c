"""Train a range of classes by itself: the same bits as training of all classes on one machine.

Under a loss that compares every score with a number of its own (negative sampling, NCE), the gradient of a
class needs the pairs (row, class) of that class and its own weights, nothing else.  Negatives are hashes of
(seed, epoch, position of the row), so all workers with a row draw the same.  `draw_pairs` draws the
negatives of a block of rows and sends each pair to the shard of its class; `train_shard` puts the pairs of
all blocks in the order of the epoch and trains in the minibatches of all rows.  Both are pure functions of
their arguments: a task that is run again gives the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from extremax.features.scaling import BLOCK_CLASSES, ColumnScaling
from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.row_training import Pairs, Step
from extremax.kernels.row_updates import CSRRows
from extremax.runtime.context import Context
from extremax.solvers.config import FitConfig
from extremax.solvers.negative_sampling import PriorSchedule, RowTrainer, train_batches
from extremax.solvers.optimizers import Tables
from extremax.solvers.order import epoch_seed, shuffled_windows
from extremax.tree.noise import Noise, sample_at
from extremax.tuned import OrderConfig
from extremax.types import Features, Float32, Int32, Int64

PAIR_LOSSES = ("negative_sampling", "nce")  # solvers whose classes are independent given the negatives
_LARGEST_INT32 = 2**31 - 1
_order_lock = threading.Lock()


@dataclass(frozen=True)
class Plan:
    """What all tasks of a fit know.

    Attributes
    ----------
    n_rows, n_features, n_classes
        Of all blocks and shards together.
    bounds
        First class of each shard, and the number of classes: (n_shards + 1,).
    whole_weight
        Sum of the weights of all rows.
    routed
        Whether rows of X travel with their pairs; else every shard holds all rows.
    """

    config: FitConfig
    seed: int
    n_rows: int
    n_features: int
    n_classes: int
    bounds: tuple[int, ...]
    whole_weight: float
    scale: float
    scaling: ColumnScaling | None = None
    routed: bool = False

    @property
    def n_shards(self) -> int:
        return len(self.bounds) - 1

    @property
    def width(self) -> int:
        """Pairs of a row: its label and its negatives."""
        return 1 + int(self.config.solver.n_negatives)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of all rows in an epoch."""
        row_bytes = 4 * self.n_features
        with _order_lock:  # tasks of one worker wait for one of them to compute it
            return _epoch_order(self.n_rows, row_bytes, self.seed, epoch, self.config.numbers.order)


class EpochOrder(NamedTuple):
    """The order of the rows in an epoch.

    Attributes
    ----------
    windows
        Rows of each window, in order.
    window, position
        Of each row: the number of its window, and its position there.
    """

    windows: list[Int64]
    window: Int32
    position: Int64


@lru_cache(maxsize=2)
def _epoch_order(n_rows: int, row_bytes: int, seed: int, epoch: int, config: OrderConfig) -> EpochOrder:
    windows = list(shuffled_windows(n_rows, row_bytes, seed, epoch, config))
    window, position = np.empty(n_rows, np.int32), np.empty(n_rows, np.int64)
    for number, rows in enumerate(windows):
        window[rows] = number
        position[rows] = np.arange(len(rows))
    return EpochOrder(windows, window, position)


def count_windows(n_rows: int, n_features: int, config: OrderConfig) -> int:
    """Return the number of windows of an epoch."""
    size = max(
        config.chunk_rows,
        config.window_bytes // max(4 * n_features, 1) // config.chunk_rows * config.chunk_rows,
    )
    return -(-n_rows // size)


def class_bounds(counts: Int64, config: FitConfig, n_shards: int) -> tuple[int, ...]:
    """Cut the classes into ranges with about the same number of pairs, none of them empty.

    Labels are counted, and negatives expected as the noise draws them; no result depends on the cuts.
    """
    n_classes, n_rows = len(counts), float(counts.sum())
    expected = counts.astype(np.float64)
    if config.solver.uses_noise and config.solver.noise == "uniform":
        expected += config.solver.n_negatives * n_rows / n_classes
    elif config.solver.uses_noise:  # the mean of a tree over the rows is about the frequencies
        expected += config.solver.n_negatives * expected
    done = np.concatenate([[0.0], np.cumsum(expected)])
    wanted = done[-1] * np.arange(1, n_shards) / n_shards
    cuts = np.searchsorted(done, wanted)
    lowest = np.arange(1, n_shards)  # every shard has a class
    cuts = np.minimum(np.maximum(np.maximum.accumulate(np.maximum(cuts, lowest)), lowest), n_classes)
    for i in range(len(cuts)):
        cuts[i] = min(max(cuts[i], cuts[i - 1] + 1 if i else 1), n_classes - (len(cuts) - i))
    return (0, *(int(cut) for cut in cuts), n_classes)


class DrawingRows(NamedTuple):
    """What drawing the negatives of a block of rows needs.

    Attributes
    ----------
    first
        Number of the first row of the block.
    y, Z, log_noise
        Class, projection and log p_n(y|x) of each row.
    weight
        Weight of each row, or None.
    X
        Features, where rows travel with their pairs; else None.
    """

    first: int
    y: Int32
    Z: Float32
    log_noise: Float32
    weight: Float32 | None
    X: Features | None


class Piece(NamedTuple):
    """Pairs of one block and one window that belong to one shard.

    Attributes
    ----------
    slots
        Position of the row in its window times the pairs of a row, plus the column of the pair.
    labels
        Class, counted from the first one of the shard.
    log_noise, weight
        log p_n, and the weight of the row (None: one).
    rows, X
        Where rows travel with their pairs: the distinct rows, and that of each pair.
    """

    slots: Any
    labels: Int32
    log_noise: Float32
    weight: Float32 | None = None
    rows: Int32 | None = None
    X: Any = None


def draw_pairs(
    plan: Plan, block: DrawingRows, noise: Noise, epoch: int, windows: Sequence[int], n_threads: int
) -> list[list[Piece]]:
    """Draw the negatives of a block in some windows of an epoch; return pieces by shard and window."""
    order = plan.order(epoch)
    cut = slice(block.first, block.first + len(block.y))
    window, position = order.window[cut], order.position[cut]
    found: list[list[Piece]] = [[] for _ in range(plan.n_shards)]
    for number in windows:
        rows = np.arange(len(block.y)) if len(order.windows) == 1 else np.flatnonzero(window == number)
        places = position[rows]
        labels = np.empty((len(rows), plan.width), np.int32)
        log_noise = np.empty((len(rows), plan.width), np.float32)
        labels[:, 0], log_noise[:, 0] = block.y[rows], block.log_noise[rows]
        seed = epoch_seed(plan.seed, epoch, number)
        labels[:, 1:], log_noise[:, 1:] = sample_at(
            noise, block.Z[rows], places, plan.config.solver.n_negatives, seed, n_jobs=n_threads
        )
        n_slots = len(order.windows[number]) * plan.width
        columns = places[:, None] * plan.width + np.arange(plan.width)
        slots: Any = columns.astype(np.int32 if n_slots <= _LARGEST_INT32 else np.int64).ravel()
        flat, noise_flat = labels.ravel(), log_noise.ravel()
        for shard, (low, high) in enumerate(pairwise(plan.bounds)):
            chosen = np.flatnonzero((flat >= low) & (flat < high))
            row = rows[chosen // plan.width]
            piece = Piece(
                slots[chosen],
                flat[chosen] - np.int32(low),
                noise_flat[chosen],
                None if block.weight is None else block.weight[row],
            )
            if plan.routed and block.X is not None:
                is_new = np.diff(row, prepend=-1) != 0  # rows rise
                local = np.cumsum(is_new, dtype=np.int32) - np.int32(1)
                piece = piece._replace(rows=local, X=block.X[row[is_new]])
            found[shard].append(piece)
    return found


@dataclass(frozen=True)
class ShardState:
    """Weights and accumulators of a range of classes, and how far an epoch has come.

    Attributes
    ----------
    first
        Number of the first class.
    tables
        Weights, biases and accumulators of the classes; inside an epoch those of standardised rows.
    n_epochs
        Whole epochs trained.
    loss
        Sum of the losses of the pairs of the present or last epoch.
    pairs_done, weight_done, due, weight_shrunk
        Rows and weight of the epoch so far, and the counters of the prior.
    """

    first: int
    tables: Tables
    n_epochs: int = 0
    loss: float = 0.0
    pairs_done: int = 0
    weight_done: float = 0.0
    due: int = 0
    weight_shrunk: float = 0.0


def start_shard(plan: Plan, shard: int, biases: Float32 | None) -> ShardState:
    """Return a shard before its first epoch."""
    first, last = plan.bounds[shard : shard + 2]
    trainer = RowTrainer(plan.config, Context(plan.seed))
    tables = trainer.new_tables(last - first, plan.n_features)
    if biases is not None:
        tables.biases[:] = biases[first:last]
    return ShardState(first, tables)


def train_shard(
    plan: Plan,
    state: ShardState,
    windows: Sequence[int],
    pieces: Sequence[Sequence[Piece]],
    X: Features | None,
    weight: Float32 | None,
    n_threads: int,
) -> ShardState:
    """Return the shard after some windows of an epoch.

    Parameters
    ----------
    pieces
        By block of rows, for each of the windows.
    X
        All rows, where they do not travel with their pairs.
    weight
        Weights of all rows, where there are weights and a prior.
    """
    threads = 1 if JIT_DISABLED else n_threads
    epoch, tables = state.n_epochs, _copy(state.tables)
    order = plan.order(epoch)
    is_first, is_last = windows[0] == 0, windows[-1] == len(order.windows) - 1
    if is_first:
        state = replace(state, loss=0.0, pairs_done=0, weight_done=0.0, due=0, weight_shrunk=0.0)
        _convert(plan, tables, state.first, threads, to_training=True)
    prior = PriorSchedule(plan.config, tables, plan.n_classes, plan.n_rows, plan.whole_weight)
    prior.due, prior.weight_shrunk = state.due, state.weight_shrunk
    trainer = RowTrainer(plan.config, Context(plan.seed, threads))
    step = _step(plan)
    for i, number in enumerate(windows):
        rows_of_window = order.windows[number]
        found = _join(plan, [of_block[i] for of_block in pieces], rows_of_window, X)
        has_prior = plan.config.solver.prior_variance is not None
        stretch = trainer.stretch_rows if has_prior else len(rows_of_window)
        for start in range(0, len(rows_of_window), stretch):
            stop = min(start + stretch, len(rows_of_window))
            state = replace(
                state, loss=state.loss + _train(plan, found, (start, stop), tables, step, threads)
            )
            if has_prior:
                chosen = rows_of_window[start:stop]
                done = float(len(chosen)) if weight is None else float(weight[chosen].sum())
                weight_done, pairs_done = state.weight_done + done, state.pairs_done + len(chosen)
                rate = plan.config.solver.learning_rate
                prior.advance(plan.width * len(chosen), weight_done, pairs_done, rate, threads)
                state = replace(state, weight_done=weight_done, pairs_done=pairs_done)
    if is_last:
        _convert(plan, tables, state.first, threads, to_training=False)
    return replace(
        state, tables=tables, n_epochs=epoch + is_last, due=prior.due, weight_shrunk=prior.weight_shrunk
    )


def leave_epoch(plan: Plan, state: ShardState) -> ShardState:
    """Return a shard that was left inside an epoch with weights for the features as given."""
    tables = _copy(state.tables)
    _convert(plan, tables, state.first, 1, to_training=False)
    return replace(state, tables=tables)


class _WindowPairs(NamedTuple):
    """Pairs of a window and a shard in the order of training, and the rows they refer to."""

    X: Any
    pairs: Pairs
    slots: Any


def _join(plan: Plan, pieces: Sequence[Piece], rows_of_window: Int64, X: Features | None) -> _WindowPairs:
    """Put the pairs of all blocks in the order of their slots."""
    slots = np.concatenate([piece.slots for piece in pieces])
    kind: Any = np.int32 if len(slots) <= _LARGEST_INT32 else np.int64
    place: Any = np.full(len(rows_of_window) * plan.width, -1, kind)
    place[slots] = np.arange(len(slots), dtype=place.dtype)
    order = place[place >= 0]
    slots = slots[order]
    if X is None:
        sizes = np.cumsum([0, *(piece.X.shape[0] for piece in pieces)])
        parts: list[Any] = [piece.rows for piece in pieces]
        rows = np.concatenate([part + first for part, first in zip(parts, sizes, strict=False)])[order]
        X = _stack([piece.X for piece in pieces])
    else:
        rows = rows_of_window[slots // plan.width]
    if plan.scaling is not None and not sparse.issparse(X):
        distinct, rows = np.unique(rows, return_inverse=True)
        X, rows = plan.scaling.rows(np.ascontiguousarray(X[distinct])), rows.astype(np.int64, copy=False)
    n = len(slots)
    log_noise = np.concatenate([piece.log_noise for piece in pieces])[order][:, None]
    weights = [piece.weight for piece in pieces]
    weight = np.ones(n, np.float32)
    if weights[0] is not None:
        weight = np.concatenate(weights)[order]  # type: ignore[arg-type]
    adds = plan.config.solver.adds_log_noise
    pairs = Pairs(
        rows=rows,
        labels=np.concatenate([piece.labels for piece in pieces])[order][:, None],
        log_base=log_noise if adds else np.zeros_like(log_noise),
        log_noise=log_noise,
        row_weight=weight,
        scores=np.empty((n, 1), np.float32),
        coefficients=np.empty((n, 1), np.float32),
        losses=np.empty(n, np.float64),
        eta=(slots % plan.width > 0).astype(np.float32),
    )
    return _WindowPairs(_kernel_rows(X), pairs, slots)


def _stack(parts: Sequence[Any]) -> Any:
    if sparse.issparse(parts[0]):
        return sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


def _kernel_rows(X: Any) -> Any:
    """Return rows as the kernels take them: arrays that may be written to are one type for numba."""
    if sparse.issparse(X):
        kinds = ((X.data, np.float32), (X.indices, np.int32), (X.indptr, np.int64))
        return CSRRows(*(np.require(array, kind, ["C", "W"]) for array, kind in kinds))
    return np.require(X, np.float32, ["C", "W"])


def _train(
    plan: Plan, found: _WindowPairs, rows: tuple[int, int], tables: Tables, step: Step, threads: int
) -> float:
    """Train on the minibatches of some rows of a window; return the sum of the losses of their pairs."""
    edges = np.append(np.arange(rows[0], rows[1], plan.config.solver.batch_size), rows[1]) * plan.width
    ends = np.searchsorted(found.slots, edges).astype(np.int64)
    train_batches(found.X, found.pairs, ends, tables.arrays, step, threads)
    return float(found.pairs.losses[ends[0] : ends[-1]].sum())


def _step(plan: Plan) -> Step:
    """Return the step of single pairs; `Pairs.eta` is 0 for the label of a row and 1 for a negative."""
    config = plan.config
    loss = config.solver.loss(0, config.numbers.rows)._replace(by_eta=True)
    scale = np.float32(1.0 if plan.scaling else plan.scale)
    return Step(loss, scale, np.float32(config.solver.learning_rate))


def _copy(tables: Tables) -> Tables:
    """Return tables of their own memory, which starts on a cache line."""
    optimizer = {0: "sgd", 1: "adagrad_row"}.get(tables.squares.shape[1], "adagrad")
    n_classes, n_features = tables.weights.shape
    copy = Tables.zeros(n_classes, n_features, "adagrad" if tables.per_weight else optimizer)
    for own, given in zip(copy.arrays, tables.arrays, strict=True):
        np.copyto(own, given)
    return copy


def _convert(plan: Plan, tables: Tables, first: int, threads: int, *, to_training: bool) -> None:
    """Turn weights into those of standardised rows, or back, in place.

    Blocks of classes are converted together on one machine, and a row of a product may depend on its place in
    the block: a shard computes whole blocks, with zeros for the classes of others.
    """
    scaling = plan.scaling
    if scaling is None:
        return
    convert = scaling.to_training if to_training else scaling.to_features
    last = first + tables.n_classes
    low = first // BLOCK_CLASSES * BLOCK_CLASSES
    high = min(-(-last // BLOCK_CLASSES) * BLOCK_CLASSES, plan.n_classes)
    weights = np.zeros((high - low, plan.n_features), np.float32)
    biases = np.zeros(high - low, np.float32)
    own = slice(first - low, last - low)
    weights[own], biases[own] = tables.weights, tables.biases
    convert(weights, biases, threads)
    tables.weights[...], tables.biases[...] = weights[own], biases[own]
