"""The greedy fit as tasks for threads: rows grouped by class, nodes level by level while they are large, then
whole subtrees.

How the work is cut depends on the data alone, and no task reads what another writes at the same time: the
thread count does not change a bit of the result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from extremax.kernels.tree_fit import Grouped, Nodes, Settings, fit_subtree, make_scratch
from extremax.runtime.threads import resolve_threads, run
from extremax.tree.layout import Float32, Int32, aligned, depth_of, plain, width_of
from extremax.validation import check_random_state

# nodes are a task each until they hold about this few points; then a whole subtree is one
_SUBTREE_POINTS = 4096
_NEWTON_STEPS = 50  # bound on the steps for a given split; a handful is usual


class Effort(NamedTuple):
    """How much work a fit puts into each node; `LabelTree.fit` says what the options mean."""

    max_points: int | None
    n_starts: int
    max_alternations: int
    tolerance: float
    random_state: int

    def settings(self, n_samples: int, n_components: int) -> Settings:
        """Checked, and in the form that the kernel takes."""
        if self.max_points is not None and self.max_points < 1:
            raise ValueError(
                f"max_points is {self.max_points}; a node needs at least 1 point. Give None to use all of them."
            )
        if self.n_starts < 1:
            raise ValueError(f"n_starts is {self.n_starts}; a node needs at least 1 direction to start from.")
        if self.max_alternations < 0:
            raise ValueError(
                f"max_alternations is {self.max_alternations}; give 0 to keep the first split, or more."
            )
        if not 0 <= self.tolerance < np.inf:
            raise ValueError(
                f"tolerance is {self.tolerance}; give 0 to iterate to the end, or a small positive number."
            )
        return Settings(
            max_points=min(n_samples, n_samples if self.max_points is None else self.max_points),
            n_starts=min(self.n_starts, n_components) if self.max_alternations else 1,
            max_alternations=self.max_alternations,
            max_newton=_NEWTON_STEPS,
            tolerance=float(self.tolerance),
            seed=np.uint64(check_random_state(self.random_state)),
        )


def penalties(
    regularization: ArrayLike, bias_regularization: ArrayLike | None, depth: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Strength of the penalty on weights and on biases, one per level."""
    if bias_regularization is None:
        bias_regularization = regularization
    return _per_level(regularization, depth, "regularization"), _per_level(
        bias_regularization, depth, "bias_regularization"
    )


def _per_level(value: ArrayLike, depth: int, name: str) -> NDArray[np.float64]:
    strength = np.asarray(value, np.float64)
    if strength.shape not in ((), (depth,)):
        raise ValueError(
            f"{name} has shape {strength.shape}; give one number, or one for each of the {depth} levels."
        )
    if not np.all((strength > 0) & (strength < np.inf)):
        raise ValueError(
            f"{name} is {value!r}; give positive finite numbers: without a penalty some nodes have no optimum."
        )
    return np.array(np.broadcast_to(strength, (depth,)))


def group_by_class(features: Float32, labels: Int32, share: Float32, n_classes: int) -> Grouped:
    """Sort the rows by class. Conversion to CSR is a stable counting sort, and a product with it sums the
    rows of a class.
    """
    by_class = sparse.csr_matrix((share, (labels, np.arange(len(labels)))), shape=(n_classes, len(labels)))
    sums = np.empty((n_classes, features.shape[1] + 1), np.float32)
    sums[:, :-1] = by_class @ features
    sums[:, -1] = by_class @ np.ones(len(labels), np.float32)
    return Grouped(
        features[by_class.indices], plain(by_class.data, np.float32), by_class.indptr.astype(np.int64), sums
    )


def new_nodes(
    order: Int32, n_components: int, strengths: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> Nodes:
    """Nodes to be fitted, for classes in the given order of leaves."""
    n_inner = (1 << depth_of(len(order))) - 1
    return Nodes(
        aligned(n_inner, width_of(n_components)), np.zeros(n_inner, np.float32), order.copy(), *strengths
    )


def fit_nodes(
    data: Grouped, nodes: Nodes, settings: Settings, *, alternate: bool, n_jobs: int | None
) -> None:
    """Fill `nodes`. `alternate`: find the structure, too; else it is kept, and parameters start from their
    present values.
    """
    k, depth, threads = data.points.shape[1], len(nodes.penalty), resolve_threads(n_jobs)
    top = min(depth, (len(data.points) // _SUBTREE_POINTS).bit_length())
    bounds = np.array([0, len(nodes.order)])
    for level in range(top + 1):
        n_levels = 1 if level < top else depth - top

        def task(
            place: int, level: int = level, n_levels: int = n_levels, bounds: NDArray[np.int64] = bounds
        ) -> None:
            first, last = int(bounds[place]), int(bounds[place + 1])
            classes = nodes.order[first:last]
            n_points = int((data.offsets[classes + 1] - data.offsets[classes]).sum())
            scratch = make_scratch(min(n_points, settings.max_points), last - first, k, n_levels)
            fit_subtree(
                data,
                nodes,
                settings,
                scratch,
                k,
                (1 << level) - 1 + place,
                level,
                n_levels,
                first,
                last,
                alternate,
            )

        if n_levels > 0:
            run(task, 1 << level, threads)
        sizes = np.diff(bounds)
        starts = np.stack([bounds[:-1], bounds[:-1] + sizes - sizes // 2], axis=1).reshape(-1)
        bounds = np.append(starts, bounds[-1])
