"""Tuned numbers of the projections of features; docs/tuning.md says where each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PCAConfig:
    """Principal components: exact up to a number of features, by subspace iteration beyond."""

    exact_features: int = 1024  # features up to which the covariance matrix is formed
    oversampling: int = 16  # directions of the subspace beyond those asked for
    power_steps: int = 4  # iterations of the subspace
    block_rows: int = 4096  # rows per partial sum


@dataclass(frozen=True)
class SVDConfig:
    """Truncated SVD by subspace iteration."""

    oversampling: int = 16  # directions of the subspace beyond those asked for
    n_iter: int = (
        2  # iterations: 96.5% of the squared singular values that five reach (ICD-10-CM, 256 vectors)
    )
    block_rows: int = 8192  # rows per task and partial sum
