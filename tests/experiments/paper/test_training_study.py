"""Signal-to-noise ratios along training: points, orders, figure and command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax.cli.app import app
from extremax.experiments.paper import theory_figure
from extremax.experiments.paper.training_study import (
    PLANTED,
    Effort,
    TrainingStudy,
    compare_orders,
    training_study,
)

METHODS = ["uniform", "frequency", "tree", "default"]
EFFORT = Effort(n_groups=2, n_batches=4, batch_size=64)


@pytest.fixture(scope="module")
def study() -> TrainingStudy:
    return training_study(PLANTED, n_epochs=4, n_valid=300, effort=EFFORT, n_jobs=1)


def test_points_are_at_fixed_numbers_of_samples(study: TrainingStudy) -> None:
    assert study.methods == METHODS
    n = study.n_rows
    for method in METHODS[:3]:
        curve = study.curve(method)
        samples = np.array([point.samples for point in curve])
        # reports come after whole minibatches, of 16 rows
        np.testing.assert_allclose(samples, [0, n / 8, n / 4, n / 2, n, 2 * n, 4 * n], atol=256)
        assert curve[-1].log_likelihood > curve[0].log_likelihood + 0.1  # it has learned
    assert study.curve("default")[0].samples == 0
    start = {method: study.curve(method)[0] for method in METHODS}
    assert start["uniform"].log_likelihood == pytest.approx(-np.log(study.n_classes), abs=1e-4)
    assert start["tree"].log_likelihood > start["frequency"].log_likelihood > start["uniform"].log_likelihood
    for point in study.points:
        assert point.ratio < 1.0  # of one row
        assert 0.0 < point.error < 1.0


@pytest.mark.invariance
def test_threads_change_nothing_invariant(study: TrainingStudy) -> None:
    again = training_study(PLANTED, n_epochs=4, n_valid=300, effort=EFFORT, n_jobs=2)
    assert again.as_dict() == study.as_dict()


def test_orders_are_those_of_the_points(study: TrainingStudy) -> None:
    at_start = compare_orders(study)[0]
    assert at_start.samples == 0
    for order, key in ((at_start.by_ratio, "ratio"), (at_start.by_log_likelihood, "log_likelihood")):
        values = [getattr(study.curve(method)[0], key) for method in order]
        assert sorted(order) == sorted(METHODS)
        assert values == sorted(values, reverse=True)


def test_command_writes_table_and_figure(tmp_path: Path) -> None:
    figure = tmp_path / "training.svg"
    given = ["theory", "--training", "--threads", "1", "--seed", "0", "--figure", str(figure)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert lines[0][:3] == ["method", "samples", "SNR of a row"]
    assert list(dict.fromkeys(line[0] for line in lines[1:])) == METHODS
    assert figure.read_bytes().startswith(b"<?xml")


def test_figure_shows_every_method(study: TrainingStudy) -> None:
    figure = theory_figure.draw_training(study)
    _, learned, both = figure.axes
    assert len(learned.get_lines()) == len(both.get_lines()) == len(METHODS)
    line = learned.get_lines()[0]
    np.testing.assert_array_equal(
        line.get_ydata(), [point.log_likelihood for point in study.curve("uniform")]
    )
    assert json.loads(json.dumps(study.as_dict()))["points"][0]["method"] == "uniform"


@pytest.mark.error
def test_data_without_the_first_tables_reject() -> None:
    done = CliRunner().invoke(app, ["theory", "--data", "eurlex57k"])
    assert done.exit_code == 2
    assert "only its --training" in done.stderr
