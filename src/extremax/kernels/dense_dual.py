"""Weights of one class after the other, by dual coordinate ascent over the pairs that list the class.

Pair i has candidates: its own class and the classes of the highest scores.  With the weights of all other
classes frozen, class c sees a binary logistic regression over the pairs that list it,

    p_i = sigmoid(s_ic - log of the mass of all other classes of pair i),

regularised by ``lambda / 2 |w - w_old|^2``.  Its dual has one variable per pair, beta = weight (t - p), and

    w = w_old + (1 / lambda) sum_i beta_i x_i.

Classes are independent within a call, so that threads may share them in any way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.sparse_dual import share_offset, solve_dual, swap_random


class DenseOptions(NamedTuple):
    """Numbers of the solver."""

    regularization: float
    bias_feature: float  # value of the constant feature: the bias is regularised like a weight
    passes: int
    small_dual: float  # negatives below it, times their weight, are left out of the later passes
    seed: int


@helper
def _dot(x, w):
    total = np.float32(0.0)
    for k in range(x.size):
        total += x[k] * w[k]
    return total


@helper
def _pass_pairs(X, rows, targets, weights, offsets, squares, w, bias, options, c, round_number):
    """Run passes over the pairs of one class; `w` changes, the new bias is returned."""
    n = rows.size
    inverse, bias_square = 1.0 / options.regularization, options.bias_feature * options.bias_feature
    duals = np.zeros(n, np.float64)
    active = np.arange(n)
    n_active = n
    for number in range(options.passes):
        seed = np.uint64(options.seed) ^ np.uint64((round_number * options.passes + number) << 20)
        for k in range(n_active - 1, 0, -1):
            swap_random(active, k, seed, c)
        kept = 0
        for at in range(n_active):
            k = active[at]
            x = X[rows[k]]
            score = np.float64(_dot(x, w)) + bias + offsets[k]
            q = (squares[rows[k]] + bias_square) * inverse
            new = solve_dual(targets[k], weights[k], score, duals[k], q)
            change = new - duals[k]
            if targets[k] > 0.0 or abs(new) > options.small_dual * weights[k]:
                active[kept] = k  # never ahead of `at`
                kept += 1
            if abs(change) < 1e-5 * weights[k]:
                continue
            duals[k] = new
            step = np.float32(change * inverse)
            bias += change * inverse * bias_square
            for f in range(w.size):
                w[f] += step * x[f]
        n_active = kept
    return bias


@njit
def train_classes(
    X, squares, candidates, listed, scores, log_partition, weights, biases, options, classes, round_number
):
    """Train some classes in turn: their weights, biases and scores change.

    Parameters
    ----------
    X, squares : (n_rows, n_features), (n_rows,)
        Rows and their square lengths.
    candidates : Candidates
        Offsets are added to the products of rows and weights.
    listed : Listed
    scores, log_partition : (n_pairs, n_slots), (n_pairs,)
        Scores of the candidates, and the log of their summed mass when the call begins.
    weights, biases : (n_classes, n_features), (n_classes,)
    """
    n_slots = candidates.classes.shape[1]
    for number in range(classes.size):
        c = classes[number]
        begin, n = listed.starts[c], listed.starts[c + 1] - listed.starts[c]
        if n == 0:
            continue
        rows, targets = np.empty(n, np.int64), np.zeros(n, np.float64)
        pair_weights, offsets = np.empty(n, np.float64), np.empty(n, np.float64)
        for k in range(n):
            pair = listed.entries[begin + k] // n_slots
            j = listed.entries[begin + k] - pair * n_slots
            rows[k] = candidates.rows[pair]
            pair_weights[k] = candidates.weights[pair]
            targets[k] = 1.0 if j == 0 else 0.0
            offsets[k] = candidates.offsets[pair, j] - share_offset(scores[pair, j], log_partition[pair])
        w = weights[c]
        biases[c] = _pass_pairs(
            X, rows, targets, pair_weights, offsets, squares, w, np.float64(biases[c]), options, c,
            round_number,
        )  # fmt: skip
        for k in range(n):
            pair = listed.entries[begin + k] // n_slots
            j = listed.entries[begin + k] - pair * n_slots
            scores[pair, j] = _dot(X[rows[k]], w) + biases[c] + candidates.offsets[pair, j]
