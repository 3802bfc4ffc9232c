"""Whole runs on tiny data, through every kernel: the suite repeats them interpreted and with bounds checks.

What is checked is the plumbing: shapes, normalisation, agreement of the methods. Quality is the business of
other files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from coverings import in_turn
from extremax import ExtremeClassifier, LabelTree, load_model
from extremax.solvers import CandidateSoftmax, MinibatchSoftmax, NegativeSampling, SparseSoftmax
from extremax.solvers.registry import SOLVERS

pytestmark = pytest.mark.small

N_CLASSES, N_FEATURES = 11, 6  # neither a power of two nor a multiple of a vector


def make_data(n_samples: int = 44) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    y = np.arange(n_samples) % N_CLASSES
    X = 3 * rng.normal(size=(N_CLASSES, N_FEATURES))[y] + 0.3 * rng.normal(size=(n_samples, N_FEATURES))
    return X.astype(np.float32), np.array([f"class {i:02d}" for i in y])


def check_model(clf: ExtremeClassifier, X: Any, y: Any) -> None:
    prob = clf.predict_proba(X)
    assert prob.shape == (len(y), N_CLASSES)
    np.testing.assert_allclose(prob.sum(axis=1), 1, atol=1e-5)  # rounding of eleven float32
    labels, log_prob = clf.predict_topk(X, k=3)
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    # Two ways to the same sum in float32.
    np.testing.assert_allclose(log_prob[:, 0], np.log(prob.max(axis=1)), atol=1e-4)
    every_class, _ = clf.predict_topk(X, k=3, search="beam", beam_width=16)
    np.testing.assert_array_equal(every_class, labels)  # a beam as wide as the tree is exact search
    assert np.isfinite(clf.log_likelihood(X, y))


@in_turn(storage=["dense", "sparse"], optimizer=["adagrad", "adagrad_row", "sgd"])
def test_every_optimizer_and_storage(storage: str, optimizer: str) -> None:
    X, y = make_data()
    features = sparse.csr_array(X) if storage == "sparse" else X
    clf = ExtremeClassifier(
        NegativeSampling(optimizer=optimizer, n_negatives=2, tree_components=4), n_epochs=2, random_state=0
    )
    check_model(clf.fit(features, y), features, y)


SAMPLING = [
    cls(noise=noise, n_negatives=3, tree_components=4)
    for cls, noise in zip(
        (cls for cls in SOLVERS.values() if cls.uses_noise),
        itertools.cycle(("tree", "uniform", "frequency", "mixture")),
    )
]
OTHERS = [CandidateSoftmax(), SparseSoftmax(), MinibatchSoftmax(), MinibatchSoftmax(noise="uniform")]


@pytest.mark.parametrize("solver", [*SAMPLING, *OTHERS], ids=repr)
def test_every_solver_and_noise(solver: Any) -> None:
    X, y = make_data()
    clf = ExtremeClassifier(solver, n_epochs=1, random_state=0)
    clf.fit(X, y, sample_weight=np.linspace(0.5, 1, len(y)))
    prob = clf.predict_proba(X)
    np.testing.assert_allclose(prob.sum(axis=1), 1, atol=1e-5)  # rounding of eleven float32
    np.testing.assert_array_equal(clf.predict_topk(X, k=1)[0][:, 0], clf.predict(X))


def test_memmap_save_load_and_further_epochs(tmp_path: Path) -> None:
    X, y = make_data()
    mapped = np.memmap(tmp_path / "X", dtype=np.float32, mode="w+", shape=X.shape)
    mapped[:] = X
    clf = ExtremeClassifier(MinibatchSoftmax(tree_components=4), n_epochs=1, random_state=0).fit(
        mapped, y, eval_set=(X, y)
    )
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    check_model(again.partial_fit(X, y), X, y)


@pytest.mark.parametrize("n_classes", [1, 2, 3, 4, 5, 8, 9])
def test_tree_of_any_size(n_classes: int) -> None:
    X, _ = make_data()
    y = (np.arange(len(X)) % n_classes).astype(np.int32)
    tree = LabelTree.fit(X, y, n_classes=n_classes)
    log_prob = tree.log_prob_all(X)
    np.testing.assert_allclose(np.exp(log_prob).sum(axis=1), 1, atol=1e-5)  # rounding of float32
    labels, drawn = tree.sample(X, n_draws=3, seed=5)
    assert labels.min() >= 0
    assert labels.max() < n_classes
    # The same sum along a path, once level by level and once by halves of the tree.
    np.testing.assert_allclose(
        drawn, np.take_along_axis(log_prob, labels.astype(np.int64), axis=1), atol=1e-4
    )
    best, _ = tree.top_k(X, 1, beam_width=16)
    np.testing.assert_array_equal(
        np.take_along_axis(log_prob, best.astype(np.int64), axis=1)[:, 0], log_prob.max(axis=1)
    )
