"""One line in the terminal while long work runs: share done, rate, loss, time left. Silent when nobody is
watching.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

_REFRESH_SECONDS = 0.2
_BAR_WIDTH, _SHORTEST_BAR = 24, 6


def format_seconds(seconds: float) -> str:
    """``75.2`` -> ``1:15``; ``3.2`` -> ``3.2s``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressLine:
    """A bar on one line of a terminal; ``say`` writes a line of its own and is not limited to terminals.

    Parameters
    ----------
    verbose
        0 is silent, 1 shows the bar in a terminal and the lines given to `say`.
    stream
        Where to write; standard error unless given.
    """

    def __init__(self, verbose: int, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.enabled = verbose > 0
        self.shows_bar = self.enabled and self.stream.isatty()
        self._drawn = 0.0
        self._width = 0

    def say(self, text: str) -> None:
        """Write a finished line."""
        if self.enabled:
            self._clear()
            self.stream.write(text + "\n")
            self.stream.flush()

    def update(
        self, label: str, done: float, total: float, started: float, detail: str = "", *, unit: str = ""
    ) -> None:
        """Redraw the bar, at most five times a second; `started` is the ``time.perf_counter`` of the
        beginning.

        `unit` names what is counted, and has its rate shown; "B" is shown as megabytes.
        """
        now = time.perf_counter()
        if not self.shows_bar or (now - self._drawn < _REFRESH_SECONDS and done < total):
            return
        self._drawn = now
        share = done / total if total > 0 else 1.0
        elapsed = max(now - started, 1e-9)
        rate = (
            f"{done / elapsed / 1e6:,.1f} MB/s"
            if unit == "B"
            else f"{done / elapsed:,.0f} {unit}/s"
            if unit
            else ""
        )
        left = f"{format_seconds(elapsed * (1.0 - share) / share)} left" if share > 0 else ""
        words = "  ".join(word for word in (f"{share:4.0%}", rate, detail, left) if word)
        # A line longer than the terminal is wide would break, and every update would start another one.
        room = _columns(self.stream) - 1
        width = min(_BAR_WIDTH, room - len(label) - len(words) - 4)
        filled = int(width * share)
        bar = f"[{'#' * filled}{'.' * (width - filled)}] " if width >= _SHORTEST_BAR else ""
        text = f"{label} {bar}{words}"[:room]
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
    """Width of the terminal behind a stream; 80 where that cannot be known."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
