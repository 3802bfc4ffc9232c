"""Features learned for the labels: the hidden layer of a network with one such layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extremax.nn.layer import ExtremeSoftmax
from extremax.nn.optim import make_optimizer
from extremax.nn.samplers import FrequencySampler

_BATCH_ROWS, _DROPOUT = 512, 0.5
_LAST_RATE = 0.02  # learning rate at the end, as a fraction of the first
_BLOCK_ROWS = 8192  # rows of features that are computed at a time


def learn_features(
    X: Mapping[str, Any], y: Any, *, n_units: int = 512, n_epochs: int = 2, n_threads: int = 1, seed: int = 0
) -> dict[str, Any]:
    """Train a network on ``X["train"]`` and return its hidden layer for all rows, scaled to unit length.

    The network is a hidden layer of `n_units` ReLU units with dropout below a softmax over the classes.

    Parameters
    ----------
    X : mapping of str to float32 (n_samples, n_features)
        Rows by split; the network sees those of "train" alone.
    y : int (n_samples,)
        Classes of the training rows.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            rows = {split: torch.from_numpy(np.asarray(part, np.float32)) for split, part in X.items()}
            return _learn(rows, torch.as_tensor(np.asarray(y, np.int64)), n_units, n_epochs)
    finally:
        torch.set_num_threads(threads)


def _learn(X: dict[str, Tensor], y: Tensor, n_units: int, n_epochs: int) -> dict[str, Any]:
    inputs, counts = X["train"], torch.bincount(y)
    scale = inputs[:_BLOCK_ROWS].square().mean().rsqrt()  # inputs of unit mean square
    hidden = nn.Sequential(nn.Linear(inputs.shape[1], n_units), nn.ReLU())
    sampler = FrequencySampler(counts, n_sampled=256, batch_share=0.8)
    output = ExtremeSoftmax(n_units, len(counts), sampler=sampler)
    optimizer = make_optimizer(nn.ModuleList([hidden, output]))
    n_steps = n_epochs * -(-len(y) // _BATCH_ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(1.0 - step / n_steps, _LAST_RATE)
    )
    for _ in range(n_epochs):
        for rows in torch.randperm(len(y)).split(_BATCH_ROWS):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            output(F.dropout(hidden(inputs[rows] * scale), _DROPOUT), y[rows]).loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return {
            split: torch.cat([F.normalize(hidden(rows * scale)) for rows in part.split(_BLOCK_ROWS)]).numpy()  # type: ignore[no-untyped-call]
            for split, part in X.items()
        }
