"""Synthetic data with a known distribution: a planted hierarchy of classes.

It is a linear softmax model, ``p(y|x) = softmax(x.w_y + b_y)``: the assumption of Eq. 1 of the paper.
For Gaussian classes of one standard deviation s around means mu_y with prior pi_y this holds with
``w_y = mu_y / s**2`` and ``b_y = log pi_y - |mu_y|**2 / (2 s**2)``; the best log-likelihood is known.

A data set is a function of its arguments alone. Rows come in fixed blocks, each with its own random stream,
so that neither the number of threads nor the memory of the machine changes a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import log_softmax

from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads, run, split
from extremax.types import Float32, Float64, Int32

_BLOCK = 8192  # rows per random stream; another value would change every data set

Law = Literal["uniform", "zipf"]

# One number per purpose: no two parts of a data set share random numbers.
_HIERARCHY, _NODES, _PRIOR, _LABELS, _ROWS, _FRESH_LABELS, _FRESH_ROWS = range(7)


def _stream(seed: int, purpose: int, block: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence((seed, purpose, block))))


@dataclass(frozen=True)
class GaussianTruth:
    """The distribution of a data set whose classes are Gaussian with one standard deviation.

    Attributes
    ----------
    latent_means : float32 (n_classes, n_latent)
        Class means in the coordinates of `basis`.
    basis : float32 (n_latent, n_features)
        Orthonormal rows; the mean of class y is ``latent_means[y] @ basis``.
    noise_scale : float
        Standard deviation of every feature around its class mean.
    prior : float64 (n_classes,)
        Class probabilities.
    class_leaf : int32 (n_classes,)
        Position of each class in the planted hierarchy, left to right.
    """

    latent_means: Float32
    basis: Float32
    noise_scale: float
    prior: Float64
    class_leaf: Int32

    def log_prob_all(self, X: Float32) -> Float64:
        """Return the log-probability of every class, (n, n_classes) in float64, for small problems."""
        latent = X.astype(np.float64) @ self.basis.T.astype(np.float64)
        means = self.latent_means.astype(np.float64)
        with np.errstate(divide="ignore"):
            scores = (latent @ means.T - 0.5 * (means**2).sum(axis=1)) / self.noise_scale**2 + np.log(
                self.prior
            )
        return np.asarray(log_softmax(scores, axis=1))

    def sample(self, n_samples: int, *, seed: int, n_jobs: int | None = None) -> tuple[Float32, Int32]:
        """Draw fresh rows, for instance a test set: features (n, n_features) and labels (n,)."""
        rng = _stream(seed, _FRESH_LABELS)
        y = _draw_labels(self.prior, n_samples, rng)
        return self._features(y, seed=seed, purpose=_FRESH_ROWS, n_jobs=n_jobs), y

    def _features(self, y: Int32, *, seed: int, purpose: int, n_jobs: int | None) -> Float32:
        X = np.empty((len(y), self.basis.shape[1]), dtype=np.float32)
        blocks = split(len(y), _BLOCK)

        def fill(i: int) -> None:
            start, stop = blocks[i]
            rows = X[start:stop]
            _stream(seed, purpose, i).standard_normal(out=rows, dtype=np.float32)
            rows *= np.float32(self.noise_scale)
            rows += self.latent_means[y[start:stop]] @ self.basis

        with one_blas_thread():  # the blocks run on several threads already
            run(fill, len(blocks), resolve_threads(n_jobs))
        return X


@dataclass(frozen=True)
class SyntheticData:
    """Features, labels and the distribution they were drawn from.

    `X_test` and `y_test` are empty unless test rows were asked for.
    """

    X: Float32
    y: Int32
    truth: GaussianTruth
    n_classes: int
    X_test: Float32 = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    y_test: Int32 = field(default_factory=lambda: np.empty(0, dtype=np.int32))


def planted_hierarchy(  # noqa: PLR0913 (the parameters are the API)
    n_samples: int,
    n_classes: int,
    n_features: int,
    *,
    seed: int = 0,
    law: Law = "zipf",
    zipf_exponent: float = 1.0,
    n_latent: int = 32,
    noise_scale: float = 0.6,
    decay: float = 0.9,
    n_test: int = 0,
    n_jobs: int | None = None,
) -> SyntheticData:
    """Make Gaussian classes whose means follow a random binary hierarchy.

    From the root down, every node moves its two halves of the classes by ``+v`` and ``-v`` with a random v
    whose length shrinks by `decay` per level, in a space of `n_latent` dimensions. An orthonormal basis maps
    that space to the features, where every coordinate gets noise.

    Parameters
    ----------
    n_samples, n_classes, n_features : int
        Shape. With ``n_samples >= n_classes`` every class has at least one row.
    seed : int
        Seed of all draws.
    law : {"zipf", "uniform"}
        Rows per class: proportional to ``rank ** -zipf_exponent``, or equal up to chance.
    zipf_exponent : float
        Exponent of the Zipf law.
    n_latent : int
        Dimensions that carry the hierarchy; at most `n_features` are used.
    noise_scale : float
        Standard deviation of each feature around its class mean; the vector of the first level has length 2.
    decay : float
        Length of a level's vector relative to that of the level above.
    n_test : int
        Fresh rows of the same distribution for `X_test`, `y_test`.
    n_jobs : int or None
        Threads; the data do not depend on it.

    Returns
    -------
    SyntheticData
        With a `GaussianTruth`: `truth.class_leaf` is the planted order of the classes.

    Examples
    --------
    >>> from extremax.data import planted_hierarchy
    >>> data = planted_hierarchy(1000, 50, 20, seed=1)
    >>> data.X.shape, data.y.shape, data.truth.log_prob_all(data.X[:2]).shape
    ((1000, 20), (1000,), (2, 50))
    """
    _check_shape(n_samples, n_classes, n_features)
    n_latent = min(n_latent, n_features)
    rng = _stream(seed, _HIERARCHY)
    class_leaf = rng.permutation(n_classes).astype(np.int32)
    # orthonormal rows: distances in the latent space are distances in the feature space
    basis = np.linalg.qr(rng.standard_normal((n_features, n_latent)))[0].T.astype(np.float32)

    depth = max(1, int(np.ceil(np.log2(n_classes)))) if n_classes > 1 else 0
    means = np.zeros((n_classes, n_latent), dtype=np.float32)
    # the position of a leaf scaled to 2**depth is its path: bit l, from the top, is the branch at level l
    path = (class_leaf.astype(np.int64) << depth) // n_classes
    nodes = _stream(seed, _NODES)
    for level in range(depth):
        length = 2.0 * decay**level / np.sqrt(n_latent)
        directions = nodes.standard_normal((1 << level, n_latent), dtype=np.float32) * np.float32(length)
        sign = (1 - 2 * ((path >> (depth - 1 - level)) & 1)).astype(np.float32)
        means += sign[:, None] * directions[path >> (depth - level)]

    prior = _prior(n_classes, law, zipf_exponent, _stream(seed, _PRIOR))
    rng = _stream(seed, _LABELS)
    if n_samples >= n_classes:
        y, prior = _draw_every_class(prior, n_samples, rng)
    else:
        y = _draw_labels(prior, n_samples, rng)
    truth = GaussianTruth(means, basis, noise_scale, prior, class_leaf)
    X = truth._features(y, seed=seed, purpose=_ROWS, n_jobs=n_jobs)
    X_test, y_test = truth.sample(n_test, seed=seed, n_jobs=n_jobs)
    return SyntheticData(X, y, truth, len(prior), X_test, y_test)


def _check_shape(n_samples: int, n_classes: int, n_features: int) -> None:
    for name, value in (("n_samples", n_samples), ("n_classes", n_classes), ("n_features", n_features)):
        if value < 1:
            raise ValueError(f"{name} is {value}; a synthetic data set needs at least 1.")


def _prior(n_classes: int, law: str, exponent: float, rng: np.random.Generator) -> Float64:
    if law == "uniform":
        return np.full(n_classes, 1.0 / n_classes)
    if law != "zipf":
        raise ValueError(f"law is {law!r}; use 'zipf' or 'uniform'.")
    # ranks in random order: the frequency of a class says nothing about its id or its place in the hierarchy
    mass = np.asarray((rng.permutation(n_classes) + 1.0) ** -exponent, dtype=np.float64)
    prior: Float64 = mass / mass.sum()
    return prior


def _draw_labels(prior: Float64, n_samples: int, rng: np.random.Generator) -> Int32:
    cumulative = np.cumsum(prior)
    y = np.searchsorted(cumulative, rng.random(n_samples) * cumulative[-1], side="right")
    labels: Int32 = np.minimum(y, len(prior) - 1).astype(np.int32)
    return labels


def _draw_every_class(prior: Float64, n_samples: int, rng: np.random.Generator) -> tuple[Int32, Float64]:
    """Draw labels, at least one of each class; return them and the prior of fresh rows, which counts that."""
    n_extra = n_samples - len(prior)
    extra = _draw_labels(prior, n_extra, rng)
    y = np.concatenate([np.arange(len(prior), dtype=np.int32), extra])
    rng.shuffle(y)
    return y, (1.0 + n_extra * prior) / n_samples
