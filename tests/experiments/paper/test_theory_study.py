"""The study behind ``extremax theory``: its figures and the command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax import ExtremeClassifier
from extremax.cli.app import app
from extremax.experiments.paper import theory_study
from extremax.solvers import NegativeSampling

NOISES = ["uniform", "frequency", "tree", "p_D"]


@pytest.fixture(scope="module")
def study() -> theory_study.TheoryStudy:
    return theory_study.planted_study(n_classes=200, n_samples=4000, n_rows=100, seed=3)


def test_noises_are_in_the_order_of_the_paper(study: theory_study.TheoryStudy) -> None:
    assert [row.noise for row in study.noises] == NOISES
    for key in ("snr", "relative_snr", "overlap"):
        values = [getattr(row, key) for row in study.noises]
        assert values == sorted(values)
    assert list(study.log_likelihood) == sorted(study.log_likelihood)
    assert study.log_likelihood[0] == pytest.approx(-np.log(200), abs=1e-5)  # uniform; tables come in float32


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


def test_command_prints_what_the_study_says_same_everywhere(
    study: theory_study.TheoryStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory_study, "planted_study", lambda **_: study)
    done = CliRunner().invoke(app, ["theory", "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) == study.as_dict()
    table = CliRunner().invoke(app, ["theory"]).stdout.splitlines()
    assert [line.split("\t")[0] for line in table[1:]] == NOISES
    assert table[2].split("\t")[2] == f"{study.noises[1].overlap:.4f}"


def test_seed_reaches_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(**options: object) -> None:
        asked.append(options)
        raise ValueError("enough.")

    monkeypatch.setattr(theory_study, "planted_study", refuse)
    done = CliRunner().invoke(app, ["theory", "--seed", "7", "--threads", "1"])
    assert done.exit_code == 1
    assert done.stderr.endswith("extremax: enough.\n")
    assert asked == [{"seed": 7, "n_jobs": 1}]


def test_unknown_data_rejects() -> None:
    done = CliRunner().invoke(app, ["theory", "--data", "mnist"])
    assert done.exit_code == 2
    assert "mnist" in done.stderr
