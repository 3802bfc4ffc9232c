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

from extremax.features.scaling import ColumnScaling
from extremax.features.whitening import Whitening
from extremax.model import Model
from extremax.storage import checks
from extremax.storage.folder import USUAL_VERSION, load_folder, save_folder
from extremax.storage.state import State, merge
from extremax.storage.version1 import translate
from extremax.training.base import TrainState
from extremax.training.optimizers import Tables
from extremax.training.sparse_trainer import FinishedTables, SparseTables
from extremax.training.stream import StreamMoments
from extremax.types import Float32

KIND = "classifier"
MERGED_VERSION = 3  # of models with merged classes, whose parts earlier versions would take for classes
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
    card: str | None = None,
) -> None:
    """Write a model, its training state, label names and further components to a folder.

    `card` is a description for people.
    """
    components = {**model.components(), "training": state.state(), **(parts or {})}
    content = {"model": model.header(), "estimator": dict(header), "components": sorted(components)}
    merged = merge(content, components)
    save_folder(
        path,
        kind=KIND,
        header=merged.header,
        arrays=merged.arrays,
        labels=labels,
        texts=None if card is None else {"README.md": card},
        format_version=USUAL_VERSION if model.parts is None else MERGED_VERSION,
    )


def open_model(path: str | os.PathLike[str], *, verify: bool = False) -> SavedModel:
    """Open a folder that `save_model` wrote, in this version or an earlier one.

    Arrays are mapped from the file; what further training changes stays in memory and never reaches the file.
    """
    folder = load_folder(path, kind=KIND, verify=verify, copy_on_write=True)
    content = State(folder.header, folder.arrays)
    with checks.whole_model(path):
        if folder.format_version < 2:
            content = translate(content)
        parts = {name: content.nested(name) for name in checks.get_list(content.header, "components")}
        model = Model.from_components(checks.get_mapping(content.header, "model"), parts)
        state = _restore_training(model, checks.get(parts, "training"))
        header = checks.get_mapping(content.header, "estimator")
        if folder.labels is not None and len(folder.labels) != model.n_classes:
            checks.reject(f"there are {len(folder.labels):,} labels for {model.n_classes:,} classes")
    own = {"weights", "calibration", "classes", "noise", "projection", "training", "parts"}
    own |= {name for name in parts if name.startswith("search_")}
    return SavedModel(
        model, state, folder.labels, header, {n: part for n, part in parts.items() if n not in own}
    )


def _restore_training(model: Model, state: State) -> TrainState:
    arrays = state.arrays
    kind = state.header.get("tables", "dense")
    if not isinstance(kind, str) or kind not in _TABLES:
        checks.reject(f"the training state is of the unknown kind {checks.shown(kind)}")
    tables = _TABLES[kind].from_training_state(model.weights, state)
    values: Float32 | None = arrays.get("pair_values")
    if values is not None:
        checks.get_array(arrays, "pair_values", "f4", (None,))
    whitening = Whitening.from_state(state.nested("whitening")) if "whitening" in state.header else None
    if whitening is not None and len(whitening.mean) != model.n_features:
        checks.reject(
            f"the whitening is of {len(whitening.mean):,} features, weights of {model.n_features:,}"
        )
    scaling = ColumnScaling.from_state(state.nested("scaling")) if "scaling" in state.header else None
    if scaling is not None and len(scaling.centre) != model.n_features:
        checks.reject(f"the scaling is of {len(scaling.centre):,} columns, weights of {model.n_features:,}")
    stream = None
    if "stream" in state.header:
        stream = StreamMoments.from_state(state.nested("stream"), model.weights.n_classes, model.n_features)
    return TrainState(
        tables,
        model.weights.feature_scale,
        model.noise,
        model.projection,
        whitening,
        scaling,
        n_epochs=checks.get_int(state.header, "n_epochs"),
        pair_values=None if values is None else np.asarray(values),
        pair_key=checks.get_int(state.header, "pair_key", -(2**63), 2**64),
        stream=stream,
        class_means=model.classes.means,
        chosen=dict(model.chosen),
    )
