"""A few hundred seeded cases of the fuzzers; ``make fuzz N=...`` runs as many as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import extremax
from fuzz import driver

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.error
@pytest.mark.parametrize(("kind", "count"), [("models", 200), ("inputs", 200)])
def test_seeded_cases_end_in_right_answers_or_one_sentence(
    kind: str, count: int, bases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(extremax.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), str(HERE.parent)]))
    report = driver.run_cases(kind, 0, count, bases)
    assert not report.failures, str(report)
    assert sum(report.counts.values()) == count
    assert min(report.counts["passed"], report.counts["rejected"]) > count // 10


def test_a_crash_and_a_hang_are_failures_of_their_case(
    bases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker that dies at case 3, hangs at case 5 and says the rest.
    (tmp_path / "fuzz").mkdir()
    (tmp_path / "fuzz" / "__init__.py").write_text("")
    (tmp_path / "fuzz" / "driver.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(driver, "FIRST_LIMIT", 6.0)
    report = driver.run_cases("models", 0, 8, bases)
    assert [seed for seed, _ in report.failures] == [3, 5]
    assert "ended the process with -6" in report.failures[0][1]
    assert "hung" in report.failures[1][1]
    assert report.counts["passed"] == 6


WORKER = """
import json, os, sys, time
first, count = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("--first", "--count"))
for seed in range(first, first + count):
    print(json.dumps({"begin": seed}), flush=True)
    if seed == 3:
        os.abort()
    if seed == 5:
        time.sleep(600)
    print(json.dumps({"end": "passed"}), flush=True)
"""
