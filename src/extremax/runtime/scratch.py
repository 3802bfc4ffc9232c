"""Working memory: arrays that begin at a cache line, and pieces that tasks use one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np

from extremax.types import Float32

_LINE_BYTES = 64  # of a cache line

T = TypeVar("T")


class Scratch(Generic[T]):
    """Arrays, or other working memory, that is made once per thread rather than once per task.

    Attributes
    ----------
    all
        Everything that was made.

    Examples
    --------
    >>> scratch = Scratch(list)
    >>> with scratch.use() as first:
    ...     first.append(1)
    >>> with scratch.use() as again:
    ...     again
    [1]
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []
        self.all: list[T] = []

    @contextmanager
    def use(self) -> Iterator[T]:
        """Lend a piece to one task at a time; one that a task leaves by an error is not used again."""
        try:
            piece = self._free.pop()  # atomic, as is append
        except IndexError:  # asking for the length first would be a race
            piece = self._make()
            self.all.append(piece)
        try:
            yield piece
        except BaseException:  # tables that must be zero between tasks may not be
            self.all = [other for other in self.all if other is not piece]
            raise
        self._free.append(piece)


def aligned_empty(n: int) -> Float32:
    """Return n undefined float32 that begin at a cache line: SIMD loads then never touch two.

    Examples
    --------
    >>> aligned_empty(5).ctypes.data % 64
    0
    """
    raw = np.empty(4 * n + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    return raw[start : start + 4 * n].view(np.float32)
