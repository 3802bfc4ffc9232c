"""Regularization of the tree by held-out rows, against class frequencies and fixed penalties."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.data.synthetic import planted_hierarchy
from extremax.tree import LabelTree
from extremax.tree.tuning import _best, fit_tuned
from extremax.tuned import TreeFitConfig, TreeTuningConfig

GRID = TreeTuningConfig().grid


def frequency_log_likelihood(y, y_test, n_classes):
    counts = np.bincount(y, minlength=n_classes) + 0.5
    return np.log(counts / counts.sum())[y_test].mean()


@pytest.mark.planted
def test_noise_features_do_not_hurt_recovers():
    """300 classes of 3 to 30 rows and features without information: only the paper's penalty overfits."""
    rng = np.random.default_rng(0)
    prior = rng.dirichlet(np.full(300, 2.0))
    y, y_test = (rng.choice(300, size=n, p=prior).astype(np.int32) for n in (3000, 3000))
    Z, Z_test = (rng.normal(size=(3000, 16)).astype(np.float32) for _ in range(2))
    frequencies = frequency_log_likelihood(y, y_test, 300)
    fixed = LabelTree.fit(Z, y, n_classes=300, regularization=0.1).log_prob(Z_test, y_test).mean()
    tuned = fit_tuned(Z, y, n_classes=300)
    chosen = tuned.tree.log_prob(Z_test, y_test).mean()
    assert fixed < frequencies - 1.0
    assert chosen > frequencies - 0.1
    assert tuned.strengths[0] == max(GRID)


@pytest.mark.planted
def test_not_worse_than_any_fixed_strength_recovers():
    data = planted_hierarchy(6000, 200, 16, seed=1, n_test=3000)
    tuned = fit_tuned(data.X, data.y, n_classes=200)
    chosen = tuned.tree.log_prob(data.X_test, data.y_test).mean()
    for fixed in GRID:
        # The same structure: that of another fit may be better or worse by more than the penalty.
        tree = tuned.tree.refit(data.X, data.y, regularization=fixed)
        # chosen on nine tenths of the rows: that may cost a little
        assert chosen > tree.log_prob(data.X_test, data.y_test).mean() - 0.02
    # what the held-out rows promise (with nine tenths of the rows) is about what test rows get
    assert tuned.held_out_log_likelihood == pytest.approx(chosen, abs=0.2)


def test_sample_of_subtrees_decides_nearly_alike():
    data = planted_hierarchy(8000, 500, 8, seed=2, n_test=2000)
    whole = fit_tuned(data.X, data.y, n_classes=500)
    sampled = fit_tuned(data.X, data.y, n_classes=500, config=TreeTuningConfig(sample_rows=3000))
    assert np.abs(np.log10(sampled.strengths) - np.log10(whole.strengths)).max() <= 2
    ours, theirs = (t.tree.log_prob(data.X_test, data.y_test).mean() for t in (sampled, whole))
    assert ours > theirs - 0.05


@pytest.mark.invariance
def test_threads_and_weights_invariant():
    data = planted_hierarchy(2000, 50, 8, seed=3)
    one, two = (fit_tuned(data.X, data.y, n_classes=50, n_jobs=n) for n in (1, 2))
    ones = fit_tuned(data.X, data.y, n_classes=50, sample_weight=np.ones(2000, np.float32))
    for other in (two, ones):
        assert np.array_equal(one.tree.weights, other.tree.weights)
        assert np.array_equal(one.strengths, other.strengths)


@pytest.mark.parametrize(("n_rows", "n_classes"), [(1, 1), (2, 2), (5, 3), (12, 12), (40, 5)])
def test_few_rows(n_rows, n_classes):
    rng = np.random.default_rng(n_rows)
    y = np.resize(np.arange(n_classes), n_rows).astype(np.int32)
    tuned = fit_tuned(rng.normal(size=(n_rows, 3)).astype(np.float32), y, n_classes=n_classes)
    assert tuned.tree.n_classes == n_classes
    assert len(tuned.strengths) == tuned.tree.depth
    total = np.exp(tuned.tree.log_prob_all(rng.normal(size=(4, 3)).astype(np.float32))).sum(axis=1)
    np.testing.assert_allclose(total, 1.0, atol=1e-5)


@pytest.mark.planted
def test_labels_of_a_row_are_held_out_together_recovers():
    """Features identify the row, and its labels are alike: who has seen one label predicts the others."""
    rng = np.random.default_rng(4)
    Z, group = rng.normal(size=(800, 24)).astype(np.float32), rng.integers(20, size=800)
    rows = np.repeat(np.arange(800), 4)
    # 20 groups of 4 classes, one group a row
    y = (group[rows] * 4 + np.tile(np.arange(4), 800)).astype(np.int32)
    apart, together = (fit_tuned(Z[rows], y, n_classes=80, row_index=r) for r in (None, rows))
    Z_test, y_test = (
        rng.normal(size=(2000, 24)).astype(np.float32),
        rng.integers(80, size=2000).astype(np.int32),
    )
    found, honest = (t.tree.log_prob(Z_test, y_test).mean() for t in (apart, together))
    assert honest > found + 0.1
    assert honest > -np.log(80) - 0.15
    assert together.held_out_log_likelihood == pytest.approx(honest, abs=0.15)


@pytest.mark.identity
def test_a_rough_fit_is_one_of_fewer_starts_points_and_rows_identity():
    data = planted_hierarchy(3000, 60, 6, seed=5)
    config = TreeTuningConfig(rough_starts=2, rough_points=500, sample_rows=800)
    rough = fit_tuned(data.X, data.y, n_classes=60, rough=True, config=config)
    structure = TreeFitConfig(n_starts=2, max_points=500)
    same = fit_tuned(
        data.X,
        data.y,
        n_classes=60,
        config=TreeTuningConfig(sample_rows=800),
        fit_config=structure,
    )
    np.testing.assert_array_equal(rough.tree.leaf_class, same.tree.leaf_class)
    assert len(rough.strengths) == 6


def test_pairs_of_classes_have_parameters_even_without_held_out_rows():
    """A structure leaves them out; the tree that is returned has them."""
    Z, y = np.ones((1, 1), np.float32), np.ones(1, np.int32)
    tuned = fit_tuned(Z, y, n_classes=2)
    assert tuned.held_out_log_likelihood is None
    assert (tuned.structure.weights == 0.0).all()
    assert tuned.tree.log_prob(Z, y) > np.log(0.5)


def test_neighbouring_levels_decide_together():
    """A level whose few rows prefer another penalty by a little follows the levels around it."""
    log_prob = np.array([[-1.0, -1.1, -1.0], [-2.0, -1.0, -2.0], [-np.inf] * 3])
    assert _best(log_prob).tolist() == [0, 0, 0]
    log_prob[0, 1] = -4.0
    assert _best(log_prob).tolist() == [1, 1, 1]


def test_grid_and_held_out_rows_are_those_of_the_config():
    data = planted_hierarchy(2000, 50, 8, seed=3)
    tuned = fit_tuned(data.X, data.y, n_classes=50, config=TreeTuningConfig(grid=(0.5, 2.0), held_out=0.5))
    assert set(tuned.strengths) <= {0.5, 2.0}
    only = fit_tuned(data.X, data.y, n_classes=50, config=TreeTuningConfig(grid=(2.0,)))
    np.testing.assert_array_equal(only.strengths, 2.0)
