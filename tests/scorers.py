"""Random models for the tests of search: weights, a label tree, rows, and full tables of their scores."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

import reference
from extremax.calibration import Calibration
from extremax.examples import Examples
from extremax.scores import Predictor, Scorer, summarize
from extremax.scores.base import SearchConfig
from extremax.scores.dense import DenseWeights
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise


@dataclass(frozen=True)
class FirstColumns:
    """A projection to the first columns."""

    n_components: int

    def transform(self, X, *, n_jobs=None):
        columns = X[:, : self.n_components]
        return np.ascontiguousarray(columns.toarray() if sparse.issparse(columns) else columns, np.float32)


@dataclass
class Problem:
    """A linear model, a label tree, and rows to predict."""

    X: np.ndarray
    y: np.ndarray
    weights: DenseWeights
    tree: LabelTree
    projection: FirstColumns

    @property
    def Z(self):
        return self.projection.transform(self.X)

    @property
    def examples(self):
        return Examples(self.X, self.y)

    def scorer(self, noise=None, temperature=1.0, uniform_mix=0.0):
        return Scorer(self.weights, noise, self.projection, Calibration(temperature, uniform_mix))

    def table(self, noise):
        """Debiased scores of all classes in float64."""
        scores = self.weights.feature_scale * self.X.astype(np.float64) @ self.weights.weights.T
        scores += self.weights.biases
        return scores if noise is None else scores + noise.log_prob_all(self.Z)

    def noises(self):
        uniform, tree = UniformNoise(self.tree.n_classes), TreeNoise(self.tree)
        return {
            "none": None,
            "frequency": FrequencyNoise(np.arange(self.tree.n_classes) % 7),
            "tree": tree,
            "mixture": MixtureNoise(tree, uniform, weight=0.7),
        }


def make_problem(n=60, n_classes=300, n_features=24, n_components=4, seed=0) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n_features)).astype(np.float32)
    X[rng.random(X.shape) < 0.6] = 0.0  # sparse enough to be a CSR matrix as well
    weights = DenseWeights.zeros(n_classes, n_features, feature_scale=0.5)
    weights.weights[...] = rng.standard_normal(weights.weights.shape)
    weights.biases[...] = rng.standard_normal(n_classes)
    means = rng.standard_normal((n_classes, n_components))
    labels = rng.integers(n_classes, size=4 * n_classes)
    Z = means[labels] + 0.3 * rng.standard_normal((len(labels), n_components))
    tree = LabelTree.fit(Z, labels, n_classes=n_classes, n_jobs=1)
    y = rng.integers(n_classes, size=n).astype(np.int32)
    return Problem(X, y, weights, tree, FirstColumns(n_components))


def random_linear(n_classes=3000, n_features=30, seed=0, feature_scale=0.5):
    """Classes with scores of all sizes, and rows that are not centred and vary more in some directions."""
    rng = np.random.default_rng(seed)
    weights = DenseWeights.zeros(n_classes, n_features, feature_scale)
    spread = rng.uniform(0.3, 2.0, n_features)
    lengths = rng.uniform(0.5, 1.5, (n_classes, 1)) / (6.0 * spread)
    weights.weights[:] = rng.normal(size=weights.weights.shape) * lengths
    weights.biases[:] = rng.normal(size=n_classes)
    rows = 2.0 * rng.normal(size=(900, n_features)) * spread + rng.normal(size=n_features)
    return weights, rows.astype(np.float32)


def mirrored(tree: LabelTree) -> LabelTree:
    """The same distribution with left and right exchanged everywhere: padding comes first."""
    levels = [(1 << level) - 1 + np.arange(1 << level)[::-1] for level in range(tree.depth)]
    nodes = np.concatenate(levels)
    return LabelTree(-tree.weights[nodes], -tree.biases[nodes], tree.leaf_class[::-1])


def assert_same_ranking(labels, log_prob, expected):
    """Compare with the full table of log-probabilities; classes that differ must be tied in float32."""
    best = reference.ranked(expected, labels.shape[1])
    assert (labels == best).mean() > 0.999
    assert all(len(set(row)) == len(row) for row in labels[:, : expected.shape[1]].tolist())
    # Scores of size 20 in float32, a sum of 24 products each: a few 1e-6.
    np.testing.assert_allclose(log_prob, reference.values_at(expected, labels), rtol=0, atol=2e-5)


def predictor(scorer, n_threads=1, config=None):
    return Predictor(scorer, n_threads, config or SearchConfig())


def debiased_scores(scorer, X, **options):
    return predictor(scorer, **options).debiased_scores(X)


def log_prob_all(scorer, X, **options):
    return predictor(scorer, **options).log_prob_all(X)


def prob_all(scorer, X, **options):
    return predictor(scorer, **options).prob_all(X)


def rank_pairs(scorer, examples, k, **options):
    return predictor(scorer, **options).rank_pairs(examples, k)


def evaluate(scorer, examples, k=5, **options):
    return summarize(rank_pairs(scorer, examples, k, **options), examples)


def log_likelihood(scorer, examples, **options):
    return evaluate(scorer, examples, 1, **options).log_likelihood


def choose_calibration(scorer, examples, config=None):
    return Predictor(scorer).choose_calibration(examples, config=config)


def is_mapped(array: Any) -> bool:
    """Whether the memory of an array is that of a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, memoryview) and isinstance(array.obj, mmap.mmap)
