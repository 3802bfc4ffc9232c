"""Table 1 of the paper; its other parameters are `NegativeSampling.paper`."""

from __future__ import annotations

# rho, and lambda or the prior variance sigma_0^2, of each method.
TABLE_1: dict[str, dict[str, dict[str, float]]] = {
    "wikipedia-500k": {
        "adversarial": {"learning_rate": 0.01, "score_penalty": 0.001},
        "uniform": {"learning_rate": 0.001, "score_penalty": 0.0001},
        "frequency": {"learning_rate": 0.003, "score_penalty": 1e-5},
        "nce": {"learning_rate": 0.01, "score_penalty": 0.003},
        "augment_reduce": {"learning_rate": 0.03, "prior_variance": 0.1},
        "one_vs_each": {"learning_rate": 0.02, "prior_variance": 1.0},
    },
    "amazon-670k": {
        "adversarial": {"learning_rate": 0.01, "score_penalty": 0.001},
        "uniform": {"learning_rate": 0.01, "score_penalty": 0.0003},
        "frequency": {"learning_rate": 0.003, "score_penalty": 1e-5},
        "nce": {"learning_rate": 0.01, "score_penalty": 0.001},
        "augment_reduce": {"learning_rate": 0.1, "prior_variance": 10.0},
        "one_vs_each": {"learning_rate": 0.03, "prior_variance": 10.0},
    },
}
