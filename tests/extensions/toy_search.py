"""A search in one file: exact scores of a few given classes, and of no others."""

from __future__ import annotations

import numpy as np

from extremax.scores import log_softmax, remove_bias
from extremax.storage.state import State, register


@register("search", "shortlist")
class ShortlistSearch:
    """Looks at the first `width` classes of a list; log-probabilities are normalised over them."""

    def __init__(self, shortlist, width):
        self.shortlist, self.width = np.asarray(shortlist, np.int32), width

    def topk(self, scorer, X, k, *, width=None, n_threads=1):
        scorer.check(X, k)
        rows = np.arange(X.shape[0])
        classes = np.tile(self.shortlist[: max(width or self.width, k)], (len(rows), 1))
        scores = scorer.weights.score_pairs(X, rows, classes, n_threads)
        if scorer.noise_term is not None:
            log_noise = scorer.noise_term.log_prob(scorer.project(X, n_threads), classes)
            scores = remove_bias(scores, log_noise, out=scores)
        log_prob = log_softmax(scores, temperature=scorer.calibration.temperature)
        best = np.argsort(-log_prob, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(classes, best, axis=1), np.take_along_axis(log_prob, best, axis=1)

    def state(self):
        return State({"kind": "shortlist", "width": self.width}, {"shortlist": self.shortlist})

    @classmethod
    def from_state(cls, state):
        return cls(state.arrays["shortlist"], state.header["width"])
