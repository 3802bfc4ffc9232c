"""Rows that a user passes: Dask arrays, bags of sparse blocks, data frames, or a folder of files."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from extremax.dask import blocks as b
from extremax.dask.job import Job, import_delayed

_TAKES = "Dask arrays, bags of sparse blocks, Dask data frames, or a folder of .npz or Parquet files"


def submit_blocks(job: Job, X: Any, y: Any, sample_weight: Any) -> list[Any]:
    """Return futures of checked blocks of rows."""
    if isinstance(X, str | os.PathLike):
        if y is not None or sample_weight is not None:
            raise ValueError("X is a folder, whose files hold the labels; leave y and sample_weight out.")
        files = b.list_files(X)
        return [job.submit(b.read_file, path, i) for i, path in enumerate(files)]
    read = import_delayed()(b.read_block, pure=False)
    parts = zip(*split_all(X, y, sample_weight), strict=True)
    futures: list[Any] = job.client.compute([read(*part, i) for i, part in enumerate(parts)])
    return futures


def split_all(X: Any, y: Any, sample_weight: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the blocks of features, labels and weights (None without) as delayed objects."""
    parts = split_collection(X, "X")
    if y is None:
        raise ValueError("y is None; give the label of each row.")
    labels, weights = _split_like(y, X, len(parts), "y"), [None] * len(parts)
    if sample_weight is not None:
        weights = _split_like(sample_weight, X, len(parts), "sample_weight")
    return parts, labels, weights


def split_collection(X: Any, name: str) -> list[Any]:
    """Return the blocks of rows of a collection as delayed objects."""
    from dask.base import is_dask_collection

    if not is_dask_collection(X):
        raise TypeError(
            f"{name} is a {type(X).__name__}; DaskExtremeClassifier takes {_TAKES}. For rows in memory use"
            " ExtremeClassifier, or dask.array.from_array."
        )
    if is_array(X) and X.ndim == 2 and X.numblocks[1] != 1:
        raise ValueError(
            f"{name} is cut into {X.numblocks[1]} blocks of columns; every block needs all columns:"
            f" {name}.rechunk({{1: -1}})."
        )
    n_needed, what = (2, "rows and features") if name == "X" else (1, "one value per row")
    if is_array(X) and X.ndim != n_needed:
        raise ValueError(f"{name} has {X.ndim} dimensions where {n_needed} are needed: {what}.")
    found = X.to_delayed()
    return list(found.ravel()) if isinstance(found, np.ndarray) else list(found)


def is_array(X: Any) -> bool:
    """Whether a collection is a Dask array, and no bag or data frame."""
    import dask.array as da

    return isinstance(X, da.Array)


def has_unknown_chunks(X: Any) -> bool:
    """Whether the numbers of rows of the blocks are not known."""
    return not is_array(X) or any(math.isnan(size) for size in X.chunks[0])


def _split_like(y: Any, X: Any, n_blocks: int, name: str) -> list[Any]:
    """Return the blocks of labels or weights that belong to those of X."""
    arrays = is_array(y) and is_array(X) and y.ndim == 1
    if arrays and not has_unknown_chunks(X) and not has_unknown_chunks(y):
        if y.shape[0] != X.shape[0]:
            raise ValueError(f"{name} has {y.shape[0]:,} values, but X has {X.shape[0]:,} rows.")
        if y.chunks[0] != X.chunks[0]:
            y = y.rechunk((X.chunks[0],))
    parts = split_collection(y, name)
    if len(parts) != n_blocks:
        unknown = has_unknown_chunks(X) or has_unknown_chunks(y)
        hint = " X.compute_chunk_sizes() finds unknown chunk sizes." if unknown else ""
        raise ValueError(
            f"{name} has {len(parts)} blocks and X {n_blocks}; both need the same blocks of rows.{hint}"
        )
    return parts


def check_infos(infos: list[b.BlockInfo]) -> None:
    """Refuse blocks that do not fit together."""
    first = infos[0]
    for i, info in enumerate(infos[1:], 1):
        if info.n_features != first.n_features:
            raise ValueError(
                f"block {i} of X has {info.n_features} features, but block 0 has {first.n_features}; all"
                " blocks need the same columns."
            )
        if (info.n_entries is None) != (first.n_entries is None):
            kinds = ["dense" if each.n_entries is None else "sparse" for each in (first, info)]
            raise ValueError(
                f"block {i} of X is {kinds[1]}, but block 0 is {kinds[0]}; make all blocks of one kind."
            )
        if info.label_type != first.label_type:
            raise ValueError(
                f"y has {first.label_type} in block 0 and {info.label_type} in block {i}; labels must be of"
                " one type: y.astype(str), for example."
            )


def group_blocks(sizes: list[int], n_groups: int) -> list[list[int]]:
    """Return consecutive blocks in groups of about the same number of rows.

    Examples
    --------
    >>> group_blocks([5, 5, 5, 5, 20], 2)
    [[0, 1, 2, 3], [4]]
    """
    if len(sizes) <= n_groups:
        return [[i] for i in range(len(sizes))]
    wanted, groups, done = sum(sizes) / n_groups, [[0]], sizes[0]
    for i, size in enumerate(sizes[1:], 1):
        if done + size / 2 > wanted * len(groups) and len(groups) < n_groups:
            groups.append([])
        groups[-1].append(i)
        done += size
    return groups
