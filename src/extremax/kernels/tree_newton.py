"""Arithmetic of one node of the label tree: likelihood and Newton system in two forms, balanced splits, first direction.

A node holds points x_i with weights q_i whose classes go left (side 0) or right (side 1).  With zeta = 2 side - 1 it maximises
(paper, section 3)

    L = sum_i q_i log sigma(zeta_i a_i) - lambda |w|^2 - mu b^2,    a_i = w.x_i + b

over theta = (w, b) and all balanced splits.  For given theta the best split sorts the classes by Delta_y, the sum of q_i a_i
over the points of y, which is theta.(S_y, n_y) with the class's weighted feature sum S_y and summed weight n_y.

Newton's step has two forms.  Primal: a system of size k + 1, for nodes with many points.  Dual: theta is a sum over the points,
w = sum_i alpha_i x_i / (2 lambda) and b = sum_i alpha_i / (2 mu), which leaves a system of the size of the points: for the many
nodes near the leaves that hold only a handful.

Points and class sums are stored in blocks (block, row, PASS): row c < k is feature c, row k is 1 for a point and n_y for a
class, further rows up to a multiple of 4 are 0.  Loops then run along points and become SIMD code.  Sums within a block are
float32, sums over blocks float64.
"""

from __future__ import annotations

import math

import numpy as np

from extremax._jit import exp32, float_bits, helper, inline, log1p32

PASS = 128  # points per block
LANES = 32  # points are processed in multiples of this; missing ones have weight 0

_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_SIGN_MASK = np.int32(0x7FFFFFFF)
_POWER_STEPS = 30
_ALIGNED = 0.999999  # squared cosine between a vector and its image at which the power iteration ends
_FEW_CLASSES = 24  # up to here the rank of a class is found by comparing all pairs
_PCA_BLOCKS = 128  # the covariance of many classes is known well enough from this many blocks of them


@inline
def _terms(rows, size):
    """Of points with logits rows[0], weights rows[1], sides rows[2]: slopes q (side - p) to rows[3], curvatures q p (1 - p) to
    rows[4]; returns minus the log-likelihood."""
    for i in range(size):
        rows[5, i] = exp32(-abs(rows[0, i]))
    for i in range(size):
        e = rows[5, i]
        inverse = _ONE / (_ONE + e)
        p = (_ONE if rows[0, i] >= _ZERO else e) * inverse
        rows[3, i] = rows[1, i] * (rows[2, i] - p)
        rows[4, i] = rows[1, i] * e * inverse * inverse
    loss = _ZERO
    for i in range(size):
        against = max(rows[0, i] * (_ONE - _TWO * rows[2, i]), _ZERO)
        loss += rows[1, i] * (against + log1p32(rows[5, i]))
    return loss


@inline
def _add_moments(X, block, size, rows, n_rows, matrix):
    """Add sum_i rows[4, i] x_i x_i' over a block to the lower triangle of `matrix`; entries up to 3 right of it are garbage."""
    for r in range(n_rows):
        for i in range(size):
            rows[5, i] = rows[4, i] * X[block, r, i]
        for c in range(0, r + 1, 4):
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


@inline
def _solve(matrix, n, x):
    """Solve A u = x by Cholesky for the lower triangle A, which is overwritten; u replaces x.

    A pivot lost to rounding becomes a very large one: its direction then takes no step.
    """
    for j in range(n):
        pivot = matrix[j, j]
        total = x[j]
        for c in range(j):
            pivot -= matrix[j, c] * matrix[j, c]
            total -= matrix[j, c] * x[c]
        pivot = math.sqrt(pivot) if pivot > 0.0 else 1e150
        inverse = 1.0 / pivot
        matrix[j, j] = pivot
        x[j] = total * inverse
        for i in range(j + 1, n):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total * inverse
    for i in range(n - 1, -1, -1):
        x[i] /= matrix[i, i]
        for c in range(i):
            x[c] -= matrix[i, c] * x[i]


@helper
def primal_iteration(X, share, member, n, k, theta, side, penalty, bias_penalty, rows, matrix, gradient, step):
    """At theta and for a split: L, Newton's step and the gain it promises; returns L and the gain."""
    value = 0.0
    for c in range(k + 1):
        strength = penalty if c < k else bias_penalty
        value -= strength * theta[c] * theta[c]
        gradient[c] = -2.0 * strength * theta[c]
        for j in range(matrix.shape[1]):
            matrix[c, j] = 0.0
        matrix[c, c] = 2.0 * strength
    for block in range((n + PASS - 1) // PASS):
        size = min(PASS, (n - block * PASS + LANES - 1) // LANES * LANES)
        for i in range(size):
            rows[0, i] = _ZERO
            rows[1, i] = share[block, i]
            rows[2, i] = np.float32(side[member[block, i]])
        for c in range(k + 1):
            t = np.float32(theta[c])
            for i in range(size):
                rows[0, i] += t * X[block, c, i]
        value -= _terms(rows, size)
        for c in range(k + 1):
            total = _ZERO
            for i in range(size):
                total += rows[3, i] * X[block, c, i]
            gradient[c] += total
        _add_moments(X, block, size, rows, k + 1, matrix)
    for c in range(k + 1):
        step[c] = gradient[c]
    _solve(matrix, k + 1, step)
    gain = 0.0
    for c in range(k + 1):
        gain += 0.5 * gradient[c] * step[c]
    return value, gain


@helper
def dual_gram(X, n, k, penalty, bias_penalty, gram):
    """P = X X' / (2 lambda) + 1 / (2 mu) of the n points of a block: the logits are P alpha."""
    for i in range(n):
        for j in range(i + 1):
            gram[i, j] = 0.0
    for c in range(k + 1):
        strength = 0.5 / (penalty if c < k else bias_penalty)
        for i in range(n):
            x = strength * X[0, c, i]
            for j in range(i + 1):
                gram[i, j] += x * X[0, c, j]
    for i in range(n):
        for j in range(i):
            gram[j, i] = gram[i, j]


@helper
def dual_iteration(gram, share, member, n, alpha, side, rows, matrix, work, step):
    """As `primal_iteration`, for theta given by alpha; puts the logits into work[0].

    The new alpha is h - W^1/2 (1 + W^1/2 P W^1/2)^-1 W^1/2 P h with h = W P alpha + slopes and W the curvatures: a form that is
    well conditioned also where W vanishes.
    """
    size = (n + LANES - 1) // LANES * LANES
    value = 0.0
    for i in range(size):
        total = 0.0
        if i < n:
            for j in range(n):
                total += gram[i, j] * alpha[j]
            work[0, i] = total
            value -= 0.5 * total * alpha[i]
        rows[0, i] = np.float32(total)
        rows[1, i] = share[0, i]
        rows[2, i] = np.float32(side[member[0, i]])
    value -= _terms(rows, size)
    h, root, rhs = work[1], work[2], work[3]
    for i in range(n):
        h[i] = rows[4, i] * work[0, i] + rows[3, i]
        root[i] = math.sqrt(rows[4, i])
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j] * h[j]
        rhs[i] = root[i] * total
        for j in range(i + 1):
            matrix[i, j] = root[i] * gram[i, j] * root[j]
        matrix[i, i] += 1.0
    _solve(matrix, n, rhs)
    for i in range(n):
        step[i] = h[i] - root[i] * rhs[i] - alpha[i]
    gain = 0.0  # half of gradient times step, in terms of theta
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j] * step[j]
        gain += 0.5 * total * (rows[3, i] - alpha[i])
    return value, gain


@helper
def dual_theta(X, n, k, alpha, penalty, bias_penalty, theta):
    """theta = (w, b) from alpha."""
    for c in range(k + 1):
        total = 0.0
        for i in range(n):
            total += alpha[i] * X[0, c, i]
        theta[c] = 0.5 * total / (penalty if c < k else bias_penalty)


# -- splits ------------------------------------------------------------------------------------------------------------------


@helper
def class_deltas(sums, m, k, theta, delta):
    """Delta_y = theta.(S_y, n_y) of the m classes."""
    for block in range((m + PASS - 1) // PASS):
        size = min(PASS, (m - block * PASS + LANES - 1) // LANES * LANES)
        for i in range(size):
            delta[block, i] = _ZERO
        for c in range(k + 1):
            t = np.float32(theta[c])
            for i in range(size):
                delta[block, i] += t * sums[block, c, i]


@helper
def dual_deltas(gram, share, member, n, alpha, delta):
    """The same from alpha, by a sum over the points; a node with few points has few classes with points: delta must be 0."""
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j] * alpha[j]
        y = member[0, i]
        delta[y // PASS, y % PASS] += share[0, i] * np.float32(total)


@helper
def choose_split(delta, keys, m, old, new):
    """Send the m // 2 classes of largest delta right, among equals those that come later; returns how many changed sides."""
    n_left = m - m // 2
    for j in range(m):
        bits = float_bits(delta[j] + _ZERO)  # + 0: minus zero and zero are one number
        keys[j] = bits ^ ((bits >> np.int32(31)) & _SIGN_MASK)  # an integer with the order of the float
    if m <= _FEW_CLASSES:
        for j in range(m):
            rank = 0
            for i in range(j):
                rank += np.int64(keys[i] <= keys[j])
            for i in range(j + 1, m):
                rank += np.int64(keys[i] < keys[j])
            new[j] = np.int8(rank >= n_left)
    else:
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
        below = np.int32(0)
        for j in range(m):
            below += np.int32(keys[j] < bound)
        ties = n_left - below
        for j in range(m):
            new[j] = np.int8(keys[j] > bound)
            if keys[j] == bound:
                new[j] = np.int8(ties <= 0)
                ties -= 1
    changed = 0
    for j in range(m):
        changed += np.int64(old[j] != new[j])
    return changed


@helper
def principal_direction(sums, m, k, rank, rows, matrix, v, u):
    """Fill v (k + 1) with the eigenvector number `rank` of the covariance of the class sums, and with b = -mean(w.x).

    Power iteration; eigenvectors found on the way are taken out of the matrix.
    """
    n_blocks = (m + PASS - 1) // PASS
    stride = max(1, n_blocks // _PCA_BLOCKS)
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
        length = 0.0
        for c in range(k):
            v[c] = matrix[c, start]  # not orthogonal to the dominant eigenvector, short of an accident
            length += v[c] * v[c]
        along = 0.0
        for _ in range(_POWER_STEPS):
            scale = 1.0 / math.sqrt(length) if length > 0.0 else 0.0  # classes that are all alike: every split is as good
            along, length = 0.0, 0.0
            for r in range(k):
                v[r] *= scale
            for r in range(k):
                total = 0.0
                for c in range(k):
                    total += matrix[r, c] * v[c]
                u[r] = total
                along += total * v[r]
                length += total * total
            if along * along >= _ALIGNED * length:
                break
            for r in range(k):
                v[r] = u[r]
        for r in range(k):
            for c in range(k):
                matrix[r, c] -= along * v[r] * v[c]
    v[k] = 0.0
    for c in range(k):
        v[k] -= v[c] * matrix[k, c]
