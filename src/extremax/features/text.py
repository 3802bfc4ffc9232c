"""Texts as the n-gram kernels read them: checked, cut into blocks, as code points with their kinds."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.ngram_hash import BLANK, OTHER, SIGN, UNSPACED, WORD
from extremax.types import Int64

_BLOCK_TEXTS, _BLOCK_CHARACTERS = (
    4096,
    1 << 15,
)  # texts and characters per task: n-grams of a block stay in the cache
_UNKNOWN = 255
_SPACE = np.uint32(ord(" "))
# Names of letters of writing that puts no spaces between words.
_WITHOUT_SPACES = ("CJK", "IDEOGRAPHIC", "HIRAGANA", "THAI", "LAO", "KHMER", "MYANMAR", "TAI ")
_JOINERS = "\u200c\u200d"
# Kind of every code point, filled as they appear, without and with the word boundaries of Unicode.
_kinds = np.full((2, 0x110000), _UNKNOWN, dtype=np.uint8)


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless `texts` is a sequence of str."""
    if isinstance(texts, str):
        raise TypeError("texts is one string; pass a list of strings.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"texts[{i}] is {text!r} of type {type(text).__name__}; every text must be a str."
            )


def text_blocks(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Cut the texts into ranges of limited length, which depend on the texts alone."""
    blocks, start, characters = [], 0, 0
    for i, text in enumerate(texts):
        if i > start and (characters + len(text) > _BLOCK_CHARACTERS or i - start >= _BLOCK_TEXTS):
            blocks.append((start, i))
            start, characters = i, 0
        characters += len(text)
    if start < len(texts):
        blocks.append((start, len(texts)))
    return blocks


def code_points(
    texts: Sequence[str], unicode_words: bool = True
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], Int64]:
    """Return the code points of the texts in lower case, their kinds, and the ends of the texts.

    One space stands before the first text and behind each, at its end; every blank is a space.
    """
    lowered = [text.lower() for text in texts]
    padded = f" {' '.join(lowered)} "
    codes = np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum([len(text) + 1 for text in lowered], dtype=np.int64)
    table = _kinds[int(unicode_words)]
    kinds = table[codes]
    if (kinds == _UNKNOWN).any():
        for code in np.unique(codes[kinds == _UNKNOWN]).tolist():
            table[code] = _kind(chr(code), unicode_words)
        kinds = table[codes]
    return np.where(kinds == BLANK, _SPACE, codes), kinds, ends


def cut_tokens(text: str, unicode_words: bool = True) -> list[tuple[int, int, int]]:
    """Return beginning, end and kind of each token of a text in lower case: words and marks, in order.

    Examples
    --------
    >>> cut_tokens("to b, 日本")
    [(0, 2, 2), (3, 4, 2), (4, 5, 0), (6, 7, 3), (7, 8, 3)]
    """
    kinds = code_points([text], unicode_words)[1][1:].tolist()
    found, p = [], 0
    while p < len(text):
        start, kind = p, kinds[p]
        p += 1
        while p < len(text) and (kinds[p] == SIGN or kinds[p] == kind == WORD):
            p += 1
        if kind != BLANK:
            found.append((start, p, kind))
    return found


def cut_words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [text[start:end] for start, end, kind in cut_tokens(text) if kind >= WORD]


def _kind(character: str, unicode_words: bool) -> int:
    if character.isspace():
        return BLANK
    if not unicode_words:
        return WORD if character.isalnum() or character == "_" else OTHER
    category = unicodedata.category(character)
    if category[0] == "M" or character in _JOINERS:
        return SIGN
    if category[0] == "L" and unicodedata.name(character, "").startswith(_WITHOUT_SPACES):
        return UNSPACED
    return WORD if character.isalnum() or character == "_" else OTHER
