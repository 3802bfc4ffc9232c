"""The tree cut into subtrees: every class once, and the same probabilities as walking from the root."""

from __future__ import annotations

import numpy as np
import pytest

from coverings import in_turn
from extremax.kernels import topk, tree_tiles
from extremax.kernels.tree_fit import PADDING_BIAS
from extremax.tree import LabelTree

pytestmark = pytest.mark.small


def random_tree(n_classes, n_components=3, seed=0):
    """Node parameters and order of the classes at random; the padding where a fitted tree has it."""
    rng = np.random.default_rng(seed)
    depth = (n_classes - 1).bit_length()
    sizes = np.array([n_classes])
    for _ in range(depth):
        sizes = np.stack([sizes - sizes // 2, sizes // 2], axis=1).ravel()
    leaf_class = np.full(1 << depth, -1, np.int32)
    leaf_class[sizes > 0] = rng.permutation(n_classes)
    weights = rng.standard_normal(((1 << depth) - 1, n_components)).astype(np.float32)
    biases = rng.standard_normal((1 << depth) - 1).astype(np.float32)
    single = ((1 << depth) + np.flatnonzero(leaf_class < 0)) // 2 - 1
    weights[single], biases[single] = 0.0, PADDING_BIAS
    return LabelTree(weights, biases, leaf_class)


def descend(tree, nodes, Z, start, column):
    logits, out = Z @ tree.weights[nodes].T, np.empty((len(Z), len(nodes) + 1), np.float32)
    tree_tiles.descend(
        np.ascontiguousarray(logits), tree.biases[nodes], start, column, np.empty(len(nodes), np.float32), out
    )
    return out


@pytest.mark.identity
@in_turn(n_classes=[1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 100], tile_depth=[1, 2, 5, 20])
def test_descend_matches_walk_from_the_root_identity(n_classes, tile_depth):
    tree = random_tree(n_classes)
    Z = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    cut = tree_tiles.cut_tree(tree.leaf_class, tile_depth)
    np.testing.assert_array_equal(np.sort(cut.labels), np.arange(n_classes))
    labels = np.broadcast_to(cut.labels, (6, n_classes))
    expected = tree.log_prob(Z, labels)
    reached = descend(tree, cut.top, Z, np.zeros((6, 1), np.float32), 0)
    got = np.concatenate([descend(tree, cut.nodes(j), Z, reached, j) for j in range(len(cut.roots))], axis=1)
    np.testing.assert_allclose(got, expected, atol=2e-5)  # float32 sums of up to seven losses
    np.testing.assert_allclose(np.exp(got.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


def test_descend_keeps_both_tails_exact():
    """A decision of probability exp(-60) and its opposite."""
    tree = LabelTree(np.array([[1.0]]), np.zeros(1), np.array([0, 1], np.int32))
    Z = np.array([[60.0], [-60.0], [0.0]], np.float32)
    got = descend(tree, np.zeros(1, np.int64), Z, np.zeros((3, 1), np.float32), 0)
    np.testing.assert_allclose(got, [[-60.0, 0.0], [0.0, -60.0], [-np.log(2), -np.log(2)]], atol=1e-6)


def test_padding_elsewhere_is_not_cut():
    assert tree_tiles.cut_tree(np.array([0, 1, 2, -1], np.int32), 2) is not None
    for leaves in ([0, -1, 1, 2], [0, 1, -1, -1], [-1, 0, 1, 2]):
        assert tree_tiles.cut_tree(np.array(leaves, np.int32), 2) is None


@pytest.mark.reference
def test_scalar_functions_match_reference():
    x = np.linspace(-86.0, 0.0, 3001, dtype=np.float32)
    got = np.array([topk.exp_nonpositive(v) for v in x], np.float64)
    # at -86 the reduced argument has lost four bits
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-5)
    np.testing.assert_allclose(got[x > -10.0], np.exp(x[x > -10.0].astype(np.float64)), rtol=1e-6)
    e = np.linspace(0.0, 1.0, 1001, dtype=np.float32)
    got = np.array([tree_tiles._log1p_unit(v) for v in e], np.float64)
    np.testing.assert_allclose(got, np.log1p(e.astype(np.float64)), rtol=0, atol=2e-7)
