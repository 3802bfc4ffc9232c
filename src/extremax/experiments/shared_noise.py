"""Noise that is fitted once and shared by runs: a label tree, its projection, and the time they took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from extremax.examples import Examples
from extremax.experiments.methods import make_classifier
from extremax.experiments.rows import Rows
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Moment, Watcher
from extremax.tree.noise import TreeNoise


class TrainingOver(Exception):
    """Raised by a callback that needs no more of a model: calibration and search index are skipped."""


@dataclass(frozen=True)
class FittedNoise:
    """A tree as noise, and the time it took to fit it and its projection."""

    noise: TreeNoise
    seconds: float
    cpu_seconds: float


def fit_shared_noise(parameters: Mapping[str, Any], rows: Rows, *, n_jobs: int | None = None) -> FittedNoise:
    """Fit projection and tree of a model with adversarial noise, without training it."""
    warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
    clf = make_classifier({**parameters, "n_epochs": 1, "patience": None}, n_jobs=n_jobs)
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
    y = np.arange(300) % 40
    X = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    features = sp.csr_matrix(X) if sparse else X
    small = {"n_epochs": 1} | ({"tree_components": 4} if "tree_components" in parameters else {})
    clf = make_classifier({**parameters, **small}, n_jobs=n_jobs)
    clf.fit(features, y)
    clf.model_.evaluate(Examples(features, y.astype(np.int32)), n_threads=resolve_threads(n_jobs))
    return time.perf_counter() - started
