"""The index over class scores: cells of classes, guesses at their best scores, and the search through them."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax import ExtremeClassifier, load_model
from extremax.data.synthetic import planted_hierarchy
from extremax.kernels import cells as kernels
from extremax.linear import LinearModel
from extremax.predict import CellIndex, cells_topk, exact_topk, lift
from extremax.predict.cells import _RIDGE, _depths, _starts

N_CLASSES = 2100


def random_model(n_classes=300, n_features=7, seed=0, scale=0.5):
    rng = np.random.default_rng(seed)
    model = LinearModel.zeros(n_classes, n_features, feature_scale=scale)
    model.weights[:] = rng.normal(size=model.weights.shape)
    model.biases[:] = rng.normal(size=n_classes)
    return model, (rng.normal(size=(900, n_features)) + rng.normal(size=n_features)).astype(np.float32)


@pytest.fixture(scope="module")
def indexed():
    model, X = random_model()
    return model, X, CellIndex.fit(X, model, n_jobs=1)


@pytest.fixture(scope="module")
def planted():
    data = planted_hierarchy(12_000, N_CLASSES, 16, n_test=1000, seed=1)
    return data, ExtremeClassifier(random_state=0, n_epochs=3).fit(data.X, data.y)


@pytest.mark.small
@pytest.mark.parametrize("n_classes", [5, 300, 2048, 2049, 3935, 124_250])
def test_levels_make_cells_of_two_to_four_classes(n_classes):
    depths = _depths(n_classes)
    assert set(np.diff(depths)) <= {2}
    sizes = np.diff(_starts(n_classes, depths[-1]))
    assert sizes.min() >= 2
    assert sizes.max() <= kernels.CHILDREN
    assert sizes.sum() == n_classes
    for upper, lower in pairwise(depths):
        assert np.array_equal(_starts(n_classes, upper), _starts(n_classes, lower)[:: kernels.CHILDREN])


@pytest.mark.small
def test_cut_finds_planted_clusters_recovers():
    rng = np.random.default_rng(0)
    cluster = rng.permutation(np.repeat(np.arange(8), 12))
    table = (10.0 * rng.normal(size=(8, 5))[cluster] + 0.1 * rng.normal(size=(96, 5))).astype(np.float32)
    ids = np.arange(96, dtype=np.int32)
    kernels.cut_levels(table, ids, 3, 4, 64)
    assert np.array_equal(np.sort(ids), np.arange(96))
    assert all(len(set(cluster[part])) == 1 for part in ids.reshape(8, 12))


@pytest.mark.small
def test_cut_of_equal_rows_keeps_them_all():
    ids = np.arange(11, dtype=np.int32)
    kernels.cut_levels(np.ones((11, 3), np.float32), ids, 3, 4, 64)
    assert np.array_equal(np.sort(ids), np.arange(11))


@pytest.mark.small
@pytest.mark.parametrize("width", [1, 5, 11, 12])
def test_keep_best_matches_reference(width):
    rng = np.random.default_rng(width)
    scores = np.round(rng.normal(size=(20, 15)), 1).astype(np.float32) + np.float32(0.0)  # rounded: ties; -0.0 becomes 0.0
    scores[3] = scores[3, 0]
    before = np.sort(np.array([rng.choice(9, 3, replace=False) for _ in range(20)]), axis=1).astype(np.int32)
    for parents in (before, np.empty((20, 0), np.int32)):
        kept = np.empty((20, width), np.int32)
        kernels.keep_best(scores, 12, parents, np.empty(12, np.int32), kept)
        for row, own, got in zip(scores[:, :12], parents, kept, strict=True):
            best = np.sort(np.argsort(-row, kind="stable")[:width])
            assert got.tolist() == [4 * own[j // 4] + j % 4 if len(own) else j for j in best]


@pytest.mark.small
def test_listed_rows_match_reference():
    kept = np.array([[0, 3], [1, 3], [0, 1]], np.int32)
    offsets, places = np.empty(4 + 2, np.int64), np.empty(6, np.int32)
    kernels.list_rows(kept, offsets, places)
    assert [places[offsets[g] : offsets[g + 1]].tolist() for g in range(4)] == [[0, 4], [2, 5], [], [1, 3]]


def test_guesses_match_reference(indexed):
    model, X, index = indexed
    rows = X[:600].astype(np.float64) * model.feature_scale  # the last third judges
    scores = rows @ model.weights.T.astype(np.float64) + model.biases
    ridge = _RIDGE * np.square(rows - rows.mean(axis=0)).sum() / rows.shape[1]
    for depth, table, biases in zip(index.depths, index.tables, index.biases, strict=True):
        nodes = np.split(index.order, _starts(len(index.order), depth)[1:-1])
        expected = np.array(reference.best_score_guesses(rows, scores, model.weights, nodes, ridge))
        np.testing.assert_allclose(table, expected[:, :-1], atol=2e-4)  # float32 sums over 600 rows
        np.testing.assert_allclose(table @ rows.mean(axis=0) + biases, expected[:, -1], atol=2e-4)


@pytest.mark.parametrize("k", [1, 4, 300])
def test_beam_as_wide_as_the_cells_is_exact_identity(indexed, k):
    model, X, index = indexed
    for rows in (X[:101], sparse.csr_matrix(X[:101]), X[:1]):
        labels, log_prob = cells_topk(rows, model, index, k, beam_width=1 << index.depths[-1], temperature=0.7)
        expected, expected_log_prob = exact_topk(rows, model, None, None, k, temperature=0.7)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(log_prob, expected_log_prob, atol=2e-5)  # sums of float32 in another order


def test_offsets_count_as_biases_identity(indexed):
    model, X, _ = indexed
    offsets = np.linspace(-1, 1, 300, dtype=np.float32)
    shifted = LinearModel.zeros(300, 7, feature_scale=model.feature_scale)
    shifted.weights[:], shifted.biases[:] = model.weights, model.biases + offsets
    first = CellIndex.fit(X, model, offsets=offsets, n_jobs=1)
    np.testing.assert_array_equal(first.tables[0], CellIndex.fit(X, shifted, n_jobs=1).tables[0])
    for got, expected in zip(
        cells_topk(X[:50], model, first, 3, beam_width=9, offsets=offsets),
        cells_topk(X[:50], shifted, first, 3, beam_width=9),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


def test_threads_and_other_rows_change_nothing_same_everywhere(indexed):
    model, X, index = indexed
    again = CellIndex.fit(X, model, n_jobs=3)
    assert again.header() == index.header()
    for name, array in index.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
    whole = cells_topk(X, model, index, 5, beam_width=6, n_jobs=1)
    threaded = cells_topk(X, model, index, 5, beam_width=6, n_jobs=3)
    one_by_one = [cells_topk(X[i : i + 1], model, index, 5, beam_width=6) for i in range(40)]
    for part in range(2):
        np.testing.assert_array_equal(threaded[part], whole[part])
        np.testing.assert_array_equal(np.concatenate([single[part] for single in one_by_one]), whole[part][:40])


def test_chosen_width_finds_what_it_says(indexed):
    model, X, index = indexed
    judges = X[600:]
    best, _ = exact_topk(judges, model, None, None, 1)
    found, _ = cells_topk(judges, model, index, 1, beam_width=index.beam_width)
    assert np.mean(found == best) == index.agreement >= 0.99
    narrow, _ = cells_topk(judges, model, index, 1, beam_width=1)
    assert np.mean(narrow == best) < index.agreement
    assert index.cost(1) < index.cost(10) < index.cost(1000)


def test_rows_not_trained_on_choose_the_width_identity(indexed, monkeypatch):
    model, X, index = indexed
    few = CellIndex.fit(X, model, judges=X[:300], n_jobs=1)  # too few for it: rows of X take their place
    assert few.header() == index.header()
    monkeypatch.setattr("extremax.predict.cells._ENOUGH_JUDGES", 300)
    again = CellIndex.fit(X[:600], model, judges=X[600:], n_jobs=1)
    assert again.header() == index.header()
    np.testing.assert_array_equal(again.tables[-1], index.tables[-1])


def test_narrow_beams_begin_where_it_is_least_work():
    model, X = random_model(6000, 4)
    index = CellIndex.fit(X, model, n_jobs=1)
    assert index.beam_width is not None
    assert index.plan(index.beam_width)[0] == index.plan(6000)[0] == index.start
    costs = [index.cost(width) for width in range(1, index.beam_width + 1)]
    assert costs == sorted(costs)
    index.start = len(index.depths) - 1  # as where rows are hard to tell apart
    index.beam_width = 100
    start, widths = index.plan(2)
    assert start < index.start
    assert len(widths) == len(index.depths) - start
    best, _ = exact_topk(X, model, None, None, 1)
    found, _ = cells_topk(X, model, index, 1, beam_width=2)
    assert 0.3 < np.mean(found == best) < np.mean(cells_topk(X, model, index, 1, beam_width=100)[0] == best)


def test_default_model_finds_the_best_class(planted):
    data, clf = planted
    assert clf.model_.objective == "shared_softmax"
    cells = clf.model_.cells
    assert clf.choices_["beam_width"] == cells.beam_width
    assert clf.choices_["beam_agreement"] == cells.agreement >= 0.99
    assert cells.beam_width is not None
    exact, _ = clf.predict_topk(data.X_test)
    beam, log_prob = clf.predict_topk(data.X_test, search="beam")
    assert np.mean(exact[:, 0] == beam[:, 0]) > 0.98  # 99% aimed at; 1,000 rows make it uncertain by 0.3 points
    assert (np.diff(log_prob, axis=1) <= 0).all()
    whole, _ = clf.predict_topk(data.X_test, search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(whole, exact)


def test_saved_index_finds_the_same_everywhere(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.model_.cells.header() == clf.model_.cells.header()
    for ours, theirs in zip(
        clf.predict_topk(data.X_test[:200], search="beam"), again.predict_topk(data.X_test[:200], search="beam"), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_model_without_index_goes_down_the_tree(planted, tmp_path):
    data, clf = planted
    cells, clf.model_.cells = clf.model_.cells, None  # as models were before there was one
    try:
        clf.save(tmp_path / "model")
    finally:
        clf.model_.cells = cells
    header = json.loads(next((tmp_path / "model").glob("*.json")).read_text())
    assert "cells" not in header
    old = load_model(tmp_path / "model")
    assert old.model_.cells is None
    wide, _ = old.predict_topk(data.X_test[:100], search="beam", beam_width=4096)
    np.testing.assert_array_equal(wide, clf.predict_topk(data.X_test[:100])[0])


def test_stale_index_says_so_until_fitted_again(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model").partial_fit(data.X[:500], data.y[:500])
    with pytest.warns(UserWarning, match=r"fitted after 3 epochs, .* trained for 4"):
        again.predict_topk(data.X_test, search="beam")
    again.model_.fit_cells(data.X, judges=data.X_test[:500])
    beam, _ = again.predict_topk(data.X_test, search="beam")  # a warning would be an error
    assert np.mean(again.predict_topk(data.X_test)[0][:, 0] == beam[:, 0]) > 0.98


def test_resumed_fit_has_the_same_index(planted, tmp_path):
    data, clf = planted
    half = ExtremeClassifier(random_state=0, n_epochs=3)
    half.fit(data.X, data.y, callbacks=[lambda record: record["epoch"] == 2 and half.save(tmp_path / "half") is None])
    again = load_model(tmp_path / "half")
    assert again.model_.cells is None
    again.resume_fit(data.X, data.y)
    np.testing.assert_array_equal(again.model_.cells.tables[-1], clf.model_.cells.tables[-1])
    assert again.choices_["beam_width"] == clf.choices_["beam_width"]


def test_scores_with_the_tree_need_no_index():
    rng = np.random.default_rng(0)
    y = np.arange(2 * N_CLASSES) % N_CLASSES
    X = rng.normal(size=(len(y), 4)).astype(np.float32)
    clf = ExtremeClassifier(objective="negative_sampling", n_epochs=0, n_components=2, random_state=0).fit(X, y)
    assert clf.model_.cells is None
    assert not clf.model_.takes_cells
    assert "beam_width" not in clf.choices_
    frequency = clf.set_params(noise="frequency").fit(X, y)  # the same for all rows: scores stay linear
    labels, _ = frequency.predict_topk(X[:20], search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(labels, frequency.predict_topk(X[:20])[0])


def test_few_rows_choose_no_width():
    model, X = random_model()
    assert CellIndex.fit(X[:299], model, n_jobs=1).beam_width is None
    for rows in (X[:2], np.ones((2, 7), np.float32)):
        index = CellIndex.fit(rows, model, n_jobs=1)
        labels, _ = cells_topk(X, model, index, 3, beam_width=300)
        np.testing.assert_array_equal(labels, exact_topk(X, model, None, None, 3)[0])


def test_few_classes_are_all_scored_identity():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 20
    for noise in ("adversarial", "uniform"):
        clf = ExtremeClassifier(noise=noise, n_epochs=1, random_state=0).fit(X, y)
        assert clf.model_.cells is None
        for beam, exact in zip(clf.predict_topk(X, search="beam"), clf.predict_topk(X), strict=True):
            np.testing.assert_array_equal(beam, exact)


def test_bad_arguments_rejects(indexed, planted):
    model, X, index = indexed
    with pytest.raises(ValueError, match="k is 0"):
        cells_topk(X, model, index, 0, beam_width=3)
    data, clf = planted
    with pytest.raises(ValueError, match="beam_width"):
        clf.predict_topk(data.X_test, search="beam", beam_width=0)
    far = np.full((1, data.X.shape[1]), 3e38, np.float32)
    with pytest.raises(ValueError, match="overflow"):
        clf.predict_topk(far, search="beam")


_Y = np.arange(3 * N_CLASSES) % N_CLASSES
_ROWS = np.random.default_rng(0).normal(size=(N_CLASSES, 6))[_Y] + 0.1 * np.random.default_rng(1).normal(size=(len(_Y), 6))
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
    cells = clf.model_.cells
    all_cells, _ = cells_topk(X[:300], clf.model_.linear, cells, 1, beam_width=1 << cells.depths[-1])
    best, _ = exact_topk(X[:300], clf.model_.linear, None, None, 1)
    scores = clf.decision_function(X[:300])
    rows = np.arange(300)
    # Sums of the two searches round differently: where classes are copies, another of them may be first.
    np.testing.assert_allclose(scores[rows, all_cells[:, 0]], scores[rows, best[:, 0]], rtol=1e-4, atol=1e-4)


def test_floor_of_a_beam_identity(indexed):
    model, X, index = indexed
    plain = cells_topk(X, model, index, 3, beam_width=4)
    lifted = cells_topk(X, model, index, 3, beam_width=4, floor=0.1)
    np.testing.assert_array_equal(lifted[0], plain[0])
    np.testing.assert_array_equal(lifted[1], lift(plain[1], 0.1, 300))
    assert (lifted[1] != plain[1]).all()


def test_rows_kept_back_from_training_judge_the_beam(monkeypatch):
    from extremax import fitting

    monkeypatch.setattr(fitting, "_JUDGED_PAIRS", 1000)
    monkeypatch.setattr(fitting, "_JUDGED_SHARE", 0.2)
    seen = []
    kept = CellIndex.fit.__func__
    monkeypatch.setattr(
        CellIndex,
        "fit",
        classmethod(lambda cls, X, model, **given: seen.append((X, given["judges"])) or kept(cls, X, model, **given)),
    )
    X = _ROWS.astype(np.float32)
    ExtremeClassifier(random_state=0, n_epochs=1).fit(X, _Y)
    ((rows, judges),) = seen
    assert len(judges) == 1024
    whole = {row.tobytes() for row in X}
    trained, unseen = {row.tobytes() for row in rows}, {row.tobytes() for row in judges}
    assert unseen <= whole
    assert not trained & unseen
