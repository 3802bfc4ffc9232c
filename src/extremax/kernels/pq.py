"""Kernels of the index over class scores (`extremax.search.pq`): short codes of the weights, and searches
among them.

A weight vector is cut into pieces of a few numbers; a code of four bits names the nearest of 16 centres for
each. A row's inner products with the centres are small tables of bytes, and the guess at a score is a sum of
entries that the codes pick: 32 classes and four rows at a time (`extremax._jit.table_sums`).

What comes out for a row depends neither on the rows beside it nor on the number of threads: sums of entries
are whole numbers, and where a loop takes several rows at once, rows that are missing at the end repeat the
last."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import inline, njit
from extremax.kernels.simd import LANES, MOST_ENTRY, ROWS_AT_ONCE, prefetch_row, table_sums, trailing_zeros
from extremax.kernels.topk import NO_LABEL, _replace_worst, _sort_heap, exp_nonpositive

CENTRES = 16
# Where the byte of a class stands among those of its block: bytes at even and at odd places are added up
# apart.
BYTE_OF = np.array([2 * (lane % 16) + lane // 16 for lane in range(LANES)])
_TILE = 32  # rows that stay in the first cache
CHUNK = 32  # blocks of classes that stay in the cache while the rows go by: a bit of a word for each
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_MINUS_INF, _SMALL, _LARGE = np.float32(-np.inf), np.float32(1e-30), np.float32(1e30)
_LEAST = np.float32(-3.4e38)  # reached by every class, not by the places past the last
_MOST = np.float32(MOST_ENTRY)
_NONE, _LOWEST = np.uint32(0), np.uint32(1)


class Blocks(NamedTuple):
    """Classes, 32 in a block; places past the last have factor 0 and base minus infinity."""

    codes: NDArray[np.uint8]  # (blocks, pairs of pieces, 32)
    factors: NDArray[np.float32]  # (blocks, 32); a guess is factor * (u' . z) + base
    bases: NDArray[np.float32]
    # (2, blocks): largest factor and base; as past the last up to a multiple of CHUNK
    bounds: NDArray[np.float32]


class Tables(NamedTuple):
    """Of rows in groups of four."""

    entries: NDArray[np.uint8]  # (groups, 4, pieces, 16)
    steps: NDArray[np.float32]  # (groups, 4); u' . z is a sum of entries times step plus offset
    offsets: NDArray[np.float32]


@njit
def encode(directions, centres, first, codes, alike):
    """Codes of the classes from place `first` on, into ``codes`` (blocks, pairs, 32); ``alike`` gets u . u'
    of each.

    ``directions`` (n, pieces * d), ``centres`` (16, d); u' is what the codes of u stand for.
    """
    n_pieces, size = 2 * codes.shape[1], centres.shape[1]
    squares = np.empty(CENTRES, np.float32)
    for c in range(CENTRES):
        squares[c] = _ZERO
        for k in range(size):
            squares[c] += centres[c, k] * centres[c, k]
    far = np.empty(CENTRES, np.float32)
    for i in range(directions.shape[0]):
        block, lane = (first + i) // LANES, (first + i) % LANES
        place = BYTE_OF[lane]
        total = _ZERO
        for m in range(n_pieces):
            for c in range(CENTRES):
                far[c] = squares[c] * _HALF
            for k in range(size):
                value = directions[i, m * size + k]
                for c in range(CENTRES):
                    far[c] -= value * centres[c, k]
            nearest = 0
            for c in range(1, CENTRES):
                if far[c] < far[nearest]:
                    nearest = c
            total += squares[nearest] * _HALF - far[nearest]
            if m % 2 == 0:
                codes[block, m // 2, place] = nearest
            else:
                codes[block, m // 2, place] |= nearest << 4
        alike[i] = total


@inline
def _eight_sums(x, z, table, first):
    """x.w and z.w for four consecutive rows w of `table`."""
    w0, w1, w2, w3 = table[first], table[first + 1], table[first + 2], table[first + 3]
    a0, a1, a2, a3 = _ZERO, _ZERO, _ZERO, _ZERO
    b0, b1, b2, b3 = _ZERO, _ZERO, _ZERO, _ZERO
    for k in range(x.shape[0]):
        u, v = x[k], z[k]
        a0 += u * w0[k]
        a1 += u * w1[k]
        a2 += u * w2[k]
        a3 += u * w3[k]
        b0 += v * w0[k]
        b1 += v * w1[k]
        b2 += v * w2[k]
        b3 += v * w3[k]
    return a0, a1, a2, a3, b0, b1, b2, b3


@inline
def _put(out, first, a0, a1, a2, a3, shift):
    out[first] = a0 - shift[first]
    out[first + 1] = a1 - shift[first + 1]
    out[first + 2] = a2 - shift[first + 2]
    out[first + 3] = a3 - shift[first + 3]


@njit
def turn_rows(X, turn, shift, out):
    """``out = X @ turn.T - shift``; `turn` has a multiple of four rows."""
    n = X.shape[0]
    for tile in range(0, n, _TILE):
        last = min(tile + _TILE, n)
        for first in range(0, turn.shape[0], 4):
            for i in range(tile, last, 2):
                j = min(i + 1, last - 1)
                a0, a1, a2, a3, b0, b1, b2, b3 = _eight_sums(X[i], X[j], turn, first)
                _put(out[i], first, a0, a1, a2, a3, shift)
                _put(out[j], first, b0, b1, b2, b3, shift)


@njit
def make_tables(rows, centres, tables, steps, offsets, squares):
    """Tables of each row: ``tables[i, m, c] = round((z_m . centres[c] - lowest of m) / step)``, from 0 to 31.

    ``rows[i]`` is z with the first numbers of all pieces, then the second, and so on. A sum of entries times ``steps[i]`` plus
    ``offsets[i]`` is about the sum of the products; ``squares[i]`` is |z|^2. Rows past the end, which fill the last group of
    four, repeat the last row; a row too large or small for float32 has empty tables.
    """
    n, size, n_tables = rows.shape[0], centres.shape[1], tables.shape[1]
    products = np.empty((CENTRES, n_tables), np.float32)
    lowest, highest = np.empty(n_tables, np.float32), np.empty(n_tables, np.float32)
    whole = np.empty(n_tables, np.int32)
    for i in range(n):
        whole_row, square = rows[i, : size * n_tables], _ZERO
        for k in range(size * n_tables):
            square += whole_row[k] * whole_row[k]
        squares[i] = square
        for c in range(CENTRES):
            own = products[c]
            for m in range(n_tables):
                own[m] = _ZERO
            for k in range(size):
                part, factor = rows[i, k * n_tables : (k + 1) * n_tables], centres[c, k]
                for m in range(n_tables):
                    own[m] += part[m] * factor
        for m in range(n_tables):
            lowest[m] = highest[m] = products[0, m]
        for c in range(1, CENTRES):
            own = products[c]
            for m in range(n_tables):
                value = own[m]
                lowest[m] = value if value < lowest[m] else lowest[m]
                highest[m] = value if value > highest[m] else highest[m]
        widest, offset = _ZERO, _ZERO
        for m in range(n_tables):
            widest = max(widest, highest[m] - lowest[m])
            offset += lowest[m]
        if widest > _SMALL and widest < _LARGE and abs(offset) < _LARGE:
            steps[i], offsets[i] = widest / _MOST, offset
            scale = _MOST / widest
            for c in range(CENTRES):
                own = products[c]
                for m in range(n_tables):
                    whole[m] = np.int32((own[m] - lowest[m]) * scale + _HALF)
                for m in range(n_tables):
                    tables[i, m, c] = np.uint8(whole[m])
        else:
            steps[i], offsets[i] = _ZERO, _ZERO
            tables[i] = 0
    for i in range(n, tables.shape[0]):
        tables[i] = tables[n - 1]
        steps[i], offsets[i], squares[i] = steps[n - 1], offsets[n - 1], squares[n - 1]


@inline
def _guess(total, step, offset, factor, base):
    return (np.float32(np.int32(total)) * step + offset) * factor + base


@inline
def _promising(highest, step, offset, bounds, start, threshold):
    """A bit for each of 32 blocks in which a guess may reach the threshold; ``bounds`` are largest factors
    and bases.

    No guess of a block is higher than one of its highest sum, largest factor and largest base, if the sum
    less its offset is not negative."""
    mask = np.uint32(0)
    factors, bases = bounds[0, start : start + CHUNK], bounds[1, start : start + CHUNK]
    for slot in range(CHUNK):
        most = max(np.float32(highest[slot]) * step + offset, _ZERO) * factors[slot] + bases[slot]
        mask |= np.uint32(most >= threshold) << np.uint32(slot)
    return mask


@inline
def _reaching(sums, step, offset, factors, bases, threshold):
    """A bit for each class of a block whose guess reaches the threshold."""
    mask = np.uint32(0)
    for lane in range(LANES):
        mask |= np.uint32(
            _guess(sums[lane], step, offset, factors[lane], bases[lane]) >= threshold
        ) << np.uint32(lane)
    return mask


@inline
def _mass_below(sums, step, offset, factors, bases, threshold, sharpness):
    """Sum of exp(sharpness * (guess - threshold)) over the classes of a block whose guess does not reach
    the threshold.
    """
    total = _ZERO
    for lane in range(LANES):
        below = (_guess(sums[lane], step, offset, factors[lane], bases[lane]) - threshold) * sharpness
        part = exp_nonpositive(min(below, _ZERO))
        total += part if below < _ZERO else _ZERO
    return total


@njit
def set_thresholds(blocks, tables, kept, sharpness, thresholds, tails):
    """The guess that `kept` of the classes reach, for each row; the least number if there are fewer.

    ``tails``: the mass of the classes whose guess is lower, over that of a class at the threshold.
    """
    codes, factors, bases, bounds = blocks
    entries, steps, offsets = tables
    n_blocks = codes.shape[0]
    sums, highest = (
        np.zeros((ROWS_AT_ONCE, n_blocks, LANES), np.uint16),
        np.zeros((ROWS_AT_ONCE, n_blocks), np.int32),
    )
    heaps, ids = np.empty((ROWS_AT_ONCE, kept), np.float32), np.zeros(kept, np.int32)
    for g in range(entries.shape[0]):
        heaps[:] = _MINUS_INF
        table_sums(codes, 0, n_blocks, entries, g, sums, highest)
        for r in range(ROWS_AT_ONCE):
            heap, step, offset = heaps[r], steps[g, r], offsets[g, r]
            for block in range(n_blocks):
                most = (
                    max(np.float32(highest[r, block]) * step + offset, _ZERO) * bounds[0, block]
                    + bounds[1, block]
                )
                if most > heap[0]:
                    mask = _reaching(sums[r, block], step, offset, factors[block], bases[block], heap[0])
                    while mask != _NONE:
                        lane = trailing_zeros(mask)
                        mask &= mask - _LOWEST
                        guess = _guess(
                            sums[r, block, lane], step, offset, factors[block, lane], bases[block, lane]
                        )
                        if guess > heap[0]:
                            _replace_worst(heap, ids, kept, guess, np.int32(0))
            mass = _ZERO
            if heap[0] > _MINUS_INF:
                for block in range(n_blocks):
                    mass += _mass_below(
                        sums[r, block], step, offset, factors[block], bases[block], heap[0], sharpness
                    )
            thresholds[g, r], tails[g, r] = max(heap[0], _LEAST), mass


@njit
def find_classes(blocks, tables, thresholds, found, counts):
    """Places of the classes whose guess reaches the row's threshold, in order: ``found`` (rows, most),
    ``counts`` (rows,).

    A count may be larger than there is room for: places beyond it are not kept.
    """
    codes, factors, bases, bounds = blocks
    entries, steps, offsets = tables
    n_rows, most = found.shape
    sums, highest = (
        np.zeros((ROWS_AT_ONCE, CHUNK, LANES), np.uint16),
        np.zeros((ROWS_AT_ONCE, CHUNK), np.int32),
    )
    counts[:] = 0
    n_blocks = codes.shape[0]
    for start in range(0, n_blocks, CHUNK):
        stop = min(start + CHUNK, n_blocks)
        for g in range(entries.shape[0]):
            table_sums(codes, start, stop, entries, g, sums, highest)
            for r in range(min(ROWS_AT_ONCE, n_rows - ROWS_AT_ONCE * g)):
                step, offset, threshold, row = (
                    steps[g, r],
                    offsets[g, r],
                    thresholds[g, r],
                    ROWS_AT_ONCE * g + r,
                )
                promising = _promising(highest[r], step, offset, bounds, start, threshold)
                count = counts[row]
                while promising != _NONE:
                    slot = trailing_zeros(promising)
                    promising &= promising - _LOWEST
                    block = start + slot
                    mask = _reaching(sums[r, slot], step, offset, factors[block], bases[block], threshold)
                    while mask != _NONE:
                        if count < most:
                            found[row, count] = LANES * block + trailing_zeros(mask)
                        mask &= mask - _LOWEST
                        count += 1
                counts[row] = count


@njit
def list_rows(found, counts, ends, listed):
    """Turn the lists around: ``listed[ends[c - 1] : ends[c]]`` are the places ``row * most + slot`` where
    class place c is.
    """
    n, most = found.shape
    ends[:] = 0
    for i in range(n):
        for j in range(min(counts[i], most)):
            ends[found[i, j]] += 1
    total = 0
    for c in range(ends.shape[0]):
        total, ends[c] = total + ends[c], total
    for i in range(n):
        for j in range(min(counts[i], most)):
            c = found[i, j]
            listed[ends[c]] = i * most + j
            ends[c] += 1


@njit
def score_listed(X, ends, listed, most, order, weights, biases, scale, scores):
    """``scores[row, slot]`` of each listed pair: scale * X[row] . weights[order[c]] + biases[order[c]].

    Four rows at a time; rows that are missing at the end repeat the last, so that no sum depends on which
    rows come together."""
    start = 0
    for c in range(ends.shape[0]):
        stop = ends[c]
        if c + 1 < ends.shape[0] and ends[c + 1] > stop:
            prefetch_row(weights, order[c + 1])
        if stop == start:
            continue
        label = order[c]
        w, bias = weights[label], biases[label]
        for p in range(start, stop, 4):
            for ahead in range(p + 4, min(p + 8, stop)):
                prefetch_row(X, listed[ahead] // most)
            last = stop - 1
            p1, p2, p3 = min(p + 1, last), min(p + 2, last), min(p + 3, last)
            i0, i1, i2, i3 = listed[p] // most, listed[p1] // most, listed[p2] // most, listed[p3] // most
            x0, x1, x2, x3 = X[i0], X[i1], X[i2], X[i3]
            a0, a1, a2, a3 = _ZERO, _ZERO, _ZERO, _ZERO
            for k in range(w.shape[0]):
                value = w[k]
                a0 += value * x0[k]
                a1 += value * x1[k]
                a2 += value * x2[k]
                a3 += value * x3[k]
            scores[i0, listed[p] - i0 * most] = a0 * scale + bias
            scores[i1, listed[p1] - i1 * most] = a1 * scale + bias
            scores[i2, listed[p2] - i2 * most] = a2 * scale + bias
            scores[i3, listed[p3] - i3 * most] = a3 * scale + bias
        start = stop


@njit
def choose_classes(scores, found, counts, order, sharpness, rest, labels, log_prob):
    """The k best classes of each row among those found, best first; ties by smaller class.

    Normalised over the classes found and the rest, whose log-mass is ``rest`` (rows,).
    """
    most, k = found.shape[1], labels.shape[1]
    for i in range(found.shape[0]):
        n = min(counts[i], most)
        best_scores, best_labels = log_prob[i], labels[i]
        best_scores[:] = _MINUS_INF
        best_labels[:] = NO_LABEL
        for j in range(n):
            score = scores[i, j]
            if score >= best_scores[0]:
                label = order[found[i, j]]
                if score > best_scores[0] or label < best_labels[0]:
                    _replace_worst(best_scores, best_labels, k, score, label)
        _sort_heap(best_scores, best_labels, k)
        peak = best_scores[0] * sharpness
        mass = _ZERO
        for j in range(n):
            mass += exp_nonpositive(scores[i, j] * sharpness - peak)
        # guesses may promise the rest far more than the best class has
        more = np.float64(rest[i]) - np.float64(peak)
        if more <= 0.0:
            log_mass = np.float32(math.log(mass + math.exp(more)))
        else:
            log_mass = np.float32(more + math.log(1.0 + mass * math.exp(-more)))
        for r in range(k):
            best_scores[r] = (best_scores[r] * sharpness - peak) - log_mass
            if best_labels[r] == NO_LABEL:
                best_labels[r] = -1
                best_scores[r] = _MINUS_INF
