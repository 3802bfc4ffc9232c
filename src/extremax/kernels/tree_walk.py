"""Walk down a fitted label tree: ancestral sampling, path log-likelihoods, all leaves, beam search.

At node v a row x goes to the right child with probability sigma(a), a = w_v.x + b_v (paper, section 3).  With
e = exp(-|a|) the probability of a decision is ``(1 or e) / (1 + e)``, so that a path has

    -log p = sum of |a| over the decisions taken against the sign of a  +  log of the product of (1 + e)

which is exact in both tails, needs one exponential per level and one logarithm per path.

Kernels work on blocks of rows, level by level: while one row waits for the memory of its next node the others
proceed, and every pass over the block is a loop of constant length that LLVM turns into SIMD code.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit
from extremax.kernels.math import bits_float, exp32, float_bits, log1p32
from extremax.kernels.rng import draw_key, mix64

LANES = 16  # columns of `table` and of the features are a multiple of this: a cache line of float32
_BLOCK = 64  # rows that walk together
CHUNK = 256  # nodes that `all_log_prob` handles together: their parameters stay in the first-level cache
_STRETCH_LEVELS = 3  # last levels, which `all_log_prob` computes stretch by stretch
TILE = 16  # rows that `all_log_prob` takes down the tree together

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_LN2 = np.float32(0.69314718056)
_U23 = np.float32(2.0**-23)
_LOW23 = np.uint64(0x7FFFFF)
_S41 = np.uint64(41)
_ONE_INT = np.int32(1)
_MANTISSA = np.int32(0x7FFFFF)
_ONE_BITS = np.int32(0x3F800000)
_MINUS_INF = np.float32(-np.inf)


class TreeArrays(NamedTuple):
    """A fitted tree as the kernels take it; features are padded like `table`."""

    table: np.ndarray  # (n_inner, width) float32: node weights, padded with zeros to whole cache lines
    biases: np.ndarray  # (n_inner, 1) float32
    leaf_class: np.ndarray  # (n_leaves,) int32: class of each leaf, -1 for padding
    class_leaf: np.ndarray  # (n_classes,) int32: leaf of each class


@inline
def _log32(x):
    """Return ``log(x)`` for finite x >= 1, from exponent and mantissa."""
    bits = float_bits(x)
    return np.float32((bits >> 23) - 127) * _LN2 + log1p32(
        bits_float(np.int32((bits & _MANTISSA) | _ONE_BITS)) - _ONE
    )


@inline
def dot_rows(left, i, right, j):
    """Return the inner product of row i of `left` and row j of `right`."""
    total = _ZERO
    for c in range(left.shape[1]):
        total += left[i, c] * right[j, c]
    return total


@njit
def sample_paths(tree, Z, n_draws, seed, start, stop, labels, log_prob):
    """Draw one class for every pair in [start, stop).

    Pair p is draw ``p % n_draws`` of row ``p // n_draws`` of Z; ``labels`` int32 and ``log_prob`` float32
    (n_rows * n_draws,) are filled.
    """
    table, biases = tree.table, tree.biases
    n_inner = biases.shape[0]
    mixed_seed = mix64(seed)
    rows = np.empty(_BLOCK, np.int64)
    nodes = np.empty(_BLOCK, np.int32)
    keys = np.empty(_BLOCK, np.uint64)
    uniform = np.empty((2, _BLOCK), np.float32)
    logits = np.empty(_BLOCK, np.float32)
    soft = np.empty(_BLOCK, np.float32)
    against = np.empty(_BLOCK, np.float32)
    product = np.empty(_BLOCK, np.float32)
    for block in range(start, stop, _BLOCK):
        size = min(_BLOCK, stop - block)
        # the last block repeats its last pair, so that all loops have the same length
        for j in range(_BLOCK):
            pair = block + min(j, size - 1)
            rows[j] = pair // n_draws
            keys[j] = draw_key(mixed_seed, rows[j], pair - rows[j] * n_draws)
            nodes[j] = 0
            against[j] = _ZERO
            product[j] = _ONE
        level = 0
        width = 1
        while width <= n_inner:
            half = level & 1
            # one hash is enough for two levels; 23 bits and a half: never 0, never 1, exact in float32
            if half == 0:
                for j in range(_BLOCK):
                    bits = mix64(keys[j] ^ np.uint64(level))
                    uniform[0, j] = (np.float32(np.int32(bits & _LOW23)) + _HALF) * _U23
                    uniform[1, j] = (np.float32(np.int32(bits >> _S41)) + _HALF) * _U23
            for j in range(_BLOCK):
                logits[j] = dot_rows(table, nodes[j], Z, rows[j]) + biases[nodes[j], 0]
            for j in range(_BLOCK):
                soft[j] = exp32(-abs(logits[j]))
            # to the right if u < sigma(a); numbers instead of branches, which would prevent vectorisation
            for j in range(_BLOCK):
                a = logits[j]
                bound = _ONE if a >= _ZERO else soft[j]
                right = np.float32(uniform[half, j] * (_ONE + soft[j]) < bound)
                against[j] += max(a - (right + right) * a, _ZERO)
                product[j] *= _ONE + soft[j]
                nodes[j] = (nodes[j] << _ONE_INT) + _ONE_INT + np.int32(right)
            level += 1
            width *= 2
        for j in range(_BLOCK):
            product[j] = -against[j] - _log32(product[j])
        for j in range(size):
            labels[block + j] = tree.leaf_class[nodes[j] - n_inner]
            log_prob[block + j] = product[j]


@njit
def path_log_prob(tree, Z, labels, n_labels, levels, start, stop, log_prob):
    """Compute the log-probability of the decisions of some levels towards given classes.

    Pair p is label ``p % n_labels`` of row ``p // n_labels``, of ``labels`` and ``log_prob``
    (n_rows * n_labels,).  ``levels`` are the first level and the one after the last.
    """
    table, biases = tree.table, tree.biases
    first_level, last_level = levels
    n_leaves = np.int64(biases.shape[0] + 1)
    depth = 0
    while (1 << depth) < n_leaves:
        depth += 1
    rows = np.empty(_BLOCK, np.int64)
    leaves = np.empty(_BLOCK, np.int64)
    logits = np.empty(_BLOCK, np.float32)
    soft = np.empty(_BLOCK, np.float32)
    against = np.empty(_BLOCK, np.float32)
    product = np.empty(_BLOCK, np.float32)
    for block in range(start, stop, _BLOCK):
        size = min(_BLOCK, stop - block)
        for j in range(_BLOCK):
            pair = block + min(j, size - 1)
            rows[j] = pair // n_labels
            # binary digits of this number: 1, then the decisions
            leaves[j] = n_leaves + tree.class_leaf[labels[pair]]
            against[j] = _ZERO
            product[j] = _ONE
        for level in range(first_level, last_level):
            shift = depth - level
            for j in range(_BLOCK):
                node = (leaves[j] >> shift) - 1
                sign = np.float32(1 - 2 * ((leaves[j] >> (shift - 1)) & 1))
                # positive where the decision is the less probable one
                logits[j] = sign * (dot_rows(table, node, Z, rows[j]) + biases[node, 0])
            for j in range(_BLOCK):
                soft[j] = exp32(-abs(logits[j]))
            for j in range(_BLOCK):
                against[j] += max(logits[j], _ZERO)
                product[j] *= _ONE + soft[j]
        for j in range(_BLOCK):
            product[j] = -against[j] - _log32(product[j])
        for j in range(size):
            log_prob[block + j] = product[j]


@inline
def _chunk_logits(nodes, Z, row, twin, logits):
    """Compute the logits of the nodes of a chunk for two rows; each weight is loaded once for both."""
    n_columns = Z.shape[1]
    for p in range(CHUNK):
        logits[0, p] = nodes[n_columns, p]
        logits[1, p] = nodes[n_columns, p]
    for c in range(0, n_columns, 4):
        x0, x1, x2, x3 = Z[row, c], Z[row, c + 1], Z[row, c + 2], Z[row, c + 3]
        z0, z1, z2, z3 = Z[twin, c], Z[twin, c + 1], Z[twin, c + 2], Z[twin, c + 3]
        for p in range(CHUNK):
            w0, w1, w2, w3 = nodes[c, p], nodes[c + 1, p], nodes[c + 2, p], nodes[c + 3, p]
            logits[0, p] += (x0 * w0 + x1 * w1) + (x2 * w2 + x3 * w3)
            logits[1, p] += (z0 * w0 + z1 * w1) + (z2 * w2 + z3 * w3)


@njit
def all_log_prob(chunks, place, n_places, Z, start, stop, scratch, log_prob):
    """Compute the log-probability of every class for the rows [start, stop) of Z.

    Each step down puts left children where their parents were and right children behind them.  A few rows go
    down together, so that the parameters of a chunk of nodes are read from the cache for all of them.  The
    last levels are computed stretch by stretch, so that the numbers stay in the cache as well; at the end
    they are put in the order of the classes.

    Parameters
    ----------
    chunks : (n_chunks, width + 1, CHUNK), place : (n_classes,)
        Weights and biases of the nodes above the first n_places leaves, and the leaf of each class, in
        bit-reversed order: the node at place r of a level with w nodes has its left child at place r of the
        next level and its right child at w + r.
    scratch : (TILE + 4, n_chunks * CHUNK)
    log_prob : (n_rows, n_classes)
        Filled in rows [start, stop).
    """
    top = CHUNK
    while top << _STRETCH_LEVELS < n_places:
        top *= 2
    reached, four = scratch[:TILE], scratch[TILE:].reshape(-1)
    logits = np.zeros((2, CHUNK), np.float32)
    loss = np.zeros(CHUNK, np.float32)
    for tile in range(start, stop, TILE):
        size = min(TILE, stop - tile)
        for r in range(size):
            _chunk_logits(chunks[0], Z, tile + r, tile + r, logits)
            reached[r, 0] = _ZERO
            width = 1
            while width < min(n_places, CHUNK):
                for p in range(min(width, n_places - width)):
                    a = logits[0, width + p]
                    here = reached[r, p] - log1p32(exp32(-abs(a)))
                    reached[r, p] = here - max(a, _ZERO)
                    reached[r, width + p] = here - max(-a, _ZERO)
                width *= 2
        # the levels above the stretches, then the stretches
        for low, high in ((CHUNK, min(top, n_places)), (top, n_places)):
            for first in range(0, low, CHUNK):
                width = low
                while width < high:
                    for base in range(first, min(width, n_places - width), low):
                        nodes = chunks[(width + base) // CHUNK]
                        for r in range(size):
                            if r % 2 == 0:
                                _chunk_logits(nodes, Z, tile + r, tile + min(r + 1, size - 1), logits)
                            own = logits[r % 2]
                            left = reached[r, base : base + CHUNK]
                            right = reached[r, width + base : width + base + CHUNK]
                            for p in range(CHUNK):
                                loss[p] = exp32(-abs(own[p]))
                            for p in range(CHUNK):
                                loss[p] = left[p] - log1p32(loss[p])
                            for p in range(CHUNK):
                                left[p] = loss[p] - max(own[p], _ZERO)
                                right[p] = loss[p] - max(-own[p], _ZERO)
                    width *= 2
        for r in range(0, size, 4):  # four rows side by side: one access to a random place for all of them
            s1, s2, s3 = min(r + 1, size - 1), min(r + 2, size - 1), min(r + 3, size - 1)
            row_0, row_1, row_2, row_3 = reached[r], reached[s1], reached[s2], reached[s3]
            for p in range(n_places):
                four[4 * p] = row_0[p]
                four[4 * p + 1] = row_1[p]
                four[4 * p + 2] = row_2[p]
                four[4 * p + 3] = row_3[p]
            out_0, out_1, out_2, out_3 = (
                log_prob[tile + r],
                log_prob[tile + s1],
                log_prob[tile + s2],
                log_prob[tile + s3],
            )
            for c in range(place.shape[0]):
                p = 4 * np.int64(place[c])
                out_0[c] = four[p]
                out_1[c] = four[p + 1]
                out_2[c] = four[p + 2]
                out_3[c] = four[p + 3]


@njit
def beam_leaves(tree, Z, beam_width, start, stop, labels, log_prob):
    """Walk down with the `beam_width` most probable nodes of each level, among equals the leftmost.

    ``labels`` and ``log_prob`` (n_rows, w) with w >= min(beam_width, n_leaves) get the classes of the leaves
    reached, from left to right, then -1 and -inf.  Padding leaves are left out.
    """
    table, biases, leaf_class = tree.table, tree.biases, tree.leaf_class
    n_inner = biases.shape[0]
    capacity = 2 * min(beam_width, n_inner + 1)
    nodes = np.zeros((2, capacity), np.int64)  # kept, and their children
    # -log p of the path, so that its bits as an integer are in order
    loss = np.zeros((2, capacity), np.float32)
    logits = np.zeros(capacity, np.float32)
    keys = np.zeros(capacity, np.int32)
    for row in range(start, stop):
        n_kept = np.int64(1)
        nodes[0, 0] = 0
        loss[0, 0] = _ZERO
        while nodes[0, 0] < n_inner:
            for i in range(n_kept):
                logits[i] = dot_rows(table, nodes[0, i], Z, row) + biases[nodes[0, i], 0]
            for i in range(n_kept):
                loss[1, i] = exp32(-abs(logits[i]))
            for i in range(n_kept):
                loss[0, i] += log1p32(loss[1, i])
            n = 0
            for i in range(2 * n_kept):
                child = 2 * nodes[0, i >> 1] + 1 + (i & 1)
                if child < n_inner or leaf_class[child - n_inner] >= 0:
                    a = logits[i >> 1]
                    nodes[1, n] = child
                    loss[1, n] = loss[0, i >> 1] + max(-a if i & 1 else a, _ZERO)
                    n += 1
            low, high = np.int32(0), np.int32(0x7FFFFFFF)
            ties = np.int64(0)
            if n > beam_width:
                for i in range(n):
                    keys[i] = float_bits(loss[1, i])
                while low < high:  # bisection for the beam_width-th smallest key: each pass is a SIMD count
                    middle = low + ((high - low) >> 1)
                    count = np.int32(0)
                    for i in range(n):
                        count += np.int32(keys[i] <= middle)
                    if count >= beam_width:
                        high = np.int32(middle)
                    else:
                        low = np.int32(middle + 1)
                ties = beam_width
                for i in range(n):
                    ties -= np.int64(keys[i] < high)
            n_kept = 0
            for i in range(n):
                take = n <= beam_width or keys[i] < high
                if not take and keys[i] == high and ties > 0:
                    ties -= 1
                    take = True
                if take:
                    nodes[0, n_kept] = nodes[1, i]
                    loss[0, n_kept] = loss[1, i]
                    n_kept += 1
        for i in range(n_kept):
            labels[row, i] = leaf_class[nodes[0, i] - n_inner]
            log_prob[row, i] = -loss[0, i]
        for i in range(n_kept, labels.shape[1]):
            labels[row, i] = -1
            log_prob[row, i] = _MINUS_INF
