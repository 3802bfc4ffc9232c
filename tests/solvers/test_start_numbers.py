"""The numbers of the start, fitted on rows left out of their classes: what they must not learn from that."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse import start
from extremax.solvers.sparse.start import ClassSums, fit_numbers, make_start, sample_sizes
from extremax.tuned import SparseConfig
from planted import word_rows

N_CLASSES, N_WORDS = 120, 1500


@pytest.fixture(scope="module")
def balanced():
    """Four rows of every class, three of every fourth class; test rows of all classes alike."""
    X, y = word_rows(12_000, N_CLASSES, N_WORDS, topic=0.5)
    rank = np.empty(len(y), np.int64)
    for label in range(N_CLASSES):
        rank[y == label] = np.arange((y == label).sum())
    train = np.flatnonzero(rank < np.where(y % 4 == 0, 3, 4))
    test = np.flatnonzero((rank >= 4) & (rank < 24))
    return X[train], y[train], X[test], y[test]


def score_start(balanced, **numbers):
    """Return accuracy and log-likelihood of the start on test rows."""
    X, y, X_test, y_test = balanced
    data = Examples(X, y)
    arrays = ClassSums.of(data, N_CLASSES, N_WORDS).arrays
    found, _ = fit_numbers(arrays, csr_rows(X), data, SparseConfig(**numbers), 0, 1)
    weights = make_start(arrays, found, 1)
    W = np.zeros((N_WORDS, N_CLASSES))
    W[np.repeat(np.arange(N_WORDS), np.diff(weights.postings.offsets)), weights.postings.classes] = (
        weights.postings.values
    )
    scores = X_test @ W + weights.biases + np.outer(np.asarray(X_test.sum(axis=1)), weights.length_biases)
    log_prob = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    rows = np.arange(len(y_test))
    return (scores.argmax(axis=1) == y_test).mean(), log_prob[rows, y_test].mean()


@pytest.mark.planted
def test_classes_of_about_equal_size_are_not_told_by_their_size(balanced):
    """A row left out makes its class the smallest; numbers that say so are right on such rows alone."""
    accuracy, log_likelihood = score_start(balanced)
    unbounded, unbounded_likelihood = score_start(balanced, slope_penalty=0.0)
    # Found 0.840 / -0.61 against 0.622 / -2.00.
    assert accuracy > max(0.78, unbounded + 0.1)
    assert log_likelihood > unbounded_likelihood + 0.5


def test_smoothings_are_compared_by_candidates_of_their_own(monkeypatch):
    """Beside class texts, candidates of another smoothing can be worth half a nat too much."""
    X, y = word_rows(600, 40, 300, topic=0.5)
    data = Examples(X, y[:-50]).with_class_texts(y[-50:], np.zeros(50, np.int32), 0.2, 300)
    fit, fitted = start._Fitter.fit, []

    def record(self, pairs, smoothing, guess, **options):
        value, numbers = fit(self, pairs, smoothing, guess, **options)
        fitted.append((smoothing, guess.smoothing, value))
        return value, numbers

    monkeypatch.setattr(start._Fitter, "fit", record)
    sums = ClassSums.of(data, 40, 300).arrays
    found, _ = fit_numbers(sums, csr_rows(X), data, SparseConfig(), 0, 1)
    last = {smoothing: (guess, value) for smoothing, guess, value in fitted[:-1]}
    assert len(last) >= 3
    assert all(guess == smoothing for smoothing, (guess, _) in last.items())
    assert found.smoothing == max(last, key=lambda smoothing: last[smoothing][1])


@pytest.mark.parametrize(("entries", "expected"), [(1, (1000, 200)), (200, (1000, 200)), (400, (500, 100)),
                                                   (10_000, (250, 50))])  # fmt: skip
def test_long_rows_are_sampled_less(entries, expected):
    rows = CSRRows(np.zeros(3 * entries, np.float32), np.zeros(3 * entries, np.int32), np.arange(4) * entries)
    assert sample_sizes(rows, SparseConfig()) == expected


@pytest.mark.reference
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.05])
def test_start_made_by_blocks_is_the_start_beside_other_weights(monkeypatch, some, threshold):
    X, y = word_rows(600, 40, 300, topic=0.5)
    arrays = ClassSums.of(Examples(X, y), 40, 300).arrays
    numbers = start._initial_numbers(2.0, (100, 205), SparseConfig())
    rng = np.random.default_rng(0)
    n_buckets = len(numbers.log_weights)
    numbers = numbers._replace(log_weights=rng.random(n_buckets), cosine_weights=rng.random(n_buckets))
    features = np.flatnonzero(rng.random(300) < 0.3) if some else None
    other = start.by_columns(sparse.random(40, 300, 0.1, random_state=0, dtype=np.float32))
    mean = rng.random(300).astype(np.float32)
    linear = Postings(other.indptr, other.indices, other.data), 0.5
    monkeypatch.setattr(start, "_FEATURES_PER_TASK", 7)
    found = start.join_start(arrays, numbers, (mean, threshold), 2, linear, features=features)
    whole = make_start(arrays, numbers, 1, features)
    table = whole.to_matrix().toarray() + 0.5 * other.toarray()
    table[np.abs(table) * mean < threshold] = 0.0
    np.testing.assert_allclose(found.to_matrix().toarray(), table, atol=1e-5)
    np.testing.assert_array_equal(found.biases, whole.biases)
    assert 0 < len(found.postings.values) == np.count_nonzero(table)
