"""The paper's comparison: shipped recipes, and all methods end to end on a small set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from experiment_files import make_recipe
from extremax.cli.app import app
from extremax.experiments import load_recipe
from extremax.experiments.methods import METHODS
from extremax.experiments.paper.reproduction import ALL_METHODS, recipe_for, reproduce
from extremax.experiments.recipe import Recipe, find_recipe, shipped_recipes


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipe_resolves(name: str) -> None:
    recipe = load_recipe(find_recipe(name))
    data, method = name.split("/")
    assert recipe.data.name == data
    assert recipe.method == method
    assert recipe_for(data, method) == recipe
    # A recipe may add rates and epochs to its method, and change nothing else about it.
    given = {key: value for key, value in METHODS[method].model.items() if key != "learning_rate"}
    assert given.items() <= recipe.model.items()


@pytest.mark.parametrize("data", sorted({name.split("/")[0] for name in shipped_recipes()}))
def test_methods_of_a_data_set_are_treated_alike(data: str) -> None:
    """All six have the same epochs, trials, points and rows; features come as in the paper."""
    recipes = [
        recipe_for(data, name.split("/")[1]) for name in shipped_recipes() if name.startswith(f"{data}/")
    ]
    compared = [recipe for recipe in recipes if recipe.method != "softmax"]
    assert len({recipe.model["n_epochs"] for recipe in compared}) == 1
    assert len({recipe.search.n_epochs for recipe in compared}) == 1
    assert len({recipe.evaluation for recipe in recipes}) == 1
    assert len({recipe.features for recipe in recipes}) == 1
    assert {recipe.model["scale_features"] for recipe in recipes} == {False}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """A small set in the place of a known one."""
    recipe = make_recipe(tmp_path, n_epochs=3, n_rows=600, n_classes=12)
    recipe = replace(recipe, search=replace(recipe.search, n_epochs=1))

    def of_method(data: str, method: str) -> Recipe:
        model = {**recipe.model, **METHODS[method].model, "tree_components": 8, "learning_rate": 0.3}
        return replace(recipe, method=method, model=model)

    monkeypatch.setattr("extremax.experiments.paper.reproduction.recipe_for", of_method)
    return recipe


def test_comparison_end_to_end(tmp_path: Path, small: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search, runs with two seeds, figure, report; killed on the way, and resumed."""
    wanted: dict[str, Any] = {"methods": ["adversarial", "uniform"], "n_trials": 5, "n_seeds": 2}
    said: list[str] = []

    class Power(BaseException):
        pass

    def cut(text: str) -> None:
        said.append(text)
        if text == "running uniform neg. sampling, seed 1":
            raise Power

    with pytest.raises(Power):
        reproduce("gauss", tmp_path / "out", **wanted, n_jobs=1, log=cut)
    trials = [text for text in said if text.startswith("trial")]
    assert len(trials) == 10  # the same number for each method
    said.clear()
    found = reproduce("gauss", tmp_path / "out", **wanted, n_jobs=1, log=said.append)
    assert not [text for text in said if text.startswith("trial")]
    assert sum("is finished already" in text for text in said) == 3
    assert [len(outcome.runs) for outcome in found.outcomes.values()] == [2, 2]
    assert len(found.verdicts) == 4
    again = reproduce("gauss", tmp_path / "out", **{**wanted, "methods": ["uniform"]}, n_jobs=1)
    assert list(again.outcomes) == ["adversarial", "uniform"]  # all that the folder holds
    text = found.report.read_text()
    assert "uniform neg. sampling 5 × 1 epochs" in text
    assert "to the letter" in text
    assert (tmp_path / "out" / "figure.svg").exists()
    assert not list((tmp_path / "out").rglob("model"))
    curves = [
        (tmp_path / "out" / "runs" / "adversarial" / f"seed-{seed}" / "curve.jsonl").read_text()
        for seed in range(2)
    ]
    starts = [json.loads(curve.splitlines()[0]) for curve in curves]
    assert starts[0]["test_log_likelihood"] == starts[1]["test_log_likelihood"]  # one tree
    assert curves[0].splitlines()[-1] != curves[1].splitlines()[-1]  # two seeds


def test_command_writes_a_report(tmp_path: Path, small: Recipe) -> None:
    arguments = ["reproduce", "gauss", "--out", str(tmp_path / "out"), "-m", "uniform", "-m", "adversarial"]
    arguments += ["--seeds", "2", "--threads", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split("\t")[-1:] == ["processor s"]
    assert "by an order of magnitude" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json"])
    content = json.loads(done.stdout)
    assert content["outcomes"]["uniform"]["n_seeds"] == 2
    assert len(content["verdicts"]) == 4
    assert "not searched for this report" in (tmp_path / "out" / "report.md").read_text()


def test_a_tree_that_takes_much_of_the_time_is_told(tmp_path: Path, small: Recipe) -> None:
    said: list[str] = []
    wanted: dict[str, Any] = {"methods": ["adversarial"], "n_trials": 0, "n_seeds": 1, "n_jobs": 1}
    reproduce("gauss", tmp_path / "out", **wanted, max_seconds=1e-4, log=said.append)
    (warning,) = [text for text in said if text.startswith("warning")]
    assert "of the 0.0001 seconds of each run that uses it" in warning
    said.clear()
    reproduce("gauss", tmp_path / "whole", **wanted, log=said.append)
    assert not [text for text in said if text.startswith("warning")]


def test_unknown_method_rejects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'unifrom' is not a method"):
        reproduce("gauss", tmp_path / "out", methods=["unifrom"])
    assert len(ALL_METHODS) == 8
