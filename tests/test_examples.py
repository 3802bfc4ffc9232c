"""Every script in examples/ runs to its end in an empty folder; a new one is run as soon as it exists."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))


def _check_pytorch_head(printed: str) -> None:
    """The log-likelihood rises from that of class frequencies to less than half of it, epoch by epoch."""
    figures = [
        float(line.split("log-likelihood")[1].split()[0])
        for line in printed.splitlines()
        if "log-likelihood" in line
    ]
    assert len(figures) == 3
    assert figures == sorted(figures)
    assert figures[-1] > 0.5 * figures[0]
    assert printed.splitlines()[-1].startswith("class ")


def _check_embeddings_in_memory(printed: str) -> None:
    """Most of 5,000 classes are told apart, and the model loaded again predicts the same."""
    assert float(printed.split("accuracy ")[1].split("%")[0]) > 85.0
    assert printed.splitlines()[-1].endswith("the same predictions")


def _check_text_csv_to_answers(printed: str) -> None:
    """Both questions, asked over HTTP, go to the queue of their product."""
    assert [line.split(" -> ")[1].split(" (")[0] for line in printed.splitlines()] == [
        "queue/printer B",
        "queue/camera J",
    ]


def _check_sharded_head(printed: str) -> None:
    """Two processes have half of the classes each, and learn most of what 2,000 made-up owners prefer."""
    assert "process 0 of 2: 10000 rows, classes 0 to 999" in printed
    assert "process 1 of 2: 10000 rows, classes 1000 to 1999" in printed
    accuracy = [float(line.split("accuracy ")[1].split("%")[0]) for line in printed.splitlines()[-2:]]
    assert min(accuracy) > 35.0


# What a script must have printed to have done its work; a script that is not listed only has to run.
CHECKS: dict[str, Callable[[str], None]] = {
    "embeddings_in_memory.py": _check_embeddings_in_memory,
    "pytorch_head.py": _check_pytorch_head,
    "sharded_head.py": _check_sharded_head,
    "text_csv_to_answers.py": _check_text_csv_to_answers,
}
# What starts a script, where that is not Python alone.
LAUNCHERS = {"sharded_head.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}


# Each a second way to what tests/nn/test_sharded.py, docs/howto/pytorch.md and docs/howto/embeddings.md run.
SLOW = {"sharded_head.py", "pytorch_head.py", "embeddings_in_memory.py"}


def test_examples_were_found() -> None:
    assert {path.name for path in EXAMPLES} >= set(CHECKS) | SLOW


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_names_that_an_example_imports_exist(path: Path) -> None:
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [(str(node.module), alias.name) for node in found for alias in node.names]
    own = [(module, name) for module, name in names if module.split(".")[0] == "extremax"]
    assert own
    for module, name in own:
        assert hasattr(importlib.import_module(module), name), (module, name)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name in SLOW else path for path in EXAMPLES],
    ids=lambda path: path.name,
)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    more = {"PYTHONPATH": str(PROJECT / "src"), "EXTREMAX_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *LAUNCHERS.get(path.name, []), str(path)],
        cwd=tmp_path,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    if path.name in CHECKS:
        CHECKS[path.name](done.stdout)


@pytest.mark.slow
def test_sharded_example_goes_on_after_a_process_was_killed(tmp_path: Path) -> None:
    more = {"PYTHONPATH": str(PROJECT / "src"), "EXTREMAX_DATA": str(tmp_path), "OMP_NUM_THREADS": "1"}
    script = [str(PROJECT / "examples" / "sharded_head.py"), "--checkpoint", "state", "--every", "20"]
    done = subprocess.run(
        [sys.executable, *LAUNCHERS["sharded_head.py"], "--max-restarts=1", *script, "--die", "50"],
        cwd=tmp_path,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "step 40, validation" in done.stdout
    _check_sharded_head(done.stdout)
