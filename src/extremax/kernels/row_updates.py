"""Score the (row, class) pairs of a minibatch and apply their updates: the inner loops of row training.

A minibatch is a list of rows of X and a table ``labels`` (n, 1 + m): the positive class of each row and its m
negatives.  Phase one computes scores x . w_y + b_y from frozen weights; any thread may take any rows.  Phase
two changes weights: part ``part`` of ``n_parts`` owns the classes with ``label % n_parts == part`` and goes
through the pairs in order, so that each class gets the same updates in the same order whatever the number of
threads.

An objective provides ``coefficients`` c = d loss / d score: the gradient of w_y is c x, of b_y it is c.
``scale`` is the model's feature scale: rows of X are used as scale * x without a copy.  Rows are `ArrayRows`
or `CSRRows`, of which only the stored columns are read and changed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import by_class, inline, njit
from extremax.kernels.math import rsqrt32


class CSRRows(NamedTuple):
    """A CSR matrix as the kernels take it."""

    data: NDArray[np.float32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]


class ArrayRows(NamedTuple):
    """An array (n_rows, n_features) as the kernels take it."""

    values: NDArray[np.float32]


class ModelArrays(NamedTuple):
    """The arrays that training changes, for C classes and K features."""

    weights: NDArray[np.float32]  # (C, K)
    biases: NDArray[np.float32]  # (C,)
    squares: NDArray[np.float32]  # (C, K), (C, 1) or (C, 0): sums of squared gradients of Adagrad
    bias_squares: NDArray[np.float32]  # (C,)


@inline
def _csr_range(X, row):
    return X.indptr[row], X.indptr[row + 1]


@inline
def _array_range(X, row):
    return 0, X.values.shape[1]


@inline
def _csr_entry(X, row, place):
    return X.indices[place], X.data[place]


@inline
def _array_entry(X, row, place):
    return place, X.values[row, place]


# Places of the entries of a row, and column and value of the entry at a place.
row_range = by_class({ArrayRows: _array_range, CSRRows: _csr_range})
row_entry = by_class({ArrayRows: _array_entry, CSRRows: _csr_entry})


@njit
def score_pairs(X, rows, labels, weights, biases, scale, scores, start, stop):
    """Fill ``scores[i, j] = scale * X[rows[i]] . w + b`` for i in [start, stop), class labels[i, j]."""
    for i in range(start, stop):
        first, last = row_range(X, rows[i])
        for j in range(labels.shape[1]):
            w = weights[labels[i, j]]
            total = np.float32(0.0)
            for p in range(first, last):
                k, x = row_entry(X, rows[i], p)
                total += x * w[k]
            scores[i, j] = scale * total + biases[labels[i, j]]


@inline
def _adagrad_bias(model, label, c, learning_rate):
    model.bias_squares[label] += c * c
    model.biases[label] -= learning_rate * c * rsqrt32(model.bias_squares[label])


@njit
def update_pairs(X, rows, labels, coefficients, model, scale, learning_rate, start, stop, part, n_parts):
    """Update the classes of a part by the rows [start, stop); the shape of ``model.squares`` says how.

    Adagrad with an accumulator per weight: a += g^2; w -= learning_rate * g / sqrt(a).  With one per class,
    its a is a sum of means of g^2 over the row; with none, SGD.
    """
    n_sums, n_features = model.squares.shape[1], np.float32(model.weights.shape[1])
    for i in range(start, stop):
        first, last = row_range(X, rows[i])
        for j in range(labels.shape[1]):
            label, c = labels[i, j], coefficients[i, j]
            if label % n_parts != part or c == 0.0:
                continue
            w = model.weights[label]
            if n_sums == 0:
                model.biases[label] -= learning_rate * c
            else:
                _adagrad_bias(model, label, c, learning_rate)
            c *= scale
            if n_sums == model.weights.shape[1]:
                a = model.squares[label]
                for p in range(first, last):
                    k, x = row_entry(X, rows[i], p)
                    g = c * x
                    square = a[k] + g * g
                    a[k] = square
                    w[k] -= learning_rate * g * rsqrt32(square)
                continue
            step = learning_rate * c
            if n_sums == 1:
                norm = np.float32(0.0)
                for p in range(first, last):
                    _, x = row_entry(X, rows[i], p)
                    norm += x * x
                model.squares[label, 0] += c * c * norm / n_features
                step *= rsqrt32(model.squares[label, 0])
            for p in range(first, last):
                k, x = row_entry(X, rows[i], p)
                w[k] -= step * x
