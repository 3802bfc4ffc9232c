"""Threads for kernels that release the GIL: one shared pool, safe from any number of calling threads.

A call splits its work into numbered tasks whose results do not depend on who runs them, so the thread count
never changes a result. The calling thread works too: a busy pool slows a call down but can never block it.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _forget_pool() -> None:
    # A forked child has none of the parent's threads: it must make its own.
    global _pool, _pool_size, _lock
    _pool, _pool_size, _lock = None, 0, threading.Lock()


if os.name == "posix":
    os.register_at_fork(after_in_child=_forget_pool)


def available_threads() -> int:
    """Return the number of processors that this process may use.

    The least of: the machine's processors, the affinity mask, the quota of a container (cgroup v1 and v2,
    rounded up), and the environment variable LOKY_MAX_CPU_COUNT.
    """
    # Not joblib.cpu_count: that one says 1 where processes cannot share semaphores, which threads need not.
    from joblib.externals.loky import cpu_count

    return int(cpu_count())


def resolve_threads(n_jobs: int | None) -> int:
    """Threads for an ``n_jobs`` in scikit-learn's sense: None and -1 mean all processors, -2 all but one."""
    if n_jobs is None:
        return available_threads()
    if n_jobs == 0:
        raise ValueError(
            "n_jobs is 0, which means no thread at all; give a positive number, or -1 for all processors."
        )
    if n_jobs < 0:
        return max(1, available_threads() + 1 + n_jobs)
    return n_jobs


def _workers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    with _lock:
        if _pool is None or _pool_size < count:
            # The old pool, if any, finishes what it holds and then ends by itself.
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool = ThreadPoolExecutor(count, thread_name_prefix="extremax")
            _pool_size = count
        return _pool


def run(task: Callable[[int], object], n_tasks: int, n_threads: int) -> None:  # noqa: C901 (every way out of a parallel call is handled here)
    """Call ``task(i)`` for every i in ``range(n_tasks)`` on up to `n_threads` threads, the caller among them.

    After an exception, or Ctrl-C, no further task is started. Returns, or raises, only when no task is
    running any more."""
    n_threads = min(n_threads, n_tasks)
    if n_threads <= 1:
        for i in range(n_tasks):
            task(i)
        return
    counter = itertools.count()  # next() on it is atomic
    stop, changed = threading.Event(), threading.Condition()
    errors: list[BaseException] = []
    n_running = 0

    def drain() -> None:
        while not stop.is_set() and (i := next(counter)) < n_tasks:
            task(i)

    def help_out() -> None:
        nonlocal n_running
        with changed:
            if stop.is_set():  # a helper that starts late: the arrays may be in use elsewhere
                return
            n_running += 1
        try:
            drain()
        except BaseException as error:
            stop.set()
            errors.append(error)
        finally:
            with changed:
                n_running -= 1
                changed.notify()

    try:
        for _ in range(n_threads - 1):
            try:
                _workers(n_threads - 1).submit(help_out)
            except RuntimeError:
                # The pool was replaced by a larger one between the two calls, the interpreter is ending, or
                # there are no more threads: the call may then wait in the pool all the same.
                break
        drain()
    except BaseException as caught:
        errors.insert(0, caught)
    stop.set()
    is_over = False
    while not is_over:
        try:
            with changed:
                is_over = changed.wait_for(lambda: n_running == 0)
        except KeyboardInterrupt as caught:  # while waiting, not in a task
            errors.append(caught)
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # they refer to this frame, and so to the caller's arrays


def split(n_items: int, block: int) -> list[tuple[int, int]]:
    """Cut ``range(n_items)`` into consecutive blocks; the cut depends on `block` alone, never on the
    thread count.
    """
    return [(start, min(start + block, n_items)) for start in range(0, n_items, block)]
