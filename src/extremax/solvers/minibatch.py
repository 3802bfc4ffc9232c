"""Softmax over classes that a minibatch shares: one matrix product scores every row against every class of a
set.

Per-row negatives cost a read of a weight row each; a set of a thousand classes that 256 rows share costs the
same reads once, and BLAS does the arithmetic. `extremax.solvers.class_sets` says where the classes come
from, `extremax.kernels.batch_softmax` has the estimate; with a set of all classes it is the softmax itself
(Eq. 1).

A row with several labels makes a pair with each, and its other labels are not among its negatives: the
decoupled softmax of DEXML (Jain et al., arXiv 2310.10636). Scores are then log-odds, up to a constant of the
row."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.kernels.batch_softmax import (
    apply_shared,
    draw_shared,
    find_slots,
    leave_out_labels,
    penalized_softmax,
    shared_softmax,
)
from extremax.kernels.compile import JIT_DISABLED
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.solvers.base import (
    Progress,
    TrainState,
    class_means,
    find_feature_scale,
    labelled_rows,
    row_weight,
    tree_memory,
    whitening_memory,
)
from extremax.solvers.class_sets import ClassSets, cell_gain, count_cells, route
from extremax.solvers.noise_fit import fit_tree
from extremax.solvers.optimizers import Tables
from extremax.solvers.order import DenseRows, Window, epoch_seed, epoch_windows
from extremax.solvers.stream import StreamMoments, log_likelihood
from extremax.solvers.warm_start import (
    WarmStart,
    WhitenedTrainer,
    discriminant_projection,
    start_discriminant,
)
from extremax.tree.layout import depth_of
from extremax.tree.noise import TreeNoise
from extremax.tree.tuning import TunedTree
from extremax.tuned import ProblemSize, has_many_classes
from extremax.types import Float32, Float64, Int32, Int64

_ROW_BLOCK, _CLASS_BLOCK = 64, 256  # of one task; independent of the threads, so that they change no result

_WARM_UP_POWER = 2.0  # of the fraction of the warm-up that is done
_MIN_CELL_GAIN = 1.0  # how much better sets with a cell's classes cover held-out labels, at least
_INITIAL_GRADIENTS = 20.0  # gradients of full length that a class's Adagrad sum starts with
_MIN_INITIAL_SQUARE = 0.08  # with many features no first step changes a score by more than 3.5 rates
_INITIAL_BIAS_SQUARE = 0.02
# The sums of all parts of a stream renew the whitening up to so many rows per feature or class ...
_STREAM_REFRESH_ROWS = 32
_STREAM_VALUES = 1 << 22  # ... where sums of classes and products have no more numbers than this
_STREAM_SLACK = 0.5  # nats by which labels of a part may be less probable: a sorted stream waits
_STREAM_TEST_ROWS = 512  # rows of the next part that compare the weights with a new discriminant


@dataclass(frozen=True)
class PreparedBatches:
    """Examples with the class sets of their minibatches.

    Attributes
    ----------
    cells
        Cell of each pair, or None.
    max_step
        The longest step that a class may take in a minibatch (Adagrad with one sum per class).
    """

    data: Examples
    sets: ClassSets
    cells: Int32 | None
    batch_size: int
    max_step: float


class _Buffers:
    """Arrays of a minibatch, used again by the next one."""

    def __init__(self, batch_size: int, set_size: int, n_features: int, n_classes: int) -> None:
        self.all_classes = set_size == n_classes  # their rows are the weight table itself
        self.x = np.empty((batch_size, n_features), np.float32)
        self.scores = np.empty(batch_size * set_size, np.float32)
        self.table = np.empty((0 if self.all_classes else set_size, n_features), np.float32)
        self.gradients = np.empty((set_size + batch_size, n_features), np.float32)
        self.classes = np.empty(set_size + batch_size, np.int32)
        self.minus_log_pi = np.empty(set_size, np.float32)
        self.scratch = np.empty(2 * set_size + 4, np.int64)
        self.place = np.full(n_classes, -1, np.int32)
        self.slots = np.empty(batch_size, np.int32)
        self.extra = np.empty(batch_size, np.int32)
        self.positive = np.empty(batch_size, np.float32)
        self.losses = np.empty(batch_size, np.float64)


@dataclass(frozen=True)
class MinibatchTrainer(WhitenedTrainer):
    """Objectives whose minibatches share classes."""

    remedy = "solver='negative_sampling', which does not whiten features, or a smaller batch_size or n_shared"

    def memory(self, problem: ProblemSize, data: Examples | None = None) -> int:
        solver, n_features, n_classes = self.solver, problem.n_features, problem.n_classes
        need: int = sum(Tables.bytes_needed(n_classes, n_features, solver.optimizer))
        size, batch = solver.set_size(n_classes), min(solver.batch_size, problem.n_pairs)
        need += 4 * (batch * size + (2 * size + 2 * batch) * n_features) + 24 * n_classes
        need += 40 * problem.n_pairs  # order, cells, and both once more while they are sorted
        if problem.n_entries is not None:
            need += 4 * problem.n_rows * n_features  # unpacked
        if self._keeps_moments(problem):
            need += 8 * (n_classes + 4 * n_features) * n_features
        if solver.precondition:
            need += whitening_memory(problem, self.config, self.context.n_threads)
        if self._n_cells(problem) > 1:
            most = self.config.numbers.tree_fit.max_points
            need += tree_memory(problem, solver.tree_components, self.context.n_threads, most)
        return need

    def _n_cells(self, problem: ProblemSize) -> int:
        """Return the number of cells that minibatches come from; with 1 no tree is needed."""
        config, n_classes = self.config, problem.n_classes
        size = self.solver.set_size(n_classes)
        few = not has_many_classes(n_classes, size, config.numbers.batch)
        if not (self.solver.uses_tree and size < n_classes and few):
            return 1
        return count_cells(problem.n_pairs, depth_of(n_classes), config.numbers.batch)

    def start(self, data: Examples, n_classes: int) -> TrainState:
        config, context = self.config, self.context
        X, n_features = data.X, int(data.X.shape[1])
        problem = ProblemSize(data.n_rows, data.n_pairs, n_features, n_classes)
        needs_tree = self._n_cells(problem) > 1
        kept = min(self.solver.tree_components, n_features)
        tables = Tables.zeros(
            n_classes, n_features, self.solver.optimizer, initial_square=config.numbers.rows.initial_square
        )
        state = TrainState(tables, 1.0)
        if self.solver.precondition:
            start = self._warm_start(state, data)
            if needs_tree:
                state.projection = self._tree_projection(state, start, data, kept)
            start.whitening.to_features(tables.weights, tables.biases, context.n_threads)
        else:
            if self.solver.scale_features:
                state.feature_scale = find_feature_scale(X, labelled_rows(data), config.numbers.scale)
            if needs_tree:
                state.projection = self._principal_components(state.feature_scale, data, kept)
        if needs_tree:
            Z = self.projected.get(state.projection, X, state.whitening)
            inspect = partial(self._judge_cells, data, Z)
            tree, chosen = fit_tree(data, Z, n_classes, config, context, rough=True, inspect=inspect)
            state.noise = TreeNoise(tree)
            state.chosen |= chosen
        if self._keeps_moments(problem) and (state.whitening is None or state.whitening.scaling is None):
            # a first part that gave a whitening has twice as many rows before the next one
            first = self._enough_rows(problem) if state.whitening is None else 2 * data.n_pairs
            state.stream = StreamMoments.begin(data, n_classes, state.feature_scale, first)
        return state

    def _keeps_moments(self, problem: ProblemSize) -> bool:
        """Whether the whitening of a stream is made anew from the sums of its parts."""
        numbers = (problem.n_classes + problem.n_features) * problem.n_features
        return self.config.renews_whitening and numbers <= _STREAM_VALUES

    def _enough_rows(self, problem: ProblemSize) -> int:
        return int(np.ceil(self.config.numbers.batch.stream_rows * problem.n_features))

    def _add_part(self, state: TrainState, data: Examples) -> None:
        """Make the whitening anew where that is due, then take a part of the stream into the sums."""
        stream = state.stream
        if stream is None:
            return
        n_classes, n_features = stream.class_sums.shape
        if stream.n_rows >= stream.next_refresh and stream.expects(data, _STREAM_SLACK):
            self._renew_whitening(state, stream, data)
            stream = replace(stream, next_refresh=2 * stream.n_rows)
        stream = stream.plus(data, state.feature_scale)
        done = stream.next_refresh > _STREAM_REFRESH_ROWS * max(n_classes, n_features)
        state.stream = None if done else stream

    def _renew_whitening(self, state: TrainState, stream: StreamMoments, data: Examples) -> None:
        """Whiten by all parts so far; start anew from their class means where the next part prefers that."""
        numbers, tables, threads = self.config.numbers, state.tables, self.context.n_threads
        white, means, prior = stream.discriminant(numbers)
        X: Any = data.X
        pairs = np.arange(min(data.n_pairs, _STREAM_TEST_ROWS))
        rows = np.ascontiguousarray(X[data.rows_of(pairs)], dtype=np.float32)
        y, weight = data.y[pairs], data.pair_weight[pairs]
        half = 0.5 * np.einsum("ck,ck->c", means, means)
        with one_blas_thread():
            products = white.rows(rows, state.feature_scale) @ means.T - half
            now = (rows * np.float32(state.feature_scale)) @ tables.weights.T + tables.biases
        figures = [log_likelihood(scale * products + prior, y, weight) for scale in numbers.warm_start.scales]
        state.whitening = white
        if max(figures) <= log_likelihood(now.astype(np.float64), y, weight):
            return
        best = numbers.warm_start.scales[int(np.argmax(figures))] * numbers.warm_start.init_scale_factor
        tables.weights[...] = best * means
        tables.biases[...] = prior - best * half
        white.to_features(tables.weights, tables.biases, threads)
        self._begin_squares(tables, 1.0)

    def _begin_squares(self, tables: Tables, unit: float) -> None:
        """Start Adagrad's sums, for whitened rows of a mean weight."""
        first = max(_INITIAL_GRADIENTS / tables.weights.shape[1], _MIN_INITIAL_SQUARE)
        tables.squares[...] = first * unit**2
        tables.bias_squares[...] = _INITIAL_BIAS_SQUARE * unit**2

    def _warm_start(self, state: TrainState, data: Examples) -> WarmStart:
        """Set the tables to the linear discriminant, for whitened rows."""
        numbers, tables = self.config.numbers, state.tables
        moments, chosen = self.find_moments(data)
        # weights that sum to one train like weights of one
        unit = float(data.pair_weight.mean(dtype=np.float64))
        data = replace(data, weight=data.pair_weight / np.float32(unit))
        self._begin_squares(tables, unit)
        config = numbers.warm_start
        start = start_discriminant(tables, moments, data, config, self.context, shrinkages=config.shrinkages)
        state.feature_scale, state.whitening = moments.feature_scale, start.whitening
        state.chosen |= chosen | start.chosen
        return start

    def _principal_components(self, scale: float, data: Examples, kept: int) -> PCA:
        self.context.progress.log("projecting the features")
        pca = PCA.fit(data.X, kept, sample_weight=row_weight(data), n_jobs=self.context.n_threads)
        components = pca.components[:kept] * np.float32(scale)
        return PCA(components, pca.mean, pca.explained_variance[:kept] * scale**2)

    def _tree_projection(self, state: TrainState, start: WarmStart, data: Examples, kept: int) -> PCA:
        counts = data.class_counts(state.tables.n_classes, weighted=True)
        config = self.config.numbers.warm_start
        return discriminant_projection(
            state.tables, state.feature_scale, start, counts, kept, config, self.context.n_threads
        )

    def _judge_cells(self, data: Examples, Z: Float32, tuned: TunedTree) -> dict[str, Any]:
        """Choose cells of the tree for the minibatches if held-out labels are found in them."""
        n_classes = tuned.tree.n_classes
        n_cells = self._n_cells(ProblemSize(data.n_rows, data.n_pairs, int(data.X.shape[1]), n_classes))
        routed = route(tuned.structure, Z, n_cells, self.context.n_threads)
        cells = routed if data.row_index is None else routed[data.row_index]
        gain = cell_gain(
            cells, data.y, tuned.held_out, n_classes, self.solver.set_size(n_classes), self._class_exponent
        )
        pays = gain > _MIN_CELL_GAIN
        self.context.progress.log(
            f"classes from cells of the tree: {'yes' if pays else 'no'}, gain {gain:.3g} on held-out rows"
        )
        return {"n_cells": n_cells if pays else 0, "cell_gain": gain}

    @property
    def _class_exponent(self) -> float:
        """Power of the class frequencies by which classes are drawn."""
        exponents: dict[str, float] = {"uniform": 0.0, "frequency": self.solver.noise_exponent}
        return exponents.get(self.solver.noise, self.config.numbers.batch.class_exponent)

    def prepare(self, state: TrainState, data: Examples) -> PreparedBatches:
        config, n_classes = self.config, state.tables.n_classes
        self._add_part(state, data)
        size = self.solver.set_size(n_classes)
        cells = None
        tree = None if state.noise is None else state.noise.tree
        if tree is not None:
            Z = self.projected.get(state.projection, data.X, state.whitening)
            if state.class_means is None:
                state.class_means = class_means(Z, data, n_classes)
            problem = ProblemSize(data.n_rows, data.n_pairs, int(data.X.shape[1]), n_classes)
            n_cells = self._n_cells(problem)
            if n_cells > 1 and state.chosen.get("n_cells", n_cells) > 0:
                routed = route(tree, Z, n_cells, self.context.n_threads)
                cells = routed if data.row_index is None else routed[data.row_index]
        counts = data.class_counts(n_classes, weighted=True).astype(np.float64)
        sets = ClassSets.build(counts, size, exponent=self._class_exponent, cells=cells, y=data.y)
        max_step = config.numbers.batch.max_step if cells is not None and self.solver.precondition else np.inf
        return PreparedBatches(data, sets, cells, min(self.solver.batch_size, data.n_pairs), max_step)

    def _warm_up(self, epochs_done: float) -> float:
        """Return the factor of the learning rate, which rises over the first epochs of a whole fit."""
        config, numbers = self.config, self.config.numbers.batch
        length = numbers.warm_up * config.n_epochs
        if not self.solver.decays or config.streaming or epochs_done >= length:
            return 1.0
        return float((epochs_done / length) ** _WARM_UP_POWER)

    def epoch(
        self, state: TrainState, prepared: PreparedBatches, rates: tuple[float, float], progress: Progress
    ) -> float:
        data, seed, numbers = prepared.data, self.context.seed, self.config.numbers
        threads = 1 if JIT_DISABLED else self.context.n_threads
        X: Any = data.X
        buffers = _Buffers(prepared.batch_size, prepared.sets.size, X.shape[1], state.tables.n_classes)
        total, weight_done, done = 0.0, 0.0, 0
        with self.training_coordinates(state, threads), one_blas_thread():
            for number, window in epoch_windows(DenseRows(X), data, seed, state.n_epochs, numbers.order):
                rng = np.random.default_rng(epoch_seed(seed, state.n_epochs, number))
                batches = _cut(prepared, window.pairs, rng)
                draws = rng.random((len(batches), 2))
                for turn, (cell, part) in enumerate(batches):
                    rate = rates[0] + (rates[1] - rates[0]) * done / data.n_pairs
                    rate *= self._warm_up(state.n_epochs + done / data.n_pairs)
                    batch = _Batch(prepared, buffers, window, part, cell)
                    total += batch.step(state, draws[turn], rate, self.solver.score_penalty, threads)
                    weight_done += float(batch.weight.sum())
                    done += len(part)
                    progress.check()
                    if turn % numbers.batch.progress_batches == numbers.batch.progress_batches - 1:
                        progress.report(done, total / max(weight_done, 1e-300))
        state.n_epochs += 1
        return total / max(weight_done, 1e-300)


def _cut(prepared: PreparedBatches, chosen: Int64, rng: np.random.Generator) -> list[tuple[int, Int64]]:
    """Return places in `chosen`, cut into minibatches of one cell each, in random order."""
    if prepared.cells is None:
        return [(0, np.arange(a, b)) for a, b in split(len(chosen), prepared.batch_size)]
    cells = prepared.cells[chosen]
    by_cell = np.argsort(cells, kind="stable")  # inside a cell the order stays the shuffled one
    edges = np.searchsorted(cells[by_cell], np.arange(int(cells.max()) + 2))
    parts = [
        (cell, by_cell[a + first : a + last])
        for cell, (a, b) in enumerate(itertools.pairwise(edges))
        for first, last in split(int(b - a), prepared.batch_size)
    ]
    return [parts[i] for i in rng.permutation(len(parts))]


class _Batch:
    """One minibatch: draw its classes, score, softmax, update."""

    def __init__(
        self, prepared: PreparedBatches, buffers: _Buffers, window: Window, part: Int64, cell: int
    ) -> None:
        self.data, self.sets, self.max_step = prepared.data, prepared.sets, prepared.max_step
        self.buffers, self.X, self.cell = buffers, window.X, cell
        self.pairs, self.local = window.pairs[part], window.local[part]
        self.labels, self.weight = self.data.y[self.pairs], self.data.pair_weight[self.pairs]

    def _draw(self, n_classes: int, draws: Float64) -> int:
        """Put the shared classes and -log of their inclusion probabilities into the buffers; return how
        many.
        """
        buffers = self.buffers
        if buffers.all_classes:
            buffers.classes[:n_classes] = np.arange(n_classes, dtype=np.int32)
            buffers.minus_log_pi[:n_classes] = 0.0
            return n_classes
        width: int = draw_shared(
            self.sets.everywhere,
            *self.sets.of_cell(self.cell),
            draws[0],
            draws[1],
            buffers.classes,
            buffers.minus_log_pi,
            buffers.scratch,
        )
        return width

    def step(
        self, state: TrainState, draws: Float64, rate: float, score_penalty: float, threads: int
    ) -> float:
        """Train on the minibatch; return the sum of its losses."""
        penalty = np.float32(score_penalty)
        model, buffers, n = state.tables.arrays, self.buffers, len(self.pairs)
        width = self._draw(len(model.weights), draws)
        n_extra = find_slots(
            buffers.classes, width, self.labels, buffers.place, buffers.slots[:n], buffers.extra
        )
        buffers.classes[width : width + n_extra] = buffers.extra[:n_extra]
        shift = buffers.minus_log_pi[:width] + model.biases[buffers.classes[:width]]
        x, scores = buffers.x[:n], buffers.scores[: n * width].reshape(n, width)
        row_blocks, class_blocks = split(n, _ROW_BLOCK), split(width, _CLASS_BLOCK)
        extra_blocks = [(width + a, width + b) for a, b in split(n_extra, _CLASS_BLOCK)]
        table = model.weights if buffers.all_classes else buffers.table[:width]
        edges, owners = self.data.label_edges, self.data.rows_of(self.pairs)

        def gather(i: int) -> None:
            if i < len(row_blocks):
                a, b = row_blocks[i]
                _whitened(state, self.X[self.local[a:b]], x[a:b])
            else:
                a, b = class_blocks[i - len(row_blocks)]
                np.take(model.weights, buffers.classes[a:b], axis=0, out=table[a:b], mode="clip")

        def score(i: int) -> None:
            a, b = row_blocks[i]
            with np.errstate(
                invalid="ignore"
            ):  # BLAS may flag lanes beyond the matrix; NaN shows in the loss
                np.matmul(x[a:b], table.T, out=scores[a:b])
            if edges is not None:
                leave_out_labels(scores, buffers.classes, owners, edges, self.data.y, a, b)
            rows = x, self.labels, buffers.slots, model.weights, model.biases, self.weight
            filled = buffers.positive, buffers.losses
            if penalty == 0.0:
                shared_softmax(scores, shift, *rows, *filled, a, b)
            else:
                minus_log_pi = buffers.minus_log_pi[:width]
                penalized_softmax(scores, shift, minus_log_pi, *rows, penalty, *filled, a, b)

        def update(i: int) -> None:
            a, b = (class_blocks + extra_blocks)[i]
            if a < width:
                with np.errstate(invalid="ignore"):
                    np.matmul(scores[:, a:b].T, x, out=buffers.gradients[a:b])
            else:
                buffers.gradients[a:b] = 0.0
            apply_shared(
                buffers.gradients,
                scores,
                x,
                buffers.positive,
                buffers.slots[:n],
                buffers.classes,
                a,
                b,
                width,
                model,
                np.float32(rate),
                np.float32(rate),
                np.float32(self.max_step),
            )

        run(gather, len(row_blocks) + (0 if buffers.all_classes else len(class_blocks)), threads)
        run(score, len(row_blocks), threads)
        run(update, len(class_blocks) + len(extra_blocks), threads)
        return float(buffers.losses[:n].sum())


def _whitened(state: TrainState, X: Float32, out: Float32) -> None:
    """Fill `out` with the rows as the weights see them."""
    if state.whitening is None:
        np.multiply(X, np.float32(state.feature_scale), out=out)
    else:
        state.whitening.rows(X, state.feature_scale, out=out)
