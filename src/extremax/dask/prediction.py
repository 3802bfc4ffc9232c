"""Predictions of Dask collections, partition by partition, with one model per worker."""

from __future__ import annotations

import copy
import os
from functools import lru_cache
from importlib import import_module
from operator import methodcaller
from typing import Any

import numpy as np
from scipy import sparse

from extremax.classifier import ExtremeClassifier
from extremax.dask.inputs import Part, chunk_sizes, is_bag, len_of, make_part, split_rows
from extremax.storage.folder import folder_checksum
from extremax.text import TextClassifier, load_model


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

    def open(self) -> ExtremeClassifier | TextClassifier:
        """Return the model, from the worker's memory where it was opened before."""
        return _open(self.path, self.checksum)


@lru_cache(maxsize=4)
def _open(path: str, checksum: str) -> ExtremeClassifier | TextClassifier:
    found = load_model(path)
    if folder_checksum(path) != checksum:  # looked at last: the folder may be exchanged while it is read
        raise ValueError(
            f"the model in {path} was saved again; open it anew with DaskExtremeClassifier.open or"
            " DaskTextClassifier.open."
        )
    return found


def _copy_of(model: Any) -> Any:
    """Return the model, which may be in a folder, for one thread: Dask runs several tasks at a time."""
    local = copy.copy(model.open() if isinstance(model, SavedModelAt) else model)
    if isinstance(local, TextClassifier):
        local.classifier_ = copy.copy(local.classifier_)
    local._inner.n_jobs = 1
    return local


def predict_block(X: Any, model: Any, method: str, options: dict[str, Any]) -> Any:
    """Return what a method of the model says of one partition of rows."""
    local, rows = _copy_of(model), make_part(X, None, None).X
    if len_of(rows) > 0:
        return methodcaller(method, rows, **options)(local)
    labels, k = local.classes_[:0], options.get("k", 0)
    if method == "predict":
        return labels
    if method == "predict_topk":
        return labels.reshape(0, 1).repeat(k, axis=1), np.empty((0, k), np.float32)
    return np.empty((0, len(local.classes_)))


def predict_bag(partition: Any, model: Any, method: str, options: dict[str, Any]) -> list[Any]:
    """Return predictions of a partition: one for each text, or one array for each block of rows."""
    given = list(partition)
    if not given or not (sparse.issparse(given[0]) or isinstance(given[0], np.ndarray)):
        found = predict_block(given, model, method, options)
        if isinstance(found, tuple):
            return list(zip(*found, strict=True))
        return found.tolist() if getattr(found, "ndim", 2) == 1 else list(found)
    return [predict_block(block, model, method, options) for block in given]


def lazily(
    X: Any, model: Any, method: str, options: dict[str, Any], columns: list[tuple[int | None, np.dtype[Any]]]
) -> Any:
    """Return the predictions of a collection: a bag of a bag, else a lazy array for each of `columns`.

    Parameters
    ----------
    model
        The delayed model, which every worker gets once.
    columns
        Width, None for one value per row, and type of each array that the method returns.
    """
    if is_bag(X):
        return X.map_partitions(predict_bag, model, method, options)
    da, delayed = import_module("dask.array"), import_module("dask").delayed
    parts = split_rows(X)
    work = delayed(predict_block, pure=False, nout=len(columns) if len(columns) > 1 else None)
    found, sizes, arrays = (
        [work(part, model, method, options) for part in parts],
        chunk_sizes(X, len(parts)),
        [],
    )
    for i, (width, kind) in enumerate(columns):
        tail = () if width is None else (width,)
        blocks = [
            da.from_delayed(each if len(columns) == 1 else each[i], (size, *tail), kind)
            for each, size in zip(found, sizes, strict=True)
        ]
        arrays.append(da.concatenate(blocks, allow_unknown_chunksizes=True))
    return arrays[0] if len(columns) == 1 else tuple(arrays)


def evaluate_part(part: Part, model: Any, method: str) -> tuple[float, float]:
    """Return a mean over a part, and the weight that it has in the mean over all."""
    n_rows = len_of(part.X)
    total = float(n_rows) if part.weight is None else float(np.sum(part.weight, dtype=np.float64))
    if n_rows == 0 or total == 0.0:
        return 0.0, 0.0
    return float(methodcaller(method, part.X, part.y, part.weight)(_copy_of(model))), total
