"""Kernels of the sparse text features: places of n-grams, counts of texts, the filter, sorting."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.features.text import code_points
from extremax.kernels import ngram_hash
from extremax.kernels.ngram_hash import Found, Seen, Sizes, Weighing

pytestmark = pytest.mark.small

BITS = 10
SIZES = Sizes(2, 3, 2, 1, BITS)


def find_all(texts, sizes=SIZES):
    codes, kinds, text_ends = code_points(texts)
    found = Found(*(np.zeros(5000, kind) for kind in (np.uint64, np.int32, np.int32, np.uint8)))
    ends = np.zeros(len(texts), np.int64)
    ngram_hash.find_ngrams(codes, kinds, text_ends, sizes, np.zeros((2, 8), np.uint64), found, ends)
    return found, ends


def find(text, sizes=SIZES):
    found, (n,) = find_all([text], sizes)
    return Found(*(array[:n] for array in found))


def buckets_of(found):
    groups = np.minimum(found.orders, 2).astype(np.int64)
    return (groups << BITS) + (found.keys >> np.uint64(64 - BITS)).astype(np.int64)


def group(texts):
    """N-grams and their ends; the first n-gram of each bucket, buckets, counts and the ends of these."""
    found, ends = find_all(texts)
    firsts, buckets, counts = (np.full(5000, -1, kind) for kind in (np.int32, np.int32, np.float32))
    row_ends, work = np.zeros(len(texts), np.int64), np.full(2 * 5000 + ngram_hash.N_DIGITS, -1)
    ngram_hash.group_ngrams(found.keys, found.orders, ends, BITS, work, firsts, buckets, counts, row_ends)
    return found, ends, firsts, buckets, counts, row_ends


def empty_seen():
    return Seen(np.zeros((3 << BITS, 4), np.int32), np.zeros(1 << 12, np.uint8))


def learn(texts, first_text=0, seen=None):
    seen, says = empty_seen() if seen is None else seen, np.zeros(len(texts), np.bool_)
    found, ends, firsts, buckets, _, row_ends = group(texts)
    ngram_hash.learn_texts(found, ends, first_text, firsts, buckets, row_ends, seen, says)
    return seen, says


def known(texts, seen, least_known):
    found, ends = find_all(texts)
    says = np.zeros(len(texts), np.bool_)
    ngram_hash.find_known(found.keys, found.orders, ends, seen.filter, least_known, says)
    return says.tolist()


def weigh(texts, seen, weights=(1.0, 1.0), unknown=0.0):
    used = np.flatnonzero(seen.n_texts)
    places = np.full(3 << BITS, ngram_hash.NO_TOKENS, np.int32)
    places[: 1 << BITS] = ngram_hash.NO_CHARACTERS
    places[used] = np.arange(len(used))
    n_characters = int((used < 1 << BITS).sum())
    weighing = Weighing(places, np.ones(len(used), np.float32), n_characters, np.array(weights, np.float32))
    *_, buckets, values, row_ends = group(texts)
    columns = places[buckets]
    ngram_hash.weigh_rows(weighing, unknown * np.arange(5000.0), row_ends, columns, values)
    starts = np.concatenate([[0], row_ends[:-1]])
    return [
        (columns[a:b].copy(), values[a:b].copy()) for a, b in zip(starts, row_ends, strict=True)
    ], n_characters


def test_places_of_ngrams():
    found = find("to b,c")
    text = " to b,c "
    pieces = [text[s + 1 : s + 1 + n] for s, n in zip(found.starts, found.lengths, strict=True)]
    characters = [" t", " to", "to", "to ", "o ", " b", " b,", "b,", "b,c", ",c", ",c ", "c "]
    tokens = ["to", "b", "to b", "b,", "c", ",c"]
    assert pieces == [*characters, *tokens]
    assert found.orders.tolist() == [0] * 12 + [1, 1, 2, 2, 1, 2]
    assert ((buckets_of(found) >= 1 << BITS) == (found.orders > 0)).all()
    # the same n-gram has the same hash wherever it is; the word "to" is not the characters "to"
    again = find("b to")
    assert found.keys[12] == again.keys[list(again.orders).index(1) + 1]
    assert found.keys[12] != found.keys[2]


def test_marks_are_no_tokens_if_so_chosen():
    found = find("b, c", SIZES._replace(marks=0))
    assert found.orders[found.orders > 0].tolist() == [1, 1, 2]
    assert found.lengths[-1] == 4  # "b, c" is a pair


def test_signs_belong_to_the_character_before_them():
    found = find("कि ที ☺\ufe0f \u0301", SIZES._replace(shortest=0, longest=0))
    pieces = list(zip(found.starts.tolist(), found.lengths.tolist(), found.orders.tolist(), strict=True))
    # words of two characters, then marks of two and one, which count in pairs only
    assert pieces == [(0, 2, 1), (3, 2, 1), (0, 5, 2), (3, 5, 2), (6, 4, 2)]
    assert find("\u0301", SIZES._replace(shortest=0, longest=0)).keys.size == 0
    assert find("\u0301 a", SIZES._replace(shortest=0, longest=0, marks=0)).orders.tolist() == [1]


def test_each_text_counts_once_and_the_first_is_remembered():
    texts = ["ab ab", "cd", "ab"]
    seen, says = learn(texts)
    buckets = buckets_of(find("ab"))
    assert says.all()
    assert (seen.n_texts[buckets] == 2).all()
    assert (seen.first[buckets, 0] == 0).all()
    np.testing.assert_array_equal(seen.first[buckets, 1:], np.stack(find("ab")[1:3], axis=1))
    # blocks in any order give the same
    other, _ = learn(texts[:2], 0, learn(texts[2:], 2)[0])
    for one, two in zip(seen, other, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_text_of_marks_alone_says_nothing_if_characters_are_off():
    seen, says = empty_seen(), np.ones(3, np.bool_)
    found, ends = find_all(["a", "-- --", ""], SIZES._replace(shortest=0, longest=0))
    nothing = np.zeros(0, np.int32)
    ngram_hash.learn_texts(found, ends, 0, nothing, nothing, np.zeros(3, np.int64), seen, says)
    assert says.tolist() == [True, False, False]


def test_buckets_and_counts_of_each_text():
    texts = ["ab ab", "", "cd ab c"]
    found, ends, firsts, buckets, counts, row_ends = group(texts)
    start, begin = 0, 0
    for end, stop in zip(row_ends, ends, strict=True):
        expected, first, n = np.unique(buckets_of(found)[begin:stop], return_index=True, return_counts=True)
        np.testing.assert_array_equal(buckets[start:end], expected)
        np.testing.assert_array_equal(firsts[start:end], begin + first)
        np.testing.assert_array_equal(counts[start:end], n)
        start, begin = end, stop
    assert counts[0] == 2


def test_rows_are_sorted_and_of_unit_length():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefgh "), n)) for n in (3, 40, 200)]
    rows, n_characters = weigh([*texts, ""], learn(texts)[0], weights=(3.0, 4.0))
    for columns, values in rows[:3]:
        assert (np.diff(columns) > 0).all()
        parts = [values[columns < n_characters], values[columns >= n_characters]]
        # float32
        assert [np.sqrt((part**2).sum()) for part in parts] == pytest.approx([0.6, 0.8], abs=1e-5)
    assert len(rows[3][0]) == 0


def test_repeated_ngrams_have_a_logarithm():
    (columns, values), (_, once) = weigh(["ab ab ab", "ab cd"], learn(["ab", "cd"])[0])[0]
    (word,) = columns[-1:]
    assert len(columns) > 3
    assert word == columns.max()
    assert once.min() > 0
    assert values[-1] == pytest.approx(np.sqrt(0.5), abs=1e-6)  # the only word: all of its group


def test_ngrams_without_a_column_are_dropped_and_may_count_in_the_length():
    seen, _ = learn(["ab"])
    ((columns, plain),), n_characters = weigh(["ab xy"], seen)
    ((again, shorter),), _ = weigh(["ab xy"], seen, unknown=1.0)
    np.testing.assert_array_equal(columns, np.arange(6))  # of "ab" alone
    np.testing.assert_array_equal(columns, again)
    assert np.sqrt((plain**2).sum()) == pytest.approx(1.0, abs=1e-6)
    # five of ten n-grams of characters are known, and one of three of words
    lengths = [(part**2).sum() for part in np.split(shorter, [n_characters])]
    assert lengths == pytest.approx([0.5 * 5 / 10, 0.5 / 3], abs=1e-6)


def test_filter_forgets_nothing_and_tells_strangers():
    seen, _ = learn(["the cat sat", "on a mat"])
    assert all(known(["cat", "the", "a mat and more words"], seen, 1.0))
    assert not any(known(["zzz", "", "qqq xxx"], seen, 0.5))
    assert known(["atc"], seen, 0.1) == [True]
    assert known(["atc"], seen, 1.0) == [False]
