"""Parameter searches: they choose by validation alone, and can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from experiment_files import make_recipe, write_recipe
from extremax.cli.app import app
from extremax.experiments import load_recipe, tune
from extremax.experiments.curve import Evaluator
from extremax.experiments.methods import METHODS
from extremax.experiments.recipe import Range
from extremax.experiments.rows import load_rows
from extremax.experiments.tuning import default_space, draw_parameters
from extremax.runtime.locks import hold_folder

SPACE = """
[search]
n_trials = 4
[search.space]
learning_rate = [1e-4, 0.3]
score_penalty = {low = 1e-5, high = 1e-3}
"""


def test_search_finds_the_better_parameters(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=3, more=SPACE)
    rows = load_rows(recipe)
    del rows.X["test"], rows.y["test"]  # a search that looked at test rows would fail
    result = tune(recipe, tmp_path / "search", rows=rows)
    assert len(result.trials) == 4
    assert {trial.parameters["learning_rate"] for trial in result.trials} == {1e-4, 0.3}
    assert result.best.model["learning_rate"] == 0.3
    assert result.trials[0].score == max(trial.score or -99 for trial in result.trials)
    written = load_recipe(result.path)
    assert written.model == result.best.model
    assert written.data.path == recipe.data.path
    assert result.path.read_text().startswith("# Best of 4 trials by validation log_likelihood: ")
    assert [t["score"] for t in json.loads((tmp_path / "search" / "trials.json").read_text())] == [
        t.score for t in result.trials
    ]


def test_interrupted_search_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1, more=SPACE)
    rows = load_rows(recipe)
    evaluate, calls = Evaluator.__call__, [0]

    def cut(self: Any, model: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:  # each trial is looked at before and after its epoch
            raise KeyboardInterrupt
        return evaluate(self, model)

    monkeypatch.setattr(Evaluator, "__call__", cut)
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, tmp_path / "search", rows=rows)
    result = tune(recipe, tmp_path / "search", rows=rows)
    assert calls == [5 + 2 * 2]  # two were finished before
    whole = tune(recipe, tmp_path / "whole", rows=rows)
    assert [trial.score for trial in whole.trials] == [trial.score for trial in result.trials]
    calls[0] = 10
    assert tune(recipe, tmp_path / "search", rows=rows) == result  # nothing is tried again
    more = tune(recipe, tmp_path / "search", rows=rows, n_trials=5)
    assert calls == [12]
    assert [trial for trial in more.trials if trial.number < 4] == result.trials


def test_no_combination_is_tried_twice(tmp_path: Path) -> None:
    """Four trials try all four combinations of a space, however many are asked for."""
    space = SPACE.replace("{low = 1e-5, high = 1e-3}", "[1e-5, 1e-4]").replace("n_trials = 4", "n_trials = 9")
    result = tune(make_recipe(tmp_path, n_epochs=1, more=space), tmp_path / "search")
    tried = [tuple(trial.parameters.values()) for trial in result.trials]
    assert sorted(tried) == [(1e-4, 1e-5), (1e-4, 1e-4), (0.3, 1e-5), (0.3, 1e-4)]


def test_ranges_are_drawn_evenly_in_the_logarithm_or_not() -> None:
    space = {
        "rate": Range(1e-4, 1.0),
        "share": Range(1.0, 3.0, log=False),
        "m": Range(1, 16),
        "kind": ["a", "b"],
    }
    drawn = [*draw_parameters(space, 2000, seed=0)]
    assert [*draw_parameters(space, 5, seed=0)] == drawn[:5]  # more trials go on with the same draws
    assert np.mean([one["rate"] < 1e-2 for one in drawn]) == pytest.approx(0.5, abs=0.04)
    assert np.mean([one["share"] < 2.0 for one in drawn]) == pytest.approx(0.5, abs=0.04)
    assert {one["m"] for one in drawn} == set(range(1, 17))
    assert np.mean([one["kind"] == "a" for one in drawn]) == pytest.approx(0.5, abs=0.04)


def test_a_trial_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    space = SPACE.replace("1e-4, 0.3", "0.3, 1e30").replace("{low = 1e-5, high = 1e-3}", "[1e-4]")
    said: list[str] = []
    result = tune(make_recipe(tmp_path, n_epochs=2, more=space), tmp_path / "search", log=said.append)
    assert [trial.score is None for trial in result.trials] == [False, True]
    assert any("diverged" in text for text in said)
    assert result.best.model["learning_rate"] == 0.3
    only = make_recipe(tmp_path, n_epochs=2, more=space.replace("0.3, 1e30", "1e30"))
    with pytest.raises(ValueError, match="no trial of the search came to a score"):
        tune(only, tmp_path / "other")


def test_folder_of_another_search_rejects(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1, more=SPACE.replace("n_trials = 4", "n_trials = 1"))
    tune(recipe, tmp_path / "search")
    with pytest.raises(ValueError, match=r"another recipe: model\.n_epochs is 1 there and 2 here"):
        tune(recipe.with_model(n_epochs=2), tmp_path / "search")
    with pytest.raises(FileExistsError, match="is not a search"):
        tune(recipe, tmp_path)


def test_longer_runs_keep_the_search(tmp_path: Path) -> None:
    """Trials have epochs of their own: those of the model do not change them."""
    recipe = make_recipe(
        tmp_path, n_epochs=3, more=SPACE.replace("n_trials = 4", "n_trials = 1\nn_epochs = 1")
    )
    first = tune(recipe, tmp_path / "search")
    again = tune(recipe.with_model(n_epochs=9), tmp_path / "search")
    assert again.trials == first.trials
    assert again.best.model["n_epochs"] == 9


def test_default_space_is_the_grid_of_the_paper() -> None:
    exact = METHODS["softmax"].model
    space = default_space({"solver": "negative_sampling", "noise": "uniform"})
    assert {0.0003, 0.001, 0.003, 0.01, 0.03} <= set(space["learning_rate"])
    assert space["score_penalty"] == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03]
    assert set(default_space({"solver": "one_vs_each"})) == {"learning_rate", "prior_variance"}
    # The appendix went up to 10 for softmax; nothing is searched that the solver does not use.
    assert max(default_space(exact)["learning_rate"]) == 10.0
    assert [set(default_space({"solver": name})) for name in ("auto", "minibatch_softmax")] == [
        {"learning_rate"}
    ] * 2
    assert default_space(exact)["score_penalty"] == space["score_penalty"]
    # Both readings of Eq. 6, where they differ and the noise does not depend on x.
    assert space["penalized_scores"] == ["debiased", "raw"]
    assert "penalized_scores" not in default_space({"solver": "negative_sampling", "noise": "tree"})


def test_long_trials_are_scored_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At three numbers of samples per decade, from a thousand on, and always after the last epoch."""
    looks = []
    evaluate = Evaluator.__call__

    def count(self: Evaluator, model: Any) -> dict[str, float]:
        looks.append(model.n_epochs)
        return evaluate(self, model)

    monkeypatch.setattr(Evaluator, "__call__", count)
    tune(make_recipe(tmp_path, n_epochs=19), tmp_path / "search", n_trials=1)
    assert looks == [
        0,
        2,
        3,
        5,
        11,
        19,
    ]  # the start, 1,000, 2,154, 4,642 and 10,000 samples of 960 an epoch, the end


# -- recipes of the package, and the terminal


def test_terminal_runs_searches_and_draws(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, n_epochs=1, more=SPACE.replace("n_trials = 4", "n_trials = 2"))
    done = CliRunner().invoke(app, ["run", str(recipe), "--out", str(tmp_path / "a"), "--seed", "3"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split("\t")[:3] == ["model", "epoch", "seconds"]
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model"]["random_state"] == 3
    done = CliRunner().invoke(app, ["tune", str(recipe), "--out", str(tmp_path / "s"), "--json"])
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["trials"]) == 2
    done = CliRunner().invoke(app, ["plot", str(tmp_path / "a"), "-o", str(tmp_path / "x.svg")])
    assert done.stdout == f"{tmp_path / 'x.svg'}\n"
    done = CliRunner().invoke(app, ["run", "icd10cm/adverserial", "--out", str(tmp_path / "b")])
    assert done.exit_code == 1
    assert "Did you mean 'icd10cm/adversarial'?" in done.stderr


@pytest.mark.parametrize("command", ["run", "tune"])
def test_second_process_is_told(tmp_path: Path, command: str) -> None:
    recipe = write_recipe(tmp_path, n_epochs=1, more=SPACE.replace("= 4", "= 1"))
    out = tmp_path / "out"
    out.mkdir()
    with hold_folder(out):
        done = CliRunner().invoke(app, [command, str(recipe), "--out", str(out)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"extremax: {out} is in use by another process")
    assert done.stderr.count("\n") == 1
    assert {path.name for path in out.iterdir()} <= {".lock"}
