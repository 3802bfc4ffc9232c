"""AdversarialSoftmax in PyTorch: quality beside a dense softmax layer, and steps with a million classes.

    python benchmarks/bench_head.py             # both parts, one thread
    python benchmarks/bench_head.py --epochs 8

Part 1: a small encoder on a planted hierarchy of 2,000 classes, with the same optimizers everywhere, and as
output layer a dense softmax, the head with uniform noise, and the head with a tree that is fitted every 200
steps, with 8 and with 64 negatives.  Part 2: one training step and one prediction with 1,000,000 classes.
Seconds are processor time, fits of the tree included, test figures excluded.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from extremax.data import planted_hierarchy
from extremax.nn import AdversarialSoftmax
from timing import machine, make_parser, measure, write_rows

NAME = "bench_head"
WIDTH = 64


@dataclass(frozen=True)
class Problem:
    """Sizes of the two parts."""

    n_rows: int = 24_000
    n_classes: int = 2000
    n_features: int = 48
    n_test: int = 2000
    batch: int = 256
    refit_every: int = 200
    many_classes: int = 1_000_000
    many_rows: int = 20_000
    n_steps: int = 20


TINY = Problem(600, 50, 12, 100, 100, 3, 2000, 600, 2)


def train_and_test(problem: Problem, layer: str, n_epochs: int, n_negatives: int = 0) -> None:
    """Train encoder and output layer, and write a row after epoch 1, 2, 4, ..."""
    data = planted_hierarchy(
        problem.n_rows,
        problem.n_classes,
        problem.n_features,
        n_test=problem.n_test,
        noise_scale=0.5,
        seed=0,
    )
    X, X_test = torch.from_numpy(data.X), torch.from_numpy(data.X_test)
    y, y_test = torch.from_numpy(data.y).long(), torch.from_numpy(data.y_test).long()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(problem.n_features, 256), nn.ReLU(), nn.Linear(256, WIDTH))
    dense, head = nn.Linear(WIDTH, problem.n_classes), None
    nn.init.zeros_(dense.weight), nn.init.zeros_(dense.bias)
    if n_negatives:
        head = AdversarialSoftmax(WIDTH, problem.n_classes, n_negatives=n_negatives, n_jobs=1)
        head.refit_every = problem.refit_every if layer == "head, tree" else None
    output = dense if head is None else head
    optimizers = [
        torch.optim.Adam(encoder.parameters(), lr=2e-3),
        torch.optim.Adagrad(output.parameters(), lr=0.1),
    ]
    seconds, case = 0.0, f"{layer}, {n_negatives} negatives" if n_negatives else layer
    for epoch in range(1, n_epochs + 1):
        started = time.process_time()
        for rows in torch.randperm(len(y)).split(problem.batch):
            hidden = encoder(X[rows])
            loss = _cross_entropy(dense, hidden, y[rows]) if head is None else head(hidden, y[rows]).loss
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        seconds += time.process_time() - started
        if epoch not in (1, 2, 4, 8, 16):
            continue
        with torch.no_grad():
            hidden = encoder(X_test)
            log_prob = dense(hidden).log_softmax(1) if head is None else head.log_prob(hidden)
        row = {
            "case": f"{case}, epoch {epoch}",
            "processor s": seconds,
            "log-likelihood": log_prob[torch.arange(len(y_test)), y_test].mean().item(),
            "accuracy": (log_prob.argmax(1) == y_test).float().mean().item(),
        }
        write_rows(NAME, [row])


def _cross_entropy(layer: nn.Module, hidden: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(layer(hidden), y)


def time_many_classes(problem: Problem) -> None:
    """Write rows about steps, fits and predictions with very many classes."""
    n_classes, n_rows, batch, rng = (
        problem.many_classes,
        problem.many_rows,
        problem.batch,
        np.random.default_rng(0),
    )
    hidden = torch.from_numpy(rng.normal(size=(n_rows, WIDTH)).astype(np.float32))
    y = torch.from_numpy(rng.integers(n_classes, size=n_rows))
    head = AdversarialSoftmax(WIDTH, n_classes, tree_components=16, tree_regularization=1.0, n_jobs=1)
    optimizer = torch.optim.Adagrad(head.parameters(), lr=0.1)

    def step(i: int) -> None:
        rows = slice(batch * i, batch * (i + 1))
        optimizer.zero_grad()
        head(hidden[rows], y[rows]).loss.backward()
        optimizer.step()

    def write(case: str, work: Callable[[], object] | Sequence[Callable[[], object]]) -> None:
        works = [work] if callable(work) else work
        milliseconds = 1e3 * float(np.median([measure(w).processor for w in works]))
        write_rows(NAME, [{"case": f"{n_classes:,} classes, {case}", "processor ms": milliseconds}])

    steps = [lambda i=i: step(i) for i in range(problem.n_steps)]
    write(f"step of {batch} rows, uniform noise", steps)
    write(f"tree on {n_rows:,} rows", lambda: head.fit_tree(hidden, y))
    write(f"step of {batch} rows, tree", steps)
    for search in ("beam", "exact"):
        head.predict_topk(hidden[:64], 5, search=search)
        write(f"top 5 of 64 rows, {search}", lambda: head.predict_topk(hidden[:64], 5, search=search))
    dense = nn.Linear(WIDTH, n_classes)
    write(
        f"dense softmax, gradient of {batch} rows",
        lambda: _cross_entropy(dense, hidden[:batch], y[:batch]).backward(),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args(argv)
    problem, n_epochs = (TINY, 1) if args.tiny else (Problem(), args.epochs)
    print(machine(), f"torch {torch.__version__}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse invariant checks")
            train_and_test(problem, "dense softmax", n_epochs)
            for n_negatives in (8, 64):
                for layer in ("head, uniform", "head, tree"):
                    train_and_test(problem, layer, n_epochs, n_negatives)
            time_many_classes(problem)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
