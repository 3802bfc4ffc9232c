"""Figures from the files of runs, and verdicts on the paper's claims from made-up curves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extremax.experiments import plot
from extremax.experiments.curve import read_curve
from extremax.experiments.figures import describe_data, method_styles, read_run
from extremax.experiments.methods import FIGURE_1, METHODS, method_of
from extremax.paper.claims import outcome_of, time_to_accuracy, weigh
from extremax.paper.reproduction import report

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(
    folder: Path, method: str, accuracies: list[float], *, data: str = "icd10cm", first: float = 1.0
) -> Path:
    """A finished run: accuracies at 1, 10, 100 ... times `first` seconds."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "data": {"name": data, "path": None},
                "method": method,
                "model": {"learning_rate": 0.1, "score_penalty": 1e-4},
            }
        )
    )
    points = [
        {"epoch": i, "seconds": first * 10.0**i, "cpu_seconds": 2 * first * 10.0**i}
        | {f"{split}_accuracy": a for split in ("valid", "test")}
        | {f"{split}_log_likelihood": -5.0 + 4 * a for split in ("valid", "test")}
        for i, a in enumerate(accuracies)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    machine = {"processor": "Some CPU", "processors": 2, "memory_bytes": 8e9, "load_average": 0.1}
    summary = {
        "n_classes": 10662,
        "n_train": 48265,
        "evaluated_rows": {"valid": 5000, "test": 5000},
        "machine": machine,
    }
    took = {"training_seconds": 60.0, "evaluation_seconds": 20.0, "compilation_seconds": 4.0}
    (folder / "summary.json").write_text(
        json.dumps({**summary, **took, "last": points[-1], "date": "2030-01-01T00:00:00+00:00"})
    )
    return folder


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Six methods and softmax: the proposed one is ten times as fast and ends higher."""
    ends = {
        "uniform": 0.3,
        "frequency": 0.4,
        "nce": 0.2,
        "augment_reduce": 0.1,
        "one_vs_each": 0.05,
        "softmax": 0.45,
    }
    write_run(tmp_path / "runs" / "adversarial", "adversarial", [0.1, 0.4, 0.5])
    for method, end in ends.items():
        write_run(tmp_path / "runs" / method, method, [0.0, end / 2, end])
    return tmp_path


def test_figure_is_written_in_every_format(comparison: Path, tmp_path: Path) -> None:
    runs = sorted((comparison / "runs").iterdir())
    other = write_run(tmp_path / "other", "adversarial", [0.1, 0.2], data="eurlex57k")
    written = plot([*runs, other], tmp_path / "pictures" / "figure.png", formats=("png", "svg", "pdf"))
    assert [path.name for path in written] == ["figure.png", "figure.svg", "figure.pdf"]
    assert written[0].read_bytes().startswith(PNG)
    assert written[2].read_bytes().startswith(b"%PDF")
    svg = written[1].read_text()
    for method in FIGURE_1:
        assert METHODS[method].label.replace("&", "&amp;") in svg
        assert METHODS[method].color.lower() in svg
    for text in (
        "ICD-10-CM",
        "EURLEX57K",
        "48,265 rows, 10,662 classes",
        "training time (s)",
        "test accuracy",
    ):
        assert text in svg
    # the same files, the same picture
    assert svg == plot([*runs, other], tmp_path / "again.svg")[0].read_text()
    assert not list((tmp_path / "pictures").glob(".*"))


def test_methods_look_the_same_everywhere(comparison: Path, tmp_path: Path) -> None:
    all_runs = [read_run(path) for path in sorted((comparison / "runs").iterdir())]
    styles = method_styles(all_runs)
    assert list(styles) == [*FIGURE_1, "softmax"]
    assert method_styles(all_runs[-1:])[all_runs[-1].method] == styles[all_runs[-1].method]
    for look in ("color", "marker"):
        assert len({getattr(method, look) for method in METHODS.values()}) == len(METHODS)
    mine = read_run(write_run(tmp_path / "mine", "my own", [0.1]))
    assert method_styles([mine])["my own"].label == "my own"
    assert describe_data(mine) == "ICD-10-CM: 48,265 rows, 10,662 classes"
    assert method_of({"objective": "negative_sampling", "noise": "uniform"}) == "uniform"


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"formats": ("gif",)}, ValueError, "cannot be written as 'gif'"),
        ({"clock": "sundial"}, ValueError, "clock is 'sundial'"),
    ],
)
def test_wrong_figure_rejects(
    comparison: Path, arguments: dict[str, object], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        plot([comparison / "runs" / "nce"], comparison / "x.png", **arguments)  # type: ignore[arg-type]


def test_folder_without_a_curve_rejects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        plot([tmp_path], tmp_path / "x.png")
    empty = write_run(tmp_path / "empty", "nce", [0.1])
    (empty / "curve.jsonl").write_text("")
    with pytest.raises(ValueError, match="nothing to draw"):
        plot([empty], tmp_path / "x.png")


def test_curve_with_a_line_cut_off_is_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_text('{"seconds": 1}\n{"seconds": 2}\n{"secon')
    assert [point["seconds"] for point in read_curve(path)] == [1, 2]
    path.write_text('{"seconds": 1}\n{"secon\n{"seconds": 2}\n')
    with pytest.raises(ValueError, match="line 2: not JSON"):
        read_curve(path)


# -- claims
# --------------------------------------------------------------------------------------------------------------------


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
    assert "took 9.8 minutes on the wall: training 420 s, evaluation 140 s, compilation 28 s" in text
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
    fastest, accurate, likelihood, blind = weigh(outcomes)
    assert (fastest.held, accurate.held, likelihood.held, blind.held) == (False, False, False, False)
    assert "never reached 40.0%" in fastest.words
    few = {name: outcome_of(name, points, n_test=20) for name, points in curves.items()}
    assert weigh(few)[1].held is None  # 20 rows cannot tell 30% from 40%
    assert "cannot be told" in str(weigh(few)[1])


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
