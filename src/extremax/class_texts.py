"""Descriptions of classes, and class texts: names, synonyms and definitions that training reads.

A class text is a row of another kind. It is in the sums of its class and trained on with a weight of its own,
and it is never held out. The last ordinary row of a class may
be held out where the class has a text, so that the held-out rows have as many rows of classes without a
training row as new rows will (Good and Turing), and calibrate the probabilities of such classes as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremax.storage import checks
from extremax.types import Int32, Int64

WEIGHT = 0.2  # of a class text, in ordinary rows (lab/tuning.md)


class Descriptions(NamedTuple):
    """Texts by number: their UTF-8 bytes in sequence, and the end of each.

    Examples
    --------
    >>> texts = Descriptions.of(["Fall on and from ladder", ""])
    >>> texts.text(0), texts.text(1)
    ('Fall on and from ladder', '')
    """

    utf8: NDArray[np.uint8]
    ends: Int64

    @classmethod
    def of(cls, texts: Sequence[str]) -> Descriptions:
        """Pack texts."""
        coded = [text.encode(errors="replace") for text in texts]
        return cls(
            np.frombuffer(b"".join(coded), np.uint8), np.cumsum([len(c) for c in coded], dtype=np.int64)
        )

    def text(self, number: int) -> str:
        """Return a text."""
        start = int(self.ends[number - 1]) if number else 0
        return self.utf8[start : int(self.ends[number])].tobytes().decode(errors="replace")

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return what a model folder stores."""
        return {f"{name}_{part}": value for part, value in self._asdict().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], name: str) -> Descriptions | None:
        """Return the texts that `arrays` described; None where there are none."""
        if f"{name}_ends" not in arrays and f"{name}_utf8" not in arrays:
            return None
        utf8 = checks.get_array(arrays, f"{name}_utf8", "u1", (None,))
        ends = checks.get_array(arrays, f"{name}_ends", "i8", (None,))
        return cls(utf8, checks.check_rising(ends, f"{name}_ends", None, len(utf8)))


@dataclass(frozen=True, eq=False)
class ClassTexts:
    """The texts of the classes of a model.

    Attributes
    ----------
    texts
        All of them.
    class_of : int32 (n_texts,)
        The class of each.
    """

    texts: Descriptions
    class_of: Int32

    @classmethod
    def of(cls, texts: Sequence[str], class_of: Int32) -> ClassTexts:
        """Pack texts and their classes."""
        return cls(Descriptions.of(texts), class_of)

    def __len__(self) -> int:
        return len(self.class_of)

    def to_list(self) -> list[str]:
        """Return all texts."""
        return [self.texts.text(i) for i in range(len(self))]

    def of_class(self, label: int) -> list[str]:
        """Return the texts of a class."""
        return [self.texts.text(int(i)) for i in np.flatnonzero(self.class_of == label)]

    def take(self, index: Int64) -> ClassTexts:
        """Return the texts of some classes, which are then numbered in the order of `index`."""
        number = np.full(1 + max(index.max(initial=0), self.class_of.max(initial=0)), -1, np.int32)
        number[index] = np.arange(len(index), dtype=np.int32)
        class_of = number[self.class_of]
        kept = np.flatnonzero(class_of >= 0)
        return ClassTexts.of([self.texts.text(int(i)) for i in kept], class_of[kept])

    def merge(self, target: Int64) -> ClassTexts:
        """Return the texts of merged classes; `target` is the number of each class afterwards."""
        return ClassTexts(self.texts, target[self.class_of].astype(np.int32))

    def plus(self, other: ClassTexts) -> ClassTexts:
        """Return the texts of both."""
        ends = np.concatenate([self.texts.ends, other.texts.ends + len(self.texts.utf8)])
        texts = Descriptions(np.concatenate([self.texts.utf8, other.texts.utf8]), ends)
        return ClassTexts(texts, np.concatenate([self.class_of, other.class_of]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a model folder stores."""
        return {**self.texts.arrays("texts"), "text_classes": self.class_of}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ClassTexts | None:
        """Return the texts that `arrays` described; None where there are none."""
        texts = Descriptions.from_arrays(arrays, "texts")
        if texts is None:
            return None
        return cls(texts, checks.get_array(arrays, "text_classes", "i4", (len(texts.ends),)))


def list_class_texts(given: Any) -> tuple[list[Any], list[str]]:
    """Return label and text of each class text, without empty and repeated texts of a label.

    Examples
    --------
    >>> list_class_texts({"N20": ["kidney stones", "renal calculus"], "H93": "ringing in the ears"})
    (['N20', 'N20', 'H93'], ['kidney stones', 'renal calculus', 'ringing in the ears'])
    """
    if not isinstance(given, Mapping):
        raise TypeError(
            "class_texts must be a dict from labels to their texts, such as {'N20': ['kidney stones']}; got"
            f" {type(given).__name__}."
        )
    pairs: dict[tuple[Any, str], None] = {}
    for label, texts in given.items():
        listed = [texts] if isinstance(texts, str) else texts
        if not isinstance(listed, Iterable) or isinstance(listed, bytes):
            raise TypeError(
                f"class_texts[{label!r}] is {type(texts).__name__}; give a text or a list of texts."
            )
        for text in listed:
            if not isinstance(text, str):
                raise TypeError(f"class_texts[{label!r}] has {text!r}, which is not a text.")
            if text.strip():
                pairs[label, text.strip()] = None
    return [label for label, _ in pairs], [text for _, text in pairs]
