"""The machine and the versions that a run used."""

from __future__ import annotations

import datetime
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from extremax.runtime.threads import available_threads

_PACKAGES = ("extremax", "numpy", "scipy", "scikit-learn", "numba", "llvmlite")


def environment() -> dict[str, Any]:
    """Return machine, versions, date and load average, in types that JSON has."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "processors": available_threads(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
            "load_average": psutil.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def describe_machine(machine: dict[str, Any]) -> str:
    """Return one line: ``2 x AMD EPYC, 23 GB``."""
    return f"{machine['processors']} x {machine['processor']}, {machine['memory_bytes'] / 1e9:.0f} GB"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
