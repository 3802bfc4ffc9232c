"""Tasks in phases: each runs once, no phase before its time, nobody waits for a thread that is not there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax.kernels.compile import JIT_DISABLED, njit
from extremax.kernels.phases import abandon, claim_task, finish_task, new_schedule
from extremax.runtime.threads import run_together
from extremax.solvers import row_trainer

pytestmark = pytest.mark.small
several_threads = pytest.mark.skipif(JIT_DISABLED, reason="interpreted kernels run on one thread")


@njit
def count_up(schedule, part, n_parts, n_phases, values, wrong):
    """Each task of phase p turns the value p of its place into p + 1; all others must be at p already."""
    task = claim_task(schedule, part, n_parts, n_phases)
    while task >= 0:
        phase, number = task // n_parts, task % n_parts
        for other in range(n_parts):
            if values[other] != phase and values[other] != phase + 1:
                wrong[part] += 1
        if values[number] != phase:
            wrong[part] += 1
        values[number] = phase + 1
        finish_task(schedule, n_parts)
        task = claim_task(schedule, part, n_parts, n_phases)


@njit
def claim_one(schedule, part, n_parts, n_phases):
    return claim_task(schedule, part, n_parts, n_phases)


@njit
def finish_one(schedule, n_parts):
    finish_task(schedule, n_parts)


def run_threads(n_threads: int, n_parts: int, n_phases: int) -> None:
    schedule, values = new_schedule(n_parts), np.zeros(n_parts, np.int64)
    wrong = np.zeros(n_threads, np.int64)
    run_together(lambda part: count_up(schedule, part, n_parts, n_phases, values, wrong), n_threads)
    assert (values == n_phases).all()
    assert (wrong == 0).all()


@pytest.mark.parametrize("n_phases", [0, 1, 2, 301])
@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_one_thread_runs_all_tasks_in_order(n_parts: int, n_phases: int) -> None:
    run_threads(1, n_parts, n_phases)  # also: threads that never come are not missed


@several_threads
@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_threads_run_each_task_once_and_phases_in_order(n_threads: int) -> None:
    run_threads(n_threads, n_threads, 20_000)


@several_threads
def test_fewer_and_more_threads_than_tasks() -> None:
    run_threads(2, 7, 2_000)
    run_threads(4, 2, 2_000)


@several_threads
def test_late_thread_finds_its_place() -> None:
    schedule, values, wrong = new_schedule(2), np.zeros(2, np.int64), np.zeros(2, np.int64)
    count_up(schedule, 0, 2, 0, values, wrong)  # compiles

    def work(part: int) -> None:
        time.sleep(0.01 * part)
        count_up(schedule, part, 2, 200_000, values, wrong)

    run_together(work, 2)
    assert (values == 200_000).all()
    assert (wrong == 0).all()


def test_own_task_is_preferred() -> None:
    schedule = new_schedule(3)
    assert [claim_one(schedule, part, 3, 2) for part in (2, 1, 2)] == [2, 1, 0]
    for _ in range(3):
        finish_one(schedule, 3)
    assert claim_one(schedule, 1, 3, 2) == 4


@several_threads
def test_waiting_thread_sleeps_until_the_phase_ends() -> None:
    schedule = new_schedule(1)
    assert claim_one(schedule, 0, 1, 2) == 0
    claimed: list[int] = []
    spent: list[float] = []

    def wait() -> None:
        started = time.thread_time()
        claimed.append(claim_one(schedule, 0, 1, 2))
        spent.append(time.thread_time() - started)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.5)
    assert claimed == []
    finish_one(schedule, 1)
    waiter.join(30)
    assert claimed == [1]
    assert spent[0] < 0.1


@several_threads
def test_abandoned_schedule_lets_waiting_threads_go() -> None:
    schedule = new_schedule(1)
    assert claim_one(schedule, 0, 1, 2) == 0
    claimed: list[int] = []
    waiters = [
        threading.Thread(target=lambda: claimed.append(claim_one(schedule, 0, 1, 2))) for _ in range(2)
    ]
    for waiter in waiters:
        waiter.start()
    abandon(schedule)
    for waiter in waiters:
        waiter.join(30)
    assert claimed == [-1, -1]


@several_threads
def test_kernel_that_fails_on_one_thread_rejects_and_ends_on_all() -> None:
    failing = threading.Event()

    def fail_on_second(
        X: Any, pairs: Any, ends: Any, model: Any, step: Any, schedule: Any, part: int, n_parts: int
    ) -> None:
        if part == 1:
            assert claim_one(schedule, part, n_parts, 10) == 1
            failing.set()
            raise MemoryError("a table")
        assert failing.wait(30)
        while claim_one(schedule, part, n_parts, 10) >= 0:
            finish_one(schedule, n_parts)

    with pytest.raises(MemoryError, match="a table"):
        row_trainer.train_together(fail_on_second, None, *[None] * 4, 3)  # type: ignore[arg-type]


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from test_phases import count_up, run_threads
run_threads(2, 2, 1000)
print(sum(count_up.stats.cache_hits.values()))
"""


@pytest.mark.slow  # test_compile.py has a kernel that is compiled sooner
@several_threads
def test_second_process_finds_the_compiled_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    hits = []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        hits.append(done.stdout.split())
    assert hits == [["0"], ["1"]]
