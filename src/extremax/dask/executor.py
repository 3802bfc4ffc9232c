"""The client of a cluster, and the executor that runs the heavy maps of a fit on its workers."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from extremax.runtime.executor import Check, Task, Work, unchecked
from extremax.runtime.products import one_blas_thread

_HINT = "pip install 'extremax[dask]'"
_GROUPS_PER_THREAD = 8  # tasks of Dask that a map makes for each thread of the workers ...
_AHEAD = 2  # ... and how many of them are submitted at a time
_PATIENCE = 30.0  # seconds without any worker after which a fit gives up


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


def result_of(client: Any, future: Any, name: str) -> Any:
    """Wait for a future, and say in one sentence where the cluster cannot compute it."""
    distributed = import_distributed()
    seen = time.monotonic()
    try:
        while not future.done():
            try:
                distributed.wait(future, timeout=1)
            except TimeoutError:
                seen = time.monotonic() if client.nthreads() else seen
                if time.monotonic() - seen > _PATIENCE:
                    raise RuntimeError(
                        f"the Dask cluster has had no worker for {_PATIENCE:.0f} seconds; start some, and"
                        f" call {name} again."
                    ) from None
        return future.result()
    except distributed.scheduler.KilledWorker as error:
        raise RuntimeError(
            f"{name} ended {error.last_worker.address if error.last_worker else 'a worker'} and others before"
            " it, most likely for want of memory; give the workers more."
        ) from None
    except (distributed.CancelledError, OSError) as error:
        if client.status == "running" and not future.cancelled():
            raise
        raise RuntimeError(
            f"{name} lost the Dask scheduler ({type(error).__name__}); connect again, and call it once more."
        ) from None
    except BaseException:
        future.cancel()
        raise


class DaskExecutor:
    """Maps over the workers of a cluster, for a fit that runs on one of them.

    What is shared stays in the memory of the worker of the fit, and others fetch it from there, each once: it
    can only be lost together with the fit, which Dask then starts again.
    """

    def __init__(self, client: Any) -> None:
        self.client = client

    @property
    def n_places(self) -> int:
        return sum(self.client.nthreads().values())

    def share(self, value: Any) -> Any:
        return self._hold(make_key("shared"), value)

    def _hold(self, key: str, value: Any) -> Any:
        return self.client.scatter({key: value}, hash=False)[key]

    def map(
        self,
        begin: Callable[..., Work],
        shared: tuple[Any, ...],
        n_tasks: int,
        task: Task,
        n_threads: int,
        check: Check = unchecked,
    ) -> Iterator[Any]:
        kind = import_distributed().Future
        places = [address for address, n in sorted(self.client.nthreads().items()) for _ in range(max(1, n))]
        n_groups = min(n_tasks, _GROUPS_PER_THREAD * max(1, len(places)))
        is_held = [isinstance(value, kind) for value in shared]
        held = [value for value in shared if isinstance(value, kind)]
        key = make_key(begin.__name__.strip("_").removeprefix("begin_").replace("_", "-"))
        given = self._hold(f"{key}-given", [value for value in shared if not isinstance(value, kind)])

        def submit(i: int) -> Any:
            first, last = n_tasks * i // n_groups, n_tasks * (i + 1) // n_groups
            group = self._hold(f"{key}-group-{i}", [task(j) for j in range(first, last)])
            where = {"workers": [places[i % len(places)]], "allow_other_workers": True} if places else {}
            arguments = begin, group, is_held, given, *held
            return self.client.submit(run_tasks, *arguments, key=f"{key}-{i}", **where)

        futures: deque[Any] = deque()
        try:
            for i in range(n_groups):
                check(i / n_groups)
                while len(futures) < min(_AHEAD * max(1, len(places)), n_groups - i):
                    futures.append(submit(i + len(futures)))
                yield from futures.popleft().result()
            check(1.0)
        finally:
            self.client.cancel(list(futures))


def run_tasks(
    begin: Callable[..., Work], tasks: list[tuple[Any, ...]], is_held: list[bool], own: list[Any], *held: Any
) -> list[Any]:
    """Return the results of some tasks of a map."""
    values, others = iter(own), iter(held)
    shared = [next(others if each else values) for each in is_held]
    with one_blas_thread():
        work = begin(*shared)
        return [work(*task) for task in tasks]
