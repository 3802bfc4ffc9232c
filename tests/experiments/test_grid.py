"""The search over a grid: it climbs to a planted optimum, and beyond the ends of the grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment_files import make_recipe
from extremax.experiments import tune
from extremax.experiments.grid import Grid, Values
from extremax.experiments.paper.reproduction import paper_grid

RATES = [0.0003, 0.001, 0.003, 0.01, 0.03]
PENALTIES = [1e-5, 3e-5, 1e-4, 3e-4, 1e-3]
Score = Callable[[Values], float]


def search(grid: Grid, score: Score, n_trials: int) -> list[tuple[Values, float]]:
    tried: list[tuple[Values, float]] = []
    for _ in range(n_trials):
        values = grid.next_trial(tried)
        if values is None:
            break
        tried.append((values, score(values)))
    return tried


def peak(rate: float, penalty: float, reading: str = "debiased") -> Score:
    """A score with one maximum."""

    def score(values: Values) -> float:
        far = abs(math.log10(values["learning_rate"] / rate)) + abs(
            math.log10(values["score_penalty"] / penalty)
        )
        return -far - (0.3 if values.get("penalized_scores", reading) != reading else 0.0)

    return score


@pytest.mark.parametrize("rate", [1e-5, 0.003, 0.03, 0.3, 3.0])
@pytest.mark.parametrize("penalty", [1e-5, 1e-3, 0.01])
@pytest.mark.parametrize("reading", ["debiased", "raw"])
def test_search_climbs_to_the_optimum(rate: float, penalty: float, reading: str) -> None:
    space = {"learning_rate": RATES, "score_penalty": PENALTIES, "penalized_scores": ["debiased", "raw"]}
    grid = Grid.of(space, 4)
    tried = search(grid, peak(rate, penalty, reading), 36)
    best, _ = max(tried, key=lambda trial: trial[1])
    assert best == {"learning_rate": rate, "score_penalty": penalty, "penalized_scores": reading}
    combinations = [tuple(values.values()) for values, _ in tried]
    assert len(set(combinations)) == len(combinations) == 36  # none twice
    assert tried == search(grid, peak(rate, penalty, reading), 36)


def test_grid_grows_where_the_best_lies_at_its_end() -> None:
    grid = Grid.of({"learning_rate": RATES, "score_penalty": PENALTIES}, 2)
    inside = search(grid, peak(0.003, 1e-4), 12)
    assert grid.widened([values for values, _ in inside]) == {}
    outside = search(grid, peak(1.0, 1e-4), 12)
    tried = [values for values, _ in outside]
    assert grid.widened(tried) == {"learning_rate": [0.1, 0.3]}
    best, _ = max(outside, key=lambda trial: trial[1])
    assert best["learning_rate"] == 0.3  # two values more were allowed, and 1 is beyond them
    assert grid.at_end(best) == ["learning_rate"]
    assert grid.at_end({"learning_rate": 0.03, "score_penalty": 1e-4}) == []


def test_values_continue_the_list() -> None:
    axes = Grid.of({"a": [0.3, 1.0], "b": ["x", "y"], "c": [100.0]}, 3).axes
    assert axes == {
        "a": [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
        "b": ["x", "y"],
        "c": [3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0],
    }


def test_equal_scores_lead_to_larger_rates() -> None:
    """A rate that is too small to change any prediction says nothing about larger ones."""
    grid = Grid.of({"learning_rate": RATES, "score_penalty": PENALTIES}, 4)
    tried = search(grid, lambda values: 0.0 if values["learning_rate"] < 0.1 else 1.0, 4)
    assert tried[-1] == ({"learning_rate": 0.1, "score_penalty": 1e-4}, 1.0)


def test_small_grid_ends() -> None:
    grid = Grid.of({"a": [1.0, 3.0], "b": ["x", "y"]}, 0)
    tried = search(grid, lambda values: values["a"], 9)
    assert len(tried) == 4


def test_grid_of_the_paper() -> None:
    assert paper_grid("adversarial") == {
        "learning_rate": RATES,
        "score_penalty": [*PENALTIES, 3e-3, 0.01, 0.03],
    }
    assert paper_grid("uniform")["penalized_scores"] == ["debiased", "raw"]
    assert paper_grid("one_vs_each")["learning_rate"] == RATES
    assert paper_grid("softmax")["learning_rate"] == [*RATES, 0.1, 0.3, 1.0, 3.0, 10.0]


def test_search_of_a_recipe_widens_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    space = "[search]\nstrategy = 'grid'\nwiden = 3\npruner = 'none'\n[search.space]\n"
    space += "learning_rate = [1e-3, 3e-3]\nscore_penalty = [1e-4]\n"
    recipe = make_recipe(tmp_path, n_epochs=2, noise="uniform", more=space)
    whole = tune(recipe, tmp_path / "whole", n_trials=6)
    assert len(whole.trials) == 6
    assert whole.widened["learning_rate"][-1] == 0.1
    assert whole.best.model["learning_rate"] == 0.1
    assert whole.at_end == ["learning_rate"]
    for n_trials in (2, 4, 6):  # in pieces, the same trials
        pieces = tune(recipe, tmp_path / "pieces", n_trials=n_trials)
    tried: list[Any] = [[(t.parameters, t.score) for t in found.trials] for found in (whole, pieces)]
    assert tried[0] == tried[1]
