"""Where the heavy maps of a fit run: on threads of this process or, given another executor, elsewhere.

A map has tasks whose results do not depend on who computes them, and yields the results in their order: so a
sum over them has one order, and no result depends on the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from extremax.runtime.threads import run, split

_TASKS_BETWEEN_CHECKS = 64
Check = Callable[[float], None]  # told of the fraction done; raises to interrupt
Work = Callable[..., Any]
Task = Callable[[int], tuple[Any, ...]]  # the arguments of a task, by its number


def unchecked(fraction: float) -> None:
    """Let a map run without a look at interrupts."""


class Executor(Protocol):
    """Maps functions over tasks."""

    @property
    def n_places(self) -> int:
        """Processes that share a map."""
        ...

    def share(self, value: Any) -> Any:
        """Return what stands for a value in the `shared` of several maps."""
        ...

    def map(
        self,
        begin: Callable[..., Work],
        shared: tuple[Any, ...],
        n_tasks: int,
        task: Task,
        n_threads: int,
        check: Check = unchecked,
    ) -> Iterator[Any]:
        """Yield ``begin(*shared)(*task(i))`` for each i, in their order.

        `begin`, a function of a module, is called once or more in every process that takes part, and makes
        working memory. Nothing shared may be written. Arguments of a task are made when its turn comes.
        """
        ...


class Threads:
    """The executor of one machine."""

    n_places = 1

    def share(self, value: Any) -> Any:
        return value

    def map(
        self,
        begin: Callable[..., Work],
        shared: tuple[Any, ...],
        n_tasks: int,
        task: Task,
        n_threads: int,
        check: Check = unchecked,
    ) -> Iterator[Any]:
        work = begin(*shared)
        for first, last in split(n_tasks, _TASKS_BETWEEN_CHECKS * n_threads):
            check(first / n_tasks)
            found: list[Any] = [None] * (last - first)

            def call(i: int, first: int = first, found: list[Any] = found) -> None:
                found[i] = work(*task(first + i))

            run(call, last - first, n_threads)
            yield from found
        check(1.0)


THREADS = Threads()
_current: ContextVar[Executor] = ContextVar("extremax_executor", default=THREADS)


def current_executor() -> Executor:
    """Return the executor of the fits that this thread starts."""
    return _current.get()


@contextmanager
def use_executor(executor: Executor) -> Iterator[None]:
    """Let fits inside the block run their maps on an executor."""
    token = _current.set(executor)
    try:
        yield
    finally:
        _current.reset(token)
