"""Predictions of a linear model with the bias of its noise distribution removed: xi_y(x) + log p_n(y|x)
(paper, Eq. 5).

`remove_bias` is the one place where that sum is written for arrays (its scalar twin for compiled tiles is
`extremax.kernels.topk.debias`). Everything that leaves this package is debiased: scores, probabilities,
top-k, log-likelihood. An objective whose scores need no correction (NCE, softmax) passes ``noise=None``.

Exact search works on blocks of rows and, inside, on tiles of classes that stay in cache: matrix product, then
one compiled pass that keeps the best classes and the normaliser. Beam search scores only the leaves that
survive a beam down the label tree, or the classes of the highest guesses where the tree's probabilities are
no part of the scores.

Shapes: ``X`` (n, n_features) float32, dense or CSR, unscaled (``model.feature_scale`` is applied here), ``Z``
(n, n_components) for the tree. ``temperature`` divides debiased scores before they are normalised, ``floor``
is a share of the probability that all classes have alike (`extremax.calibration`); neither ever changes an
order."""

from extremax.calibration import Calibration, fit_calibration, lift
from extremax.search.pairs import Judged, judge_pairs
from extremax.search.pq import (
    LEAST_CLASSES,
    MOST_FEATURES,
    MOST_JUDGES,
    CodeIndex,
    codes_topk,
    index_bytes,
    sample_size,
)
from extremax.search.scan import SCRATCH_BYTES, Features, Scorer
from extremax.search.scores import (
    RESULT_BYTES,
    ScoreOverflowError,
    check_targets,
    debiased_scores,
    log_softmax,
    predict_log_proba,
    predict_proba,
    remove_bias,
)
from extremax.search.topk import BEAM_WIDTH, Evaluation, beam_topk, evaluate, exact_topk, log_likelihood

__all__ = [
    "BEAM_WIDTH",
    "LEAST_CLASSES",
    "MOST_FEATURES",
    "MOST_JUDGES",
    "RESULT_BYTES",
    "SCRATCH_BYTES",
    "Calibration",
    "CodeIndex",
    "Evaluation",
    "Features",
    "Judged",
    "ScoreOverflowError",
    "Scorer",
    "beam_topk",
    "check_targets",
    "codes_topk",
    "debiased_scores",
    "evaluate",
    "exact_topk",
    "fit_calibration",
    "index_bytes",
    "judge_pairs",
    "lift",
    "log_likelihood",
    "log_softmax",
    "predict_log_proba",
    "predict_proba",
    "remove_bias",
    "sample_size",
]
