"""Verdicts on the paper's claims from planted curves with known factors and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment_files import write_comparison, write_run
from extremax.experiments.curve import PLATEAU
from extremax.experiments.methods import BASELINES
from extremax.experiments.paper.claims import (
    PAPER,
    Outcome,
    RunResult,
    check_claims,
    compare,
    compare_speed,
    read_result,
    time_to_accuracy,
)
from extremax.experiments.paper.reproduction import report

ACCURACY = "The proposed method reaches a better final accuracy than all baselines"


def make_curve(end: float, speed: float, *, start: float = 0.0, n_points: int = 13) -> list[dict[str, Any]]:
    """Accuracy rises with the logarithm of the work to `end` at 1,000; a second does `speed` of work."""
    points = []
    for i in range(n_points):
        work = 10.0 ** (i / 4)
        figures = {"accuracy": end * i / (n_points - 1), "log_likelihood": -9.0 + end * i / (n_points - 1)}
        cpu = start + work / speed
        point: dict[str, Any] = {"epoch": work, "samples": work, "cpu_seconds": cpu, "seconds": 3 * cpu}
        points.append(point | {f"{split}_{k}": v for k, v in figures.items() for split in ("valid", "test")})
    return points


def make_outcome(method: str, ends: Sequence[float], speeds: Sequence[float], start: float = 0.0) -> Outcome:
    """One run per seed; the rows of all methods are nested, so that differences have little error."""
    runs = []
    for end, speed in zip(ends, speeds, strict=True):
        hits = (np.arange(10_000) < round(10_000 * end)).astype(np.float64)
        by_row = {"accuracy": hits, "log_likelihood": np.full(10_000, -9.0 + end)}
        runs.append(RunResult(make_curve(end, speed, start=start), by_row))
    return Outcome(method, runs)


def held(outcomes: Sequence[Outcome]) -> dict[str, bool | None]:
    verdicts = check_claims({outcome.method: outcome for outcome in outcomes})
    return {verdict.claim: verdict.held for verdict in verdicts}


# -- differences and their errors


def test_error_of_a_difference_is_its_standard_deviation() -> None:
    """Over many repetitions with a known truth: rows of shared difficulty, and seeds that differ."""
    rng = np.random.default_rng(0)
    truth, scores, unpaired = 0.05, [], []
    for _ in range(400):
        hard = rng.random(1000)
        outcomes = []
        for method, accuracy in (("adversarial", 0.45 + truth), ("nce", 0.45)):
            runs = []
            for _ in range(3):
                level = accuracy + 0.02 * rng.standard_normal()
                hits = ((0.9 * hard + 0.1 * rng.random(1000)) < level).astype(np.float64)
                point = {"epoch": 1, "valid_accuracy": 0.5, "test_accuracy": hits.mean()}
                runs.append(RunResult([point], {"accuracy": hits}))
            outcomes.append(Outcome(method, runs))
        scores.append(compare(outcomes[0], outcomes[1], "accuracy")[:2])
        unpaired.append(math.hypot(*(outcome.error("accuracy") for outcome in outcomes)))
    values, errors = np.array(scores).T
    expected = np.mean([np.mean(0.9 * h + 0.1 * u < 0.5) for h, u in rng.random((200, 2, 1000))])
    assert expected == pytest.approx(0.5, abs=0.01)
    assert values.mean() == pytest.approx(truth * 1.11, abs=0.004)  # the density of the difficulty is 1 / 0.9
    assert math.sqrt(np.mean(errors**2)) == pytest.approx(values.std(), rel=0.12)
    assert np.mean(unpaired) > 1.15 * errors.mean()  # rows that both get right say nothing about either


def test_single_seed_has_the_error_of_the_rows() -> None:
    one = make_outcome("nce", [0.4], [1.0])
    assert one.error("accuracy") == pytest.approx(math.sqrt(0.4 * 0.6 / 10_000), rel=1e-3)
    three = make_outcome("nce", [0.38, 0.4, 0.42], [1.0] * 3)
    by_rows = np.mean([run.by_row["accuracy"] for run in three.runs], axis=0).std(ddof=1) / 100
    assert three.error("accuracy") == pytest.approx(math.hypot(by_rows, 0.02 / math.sqrt(3)))


def test_best_final_figures() -> None:
    better = make_outcome("adversarial", [0.5, 0.51, 0.52], [1.0] * 3)
    worse = make_outcome("uniform", [0.4, 0.41, 0.42], [1.0] * 3)
    level = make_outcome("nce", [0.5, 0.51, 0.525], [1.0] * 3)
    accuracy = ACCURACY
    likelihood = "The proposed method reaches a better final log-likelihood than all baselines"
    for other, answer in ((worse, True), (level, None)):
        found = held([better, other])
        assert (found[accuracy], found[likelihood]) == (answer, answer)
    swapped = [Outcome("adversarial", worse.runs), Outcome("uniform", better.runs)]
    assert (held(swapped)[accuracy], held(swapped)[likelihood]) == (False, False)
    verdict = check_claims({"adversarial": better, "uniform": worse, "nce": level})[0]
    assert verdict.value == pytest.approx(-0.005 / 3)  # of the best baseline, not of the first
    assert "NCE, biases from log p_n, which decides, 51.2%" in verdict.words


def test_baseline_with_a_lower_mean_can_leave_it_open() -> None:
    """NCE has the best mean and little spread; One-vs-Each is behind it, but its seeds are far apart."""
    proposed = make_outcome("adversarial", [0.5, 0.5, 0.5], [1.0] * 3)
    near = make_outcome("nce", [0.47, 0.47, 0.47], [1.0] * 3)
    spread = make_outcome("one_vs_each", [0.30, 0.45, 0.60], [1.0] * 3)
    assert held([proposed, near])[ACCURACY] is True
    verdict = check_claims({o.method: o for o in (proposed, near, spread)})[0]
    assert verdict.held is None
    assert "One-vs-Each" in verdict.words


def test_margin_holds_in_nineteen_of_twenty() -> None:
    """Equal methods, three seeds that differ much, few rows: two standard errors would err too often."""
    rng = np.random.default_rng(1)
    outside, beyond_two = 0, 0
    for _ in range(1000):
        outcomes = []
        for method in ("adversarial", "nce"):
            ends = np.clip(0.5 + 0.02 * rng.standard_normal(3), 0, 1)
            points = [{"epoch": 1, "valid_accuracy": 0.5, "test_accuracy": end} for end in ends]
            rows = {"accuracy": np.tile([0.0, 1.0], 5000)}
            outcomes.append(Outcome(method, [RunResult([point], rows) for point in points]))
        value, error, margin = compare(*outcomes, "accuracy")
        outside += abs(value) > margin
        beyond_two += abs(value) > 2 * error
    assert outside <= 62  # 5%, and 1.7 standard deviations of a thousand repetitions
    assert beyond_two > 75


# -- speed


def test_factor_is_that_of_the_planted_curves() -> None:
    """The same curve, so many times slower: at the final accuracy, on both clocks, seed by seed."""
    fast = make_outcome("adversarial", [0.4] * 3, [10.0, 20.0, 40.0])
    slow = make_outcome("uniform", [0.4] * 3, [1.0, 1.0, 1.0])
    for clock in ("cpu_seconds", "seconds"):
        speed = compare_speed(fast, slow, clock=clock)
        np.testing.assert_allclose(speed.factors, [10.0, 20.0, 40.0])
        assert speed.mean == pytest.approx(20.0)
        assert str(speed) == "20 (10 to 40)"
    near = compare_speed(fast, slow, clock="cpu_seconds", fraction=0.5)
    np.testing.assert_allclose(near.factors, [10.0, 20.0, 40.0])


def test_factor_counts_the_tree_unless_told_not_to() -> None:
    tree = make_outcome("adversarial", [0.4], [1.0], start=1000.0)
    plain = make_outcome("uniform", [0.4], [1.0])
    assert compare_speed(tree, plain, clock="cpu_seconds").mean == pytest.approx(0.5, rel=1e-3)
    without = compare_speed(tree, plain, clock="cpu_seconds", with_start=False)
    assert without.mean == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("speeds", "faster", "by_ten"),
    [
        ((30.0, 12.0, 11.0), True, True),
        ((30.0, 12.0, 9.0), True, None),
        ((2.0, 3.0, 9.0), True, False),
        ((0.9, 1.1, 1.2), None, False),
        ((1.01, 1.02, 1.03), None, False),  # within the error of the clock
        ((0.9, 0.8, 0.7), False, False),
    ],
)
def test_speed_verdicts(speeds: tuple[float, ...], faster: bool | None, by_ten: bool | None) -> None:
    proposed = make_outcome("adversarial", [0.5] * 3, [speed * 4 for speed in speeds])
    baseline = make_outcome("frequency", [0.5] * 3, [4.0] * 3)
    found = held([proposed, baseline])
    assert found["It is faster than frequency neg. sampling, at that baseline's final accuracy"] is faster
    assert found["It is faster than frequency neg. sampling by an order of magnitude"] is by_ten


def test_every_baseline_has_its_verdicts() -> None:
    outcomes = [make_outcome("adversarial", [0.5] * 2, [40.0] * 2)]
    outcomes += [make_outcome(name, [0.4] * 2, [1.0] * 2) for name in BASELINES]
    found = held(outcomes)
    assert len(found) == 2 + 2 * len(BASELINES)
    assert all(found.values())


def test_method_that_never_gets_there() -> None:
    low = make_outcome("adversarial", [0.3, 0.3], [100.0] * 2)
    high = make_outcome("uniform", [0.4, 0.4], [1.0] * 2)
    verdicts = check_claims({"adversarial": low, "uniform": high})
    assert [verdict.held for verdict in verdicts] == [False] * 4
    assert verdicts[2].words == "To 40.0%, in processor seconds: never."
    assert verdicts[2].value == 0.0
    mixed = make_outcome("adversarial", [0.3, 0.5], [100.0] * 2)
    _, _, faster, by_ten = check_claims({"adversarial": mixed, "uniform": high})
    assert (faster.held, by_ten.held) == (None, None)
    assert "never to 400" in faster.words


def test_softmax_against_uniform_noise() -> None:
    softmax = make_outcome("softmax", [0.34, 0.35, 0.33], [1.0] * 3)
    uniform = make_outcome("uniform", [0.26, 0.27, 0.25], [1.0] * 3)
    (verdict,) = check_claims({"softmax": softmax, "uniform": uniform})
    assert verdict.held is True
    assert verdict.value == pytest.approx(0.08)
    assert verdict.words.endswith("in the paper, on EURLex-4K, 33.6% against 26.4%.")


def test_figures_of_the_paper() -> None:
    amazon = PAPER["Amazon-670K"]
    order = ("adversarial", "uniform", "frequency", "nce_from_zero", "augment_reduce", "one_vs_each")
    assert [amazon[name] for name in order] == [0.31, 0.276, 0.272, 0.24, 0.046, 0.036]


def test_plateau() -> None:
    rising = make_outcome("nce", [0.4], [1.0])
    assert rising.gain_of_last_doubling() > PLATEAU
    points = [{**p, "valid_accuracy": min(p["valid_accuracy"], 0.3)} for p in make_curve(0.4, 1.0)]
    flat = Outcome("nce", [RunResult(points, {})])
    assert flat.gain_of_last_doubling() == 0.0


def test_time_to_accuracy_is_on_a_line_in_log_time() -> None:
    points = [
        {"seconds": s, "cpu_seconds": 2 * s, "test_accuracy": a}
        for s, a in ((0.0, 0.0), (1.0, 0.1), (4.0, 0.3))
    ]
    assert time_to_accuracy(points, 0.2, "seconds") == pytest.approx(2.0)
    assert time_to_accuracy(points, 0.2, "cpu_seconds") == pytest.approx(4.0)
    assert time_to_accuracy(points, 0.05, "seconds") == 1.0  # there is no logarithm of zero
    assert time_to_accuracy(points, 0.31, "seconds") is None


# -- the report


def test_report_says_what_held(tmp_path: Path) -> None:
    write_comparison(tmp_path, n_seeds=3)
    found = report(tmp_path, command="extremax reproduce icd10cm --seeds 3")
    told = {verdict.claim: verdict for verdict in found.verdicts}
    assert told["The proposed method reaches a better final accuracy than all baselines"].held is True
    uniform = told["It is faster than uniform neg. sampling, at that baseline's final accuracy"]
    assert uniform.held is True
    assert uniform.value == pytest.approx(10.0 ** (1 + 1 / 3), rel=0.05)  # 30% comes before its point of 40%
    text = found.report.read_text()
    lines = text.splitlines()
    claims = [line for line in lines[2:] if line.startswith("- **")]
    assert claims == lines[2 : 2 + len(found.verdicts)]  # verdicts first, and of these what fails
    answers = ("does not hold", "cannot be told", "holds")
    order = [next(i for i, answer in enumerate(answers) if f": {answer}." in claim) for claim in claims]
    assert order == sorted(order)
    assert "`extremax reproduce icd10cm --seeds 3`" in text
    assert "2 x Some CPU, 8 GB, 2030-01-01; threads: 1; load up to 0." in text
    assert "With these, the runs took 33.6 minutes." in text
    assert "means over 3 seeds of 5,000 test rows" in text
    row = next(line for line in lines if line.startswith("| frequency"))
    assert "| 110.0 | - | 41.0% ± " in row  # processor seconds
    assert "| 27.2% | 10.5% | - |" in row  # the paper's figures for Amazon-670K and Wikipedia-500K
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs", "report.md", "outcomes.json", "figure.png", "figure.svg", "figure.pdf"
    }  # fmt: skip
    written = json.loads((tmp_path / "outcomes.json").read_text())
    assert written["outcomes"]["nce"]["accuracy_by_seed"] == pytest.approx([0.2, 0.21, 0.22])
    assert written["outcomes"]["nce"]["cpu_seconds"] == pytest.approx(110.0)
    assert set(written["verdicts"][0]) == {"claim", "held", "words", "value"}


def test_validation_chooses_and_test_is_reported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "nce", [0.2, 0.3, 0.1])
    result = read_result(folder)
    assert result.final("accuracy") == pytest.approx(0.3)
    assert result.by_row["accuracy"].mean() == pytest.approx(0.3)
    lines = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    lines[2]["valid_accuracy"] = 0.9  # the last point is now the best on validation rows
    (folder / "curve.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = read_result(folder)
    assert result.final("accuracy") == pytest.approx(0.1)
    assert result.by_row["accuracy"].mean() == pytest.approx(0.1)
    assert result.final("log_likelihood") == pytest.approx(-3.8)


def test_report_without_runs_rejects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no finished run"):
        report(tmp_path)
