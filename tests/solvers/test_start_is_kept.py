"""Held-out log-likelihood at any moment of training is not below that of the start."""

from __future__ import annotations

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.examples import Examples
from extremax.solvers import CandidateSoftmax, MinibatchSoftmax
from extremax.solvers.loop import Watcher
from extremax.tuned import DEFAULTS, replace_numbers


class Curve(Watcher):
    """Keeps the log-likelihood of held-out rows at the start, inside epochs and after each epoch."""

    def __init__(self, held_out):
        self.held_out, self.figures = held_out, []

    def at_start(self, moment):
        self.during_epoch(moment)

    def during_epoch(self, moment):
        self.figures.append(moment.model().evaluate(self.held_out, n_threads=1).log_likelihood)


def curve(solver, n_epochs, shape, **numbers):
    """Train on a planted hierarchy of some rows, classes and features."""

    class Classifier(ExtremeClassifier):
        _numbers = replace_numbers(DEFAULTS, **{"batch": {"progress_batches": 2}, **numbers})

    data = planted_hierarchy(*shape, seed=0, n_test=600)
    known = np.unique(data.y)
    seen = np.isin(data.y_test, known)
    y_test = np.searchsorted(known, data.y_test[seen]).astype(np.int32)
    watch = Curve(Examples(data.X_test[seen], y_test))
    clf = Classifier(solver, n_epochs=n_epochs, random_state=0)
    clf.fit(data.X, np.searchsorted(known, data.y), callbacks=[watch])
    return np.array(watch.figures)


TWO_ROWS = (1200, 600, 16)  # per class: the gradient of a row says little about other rows
FEW_FEATURES = (1200, 600, 8)
MANY_CLASSES = (4200, 2100, 16)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("solver", "n_epochs", "shape"),
    [
        (CandidateSoftmax(), 2, TWO_ROWS),
        (CandidateSoftmax(), 2, FEW_FEATURES),
        (CandidateSoftmax(), 2, MANY_CLASSES),
        (MinibatchSoftmax(n_shared=200), 10, TWO_ROWS),
        (MinibatchSoftmax(n_shared=None), 10, TWO_ROWS),
    ],
)
def test_start_is_kept(solver, n_epochs, shape):
    figures = curve(solver, n_epochs, shape)
    assert len(figures) > 16
    assert figures.min() > figures[0] - 0.05
    assert figures[-1] > figures[0] + 0.05


@pytest.mark.planted
def test_full_first_steps_lose_the_start():
    """The problem is one that the warm-up is for."""
    figures = curve(
        MinibatchSoftmax(n_shared=None), 10, TWO_ROWS, batch={"progress_batches": 2, "warm_up": 0.0}
    )
    assert figures.min() < figures[0] - 0.05


@pytest.mark.planted
def test_weak_regularization_of_few_features_loses_the_start():
    """The problem is one that a regularization by the number of features is for."""
    figures = curve("candidate_softmax", 2, FEW_FEATURES, candidates={"regularization_root": 0.0})
    assert figures.min() < figures[0] - 0.3
