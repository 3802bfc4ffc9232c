"""Features of equal variance in every direction, and the start of training in them: scaled class means.

Text features, embeddings and principal components have a few directions of large variance and many of small;
a step size that suits the first crawls along the others. Training therefore sees

    x' = s P (f x - mean),     P = (T + ridge * mean eigenvalue of T)^(-1/2),     s such that E|x'|^2 = 1,

f the model's feature scale and T the covariance of the rows f x around the means of their classes,

while a model's weights are kept for f x itself: ``fold`` and ``unfold`` go from one to the other, in place.

In x' a linear discriminant needs no matrix: w'_y = sharpness * m_y, b'_y = log n_y - sharpness |m_y|^2 / 2,
with the means m_y of the classes shrunken towards the mean of all rows. `sharpness` is chosen by the
likelihood of some training rows, each left out of the mean of its own class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from extremax.features.pca import PCA
from extremax.kernels.batch_softmax import add_rows
from extremax.linear import Features, LinearModel
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split

RIDGE = 0.1
_SHRINKAGE = 1.0  # rows at the mean of all that each class is given
_LEAST_WITHIN = 0.05  # share of the variance that is taken to be inside the classes, at least
_NO_SPREAD = 1e-14  # variance of rows of unit length that is the rounding of float32
_BLOCK = 4096
_JUDGES = 512  # training rows that choose the sharpness
_RIVALS = 2048  # classes they are compared with
_SHARPNESS = tuple(float(2**i) for i in range(-2, 9))
_ALIKE = 0.01  # nats
_CAUTION = 0.6  # share of the best sharpness to start from: training sharpens, and hardly ever takes back


class Whitening(NamedTuple):
    """The map x -> x' = (f x - mean) @ matrix of rows scaled by f, and its inverse without the mean."""

    matrix: NDArray[np.float32]
    inverse: NDArray[np.float32]
    mean: NDArray[np.float32]

    @classmethod
    def none(cls, n_features: int) -> Whitening:
        """Rows as they are, but for the model's own scale."""
        unit = np.eye(n_features, dtype=np.float32)
        return cls(unit, unit, np.zeros(n_features, np.float32))

    @classmethod
    def fit(
        cls, covariance: NDArray[np.float64], mean: NDArray[np.float32], *, ridge: float = RIDGE
    ) -> Whitening:
        """From the covariance of the rows, or of the rows around the means of their classes.

        Examples
        --------
        >>> import numpy as np
        >>> X = (np.random.default_rng(0).normal(size=(4000, 3)) * [1.0, 10.0, 100.0]).astype(np.float32)
        >>> white = Whitening.fit(np.cov(X.T), X.mean(axis=0), ridge=1e-9)
        >>> bool(np.allclose(np.cov(white.rows(X, 1.0).T), np.eye(3) / 3, atol=0.01))
        True
        """
        variance, basis = scipy.linalg.eigh(covariance)
        variance = np.maximum(variance, 0.0)
        total = float(variance.sum())
        varies = total > _NO_SPREAD
        floor = ridge * total / len(variance) if varies else 1.0
        scale = float(np.sum(variance / (variance + floor))) ** -0.5 if varies else 1.0
        roots = np.sqrt(variance + floor)
        matrix, inverse = scale * (basis / roots) @ basis.T, (basis * roots) @ basis.T / scale
        return cls(matrix.astype(np.float32), inverse.astype(np.float32), mean.astype(np.float32))

    def rows(
        self, X: NDArray[np.float32], scale: float, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """x' of some rows, for the feature scale of the model."""
        centred = X * np.float32(scale)
        centred -= self.mean
        result: NDArray[np.float32] = np.matmul(centred, self.matrix, out=out)
        return result


def fold(model: LinearModel, white: Whitening, n_threads: int) -> None:
    """Weights for x' become weights for feature_scale * x, in place."""
    matrix = np.ascontiguousarray(white.matrix.T)
    mean = (white.mean.astype(np.float64) @ white.matrix).astype(np.float32)
    _blocks(model, n_threads, lambda w, b: (w @ matrix, b - w @ mean))


def unfold(model: LinearModel, white: Whitening, n_threads: int) -> None:
    """The way back from `fold`."""
    matrix = np.ascontiguousarray(white.inverse.T)
    _blocks(model, n_threads, lambda w, b: (w @ matrix, b + w @ white.mean))


def _blocks(model: LinearModel, n_threads: int, change) -> None:  # type: ignore[no-untyped-def]
    cuts = split(model.n_classes, _BLOCK)

    def work(i: int) -> None:
        cut = slice(*cuts[i])
        model.weights[cut], model.biases[cut] = change(model.weights[cut], model.biases[cut])

    with one_blas_thread():
        run(work, len(cuts), n_threads)


def whiten_and_start(
    model: LinearModel,
    pca: PCA,
    X: Features,
    rows: NDArray[np.int64] | None,
    y: NDArray[np.int32],
    weight: NDArray[np.float32],
    *,
    ridge: float = RIDGE,
    seed: int,
    n_threads: int,
) -> tuple[Whitening, float]:
    """Find the whitening, and set the weights (for x') to the linear discriminant.

    `pca` has all components of X.  Returns the whitening and the sharpness that was found best.
    """
    counts = np.bincount(y, weights=weight, minlength=model.n_classes)
    means = model.weights
    means[...] = 0.0
    for first, last in split(len(y), 1 << 16):
        where = np.arange(first, last) if rows is None else rows[first:last]
        block = np.ascontiguousarray(X[where[0] : where[-1] + 1], dtype=np.float32)  # `rows` ascends
        local, labels, share = where - where[0], y[first:last], weight[first:last]
        run(lambda part: add_rows(block, local, labels, share, means, part, n_threads), n_threads, n_threads)
    root = np.sqrt(counts / counts.sum())
    # Rows sqrt(n_y / n) (mean of y - mean): their products sum to the covariance between the classes.
    scale = model.feature_scale
    mean = (pca.mean.astype(np.float64) * scale).astype(np.float32)
    means *= np.float32(scale)
    means *= (root / np.maximum(counts, 1e-12)).astype(np.float32)[:, None]
    means -= root.astype(np.float32)[:, None] * mean
    between = _gram(means, n_threads)
    total = (pca.components.T * (pca.explained_variance * scale**2)) @ pca.components.astype(np.float64)
    within = total - between
    spread, inside = float(np.trace(total)), max(float(np.trace(within)), 0.0)
    # one row per class, or copies: the difference is rounding error, nothing to divide by
    if inside < _LEAST_WITHIN * spread:
        within += (_LEAST_WITHIN - inside / spread) * total
    white = Whitening.fit(within, mean, ridge=ridge)
    kept = counts / (counts + _SHRINKAGE)
    means *= (kept / np.maximum(root, 1e-12)).astype(np.float32)[:, None]
    _blocks(model, n_threads, lambda w, b: (w @ white.matrix, b))
    half = 0.5 * np.einsum("ck,ck->c", means, means)
    prior = np.log(np.maximum(counts, 0.5) / counts.sum())
    best = _choose_sharpness(means, half, prior, counts, white, scale, X, rows, y, weight, seed)
    sharpness = np.float32(_CAUTION * best)
    model.biases[:] = prior - sharpness * half
    model.weights *= sharpness
    return white, best


def discriminants(
    model: LinearModel,
    white: Whitening,
    counts: NDArray[Any],
    n_components: int,
    sharpness: float,
    n_threads: int,
) -> PCA:
    """The directions in which the class means differ most, of a model that is at its start (weights for x').

    A label tree on these sees more of the classes than on as many directions of largest variance: on
    ICD-10-CM with 32 of them its test log-likelihood is -4.07 instead of -4.96."""
    root = np.sqrt(counts / counts.sum()).astype(np.float32)
    between = _gram(model.weights, n_threads, root)
    n_features = len(between)
    first = n_features - min(n_components, n_features)
    values, vectors = scipy.linalg.eigh(between, subset_by_index=(first, n_features - 1))
    values = np.maximum(values, 0.0) / (_CAUTION * sharpness) ** 2
    signs = np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])] < 0, -1.0, 1.0)
    components = (white.matrix.astype(np.float64) @ (vectors * signs)[:, ::-1]).T * model.feature_scale
    # Rows of about unit length: the tree's penalties count on it.  Inside the classes a direction has
    # variance 1 / n_features.
    components /= np.sqrt(np.sum(values + 1.0 / n_features))
    mean = white.mean.astype(np.float64) / model.feature_scale
    return PCA(components.astype(np.float32), mean.astype(np.float32), values[::-1].copy())


def _gram(
    table: NDArray[np.float32], n_threads: int, factor: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """table.T @ table, its rows multiplied by `factor`, in blocks whose number the threads do not change."""
    cuts = split(len(table), 1 << 14)
    parts = np.zeros((min(len(cuts), 8), table.shape[1], table.shape[1]))

    def work(lane: int) -> None:
        for a, b in cuts[lane :: len(parts)]:
            block = table[a:b] if factor is None else table[a:b] * factor[a:b, None]
            parts[lane] += block.T @ block

    with one_blas_thread():
        run(work, len(parts), n_threads)
    out: NDArray[np.float64] = parts.sum(axis=0)
    return out


def _choose_sharpness(means, half, prior, counts, white, scale, X, rows, y, weight, seed) -> float:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng((seed, 3))
    judges = np.sort(rng.choice(len(y), min(_JUDGES, len(y)), replace=False))
    x = white.rows(np.ascontiguousarray(X[judges if rows is None else rows[judges]], dtype=np.float32), scale)
    own, n = y[judges], counts[y[judges]].astype(np.float32)
    w = weight[judges]
    without = np.maximum(n - w, 0.0)
    # The judge's own class without the judge: (n m - w x) / (n - w), shrunken like the rest.
    mean = (means[own] * (n + _SHRINKAGE)[:, None] - w[:, None] * x) / (without + _SHRINKAGE)[:, None]
    truth = np.einsum("ik,ik->i", x, mean) - 0.5 * np.einsum("ik,ik->i", mean, mean)
    n_classes = len(means)
    rivals = np.sort(rng.choice(n_classes, min(_RIVALS, n_classes), replace=False))
    with one_blas_thread():
        scores = x @ means[rivals].T - half[rivals]
    scores[own[:, None] == rivals] = -np.inf
    log_weight = prior[rivals] + np.log(n_classes / len(rivals))
    figures = []
    for sharpness in _SHARPNESS:
        a = sharpness * truth + prior[own]
        rest = sharpness * scores + log_weight
        top = np.maximum(rest.max(axis=1), a)
        figures.append(
            float(np.mean(a - top - np.log(np.exp(a - top) + np.exp(rest - top[:, None]).sum(axis=1))))
        )
    # The mildest of those that are as good as the best: rows that are easy to tell apart would take any.
    return _SHARPNESS[int(np.argmax(np.asarray(figures) >= max(figures) - _ALIKE))]
