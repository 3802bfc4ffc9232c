"""What trainers on whitened rows share: dense rows, and their moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from extremax.examples import Examples
from extremax.features.pca import PCA, find_moments
from extremax.solvers.base import TrainerBase, find_feature_scale, labelled_rows, row_weight
from extremax.solvers.warm_start import Moments


@dataclass(frozen=True)
class WhitenedTrainer(TrainerBase):
    """A trainer whose tables are those of whitened rows inside an epoch."""

    def accept(self, data: Examples) -> Examples:
        return data.dense()  # matrix products with whitened rows

    def find_moments(self, data: Examples) -> tuple[Moments, dict[str, Any]]:
        """Return covariance and mean of the rows, how they are scaled, and what `choices_` says of it."""
        X: Any = data.X
        threads, weight = self.context.n_threads, row_weight(data)
        self.context.progress.log("projecting the features")
        scaling, chosen = self.find_scaling(data)
        if scaling is None:
            f = find_feature_scale(X, labelled_rows(data), self.config.numbers.scale)
            pca = PCA.fit(X, int(X.shape[1]), sample_weight=weight, n_jobs=threads)
            return Moments.from_pca(pca, f), chosen
        covariance, centre = find_moments(X, scaling, sample_weight=weight, n_threads=threads)
        return Moments(covariance, centre.astype(np.float32), scaling, scaling.feature_scale), chosen
