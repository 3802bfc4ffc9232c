"""Ctrl-C: kept back until a safe place, let through at once elsewhere, and never in the way of an error."""

# ruff: noqa: PT012, SIM117 (what happens inside such blocks is what is tested)

from __future__ import annotations

import signal
import threading

import pytest

from extremax.runtime.interrupts import Interrupts


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_waits_for_a_check() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        interrupts.check()  # nothing yet
        press()
        done.append("half")
        press()
        done.append("whole")
        interrupts.check()
        done.append("never")
    assert done == ["half", "whole"]


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt):
        with interrupts.deferred():
            press()
            done.append("block")
        done.append("never")
    assert done == ["block"]
    interrupts.check()  # said once


def test_error_in_the_block_goes_first() -> None:
    interrupts = Interrupts()
    with pytest.raises(RuntimeError, match="disk full"), interrupts.deferred():
        press()
        raise RuntimeError("disk full")
    with interrupts.deferred():  # and what was pressed then is forgotten
        interrupts.check()


def test_ctrl_c_works_at_once_in_a_part() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.immediate():
            done.append("part")
            press()
            done.append("never")
    assert done == ["part"]


def test_ctrl_c_pressed_before_a_part_ends_it_before_it_begins() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        press()
        with interrupts.immediate():
            done.append("never")
    assert done == []


def test_ctrl_c_waits_again_after_a_part() -> None:
    interrupts, done = Interrupts(), []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        with interrupts.immediate():
            pass
        press()
        done.append("deferred")
        interrupts.check()
    assert done == ["deferred"]


@pytest.mark.parametrize("leave", ["normally", "interrupted", "by an error"])
def test_handler_is_put_back(leave: str) -> None:
    before, interrupts = signal.getsignal(signal.SIGINT), Interrupts()
    try:
        with interrupts.deferred(), interrupts.immediate():
            if leave == "interrupted":
                press()
            elif leave == "by an error":
                raise RuntimeError
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_handler_of_the_program_is_called() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        interrupts = Interrupts()
        with interrupts.deferred():
            press()
            assert heard == []
            interrupts.check()  # it raises nothing: the block goes on
            assert heard == [signal.SIGINT]
            press()
        assert heard == [signal.SIGINT, signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("ignored", [True, False])
def test_nothing_changes_in_another_thread_or_where_ctrl_c_is_ignored(ignored: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        interrupts = Interrupts()
        with interrupts.deferred(), interrupts.immediate():
            seen.append(signal.getsignal(signal.SIGINT))
            interrupts.check()

    try:
        if ignored:
            work()
        else:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIG_IGN if ignored else before]


def test_inner_blocks_of_other_interrupts() -> None:
    """A fit inside a callback of another fit: Ctrl-C ends the inner one."""
    outer, inner, done = Interrupts(), Interrupts(), []
    with outer.deferred():
        with outer.immediate():
            with pytest.raises(KeyboardInterrupt), inner.deferred():
                press()
                inner.check()
        done.append("outer")
        outer.check()
    assert done == ["outer"]


# -- threads that wait for each other


def test_an_immediate_block_that_was_never_left_keeps_the_handler() -> None:
    """Ctrl-C on the way into a `with` leaves its generator open, closed later than the blocks around."""
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    with interrupts.deferred():
        entered = interrupts.immediate()
        entered.__enter__()
    del entered
    assert signal.getsignal(signal.SIGINT) is before
