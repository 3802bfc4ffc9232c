"""Hash words and character n-grams of texts to columns: the first step of the text features.

N-grams are those of scikit-learn's analyzers: characters within word boundaries (``char_wb``, each word
between two spaces), and runs of letters, digits and underscores.  The code points of an n-gram are hashed in
sequence, so that the hash of an n-gram continues that of the shorter ones at the same place.
"""

from __future__ import annotations

import numpy as np

from extremax.kernels.compile import inline, njit
from extremax.kernels.ngram_hash import BLANK, WORD
from extremax.kernels.rng import mix64

_CHARACTER_SEED = np.uint64(0x5851F42D4C957F2D)
_WORD_SEED = np.uint64(0x14057B7EF767814F)
_SPACE = np.uint64(32)


@inline
def _column(key, shift):
    """Return the upper bits of a hash."""
    return np.int64(np.uint64(key) >> shift)


@njit
def _count(column, counts, columns, n):
    """Count one more of `column`; a column new to this text is appended to `columns`."""
    if counts[column] == 0:
        columns[n] = column
        n += 1
    counts[column] += 1
    return n


@njit
def hash_ngrams(codes, kinds, text_ends, sizes, counts, columns, column_counts, column_ends):
    """Compute columns and counts of every text, in the order of first appearance.

    Parameters
    ----------
    codes, kinds : uint32, uint8 (n_characters,)
        Code points of all texts in sequence, and their kinds.
    text_ends : int64 (n_texts,)
    sizes : int64 (4,)
        Shortest and longest character n-gram, longest word n-gram (0: none), and the binary logarithm of the
        table size.
    counts : int32 (2 * table size,)
        Zero before and after; the first half is for characters, the second for words.
    columns, column_counts : int32
        Filled; long enough for all n-grams.
    column_ends : int64 (n_texts,)
        Filled with the end of each text's columns.
    """
    shortest, longest, longest_words = sizes[0], sizes[1], sizes[2]
    table = np.int64(1) << sizes[3]
    shift = np.uint64(64 - sizes[3])
    recent = np.zeros(8, dtype=np.uint64)  # hashes of the last words, by their number modulo 8
    n = 0
    start = 0
    for t in range(len(text_ends)):
        stop = text_ends[t]
        first = n
        p = start
        while p < stop and longest > 0:
            if kinds[p] == BLANK:
                p += 1
                continue
            begin = p
            while p < stop and kinds[p] != BLANK:
                p += 1
            length = p - begin + 2  # with a space at either end
            for offset in range(length):
                key = _CHARACTER_SEED
                for j in range(offset, min(offset + longest, length)):
                    code = _SPACE if j == 0 or j == length - 1 else np.uint64(codes[begin + j - 1])
                    key = mix64(key ^ code)
                    # A word shorter than the shortest n-gram counts once, as a whole.
                    if j - offset + 1 >= shortest or (offset == 0 and j == length - 1):
                        n = _count(_column(key, shift), counts, columns, n)
        p = start
        n_words = 0
        while p < stop and longest_words > 0:
            if kinds[p] != WORD:
                p += 1
                continue
            key = _WORD_SEED
            while p < stop and kinds[p] == WORD:
                key = mix64(key ^ np.uint64(codes[p]))
                p += 1
            n = _count(table + _column(key, shift), counts, columns, n)
            recent[n_words & 7] = key
            n_words += 1
            for size in range(2, min(longest_words, n_words) + 1):
                key = _WORD_SEED
                for k in range(n_words - size, n_words):
                    key = mix64(key ^ recent[k & 7])
                n = _count(table + _column(key, shift), counts, columns, n)
        for i in range(first, n):
            column_counts[i] = counts[columns[i]]
            counts[columns[i]] = 0
        column_ends[t] = n
        start = stop
