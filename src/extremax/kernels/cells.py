"""Kernels of the index over class scores (`extremax.predict.cells`): cutting the classes into cells, and searching cells.

Classes lie in an order in which every node of a binary tree is a run of them: a node's first half has ceil(n / 2), its second
floor(n / 2).  Levels of the tree that are used are two apart, so that a node has four children, side by side.

A search goes through the nodes of a level, not through the rows: the rows that want a node's children are listed, the
children's weights come to the cache once for all of them, and each turn takes two rows and four weight vectors, eight sums at a
time.  A single row left over is taken twice, so that a sum never depends on which rows came together, nor on the thread count.
"""

from __future__ import annotations

import math

import numpy as np

from extremax._jit import inline, njit, prefetch
from extremax.kernels.topk import NO_LABEL, _ordered, _replace_worst, _sort_heap, _unordered, exp_nonpositive

CHILDREN = 4  # nodes below a node, and classes of a cell at most: the weight vectors that are taken at a time
_TILE = 32  # rows that stay in the first cache while the nodes of the top level go by
_LINE = 16  # float32 in a cache line
_ZERO, _HALF = np.float32(0.0), np.float32(0.5)
_MINUS_INF = np.float32(-np.inf)
_INT32_MAX = np.int32(0x7FFFFFFF)


@njit
def _lowest_first(values, ids, k):
    """Rearrange both so that the k lowest values come first."""
    low, high = 0, values.shape[0] - 1
    while low < high:
        pivot = values[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                ids[i], ids[j] = ids[j], ids[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            return


@njit
def _project(table, ids, direction, values):
    for t in range(ids.shape[0]):
        row = table[ids[t]]
        total = _ZERO
        for k in range(direction.shape[0]):
            total += row[k] * direction[k]
        values[t] = total


@njit
def _mean_rows(table, ids, out):
    out[:] = _ZERO
    for t in range(ids.shape[0]):
        row = table[ids[t]]
        for k in range(out.shape[0]):
            out[k] += row[k]
    out *= np.float32(1.0 / ids.shape[0])


@njit
def cut_levels(table, ids, depth, iterations, sample):
    """Order `ids`, rows of `table`, so that the nodes of a balanced binary tree of this depth are runs of rows that are alike.

    Each node is cut by two means with halves of equal size: rows go by their place along the line through the means of the
    halves, `iterations` times on at most `sample` of the rows, then all of them once.
    """
    n_features = table.shape[1]
    direction, other = np.empty(n_features, np.float32), np.empty(n_features, np.float32)
    values, some = np.empty(ids.shape[0], np.float32), np.empty(min(sample, ids.shape[0]), ids.dtype)
    for level in range(depth):
        for node in range(1 << level):
            start, stop = 0, ids.shape[0]
            for bit in range(level - 1, -1, -1):
                middle = start + (stop - start + 1) // 2
                if (node >> bit) & 1:
                    start = middle
                else:
                    stop = middle
            n = stop - start
            if n < 2:
                continue
            m = min(n, sample)
            for t in range(m):
                some[t] = ids[start + t * n // m]
            first, last = table[some[m // 3]], table[some[m - 1 - m // 3]]
            for k in range(n_features):
                direction[k] = last[k] - first[k]
            half = (m + 1) // 2
            for _ in range(iterations):
                _project(table, some[:m], direction, values[:m])
                _lowest_first(values[:m], some[:m], half)
                _mean_rows(table, some[:half], other)
                _mean_rows(table, some[half:m], direction)
                direction -= other
            _project(table, ids[start:stop], direction, values[:n])
            _lowest_first(values[:n], ids[start:stop], (n + 1) // 2)


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
def _put(out, column, a0, a1, a2, a3, scale, biases, first):
    out[column] = a0 * scale + biases[first]
    out[column + 1] = a1 * scale + biases[first + 1]
    out[column + 2] = a2 * scale + biases[first + 2]
    out[column + 3] = a3 * scale + biases[first + 3]


@inline
def _prefetch_row(array, row):
    for line in range(0, array.shape[1], _LINE):
        prefetch(array, row, line)


@njit
def score_top(X, table, biases, scale, scores):
    """scores[i, g] = scale * X[i] . table[g] + biases[g] for all nodes of a level, of which there are a multiple of four."""
    n = X.shape[0]
    for tile in range(0, n, _TILE):
        last = min(tile + _TILE, n)
        for g in range(0, table.shape[0], CHILDREN):
            for i in range(tile, last, 2):
                j = min(i + 1, last - 1)
                a0, a1, a2, a3, b0, b1, b2, b3 = _eight_sums(X[i], X[j], table, g)
                _put(scores[i], g, a0, a1, a2, a3, scale, biases, g)
                _put(scores[j], g, b0, b1, b2, b3, scale, biases, g)


@njit
def keep_best(scores, n_scores, before, keys, kept):
    """The nodes of the highest scores of each row, from left to right (among equals the leftmost).

    Column j of ``scores`` (n, >= n_scores) is child ``j % 4`` of node ``before[i, j // 4]``, or node j where ``before`` has no
    columns.  ``kept`` (n, width) with width <= n_scores is filled; ``keys`` (n_scores,) is scratch.
    """
    width = np.int32(kept.shape[1])
    picked = np.empty(n_scores + 1, np.int32)
    for i in range(scores.shape[0]):
        row = scores[i, :n_scores]
        for j in range(n_scores):
            keys[j] = _ordered(row[j])
        least, most = _INT32_MAX, np.int32(-0x7FFFFFFF)
        for j in range(n_scores):
            least = min(least, keys[j])
        for j in range(n_scores):
            most = max(most, keys[j])
        # At least `width` keys are >= low, fewer are > high.  Halving the values takes fewer turns than halving their bits.
        low, high, exact = np.int64(least), np.int64(most), n_scores == width
        while low < high and not exact:
            middle = _ordered((_unordered(np.int32(low)) + _unordered(np.int32(high))) * _HALF)
            if middle <= low or middle > high:
                middle = np.int32((low + high + 1) >> 1)
            count = np.int32(0)
            for j in range(n_scores):
                count += np.int32(keys[j] >= middle)
            exact = count == width
            if count >= width:
                low = np.int64(middle)
            else:
                high = np.int64(middle) - 1
        threshold = np.int32(low)
        m = np.int64(0)
        if exact:
            # Without a branch, whose outcome no processor can guess: each place is written, and kept or written over.
            for j in range(n_scores):
                picked[m] = j
                m += np.int64(keys[j] >= threshold)
        else:
            ties = np.int64(width)
            for j in range(n_scores):
                ties -= np.int64(keys[j] > threshold)
            for j in range(n_scores):
                tie = keys[j] == threshold and ties > 0
                if tie or keys[j] > threshold:
                    ties -= np.int64(tie)
                    picked[m] = j
                    m += 1
        for j in range(width):
            place = picked[j]
            kept[i, j] = place if before.shape[1] == 0 else CHILDREN * before[i, place // CHILDREN] + place % CHILDREN


@njit
def list_rows(kept, offsets, places):
    """For every node the places ``i * width + slot`` of `kept` (n, width) where it stands, in order.

    ``places[offsets[g] : offsets[g + 1]]`` are those of node g; ``offsets`` has two more entries than there are nodes, the last
    of which is scratch.
    """
    offsets[:] = 0
    n, width = kept.shape
    for i in range(n):
        for j in range(width):
            offsets[kept[i, j] + 2] += 1
    for g in range(2, offsets.shape[0]):
        offsets[g] += offsets[g - 1]
    for i in range(n):
        for j in range(width):
            node = kept[i, j] + 1
            places[offsets[node]] = i * width + j
            offsets[node] += 1


@njit
def _score_four(X, width, listed, table, first, biases, scale, scores):
    """For each place ``i * width + slot`` of `listed`: scores[i, 4 slot + c] of row ``first + c`` of `table`."""
    n = listed.shape[0]
    for p in range(0, n, 2):
        here, there = listed[p], listed[min(p + 1, n - 1)]
        for ahead in range(p + 2, min(p + 4, n)):
            _prefetch_row(X, listed[ahead] // width)
        i, j = here // width, there // width
        a0, a1, a2, a3, b0, b1, b2, b3 = _eight_sums(X[i], X[j], table, first)
        _put(scores[i], CHILDREN * (here - i * width), a0, a1, a2, a3, scale, biases, first)
        _put(scores[j], CHILDREN * (there - j * width), b0, b1, b2, b3, scale, biases, first)


@njit
def score_children(X, width, offsets, places, table, biases, scale, scores):
    """scores[i, 4 slot + c] = scale * X[i] . w + bias of child c of the node at ``kept[i, slot]``: row 4 g + c of `table`."""
    for g in range(table.shape[0] // CHILDREN):
        _score_four(X, width, places[offsets[g] : offsets[g + 1]], table, CHILDREN * g, biases, scale, scores)


@njit
def score_classes(X, width, offsets, places, starts, order, weights, biases, scale, scores):
    """scores[i, 4 slot + c] of class ``order[starts[g] + c]`` of the cell g at ``kept[i, slot]``; -inf past the cell's end."""
    n_cells, n_features = starts.shape[0] - 1, X.shape[1]
    cell, cell_biases = np.zeros((CHILDREN, n_features), np.float32), np.empty(CHILDREN, np.float32)
    for g in range(n_cells):
        listed = places[offsets[g] : offsets[g + 1]]
        if g + 1 < n_cells and offsets[g + 1] < offsets[g + 2]:
            for c in range(starts[g + 1], starts[g + 2]):
                _prefetch_row(weights, order[c])
        if listed.shape[0] == 0:
            continue
        for c in range(CHILDREN):
            cell_biases[c] = _MINUS_INF
            if c < starts[g + 1] - starts[g]:
                label = order[starts[g] + c]
                for k in range(n_features):
                    cell[c, k] = weights[label, k]
                cell_biases[c] = biases[label]
        _score_four(X, width, listed, cell, 0, cell_biases, scale, scores)


@njit
def choose_classes(scores, kept, starts, order, sharpness, labels, log_prob):
    """The k best classes of each row's cells, best first, normalised over the classes of these cells; ties by smaller class."""
    width, k = kept.shape[1], labels.shape[1]
    n_scores = CHILDREN * width
    for i in range(kept.shape[0]):
        row = scores[i, :n_scores]
        best_scores, best_labels = log_prob[i], labels[i]
        best_scores[:] = _MINUS_INF
        best_labels[:] = NO_LABEL
        for slot in range(width):
            g = kept[i, slot]
            for c in range(starts[g + 1] - starts[g]):
                score = row[CHILDREN * slot + c]
                if score >= best_scores[0]:
                    label = order[starts[g] + c]
                    if score > best_scores[0] or label < best_labels[0]:
                        _replace_worst(best_scores, best_labels, k, score, label)
        _sort_heap(best_scores, best_labels, k)
        peak = best_scores[0] * sharpness
        mass = _ZERO
        for j in range(n_scores):
            mass += exp_nonpositive(row[j] * sharpness - peak)
        log_mass = np.float32(math.log(mass))
        for r in range(k):
            best_scores[r] = (best_scores[r] * sharpness - peak) - log_mass
            if best_labels[r] == NO_LABEL:
                best_labels[r] = -1
                best_scores[r] = _MINUS_INF
