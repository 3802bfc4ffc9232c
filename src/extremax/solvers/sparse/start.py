"""The generative start of sparse weights: class sums, and numbers fitted by leave-one-out likelihood.

Formulas stand in `extremax.kernels.sparse_start`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize

from extremax.examples import Examples
from extremax.kernels import sparse_start as kernels
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_start import Numbers, Sums
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.scores.sparse import (
    SparseWeights,
    add_postings,
    csr_rows,
    no_postings,
    restore_matrix,
    scaled_postings,
    some_postings,
)
from extremax.storage import checks
from extremax.storage.state import State
from extremax.tuned import SparseConfig
from extremax.types import Float32, Float64, Int64

_FEATURES_PER_TASK = 4096
_PAIRS_PER_TASK = 16
# entries of the rows of all pairs that a thread sorts by column: at least, at most
_ENTRIES_AT_ONCE = 1 << 20, 1 << 25
_ROUGH, _EXACT = 1e-5, 1e-7  # relative change of the likelihood at which a search for numbers ends


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums of the rows of each class, weighted by their pairs.

    Attributes
    ----------
    matrix : CSC (n_classes, n_features)
        S; its memory is that of the postings of the start.
    counts : float64 (n_classes,)
        Sum of the weights of the pairs.
    """

    matrix: Any
    counts: Float64

    @classmethod
    def of(
        cls, data: Examples, n_classes: int, n_features: int, scale: float = 1.0, n_threads: int = 1
    ) -> ClassSums:
        """Sum the rows of each class, times a scale; columns from `n_features` on are left out."""
        rows, order = csr_rows(data.X), np.argsort(data.y, kind="stable")
        pairs = kernels.Pairs(data.rows[order], data.y[order].astype(np.int32), data.pair_weight[order])
        counts = np.zeros(n_features, np.int64)
        kernels.count_columns(rows, pairs.rows, counts)
        starts = np.append(0, np.cumsum(counts))
        at_once = int(np.clip(starts[-1] // 8, *_ENTRIES_AT_ONCE))
        cuts = np.searchsorted(starts, np.arange(0, starts[-1], at_once))
        cuts = np.unique(np.concatenate([[0], cuts, [n_features]]))
        found: list[Any] = [None] * (len(cuts) - 1)

        def work(i: int) -> None:
            first, last = cuts[i], cuts[i + 1]
            size, ends = starts[last] - starts[first], np.empty(last - first, np.int64)
            classes, values = np.empty(size, np.int32), np.empty(size, np.float32)
            places = starts[first:last] - starts[first]
            kernels.sum_columns(rows, pairs, np.float32(scale), first, places, ends, classes, values)
            n = ends[-1] if len(ends) else 0
            found[i] = [np.diff(ends, prepend=0), classes[:n].copy(), values[:n].copy()]

        run(work, len(found), n_threads)
        matrix = sparse.csc_matrix((n_classes, n_features), dtype=np.float32)
        matrix.indptr = np.append(0, np.cumsum(_join_parts(found, np.int64)))
        matrix.indices, matrix.data = _join_parts(found, np.int32), _join_parts(found, np.float32)
        return cls(matrix, data.class_counts(n_classes, weighted=True).astype(np.float64))

    def plus(self, other: ClassSums) -> ClassSums:
        """Return the sums over both sets of rows."""
        matrix = (self.matrix + other.matrix).tocsc()
        matrix.sort_indices()
        matrix.indptr, matrix.indices = matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32)
        return ClassSums(matrix, self.counts + other.counts)

    def take(self, index: Int64) -> ClassSums:
        """Return the sums of some classes, in a given order."""
        return ClassSums(by_columns(self.matrix.tocsr()[index]), self.counts[index])

    def stacked(self, other: ClassSums) -> ClassSums:
        """Return the sums with those of further classes behind the others."""
        matrix = sparse.vstack([self.matrix.tocsr(), other.matrix.tocsr()], format="csr")
        return ClassSums(by_columns(matrix), np.concatenate([self.counts, other.counts]))

    @cached_property
    def arrays(self) -> Sums:
        """The sums as the kernels take them; they share the memory of the matrix."""
        matrix: Any = self.matrix
        classes, offsets = matrix.indices.astype(np.int32, copy=False), matrix.indptr
        (n_classes, n_features), feature_mass = matrix.shape, np.zeros(matrix.shape[1])
        mass, squares = np.zeros(n_classes), np.zeros(n_classes)
        for first, last in split(n_features, _FEATURES_PER_TASK):  # temporaries of all would be three times S
            part = slice(offsets[first], offsets[last])
            values = matrix.data[part].astype(np.float64)
            mass += np.bincount(classes[part], weights=values, minlength=n_classes)
            squares += np.bincount(classes[part], weights=values * values, minlength=n_classes)
            columns = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
            positive = np.maximum(values, 0.0)
            feature_mass[first:last] = np.bincount(columns, weights=positive, minlength=last - first)
        mass = np.maximum(mass, 1e-3)
        total = float(max(feature_mass.sum(), 1e-3))
        return Sums(matrix.indptr, classes, matrix.data, feature_mass, mass, self.counts, squares, total)

    def state(self) -> State:
        """Return what a model folder stores."""
        matrix: Any = self.matrix
        arrays = {"offsets": matrix.indptr, "classes": matrix.indices, "values": matrix.data}
        return State({"shape": list(matrix.shape)}, {**arrays, "counts": self.counts})

    @classmethod
    def from_state(cls, state: State) -> ClassSums:
        """Build the sums that `state` described."""
        matrix = restore_matrix(sparse.csc_matrix, state, "classes")
        counts = checks.get_array(state.arrays, "counts", "f8", (matrix.shape[0],))
        return cls(matrix, np.asarray(counts))


def _join_parts(parts: list[list[NDArray[Any]]], kind: Any) -> NDArray[Any]:
    """Join the first arrays of all parts, and drop each as it is copied."""
    joined = np.empty(sum(len(part[0]) for part in parts), kind)
    at = 0
    for part in parts:
        array = part.pop(0)
        joined[at : at + len(array)] = array
        at += len(array)
    return joined


def by_columns(matrix: Any) -> Any:
    """Return a matrix by column, classes ascending, with indices as the kernels take them."""
    columns = sparse.csc_matrix(matrix, dtype=np.float32)
    columns.sort_indices()
    columns.indptr = columns.indptr.astype(np.int64)
    columns.indices = columns.indices.astype(np.int32, copy=False)
    return columns


def check_numbers(numbers: Numbers, n_features: int) -> None:
    """Raise ModelFileError for numbers of a saved start that name buckets or columns that there are not."""
    arrays = numbers._asdict()
    edges = checks.get_array(arrays, "edges", "i8", (None,))
    groups = checks.get_array(arrays, "groups", "i8", (None,))
    checks.check_range(groups, "groups", 0, n_features + 1)
    n_buckets = (1 + len(groups)) * (len(edges) + 1)
    for name, size in (("log_weights", n_buckets), ("cosine_weights", n_buckets), ("bias_weights", 3)):
        checks.check_finite(checks.get_array(arrays, name, "f8", (size,)), name)


def make_start(
    arrays: Sums, numbers: Numbers, n_threads: int, features: Int64 | None = None
) -> SparseWeights:
    """Compute the weights of the start from class sums; where `features` are given, of these alone."""
    if features is None:
        features = np.arange(len(arrays.offsets) - 1)
    values = np.zeros(len(arrays.values), np.float32)
    tasks, norms = split(len(features), _FEATURES_PER_TASK), np.sqrt(arrays.squares)

    def work(i: int) -> None:
        kernels.fill_weights(arrays, numbers, features, norms, values, *tasks[i])

    run(work, len(tasks), n_threads)
    return SparseWeights(Postings(arrays.offsets, arrays.classes, values), *_biases(arrays, numbers))


def join_start(
    arrays: Sums,
    numbers: Numbers,
    pruning: tuple[Float32, float],
    n_threads: int,
    linear: tuple[Postings, float] | None = None,
    kinds: tuple[Any, Any] = (np.int32, np.float32),
    features: Int64 | None = None,
) -> SparseWeights:
    """Compute the weights of the start, of some `features` or all, and linear ones times a factor.

    `pruning` and `kinds` are those of `add_postings`. The weights that are left out never take memory.
    """
    n_features, norms = len(arrays.offsets) - 1, np.sqrt(arrays.squares)
    (mean, threshold), (other, factor) = pruning, linear or (no_postings(n_features), 1.0)
    tasks = split(n_features, _FEATURES_PER_TASK)
    parts: list[Any] = [None] * len(tasks)
    edges = [first for first, _ in tasks] + [n_features]
    cuts = edges if features is None else np.searchsorted(features, edges)

    def work(i: int) -> None:
        first, last = tasks[i]
        part = slice(arrays.offsets[first], arrays.offsets[last])
        offsets = arrays.offsets[first : last + 1] - part.start
        sums = arrays._replace(
            offsets=offsets, classes=arrays.classes[part], values=arrays.values[part],
            feature_mass=arrays.feature_mass[first:last],
        )  # fmt: skip
        values = np.zeros(len(sums.values), np.float32)
        some = np.arange(last - first) if features is None else features[slice(*cuts[i : i + 2])] - first
        local = numbers._replace(groups=numbers.groups - first)
        kernels.fill_weights(sums, local, some, norms, values, 0, len(some))
        one = Postings(offsets, sums.classes, values)
        two = scaled_postings(some_postings(other, first, last), factor)
        found = add_postings(one, two, (mean[first:last], threshold), 1, kinds)
        parts[i] = [np.diff(found.offsets), found.classes, found.values, found.steps]

    run(work, len(tasks), n_threads)
    ends = np.append(0, np.cumsum(_join_parts(parts, np.int64)))
    postings = Postings(ends, *(_join_parts(parts, kind) for kind in (*kinds, np.float32)))
    return SparseWeights(postings, *_biases(arrays, numbers))


def _biases(arrays: Sums, numbers: Numbers) -> tuple[Float32, Float32]:
    """Return the biases of the start, and those for each unit of a row's mass."""
    log_mass = np.log1p(arrays.mass / numbers.smoothing)
    length, prior, mass = numbers.bias_weights
    biases = prior * np.log(np.maximum(arrays.counts, 1e-3)) + mass * log_mass
    return biases.astype(np.float32), (length * log_mass).astype(np.float32)


def mix_numbers(numbers: Numbers, start: float, cosine: float) -> Numbers:
    """Return the numbers of the start times a factor, beside the cosine with class sums times another."""
    return numbers._replace(
        log_weights=start * numbers.log_weights,
        cosine_weights=start * numbers.cosine_weights + cosine,
        bias_weights=start * numbers.bias_weights,
    )


def fit_numbers(
    arrays: Sums,
    rows: CSRRows,
    data: Examples,
    config: SparseConfig,
    seed: int,
    n_threads: int,
    groups: tuple[int, ...] = (),
) -> tuple[Numbers, float]:
    """Choose smoothing, weights and biases of the start by leave-one-out likelihood of training pairs.

    Returns the numbers and the mean log-likelihood per pair; not a number where pairs are too few.
    """
    mean_mass = float(arrays.mass.sum() / max(arrays.counts.sum(), 1e-6))
    smallest = min(config.smoothing, default=0.0) * mean_mass
    if not (0.0 < smallest < np.inf and 1.0 < config.smoothing_step < np.inf):
        raise ValueError(
            f"the smoothing of the start would be {smallest:g}, from a mean mass of {mean_mass:g} per row;"
            " fit the model again."
        )
    n_pairs, n_search = sample_sizes(rows, config)
    pairs = sample_pairs(arrays.counts, data, n_pairs, seed)
    first = _initial_numbers(mean_mass * config.smoothing[1], groups, config)
    if len(pairs) < config.min_sample_pairs or len(arrays.counts) < 3:
        return first, float("nan")
    fitter = _Fitter(arrays, rows, data, config, seed, n_threads)
    tried: dict[float, tuple[float, Numbers]] = {}

    def try_smoothing(a: float, guess: Numbers) -> float:
        if a not in tried:
            tried[a] = fitter.fit(pairs[:n_search], a, guess, tolerance=_ROUGH)
            if data.n_ordinary is not None:
                # by candidates of the guess, class texts made a value seem 0.4 nats better than it is
                tried[a] = fitter.fit(pairs[:n_search], a, tried[a][1], tolerance=_ROUGH)
        return tried[a][0]

    guess = first
    for factor in config.smoothing:
        try_smoothing(mean_mass * factor, guess)
        guess = tried[max(tried, key=lambda a: tried[a][0])][1]
    for _ in range(config.max_smoothing_steps):
        best = max(tried, key=lambda a: tried[a][0])
        neighbours = [best / config.smoothing_step, best * config.smoothing_step]
        new = [a for a in neighbours if not any(abs(np.log(a / known)) < 0.1 for known in tried)]
        if not new:
            break
        before = tried[best][0]
        if max(try_smoothing(a, tried[best][1]) for a in new) <= before:
            break
    best = max(tried, key=lambda a: tried[a][0])
    value, numbers = fitter.fit(pairs, best, tried[best][1])
    return numbers, value


def sample_sizes(rows: CSRRows, config: SparseConfig) -> tuple[int, int]:
    """Return how many pairs fit the numbers, and how many choose the smoothing: fewer of long rows."""
    return sizes_for(len(rows.data) / max(len(rows.indptr) - 1, 1), config)


def sizes_for(mean_entries: float, config: SparseConfig) -> tuple[int, int]:
    """Return the same for rows of so many entries."""
    affordable = max(int(config.sample_entries / max(mean_entries, 1.0)), config.long_sample_pairs)
    n_pairs = min(config.sample_pairs, affordable)
    return n_pairs, config.search_pairs * n_pairs // config.sample_pairs


def sample_pairs(weights: Float64, data: Examples, size: int, seed: int) -> Int64:
    """Return random pairs whose class has other rows too; `weights` are those of all pairs of each class."""
    counts = np.bincount(data.y, minlength=len(weights))
    has_others = (counts[data.y] >= 2) | (weights[data.y] >= 1.5 * data.pair_weight)
    if data.n_ordinary is not None:
        has_others &= data.rows < data.n_ordinary
    known = np.flatnonzero(has_others)
    generator = np.random.default_rng((seed, 21))
    chosen = generator.permutation(known)[:size] if len(known) <= 4 * size else generator.choice(known, size)
    return np.asarray(chosen, np.int64)


def _initial_numbers(smoothing: float, groups: tuple[int, ...], config: SparseConfig) -> Numbers:
    """Return naive Bayes with a flattened prior: numbers that are reasonable without any fit."""
    n_buckets = (1 + len(groups)) * (len(config.bucket_edges) + 1)
    return Numbers(
        float(smoothing),
        np.full(n_buckets, 0.5),
        np.full(n_buckets, 4.0),
        np.array([-0.4, 0.5, 0.0]),
        np.array(config.bucket_edges, np.int64),
        np.array(groups, np.int64),
    )


class _Fitter:
    """Terms of candidate classes of leave-one-out pairs, and the numbers that fit them."""

    def __init__(
        self,
        arrays: Sums,
        rows: CSRRows,
        data: Examples,
        config: SparseConfig,
        seed: int,
        n_threads: int,
    ) -> None:
        self.arrays, self.rows, self.data, self.config = arrays, rows, data, config
        self.seed, self.n_threads = seed, n_threads
        n_classes = len(arrays.counts)
        best = min(config.best_candidates, max(1, (n_classes - 1) // 2) if n_classes > 300 else n_classes - 1)
        self.sizes = best, min(config.drawn_candidates, max(0, n_classes - 1 - best))

    def fit(
        self, pairs: Int64, smoothing: float, guess: Numbers, *, tolerance: float = _EXACT
    ) -> tuple[float, Numbers]:
        """Return the leave-one-out log-likelihood of the best numbers for a smoothing, and the numbers."""
        guess = guess._replace(smoothing=smoothing)
        log_weight, phi = self._describe(pairs, guess)
        weight = self.data.pair_weight[pairs].astype(np.float64)
        theta = np.concatenate([guess.log_weights, guess.cosine_weights, guess.bias_weights])
        n = len(guess.log_weights)
        slope = CountSlope(self._slope(pairs, guess), self.config.count_slope, self.config.slope_penalty)
        penalty = self.config.number_penalty
        value, theta = _fit_log_linear(phi, log_weight, weight, theta, penalty, slope, tolerance)
        return value, guess._replace(
            log_weights=theta[:n].copy(), cosine_weights=theta[n : 2 * n].copy(),
            bias_weights=theta[2 * n :].copy(),
        )  # fmt: skip

    def _pairs(self, pairs: Int64) -> kernels.Pairs:
        data = self.data
        return kernels.Pairs(data.rows[pairs], data.y[pairs].astype(np.int32), data.pair_weight[pairs])

    def _slope(self, pairs: Int64, guess: Numbers) -> Float64:
        """Return the mean slope of each term by the log of the size of the class, over some pairs."""
        some = self._pairs(pairs[: self.config.slope_pairs])
        total = np.zeros(2 * len(guess.log_weights) + 3)
        kernels.add_count_slopes(self.rows, some, self.arrays, guess, total)
        return total / len(some.rows)

    def _hide_labels(self, rows: Int64, scores: Float32) -> None:
        """Keep the labels of a row from being candidates: the row is in their sums."""
        data = self.data
        if data.row_index is not None:
            edges = np.searchsorted(data.row_index, [rows, rows + 1])
            for line, low, high in zip(scores, *edges, strict=True):
                line[data.y[low:high]] = -np.inf

    def _describe(self, pairs: Int64, guess: Numbers) -> tuple[Float32, Float32]:
        """Return log-weights and terms of the candidates of some pairs."""
        rows, given = self.rows, self._pairs(pairs)
        parts = [slice(*rows.indptr[r : r + 2]) for r in given.rows]
        features = np.unique(np.concatenate([rows.indices[part] for part in parts]))
        start = make_start(self.arrays, guess, self.n_threads, features.astype(np.int64))
        masses = np.array([rows.data[part].sum() for part in parts], np.float32)
        n_best, n_drawn = self.sizes
        shape = len(pairs), 1 + n_best + n_drawn
        n_classes = len(self.arrays.counts)
        found = kernels.Candidates(
            np.full(shape, -1, np.int32), np.zeros(shape, np.float32),
            np.zeros((*shape, 2 * len(guess.log_weights) + 3), np.float32), np.empty(len(pairs), np.int64),
        )  # fmt: skip
        tasks = split(len(pairs), _PAIRS_PER_TASK)

        def work(i: int) -> None:
            first, last = tasks[i]
            slot, scores = np.full(n_classes, -1, np.int32), masses[first:last, None] * start.length_biases
            scores += start.biases
            self._hide_labels(given.rows[first:last], scores)
            best = np.empty(n_best, np.int32), np.empty(n_best, np.float32)
            kernels.choose_candidates(
                rows, given, self.arrays, start.postings.values, n_best, n_drawn, self.seed, scores, slot,
                best, found, first, last,
            )  # fmt: skip
            kernels.describe_pairs(rows, given, self.arrays, guess, slot, found, first, last)

        run(work, len(tasks), self.n_threads)
        return found.log_weight, found.terms


class CountSlope(NamedTuple):
    """Bounds on how a score may change with the log of the size of its class.

    A row that is left out makes its own class smaller by one and no other. Where classes are of about equal
    size, "the smallest class" is then the best answer of all, and only for these rows.
    """

    terms: Float64  # mean slope of each term
    bounds: tuple[float, float]  # of theta.terms
    penalty: float  # nats per squared distance from the bounds

    def outside(self, theta: Float64) -> float:
        slope, (low, high) = float(self.terms @ theta), self.bounds
        return slope - min(max(slope, low), high)


def _fit_log_linear(
    phi: Float32,
    log_weight: Float32,
    weight: Float64,
    theta: Float64,
    penalty: float,
    slope: CountSlope,
    tolerance: float = _EXACT,
) -> tuple[float, Float64]:
    """Maximise the mean log-probability of candidate 0 under scores ``phi @ theta``.

    Parameters
    ----------
    phi : (n, n_candidates, n_terms)
    log_weight : (n, n_candidates)
        Log of the classes that each candidate stands for.
    """
    weight = weight / weight.sum()
    n, n_candidates, n_terms = phi.shape
    # Terms of equal spread: the search then takes a fraction of the steps.
    scale = np.maximum((phi[:, 1:] - phi[:, :1]).std(axis=(0, 1), dtype=np.float64), 1e-3)
    flat = (phi / scale.astype(np.float32)).reshape(-1, n_terms)
    first = weight @ (phi[:, 0] / scale)
    penalties = penalty / scale**2
    slope = slope._replace(terms=slope.terms / scale)

    def loss(theta: Float64) -> tuple[float, NDArray[Any]]:
        scores = (flat @ theta.astype(np.float32)).reshape(n, n_candidates) + log_weight
        peak = scores.max(axis=1, keepdims=True)
        exp = np.exp(scores - peak)
        total = exp.sum(axis=1, keepdims=True)
        value = float(weight @ (scores[:, 0] - peak[:, 0] - np.log(total[:, 0])))
        exp *= (weight[:, None] / total).astype(np.float32)
        gradient = first - exp.ravel() @ flat
        gap = slope.outside(theta)
        value -= float(penalties @ theta**2) + slope.penalty * gap**2
        gradient -= 2.0 * (penalties * theta + slope.penalty * gap * slope.terms)
        return -value, -gradient

    options = {"maxiter": 200, "ftol": tolerance}
    with one_blas_thread():
        found = minimize(loss, theta * scale, jac=True, method="L-BFGS-B", options=options)
        return -float(loss(found.x)[0]), np.asarray(found.x / scale, np.float64)
