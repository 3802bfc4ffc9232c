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


class Pairs(NamedTuple):
    """What all classes share of the pairs."""

    rows: np.ndarray  # (n_pairs,) int64: row of X
    weights: np.ndarray  # (n_pairs,) float32
    shift: np.ndarray  # (n_pairs,) float32: added to the score of the own class
    n_slots: int  # candidates of each pair, its own class first


class Listing(NamedTuple):
    """The pairs that list each of some classes, as they are when the call begins."""

    starts: np.ndarray  # (n_listed + 1,) int64: where the entries of each class begin
    entries: np.ndarray  # int64: pair * n_slots + slot
    scores: np.ndarray  # float32: of the class, for each entry
    log_partition: np.ndarray  # float32: log of the summed mass of all candidates of the pair


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
def train_classes(X, squares, pairs, listing, weights, biases, options, classes, round_number):
    """Train some classes in turn: their weights, biases and scores change.

    Parameters
    ----------
    X, squares : (n_rows, n_features), (n_rows,)
        Rows and their square lengths.
    pairs : Pairs
    listing : Listing
    weights, biases : (n_listed, n_features), (n_listed,)
        Those of the classes; they belong to products of rows and weights, without the shift.
    classes : int64 (n_listed,)
        Their numbers, which random draws depend on.
    """
    for number in range(classes.size):
        c, begin = classes[number], listing.starts[number]
        n = listing.starts[number + 1] - begin
        if n == 0:
            continue
        rows, targets = np.empty(n, np.int64), np.zeros(n, np.float64)
        pair_weights, offsets = np.empty(n, np.float64), np.empty(n, np.float64)
        shifts = np.zeros(n, np.float32)
        for k in range(n):
            pair = listing.entries[begin + k] // pairs.n_slots
            rows[k] = pairs.rows[pair]
            pair_weights[k] = pairs.weights[pair]
            if listing.entries[begin + k] == pair * pairs.n_slots:
                targets[k], shifts[k] = 1.0, pairs.shift[pair]
            share = share_offset(listing.scores[begin + k], listing.log_partition[begin + k])
            offsets[k] = shifts[k] - share
        w = weights[number]
        biases[number] = _pass_pairs(
            X, rows, targets, pair_weights, offsets, squares, w, np.float64(biases[number]), options, c,
            round_number,
        )  # fmt: skip
        for k in range(n):
            listing.scores[begin + k] = _dot(X[rows[k]], w) + biases[number] + shifts[k]
