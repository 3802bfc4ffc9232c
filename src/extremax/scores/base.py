"""What every search works with: a `Scorer`, which defines the scores, and the `Search` protocol.

The score of a class is

    s_y(x) = feature_scale * x.w_y + b_y + log p_n(y|x),

the last term only where the objective leaves the bias of its noise in the scores (paper, Eq. 5).
Probabilities are a calibrated softmax of these scores (`extremax.calibration`).

A new search is one class with ``topk``, ``state`` and ``from_state``, decorated with
``register("search", kind)`` of `extremax.storage.state`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from extremax.calibration import CONFIDENCE_OFFSET, Calibration
from extremax.scores.weights import Weights
from extremax.storage.state import State
from extremax.tree.noise import Noise
from extremax.types import Features, Float32, Int32


class Projection(Protocol):
    """What turns rows of X into the features Z of the label tree."""

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
        """What kernels need for the temperature of a row."""
        return 1.0 / self.calibration.temperature, self.calibration.temperature_slope, CONFIDENCE_OFFSET

    @property
    def tempers_rows(self) -> bool:
        """Whether the temperature may depend on the row: without a noise term."""
        plain = not self.weights.row_major or self.weights.feature_scale == 1.0
        return plain and self.noise_term is None

    def temper(self, log_top: Float32) -> Float32:
        """Return the inverse temperatures of rows from log p_1 at the temperature of all rows, (n,)."""
        found: Float32 = (1.0 / self.calibration.row_temperature(log_top.astype(np.float64))).astype(
            np.float32
        )
        return found

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
        if self.calibration.temperature_slope != 0.0 and not self.tempers_rows:
            raise ValueError(
                f"temperature_slope is {self.calibration.temperature_slope}, but with a noise term all rows"
                " have the same temperature; pass 0."
            )


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

    # A search that goes on working where classes are removed or added also has
    #     take_classes(index, scorer)    some classes, in the order of `index`
    #     plus_classes(scorer)           further classes behind the others
    # both of which return a new search; a model drops one that has not.
