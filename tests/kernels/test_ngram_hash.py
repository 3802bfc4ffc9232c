"""Kernels of the sparse text features: places of n-grams, counts of texts, the filter, sorting."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.features.text import code_points
from extremax.kernels import ngram_hash
from extremax.kernels.ngram_hash import Found, Seen, Sizes, Sorting, Weighing

pytestmark = pytest.mark.small

BITS = 10
SIZES = Sizes(2, 3, 2, 1, BITS)


def find_all(texts, sizes=SIZES):
    codes, kinds, text_ends = code_points(texts)
    found = Found(*(np.zeros(5000, kind) for kind in (np.uint64, np.int32, np.int32, np.int32, np.uint8)))
    ends = np.zeros(len(texts), np.int64)
    ngram_hash.find_ngrams(codes, kinds, text_ends, sizes, np.zeros((2, 8), np.uint64), found, ends)
    return found, ends


def find(text, sizes=SIZES):
    found, (n,) = find_all([text], sizes)
    return Found(*(array[:n] for array in found))


def sorting():
    return Sorting(np.zeros(5000, np.int32), np.zeros(257, np.int32))


def empty_seen():
    return Seen(np.zeros((3 << BITS, 5), np.int32), np.zeros(1 << 12, np.uint8))


def count(texts, first_text=0, seen=None):
    seen = empty_seen() if seen is None else seen
    kept = np.zeros(5000, np.int32), np.zeros(5000, np.float32), np.zeros(len(texts), np.int64)
    ngram_hash.count_texts(*find_all(texts), first_text, seen, sorting(), False, *kept)
    assert not seen.table[:, 1].any()
    return seen


def weigh(texts, seen, least_known=0.0, weights=(1.0, 1.0), unknown=0.0):
    buckets = np.flatnonzero(seen.n_texts)
    places = np.full(3 << BITS, -1, np.int32)
    places[buckets] = np.arange(len(buckets))
    idf = np.ones(len(buckets), np.float32)
    n_characters = int((buckets < 1 << BITS).sum())
    weighing = Weighing(
        places, idf, n_characters, np.array(weights, np.float32), seen.filter, least_known, unknown
    )
    columns, values = np.zeros(5000, np.int32), np.zeros(5000, np.float32)
    counts, row_ends = np.zeros(len(buckets), np.int32), np.zeros(len(texts), np.int64)
    squares = np.full((len(texts), 2), np.nan)
    ngram_hash.weigh_texts(*find_all(texts), weighing, counts, sorting(), columns, values, row_ends, squares)
    assert not counts.any()
    ngram_hash.weigh_counts(row_ends, weighing, squares, columns, values)
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
    assert ((found.buckets >= 1 << BITS) == (found.orders > 0)).all()
    # the same n-gram has the same hash wherever it is; the word "to" is not the characters "to"
    again = find("b to")
    assert found.keys[12] == again.keys[list(again.orders).index(1) + 1]
    assert found.keys[12] != found.keys[2]


def test_marks_are_no_tokens_if_so_chosen():
    found = find("b, c", SIZES._replace(marks=0))
    assert found.orders[found.orders > 0].tolist() == [1, 1, 2]
    assert found.lengths[-1] == 4  # "b, c" is a pair


def test_each_text_counts_once_and_the_first_is_remembered():
    texts = ["ab ab", "cd", "ab"]
    seen = count(texts)
    buckets = find("ab").buckets
    assert (seen.n_texts[buckets] == 2).all()
    assert (seen.first[buckets, 0] == 0).all()
    # blocks in any order give the same
    other = count(texts[:2], 0, count(texts[2:], 2))
    np.testing.assert_array_equal(seen.n_texts, other.n_texts)
    used = seen.n_texts > 0
    np.testing.assert_array_equal(seen.first[used], other.first[used])
    np.testing.assert_array_equal(seen.filter, other.filter)


def test_buckets_and_counts_of_each_text_are_kept():
    texts = ["ab ab", "", "cd ab c"]
    buckets, counts = np.full(200, -1, np.int32), np.full(200, np.nan, np.float32)
    ends = np.zeros(3, np.int64)
    ngram_hash.count_texts(*find_all(texts), 0, empty_seen(), sorting(), True, buckets, counts, ends)
    start = 0
    for text, end in zip(texts, ends, strict=True):
        expected, n = np.unique(find(text).buckets, return_counts=True)
        np.testing.assert_array_equal(buckets[start:end], expected)
        np.testing.assert_array_equal(counts[start:end], n)
        start = end
    assert counts[0] == 2


def test_rows_are_sorted_and_of_unit_length():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefgh "), n)) for n in (3, 40, 200)]
    rows, n_characters = weigh([*texts, ""], count(texts), weights=(3.0, 4.0))
    for columns, values in rows[:3]:
        assert (np.diff(columns) > 0).all()
        parts = [values[columns < n_characters], values[columns >= n_characters]]
        # float32
        assert [np.sqrt((part**2).sum()) for part in parts] == pytest.approx([0.6, 0.8], abs=1e-5)
    assert len(rows[3][0]) == 0


def test_repeated_ngrams_have_a_logarithm():
    (columns, values), (_, once) = weigh(["ab ab ab", "ab cd"], count(["ab", "cd"]))[0]
    (word,) = columns[-1:]
    assert len(columns) > 3
    assert word == columns.max()
    assert once.min() > 0
    assert values[-1] == pytest.approx(np.sqrt(0.5), abs=1e-6)  # the only word: all of its group


def test_filter_forgets_nothing_and_tells_strangers():
    texts = ["the cat sat", "on a mat"]
    seen = count(texts)
    known = weigh(["cat", "the", "a mat and more words"], seen, least_known=1.0)[0]
    assert all(len(columns) for columns, _ in known)
    strangers = weigh(["zzz", "", "qqq xxx"], seen, least_known=0.5)[0]
    assert all(len(columns) == 0 for columns, _ in strangers)
    parts = weigh(["atc"], seen, least_known=0.1)[0]
    assert len(parts[0][0]) > 0
