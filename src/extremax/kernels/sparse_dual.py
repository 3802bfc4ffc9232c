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


class DualOptions(NamedTuple):
    """Numbers of the solver."""

    regularization: float
    bias_feature: float  # value of the constant feature: the bias is regularised like a weight
    passes: int
    max_negatives: int  # negative pairs of a class that are trained on
    seed: int


@njit
def list_pairs(classes, starts, entries):
    """Invert candidates: fill `starts` (zero on entry) and, where it is large enough, `entries`."""
    n_pairs, n_slots = classes.shape
    n_classes = starts.size - 1
    for i in range(n_pairs):
        for j in range(n_slots):
            if classes[i, j] >= 0:
                starts[classes[i, j] + 1] += 1
    for c in range(n_classes):
        starts[c + 1] += starts[c]
    if entries.size < starts[n_classes]:
        return
    place = starts[:-1].copy()
    for i in range(n_pairs):
        for j in range(n_slots):
            c = classes[i, j]
            if c >= 0:
                entries[place[c]] = i * n_slots + j
                place[c] += 1


@njit
def sum_candidates(scores, log_rest, out, first, last):
    """Fill the log of the summed exp of each pair's candidates and its constant mass."""
    for i in range(first, last):
        peak = log_rest[i]
        for j in range(scores.shape[1]):
            peak = max(peak, scores[i, j])
        total = math.exp(log_rest[i] - peak)
        for j in range(scores.shape[1]):
            total += math.exp(scores[i, j] - peak)
        out[i] = peak + math.log(total)


@njit
def wide_support(rows, candidates, listed, min_pairs, seen, found, starts, features, first, last):
    """Count or fill the features of each class of a range: of its own rows, and of enough competing ones.

    `seen` (n_features,) int32 is zero before and after, `found` scratch as long. With empty `features`, the
    number of features of class c goes to ``starts[c + 1]``; else they are written from ``starts[c]`` on.
    """
    n_slots = candidates.classes.shape[1]
    for c in range(first, last):
        n = 0
        for a in range(listed.starts[c], listed.starts[c + 1]):
            pair = listed.entries[a] // n_slots
            own = listed.entries[a] - pair * n_slots == 0
            r = candidates.rows[pair]
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                f = rows.indices[p]
                if seen[f] == 0:
                    found[n] = f
                    n += 1
                seen[f] += min_pairs if own else 1
        kept = 0
        for k in range(n):
            f = found[k]
            if seen[f] >= min_pairs:
                if features.size > 0:
                    features[starts[c] + kept] = f
                kept += 1
            seen[f] = 0
        if features.size > 0:
            features[starts[c] : starts[c] + kept].sort()
        else:
            starts[c + 1] = kept


@helper
def solve_dual(target, weight, score, old, q):
    """Return the dual variable that maximises the dual along one coordinate.

    Newton steps; where one leaves the interval that holds the solution, as for long rows, the interval is
    halved.
    """
    low, high = weight * (target - 1.0), weight * target
    new = min(max(old, low), high)
    for _ in range(_MAX_NEWTON):
        p = 1.0 / (1.0 + math.exp(-min(max(score + (new - old) * q, -80.0), 80.0)))
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
def swap_random(order, k, seed, c, draw):
    """Exchange entry k of an order with one before it, for a random permutation."""
    j = np.int64(draw_key(seed, c, draw) % np.uint64(k + 1))
    kept = order[k]
    order[k] = order[j]
    order[j] = kept


@helper
def _choose_pairs(listed, c, n_slots, options):
    """Return which pairs of a class are trained on: all positives, at most `max_negatives` others."""
    start, stop = listed.starts[c], listed.starts[c + 1]
    n_negative = 0
    for a in range(start, stop):
        if listed.entries[a] % n_slots != 0:
            n_negative += 1
    keep = 1.0 if n_negative <= options.max_negatives else options.max_negatives / n_negative
    chosen = np.empty(stop - start, np.int64)
    n = 0
    limit = np.uint64(keep * 4294967295.0)
    for a in range(start, stop):
        entry = listed.entries[a]
        if keep == 1.0 or entry % n_slots == 0 or (draw_key(7, c, entry) >> np.uint64(32)) <= limit:
            chosen[n] = entry
            n += 1
    return chosen[:n]


@helper
def _pass_class(local, targets, weights, offsets, q, duals, w, options, c, round_number):
    """Run passes over the chosen pairs of one class; `w` ends with the bias."""
    ends, places, values = local
    n, bias_square = duals.size, np.float32(options.bias_feature * options.bias_feature)
    inverse = 1.0 / options.regularization
    last = w.size - 1
    order = np.arange(n)
    for number in range(options.passes):
        seed = np.uint64(options.seed) ^ np.uint64((round_number * options.passes + number) << 20)
        for k in range(n - 1, 0, -1):
            swap_random(order, k, seed, c, k)
        for at in range(n):
            k = order[at]
            begin, end = ends[k], ends[k + 1]
            score = offsets[k] + w[last]
            for p in range(begin, end):
                score += values[p] * w[places[p]]
            new = solve_dual(targets[k], weights[k], score, duals[k], q[k])
            change = new - duals[k]
            if abs(change) < _MIN_STEP:
                continue
            duals[k] = new
            step = np.float32(change * inverse)
            w[last] += step * bias_square
            for p in range(begin, end):
                w[places[p]] += step * values[p]


@njit
def correct_classes(rows, candidates, listed, support, state, options, classes, place, round_number):
    """Run one round for some classes, whose weights, scores and dual variables change.

    `place` (n_features,) int32 is -1 before and after.
    """
    n_slots = candidates.classes.shape[1]
    for number in range(classes.size):
        c = classes[number]
        low, high = support.starts[c], support.starts[c + 1]
        if listed.starts[c + 1] == listed.starts[c]:
            continue
        chosen = _choose_pairs(listed, c, n_slots, options)
        n, size = chosen.size, 0
        for k in range(n):
            r = candidates.rows[chosen[k] // n_slots]
            size += rows.indptr[r + 1] - rows.indptr[r]
        w = np.empty(high - low + 1, np.float32)
        w[: high - low] = support.values[low:high]
        w[high - low] = support.biases[c]
        for p in range(low, high):
            place[support.features[p]] = p - low
        ends, places = np.zeros(n + 1, np.int64), np.empty(size, np.int32)
        values = np.empty(size, np.float32)
        targets, weights = np.zeros(n, np.float64), np.empty(n, np.float64)
        offsets, q, duals = np.empty(n, np.float64), np.empty(n, np.float64), np.empty(n, np.float64)
        end = 0
        for k in range(n):
            pair = chosen[k] // n_slots
            j = chosen[k] - pair * n_slots
            r = candidates.rows[pair]
            square = options.bias_feature * options.bias_feature
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                at = place[rows.indices[p]]
                if at >= 0:
                    places[end] = at
                    values[end] = rows.data[p]
                    square += rows.data[p] * rows.data[p]
                    end += 1
            ends[k + 1] = end
            q[k] = square / options.regularization
            share = math.exp(min(state.scores[pair, j] - state.log_partition[pair], np.float32(0.0)))
            others = state.log_partition[pair] + math.log(max(1.0 - share, 1e-7))
            offsets[k] = candidates.offsets[pair, j] - others
            targets[k] = 1.0 if j == 0 else 0.0
            weights[k] = candidates.weights[pair]
            duals[k] = state.duals[pair, j]
        _pass_class((ends, places, values), targets, weights, offsets, q, duals, w, options, c, round_number)
        support.values[low:high] = w[: high - low]
        support.biases[c] = w[high - low]
        for k in range(n):
            pair = chosen[k] // n_slots
            state.duals[pair, chosen[k] - pair * n_slots] = duals[k]
        _refresh_scores(rows, candidates, listed, c, w, place, state.scores)
        for p in range(low, high):
            place[support.features[p]] = -1


@njit
def _refresh_scores(rows, candidates, listed, c, w, place, scores):
    """Compute the scores of a class for all pairs that list it, from the offsets and its weights."""
    n_slots = candidates.classes.shape[1]
    for a in range(listed.starts[c], listed.starts[c + 1]):
        pair = listed.entries[a] // n_slots
        j = listed.entries[a] - pair * n_slots
        r = candidates.rows[pair]
        total = np.float32(0.0)
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            at = place[rows.indices[p]]
            if at >= 0:
                total += rows.data[p] * w[at]
        scores[pair, j] = candidates.offsets[pair, j] + w[w.size - 1] + total


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
            swap_random(active, k, seed, c, k)
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
            largest, smallest = max(largest, gradient), min(smallest, gradient)
            if abs(gradient) > 1e-6:
                old = alpha[i]
                square = data.squares[i] + bias * bias + diagonal
                alpha[i] = max(old - np.float32(gradient / square), np.float32(0.0))
                step = (alpha[i] - old) * sign
                w[last] += step * bias
                for p in range(begin, end):
                    w[rows.indices[p]] += step * rows.data[p]
            k += 1
        if is_full and largest - smallest <= options.tolerance:
            break
    for a in range(data.starts[c], data.starts[c + 1]):
        positive[data.members[a]] = 0
