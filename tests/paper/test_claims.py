"""Verdicts on the paper's claims from made-up curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment_files import write_comparison, write_run
from extremax.experiments.curve import read_curve
from extremax.paper.claims import check_claims, outcome_of, time_to_accuracy
from extremax.paper.reproduction import report


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    return write_comparison(tmp_path)


def test_report_says_what_held(comparison: Path) -> None:
    found = report(comparison, command="extremax reproduce icd10cm")
    held = {verdict.claim.split(" (")[0]: verdict for verdict in found.verdicts}
    fastest = held["The proposed method is the fastest to the best baseline's accuracy"]
    assert fastest.held is True
    assert "after 10.0 s, the baseline after 100.0 s: 10.0 times faster" in fastest.words
    assert held["The proposed method reaches a better accuracy than all baselines"].held is True
    blind = held["With the same loss, adversarial noise beats noise that does not look at the features"]
    assert blind.held is True
    assert "whose accuracy it reached after 10.0 s instead of 100.0 s" in blind.words
    assert held["Full softmax is more accurate than negative sampling with uniform noise"].held is True
    text = found.report.read_text()
    assert "`extremax reproduce icd10cm`" in text
    assert "2 x Some CPU, 8 GB, 2030-01-01" in text
    assert "took 9.8 minutes: training 420 s, evaluation 140 s, compilation 28 s" in text
    row = next(line for line in text.splitlines() if line.startswith("| frequency"))
    assert "| 40.0% ± 0.7% |" in row
    assert "| 28.0% | 10.5% | - |" in row  # the paper's figures for Amazon-670K and Wikipedia-500K
    assert {path.name for path in comparison.iterdir()} == {
        "runs", "report.md", "outcomes.json", "figure.png", "figure.svg", "figure.pdf"
    }  # fmt: skip
    assert json.loads((comparison / "outcomes.json").read_text())["outcomes"]["nce"]["accuracy"] == 0.2


def test_claims_that_do_not_hold(tmp_path: Path) -> None:
    curves = {
        "adversarial": read_curve(write_run(tmp_path / "a", "adversarial", [0.1, 0.2, 0.3]) / "curve.jsonl"),
        "uniform": read_curve(write_run(tmp_path / "u", "uniform", [0.2, 0.3, 0.4]) / "curve.jsonl"),
    }
    outcomes = {name: outcome_of(name, points, n_test=5000) for name, points in curves.items()}
    fastest, accurate, likelihood, blind = check_claims(outcomes)
    assert (fastest.held, accurate.held, likelihood.held, blind.held) == (False, False, False, False)
    assert "never reached 40.0%" in fastest.words
    few = {name: outcome_of(name, points, n_test=20) for name, points in curves.items()}
    assert check_claims(few)[1].held is None  # 20 rows cannot tell 30% from 40%
    assert "cannot be told" in str(check_claims(few)[1])


def test_validation_chooses_and_test_is_reported() -> None:
    names = ("seconds", "valid_accuracy", "test_accuracy", "valid_log_likelihood", "test_log_likelihood")
    rows = ((1.0, 0.3, 0.2, -2.0, -2.5), (2.0, 0.2, 0.4, -1.0, -1.5))
    points = [dict(zip(names, row, strict=True)) for row in rows]
    outcome = outcome_of("nce", points, n_test=100)
    assert (outcome.accuracy, outcome.log_likelihood, outcome.seconds) == (0.2, -1.5, 1.0)


def test_time_to_accuracy_is_on_a_line_in_log_time() -> None:
    points = [
        {"seconds": s, "cpu_seconds": 2 * s, "test_accuracy": a}
        for s, a in ((0.0, 0.0), (1.0, 0.1), (4.0, 0.3))
    ]
    assert time_to_accuracy(points, 0.2) == pytest.approx(2.0)
    assert time_to_accuracy(points, 0.2, clock="cpu_seconds") == pytest.approx(4.0)
    assert time_to_accuracy(points, 0.05) == 1.0  # there is no logarithm of zero
    assert time_to_accuracy(points, 0.31) is None


def test_report_without_runs_rejects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no finished run"):
        report(tmp_path)
