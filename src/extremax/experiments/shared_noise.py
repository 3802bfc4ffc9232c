"""Noise that is fitted once and shared by runs: a label tree, its projection, and the time they took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from extremax.classifier import ExtremeClassifier
from extremax.errors import ModelFileError
from extremax.examples import Examples
from extremax.experiments.rows import Rows
from extremax.features.pca import PCA
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Moment, Watcher
from extremax.storage.folder import load_folder, save_folder
from extremax.storage.state import State
from extremax.tree import LabelTree
from extremax.tree.noise import TreeNoise

_KIND = "shared noise"


class TrainingOver(Exception):
    """Raised by a callback that has seen enough of a model: calibration and search index are left out."""


@dataclass(frozen=True)
class FittedNoise:
    """A tree as noise, and the time it took to fit it and its projection."""

    noise: TreeNoise
    seconds: float
    cpu_seconds: float


def open_shared_noise(
    folder: Path, parameters: Mapping[str, Any], rows: Rows, *, n_jobs: int | None = None
) -> FittedNoise:
    """Return the noise that is kept in a folder; fit and keep it if there is none for these parameters."""
    shaping = ("tree_", "whiten", "scale_features")
    wanted = {name: value for name, value in parameters.items() if name.startswith(shaping)}
    with contextlib.suppress(FileNotFoundError, ModelFileError):
        kept = load_folder(folder, kind=_KIND)
        if kept.header["parameters"] == wanted and kept.header["n_train"] == len(rows.y["train"]):
            tree, pca = (_part(kept.arrays, name) for name in ("tree.", "pca."))
            noise = TreeNoise(LabelTree.from_state(tree), PCA.from_state(pca))
            return FittedNoise(noise, kept.header["seconds"], kept.header["cpu_seconds"])
    found = fit_shared_noise(parameters, rows, n_jobs=n_jobs)
    assert found.noise.projection is not None
    parts = {"tree": found.noise.tree.state(), "pca": found.noise.projection.state()}
    arrays = {f"{part}.{name}": a for part, state in parts.items() for name, a in state.arrays.items()}
    header = {"parameters": wanted, "n_train": len(rows.y["train"])}
    times = {"seconds": found.seconds, "cpu_seconds": found.cpu_seconds}
    save_folder(folder, kind=_KIND, header={**header, **times}, arrays=arrays)
    return found


def _part(arrays: Mapping[str, Any], prefix: str) -> State:
    found = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
    return State({}, found)


def fit_shared_noise(parameters: Mapping[str, Any], rows: Rows, *, n_jobs: int | None = None) -> FittedNoise:
    """Fit projection and tree of a model with adversarial noise, without training it."""
    warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
    clf = ExtremeClassifier(**{**parameters, "n_epochs": 1, "patience": None}, n_jobs=n_jobs)
    found: list[FittedNoise] = []
    before = time.process_time()

    class Catch(Watcher):
        def at_start(self, moment: Moment) -> None:
            model, cpu_seconds = moment.model(), time.process_time() - before
            if model.noise is None or model.noise.tree is None:
                raise ValueError("noise without a tree is not shared: it takes no time to fit.")
            noise = TreeNoise(model.noise.tree, model.projection)
            found.append(FittedNoise(noise, float(moment.record["seconds"]), cpu_seconds))
            raise TrainingOver

    with contextlib.suppress(TrainingOver):
        clf.fit(rows.X["train"], rows.y["train"], callbacks=[Catch()])
    return found[0]


def warm_up(parameters: Mapping[str, Any], *, sparse: bool, n_jobs: int | None) -> float:
    """Compile the kernels of training and evaluation with these parameters; return the seconds it took."""
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    y = np.arange(300) % 40
    X = rng.standard_normal((300, 8)).astype(np.float32)
    features = sp.csr_matrix(X) if sparse else X
    clf = ExtremeClassifier(**{**parameters, "n_epochs": 1, "tree_components": 4}, n_jobs=n_jobs)
    clf.fit(features, y)
    clf.model_.evaluate(Examples(features, y.astype(np.int32)), n_threads=resolve_threads(n_jobs))
    return time.perf_counter() - started
