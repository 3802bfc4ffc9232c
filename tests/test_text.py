"""TextClassifier: one estimator and one folder from raw text to labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from extremax import ExtremeClassifier, TextClassifier, evaluate, load_model
from extremax.classifier import FirstRows
from extremax.errors import ModelFileError
from extremax.features.ngrams import NgramFeatures
from extremax.storage.state import State, merge

THINGS = ["ladder", "roof", "bicycle", "horse", "stairs", "boat", "tree", "train", "window", "bridge"]
TEXTS = [
    f"{verb} {place} a {thing}"
    for thing in THINGS
    for verb in ("fell", "falling", "jumped")
    for place in ("off", "from")
]
LABELS = np.repeat(THINGS, 6)


def make(**options: Any) -> TextClassifier:
    return TextClassifier(
        ExtremeClassifier(random_state=0, n_epochs=10),
        features=NgramFeatures(hash_bits=14),
        **options,
    )


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return make().fit(TEXTS, LABELS)


class LengthEncoder:
    """Stands for a sentence encoder: counts of a few letters."""

    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]


def test_learns_words_recovers(fitted: TextClassifier) -> None:
    assert fitted.score(TEXTS, LABELS) == 1.0
    assert fitted.predict(["the ladder broke"]).tolist() == ["ladder"]
    labels, log_prob = fitted.predict_topk(["a horse near a window"], k=2)
    assert set(labels[0]) == {"horse", "window"}
    assert np.exp(log_prob).sum() <= 1.0


def test_resumed_fit_identity(fitted: TextClassifier, tmp_path: Path) -> None:
    cut = make().fit(TEXTS, LABELS, callbacks=[lambda record: record["epoch"] == 3])
    cut.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.resume_fit(TEXTS, LABELS) is again
    np.testing.assert_array_equal(again.predict_log_proba(TEXTS), fitted.predict_log_proba(TEXTS))
    with pytest.raises(NotFittedError, match=r"call fit\(texts, y\) first"):
        make().resume_fit(TEXTS, LABELS)


def test_reloaded_model_same_everywhere(fitted: TextClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again = load_model(tmp_path / "model", verify=True)
    assert isinstance(again, TextClassifier)
    some = ["jumped from a boat", "", "xyzzy"]
    np.testing.assert_array_equal(again.predict_log_proba(some), fitted.predict_log_proba(some))
    assert again.get_params(deep=False)["features"].options == fitted.features_.options
    assert again.classifier_.get_params() == fitted.classifier_.get_params()
    assert [record["loss"] for record in again.history_[1:]] == [
        record["loss"] for record in fitted.history_[1:]
    ]
    again.partial_fit(TEXTS, LABELS)  # a loaded model trains on
    assert len(again.history_) == len(fitted.history_) + 1


@pytest.mark.parametrize(
    "text",
    [
        "", " \n\t ", "qwxzj vvkkqq", "\N{DOG FACE}\N{HOT BEVERAGE}", "\ud800 lone surrogate", "\x00",
        "ladder " * 15_000, "a" * 100_000,
    ],
    ids=["empty", "blank", "unseen", "emoji", "surrogate", "null", "100kB", "100kB-word"],
)  # fmt: skip
def test_odd_text_is_answered(fitted: TextClassifier, text: str) -> None:
    labels, log_prob = fitted.predict_topk([text], k=3)
    assert np.isfinite(log_prob).all()
    assert set(labels[0]) <= set(THINGS)
    if text.startswith("ladder"):
        assert labels[0, 0] == "ladder"
    p = fitted.predict_proba([text])
    assert p.sum() == pytest.approx(1.0, abs=1e-5)  # float32 log-probabilities


def test_odd_texts_train() -> None:
    texts = ["", "\N{DOG FACE}", "word", "ladder " * 15_000] * 3
    clf = make().fit(texts, ["empty", "dog", "word", "long"] * 3)
    assert clf.predict(texts[2:4]).tolist() == ["word", "long"]
    assert clf.is_known(texts[:4]).tolist() == [False, True, True, True]


def test_batch_or_single_invariant(fitted: TextClassifier) -> None:
    together = fitted.predict_log_proba(TEXTS[:7])
    apart = np.vstack([fitted.predict_log_proba([text]) for text in TEXTS[:7]])
    np.testing.assert_allclose(together, apart, atol=1e-5)  # matrix products of other shapes round otherwise


def test_arrays_of_strings_are_texts(fitted: TextClassifier) -> None:
    assert fitted.predict(np.array(TEXTS[:3])).tolist() == fitted.predict(TEXTS[:3]).tolist()


def test_validation_texts_are_scored() -> None:
    clf = make().fit(TEXTS[::2], LABELS[::2], eval_set=(TEXTS[1::2], LABELS[1::2]))
    assert clf.history_[-1]["valid_accuracy"] == clf.score(TEXTS[1::2], LABELS[1::2])


def test_parameters_reach_the_classifier() -> None:
    clf = clone(make()).set_params(classifier__n_epochs=1).fit(TEXTS, LABELS)
    assert len(clf.history_) == 2
    assert clf.classifier.n_epochs == 1
    assert not hasattr(clf.classifier, "model_")  # the given one is a template


def test_folder_of_removed_features_says_what_to_do(fitted: TextClassifier) -> None:
    old = State({"kind": "text_features"})
    for about in (old, merge({"kind": "encoder", "name": None}, {"features": old})):
        with pytest.raises(ModelFileError, match=r"TextFeatures, .* fit it again with NgramFeatures"):
            TextClassifier._restore(fitted.classifier_, about, None)


def test_encoder_object_is_used_and_given_again(tmp_path: Path) -> None:
    clf = TextClassifier(ExtremeClassifier(random_state=0), encoder=LengthEncoder()).fit(TEXTS, LABELS)
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model", encoder=LengthEncoder())
    np.testing.assert_array_equal(again.predict_log_proba(TEXTS), clf.predict_log_proba(TEXTS))
    with pytest.raises(ValueError, match=r"open it with load_model\(path, encoder=...\)"):
        load_model(tmp_path / "model").predict(TEXTS)


def test_encoder_by_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Module:
        @staticmethod
        def SentenceTransformer(name: str) -> LengthEncoder:
            asked.append(name)
            return LengthEncoder()

    monkeypatch.setitem(sys.modules, "sentence_transformers", Module)  # type: ignore[arg-type]
    clf = TextClassifier(ExtremeClassifier(random_state=0, n_epochs=1), encoder="all-letters").fit(
        TEXTS, LABELS
    )
    clf.predict(TEXTS)
    assert asked == ["all-letters"]
    clf.save(tmp_path / "model")
    unasked = load_model(tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"sentence encoder 'all-letters'\. .* is not loaded without your word"
    ):
        unasked.predict(TEXTS)
    assert asked == ["all-letters"]
    unasked.save(tmp_path / "again")
    trusted = load_model(tmp_path / "again", encoder="all-letters")
    np.testing.assert_array_equal(trusted.predict(TEXTS), clf.predict(TEXTS))
    assert asked == ["all-letters"] * 2


def test_missing_sentence_transformers_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r"pip install extremax\[embeddings\]"):
        TextClassifier(encoder="some-model").fit(TEXTS, LABELS)


def test_wrong_input_rejects(fitted: TextClassifier, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="texts is one string; pass a list"):
        fitted.predict("fell off a ladder")
    with pytest.raises(TypeError, match=r"texts\[1\] is None"):
        fitted.predict(["a", None])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="60 texts and 3 labels"):
        make().fit(TEXTS, ["a", "b", "c"])
    with pytest.raises(TypeError, match="features must be NgramFeatures; got str"):
        TextClassifier(features="ngrams").fit(TEXTS, LABELS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="classifier must be an ExtremeClassifier; got str"):
        TextClassifier("softmax").fit(TEXTS, LABELS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must have a method encode"):
        TextClassifier(encoder=3).fit(TEXTS, LABELS)
    with pytest.raises(TypeError, match="eval_set must be a pair"):
        make().fit(TEXTS, LABELS, eval_set=TEXTS)  # type: ignore[arg-type]
    with pytest.raises(NotFittedError, match="call fit"):
        make().predict(TEXTS)
    with pytest.raises(NotFittedError, match="before save"):
        make().save(tmp_path / "model")
    fitted.save(tmp_path / "model")
    with pytest.raises(ValueError, match="was not trained with an encoder"):
        load_model(tmp_path / "model", encoder=LengthEncoder())


class OneRow:
    def encode(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 2.0]]


def test_encoder_of_wrong_shape_rejects() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 2\) for 60 texts"):
        TextClassifier(encoder=OneRow()).fit(TEXTS, LABELS)


def test_failed_fit_leaves_nothing() -> None:
    clf = make().fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="y has one class"):
        clf.fit(TEXTS, ["the same"] * len(TEXTS))
    with pytest.raises(NotFittedError, match="This TextClassifier is not fitted yet"):
        clf.predict(TEXTS[:1])
    assert not hasattr(clf, "features_")
    clf.partial_fit(TEXTS, LABELS)
    assert clf.predict(TEXTS[:1]).shape == (1,)


# -- words and n-grams, the default ------------------------------------------------------------------------


def default(**options: Any) -> TextClassifier:
    return TextClassifier(ExtremeClassifier(random_state=0), **options)


@pytest.fixture(scope="module")
def wide() -> TextClassifier:
    """Train the default on classes of different sizes."""
    texts = [*TEXTS, *["slipped on ice"] * 20]
    return default().fit(texts, [*LABELS, *["ice"] * 20])


def test_default_is_sparse_and_learns_words_recovers(wide: TextClassifier) -> None:
    assert wide.features_ is not None
    assert wide.features_.is_sparse
    assert wide.choices_["solver"] == "sparse_softmax"
    assert wide.score(TEXTS, LABELS) == 1.0
    assert wide.predict(["the ladder broke", "laddr"]).tolist() == ["ladder", "ladder"]
    labels, log_prob = wide.predict_topk(["a horse near a window"], k=2)
    assert set(labels[0]) == {"horse", "window"}
    assert np.exp(log_prob).sum() <= 1.0 + 1e-6  # float32


def test_default_is_features_then_classifier_identity(wide: TextClassifier) -> None:
    texts, labels = [*TEXTS, *["slipped on ice"] * 20], [*LABELS, *["ice"] * 20]
    features = NgramFeatures().fit(texts)
    apart = ExtremeClassifier("sparse_softmax", random_state=0)
    # what columns are, a matrix does not tell
    rows = FirstRows(features.transform(texts), features.column_groups)
    apart._train_first(rows, labels, None, None, None, ())
    some = ["jumped from a boat", "a tree"]
    np.testing.assert_array_equal(
        wide.predict_log_proba(some), apart.predict_log_proba(features.transform(some))
    )


def test_solver_for_dense_features_rejects() -> None:
    with pytest.raises(ValueError, match=r"'nce' needs dense features.*TruncatedSVD"):
        TextClassifier(ExtremeClassifier("nce")).fit(TEXTS, LABELS)


def test_unknown_text_gets_class_frequencies(wide: TextClassifier) -> None:
    unknown = ["", "zzzzqqq", "\N{DOG FACE}"]
    frequencies = np.where(wide.classes_ == "ice", 20 / 80, 6 / 80)
    assert wide.is_known([*unknown, "ladder"]).tolist() == [False] * 3 + [True]
    assert wide.predict(unknown).tolist() == ["ice"] * 3
    labels, log_prob = wide.predict_topk([*unknown, "ladder"], k=2)
    assert labels[:3].tolist() == [["ice", wide.classes_[0]]] * 3
    np.testing.assert_allclose(np.exp(log_prob[:3]), [[0.25, 6 / 80]] * 3, rtol=1e-6)
    assert labels[3, 0] == "ladder"
    np.testing.assert_allclose(wide.predict_proba(unknown), [frequencies] * 3, rtol=1e-6)
    np.testing.assert_allclose(wide.predict_log_proba(unknown), [np.log(frequencies)] * 3, rtol=1e-6)
    assert (wide.decision_function(unknown).argmax(axis=1) == wide.classes_.tolist().index("ice")).all()


def test_unknown_text_of_two_classes() -> None:
    clf = default().fit(["red rose", "red tulip", "blue sky", "red poppy"] * 5, ["a", "a", "b", "a"] * 5)
    assert clf.predict(["", "blue"]).tolist() == ["a", "b"]
    assert clf.decision_function([""])[0] == pytest.approx(np.log(1 / 3), abs=1e-6)
    np.testing.assert_allclose(clf.predict_proba([""]), [[0.75, 0.25]], rtol=1e-6)


@pytest.mark.invariance
def test_default_reloaded_invariant(wide: TextClassifier, tmp_path: Path) -> None:
    wide.save(tmp_path / "model")
    again = load_model(tmp_path / "model", verify=True)
    assert isinstance(again, TextClassifier)
    some = ["jumped from a boat", "", "xyzzy", "laddr"]
    np.testing.assert_array_equal(again.predict_log_proba(some), wide.predict_log_proba(some))
    assert again.get_params(deep=False)["features"].options == wide.features_.options
    assert str(again.explain("off a ladder")) == str(wide.explain("off a ladder"))
    assert again.explain_label("ladder") == wide.explain_label("ladder")
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) < 2_000_000


@pytest.mark.parametrize("text", ["ladder " * 15_000, "a" * 100_000, "\ud800 lone surrogate", "\x00"])
def test_odd_text_is_answered_by_default(wide: TextClassifier, text: str) -> None:
    p = wide.predict_proba([text])
    assert p.sum() == pytest.approx(1.0, abs=1e-5)
    if text.startswith("ladder"):
        assert wide.predict([text]).tolist() == ["ladder"]


def test_default_goes_on_with_more_texts(tmp_path: Path) -> None:
    clf = default().partial_fit(TEXTS, LABELS, classes=[*THINGS, "ice"])
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    again.partial_fit([*TEXTS, "slipped on ice"], [*LABELS, "ice"])
    assert again.predict(["a ladder"]).tolist() == ["ladder"]
    assert "ice" in again.classes_


def test_default_resumed_fit_identity(wide: TextClassifier, tmp_path: Path) -> None:
    texts, labels = [*TEXTS, *["slipped on ice"] * 20], [*LABELS, *["ice"] * 20]
    cut = default().fit(texts, labels, callbacks=[lambda record: record["epoch"] == 2])
    cut.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.resume_fit(texts, labels) is again
    assert again.history_[-1]["epoch"] == wide.history_[-1]["epoch"]
    np.testing.assert_allclose(again.predict_log_proba(TEXTS), wide.predict_log_proba(TEXTS), atol=1e-5)


def test_default_trains_on_several_labels() -> None:
    verbs = [text.split()[0] for text in TEXTS]
    both = [[label, verb] for label, verb in zip(LABELS, verbs, strict=True)]
    clf = default().fit(TEXTS, both)
    labels, _ = clf.predict_topk(TEXTS, k=2)
    assert np.mean([set(row) == set(own) for row, own in zip(labels.tolist(), both, strict=True)]) > 0.8


# -- words and embeddings ----------------------------------------------------------------------------------


def test_words_and_embeddings_together(tmp_path: Path) -> None:
    clf = default(features=NgramFeatures(), encoder=LengthEncoder()).fit(TEXTS, LABELS)
    X, Z = clf.transform(TEXTS[:3])
    assert X.shape == (3, clf.features_.n_features)  # type: ignore[union-attr]
    assert Z.shape == (3, 26)
    assert clf.score(TEXTS, LABELS) == 1.0
    assert clf.is_known(["", "zzzzqqq"]).all()  # an encoder knows every text
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model", encoder=LengthEncoder())
    np.testing.assert_array_equal(again.predict_log_proba(TEXTS), clf.predict_log_proba(TEXTS))
    with pytest.raises(ValueError, match=r"open it with load_model\(path, encoder=...\)"):
        load_model(tmp_path / "model").predict(TEXTS)
    found = again.explain("fell off a ladder")
    score = again.decision_function(["fell off a ladder"]).max()
    assert sum(value for _, value in found.score.terms) == pytest.approx(score, abs=1e-4)


def test_names_of_columns_do_not_depend_on_the_index_of_a_series():
    pandas = pytest.importorskip("pandas")
    listed = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS)
    series = pandas.Series(TEXTS, index=range(len(TEXTS))[::-1])
    other = TextClassifier(ExtremeClassifier(random_state=0)).fit(series, LABELS)
    assert other.explain_label("roof") == listed.explain_label("roof")
    late = pandas.Series(TEXTS, index=range(1000, 1000 + len(TEXTS)))
    TextClassifier(ExtremeClassifier(random_state=0)).fit(late, LABELS)


@pytest.mark.error
@pytest.mark.parametrize("k", [0, -1, 1.5, None])
def test_explanations_need_a_whole_number_of_labels(k):
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS)
    with pytest.raises((TypeError, ValueError), match="'k' parameter of explain must be"):
        clf.explain("fell off a roof", k=k)
    with pytest.raises((TypeError, ValueError), match="'k' parameter of explain_label must be"):
        clf.explain_label("roof", k=k)


def test_figures_of_unknown_texts_are_those_of_the_class_frequencies():
    texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    y = ["fall", "fall", "bite", "bite"] * 5
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit([*texts, "bite of a horse"], [*y, "bite"])
    new, labels = ["zzzzqqq", "", "a ladder"], ["fall", "bite", "fall"]
    log_prob = clf.predict_log_proba(new)
    column = {label: i for i, label in enumerate(clf.classes_.tolist())}
    expected = np.mean([log_prob[i, column[label]] for i, label in enumerate(labels)])
    assert not clf.is_known(new)[:2].any()
    assert clf.log_likelihood(new, labels) == pytest.approx(expected, abs=1e-6)
    report = evaluate(clf, new, labels, ks=(1,))
    assert report.log_likelihood == pytest.approx(expected, abs=1e-6)
    right = np.mean(clf.predict(new) == np.array(labels))
    assert clf.score(new, labels) == report.accuracy[1] == pytest.approx(right)
    several = evaluate(clf, new, [["fall", "bite"], ["bite"], ["fall"]], ks=(1,))
    pairs = [log_prob[0, 0], log_prob[0, 1], log_prob[1, column["bite"]], log_prob[2, column["fall"]]]
    assert several.log_likelihood == pytest.approx(np.mean(pairs), abs=1e-6)
