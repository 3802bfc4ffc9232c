"""Memory that is available and needed."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import extremax
from extremax.errors import NotEnoughMemoryError
from extremax.runtime.memory import available_memory, check_memory, describe_memory, format_bytes


def sentence(text: str) -> str:
    return re.escape(text)


GIB = 1024**3


def machine(folder: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"proc": folder / "proc", "cgroups": folder / "cgroup"}


MEMINFO = {"proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"}


def test_available_memory_without_limits(tmp_path: Path) -> None:
    assert available_memory(**machine(tmp_path, MEMINFO)) == 10 * GIB


def test_available_memory_cgroup_two(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/task\n",
        "cgroup/pod/memory.max": str(4 * GIB),
        "cgroup/pod/memory.current": str(3 * GIB),
        "cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",  # cache that the kernel gives back
        "cgroup/pod/task/memory.max": "max\n",
        "cgroup/pod/task/memory.current": "5\n",
    }
    assert available_memory(**machine(tmp_path, MEMINFO | files)) == 2 * GIB


def test_available_memory_cgroup_one(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n0::/\n",
        "cgroup/memory/job/memory.limit_in_bytes": str(6 * GIB),
        "cgroup/memory/job/memory.usage_in_bytes": str(7 * GIB),
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "cgroup/memory/memory.usage_in_bytes": "0",
    }
    assert available_memory(**machine(tmp_path, MEMINFO | files)) == 0


def test_available_memory_of_this_machine_is_plausible() -> None:
    assert 0 < available_memory() < 2**50


def test_format_bytes() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 3 * GIB: "3.0 GiB", 2.5 * 1024**5: "2560.0 TiB"}
    assert {n: format_bytes(n) for n in sizes} == sizes


def test_check_memory_rejects_with_numbers_and_hints() -> None:
    need = {"biases": GIB // 2, "weights": 6 * GIB}
    check_memory(need, available=sum(need.values()), hints=["fewer features"])
    text = (
        "ExtremeClassifier.fit needs 6.5 GiB (weights 6.0 GiB, biases 512.0 MiB), but 4.0 GiB are available. "
        "Ways out: row-wise Adagrad; fewer features."
    )
    with pytest.raises(NotEnoughMemoryError, match=sentence(text)) as caught:
        check_memory(need, available=4 * GIB, hints=["row-wise Adagrad", "fewer features"])
    assert isinstance(caught.value, MemoryError)
    assert describe_memory(need) in str(caught.value)


_COUNT_FAULTS = """
import resource, sys
import numpy as np
from extremax.runtime.memory import reuse_freed_memory

def count():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.empty(1 << 20, np.uint8)[:] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = count()
with reuse_freed_memory():
    with reuse_freed_memory():
        inside = count()
    still = count()
print(outside, inside, still, count())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt of glibc")
def test_arrays_are_not_mapped_anew_in_dask_workers() -> None:
    """Pages of 100 arrays of 256 pages, in a process with the environment that Dask gives its workers."""
    if not hasattr(ctypes.CDLL(None), "mallopt"):
        pytest.skip("mallopt of glibc")
    source = str(Path(extremax.__file__).parent.parent)
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536", "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT_FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    outside, inside, still, after = map(int, done.stdout.split())
    assert outside > 20_000
    assert inside < 2_000
    assert still < 2_000
    assert after > 20_000  # as the environment wants it
