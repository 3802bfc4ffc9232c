"""One line in the terminal while long work runs: fraction done, rate, loss, time left."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

_REFRESH_SECONDS = 0.2
_BAR_WIDTH, _MIN_BAR_WIDTH = 24, 6


def format_seconds(seconds: float) -> str:
    """Format a duration: ``75.2`` as ``1:15``, ``3.2`` as ``3.2s``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressLine:
    """A progress bar on one line of a terminal, and log lines above it.

    Parameters
    ----------
    verbose
        0 is silent, 1 shows the bar, in a terminal only, and the lines given to `log`.
    stream
        Stream to write to; standard error unless given.
    """

    def __init__(self, verbose: int, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.enabled = verbose > 0
        self.shows_bar = self.enabled and self.stream.isatty()
        self._drawn = 0.0
        self._width = 0

    def log(self, text: str) -> None:
        """Write a line of its own, in a terminal or not."""
        if self.enabled:
            self._clear()
            self.stream.write(text + "\n")
            self.stream.flush()

    def update(
        self, label: str, done: float, total: float, started: float, detail: str = "", *, unit: str = ""
    ) -> None:
        """Redraw the bar, at most five times a second.

        Parameters
        ----------
        label, detail
            Text before the bar, and after it.
        done, total
            Amount of work.
        started
            ``time.perf_counter()`` of the beginning.
        unit
            Name of what is counted; its rate is shown, of "B" in megabytes.
        """
        now = time.perf_counter()
        if not self.shows_bar or (now - self._drawn < _REFRESH_SECONDS and done < total):
            return
        self._drawn = now
        fraction = done / total if total > 0 else 1.0
        elapsed = max(now - started, 1e-9)
        rate = (
            f"{done / elapsed / 1e6:,.1f} MB/s"
            if unit == "B"
            else f"{done / elapsed:,.0f} {unit}/s"
            if unit
            else ""
        )
        left = f"{format_seconds(elapsed * (1.0 - fraction) / fraction)} left" if fraction > 0 else ""
        words = "  ".join(word for word in (f"{fraction:4.0%}", rate, detail, left) if word)
        # a line wider than the terminal would wrap, and every update would start another one
        columns = _columns(self.stream) - 1
        width = min(_BAR_WIDTH, columns - len(label) - len(words) - 4)
        filled = int(width * fraction)
        bar = f"[{'#' * filled}{'.' * (width - filled)}] " if width >= _MIN_BAR_WIDTH else ""
        text = f"{label} {bar}{words}"[:columns]
        self.stream.write("\r" + text + " " * max(0, self._width - len(text)))
        self.stream.flush()
        self._width = len(text)

    def _clear(self) -> None:
        if self.shows_bar and self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self._width = 0

    def close(self) -> None:
        """Remove the bar."""
        self._clear()
        if self.shows_bar:
            self.stream.flush()


def _columns(stream: TextIO) -> int:
    """Return the width of the terminal behind a stream; 80 where that cannot be known."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
