"""Checks of the content of a model folder, before any object is built from it.

A folder may come from elsewhere, with checksums that are right for what was put into it. Kernels do not check
bounds, so a component names here what its header and its arrays must be. Every failure is a `ModelFileError`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from extremax.errors import ModelFileError

HINT = "Copy or save the model again."

T = TypeVar("T")


def reject(what: str) -> NoReturn:
    """Raise for a part of a folder that does not fit."""
    raise ModelFileError(f"the model does not fit together: {what}. {HINT}")


def get_array(
    arrays: Mapping[str, NDArray[Any]], name: str, dtype: str, shape: Sequence[int | None]
) -> NDArray[Any]:
    """Return an array of a type and shape; None stands for any length, the type may be several: ``"i4 i8"``.

    Examples
    --------
    >>> get_array({"biases": np.zeros(3, np.float32)}, "biases", "f4", (3,)).shape
    (3,)
    >>> get_array({"biases": np.zeros(3)}, "biases", "f4", (3,))
    Traceback (most recent call last):
    ...
    extremax.errors.ModelFileError: the model does not fit together: array 'biases' is float64 (3,) where
    float32 (3,) is needed. Copy or save the model again.
    """
    if name not in arrays:
        reject(f"array {name!r} is missing")
    array = arrays[name]
    types = [np.dtype(word) for word in dtype.split()]
    fits = array.ndim == len(shape) and all(
        n is None or n == m for n, m in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype not in types:
        wanted = ", ".join("any" if n is None else f"{n}" for n in shape) + ("," if len(shape) == 1 else "")
        kinds = " or ".join(str(kind) for kind in types)
        reject(f"array {name!r} is {array.dtype} {array.shape} where {kinds} ({wanted}) is needed")
    return array


def check_range(array: NDArray[Any], name: str, low: int, high: int) -> NDArray[Any]:
    """Return an array of integers if all are from `low` to before `high`."""
    if array.size:
        least, most = int(array.min()), int(array.max())
        if least < low or most >= high:
            reject(f"array {name!r} goes from {least} to {most} where {low} to {high - 1} is needed")
    return array


def check_rising(array: NDArray[Any], name: str, first: int | None, last: int) -> NDArray[Any]:
    """Return offsets if they never fall and go from `first` (None: any number from 0) to `last`."""
    if len(array) == 0:
        ends = first is None and last == 0
    else:
        start = int(array[0])
        ends = (start >= 0 if first is None else start == first) and int(array[-1]) == last
    if not ends or bool((array[1:] < array[:-1]).any()):
        reject(f"array {name!r} does not rise to {last}")
    return array


def check_distinct(array: NDArray[Any], name: str, n: int) -> NDArray[Any]:
    """Return an array of integers if each of 0 to n - 1 occurs in it at most once."""
    check_range(array, name, 0, n)
    if len(array) and int(np.bincount(array, minlength=1).max()) > 1:
        reject(f"array {name!r} holds a number twice")
    return array


def check_finite(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return an array of numbers if none of them is NaN or infinite."""
    if not np.isfinite(array).all():
        reject(f"array {name!r} holds NaN or infinity")
    return array


def get_int(header: Mapping[str, Any], name: str, low: int = 0, high: int = 2**63 - 1) -> int:
    """Return a whole number of a header."""
    value = get(header, name)
    if type(value) is not int or not low <= value <= high:
        reject(f"{name!r} is {shown(value)} where a whole number from {low} to {high} is needed")
    return value


def get_float(header: Mapping[str, Any], name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number of a header."""
    value = get(header, name)
    if type(value) not in (int, float) or not (low <= value <= high) or abs(value) > 1e300:
        reject(f"{name!r} is {shown(value)} where a number from {low} to {high} is needed")
    return float(value)


def get_text(header: Mapping[str, Any], name: str) -> str:
    """Return a string of a header."""
    value = get(header, name)
    if type(value) is not str:
        reject(f"{name!r} is {shown(value)} where a string is needed")
    return value


def get_mapping(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping of a header."""
    value = get(header, name)
    if type(value) is not dict:
        reject(f"{name!r} is {shown(value)} where a mapping is needed")
    return value


def get_list(header: Mapping[str, Any], name: str, kinds: tuple[type, ...] = (str,)) -> list[Any]:
    """Return a list of a header whose entries are of some types."""
    value = get(header, name)
    if type(value) not in (list, tuple) or any(type(entry) not in kinds for entry in value):
        reject(f"{name!r} is {shown(value)} where a list of {kinds[0].__name__} is needed")
    return list(value)


def get(header: Mapping[str, Any], name: str) -> Any:
    """Return an entry of a header."""
    if name not in header:
        reject(f"{name!r} is missing from its header")
    return header[name]


def read(header: Mapping[str, Any], schema: type[T]) -> T:
    """Return a header as the struct that its component declares."""
    try:
        return msgspec.convert(header, schema)
    except msgspec.ValidationError as error:
        reject(f"its header is not what it must be ({error})")


def parse_json(text: bytes) -> Any:
    """Return the value of a foreign JSON text; raise ValueError for NaN, infinity and too deep nesting."""

    def refuse(name: str) -> Any:
        raise ValueError(f"it has {name} where a number is needed")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it has too many lists or mappings inside one another") from None


# An error of msgspec is a ValueError in its later versions alone.
_WRONG_HEADER = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)


@contextmanager
def whole_model(path: object) -> Iterator[None]:
    """Turn whatever goes wrong while a folder is read into a `ModelFileError` that names the folder.

    A header is foreign text: a value of an unexpected type may fail in any object that is made of it.
    """
    try:
        yield
    except ModelFileError as error:
        if str(path) in str(error):
            raise
        raise ModelFileError(f"{path} cannot be opened: {error}") from error
    except _WRONG_HEADER as error:
        raise ModelFileError(
            f"{path} is not a complete model: {type(error).__name__}: {shown(str(error))} while its header"
            f" was read. {HINT}"
        ) from error


def shown(value: Any) -> str:
    """Return a value of a foreign file as an error message can show it."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, lists too deep
        text = f"a {type(value).__name__}"
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return text if text.isprintable() else repr(text)


def is_rising(offsets: NDArray[Any]) -> bool:
    """Whether no number of an array is smaller than the one before; a difference could overflow.

    Examples
    --------
    >>> is_rising(np.array([0, 6, -(2**63), -(2**31), 6, 30]))
    False
    """
    return bool((offsets[1:] >= offsets[:-1]).all())
