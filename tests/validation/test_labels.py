"""Labels, one per row: classes, ids, and the message for everything that is no label."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from extremax.validation.labels import LabelIndex, check_classes, encode_labels


def sentence(text: str) -> str:
    return re.escape(text)


@pytest.mark.parametrize(
    ("y", "classes", "dtype"),
    [
        (np.array([7, -3, 7, 1_000_000_007]), [-3, 7, 1_000_000_007], np.int64),
        (np.array([2, 0, 2], dtype=np.uint8), [0, 2], np.uint8),
        (np.array([1.0, -1.0, 1.0], dtype=np.float32), [-1.0, 1.0], np.float32),
        ([0.5, 1.5, 0.5, 0.5], [0.5, 1.5], np.float64),
        (np.array([True, False]), [False, True], np.bool_),
        (np.array(["pear", "fig", "pear"]), ["fig", "pear"], "<U4"),
        (np.array([b"pear", b"fig"]), [b"fig", b"pear"], "|S4"),
        (
            np.array(["2021-03-01", "2020-01-01"], dtype="M8[D]"),
            np.array(["2020-01-01", "2021-03-01"], dtype="M8[D]"),
            "M8[D]",
        ),
        ([3, 1, 3], [1, 3], np.int64),
        ([True, False, True], [False, True], np.bool_),
        (("b", "a"), ["a", "b"], "<U1"),
        (range(3), [0, 1, 2], np.int64),
        (pd.Series([3, 1, 3], index=[9, 8, 7]), [1, 3], np.int64),
        (pd.Categorical(["b", "a", "b"]), ["a", "b"], object),
        (np.array(["b", "a"], dtype=object), ["a", "b"], object),
        ([(2, "x"), (1, "y"), (2, "x")], [(1, "y"), (2, "x")], object),
        (["b", 1, (2, 3), "b"], ["b", 1, (2, 3)], object),
        ([2**70, 1], [1, 2**70], object),
        ([frozenset({1})], [frozenset({1})], object),
        (["a\0", "a"], ["a", "a\0"], object),
    ],
)
def test_encode_labels_gives_classes_and_ids(y: Any, classes: Any, dtype: Any) -> None:
    got, ids = encode_labels(y)
    assert got.dtype == dtype
    assert got.ndim == 1
    assert list(got) == list(classes)
    assert ids.dtype == np.int32
    assert [got[i] for i in ids] == list(y)
    np.testing.assert_array_equal(LabelIndex(got).lookup(y), ids)
    assert list(check_classes(list(y))) == list(classes)


SCALARS = st.one_of(
    st.integers(), st.text(max_size=4), st.booleans(), st.binary(max_size=3), st.integers(-5, 5)
)
LABELS = st.one_of(SCALARS, st.tuples(SCALARS, SCALARS))


@given(st.lists(LABELS, min_size=1, max_size=30))
def test_encode_labels_of_mixed_types_identity(y: list[Any]) -> None:
    classes, ids = encode_labels(y)
    assert [classes[i] for i in ids] == y
    assert Counter(classes.tolist()).most_common(1)[0][1] == 1
    np.testing.assert_array_equal(LabelIndex(classes).lookup(y), ids)


def test_one_long_string_does_not_widen_every_label() -> None:
    y = [str(i) for i in range(1_000)] + ["x" * 1_000_000]
    classes, _ = encode_labels(y)
    assert classes.dtype == object
    assert classes[-1] == y[-1]


def test_column_of_labels_warns_and_passes() -> None:
    for y in (np.array([[1], [2], [1]]), [[1], [2], [1]], pd.DataFrame({"y": [1, 2, 1]})):
        with pytest.warns(
            DataConversionWarning, match="A column-vector y was passed when a 1d array was expected"
        ):
            classes, ids = encode_labels(y)
        assert classes.dtype == np.int64
        assert ids.tolist() == [0, 1, 0]


MANY = " does not have one label per row. Reduce them with extremax.data.first_label(y)."


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([[1]] * 17 + [[1, 2, 3]] + [[4, 5]], "y[17]" + MANY),
        ([1, 2, {3, 4}], "y[2]" + MANY),
        ([[1], []], "y[1]" + MANY),
        (pd.Series([[1], [2, 3]]), "y[1]" + MANY),
        (np.array([[3, 4], [5, 6]]), "y" + MANY),
        (np.eye(3), "y" + MANY),
        (sparse.csr_matrix([[0, 1, 0], [1, 0, 1]]), "y" + MANY),
        (np.zeros((2, 3, 4)), "y has shape (2, 3, 4)"),
        (np.array(3), "y has shape ()"),
        (None, "ExtremeClassifier requires y to be passed, but the target y is None."),
        ("labels", "y should be a 1d array of labels, one per row; got 'labels'."),
        (7, "y should be a 1d array of labels"),
        ([], "y is empty"),
        (
            np.array([1.0, np.nan]),
            "y[1] is nan: a missing or infinite value is not a label. Drop such rows first.",
        ),
        (np.array([np.inf, 1.0]), "y[0] is inf: a missing"),
        (["a", None], "y[1] is None: a missing"),
        (["a", float("nan")], "y[1] is nan: a missing"),
        (pd.Series([1, None], dtype="Int64"), ": a missing or infinite value"),
        ([1, pd.NA], "y[1] is <NA>: a missing"),
        (np.array(["2020-01-01", "NaT"], dtype="M8[D]"), "y[1] is NaT: a missing"),
        (np.array([1j, 2]), "Complex data not supported: y has dtype complex128"),
        (
            np.linspace(0, 1, 50),
            "Unknown label type: continuous. y has 50 distinct fractional numbers in 50 rows",
        ),
        ([0.1, 0.2, 0.3], "Unknown label type: continuous"),
    ],
)
def test_malformed_labels_rejects(y: Any, text: str) -> None:
    with pytest.raises(ValueError, match=sentence(text)):
        encode_labels(y)


def test_unhashable_label_rejects() -> None:
    with pytest.raises(
        TypeError, match=sentence("y[1] is of type dict, which is not hashable, so it cannot be a label.")
    ):
        encode_labels(["a", {"b": 1}])


def test_label_count_rejects() -> None:
    with pytest.raises(ValueError, match=sentence("y has 3 labels, but there are 4 rows of features.")):
        encode_labels([1, 2, 3], n_samples=4)
    with pytest.raises(ValueError, match=sentence("y has 1 labels, but there are 4 rows of features.")):
        LabelIndex(np.array([1, 2])).lookup([1], n_samples=4)


@pytest.mark.parametrize(
    ("y", "classes", "text"),
    [
        (
            np.array([1, 5, 4]),
            np.array([1, 5, 9]),
            "y[2] is 4, which is not one of the 3 known classes. Declare every class",
        ),
        ([1, 2], np.array([1]), "y[1] is 2, which"),
        (np.array(["a", "zebra"]), np.array(["a", "b"]), "y[1] is 'zebra', which"),
        (["a", 3], np.array(["a", "b"]), "y[1] is 3, which"),
        (np.array([1, 2]), np.array(["1", "2"]), "y[0] is 1, which"),
        (["1"], np.array([1, 2]), "y[0] is '1', which"),
        (np.array([1.5]), np.array([1, 2]), "y[0] is 1.5, which"),
    ],
)
def test_unseen_label_rejects_and_says_what_to_do(y: Any, classes: Any, text: str) -> None:
    with pytest.raises(ValueError, match=sentence(text)):
        LabelIndex(classes).lookup(y)


def test_unseen_label_becomes_minus_one_when_allowed() -> None:
    ids = LabelIndex(np.array(["a", "b"])).lookup(["a", "zebra"], allow_unseen=True)
    assert ids.tolist() == [0, -1]
    with pytest.raises(ValueError, match=r"known classes\. Drop such rows\.$"):
        LabelIndex(np.array(["a"])).lookup(["zebra"], hint="Drop such rows.")


@pytest.mark.parametrize("kind", [np.int32, np.float64, np.uint64, object])
def test_lookup_between_number_types_is_exact(kind: type) -> None:
    classes = np.array([0, 3, 2**40, 2**60 + 1, 2**60 + 3])
    y = np.array([3, 0], dtype=kind)
    assert LabelIndex(classes).lookup(y).tolist() == [1, 0]
    near = np.array([2**60 + 2, 2**60 + 3], dtype=np.uint64)  # one float64 apart from its neighbours
    assert LabelIndex(classes).lookup(near, allow_unseen=True).tolist() == [-1, 4]


@pytest.mark.parametrize("kind", ["int", "str"])
def test_many_labels_are_encoded_and_found(kind: str) -> None:
    rng = np.random.default_rng(0)
    y: np.ndarray[Any, Any] = rng.integers(0, 200_000, size=200_000) * 7
    if kind == "str":
        y = np.char.add("label_", y.astype("<U8"))
    classes, ids = encode_labels(y)
    index = LabelIndex(classes)
    np.testing.assert_array_equal(index.lookup(y), ids)
