"""Every check at the door, and the sentence each one says."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from extremax.validation import (
    BOOLEAN,
    CALLABLE,
    Choice,
    Instance,
    Interval,
    LabelIndex,
    NotEnoughMemoryError,
    available_memory,
    check_classes,
    check_features,
    check_memory,
    check_parameters,
    check_random_state,
    check_sample_weight,
    describe_memory,
    encode_labels,
    format_bytes,
    lookup_labels,
)

GRID = np.arange(12, dtype=np.float32).reshape(4, 3)


def sentence(text: str) -> str:
    return re.escape(text)


# -- features
# ------------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("container", ["matrix", "array"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
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


# -- labels
# --------------------------------------------------------------------------------------------------------------------


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
    np.testing.assert_array_equal(lookup_labels(y, got), ids)
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
    np.testing.assert_array_equal(lookup_labels(y, classes), ids)


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


MANY = " where one per row is needed. Reduce them with extremax.data.first_label(y)."


@pytest.mark.parametrize(
    ("y", "text"),
    [
        ([[1]] * 17 + [[1, 2, 3]] + [[4, 5]], "y[17] has 3 labels" + MANY),
        ([1, 2, {3, 4}], "y[2] has 2 labels" + MANY),
        ([[1], []], "y[1] has 0 labels" + MANY),
        (pd.Series([[1], [2, 3]]), "y[1] has 2 labels" + MANY),
        (np.array([[3, 4], [5, 6]]), "y[0] has 2 labels" + MANY),
        (np.array([[0, 1, 0], [1, 1, 0]]), "y[1] has 2 labels" + MANY),
        (np.eye(3), "y[0] has 1 label in an indicator matrix" + MANY),
        (sparse.csr_matrix([[0, 1, 0], [1, 0, 1]]), "y[1] has 2 labels" + MANY),
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
        (pd.Series([1, None], dtype="Int64"), "y[1] is nan: a missing"),
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
        lookup_labels([1], np.array([1, 2]), n_samples=4)


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
        lookup_labels(y, classes)


def test_unseen_label_becomes_minus_one_when_allowed() -> None:
    ids = lookup_labels(["a", "zebra"], np.array(["a", "b"]), allow_unseen=True)
    assert ids.tolist() == [0, -1]
    with pytest.raises(ValueError, match=r"known classes\. Drop such rows\.$"):
        lookup_labels(["zebra"], np.array(["a"]), way_out="Drop such rows.")


@pytest.mark.parametrize("kind", [np.int32, np.float64, np.uint64, object])
def test_lookup_between_number_types_is_exact(kind: type) -> None:
    classes = np.array([0, 3, 2**40, 2**60 + 1, 2**60 + 3])
    y = np.array([3, 0], dtype=kind)
    assert lookup_labels(y, classes).tolist() == [1, 0]
    near = np.array([2**60 + 2, 2**60 + 3], dtype=np.uint64)  # one float64 apart from its neighbours
    assert lookup_labels(near, classes, allow_unseen=True).tolist() == [-1, 4]


@pytest.mark.parametrize("kind", ["int", "str"])
def test_a_million_labels_are_encoded_and_found_in_seconds(kind: str) -> None:
    rng = np.random.default_rng(0)
    y: np.ndarray[Any, Any] = rng.integers(0, 10**6, size=10**6) * 7
    if kind == "str":
        y = np.char.add("label_", y.astype("<U8"))
    start = time.perf_counter()
    classes, ids = encode_labels(y)
    index = LabelIndex(classes)
    np.testing.assert_array_equal(index.lookup(y), ids)
    # About 0.3 s for integers and 3 s for strings on an idle core; a quadratic search would take hours.
    assert time.perf_counter() - start < 30


# -- sample weights and seeds
# --------------------------------------------------------------------------------------------------


def test_sample_weight_kinds() -> None:
    assert check_sample_weight(None, 3) is None
    for given_weight in ([1, 0, 2], np.array([1.0, 0.0, 2.0]), pd.Series([1, 0, 2], index=[5, 6, 7])):
        weight = check_sample_weight(given_weight, 3)
        assert weight is not None
        assert weight.dtype == np.float32
        assert weight.tolist() == [1.0, 0.0, 2.0]
    np.testing.assert_array_equal(check_sample_weight(2, 3), [2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        ([1, 2], "sample_weight has shape (2,), but there are 3 rows: it needs shape (3,)."),
        (np.ones((3, 2)), "sample_weight has shape (3, 2)"),
        ([1, -2, 1], "sample_weight[1] is -2.0; a weight is a finite number >= 0."),
        ([1, 1, np.nan], "sample_weight[2] is nan"),
        ([np.inf, 1, 1], "sample_weight[0] is inf"),
        ([1e300, 1, 1], "sample_weight[0] is 1e+300"),
        ([0, 0, 0], "sample_weight is zero for every row: at least one weight must be above zero."),
        (["a", "b", "c"], "sample_weight holds something that is not a number"),
    ],
)
def test_sample_weight_rejects(weight: Any, text: str) -> None:
    with pytest.raises(ValueError, match=sentence(text)):
        check_sample_weight(weight, 3)


def test_random_state_kinds() -> None:
    assert check_random_state(7) == 7
    assert check_random_state(np.int32(7)) == 7
    assert check_random_state(2**64 - 1) == 2**64 - 1
    assert check_random_state(None) != check_random_state(None)
    for make in (np.random.RandomState, np.random.default_rng):
        first, same, other = make(1), make(1), make(2)
        seeds = [check_random_state(first), check_random_state(first)]
        assert seeds == [check_random_state(same), check_random_state(same)]
        assert seeds[0] != seeds[1]  # a generator moves on
        assert seeds[0] != check_random_state(other)
        assert type(seeds[0]) is int


def test_random_state_uses_all_64_bits() -> None:
    seeds = [
        check_random_state(state) for state in [None] * 20 + [np.random.RandomState(i) for i in range(20)]
    ]
    assert sum(seed >= 2**63 for seed in seeds) > 5  # 20 are expected; 5 or fewer has probability 1e-6
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("state", "error"), [(-1, ValueError), (2**64, ValueError), ("a", TypeError), (1.0, TypeError)]
)
def test_random_state_rejects(state: Any, error: type[Exception]) -> None:
    with pytest.raises(
        error, match=r"random_state is .*; give None, an integer in \[0, 2\*\*64\), a numpy Generator"
    ):
        check_random_state(state)


# -- parameters
# ----------------------------------------------------------------------------------------------------------------

TABLE = {
    "n_negatives": [Interval(int, 1)],
    "rate": [Interval(float, 0, closed="neither")],
    "fraction": [Interval(float, 0, 1, closed="left"), None],
    "noise": [
        Choice(("uniform", "frequency", "adversarial")),
        Instance("a Noise", methods=("sample", "log_prob")),
    ],
    "warm_start": [BOOLEAN],
    "callback": [CALLABLE, None],
}


@pytest.mark.parametrize(
    "params",
    [
        {"n_negatives": 1},
        {"n_negatives": np.int64(10**18)},
        {"n_negatives": 10**400},
        {"rate": 1},
        {"rate": np.float32(0.1)},
        {"fraction": 0.0},
        {"fraction": None},
        {"noise": "uniform"},
        {"noise": type("Noise", (), {"sample": lambda self: 0, "log_prob": lambda self: 0})()},
        {"warm_start": np.True_},
        {"callback": print},
        {"callback": None},
    ],
    ids=lambda params: f"{next(iter(params))}-{type(next(iter(params.values()))).__name__}",
)
def test_parameters_pass(params: dict[str, object]) -> None:
    check_parameters("Model", params, TABLE)


@pytest.mark.parametrize(
    ("params", "error", "text"),
    [
        (
            {"n_negatives": 0},
            ValueError,
            "The 'n_negatives' parameter of Model must be an integer >= 1. Got 0 instead.",
        ),
        ({"n_negatives": 2.0}, TypeError, "must be an integer >= 1. Got 2.0 instead."),
        ({"n_negatives": True}, TypeError, "Got True instead."),
        ({"n_negatives": None}, TypeError, "Got None instead."),
        ({"rate": 0}, ValueError, "must be a number > 0. Got 0 instead."),
        ({"rate": float("nan")}, ValueError, "must be a number > 0. Got nan instead."),
        ({"rate": float("inf")}, ValueError, "must be a number > 0. Got inf instead."),
        ({"fraction": 1.0}, ValueError, "must be a number >= 0 and < 1 or None. Got 1.0 instead."),
        ({"fraction": "x"}, TypeError, "must be a number >= 0 and < 1 or None. Got 'x' instead."),
        (
            {"noise": "adverserial"},
            ValueError,
            "'frequency', 'adversarial' or a Noise. Got 'adverserial' instead. Did you mean 'adversarial'?",
        ),
        ({"noise": 3}, TypeError, "or a Noise. Got 3 instead."),
        ({"warm_start": 1}, TypeError, "must be a bool. Got 1 instead."),
        ({"callback": "x" * 100}, TypeError, f"must be a callable or None. Got '{'x' * 56}... instead."),
    ],
)
def test_parameters_rejects(params: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=sentence(text)):
        check_parameters("Model", {"callback": None, **params}, TABLE)


def test_parameter_without_a_constraint_rejects() -> None:
    with pytest.raises(KeyError):
        check_parameters("Model", {"unknown": 1}, TABLE)


# -- memory
# --------------------------------------------------------------------------------------------------------------------

GIB = 1024**3


def machine(folder: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"proc": folder / "proc", "cgroups": folder / "cgroup"}


MEMINFO = {"proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"}


def test_available_memory_without_limits(tmp_path: Path) -> None:
    assert available_memory(**machine(tmp_path, MEMINFO)) == 10 * GIB


def test_available_memory_cgroup_two(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/task\n",
        "cgroup/pod/memory.max": str(4 * GIB),
        "cgroup/pod/memory.current": str(3 * GIB),
        "cgroup/pod/memory.stat": f"anon 5\ninactive_file {GIB}\n",  # cache that the kernel gives back
        "cgroup/pod/task/memory.max": "max\n",
        "cgroup/pod/task/memory.current": "5\n",
    }
    assert available_memory(**machine(tmp_path, MEMINFO | files)) == 2 * GIB


def test_available_memory_cgroup_one(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n0::/\n",
        "cgroup/memory/job/memory.limit_in_bytes": str(6 * GIB),
        "cgroup/memory/job/memory.usage_in_bytes": str(7 * GIB),
        "cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "cgroup/memory/memory.usage_in_bytes": "0",
    }
    assert available_memory(**machine(tmp_path, MEMINFO | files)) == 0


def test_available_memory_of_this_machine_is_plausible() -> None:
    assert 0 < available_memory() < 2**50


def test_format_bytes() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 3 * GIB: "3.0 GiB", 2.5 * 1024**5: "2560.0 TiB"}
    assert {n: format_bytes(n) for n in sizes} == sizes


def test_check_memory_rejects_with_numbers_and_ways_out() -> None:
    need = {"biases": GIB // 2, "weights": 6 * GIB}
    check_memory(need, available=sum(need.values()), ways_out=["fewer features"])
    text = (
        "ExtremeClassifier.fit needs 6.5 GiB (weights 6.0 GiB, biases 512.0 MiB), but 4.0 GiB are available. "
        "Ways out: row-wise Adagrad; fewer features."
    )
    with pytest.raises(NotEnoughMemoryError, match=sentence(text)) as caught:
        check_memory(need, available=4 * GIB, ways_out=["row-wise Adagrad", "fewer features"])
    assert isinstance(caught.value, MemoryError)
    assert describe_memory(need) in str(caught.value)
