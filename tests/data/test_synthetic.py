"""Synthetic data: the planted truth is the truth, and a seed is a data set."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.data import planted_hierarchy


def make(seed, n_jobs=None):
    return planted_hierarchy(20_000, 300, 24, seed=seed, n_test=9000, n_jobs=n_jobs)


def test_seed_and_threads_invariant():
    one, two, other = make(1, 1), make(1, 2), make(2, 1)
    for field in ("X", "y", "X_test", "y_test"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
        assert not np.array_equal(getattr(one, field), getattr(other, field))
    assert one.X.dtype == np.float32
    assert one.y.dtype == np.int32
    assert not np.array_equal(one.X[: len(one.X_test)], one.X_test[: len(one.X)])


def test_log_prob_identity():
    data = make(0)
    log_prob = data.truth.log_prob_all(data.X_test)
    # float64 rounding of a few hundred terms
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1.0, rtol=1e-12)
    # Labels are draws from the truth: the mean of log p(y|x) over rows is its expectation, within 5 standard
    # errors.
    p = np.exp(log_prob)
    got = log_prob[np.arange(len(p)), data.y_test]
    expected = (p * np.where(p > 0, log_prob, 0.0)).sum(axis=1)
    error = np.std(got - expected) / np.sqrt(len(p))
    assert abs((got - expected).mean()) < 5 * error
    # Accuracy of the best guess is its own expected probability.
    hits = p.argmax(axis=1) == data.y_test
    assert abs(hits.mean() - p.max(axis=1).mean()) < 5 * np.sqrt(0.25 / len(p))


def test_hierarchy_neighbours_are_near():
    data = planted_hierarchy(2000, 256, 40, seed=3, law="uniform")
    means = data.truth.latent_means[np.argsort(data.truth.class_leaf)]
    siblings = np.linalg.norm(means[0::2] - means[1::2], axis=1).mean()
    cousins = np.linalg.norm(means[:128] - means[128:], axis=1).mean()
    assert siblings < 0.5 * cousins
    assert np.bincount(data.y, minlength=256).min() >= 1


def test_zipf_counts_fall_and_classes_may_be_absent():
    data = planted_hierarchy(50_000, 1000, 4, law="zipf")
    counts = np.sort(np.bincount(data.y, minlength=1000))[::-1]
    assert counts[0] > 5 * counts[10]
    assert counts[-1] >= 1
    few = planted_hierarchy(50, 1000, 4)
    assert len(few.y) == 50
    assert few.y.max() < 1000


def test_one_class_and_one_feature():
    assert set(planted_hierarchy(10, 1, 1).y) == {0}


def test_bad_arguments_rejects():
    with pytest.raises(ValueError, match="n_classes is 0"):
        planted_hierarchy(10, 0, 3)
    with pytest.raises(ValueError, match="law is 'power'"):
        planted_hierarchy(10, 2, 3, law="power")
