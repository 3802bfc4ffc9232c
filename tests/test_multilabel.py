"""Rows with several labels: the estimator trains on pairs without a copy of X, and every form of the
labels is one model.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from coverings import in_turn
from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.errors import NotEnoughMemoryError
from extremax.runtime.memory import format_bytes
from extremax.solvers import MinibatchSoftmax
from extremax.solvers.negative_sampling import RowTrainer
from planted import LIST_CLASSES as N_CLASSES
from planted import LIST_FEATURES as N_FEATURES
from planted import indicator
from planted import label_lists as make_rows

UNLABELLED = r"2 of [\d,]+ rows of y have no label; they are left out\."


def model(**settings):
    return ExtremeClassifier.with_solver(
        **{"solver": "negative_sampling", "n_epochs": 3, "random_state": 0, **settings}
    )


def same_bits(a, b):
    tree = a.model_.tree is None or np.array_equal(a.model_.tree.weights, b.model_.tree.weights)
    return tree and all(
        np.array_equal(getattr(a.model_.weights, name), getattr(b.model_.weights, name))
        for name in ("weights", "biases")
    )


@pytest.fixture(scope="module")
def rows():
    return make_rows(1200)


@pytest.fixture(scope="module")
def fitted(rows):
    return model().fit(*rows)


def test_one_label_in_a_list_is_the_single_label_fit_identity(rows):
    X, y = rows
    one = [labels[0] for labels in y]
    single = model().fit(X, one)
    assert same_bits(single, model().fit(X, [[label] for label in one]))
    assert same_bits(single, model().fit(X, indicator([[label] for label in one])))


def test_forms_and_threads_invariant(rows, fitted):
    X, y = rows
    for form in (
        indicator(y),
        indicator(y).toarray(),
        [labels[::-1] * 2 for labels in y],
        [set(labels) for labels in y],
    ):
        other = model(n_jobs=1).fit(X, form)
        assert same_bits(fitted, other)
        assert np.array_equal(other.classes_, fitted.classes_)
    named = model(n_jobs=2).fit(X, indicator(y), classes=[f"c{i:02d}" for i in range(N_CLASSES)])
    assert same_bits(fitted, named)
    best, _ = named.predict_topk(X[:5], 1)
    assert best[:, 0].tolist() == [f"c{i:02d}" for i in fitted.predict(X[:5])]


@in_turn(noise=["tree", "frequency"], store=[np.asarray, sparse.csr_array])
def test_pairs_match_repeated_rows_recovers(store, noise):
    """Repeated rows scale and project the features a little differently, so draws differ: alike in
    quality, not in bits.
    """
    X, y = make_rows(1200, seed=5)
    X_test, y_test = make_rows(500, seed=6)
    where = np.repeat(np.arange(len(y)), [len(labels) for labels in y])
    flat = np.concatenate(y)
    pairs = model(noise=noise, n_epochs=10).fit(store(X), y)
    repeated = model(noise=noise, n_epochs=10).fit(store(X[where]), flat)
    ours, theirs = (clf.log_likelihood(store(X_test), y_test) for clf in (pairs, repeated))
    assert ours == pytest.approx(theirs, abs=0.05)
    assert ours > -np.log(N_CLASSES) + 1.0
    assert pairs.score(store(X_test), y_test) == pytest.approx(
        repeated.score(store(X_test), y_test), abs=0.04
    )


def test_unconditional_noise_matches_repeated_rows_identity():
    """Rows of unit length and one number of labels each: the scale is the same, no projection, and so is
    every bit.
    """
    rng = np.random.default_rng(2)
    X = np.eye(N_FEATURES, dtype=np.float32)[rng.integers(N_FEATURES, size=600)]
    y = [rng.choice(N_CLASSES, size=2, replace=False).tolist() for _ in X]
    where, flat = np.repeat(np.arange(600), 2), np.concatenate([sorted(labels) for labels in y])
    settings = {"noise": "uniform", "n_epochs": 4}
    assert same_bits(model(**settings).fit(X, y), model(**settings).fit(X[where], flat))


def test_rows_on_disk_invariant(rows, fitted, tmp_path):
    X, y = rows
    X.tofile(tmp_path / "X")
    assert same_bits(fitted, model().fit(np.memmap(tmp_path / "X", np.float32, "r", shape=X.shape), y))


def test_features_are_not_copied(rows, monkeypatch):
    X, y = rows
    seen, start = [], RowTrainer.start
    monkeypatch.setattr(
        RowTrainer, "start", lambda self, data, n: seen.append(data.X) or start(self, data, n)
    )
    some = np.arange(len(y)) % 5 > 0
    with pytest.warns(UserWarning, match=r"1 of 1,200 rows of y have no label"):
        model(n_epochs=0).fit(X, [[], *y[1:]], sample_weight=some)
    one = [labels[0] for labels in y]
    model(n_epochs=0, validation_fraction=0.1).fit(X, one, sample_weight=some)
    assert len(seen) == 2
    assert all(features is X for features in seen)


@pytest.mark.parametrize("solver", ["minibatch_softmax", "negative_sampling"])
def test_rows_of_weight_zero_are_as_good_as_absent_identity(rows, solver):
    X, y = rows[0], np.array([labels[0] for labels in rows[1]])
    kept = np.arange(len(y)) % 5 > 0
    garbage = np.where(kept[:, None], X, np.float32(1e6))
    zero = model(solver=solver).fit(garbage, y, sample_weight=kept)
    assert same_bits(zero, model(solver=solver).fit(X[kept], y[kept]))


def test_kept_back_and_unpacked_rows_are_counted(rows, capsys):
    X, y = rows
    settings = {"n_epochs": 0, "tree_components": 8, "random_state": 0, "verbose": 1, "precondition": False}
    ExtremeClassifier.with_solver(
        "minibatch_softmax", n_shared=None, batch_size=10**9, validation_fraction=0.25, **settings
    ).fit(sparse.csr_array(X), y)
    said = capsys.readouterr().err
    assert f"validation rows {format_bytes(2 * X.nbytes // 4)}" in said  # sparse: a number and a column each
    with pytest.raises(NotEnoughMemoryError, match="Ways out: solver='negative_sampling'"):
        ExtremeClassifier.with_solver("minibatch_softmax", memory_limit=X.nbytes, **settings).fit(
            sparse.csr_array(X), y
        )


def test_sparse_rows_are_unpacked_once(rows, monkeypatch):
    X, y = rows
    unpacked, toarray = [], sparse.csr_array.toarray
    monkeypatch.setattr(
        sparse.csr_array, "toarray", lambda matrix: unpacked.append(matrix.shape) or toarray(matrix)
    )
    ExtremeClassifier(MinibatchSoftmax(n_shared=1), n_epochs=1, random_state=0).fit(sparse.csr_array(X), y)
    assert unpacked == [X.shape]


def test_rows_without_labels_are_left_out(rows):
    X, y = rows
    X_more = np.concatenate([X[:1] * 100, X, X[:1] * 50])
    with pytest.warns(UserWarning, match=UNLABELLED):
        more = model(noise="uniform").fit(X_more, [[], *y, []])
    assert same_bits(model(noise="uniform").fit(X, y), more)
    assert more.model_.classes.n_samples == len(y)
    with pytest.warns(UserWarning, match=UNLABELLED):
        assert more.score(X_more, [[], *y, []]) == more.score(X, y)
    with pytest.warns(UserWarning, match=UNLABELLED):
        assert more.log_likelihood(X_more, [[], *y, []]) == pytest.approx(more.log_likelihood(X, y), abs=1e-5)


def test_warnings_name_the_line_that_called(rows, fitted):
    X, y = rows[0][:60], [[], *rows[1][1:60]]
    clf = model(noise="uniform", n_epochs=0)
    calls = [
        lambda: clf.fit(X, y),
        lambda: clf.fit(X, rows[1][:60], eval_set=(X, y)),
        lambda: clf.fit(X, rows[1][:60], eval_set=(X, [["unknown"], *y[1:]])),
        lambda: model(noise="uniform").partial_fit(X, y),
        lambda: fitted.log_likelihood(X, y),
        lambda: fitted.score(X, y),
    ]
    for call in calls:
        with pytest.warns(UserWarning, match="they are left out") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]
    begun = model(noise="uniform").partial_fit(*rows)
    with pytest.warns(UserWarning, match="they are left out") as caught:
        begun.partial_fit(X, y)
    assert caught[0].filename == __file__


def test_weight_of_a_row_is_that_of_its_pairs(rows):
    X, y = rows
    plain = model(noise="uniform").fit(X, y)
    assert same_bits(plain, model(noise="uniform").fit(X, y, sample_weight=np.ones(len(y))))
    kept = np.arange(len(y)) % 3 > 0
    zero = model(noise="frequency").fit(X, y, sample_weight=kept)
    less = model(noise="frequency").fit(X[kept], [labels for labels, k in zip(y, kept, strict=True) if k])
    assert same_bits(zero, less)
    heavy = np.array([50.0 if 3 in labels else 1.0 for labels in y])
    pulled = model(noise="uniform").fit(X, y, sample_weight=heavy)
    assert pulled.predict_proba(X)[:, 3].mean() > plain.predict_proba(X)[:, 3].mean()
    hits = np.array([label in labels for label, labels in zip(plain.predict(X), y, strict=True)])
    assert plain.score(X, y, sample_weight=heavy) == pytest.approx(np.average(hits, weights=heavy), abs=1e-12)


def test_likelihood_and_score_match_reference(fitted):
    X, y = make_rows(150, seed=7)
    log_prob = fitted.predict_log_proba(X)
    where, flat = indicator(y).nonzero()
    weight = np.random.default_rng(0).random(len(y))
    expected = np.average(log_prob[where, flat], weights=weight[where])
    # float32 sums
    assert fitted.log_likelihood(X, y, sample_weight=weight) == pytest.approx(expected, abs=1e-5)
    assert fitted.score(X, indicator(y)) == np.mean(
        [log_prob[i].argmax() in labels for i, labels in enumerate(y)]
    )
    assert fitted.score(X, [[*labels, "unknown"] for labels in y]) == fitted.score(X, y)


def test_validation(rows):
    X, y = rows
    X_valid, y_valid = make_rows(200, seed=8)
    clf = model().fit(X, y, eval_set=(X_valid, indicator(y_valid)))
    last = clf.history_[-1]
    assert last["valid_log_likelihood"] == pytest.approx(clf.log_likelihood(X_valid, y_valid), abs=1e-9)
    assert last["valid_accuracy"] == clf.score(X_valid, y_valid)
    best = clf.predict_topk(X_valid, k=5)[0]
    assert last["valid_top_k_accuracy"] == np.mean(
        [not labels.isdisjoint(b) for labels, b in zip(map(set, y_valid), best, strict=True)]
    )
    with pytest.warns(
        UserWarning, match=r"3 of \d+ labels of eval_set are classes that y lacks; they are left out\."
    ):
        more = model().fit(X, y, eval_set=(X_valid, [[*y_valid[0], 777], [888, 999], *y_valid[2:]]))
    kept = np.arange(200) != 1
    known = [labels for i, labels in enumerate(y_valid) if i != 1]
    assert more.history_[-1]["valid_log_likelihood"] == pytest.approx(
        more.log_likelihood(X_valid[kept], known), abs=1e-5
    )


def test_validation_fraction_keeps_rows_whole(rows):
    X, y = rows
    clf = model(n_epochs=60, validation_fraction=0.2, patience=2, learning_rate=1.0).fit(X, y)
    assert clf.model_.classes.n_samples == len(y) - round(0.2 * len(y))
    assert clf.model_.classes.counts.min() > 0
    assert len(clf.history_) < 61


def test_no_row_to_keep_back_rejects():
    with pytest.raises(ValueError, match="no row can be kept back"):
        model(validation_fraction=0.5).fit(np.eye(4, dtype=np.float32), [[0, 1], [2], [3, 4], [5]])


def test_partial_fit_identity(rows, fitted, tmp_path):
    X, y = rows
    steps = model()
    for _ in range(3):
        steps.partial_fit(X, indicator(y))
    assert same_bits(fitted, steps)
    names = [f"c{40 - i}" for i in range(N_CLASSES)]  # not in the order of the alphabet
    named = model().partial_fit(X, indicator(y), classes=names)
    named.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    for clf in (named, again):
        clf.partial_fit(X, indicator(y), classes=names).partial_fit(
            X, [[names[i] for i in labels] for labels in y]
        )
        assert same_bits(fitted, clf)
        assert clf.classes_.tolist() == names
    with pytest.raises(ValueError, match="classes differs from the 40 classes of the first call"):
        named.partial_fit(X, indicator(y), classes=names[:-1])
    with pytest.raises(
        ValueError, match=r"a label of y\[0\] is 'z', which is not one of the 40 known .* at the first call"
    ):
        named.partial_fit(X[:1], [["z", names[0]]])


def test_save_and_load_same_everywhere(fitted, tmp_path):
    X, y = make_rows(100, seed=9)
    fitted.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict_topk(X)[0], fitted.predict_topk(X)[0])
    assert again.log_likelihood(X, indicator(y)) == fitted.log_likelihood(X, y)
    assert np.array_equal(again.model_.classes.counts, fitted.model_.classes.counts)
    assert again.model_.classes.n_samples == 1200


def test_labels_without_rows_are_classes_too(rows):
    X, y = rows
    wide = model().fit(X, indicator(y, N_CLASSES + 3))
    assert len(wide.classes_) == N_CLASSES + 3
    assert wide.model_.classes.counts[-3:].tolist() == [0, 0, 0]
    assert not wide.predict(X)[:, N_CLASSES:].sum()
    assert not np.isin(wide.predict_topk(X, 1)[0], [N_CLASSES, N_CLASSES + 1, N_CLASSES + 2]).any()
    declared = model().fit(X, y, classes=np.arange(N_CLASSES + 3))
    assert same_bits(wide, declared)


def test_texts():
    texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "a dog bit me on a ladder"] * 6
    Y = sparse.csr_array([[1, 0], [1, 0], [0, 1], [1, 1]] * 6)
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(
        texts, Y, classes=["fall", "bite"], eval_set=(texts, Y)
    )
    assert clf.classes_.tolist() == ["fall", "bite"]
    assert clf.score(texts, Y) == 1.0


BAD_CALLS = [
    (
        lambda X, y: model().fit(X, [[1]] * len(X)),
        r"y has one class, .*1.*; ExtremeClassifier needs rows of at least two",
    ),
    (
        lambda X, y: model().fit(X, y[:-1]),
        r"y has 19 lists of labels, but there are 20 rows of features\.",
    ),
    (
        lambda X, y: model().fit(X, indicator(y)[:-1]),
        r"y has 19 rows of labels, but there are 20 rows of features\.",
    ),
    (
        lambda X, y: model().fit(X, [[]] * len(X)),
        r"y has no label in any of its 20 rows",
    ),
    (
        lambda X, y: model().fit(X, y, eval_set=(X, [["z"]] * len(X))),
        r"eval_set has no row of a class that occurs in y",
    ),
    (
        lambda X, y: model().fit(X, y, sample_weight=np.ones(21)),
        r"sample_weight has shape \(21,\), but there are 20 rows",
    ),
    (
        lambda X, y: model().fit(X, [*y[1:], []], np.arange(20) == 19),
        r"sample_weight is zero for every row with a label; at",
    ),
    (
        lambda X, y: model().fit(X, y).score(X, [*y[1:], []], np.arange(20) == 19),
        r"sample_weight is zero for every row with a",
    ),
    (
        lambda X, y: model().fit(X, y, sample_weight=np.full(20, 1e20)),
        r"largest sample_weight is 1e\+20, .* by their mean\.",
    ),
    (
        lambda X, y: model().fit(X, indicator(y)).log_likelihood(X, indicator(y)[:, :9]),
        r"y has 9 columns, but there are 40 cl",
    ),
    (
        lambda X, y: model().fit(X, y).log_likelihood(X, [["z"]] * len(X)),
        r"is 'z', which is not .* Leave out rows of classes",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), BAD_CALLS)
def test_bad_input_rejects(call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as error:
        call(*make_rows(20))
    assert "\n" not in str(error.value)


def test_rows_with_several_labels_beside_rows_without_any():
    """As many pairs as rows, at most: still not one label each."""
    rng = np.random.default_rng(0)
    y = [[int(k), 5] if i % 2 else [] for i, k in enumerate(rng.integers(5, size=300))]
    X = rng.normal(size=(300, 8)).astype(np.float32)
    clf = ExtremeClassifier(random_state=0)
    with pytest.warns(UserWarning, match="150 of 300 rows of y have no label"):
        clf.fit(X, y)
    assert clf.predict_proba(X[:3]).shape == (3, 6)
