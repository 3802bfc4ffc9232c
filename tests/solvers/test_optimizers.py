"""Tables of weights with the accumulators of their optimizer, and the scale of the features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.params import OPTIMIZERS
from extremax.solvers.base import find_feature_scale
from extremax.solvers.optimizers import Tables
from extremax.tuned import ScaleConfig
from planted import few_classes, stored


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n_features", [1, 5, 512])
def test_zeros_allocates_what_it_says(optimizer, n_features):
    tables = Tables.zeros(9, n_features, optimizer)
    columns = {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]
    assert tables.weights.shape == (9, n_features)
    assert tables.squares.shape == (9, columns)
    assert tables.n_classes == 9
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in tables.arrays)
    weights, accumulators = Tables.bytes_needed(9, n_features, optimizer)
    assert tables.weights.nbytes + tables.biases.nbytes == weights
    assert tables.squares.nbytes + tables.bias_squares.nbytes == accumulators
    assert not tables.weights.any()
    assert not tables.biases.any()
    assert np.all(tables.squares > 0.0)  # Adagrad divides by their root
    assert np.all(tables.bias_squares > 0.0)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (4, 512)])
def test_tables_start_on_a_cache_line(shape):
    for _ in range(5):
        tables = Tables.zeros(*shape, "adagrad", initial_square=1.5)
        assert tables.weights.ctypes.data % 64 == 0
        assert tables.squares.ctypes.data % 64 == 0
        assert np.all(tables.squares == 1.5)
        assert np.all(tables.bias_squares == 1.5)


@pytest.mark.reference
@pytest.mark.parametrize("n_rows", [1, 50, 9000])  # 9,000: several blocks
@pytest.mark.parametrize("storage", ["dense", "csr", "memmap"])
def test_feature_scale_matches_reference(n_rows, storage, tmp_path):
    X = few_classes(n_rows)[0]
    expected = 1.0 / np.sqrt((X.astype(np.float64) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(find_feature_scale(stored(X, storage, tmp_path)), expected, rtol=1e-6)


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_feature_scale_of_zeros_is_one(store):
    assert find_feature_scale(store(np.zeros((3, 2), np.float32))) == 1.0


@pytest.mark.parametrize("magnitude", [1e-12, 1e12])
def test_feature_scale_of_any_magnitude(magnitude):
    X = np.full((4, 9), magnitude, np.float32)
    np.testing.assert_allclose(find_feature_scale(X) * magnitude * 3.0, 1.0, rtol=1e-6)


def test_rows_too_long_or_too_short_for_float32():
    config = ScaleConfig(max_length=8.0, min_length=2.0)
    assert find_feature_scale(np.full((4, 9), 2.5, np.float32), config=config) == pytest.approx(1.0 / 7.5)
    assert find_feature_scale(np.full((4, 9), 0.5, np.float32), config=config) == 1.0  # as good as zero
    with pytest.raises(ValueError, match=r"rows of X are 9 long on average, .* divide all features by"):
        find_feature_scale(np.full((4, 9), 3.0, np.float32), config=config)


@pytest.mark.identity
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_feature_scale_of_some_rows(store):
    X = np.random.default_rng(3).normal(size=(5000, 4)).astype(np.float32)
    used = np.arange(5000) % 3 > 0
    some = find_feature_scale(store(X), used)
    assert some == pytest.approx(find_feature_scale(store(X[used])), rel=1e-12)
    assert find_feature_scale(store(X), np.ones(5000, bool)) == find_feature_scale(store(X))
