"""Bodies of requests: decoded, checked against the model and the limits, and turned into rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import HTTPException
from pydantic import BaseModel, ValidationError

from extremax.serve.schemas import Parameters, WhyParameters, explain_fault, kind_of, shorten, show
from extremax.serve.settings import ServeConfig

if TYPE_CHECKING:
    from extremax.serve.models import ServedModel

Body = TypeVar("Body", bound=BaseModel)
_NUMBERS = (int, float)  # bool is a type of its own


class SparseRow(NamedTuple):
    """Columns and values of one sparse vector."""

    indices: list[int]
    values: list[float]


class Rows(NamedTuple):
    """Texts, float32 vectors or `SparseRow`, and whether the request had one row and no list."""

    rows: list[Any]
    kind: str  # "texts", "dense" or "sparse"
    is_single: bool


def read_body(body: bytes, kind: type[Body]) -> Body:
    """Decode a body and check its shape."""
    try:
        return kind.model_validate(json.loads(body.decode(), parse_constant=_refuse_constant))
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8: byte {error.start} does not fit.") from None
    except RecursionError:
        raise HTTPException(400, "the body has too many lists or objects inside one another.") from None
    except ValidationError as error:
        raise HTTPException(422, explain_fault(error.errors()[0])) from None
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {shorten(str(error))}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has {name} where a number is needed")


def read_top_k(parameters: WhyParameters, default: int, config: ServeConfig) -> int:
    """Return the number of labels to return."""
    top_k = default if parameters.top_k is None else parameters.top_k
    if parameters.top_k is not None and not 1 <= top_k <= config.max_top_k:
        raise HTTPException(
            422, f"top_k is {shorten(str(top_k))}; it must be from 1 to {config.max_top_k:,}."
        )
    return min(top_k, config.max_top_k)


def read_search(parameters: Parameters, model: ServedModel, config: ServeConfig) -> str:
    """Return the search of a request; the model must have it."""
    search = config.search if parameters.search is None else parameters.search
    names = model.clf.model_.search_names
    if search not in names:
        raise HTTPException(422, f"search is {show(search)}; this model has {', '.join(names)}.")
    return search


def read_among(parameters: Parameters, model: ServedModel, config: ServeConfig) -> tuple[int, ...]:
    """Return the classes that a request chooses from; none means all."""
    given: Any = parameters.among
    if given is None:
        return ()
    if not isinstance(given, list) or not given or not all(isinstance(name, str) for name in given):
        raise HTTPException(422, f"among is {show(given)}; give a list of labels.")
    if len(given) > config.max_top_k:
        raise HTTPException(
            413, f"among has {len(given):,} labels; this server takes at most {config.max_top_k:,}."
        )
    return tuple(sorted({model.find_label(name) for name in given}))


def read_rows(inputs: Any, model: ServedModel, config: ServeConfig) -> Rows:
    """Return the rows of a body, checked against the model and the limits."""
    single = _is_row(inputs, model)
    rows = [inputs] if single else inputs
    if not isinstance(rows, list):
        what = "a text or a list of texts" if model.takes_texts else "a vector or a list of vectors"
        raise HTTPException(422, f"inputs is {kind_of(inputs)}; give {what}.")
    if len(rows) > config.max_texts:
        raise HTTPException(
            413,
            f"inputs has {len(rows):,} rows; this server takes at most {config.max_texts:,} in one request.",
        )
    names = ["inputs"] if single else [f"inputs[{i}]" for i in range(len(rows))]
    if model.takes_texts:
        for row, where in zip(rows, names, strict=True):
            _check_text(row, where, config)
        return Rows(rows, "texts", single)
    found = [_read_vector(row, where, model.n_features) for row, where in zip(rows, names, strict=True)]
    n_sparse = sum(isinstance(row, dict) for row in rows)
    if 0 < n_sparse < len(found):
        raise HTTPException(422, "inputs has dense and sparse vectors; give one kind in one request.")
    return Rows(found, "sparse" if n_sparse else "dense", single)


def _is_row(inputs: Any, model: ServedModel) -> bool:
    """Whether the inputs are one row, and not a list of rows."""
    if model.takes_texts:
        return isinstance(inputs, str)
    return isinstance(inputs, dict) or (isinstance(inputs, list) and type(next(iter(inputs), "")) in _NUMBERS)


def _check_text(row: Any, where: str, config: ServeConfig) -> None:
    if not isinstance(row, str):
        raise HTTPException(422, f"{where} is {kind_of(row)}; this model takes texts.")
    if len(row) > config.max_characters:
        raise HTTPException(
            413, f"{where} has {len(row):,} characters; texts have at most {config.max_characters:,}."
        )


def _read_vector(row: Any, where: str, n_features: int) -> Any:
    if isinstance(row, dict):
        return _read_sparse(row, where, n_features)
    if not isinstance(row, list):
        raise HTTPException(422, f"{where} is {kind_of(row)}; this model takes vectors, lists of numbers.")
    if len(row) != n_features:
        raise HTTPException(
            422, f"{where} has {len(row):,} numbers; this model takes vectors of {n_features:,}."
        )
    return _read_numbers(row, where)


def _read_sparse(row: dict[str, Any], where: str, n_features: int) -> SparseRow:
    if set(row) != {"indices", "values"} or not all(isinstance(part, list) for part in row.values()):
        raise HTTPException(
            422, f"{where} is an object; a sparse vector has two fields, the lists indices and values."
        )
    indices, values = row["indices"], row["values"]
    if len(indices) != len(values):
        raise HTTPException(422, f"{where} has {len(indices):,} indices and {len(values):,} values.")
    for index in indices:
        if type(index) is not int or not 0 <= index < n_features:
            raise HTTPException(
                422, f"{where} has the index {show(index)}; they go from 0 to {n_features - 1:,}."
            )
    if len(set(indices)) != len(indices):
        raise HTTPException(422, f"{where} has an index twice; give each index once.")
    return SparseRow(indices, _read_numbers(values, where).tolist())


def _read_numbers(values: list[Any], where: str) -> Any:
    bad = [value for value in values if type(value) not in _NUMBERS]
    if bad:
        raise HTTPException(422, f"{where} holds {kind_of(bad[0])}; a vector holds numbers.")
    try:
        with np.errstate(over="ignore"):
            found = np.array(values, np.float64).astype(np.float32)
    except OverflowError:
        found = np.array([np.inf], np.float32)
    if not np.isfinite(found).all():
        raise HTTPException(422, f"{where} holds a number that is too large for a float32.")
    return found
