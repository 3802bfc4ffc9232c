"""Scores of all classes through postings: for each feature, the classes that have a weight on it.

The score of class y for a row x is ``sum_f x_f w_fy + |x|_1 l_y + b_y`` with ``|x|_1 = sum_f x_f``.  A row
touches the postings of its own features alone, so the cost follows their lengths and not the number of
classes times the number of features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.topk import LOWEST, ordered, unordered


class Postings(NamedTuple):
    """Weights by feature: entries ``offsets[f]`` to ``offsets[f + 1]`` are those of feature f."""

    offsets: np.ndarray  # (n_features + 1,) int64
    classes: np.ndarray  # (n_entries,) int32, ascending within a feature
    values: np.ndarray  # (n_entries,) float32


class Frequent(NamedTuple):
    """Columns with so many weights that scores are first computed without them.

    Their weights W (n_classes, n_columns) are stood in for by ``left.T @ right.T``, of low rank.
    """

    place: np.ndarray  # (n_features,) int32: number among these columns, or -1
    left: np.ndarray  # (rank, n_classes) float32
    right: np.ndarray  # (n_columns, rank) float32
    starts: np.ndarray  # (n_classes + 1,) int64: where the weights of each class begin ...
    columns: np.ndarray  # int32: ... their columns among these ...
    values: np.ndarray  # float32: ... and the weights


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
            x = rows.data[p]
            for q in range(postings.offsets[f], postings.offsets[f + 1]):
                # unsigned: no look for indices from the end
                line[np.uint32(postings.classes[q])] += x * postings.values[q]


@helper
def project_frequent(rows, r, frequent, entries, out):
    """Fill `out` (rank,) with the product of a row and the right factor, and `entries` (n_columns,) with the
    row's frequent columns; `clear_frequent` makes them zero again.
    """
    for j in range(out.size):
        out[j] = 0.0
    if frequent.right.size == 0:
        return
    for p in range(rows.indptr[r], rows.indptr[r + 1]):
        at = frequent.place[rows.indices[p]]
        if at >= 0:
            entries[at] = rows.data[p]
            for j in range(out.size):
                out[j] += rows.data[p] * frequent.right[at, j]


@helper
def clear_frequent(rows, r, frequent, entries):
    """Set the frequent columns of a row to zero."""
    if frequent.right.size == 0:
        return
    for p in range(rows.indptr[r], rows.indptr[r + 1]):
        at = frequent.place[rows.indices[p]]
        if at >= 0:
            entries[at] = 0.0


@helper
def start_scores(biases, mass, frequent, coordinates, scores):
    """Fill the scores of all classes with their biases and what stands for the frequent columns."""
    for start in range(0, scores.size, 2048):
        block = scores[start : start + 2048]
        fixed, by_length = biases[0][start : start + 2048], biases[1][start : start + 2048]
        for y in range(block.size):
            block[y] = fixed[y] + mass * by_length[y]
        for j in range(coordinates.size):
            factor, line = np.float32(coordinates[j]), frequent.left[j, start : start + 2048]
            for y in range(block.size):
                block[y] += factor * line[y]


@helper
def frequent_gap(frequent, entries, coordinates, label):
    """Return what the frequent columns really add to the score of a class minus what stood for them."""
    total = np.float32(0.0)
    for q in range(frequent.starts[label], frequent.starts[label + 1]):
        total += entries[frequent.columns[q]] * frequent.values[q]
    for j in range(coordinates.size):
        total -= np.float32(coordinates[j]) * frequent.left[j, label]
    return total


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
                    total += rows.data[p] * postings.values[at]
            out[i, j] = total + mass * biases[1][label] + biases[0][label]


@njit
def sum_squares(postings, out):
    """Add the squared weights of each class to `out` (n_classes,) float64."""
    for q in range(postings.classes.size):
        out[postings.classes[q]] += np.float64(postings.values[q]) * postings.values[q]


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
