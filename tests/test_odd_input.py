"""Fits that nobody plans: finite probabilities that sum to one come out, or one sentence that says why
not.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, load_model
from extremax.evaluation import evaluate
from extremax.solvers import MinibatchSoftmax
from extremax.solvers.registry import SOLVERS as SOLVER_CLASSES

N_ROWS, N_CLASSES, N_FEATURES = 60, 6, 5
SOLVERS = ("auto", "minibatch_softmax", "negative_sampling", "one_vs_each", "augment_reduce", "nce")


def make_rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(N_ROWS) % N_CLASSES
    X = rng.normal(size=(N_CLASSES, N_FEATURES))[y] + 0.3 * rng.normal(size=(N_ROWS, N_FEATURES))
    return X.astype(np.float32), y


def outlier(X: Any, value: float) -> Any:
    X[7, 2] = value
    return X


def explicit_zeros(X: Any) -> Any:
    matrix = sparse.csr_array(X)
    matrix.data[::3] = 0.0
    return matrix


WEIGHT = np.where(np.arange(N_ROWS) % 7 == 0, 1e12, 1.0)
ODD_FITS: dict[str, Any] = {
    "constant features": lambda X, y: (np.full_like(X, 3.0), y),
    "zero features": lambda X, y: (np.zeros_like(X), y),
    "one constant feature": lambda X, y: (np.ones((N_ROWS, 1)), y),
    "one feature": lambda X, y: (X[:, :1], y),
    "true or false": lambda X, y: (X > 0.0, y),
    "copies of one row": lambda X, y: (np.repeat(X[:1], N_ROWS, axis=0), y),
    "one row per class": lambda X, y: (X[:N_CLASSES], y[:N_CLASSES]),
    "two rows": lambda X, y: (X[:2], y[:2]),
    "huge": lambda X, y: (X * np.float32(1e30), y),
    "tiny": lambda X, y: (X * np.float32(1e-30), y),
    "far from zero": lambda X, y: (X + np.float32(1e7), y),
    "outlier": lambda X, y: (outlier(X, 1e30), y),
    "features of many sizes": lambda X, y: (X * np.float32([1e-10, 1.0, 1e10, 1e5, 1e-20]), y),
    "stored zeros": lambda X, y: (explicit_zeros(X), y),
    "no number stored": lambda X, y: (sparse.csr_array(X.shape, dtype=np.float32), y),
    "classes without rows": lambda X, y: (X, y, {"classes": np.arange(300)}),
    "unequal weights": lambda X, y: (X, y, {"sample_weight": WEIGHT}),
    "tiny weights": lambda X, y: (X, y, {"sample_weight": np.full(N_ROWS, 1e-14)}),
    "one shared class": lambda X, y: (X, y, {}, {"n_shared": 1}),
    "huge exponent": lambda X, y: (X, y, {}, {"noise": "mixture", "noise_exponent": 1e5}),
    "labels of many kinds": lambda X, y: (X, [("a", int(i)) if i % 2 else -int(i) for i in y]),
    "labels beyond int64": lambda X, y: (X, [2**70 + int(i) for i in y]),
}


@pytest.mark.parametrize("name", ODD_FITS)
def test_probabilities_identity(name: str, tmp_path: Path) -> None:
    for solver in SOLVERS:
        X, y, *more = ODD_FITS[name](*make_rows())
        arguments, settings = (*more, {}, {})[:2]
        own = {} if solver == "auto" else SOLVER_CLASSES[solver]().get_params()
        given = {name: value for name, value in settings.items() if name in own}
        if solver == "minibatch_softmax" and given.get("noise") == "mixture":
            given["noise"] = "frequency"
        clf = ExtremeClassifier.with_solver(solver, n_epochs=2, random_state=0, n_jobs=1, **given)
        clf.fit(X, y, **arguments)
        prob = clf.predict_proba(X)
        assert np.isfinite(prob).all(), solver
        np.testing.assert_allclose(prob.sum(axis=1), 1.0, atol=1e-4)  # float32 log-probabilities
        for search in ("exact", "beam"):
            _, log_prob = clf.predict_topk(X, k=2, search=search)
            assert np.isfinite(log_prob).all(), (solver, search)
        assert all(np.isfinite(figure) for figure in evaluate(clf, X, y).as_dict().values()), solver
        assert np.array_equal(pickle.loads(pickle.dumps(clf)).predict_proba(X), prob)
    clf.save(tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").predict_proba(X), prob)
    assert np.array_equal(load_model(tmp_path / "model").predict(X), clf.predict(X))


@pytest.mark.parametrize(
    "method", ["predict_proba", "predict_log_proba", "decision_function", "predict", "predict_topk"]
)
def test_row_beyond_the_weights_rejects(method: str) -> None:
    X, y = make_rows()
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=None, noise="uniform"), n_epochs=2, random_state=0).fit(
        X, y
    )
    with pytest.raises(ValueError, match=r"The scores of X\[7\] overflow float32; scale the row down"):
        getattr(clf, method)(outlier(X, 3e38))


def test_evaluation_of_two_classes_with_default_ks() -> None:
    X, y = make_rows()
    report = evaluate(ExtremeClassifier(n_epochs=2, random_state=0).fit(X, y % 2), X, y % 2)
    assert report.accuracy[3] == report.accuracy[5] == 1.0
