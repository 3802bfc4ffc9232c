"""Requests and answers as pydantic models, from which the OpenAPI document is made.

The models check the shape of a request. Limits, and what a model takes, are checked in `questions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, model_validator
from pydantic_core import PydanticCustomError

_SHOWN = 60  # characters of a bad value in an error
MAX_LISTED = 1000
MAX_NODE = 2**31 - 1
MAX_DEPTH = 12
# What to give instead, by the name of a field.
_EXPECTED = {
    "parameters": 'give an object such as {"top_k": 5}',
    "model": "give the name of a model",
    "top_k": "give a whole number from 1",
    "function_to_apply": "give softmax (probabilities) or none (their logs)",
    "limit": f"it must be a whole number from 1 to {MAX_LISTED}",
    "node": f"it must be a whole number from 0 to {MAX_NODE}",
    "depth": f"it must be a whole number from 1 to {MAX_DEPTH}",
}


class _Given(BaseModel):
    """Part of a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")
    noun: ClassVar[str] = "field"
    heading: ClassVar[str] = "the fields are"

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        unknown = [name for name in given if name not in cls.model_fields] if isinstance(given, dict) else []
        if unknown:
            known = ", ".join(cls.model_fields) or "none"
            sentence = f"the {cls.noun} {show(unknown[0])} is unknown; {cls.heading} {known}."
            raise PydanticCustomError("unknown_field", "{sentence}", {"sentence": sentence})
        return given


# -- bodies --------------------------------------------------------------------------------------------------


class SparseVector(_Given):
    """Columns and values of the entries of a vector that are not zero."""

    indices: list[Annotated[int, Field(ge=0)]]
    values: list[float]


Row = str | list[float] | SparseVector
ModelName = Annotated[str | None, Field(description="Name of the model; the first by default.")]


class WhyParameters(_Given):
    """Options of `/explain`."""

    model_config = ConfigDict(strict=True)
    noun, heading = "parameter", "the parameters are"
    top_k: int | None = Field(default=None, description="Labels per text.")


class Parameters(WhyParameters):
    """Options of `/predict`."""

    search: SkipValidation[str | None] = Field(
        default=None, description="exact, beam, or another search of the model."
    )
    among: SkipValidation[list[str] | None] = Field(
        default=None, description="Labels to choose from; scores are given that the label is one of them."
    )
    function_to_apply: Literal["softmax", "none"] | None = Field(
        default=None, description="softmax: scores are probabilities; none: their logarithms."
    )


class WhyQuestion(_Given):
    """Body of `/explain`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "fell off a ladder"}]})
    inputs: SkipValidation[Row]
    parameters: WhyParameters | None = None
    model: ModelName = None


class Question(_Given):
    """Body of `/predict`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "fell off a ladder", "parameters": {"top_k": 3}}]}
    )
    inputs: SkipValidation[Row | list[Row]] = Field(
        description="A text or a list of texts; or vectors, for models that take them."
    )
    parameters: Parameters | None = None
    model: ModelName = None


# -- queries -------------------------------------------------------------------------------------------------


def _require_digits(text: Any) -> Any:
    if not str(text).isdecimal():  # pydantic takes 1_000, 5.0 and spaces, too
        raise ValueError
    return text


Whole = Annotated[int, BeforeValidator(_require_digits)]
Limit = Annotated[Whole, Field(ge=1, le=MAX_LISTED, description="Labels to list.")]


class NoQuery(_Given):
    """Query without fields."""

    noun, heading = "query field", "the fields are:"


class ModelQuery(NoQuery):
    """Query of a model."""

    model: ModelName = None


class LabelsQuery(ModelQuery):
    """Query of `/labels`."""

    prefix: str = Field(default="", description="Beginning of the label; case does not matter.")
    contains: str = Field(default="", description="Part of the label or of its description.")
    limit: Limit = 20


class TreeQuery(ModelQuery):
    """Query of `/tree`."""

    node: Whole = Field(default=0, ge=0, le=MAX_NODE, description="Number of a node.")
    depth: Whole = Field(default=5, ge=1, le=MAX_DEPTH, description="Levels below the node.")
    label: str | None = Field(default=None, description="Label whose path from the root is asked for.")
    search: SkipValidation[str | None] = Field(
        default=None, description="Part of a label or of its description."
    )
    limit: Limit = 20


# -- answers -------------------------------------------------------------------------------------------------


class Listed(BaseModel):
    """A label of a list."""

    label: str
    id: int
    description: str = ""
    n_samples: int = 0


class Label(BaseModel):
    """A label and its probability; known is false where a text says nothing to the model.

    Where rows may have several labels, it is the probability that this one applies.
    """

    label: str
    id: int
    score: float
    description: str = ""
    known: bool = True


Answer = list[Label] | list[list[Label]]


class Contributions(BaseModel):
    """What words and n-grams add to a score, or to the difference of two."""

    label: str
    rather_than: str | None
    total: float
    terms: list[tuple[str, float]]
    words: list[tuple[str, float]]


class Explanation(BaseModel):
    """Why the first label is predicted."""

    labels: list[Label]
    is_known: bool
    matched: str | None
    score: Contributions
    against: list[Contributions]
    pieces: list[str]
    unknown_words: list[str]
    unmatched_words: list[list[str]]
    path: list[Any] | None


class Labels(BaseModel):
    """Labels, and how many there are in all."""

    labels: list[Listed]
    total: int


class Models(BaseModel):
    """Names of the models."""

    models: list[str]
    default: str


class Info(BaseModel):
    """A model, and the limits of the server."""

    model_config = ConfigDict(extra="allow")
    name: str
    input: Literal["texts", "vectors"]
    n_classes: int
    n_features: int
    models: list[str]
    limits: dict[str, float]
    monitor: dict[str, Any] | None


class Status(BaseModel):
    """State of the server."""

    status: str


class Error(BaseModel):
    """What is wrong and what to do, in one sentence."""

    error: str


# -- errors ------------------------------------------------------------------------------------------------


def explain_fault(error: Mapping[str, Any]) -> str:
    """Return the sentence for an error of pydantic."""
    where, given = [part for part in error["loc"] if part != "query"], error["input"]
    if error["type"] == "unknown_field":
        return str(error["msg"])
    if error["type"] == "missing":
        return "the field inputs is missing: a text, or a list of texts or vectors."
    if not where:
        return f"the body is {kind_of(given)}; send an object with the field inputs, a text or a list."
    is_shown = error["loc"][0] == "query" or error["type"] == "literal_error"
    return f"{where[-1]} is {show(given) if is_shown else kind_of(given)}; {_EXPECTED[where[-1]]}."


def kind_of(value: Any) -> str:
    """Name the kind of a JSON value."""
    kinds = {str: "a text", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def show(value: Any) -> str:
    """Quote a text; name the kind of anything else."""
    return repr(shorten(value)) if isinstance(value, str) else kind_of(value)


def shorten(text: str) -> str:
    """Return the beginning of a text, printable."""
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
