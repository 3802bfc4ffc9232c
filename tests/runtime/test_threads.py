"""The thread pool: every task once, errors, any number of callers, nested calls, forked children."""

from __future__ import annotations

import _thread
import io
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremax.runtime import threads as parallel
from extremax.runtime.threads import available_threads, resolve_threads, run, split

pytestmark = pytest.mark.small

PATIENCE = 120.0  # seconds that nothing takes, on a machine that has much else to do


@pytest.mark.parametrize("n_threads", [1, 2, 3, 16])
@pytest.mark.parametrize("n_tasks", [0, 1, 2, 7, 1000])
def test_every_task_runs_once(n_tasks: int, n_threads: int) -> None:
    counts = np.zeros(n_tasks, dtype=int)

    def task(i: int) -> None:
        counts[i] += 1

    run(task, n_tasks, n_threads)
    assert (counts == 1).all()


def test_tasks_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE)
    run(lambda i: meeting.wait(), 3, 3)  # hangs, then breaks, unless three threads arrive


def test_one_thread_runs_in_the_caller_in_order() -> None:
    seen: list[tuple[int, int]] = []
    run(lambda i: seen.append((i, threading.get_ident())), 5, 1)
    assert seen == [(i, threading.get_ident()) for i in range(5)]


def test_no_more_threads_than_asked_for() -> None:
    run(lambda i: time.sleep(0.001), 8, 8)  # the pool is now larger than the next call wants
    seen: set[int] = set()

    def task(i: int) -> None:
        seen.add(threading.get_ident())
        time.sleep(0.001)

    run(task, 100, 2)
    assert 1 <= len(seen) <= 2


@pytest.mark.parametrize("n_threads", [1, 2, 4])
@pytest.mark.parametrize("failing", [0, 5, 39])
def test_exception_reaches_the_caller_after_all_tasks_ended(n_threads: int, failing: int) -> None:
    running = [0]
    lock = threading.Lock()

    def task(i: int) -> None:
        with lock:
            running[0] += 1
        try:
            time.sleep(0.002)
            if i == failing:
                raise KeyError(f"task {i}")
        finally:
            with lock:
                running[0] -= 1

    with pytest.raises(KeyError, match=f"task {failing}"):
        run(task, 40, n_threads)
    assert running[0] == 0


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_exception_stops_further_tasks(n_threads: int) -> None:
    started: list[int] = []

    def task(i: int) -> None:
        started.append(i)
        time.sleep(0.001)
        if i == 3:
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        run(task, 10_000, n_threads)
    # about 3 + n_threads; another thread may get ahead while the exception is under way
    assert len(started) < 5_000


def test_exceptions_on_all_threads_give_one() -> None:
    together = threading.Barrier(4, timeout=PATIENCE)

    def task(i: int) -> None:
        together.wait()
        raise ValueError(f"task {i}")

    with pytest.raises(ValueError, match="task"):
        run(task, 4, 4)


@pytest.mark.parametrize("caller_is_busy", [True, False])
def test_interrupt_waits_for_running_tasks(caller_is_busy: bool) -> None:
    ended: list[bool] = []
    both_run = threading.Barrier(2, timeout=PATIENCE)

    def task(i: int) -> None:
        both_run.wait()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
            _thread.interrupt_main()
            time.sleep(0.2)
            ended.append(True)
        elif caller_is_busy:
            for _ in range(200):
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        run(task, 2, 2)
    assert ended == [True]


def test_pool_works_after_an_exception() -> None:
    def fail(i: int) -> None:
        raise ValueError("no")

    for _ in range(5):
        with pytest.raises(ValueError, match="no"):
            run(fail, 10, 4)
    test_tasks_run_at_the_same_time()


def test_nested_calls_finish() -> None:
    counts = np.zeros((6, 6, 6), dtype=int)

    def innermost(i: int, j: int, k: int) -> None:
        counts[i, j, k] += 1

    def inner(i: int, j: int) -> None:
        run(lambda k: innermost(i, j, k), 6, 4)

    run(lambda i: run(lambda j: inner(i, j), 6, 4), 6, 4)
    assert (counts == 1).all()


def test_many_callers_at_once() -> None:
    def call(caller: int) -> int:
        results = np.zeros(50, dtype=int)

        def task(i: int) -> None:
            results[i] = caller * i

        for n_threads in (2, 3, 5, 8):  # each larger count replaces the pool under the other callers
            run(task, 50, n_threads)
        return int(results.sum())

    with ThreadPoolExecutor(16) as callers:
        assert list(callers.map(call, range(64))) == [caller * 1225 for caller in range(64)]


def test_busy_pool_does_not_block_another_caller() -> None:
    release, started = threading.Event(), threading.Event()

    def hold(i: int) -> None:
        started.set()
        assert release.wait(PATIENCE)

    size = max(2, parallel._pool_size + 1)
    holder = threading.Thread(target=run, args=(hold, size, size))
    holder.start()
    try:
        assert started.wait(PATIENCE)
        done: list[int] = []
        run(done.append, 20, 2)  # its helper may never start: the caller does the work
        assert sorted(done) == list(range(20))
    finally:
        release.set()
        holder.join()


def test_helper_of_a_pool_that_fails_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool without room for another thread raises after it has queued the call."""
    taken, others_done = threading.Event(), threading.Event()
    done: list[int] = []

    class Full:
        def submit(self, call: Any) -> None:
            threading.Thread(target=call).start()
            assert taken.wait(PATIENCE)
            raise RuntimeError("can't start new thread")

    def task(i: int) -> None:
        if i == 0:
            taken.set()
            assert others_done.wait(PATIENCE)
            time.sleep(0.05)
        done.append(i)
        if len(done) == 9:
            others_done.set()

    monkeypatch.setattr(parallel, "_workers", lambda count: Full())
    run(task, 10, 2)
    assert sorted(done) == list(range(10))


def _sum_in_child(queue: Any) -> None:
    results = np.zeros(20, dtype=int)

    def task(i: int) -> None:
        results[i] = i

    run(task, 20, 4)
    queue.put(int(results.sum()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_child_makes_its_own_pool() -> None:
    run(lambda i: time.sleep(0.001), 8, 4)
    assert parallel._pool is not None
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(queue,))
    # newer Python versions warn of a fork beside threads, which is what is tested here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    assert queue.get(timeout=PATIENCE) == 190
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert parallel._pool is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_fork_while_the_lock_is_held_does_not_hang() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_sum_in_child, args=(queue,))
    with parallel._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    assert queue.get(timeout=PATIENCE) == 190
    child.join(PATIENCE)


def test_call_while_the_interpreter_ends_finishes() -> None:
    code = """
import atexit, threading
from extremax.runtime.threads import run
run(lambda i: None, 8, 2)
def last():
    done = []
    run(done.append, 8, 4)
    print(sorted(done) == list(range(8)))
atexit.register(last)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "True"
    assert done.stderr == ""


# -- numbers of threads, blocks of work


def test_resolve_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_threads", lambda: 8)
    assert [resolve_threads(n) for n in (None, -1, -2, -8, -100, 1, 3, 100)] == [8, 8, 7, 1, 1, 1, 3, 100]
    with pytest.raises(ValueError, match=r"n_jobs is 0, .* give a positive number, or -1"):
        resolve_threads(0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")
def test_available_threads_respects_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    pinned = f"import os; os.sched_setaffinity(0, {{{min(allowed)}}})"
    code = f"{pinned}\nfrom extremax.runtime.threads import available_threads\nprint(available_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert available_threads() <= len(allowed)


class _Machine:
    """A machine of eight processors with the given files, as far as joblib looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
        context = import_module("joblib.externals.loky.backend.context")
        exists = os.path.exists
        monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
        monkeypatch.setattr(
            os.path,
            "exists",
            lambda path: path in files if str(path).startswith("/sys/fs/cgroup") else exists(path),
        )
        monkeypatch.setattr(context, "open", lambda path: io.StringIO(files[path]), raising=False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_available_threads_respects_quotas(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    _Machine(monkeypatch, {f"/sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert available_threads() == expected
    assert resolve_threads(None) == resolve_threads(-1) == expected


def test_available_threads_respects_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    _Machine(monkeypatch, {})
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "3")
    assert available_threads() == 3


@given(st.integers(0, 1000), st.integers(1, 1200))
def test_split_identity(n_items: int, block: int) -> None:
    blocks = split(n_items, block)
    assert [i for start, stop in blocks for i in range(start, stop)] == list(range(n_items))
    assert all(stop - start == block for start, stop in blocks[:-1])
    assert all(0 < stop - start <= block for start, stop in blocks)
