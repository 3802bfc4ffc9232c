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
    assert stream.getvalue() == "\repoch 3   25%  25 rows/s  loss 0.5  10.0s spent, 30.0s left"
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


@pytest.mark.parametrize("terminal", [True, False])
def test_silence_is_kept(terminal: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    line = ProgressLine(0, stream)
    line.update("x", 1, 2, 0.0)
    line.close()
    line.log("done")
    assert stream.getvalue() == ""


def test_a_log_file_gets_one_line_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch, start=1.0, step=1.0)
    stream = io.StringIO()
    line = ProgressLine(1, stream)
    for i in range(1, 41):  # at 1 s, 2 s, ...
        line.update(f"epoch {1 + i // 20}/2", i, 40, 0.0)
    for i in range(5):  # a phase of some seconds
        line.update("short", i, 5, 40.0)
    line.log("done")
    for i in range(1, 15):
        line.update("all rows", i, 40, 45.0)
    for _ in range(79):  # hardly a twentieth is done after ten seconds: too little to tell the time left
        line.update("slow", 1, 40, 59.0)
    line.close()
    assert stream.getvalue().splitlines() == [
        "epoch 1/2   25%  10.0s spent, 30.0s left",
        "done",
        "all rows   25%  10.0s spent, 30.0s left",
        "slow    2%  0:01:00 spent, 0:39:00 left",
    ]


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
