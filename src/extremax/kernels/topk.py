"""Running top-k and log-sum-exp over tiles of scores, and the choice among candidates.

A tile holds the products x.w_y of some rows and some classes, fresh from a matrix product and still in cache.
One pass over it adds the biases, removes the bias of the noise (Eq. 5 of the paper), keeps the k best classes
of each row and updates the row's log-sum-exp (the normaliser of Eq. 1), so that scores of all classes never
exist at once.

The state of one row is a heap of its k best classes with the worst on top, the largest score seen divided by
the temperature (`peak`) and the sum of exp(score / temperature - peak) (`mass`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.math import bits_float, float_bits

_SIGN_MASK = np.int32(0x7FFFFFFF)
LOWEST = np.int32(-0x7FFFFFFF)
_S31 = np.int32(31)
_ZERO = np.float32(0.0)
_MINUS_INF = np.float32(-np.inf)
NO_LABEL = np.int32(0x7FFFFFFF)  # an empty place of a heap: the last in every tie
_HALF, _ONE, _LOG2E, _LN2 = (
    np.float32(0.5),
    np.float32(1.0),
    np.float32(1.44269504088896341),
    np.float32(0.69314718056),
)
_EXP_MIN = np.float32(-87.0)
# minimax polynomial of exp
_P0, _P1, _P2, _P3 = (
    np.float32(0.49999231),
    np.float32(0.16667114),
    np.float32(0.04189011),
    np.float32(0.00831256),
)
# exp(-32) of the peak, times ten million classes, is still below the precision of float32
_NEGLIGIBLE = np.float32(32.0)
STRIP = 256  # scores per strip: long enough for SIMD, short enough that a rescan for the top-k is cheap


class RowState(NamedTuple):
    """Running results of a block of rows over a group of classes."""

    heap_scores: np.ndarray  # (n, k) float32
    heap_labels: np.ndarray  # (n, k) int32
    peak: np.ndarray  # (n,) float32
    mass: np.ndarray  # (n,) float64
    target: np.ndarray  # (n,) int32: column of a row's true class, or -1
    target_score: np.ndarray  # (n,) float32


def empty_states(n_groups: int, n_rows: int, k: int, target: np.ndarray) -> RowState:
    """Return states with a leading axis of groups of classes, nothing merged into them yet."""
    return RowState(
        heap_scores=np.full((n_groups, n_rows, k), -np.inf, np.float32),
        heap_labels=np.full((n_groups, n_rows, k), NO_LABEL, np.int32),
        peak=np.full((n_groups, n_rows), -np.inf, np.float32),
        mass=np.zeros((n_groups, n_rows), np.float64),
        target=target,
        target_score=np.full(n_rows, np.nan, np.float32),  # written by the group that holds the class
    )


class Columns(NamedTuple):
    """Classes of the columns of a tile; `start` is the number of the first of all columns."""

    labels: np.ndarray  # (width,) int32
    biases: np.ndarray  # (width,) float32
    start: int


class LogNoise(NamedTuple):
    """log p_n of a tile.

    Row i and column j of the tile have ``values[row_step * i, first_column + j]``.
    """

    values: np.ndarray  # float32
    row_step: int  # 0 where all rows share one
    first_column: int


class Scaling(NamedTuple):
    """Factors of the products and of the scores."""

    features: np.float32
    inverse_temperature: np.float32


@inline
def exp_nonpositive(x):
    """Return ``exp(x)`` in float32 for x <= 0, relative error below 3e-7; 1e-38 below -87.

    It has three terms fewer than `exp32`, enough for a sum of exponentials and for log(1 + exp).
    """
    x = _EXP_MIN if x < _EXP_MIN else x
    n = np.int32(x * _LOG2E - _HALF)  # towards zero: the nearest whole number
    r = x - np.float32(n) * _LN2
    s = r * r
    # By squares, not by Horner's rule: half as many steps that wait for the one before.
    return (((_P3 * r + _P2) * s + (_P1 * r + _P0)) * s + (r + _ONE)) * bits_float(np.int32((n + 127) << 23))


@inline
def debias(score, log_noise):
    """Apply Eq. 5 to one class: the scalar form of `extremax.scores.remove_bias`."""
    return score + log_noise


@inline
def ordered(x):
    """Map a float32 to an int32 of the same order; integer maxima vectorise, those of floats do not."""
    i = float_bits(x)
    return np.int32(i ^ np.int32(np.int32(i >> _S31) & _SIGN_MASK))


@inline
def unordered(i):
    """Invert `ordered`."""
    return bits_float(np.int32(i ^ np.int32(np.int32(i >> _S31) & _SIGN_MASK)))


@helper
def _replace_worst(scores, labels, k, score, label):
    """Replace the worst item of a heap, at its root: lowest score, among equals largest label."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= k:
            break
        right = child + 1
        if right < k and (
            scores[right] < scores[child]
            or (scores[right] == scores[child] and labels[right] > labels[child])
        ):
            child = right
        if scores[child] > score or (scores[child] == score and labels[child] <= label):
            break
        scores[i] = scores[child]
        labels[i] = labels[child]
        i = child
    scores[i] = score
    labels[i] = label


@helper
def sort_heap(scores, labels, k):
    """Sort a heap in place, best first."""
    for size in range(k - 1, 0, -1):
        score, label = scores[0], labels[0]
        _replace_worst(scores, labels, size, scores[size], labels[size])
        scores[size] = score
        labels[size] = label


@helper
def clear_heap(scores, labels):
    """Make a heap of empty places."""
    for r in range(scores.size):
        scores[r] = _MINUS_INF
        labels[r] = NO_LABEL


@helper
def sum_strip(scores, inverse_temperature, peak):
    """Return the sum of exp(score / temperature - peak) in float32; no score is above the peak."""
    total = _ZERO
    for j in range(scores.size):
        total += exp_nonpositive(scores[j] * inverse_temperature - peak)
    return total


@helper
def merge_strip(scores, labels, heap_scores, heap_labels, inverse_temperature, peak, mass):
    """Merge the scores of some classes into a heap; return the new peak and mass."""
    highest = LOWEST
    for j in range(scores.size):
        rank = ordered(scores[j])
        highest = rank if rank > highest else highest
    best = unordered(highest)
    if best >= heap_scores[0]:
        for j in range(scores.size):
            value = scores[j]
            if value > heap_scores[0] or (value == heap_scores[0] and labels[j] < heap_labels[0]):
                _replace_worst(heap_scores, heap_labels, heap_scores.size, value, labels[j])
    summit = best * inverse_temperature
    if summit > peak:
        mass *= math.exp(peak - summit)
        peak = summit
    if not summit < peak - _NEGLIGIBLE:  # true for NaN, which then shows in the sum
        mass += sum_strip(scores, inverse_temperature, peak)
    return peak, mass


@njit
def scan_tile(tile, columns, log_noise, scaling, state, strip):
    """Merge the rows of a tile into their state.

    Parameters
    ----------
    tile : (n, width) float32
        Products x.w_y.
    columns : Columns
        Classes of the tile's columns.
    log_noise : LogNoise
        log p_n of the same pairs.
    scaling : Scaling
        Factors of the products and of the scores.
    strip : (STRIP,) float32
        Scratch.
    """
    width = tile.shape[1]
    scale = scaling.features
    first = log_noise.first_column
    for i in range(tile.shape[0]):
        noise_row = log_noise.values[i * log_noise.row_step, first : first + width]
        peak, mass = state.peak[i], state.mass[i]
        for start in range(0, width, STRIP):
            # Slices, not start + j: an index that the compiler cannot prove positive prevents vectorisation.
            products = tile[i, start : start + STRIP]
            biases = columns.biases[start : start + STRIP]
            noise = noise_row[start : start + STRIP]
            for j in range(products.size):
                strip[j] = debias(products[j] * scale + biases[j], noise[j])
            peak, mass = merge_strip(
                strip[: products.size],
                columns.labels[start : start + STRIP],
                state.heap_scores[i],
                state.heap_labels[i],
                scaling.inverse_temperature,
                peak,
                mass,
            )
        state.peak[i], state.mass[i] = peak, mass
        place = state.target[i] - columns.start
        if 0 <= place < width:
            state.target_score[i] = debias(tile[i, place] * scale + columns.biases[place], noise_row[place])


@inline
def row_inverse_temperature(tempering, log_top):
    """Return 1 / (T (p_1 + offset)^slope) from ``log p_1`` at the temperature T.

    `tempering` is (1 / T, slope, offset), as `extremax.calibration` defines them.
    """
    inverse_temperature, slope, offset = tempering
    return np.float32(inverse_temperature * math.exp(-slope * math.log(math.exp(log_top) + offset)))


@njit
def temper_groups(states, tempering, inverse_temperature):
    """Give each row the temperature of its confidence, from the states of all groups of classes.

    Parameters
    ----------
    states : RowState
        With a leading axis of groups, after all classes at the inverse temperature ``tempering[0]``.  Peaks
        become those at the row's temperature, masses zero: `sum_tile` fills them.
    tempering : (float, float, float)
        See `row_inverse_temperature`.
    inverse_temperature : (n,) float32
        Filled.
    """
    n_groups, n, k = states.heap_scores.shape
    for i in range(n):
        best, peak = _MINUS_INF, _MINUS_INF
        for g in range(n_groups):
            peak = max(peak, states.peak[g, i])
            for r in range(k):
                best = max(best, states.heap_scores[g, i, r])
        mass = 0.0
        for g in range(n_groups):
            mass += states.mass[g, i] * math.exp(states.peak[g, i] - peak)
        inverse = row_inverse_temperature(tempering, -math.log(mass))
        inverse_temperature[i] = inverse
        for g in range(n_groups):
            states.peak[g, i], states.mass[g, i] = best * inverse, 0.0


@njit
def sum_tile(tile, biases, scale, inverse_temperature, peak, mass):
    """Add exp(score / temperature - peak) of a tile to the mass of its rows, each at its own temperature.

    `tile` (n, width) are the products of `scan_tile`, without noise; the other arrays but `biases` are (n,).
    """
    for i in range(tile.shape[0]):
        inverse, top = inverse_temperature[i], peak[i]
        for start in range(0, tile.shape[1], STRIP):
            products, bias = tile[i, start : start + STRIP], biases[start : start + STRIP]
            total = _ZERO
            for j in range(products.size):
                total += exp_nonpositive(min((products[j] * scale + bias[j]) * inverse - top, _ZERO))
            mass[i] += total


@helper
def finish_row(scores, labels, inverse_temperature, peak, mass):
    """Turn the sorted scores of a heap into log-probabilities; return the log of the mass.

    Where k is larger than the number of classes, the last places become -1 and minus infinity.
    """
    log_mass = math.log(mass)
    for r in range(scores.size):
        scores[r] = (scores[r] * inverse_temperature - peak) - log_mass
        if labels[r] == NO_LABEL:
            labels[r] = -1
            scores[r] = _MINUS_INF
    return log_mass


@njit
def finish_rows(states, inverse_temperatures, labels, log_prob, target_log_prob):
    """Join the groups of classes, sort best first, normalise by the log-sum-exp over all classes.

    The arrays of ``states`` have a leading axis of groups, which are joined in order; ``labels`` and
    ``log_prob`` (n, k) are filled.
    """
    n_groups, n, k = states.heap_scores.shape
    for i in range(n):
        scores, best, inverse = log_prob[i], labels[i], inverse_temperatures[i]
        clear_heap(scores, best)
        peak, mass = _MINUS_INF, 0.0
        for g in range(n_groups):
            for r in range(k):
                score, label = states.heap_scores[g, i, r], states.heap_labels[g, i, r]
                if score > scores[0] or (score == scores[0] and label < best[0]):
                    _replace_worst(scores, best, k, score, label)
            if states.peak[g, i] > peak:
                mass *= math.exp(peak - states.peak[g, i])
                peak = states.peak[g, i]
            mass += states.mass[g, i] * math.exp(states.peak[g, i] - peak)
        sort_heap(scores, best, k)
        log_mass = finish_row(scores, best, inverse, peak, mass)
        target_log_prob[i] = (states.target_score[i] * inverse - peak) - log_mass


@njit
def choose_candidates(
    scores, candidates, inverse_temperatures, log_rest, first_row, last_row, labels, log_prob
):
    """Choose the k best of each row's candidates, best first, normalised over its candidates and the rest.

    Parameters
    ----------
    scores, candidates : (n, width)
        A candidate -1 stands for none.
    inverse_temperatures, log_rest : (n,) float32
        Of each row; the log of the summed mass of all other classes, minus infinity for none.
    labels, log_prob : (n, k)
        Filled in rows ``first_row`` to before ``last_row``.
    """
    width, k = candidates.shape[1], labels.shape[1]
    for i in range(first_row, last_row):
        best_scores, best_labels = log_prob[i], labels[i]
        inverse_temperature = inverse_temperatures[i]
        clear_heap(best_scores, best_labels)
        peak = _MINUS_INF
        for j in range(width):
            label, score = candidates[i, j], scores[i, j]
            if label >= 0:
                peak = max(peak, score * inverse_temperature)
                if score > best_scores[0] or (score == best_scores[0] and label < best_labels[0]):
                    _replace_worst(best_scores, best_labels, k, score, label)
        mass = 0.0
        for j in range(width):
            if candidates[i, j] >= 0:
                mass += exp_nonpositive(scores[i, j] * inverse_temperature - peak)
        if log_rest[i] > peak:  # the rest may have far more mass than the best candidate
            mass *= math.exp(peak - log_rest[i])
            peak = log_rest[i]
        mass += math.exp(log_rest[i] - peak)
        sort_heap(best_scores, best_labels, k)
        finish_row(best_scores, best_labels, inverse_temperature, peak, mass)
