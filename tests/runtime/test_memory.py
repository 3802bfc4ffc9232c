"""Memory that is available and needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import psutil
import pytest

from extremax import ExtremeClassifier
from extremax.errors import NotEnoughMemoryError
from extremax.runtime.memory import available_memory, check_memory, describe_memory, format_bytes


def sentence(text: str) -> str:
    return re.escape(text)


GIB = 1024**3


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="only Linux limits an address space")
def test_fit_is_refused_where_the_address_space_has_no_room_for_threads() -> None:
    """BLAS found no room in a thread, and waited for ever."""
    process, X, y = psutil.Process(), np.eye(40, dtype=np.float32), np.arange(40) % 4
    before = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + (150 << 20), before[1]))
    try:
        assert 0 < available_memory(1) < 100 << 20
        with pytest.raises(NotEnoughMemoryError, match=r"but 0 B are available"):
            ExtremeClassifier(n_jobs=2).fit(X, y)
    finally:
        process.rlimit(psutil.RLIMIT_AS, before)


def test_available_memory_within_the_limit_of_a_container(tmp_path: Path) -> None:
    used, cached = 3 << 20, 1 << 20
    files = {
        "memory.max": f"{4 << 20}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 5\ninactive_file {cached}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_memory(cgroup=tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(cgroup=tmp_path) > 2 << 20


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
