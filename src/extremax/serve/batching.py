"""Micro-batches: texts of many requests are scored in one call of the model.

A lane has one thread for the model. While it works, requests queue up, and its next call takes as many of
their rows as fit. Short requests have a lane of their own, so that they do not wait for long ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extremax.serve.answers import busy
from extremax.serve.metrics import Metrics
from extremax.serve.settings import ServeConfig

if TYPE_CHECKING:
    from extremax.serve.models import Predict


@dataclass
class _Job:
    """The rows of a request."""

    work: Predict
    rows: Sequence[Any]
    future: asyncio.Future[list[Any]]
    queued_at: float


class _Lane:
    """One queue and one thread."""

    def __init__(self, name: str, batcher: Batcher) -> None:
        self.jobs: deque[_Job] = deque()
        self.batcher = batcher
        self.executor = ThreadPoolExecutor(1, thread_name_prefix=f"extremax-{name}")
        self.running: asyncio.Task[None] | None = None

    def add(self, job: _Job) -> None:
        """Queue a job; requests that have arrived together are all queued when the next call starts."""
        self.jobs.append(job)
        self.batcher.n_queued += len(job.rows)
        if self.running is None:
            self.running = asyncio.create_task(self._work())

    async def _work(self) -> None:
        """Call the model until the queue is empty."""
        loop = asyncio.get_running_loop()
        while self.jobs:
            jobs, outcomes = self._take(), []
            try:
                outcomes = await loop.run_in_executor(self.executor, self._call, jobs) if jobs else []
            except RuntimeError as error:  # there are no more threads; later there may be
                outcomes = [error] * len(jobs)
            for job, outcome in zip(jobs, outcomes, strict=True):
                if job.future.done():  # given up
                    continue
                if isinstance(outcome, Exception):
                    job.future.set_exception(outcome)
                else:
                    job.future.set_result(outcome)
        self.running = None

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
                self.batcher.metrics.waits.observe(time.monotonic() - job.queued_at)
        return found

    def _call(self, jobs: list[_Job]) -> list[list[Any] | Exception]:
        """Return the results of the requests, or what went wrong with each."""
        pieces, started = [job.rows for job in jobs], time.perf_counter()
        try:
            results = jobs[0].work.run(pieces)
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [self._call([job])[0] for job in jobs]  # one request must not fail others
        self.batcher.metrics.count_batch(sum(map(len, pieces)), time.perf_counter() - started)
        return list(results)


class Batcher:
    """Queues of rows for the models, and the threads that score them.

    Parameters
    ----------
    config : ServeConfig
    metrics : Metrics
        Counts calls and the time that requests wait.
    """

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self.config, self.metrics = config, metrics
        self.n_queued = 0
        self._short, self._long = _Lane("short", self), _Lane("long", self)

    async def run(self, work: Predict, rows: Sequence[Any]) -> list[Any]:
        """Return the results of the rows, or answer 503 where the queue is full."""
        if not rows:
            return []
        if self.n_queued and self.n_queued + len(rows) > self.config.max_queue_rows:
            raise busy(f"the queue is full: {self.n_queued:,} texts are waiting; try again in a second.")
        job = _Job(work, rows, asyncio.get_running_loop().create_future(), time.monotonic())
        (self._short if len(rows) <= self.config.short_rows else self._long).add(job)
        return await job.future

    async def close(self) -> None:
        """Wait for what is queued, then end the threads."""
        for lane in (self._short, self._long):
            if lane.running is not None:
                await lane.running
            lane.executor.shutdown(wait=False)
