"""The auxiliary model as the paper's section 3 prints it: slow, exact, and without a number to tune.

`LabelTree.fit` maximises the same likelihood with several starts, samples of large nodes, a tolerance and
evenly spread padding. This fit has none of these, so that results can be compared with the paper's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from extremax.kernels.tree_fit import PADDING_BIAS
from extremax.kernels.tree_literal import LiteralData, LiteralNodes, fit_literal_nodes
from extremax.runtime.threads import resolve_threads, run, split
from extremax.tree import LabelTree
from extremax.types import Float64, Int32
from extremax.validation.features import check_features
from extremax.validation.sample_weight import check_sample_weight

_MAX_NEWTON_STEPS = 1000  # for one split; ten are usual
_MAX_SPLITS = 1000  # of a node; ten are usual. Equal labels could change places for ever
_NODES_PER_TASK = 64


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
    data = _group(features, labels, weight, n_classes, float(regularization))
    depth = (n_classes - 1).bit_length()
    n_inner, k = (1 << depth) - 1, features.shape[1]
    nodes = LiteralNodes(
        np.zeros((n_inner, k)),
        np.zeros(n_inner),
        np.zeros(n_inner),
        np.arange(1 << depth, dtype=np.int32),
        np.zeros(n_inner, np.int32),
        np.ones(n_inner, np.bool_),
    )
    for level in range(depth):
        parts = split(1 << level, _NODES_PER_TASK)

        def task(i: int, level: int = level, parts: list[tuple[int, int]] = parts) -> None:
            fit_literal_nodes(data, nodes, level, *parts[i])

        run(task, len(parts), resolve_threads(n_jobs))
    leaf_class = np.where(nodes.order < n_classes, nodes.order, -1).astype(np.int32)
    tree = LabelTree(nodes.weights.astype(np.float32), nodes.biases.astype(np.float32), leaf_class)
    return LiteralTree(tree, nodes.weights, nodes.biases, nodes.log_likelihood, nodes.n_splits, nodes.settled)


def _group(features: Any, labels: Any, weight: Any, n_classes: int, penalty: float) -> LiteralData:
    """Sort the rows by class, and sum those of each class in float64."""
    order = np.argsort(labels, kind="stable")
    points = features[order]
    counts = np.bincount(labels, minlength=n_classes)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    sorted_weight = np.ones(len(order), np.float32) if weight is None else weight[order].astype(np.float32)
    sums = np.zeros((n_classes, features.shape[1] + 1))
    in_order = labels[order]
    for c in range(features.shape[1]):
        products = points[:, c].astype(np.float64) * sorted_weight
        sums[:, c] = np.bincount(in_order, weights=products, minlength=n_classes)
    sums[:, -1] = np.bincount(in_order, weights=sorted_weight, minlength=n_classes)
    return LiteralData(
        points, sorted_weight, offsets, sums, penalty, _MAX_NEWTON_STEPS, _MAX_SPLITS, float(PADDING_BIAS)
    )
