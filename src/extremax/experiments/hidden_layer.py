"""Features learned for the labels, as the paper's are: the hidden layer of a network of one hidden layer.

The network is trained on the training rows alone, by softmax over the classes of a minibatch and some classes
drawn uniformly. Needs PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from extremax.types import Float32, Int32

WIDTH = 512  # ReLU units, as many as XML-CNN's features have numbers
_EPOCHS, _BATCH, _RATE, _DROPOUT = 15, 256, 2e-3, 0.5
_SHARED = 2048  # classes drawn for a minibatch; all classes where they are not more
_BLOCK = 8192


def learn_features(
    X: dict[str, Any], y: Int32, n_classes: int, *, log: Callable[[str], None] = lambda text: None
) -> dict[str, Float32]:
    """Train a network on the rows of "train" and return its hidden layer for the rows of every split.

    Parameters
    ----------
    X : dict of (n, n_features) arrays
        Dense features by split.
    y : (n_train,)
        Class ids of the training rows, 0 to n_classes - 1.
    """
    try:
        torch: Any = import_module("torch")  # its methods are not annotated
    except ImportError as error:
        raise ImportError("learned features need PyTorch: pip install 'extremax[torch]'.") from error
    started = time.process_time()
    scale = np.float32(1.0 / max(float(np.std(X["train"])), 1e-12))  # Adam's rate is for inputs of size one
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden, output = torch.nn.Linear(X["train"].shape[1], WIDTH), torch.nn.Linear(WIDTH, n_classes)
        optimizer = torch.optim.Adam([*hidden.parameters(), *output.parameters()], lr=_RATE)
        rows, labels = torch.from_numpy(X["train"] * scale), torch.from_numpy(y.astype(np.int64))
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(labels)).split(_BATCH):
                classes = torch.arange(n_classes)
                if n_classes > _SHARED:
                    drawn = torch.randint(n_classes, (_SHARED,))
                    classes = torch.cat([labels[batch], drawn]).unique()
                places = torch.searchsorted(classes, labels[batch])
                active = torch.nn.functional.dropout(torch.relu(hidden(rows[batch])), _DROPOUT)
                scores = active @ output.weight[classes].T + output.bias[classes]
                loss = torch.nn.functional.cross_entropy(scores, places)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        found = {
            split: np.concatenate(
                [
                    torch.relu(hidden(torch.from_numpy(part[i : i + _BLOCK] * scale))).numpy()
                    for i in range(0, len(part), _BLOCK)
                ]
            )
            for split, part in X.items()
        }
    log(f"{WIDTH} learned features in {time.process_time() - started:.0f} s of processor time")
    return found
