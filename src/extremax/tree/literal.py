"""The auxiliary model as the paper's section 3 prints it: slow, exact, and without a number to tune.

`LabelTree.fit` maximises the same likelihood with several starts, samples of large nodes, a tolerance and
evenly spread padding.  This fit has none of these, so that results can be compared with the paper's.

Every node takes all of its points, one start (the dominant eigenvector of the covariance of its class sums,
b = 0), Newton ascent to machine precision for each split, and a new split only then.  The labels of a node
with 2^d leaves are 2^d, some of them padding: padding has no points, so that its Delta is 0, and takes part
in the split like any other label.  A node sends the half with the largest Delta to the right; among equals,
labels that come later in the node go right.

Newton's step is halved while it does not raise the objective

    L = sum_i q_i log sigma(zeta_i a_i) - lambda (|w|^2 + b^2),    a_i = w.x_i + b,

which is strictly concave: damping changes the way to the optimum, not the optimum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from extremax.kernels.tree_fit import PADDING_BIAS
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads, run
from extremax.tree import LabelTree
from extremax.types import Bool, Float32, Float64, Int32, Int64
from extremax.validation.features import check_features
from extremax.validation.sample_weight import check_sample_weight

_MAX_NEWTON_STEPS = 1000  # for one split; ten are usual
_MAX_SPLITS = 1000  # of a node; ten are usual. Equal labels could change places for ever
_CONVERGED = 1e-12  # relative gain of a Newton step; the step itself then ends at machine precision
_MIN_LENGTH = 1e-9  # part of a Newton step; one that does not help at this length is lost in rounding


class LiteralTree(NamedTuple):
    """A tree fitted to the letter, and what is known of each of its nodes, in heap order.

    Attributes
    ----------
    tree
        The tree in float32, as noise needs it.
    weights, biases : float64 (n_inner, n_components), (n_inner,)
        The same parameters in float64.
    log_likelihood : (n_inner,)
        Of the decisions at each node, summed over its training rows; the paper's L_v.
    n_splits : int32 (n_inner,)
        Splits for which the parameters were optimised.
    settled : bool (n_inner,)
        Whether the last split is the best one for the last parameters.
    """

    tree: LabelTree
    weights: Float64
    biases: Float64
    log_likelihood: Float64
    n_splits: Int32
    settled: Any


def fit_literal(
    Z: ArrayLike,
    y: ArrayLike,
    *,
    n_classes: int | None = None,
    regularization: float = 0.1,
    sample_weight: ArrayLike | None = None,
    n_jobs: int | None = None,
) -> LiteralTree:
    """Fit structure and parameters of a label tree as the paper prints it.

    Parameters
    ----------
    Z : (n_samples, n_components)
        Features, the paper's 16 principal components.
    y : (n_samples,)
        Classes 0 to n_classes - 1.
    regularization
        The paper's lambda_n, on weights and biases.
    n_jobs
        Threads; the tree does not depend on it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(5, size=400)
    >>> Z = rng.standard_normal((400, 2)) + np.array([[0, 0], [0, 4], [4, 0], [4, 4], [8, 2]])[y]
    >>> found = fit_literal(Z, y)
    >>> bool(np.isclose(found.log_likelihood.sum(), found.tree.log_prob(Z, y).sum(), rtol=1e-5))
    True
    """
    features = np.ascontiguousarray(check_features(Z), dtype=np.float32)
    labels = np.asarray(y)
    if labels.shape != (len(features),) or labels.dtype.kind not in "iu" or not len(labels):
        raise ValueError(
            f"y has type {labels.dtype} and shape {labels.shape}; give one class number for each of the"
            f" {len(features)} rows of Z."
        )
    n_classes = int(labels.max()) + 1 if n_classes is None else int(n_classes)
    if labels.min() < 0 or labels.max() >= n_classes:
        raise ValueError(f"y holds classes outside of 0 to {n_classes - 1}; number them from 0.")
    if not 0.0 < regularization < np.inf:
        raise ValueError(f"regularization is {regularization}; give a positive finite number.")
    weight = check_sample_weight(sample_weight, len(features))
    rows = _Rows.of(features, labels, weight, n_classes)
    depth = (n_classes - 1).bit_length()
    n_inner = (1 << depth) - 1
    found = _Nodes(
        np.zeros((n_inner, features.shape[1])),
        np.zeros(n_inner),
        np.zeros(n_inner),
        np.zeros(n_inner, np.int32),
        np.ones(n_inner, np.bool_),
    )
    order = np.arange(1 << depth, dtype=np.int32)  # labels in the order of the leaves; the last are padding
    with one_blas_thread():
        for level in range(depth):
            of_nodes, first = order.reshape(1 << level, -1), (1 << level) - 1

            def task(place: int, of_nodes: Int32 = of_nodes, first: int = first) -> None:
                labels = of_nodes[place]
                is_empty = not rows.counts[labels[labels < n_classes]].any()
                fit = _close_padding if is_empty else _fit_node
                of_nodes[place] = fit(rows, labels.copy(), float(regularization), found, first + place)

            run(task, len(of_nodes), resolve_threads(n_jobs))
    leaf_class = np.where(order < n_classes, order, -1).astype(np.int32)
    tree = LabelTree(found.weights.astype(np.float32), found.biases.astype(np.float32), leaf_class)
    return LiteralTree(tree, *found)


class _Nodes(NamedTuple):
    """What is fitted; see `LiteralTree`."""

    weights: Float64
    biases: Float64
    log_likelihood: Float64
    n_splits: Int32
    settled: Any


class _Rows(NamedTuple):
    """Rows sorted by class: those of class y are counts[y] rows from starts[y] on."""

    points: Float32  # (n, k)
    weight: Float32  # (n,)
    starts: Int64  # (n_classes,)
    counts: Int64  # (n_classes,)
    sums: Float64  # (n_classes, k + 1): weighted sum of the points of a class, and of their weights

    @classmethod
    def of(cls, features: Float32, labels: Any, weight: Float32 | None, n_classes: int) -> _Rows:
        order = np.argsort(labels, kind="stable")
        points, in_order = features[order], labels[order]
        weight = np.ones(len(order), np.float32) if weight is None else weight[order].astype(np.float32)
        counts = np.bincount(labels, minlength=n_classes)
        sums = np.zeros((n_classes, features.shape[1] + 1))
        for c in range(features.shape[1]):
            products = points[:, c].astype(np.float64) * weight
            sums[:, c] = np.bincount(in_order, weights=products, minlength=n_classes)
        sums[:, -1] = np.bincount(in_order, weights=weight, minlength=n_classes)
        return cls(points, weight, np.cumsum(counts) - counts, counts, sums)


class _Node(NamedTuple):
    """The points of a node, with a last column of ones, their weights, and lambda."""

    x: Float64
    weight: Float64
    penalty: float

    def objective(self, theta: Float64, right: Float64) -> tuple[float, float, Float64, Float64]:
        """Return L, the log-likelihood, the gradient of L and minus its Hessian."""
        a = self.x @ theta
        e = np.exp(-np.abs(a))
        p = np.where(a >= 0.0, 1.0, e) / (1.0 + e)
        likelihood = -float(np.sum(self.weight * (np.maximum(a - 2.0 * a * right, 0.0) + np.log1p(e))))
        gradient = self.x.T @ (self.weight * (right - p)) - 2.0 * self.penalty * theta
        curvature = self.weight * e / ((1.0 + e) * (1.0 + e))
        hessian = (self.x.T * curvature) @ self.x + 2.0 * self.penalty * np.eye(len(theta))
        return likelihood - self.penalty * float(theta @ theta), likelihood, gradient, hessian

    def maximise(self, theta: Float64, right: Float64) -> tuple[Float64, float]:
        """Take damped Newton steps to the optimum of a split; return it and the log-likelihood there."""
        value, likelihood, gradient, hessian = self.objective(theta, right)
        for _ in range(_MAX_NEWTON_STEPS):
            step = np.linalg.solve(hessian, gradient)
            if 0.5 * gradient @ step <= _CONVERGED * abs(value):
                return theta + step, self.objective(theta + step, right)[1]
            length = 1.0
            while length >= _MIN_LENGTH:
                reached = self.objective(theta + length * step, right)
                if reached[0] >= value:
                    break
                length *= 0.5
            else:  # the optimum, up to rounding
                break
            theta = theta + length * step
            value, likelihood, gradient, hessian = reached
        return theta, likelihood


def _fit_node(rows: _Rows, labels: Int32, penalty: float, found: _Nodes, node: int) -> Int32:
    """Fit a node with points; return its labels with those of the left child first."""
    is_real = labels < len(rows.counts)
    real = labels[is_real]
    counts = rows.counts[real]
    at = np.repeat(rows.starts[real] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    x = np.ones((len(at), rows.points.shape[1] + 1))
    x[:, :-1] = rows.points[at]
    member = np.repeat(np.flatnonzero(is_real), counts)
    sums = np.zeros((len(labels), x.shape[1]))
    sums[is_real] = rows.sums[real]
    problem = _Node(x, rows.weight[at].astype(np.float64), penalty)
    theta = _first_direction(rows.sums[real, :-1])
    side, changed, n_splits, likelihood = _split(sums, theta), True, 0, 0.0
    while changed and n_splits < _MAX_SPLITS:
        n_splits += 1
        theta, likelihood = problem.maximise(theta, side[member].astype(np.float64))
        last, side = side, _split(sums, theta)
        changed = not np.array_equal(last, side)
    if changed:  # the bound was reached: parameters of the split that is kept
        theta, likelihood = problem.maximise(theta, side[member].astype(np.float64))
    if side[is_real].all() or not side[is_real].any():  # the other child is padding alone
        theta, likelihood = np.zeros_like(theta), 0.0
        theta[-1] = -PADDING_BIAS if side[is_real].all() else PADDING_BIAS
    found.weights[node], found.biases[node] = theta[:-1], theta[-1]
    found.log_likelihood[node], found.n_splits[node], found.settled[node] = likelihood, n_splits, not changed
    return np.concatenate([labels[~side], labels[side]])


def _first_direction(sums: Float64) -> Float64:
    """Return the dominant eigenvector of the covariance of class sums, and b = 0.

    Its largest entry is positive.
    """
    theta = np.zeros(sums.shape[1] + 1)
    centred = sums - sums.mean(axis=0)
    if centred.any():  # otherwise classes are equal, and every direction is as good
        direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
        theta[:-1] = direction * np.sign(direction[np.abs(direction).argmax()])
    return theta


def _split(sums: Float64, theta: Float64) -> Bool:
    """Return which labels go right: the half with the largest Delta, among equals those that come later."""
    delta = (sums * theta).sum(axis=1)  # rounded alike for equal classes, as a product by BLAS may not be
    side = np.zeros(len(sums), np.bool_)
    side[np.argsort(delta, kind="stable")[len(sums) // 2 :]] = True
    return side


def _close_padding(rows: _Rows, labels: Int32, penalty: float, found: _Nodes, node: int) -> Int32:
    """Set a node without points: everything goes left where the right child is padding alone."""
    real, padding = labels[labels < len(rows.counts)], labels[labels >= len(rows.counts)]
    if len(real) == 0:
        return labels
    found.biases[node] = PADDING_BIAS if len(real) == 1 else 0.0
    # classes without points come first, and go to both sides where they are more than one
    left = (len(real) + 1) // 2
    filled = len(labels) // 2 - left
    return np.concatenate([real[:left], padding[:filled], real[left:], padding[filled:]])
