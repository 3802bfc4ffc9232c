"""Tasks on the workers of a Dask cluster: submitting them, their threads, and what the cluster has."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from extremax.runtime.threads import resolve_threads

_HINT = "pip install 'extremax[dask]'"


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


def import_delayed() -> Any:
    """Return `dask.delayed`."""
    return import_module("dask").delayed


def find_client(client: Any = None) -> Any:
    """Return the client given, or the present one; refuse where there is none, or no worker."""
    distributed = import_distributed()
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise ValueError(
                "there is no Dask client; make one, client = distributed.Client(...), or pass it:"
                " DaskExtremeClassifier(client=client)."
            ) from None
    if client.asynchronous:
        raise ValueError(
            "the Dask client is asynchronous; DaskExtremeClassifier needs an ordinary one: Client(...)"
            " without asynchronous=True."
        )
    if not client.nthreads():
        raise ValueError(
            f"the Dask cluster at {client.scheduler.address} has no workers; start some, or scale the"
            " cluster."
        )
    return client


class Job:
    """The tasks of one call: keys of its own, and the threads that tasks may use.

    Parameters
    ----------
    client
        A client of a cluster that has workers.
    n_jobs
        Threads of a task; None means those of its worker.
    """

    def __init__(self, client: Any, n_jobs: int | None = None) -> None:
        self.client, self.n_jobs = client, n_jobs
        self.token, self._count = uuid.uuid4().hex[:12], 0
        self.threads: dict[str, int] = client.nthreads()

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers."""
        return sorted(self.threads)

    @property
    def task_threads(self) -> int:
        """Threads of a task of which every worker has its own: those of the smallest worker."""
        return min(self.threads.values()) if self.n_jobs is None else resolve_threads(self.n_jobs)

    @property
    def lone_threads(self) -> int:
        """Threads of a task that all others wait for: those of all workers of one machine."""
        if self.n_jobs is not None:
            return resolve_threads(self.n_jobs)
        of_host: dict[str, int] = defaultdict(int)
        for address, n_threads in self.threads.items():
            of_host[address.rpartition(":")[0]] += n_threads
        return min(min(of_host.values()), resolve_threads(None))

    def submit(
        self, function: Callable[..., Any], *arguments: Any, worker: str | None = None, **more: Any
    ) -> Any:
        """Return the future of a call; futures among the arguments are its dependencies."""
        self._count += 1
        name = getattr(function, "__name__", "call").strip("_")
        options: dict[str, Any] = {"key": f"extremax-{name}-{self.token}-{self._count}", "pure": False}
        if worker is not None and worker in self.client.nthreads():
            options |= {"workers": [worker], "allow_other_workers": True}
        return self.client.submit(function, *arguments, **more, **options)

    def map(self, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Return the futures of calls with one argument from each column."""
        return [self.submit(function, *arguments) for arguments in zip(*columns, strict=True)]

    def gather(self, futures: Any) -> Any:
        """Wait for futures and return their results."""
        return self.client.gather(futures)

    def memory_limits(self) -> list[int]:
        """Return the memory of each worker, in bytes; zero where it has no limit."""
        found: dict[str, int] = self.client.run_on_scheduler(_memory_limits)
        return list(found.values())


def _memory_limits(dask_scheduler: Any) -> dict[str, int]:
    return {address: int(worker.memory_limit or 0) for address, worker in dask_scheduler.workers.items()}
