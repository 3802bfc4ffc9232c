"""Class texts: names and synonyms of labels that training reads beside its rows."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.class_texts import ClassTexts, list_class_texts
from extremax.data import DataFileError, read_class_texts
from extremax.errors import TrainingInterruptedWarning
from extremax.examples import Examples, mix_rows
from extremax.runtime.context import Context
from extremax.runtime.progress import ProgressLine
from extremax.scores.sparse import SparseWeights
from extremax.solvers.sparse.unseen import fit_unseen_bias

TEXTS = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
LABELS = ["fall", "fall", "bite", "bite"] * 5
NAMES = {"burn": ["burned by fire", "scald"], "fall": "tumble", "sting": ["stung by a wasp"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named") / "model"
    TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS, class_texts=NAMES).save(folder)
    return folder


@pytest.fixture
def clf(saved):
    return load_model(saved)


def test_labels_without_a_row_are_predicted(clf):
    assert clf.classes_.tolist() == ["bite", "burn", "fall", "sting"]
    asked = ["scald of the hand", "a wasp stung me", "a tumble", "a dog has bitten me"]
    assert clf.predict(asked).tolist() == ["burn", "sting", "fall", "bite"]
    assert clf.model_.classes.counts.tolist() == [10, 0, 10, 0]  # of rows, not of texts
    assert clf.model_.classes.n_samples == 20


def test_texts_are_saved_removed_renamed_and_merged(clf, tmp_path):
    def texts(model):
        found = model.model_.classes.texts
        return {label: found.of_class(i) for i, label in enumerate(model.classes_.tolist())}

    assert texts(clf) == {"bite": [], "burn": NAMES["burn"], "fall": ["tumble"], "sting": NAMES["sting"]}
    clf.remove_classes(["burn"])
    assert texts(clf) == {"bite": [], "fall": ["tumble"], "sting": NAMES["sting"]}
    clf.merge_classes({"sting": "animal", "bite": "animal"})
    clf.save(tmp_path / "merged")
    assert texts(load_model(tmp_path / "merged")) == {"animal": NAMES["sting"], "fall": ["tumble"]}


def test_classes_are_added_by_their_texts_alone(clf):
    before = clf.predict_proba(["fell off a roof"])[0]
    clf.add_classes(class_texts={"cat": "a cat"})
    assert clf.predict(["a cat"]).tolist() == ["cat"]
    assert clf.model_.classes.texts.of_class(clf.classes_.tolist().index("cat")) == ["a cat"]
    after = clf.predict_proba(["fell off a roof"])[0]
    kept = np.delete(after, clf.classes_.tolist().index("cat"))
    np.testing.assert_allclose(kept / kept.sum(), before, atol=0.02)
    with pytest.raises(ValueError, match="a class of this model already"):
        clf.add_classes(class_texts={"fall": "crash", "new": "something new"})


def test_an_explanation_names_the_class_text(clf):
    found = clf.explain("scald of the hand")
    assert (found.label, found.matched) == ("burn", "scald")
    assert "matched the name 'scald'" in str(found)
    assert clf.explain("bitten by a dog").matched is None  # no text of this class


def test_no_class_text_is_no_change():
    texts = [f"{word} number {i}" for i in range(30) for word in ("red", "blue", "green")]
    labels = ["r", "b", "g"] * 30
    plain, given = (
        TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels, **options)
        for options in ({}, {"class_texts": {}})
    )
    np.testing.assert_array_equal(plain.decision_function(texts), given.decision_function(texts))
    assert given.model_.classes.texts is None


def test_class_texts_are_never_held_out():
    y = np.repeat(np.arange(40), 2).astype(np.int32)
    X = np.zeros((120, 1), np.float32)
    data = Examples(X, y).with_class_texts(np.arange(40, dtype=np.int32), np.zeros(40, np.int32), 0.5, 1)
    rest, held_out = data.set_aside(60, 0)
    assert rest.n_ordinary == 80
    assert held_out.n_rows == 60
    assert (rest.rows >= 80).sum() == 40
    left = np.bincount(rest.ordinary().y, minlength=40)
    assert (left == 0).any()  # the last row of a class with a text may be held out
    np.testing.assert_array_equal(np.sort(np.concatenate([rest.ordinary().y, held_out.y])), y)
    assert set(rest.weight[rest.rows >= 80]) == {np.float32(0.5)}
    kept, validation = data.holdout(0.25, 0)
    assert len(validation.y) > 0
    assert (validation.rows < 80).all()
    assert (kept.rows >= 80).sum() == 40


@pytest.mark.planted
def test_texts_that_rows_contradict_are_left_out():
    """Of the kind 0, four of five texts are rows of another class; of the kind 1, one of three."""
    X = sparse.csr_matrix(np.eye(12, dtype=np.float32)[[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
    y = np.array([0, 0, 1, 1, 2, 2, 3], np.int32)  # the class 4 has no row, and 3 has one
    of_texts = np.array([1, 1, 0, 0, 2, 2, 2, 0, 4, 3], np.int32)
    kinds = np.array([0, 0, 0, 0, 0, 1, 1, 1, 0, 0], np.int32)
    found = Examples(X, y).with_class_texts(of_texts, kinds, 0.5, 12)
    assert found.rows[7:].tolist() == [12, 14, 15, 16]  # what agrees or is no row; classes of at most one row
    assert found.y[7:].tolist() == [2, 0, 4, 3]
    without = Examples(X[:16], y).with_class_texts(of_texts[:9], np.zeros(9, np.int32), 0.5, 12)
    assert without.rows[7:].tolist() == [15]
    assert len(Examples(X.toarray(), y).with_class_texts(of_texts, kinds, 0.5, 0).y) == 17  # of no columns


@pytest.mark.planted
def test_rows_that_name_their_label_give_weight_to_names():
    """Titles have a word of the name of each of their labels, and words that say nothing."""
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefghijklmnop"), 7)) for _ in range(1500)])
    names = {f"c{i}": " ".join(words[2 * i : 2 * i + 2]) for i in range(300)}
    labels = [rng.choice(300, 2, replace=False) for _ in range(1100)]
    texts = [
        " ".join([*words[2 * of + rng.integers(2, size=2)], *rng.choice(words[600:], 4)]) for of in labels
    ]
    y = [[f"c{i}" for i in of] for of in labels]
    parameters = {"random_state": 0, "n_jobs": 1}
    with_names = TextClassifier(ExtremeClassifier(**parameters)).fit(texts[:800], y[:800], class_texts=names)
    without = TextClassifier(ExtremeClassifier(**parameters)).fit(texts[:800], y[:800])
    assert with_names.choices_["mix"]["names"] > 1.0
    hits = [
        np.mean(
            [best in of for (best,), of in zip(clf.predict_topk(texts[800:], 1)[0], y[800:], strict=True)]
        )
        for clf in (with_names, without)
    ]
    assert hits[0] > hits[1] + 0.02, hits


@pytest.mark.planted
def test_a_few_contradictions_leave_a_kind_of_texts_trusted():
    """One text of eleven is a row of another class: it is left out, and no other."""
    X = sparse.csr_matrix(np.eye(13, dtype=np.float32)[[0, 1, 0, *range(2, 12)]])
    y, of_texts = np.array([0, 1], np.int32), np.array([1] + 5 * [0, 1], np.int32)
    found = Examples(X, y).with_class_texts(of_texts, np.zeros(11, np.int32), 0.5, 13)
    assert found.rows[2:].tolist() == list(range(3, 13))


def test_texts_of_several_labels_a_row():
    rows = [["fall"], ["fall", "home"], ["bite"], ["bite", "home"]] * 5
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, rows, class_texts=NAMES)
    assert clf.classes_.tolist() == ["bite", "burn", "fall", "home", "sting"]
    assert clf.predict(["a scald"]).tolist() == ["burn"]


@pytest.mark.error
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (["fall"], TypeError, "class_texts must be a dict"),
        ([{"fall": "a"}, 3], TypeError, "class_texts must be a dict"),
        ({"fall": 3}, TypeError, r"class_texts\['fall'\] is int"),
        ({"fall": ["a", None]}, TypeError, "which is not a text"),
    ],
)
def test_wrong_class_texts(given, error, words):
    with pytest.raises(error, match=words):
        list_class_texts(given)


@pytest.mark.error
def test_texts_of_no_column_of_an_indicator_matrix():
    Y = np.tile(np.eye(2, dtype=np.int8), (10, 1))
    with pytest.raises(ValueError, match="which is not a column of y"):
        TextClassifier().fit(TEXTS, Y, class_texts={5: "scald"})


@pytest.mark.error
def test_names_of_numbers_are_refused():
    with pytest.raises(ValueError, match="the label '1', and the labels of y are numbers"):
        TextClassifier().fit(TEXTS, [1, 1, 2, 2] * 5, class_texts={"1": "scald"})


@pytest.mark.invariance
def test_weights_of_added_rows_are_relative_to_one_another(clf, saved):
    added = load_model(saved)
    rows, labels = ["fire water fire"] * 4, np.array(["q"] * 4)
    for model, weight in ((clf, 1.0), (added, 0.01)):
        model.add_classes(rows, labels, np.full(4, weight), class_texts={"g": "glass wood"})
        assert model.classes_.dtype.kind == "U"
    asked = ["glass wood", "fire water"]
    np.testing.assert_allclose(clf.predict_proba(asked), added.predict_proba(asked), atol=1e-4)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,one,two\nb,three,\n", [{"a": ["one"], "b": ["three"]}, {"a": ["two"]}]),
        ("name\tlabel\nfirst\ta\nsecond\ta\n", [{"a": ["first", "second"]}]),
        ("a;one, or two\nb;three\n", [{"a": ["one, or two"], "b": ["three"]}]),
        ("ICD code;Name;Also\nA1;one;two\nB2;three;\n", [{"A1": ["one"], "B2": ["three"]}, {"A1": ["two"]}]),
        ("a, one|x, z\n", [{"a": [" one|x"]}, {"a": [" z"]}]),
        ('"a;b",one;two\n', [{"a;b": ["one;two"]}]),
        ('{"id": 7, "prefLabel": "x", "altLabel": ["y", "z"], "n": 1}\n', [{"7": ["x"]}, {"7": ["y", "z"]}]),
    ],
)
def test_files_of_class_texts(content, expected):
    assert read_class_texts(io.BytesIO(content.encode())) == expected


def test_a_file_of_class_texts_in_another_encoding():
    content = io.BytesIO("a;für\n".encode("cp1252"))
    with pytest.raises(DataFileError, match="cp1252"):
        read_class_texts(content)
    assert read_class_texts(io.BytesIO(content.getvalue()), encoding="cp1252") == [{"a": ["für"]}]


@pytest.mark.error
@pytest.mark.parametrize(
    "content",
    [
        "a\n", '{"name": "x"}\n', "a, \n", "a,b\nc\n", '[{"id": "a",\n"name": "b"}]\n', 'a,"b\nc,d\n', ",b\n",
        '{"id": "", "name": "b"}\n', '{"id": "a", "name": "\\ud800"}\n',
    ],
)  # fmt: skip
def test_wrong_files_of_class_texts(content):
    with pytest.raises(DataFileError, match=r"line|class text"):
        read_class_texts(io.BytesIO(content.encode()))


def test_pack_and_join():
    one = ClassTexts.of(["é", "b"], np.array([1, 0], np.int32), [0, 1])
    both = one.plus(ClassTexts.of(["c"], np.array([1], np.int32), [1]))
    assert both.to_list() == ["é", "b", "c"]
    assert both.of_class(1) == ["é", "c"]
    assert both.take(np.array([1])).of_class(0) == ["é", "c"]
    again = ClassTexts.from_arrays(both.arrays())
    assert again is not None
    assert again.to_list() == both.to_list()
    assert again.kinds.tolist() == [0, 1, 1]


@pytest.mark.planted
def test_the_bias_of_classes_without_a_row_follows_held_out_rows():
    """Scores that are too low by two for the marked classes are raised by two."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3000, 6)).astype(np.float32)
    prob = np.exp(scores - logsumexp(scores, axis=1)[:, None])
    y = np.array([rng.choice(6, p=p / p.sum()) for p in prob.astype(np.float64)], np.int32)
    unseen = np.array([False, True, False, False, True, False])
    matrix = sparse.csr_matrix(np.eye(6, dtype=np.float32))
    weights = SparseWeights.from_matrix(matrix, np.where(unseen, np.float32(-2.0), np.float32(0.0)))
    data = Examples(sparse.csr_matrix(scores), y)
    context = Context(0, 1, ProgressLine(0), None)
    assert fit_unseen_bias(weights, data, unseen, context) == pytest.approx(2.0, abs=0.15)
    assert fit_unseen_bias(weights, data, np.zeros(6, bool), context) == 0.0


def test_the_last_row_of_a_class_with_a_text_is_trained_on_in_the_end():
    """Held out for the calibration, it may leave its class without a row; the finished model knows it."""
    things = [f"{a}{b}" for a in ("mul", "tor", "ven", "kas") for b in ("dip", "rog", "nax", "bel", "fum")]
    texts = [f"{thing} {word}" for thing in things for word in ("one", "two")] * 30
    labels = [thing for thing in things for _ in range(2)] * 30
    alone = [f"single{i} thing" for i in range(60)]
    names = {f"only{i}": f"item single{i}" for i in range(60)}
    clf = TextClassifier(ExtremeClassifier(random_state=0))
    clf.fit(texts + alone, labels + [f"only{i}" for i in range(60)], class_texts=names)
    assert clf.choices_["unseen_bias"] != 0.0
    assert clf.model_.classes.counts[clf.label_ids(["only7"])[0]] == 1
    assert np.mean(clf.predict(alone) == [f"only{i}" for i in range(60)]) > 0.9


@pytest.mark.planted
def test_mixed_rows_lower_the_confidence_in_what_was_never_seen():
    rng = np.random.default_rng(0)
    words = [f"w{i:03d}" for i in range(400)]
    texts = [" ".join(rng.choice(words[4 * i : 4 * i + 6], 3)) for i in range(90) for _ in range(20)]
    labels = [f"c{i}" for i in range(90) for _ in range(20)]
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels)
    model, data = clf.model_, Examples(clf.to_features(texts[::4]), clf.label_ids(labels[::4]))
    both = mix_rows(data, 400)
    predictor = model.predictor()
    losses = []
    for mixes in (False, True):
        found = predictor.choose_calibration(data, mixes_rows=mixes)
        ids, log_prob = replace(model, calibration=found).topk(both.X, 1)
        right, prob = ids[:, 0] == both.y, np.clip(np.exp(log_prob[:, 0]), 1e-6, 1.0 - 1e-6)
        losses.append(-np.where(right, np.log(prob), np.log1p(-prob)).mean())
    assert losses[1] < losses[0] - 0.01


@pytest.mark.identity
@pytest.mark.parametrize("in_callback", [False, True])
def test_a_resumed_fit_has_the_class_texts(tmp_path, in_callback):
    def stop(record):
        if in_callback:
            cut.save(tmp_path / "cut")
        raise KeyboardInterrupt

    whole = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS, class_texts=NAMES)
    cut = TextClassifier(ExtremeClassifier(random_state=0))
    with pytest.warns(TrainingInterruptedWarning):
        cut.fit(TEXTS, LABELS, class_texts=NAMES, callbacks=[stop])
    if not in_callback:
        cut.save(tmp_path / "cut")
    again = load_model(tmp_path / "cut").resume_fit(TEXTS, LABELS)
    np.testing.assert_array_equal(again.decision_function(TEXTS), whole.decision_function(TEXTS))
