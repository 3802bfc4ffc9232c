"""Data in: readers, text features, PCA, splits, label reduction, and synthetic data with a known truth."""

from __future__ import annotations

from extremax.data.pca import PCA
from extremax.data.synthetic import GaussianTruth, SoftmaxTruth, SyntheticData, planted_hierarchy, planted_softmax, unstructured

__all__ = [
    "PCA",
    "GaussianTruth",
    "SoftmaxTruth",
    "SyntheticData",
    "planted_hierarchy",
    "planted_softmax",
    "unstructured",
]
