"""Scores of all classes through postings: for each feature, the classes that have a weight on it.

The score of class y for a row x is ``sum_f x_f w_fy + |x|_1 l_y + b_y`` with ``|x|_1 = sum_f x_f``.  A row
touches the postings of its own features alone, so the cost follows their lengths and not the number of
classes times the number of features.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.postings import step_of
from extremax.kernels.topk import LOWEST, ordered, unordered


@inline
def row_mass(values, start, stop):
    """Return the sum of the entries of a row."""
    total = np.float32(0.0)
    for p in range(start, stop):
        total += values[p]
    return total


@njit
def score_rows(rows, first, last, postings, length_biases, out):
    """Fill `out` (last - first, n_classes) with ``sum_f x_f w_fy + |x|_1 l_y`` of some rows."""
    for i in range(first, last):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        mass = row_mass(rows.data, start, stop)
        line = out[i - first]
        for y in range(line.size):
            line[y] = mass * length_biases[y]
        for p in range(start, stop):
            f = rows.indices[p]
            x = rows.data[p] * step_of(postings, f)
            for q in range(postings.offsets[f], postings.offsets[f + 1]):
                # unsigned: no look for indices from the end
                line[np.uint32(postings.classes[q])] += x * np.float32(postings.values[q])


@njit
def add_products(rows, factors, out):
    """Add ``z.v_y`` of rows z (n, size) and classes v (n_classes, size) to `out` (n, n_classes)."""
    for i in range(rows.shape[0]):
        z, line = rows[i], out[i]
        for y in range(factors.shape[0]):
            v = factors[y]
            total = np.float32(0.0)
            for j in range(z.size):
                total += z[j] * v[j]
            line[y] += total


@inline
def find_class(classes, low, high, label):
    """Return the position of a class among ascending ones, or -1."""
    end = high
    while low < high:
        middle = (low + high) >> 1
        if classes[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low if low < end and classes[low] == label else -1


@helper
def find_class_near(classes, low, high, label, n_classes):
    """Return the position of a class among ascending ones, or -1; fast where they are spread evenly.

    The search begins where the class would be among evenly spread ones, and goes out in growing steps.
    """
    first = low
    near = low + np.int64(label) * (high - low) // n_classes
    step = 1
    if classes[near] < label:
        while near + step < high and classes[near + step] < label:
            near += step
            step *= 2
        low, high = near + 1, min(near + step + 1, high)
    else:
        while near - step >= first and classes[near - step] >= label:
            near -= step
            step *= 2
        low, high = max(near - step, first), near + 1
    return find_class(classes, low, high, label)


@njit
def score_row_pairs(rows, row_index, labels, postings, biases, out, first, last):
    """Fill `out` (n, m) with scores of classes ``labels`` (n, m) of rows ``row_index``, for lines of a range.

    `biases` is a pair of arrays: ``b`` and ``l``.
    """
    for i in range(first, last):
        row = row_index[i]
        start, stop = rows.indptr[row], rows.indptr[row + 1]
        mass = row_mass(rows.data, start, stop)
        for j in range(labels.shape[1]):
            label = labels[i, j]
            total = np.float32(0.0)
            for p in range(start, stop):
                f = rows.indices[p]
                at = find_class(postings.classes, postings.offsets[f], postings.offsets[f + 1], label)
                if at >= 0:
                    total += rows.data[p] * step_of(postings, f) * np.float32(postings.values[at])
            out[i, j] = total + mass * biases[1][label] + biases[0][label]


@njit
def sum_squares(postings, out):
    """Add the squared weights of each class to `out` (n_classes,) float64."""
    for f in range(postings.offsets.size - 1):
        step = step_of(postings, f)
        for q in range(postings.offsets[f], postings.offsets[f + 1]):
            value = np.float64(step * np.float32(postings.values[q]))
            out[postings.classes[q]] += value * value


@njit
def select_top(scores, k, labels, values):
    """Find the k greatest scores, best first, ties to the smaller class; return how many were found.

    Blocks whose maximum is too small are skipped; minus infinity never counts.
    """
    n = 0
    lowest = np.float32(-np.inf)
    for start in range(0, scores.size, 256):
        block = scores[start : start + 256]
        highest = LOWEST
        for j in range(block.size):
            rank = ordered(block[j])
            highest = rank if rank > highest else highest
        if not unordered(highest) > lowest:
            continue
        for j in range(block.size):
            value = block[j]
            if value > lowest:
                at = n if n < k else k - 1
                n = n + 1 if n < k else k
                while at > 0 and values[at - 1] < value:
                    values[at] = values[at - 1]
                    labels[at] = labels[at - 1]
                    at -= 1
                values[at] = value
                labels[at] = start + j
                if n == k:
                    lowest = values[k - 1]
    return n
