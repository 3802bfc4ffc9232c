"""The linear main model, scores xi_y(x) = x . w_y + b_y (paper, section 5), and one epoch of its training.

A training example is a pair: a row of X and one of its labels. Where rows have several labels, pairs index
their rows, and X is never copied per pair.

Pairs come in shuffled *windows*: chunks of consecutive ones in random order, gathered until a window is full,
then shuffled one by one. A data set that fits one window is shuffled completely; a larger one can stay on
disk and is still read in long runs. The same order serves arrays in memory, memory-mapped files and sparse
matrices, so all of them train the same model.

Inside a window, minibatches: negatives are drawn, scores and coefficients computed from frozen weights, then
each thread updates the classes it owns. The thread count changes nothing but the time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.kernels.compile import JIT_DISABLED
from extremax.kernels.row_training import AlongRow, Pairs, PerWeight, Step, train_csr, train_dense
from extremax.kernels.row_updates import CSRRows, ModelArrays
from extremax.noise import Noise
from extremax.prior import shrink
from extremax.runtime.threads import run, run_together, split
from extremax.training.objectives import Objective

# float32: a C-ordered array, a memory-mapped one, or a CSR matrix; scipy has no types
Features: TypeAlias = Any
Progress: TypeAlias = Callable[[int, float], None]

OPTIMIZERS = ("adagrad", "adagrad_row", "sgd")
_CHUNK_ROWS = 256  # rows read together from a file
_WINDOW_BYTES = 256 << 20
_STRETCH_PAIRS = 1 << 17  # pairs between two looks at the clock and the keyboard
_PRIOR_PAIRS = 4  # pairs per class between two steps of the prior
_LONGEST_ROW = 1e34  # on average: products with weights stay in float32
# on average; shorter ones are as good as zero, since float32 has few digits left for them
_SHORTEST_ROW = 1e-30
_FIRST_SQUARE = 1e-8  # start of Adagrad's sums: keeps a vanishing first gradient from a full-length step


def aligned(shape: tuple[int, ...], fill: float) -> NDArray[np.float32]:
    """A filled float32 array that starts on a cache line: a row of 512 weights then touches 32 lines, not
    33.
    """
    size = int(np.prod(shape, dtype=np.int64)) * 4
    raw = np.empty(size + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    out = raw[offset : offset + size].view(np.float32).reshape(shape)
    out[...] = fill
    return out


def feature_scale(X: Features, used: NDArray[np.bool_] | None = None) -> float:
    """One over the root mean square length of the rows: one learning rate then serves features of any
    magnitude.

    `used` marks the rows that count; None counts all.
    """
    if sparse.issparse(X):
        data = X.data if used is None else X.data[np.repeat(used, np.diff(X.indptr))]
        total = float(np.square(data, dtype=np.float64).sum())
    else:
        total = 0.0
        for i in range(0, len(X), 4096):  # float64 sums in a fixed order, without a copy of X
            block = X[i : i + 4096] if used is None else X[i : i + 4096][used[i : i + 4096]]
            total += float(np.square(block, dtype=np.float64).sum())
    mean = total / (X.shape[0] if used is None else int(used.sum()))
    length = mean**0.5
    if length > _LONGEST_ROW:
        raise ValueError(
            f"the rows of X are {length:g} long on average, near the end of float32; divide all features by one large number."
        )
    return 1.0 / length if length >= _SHORTEST_ROW else 1.0


@dataclass
class LinearModel:
    """Parameters of the linear model and the state of its optimiser.

    Attributes
    ----------
    weights, biases
        (n_classes, n_features) and (n_classes,), for features multiplied by `feature_scale`.
    squares, bias_squares
        Adagrad's sums of squared gradients: a table as large as `weights` ("adagrad"), one column
        ("adagrad_row"), or none ("sgd").
    n_epochs
        Epochs trained so far; with the seed it determines all random draws of the next one.
    eta, eta_key
        The parameter of each training pair that Augment and Reduce keeps, and a checksum of the pairs that it
        belongs to.
    """

    weights: NDArray[np.float32]
    biases: NDArray[np.float32]
    squares: NDArray[np.float32]
    bias_squares: NDArray[np.float32]
    feature_scale: float = 1.0
    n_epochs: int = 0
    eta: NDArray[np.float32] | None = None
    eta_key: int = 0

    @classmethod
    def zeros(
        cls,
        n_classes: int,
        n_features: int,
        *,
        optimizer: str = "adagrad",
        feature_scale: float = 1.0,
        first_bias: float = 0.0,
    ) -> LinearModel:
        """Start at w = 0: debiased scores then equal the base distribution, and learning starts from what
        it knows.
        """
        columns = {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]
        return cls(
            weights=aligned((n_classes, n_features), 0.0),
            biases=np.full(n_classes, first_bias, np.float32),
            squares=aligned((n_classes, columns), _FIRST_SQUARE),
            bias_squares=np.full(n_classes, _FIRST_SQUARE, np.float32),
            feature_scale=feature_scale,
        )

    @staticmethod
    def bytes_needed(n_classes: int, n_features: int, *, optimizer: str = "adagrad") -> int:
        """Bytes that `zeros` allocates."""
        columns = {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]
        return 4 * n_classes * (n_features + columns + 2)

    @property
    def n_classes(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.weights.shape[1])


@dataclass(frozen=True)
class EpochOptions:
    """What stays the same from epoch to epoch."""

    objective: Objective
    noise: Noise
    n_negatives: int = 1
    score_penalty: float = 0.0
    prior_variance: float | None = None
    batch_size: int = 1024
    seed: int = 0
    n_threads: int = 1


@dataclass(frozen=True)
class TrainingSet:
    """Pairs of a row and one of its labels, the tree's features, and what of the noise never changes.

    Attributes
    ----------
    X, Z
        Features of the rows and their projection for the tree: one line per row, however many labels it has.
    y, weight
        Class and weight of each pair.
    positive_log_noise
        log p_n(y_i|x_i) of each pair: fixed, so it is computed once and not in every epoch.
    rows
        Row of X and Z that each pair stands on, ascending; None where every row has one label, and pair i is
        row i.
    """

    X: Features
    y: NDArray[np.int32]
    Z: NDArray[np.float32]
    weight: NDArray[np.float32]
    positive_log_noise: NDArray[np.float32]
    rows: NDArray[np.int64] | None = None

    def rows_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of X and Z that these pairs stand on."""
        return pairs if self.rows is None else self.rows[pairs]


def epoch_seed(seed: int, epoch: int, window: int) -> int:
    """A 64-bit seed for one window of one epoch."""
    state = np.random.SeedSequence(entropy=seed, spawn_key=(epoch, window)).generate_state(1, np.uint64)
    return int(state[0])


def shuffled_windows(n_rows: int, row_bytes: int, seed: int, epoch: int) -> Iterator[NDArray[np.int64]]:
    """Numbers of the rows (or pairs) of one epoch, window by window, each exactly once."""
    rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)))
    window_rows = max(_CHUNK_ROWS, _WINDOW_BYTES // max(row_bytes, 1) // _CHUNK_ROWS * _CHUNK_ROWS)
    if n_rows <= window_rows:
        yield rng.permutation(n_rows)
        return
    chunks = rng.permutation(-(-n_rows // _CHUNK_ROWS))
    n_windows = -(-n_rows // window_rows)
    for group in np.array_split(chunks, n_windows):
        rows = (np.sort(group)[:, None] * _CHUNK_ROWS + np.arange(_CHUNK_ROWS)).ravel()
        yield rng.permutation(rows[rows < n_rows])


def _is_on_disk(X: Any) -> bool:
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap):
            return True
        X = X.base
    return False


class Window(NamedTuple):
    """Numbers of some pairs, in the order in which they are trained on, and the row of each."""

    pairs: NDArray[np.int64]
    rows: NDArray[np.int64]


class DenseWindows:
    """Windows of a dense X: as it is when in memory, copied into a buffer when on disk (the next one while
    one is trained on)."""

    train = staticmethod(train_dense)

    def __init__(self, X: NDArray[np.float32]) -> None:
        self.X = X
        self.on_disk = _is_on_disk(X)

    def row_bytes(self) -> int:
        return 4 * int(self.X.shape[1])

    def _read(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        distinct, local = np.unique(rows, return_inverse=True)  # in the order of the file, and no row twice
        return np.ascontiguousarray(self.X[distinct]), local.astype(np.int64, copy=False)

    def windows(self, order: Iterator[Window]) -> Iterator[tuple[Window, object, NDArray[np.int64]]]:
        if not self.on_disk:
            for window in order:
                yield window, self.X, window.rows
            return
        with ThreadPoolExecutor(1, thread_name_prefix="extremax-read") as reader:
            pending = [(window, reader.submit(self._read, window.rows)) for window in [next(order)]]
            while pending:
                window, reading = pending.pop()
                features, local = reading.result()
                following = next(order, None)
                if following is not None:
                    pending.append((following, reader.submit(self._read, following.rows)))
                yield window, features, local


class _SparseWindows:
    """Windows of a CSR X: the whole matrix is in memory."""

    train = staticmethod(train_csr)

    def __init__(self, X: Any) -> None:
        self.X = X
        # One index type, one compiled kernel: scipy keeps indptr in int32 for small matrices.
        self.arrays = CSRRows(
            X.data, X.indices.astype(np.int32, copy=False), X.indptr.astype(np.int64, copy=False)
        )

    def row_bytes(self) -> int:
        return 4 * int(self.X.shape[1])  # as if dense: sparse and dense rows then come in the same order

    def windows(self, order: Iterator[Window]) -> Iterator[tuple[Window, object, NDArray[np.int64]]]:
        for window in order:
            yield window, self.arrays, window.rows


def _gather(table: NDArray[np.float32], rows: NDArray[np.int64], threads: int) -> NDArray[np.float32]:
    """``table[rows]``, by several threads: rows in random order are one cache miss each."""
    out = np.empty((len(rows), table.shape[1]), table.dtype)
    blocks = split(len(rows), 8192)

    def take(i: int) -> None:
        cut = slice(*blocks[i])
        np.take(table, rows[cut], axis=0, out=out[cut], mode="clip")  # other modes go through a buffer

    run(take, len(blocks), threads)
    return out


def _eta_of(model: LinearModel, data: TrainingSet) -> NDArray[np.float32]:
    """The parameter of each pair, kept from the epochs before on the same pairs; below zero for a pair not
    seen yet.
    """
    key = zlib.crc32(data.positive_log_noise.tobytes(), zlib.crc32(data.y.tobytes()))
    if model.eta is None or len(model.eta) != len(data.y) or model.eta_key != key:
        model.eta, model.eta_key = np.full(len(data.y), -1.0, np.float32), key
    return model.eta


def train_epoch(
    model: LinearModel,
    data: TrainingSet,
    options: EpochOptions,
    *,
    learning_rate: float,
    progress: Progress | None = None,
) -> float:
    """One pass over the pairs of `data`, changing `model` in place.

    Returns the mean loss per unit of weight, without the prior's part. `progress` is called now and then with
    the pairs done and the mean loss so far; an exception from it (or Ctrl-C) leaves the model as it was after
    the last minibatch."""
    objective, noise = options.objective, options.noise
    threads = 1 if JIT_DISABLED else options.n_threads
    source: Any = (_SparseWindows if sparse.issparse(data.X) else DenseWindows)(data.X)
    arrays = ModelArrays(model.weights, model.biases, model.squares, model.bias_squares)
    kind = PerWeight if model.squares.shape == model.weights.shape else AlongRow
    step = Step(
        batch_size=options.batch_size,
        objective=objective.settings_of(options.score_penalty, model.n_epochs),
        sizes=kind(np.float32(model.feature_scale), np.float32(learning_rate)),
    )
    eta_of_pairs = _eta_of(model, data) if objective.keeps_eta else None
    prior_due, weight_shrunk, whole_weight = 0, 0.0, float(data.weight.sum(dtype=np.float64))
    width = 1 + options.n_negatives
    stretch = max(1, _STRETCH_PAIRS // width // options.batch_size) * options.batch_size
    barrier = np.zeros(64, np.int64)
    total, weight_done, pairs_done = 0.0, 0.0, 0

    shuffled = shuffled_windows(len(data.y), source.row_bytes(), options.seed, model.n_epochs)
    order = (Window(chosen, data.rows_of(chosen)) for chosen in shuffled)
    for number, ((chosen, rows), X, local) in enumerate(source.windows(order)):
        seed = epoch_seed(options.seed, model.n_epochs, number)
        labels, log_noise = np.empty((len(rows), width), np.int32), np.empty((len(rows), width), np.float32)
        labels[:, 0], log_noise[:, 0] = data.y[chosen], data.positive_log_noise[chosen]
        labels[:, 1:], log_noise[:, 1:] = noise.sample(
            _gather(data.Z, rows, threads), options.n_negatives, seed, n_jobs=threads
        )
        log_base = log_noise if objective.removes_bias else np.zeros_like(log_noise)
        weight = data.weight[chosen]
        scores, coefficients = np.empty_like(log_noise), np.empty_like(log_noise)
        losses = np.empty(len(rows), np.float64)
        eta = np.empty(len(rows), np.float32) if eta_of_pairs is None else eta_of_pairs[chosen]
        for start in range(0, len(rows), stretch):
            cut = slice(start, start + stretch)
            tables: Any = (local, labels, log_base, log_noise, weight, scores, coefficients, losses, eta)
            pairs = Pairs(*(table[cut] for table in tables))
            run_together(lambda part: source.train(X, pairs, arrays, step, barrier, part, threads), threads)
            total += float(losses[cut].sum())
            weight_done += float(weight[cut].sum())
            pairs_done += len(pairs.rows)
            if eta_of_pairs is not None:
                eta_of_pairs[chosen[cut]] = pairs.eta
            if options.prior_variance is not None:
                # A pass over all classes is worth it when several times as many pairs were trained on, and at
                # the end.
                prior_due += width * len(pairs.rows)
                if prior_due >= _PRIOR_PAIRS * model.n_classes or pairs_done == len(data.y):
                    share = (weight_done - weight_shrunk) / whole_weight
                    shrink(arrays, share / options.prior_variance, learning_rate, threads)
                    prior_due, weight_shrunk = 0, weight_done
            if progress is not None:
                progress(pairs_done, total / max(weight_done, 1e-300))
    model.n_epochs += 1
    return total / max(weight_done, 1e-300)
