"""Product quantization of the weights, and search among the codes (`extremax.scores.pq`).

A weight vector is cut into subvectors of a few numbers; a code of four bits names the nearest of 16 centroids
for each.  A row's inner products with the centroids are small tables of bytes, and the approximate score of a
class is a sum of the entries that its codes pick: 32 classes and four rows at a time
(`extremax.kernels.simd.table_sums`).

The result for a row depends neither on the rows beside it nor on the number of threads: sums of entries are
whole numbers, and where a loop takes several rows at once, the last row is repeated for missing ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.compile import inline, njit
from extremax.kernels.simd import LANES, MOST_ENTRY, ROWS_AT_ONCE, table_sums
from extremax.kernels.topk import _replace_worst, exp_nonpositive

N_CENTROIDS = 16
# Position of the byte of a class among those of its block: even and odd positions are summed separately.
BYTE_OF = np.array([2 * (lane % 16) + lane // 16 for lane in range(LANES)])
CHUNK = 32  # blocks of classes that stay in the cache for all rows: one bit of a word each
_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
_MINUS_INF, _SMALL, _LARGE = np.float32(-np.inf), np.float32(1e-30), np.float32(1e30)
_LEAST = np.float32(-3.4e38)  # reached by every class, but not by the places past the last
_MOST = np.float32(MOST_ENTRY)
_NONE, _LOWEST = np.uint32(0), np.uint32(1)


class Blocks(NamedTuple):
    """Classes in blocks of 32; places past the last have factor 0 and base minus infinity."""

    codes: NDArray[np.uint8]  # (blocks, pairs of subvectors, 32)
    factors: NDArray[np.float32]  # (blocks, 32); an approximate score is factor * (u' . z) + base
    bases: NDArray[np.float32]  # (blocks, 32)
    bounds: NDArray[np.float32]  # (2, blocks up to a multiple of CHUNK): largest factor and base of each


class Tables(NamedTuple):
    """Tables of rows, in groups of four."""

    entries: NDArray[np.uint8]  # (groups, 4, subvectors, 16)
    steps: NDArray[np.float32]  # (groups, 4); u' . z is a sum of entries times step plus offset
    offsets: NDArray[np.float32]


@inline
def trailing_zeros(mask):
    """Return the position of the lowest bit that is set; one must be."""
    place = 0
    while (mask >> np.uint32(place)) & _LOWEST == _NONE:
        place += 1
    return place


def encode(directions, centroids, first, codes, alignment):
    """Encode the directions u of the classes from place `first` on.

    Parameters
    ----------
    directions : (n, subvectors * d)
    centroids : (16, d)
    codes : (blocks, pairs, 32)
        Filled; the codes of u name its approximation u'.
    alignment : (n,)
        Filled with u . u'.
    """
    subvectors = directions.reshape(len(directions), 2 * codes.shape[1], centroids.shape[1])
    half = 0.5 * np.einsum("ck,ck->c", centroids, centroids)
    far = half - subvectors @ centroids.T
    nearest = far.argmin(axis=2).astype(np.uint8)
    alignment[:] = (half[nearest] - far.min(axis=2)).sum(axis=1)
    places = first + np.arange(len(directions))
    codes[places // LANES, :, BYTE_OF[places % LANES]] = nearest[:, ::2] | (nearest[:, 1::2] << 4)


@njit
def make_tables(rows, centroids, tables, steps, offsets, squares):
    """Make the tables ``round((z_m . centroids[c] - lowest of m) / step)``, from 0 to 31, of each row.

    A sum of entries times ``steps[i]`` plus ``offsets[i]`` approximates the sum of the products.  Rows past
    the end, which fill the last group of four, repeat the last row; a row too large or small for float32 has
    empty tables.

    Parameters
    ----------
    rows : (n, at least subvectors * d)
        Each z, with the first numbers of all subvectors, then the second ones, and so on.
    centroids : (16, d)
    tables : (n up to a multiple of four, subvectors, 16)
    steps, offsets, squares
        Filled; ``squares[i]`` is |z|^2.
    """
    n, size, n_tables = rows.shape[0], centroids.shape[1], tables.shape[1]
    products = np.empty((N_CENTROIDS, n_tables), np.float32)
    lowest, highest = np.empty(n_tables, np.float32), np.empty(n_tables, np.float32)
    whole = np.empty(n_tables, np.int32)
    for i in range(n):
        whole_row, square = rows[i, : size * n_tables], _ZERO
        for k in range(size * n_tables):
            square += whole_row[k] * whole_row[k]
        squares[i] = square
        for c in range(N_CENTROIDS):
            own = products[c]
            for m in range(n_tables):
                own[m] = _ZERO
            for k in range(size):
                part, factor = rows[i, k * n_tables : (k + 1) * n_tables], centroids[c, k]
                for m in range(n_tables):
                    own[m] += part[m] * factor
        for m in range(n_tables):
            lowest[m] = highest[m] = products[0, m]
        for c in range(1, N_CENTROIDS):
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
            for c in range(N_CENTROIDS):
                own = products[c]
                for m in range(n_tables):
                    whole[m] = np.int32((own[m] - lowest[m]) * scale + _HALF)
                for m in range(n_tables):
                    tables[i, m, c] = np.uint8(whole[m])
        else:
            steps[i], offsets[i] = _ZERO, _ZERO
            for m in range(n_tables):
                for c in range(N_CENTROIDS):
                    tables[i, m, c] = np.uint8(0)
    for i in range(n, tables.shape[0]):
        for m in range(n_tables):  # an assignment of arrays would take seconds to compile
            for c in range(N_CENTROIDS):
                tables[i, m, c] = tables[n - 1, m, c]
        steps[i], offsets[i], squares[i] = steps[n - 1], offsets[n - 1], squares[n - 1]


@inline
def _approximate(total, step, offset, factor, base):
    """Return the approximate score of a class from its sum of entries."""
    return (np.float32(np.int32(total)) * step + offset) * factor + base


@inline
def _promising(highest, step, offset, bounds, start, threshold):
    """Set a bit for each of 32 blocks in which an approximate score may reach the threshold.

    None is higher than that of the highest sum, largest factor and largest base of the block, if the sum
    with its offset is not negative.
    """
    mask = np.uint32(0)
    factors, bases = bounds[0, start : start + CHUNK], bounds[1, start : start + CHUNK]
    for slot in range(CHUNK):
        most = max(np.float32(highest[slot]) * step + offset, _ZERO) * factors[slot] + bases[slot]
        mask |= np.uint32(most >= threshold) << np.uint32(slot)
    return mask


@inline
def _reaching(sums, step, offset, factors, bases, threshold):
    """Set a bit for each class of a block whose approximate score reaches the threshold."""
    mask = np.uint32(0)
    for lane in range(LANES):
        mask |= np.uint32(
            _approximate(sums[lane], step, offset, factors[lane], bases[lane]) >= threshold
        ) << np.uint32(lane)
    return mask


@inline
def _mass_below(sums, step, offset, factors, bases, threshold, inverse_temperature):
    """Sum exp(inverse_temperature * (approximate score - threshold)) over the classes of a block below it."""
    total = _ZERO
    for lane in range(LANES):
        below = (
            _approximate(sums[lane], step, offset, factors[lane], bases[lane]) - threshold
        ) * inverse_temperature
        part = exp_nonpositive(min(below, _ZERO))
        total += part if below < _ZERO else _ZERO
    return total


@njit
def set_thresholds(blocks, tables, kept, inverse_temperatures, thresholds, tails):
    """Find for each row the approximate score that `kept` of the classes reach.

    It is the least number where there are fewer.  ``tails[t]`` gets the mass of the classes below, relative
    to that of a class at the threshold, at ``inverse_temperatures[t]``.
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
                        score = _approximate(
                            sums[r, block, lane], step, offset, factors[block, lane], bases[block, lane]
                        )
                        if score > heap[0]:
                            _replace_worst(heap, ids, kept, score, np.int32(0))
            thresholds[g, r] = max(heap[0], _LEAST)
            for t in range(inverse_temperatures.size):
                mass = _ZERO
                if heap[0] > _MINUS_INF:
                    for block in range(n_blocks):
                        mass += _mass_below(
                            sums[r, block],
                            step,
                            offset,
                            factors[block],
                            bases[block],
                            heap[0],
                            inverse_temperatures[t],
                        )
                tails[t, g, r] = mass


@njit
def find_classes(blocks, tables, thresholds, found, counts):
    """List the places of the classes whose approximate score reaches the row's threshold, in order.

    ``found`` (rows, most) and ``counts`` (rows,) are filled.  A count may exceed `most`: places beyond it are
    not stored.
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
    """Invert the lists: ``listed[ends[c - 1] : ends[c]]`` are the ``row * most + slot`` of class place c."""
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
    """Fill ``scores[row, slot] = scale * X[row] . weights[order[c]] + biases[order[c]]`` of listed pairs.

    Four rows at a time; the last row is repeated for missing ones, so that no sum depends on which rows come
    together.
    """
    start = 0
    for c in range(ends.shape[0]):
        stop = ends[c]
        if stop == start:
            continue
        label = order[c]
        w, bias = weights[label], biases[label]
        for p in range(start, stop, 4):
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
