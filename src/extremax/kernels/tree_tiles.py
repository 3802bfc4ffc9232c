"""Cut the label tree into subtrees and compute the log-probabilities of all leaves of one.

Below node v, log p_n decreases by log(1 + exp(a)) to the left and by log(1 + exp(-a)) to the right, with
a = w_v.x + b_v (paper, section 3).  The nodes of each level are stored in bit-reversed order: the node at
place r has its left child at place r of the next level and its right child at place r + (nodes of the level).
A step down is then two passes over consecutive memory, in place.

A balanced tree gives ceil(n / 2) of n classes to the left and floor(n / 2) to the right.  In bit-reversed
order its padding comes last: the n real classes of a subtree are the first places of its row, its first n - 1
nodes have two real children each, and nothing is computed for the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit
from extremax.kernels.topk import exp_nonpositive

_ZERO = np.float32(0.0)
# minimax polynomial of log(1 + e) / e
_Q0, _Q1, _Q2, _Q3 = (
    np.float32(0.99999797),
    np.float32(-0.49990782),
    np.float32(0.33205986),
    np.float32(-0.24172097),
)
_Q4, _Q5, _Q6, _Q7 = (
    np.float32(0.16969058),
    np.float32(-0.09766766),
    np.float32(0.03749231),
    np.float32(-0.00679713),
)


class LeafTiles(NamedTuple):
    """The subtrees below one level of a tree, each with its classes in bit-reversed order."""

    labels: np.ndarray  # (n_classes,) int32: classes, subtree by subtree
    offsets: np.ndarray  # (n_tiles + 1,) int64: where each subtree begins in `labels`
    top: np.ndarray  # (n_tiles - 1,) int64: nodes above the subtrees, level by level
    roots: np.ndarray  # (n_tiles,) int64: number of each subtree's root within its level
    level_start: np.ndarray  # (nodes,) int64: first heap number of a node's level
    level_width: np.ndarray  # (nodes,) int64: nodes of its level within one subtree
    place: np.ndarray  # (nodes,) int64: its number among those

    def nodes(self, tile):
        """Return heap numbers of the nodes of a subtree with two real children, level by level."""
        n = self.offsets[tile + 1] - self.offsets[tile] - 1
        return self.level_start[:n] + self.roots[tile] * self.level_width[:n] + self.place[:n]


def reversed_bits(n_bits):
    """Return the bit reversals of the numbers below 2**n_bits."""
    order = np.zeros(1, np.int64)
    for _ in range(n_bits):
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def cut_tree(leaf_class, tile_depth):
    """Cut a tree into subtrees of `tile_depth` levels, or fewer if it has fewer.

    Returns None for a tree with padding elsewhere than `LabelTree.fit` puts it.
    """
    depth = len(leaf_class).bit_length() - 1
    below = min(tile_depth, depth)
    above = depth - below
    roots = reversed_bits(above)
    labels = leaf_class[(roots[:, None] << below) + reversed_bits(below)]
    real = labels >= 0
    counts = real.sum(axis=1)
    if not np.array_equal(real, np.arange(1 << below) < counts[:, None]) or counts.min() < (1 << below) // 2:
        return None

    def by_level(values, levels):
        return np.concatenate(
            [np.empty(0, np.int64), *(np.broadcast_to(values(level), 1 << level) for level in levels)]
        )

    return LeafTiles(
        labels=np.ascontiguousarray(labels[real], np.int32),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        top=by_level(lambda level: (1 << level) - 1 + reversed_bits(level), range(above)),
        roots=roots,
        level_start=by_level(lambda level: (1 << (above + level)) - 1, range(below)),
        level_width=by_level(lambda level: 1 << level, range(below)),
        place=by_level(reversed_bits, range(below)),
    )


@inline
def _log1p_unit(e):
    """Return ``log(1 + e)`` in float32 for e in [0, 1], absolute error below 2e-7."""
    s = e * e
    high, low = (_Q7 * e + _Q6) * s + (_Q5 * e + _Q4), (_Q3 * e + _Q2) * s + (_Q1 * e + _Q0)
    return (high * (s * s) + low) * e


@njit
def descend(logits, biases, start, start_column, loss, log_prob):
    """Fill the log-probabilities of the leaves of a subtree.

    Parameters
    ----------
    logits : float32 (n, width - 1)
        w_v.x of the nodes of the subtree with two real children, level by level; overwritten.
    biases : float32 (width - 1,)
    start : float32 (n, m)
        ``start[i, start_column]`` is the log-probability that row i reaches the root.
    loss : float32 (width - 1,)
        Scratch.
    log_prob : float32 (n, width)
        Filled, in bit-reversed order of the real leaves.
    """
    width = log_prob.shape[1]
    for i in range(log_prob.shape[0]):
        a = logits[i]
        for p in range(width - 1):
            a_p = a[p] + biases[p]
            a[p] = a_p
            loss[p] = _log1p_unit(exp_nonpositive(-abs(a_p)))
        row = log_prob[i]
        row[0] = start[i, start_column]
        level = 1
        while level < width:
            right = row[level : min(2 * level, width)]
            left = row[: right.size]  # a node with a single child goes there with certainty
            logit, soft = a[level - 1 : level - 1 + right.size], loss[level - 1 : level - 1 + right.size]
            for p in range(right.size):
                right[p] = left[p] - soft[p] - max(-logit[p], _ZERO)
            for p in range(right.size):
                left[p] = left[p] - soft[p] - max(logit[p], _ZERO)
            level *= 2
