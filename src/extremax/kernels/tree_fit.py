"""Fit a label tree greedily, from the root down: one logistic regression per node.

`order` lists the classes such that every node owns a stretch of it; fitting a node puts the classes of its
left child first.  A node with c classes passes ceil(c / 2) to the left and floor(c / 2) to the right, so that
only the last level has padding, always as a right child.  Within a node classes stay in ascending order: ties
are decided by class, and no result depends on the thread that computes it.

One iteration at a node is a Newton step followed by the best split for the new parameters; where the
log-likelihood L does not grow, the step is halved.  L never decreases, so that the present split is always
the best so far.  Nodes with very many points take Newton steps on a sample, while all points choose the
split; there L may decrease by the noise of the sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.rng import draw_key, mix64, uniform32
from extremax.kernels.tree_newton import (
    LANES,
    PASS,
    NodeData,
    choose_split,
    class_deltas,
    newton_iteration,
    principal_direction,
    rotate,
    rotate_back,
)

# logit of a padding leaf: its probability is exactly 0, and nothing overflows
PADDING_BIAS = np.float32(-1e6)


class Grouped(NamedTuple):
    """Data sorted by class: the points of class y are the rows offsets[y] to offsets[y + 1]."""

    points: np.ndarray  # (N, k) float32
    weight: np.ndarray  # (N,) float32
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
    """The numbers of `TreeFitConfig` that the kernel reads, and the seed of the samples."""

    max_points: int
    n_starts: int
    several_starts_points: int
    start_iterations: int
    max_alternations: int
    max_newton_steps: int
    tolerance: float
    sampling_slack: float
    min_step: float
    rounding: float
    min_gain: float
    power_steps: int
    covariance_blocks: int
    seed: np.uint64


class Subtree(NamedTuple):
    """Some levels below and including `root`, which owns order[first:last] and lies on `level`."""

    root: int
    level: int
    n_levels: int
    first: int
    last: int


class Scratch(NamedTuple):
    """Working memory of one task, for nodes of up to n points and m classes.

    `rows` below is k + 1 rounded up to a multiple of 4.
    """

    X: np.ndarray  # (blocks of n, rows, PASS) float32
    weight: np.ndarray  # (blocks of n, PASS) float32
    member: np.ndarray  # (blocks of n, PASS) int32: position of a point's class in the node
    sums: np.ndarray  # (blocks of m, rows, PASS) float32
    rotated: np.ndarray  # (1, rows, PASS) float32
    rotated_sums: np.ndarray  # like sums
    delta: np.ndarray  # (blocks of m, PASS) float32
    keys: np.ndarray  # (m,) int32
    sides: np.ndarray  # (3, m) int8: two splits in turn, and the best of several starts
    block: np.ndarray  # (6, PASS) float32: numbers of the points of a block
    matrix: np.ndarray  # (rows, rows) float64
    basis: np.ndarray  # (rows, rows) float64
    vectors: np.ndarray  # (7, rows) float64: the vectors numbered below
    bounds: np.ndarray  # (nodes of the last level + 1,) int64


# Rows of `Scratch.vectors`.
_THETA, _TRIAL, _STEP, _TRIAL_STEP, _GRADIENT, _BEST, _FITTED = range(7)
_BEST_SIDE = 2  # row of `Scratch.sides`


def make_scratch(n, m, k, n_levels):
    """Allocate scratch for a subtree with n points (or a sample of n), m classes and k features."""
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
def _gather(data, classes, stretch, key, node):
    """Copy the points of a node and the sums of its classes into blocks; return the weight of the points.

    With stretch > 1 the points are a sample, one at a random place of each of n equal stretches, so that
    every class is represented in proportion, and weights are multiplied by `stretch`.
    """
    k = data.points.shape[1]
    n, X = node.n, node.X
    taken, passed, target = 0, 0, 0
    weight = 0.0
    if stretch > 1.0:
        target = np.int64(uniform32(mix64(key)) * stretch)
    for j in range(node.m):
        y = classes[j]
        for c in range(k + 1):
            node.sums[j // PASS, c, j % PASS] = data.sums[y, c]
        start, stop = data.offsets[y], data.offsets[y + 1]
        while taken < n and target < passed + stop - start:
            i = start + target - passed
            block, place = taken // PASS, taken % PASS
            for c in range(k):
                X[block, c, place] = data.points[i, c]
            q = np.float32(data.weight[i] * stretch)
            node.weight[block, place] = q
            node.member[block, place] = j
            weight += q
            taken += 1
            target = taken
            if stretch > 1.0:
                target = np.int64((taken + uniform32(mix64(key ^ np.uint64(taken)))) * stretch)
        passed += stop - start
    while taken % LANES != 0:
        node.weight[taken // PASS, taken % PASS] = np.float32(0.0)
        node.member[taken // PASS, taken % PASS] = 0
        taken += 1
    return weight


@helper
def _partition(classes, side, spare):
    """Put the classes of the left child first, each side in its old order."""
    left = 0
    for j in range(classes.shape[0]):
        y = classes[j]
        if side[j]:
            spare[j - left] = y
        else:
            classes[left] = y
            left += 1
    for j in range(left, classes.shape[0]):
        classes[j] = spare[j - left]


@helper
def _ascend(node, settings, scratch, weight, sampled, alternations, short, current):
    """Alternate Newton steps and re-splits from the trial parameters and the trial split.

    Parameters
    ----------
    weight
        Summed weight of the node's points.
    sampled
        Whether the points are a sample of those that chose the split.
    alternations
        Bound on the re-splits; 0 keeps the split.
    short
        Whether to stop when the re-splits are used up.
    current
        Row of `scratch.sides` with the present split; the trial split is in row ``1 - current``.

    Returns
    -------
    value, current
        L at the parameters found, and the row of the split found.
    """
    theta, trial = scratch.vectors[_THETA], scratch.vectors[_TRIAL]
    step, trial_step = scratch.vectors[_STEP], scratch.vectors[_TRIAL_STEP]
    enough = max(settings.tolerance, settings.min_gain) * weight
    m, d = node.m, node.n_columns
    remaining = settings.max_newton_steps
    changed = m
    value, length = -np.inf, 0.0
    while remaining > 0:
        reached, gain = newton_iteration(
            node,
            trial,
            scratch.sides[1 - current],
            scratch.block,
            scratch.matrix,
            scratch.vectors[_GRADIENT],
            trial_step,
        )
        slack = settings.rounding * abs(value)
        if alternations > 0 and sampled:
            slack = settings.sampling_slack * weight
        if reached >= value - slack:
            if alternations == 0:
                remaining -= 1
            else:
                alternations = 0 if abs(reached - value) <= enough else alternations - 1
            value, length = reached, 1.0
            current = 1 - current
            done = remaining == 0 or (gain <= enough and (alternations == 0 or changed == 0))
            # the last step is taken as well: after it only the square of its gain is missing
            for c in range(d + 1):
                step[c] = trial_step[c]
                theta[c] = trial[c] + step[c] if done else trial[c]
            if done or (short and alternations == 0):
                break
        else:
            length *= 0.5
            if length < settings.min_step:
                if alternations == 0 and value > -np.inf:
                    break
                if value == -np.inf:  # the first parameters overflow with these features: start from 0
                    remaining -= 1
                    for c in range(d + 1):
                        theta[c] = 0.0
                        step[c] = 0.0
                # Otherwise the split of all points does not suit the sample: keep the last good one.
                alternations, value, length = 0, -np.inf, 0.0
        for c in range(d + 1):
            trial[c] = theta[c] + length * step[c]
        if alternations == 0:
            for j in range(m):
                scratch.sides[1 - current, j] = scratch.sides[current, j]
        else:
            class_deltas(node, trial, scratch.delta)
            changed = choose_split(
                scratch.delta.reshape(-1), scratch.keys, m, scratch.sides[current], scratch.sides[1 - current]
            )
    return value, current


@helper
def _ascend_from_starts(node, settings, scratch, weight, sampled, n_starts):
    """Find split and parameters: short runs from several directions, then a full one from the best.

    A single start is run in full at once.  Returns the row of `scratch.sides` with the split found.
    """
    theta, trial, best = scratch.vectors[_THETA], scratch.vectors[_TRIAL], scratch.vectors[_BEST]
    sides = scratch.sides
    best_value, current = -np.inf, 0
    for start in range(n_starts if n_starts == 1 else n_starts + 1):
        short = start < n_starts and n_starts > 1
        for c in range(node.n_columns + 1):
            trial[c] = 0.0 if start < n_starts else best[c]
        if start < n_starts:
            principal_direction(
                node, start, settings, scratch.block, scratch.matrix, theta, scratch.vectors[_STEP]
            )
            class_deltas(node, theta, scratch.delta)
            choose_split(scratch.delta.reshape(-1), scratch.keys, node.m, sides[current], sides[1 - current])
        else:
            for j in range(node.m):
                sides[1 - current, j] = sides[_BEST_SIDE, j]
        alternations = settings.start_iterations if short else settings.max_alternations
        value, current = _ascend(node, settings, scratch, weight, sampled, alternations, short, current)
        if short and value > best_value:
            best_value = value
            for c in range(node.n_columns + 1):
                best[c] = theta[c]
            for j in range(node.m):
                sides[_BEST_SIDE, j] = sides[current, j]
    return current


@helper
def _fit_node(data, nodes, settings, scratch, node, level, classes, total, alternate):
    """Fit the parameters of one node to its `total` points, and put the classes of its left child first."""
    k, m = data.points.shape[1], classes.shape[0]
    n = min(total, settings.max_points)
    theta, trial, fitted = scratch.vectors[_THETA], scratch.vectors[_TRIAL], scratch.vectors[_FITTED]
    penalty, bias_penalty = nodes.penalty[level], nodes.bias_penalty[level]
    whole = NodeData(scratch.X, scratch.weight, scratch.member, scratch.sums, n, m, k, penalty, bias_penalty)
    weight = _gather(data, classes, total / n, draw_key(settings.seed, node, m), whole)
    few = n < min(k, PASS)  # so few that they are one block of points
    problem = whole
    if few:
        rotate(whole, scratch.rotated, scratch.rotated_sums, scratch.basis)
        problem = NodeData(
            scratch.rotated,
            scratch.weight,
            scratch.member,
            scratch.rotated_sums,
            n,
            m,
            n,
            penalty,
            bias_penalty,
        )
    for j in range(m):
        scratch.sides[0, j] = j >= m - m // 2
        scratch.sides[1, j] = scratch.sides[0, j]
    if alternate and m > 2:
        n_starts = settings.n_starts if total > settings.several_starts_points else 1
        current = _ascend_from_starts(problem, settings, scratch, weight, total > n, n_starts)
    else:
        for c in range(problem.n_columns + 1):
            trial[c] = 0.0
            if not (few or alternate):
                trial[c] = nodes.biases[node] if c == k else nodes.table[node, c]
        _, current = _ascend(problem, settings, scratch, weight, total > n, 0, False, 0)
    if few:
        rotate_back(whole, scratch.basis, theta, fitted)
    else:
        for c in range(k + 1):
            fitted[c] = theta[c]
    for c in range(k):
        nodes.table[node, c] = fitted[c]
    nodes.biases[node] = fitted[k]
    _partition(classes, scratch.sides[current], scratch.keys)


@njit
def fit_subtree(data, nodes, settings, scratch, subtree, alternate):
    """Fit the nodes of a subtree, level by level.

    Parameters
    ----------
    data : Grouped
    nodes : Nodes
        Filled for the nodes of the subtree.
    alternate : bool
        Whether to find the structure; otherwise it is kept, and parameters start from their present values.
    """
    offsets, bounds = data.offsets, scratch.bounds
    bounds[0], bounds[1] = subtree.first, subtree.last
    for below in range(subtree.n_levels):
        for place in range((1 << below) - 1, -1, -1):
            node = (subtree.root + 1) * (1 << below) - 1 + place
            first, last = bounds[place], bounds[place + 1]
            m = last - first
            if below + 1 < subtree.n_levels:
                bounds[2 * place + 2] = last
                bounds[2 * place + 1] = last - m // 2
            classes = nodes.order[first:last]
            total = 0
            for j in range(m):
                total += offsets[classes[j] + 1] - offsets[classes[j]]
            if total == 0 or m == 1:  # nothing to learn from, or a class on the left and padding on the right
                for c in range(data.points.shape[1]):
                    nodes.table[node, c] = 0.0
                nodes.biases[node] = PADDING_BIAS if m == 1 else 0.0
            else:
                level = subtree.level + below
                _fit_node(data, nodes, settings, scratch, node, level, classes, total, alternate)
