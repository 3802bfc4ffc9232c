"""One-vs-plausible classification: each class against the rows for which it is plausible.

For class c with rows P_c of its own and rows N_c that another model finds it plausible for, the weights are

    argmin_w  lambda/2 |w|^2 + sum_{i in P_c} v_i log(1 + exp(-s_i)) + sum_{i in N_c} v_i log(1 + exp(s_i))

with ``s_i = o_i + w.x_i``.  The offset o_i is the same negative number for all rows of a class: it stands
for all rows that are not listed, which need no loss because their scores stay near it.  Where every row is
listed, the bias of a class is learnt as the weight of a constant feature.  A correction of given scores has
their log-odds as offsets.  With a margin, for the order of several labels, the losses are
``max(0, 1 - s_i)^2`` and ``max(0, 1 + s_i)^2``, and o_i is -1: a row that shares nothing with the class has
no loss.  The dual has one variable for each listed row, and is solved by coordinate descent; rows whose
variable hardly moves are left out of most passes.

Classes are independent, so that threads may share them in any way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.sparse_dual import solve_dual, solve_margin, swap_random

_SKIP = 0.1  # of the tolerance: a row whose variable, per unit of weight, changes less misses some passes
_FULL = 4  # every so many passes, all rows take part


class Listing(NamedTuple):
    """The rows of some classes: n pairs of their own, and m that they are plausible for."""

    own_starts: np.ndarray  # (n_classes + 1,) int64
    own_rows: np.ndarray  # (n,) int64
    own_weights: np.ndarray  # (n,) float32
    own_offsets: np.ndarray  # (n,) float32; empty where the bias of the class is the offset
    own_duals: np.ndarray  # (n,) float32: dual variables of an earlier fit, replaced by those found
    starts: np.ndarray  # (n_classes + 1,) int64
    rows: np.ndarray  # (m,) int64
    offsets: np.ndarray  # (m,) float32, or empty
    duals: np.ndarray  # (m,) float32


class Problem(NamedTuple):
    """What all classes share."""

    rows: tuple  # CSRRows
    squares: np.ndarray  # (n_rows,) float64: |x|^2
    row_weights: np.ndarray  # (n_rows,) float32
    mean: np.ndarray  # (n_features,) float32: of each feature where it is not zero


class Options(NamedTuple):
    """Numbers of the solver."""

    regularization: float
    bias_feature: float  # value of the constant feature; zero for no bias
    passes: int
    tolerance: float
    prune: float  # mean contribution to a score below which a weight is dropped
    seed: int
    has_margin: bool  # squared hinge in place of the logistic loss


class Local(NamedTuple):
    """Working memory of one class: n rows with e entries and m features."""

    order: np.ndarray  # (n,) int64
    lines: np.ndarray  # (n,) int64: rows of X
    begins: np.ndarray  # (n,) int64: where the entries of each row begin ...
    ends: np.ndarray  # (n,) int64: ... and end
    places: np.ndarray  # (e,) int32: places of features among those of the class
    values: np.ndarray  # (e,) float32
    features: np.ndarray  # (m,) int32
    w: np.ndarray  # (m + 1,) float32: weights, and that of the constant feature
    duals: np.ndarray  # (n,) float32
    offsets: np.ndarray  # (n,) float32
    weights: np.ndarray  # (n,) float32


@helper
def _gather(problem, listing, c, bias, inverse, constant, place, local):
    """Copy the rows of one class, with features numbered as they come; return rows, own rows, features."""
    rows = problem.rows
    n_own = listing.own_starts[c + 1] - listing.own_starts[c]
    n = n_own + listing.starts[c + 1] - listing.starts[c]
    end, n_features = 0, 0
    for k in range(n):
        if k < n_own:
            pair = listing.own_starts[c] + k
            r = listing.own_rows[pair]
            local.weights[k] = listing.own_weights[pair]
            local.offsets[k] = listing.own_offsets[pair] if listing.own_offsets.size > 0 else bias
            local.duals[k] = listing.own_duals[pair]
        else:
            entry = listing.starts[c] + k - n_own
            r = listing.rows[entry]
            local.weights[k] = problem.row_weights[r]
            local.offsets[k] = listing.offsets[entry] if listing.offsets.size > 0 else bias
            local.duals[k] = listing.duals[entry]
        local.lines[k] = r
        local.begins[k] = end
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f = rows.indices[p]
            if place[f] < 0:
                place[f] = n_features
                local.features[n_features] = f
                local.w[n_features] = np.float32(0.0)
                n_features += 1
            local.places[end] = place[f]
            local.values[end] = rows.data[p]
            end += 1
        local.ends[k] = end
        local.order[k] = k
    for j in range(n_features):
        place[local.features[j]] = -1
    local.w[n_features] = np.float32(0.0)
    for k in range(n):
        if local.duals[k] != 0.0:
            step = np.float32(local.duals[k] * inverse)
            local.w[n_features] += step * constant
            for p in range(local.begins[k], local.ends[k]):
                local.w[local.places[p]] += step * local.values[p]
    return n, n_own, n_features


@helper
def _keep_duals(listing, c, n, n_own, local):
    """Store the dual variables of one class."""
    for k in range(n):
        if k < n_own:
            listing.own_duals[listing.own_starts[c] + k] = local.duals[k]
        else:
            listing.duals[listing.starts[c] + k - n_own] = local.duals[k]


@helper
def _solve(squares, options, c, n, n_own, last, local):
    """Run passes over the rows of one class; the last weight is that of the constant feature."""
    w, values, places = local.w, local.values, local.places
    inverse = 1.0 / options.regularization
    constant = np.float32(options.bias_feature)
    skipped = _SKIP * options.tolerance
    # the score up to which the variable of another row surely stays near zero
    far = -np.inf if constant != 0.0 else -1.0 if options.has_margin else math.log(skipped)
    n_active = n
    for number in range(options.passes):
        is_full = number % _FULL == 0
        if is_full:
            n_active = n
        seed = np.uint64(options.seed) ^ np.uint64(number << 20)
        # own rows come first of all: what they teach tells which others matter
        shuffled = n_active if number > 0 or constant != 0.0 else n_own
        for k in range(shuffled - 1, 0, -1):
            swap_random(local.order, k, seed, c)
        largest, k = 0.0, 0
        while k < n_active:
            i = local.order[k]
            score = constant * w[last]
            for p in range(local.begins[i], local.ends[i]):
                score += values[p] * w[np.uint32(places[p])]  # unsigned: no look for indices from the end
            target = 1.0 if i < n_own else 0.0
            weight, old = np.float64(local.weights[i]), np.float64(local.duals[i])
            q = (squares[local.lines[i]] + constant * constant) * inverse
            total = np.float64(score + local.offsets[i])
            if i >= n_own and old == 0.0 and total < far:
                new = 0.0
            elif options.has_margin:
                new = solve_margin(target, weight, total, old, q)
            else:
                new = solve_dual(target, weight, total, old, q)
            change = abs(new - old)
            largest = change if change > largest else largest
            # a bias is learnt from many rows that each say little
            if change <= skipped * weight and (number > 0 or constant == 0.0):
                n_active -= 1
                local.order[k] = local.order[n_active]
                local.order[n_active] = i
                continue
            k += 1
            step = np.float32((new - old) * inverse)
            if step != 0.0:
                local.duals[i] = new
                w[last] += step * constant
                for p in range(local.begins[i], local.ends[i]):
                    w[np.uint32(places[p])] += step * values[p]
        if is_full and largest <= options.tolerance:
            break


@njit
def fit_classes(problem, listing, options, first, place, local, ends, features, values, biases):
    """Fit classes from `first` on; the weights of the c-th end at ``ends[c + 1]`` of features and values.

    ``biases[c]`` is its bias; what is learnt of it is added. `place` (n_features,) int32 is -1 before and
    after; `local` is scratch.
    """
    ends[0] = 0
    for c in range(biases.size):
        at = ends[c]
        if listing.own_starts[c + 1] > listing.own_starts[c]:
            inverse, constant = 1.0 / options.regularization, np.float32(options.bias_feature)
            n, n_own, n_features = _gather(problem, listing, c, biases[c], inverse, constant, place, local)
            _solve(problem.squares, options, first + c, n, n_own, n_features, local)
            _keep_duals(listing, c, n, n_own, local)
            biases[c] += np.float32(options.bias_feature) * local.w[n_features]
            for j in range(n_features):
                if abs(local.w[j]) * problem.mean[local.features[j]] >= options.prune:
                    features[at] = local.features[j]
                    values[at] = local.w[j]
                    at += 1
        ends[c + 1] = at
