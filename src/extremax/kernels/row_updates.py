"""Score the (row, class) pairs of a minibatch and apply their updates: the inner loops of row training.

A minibatch is a list of rows of X and a table ``labels`` (n, 1 + m): the positive class of each row and its m
negatives.  Phase one computes scores x . w_y + b_y from frozen weights; any thread may take any rows.  Phase
two changes weights: thread ``part`` of ``n_parts`` owns the classes with ``label % n_parts == part`` and goes
through the pairs in order, so that each class gets the same updates in the same order whatever the number of
threads.

An objective provides ``coefficients`` c = d loss / d score: the gradient of w_y is c x, of b_y it is c.
Memory bandwidth is the limit: a pair moves one row of X, one of the weights and one of the accumulators, and
the next rows are prefetched during the work on one.  ``scale`` is the model's feature scale: rows of X are
used as scale * x without a copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import inline, njit
from extremax.kernels.math import rsqrt32
from extremax.kernels.simd import CACHE_LINE, prefetch, prefetch_row

_AHEAD = 2  # pairs to prefetch ahead
# weights between two prefetches: all lines of a row at once would fill the queue of the memory unit
_CHUNK = 64


class CSRRows(NamedTuple):
    """A CSR matrix as the kernels take it."""

    data: NDArray[np.float32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]


class ModelArrays(NamedTuple):
    """The arrays that training changes, for C classes and K features."""

    weights: NDArray[np.float32]  # (C, K)
    biases: NDArray[np.float32]  # (C,)
    squares: NDArray[np.float32]  # (C, K), (C, 1) or (C, 0): sums of squared gradients of Adagrad
    bias_squares: NDArray[np.float32]  # (C,)


@njit
def score_dense(X, rows, labels, weights, biases, scale, scores, start, stop):
    """Fill ``scores[i, j] = scale * X[rows[i]] . w + b`` for i in [start, stop), class labels[i, j]."""
    width = labels.shape[1]
    for i in range(start, stop):
        x = X[rows[i]]
        if i + 1 < stop:
            prefetch_row(X, rows[i + 1])
        for j in range(width):
            if j + _AHEAD < width:
                prefetch_row(weights, labels[i, j + _AHEAD])
            elif i + 1 < stop and j + _AHEAD - width < width:
                prefetch_row(weights, labels[i + 1, j + _AHEAD - width])
            w = weights[labels[i, j]]
            total = np.float32(0.0)
            for k in range(x.shape[0]):
                total += x[k] * w[k]
            scores[i, j] = scale * total + biases[labels[i, j]]


@njit
def score_csr(X, rows, labels, weights, biases, scale, scores, start, stop):
    """Do the same for sparse rows; only the stored columns are read."""
    for i in range(start, stop):
        first, last = X.indptr[rows[i]], X.indptr[rows[i] + 1]
        for j in range(labels.shape[1]):
            w = weights[labels[i, j]]
            total = np.float32(0.0)
            for p in range(first, last):
                total += X.data[p] * w[X.indices[p]]
            scores[i, j] = scale * total + biases[labels[i, j]]


@njit
def _owned_pairs(labels, coefficients, part, n_parts, owned):
    """List flat indices of the pairs whose class belongs to `part`, in order; return how many.

    Pairs of coefficient 0 change nothing and are left out.
    """
    width = labels.shape[1]
    count = 0
    for i in range(labels.shape[0]):
        for j in range(width):
            if labels[i, j] % n_parts == part and coefficients[i, j] != 0.0:
                owned[count] = i * width + j
                count += 1
    return count


@inline
def _adagrad_bias(model, label, c, learning_rate):
    model.bias_squares[label] += c * c
    model.biases[label] -= learning_rate * c * rsqrt32(model.bias_squares[label])


@inline
def _adagrad(x, w, a, c, learning_rate):
    for k in range(x.shape[0]):
        g = c * x[k]
        s = a[k] + g * g
        a[k] = s
        w[k] -= learning_rate * g * rsqrt32(s)


@njit
def adagrad_dense(X, rows, labels, coefficients, model, scale, learning_rate, part, n_parts):
    """Apply Adagrad with one accumulator per weight: a += g^2; w -= learning_rate * g / sqrt(a)."""
    width = labels.shape[1]
    owned = np.empty(labels.size, np.int32)
    count = _owned_pairs(labels, coefficients, part, n_parts, owned)
    for q in range(count):
        ahead = owned[min(q + _AHEAD, count - 1)]
        next_row, next_label = rows[ahead // width], labels[ahead // width, ahead % width]
        i, j = owned[q] // width, owned[q] % width
        row, label, c = rows[i], labels[i, j], coefficients[i, j]
        _adagrad_bias(model, label, c, learning_rate)
        c *= scale
        for first in range(0, X.shape[1], _CHUNK):
            last = min(first + _CHUNK, X.shape[1])
            for line in range(first, last, CACHE_LINE):
                prefetch(model.weights, next_label, line)
                prefetch(model.squares, next_label, line)
                prefetch(X, next_row, line)
            _adagrad(
                X[row, first:last],
                model.weights[label, first:last],
                model.squares[label, first:last],
                c,
                learning_rate,
            )


@njit
def adagrad_csr(X, rows, labels, coefficients, model, scale, learning_rate, part, n_parts):
    """Do the same for sparse rows; only the stored columns are changed."""
    width = labels.shape[1]
    owned = np.empty(labels.size, np.int32)
    count = _owned_pairs(labels, coefficients, part, n_parts, owned)
    for q in range(count):
        i, j = owned[q] // width, owned[q] % width
        label = labels[i, j]
        c = coefficients[i, j]
        _adagrad_bias(model, label, c, learning_rate)
        c *= scale
        w, a = model.weights[label], model.squares[label]
        for p in range(X.indptr[rows[i]], X.indptr[rows[i] + 1]):
            k = X.indices[p]
            g = c * X.data[p]
            a[k] += g * g
            w[k] -= learning_rate * g * rsqrt32(a[k])


@inline
def _row_step(model, label, c, scale, norm, learning_rate):
    """Update the bias and return the length of the step along x.

    Plain SGD where there is no accumulator, else Adagrad with the mean of g^2 over the row.
    """
    if model.squares.shape[1] == 0:
        model.biases[label] -= learning_rate * c
        return learning_rate * c * scale
    _adagrad_bias(model, label, c, learning_rate)
    c *= scale
    model.squares[label, 0] += c * c * norm / np.float32(model.weights.shape[1])
    return learning_rate * c * rsqrt32(model.squares[label, 0])


@njit
def along_row_dense(X, rows, labels, coefficients, model, scale, learning_rate, part, n_parts):
    """Apply ``w -= step * x``: Adagrad with one accumulator per class, or SGD with none."""
    width = labels.shape[1]
    owned = np.empty(labels.size, np.int32)
    count = _owned_pairs(labels, coefficients, part, n_parts, owned)
    for q in range(count):
        if q + _AHEAD < count:
            i = owned[q + _AHEAD] // width
            prefetch_row(model.weights, labels[i, owned[q + _AHEAD] % width])
            prefetch_row(X, rows[i])
        i, j = owned[q] // width, owned[q] % width
        label = labels[i, j]
        x, w = X[rows[i]], model.weights[label]
        norm = np.float32(0.0)
        for k in range(x.shape[0]):
            norm += x[k] * x[k]
        step = _row_step(model, label, coefficients[i, j], scale, norm, learning_rate)
        for k in range(x.shape[0]):
            w[k] -= step * x[k]


@njit
def along_row_csr(X, rows, labels, coefficients, model, scale, learning_rate, part, n_parts):
    """Do the same for sparse rows; only the stored columns are changed."""
    width = labels.shape[1]
    owned = np.empty(labels.size, np.int32)
    count = _owned_pairs(labels, coefficients, part, n_parts, owned)
    for q in range(count):
        i, j = owned[q] // width, owned[q] % width
        label = labels[i, j]
        first, last = X.indptr[rows[i]], X.indptr[rows[i] + 1]
        norm = np.float32(0.0)
        for p in range(first, last):
            norm += X.data[p] * X.data[p]
        step = _row_step(model, label, coefficients[i, j], scale, norm, learning_rate)
        w = model.weights[label]
        for p in range(first, last):
            w[X.indices[p]] -= step * X.data[p]
