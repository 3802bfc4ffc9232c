"""Features: what is accepted, how it comes back, and the message for everything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from coverings import pairwise
from extremax.validation.features import check_features

GRID = np.arange(12, dtype=np.float32).reshape(4, 3)


def sentence(text: str) -> str:
    return re.escape(text)


def test_float32_array_is_returned_itself() -> None:
    assert check_features(GRID) is GRID
    read_only = GRID.copy()
    read_only.flags.writeable = False
    assert check_features(read_only) is read_only


@pytest.mark.parametrize(
    "X",
    [
        GRID.tolist(),
        GRID.astype(np.float64),
        GRID.astype(np.int64),
        GRID.astype(np.uint8),
        GRID.astype(np.float16),
        GRID.astype(object),
        np.asfortranarray(GRID),
        np.repeat(GRID, 2, axis=1)[:, ::2],
        GRID.astype(">f4"),
        pd.DataFrame(GRID),
        pd.DataFrame(GRID, columns=["a", "b", "c"]).astype({"a": "Int64"}),
        np.ma.masked_array(GRID, mask=False),
    ],
    ids=lambda X: f"{type(X).__name__}-{getattr(X, 'dtype', '')}",
)
def test_dense_kinds_give_the_same_array(X: Any) -> None:
    out = check_features(X)
    assert type(out) is np.ndarray
    assert out.dtype == np.float32
    assert out.dtype.isnative
    assert out.flags.c_contiguous
    np.testing.assert_array_equal(out, GRID)


def test_object_with_array_protocol_is_accepted() -> None:
    class Holder:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return GRID.astype(np.float64)

    np.testing.assert_array_equal(check_features(Holder()), GRID)


def test_memmap_stays_a_memmap_and_is_checked_in_blocks(tmp_path: Path) -> None:
    shape = (9_000, 700)  # several blocks
    X = np.memmap(tmp_path / "X", dtype=np.float32, mode="w+", shape=shape)
    assert check_features(X) is X
    X[8_765, 432] = np.inf
    X[8_999, 0] = np.nan
    with pytest.raises(ValueError, match=r"X\[8765, 432\] is inf"):
        check_features(X)


@pairwise(
    kind=["csr", "csc", "coo", "lil", "dok", "bsr", "dia"],
    container=["matrix", "array"],
    dtype=[np.float32, np.float64, np.int64, bool],
)
def test_sparse_kinds_give_sorted_float32_csr(kind: str, container: str, dtype: type) -> None:
    dense = (GRID * (GRID % 2)).astype(dtype)
    X = getattr(sparse, f"{kind}_{container}")(dense)
    out = check_features(X)
    assert isinstance(out, sparse.csr_array)
    assert out.dtype == np.float32
    assert out.indices.dtype == out.indptr.dtype == np.int32
    assert out.has_sorted_indices
    np.testing.assert_array_equal(out.toarray(), dense.astype(np.float32))


def test_sparse_with_disorder_and_duplicates_is_tidied_without_touching_the_input() -> None:
    data, indices = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32), np.array([2, 0, 0, 1])
    X = sparse.csr_matrix((data, indices, np.array([0, 3, 4])), shape=(2, 3))
    before = (X.data.copy(), X.indices.copy())
    out = check_features(X)
    np.testing.assert_array_equal(out.indices, [0, 2, 1])
    np.testing.assert_array_equal(out.data, [5.0, 1.0, 4.0])
    np.testing.assert_array_equal(X.data, before[0])
    np.testing.assert_array_equal(X.indices, before[1])


def test_sparse_in_final_form_is_not_copied() -> None:
    X = sparse.csr_array(GRID)
    out = check_features(X)
    assert np.shares_memory(out.data, X.data)
    assert np.shares_memory(out.indices, X.indices)


def test_sparse_long_indices_become_short_ones() -> None:
    X = sparse.csr_array(GRID)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    out = check_features(X)
    assert out.indices.dtype == out.indptr.dtype == np.int32
    np.testing.assert_array_equal(out.toarray(), GRID)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_first_bad_value_rejects_with_its_place(value: float) -> None:
    X = np.zeros((5, 4))
    X[2, 3] = X[4, 0] = value
    for given_X in (X, X.astype(np.float32), pd.DataFrame(X), X.astype(object)):
        with pytest.raises(
            ValueError, match=rf"X\[2, 3\] is (NaN|{value} \(infinity\)); ExtremeClassifier needs finite"
        ):
            check_features(given_X)
    with pytest.raises(ValueError, match=r"rows\[2, 3\] is"):
        check_features(sparse.csc_matrix(X), name="rows")


def test_float32_overflow_rejects_with_the_value() -> None:
    X = np.zeros((3, 2))
    X[1, 1] = 1e300
    for given_X in (X, sparse.csr_matrix(X)):
        with pytest.raises(
            ValueError, match=sentence("X[1, 1] is 1e+300, which becomes infinity in float32; scale")
        ):
            check_features(given_X)


@pytest.mark.parametrize(
    ("X", "error", "text"),
    [
        (
            np.zeros(3),
            ValueError,
            "Expected 2D array, got 1D array instead: X has shape (3,). Reshape your data with",
        ),
        (3.0, ValueError, "Expected 2D array, got 0D array"),
        (None, ValueError, "Expected 2D array, got 0D array"),
        (
            np.zeros((2, 3, 4)),
            ValueError,
            "X has shape (2, 3, 4); ExtremeClassifier needs one row per sample, a 2D array.",
        ),
        (
            np.zeros((0, 3)),
            ValueError,
            "0 sample(s) (shape=(0, 3)) while a minimum of 1 is required by ExtremeClassifier",
        ),
        (np.zeros((12, 0)), ValueError, "0 feature(s) (shape=(12, 0)) while a minimum of 1 is required"),
        (sparse.csr_matrix((0, 3)), ValueError, "0 sample(s) (shape=(0, 3))"),
        (np.zeros((2, 2)) + 1j, ValueError, "Complex data not supported: X has dtype complex128."),
        (sparse.csr_matrix(np.eye(2) * 1j), ValueError, "Complex data not supported"),
        (
            [["a", "b"]],
            ValueError,
            "X has dtype <U1; ExtremeClassifier needs numbers. Turn text and dates into",
        ),
        (
            ["a b", "c"],
            ValueError,
            "X is a sequence of texts; ExtremeClassifier needs numbers. For texts use TextC",
        ),
        (np.array(["a", "b"], dtype=object), ValueError, "X is a sequence of texts"),
        (np.array([[b"a"]]), ValueError, "X has dtype |S1"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), ValueError, "X has dtype datetime64[D]"),
        (
            np.array([["a", 1]], dtype=object),
            ValueError,
            "X holds something that is not a number (could not convert string",
        ),
        (
            np.array([[{}, 1]], dtype=object),
            TypeError,
            "float() argument must be a string or a real number, not 'dict'",
        ),
        ([[1, 2], [3]], ValueError, "X is not a table: its rows have different lengths"),
    ],
)
def test_malformed_features_rejects(X: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=sentence(text)):
        check_features(X)


def test_masked_value_rejects() -> None:
    with pytest.raises(ValueError, match=r"X\[0, 1\] is NaN"):
        check_features(np.ma.masked_array(GRID, mask=GRID == 1))


def test_wrong_width_rejects() -> None:
    text = "X has 3 features, but ExtremeClassifier is expecting 2 features as input."
    for X in (GRID, sparse.csr_matrix(GRID)):
        with pytest.raises(ValueError, match=sentence(text)):
            check_features(X, n_features=2)
    assert check_features(GRID, n_features=3) is GRID


def test_empty_features_pass_when_allowed() -> None:
    assert check_features(np.zeros((0, 3)), allow_empty=True).shape == (0, 3)
    assert check_features(sparse.csr_matrix((0, 3)), allow_empty=True).shape == (0, 3)
