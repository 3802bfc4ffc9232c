"""The layout of the columns of X, and labelled rows: pairs of a row and one of its classes, with weights.

With one label per row, pair i is row i and `row_index` is None.  Rows with several labels are indexed by
their pairs; X is never copied per pair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.types import Bool, Features, Float32, Int32, Int64

if TYPE_CHECKING:
    from extremax.features.scaling import LargeColumns

# of the texts of a kind, which may be rows of other classes: that of library titles that equal a subject is
# 0.001, that of names of diagnoses 0.6
_MOST_CONTRADICTED = 0.1


@dataclass(frozen=True)
class FeatureLayout:
    """Layout of the columns of X.

    Attributes
    ----------
    n_columns
        All columns.
    n_dense
        Columns at the end that are dense: those of an embedding.
    groups
        First columns of groups of n-grams, words and runs of words; those before are of characters. Empty
        where rows are not those of texts.
    scaling
        Sparse columns that are far larger than others, which are scaled down; None where there are none.
    """

    n_columns: int
    n_dense: int = 0
    groups: tuple[int, ...] = ()
    scaling: LargeColumns | None = None

    @property
    def n_sparse(self) -> int:
        """Columns without those of an embedding."""
        return self.n_columns - self.n_dense

    @property
    def is_text(self) -> bool:
        """Whether the columns are n-grams of texts."""
        return len(self.groups) > 0

    @property
    def first_word(self) -> int:
        """The first column that is a word; 0 where rows are not those of texts."""
        return self.groups[0] if self.groups else 0


@dataclass(frozen=True)
class Examples:
    """Pairs of a row of X and a class.

    Attributes
    ----------
    X : (n_rows, n_features)
        Features; no columns where only labels matter.
    y : int32 (n_pairs,)
        Class of each pair; -1 for a label that is not among the known classes, where that is allowed.
    row_index : int64 (n_pairs,) or None
        Row of X of each pair, ascending, and within a row by class; None where pair i is row i.
    weight : float32 (n_pairs,) or None
        Weight of each pair; None means one.
    n_ordinary : int or None
        Rows from this one on are texts of the classes: they are trained on, and never held out or left out
        of their class. None means that there are none.
    """

    X: Features
    y: Int32
    row_index: Int64 | None = None
    weight: Float32 | None = None
    n_ordinary: int | None = None

    @classmethod
    def labels_only(cls, y: Int32, n_rows: int, row_index: Int64 | None = None) -> Examples:
        """Make examples without features; `with_features` adds them."""
        return cls(np.empty((n_rows, 0), np.float32), y, row_index)

    def with_features(self, X: Features) -> Examples:
        """Return the same pairs of the rows of X."""
        return replace(self, X=X)

    def with_row_weight(self, weight: Float32 | None) -> Examples:
        """Return the same pairs, each with the weight of its row."""
        if weight is None or self.row_index is None:
            return replace(self, weight=weight)
        return replace(self, weight=weight[self.row_index])

    def with_class_weight(self, weight: Float32) -> Examples:
        """Return the same pairs, their weights multiplied by those of their classes."""
        factor = np.where(self.y < 0, np.float32(1.0), weight[self.y])
        return replace(self, weight=factor if self.weight is None else self.weight * factor)

    @property
    def n_rows(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_pairs(self) -> int:
        return len(self.y)

    @property
    def rows(self) -> Int64:
        """Row of each pair, as an array in any case."""
        return np.arange(self.n_pairs, dtype=np.int64) if self.row_index is None else self.row_index

    def rows_of(self, pairs: Int64) -> Int64:
        """Return the rows of some pairs."""
        return pairs if self.row_index is None else self.row_index[pairs]

    def ordinary(self) -> Examples:
        """Return the pairs of all rows but the texts of the classes."""
        return self if self.n_ordinary is None else self.take(self.rows < self.n_ordinary)

    def with_class_texts(self, y: Int32, kinds: Int32, weight: float, n_sparse: int) -> Examples:
        """Return the pairs together with the last rows of X, which are texts of the classes y.

        `weight` is theirs, in that of a mean pair of the other rows. A text that is also a row of another
        class is left out. So are all texts of a kind of which this is true for more than a tenth, and more
        often than not, but for classes without a row. Where there are such classes, those of a single row
        keep their texts too: held out, it tells how probable a class without a row is. Rows are compared by
        their first `n_sparse` columns.
        """
        first = self.n_rows - len(y)
        usual = float(self.pair_weight.mean(dtype=np.float64)) if self.n_pairs else 1.0
        rows = np.arange(first, self.n_rows)
        n_rows_of = np.bincount(self.y, minlength=int(y.max(initial=-1)) + 1)[y]
        is_row, agrees = self._find_rows(rows, y, n_sparse)
        n_texts, n_rows, n_agree = (np.bincount(kinds, weights=w) for w in (None, is_row, agrees))
        distrusted = n_rows - n_agree > np.maximum(n_agree, _MOST_CONTRADICTED * n_texts)
        kept = ~distrusted[kinds] & ~(is_row & ~agrees)
        kept |= n_rows_of <= int((n_rows_of == 0).any())
        weights = np.concatenate([self.pair_weight, np.full(int(kept.sum()), weight * usual, np.float32)])
        both = np.concatenate([self.rows, rows[kept]])
        return Examples(self.X, np.concatenate([self.y, y[kept]]), both, weights, first)

    def _find_rows(self, rows: Int64, y: Int32, n_sparse: int) -> tuple[Bool, Bool]:
        """Return whether rows without a pair equal one of a pair, and whether one of the class y."""
        if not n_sparse or not sparse.issparse(self.X) or not self.n_pairs:
            none = np.zeros(len(rows), bool)
            return none, none
        factors = np.random.default_rng(0).standard_normal((self.X.shape[1], 2), np.float32)
        factors[n_sparse:] = 0.0
        key = np.ascontiguousarray(self.X @ factors, np.float32).view(np.int64)[
            :, 0
        ]  # of equal rows the same
        known, group = np.unique(key[self.rows], return_inverse=True)
        at = np.minimum(np.searchsorted(known, key[rows]), len(known) - 1)
        is_row = known[at] == key[rows]
        n_classes = 1 + int(max(y.max(initial=0), self.y.max()))
        return is_row, is_row & np.isin(at * n_classes + y, group * n_classes + self.y)

    def expand(self, per_row: Float32) -> Float32:
        """Return an array with one line per pair from one with a line per row."""
        return per_row if self.row_index is None else per_row[self.row_index]

    @cached_property
    def pair_weight(self) -> Float32:
        """Weight of each pair, as an array in any case."""
        return np.ones(self.n_pairs, np.float32) if self.weight is None else self.weight

    @property
    def labels_per_row(self) -> Int64:
        return np.bincount(self.rows, minlength=self.n_rows).astype(np.int64)

    @property
    def n_unlabelled(self) -> int:
        """Rows without any label."""
        return 0 if self.row_index is None else int((self.labels_per_row == 0).sum())

    @cached_property
    def has_several_labels(self) -> bool:
        """Whether rows with a label have several of them more than now and then."""
        return self.label_edges is not None and self.n_pairs > 1.05 * int((self.labels_per_row > 0).sum())

    @cached_property
    def label_edges(self) -> Int64 | None:
        """Where the pairs of each row begin and end; None if no row has several."""
        index = self.row_index
        if index is None or not np.any(index[1:] == index[:-1]):
            return None
        return np.searchsorted(index, np.arange(self.n_rows + 1))

    def class_counts(self, n_classes: int, *, weighted: bool = False) -> NDArray[Any]:
        """Return the pairs of each class, or their summed weight."""
        return np.bincount(self.y, weights=self.weight if weighted else None, minlength=n_classes)

    def take(self, kept: Bool) -> Examples:
        """Return the marked pairs; X stays as it is."""
        if kept.all():
            return self
        index = np.flatnonzero(kept) if self.row_index is None else self.row_index[kept]
        weight = None if self.weight is None else self.weight[kept]
        return Examples(self.X, self.y[kept], index, weight, self.n_ordinary)

    def usable(self) -> Examples:
        """Return the pairs of known classes that have a weight above zero."""
        kept = self.y >= 0
        return self.take(kept if self.weight is None else kept & (self.weight > 0.0))

    def compact(self) -> Examples:
        """Return the same pairs without the features of rows that have none: prediction goes through all
        rows of X.
        """
        if self.row_index is None:
            return self
        used, rows = np.unique(self.row_index, return_inverse=True)
        if len(used) == self.n_rows:
            return self
        return Examples(
            self.X[used], self.y, None if len(used) == len(rows) else rows.astype(np.int64), self.weight
        )

    def sample_rows(self, n_rows: int) -> Examples:
        """Return the pairs of `n_rows` random rows, or all pairs if there are fewer rows."""
        chosen = np.zeros(self.n_rows, bool)
        chosen[np.random.default_rng(0).permutation(self.n_rows)[:n_rows]] = True
        return self.take(chosen[self.rows]).compact()

    def dense(self) -> Examples:
        """Return the same pairs with sparse rows unpacked."""
        X = self.X
        return replace(self, X=X.toarray()) if sparse.issparse(X) else self  # type: ignore[union-attr]

    def holdout(self, fraction: float, seed: int) -> tuple[Examples, Examples]:
        """Split off a fraction of the rows for validation: whole rows, never the last one of a class, no
        copy of X.
        """
        if self.row_index is None:
            _, held_out = split_rows(self.y, fractions=(fraction,), seed=seed)
            kept = np.ones(self.n_pairs, bool)
            kept[held_out] = False
        else:
            offsets = np.searchsorted(self.row_index, np.arange(self.n_rows + 1))
            matrix = sparse.csr_array((np.ones(self.n_pairs, np.int8), self.y, offsets))
            _, held_out = split_rows(matrix, fractions=(fraction,), seed=seed)
            held_out = held_out[held_out < (self.n_ordinary or self.n_rows)]
            kept = ~np.isin(self.row_index, held_out)
        if len(held_out) == 0:
            raise ValueError(
                f"validation_fraction is {fraction}, but no row can be kept back: each class needs one to"
                " train on. Give an eval_set or more rows."
            )
        return self.take(kept), replace(self.take(~kept), weight=None)

    def set_aside(self, n_rows: int, seed: int) -> tuple[Examples, Examples]:
        """Split off some random rows for calibration: never the last row of a class, no copy of X for the
        others.
        """
        if n_rows < 1:
            raise ValueError(f"n_rows is {n_rows}; set at least one row aside.")
        rows = self.rows
        offsets = np.searchsorted(rows, np.arange(self.n_rows + 1))
        left = np.bincount(self.y)  # a text of its own leaves a class known
        aside = np.zeros(self.n_rows, bool)
        for row in np.random.default_rng((seed, 4)).permutation(self.n_ordinary or self.n_rows):
            labels = self.y[offsets[row] : offsets[row + 1]]
            if len(labels) and (left[labels] > 1).all():
                left[labels] -= 1
                aside[row] = True
                n_rows -= 1
                if n_rows == 0:
                    break
        return self._pairs(~aside[rows]), self._pairs(aside[rows]).compact()

    def folds(self, n_folds: int, seed: int) -> Iterator[tuple[Examples, Examples]]:
        """Divide rows of one label each; yield those of all folds but one, and the rows of that one.

        The rows of a class go to the folds in turn; a class with one row is left out by none.
        """
        order = np.random.default_rng((seed, 4)).permutation(self.n_pairs)
        order = order[np.argsort(self.y[order], kind="stable")]
        _, first, size = np.unique(self.y[order], return_index=True, return_counts=True)
        fold = np.empty(self.n_pairs, np.int64)
        fold[order] = np.arange(self.n_pairs) % n_folds
        fold[order[first[size == 1]]] = -1
        if self.n_ordinary is not None:
            fold[self.rows >= self.n_ordinary] = -1
        for number in range(n_folds):
            yield self._pairs(fold != number), self._pairs(fold == number).compact()

    def _pairs(self, chosen: Bool) -> Examples:
        weight = None if self.weight is None else self.weight[chosen]
        return Examples(self.X, self.y[chosen], self.rows[chosen], weight, self.n_ordinary)


def mix_rows(data: Examples, n_rows: int) -> Examples:
    """Return some rows that are each the sum of two random ones, over sqrt(2), with the label of the first.

    Examples
    --------
    >>> X = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    >>> mixed = mix_rows(Examples(X, np.array([5, 6, 7], np.int32)), 2)
    >>> (mixed.X.toarray() > 0.7).astype(int).tolist(), mixed.y.tolist()
    ([[0, 1, 1], [1, 0, 1]], [7, 5])
    """
    order = np.random.default_rng(0).permutation(data.n_pairs)
    first, second = order[:n_rows], np.roll(order, 1)[:n_rows]
    X: Any = data.X
    mixed = (X[data.rows[first]] + X[data.rows[second]]) * np.float32(np.sqrt(0.5))
    return Examples(mixed, data.y[first])


def split_rows(
    y: Any, *, fractions: tuple[float, ...] = (0.1,), seed: int = 0, keep_classes: bool = True
) -> tuple[NDArray[np.int64], ...]:
    """Row numbers for training, then for each fraction held out, at random.

    Parameters
    ----------
    y : (n_samples,) array, CSR indicator matrix (n_samples, n_labels), or int
        Labels, or the number of rows if `keep_classes` is False.
    fractions : tuple of float
        Share of each held-out part, for example ``(0.1, 0.1)`` for validation and test.
    seed : int
        Seed of the choice.
    keep_classes : bool
        Keep one row of every class, chosen at random, in training: rows of an unseen class say nothing about
        a model. The held-out parts are then smaller than asked for where most classes have one row.

    Returns
    -------
    tuple of int64 arrays
        Sorted row numbers: training first, then one array per fraction.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax.data import split_rows
    >>> train, valid = split_rows(np.array([0, 0, 0, 0, 1, 2, 2, 2]), fractions=(0.25,))
    >>> len(train), len(valid)
    (6, 2)
    """
    if any(fraction < 0 for fraction in fractions) or sum(fractions) >= 1:
        raise ValueError(f"fractions are {fractions}; they must be >= 0 and leave something for training.")
    several = sparse.issparse(y)
    n_samples = int(y.shape[0]) if several else int(y) if np.ndim(y) == 0 else len(y)
    order = np.random.default_rng(seed).permutation(n_samples)
    if keep_classes and several:
        # In random order, the first row with each label stays; of the others those with any label are free.
        if y.format in ("csr", "csc", "bsr"):
            y.check_format(full_check=True)  # a conversion follows indices wherever they lead
        shuffled = sparse.csr_array(y)[order]
        shuffled.eliminate_zeros()
        free = np.diff(shuffled.indptr) > 0
        _, first = np.unique(shuffled.indices, return_index=True)
        free[np.searchsorted(shuffled.indptr, first, side="right") - 1] = False
        order = order[free]
    elif keep_classes:
        if np.ndim(y) != 1:
            raise ValueError(
                "keep_classes needs one label per row; pass keep_classes=False for a number of rows."
            )
        # In random order, the first row of each class stays; the others keep their random order.
        _, first = np.unique(np.asarray(y)[order], return_index=True)
        free = np.ones(n_samples, dtype=bool)
        free[first] = False
        order = order[free]
    taken = 0
    parts: list[NDArray[np.int64]] = []
    for fraction in fractions:
        size = min(round(fraction * n_samples), len(order) - taken)
        parts.append(np.sort(order[taken : taken + size]).astype(np.int64))
        taken += size
    train = np.ones(n_samples, dtype=bool)
    for part in parts:
        train[part] = False
    return (np.flatnonzero(train).astype(np.int64), *parts)


def seen_classes(y: Any, y_train: Any) -> NDArray[np.bool_]:
    """Whether the class of each row occurs in training: rows of other classes are left out of test figures,
    and counted.

    Examples
    --------
    >>> from extremax.data import seen_classes
    >>> seen_classes(["a", "b"], ["a", "a", "c"]).tolist()
    [True, False]
    """
    return np.isin(np.asarray(y), np.unique(np.asarray(y_train)))
