"""Recipes: what a file says, what it means, and the sentence for every mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremax.experiments.recipe import (
    DataConfig,
    EvaluationConfig,
    Known,
    Recipe,
    SearchConfig,
    load_recipe,
    parse_recipe,
    resolve,
    to_toml,
)

KNOWN = Known(
    model={
        "objective": "negative_sampling",
        "noise": "adversarial",
        "n_negatives": 4,
        "learning_rate": 0.3,
        "patience": None,
    },
    text_options={"n_components": 256, "char_ngrams": (2, 5), "word_ngrams": 2},
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
first_seconds = 1
max_seconds = 30.5
[search]
n_trials = 5
[search.space]
learning_rate = [0.1, 0.3]
n_negatives = { low = 1, high = 16 }
"""


def test_recipe_holds_what_the_file_says() -> None:
    recipe = parse_recipe(tomllib.loads(FULL), KNOWN)
    assert recipe.data == DataConfig(path="rows.csv", reduce="rarest", seed=3)
    assert recipe.features.n_components == 64
    assert recipe.features.options == {"char_ngrams": (3, 4)}
    assert recipe.model == {"noise": "uniform", "learning_rate": 1}
    assert recipe.evaluation == EvaluationConfig(first_seconds=1.0, max_seconds=30.5)
    assert recipe.search.space == {"learning_rate": [0.1, 0.3], "n_negatives": {"low": 1, "high": 16}}


def test_resolved_recipe_states_every_setting_once() -> None:
    resolved = resolve(parse_recipe({"data": {"name": "x"}, "model": {"noise": "uniform"}}, KNOWN), KNOWN)
    assert resolved["model"] == {**KNOWN.model, "noise": "uniform"}
    assert resolved["features"] == {
        "kind": "auto",
        "n_components": 512,
        "char_ngrams": (2, 5),
        "word_ngrams": 2,
    }
    assert resolved["evaluation"] == vars(EvaluationConfig())
    again = json.loads(json.dumps(resolved))
    assert resolve(parse_recipe(again, KNOWN), KNOWN) == resolved


def test_toml_and_back_identity() -> None:
    recipe = parse_recipe(tomllib.loads(FULL), KNOWN)
    text = to_toml(recipe, comment="from a search\nof two lines")
    assert text.startswith("# from a search\n# of two lines\n")
    assert parse_recipe(tomllib.loads(text), KNOWN) == recipe


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
    assert parse_recipe(tomllib.loads(to_toml(recipe)), KNOWN) == recipe


def test_paths_count_from_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "sub" / "mine.toml"
    file.write_text('[data]\npath = "../rows.csv"\ntest_path = "/elsewhere/test.csv"\n')
    recipe = load_recipe(file, KNOWN)
    assert recipe.name == "mine"
    assert recipe.data.path == str(tmp_path / "rows.csv")
    assert recipe.data.test_path == "/elsewhere/test.csv"
    assert recipe.data.valid_path is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model\n", "is not TOML"),
        ("[modell]\nnoise = 'uniform'\n[data]\nname = 'x'", "modell is not a setting; did you mean model?"),
        ("[data]\nname = 'x'\nreduse = 'first'", "data.reduse is not a setting; did you mean data.reduce?"),
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
            "model.noize is not a setting; did you mean model.noise?",
        ),
        (
            "[data]\nname = 'x'\n[features]\nchar_ngram = [1, 2]",
            "features.char_ngram is not a .* mean features.char_ngrams?",
        ),
        ("[data]\nname = 'x'\n[features]\noptions = {}", "features.options is not a setting"),
        (
            "[data]\nname = 'x'\n[evaluation]\nfirst_seconds = 0",
            "evaluation.first_seconds is 0.0; it must be above 0.",
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
    ],
)
def test_mistake_in_a_recipe_rejects(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        load_recipe(file, KNOWN)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_binary_file_rejects(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        load_recipe(file, KNOWN)
