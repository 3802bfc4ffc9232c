"""Recipes: the data, features, model, evaluation and search of one experiment, as a TOML file.

Names and defaults of the model are those of `extremax.params`, names and defaults of text features those
of `TextOptions`. A `Recipe` holds what its file says; `resolve` adds the defaults.

    [data]
    name = "icd10cm"              # a known data set, or path = "rows.csv"

    [model]
    noise = "adversarial"         # any parameter of ExtremeClassifier
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeGuard, get_args, get_type_hints

from extremax.features.text import TextOptions
from extremax.params import PARAMETERS, RENAMED, canonical_noise, rename_parameters

# Parameters of the machine and the terminal are no part of an experiment.
NOT_IN_RECIPES = ("memory_limit", "n_jobs", "verbose", "validation_fraction")
# Without a seed an experiment could not be repeated.
MODEL_DEFAULTS: dict[str, Any] = {
    name: entry.default for name, entry in PARAMETERS.items() if name not in NOT_IN_RECIPES
} | {"random_state": 0}
TEXT_DEFAULTS: dict[str, Any] = asdict(TextOptions())


@dataclass(frozen=True)
class DataConfig:
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
        Label reduction of multi-label rows: "first", "smallest", "rarest" or "all"; the usual one of the data
        set unless given.
    valid_fraction, test_fraction
        Fractions held out where there is no file of their own.
    seed
        Seed of the split.
    """

    name: str = ""
    path: str | None = None
    valid_path: str | None = None
    test_path: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    reduce: str | None = None
    valid_fraction: float = 0.1
    test_fraction: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class FeaturesConfig:
    """Features of the rows.

    Attributes
    ----------
    kind
        "given" takes the numbers of the file, "text" makes `TextFeatures` of texts, "tfidf" weights sparse
        counts and reduces them by a truncated SVD, "tfidf_pca" by principal components; "auto" is "text" for
        texts and else "given".
    n_components
        Number of "text", "tfidf" and "tfidf_pca" features.
    options
        Further options of `TextFeatures`.
    """

    kind: str = "auto"
    n_components: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationConfig:
    """Points of the learning curve: when, and from how many rows.

    Attributes
    ----------
    first_samples, points_per_decade
        Points are evenly spaced in the logarithm of the number of training rows seen, from `first_samples`
        on: where they lie does not depend on the speed of the machine.
    valid_rows, test_rows
        Rows at most, a random sample where there are more.
    max_seconds
        Training ends with the epoch in which the clock passes this; the model then depends on the speed of
        the machine.
    seed
        Seed of the samples.
    """

    first_samples: int = 1000
    points_per_decade: int = 6
    valid_rows: int = 10_000
    test_rows: int = 10_000
    max_seconds: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class SearchConfig:
    """A search over parameters of the model.

    Attributes
    ----------
    space
        By parameter: a list of values, or ``{low = ..., high = ...}`` for a number between them, drawn by its
        logarithm unless ``log = false``. Empty means the paper's grid.
    n_trials
        Number of trials.
    n_epochs
        Epochs of a trial; those of the model unless given.
    score
        "log_likelihood" or "accuracy" on validation rows.
    pruner
        Rule that stops bad trials early: "median", "hyperband" or "none".
    strategy
        "tpe" lets Optuna sample the space; "grid" moves from value to value of lists (`experiments.grid`).
    widen
        Values that "grid" may add beyond each end of a list of numbers, where the best one lies at that end.
    seed
        Seed of the search.
    """

    space: Mapping[str, Any] = field(default_factory=dict)
    n_trials: int = 30
    n_epochs: int | None = None
    score: str = "log_likelihood"
    pruner: str = "median"
    strategy: str = "tpe"
    widen: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Recipe:
    """One experiment.

    `model` holds the parameters that the recipe sets; all others have the estimator's defaults.
    """

    name: str = ""
    method: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    model: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def with_model(self, **parameters: Any) -> Recipe:
        """Return the same recipe with other parameters of the model."""
        return replace(self, model={**self.model, **parameters})


_CHOICES = {
    "data.reduce": ("first", "smallest", "rarest", "all"),
    "features.kind": ("auto", "given", "text", "tfidf", "tfidf_pca"),
    "search.score": ("log_likelihood", "accuracy"),
    "search.pruner": ("median", "hyperband", "none"),
    "search.strategy": ("tpe", "grid"),
}
_AT_LEAST = {
    "data.seed": 0,
    "evaluation.seed": 0,
    "search.seed": 0,
    "features.n_components": 1,
    "evaluation.valid_rows": 1,
    "evaluation.test_rows": 1,
    "evaluation.first_samples": 1,
    "evaluation.points_per_decade": 1,
    "search.n_trials": 1,
    "search.n_epochs": 1,
    "search.widen": 0,
}
_ABOVE_ZERO = ("evaluation.max_seconds",)
_FRACTIONS = ("data.valid_fraction", "data.test_fraction")


def load_recipe(path: str | os.PathLike[str]) -> Recipe:
    """Read a recipe file; paths of data in it are relative to its folder.

    Examples
    --------
    >>> from extremax.experiments import find_recipe, load_recipe
    >>> load_recipe(find_recipe("icd10cm/adversarial")).model["noise"]
    'adversarial'
    """
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not a text file in UTF-8; a recipe is TOML.") from None
    try:
        recipe = parse_recipe(content)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{file}: {error}") from None
    paths = {part: getattr(recipe.data, part) for part in ("path", "valid_path", "test_path")}
    found: dict[str, Any] = {
        part: str((file.parent / value).resolve()) for part, value in paths.items() if value is not None
    }
    return replace(recipe, name=recipe.name or file.stem, data=replace(recipe.data, **found))


def parse_recipe(content: Mapping[str, Any]) -> Recipe:
    """Make a recipe from the content of a TOML or JSON file.

    Examples
    --------
    >>> parse_recipe({"data": {"name": "icd10cm"}, "model": {"noise": "uniform"}}).model
    {'noise': 'uniform'}
    >>> parse_recipe({"data": {"name": "icd10cm"}, "model": {"n_negative": 3}})
    Traceback (most recent call last):
    ...
    ValueError: model.n_negative is not a parameter; did you mean model.n_negatives?
    """
    tables = [entry.name for entry in fields(Recipe) if entry.name not in ("name", "method")]
    _check_names(content, [entry.name for entry in fields(Recipe)], "")
    for name in tables:
        if not isinstance(content.get(name, {}), Mapping):
            raise TypeError(f"{name} is {content[name]!r}; it must be a table, [{name}].")
    for name in ("name", "method"):
        if not isinstance(content.get(name, ""), str):
            raise TypeError(f"{name} is {content[name]!r}; it must be a string.")
    given = {name: dict(content.get(name, {})) for name in tables}
    recipe = Recipe(
        name=content.get("name", ""),
        method=content.get("method", ""),
        data=_section(DataConfig, given["data"], "data."),
        features=_features(given["features"]),
        model=_model(given["model"], "model."),
        evaluation=_evaluation(given["evaluation"]),
        search=_search(given["search"]),
    )
    if not recipe.data.name and not recipe.data.path:
        raise ValueError(
            "data has neither a name nor a path; name the rows to train on, for example name = 'icd10cm'."
        )
    if recipe.data.valid_fraction + recipe.data.test_fraction >= 1:
        raise ValueError(
            "data.valid_fraction and data.test_fraction leave no row to train on; their sum must be below 1."
        )
    return recipe


def resolve(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe with all defaults, as JSON can hold it."""
    plain = {key: value for key, value in vars(recipe.features).items() if key != "options"}
    options = {key: value for key, value in TEXT_DEFAULTS.items() if key not in plain}
    return {
        "name": recipe.name,
        "method": recipe.method,
        "data": dict(vars(recipe.data)),
        "features": {**plain, **options, **recipe.features.options},
        "model": {**MODEL_DEFAULTS, **recipe.model},
        "evaluation": dict(vars(recipe.evaluation)),
        "search": dict(vars(recipe.search)),
    }


def comparable(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved recipe, maybe of an older version, with present names only.

    Examples
    --------
    >>> comparable({"model": {"n_components": 16, "noise": "tree"}})
    {'model': {'tree_components': 16, 'noise': 'adversarial'}}
    """
    model = {RENAMED.get(name, name): value for name, value in resolved["model"].items()}
    if "noise" in model:
        model["noise"] = canonical_noise(model["noise"])
    return {**resolved, "model": model, **_with_new_keys(resolved)}


def _with_new_keys(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of an older version with what was added to them since."""
    sections: dict[str, Any] = {}
    if "first_seconds" in resolved.get("evaluation", {}):
        kept = {name: value for name, value in resolved["evaluation"].items() if name != "first_seconds"}
        sections["evaluation"] = {"first_samples": EvaluationConfig.first_samples, **kept}
    if "search" in resolved:
        added = {"strategy": SearchConfig.strategy, "widen": SearchConfig.widen}
        sections["search"] = {**added, **resolved["search"]}
    return sections


def to_toml(recipe: Recipe, *, comment: str = "") -> str:
    """Return the recipe as text that `load_recipe` reads: what differs from the defaults."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{key} = {_toml(value)}" for key in ("name", "method") if (value := getattr(recipe, key))]
    sections: dict[str, Mapping[str, Any]] = {
        "data": _changed(recipe.data),
        "features": {**_changed(recipe.features, leave_out=("options",)), **recipe.features.options},
        "model": recipe.model,
        "evaluation": _changed(recipe.evaluation),
        "search": _changed(recipe.search, leave_out=("space",)),
        "search.space": recipe.search.space,
    }
    for name, values in sections.items():
        if values:
            lines += [
                "",
                f"[{name}]",
                *(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None),
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def nearest(word: str, words: list[str]) -> str:
    """Return the most similar of some words, or an empty string where none is similar."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), "")


# -- one section


def _names(section: type) -> list[str]:
    return [entry.name for entry in fields(section)]


def _check_names(given: Mapping[str, Any], names: list[str], prefix: str) -> None:
    for key in given:
        if key not in names:
            close = nearest(key, names)
            hint = f"did you mean {prefix}{close}?" if close else f"use one of {', '.join(names)}."
            raise ValueError(f"{prefix}{key} is not a parameter; {hint}")


def _model(given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    renamed = rename_parameters(given, lambda name: f"{prefix}{name}")
    _check_names(renamed, list(MODEL_DEFAULTS), prefix)
    return renamed


def _features(given: Mapping[str, Any]) -> FeaturesConfig:
    """Return the features, with options of `TextFeatures` apart from the parameters of the section itself."""
    own = [name for name in _names(FeaturesConfig) if name != "options"]
    _check_names(given, [*own, *TEXT_DEFAULTS], "features.")
    plain = {name: value for name, value in given.items() if name in own}
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name not in own
    }
    features: FeaturesConfig = _section(FeaturesConfig, plain, "features.")
    return replace(features, options=options)


def _evaluation(given: Mapping[str, Any]) -> EvaluationConfig:
    """Return the points of the curve; recipes of version 0.1 spaced them by the clock."""
    if "first_seconds" in given:
        warnings.warn(
            "evaluation.first_seconds has no effect: points of a curve lie at fixed numbers of training rows"
            " now; use evaluation.first_samples.",
            FutureWarning,
            stacklevel=4,
        )
    kept = {name: value for name, value in given.items() if name != "first_seconds"}
    evaluation: EvaluationConfig = _section(EvaluationConfig, kept, "evaluation.")
    return evaluation


def _search(given: Mapping[str, Any]) -> SearchConfig:
    search: SearchConfig = _section(SearchConfig, given, "search.")
    space = _model(search.space, "search.space.")
    for name, values in space.items():
        _check_range(f"search.space.{name}", values)
        if search.strategy == "grid" and isinstance(values, Mapping):
            raise ValueError(f"search.space.{name} is a range; the strategy 'grid' needs a list of values.")
    return replace(search, space=space)


def _section(section: type, given: Mapping[str, Any], prefix: str) -> Any:
    names = _names(section)
    _check_names(given, names, prefix)
    hints = get_type_hints(section)
    values = {}
    for key, value in given.items():
        values[key] = _checked(f"{prefix}{key}", value, hints[key])
    return section(**values)


_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if value is None and type(None) in kinds:  # from JSON
        return None
    plain = [kind for kind in kinds if kind in _WORDS]
    if not plain:  # a table
        if not isinstance(value, Mapping):
            raise TypeError(f"{name} is {value!r}; it must be a table.")
        return value
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not any(type(value) is kind for kind in plain):
        raise TypeError(f"{name} is {value!r}; it must be {' or '.join(_WORDS[kind] for kind in plain)}.")
    if name in _CHOICES and value not in _CHOICES[name]:
        close = nearest(value, list(_CHOICES[name]))
        hint_text = f" Did you mean {close!r}?" if close else ""
        raise ValueError(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, _CHOICES[name]))}.{hint_text}"
        )
    if name in _AT_LEAST and value < _AT_LEAST[name]:
        raise ValueError(f"{name} is {value}; it must be at least {_AT_LEAST[name]}.")
    if name in _ABOVE_ZERO and not value > 0:
        raise ValueError(f"{name} is {value}; it must be above 0.")
    if name in _FRACTIONS and not 0 <= value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 0 and below 1.")
    return value


def _check_range(name: str, values: Any) -> None:
    if isinstance(values, list | tuple) and len(values):
        return
    if isinstance(values, Mapping):
        _check_names(values, ["low", "high", "log"], f"{name}.")
        low, high = values.get("low"), values.get("high")
        if _is_number(low) and _is_number(high) and low < high:
            if values.get("log", True) and low <= 0:
                raise ValueError(
                    f"{name} goes from {low} by its logarithm; low must be above 0, or set log = false."
                )
            return
    raise ValueError(
        f"{name} is {values!r}; give a list of values, or a table such as {{low = 0.01, high = 1.0}}."
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _changed(section: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    out = {}
    for entry in fields(section):
        default = entry.default if entry.default is not MISSING else None
        value = getattr(section, entry.name)
        if entry.name not in leave_out and value != default:
            out[entry.name] = value
    return out


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML, unlike JSON, wants this character escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{value!r} cannot be written to a recipe; use numbers, strings, lists and tables.")
