"""Minibatches on several threads: the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from extremax.kernels.row_losses import negative_sampling as loss
from extremax.kernels.row_training import Pairs, Step
from extremax.kernels.row_updates import ModelArrays
from extremax.solvers import negative_sampling

pytestmark = pytest.mark.small

N_CLASSES, N_FEATURES, N_ROWS, WIDTH = 11, 7, 64, 3
ENDS = np.array([0, 16, 33, 64])


def train(n_threads: int) -> ModelArrays:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)).astype(np.float32)
    labels = rng.integers(N_CLASSES, size=(N_ROWS, WIDTH)).astype(np.int32)
    tables = [np.zeros((N_ROWS, WIDTH), np.float32) for _ in range(4)]
    weight, losses, eta = np.ones(N_ROWS, np.float32), np.zeros(N_ROWS), np.zeros(N_ROWS, np.float32)
    pairs = Pairs(np.arange(N_ROWS), labels, *tables[:2], weight, *tables[2:], losses, eta)
    model = ModelArrays(
        rng.normal(size=(N_CLASSES, N_FEATURES)).astype(np.float32),
        np.zeros(N_CLASSES, np.float32),
        np.full((N_CLASSES, N_FEATURES), 1e-8, np.float32),
        np.full(N_CLASSES, 1e-8, np.float32),
    )
    step = Step(loss(0.01, WIDTH - 1), np.float32(1.0), np.float32(0.3))
    for _ in range(5):
        negative_sampling.train_batches(X, pairs, ENDS, model, step, n_threads)
    return model


@pytest.mark.invariance
@pytest.mark.parametrize("n_threads", [2, 3, 20])  # 20: more than classes, and rows of a minibatch
def test_threads_change_no_bit(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(1)
    monkeypatch.setattr(negative_sampling, "_SHARED_VALUES", 0)
    for ours, theirs in zip(train(n_threads), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
