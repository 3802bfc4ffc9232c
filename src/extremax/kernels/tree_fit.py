"""Greedy fit of a label tree, from the root down: points grouped by class, then one logistic regression per node.

`order` lists the classes such that every node owns a stretch of it; fitting a node puts the classes of its left child first.  A
node with c classes passes ceil(c / 2) to the left and floor(c / 2) to the right, so that only the last level has padding, always as
a right child.  Within a node classes stay in ascending order: ties go by class, and no result depends on who computes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax._jit import draw_key, mix64, njit, uniform32
from extremax.kernels.tree_newton import LANES, fit_dual, fit_primal, initial_split, make_scratch

PADDING_BIAS = np.float32(-1e6)  # logit of a padding leaf: its probability is exactly 0, and nothing overflows


class Grouped(NamedTuple):
    """Data sorted by class: the points of class y are the rows offsets[y] to offsets[y + 1]."""

    points: np.ndarray  # (N, width) float32, columns padded to a multiple of LANES
    share: np.ndarray  # (N,) float32: weights
    offsets: np.ndarray  # (C + 1,) int64
    sums: np.ndarray  # (C, width) float32: weighted sums of the points of a class
    counts: np.ndarray  # (C,) float32: summed weights of a class


class Nodes(NamedTuple):
    """What is fitted: parameters of the nodes in heap order, and the classes in the order of the leaves."""

    table: np.ndarray  # (n_inner, width) float32
    biases: np.ndarray  # (n_inner,) float32
    order: np.ndarray  # (C,) int32
    penalty: np.ndarray  # (depth,) float64
    bias_penalty: np.ndarray  # (depth,) float64


@njit
def group_by_class(Z, y, share, offsets, points, grouped_share):
    """Counting sort of the rows by class, stable; offsets (C + 1,) must be 0."""
    for i in range(y.shape[0]):
        offsets[y[i] + 1] += 1
    for c in range(offsets.shape[0] - 1):
        offsets[c + 1] += offsets[c]
    place = offsets[:-1].copy()
    for i in range(y.shape[0]):
        row = place[y[i]]
        place[y[i]] = row + 1
        for c in range(Z.shape[1]):
            points[row, c] = Z[i, c]
        grouped_share[row] = share[i]


@njit
def sum_by_class(data, first, last):
    """Sums and counts of the classes [first, last)."""
    total = np.empty(data.points.shape[1], np.float64)
    for y in range(first, last):
        total[:] = 0.0
        count = 0.0
        for i in range(data.offsets[y], data.offsets[y + 1]):
            count += data.share[i]
            for c in range(total.shape[0]):
                total[c] += np.float64(data.share[i]) * data.points[i, c]
        for c in range(total.shape[0]):
            data.sums[y, c] = np.float32(total[c])
        data.counts[y] = np.float32(count)


@njit
def fit_subtree(data, nodes, settings, k, root, level, n_levels, first, last, alternate):
    """Fit the nodes of `n_levels` levels below and including `root`, which owns order[first:last] and lies on `level`.

    `alternate`: find the structure as well.  Otherwise it is kept, and parameters start from their present values.
    """
    width = data.points.shape[1]
    n_points = 0
    for j in range(first, last):
        n_points += data.offsets[nodes.order[j] + 1] - data.offsets[nodes.order[j]]
    size = max(k + 1, settings.dual_points)
    scratch = make_scratch(min(n_points, settings.max_points), last - first, width, size)
    theta = np.zeros(k + 1, np.float64)
    spare = np.empty(last - first, np.int32)
    bounds = np.empty((1 << n_levels) + 1, np.int64)
    bounds[0], bounds[1] = first, last
    for below in range(n_levels):
        n_nodes = 1 << below
        node = (root + 1) * n_nodes - 1
        for j in range(n_nodes):
            _fit_node(data, nodes, settings, k, node + j, level + below, bounds[j], bounds[j + 1], alternate, scratch, theta, spare)
        for j in range(n_nodes - 1, -1, -1):
            m = bounds[j + 1] - bounds[j]
            bounds[2 * j + 2] = bounds[j + 1]
            bounds[2 * j + 1] = bounds[j] + m - m // 2


@njit
def _fit_node(data, nodes, settings, k, node, level, first, last, alternate, s, theta, spare):
    m = last - first
    table, biases, order = nodes.table, nodes.biases, nodes.order
    if m == 1:  # one class on the left, padding on the right
        table[node, :] = np.float32(0.0)
        biases[node] = PADDING_BIAS
        return
    n_left = m - m // 2
    n = _gather(data, order, first, m, settings, node, s)
    for j in range(m):
        s.side[j] = np.int8(j >= n_left)
    if n > 0:
        penalty, bias_penalty = nodes.penalty[level], nodes.bias_penalty[level]
        free = alternate and m > 2
        if free:
            initial_split(s, m, k)
        if n <= settings.dual_points:
            fit_dual(s, n, m, k, penalty, bias_penalty, settings, free, theta)
        else:
            for c in range(k):
                theta[c] = 0.0 if alternate else table[node, c]
            theta[k] = 0.0 if alternate else biases[node]
            fit_primal(s, n, m, k, penalty, bias_penalty, settings, free, theta)
    else:
        theta[:] = 0.0
    for c in range(k):
        table[node, c] = np.float32(theta[c])
    biases[node] = np.float32(theta[k])
    left, right = 0, n_left
    for j in range(m):
        if s.side[j]:
            spare[right] = order[first + j]
            right += 1
        else:
            spare[left] = order[first + j]
            left += 1
    for j in range(m):
        order[first + j] = spare[j]


@njit
def _gather(data, order, first, m, settings, node, s):
    """Copy the sums of a node's classes and its points into the scratch; of many points, a sample with weights to match.

    The sample takes one point at a random place of each of `max_points` equal stretches, so that every class has its share.
    """
    total = 0
    for j in range(m):
        y = order[first + j]
        total += data.offsets[y + 1] - data.offsets[y]
        s.counts[j] = data.counts[y]
        s.sums[j, :] = data.sums[y, :]
    n = min(total, settings.max_points)
    stretch = total / max(n, 1)
    key = draw_key(mix64(settings.seed), node, 0)
    taken, passed, target = 0, 0, 0
    if total > n:
        target = np.int64(uniform32(mix64(key)) * stretch)
    for j in range(m):
        y = order[first + j]
        start, stop = data.offsets[y], data.offsets[y + 1]
        while taken < n and target < passed + stop - start:
            i = start + target - passed
            s.points[taken, :] = data.points[i, :]
            s.share[taken] = np.float32(data.share[i] * stretch)
            s.member[taken] = j
            taken += 1
            target = taken
            if total > n:
                target = min(np.int64((taken + uniform32(mix64(key ^ np.uint64(taken)))) * stretch), total - 1)
        passed += stop - start
    return n
