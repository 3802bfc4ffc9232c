"""Sparse text features: scikit-learn's analyzers and weights are the reference; names, saving, odd texts."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from extremax.features.ngrams import NgramFeatures, NgramOptions
from extremax.storage.state import State

TEXTS = [
    "Fell off a ladder",
    "  Bitten by a DOG, bitten twice;  at home\n",
    "ünïcode ΣΑΣ straße İstanbul \U0001f600\U0001f600 x",
    "",
    "a",
    "under_score 12.5 mg/ml -- co-op don't @types/react-dom",
    "\u00a0no\u2003break\u3000spaces\ttabs",
    "東京 タワー 3丁目",
    "\ud800 lone surrogate \x00 nul",
    "नमस्ते दुनिया, e\u0301te\u0301 ❤\ufe0f!",
    "น้ำท่วมที่บ้าน ひらがなカタカナ漢字",
]
SIGNS = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"
UNSPACED = "\u3041-\u3096\u4e00-\u9fff\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46"  # of the texts above
EVERYTHING = {"least_known": 0.0}


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i}{'abcdefgh'[i % 8]}" for i in range(400)])
    topics = [rng.choice(400, 12, replace=False) for _ in range(20)]
    return [" ".join(words[rng.choice(topics[rng.integers(20)], 6)]) for _ in range(n)]


def word_runs(text, longest, marks):
    """Runs of words; a mark is a token, but not alone."""
    tokens = tokens_of(text.lower(), marks)
    runs = [tokens[i : i + n] for n in range(1, longest + 1) for i in range(len(tokens) - n + 1)]
    return [" ".join(run) for run in runs if len(run) > 1 or re.match(r"\w", run[0])]


def tokens_of(text, marks):
    """Words with the signs on their letters, letters of writing without spaces, and marks."""
    word = rf"[{UNSPACED}][{SIGNS}]*|[^\W{UNSPACED}](?:[^\W{UNSPACED}]|[{SIGNS}])*"
    return re.findall(rf"{word}|[^\w\s][{SIGNS}]*" if marks else word, text)


def expected_tfidf(texts, new, options):
    """TF-IDF of scikit-learn: the same analyzers, each group of unit length, then the row; and the names."""
    groups = []
    low, high = options.char_ngrams
    if high:
        characters = CountVectorizer(analyzer="char_wb", ngram_range=(low, high)).build_analyzer()
        groups.append((characters, options.group_weights[0]))
    if options.word_ngrams:
        groups.append((lambda t: word_runs(t, options.word_ngrams, options.marks), options.group_weights[1]))
    parts, names = [], []
    for analyzer, weight in groups:
        vectorizer = TfidfVectorizer(analyzer=analyzer, sublinear_tf=True).fit(texts)
        parts.append(weight * vectorizer.transform(new))
        names.append(vectorizer.get_feature_names_out())
    rows = sp.hstack(parts).toarray()
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0), names


def match_columns(features, texts, names):
    """Column of each n-gram of the reference, through the n-grams of the texts themselves."""
    groups = [name for name in (features.options.char_ngrams[1], features.options.word_ngrams) if name]
    assert len(groups) == len(names)
    columns: list[dict[str, int]] = [{} for _ in names]
    for text in texts:
        found = features.occurrences(text)
        padded = f" {found.text} "
        for column, start, length, order in zip(*(a.tolist() for a in found[1:5]), strict=True):
            piece = padded[start + 1 : start + 1 + length]
            if order == 0:
                columns[0].setdefault(re.sub(r"\s", " ", piece), column)
            else:
                columns[-1].setdefault(" ".join(tokens_of(piece, features.options.marks)), column)
    return [columns[group][name] for group, known in enumerate(names) for name in known]


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"marks": False, "word_ngrams": 3, "group_weights": (1.0, 2.0)},
        {"char_ngrams": (1, 1), "word_ngrams": 8},
        {"char_ngrams": (4, 6), "word_ngrams": 0},
        {"char_ngrams": (0, 0), "word_ngrams": 1},
    ],
    ids=["default", "words", "runs", "characters", "single words"],
)
def test_matches_scikit_learn_reference(options):
    # no two of these n-grams meet in a bucket, or the columns would not be as many
    # scikit-learn leaves n-grams that no training text has out of the length of a row
    features = NgramFeatures(**options, hash_bits=20, count_unknown=False, **EVERYTHING).fit(TEXTS)
    new = [*TEXTS, "a dog, a ladder; a dog", "never 東京 @types"]
    expected, names = expected_tfidf(TEXTS, new, features.options)
    columns = match_columns(features, TEXTS, names)
    assert sorted(columns) == list(range(features.n_features))
    X = features.transform(new)
    assert X.has_sorted_indices
    known = np.diff(X.indptr) > 0
    np.testing.assert_allclose(X.toarray()[:, columns], expected, atol=1e-6)  # float32
    np.testing.assert_allclose(sp.linalg.norm(X, axis=1)[known], 1.0, atol=1e-6)


@pytest.mark.reference
def test_default_columns_match_scikit_learn_reference():
    texts = sentences(300)
    features = NgramFeatures().fit(texts)
    expected, names = expected_tfidf(texts, texts, features.options)
    columns = match_columns(features, texts, names)
    X = features.transform(texts).toarray()
    shared = {column for column, n in Counter(columns).items() if n > 1}
    assert len(shared) <= 10  # of some 5,000 n-grams in three million buckets
    apart = [
        i for i, text in enumerate(texts) if not shared & set(features.occurrences(text).columns.tolist())
    ]
    assert len(apart) > 200
    np.testing.assert_allclose(X[np.ix_(apart, columns)], expected[apart], atol=1e-6)


@pytest.mark.property
@given(st.lists(st.text(max_size=40), min_size=1, max_size=8))
def test_any_text_property(texts):
    features = NgramFeatures(hash_bits=12, **EVERYTHING).fit(texts)
    X = features.transform(texts)
    assert X.shape == (len(texts), features.n_features)
    norms = sp.linalg.norm(X, axis=1)
    for i, text in enumerate(texts):
        row = X[i]
        assert (np.diff(row.indices) > 0).all()
        assert (row.data > 0).all()
        found = features.occurrences(text)
        assert set(found.columns.tolist()) == set(row.indices.tolist())
        assert all(found.names)
        if text.split():
            assert norms[i] == pytest.approx(1.0, abs=1e-5)
        else:
            assert row.nnz == 0
    again = NgramFeatures.from_state(features.state())
    assert (again.transform(texts) != X).nnz == 0


@pytest.mark.invariance
def test_threads_and_blocks_invariant():
    texts = sentences(9000)
    a, b = NgramFeatures().fit(texts, n_jobs=1), NgramFeatures().fit(texts, n_jobs=3)
    for name in ("buckets_", "text_counts_", "idf_", "_filter", "_first"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    X = a.transform(texts, n_jobs=1)
    assert (b.transform(texts, n_jobs=3) != X).nnz == 0
    assert (a.transform([texts[7]]) != X[7]).nnz == 0
    assert (a.fit_transform(texts, n_jobs=2) != X).nnz == 0


@pytest.mark.invariance
@pytest.mark.parametrize(
    "options",
    [{}, {"char_ngrams": (0, 0), "word_ngrams": 2}, {"word_ngrams": 0}, {"hash_bits": 4}],
    ids=["default", "words", "characters", "collisions"],
)
def test_fit_transform_is_fit_and_transform_invariant(options):
    # marks alone are runs without a word; one text has more n-grams than are sorted by ranges
    texts = [*TEXTS, "-- --", "ab " * 50, " ".join(sentences(100)), *sentences(50)]
    one = NgramFeatures(**options)
    found, expected = one.fit_transform(texts), NgramFeatures(**options).fit(texts).transform(texts)
    assert found.shape == expected.shape
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    assert (one.transform(texts) != expected).nnz == 0


@pytest.mark.invariance
def test_state_round_trip_invariant():
    texts = sentences(400) + ["common"] * 300
    features = NgramFeatures(char_ngrams=(3, 4), group_weights=(1.0, 0.5)).fit(texts)
    assert features.text_counts_.max() >= 300
    features.keep_names(texts, np.arange(features.n_features)[::2])
    state = features.state()
    again = NgramFeatures.from_state(
        State(
            json.loads(json.dumps(state.header)), {name: array.copy() for name, array in state.arrays.items()}
        )
    )
    assert again.options == features.options
    np.testing.assert_array_equal(again.text_counts_, features.text_counts_)
    assert (again.transform(TEXTS) != features.transform(TEXTS)).nnz == 0
    columns = np.arange(features.n_features)
    assert again.column_names(columns) == features.column_names(columns)
    stored = sum(array.nbytes for array in state.arrays.values())
    assert stored < (3 << 20) / 8 + len(features._filter) + 10 * features.n_features


def test_words_that_occur_once_are_columns():
    features = NgramFeatures().fit([*["red house", "green ship"] * 20, "a ladder fell"])
    together = (
        features.transform(["the ladder", "a ladder fell", "red ship"]) @ features.transform(["ladder"]).T
    )
    assert together.toarray()[0, 0] > 0.5
    assert together.toarray()[2, 0] < 0.3


def test_group_weights_are_lengths_of_the_groups():
    texts = sentences(50)
    features = NgramFeatures(group_weights=(3.0, 4.0)).fit(texts)
    X = features.transform(texts)
    n = features.n_character_columns
    np.testing.assert_allclose(sp.linalg.norm(X[:, :n], axis=1), 0.6, atol=1e-6)
    np.testing.assert_allclose(sp.linalg.norm(X[:, n:], axis=1), 0.8, atol=1e-6)


def test_columns_are_characters_then_words_then_runs():
    texts = ["fell off a ladder", "he fell at home"]
    features = NgramFeatures().fit(texts)
    features.keep_names(texts, np.arange(features.n_features))
    names = features.column_names(range(features.n_features))
    words = names[features.n_character_columns : features.first_run]
    assert sorted(words) == ["a", "at", "fell", "he", "home", "ladder", "off"]
    assert all(" " in name for name in names[features.first_run :])


def test_unknown_ngrams_may_count_in_the_length():
    texts = ["the red house", "the blue house", "a red ship"]
    plain, counting = (NgramFeatures(count_unknown=c, least_known=0.0).fit(texts) for c in (False, True))
    assert (plain.transform(texts) != counting.transform(texts)).nnz == 0
    new = ["the red house", "red xyzzy", "xyzzy plugh red"]
    lengths = sp.linalg.norm(counting.transform(new), axis=1)
    np.testing.assert_allclose(sp.linalg.norm(plain.transform(new), axis=1), 1.0, atol=1e-6)
    assert lengths[0] == pytest.approx(1.0, abs=1e-6)
    assert 1.0 > lengths[1] > lengths[2] > 0.0
    # of "red xyzzy" the word "red" is known; "xyzzy" and the pair count as n-grams of one text
    idf = 1.0 + np.log(4.0 / np.array([3.0, 2.0, 2.0]))
    words = counting.transform(["red xyzzy"])[:, counting.n_character_columns :]
    assert sp.linalg.norm(words) == pytest.approx(np.sqrt(0.5 * idf[0] ** 2 / (idf**2).sum()), abs=1e-6)


def test_names_tell_characters_from_words():
    texts = ["fell off a ladder", "he fell at home"]
    features = NgramFeatures(char_ngrams=(2, 5)).fit(texts)
    features.keep_names(texts, np.arange(features.n_features))
    names = features.column_names(range(features.n_features))
    assert {"ladder", "fell off", "ladd…", "…dder", "…dde…", "[at]", "[a]"} <= set(names)
    assert len(set(names)) == len(names) == features.n_features
    found = features.occurrences("Fell at")
    assert sorted(set(features.column_names(found.columns))) == sorted(set(found.names))
    n = features.n_character_columns
    assert all("…" in name or name[0] == "[" for name in names[:n])


def test_all_columns_have_names_for_scikit_learn():
    features = NgramFeatures(char_ngrams=(0, 0)).fit(["fell off", "fell"])
    features.keep_names(["fell off", "fell"], np.arange(features.n_features))
    names = features.get_feature_names_out()
    assert sorted(names) == ["fell", "fell off", "off"]
    assert names.tolist() == features.column_names(range(3))
    X = features.transform(["off fell"])
    assert set(names[X.indices]) == {"fell", "off"}
    empty = NgramFeatures(char_ngrams=(0, 0)).fit(["..."])
    assert len(empty.get_feature_names_out()) == empty.n_features == 1


def test_names_keep_to_their_bytes():
    texts = sentences(100)
    features = NgramFeatures(max_name_bytes=200).fit(texts)
    features.keep_names(texts, np.arange(features.n_features)[::-1])
    names = features.column_names(range(features.n_features))
    named = [name for name in names if not name.startswith("#")]
    assert 0 < sum(len(name.encode()) for name in named) <= 200
    assert not names[-1].startswith("#")
    assert names[0] == f"#{features.buckets_[0]}"
    with pytest.raises(ValueError, match="kept once"):
        features.keep_names(texts, np.arange(3))


def test_texts_that_say_nothing_are_zero():
    things = ("ladder", "shoulder", "elbow", "printer", "keyboard", "finger", "stairs", "window")
    texts = [f"{verb} {thing}" for verb in ("broken", "cracked", "fell", "painful") for thing in things]
    features = NgramFeatures().fit(texts)
    unknown = ["", " \n", "zzzzqqq", "qwxzj vvkkqq", "!!!", "\N{DOG FACE}", "東京"]
    assert features.transform(unknown).nnz == 0
    known = ["the ladder zzzzqqq", "ladders", "brokn shouldr"]
    assert (features.transform(known).getnnz(axis=1) > 0).all()


def test_words_keep_the_signs_on_their_letters():
    spelled = {
        "नमस्ते दुनिया": ["नमस्ते", "दुनिया"],
        "ที่บ้าน": ["ที่", "บ้", "า", "น"],
        "日本ではテレビ": ["日", "本", "で", "は", "テレビ"],
        "naïve e\u0301te\u0301 می\u200cخواهم 네 집": [
            "naïve",
            "e\u0301te\u0301",
            "می\u200cخواهم",
            "네",
            "집",
        ],
    }
    for text, words in spelled.items():
        found = NgramFeatures(char_ngrams=(0, 0), word_ngrams=1).fit([text]).occurrences(text)
        assert found.names == words


@pytest.mark.identity
def test_words_of_older_models_end_at_signs_as_before():
    options = {"char_ngrams": (0, 0), "word_ngrams": 1, "unicode_words": False}
    features = NgramFeatures(**options).fit(["ที่บ้าน दुनिया 日本で"])
    assert features.occurrences("ที่บ้าน दुनिया 日本で").names == ["ท", "บ", "าน", "द", "न", "य", "日本で"]
    state = features.state()
    options = {name: value for name, value in state.header["options"].items() if name != "unicode_words"}
    restored = NgramFeatures.from_state(State({**state.header, "options": options}, state.arrays))
    assert restored.options == features.options
    assert not clone(restored).unicode_words


def test_unspaced_writing_is_not_taken_for_unknown():
    rng = np.random.default_rng(0)
    signs = [chr(0x4E00 + i) for i in range(300)]
    pairs = ["".join(rng.choice(signs, 2)) for _ in range(150)]
    texts = ["".join(rng.choice(pairs, 4)) for _ in range(400)]
    features = NgramFeatures().fit(texts[:300])
    assert features.least_known_ < 0.45
    assert (features.transform(texts[300:]).getnnz(axis=1) > 0).mean() > 0.95


def test_odd_texts():
    features = NgramFeatures().fit(sentences(50) + TEXTS)
    X = features.transform([*TEXTS, "w1b " * 30_000, "a" * 100_000])
    assert np.isfinite(X.data).all()
    assert X[3].nnz == 0  # the empty text
    assert features.transform([]).shape == (0, features.n_features)
    for texts in ([""], ["", " "], ["one"], ["\U0001f600"]):
        assert NgramFeatures().fit_transform(texts).shape[0] == len(texts)
    assert NgramFeatures().fit([""]).n_features == 1


def test_progress_is_reported():
    seen = []
    NgramFeatures().fit(["y"] * 200_000, n_jobs=1, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) > 1
    assert seen[-1] == (200_000, 200_000)


@pytest.mark.error
def test_bad_arguments_rejects():
    with pytest.raises(TypeError, match=r"texts\[1\] is nan of type float"):
        NgramFeatures().fit(["a", float("nan")])
    with pytest.raises(TypeError, match="texts is one string"):
        NgramFeatures().fit("abc")
    with pytest.raises(ValueError, match="texts is empty"):
        NgramFeatures().fit([])
    for call in (NgramFeatures().state, lambda: NgramFeatures().transform(["a"])):
        with pytest.raises(ValueError, match="not fitted"):
            call()
    for options, match in (
        ({"char_ngrams": (0, 0), "word_ngrams": 0}, "both off"),
        ({"char_ngrams": (5, 2)}, "char_ngrams is"),
        ({"char_ngrams": (0, 2)}, "char_ngrams is"),
        ({"word_ngrams": 9}, "word_ngrams is 9"),
        ({"hash_bits": 30}, "hash_bits is 30"),
        ({"group_weights": (1.0, -1.0)}, "two positive numbers"),
        ({"group_weights": (1.0, 0.0)}, "two positive numbers"),
        ({"least_known": 2.0}, "least_known is"),
        ({"max_name_bytes": -1}, "max_name_bytes is"),
    ):
        with pytest.raises(ValueError, match=match):
            NgramOptions(**options)
        with pytest.raises(ValueError, match=match):
            NgramFeatures(**options).fit(["a"])


@pytest.mark.error
def test_bad_state_rejects():
    state = NgramFeatures().fit(sentences(20)).state()
    for header, arrays, match in (
        ({"format_version": 9}, {}, "version 9"),
        ({"kind": "text_features"}, {}, "kind 'text_features'"),
        ({}, {"text_counts": state.arrays["text_counts"][1:]}, "do not fit"),
        ({}, {"buckets": state.arrays["buckets"][1:]}, "do not fit"),
        ({}, {"filter": np.zeros(3, np.uint8)}, "power of two"),
        ({}, {"name_lengths": np.ones(3, np.uint8)}, "do not fit together"),
    ):
        with pytest.raises(ValueError, match=match):
            NgramFeatures.from_state(State({**state.header, **header}, {**state.arrays, **arrays}))


def test_ngram_features_are_a_scikit_learn_transformer():
    features = NgramFeatures(char_ngrams=(3, 4), hash_bits=12).fit(TEXTS)
    copy = clone(features)
    assert copy.get_params() == features.get_params()
    with pytest.raises(NotFittedError, match="not fitted"):
        copy.transform(TEXTS)
    changed = copy.set_params(hash_bits=14, word_ngrams=1).fit_transform(TEXTS, n_jobs=1)
    expected = NgramFeatures(char_ngrams=(3, 4), hash_bits=14, word_ngrams=1).fit(TEXTS).transform(TEXTS)
    assert (changed != expected).nnz == 0
    steps = make_pipeline(NgramFeatures(hash_bits=12), MaxAbsScaler())
    steps.set_params(ngramfeatures__char_ngrams=(3, 4))
    scaled = steps.fit_transform(TEXTS)
    assert scaled.shape == (len(TEXTS), features.n_features)
    assert scaled.max() == pytest.approx(1.0)


def test_parameters_set_after_fit_wait_for_the_next_fit():
    features = NgramFeatures(hash_bits=12).fit(TEXTS)
    before = features.transform(TEXTS)
    features.set_params(hash_bits=16, char_ngrams=(3, 3))
    assert (features.transform(TEXTS) != before).nnz == 0
    again = NgramFeatures.from_state(features.state())
    assert (again.transform(TEXTS) != before).nnz == 0
    assert features.fit(TEXTS).transform(TEXTS).shape[1] != before.shape[1]


def test_character_ngrams_suit_the_texts():
    for texts, expected in (
        (["fell off a ladder", "bitten by a dog"], (4, 4)),
        (["left-pad", "@types/node"], (2, 5)),
        (["从梯子上摔下来", "被狗咬伤"], (2, 5)),
        ([""], (2, 5)),
    ):
        features = NgramFeatures().fit(texts)
        assert features.options.char_ngrams == expected
        restored = NgramFeatures.from_state(features.state())
        assert restored.options == features.options
        assert NgramFeatures(char_ngrams=(3, 3)).fit(texts).options.char_ngrams == (3, 3)
