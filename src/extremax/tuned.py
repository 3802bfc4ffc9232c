"""Every number that steers a result: its value, its unit and its reason.

A config dataclass belongs to one component, which receives it as an argument.  `solvers.config.FitConfig`
holds those of training and of the steps after it, and is stored in the model folder: a fit resumed with a
later version goes on with the numbers it began with.  Measurements behind the values: lab/tuning.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class ProblemSize:
    """Shape of a training problem."""

    n_rows: int
    n_pairs: int
    n_features: int
    n_classes: int
    n_entries: int | None = None  # stored entries of sparse features; None for dense ones
    several_labels: bool = False


@dataclass(frozen=True)
class OrderConfig:
    """Order of the pairs in an epoch: windows of shuffled chunks."""

    chunk_rows: int = 256  # rows; read together from a file
    window_bytes: int = 256 << 20  # bytes of dense rows that are shuffled together


@dataclass(frozen=True)
class RowConfig:
    """Training with negatives drawn for each row (the paper's method and its baselines)."""

    n_epochs: int = 20  # passes over the data
    learning_rate: float = 0.3  # for rows of mean square length one
    optimizer: str = "adagrad"  # one sum of squares per weight
    score_penalty: float = 1e-4  # the paper's lambda
    min_batch: int = 16  # rows of a minibatch, at least
    max_batch: int = 512  # rows of a minibatch, at most: they stay in the cache
    classes_per_row: int = 16  # classes for each row of a minibatch: hardly two rows share a class
    batches_per_epoch: int = 32  # minibatches of an epoch, at least
    # start of Adagrad's sums: a vanishing first gradient makes no full-length step
    initial_square: float = 1e-8
    prior_pairs: int = 4  # pairs per class between two steps of the Gaussian prior
    augment_reduce_decay: float = 0.9  # exponent of the weight (1 + epoch)^-decay of the newest estimate
    progress_pairs: int = 1 << 17  # pairs between two looks at clock and interrupts


@dataclass(frozen=True)
class BatchConfig:
    """Softmax over classes that a minibatch shares."""

    max_features: int = 1024  # features up to which whitening is cheap and this may be the default
    min_batch: int = 16  # rows of a minibatch, at least
    max_batch: int = 256  # rows of a minibatch, at most
    batches_per_epoch: int = 32  # minibatches of an epoch, at least
    max_scores: int = 1 << 25  # scores of a minibatch, at most
    min_steps: int = 900  # minibatches of a whole fit, where that takes ...
    min_epochs: int = 5  # ... at least so many epochs ...
    max_epochs: int = 50  # ... and at most so many
    learning_rate: float = 0.5  # first step size, on whitened rows
    learning_rate_many_classes: float = 1.0  # a class that is met rarely must learn from a few steps
    learning_rate_plain: float = 0.1  # step size without whitening
    # fraction of the epochs over which the learning rate rises from zero: at its full length, the first
    # steps move classes that were just met past all others, and the start is lost
    warm_up: float = 0.15
    optimizer: str = "adagrad_row"  # one sum of squares per class
    class_exponent: float = 0.5  # of the class frequencies, outside the cells of the tree
    many_classes: int = 64  # classes for each shared one above which cells of the tree no longer pay
    rows_per_cell: int = 4096  # rows of a cell on average, at least
    max_cells: int = 256  # cells of the tree, at most
    cell_levels: int = 2  # levels of the tree below a cell, at least
    # longest step of a class in whitened rows: rows of one cell are alike, gradients add up
    max_step: float = 1.5
    # "auto" with too few rows to hold some out: folds choose the part of the learning rate, and calibrate
    small_rates: tuple[float, ...] = (0.1, 0.3, 1.0)
    small_ridge: float = 1.0  # of the whitening, there
    small_shrinkages: tuple[float, ...] = (1.0, 4.0, 16.0)  # of the class means, there
    folds: int = 5  # as many as give `CalibrationConfig.max_rows` left-out rows are trained
    progress_batches: int = 64  # minibatches between two looks at the clock
    # The first part of a stream gives whitening and start where it has so many rows per feature ...
    stream_rows: float = 1.0
    stream_classes: float = 0.25  # ... and so many of the classes, or of as many classes as it has rows


@dataclass(frozen=True)
class CandidateConfig:
    """Softmax over the best classes of each row, class by class in the dual."""

    n_candidates: int = 32  # classes that each row is compared with, besides its own
    n_epochs: int = 2  # the second compares with the classes that the first made likely
    regularization: float = 0.2  # of a whole fit, for whitened rows and weights of one; at least ...
    # ... this over the root of the number of features: with few of them, a change of a class is felt by all
    # rows, also by those that do not list the class
    regularization_root: float = 4.0
    bias_feature: float = 0.3  # constant feature by which the biases are trained
    passes: int = 4  # over the pairs of a class, in an epoch
    small_dual: float = 1e-3  # negatives of less probability are left out of the later passes
    shrinkages: tuple[float, ...] = (1.0, 4.0, 16.0)  # of the class means of the start; left-out rows choose
    blocks: int = 16  # groups of classes between which the normalisers are computed anew
    # when "auto" takes it
    min_pairs: int = 20_000  # pairs; with fewer, the exact softmax is cheap
    max_work: float = 1e12  # multiplications of scoring all rows against all classes, once
    max_values: int = 1 << 29  # of whitened rows in memory


@dataclass(frozen=True)
class WarmStartConfig:
    """Whitening of the features, and the linear discriminant that training starts from."""

    ridge: float = 0.1  # of the mean variance, added to every direction
    # mean over median variance of the columns from which a ridge relative to each column's own is tried
    own_unevenness: float = 3.0
    shrinkage: float = 1.0  # rows at the mean of all rows that each class is given
    shrinkages: tuple[float, ...] = (1.0,)  # to choose from by the rows of the sample, in place of it
    min_within: float = 0.05  # fraction of the variance taken to be inside the classes, at least
    no_variance: float = 1e-14  # variance of rows of unit length that is the rounding of float32
    # training rows, each left out of its class's mean, that choose the scale of the start
    sample_rows: int = 512
    sample_classes: int = 2048  # classes they are compared with
    scales: tuple[float, ...] = tuple(float(2**i) for i in range(-2, 9))  # of the start, to choose from
    tolerance: float = 0.01  # nats; the smallest scale so close to the best one is taken
    # fraction of the best scale to start from: training sharpens, and rarely takes back
    init_scale_factor: float = 0.6


@dataclass(frozen=True)
class GrowthConfig:
    """Dense weights of classes that are added to a fitted model (lab/tuning.md#growthconfig)."""

    # of the shrinkage of the start: training has made the weights of the other classes longer since
    shrinkage_factor: float = 0.5
    bias: float = 0.5  # nats that further classes are ahead of those of the start


@dataclass(frozen=True)
class SparseConfig:
    """Sparse weights: a generative start, linear weights and a similarity (lab/tuning.md#sparse)."""

    min_features: int = 1024  # columns from which "auto" trains sparse weights on a sparse matrix ...
    max_density: float = 0.05  # ... of at most this fraction of non-zero entries

    # start
    bucket_edges: tuple[int, ...] = (2, 4, 16, 100, 1000)  # classes that have a feature
    smoothing: tuple[float, ...] = (0.01, 1.0, 100.0)  # a, in mean rows: first guesses, then a walk by ...
    smoothing_step: float = 3.0  # ... this factor while the likelihood rises ...
    max_smoothing_steps: int = 2  # ... at most so often
    sample_pairs: int = 1000  # leave-one-out pairs that fit the numbers of the start
    search_pairs: int = 200  # ... and those that choose the smoothing
    sample_entries: int = 200_000  # of the rows of these pairs; of longer rows there are fewer ...
    long_sample_pairs: int = 250  # ... but so many
    best_candidates: int = 64  # classes of highest score that such a pair is compared with ...
    drawn_candidates: int = 40  # ... and classes drawn from all others
    number_penalty: float = 1e-5  # of the squared numbers, per pair
    count_slope: tuple[float, float] = (0.0, 1.0)  # mean change of a score per log of its class's size ...
    slope_penalty: float = 1.0  # ... and nats per squared distance from that
    slope_pairs: int = 200  # that it is the mean of
    min_sample_pairs: int = 20  # with fewer, the numbers are not fitted

    # plausible classes of a row, other than its own
    row_candidates: float = 4.0  # per pair of a mean class ...
    min_candidates: int = 24  # ... but so many ...
    max_candidates: int = 64  # ... and no more than this ...
    max_work: float = 1.5e9  # ... nor than this over the entries of X that linear weights read ...
    max_listed: float = 4e7  # ... nor than this over the rows
    max_entries: int = 15_000_000  # of X, above which linear weights read no parts of words ...
    many_words: float = 8.0  # ... if texts have so many words and runs of words; names have fewer
    prune: float = 0.03  # mean contribution below which a weight is left out of the search for them
    row_work: int = 40_000  # multiply-adds of that search for a mean row by the start ...
    row_work_linear: int = 200_000  # ... and by linear weights: what they take a row for must not be missed

    # linear weights of each class, from the rows it is plausible for
    n_epochs: int = 1
    # of several labels, and of columns that are not n-grams, where linear weights decide: the second round
    # adds the classes that the first takes rows for
    n_epochs_more: int = 2
    regularization: float = 0.1
    regularization_margin: float = 1.5  # of the squared hinge: several labels, and texts of many words ...
    margin_pairs: int = 1000  # ... and so many pairs, at least: held-out rows then choose its scale
    margin_scale: float = 6.0  # nats for a margin of one
    regularization_more: float = 1.0  # ... where new rows correct a model
    max_bias: float = 9.0  # the bias is the log-odds of the class, less one: at most so far below zero
    bias_feature: float = 1.0  # constant feature of classes that are compared with all rows
    passes: int = 12
    passes_more: int = 4  # from the dual variables of an earlier fit
    tolerance: float = 0.05  # change of a dual variable
    prune_linear: float = 0.004  # mean contribution below which a weight is dropped

    # bilinear part: a similarity of rows and classes that all classes share
    bilinear_size: int = 63  # coordinates; with the bias, a whole number of vector registers
    bilinear_min_rows: int = 4  # rows that have a column, at least
    bilinear_max_columns: int = 16_384
    bilinear_max_classes: int = 40_000
    bilinear_max_pairs: int = 150_000
    bilinear_epochs: int = 8
    bilinear_visits: int = 1_000_000  # pairs of all epochs, above which there are fewer epochs ...
    bilinear_min_epochs: int = 2  # ... but so many
    bilinear_steps: int = 240  # in all epochs ...
    bilinear_batch: int = 256  # ... on at least so many pairs
    bilinear_prune: float = 0.01  # entries of class means, of at most unit length, that are left out
    bilinear_drawn: int = 384  # classes that stand for all that are no candidates
    bilinear_rate: float = 0.05  # of the first step of Adam; falls to zero
    bilinear_penalty: float = 1e-5
    bilinear_gap_rows: float = 0.5  # of the rows of a minibatch lose words ...
    bilinear_gaps: float = 0.5  # ... each with this probability
    bilinear_scale: float = 0.1  # standard deviation of the first P and Q

    # mixing
    mix_candidates: int = 64  # best classes by each expert
    mix_drawn: int = 64
    max_mix_rows: int = 1024
    accuracy_weight: float = 30.0  # nats of a smoothed accuracy of one; few classes, ...
    accuracy_weight_many: float = 10.0  # ... many classes ...
    accuracy_weight_several: float = 100.0  # ... and several labels, whose order matters most
    accuracy_slope: float = 3.0  # per nat between the label and the best other class
    row_fraction: float = 1 / 20  # of the rows are held out to choose them ...
    max_held_out: int = 2048  # ... at most
    min_included: float = 0.03  # of the rows; fewer held-out rows are not trained on in the end

    few_classes: int = 200  # up to which there is neither similarity nor cosine
    prune_final: float = 0.002  # mean contribution to a score below which a weight is dropped ...
    max_prune_loss: float = 0.005  # ... doubled while that costs no more nats on held-out rows, ...
    max_prune_loss_several: float = 0.2  # ... of several labels, whose order hardly changes by it
    max_prune_steps: int = 4  # ... so often at most
    prune_rows: int = 256  # held-out rows that tell what that costs
    min_held_out_pairs: int = 1000  # training pairs; with fewer, parts have the weights below
    # weights of start, linear weights, similarity, dense columns and cosine, where no rows choose them; class
    # texts have none then, beside their part in the start
    default_mix: tuple[float, ...] = (0.5, 0.6, 0.3, 0.3, 3.0)
    # of the cosine with the class mean: questions are not worded as training texts are
    min_centroid_weight: float = 6.0
    # of the bilinear part where there is no cosine: with more, a row that a class is known by goes to another
    max_bilinear_weight: float = 0.5
    max_bound_loss: float = 0.02  # nats per held-out pair that the last two may cost; else they do not apply
    usual_length: tuple[float, float] = (
        0.7,
        1.4,
    )  # root mean square of row lengths that are left as they are


@dataclass(frozen=True)
class ScaleConfig:
    """Scaling of the features to rows of mean square length one."""

    standardize: bool = True  # columns of uneven scale (on whitened rows), and limit outlying rows
    sample_rows: int = 4096  # rows, from all over X, whose quantiles tell ordinary numbers from others
    min_rows: int = 50  # rows; with fewer, nothing is limited
    max_column: float = 100.0  # size of a sparse column over the median size, up to which it is left alone
    max_length: float = 1e34  # mean row length above which products leave float32
    min_length: float = 1e-30  # mean row length below which rows count as zero


@dataclass(frozen=True)
class TreeFitConfig:
    """Work that the fit of a label tree puts into each node (lab/tuning.md#treefitconfig)."""

    max_points: int | None = 100_000  # points for the Newton steps of a node; a sample of more is as good
    n_starts: int = 4  # leading eigenvectors that large nodes try as first direction
    several_starts_points: int = 512  # points up to which a node tries the first direction alone
    start_points: int = 4096  # points of a larger node, at random, that compare the directions
    start_iterations: int = 8  # of each start, before the best one goes on alone
    max_alternations: int = 100  # re-splits of a node; few are usual
    max_newton_steps: int = 50  # of a node; a handful is usual
    tolerance: float = 1e-4  # nats per point; a node is done when an iteration gains less
    min_gain: float = 1e-12  # nats per unit of weight; below it Newton has converged, whatever the tolerance
    max_drift: float = 1.0  # mean change of the logits from which a Hessian is computed anew
    power_steps: int = 30  # iterations for the first direction
    power_tolerance: float = 1e-6  # squared change of the direction at which they end
    fit_pairs: bool = True  # whether nodes of two classes get parameters; a mere structure needs none
    subtree_points: int = 4096  # points; smaller nodes are fitted as whole subtrees (no result depends on it)


@dataclass(frozen=True)
class TreeTuningConfig:
    """Choice of the tree's regularization by level (lab/tuning.md#treetuningconfig)."""

    grid: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0, 1e4)  # the largest leaves the class frequencies
    held_out: float = 0.1  # fraction of the rows that choose
    sample_rows: int = 5_000  # rows that rank the penalties of the top levels
    sample_share: float = 1 / 16  # of the rows, in whole subtrees, that rank those below, at least
    structure_regularization: float = 0.3  # while the structure is fitted
    bias_regularization: float = 1.0  # of all fits: biases are class frequencies, which need little shrinkage
    top_levels: int = 6  # levels decided by a sample of rows; deeper ones by a sample of subtrees
    rough_starts: int = 1  # `n_starts` of a rough structure, for trees that only propose classes
    rough_points: int = 20_000  # `max_points` of a rough structure: a third of the time


@dataclass(frozen=True)
class PQConfig:
    """The product-quantization index (lab/tuning.md#pqconfig)."""

    min_classes: int = 2048  # classes; fewer are scored as fast as searched
    max_features: int = 2048  # features: the covariance takes their square in memory, their cube in time
    subvectors: int = 56  # subvectors of a weight vector, at most; four bits each: 28 bytes per class

    target_recall: float = 0.997  # of held-out rows: 99%, and what a thousand rows may be wrong by
    max_width_rows: int = 2048  # rows that choose the width, at most
    enough_width_rows: int = 500  # held-out rows; fewer would leave the width to the hardest two or three
    min_width_rows: int = 100  # rows; fewer cannot measure one in a hundred, and the default is exact search
    min_width: int = 16  # classes, the first width that is tried

    tail_rows: int = 512  # rows by which the tail-mass correction is fitted
    tail_scales: tuple[float, ...] = (0.7, 1.0, 1.4)  # inverse temperatures, relative to the model's

    threshold_classes: int = 2048  # classes whose approximate scores set the threshold of a row, at least
    max_candidates: int = 4  # times the width; a row with more goes to exact search

    # Time over that of one feature of one class in exact search (AMD EPYC).
    entry_cost: float = 0.3  # of one table entry, with byte shuffles ...
    entry_cost_scalar: float = 6.0  # ... and without
    class_cost: float = 6.0  # of one class that is scored exactly, over one in exact search
    row_cost: float = 1.5  # of rotating a row, per coordinate and class


@dataclass(frozen=True)
class CalibrationConfig:
    """The rows that choose the calibration (lab/tuning.md#calibrationconfig)."""

    min_pairs: int = 20_000  # training pairs; with fewer, no rows are held out
    row_fraction: float = 1 / 40  # of the rows are held out ...
    max_rows: int = 1024  # ... rows, at most
    max_scores: int = 1 << 27  # scores of all held-out rows: fewer rows where classes are many ...
    min_rows: int = 128  # ... but so many rows, or none
    label_row_fraction: float = 1 / 20  # of the rows where rows have several labels, however few the pairs
    label_min_rows: int = 64  # ... but so many rows, or none
    label_min_prob: float = 0.01  # probability from which a label counts in its calibration error
    rows_after_interrupt: int = 256  # rows, after Ctrl-C: the user is waiting
    # classes of dense weights up to which the temperature depends on the row: scores are summed twice
    max_tempered_classes: int = 1 << 20
    mixed_rows: int = 512  # sums of two held-out rows of texts, which show the model what it does not know


@dataclass(frozen=True)
class Defaults:
    """The configs of all components."""

    order: OrderConfig = field(default_factory=OrderConfig)
    rows: RowConfig = field(default_factory=RowConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    candidates: CandidateConfig = field(default_factory=CandidateConfig)
    sparse: SparseConfig = field(default_factory=SparseConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    tree_fit: TreeFitConfig = field(default_factory=TreeFitConfig)
    tree_tuning: TreeTuningConfig = field(default_factory=TreeTuningConfig)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    pq: PQConfig = field(default_factory=PQConfig)
    growth: GrowthConfig = field(default_factory=GrowthConfig)


DEFAULTS = Defaults()


def has_many_classes(n_classes: int, n_shared: int, config: BatchConfig) -> bool:
    """Whether there are too many classes for the cells of a tree to find harder ones."""
    return n_classes > config.many_classes * n_shared


def replace_numbers(numbers: Defaults, **parts: Mapping[str, Any]) -> Defaults:
    """Return numbers with some fields of some configs replaced.

    Examples
    --------
    >>> replace_numbers(DEFAULTS, batch={"max_cells": 4}).batch.max_cells
    4
    """
    changed: dict[str, Any] = {
        name: replace(getattr(numbers, name), **values) for name, values in parts.items()
    }
    return replace(numbers, **changed)
