"""A head's scores, expressed against another noise distribution.

A debiased score is s = xi + log p_n(y|x). When p_n changes from old to new, s stays what it was if every
xi_y(x) grows by
``delta = log p_old(y|x) - log p_new(y|x)``. A linear head can follow only as far as delta is linear in x, class by class:
ridge regression of delta on the coordinates that the tree sees, over the rows' own labels and draws from
either distribution, pairs that the head thinks probable weighing most. A tenth of the rows is kept out to
choose the ridge and to measure what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RIDGES = (0.1, 1.0, 10.0, 100.0, 1e4)
_BIAS_RIDGE = 0.1
_HELD_OUT = 10  # one row in so many
_PAIRS_AT_ONCE = 8192  # their outer products exist at the same time

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Rebase:
    """How well the scores were carried over to another noise distribution.

    Attributes
    ----------
    shift : float
        Weighted root mean square of ``log p_old - log p_new`` over held-out pairs: the error if the scores
        were left alone.
    residual : float
        The same of what the head could not absorb: the error of debiased scores after the change.
    """

    shift: float
    residual: float


@dataclass(frozen=True)
class Change:
    """What to add to the head: for each of `classes` a vector over the tree's coordinates, and a bias."""

    classes: Int32
    weights: Float64
    biases: Float64
    quality: Rebase


def fit_change(Z: Float32, labels: Int32, delta: Float32, pair_weight: NDArray[np.floating]) -> Change:
    """The linear change of scores that follows `delta` best.

    Parameters
    ----------
    Z : (n, k)
        The tree's coordinates of the rows.
    labels : (n, m)
        Classes of the pairs that each row takes part in.
    delta : (n, m)
        Wanted change of the score of each pair.
    pair_weight : (n, m)
        How much each pair matters, 1 on average.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> Z, labels = rng.normal(size=(2000, 2)).astype(np.float32), rng.integers(3, size=(2000, 4)).astype(np.int32)
    >>> slope = np.array([[1.0, 0.0], [0.0, -2.0], [0.5, 0.5]])
    >>> delta = np.einsum("nk,nmk->nm", Z, slope[labels]) + 1.0  # linear: a linear head can follow
    >>> change = fit_change(Z, labels, delta.astype(np.float32), np.ones((2000, 4)))
    >>> bool(np.allclose(change.weights, slope, atol=1e-2)), change.quality.residual < 0.01 * change.quality.shift
    (True, True)
    """
    n, m = labels.shape
    scale = np.sqrt(np.maximum((Z.astype(np.float64) ** 2).mean(axis=0), 1e-30))
    inputs = np.concatenate([Z / scale, np.ones((n, 1))], axis=1)
    held_out = np.repeat(np.arange(n) % _HELD_OUT == _HELD_OUT - 1, m)
    root = np.sqrt(pair_weight.astype(np.float64)).ravel()
    rows, classes, wanted = np.repeat(np.arange(n), m), labels.ravel(), delta.astype(np.float64).ravel()

    kept = ~held_out
    known, solutions = _solve(inputs, rows[kept], classes[kept], wanted[kept], root[kept], RIDGES)
    test = (inputs, rows[held_out], classes[held_out], wanted[held_out], root[held_out])
    errors = np.array([_squares(*test, known, solution) for solution in solutions])
    best, total = int(errors.argmin()), max(float((root[held_out] ** 2).sum()), 1e-30)
    shift = float(np.sqrt(((root * wanted)[held_out] ** 2).sum() / total))
    if errors[best] >= shift**2 * total:  # nothing linear in it: the scores are best left alone
        return Change(known[:0], solutions[0][:0, :-1], solutions[0][:0, -1], Rebase(shift, shift))
    known, solutions = _solve(inputs, rows, classes, wanted, root, (RIDGES[best],))
    quality = Rebase(shift, float(np.sqrt(errors[best] / total)))
    return Change(known, solutions[0][:, :-1] / scale, solutions[0][:, -1], quality)


def _blocks(sorted_classes: Int32) -> Iterator[tuple[int, int]]:
    """Stretches of whole classes."""
    ends = np.flatnonzero(np.diff(sorted_classes)) + 1
    ends = np.append(ends, len(sorted_classes))
    start = 0
    while start < len(sorted_classes):
        upto = int(np.searchsorted(ends, start + _PAIRS_AT_ONCE, side="right"))
        stop = int(ends[max(upto - 1, int(np.searchsorted(ends, start, side="right")))])
        yield start, stop
        start = stop


def _solve(
    inputs: Float64,
    rows: NDArray[np.int64],
    classes: Int32,
    wanted: Float64,
    root: Float64,
    ridges: tuple[float, ...],
) -> tuple[Int32, Float64]:
    """Ridge solutions (len(ridges), n_known, k + 1) of every class that occurs."""
    order = np.argsort(classes, kind="stable")
    rows, classes, wanted, root = rows[order], classes[order], (root * wanted)[order], root[order]
    width = inputs.shape[1]
    known = np.unique(classes)
    solutions = np.zeros((len(ridges), len(known), width))
    done = 0
    for start, stop in _blocks(classes):
        x, target = inputs[rows[start:stop]] * root[start:stop, None], wanted[start:stop]
        first = np.flatnonzero(np.diff(classes[start:stop], prepend=-1))
        gram = np.add.reduceat(x[:, :, None] * x[:, None, :], first, axis=0)
        moment = np.add.reduceat(x * target[:, None], first, axis=0)
        for i, ridge in enumerate(ridges):
            penalty = np.full(width, ridge)
            penalty[-1] = _BIAS_RIDGE
            solved = np.linalg.solve(gram + np.diag(penalty), moment[:, :, None])[:, :, 0]
            solutions[i, done : done + len(first)] = solved
        done += len(first)
    return known.astype(np.int32), solutions


def _squares(
    inputs: Float64,
    rows: NDArray[np.int64],
    classes: Int32,
    wanted: Float64,
    root: Float64,
    known: Int32,
    solution: Float64,
) -> float:
    """Weighted sum of squared differences; a class without a solution stays as it is."""
    place = np.minimum(np.searchsorted(known, classes), len(known) - 1)
    found = np.einsum("pk,pk->p", inputs[rows], solution[place])
    found[known[place] != classes] = 0.0
    return float(((root * (found - wanted)) ** 2).sum())
