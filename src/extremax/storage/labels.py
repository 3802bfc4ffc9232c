"""Class labels of any plain type as arrays, and back with their types."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from extremax.storage import checks

MAX_DEPTH = 64  # tuples inside one another
_MAX_DIGITS = 4300  # of a number, as Python itself allows in text

# Scalars that JSON does not know: tag, conversion to text, and back.
_SCALARS: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    float: ("float", float.hex, float.fromhex),
    complex: ("complex", repr, complex),
    bytes: ("bytes", bytes.hex, bytes.fromhex),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
    UUID: ("uuid", str, UUID),
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", str, Fraction),
}
_SCALAR_OF_TAG = {tag: back for tag, _, back in _SCALARS.values()}
_PLAIN = (int, str, bool, type(None))
_MAX_CHARACTER = 0x10FFFF
_DTYPE = re.compile(r"[<>|=]?[?a-zA-Z][0-9]{0,8}(\[[0-9]{0,6}[a-zA-Z]{1,4}\])?")
# What the text of a number looks like: "1e9999999" would be a fraction of ten million digits.
_FRACTION = re.compile(rf"[+-]?[0-9]{{1,{_MAX_DIGITS}}}(/[0-9]{{1,{_MAX_DIGITS}}})?")
_DECIMAL = re.compile(
    rf"[+-]?([0-9]{{0,{_MAX_DIGITS}}}(\.[0-9]{{0,{_MAX_DIGITS}}})?(E[+-]?[0-9]{{1,9}})?|Infinity|NaN[0-9]*)"
)
_NUMBERS = {"fraction": _FRACTION, "decimal": _DECIMAL}


def pack_labels(labels: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the coding of the labels, as JSON can hold it, and the arrays that hold them."""
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; a model has one label per class.")
    kind = labels.dtype.kind
    if kind == "T":  # numpy's StringDType
        coding, arrays = pack_labels(np.array(labels.tolist(), dtype=object))
        return {**coding, "dtype": kind}, arrays
    labels = labels.astype(labels.dtype.newbyteorder("="), copy=False)
    coding = {"dtype": labels.dtype.str}
    if kind in "mM":
        return {"coding": "numbers", **coding}, {"labels": labels.view(np.int64)}
    if kind in "biuf" and labels.dtype.itemsize <= 8:
        return {"coding": "numbers", **coding}, {"labels": labels}
    if kind == "S":
        return {"coding": "characters", **coding}, {"labels": _as_matrix(labels, np.uint8)}
    if kind == "U":
        codes = _as_matrix(labels, np.uint32)
        highest = int(codes.max(initial=0))
        narrow = np.uint8 if highest < 1 << 8 else np.uint16 if highest < 1 << 16 else np.uint32
        return {"coding": "characters", **coding}, {"labels": codes.astype(narrow)}
    values = labels.tolist() if kind != "O" else list(labels)
    if all(type(value) is str for value in values):
        # offsets count characters: the text is decoded once and cut; lone surrogates are strings too
        text = "".join(values).encode("utf-8", "surrogatepass")
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return {"coding": "text"}, {"labels": np.frombuffer(text, dtype=np.uint8), "label_offsets": offsets}
    packed = json.dumps([_pack_label(value, i) for i, value in enumerate(values)], separators=(",", ":"))
    return {"coding": "json"}, {"labels": np.frombuffer(packed.encode(), dtype=np.uint8)}


def unpack_labels(coding: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return the labels from their coding and arrays; raise ModelFileError where they do not fit together."""
    kind = checks.get_text(coding, "coding")
    if kind == "numbers":
        return _unpack_numbers(checks.get_text(coding, "dtype"), arrays)
    if kind == "characters":
        return _unpack_characters(checks.get_text(coding, "dtype"), arrays)
    if kind == "text":
        values = _unpack_text(arrays)
        if coding.get("dtype") == "T":
            return np.array(values, dtype="T")
    elif kind == "json":
        packed = checks.get_array(arrays, "labels", "u1", (None,))
        listed = checks.parse_json(packed.tobytes())
        if type(listed) is not list:
            checks.reject("the labels are not a list")
        values = [_unpack_label(value) for value in listed]
    else:
        checks.reject(f"the labels are coded as {checks.shown(kind)}")
    return np.fromiter(values, dtype=object, count=len(values))


def check_savable(labels: NDArray[Any]) -> None:
    """Raise TypeError for labels that a model folder cannot hold, such as members of an Enum."""
    for value in labels if labels.dtype.kind == "O" else ():
        try:
            _pack_label(value, 0)
        except TypeError:
            raise TypeError(
                f"y has the label {value!r} of type {type(value).__name__}, which a saved model cannot hold;"
                " use numbers, strings, dates or tuples of these, such as the name of an Enum's member."
            ) from None


def _unpack_numbers(name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    dtype = _read_dtype(name, "biufmM")
    stored = checks.get_array(
        arrays, "labels", "i8" if dtype.kind in "mM" else dtype.newbyteorder("<").str, (None,)
    )
    return stored.view(dtype) if dtype.kind in "mM" else np.asarray(stored)


def _unpack_characters(name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    dtype = _read_dtype(name, "SU")
    code = np.dtype(np.uint32 if dtype.kind == "U" else np.uint8)
    width = dtype.itemsize // code.itemsize
    stored = checks.get_array(arrays, "labels", "u1" if dtype.kind == "S" else "u1 u2 u4", (None, width))
    if dtype.kind == "U":
        checks.check_range(stored, "labels", 0, _MAX_CHARACTER + 1)
    codes = np.ascontiguousarray(stored, dtype=code)
    return codes.reshape(-1).view(dtype) if codes.size else np.empty(len(codes), dtype=dtype)


def _unpack_text(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    text = checks.get_array(arrays, "labels", "u1", (None,)).tobytes().decode("utf-8", "surrogatepass")
    offsets = checks.get_array(arrays, "label_offsets", "i8", (None,))
    ends = checks.check_rising(offsets, "label_offsets", 0, len(text)).tolist()
    return [text[a:b] for a, b in pairwise(ends)]


def _read_dtype(name: str, kinds: str) -> np.dtype[Any]:
    """Return a type of a few kinds from its name; other names could mean anything."""
    if _DTYPE.fullmatch(name) is None or np.dtype(name).kind not in kinds:
        checks.reject(f"the labels have the type {checks.shown(name)}")
    return np.dtype(name)


def _as_matrix(labels: NDArray[Any], code: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    width = labels.dtype.itemsize // np.dtype(code).itemsize
    return (
        np.ascontiguousarray(labels).view(code).reshape(len(labels), width)
        if labels.size
        else np.empty((0, width), code)
    )


def _pack_label(value: Any, place: int, depth: int = 2) -> Any:
    kind = type(value)
    if depth > MAX_DEPTH:
        raise ValueError(
            f"Label {place} has more than {MAX_DEPTH} tuples inside one another, which cannot be saved; use"
            " shorter labels."
        )
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return ["tuple", *(_pack_label(part, place, depth + 1) for part in value)]
    if kind is frozenset:  # sorted by their text, so that equal sets are stored alike
        return ["frozenset", *sorted((_pack_label(part, place, depth + 1) for part in value), key=json.dumps)]
    if kind in _SCALARS:
        tag, to_text, _ = _SCALARS[kind]
        return [tag, to_text(value)]
    if isinstance(value, np.generic) and kind.__module__ == "numpy" and value.dtype.kind not in "OV":
        return ["numpy", value.dtype.str, value.tobytes().hex()]
    raise TypeError(
        f"Label {place} is of type {kind.__name__}, which cannot be saved: use numbers, strings, dates or"
        " tuples of these."
    )


def _unpack_label(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    if not packed or not isinstance(packed[0], str):
        checks.reject("a label has no type")
    tag, *parts = packed
    if tag == "tuple":
        return tuple(_unpack_label(part) for part in parts)
    if tag == "frozenset":
        return frozenset(_unpack_label(part) for part in parts)
    if not all(isinstance(part, str) for part in parts) or len(parts) != (2 if tag == "numpy" else 1):
        checks.reject(f"a label of type {checks.shown(tag)} is not text")
    if tag == "numpy":
        dtype, data = _read_dtype(parts[0], "biufcmMSU"), bytes.fromhex(parts[1])
        if len(data) != dtype.itemsize:
            checks.reject(f"a label of type {dtype} has {len(data)} bytes")
        if dtype.kind == "U":
            codes = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(dtype.byteorder))
            checks.check_range(codes, "labels", 0, _MAX_CHARACTER + 1)
        return np.frombuffer(data, dtype=dtype)[0] if data else np.zeros((), dtype=dtype)[()]
    if tag not in _SCALAR_OF_TAG:
        checks.reject(f"a label has the unknown type {checks.shown(tag)}")
    if tag in _NUMBERS and _NUMBERS[tag].fullmatch(parts[0]) is None:
        checks.reject(f"{checks.shown(parts[0])} is not a valid {tag}")
    return _SCALAR_OF_TAG[tag](parts[0])
