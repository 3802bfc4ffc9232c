"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The first call of a kernel compiles it, which no deadline allows for; the suite is the same in every run and
# writes nothing outside tmp_path.
settings.register_profile("extremax", max_examples=50, deadline=None, derandomize=True, database=None)
settings.load_profile("extremax")

# A process started in the background ignores Ctrl-C, and so do those that it starts.  With a handler of its
# own this one does not, and its children begin with the usual one.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Some virtual machines announce AMX and do not allow it: a product in bfloat16 then ends the process with an
# illegal instruction.  The variable is oneDNN's own, read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Where to begin, for a run of several processes that each take whole files (`--no-loadscope-reorder`).  In
# the first file one process compiles most kernels; the second meanwhile tests what needs few of them, and
# later finds them compiled.  Long files come before short ones: none is left to one process at the end.
FIRST = (
    "test_sklearn_checks.py",
    "solvers/test_sparse_solver.py",
    "test_docs.py",
    "dask/test_dask.py",
    "nn/test_sharded.py",
    "nn/test_integration.py",
    "cli/test_cli_commands.py",
    "experiments/test_experiments_tuning.py",
    "kernels/test_compile.py",
    "experiments/test_runner.py",
    "test_golden.py",
    "fuzz/test_fuzz.py",
    "test_classifier.py",
    "serve/test_server.py",
    "experiments/paper/test_reproduction.py",
    "serve/test_contract.py",
    "nn/test_hugging_face.py",
    "test_calibration.py",
    "test_quality_floor.py",
    "features/test_ngrams.py",
    "report/test_drift.py",
    "test_architecture.py",
    "test_benchmarks.py",
    "nn/test_softmax.py",
    "experiments/test_figures.py",
    "test_robust_features.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))
