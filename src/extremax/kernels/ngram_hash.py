"""Hash n-grams of texts to buckets, count them, and weigh them: the kernels of the sparse text features.

N-grams are those of scikit-learn's analyzers: characters within word boundaries (``char_wb``, each word
between two spaces), and runs of tokens.  A token is a run of letters, digits and underscores; optionally
every other character that is not a space is one, too, but only inside longer runs, never alone.  The code
points of an n-gram are hashed in sequence, so that the hash of an n-gram continues that of the shorter ones
at the same place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.compile import helper, inline, njit
from extremax.kernels.rng import mix64

OTHER, WORD, BLANK = 0, 1, 2  # kinds of characters
MOST_TOKENS = 8  # longest run of tokens
N_GROUPS = 3  # character n-grams, single words, runs of tokens: each has buckets of its own
_CHARACTER_SEED = np.uint64(0x5851F42D4C957F2D)
_TOKEN_SEED = np.uint64(0x14057B7EF767814F)
_SPACE = np.uint64(32)
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
_CHARACTER_PROBES, _WORD_PROBES = 2, 4  # bits of the filter per n-gram
_FEW = 16  # numbers that are sorted by insertion alone


class Sizes(NamedTuple):
    """Which n-grams there are.

    Attributes
    ----------
    shortest, longest : int
        Characters of an n-gram; no characters if `longest` is 0.
    tokens : int
        Longest run of tokens, at most `MOST_TOKENS`; no tokens if 0.
    marks : int
        1 if a single mark is a token inside runs.
    bits : int
        Binary logarithm of the number of buckets of each of the three groups.
    """

    shortest: Any
    longest: Any
    tokens: Any
    marks: Any
    bits: Any


class Found(NamedTuple):
    """N-grams of texts, text by text, characters before tokens, each in the order of the text.

    Attributes
    ----------
    keys : uint64
        Hashes.
    buckets : int32
        The upper bits of the hash, behind those of the groups before.
    starts, lengths : int32
        Place in the text; the space before its first word is at -1.
    orders : uint8
        Number of tokens; 0 for characters.
    """

    keys: Any
    buckets: Any
    starts: Any
    lengths: Any
    orders: Any


class Seen(NamedTuple):
    """What a pass over the training texts collects, by bucket.

    Attributes
    ----------
    table : int32 (3 * n_buckets, 5)
        Number of texts that have the bucket; its n-grams in the text at hand, zero between texts; the first
        text that has it, counted from 0, and start and length of the n-gram there.
    filter : uint8 (n_bits / 8,)
        Bloom filter of all character n-grams and single words.
    """

    table: Any
    filter: Any

    @property
    def n_texts(self) -> Any:
        """Number of texts that have each bucket."""
        return self.table[:, 0]

    @property
    def first(self) -> Any:
        """The first text of each bucket, and start and length of its n-gram there."""
        return self.table[:, 2:]


class Weighing(NamedTuple):
    """What a fitted transformer knows.

    Attributes
    ----------
    places : int32 (3 * n_buckets,)
        Column of each bucket; -1 for none.
    idf : float32 (n_columns,)
    n_character_columns : int
        The columns below are those of characters.
    weights : float32 (2,)
        Length of the part of characters and of the part of tokens.
    filter : uint8
        Bloom filter of the n-grams of the training texts.
    least_known : float
        Fraction of its character n-grams that a text without any known word must have.
    unknown_square : float
        What an n-gram without a column adds to the square of its group's length.
    """

    places: Any
    idf: Any
    n_character_columns: Any
    weights: Any
    filter: Any
    least_known: Any
    unknown_square: Any


class Sorting(NamedTuple):
    """Working memory of `_sort`, for up to n numbers."""

    numbers: Any  # int32 (n,)
    ends: Any  # int32 (a power of two + 1,)


@inline
def _probe(key, k, mask):
    """Return the k-th bit of a key in a filter of ``mask + 1`` bits, a power of two."""
    return np.int64(((key & _LOW) + np.uint64(k) * ((key >> _HALF) | _ONE)) & np.uint64(mask))


@inline
def _is_known(key, n_probes, bits):
    """Return 1 if the filter has a key, else 0."""
    mask, known = 8 * bits.size - 1, 1
    for k in range(n_probes):
        p = _probe(key, k, mask)
        known &= bits[p >> 3] >> (p & 7)
    return known


@inline
def _put(found, n, key, start, length, order, bits):
    """Store an n-gram at place n."""
    group = order if order < N_GROUPS - 1 else N_GROUPS - 1
    found.keys[n] = key
    found.buckets[n] = (group << bits) + np.int64(key >> np.uint64(64 - bits))
    found.starts[n] = start
    found.lengths[n] = length
    found.orders[n] = order


@njit
def find_ngrams(codes, kinds, text_ends, sizes, recent, found, ends):
    """Fill in the n-grams of texts and their buckets.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points of all texts in sequence, and their kinds.
    text_ends : int64 (n_texts,)
    sizes : Sizes
    recent : uint64 (2, MOST_TOKENS)
        Scratch: hashes and beginnings of the last tokens, by their number modulo `MOST_TOKENS`.
    found : Found
        Filled; long enough for all n-grams.
    ends : int64 (n_texts,)
        Filled with the end of each text's n-grams.
    """
    n, start = 0, 0
    for t in range(text_ends.size):
        stop = text_ends[t]
        p = start
        while p < stop and sizes.longest > 0:
            if kinds[p] == BLANK:
                p += 1
                continue
            begin = p
            while p < stop and kinds[p] != BLANK:
                p += 1
            length = p - begin + 2  # with a space at either end
            for offset in range(length):
                key = _CHARACTER_SEED
                j = offset
                while j < length and j < offset + sizes.longest:
                    code = _SPACE if j == 0 or j == length - 1 else np.uint64(codes[begin + j - 1])
                    key = mix64(key ^ code)
                    # A word shorter than the shortest n-gram counts once, as a whole.
                    if j - offset + 1 >= sizes.shortest or (offset == 0 and j == length - 1):
                        _put(found, n, key, begin - start + offset - 1, j - offset + 1, 0, sizes.bits)
                        n += 1
                    j += 1
        n_tokens = 0
        p = start
        while p < stop and sizes.tokens > 0:
            kind = kinds[p]
            if kind == BLANK or (kind == OTHER and sizes.marks == 0):
                p += 1
                continue
            at = n_tokens % MOST_TOKENS
            recent[1, at] = p - start
            key = mix64(_TOKEN_SEED ^ np.uint64(codes[p]))
            p += 1
            while kind == WORD and p < stop and kinds[p] == WORD:
                key = mix64(key ^ np.uint64(codes[p]))
                p += 1
            recent[0, at] = key
            n_tokens += 1
            size = 1 if kind == WORD else 2
            while size <= sizes.tokens and size <= n_tokens:
                if size > 1:
                    key = _TOKEN_SEED
                    for k in range(n_tokens - size, n_tokens):
                        key = mix64(key ^ recent[0, k % MOST_TOKENS])
                begin = np.int64(recent[1, (n_tokens - size) % MOST_TOKENS])
                _put(found, n, key, begin, p - start - begin, size, sizes.bits)
                n += 1
                size += 1
        ends[t] = n
        start = stop


@helper
def _sort(numbers, first, last, limit, sorting):
    """Sort distinct numbers below `limit`: they are hashes, so one pass over equal ranges does nearly all."""
    room, ends, n = sorting.numbers, sorting.ends, last - first
    n_ranges = ends.size - 1
    while n_ranges > 2 * n:
        n_ranges >>= 1
    if n < _FEW:
        for i in range(n):
            room[i] = numbers[first + i]
    else:
        for r in range(n_ranges + 1):
            ends[r] = 0
        factor = np.float64(n_ranges) / np.float64(limit)
        for i in range(first, last):
            ends[np.int64(numbers[i] * factor) + 1] += 1
        for r in range(n_ranges):
            ends[r + 1] += ends[r]
        for i in range(first, last):
            r = np.int64(numbers[i] * factor)
            room[ends[r]] = numbers[i]
            ends[r] += 1
    for i in range(n):
        number = room[i]
        j = first + i
        while j > first and numbers[j - 1] > number:
            numbers[j] = numbers[j - 1]
            j -= 1
        numbers[j] = number


@njit
def count_texts(found, text_ends, first_text, seen, sorting, keeps, buckets, counts, row_ends):
    """Count the texts that have each bucket, and remember where it came first.

    Parameters
    ----------
    found : Found
        N-grams of texts.
    text_ends : int64 (n_texts,)
        End of the n-grams of each text.
    first_text : int
        Number of the first of these texts.
    seen : Seen
        Changed.
    keeps : bool
        Whether to fill buckets and counts of every text; otherwise they are scratch for one text.
    buckets, counts : int32, float32
        Filled with the buckets of each text, ascending, and its n-grams in each.
    row_ends : int64 (n_texts,)
        Filled with the end of each text's buckets.
    """
    table, bits = seen.table, seen.filter
    mask = 8 * bits.size - 1
    start, end = 0, 0
    for t in range(text_ends.size):
        number, last, has_part = first_text + t, end, False
        for i in range(start, text_ends[t]):
            key, bucket, order = found.keys[i], found.buckets[i], found.orders[i]
            if table[bucket, 1] == 0:
                if table[bucket, 0] == 0 or number < table[bucket, 2]:
                    table[bucket, 2] = number
                    table[bucket, 3] = found.starts[i]
                    table[bucket, 4] = found.lengths[i]
                table[bucket, 0] += 1
                buckets[last] = bucket
                last += 1
            table[bucket, 1] += 1
            if order <= 1:
                has_part = True
                for k in range(_CHARACTER_PROBES if order == 0 else _WORD_PROBES):
                    p = _probe(key, k, mask)
                    bits[p >> 3] |= np.uint8(1 << (p & 7))
        keeps_text = keeps and has_part  # a text of runs alone says nothing, see `weigh_texts`
        if keeps_text:
            _sort(buckets, end, last, table.shape[0], sorting)
        for i in range(end, last):
            counts[i] = table[buckets[i], 1]
            table[buckets[i], 1] = 0
        if keeps_text:
            end = last
        row_ends[t] = end
        start = text_ends[t]


@njit
def weigh_texts(found, text_ends, weighing, counts, sorting, columns, values, row_ends, squares):
    """Count the columns of every text.

    A text without a known word and without enough known n-grams of characters has none.

    Parameters
    ----------
    found : Found
        N-grams of texts.
    text_ends : int64 (n_texts,)
        End of the n-grams of each text.
    weighing : Weighing
    counts : int32 (n_columns,)
        Zero before and after.
    columns, values : int32, float32
        Filled with the columns of each text, ascending, and its n-grams in each.
    row_ends : int64 (n_texts,)
        Filled with the end of each text's columns.
    squares : float64 (n_texts, 2)
        Filled with what n-grams without a column add to the squared lengths of characters and of tokens.
    """
    n, start = 0, 0
    for t in range(text_ends.size):
        stop, first = text_ends[t], n
        n_characters, n_known, has_word = 0, 0, 0
        for i in range(start, stop):
            if found.orders[i] == 0:
                n_characters += 1
                n_known += _is_known(found.keys[i], _CHARACTER_PROBES, weighing.filter)
            elif found.orders[i] == 1:
                has_word |= _is_known(found.keys[i], _WORD_PROBES, weighing.filter)
        squares[t, 0] = squares[t, 1] = 0.0
        if has_word > 0 or (n_known > 0 and n_known >= weighing.least_known * n_characters):
            for i in range(start, stop):
                column = weighing.places[found.buckets[i]]
                if column >= 0:
                    if counts[column] == 0:
                        columns[n] = column
                        n += 1
                    counts[column] += 1
                else:
                    squares[t, 0 if found.orders[i] == 0 else 1] += weighing.unknown_square
            _sort(columns, first, n, weighing.idf.size, sorting)
        for i in range(first, n):
            values[i] = counts[columns[i]]
            counts[columns[i]] = 0
        row_ends[t] = n
        start = stop


@njit
def weigh_counts(row_ends, weighing, squares, columns, values):
    """Turn the counts of rows, `values`, into TF-IDF: groups and rows of fixed length."""
    first = 0
    for t in range(row_ends.size):
        last, middle = row_ends[t], first
        of_characters, of_tokens = squares[t, 0], squares[t, 1]
        for i in range(first, last):
            value = np.float64(weighing.idf[columns[i]])
            if values[i] > 1:
                value *= 1.0 + math.log(np.float64(values[i]))
            values[i] = value
            if columns[i] < weighing.n_character_columns:
                of_characters += value * value
                middle = i + 1
            else:
                of_tokens += value * value
        length_characters = np.float64(weighing.weights[0]) if of_characters > 0.0 else 0.0
        length_tokens = np.float64(weighing.weights[1]) if of_tokens > 0.0 else 0.0
        length = math.sqrt(length_characters * length_characters + length_tokens * length_tokens)
        if length > 0.0:
            if of_characters > 0.0:
                length_characters /= length * math.sqrt(of_characters)
            if of_tokens > 0.0:
                length_tokens /= length * math.sqrt(of_tokens)
        for i in range(first, last):
            values[i] *= length_characters if i < middle else length_tokens
        first = last
