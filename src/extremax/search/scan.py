"""One pass over all classes for blocks of rows: tiles of scores, made and consumed in cache.

A tile is the product of a block of rows with the weights of some classes, and log p_n of the same pairs.
Noise from a label tree comes subtree by subtree, classes in the order of the leaves, and never exists for
more than a tile. Any other noise comes in the order of the classes, for a block of rows at once if it depends
on the row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.kernels import topk
from extremax.kernels import tree_tiles as leaf_tiles
from extremax.noise import Noise, TreeNoise
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads, run, split
from extremax.tree import LabelTree

Features: TypeAlias = "NDArray[np.float32] | sparse.csr_matrix | sparse.csr_array"
Float32: TypeAlias = NDArray[np.float32]
Piece: TypeAlias = tuple[int, int, topk.LogNoise]  # log p_n of one tile for rows from, to

SCRATCH_BYTES = 256 << 20  # scratch memory of one call on up to _TILES_AT_ONCE threads
# assumed, not counted: the thread count must not change the cut, and with it the last bits of a result
_TILES_AT_ONCE = 8
# groups of classes, which threads share; a number of its own, so that the thread count changes no result
_GROUPS = 16
_BLOCK_ROWS = 1024  # rows at a time: more no longer help the matrix product
_TILE_DEPTH = 10  # levels of a subtree that makes a tile: 1,024 leaves
_LEAST_DEPTH = 8  # ... or fewer levels, so that every thread has tiles, but at least so many
# scores per tile at most: 8 MB, so that the tiles of the threads stay in the last-level cache
_TILE_SCORES = 2 << 20
_NOISE_ROWS = 256  # rows for which log p_n is made and used at once
_FEW_ROWS = 64  # so few rows do not repay copying the weights into the order of the leaves
_SMALL_WEIGHTS = 1 << 22  # ... unless the weights are so few
_SMALL_WORK = 1 << 24  # multiplications below which BLAS keeps to one thread by itself


class Scorer(Protocol):
    """What prediction needs of `extremax.linear.LinearModel`."""

    @property
    def weights(self) -> Float32: ...
    @property
    def biases(self) -> Float32: ...
    @property
    def feature_scale(self) -> float: ...


class Buffers:
    """Memory of one thread that tile after tile uses again: fresh pages would cost more than the
    arithmetic.
    """

    def __init__(self) -> None:
        self._flat: dict[str, Float32] = {}

    def get(self, name: str, rows: int, columns: int) -> Float32:
        flat = self._flat.get(name)
        if flat is None or flat.size < rows * columns:
            flat = self._flat[name] = np.empty(rows * columns, np.float32)
        return flat[: rows * columns].reshape(rows, columns)


class Rows:
    """A block of rows of X, ready for products with the weights of classes, these in a given order."""

    def __init__(
        self, X: Features, first: int, last: int, weights: Float32, order: NDArray[np.int32] | None
    ) -> None:
        self.weights, self.order = weights, order
        self.used: NDArray[np.intp] | None = None
        if sparse.issparse(X):
            block: Any = X[first:last]
            used = np.unique(block.indices)
            # Text has many features and few of them in any block: a dense product over those that occur is
            # far smaller.
            if 2 * len(used) < X.shape[1]:
                self.used = used
                block = block[:, used]
            self.x: Float32 = block.toarray()
        else:
            self.x = np.ascontiguousarray(X[first:last])

    def products(self, start: int, stop: int, buffers: Buffers, out: Float32) -> Float32:
        """``x . w_y``, (rows, stop - start); a copy of weights, where one is needed, is no larger than a
        tile.
        """
        in_place = self.order is None and self.used is None
        piece = stop - start if in_place else max(topk.STRIP, _TILE_SCORES // max(self.x.shape[1], 1))
        with np.errstate(over="ignore", invalid="ignore"):  # callers look at the scores, and name the row
            for a, b in split(stop - start, max(piece, 1)):
                np.matmul(self.x, self._part(start + a, start + b, buffers).T, out=out[:, a:b])
        return out

    def _part(self, start: int, stop: int, buffers: Buffers) -> Float32:
        if self.order is None:
            part = self.weights[start:stop]
            return part if self.used is None else np.take(part, self.used, axis=1)
        classes = self.order[start:stop]
        if self.used is not None:
            scattered: Float32 = self.weights[np.ix_(classes, self.used)]
            return scattered
        copy = buffers.get("weights", len(classes), self.weights.shape[1])
        # the default mode would copy once more
        return np.take(self.weights, classes, axis=0, out=copy, mode="clip")


def _even_blocks(n_rows: int, most: int) -> int:
    """Rows per block: at most so many, in blocks of about equal size."""
    n_blocks = max(1, -(-n_rows // max(most, 1)))
    return max(1, -(-n_rows // n_blocks))


class ClassTiles:
    """Tiles in the order of the classes, for any noise: log p_n of all classes for a block of rows, or one
    row for all rows.
    """

    order: NDArray[np.int32] | None = None

    def __init__(
        self,
        noise: Noise | None,
        Z: Float32 | None,
        model: Scorer,
        n_rows: int,
        scratch: int,
        n_jobs: int | None,
    ) -> None:
        self.noise, self.Z, self.model, self.n_jobs = noise, Z, model, n_jobs
        n_classes, n_features = model.weights.shape
        fixed = np.zeros(n_classes, np.float32) if noise is None else getattr(noise, "log_prob_", None)
        self.row_step = 1 if fixed is None else 0  # an unconditional distribution is one row for all
        row_bytes = 4 * (n_features + (n_classes if fixed is None else topk.STRIP))
        self.block_rows = _even_blocks(n_rows, min(_BLOCK_ROWS, scratch // 2 // row_bytes))
        tile_scores = min(_TILE_SCORES, scratch // (8 * _TILES_AT_ONCE))
        width = min(tile_scores // self.block_rows, -(-n_classes // _GROUPS))
        self.bounds = split(n_classes, max(1, width // topk.STRIP) * topk.STRIP)
        self.labels = np.arange(n_classes, dtype=np.int32)
        self.table = (
            np.empty((self.block_rows, n_classes), np.float32)
            if fixed is None
            else np.array(fixed[None, :], np.float32)
        )

    def start_block(self, first: int, last: int) -> Float32:
        """log p_n of all classes for rows `first` to `last`, or the one row for all."""
        if self.noise is None or self.row_step == 0:
            return self.table
        if self.Z is None:
            raise ValueError(
                "Z is None; a noise distribution that depends on the row needs the tree's features of each row."
            )
        return self.noise.log_prob_all(self.Z[first:last], out=self.table[: last - first], n_jobs=self.n_jobs)

    def columns(self, number: int) -> topk.Columns:
        start, stop = self.bounds[number]
        return topk.Columns(self.labels[start:stop], self.model.biases[start:stop], start)

    def log_noise(self, number: int, block: Float32, n: int, buffers: Buffers) -> Iterator[Piece]:
        yield 0, n, topk.LogNoise(block, 0, self.row_step, self.bounds[number][0])


class SubtreeTiles:
    """Tiles that are subtrees of a label tree: logits by a matrix product, then from the root of the
    subtree to its leaves.
    """

    def __init__(
        self, cut: leaf_tiles.LeafTiles, tree: LabelTree, Z: Float32, model: Scorer, n_rows: int, scratch: int
    ) -> None:
        self.cut, self.tree, self.order = cut, tree, cut.labels
        self.Z = np.require(Z, np.float32, ["C"])
        self.biases = model.biases[cut.labels]
        self.bounds = list(zip(cut.offsets[:-1].tolist(), cut.offsets[1:].tolist(), strict=True))
        n_leaves = len(cut.place) + 1
        row_bytes = 4 * (model.weights.shape[1] + len(cut.roots) + n_leaves * _TILES_AT_ONCE)
        self.block_rows = _even_blocks(
            n_rows, min(_BLOCK_ROWS, scratch // 2 // row_bytes, _TILE_SCORES // n_leaves)
        )

    def _descend(
        self,
        Z: Float32,
        nodes: NDArray[np.int64],
        table: Float32,
        start: Float32,
        column: int,
        buffers: Buffers,
    ) -> Float32:
        logits, loss = buffers.get("logits", len(Z), len(nodes)), np.empty(len(nodes), np.float32)
        out = buffers.get("log_noise", len(Z), len(nodes) + 1)
        np.matmul(Z, table.T, out=logits)
        leaf_tiles.descend(logits, self.tree.biases[nodes], start, column, loss, out)
        return out

    def start_block(self, first: int, last: int) -> tuple[Float32, Float32]:
        """The tree's features of the rows, and log-probabilities with which they reach the roots of the
        subtrees.
        """
        Z, top = self.Z[first:last], self.cut.top
        return Z, self._descend(
            Z, top, self.tree.weights[top], np.zeros((last - first, 1), np.float32), 0, Buffers()
        )

    def columns(self, number: int) -> topk.Columns:
        start, stop = self.bounds[number]
        return topk.Columns(self.order[start:stop], self.biases[start:stop], start)

    def log_noise(
        self, number: int, block: tuple[Float32, Float32], n: int, buffers: Buffers
    ) -> Iterator[Piece]:
        (Z, reached), nodes = block, self.cut.nodes(number)
        table = np.take(self.tree.weights, nodes, axis=0)
        for first, last in split(n, _NOISE_ROWS):
            values = self._descend(Z[first:last], nodes, table, reached[first:last], number, buffers)
            yield first, last, topk.LogNoise(values, first, 1, 0)


def _choose_tiles(
    noise: Noise | None, Z: Float32 | None, model: Scorer, n_rows: int, scratch: int, n_jobs: int | None
) -> ClassTiles | SubtreeTiles:
    tree = noise.tree if isinstance(noise, TreeNoise) else noise
    if (
        isinstance(tree, LabelTree)
        and Z is not None
        and (n_rows > _FEW_ROWS or model.weights.size <= _SMALL_WEIGHTS)
    ):
        tile_depth = min(_TILE_DEPTH, max(_LEAST_DEPTH, tree.depth - (_GROUPS - 1).bit_length()))
        cut = leaf_tiles.cut_tree(tree.leaf_class, tile_depth)
        if cut is not None:
            return SubtreeTiles(cut, tree, Z, model, n_rows, scratch)
    return ClassTiles(noise, Z, model, n_rows, scratch, n_jobs)


def scan(
    X: Features,
    model: Scorer,
    noise: Noise | None,
    Z: Float32 | None,
    k: int,
    *,
    targets: NDArray[np.int32] | None = None,
    temperature: float,
    scratch_bytes: int,
    n_jobs: int | None,
) -> tuple[NDArray[np.int32], Float32, Float32]:
    """Labels (n, k), their log_prob (n, k), and log_prob of `targets` (n,), normalised over all classes."""
    n_rows, (n_classes, n_features) = X.shape[0], model.weights.shape
    source: Any = _choose_tiles(noise, Z, model, n_rows, scratch_bytes, n_jobs)
    columns = np.full(n_rows, -1, np.int32) if targets is None else targets
    if targets is not None and source.order is not None:
        place = np.empty(n_classes, np.int32)
        place[source.order] = np.arange(n_classes, dtype=np.int32)
        columns = place[targets]
    # Every group keeps k classes of its own: with many asked for, fewer groups.
    tiles = len(source.bounds)
    groups = split(tiles, -(-tiles // min(_GROUPS, max(1, n_classes // (16 * k)))))
    labels, log_prob = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
    target_log_prob = np.empty(n_rows, np.float32)
    scaling = topk.Scaling(np.float32(model.feature_scale), np.float32(1.0 / temperature))
    spare: list[Buffers] = []

    def scan_group(rows: Rows, block: Any, states: topk.RowState, group: int) -> None:
        try:
            buffers = spare.pop()
        except IndexError:  # asking first would leave room for another thread to take the last one
            buffers = Buffers()
        state = states._replace(
            **{name: getattr(states, name)[group] for name in ("heap_scores", "heap_labels", "peak", "mass")}
        )
        strip, n = np.empty(topk.STRIP, np.float32), len(rows.x)
        for number in range(*groups[group]):
            start, stop = source.bounds[number]
            products = rows.products(start, stop, buffers, buffers.get("products", n, stop - start))
            for first, last, log_noise in source.log_noise(number, block, n, buffers):
                topk.scan_tile(
                    products, source.columns(number), log_noise, scaling, first, last, state, strip
                )
        spare.append(buffers)

    # BLAS on its own threads would leave one spinning beside the kernels, on the processors that they need.
    with one_blas_thread() if n_rows * n_classes * n_features > _SMALL_WORK else nullcontext():
        for first, last in split(n_rows, source.block_rows):
            states = _new_states(len(groups), last - first, k, columns[first:last])
            rows, block = Rows(X, first, last, model.weights, source.order), source.start_block(first, last)
            run(partial(scan_group, rows, block, states), len(groups), resolve_threads(n_jobs))
            topk.finish_rows(
                states,
                scaling.sharpness,
                labels[first:last],
                log_prob[first:last],
                target_log_prob[first:last],
            )
    return labels, log_prob, target_log_prob


def _new_states(n_groups: int, n: int, k: int, target: NDArray[np.int32]) -> topk.RowState:
    return topk.RowState(
        heap_scores=np.full((n_groups, n, k), -np.inf, np.float32),
        heap_labels=np.full((n_groups, n, k), topk.NO_LABEL, np.int32),
        peak=np.full((n_groups, n), -np.inf, np.float32),
        mass=np.zeros((n_groups, n), np.float64),
        target=target,
        target_score=np.full(n, np.nan, np.float32),  # the one group that holds the class writes it
    )
