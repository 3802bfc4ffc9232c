"""`ExtremeClassifier.paper`: the paper's algorithm through the ordinary estimator."""

from __future__ import annotations

import numpy as np
import pytest
from table_1 import TABLE_1

from extremax import ExtremeClassifier, TreeNoise, load_model
from extremax.data import planted_hierarchy
from extremax.features.pca import PCA
from extremax.tree.literal import fit_literal


@pytest.fixture(scope="module")
def data():
    return planted_hierarchy(3000, 50, 24, n_test=600)


def same_model(first, second, X):
    np.testing.assert_array_equal(first.decision_function(X), second.decision_function(X))


def test_parameters_are_those_of_the_paper():
    solver = ExtremeClassifier.paper().solver
    for table in TABLE_1.values():
        assert table["adversarial"].items() <= solver.get_params().items()
    changed = ExtremeClassifier.paper(learning_rate=0.03, n_negatives=2).solver
    assert (changed.learning_rate, changed.n_negatives, changed.tree_fit) == (0.03, 2, "paper")


@pytest.mark.identity
@pytest.mark.parametrize("whiten", [False, True])
def test_tree_is_the_literal_one_of_all_rows_identity(data, whiten):
    clf = ExtremeClassifier.paper(n_epochs=0, whiten_components=whiten, random_state=0).fit(data.X, data.y)
    pca = PCA.fit(data.X, 16, max_rows=None)
    pca = pca.whitened() if whiten else pca
    Z = pca.transform(data.X)
    if whiten:
        np.testing.assert_allclose(np.std(Z, axis=0), 1.0, rtol=1e-4)  # float32
    expected = fit_literal(Z, data.y, regularization=0.1).tree
    found = clf.model_.tree
    for name, array in expected.to_arrays().items():
        np.testing.assert_array_equal(found.to_arrays()[name], array)
    assert clf.model_.weights.feature_scale == 1.0
    # weights of zero: the classifier is the tree
    np.testing.assert_allclose(
        clf.log_likelihood(data.X, data.y), expected.log_prob(Z, data.y).mean(), rtol=1e-5
    )


@pytest.mark.identity
def test_own_literal_tree_gives_the_same_model_identity(data):
    pca = PCA.fit(data.X, 16, max_rows=None)
    tree = fit_literal(pca.transform(data.X), data.y, regularization=0.1).tree
    inside = ExtremeClassifier.paper(n_epochs=2, random_state=0).fit(data.X, data.y)
    own = ExtremeClassifier.paper(noise=TreeNoise(tree, pca), n_epochs=2, random_state=0)
    same_model(own.fit(data.X, data.y), inside, data.X_test)


@pytest.mark.identity
def test_tree_of_the_features_is_noise_as_it_is_identity(data, tmp_path):
    tree = fit_literal(data.X, data.y).tree
    bare = ExtremeClassifier.paper(noise=tree, n_epochs=1, random_state=0).fit(data.X, data.y)
    wrapped = ExtremeClassifier.paper(noise=TreeNoise(tree), n_epochs=1, random_state=0).fit(data.X, data.y)
    same_model(bare, wrapped, data.X_test)
    bare.save(tmp_path / "model")
    same_model(load_model(tmp_path / "model"), wrapped, data.X_test)
    few = fit_literal(data.X[:, :5], data.y).tree
    with pytest.raises(ValueError, match="label tree over 5 features, but X has 24"):
        ExtremeClassifier.paper(noise=few).fit(data.X, data.y)


@pytest.mark.invariance
def test_threads_and_folders_change_nothing_invariant(data, tmp_path):
    one = ExtremeClassifier.paper(n_epochs=2, random_state=3, n_jobs=1).fit(data.X, data.y)
    two = ExtremeClassifier.paper(n_epochs=2, random_state=3, n_jobs=2).fit(data.X, data.y)
    same_model(one, two, data.X_test)
    cut = ExtremeClassifier.paper(n_epochs=2, random_state=3)
    cut.fit(data.X, data.y, callbacks=[lambda record: True])
    cut.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert (again.solver.tree_fit, again.solver.scale_features) == ("paper", False)
    same_model(again.resume_fit(data.X, data.y), one, data.X_test)


def test_nce_starts_at_log_noise_or_at_zero(data):
    """Without training, NCE from zero is uniform, and NCE is as probable as the mean of log p_n."""
    options = {"noise": "frequency", "n_epochs": 0, "random_state": 0}
    names = ("nce_from_zero", "nce")
    zero, ours = (ExtremeClassifier.with_solver(name, **options).fit(data.X, data.y) for name in names)
    n_classes = len(zero.classes_)
    np.testing.assert_allclose(zero.predict_proba(data.X_test[:5]), 1.0 / n_classes, rtol=1e-4)
    shares = np.bincount(np.searchsorted(ours.classes_, data.y)) / len(data.y)
    np.testing.assert_allclose(ours.predict_proba(data.X_test[:1])[0], shares, rtol=1e-3)


def test_rho_is_in_units_of_features_as_given(data):
    """Rows of length 28: Table 1's rho learns there, and hardly on scaled rows."""
    lengths = np.sqrt(np.mean(np.sum(data.X**2, axis=1)))
    X, X_test = (rows * np.float32(27.7 / lengths) for rows in (data.X, data.X_test))
    gains = {}
    for scaled in (False, True):
        reached = []
        for n_epochs in (0, 5):
            options = {"n_epochs": n_epochs, "scale_features": scaled, "random_state": 0}
            clf = ExtremeClassifier.paper(**options).fit(X, data.y)
            assert (clf.model_.weights.feature_scale == 1.0) is not scaled
            reached.append(clf.log_likelihood(X_test, data.y_test))
        gains[scaled] = reached[1] - reached[0]
    assert gains[False] > 3 * gains[True] > 0.0
