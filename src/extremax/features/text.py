"""Texts as the n-gram kernels read them: checked, cut into blocks, as code points with their kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from extremax.kernels.ngram_hash import BLANK, OTHER, WORD
from extremax.types import Int64

_BLOCK_TEXTS, _BLOCK_CHARACTERS = (
    4096,
    1 << 15,
)  # texts and characters per task: n-grams of a block stay in the cache
_UNKNOWN = 255
_SPACE = np.uint32(ord(" "))
_kinds = np.full(0x110000, _UNKNOWN, dtype=np.uint8)  # kind of every code point, filled as they appear


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


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint8], Int64]:
    """Return the code points of the texts in lower case, their kinds, and the ends of the texts.

    One space stands before the first text and behind each, at its end; every blank is a space.
    """
    lowered = [text.lower() for text in texts]
    padded = f" {' '.join(lowered)} "
    codes = np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum([len(text) + 1 for text in lowered], dtype=np.int64)
    kinds = _kinds[codes]
    if (kinds == _UNKNOWN).any():
        for code in np.unique(codes[kinds == _UNKNOWN]).tolist():
            character = chr(code)
            _kinds[code] = (
                BLANK if character.isspace() else WORD if character.isalnum() or character == "_" else OTHER
            )
        kinds = _kinds[codes]
    return np.where(kinds == BLANK, _SPACE, codes), kinds, ends
