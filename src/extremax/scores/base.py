"""The base of every search: weights, the scorer that reads them, and the `Search` protocol.

The score of a class is

    s_y(x) = feature_scale * x.w_y + b_y + log p_n(y|x),

the last term only where the solver leaves the bias of its noise in the scores (paper, Eq. 5).
Probabilities are a calibrated softmax of these scores (`extremax.calibration`).

A new search is one class with ``topk``, ``state`` and ``from_state``, decorated with
``register("search", kind)`` of `extremax.storage.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy import sparse

from extremax.calibration import CONFIDENCE_OFFSET, Calibration
from extremax.runtime.scratch import aligned_empty
from extremax.storage.state import State
from extremax.types import Features, Float32, Float64, Int32, Int64

if TYPE_CHECKING:
    from extremax.tree.noise import Noise

_COPY_NUMBERS = 2 << 20  # weights that are copied at a time, 8 MB: they stay in the last-level cache


@dataclass(frozen=True)
class SearchConfig:
    """How a search cuts its work (lab/tuning.md#searchconfig).

    None of these depends on the number of threads, so that no result does.
    """

    scratch_bytes: int = 256 << 20  # working memory of one call on up to eight threads
    max_result_bytes: int = 2 << 30  # largest (n_samples, n_classes) array that is returned
    block_rows: int = 1024  # rows per matrix product: more do not make it faster
    tile_scores: int = 2 << 20  # scores per tile, 8 MB: the tiles of all threads stay in the last-level cache
    small_work: int = 1 << 24  # multiplications; below, BLAS uses one thread anyway
    table_block_scores: int = 4 << 20  # scores whose softmax is computed together
    tree_beam_width: int = 64  # nodes per level of the label tree
    beam_block_rows: int = 16384  # rows whose candidates are in memory together; X may be on disk
    row_task_scores: int = 1 << 17  # scores that a thread computes or scans at a time, where it goes by rows
    row_block_scores: int = 1 << 24  # scores of rows that read the columns of sparse weights together, 64 MB
    column_fraction: float = 0.125  # of the classes: a feature on which more have a weight becomes a column
    column_bytes: int = 512 << 20  # bytes of such columns, at most
    pair_block_rows: int = 16384  # rows whose pairs are scored together; X may be on disk


class Buffers:
    """Scratch memory of one thread, reused from tile to tile: fresh pages cost more than the arithmetic.

    Parameters
    ----------
    copy_numbers
        Weights that `BlockScores.products` copies at a time, where it must copy.
    """

    def __init__(self, copy_numbers: int = _COPY_NUMBERS) -> None:
        self.copy_numbers = copy_numbers
        self._flat: dict[str, Float32] = {}

    def get(self, name: str, rows: int, columns: int) -> Float32:
        """Return the array of that name with undefined contents, (rows, columns)."""
        flat = self._flat.get(name)
        if flat is None or flat.size < rows * columns:
            flat = self._flat[name] = aligned_empty(rows * columns)
        return flat[: rows * columns].reshape(rows, columns)


class BlockScores(Protocol):
    """A block of rows of X, ready for products with the weights of many classes."""

    @property
    def n_rows(self) -> int: ...

    def products(self, start: int, stop: int, buffers: Buffers, out: Float32) -> Float32:
        """Fill `out` (n_rows, stop - start) with ``x.w_y`` of the classes from `start` to before `stop`."""
        ...


class RowTerms(NamedTuple):
    """How the scores of some classes add up for one row.

    Attributes
    ----------
    columns : int32 (n,)
        Features of the row that are not zero.
    pieces : float64 (n, n_classes)
        What each of them adds to the score of each class.
    others : list of (str, float64 (n_classes,))
        What no single feature adds.
    """

    columns: Int32
    pieces: Float64
    others: list[tuple[str, Float64]]


def row_entries(X: Any, n_columns: int) -> tuple[Int32, Float64]:
    """Return the columns of the only row of X below `n_columns` that are not zero, and their values."""
    if sparse.issparse(X):
        inside = X.indices < n_columns
        return X.indices[inside].astype(np.int32), X.data[inside].astype(np.float64)
    columns = np.flatnonzero(X[0, :n_columns]).astype(np.int32)
    return columns, X[0, columns].astype(np.float64)


class Weights(Protocol):
    """The weights of a linear model, as search, evaluation and explanation read them."""

    @property
    def biases(self) -> Float32: ...
    @property
    def feature_scale(self) -> float: ...
    @property
    def n_classes(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def row_width(self) -> int:
        """Numbers in memory for each row of an open block."""
        ...

    def open_block(self, X: Features, first: int, last: int) -> BlockScores:
        """Prepare rows `first` to before `last` of X."""
        ...

    def score_pairs(self, X: Features, row_index: Int64, classes: Int32, n_threads: int) -> Float32:
        """Return ``feature_scale * x.w_y + b_y`` of given pairs.

        ``classes`` is (n, m): line i holds m classes for row ``row_index[i]`` of X.
        """
        ...

    def class_weights(self, label: int) -> tuple[Int32, Float32]:
        """Return the features on which a class has a weight, and the weights."""
        ...

    def class_vectors(self) -> Any:
        """Return one row per class, an array or a CSR matrix: its weights on all columns."""
        ...

    def column_maxima(self) -> tuple[Int64, Float32]:
        """Return the features that have weights, and the largest magnitude of these."""
        ...

    def contributions(self, X: Features, classes: Int32) -> RowTerms:
        """Return the contributions of the features of the only row of X to the scores of some classes."""
        ...

    def similarity(self, label: int) -> Float32:
        """Return the cosine between the weights of a class and those of each class, (n_classes,)."""
        ...

    def take(self, index: Int64) -> Weights:
        """Return the weights of some classes, in a given order."""
        ...

    def to_dense(self) -> Float32:
        """Return all weights as one array (n_classes, n_features), without a copy where they are one."""
        ...

    @property
    def nonlinear_part(self) -> str | None:
        """Name the part of the scores that is not linear in the features; None if there is none."""
        ...

    def coefficients(self) -> tuple[Any, Float32]:
        """Return the factors (n_classes, n_features) of the features as given, and the intercepts."""
        ...

    def state(self) -> State: ...


class Projection(Protocol):
    """Turns rows of X into the features Z of the label tree."""

    def transform(self, X: Features, *, n_jobs: int | None = None) -> Float32: ...


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores of a trained model.

    Attributes
    ----------
    weights
        Weights, biases and the scale of the features.
    noise_term
        The distribution whose log-probability is added to the scores; None if they are unbiased already.
    projection
        Makes the features of the label tree; None where no tree is read.
    calibration
        Temperature and uniform mixing.
    """

    weights: Weights
    noise_term: Noise | None = None
    projection: Projection | None = None
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def n_classes(self) -> int:
        return self.weights.n_classes

    @property
    def offsets(self) -> Float32 | None:
        """log p_n (n_classes,) that is added to the scores of all rows, or None."""
        return None if self.noise_term is None else self.noise_term.shared_log_prob

    @property
    def linear_scores(self) -> bool:
        """Whether scores are linear in the features: no noise term, or one that all rows share."""
        return self.noise_term is None or self.offsets is not None

    @property
    def inverse_temperature(self) -> np.float32:
        return np.float32(1.0 / self.calibration.temperature)

    @property
    def tempering(self) -> tuple[float, float, float]:
        """Inverse temperature, slope and offset, as the kernels take them."""
        return 1.0 / self.calibration.temperature, self.calibration.temperature_slope, CONFIDENCE_OFFSET

    @property
    def tempers_rows(self) -> bool:
        """Whether the temperature depends on the row."""
        return self.calibration.temperature_slope != 0.0

    def temper(self, log_top: Float32) -> Float32:
        """Return the inverse temperatures of rows from log p_1 at the temperature of all rows, (n,)."""
        temperature = self.calibration.row_temperature(log_top.astype(np.float64))
        return (1.0 / temperature).astype(np.float32)

    def project(self, X: Features, n_threads: int) -> Float32 | None:
        """Return the features that the noise term reads, or None if it reads none."""
        if self.noise_term is None or not self.noise_term.needs_features:
            return None
        if self.projection is None and self.noise_term.tree is None:
            return np.empty((X.shape[0], 0), np.float32)  # as in training
        return self.project_for_tree(X, n_threads)

    def project_for_tree(self, X: Features, n_threads: int) -> Float32:
        """Return the features of the label tree, (n_samples, n_components)."""
        if self.projection is None:
            raise ValueError("The scorer has no projection; a label tree needs one for the features of rows.")
        return self.projection.transform(X, n_jobs=n_threads)

    def check(self, X: Features, k: int = 1) -> None:
        """Raise ValueError for arguments that the kernels, which check nothing, cannot take."""
        if X.shape[1] != self.weights.n_features:
            raise ValueError(
                f"X has {X.shape[1]} features; the model has {self.weights.n_features}."
                " Pass the features it was fitted on."
            )
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one class per row.")
        self.calibration.check()
        if self.tempers_rows and self.noise_term is not None:
            raise ValueError(
                f"temperature_slope is {self.calibration.temperature_slope}, but with a noise term all rows"
                " have the same temperature; pass 0."
            )


def remove_bias(scores: Float32, log_noise: Float32 | None, *, out: Float32 | None = None) -> Float32:
    """Return debiased scores ``scores + log_noise`` (Eq. 5); the scores themselves if `log_noise` is None.

    Examples
    --------
    >>> remove_bias(np.array([2.0, 3.0], np.float32), np.array([-1.0, -2.5], np.float32)).tolist()
    [1.0, 0.5]
    """
    return scores if log_noise is None else np.add(scores, log_noise, out=out)


class Search(Protocol):
    """Finds the classes of highest score."""

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best classes of each row, best first, and their log-probabilities.

        Parameters
        ----------
        scorer
            Defines the scores.
        X : (n_samples, n_features)
            float32, dense or CSR.
        k
            Classes per row.
        width
            Classes to look at, for a search that does not look at all; None means its own choice.
        n_threads
            Threads; no result depends on it.

        Returns
        -------
        labels : int32 (n_samples, k)
            Ties go to the smaller class; -1 beyond the number of classes.
        log_prob : float32 (n_samples, k)
            Minus infinity where the label is -1.
        """
        ...

    def state(self) -> State: ...


@runtime_checkable
class EditableSearch(Search, Protocol):
    """A search that goes on working where classes are removed or added; a model drops others."""

    def follow(self, scorer: Scorer) -> Search:
        """Return the search among the classes of a changed scorer."""
        ...
