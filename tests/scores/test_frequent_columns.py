"""Search without frequent columns: exact where all classes are scored; width, mass, threads, storage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from extremax.calibration import Calibration
from extremax.examples import Examples
from extremax.scores import ExactSearch, Scorer
from extremax.scores.sparse_search import SparseSearch
from extremax.scores.sparse_weights import SparseWeights, csr_rows, find_frequent
from extremax.solvers.sparse.correction import Job, ProposalSource, TrainingRows, feature_mean, propose
from extremax.solvers.sparse.start import ClassSums, fit_numbers, make_start
from extremax.tuned import SparseConfig
from planted import word_rows

N_CLASSES, N_FEATURES, N_FREQUENT = 400, 900, 30
CONFIG = SparseConfig(frequent_min_classes=100, frequent_classes=0.3, search_widths=(8, 32, 128))
CALIBRATION = Calibration(1.3, 0.01)


@pytest.fixture(scope="module")
def scorer():
    """Weights like those of n-grams: a few columns that most classes have, many that few classes have."""
    rng = np.random.default_rng(0)
    size = rng.gamma(2.0, size=N_CLASSES)
    frequent = size[:, None] * rng.random(N_FREQUENT) + 0.1 * rng.random((N_CLASSES, N_FREQUENT))
    rare = 4.0 * rng.random((N_CLASSES, N_FEATURES - N_FREQUENT))
    matrix = np.hstack(
        [
            frequent * (rng.random(frequent.shape) < 0.8),
            rare * (rng.random(rare.shape) < 0.02),
        ]
    )
    biases, lengths = rng.normal(size=N_CLASSES), -0.3 * rng.random(N_CLASSES)
    weights = SparseWeights.from_matrix(sparse.csc_matrix(matrix), biases, lengths)
    return Scorer(weights, calibration=CALIBRATION)


@pytest.fixture(scope="module")
def rows(scorer):
    rng = np.random.default_rng(1)
    rare = rng.random((300, N_FEATURES - N_FREQUENT)) < 0.01
    chosen = np.hstack([rng.random((300, N_FREQUENT)) < 0.5, rare])
    return sparse.csr_matrix(chosen * rng.random(chosen.shape), dtype=np.float32)


@pytest.fixture(scope="module")
def search(scorer, rows):
    found = SparseSearch.fit(scorer, rows, CONFIG, n_epochs=2)
    assert found is not None
    return found


def all_classes(search, scorer, X, k):
    """Return what the search finds if every class but one is scored exactly."""
    return search.topk(scorer, X, k, width=N_CLASSES - 1)


@pytest.mark.identity
@pytest.mark.small
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_with_nearly_all_classes_it_is_exact_search(scorer, rows, slope):
    search = SparseSearch.fit(scorer, rows[:40], CONFIG, n_epochs=2)
    assert search is not None
    X, scorer = rows[:20], replace(scorer, calibration=CALIBRATION._replace(temperature_slope=slope))
    labels, log_prob = all_classes(search, scorer, X, 5)
    expected = ExactSearch().topk(scorer, X, 5)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(log_prob, expected[1], atol=2e-5)


@pytest.mark.planted
def test_width_reaches_the_recall_and_the_mass_is_right_on_new_rows(search, scorer, rows):
    fitted, new = SparseSearch.fit(scorer, rows[:150], CONFIG), rows[150:]
    assert set(fitted.columns.tolist()) == set(range(N_FREQUENT))
    assert fitted.recall >= CONFIG.search_recall
    labels, log_prob = fitted.topk(scorer, new, 1)
    exact, exact_log_prob = ExactSearch().topk(scorer, new, 1)
    right = labels[:, 0] == exact[:, 0]
    assert right.mean() >= 0.98
    assert abs((log_prob - exact_log_prob)[right].mean()) < 0.02
    assert np.abs(log_prob - exact_log_prob)[right].mean() < 0.1


@pytest.mark.identity
def test_tail_factor_makes_the_mass_of_fitted_rows_right(search, scorer, rows):
    plain = Scorer(scorer.weights)
    fitted = SparseSearch.fit(plain, rows, CONFIG)
    _, exact = ExactSearch().topk(plain, rows, 1)
    _, found = fitted.topk(plain, rows, 1)
    ratio = np.exp((exact - found).astype(np.float64))  # whole mass found over whole mass
    assert ratio.mean() == pytest.approx(1.0, abs=5e-3)


@pytest.mark.invariance
def test_threads_and_blocks_change_no_bit(search, scorer, rows):
    labels, log_prob = search.topk(scorer, rows, 3)
    for n_threads in (2, 3):
        again = search.topk(scorer, rows, 3, n_threads=n_threads)
        np.testing.assert_array_equal(again[0], labels)
        np.testing.assert_array_equal(again[1], log_prob)
    single = [search.topk(scorer, rows[i : i + 1], 3) for i in range(20)]
    np.testing.assert_array_equal(np.vstack([found[1] for found in single]), log_prob[:20])


def test_state_makes_the_same_search(search, scorer, rows):
    again = SparseSearch.from_state(search.state())
    for one, other in zip(again.topk(scorer, rows, 3), search.topk(scorer, rows, 3), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (again.width, again.recall, again.n_epochs) == (search.width, search.recall, 2)


def test_no_search_where_it_does_not_pay(scorer, rows):
    few = SparseConfig(frequent_min_classes=100, frequent_classes=0.99)
    assert SparseSearch.fit(scorer, rows, few) is None  # no column is that frequent
    assert SparseSearch.fit(scorer, rows, SparseConfig()) is None  # too few classes
    only_rare = sparse.csr_matrix(rows.multiply(np.arange(N_FEATURES) >= N_FREQUENT), dtype=np.float32)
    only_rare.eliminate_zeros()
    assert SparseSearch.fit(scorer, only_rare, CONFIG) is None  # rows touch no frequent column


@pytest.mark.reference
def test_factors_are_the_leading_singular_vectors(scorer):
    weights = scorer.weights
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
