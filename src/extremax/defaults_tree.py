"""Tuned numbers of the label tree; docs/tuning.md says where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TreeFitConfig:
    """Work that the fit of a label tree puts into each node (docs/tuning.md#treefitconfig)."""

    max_points: int | None = 100_000  # points for the Newton steps of a node; a sample of more is as good
    n_starts: int = 4  # leading eigenvectors that large nodes try as first direction
    several_starts_points: int = 512  # points up to which a node tries the first direction alone
    start_iterations: int = 8  # of each start, before the best one goes on alone
    max_alternations: int = 100  # re-splits of a node; few are usual
    max_newton_steps: int = 50  # for a given split; a handful is usual
    tolerance: float = 1e-5  # nats per point; a node is done when an iteration gains less
    sampling_slack: float = 0.01  # nats per unit of weight by which a sample may misjudge a split
    min_step: float = 1e-3  # part of a Newton step; one that does not help at this length is lost in rounding
    rounding: float = 1e-6  # relative changes of a sum of float32 terms below this are noise
    min_gain: float = 1e-9  # nats per unit of weight; below it Newton has converged, whatever the tolerance
    power_steps: int = 30  # iterations for the first direction
    covariance_blocks: int = 128  # blocks of 128 classes that the first direction is computed from
    subtree_points: int = 4096  # points; smaller nodes are fitted as whole subtrees (no result depends on it)


@dataclass(frozen=True)
class TreeTuningConfig:
    """Choice of the tree's regularization by level (docs/tuning.md#treetuningconfig)."""

    grid: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1e4)  # the largest leaves the class frequencies
    held_out: float = 0.1  # fraction of the rows that choose
    sample_rows: int = 120_000  # rows; enough to rank penalties, more only cost time
    structure_regularization: float = 0.3  # while the structure is fitted
    bias_regularization: float = 1.0  # of all fits: biases are class frequencies, which need little shrinkage
    top_levels: int = 6  # levels decided by a sample of rows; deeper ones by a sample of subtrees
    rough_starts: int = 1  # `n_starts` of a rough structure, for trees that only propose classes
    rough_points: int = 20_000  # `max_points` of a rough structure: a third of the time
    rough_rows: int = 30_000  # `sample_rows` of a rough choice
