"""Answers about some labels: by identity with the probabilities of all classes."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.hierarchy import Taxonomy
from extremax.subsets import conformal_threshold

PARENTS = {"a1": "a", "a2": "a", "b1": "b", "a": "top"}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = np.array(["a1", "a2", "b1", "c", "a"])
    y = rng.integers(5, size=400)
    X = (0.7 * rng.normal(size=(5, 6))[y] + rng.normal(size=(400, 6))).astype(np.float32)
    return X, labels[y]


@pytest.fixture(scope="module")
def clf(data):
    X, y = data
    return ExtremeClassifier(random_state=0).fit(X[:200], y[:200])


@pytest.fixture(scope="module")
def merged(data):
    X, y = data
    return ExtremeClassifier(random_state=0).fit(X[:200], y[:200]).merge_classes({"c": "b1"})


@pytest.mark.identity
@pytest.mark.parametrize("name", ["clf", "merged"])
def test_scores_of_labels_are_those_of_all(name, data, request):
    clf, X = request.getfixturevalue(name), data[0][200:230]
    labels = ["b1", "a", "a2", "b1"]
    expected = clf.predict_log_proba(X)[:, clf.label_ids(labels)]
    np.testing.assert_allclose(clf.score_labels(X, labels), expected, atol=1e-5)


@pytest.mark.identity
def test_the_best_among_some_labels(clf, data):
    X, labels = data[0][200:230], ["b1", "a", "a2"]
    prob = clf.predict_proba(X)[:, clf.label_ids(labels)]
    prob /= prob.sum(axis=1, keepdims=True)
    found, log_prob = clf.predict_topk(X, 2, among=labels)
    order = np.argsort(-prob, axis=1)[:, :2]
    np.testing.assert_array_equal(found, np.array(labels)[order])
    np.testing.assert_allclose(np.exp(log_prob), np.take_along_axis(prob, order, axis=1), rtol=1e-5)
    again, _ = clf.predict_topk(X, 2, among=["a", "b1", "a2", "a"])  # in any order, however often
    np.testing.assert_array_equal(again, found)


@pytest.mark.identity
def test_labels_of_each_row(clf, data):
    X = data[0][200:202]
    found, log_prob = clf.predict_topk(X, 1, among=[["a", "c"], ["b1"]])
    for row, labels in enumerate([["a", "c"], ["b1"]]):
        alone, value = clf.predict_topk(X[row : row + 1], 1, among=labels)
        assert found[row, 0] == alone[0, 0]
        assert log_prob[row, 0] == pytest.approx(value[0, 0], abs=1e-6)
    assert log_prob[1, 0] == 0.0


@pytest.mark.error
@pytest.mark.parametrize(
    ("among", "words"),
    [
        (["a", "z"], "'z'"),
        ("a", "give a list"),
        ([["a"], []], "no label for row 1"),
        ([["a"]], "1 lists of labels for 2 rows"),
        ([], "among is empty"),
    ],
)
def test_wrong_labels(clf, data, among, words):
    with pytest.raises((ValueError, TypeError), match=words):
        clf.predict_topk(data[0][:2], 1, among=among)


@pytest.mark.error
def test_more_labels_than_there_are(clf, data):
    with pytest.raises(ValueError, match="k"):
        clf.predict_topk(data[0][:2], 3, among=["a", "c"])


def test_a_threshold_leaves_out_as_many_as_allowed():
    prob = np.random.default_rng(0).permutation(99) / 99.0
    assert (prob < conformal_threshold(prob, 0.9)).sum() == 9  # with the new row: 10 of 100
    with pytest.raises(ValueError, match="at least 99 rows"):
        conformal_threshold(prob[:98], 0.99)


@pytest.mark.identity
def test_sets_are_the_labels_above_the_threshold(clf, data):
    X, y = data
    held_out = X[200:300], y[200:300]
    own = np.exp(clf.score_labels(held_out[0], clf.classes_.tolist()))
    own = own[np.arange(100), clf.label_ids(held_out[1].tolist())]
    least, prob = conformal_threshold(own.astype(np.float64), 0.8), clf.predict_proba(X[300:])
    sets = clf.predict_set(X[300:], held_out, coverage=0.8)
    for found, p in zip(sets, prob, strict=True):
        kept = p >= least
        kept[p.argmax()] = True
        assert found == clf.classes_[np.argsort(-p)][: kept.sum()].tolist()
    assert np.mean([label in found for label, found in zip(y[300:], sets, strict=True)]) > 0.7


def test_a_label_that_the_model_does_not_know_is_never_covered(clf, data):
    X, y = data
    strange = np.where(np.arange(100) < 30, "new", y[200:300])
    wide = clf.predict_set(X[300:], (X[200:300], strange), coverage=0.69)
    narrow = clf.predict_set(X[300:], (X[200:300], y[200:300]), coverage=0.69)
    assert sum(map(len, wide)) > sum(map(len, narrow))
    assert all(len(found) == 5 for found in clf.predict_set(X[300:], (X[200:300], strange), coverage=0.8))


@pytest.mark.identity
def test_levels_add_up(clf, data):
    X, tree = data[0][200:230], Taxonomy(PARENTS)
    prob = dict(zip(clf.classes_.tolist(), clf.predict_proba(X).T, strict=True))
    nodes, found = tree.predict_proba(clf, X, level=0)
    by_node = dict(zip(nodes, found.T, strict=True))
    assert set(nodes) == {"top", "b", "c"}
    np.testing.assert_allclose(by_node["top"], prob["a1"] + prob["a2"] + prob["a"])
    np.testing.assert_allclose(by_node["b"], prob["b1"])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert set(tree.predict_proba(clf, X, level=2)[0]) == {"a1", "a2", "a", "b1", "c"}
    assert tree.predict(clf, X, 0) == [nodes[i] for i in found.argmax(axis=1)]


def test_the_deepest_level_that_is_sure(clf, data):
    X, tree = data[0][200:260], Taxonomy(PARENTS)
    nodes, prob = tree.predict_proba(clf, X)
    for row, found in enumerate(tree.predict_sure(clf, X, least=0.6)):
        sure = [(len(tree.path(node)), p) for node, p in zip(nodes, prob[row], strict=True) if p >= 0.6]
        if not sure:
            assert found is None
        else:
            assert (len(tree.path(found)), prob[row, nodes.index(found)]) == max(sure)


@pytest.mark.error
def test_wrong_hierarchies():
    with pytest.raises(ValueError, match="above itself"):
        Taxonomy({"a": "b", "b": "a"})
    with pytest.raises(ValueError, match="one parent"):
        Taxonomy.from_paths([["x", "a"], ["y", "a"]])
    with pytest.raises(TypeError, match="must be a dict"):
        Taxonomy([("a", "b")])


@pytest.mark.error
def test_levels_begin_at_the_top(clf, data):
    with pytest.raises(ValueError, match="level is -1; the top level is 0"):
        Taxonomy(PARENTS).predict(clf, data[0][:2], level=-1)
