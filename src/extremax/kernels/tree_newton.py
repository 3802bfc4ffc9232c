"""Arithmetic of one node of the label tree: likelihood and Newton step, balanced splits, first direction.

A node holds points x_i with weights q_i whose classes go left (side 0) or right (side 1).  With
zeta = 2 side - 1 it maximises (paper, section 3)

    L = sum_i q_i log sigma(zeta_i a_i) - lambda |w|^2 - mu b^2,    a_i = w.x_i + b

over theta = (w, b) and all balanced splits.  For given theta the best split sorts the classes by Delta_y, the
sum of q_i a_i over the points of y, which is theta.(S_y, n_y) with the class's weighted feature sum S_y and
summed weight n_y.

The best w is a linear combination of the points.  The many nodes near the leaves that hold only n < k points
are rotated into the n dimensions that their points span: Newton's system then has the size n + 1, not k + 1.

Points and class sums are stored in blocks (block, row, PASS): row c < k is feature c, row k is 1 for a point
and n_y for a class, further rows up to a multiple of 4 are 0.  Loops then run along points and become SIMD
code.  Sums within a block are float32, sums over blocks float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper
from extremax.kernels.math import exp32, float_bits, log1p32

PASS = 128  # points per block
LANES = 32  # points are processed in multiples of this; missing ones have weight 0

_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_SIGN_MASK = np.int32(0x7FFFFFFF)
_SETTLED = 1e-6  # squared change of the unit vector at which the power iteration ends
_DEPENDENT = 1e-10  # squared distance of a point from the span of others, over its squared length: rounding
_NO_STEP = 1e150  # pivot in place of one that is lost to rounding: its direction takes no step


class NodeData(NamedTuple):
    """Points and classes of one node, in blocks."""

    X: np.ndarray  # (blocks of n, rows, PASS) float32
    weight: np.ndarray  # (blocks of n, PASS) float32
    member: np.ndarray  # (blocks of n, PASS) int32: position of a point's class in the node
    sums: np.ndarray  # (blocks of m, rows, PASS) float32
    n: int  # points
    m: int  # classes
    n_columns: int  # features
    penalty: float  # of the weights
    bias_penalty: float


@helper
def _add_moments(X, block, size, rows, n_rows, matrix):
    """Add sum_i rows[4, i] x_i x_i' over a block to the lower triangle of `matrix`.

    Up to 3 entries right of the triangle are overwritten as well.
    """
    for r in range(n_rows):
        for i in range(size):
            rows[5, i] = rows[4, i] * X[block, r, i]
        for c in range(0, r + 1, 4):  # four sums at a time: each number is loaded once for all
            t0, t1, t2, t3 = _ZERO, _ZERO, _ZERO, _ZERO
            for i in range(size):
                x = rows[5, i]
                t0 += x * X[block, c, i]
                t1 += x * X[block, c + 1, i]
                t2 += x * X[block, c + 2, i]
                t3 += x * X[block, c + 3, i]
            matrix[r, c] += t0
            matrix[r, c + 1] += t1
            matrix[r, c + 2] += t2
            matrix[r, c + 3] += t3


@helper
def newton_iteration(node, theta, side, rows, matrix, gradient, step):
    """Compute Newton's step at theta for a split; return L and the gain that the step predicts.

    `rows` (6, PASS) holds logits, weights, sides, slopes q (side - p), curvatures q p (1 - p), and
    exp(-|logit|) of the points of a block.
    """
    X, n, k = node.X, node.n, node.n_columns
    value = 0.0
    for c in range(k + 1):
        strength = node.penalty if c < k else node.bias_penalty
        value -= strength * theta[c] * theta[c]
        gradient[c] = -2.0 * strength * theta[c]
        for j in range(matrix.shape[1]):
            matrix[c, j] = 0.0
        matrix[c, c] = 2.0 * strength
    for block in range((n + PASS - 1) // PASS):
        size = min(PASS, (n - block * PASS + LANES - 1) // LANES * LANES)
        for i in range(size):
            rows[0, i] = _ZERO
            rows[1, i] = node.weight[block, i]
            rows[2, i] = np.float32(side[node.member[block, i]])
        for c in range(k + 1):
            t = np.float32(theta[c])
            for i in range(size):
                rows[0, i] += t * X[block, c, i]
        for i in range(size):
            rows[5, i] = exp32(-abs(rows[0, i]))
        loss = _ZERO
        for i in range(size):
            a, q, e = rows[0, i], rows[1, i], rows[5, i]
            inverse = _ONE / (_ONE + e)
            p = (_ONE if a >= _ZERO else e) * inverse
            rows[3, i] = q * (rows[2, i] - p)
            rows[4, i] = q * e * inverse * inverse
            loss += q * (max(a * (_ONE - _TWO * rows[2, i]), _ZERO) + log1p32(e))
        value -= loss
        for c in range(k + 1):
            total = _ZERO
            for i in range(size):
                total += rows[3, i] * X[block, c, i]
            gradient[c] += total
        _add_moments(X, block, size, rows, k + 1, matrix)
    # Cholesky decomposition and two triangular solves.
    for j in range(k + 1):
        pivot, total = matrix[j, j], gradient[j]
        for c in range(j):
            pivot -= matrix[j, c] * matrix[j, c]
            total -= matrix[j, c] * step[c]
        pivot = math.sqrt(pivot) if pivot > 0.0 else _NO_STEP
        matrix[j, j] = pivot
        step[j] = total / pivot
        for i in range(j + 1, k + 1):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total / pivot
    gain = 0.0
    for i in range(k, -1, -1):
        step[i] /= matrix[i, i]
        gain += 0.5 * gradient[i] * step[i]
        for c in range(i):
            step[c] -= matrix[i, c] * step[i]
    return value, gain


@helper
def rotate(node, rotated, rotated_sums, basis):
    """Compute coordinates of n < k points, and sums of their classes, in the span of the points.

    With G = L L' the matrix of inner products of the points, the rows of L have the same inner products and
    are the points after a rotation.  L is kept in `basis`.  A point that depends linearly on those before it
    adds no dimension.
    """
    X, n, k = node.X, node.n, node.n_columns
    for i in range(n):
        for j in range(i + 1):
            total = 0.0
            for c in range(k):
                total += np.float64(X[0, c, i]) * X[0, c, j]
            length = total
            for c in range(j):
                total -= basis[i, c] * basis[j, c]
            if i == j:
                basis[i, i] = math.sqrt(total) if total > _DEPENDENT * length else 0.0
            else:
                basis[i, j] = total / basis[j, j] if basis[j, j] > 0.0 else 0.0
    for c in range(n + 1):
        for j in range(node.m):
            rotated_sums[j // PASS, c, j % PASS] = _ZERO
        for i in range(n):
            x = _ONE
            if c < n:
                x = np.float32(basis[i, c]) if c <= i else _ZERO
            y = node.member[0, i]
            rotated[0, c, i] = x
            rotated_sums[y // PASS, c, y % PASS] += node.weight[0, i] * x


@helper
def rotate_back(node, basis, theta, w):
    """Compute the weights of the features: w = sum_i alpha_i x_i with L' alpha = theta."""
    X, n, k = node.X, node.n, node.n_columns
    for i in range(n - 1, -1, -1):
        theta[i] = theta[i] / basis[i, i] if basis[i, i] > 0.0 else 0.0
        for c in range(i):
            theta[c] -= basis[i, c] * theta[i]
    for c in range(k):
        w[c] = 0.0
        for i in range(n):
            w[c] += theta[i] * X[0, c, i]
    w[k] = theta[n]


@helper
def class_deltas(node, theta, delta):
    """Fill Delta_y = theta.(S_y, n_y) of the classes."""
    sums, m, k = node.sums, node.m, node.n_columns
    for block in range((m + PASS - 1) // PASS):
        size = min(PASS, (m - block * PASS + LANES - 1) // LANES * LANES)
        for i in range(size):
            delta[block, i] = _ZERO
        for c in range(k + 1):
            t = np.float32(theta[c])
            for i in range(size):
                delta[block, i] += t * sums[block, c, i]


@helper
def choose_split(delta, keys, m, old, new):
    """Send the m // 2 classes of largest delta to the right; return how many changed sides.

    Among equals the later ones go to the right.
    """
    n_left = m - m // 2
    for j in range(m):
        bits = float_bits(delta[j] + _ZERO)  # + 0: minus zero and zero are one number
        keys[j] = bits ^ ((bits >> np.int32(31)) & _SIGN_MASK)  # an integer with the order of the float
    low, high = np.int64(-(1 << 31)), np.int64((1 << 31) - 1)
    while low < high:  # bisection for the n_left-th smallest key: each pass is a SIMD count
        middle = (low + high) >> 1
        bound = np.int32(middle)
        count = np.int32(0)
        for j in range(m):
            count += np.int32(keys[j] <= bound)
        if count >= n_left:
            high = middle
        else:
            low = middle + 1
    bound = np.int32(low)
    ties = n_left
    for j in range(m):
        ties -= np.int64(keys[j] < bound)
    changed = 0
    for j in range(m):
        right = keys[j] > bound
        if keys[j] == bound:
            right = ties <= 0
            ties -= 1
        new[j] = right
        changed += np.int64(old[j] != new[j])
    return changed


@helper
def principal_direction(node, rank, settings, rows, matrix, v, u):
    """Fill v (k + 1) with an eigenvector of the covariance of the class sums, and with b = -mean(w.x).

    Eigenvector number `rank` is found by power iteration, after those before it are subtracted from the
    matrix.
    """
    sums, m, k = node.sums, node.m, node.n_columns
    n_blocks = (m + PASS - 1) // PASS
    stride = max(1, n_blocks // settings.covariance_blocks)
    for r in range(k + 1):
        u[r] = 0.0
        for c in range(matrix.shape[1]):
            matrix[r, c] = 0.0
    used = 0
    for block in range(0, n_blocks, stride):
        size = min(PASS, (m - block * PASS + LANES - 1) // LANES * LANES)
        used += min(PASS, m - block * PASS)
        for i in range(size):
            rows[4, i] = np.float32(block * PASS + i < m)
        for c in range(k + 1):
            total = _ZERO
            for i in range(size):
                total += rows[4, i] * sums[block, c, i]
            u[c] += total
        _add_moments(sums, block, size, rows, k, matrix)
    for r in range(k):
        for c in range(r + 1):
            matrix[r, c] -= u[r] * u[c] / used
            matrix[c, r] = matrix[r, c]
        matrix[k, r] = u[r] / u[k] if u[k] > 0.0 else 0.0  # the mean point
    for _ in range(rank + 1):
        start = 0
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
            if moved < _SETTLED:
                break
        for r in range(k):
            for c in range(k):
                matrix[r, c] -= eigenvalue * v[r] * v[c]
    v[k] = 0.0
    for c in range(k):
        v[k] -= v[c] * matrix[k, c]
