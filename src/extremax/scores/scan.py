"""One pass over all classes for blocks of rows: scores that are made and consumed in cache.

Dense weights are scanned by tiles, sparse ones by columns (`_scan_columns`).

A tile is the product of a block of rows with the weights of some classes, and log p_n of the same pairs:
computed for a block of rows at a time if the noise depends on the row, or once for all rows.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from extremax.kernels import topk
from extremax.kernels.simd import TILE
from extremax.runtime.products import one_blas_thread
from extremax.runtime.scratch import Scratch
from extremax.runtime.threads import run, split
from extremax.scores.base import BlockScores, Buffers, Scorer, SearchConfig
from extremax.scores.sparse import ColumnBlock, SparseWeights
from extremax.types import Features, Float32, Int32

# Scores of a few rows, kept from call to call where they are small: fresh pages would cost a tenth of the
# time of a single row.
_KEPT_BYTES = 16 << 20
_TILES_AT_ONCE = 8  # tiles in memory at the same time: assumed, not counted
_CLASS_GROUPS = 16  # groups of classes, the tasks that threads share
_ROW_BLOCK = 512  # rows that read the columns of sparse weights together, at most
_row_scratch: Scratch[Buffers] = Scratch(Buffers)


class ScanResult(NamedTuple):
    """Best classes of each row, normalised over all classes.

    Attributes
    ----------
    labels : int32 (n_samples, k)
    log_prob : float32 (n_samples, k)
    target_log_prob : float32 (n_samples,)
        Of the given targets.
    inverse_temperature : float32 (n_samples,)
        Of each row.
    """

    labels: Int32
    log_prob: Float32
    target_log_prob: Float32
    inverse_temperature: Float32

    @classmethod
    def empty(cls, n_rows: int, k: int, inverse_temperature: np.float32) -> ScanResult:
        """Return arrays to be filled; all rows have the same temperature."""
        labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        return cls(labels, log_prob, np.empty(n_rows, np.float32), np.full(n_rows, inverse_temperature))

    def finish(self, states: topk.RowState, first: int, last: int) -> None:
        """Fill rows `first` to before `last` from their states."""
        labels, log_prob, target_log_prob, inverse = self.rows(first, last)
        topk.finish_rows(states, inverse, labels, log_prob, target_log_prob)

    def rows(self, first: int, last: int) -> ScanResult:
        """Return views of rows `first` to before `last`."""
        labels, log_prob, target, inverse = self
        return ScanResult(labels[first:last], log_prob[first:last], target[first:last], inverse[first:last])


def _even_blocks(n_rows: int, most: int) -> int:
    """Return rows per block: at most `most`, in blocks of about equal size."""
    n_blocks = max(1, -(-n_rows // max(most, 1)))
    return max(1, -(-n_rows // n_blocks))


class Tiles:
    """The tiles of all classes; `bounds` are the first and last class of each."""

    def __init__(
        self, scorer: Scorer, Z: Float32 | None, n_rows: int, config: SearchConfig, n_threads: int
    ) -> None:
        self.noise, self.Z, self.n_threads = scorer.noise_term, Z, n_threads
        self.biases = scorer.weights.biases
        n_classes = scorer.weights.n_classes
        shared = np.zeros(n_classes, np.float32) if self.noise is None else self.noise.shared_log_prob
        self.row_step = 1 if shared is None else 0  # 0: one row of log p_n serves all
        # with a temperature by row, the scores of a block are summed twice
        kept = n_classes if shared is None or scorer.tempers_rows else topk.STRIP
        row_bytes = 4 * (scorer.weights.row_width + kept)
        self.block_rows = _even_blocks(n_rows, min(config.block_rows, config.scratch_bytes // 2 // row_bytes))
        tile_scores = min(config.tile_scores, config.scratch_bytes // (8 * _TILES_AT_ONCE))
        width = min(tile_scores // self.block_rows, -(-n_classes // _CLASS_GROUPS))
        self.bounds = split(n_classes, max(1, width // topk.STRIP) * topk.STRIP)
        self.labels = np.arange(n_classes, dtype=np.int32)
        self.table = (
            np.empty((self.block_rows, n_classes), np.float32)
            if shared is None
            else np.array(shared[None, :], np.float32)
        )

    def start_block(self, first: int, last: int) -> Float32:
        """Return log p_n of all classes for rows `first` to before `last`, or the one row for all."""
        if self.noise is None or self.row_step == 0:
            return self.table
        Z = np.empty((last - first, 0), np.float32) if self.Z is None else self.Z[first:last]
        return self.noise.log_prob_all(Z, out=self.table[: last - first], n_jobs=self.n_threads)

    def columns(self, number: int) -> topk.Columns:
        start, stop = self.bounds[number]
        return topk.Columns(self.labels[start:stop], self.biases[start:stop], start)

    def log_noise(self, number: int, block: Float32) -> topk.LogNoise:
        return topk.LogNoise(block, self.row_step, self.bounds[number][0])


class _Scan:
    """The parts of a scan that all its tasks share."""

    def __init__(self, scorer: Scorer, tiles: Tiles, k: int, config: SearchConfig) -> None:
        self.tiles = tiles
        n_tiles = len(tiles.bounds)
        # Every group keeps k classes: where k is large, there are fewer groups.
        n_groups = min(_CLASS_GROUPS, max(1, scorer.n_classes // (16 * k)))
        self.groups = split(n_tiles, -(-n_tiles // n_groups))
        self.scaling = topk.Scaling(np.float32(scorer.weights.feature_scale), scorer.inverse_temperature)
        self.scratch = Scratch(lambda: Buffers(config.tile_scores))

    def scan_group(
        self, rows: BlockScores, block: Float32, states: topk.RowState, kept: Float32 | None, group: int
    ) -> None:
        """Merge the tiles of one group of classes into the states of all rows of a block.

        Products go to `kept` (n_rows * n_classes), tile after tile, where it is given.
        """
        state, tiles = _group_state(states, group), self.tiles
        strip, n = np.empty(topk.STRIP, np.float32), rows.n_rows
        with self.scratch.use() as buffers:
            for number in range(*self.groups[group]):
                start, stop = tiles.bounds[number]
                own = (
                    buffers.get("products", n, stop - start) if kept is None else _tile(kept, n, start, stop)
                )
                products = rows.products(start, stop, buffers, own)
                columns, log_noise = tiles.columns(number), tiles.log_noise(number, block)
                topk.scan_tile(products, columns, log_noise, self.scaling, state, strip)

    def temper_group(self, kept: Float32, states: topk.RowState, inverse: Float32, group: int) -> None:
        """Sum the kept scores of one group of classes at the temperature of each row."""
        for number in range(*self.groups[group]):
            tile = _tile(kept, len(inverse), *self.tiles.bounds[number])
            biases = self.tiles.columns(number).biases
            topk.sum_tile(
                tile, biases, self.scaling.features, inverse, states.peak[group], states.mass[group]
            )


def _tile(kept: Float32, n_rows: int, start: int, stop: int) -> Float32:
    """Return the part of the kept products that belongs to columns `start` to before `stop`."""
    return kept[n_rows * start : n_rows * stop].reshape(n_rows, stop - start)


def scan(
    scorer: Scorer,
    X: Features,
    Z: Float32 | None,
    k: int,
    *,
    targets: Int32 | None = None,
    n_threads: int,
    config: SearchConfig,
) -> ScanResult:
    """Find the k best classes of each row and the log-probability of its target, before uniform mixing.

    Parameters
    ----------
    Z
        ``scorer.project(X)``.
    targets : int32 (n_samples,)
        A class of each row.
    """
    n_rows, n_classes = X.shape[0], scorer.n_classes
    columns = np.full(n_rows, -1, np.int32) if targets is None else targets
    result = ScanResult.empty(n_rows, k, scorer.inverse_temperature)
    weights = scorer.weights
    if isinstance(weights, SparseWeights) and scorer.noise_term is None:
        table = weights.column_table(config)
        block_rows = min(max(config.row_block_scores // n_classes, n_threads), _ROW_BLOCK)
        is_small = 4 * n_classes * min(n_rows, block_rows) <= _KEPT_BYTES
        scratch = _row_scratch if is_small else Scratch(Buffers)
        for first, last in split(n_rows, block_rows):
            columns_block = ColumnBlock(weights, table, X, first, last)
            part = result.rows(first, last)
            _scan_columns(scorer, columns_block, columns[first:last], part, scratch, n_threads, config)
        return result
    tiles = Tiles(scorer, Z, n_rows, config, n_threads)
    shared = _Scan(scorer, tiles, k, config)
    # BLAS threads of its own would spin beside the kernels, on the processors that these need.
    large = n_rows * n_classes * weights.n_features > config.small_work
    n_kept = min(tiles.block_rows, n_rows) * n_classes
    kept = np.empty(n_kept, np.float32) if scorer.tempers_rows else None
    with one_blas_thread() if large else nullcontext():
        for first, last in split(n_rows, tiles.block_rows):
            states = topk.empty_states(len(shared.groups), last - first, k, columns[first:last])
            rows = weights.open_block(X, first, last)
            block = tiles.start_block(first, last)
            run(partial(shared.scan_group, rows, block, states, kept), len(shared.groups), n_threads)
            if kept is not None:
                inverse = result.inverse_temperature[first:last]
                topk.temper_groups(states, scorer.tempering, inverse)
                run(partial(shared.temper_group, kept, states, inverse), len(shared.groups), n_threads)
            result.finish(states, first, last)
    return result


def _scan_columns(
    scorer: Scorer,
    block: ColumnBlock,
    targets: Int32,
    result: ScanResult,
    scratch: Scratch[Buffers],
    n_threads: int,
    config: SearchConfig,
) -> None:
    """Scan all classes for a block of rows, by columns.

    Threads share first the classes, for all rows of the block, then the rows: the columns of some classes are
    read from memory once per block.
    """
    n_classes = scorer.n_classes
    tiles = split(block.n_tiles, max(1, config.row_task_scores // (block.n_rows * TILE)))
    rows = split(block.n_rows, max(1, config.row_task_scores // n_classes))
    with scratch.use() as buffers:
        scores = buffers.get("products", block.n_rows, block.n_tiles * TILE)

        def sum_tiles(i: int) -> None:
            block.sum_tiles(*tiles[i], scores)

        def find_best(i: int) -> None:
            first, last = rows[i]
            with scratch.use() as own:
                line = own.get("line", 1, n_classes)[0]
                part = result.rows(first, last)
                block.find_best(first, scorer.tempering, scores[first:last], targets[first:last], line, part)

        run(sum_tiles, len(tiles), n_threads)
        run(find_best, len(rows), n_threads)


def _group_state(states: topk.RowState, group: int) -> topk.RowState:
    """Return the states of the rows for one group of classes."""
    return states._replace(
        heap_scores=states.heap_scores[group],
        heap_labels=states.heap_labels[group],
        peak=states.peak[group],
        mass=states.mass[group],
    )
