"""Weights by feature: blocks, pairs, norms, parts of the matrix, and what a model folder holds of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.errors import ModelFileError
from extremax.scores.base import Buffers
from extremax.scores.sparse import (
    DensePart,
    SparseWeights,
    add_postings,
    csr_rows,
    dense_columns,
    no_postings,
    packed_kinds,
)
from extremax.storage.state import State, restore

pytestmark = pytest.mark.small

N_ROWS, N_WORDS, N_DENSE, N_PROJECTED, N_CLASSES = 12, 15, 3, 2, 9
KINDS = ["words", "packed", "dense columns", "projection", "projection as it is", "both"]


class Case:
    """Random weights, rows, and their scores in float64."""

    def __init__(self, kind, seed=0):
        rng = np.random.default_rng(seed)
        n_dense = N_DENSE if kind in ("dense columns", "both") else 0
        n_projected = N_PROJECTED if kind.startswith("projection") or kind == "both" else 0
        W = rng.normal(size=(N_CLASSES, N_WORDS)).astype(np.float32)
        W[rng.random(W.shape) < 0.6] = 0.0
        W[4] = 0.0  # a class without weights
        biases, lengths = rng.normal(size=(2, N_CLASSES)).astype(np.float32)
        given = SparseWeights.from_matrix(sparse.csc_matrix(W), biases, lengths).postings
        if kind == "packed":
            given = add_postings(given, no_postings(N_WORDS), None, 1, packed_kinds(N_CLASSES))
            W = SparseWeights(given, biases, lengths).to_dense()
        words = rng.normal(size=(N_ROWS, N_WORDS)).astype(np.float32)
        words[rng.random(words.shape) < 0.5] = 0.0
        words[3] = 0.0  # an empty row
        dense = None
        others = rng.normal(size=(N_ROWS, n_dense)).astype(np.float32)
        self.table = words.astype(np.float64) @ W.T + words.sum(axis=1, keepdims=True) * lengths
        if kind not in ("words", "packed"):
            factors = rng.normal(size=(N_CLASSES, n_projected + n_dense)).astype(np.float32)
            columns = np.arange(1, N_WORDS, 2, dtype=np.int32) if n_projected else np.empty(0, np.int32)
            projection = rng.normal(size=(len(columns), n_projected)).astype(np.float32)
            unit_rows = kind != "projection as it is"
            dense = DensePart(factors, columns, projection, n_dense, unit_rows)
            read = words[:, columns].astype(np.float64)
            if unit_rows:
                read /= np.maximum(np.linalg.norm(read, axis=1, keepdims=True), 1e-9)
            self.table += np.hstack([read @ projection, others]) @ factors.T
        self.W, self.biases = W, biases
        self.weights = SparseWeights(given, biases, lengths, dense)
        self.X = sparse.csr_matrix(np.hstack([words, others]))


@pytest.fixture(params=KINDS)
def case(request):
    return Case(request.param)


@pytest.mark.reference
@pytest.mark.parametrize("form", ["csr", "array", "long"])
def test_blocks_match_products_with_an_array(case, form):
    X = case.X
    if form == "array":
        X = X.toarray()
    elif form == "long":
        X = X.copy()
        X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    assert case.weights.n_features == X.shape[1]
    for first, last in [(0, N_ROWS), (2, 7), (3, 4)]:
        block = case.weights.open_block(X, first, last)
        assert block.n_rows == last - first
        for start, stop in [(0, N_CLASSES), (2, 5)]:
            out = np.full((last - first, stop - start), np.nan, np.float32)
            assert block.products(start, stop, Buffers(), out) is out
            np.testing.assert_allclose(out, case.table[first:last, start:stop], atol=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("n_threads", [1, 2])
def test_scores_of_pairs_match_the_table(case, n_threads):
    rng = np.random.default_rng(3)
    rows = rng.integers(0, N_ROWS, 150)
    classes = rng.integers(0, N_CLASSES, (150, 4)).astype(np.int32)
    expected = (case.table + case.biases)[rows[:, None], classes]
    for X in (case.X, case.X.toarray()):
        found = case.weights.score_pairs(X, rows, classes, n_threads)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.reference
def test_norms_similarity_and_parts_of_the_matrix(case):
    weights = case.weights
    whole = case.W if weights.dense is None else np.hstack([case.W, weights.dense.factors])
    norms = np.linalg.norm(whole.astype(np.float64), axis=1)
    np.testing.assert_allclose(weights.norms, norms, rtol=1e-6)
    for label in (0, 4):
        products = whole.astype(np.float64) @ whole[label]
        expected = products / np.maximum(norms * norms[label], np.finfo(np.float32).tiny)
        np.testing.assert_allclose(weights.similarity(label), expected, atol=1e-5)
        features, values = weights.class_weights(label)
        np.testing.assert_array_equal(features, np.flatnonzero(case.W[label]))
        np.testing.assert_array_equal(values, case.W[label][features])
    columns, greatest = weights.column_maxima()
    np.testing.assert_array_equal(columns, np.flatnonzero(case.W.any(axis=0)))
    np.testing.assert_array_equal(greatest, np.abs(case.W).max(axis=0)[columns])
    np.testing.assert_array_equal(weights.to_dense(), case.W)
    assert weights.n_entries == np.count_nonzero(case.W)


@pytest.mark.identity
def test_pruning_drops_small_contributions(case):
    mean = np.linspace(0.1, 2.0, N_WORDS).astype(np.float32)
    pruned = case.weights.pruned(mean, 0.5)
    kept = np.abs(case.W) * mean >= 0.5
    np.testing.assert_allclose(pruned.to_dense(), np.where(kept, case.W, 0.0), rtol=3e-7)  # steps are rounded
    assert pruned.n_entries == kept.sum()
    assert case.weights.pruned(mean, 0.0) is case.weights


@pytest.mark.identity
def test_matrices_of_any_form_make_the_same_weights():
    W = sparse.random(7, 9, density=0.4, format="csr", dtype=np.float32, random_state=1)
    biases = np.arange(7, dtype=np.float64)
    first = SparseWeights.from_matrix(W, biases)
    assert (first.length_biases == 0.0).all()
    for matrix in (W.toarray(), W.tocoo(), W.tocsc()[:, ::-1][:, ::-1]):
        again = SparseWeights.from_matrix(matrix, biases)
        for a, b in zip(first.postings, again.postings, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    assert [part.dtype for part in first.postings[:3]] == [np.int64, np.int32, np.float32]


@pytest.mark.identity
def test_state_and_back(case):
    again = restore("weights", case.weights.state())
    for a, b in zip(again.postings, case.weights.postings, strict=True):
        np.testing.assert_array_equal(a, b)
    pairs = np.arange(N_ROWS), np.tile(np.arange(N_CLASSES, dtype=np.int32), (N_ROWS, 1))
    np.testing.assert_array_equal(
        again.score_pairs(case.X, *pairs, 1), case.weights.score_pairs(case.X, *pairs, 1)
    )


def broken(name):
    state = Case("words").weights.state()
    arrays = {key: array.copy() for key, array in state.arrays.items()}
    if name == "class too large":
        arrays["classes"][3] = N_CLASSES
    elif name == "class below zero":
        arrays["classes"][0] = -1
    elif name == "falling offsets":
        arrays["offsets"][4] = arrays["offsets"][5] + 1
    elif name == "offsets that do not begin at zero":
        arrays["offsets"][0] = 1
    elif name == "last offset too large":
        arrays["offsets"][-1] += 1
    elif name == "no offsets":
        arrays["offsets"] = arrays["offsets"][:0]
    elif name == "missing values":
        arrays["values"] = arrays["values"][:-1]
    elif name == "missing length biases":
        arrays["length_biases"] = arrays["length_biases"][:-1]
    return State(state.header, arrays)


@pytest.mark.error
@pytest.mark.parametrize(
    "name",
    [
        "class too large",
        "class below zero",
        "falling offsets",
        "offsets that do not begin at zero",
        "last offset too large",
        "no offsets",
        "missing values",
        "missing length biases",
    ],
)
def test_arrays_that_lead_outside_are_refused(name):
    with pytest.raises(ModelFileError, match="sparse weights of the model do not fit together"):
        SparseWeights.from_state(broken(name))


@pytest.mark.error
@pytest.mark.parametrize("part", ["factors", "projection", "n_dense", "columns"])
def test_a_dense_part_that_does_not_fit_is_refused(part):
    state = Case("both").weights.state()
    header, arrays = dict(state.header), dict(state.arrays)
    if part == "n_dense":
        header["n_dense"] = N_DENSE + 1
    elif part == "columns":
        arrays[part] = arrays[part] + np.int32(2)
    else:
        arrays[part] = arrays[part][:-1]
    with pytest.raises(ModelFileError, match="dense part of the model's weights does not fit together"):
        SparseWeights.from_state(State(header, arrays))


@pytest.mark.identity
def test_taken_classes_keep_their_scores_and_their_size(case):
    index = np.array([7, 0, 4, 2])
    found = case.weights.take(index)
    rows, labels = np.arange(N_ROWS), np.tile(index.astype(np.int32), (N_ROWS, 1))
    places = np.tile(np.arange(4, dtype=np.int32), (N_ROWS, 1))
    expected = case.weights.score_pairs(case.X, rows, labels, 1)
    np.testing.assert_array_equal(found.score_pairs(case.X, rows, places, 1), expected)
    for kept, given in zip(found.postings, case.weights.postings, strict=True):
        assert kept.dtype == given.dtype
    steps = found.postings.steps
    assert (
        steps[np.diff(found.postings.offsets)[: len(steps)] == 0] == 1.0
    ).all()  # nothing of other classes


@pytest.mark.error
def test_a_matrix_that_does_not_fit_is_not_unpacked():
    n = 1 << 17
    wide = SparseWeights.from_matrix(sparse.csc_matrix((n, n), dtype=np.float32), np.zeros(n))
    with pytest.raises(ValueError, match=r"64\.0 GiB; read model_\.weights\.postings"):
        wide.to_dense()


def test_dense_columns_of_rows_that_lack_some():
    """Explicit in every row they are a view of the end; rows that lack one are unpacked."""
    X = np.array([[0.0, 2.0, 1.0, 3.0], [1.0, 0.0, 4.0, 5.0], [0.0, 0.0, 6.0, 7.0]], np.float32)
    np.testing.assert_array_equal(dense_columns(sparse.csr_matrix(X), 2), X[:, 2:])
    X[1, 3] = X[2, 2] = X[2, 3] = 0.0
    np.testing.assert_array_equal(dense_columns(sparse.csr_matrix(X), 2), X[:, 2:])
    np.testing.assert_array_equal(dense_columns(sparse.csr_matrix(X[:0]), 2), X[:0, 2:])


def test_rows_as_kernels_take_them():
    X = sparse.csr_matrix(np.eye(4, dtype=np.float64))
    X.data.flags.writeable = False
    rows = csr_rows(X)
    assert [part.dtype for part in rows] == [np.float32, np.int32, np.int64]
    assert all(part.flags.writeable for part in rows)
    assert csr_rows(np.eye(4), 2).indices.tolist() == [0, 1]
