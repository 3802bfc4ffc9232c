"""Scores of all classes by columns of weights: those that a large fraction of the classes have a weight on.

A posting costs an addition to a scattered place; a column in which most classes have a weight costs less as a
plain array, which SIMD units add many classes at a time.  The columns lie in tiles of `TILE` classes: the
tile of a row's scores stays in registers while all its columns are added, and the tile of the columns stays
in cache while all rows use it.  The sum of a score has one order, that of the row's own columns, so that
neither the other rows nor the number of threads enter the arithmetic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.postings import step_of
from extremax.kernels.simd import sum_columns
from extremax.kernels.topk import (
    STRIP,
    clear_heap,
    finish_row,
    merge_strip,
    row_inverse_temperature,
    sort_heap,
    sum_strip,
)


class ColumnTable(NamedTuple):
    """Columns of weights, and which of them a row uses.

    The first column holds the factors of the sum of a row's words, the next ones those of the projection.
    """

    labels: np.ndarray  # (n_classes,) int32: 0, 1, 2, ...
    tiles: np.ndarray  # (n_tiles, n_columns, TILE) float32
    place: np.ndarray  # (n_features,) int32: column of a feature, or -1
    line: np.ndarray  # (n_features,) int32: line of the projection that a feature has, or -1
    projection: np.ndarray  # (n_lines, n_projected) float32
    n_words: int  # features that count for the sum of a row; the others are dense columns
    unit_rows: bool  # whether what the projection reads is scaled to unit length


class RowParts(NamedTuple):
    """What the scores of each row consist of: columns with factors, and postings with factors.

    Columns ``starts[i]`` to ``starts[i + 1]`` are those of row i, and so are postings ``firsts[i]`` to
    ``firsts[i + 1]``, whose entries are ``low`` to ``high``.
    """

    starts: np.ndarray  # (n + 1,) int64
    columns: np.ndarray  # int32
    factors: np.ndarray  # float32
    firsts: np.ndarray  # (n + 1,) int64
    low: np.ndarray  # int64
    high: np.ndarray  # int64
    values: np.ndarray  # float32


@njit
def list_parts(rows, table, postings, parts):
    """Fill the parts of each row: the sum of its words, its projection, its own columns, its postings.

    `parts` has places for one column per entry, one more and all of the projection per row, and one posting
    per entry.
    """
    at, rest, n_projected = 0, 0, table.projection.shape[1]
    parts.starts[0] = parts.firsts[0] = 0
    for i in range(rows.indptr.size - 1):
        start, stop = rows.indptr[i], rows.indptr[i + 1]
        mass, reads, square = np.float32(0.0), False, 0.0
        for p in range(start, stop):
            f, x = rows.indices[p], rows.data[p]
            if f < table.n_words:
                mass += x
            if table.line[f] >= 0:
                reads = True
                square += np.float64(x) * x
        parts.columns[at], parts.factors[at] = 0, mass
        at += 1
        if reads:
            scale = np.float32(1.0)
            if table.unit_rows:
                scale = np.float32(1.0 / math.sqrt(square if square > 1e-18 else 1e-18))
            for j in range(n_projected):
                parts.columns[at + j], parts.factors[at + j] = 1 + j, np.float32(0.0)
            for p in range(start, stop):
                line = table.line[rows.indices[p]]
                if line >= 0:
                    x = rows.data[p] * scale
                    for j in range(n_projected):
                        parts.factors[at + j] += x * table.projection[line, j]
            at += n_projected
        for p in range(start, stop):
            f, x = rows.indices[p], rows.data[p]
            if table.place[f] >= 0:
                parts.columns[at], parts.factors[at] = table.place[f], x
                at += 1
            elif postings.offsets[f] < postings.offsets[f + 1]:
                parts.low[rest], parts.high[rest] = postings.offsets[f], postings.offsets[f + 1]
                parts.values[rest] = x * step_of(postings, f)
                rest += 1
        parts.starts[i + 1], parts.firsts[i + 1] = at, rest


@njit
def sum_tiles(table, parts, first, last, out):
    """Fill tiles `first` to before `last` of all rows of `out` (n, n_tiles * TILE) float32, in C order."""
    starts = parts.starts
    for t in range(first, last):
        for i in range(out.shape[0]):
            sum_columns(table.tiles, t, parts.columns, parts.factors, starts[i], starts[i + 1], out, i)


@njit
def find_best(postings, parts, first, classes, tempering, scores, targets, line, result):
    """Add what postings hold to the scores of some rows, and find the best classes.

    Parameters
    ----------
    parts : RowParts
        Of all rows of a block; the scores hold the columns already.
    first : int
        Row of the block that is the first of these n.
    classes : (labels, biases)
        All classes, and ``b``, which is added last: sums of smaller numbers round less.
    tempering : (float, float, float)
        See `extremax.kernels.topk.row_inverse_temperature`.
    scores : (n, n_classes or more) float32
        Of the columns alone.
    targets : (n,) int32
        A class of each row, or -1.
    line : (n_classes or more,) float32
        Scratch: a row's scores, which stay in the second-level cache from step to step.
    result : extremax.scores.scan.ScanResult
        Filled, for these rows.
    """
    labels, biases = classes
    n_classes = labels.size
    for i in range(targets.size):
        own = scores[i]
        for y in range(n_classes):
            line[y] = own[y]
        for p in range(parts.firsts[first + i], parts.firsts[first + i + 1]):
            x = parts.values[p]  # times the step of the feature
            for q in range(parts.low[p], parts.high[p]):
                # unsigned: no look for indices from the end
                line[np.uint32(postings.classes[q])] += x * np.float32(postings.values[q])
        inverse, peak, mass = np.float32(tempering[0]), np.float32(-np.inf), 0.0
        best, best_labels = result.log_prob[i], result.labels[i]
        clear_heap(best, best_labels)
        for start in range(0, n_classes, STRIP):
            stop = min(start + STRIP, n_classes)
            strip, bias = line[start:stop], biases[start:stop]
            for j in range(strip.size):
                strip[j] += bias[j]
            peak, mass = merge_strip(strip, labels[start:stop], best, best_labels, inverse, peak, mass)
        sort_heap(best, best_labels, best.size)
        if tempering[1] != 0.0:
            inverse = row_inverse_temperature(tempering, -math.log(mass))
            peak, mass = best[0] * inverse, 0.0
            for start in range(0, n_classes, STRIP):
                mass += sum_strip(line[start : min(start + STRIP, n_classes)], inverse, peak)
        log_mass = finish_row(best, best_labels, inverse, peak, mass)
        target = line[targets[i]] if targets[i] >= 0 else np.float32(np.nan)
        result.target_log_prob[i] = (target * inverse - peak) - log_mass
        result.inverse_temperature[i] = inverse
