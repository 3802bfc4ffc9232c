"""Exact search: score every class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from extremax.calibration import mix_uniform
from extremax.scores.base import Scorer
from extremax.scores.scan import scan
from extremax.storage.state import State, register
from extremax.tuned import SearchConfig
from extremax.types import Features, Float32, Int32


@register("search", "exact")
@dataclass(frozen=True)
class ExactSearch:
    """Score every class; log-probabilities are normalised over all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from extremax.scores.weights import DenseWeights
    >>> weights = DenseWeights.zeros(3, 2)
    >>> weights.biases[:] = np.log([1.0, 3.0, 4.0])
    >>> labels, log_prob = ExactSearch().topk(Scorer(weights), np.zeros((1, 2), np.float32), 2)
    >>> labels.tolist(), np.exp(log_prob).round(3).tolist()
    ([[2, 1]], [[0.5, 0.375]])
    """

    config: SearchConfig = field(default_factory=SearchConfig)

    scores_all: ClassVar[bool] = True

    def topk(
        self, scorer: Scorer, X: Features, k: int, *, width: int | None = None, n_threads: int = 1
    ) -> tuple[Int32, Float32]:
        """Return the k best classes of each row and their log-probabilities; `width` is not used."""
        scorer.check(X, k)
        Z = scorer.project(X, n_threads)
        found = scan(scorer, X, Z, k, n_threads=n_threads, config=self.config)
        mixed = mix_uniform(found.log_prob, scorer.calibration.uniform_mix, scorer.n_classes)
        return found.labels, mixed

    def state(self) -> State:
        """Return what a model folder stores: nothing but the kind."""
        return State({"kind": "exact"})

    @classmethod
    def from_state(cls, state: State) -> ExactSearch:
        """Build the search that `state` described."""
        return cls()
