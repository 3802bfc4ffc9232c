"""Reference rows: how rows that training did not see, and their answers, look to a model.

Rows that a fit holds back for calibration are counted in a few bins of three statistics; the monitors of
`extremax.report.drift` compare streams with them.

features
    How much of a row is unknown. For sparse features the part of its squared length in columns that no other
    training row has; for dense features the logarithm of the squared length.
log_prob
    Log-probability of the most probable class.
classes
    The most probable class, in groups: frequent ones by themselves, the others in ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Features, Float32, Float64, Int32, Int64

STATISTICS = ("features", "log_prob", "classes")
N_BINS, N_TOP, N_RANGES = 20, 32, 32
MIN_ROWS = 50  # a comparison with fewer rows finds next to nothing
_NOTHING = 1e-5  # part of a row that counts as none: float32 does not sum to one

_Edges = Annotated[list[float], msgspec.Meta(max_length=10 * N_BINS)]
_Counts = list[Annotated[int, msgspec.Meta(ge=0, le=2**53)]]
_Classes = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]], msgspec.Meta(max_length=1000)]


class _Header(msgspec.Struct):
    """Header of a reference in a model folder."""

    n_rows: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    n_classes: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    kind: Literal["unknown_share", "unseen_share", "log_length"]
    mean_log_prob: float
    edges: dict[str, _Edges]
    counts: dict[str, _Counts]
    top_classes: _Classes
    range_ends: _Classes


@dataclass(frozen=True)
class Reference:
    """Numbers of reference rows by bin, for each statistic.

    Attributes
    ----------
    n_rows, n_classes : int
        Reference rows, and classes of the model.
    kind : str
        Statistic of the features: "unknown_share" (texts), "unseen_share" (sparse rows) or "log_length".
    edges : dict of str to array
        Upper edges of the bins of "features" and "log_prob"; the last bin has none.
    counts : dict of str to array
        Rows in each bin.
    top_classes : int32 array
        Classes that are groups by themselves.
    range_ends : int32 array
        Ends of the ranges of all other classes.
    seen_columns : uint8 array
        For "unseen_share": one bit per column, set where a training row has it.
    mean_log_prob : float
        Mean log-probability of the most probable class.
    """

    n_rows: int
    n_classes: int
    kind: str
    edges: Mapping[str, Float64]
    counts: Mapping[str, Int64]
    top_classes: Int32
    range_ends: Int32
    seen_columns: NDArray[np.uint8]
    mean_log_prob: float

    @classmethod
    def of(
        cls,
        features: Float64,
        kind: str,
        answers: tuple[Int32, Float32],
        class_counts: Int64 | None,
        n_classes: int,
        seen_columns: NDArray[np.uint8] | None = None,
    ) -> Reference:
        """Make a reference.

        Parameters
        ----------
        features : float64 (n,)
            Statistic of the features of each row.
        kind : str
            Which one it is.
        answers : pair of arrays (n,)
            The most probable class of each row, and its log-probability.
        class_counts : int64 (n_classes,), optional
            Training rows of each class.
        n_classes : int
        seen_columns : uint8 array, optional
            One bit per column.
        """
        best, log_prob = answers
        often = np.bincount(best, minlength=1)
        top = np.sort(np.argsort(-often, kind="stable")[: min(N_TOP, int((often > 0).sum()))]).astype(
            np.int32
        )
        mass = np.ones(n_classes) if class_counts is None else np.maximum(class_counts, 0.5)
        mass[top] = 0.0
        at = np.searchsorted(np.cumsum(mass), mass.sum() * np.arange(1, N_RANGES) / N_RANGES)
        ends = np.append(np.unique(at[at < n_classes - 1]) + 1, n_classes).astype(np.int32)
        edges = {"features": _edges(features), "log_prob": _edges(_rounded(log_prob))}
        empty: dict[str, Int64] = {}
        none = np.zeros(0, np.uint8) if seen_columns is None else seen_columns
        mean = float(log_prob.astype(np.float64).mean())
        found = cls(len(best), n_classes, kind, edges, empty, top, ends, none, mean)
        bins = found.bins(features, best, log_prob)
        counts = {
            name: np.bincount(bins[name], minlength=found.n_bins(name)).astype(np.int64)
            for name in STATISTICS
        }
        return replace(found, counts=counts)

    def n_bins(self, statistic: str) -> int:
        """Return the number of bins of a statistic."""
        if statistic == "classes":
            return len(self.top_classes) + len(self.range_ends)
        return len(self.edges[statistic]) + 1

    def bins(self, features: Float64, best: Int32, log_prob: Float32) -> dict[str, Int64]:
        """Return the bins that rows belong to, by statistic."""
        values = {"features": features, "log_prob": _rounded(log_prob)}
        found = {
            name: np.searchsorted(edges, values[name], side="left").astype(np.int64)
            for name, edges in self.edges.items()
        }
        group = len(self.top_classes) + np.searchsorted(self.range_ends, best, side="right")
        if len(self.top_classes):
            at = np.minimum(np.searchsorted(self.top_classes, best), len(self.top_classes) - 1)
            group = np.where(self.top_classes[at] == best, at, group)
        found["classes"] = group.astype(np.int64)
        return found

    def measure(self, X: Features, n_dense: int = 0) -> Float64:
        """Return the statistic of the features of each row."""
        return _MEASURES[self.kind](self, X, n_dense)

    @property
    def measures_share(self) -> bool:
        """Whether the statistic of the features is a share of each row, 1 for rows that are all unknown."""
        return self.kind in _SHARES

    def state(self) -> State:
        """Return the state that a model folder stores."""
        header = {
            "n_rows": self.n_rows,
            "n_classes": self.n_classes,
            "kind": self.kind,
            "mean_log_prob": self.mean_log_prob,
            "edges": {name: edges.tolist() for name, edges in self.edges.items()},
            "counts": {name: counts.tolist() for name, counts in self.counts.items()},
            "top_classes": self.top_classes.tolist(),
            "range_ends": self.range_ends.tolist(),
        }
        return State(header, {"seen_columns": self.seen_columns})

    @classmethod
    def from_state(cls, state: State) -> Reference:
        """Build the reference that `state` described."""
        header = checks.read(state.header, _Header)
        found = cls(
            n_rows=header.n_rows,
            n_classes=header.n_classes,
            kind=header.kind,
            edges={name: np.array(edges, np.float64) for name, edges in header.edges.items()},
            counts={name: np.array(counts, np.int64) for name, counts in header.counts.items()},
            top_classes=np.array(header.top_classes, np.int32),
            range_ends=np.array(header.range_ends, np.int32),
            seen_columns=np.asarray(checks.get_array(state.arrays, "seen_columns", "u1", (None,))),
            mean_log_prob=header.mean_log_prob,
        )
        found.check()
        return found

    def check(self) -> None:
        """Raise ModelFileError where the bins and the counts do not fit together."""
        if {*self.counts} != {*STATISTICS} or {*self.edges, "classes"} != {*STATISTICS}:
            checks.reject("the reference has other statistics")
        for name, edges in self.edges.items():
            if not np.isfinite(edges).all() or not checks.is_rising(edges):
                checks.reject(f"the edges of {name} in the reference do not rise")
        top, ends, n_classes = self.top_classes, self.range_ends, self.n_classes
        checks.check_range(top, "top_classes", 0, n_classes)
        if not (checks.is_rising(top) and checks.is_rising(ends)):
            checks.reject("the groups of classes in the reference do not rise")
        if len(ends) == 0 or ends[-1] != n_classes:
            checks.reject("the groups of classes in the reference do not cover all classes")
        for name, counts in self.counts.items():
            if len(counts) != self.n_bins(name) or int(counts.sum()) != self.n_rows:
                checks.reject(f"the counts of {name} in the reference are not those of {self.n_rows:,} rows")


def _rounded(log_prob: Float32) -> Float64:
    """Return log-probabilities to five places: certain answers differ in further ones alone."""
    return np.asarray(np.round(log_prob.astype(np.float64), 5), np.float64)


def _edges(values: Float64) -> Float64:
    """Return the upper edges of bins of about the same number of values; the last bin has none."""
    found = np.unique(np.quantile(values, np.arange(1, N_BINS) / N_BINS, method="inverted_cdf"))
    return np.asarray(found, np.float64)


def log_length(X: Features) -> Float64:
    """Return the logarithm of the squared length of each row."""
    return np.asarray(np.log(np.maximum(_row_sums(X, None), 1e-30)), np.float64)


def unknown_share(
    X: Features,
    unknown: NDArray[np.bool_] | None,
    n_dense: int = 0,
    *,
    of_unit: bool = False,
) -> Float64:
    """Return the part of the squared length of each row that is in unknown columns.

    Parameters
    ----------
    X : sparse matrix or array (n, n_features)
    unknown : bool (n_features,), optional
        Columns that count as unknown; None for none.
    n_dense : int
        Last columns that do not count at all.
    of_unit : bool
        Rows are those of texts, of length one at most: what is missing is unknown, too.
    """
    n_features = int(X.shape[1])
    weights: Float64 | None = None
    if n_dense:
        weights = np.ones(n_features)
        weights[n_features - n_dense :] = 0.0
    total = _row_sums(X, weights)
    new = np.zeros(len(total))
    if unknown is not None:
        new = _row_sums(X, unknown.astype(np.float64) if weights is None else unknown * weights)
    if of_unit:
        new, total = new + np.maximum(1.0 - total, 0.0), np.maximum(total, 1.0)
    found = np.where(total > 0, new / np.maximum(total, 1e-30), float(of_unit))
    return np.where(found < _NOTHING, 0.0, np.minimum(found, 1.0))


def _row_sums(X: Any, weights: Float64 | None) -> Float64:
    """Return the weighted sum of squares of each row."""
    if not sparse.issparse(X):
        squares = np.square(np.asarray(X, np.float64))
        return np.asarray((squares if weights is None else squares * weights).sum(axis=1))
    squares = np.square(X.data.astype(np.float64))
    if weights is not None:
        squares = squares * weights[X.indices]
    sums = np.concatenate([[0.0], np.cumsum(squares)])
    return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]])


def left_out_share(X: Any, n_rows: Int64, n_texts: int, first_word: int, n_dense: int = 0) -> Float64:
    """Return the unknown share that each text would have, had it not been among the texts of the features.

    Characters and words have TF-IDF weights (1 + log count) idf, scaled to a length of their own; a column
    that no other text has would be unknown, and each of its occurrences count as one n-gram of one text.

    Parameters
    ----------
    X : CSR matrix (n, n_features)
        Features of some of the texts.
    n_rows : (n_features,)
        Texts that have each column, the text itself among them.
    n_texts
        All texts.
    first_word
        First column of words.
    n_dense
        Last columns that do not count at all.
    """
    n, rows = X.shape[0], np.maximum(n_rows, 1).astype(np.float64)
    idf, idf_without = 1.0 + np.log((1.0 + n_texts) / (1.0 + rows)), 1.0 + np.log(n_texts / rows)
    of_unknown = (1.0 + np.log(n_texts / 2.0)) ** 2
    column, values = X.indices, X.data.astype(np.float64)
    group = 2 * np.repeat(np.arange(n), np.diff(X.indptr)) + (column >= first_word)
    counts = (column < X.shape[1] - n_dense) & (values > 0.0)
    column, values, group = column[counts], values[counts], group[counts]
    # the factor that gave a group its length: hardly any has no n-gram that occurs once
    scale = np.full(2 * n, np.inf)
    np.minimum.at(scale, group, values / idf[column])
    term = values / (idf[column] * scale[group])  # 1 + log count
    is_new = rows[column] <= 1.0
    without = np.where(is_new, np.exp(term - 1.0) * of_unknown, np.square(term * idf_without[column]))
    total = np.bincount(group, weights=without, minlength=2 * n)
    new = np.bincount(group, weights=without * is_new, minlength=2 * n)
    length = np.bincount(group, weights=np.square(values), minlength=2 * n)
    share = (length * new / np.maximum(total, 1e-30)).reshape(n, 2).sum(axis=1)
    whole = length.reshape(n, 2).sum(axis=1)
    found = np.where(whole > 0.0, share / np.maximum(whole, 1e-30), 1.0)
    return np.where(found < _NOTHING, 0.0, np.minimum(found, 1.0))


def reference_of_fit(
    X: Features,
    answers: tuple[Int32, Float32],
    training: Features,
    class_counts: Int64 | None,
    n_classes: int,
    *,
    first_word: int | None,
    n_dense: int = 0,
) -> Reference | None:
    """Return the reference of rows that were held back from `training`; None where they are too few.

    `training` are the features of all rows, those held back among them: a column that one of these alone has
    would be unknown without it.  `first_word` is the first column of words of texts, None where rows are no
    texts.
    """
    if X.shape[0] < MIN_ROWS:
        return None
    rows: Any = training
    if not sparse.issparse(X) or not sparse.issparse(rows):
        return Reference.of(log_length(X), "log_length", answers, class_counts, n_classes)
    n_rows = np.bincount(rows.indices, minlength=int(X.shape[1]))
    if first_word is not None:
        features = left_out_share(X, n_rows, int(rows.shape[0]), first_word, n_dense)
        return Reference.of(features, "unknown_share", answers, class_counts, n_classes)
    features = unknown_share(X, n_rows <= 1, n_dense)
    seen = np.packbits(n_rows > 0)
    return Reference.of(features, "unseen_share", answers, class_counts, n_classes, seen)


def reference_of_rows(
    X: Features,
    answers: tuple[Int32, Float32],
    class_counts: Int64 | None,
    n_classes: int,
    *,
    before: Reference | None,
    of_texts: bool,
    n_dense: int = 0,
) -> Reference:
    """Return the reference of rows that training has not seen at all.

    Columns that training rows have are known from the reference `before`; without one, sparse rows that are
    no texts are compared by their lengths.
    """
    seen: NDArray[np.uint8] | None = None
    kind = "log_length"
    if sparse.issparse(X) and of_texts:
        kind, features = "unknown_share", unknown_share(X, None, n_dense, of_unit=True)
    elif sparse.issparse(X) and before is not None and len(before.seen_columns):
        kind, seen, features = before.kind, before.seen_columns, before.measure(X, n_dense)
    else:
        features = log_length(X)
    return Reference.of(features, kind, answers, class_counts, n_classes, seen)


def _unseen_share(reference: Reference, X: Features, n_dense: int) -> Float64:
    unseen = np.unpackbits(reference.seen_columns, count=int(X.shape[1])) == 0
    return unknown_share(X, unseen, n_dense)


_Measure: TypeAlias = Callable[[Reference, Features, int], Float64]
_SHARES: dict[str, _Measure] = {
    "unknown_share": lambda reference, X, n_dense: unknown_share(X, None, n_dense, of_unit=True),
    "unseen_share": _unseen_share,
}
_MEASURES: dict[str, _Measure] = {**_SHARES, "log_length": lambda reference, X, n_dense: log_length(X)}
