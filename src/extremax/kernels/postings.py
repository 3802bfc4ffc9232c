"""Compressed matrices, counted, transposed and added without temporary arrays.

A matrix has lines (rows of CSR, columns of CSC): entries ``offsets[i]`` to ``offsets[i + 1]`` are those of
line i.  Functions that return an unknown number of entries are called twice: with empty arrays they count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit

_LARGEST = np.float32(127.0)  # of packed values
_SMALLEST = np.float32(1e-37)  # step


class Postings(NamedTuple):
    """Weights by feature: entries ``offsets[f]`` to ``offsets[f + 1]`` are those of feature f.

    Those of a finished model are packed: a weight is a small integer times the step of its feature.
    """

    offsets: np.ndarray  # (n_features + 1,) int64
    classes: np.ndarray  # (n_entries,) int32 or, packed, uint16 where they fit; ascending within a feature
    values: np.ndarray  # (n_entries,) float32 or, packed, int8
    steps: np.ndarray = np.empty(0, np.float32)  # (n_features,) float32 where values are packed


@inline
def step_of(postings, f):
    """Return what a value of one stands for in feature f."""
    return postings.steps[f] if postings.steps.size > 0 else np.float32(1.0)


@njit
def place_lines(offsets, indices, values, first, starts, lines, out):
    """Put the entries of lines `first` and on where each index begins, and move that place behind them."""
    for line in range(offsets.size - 1):
        for p in range(offsets[line], offsets[line + 1]):
            at = starts[indices[p]]
            lines[at] = first + line
            if out.size > 0:
                out[at] = values[p]
            starts[indices[p]] = at + 1


@njit
def transpose(offsets, indices, values, starts, lines, out):
    """Sort the entries of a matrix by index: fill `starts` (zero on entry), their lines, and their values.

    Empty `out` leaves out the values.
    """
    n = starts.size - 1
    for p in range(indices.size):
        starts[indices[p] + 1] += 1
    for i in range(n):
        starts[i + 1] += starts[i]
    place_lines(offsets, indices, values, 0, starts, lines, out)
    for i in range(n, 0, -1):  # each is now where the next begins
        starts[i] = starts[i - 1]
    starts[0] = 0


@njit
def join_postings(one, two, mean, threshold, ends, steps, classes, values, first, last):
    """Count or compute the sum of two sets of weights for features of a range.

    Parameters
    ----------
    one, two : Postings
        Classes rise within a feature.
    mean, threshold : (n_features,) float32, float32
        Sums of zero, and those whose magnitude times the mean of the feature is below the threshold, are
        left out.
    ends : (n_features + 1,) int64
        With empty `classes`, ``ends[f + 1]`` is filled with the number of sums of feature f; else ``ends[f]``
        is where they go.
    steps : (n_features,) float32, or empty
        With empty `classes`, filled with the step of each feature; else sums are divided by it, and rounded.
    """
    fill, packs = classes.size > 0, steps.size > 0
    for f in range(first, last):
        i, j = one.offsets[f], two.offsets[f]
        last_i, last_j = one.offsets[f + 1], two.offsets[f + 1]
        step_i, step_j = step_of(one, f), step_of(two, f)
        at, largest = ends[f] if fill else 0, np.float32(0.0)
        while i < last_i or j < last_j:
            from_one = i < last_i and (j >= last_j or one.classes[i] <= two.classes[j])
            from_two = j < last_j and (i >= last_i or two.classes[j] <= one.classes[i])
            label, value = np.int32(0), np.float32(0.0)
            if from_two:
                label, value = np.int32(two.classes[j]), step_j * np.float32(two.values[j])
                j += 1
            if from_one:
                label, value = np.int32(one.classes[i]), step_i * np.float32(one.values[i]) + value
                i += 1
            if value != 0.0 and abs(value) * mean[f] >= threshold:
                if fill:
                    classes[at] = label
                    values[at] = np.rint(value / steps[f]) if packs else value
                else:
                    largest = max(largest, abs(value))
                at += 1
        if not fill:
            ends[f + 1] = at
            if packs:
                steps[f] = max(largest / _LARGEST, _SMALLEST)
