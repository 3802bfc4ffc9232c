"""Predictions of a trained model: the best classes of a row, by several searches, and probabilities.

Everything starts from a `Scorer`, which defines debiased scores (paper, Eq. 5).  `remove_bias` is the one
place where that sum is written for arrays; its scalar form for tiles is `extremax.kernels.topk.debias`.
"""

from extremax.scores.base import Projection, Scorer, Search, Weights, remove_bias
from extremax.scores.merged import LabelMap, MergedPredictor
from extremax.scores.pq import PQSearch, index_bytes, sample_size
from extremax.scores.probabilities import (
    Evaluation,
    Predictor,
    RankedPairs,
    RankedScores,
    log_softmax,
    summarize,
)
from extremax.scores.topk import ExactSearch, TreeBeamSearch

__all__ = [
    "Evaluation",
    "ExactSearch",
    "LabelMap",
    "MergedPredictor",
    "PQSearch",
    "Predictor",
    "Projection",
    "RankedPairs",
    "RankedScores",
    "Scorer",
    "Search",
    "TreeBeamSearch",
    "Weights",
    "index_bytes",
    "log_softmax",
    "remove_bias",
    "sample_size",
    "summarize",
]
