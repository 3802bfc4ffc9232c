"""Label reduction and splits, against plain Python."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp

from extremax.data import (
    all_pairs,
    first_label,
    has_label,
    label_counts,
    rarest_label,
    seen_classes,
    smallest_label,
    split_rows,
)
from extremax.data.dataset import indicator


@pytest.fixture
def lists():
    rng = np.random.default_rng(3)
    return [rng.choice(9, size=rng.integers(1, 5), replace=False).tolist() for _ in range(200)]


def as_matrix(lists):
    offsets = np.cumsum([0, *map(len, lists)])
    return indicator(np.concatenate(lists), offsets, 9)


@pytest.mark.parametrize("form", [list, as_matrix])
def test_reductions_match_reference(form, lists):
    y = form(lists)
    counts = Counter(label for row in lists for label in row)
    np.testing.assert_array_equal(first_label(y), [row[0] for row in lists])
    np.testing.assert_array_equal(smallest_label(y), [min(row) for row in lists])
    np.testing.assert_array_equal(rarest_label(y), [min(row, key=lambda c: (counts[c], c)) for row in lists])
    other = {0: 5, 1: 5, 2: 1, 8: 3}
    expected = [min(row, key=lambda c: (other.get(c, 0), c)) for row in lists]
    np.testing.assert_array_equal(rarest_label(y, other), expected)
    np.testing.assert_array_equal(rarest_label(y, np.array([other.get(c, 0) for c in range(9)])), expected)
    assert label_counts(y) == counts
    rows, labels = all_pairs(y)
    assert list(zip(rows.tolist(), labels.tolist(), strict=True)) == [
        (i, c) for i, row in enumerate(lists) for c in row
    ]


def test_explicit_zeros_and_repeats_do_not_count():
    y = sp.csr_matrix((np.array([0, 1, 1]), np.array([0, 2, 1]), np.array([0, 2, 3])), shape=(2, 3))
    assert first_label(y).tolist() == [2, 1]
    repeated = indicator(np.array([4, 2, 4, 1, 1]), np.array([0, 3, 3, 5]), 5)
    assert repeated.toarray().tolist() == [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    assert repeated.indices.tolist() == [4, 2, 1]


def test_strings():
    y = [["pear", "apple"], "fig", ["apple"]]
    assert first_label(y).tolist() == ["pear", "fig", "apple"]
    assert rarest_label(y).tolist() == ["pear", "fig", "apple"]


def test_missing_labels_rejects():
    y = [[1], [], [2], []]
    assert has_label(y).tolist() == [True, False, True, False]
    with pytest.raises(ValueError, match=r"y\[1\] and 1 more rows has no label"):
        first_label(y)
    with pytest.raises(ValueError, match="types int, str"):
        first_label([[1], ["a"]])


def test_split_is_a_partition_and_keeps_classes():
    y = np.random.default_rng(0).integers(0, 300, 1000)
    train, valid, test = split_rows(y, fractions=(0.1, 0.2), seed=1)
    assert sorted(np.concatenate([train, valid, test]).tolist()) == list(range(1000))
    assert (len(valid), len(test)) == (100, 200)
    assert seen_classes(y, y[train]).all()
    again = split_rows(y, fractions=(0.1, 0.2), seed=1)
    np.testing.assert_array_equal(valid, again[1])
    assert not np.array_equal(valid, split_rows(y, fractions=(0.1, 0.2), seed=2)[1])


def test_split_of_single_rows():
    train, valid = split_rows(np.arange(50), fractions=(0.5,))
    assert (len(train), len(valid)) == (50, 0)
    train, valid = split_rows(50, fractions=(0.5,), keep_classes=False)
    assert (len(train), len(valid)) == (25, 25)


def test_split_rejects():
    with pytest.raises(ValueError, match="leave something for training"):
        split_rows(10, fractions=(0.5, 0.5), keep_classes=False)
    with pytest.raises(ValueError, match="one label per row"):
        split_rows(10)
