"""Drift: does a stream of rows and answers still look like the rows that a model was fitted on?

**Reference.**  Rows that training did not see, those that a fit holds back for calibration, are counted in
few bins of three statistics:

features
    How much of a row is unknown. For sparse features the part of its squared length in columns that no other
    training row has; for dense features the logarithm of the squared length.
log_prob
    Log-probability of the most probable class.
classes
    The most probable class, in groups: frequent ones by themselves, the others in ranges.

**Test.**  A `Monitor` counts the rows of a stream in the same bins, and tests each statistic after every row:
**if the stream is like the reference rows, the probability that it ever gives an alarm is at most alpha**,
however long the stream is.

The test is a conformal test martingale (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
2005, chapter 7; Vovk, "Testing randomness online", Statistical Science 36, 2021).  Each row gets a p-value:
its rank among the reference rows and all rows so far, ties broken at random.  If all of these rows are
exchangeable, the p-values are independent and uniform, even though the distribution is known from the
reference rows alone.  The test then bets against uniformity.  A bet is a density f on [0, 1]; betting on p
multiplies the capital by f(p), whose mean is one.  Capital starts at one, and by Ville's inequality it ever
reaches 1 / a with a probability of at most a.  The three tests share alpha: an alarm is a capital of
3 / alpha.

The capital is spread over a set of fixed densities.  A part of it sleeps, without betting, and wakes up over
time, ``log(2) / log(t + 2)`` of it being asleep after t rows: a change after a million rows then costs a
factor of some millions and not all that was lost before (compare Herbster and Warmuth, "Tracking the best
expert", Machine Learning 32, 1998).

"Like the reference rows" means the same kind of texts or features, of classes that the model knows.  The
reference rows have helped to choose the temperature, and weights may include them afterwards; both effects
are far below what the test can see with the number of reference rows that there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from extremax.storage import checks
from extremax.storage.state import State
from extremax.types import Features, Float32, Float64, Int32, Int64

STATISTICS = ("features", "log_prob", "classes")
N_BINS, N_TOP, N_RANGES = 20, 32, 32
MIN_ROWS = 50  # a comparison with fewer rows finds next to nothing
_NOTHING = 1e-5  # part of a row that counts as none: float32 does not sum to one

FORMAT = "extremax-monitor"
FORMAT_VERSION = 1
_BLOCK = 64  # rows whose capital is computed at a time: products of so many bets stay in the range of floats
_HALF_LIFE = 1000.0  # rows after which a row counts half in the recent distribution
_CELLS = ((32, 2.5), (16, 0.4))  # number of cells, and density in one: more of a group, or less of it
_MASK = (1 << 64) - 1


# -- reference rows


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
        edges = {"features": _edges(features), "log_prob": _edges(log_prob.astype(np.float64))}
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
        values = {"features": features, "log_prob": log_prob.astype(np.float64)}
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
        if self.kind == "log_length":
            return log_length(X)
        unseen = None
        if self.kind == "unseen_share":
            unseen = np.unpackbits(self.seen_columns, count=int(X.shape[1])) == 0
        return unknown_share(X, unseen, n_dense, of_unit=self.kind == "unknown_share")

    def state(self) -> State:
        """Return what a model folder stores."""
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
        header = state.header
        kind = checks.get_text(header, "kind")
        if kind not in ("unknown_share", "unseen_share", "log_length"):
            checks.reject(f"the reference has features of the unknown kind {checks.shown(kind)}")
        n_classes = checks.get_int(header, "n_classes", 1, 2**31 - 1)
        found_edges, found_counts = checks.get_mapping(header, "edges"), checks.get_mapping(header, "counts")
        edges = {
            name: np.array(checks.get_list(found_edges, name, (float, int)), np.float64)
            for name in ("features", "log_prob")
        }
        counts = {
            name: np.array(checks.get_list(found_counts, name, (int,)), np.int64) for name in STATISTICS
        }
        top = np.array(checks.get_list(header, "top_classes", (int,)), np.int32)
        ends = np.array(checks.get_list(header, "range_ends", (int,)), np.int32)
        for name, array in edges.items():
            if not np.isfinite(array).all() or not checks.is_rising(array) or len(array) > 10 * N_BINS:
                checks.reject(f"the edges of {name} in the reference do not rise")
        checks.check_range(top, "top_classes", 0, n_classes)
        checks.check_range(ends, "range_ends", 0, n_classes + 1)
        if not (checks.is_rising(top) and checks.is_rising(ends)) or len(top) + len(ends) > 1000:
            checks.reject("the groups of classes in the reference do not rise")
        if len(ends) == 0 or ends[-1] != n_classes:
            checks.reject("the groups of classes in the reference do not cover all classes")
        seen = checks.get_array(state.arrays, "seen_columns", "u1", (None,))
        n_rows = checks.get_int(header, "n_rows", 1, 2**53)
        mean = checks.get_float(header, "mean_log_prob")
        found = cls(n_rows, n_classes, kind, edges, counts, top, ends, np.asarray(seen), mean)
        for name in STATISTICS:
            fits = len(counts[name]) == found.n_bins(name) and (counts[name] >= 0).all()
            if not fits or int(counts[name].sum()) != n_rows:
                checks.reject(f"the counts of {name} in the reference are not those of {n_rows:,} rows")
        return found


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
    if not hasattr(X, "indptr"):
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
    if not hasattr(X, "indptr") or not hasattr(rows, "indptr"):
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
    if hasattr(X, "indptr") and of_texts:
        kind, features = "unknown_share", unknown_share(X, None, n_dense, of_unit=True)
    elif hasattr(X, "indptr") and before is not None and before.kind == "unseen_share":
        kind, seen, features = before.kind, before.seen_columns, before.measure(X, n_dense)
    else:
        features = log_length(X)
    return Reference.of(features, kind, answers, class_counts, n_classes, seen)


# -- the test of one statistic


def _densities(p: Float64) -> Float64:
    """Return the value of each bet at p-values: (n_bets, n); each integrates to one over [0, 1].

    Examples
    --------
    >>> p = (np.arange(100_000) + 0.5) / 100_000
    >>> bool(np.allclose(_densities(p).mean(axis=1), 1.0, atol=2e-3))
    True
    """
    p = np.clip(p, 1e-12, 1.0 - 1e-12)
    found = [0.5 / np.sqrt(p), 0.5 / np.sqrt(1.0 - p)]
    for size in (0.3, 0.95):
        found += [1.0 + size * (2.0 * p - 1.0), 1.0 - size * (2.0 * p - 1.0)]
        found += [1.0 + size * np.cos(2.0 * np.pi * p), 1.0 - size * np.cos(2.0 * np.pi * p)]
    for waves in (3, 4, 5, 6):
        found += [1.0 + 0.5 * np.cos(waves * np.pi * p), 1.0 - 0.5 * np.cos(waves * np.pi * p)]
    return np.vstack([np.array(found), *(_cell_bets(p, *cells) for cells in _CELLS)])


def _cell_bets(p: Float64, n_cells: int, inside: float) -> Float64:
    """Return the densities that have the value `inside` in one of some equal cells, and another outside."""
    cell = np.minimum((p * n_cells).astype(np.int64), n_cells - 1)
    outside = (n_cells - inside) / (n_cells - 1)
    return np.where(np.arange(n_cells)[:, None] == cell, inside, outside)


N_BETS = 18 + sum(n_cells for n_cells, _ in _CELLS)


class SequentialTest:
    """The test of one statistic: counts by bin, and capital.

    Parameters
    ----------
    reference : int64 (n_bins,)
        Reference rows by bin.
    seed : int
        Seed of the draws that break ties.
    """

    def __init__(self, reference: Int64, seed: int = 0) -> None:
        self.reference = np.asarray(reference, np.int64)
        self.seed = seed
        self.n_rows = 0
        self.counts = np.zeros(len(self.reference), np.int64)
        self.recent = np.zeros(len(self.reference))
        self.asleep = 1.0
        self.capital = np.zeros(N_BETS)
        self.log_scale = 0.0  # capital and what sleeps are in units of its exponential
        self.max_log_evidence = 0.0
        self.max_at = 0

    @property
    def log_evidence(self) -> float:
        """Logarithm of the capital: an e-value, for the hypothesis that nothing has changed."""
        return self.log_scale + float(np.log(max(self.asleep + self.capital.sum(), 1e-300)))

    @property
    def recent_distance(self) -> float:
        """Total variation distance between the last thousand rows or so and the reference rows."""
        if self.recent.sum() <= 0:
            return 0.0
        shares = self.recent / self.recent.sum()
        return 0.5 * float(np.abs(shares - self.reference / self.reference.sum()).sum())

    def p_values(self, bins: Int64) -> Float64:
        """Return the conformal p-values of rows, each among the reference rows and all rows up to it."""
        n, n_bins = len(bins), len(self.counts)
        before = (self.reference + self.counts)[None, :] + np.zeros((n, 1), np.int64)
        single = np.zeros((n, n_bins), np.int64)
        single[np.arange(n), bins] = 1
        bag = before + np.cumsum(single, axis=0)
        above = np.cumsum(bag[:, ::-1], axis=1)[:, ::-1]
        at = np.arange(n)
        equal = bag[at, bins]
        greater = above[at, bins] - equal
        ties = _uniform(self.seed, self.n_rows, n)
        return np.asarray((greater + ties * equal) / bag.sum(axis=1), np.float64)

    def update(self, bins: Int64) -> None:
        """Bet on rows, in their order."""
        for first in range(0, len(bins), _BLOCK):
            self._update_block(np.asarray(bins[first : first + _BLOCK], np.int64))

    def _update_block(self, bins: Int64) -> None:
        n = len(bins)
        factors = np.cumprod(_densities(self.p_values(bins)), axis=1)  # of each bet since the block began
        rows = self.n_rows + np.arange(n + 1)
        still = np.log(2.0) / np.log(rows + 2.0)
        asleep = self.asleep * still / still[0]
        woken = (asleep[:-1] - asleep[1:]) / N_BETS  # capital that starts to bet with each row
        since = np.hstack([np.ones((N_BETS, 1)), factors[:, :-1]])
        capital = factors * (self.capital[:, None] + np.cumsum(woken / since, axis=1))
        evidence = self.log_scale + np.log(np.maximum(asleep[1:] + capital.sum(axis=0), 1e-300))
        best = int(np.argmax(evidence))
        if evidence[best] > self.max_log_evidence:
            self.max_log_evidence, self.max_at = float(evidence[best]), self.n_rows + best + 1
        self.capital, self.asleep = capital[:, -1], float(asleep[-1])
        unit = max(self.asleep, float(self.capital.max()))
        self.capital, self.asleep = self.capital / unit, self.asleep / unit
        self.log_scale += float(np.log(unit))
        self.n_rows += n
        self.counts += np.bincount(bins, minlength=len(self.counts))
        decay = 0.5 ** (np.arange(n - 1, -1, -1) / _HALF_LIFE)
        self.recent *= 0.5 ** (n / _HALF_LIFE)
        self.recent += np.bincount(bins, weights=decay, minlength=len(self.recent))

    def merge(self, other: SequentialTest) -> None:
        """Add the rows of another test of the same reference: capital is the mean of both."""
        scale = max(self.log_scale, other.log_scale)
        own, its = 0.5 * np.exp(self.log_scale - scale), 0.5 * np.exp(other.log_scale - scale)
        self.asleep = float(own * self.asleep + its * other.asleep)
        self.capital = own * self.capital + its * other.capital
        self.log_scale = scale
        if other.max_log_evidence > self.max_log_evidence:
            self.max_log_evidence, self.max_at = other.max_log_evidence, self.n_rows + other.max_at
        self.n_rows += other.n_rows
        self.counts = self.counts + other.counts
        self.recent = self.recent + other.recent

    def state(self) -> dict[str, Any]:
        """Return everything that changes, as JSON has it."""
        values = {name: value for name, value in vars(self).items() if name != "reference"}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        found: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and name != "reference":
                found[name] = np.array(state[name], value.dtype)
                if found[name].shape != value.shape:
                    raise ValueError("the state of the monitor is not one of this version and model.")
            elif name != "reference":
                found[name] = type(value)(state[name])
        negative = (found["capital"] < 0).any() or (found["counts"] < 0).any()
        if negative or not all(np.isfinite(value).all() for value in found.values()):
            raise ValueError("the state of the monitor holds numbers that no monitor has.")
        vars(self).update(found)


# -- the monitor of a stream


class Monitor:
    """How a stream differs from the rows that a model was fitted on; made by ``clf.monitor()``.

    Memory is constant. An alarm is given with a probability of at most `alpha` over the whole stream, if the
    stream is like the reference rows; after it, look at `report`.

    Parameters
    ----------
    clf : ExtremeClassifier or TextClassifier
        The classifier whose stream is watched.
    reference : Reference
        What the stream is compared with.
    alpha : float
        False-alarm rate of the whole stream.
    seed : int
        Seed of the draws that break ties between rows of a bin.

    Attributes
    ----------
    n_rows : int
        Rows so far.
    alarm : bool
        Whether there has been an alarm.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax import ExtremeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(20, size=3000)
    >>> X = rng.normal(size=(20, 8))[y] + 0.3 * rng.normal(size=(3000, 8))
    >>> clf = ExtremeClassifier(random_state=0).fit(X[:1000], y[:1000])
    >>> monitor = clf.monitor(alpha=0.01, reference=X[1000:2000])
    >>> monitor.update(X[2000:]).alarm
    False
    >>> monitor.update(2 * X[2000:]).alarm
    True
    """

    def __init__(self, clf: Any, reference: Reference, *, alpha: float = 0.01, seed: int = 0) -> None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0.0 < alpha < 1.0:
            raise ValueError(f"alpha is {alpha!r}; it must be above 0 and below 1.")
        self.clf, self.reference = clf, reference
        self.alpha = self.limit_alpha = float(alpha)
        self.seed = int(seed)
        self._tests = {
            name: SequentialTest(reference.counts[name], (self.seed * 3 + i) & _MASK)
            for i, name in enumerate(STATISTICS)
        }
        self._sum_log_prob, self._n_unknown, self._n_seen = 0.0, 0, 0
        self._waiting: list[tuple[Float64, Int32, Float32]] = []
        self._n_waiting = 0

    # -- the stream ----------------------------------------------------------------------------------------

    def update(self, X: Any, answers: tuple[Any, Any] | None = None) -> Self:
        """Take up rows of the stream, in their order.

        Parameters
        ----------
        X : texts or features
            As `predict` takes them.
        answers : (labels, log_prob), optional
            What ``predict_topk`` has returned for these rows, to save predicting them again.
        """
        features = self.clf.transform(X) if hasattr(self.clf, "classifier_") else X
        classifier = getattr(self.clf, "classifier_", self.clf)
        if features.shape[0] == 0 if hasattr(features, "shape") else len(X) == 0:
            return self
        if answers is None:
            ids, log_prob = classifier.predict_ids(features, 1)
        else:
            labels, log_prob = np.asarray(answers[0]), np.asarray(answers[1], np.float32)
            rows = X[0] if isinstance(X, tuple) else X
            n_rows = rows.shape[0] if hasattr(rows, "shape") else len(rows)
            if labels.ndim != 2 or labels.shape != log_prob.shape or len(labels) != n_rows:
                raise ValueError(
                    f"answers have the shapes {labels.shape} and {log_prob.shape} for {n_rows:,} rows; give"
                    " what predict_topk returned for them."
                )
            ids = classifier.label_ids(labels[:, 0])[:, None]
        self.observe(features, np.asarray(ids)[:, 0], log_prob[:, 0])
        return self

    def observe(self, features: Any, best: Int32, log_prob: Float32) -> None:
        """Take up rows whose features, best classes and log-probabilities are there already."""
        classifier = getattr(self.clf, "classifier_", self.clf)
        if getattr(features, "format", "") != "csr" or classifier.layout_.scaling is not None:
            features = classifier.to_features(features)
        measured = self.reference.measure(features, classifier.layout_.n_dense)
        self._waiting.append((measured, best, log_prob))
        self._n_waiting += len(best)
        if self._n_waiting >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        """Bet on the rows that are waiting: a few at a time cost as much as many."""
        if not self._waiting:
            return
        measured, best, log_prob = (np.concatenate([part[i] for part in self._waiting]) for i in range(3))
        self._waiting, self._n_waiting = [], 0
        for name, bins in self.reference.bins(measured, best, log_prob).items():
            self._tests[name].update(bins)
        self._sum_log_prob += float(log_prob.astype(np.float64).sum())
        self._n_unknown += int((measured >= 1.0).sum()) if self.reference.kind != "log_length" else 0
        self._n_seen += len(best)

    # -- what is known -------------------------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """Rows so far."""
        return self._n_seen + self._n_waiting

    @property
    def threshold(self) -> float:
        """Logarithm of the capital that is an alarm: the tests of the statistics share alpha."""
        return float(np.log(len(STATISTICS) / self.limit_alpha))

    @property
    def alarm(self) -> bool:
        """Whether there has been an alarm."""
        self._flush()
        return any(test.max_log_evidence >= self.threshold for test in self._tests.values())

    def report(self) -> dict[str, Any]:
        """Return what the stream is like, in total and by statistic, as plain numbers.

        ``max_log_evidence`` of a statistic is an alarm from ``threshold`` on; ``recent_distance`` is the
        total variation distance between the last thousand rows or so and the reference rows.
        """
        self._flush()
        n = max(self._n_seen, 1)
        return {
            "n_rows": self._n_seen,
            "alpha": self.alpha,
            "alarm": self.alarm,
            "threshold": self.threshold,
            "reference_rows": self.reference.n_rows,
            "mean_log_prob": self._sum_log_prob / n if self._n_seen else None,
            "reference_mean_log_prob": self.reference.mean_log_prob,
            "unknown_rows": self._n_unknown,
            "statistics": {
                name: {
                    "alarm": test.max_log_evidence >= self.threshold,
                    "log_evidence": test.log_evidence,
                    "max_log_evidence": test.max_log_evidence,
                    "max_at_row": test.max_at,
                    "recent_distance": test.recent_distance,
                }
                for name, test in self._tests.items()
            },
        }

    def merge(self, other: Monitor) -> Self:
        """Add the rows of another monitor of the same model, such as that of another process.

        Each of the two may give a false alarm, so that the false-alarm rate of the result, `alpha`, is the
        sum of both.  For a rate of 1% over four processes, give each of them 0.25%.
        """
        if other._fingerprint() != self._fingerprint():
            raise ValueError("the monitors are of two models; merge those of one.")
        if other.limit_alpha != self.limit_alpha:
            raise ValueError(
                f"the monitors have the rates {self.limit_alpha} and {other.limit_alpha}; give one."
            )
        self._flush()
        other._flush()
        for name, test in self._tests.items():
            test.merge(other._tests[name])
        self.alpha += other.alpha
        self._sum_log_prob += other._sum_log_prob
        self._n_unknown += other._n_unknown
        self._n_seen += other._n_seen
        return self

    # -- JSON ----------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the state as JSON; ``clf.monitor(state=...)`` goes on from it."""
        self._flush()
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "reference": self._fingerprint(),
            "alpha": self.alpha,
            "limit_alpha": self.limit_alpha,
            "seed": self.seed,
            "sum_log_prob": self._sum_log_prob,
            "n_unknown": self._n_unknown,
            "n_rows": self._n_seen,
            "statistics": {name: test.state() for name, test in self._tests.items()},
        }
        return json.dumps(content, allow_nan=False)

    def restore(self, text: str) -> Self:
        """Go on from what `to_json` returned for a monitor of the same model and reference."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT or content["format_version"] != FORMAT_VERSION:
                raise ValueError(f"it is no {FORMAT} of version {FORMAT_VERSION}")
            if content["reference"] != self._fingerprint():
                raise ValueError("it was made with another model or reference")
            for name, test in self._tests.items():
                test.restore(content["statistics"][name])
            self.alpha, self.limit_alpha = float(content["alpha"]), float(content["limit_alpha"])
            self.seed, self._n_seen = int(content["seed"]), int(content["n_rows"])
            self._sum_log_prob = float(content["sum_log_prob"])
            self._n_unknown = int(content["n_unknown"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the state of the monitor cannot be used: {error}.") from None
        return self

    def _fingerprint(self) -> str:
        """Return a checksum of the reference."""
        state = self.reference.state()
        text = json.dumps(state.header, sort_keys=True).encode() + state.arrays["seen_columns"].tobytes()
        return sha256(text).hexdigest()[:16]


def _uniform(seed: int, first: int, n: int) -> Float64:
    """Return uniform numbers that depend on seed and row alone (splitmix64)."""
    with np.errstate(over="ignore"):
        z: NDArray[np.uint64] = np.arange(first + 1, first + n + 1, dtype=np.uint64)
        z = z * np.uint64(0x9E3779B97F4A7C15) + np.uint64((seed * 0xD1342543DE82EF95 + 1) & _MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
