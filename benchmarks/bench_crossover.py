"""From how many classes on is ExtremeSoftmax ahead of F.linear_cross_entropy?

    python benchmarks/bench_crossover.py --figure lab/results/head-crossover.svg   # 13 minutes; 3 GB

Time per step: one step of the output layer alone on random hidden states, loss, gradients and update of its
weights, mean processor time on one thread. `F.linear_cross_entropy` has Adagrad on its dense gradient and
chunks of at most 64 MB of scores; the layer of extremax has `make_optimizer`, or dense gradients and Adagrad.

Loss after equal time: a linear encoder on a planted hierarchy (Zipf law, 64 features, two rows per class on
average, at least 25,600), trained for --seconds of processor time, or for the time of three steps of
`F.linear_cross_entropy` where these take longer; exact negative log-likelihood of 1,000 test rows. The rate
of each method is found on 1,000 validation rows: from --rate on, rates are doubled and halved until the best
is between two others. The untrained model, the class frequencies, is the line to compare with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_head import find_rate
from extremax.data import planted_hierarchy
from extremax.nn import ExtremeSoftmax, FrequencySampler, make_optimizer
from timing import machine, make_parser, measure, one_torch_thread, write_rows

NAME = "bench_crossover"
SHAPES = ((64, 64), (64, 1024), (512, 64), (512, 1024))  # hidden units, rows
CLASSES = (300, 1_000, 3_000, 10_000, 30_000, 100_000)
FEATURES = 64
LONG_STEP = 0.5  # seconds: such steps are measured once
WARM_STEPS = 17  # of RowAdagrad, which finds roots of moments more often in its first ones
LEAST_STEPS = 3  # of F.linear_cross_entropy, in the time that both methods get
CHUNK_SCORES = 1 << 24
METHODS = {
    "linear_cross_entropy": "F.linear_cross_entropy, Adagrad",
    "dense": "ExtremeSoftmax, dense, Adagrad",
    "rows": "ExtremeSoftmax, RowAdagrad",
}


class Exact(nn.Module):
    """A linear layer and F.linear_cross_entropy."""

    def __init__(self, width: int, counts: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(counts), width))
        self.bias = nn.Parameter(counts.log() - counts.sum().log())

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        rows = max(1, min(len(h), CHUNK_SCORES // len(self.bias)))
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows)
        return F.linear_cross_entropy(h, self.weight, y, linear_bias=self.bias, options=options)


class Shared(nn.Module):
    """A layer of extremax."""

    def __init__(self, width: int, counts: Tensor) -> None:
        super().__init__()
        self.layer = ExtremeSoftmax(width, len(counts), sampler=FrequencySampler(counts))
        self.weight, self.bias = self.layer.weight, self.layer.bias

    def loss(self, h: Tensor, y: Tensor) -> Tensor:
        return self.layer(h, y).loss


def make_output(method: str, width: int, counts: Tensor, rate: float) -> tuple[Any, list[Any]]:
    """Return a layer and its optimizers."""
    if method == "linear_cross_entropy":
        exact = Exact(width, counts)
        return exact, [torch.optim.Adagrad(exact.parameters(), lr=rate)]
    shared = Shared(width, counts)
    if method == "rows":
        return shared, [make_optimizer(shared.layer, row_lr=rate)]
    return shared, [torch.optim.Adagrad(shared.layer.parameters(), lr=rate)]


def step(output: Any, optimizers: Sequence[Any], hidden: Tensor, y: Tensor) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    output.loss(hidden, y).backward()
    for optimizer in optimizers:
        optimizer.step()


def time_step(method: str, n_classes: int, width: int, n_rows: int, n_steps: int) -> float:
    """Return the mean processor milliseconds of a step."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n_rows, width, generator=generator).requires_grad_()
    y = torch.randint(n_classes, (n_rows,), generator=generator)
    output, optimizers = make_output(method, width, torch.ones(n_classes), 0.1)
    for _ in range(WARM_STEPS if method == "rows" else 1):
        step(output, optimizers, hidden, y)
    found: list[float] = []
    while len(found) < n_steps and (not found or found[-1] < LONG_STEP):
        found.append(measure(lambda: step(output, optimizers, hidden, y)).processor)
    return 1e3 * float(np.mean(found))


@dataclass(frozen=True)
class Problem:
    """A planted hierarchy: training, validation and test rows."""

    X: dict[str, Tensor]
    y: dict[str, Tensor]
    counts: Tensor

    @classmethod
    def plant(cls, n_classes: int, n_rows: int, n_held_out: int) -> Problem:
        data = planted_hierarchy(n_rows, n_classes, FEATURES, n_test=2 * n_held_out, seed=0, n_jobs=1)
        parts = {
            "train": (data.X, data.y),
            "valid": (data.X_test[:n_held_out], data.y_test[:n_held_out]),
            "test": (data.X_test[n_held_out:], data.y_test[n_held_out:]),
        }
        X = {name: torch.from_numpy(x).float() for name, (x, _) in parts.items()}
        y = {name: torch.from_numpy(labels).long() for name, (_, labels) in parts.items()}
        return cls(X, y, torch.bincount(y["train"], minlength=n_classes).float().clamp(min=0.5))

    def train(self, method: str, rate: float, seconds: float, *, width: int, n_rows: int) -> dict[str, float]:
        """Return the exact loss on validation and test rows after some seconds of training, and the steps."""
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Linear(FEATURES, width), nn.LayerNorm(width))
        output, optimizers = make_output(method, width, self.counts, rate)
        optimizers = [*optimizers, torch.optim.Adam(encoder.parameters(), lr=1e-3)]
        generator, spent, n_steps = torch.Generator().manual_seed(0), 0.0, 0
        while spent < seconds:
            rows = torch.randint(len(self.y["train"]), (n_rows,), generator=generator)
            started = time.process_time()
            for optimizer in optimizers:
                optimizer.zero_grad()
            output.loss(encoder(self.X["train"][rows]), self.y["train"][rows]).backward()
            for optimizer in optimizers:
                optimizer.step()
            spent, n_steps = spent + time.process_time() - started, n_steps + 1
        with torch.no_grad():
            losses = {
                name: _mean_loss(encoder(self.X[name]), output, self.y[name]) for name in ("valid", "test")
            }
        return {**losses, "steps": n_steps}

    def search(
        self, method: str, first: float, seconds: float, *, width: int, n_rows: int
    ) -> tuple[float, dict[float, dict[str, float]]]:
        """Return the best rate on validation rows, and the runs of all rates that were tried."""
        runs: dict[float, dict[str, float]] = {}

        def score(rate: float) -> float:
            runs[rate] = self.train(method, rate, seconds, width=width, n_rows=n_rows)
            return -runs[rate]["valid"]

        return next(iter(find_rate(score, first))), runs

    def untrained(self) -> float:
        log_frequencies = self.counts.log() - self.counts.sum().log()
        return -float(log_frequencies[self.y["test"]].mean())


def _mean_loss(h: Tensor, output: Any, y: Tensor) -> float:
    parts = [
        F.cross_entropy(F.linear(a, output.weight, output.bias), b, reduction="sum")
        for a, b in zip(h.split(64), y.split(64), strict=True)
    ]
    return float(torch.stack(parts).sum()) / len(y)


def compare_times(classes: Sequence[int], n_steps: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for width, n_rows in SHAPES:
        for n_classes in classes:
            figures = {
                f"{method} ms": time_step(method, n_classes, width, n_rows, n_steps) for method in METHODS
            }
            rows.append({"case": f"step, {_shape(width, n_rows)}, {n_classes:,} classes", **figures})
            write_rows(NAME, rows[-1:])
    return rows


def compare_losses(
    times: Sequence[dict[str, Any]], rate: float, least_seconds: float, n_held_out: int
) -> list[dict[str, Any]]:
    """Train for equal time in each of the cases whose steps were timed."""
    step_ms = {row["case"].removeprefix("step, "): row["linear_cross_entropy ms"] for row in times}
    classes = sorted({_classes(row) for row in times})
    rows: list[dict[str, Any]] = []
    for n_classes in classes:
        problem = Problem.plant(n_classes, max(2 * n_classes, 25_600), n_held_out)
        for width, n_rows in SHAPES:
            case = f"{_shape(width, n_rows)}, {n_classes:,} classes"
            seconds = max(least_seconds, LEAST_STEPS * step_ms[case] / 1e3)
            figures: dict[str, Any] = {"seconds": seconds, "untrained": problem.untrained()}
            for method in ("linear_cross_entropy", "rows"):
                best, runs = problem.search(method, rate, seconds, width=width, n_rows=n_rows)
                figures |= {method: runs[best]["test"], f"{method} steps": runs[best]["steps"]}
                figures |= {f"{method} rate": best, f"{method} rates tried": len(runs)}
            rows.append({"case": f"loss, {case}", **figures})
            write_rows(NAME, rows[-1:])
    return rows


def _shape(width: int, n_rows: int) -> str:
    return f"{width} hidden units, {n_rows:,} rows"


def draw(times: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw time per step above loss after equal time, a column for each shape."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {"font.size": 9.0, "svg.fonttype": "none", "svg.hashsalt": "extremax"}
    colors = {"linear_cross_entropy": "#b4472e", "dense": "#7a8fa6", "rows": "#1f5f99"}
    marks = {"linear_cross_entropy": "s", "dense": "^", "rows": "o"}
    with mpl.rc_context({**style, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10.5, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(SHAPES), sharex=True, sharey="row", squeeze=False)
        for column, (width, n_rows) in enumerate(SHAPES):
            above, below = axes[0, column], axes[1, column]
            for method, label in METHODS.items():
                look: Any = {
                    "color": colors[method],
                    "marker": marks[method],
                    "markersize": 4,
                    "label": label,
                }
                part = [row for row in times if _shape(width, n_rows) in row["case"]]
                above.plot([_classes(row) for row in part], [row[f"{method} ms"] for row in part], **look)
                part = [row for row in losses if _shape(width, n_rows) in row["case"]]
                if method != "dense":
                    below.plot([_classes(row) for row in part], [row[method] for row in part], **look)
            frequencies = [row["untrained"] for row in part]
            look = {"color": "0.5", "linestyle": ":", "label": "class frequencies alone"}
            below.plot([_classes(row) for row in part], frequencies, **look)
            above.set(xscale="log", yscale="log")
            above.set_title(_shape(width, n_rows), loc="left")
            below.set(xlabel="classes")
        axes[0, 0].set(ylabel="ms per step")
        axes[1, 0].set(ylabel="test loss after equal time")
        entries = {
            label: line
            for ax in axes[:, 0]
            for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=4, frameon=False
        )
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _classes(row: dict[str, Any]) -> int:
    return int(row["case"].removesuffix(" classes").split()[-1].replace(",", ""))


def main(argv: Sequence[str] | None = None) -> None:
    parser: argparse.ArgumentParser = make_parser(__doc__)
    parser.add_argument("--classes", nargs="+", type=int, default=list(CLASSES))
    parser.add_argument("--seconds", type=float, default=1.0, help="of training, at least")
    parser.add_argument("--rate", type=float, default=0.08, help="where the search begins")
    parser.add_argument("--steps", type=int, default=8, help="whose mean is taken")
    parser.add_argument("--figure", type=Path, help="write this figure")
    args = parser.parse_args(argv)
    if args.tiny:
        args.classes, args.seconds, args.steps = [200], 0.02, 1
    print(machine(), f"torch {torch.__version__}")
    with one_torch_thread():
        time_step("rows", 3000, FEATURES, 64, 1)  # loads what is compiled
        times = compare_times(args.classes, args.steps)
        losses = compare_losses(times, args.rate, args.seconds, 100 if args.tiny else 1000)
    if args.figure is not None:
        draw(times, losses, args.figure)


if __name__ == "__main__":
    main()
