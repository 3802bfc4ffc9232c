"""The study behind ``extremax theory``: its figures, its plot, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax import ExtremeClassifier
from extremax.cli.app import app
from extremax.experiments.paper import theory, theory_figure, theory_study
from extremax.solvers import NegativeSampling

NOISES = ["uniform", "frequency", "tree", "p_D"]


@pytest.fixture(scope="module")
def study() -> theory_study.TheoryStudy:
    return theory_study.planted_study(n_classes=200, n_samples=4000, n_rows=100, seed=3)


@pytest.mark.parametrize("seed", [0, 1])
def test_three_ways_agree_identity(seed: int) -> None:
    rows = theory_study.three_ways(seed=seed, n_draws=200_000)
    assert [row.noise for row in rows] == NOISES
    for row in rows:
        assert row.matrices == pytest.approx(row.exact, rel=1e-12)  # float64 rounding
        assert abs(row.simulated - row.exact) < 4 * row.standard_error
    assert [row.exact for row in rows] == sorted(row.exact for row in rows)


def test_noises_are_in_the_order_of_the_paper(study: theory_study.TheoryStudy) -> None:
    assert [row.noise for row in study.noises] == NOISES
    for key in ("snr", "relative_snr", "overlap"):
        values = [getattr(row, key) for row in study.noises]
        assert values == sorted(values)
    assert list(study.log_likelihood) == sorted(study.log_likelihood)
    assert study.log_likelihood[0] == pytest.approx(-np.log(200), abs=1e-5)  # uniform; tables come in float32
    assert study.curve.relative_snr[0] == pytest.approx(study.noises[0].relative_snr, rel=1e-12)


def test_seed_and_threads_invariant(study: theory_study.TheoryStudy) -> None:
    again = theory_study.planted_study(n_classes=200, n_samples=4000, n_rows=100, seed=3, n_jobs=1)
    assert again.as_dict() == study.as_dict()
    assert (
        theory_study.planted_study(n_classes=200, n_samples=4000, n_rows=100, seed=4).noises != study.noises
    )


def test_temperature_recovers() -> None:
    """Scores of a known softmax, flattened by 2.5; labels are draws from the softmax itself."""
    rng = np.random.default_rng(0)
    scores = 2.0 * rng.normal(size=(4000, 6))
    log_prob = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    y = (log_prob + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(np.int32)
    found = theory_study.best_temperature(log_prob / 2.5, y)
    # The likelihood of 4,000 labels fixes a factor of scores of variance 4 within about 1 / sqrt(4,000).
    assert found == pytest.approx(1 / 2.5, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["adversarial", "frequency"])
def test_order_on_icd10cm(noise: str) -> None:
    """Also when p_D is estimated by a classifier that has no tree in it."""
    model = ExtremeClassifier(NegativeSampling(noise=noise), random_state=0)
    found = theory_study.icd10cm_study(n_rows=200, n_features=128, classifier=model)
    values = [row.overlap for row in found.noises]
    assert values == sorted(values)
    # Frequencies and uniform noise are too close for 200 rows to tell which of them is more probable.
    assert max(found.log_likelihood[:2]) < found.log_likelihood[2] < found.log_likelihood[3]


def test_figure_shows_the_study(study: theory_study.TheoryStudy, tmp_path: Path) -> None:
    marks = {row.noise: row.relative_snr for row in study.noises}
    figure = theory_figure.draw(study.curve, marks, n_classes=study.n_classes, title="planted")
    axes = figure.axes[0]
    line, *others = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), study.curve.weights)
    points = [other for other in others if len(other.get_xdata()) == 1]
    assert [point.get_ydata()[0] for point in points] == list(marks.values())
    assert points[0].get_xdata()[0] == 0.0  # uniform noise is where the curve starts
    assert points[-1].get_xdata()[0] == 1.0
    # A mark is on the curve: the mixture of this weight is as good.
    p = study.noises[2]
    weight = points[2].get_xdata()[0]
    assert np.interp(weight, study.curve.weights, study.curve.relative_snr) == pytest.approx(
        p.relative_snr, rel=1e-9
    )
    assert len({(point.get_color(), point.get_marker()) for point in points}) == 4
    for suffix, magic in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"figure.{suffix}"
        figure.savefig(path)
        assert path.read_bytes().startswith(magic)


def test_command_prints_what_the_study_says_same_everywhere(
    study: theory_study.TheoryStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = theory_study.three_ways(n_draws=1000)
    monkeypatch.setattr(theory_study, "three_ways", lambda **_: checks)
    monkeypatch.setattr(theory_study, "planted_study", lambda **_: study)
    figure_file = tmp_path / "snr.svg"
    done = CliRunner().invoke(app, ["theory", "--json", "--figure", str(figure_file)])
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["noises"][2]["overlap"] == study.noises[2].overlap
    assert printed["three_ways"][0]["exact"] == checks[0].exact
    assert len(printed["curve"]["weights"]) == len(study.curve.weights)
    assert figure_file.read_bytes().startswith(b"<?xml")
    table = CliRunner().invoke(app, ["theory"]).stdout.splitlines()
    assert table[0].split("\t") == ["noise", "exact", "matrices", "simulated", "standard error"]
    assert [line.split("\t")[0] for line in table[1:5]] == NOISES
    assert table[8].split("\t")[2] == f"{study.noises[1].overlap:.4f}"


def test_seed_reaches_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(**options: object) -> None:
        asked.append(options)
        raise ValueError("enough.")

    monkeypatch.setattr(theory_study, "three_ways", refuse)
    done = CliRunner().invoke(app, ["theory", "--seed", "7", "--threads", "1"])
    assert done.exit_code == 1
    assert done.stderr.endswith("extremax: enough.\n")
    assert asked == [{"seed": 7, "n_jobs": 1}]


@pytest.mark.parametrize(
    ("arguments", "word"), [(["--figure", "snr.bmp"], "snr.bmp"), (["--data", "mnist"], "mnist")]
)
def test_wrong_usage_rejects(arguments: list[str], word: str) -> None:
    done = CliRunner().invoke(app, ["theory", *arguments])
    assert done.exit_code == 2
    assert word in done.stderr


def test_every_noise_of_a_study_has_a_mark() -> None:
    curve = theory.MixingCurve(np.array([0.0, 1.0]), np.array([0.9, 1.0]), np.array([0.0, 1.0]))
    assert theory_figure.draw(curve, dict.fromkeys(NOISES, 0.95), n_classes=11) is not None
