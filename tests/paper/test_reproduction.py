"""The paper's comparison: shipped recipes, and all methods end to end on a small set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiment_files import make_recipe
from extremax import experiments
from extremax.experiments import load_recipe
from extremax.experiments.methods import METHODS
from extremax.experiments.recipes import find_recipe, shipped_recipes
from extremax.paper import reproduce
from extremax.paper.reproduction import ALL_METHODS, recipe_for


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


def test_comparison_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods on a small set in the place of a known one: search, runs, figure, report."""
    pytest.importorskip("optuna")
    recipe = make_recipe(tmp_path, n_epochs=2)

    def small(data: str, method: str) -> Any:
        return replace(recipe, method=method).with_model(noise=method)

    monkeypatch.setattr("extremax.paper.reproduction.recipe_for", small)
    found = reproduce("gauss", tmp_path / "out", methods=["adversarial", "uniform"], n_trials=1)
    assert set(found.outcomes) == {"adversarial", "uniform"}
    assert len(found.verdicts) == 4
    assert (tmp_path / "out" / "figure.svg").exists()
    assert "| uniform neg. sampling |" in found.report.read_text()
    with pytest.raises(ValueError, match="'unifrom' is not a method"):
        reproduce("gauss", tmp_path / "out", methods=["unifrom"])
    assert len(ALL_METHODS) == 7


def test_old_place_of_reproduce_warns() -> None:
    with pytest.warns(FutureWarning, match=r"extremax\.paper\.reproduce"):
        assert experiments.reproduce is reproduce
    with pytest.raises(AttributeError, match="nothing"):
        _ = experiments.nothing
