"""The tree of classes: planted groups stay together, sums are those of loops, nothing depends on chance."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, TextClassifier
from extremax.report.hierarchy import (
    build_hierarchy,
    class_vectors,
    hierarchy_of,
    hierarchy_of_tree,
)
from extremax.report.names import name_nodes
from extremax.solvers import MinibatchSoftmax
from extremax.tree import LabelTree
from planted import around_means


def check(tree, n_classes, leaf_classes=8):
    """Nodes are ranges that their children divide, and leaves are small."""
    assert sorted(tree.order.tolist()) == list(range(n_classes))
    assert (tree.start[0], tree.stop[0], tree.parent[0]) == (0, n_classes, -1)
    for node in range(tree.n_nodes):
        children = tree.children(node)
        assert all(tree.parent[child] == node and child > node for child in children)
        if children:
            edges = [tree.start[node], *(tree.stop[child] for child in children)]
            assert edges[:-1] == [tree.start[child] for child in children]
            assert edges[-1] == tree.stop[node]
        else:
            assert tree.stop[node] - tree.start[node] <= leaf_classes


def two_levels(seed=0, n_columns=40):
    """64 vectors in 8 groups of 8, the groups in two halves; the order of the classes is mixed."""
    rng = np.random.default_rng(seed)
    halves, groups = rng.normal(size=(2, n_columns)), rng.normal(size=(8, n_columns))
    group = rng.permutation(np.repeat(np.arange(8), 8))
    vectors = 3.0 * halves[group // 4] + 2.0 * groups[group] + 0.4 * rng.normal(size=(64, n_columns))
    return vectors.astype(np.float32), group


@pytest.mark.planted
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_matrix], ids=["dense", "csr"])
@pytest.mark.parametrize("gram_classes", [512, 10], ids=["products", "vectors"])
def test_planted_groups_are_the_leaves(store, gram_classes):
    vectors, group = two_levels()
    tree = build_hierarchy(store(vectors), gram_classes=gram_classes)
    check(tree, 64)
    assert tree.source == "class vectors"
    left, right = (set(group[tree.classes_of(child)] // 4) for child in tree.children(0))
    assert left.isdisjoint(right)
    leaves = [node for node in range(tree.n_nodes) if not tree.children(node)]
    assert [len(set(group[tree.classes_of(leaf)])) for leaf in leaves] == [1] * 8
    for c in (0, 17, 63):
        path = tree.path(c)
        assert path[0] == 0
        assert c in tree.classes_of(path[-1])
        assert all(tree.parent[b] == a for a, b in pairwise(path))


@pytest.mark.invariance
def test_scale_and_storage_change_nothing():
    vectors, _ = two_levels(1)
    trees = [build_hierarchy(m) for m in (vectors, 7.0 * vectors, sparse.csr_matrix(vectors))]
    for tree in trees[1:]:
        assert np.array_equal(tree.order, trees[0].order)
        assert np.array_equal(tree.parent, trees[0].parent)


@pytest.mark.parametrize("n_classes", [1, 2, 8, 9, 17, 100])
def test_any_number_of_classes(n_classes):
    vectors = np.random.default_rng(0).normal(size=(n_classes, 3)).astype(np.float32)
    check(build_hierarchy(vectors), n_classes)
    check(build_hierarchy(np.zeros((n_classes, 3), np.float32)), n_classes)


@pytest.mark.reference
def test_sums_and_pairs_match_loops():
    rng = np.random.default_rng(4)
    tree = build_hierarchy(rng.normal(size=(50, 5)).astype(np.float32))
    values = rng.integers(100, size=50)
    first, second, weight = (rng.integers(50, size=200) for _ in range(3))
    inside = tree.pairs_inside(first, second, weight)
    for node in range(tree.n_nodes):
        classes = set(tree.classes_of(node).tolist())
        assert tree.sums(values)[node] == sum(values[c] for c in classes)
        both = [w for a, b, w in zip(first, second, weight, strict=True) if {a, b} <= classes]
        assert inside[node] == sum(both)


def test_wide_dense_vectors_are_projected_first():
    vectors, group = two_levels(2, n_columns=200)
    tree = build_hierarchy(vectors)
    leaves = [node for node in range(tree.n_nodes) if not tree.children(node)]
    assert [len(set(group[tree.classes_of(leaf)])) for leaf in leaves] == [1] * 8


@pytest.mark.identity
@pytest.mark.parametrize("n_classes", [5, 16, 21])
def test_label_tree_keeps_its_order(n_classes):
    X, y = around_means(400, n_classes, 4)
    tree = LabelTree.fit(X, y, n_classes=n_classes)
    found = hierarchy_of_tree(tree, leaf_classes=2)
    check(found, n_classes, leaf_classes=2)
    assert found.order.tolist() == tree.leaf_class[tree.leaf_class >= 0].tolist()
    assert found.source == "label tree"


def test_model_with_a_label_tree_shows_it():
    X, y = around_means(300, 12, 5)
    clf = ExtremeClassifier("negative_sampling", n_epochs=1, random_state=0).fit(X, y)
    assert hierarchy_of(clf.model_).source == "label tree"
    plain = ExtremeClassifier(MinibatchSoftmax(n_shared=None), n_epochs=1, random_state=0).fit(X, y)
    assert hierarchy_of(plain.model_).source == "class vectors"


@pytest.mark.planted
def test_nodes_are_named_by_the_words_that_set_them_apart():
    animals = ["dog", "cat", "rat", "horse", "pig", "cow", "hen", "fox", "owl"]
    things = ["roof", "ladder", "tree", "bed", "chair", "stairs", "wall", "boat", "bridge"]
    texts = [f"bitten by a {animal}" for animal in animals] + [f"fall from a {thing}" for thing in things]
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts * 4, (animals + things) * 4)
    about = {animal: f"Animal, other: {animal} 12" for animal in animals}
    clf.describe_classes([about.get(label, f"Other thing of 12: {label}") for label in clf.classes_])
    tree = hierarchy_of(clf.model_)
    names = name_nodes(clf, tree)
    assert names[0] == ""
    left, right = (tree.classes_of(child) for child in tree.children(0))
    assert {set(clf.classes_[left]) == set(animals), set(clf.classes_[left]) == set(things)} == {True, False}
    for child, classes in zip(tree.children(0), (left, right), strict=True):
        # "other" is in all labels, "of" is short, 12 is a number; the rest is in one label
        assert names[child] == ("animal" if clf.classes_[classes[0]] in animals else "thing")
    assert sparse.issparse(class_vectors(clf.model_.weights))


@pytest.mark.reference
@pytest.mark.parametrize("solver", ["negative_sampling", "minibatch_softmax"])
def test_tree_of_a_merged_model_is_over_its_classes(solver):
    X, y = around_means(300, 20, 5)
    clf = ExtremeClassifier.with_solver(solver, n_epochs=1, random_state=0).fit(X, y)
    before = hierarchy_of(clf.model_)
    weights = clf.model_.weights.to_dense()
    clf.merge_classes({3: 11, 7: 11, 8: 40})
    parts = clf.model_.label_map
    tree = hierarchy_of(clf.model_)
    check(tree, 18)
    if solver == "negative_sampling":
        assert tree.source == "label tree"
        places = [int(np.flatnonzero(before.order == parts.of(c)[0])[0]) for c in tree.order]
        assert places == sorted(places)  # merged classes are where the first of their parts was
        return
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    means = np.array([unit[parts.of(c)].mean(axis=0) for c in range(18)])
    np.testing.assert_allclose(class_vectors(clf.model_.weights, parts), means, atol=1e-6)


def test_nodes_of_merged_texts_have_names():
    verbs, things = ("bitten by", "fall from"), [f"thing{i}" for i in range(10)]
    labels = [f"{verb} {thing}" for verb in verbs for thing in things]
    clf = TextClassifier().fit(labels * 3, labels * 3)
    clf.merge_classes({"bitten by thing1": "bitten by thing0", "fall from thing3": "fall from thing2"})
    tree = hierarchy_of(clf.model_)
    check(tree, 18)
    assert {"bitten", "fall"} <= {word for name in name_nodes(clf, tree) for word in name.split(", ")}
