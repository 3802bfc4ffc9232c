"""Bodies of requests: read within limits, checked, and turned into rows for a model.

Every fault is a `RequestError` with a status and one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.serve.models import Predict, ServedModel, SparseRow
from extremax.serve.settings import RequestError, ServeConfig

_FUNCTIONS = (None, "softmax", "none")
_PARAMETERS = ("top_k", "search", "function_to_apply")
_FIELDS = ("inputs", "parameters", "model")
_SHOWN = 60  # characters of a bad value in an error


@dataclass(frozen=True)
class Rows:
    """Rows of a request.

    Attributes
    ----------
    rows : list
        Texts, float32 vectors, or `SparseRow`.
    kind : str
        "texts", "dense" or "sparse".
    is_single : bool
        Whether the request had one row and no list.
    """

    rows: list[Any]
    kind: str
    is_single: bool


def parse_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not UTF-8: byte {error.start} does not fit.") from None
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError(400, "the body has too many lists or objects inside one another.") from None
    except ValueError as error:
        raise RequestError(400, f"the body is not JSON: {_shorten(str(error))}.") from None
    if not isinstance(found, dict):
        raise RequestError(
            422, f"the body is {_kind_of(found)}; send an object with the field inputs, a text or a list."
        )
    unknown = next((name for name in found if name not in _FIELDS), None)
    if unknown is not None:
        raise RequestError(
            422, f"the field {_quote(unknown)} is unknown; the fields are {', '.join(_FIELDS)}."
        )
    return found


def read_model_name(body: Mapping[str, Any]) -> str | None:
    """Return the model that a body names."""
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise RequestError(422, f"model is {_kind_of(name)}; give the name of a model.")
    return name


def read_parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a body."""
    given = body.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RequestError(422, f'parameters is {_kind_of(given)}; give an object such as {{"top_k": 5}}.')
    unknown = next((name for name in given if name not in _PARAMETERS), None)
    if unknown is not None:
        known = ", ".join(_PARAMETERS)
        raise RequestError(422, f"the parameter {_quote(unknown)} is unknown; the parameters are {known}.")
    return given


def read_top_k(parameters: Mapping[str, Any], default: int, config: ServeConfig) -> int:
    """Return the number of labels to return."""
    top_k = parameters.get("top_k")
    if top_k is None:
        return min(default, config.max_top_k)
    if not isinstance(top_k, int) or isinstance(top_k, bool):
        raise RequestError(422, f"top_k is {_kind_of(top_k)}; give a whole number from 1.")
    if not 1 <= top_k <= config.max_top_k:
        raise RequestError(
            422, f"top_k is {_shorten(str(top_k))}; it must be from 1 to {config.max_top_k:,}."
        )
    return top_k


def read_predict(body: Mapping[str, Any], model: ServedModel, config: ServeConfig) -> tuple[Predict, Rows]:
    """Return what to compute, and the rows to compute it for."""
    rows = read_rows(body, model, config)
    parameters = read_parameters(body)
    top_k = min(read_top_k(parameters, config.top_k, config), model.n_classes)
    search = parameters.get("search")
    names = model.clf.model_.search_names
    if search is not None and search not in names:
        raise RequestError(422, f"search is {_quote(search)}; this model has {', '.join(names)}.")
    function = parameters.get("function_to_apply")
    if function not in _FUNCTIONS:
        raise RequestError(
            422,
            f"function_to_apply is {_quote(function)}; give softmax (probabilities) or none (their logs).",
        )
    return Predict(model, top_k, search or config.search, rows.kind, function == "none"), rows


def read_rows(body: Mapping[str, Any], model: ServedModel, config: ServeConfig) -> Rows:
    """Return the rows of a body, checked against the model and the limits."""
    if "inputs" not in body:
        raise RequestError(422, "the field inputs is missing: a text, or a list of texts or vectors.")
    inputs = body["inputs"]
    single = _is_row(inputs, model)
    rows = [inputs] if single else inputs
    if not isinstance(rows, list):
        what = "a text or a list of texts" if model.takes_texts else "a vector or a list of vectors"
        raise RequestError(422, f"inputs is {_kind_of(inputs)}; give {what}.")
    if len(rows) > config.max_texts:
        raise RequestError(
            413,
            f"inputs has {len(rows):,} rows; this server takes at most {config.max_texts:,} in one request.",
        )
    read: Callable[[Any, str, ServedModel, ServeConfig], tuple[str, Any]]
    read = _read_text if model.takes_texts else _read_vector
    found = [read(row, "inputs" if single else f"inputs[{i}]", model, config) for i, row in enumerate(rows)]
    kinds = {kind for kind, _ in found}
    if len(kinds) > 1:
        raise RequestError(422, "inputs has dense and sparse vectors; give one kind in one request.")
    return Rows([row for _, row in found], kinds.pop() if kinds else "texts", single)


def _is_row(inputs: Any, model: ServedModel) -> bool:
    """Whether the inputs are one row, and not a list of rows."""
    if model.takes_texts or isinstance(inputs, str | dict):
        return isinstance(inputs, str) if model.takes_texts else isinstance(inputs, dict)
    return isinstance(inputs, list) and bool(inputs) and _is_number(inputs[0])


def _read_text(row: Any, where: str, model: ServedModel, config: ServeConfig) -> tuple[str, Any]:
    if not isinstance(row, str):
        raise RequestError(422, f"{where} is {_kind_of(row)}; this model takes texts.")
    if len(row) > config.max_characters:
        raise RequestError(
            413,
            f"{where} has {len(row):,} characters; texts have at most {config.max_characters:,}.",
        )
    return "texts", row


def _read_vector(row: Any, where: str, model: ServedModel, config: ServeConfig) -> tuple[str, Any]:
    if isinstance(row, dict):
        return "sparse", _read_sparse(row, where, model.n_features)
    if not isinstance(row, list):
        raise RequestError(422, f"{where} is {_kind_of(row)}; this model takes vectors, lists of numbers.")
    if len(row) != model.n_features:
        raise RequestError(
            422, f"{where} has {len(row):,} numbers; this model takes vectors of {model.n_features:,}."
        )
    return "dense", _numbers(row, where)


def _read_sparse(row: dict[str, Any], where: str, n_features: int) -> SparseRow:
    if set(row) != {"indices", "values"} or not all(isinstance(part, list) for part in row.values()):
        raise RequestError(
            422, f"{where} is an object; a sparse vector has two fields, the lists indices and values."
        )
    indices, values = row["indices"], row["values"]
    if len(indices) != len(values):
        raise RequestError(422, f"{where} has {len(indices):,} indices and {len(values):,} values.")
    for index in indices:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < n_features:
            raise RequestError(
                422,
                f"{where} has the index {_quote(index)}; they go from 0 to {n_features - 1:,}.",
            )
    if len(set(indices)) != len(indices):
        raise RequestError(422, f"{where} has an index twice; give each index once.")
    return SparseRow(indices, _numbers(values, where).tolist())


def _numbers(values: list[Any], where: str) -> Any:
    bad = next((value for value in values if not _is_number(value)), None)
    if bad is not None or None in values:
        raise RequestError(422, f"{where} holds {_kind_of(bad)}; a vector holds numbers.")
    try:
        with np.errstate(over="ignore"):
            found = np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        found = np.array([np.inf], np.float32)
    if not np.isfinite(found).all():
        raise RequestError(422, f"{where} holds a number that is too large for a float32.")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has {name} where a number is needed")


def _kind_of(value: Any) -> str:
    kinds = {str: "a text", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _quote(value: Any) -> str:
    return repr(_shorten(value)) if isinstance(value, str) else _kind_of(value)


def _shorten(text: str) -> str:
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
