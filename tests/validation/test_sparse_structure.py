"""Sparse matrices whose index arrays lie: one sentence, and no kernel sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, evaluate
from extremax.data import load_dataset
from extremax.solvers import NegativeSampling
from extremax.validation.features import check_features
from extremax.validation.targets import encode_targets

pytestmark = [pytest.mark.error]


def matrix(kind: str = "csr") -> Any:
    rng = np.random.default_rng(0)
    return sparse.random(12, 6, density=0.5, format=kind, random_state=rng, dtype=np.float32)


def break_matrix(made: Any, fault: str) -> Any:
    """Return the matrix with one fault that scipy does not notice."""
    if fault == "outside":
        made.indices[3] = 10**9
    elif fault == "negative":
        made.indices[3] = -7
    elif fault == "falling":
        made.indptr[2], made.indptr[3] = made.indptr[3], made.indptr[2]
    elif fault == "beyond":
        made.indptr[4] = 2**30
    elif fault == "short":
        made.indptr = made.indptr[:-1]
    else:
        made.data = made.data[:-2]
    return made


FAULTS = ("outside", "negative", "falling", "beyond", "short", "lengths")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_features_and_indicators_that_lead_outside_reject(kind: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"X is a damaged {kind} matrix"):
        check_features(break_matrix(matrix(kind), fault))
    made = matrix(kind)
    made.data[:] = 1
    with pytest.raises(ValueError, match=f"y is a damaged {kind} matrix"):
        encode_targets(break_matrix(made, fault))


def test_every_method_rejects_before_a_kernel_runs(tmp_path: Path) -> None:
    X, y = matrix(), np.arange(12) % 3
    clf = ExtremeClassifier(NegativeSampling(noise="uniform"), n_epochs=1, n_jobs=1, random_state=0).fit(X, y)
    bad = break_matrix(matrix(), "outside")
    for call in (
        lambda: clf.predict(bad),
        lambda: clf.predict_topk(bad, 2),
        lambda: clf.predict_proba(bad),
        lambda: clf.partial_fit(bad, y),
        lambda: clf.score(bad, y),
        lambda: evaluate(clf, bad, y),
        lambda: ExtremeClassifier().fit(bad, y),
        lambda: ExtremeClassifier().fit((bad, np.ones((12, 2))), y),
    ):
        with pytest.raises(ValueError, match="must be < 6"):
            call()
    labels = sparse.csr_matrix(np.eye(3, dtype=np.int8)[y])
    labels.indices[0] = 77
    with pytest.raises(ValueError, match=r"y is a damaged csr matrix \(.* must be < 3\)\. Build"):
        ExtremeClassifier().fit(X, labels)


def test_indices_of_an_archive_that_lead_outside_reject(tmp_path: Path) -> None:
    for kind in ("csr", "csc"):
        made = break_matrix(matrix(kind), "outside")
        parts = {"data": made.data, "indices": made.indices, "indptr": made.indptr}
        np.savez(tmp_path / "X.npz", format=kind.encode(), shape=made.shape, **parts)
        with pytest.raises(ValueError, match="must be <"):
            load_dataset(tmp_path / "X.npz")


@pytest.mark.parametrize("kind", ["coo", "bsr", "lil"])
def test_other_formats_that_lead_outside_reject(kind: str) -> None:
    made = matrix().asformat(kind)
    if kind == "coo":
        made.col = np.where(np.arange(made.nnz) == 2, 99, made.col).astype(np.int32)
    elif kind == "bsr":
        made.indices[1] = 99
    else:
        made.rows[0] = [99, *made.rows[0][1:]]
    with pytest.raises(ValueError, match=f"X is a damaged {kind} matrix"):
        check_features(made)


@pytest.mark.invariance
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "lil", "dia", "dok"])
def test_sound_matrices_pass_unchanged(kind: str) -> None:
    made = matrix()
    checked = check_features(made.asformat(kind))
    np.testing.assert_array_equal(checked.toarray(), made.toarray())


def test_a_stale_flag_of_scipy_does_not_change_the_input() -> None:
    made = sparse.csr_array((np.ones(2, np.float32), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    made.has_canonical_format = True  # it is not: the columns are not sorted
    checked = check_features(made)
    assert checked.indices.tolist() == [0, 1]
    assert made.indices.tolist() == [1, 0]


@pytest.mark.parametrize("kind", ["csr", "bsr"])
def test_pointers_that_end_at_or_below_zero_reject(kind: str) -> None:
    for last in (0, -3):
        made = matrix().asformat(kind)
        made.indptr[-1] = last
        with pytest.raises(ValueError, match="indptr must not fall"):
            check_features(made)
