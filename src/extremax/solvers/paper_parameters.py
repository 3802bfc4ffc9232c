"""The paper's own parameters, by the names of `ExtremeClassifier`, and its Table 1."""

from __future__ import annotations

from typing import Any

# Section 5: one negative, k = 16, lambda_n = 0.1, Adagrad, features as they come; rho and lambda are those of
# Table 1 for the proposed method, the same on both data sets.
PAPER_PARAMETERS: dict[str, Any] = {
    "objective": "negative_sampling",
    "noise": "adversarial",
    "n_negatives": 1,
    "optimizer": "adagrad",
    "learning_rate": 0.01,
    "score_penalty": 0.001,
    "tree_components": 16,
    "tree_regularization": 0.1,
    "tree_fit": "paper",
    "scale_features": False,
}

# What the authors' published code does otherwise, of what can be switched on here.
AUTHORS_CODE: dict[str, Any] = {"whiten_components": True}

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
