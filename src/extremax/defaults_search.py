"""Tuned numbers of search and calibration; docs/tuning.md says where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchConfig:
    """Blocks and tiles of exact search, and the beam down the label tree (docs/tuning.md#searchconfig).

    None of these depends on the number of threads, so that no result does.
    """

    scratch_bytes: int = 256 << 20  # working memory of one call on up to `tiles_at_once` threads
    max_result_bytes: int = 2 << 30  # largest (n_samples, n_classes) array that is returned
    tiles_at_once: int = 8  # tiles in memory at the same time: assumed, not counted
    class_groups: int = 16  # groups of classes, the tasks that threads share
    block_rows: int = 1024  # rows per matrix product: more do not make it faster
    tile_depth: int = 10  # levels of a subtree that is one tile: 1,024 leaves
    min_tile_depth: int = 8  # levels; a small tree is cut into shallower tiles, so that all threads have some
    tile_scores: int = 2 << 20  # scores per tile, 8 MB: the tiles of all threads stay in the last-level cache
    noise_rows: int = 256  # rows whose log p_n is computed and used together
    few_rows: int = 64  # rows; fewer do not repay a copy of the weights in the order of the leaves ...
    small_weights: int = 1 << 22  # ... unless there are no more weights than this
    small_work: int = 1 << 24  # multiplications; below, BLAS uses one thread anyway
    table_block_scores: int = 4 << 20  # scores whose softmax is computed together
    tree_beam_width: int = 64  # nodes per level of the label tree
    beam_block_rows: int = 16384  # rows whose candidates are in memory together; X may be on disk
    pair_block_rows: int = 16384  # rows whose pairs are scored together; X may be on disk


@dataclass(frozen=True)
class PQConfig:
    """The product-quantization index (docs/tuning.md#pqconfig)."""

    min_classes: int = 2048  # classes; fewer are scored as fast as searched
    max_features: int = 2048  # features: the covariance takes their square in memory, their cube in time
    subvectors: int = 56  # subvectors of a weight vector, at most; four bits each: 28 bytes per class
    rotation_seed: int = 20_200_430  # seed of the random rotation, which depends on no data

    rows_per_feature: int = 8  # rows of the covariance per feature ...
    min_rows: int = 2048  # ... at least
    max_rows: int = 8192  # ... at most
    ridge: float = 1e-3  # of the mean variance of a feature
    min_ridge: float = 1e-12  # variance; rows have a mean square length of about one

    target_recall: float = 0.997  # of held-out rows: 99%, and what a thousand rows may be wrong by
    max_width_rows: int = 2048  # rows that choose the width, at most
    enough_width_rows: int = 500  # held-out rows; fewer would leave the width to the hardest two or three
    min_width_rows: int = 100  # rows; fewer cannot measure one in a hundred, and the default is exact search
    min_width: int = 16  # classes, the first width that is tried
    fallback_width: int = 64  # classes, the width of the tail-mass correction where no width was chosen

    tail_rows: int = 512  # rows by which the tail-mass correction is fitted
    tail_scales: tuple[float, ...] = (0.7, 1.0, 1.4)  # inverse temperatures, relative to the model's
    tail_quantile: float = 0.99  # of |z|^2 of these rows, up to which the correction grows
    min_tail_mass: float = 1e-3  # of the mass of the scored classes; less is rounding error in float32

    threshold_classes: int = 2048  # classes whose approximate scores set the threshold of a row, at least
    max_stride: int = 16  # ... and at least one in so many
    max_candidates: int = 4  # times the width; a row with more goes to exact search

    # Time over that of one feature of one class in exact search (AMD EPYC).
    entry_cost: float = 0.3  # of one table entry, with byte shuffles ...
    entry_cost_scalar: float = 6.0  # ... and without
    class_cost: float = 6.0  # of one class that is scored exactly, over one in exact search
    row_cost: float = 1.5  # of rotating a row, per coordinate and class


@dataclass(frozen=True)
class CalibrationConfig:
    """Temperature and uniform mixing, and the rows that choose them (docs/tuning.md#calibrationconfig)."""

    min_pairs: int = 20_000  # training pairs; with fewer, no rows are held out
    row_fraction: float = 1 / 40  # of the rows are held out ...
    max_rows: int = 1024  # ... rows, at most
    max_scores: int = 1 << 27  # scores of all held-out rows: fewer rows where classes are many ...
    min_rows: int = 128  # ... but so many rows, or none

    rows_after_interrupt: int = 256  # rows, after Ctrl-C: the user is waiting
    log_temperature_grid: tuple[float, ...] = tuple(-1.6 + 0.2 * i for i in range(17))  # log temperatures
    prior_spread: float = 0.5  # of log temperature; a few rows that are all right must not ask for certainty
    # Probability; beyond a tenth, the top-1 loses more calibration than a temperature gives back.
    uniform_mix_grid: tuple[float, ...] = (
        0.0, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1,
    )  # fmt: skip
    min_gain: float = 2.0  # nats over all rows that the top-1 must gain by any uniform mixing
    top1_weight: float = 10.0  # of a nat of the top-1, in nats of the labels
    max_loss_per_row: float = 0.01  # nats that the labels may lose for the calibration of the top-1
    max_probability: float = 1.0 - 1e-9  # the largest probability that counts
    block_scores: int = 1 << 22  # scores per task
    tile_classes: int = 1 << 13  # classes whose exponentials stay in the cache for all temperatures
