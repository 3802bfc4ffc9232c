"""The machine and the versions that a run used."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from extremax.runtime.threads import available_threads

_PACKAGES = ("extremax", "numpy", "scipy", "scikit-learn", "numba", "llvmlite")


def environment() -> dict[str, Any]:
    """Return machine, versions, date and load average, as JSON can hold them."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "processors": available_threads(),
            "memory_bytes": _memory(),
            "system": platform.platform(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def describe_machine(machine: dict[str, Any]) -> str:
    """Return one line: ``2 x AMD EPYC, 23 GB``."""
    memory = machine.get("memory_bytes")
    return f"{machine['processors']} x {machine['processor']}" + (
        f", {memory / 1e9:.0f} GB" if memory else ""
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
