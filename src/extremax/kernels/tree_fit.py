"""Greedy fit of a label tree, from the root down: points grouped by class, then one logistic regression per node.

`order` lists the classes such that every node owns a stretch of it; fitting a node puts the classes of its left child first.  A
node with c classes passes ceil(c / 2) to the left and floor(c / 2) to the right, so that only the last level has padding, always
as a right child.  Within a node classes stay in ascending order: ties go by class, and no result depends on who computes it.

One iteration at a node is a Newton step followed by the best split for the new parameters; where L does not grow the step is
halved.  L never falls, so the split in hand is always the best seen.  Nodes with very many points take Newton steps on a sample,
while all points choose the split; there L may fall by the noise of the sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax._jit import draw_key, inline, mix64, njit, uniform32
from extremax.kernels.tree_newton import (
    LANES,
    PASS,
    choose_split,
    class_deltas,
    dual_evaluate,
    dual_gram,
    dual_step,
    evaluate,
    principal_direction,
    solve_system,
)

PADDING_BIAS = np.float32(-1e6)  # logit of a padding leaf: its probability is exactly 0, and nothing overflows
_SHORTEST_STEP = 1e-3  # a step that does not help at this part of its length is lost in rounding
_ROUNDING = 1e-6  # L is a sum of float32 terms: relative changes below this are noise
_SAMPLING = 0.01  # per unit of weight: by this much a sample may misjudge a split that all points have chosen
_SMALLEST_GAIN = 1e-9  # per unit of weight: below it Newton has converged, whatever the tolerance


class Grouped(NamedTuple):
    """Data sorted by class: the points of class y are the rows offsets[y] to offsets[y + 1]."""

    points: np.ndarray  # (N, k) float32
    share: np.ndarray  # (N,) float32: weights
    offsets: np.ndarray  # (C + 1,) int64
    sums: np.ndarray  # (C, k + 1) float32: weighted sum of the points of a class, and its summed weight


class Nodes(NamedTuple):
    """What is fitted: parameters of the nodes in heap order, and the classes in the order of the leaves."""

    table: np.ndarray  # (n_inner, width) float32
    biases: np.ndarray  # (n_inner,) float32
    order: np.ndarray  # (C,) int32
    penalty: np.ndarray  # (depth,) float64
    bias_penalty: np.ndarray  # (depth,) float64


class Settings(NamedTuple):
    """How long a node is worked on; `tolerance` is a gain of L per unit of weight."""

    max_points: int
    max_alternations: int
    max_newton: int
    tolerance: float
    dual_points: int
    seed: int


@njit
def group_by_class(Z, y, share, offsets, points, grouped_share):
    """Counting sort of the rows by class, stable; offsets (C + 1,) must be 0."""
    for i in range(y.shape[0]):
        offsets[y[i] + 1] += 1
    for c in range(offsets.shape[0] - 1):
        offsets[c + 1] += offsets[c]
    place = offsets.copy()
    for i in range(y.shape[0]):
        row = place[y[i]]
        place[y[i]] = row + 1
        for c in range(Z.shape[1]):
            points[row, c] = Z[i, c]
        grouped_share[row] = share[i]


@njit
def sum_by_class(data, first, last):
    """Sums and counts of the classes [first, last)."""
    k = data.points.shape[1]
    total = np.empty(k + 1, np.float64)
    for y in range(first, last):
        for c in range(k + 1):
            total[c] = 0.0
        for i in range(data.offsets[y], data.offsets[y + 1]):
            share = np.float64(data.share[i])
            for c in range(k):
                total[c] += share * data.points[i, c]
            total[k] += share
        for c in range(k + 1):
            data.sums[y, c] = np.float32(total[c])


@njit
def gather(points, share, offsets, class_sums, order, first, m, n, stretch, key, X, X_share, member, sums):
    """Copy n points of a node and the sums of its m classes into blocks; returns the weight of the points.

    With stretch > 1 the points are a sample, one at a random place of each of n equal stretches, so that every class has its
    share, and weights are stretched to match.
    """
    k = points.shape[1]
    taken, passed, target = 0, 0, 0
    weight = 0.0
    if stretch > 1.0:
        target = np.int64(uniform32(mix64(key)) * stretch)
    for j in range(m):
        y = order[first + j]
        for c in range(k + 1):
            sums[j // PASS, c, j % PASS] = class_sums[y, c]
        start, stop = offsets[y], offsets[y + 1]
        while taken < n and target < passed + stop - start:
            i = start + target - passed
            block, place = taken // PASS, taken % PASS
            for c in range(k):
                X[block, c, place] = points[i, c]
            q = np.float32(share[i] * stretch)
            X_share[block, place] = q
            member[block, place] = j
            weight += q
            taken += 1
            target = taken
            if stretch > 1.0:
                target = np.int64((taken + uniform32(mix64(key ^ np.uint64(taken)))) * stretch)
        passed += stop - start
    while taken % LANES != 0:
        X_share[taken // PASS, taken % PASS] = np.float32(0.0)
        member[taken // PASS, taken % PASS] = 0
        taken += 1
    return weight


@njit
def fit_subtree(data, nodes, settings, k, root, level, n_levels, first, last, alternate):
    """Fit the nodes of `n_levels` levels below and including `root`, which owns order[first:last] and lies on `level`.

    `alternate`: find the structure as well.  Otherwise it is kept, and parameters start from their present values.
    """
    order, offsets = nodes.order, data.offsets
    capacity = 0
    for j in range(first, last):
        capacity += offsets[order[j] + 1] - offsets[order[j]]
    capacity = min(capacity, settings.max_points)
    n_rows = (k + 4) // 4 * 4
    size = max(n_rows, settings.dual_points)
    X = np.zeros(((capacity + PASS - 1) // PASS, n_rows, PASS), np.float32)
    for block in range(X.shape[0]):
        for i in range(PASS):
            X[block, k, i] = 1.0
    share = np.zeros((X.shape[0], PASS), np.float32)
    member = np.zeros((X.shape[0], PASS), np.int32)
    sums = np.zeros(((last - first + PASS - 1) // PASS, n_rows, PASS), np.float32)
    delta = np.zeros((sums.shape[0], PASS), np.float32)
    keys = np.zeros(last - first, np.int32)
    sides = np.zeros((2, last - first), np.int8)
    rows = np.zeros((6, PASS), np.float32)
    matrix = np.zeros((size, size), np.float64)
    gram = np.zeros((size, size), np.float64)
    work = np.zeros((8, size), np.float64)
    bounds = np.zeros((1 << n_levels) + 1, np.int64)
    bounds[0], bounds[1] = first, last
    for below in range(n_levels):
        n_nodes = 1 << below
        for j in range(n_nodes):
            node = (root + 1) * n_nodes - 1 + j
            fit_node(
                data, nodes, settings, k, node, level + below, bounds[j], bounds[j + 1], alternate,
                X, share, member, sums, delta, keys, sides, rows, matrix, gram, work,
            )
        for j in range(n_nodes - 1, -1, -1):
            m = bounds[j + 1] - bounds[j]
            bounds[2 * j + 2] = bounds[j + 1]
            bounds[2 * j + 1] = bounds[j] + m - m // 2


@inline
def fit_node(data, nodes, settings, k, node, level, first, last, alternate,
             X, share, member, sums, delta, keys, sides, rows, matrix, gram, work):
    m = last - first
    n_left = m - m // 2
    total = 0
    for j in range(first, last):
        total += data.offsets[nodes.order[j] + 1] - data.offsets[nodes.order[j]]
    theta, trial, step, gradient = work[4], work[5], work[6], work[7]
    side, trial_side = sides[0], sides[1]
    for c in range(k + 1):
        theta[c] = 0.0
    for j in range(m):
        side[j] = np.int8(j >= n_left)
        trial_side[j] = side[j]
    if total > 0 and m > 1:
        n = min(total, settings.max_points)
        penalty, bias_penalty = nodes.penalty[level], nodes.bias_penalty[level]
        key = draw_key(settings.seed, node, level)
        weight = gather(data.points, data.share, data.offsets, data.sums, nodes.order, first, m, n, total / n, key,
                        X, share, member, sums)
        enough = max(settings.tolerance, _SMALLEST_GAIN) * weight
        dual = n <= settings.dual_points
        size = n if dual else k + 1
        alternations = settings.max_alternations if alternate and m > 2 else 0
        remaining = settings.max_newton
        if alternations > 0:
            principal_direction(sums, m, k, rows, matrix, trial, step)
        if dual:
            dual_gram(X, n, k, penalty, bias_penalty, gram)
        elif not alternate:
            for c in range(k):
                theta[c] = nodes.table[node, c]
            theta[k] = nodes.biases[node]
        value = -np.inf
        length = 0.0
        changed = 0
        started = False
        while True:
            if alternations > 0:
                if started and dual:
                    for j in range(m):
                        delta[j // PASS, j % PASS] = np.float32(0.0)
                    for i in range(n):
                        logit = 0.0
                        for j in range(n):
                            logit += gram[i, j] * trial[j]
                        j = member[0, i]
                        delta[j // PASS, j % PASS] += share[0, i] * np.float32(logit)
                else:
                    class_deltas(sums, m, k, trial, delta)
                changed = choose_split(delta.reshape(-1), keys, m, side, trial_side)
            if not started:
                for c in range(size):
                    trial[c] = theta[c] if not dual else 0.0
                    theta[c] = trial[c]
            if dual:
                reached = dual_evaluate(gram, share, member, n, trial, trial_side, rows, work, matrix)
            else:
                reached = evaluate(X, share, member, n, k, trial, trial_side, penalty, bias_penalty, rows, gradient, matrix)
            slack = _SAMPLING * weight if alternations > 0 and total > n else _ROUNDING * abs(value)
            if reached >= value - slack:
                gained = reached - value
                value = reached
                side, trial_side = trial_side, side
                for c in range(size):
                    theta[c] = trial[c]
                if alternations == 0:
                    remaining -= 1
                elif started:
                    alternations = 0 if abs(gained) < enough else alternations - 1
                gain = 0.0
                if dual:
                    solve_system(matrix, n, work[3])
                    gain = dual_step(gram, n, theta, rows, work, step)
                else:
                    for c in range(size):
                        step[c] = gradient[c]
                    solve_system(matrix, size, step)
                    for c in range(size):
                        gain += 0.5 * gradient[c] * step[c]
                if remaining == 0 or (gain < enough and (alternations == 0 or changed == 0)):
                    for c in range(size):  # the last step leaves a gain of the order of its own squared
                        theta[c] += step[c]
                    break
                length = 1.0
            else:
                length *= 0.5
                if length < _SHORTEST_STEP:
                    if alternations == 0:
                        break
                    alternations = 0  # the split of all points does not suit the sample in use: keep the last good one
                    value = -np.inf
                    length = 0.0
            started = True
            for c in range(size):
                trial[c] = theta[c] + length * step[c]
            if alternations == 0:
                for j in range(m):
                    trial_side[j] = side[j]
        if dual:
            for c in range(k + 1):
                strength = penalty if c < k else bias_penalty
                coefficient = 0.0
                for i in range(n):
                    coefficient += theta[i] * X[0, c, i]
                trial[c] = 0.5 * coefficient / strength
            for c in range(k + 1):
                theta[c] = trial[c]
    for c in range(k):
        nodes.table[node, c] = np.float32(theta[c])
    nodes.biases[node] = np.float32(theta[k]) if m > 1 else PADDING_BIAS
    left, right = 0, n_left
    for j in range(m):
        if side[j]:
            keys[right] = nodes.order[first + j]
            right += 1
        else:
            keys[left] = nodes.order[first + j]
            left += 1
    for j in range(m):
        nodes.order[first + j] = keys[j]
