"""Blocks of rows: sums over stretches that blocks share, and what a block may be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from extremax.dask import blocks as b
from extremax.dask.inputs import group_blocks
from extremax.dask.sparse_fit import join_classes


@pytest.mark.identity
@pytest.mark.parametrize("edges", [[0, 1000], [0, 1, 2, 250, 251, 777, 1000], [0, 500, 500, 1000]])
@pytest.mark.parametrize("size", [7, 250, 4096])
def test_stretches_of_many_blocks_are_those_of_one(edges, size) -> None:
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(1000, 3)).astype(np.float32), rng.random(1000)
    cuts = b.even_cuts(1000, size)

    def work(rows, w):
        return float((rows.sum(axis=1) * w).sum())

    parts = [b.work_on_stretches(a, (X[a:z], weight[a:z]), cuts, work) for a, z in pairwise(edges)]
    assert b.complete(parts, work) == [work(X[a:z], weight[a:z]) for a, z in pairwise(cuts)]


@pytest.mark.reference
@pytest.mark.parametrize("n", [1, 100, 65_537, 300_001])
def test_pairwise_sums_are_those_of_numpy(n) -> None:
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    cuts = b.pairwise_cuts(n)
    edges = np.unique([0, n // 3, n // 2, n])
    parts = [b.work_on_stretches(int(a), (values[a:z],), cuts, b.sum_squares) for a, z in pairwise(edges)]
    expected = float(np.square(values, dtype=np.float64).sum())
    assert b.pairwise_total(b.complete(parts, b.sum_squares), n) == expected


@pytest.mark.reference
def test_ranges_of_classes_are_joined_by_column() -> None:
    rng = np.random.default_rng(0)
    whole = sparse.random_array((40, 25), density=0.2, rng=rng, format="csc", dtype=np.float32)
    whole.sort_indices()
    parts = []
    for a, z in ((0, 11), (11, 12), (12, 40)):
        rows = np.zeros((40, 1), np.float32)
        rows[a:z] = 1.0
        part = sparse.csc_array(whole.multiply(rows))
        part.eliminate_zeros()
        parts.append(part)
    joined = join_classes([parts[0], None, *parts[1:]], (40, 25))
    assert (joined.indptr == whole.indptr).all()
    assert (joined.indices == whole.indices).all()
    assert (joined.data == whole.data).all()


@pytest.mark.identity
def test_frames_and_lists_are_blocks() -> None:
    pd = pytest.importorskip("pandas")
    X, y = np.arange(12, dtype=np.float64).reshape(4, 3), np.array(["a", "b", "a", "c"])
    plain = b.read_block(X, y, None, 0)
    frame = b.read_block(pd.DataFrame(X), pd.Series(y), pd.Series([1.0, 2.0, 1.0, 1.0]), 0)
    parts = b.read_block([X[:1], X[1:]], [y[:1], y[1:]], None, 0)
    for block in (frame, parts):
        assert block.X.dtype == np.float32
        assert (block.X == plain.X).all()
        assert block.labels.tolist() == y.tolist()
    assert frame.weight.tolist() == [1.0, 2.0, 1.0, 1.0]
    assert b.describe(plain).label_type == b.describe(frame).label_type == "strings"
    with pytest.raises(ValueError, match="block 3 of X and y: sample_weight is zero for some rows"):
        b.read_block(X, y, np.array([1.0, 0.0, 1.0, 1.0]), 3)


@pytest.mark.property
@pytest.mark.parametrize("n_groups", [1, 2, 3, 9, 40])
def test_groups_are_consecutive(n_groups) -> None:
    sizes = np.random.default_rng(n_groups).integers(1, 100, 30).tolist()
    groups = group_blocks(sizes, n_groups)
    assert [i for group in groups for i in group] == list(range(30))
    assert len(groups) <= max(n_groups, 1) or len(groups) == 30
    assert all(groups)
