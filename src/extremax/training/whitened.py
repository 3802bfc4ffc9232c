"""What trainers on whitened rows share: the coordinates of an epoch, and weights for prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.examples import Examples
from extremax.features.pca import PCA, find_moments
from extremax.features.scaling import ColumnScaling
from extremax.training.base import TrainerBase, TrainState, find_feature_scale, labelled_rows, row_weight
from extremax.training.warm_start import Moments
from extremax.weights import DenseWeights, Weights


@dataclass(frozen=True)
class WhitenedTrainer(TrainerBase):
    """A trainer whose tables are those of whitened rows inside an epoch."""

    def accept(self, data: Examples) -> Examples:
        return data.dense()  # matrix products with whitened rows

    def find_moments(self, data: Examples) -> tuple[Moments, dict[str, Any]]:
        """Return covariance and mean of the rows, how they are scaled, and what `choices_` says of it."""
        X: Any = data.X
        config, threads, weight = self.config.numbers.scale, self.context.n_threads, row_weight(data)
        self.context.progress.log("projecting the features")
        scaling, n_limited = None, 0
        if config.standardize:
            scaling = ColumnScaling.fit(X, weight, config=config, n_threads=threads)
            n_limited = scaling.count_limited(X, threads, weight)
        if scaling is None or (n_limited == 0 and scaling.unevenness <= config.max_unevenness):
            f = find_feature_scale(X, labelled_rows(data), config)
            pca = PCA.fit(X, int(X.shape[1]), sample_weight=weight, n_jobs=threads)
            return Moments.from_pca(pca, f), {}
        covariance, centre = find_moments(X, scaling, sample_weight=weight, n_threads=threads)
        found = Moments(covariance, centre.astype(np.float32), scaling, scaling.feature_scale)
        return found, {"limited_rows": n_limited} if n_limited else {}

    def export(self, state: TrainState) -> Weights:
        weights, biases = state.tables.weights, state.tables.biases
        if state.in_training_coordinates and state.whitening is not None:
            weights, biases = weights.copy(), biases.copy()
            state.whitening.to_features(weights, biases, self.context.n_threads)
        return DenseWeights(weights, biases, state.feature_scale)

    @contextmanager
    def training_coordinates(self, state: TrainState, threads: int) -> Iterator[None]:
        """Convert the tables to whitened rows for the duration of an epoch."""
        tables, white = state.tables, state.whitening
        if white is None:
            yield
            return
        white.to_training(tables.weights, tables.biases, threads)
        state.in_training_coordinates = True
        try:
            yield
        finally:
            white.to_features(tables.weights, tables.biases, threads)
            state.in_training_coordinates = False
