"""Rows with their labels, as training and validation take them: pairs of a row and a class, each with a
weight.

Rows of one label each are pairs by themselves. Rows of several are indexed by their pairs, and X is not
copied for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from extremax.linear import Features
from extremax.splits import split_rows
from extremax.validation import Targets, check_sample_weight


@dataclass(frozen=True)
class LabelledRows:
    """Class and weight of each pair, and the row of X it stands on; `rows` None means one pair a row, in
    order.
    """

    X: Features
    ids: NDArray[np.int32]
    rows: NDArray[np.int64] | None = None
    weight: NDArray[np.float32] | None = None

    @property
    def row_index(self) -> NDArray[np.int64]:
        """Row of each pair, whatever their form."""
        return np.arange(len(self.ids), dtype=np.int64) if self.rows is None else self.rows

    @classmethod
    def all_of(
        cls, X: Features, targets: Targets, row_weight: NDArray[np.float32] | None = None
    ) -> LabelledRows:
        """All pairs; those of a row have the row's weight."""
        weight = row_weight if row_weight is None or targets.rows is None else row_weight[targets.rows]
        return cls(X, targets.ids, targets.rows, weight)

    @classmethod
    def of(cls, X: Features, targets: Targets, row_weight: NDArray[np.float32] | None = None) -> LabelledRows:
        """Pairs of known classes, but for those of weight zero."""
        pairs = cls.all_of(X, targets, row_weight)
        kept = targets.ids >= 0
        return pairs.take(kept if pairs.weight is None else kept & (pairs.weight > 0.0))

    def take(self, kept: NDArray[np.bool_]) -> LabelledRows:
        """The marked pairs; X stays as it is."""
        if kept.all():
            return self
        rows = np.flatnonzero(kept) if self.rows is None else self.rows[kept]
        return LabelledRows(self.X, self.ids[kept], rows, None if self.weight is None else self.weight[kept])

    def labelled(self) -> LabelledRows:
        """The same pairs without the features of rows that have none: for prediction, which goes through
        all rows of X.
        """
        if self.rows is None:
            return self
        used, rows = np.unique(self.rows, return_inverse=True)
        if len(used) == self.X.shape[0]:
            return self
        return LabelledRows(
            self.X[used], self.ids, None if len(used) == len(rows) else rows.astype(np.int64), self.weight
        )

    def some_rows(self, n_rows: int) -> LabelledRows:
        """The pairs of so many random rows, or of all if there are no more."""
        chosen = np.zeros(self.X.shape[0], bool)
        chosen[np.random.default_rng(0).permutation(self.X.shape[0])[:n_rows]] = True
        return self.take(chosen[self.row_index]).labelled()

    def hold_out(self, fraction: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
        """Rows to train on, and a share of them to validate on: whole rows, never the last row of a class,
        no copy of X.
        """
        if self.rows is None:
            _, held_out = split_rows(self.ids, fractions=(fraction,), seed=seed)
            kept = np.ones(len(self.ids), bool)
            kept[held_out] = False
        else:
            offsets = np.searchsorted(self.rows, np.arange(self.X.shape[0] + 1))
            matrix = sparse.csr_array((np.ones(len(self.ids), np.int8), self.ids, offsets))
            _, held_out = split_rows(matrix, fractions=(fraction,), seed=seed)
            kept = ~np.isin(self.rows, held_out)
        if len(held_out) == 0:
            raise ValueError(
                f"validation_fraction is {fraction}, but no row can be kept back: each class needs one to train on. Give an"
                " eval_set or more rows."
            )
        valid = self.take(~kept)
        return self.take(kept), LabelledRows(valid.X, valid.ids, valid.rows)

    def set_aside(self, n_rows: int, seed: int) -> tuple[LabelledRows, LabelledRows]:
        """The pairs without those of some random rows, and these: no copy of X, and never the last row of
        a class.
        """
        pair_rows = self.row_index
        if n_rows < 1:
            raise ValueError(f"n_rows is {n_rows}; set at least one row aside.")
        offsets = np.searchsorted(pair_rows, np.arange(self.X.shape[0] + 1))
        left = np.bincount(self.ids)
        aside = np.zeros(self.X.shape[0], bool)
        for row in np.random.default_rng((seed, 4)).permutation(self.X.shape[0]):
            labels = self.ids[offsets[row] : offsets[row + 1]]
            if len(labels) and (left[labels] > 1).all():
                left[labels] -= 1
                aside[row] = True
                n_rows -= 1
                if n_rows == 0:
                    break
        judged = aside[pair_rows]
        weight = None if self.weight is None else self.weight[~judged]
        rest = LabelledRows(self.X, self.ids[~judged], pair_rows[~judged], weight)
        return rest, LabelledRows(self.X, self.ids[judged], pair_rows[judged]).labelled()


def check_row_weight(sample_weight: ArrayLike | None, targets: Targets) -> NDArray[np.float32] | None:
    """One weight per row, as `check_sample_weight` returns them, of which some row with a label has one
    above zero.
    """
    weight = check_sample_weight(sample_weight, targets.n_rows)
    if weight is not None and not weight[targets.row_index].any():
        raise ValueError(
            "sample_weight is zero for every row with a label; at least one of their weights must be above zero."
        )
    return weight


def warn_unlabelled(targets: Targets, name: str) -> None:
    """Warn of rows without any label, which are left out, in the name of the method that an estimator's
    user called.
    """
    if targets.n_unlabelled:
        warnings.warn(
            f"{targets.n_unlabelled:,} of {targets.n_rows:,} rows of {name} have no label; they are left out.",
            stacklevel=3,
        )
