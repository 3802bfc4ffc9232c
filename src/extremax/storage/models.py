"""Models in folders: every component under its own name, and what resuming needs beside the model.

``header.json`` holds the header of the model and of each component; array ``a`` of component ``c`` is the
file ``c.a.safetensors``. Version 2; folders of version 1 are translated by `extremax.storage.version1`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.errors import ModelFileError
from extremax.features.whitening import Whitening
from extremax.model import Model
from extremax.storage.folder import load_folder, save_folder
from extremax.storage.state import State, merge
from extremax.storage.version1 import translate
from extremax.training.base import TrainState
from extremax.training.optimizers import Tables
from extremax.training.sparse_trainer import FinishedTables, SparseTables
from extremax.types import Float32

KIND = "classifier"
_TABLES: dict[str, Any] = {cls.kind: cls for cls in (Tables, SparseTables, FinishedTables)}


@dataclass(frozen=True)
class SavedModel:
    """What a folder holds.

    Attributes
    ----------
    model, state
        The model, and the state from which its training can go on.
    labels
        Names of the classes.
    header
        What the estimator keeps: parameters, history, seed.
    parts
        States of further components, such as text features.
    """

    model: Model
    state: TrainState
    labels: NDArray[Any] | None
    header: Mapping[str, Any]
    parts: Mapping[str, State]


def save_model(
    path: str | os.PathLike[str],
    model: Model,
    state: TrainState,
    *,
    labels: NDArray[Any],
    header: Mapping[str, Any],
    parts: Mapping[str, State] | None = None,
) -> None:
    """Write a model, its training state, label names and further components to a folder."""
    components = {**model.components(), "training": state.state(), **(parts or {})}
    content = {"model": model.header(), "estimator": dict(header), "components": sorted(components)}
    merged = merge(content, components)
    save_folder(path, kind=KIND, header=merged.header, arrays=merged.arrays, labels=labels)


def open_model(path: str | os.PathLike[str], *, verify: bool = False) -> SavedModel:
    """Open a folder that `save_model` wrote, in this version or an earlier one.

    Arrays are mapped from the file; what further training changes stays in memory and never reaches the file.
    """
    folder = load_folder(path, kind=KIND, verify=verify, copy_on_write=True)
    content = State(folder.header, folder.arrays)
    if folder.format_version < 2:
        content = translate(content)
    try:
        parts = {name: content.nested(name) for name in content.header["components"]}
        model = Model.from_components(content.header["model"], parts)
        state = _restore_training(model, parts["training"])
        header = content.header["estimator"]
    except (KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path} is not a complete model: {type(error).__name__} {error} while its header was read."
            " Copy or save the"
            " model again."
        ) from error
    own = {*model.components(), "training"}
    return SavedModel(
        model, state, folder.labels, header, {n: part for n, part in parts.items() if n not in own}
    )


def _restore_training(model: Model, state: State) -> TrainState:
    arrays = state.arrays
    tables = _TABLES[state.header.get("tables", "dense")].from_training_state(model.weights, state)
    values: Float32 | None = arrays.get("pair_values")
    return TrainState(
        tables,
        model.weights.feature_scale,
        model.noise,
        model.projection,
        Whitening.from_state(state.nested("whitening")) if "whitening" in state.header else None,
        n_epochs=int(state.header["n_epochs"]),
        pair_values=None if values is None else np.asarray(values),
        pair_key=int(state.header["pair_key"]),
        class_means=model.classes.means,
        chosen=dict(model.chosen),
    )
