"""Class labels of any plain type as arrays, and back with their types."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from extremax.storage.dtypes import DTYPES

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


def pack_labels(labels: NDArray[Any]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the coding of the labels, as JSON can hold it, and the arrays that hold them."""
    if labels.ndim != 1:
        raise ValueError(f"labels have shape {labels.shape}; a model has one label per class.")
    labels = labels.astype(labels.dtype.newbyteorder("="), copy=False)
    kind, coding = labels.dtype.kind, {"dtype": labels.dtype.str}
    if kind in "mM":
        return {"coding": "numbers", **coding}, {"labels": labels.view(np.int64)}
    if kind in "biuf" and labels.dtype.name in DTYPES:
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
    """Return the labels from their coding and arrays."""
    stored = arrays["labels"]
    if coding["coding"] == "numbers":
        return stored.view(coding["dtype"]) if np.dtype(coding["dtype"]).kind in "mM" else np.asarray(stored)
    if coding["coding"] == "characters":
        dtype = np.dtype(coding["dtype"])
        codes = stored.astype(np.uint32 if dtype.kind == "U" else np.uint8)
        return codes.reshape(-1).view(dtype) if codes.size else np.empty(len(codes), dtype=dtype)
    if coding["coding"] == "text":
        text = stored.tobytes().decode("utf-8", "surrogatepass")
        ends = arrays["label_offsets"].tolist()
        values = [text[a:b] for a, b in pairwise(ends)]
    else:
        values = [_unpack_label(value) for value in json.loads(stored.tobytes())]
    return np.fromiter(values, dtype=object, count=len(values))


def _as_matrix(labels: NDArray[Any], code: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    width = labels.dtype.itemsize // np.dtype(code).itemsize
    return (
        np.ascontiguousarray(labels).view(code).reshape(len(labels), width)
        if labels.size
        else np.empty((0, width), code)
    )


def _pack_label(value: Any, place: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return ["tuple", *(_pack_label(part, place) for part in value)]
    if kind is frozenset:  # sorted by their text, so that equal sets are stored alike
        return ["frozenset", *sorted((_pack_label(part, place) for part in value), key=json.dumps)]
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
    tag, *parts = packed
    if tag == "tuple":
        return tuple(_unpack_label(part) for part in parts)
    if tag == "frozenset":
        return frozenset(_unpack_label(part) for part in parts)
    if tag == "numpy":
        return (
            np.frombuffer(bytes.fromhex(parts[1]), dtype=parts[0])[0]
            if parts[1]
            else np.zeros((), dtype=parts[0])[()]
        )
    return _SCALAR_OF_TAG[tag](parts[0])
