"""Dual coordinate ascent for one class at a time: candidates of pairs, and the step of one variable.

Pair i (a row and its class) has candidates: its own class in slot 0 and hard negatives, with fixed offsets
o_ij, and a constant mass of all other classes.  With the scores of other classes frozen, class c sees a
binary logistic regression over the pairs that list it, with offset ``o_ij - log Z_i``, where Z_i sums over
all candidates but c.  Its L2-regularised dual has one variable per pair, beta = w (t - p), and

    w_c = (1 / lambda) sum_i beta_i x_i

A step solves ``beta = weight * (t - sigmoid(score + (beta - beta_old) q))`` with ``q = |x|^2 / lambda``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.rng import draw_key

_MAX_NEWTON, _SMALL_NEWTON = 20, 1e-3
_ZERO = np.float32(0.0)


class Candidates(NamedTuple):
    """Classes that compete for each pair; slot 0 is its own class, -1 stands for none."""

    classes: np.ndarray  # (n_pairs, n_slots) int32
    offsets: np.ndarray  # (n_pairs, n_slots) float32: scores of the start
    log_rest: np.ndarray  # (n_pairs,) float32: log of the mass of all other classes
    rows: np.ndarray  # (n_pairs,) int64: row of X
    weights: np.ndarray  # (n_pairs,) float32


class Listed(NamedTuple):
    """The pairs that list each class: ``entries[starts[c] : starts[c + 1]]`` are pair * n_slots + slot."""

    starts: np.ndarray  # (n_classes + 1,) int64
    entries: np.ndarray  # int64


@njit
def list_pairs(classes, starts, entries):
    """Invert candidates: fill `starts` (zero on entry) and `entries`."""
    n_pairs, n_slots = classes.shape
    n_classes = starts.size - 1
    for i in range(n_pairs):
        for j in range(n_slots):
            if classes[i, j] >= 0:
                starts[classes[i, j] + 1] += 1
    for c in range(n_classes):
        starts[c + 1] += starts[c]
    for i in range(n_pairs):
        for j in range(n_slots):
            c = classes[i, j]
            if c >= 0:
                entries[starts[c]] = i * n_slots + j
                starts[c] += 1
    for c in range(n_classes, 0, -1):  # each is now where the next begins
        starts[c] = starts[c - 1]
    starts[0] = 0


@njit
def sum_candidates(scores, log_rest, out, first, last):
    """Fill the log of the summed exp of each pair's candidates and its constant mass."""
    for i in range(first, last):
        peak = log_rest[i]
        for j in range(scores.shape[1]):
            if scores[i, j] > peak:
                peak = scores[i, j]
        total = math.exp(log_rest[i] - peak)
        for j in range(scores.shape[1]):
            total += math.exp(scores[i, j] - peak)
        out[i] = peak + math.log(total)


@helper
def solve_dual(target, weight, score, old, q):
    """Return the dual variable that maximises the dual along one coordinate.

    Newton steps; where one leaves the interval that holds the solution, or goes most of the way back, as for
    long rows, the interval is halved.
    """
    low, high = weight * (target - 1.0), weight * target
    new = low if old < low else high if old > high else old
    last = 0.0
    for _ in range(_MAX_NEWTON):
        z = score + (new - old) * q
        z = -80.0 if z < -80.0 else 80.0 if z > 80.0 else z
        p = 1.0 / (1.0 + math.exp(-z))
        excess = new - weight * (target - p)
        if excess > 0.0:
            high = new
        else:
            low = new
        step = excess / (1.0 + weight * q * p * (1.0 - p))
        if not low <= new - step <= high or (step * last < 0.0 and abs(step) > 0.5 * abs(last)):
            step = new - 0.5 * (low + high)
        new -= step
        last = step
        if abs(step) < _SMALL_NEWTON * weight:  # the error is about its square
            break
    return new


@helper
def solve_margin(target, weight, score, old, q):
    """Return the dual variable that maximises the dual of the squared hinge along one coordinate."""
    if weight <= 0.0:
        return 0.0
    sign = 2.0 * target - 1.0
    size = sign * old
    slope = sign * score - 1.0 + 0.5 * size / weight
    size -= slope / (q + 0.5 / weight)
    return sign * size if size > 0.0 else 0.0


@inline
def swap_random(order, k, seed, c):
    """Exchange entry k of an order with one before it, for a random permutation."""
    j = np.int64(draw_key(seed, c, k) % np.uint64(k + 1))
    kept = order[k]
    order[k] = order[j]
    order[j] = kept


@helper
def share_offset(score, log_partition):
    """Return the log of the mass of all candidates of a pair but the one of this score."""
    gap = score - log_partition
    share = math.exp(gap if gap < _ZERO else _ZERO)
    rest = 1.0 - share
    return log_partition + math.log(rest if rest > 1e-7 else 1e-7)
