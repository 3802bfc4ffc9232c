"""The index over class scores: short codes, guesses at the scores by them, and the search among the best
guesses.
"""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, load_model
from extremax import model as model_module
from extremax.data.synthetic import planted_hierarchy
from extremax.linear import LinearModel
from extremax.search import CodeIndex, codes_topk, exact_topk, index_bytes, lift
from extremax.search.pq import _alike, _find, _pieces

N_CLASSES = 2100


def random_model(n_classes=3000, n_features=30, seed=0, scale=0.5):
    """Classes with scores of all sizes, and rows that are neither centred nor of one length in all
    directions.
    """
    rng = np.random.default_rng(seed)
    model = LinearModel.zeros(n_classes, n_features, feature_scale=scale)
    spread = rng.uniform(0.3, 2.0, n_features)
    model.weights[:] = (
        rng.normal(size=model.weights.shape) * rng.uniform(0.5, 1.5, (n_classes, 1)) / (6.0 * spread)
    )
    model.biases[:] = rng.normal(size=n_classes)
    rows = 2.0 * rng.normal(size=(900, n_features)) * spread + rng.normal(size=n_features)
    return model, rows.astype(np.float32)


@pytest.fixture(scope="module")
def indexed():
    model, X = random_model()
    return model, X, CodeIndex.fit(X, model, n_jobs=1)


@pytest.fixture(scope="module")
def planted():
    data = planted_hierarchy(12_000, N_CLASSES, 16, n_test=1000, seed=1)
    return data, ExtremeClassifier(random_state=0, n_epochs=3).fit(data.X, data.y)


@pytest.mark.parametrize(
    ("n_features", "expected"), [(1, (8, 1)), (16, (16, 1)), (57, (32, 2)), (256, (56, 5)), (512, (56, 10))]
)
def test_pieces_cover_the_weights(n_features, expected):
    n_pieces, size = _pieces(n_features)
    assert (n_pieces, size) == expected
    assert n_pieces * size >= n_features


def test_classes_that_follow_each_other_are_alike():
    rng = np.random.default_rng(0)
    lengths, bases = rng.random(3205).astype(np.float32), rng.random(3205).astype(np.float32)
    order = _alike(lengths, bases)
    assert np.array_equal(np.sort(order), np.arange(3205))
    for values in (lengths, bases):
        blocks = values[order][:3200].reshape(100, 32)
        assert np.ptp(blocks, axis=1).mean() < 0.15  # ten strips of ten blocks; 0.94 in any order


@pytest.mark.parametrize(("n_classes", "n_features"), [(3000, 30), (20_000, 300)])
def test_memory_is_what_it_says(n_classes, n_features):
    model, _ = random_model(n_classes, n_features)
    X = np.random.default_rng(0).normal(size=(2400 + 8 * n_features, n_features)).astype(np.float32)
    CodeIndex.fit(X[:300], model, n_jobs=2)  # compiles
    tracemalloc.start()
    try:
        index = CodeIndex.fit(X, model, n_jobs=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size, beside = index_bytes(n_classes, n_features)
    kept = [*index.to_arrays().values(), *index.sample]
    assert size == pytest.approx(sum(array.nbytes for array in kept), rel=0.1)
    assert peak < size + beside
    assert index_bytes(100, 30) == index_bytes(10**6, 5000) == (0, 0)


@pytest.mark.parametrize("n_classes", [3000, 8192, 12_000, 32_768])
def test_as_many_classes_as_asked_for_are_scored(n_classes):
    """The classes that set a threshold are a fair sample of all."""
    model, X = random_model(n_classes)
    model.biases[:] *= 3.0
    index = CodeIndex.fit(X, model, n_jobs=2)
    for kept in (8, 32):  # of the sample; fewer are a matter of luck
        width = kept * index.share
        found, counts = np.empty((900, n_classes), np.int32), np.empty(900, np.int32)
        _find(X, index, kept, np.float32(1.0), found, counts)
        assert 0.7 * width < counts.mean() < 1.5 * width
        assert np.mean(counts > 4 * width) < 0.02  # these are searched exactly, at the price of it


@pytest.mark.parametrize("k", [1, 4, 3000])
def test_beam_as_wide_as_the_classes_is_exact_identity(indexed, k):
    model, X, index = indexed
    for rows in (X[:101], sparse.csr_matrix(X[:101]), X[:1], X[:0]):
        for got, expected in zip(
            codes_topk(rows, model, index, k, beam_width=3000, temperature=0.7),
            exact_topk(rows, model, None, None, k, temperature=0.7),
            strict=True,
        ):
            np.testing.assert_array_equal(got, expected)


def test_beam_is_the_best_of_the_classes_scored(indexed):
    model, X, index = indexed
    scores = 0.5 * X[:200].astype(np.float64) @ model.weights.T + model.biases
    for rows in (X[:200], sparse.csr_matrix(X[:200])):
        labels, log_prob = codes_topk(rows, model, index, 5, beam_width=40)
        own = np.take_along_axis(scores, labels, axis=1)
        assert (np.diff(own, axis=1) <= 0).all()
        # Differences within a row are exact, whatever the guess at the rest.
        np.testing.assert_allclose(np.diff(log_prob, axis=1), np.diff(own, axis=1), atol=2e-5)
        assert all(len(set(row)) == 5 for row in labels)
        best = np.sort(scores, axis=1)[:, :-6:-1]
        assert np.mean(own == best) > 0.9


@pytest.mark.parametrize("temperature", [0.05, 0.3, 0.7, 1.0, 1.5, 5.0])
def test_log_prob_counts_classes_that_were_not_scored(indexed, temperature):
    """Guesses at the others stand for them."""
    model, X, index = indexed
    rows = X[600:]
    best, expected = exact_topk(rows, model, None, None, 1, temperature=temperature)
    labels, log_prob = codes_topk(rows, model, index, 1, beam_width=index.beam_width, temperature=temperature)
    error = (log_prob - expected)[labels == best]
    assert abs(error.mean()) < (0.05 if 0.5 < temperature < 2.0 else 0.25)
    assert error.std() < 0.2
    if temperature < 0.5:  # nothing is left for others
        return
    kept, index.excess = index.excess, (np.inf, 0.0)
    try:
        _, alone = codes_topk(rows, model, index, 1, beam_width=index.beam_width, temperature=temperature)
    finally:
        index.excess = kept
    assert (alone - expected)[labels == best].mean() > 0.3  # normalised over the classes scored alone


def test_far_rows_have_finite_log_prob(indexed):
    model, X, index = indexed
    for factor in (30.0, 1e3, 1e15, 1e-15, 1e-38):
        rows = X[:50] * np.float32(factor)
        labels, log_prob = codes_topk(rows, model, index, 3, beam_width=40)
        best, expected = exact_topk(rows, model, None, None, 3)
        assert np.isfinite(log_prob).all()
        same = labels[:, 0] == best[:, 0]
        assert same.mean() > 0.9
        assert np.median(np.abs(log_prob - expected)[same, 0]) < 0.3


def test_judges_that_overflow_cost_no_log_prob():
    model, X = random_model()
    judges = X[:600].copy()
    judges[:12] = 1e30  # more than one in a hundred
    index = CodeIndex.fit(X, model, judges=judges, n_jobs=1)
    assert np.isfinite(index.largest)
    assert np.isfinite(codes_topk(X[:50], model, index, 3, beam_width=40)[1]).all()


def test_index_is_right_around_the_temperature_given():
    model, X = random_model()
    model.weights *= 4.0
    model.biases *= 4.0
    index = CodeIndex.fit(X, model, temperature=4.0, n_jobs=1)
    best, expected = exact_topk(X[600:], model, None, None, 1, temperature=4.0)
    labels, log_prob = codes_topk(X[600:], model, index, 1, beam_width=index.beam_width, temperature=4.0)
    assert abs((log_prob - expected)[labels == best].mean()) < 0.05


def test_index_for_other_scores_rejects():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 20
    clf = ExtremeClassifier(n_epochs=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"at least 2,048 classes; .*without an index"):
        clf.model_.fit_index(X)


def test_offsets_count_as_biases_identity(indexed):
    model, X, _ = indexed
    offsets = np.linspace(-1, 1, 3000, dtype=np.float32)
    shifted = LinearModel.zeros(3000, 30, feature_scale=model.feature_scale)
    shifted.weights[:], shifted.biases[:] = model.weights, model.biases + offsets
    first = CodeIndex.fit(X, model, offsets=offsets, n_jobs=1)
    np.testing.assert_array_equal(first.codes, CodeIndex.fit(X, shifted, n_jobs=1).codes)
    for got, expected in zip(
        codes_topk(X[:50], model, first, 3, beam_width=9, offsets=offsets),
        codes_topk(X[:50], shifted, first, 3, beam_width=9),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)


def test_threads_and_other_rows_change_nothing_same_everywhere(indexed):
    model, X, index = indexed
    again = CodeIndex.fit(X, model, n_jobs=3)
    assert again.header() == index.header()
    for name, array in index.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
    for width in (6, 40):
        whole = codes_topk(X, model, index, 5, beam_width=width, n_jobs=1)
        threaded = codes_topk(X, model, index, 5, beam_width=width, n_jobs=3)
        one_by_one = [codes_topk(X[i : i + 1], model, index, 5, beam_width=width) for i in range(40)]
        for part in range(2):
            np.testing.assert_array_equal(threaded[part], whole[part])
            np.testing.assert_array_equal(
                np.concatenate([single[part] for single in one_by_one]), whole[part][:40]
            )


def test_chosen_width_finds_what_it_says(indexed):
    model, X, index = indexed
    judges = X[600:]
    best, _ = exact_topk(judges, model, None, None, 1)
    found, _ = codes_topk(judges, model, index, 1, beam_width=index.beam_width)
    assert np.mean(found == best) == index.agreement >= 0.99
    narrow, _ = codes_topk(judges, model, index, 1, beam_width=1)
    assert np.mean(narrow == best) < index.agreement
    assert index.cost(1) < index.cost(10) < index.cost(1000)


def test_rows_not_trained_on_choose_the_width_identity(indexed, monkeypatch):
    model, X, index = indexed
    few = CodeIndex.fit(X, model, judges=X[:300], n_jobs=1)  # too few for it: rows of X take their place
    assert few.header() == index.header()
    monkeypatch.setattr("extremax.search.pq._ENOUGH_JUDGES", 300)
    again = CodeIndex.fit(X[:600], model, judges=X[600:], n_jobs=1)
    assert again.header() == index.header()
    np.testing.assert_array_equal(again.codes, index.codes)


def test_crowded_rows_are_searched_exactly_identity():
    """Where most classes are copies of each other, more of them reach the threshold than there is room
    for.
    """
    model, X = random_model()
    model.weights[1:] = model.weights[0]
    model.biases[1:] = model.biases[0]
    index = CodeIndex.fit(X, model, n_jobs=1)
    labels, log_prob = codes_topk(X[:20], model, index, 3, beam_width=8)
    np.testing.assert_array_equal(labels, exact_topk(X[:20], model, None, None, 3)[0])
    np.testing.assert_allclose(log_prob, -np.log(3000.0), atol=1e-4)


def test_default_model_finds_the_best_class(planted):
    data, clf = planted
    assert clf.model_.objective == "shared_softmax"
    index = clf.model_.index
    assert clf.choices_["beam_width"] == index.beam_width
    assert clf.choices_["beam_agreement"] == index.agreement >= 0.99
    assert index.beam_width is not None
    exact, _ = clf.predict_topk(data.X_test)
    beam, log_prob = clf.predict_topk(data.X_test, search="beam")
    # 99% aimed at; 1,000 rows make it uncertain by 0.3 points
    assert np.mean(exact[:, 0] == beam[:, 0]) > 0.98
    assert (np.diff(log_prob, axis=1) <= 0).all()
    whole, _ = clf.predict_topk(data.X_test, search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(whole, exact)


def test_saved_index_finds_the_same_everywhere(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.model_.index.header() == clf.model_.index.header()
    for ours, theirs in zip(
        clf.predict_topk(data.X_test[:200], search="beam"),
        again.predict_topk(data.X_test[:200], search="beam"),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_model_without_index_goes_down_the_tree(planted, tmp_path):
    data, clf = planted
    index, clf.model_.index = clf.model_.index, None  # as models were before there was one
    try:
        clf.save(tmp_path / "model")
    finally:
        clf.model_.index = index
    header = json.loads((tmp_path / "model" / "header.json").read_text())["header"]
    assert "objective" in header
    assert "index" not in header
    old = load_model(tmp_path / "model")
    assert old.model_.index is None
    wide, _ = old.predict_topk(data.X_test[:100], search="beam", beam_width=4096)
    np.testing.assert_array_equal(wide, clf.predict_topk(data.X_test[:100])[0])


def test_index_of_an_earlier_kind_says_so(planted, tmp_path, monkeypatch):
    _, clf = planted
    save_folder = model_module.save_folder

    def as_before(path, *, header, **parts):
        save_folder(
            path,
            header={"cells": {}, **{name: value for name, value in header.items() if name != "index"}},
            **parts,
        )

    monkeypatch.setattr(model_module, "save_folder", as_before)
    clf.save(tmp_path / "model")
    with pytest.warns(
        UserWarning, match=r"model has an index .* of an earlier kind.* model_\.fit_index\(X\)"
    ):
        old = load_model(tmp_path / "model")
    assert old.model_.index is None


def test_stale_index_says_so_until_fitted_again(planted, tmp_path):
    data, clf = planted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model").partial_fit(data.X[:500], data.y[:500])
    with pytest.warns(UserWarning, match=r"fitted after 3 epochs, .* trained for 4"):
        again.predict_topk(data.X_test, search="beam")
    again.model_.fit_index(data.X, judges=data.X_test[:500])
    beam, _ = again.predict_topk(data.X_test, search="beam")  # a warning would be an error
    assert np.mean(again.predict_topk(data.X_test)[0][:, 0] == beam[:, 0]) > 0.98


def test_resumed_fit_has_the_same_index(planted, tmp_path):
    data, clf = planted
    half = ExtremeClassifier(random_state=0, n_epochs=3)
    half.fit(
        data.X,
        data.y,
        callbacks=[lambda record: record["epoch"] == 2 and half.save(tmp_path / "half") is None],
    )
    again = load_model(tmp_path / "half")
    assert again.model_.index is None
    again.resume_fit(data.X, data.y)
    np.testing.assert_array_equal(again.model_.index.codes, clf.model_.index.codes)
    assert again.choices_["beam_width"] == clf.choices_["beam_width"]


def test_scores_with_the_tree_need_no_index():
    rng = np.random.default_rng(0)
    y = np.arange(2 * N_CLASSES) % N_CLASSES
    X = rng.normal(size=(len(y), 4)).astype(np.float32)
    clf = ExtremeClassifier(objective="negative_sampling", n_epochs=0, n_components=2, random_state=0).fit(
        X, y
    )
    assert clf.model_.index is None
    assert not clf.model_.takes_index
    assert "beam_width" not in clf.choices_
    frequency = clf.set_params(noise="frequency").fit(X, y)  # the same for all rows: scores stay linear
    labels, _ = frequency.predict_topk(X[:20], search="beam", beam_width=N_CLASSES)
    np.testing.assert_array_equal(labels, frequency.predict_topk(X[:20])[0])


def test_few_rows_choose_no_width():
    model, X = random_model()
    assert CodeIndex.fit(X[:299], model, n_jobs=1).beam_width is None
    for rows in (X[:2], np.ones((2, 30), np.float32)):
        index = CodeIndex.fit(rows, model, n_jobs=1)
        labels, log_prob = codes_topk(X, model, index, 3, beam_width=300)
        assert index.beam_width is None
        assert np.isfinite(log_prob).all()
        assert ((labels >= 0) & (labels < 3000)).all()


def test_few_classes_are_all_scored_identity():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), np.arange(60) % 20
    for noise in ("adversarial", "uniform"):
        clf = ExtremeClassifier(noise=noise, n_epochs=1, random_state=0).fit(X, y)
        assert clf.model_.index is None
        for beam, exact in zip(clf.predict_topk(X, search="beam"), clf.predict_topk(X), strict=True):
            np.testing.assert_array_equal(beam, exact)


def test_bad_arguments_rejects(indexed, planted):
    model, X, index = indexed
    with pytest.raises(ValueError, match="k is 0"):
        codes_topk(X, model, index, 0, beam_width=3)
    data, clf = planted
    with pytest.raises(ValueError, match="beam_width"):
        clf.predict_topk(data.X_test, search="beam", beam_width=0)
    far = np.full((1, data.X.shape[1]), 3e38, np.float32)
    with pytest.raises(ValueError, match="overflow"):
        clf.predict_topk(far, search="beam")


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
    assert (clf.model_.index.cost(30) < 1.0) == (X.shape[1] > 1)
    labels, log_prob = clf.predict_topk(X[:300], k=5, search="beam", beam_width=30)
    assert np.isfinite(log_prob).all()
    assert all(len(set(row)) == 5 for row in labels)


def test_floor_of_a_beam_identity(indexed):
    model, X, index = indexed
    plain = codes_topk(X, model, index, 3, beam_width=4)
    lifted = codes_topk(X, model, index, 3, beam_width=4, floor=0.1)
    np.testing.assert_array_equal(lifted[0], plain[0])
    np.testing.assert_array_equal(lifted[1], lift(plain[1], 0.1, 3000))
    assert (lifted[1] != plain[1]).all()


def test_rows_kept_back_from_training_judge_the_beam(monkeypatch):
    from extremax import fitting

    monkeypatch.setattr(fitting, "_JUDGED_PAIRS", 1000)
    monkeypatch.setattr(fitting, "_JUDGED_SHARE", 0.2)
    seen = []
    kept = CodeIndex.fit.__func__
    monkeypatch.setattr(
        CodeIndex,
        "fit",
        classmethod(
            lambda cls, X, model, **given: seen.append((X, given["judges"])) or kept(cls, X, model, **given)
        ),
    )
    X = _ROWS.astype(np.float32)
    ExtremeClassifier(random_state=0, n_epochs=1).fit(X, _Y)
    ((rows, judges),) = seen
    assert len(judges) == 1024
    whole = {row.tobytes() for row in X}
    trained, unseen = {row.tobytes() for row in rows}, {row.tobytes() for row in judges}
    assert unseen <= whole
    assert not trained & unseen
