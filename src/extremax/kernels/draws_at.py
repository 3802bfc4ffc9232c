"""Draw negatives of some rows of a window, wherever they are: each row brings its position along.

`sample_paths`, `draw_alias` and `choose_component` number the rows of a window from zero.  Here the rows of a
window are spread over machines: `positions` holds the number of each row, and every draw is the same.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.math import exp32
from extremax.kernels.rng import draw_key, mix64, uniform_bits
from extremax.kernels.simd import dot_rows, prefetch
from extremax.kernels.tree_walk import _BLOCK, _HALF, _LOW23, _ONE, _ONE_INT, _S41, _U23, _ZERO, _log32


@njit
def sample_paths_at(tree, Z, positions, n_draws, seed, start, stop, labels, log_prob):
    """Draw one class for every pair in [start, stop), as `extremax.kernels.tree_walk.sample_paths` does.

    Pair p is draw ``p % n_draws`` of row ``p // n_draws`` of Z, which is row ``positions[p // n_draws]`` of
    its window.
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
        for j in range(_BLOCK):
            pair = block + min(j, size - 1)
            rows[j] = pair // n_draws
            keys[j] = draw_key(mixed_seed, positions[rows[j]], pair - rows[j] * n_draws)
            nodes[j] = 0
            against[j] = _ZERO
            product[j] = _ONE
        level = 0
        width = 1
        while width <= n_inner:
            half = level & 1
            if half == 0:
                for j in range(_BLOCK):
                    bits = mix64(keys[j] ^ np.uint64(level))
                    uniform[0, j] = (np.float32(np.int32(bits & _LOW23)) + _HALF) * _U23
                    uniform[1, j] = (np.float32(np.int32(bits >> _S41)) + _HALF) * _U23
            for j in range(_BLOCK):
                logits[j] = dot_rows(table, nodes[j], Z, rows[j]) + biases[nodes[j], 0]
            for j in range(_BLOCK):
                soft[j] = exp32(-abs(logits[j]))
            for j in range(_BLOCK):
                a = logits[j]
                bound = _ONE if a >= _ZERO else soft[j]
                right = np.float32(uniform[half, j] * (_ONE + soft[j]) < bound)
                against[j] += max(a - (right + right) * a, _ZERO)
                product[j] *= _ONE + soft[j]
                nodes[j] = (nodes[j] << _ONE_INT) + _ONE_INT + np.int32(right)
            if 2 * width <= n_inner:
                for j in range(_BLOCK):
                    prefetch(table, nodes[j], 0)
                    prefetch(biases, nodes[j], 0)
            level += 1
            width *= 2
        for j in range(_BLOCK):
            product[j] = -against[j] - _log32(product[j])
        for j in range(size):
            labels[block + j] = tree.leaf_class[nodes[j] - n_inner]
            log_prob[block + j] = product[j]


@njit
def draw_alias_at(threshold, alias, log_prob, seed, positions, labels, log_noise):
    """Draw all rows of `labels` and `log_noise`, as `extremax.kernels.alias.draw_alias` does."""
    n = threshold.shape[0]
    mixed_seed = mix64(seed)
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            first, second = uniform_bits(draw_key(mixed_seed, positions[i], j))
            column = min(np.int64(first * n), n - 1)
            label = column if second < threshold[column] else np.int64(alias[column])
            labels[i, j] = label
            log_noise[i, j] = log_prob[label]


@njit
def choose_component_at(seed, weight, positions, first, second, labels):
    """Choose between two draws, as `extremax.kernels.alias.choose_component` does."""
    mixed_seed = mix64(seed)
    for i in range(labels.shape[0]):
        for j in range(labels.shape[1]):
            u, _ = uniform_bits(draw_key(mixed_seed, positions[i], j))
            labels[i, j] = first[i, j] if u < weight else second[i, j]
