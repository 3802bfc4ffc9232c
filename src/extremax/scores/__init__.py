"""Predictions of a trained model: the best classes of a row, by several searches, and probabilities.

Everything starts from a `Scorer`, which defines debiased scores (paper, Eq. 5).  `remove_bias` is the one
place where that sum is written for arrays; its scalar form for tiles is `extremax.kernels.topk.debias`.
"""

from extremax.scores.base import Projection, Scorer, Search
from extremax.scores.exact import ExactSearch
from extremax.scores.pairs import (
    Evaluation,
    RankedPairs,
    RankedScores,
    choose_label_calibration,
    evaluate,
    log_likelihood,
    rank_pairs,
    rank_scores,
    summarize,
)
from extremax.scores.pq import PQSearch, index_bytes, pays, sample_size
from extremax.scores.probabilities import (
    choose_calibration,
    debiased_scores,
    log_prob_all,
    log_softmax,
    log_softmax_all,
    prob_all,
    remove_bias,
)
from extremax.scores.scan import scores_rows_alone
from extremax.scores.tree_beam import TreeBeamSearch

__all__ = [
    "Evaluation",
    "ExactSearch",
    "PQSearch",
    "Projection",
    "RankedPairs",
    "RankedScores",
    "Scorer",
    "Search",
    "TreeBeamSearch",
    "choose_calibration",
    "choose_label_calibration",
    "debiased_scores",
    "evaluate",
    "index_bytes",
    "log_likelihood",
    "log_prob_all",
    "log_softmax",
    "log_softmax_all",
    "pays",
    "prob_all",
    "rank_pairs",
    "rank_scores",
    "remove_bias",
    "sample_size",
    "scores_rows_alone",
    "summarize",
]
