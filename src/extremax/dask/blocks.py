"""Blocks of rows as tasks see them: read, checked, described, and summed as one machine sums all rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.data import load_dataset
from extremax.types import Features, Float32, Int32, Int64
from extremax.validation.features import check_features
from extremax.validation.labels import LabelIndex, flat_labels, unique_labels
from extremax.validation.sample_weight import check_sample_weight

FILE_ENDINGS = (".npz", ".parquet")
_PAIRWISE_LEAF = 1 << 16  # numbers whose sum one task computes; numpy's own sums split in the same places
_NAME = "DaskExtremeClassifier"


class Block(NamedTuple):
    """Consecutive rows: checked features, labels as given, and weights or None."""

    X: Features
    labels: Any
    weight: Float32 | None


class BlockInfo(NamedTuple):
    """What the client is told of a block."""

    n_rows: int
    n_features: int
    n_entries: int | None  # stored entries of sparse features; None for dense ones
    label_type: str
    has_weight: bool


# -- reading


def read_block(X: Any, y: Any, weight: Any, number: int) -> Block:
    """Check the rows of one block of a collection; error messages name the block."""
    return _in_block(f"block {number} of X and y", lambda: _check_block(X, y, weight))


def read_file(path: str, number: int) -> Block:
    """Read the rows and labels of one file."""

    def read() -> Block:
        data = load_dataset(path)
        if data.X is None or data.y is None:
            missing = "features" if data.X is None else "labels"
            raise ValueError(f"the file has no {missing}; every file needs features X and labels y.")
        if data.multilabel:
            raise ValueError("the file has rows with several labels; reduce them to one per row.")
        return _check_block(np.asarray(data.X) if not sparse.issparse(data.X) else data.X, data.y, None)

    return _in_block(path, read)


def list_files(folder: str | os.PathLike[str]) -> list[str]:
    """Return the data files of a folder, by name."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"X is {str(path)!r}, which is no folder; give a folder of .npz or Parquet files.")
    found = sorted(str(file) for file in path.iterdir() if file.suffix in FILE_ENDINGS)
    if not found:
        raise ValueError(f"the folder {path} has no file that ends in {' or '.join(FILE_ENDINGS)}.")
    return found


def _check_block(X: Any, y: Any, weight: Any) -> Block:
    features = check_features(one_matrix(X), estimator_name=_NAME)
    if not sparse.issparse(features):
        features = np.asarray(features)
    values = flat_labels(one_vector(y), features.shape[0], "y", _NAME)
    labels = values if isinstance(values, np.ndarray) else _object_array(values)
    checked = None
    if weight is not None:
        checked = check_sample_weight(np.asarray(one_vector(weight)), features.shape[0])
    if checked is not None and not (checked > 0.0).all():
        raise ValueError("sample_weight is zero for some rows; leave these rows out.")
    return Block(features, labels, checked)


def one_matrix(X: Any) -> Any:
    """Return a block as one matrix: a partition of a bag is a list of matrices."""
    if not isinstance(X, list):
        return X
    if not X:
        raise ValueError("the partition of X is empty; every partition needs at least one matrix of rows.")
    if all(sparse.issparse(part) for part in X):
        return sparse.vstack(X, format="csr")
    return np.concatenate([np.atleast_2d(np.asarray(part)) for part in X])


def one_vector(y: Any) -> Any:
    """Return labels of a block as one sequence: a partition of a bag is a list of labels or of arrays."""
    if isinstance(y, list) and y and all(isinstance(part, np.ndarray | list) for part in y):
        return np.concatenate([np.asarray(part) for part in y])
    return np.asarray(y) if hasattr(y, "to_numpy") else y


def _object_array(values: Sequence[Any]) -> NDArray[Any]:
    kinds = set(map(type, values))
    if len(kinds) == 1 and issubclass(next(iter(kinds)), str | int | float):
        return np.array(values)
    return np.fromiter(values, dtype=object, count=len(values))


def _in_block(where: str, work: Callable[[], Block]) -> Block:
    try:
        return work()
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{where}: {error}") from None


def describe(block: Block) -> BlockInfo:
    """Return the shape of a block and the type of its labels."""
    X: Any = block.X
    n_entries = int(X.nnz) if sparse.issparse(X) else None
    kind = block.labels.dtype.kind
    label_type = {"U": "strings", "T": "strings", "O": "objects", "S": "bytes", "b": "booleans"}.get(kind)
    if kind == "O" and all(type(label) is str for label in block.labels):
        label_type = "strings"
    if label_type is None:
        label_type = "numbers" if kind in "iuf" else "dates"
    return BlockInfo(int(X.shape[0]), int(X.shape[1]), n_entries, label_type, block.weight is not None)


def merge_blocks(*blocks: Block) -> Block:
    """Return consecutive blocks as one."""
    weight = None
    if blocks[0].weight is not None:
        weight = np.concatenate([block.weight for block in blocks])
    labels = np.concatenate([block.labels for block in blocks])
    return Block(stack_rows(*(block.X for block in blocks)), labels, weight)


def stack_rows(*parts: Any) -> Any:
    """Return matrices, or arrays, as one."""
    if len(parts) == 1:
        return parts[0]
    if sparse.issparse(parts[0]):
        stacked = sparse.vstack(parts, format="csr")
        stacked.has_canonical_format = True
        return stacked
    return np.concatenate(parts)


def features_of(block: Block) -> Features:
    return block.X


# -- labels


def distinct_labels(block: Block) -> NDArray[Any]:
    """Return the labels of a block, each once."""
    return unique_labels(block.labels, "y")[0]


def join_labels(*parts: NDArray[Any]) -> NDArray[Any]:
    """Return the labels of all blocks, as those of one array of all rows."""
    return unique_labels(np.concatenate(parts), "y")[0]


def encode(block: Block, classes: NDArray[Any]) -> Int32:
    """Return the class of each row."""
    return LabelIndex(classes).lookup(block.labels)


# -- rows


def take_rows(X: Features, rows: Int64) -> Any:
    """Return some rows of a block."""
    return X[rows]


def split_places(places: Int64, edges: Int64) -> list[Int64]:
    """Return sorted numbers of rows by block, each counted from the first row of its block.

    Examples
    --------
    >>> [part.tolist() for part in split_places(np.array([0, 4, 5]), np.array([0, 5, 9]))]
    [[0, 4], [0]]
    """
    ends = np.searchsorted(places, edges)
    return [places[a:b] - first for a, b, first in zip(ends, ends[1:], edges, strict=False)]


# -- sums in the order of one machine


class Partials(NamedTuple):
    """Results of `work` on whole stretches inside a block, and the ends of stretches that it shares."""

    values: dict[int, Any]
    ends: list[tuple[int, tuple[Any, ...]]]


def work_on_stretches(first: int, arrays: tuple[Any, ...], cuts: Int64, work: Callable[..., Any]) -> Partials:
    """Apply `work` to those stretches between `cuts` that lie in a block which begins at `first`.

    `arrays` are parallel and hold the lines of the block; stretches that go on in other blocks are left to
    `complete`.
    """
    last = first + len(arrays[0])
    found = Partials({}, [])
    start = int(np.searchsorted(cuts, first, side="right")) - 1
    for i in range(start, len(cuts) - 1):
        low, high = int(cuts[i]), int(cuts[i + 1])
        if low >= last:
            break
        part = tuple(array[max(low, first) - first : min(high, last) - first] for array in arrays)
        if first <= low and high <= last:
            found.values[i] = work(*part)
        elif len(part[0]):
            found.ends.append((i, tuple(np.array(lines) for lines in part)))
    return found


def complete(parts: Iterable[Partials], work: Callable[..., Any]) -> list[Any]:
    """Return the results of all stretches, in order; `parts` come in the order of the blocks."""
    values: dict[int, Any] = {}
    ends: dict[int, list[tuple[Any, ...]]] = {}
    for part in parts:
        values |= part.values
        for i, lines in part.ends:
            ends.setdefault(i, []).append(lines)
    for i, pieces in ends.items():
        values[i] = work(*(np.concatenate(lines) for lines in zip(*pieces, strict=True)))
    return [values[i] for i in sorted(values)]


def even_cuts(n: int, size: int) -> Int64:
    """Return where stretches of `size` lines begin, and n."""
    return np.append(np.arange(0, n, size, dtype=np.int64), n)


def pairwise_cuts(n: int) -> Int64:
    """Return where numpy's sum of n numbers in a row is split, down to stretches of some ten thousand."""
    cuts: list[int] = []

    def visit(start: int, size: int) -> None:
        if size <= _PAIRWISE_LEAF:
            cuts.append(start)
        else:
            half = _half(size)
            visit(start, half)
            visit(start + half, size - half)

    visit(0, n)
    return np.array([*cuts, n], np.int64)


def pairwise_total(sums: Sequence[float], n: int) -> float:
    """Return ``np.sum`` of n numbers from the sums of the stretches of `pairwise_cuts`.

    Examples
    --------
    >>> x = np.random.default_rng(0).random(1_000_000)
    >>> cuts = pairwise_cuts(len(x))
    >>> sums = [float(x[a:b].sum()) for a, b in zip(cuts, cuts[1:])]
    >>> pairwise_total(sums, len(x)) == float(x.sum())
    True
    """
    left = iter(sums)

    def total(size: int) -> float:
        if size <= _PAIRWISE_LEAF:
            return next(left)
        half = _half(size)
        first = total(half)
        return first + total(size - half)

    return total(n)


def _half(size: int) -> int:
    half = size // 2
    return half - half % 8


def sum_squares(values: Any) -> float:
    """Return the sum of squares, in float64."""
    return float(np.square(values, dtype=np.float64).sum())
