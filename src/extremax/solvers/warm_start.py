"""Training on whitened features, and its start: a linear discriminant.

In whitened rows x' a linear discriminant needs no matrix:

    w'_y = scale * m_y,     b'_y = log n_y - scale |m_y|^2 / 2,

with the means m_y of the classes shrunk towards the mean of all rows. The scale is chosen by the likelihood
of some training rows, each left out of the mean of its own class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from extremax.examples import Examples
from extremax.features.pca import PCA, find_moments
from extremax.features.scaling import ColumnScaling, change_blocks
from extremax.features.whitening import Whitening, WhiteningFamily
from extremax.kernels.batch_softmax import add_rows
from extremax.runtime.context import Context
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.solvers.base import TrainerBase, find_feature_scale, labelled_rows, row_weight
from extremax.solvers.optimizers import Tables
from extremax.tuned import WarmStartConfig
from extremax.types import Float32, Float64, Int32, Int64

_SHIFT_PAIRS = 1 << 12  # pairs whose own means are in memory together
_SUM_ROWS = 1 << 14  # pairs whose rows are read together
# where each class has one row: half its length, its mean would be below classes whose rows are longer
_ONE_ROW_SHRINKAGE = 1e-3
_SCALE_ROWS = 512  # rows that a thread standardises at a time
# of a product; independent of the threads, so that they change no result
_GRAM_ROWS, _GRAM_LANES = 1 << 14, 8


class Moments(NamedTuple):
    """Covariance and mean of the rows that are whitened: of u with a scaling, of f x without."""

    covariance: Float64
    mean: Float32
    scaling: ColumnScaling | None
    feature_scale: float

    @classmethod
    def from_pca(cls, pca: PCA, feature_scale: float) -> Moments:
        """Return the moments of f x, from all components of X."""
        mean = (pca.mean.astype(np.float64) * feature_scale).astype(np.float32)
        scaled = pca.components.T * (pca.explained_variance * feature_scale**2)
        return cls(scaled @ pca.components.astype(np.float64), mean, None, feature_scale)


@dataclass(frozen=True)
class WhitenedTrainer(TrainerBase):
    """A trainer whose tables are those of whitened rows inside an epoch."""

    def accept(self, data: Examples) -> Examples:
        return data.dense()  # matrix products with whitened rows

    def find_moments(self, data: Examples) -> tuple[Moments, dict[str, Any]]:
        """Return covariance and mean of the rows, how they are scaled, and the entries of `choices_`."""
        X: Any = data.X
        threads, weight = self.context.n_threads, row_weight(data)
        self.context.progress.log("projecting the features")
        scaling, chosen = self.find_scaling(data)
        if scaling is None:
            f = find_feature_scale(X, labelled_rows(data), self.config.numbers.scale)
            pca = PCA.fit(X, int(X.shape[1]), sample_weight=weight, n_jobs=threads)
            return Moments.from_pca(pca, f), chosen
        covariance, centre = find_moments(X, scaling, sample_weight=weight, n_threads=threads)
        return Moments(covariance, centre.astype(np.float32), scaling, scaling.feature_scale), chosen


@dataclass(frozen=True)
class WarmStart:
    """A whitening, and the scale and the shrinkage that were found best for the discriminant.

    Also whether the ridge of the whitening is relative to the own variance of each column.
    """

    whitening: Whitening
    scale: float
    shrinkage: float
    own_variance: bool = False

    @property
    def chosen(self) -> dict[str, Any]:
        """Its entries in `choices_`."""
        evened = {"evened_columns": True} if self.own_variance else {}
        return {**evened, "init_scale": self.scale}


class _Sample(NamedTuple):
    """Training rows, each to be left out of its class's mean, and classes to compare them with.

    Attributes
    ----------
    X
        The rows as given.
    own, weight, class_weight
        Class and weight of each row, and the weight of its class.
    own_prior
        Log prior of its class.
    others, log_weight
        Classes drawn from all, and the log of their priors over their probability to be drawn.
    """

    X: Float32
    own: Int32
    weight: Float32
    class_weight: Float32
    own_prior: Float64
    others: Int64
    log_weight: Float64


def start_discriminant(
    tables: Tables,
    moments: Moments,
    data: Examples,
    config: WarmStartConfig,
    context: Context,
    *,
    shrinkages: tuple[float, ...] = (),
) -> WarmStart:
    """Find the whitening and set the weights (for x') to the linear discriminant.

    `moments` are those of X; the weights of `data` have a mean of one. Of `shrinkages`, where given, the one
    under which left-out rows are most probable is taken.
    """
    total, mean, scaling, feature_scale = moments
    weight, means, n_threads = data.pair_weight, tables.weights, context.n_threads
    counts = np.bincount(data.y, weights=weight, minlength=tables.n_classes)
    _sum_rows(data, weight, scaling, means, n_threads)
    root = np.sqrt(counts / counts.sum())
    # Rows sqrt(n_y / n) (mean of y - mean): their products sum to the covariance between the classes.
    if scaling is None:
        means *= np.float32(feature_scale)
    means *= (root / np.maximum(counts, 1e-12)).astype(np.float32)[:, None]
    means -= root.astype(np.float32)[:, None] * mean
    between = _gram(means, n_threads)
    within = total - between
    spread, inside = float(np.trace(total)), max(float(np.trace(within)), 0.0)
    if inside < config.min_within * spread:
        # One row per class, or copies: the difference is rounding error, nothing to divide by.
        within += (config.min_within - inside / spread) * total
    shrinkage = config.shrinkage
    means *= (counts / (counts + shrinkage) / np.maximum(root, 1e-12)).astype(np.float32)[:, None]
    prior = np.log(np.maximum(counts, 0.5) / counts.sum())
    if data.n_pairs and np.bincount(data.y).max() == 1:  # left out, a row leaves no mean to judge by
        shrinkages = (_ONE_ROW_SHRINKAGE,)
    sample = _draw_sample(data, counts, prior, config, context.seed)
    white, own_variance = _choose_whitening(within, moments, means, sample, config)
    change_blocks(means, tables.biases, n_threads, lambda w, b: (w @ white.matrix, b))
    best, figure, chosen, kept = 1.0, -np.inf, shrinkage, np.ones(len(counts), np.float32)
    for candidate in shrinkages or (shrinkage,):
        factor = ((counts + shrinkage) / (counts + candidate)).astype(np.float32)
        half = 0.5 * np.einsum("ck,ck->c", means, means) * factor**2
        others = sample.others
        scale, found = _choose_scale(
            white.rows(sample.X, feature_scale),
            means[sample.own] * factor[sample.own, None],
            means[others] * factor[others, None],
            half[others],
            sample,
            replace(config, shrinkage=candidate),
        )
        if found > figure:
            best, figure, chosen, kept = scale, found, candidate, factor
    if chosen != shrinkage:
        means *= kept[:, None]
    sharpness = np.float32(config.init_scale_factor * best)
    tables.biases[:] = prior - sharpness * (0.5 * np.einsum("ck,ck->c", means, means))
    means *= sharpness
    return WarmStart(white, best, chosen, own_variance)


def leave_one_out_shift(
    tables: Tables,
    feature_scale: float,
    start: WarmStart,
    data: Examples,
    config: WarmStartConfig,
    n_threads: int,
) -> Float32:
    """Return the change of each pair's own score when its row is left out of its class mean.

    The tables are at their start, for whitened rows; the weights of `data` have a mean of one.
    """
    X: Any = data.X
    scale = np.float32(config.init_scale_factor * start.scale)
    counts = np.bincount(data.y, weights=data.pair_weight, minlength=tables.n_classes).astype(np.float32)
    out = np.empty(data.n_pairs, np.float32)
    blocks = split(data.n_pairs, _SHIFT_PAIRS)

    def work(i: int) -> None:
        cut = slice(*blocks[i])
        own, w = data.y[cut], data.pair_weight[cut]
        rows = data.rows_of(np.arange(*blocks[i]))
        x = start.whitening.rows(np.ascontiguousarray(X[rows], dtype=np.float32), feature_scale)
        with_row = tables.weights[own] / scale
        without = _mean_without(with_row, counts[own], x, w, start.shrinkage)
        out[cut] = scale * (_own_product(x, without) - _own_product(x, with_row))

    with one_blas_thread():
        run(work, len(blocks), n_threads)
    return out


def _mean_without(mean: Float32, n: Float32, x: Float32, weight: Float32, shrinkage: float) -> Float32:
    """Return the means of classes without one row each, (n m - w x) / (n - w), shrunk like the others."""
    left = np.maximum(n - weight, 0.0)
    out: Float32 = (mean * (n + shrinkage)[:, None] - weight[:, None] * x) / (left + shrinkage)[:, None]
    return out


def _own_product(x: Float32, mean: Float32) -> Float32:
    out: Float32 = np.einsum("ik,ik->i", x, mean) - 0.5 * np.einsum("ik,ik->i", mean, mean)
    return out


def _sum_rows(
    data: Examples, weight: Float32, scaling: ColumnScaling | None, sums: Float32, n_threads: int
) -> None:
    """Set `sums` to the weighted sum of each class's rows, standardised where there is a scaling."""
    X: Any = data.X
    rows = data.row_index
    sums[...] = 0.0
    for first, last in split(data.n_pairs, _SUM_ROWS):
        where = np.arange(first, last) if rows is None else rows[first:last]
        # `row_index` ascends
        block = _read_rows(X, int(where[0]), int(where[-1]) + 1, scaling, n_threads)
        local, labels, part_weight = where - where[0], data.y[first:last], weight[first:last]
        run(
            lambda part: add_rows(block, local, labels, part_weight, sums, part, n_threads),
            n_threads,
            n_threads,
        )


def _read_rows(X: Any, first: int, last: int, scaling: ColumnScaling | None, n_threads: int) -> Float32:
    """Return rows in memory, standardised by several threads where there is a scaling."""
    if scaling is None:
        return np.ascontiguousarray(X[first:last], dtype=np.float32)
    out = np.empty((last - first, X.shape[1]), np.float32)
    cuts = split(last - first, _SCALE_ROWS)

    def work(i: int) -> None:
        a, b = cuts[i]
        scaling.rows(np.asarray(X[first + a : first + b], np.float32), out=out[a:b])

    run(work, len(cuts), n_threads)
    return out


def discriminant_projection(
    tables: Tables,
    feature_scale: float,
    start: WarmStart,
    counts: NDArray[Any],
    n_components: int,
    config: WarmStartConfig,
    n_threads: int,
) -> PCA:
    """Return the directions in which the class means differ most, from weights at their start (for x').

    A label tree on these sees more of the classes than on as many directions of largest variance
    (lab/tuning.md)."""
    white = start.whitening
    root = np.sqrt(counts / counts.sum()).astype(np.float32)
    between = _gram(tables.weights, n_threads, root)
    n_features = len(between)
    first = n_features - min(n_components, n_features)
    values, vectors = scipy.linalg.eigh(between, subset_by_index=(first, n_features - 1))
    values = np.maximum(values, 0.0) / (config.init_scale_factor * start.scale) ** 2
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    components = (white.matrix.astype(np.float64) @ (vectors * signs)[:, ::-1]).T
    mean = white.mean.astype(np.float64)
    if white.scaling is not None:
        components *= white.scaling.factor
        mean = white.scaling.centre + mean * white.scaling.inverse_factor
    components *= feature_scale
    # Rows of about unit length, as the tree's penalties expect.  Inside the classes a direction has variance
    # 1 / n_features.
    components /= np.sqrt(np.sum(values + 1.0 / n_features))
    mean /= feature_scale
    return PCA(components.astype(np.float32), mean.astype(np.float32), values[::-1].copy())


def _gram(table: Float32, n_threads: int, factor: Float32 | None = None) -> Float64:
    """Return table.T @ table, its rows multiplied by `factor`, in blocks that do not depend on the
    threads.
    """
    cuts = split(len(table), _GRAM_ROWS)
    parts = np.zeros((min(len(cuts), _GRAM_LANES), table.shape[1], table.shape[1]))

    def work(lane: int) -> None:
        for a, b in cuts[lane :: len(parts)]:
            block = table[a:b] if factor is None else table[a:b] * factor[a:b, None]
            parts[lane] += block.T @ block

    with one_blas_thread():
        run(work, len(parts), n_threads)
    out: Float64 = parts.sum(axis=0)
    return out


def _draw_sample(
    data: Examples, counts: NDArray[Any], prior: Float64, config: WarmStartConfig, seed: int
) -> _Sample:
    """Draw training rows, and classes to compare them with."""
    X: Any = data.X
    n_classes = len(counts)
    rng = np.random.default_rng((seed, 3))
    chosen = np.sort(rng.choice(len(data.y), min(config.sample_rows, len(data.y)), replace=False))
    others = np.sort(rng.choice(n_classes, min(config.sample_classes, n_classes), replace=False))
    own = data.y[chosen]
    return _Sample(
        np.ascontiguousarray(X[data.rows_of(chosen)], dtype=np.float32),
        own,
        data.pair_weight[chosen],
        counts[own].astype(np.float32),
        prior[own],
        others,
        prior[others] + np.log(n_classes / len(others)),
    )


def _choose_whitening(
    within: Float64, moments: Moments, means: Float32, sample: _Sample, config: WarmStartConfig
) -> tuple[Whitening, bool]:
    """Return the whitening, and whether its ridge is relative to the own variance of each column.

    It is where columns are uneven and rows left out of their class's mean are then more probable.
    Standardised columns have one variance anyway.

    Parameters
    ----------
    within
        Covariance of the rows around the means of their classes.
    means
        Those of the classes before any whitening, around the mean of all rows and shrunk.
    """

    def fit(own_variance: bool) -> Whitening:
        family = WhiteningFamily.of(within, own_variance=own_variance, no_variance=config.no_variance)
        return family.fit(moments.mean, config.ridge, moments.scaling)

    def figure(white: Whitening) -> float:
        with one_blas_thread():
            own, others = means[sample.own] @ white.matrix, means[sample.others] @ white.matrix
        half = 0.5 * np.einsum("ck,ck->c", others, others)
        x = white.rows(sample.X, moments.feature_scale)
        return _choose_scale(x, own, others, half, sample, config)[1]

    given = fit(own_variance=False)
    variance = np.diag(moments.covariance)
    if moments.scaling is not None or variance.mean() <= config.own_unevenness * np.median(variance):
        return given, False
    own = fit(own_variance=True)
    is_better = figure(own) > figure(given) + config.tolerance
    return (own, True) if is_better else (given, False)


def _choose_scale(
    x: Float32, own: Float32, others: Float32, half: Float32, sample: _Sample, config: WarmStartConfig
) -> tuple[float, float]:
    """Return the scale under which rows left out of their class's mean are most probable, to a tolerance.

    The second number is their mean log-likelihood under the best scale.

    Parameters
    ----------
    x
        Whitened rows of the sample.
    own, others
        Whitened means of their classes and of the other classes of the sample.
    half
        Half the squared lengths of `others`.
    """
    mean = _mean_without(own, sample.class_weight, x, sample.weight, config.shrinkage)
    truth = _own_product(x, mean)
    with one_blas_thread():
        scores = x @ others.T - half
    scores[sample.own[:, None] == sample.others] = -np.inf
    figures = []
    for scale in config.scales:
        a = scale * truth + sample.own_prior
        rest = scale * scores + sample.log_weight
        top = np.maximum(rest.max(axis=1), a)
        figures.append(
            float(np.mean(a - top - np.log(np.exp(a - top) + np.exp(rest - top[:, None]).sum(axis=1))))
        )
    # The smallest of those that are as good as the best: rows that are easy to tell apart would take any.
    good = np.asarray(figures) >= max(figures) - config.tolerance
    return config.scales[int(np.argmax(good))], max(figures)
