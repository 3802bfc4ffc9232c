"""Hash n-grams of texts to buckets, count them, and weigh them: the kernels of the sparse text features.

N-grams are those of scikit-learn's analyzers: characters within word boundaries (``char_wb``, each word
between two spaces), and runs of tokens. A token is a run of letters, digits and underscores, or one letter
of writing without spaces, with the signs on them; optionally every other character that is not a space is
one, too, but only inside longer runs, never alone. The code points of an n-gram are hashed in sequence, so
that the hash of an n-gram continues that of the shorter ones at the same place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from extremax.kernels.compile import inline, njit
from extremax.kernels.rng import mix64

OTHER, SIGN, WORD, UNSPACED, BLANK = range(5)  # kinds of characters; a sign belongs to the one before it
MOST_TOKENS = 8  # longest run of tokens
N_GROUPS = 3  # character n-grams, single words, runs of tokens: each has buckets of its own
N_DIGITS = 256  # buckets are sorted by one digit to this base after the other
_DIGIT_BITS = 8
_PLACE_BITS = 32  # of the n-gram's place in its text, below the bucket that is sorted by
_CHARACTER_SEED = np.uint64(0x5851F42D4C957F2D)
_TOKEN_SEED = np.uint64(0x14057B7EF767814F)
_ONE, _HALF, _LOW = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
NO_CHARACTERS, NO_TOKENS = -1, -2  # what stands for the column of an unknown n-gram
_CHARACTER_PROBES, _WORD_PROBES = 2, 4  # bits of the filter per n-gram


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
    starts, lengths : int32
        Place in the text; the space before its first word is at -1.
    orders : uint8
        Number of tokens; 0 for characters.
    """

    keys: Any
    starts: Any
    lengths: Any
    orders: Any


class Seen(NamedTuple):
    """Counts collected in a pass over the training texts.

    Attributes
    ----------
    table : int32 (3 * n_buckets, 4)
        Number of texts that have each bucket; the first of them, counted from 0, and start and length of the
        n-gram there.
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
        return self.table[:, 1:]


class Weighing(NamedTuple):
    """Columns and weights of a fitted transformer.

    Attributes
    ----------
    places : int32 (3 * n_buckets,)
        Column of each bucket; `NO_CHARACTERS` or `NO_TOKENS` for a bucket without one.
    idf : float32 (n_columns,)
    n_character_columns : int
        The columns below are those of characters.
    weights : float32 (2,)
        Length of the part of characters and of the part of tokens.
    """

    places: Any
    idf: Any
    n_character_columns: Any
    weights: Any


@inline
def _probe(key, k, mask):
    """Return the k-th bit of a key in a filter of ``mask + 1`` bits, a power of two."""
    return np.int64(((key & _LOW) + np.uint64(k) * ((key >> _HALF) | _ONE)) & np.uint64(mask))


@njit
def find_ngrams(codes, kinds, text_ends, sizes, recent, found, ends):
    """Fill in the n-grams of texts.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points of all texts in sequence, and their kinds; a space before, between and behind the texts,
        and for every blank in them.
    text_ends : int64 (n_texts,)
        Places of the spaces behind the texts.
    sizes : Sizes
    recent : uint64 (2, MOST_TOKENS)
        Scratch: hashes and beginnings of the last tokens, by their number modulo `MOST_TOKENS`.
    found : Found
        Filled; long enough for all n-grams.
    ends : int64 (n_texts,)
        Filled with the end of each text's n-grams.
    """
    keys, starts, lengths, orders = found
    n, start = 0, 1
    for t in range(text_ends.size):
        stop = text_ends[t]
        p = start
        while p < stop:
            if kinds[p] == BLANK:
                p += 1
                continue
            first = p - 1
            while kinds[p] != BLANK:
                p += 1
            for begin in range(first, p + 1):
                key = _CHARACTER_SEED
                for j in range(begin, min(begin + sizes.longest, p + 1)):
                    key = mix64(key ^ np.uint64(codes[j]))
                    # A word shorter than the shortest n-gram counts once, as a whole.
                    if j - begin + 1 >= sizes.shortest or (begin == first and j == p):
                        keys[n] = key
                        starts[n] = begin - start
                        lengths[n] = j - begin + 1
                        orders[n] = 0
                        n += 1
        n_tokens = 0
        p = start
        while p < stop:
            kind = kinds[p]
            if kind == BLANK or (kind < WORD and sizes.marks == 0):
                p += 1
                continue
            at = n_tokens % MOST_TOKENS
            recent[1, at] = p - start
            key = mix64(_TOKEN_SEED ^ np.uint64(codes[p]))
            p += 1
            while kinds[p] == SIGN or (kind == WORD and kinds[p] == WORD):
                key = mix64(key ^ np.uint64(codes[p]))
                p += 1
            recent[0, at] = key
            n_tokens += 1
            for size in range(1 if kind >= WORD else 2, min(sizes.tokens, n_tokens) + 1):
                if size > 1:
                    key = _TOKEN_SEED
                    for k in range(n_tokens - size, n_tokens):
                        key = mix64(key ^ recent[0, k % MOST_TOKENS])
                begin = np.int64(recent[1, (n_tokens - size) % MOST_TOKENS])
                keys[n] = key
                starts[n] = begin
                lengths[n] = p - start - begin
                orders[n] = size
                n += 1
        ends[t] = n
        start = stop + 1


@njit
def group_ngrams(keys, orders, ends, bits, work, firsts, buckets, counts, row_ends):
    """Find the buckets of every text, ascending, and its n-grams in each.

    Parameters
    ----------
    keys, orders : uint64, uint8
        N-grams of texts.
    ends : int64 (n_texts,)
        End of the n-grams of each text.
    bits : int
        Binary logarithm of the number of buckets of a group.
    work : int64 (2 * longest + N_DIGITS,)
        Scratch, for the n-grams of the longest text.
    firsts : int32
        Filled with the first n-gram of the text in each bucket.
    buckets, counts : int32, float32
        Filled with the buckets and the number of n-grams in each.
    row_ends : int64 (n_texts,)
        Filled with the end of each text's buckets.
    """
    longest = (work.size - N_DIGITS) // 2
    digits, digit_mask, place_mask = 2 * longest, N_DIGITS - 1, (1 << _PLACE_BITS) - 1
    start, end = 0, 0
    for t in range(ends.size):
        n, source, target = ends[t] - start, 0, longest
        for i in range(n):
            group = min(np.int64(orders[start + i]), N_GROUPS - 1)
            bucket = (group << bits) + np.int64(keys[start + i] >> np.uint64(64 - bits))
            work[i] = (bucket << _PLACE_BITS) + i
        for shift in range(_PLACE_BITS, _PLACE_BITS + bits + 2, _DIGIT_BITS):
            for d in range(N_DIGITS):
                work[digits + d] = 0
            for i in range(source, source + n):
                work[digits + ((work[i] >> shift) & digit_mask)] += 1
            total = target
            for d in range(N_DIGITS):
                size = work[digits + d]
                work[digits + d] = total
                total += size
            for i in range(source, source + n):
                d = digits + ((work[i] >> shift) & digit_mask)
                work[work[d]] = work[i]
                work[d] += 1
            source, target = target, source
        last, size = -1, 0
        for i in range(source, source + n):
            bucket = work[i] >> _PLACE_BITS
            if bucket != last:
                buckets[end] = bucket
                firsts[end] = start + (work[i] & place_mask)
                end += 1
                last, size = bucket, 0
            size += 1
            counts[end - 1] = size
        row_ends[t] = end
        start = ends[t]


@njit
def learn_texts(found, ends, first_text, firsts, buckets, row_ends, seen, says):
    """Count the texts that have each bucket, remember where it came first, and fill the filter.

    Parameters
    ----------
    found : Found
        N-grams of texts.
    ends : int64 (n_texts,)
        End of the n-grams of each text.
    first_text : int
        Number of the first of these texts.
    firsts, buckets, row_ends
        Filled by `group_ngrams`.
    seen : Seen
        Changed.
    says : bool (n_texts,)
        Filled; false for a text that has neither characters nor words, but runs of marks at most.
    """
    keys, starts, lengths, orders = found
    table, bits = seen
    mask = 8 * bits.size - 1
    start, begin = 0, 0
    for t in range(ends.size):
        says[t] = False
        for i in range(start, ends[t]):
            if orders[i] <= 1:
                says[t] = True
                for k in range(_CHARACTER_PROBES if orders[i] == 0 else _WORD_PROBES):
                    p = _probe(keys[i], k, mask)
                    bits[p >> 3] |= np.uint8(1 << (p & 7))
        for i in range(begin, row_ends[t]):
            bucket = buckets[i]
            # Threads finish blocks in any order.
            if table[bucket, 0] == 0 or first_text + t < table[bucket, 1]:
                table[bucket, 1] = first_text + t
                table[bucket, 2] = starts[firsts[i]]
                table[bucket, 3] = lengths[firsts[i]]
            table[bucket, 0] += 1
        start, begin = ends[t], row_ends[t]


@njit
def find_known(keys, orders, ends, bits, least_known, says):
    """Mark texts with a known word, or enough known character n-grams.

    Parameters
    ----------
    keys, orders : uint64, uint8
        N-grams of texts.
    ends : int64 (n_texts,)
        End of the n-grams of each text.
    bits : uint8
        Bloom filter of the n-grams of the training texts.
    least_known : float
        Fraction of its character n-grams that a text without any known word must have.
    says : bool (n_texts,)
        Filled.
    """
    mask = 8 * bits.size - 1
    start = 0
    for t in range(ends.size):
        n_characters, n_known, has_word = 0, 0, 0
        i = ends[t]
        while i > start and has_word == 0:  # words come last: most texts end here at once
            i -= 1
            if orders[i] <= 1:
                known = 1
                for k in range(_CHARACTER_PROBES if orders[i] == 0 else _WORD_PROBES):
                    p = _probe(keys[i], k, mask)
                    known &= bits[p >> 3] >> (p & 7)
                if orders[i] == 0:
                    n_characters += 1
                    n_known += known
                else:
                    has_word = known
        says[t] = has_word > 0 or (n_known > 0 and n_known >= least_known * n_characters)
        start = ends[t]


@njit
def weigh_rows(weighing, unknown_squares, row_ends, columns, values):
    """Turn counts into TF-IDF, groups and rows of fixed length, and drop what has no column.

    Parameters
    ----------
    weighing : Weighing
    unknown_squares : float64
        What 0, 1, 2, ... n-grams without a column add to the square of their group's length.
    row_ends : int64 (n_rows,)
        Changed to the ends of what is left.
    columns, values : int32, float32
        Columns as in ``weighing.places`` and counts; changed to columns and weights.
    """
    _, idf, n_character_columns, weights = weighing
    n, first = 0, 0
    for t in range(row_ends.size):
        last, begin, middle = row_ends[t], n, n
        n_characters, n_tokens = 0, 0
        for i in range(first, last):
            if columns[i] == NO_CHARACTERS:
                n_characters += np.int64(values[i])
            elif columns[i] == NO_TOKENS:
                n_tokens += np.int64(values[i])
        of_characters, of_tokens = unknown_squares[n_characters], unknown_squares[n_tokens]
        for i in range(first, last):
            column = columns[i]
            if column >= 0:
                value = np.float64(idf[column])
                if values[i] > 1:
                    value *= 1.0 + math.log(np.float64(values[i]))
                columns[n] = column
                values[n] = value
                n += 1
                if column < n_character_columns:
                    of_characters += value * value
                    middle = n
                else:
                    of_tokens += value * value
        length_characters = np.float64(weights[0]) if of_characters > 0.0 else 0.0
        length_tokens = np.float64(weights[1]) if of_tokens > 0.0 else 0.0
        length = math.sqrt(length_characters * length_characters + length_tokens * length_tokens)
        if of_characters > 0.0:
            length_characters /= length * math.sqrt(of_characters)
        if of_tokens > 0.0:
            length_tokens /= length * math.sqrt(of_tokens)
        for i in range(begin, n):
            values[i] *= length_characters if i < middle else length_tokens
        row_ends[t] = n
        first = last
