"""The generative start of sparse weights: class sums, and numbers fitted by leave-one-out likelihood.

Formulas stand in `extremax.kernels.sparse_start`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize

from extremax.defaults import SparseConfig
from extremax.examples import Examples
from extremax.kernels import sparse_start as kernels
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_scores import Postings
from extremax.kernels.sparse_start import Numbers, Sums
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.storage.state import State
from extremax.types import Float32, Float64, Int64

_FEATURES_PER_TASK = 4096
_PAIRS_PER_TASK = 50


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
    def of(cls, data: Examples, n_classes: int, n_features: int, scale: float = 1.0) -> ClassSums:
        """Sum the rows of each class, times a scale; columns from `n_features` on are left out."""
        X: Any = data.X
        if X.shape[1] > n_features:
            X = X[:, :n_features]
        pairs = sparse.csr_matrix((data.pair_weight, (data.y, data.rows)), shape=(n_classes, data.n_rows))
        matrix = (pairs @ X).tocsc()
        matrix.sort_indices()
        if scale != 1.0:
            matrix.data *= np.float32(scale)
        matrix.indptr = matrix.indptr.astype(np.int64)
        counts = data.class_counts(n_classes, weighted=True).astype(np.float64)
        return cls(matrix, counts)

    def plus(self, other: ClassSums) -> ClassSums:
        """Return the sums over both sets of rows."""
        matrix = (self.matrix + other.matrix).tocsc()
        matrix.sort_indices()
        matrix.indptr = matrix.indptr.astype(np.int64)
        return ClassSums(matrix, self.counts + other.counts)

    @property
    def arrays(self) -> Sums:
        """The sums as the kernels take them."""
        matrix: Any = self.matrix
        classes = matrix.indices.astype(np.int32, copy=False)
        mass, squares = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[0])
        kernels.add_entry_sums(matrix.data, classes, mass, squares)
        positive = np.maximum(matrix.data, 0.0, dtype=np.float64)
        edges = np.concatenate([[0.0], np.cumsum(positive)])[matrix.indptr]
        feature_mass = np.diff(edges)
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
        arrays = state.arrays
        matrix = sparse.csc_matrix(tuple(state.header["shape"]), dtype=np.float32)
        matrix.indptr, matrix.indices, matrix.data = (arrays[n] for n in ("offsets", "classes", "values"))
        return cls(matrix, np.asarray(arrays["counts"]))


@dataclass(frozen=True, eq=False)
class Start:
    """Weights of the start.

    Attributes
    ----------
    postings
        Weights by feature, for the entries of the class sums.
    biases, length_biases : float32 (n_classes,)
    """

    postings: Postings
    biases: Float32
    length_biases: Float32


def make_start(arrays: Sums, numbers: Numbers, n_threads: int) -> Start:
    """Compute the weights of the start from class sums."""
    values = _weights(arrays, numbers, n_threads)
    log_mass = np.log1p(arrays.mass / numbers.smoothing)
    length, prior, mass = numbers.bias_weights
    biases = prior * np.log(np.maximum(arrays.counts, 1e-3)) + mass * log_mass
    return Start(
        Postings(arrays.offsets, arrays.classes, values),
        biases.astype(np.float32),
        (length * log_mass).astype(np.float32),
    )


def _weights(arrays: Sums, numbers: Numbers, n_threads: int) -> Float32:
    values = np.zeros(len(arrays.values), np.float32)
    tasks = split(len(arrays.offsets) - 1, _FEATURES_PER_TASK)

    def work(i: int) -> None:
        kernels.fill_weights(arrays, numbers, values, *tasks[i])

    run(work, len(tasks), n_threads)
    return values


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
    pairs = _sample_pairs(arrays, data, config.sample_pairs, seed)
    first = _initial_numbers(mean_mass * config.smoothing[1], groups, config)
    if len(pairs) < config.min_sample_pairs or len(arrays.counts) < 3:
        return first, float("nan")
    fitter = _Fitter(arrays, rows, data, config, seed, n_threads)
    tried: dict[float, tuple[float, Numbers]] = {}

    def try_smoothing(a: float, guess: Numbers) -> float:
        if a not in tried:
            tried[a] = fitter.fit(pairs[: config.search_pairs], a, guess)
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


def _sample_pairs(arrays: Sums, data: Examples, size: int, seed: int) -> Int64:
    """Return random pairs whose class has other rows too."""
    counts = np.bincount(data.y, minlength=len(arrays.counts))
    known = np.flatnonzero((counts[data.y] >= 2) | (arrays.counts[data.y] >= 1.5 * data.pair_weight))
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

    def fit(self, pairs: Int64, smoothing: float, guess: Numbers) -> tuple[float, Numbers]:
        """Return the leave-one-out log-likelihood of the best numbers for a smoothing, and the numbers."""
        guess = guess._replace(smoothing=smoothing)
        log_weight, phi = self._describe(pairs, guess)
        weight = self.data.pair_weight[pairs].astype(np.float64)
        theta = np.concatenate([guess.log_weights, guess.cosine_weights, guess.bias_weights])
        n = len(guess.log_weights)
        value, theta = _fit_log_linear(phi, log_weight, weight, theta, self.config.number_penalty)
        return value, guess._replace(
            log_weights=theta[:n].copy(), cosine_weights=theta[n : 2 * n].copy(),
            bias_weights=theta[2 * n :].copy(),
        )  # fmt: skip

    def _describe(self, pairs: Int64, guess: Numbers) -> tuple[Float32, Float32]:
        start = make_start(self.arrays, guess, self.n_threads)
        n_candidates = 1 + sum(self.sizes)
        n_classes = len(self.arrays.counts)
        candidates = np.full((len(pairs), n_candidates), -1, np.int32)
        log_weight = np.zeros((len(pairs), n_candidates), np.float32)
        phi = np.zeros((len(pairs), n_candidates, 2 * len(guess.log_weights) + 3), np.float32)
        tasks, row_of, weights = split(len(pairs), _PAIRS_PER_TASK), self.data.rows, self.data.pair_weight

        def work(i: int) -> None:
            slot = np.full(n_classes, -1, np.int32)
            for k in range(*tasks[i]):
                pair = pairs[k]
                r = row_of[pair]
                part = slice(self.rows.indptr[r], self.rows.indptr[r + 1])
                row = kernels.Row(
                    self.rows.indices[part], self.rows.data[part],
                    int(self.data.y[pair]), float(weights[pair]),
                )  # fmt: skip
                scores = start.biases + row.values.sum() * start.length_biases
                n = kernels.describe_row(
                    row, self.arrays, guess, start.postings.values, self.sizes, self.seed + k,
                    scores, slot, candidates[k], log_weight[k], phi[k],
                )  # fmt: skip
                log_weight[k, n:] = -np.inf

        run(work, len(tasks), self.n_threads)
        return log_weight, phi


def _fit_log_linear(
    phi: Float32,
    log_weight: Float32,
    weight: Float64,
    theta: Float64,
    penalty: float,
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

    def loss(theta: Float64) -> tuple[float, NDArray[Any]]:
        scores = (flat @ theta.astype(np.float32)).reshape(n, n_candidates) + log_weight
        peak = scores.max(axis=1, keepdims=True)
        exp = np.exp(scores - peak)
        total = exp.sum(axis=1, keepdims=True)
        value = float(weight @ (scores[:, 0] - peak[:, 0] - np.log(total[:, 0])))
        exp *= (weight[:, None] / total).astype(np.float32)
        gradient = first - exp.ravel() @ flat
        return -value + float(penalties @ theta**2), -gradient + 2.0 * penalties * theta

    options = {"maxiter": 200, "ftol": 1e-7}
    with one_blas_thread():
        found = minimize(loss, theta * scale, jac=True, method="L-BFGS-B", options=options)
        return -float(loss(found.x)[0]), np.asarray(found.x / scale, np.float64)
