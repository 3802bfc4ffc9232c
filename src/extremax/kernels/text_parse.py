"""Parse lines ``label,label index:value index:value ...``, the text of the XMC repository and of libsvm.

The input is a chunk of whole lines, the output flat arrays.  A line that is not as expected adds nothing to
the arrays; the place and kind of the error are recorded.  Every chunk ends with a newline, which ends every
loop below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit

NEWLINE, RETURN, SPACE, TAB, COMMA, COLON, HASH = 10, 13, 32, 9, 44, 58, 35
PLUS, MINUS, POINT, ZERO, UPPER_E, LOWER_E = 43, 45, 46, 48, 69, 101

# What was expected where a line went wrong.
FINE, LABEL, LABEL_END, INDEX, INDEX_END, VALUE, VALUE_END, INDEX_RANGE, LABEL_RANGE = range(9)
# Places in `SparseLines.state`.
N_LINES, N_ROWS, N_LABELS, N_FEATURES, N_ERRORS, MAX_INDEX, MIN_INDEX, UNSORTED, LAST_TEXT_ROW = range(9)

_POWERS = 10.0 ** np.arange(309)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT32_MAX = 2**31 - 1


class SparseLines(NamedTuple):
    """Output of `parse_sparse_lines`, large enough for all labels, features and lines of the chunk."""

    labels: np.ndarray  # int64, labels of all rows in sequence
    label_ends: np.ndarray  # int64 (rows,), end of each row's labels
    indices: np.ndarray  # int32
    values: np.ndarray  # float32
    feature_ends: np.ndarray  # int64 (rows,), end of each row's features
    errors: np.ndarray  # int64 (m, 3): line, column, what was expected; lines and columns from 0
    state: np.ndarray  # int64 (9,), counters named above


@njit
def count_marks(buffer):
    """Count newlines, colons and commas of a chunk: bounds for its rows, features and labels."""
    lines = 0
    colons = 0
    commas = 0
    for i in range(len(buffer)):
        c = buffer[i]
        lines += c == NEWLINE
        colons += c == COLON
        commas += c == COMMA
    return lines, colons, commas


@inline
def _is_digit(c):
    return 48 <= c <= 57


@inline
def _is_end(c):
    return c in (SPACE, NEWLINE, TAB, RETURN)


@njit
def _read_integer(buffer, p):
    """Return the integer at p and its end, or -1 if there is none; a sign and ``.000`` are allowed."""
    c = int(buffer[p])
    negative = c == MINUS
    if c in (MINUS, PLUS):
        p += 1
    start = p
    number = 0
    c = int(buffer[p])
    while _is_digit(c) and p - start < 18:
        number = number * 10 + (c - ZERO)
        p += 1
        c = int(buffer[p])
    if p == start or _is_digit(c):
        return 0, -1
    if c == POINT:
        p += 1
        while int(buffer[p]) == ZERO:
            p += 1
    return (-number if negative else number), p


@njit
def _read_float(buffer, p):
    """Return the decimal number at p and its end, or -1 if there is no finite float32."""
    c = int(buffer[p])
    negative = c == MINUS
    if c in (MINUS, PLUS):
        p += 1
        c = int(buffer[p])
    mantissa = 0
    exponent = 0
    n_digits = 0
    kept = 0  # digits of the mantissa from the first nonzero one; 18 fit an int64 and exceed float32
    while _is_digit(c):
        if kept < 18:
            mantissa = mantissa * 10 + (c - ZERO)
            kept += mantissa > 0
        else:
            exponent += 1
        n_digits += 1
        p += 1
        c = int(buffer[p])
    if c == POINT:
        p += 1
        c = int(buffer[p])
        while _is_digit(c):
            if kept < 18:
                mantissa = mantissa * 10 + (c - ZERO)
                kept += mantissa > 0
                exponent -= 1
            n_digits += 1
            p += 1
            c = int(buffer[p])
    if n_digits == 0:
        return 0.0, -1
    if c in (LOWER_E, UPPER_E):
        p += 1
        c = int(buffer[p])
        down = c == MINUS
        if c in (MINUS, PLUS):
            p += 1
            c = int(buffer[p])
        if not _is_digit(c):
            return 0.0, -1
        power = 0
        while _is_digit(c):
            power = min(power * 10 + (c - ZERO), 100_000)
            p += 1
            c = int(buffer[p])
        exponent += -power if down else power
    value = float(mantissa)
    if exponent < 0:
        value = value / _POWERS[-exponent] if exponent >= -308 else 0.0
    elif exponent > 0 and mantissa > 0:
        value = value * _POWERS[exponent] if exponent <= 60 else np.inf
    if value > _FLOAT32_MAX:
        return 0.0, -1
    return (-value if negative else value), p


@njit
def parse_sparse_lines(buffer, n_features, n_labels, keep_blank, skip_bad, out):
    """Parse a chunk of whole lines into `out`.

    Indices must be below `n_features`, labels in [0, n_labels) unless `n_labels` is -1.  Blank lines are
    empty rows if `keep_blank`, else they are skipped.  Returns at the first bad line unless `skip_bad`.
    """
    labels, indices, values, state = out.labels, out.indices, out.values, out.state
    end = len(buffer)
    p = 0
    line = 0
    row = 0
    n_label = 0
    n_value = 0
    max_index = -1
    min_index = _INT32_MAX
    unsorted = 0
    last_text_row = -1
    while p < end:
        line_start = p
        first_label = n_label
        first_value = n_value
        wrong = FINE

        # -- labels, up to the first space; a first word with a colon is a feature already
        c = int(buffer[p])
        while not _is_end(c) and c != HASH:
            number, stop = _read_integer(buffer, p)
            if stop < 0:
                wrong = LABEL
                break
            c = int(buffer[stop])
            if c == COLON and n_label == first_label:
                p = line_start
                break
            if c != COMMA and not _is_end(c):
                wrong = LABEL_END
                p = stop
                break
            if n_labels >= 0 and (number < 0 or number >= n_labels):
                wrong = LABEL_RANGE
                break
            labels[n_label] = number
            n_label += 1
            p = stop
            if c == COMMA:
                p += 1
                c = int(buffer[p])
                if _is_end(c):
                    wrong = LABEL

        # -- features
        previous = -1
        while wrong == FINE:
            c = int(buffer[p])
            while c in (SPACE, TAB, RETURN):
                p += 1
                c = int(buffer[p])
            if c in (NEWLINE, HASH):
                break
            start = p
            index = 0
            while _is_digit(c) and p - start < 10:
                index = index * 10 + (c - ZERO)
                p += 1
                c = int(buffer[p])
            if p == start:
                wrong = INDEX
                break
            if c != COLON:
                wrong = INDEX_END
                break
            if index >= n_features:
                wrong = INDEX_RANGE
                p = start
                break
            value, stop = _read_float(buffer, p + 1)
            if stop < 0:
                wrong = VALUE
                p += 1
                break
            p = stop
            if not _is_end(int(buffer[p])):
                wrong = VALUE_END
                break
            indices[n_value] = index
            values[n_value] = value
            n_value += 1
            unsorted |= index <= previous
            previous = index
            max_index = max(max_index, index)
            min_index = min(min_index, index)

        blank = n_label == first_label and n_value == first_value
        if wrong != FINE:
            n_label = first_label
            n_value = first_value
            n_errors = state[N_ERRORS]
            if n_errors < len(out.errors):
                out.errors[n_errors, 0] = line
                out.errors[n_errors, 1] = p - line_start
                out.errors[n_errors, 2] = wrong
            state[N_ERRORS] += 1
            if not skip_bad:
                break
        elif not blank or (keep_blank and int(buffer[line_start]) != HASH):
            out.label_ends[row] = n_label
            out.feature_ends[row] = n_value
            if not blank:
                last_text_row = row
            row += 1
        while int(buffer[p]) != NEWLINE:
            p += 1
        p += 1
        line += 1
    state[N_LINES] = line
    state[N_ROWS] = row
    state[N_LABELS] = n_label
    state[N_FEATURES] = n_value
    state[MAX_INDEX] = max_index
    state[MIN_INDEX] = min_index
    state[UNSORTED] = unsorted
    state[LAST_TEXT_ROW] = last_text_row
