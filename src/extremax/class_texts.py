"""Descriptions of classes, and class texts: names, synonyms and definitions that training reads.

A class text is a row of another kind. It is in the sums of its class and trained on with a weight of its own,
and it is never held out. The last ordinary row of a class may
be held out where the class has a text, so that the held-out rows have as many rows of classes without a
training row as new rows will (Good and Turing), and calibrate the probabilities of such classes as well.

A name need not be worded like the rows of its class: that of a diagnosis may be a row of the diagnosis above.
Texts that are also rows tell (`Examples.with_class_texts`): where many of a kind have another label as rows,
texts of this kind are for labels without a row alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from extremax.storage import checks
from extremax.types import Int32, Int64

WEIGHT = 0.2  # of a class text, in ordinary rows (lab/tuning.md)
MOST_KINDS = 1000
_Texts: TypeAlias = Mapping[Any, str | Sequence[str]]
GivenTexts: TypeAlias = _Texts | Sequence[_Texts]  # of all classes, or of each kind


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
    class_of, kinds : int32 (n_texts,)
        The class and the kind of each.
    """

    texts: Descriptions
    class_of: Int32
    kinds: Int32

    @classmethod
    def of(cls, texts: Sequence[str], class_of: Int32, kinds: Sequence[int] | Int32) -> ClassTexts:
        """Pack texts, their classes and their kinds."""
        return cls(Descriptions.of(texts), class_of, np.asarray(kinds, np.int32))

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
        return ClassTexts.of([self.texts.text(int(i)) for i in kept], class_of[kept], self.kinds[kept])

    def merge(self, target: Int64) -> ClassTexts:
        """Return the texts of merged classes; `target` is the number of each class afterwards."""
        return replace(self, class_of=target[self.class_of].astype(np.int32))

    def plus(self, other: ClassTexts) -> ClassTexts:
        """Return the texts of both."""
        ends = np.concatenate([self.texts.ends, other.texts.ends + len(self.texts.utf8)])
        texts = Descriptions(np.concatenate([self.texts.utf8, other.texts.utf8]), ends)
        class_of = np.concatenate([self.class_of, other.class_of])
        return ClassTexts(texts, class_of, np.concatenate([self.kinds, other.kinds]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a model folder stores."""
        return {**self.texts.arrays("texts"), "text_classes": self.class_of, "text_kinds": self.kinds}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> ClassTexts | None:
        """Return the texts that `arrays` described; None where there are none."""
        texts = Descriptions.from_arrays(arrays, "texts")
        if texts is None:
            return None
        n = len(texts.ends)
        kinds = np.zeros(n, np.int32)  # of older folders
        if "text_kinds" in arrays:
            kinds = checks.get_array(arrays, "text_kinds", "i4", (n,))
            checks.check_range(kinds, "text_kinds", 0, MOST_KINDS)
        return cls(texts, checks.get_array(arrays, "text_classes", "i4", (n,)), kinds)


class ListedTexts(NamedTuple):
    """Label, text and kind of each class text that a fit is given."""

    labels: list[Any]
    texts: list[str]
    kinds: list[int]


NO_TEXTS = ListedTexts([], [], [])


def list_class_texts(given: Any) -> ListedTexts:
    """List class texts, without empty and repeated texts of a label.

    `given` is a dict from labels to texts, or a list of such dicts: one for each kind of text.

    Examples
    --------
    >>> found = list_class_texts([{"N20": ["kidney stones"], "H93": "tinnitus"}, {"N20": "renal calculus"}])
    >>> found.labels, found.texts, found.kinds
    (['N20', 'H93', 'N20'], ['kidney stones', 'tinnitus', 'renal calculus'], [0, 0, 1])
    """
    by_kind = given if isinstance(given, list | tuple) else [given]
    found: dict[tuple[Any, str], int] = {}
    for kind, of_kind in enumerate(by_kind):
        if not isinstance(of_kind, Mapping) or kind >= MOST_KINDS:
            raise TypeError(
                "class_texts must be a dict from labels to their texts, such as {'N20': ['kidney stones']},"
                f" or a list of a few of them; got {type(of_kind).__name__}."
            )
        for label, texts in of_kind.items():
            listed = [texts] if isinstance(texts, str) else texts
            if not isinstance(listed, Iterable) or isinstance(listed, bytes):
                raise TypeError(
                    f"class_texts[{label!r}] is {type(texts).__name__}; give a text or a list of texts."
                )
            for text in listed:
                if not isinstance(text, str):
                    raise TypeError(f"class_texts[{label!r}] has {text!r}, which is not a text.")
                if text.strip():
                    found.setdefault((label, text.strip()), kind)
    return ListedTexts([label for label, _ in found], [text for _, text in found], list(found.values()))
