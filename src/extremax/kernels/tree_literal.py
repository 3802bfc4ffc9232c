"""Fit a label tree as section 3 of the paper prints it, in float64.

`extremax.kernels.tree_fit` is the fast fit.  Here every node takes all of its points, one start (the dominant
eigenvector of the covariance of its class sums, b = 0), Newton ascent to machine precision for each split,
and a new split only then.  The labels of a node with 2^d leaves are 2^d, some of them padding: padding has no
points, so that its Delta is 0, and takes part in the split like any other label.  A node sends the half with
the largest Delta to the right; among equals, labels that come later in the node go right.

Newton's step is halved while it does not raise the objective

    L = sum_i q_i log sigma(zeta_i a_i) - lambda (|w|^2 + b^2),    a_i = w.x_i + b,

which is strictly concave: damping changes the way to the optimum, not the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit

_SWEEPS = 60  # of Jacobi rotations; six are usual
_CONVERGED = 1e-12  # relative gain of a Newton step; the step itself then ends at machine precision
_MIN_LENGTH = 1e-9  # part of a Newton step; one that does not help at this length is lost in rounding


class LiteralData(NamedTuple):
    """Points sorted by label: those of label y are the rows offsets[y] to offsets[y + 1]."""

    points: np.ndarray  # (N, k) float32
    weight: np.ndarray  # (N,) float32
    offsets: np.ndarray  # (n_classes + 1,) int64
    sums: (
        np.ndarray
    )  # (n_classes, k + 1) float64: weighted sum of the points of a class, and of their weights
    penalty: float  # lambda
    max_newton_steps: int
    max_splits: int
    padding_bias: float  # that leaves padding a probability of exactly 0


class LiteralNodes(NamedTuple):
    """What is fitted, nodes in heap order; labels of n_classes and above are padding."""

    weights: np.ndarray  # (n_inner, k) float64
    biases: np.ndarray  # (n_inner,) float64
    log_likelihood: np.ndarray  # (n_inner,) float64: sum of q log sigma, without the penalty
    order: np.ndarray  # (2^depth,) int32: labels in the order of the leaves
    n_splits: np.ndarray  # (n_inner,) int32: splits that were tried
    settled: np.ndarray  # (n_inner,) bool: whether the last split was the best for the last parameters


class _Work(NamedTuple):
    """Working memory of a node."""

    theta: np.ndarray  # (k + 1,)
    trial: np.ndarray
    gradient: np.ndarray
    step: np.ndarray
    x: np.ndarray
    matrix: np.ndarray  # (k + 1, k + 1)
    basis: np.ndarray


@helper
def _objective(data, labels, side, theta, work):
    """Fill gradient and minus the Hessian (lower triangle) at theta; return L and the log-likelihood."""
    k = data.points.shape[1]
    matrix, gradient, x = work.matrix, work.gradient, work.x
    norm = 0.0
    for r in range(k + 1):
        norm += theta[r] * theta[r]
        gradient[r] = -2.0 * data.penalty * theta[r]
        for c in range(k + 1):
            matrix[r, c] = 0.0
        matrix[r, r] = 2.0 * data.penalty
    likelihood = 0.0
    x[k] = 1.0
    for j in range(labels.shape[0]):
        if labels[j] >= data.sums.shape[0]:
            continue
        for i in range(data.offsets[labels[j]], data.offsets[labels[j] + 1]):
            a = theta[k]
            for c in range(k):
                x[c] = data.points[i, c]
                a += theta[c] * x[c]
            q = np.float64(data.weight[i])
            e = math.exp(-abs(a))
            p = 1.0 / (1.0 + e) if a >= 0.0 else e / (1.0 + e)
            right = np.float64(side[j])
            likelihood -= q * (max(a - 2.0 * a * right, 0.0) + math.log1p(e))
            slope, curvature = q * (right - p), q * e / ((1.0 + e) * (1.0 + e))
            for r in range(k + 1):
                gradient[r] += slope * x[r]
                scaled = curvature * x[r]
                for c in range(r + 1):
                    matrix[r, c] += scaled * x[c]
    return likelihood - data.penalty * norm, likelihood


@helper
def _solve(matrix, gradient, step):
    """Solve for Newton's step by Cholesky; return the gain that the step predicts."""
    n = gradient.shape[0]
    for j in range(n):
        for i in range(j, n):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = math.sqrt(total) if i == j else total / matrix[j, j]
        total = gradient[j]
        for c in range(j):
            total -= matrix[j, c] * step[c]
        step[j] = total / matrix[j, j]
    gain = 0.0
    for i in range(n - 1, -1, -1):
        for c in range(i + 1, n):
            step[i] -= matrix[c, i] * step[c]
        step[i] /= matrix[i, i]
        gain += 0.5 * gradient[i] * step[i]
    return gain


@helper
def _maximise(data, labels, side, work):
    """Take damped Newton steps from theta to the optimum of a split; return the log-likelihood there."""
    theta, trial, step = work.theta, work.trial, work.step
    value, likelihood = _objective(data, labels, side, theta, work)
    for _ in range(data.max_newton_steps):
        if _solve(work.matrix, work.gradient, step) <= _CONVERGED * abs(value):
            for c in range(theta.shape[0]):
                theta[c] += step[c]
            _, likelihood = _objective(data, labels, side, theta, work)
            break
        length, reached, there = 1.0, -np.inf, 0.0
        while length >= _MIN_LENGTH:
            for c in range(theta.shape[0]):
                trial[c] = theta[c] + length * step[c]
            reached, there = _objective(data, labels, side, trial, work)
            if reached >= value:
                break
            length *= 0.5
        if not reached >= value:  # the optimum, up to rounding
            break
        value, likelihood = reached, there
        for c in range(theta.shape[0]):
            theta[c] = trial[c]
    return likelihood


@helper
def _rotate(matrix, basis, p, q):
    """Make entry (p, q) of a symmetric matrix zero by a rotation, which is applied to `basis` as well."""
    k = matrix.shape[0] - 1
    slope = (matrix[q, q] - matrix[p, p]) / (2.0 * matrix[p, q])
    t = (1.0 if slope >= 0.0 else -1.0) / (abs(slope) + math.sqrt(slope * slope + 1.0))
    cosine = 1.0 / math.sqrt(t * t + 1.0)
    sine = t * cosine
    for r in range(k):
        first, second = matrix[r, p], matrix[r, q]
        matrix[r, p], matrix[r, q] = cosine * first - sine * second, sine * first + cosine * second
    for c in range(k):
        first, second = matrix[p, c], matrix[q, c]
        matrix[p, c], matrix[q, c] = cosine * first - sine * second, sine * first + cosine * second
    for r in range(k):
        first, second = basis[r, p], basis[r, q]
        basis[r, p], basis[r, q] = cosine * first - sine * second, sine * first + cosine * second


@helper
def _first_direction(data, labels, work):
    """Fill theta with the dominant eigenvector of the covariance of the class sums, and b = 0.

    The largest entry of the eigenvector is positive.  Padding has no class sum.
    """
    k = data.points.shape[1]
    matrix, basis, theta, mean = work.matrix, work.basis, work.theta, work.x
    used = 0
    for c in range(k + 1):
        mean[c], theta[c] = 0.0, 0.0
        for r in range(k + 1):
            matrix[r, c], basis[r, c] = 0.0, np.float64(r == c)
    for label in labels:
        if label < data.sums.shape[0]:
            used += 1
            for c in range(k):
                mean[c] += data.sums[label, c]
    for label in labels:
        if label < data.sums.shape[0]:
            for r in range(k):
                for c in range(k):
                    matrix[r, c] += (data.sums[label, r] - mean[r] / used) * (
                        data.sums[label, c] - mean[c] / used
                    )
    trace = 0.0
    for r in range(k):
        trace += matrix[r, r]
    if trace == 0.0:  # equal classes: every direction is as good
        return
    for _ in range(_SWEEPS):
        left = 0.0
        for p in range(k):
            for q in range(p + 1, k):
                left += matrix[p, q] * matrix[p, q]
        if left <= 1e-32 * trace * trace:
            break
        for p in range(k):
            for q in range(p + 1, k):
                if matrix[p, q] != 0.0:
                    _rotate(matrix, basis, p, q)
    best, largest = 0, 0
    for c in range(1, k):
        if matrix[c, c] > matrix[best, best]:
            best = c
    for r in range(1, k):
        if abs(basis[r, best]) > abs(basis[largest, best]):
            largest = r
    sign = 1.0 if basis[largest, best] > 0.0 else -1.0
    for r in range(k):
        theta[r] = sign * basis[r, best]


@helper
def _split(data, labels, theta, delta, side):
    """Send the half of the labels with the largest Delta to the right; return whether a side changed."""
    k, m = data.points.shape[1], labels.shape[0]
    for j in range(m):
        delta[j] = 0.0
        if labels[j] < data.sums.shape[0]:
            for c in range(k + 1):
                delta[j] += theta[c] * data.sums[labels[j], c]
    ranked = np.argsort(delta, kind="mergesort")  # stable: among equals, later ones go right
    changed = False
    for place in range(m):
        j, right = ranked[place], place >= m // 2
        changed |= side[j] != right
        side[j] = right
    return changed


@helper
def _fit_node(data, nodes, node, first, last):
    """Fit one node with points, whose labels are order[first:last], and put those of its left child first."""
    k, m, n_classes = data.points.shape[1], last - first, data.sums.shape[0]
    labels = nodes.order[first:last].copy()
    delta, side = np.empty(m), np.zeros(m, np.bool_)
    work = _Work(
        np.empty(k + 1),
        np.empty(k + 1),
        np.empty(k + 1),
        np.empty(k + 1),
        np.empty(k + 1),
        np.empty((k + 1, k + 1)),
        np.empty((k + 1, k + 1)),
    )
    _first_direction(data, labels, work)
    _split(data, labels, work.theta, delta, side)
    likelihood, changed, n_splits = 0.0, True, 0
    while changed and n_splits < data.max_splits:
        n_splits += 1
        likelihood = _maximise(data, labels, side, work)
        changed = _split(data, labels, work.theta, delta, side)
    if changed:  # the bound was reached: parameters of the split that is kept
        likelihood = _maximise(data, labels, side, work)
    real_left, real_right = 0, 0
    for j in range(m):
        if labels[j] < n_classes:
            real_left, real_right = real_left + (not side[j]), real_right + side[j]
    if real_left == 0 or real_right == 0:
        for c in range(k):
            work.theta[c] = 0.0
        work.theta[k] = data.padding_bias if real_right == 0 else -data.padding_bias
        likelihood = 0.0
    for c in range(k):
        nodes.weights[node, c] = work.theta[c]
    nodes.biases[node] = work.theta[k]
    nodes.log_likelihood[node] = likelihood
    nodes.n_splits[node] = n_splits
    nodes.settled[node] = not changed
    left, right = first, first + m // 2
    for j in range(m):
        if side[j]:
            nodes.order[right] = labels[j]
            right += 1
        else:
            nodes.order[left] = labels[j]
            left += 1


@helper
def _close_padding(data, nodes, node, first, last):
    """Set a node without points: all to the left or right where the other child is padding alone."""
    n_classes, m = data.sums.shape[0], last - first
    real = 0
    for j in range(first, last):
        real += nodes.order[j] < n_classes
    if real == 0:
        return
    # classes without points come first, and go to both sides where they are more than one
    labels = nodes.order[first:last].copy()
    left, right, seen = first, first + m // 2, 0
    for j in range(m):
        if labels[j] < n_classes:
            seen += 1
            if seen <= (real + 1) // 2:
                nodes.order[left] = labels[j]
                left += 1
            else:
                nodes.order[right] = labels[j]
                right += 1
    for j in range(m):
        if labels[j] >= n_classes:
            if left < first + m // 2:
                nodes.order[left] = labels[j]
                left += 1
            else:
                nodes.order[right] = labels[j]
                right += 1
    nodes.biases[node] = data.padding_bias if real == 1 else 0.0


@njit
def fit_literal_nodes(data, nodes, level, start, stop):
    """Fit the nodes [start, stop) of a level, counted from its left.

    Parameters
    ----------
    data : LiteralData
    nodes : LiteralNodes
        Filled for these nodes; the order of their leaves is rearranged.
    """
    size = nodes.order.shape[0] >> level
    for place in range(start, stop):
        node, first, last = (1 << level) - 1 + place, place * size, (place + 1) * size
        total = 0
        for j in range(first, last):
            if nodes.order[j] < data.sums.shape[0]:
                total += data.offsets[nodes.order[j] + 1] - data.offsets[nodes.order[j]]
        if total > 0:
            _fit_node(data, nodes, node, first, last)
        else:
            _close_padding(data, nodes, node, first, last)
