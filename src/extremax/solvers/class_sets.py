"""Which classes a minibatch shares, each with its exact inclusion probability.

Classes come from a mixture of the class frequencies and, with a label tree, of the *cell* of the rows: the
subtree that x is routed to at some depth. A minibatch holds rows of one cell, so its classes are hard for all
of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.tree.noise import class_weights
from extremax.tuned import BatchConfig
from extremax.types import Bool, Float32, Float64, Int32, Int64

if TYPE_CHECKING:
    from extremax.tree import LabelTree

_ROUTE_ROWS = 8192  # rows that a thread routes at a time


def inclusion_probabilities(weights: Float64, size: int) -> Float64:
    """Return probabilities min(1, t * weight) that sum to `size`; all ones where that is every class.

    Examples
    --------
    >>> inclusion_probabilities(np.array([10.0, 2.0, 1.0, 1.0]), 2).tolist()
    [1.0, 0.5, 0.25, 0.25]
    """
    if size >= len(weights):
        return np.ones(len(weights))
    falling = np.sort(weights)[::-1]
    tail = np.cumsum(falling[::-1])[::-1]
    certain = np.arange(len(weights))
    fits = (size - certain) * falling <= tail
    first = int(np.argmax(fits))
    out: Float64 = np.minimum(1.0, weights * ((size - first) / tail[first]))
    return out


@dataclass(frozen=True)
class ClassSets:
    """Cumulated inclusion probabilities of all classes, and of the classes of each cell."""

    everywhere: Float64
    cell_offsets: Int64
    cell_classes: Int32
    cell_cumulative: Float64
    size: int

    @classmethod
    def build(
        cls,
        counts: Float64,
        size: int,
        *,
        exponent: float,
        cells: Int32 | None = None,
        y: Int32 | None = None,
    ) -> ClassSets:
        """Make sets of about `size` classes by ``counts ** exponent``; half of them from the cell, where
        there are cells.
        """
        n_classes = len(counts)
        known = class_weights(counts, exponent)
        size = min(size, n_classes)
        if cells is None or y is None or size == n_classes:
            no_cells = np.zeros(2, np.int64)
            everywhere = np.cumsum(inclusion_probabilities(known, size))
            return cls(everywhere, no_cells, np.empty(0, np.int32), np.empty(0), size)
        from_cell = size // 2
        pairs, number = np.unique(cells.astype(np.int64) * n_classes + y, return_counts=True)
        cell, classes = pairs // n_classes, (pairs % n_classes).astype(np.int32)
        offsets = np.searchsorted(cell, np.arange(int(cells.max()) + 2)).astype(np.int64)
        cumulative = np.empty(len(pairs))
        for a, b in itertools.pairwise(offsets):
            if a == b:
                continue  # no row was routed to this cell, and no minibatch will want its classes
            cumulative[a:b] = np.cumsum(
                inclusion_probabilities(class_weights(number[a:b], exponent), from_cell)
            )
        everywhere = np.cumsum(inclusion_probabilities(known, size - from_cell))
        return cls(everywhere, offsets, classes, cumulative, size)

    def of_cell(self, cell: int) -> tuple[Int32, Float64]:
        """Return the classes of a cell and their cumulated inclusion probabilities."""
        a, b = self.cell_offsets[cell], self.cell_offsets[cell + 1]
        return self.cell_classes[a:b], self.cell_cumulative[a:b]

    def inclusion(self, y: Int32, cells: Int32 | None = None) -> Float64:
        """Return the probability that the set of a minibatch holds a class: of each pair of class and cell.

        Without cells, that of sets that are drawn from all classes.
        """
        outside = np.minimum(np.diff(self.everywhere, prepend=0.0)[y], 1.0)
        if cells is None:
            return outside
        lengths = np.diff(self.cell_cumulative, prepend=0.0)
        first = self.cell_offsets[:-1]
        first = first[first < len(lengths)]
        lengths[first] = self.cell_cumulative[first]
        n_classes = len(self.everywhere)
        owner = np.repeat(np.arange(len(self.cell_offsets) - 1), np.diff(self.cell_offsets))
        keys = owner * n_classes + self.cell_classes  # ascending
        wanted = cells.astype(np.int64) * n_classes + y
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        inside = np.where(keys[at] == wanted, np.minimum(lengths[at], 1.0), 0.0)
        out: Float64 = 1.0 - (1.0 - outside) * (1.0 - inside)
        return out


def count_cells(n_pairs: int, depth: int, config: BatchConfig) -> int:
    """Return a number of cells, a power of two, with a few thousand rows each on average; 1 means none."""
    most = min(n_pairs // config.rows_per_cell, config.max_cells, 1 << max(depth - config.cell_levels, 0))
    return 1 << max(most.bit_length() - 1, 0)


def cell_gain(cells: Int32, y: Int32, held_out: Bool, n_classes: int, size: int, exponent: float) -> float:
    """Return how much better sets with classes of the cell cover the labels of held-out rows.

    A class of probability p in the softmax of a row adds p^2 (1 / pi - 1) to the variance of the sum that
    a set with inclusion probability pi estimates.  Labels of held-out rows are draws from p: the figure is
    the mean of 1 / pi - 1 without cells over that with cells, above one where cells pay.

    Parameters
    ----------
    cells, y, held_out : (n_pairs,)
        Cell and class of each pair, and whether it had no part in the fit of the tree.
    """
    train = ~held_out
    # a class without a row left would be one that no set has
    known = np.bincount(y[train], minlength=n_classes) > 0
    asked = held_out & known[y]
    if not asked.any():
        return 1.0
    counts = np.bincount(y[train], minlength=n_classes).astype(np.float64)
    plain = ClassSets.build(counts, size, exponent=exponent)
    mixed = ClassSets.build(counts, size, exponent=exponent, cells=cells[train], y=y[train])
    without = float(np.mean(1.0 / plain.inclusion(y[asked]) - 1.0))
    with_cells = float(np.mean(1.0 / mixed.inclusion(y[asked], cells[asked]) - 1.0))
    return without / max(with_cells, 1e-12)


def route(tree: LabelTree, Z: Float32, n_cells: int, n_threads: int) -> Int32:
    """Return the cell of each row: the subtree at depth log2(n_cells) that every decision on the way
    prefers.
    """
    out = np.zeros(len(Z), np.int32)
    depth = n_cells.bit_length() - 1
    blocks = split(len(Z), _ROUTE_ROWS)
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
