"""Weights stored where they are not zero, by feature.

The score of class y is ``sum_f x_f w_fy + |x|_1 l_y + b_y``, with ``|x|_1 = sum_f x_f``, plus
``z(x).v_y`` where the weights have a dense part: z(x) are the last columns of x, the same for every row
(embeddings beside words), or a projection of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.kernels import column_scores, sparse_scores
from extremax.kernels import postings as kernel
from extremax.kernels.column_scores import ColumnTable, RowParts
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.simd import TILE
from extremax.runtime.products import sparse_times_dense, square_sums
from extremax.runtime.scratch import aligned_empty
from extremax.runtime.threads import run, split
from extremax.scores.base import Buffers, RowTerms, SearchConfig, row_entries
from extremax.storage import checks
from extremax.storage.state import State, register
from extremax.types import Features, Float32, Float64, Int32, Int64

EMBEDDING = "(embedding)"  # the term of all dense columns beside sparse ones
_TASK_ROWS = 64  # rows whose pairs a thread scores at a time
_FEW_ROWS = 4
_TASK_FEATURES = 4096
_MAX_DENSE_BYTES = 4 << 30  # of weights that are unpacked on request


def _as_csr(X: Features) -> Any:
    return X if sparse.issparse(X) else sparse.csr_matrix(X)


def csr_rows(X: Features, n_dense: int = 0) -> CSRRows:
    """Return a CSR matrix as the kernels take it, without its last `n_dense` columns; an array is packed."""
    matrix = _as_csr(X)
    if n_dense:
        matrix = matrix[:, : matrix.shape[1] - n_dense]
    return _kernel_rows(matrix.data, matrix.indices, matrix.indptr)


def _row_range(X: Any, first: int, last: int) -> CSRRows:
    """Return some rows of a CSR matrix as the kernels take them; nothing else of it is copied."""
    start, stop = X.indptr[first], X.indptr[last]
    return _kernel_rows(X.data[start:stop], X.indices[start:stop], X.indptr[first : last + 1] - start)


def _kernel_rows(values: NDArray[Any], indices: NDArray[Any], offsets: NDArray[Any]) -> CSRRows:
    parts = ((values, np.float32), (indices, np.int32), (offsets, np.int64))
    # Writable: a read-only array is another type to numba, which would compile the kernel again.
    return CSRRows(*(np.require(array, dtype, ["C", "W"]) for array, dtype in parts))


@dataclass(frozen=True, eq=False)
class DensePart:
    """The part z(x).v_y of the scores.

    Attributes
    ----------
    factors : float32 (n_classes, n_projected + n_dense)
        v of each class.
    columns : int32 (n_columns,)
        Sparse columns that the projection reads, ascending.
    projection : float32 (n_columns, n_projected)
        From these to the first coordinates of z.
    n_dense : int
        Last columns of x that are explicit in every row: the other coordinates of z.
    unit_rows : bool
        Whether a row's entries in `columns` are scaled to unit length before the projection. Those of texts
        are not: a text of which the projection reads little would say as much by it as any other.
    """

    factors: Float32
    columns: Int32
    projection: Float32
    n_dense: int = 0
    unit_rows: bool = True

    @classmethod
    def of_columns(cls, factors: Float32, n_dense: int) -> DensePart:
        """Make the part of dense columns alone."""
        return cls(factors, np.empty(0, np.int32), np.empty((0, 0), np.float32), n_dense)

    def take(self, index: Int64) -> DensePart:
        """Return the part of some classes, in a given order."""
        return replace(self, factors=np.ascontiguousarray(self.factors[index]))

    def plus(self, factors: Float32) -> DensePart:
        """Return the part with new classes behind the others."""
        return replace(self, factors=np.concatenate([self.factors, factors.astype(np.float32)]))

    @property
    def n_projected(self) -> int:
        return int(self.projection.shape[1])

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return int(self.factors.nbytes + self.columns.nbytes + self.projection.nbytes)

    @property
    def header(self) -> dict[str, Any]:
        """What a model folder stores beside the arrays."""
        return {"n_dense": self.n_dense, "unit_rows": self.unit_rows}

    def _places(self, n_features: int) -> Int32:
        """Return the number of each feature among the columns; kept, as it takes longer than a short row."""
        found: Int32 | None = self.__dict__.get("_kept_places")
        if found is None or len(found) != n_features:
            found = _places(self.columns, n_features)
            self.__dict__["_kept_places"] = found
        return found

    def coordinates(self, X: Any) -> Float32:
        """Return z of some rows, (n_rows, n_projected + n_dense)."""
        parts = []
        if self.n_projected:
            chosen = _take_places(csr_rows(X), self._places(int(X.shape[1])), len(self.columns))
            parts.append(sparse_times_dense(unit_rows(chosen) if self.unit_rows else chosen, self.projection))
        if self.n_dense:
            parts.append(dense_columns(X, self.n_dense))
        return np.ascontiguousarray(np.hstack(parts) if len(parts) > 1 else parts[0])

    def project_columns(self, columns: Int32, values: Float64) -> Float64:
        """Return the projection of one unit of each of the columns of a row."""
        found = np.zeros((len(columns), self.n_projected))
        if self.n_projected and len(self.columns):
            at = np.minimum(np.searchsorted(self.columns, columns), len(self.columns) - 1)
            is_read = self.columns[at] == columns
            length = max(float(np.sqrt(np.square(values[is_read]).sum())), 1e-9) if self.unit_rows else 1.0
            found[is_read] = self.projection[at[is_read]] / length
        return found


def select_columns(rows: CSRRows, columns: NDArray[Any], n_features: int) -> Any:
    """Return a CSR matrix of some columns, in their order."""
    return _take_places(rows, _places(columns, n_features), len(columns))


def _places(columns: NDArray[Any], n_features: int) -> Int32:
    """Return the number of each feature among some columns, or -1."""
    place = np.full(n_features, -1, np.int32)
    place[columns] = np.arange(len(columns), dtype=np.int32)
    return place


def _take_places(rows: CSRRows, place: Int32, n_columns: int) -> Any:
    """Return a CSR matrix of the columns that have a place."""
    first, last = rows.indptr[0], rows.indptr[-1]
    columns = place[rows.indices[first:last]]
    kept = columns >= 0
    chosen = sparse.csr_matrix((len(rows.indptr) - 1, n_columns), dtype=np.float32)
    chosen.indices, chosen.data = columns[kept], rows.data[first:last][kept]
    chosen.indptr = running_counts(kept)[rows.indptr - first]
    return chosen


def running_counts(kept: NDArray[np.bool_]) -> Int64:
    """Return how many are kept before each place, and before the end."""
    return np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])


def _no_entries() -> tuple[Int32, Float32]:
    return np.empty(0, np.int32), np.empty(0, np.float32)


def no_postings(n_features: int) -> Postings:
    """Return weights that are all zero."""
    return Postings(np.zeros(n_features + 1, np.int64), *_no_entries())


def packed_kinds(n_classes: int) -> tuple[Any, Any]:
    """Return the types of classes and values of packed weights: three bytes each, or five of many classes."""
    return np.uint16 if n_classes <= 1 << 16 else np.int32, np.int8


def scaled_postings(postings: Postings, factor: float) -> Postings:
    """Return weights times a factor."""
    name = "steps" if len(postings.steps) else "values"
    return postings._replace(**{name: getattr(postings, name) * np.float32(factor)})


def some_postings(postings: Postings, first: int, last: int) -> Postings:
    """Return the weights of features `first` to before `last`."""
    offsets = postings.offsets[first : last + 1]
    part = slice(offsets[0], offsets[-1])
    steps = postings.steps[first:last]
    return Postings(offsets - offsets[0], postings.classes[part], postings.values[part], steps)


def _unpacked(postings: Postings) -> Float32:
    """Return all weights as float32."""
    if not len(postings.steps):
        return postings.values
    found: Float32 = np.repeat(postings.steps, np.diff(postings.offsets)) * postings.values
    return found


def transposed(matrix: Any) -> Postings:
    """Return a CSR matrix by column, or a CSC matrix by row."""
    n_inside = matrix.shape[1 if matrix.format == "csr" else 0]
    return transpose_entries(matrix.indptr, matrix.indices, matrix.data, n_inside)


def transpose_entries(offsets: Int64, indices: Int32, values: Float32, n: int) -> Postings:
    """Sort the entries of a compressed matrix by index; empty `values` are left out."""
    starts, lines = np.zeros(n + 1, np.int64), np.empty(len(indices), np.int32)
    found = np.empty(len(values), np.float32)
    kernel.transpose(offsets, indices, values, starts, lines, found)
    return Postings(starts, lines, found)


def _contributions(postings: Postings, mean: Float32) -> Float32:
    """Return the magnitude of each weight times the mean of its feature."""
    sizes: Float32 = np.abs(_unpacked(postings))
    sizes *= np.repeat(mean, np.diff(postings.offsets))
    return sizes


def prune_postings(
    postings: Postings,
    mean: Float32,
    threshold: float,
    n_threads: int = 1,
    kinds: tuple[Any, Any] | None = None,
) -> Postings:
    """Return postings without weights whose mean contribution to a score is below a threshold.

    `mean` is that of each feature over the rows that have it; `kinds`, where they change, are the types of
    classes and values.
    """
    if threshold <= 0.0 and kinds is None:
        return postings
    kinds = kinds or (postings.classes.dtype, postings.values.dtype)
    return add_postings(postings, no_postings(len(mean)), (mean, threshold), n_threads, kinds)


def add_postings(
    one: Postings,
    two: Postings,
    pruning: tuple[Float32, float] | None = None,
    n_threads: int = 1,
    kinds: tuple[Any, Any] = (np.int32, np.float32),
) -> Postings:
    """Return the sum of two sets of weights; what cancels out is not stored.

    With `pruning`, the mean of each feature and a threshold, small weights are left out as well. `kinds` are
    the types of classes and values: weights are packed where values are int8.
    """
    n_features = len(one.offsets) - 1
    mean, threshold = pruning or (np.ones(n_features, np.float32), 0.0)
    least = np.float32(threshold)
    ends, tasks = np.zeros(n_features + 1, np.int64), split(n_features, _TASK_FEATURES)
    steps = np.empty(n_features if kinds[1] == np.int8 else 0, np.float32)
    found: Any = [np.empty(0, kind) for kind in kinds]

    def join(i: int) -> None:
        kernel.join_postings(one, two, mean, least, ends, steps, found[0], found[1], *tasks[i])

    run(join, len(tasks), n_threads)
    np.cumsum(ends, out=ends)
    if (
        ends[-1] == len(one.values)
        and len(two.values) == 0
        and kinds == (one.classes.dtype, one.values.dtype)
    ):
        return one
    found = [np.empty(ends[-1], kind) for kind in kinds]
    if ends[-1]:
        run(join, len(tasks), n_threads)
    return Postings(ends, found[0], found[1], steps)


def unit_rows(X: Any) -> Any:
    """Scale the rows of a CSR matrix to unit length, in place; empty rows stay empty."""
    factor = (1.0 / np.sqrt(np.maximum(square_sums(X.indptr, X.data), 1e-18))).astype(np.float32)
    X.data = X.data * np.repeat(factor, np.diff(X.indptr))
    return X


def dense_columns(X: Any, n_dense: int) -> Float32:
    """Return the last columns of a CSR matrix, explicit in every row, as an array (n_rows, n_dense)."""
    first, last = X.shape[1] - n_dense, X.shape[1]
    at = X.indptr[1:, None].astype(np.int64) - np.arange(n_dense, 0, -1)
    is_explicit = (np.diff(X.indptr) >= n_dense).all() and (X.indices[at] == np.arange(first, last)).all()
    found: Float32 = X.data[at] if is_explicit else X[:, first:].toarray()
    return found


class SparseBlock:
    """Some rows of X, scored for all classes through postings."""

    def __init__(self, weights: SparseWeights, X: Features, first: int, last: int) -> None:
        self.weights, self.n_rows = weights, last - first
        self.z: Float32 | None = None
        if weights.dense is None and sparse.issparse(X):
            self.rows = _row_range(X, first, last)
            return
        block = _as_csr(X[first:last])
        self.rows = csr_rows(block, weights.n_dense)
        if weights.dense is not None:
            self.z = weights.dense.coordinates(block)

    def products(self, start: int, stop: int, buffers: Buffers, out: Float32) -> Float32:
        """Fill `out` with the scores, without biases, of classes `start` to before `stop`."""
        weights, n_classes = self.weights, self.weights.n_classes
        whole = start == 0 and stop == n_classes
        scores = out if whole else buffers.get("scores", self.n_rows, n_classes)
        lengths = weights.length_biases
        sparse_scores.score_rows(self.rows, 0, self.n_rows, weights.postings, lengths, scores)
        if self.z is not None and weights.dense is not None:
            if self.n_rows <= _FEW_ROWS:  # threads of BLAS take longer to wake than this takes
                sparse_scores.add_products(self.z, weights.dense.factors, scores)
            else:
                scores += self.z @ weights.dense.factors.T
        if not whole:
            out[...] = scores[:, start:stop]
        return out


class ColumnBlock:
    """Some rows of X, scored for all classes by columns and postings: any part by any thread."""

    def __init__(self, weights: SparseWeights, table: ColumnTable, X: Any, first: int, last: int) -> None:
        self.weights, self.table, self.n_rows = weights, table, last - first
        self.n_tiles = len(table.tiles)
        rows = _row_range(X, first, last) if sparse.issparse(X) else csr_rows(X[first:last])
        n_entries, n_ends = len(rows.data), self.n_rows + 1
        size = n_entries + self.n_rows * (1 + table.projection.shape[1])
        self.parts = RowParts(
            np.empty(n_ends, np.int64), np.empty(size, np.int32), np.empty(size, np.float32),
            np.empty(n_ends, np.int64), np.empty(n_entries, np.int64), np.empty(n_entries, np.int64),
            np.empty(n_entries, np.float32),
        )  # fmt: skip
        column_scores.list_parts(rows, table, weights.postings, self.parts)

    def sum_tiles(self, first: int, last: int, scores: Float32) -> None:
        """Fill tiles `first` to before `last` of the scores (n_rows, n_tiles * TILE)."""
        column_scores.sum_tiles(self.table, self.parts, first, last, scores)

    def find_best(
        self,
        first: int,
        tempering: tuple[float, float, float],
        scores: Float32,
        targets: Int32,
        line: Float32,
        result: Any,
    ) -> None:
        """Find the best classes of some rows from `first` on, whose tiles are filled; see the kernel.

        The arrays are those of these rows.
        """
        postings, classes = self.weights.postings, (self.table.labels, self.weights.biases)
        column_scores.find_best(
            postings, self.parts, first, classes, tempering, scores, targets, line, result
        )


@register("weights", "sparse")
@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Weights by feature: the classes that have a weight on it, and the weights.

    Attributes
    ----------
    postings
        The classes that have a weight on each feature, and the weights; those of a trained model are packed.
    biases, length_biases : float32 (n_classes,)
        b, and l, the factor of the sum of a row's entries.
    dense
        The part of the scores that is linear in dense coordinates of the row, or None.

    Examples
    --------
    >>> matrix = sparse.csc_matrix(np.array([[0.0, 2.0], [1.0, 0.0]], np.float32))  # classes x features
    >>> weights = SparseWeights.from_matrix(matrix, np.zeros(2, np.float32))
    >>> X, pairs = sparse.csr_matrix(np.array([[3.0, 1.0]], np.float32)), np.array([[0, 1]], np.int32)
    >>> weights.score_pairs(X, np.array([0]), pairs, 1).tolist()
    [[2.0, 3.0]]
    """

    postings: Postings
    biases: Float32
    length_biases: Float32
    dense: DensePart | None = None

    feature_scale = 1.0

    @classmethod
    def from_matrix(
        cls,
        matrix: Any,
        biases: Float32,
        length_biases: Float32 | None = None,
        dense: DensePart | None = None,
    ) -> SparseWeights:
        """Make weights from a sparse matrix (n_classes, n_features)."""
        lengths = np.zeros(matrix.shape[0], np.float32) if length_biases is None else length_biases
        if getattr(matrix, "format", "") == "csr" and matrix.dtype == np.float32:
            postings = transposed(matrix)
        else:
            columns = sparse.csc_matrix(matrix, dtype=np.float32)
            columns.sort_indices()
            postings = Postings(
                columns.indptr.astype(np.int64), columns.indices.astype(np.int32, copy=False), columns.data
            )
        return cls(postings, np.asarray(biases, np.float32), np.asarray(lengths, np.float32), dense)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy for another process needs: not the columns, which it makes itself."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept_columns"}

    @property
    def n_classes(self) -> int:
        return len(self.biases)

    @property
    def n_features(self) -> int:
        return len(self.postings.offsets) - 1 + self.n_dense

    @property
    def row_width(self) -> int:
        """Numbers in memory for each row of an open block: the scores of all classes."""
        return self.n_classes

    @property
    def n_dense(self) -> int:
        """Last columns of X that every row has."""
        return 0 if self.dense is None else self.dense.n_dense

    @property
    def n_entries(self) -> int:
        """Weights that are stored."""
        return len(self.postings.values)

    def open_block(self, X: Features, first: int, last: int) -> SparseBlock:
        """Prepare rows `first` to before `last` of X."""
        return SparseBlock(self, X, first, last)

    def column_table(self, config: SearchConfig) -> ColumnTable:
        """Return the columns that are added as arrays; made at the first call, and kept.

        The dense part is among them. Features on which more than ``column_fraction`` of the classes have a
        weight become columns, the longest first while all take no more than ``column_bytes``, and those of
        features no more than the postings do, or twice that where all classes are in half a tile.
        """
        limits = (config.column_fraction, config.column_bytes)
        kept = self.__dict__.get("_kept_columns")
        if kept is None or kept[0] != limits:
            kept = self.__dict__["_kept_columns"] = limits, _make_columns(self, *limits)
        table: ColumnTable = kept[1]
        return table

    def score_pairs(self, X: Features, row_index: Int64, classes: Int32, n_threads: int) -> Float32:
        """Return the scores of given classes of given rows; see `Weights.score_pairs`."""
        scores = np.empty(classes.shape, np.float32)
        rows, tasks = csr_rows(X, self.n_dense), split(len(classes), _TASK_ROWS)
        labels = np.require(classes, np.int32, ["C", "W"])
        biases = (self.biases, self.length_biases)

        def work(i: int) -> None:
            sparse_scores.score_row_pairs(rows, row_index, labels, self.postings, biases, scores, *tasks[i])

        run(work, len(tasks), n_threads)
        if self.dense is not None:
            z = self.dense.coordinates(_as_csr(X))
            for a, b in tasks:
                factors = self.dense.factors[classes[a:b]]
                scores[a:b] += np.einsum("ik,imk->im", z[row_index[a:b]], factors)
        return scores

    @cached_property
    def norms(self) -> Float64:
        """Length of each class's weight vector."""
        squares = np.zeros(self.n_classes)
        sparse_scores.sum_squares(self.postings, squares)
        if self.dense is not None:
            squares += np.square(self.dense.factors, dtype=np.float64).sum(axis=1)
        return np.sqrt(squares)

    def class_weights(self, label: int) -> tuple[Int32, Float32]:
        """Return the features on which a class has a weight, and the weights."""
        at = np.flatnonzero(self.postings.classes == label)
        features = (np.searchsorted(self.postings.offsets, at, side="right") - 1).astype(np.int32)
        return features, self.weights_at(at, features)

    def weights_at(self, at: NDArray[Any], features: NDArray[Any]) -> Float32:
        """Return some weights, and that of entries of these features."""
        _, _, values, steps = self.postings
        found: Float32 = values[at] * steps[features] if len(steps) else values[at]
        return found

    def _entries(self, columns: NDArray[Any]) -> tuple[Int64, Int64]:
        """Return the numbers of the weights on some sparse columns, and the place of the column of each."""
        first, last = self.postings.offsets[columns], self.postings.offsets[columns + 1]
        sizes = last - first
        place = np.repeat(np.arange(len(columns)), sizes)
        return np.arange(len(place)) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes), place

    def classes_above_zero(self, columns: NDArray[Any]) -> tuple[Int32, Int64]:
        """Return the classes with a positive weight on some sparse columns, and the place of the column."""
        entries, place = self._entries(columns)
        above = self.postings.values[entries] > 0
        return self.postings.classes[entries[above]].astype(np.int32, copy=False), place[above]

    def class_vectors(self) -> sparse.csr_matrix:
        """Return one row per class: its weights on sparse columns, then those of the dense part."""
        found = sparse.csr_matrix(self.to_matrix())
        if self.dense is not None:
            found = sparse.hstack([found, self.dense.factors], format="csr", dtype=np.float32)
        return found

    def column_maxima(self) -> tuple[Int64, Float32]:
        """Return the sparse columns that have weights, and the largest magnitude of these."""
        offsets, _, values, steps = self.postings
        used = np.flatnonzero(np.diff(offsets))
        greatest = np.maximum.reduceat(np.abs(values), offsets[used]) if len(used) else _no_entries()[1]
        return used, greatest * steps[used] if len(steps) else greatest

    def contributions(self, X: Features, classes: Int32) -> RowTerms:
        """Return what the sparse features of the only row of X add to the scores of some classes, each once.

        An embedding beside sparse columns is one term.
        """
        n_sparse, rows = self.n_features - self.n_dense, _as_csr(X)
        columns, values = row_entries(rows, n_sparse)
        entries, place = self._entries(columns)
        number = np.full(self.n_classes, -1)
        number[classes] = np.arange(len(classes))
        which = number[self.postings.classes[entries]]
        own = np.flatnonzero(which >= 0)
        pieces = np.zeros((len(columns), len(classes)))
        pieces[place[own], which[own]] = self.weights_at(entries[own], columns[place[own]])
        others = [("(class bias)", self.biases[classes].astype(np.float64))]
        if self.dense is not None:
            factors = self.dense.factors[classes].astype(np.float64)
            n_projected = self.dense.n_projected
            pieces += self.dense.project_columns(columns, values) @ factors[:, :n_projected].T
            if self.n_dense:
                embedding = rows[:, n_sparse:].toarray()[0].astype(np.float64)
                others.append((EMBEDDING, factors[:, n_projected:] @ embedding))
        length = values.sum() * self.length_biases[classes].astype(np.float64)
        return RowTerms(columns, pieces * values[:, None], [*others, ("(length of the row)", length)])

    def similarity(self, label: int) -> Float32:
        """Return the cosine between the weights of a class and those of each class."""
        features, values = self.class_weights(label)
        products = np.zeros((1, self.n_classes), np.float32)
        ends = np.array([0, len(features)], np.int64)
        no_lengths = np.zeros(self.n_classes, np.float32)
        sparse_scores.score_rows(CSRRows(values, features, ends), 0, 1, self.postings, no_lengths, products)
        total = products[0].astype(np.float64)
        if self.dense is not None:
            total += self.dense.factors @ self.dense.factors[label]
        scale = np.maximum(self.norms * self.norms[label], np.finfo(np.float32).tiny)
        return np.asarray(total / scale, np.float32)

    def to_dense(self) -> Float32:
        """Return all weights on sparse columns as one array (n_classes, n_columns), where they fit."""
        needed = 4 * self.n_classes * (len(self.postings.offsets) - 1)
        if needed > _MAX_DENSE_BYTES:
            raise ValueError(
                f"the weights as one array would take {needed / 2**30:.1f} GiB; read model_.weights.postings,"
                " which holds those that are not zero."
            )
        return np.asarray(self.to_matrix().toarray(), np.float32)

    def to_matrix(self) -> sparse.csc_matrix:
        """Return the weights as a sparse matrix (n_classes, n_columns); it shares memory if not packed."""
        return self._matrix(_unpacked(self.postings))

    def _matrix(self, values: NDArray[Any]) -> sparse.csc_matrix:
        shape = (self.n_classes, len(self.postings.offsets) - 1)
        matrix = sparse.csc_matrix(shape, dtype=values.dtype)
        matrix.indptr, matrix.data = self.postings.offsets, values
        matrix.indices = self.postings.classes.astype(np.int32, copy=False)
        return matrix

    def take(self, index: Int64) -> SparseWeights:
        """Return the weights of some classes, in a given order; packed ones stay packed, bit for bit."""
        matrix = self._matrix(self.postings.values).tocsr()[index].tocsc()
        offsets, steps, kind = matrix.indptr.astype(np.int64), self.postings.steps, np.int32
        if len(steps):
            # a step that no class needs any more would tell a weight of a removed class
            steps, kind = np.where(np.diff(offsets), steps, np.float32(1.0)), packed_kinds(len(index))[0]
        return SparseWeights(
            Postings(offsets, matrix.indices.astype(kind, copy=False), matrix.data, steps),
            self.biases[index],
            self.length_biases[index],
            None if self.dense is None else self.dense.take(index),
        )

    def plus(self, other: SparseWeights) -> SparseWeights:
        """Return the weights with those of new classes behind the others."""
        places = other.postings.classes.astype(np.int32) + np.int32(self.n_classes)
        shifted = other.postings._replace(classes=places)
        dense = self.dense
        if dense is not None:
            factors = np.zeros((other.n_classes, dense.factors.shape[1]), np.float32)
            dense = dense.plus(factors if other.dense is None else other.dense.factors)
        return SparseWeights(
            add_postings(self.postings, shifted),
            np.concatenate([self.biases, other.biases]),
            np.concatenate([self.length_biases, other.length_biases]),
            dense,
        )

    @property
    def nonlinear_part(self) -> str | None:
        """Say which part of the scores is not linear in the features, or not to be written out."""
        if self.dense is not None and self.dense.n_projected:
            return (
                "this model has no coef_ and intercept_: by its bilinear part, every class has a weight on"
                " every word. Read model_.weights for its parts."
            )
        needed = 8 * int(np.count_nonzero(self.length_biases)) * self.n_features
        if needed > _MAX_DENSE_BYTES:
            return (
                f"coef_ would take {needed / 2**30:.1f} GiB, because classes have a weight on the sum of a"
                " row, and so on every feature. Read model_.weights: to_matrix(), length_biases and biases."
            )
        return None

    def coefficients(self) -> tuple[sparse.csr_matrix, Float32]:
        """Return all factors of the features as one matrix, and the biases.

        A class with a weight on the sum of a row has a factor for every feature.
        """
        matrix = sparse.csr_matrix(self.to_matrix())
        sums = sparse.csr_matrix(self.length_biases[:, None])
        if sums.nnz:
            matrix = matrix + sums @ sparse.csr_matrix(np.ones((1, matrix.shape[1]), np.float32))
        if self.dense is not None:
            matrix = sparse.hstack([matrix, self.dense.factors], format="csr")
        return matrix, self.biases.copy()

    def pruned(self, feature_mean: Float32, threshold: float) -> SparseWeights:
        """Return the weights without those whose mean contribution to a score is below a threshold.

        `feature_mean` is the mean of each feature over the rows that have it.
        """
        kept = prune_postings(self.postings, feature_mean, threshold)
        return self if kept is self.postings else replace(self, postings=kept)

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (*self.postings, self.biases, self.length_biases)
        dense = 0 if self.dense is None else self.dense.n_bytes
        return dense + sum(int(array.nbytes) for array in arrays)

    def threshold_for(self, feature_mean: Float32, max_bytes: int) -> float:
        """Return the threshold of `pruned` that leaves at most so many bytes."""
        size = self.postings.classes.itemsize + self.postings.values.itemsize
        entries = max(0, (max_bytes - (self.n_bytes - size * self.n_entries)) // size)
        if entries >= self.n_entries:
            return 0.0
        contribution = _contributions(self.postings, feature_mean)
        if entries == 0:
            return float(np.nextafter(contribution.max(initial=0.0), np.float32(np.inf)))
        contribution.partition(self.n_entries - entries)
        return float(np.nextafter(contribution[self.n_entries - entries], np.float32(np.inf)))

    def state(self) -> State:
        """Return what a model folder stores."""
        arrays = {**self.postings._asdict(), "biases": self.biases, "length_biases": self.length_biases}
        if not self.postings.steps.size:
            del arrays["steps"]  # of packed values alone
        header: dict[str, Any] = {"kind": "sparse"}
        if self.dense is not None:
            names = ("factors", "columns", "projection")
            arrays |= {name: getattr(self.dense, name) for name in names}
            header |= self.dense.header
        return State(header, arrays)

    @classmethod
    def from_state(cls, state: State) -> SparseWeights:
        """Build the weights that `state` described, after a check that no index leads outside."""
        arrays = state.arrays
        types = ("i8", "i4 u2", "f4 i1")
        offsets, classes, values = (
            checks.get_array(arrays, name, kind, (None,))
            for name, kind in zip(Postings._fields, types, strict=False)
        )
        steps = np.empty(0, np.float32)
        if values.dtype == np.int8:
            steps = checks.get_array(arrays, "steps", "f4", (len(offsets) - 1,))
            checks.check_finite(steps, "steps")
        biases = checks.get_array(arrays, "biases", "f4", (None,))
        lengths = checks.get_array(arrays, "length_biases", "f4", (None,))
        rising = len(offsets) > 0 and offsets[0] == 0 and checks.is_rising(offsets)
        sound = rising and offsets[-1] == len(classes) == len(values)
        if sound and len(classes):
            sound = int(classes.min()) >= 0 and int(classes.max()) < len(biases)
            begins = np.zeros(len(classes) + 1, np.bool_)
            begins[offsets] = True
            # within a column the classes rise: one that is there twice would have two scores
            sound = sound and bool(((classes[1:] > classes[:-1]) | begins[1:-1]).all())
        if not sound or len(lengths) != len(biases) or len(biases) == 0:
            raise ModelFileError(
                "the sparse weights of the model do not fit together (offsets, classes, values);"
                " copy or save the model again."
            )
        dense = None
        if "factors" in arrays:
            dense = restore_dense(state, len(offsets) - 1)
        found = cls(Postings(offsets, classes, values, steps), biases, lengths, dense)
        if found.n_features == 0:
            checks.reject("the sparse weights have no features")
        return found


def _make_columns(weights: SparseWeights, min_fraction: float, max_bytes: int) -> ColumnTable:
    """Return the columns of weights that `SparseWeights.column_table` describes."""
    postings, dense, n_classes = weights.postings, weights.dense, weights.n_classes
    n_words, n_tiles = len(postings.offsets) - 1, -(-n_classes // TILE)
    fixed = [weights.length_biases, *(() if dense is None else dense.factors.T)]
    n_fixed, column_bytes = len(fixed), 4 * TILE * n_tiles
    # Padding to 32 classes counts, not that to a tile: small models keep the order of their sums.
    narrow_bytes = 4 * 32 * -(-n_classes // 32)
    n_most = max(0, min(max_bytes // column_bytes - n_fixed, 8 * weights.n_entries // narrow_bytes))
    lengths = np.diff(postings.offsets)
    frequent = np.flatnonzero(lengths > min_fraction * n_classes)
    longest = np.argsort(-lengths[frequent], kind="stable")[:n_most]
    frequent = np.sort(frequent[longest])
    n_columns = n_fixed + len(frequent)
    tiles = aligned_empty(n_tiles * n_columns * TILE).reshape(n_tiles, n_columns, TILE)
    tiles[...] = 0.0
    tile_of, lane = np.divmod(np.arange(n_classes), TILE)
    for column, values in enumerate(fixed):
        tiles[tile_of, column, lane] = values
    for column, f in enumerate(frequent, n_fixed):
        part = slice(*postings.offsets[f : f + 2])
        classes = postings.classes[part]
        at = np.arange(part.start, part.stop)
        tiles[tile_of[classes], column, lane[classes]] = weights.weights_at(at, np.full(len(at), f))
    place = np.full(weights.n_features, -1, np.int32)
    place[frequent] = n_fixed + np.arange(len(frequent), dtype=np.int32)
    line, projection = np.full(weights.n_features, -1, np.int32), np.zeros((0, 0), np.float32)
    unit_rows = False
    if dense is not None:
        place[n_words:] = n_fixed - dense.n_dense + np.arange(dense.n_dense, dtype=np.int32)
        line[dense.columns] = np.arange(len(dense.columns), dtype=np.int32)
        projection, unit_rows = np.require(dense.projection, np.float32, ["C", "W"]), dense.unit_rows
    labels = np.arange(n_classes, dtype=np.int32)
    return ColumnTable(labels, tiles, place, line, projection, n_words, unit_rows)


def restore_dense(state: State, n_sparse: int) -> DensePart:
    """Build a dense part from its header, its arrays and `biases`, after a check that they fit together."""
    arrays, n_dense = state.arrays, checks.get_int(state.header, "n_dense")
    unit = state.header.get("unit_rows", True)  # folders of earlier versions do not say
    if not isinstance(unit, bool):
        checks.reject(f"'unit_rows' is {checks.shown(unit)}")
    factors = checks.get_array(arrays, "factors", "f4", (None, None))
    columns = checks.get_array(arrays, "columns", "i4", (None,))
    projection = checks.get_array(arrays, "projection", "f4", (None, None))
    inside = len(columns) == 0 or (int(columns.min()) >= 0 and int(columns.max()) < n_sparse)
    inside = inside and bool((columns[1:] > columns[:-1]).all()) and projection.shape[1] + n_dense > 0
    fits = factors.shape == (len(arrays["biases"]), projection.shape[1] + n_dense)
    if not inside or not fits or len(projection) != len(columns):
        raise ModelFileError(
            "the dense part of the model's weights does not fit together (factors, columns, projection);"
            " copy or save the model again."
        )
    return DensePart(factors, columns, projection, n_dense, unit)


def restore_matrix(kind: Any, state: State, inside: str) -> Any:
    """Build a compressed matrix (`sparse.csr_matrix` or `csc_matrix`) of a training state from its arrays.

    `inside` is the name of the array of indices.
    """
    shape = checks.get_list(state.header, "shape", (int,))
    offsets = checks.get_array(state.arrays, "offsets", "i4 i8", (None,))
    indices = checks.get_array(state.arrays, inside, "i4 i8", (None,))
    values = checks.get_array(state.arrays, "values", "f4", (len(indices),))
    n_lines = shape[0 if kind is sparse.csr_matrix else 1] if len(shape) == 2 else -1
    if len(offsets) != n_lines + 1 or not all(0 <= n < 2**31 for n in shape):
        checks.reject(f"a matrix of the training state has the shape {checks.shown(shape)}")
    matrix = kind(tuple(shape), dtype=np.float32)
    matrix.indptr, matrix.indices, matrix.data = offsets, indices, values
    return matrix


def require_sound(matrices: Iterable[Any]) -> None:
    """Refuse compressed matrices of a training state whose indices lead outside."""
    if not all(map(_is_sound, matrices)):
        raise ModelFileError(
            "the training state of the model does not fit together (class sums, linear weights); copy or"
            " save the model again."
        )


def _is_sound(matrix: Any) -> bool:
    """Whether offsets rise and indices stay inside, for a compressed matrix put together from arrays."""
    offsets, indices = matrix.indptr, matrix.indices
    n_lines, n_inside = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    rising = len(offsets) == n_lines + 1 and offsets[0] == 0 and checks.is_rising(offsets)
    if not rising or not offsets[-1] == len(indices) == len(matrix.data):
        return False
    return len(indices) == 0 or (int(indices.min()) >= 0 and int(indices.max()) < n_inside)
