"""Predictions of Dask collections, block by block, with one model per worker."""

from __future__ import annotations

import copy
import os
from functools import lru_cache
from importlib import import_module
from operator import methodcaller
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremax.classifier import ExtremeClassifier
from extremax.dask import blocks as b
from extremax.dask.inputs import split_collection
from extremax.dask.job import import_delayed
from extremax.storage.folder import folder_checksum
from extremax.text import load_model


class SavedModelAt:
    """A model in a folder that every worker can read: opened once per worker, memory-mapped.

    Parameters
    ----------
    path
        The folder.
    checksum
        Of its header: a folder that was saved again is opened again.
    """

    def __init__(self, path: str | os.PathLike[str], checksum: str) -> None:
        self.path, self.checksum = os.path.abspath(path), checksum

    def open(self) -> ExtremeClassifier:
        """Return the model, from the worker's memory where it was opened before."""
        return _open(self.path, self.checksum)


@lru_cache(maxsize=4)
def _open(path: str, checksum: str) -> ExtremeClassifier:
    found: Any = load_model(path)
    if folder_checksum(path) != checksum:  # looked at last: the folder may be exchanged while it is read
        raise ValueError(
            f"the model in {path} was saved again; open it anew with DaskExtremeClassifier.open."
        )
    return found  # type: ignore[no-any-return]


def call_block(X: Any, model: Any, method: str, options: dict[str, Any], n_threads: int) -> Any:
    """Return what a method of the model says of one block of rows."""
    local = _copy_of(model, n_threads)
    rows = b.one_matrix(X)
    if rows.shape[0] == 0:  # how Dask asks for the type of a result, and blocks that a filter left empty
        return _nothing(local, method, options)
    return methodcaller(method, rows, **options)(local)


def _copy_of(model: Any, n_threads: int) -> ExtremeClassifier:
    """Return the model, which may be in a folder, with its own number of threads."""
    local = copy.copy(model.open() if isinstance(model, SavedModelAt) else model)
    local.n_jobs = n_threads
    return local


def _nothing(local: ExtremeClassifier, method: str, options: dict[str, Any]) -> Any:
    k = options.get("k", 5)
    labels, numbers = local.classes_[:0], np.empty((0, len(local.classes_)))
    return {
        "predict": labels,
        "predict_topk": (labels.reshape(0, 1).repeat(k, axis=1), np.empty((0, k), np.float32)),
    }.get(method, numbers)


def predict_array(
    X: Any, model: Any, method: str, dtype: np.dtype[Any], n_columns: int | None, n_threads: int
) -> Any:
    """Return the lazy array of a method: one value per row, or `n_columns`."""
    options: dict[str, Any] = {"dtype": dtype, "model": model, "method": method, "options": {}}
    options["n_threads"] = n_threads
    if n_columns is None:
        return X.map_blocks(call_block, drop_axis=1, meta=np.empty(0, dtype), **options)
    chunks = (X.chunks[0], (n_columns,))
    return X.map_blocks(call_block, chunks=chunks, meta=np.empty((0, n_columns), dtype), **options)


def predict_pair(
    X: Any, model: Any, dtype: np.dtype[Any], options: dict[str, Any], n_threads: int
) -> tuple[Any, Any]:
    """Return the lazy arrays of `predict_topk`, which one task per block computes together."""
    da, delayed = import_module("dask.array"), import_delayed()
    found = [
        delayed(call_block, nout=2)(block, model, "predict_topk", options, n_threads)
        for block in split_collection(X, "X")
    ]
    arrays = []
    for i, kind in enumerate((dtype, np.dtype(np.float32))):
        parts = [
            da.from_delayed(pair[i], (size, options["k"]), kind, meta=np.empty((0, 0), kind))
            for pair, size in zip(found, X.chunks[0], strict=True)
        ]
        arrays.append(da.concatenate(parts, allow_unknown_chunksizes=True))
    return arrays[0], arrays[1]


def evaluate_block(
    X: Any, y: Any, weight: Any, model: Any, method: str, n_threads: int
) -> tuple[float, float]:
    """Return a mean over a block of rows, and the weight that it has in the mean over all."""
    local = _copy_of(model, n_threads)
    labels: NDArray[Any] = np.asarray(b.one_vector(y))
    rows = b.one_matrix(X)
    if rows.shape[0] == 0:
        return 0.0, 0.0
    weights = None if weight is None else np.asarray(b.one_vector(weight))
    total = float(len(labels)) if weights is None else float(weights.sum(dtype=np.float64))
    if total == 0.0:
        return 0.0, 0.0
    return float(methodcaller(method, rows, labels, weights)(local)), total
