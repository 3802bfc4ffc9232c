"""Metrics against hand-computed cases, slow references and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn import metrics as sklearn_metrics

import reference
from extremax import metrics


@pytest.fixture
def ranking():
    rng = np.random.default_rng(0)
    n, n_classes = 60, 40
    Y = (rng.random((n, n_classes)) < 0.1).astype(np.int64)
    Y[3] = 0  # a row without labels
    labels = np.argsort(rng.random((n, n_classes)) - 0.6 * Y, axis=1)[:, :6]  # better than chance
    labels[7, 2:] = -1  # fewer predictions than asked for
    return Y, labels, rng.uniform(0.05, 1.0, n_classes)


@pytest.mark.parametrize("k", [1, 3, 5, 6])
def test_ranking_figures_matches_reference(ranking, k):
    Y, labels, propensity = ranking
    truth = sparse.csr_array(Y)
    got = (
        metrics.precision_at_k(truth, labels, k=k),
        metrics.ndcg_at_k(truth, labels, k=k),
        metrics.recall_at_k(truth, labels, k=k),
        metrics.f1_at_k(truth, labels, k=k),
        metrics.propensity_scored_precision_at_k(truth, labels, propensity, k=k),
    )
    np.testing.assert_allclose(
        got, reference.ranking_figures(Y, labels, k, propensity), rtol=1e-12
    )  # float64 sums in another order


def test_ranking_figures_by_hand():
    # Row 0: labels 0, 2 true, ranked 0, 1, 2.  Row 1: label 1 true, ranked 2, 1, 0.
    Y, labels = sparse.csr_array([[1, 0, 1], [0, 1, 0]]), np.array([[0, 1, 2], [2, 1, 0]])
    assert metrics.precision_at_k(Y, labels, k=1) == 0.5
    assert metrics.precision_at_k(Y, labels, k=3) == pytest.approx((2 / 3 + 1 / 3) / 2)
    log3 = np.log2(3)
    assert metrics.ndcg_at_k(Y, labels, k=3) == pytest.approx(((1 + 0.5) / (1 + 1 / log3) + 1 / log3) / 2)
    propensity = [0.5, 0.25, 0.1]  # a hit counts 2, 4, 10
    assert metrics.propensity_scored_precision_at_k(Y, labels, propensity, k=1) == pytest.approx(2 / (10 + 4))
    assert metrics.propensity_scored_precision_at_k(
        Y, labels, propensity, k=1, normalized=False
    ) == pytest.approx(2 / 2)
    assert metrics.propensity_scored_precision_at_k(Y, labels, propensity, k=3) == pytest.approx(
        (12 + 4) / (12 + 4)
    )


def test_f1_of_label_sets_matches_reference(ranking):
    Y, _, _ = ranking
    guess = np.random.default_rng(6).random(Y.shape) < 0.05 + 0.5 * Y
    guess[[3, 5]] = False  # row 3 has no label either
    Y[:, 11] = guess[:, 11] = 0  # a label that is neither true nor predicted
    pair = sparse.csr_array(Y), sparse.csr_array(guess)
    got = metrics.micro_f1(*pair), metrics.macro_f1(*pair), metrics.samples_f1(*pair)
    np.testing.assert_allclose(got, reference.label_f1(Y, guess), rtol=1e-12)
    for figure, average in zip(got, ("micro", "macro", "samples"), strict=True):
        used = (Y | guess).any(axis=0)
        expected = sklearn_metrics.f1_score(Y[:, used], guess[:, used], average=average, zero_division=0.0)
        assert figure == pytest.approx(expected)
    empty = sparse.csr_array((2, 3))
    assert metrics.micro_f1(empty, empty) == metrics.macro_f1(empty, empty) == 0.0
    with pytest.raises(ValueError, match="truth has shape"):
        metrics.samples_f1(pair[0], pair[1][:, :5])


@pytest.mark.parametrize("k", [1, 3])
def test_f1_at_k_matches_sklearn(k):
    rng = np.random.default_rng(7)
    Y, labels = rng.integers(0, 2, (50, 20)), np.argsort(rng.random((50, 20)), axis=1)
    guess = np.zeros_like(Y)
    np.put_along_axis(guess, labels[:, :k], 1, axis=1)
    expected = sklearn_metrics.f1_score(Y, guess, average="samples")
    assert metrics.f1_at_k(sparse.csr_array(Y), labels, k=k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ndcg_matches_sklearn(k):
    rng = np.random.default_rng(1)
    Y, scores = rng.integers(0, 2, (50, 20)), rng.random((50, 20))
    labels = np.argsort(-scores, axis=1)[:, :k]
    assert metrics.ndcg_at_k(sparse.csr_array(Y), labels, k=k) == pytest.approx(
        sklearn_metrics.ndcg_score(Y, scores, k=k)
    )


def test_single_label_figures_match_sklearn():
    rng = np.random.default_rng(2)
    n, n_classes = 200, 12
    y, weight = rng.integers(n_classes, size=n), rng.random(n)
    prob = rng.dirichlet(np.ones(n_classes), n)
    labels = np.argsort(-prob, axis=1)
    for w in (None, weight):
        log_likelihood = metrics.log_likelihood(y, np.log(prob), sample_weight=w)
        assert log_likelihood == pytest.approx(-sklearn_metrics.log_loss(y, prob, sample_weight=w))
        accuracy = metrics.accuracy(y, labels[:, 0], sample_weight=w)
        assert accuracy == pytest.approx(sklearn_metrics.accuracy_score(y, labels[:, 0], sample_weight=w))
        for k in (1, 3):
            expected = sklearn_metrics.top_k_accuracy_score(
                y, prob, k=k, sample_weight=w, labels=np.arange(n_classes)
            )
            assert metrics.accuracy_at_k(y, labels, k=k, sample_weight=w) == pytest.approx(expected)


def test_precision_of_one_label_equals_accuracy_at_k_identity():
    rng = np.random.default_rng(3)
    y, labels = rng.integers(9, size=80), np.argsort(rng.random((80, 9)), axis=1)
    Y = sparse.csr_array((np.ones(80), (np.arange(80), y)), shape=(80, 9))
    for k in (1, 4):
        assert k * metrics.precision_at_k(Y, labels, k=k) == pytest.approx(
            metrics.accuracy_at_k(y, labels, k=k)
        )


def test_indicator_with_stored_zeros_and_unsorted_columns_invariant(ranking):
    Y, labels, propensity = ranking
    plain = sparse.csr_array(Y)
    messy = sparse.csr_array(
        (plain.data.copy(), plain.indices.copy(), plain.indptr.copy()), shape=plain.shape
    )
    for a, b in zip(messy.indptr[:-1], messy.indptr[1:], strict=True):
        messy.indices[a:b] = messy.indices[a:b][::-1]
    messy.has_sorted_indices = messy.has_canonical_format = False
    zeros = sparse.csr_array((np.zeros(60), (np.arange(60), labels[:, 0].clip(0))), shape=Y.shape)
    stacked = sparse.csr_array(
        (
            np.r_[plain.data, zeros.data],
            (np.r_[plain.tocoo().row, np.arange(60)], np.r_[plain.indices, zeros.indices]),
        ),
        shape=Y.shape,
    )
    for truth in (messy, stacked):
        assert metrics.precision_at_k(truth, labels, k=3) == metrics.precision_at_k(plain, labels, k=3)
        got = metrics.propensity_scored_precision_at_k(truth, labels, propensity, k=3)
        assert got == pytest.approx(metrics.propensity_scored_precision_at_k(plain, labels, propensity, k=3))


def test_propensities_match_reference():
    """Jain et al. (2016): 1 / (1 + C e^(-A log(N_l + B))), C = (log N - 1)(B + 1)^A."""
    counts = np.array([0, 1, 7, 4000])
    expected = [
        1.0 / (1.0 + (np.log(9000) - 1.0) * 2.5**0.55 * np.exp(-0.55 * np.log(n + 1.5))) for n in counts
    ]
    np.testing.assert_allclose(metrics.label_propensities(counts, 9000), expected, rtol=1e-12)


def test_propensities_by_hand():
    # Jain et al. (2016) for N = e^2: c = (2 - 1) * 2.5^0.55, and a class with one row has (1 + 1.5)^-0.55, so
    # p = 1/2.
    n = np.exp(2.0)
    np.testing.assert_allclose(metrics.label_propensities([1], n), [0.5])
    rising = metrics.label_propensities([0, 1, 10, 1000], 5000)
    assert np.all(np.diff(rising) > 0.0)
    np.testing.assert_allclose(
        metrics.label_propensities([0], 5000, a=0.6, b=2.6), 1 / (1 + (np.log(5000) - 1) * (3.6 / 2.6) ** 0.6)
    )


@pytest.mark.parametrize("n_bins", [1, 10, 15])
def test_calibration_error_matches_reference(n_bins):
    rng = np.random.default_rng(4)
    confidence = np.r_[rng.random(300), 0.0, 1.0, 0.2, 0.4]  # bin edges included
    correct = rng.random(304) < confidence**2
    got = metrics.expected_calibration_error(correct, confidence, n_bins=n_bins)
    assert got == pytest.approx(reference.calibration_error(correct, confidence, n_bins))


def test_calibration_error_by_hand():
    correct, confidence = [True, False, True], [0.9, 0.9, 0.35]
    assert metrics.expected_calibration_error(correct, confidence) == pytest.approx(
        (2 * abs(0.5 - 0.9) + abs(1 - 0.35)) / 3
    )
    # Weight 2 is the row twice.
    twice = metrics.expected_calibration_error([*correct, True], [*confidence, 0.35])
    assert metrics.expected_calibration_error(correct, confidence, sample_weight=[1, 1, 2]) == pytest.approx(
        twice
    )


def test_calibrated_confidence_has_small_error_recovers():
    rng = np.random.default_rng(5)
    confidence = rng.random(200_000)
    calibrated = metrics.expected_calibration_error(rng.random(200_000) < confidence, confidence)
    overconfident = metrics.expected_calibration_error(rng.random(200_000) < 0.7 * confidence, confidence)
    assert calibrated < 0.01  # 15 bins of 13,000 rows: standard error of a bin at most 0.0044
    assert overconfident == pytest.approx(0.15, abs=0.01)  # mean of 0.3 * confidence


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda Y: metrics.log_likelihood([0, 1], np.zeros((3, 2))), r"got shapes \(2,\) and \(3, 2\)"),
        (lambda Y: metrics.accuracy([0, 1], [[0], [1]]), "accuracy_at_k"),
        (lambda Y: metrics.accuracy([], []), "no rows"),
        (lambda Y: metrics.precision_at_k(Y, [[0], [1]], k=2), "at least"),
        (lambda Y: metrics.precision_at_k(Y, [[0], [1]], k=0), "k = 0"),
        (lambda Y: metrics.precision_at_k(Y, [[0], [7]], k=1), "Class 7"),
        (lambda Y: metrics.precision_at_k(Y[:0], np.zeros((0, 1), int), k=1), "no rows"),
        (
            lambda Y: metrics.propensity_scored_precision_at_k(Y, [[0], [1]], [0.5], k=1),
            "one propensity per class",
        ),
        (lambda Y: metrics.label_propensities([1], 0), "n_samples = 0"),
        (lambda Y: metrics.expected_calibration_error([True], [-0.3]), "Pass probabilities"),
        (lambda Y: metrics.expected_calibration_error([True], [np.nan]), "must lie in"),
        (lambda Y: metrics.expected_calibration_error([True], [0.1, 0.2]), "one length"),
    ],
)
def test_metrics_rejects(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(sparse.csr_array([[1, 0], [0, 1]]))


def test_ranked_labels_of_floats_rejects():
    with pytest.raises(TypeError, match="class ids"):
        metrics.accuracy_at_k([0], [[0.0]], k=1)
