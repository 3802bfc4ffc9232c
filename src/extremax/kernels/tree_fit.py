"""Greedy fit of a label tree, from the root down: points grouped by class, then one logistic regression per
node.

`order` lists the classes such that every node owns a stretch of it; fitting a node puts the classes of its
left child first. A node with c classes passes ceil(c / 2) to the left and floor(c / 2) to the right, so that
only the last level has padding, always as a right child. Within a node classes stay in ascending order: ties
go by class, and no result depends on who computes it.

One iteration at a node is a Newton step followed by the best split for the new parameters; where L does not
grow the step is halved. L never falls, so the split in hand is always the best seen. Nodes with very many
points take Newton steps on a sample, while all points choose the split; there L may fall by the noise of the
sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.rng import draw_key, mix64, uniform32
from extremax.kernels.tree_newton import (
    LANES,
    PASS,
    choose_split,
    class_deltas,
    newton_iteration,
    principal_direction,
    rotate,
    rotate_back,
)

# logit of a padding leaf: its probability is exactly 0, and nothing overflows
PADDING_BIAS = np.float32(-1e6)
_SHORTEST_STEP = 1e-3  # a step that does not help at this part of its length is lost in rounding
_ROUNDING = 1e-6  # L is a sum of float32 terms: relative changes below this are noise
_SAMPLING = 0.01  # per unit of weight: by this much a sample may misjudge a split that all points have chosen
_SEVERAL_STARTS = 512  # points from which on it pays to try several first directions
_HEAT = 8  # iterations of each of them before the best goes on alone
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
    n_starts: int
    max_alternations: int
    max_newton: int
    tolerance: float
    seed: np.uint64


class Scratch(NamedTuple):
    """Working memory of one task, for nodes of up to n points and m classes; rows is k + 1, rounded up to
    a multiple of 4.
    """

    X: np.ndarray  # (blocks of n, rows, PASS) float32
    share: np.ndarray  # (blocks of n, PASS) float32
    member: np.ndarray  # (blocks of n, PASS) int32: position of a point's class in the node
    sums: np.ndarray  # (blocks of m, rows, PASS) float32
    rotated: np.ndarray  # (1, rows, PASS) float32
    rotated_sums: np.ndarray  # like sums
    delta: np.ndarray  # (blocks of m, PASS) float32
    keys: np.ndarray  # (m,) int32
    sides: np.ndarray  # (3, m) int8: splits
    rows: np.ndarray  # (6, PASS) float32
    matrix: np.ndarray  # (rows, rows) float64
    basis: np.ndarray  # (rows, rows) float64
    work: np.ndarray  # (7, rows) float64
    bounds: np.ndarray  # (nodes of the last level + 1,) int64


def make_scratch(n, m, k, n_levels):
    """Scratch for a subtree with n points (or the sample of them), m classes and k features."""
    n_blocks, m_blocks, n_rows = max(1, -(-n // PASS)), -(-m // PASS), (k + 4) // 4 * 4
    X = np.zeros((n_blocks, n_rows, PASS), np.float32)
    X[:, k, :] = 1.0
    return Scratch(
        X,
        np.zeros((n_blocks, PASS), np.float32),
        np.zeros((n_blocks, PASS), np.int32),
        np.zeros((m_blocks, n_rows, PASS), np.float32),
        np.zeros((1, n_rows, PASS), np.float32),
        np.zeros((m_blocks if n_levels > 1 or n < k else 1, n_rows, PASS), np.float32),
        np.zeros((m_blocks, PASS), np.float32),
        np.zeros(m, np.int32),
        np.zeros((3, m), np.int8),
        np.zeros((6, PASS), np.float32),
        np.zeros((n_rows, n_rows)),
        np.zeros((n_rows, n_rows)),
        np.zeros((7, n_rows)),
        np.zeros((1 << (n_levels - 1)) + 1, np.int64),
    )


@helper
def gather(data, order, first, m, n, stretch, key, X, X_share, member, sums):
    """Copy n points of a node and the sums of its m classes into blocks; returns the weight of the points.

    With stretch > 1 the points are a sample, one at a random place of each of n equal stretches, so that
    every class has its share, and weights are stretched to match."""
    k = data.points.shape[1]
    taken, passed, target = 0, 0, 0
    weight = 0.0
    if stretch > 1.0:
        target = np.int64(uniform32(mix64(key)) * stretch)
    for j in range(m):
        y = order[first + j]
        for c in range(k + 1):
            sums[j // PASS, c, j % PASS] = data.sums[y, c]
        start, stop = data.offsets[y], data.offsets[y + 1]
        while taken < n and target < passed + stop - start:
            i = start + target - passed
            block, place = taken // PASS, taken % PASS
            for c in range(k):
                X[block, c, place] = data.points[i, c]
            q = np.float32(data.share[i] * stretch)
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


@helper
def partition(order, first, m, side, spare):
    """Put the classes of the left child first, each side in its old order."""
    left = 0
    for j in range(m):
        y = order[first + j]
        if side[j]:
            spare[j - left] = y
        else:
            order[first + left] = y
            left += 1
    for j in range(left, m):
        order[first + j] = spare[j - left]


@njit
def fit_subtree(data, nodes, settings, scratch, k, root, level, n_levels, first, last, alternate):
    """Fit the nodes of `n_levels` levels below and including `root`, which owns order[first:last] and lies on
    `level`.

    `alternate`: find the structure as well. Otherwise it is kept, and parameters start from their present
    values."""
    order, offsets, table = nodes.order, data.offsets, nodes.table
    (
        all_X,
        share,
        member,
        all_sums,
        rotated,
        rotated_sums,
        delta,
        keys,
        sides,
        rows,
        matrix,
        basis,
        work,
        bounds,
    ) = scratch
    flat_delta = delta.reshape(-1)
    theta, trial, step, trial_step, gradient, best, fitted = (
        work[0],
        work[1],
        work[2],
        work[3],
        work[4],
        work[5],
        work[6],
    )
    bounds[0], bounds[1] = first, last
    for below in range(n_levels):
        penalty, bias_penalty = nodes.penalty[level + below], nodes.bias_penalty[level + below]
        for place in range((1 << below) - 1, -1, -1):
            node = (root + 1) * (1 << below) - 1 + place
            first, m = bounds[place], bounds[place + 1] - bounds[place]
            if below + 1 < n_levels:
                bounds[2 * place + 2] = first + m
                bounds[2 * place + 1] = first + m - m // 2
            total = 0
            for j in range(first, first + m):
                total += offsets[order[j] + 1] - offsets[order[j]]
            if total == 0 or m == 1:  # nothing to learn from, or a class on the left and padding on the right
                for c in range(k):
                    table[node, c] = 0.0
                nodes.biases[node] = PADDING_BIAS if m == 1 else 0.0
                continue
            n = min(total, settings.max_points)
            key = draw_key(settings.seed, node, m)
            weight = gather(data, order, first, m, n, total / n, key, all_X, share, member, all_sums)
            enough = max(settings.tolerance, _SMALLEST_GAIN) * weight
            few = n < min(k, PASS)  # they are one block of points
            d, X, sums = k, all_X, all_sums
            if few:
                d, X, sums = n, rotated, rotated_sums
                rotate(all_X, share, member, n, m, k, rotated, rotated_sums, basis)
            free = alternate and m > 2
            n_starts = settings.n_starts if free and total > _SEVERAL_STARTS else 1
            side, trial_side, best_side = sides[0], sides[1], sides[2]
            for j in range(m):
                side[j] = j >= m - m // 2
                trial_side[j] = side[j]
            best_value = -np.inf
            for start in range(n_starts if n_starts == 1 else n_starts + 1):
                heat = start < n_starts and n_starts > 1  # a short run; the best of them is run to the end
                alternations = 0
                if free:
                    alternations = _HEAT if heat else settings.max_alternations
                remaining = settings.max_newton
                changed = m
                for c in range(d + 1):
                    trial[c] = 0.0 if start < n_starts else best[c]
                    if not (few or alternate):
                        trial[c] = nodes.biases[node] if c == k else table[node, c]
                if free and start < n_starts:
                    principal_direction(sums, m, d, start, rows, matrix, theta, step)
                    class_deltas(sums, m, d, theta, delta)
                    choose_split(flat_delta, keys, m, side, trial_side)
                elif free:
                    for j in range(m):
                        trial_side[j] = best_side[j]
                value, length = -np.inf, 0.0
                while remaining > 0:
                    reached, gain = newton_iteration(
                        X,
                        share,
                        member,
                        n,
                        d,
                        trial,
                        trial_side,
                        penalty,
                        bias_penalty,
                        rows,
                        matrix,
                        gradient,
                        trial_step,
                    )
                    slack = _SAMPLING * weight if alternations > 0 and total > n else _ROUNDING * abs(value)
                    if reached >= value - slack:
                        if alternations == 0:
                            remaining -= 1
                        else:
                            alternations = 0 if abs(reached - value) <= enough else alternations - 1
                        value, length = reached, 1.0
                        side, trial_side = trial_side, side
                        done = remaining == 0 or (gain <= enough and (alternations == 0 or changed == 0))
                        # of the last step, only the square of its gain is left to gain
                        for c in range(d + 1):
                            step[c] = trial_step[c]
                            theta[c] = trial[c] + step[c] if done else trial[c]
                        if done or (heat and alternations == 0):
                            break
                    else:
                        length *= 0.5
                        if length < _SHORTEST_STEP:
                            if alternations == 0 and value > -np.inf:
                                break
                            # the parameters to start from overflow with these features: start from 0
                            if value == -np.inf:
                                remaining -= 1
                                for c in range(d + 1):
                                    theta[c] = 0.0
                                    step[c] = 0.0
                            # Otherwise the split of all points does not suit the sample in use: keep the last
                            # good one.
                            alternations, value, length = 0, -np.inf, 0.0
                    for c in range(d + 1):
                        trial[c] = theta[c] + length * step[c]
                    if alternations == 0:
                        for j in range(m):
                            trial_side[j] = side[j]
                    else:
                        class_deltas(sums, m, d, trial, delta)
                        changed = choose_split(flat_delta, keys, m, side, trial_side)
                if heat and value > best_value:
                    best_value = value
                    for c in range(d + 1):
                        best[c] = theta[c]
                    for j in range(m):
                        best_side[j] = side[j]
            if few:
                rotate_back(all_X, n, k, basis, theta, fitted)
            else:
                for c in range(k + 1):
                    fitted[c] = theta[c]
            for c in range(k):
                table[node, c] = fitted[c]
            nodes.biases[node] = fitted[k]
            partition(order, first, m, side, keys)
