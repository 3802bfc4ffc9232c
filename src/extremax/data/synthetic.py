"""Synthetic data with a known distribution: a planted hierarchy, a planted softmax, and unstructured classes.

All three are linear softmax models, ``p(y|x) = softmax(x.w_y + b_y)``: the assumption of Eq. 1 of the paper.
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
    basis : float32 (n_latent, n_features) or None
        Orthonormal rows; the mean of class y is ``latent_means[y] @ basis``. None if the coordinates are the
        features.
    noise_scale : float
        Standard deviation of every feature around its class mean.
    prior : float64 (n_classes,)
        Class probabilities.
    class_leaf : int32 (n_classes,) or None
        Position of each class in the planted hierarchy, left to right; None without a hierarchy.
    """

    latent_means: Float32
    basis: Float32 | None
    noise_scale: float
    prior: Float64
    class_leaf: Int32 | None = None

    def log_prob_all(self, X: Float32) -> Float64:
        """Return the log-probability of every class, (n, n_classes) in float64, for small problems."""
        latent = X.astype(np.float64)
        if self.basis is not None:
            latent = latent @ self.basis.T.astype(np.float64)
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
        n_features = self.latent_means.shape[1] if self.basis is None else self.basis.shape[1]
        X = np.empty((len(y), n_features), dtype=np.float32)
        blocks = split(len(y), _BLOCK)

        def fill(i: int) -> None:
            start, stop = blocks[i]
            rows = X[start:stop]
            _stream(seed, purpose, i).standard_normal(out=rows, dtype=np.float32)
            rows *= np.float32(self.noise_scale)
            means = self.latent_means[y[start:stop]]
            rows += means if self.basis is None else means @ self.basis

        with one_blas_thread():  # the blocks run on several threads already
            run(fill, len(blocks), resolve_threads(n_jobs))
        return X


@dataclass(frozen=True)
class SoftmaxTruth:
    """A linear softmax: ``log p(y|x) = x.w_y + b_y - logsumexp``."""

    weights: Float32
    biases: Float32

    def log_prob_all(self, X: Float32) -> Float64:
        """Return the log-probability of every class, (n, n_classes) in float64."""
        scores = X.astype(np.float64) @ self.weights.T.astype(np.float64) + self.biases
        return np.asarray(log_softmax(scores, axis=1))

    def sample(self, n_samples: int, *, seed: int, n_jobs: int | None = None) -> tuple[Float32, Int32]:
        """Draw fresh rows: features (n, n_features) and labels (n,)."""
        return _draw_softmax(self, n_samples, seed, _FRESH_LABELS, _FRESH_ROWS)


@dataclass(frozen=True)
class SyntheticData:
    """Features, labels and the distribution they were drawn from.

    `X_test` and `y_test` are empty unless test rows were asked for.
    """

    X: Float32
    y: Int32
    truth: GaussianTruth | SoftmaxTruth
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
    return _gaussian_data(truth, y, seed=seed, n_test=n_test, n_jobs=n_jobs)


def planted_softmax(
    n_samples: int,
    n_classes: int,
    n_features: int,
    *,
    seed: int = 0,
    scale: float = 2.0,
    bias_scale: float = 0.5,
    n_test: int = 0,
) -> SyntheticData:
    """Make standard normal features, with labels drawn from a linear softmax.

    Parameters
    ----------
    n_samples, n_classes, n_features : int
        Shape; time and memory of one block grow with ``n_classes``.
    seed : int
        Seed of all draws.
    scale : float
        Standard deviation of a class's score over x: larger is easier.
    bias_scale : float
        Standard deviation of the biases.
    n_test : int
        Fresh rows of the same distribution for `X_test`, `y_test`.

    Examples
    --------
    >>> from extremax.data import planted_softmax
    >>> data = planted_softmax(100, 5, 3)
    >>> data.truth.weights.shape
    (5, 3)
    """
    _check_shape(n_samples, n_classes, n_features)
    rng = _stream(seed, _HIERARCHY)
    weights = rng.standard_normal((n_classes, n_features), dtype=np.float32) * np.float32(
        scale / np.sqrt(n_features)
    )
    biases = rng.standard_normal(n_classes, dtype=np.float32) * np.float32(bias_scale)
    truth = SoftmaxTruth(weights, biases)
    X, y = _draw_softmax(truth, n_samples, seed, _LABELS, _ROWS)
    X_test, y_test = truth.sample(n_test, seed=seed)
    return SyntheticData(X, y, truth, n_classes, X_test, y_test)


def unstructured(  # noqa: PLR0913 (the parameters are the API)
    n_classes: int,
    rows_per_class: int = 3,
    n_features: int = 64,
    *,
    seed: int = 0,
    noise_scale: float = 1.2,
    law: Law = "uniform",
    zipf_exponent: float = 0.8,
    n_test: int = 10_000,
    n_jobs: int | None = None,
) -> SyntheticData:
    """Make Gaussian classes of few rows whose means are independent in all dimensions.

    This is a hard case for a label tree: each direction says equally little about the class, and a node low
    in the tree has a handful of rows. A tree that fits them closely is worse on fresh rows than the class
    frequencies.

    Parameters
    ----------
    n_classes, rows_per_class, n_features : int
        Shape; the training set has ``n_classes * rows_per_class`` rows.
    seed : int
        Seed of all draws.
    noise_scale : float
        Standard deviation of each feature around its class mean; the means have standard deviation 1 per
        feature.
    law : {"uniform", "zipf"}
        "uniform": exactly `rows_per_class` rows for every class, whose frequencies have log-likelihood
        ``-log(n_classes)``. "zipf": that many on average, at least one each, the others drawn in proportion
        to ``rank ** -zipf_exponent``; with the default exponent and 100,000 classes, class frequencies have a
        test log-likelihood of -10.7.
    zipf_exponent : float
        Exponent of the Zipf law.
    n_test : int
        Test rows, drawn from the same distribution.
    n_jobs : int or None
        Threads; the data do not depend on it.

    Examples
    --------
    >>> from extremax.data import unstructured
    >>> data = unstructured(100, 3, 16, n_test=50)
    >>> data.X.shape, data.X_test.shape
    ((300, 16), (50, 16))
    """
    n_samples = n_classes * rows_per_class
    _check_shape(n_samples, n_classes, n_features)
    means = _stream(seed, _NODES).standard_normal((n_classes, n_features), dtype=np.float32)
    rng = _stream(seed, _LABELS)
    if law == "uniform":
        prior = np.full(n_classes, 1.0 / n_classes)
        y = np.tile(np.arange(n_classes, dtype=np.int32), rows_per_class)
        rng.shuffle(y)
    else:
        prior = _prior(n_classes, law, zipf_exponent, _stream(seed, _PRIOR))
        y, prior = _draw_every_class(prior, n_samples, rng)
    truth = GaussianTruth(means, None, noise_scale, prior)
    return _gaussian_data(truth, y, seed=seed, n_test=n_test, n_jobs=n_jobs)


def _gaussian_data(
    truth: GaussianTruth, y: Int32, *, seed: int, n_test: int, n_jobs: int | None
) -> SyntheticData:
    """Draw the features of labelled rows, and test rows."""
    X = truth._features(y, seed=seed, purpose=_ROWS, n_jobs=n_jobs)
    X_test, y_test = truth.sample(n_test, seed=seed, n_jobs=n_jobs)
    return SyntheticData(X, y, truth, len(truth.prior), X_test, y_test)


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


def _draw_softmax(
    truth: SoftmaxTruth, n_samples: int, seed: int, label_purpose: int, row_purpose: int
) -> tuple[Float32, Int32]:
    n_classes, n_features = truth.weights.shape
    X = np.empty((n_samples, n_features), dtype=np.float32)
    y = np.empty(n_samples, dtype=np.int32)
    for i, (start, stop) in enumerate(split(n_samples, max(1, min(_BLOCK, 2**22 // n_classes)))):
        _stream(seed, row_purpose, i).standard_normal(out=X[start:stop], dtype=np.float32)
        # the argmax of log p + Gumbel noise is a draw from p
        gumbel = _stream(seed, label_purpose, i).gumbel(size=(stop - start, n_classes))
        y[start:stop] = np.argmax(truth.log_prob_all(X[start:stop]) + gumbel, axis=1)
    return X, y
