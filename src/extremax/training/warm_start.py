"""Start of training on whitened features: a linear discriminant.

In whitened rows x' a linear discriminant needs no matrix:

    w'_y = scale * m_y,     b'_y = log n_y - scale |m_y|^2 / 2,

with the means m_y of the classes shrunk towards the mean of all rows. The scale is chosen by the likelihood
of some training rows, each left out of the mean of its own class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from extremax.defaults import WarmStartConfig
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.features.whitening import Whitening, change_blocks
from extremax.kernels.batch_softmax import add_rows
from extremax.runtime.context import Context
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.training.optimizers import Tables
from extremax.types import Float32, Float64

_SUM_ROWS = 1 << 16  # pairs whose rows are read together
# of a product; independent of the threads, so that they change no result
_GRAM_ROWS, _GRAM_LANES = 1 << 14, 8


@dataclass(frozen=True)
class WarmStart:
    """A whitening, and the scale that was found best for the discriminant."""

    whitening: Whitening
    scale: float


class _Discriminant(NamedTuple):
    """A linear discriminant in whitened rows: class means, half their square lengths, log priors, counts."""

    means: Float32
    half: Float32
    prior: Float64
    counts: NDArray[Any]


def start_discriminant(
    tables: Tables, feature_scale: float, pca: PCA, data: Examples, config: WarmStartConfig, context: Context
) -> WarmStart:
    """Find the whitening and set the weights (for x') to the linear discriminant.

    `pca` has all components of X; the weights of `data` have a mean of one.
    """
    weight, means, n_threads = data.pair_weight, tables.weights, context.n_threads
    counts = np.bincount(data.y, weights=weight, minlength=tables.n_classes)
    _sum_rows(data, weight, means, n_threads)
    root = np.sqrt(counts / counts.sum())
    # Rows sqrt(n_y / n) (mean of y - mean): their products sum to the covariance between the classes.
    mean = (pca.mean.astype(np.float64) * feature_scale).astype(np.float32)
    means *= np.float32(feature_scale)
    means *= (root / np.maximum(counts, 1e-12)).astype(np.float32)[:, None]
    means -= root.astype(np.float32)[:, None] * mean
    between = _gram(means, n_threads)
    total = (pca.components.T * (pca.explained_variance * feature_scale**2)) @ pca.components.astype(
        np.float64
    )
    within = total - between
    spread, inside = float(np.trace(total)), max(float(np.trace(within)), 0.0)
    if inside < config.min_within * spread:
        # One row per class, or copies: the difference is rounding error, nothing to divide by.
        within += (config.min_within - inside / spread) * total
    white = Whitening.fit(within, mean, ridge=config.ridge, no_variance=config.no_variance)
    kept = counts / (counts + config.shrinkage)
    means *= (kept / np.maximum(root, 1e-12)).astype(np.float32)[:, None]
    change_blocks(means, tables.biases, n_threads, lambda w, b: (w @ white.matrix, b))
    half = 0.5 * np.einsum("ck,ck->c", means, means)
    prior = np.log(np.maximum(counts, 0.5) / counts.sum())
    discriminant = _Discriminant(means, half, prior, counts)
    best = _choose_scale(discriminant, white, feature_scale, data, config, context.seed)
    scale = np.float32(config.init_scale_factor * best)
    tables.biases[:] = prior - scale * half
    means *= scale
    return WarmStart(white, best)


def _sum_rows(data: Examples, weight: Float32, sums: Float32, n_threads: int) -> None:
    """Set `sums` to the weighted sum of each class's rows."""
    X: Any = data.X
    rows = data.row_index
    sums[...] = 0.0
    for first, last in split(data.n_pairs, _SUM_ROWS):
        where = np.arange(first, last) if rows is None else rows[first:last]
        block = np.ascontiguousarray(X[where[0] : where[-1] + 1], dtype=np.float32)  # `row_index` ascends
        local, labels, part_weight = where - where[0], data.y[first:last], weight[first:last]
        run(
            lambda part: add_rows(block, local, labels, part_weight, sums, part, n_threads),
            n_threads,
            n_threads,
        )


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
    (docs/tuning.md)."""
    white = start.whitening
    root = np.sqrt(counts / counts.sum()).astype(np.float32)
    between = _gram(tables.weights, n_threads, root)
    n_features = len(between)
    first = n_features - min(n_components, n_features)
    values, vectors = scipy.linalg.eigh(between, subset_by_index=(first, n_features - 1))
    values = np.maximum(values, 0.0) / (config.init_scale_factor * start.scale) ** 2
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    components = (white.matrix.astype(np.float64) @ (vectors * signs)[:, ::-1]).T * feature_scale
    # Rows of about unit length, as the tree's penalties expect.  Inside the classes a direction has variance
    # 1 / n_features.
    components /= np.sqrt(np.sum(values + 1.0 / n_features))
    mean = white.mean.astype(np.float64) / feature_scale
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


def _choose_scale(
    discriminant: _Discriminant,
    white: Whitening,
    feature_scale: float,
    data: Examples,
    config: WarmStartConfig,
    seed: int,
) -> float:
    """Return the scale under which rows left out of their class's mean are most probable, to a tolerance."""
    y, (means, half, prior, counts) = data.y, discriminant
    X: Any = data.X
    rng = np.random.default_rng((seed, 3))
    chosen = np.sort(rng.choice(len(y), min(config.sample_rows, len(y)), replace=False))
    x = white.rows(np.ascontiguousarray(X[data.rows_of(chosen)], dtype=np.float32), feature_scale)
    own, n = y[chosen], counts[y[chosen]].astype(np.float32)
    w = data.pair_weight[chosen]
    without = np.maximum(n - w, 0.0)
    # The mean of the row's own class without the row, (n m - w x) / (n - w), shrunk like the others.
    shrinkage = config.shrinkage
    mean = (means[own] * (n + shrinkage)[:, None] - w[:, None] * x) / (without + shrinkage)[:, None]
    truth = np.einsum("ik,ik->i", x, mean) - 0.5 * np.einsum("ik,ik->i", mean, mean)
    n_classes = len(means)
    others = np.sort(rng.choice(n_classes, min(config.sample_classes, n_classes), replace=False))
    with one_blas_thread():
        scores = x @ means[others].T - half[others]
    scores[own[:, None] == others] = -np.inf
    log_weight = prior[others] + np.log(n_classes / len(others))
    figures = []
    for scale in config.scales:
        a = scale * truth + prior[own]
        rest = scale * scores + log_weight
        top = np.maximum(rest.max(axis=1), a)
        figures.append(
            float(np.mean(a - top - np.log(np.exp(a - top) + np.exp(rest - top[:, None]).sum(axis=1))))
        )
    # The smallest of those that are as good as the best: rows that are easy to tell apart would take any.
    good = np.asarray(figures) >= max(figures) - config.tolerance
    return config.scales[int(np.argmax(good))]
