"""Which thread answers a single row: the event loop must not wait for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extremax import load_model
from extremax.serve import batching
from extremax.serve.batching import Batcher, RowTime
from extremax.serve.models import Predict, ServedModel, Slot
from extremax.serve.settings import ServeConfig
from serve.live import run_in_thread

LIMIT = 0.05
QUICK, SLOW = 0.0, 5 * LIMIT


@dataclass
class Sleep:
    """Rows are seconds to wait without the processor, as for a disk, by a clock of its own."""

    now: float = 0.0
    row_time: RowTime = field(default_factory=RowTime)
    in_loop: list[bool] = field(default_factory=list)

    def is_light(self, row: float) -> bool:
        return True

    def run(self, pieces: Sequence[Sequence[float]]) -> list[list[float]]:
        self.in_loop.append(is_loop_running())
        self.now += sum(map(sum, pieces))
        return [list(piece) for piece in pieces]


def is_loop_running() -> bool:
    """Whether this is the thread of an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[float]], list[bool]]:
    """Return a function for `answer_by`, with a clock that no other process can delay."""

    def ask(rows: Sequence[float]) -> list[bool]:
        work = Sleep()
        clock = SimpleNamespace(
            perf_counter=lambda: work.now, monotonic=lambda: work.now, thread_time=lambda: 0.0
        )
        monkeypatch.setattr(batching, "time", clock)
        return answer_by(work, rows)

    return ask


def answer_by(work: Sleep, rows: Sequence[float]) -> list[bool]:
    """Return which rows, asked one after the other, the thread of the event loop answers."""

    async def ask() -> None:
        batcher = Batcher(ServeConfig(max_inline_seconds=LIMIT))
        for row in rows:
            assert await batcher.run(work, [row]) == [row]
        await batcher.close()

    run_in_thread(ask())
    return work.in_loop


def test_rows_that_wait_for_the_disk_are_never_answered_by_the_event_loop(answer: Any) -> None:
    assert answer([3 * LIMIT] * 3) == [False] * 3


def test_one_slow_row_ends_the_answers_by_the_event_loop(answer: Any) -> None:
    assert answer([QUICK, QUICK, SLOW, QUICK, QUICK, SLOW]) == [False, True, True, *[False] * 3]


def test_quick_rows_in_the_lane_end_the_bar() -> None:
    time_of_rows = RowTime()
    assert not time_of_rows.is_within(LIMIT)  # nobody knows yet
    time_of_rows.observe(0.001, 0.001, LIMIT)
    assert time_of_rows.is_within(LIMIT)
    time_of_rows.observe(0.001, 4.1 * LIMIT, LIMIT)
    n_quick = 0
    while not time_of_rows.is_within(LIMIT):
        time_of_rows.observe(0.001, 0.001, LIMIT)
        n_quick += 1
        if n_quick == 50:
            time_of_rows.observe(0.001, 5.0, LIMIT)  # begins anew
    assert n_quick == 150


def test_processor_time_counts_alone_and_no_limit_is_never() -> None:
    time_of_rows = RowTime()
    time_of_rows.observe(1.1 * LIMIT, 1.1 * LIMIT, LIMIT)
    assert not time_of_rows.is_within(LIMIT)
    busy = RowTime()
    busy.observe(0.1 * LIMIT, 1.9 * LIMIT, LIMIT)  # waited for the processor
    assert busy.is_within(LIMIT)
    never = RowTime()
    never.observe(1e-6, 1e-6, 0.0)
    assert not never.is_within(0.0)


def test_each_search_and_kind_has_times_of_its_own(text_folder: Path) -> None:
    model = ServedModel("m", text_folder, load_model(text_folder))

    def time_of(search: str, kind: str, top_k: int = 5) -> RowTime:
        return Predict(model, top_k, search, kind, False).row_time

    beam = time_of("beam", "texts")
    beam.observe(0.001, 0.001, LIMIT)
    assert time_of("beam", "texts", top_k=3) is beam
    assert not time_of("exact", "texts").is_within(LIMIT)
    assert not time_of("beam", "sparse").is_within(LIMIT)


@pytest.mark.parametrize(("search", "tried"), [("beam", {"beam", "exact"}), ("exact", {"exact"})])
def test_loading_makes_what_exact_requests_need(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch, search: str, tried: set[str]
) -> None:
    search_all, seen = ServedModel._search, []

    def noted(model: ServedModel, pieces: Any, work: Predict) -> Any:
        seen.append(work.search)
        return search_all(model, pieces, work)

    monkeypatch.setattr(ServedModel, "_search", noted)
    served = Slot("m", text_folder).load(ServeConfig(search=search), lambda model: None)
    assert set(seen) == tried
    assert "_kept_columns" in served.clf.model_.weights.__dict__
