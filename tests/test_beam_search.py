"""Beam search of a classifier: which search it uses, the index in files, and rows that are hard for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, load_model
from extremax.data.synthetic import planted_hierarchy
from extremax.examples import Examples
from extremax.fit import fit_index
from extremax.model import Model
from extremax.scores import ExactSearch
from extremax.scores.sparse import SparseWeights
from extremax.solvers import MinibatchSoftmax, NegativeSampling
from extremax.storage.state import State
from extremax.tuned import DEFAULTS, CalibrationConfig, PQConfig

N_CLASSES = 2100


@pytest.fixture(scope="module")
def planted():
    data = planted_hierarchy(12_000, N_CLASSES, 16, n_test=1000, seed=1)
    return data, ExtremeClassifier(random_state=0, n_epochs=3).fit(data.X, data.y)


def stored_numbers(model):
    return model.searches["beam"].state().header


def test_default_model_finds_the_best_class(planted):
    data, clf = planted
    assert clf.model_.solver == "minibatch_softmax"
    index = clf.model_.searches["beam"]
    assert clf.choices_["beam_width"] == index.width
    assert clf.choices_["beam_recall"] == index.recall >= 0.99
    assert index.width is not None
    exact, _ = clf.predict_topk(data.X_test)
    beam, log_prob = clf.predict_topk(data.X_test, search="beam")
    # 99% aimed at; 1,000 rows make it uncertain by 0.3 points
    assert np.mean(exact[:, 0] == beam[:, 0]) > 0.98
    assert (np.diff(log_prob, axis=1) <= 0).all()
    whole, _ = clf.predict_topk(data.X_test, search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(whole, exact)


def test_saved_index_finds_the_same_identity(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    stored, expected = stored_numbers(again.model_), stored_numbers(clf.model_)
    assert {**stored, "config": None} == {**expected, "config": None}
    assert again.model_.searches["beam"].config == clf.model_.searches["beam"].config
    for ours, theirs in zip(
        clf.predict_topk(data.X_test[:200], search="beam"),
        again.predict_topk(data.X_test[:200], search="beam"),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_model_without_index_goes_down_the_tree(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    bare = load_model(tmp_path / "model")
    bare._replace_model(replace(bare.model_, searches={}))
    bare.save(tmp_path / "bare")
    again = load_model(tmp_path / "bare")
    assert "beam" not in again.model_.searches
    wide, _ = again.predict_topk(data.X_test[:100], search="beam", beam_width=4096)
    np.testing.assert_array_equal(wide, clf.predict_topk(data.X_test[:100])[0])


def test_stale_index_warns_until_fitted_again(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model").partial_fit(data.X[:500], data.y[:500])
    with pytest.warns(UserWarning, match=r"fitted after 3 epochs, .* trained for 4.*fit_index\(X\)"):
        again.predict_topk(data.X_test, search="beam")
    again.fit_index(data.X, held_out=data.X_test[:500])
    beam, _ = again.predict_topk(data.X_test, search="beam")  # a warning would be an error
    assert np.mean(again.predict_topk(data.X_test)[0][:, 0] == beam[:, 0]) > 0.98


def test_resumed_fit_has_the_same_index_identity(planted, tmp_path):
    data, clf = planted
    half = ExtremeClassifier(random_state=0, n_epochs=3)

    def save_half(record):
        if record["epoch"] == 2:
            half.save(tmp_path / "half")

    half.fit(data.X, data.y, callbacks=[save_half])
    again = load_model(tmp_path / "half")
    assert "beam" not in again.model_.searches
    again.resume_fit(data.X, data.y)
    np.testing.assert_array_equal(again.model_.searches["beam"].codes, clf.model_.searches["beam"].codes)
    assert again.choices_["beam_width"] == clf.choices_["beam_width"]


def test_scores_with_the_tree_need_no_index():
    rng = np.random.default_rng(0)
    y = np.arange(2 * N_CLASSES) % N_CLASSES
    X = rng.normal(size=(len(y), 4)).astype(np.float32)
    clf = ExtremeClassifier(NegativeSampling(tree_components=2), n_epochs=0, random_state=0)
    clf.fit(X, y)
    assert not clf.model_.takes_index
    assert "beam_width" not in clf.choices_
    frequency = clf.set_params(solver__noise="frequency").fit(X, y)  # the same for all rows: linear scores
    labels, _ = frequency.predict_topk(X[:20], search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(labels, frequency.predict_topk(X[:20])[0])


def test_few_classes_are_all_scored_identity():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 20
    for noise in ("tree", "uniform"):
        clf = ExtremeClassifier(MinibatchSoftmax(noise=noise), n_epochs=1, random_state=0).fit(X, y)
        assert not clf.model_.searches
        for beam, exact in zip(clf.predict_topk(X, search="beam"), clf.predict_topk(X), strict=True):
            np.testing.assert_array_equal(beam, exact)


def test_index_for_other_scores_rejects():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 20
    clf = ExtremeClassifier(n_epochs=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"at least 2,048 classes; .*without an index"):
        clf.fit_index(X)


def test_wrong_arguments_rejects(planted):
    data, clf = planted
    with pytest.raises(ValueError, match="beam_width"):
        clf.predict_topk(data.X_test, search="beam", beam_width=0)
    far = np.full((1, data.X.shape[1]), 3e38, np.float32)
    with pytest.raises(ValueError, match="overflow"):
        clf.predict_topk(far, search="beam")


def test_beam_without_tree_or_index_is_exact_and_warns():
    class ManyClasses(ExtremeClassifier):
        _numbers = replace(DEFAULTS, pq=PQConfig(min_classes=10))

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 20
    clf = ManyClasses(MinibatchSoftmax(noise="uniform"), n_epochs=1, random_state=0).fit(X, y)
    clf._replace_model(replace(clf.model_, searches={}))
    with pytest.warns(UserWarning, match=r"scores every class\. Make an index with fit_index\(X\)"):
        labels, log_prob = clf.predict_topk(X, k=2, search="beam")
    exact = clf.predict_topk(X, k=2)
    assert np.array_equal(labels, exact[0])
    assert np.array_equal(log_prob, exact[1])


_Y = np.arange(3 * N_CLASSES) % N_CLASSES
_ROWS = np.random.default_rng(0).normal(size=(N_CLASSES, 6))[_Y] + 0.1 * np.random.default_rng(1).normal(
    size=(len(_Y), 6)
)
_ODD = {
    "constant": np.ones_like(_ROWS),
    "huge": 1e18 * _ROWS,
    "one column": _ROWS[:, :1],
    "copies": np.repeat(_ROWS[:3], N_CLASSES, axis=0),
    "one far row": np.where(np.arange(len(_Y))[:, None] == 5, 1e6, _ROWS),
}


@pytest.mark.parametrize("name", _ODD)
def test_odd_rows_have_an_index_that_works(name):
    X = _ODD[name].astype(np.float32)
    clf = ExtremeClassifier(random_state=0, n_epochs=1).fit(X, _Y)
    exact, _ = clf.predict_topk(X[:300])
    beam, log_prob = clf.predict_topk(X[:300], search="beam")
    assert np.isfinite(log_prob).all()
    assert np.mean(exact[:, 0] == beam[:, 0]) > 0.98
    # A width that scores by codes, whatever `fit` chose, where there are columns enough for codes to pay.
    assert (clf.model_.searches["beam"].cost(30) < 1.0) == (X.shape[1] > 1)
    labels, log_prob = clf.predict_topk(X[:300], k=5, search="beam", beam_width=30)
    assert np.isfinite(log_prob).all()
    assert all(len(set(row)) == 5 for row in labels)


def test_held_out_rows_choose_the_width_identity():
    """The rows that calibrate also choose the width; the covariance is that of training rows."""

    class Calibrated(ExtremeClassifier):
        _numbers = replace(DEFAULTS, calibration=CalibrationConfig(min_pairs=1000, row_fraction=0.2))

    X = _ROWS.astype(np.float32)
    clf = Calibrated(random_state=0, n_epochs=1).fit(X, _Y)
    assert clf.model_.classes.n_samples == len(X) - 1024
    training, held_out = Examples(X, _Y.astype(np.int32)).set_aside(1024, 0)
    again = fit_index(clf.model_, X, rows=np.unique(training.rows), held_out=held_out.X)
    index = clf.model_.searches["beam"]
    assert again.state().header == index.state().header
    np.testing.assert_array_equal(again.codes, index.codes)


def test_search_of_another_kind_is_used_by_name(planted):
    data, clf = planted
    model = clf.model_.with_search("everything", ExactSearch())
    for got, expected in zip(
        model.topk(data.X_test[:20], 3, search="everything"), model.topk(data.X_test[:20], 3), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    assert "everything" not in clf.model_.searches  # a model never changes
    with pytest.raises(ValueError, match="everything"):
        model.topk(data.X_test[:2], 3, search="nothing")


def test_beam_search_of_sparse_weights_is_exact_search():
    """The index that versions before 0.2 had saved with such weights is not read."""
    rng = np.random.default_rng(0)
    matrix = sparse.random(50, 30, 0.2, "csc", np.float32, random_state=0)
    model = Model(SparseWeights.from_matrix(matrix, rng.normal(size=50)), "sparse_softmax")
    parts = model.components() | {"search_beam": State({"kind": "sparse", "width": 16})}
    model = Model.from_components(model.header(), parts)
    X = sparse.random(9, 30, 0.3, "csr", np.float32, random_state=1)
    for found, expected in zip(model.topk(X, 4, search="beam"), model.topk(X, 4), strict=True):
        np.testing.assert_array_equal(found, expected)
