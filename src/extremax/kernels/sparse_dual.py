"""Dual coordinate ascent for one class at a time: the correction of the start, and one-vs-rest SVMs.

**Correction.**  Pair i (a row and its class) has candidates: its own class in slot 0 and hard negatives, with
fixed offsets o_ij, and a constant mass of all other classes.  With the scores of other classes frozen, class
c sees a binary logistic regression over the pairs that list it, with offset ``o_ij - log Z_i``, where Z_i
sums over all candidates but c.  Its L2-regularised dual has one variable per pair, beta = w (t - p), and

    w_c = (1 / lambda) sum_i beta_i x_i        (on the features of the class's support)

A step solves ``beta = weight * (t - sigmoid(score + (beta - beta_old) q))`` with ``q = |x|^2 / lambda``.

**SVM.**  The L2-loss SVM of one class against all others, as in LIBLINEAR: alpha >= 0 for every row,
``w = sum_i t_i alpha_i x_i``, and rows on the right side of the margin leave the active set for a while.

Classes are independent within a call, so that threads may share them in any way.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.rng import draw_key

_MAX_NEWTON, _SMALL_NEWTON = 20, 1e-3
_ZERO = np.float32(0.0)
_MIN_STEP = 1e-5  # change of a dual variable below which nothing is updated


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


class Support(NamedTuple):
    """Features on which each class may have a weight, and the weights."""

    starts: np.ndarray  # (n_classes + 1,) int64
    features: np.ndarray  # int32, ascending within a class
    values: np.ndarray  # float32
    biases: np.ndarray  # (n_classes,) float32: the weight of the constant feature times its value


class DualState(NamedTuple):
    """What a round changes beside the weights."""

    scores: np.ndarray  # (n_pairs, n_slots) float32
    duals: np.ndarray  # (n_pairs, n_slots) float32
    log_partition: np.ndarray  # (n_pairs,) float32


class Local(NamedTuple):
    """Working memory of one class: n pairs with e entries, m features."""

    chosen: np.ndarray  # (n,) int64: pair * n_slots + slot
    order: np.ndarray  # (n,) int64
    ends: np.ndarray  # (n + 1,) int64: where the entries of each pair begin
    places: np.ndarray  # (e,) int32: places of features among those of the class ...
    values: np.ndarray  # (e,) float32: ... and their values
    offsets: np.ndarray  # (n,) float64
    q: np.ndarray  # (n,) float64
    w: np.ndarray  # (m + 1,) float32: weights and bias


class DualOptions(NamedTuple):
    """Numbers of the solver."""

    regularization: float
    bias_feature: float  # value of the constant feature: the bias is regularised like a weight
    passes: int
    max_negatives: int  # negative pairs of a class that are trained on
    seed: int


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


@njit
def wide_support(rows, candidates, listed, min_pairs, seen, starts, features, first, last):
    """Count or fill the features of each class of a range: of its own rows, and of enough competing ones.

    `seen` (n_features,) int32 is zero before and after. With empty `features`, the number of features of
    class c goes to ``starts[c + 1]``; else they are written from ``starts[c]`` on, in no order.
    """
    n_slots = candidates.classes.shape[1]
    for c in range(first, last):
        for a in range(listed.starts[c], listed.starts[c + 1]):
            pair = listed.entries[a] // n_slots
            count = min_pairs if listed.entries[a] == pair * n_slots else 1
            r = candidates.rows[pair]
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                seen[rows.indices[p]] += count
        kept = 0
        for a in range(listed.starts[c], listed.starts[c + 1]):
            r = candidates.rows[listed.entries[a] // n_slots]
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                f = rows.indices[p]
                if seen[f] >= min_pairs:
                    if features.size > 0:
                        features[starts[c] + kept] = f
                    kept += 1
                seen[f] = 0
        if features.size == 0:
            starts[c + 1] = kept


@helper
def solve_dual(target, weight, score, old, q):
    """Return the dual variable that maximises the dual along one coordinate.

    Newton steps; where one leaves the interval that holds the solution, as for long rows, the interval is
    halved.
    """
    low, high = weight * (target - 1.0), weight * target
    new = low if old < low else high if old > high else old
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
        if not low <= new - step <= high:
            step = new - 0.5 * (low + high)
        new -= step
        if abs(step) < _SMALL_NEWTON * weight:  # the error is about its square
            break
    return new


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


@helper
def _gather_class(rows, candidates, listed, state, options, c, place, local):
    """Copy what one class is trained on; return the number of pairs.

    These are all positive pairs and at most about `max_negatives` others, drawn at random.
    """
    n_slots = candidates.classes.shape[1]
    start, stop = listed.starts[c], listed.starts[c + 1]
    n_negative = 0
    for a in range(start, stop):
        if listed.entries[a] % n_slots != 0:
            n_negative += 1
    keep = 1.0 if n_negative <= options.max_negatives else options.max_negatives / n_negative
    limit = np.uint64(keep * 4294967295.0)
    n, end = 0, 0
    local.ends[0] = 0
    for a in range(start, stop):
        entry = listed.entries[a]
        pair = entry // n_slots
        j = entry - pair * n_slots
        if keep < 1.0 and j != 0 and (draw_key(7, c, entry) >> np.uint64(32)) > limit:
            continue
        r = candidates.rows[pair]
        square = options.bias_feature * options.bias_feature
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            at = place[rows.indices[p]]
            if at >= 0:
                local.places[end] = at
                local.values[end] = rows.data[p]
                square += rows.data[p] * rows.data[p]
                end += 1
        local.chosen[n] = entry
        local.ends[n + 1] = end
        local.q[n] = square / options.regularization
        local.offsets[n] = candidates.offsets[pair, j] - share_offset(
            state.scores[pair, j], state.log_partition[pair]
        )
        n += 1
    return n


@helper
def _pass_class(candidates, state, options, c, round_number, local, n, last):
    """Run passes over the chosen pairs of one class; the last weight is the bias."""
    n_slots = candidates.classes.shape[1]
    ends, places, values, w = local.ends, local.places, local.values, local.w
    bias_square = np.float32(options.bias_feature * options.bias_feature)
    inverse = 1.0 / options.regularization
    for k in range(n):
        local.order[k] = k
    for number in range(options.passes):
        seed = np.uint64(options.seed) ^ np.uint64((round_number * options.passes + number) << 20)
        for k in range(n - 1, 0, -1):
            swap_random(local.order, k, seed, c)
        for at in range(n):
            k = local.order[at]
            pair = local.chosen[k] // n_slots
            j = local.chosen[k] - pair * n_slots
            begin, end = ends[k], ends[k + 1]
            score = local.offsets[k] + w[last]
            for p in range(begin, end):
                score += values[p] * w[places[p]]
            target = 1.0 if j == 0 else 0.0
            old = np.float64(state.duals[pair, j])
            new = solve_dual(target, np.float64(candidates.weights[pair]), score, old, local.q[k])
            change = new - old
            if abs(change) < _MIN_STEP:
                continue
            state.duals[pair, j] = new
            step = np.float32(change * inverse)
            w[last] += step * bias_square
            for p in range(begin, end):
                w[places[p]] += step * values[p]


@njit
def correct_classes(rows, candidates, listed, support, state, options, classes, place, local, round_number):
    """Run one round for some classes, whose weights, scores and dual variables change.

    `place` (n_features,) int32 is -1 before and after; `local` is scratch.
    """
    n_slots = candidates.classes.shape[1]
    for number in range(classes.size):
        c = classes[number]
        low, size = support.starts[c], support.starts[c + 1] - support.starts[c]
        if listed.starts[c + 1] == listed.starts[c]:
            continue
        for p in range(size):
            local.w[p] = support.values[low + p]
            place[support.features[low + p]] = p
        local.w[size] = support.biases[c]
        n = _gather_class(rows, candidates, listed, state, options, c, place, local)
        _pass_class(candidates, state, options, c, round_number, local, n, size)
        support.biases[c] = local.w[size]
        for a in range(listed.starts[c], listed.starts[c + 1]):
            pair = listed.entries[a] // n_slots
            j = listed.entries[a] - pair * n_slots
            r = candidates.rows[pair]
            total = np.float32(0.0)
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                at = place[rows.indices[p]]
                if at >= 0:
                    total += rows.data[p] * local.w[at]
            state.scores[pair, j] = candidates.offsets[pair, j] + local.w[size] + total
        for p in range(size):
            support.values[low + p] = local.w[p]
            place[support.features[low + p]] = -1


class SVMOptions(NamedTuple):
    """Numbers of the SVM solver."""

    cost: float
    bias_feature: float
    max_passes: int
    tolerance: float
    seed: int


class SVMData(NamedTuple):
    """Rows, the rows of each class, and the cost of each row."""

    rows: tuple  # CSRRows
    squares: np.ndarray  # (n_rows,) float64: |x|^2
    starts: np.ndarray  # (n_classes + 1,) int64
    members: np.ndarray  # rows of each class, int64
    weights: np.ndarray  # (n_rows,) float32; zero for rows that do not count


@njit
def fit_svm(data, c, options, w, alpha, active, positive, first_pass):
    """Fit one class against all others; the last of `w` (n_features + 1,) float32 is the bias.

    With a `first_pass` of zero, `w` is zero on entry; else it goes on from `w` and `alpha` (n_rows,) float32,
    with rows whose `alpha` is zero if they did not count before. `active` (n_rows,) int32 and `positive`
    (n_rows,) uint8 are scratch; `positive` is zero before and after.
    """
    rows, n, last = data.rows, data.squares.size, w.size - 1
    for a in range(data.starts[c], data.starts[c + 1]):
        positive[data.members[a]] = 1
    n_active = 0
    for i in range(n):
        if first_pass == 0:
            alpha[i] = np.float32(0.0)
        if data.weights[i] > 0.0:
            active[n_active] = i
            n_active += 1
    bias = np.float32(options.bias_feature)
    n_all = n_active
    for number in range(first_pass, options.max_passes):
        # Two passes over all rows, then three over those near or beyond the margin, in turn.
        is_full = number < 2 or number % 4 == 1
        if is_full:
            n_active = n_all
        largest, smallest = 0.0, 0.0
        seed = np.uint64(options.seed) ^ np.uint64(number << 20)
        for k in range(n_active - 1, 0, -1):
            swap_random(active, k, seed, c)
        k = 0
        while k < n_active:
            i = active[k]
            begin, end = rows.indptr[i], rows.indptr[i + 1]
            score = np.float32(0.0)
            for p in range(begin, end):
                score += rows.data[p] * w[rows.indices[p]]
            score += bias * w[last]
            sign = np.float32(1.0) if positive[i] == 1 else np.float32(-1.0)
            diagonal = 0.5 / (options.cost * data.weights[i])
            gradient = sign * score - 1.0 + alpha[i] * diagonal
            if alpha[i] == 0.0 and gradient >= 0.0:
                if number > 0:  # on the right side: leave the active set until the next full pass
                    n_active -= 1
                    active[k] = active[n_active]
                    active[n_active] = i
                else:
                    k += 1
                continue
            largest = gradient if gradient > largest else largest
            smallest = gradient if gradient < smallest else smallest
            if abs(gradient) > 1e-6:
                old = alpha[i]
                square = data.squares[i] + bias * bias + diagonal
                new = old - np.float32(gradient / square)
                alpha[i] = new if new > _ZERO else _ZERO
                step = (alpha[i] - old) * sign
                w[last] += step * bias
                for p in range(begin, end):
                    w[rows.indices[p]] += step * rows.data[p]
            k += 1
        if is_full and largest - smallest <= options.tolerance:
            break
    for a in range(data.starts[c], data.starts[c + 1]):
        positive[data.members[a]] = 0
