"""The client of a cluster, and the executor that runs the heavy maps of a fit on its workers."""

from __future__ import annotations

import io
import math
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from extremax.runtime.executor import THREADS, Check, Task, Work, unchecked
from extremax.runtime.products import one_blas_thread

_HINT = "pip install 'extremax[dask]'"
_GROUPS_PER_THREAD = 8  # tasks of Dask that a map makes for each thread of the workers ...
_AHEAD = 2  # ... and how many of them are submitted at a time
_PATIENCE = 50.0  # seconds without any worker after which a fit gives up
_LOOK_SECONDS = 5.0  # after which a fit looks whether the worker of a task still runs
_HELPER_SHARE = 0.5  # of a worker's memory that what all share may take


def import_distributed() -> Any:
    """Return the module `distributed`, or say how to install it."""
    for name in ("dask.array", "distributed"):
        try:
            found = import_module(name)
        except ImportError as error:
            missing = error.name or name
            raise ImportError(
                f"extremax.dask needs the package {missing}, which is not installed: {_HINT}."
            ) from None
    return found


def find_client(client: Any, name: str) -> Any:
    """Return the client given, or the present one; refuse where there is none, or no worker."""
    distributed = import_distributed()
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise ValueError(
                "there is no Dask client; make one, client = distributed.Client(...), or pass it:"
                f" {name}(client=client)."
            ) from None
    if client.asynchronous:
        raise ValueError(
            f"the Dask client is asynchronous; {name} needs an ordinary one: Client(...) without"
            " asynchronous=True."
        )
    if client.status != "running":
        raise ValueError(f"the Dask client is {client.status}; make another, distributed.Client(...).")
    if not client.nthreads():
        raise ValueError(
            f"the Dask cluster at {client.scheduler.address} has no workers; start some, or scale the"
            " cluster."
        )
    return client


def make_key(what: str) -> str:
    """Return a key of a task; the dashboard shows what stands before its last hyphen."""
    return f"extremax-{what}-{uuid.uuid4().hex}"


class LostError(RuntimeError):
    """Raised where the cluster drops a task: its scheduler is gone, or rows in memory of a worker are."""


def is_connected(client: Any) -> bool:
    """Whether a client has a scheduler, after it has had the time to connect again."""
    end = time.monotonic() + _PATIENCE
    while client.status == "connecting" and time.monotonic() < end:
        time.sleep(0.05)
    return bool(client.status == "running")


def wait_for(client: Any, future: Any, name: str, *, gather: bool = False) -> Any:
    """Wait for a future; say in one sentence where the cluster cannot compute it.

    Returns
    -------
    object
        The future or, if `gather`, its result.
    """
    distributed = import_distributed()
    seen = time.monotonic()
    try:
        while not future.done():
            try:
                distributed.wait(future, timeout=1)
            except TimeoutError:
                found = list(client.scheduler_info(n_workers=-1)["workers"].values())
                seen = time.monotonic() if any(map(_is_at_work, found)) else seen
                if time.monotonic() - seen > _PATIENCE:
                    is_full = any(worker["status"] == "paused" for worker in found)
                    what = (
                        "paused all its workers, which have no memory left," if is_full else "had no worker"
                    )
                    raise RuntimeError(
                        f"the Dask cluster has {what} for {_PATIENCE:.0f} seconds; start some, and call"
                        f" {name} again."
                    ) from None
        if future.status == "error":
            raise future.exception().with_traceback(future.traceback())
        if future.cancelled():
            raise distributed.CancelledError
        return future.result() if gather else future
    except distributed.scheduler.KilledWorker as error:
        raise RuntimeError(
            f"{name} ended {error.last_worker.address if error.last_worker else 'a worker'} and others before"
            " it, most likely for want of memory; give the workers more."
        ) from None
    except (distributed.CancelledError, OSError) as error:
        if client.status == "running" and not future.cancelled():
            raise
        raise LostError(
            f"{name} lost the Dask scheduler, or rows in memory of a worker that ended"
            f" ({type(error).__name__}); connect again, and call it once more."
        ) from None
    except BaseException:
        future.cancel()
        raise


def _is_at_work(worker: dict[str, Any]) -> bool:
    tasks = worker["metrics"].get("task_counts", {})
    return worker["status"] == "running" or bool(tasks.get("executing") or tasks.get("long-running"))


def result_of(client: Any, future: Any, name: str) -> Any:
    """Return the result of a future; say in one sentence where the cluster cannot compute it."""
    return wait_for(client, future, name, gather=True)


def room_of(limit: int | None, pause: float | bool, taken: int) -> float:
    """Return the bytes that a worker can still take before Dask pauses it."""
    return max(1.0, limit * (float(pause) or 1.0) - taken) if limit else math.inf


class Shared(NamedTuple):
    """A value of the worker of the fit, and the future that stands for it on others."""

    value: Any
    future: Any


class DaskExecutor:
    """Maps over the workers of a cluster, for a fit that runs as a task of one of them.

    What is shared stays in the memory of the worker of the fit, and others fetch it from there, each once: it
    can only be lost together with the fit, which Dask then starts again. Workers that Dask has paused for
    want of memory get no tasks, and the fit does itself what they have left.

    Parameters
    ----------
    client
        That of the task.
    worker
        The worker of the task.
    key
        Of the task.
    """

    def __init__(self, client: Any, worker: Any, key: str) -> None:
        self.client, self.worker, self.key = client, worker, key

    @property
    def n_places(self) -> int:
        return len(self._places())

    def share(self, value: Any) -> Any:
        return Shared(value, self._hold(make_key("shared"), value))

    def map(
        self,
        begin: Callable[..., Work],
        shared: tuple[Any, ...],
        n_tasks: int,
        task: Task,
        n_threads: int,
        check: Check = unchecked,
    ) -> Iterator[Any]:
        values = [each.value if isinstance(each, Shared) else each for each in shared]
        places = self._places(values)
        if not {*places} - {self.worker.address}:
            yield from THREADS.map(begin, tuple(values), n_tasks, task, n_threads, self._checked(check))
            return
        n_groups, check = min(n_tasks, _GROUPS_PER_THREAD * len(places)), self._checked(check)
        key = make_key(begin.__name__.strip("_").removeprefix("begin_").replace("_", "-"))
        given = self._hold(f"{key}-given", [each for each in shared if not isinstance(each, Shared)])
        is_held = [isinstance(each, Shared) for each in shared]
        held = [each.future for each in shared if isinstance(each, Shared)]

        def submit(i: int) -> Any:
            first, last = n_tasks * i // n_groups, n_tasks * (i + 1) // n_groups
            tasks = [task(j) for j in range(first, last)]
            where = places[i % len(places)]
            arguments = begin, self._hold(f"{key}-group-{i}", tasks), is_held, given, *held
            options = {"workers": [where], "allow_other_workers": True}
            return where, tasks, self.client.submit(run_tasks, *arguments, key=f"{key}-{i}", **options)

        submitted: deque[Any] = deque()
        try:
            for i in range(n_groups):
                check(i / n_groups)
                while len(submitted) < min(_AHEAD * len(places), n_groups - i):
                    submitted.append(submit(i + len(submitted)))
                where, tasks, future = submitted[0]
                while not self._is_done(future):
                    check(i / n_groups)
                    running = self._places(values)
                    places = running or [self.worker.address]
                    if where not in running:  # the worker of the fit may be paused, too
                        future.cancel()
                        break
                submitted.popleft()
                yield from _run(begin, tasks, values) if future.cancelled() else future.result()
            check(1.0)
        finally:
            self.client.cancel([future for *_, future in submitted])

    def _places(self, values: Any = ()) -> list[str]:
        """Return the running workers that have room for some values, once for each of their threads."""
        size = import_module("dask.sizeof").sizeof
        n_bytes = sum(map(size, values))
        found = []
        for address, about in sorted(self.client.scheduler_info(n_workers=-1)["workers"].items()):
            room = _HELPER_SHARE * (about["memory_limit"] or math.inf)
            if about["status"] == "running" and (n_bytes <= room or address == self.worker.address):
                found += [address] * max(1, about["nthreads"])
        return found

    def _hold(self, key: str, value: Any) -> Any:
        return self.client.scatter({key: value}, hash=False)[key]

    def _checked(self, check: Check) -> Check:
        """Return a check that also ends a fit whose client has cancelled it, or is gone."""

        def checked(fraction: float) -> None:
            task = self.worker.state.tasks.get(self.key)
            if task is None or task.state == "cancelled":
                raise RuntimeError(f"the task {self.key} was cancelled.")
            check(fraction)

        return checked

    def _is_done(self, future: Any) -> bool:
        """Wait for a future for some seconds; return whether it is done."""
        try:
            import_distributed().wait(future, timeout=_LOOK_SECONDS)
        except TimeoutError:
            return False
        return True


def run_tasks(
    begin: Callable[..., Work], tasks: list[tuple[Any, ...]], is_held: list[bool], own: list[Any], *held: Any
) -> list[Any]:
    """Return the results of some tasks of a map."""
    values, others = iter(own), iter(held)
    return _run(begin, tasks, [next(others if each else values) for each in is_held])


def _run(begin: Callable[..., Work], tasks: list[tuple[Any, ...]], values: list[Any]) -> list[Any]:
    with one_blas_thread():
        work = begin(*values)
        return [work(*task) for task in tasks]


class Terminal(io.TextIOBase):
    """Sends what a task prints to the client that waits for it; see `forward_lines`."""

    def __init__(self, worker: Any, topic: str) -> None:
        self.worker, self.topic = worker, topic

    def write(self, text: str) -> int:
        self.worker.log_event(self.topic, text)
        return len(text)


@contextmanager
def forward_lines(client: Any) -> Iterator[str]:
    """Print on standard error what tasks print on a `Terminal` of the topic that this yields."""
    topic, n_printed, is_over = make_key("lines"), 0, False

    def show(event: tuple[float, str]) -> None:
        nonlocal n_printed
        if not is_over:
            n_printed += 1
            sys.stderr.write(event[1])

    found: Sequence[tuple[float, str]] = ()
    client.subscribe_topic(topic, show)
    try:
        yield topic
        found = client.get_events(topic)
        client.unsubscribe_topic(topic)
    finally:
        is_over = True
        sys.stderr.write("".join(text for _, text in found[n_printed:]))  # which were under way
