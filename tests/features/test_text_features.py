"""Text features: scikit-learn's analyzers and weights are the reference; saving; odd texts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from extremax.data import TextFeatures
from extremax.features.text import TextOptions, _hash, text_blocks
from extremax.kernels.rng import mix64

TEXTS = [
    "Fell off a ladder",
    "  Bitten by a DOG, bitten twice;  at home\n",
    "ünïcode ΣΑΣ straße İstanbul \U0001f600\U0001f600 x",
    "",
    "a",
    "under_score 12.5 mg/ml -- co-op don't",
    "\u00a0no\u2003break\u3000spaces\ttabs",
    "東京 タワー 3丁目",
    "\ud800 lone surrogate \x00 nul",
]


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array([f"w{i}{'abcdefgh'[i % 8]}" for i in range(400)])
    topics = [rng.choice(400, 12, replace=False) for _ in range(20)]
    return [" ".join(words[rng.choice(topics[rng.integers(20)], 6)]) for _ in range(n)]


def slow_column(parts, seed, bits):
    key = np.uint64(seed)
    for part in parts:
        key = mix64(key ^ np.uint64(part))
    return key, int(key) >> (64 - bits)


def slow_counts(text, options):
    """Counts by column, from scikit-learn's own n-grams."""
    character_seed, word_seed = 0x5851F42D4C957F2D, 0x14057B7EF767814F
    counts = {}
    low, high = options.char_ngrams
    if high:
        for ngram in CountVectorizer(analyzer="char_wb", ngram_range=(low, high)).build_analyzer()(text):
            column = slow_column(map(ord, ngram), character_seed, options.hash_bits)[1]
            counts[column] = counts.get(column, 0) + 1
    if options.word_ngrams:
        analyzer = CountVectorizer(
            ngram_range=(1, options.word_ngrams), token_pattern=r"(?u)\w+"
        ).build_analyzer()
        for ngram in analyzer(text):
            keys = [slow_column(map(ord, word), word_seed, options.hash_bits) for word in ngram.split(" ")]
            column = (
                keys[0][1]
                if len(keys) == 1
                else slow_column([k for k, _ in keys], word_seed, options.hash_bits)[1]
            )
            column += 1 << options.hash_bits
            counts[column] = counts.get(column, 0) + 1
    return counts


@pytest.mark.reference
@pytest.mark.small
@pytest.mark.parametrize("sizes", [((2, 5), 2), ((1, 1), 3), ((4, 6), 0), ((0, 0), 1)])
def test_ngrams_match_reference(sizes):
    options = TextOptions(char_ngrams=sizes[0], word_ngrams=sizes[1], hash_bits=14)
    columns, counts, ends = _hash(TEXTS, options)
    start = 0
    for text, end in zip(TEXTS, ends.tolist(), strict=True):
        got = dict(zip(columns[start:end].tolist(), counts[start:end].tolist(), strict=True))
        assert got == slow_counts(text, options)
        start = end


@pytest.mark.reference
def test_weights_match_reference():
    texts = sentences(60)
    features = TextFeatures(n_components=5, n_random=0, hash_bits=14).fit(texts)
    columns, counts, ends = _hash(texts, features.options)
    raw = sp.csr_matrix((counts, columns, np.concatenate([[0], ends])), shape=(60, 2 << 14))
    have = np.bincount(columns, minlength=2 << 14)
    np.testing.assert_array_equal(features.columns_, np.flatnonzero(have >= 2))
    raw = raw[:, features.columns_].astype(np.float64)
    plain = TfidfTransformer(sublinear_tf=True, norm=None).fit_transform(raw).toarray()
    words = features.columns_ >= 1 << 14
    for part in (words, ~words):
        plain[:, part] /= np.linalg.norm(plain[:, part], axis=1, keepdims=True)
    weighted = features.weigh(texts)
    assert weighted.has_sorted_indices
    np.testing.assert_allclose(weighted.toarray(), plain, atol=1e-6)  # float32 weights of at most 1
    Z = plain @ features.basis_
    expected = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    # float32 sums of some 100 terms
    np.testing.assert_allclose(features.transform(texts), expected, atol=1e-5)


def test_most_frequent_columns_are_kept():
    texts = sentences(200)
    everything = TextFeatures(n_components=4, n_random=0, min_texts=1).fit(texts)
    some = TextFeatures(n_components=4, n_random=0, min_texts=1, max_columns=50).fit(texts)
    assert len(some.columns_) == 50
    assert some.idf_.max() <= np.sort(everything.idf_)[50]
    assert (np.diff(some.columns_) > 0).all()


@pytest.mark.invariance
def test_same_text_same_features_invariant():
    texts = sentences(9000)
    a = TextFeatures(n_components=8, n_random=0).fit(texts, n_jobs=1)
    b = TextFeatures(n_components=8, n_random=0).fit(texts, n_jobs=3)
    np.testing.assert_array_equal(a.basis_, b.basis_)
    Z = a.transform(texts, n_jobs=1)
    np.testing.assert_array_equal(Z, b.transform(texts, n_jobs=3))
    np.testing.assert_array_equal(a.transform([texts[7]])[0], Z[7])
    np.testing.assert_array_equal(a.fit_transform(texts, n_jobs=2), Z)


@pytest.mark.invariance
def test_save_and_load_invariant():
    features = TextFeatures(n_components=4, n_random=0, char_ngrams=(3, 4)).fit(sentences(50))
    header, arrays = features.to_arrays()
    copies = {name: array.copy() for name, array in arrays.items()}
    again = TextFeatures.from_arrays(json.loads(json.dumps(header)), copies)
    for other in (again, TextFeatures.from_state(features.state())):
        assert other.options == features.options
        np.testing.assert_array_equal(other.transform(TEXTS), features.transform(TEXTS))


def test_topics_are_told_apart():
    texts = [f"{'cat dog bird' if i % 2 else 'iron steel tin'} {i % 7}" for i in range(100)]
    Z = TextFeatures(n_components=3, n_random=0).fit_transform(texts)
    inside, across = Z[0::2] @ Z[0::2].T, Z[0::2] @ Z[1::2].T
    assert inside.mean() > across.mean() + 0.5


def test_odd_texts():
    features = TextFeatures(n_components=4, n_random=0).fit(sentences(50) + TEXTS)
    Z = features.transform([*TEXTS, "completely novel qqq", "w1b " * 300_000])
    assert np.isfinite(Z).all()
    np.testing.assert_array_equal(Z[3], 0.0)  # the empty text
    np.testing.assert_allclose(np.linalg.norm(Z[-1]), 1.0, rtol=1e-5)  # float32 division
    assert features.transform([]).shape == (0, 4)
    for texts in ([""], ["", " "], ["one"], ["\U0001f600"]):
        assert np.isfinite(TextFeatures().fit_transform(texts)).all()


def test_subsample_of_texts_for_the_svd():
    texts = sentences(3000)
    some = TextFeatures(n_components=4, n_random=0, max_svd_texts=500).fit(texts)
    full = TextFeatures(n_components=4, n_random=0).fit(texts)
    np.testing.assert_array_equal(some.idf_, full.idf_)
    assert not np.array_equal(some.basis_, full.basis_)


def test_progress_and_blocks():
    texts = ["x" * 400_000] * 5 + ["y"] * 10_000
    blocks = text_blocks(texts)
    assert [start for start, _ in blocks[1:]] == [stop for _, stop in blocks[:-1]]
    assert blocks[-1][1] == len(texts)
    seen = []
    TextFeatures(n_components=2, n_random=0).fit(
        texts[5:], n_jobs=1, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (10_000, 10_000)


@pytest.mark.error
def test_bad_arguments_rejects():
    with pytest.raises(TypeError, match=r"texts\[1\] is nan of type float"):
        TextFeatures().fit(["a", float("nan")])
    with pytest.raises(TypeError, match="texts is one string"):
        TextFeatures().fit("abc")
    with pytest.raises(ValueError, match="texts is empty"):
        TextFeatures().fit([])
    with pytest.raises(ValueError, match="not fitted"):
        TextFeatures().transform(["a"])
    with pytest.raises(ValueError, match="n_components is 0"):
        TextFeatures(n_components=0, n_random=0).fit(TEXTS)
    with pytest.raises(ValueError, match="both off"):
        TextFeatures(char_ngrams=(0, 0), word_ngrams=0).fit(TEXTS)
    with pytest.raises(ValueError, match="char_ngrams is"):
        TextFeatures(char_ngrams=(5, 2)).fit(TEXTS)
    header, arrays = TextFeatures(n_components=2, n_random=0).fit(sentences(20)).to_arrays()
    with pytest.raises(ValueError, match="version 9"):
        TextFeatures.from_arrays({**header, "format_version": 9}, arrays)
    with pytest.raises(ValueError, match="do not fit together"):
        TextFeatures.from_arrays(header, {**arrays, "idf": arrays["idf"][1:]})
    with pytest.raises(ValueError, match="columns go from"):
        TextFeatures.from_arrays(header, {**arrays, "columns": arrays["columns"] + (1 << 19)})


def test_random_directions_tell_rare_words_apart() -> None:
    common = [
        f"{a} {b}"
        for a in ("red", "green", "blue", "grey")
        for b in ("house", "horse", "ship", "tree", "road")
    ] * 20
    texts = [*common, "quokka", "quokka", "narwhal", "narwhal"]
    rare = ["quokka", "narwhal"]
    options = {"n_components": 4, "char_ngrams": (0, 0)}
    lost = TextFeatures(**options, n_random=0).fit(texts).transform(rare)
    kept = TextFeatures(**options, n_random=64).fit(texts)
    assert kept.n_features == 68
    told = kept.transform(rare)
    np.testing.assert_allclose(np.linalg.norm(told, axis=1), 1.0, atol=1e-5)  # float32
    # orthogonal texts stay nearly so: the deviation is about 1 / sqrt(64)
    assert abs(told[0] @ told[1]) < 0.5
    assert abs(told[0] @ told[1]) < abs(lost[0] @ lost[1]) or np.abs(lost).max() < 1e-3
    # Orthogonal to the singular vectors: the first features are those without random ones, up to length.
    basis = kept.basis_
    np.testing.assert_allclose(basis[:, :4].T @ basis[:, 4:], 0.0, atol=1e-5)  # float32


def test_words_of_one_text_are_kept() -> None:
    texts = [*["red house", "green ship", "blue tree"] * 20, "a ladder fell", "a narwhal swam"]
    options = {"n_components": 2, "char_ngrams": (3, 5)}
    kept = TextFeatures(**options, n_random=64).fit(texts)
    words, _, _ = _hash(["ladder", "narwhal"], TextOptions(char_ngrams=(0, 0), word_ngrams=1))
    assert np.isin(words, kept.columns_).all()
    pair = np.setdiff1d(
        _hash(["a ladder"], TextOptions(char_ngrams=(0, 0)))[0], _hash(["a", "ladder"], TextOptions())[0]
    )
    assert len(pair) == 1
    assert not np.isin(pair, kept.columns_).any()  # a pair of one text is left out, as are its n-grams
    told = kept.transform(["fell off a ladder", "a ladder fell", "a narwhal swam"])
    assert told[0] @ told[1] > told[0] @ told[2] + 0.3
    # Without random directions nothing could tell them apart, and the features are those of two texts and
    # more.
    for fewer in (
        TextFeatures(**options, n_random=0),
        TextFeatures(**options, n_random=64, min_word_texts=2),
    ):
        assert not np.isin(words, fewer.fit(texts).columns_).any()
    np.testing.assert_array_equal(
        TextFeatures(**options, n_random=0).fit(texts).basis_,
        TextFeatures(**options, n_random=0, min_word_texts=2).fit(texts).basis_,
    )
