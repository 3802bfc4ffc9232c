"""Hash n-grams of texts to columns, count them, and weigh them: the kernels of the sparse text features.

N-grams are those of scikit-learn's analyzers: characters within word boundaries (``char_wb``, each word
between two spaces), and runs of tokens.  A token is a run of letters, digits and underscores; optionally
every other character that is no space is one, too, but only inside longer runs, never alone.  The code points
of an n-gram are hashed in sequence, so that the hash of an n-gram continues that of the shorter ones at the
same place.
"""

from __future__ import annotations

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
_ONE, _THREE, _SEVEN, _HALF = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
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
    """N-grams of one text, characters before tokens, each in the order of the text.

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


@inline
def _probe(key, k, mask):
    """Return the k-th bit of a key in a filter of ``mask + 1`` bits, a power of two."""
    key = np.uint64(key)
    return np.int64(((key & _LOW) + np.uint64(k) * ((key >> _HALF) | _ONE)) & np.uint64(mask))


@helper
def _remember(key, n_probes, bits):
    mask = 8 * len(bits) - 1
    for k in range(n_probes):
        p = _probe(key, k, mask)
        bits[p >> 3] |= np.uint8(1 << (p & 7))


@helper
def _is_known(key, n_probes, bits):
    mask = 8 * len(bits) - 1
    for k in range(n_probes):
        p = _probe(key, k, mask)
        if (bits[p >> 3] >> (p & 7)) & 1 == 0:
            return False
    return True


@helper
def _find_characters(codes, kinds, start, stop, sizes, found):
    """Fill in the character n-grams of one text; return their number."""
    n = 0
    p = start
    while p < stop:
        if kinds[p] == BLANK:
            p += 1
            continue
        begin = p
        while p < stop and kinds[p] != BLANK:
            p += 1
        length = p - begin + 2  # with a space at either end
        for offset in range(length):
            key = _CHARACTER_SEED
            for j in range(offset, min(offset + sizes.longest, length)):
                code = _SPACE if j == 0 or j == length - 1 else np.uint64(codes[begin + j - 1])
                key = mix64(key ^ code)
                # A word shorter than the shortest n-gram counts once, as a whole.
                if j - offset + 1 >= sizes.shortest or (offset == 0 and j == length - 1):
                    found.keys[n] = key
                    found.starts[n] = begin - start + offset - 1
                    found.lengths[n] = j - offset + 1
                    found.orders[n] = 0
                    n += 1
    return n


@helper
def _find_tokens(codes, kinds, start, stop, sizes, found, n):
    """Append the runs of tokens of one text to the n-grams; return the number of all."""
    recent = np.empty(MOST_TOKENS, dtype=np.uint64)  # hashes of the last tokens, by number modulo MOST_TOKENS
    begins = np.empty(MOST_TOKENS, dtype=np.int64)
    n_tokens = 0
    p = start
    while p < stop:
        kind = kinds[p]
        if kind == BLANK or (kind == OTHER and sizes.marks == 0):
            p += 1
            continue
        recent_at = n_tokens % MOST_TOKENS
        begins[recent_at] = p - start
        key = mix64(_TOKEN_SEED ^ np.uint64(codes[p]))
        p += 1
        while kind == WORD and p < stop and kinds[p] == WORD:
            key = mix64(key ^ np.uint64(codes[p]))
            p += 1
        recent[recent_at] = key
        n_tokens += 1
        for size in range(1 if kind == WORD else 2, min(sizes.tokens, n_tokens) + 1):
            if size > 1:
                key = _TOKEN_SEED
                for k in range(n_tokens - size, n_tokens):
                    key = mix64(key ^ recent[k % MOST_TOKENS])
            begin = begins[(n_tokens - size) % MOST_TOKENS]
            found.keys[n] = key
            found.starts[n] = begin
            found.lengths[n] = p - start - begin
            found.orders[n] = size
            n += 1
    return n


@helper
def _find(codes, kinds, start, stop, sizes, found):
    """Fill in the n-grams of one text; return their number."""
    n = 0
    if sizes.longest > 0:
        n = _find_characters(codes, kinds, start, stop, sizes, found)
    if sizes.tokens > 0:
        n = _find_tokens(codes, kinds, start, stop, sizes, found, n)
    return n


@inline
def _bucket(key, order, bits):
    """Return the bucket of an n-gram: the upper bits of its hash, below them in order its group."""
    group = min(np.int64(order), np.int64(N_GROUPS - 1)) << bits
    return group + np.int64(np.uint64(key) >> np.uint64(64 - bits))


@njit
def find_ngrams(codes, kinds, sizes, found, buckets):
    """Fill in the n-grams of one text and their buckets; return their number.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points and their kinds.
    sizes : Sizes
    found : Found
        Filled; long enough for all n-grams.
    buckets : int32
        Filled; as long.
    """
    n = _find(codes, kinds, 0, len(codes), sizes, found)
    for i in range(n):
        buckets[i] = _bucket(found.keys[i], found.orders[i], sizes.bits)
    return n


@helper
def _says_something(found, n, weighing):
    """Whether a text has a known word, or enough known n-grams of characters."""
    n_characters = 0
    while n_characters < n and found.orders[n_characters] == 0:
        n_characters += 1
    for i in range(n_characters, n):
        if found.orders[i] == 1 and _is_known(found.keys[i], _WORD_PROBES, weighing.filter):
            return True
    n_known = 0
    for i in range(n_characters):
        n_known += _is_known(found.keys[i], _CHARACTER_PROBES, weighing.filter)
    return n_known > 0 and n_known >= weighing.least_known * n_characters


@helper
def _sort(columns, n, n_columns, room, ends):
    """Sort `n` distinct columns: they are hashes, so nearly all of the work is one pass over equal ranges."""
    n_ranges = len(ends) - 1
    if n < 16 or n > len(room):
        columns[:n].sort()
        return
    while n_ranges > 2 * n:
        n_ranges >>= 1
    ends[: n_ranges + 1] = 0
    factor = np.float64(n_ranges) / np.float64(n_columns)
    for i in range(n):
        ends[np.int64(columns[i] * factor) + 1] += 1
    for r in range(n_ranges):
        ends[r + 1] += ends[r]
    for i in range(n):
        r = np.int64(columns[i] * factor)
        room[ends[r]] = columns[i]
        ends[r] += 1
    for i in range(n):
        column = room[i]
        j = i
        while j > 0 and columns[j - 1] > column:
            columns[j] = columns[j - 1]
            j -= 1
        columns[j] = column


@njit
def count_texts(codes, kinds, text_ends, first_text, sizes, found, seen, buckets, counts, row_ends):
    """Count the texts that have each bucket, and remember where it came first.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points of all texts in sequence, and their kinds.
    text_ends : int64 (n_texts,)
    first_text : int
        Number of the first of these texts.
    sizes : Sizes
    found : Found
        Room for the n-grams of the longest text.
    seen : Seen
        Changed.
    buckets, counts : int32, float32
        Filled with the buckets of each text, rising, and its n-grams in each, as `weigh_counts` takes them;
        not where they are empty.
    row_ends : int64 (n_texts,)
        Filled with the end of each text's buckets.
    """
    room = np.empty(1024, dtype=np.int32)
    ends = np.empty(2049, dtype=np.int32)
    table = seen.table
    own = found.starts  # buckets of the text, written behind what is still to be read
    start, end = 0, 0
    for t in range(len(text_ends)):
        number = first_text + t
        n = _find(codes, kinds, start, text_ends[t], sizes, found)
        start = text_ends[t]
        n_own, has_part = 0, False
        for i in range(n):
            key, order = found.keys[i], found.orders[i]
            bucket = _bucket(key, order, sizes.bits)
            if table[bucket, 1] == 0:
                if table[bucket, 0] == 0 or number < table[bucket, 2]:
                    table[bucket, 2] = number
                    table[bucket, 3] = found.starts[i]
                    table[bucket, 4] = found.lengths[i]
                table[bucket, 0] += 1
                own[n_own] = bucket
                n_own += 1
            table[bucket, 1] += 1
            if order <= 1:
                has_part = True
                _remember(key, _CHARACTER_PROBES if order == 0 else _WORD_PROBES, seen.filter)
        if buckets.size > 0 and has_part:  # a text of runs alone says nothing, see `_says_something`
            _sort(own, n_own, table.shape[0], room, ends)
            for i in range(n_own):
                buckets[end] = own[i]
                counts[end] = table[own[i], 1]
                end += 1
        for i in range(n_own):
            table[own[i], 1] = 0
        row_ends[t] = end


@helper
def _weigh_row(columns, values, first, last, squares, weighing):
    """Turn the counts of a row, `values`, into TF-IDF: groups and row of fixed length.

    `squares` is what unknown n-grams add to the squared lengths of characters and of tokens.
    """
    squares_characters, squares_tokens = squares
    middle = first
    for i in range(first, last):
        column = columns[i]
        count = values[i]
        value = np.float64(weighing.idf[column])
        if count > 1:
            value *= 1.0 + np.log(np.float64(count))
        values[i] = value
        if column < weighing.n_character_columns:
            squares_characters += value * value
            middle = i + 1
        else:
            squares_tokens += value * value
    length_characters = np.float64(weighing.weights[0]) if squares_characters > 0.0 else 0.0
    length_tokens = np.float64(weighing.weights[1]) if squares_tokens > 0.0 else 0.0
    length = np.sqrt(length_characters * length_characters + length_tokens * length_tokens)
    if length > 0.0:
        if squares_characters > 0.0:
            length_characters /= length * np.sqrt(squares_characters)
        if squares_tokens > 0.0:
            length_tokens /= length * np.sqrt(squares_tokens)
    for i in range(first, middle):
        values[i] *= length_characters
    for i in range(middle, last):
        values[i] *= length_tokens


@njit
def weigh_counts(row_ends, weighing, columns, values):
    """Turn buckets and counts of texts, as `count_texts` fills them, into columns and TF-IDF in place."""
    start = 0
    for t in range(len(row_ends)):
        for i in range(start, row_ends[t]):
            columns[i] = weighing.places[columns[i]]
        _weigh_row(columns, values, start, row_ends[t], (0.0, 0.0), weighing)
        start = row_ends[t]


@njit
def weigh_texts(codes, kinds, text_ends, sizes, weighing, found, counts, columns, values, row_ends):
    """Compute TF-IDF of every text: sorted columns, the two groups and the row of fixed length.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points of all texts in sequence, and their kinds.
    text_ends : int64 (n_texts,)
    sizes : Sizes
    weighing : Weighing
    found : Found
        Room for the n-grams of the longest text.
    counts : int32 (n_columns,)
        Zero before and after.
    columns : int32
        Filled; long enough for all n-grams.
    values : float32
        Filled; as long.
    row_ends : int64 (n_texts,)
        Filled with the end of each text's columns.
    """
    room = np.empty(1024, dtype=np.int32)
    ends = np.empty(2049, dtype=np.int32)
    n_columns = len(weighing.idf)
    n = 0
    start = 0
    for t in range(len(text_ends)):
        n_found = _find(codes, kinds, start, text_ends[t], sizes, found)
        start = text_ends[t]
        first = n
        squares_characters = 0.0
        squares_tokens = 0.0
        if _says_something(found, n_found, weighing):
            for i in range(n_found):
                column = weighing.places[_bucket(found.keys[i], found.orders[i], sizes.bits)]
                if column >= 0:
                    if counts[column] == 0:
                        columns[n] = column
                        n += 1
                    counts[column] += 1
                elif found.orders[i] == 0:
                    squares_characters += weighing.unknown_square
                else:
                    squares_tokens += weighing.unknown_square
            _sort(columns[first:n], n - first, n_columns, room, ends)
        for i in range(first, n):
            values[i] = counts[columns[i]]
            counts[columns[i]] = 0
        _weigh_row(columns, values, first, n, (squares_characters, squares_tokens), weighing)
        row_ends[t] = n
