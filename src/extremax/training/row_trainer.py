"""Training with negatives drawn for each row: the paper's method and its baselines.

Inside a window of shuffled pairs come minibatches: negatives are drawn, scores and coefficients computed from
frozen weights, then each thread updates the classes it owns. The number of threads changes nothing but the
time."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from extremax.defaults import ProblemSize
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.features.scaling import ColumnScaling
from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.phases import abandon, new_schedule
from extremax.kernels.row_training import AlongRow, Pairs, PerWeight, Step
from extremax.kernels.row_updates import ModelArrays
from extremax.noise import Noise, mean_log_prob
from extremax.runtime.memory import largest_phase
from extremax.runtime.threads import run, run_together, split
from extremax.training.base import (
    Progress,
    TrainerBase,
    TrainState,
    class_means,
    find_feature_scale,
    labelled_rows,
    projection_memory,
    row_weight,
    tree_memory,
)
from extremax.training.noise_fit import fit_noise, own_projection
from extremax.training.optimizers import Tables, shrink
from extremax.training.order import RowSource, Window, epoch_seed, epoch_windows, row_source
from extremax.types import Float32, Int64

_GATHER_ROWS = 8192  # rows that a thread copies at a time


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

    def memory(self, problem: ProblemSize) -> dict[str, int]:
        config = self.config
        weights, accumulators = Tables.bytes_needed(problem.n_classes, problem.n_features, config.optimizer)
        window = min(problem.n_pairs, config.numbers.order.window_bytes // (4 * problem.n_features) + 1)
        # Classes, noise, scores and coefficients of the pairs of a window, and what is drawn.
        rows = 20 * problem.n_pairs + window * (20 * (1 + config.n_negatives) + 8 * config.n_negatives + 24)
        need = {"weights": weights, "accumulators": accumulators}
        if not config.uses_tree:
            return need | {"rows": rows}
        start = projection_memory(problem, config.tree_components, self.context.n_threads)
        # The tables are made when the projection is found.
        return largest_phase(start, need | {"rows": rows} | tree_memory(problem, config.tree_components))

    def accept(self, data: Examples) -> Examples:
        scales = self.config.scale_features and sparse.issparse(data.X)
        return self.limit_sparse(data) if scales else data

    def start(self, data: Examples, n_classes: int) -> TrainState:
        config, context, numbers = self.config, self.context, self.config.numbers
        X = data.X
        n_features = int(X.shape[1])
        scaling, limited = None, self.accepted
        if config.scale_features and not sparse.issparse(X):
            scaling, limited = self.find_scaling(data)
        if scaling is not None:
            scale = scaling.feature_scale
        else:
            scale = (
                find_feature_scale(X, labelled_rows(data), numbers.scale) if config.scale_features else 1.0
            )
        if config.uses_tree:
            projection: PCA | None = self._project(data, scale, scaling)
        else:
            projection = own_projection(config.noise, n_features)
        square = numbers.rows.initial_square
        tables = Tables.zeros(n_classes, n_features, config.optimizer, initial_square=square)
        Z = self.projected.get(projection, X, scaling)
        noise, chosen = fit_noise(data, Z, n_classes, config, context)
        state = TrainState(tables, scale, noise, projection, scaling=scaling, chosen=limited | chosen)
        if config.definition.starts_at_noise:
            most = max(numbers.rows.min_start_rows, numbers.rows.start_log_probs // n_classes)
            some = np.linspace(0, data.n_pairs - 1, min(data.n_pairs, most)).astype(np.int64)
            some = some if data.row_index is None else np.unique(data.row_index[some])
            tables.biases[:] = mean_log_prob(noise, Z[some], n_jobs=context.n_threads)
        return state

    def _project(self, data: Examples, scale: float, scaling: ColumnScaling | None) -> PCA:
        """Return the principal components that the tree is fitted on, of scaled features.

        The tree's regularization then means the same for features of any magnitude.
        """
        self.context.progress.log("projecting the features")
        config = self.config
        kept = min(config.tree_components, int(data.X.shape[1]))
        options: dict[str, Any] = {"max_rows": None} if config.tree_fit == "paper" else {}
        options |= {"n_jobs": self.context.n_threads, "scaling": scaling}
        found = PCA.fit(data.X, kept, sample_weight=row_weight(data), **options)
        if scaling is None:
            components = found.components[:kept] * np.float32(scale)
            projection = PCA(components, found.mean, found.explained_variance[:kept] * scale**2)
        else:
            given, mean = scaling.to_given(found.components[:kept], found.mean)
            variance = found.explained_variance[:kept]
            projection = PCA(given.astype(np.float32), mean.astype(np.float32), variance)
        return projection.whitened() if config.whiten_components else projection

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
        eta_of_pairs = _pair_values(state, prepared) if config.definition.pair_state else None
        prior = _PriorSchedule(self, tables, data)
        width = 1 + config.n_negatives
        stretch = max(1, config.numbers.rows.progress_pairs // width // config.batch_size) * config.batch_size
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
                train_together(prepared.source.train, window.X, pairs, tables.arrays, step, threads)
                total += float(pairs.losses.sum())
                weight_done += float(pairs.row_weight.sum())
                pairs_done += len(pairs.rows)
                if eta_of_pairs is not None:
                    eta_of_pairs[chosen[cut]] = pairs.eta
                prior.advance(width * len(pairs.rows), weight_done, pairs_done, rate, threads)
                progress.check()
                progress.report(pairs_done, total / max(weight_done, 1e-300))
        return total / max(weight_done, 1e-300)

    def _step(self, state: TrainState, rate: float) -> Step:
        config = self.config
        loss = config.definition.loss
        if config.penalized_scores == "raw" and config.definition.raw_loss is not None:
            loss = config.definition.raw_loss
        if loss is None:
            raise ValueError(
                f"objective {config.objective!r} has no loss; an objective that trains by rows needs one."
            )
        sizes = PerWeight if state.tables.per_weight else AlongRow
        return Step(
            batch_size=config.batch_size,
            objective=loss(config.score_penalty, state.n_epochs, config.numbers.rows.augment_reduce_decay),
            sizes=sizes(np.float32(1.0 if state.scaling else state.feature_scale), np.float32(rate)),
        )

    def _draw(
        self, state: TrainState, prepared: PreparedRows, window: Window, seed: int, threads: int
    ) -> Pairs:
        """Draw the negatives of a window and make room for what is computed of them."""
        config, data = self.config, prepared.data
        n, width, chosen = len(window.pairs), 1 + config.n_negatives, window.pairs
        labels, log_noise = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
        labels[:, 0], log_noise[:, 0] = data.y[chosen], prepared.positive_log_noise[chosen]
        Z = _gather(prepared.Z, window.rows, threads)
        labels[:, 1:], log_noise[:, 1:] = _noise_of(state).sample(Z, config.n_negatives, seed, n_jobs=threads)
        return Pairs(
            rows=window.local,
            labels=labels,
            log_base=log_noise if config.definition.adds_log_noise else np.zeros_like(log_noise),
            log_noise=log_noise,
            row_weight=data.pair_weight[chosen],
            scores=np.empty_like(log_noise),
            coefficients=np.empty_like(log_noise),
            losses=np.empty(n, np.float64),
            eta=np.empty(0, np.float32),
        )


def train_together(
    train: Callable[..., None], X: Any, pairs: Pairs, arrays: ModelArrays, step: Step, threads: int
) -> None:
    """Train on all minibatches of `pairs`, by several threads that share the work."""
    schedule = new_schedule(threads)

    def work(part: int) -> None:
        try:
            train(X, pairs, arrays, step, schedule, part, threads)
        except BaseException:
            abandon(schedule)  # the other threads must not wait for what this one has begun
            raise

    run_together(work, threads)


class _PriorSchedule:
    """When the Gaussian prior takes a step: after several pairs per class, and at the end of the epoch."""

    def __init__(self, trainer: RowTrainer, tables: Tables, data: Examples) -> None:
        self.variance = trainer.config.prior_variance
        self.tables, self.n_pairs = tables, data.n_pairs
        self.every = trainer.config.numbers.rows.prior_pairs * tables.n_classes
        self.whole_weight = float(data.pair_weight.sum(dtype=np.float64))
        self.due, self.weight_shrunk = 0, 0.0

    def advance(self, n_scores: int, weight_done: float, pairs_done: int, rate: float, threads: int) -> None:
        if self.variance is None:
            return
        self.due += n_scores
        if self.due >= self.every or pairs_done == self.n_pairs:
            fraction = (weight_done - self.weight_shrunk) / self.whole_weight
            shrink(self.tables, fraction / self.variance, rate, threads)
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
