"""Labels of rows, one or several each: every form gives the same pairs, every message names the place."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from extremax.examples import Examples
from extremax.validation.labels import LabelIndex, encode_labels
from extremax.validation.targets import encode_targets, lookup_targets

LISTS = [[2, 0], [1], [], [0, 2, 3]]
INDICATOR = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
ROWS, IDS = [0, 0, 1, 3, 3, 3], [0, 2, 1, 0, 2, 3]


def check(targets: Examples, rows: Any = ROWS, ids: Any = IDS, n_rows: int = 4) -> None:
    assert targets.y.dtype == np.int32
    assert targets.X.shape == (n_rows, 0)
    assert targets.weight is None
    assert targets.row_index is not None
    assert targets.row_index.dtype == np.int64
    assert (targets.row_index.tolist(), targets.y.tolist(), targets.n_rows) == (rows, ids, n_rows)


def unsorted_matrix() -> sparse.csr_matrix:
    """Return the same in any order, with a pair stored twice and a stored zero."""
    matrix = sparse.csr_matrix((4, 4), dtype=np.float32)
    matrix.data = np.array([1, 1, 1, 1, 1, 1, 0, 1], np.float32)
    matrix.indices = np.array([2, 0, 2, 1, 3, 0, 1, 2], np.int32)
    matrix.indptr = np.array([0, 3, 4, 4, 8], np.int32)
    return matrix


@pytest.mark.parametrize(
    "y",
    [
        LISTS,
        [[2, 0, 2], [1], [], [3, 2, 0, 0]],
        [{0, 2}, 1, set(), np.array([3, 0, 2])],
        np.array([[2, 0], [1], [], [0, 2, 3]], dtype=object),
        pd.Series(LISTS),
        tuple(LISTS),
        INDICATOR,
        INDICATOR.astype(bool),
        INDICATOR.astype(np.float32),
        pd.DataFrame(INDICATOR),
        sparse.csr_matrix(INDICATOR),
        sparse.csc_array(INDICATOR),
        sparse.coo_matrix(INDICATOR, dtype=bool),
        unsorted_matrix(),
    ],
)
def test_forms_of_labels_same_everywhere(y: Any) -> None:
    classes, targets = encode_targets(y, n_samples=4)
    assert classes.tolist() == [0, 1, 2, 3]
    check(targets)
    check(lookup_targets(y, LabelIndex(classes), n_samples=4))
    assert targets.n_unlabelled == 1
    assert targets.labels_per_row.tolist() == [2, 1, 0, 3]
    assert targets.rows.tolist() == ROWS


LABELS = st.one_of(st.integers(-3, 3), st.text(max_size=2), st.tuples(st.integers(0, 2)))


@given(st.lists(st.lists(LABELS, max_size=4), min_size=1, max_size=12).filter(any))
def test_lists_of_mixed_labels_identity(y: list[list[Any]]) -> None:
    classes, targets = encode_targets(y)
    found: list[set[Any]] = [set() for _ in y]
    for row, label in zip(targets.rows, targets.y, strict=True):
        found[row].add(classes[label])
    assert found == [set(labels) for labels in y]
    assert len(targets.y) == sum(map(len, found))


def test_one_label_each_identity() -> None:
    labels = ["b", "a", "b"]
    classes, ids = encode_labels(labels)
    for y in (labels, [["b"], ["a"], ["b"]], [["b", "b"], {"a"}, "b"]):
        got, targets = encode_targets(y)
        assert got.tolist() == classes.tolist()
        assert targets.row_index is None
        assert targets.y.tolist() == ids.tolist()
        assert (targets.n_unlabelled, targets.rows.tolist()) == (0, [0, 1, 2])
    assert encode_targets(np.eye(3))[1].row_index is None


def test_tuples_are_labels() -> None:
    classes, targets = encode_targets([(1, 2), (3, 4)])
    assert classes.tolist() == [(1, 2), (3, 4)]
    assert targets.row_index is None


def test_column_is_a_vector_in_disguise() -> None:
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        assert encode_targets(np.array([[5], [6]]))[1].y.tolist() == [0, 1]


def test_names_of_columns() -> None:
    names = ["pear", "fig", "apple", "kiwi"]
    for y, classes in ((INDICATOR, names), (pd.DataFrame(INDICATOR, columns=names), None)):
        got, targets = encode_targets(y, classes=classes)
        assert got.tolist() == names  # the order of the columns, not that of the alphabet
        check(targets)
    backwards = pd.DataFrame(INDICATOR[:, ::-1], columns=names[::-1])
    check(lookup_targets(backwards, LabelIndex(got)))
    check(lookup_targets([["apple", "pear"], ["fig"], [], ["pear", "apple", "kiwi"]], LabelIndex(got)))


def test_declared_classes() -> None:
    classes, targets = encode_targets([[3], [1, 3]], classes=[5, 3, 1])
    assert classes.tolist() == [1, 3, 5]
    assert targets.y.tolist() == [1, 0, 1]


def test_unseen_labels_become_minus_one_when_allowed() -> None:
    index = LabelIndex(np.array(["a", "b"]))
    targets = lookup_targets([["z", "b", "y"], ["a"]], index, allow_unseen=True)
    check(targets, [0, 0, 0, 1], [-1, -1, 1, 0], 2)  # two unknown labels stay two
    frame = pd.DataFrame([[1, 1], [0, 1]], columns=["z", "a"])
    check(lookup_targets(frame, index, allow_unseen=True), [0, 0, 1], [-1, 0, 0], 2)


@pytest.mark.parametrize(
    ("y", "options", "text"),
    [
        ([[1], [2, 3]], {"n_samples": 3}, "y has 2 lists of labels, but there are 3 rows of features."),
        (INDICATOR, {"n_samples": 5}, "y has 4 rows of labels, but there are 5 rows of features."),
        (sparse.csr_array(INDICATOR), {"n_samples": 5}, "y has 4 rows of labels, but there are 5 rows"),
        ([[], []], {}, "y has no label in any of its 2 rows; at least one row needs one."),
        (sparse.csr_array((3, 4)), {}, "y has no label in any of its 3 rows"),
        (
            np.array([[3, 4], [5, 6]]),
            {},
            "y[0, 0] is 3; an indicator matrix holds 1 where a row has the label",
        ),
        (np.array([[0, 1], [0, -1]]), {}, "y[1, 1] is -1; an indicator matrix"),
        (np.array([[0.0, np.nan]]), {}, "y[0, 1] is nan; an indicator matrix"),
        (sparse.csr_array([[0.0, 0.5]]), {}, "y[0, 1] is 0.5; an indicator matrix"),
        (
            np.array([["a", "b"]]),
            {},
            "y has shape (1, 2) and dtype <U1; pass an indicator matrix of 0 and 1, or a list",
        ),
        (
            INDICATOR,
            {"classes": ["a", "b"]},
            "classes has 2 names, but y has 4 columns; give one name per column.",
        ),
        (
            INDICATOR,
            {"classes": list("aabc")},
            "classes names two columns 'a'; each column needs a name of its own.",
        ),
        ([["a"], ["b", None]], {}, "a label of y[1] is None: a missing or infinite value is not a label."),
        ([["a"], ["b", float("nan")]], {}, "a label of y[1] is nan: a missing"),
        (
            [["a"], ["b", "c"]],
            {"classes": ["a", "b"]},
            "a label of y[1] is 'c', which is not one of the 2 known classes. Dec",
        ),
        (np.zeros((2, 3, 4)), {}, "y has shape (2, 3, 4)"),
        (None, {}, "requires y to be passed"),
    ],
)
def test_malformed_labels_rejects(y: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as error:
        encode_targets(y, **options)
    assert "\n" not in str(error.value)


def test_unhashable_label_rejects() -> None:
    for classes in (None, ["a", "b"]):
        with pytest.raises(
            TypeError,
            match=r"a label of y\[1\] is of type dict, which is not hashable, so it cannot be a label",
        ):
            encode_targets([["a"], ["a", {}]], classes=classes)


def test_number_of_columns_rejects() -> None:
    with pytest.raises(
        ValueError,
        match=r"y has 4 columns, but there are 3 classes; pass an indicator matrix with one column",
    ):
        lookup_targets(INDICATOR, LabelIndex(np.arange(3)))
