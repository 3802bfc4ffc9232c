"""Training with negatives drawn for each row: the paper's method and its baselines.

Inside a window of shuffled pairs come minibatches: negatives are drawn, scores and coefficients computed from
frozen weights, then each thread updates the classes it owns. The number of threads changes nothing but the
time."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.features.pca import MAX_ROWS, PCA
from extremax.features.scaling import ColumnScaling
from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.row_training import Pairs, Step, score_part, train, update_part
from extremax.kernels.row_updates import ArrayRows, CSRRows, ModelArrays
from extremax.runtime.threads import run, split
from extremax.solvers.base import (
    Progress,
    TrainerBase,
    TrainState,
    class_means,
    find_feature_scale,
    labelled_rows,
    row_weight,
    tree_memory,
)
from extremax.solvers.config import FitConfig
from extremax.solvers.noise_fit import fit_noise, own_projection
from extremax.solvers.optimizers import Tables, shrink
from extremax.solvers.order import RowSource, Window, epoch_seed, epoch_windows, row_source
from extremax.tree.noise import Noise, mean_log_prob
from extremax.tuned import ProblemSize
from extremax.types import Features, Float32, Int64

_START_LOG_PROBS = 1 << 24  # log-probabilities that the start of NCE is the mean of, by class
_MIN_START_ROWS = 16  # rows of that mean
_GATHER_ROWS = 8192  # rows that a thread copies at a time
_SHARED_VALUES = 1 << 20  # products of a minibatch from which threads share it


@dataclass(frozen=True)
class PreparedRows:
    """Examples with what of the noise never changes.

    Attributes
    ----------
    Z
        Projected rows, one line per row.
    positive_log_noise
        log p_n(y_i|x_i) of each pair, computed once and not in every epoch.
    """

    data: Examples
    source: RowSource
    Z: Float32
    positive_log_noise: Float32


@dataclass(frozen=True)
class RowTrainer(TrainerBase):
    """Objectives whose rows draw their own negatives."""

    remedy = "optimizer='adagrad_row', fewer tree_components or fewer n_negatives"

    def memory(self, problem: ProblemSize, data: Examples | None = None) -> int:
        config = self.config
        solver = self.solver
        need: int = sum(Tables.bytes_needed(problem.n_classes, problem.n_features, solver.optimizer))
        window = min(problem.n_pairs, config.numbers.order.window_bytes // (4 * problem.n_features) + 1)
        # Classes, noise, scores and coefficients of the pairs of a window, and what is drawn.
        need += 20 * problem.n_pairs + window * (20 * (1 + solver.n_negatives) + 8 * solver.n_negatives + 24)
        if solver.uses_tree:
            most = None if solver.tree_fit == "paper" else config.numbers.tree_fit.max_points
            need += tree_memory(problem, solver.tree_components, self.context.n_threads, most)
        return need

    def accept(self, data: Examples) -> Examples:
        scales = self.solver.scale_features and sparse.issparse(data.X)
        return self.limit_sparse(data) if scales else data

    def start(self, data: Examples, n_classes: int) -> TrainState:
        config, numbers = self.config, self.config.numbers
        X = data.X
        scaling, limited = None, self.accepted
        if self.solver.scale_features and not sparse.issparse(X):
            scaling, limited = self.find_scaling(data)
        if scaling is not None:
            scale = scaling.feature_scale
        else:
            scale = (
                find_feature_scale(X, labelled_rows(data), numbers.scale)
                if self.solver.scale_features
                else 1.0
            )
        projection = (
            self._project(X, row_weight(data), scale, scaling)
            if self.solver.uses_tree
            else own_projection(self.solver.noise, int(X.shape[1]))
        )
        square = numbers.rows.initial_square
        tables = Tables.zeros(n_classes, int(X.shape[1]), self.solver.optimizer, initial_square=square)
        Z = self.projected.get(projection, X, scaling)
        noise, chosen = fit_noise(data, Z, n_classes, config, self.context)
        state = TrainState(tables, scale, noise, projection, scaling=scaling, chosen=limited | chosen)
        if self.solver.starts_at_noise:
            tables.biases[:] = self._mean_log_noise(noise, data, Z)
        return state

    def _mean_log_noise(self, noise: Noise, data: Examples, Z: Float32) -> Float32:
        """Return the mean of log p_n of each class over some rows."""
        most = max(_MIN_START_ROWS, _START_LOG_PROBS // noise.n_classes)
        some = np.linspace(0, data.n_pairs - 1, min(data.n_pairs, most)).astype(np.int64)
        some = some if data.row_index is None else np.unique(data.row_index[some])
        return mean_log_prob(noise, Z[some], n_jobs=self.context.n_threads)

    def _project(
        self, X: Features, weight: NDArray[Any] | None, scale: float, scaling: ColumnScaling | None
    ) -> PCA:
        """Return the principal components that the tree is fitted on, of scaled features.

        The tree's regularization then means the same for features of any magnitude.
        """
        self.context.progress.log("projecting the features")
        kept = min(self.solver.tree_components, int(X.shape[1]))
        found = PCA.fit(
            X,
            kept,
            sample_weight=weight,
            max_rows=None if self.solver.tree_fit == "paper" else MAX_ROWS,
            n_jobs=self.context.n_threads,
            scaling=scaling,
        )
        if scaling is None:
            components = found.components[:kept] * np.float32(scale)
            projection = PCA(components, found.mean, found.explained_variance[:kept] * scale**2)
        else:
            given, mean = scaling.to_given(found.components[:kept], found.mean)
            variance = found.explained_variance[:kept]
            projection = PCA(given.astype(np.float32), mean.astype(np.float32), variance)
        return projection.whitened() if self.solver.whiten_components else projection

    def prepare(self, state: TrainState, data: Examples) -> PreparedRows:
        noise = _noise_of(state)
        Z = self.projected.get(state.projection, data.X, state.scaling)
        log_noise = noise.log_prob(data.expand(Z), data.y, n_jobs=self.context.n_threads)
        if noise.tree is not None and state.class_means is None:
            state.class_means = class_means(Z, data, state.tables.n_classes)
        return PreparedRows(data, row_source(data.X, state.scaling), Z, log_noise)

    def epoch(
        self, state: TrainState, prepared: PreparedRows, rates: tuple[float, float], progress: Progress
    ) -> float:
        with self.training_coordinates(state, 1 if JIT_DISABLED else self.context.n_threads):
            loss = self._train(state, prepared, rates, progress)
        state.n_epochs += 1
        return loss

    def _train(
        self, state: TrainState, prepared: PreparedRows, rates: tuple[float, float], progress: Progress
    ) -> float:
        config, data, tables = self.config, prepared.data, state.tables
        threads = 1 if JIT_DISABLED else self.context.n_threads
        seed, rate = self.context.seed, rates[0]
        step = self._step(state, rate)
        eta_of_pairs = _pair_values(state, prepared) if self.solver.pair_state else None
        whole_weight = float(data.pair_weight.sum(dtype=np.float64))
        prior = PriorSchedule(config, tables, data.n_pairs, whole_weight)
        width, stretch = 1 + self.solver.n_negatives, self.stretch_rows
        total, weight_done, pairs_done = 0.0, 0.0, 0
        order = epoch_windows(prepared.source, data, seed, state.n_epochs, config.numbers.order)
        for number, window in order:
            drawn = self._draw(state, prepared, window, epoch_seed(seed, state.n_epochs, number), threads)
            chosen = window.pairs
            eta = np.empty(len(chosen), np.float32) if eta_of_pairs is None else eta_of_pairs[chosen]
            tables_of_pairs: Any = drawn._replace(eta=eta)
            for start in range(0, len(chosen), stretch):
                cut = slice(start, start + stretch)
                pairs = Pairs(*(table[cut] for table in tables_of_pairs))
                ends = batch_ends(len(pairs.rows), self.solver.batch_size)
                train_batches(window.X, pairs, ends, tables.arrays, step, threads)
                total += float(pairs.losses.sum())
                weight_done += float(pairs.row_weight.sum())
                pairs_done += len(pairs.rows)
                if eta_of_pairs is not None:
                    eta_of_pairs[chosen[cut]] = pairs.eta
                prior.advance(width * len(pairs.rows), weight_done, pairs_done, rate, threads)
                progress.check()
                progress.report(pairs_done, total / max(weight_done, 1e-300))
        return total / max(weight_done, 1e-300)

    @property
    def stretch_rows(self) -> int:
        """Rows, in whole minibatches, between two looks at clock, interrupts and prior."""
        size: int = self.solver.batch_size
        n_rows: int = self.config.numbers.rows.progress_pairs // (1 + self.solver.n_negatives)
        return max(1, n_rows // size) * size

    def _step(self, state: TrainState, rate: float) -> Step:
        objective = self.solver.loss(state.n_epochs, self.config.numbers.rows)
        scale = 1.0 if state.scaling else state.feature_scale
        return Step(objective, np.float32(scale), np.float32(rate))

    def _draw(
        self, state: TrainState, prepared: PreparedRows, window: Window, seed: int, threads: int
    ) -> Pairs:
        """Draw the negatives of a window, and allocate the arrays of its pairs."""
        data = prepared.data
        n, width, chosen = len(window.pairs), 1 + self.solver.n_negatives, window.pairs
        labels, log_noise = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
        labels[:, 0], log_noise[:, 0] = data.y[chosen], prepared.positive_log_noise[chosen]
        Z = _gather(prepared.Z, window.rows, threads)
        labels[:, 1:], log_noise[:, 1:] = _noise_of(state).sample(
            Z, self.solver.n_negatives, seed, n_jobs=threads
        )
        return Pairs(
            rows=window.local,
            labels=labels,
            log_base=log_noise if self.solver.adds_log_noise else np.zeros_like(log_noise),
            log_noise=log_noise,
            row_weight=data.pair_weight[chosen],
            scores=np.empty_like(log_noise),
            coefficients=np.empty_like(log_noise),
            losses=np.empty(n, np.float64),
            eta=np.empty(0, np.float32),
        )


def batch_ends(n_rows: int, batch_size: int) -> Int64:
    """Return where minibatches of consecutive rows begin, and the end of the last.

    Examples
    --------
    >>> batch_ends(7, 3).tolist()
    [0, 3, 6, 7]
    """
    return np.append(np.arange(0, n_rows, batch_size, dtype=np.int64), n_rows)


def train_batches(X: Any, pairs: Pairs, ends: Int64, model: ModelArrays, step: Step, n_threads: int) -> None:
    """Train on minibatches of rows of X, an array or `CSRRows`; the number of threads changes no bit.

    Threads share a minibatch where it is large enough to pay for them.
    """
    X = X if isinstance(X, CSRRows) else ArrayRows(X)
    n_values = (ends[-1] - ends[0]) * pairs.labels.shape[1] * model.weights.shape[1]
    if n_threads == 1 or n_values < _SHARED_VALUES * (len(ends) - 1):
        train(X, pairs, ends, model, step)
        return
    for start, stop in itertools.pairwise(ends.tolist()):
        cuts = [start + part * (stop - start) // n_threads for part in range(n_threads + 1)]
        score: Any = partial(_score_part, (X, pairs, model, step), cuts)
        update: Any = partial(update_part, X, pairs, model, step, start, stop, n_threads)
        run(score, n_threads, n_threads)
        run(update, n_threads, n_threads)


def _score_part(rest: tuple[Any, Any, Any, Any], cuts: list[int], part: int) -> None:
    X, pairs, model, step = rest
    score_part(X, pairs, model, step, cuts[part], cuts[part + 1])


@dataclass
class PriorSchedule:
    """When the Gaussian prior takes a step: after several pairs per class, and at the end of the epoch.

    Attributes
    ----------
    config
        Its variance, and the pairs per class.
    tables
        What it shrinks.
    n_pairs, whole_weight
        Pairs of an epoch, and their weight.
    """

    config: FitConfig
    tables: Tables
    n_pairs: int
    whole_weight: float
    due: int = 0
    weight_shrunk: float = 0.0

    def advance(self, n_scores: int, weight_done: float, pairs_done: int, rate: float, threads: int) -> None:
        variance = self.config.solver.prior_variance
        if variance is None:
            return
        self.due += n_scores
        every = self.config.numbers.rows.prior_pairs * self.tables.n_classes
        if self.due >= every or pairs_done == self.n_pairs:
            fraction = (weight_done - self.weight_shrunk) / self.whole_weight
            shrink(self.tables, fraction / variance, rate, threads)
            self.due, self.weight_shrunk = 0, weight_done


def _noise_of(state: TrainState) -> Noise:
    if state.noise is None:
        raise ValueError("the model has no noise distribution, which drawing negatives needs; fit it again.")
    return state.noise


def _gather(table: Float32, rows: Int64, threads: int) -> Float32:
    """Return ``table[rows]``, by several threads: rows in random order are one cache miss each."""
    out = np.empty((len(rows), table.shape[1]), table.dtype)
    blocks = split(len(rows), _GATHER_ROWS)

    def take(i: int) -> None:
        cut = slice(*blocks[i])
        np.take(table, rows[cut], axis=0, out=out[cut], mode="clip")  # other modes go through a buffer

    run(take, len(blocks), threads)
    return out


def _pair_values(state: TrainState, prepared: PreparedRows) -> Float32:
    """Return eta of each pair, kept from epochs before on the same pairs; below zero for a pair not seen
    yet.
    """
    y: Any = prepared.data.y
    key = zlib.crc32(prepared.positive_log_noise.tobytes(), zlib.crc32(y.tobytes()))
    if state.pair_values is None or len(state.pair_values) != len(y) or state.pair_key != key:
        state.pair_values, state.pair_key = np.full(len(y), -1.0, np.float32), key
    return state.pair_values
