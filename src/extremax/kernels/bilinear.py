"""Kernels of the bilinear part: a similarity of rows and classes that all classes share.

    score_y(x) = (P'x).(Q'm_y) + b.m_y        m_y: mean row of class y

P, Q (n_columns, r) and b (n_columns,) are trained with every row left out of the mean of its own class.  b is
the last column of Q, and the last coordinate of P'x is one.  Every sum has one owner (a row, a class or a
column), so that the number of threads does not enter the arithmetic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import njit


class Similarity(NamedTuple):
    """Coordinates of a minibatch and of all classes."""

    rows: np.ndarray  # (n, r + 1) float32: P'x, and one
    own: np.ndarray  # (n, r + 1) float32: Q'x
    sums: np.ndarray  # (n_classes, r + 1) float32: Q'S_y
    factor: np.ndarray  # (n_classes,) float32: 1 / n_y
    own_factor: np.ndarray  # (n_classes,) float32: 1 / (n_y - 1)


class Gradient(NamedTuple):
    """Gradients of the log-likelihood of a minibatch, and the log-likelihood of each row."""

    rows: np.ndarray  # (n, r + 1) float32: by P'x
    slots: np.ndarray  # (n, n_slots) float32: by the score of each candidate, times its factor
    drawn: np.ndarray  # (n, n_drawn) float32: the same for classes drawn from all others
    log_likelihood: np.ndarray  # (n,) float64


class Adam(NamedTuple):
    """Means of the gradient and of its square, and the numbers of a step."""

    mean: np.ndarray
    square: np.ndarray
    rate: float
    penalty: float
    mean_correction: float
    square_correction: float


@njit
def multiply_rows(rows, chosen, matrix, out, first, last):
    """Fill lines of `out` with ``sum_f x_f matrix[f]`` of chosen rows of a CSR matrix."""
    for i in range(first, last):
        line, r = out[i], chosen[i]
        for j in range(line.size):
            line[j] = np.float32(0.0)
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            x, m = rows.data[p], matrix[rows.indices[p]]
            for j in range(line.size):
                line[j] += x * m[j]


@njit
def differentiate(pairs, candidates, similarity, drawn, gradient, first, last):
    """Compute softmax and gradients of some pairs of a minibatch.

    The candidates' offsets are fixed; the mass of all classes that are not candidates is taken to change as
    that of the `drawn` classes does.
    """
    n_slots, n_drawn = candidates.classes.shape[1], drawn.size
    size = similarity.rows.shape[1]
    sums, factor = similarity.sums, similarity.factor
    for t in range(first, last):
        i, z, own = pairs[t], similarity.rows[t], similarity.own[t]
        scores, rest, by_row = gradient.slots[t], gradient.drawn[t], gradient.rows[t]
        label = candidates.classes[i, 0]
        top = candidates.log_rest[i]
        for a in range(n_slots):
            c = candidates.classes[i, a]
            if c < 0:
                scores[a] = np.float32(-np.inf)
                continue
            total = np.float32(0.0)
            v = sums[c]
            for j in range(size):
                total += z[j] * v[j]
            if a == 0:
                part = np.float32(0.0)
                for j in range(size):
                    part += z[j] * own[j]
                scores[a] = candidates.offsets[i, a] + (total - part) * similarity.own_factor[c]
            else:
                scores[a] = candidates.offsets[i, a] + total * factor[c]
            top = max(top, scores[a])
        base = candidates.log_rest[i] - math.log(n_drawn)
        for a in range(n_drawn):
            total = np.float32(0.0)
            v = sums[drawn[a]]
            for j in range(size):
                total += z[j] * v[j]
            rest[a] = base + total * factor[drawn[a]]
            top = max(top, rest[a])
        mass, own_score = 0.0, scores[0]
        for a in range(n_slots):
            scores[a] = math.exp(scores[a] - top)
            mass += scores[a]
        for a in range(n_drawn):
            rest[a] = math.exp(rest[a] - top)
            mass += rest[a]
        gradient.log_likelihood[t] = own_score - top - math.log(mass)
        weight = candidates.weights[i]
        for j in range(size):
            by_row[j] = np.float32(0.0)
        for a in range(n_slots):
            c = candidates.classes[i, a]
            if c < 0:
                scores[a] = np.float32(0.0)
                continue
            change = weight * ((1.0 if a == 0 else 0.0) - scores[a] / mass)
            scores[a] = change * (similarity.own_factor[label] if a == 0 else factor[c])
            g, v = scores[a], sums[c]
            for j in range(size):
                by_row[j] += g * v[j]
            if a == 0:
                for j in range(size):
                    by_row[j] -= g * own[j]
        for a in range(n_drawn):
            rest[a] = -weight * rest[a] / mass * factor[drawn[a]]
            g, v = rest[a], sums[drawn[a]]
            for j in range(size):
                by_row[j] += g * v[j]


@njit
def gather_classes(starts, slots, n_slots, weights, rows, out, first, last):
    """Fill the gradient by Q'S_y of some classes: slots of the minibatch that hold class y are in `slots`."""
    for c in range(first, last):
        line = out[c]
        for j in range(line.size):
            line[j] = np.float32(0.0)
        for q in range(starts[c], starts[c + 1]):
            t = slots[q] // n_slots
            g, z = weights[t, slots[q] - t * n_slots], rows[t]
            for j in range(line.size):
                line[j] += g * z[j]


@njit
def step_columns(postings, by_class, columns, by_row, scale, fixed, adam, matrix, first, last):
    """Take a step of Adam on lines of a matrix.

    Parameters
    ----------
    postings : Postings
        Class sums by column; no entries where the gradient has no such part.
    by_class : (n_classes, size)
        Gradient by the class's coordinates.
    columns : Postings
        The minibatch by column: rows in place of classes.
    by_row : (n, size)
        Gradient by the row's coordinates.
    fixed : int
        Column of the matrix that stays as it is, or -1.
    """
    size = matrix.shape[1]
    total = np.empty(size, np.float32)
    for f in range(first, last):
        for j in range(size):
            total[j] = np.float32(0.0)
        for p in range(postings.offsets[f], postings.offsets[f + 1]):
            x, g = postings.values[p], by_class[postings.classes[p]]
            for j in range(size):
                total[j] += x * g[j]
        for p in range(columns.offsets[f], columns.offsets[f + 1]):
            x, g = columns.values[p], by_row[columns.classes[p]]
            for j in range(size):
                total[j] += x * g[j]
        line, mean, square = matrix[f], adam.mean[f], adam.square[f]
        for j in range(size):
            if j == fixed:
                continue
            d = np.float32(adam.penalty) * line[j] - np.float32(scale) * total[j]
            mean[j] = np.float32(0.9) * mean[j] + np.float32(0.1) * d
            square[j] = np.float32(0.99) * square[j] + np.float32(0.01) * d * d
            root = math.sqrt(square[j] * np.float32(adam.square_correction)) + np.float32(1e-6)
            line[j] -= np.float32(adam.rate * adam.mean_correction) * mean[j] / root
