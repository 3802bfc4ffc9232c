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


class _Network(nn.Module):
    def __init__(self, n_inputs: int, n_units: int, counts: Tensor) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_inputs, n_units)
        self.output = ExtremeSoftmax(
            n_units, len(counts), sampler=FrequencySampler(counts, n_sampled=256, batch_share=0.8)
        )

    def forward(self, X: Tensor) -> Tensor:
        return F.relu(self.hidden(X))


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
            return _learn(
                {split: np.asarray(rows, np.float32) for split, rows in X.items()}, y, n_units, n_epochs
            )
    finally:
        torch.set_num_threads(threads)


def _learn(X: dict[str, Any], y: Any, n_units: int, n_epochs: int) -> dict[str, Any]:
    scale = 1.0 / np.sqrt(np.mean(np.square(X["train"][:_BLOCK_ROWS])))  # inputs of unit mean square
    labels = torch.as_tensor(np.asarray(y, np.int64))
    network = _Network(X["train"].shape[1], n_units, torch.bincount(labels))
    optimizer = make_optimizer(network)
    n_steps = n_epochs * -(-len(labels) // _BATCH_ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(1.0 - step / n_steps, _LAST_RATE)
    )
    inputs = torch.from_numpy(X["train"])
    for _ in range(n_epochs):
        for rows in torch.randperm(len(labels)).split(_BATCH_ROWS):  # type: ignore[no-untyped-call]
            hidden = F.dropout(network(inputs[rows] * scale), _DROPOUT)
            optimizer.zero_grad()
            network.output(hidden, labels[rows]).loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return {split: _hidden(network, torch.from_numpy(part), scale) for split, part in X.items()}


def _hidden(network: _Network, X: Tensor, scale: float) -> Any:
    blocks = X.split(_BLOCK_ROWS)  # type: ignore[no-untyped-call]
    return torch.cat([F.normalize(network(rows * scale)) for rows in blocks]).numpy()
