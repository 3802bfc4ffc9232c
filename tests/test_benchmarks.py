"""Every benchmark runs in its tiny size and writes finite figures; a new one is run as soon as it exists."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
# Parts of benchmarks, and tools.
NOT_BENCHMARKS = {"benchmark_data", "compare_commits", "peers", "run_all", "timing"}
sys.path.append(str(BENCHMARKS))

import run_all  # noqa: E402
import timing  # noqa: E402

# torch tells of its own default once per process when an optimizer makes a sparse tensor.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


# Those of three seconds and more.
SLOW = {
    *("bench_beam", "bench_crossover", "bench_dask", "bench_serve", "bench_sharded", "bench_start"),
    *("bench_update", "paper_steps", "text"),
}
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in run_all.benchmark_names()
]


@pytest.mark.parametrize("name", NAMES)
def test_tiny_benchmark_writes_finite_figures(name, tmp_path, monkeypatch):
    """In this process: a new one would import and load the compiled kernels again."""
    monkeypatch.chdir(tmp_path)  # a benchmark may write, but not into the repository
    rows_file = tmp_path / "rows.jsonl"
    monkeypatch.setenv(timing.ROWS_FILE, str(rows_file))
    importlib.import_module(name).main(["--tiny"])
    rows = run_all.read_rows(rows_file)
    assert rows
    for row in rows:
        figures = {key: value for key, value in row.items() if key not in ("benchmark", "case")}
        assert row["benchmark"] == name
        assert any(isinstance(value, int | float) for value in figures.values()), row
        assert all(map(is_finite, figures.values())), row
        assert timing.describe(row)
    assert len({row["case"] for row in rows}) == len(rows)
    assert list(tmp_path.iterdir()) == [rows_file]


def test_every_file_is_a_benchmark_or_known_not_to_be():
    files = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert files - NOT_BENCHMARKS == set(run_all.benchmark_names())
    assert set(run_all.benchmark_names()) >= SLOW


@pytest.mark.parametrize("name", sorted(SLOW))
def test_slow_benchmark_can_be_imported(name):
    assert callable(importlib.import_module(name).main)


def test_run_goes_on_after_a_failure(tmp_path, capfd):
    """A program that fails is reported, rows written before the failure are kept, the next one runs."""
    program = f"import sys\nsys.path.insert(0, {str(BENCHMARKS)!r})\nfrom timing import write_rows\n"
    program += "write_rows({name!r}, [{{'case': 'a|b', 'seconds': 0.5, 'unknown': None}}])\n"
    (tmp_path / "bench_bad.py").write_text(
        program.format(name="bench_bad") + "raise RuntimeError('broken')\n"
    )
    (tmp_path / "bench_good.py").write_text(program.format(name="bench_good"))
    names = run_all.benchmark_names(tmp_path)
    assert names == ["bench_bad", "bench_good"]
    rows_file = tmp_path / "build" / "rows.jsonl"
    failed = run_all.run_benchmarks(names, rows_file, tiny=True, folder=tmp_path)
    assert failed == {"bench_bad": "exit status 1"}
    table = run_all.make_table(run_all.read_rows(rows_file))
    lines = ["| benchmark | case | figures |", "|---|---|---|"]
    lines += [rf"| {name} | a\|b | seconds 0.5 |" for name in names]
    assert table.splitlines() == lines
    printed = capfd.readouterr()
    assert "[1/2] bench_bad: FAILED, 1 rows" in printed.out
    assert "RuntimeError: broken" in printed.err
