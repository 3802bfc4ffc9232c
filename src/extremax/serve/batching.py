"""Micro-batches: texts of many requests are scored in one call of the model.

A lane has one thread for the model.  While it works, requests queue up, and its next call takes as many of
their rows as fit.  A request that finds the thread idle starts at once, unless the bodies of other requests
are just arriving: then it waits for them, 2 ms at most.  Short requests have a lane of their own, so that
they do not wait for long ones.

A row that is alone is answered by the thread of the event loop itself where rows like it take at most
`ServeConfig.max_inline_seconds`, 5 ms, of the processor: to wake another thread and to be woken by it takes
about a millisecond, and much longer beside a full load.  Rows that keep the loop waiting, for the processor
or for the disk, go back to the thread of the lane; see `RowTime`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from extremax.serve.settings import ServeConfig

if TYPE_CHECKING:
    from extremax.serve.models import Predict

_WALL_FACTOR = 2.0  # a row may take so many times the limit by the clock: others use the processor, too
_SLOW_FACTOR = 4.0  # one row that takes longer than so many times the limit ...
_QUICK_ROWS = 100  # ... is followed by as many quick ones in the thread of the lane


class RowTime:
    """Time that a model takes for one light row of a kind: running means, unknown at first.

    A busy machine makes the clock run on while a row waits for the processor, and a model in mapped memory
    waits for the disk without using the processor: both times count, the one by the clock with more room.

    Attributes
    ----------
    processor, wall : float
        Mean seconds of the thread and of the clock.
    n_barred : int
        Quick rows that are still to be seen after a slow one.
    """

    def __init__(self) -> None:
        self.processor = self.wall = math.inf
        self.n_barred = 0

    def is_within(self, limit: float) -> bool:
        """Whether a row may be answered by the thread of the event loop."""
        return self.n_barred <= 0 and self.processor <= limit and self.wall <= _WALL_FACTOR * limit

    def observe(self, processor: float, wall: float, limit: float) -> None:
        """Take up the seconds of one row."""
        known = math.isfinite(self.wall)
        self.processor = 0.8 * self.processor + 0.2 * processor if known else processor
        self.wall = 0.8 * self.wall + 0.2 * wall if known else wall
        if wall > _SLOW_FACTOR * limit:
            self.n_barred = _QUICK_ROWS
        elif self.n_barred > 0 and wall <= _WALL_FACTOR * limit:
            self.n_barred -= 1


@dataclass
class _Job:
    """The rows of a request."""

    work: Predict
    rows: Sequence[Any]
    future: asyncio.Future[list[Any]]
    queued_at: float

    def finish(self, outcome: list[Any] | Exception) -> None:
        """Hand over the results, unless the request was given up."""
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class _Lane:
    """One queue and one thread."""

    def __init__(self, name: str, batcher: Batcher) -> None:
        self.jobs: deque[_Job] = deque()
        self.batcher = batcher
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"extremax-{name}")
        self.is_busy = False
        self.next_start: asyncio.Handle | None = None

    def add(self, job: _Job) -> None:
        """Queue a job; requests that have arrived together are all queued when the next call starts."""
        self.jobs.append(job)
        if isinstance(self.next_start, asyncio.TimerHandle):  # it may not have to wait any longer
            self.next_start.cancel()
            self.next_start = None
        if not self.is_busy and self.next_start is None:
            self.next_start = asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        """Start the next call, or wait shortly for the rows of requests that are arriving."""
        self.next_start = None
        if not self.jobs:
            return
        config, loop, now = self.batcher.config, asyncio.get_running_loop(), time.monotonic()
        n_queued = sum(len(job.rows) for job in self.jobs)
        left = config.max_wait_seconds - (now - self.jobs[0].queued_at)
        if self.batcher.n_arriving > 0 and n_queued < config.max_batch_rows and left > 0:
            self.next_start = loop.call_later(left, self._start)
            return
        jobs = self._take()
        for job in jobs:
            self.batcher.on_wait(now - job.queued_at)
        if self._answers_here(jobs):
            self._finish(jobs, self._call(jobs))
        elif jobs:
            self.is_busy = True
            running = loop.run_in_executor(self.executor, self._call, jobs)
            running.add_done_callback(lambda done: self._end(jobs, done))

    def _answers_here(self, jobs: list[_Job]) -> bool:
        """Whether the call is that of one light row, which the thread of the event loop makes itself."""
        if len(jobs) != 1 or len(jobs[0].rows) != 1 or self.jobs:
            return False
        work, row = jobs[0].work, jobs[0].rows[0]
        return work.row_time.is_within(self.batcher.config.max_inline_seconds) and work.is_light(row)

    def _take(self) -> list[_Job]:
        """Take requests from the front of the queue: as many as fit into one call and may share it."""
        found: list[_Job] = []
        free = self.batcher.config.max_batch_rows
        while self.jobs:
            job = self.jobs[0]
            if found and (len(job.rows) > free or job.work != found[0].work):
                break
            self.jobs.popleft()
            self.batcher.n_queued -= len(job.rows)
            if not job.future.done():  # not given up
                found.append(job)
                free -= len(job.rows)
        return found

    def _call(self, jobs: list[_Job]) -> list[list[Any] | Exception]:
        """Return the results of the requests, or what went wrong with each."""
        work, pieces = jobs[0].work, [job.rows for job in jobs]
        started, used = time.perf_counter(), time.thread_time()
        try:
            results = work.run(pieces)
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self._call([job])[0] for job in jobs]  # one request must not fail others
        wall, processor = time.perf_counter() - started, time.thread_time() - used
        self.batcher.on_batch(sum(map(len, pieces)), wall)
        if len(jobs) == 1 and len(pieces[0]) == 1 and work.is_light(pieces[0][0]):
            work.row_time.observe(processor, wall, self.batcher.config.max_inline_seconds)
        return list(results)

    def _end(self, jobs: list[_Job], done: asyncio.Future[list[list[Any] | Exception]]) -> None:
        self.is_busy = False
        failed = done.cancelled() or done.exception() is not None
        gone = RuntimeError("the thread of the model has ended")
        self._finish(jobs, [gone] * len(jobs) if failed else done.result())
        self._start()

    @staticmethod
    def _finish(jobs: list[_Job], outcomes: Sequence[list[Any] | Exception]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.finish(outcome)


class Batcher:
    """Queues of rows for the models, and the threads that score them.

    Parameters
    ----------
    config : ServeConfig
    on_batch : callable
        Called with rows and seconds of each call, in the thread of a lane.
    on_wait : callable
        Called with the seconds that a request has waited.
    """

    def __init__(
        self,
        config: ServeConfig,
        *,
        on_batch: Callable[[int, float], None] = lambda rows, seconds: None,
        on_wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.config, self.on_batch, self.on_wait = config, on_batch, on_wait
        self.n_queued = 0
        self.n_arriving = 0  # requests whose head is here and whose body is not
        self._short, self._long = _Lane("short", self), _Lane("long", self)

    async def run(self, work: Predict, rows: Sequence[Any]) -> list[Any]:
        """Return the results of the rows, or answer 503 where the queue is full."""
        if not rows:
            return []
        if self.n_queued and self.n_queued + len(rows) > self.config.max_queue_rows:
            raise HTTPException(
                503,
                f"the queue is full: {self.n_queued:,} texts are waiting; try again in a second.",
                {"Retry-After": "1"},
            )
        job = _Job(work, rows, asyncio.get_running_loop().create_future(), time.monotonic())
        lane = self._short if len(rows) <= self.config.short_rows else self._long
        self.n_queued += len(rows)
        lane.add(job)
        return await job.future

    async def close(self) -> None:
        """Wait for what is queued, then end the threads."""
        while self.n_queued or self._short.is_busy or self._long.is_busy:
            await asyncio.sleep(0.005)
        for lane in (self._short, self._long):
            lane.executor.shutdown(wait=False)
