"""Whitening of rows that arrive in parts: sums of all parts, and weights from their class means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from extremax import ExtremeClassifier, load_model
from extremax.errors import ModelFileError
from extremax.examples import Examples
from extremax.solvers import MinibatchSoftmax
from extremax.solvers.stream import StreamMoments, log_likelihood
from extremax.storage.state import State
from extremax.tuned import DEFAULTS

N_CLASSES = 5


def rows(n: int = 300, n_features: int = 4, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(N_CLASSES, size=n).astype(np.int32)
    mix = rng.normal(size=(n_features, n_features))
    X = rng.normal(size=(N_CLASSES, n_features))[y] + rng.normal(size=(n, n_features)) @ mix + 3.0
    return X.astype(np.float32), y


def moments_of(X: Any, y: Any, size: int, weight: Any = None) -> StreamMoments:
    stream = StreamMoments.begin(Examples(X[:size], y[:size]), N_CLASSES, 0.5, 0)
    for start in range(0, len(y), size):
        cut = slice(start, start + size)
        stream = stream.plus(Examples(X[cut], y[cut], weight=None if weight is None else weight[cut]), 0.5)
    return stream


@pytest.mark.reference
def test_discriminant_is_that_of_all_rows() -> None:
    X, y = rows()
    white, means, prior = moments_of(X, y, 37).discriminant(DEFAULTS)
    x = X.astype(np.float64) * 0.5
    within = sum(
        (x[y == c] - x[y == c].mean(axis=0)).T @ (x[y == c] - x[y == c].mean(axis=0))
        for c in range(N_CLASSES)
    ) / len(y)
    values, vectors = np.linalg.eigh(within + DEFAULTS.warm_start.ridge * np.trace(within) / 4 * np.eye(4))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    np.testing.assert_allclose(white.matrix / white.matrix[0, 0], root / root[0, 0], rtol=1e-3)
    np.testing.assert_allclose(white.mean, x.mean(axis=0), rtol=1e-5)
    counts = np.bincount(y)
    for c in range(N_CLASSES):
        mean = white.rows(X[y == c], 0.5).mean(axis=0) * counts[c] / (counts[c] + 1.0)
        np.testing.assert_allclose(means[c], mean, atol=1e-4)
    np.testing.assert_allclose(prior, np.log(counts / len(y)))


@pytest.mark.invariance
def test_a_row_of_weight_two_is_two_rows() -> None:
    X, y = rows()
    twice = moments_of(np.vstack([X, X[:100]]), np.append(y, y[:100]), 400)
    weighted = moments_of(X, y, 300, np.where(np.arange(300) < 100, 2.0, 1.0).astype(np.float32))
    weighted_white, *others = weighted.discriminant(DEFAULTS)
    white, *expected = twice.discriminant(DEFAULTS)
    np.testing.assert_allclose(weighted_white.matrix, white.matrix, rtol=1e-3, atol=1e-6)
    for found, value in zip(others, expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)


@pytest.mark.reference
def test_log_likelihood_of_scores() -> None:
    rng = np.random.default_rng(0)
    scores, y, weight = 50.0 * rng.normal(size=(20, 6)), rng.integers(6, size=20), rng.random(20)
    prob = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = np.average(np.log(prob[np.arange(20), y]), weights=weight)
    assert log_likelihood(scores, y, weight) == pytest.approx(expected)


def digits() -> tuple[Any, Any]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order].astype(np.float32), data.target[order]


def pass_over(clf: Any, X: Any, y: Any, size: int) -> Any:
    for start in range(0, len(y), size):
        clf.partial_fit(X[start : start + size], y[start : start + size], classes=np.arange(10))
    return clf


def test_small_parts_are_as_good_per_pass_as_sgd_reference() -> None:
    X, y = digits()
    clf = pass_over(ExtremeClassifier(random_state=0, n_jobs=1), X[:1400], y[:1400], 20)
    sgd = pass_over(SGDClassifier(loss="log_loss", random_state=0), X[:1400], y[:1400], 20)
    assert clf.score(X[1400:], y[1400:]) > sgd.score(X[1400:], y[1400:]) > 0.9  # 0.965, 0.937


@pytest.mark.identity
def test_saved_between_two_parts_the_stream_goes_on_the_same(tmp_path: Path) -> None:
    X, y = digits()
    straight = pass_over(ExtremeClassifier(random_state=0, n_jobs=1), X[:400], y[:400], 20)
    stopped = pass_over(ExtremeClassifier(random_state=0, n_jobs=2), X[:200], y[:200], 20)
    assert stopped._fitted.state.stream is not None  # sums are kept: they are part of what is saved
    stopped.save(tmp_path / "model")
    later = pass_over(load_model(tmp_path / "model"), X[200:400], y[200:400], 20)
    np.testing.assert_array_equal(later.predict_proba(X), straight.predict_proba(X))


def test_sums_are_dropped_once_there_are_rows_enough() -> None:
    X, y = rows(1200, 8)
    clf = ExtremeClassifier(random_state=0, n_jobs=1)
    kept = []
    for start in range(0, 1200, 100):
        clf.partial_fit(X[start : start + 100], y[start : start + 100], classes=np.arange(N_CLASSES))
        kept.append(clf._fitted.state.stream is not None)
    assert kept[0]
    assert not kept[-1]
    plain = ExtremeClassifier(MinibatchSoftmax(precondition=False), random_state=0).partial_fit(X, y)
    assert plain._fitted.state.stream is None
    assert plain._fitted.state.whitening is None


@pytest.mark.error
@pytest.mark.parametrize("name", ["shift", "second", "class_sums", "class_weights", "n_rows"])
def test_a_state_that_does_not_fit_is_refused(name: str) -> None:
    state = moments_of(*rows(), 300).state()
    damaged = State(dict(state.header), dict(state.arrays))
    if name == "n_rows":
        damaged.header[name] = "many"
    else:
        damaged.arrays[name] = damaged.arrays[name][:2]
    with pytest.raises(ModelFileError, match="does not fit together"):
        StreamMoments.from_state(damaged, N_CLASSES, 4)


def test_labels_of_a_sorted_stream_are_not_expected() -> None:
    X, y = rows(1000)
    order = np.argsort(y, kind="stable")
    first = int(np.sum(y < 2)) + 20  # two classes, and the beginning of a third
    mixed, ordered = (moments_of(X[some], y[some], 100) for some in (np.arange(500), order[:first]))
    assert mixed.expects(Examples(X[500:520], y[500:520]), 0.5)
    assert not ordered.expects(Examples(X[order[first:]], y[order[first:]]), 0.5)
    third = order[first : first + 20]
    assert not ordered.expects(Examples(X[third], y[third]), 0.5)
    assert ordered.expects(Examples(X[order[:first]], y[order[:first]]), 0.5)


def test_most_labels_of_many_classes_are_new_and_expected() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2000, size=400).astype(np.int32)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    stream = StreamMoments.begin(Examples(X, y), 2000, 1.0, 0).plus(Examples(X[:300], y[:300]), 1.0)
    assert stream.expects(Examples(X[300:], y[300:]), 0.5)
