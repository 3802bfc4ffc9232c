"""Recipes: content, defaults, files, and the message for every mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremax.experiments.recipe import (
    MODEL_DEFAULTS,
    TEXT_DEFAULTS,
    DataConfig,
    EvaluationConfig,
    Recipe,
    SearchConfig,
    comparable,
    load_recipe,
    parse_recipe,
    resolve,
    to_toml,
)

FULL = """
name = "a \\"quoted\\" name"
method = "uniform"
[data]
path = "rows.csv"
reduce = "rarest"
seed = 3
[features]
kind = "text"
n_components = 64
char_ngrams = [3, 4]
[model]
noise = "uniform"
learning_rate = 1
[evaluation]
first_samples = 50
max_seconds = 30.5
[search]
n_trials = 5
[search.space]
learning_rate = [0.1, 0.3]
n_negatives = { low = 1, high = 16 }
"""


def test_recipe_holds_what_the_file_says() -> None:
    recipe = parse_recipe(tomllib.loads(FULL))
    assert recipe.data == DataConfig(path="rows.csv", reduce="rarest", seed=3)
    assert recipe.features.n_components == 64
    assert recipe.features.options == {"char_ngrams": (3, 4)}
    assert recipe.model == {"noise": "uniform", "learning_rate": 1}
    assert recipe.evaluation == EvaluationConfig(first_samples=50, max_seconds=30.5)
    assert recipe.search.space == {"learning_rate": [0.1, 0.3], "n_negatives": {"low": 1, "high": 16}}


def test_resolved_recipe_has_every_parameter() -> None:
    resolved = resolve(parse_recipe({"data": {"name": "x"}, "model": {"noise": "uniform"}}))
    assert resolved["model"] == {**MODEL_DEFAULTS, "noise": "uniform"}
    assert resolved["model"]["random_state"] == 0
    assert resolved["features"] == {**TEXT_DEFAULTS, "kind": "auto", "n_components": 512}
    assert resolved["evaluation"] == vars(EvaluationConfig())
    again = json.loads(json.dumps(resolved))
    assert resolve(parse_recipe(again)) == resolved


def test_toml_and_back_identity() -> None:
    recipe = parse_recipe(tomllib.loads(FULL))
    text = to_toml(recipe, comment="from a search\nof two lines")
    assert text.startswith("# from a search\n# of two lines\n")
    assert parse_recipe(tomllib.loads(text)) == recipe


@given(
    name=st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20),
    rate=st.floats(min_value=1e-30, max_value=1e30),
    seed=st.integers(min_value=0, max_value=2**62),
)
def test_any_toml_and_back_identity(name: str, rate: float, seed: int) -> None:
    recipe = Recipe(
        name=name,
        data=DataConfig(name="x", seed=seed),
        model={"learning_rate": rate},
        search=SearchConfig(seed=seed),
    )
    assert parse_recipe(tomllib.loads(to_toml(recipe))) == recipe


def test_paths_count_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "mine.toml"
    file.write_text('[data]\npath = "../rows.csv"\ntest_path = "/elsewhere/test.csv"\n')
    recipe = load_recipe(file)
    assert recipe.name == "mine"
    assert recipe.data.path == str(tmp_path / "rows.csv")
    assert recipe.data.test_path == "/elsewhere/test.csv"
    assert recipe.data.valid_path is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model\n", "is not TOML"),
        ("[modell]\nnoise = 'uniform'\n[data]\nname = 'x'", "modell is not a parameter; did you mean model?"),
        ("[data]\nname = 'x'\nreduse = 'first'", "data.reduse is not a parameter; did you mean data.reduce?"),
        (
            "[data]\nname = 'x'\nreduce = 'rares'",
            "data.reduce is 'rares'; it must be one of .* Did you mean 'rarest'?",
        ),
        ("[data]\nname = 'x'\nseed = 'a'", "data.seed is 'a'; it must be an integer."),
        ("[data]\nname = 'x'\nseed = true", "data.seed is True; it must be an integer."),
        ("[data]\nname = 'x'\nseed = -1", "data.seed is -1; it must be at least 0."),
        (
            "[data]\nname = 'x'\nvalid_fraction = 1.5",
            "data.valid_fraction is 1.5; it must be at least 0 and below 1.",
        ),
        ("[data]\nname = 'x'\nvalid_fraction = 0.5\ntest_fraction = 0.5", "leave no row to train on"),
        ("[data]\nseed = 1", "data has neither a name nor a path"),
        ("data = 3", "data is 3; it must be a table"),
        ("name = 3", "name is 3; it must be a string"),
        (
            "[data]\nname = 'x'\n[model]\nnoize = 'uniform'",
            "model.noize is not a parameter; did you mean model.noise?",
        ),
        (
            "[data]\nname = 'x'\n[features]\nchar_ngram = [1, 2]",
            "features.char_ngram is not a .* mean features.char_ngrams?",
        ),
        ("[data]\nname = 'x'\n[features]\noptions = {}", "features.options is not a parameter"),
        (
            "[data]\nname = 'x'\n[evaluation]\nfirst_samples = 0",
            "evaluation.first_samples is 0; it must be at least 1.",
        ),
        ("[data]\nname = 'x'\n[search]\nspace = 3", "search.space is 3; it must be a table."),
        (
            "[data]\nname = 'x'\n[search.space]\nlearning_rat = [1]",
            "did you mean search.space.learning_rate?",
        ),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rate = []", "give a list of values, or a table"),
        ("[data]\nname = 'x'\n[search.space]\nlearning_rate = {low = 0, high = 1}", "low must be above 0"),
        (
            "[data]\nname = 'x'\n[search.space]\nlearning_rate = {low = 2, high = 1}",
            "give a list of values, or a table",
        ),
        (
            "[data]\nname = 'x'\n[search]\nstrategy = 'grid'\nspace = {learning_rate = {low = 1, high = 2}}",
            "search.space.learning_rate is a range; the strategy 'grid' needs a list of values.",
        ),
    ],
)
def test_mistake_in_a_recipe_rejects(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        load_recipe(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_binary_file_rejects(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        load_recipe(file)


def test_old_names_of_parameters_warn() -> None:
    content = {
        "data": {"name": "x"},
        "model": {"n_components": 16, "noise": "uniform", "regularization": 0.1},
        "search": {"space": {"regularization": [0.1, 1.0]}},
    }
    with pytest.warns(FutureWarning) as caught:
        recipe = parse_recipe(content)
    assert [str(warning.message) for warning in caught] == [
        f"{old} is now called {new}; the old name will go with the next release."
        for old, new in (
            ("model.n_components", "model.tree_components"),
            ("model.regularization", "model.tree_regularization"),
            ("search.space.regularization", "search.space.tree_regularization"),
        )
    ]
    assert recipe.model == {"tree_components": 16, "noise": "uniform", "tree_regularization": 0.1}
    assert recipe.search.space == {"tree_regularization": [0.1, 1.0]}
    with pytest.raises(ValueError, match=r"model.n_components is now called model.tree_components; give one"):
        parse_recipe({"data": {"name": "x"}, "model": {"n_components": 16, "tree_components": 16}})


def test_first_seconds_of_old_recipes_warns() -> None:
    content = {"data": {"name": "x"}, "evaluation": {"first_seconds": 0.3, "test_rows": 7}}
    with pytest.warns(FutureWarning, match=r"evaluation\.first_seconds has no effect.*first_samples"):
        recipe = parse_recipe(content)
    assert recipe.evaluation == EvaluationConfig(test_rows=7)


def test_sections_of_old_recipes_compare_equal() -> None:
    new = resolve(parse_recipe({"data": {"name": "x"}}))
    old = {**new, "evaluation": {"first_seconds": 0.1, **new["evaluation"]}, "search": dict(new["search"])}
    for name in ("strategy", "widen"):
        del old["search"][name]
    del old["evaluation"]["first_samples"]
    assert comparable(old) == comparable(new)


def test_old_and_new_names_compare_equal() -> None:
    new = resolve(parse_recipe({"data": {"name": "x"}, "model": {"tree_components": 16}}))
    old = {**new, "model": dict(new["model"])}
    old["model"]["n_components"] = old["model"].pop("tree_components")
    old["model"]["noise"] = "tree"
    assert comparable(old) == comparable(new)
