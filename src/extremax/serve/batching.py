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
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from extremax.serve.settings import ServeConfig, overloaded

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


class Work(Protocol):
    """What the rows of some requests have in common: rows with equal keys may share a call."""

    @property
    def row_time(self) -> RowTime: ...

    @property
    def key(self) -> Hashable: ...

    @property
    def step(self) -> int | None:
        """Rows by which a request may be cut into pieces without a change of answers; None: not at all."""
        ...

    def is_light(self, row: Any) -> bool:
        """Whether a row is one that takes no longer than others have taken."""
        ...

    def run(self, pieces: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Return one result per row of each piece; called in the thread of a lane, or of a light row."""
        ...


@dataclass
class _Job:
    work: Work
    rows: Sequence[Any]
    future: asyncio.Future[list[Any]]
    queued_at: float
    n_taken: int = 0
    results: list[Any] = field(default_factory=list)


class _Lane:
    """One queue and one thread."""

    def __init__(self, name: str, batcher: Batcher) -> None:
        self.jobs: deque[_Job] = deque()
        self.batcher = batcher
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"extremax-{name}")
        self.is_busy = False
        self.timer: asyncio.TimerHandle | None = None
        self.is_called = False  # whether `start_soon` is about to be called

    def add(self, job: _Job) -> None:
        """Queue a job; requests that have arrived together are all queued when the next call starts."""
        self.jobs.append(job)
        if not self.is_busy and not self.is_called:
            self.is_called = True
            asyncio.get_running_loop().call_soon(self._start_added)

    def _start_added(self) -> None:
        self.is_called = False
        self.start_soon()

    def start_soon(self) -> None:
        """Start the next call, or wait shortly for the rows of requests that are arriving."""
        if self.is_busy or not self.jobs:
            return
        config, queued = self.batcher.config, sum(len(job.rows) - job.n_taken for job in self.jobs)
        waited = time.monotonic() - self.jobs[0].queued_at
        may_wait = self.batcher.n_arriving > 0 and queued < config.max_batch_rows
        if not may_wait or waited >= config.max_wait_seconds:
            self._start()
        elif self.timer is None:
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(config.max_wait_seconds - waited, self._start)

    def _start(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        parts = self._take()
        if self.is_busy or not parts:
            return
        if self._answers_here(parts):
            self._finish_here(parts[0][0])
            return
        self.is_busy = True
        pieces = [job.rows[first:last] for job, first, last in parts]
        now = time.monotonic()
        for job, first, _ in parts:
            if first == 0:
                self.batcher.on_wait(now - job.queued_at)
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self.executor, self._call, parts[0][0].work, pieces)
        running.add_done_callback(lambda done: self._finish([job for job, _, _ in parts], done))

    def _answers_here(self, parts: list[tuple[_Job, int, int]]) -> bool:
        """Whether the call is that of one light row, which the thread of the event loop makes itself."""
        job = parts[0][0]
        alone = len(parts) == 1 and len(job.rows) == 1 and not self.jobs
        quick = job.work.row_time.is_within(self.batcher.config.max_inline_seconds)
        return alone and quick and job.work.is_light(job.rows[0])

    def _finish_here(self, job: _Job) -> None:
        self.batcher.on_wait(time.monotonic() - job.queued_at)
        outcome = self._call(job.work, [job.rows])[0]
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    def _take(self) -> list[tuple[_Job, int, int]]:
        """Take rows from the front of the queue: as many as fit into one call and may share it."""
        if self.is_busy:
            return []
        while self.jobs and self.jobs[0].future.done():  # given up
            self._leave(self.jobs.popleft())
        if not self.jobs:
            return []
        first = self.jobs[0]
        free = self.batcher.config.max_batch_rows
        parts: list[tuple[_Job, int, int]] = []
        while self.jobs and free > 0 and self.jobs[0].work.key == first.work.key:
            job = self.jobs[0]
            stop = job.n_taken + self._fitting(job, free)
            if parts and stop - job.n_taken > free:
                break
            parts.append((job, job.n_taken, stop))
            free -= stop - job.n_taken
            self.batcher.n_queued -= stop - job.n_taken
            job.n_taken = stop
            if stop < len(job.rows):
                break
            self.jobs.popleft()
        return parts

    @staticmethod
    def _fitting(job: _Job, free: int) -> int:
        """Return how many of the rows that are left make the next piece; at least one step of them."""
        left = len(job.rows) - job.n_taken
        step = None if left <= free else job.work.step
        if step is None:
            return left
        return min(left, max(step, free // step * step))

    def _leave(self, job: _Job) -> None:
        self.batcher.n_queued -= len(job.rows) - job.n_taken

    def _call(self, work: Work, pieces: list[Sequence[Any]]) -> list[list[Any] | Exception]:
        """Return the results of the pieces, or what went wrong with each."""
        started, used = time.perf_counter(), time.thread_time()
        try:
            results = work.run(pieces)
        except Exception as error:
            if len(pieces) == 1:
                return [error]
            return [self._call(work, [piece])[0] for piece in pieces]  # one request must not fail others
        wall, processor = time.perf_counter() - started, time.thread_time() - used
        self.batcher.on_batch(sum(map(len, pieces)), wall)
        if len(pieces) == 1 and len(pieces[0]) == 1 and work.is_light(pieces[0][0]):
            work.row_time.observe(processor, wall, self.batcher.config.max_inline_seconds)
        return list(results)

    def _finish(self, jobs: list[_Job], done: asyncio.Future[list[list[Any] | Exception]]) -> None:
        self.is_busy = False
        found = [RuntimeError("the thread of the model has ended")] * len(jobs)
        outcomes = found if done.cancelled() or done.exception() is not None else done.result()
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
                continue
            job.results.extend(outcome)
            if len(job.results) == len(job.rows):
                job.future.set_result(job.results)
        self.start_soon()


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

    async def run(self, work: Work, rows: Sequence[Any]) -> list[Any]:
        """Return the results of the rows; raise RequestError (503) where the queue is full."""
        if not rows:
            return []
        if self.n_queued and self.n_queued + len(rows) > self.config.max_queue_rows:
            raise overloaded(
                f"the queue is full: {self.n_queued:,} texts are waiting; try again in a second."
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
