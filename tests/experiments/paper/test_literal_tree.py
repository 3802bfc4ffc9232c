"""The paper's tree to the letter, node by node against a reference that was written from the text."""

from __future__ import annotations

import literal_reference
import numpy as np
import pytest

from coverings import in_turn
from extremax import LabelTree
from extremax.tree.literal import fit_literal
from extremax.tuned import TreeFitConfig


def clouds(n_classes, n_rows, k=4, seed=0):
    """Gaussian clouds around random means, of unequal sizes; every class has a row."""
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, n_classes + 1)
    y = rng.choice(n_classes, size=n_rows, p=share / share.sum())
    y[:n_classes] = np.arange(n_classes)
    Z = 2.0 * rng.standard_normal((n_classes, k))[y] + rng.standard_normal((n_rows, k))
    return (Z - Z.mean(axis=0)).astype(np.float32), y.astype(np.int32)


@pytest.mark.reference
@in_turn(n_classes=[2, 3, 4, 5, 7, 8, 9, 13, 16, 21, 33], regularization=[0.1, 3.0])
def test_every_node_matches_reference(n_classes, regularization):
    Z, y = clouds(n_classes, 12 * n_classes)
    found = fit_literal(Z, y, regularization=regularization)
    nodes, leaves = literal_reference.fit_tree(Z, y, n_classes, regularization)
    expected = [label if label < n_classes else -1 for label in leaves]
    np.testing.assert_array_equal(found.tree.leaf_class, expected)
    assert found.settled.all()
    for i, node in enumerate(nodes):
        if node is None:
            continue
        # both are float64 optima of the same strictly concave function
        np.testing.assert_allclose(found.weights[i], node.w, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.biases[i], node.b, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found.log_likelihood[i], node.log_likelihood, rtol=1e-9, atol=1e-9)


@pytest.mark.reference
@pytest.mark.parametrize("n_classes", [3, 5, 9, 21])
def test_probabilities_and_padding_match_reference(n_classes):
    Z, y = clouds(n_classes, 10 * n_classes, seed=1)
    found = fit_literal(Z, y)
    nodes, leaves = literal_reference.fit_tree(Z, y, n_classes)
    real, padding = literal_reference.log_prob_all(nodes, leaves, Z, n_classes)
    assert padding.max() < -1e5  # exactly 0 as a probability
    log_prob = found.tree.log_prob_all(Z)
    np.testing.assert_allclose(log_prob, real, rtol=2e-5, atol=2e-5)  # the tree is float32
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    drawn, _ = found.tree.sample(Z, 50, seed=1)
    assert drawn.min() >= 0
    assert drawn.max() < n_classes
    total = found.log_likelihood.sum()  # Eq. 7 is the sum of Eq. 8 over the nodes
    np.testing.assert_allclose(total, real[np.arange(len(y)), y].sum(), rtol=1e-9)


@pytest.mark.reference
def test_a_larger_tree_matches_reference():
    """Nodes of several blocks of points, re-splits, few points, and kept Hessians."""
    Z, y = clouds(90, 2500, k=12, seed=4)
    found = fit_literal(Z, y)
    nodes, leaves = literal_reference.fit_tree(Z, y, 90)
    np.testing.assert_array_equal(found.tree.leaf_class, [label if label < 90 else -1 for label in leaves])
    assert found.n_splits.max() > 2
    for i, node in enumerate(nodes):
        if node is not None:
            np.testing.assert_allclose(found.weights[i], node.w, rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(found.biases[i], node.b, rtol=1e-7, atol=1e-8)


@pytest.mark.invariance
def test_threads_and_order_of_rows_change_nothing_invariant():
    Z, y = clouds(40, 600)
    one, two = fit_literal(Z, y, n_jobs=1), fit_literal(Z, y, n_jobs=2)
    for name, array in one.tree.to_arrays().items():
        np.testing.assert_array_equal(array, two.tree.to_arrays()[name])
    turned = np.random.default_rng(0).permutation(len(y))
    other = fit_literal(Z[turned], y[turned])
    np.testing.assert_array_equal(one.tree.leaf_class, other.tree.leaf_class)
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-8, atol=1e-8)


@pytest.mark.identity
def test_weights_are_copies_of_rows_identity():
    Z, y = clouds(11, 150)
    weight = np.random.default_rng(3).integers(1, 4, size=len(y))
    weighted = fit_literal(Z, y, sample_weight=weight)
    copied = fit_literal(np.repeat(Z, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_array_equal(weighted.tree.leaf_class, copied.tree.leaf_class)
    np.testing.assert_allclose(weighted.weights, copied.weights, rtol=1e-8, atol=1e-8)


def test_alternation_raises_the_likelihood_of_the_first_split():
    """What the paper describes and its published code does not do: re-splits by the fitted direction."""
    Z, y = clouds(64, 2000, k=8)
    alternated = fit_literal(Z, y)
    assert alternated.n_splits.max() > 1
    first_split = LabelTree.fit(
        Z, y, config=TreeFitConfig(n_starts=1, max_alternations=0, max_points=None, tolerance=0.0)
    )
    assert alternated.log_likelihood.sum() > first_split.log_prob(Z, y).sum()


@pytest.mark.small
def test_classes_without_rows_keep_a_leaf():
    Z, y = clouds(9, 80)
    Z, y = Z[y != 4], y[y != 4]
    tree = fit_literal(Z, y, n_classes=30).tree
    assert sorted(tree.leaf_class[tree.leaf_class >= 0]) == list(range(30))
    log_prob = tree.log_prob_all(Z)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)
    assert log_prob.min() > -1e4  # every class may be drawn


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.zeros(3, int)}, "y has shape .3,., but Z has 80 rows"),
        ({"n_classes": 4}, "n_classes is 4, but y holds the class 8"),
        ({"regularization": 0.0}, "regularization is 0.0; give positive finite numbers"),
    ],
)
def test_wrong_input_rejects(changes, message):
    Z, y = clouds(9, 80)
    given = {"Z": Z, "y": y, **changes}
    with pytest.raises(ValueError, match=message):
        fit_literal(**given)


@pytest.mark.identity
@in_turn(n_classes=[8, 32], rows_per_class=[2, 30])
def test_default_fit_has_the_same_optimum_on_the_same_structure_identity(n_classes, rows_per_class):
    Z, y = clouds(n_classes, rows_per_class * n_classes)
    found = fit_literal(Z, y)
    from_zero = LabelTree(0 * found.tree.weights, 0 * found.tree.biases, found.tree.leaf_class)
    again = from_zero.refit(Z, y, config=TreeFitConfig(tolerance=0.0))
    # the default fit ends where a step gains 1e-12 nats per point
    np.testing.assert_allclose(again.weights, found.weights, rtol=1e-5, atol=1e-5)
