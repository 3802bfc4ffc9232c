"""The generative start of sparse weights: class sums, leave-one-out scores, and hard negatives.

With class sums S_yf of the (weighted) rows of class y, their totals m_y, norms |S_y| and counts n_y, and the
share p_f of feature f in all mass, the start scores

    s_y(x) = sum_f x_f [A_b log(1 + S_yf / (a p_f)) + B_b S_yf / |S_y|]
             + g_1 |x|_1 log(1 + m_y / a) + g_2 log n_y + g_3 log(1 + m_y / a)

with b the bucket of f by the number of classes that have it; single words, runs of words and parts of words
have buckets of their own.  The first term is smoothed naive Bayes, the second the cosine with the class's
summed row.  A training row is left out of its class completely: of S_y, m_y, n_y, |S_y|, of p_f and of the
number of classes that have f.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, njit
from extremax.kernels.postings import step_of
from extremax.kernels.rng import draw_key
from extremax.kernels.sparse_scores import (
    find_class,
    find_class_near,
    row_mass,
    select_top,
)
from extremax.kernels.topk import exp_nonpositive

_NEGLIGIBLE = 1e-4  # of a sum from which a row was taken: the rounding of float32
_EMPTY, _LEAST = np.float32(-np.inf), np.float32(-87.0)
FEW_CLASSES = 1 << 15  # up to which a search looks at all
_LOOK_UP = 30  # classes of a feature per candidate from which the candidates are looked up among them


class Sums(NamedTuple):
    """Sums of the rows of each class, by feature, and what follows from them."""

    offsets: np.ndarray  # (n_features + 1,) int64
    classes: np.ndarray  # (n_entries,) int32, ascending within a feature
    values: np.ndarray  # (n_entries,) float32: S_yf
    feature_mass: np.ndarray  # (n_features,) float64: sum over y of S_yf
    mass: np.ndarray  # (n_classes,) float64: m_y
    counts: np.ndarray  # (n_classes,) float64: n_y
    squares: np.ndarray  # (n_classes,) float64: |S_y|^2
    total: float


class Numbers(NamedTuple):
    """The numbers of the start that are fitted to the data."""

    smoothing: float  # a
    log_weights: np.ndarray  # (n_buckets,) float64: A
    cosine_weights: np.ndarray  # (n_buckets,) float64: B
    bias_weights: np.ndarray  # (3,) float64: g
    edges: np.ndarray  # int64: numbers of classes from which the next bucket begins
    groups: np.ndarray  # int64: first columns of groups of columns, each with buckets of its own


class Pairs(NamedTuple):
    """Rows with a class of theirs, and their weight in the sums."""

    rows: np.ndarray  # (n,) int64
    classes: np.ndarray  # (n,) int32
    weights: np.ndarray  # (n,) float32


class Candidates(NamedTuple):
    """Classes that leave-one-out pairs are compared with, the pair's own first."""

    classes: np.ndarray  # (n, n_candidates) int32
    log_weight: np.ndarray  # (n, n_candidates) float32: log of the classes that each stands for
    terms: np.ndarray  # (n, n_candidates, 2 n_buckets + 3) float32: those of s_y(x), without A, B and g
    sizes: np.ndarray  # (n,) int64: how many there are


@helper
def _leave_out(sums, numbers, f, x, label, weight, left):
    """Take a row out of feature f, of which it has x; `left` is the mass of all features without the row.

    Returns S_yf of the row's own class, the feature's bucket or -1 if no class has it any more, and
    1 / (a p_f).
    """
    low, high = sums.offsets[f], sums.offsets[f + 1]
    taken = x * weight
    at = find_class(sums.classes, low, high, label)
    own, n_having = 0.0, high - low
    if at >= 0:
        own = sums.values[at] - taken
    if abs(own) <= _NEGLIGIBLE * abs(taken):
        own = 0.0
        if at >= 0:
            n_having -= 1
    remaining = sums.feature_mass[f] - taken
    inverse = left / (numbers.smoothing * (remaining if remaining > 1e-3 else 1e-3))
    return own, _bucket(f, n_having, numbers), inverse


@helper
def _bucket(f, n_classes, numbers):
    """Return the bucket of a feature that so many classes have; -1 if none."""
    edges = numbers.edges
    b = 0
    while b < edges.size and n_classes >= edges[b]:
        b += 1
    for g in range(numbers.groups.size):
        if f >= numbers.groups[g]:
            b += edges.size + 1
    return b if n_classes > 0 else -1


@helper
def _mass_without(rows, r, weight, sums):
    """Return the mass of all features without a row."""
    taken = 0.0
    for p in range(rows.indptr[r], rows.indptr[r + 1]):
        if rows.data[p] > 0.0:
            taken += np.float64(rows.data[p])
    left = sums.total - weight * taken
    return left if left > 1e-3 else 1e-3


@njit
def count_columns(rows, row_numbers, counts):
    """Count the entries of some rows by column; columns beyond those of `counts` are left out."""
    for i in range(row_numbers.size):
        r = row_numbers[i]
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f = rows.indices[p]
            if f < counts.size:
                counts[f] += 1


@njit
def sum_columns(rows, pairs, scale, first, places, ends, classes, values):
    """Sum the entries of the rows of each class in some columns from `first` on.

    Parameters
    ----------
    pairs : Pairs
        By rising class.
    places : (n_columns,) int64
        Where the entries of each column begin; changed.
    ends : (n_columns,) int64
        Filled with where the sums of each column end; those of zero are left out.
    classes, values : (n_entries,) int32, float32
        Filled with class and weighted value of the entries, then with the sums, which take no more room.
    """
    n_columns = places.size
    for i in range(pairs.rows.size):
        r, label, weight = pairs.rows[i], pairs.classes[i], pairs.weights[i]
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f = rows.indices[p] - first
            if 0 <= f < n_columns:
                at = places[f]
                places[f] = at + 1
                classes[at] = label
                values[at] = weight * rows.data[p]
    low, n = 0, 0
    for f in range(n_columns):
        while low < places[f]:
            label = classes[low]
            total = np.float32(0.0)
            while low < places[f] and classes[low] == label:
                total += values[low]
                low += 1
            if total != 0.0:
                classes[n] = label
                values[n] = total * scale
                n += 1
        ends[f] = n


@njit
def fill_weights(sums, numbers, features, norms, out, first, last):
    """Fill the weights of the start for a range of some features; `norms` are |S_y|."""
    for i in range(first, last):
        f = features[i]
        low, high = sums.offsets[f], sums.offsets[f + 1]
        if high == low:
            continue
        b = _bucket(f, high - low, numbers)
        mass = sums.feature_mass[f]
        inverse = sums.total / (numbers.smoothing * (mass if mass > 1e-3 else 1e-3))
        log_weight, cosine_weight = numbers.log_weights[b], numbers.cosine_weights[b]
        for q in range(low, high):
            value = np.float64(sums.values[q])
            norm = norms[sums.classes[q]]
            cosine = value / norm if norm > 0.0 else 0.0
            positive = value if value > 0.0 else 0.0
            out[q] = log_weight * math.log1p(positive * inverse) + cosine_weight * cosine


@njit
def choose_candidates(
    rows, pairs, sums, guess, n_best, n_drawn, seed, scores, slot, best, found, first, last
):
    """Choose candidate classes of pairs of a range, each row left out of its class.

    Parameters
    ----------
    guess : (n_entries,) float32
        Weights by which candidates are chosen, for entries of the sums.
    n_best, n_drawn : int
        Candidates of highest score, and candidates drawn uniformly from all others.
    scores : (last - first, n_classes) float32
        The biases of the guess, minus infinity for classes that are not to be chosen; changed.
    slot : (n_classes,) int32
        Scratch; -1 before and after.
    best : pair of (n_best,) int32, float32
        Scratch.
    found : Candidates
        Classes, log-weights and sizes are filled.
    """
    n_classes = scores.shape[1]
    for k in range(first, last):
        r, own, line = pairs.rows[k], pairs.classes[k], scores[k - first]
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f, x = rows.indices[p], rows.data[p]
            for q in range(sums.offsets[f], sums.offsets[f + 1]):
                line[np.uint32(sums.classes[q])] += x * guess[q]  # unsigned: no look for indices from the end
        line[own] = _EMPTY
        n_found = select_top(line, n_best, best[0], best[1])
        found.classes[k, 0] = own
        slot[own] = 0
        for j in range(n_found):
            found.classes[k, j + 1] = best[0][j]
            slot[best[0][j]] = j + 1
        n = n_found + 1
        others = n_classes - n + 1  # without classes that are not to be chosen, the own class among them
        for j in range(n_classes):
            if line[j] == _EMPTY:
                others -= 1
        wanted = n_drawn if n_drawn < others else others
        draw = np.uint64(0)
        for _ in range(wanted):
            label = np.int64(draw_key(seed + k, own, draw) % np.uint64(n_classes))
            while slot[label] >= 0 or line[label] == _EMPTY:
                draw += np.uint64(1)
                label = np.int64(draw_key(seed + k, own, draw) % np.uint64(n_classes))
            found.classes[k, n] = label
            found.log_weight[k, n] = math.log(others / wanted)
            slot[label] = n
            n += 1
        found.sizes[k] = n
        for j in range(n):
            slot[found.classes[k, j]] = -1
        for j in range(n, found.classes.shape[1]):
            found.log_weight[k, j] = _EMPTY


@njit
def describe_pairs(rows, pairs, sums, numbers, slot, found, first, last):
    """Compute the terms of the scores of candidates of pairs of a range, each row left out of its class.

    `slot` (n_classes,) int32 is -1 before and after; ``found.terms`` are zero on entry.
    """
    n_buckets = numbers.log_weights.size
    for k in range(first, last):
        r, own_class, weight = pairs.rows[k], pairs.classes[k], np.float64(pairs.weights[k])
        n, classes, terms = found.sizes[k], found.classes[k], found.terms[k]
        for j in range(n):
            slot[classes[j]] = j
        left, length = _mass_without(rows, r, weight, sums), 0.0
        mass = np.float64(row_mass(rows.data, rows.indptr[r], rows.indptr[r + 1]))
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f, x = rows.indices[p], np.float64(rows.data[p])
            length += x * x
            own, b, inverse = _leave_out(sums, numbers, f, x, own_class, weight, left)
            if b < 0:
                continue
            low, high = sums.offsets[f], sums.offsets[f + 1]
            # where classes are many, candidates are found faster than all classes are read
            looks_up = high - low > _LOOK_UP * n
            for at in range(n if looks_up else high - low):
                q = low + at
                if looks_up:
                    q = find_class_near(sums.classes, low, high, classes[at], slot.size)
                    if q < 0:
                        continue
                j = slot[sums.classes[q]]
                if j >= 0:
                    value = own if j == 0 else np.float64(sums.values[q])
                    positive = value if value > 0.0 else 0.0
                    terms[j, b] += x * math.log1p(positive * inverse)
                    terms[j, n_buckets + b] += x * value
        for j in range(n):
            label = classes[j]
            slot[label] = -1
            class_mass, count, square = sums.mass[label], sums.counts[label], sums.squares[label]
            if j == 0:
                dot = 0.0
                for b in range(n_buckets, 2 * n_buckets):
                    dot += terms[0, b]
                class_mass -= weight * mass
                class_mass = class_mass if class_mass > 1e-3 else 1e-3
                count -= weight
                count = count if count > 0.5 * weight else 0.5 * weight
                square = square - 2.0 * weight * dot - weight * weight * length
                square = square if square > 1e-3 else 1e-3
            norm = math.sqrt(square)
            for b in range(n_buckets, 2 * n_buckets):
                terms[j, b] = terms[j, b] / norm if norm > 0.0 else 0.0
            log_mass = math.log1p(class_mass / numbers.smoothing)
            terms[j, 2 * n_buckets] = mass * log_mass
            terms[j, 2 * n_buckets + 1] = math.log(count if count > 1e-3 else 1e-3)
            terms[j, 2 * n_buckets + 2] = log_mass


@njit
def add_count_slopes(rows, pairs, sums, numbers, out):
    """Add the slopes of the terms of each pair's class, its row left out, by the log of the class's size.

    A class t times as large, of the same words, has the score ``s + theta.out log t`` for t near one.
    """
    n_buckets = numbers.log_weights.size
    for k in range(pairs.rows.size):
        r, label, weight = pairs.rows[k], pairs.classes[k], np.float64(pairs.weights[k])
        left, mass = _mass_without(rows, r, weight, sums), 0.0
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            x = np.float64(rows.data[p])
            mass += x
            own, b, inverse = _leave_out(sums, numbers, rows.indices[p], x, label, weight, left)
            if b >= 0 and own > 0.0:
                ratio = own * inverse
                out[b] += x * ratio / (1.0 + ratio)
        class_mass = sums.mass[label] - weight * mass
        class_mass = class_mass if class_mass > 1e-3 else 1e-3
        filled = class_mass / (numbers.smoothing + class_mass)
        out[2 * n_buckets] += mass * filled
        out[2 * n_buckets + 1] += 1.0
        out[2 * n_buckets + 2] += filled


class Proposals(NamedTuple):
    """The best other classes of each row, and the scores of its own classes, by the start."""

    classes: np.ndarray  # (n_rows, k) int32; -1 where there are fewer
    scores: np.ndarray  # (n_rows, k) float32
    log_rest: np.ndarray  # (n_rows,) float32: log of the summed exp of all classes not named here
    own: np.ndarray  # (n_pairs,) float32


@helper
def _own_score(rows, r, label, weight, left, sums, numbers):
    """Return the score of a row's class with the row left out."""
    mass, dot, length, total, cosine = 0.0, 0.0, 0.0, 0.0, 0.0
    for p in range(rows.indptr[r], rows.indptr[r + 1]):
        x = np.float64(rows.data[p])
        mass += x
        length += x * x
        own, b, inverse = _leave_out(sums, numbers, rows.indices[p], x, label, weight, left)
        dot += x * own
        if b < 0 or own == 0.0:
            continue
        total += x * numbers.log_weights[b] * math.log1p((own if own > 0.0 else 0.0) * inverse)
        cosine += x * numbers.cosine_weights[b] * own
    square = sums.squares[label] - weight * (2.0 * dot + weight * length)
    class_mass = sums.mass[label] - weight * mass
    log_mass = math.log1p((class_mass if class_mass > 1e-3 else 1e-3) / numbers.smoothing)
    count = sums.counts[label] - weight
    count = count if count > 0.5 * weight else 0.5 * weight
    g = numbers.bias_weights
    bias = (g[0] * mass + g[2]) * log_mass + g[1] * math.log(count if count > 1e-3 else 1e-3)
    return np.float32(total + cosine / math.sqrt(square if square > 1e-3 else 1e-3) + bias)


@njit
def keep_row(scores, i, proposals):
    """Keep the best classes of row i and the mass of all others; scores of minus infinity do not count.

    `scores` is changed. The mass is a sum of float32 sums of 1,024.
    """
    found, best = proposals.classes[i], proposals.scores[i]
    n = select_top(scores, found.size, found, best)
    for j in range(n):
        scores[found[j]] = _EMPTY
    for j in range(n, found.size):
        found[j] = -1
        best[j] = _EMPTY
    peak, total = best[0] if n > 0 else np.float32(0.0), 0.0
    for start in range(0, scores.size, 1024):
        block = scores[start : start + 1024]
        part = np.float32(0.0)
        for j in range(block.size):
            gap = block[j] - peak
            part += exp_nonpositive(_LEAST if gap < _LEAST else gap)
        total += part
    proposals.log_rest[i] = np.float32(peak + math.log(total if total > 1e-37 else 1e-37))


def make_scratch(n_classes):
    """Return the scratch of `propose`."""
    n = n_classes if n_classes > FEW_CLASSES else 0
    scores, marks = np.zeros(n_classes, np.float32), np.zeros(n, np.uint8)
    return scores, marks, np.empty(n, np.int32), np.empty(n, np.float32)


@njit
def propose(rows, pairs, postings, biases, scratch, proposals, first, last):
    """Find the best other classes of rows of a range: of many, those that share a feature with the row.

    Parameters
    ----------
    rows : CSRRows
    pairs : tuple of arrays
        Rows to score (n,), where the pairs of each begin (n + 1,), class of each pair.
    postings, biases : Postings, pair of (n_classes,) float32
        Weights, ``b`` and ``l``.
    scratch : tuple of arrays
        Scores (n_classes,) float32 and marks (n_classes,) uint8, zero before and after; classes that share a
        feature (n_classes,) int32 and their scores (n_classes,) float32. The last three are empty where
        classes are few.
    proposals : Proposals
        Classes and scores are filled, and where there is room for it the log of the mass of all others.
    """
    row_numbers, pair_offsets, labels = pairs
    scores, marks, listed, line = scratch
    many = marks.size > 0
    for i in range(first, last):
        r = row_numbers[i]
        start, stop = rows.indptr[r], rows.indptr[r + 1]
        mass, n = row_mass(rows.data, start, stop), 0
        for p in range(start, stop):
            f = rows.indices[p]
            x = rows.data[p] * step_of(postings, f)
            low, high = postings.offsets[f], postings.offsets[f + 1]
            if many:
                for q in range(low, high):
                    c = np.uint32(postings.classes[q])  # unsigned: no look for indices from the end
                    if marks[c] == 0:
                        marks[c] = 1
                        listed[n] = c
                        n += 1
                    scores[c] += x * np.float32(postings.values[q])
            else:
                for q in range(low, high):
                    scores[np.uint32(postings.classes[q])] += x * np.float32(postings.values[q])
        for pair in range(pair_offsets[i], pair_offsets[i + 1]):
            scores[labels[pair]] = _EMPTY
        if many:
            for j in range(n):
                c = np.uint32(listed[j])
                line[j] = scores[c] + biases[0][c] + mass * biases[1][c]
                scores[c] = np.float32(0.0)
                marks[c] = 0
            _keep(line[:n], i, proposals)
            for j in range(proposals.classes.shape[1]):
                if proposals.classes[i, j] >= 0:
                    proposals.classes[i, j] = listed[proposals.classes[i, j]]
            for pair in range(pair_offsets[i], pair_offsets[i + 1]):
                scores[labels[pair]] = np.float32(0.0)
        else:
            for c in range(scores.size):
                scores[c] += biases[0][c] + mass * biases[1][c]
            _keep(scores, i, proposals)
            for c in range(scores.size):
                scores[c] = np.float32(0.0)


@helper
def _keep(scores, i, proposals):
    """Keep the best classes of row i, and where there is room for it the mass of all others."""
    if proposals.log_rest.size > 0:
        keep_row(scores, i, proposals)
        return
    found, best = proposals.classes[i], proposals.scores[i]
    for j in range(select_top(scores, found.size, found, best), found.size):
        found[j] = -1
        best[j] = _EMPTY


@njit
def score_own(rows, pairs, sums, numbers, out, first, last):
    """Fill the scores of the classes of pairs of a range, each row left out of its class."""
    for k in range(first, last):
        r, weight = pairs.rows[k], np.float64(pairs.weights[k])
        left = _mass_without(rows, r, weight, sums)
        out[k] = _own_score(rows, r, pairs.classes[k], weight, left, sums, numbers)


@njit
def keep_best(scores, edges, labels, proposals, start):
    """Keep the best classes of rows whose scores (n, n_classes) are given, their own classes apart.

    Line j of `scores` is row ``start + j`` of the proposals; `scores` is changed.
    """
    for line in range(scores.shape[0]):
        i = start + line
        for pair in range(edges[i], edges[i + 1]):
            proposals.own[pair] = scores[line, labels[pair]]
        for pair in range(edges[i], edges[i + 1]):
            scores[line, labels[pair]] = _EMPTY
        keep_row(scores[line], i, proposals)
