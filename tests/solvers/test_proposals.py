"""Proposals of classes to correct, with and without an approximation of frequent columns."""

from __future__ import annotations

import numpy as np
import pytest
from extremax.solvers.sparse.correction import (
    Job,
    ProposalSource,
    TrainingRows,
    feature_mean,
    find_frequent,
    propose,
)
from scipy import sparse

from extremax.examples import Examples
from extremax.scores.sparse import SparseWeights, csr_rows
from extremax.solvers.sparse.start import ClassSums, fit_numbers, make_start
from extremax.tuned import SparseConfig
from planted import word_rows

N_CLASSES, N_FREQUENT = 400, 30


@pytest.mark.reference
def test_factors_are_the_leading_singular_vectors():
    """Weights like those of n-grams: a few columns that most classes have, many that few classes have."""
    rng = np.random.default_rng(0)
    size = rng.gamma(2.0, size=N_CLASSES)
    frequent = size[:, None] * rng.random(N_FREQUENT) + 0.1 * rng.random((N_CLASSES, N_FREQUENT))
    rare = 4.0 * rng.random((N_CLASSES, 800)) * (rng.random((N_CLASSES, 800)) < 0.02)
    table = np.hstack([frequent * (rng.random(frequent.shape) < 0.8), rare])
    weights = SparseWeights.from_matrix(sparse.csc_matrix(table), np.zeros(N_CLASSES))
    found = find_frequent(weights.postings, N_CLASSES, 120, 2)
    matrix = weights.to_dense()[:, :N_FREQUENT]
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    best = (u[:, :2] * s[:2]) @ v[:2]
    error = np.linalg.norm(matrix - found.left.T @ found.right.T)
    assert error == pytest.approx(np.linalg.norm(matrix - best), rel=1e-2)
    assert find_frequent(weights.postings, N_CLASSES, N_CLASSES, 2) is None


@pytest.mark.planted
def test_proposals_without_frequent_columns_are_those_with_all():
    X, y = word_rows(900, 60, 400)
    data = SimpleData(X, y)
    few = SparseConfig(frequent_min_classes=10, frequent_classes=0.5, frequent_exact=4)
    exact, approximate = data.propose(SparseConfig()), data.propose(few)
    assert (exact.classes[:, 0] == approximate.classes[:, 0]).all()
    same = [len(set(a) & set(b)) / len(a) for a, b in zip(exact.classes, approximate.classes, strict=True)]
    assert np.mean(same) > 0.95
    np.testing.assert_array_equal(exact.offsets[:, 0], approximate.offsets[:, 0])
    for a, b, i, j in zip(
        exact.classes, approximate.classes, exact.offsets, approximate.offsets, strict=True
    ):
        by_class = dict(zip(a.tolist(), i.tolist(), strict=True))
        for label, score in zip(b.tolist(), j.tolist(), strict=True):
            assert score == pytest.approx(by_class.get(label, score), abs=1e-4)  # exact scores in any case
    assert np.abs(exact.log_rest - approximate.log_rest).mean() < 0.2


class SimpleData:
    """Rows, class sums and the start."""

    def __init__(self, X, y):
        self.examples, self.config = Examples(X, y), SparseConfig()
        n_classes, n_features = int(y.max()) + 1, X.shape[1]
        sums = ClassSums.of(self.examples, n_classes, n_features).arrays
        self.rows = csr_rows(X)
        numbers, _ = fit_numbers(sums, self.rows, self.examples, self.config, 0, 1)
        self.source = ProposalSource(sums, numbers, make_start(sums, numbers, 1))
        self.mean = feature_mean(self.rows, n_features)

    def propose(self, config):
        training = TrainingRows(self.examples, self.rows, self.mean)
        pairs = np.arange(self.examples.n_pairs)
        return propose(training, pairs, self.source, self.source.start.postings, 8, Job(config, 0, 1))
