"""How probable classes without a row are: a bias for all of them, chosen by held-out rows.

With d(x) the log-odds that the scores give to the label being any class without a row, the bias b maximises
the likelihood of whether it is,

    sum_x log sigmoid(d(x) + b)  or, where the label has rows,  log sigmoid(-d(x) - b).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.runtime.threads import run, split
from extremax.scores.base import Buffers
from extremax.scores.sparse import SparseWeights
from extremax.types import Bool, Float64

_ROWS_PER_TASK, _TASK_SCORES = 32, 1 << 22
_SPREAD = 1.0  # nats, standard deviation of the prior of the bias
_MOST = 5.0  # nats


def unseen_classes(data: Examples, n_classes: int) -> Bool:
    """Return the classes that have texts and no row."""
    counts = data.ordinary().class_counts(n_classes)
    found: Bool = (counts == 0) & (data.class_counts(n_classes) > 0)
    return found


def fit_unseen_bias(weights: SparseWeights, held_out: Examples, unseen: Bool, context: Context) -> float:
    """Return the bias of the classes marked in `unseen`."""
    if not unseen.any() or unseen.all():
        return 0.0
    odds = _log_odds(weights, held_out, unseen, context)[held_out.rows]
    signed = np.where(unseen[held_out.y], 1.0, -1.0)

    def loss(bias: float) -> float:
        return float(np.logaddexp(0.0, -signed * (odds + bias)).sum()) + 0.5 * (bias / _SPREAD) ** 2

    return float(minimize_scalar(loss, bounds=(-_MOST, _MOST), method="bounded").x)


def _log_odds(weights: SparseWeights, data: Examples, unseen: Bool, context: Context) -> Float64:
    """Return the log-odds of the marked classes together, for each row."""
    odds = np.empty(data.n_rows)
    tasks = split(data.n_rows, max(1, min(_ROWS_PER_TASK, _TASK_SCORES // weights.n_classes)))

    def work(i: int) -> None:
        first, last = tasks[i]
        scores = np.empty((last - first, weights.n_classes), np.float32)
        weights.open_block(data.X, first, last).products(0, weights.n_classes, Buffers(), scores)
        scores += weights.biases
        odds[first:last] = logsumexp(scores[:, unseen], axis=1) - logsumexp(scores[:, ~unseen], axis=1)

    run(work, len(tasks), context.n_threads)
    return odds
