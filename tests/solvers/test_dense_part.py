"""The dense half of a pair is trained as dense features alone are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.data import planted_hierarchy
from extremax.examples import Examples
from extremax.fit import make_trainer
from extremax.runtime.context import Context
from extremax.solvers.config import resolve
from extremax.solvers.dense_part import fit_dense
from extremax.tuned import DEFAULTS, ProblemSize, replace_numbers
from trainers import Progress, make_config

N_WORDS, N_DENSE = 40, 12


@pytest.fixture(scope="module")
def pair():
    planted = planted_hierarchy(900, 60, N_DENSE, seed=4)
    words = sparse.random(900, N_WORDS, density=0.1, format="csr", random_state=0, dtype=np.float32)
    X = sparse.hstack([words, sparse.csr_matrix(planted.X)], format="csr")
    return Examples(X, planted.y.astype(np.int32)), planted.X


def dense_half(data, numbers):
    """Train the dense half; return the objective that was used and the result."""
    n_classes = int(data.y.max()) + 1
    problem = ProblemSize(data.n_rows, data.n_pairs, N_WORDS + N_DENSE, n_classes, n_dense=N_DENSE)
    given = ExtremeClassifier(n_shared=16).get_params(deep=False)
    config = resolve(given, problem, numbers=numbers)
    used = []

    def make(inner, context):
        used.append(inner.objective)
        return make_trainer(inner, context)

    return used, fit_dense(data, n_classes, config, Context(0, 1), make)


@pytest.mark.parametrize(("min_pairs", "expected"), [(500, "candidate_softmax"), (1000, "shared_softmax")])
def test_objective_is_that_of_dense_features(pair, min_pairs, expected):
    numbers = replace_numbers(DEFAULTS, candidates={"min_pairs": min_pairs})
    assert dense_half(pair[0], numbers)[0] == [expected]


@pytest.mark.identity
def test_weights_are_those_of_the_dense_columns_alone(pair):
    data, dense = pair
    numbers = replace_numbers(DEFAULTS, candidates={"min_pairs": 500})
    found = dense_half(data, numbers)[1]
    alone, n_classes = Examples(dense, data.y), int(data.y.max()) + 1
    config = make_config(alone, n_classes, objective="candidate_softmax", numbers=numbers)
    trainer = make_trainer(config, Context(0, 1))
    state = trainer.start(alone, n_classes)
    prepared = trainer.prepare(state, alone)
    for rates in ((1.0, 0.5), (0.5, 0.0)):
        trainer.epoch(state, prepared, rates, Progress())
    weights = trainer.export(state)
    np.testing.assert_array_equal(found.part.factors, weights.weights * np.float32(weights.feature_scale))
    np.testing.assert_array_equal(found.biases, weights.biases)
