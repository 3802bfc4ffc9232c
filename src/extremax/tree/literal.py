"""The auxiliary model as the paper's section 3 prints it: exact, and without a number to tune.

`LabelTree.fit` maximises the same likelihood with a re-split after every Newton step, several starts, samples
of large nodes, a tolerance and evenly spread padding. This fit takes the paper's order of steps and has none
of the rest, so that results can be compared with the paper's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from extremax.runtime.threads import resolve_threads
from extremax.tree.fitting import fit_nodes, group_by_class, kernel_settings, new_nodes, penalties
from extremax.tree.label_tree import LabelTree, check_data
from extremax.tree.layout import depth_of
from extremax.tuned import TreeFitConfig
from extremax.types import Float64, Int32

_TO_THE_LETTER = TreeFitConfig(
    max_points=None,
    n_starts=1,
    max_alternations=1000,  # ten are usual; equal labels could change places for ever
    max_newton_steps=100_000,
    tolerance=1e-18,
    min_gain=0.0,
    max_drift=0.03,
    power_steps=100_000,
    power_tolerance=1e-28,
)


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
    features, labels, weight, n_classes = check_data(Z, y, sample_weight, n_classes)
    depth = depth_of(n_classes)
    data = group_by_class(features, labels, weight, n_classes, n_labels=1 << depth)
    nodes = new_nodes(
        np.arange(1 << depth, dtype=np.int32), penalties(regularization, None, depth, features.shape[1])
    )
    settings = kernel_settings(_TO_THE_LETTER, features.shape, 0, patient=True)
    fit_nodes(
        data,
        nodes,
        settings,
        alternate=True,
        subtree_points=_TO_THE_LETTER.subtree_points,
        n_threads=resolve_threads(n_jobs),
    )
    leaf_class = np.where(nodes.order < n_classes, nodes.order, -1).astype(np.int32)
    tree = LabelTree(nodes.weights, nodes.biases, leaf_class)
    return LiteralTree(tree, nodes.weights, nodes.biases, nodes.log_likelihood, nodes.n_splits, nodes.settled)
