"""Weights of further classes: the spread of the rows that they are measured by."""

from __future__ import annotations

import numpy as np
import pytest

from coverings import pairwise
from extremax import ExtremeClassifier, LabelTree
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.features.whitening import Whitening
from extremax.solvers import NegativeSampling
from extremax.solvers.growth import projected_discriminant
from extremax.tree.noise import TreeNoise
from extremax.tuned import DEFAULTS
from planted import around_means


def config_of():
    X, y = around_means(60, 4, 7, seed=0)
    clf = ExtremeClassifier(NegativeSampling(tree_components=2), n_epochs=1, random_state=0, n_jobs=1)
    return clf.fit(X, y).model_.config


@pytest.mark.reference
@pairwise(scale=[1.0, 3.0], n_kept=[3, 7], whitened=[False, True])
def test_spread_is_that_of_the_projection_and_flat_outside(scale, n_kept, whitened):
    """The whitening is that of the covariance written out, however the projection is scaled."""
    rng = np.random.default_rng(0)
    config, n_columns = config_of(), 7
    directions = np.linalg.qr(rng.normal(size=(n_columns, n_columns)))[0][:, :n_kept]
    variance, mean = np.linspace(2.0, 0.5, n_kept), rng.normal(size=n_columns).astype(np.float32)
    projection = PCA((directions.T * scale).astype(np.float32), mean, variance * scale**2)
    projection = projection.whitened() if whitened else projection
    X = (mean + 0.4 * rng.normal(size=(50, n_columns))).astype(np.float32)
    y = np.arange(50, dtype=np.int32) % 5
    found = projected_discriminant(Examples(X, y), projection, scale, config)
    centred = scale * (X.astype(np.float64) - mean)
    outside = np.eye(n_columns) - directions @ directions.T
    flat = np.square(centred @ outside).sum() / len(X) / max(n_columns - n_kept, 1)
    covariance = scale**2 * (directions * variance) @ directions.T + flat * outside
    expected = Whitening.fit(covariance, scale * mean, ridge=DEFAULTS.warm_start.ridge)
    np.testing.assert_allclose(found.whitening.matrix, expected.matrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.whitening.inverse, expected.inverse, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.whitening.mean, scale * mean, rtol=1e-6)


@pytest.mark.planted
def test_own_tree_on_raw_features_says_nothing_of_their_spread():
    """Features of a thousandth of unit scale, and a label tree of the user without a projection."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(40), 60)
    X = (0.001 * (rng.normal(size=(2400, 8)) + 3 * rng.normal(size=(40, 8))[y])).astype(np.float32)
    train, known = np.arange(2400) % 3 > 0, y < 36
    tree = LabelTree.fit(X[train & known], y[train & known].astype(np.int32))
    clf = ExtremeClassifier(NegativeSampling(noise=TreeNoise(tree)), n_epochs=8, random_state=0, n_jobs=1)
    clf.fit(X[train & known], y[train & known])
    clf.add_classes(X[train & ~known], y[train & ~known])
    assert clf.score(X[~train & ~known], y[~train & ~known]) > 0.6  # 0.75; 0.03 by variances of one
