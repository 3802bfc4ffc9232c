"""A search that is no part of the package: one class, registered, used by a model and stored with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from extremax.calibration import Calibration, mix_uniform
from extremax.scores import Scorer, Search, log_softmax
from extremax.scores.dense import DenseWeights
from extremax.storage.state import State, register, restore
from scorers import debiased_scores


@register("search", "first_classes")
@dataclass(frozen=True)
class FirstClasses:
    """Looks at the first classes alone."""

    n_first: int = 3

    def topk(self, scorer, X, k, *, width=None, n_threads=1):
        scores = debiased_scores(scorer, X, n_threads=n_threads)
        log_prob = log_softmax(scores, temperature=scorer.calibration.temperature)
        log_prob = mix_uniform(log_prob, scorer.calibration.uniform_mix, scorer.n_classes)
        labels = np.argsort(-log_prob[:, : width or self.n_first], axis=1, kind="stable")[:, :k]
        return labels.astype(np.int32), np.take_along_axis(log_prob, labels, axis=1)

    def state(self):
        return State({"kind": "first_classes", "n_first": self.n_first})

    @classmethod
    def from_state(cls, state):
        return cls(state.header["n_first"])


def toy_weights():
    weights = DenseWeights.zeros(5, 2)
    weights.biases[:] = np.log([1.0, 2.0, 3.0, 4.0, 10.0])
    return weights


def test_new_search_satisfies_the_protocol_and_is_restored():
    search: Search = FirstClasses(2)
    scorer = Scorer(toy_weights(), calibration=Calibration())
    labels, log_prob = search.topk(scorer, np.zeros((1, 2), np.float32), 2)
    assert labels.tolist() == [[1, 0]]
    np.testing.assert_allclose(np.exp(log_prob), [[0.1, 0.05]], rtol=1e-6)
    assert restore("search", search.state()) == search
