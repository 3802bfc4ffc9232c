"""The progress bar: what it shows, that it fits the terminal, and how often it is drawn."""

from __future__ import annotations

import io
import itertools
import os
from types import SimpleNamespace

import pytest

from extremax.runtime import progress
from extremax.runtime.progress import ProgressLine, format_seconds


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def set_clock(monkeypatch: pytest.MonkeyPatch, *, start: float, step: float) -> None:
    ticks = itertools.count(start=start, step=step)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def set_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda *args: os.terminal_size((columns, 24)))


def test_bar_shows_fraction_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=10.0, step=10.0)
    set_columns(monkeypatch, 80)
    stream = Terminal()
    line = ProgressLine(1, stream)
    line.update("epoch 3", 250, 1000, 0.0, "loss 0.5", unit="rows")  # at 10 s
    assert stream.getvalue() == "\repoch 3 [######..................]  25%  25 rows/s  loss 0.5  30.0s left"
    line.update("epoch 3", 1000, 1000, 0.0)  # shorter: the rest of the old line is overwritten
    assert len(stream.getvalue().split("\r")[2]) == len(stream.getvalue().split("\r")[1])


@pytest.mark.parametrize("columns", [20, 50, 66, 80, 200])
def test_bar_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    set_columns(monkeypatch, columns)
    stream = Terminal()
    ProgressLine(1, stream).update("epoch 12/50", 250, 1000, 0.0, "loss 0.5000", unit="rows")
    drawn = stream.getvalue().removeprefix("\r")
    assert len(drawn) < columns
    assert ("[" in drawn) == (columns > 60)


def test_terminal_of_unknown_width_counts_as_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: object) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", unknown)
    stream = Terminal()
    ProgressLine(1, stream).update("x" * 200, 250, 1000, 0.0)
    assert len(stream.getvalue().removeprefix("\r")) == 79


def test_bar_is_redrawn_at_most_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=1.01, step=0.01)
    stream = Terminal()
    line = ProgressLine(1, stream)
    for i in range(101):
        line.update("x", i, 1000, 0.0)  # one second of updates
    assert stream.getvalue().count("\r") in (5, 6)
    line.update("x", 1000, 1000, 0.0)  # the end is always shown
    assert "100%" in stream.getvalue()


def test_bytes_are_counted_in_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=10.0, step=10.0)
    stream = Terminal()
    ProgressLine(1, stream).update("reading", 50_000_000, 100_000_000, 0.0, unit="B")
    assert "5.0 MB/s" in stream.getvalue()


@pytest.mark.parametrize(("verbose", "terminal"), [(0, True), (1, False)])
def test_bar_needs_a_terminal_and_a_wish(verbose: int, terminal: bool) -> None:
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
        (60.0, "1:00"),
        (75.2, "1:15"),
        (3600.0, "1:00:00"),
        (3725.9, "1:02:05"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
