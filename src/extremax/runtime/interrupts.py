"""Ctrl-C as a flag that training looks at between minibatches."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Whether Ctrl-C was pressed; `check` raises what the usual handler raises, at a place that is safe.

    Examples
    --------
    >>> interrupts, done = Interrupts(), []
    >>> try:
    ...     with interrupts.deferred():
    ...         for batch in range(3):
    ...             signal.raise_signal(signal.SIGINT)
    ...             done.append(batch)
    ...             interrupts.check()
    ... except KeyboardInterrupt:
    ...     print(done)
    [0]
    """

    def __init__(self) -> None:
        self._pressed: list[tuple[int, FrameType | None]] = []
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Keep Ctrl-C back until `check` is called or the block ends; an error in the block goes first.

        Python delivers signals to the main thread alone: elsewhere there is nothing to keep back.
        """
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(handler):
            yield
            return
        self._pressed, self._handler = [], handler
        signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
            self._handler = None
        pressed, self._pressed = self._pressed, []
        if pressed:
            handler(*pressed[0])

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Let Ctrl-C work at once in a part of a `deferred` block, such as a callback that may take long."""
        handler = self._handler
        if threading.current_thread() is not threading.main_thread() or not callable(handler):
            yield
            return
        signal.signal(signal.SIGINT, handler)
        try:
            self.check()
            yield
        finally:
            # Ctrl-C on the way into the `with` leaves this generator to the garbage collector, which may
            # close it after the deferred block has put the handler back.
            if self._handler is not None:
                signal.signal(signal.SIGINT, self._press)

    def _press(self, number: int, frame: FrameType | None) -> None:
        self._pressed.append((number, frame))

    def check(self) -> None:
        """Raise KeyboardInterrupt, or call the program's own handler, if Ctrl-C was pressed."""
        if self._pressed and self._handler is not None:
            pressed, self._pressed = self._pressed, []
            self._handler(*pressed[0])
