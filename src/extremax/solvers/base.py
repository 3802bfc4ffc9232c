"""The `Trainer` protocol, and the state of training between two epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.features.pca import PCA, fit_bytes
from extremax.features.scaling import ColumnScaling, limit_sparse_rows
from extremax.runtime.context import Context
from extremax.runtime.threads import split
from extremax.scores.base import Weights
from extremax.scores.dense import DenseWeights
from extremax.solvers.config import FitConfig
from extremax.storage.state import State, merge
from extremax.tree.noise import Noise
from extremax.tuned import ProblemSize, ScaleConfig
from extremax.types import Bool, Features, Float32

if TYPE_CHECKING:
    from extremax.features.whitening import Whitening
    from extremax.solvers.stream import StreamMoments

_BLOCK_VALUES = 1 << 24  # of rows that are squared in float64 at a time
_PROJECTED_LIMIT = 2.0  # of the longest row in training: the longest row of a projection


@dataclass
class TrainState:
    """Everything that training changes, and what it needs to go on.

    Between epochs, weights are those of the features as given (times `feature_scale`): what prediction reads
    and what a model folder holds. So a fit that is saved and resumed starts every epoch from the same bits.

    Attributes
    ----------
    tables
        Weights, biases and accumulators: `Tables`, or `SparseTables` of sparse weights.
    feature_scale
        Factor of the features, one over the root mean square length of the rows.
    noise
        The distribution that negatives, or the cells of minibatches, come from; None where nothing uses one.
    projection
        Projection of the features for the tree; None without a tree.
    whitening, scaling
        The coordinates in which an epoch trains, of trainers on whitened rows and of others; None for those
        of the features.
    n_epochs
        Epochs trained; with the seed it determines all random draws of the next one.
    pair_values, pair_key
        The number eta of each training pair that Augment and Reduce keeps, and a checksum of the pairs it
        belongs to.
    stream
        Sums over the parts of a stream, while its whitening is made anew from them.
    class_means
        Mean of the projected rows of each class, where there is a tree: a typical row as the tree sees it.
    chosen
        What was chosen from the data, such as the scale of the start.
    in_training_coordinates
        Whether the tables are those of whitened rows right now, inside an epoch.
    cut_short
        Whether a callback ended training before its last epoch; not saved.
    """

    tables: Any
    feature_scale: float
    noise: Noise | None = None
    projection: PCA | None = None
    whitening: Whitening | None = None
    scaling: ColumnScaling | None = None
    n_epochs: int = 0
    pair_values: Float32 | None = None
    pair_key: int = 0
    stream: StreamMoments | None = None
    class_means: NDArray[np.float16] | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    in_training_coordinates: bool = False
    cut_short: bool = False

    @property
    def coordinates(self) -> Whitening | ColumnScaling | None:
        """The coordinates in which an epoch trains."""
        return self.scaling if self.whitening is None else self.whitening

    def state(self) -> State:
        """Return the state for resuming, besides the model: accumulators, whitening, values of the pairs."""
        tables = self.tables.training_state()
        arrays: dict[str, NDArray[Any]] = dict(tables.arrays)
        if self.pair_values is not None:
            arrays["pair_values"] = self.pair_values
        header = {**tables.header, "n_epochs": self.n_epochs, "pair_key": self.pair_key}
        if self.tables.kind != "dense":
            header["tables"] = self.tables.kind
        parts = {} if self.whitening is None else {"whitening": self.whitening.state()}
        if self.scaling is not None:
            parts["scaling"] = self.scaling.state()
        if self.stream is not None:
            parts["stream"] = self.stream.state()
        return merge(header, parts, arrays)


class Split(NamedTuple):
    """The rows of a fit.

    Attributes
    ----------
    training
        The pairs to train on.
    held_out
        Pairs that choose mixture and calibration, with the features of their rows alone; None without.
    whole
        The pairs of both, of the same X as `training`; None where none are held out.
    """

    training: Examples
    held_out: Examples | None = None
    whole: Examples | None = None


class Progress(Protocol):
    """Receives the progress of a trainer while an epoch runs."""

    def check(self) -> None:
        """Raise KeyboardInterrupt here, if Ctrl-C was pressed: between two minibatches."""

    def report(self, pairs_done: int, loss: float) -> None:
        """Tell the pairs done and the mean loss so far."""


class Trainer(Protocol):
    """One training algorithm; `config` and `context` are given when it is made."""

    @property
    def config(self) -> FitConfig: ...

    @property
    def remedy(self) -> str:
        """A way to need less memory; completes an error message."""
        ...

    def memory(self, problem: ProblemSize, data: Examples | None = None) -> int:
        """Return an upper bound of the bytes that a fit takes besides X."""
        ...

    def accept(self, data: Examples) -> Examples:
        """Return the examples with features in the form that the trainer reads."""
        ...

    def start(self, data: Examples, n_classes: int) -> TrainState:
        """Make the state before the first epoch."""
        ...

    def prepare(self, state: TrainState, data: Examples) -> Any:
        """Prepare examples for `epoch`; the result has them as `data`."""
        ...

    def epoch(
        self, state: TrainState, prepared: Any, rates: tuple[float, float], progress: Progress
    ) -> float | None:
        """Train one epoch in place; the step size goes from the first rate to the second.

        Returns the mean loss per unit of weight, or None where none is known. Interrupted, it leaves a
        consistent state: that after the last minibatch."""
        ...

    def finish(self, state: TrainState, split: Split, *, interrupted: bool = False) -> None:
        """Finish a fit after its last epoch: experts without epochs, choices by held-out rows.

        A fit that Ctrl-C has `interrupted` gets no further parts.
        """
        ...

    def include(self, state: TrainState, split: Split) -> None:
        """Take the held-out rows into the weights, once all choices by them are made."""
        ...

    def export(self, state: TrainState) -> Weights:
        """Return weights for prediction; inside an epoch of whitened rows a converted copy, else the
        tables themselves.
        """
        ...

    def first_weights(self, state: TrainState) -> Weights:
        """Return what a model holds until training or its end replaces it."""
        ...


class ProjectedRows:
    """Projections of X, computed once per matrix and projection; those of outlying rows are limited."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._last: tuple[PCA, Features, Float32] | None = None

    def get(
        self, projection: PCA | None, X: Features, coordinates: Whitening | ColumnScaling | None = None
    ) -> Float32:
        """Return the rows that a tree sees; without a projection, rows of no columns."""
        if projection is None:
            return np.empty((X.shape[0], 0), np.float32)
        if self._last is None or self._last[0] is not projection or self._last[1] is not X:
            Z = projection.transform(X, n_jobs=self.n_threads)
            if coordinates is not None:
                limit_projected(Z, coordinates)
            self._last = projection, X, Z
        return self._last[2]


def limit_projected(Z: Float32, coordinates: Whitening | ColumnScaling) -> None:
    """Shorten rows of a projection that are far longer than the longest in training, in place."""
    limit = _PROJECTED_LIMIT * coordinates.max_length
    if limit == np.inf:
        return
    for a, b in split(len(Z), 4096):
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.sqrt(np.einsum("ij,ij->i", Z[a:b], Z[a:b], dtype=np.float64))
        long = np.flatnonzero(lengths > limit)
        if len(long):
            Z[a + long] *= (limit / lengths[long]).astype(np.float32)[:, None]


def labelled_rows(data: Examples) -> Bool | None:
    """Return which rows have a pair; None where all have one."""
    return None if data.row_index is None else np.bincount(data.row_index, minlength=data.n_rows) > 0


def row_weight(data: Examples) -> NDArray[Any] | None:
    """Return the weight of each row: the sum over its pairs; None where all rows count alike."""
    if data.row_index is None:
        return data.weight
    return np.bincount(data.row_index, weights=data.weight, minlength=data.n_rows)


def find_feature_scale(X: Features, used: Bool | None = None, config: ScaleConfig | None = None) -> float:
    """Return one over the root mean square length of the rows, so that one learning rate serves any
    magnitude.

    `used` marks the rows that count; None counts all.
    """
    config = config or ScaleConfig()
    rows: Any = X
    if sparse.issparse(rows):
        data = rows.data if used is None else rows.data[np.repeat(used, np.diff(rows.indptr))]
        total = float(np.square(data, dtype=np.float64).sum())
    else:
        total = 0.0
        size = min(4096, max(1, _BLOCK_VALUES // int(rows.shape[1])))
        for i in range(0, len(rows), size):  # float64 sums in a fixed order, without a copy of X
            block = rows[i : i + size] if used is None else rows[i : i + size][used[i : i + size]]
            total += float(np.square(block, dtype=np.float64).sum())
    return scale_of_squares(total, rows.shape[0] if used is None else int(used.sum()), config)


def scale_of_squares(total: float, n_rows: int, config: ScaleConfig) -> float:
    """Return one over the root mean square length of rows, from the sum of all squares."""
    mean = total / n_rows
    length: float = mean**0.5
    if length > config.max_length:
        raise ValueError(
            f"the rows of X are {length:g} long on average, near the end of float32; divide all features"
            " by one large number."
        )
    return 1.0 / length if length >= config.min_length else 1.0


def class_means(Z: Float32, data: Examples, n_classes: int) -> NDArray[np.float16]:
    """Return the mean of each class's projected rows, in float16: to be looked at, not calculated with."""
    counts = np.maximum(np.bincount(data.y, minlength=n_classes), 1)
    means = np.empty((n_classes, Z.shape[1]), np.float16)
    for j in range(Z.shape[1]):
        means[:, j] = np.bincount(data.y, weights=data.expand(Z[:, j]), minlength=n_classes) / counts
    return means


def whitening_memory(problem: ProblemSize, config: FitConfig, n_threads: int) -> int:
    """Return the bytes of the map to whitened rows, and of fitting it: moments, means, rows of a sample."""
    n_rows, n_features = problem.n_rows, problem.n_features
    sample = 28 * min(n_rows, config.numbers.scale.sample_rows) * n_features
    products = 96 * n_features**2  # of class means and between them, and the map and its inverse
    means = 12 * problem.n_classes * n_features
    return sample + means + max(fit_bytes((n_rows, n_features), n_features, n_threads), products)


def tree_memory(
    problem: ProblemSize, n_components: int, n_threads: int, max_points: int | None = None
) -> int:
    """Return the bytes of a label tree and of fitting it: projection, projected rows, a sorted copy.

    `max_points` of a node are in memory once more, None for all.
    """
    n_pairs, k = problem.n_pairs, min(n_components, problem.n_features)
    leaves = 1 << max(problem.n_classes - 1, 0).bit_length()
    copies = 2 if n_pairs <= problem.n_rows else 3  # to train on, sorted, repeated by pair
    in_blocks = n_pairs if max_points is None else min(n_pairs, n_threads * max_points)
    rows = 4 * (problem.n_rows + copies * n_pairs + in_blocks) * k + 24 * leaves * (k + 4)
    shape, is_sparse = (problem.n_rows, problem.n_features), problem.n_entries is not None
    return leaves * 12 * (k + 3) + rows + fit_bytes(shape, n_components, n_threads, is_sparse=is_sparse)


@dataclass(frozen=True)
class TrainerBase:
    """Config, context and the cache of projections that every trainer has."""

    config: FitConfig
    context: Context
    projected: ProjectedRows = field(init=False)
    accepted: dict[str, int] = field(init=False, default_factory=dict)  # what `choices_` says of the rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "projected", ProjectedRows(self.context.n_threads))

    @property
    def solver(self) -> Any:
        """The solver, with nothing left open."""
        return self.config.solver

    def limit_sparse(self, data: Examples) -> Examples:
        """Shorten sparse rows that are far longer than others, and remember how many there were."""
        X, n_limited = limit_sparse_rows(data.X, self.config.numbers.scale)
        if n_limited:
            self.accepted["limited_rows"] = n_limited
        return data if X is data.X else data.with_features(X)

    def find_scaling(self, data: Examples) -> tuple[ColumnScaling | None, dict[str, Any]]:
        """Return the scaling of columns and rows, and its entries in `choices_`.

        None where columns are of similar scales and no row is outlying.
        """
        config, threads, weight = self.config.numbers.scale, self.context.n_threads, row_weight(data)
        if not config.standardize:
            return None, {}
        scaling = ColumnScaling.fit(data.X, weight, config=config, n_threads=threads)
        n_limited = scaling.count_limited(data.X, threads, weight)
        if not scaling.is_needed(n_limited):
            return None, {}
        return scaling, {"limited_rows": n_limited} if n_limited else {}

    def export(self, state: TrainState) -> Weights:
        """Return weights for the features as given."""
        weights, biases = state.tables.weights, state.tables.biases
        if state.in_training_coordinates and state.coordinates is not None:
            weights, biases = weights.copy(), biases.copy()
            state.coordinates.to_features(weights, biases, self.context.n_threads)
        return DenseWeights(weights, biases, state.feature_scale)

    def first_weights(self, state: TrainState) -> Weights:
        """Return the weights of the start."""
        return self.export(state)

    @contextmanager
    def training_coordinates(self, state: TrainState, threads: int) -> Iterator[None]:
        """Convert the tables to those of training for the duration of an epoch."""
        tables, coordinates = state.tables, state.coordinates
        if coordinates is None:
            yield
            return
        coordinates.to_training(tables.weights, tables.biases, threads)
        state.in_training_coordinates = True
        try:
            yield
        finally:
            coordinates.to_features(tables.weights, tables.biases, threads)
            state.in_training_coordinates = False

    def finish(self, state: TrainState, split: Split, *, interrupted: bool = False) -> None:
        """Do nothing after the last epoch."""

    def include(self, state: TrainState, split: Split) -> None:
        """Leave the held-out rows out."""


def chosen_header(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return choices as JSON can hold them."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in chosen.items()
    }
