"""Models in folders: every component under its own name, and the state of training.

``header.json`` holds the header of the model and of each component; array ``a`` of component ``c`` is the
file ``c.a.safetensors``.

A sharded model, which earlier versions wrote, has its dense weights and accumulators in folders inside the
folder, each with a range of the classes; the header names them with the checksums of their headers, so that
none can be missing or of another model.  They are joined in memory when the model is opened.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from extremax.features.scaling import ColumnScaling
from extremax.features.whitening import Whitening
from extremax.model import COMPONENTS, Model
from extremax.solvers.base import TrainState
from extremax.solvers.flat_parameters import with_solvers
from extremax.solvers.optimizers import Tables
from extremax.solvers.sparse.solver import FinishedTables, SparseTables
from extremax.solvers.stream import StreamMoments
from extremax.storage import checks
from extremax.storage.folder import folder_checksum, load_folder, read_steadily, save_folder
from extremax.storage.state import State, merge
from extremax.types import Float32

KIND = "classifier"
SHARDED_KIND = "sharded-classifier"
_SHARD_KIND = "class-shard"
_SHARD_NAME = re.compile(r"(shards-[0-9]{1,9}/)?(shard-[0-9]{4,6})")
_SHARD_ARRAYS = ("weights", "biases", "squares", "bias_squares")
_TABLES: dict[str, Any] = {cls.kind: cls for cls in (Tables, SparseTables, FinishedTables)}


@dataclass(frozen=True)
class SavedModel:
    """The content of a model folder.

    Attributes
    ----------
    model, state
        The model, and the state from which its training can go on.
    labels
        Names of the classes.
    header
        Parameters, history and seed of the estimator.
    parts
        States of further components, such as text features.
    """

    model: Model
    state: TrainState
    labels: NDArray[Any] | None
    header: Mapping[str, Any]
    parts: Mapping[str, State]


class Change(TypedDict):
    """A change of the classes since the fit: what, when, and how many classes and rows."""

    what: str
    when: str
    n_changed: int
    n_rows: int
    n_classes: int


class EstimatorHeader(msgspec.Struct):
    """Entries of an estimator in a model folder; None for missing ones."""

    parameters: dict[str, Any]
    history: Annotated[list[dict[str, int | float | None]], msgspec.Meta(min_length=1)]
    seed: Annotated[str, msgspec.Meta(pattern="^[0-9]{1,20}$")]
    indicator: tuple[bool, str] | None = None
    large_columns: dict[str, Any] | None = None
    changes: list[Change] | None = None
    class_weight: list[tuple[int, float]] | None = None
    feature_names: list[str] | None = None

    def __post_init__(self) -> None:
        if int(self.seed) >= 2**64:
            raise ValueError(f"the seed is {self.seed}")
        for name in ("epoch", "seconds"):
            checks.get_float(self.history[-1], name)

    def to_dict(self) -> dict[str, Any]:
        """Return the entries that are there."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


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

    Parameters
    ----------
    card
        A description for people.
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
    )


def open_model(path: str | os.PathLike[str], *, verify: bool = False, mapped: bool = True) -> SavedModel:
    """Open a folder that `save_model` wrote, in this version or an earlier one.

    Arrays are mapped from the file, or read; what further training changes never reaches the file.
    """
    return read_steadily(Path(path), lambda: _open(path, verify=verify, mapped=mapped))


def _open(path: str | os.PathLike[str], **how: bool) -> SavedModel:
    folder = load_folder(path, kind=(KIND, SHARDED_KIND), copy_on_write=True, **how)
    content = State(folder.header, folder.arrays)
    with checks.whole_model(path):
        content = State(with_solvers(content.header), content.arrays)
        parts = {name: content.nested(name) for name in checks.get_list(content.header, "components")}
        if folder.kind == SHARDED_KIND:
            parts |= _open_shards(Path(path), content.header, parts, **how)
        model = Model.from_components(checks.get_mapping(content.header, "model"), parts)
        state = _restore_training(model, checks.get(parts, "training"))
        header = checks.get_mapping(content.header, "estimator")
        if folder.labels is not None and len(folder.labels) != model.n_classes:
            checks.reject(f"there are {len(folder.labels):,} labels for {model.n_classes:,} classes")
    own = {*COMPONENTS, "training"}
    further = {n: part for n, part in parts.items() if n not in own and not n.startswith("search_")}
    return SavedModel(model, state, folder.labels, header, further)


def _open_shards(
    path: Path, header: Mapping[str, Any], parts: Mapping[str, State], **how: bool
) -> dict[str, State]:
    """Return the states of weights and training of a sharded model, with the joined arrays of its shards."""
    shards: list[dict[str, NDArray[Any]]] = []
    end, width = 0, None
    for entry in checks.get_list(header, "shards", (dict,)):
        name = checks.get_text(entry, "name")
        found_name = _SHARD_NAME.fullmatch(name)
        if found_name is None or found_name[2] != f"shard-{len(shards):04d}":
            checks.reject(f"{checks.shown(name)} cannot be the name of shard {len(shards)}")
        if not (path / name).is_dir():
            checks.reject(f"{name} is missing")
        found = load_folder(path / name, kind=_SHARD_KIND, copy_on_write=True, **how)
        if folder_checksum(path / name) != checks.get_text(entry, "checksum"):
            checks.reject(f"{name} is not the one that was saved with the model")
        first, last = checks.get_int(found.header, "first"), checks.get_int(found.header, "last")
        if first != end or last <= first:
            checks.reject(f"{name} has the classes from {first} to {last} where they begin at {end}")
        weights = checks.get_array(found.arrays, "weights", "f4", (last - first, width))
        squares = checks.get_array(found.arrays, "squares", "f4", (last - first, None))
        if 0 in weights.shape or squares.shape[1] not in (0, 1, weights.shape[1]):
            checks.reject(f"{name} has weights {weights.shape} and accumulators {squares.shape}")
        if shards and squares.shape[1] != shards[0]["squares"].shape[1]:
            checks.reject(f"{name} has accumulators of another optimizer")
        for each in ("biases", "bias_squares"):
            checks.get_array(found.arrays, each, "f4", (last - first,))
        shards.append({each: found.arrays[each] for each in _SHARD_ARRAYS})
        end, width = last, weights.shape[1]
    if not shards:
        checks.reject("it has no shards")
    joined = {each: np.concatenate([shard[each] for shard in shards]) for each in _SHARD_ARRAYS}
    weights_header = {**checks.get(parts, "weights").header, "kind": "dense"}
    training = checks.get(parts, "training")
    return {
        "weights": State(weights_header, {each: joined[each] for each in ("weights", "biases")}),
        "training": State(training.header, {**training.arrays, **joined}),
    }


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
