"""One pass over all classes for blocks of rows: tiles of scores, made and consumed in cache.

A tile is the product of a block of rows with the weights of some classes, and log p_n of the same pairs.  Noise from a label
tree comes subtree by subtree, classes in the order of the leaves, and never exists for more than a tile.  Any other noise comes
in the order of the classes, for a block of rows at once if it depends on the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.kernels import leaf_tiles, topk
from extremax.noise import Noise, TreeNoise
from extremax.parallel import resolve_threads, run, split
from extremax.tree import LabelTree

Features: TypeAlias = "NDArray[np.float32] | sparse.csr_matrix | sparse.csr_array"
Float32: TypeAlias = NDArray[np.float32]
Fill: TypeAlias = Callable[[int, int], None]  # of rows from, to

SCRATCH_BYTES = 256 << 20  # scratch memory of one call
_TILE_DEPTH = 11  # levels of a subtree that makes a tile: 2,048 leaves
_TILE_SCORES = 2 << 20  # scores per tile at most: 8 MB, within a last-level cache, and enough work for the matrix product
_BLOCK_ROWS = 1024  # more rows no longer help the matrix product
_COPY_ROWS = 128  # rows of the weights that a thread copies at a time
_TASK_ROWS = 16  # rows of a tile that a thread takes at a time
_FEW_ROWS = 16  # so few rows do not repay copying the weights into the order of the leaves


class Scorer(Protocol):
    """What prediction needs of `extremax.linear.LinearModel`."""

    @property
    def weights(self) -> Float32: ...
    @property
    def biases(self) -> Float32: ...
    @property
    def feature_scale(self) -> float: ...


class Rows:
    """A block of rows of X, ready for products with the weights of classes, these in a given order."""

    def __init__(
        self, X: Features, first: int, last: int, weights: Float32, order: NDArray[np.int32] | None, threads: int
    ) -> None:
        self.weights, self.order, self.threads = weights, order, threads
        self.used: NDArray[np.intp] | None = None
        self._copy = np.empty((0, 0), np.float32)
        if sparse.issparse(X):
            block: Any = X[first:last]
            used = np.unique(block.indices)
            # Text has many features and few of them in any block: a dense product over those that occur is far smaller.
            if 2 * len(used) < X.shape[1]:
                self.used = used
                block = block[:, used]
            self.x: Float32 = block.toarray()
        else:
            self.x = np.ascontiguousarray(X[first:last])

    def products(self, start: int, stop: int, out: Float32) -> None:
        """``x . w_y``, (rows, stop - start); a copy of weights, where one is needed, is no larger than a tile."""
        in_place = self.order is None and self.used is None
        piece = stop - start if in_place else max(topk.STRIP, _TILE_SCORES // max(self.x.shape[1], 1))
        for a, b in split(stop - start, max(piece, 1)):
            np.matmul(self.x, self._part(start + a, start + b).T, out=out[:, a:b])

    def _part(self, start: int, stop: int) -> Float32:
        if self.order is None:
            part = self.weights[start:stop]
            return part if self.used is None else np.take(part, self.used, axis=1)
        classes = self.order[start:stop]
        if self.used is not None:
            scattered: Float32 = self.weights[np.ix_(classes, self.used)]
            return scattered
        if len(self._copy) < len(classes):
            self._copy = np.empty((len(classes), self.weights.shape[1]), np.float32)
        copy, tasks = self._copy, split(len(classes), _COPY_ROWS)

        def work(i: int) -> None:
            cut = slice(*tasks[i])
            np.take(self.weights, classes[cut], axis=0, out=copy[cut], mode="clip")  # the default mode would copy once more

        run(work, len(tasks), self.threads)
        return copy[: len(classes)]


class Tile(NamedTuple):
    """Scores and log p_n of a block of rows and some classes; `fill` completes rows of the latter before they are read."""

    products: Float32
    columns: topk.Columns
    log_noise: Float32
    noise_row_step: int
    fill: Fill


class _Buffers:
    """Flat memory that every tile uses again: a fresh array for each would cost more in page faults than the arithmetic."""

    def __init__(self) -> None:
        self._flat: dict[str, Float32] = {}

    def get(self, name: str, rows: int, columns: int) -> Float32:
        flat = self._flat.get(name)
        if flat is None or flat.size < rows * columns:
            flat = self._flat[name] = np.empty(rows * columns, np.float32)
        return flat[: rows * columns].reshape(rows, columns)


def _even_blocks(n_rows: int, most: int) -> int:
    """Rows per block: at most so many, in blocks of about equal size."""
    n_blocks = max(1, -(-n_rows // max(most, 1)))
    return max(1, -(-n_rows // n_blocks))


class ClassTiles:
    """Tiles in the order of the classes, for any noise: log p_n of all classes for a block of rows, or one row for all rows."""

    order: NDArray[np.int32] | None = None

    def __init__(
        self, noise: Noise | None, Z: Float32 | None, model: Scorer, n_rows: int, scratch: int, n_jobs: int | None
    ) -> None:
        self.noise, self.Z, self.model, self.n_jobs = noise, Z, model, n_jobs
        n_classes, n_features = model.weights.shape
        fixed = np.zeros(n_classes, np.float32) if noise is None else getattr(noise, "log_prob_", None)
        self.row_step = 1 if fixed is None else 0  # an unconditional distribution is one row for all
        self.tile_scores = min(_TILE_SCORES, scratch // 16)
        row_bytes = 4 * (n_features + (n_classes if fixed is None else topk.STRIP))
        self.block_rows = _even_blocks(n_rows, min(_BLOCK_ROWS, (scratch - 4 * self.tile_scores) // row_bytes))
        self.log_noise = (
            np.empty((self.block_rows, n_classes), np.float32) if fixed is None else np.array(fixed[None, :], np.float32)
        )
        self.labels = np.arange(n_classes, dtype=np.int32)

    def block_log_noise(self, first: int, last: int) -> Float32:
        if self.noise is None or self.row_step == 0:
            return self.log_noise
        if self.Z is None:
            raise ValueError("Z is None; a noise distribution that depends on the row needs the tree's features of each row.")
        return self.noise.log_prob_all(self.Z[first:last], out=self.log_noise[: last - first], n_jobs=self.n_jobs)

    def tiles(self, rows: Rows, first: int, last: int, buffers: _Buffers) -> Iterator[Tile]:
        log_noise, n = self.block_log_noise(first, last), last - first
        width = max(1, self.tile_scores // n // topk.STRIP) * topk.STRIP
        for start, stop in split(len(self.labels), width):
            products = buffers.get("products", n, stop - start)
            rows.products(start, stop, products)
            columns = topk.Columns(self.labels[start:stop], self.model.biases[start:stop], start, start)
            yield Tile(products, columns, log_noise, self.row_step, lambda a, b: None)


class SubtreeTiles:
    """Tiles that are subtrees of a label tree: logits by a matrix product, then from the root of the subtree to its leaves."""

    def __init__(
        self, cut: leaf_tiles.LeafTiles, tree: LabelTree, Z: Float32, model: Scorer, n_rows: int, scratch: int
    ) -> None:
        self.cut, self.tree, self.order = cut, tree, cut.labels
        self.Z = np.require(Z, np.float32, ["C"])
        self.biases = model.biases[cut.labels]
        n_leaves = len(cut.place) + 1
        row_bytes = 4 * (model.weights.shape[1] + 3 * n_leaves + 2 * len(cut.roots))
        self.block_rows = _even_blocks(
            n_rows, min(_BLOCK_ROWS, (scratch - 4 * _TILE_SCORES) // row_bytes, _TILE_SCORES // n_leaves)
        )

    def _descend(
        self, Z: Float32, nodes: NDArray[np.int64], logits: Float32, start: Float32, column: int, out: Float32
    ) -> Fill:
        """A function that fills rows of `out` with log p_n of the leaves below the given nodes."""
        np.matmul(Z, np.ascontiguousarray(self.tree.weights[nodes].T), out=logits)
        biases = self.tree.biases[nodes]

        def fill(first: int, last: int) -> None:
            loss = np.empty(len(nodes), np.float32)
            leaf_tiles.descend(logits, biases, start, column, first, last, loss, out)

        return fill

    def tiles(self, rows: Rows, first: int, last: int, buffers: _Buffers) -> Iterator[Tile]:
        cut, Z, n = self.cut, self.Z[first:last], last - first
        reached = buffers.get("reached", n, len(cut.roots))
        self._descend(Z, cut.top, buffers.get("top", n, len(cut.top)), np.zeros((n, 1), np.float32), 0, reached)(0, n)
        for tile, (start, stop) in enumerate(zip(cut.offsets[:-1].tolist(), cut.offsets[1:].tolist(), strict=True)):
            products = buffers.get("products", n, stop - start)
            rows.products(start, stop, products)
            log_noise, logits = buffers.get("log_noise", n, stop - start), buffers.get("logits", n, len(cut.place))
            fill = self._descend(Z, cut.nodes(tile), logits, reached, tile, log_noise)
            yield Tile(products, topk.Columns(cut.labels[start:stop], self.biases[start:stop], start, 0), log_noise, 1, fill)


def _choose_tiles(
    noise: Noise | None, Z: Float32 | None, model: Scorer, n_rows: int, scratch: int, n_jobs: int | None
) -> ClassTiles | SubtreeTiles:
    tree = noise.tree if isinstance(noise, TreeNoise) else noise
    if isinstance(tree, LabelTree) and Z is not None and n_rows > _FEW_ROWS:
        cut = leaf_tiles.cut_tree(tree.leaf_class, _TILE_DEPTH)
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
    n_rows, threads = X.shape[0], resolve_threads(n_jobs)
    source = _choose_tiles(noise, Z, model, n_rows, scratch_bytes, n_jobs)
    columns = np.full(n_rows, -1, np.int32) if targets is None else targets
    if targets is not None and source.order is not None:
        place = np.empty(len(source.order), np.int32)
        place[source.order] = np.arange(len(source.order), dtype=np.int32)
        columns = place[targets]
    labels = np.full((n_rows, k), topk.NO_LABEL, np.int32)
    log_prob, target_log_prob = np.empty((n_rows, k), np.float32), np.empty(n_rows, np.float32)
    scaling = topk.Scaling(np.float32(model.feature_scale), np.float32(1.0 / temperature))
    buffers = _Buffers()
    for first, last in split(n_rows, source.block_rows):
        n = last - first
        state = topk.RowState(
            heap_scores=np.full((n, k), -np.inf, np.float32),
            heap_labels=labels[first:last],
            peak=np.full(n, -np.inf, np.float32),
            mass=np.zeros(n, np.float64),
            target=columns[first:last],
            target_score=np.full(n, np.nan, np.float32),
        )
        rows = Rows(X, first, last, model.weights, source.order, threads)
        for tile in source.tiles(rows, first, last, buffers):
            _merge(tile, scaling, state, threads)
        topk.finish_rows(state, scaling.sharpness, 0, n, log_prob[first:last], target_log_prob[first:last])
    return labels, log_prob, target_log_prob


def _merge(tile: Tile, scaling: topk.Scaling, state: topk.RowState, threads: int) -> None:
    tasks = split(len(tile.products), _TASK_ROWS)

    def work(i: int) -> None:
        tile.fill(*tasks[i])
        strip = np.empty(topk.STRIP, np.float32)
        topk.scan_tile(tile.products, tile.columns, tile.log_noise, tile.noise_row_step, scaling, *tasks[i], state, strip)

    run(work, len(tasks), threads)
