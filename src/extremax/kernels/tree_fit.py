"""Fit a label tree greedily, from the root down: one logistic regression per node.

A node holds points x_i with weights q_i whose classes go left or right.  With theta = (w, b), a_i = w.x_i + b
and R the sum of q_i (x_i, 1) over the points of the classes on the right, it maximises (paper, section 3)

    L = theta.R - sum_i q_i log(1 + exp(a_i)) - lambda |w|^2 - mu b^2

over theta and all balanced splits.  For given theta the best split sorts the classes by Delta_y = theta.S_y
with S_y the class's sum of q_i (x_i, 1): the half with the largest Delta goes right.

Only R depends on the split, and R is a sum of class sums.  At the optimum for one split, gradient and Hessian
for the next are known without a look at the points: the first Newton step after a re-split costs nothing.
Gradients are float64.  The Hessian is summed in float32 and kept while the logits move little: it decides how
fast Newton's steps converge, not where.

The paper optimises theta for each split before it re-splits (`patient`); otherwise every Newton step is
followed by a re-split.  Nodes with very many points take Newton steps on a sample, while all points choose
the split.

`order` lists the labels such that every node owns a stretch of it; fitting a node puts those of its left
child first.  A node with c labels passes ceil(c / 2) to the left and floor(c / 2) to the right.  Labels from
`n_classes` on are padding: they have no points, so that their Delta is 0.  Within a node labels keep their
order: ties are decided by it, and no result depends on the thread that computes it.

Points and class sums are stored in blocks (block, row, PASS): row c < k is feature c, row k is 1 for a point
and the summed weight for a class, further rows up to a multiple of 4 are 0.  Loops then run along points and
become SIMD code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.math import exp64, float64_bits
from extremax.kernels.rng import draw_key, mix64, uniform32

# logit of a padding leaf: its probability is exactly 0, and nothing overflows
PADDING_BIAS = np.float32(-1e6)
PASS = 128  # points per block
LANES = 16  # points are processed in multiples of this; missing ones have weight 0

_SIGN_MASK = np.int64(0x7FFFFFFFFFFFFFFF)
_NO_STEP = 1e150  # pivot in place of one that is lost to rounding: its direction takes no step
_OVERSHOT = -0.5  # slope after a step, over that before it, at which the step is shortened
_SHORTEST = 1e-9  # part of a Newton step


class Grouped(NamedTuple):
    """Data sorted by label: the points of label y are the rows offsets[y] to offsets[y + 1]."""

    points: np.ndarray  # (N, k) float32
    weight: np.ndarray  # (N,) float32
    offsets: np.ndarray  # (n_labels + 1,) int64
    sums: np.ndarray  # (n_labels, k + 1) float64: weighted sum of a label's points, and its summed weight
    n_classes: int  # labels from here on are padding


class Nodes(NamedTuple):
    """What is fitted: nodes in heap order, and the labels in the order of the leaves."""

    weights: np.ndarray  # (n_inner, k) float64
    biases: np.ndarray  # (n_inner,) float64
    log_likelihood: np.ndarray  # (n_inner,) float64: sum of q log sigma, if `Settings.patient`
    n_splits: np.ndarray  # (n_inner,) int32: re-splits
    settled: np.ndarray  # (n_inner,) bool: whether the last re-split changed nothing
    order: np.ndarray  # (n_labels,) int32
    penalty: np.ndarray  # (depth, k + 1) float64: 2 lambda, and 2 mu in the last column


class Settings(NamedTuple):
    """The numbers of `TreeFitConfig` that the kernel reads, and the seed of the samples."""

    patient: bool
    fit_pairs: bool
    max_points: int
    n_starts: int
    several_starts_points: int
    start_points: int
    start_iterations: int
    max_alternations: int
    max_newton_steps: int
    tolerance: float
    max_drift: float
    power_steps: int
    power_tolerance: float
    seed: np.uint64


class Subtree(NamedTuple):
    """Some levels below and including `root`, which owns order[first:last] and lies on `level`."""

    root: int
    level: int
    n_levels: int
    first: int
    last: int


class Scratch(NamedTuple):
    """Working memory of one task, for nodes of up to n points and m labels.

    `rows` below is k + 1 rounded up to a multiple of 4.
    """

    X: np.ndarray  # (blocks of n, rows, PASS) float32
    weight: np.ndarray  # (blocks of n, PASS) float32
    sums: np.ndarray  # (blocks of m, rows, PASS) float64: of all points of a label
    sampled_sums: np.ndarray  # the same of the points in X, which may be a sample
    side: np.ndarray  # (2, blocks of m * PASS) int8: the split, and the best of several starts
    keys: np.ndarray  # (blocks of m * PASS,) int64
    block: np.ndarray  # (2, PASS) float64: numbers of the points of a block
    curvature: np.ndarray  # (2, PASS) float32
    matrix: np.ndarray  # (rows, rows) float64: Newton's system
    covariance: np.ndarray  # (rows, rows) float64: of class sums; inner products of few points
    vectors: np.ndarray  # (11, rows) float64: the vectors numbered below
    bounds: np.ndarray  # (nodes of the last level + 1,) int64


# Rows of `Scratch.vectors`; all but the last have k + 1 entries.
_THETA, _TRIAL, _STEP, _GRADIENT, _PULL, _RIGHT, _BEFORE, _DIRECTION, _BEST, _PULL_AT_ZERO, _SPARE = range(11)


class NodeData(NamedTuple):
    """Points and labels of one node, in the blocks of a scratch."""

    scratch: Scratch
    fitted_sums: np.ndarray  # sums of the points in X: `sums` or `sampled_sums` of the scratch
    penalty: np.ndarray  # (k + 1,) float64
    n: int  # points
    m: int  # labels
    k: int  # features
    weight: float  # summed weight of the points
    few: bool  # whether Newton's system is that of the points, which are fewer than features


def make_scratch(n, m, k, n_levels, *, sampled):
    """Allocate scratch for a subtree with n points (or a sample of n), m labels and k features."""
    n_blocks, m_blocks, n_rows = max(1, -(-n // PASS)), -(-m // PASS), (k + 4) // 4 * 4
    X = np.zeros((n_blocks, n_rows, PASS), np.float32)
    X[:, k, :] = 1.0
    sums = np.zeros((m_blocks, n_rows, PASS))
    return Scratch(
        X,
        np.zeros((n_blocks, PASS), np.float32),
        sums,
        np.zeros(sums.shape) if sampled else sums,
        np.zeros((2, m_blocks * PASS), np.int8),
        np.zeros(m_blocks * PASS, np.int64),
        np.zeros((2, PASS)),
        np.zeros((2, PASS), np.float32),
        np.zeros((n_rows, n_rows)),
        np.zeros((n_rows, n_rows)),
        np.zeros((11, max(n_rows, PASS))),
        np.zeros((1 << (n_levels - 1)) + 1, np.int64),
    )


@njit
def sum_by_label(points, weight, offsets, sums):
    """Fill the weighted sum of the points of each label, and its summed weight."""
    k = points.shape[1]
    for y in range(sums.shape[0]):
        for i in range(offsets[y], offsets[y + 1]):
            q = np.float64(weight[i])
            for c in range(k):
                sums[y, c] += q * points[i, c]
            sums[y, k] += q


@helper
def _gather(data, labels, stretch, key, n, scratch, splits):
    """Copy n points of a node into blocks; return their weight.  With `splits` copy its class sums as well.

    With stretch > 1 the points are a sample, one at a random place of each of n equal stretches, so that
    every class is represented in proportion, and weights are multiplied by `stretch`.
    """
    k, m = data.points.shape[1], labels.shape[0]
    taken, passed, target = 0, 0, 0
    weight = 0.0
    if stretch > 1.0:
        target = np.int64(uniform32(mix64(key)) * stretch)
    for j in range(m):
        y, block, place = labels[j], j // PASS, j % PASS
        if splits:
            for c in range(k + 1):
                scratch.sums[block, c, place] = data.sums[y, c]
        if stretch > 1.0:
            for c in range(k + 1):
                scratch.sampled_sums[block, c, place] = 0.0
        start, stop = data.offsets[y], data.offsets[y + 1]
        while taken < n and target < passed + stop - start:
            i = start + target - passed
            q = np.float32(data.weight[i] * stretch)
            for c in range(k):
                scratch.X[taken // PASS, c, taken % PASS] = data.points[i, c]
            if stretch > 1.0:
                for c in range(k):
                    scratch.sampled_sums[block, c, place] += np.float64(q) * data.points[i, c]
                scratch.sampled_sums[block, k, place] += q
            scratch.weight[taken // PASS, taken % PASS] = q
            weight += q
            taken += 1
            target = taken
            if stretch > 1.0:
                target = np.int64((taken + uniform32(mix64(key ^ np.uint64(taken)))) * stretch)
        passed += stop - start
    while taken % LANES != 0:
        scratch.weight[taken // PASS, taken % PASS] = np.float32(0.0)
        taken += 1
    while m % LANES != 0:
        for c in range(k + 1):
            scratch.sums[m // PASS, c, m % PASS] = 0.0
            scratch.sampled_sums[m // PASS, c, m % PASS] = 0.0
        m += 1
    return weight


@helper
def _block_size(n, block):
    """Return how many places of a block to compute for n items."""
    return min(PASS, (n - block * PASS + LANES - 1) // LANES * LANES)


@helper
def _add_products(X, block, size, theta, k, out):
    """Fill theta.(x, 1) of the items of a block."""
    whole = (k + 1) // 4 * 4
    for i in range(size):
        out[i] = 0.0
    for c in range(0, whole, 4):  # four rows at a time: each number of `out` is loaded once for all
        t0, t1, t2, t3 = theta[c], theta[c + 1], theta[c + 2], theta[c + 3]
        for i in range(size):
            out[i] += (t0 * X[block, c, i] + t1 * X[block, c + 1, i]) + (
                t2 * X[block, c + 2, i] + t3 * X[block, c + 3, i]
            )
    for c in range(whole, k + 1):
        t0 = theta[c]
        for i in range(size):
            out[i] += t0 * X[block, c, i]


@helper
def _add_sums(X, block, size, factor, k, out):
    """Add sum_i factor_i (x_i, 1) over a block to `out`."""
    whole = (k + 1) // 4 * 4
    for c in range(0, whole, 4):
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        for i in range(size):
            f = np.float64(factor[i])
            t0 += f * X[block, c, i]
            t1 += f * X[block, c + 1, i]
            t2 += f * X[block, c + 2, i]
            t3 += f * X[block, c + 3, i]
        out[c] += t0
        out[c + 1] += t1
        out[c + 2] += t2
        out[c + 3] += t3
    for c in range(whole, k + 1):
        t0 = 0.0
        for i in range(size):
            t0 += np.float64(factor[i]) * X[block, c, i]
        out[c] += t0


@helper
def _add_moments(X, block, size, rows, n_rows, matrix):
    """Add sum_i rows[0, i] x_i x_i' over a block to the lower triangle of `matrix`.

    Up to 3 entries right of the triangle are overwritten as well.
    """
    zero = X.dtype.type(0.0)
    for r in range(n_rows):
        for i in range(size):
            rows[1, i] = rows[0, i] * X[block, r, i]
        for c in range(0, r + 1, 4):
            t0, t1, t2, t3 = zero, zero, zero, zero
            for i in range(size):
                x = rows[1, i]
                t0 += x * X[block, c, i]
                t1 += x * X[block, c + 1, i]
                t2 += x * X[block, c + 2, i]
                t3 += x * X[block, c + 3, i]
            matrix[r, c] += t0
            matrix[r, c + 1] += t1
            matrix[r, c + 2] += t2
            matrix[r, c + 3] += t3


@helper
def _evaluate(node, theta, renew):
    """Fill sum_i q_i p_i (x_i, 1) at theta, p = sigma(a); return the sum of the curvatures q p (1 - p).

    With `renew` Newton's system is set up and factorised as well.
    """
    scratch = node.scratch
    X, rows, curvature, pull = scratch.X, scratch.block, scratch.curvature, scratch.vectors[_PULL]
    total = 0.0
    for c in range(scratch.X.shape[1]):
        pull[c] = 0.0
    if renew and not node.few:
        for r in range(node.k + 1):
            for c in range(scratch.matrix.shape[1]):
                scratch.matrix[r, c] = 0.0
            scratch.matrix[r, r] = node.penalty[r]
    for block in range((node.n + PASS - 1) // PASS):
        size = _block_size(node.n, block)
        _add_products(X, block, size, theta, node.k, rows[0])
        for i in range(size):
            a, q = rows[0, i], np.float64(scratch.weight[block, i])
            e = exp64(-abs(a))
            inverse = 1.0 / (1.0 + e)
            rows[1, i] = q * inverse * (1.0 if a >= 0.0 else e)
            rows[0, i] = q * e * inverse * inverse
            curvature[0, i] = np.float32(rows[0, i])
        _add_sums(X, block, size, rows[1], node.k, pull)
        if renew:
            for i in range(size):
                total += rows[0, i]
            if not node.few:
                _add_moments(X, block, size, curvature, node.k + 1, scratch.matrix)
    if renew:
        if node.few:  # I + D K D with the inner products K and D = sqrt(curvature)
            for i in range(node.n):
                rows[0, i] = math.sqrt(rows[0, i])
                for j in range(i + 1):
                    scratch.matrix[i, j] = rows[0, i] * scratch.covariance[i, j] * rows[0, j] + (i == j)
            for i in range(node.n):
                scratch.vectors[_SPARE, i] = rows[0, i]
            _factorise(scratch.matrix, node.n)
        else:
            _factorise(scratch.matrix, node.k + 1)
    return total


@helper
def _factorise(matrix, n):
    """Replace the lower triangle of a positive definite matrix by its Cholesky factor."""
    for j in range(n):
        pivot = matrix[j, j]
        for c in range(j):
            pivot -= matrix[j, c] * matrix[j, c]
        pivot = math.sqrt(pivot) if pivot > 0.0 else _NO_STEP
        matrix[j, j] = pivot
        for i in range(j + 1, n):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total / pivot


@helper
def _solve(matrix, n, x):
    """Solve for x, given the Cholesky factor."""
    for i in range(n):
        total = x[i]
        for c in range(i):
            total -= matrix[i, c] * x[c]
        x[i] = total / matrix[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= matrix[i, i]
        for c in range(i):
            x[c] -= matrix[i, c] * x[i]


@helper
def _newton_step(node, gradient, step):
    """Fill Newton's step; return the gain that it predicts."""
    scratch, k = node.scratch, node.k
    if node.few:  # the matrix inversion lemma: (P + X'D D X)^-1 = P^-1 - P^-1 X'D (I + D K D)^-1 D X P^-1
        root, inner = scratch.vectors[_SPARE], scratch.block[1]
        for c in range(k + 1):
            step[c] = gradient[c] / node.penalty[c]
        _add_products(scratch.X, 0, _block_size(node.n, 0), step, k, inner)
        for i in range(node.n):
            inner[i] *= root[i]
        _solve(scratch.matrix, node.n, inner)
        for i in range(node.n):
            inner[i] *= root[i]
        correction = scratch.vectors[_TRIAL]
        for c in range(scratch.X.shape[1]):
            correction[c] = 0.0
        for i in range(node.n, _block_size(node.n, 0)):
            inner[i] = 0.0
        _add_sums(scratch.X, 0, _block_size(node.n, 0), inner, k, correction)
        for c in range(k + 1):
            step[c] -= correction[c] / node.penalty[c]
    else:
        for c in range(k + 1):
            step[c] = gradient[c]
        _solve(scratch.matrix, k + 1, step)
    gain = 0.0
    for c in range(k + 1):
        gain += 0.5 * gradient[c] * step[c]
    return gain


@helper
def _resplit(node, theta):
    """Make the best split for theta and fill its R; return how many labels changed sides."""
    scratch, m = node.scratch, node.m
    keys, side, right = scratch.keys, scratch.side[0], scratch.vectors[_RIGHT]
    for block in range((m + PASS - 1) // PASS):
        size = _block_size(m, block)
        _add_products(scratch.sums, block, size, theta, node.k, scratch.block[0])
        for i in range(size):
            bits = float64_bits(scratch.block[0, i] + 0.0)  # + 0: minus zero and zero are one number
            # an integer with the order of the float
            keys[block * PASS + i] = bits ^ ((bits >> np.int64(63)) & _SIGN_MASK)
    changed = choose_split(keys, m, side)
    _sum_right(node, right)
    return changed


@helper
def _sum_right(node, right):
    """Fill R of the present split."""
    scratch = node.scratch
    for c in range(scratch.X.shape[1]):
        right[c] = 0.0
    for block in range((node.m + PASS - 1) // PASS):
        size = _block_size(node.m, block)
        sides = scratch.side[0, block * PASS : (block + 1) * PASS]
        _add_sums(node.fitted_sums, block, size, sides, node.k, right)


@helper
def choose_split(keys, m, side):
    """Send the m // 2 labels of the largest keys to the right; return how many changed sides.

    Among equals the later ones go to the right.
    """
    n_left = m - m // 2
    low, high = np.int64(-(2**63)), np.int64(2**63 - 1)
    while low < high:  # bisection for the n_left-th smallest key: each pass is a SIMD count
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count = 0
        for j in range(m):
            count += np.int64(keys[j] <= middle)
        if count >= n_left:
            high = middle
        else:
            low = middle + 1
        if count == n_left:
            low = middle
    ties = n_left
    for j in range(m):
        ties -= np.int64(keys[j] < low)
    changed = 0
    for j in range(m):
        right = keys[j] > low
        if keys[j] == low:
            right = ties <= 0
            ties -= 1
        changed += np.int64(side[j] != right)
        side[j] = right
    return changed


@helper
def _find_covariance(data, node, labels):
    """Fill the covariance of the class sums, up to a factor."""
    scratch, k = node.scratch, node.k
    matrix, total = scratch.covariance, scratch.vectors[_BEFORE]
    rows = scratch.block
    used = 0
    for r in range(scratch.X.shape[1]):
        total[r] = 0.0
        for c in range(matrix.shape[1]):
            matrix[r, c] = 0.0
    for block in range((node.m + PASS - 1) // PASS):
        size = _block_size(node.m, block)
        for i in range(size):
            j = block * PASS + i
            rows[0, i] = np.float64(j < node.m and labels[min(j, node.m - 1)] < data.n_classes)
            used += np.int64(rows[0, i])
        _add_sums(scratch.sums, block, size, rows[0], k, total)
        _add_moments(scratch.sums, block, size, rows, k, matrix)
    for r in range(k):
        for c in range(r + 1):
            matrix[r, c] -= total[r] * total[c] / used
            matrix[c, r] = matrix[r, c]
        matrix[k, r] = total[r] / total[k] if total[k] > 0.0 else 0.0  # the mean point


@helper
def _next_direction(node, settings):
    """Find the dominant eigenvector of the covariance by power iteration, and subtract it.

    The bias makes the mean point 0, or is 0 if `settings.patient`.
    """
    k, matrix = node.k, node.scratch.covariance
    v, u = node.scratch.vectors[_DIRECTION], node.scratch.vectors[_SPARE]
    start, largest = 0, 0
    for r in range(1, k):
        if matrix[r, r] > matrix[start, start]:
            start = r
    for r in range(k):
        v[r] = matrix[r, start]  # almost never orthogonal to the dominant eigenvector
    eigenvalue = 0.0
    for _ in range(settings.power_steps):
        eigenvalue = 0.0
        for r in range(k):
            total = 0.0
            for c in range(k):
                total += matrix[r, c] * v[c]
            u[r] = total
            eigenvalue += total * total
        eigenvalue = math.sqrt(eigenvalue)
        moved = 0.0
        for r in range(k):  # equal classes give 0: every split is as good
            x = u[r] / eigenvalue if eigenvalue > 0.0 else 0.0
            moved += (x - v[r]) ** 2
            v[r] = x
        if moved <= settings.power_tolerance:
            break
    for r in range(k):
        if abs(v[r]) > abs(v[largest]):
            largest = r
        for c in range(k):
            matrix[r, c] -= eigenvalue * v[r] * v[c]
    sign = -1.0 if v[largest] < 0.0 else 1.0
    v[k] = 0.0
    for c in range(k):
        v[c] *= sign
        if not settings.patient:
            v[k] -= v[c] * matrix[k, c]


@helper
def _ascend(node, settings, alternations, max_steps, max_drift, curvature):
    """Alternate Newton steps and re-splits from theta, where the node was evaluated last.

    Parameters
    ----------
    alternations
        Bound on the re-splits; 0 keeps the split.
    max_steps
        Bound on the Newton steps.
    max_drift
        Mean change of the logits from which on the Hessian is computed anew.
    curvature
        What the evaluation returned.

    Returns
    -------
    n_splits, changed
        How many re-splits were made, and how many labels the last of them moved.
    """
    vectors = node.scratch.vectors
    theta, trial, step, gradient = vectors[_THETA], vectors[_TRIAL], vectors[_STEP], vectors[_GRADIENT]
    pull, right, before = vectors[_PULL], vectors[_RIGHT], vectors[_BEFORE]
    enough = settings.tolerance * node.weight
    n_splits, changed, drift = 0, 0, 0.0
    for c in range(node.k + 1):
        gradient[c] = right[c] - pull[c] - node.penalty[c] * theta[c]
    while True:
        gain = _newton_step(node, gradient, step)
        converged = gain <= enough
        if max_steps == 0:
            return n_splits, changed
        if converged:  # the step is taken as well: after it only the square of its gain is missing
            for c in range(node.k + 1):
                theta[c] += step[c]
                before[c] = right[c]
        else:
            max_steps -= 1
            length = 1.0
            while True:
                drift += length * math.sqrt(2.0 * gain / curvature) if curvature > 0.0 else np.inf
                for c in range(node.k + 1):
                    trial[c] = theta[c] + length * step[c]
                renew = drift > max_drift
                found = _evaluate(node, trial, renew)
                slope = 0.0
                for c in range(node.k + 1):
                    gradient[c] = right[c] - pull[c] - node.penalty[c] * trial[c]
                    slope += gradient[c] * step[c]
                if renew:
                    curvature, drift = found, 0.0
                if slope >= _OVERSHOT * 2.0 * gain or length < _SHORTEST:
                    break
                length *= max(0.1, 2.0 * gain / (2.0 * gain - slope))
                drift = np.inf
            for c in range(node.k + 1):
                theta[c] = trial[c]
        if alternations > n_splits and (converged or not settings.patient):
            n_splits += 1
            changed = _resplit(node, theta)
            if changed > 0:
                for c in range(node.k + 1):
                    balance = before[c] if converged else pull[c] + node.penalty[c] * theta[c]
                    gradient[c] = right[c] - balance
            elif converged:
                return n_splits, changed
        elif converged:
            return n_splits, changed


@helper
def _log_likelihood(node, theta, right):
    """Return the sum of q log sigma of the decisions at the points."""
    scratch = node.scratch
    total = 0.0
    for c in range(node.k + 1):
        total += theta[c] * right[c]
    for block in range((node.n + PASS - 1) // PASS):
        size = _block_size(node.n, block)
        _add_products(scratch.X, block, size, theta, node.k, scratch.block[0])
        for i in range(size):
            a = scratch.block[0, i]
            total -= scratch.weight[block, i] * (max(a, 0.0) + math.log1p(math.exp(-abs(a))))
    return total


@helper
def _use_inner_products(node):
    """Fill the inner products of few points, weighted by the inverse penalties."""
    scratch, scaled = node.scratch, node.scratch.vectors[_SPARE]
    for i in range(node.n):
        for c in range(node.k + 1):
            scaled[c] = scratch.X[0, c, i] / node.penalty[c]
        _add_products(scratch.X, 0, _block_size(node.n, 0), scaled, node.k, scratch.block[0])
        for j in range(i + 1):
            scratch.covariance[i, j] = scratch.block[0, j]


@helper
def _find_start(data, node, settings, labels, n_starts):
    """Make the first split, along the best of the leading eigenvectors, and set theta where it ended.

    From each of them some steps are taken with the Hessian at theta = 0, which bounds the others.
    """
    vectors, side = node.scratch.vectors, node.scratch.side
    theta, best, right = vectors[_THETA], vectors[_BEST], vectors[_RIGHT]
    best_value, curvature = -np.inf, 0.0
    _find_covariance(data, node, labels)
    if n_starts > 1:
        curvature = _evaluate(node, theta, True)
        for c in range(node.k + 1):
            vectors[_PULL_AT_ZERO, c] = vectors[_PULL, c]
    for _ in range(n_starts):
        _next_direction(node, settings)
        _resplit(node, vectors[_DIRECTION])
        if n_starts > 1:
            for c in range(node.k + 1):
                theta[c], vectors[_PULL, c] = 0.0, vectors[_PULL_AT_ZERO, c]
            steps = settings.start_iterations
            _ascend(node, settings, steps, steps, np.inf, curvature)
            value = _log_likelihood(node, theta, right)
            for c in range(node.k + 1):
                value -= 0.5 * node.penalty[c] * theta[c] * theta[c]
            if value > best_value:
                best_value = value
                for c in range(node.k + 1):
                    best[c] = theta[c]
                for j in range(node.m):
                    side[1, j] = side[0, j]
    if n_starts > 1:
        for c in range(node.k + 1):
            theta[c] = best[c]
        for j in range(node.m):
            side[0, j] = side[1, j]


@helper
def _take(data, nodes, settings, scratch, number, level, labels, total, most, splits):
    """Return a node with its points, or a sample of so many."""
    k, m, n = data.points.shape[1], labels.shape[0], min(total, most)
    weight = _gather(data, labels, total / n, draw_key(settings.seed, number, m), n, scratch, splits)
    sums = scratch.sampled_sums if n < total else scratch.sums
    return NodeData(scratch, sums, nodes.penalty[level], n, m, k, weight, n < min(k, PASS))


@helper
def _fit_node(data, nodes, settings, scratch, number, level, labels, total, alternate):
    """Fit the parameters of one node to its `total` points, and split its labels."""
    k, m = data.points.shape[1], labels.shape[0]
    theta, right = scratch.vectors[_THETA], scratch.vectors[_RIGHT]
    splits = alternate and (m > 2 or settings.patient)
    # the inner products of few points take the place of the covariance that several starts are drawn from
    enough = min(settings.start_points, settings.max_points) >= min(k, PASS)
    several = splits and settings.n_starts > 1 and total > settings.several_starts_points and enough
    for c in range(k + 1):
        theta[c] = 0.0
        if not alternate:
            theta[c] = nodes.biases[number] if c == k else nodes.weights[number, c]
    most = min(settings.start_points, settings.max_points) if several else settings.max_points
    node = _take(data, nodes, settings, scratch, number, level, labels, total, most, splits)
    if splits:
        _find_start(data, node, settings, labels, settings.n_starts if several else 1)
    else:
        for j in range(m):
            scratch.side[0, j] = j >= m - m // 2
    if node.n < min(total, settings.max_points):
        most = settings.max_points
        node = _take(data, nodes, settings, scratch, number, level, labels, total, most, splits)
    if node.few:
        _use_inner_products(node)
    if splits or node.n < total:
        _sum_right(node, right)
    else:
        for c in range(k + 1):
            right[c] = 0.0
        for j in range(m - m // 2, m):
            if data.offsets[labels[j] + 1] > data.offsets[labels[j]]:
                for c in range(k + 1):
                    right[c] += data.sums[labels[j], c]
    curvature = _evaluate(node, theta, True)
    n_splits, changed = _ascend(
        node,
        settings,
        settings.max_alternations if splits else 0,
        settings.max_newton_steps,
        settings.max_drift,
        curvature,
    )
    nodes.n_splits[number], nodes.settled[number] = n_splits, changed == 0
    if settings.patient:
        nodes.log_likelihood[number] = _log_likelihood(node, theta, right)
    for c in range(k):
        nodes.weights[number, c] = theta[c]
    nodes.biases[number] = theta[k]


@helper
def _split_without_points(data, labels, scratch):
    """Send the first half of the classes of a node to the left; padding fills up both sides."""
    real, seen = 0, 0
    for label in labels:
        real += np.int64(label < data.n_classes)
    for j in range(labels.shape[0]):
        scratch.keys[j] = 0
        if labels[j] < data.n_classes:
            scratch.keys[j] = 1 if 2 * seen >= real else -1
            seen += 1
    choose_split(scratch.keys, labels.shape[0], scratch.side[0])


@helper
def _partition(data, nodes, number, labels, scratch):
    """Put the labels of the left child first, each side in its old order; shut out padding.

    Where all classes go to one side, so does everything else.
    """
    side, spare = scratch.side[0], scratch.keys
    left, real_left, real_right = 0, 0, 0
    for j in range(labels.shape[0]):
        y = labels[j]
        real_left += np.int64(y < data.n_classes and not side[j])
        real_right += np.int64(y < data.n_classes and side[j])
        if side[j]:
            spare[j - left] = y
        else:
            labels[left] = y
            left += 1
    for j in range(left, labels.shape[0]):
        labels[j] = spare[j - left]
    if (real_left == 0) != (real_right == 0):
        for c in range(data.points.shape[1]):
            nodes.weights[number, c] = 0.0
        nodes.biases[number] = PADDING_BIAS if real_left > 0 else -PADDING_BIAS
        nodes.log_likelihood[number] = 0.0


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
            number = (subtree.root + 1) * (1 << below) - 1 + place
            first, last = bounds[place], bounds[place + 1]
            if below + 1 < subtree.n_levels:
                bounds[2 * place + 2] = last
                bounds[2 * place + 1] = last - (last - first) // 2
            labels = nodes.order[first:last]
            total = 0
            for label in labels:
                total += offsets[label + 1] - offsets[label]
            if total > 0 and last - first > (1 if settings.fit_pairs else 2):
                level = subtree.level + below
                _fit_node(data, nodes, settings, scratch, number, level, labels, total, alternate)
            else:
                for c in range(data.points.shape[1]):
                    nodes.weights[number, c] = 0.0
                nodes.biases[number] = 0.0
                _split_without_points(data, labels, scratch)
            _partition(data, nodes, number, labels, scratch)
