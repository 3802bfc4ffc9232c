"""Recipes: the data, features, model, evaluation and search of one experiment, as a TOML file.

    [data]
    name = "icd10cm"              # a known data set, or path = "rows.csv"

    [model]
    solver = "negative_sampling"  # any parameter of ExtremeClassifier and of its solver

A `Recipe` holds what its file says; `resolve` adds the defaults of the model.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from extremax.params import CLASSIFIER_PARAMETERS, PARAMETERS
from extremax.solvers.registry import SOLVERS

# Parameters of the machine and the terminal, and of rows held out by the classifier itself.
NOT_IN_RECIPES = ("memory_limit", "n_jobs", "patience", "verbose", "validation_fraction")
_MODEL_NAMES = tuple(name for name in PARAMETERS if name not in NOT_IN_RECIPES)


def model_defaults(solver: str) -> dict[str, Any]:
    """Return the defaults of a classifier and its solver, with a seed: experiments can be repeated."""
    own = {} if solver == "auto" else SOLVERS[solver]().get_params()
    plain = {name: PARAMETERS[name].default for name in CLASSIFIER_PARAMETERS if name in _MODEL_NAMES}
    return {**plain, **own, "solver": solver, "random_state": 0}


Count = Annotated[int, msgspec.Meta(ge=1)]
Seed = Annotated[int, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


def _check_names(given: Mapping[str, Any], section: str) -> None:
    for name in given:
        if name not in _MODEL_NAMES:
            raise ValueError(f"{section}.{name} is not a parameter.{suggest(name, _MODEL_NAMES)}")


def suggest(word: str, words: Iterable[str]) -> str:
    """Return a sentence that suggests the most similar of some words, empty where none is similar."""
    close = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of a recipe; names that it does not know are errors."""


class DataConfig(_Section, frozen=True):
    """Source of the rows, and their split.

    Attributes
    ----------
    name
        Name of a known data set, or with `path` the name shown in figures.
    path, valid_path, test_path
        Files for `extremax.data.load_dataset`; without the last two, rows of `path` are held out at random.
    text_column, label_column
        Columns of a table, where their names are unusual.
    reduce
        Label reduction of rows with several labels; by default the usual one of the data set.
    valid_fraction, test_fraction
        Fractions held out where there is no separate file.
    seed
        Seed of the split.
    """

    name: str = ""
    path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    reduce: Literal["first", "smallest", "rarest", "all"] | None = None
    valid_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.valid_fraction + self.test_fraction >= 1:
            raise ValueError("valid_fraction and test_fraction leave no row to train on.")


class FeaturesConfig(_Section, frozen=True):
    """Features of the rows.

    Attributes
    ----------
    kind
        "given" takes the numbers of the file; "text" reduces `NgramFeatures` of texts by a truncated SVD;
        "tfidf" weights sparse counts and reduces them by a truncated SVD, "tfidf_pca" by principal
        components; "auto" is "text" for texts, otherwise "given"; "learned" is the hidden layer of a network
        that is trained on the "auto" features of the training rows, for the same labels.
    n_components
        Number of features, other than "given" ones.
    svd_rows
        Training texts that a truncated SVD is fitted to at most, a random sample; all unless given.
    word_ngrams
        Longest run of words of "text" features; 0 for character n-grams alone.
    """

    kind: Literal["auto", "given", "text", "tfidf", "tfidf_pca", "learned"] = "auto"
    n_components: Count = 512
    svd_rows: Count | None = None
    word_ngrams: Annotated[int, msgspec.Meta(ge=0, le=8)] = 2


class EvaluationConfig(_Section, frozen=True):
    """Points of the learning curve.

    Attributes
    ----------
    first_samples, points_per_decade
        Points are evenly spaced in the logarithm of the number of training rows seen, starting at
        `first_samples`, so they do not depend on the speed of the machine.
    valid_rows, test_rows
        Upper limits on the rows evaluated, a random sample where there are more; test rows may be 0.
    max_seconds
        Training ends with the epoch in which its processor time, all threads together, passes this; the model
        then depends on the speed of the machine.
    until_plateau
        Points lie at 1, 2, 4, ... epochs instead; training ends at the one where the last doubling changed
        validation accuracy by less than 2% of itself, after 8 epochs at the earliest.
    seed
        Seed of the samples.
    """

    first_samples: Count = 1000
    points_per_decade: Count = 6
    valid_rows: Count = 10_000
    test_rows: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    max_seconds: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    until_plateau: bool = False
    seed: Seed = 0


class Range(_Section, frozen=True):
    """Numbers from `low` to `high`, drawn on a logarithmic scale if `log` is true."""

    low: int | float
    high: int | float
    log: bool = True

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError("low must be below high.")
        if self.log and self.low <= 0:
            raise ValueError("low must be above 0 on a logarithmic scale; or set log = false.")


class SearchConfig(_Section, frozen=True):
    """A search over parameters of the model.

    Attributes
    ----------
    space
        By parameter, a list of values or a `Range`. If empty, the paper's grid.
    n_trials
        Number of trials.
    n_epochs
        Epochs of a trial; by default those of the model.
    score
        Validation score to maximize.
    seed
        Seed of the search.
    """

    space: dict[str, Annotated[list[Any], msgspec.Meta(min_length=1)] | Range] = {}
    n_trials: Count = 30
    n_epochs: Count | None = None
    score: Literal["log_likelihood", "accuracy"] = "log_likelihood"
    seed: Seed = 0

    def __post_init__(self) -> None:
        _check_names(self.space, "search.space")


class Recipe(_Section, frozen=True):
    """One experiment.

    `model` holds the parameters that the recipe sets; the others have their defaults.
    """

    name: str = ""
    method: str = ""
    data: DataConfig = DataConfig()
    features: FeaturesConfig = FeaturesConfig()
    model: dict[str, Any] = {}
    evaluation: EvaluationConfig = EvaluationConfig()
    search: SearchConfig = SearchConfig()

    def __post_init__(self) -> None:
        _check_names(self.model, "model")

    def with_model(self, **parameters: Any) -> Recipe:
        """Return the same recipe with other parameters of the model."""
        return replace(self, model={**self.model, **parameters})


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe file; paths of data in it are relative to its folder.

    Examples
    --------
    >>> from extremax.experiments import find_recipe, load_recipe
    >>> load_recipe(find_recipe("icd10cm/adversarial")).model["noise"]
    'tree'
    """
    file = Path(path)
    try:
        recipe = msgspec.toml.decode(file.read_bytes(), type=Recipe)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a recipe: {error}.") from None
    if not recipe.data.name and not recipe.data.path:
        raise ValueError(f"{file} names no rows to train on; set name or path in [data].")
    data = recipe.data
    paths = {"path": data.path, "valid_path": data.valid_path, "test_path": data.test_path}
    found = {part: str((file.parent / value).resolve()) for part, value in paths.items() if value is not None}
    return replace(recipe, name=recipe.name or file.stem, data=replace(data, **found))


def resolve(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe with all defaults, in types that JSON has."""
    sections = asdict(recipe)
    plain = {
        name: msgspec.to_builtins(asdict(sections[name]))
        for name in ("data", "features", "evaluation", "search")
    }
    model = {**model_defaults(recipe.model.get("solver", "auto")), **recipe.model}
    return {"name": recipe.name, "method": recipe.method, "model": model, **plain}


def to_toml(recipe: Recipe, *, comment: str = "") -> str:
    """Return the recipe as text that `load_recipe` reads: what differs from the defaults."""
    content = msgspec.to_builtins(recipe)
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{key} = {_toml(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for name, section in content.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in section.items() if v is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


# -- recipes of the package


def recipe_folder() -> Path:
    """Return the folder of the shipped recipes: in the package if installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent.parent / "recipes"


def shipped_recipes() -> list[str]:
    """Return the names of the recipes that come with the package, such as ``icd10cm/adversarial``."""
    folder = recipe_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def find_recipe(name: str | os.PathLike[str]) -> Path:
    """Return a recipe file by its path, or by its name among those that come with the package."""
    path = Path(name)
    if path.exists():
        return path
    short = os.fspath(name).removesuffix(".toml")
    shipped = recipe_folder() / f"{short}.toml"
    if shipped.exists():
        return shipped
    raise FileNotFoundError(
        f"There is no recipe {os.fspath(name)!r}, neither as a file nor in the package."
        f"{suggest(short, shipped_recipes())}"
    )
