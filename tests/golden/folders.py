"""Arrays of a model folder and keys of ``choices_`` by name, read without the library that wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def read_folder(folder: Path) -> Arrays:
    """Read all arrays of a model folder by their names, from files in the safetensors format."""
    arrays: Arrays = {}
    dtypes = {
        "F64": "f8",
        "F32": "f4",
        "F16": "f2",
        "BOOL": "?",
        "U8": "u1",
        "U16": "u2",
        "U32": "u4",
        "U64": "u8",
    }
    dtypes |= {"I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}
    for path in sorted(Path(folder).rglob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, entry in json.loads(content[8:start]).items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            flat = np.frombuffer(content[start + first : start + last], "<" + dtypes[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
    return arrays


# Components that have arrays of the same names as the classifier's own.
_OTHER_PARTS = {"noise", "tree", "projection", "whitening", "index", "search", "searches", "text", "features"}
_RENAMED = {"eta": ("pair_values",)}


def find_array(arrays: Arrays, name: str) -> NDArray[Any] | None:
    """Find an array of the linear model: by its name at version 1, else by the last part of a dotted name."""
    if name in arrays:
        return arrays[name]
    for wanted in (name, *_RENAMED.get(name, ())):
        found = [
            full
            for full in arrays
            if full.split(".")[-1] == wanted and not _OTHER_PARTS & set(full.split(".")[:-1])
        ]
        if len(found) > 1:
            raise KeyError(f"{name!r} may be any of {found}; say which in find_array.")
        if found:
            return arrays[found[0]]
    return None


# Keys of `choices_` at version 0.1, and what they were renamed to.
_RENAMED_CHOICES = {
    "floor": "uniform_mix",
    "sharpness": "init_scale",
    "beam_agreement": "beam_recall",
    "regularization": "tree_regularization",
    "n_components": "tree_components",
}


def read_choices(stored: NDArray[Any]) -> dict[str, Any]:
    """Read the JSON of an observed ``choices_``, with old keys under their new names."""
    return {_RENAMED_CHOICES.get(key, key): value for key, value in json.loads(str(stored)).items()}


def has_tuned_tree(found: Arrays, prefix: str = "") -> bool:
    """Tell whether an observed model fitted a label tree whose regularization it chose.

    Version 0.1 fitted one for every default; later versions do where minibatches come from its cells.
    """
    return "tree_regularization" in read_choices(found[f"{prefix}choices"])
