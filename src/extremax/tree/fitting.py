"""The greedy fit as tasks for threads: nodes level by level while they are large, then whole subtrees.

How the work is cut depends on the data alone, and no task reads what another writes at the same time: the
thread count does not change a bit of the result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from extremax.kernels.tree_fit import Grouped, Nodes, Settings, Subtree, fit_subtree, make_scratch
from extremax.runtime.threads import run
from extremax.tree.layout import aligned, depth_of, plain, width_of
from extremax.tuned import TreeFitConfig
from extremax.types import Float32, Float64, Int32, Int64
from extremax.validation.random_state import check_random_state


def check_config(config: TreeFitConfig) -> None:
    """Raise for numbers that no fit can use."""
    if config.max_points is not None and config.max_points < 1:
        raise ValueError(
            f"max_points is {config.max_points}; a node needs at least 1 point. Give None to use all of them."
        )
    if config.n_starts < 1:
        raise ValueError(f"n_starts is {config.n_starts}; a node needs at least 1 direction to start from.")
    if config.max_alternations < 0:
        raise ValueError(
            f"max_alternations is {config.max_alternations}; give 0 to keep the first split, or more."
        )
    if not 0 <= config.tolerance < np.inf:
        raise ValueError(
            f"tolerance is {config.tolerance}; give 0 to iterate to the end, or a small positive number."
        )


def kernel_settings(config: TreeFitConfig, shape: tuple[int, int], random_state: int) -> Settings:
    """Return a checked config in the form that the kernel takes, for points of the given shape."""
    check_config(config)
    n_samples, n_components = shape
    return Settings(
        max_points=n_samples if config.max_points is None else min(n_samples, config.max_points),
        n_starts=min(config.n_starts, n_components) if config.max_alternations else 1,
        several_starts_points=config.several_starts_points,
        start_iterations=config.start_iterations,
        max_alternations=config.max_alternations,
        max_newton_steps=config.max_newton_steps,
        tolerance=float(config.tolerance),
        sampling_slack=float(config.sampling_slack),
        min_step=float(config.min_step),
        rounding=float(config.rounding),
        min_gain=float(config.min_gain),
        power_steps=config.power_steps,
        covariance_blocks=config.covariance_blocks,
        seed=np.uint64(check_random_state(random_state)),
    )


def penalties(
    regularization: ArrayLike, bias_regularization: ArrayLike | None, depth: int
) -> tuple[Float64, Float64]:
    """Return the penalties on weights and on biases, one per level."""
    if bias_regularization is None:
        bias_regularization = regularization
    return _per_level(regularization, depth, "regularization"), _per_level(
        bias_regularization, depth, "bias_regularization"
    )


def _per_level(value: ArrayLike, depth: int, name: str) -> Float64:
    penalty = np.asarray(value, np.float64)
    if penalty.shape not in ((), (depth,)):
        raise ValueError(
            f"{name} has shape {penalty.shape}; give one number, or one for each of the {depth} levels."
        )
    if not np.all((penalty > 0) & (penalty < np.inf)):
        raise ValueError(
            f"{name} is {value!r}; give positive finite numbers: without a penalty some nodes have no"
            " optimum."
        )
    return np.array(np.broadcast_to(penalty, (depth,)))


def group_by_class(features: Float32, labels: Int32, weight: Float32, n_classes: int) -> Grouped:
    """Sort the rows by class, and sum those of each class."""
    # Conversion to CSR is a stable counting sort, and a product with it sums the rows of a class.
    by_class = sparse.csr_matrix((weight, (labels, np.arange(len(labels)))), shape=(n_classes, len(labels)))
    sums = np.empty((n_classes, features.shape[1] + 1), np.float32)
    sums[:, :-1] = by_class @ features
    sums[:, -1] = by_class @ np.ones(len(labels), np.float32)
    return Grouped(
        features[by_class.indices], plain(by_class.data, np.float32), by_class.indptr.astype(np.int64), sums
    )


def new_nodes(order: Int32, n_components: int, penalty: tuple[Float64, Float64]) -> Nodes:
    """Return nodes to be fitted, for classes in the given order of leaves."""
    n_inner = (1 << depth_of(len(order))) - 1
    return Nodes(
        aligned((n_inner, width_of(n_components))), np.zeros(n_inner, np.float32), order.copy(), *penalty
    )


def fit_nodes(
    data: Grouped, nodes: Nodes, settings: Settings, *, alternate: bool, subtree_points: int, n_threads: int
) -> None:
    """Fill `nodes`.

    With `alternate` the structure is found as well; otherwise it is kept, and parameters start from their
    present values.  Nodes are a task each until they hold about `subtree_points` points; then a whole subtree
    is one.
    """
    n_components, depth = data.points.shape[1], len(nodes.penalty)
    top = min(depth, (len(data.points) // subtree_points).bit_length())
    bounds = np.array([0, len(nodes.order)])
    for level in range(top + 1):
        n_levels = 1 if level < top else depth - top

        def task(place: int, level: int = level, n_levels: int = n_levels, bounds: Int64 = bounds) -> None:
            first, last = int(bounds[place]), int(bounds[place + 1])
            classes = nodes.order[first:last]
            n_points = int((data.offsets[classes + 1] - data.offsets[classes]).sum())
            n_used = min(n_points, settings.max_points)
            scratch = make_scratch(n_used, last - first, n_components, n_levels)
            subtree = Subtree((1 << level) - 1 + place, level, n_levels, first, last)
            fit_subtree(data, nodes, settings, scratch, subtree, alternate)

        if n_levels > 0:
            run(task, 1 << level, n_threads)
        sizes = np.diff(bounds)
        starts = np.stack([bounds[:-1], bounds[:-1] + sizes - sizes // 2], axis=1).reshape(-1)
        bounds = np.append(starts, bounds[-1])
