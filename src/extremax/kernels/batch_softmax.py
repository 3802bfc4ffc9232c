"""Minibatches whose rows share their classes: draw the classes, softmax, steps along summed gradients.

A class set is drawn *systematically*: class y is in it at most once, with the known inclusion probability
pi_y (1 for all classes gives the exact softmax).  The sum over the other classes is estimated from the
classes of the set, each divided by its pi:

    Z_i = exp(s_{i,y_i}) + sum over j in the set, j != y_i, of exp(s_ij) / pi_j,

whose expectation is the sum of the full softmax.  Where rows have several labels, the sum leaves out all
labels of the row: each is compared with the classes that do not apply.

A quadratic regularizer of the scores (the paper's appendix A.2) adds, for a row with the label y,

    lambda [s_y^2 + (1/C) sum over all classes j of s_j^2],

the mean penalty of negative sampling with one uniform negative.  The sum is estimated with the same pi:
s_y^2 + sum over j in the set, j != y, of s_j^2 / pi_j has it as its expectation.

BLAS computes the products around these kernels (scores, summed gradients).
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.math import exp32, rsqrt32

_LEAST = np.float32(-1e30)
_LEFT_OUT = np.float32(-1e29)  # scores below are those of labels that were left out


@njit
def _walk(cumulative, start, out):
    """Draw a systematic sample: the items that contain the marks start, start + 1, start + 2, ...

    Item i is the interval up to ``cumulative[i]``, of length at most 1.  Returns the size of the sample.
    """
    count, first, n = 0, 0, cumulative.shape[0]
    # Lengths sum to a whole number; rounding must not add a mark beyond the end of `out`.
    end = min(cumulative[n - 1], np.floor(cumulative[n - 1] + 0.5))
    mark = start
    while mark < end:
        low, high = first, n - 1
        while low < high:  # bisection for the first item that ends after the mark
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
    """Return the length of item i."""
    return cumulative[i] - cumulative[i - 1] if i > 0 else cumulative[0]


@njit
def draw_shared(everywhere, cell_classes, cell_cumulative, first, second, classes, minus_log_pi, scratch):
    """Draw the union of a systematic sample of all classes and one of a cell's; return its size.

    The two samples are independent: a class of inclusion probabilities a and b is in the union with
    probability pi = 1 - (1 - a)(1 - b).

    Parameters
    ----------
    everywhere : (C,)
        Cumulated inclusion probabilities of all classes.
    cell_classes, cell_cumulative
        Classes of the cell, ascending, and their cumulated inclusion probabilities; both may be empty.
    first, second
        Positions of the two samples, in [0, 1).
    classes, minus_log_pi
        Filled with the sorted classes of the union and their -log pi.
    """
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
    """Find the column of each label in the class set; return how many labels are not in it.

    Labels outside of the set get the columns behind it, in the order of `extra`, which is filled with them.
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
    """Remove from the ``scores`` (n, S) of rows [start, stop) the classes that are labels of the row.

    ``classes`` (S,) ascend; the labels of row r = ``rows[i]`` are ``labels[edges[r] : edges[r + 1]]``.
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
    """Compute losses and coefficients of rows [start, stop).

    Parameters
    ----------
    scores : (n, S)
        Products x.w_j with the classes of the set; overwritten by their coefficients.
    shift : (S,)
        b_j - log pi_j.
    x, labels, row_weight
        Rows, their positive classes and their weights.
    slots : (n,)
        Column of the positive class, which is left out of the set: its exact score enters; S or more where
        it is not in the set.
    weights, biases
        Of all classes.
    positive : (n,)
        Filled with the coefficients of the positives.
    losses : (n,)
        Filled.
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
def penalized_softmax(
    scores, shift, minus_log_pi, x, labels, slots, weights, biases, row_weight, penalty, positive, losses,
    start, stop,
):  # fmt: skip
    """Do the same as `shared_softmax` with a penalty on scores; labels that were left out have none.

    Parameters
    ----------
    minus_log_pi : (S,)
        -log pi_j.
    penalty
        lambda; the number of classes is that of ``weights``.
    """
    width = scores.shape[1]
    share = np.float32(1.0 / weights.shape[0])
    slopes = np.empty(width, np.float32)
    inverse_pi = np.empty(width, np.float32)
    for j in range(width):
        inverse_pi[j] = exp32(minus_log_pi[j])
    for i in range(start, stop):
        squares = np.float64(0.0)
        for j in range(width):
            s = scores[i, j] + shift[j] - minus_log_pi[j]
            slopes[j] = np.float32(0.0)
            if j != slots[i] and scores[i, j] > _LEFT_OUT:
                slopes[j] = s * inverse_pi[j]
                squares += np.float64(slopes[j]) * s
        shared_softmax(
            scores, shift, x, labels, slots, weights, biases, row_weight, positive, losses, i, i + 1
        )
        w = weights[labels[i]]
        own = np.float32(0.0)
        for k in range(x.shape[1]):
            own += x[i, k] * w[k]
        own += biases[labels[i]]
        strength = np.float32(2.0) * penalty * row_weight[i]
        for j in range(width):
            scores[i, j] += strength * share * slopes[j]
        positive[i] += strength * own * (np.float32(1.0) + share)
        square = np.float64(own) * own
        losses[i] += penalty * row_weight[i] * (square + (square + squares) * share)


@njit
def apply_shared(
    gradients, coefficients, x, positive, slots, classes, first, last, n_set, model, learning_rate,
    bias_rate, limit,
):  # fmt: skip
    """Update the classes in slots [first, last) by Adagrad or SGD.

    The slots are all below `n_set`, classes of the set, or all from `n_set` on, positives outside of it.

    Parameters
    ----------
    gradients : (slots, K)
        Sums over the rows of coefficient times x, without the positives; zeros for slots from `n_set` on.
    coefficients : (n, n_set)
        Coefficients of the classes of the set.
    x, positive, slots : (n, K), (n,), (n,)
        Rows, coefficients of their positives and the slots of those.
    classes
        Class of each slot.
    learning_rate, bias_rate
        Of weights and of biases.
    limit
        Longest step of Adagrad with one sum per class.
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
            model.biases[label] -= bias_rate * c
            for k in range(n_features):
                w[k] -= learning_rate * g[k]
            continue
        model.bias_squares[label] += c * c
        model.biases[label] -= bias_rate * c * rsqrt32(model.bias_squares[label])
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
    """Add weight[i] * X[rows[i]] to sums[labels[i]], in order, for the classes of one part.

    Part `part` of `n_parts` has the classes with ``label % n_parts == part``.
    """
    for i in range(labels.shape[0]):
        label = labels[i]
        if label % n_parts == part:
            x, s, w = X[rows[i]], sums[label], weight[i]
            for k in range(X.shape[1]):
                s[k] += w * x[k]
