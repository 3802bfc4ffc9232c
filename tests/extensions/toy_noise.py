"""A noise distribution in one file: classes in proportion to a power of their rank."""

from __future__ import annotations

import numpy as np

from extremax.storage.state import State, register
from extremax.tree.noise import Noise


@register("noise", "rank")
class RankNoise(Noise):
    """p_n(y) is in proportion to ``(rank of y) ** -exponent``; ranks are given as an array."""

    def __init__(self, ranks, exponent=0.5):
        self.ranks, self.exponent = np.asarray(ranks), exponent
        prob = (self.ranks + 1.0) ** -exponent
        self.prob = prob / prob.sum()

    @property
    def n_classes(self):
        return len(self.ranks)

    @property
    def shared_log_prob(self):
        return np.log(self.prob).astype(np.float32)

    def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
        draws = np.random.default_rng(seed).choice(self.n_classes, (len(Z), n_draws), p=self.prob)
        labels = draws.astype(np.int32)
        return labels, self.log_prob(Z, labels)

    def log_prob(self, Z, labels, *, n_jobs=None):
        return self.shared_log_prob[labels]

    def log_prob_all(self, Z, *, out=None, n_jobs=None):
        out = np.empty((len(Z), self.n_classes), np.float32) if out is None else out
        out[...] = self.shared_log_prob
        return out

    def state(self):
        return State({"kind": "rank", "exponent": self.exponent}, {"ranks": self.ranks})

    @classmethod
    def from_state(cls, state):
        return cls(state.arrays["ranks"], state.header["exponent"])
