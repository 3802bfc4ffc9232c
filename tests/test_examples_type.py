"""Examples: pairs of rows and classes, taken, held out, set aside and sampled without losing a label."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from extremax.examples import Examples, split_rows
from planted import indicator, label_lists, pairs_of

pytestmark = pytest.mark.small


def numbered(several, weight=None):
    """Twenty rows that hold their own number; row i has class i, or classes 2i and 2i + 1."""
    X = np.arange(20.0, dtype=np.float32)[:, None]
    rows = np.repeat(np.arange(20), 2) if several else None
    return Examples(X, np.arange(40 if several else 20, dtype=np.int32), rows, weight)


def assert_labels_belong(data, several):
    """Every pair still has the row that it was made with."""
    np.testing.assert_array_equal(data.y // (2 if several else 1), data.X[data.rows, 0].astype(int))


def test_folds_leave_out_each_row_once_and_never_a_whole_class():
    y = np.repeat([0, 1, 2, 3], [1, 2, 7, 10]).astype(np.int32)
    data = Examples(np.arange(20.0, dtype=np.float32)[:, None], y, None, np.arange(20, dtype=np.float32))
    parts = list(data.folds(5, seed=3))
    left_out = np.concatenate([rows.X[:, 0] for _, rows in parts])
    np.testing.assert_array_equal(np.sort(left_out), np.arange(1, 20))  # class 0 has one row
    for rest, rows in parts:
        assert set(rest.y) == {0, 1, 2, 3}
        assert rest.n_pairs + rows.n_pairs == 20
        np.testing.assert_array_equal(rows.y, y[rows.X[:, 0].astype(int)])
        np.testing.assert_array_equal(rows.weight, rows.X[:, 0])
        np.testing.assert_array_equal(np.sort(np.append(rest.rows, rows.X[:, 0])), np.arange(20))


def test_one_label_per_row():
    data = Examples(np.ones((3, 2), np.float32), np.array([1, 0, 1], np.int32))
    assert (data.n_rows, data.n_pairs, data.n_unlabelled) == (3, 3, 0)
    assert data.rows.tolist() == [0, 1, 2]
    assert data.rows_of(np.array([2, 0])).tolist() == [2, 0]
    assert data.label_edges is None
    assert data.pair_weight.tolist() == [1.0, 1.0, 1.0]
    assert data.class_counts(3).tolist() == [1, 2, 0]
    assert data.compact() is data
    per_row = np.arange(6.0).reshape(3, 2)
    assert data.expand(per_row) is per_row


def test_several_labels_per_row():
    X = np.ones((4, 2), np.float32)
    data = Examples(X, np.array([0, 2, 1, 0], np.int32), np.array([0, 0, 1, 3]))
    assert (data.n_rows, data.n_pairs, data.n_unlabelled) == (4, 4, 1)
    assert data.labels_per_row.tolist() == [2, 1, 0, 1]
    assert data.label_edges.tolist() == [0, 2, 3, 3, 4]
    weighted = data.with_row_weight(np.array([1.0, 2.0, 3.0, 0.0], np.float32))
    assert weighted.weight.tolist() == [1.0, 1.0, 2.0, 0.0]
    assert weighted.class_counts(3, weighted=True).tolist() == [1.0, 2.0, 1.0]
    assert weighted.class_counts(3).tolist() == [2, 1, 1]
    assert data.expand(np.arange(4.0)).tolist() == [0.0, 0.0, 1.0, 3.0]
    assert data.rows_of(np.array([3, 0])).tolist() == [3, 0]


def test_rows_of_one_label_each_have_no_edges():
    data = Examples(np.ones((4, 1), np.float32), np.array([0, 1], np.int32), np.array([1, 3]))
    assert data.label_edges is None


def test_features_come_later():
    labels = Examples.labels_only(np.array([0, 1, 1], np.int32), 2, np.array([0, 0, 1]))
    assert labels.X.shape == (2, 0)
    X = np.ones((2, 5), np.float32)
    assert labels.with_features(X).X is X
    assert labels.with_row_weight(None).weight is None


@pytest.mark.parametrize("several", [False, True])
def test_taken_pairs_keep_rows_and_weights(several):
    n = 40 if several else 20
    data = numbered(several, np.arange(n, dtype=np.float32))
    kept = np.arange(n) % 3 == 0
    some = data.take(kept)
    assert some.X is data.X
    assert_labels_belong(some, several)
    np.testing.assert_array_equal(some.weight, np.arange(n)[kept])
    assert data.take(np.ones(n, bool)) is data


def test_usable_pairs_have_a_class_and_a_weight():
    data = Examples(np.eye(4, dtype=np.float32), np.array([0, -1, 1, 0], np.int32))
    assert data.usable().rows.tolist() == [0, 2, 3]
    weighted = data.with_row_weight(np.array([1.0, 1.0, 0.0, 2.0], np.float32))
    assert weighted.usable().rows.tolist() == [0, 3]
    assert weighted.usable().weight.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_compact_examples_have_only_rows_with_a_label(several, store):
    data = numbered(several)
    some = data.take(np.isin(data.rows, [3, 4, 11])).with_features(store(data.X)).compact().dense()
    assert some.X.ravel().tolist() == [3.0, 4.0, 11.0]
    assert (some.row_index is None) == (not several)
    assert_labels_belong(some, several)
    assert some.compact() is some


@pytest.mark.parametrize("several", [False, True])
def test_some_rows_keep_their_labels(several):
    data = numbered(several)
    few = data.sample_rows(5)
    assert few.X.shape == (5, 1)
    assert_labels_belong(few, several)
    assert few.n_pairs == (10 if several else 5)
    assert len(set(np.diff(few.X[:, 0]))) > 1  # not the first ones
    assert data.sample_rows(50).X.shape == data.X.shape


def test_dense_rows_are_not_copied():
    data = numbered(False)
    assert data.dense() is data
    unpacked = data.with_features(sparse.csr_array(data.X)).dense()
    np.testing.assert_array_equal(unpacked.X, data.X)


# -- rows held out for validation


def test_holdout_keeps_rows_whole():
    X, y = label_lists(1200)
    data = pairs_of(X, y, weight=np.ones(sum(map(len, y)), np.float32))
    train, valid = data.holdout(0.2, seed=3)
    assert train.X is X
    assert valid.X is X
    assert valid.weight is None
    assert train.n_pairs + valid.n_pairs == data.n_pairs
    held_out = np.setdiff1d(np.arange(len(y)), train.rows)
    valid = valid.compact()
    assert valid.X.shape[0] == len(held_out) == 240
    np.testing.assert_array_equal(valid.X, X[held_out])
    assert [valid.y[valid.rows == i].tolist() for i in range(5)] == [y[row] for row in held_out[:5]]
    assert train.class_counts(40).min() > 0


def test_holdout_of_single_labels():
    y = np.repeat(np.arange(10), 30).astype(np.int32)
    data = Examples(np.arange(300.0, dtype=np.float32)[:, None], y)
    train, valid = data.holdout(0.1, seed=0)
    assert len(np.intersect1d(train.rows, valid.rows)) == 0
    assert train.n_pairs + valid.n_pairs == 300
    np.testing.assert_array_equal(valid.y, y[valid.rows])
    other = data.holdout(0.1, seed=1)[1]
    assert np.any(other.rows != valid.rows)


def test_split_of_indicator_keeps_every_label():
    y = [[i % 7] for i in range(60)] + [[7, 8], [9, 0], []]
    for seed in range(20):
        train, valid = split_rows(indicator(y, 10), fractions=(0.5,), seed=seed)
        assert {label for i in train for label in y[i]} == set(range(10))
        assert len(np.intersect1d(train, valid)) == 0
        assert 62 in train  # has no label, so nothing to validate on


@pytest.mark.error
@pytest.mark.parametrize("row_index", [None, np.arange(4)])
def test_holdout_of_classes_with_one_row_each_rejects(row_index):
    data = Examples(np.eye(4, dtype=np.float32), np.arange(4, dtype=np.int32), row_index)
    with pytest.raises(ValueError, match=r"validation_fraction is 0\.5, but no row can be kept back"):
        data.holdout(0.5, seed=0)


# -- rows set aside for calibration


@pytest.mark.property
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=3, unique=True), min_size=1, max_size=30),
    st.integers(1, 12),
    st.integers(0, 5),
)
def test_rows_set_aside_leave_every_class_a_row(lists, n_rows, seed):
    labels = [sorted(row) for row in lists]
    if not any(labels):
        return
    X = np.arange(float(len(labels)), dtype=np.float32)[:, None]
    data = pairs_of(X, [np.array(row, np.int32) for row in labels])
    rest, aside = data.set_aside(n_rows, seed)
    assert rest.X is X
    assert set(rest.y) == set(data.y)
    assert aside.n_rows <= n_rows
    kept, taken = set(rest.rows.tolist()), aside.X[:, 0].astype(int).tolist()
    assert not kept & set(taken)
    for place, row in enumerate(taken):  # whole rows, with their own labels
        assert aside.y[aside.rows == place].tolist() == labels[row]
    assert rest.n_pairs + aside.n_pairs == data.n_pairs


def test_as_many_rows_as_wanted_are_set_aside():
    data = Examples(np.ones((100, 1), np.float32), (np.arange(100) % 5).astype(np.int32))
    weighted = data.with_row_weight(np.arange(100, dtype=np.float32))
    rest, aside = weighted.set_aside(30, seed=2)
    assert (rest.n_pairs, aside.n_pairs, aside.n_rows) == (70, 30, 30)
    np.testing.assert_array_equal(rest.weight, rest.rows)
    np.testing.assert_array_equal(aside.weight, np.setdiff1d(np.arange(100), rest.rows))
    again = weighted.set_aside(30, seed=2)[0]
    np.testing.assert_array_equal(again.rows, rest.rows)
    assert np.any(weighted.set_aside(30, seed=3)[0].rows != rest.rows)


@pytest.mark.error
def test_no_rows_to_set_aside_rejects():
    with pytest.raises(ValueError, match="at least one"):
        Examples(np.ones((3, 1), np.float32), np.zeros(3, np.int32)).set_aside(0, 0)
