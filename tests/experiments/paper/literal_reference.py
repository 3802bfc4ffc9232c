"""Section 3 of the paper in plain numpy, written from its text alone: one node after the other.

Nothing here is shared with the package. Padding labels are the numbers from n_classes on; they have no
points. Among labels with equal Delta, later ones of the node go to the right half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

HUGE = 1e6


@dataclass
class Node:
    labels: list[int]  # in the order in which the node received them
    w: np.ndarray
    b: float
    left: list[int]
    right: list[int]
    log_likelihood: float  # without the regularizer


def sigma(z):
    return np.where(z >= 0, 1 / (1 + np.exp(-np.abs(z))), np.exp(-np.abs(z)) / (1 + np.exp(-np.abs(z))))


def log_sigma(z):
    return -np.logaddexp(0.0, -z)


def newton_ascent(x, zeta, w, b, strength):
    """Maximise sum log sigma(zeta (w.x + b)) - strength (|w|^2 + b^2); scipy checks the gradient."""
    theta, with_one = np.append(w, b), np.column_stack([x, np.ones(len(x))])

    def value(t):
        return log_sigma(zeta * (with_one @ t)).sum() - strength * (t @ t)

    for _ in range(200):
        a = with_one @ theta
        gradient = with_one.T @ (zeta * sigma(-zeta * a)) - 2 * strength * theta
        curvature = with_one.T @ (with_one * (sigma(a) * sigma(-a))[:, None])
        curvature += 2 * strength * np.eye(len(theta))
        step = np.linalg.solve(curvature, gradient)
        length = 1.0
        while value(theta + length * step) < value(theta) and length > 1e-9:
            length /= 2
        theta = theta + length * step
        if np.abs(step).max() <= 1e-13 * (1 + np.abs(theta).max()):
            break
    gradient = optimize.approx_fprime(theta, value, 1e-6)
    assert np.abs(gradient).max() < 1e-2 * (1 + strength * np.abs(theta).max())
    return theta[:-1], float(theta[-1])


def fit_node(labels, rows_of, n_classes, strength):
    """The greedy fit of one node: rows_of[y] holds the points of a label, an empty array for padding."""
    k = rows_of[0].shape[1]
    sums = np.array([rows_of[y].sum(axis=0) if y < n_classes else np.zeros(k) for y in labels])
    counts = np.array([len(rows_of[y]) if y < n_classes else 0 for y in labels])
    real = np.array([y < n_classes for y in labels])
    values, vectors = np.linalg.eigh(np.cov(sums[real].T, bias=True).reshape(k, k))
    w, b = vectors[:, -1] if values[-1] > 0 else np.zeros(k), 0.0
    w = w * np.sign(w[np.argmax(np.abs(w))]) if w.any() else w
    x = np.concatenate([rows_of[y] for y in labels if y < n_classes])
    owner = np.concatenate([np.full(len(rows_of[y]), j) for j, y in enumerate(labels) if y < n_classes])

    def best_split(w, b):
        delta = sums @ w + counts * b
        zeta = np.full(len(labels), -1.0)
        zeta[np.argsort(delta, kind="stable")[len(labels) // 2 :]] = 1.0
        return zeta

    zeta = best_split(w, b)
    for _ in range(1000):
        w, b = newton_ascent(x, zeta[owner], w, b, strength)
        again = best_split(w, b)
        if np.array_equal(again, zeta):
            break
        zeta = again
    left = [y for y, z in zip(labels, zeta, strict=True) if z < 0]
    right = [y for y, z in zip(labels, zeta, strict=True) if z > 0]
    likelihood = log_sigma(zeta[owner] * (x @ w + b)).sum()
    if min(left) >= n_classes or min(right) >= n_classes:  # a child of padding alone
        w, b, likelihood = np.zeros(k), HUGE if min(left) >= n_classes else -HUGE, 0.0
    return Node(list(labels), w, b, left, right, float(likelihood))


def fit_tree(z, y, n_classes, strength=0.1):
    """All nodes in heap order, None where a node has padding alone, and the labels of the leaves."""
    z = np.asarray(z, np.float64)
    rows_of = [z[y == label] for label in range(n_classes)]
    depth = int(np.ceil(np.log2(n_classes)))
    level, nodes = [list(range(2**depth))], []
    for _ in range(depth):
        below = []
        for labels in level:
            if min(labels) >= n_classes:
                node, halves = None, (labels[: len(labels) // 2], labels[len(labels) // 2 :])
            else:
                node = fit_node(labels, rows_of, n_classes, strength)
                halves = node.left, node.right
            nodes.append(node)
            below += halves
        level = below
    return nodes, [labels[0] for labels in level]


def log_prob_all(nodes, leaves, z, n_classes):
    """log p_n of every class, by walking the path of each leaf."""
    z, depth = np.asarray(z, np.float64), (len(leaves) - 1).bit_length()
    out = np.full((len(z), len(leaves)), -np.inf)
    for leaf, label in enumerate(leaves):
        total, node = np.zeros(len(z)), 0
        for bit in range(depth - 1, -1, -1):
            right = (leaf >> bit) & 1
            if nodes[node] is not None:
                total = total + log_sigma((1 if right else -1) * (z @ nodes[node].w + nodes[node].b))
            node = 2 * node + 1 + right
        out[:, label] = total
    return out[:, :n_classes], out[:, n_classes:]
