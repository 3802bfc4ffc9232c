"""A solver in one file: the squared hinge loss of each negative against the positive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from extremax.kernels.compile import njit
from extremax.kernels.row_losses import register_loss
from extremax.solvers import NegativeSampling, register_solver


class SquaredHinge(NamedTuple):
    """Settings of `squared_hinge`."""

    penalty: np.float32


@njit
def squared_hinge(settings, pairs, start, stop):
    """loss = mean over j of max(0, 1 + xi_j - xi_0)^2, plus the penalty on all scores."""
    scores, coefficients, row_weight = pairs.scores, pairs.coefficients, pairs.row_weight
    width = scores.shape[1]
    for i in range(start, stop):
        total = np.float64(0.0)
        pull = np.float32(0.0)
        for j in range(1, width):
            missing = max(np.float32(1.0) + scores[i, j] - scores[i, 0], np.float32(0.0))
            slope = np.float32(2.0) * missing / np.float32(width - 1)
            penalty = np.float32(2.0) * settings.penalty * scores[i, j]
            coefficients[i, j] = row_weight[i] * (slope + penalty)
            pull += slope
            total += missing * missing / np.float32(width - 1) + settings.penalty * scores[i, j] ** 2
        coefficients[i, 0] = row_weight[i] * (np.float32(2.0) * settings.penalty * scores[i, 0] - pull)
        pairs.losses[i] = row_weight[i] * (total + settings.penalty * scores[i, 0] ** 2)


register_loss(SquaredHinge, squared_hinge)


@register_solver
class SquaredHingeSampling(NegativeSampling):
    """Negatives as in negative sampling; scores need no log p_n."""

    name = "squared_hinge"
    adds_log_noise = False

    def loss(self, epoch, config):
        return SquaredHinge(np.float32(self.score_penalty))
