"""Progress of long work: a line that is redrawn in a terminal, and one line a phase in a log file."""

from __future__ import annotations

import shutil
import sys
import time
from contextvars import ContextVar
from datetime import timedelta
from typing import TextIO

_REFRESH_SECONDS = 0.2
# A log file gets its line so long after a phase has begun: by then one can tell how long it will take.
_LOG_SECONDS, _LOG_FRACTION, _MOST_LOG_SECONDS = 10.0, 0.05, 60.0
stream_of_fits: ContextVar[TextIO | None] = ContextVar("extremax_stream", default=None)


def format_seconds(seconds: float) -> str:
    """Format a duration: ``75.2`` as ``0:01:15``, ``3.2`` as ``3.2s``."""
    return f"{seconds:.1f}s" if seconds < 60 else str(timedelta(seconds=int(seconds)))


class ProgressLine:
    """Progress on one line of a terminal, or as one line a phase elsewhere, and log lines.

    Parameters
    ----------
    verbose
        0 is silent, 1 shows progress and the lines given to `log`.
    stream
        Stream to write to; that of `stream_of_fits`, or standard error, unless given.
    """

    def __init__(self, verbose: int, stream: TextIO | None = None) -> None:
        self.stream = stream or stream_of_fits.get() or sys.stderr
        self.enabled = verbose > 0
        self._in_terminal = self.enabled and self.stream.isatty()
        self._drawn = 0.0
        self._logged: float | None = None  # the beginning of the phase that has its line
        self._width = 0

    def log(self, text: str) -> None:
        """Write a line of its own, in a terminal or not."""
        if self.enabled:
            self.close()
            self.stream.write(text + "\n")
            self.stream.flush()

    def update(
        self, label: str, done: float, total: float, started: float, detail: str = "", *, unit: str = ""
    ) -> None:
        """Redraw the line, at most five times a second; elsewhere write it once, seconds after `started`.

        Parameters
        ----------
        label, detail
            What is done, and how it goes.
        done, total
            Amount of work.
        started
            ``time.perf_counter()`` of the beginning.
        unit
            Name of what is counted; its rate is shown.
        """
        now = time.perf_counter()
        if not self.enabled:
            return
        if self._in_terminal and now - self._drawn < _REFRESH_SECONDS and done < total:
            return
        if not self._in_terminal:
            wait = _LOG_SECONDS if done >= _LOG_FRACTION * total else _MOST_LOG_SECONDS
            if started == self._logged or now - started < wait or not 0 < done < total:
                return
        self._drawn, self._logged = now, started
        elapsed, fraction = max(now - started, 1e-9), done / total if total > 0 else 1.0
        rate = f"{done / elapsed:,.0f} {unit}/s" if unit else ""
        spent = f"{format_seconds(elapsed)} spent"
        if fraction > 0:
            spent += f", {format_seconds(elapsed * (1.0 - fraction) / fraction)} left"
        text = "  ".join(word for word in (label, f"{fraction:4.0%}", rate, detail, spent) if word)
        if not self._in_terminal:
            self.log(text)
            return
        text = text[: shutil.get_terminal_size().columns - 1]  # a longer line would wrap
        self.stream.write("\r" + text.ljust(self._width))
        self.stream.flush()
        self._width = len(text)

    def close(self) -> None:
        """Remove the progress."""
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
            self._width = 0
