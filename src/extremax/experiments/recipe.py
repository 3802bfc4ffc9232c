"""A recipe: which data, which features, which model, when to evaluate, where to search. TOML in, JSON out.

Names and defaults of the model and of text features are not repeated here: they are those of
`ExtremeClassifier` and `TextFeatures`, handed in as `Known` by whoever may import these. A recipe holds what
its file says; `resolve` adds the rest.

    [data]
    name = "icd10cm"              # a set that extremax knows, or path = "rows.csv"

    [model]
    noise = "adversarial"         # any parameter of ExtremeClassifier
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints


@dataclass(frozen=True)
class DataConfig:
    """Where rows come from, and how they are split.

    Attributes
    ----------
    name
        A data set that extremax knows, or with `path` the name that figures show.
    path, valid_path, test_path
        Files that `extremax.data.load_dataset` reads; without the last two, rows of `path` are set aside at
        random.
    text_column, label_column
        Columns of a table, where their names are unusual.
    reduce
        Label reduction of multi-label rows: "first", "smallest", "rarest" or "all"; what is usual for the set
        unless given.
    valid_fraction, test_fraction
        Shares set aside where there is no file of their own.
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
    """How rows become numbers.

    Attributes
    ----------
    kind
        "given" takes the numbers of the file, "text" makes `TextFeatures` of texts, "tfidf" weighs sparse
        counts and reduces them by a truncated SVD; "auto" goes by what the data are.
    n_components
        Width of "text" and "tfidf" features.
    options
        Further options of `TextFeatures`.
    """

    kind: str = "auto"
    n_components: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationConfig:
    """When the learning curve gets a point, and from how many rows.

    Attributes
    ----------
    first_seconds, points_per_decade
        Points are evenly spaced in the logarithm of the training time, from `first_seconds` on.
    valid_rows, test_rows
        Rows at most, a random sample where there are more.
    max_seconds
        Training ends with the epoch in which its clock passes this; the model then depends on the speed of
        the machine.
    seed
        Seed of the samples.
    """

    first_seconds: float = 0.1
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
        By parameter: a list of values, or ``{low = ..., high = ...}`` for a number between them, by its
        logarithm unless
        ``log = false``. Empty means the paper's grid.
    n_trials
        Settings to try.
    n_epochs
        Epochs of a trial; those of the model unless given.
    score
        "log_likelihood" or "accuracy" on validation rows.
    pruner
        "median", "hyperband" or "none": when a trial is given up.
    seed
        Seed of the search.
    """

    space: Mapping[str, Any] = field(default_factory=dict)
    n_trials: int = 30
    n_epochs: int | None = None
    score: str = "log_likelihood"
    pruner: str = "median"
    seed: int = 0


@dataclass(frozen=True)
class Known:
    """Names and defaults that the floors above own."""

    model: Mapping[str, Any]
    text_options: Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One experiment. `model` holds the parameters that the recipe sets; all others have the estimator's
    defaults.
    """

    name: str = ""
    method: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    model: Mapping[str, Any] = field(default_factory=dict)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def with_model(self, **parameters: Any) -> Recipe:
        """The same recipe with other parameters of the model."""
        return replace(self, model={**self.model, **parameters})


_CHOICES = {
    "data.reduce": ("first", "smallest", "rarest", "all"),
    "features.kind": ("auto", "given", "text", "tfidf"),
    "search.score": ("log_likelihood", "accuracy"),
    "search.pruner": ("median", "hyperband", "none"),
}
_AT_LEAST = {
    "data.seed": 0, "evaluation.seed": 0, "search.seed": 0, "features.n_components": 1, "evaluation.valid_rows": 1,
    "evaluation.test_rows": 1, "evaluation.points_per_decade": 1, "search.n_trials": 1, "search.n_epochs": 1,
}  # fmt: skip
_ABOVE_ZERO = ("evaluation.first_seconds", "evaluation.max_seconds")
_FRACTIONS = ("data.valid_fraction", "data.test_fraction")


def load_recipe(path: str | os.PathLike[str], known: Known) -> Recipe:
    """Read a recipe; paths of data in it count from the folder of the file."""
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not TOML: {error}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not a text file in UTF-8; a recipe is TOML.") from None
    try:
        recipe = parse_recipe(content, known)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{file}: {error}") from None
    paths = {part: getattr(recipe.data, part) for part in ("path", "valid_path", "test_path")}
    # A path counts from the recipe's folder: the same recipe works from wherever it is called.
    found: dict[str, Any] = {
        part: str((file.parent / value).resolve()) for part, value in paths.items() if value is not None
    }
    return replace(recipe, name=recipe.name or file.stem, data=replace(recipe.data, **found))


def parse_recipe(content: Mapping[str, Any], known: Known) -> Recipe:
    """A recipe from what a TOML or JSON file holds; every mistake in it gets one sentence.

    Examples
    --------
    >>> known = Known(model={"noise": "adversarial", "n_negatives": 4}, text_options={})
    >>> parse_recipe({"data": {"name": "icd10cm"}, "model": {"noise": "uniform"}}, known).model
    {'noise': 'uniform'}
    >>> parse_recipe({"data": {"name": "icd10cm"}, "model": {"n_negative": 3}}, known)
    Traceback (most recent call last):
    ...
    ValueError: model.n_negative is not a setting; did you mean model.n_negatives?
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
    _check_names(given["model"], list(known.model), "model.")
    text = {key: value for key, value in given["features"].items() if key in known.text_options}
    plain = {key: value for key, value in given["features"].items() if key not in text}
    nested = text.pop("n_components", None)  # a setting of its own here
    if nested is not None:
        plain["n_components"] = nested
    _check_names(plain, [*_names(FeaturesConfig), *known.text_options], "features.", leave_out=("options",))
    features = _section(FeaturesConfig, plain, "features.")
    recipe = Recipe(
        name=content.get("name", ""),
        method=content.get("method", ""),
        data=_section(DataConfig, given["data"], "data."),
        features=replace(
            features, options={key: tuple(v) if isinstance(v, list) else v for key, v in text.items()}
        ),
        model=given["model"],
        evaluation=_section(EvaluationConfig, given["evaluation"], "evaluation."),
        search=_section(SearchConfig, given["search"], "search."),
    )
    _check_names(recipe.search.space, list(known.model), "search.space.")
    for name, values in recipe.search.space.items():
        _check_range(f"search.space.{name}", values)
    if not recipe.data.name and not recipe.data.path:
        raise ValueError(
            "data has neither a name nor a path; say which rows to train on, for example name = 'icd10cm'."
        )
    if recipe.data.valid_fraction + recipe.data.test_fraction >= 1:
        raise ValueError(
            "data.valid_fraction and data.test_fraction leave no row to train on; their sum must be below 1."
        )
    return recipe


def resolve(recipe: Recipe, known: Known) -> dict[str, Any]:
    """Everything that a recipe means, defaults included, as JSON can hold it."""
    plain = {key: value for key, value in vars(recipe.features).items() if key != "options"}
    options = {key: value for key, value in known.text_options.items() if key not in plain}
    return {
        "name": recipe.name,
        "method": recipe.method,
        "data": dict(vars(recipe.data)),
        "features": {**plain, **options, **recipe.features.options},
        "model": {**known.model, **recipe.model},
        "evaluation": dict(vars(recipe.evaluation)),
        "search": dict(vars(recipe.search)),
    }


def to_toml(recipe: Recipe, *, comment: str = "") -> str:
    """The recipe as a file that `load_recipe` reads: what differs from the defaults."""
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
    """The word most like `word`, or an empty string where none is."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), "")


# -- one section
# ---------------------------------------------------------------------------------------------------------------


def _names(section: type) -> list[str]:
    return [entry.name for entry in fields(section)]


def _check_names(
    given: Mapping[str, Any], names: list[str], prefix: str, *, leave_out: tuple[str, ...] = ()
) -> None:
    names = [name for name in names if name not in leave_out]
    for key in given:
        if key not in names:
            close = nearest(key, names)
            hint = f"did you mean {prefix}{close}?" if close else f"there are {', '.join(names)}."
            raise ValueError(f"{prefix}{key} is not a setting; {hint}")


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
        if (
            all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
            and low < high
        ):  # type: ignore[operator]
            if values.get("log", True) and low <= 0:  # type: ignore[operator]
                raise ValueError(
                    f"{name} goes from {low} by its logarithm; low must be above 0, or set log = false."
                )
            return
    raise ValueError(
        f"{name} is {values!r}; give a list of values, or a table such as {{low = 0.01, high = 1.0}}."
    )


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
        # the one character TOML wants escaped, too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"{value!r} cannot be written to a recipe; use numbers, strings, lists and tables.")
