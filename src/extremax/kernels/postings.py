"""Compressed matrices, counted, transposed, added and thinned out without temporary arrays.

A matrix has lines (rows of CSR, columns of CSC): entries ``offsets[i]`` to ``offsets[i + 1]`` are those of
line i.  Functions that return an unknown number of entries are called twice: with empty arrays they count.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit


@njit
def sum_sizes(rows, used, counts, totals):
    """Add up number and size of the entries of each column, in the order of the rows.

    `used` marks the rows that count; an empty one counts all.  `counts` and `totals` (float64) are zero on
    entry.
    """
    for r in range(rows.indptr.size - 1):
        if used.size == 0 or used[r]:
            for p in range(rows.indptr[r], rows.indptr[r + 1]):
                f = rows.indices[p]
                counts[f] += 1
                totals[f] += np.float64(abs(rows.data[p]))


@njit
def copy_lines(offsets, indices, values, starts, out_indices, out):
    """Copy each line of a matrix to its place in a larger one, and move the place behind it."""
    for i in range(offsets.size - 1):
        at = starts[i]
        for p in range(offsets[i], offsets[i + 1]):
            out_indices[at] = indices[p]
            out[at] = values[p]
            at += 1
        starts[i] = at


@njit
def take_large(postings, mean, threshold, ends, classes, values):
    """Count or copy the weights whose size times the mean of their feature reaches a threshold.

    With empty `classes`, the counts go to ``ends[f + 1]`` as running sums.
    """
    at = 0
    for f in range(postings.offsets.size - 1):
        for q in range(postings.offsets[f], postings.offsets[f + 1]):
            if abs(postings.values[q]) * mean[f] >= threshold:
                if classes.size > 0:
                    classes[at] = postings.classes[q]
                    values[at] = postings.values[q]
                at += 1
        if classes.size == 0:
            ends[f + 1] = at


@njit
def select_columns(rows, place, ends, indices, values):
    """Count or copy the entries of columns with a place, which becomes their number.

    With empty `indices`, the counts go to ``ends[r + 1]`` as running sums.
    """
    at = 0
    for r in range(rows.indptr.size - 1):
        for p in range(rows.indptr[r], rows.indptr[r + 1]):
            column = place[rows.indices[p]]
            if column >= 0:
                if indices.size > 0:
                    indices[at] = column
                    values[at] = rows.data[p]
                at += 1
        if indices.size == 0:
            ends[r + 1] = at


@njit
def transpose(offsets, indices, values, starts, lines, out):
    """Sort the entries of a matrix by index: fill `starts` (zero on entry), their lines, and their values.

    Empty `out` leaves out the values.
    """
    for p in range(offsets[0], offsets[-1]):
        starts[indices[p] + 1] += 1
    for i in range(starts.size - 1):
        starts[i + 1] += starts[i]
    place = starts[:-1].copy()
    for line in range(offsets.size - 1):
        for p in range(offsets[line], offsets[line + 1]):
            at = place[indices[p]]
            lines[at] = line
            if out.size > 0:
                out[at] = values[p]
            place[indices[p]] = at + 1


@njit
def add_postings(one, two, ends, classes, values):
    """Count or compute the sum of two sets of weights; sums of zero are left out.

    With empty `classes`, the counts go to ``ends[f + 1]`` as running sums.
    """
    at = 0
    for f in range(one.offsets.size - 1):
        i, j = one.offsets[f], two.offsets[f]
        last_i, last_j = one.offsets[f + 1], two.offsets[f + 1]
        while i < last_i or j < last_j:
            from_one = i < last_i and (j >= last_j or one.classes[i] <= two.classes[j])
            from_two = j < last_j and (i >= last_i or two.classes[j] <= one.classes[i])
            label, value = np.int32(0), np.float32(0.0)
            if from_two:
                label, value = two.classes[j], two.values[j]
                j += 1
            if from_one:
                label, value = one.classes[i], one.values[i] + value
                i += 1
            if value != 0.0:
                if classes.size > 0:
                    classes[at] = label
                    values[at] = value
                at += 1
        if classes.size == 0:
            ends[f + 1] = at
