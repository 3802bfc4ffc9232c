"""The greedy fit as tasks for threads: nodes one by one while they are large, then whole subtrees.

How the work is cut depends on the data alone, and no task reads what another writes at the same time: the
thread count does not change a bit of the result.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike

from extremax.kernels.tree_fit import (
    Grouped,
    Nodes,
    Settings,
    Subtree,
    fit_subtree,
    make_scratch,
    sum_by_label,
)
from extremax.runtime.threads import run
from extremax.tree.layout import depth_of, plain
from extremax.tuned import TreeFitConfig
from extremax.types import Float32, Float64, Int32
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


def kernel_settings(
    config: TreeFitConfig, shape: tuple[int, int], random_state: int, *, patient: bool = False
) -> Settings:
    """Return a checked config in the form that the kernel takes, for points of the given shape."""
    check_config(config)
    n_samples, n_components = shape
    return Settings(
        patient=patient,
        fit_pairs=config.fit_pairs,
        max_points=n_samples if config.max_points is None else min(n_samples, config.max_points),
        n_starts=min(config.n_starts, n_components) if config.max_alternations else 1,
        several_starts_points=config.several_starts_points,
        start_points=config.start_points,
        start_iterations=config.start_iterations,
        max_alternations=config.max_alternations,
        max_newton_steps=config.max_newton_steps,
        tolerance=max(float(config.tolerance), float(config.min_gain)),
        max_drift=float(config.max_drift),
        power_steps=config.power_steps,
        power_tolerance=float(config.power_tolerance),
        seed=np.uint64(check_random_state(random_state)),
    )


def penalties(
    regularization: ArrayLike, bias_regularization: ArrayLike | None, depth: int, n_components: int
) -> Float64:
    """Return twice the penalties on the weights of a node and on its bias, one row per level."""
    if bias_regularization is None:
        bias_regularization = regularization
    penalty = np.empty((depth, n_components + 1))
    penalty[:, :-1] = 2.0 * _per_level(regularization, depth, "regularization")[:, None]
    penalty[:, -1] = 2.0 * _per_level(bias_regularization, depth, "bias_regularization")
    return penalty


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


def group_by_class(
    features: Float32, labels: Int32, weight: Float32, n_classes: int, n_labels: int | None = None
) -> Grouped:
    """Sort the rows by class, and sum those of each class; labels from `n_classes` on are padding."""
    n_labels = n_classes if n_labels is None else n_labels
    order = np.argsort(labels, kind="stable")
    points, sorted_weight = features[order], plain(weight[order], np.float32)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=n_labels))]).astype(np.int64)
    sums = np.zeros((n_labels, features.shape[1] + 1))
    sum_by_label(points, sorted_weight, offsets, sums)
    return Grouped(points, sorted_weight, offsets, sums, n_classes)


def new_nodes(order: Int32, penalty: Float64) -> Nodes:
    """Return nodes to be fitted, for labels in the given order of leaves."""
    n_inner, k = (1 << depth_of(len(order))) - 1, penalty.shape[1] - 1
    return Nodes(
        weights=np.zeros((n_inner, k)),
        biases=np.zeros(n_inner),
        log_likelihood=np.zeros(n_inner),
        n_splits=np.zeros(n_inner, np.int32),
        settled=np.ones(n_inner, np.bool_),
        order=order.copy(),
        penalty=penalty,
    )


def fit_nodes(
    data: Grouped,
    nodes: Nodes,
    settings: Settings,
    *,
    alternate: bool,
    subtree_points: int,
    n_threads: int,
    levels: tuple[int, int] | None = None,
) -> None:
    """Fill `nodes`, or those of the levels from one to before another that have points.

    With `alternate` the structure is found as well; otherwise it is kept, and parameters start from their
    present values.  A node is a task until it holds at most `subtree_points` points; then a whole subtree is.
    """
    start, stop = (0, len(nodes.penalty)) if levels is None else levels

    def fit(subtree: Subtree) -> list[tuple[int, Subtree]]:
        """Fit a node or a subtree; return the children that are left to fit, with the points of the node."""
        root, level, _, first, last = subtree
        labels = nodes.order[first:last]
        n_points = int((data.offsets[labels + 1] - data.offsets[labels]).sum())
        n_levels = 1
        if levels is not None and n_points == 0:
            return []
        if level >= start:
            n_levels = 1 if n_points > subtree_points else stop - level
            n_used = min(n_points, settings.max_points)
            shape = (n_used, last - first, data.points.shape[1], n_levels)
            scratch = make_scratch(*shape, sampled=min(n_used, settings.start_points) < n_points)
            fit_subtree(data, nodes, settings, scratch, subtree._replace(n_levels=n_levels), alternate)
        if level + n_levels == stop:
            return []
        middle = last - (last - first) // 2
        ends = ((first, middle), (middle, last))
        return [(n_points, Subtree(2 * root + 1 + i, level + 1, 0, *ends[i])) for i in (0, 1)]

    tasks = [Subtree(0, 0, 0, 0, len(nodes.order))] if stop > 0 else []
    while tasks:
        found: list[list[tuple[int, Subtree]]] = [[] for _ in tasks]

        def fit_one(
            i: int, tasks: list[Subtree] = tasks, found: list[list[tuple[int, Subtree]]] = found
        ) -> None:
            found[i] = fit(tasks[i])

        run(fit_one, len(tasks), n_threads)
        children = itertools.chain.from_iterable(found)
        tasks = [
            child for _, child in sorted(children, reverse=True)
        ]  # large ones first: threads end together
