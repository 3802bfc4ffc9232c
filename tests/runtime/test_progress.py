"""The progress line: what it shows, that it fits the terminal, and how often it is drawn."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import pytest

from extremax.runtime import progress
from extremax.runtime.progress import ProgressLine, format_seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def set_clock(monkeypatch: pytest.MonkeyPatch, *, start: float, step: float) -> None:
    ticks = itertools.count(start=start, step=step)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def test_line_shows_fraction_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=10.0, step=10.0)
    stream = Terminal()
    line = ProgressLine(1, stream)
    line.update("epoch 3", 250, 1000, 0.0, "loss 0.5", unit="rows")  # at 10 s
    assert stream.getvalue() == "\repoch 3   25%  25 rows/s  loss 0.5  30.0s left"
    line.update("epoch 3", 1000, 1000, 0.0)  # shorter: the rest of the old line is overwritten
    assert len(stream.getvalue().split("\r")[2]) == len(stream.getvalue().split("\r")[1])


def test_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    ProgressLine(1, stream).update("epoch 12/50", 250, 1000, 0.0, "loss 0.5000", unit="rows")
    assert len(stream.getvalue().removeprefix("\r")) == 19


def test_line_is_redrawn_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=1.01, step=0.01)
    stream = Terminal()
    line = ProgressLine(1, stream)
    for i in range(101):
        line.update("x", i, 1000, 0.0)  # one second of updates
    assert stream.getvalue().count("\r") in (5, 6)
    line.update("x", 1000, 1000, 0.0)  # the end is always shown
    assert "100%" in stream.getvalue()


@pytest.mark.parametrize(("verbose", "terminal"), [(0, True), (1, False)])
def test_line_needs_a_terminal_and_a_wish(verbose: int, terminal: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    line = ProgressLine(verbose, stream)
    line.update("x", 1, 2, 0.0)
    line.close()
    assert stream.getvalue() == ""
    line.log("done")
    assert stream.getvalue() == ("done\n" if verbose else "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (60.0, "0:01:00"),
        (75.2, "0:01:15"),
        (3600.0, "1:00:00"),
        (3725.9, "1:02:05"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
