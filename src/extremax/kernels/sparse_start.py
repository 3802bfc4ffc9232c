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

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.rng import draw_key
from extremax.kernels.sparse_scores import (
    clear_frequent,
    find_class,
    find_class_near,
    frequent_gap,
    project_frequent,
    row_mass,
    select_top,
    start_scores,
)
from extremax.kernels.topk import exp_nonpositive

_NEGLIGIBLE = 1e-4  # of a sum from which a row was taken: the rounding of float32
_EMPTY = np.float32(-np.inf)
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


class Row(NamedTuple):
    """A row of a CSR matrix, its class and its weight in the sums."""

    indices: np.ndarray
    values: np.ndarray
    label: int
    weight: float


@inline
def _bucket(f, n_classes, numbers):
    """Return the bucket of a feature that so many classes have."""
    edges = numbers.edges
    b = 0
    while b < edges.size and n_classes >= edges[b]:
        b += 1
    for g in range(numbers.groups.size):
        if f >= numbers.groups[g]:
            b += edges.size + 1
    return b


@inline
def _inverse_share(sums, f, taken, total, smoothing):
    """Return ``1 / (a p_f)`` after `taken` was removed from feature f; `total` is the mass that is left."""
    left = max(sums.feature_mass[f] - taken, 1e-3)
    return total / (smoothing * left)


@inline
def _total_without(row, sums):
    """Return the mass of all features without a row."""
    taken = 0.0
    for p in range(row.values.size):
        taken += max(np.float64(row.values[p]), 0.0)
    return max(sums.total - row.weight * taken, 1e-3)


@inline
def _remaining(sums, f, row_label, taken):
    """Return S_yf of a row's own class without the row, and the classes that then have the feature."""
    low, high = sums.offsets[f], sums.offsets[f + 1]
    at = find_class(sums.classes, low, high, row_label)
    own = 0.0
    if at >= 0:
        own = sums.values[at] - taken
    if abs(own) <= _NEGLIGIBLE * abs(taken):
        return 0.0, high - low - (1 if at >= 0 else 0)
    return own, high - low


@njit
def count_columns(rows, row_numbers, counts, first, last):
    """Count the entries of some rows by column; columns beyond those of `counts` are left out."""
    for i in range(first, last):
        r = row_numbers[i]
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f = rows.indices[p]
            if f < counts.size:
                counts[f] += 1


@njit
def sort_by_column(rows, pairs, places, classes, values, first, last):
    """Copy the entries of some pairs to places by column, in the order of the pairs.

    Parameters
    ----------
    pairs : tuple of arrays
        Row, class and weight of each pair.
    places : (n_features,) int64
        Where the next entry of each column goes; changed.
    classes, values : (n_entries,) int32, float32
        Filled with class and weighted value of each entry.
    """
    row_numbers, labels, weights = pairs
    for i in range(first, last):
        r, label, weight = row_numbers[i], labels[i], weights[i]
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            f = rows.indices[p]
            if f < places.size:
                at = places[f]
                places[f] = at + 1
                classes[at] = label
                values[at] = weight * rows.data[p]


@njit
def join_entries(offsets, classes, values, scale, merged, out_classes, out_values, first, last):
    """Add entries of the same class in columns of a range; sums of zero are left out.

    Parameters
    ----------
    offsets : (n_features + 1,) int64
        Where the entries of each column begin; their classes rise.
    merged : (n_features + 1,) int64
        With empty output arrays, ``merged[f + 1]`` is filled with the sums of column f that are not zero;
        else ``merged[f]`` is where they go.
    """
    fill = out_classes.size > 0
    for f in range(first, last):
        low, high = offsets[f], offsets[f + 1]
        n = merged[f] if fill else 0
        while low < high:
            label = classes[low]
            total = np.float32(0.0)
            while low < high and classes[low] == label:
                total += values[low]
                low += 1
            if total != 0.0:
                if fill:
                    out_classes[n] = label
                    out_values[n] = total * scale
                n += 1
        if not fill:
            merged[f + 1] = n


@njit
def sum_columns(offsets, values, out, first, last):
    """Fill the sum of the positive values of each column of a range."""
    for f in range(first, last):
        total = 0.0
        for q in range(offsets[f], offsets[f + 1]):
            total += max(np.float64(values[q]), 0.0)
        out[f] = total


@njit
def add_entry_sums(sums_values, classes, out_mass, out_squares):
    """Add the entries of class sums to the mass and the squared norm of each class."""
    for q in range(classes.size):
        value = np.float64(sums_values[q])
        out_mass[classes[q]] += value
        out_squares[classes[q]] += value * value


@njit
def fill_weights(sums, numbers, features, out, first, last):
    """Fill the weights of the start for a range of some features."""
    for i in range(first, last):
        f = features[i]
        low, high = sums.offsets[f], sums.offsets[f + 1]
        if high == low:
            continue
        b = _bucket(f, high - low, numbers)
        inverse = _inverse_share(sums, f, 0.0, sums.total, numbers.smoothing)
        log_weight, cosine_weight = numbers.log_weights[b], numbers.cosine_weights[b]
        for q in range(low, high):
            value = np.float64(sums.values[q])
            norm = math.sqrt(sums.squares[sums.classes[q]])
            cosine = value / norm if norm > 0.0 else 0.0
            out[q] = log_weight * math.log1p(max(value, 0.0) * inverse) + cosine_weight * cosine


@helper
def _fill_features(row, sums, numbers, slot, candidates, phi):
    """Add the terms of each candidate to ``phi`` (n_candidates, 2 n_buckets + 3), its own row left out."""
    n_buckets, left = numbers.log_weights.size, _total_without(row, sums)
    for p in range(row.indices.size):
        f, x = row.indices[p], np.float64(row.values[p])
        taken = x * row.weight
        own, n_having = _remaining(sums, f, row.label, taken)
        if n_having == 0:
            continue
        b = _bucket(f, n_having, numbers)
        inverse = _inverse_share(sums, f, taken, left, numbers.smoothing)
        low, high = sums.offsets[f], sums.offsets[f + 1]
        if high - low > _LOOK_UP * candidates.size:  # candidates are found faster than all classes are read
            for k in range(candidates.size):
                q = find_class_near(sums.classes, low, high, candidates[k], slot.size)
                if q >= 0:
                    _add_terms(
                        x, own if k == 0 else np.float64(sums.values[q]), inverse, b, n_buckets, phi[k]
                    )
            continue
        for q in range(low, high):
            k = slot[sums.classes[q]]
            if k >= 0:
                _add_terms(x, own if k == 0 else np.float64(sums.values[q]), inverse, b, n_buckets, phi[k])


@inline
def _add_terms(x, value, inverse, b, n_buckets, terms):
    """Add naive Bayes and the dot product of one feature to the terms of a class."""
    terms[b] += x * math.log1p(max(value, 0.0) * inverse)
    terms[n_buckets + b] += x * value


@njit
def describe_row(row, sums, numbers, guess, sizes, seed, scores, slot, candidates, log_weight, phi):
    """Choose candidate classes of a row, left out of its class, and compute the terms of their scores.

    Parameters
    ----------
    row : Row
    guess : (n_entries,) float32
        Weights by which candidates are chosen, for entries of the sums.
    sizes : (int, int)
        Candidates of highest score, and candidates drawn uniformly from all others.
    scores, slot : (n_classes,) float32, int32
        Scratch; `scores` holds the biases of the guess on entry, `slot` is -1 before and after.
    candidates, log_weight : (1 + sum of sizes,)
        Filled: the row's class first; log of the classes that each stands for.
    phi : (1 + sum of sizes, 2 n_buckets + 3)
        Zero on entry; filled with the terms of s_y(x), without A, B and g.
    """
    n_best, n_drawn = sizes
    n_classes, n_buckets = scores.size, numbers.log_weights.size
    mass = np.float64(row_mass(row.values, 0, row.values.size))
    for p in range(row.indices.size):
        f, x = row.indices[p], row.values[p]
        low, high = sums.offsets[f], sums.offsets[f + 1]
        classes, weights = sums.classes[low:high], guess[low:high]
        for q in range(classes.size):
            scores[np.uint32(classes[q])] += x * weights[q]  # unsigned: no look for indices from the end
    scores[row.label] = _EMPTY
    best = np.empty(n_best, np.int32)
    n_found = select_top(scores, n_best, best, np.empty(n_best, np.float32))
    candidates[0] = row.label
    slot[row.label] = 0
    for k in range(n_found):
        candidates[k + 1] = best[k]
        slot[best[k]] = k + 1
    n = n_found + 1
    others = n_classes - n
    draw = np.uint64(0)
    for _ in range(min(n_drawn, others)):
        label = np.int64(draw_key(seed, row.label, draw) % np.uint64(n_classes))
        while slot[label] >= 0:
            draw += np.uint64(1)
            label = np.int64(draw_key(seed, row.label, draw) % np.uint64(n_classes))
        candidates[n] = label
        log_weight[n] = math.log(others / min(n_drawn, others))
        slot[label] = n
        n += 1
    _fill_features(row, sums, numbers, slot, candidates[:n], phi)
    for k in range(n):
        label = candidates[k]
        slot[label] = -1
        class_mass, count, square = sums.mass[label], sums.counts[label], sums.squares[label]
        if k == 0:
            class_mass = max(class_mass - row.weight * mass, 1e-3)
            count = max(count - row.weight, 0.5 * row.weight)
            square = _square_without(row, phi[0], n_buckets, square)
        norm = math.sqrt(square)
        for b in range(n_buckets, 2 * n_buckets):
            phi[k, b] = phi[k, b] / norm if norm > 0.0 else 0.0
        log_mass = math.log1p(class_mass / numbers.smoothing)
        phi[k, 2 * n_buckets] = mass * log_mass
        phi[k, 2 * n_buckets + 1] = math.log(max(count, 1e-3))
        phi[k, 2 * n_buckets + 2] = log_mass
    return n


@inline
def _square_without(row, terms, n_buckets, square):
    """Return |S_y - w x|^2 from |S_y|^2 and the dots x.(S_y - w x) by bucket."""
    dot, length = 0.0, 0.0
    for b in range(n_buckets, 2 * n_buckets):
        dot += terms[b]
    for p in range(row.values.size):
        length += np.float64(row.values[p]) * row.values[p]
    return max(square - 2.0 * row.weight * dot - row.weight * row.weight * length, 1e-3)


@njit
def add_count_slope(row, sums, numbers, out):
    """Add the slopes of the terms of a row's class, its row left out, by the log of the class's size.

    A class t times as large, of the same words, has the score ``s + theta.out log t`` for t near one.
    """
    n_buckets, left, mass = numbers.log_weights.size, _total_without(row, sums), 0.0
    for p in range(row.indices.size):
        f, x = row.indices[p], np.float64(row.values[p])
        mass += x
        own, n_having = _remaining(sums, f, row.label, x * row.weight)
        if n_having > 0 and own > 0.0:
            ratio = own * _inverse_share(sums, f, x * row.weight, left, numbers.smoothing)
            out[_bucket(f, n_having, numbers)] += x * ratio / (1.0 + ratio)
    class_mass = max(sums.mass[row.label] - row.weight * mass, 1e-3)
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
def _own_score(row, sums, numbers):
    """Return the score of a row's class with the row left out."""
    mass, dot, length, total, cosine = 0.0, 0.0, 0.0, 0.0, 0.0
    left = _total_without(row, sums)
    for p in range(row.indices.size):
        f, x = row.indices[p], np.float64(row.values[p])
        taken = x * row.weight
        mass += x
        length += x * x
        own, n_having = _remaining(sums, f, row.label, taken)
        dot += x * own
        if n_having == 0 or own == 0.0:
            continue
        b = _bucket(f, n_having, numbers)
        inverse = _inverse_share(sums, f, taken, left, numbers.smoothing)
        total += x * numbers.log_weights[b] * math.log1p(max(own, 0.0) * inverse)
        cosine += x * numbers.cosine_weights[b] * own
    square = sums.squares[row.label] - row.weight * (2.0 * dot + row.weight * length)
    class_mass = max(sums.mass[row.label] - row.weight * mass, 1e-3)
    log_mass = math.log1p(class_mass / numbers.smoothing)
    count = max(sums.counts[row.label] - row.weight, 0.5 * row.weight)
    g = numbers.bias_weights
    bias = (g[0] * mass + g[2]) * log_mass + g[1] * math.log(max(count, 1e-3))
    return np.float32(total + cosine / math.sqrt(max(square, 1e-3)) + bias)


@helper
def _add_rare(row, p, sums, numbers, left, scores):
    """Add the terms of a feature of few classes, computed anew with the row left out.

    `left` is the mass of all features without the row.
    """
    f, x = row.indices[p], np.float64(row.values[p])
    taken = x * row.weight
    _, n_having = _remaining(sums, f, row.label, taken)
    if n_having == 0:
        return
    b = _bucket(f, n_having, numbers)
    inverse = _inverse_share(sums, f, taken, left, numbers.smoothing)
    for q in range(sums.offsets[f], sums.offsets[f + 1]):
        y = sums.classes[q]
        value = np.float64(sums.values[q])
        cosine = value / math.sqrt(max(sums.squares[y], 1e-6))
        log_term = math.log1p(max(value, 0.0) * inverse)
        scores[y] += np.float32(x * (numbers.log_weights[b] * log_term + numbers.cosine_weights[b] * cosine))


@helper
def _log_sum_exp(scores, peak):
    """Return the log of the summed exp of scores that are at most `peak`, in float32 sums of 1,024."""
    total = 0.0
    for start in range(0, scores.size, 1024):
        block = scores[start : start + 1024]
        part = np.float32(0.0)
        for j in range(block.size):
            part += exp_nonpositive(max(block[j] - peak, np.float32(-87.0)))
        total += part
    return np.float32(peak + math.log(max(total, 1e-37)))


@helper
def _keep_row(scores, i, proposals):
    """Keep the best classes of row i and the mass of all others; scores of minus infinity do not count."""
    found, best = proposals.classes[i], proposals.scores[i]
    n = select_top(scores, found.size, found, best)
    for j in range(n):
        scores[found[j]] = _EMPTY
    for j in range(n, found.size):
        found[j] = -1
        best[j] = _EMPTY
    proposals.log_rest[i] = _log_sum_exp(scores, best[0] if n > 0 else np.float32(0.0))


@njit
def propose(rows, pairs, sums, numbers, weights, rare, n_exact, scores, proposals, first, last):
    """Score all classes for rows of a range, each left out of its own classes; keep the best others.

    Parameters
    ----------
    rows : CSRRows
    pairs : tuple of arrays
        Rows to score (n,), where the pairs of each begin (n + 1,), class and weight of each pair.
    weights : (Postings, (biases, length biases), Frequent)
        The start, small weights perhaps left out: ``g_2 log n_y + g_3 log(1 + m_y / a)`` and
        ``g_1 log(1 + m_y / a)`` (n_classes,) float32; frequent columns are approximated.
    rare : int
        Features of at most so many classes are computed anew: the row itself is much of their mass.
    n_exact : int
        Classes of best approximate score that are scored exactly; 0 if there are no frequent columns.
    scores : (n_classes,) float32
        Scratch.
    """
    row_numbers, pair_offsets, labels, pair_weights = pairs
    postings, biases, frequent = weights
    coordinates = np.empty(frequent.right.shape[1], np.float64)
    present = np.zeros(frequent.right.shape[0], np.float32)
    best, best_scores = np.empty(n_exact, np.int32), np.empty(n_exact, np.float32)
    for i in range(first, last):
        r = row_numbers[i]
        start, stop = rows.indptr[r], rows.indptr[r + 1]
        indices, values = rows.indices[start:stop], rows.data[start:stop]
        mass = row_mass(rows.data, start, stop)
        begin, end = pair_offsets[i], pair_offsets[i + 1]
        row = Row(indices, values, np.int64(labels[begin]), np.float64(pair_weights[begin]))
        left = _total_without(row, sums)
        project_frequent(indices, values, frequent, present, coordinates)
        start_scores(biases, mass, frequent, coordinates, scores)
        for p in range(indices.size):
            f, x = indices[p], values[p]
            if sums.offsets[f + 1] - sums.offsets[f] <= rare:
                _add_rare(row, p, sums, numbers, left, scores)
                continue
            if frequent.place[f] >= 0:
                continue
            low, high = postings.offsets[f], postings.offsets[f + 1]
            listed, weight = postings.classes[low:high], postings.values[low:high]
            for q in range(listed.size):
                scores[np.uint32(listed[q])] += x * weight[q]
        for pair in range(begin, end):
            own = Row(indices, values, np.int64(labels[pair]), np.float64(pair_weights[pair]))
            proposals.own[pair] = _own_score(own, sums, numbers)
            scores[labels[pair]] = _EMPTY
        if n_exact > 0:
            for j in range(select_top(scores, n_exact, best, best_scores)):
                label = best[j]
                scores[label] += frequent_gap(frequent, present, coordinates, label)
        clear_frequent(indices, frequent, present)
        _keep_row(scores, i, proposals)


@njit
def keep_best(scores, edges, labels, proposals, start):
    """Keep the best classes of rows whose scores (n, n_classes) are given, their own classes apart.

    Line j of `scores` is row ``start + j`` of the proposals; `scores` is changed.
    """
    for line in range(scores.shape[0]):
        i = start + line
        row = scores[line]
        for pair in range(edges[i], edges[i + 1]):
            proposals.own[pair] = row[labels[pair]]
        for pair in range(edges[i], edges[i + 1]):
            row[labels[pair]] = _EMPTY
        _keep_row(row, i, proposals)
