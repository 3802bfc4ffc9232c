"""Figures from the files of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiment_files import write_comparison, write_run
from extremax.experiments import plot
from extremax.experiments.curve import read_curve
from extremax.experiments.figures import band_of, describe_data, method_styles, read_run
from extremax.experiments.methods import FIGURE_1, METHODS, method_of

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    return write_comparison(tmp_path)


def test_figure_is_written_in_every_format(comparison: Path, tmp_path: Path) -> None:
    runs = sorted((comparison / "runs").glob("*/seed-0"))
    other = write_run(tmp_path / "other", "adversarial", [0.1, 0.2], data="eurlex57k")
    written = plot([*runs, other], tmp_path / "figures" / "figure.png", formats=("png", "svg", "pdf"))
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
    # the same files, the same figure
    assert svg == plot([*runs, other], tmp_path / "again.svg")[0].read_text()
    assert not list((tmp_path / "figures").glob(".*"))


def test_methods_look_the_same_everywhere(comparison: Path, tmp_path: Path) -> None:
    all_runs = [read_run(path) for path in sorted((comparison / "runs").glob("*/seed-0"))]
    styles = method_styles(all_runs)
    assert list(styles) == [*FIGURE_1, "softmax"]
    assert method_styles(all_runs[-1:])[all_runs[-1].method] == styles[all_runs[-1].method]
    for look in ("color", "marker"):
        assert len({getattr(method, look) for method in METHODS.values()}) == len(METHODS)
    mine = read_run(write_run(tmp_path / "mine", "my own", [0.1]))
    assert method_styles([mine])["my own"].label == "my own"
    assert describe_data(mine) == "ICD-10-CM: 48,265 rows, 10,662 classes"
    assert method_of({"solver": "negative_sampling", "noise": "uniform"}) == "uniform"


def test_seeds_become_a_band(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, n_seeds=3)
    runs = [read_run(folder / "runs" / "nce" / f"seed-{seed}") for seed in range(3)]
    band = band_of(runs, "accuracy", "cpu_seconds")
    assert band.n_runs == 3
    np.testing.assert_allclose(band.times, [1.1, 11.0, 110.0])
    np.testing.assert_allclose(band.mean, [0.0, 0.11, 0.21])
    np.testing.assert_allclose(band.low, [0.0, 0.1, 0.2])
    np.testing.assert_allclose(band.high, [0.0, 0.12, 0.22])
    svg = plot([run.folder for run in runs], tmp_path / "x.svg")[0].read_text()
    assert "FillBetweenPolyCollection" in svg or "PolyCollection" in svg
    single = plot([runs[0].folder], tmp_path / "y.svg")[0].read_text()
    assert "PolyCollection" not in single
    # a seed that was cut short narrows the band to the points that all have
    short = replace(runs[0], points=runs[0].points[:2])
    assert len(band_of([short, *runs[1:]], "accuracy", "cpu_seconds").mean) == 2


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
        plot([comparison / "runs" / "nce" / "seed-0"], comparison / "x.png", **arguments)  # type: ignore[arg-type]


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
