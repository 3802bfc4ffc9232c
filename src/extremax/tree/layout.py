"""Memory layout of a label tree: padded rows, padding leaves, nodes in bit-reversed order.

Every node passes ceil(c / 2) of its c classes to the left and floor(c / 2) to the right, so that only right
children of the last level are padding.  In bit-reversed order (the first decision is the lowest bit) the
padding comes last: of a tree over C classes, places 0 to C - 1 of the leaves are real, and so are both
children of the first nodes of the last level.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.tree_fit import PADDING_BIAS
from extremax.kernels.tree_walk import CHUNK, LANES
from extremax.types import Bool, Float32, Int32, Int64


def depth_of(n_classes: int) -> int:
    """Return the number of levels of decisions for `n_classes` leaves: ceil(log2(n_classes))."""
    return (n_classes - 1).bit_length()


def reversed_bits(n_bits: int) -> Int64:
    """Return the bit reversals of the numbers below 2**n_bits."""
    order = np.zeros(1, np.int64)
    for _ in range(n_bits):
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def width_of(n_components: int) -> int:
    """Return the number of columns of a padded row."""
    return max(1, -(-n_components // LANES)) * LANES


def plain(array: Any, dtype: Any) -> NDArray[Any]:
    """Return the array in C order, of a type, writable: for one kind of array kernels compile once."""
    return np.require(array, dtype, ["C", "W"])


def aligned(shape: tuple[int, ...], fill: float | None = 0.0) -> Float32:
    """Return an array, filled or not, that starts on a cache line: so do its rows, if whole lines long."""
    size = math.prod(shape)
    raw = np.empty(size + LANES, np.float32)
    skip = -(raw.ctypes.data // raw.itemsize) % LANES
    out = raw[skip : skip + size].reshape(shape)
    if fill is not None:
        out[...] = fill
    return out


def padded_table(weights: NDArray[Any]) -> Float32:
    """Return weights whose rows are padded with zeros to whole cache lines."""
    table = aligned((weights.shape[0], width_of(weights.shape[1])))
    table[:, : weights.shape[1]] = weights
    return table


def padded_features(features: Float32) -> Float32:
    """Return features with as many columns as the table of the nodes."""
    width = width_of(features.shape[1])
    if width == features.shape[1]:
        return plain(features, np.float32)
    padded = np.zeros((len(features), width), np.float32)
    padded[:, : features.shape[1]] = features
    return padded


def real_leaves(n_classes: int) -> Bool:
    """Return which leaves hold a class, from left to right."""
    counts = np.array([n_classes])
    for _ in range(depth_of(n_classes)):
        counts = np.stack([counts - counts // 2, counts // 2], axis=1).reshape(-1)
    return counts > 0


def leaves_of(order: Int32) -> Int32:
    """Return the class of each leaf, -1 for padding, from the classes in the order of the leaves."""
    real = real_leaves(len(order))
    leaf_class = np.full(len(real), -1, np.int32)
    leaf_class[real] = order
    return leaf_class


def is_balanced(leaf_class: Int32) -> bool:
    """Return whether padding is where `LabelTree.fit` puts it."""
    return np.array_equal(leaf_class >= 0, real_leaves(int(np.count_nonzero(leaf_class >= 0))))


def padding_is_closed(table: Float32, biases: Float32, leaf_class: Int32) -> bool:
    """Return whether every padding leaf has probability 0.

    On its path some node without weights must send everything to its other child.
    """
    node = len(leaf_class) + np.flatnonzero(leaf_class < 0)  # binary digits: 1, then the decisions
    closed = np.zeros(len(node), bool)
    while len(node) and node[0] > 1:
        parent = node // 2 - 1
        against = np.where(node % 2 == 1, biases[parent] <= PADDING_BIAS, biases[parent] >= -PADDING_BIAS)
        closed |= against & ~table[parent].any(axis=1)
        node = node // 2
    return bool(closed.all())


class Chunks(NamedTuple):
    """The tree as `extremax.kernels.tree_walk.all_log_prob` reads it."""

    nodes: Float32  # (n_chunks, width + 1, CHUNK): nodes transposed; the last row of a chunk holds the biases
    place: Int32  # (n_classes,): place of each class among the leaves
    n_places: int  # leaves to be computed: without padding if it comes last


def make_chunks(table: Float32, biases: Float32, leaf_class: Int32, class_leaf: Int32) -> Chunks:
    """Transpose the nodes in chunks.

    Node r of the level with w nodes, in bit-reversed order, goes to place w + r, so that wide levels begin
    with a chunk.
    """
    depth = len(biases).bit_length()
    n_places = len(class_leaf) if is_balanced(leaf_class) else len(leaf_class)
    nodes = np.zeros((-(-n_places // CHUNK), table.shape[1] + 1, CHUNK), np.float32)
    nodes[:, -1] = PADDING_BIAS  # places without a node go left, that is, keep their value
    for level in range(depth):
        w = 1 << level
        real = reversed_bits(level)[: n_places - w]  # both children are real
        for first in range(0, len(real), CHUNK):
            order = w - 1 + real[first : first + CHUNK]
            chunk, place = divmod(w + first, CHUNK)
            part = nodes[chunk, :, place : place + len(order)]
            part[:-1] = table[order].T
            part[-1] = biases[order]
    return Chunks(nodes, reversed_bits(depth)[class_leaf].astype(np.int32), n_places)
