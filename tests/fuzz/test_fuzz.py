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
