"""Rows that a user passes: Dask collections, rows in memory, a file or a folder of files.

They become parts: consecutive rows as one worker has them, which the worker of the fit joins.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from extremax.dask.executor import LostError, make_key
from extremax.data import load_dataset

_KINDS = {"U": "strings", "T": "strings", "O": "objects", "S": "bytes", "b": "booleans"}


@dataclass
class Part:
    """Consecutive rows, their labels and their weights; labels and weights may be None."""

    X: Any
    y: Any = None
    weight: Any = None

    def __sizeof__(self) -> int:
        """Return about how many bytes it takes, by which Dask writes data to disk in time."""
        return sum(map(_bytes_of, (self.X, self.y, self.weight)))

    def take_out(self) -> tuple[Any, Any, Any]:
        """Return rows, labels and weights, and keep none: the worker holds the part as long as the task."""
        if self.X is None:
            raise LostError("the rows of a part are with a worker that has left; call fit once more.")
        found = self.X, self.y, self.weight
        self.X = self.y = self.weight = None
        return found


def is_collection(X: Any) -> bool:
    """Whether these are rows of a Dask array, data frame or bag."""
    return bool(import_module("dask.base").is_dask_collection(X))


def is_array(X: Any) -> bool:
    """Whether a collection is a Dask array."""
    return isinstance(X, import_module("dask.array").Array)


def is_bag(X: Any) -> bool:
    """Whether a collection is a bag."""
    return isinstance(X, import_module("dask.bag").Bag)


def is_spread(X: Any) -> bool:
    """Whether workers read the rows: of a collection, a file or a folder."""
    return isinstance(X, str | os.PathLike) or is_collection(X)


def submit_parts(client: Any, X: Any, y: Any, weight: Any, name: str) -> list[Any]:
    """Return futures of the parts of some rows."""
    if is_spread(X):
        futures: list[Any] = client.compute(delay_parts(X, y, weight))
        return futures
    if is_collection(y) or is_collection(weight):
        raise TypeError(
            f"X is a {type(X).__name__}, and y or sample_weight a Dask collection; {name} takes both from"
            " Dask or both from memory."
        )
    found: list[Any] = client.scatter([Part(X, y, weight)], hash=False)
    return found


def delay_parts(X: Any, y: Any, weight: Any) -> list[Any]:
    """Return the parts of rows that workers read, as delayed objects."""
    delayed = import_module("dask").delayed
    if not is_collection(X):
        if y is not None or weight is not None:
            raise ValueError("X is a path, whose files hold the labels; leave y and sample_weight out.")
        read = delayed(read_file, pure=False)
        return [read(path, dask_key_name=make_key("read-file")) for path in list_files(X)]
    rows = split_rows(X)
    columns = [rows, _split_like(y, X, rows, "y"), _split_like(weight, X, rows, "sample_weight")]
    read = delayed(make_part, pure=False)
    return [read(*part, dask_key_name=make_key("read-part")) for part in zip(*columns, strict=True)]


def split_rows(X: Any, name: str = "X") -> list[Any]:
    """Return the partitions of a collection as delayed objects."""
    if is_array(X) and X.ndim == 2 and X.numblocks[1] != 1:
        raise ValueError(
            f"{name} is cut into {X.numblocks[1]} blocks of columns; every block needs all columns:"
            f" {name}.rechunk({{1: -1}})."
        )
    found = X.to_delayed()
    return list(found.ravel()) if isinstance(found, np.ndarray) else list(found)


def chunk_sizes(X: Any, n: int) -> list[float]:
    """Return the rows of each partition; not a number where they are not known."""
    return list(X.chunks[0]) if is_array(X) else [math.nan] * n


def _split_like(y: Any, X: Any, rows: list[Any], name: str) -> list[Any]:
    """Return the partitions of labels or weights that belong to those of X."""
    if y is None or isinstance(y, str):  # the name of a column of X
        return [None] * len(rows)
    if not is_collection(y):
        raise TypeError(f"{name} is a {type(y).__name__}, and X a Dask collection; make it one as well.")
    if is_array(X) and is_array(y) and not any(map(math.isnan, X.chunks[0] + y.chunks[0])):
        if y.shape[0] != X.shape[0]:
            raise ValueError(f"{name} has {y.shape[0]:,} values, but X has {X.shape[0]:,} rows.")
        if y.chunks[0] != X.chunks[0]:
            y = y.rechunk({0: X.chunks[0]})
    parts = split_rows(y, name)
    if len(parts) != len(rows):
        hint = " X.compute_chunk_sizes() finds unknown chunk sizes." if is_array(X) else ""
        raise ValueError(
            f"{name} has {len(parts)} blocks and X {len(rows)}; both need the same blocks of rows.{hint}"
        )
    return parts


def list_files(path: str | os.PathLike[str]) -> list[str]:
    """Return a file, or the files of a folder by name."""
    given = Path(os.path.abspath(path))  # workers may be in other folders
    if given.is_file():
        return [str(given)]
    if not given.is_dir():
        raise ValueError(f"X is {str(given)!r}, which is no folder and no file.")
    found = sorted(str(file) for file in given.iterdir() if file.is_file() and file.name[0] not in "._")
    if not found:
        raise ValueError(f"the folder {given} has no file.")
    return found


def read_file(path: str) -> Part:
    """Read the rows and labels of one file."""
    data = load_dataset(path)
    rows = data.X if data.texts is None else data.texts
    if rows is None or data.y is None:
        raise ValueError(f"{path} has no {'features' if rows is None else 'labels'}; every file needs both.")
    y = data.y
    if sparse.issparse(y):  # every file has columns of its own
        names = range(y.shape[1]) if data.label_names is None else data.label_names
        y = [[names[j] for j in y.indices[a:b].tolist()] for a, b in itertools.pairwise(y.indptr.tolist())]
    return Part(rows if isinstance(rows, list) or sparse.issparse(rows) else np.asarray(rows), y)


def make_part(X: Any, y: Any, weight: Any) -> Part:
    """Return the rows of one partition of each collection."""
    return Part(*(_flat(values) for values in (X, y, weight)))


def _flat(values: Any) -> Any:
    """Return a partition of a bag as a list of rows: its elements may be blocks of them."""
    if (
        isinstance(values, list)
        and values
        and (sparse.issparse(values[0]) or isinstance(values[0], np.ndarray))
    ):
        return join(values, "the partition")
    return values


def count_bytes(part: Part) -> int:
    """Return about how many bytes a part takes."""
    return part.__sizeof__()


def labels_of(part: Part, column: str | None) -> Any:
    """Return the distinct labels of a part; None where they are numbers of columns."""
    y = part.y if column is None else part.X[column]
    if y is None or sparse.issparse(y) or getattr(y, "ndim", 1) > 1:
        return None
    found: set[Any] = set()
    for label in y:
        found.update([label] if isinstance(label, str) or not isinstance(label, Iterable) else label)
    return sorted(found)


def _bytes_of(values: Any) -> int:
    if sparse.issparse(values):
        return int(values.data.nbytes + values.indices.nbytes + values.indptr.nbytes)
    if hasattr(values, "memory_usage"):  # of pandas
        return int(np.sum(values.memory_usage(deep=True)))
    if isinstance(values, list | tuple):
        return sum(60 + len(value) if isinstance(value, str) else 60 for value in values)
    return int(getattr(values, "nbytes", 0))


def join_parts(parts: list[Part]) -> tuple[Any, Any, Any]:
    """Return rows, labels and weights of consecutive parts in one piece; the parts are empty afterwards."""
    X, y, weight = zip(*(part.take_out() for part in parts), strict=True)
    return join(X, "X"), join(y, "y"), join(weight, "weight")


def join(blocks: Sequence[Any], name: str) -> Any:
    """Return blocks of rows, labels or weights as one; blocks of several kinds are refused."""
    first = blocks[0]
    if first is None or len(blocks) == 1:
        return first
    full = [block for block in blocks if len_of(block)] or blocks[:1]  # what a filter left empty has no type
    kinds = [_kind_of(block) for block in full]
    other = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if other is not None:
        raise ValueError(
            f"{name} has {kinds[0]} in one block and {kinds[other]} in another; all blocks need one kind:"
            f" {name}.astype(str), for example."
        )
    if sparse.issparse(first):
        _require_one_width(full, name)
        return sparse.vstack(full, format="csr")
    if hasattr(first, "iloc"):
        return import_module("pandas").concat(full)
    if isinstance(first, np.ndarray):
        if first.ndim > 1:
            _require_one_width(full, name)
        return np.concatenate(full)
    return list(itertools.chain.from_iterable(full))


def len_of(block: Any) -> int:
    """Return the number of rows."""
    return int(block.shape[0]) if hasattr(block, "shape") else len(block)


def _require_one_width(blocks: Sequence[Any], name: str) -> None:
    widths = {block.shape[1] for block in blocks}
    if len(widths) > 1:
        few, *_, many = sorted(widths)
        raise ValueError(f"{name} has blocks of {few} and of {many} columns; all need the same columns.")


def _kind_of(block: Any) -> str:
    """Return what a block holds, in words."""
    if sparse.issparse(block):
        return "sparse rows"
    if hasattr(block, "iloc"):
        return "a data frame"
    if not isinstance(block, np.ndarray):
        return "a list"
    if block.ndim > 1:
        return "dense rows"
    if block.dtype.kind == "O" and all(type(value) is str for value in block):
        return "strings"
    return _KINDS.get(block.dtype.kind, "numbers")
