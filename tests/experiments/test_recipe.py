"""Recipes: content, defaults, files, and the message for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extremax.experiments.recipe import (
    DataConfig,
    EvaluationConfig,
    Range,
    find_recipe,
    load_recipe,
    model_defaults,
    resolve,
    to_toml,
)

FULL = """
name = "a \\"quoted\\" name – é"
method = "uniform"
[data]
path = "/rows.csv"
reduce = "rarest"
seed = 3
[features]
kind = "text"
n_components = 64
[model]
solver = "negative_sampling"
noise = "uniform"
learning_rate = 1e-7
[evaluation]
first_samples = 50
max_seconds = 30.5
[search]
n_trials = 5
[search.space]
learning_rate = [0.1, 0.3]
n_negatives = { low = 1, high = 16 }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_recipe_holds_what_the_file_says(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, FULL))
    assert recipe.data == DataConfig(path="/rows.csv", reduce="rarest", seed=3)
    assert recipe.features.n_components == 64
    assert recipe.model == {"solver": "negative_sampling", "noise": "uniform", "learning_rate": 1e-7}
    assert recipe.evaluation == EvaluationConfig(first_samples=50, max_seconds=30.5)
    assert recipe.search.space == {"learning_rate": [0.1, 0.3], "n_negatives": Range(1, 16)}


def test_resolved_recipe_has_every_parameter(tmp_path: Path) -> None:
    resolved = resolve(load_recipe(written(tmp_path, FULL)))
    defaults = model_defaults("negative_sampling")
    assert resolved["model"] == {**defaults, "noise": "uniform", "learning_rate": 1e-7}
    assert resolved["model"]["random_state"] == 0
    assert resolved["evaluation"]["points_per_decade"] == 6
    assert json.loads(json.dumps(resolved)) == resolved


def test_toml_and_back_identity(tmp_path: Path) -> None:
    recipe = load_recipe(written(tmp_path, FULL))
    text = to_toml(recipe, comment="from a search\nof two lines")
    assert text.startswith("# from a search\n# of two lines\n")
    assert load_recipe(written(tmp_path, text)) == recipe


def test_paths_count_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    text = '[data]\npath = "../rows.csv"\ntest_path = "/elsewhere/test.csv"\n'
    recipe = load_recipe(written(tmp_path / "sub", text))
    assert recipe.name == "mine"
    assert recipe.data.path == str(tmp_path / "rows.csv")
    assert recipe.data.test_path == "/elsewhere/test.csv"
    assert recipe.data.valid_path is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model\n", "is not a recipe"),
        ("[modell]\nnoise = 'uniform'", "unknown field `modell`"),
        ("[data]\nname = 'x'\nreduce = 'rares'", "'rares'.*data.reduce"),
        ("[data]\nname = 'x'\nseed = true", "Expected `int`.*data.seed"),
        ("[data]\nname = 'x'\nvalid_fraction = 1.5", "< 1.0.*data.valid_fraction"),
        ("[data]\nname = 'x'\nvalid_fraction = 0.5\ntest_fraction = 0.5", "leave no row to train on"),
        ("[data]\nseed = 1", "names no rows to train on"),
        ("[data]\nname = 'x'\n[model]\nnoize = 'uniform'", "model.noize is not a .* Did you mean 'noise'?"),
        ("[data]\nname = 'x'\n[evaluation]\nfirst_samples = 0", ">= 1.*evaluation.first_samples"),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rat = [1]", "Did you mean 'learning_rate'?"),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rate = []", "length >= 1.*search.space"),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rate = {low = 0, high = 1}", "low must be above 0"),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rate = {low = 2, high = 1}", "low must be below high"),
    ],
)
def test_mistake_in_a_recipe_rejects(tmp_path: Path, text: str, sentence: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_recipe(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_binary_file_rejects(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a recipe"):
        load_recipe(tmp_path / "recipe.toml")


def test_unknown_recipe_rejects() -> None:
    with pytest.raises(FileNotFoundError, match="Did you mean 'icd10cm/adversarial'"):
        find_recipe("icd10cm/adverserial")
