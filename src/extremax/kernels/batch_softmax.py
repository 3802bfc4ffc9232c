"""Minibatches whose rows share their classes: draw the classes, softmax over them, step along the summed
gradients.

A class set is drawn *systematically*: class y is in it at most once, with the known inclusion probability
pi_y (1 for all classes gives the exact softmax). The sum over the other classes is estimated by the classes
of the set, each divided by pi:

    Z_i = exp(s_{i,y_i}) + sum over j in the set, j != y_i, of exp(s_ij) / pi_j,     E[Z_i] = the softmax's own sum.

Where rows have several labels, the sum leaves out all of the row's own: each is compared with the classes
that do not apply.

The products around these kernels (scores, summed gradients) are BLAS's.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.math import exp32, rsqrt32

_LEAST = np.float32(-1e30)


@njit
def _walk(cumulative, start, out):
    """Numbers of the items hit by start, start + 1, start + 2, ... on the line of cumulated lengths (each
    at most 1).
    """
    count, first, n = 0, 0, cumulative.shape[0]
    # Lengths sum to a whole number; what rounding adds to it must not make one hit more, for which there is
    # no room.
    end = min(cumulative[n - 1], np.floor(cumulative[n - 1] + 0.5))
    mark = start
    while mark < end:
        low, high = first, n - 1
        while low < high:  # first item whose end lies behind the mark
            middle = (low + high) // 2
            if cumulative[middle] > mark:
                high = middle
            else:
                low = middle + 1
        out[count] = low
        count += 1
        first = low + 1
        mark += 1.0
        if first >= n:
            break
    return count


@njit
def _length(cumulative, i):
    return cumulative[i] - cumulative[i - 1] if i > 0 else cumulative[0]


@njit
def draw_shared(everywhere, cell_classes, cell_cumulative, first, second, classes, minus_log_pi, scratch):
    """Union of one systematic sample of all classes and one of a cell's: sorted classes and -log pi; returns
    how many.

    ``everywhere`` (C,) cumulates the inclusion probabilities of all classes, ``cell_cumulative`` those of ``cell_classes``
    (ascending; may be none); `first` and `second` in [0, 1) place the two samples. They are independent, so a
    class is in the union with probability 1 - (1 - a)(1 - b)."""
    n_all = _walk(everywhere, first, scratch)
    n_cell = 0
    if cell_classes.shape[0] > 0:
        n_cell = _walk(cell_cumulative, second, scratch[n_all:])
    count, i, j, place = 0, 0, 0, 0
    while i < n_all or j < n_cell:
        left = np.int64(scratch[i]) if i < n_all else np.int64(1) << 62
        right = np.int64(cell_classes[scratch[n_all + j]]) if j < n_cell else np.int64(1) << 62
        label = min(left, right)
        if left == label:
            i += 1
        if right == label:
            j += 1
        inside = 0.0
        if cell_classes.shape[0] > 0:
            low, high = place, cell_classes.shape[0]
            while low < high:
                middle = (low + high) // 2
                if cell_classes[middle] < label:
                    low = middle + 1
                else:
                    high = middle
            place = low
            if low < cell_classes.shape[0] and cell_classes[low] == label:
                inside = min(_length(cell_cumulative, low), 1.0)
        outside = min(_length(everywhere, label), 1.0)
        pi = 1.0 - (1.0 - outside) * (1.0 - inside)
        classes[count] = label
        minus_log_pi[count] = -np.log(pi)
        count += 1
    return count


@njit
def find_slots(classes, n_classes_drawn, labels, place, slots, extra):
    """Column of each label in the class set, or a new number behind it; returns how many new ones, whose
    labels go to `extra`.

    ``place`` (C,) holds -1 everywhere, before and after.
    """
    for j in range(n_classes_drawn):
        place[classes[j]] = j
    n_extra = 0
    for i in range(labels.shape[0]):
        label = labels[i]
        if place[label] < 0:
            place[label] = n_classes_drawn + n_extra
            extra[n_extra] = label
            n_extra += 1
        slots[i] = place[label]
    for j in range(n_classes_drawn):
        place[classes[j]] = -1
    for j in range(n_extra):
        place[extra[j]] = -1
    return n_extra


@njit
def leave_out_labels(scores, classes, rows, edges, labels, start, stop):
    """Classes of the set that are labels of a row weigh nothing in it: their ``scores`` (n, S) of rows
    [start, stop) go.

    ``classes`` (S,) ascend; the labels of row ``rows[i]`` are ``labels[edges[rows[i]] : edges[rows[i] + 1]]``.
    """
    for i in range(start, stop):
        for at in range(edges[rows[i]], edges[rows[i] + 1]):
            low, high = 0, scores.shape[1]
            while low < high:
                middle = (low + high) // 2
                if classes[middle] < labels[at]:
                    low = middle + 1
                else:
                    high = middle
            if low < scores.shape[1] and classes[low] == labels[at]:
                scores[i, low] = _LEAST


@njit
def shared_softmax(
    scores, shift, x, labels, slots, weights, biases, row_weight, positive, losses, start, stop
):
    """Coefficients of rows [start, stop), in place of their ``scores`` (n, S); of the positives in
    ``positive``.

    ``shift`` (S,) is b_j - log pi_j; a set class that is the row's own label stands aside, for its exact score counts.
    """
    width = scores.shape[1]
    for i in range(start, stop):
        w = weights[labels[i]]
        own = np.float32(0.0)
        for k in range(x.shape[1]):
            own += x[i, k] * w[k]
        own += biases[labels[i]]
        row = scores[i]
        for j in range(width):
            row[j] += shift[j]
        if slots[i] < width:
            row[slots[i]] = _LEAST
        top = own
        for j in range(width):
            top = max(top, row[j])
        norm = np.float32(0.0)
        for j in range(width):
            e = exp32(row[j] - top)
            row[j] = e
            norm += e
        if slots[i] < width:  # exp32 is never 0
            norm -= row[slots[i]]
            row[slots[i]] = np.float32(0.0)
        e = exp32(own - top)
        norm += e
        factor = row_weight[i] / norm
        for j in range(width):
            row[j] *= factor
        positive[i] = e * factor - row_weight[i]
        losses[i] = row_weight[i] * (np.log(np.float64(norm)) + top - own)


@njit
def apply_shared(
    gradients, coefficients, x, positive, slots, classes, first, last, n_set, model, learning_rate, limit
):
    """Adagrad (or SGD) for the classes in slots [first, last): their summed gradients, and what the positives
    add.

    No step of Adagrad with one sum per class is longer than ``limit``.

    ``gradients`` holds the slots' sums over the rows of coefficient times x; for slots from ``n_set`` on, zeros.
    """
    n_features = x.shape[1]
    sums = np.zeros(last - first, np.float32)
    if first < n_set:
        for i in range(x.shape[0]):
            for j in range(first, last):
                sums[j - first] += coefficients[i, j]
    for i in range(x.shape[0]):
        slot = slots[i]
        if first <= slot < last:
            c, g = positive[i], gradients[slot]
            sums[slot - first] += c
            for k in range(n_features):
                g[k] += c * x[i, k]
    for slot in range(first, last):
        label, g, c = classes[slot], gradients[slot], sums[slot - first]
        w = model.weights[label]
        if model.squares.shape[1] == 0:
            model.biases[label] -= learning_rate * c
            for k in range(n_features):
                w[k] -= learning_rate * g[k]
            continue
        model.bias_squares[label] += c * c
        model.biases[label] -= learning_rate * c * rsqrt32(model.bias_squares[label])
        if model.squares.shape[1] == 1:
            norm = np.float32(0.0)
            for k in range(n_features):
                norm += g[k] * g[k]
            model.squares[label, 0] += norm / np.float32(n_features)
            step = learning_rate * rsqrt32(model.squares[label, 0])
            if step * step * norm > limit * limit:
                step = limit * rsqrt32(norm)
            for k in range(n_features):
                w[k] -= step * g[k]
        else:
            a = model.squares[label]
            for k in range(n_features):
                s = a[k] + g[k] * g[k]
                a[k] = s
                w[k] -= learning_rate * g[k] * rsqrt32(s)


@njit
def add_rows(X, rows, labels, weight, sums, part, n_parts):
    """sums[labels[i]] += weight[i] * X[rows[i]], the classes with ``label % n_parts == part`` alone, in
    order.
    """
    for i in range(labels.shape[0]):
        label = labels[i]
        if label % n_parts == part:
            x, s, w = X[rows[i]], sums[label], weight[i]
            for k in range(X.shape[1]):
                s[k] += w * x[k]
