"""AdversarialSoftmax in PyTorch: quality beside a dense softmax layer, and the time of a step with a million
classes.

    python benchmarks/bench_head.py             # both parts, one thread
    python benchmarks/bench_head.py --epochs 8

Part 1: a small encoder on a planted hierarchy of 2,000 classes, the same encoder and optimisers everywhere,
and as output layer a dense softmax, the head with uniform noise, and the head with a tree that is fitted anew
every 200 steps, with 8 and with 64 negatives. Part 2: one training step and one prediction with 1,000,000
classes. Seconds are processor time, tree fits included, test figures excluded."""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from extremax.data import planted_hierarchy
from extremax.nn import AdversarialSoftmax
from timing import machine

N_CLASSES, N_FEATURES, WIDTH, BATCH = 2000, 48, 64, 256


def quality(layer: str, n_epochs: int, n_negatives: int = 0) -> None:
    data = planted_hierarchy(24_000, N_CLASSES, N_FEATURES, n_test=2000, noise_scale=0.5, seed=0)
    X, X_test = torch.from_numpy(data.X), torch.from_numpy(data.X_test)
    y, y_test = torch.from_numpy(data.y).long(), torch.from_numpy(data.y_test).long()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(N_FEATURES, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    head: nn.Module
    if layer == "dense softmax":
        head = nn.Linear(WIDTH, N_CLASSES)
        nn.init.zeros_(head.weight), nn.init.zeros_(head.bias)
    else:
        head = AdversarialSoftmax(WIDTH, N_CLASSES, n_negatives=n_negatives, n_jobs=1)
        head.refit_every = 200 if layer == "head, tree" else None
    optimisers = [
        torch.optim.Adam(encoder.parameters(), lr=2e-3),
        torch.optim.Adagrad(head.parameters(), lr=0.1),
    ]
    seconds = 0.0
    for epoch in range(1, n_epochs + 1):
        started = time.process_time()
        for rows in torch.randperm(len(y)).split(BATCH):
            hidden = encoder(X[rows])
            loss = (
                head(hidden, y[rows]).loss
                if isinstance(head, AdversarialSoftmax)
                else _cross_entropy(head, hidden, y[rows])
            )
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
        seconds += time.process_time() - started
        with torch.no_grad():
            hidden = encoder(X_test)
            log_prob = (
                head.log_prob(hidden) if isinstance(head, AdversarialSoftmax) else head(hidden).log_softmax(1)
            )
        likelihood = log_prob[torch.arange(len(y_test)), y_test].mean().item()
        accuracy = (log_prob.argmax(1) == y_test).float().mean().item()
        if epoch in (1, 2, 4, 8, 16):
            name = f"{layer}, {n_negatives} negatives" if n_negatives else layer
            figures = f"log-likelihood {likelihood:7.3f}  accuracy {accuracy:.1%}"
            print(f"{name:28s} epoch {epoch:2d}  {seconds:6.1f} s  {figures}", flush=True)


def _cross_entropy(head: nn.Module, hidden: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(head(hidden), y)


def million() -> None:
    n_classes, rng = 1_000_000, np.random.default_rng(0)
    hidden = torch.from_numpy(rng.normal(size=(20_000, WIDTH)).astype(np.float32))
    y = torch.from_numpy(rng.integers(n_classes, size=20_000))
    head = AdversarialSoftmax(WIDTH, n_classes, n_components=16, regularization=1.0, n_jobs=1)
    optimiser = torch.optim.Adagrad(head.parameters(), lr=0.1)

    def step(i: int) -> float:
        rows = slice(BATCH * i, BATCH * (i + 1))
        started = time.process_time()
        optimiser.zero_grad()
        head(hidden[rows], y[rows]).loss.backward()
        optimiser.step()
        return time.process_time() - started

    print(
        f"1,000,000 classes: step of {BATCH} rows, uniform noise {1e3 * np.median([step(i) for i in range(20)]):.1f} ms"
    )
    started = time.process_time()
    head.fit_tree(hidden, y)
    print(f"tree on 20,000 rows {time.process_time() - started:.1f} s")
    print(f"step of {BATCH} rows, tree {1e3 * np.median([step(i) for i in range(20)]):.1f} ms")
    for search in ("beam", "exact"):
        head.predict_topk(hidden[:64], 5, search=search)
        started = time.process_time()
        head.predict_topk(hidden[:64], 5, search=search)
        print(f"top 5 of 64 rows, {search} {1e3 * (time.process_time() - started):.0f} ms")
    dense = nn.Linear(WIDTH, n_classes)
    started = time.process_time()
    _cross_entropy(dense, hidden[:BATCH], y[:BATCH]).backward()
    print(f"dense softmax, gradient of {BATCH} rows {1e3 * (time.process_time() - started):.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    torch.set_num_threads(1)
    print(machine(), f"torch {torch.__version__}")
    quality("dense softmax", options.epochs)
    for n_negatives in (8, 64):
        for name in ("head, uniform", "head, tree"):
            quality(name, options.epochs, n_negatives)
    million()
