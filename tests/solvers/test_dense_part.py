"""The dense half of a pair is trained as dense features alone are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.data import planted_hierarchy
from extremax.examples import Examples, FeatureLayout
from extremax.fit import problem_size
from extremax.runtime.context import Context
from extremax.solvers import CandidateSoftmax
from extremax.solvers.config import resolve
from extremax.solvers.sparse import dense_part
from extremax.solvers.sparse.dense_part import dense_solver, fit_dense
from extremax.tuned import DEFAULTS, ProblemSize
from trainers import Progress, make_config

N_WORDS, N_DENSE = 40, 12


@pytest.fixture(scope="module")
def pair():
    planted = planted_hierarchy(900, 60, N_DENSE, seed=4)
    words = sparse.random(900, N_WORDS, density=0.1, format="csr", random_state=0, dtype=np.float32)
    X = sparse.hstack([words, sparse.csr_matrix(planted.X)], format="csr")
    return Examples(X, planted.y.astype(np.int32)), planted.X


def dense_half(data, numbers):
    """Train the dense half."""
    n_classes = int(data.y.max()) + 1
    layout = FeatureLayout(N_WORDS + N_DENSE, n_dense=N_DENSE)
    config = resolve("auto", problem_size(data, n_classes), layout=layout, numbers=numbers)
    return fit_dense(data, n_classes, config, Context(0, 1))


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "expected"),
    [
        (50_000, 384, "candidate_softmax"),
        (10_000, 384, "minibatch_softmax"),
        (10_000, 3000, "minibatch_softmax"),
    ],
)
def test_solver_is_that_of_dense_features(n_rows, n_columns, expected):
    problem = ProblemSize(n_rows, n_rows, n_columns, 10_000)
    assert dense_solver(problem, DEFAULTS).name == expected


@pytest.mark.identity
def test_weights_are_those_of_the_dense_columns_alone(pair, monkeypatch):
    monkeypatch.setattr(dense_part, "dense_solver", lambda problem, numbers: CandidateSoftmax())
    data, dense = pair
    found = dense_half(data, DEFAULTS)
    alone, n_classes = Examples(dense, data.y), int(data.y.max()) + 1
    config = make_config(alone, n_classes, solver="candidate_softmax")
    trainer = config.make_trainer(Context(0, 1))
    state = trainer.start(alone, n_classes)
    prepared = trainer.prepare(state, alone)
    for rates in ((1.0, 0.5), (0.5, 0.0)):
        trainer.epoch(state, prepared, rates, Progress())
    weights = trainer.export(state)
    np.testing.assert_array_equal(found.part.factors, weights.weights * np.float32(weights.feature_scale))
    np.testing.assert_array_equal(found.biases, weights.biases)
