"""Ctrl-C and SIGTERM: a command ends with a word and exit code 130, before and after it starts."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


@contextmanager
def leave_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once, until a command starts; an ignored Ctrl-C stays ignored."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def command_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt in a command, where no module is being imported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {}
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _leave):
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"extremax: interrupted.\n")
    os._exit(EXIT_INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # not `frame`: training keeps an interrupt back, and calls this when no module is being imported any more
    above: FrameType | None = sys._getframe(1)
    while above is not None:
        # a module of C may turn an interrupt into an ImportError, and half a module is of no use
        if above.f_code.co_filename == _IMPORT_SYSTEM:
            _leave(number, frame)
        above = above.f_back
    signal.default_int_handler(number, frame)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)  # whatever Ctrl-C does now: end training and save, or nothing
