"""Readers of data files, label reduction, splits, and synthetic data with a known distribution.

`NgramFeatures` and `PCA` of `extremax.features` are available here, too.
"""

from __future__ import annotations

from extremax.data.class_texts import read_class_texts
from extremax.data.dataset import DataFileError, Dataset
from extremax.data.icd10cm import ICD10CM, load_icd10cm
from extremax.data.labels import all_pairs, first_label, has_label, label_counts, rarest_label, smallest_label
from extremax.data.readers import iter_dataset, load_dataset
from extremax.data.synthetic import GaussianTruth, SyntheticData, planted_hierarchy
from extremax.examples import seen_classes, split_rows
from extremax.features.ngrams import NgramFeatures
from extremax.features.pca import PCA

__all__ = [
    "ICD10CM",
    "PCA",
    "DataFileError",
    "Dataset",
    "GaussianTruth",
    "NgramFeatures",
    "SyntheticData",
    "all_pairs",
    "first_label",
    "has_label",
    "iter_dataset",
    "label_counts",
    "load_dataset",
    "load_icd10cm",
    "planted_hierarchy",
    "rarest_label",
    "read_class_texts",
    "seen_classes",
    "smallest_label",
    "split_rows",
]
