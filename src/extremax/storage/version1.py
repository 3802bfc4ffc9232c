"""Translate model folders of format version 1 (extremax 0.1) to the layout of version 2."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from extremax.storage.state import State

_CHOICES = {
    "sharpness": "init_scale",
    "regularization": "tree_regularization",
    "tree_held_out_log_likelihood": "tree_held_out_log_likelihood",
}
_PARAMETERS = {"regularization": "tree_regularization", "n_components": "tree_components"}
_INDEX_ARRAYS = {"turn": "rotation", "centres": "centroids"}
_INDEX_HEADER = {
    "beam_width": "width", "agreement": "recall", "excess": "tail_correction", "largest": "max_square",
}  # fmt: skip
# the same scores; trained without accidental hits
_OBJECTIVES = {"sampled_softmax_masked": "sampled_softmax"}
# Parameters of a fit that version 1 stored only where they were resolved, with the defaults of that version.
_CONFIG = {
    "noise": "adversarial", "optimizer": "adagrad", "n_epochs": 20, "learning_rate": 0.3, "n_negatives": 4,
    "n_shared": 1024, "precondition": True, "score_penalty": 1e-4, "prior_variance": None, "batch_size": 256,
    "tree_components": 32, "tree_regularization": "auto", "noise_exponent": 1.0, "tree_share": 0.9,
}  # fmt: skip


def translate(content: State) -> State:
    """Return the header and arrays of a version 1 folder as version 2 has them."""
    old, arrays = content.header, content.arrays
    parts: dict[str, State] = {
        "weights": State(
            {"kind": "dense", "feature_scale": old["linear"]["feature_scale"]},
            _pick(arrays, "weights", "biases"),
        ),
        "calibration": State({"temperature": old["temperature"], "uniform_mix": old.get("floor", 0.0)}),
        "classes": _classes(old, arrays),
        "noise": State(old["noise"], _under(arrays, "noise.")),
        "training": _training(old, arrays),
    }
    projection = _under(arrays, "projection.")
    if len(projection["components"]):
        parts["projection"] = State({}, projection)
    if "index" in old:
        parts["search_beam"] = _index(old["index"], _under(arrays, "index."))
    if "text" in old:
        parts["text"] = State(old["text"], _under(arrays, "text."))
    objective = _OBJECTIVES.get(old["objective"], old["objective"])
    if objective != old["objective"]:
        warnings.warn(
            f"the model was trained with objective={old['objective']!r}, which is gone; predictions are the"
            f" same, and further training uses {objective!r}.",
            FutureWarning,
            stacklevel=5,
        )
    parameters = {_PARAMETERS.get(name, name): value for name, value in old["parameters"].items()}
    if parameters.get("objective") in _OBJECTIVES:
        parameters["objective"] = objective
    chosen = {new: old["choices"][name] for name, new in _CHOICES.items() if name in old["choices"]}
    model = {
        "objective": objective,
        "n_epochs": old["linear"]["n_epochs"],
        "chosen": chosen,
        "config": _config(parameters, old["choices"], objective),
    }
    kept = ("history", "seed", "feature_names")
    estimator = {"parameters": parameters, **{name: old[name] for name in kept if name in old}}
    header: dict[str, Any] = {"model": model, "estimator": estimator, "components": sorted(parts)}
    joined: dict[str, NDArray[Any]] = {}
    for name, part in parts.items():
        header[name] = part.header
        joined |= {f"{name}.{array}": value for array, value in part.arrays.items()}
    return State(header, joined)


def _config(parameters: Mapping[str, Any], choices: Mapping[str, Any], objective: str) -> dict[str, Any]:
    given = {name: value for name, value in parameters.items() if name in _CONFIG and value is not None}
    resolved = {name: value for name, value in choices.items() if name in _CONFIG and value is not None}
    resolved.pop("tree_regularization", None)
    noise = {} if "noise" in parameters else {"noise": "custom"}
    return {**_CONFIG, **given, **noise, **resolved, "objective": objective, "numbers": {}}


def _pick(arrays: Mapping[str, NDArray[Any]], *names: str) -> dict[str, NDArray[Any]]:
    return {name: arrays[name] for name in names if name in arrays}


def _under(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _classes(old: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    renamed = {"class_counts": "counts", "class_means": "means"}
    found = {new: arrays[name] for name, new in renamed.items() if name in arrays}
    found |= {f"descriptions_{name}": array for name, array in _under(arrays, "descriptions.").items()}
    return State({"n_samples": old.get("n_samples", 0)}, found)


def _training(old: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    found = _pick(arrays, "squares", "bias_squares")
    if "eta" in arrays:
        found["pair_values"] = arrays["eta"]
    header: dict[str, Any] = {"n_epochs": old["linear"]["n_epochs"], "pair_key": old["linear"]["eta_key"]}
    if "whitening.matrix" in arrays:
        header["whitening"] = {}
        found |= {f"whitening.{name}": array for name, array in _under(arrays, "whitening.").items()}
    return State(header, found)


def _index(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> State:
    return State(
        {"kind": "pq", **{_INDEX_HEADER.get(name, name): value for name, value in header.items()}},
        {_INDEX_ARRAYS.get(name, name): array for name, array in arrays.items()},
    )
