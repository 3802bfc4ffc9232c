"""Drift: does a stream of rows and answers still look like the rows that a model was fitted on?

A `Monitor` counts the rows of a stream in the bins of the reference rows (`extremax.scores.reference`), and
tests each of the three statistics after every row: **if the stream is like the reference rows, the
probability that it ever gives an alarm is at most alpha**, however long the stream is.

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
from hashlib import sha256
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import _num_samples

from extremax.scores.reference import STATISTICS, Reference
from extremax.text import TextClassifier
from extremax.types import Float32, Float64, Int32, Int64

FORMAT = "extremax-monitor"
FORMAT_VERSION = 1
_BLOCK = 64  # rows whose capital is computed at a time: products of so many bets stay in the range of floats
_HALF_LIFE = 1000.0  # rows after which a row counts half in the recent distribution
_CELLS = ((32, 2.5), (16, 0.4))  # number of cells, and density in one: more of a group, or less of it
_MASK = (1 << 64) - 1


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
        # Each row draws by its number, however the stream is cut into batches. Another generator than
        # numpy's default one: a stream that was simulated with the same seed must not share its numbers.
        draws = np.random.PCG64DXSM(self.seed).advance(self.n_rows)
        ties = np.random.Generator(draws).random(n)
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
        self._classifier = clf.classifier_ if isinstance(clf, TextClassifier) else clf
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
        n_rows = _num_samples(X[0] if isinstance(X, tuple) else X)
        if n_rows == 0:
            return self
        features = X if self._classifier is self.clf else self.clf.transform(X)
        if answers is None:
            ids, log_prob = self._classifier.predict_ids(features, 1)
        else:
            labels, log_prob = np.asarray(answers[0]), np.asarray(answers[1], np.float32)
            if labels.ndim != 2 or labels.shape != log_prob.shape or len(labels) != n_rows:
                raise ValueError(
                    f"answers have the shapes {labels.shape} and {log_prob.shape} for {n_rows:,} rows; give"
                    " what predict_topk returned for them."
                )
            ids = self._classifier.label_ids(labels[:, 0].tolist())[:, None]
        self.observe(features, np.asarray(ids)[:, 0], log_prob[:, 0])
        return self

    def observe(self, features: Any, best: Int32, log_prob: Float32) -> None:
        """Take up rows whose features, best classes and log-probabilities are there already."""
        layout = self._classifier.layout_
        is_checked = sparse.issparse(features) and features.format == "csr"
        if not is_checked or layout.scaling is not None:
            features = self._classifier.to_features(features)
        measured = self.reference.measure(features, layout.n_dense)
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
        self._n_unknown += int((measured >= 1.0).sum()) if self.reference.measures_share else 0
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
        """Return evidence and distance, in total and by statistic, as plain numbers.

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
