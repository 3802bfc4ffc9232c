"""Signal and noise of the stochastic gradient at any point of training, from gradients of minibatches.

Section 4 of the paper computes the signal-to-noise ratio at the optimum, with a free score for every x and y.
A classifier that is being trained has weights w_y and b_y, and is not at its optimum. With the gradient g of
the loss of one random training row and its random negatives,

    signal = |E g|^2,    noise = Tr Cov[g, g],    ratio = signal / noise;

a minibatch of B rows has the ratio B signal / noise. From R independent minibatches with gradients G_r (means
over B rows each) and their sum S, without bias:

    signal = (|S|^2 - sum_r |G_r|^2) / (R (R - 1)),    noise = B (sum_r |G_r|^2 - |S|^2 / R) / (R - 1).

Coefficients are those of the kernels that train. Gradients are those of weights of the features as given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from extremax.examples import Examples
from extremax.kernels.row_losses import coefficients_of
from extremax.kernels.row_training import Pairs
from extremax.model import Model
from extremax.types import Float32, Float64, Int32, Int64


class ClassGradient(NamedTuple):
    """Gradient of the mean loss of a minibatch, with respect to the classes that it touches.

    Attributes
    ----------
    classes : int (n,)
        Classes, none twice; the gradient of all others is zero.
    values : float64 (n, n_features + 1)
        Gradient of their weights and, in the last column, biases.
    """

    classes: Any
    values: Float64


class GradientNoise(NamedTuple):
    """Signal and noise of the gradient of one row; see the module."""

    signal: float
    noise: float

    @property
    def ratio(self) -> float:
        """Signal-to-noise ratio of one row."""
        return self.signal / self.noise


def estimate_noise(
    gradients: Iterable[ClassGradient], n_classes: int, *, batch_size: int = 1
) -> GradientNoise:
    """Estimate signal and noise from the gradients of independent minibatches, both without bias.

    Parameters
    ----------
    gradients
        At least two, each the mean over `batch_size` rows.
    n_classes
        Number of classes.
    batch_size
        Rows of a minibatch.

    Examples
    --------
    >>> two = [ClassGradient(np.array([0]), np.array([[value]])) for value in (3.0, 1.0)]
    >>> estimate_noise(two, n_classes=5)  # the mean is 2, the variance 2
    GradientNoise(signal=3.0, noise=2.0)
    """
    total: Float64 | None = None
    squares, count = 0.0, 0
    for gradient in gradients:
        if total is None:
            total = np.zeros((n_classes, gradient.values.shape[1]))
        total[gradient.classes] += gradient.values
        squares += float((gradient.values**2).sum())
        count += 1
    if total is None or count < 2:
        raise ValueError(f"there are {count} gradients; the noise of a gradient needs at least 2.")
    whole = float((total**2).sum())
    signal = (whole - squares) / (count * (count - 1))
    return GradientNoise(signal, batch_size * (squares - whole / count) / (count - 1))


def class_gradient(X: Any, classes: Int32, coefficients: Float32) -> ClassGradient:
    """Return the mean gradient of rows whose scores of `classes` have these coefficients, both (n, width).

    A class that a row lists twice, as its label and as a negative, is one component of the gradient.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    >>> gradient = class_gradient(rows, np.array([[2, 0], [2, 2]]), np.array([[-1.0, 0.5], [-1.0, 0.5]]))
    >>> gradient.classes.tolist(), gradient.values.tolist()
    ([0, 2], [[0.25, 0.0, 0.25], [-0.5, -0.25, -0.75]])
    """
    n, width = classes.shape
    touched, place = np.unique(classes, return_inverse=True)
    pairs = (place.ravel(), np.repeat(np.arange(n), width))
    table = sp.csr_matrix((coefficients.astype(np.float64).ravel() / n, pairs), shape=(len(touched), n))
    rows = X.toarray() if sp.issparse(X) else np.asarray(X)
    with_one = np.column_stack([rows.astype(np.float64), np.ones(n)])
    return ClassGradient(touched, table @ with_one)


def drawn_gradients(
    model: Model, data: Examples, *, batch_size: int, n_batches: int, seed: int, n_threads: int = 1
) -> Iterator[ClassGradient]:
    """Yield gradients of minibatches of a solver that draws negatives for each row.

    Rows are drawn with replacement, all with the same probability, and have one label each.
    """
    config, noise = model.config, model.noise
    if config is None or noise is None or not config.solver.uses_noise or config.solver.pair_state:
        raise ValueError(f"a model of solver {model.solver!r} has no gradient of drawn negatives.")
    solver = config.solver
    settings = solver.loss(model.n_epochs, config.numbers.rows)
    for number, rows in enumerate(_draw_rows(data, batch_size, n_batches, seed)):
        X, y = data.X[rows], data.y[rows]
        Z = np.zeros((batch_size, 0), np.float32)
        if model.projection is not None:
            Z = model.projection.transform(X, n_jobs=n_threads)
        own_seed = int(np.random.SeedSequence((seed, number, 1)).generate_state(1)[0])
        negatives, log_negative = noise.sample(Z, solver.n_negatives, own_seed, n_jobs=n_threads)
        labels = np.column_stack([y, negatives]).astype(np.int32)
        log_noise = np.column_stack([noise.log_prob(Z, y, n_jobs=n_threads), log_negative]).astype(np.float32)
        base = log_noise if solver.adds_log_noise else np.zeros_like(log_noise)
        local = np.arange(batch_size, dtype=np.int64)
        scores = model.weights.score_pairs(X, local, labels, n_threads)
        out = np.empty_like(scores)
        one = np.ones(batch_size, np.float32)
        pairs = Pairs(
            local, labels, base, log_noise, one, scores, out, np.empty(batch_size), np.zeros_like(one)
        )
        coefficients_of(settings, pairs, 0, batch_size)
        yield class_gradient(X, labels, out)


def softmax_gradients(
    model: Model,
    data: Examples,
    *,
    batch_size: int,
    n_batches: int,
    seed: int,
    own_shift: Float32 | None = None,
    n_threads: int = 1,
) -> Iterator[ClassGradient]:
    """Yield gradients of minibatches of the softmax over all classes, or over the candidates of each row.

    Classes are not drawn: rows alone are random. Candidates are those of the present scores; the mass of all
    other classes counts, and has no gradient.

    Parameters
    ----------
    own_shift
        Of each row, what the score of its class is shifted by in training: it had a part in the start.
    """
    n_listed = _listed_classes(model)
    for rows in _draw_rows(data, batch_size, n_batches, seed):
        X, y, at = data.X[rows], data.y[rows], np.arange(batch_size)
        scores = model.debiased_scores(X, n_threads=n_threads).astype(np.float64)
        if own_shift is not None:
            scores[at, y] += own_shift[rows]
        prob = np.exp(scores - scores.max(axis=1, keepdims=True))
        prob /= prob.sum(axis=1, keepdims=True)
        prob[at, y] += 1.0  # so that the label is the first of all
        classes = np.argpartition(-prob, n_listed - 1, axis=1)[:, :n_listed]
        coefficients = np.take_along_axis(prob, classes, axis=1)
        coefficients[classes == y[:, None]] -= 2.0
        yield class_gradient(X, classes.astype(np.int32), coefficients)


def _listed_classes(model: Model) -> int:
    """Return how many classes a row is compared with, none of them drawn."""
    config, n_classes = model.config, model.n_classes
    if config is not None and model.solver == "candidate_softmax":
        return min(config.numbers.candidates.n_candidates + 1, n_classes)
    shares = config is not None and model.solver == "minibatch_softmax"
    if config is not None and shares and config.solver.set_size(n_classes) == n_classes:
        return n_classes
    raise ValueError(f"a model of solver {model.solver!r} over {n_classes:,} classes draws classes.")


def _draw_rows(data: Examples, batch_size: int, n_batches: int, seed: int) -> Iterator[Int64]:
    if data.row_index is not None or data.label_edges is not None:
        raise ValueError(
            "the rows have several labels; signal and noise are estimated for one label per row."
        )
    rng = np.random.default_rng((seed, 0))
    for _ in range(n_batches):
        yield np.sort(rng.integers(data.n_rows, size=batch_size))
