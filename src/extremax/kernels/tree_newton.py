"""One node of the label tree: penalised logistic regression by damped Newton steps, alternating with balanced re-splits.

A node holds points x_i with weights q_i whose classes go left (side 0) or right (side 1).  With zeta = 2 side - 1 it maximises
(paper, section 3)

    L = sum_i q_i log sigma(zeta_i a_i) - lambda |w|^2 - mu b^2,    a_i = w.x_i + b

over w, b and all balanced splits.  For given w and b the best split sorts the classes by Delta_y, the sum of q_i a_i over the
points of y.  One iteration is a Newton step followed by the best split for the new w and b; where L does not grow the step is
halved.  L never falls, so the split in hand is always the best seen.

Two forms of the same Newton step.  `fit_primal`: a system of size k + 1, for nodes with many points.  `fit_dual`: w and b as sums
over the points, w = sum_i alpha_i x_i / (2 lambda), b = sum_i alpha_i / (2 mu), which leaves a system of the size of the points:
for the many nodes near the leaves that hold only a handful.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax._jit import exp32, float_bits, inline, log1p32, njit

LANES = 16  # columns of feature arrays are padded with zeros to a multiple of this
PASS = 64  # points per pass: sums within a pass are float32, sums over passes float64

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_TWO = np.float32(2.0)
_SIGN_MASK = np.int32(0x7FFFFFFF)
_HALVINGS = 10  # a step that does not help at a thousandth of its length is lost in rounding
_POWER_STEPS = 30
_FEW_CLASSES = 24  # up to here the rank of a class is found by comparing all pairs
_ROUNDING = 1e-6  # L is a sum of float32 terms: relative changes below this are noise
_SMALLEST_GAIN = 1e-9  # per unit of weight: below it Newton has converged, whatever the tolerance


class Settings(NamedTuple):
    """How long a node is worked on; `tolerance` is a gain of L per unit of weight."""

    max_points: int
    max_alternations: int
    max_newton: int
    tolerance: float
    dual_points: int
    seed: int


class Scratch(NamedTuple):
    """Working memory of one task, sized for its largest node: n points, m classes, width columns, s the size of a system."""

    points: np.ndarray  # (n + 4, width) float32
    share: np.ndarray  # (n,) float32: weights q of the points
    member: np.ndarray  # (n,) int32: position of a point's class in the node
    sums: np.ndarray  # (m, width) float32: weighted feature sums of the classes
    counts: np.ndarray  # (m,) float32: their summed weights
    delta: np.ndarray  # (m,) float32
    keys: np.ndarray  # (m,) int32
    side: np.ndarray  # (m,) int8: the split in hand
    trial: np.ndarray  # (m,) int8: the split on trial
    rows: np.ndarray  # (6, PASS) float32
    partial: np.ndarray  # (width + 2, width) float32
    matrix: np.ndarray  # (s, s) float64
    gram: np.ndarray  # (s, s) float64
    vectors: np.ndarray  # (8, s) float64
    weight: np.ndarray  # (width,) float32


@njit
def make_scratch(n, m, width, size):
    return Scratch(
        np.zeros((n + 4, width), np.float32),
        np.empty(n, np.float32),
        np.empty(n, np.int32),
        np.empty((m, width), np.float32),
        np.empty(m, np.float32),
        np.empty(m, np.float32),
        np.empty(m, np.int32),
        np.zeros(m, np.int8),
        np.zeros(m, np.int8),
        np.zeros((6, PASS), np.float32),
        np.empty((width + 2, width), np.float32),
        np.empty((size, size), np.float64),
        np.empty((size, size), np.float64),
        np.empty((8, size), np.float64),
        np.zeros(width, np.float32),
    )


# -- small linear algebra ----------------------------------------------------------------------------------------------------


@njit
def factor(matrix, n):
    """Cholesky factor of the leading n x n block, in its lower triangle.

    A pivot lost to rounding is replaced by a large one: its direction then takes no step.
    """
    for j in range(n):
        pivot = matrix[j, j]
        for c in range(j):
            pivot -= matrix[j, c] * matrix[j, c]
        pivot = math.sqrt(pivot) if pivot > 0.0 else 1e150
        matrix[j, j] = pivot
        inverse = 1.0 / pivot
        for i in range(j + 1, n):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total * inverse


@njit
def solve(matrix, n, x):
    """Solve L L' u = x for the factor L; u replaces x."""
    for i in range(n):
        total = x[i]
        for c in range(i):
            total -= matrix[i, c] * x[c]
        x[i] = total / matrix[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= matrix[i, i]
        for c in range(i):
            x[c] -= matrix[i, c] * x[i]


@inline
def _dot(left, i, right, j):
    """Inner product of row i of `left` and row j of `right`, both padded."""
    total = _ZERO
    for first in range(0, left.shape[1], LANES):
        for c in range(LANES):
            total += left[i, first + c] * right[j, first + c]
    return total


@inline
def _apply(weight, right, j):
    total = _ZERO
    for first in range(0, weight.shape[0], LANES):
        for c in range(LANES):
            total += weight[first + c] * right[j, first + c]
    return total


# -- splits ------------------------------------------------------------------------------------------------------------------


@njit
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
        below = 0
        for j in range(m):
            below += np.int64(keys[j] < bound)
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


@njit
def principal_direction(s, m, k):
    """Put the dominant eigenvector of the covariance of the m class sums into s.weight; returns b = -mean(w.x).

    Power iteration, on the k x k covariance or, with fewer classes than features, on the m x m matrix of inner products.
    """
    matrix, mean, v, u = s.matrix, s.vectors[0], s.vectors[1], s.vectors[2]
    step = max(1, m // 16384)  # the covariance of many classes is known well enough from a part of them
    used = 0
    mean[:k] = 0.0
    for j in range(0, m, step):
        used += 1
        for c in range(k):
            mean[c] += s.sums[j, c]
    for c in range(k):
        mean[c] /= used
    inner = m < k
    size = m if inner else k
    matrix[:size, :size] = 0.0
    if inner:
        for i in range(m):
            for j in range(i + 1):
                total = 0.0
                for c in range(k):
                    total += (s.sums[i, c] - mean[c]) * (s.sums[j, c] - mean[c])
                matrix[i, j] = total
                matrix[j, i] = total
    else:
        for j in range(0, m, step):
            for c in range(k):
                u[c] = s.sums[j, c] - mean[c]
            for r in range(k):
                x = u[r]
                for c in range(k):
                    matrix[r, c] += x * u[c]
    _power_iteration(matrix, size, v, u)
    s.weight[:] = _ZERO
    if inner:
        for j in range(m):
            for c in range(k):
                s.weight[c] += np.float32(v[j] * (s.sums[j, c] - mean[c]))
    else:
        for c in range(k):
            s.weight[c] = np.float32(v[c])
    total, count = 0.0, 0.0
    for j in range(m):
        total += _apply(s.weight, s.sums, j)
        count += s.counts[j]
    return np.float32(-total / count) if count > 0.0 else _ZERO


@njit
def _power_iteration(matrix, n, v, u):
    """Dominant eigenvector of a positive semidefinite matrix in v, length 1; 0 if the matrix is 0."""
    start = 0
    for i in range(1, n):
        if matrix[i, i] > matrix[start, start]:
            start = i
    for i in range(n):
        v[i] = matrix[i, start]  # not orthogonal to the dominant eigenvector, short of an accident
    for _ in range(_POWER_STEPS):
        norm = 0.0
        for i in range(n):
            norm += v[i] * v[i]
        if norm == 0.0:
            return
        scale = 1.0 / math.sqrt(norm)
        for i in range(n):
            v[i] *= scale
        along, length = 0.0, 0.0
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += matrix[i, j] * v[j]
            u[i] = total
            along += total * v[i]
            length += total * total
        if along * along > 0.999999 * length:
            return
        for i in range(n):
            v[i] = u[i]


@njit
def initial_split(s, m, k):
    """Split along the principal direction of the class sums."""
    bias = principal_direction(s, m, k)
    for j in range(m):
        s.delta[j] = _apply(s.weight, s.sums, j) + s.counts[j] * bias
    choose_split(s.delta, s.keys, m, s.side, s.side)


# -- many points -------------------------------------------------------------------------------------------------------------


@njit
def _evaluate(s, n, k, theta, side, penalty, bias_penalty, gradient, hessian):
    """L at theta = (w, b) for a split; fills its gradient (k + 1) and minus its Hessian (k + 1, k + 1), lower triangle."""
    width = s.weight.shape[0]
    value = 0.0
    for c in range(k):
        s.weight[c] = np.float32(theta[c])
        value -= penalty * theta[c] * theta[c]
        gradient[c] = -2.0 * penalty * theta[c]
    for c in range(k, width):
        s.weight[c] = _ZERO
    bias = np.float32(theta[k])
    value -= bias_penalty * theta[k] * theta[k]
    gradient[k] = -2.0 * bias_penalty * theta[k]
    for i in range(k + 1):
        for j in range(i + 1):
            hessian[i, j] = 0.0
        hessian[i, i] = 2.0 * (penalty if i < k else bias_penalty)
    rows, partial = s.rows, s.partial
    for first in range(0, n, PASS):
        size = min(PASS, n - first)
        for i in range(size):
            rows[0, i] = _apply(s.weight, s.points, first + i) + bias
            rows[1, i] = s.share[first + i]
            rows[2, i] = np.float32(side[s.member[first + i]])
        for i in range(size, PASS):
            rows[0, i] = _ZERO
            rows[1, i] = _ZERO
            rows[2, i] = _ZERO
        value -= _pass_terms(rows)
        slope, curve = _ZERO, _ZERO
        for i in range(PASS):
            slope += rows[3, i]
            curve += rows[4, i]
        gradient[k] += slope
        hessian[k, k] += curve
        _accumulate(s.points, first, size, rows, partial, k)
        for c in range(k):
            gradient[c] += partial[width, c]
            hessian[k, c] += partial[width + 1, c]
        for i in range(k):
            for j in range(i + 1):
                hessian[i, j] += partial[i, j]
    return value


@inline
def _pass_terms(rows):
    """From logits, weights and sides of a pass: slopes q (side - p), curvatures q p (1 - p); returns minus the log-likelihood."""
    for i in range(PASS):
        rows[5, i] = exp32(-abs(rows[0, i]))
    for i in range(PASS):
        e = rows[5, i]
        inverse = _ONE / (_ONE + e)
        p = (_ONE if rows[0, i] >= _ZERO else e) * inverse
        rows[3, i] = rows[1, i] * (rows[2, i] - p)
        rows[4, i] = rows[1, i] * e * inverse * inverse
    loss = _ZERO
    for i in range(PASS):
        against = max(rows[0, i] * (_ONE - _TWO * rows[2, i]), _ZERO)
        loss += rows[1, i] * (against + log1p32(rows[5, i]))
    return loss


@inline
def _accumulate(points, first, size, rows, partial, k):
    """Weighted sums of a pass: rows [0, k) of `partial` curvature x x', row width slope x, row width + 1 curvature x."""
    width = points.shape[1]
    for r in range(width + 2):
        for c in range(width):
            partial[r, c] = _ZERO
    for i in range(0, size, 4):  # four points at a time: four times fewer loads and stores of the sums
        x = first + i
        d0, d1, d2, d3 = rows[4, i], rows[4, i + 1], rows[4, i + 2], rows[4, i + 3]
        for r in range(k):
            f0, f1, f2, f3 = d0 * points[x, r], d1 * points[x + 1, r], d2 * points[x + 2, r], d3 * points[x + 3, r]
            for left in range(0, r + 1, LANES):
                for c in range(left, left + LANES):
                    partial[r, c] += (f0 * points[x, c] + f1 * points[x + 1, c]) + (
                        f2 * points[x + 2, c] + f3 * points[x + 3, c]
                    )
        g0, g1, g2, g3 = rows[3, i], rows[3, i + 1], rows[3, i + 2], rows[3, i + 3]
        for left in range(0, width, LANES):
            for c in range(left, left + LANES):
                x0, x1, x2, x3 = points[x, c], points[x + 1, c], points[x + 2, c], points[x + 3, c]
                partial[width, c] += (g0 * x0 + g1 * x1) + (g2 * x2 + g3 * x3)
                partial[width + 1, c] += (d0 * x0 + d1 * x1) + (d2 * x2 + d3 * x3)


@njit
def fit_primal(s, n, m, k, penalty, bias_penalty, settings, alternate, theta):
    """Fit theta (w, b) from its present value and, if `alternate`, the split s.side; returns L."""
    gradient, step, trial_theta = s.vectors[1], s.vectors[2], s.vectors[3]
    weight = 0.0
    for i in range(n):
        weight += s.share[i]
    enough = max(settings.tolerance, _SMALLEST_GAIN) * weight
    value = _evaluate(s, n, k, theta, s.side, penalty, bias_penalty, gradient, s.matrix)
    side, trial = s.side, s.trial
    changed = m
    remaining = settings.max_newton
    alternations = settings.max_alternations if alternate else 0
    while remaining > 0:
        factor(s.matrix, k + 1)
        gain = 0.0
        for c in range(k + 1):
            step[c] = gradient[c]
        solve(s.matrix, k + 1, step)
        for c in range(k + 1):
            gain += 0.5 * gradient[c] * step[c]
        if gain < enough and (alternations == 0 or changed == 0):
            for c in range(k + 1):  # converged: what the last step leaves is of the order of the square of its gain
                theta[c] += step[c]
            break
        length = 1.0
        accepted = False
        for _ in range(_HALVINGS):
            for c in range(k + 1):
                trial_theta[c] = theta[c] + length * step[c]
            if alternations > 0:
                for c in range(k):
                    s.weight[c] = np.float32(trial_theta[c])
                bias = np.float32(trial_theta[k])
                for j in range(m):
                    s.delta[j] = _apply(s.weight, s.sums, j) + s.counts[j] * bias
                changed = choose_split(s.delta, s.keys, m, side, trial)
            else:
                for j in range(m):
                    trial[j] = side[j]
            reached = _evaluate(s, n, k, trial_theta, trial, penalty, bias_penalty, gradient, s.matrix)
            if reached >= value - _ROUNDING * abs(value):
                accepted = True
                break
            length *= 0.5
        if accepted:
            gained = reached - value
            value = reached
            side, trial = trial, side
            for c in range(k + 1):
                theta[c] = trial_theta[c]
            if alternations > 0:
                alternations = 0 if gained < enough else alternations - 1
            else:
                remaining -= 1
        elif alternations > 0:  # the split of all points does not suit the sample of points in use: keep the last good one
            alternations = 0
            value = _evaluate(s, n, k, theta, side, penalty, bias_penalty, gradient, s.matrix)
        else:
            break
    for j in range(m):
        s.side[j] = side[j]
    return value


# -- few points --------------------------------------------------------------------------------------------------------------


@njit
def _dual_value(s, n, f, alpha, side):
    value = 0.0
    for i in range(n):
        z = f[i] if side[s.member[i]] else -f[i]
        value += s.share[i] * (min(z, 0.0) - math.log1p(math.exp(-abs(z)))) - 0.5 * alpha[i] * f[i]
    return value


@njit
def _dual_step(s, n, f, side, target, root, rhs):
    """Newton: alpha that solves (W^-1 + P) alpha = f + W^-1 g, with P = X X' / (2 lambda) + 1 / (2 mu), W the curvatures.

    Written as alpha = h - W^1/2 (1 + W^1/2 P W^1/2)^-1 W^1/2 P h, h = W f + g: well conditioned, also where W vanishes.
    """
    for i in range(n):
        e = math.exp(-abs(f[i]))
        inverse = 1.0 / (1.0 + e)
        p = inverse if f[i] >= 0.0 else e * inverse
        curve = s.share[i] * e * inverse * inverse
        root[i] = math.sqrt(curve)
        target[i] = curve * f[i] + s.share[i] * (side[s.member[i]] - p)
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += s.gram[i, j] * target[j]
        rhs[i] = root[i] * total
        for j in range(i):
            s.matrix[i, j] = root[i] * s.gram[i, j] * root[j]
        s.matrix[i, i] = 1.0 + root[i] * s.gram[i, i] * root[i]
    factor(s.matrix, n)
    solve(s.matrix, n, rhs)
    for i in range(n):
        target[i] -= root[i] * rhs[i]


@njit
def _gram_product(gram, n, x, y):
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j] * x[j]
        y[i] = total


@njit
def fit_dual(s, n, m, k, penalty, bias_penalty, settings, alternate, theta):
    """As `fit_primal`, from w = 0, b = 0."""
    f, alpha, new_f, new_alpha = s.vectors[0], s.vectors[1], s.vectors[2], s.vectors[3]
    target, root, rhs = s.vectors[4], s.vectors[5], s.vectors[6]
    weight = 0.0
    for i in range(n):
        weight += s.share[i]
        f[i] = 0.0
        alpha[i] = 0.0
        for j in range(i + 1):
            product = 0.5 * _dot(s.points, i, s.points, j) / penalty + 0.5 / bias_penalty
            s.gram[i, j] = product
            s.gram[j, i] = product
    enough = max(settings.tolerance, _SMALLEST_GAIN) * weight
    side, trial = s.side, s.trial
    value = _dual_value(s, n, f, alpha, side)
    changed = m
    remaining = settings.max_newton
    alternations = settings.max_alternations if alternate else 0
    while remaining > 0:
        _dual_step(s, n, f, side, target, root, rhs)
        _gram_product(s.gram, n, target, rhs)
        gain = 0.0  # half the product of the gradient P (g - alpha) with the step of alpha, which is what L gains to second order
        for i in range(n):
            e = math.exp(-abs(f[i]))
            p = (1.0 if f[i] >= 0.0 else e) / (1.0 + e)
            gain += 0.5 * (rhs[i] - f[i]) * (s.share[i] * (side[s.member[i]] - p) - alpha[i])
        if gain < enough and (alternations == 0 or changed == 0):
            for i in range(n):
                alpha[i] = target[i]
            break
        length = 1.0
        accepted = False
        for _ in range(_HALVINGS):
            for i in range(n):
                new_alpha[i] = alpha[i] + length * (target[i] - alpha[i])
                new_f[i] = f[i] + length * (rhs[i] - f[i])
            if alternations > 0:
                for j in range(m):
                    s.delta[j] = _ZERO
                for i in range(n):
                    s.delta[s.member[i]] += s.share[i] * np.float32(new_f[i])
                changed = choose_split(s.delta, s.keys, m, side, trial)
            else:
                for j in range(m):
                    trial[j] = side[j]
            reached = _dual_value(s, n, new_f, new_alpha, trial)
            if reached >= value - _ROUNDING * abs(value):
                accepted = True
                break
            length *= 0.5
        if not accepted:
            if alternations == 0:
                break
            alternations = 0
            continue
        gained = reached - value
        value = reached
        side, trial = trial, side
        for i in range(n):
            alpha[i] = new_alpha[i]
            f[i] = new_f[i]
        if alternations > 0:
            alternations = 0 if gained < enough else alternations - 1
        else:
            remaining -= 1
    for j in range(m):
        s.side[j] = side[j]
    for c in range(k + 1):
        theta[c] = 0.0
    for i in range(n):
        for c in range(k):
            theta[c] += 0.5 * alpha[i] * s.points[i, c] / penalty
        theta[k] += 0.5 * alpha[i] / bias_penalty
    return value
