"""Classes that were merged: several lines of the weights, the parts, that belong to one class.

The probability of a merged class is the sum of those of its parts.  Everything below a `Model`, weights,
noise and searches, knows parts alone; `extremax.scores.merged` adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Bool, Float64, Int32, Int64


@dataclass(frozen=True, eq=False)
class Parts:
    """The class of each part.

    Attributes
    ----------
    class_of : int32 (n_parts,)
        Every class from 0 to ``n_classes - 1`` has at least one part.

    Examples
    --------
    >>> parts = Parts(np.array([0, 1, 0], np.int32))
    >>> parts.n_classes, parts.sizes.tolist()
    (2, [2, 1])
    >>> np.exp(parts.sum_log(np.log(np.array([[0.2, 0.5, 0.3]])))).round(6).tolist()
    [[0.5, 0.5]]
    """

    class_of: Int32

    @property
    def n_parts(self) -> int:
        return len(self.class_of)

    @cached_property
    def sizes(self) -> Int64:
        """Parts of each class, (n_classes,)."""
        return np.bincount(self.class_of).astype(np.int64)

    @property
    def n_classes(self) -> int:
        return len(self.sizes)

    @cached_property
    def order(self) -> Int32:
        """All parts, class by class, and within a class ascending."""
        return np.argsort(self.class_of, kind="stable").astype(np.int32)

    @cached_property
    def starts(self) -> Int64:
        """Where the parts of each class begin in `order`, and where the last end: (n_classes + 1,)."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def merged_classes(self) -> Int32:
        """Classes of several parts, ascending."""
        return np.flatnonzero(self.sizes > 1).astype(np.int32)

    @cached_property
    def merged_parts(self) -> Int32:
        """The parts of these classes, class by class."""
        return self.order[self.sizes[self.class_of[self.order]] > 1]

    @cached_property
    def merged_starts(self) -> Int64:
        """Where the parts of each merged class begin in `merged_parts`."""
        ends = np.cumsum(self.sizes[self.merged_classes])
        return np.concatenate([[0], ends])[:-1].astype(np.int64)

    @cached_property
    def is_single(self) -> Bool:
        """Whether a part is all of its class, (n_parts,)."""
        found: Bool = self.sizes[self.class_of] == 1
        return found

    def of(self, label: int) -> Int32:
        """Return the parts of a class."""
        return self.order[self.starts[label] : self.starts[label + 1]]

    def expand(self, classes: NDArray[Any]) -> tuple[Int32, Int64]:
        """Return the parts of some classes one after the other, and where those of each begin."""
        sizes = self.sizes[classes]
        starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
        inside = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
        return self.order[np.repeat(self.starts[classes], sizes) + inside], starts.astype(np.int64)

    def sum(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the sums over the parts of each class of the last axis."""
        return self._reduce(np.add, table)

    def sum_log(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the log of the summed exp over the parts of each class of the last axis."""
        return self._reduce(np.logaddexp, table)

    def max(self, table: NDArray[Any]) -> NDArray[Any]:
        """Return the largest over the parts of each class of the last axis."""
        return self._reduce(np.maximum, table)

    def _reduce(self, operation: np.ufunc, table: NDArray[Any]) -> NDArray[Any]:
        out: NDArray[Any] = np.take(table, self.order[self.starts[:-1]], axis=-1)
        if len(self.merged_classes):
            found = operation.reduceat(table[..., self.merged_parts], self.merged_starts, axis=-1)
            out[..., self.merged_classes] = found
        return out

    def shares(self) -> Float64:
        """Return the fraction of all parts that each class has, (n_classes,)."""
        return self.sizes / self.n_parts

    def take(self, kept: Bool) -> tuple[Bool, Parts | None]:
        """Return which parts stay with some classes, and the parts of these; None where none is merged."""
        of_kept = kept[self.class_of]
        number = np.cumsum(kept) - 1
        return of_kept, Parts(number[self.class_of[of_kept]].astype(np.int32)).simplified()

    def simplified(self) -> Parts | None:
        """Return None where part i is class i."""
        plain = np.array_equal(self.class_of, np.arange(len(self.class_of)))
        return None if plain else self

    def state(self) -> State:
        """Return what a model folder stores."""
        return State({}, {"class_of": self.class_of})

    @classmethod
    def from_state(cls, state: State) -> Parts:
        """Build what `state` described, after a check that no class is without a part."""
        class_of = checks.get_array(state.arrays, "class_of", "i4", (None,))
        if len(class_of) == 0:
            checks.reject("its merged classes have no parts")
        checks.check_range(class_of, "class_of", 0, len(class_of))
        found = cls(np.array(class_of))
        if not found.sizes.all():
            checks.reject("a class of it has no part")
        return found


def parts_of(parts: Parts | None, n_classes: int) -> Parts:
    """Return the parts of a model, one for each class where nothing was merged."""
    return Parts(np.arange(n_classes, dtype=np.int32)) if parts is None else parts
