"""Softmax with classes shared in a minibatch: one matrix product scores every row of it against every class
of a set.

Per-row negatives cost a read of a weight row each; a set of a thousand classes that 256 rows share costs the
same reads once, and the arithmetic is BLAS's. The classes come from a mixture of the class frequencies and,
with a label tree, of the *cell* of the rows: the subtree that x is routed to at some depth. A minibatch holds
rows of one cell, so its classes are hard for all of them, and their inclusion probabilities are known
exactly. See kernels/shared.py for the estimate; with a set of all classes it is the softmax itself (paper,
Eq. 1).

A row with several labels is a pair with each of them, and its other labels are no negatives of it. Were
labels to apply independently with odds exp(s_y), this would be the likelihood of y given that one class
applies of y and all that do not: scores are log-odds, up to a constant of the row. As negatives, the labels
of a row would hold each other down, those that are certain most of all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.features.whitening import Whitening, fold, unfold
from extremax.kernels.batch_softmax import (
    apply_shared,
    draw_shared,
    find_slots,
    leave_out_labels,
    shared_softmax,
)
from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.row_updates import ModelArrays
from extremax.linear import DenseWindows, Features, LinearModel, Window, epoch_seed, shuffled_windows
from extremax.noise import class_weights
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split, uninterrupted
from extremax.tree import LabelTree

_ROWS_PER_CELL = 4096  # on average, at least
_MOST_CELLS = 256
# of one task; numbers of their own, so that the thread count changes no result
_ROW_BLOCK, _CLASS_BLOCK = 64, 256
_LOOK = 64  # minibatches between two looks at the keyboard


def inclusion(weights: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Probabilities min(1, t * weight) that sum to `size`, or all ones if there are no more classes.

    Examples
    --------
    >>> inclusion(np.array([10.0, 2.0, 1.0, 1.0]), 2).tolist()
    [1.0, 0.5, 0.25, 0.25]
    """
    if size >= len(weights):
        return np.ones(len(weights))
    falling = np.sort(weights)[::-1]
    tail = np.cumsum(falling[::-1])[::-1]
    certain = np.arange(len(weights))
    fits = (size - certain) * falling <= tail
    first = int(np.argmax(fits))
    out: NDArray[np.float64] = np.minimum(1.0, weights * ((size - first) / tail[first]))
    return out


@dataclass(frozen=True)
class ClassSets:
    """Where class sets come from: cumulated inclusion probabilities of all classes, and of the classes of
    each cell.
    """

    everywhere: NDArray[np.float64]
    cell_offsets: NDArray[np.int64]
    cell_classes: NDArray[np.int32]
    cell_cumulative: NDArray[np.float64]
    size: int

    @classmethod
    def make(
        cls,
        counts: NDArray[np.float64],
        size: int,
        *,
        exponent: float,
        cells: NDArray[np.int32] | None = None,
        y: NDArray[np.int32] | None = None,
    ) -> ClassSets:
        """Sets of about `size` classes, by ``counts ** exponent``; half of them from the cell, where there
        are cells.
        """
        n_classes = len(counts)
        known = class_weights(counts, exponent)
        size = min(size, n_classes)
        if cells is None or y is None or size == n_classes:
            no_cells = np.zeros(2, np.int64)
            return cls(np.cumsum(inclusion(known, size)), no_cells, np.empty(0, np.int32), np.empty(0), size)
        share = size // 2
        pairs, number = np.unique(cells.astype(np.int64) * n_classes + y, return_counts=True)
        cell, classes = pairs // n_classes, (pairs % n_classes).astype(np.int32)
        offsets = np.searchsorted(cell, np.arange(int(cells.max()) + 2)).astype(np.int64)
        cumulative = np.empty(len(pairs))
        for a, b in itertools.pairwise(offsets):
            if a == b:
                continue  # no row was routed to this cell, and no minibatch will want its classes
            cumulative[a:b] = np.cumsum(inclusion(class_weights(number[a:b], exponent), share))
        return cls(np.cumsum(inclusion(known, size - share)), offsets, classes, cumulative, size)

    def of_cell(self, cell: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        a, b = self.cell_offsets[cell], self.cell_offsets[cell + 1]
        return self.cell_classes[a:b], self.cell_cumulative[a:b]


def route(tree: LabelTree, Z: NDArray[np.float32], n_cells: int, n_threads: int) -> NDArray[np.int32]:
    """Cell of each row: the subtree at depth log2(n_cells) that it most probably belongs to, decision by
    decision.
    """
    out = np.zeros(len(Z), np.int32)
    depth = n_cells.bit_length() - 1
    blocks = split(len(Z), 8192)
    weights = np.ascontiguousarray(tree.weights[: n_cells - 1])

    def work(i: int) -> None:
        cut = slice(*blocks[i])
        logits = Z[cut] @ weights.T + tree.biases[: n_cells - 1]
        node, lines = np.zeros(len(logits), np.int64), np.arange(len(logits))
        for _ in range(depth):
            node = 2 * node + 1 + (logits[lines, node] > 0.0)
        out[cut] = node - (n_cells - 1)

    with one_blas_thread():
        run(work, len(blocks), n_threads)
    return out


def default_cells(n_rows: int, tree: LabelTree) -> int:
    """A power of two: cells of a few thousand rows."""
    most = min(n_rows // _ROWS_PER_CELL, _MOST_CELLS, 1 << max(tree.depth - 2, 0))
    return 1 << max(most.bit_length() - 1, 0)


@dataclass(frozen=True)
class SharedSet:
    """Pairs of a row and a label, the cell of each, and how their minibatches are made.

    Attributes
    ----------
    X, y, weight, rows
        As in `extremax.linear.TrainingSet`.
    cells
        Cell of each pair, or None.
    limit
        The longest step that a class may take in a minibatch (Adagrad with one sum per class).
    """

    X: Features
    y: NDArray[np.int32]
    weight: NDArray[np.float32]
    rows: NDArray[np.int64] | None
    sets: ClassSets
    cells: NDArray[np.int32] | None
    white: Whitening
    scale: float
    batch_size: int
    seed: int
    n_threads: int
    limit: float = np.inf

    @cached_property
    def label_edges(self) -> NDArray[np.int64] | None:
        """Where the labels of each row of X begin and end in `y`; None if no row has several."""
        if self.rows is None or not np.any(self.rows[1:] == self.rows[:-1]):  # `rows` ascends
            return None
        return np.searchsorted(self.rows, np.arange(self.X.shape[0] + 1))

    def rows_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of X that these pairs stand on."""
        return pairs if self.rows is None else self.rows[pairs]

    @contextmanager
    def for_prediction(self, model: LinearModel) -> Iterator[None]:
        """In the middle of an epoch, the weights as prediction wants them; afterwards exactly as they
        were.
        """
        kept = model.weights.copy(), model.biases.copy()
        try:
            fold(model, self.white, self.n_threads)
            yield
        finally:
            with uninterrupted():
                np.copyto(model.weights, kept[0])
                np.copyto(model.biases, kept[1])


class _Batch:
    """The tables of a minibatch, used again by the next one."""

    def __init__(self, data: SharedSet, n_features: int, n_classes: int) -> None:
        size, width = data.batch_size, data.sets.size
        self.whole = width == n_classes  # all classes: their rows are the weight table itself
        self.x = np.empty((size, n_features), np.float32)
        self.scores = np.empty(size * width, np.float32)
        self.table = np.empty((0 if self.whole else width, n_features), np.float32)
        self.gradients = np.empty((width + size, n_features), np.float32)
        self.classes = np.empty(width + size, np.int32)
        self.minus_log_pi = np.empty(width, np.float32)
        self.scratch = np.empty(2 * width + 4, np.int64)
        self.place = np.full(n_classes, -1, np.int32)
        self.slots = np.empty(size, np.int32)
        self.extra = np.empty(size, np.int32)
        self.positive = np.empty(size, np.float32)
        self.losses = np.empty(size, np.float64)


def train_shared_epoch(
    model: LinearModel,
    data: SharedSet,
    *,
    learning_rate: tuple[float, float],
    progress: Callable[[int, float], None] | None = None,
) -> float:
    """One pass over the pairs, changing `model` in place; the step size goes from the first to the second of
    `learning_rate`.

    Returns the mean loss per unit of weight. `progress` as in `extremax.linear.train_epoch`; when it is
    called, weights are those for whitened rows (see `SharedSet.for_prediction`)."""
    threads = 1 if JIT_DISABLED else data.n_threads
    arrays = ModelArrays(model.weights, model.biases, model.squares, model.bias_squares)
    batch = _Batch(data, model.n_features, model.n_classes)
    source = DenseWindows(data.X)
    total, weight_done, done = 0.0, 0.0, 0
    n_pairs = len(data.y)
    unfolded = False
    try:
        with uninterrupted():
            unfold(model, data.white, threads)
            unfolded = True
        with one_blas_thread():
            shuffled = shuffled_windows(n_pairs, source.row_bytes(), data.seed, model.n_epochs)
            order = (Window(chosen, data.rows_of(chosen)) for chosen in shuffled)
            for number, ((chosen, _), X, local) in enumerate(source.windows(order)):
                rng = np.random.default_rng(epoch_seed(data.seed, model.n_epochs, number))
                batches = _cut(data, chosen, rng)
                draws = rng.random((len(batches), 2))
                for turn, (cell, part) in enumerate(batches):
                    rate = learning_rate[0] + (learning_rate[1] - learning_rate[0]) * done / n_pairs
                    losses = _step(
                        arrays, data, batch, X, chosen[part], local[part], cell, draws[turn], rate, threads
                    )
                    total += losses
                    weight_done += float(data.weight[chosen[part]].sum())
                    done += len(part)
                    if progress is not None and turn % _LOOK == _LOOK - 1:
                        progress(done, total / max(weight_done, 1e-300))
    finally:
        if unfolded:
            with uninterrupted():
                fold(model, data.white, threads)
    model.n_epochs += 1
    return total / max(weight_done, 1e-300)


def _cut(
    data: SharedSet, chosen: NDArray[np.int64], rng: np.random.Generator
) -> list[tuple[int, NDArray[np.int64]]]:
    """Places in `chosen`, cut into minibatches of one cell each, in random order."""
    if data.cells is None:
        return [(0, np.arange(a, b)) for a, b in split(len(chosen), data.batch_size)]
    cells = data.cells[chosen]
    by_cell = np.argsort(cells, kind="stable")  # inside a cell the order stays the shuffled one
    edges = np.searchsorted(cells[by_cell], np.arange(int(cells.max()) + 2))
    parts = [
        (cell, by_cell[a + first : a + last])
        for cell, (a, b) in enumerate(itertools.pairwise(edges))
        for first, last in split(int(b - a), data.batch_size)
    ]
    return [parts[i] for i in rng.permutation(len(parts))]


def _step(
    model: ModelArrays,
    data: SharedSet,
    batch: _Batch,
    X: Any,
    pairs: NDArray[np.int64],
    local: NDArray[np.int64],
    cell: int,
    draws: NDArray[np.float64],
    rate: float,
    threads: int,
) -> float:
    n = len(pairs)
    labels, weight = data.y[pairs], data.weight[pairs]
    if batch.whole:
        width = len(model.weights)
        batch.classes[:width] = np.arange(width, dtype=np.int32)
        batch.minus_log_pi[:width] = 0.0
    else:
        width = draw_shared(
            data.sets.everywhere,
            *data.sets.of_cell(cell),
            draws[0],
            draws[1],
            batch.classes,
            batch.minus_log_pi,
            batch.scratch,
        )
    n_extra = find_slots(batch.classes, width, labels, batch.place, batch.slots[:n], batch.extra)
    batch.classes[width : width + n_extra] = batch.extra[:n_extra]
    shift = batch.minus_log_pi[:width] + model.biases[batch.classes[:width]]
    x, scores = batch.x[:n], batch.scores[: n * width].reshape(n, width)
    row_blocks = split(n, _ROW_BLOCK)
    class_blocks = split(width, _CLASS_BLOCK)
    extra_blocks = [(width + a, width + b) for a, b in split(n_extra, _CLASS_BLOCK)]
    table = model.weights if batch.whole else batch.table[:width]
    edges, owners = data.label_edges, data.rows_of(pairs)

    def gather(i: int) -> None:
        if i < len(row_blocks):
            a, b = row_blocks[i]
            data.white.rows(X[local[a:b]], data.scale, out=x[a:b])
        else:
            a, b = class_blocks[i - len(row_blocks)]
            np.take(model.weights, batch.classes[a:b], axis=0, out=table[a:b], mode="clip")

    def score(i: int) -> None:
        a, b = row_blocks[i]
        np.matmul(x[a:b], table.T, out=scores[a:b])
        if edges is not None:
            leave_out_labels(scores, batch.classes, owners, edges, data.y, a, b)
        shared_softmax(
            scores,
            shift,
            x,
            labels,
            batch.slots,
            model.weights,
            model.biases,
            weight,
            batch.positive,
            batch.losses,
            a,
            b,
        )

    def change(i: int) -> None:
        a, b = (class_blocks + extra_blocks)[i]
        if a < width:
            np.matmul(scores[:, a:b].T, x, out=batch.gradients[a:b])
        else:
            batch.gradients[a:b] = 0.0
        apply_shared(
            batch.gradients,
            scores,
            x,
            batch.positive,
            batch.slots[:n],
            batch.classes,
            a,
            b,
            width,
            model,
            np.float32(rate),
            np.float32(data.limit),
        )

    run(gather, len(row_blocks) + (0 if batch.whole else len(class_blocks)), threads)
    run(score, len(row_blocks), threads)
    run(change, len(class_blocks) + len(extra_blocks), threads)
    return float(batch.losses[:n].sum())
