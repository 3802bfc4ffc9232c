"""Parse lines ``label,label index:value index:value ...``, the text of the XMC repository and of libsvm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit

NEWLINE, RETURN, SPACE, TAB, COMMA, COLON, HASH = 10, 13, 32, 9, 44, 58, 35
PLUS, MINUS, POINT, ZERO, UPPER_E, LOWER_E = 43, 45, 46, 48, 69, 101
_POWERS = 10.0 ** np.arange(309)
_FLOAT32_MAX = float(np.finfo(np.float32).max)


class SparseLines(NamedTuple):
    """Output of `parse_sparse_lines`, large enough for all labels, features and lines of the buffer."""

    labels: np.ndarray  # int64, labels of all lines in sequence
    label_ends: np.ndarray  # int64: 0, then the end of the labels of each line
    indices: np.ndarray  # int32
    values: np.ndarray  # float32
    feature_ends: np.ndarray  # int64: 0, then the end of the features of each line


@inline
def _is_blank(c):
    return c in (SPACE, TAB, RETURN)


@inline
def _is_end(c):
    return c in (NEWLINE, HASH)


@njit
def _read_number(buffer, p):
    """Return the decimal number at p and the place after it, or p itself if there is no number."""
    start = p
    negative = buffer[p] == MINUS
    p += buffer[p] in (MINUS, PLUS)
    mantissa = 0
    exponent = 0
    n_digits = 0
    kept = 0  # digits of the mantissa from the first nonzero one; 18 fit an int64
    after_point = False
    while True:
        c = int(buffer[p])
        if c == POINT and not after_point:
            after_point = True
        elif ZERO <= c <= ZERO + 9:
            n_digits += 1
            if kept < 18:
                mantissa = mantissa * 10 + (c - ZERO)
                kept += mantissa > 0
                exponent -= after_point
            else:
                exponent += not after_point
        else:
            break
        p += 1
    if n_digits == 0:
        return 0.0, start
    if c in (LOWER_E, UPPER_E):
        p += 1
        down = buffer[p] == MINUS
        p += buffer[p] in (MINUS, PLUS)
        first = p
        power = 0
        while ZERO <= buffer[p] <= ZERO + 9:
            power = min(power * 10 + (int(buffer[p]) - ZERO), 100_000)
            p += 1
        if p == first:
            return 0.0, start
        exponent += -power if down else power
    value = float(mantissa)
    if exponent < 0:
        value = value / _POWERS[-exponent] if exponent >= -308 else 0.0
    elif exponent > 0 and mantissa > 0:
        value = value * _POWERS[exponent] if exponent <= 60 else np.inf
    return (-value if negative else value), p


@njit
def parse_sparse_lines(buffer, p, row, label_range, n_features, out):
    """Parse whole lines from place p into the rows of `out` from `row`, a row for every line.

    Returns the place of the first word that is not a label in `label_range` (first, last) or a feature with
    an index below `n_features` and a finite value, else the end of the buffer; and the next row. The buffer
    ends with a newline, which ends every loop.
    """
    while p < len(buffer):
        n_labels = out.label_ends[row]
        n_values = out.feature_ends[row]
        # labels, up to the first blank; a first word with a colon is a feature already
        word = p
        more = not _is_blank(buffer[p]) and not _is_end(buffer[p])
        while more:
            number, stop = _read_number(buffer, p)
            if stop > p and buffer[stop] == COLON and p == word:
                break
            more = buffer[stop] == COMMA
            ends = more or _is_blank(buffer[stop]) or _is_end(buffer[stop])
            if stop == p or not ends or not label_range[0] <= number <= label_range[1] or number % 1 != 0:
                return p, row
            out.labels[n_labels] = int(number)
            n_labels += 1
            p = stop + more
        # features
        while True:
            while _is_blank(buffer[p]):
                p += 1
            if _is_end(buffer[p]):
                break
            number, colon = _read_number(buffer, p)
            if colon == p or buffer[colon] != COLON or not 0 <= number < n_features or number % 1 != 0:
                return p, row
            value, stop = _read_number(buffer, colon + 1)
            ends = _is_blank(buffer[stop]) or _is_end(buffer[stop])
            if stop == colon + 1 or not ends or not abs(value) <= _FLOAT32_MAX:
                return p, row
            out.indices[n_values] = int(number)
            out.values[n_values] = value
            n_values += 1
            p = stop
        while buffer[p] != NEWLINE:
            p += 1
        p += 1
        row += 1
        out.label_ends[row] = n_labels
        out.feature_ends[row] = n_values
    return p, row
