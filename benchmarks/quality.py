"""Test accuracy and log-likelihood against training seconds: the default classifier beside other methods.

    python benchmarks/quality.py --data eurlex57k icd10cm --budgets 5 10 30 60 120 --out build/quality

All methods run one after the other in this process, on the same rows and threads.  The clock counts
training alone (projection, tree and start included, compilation and evaluation not).  A method is scored on
a random sample of test rows at the first minibatch after each budget, and when it ends; a method that ended
keeps its last figures.  extremax is fitted again for each budget and interrupted, as by Ctrl-C, so that it
ends there: calibration takes part of the time.  PyTorch methods need ``pip install torch``; without it they
are left out.

extremax               ExtremeClassifier() with its defaults
paper                  solver="negative_sampling": per-row negatives from the tree (Eq. 6)
sampled NOISE M R      sampled softmax, M classes shared in a minibatch of 512, row-wise Adagrad, not
                       whitened, from zero; R is the step size for rows of mean square length one
softmax                full softmax, Adagrad 0.03 on features of unit variance, minibatches of 256 (up to
                       20,000 classes)
torch ...              the same two in PyTorch
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import benchmark_data as datasets
from extremax import ExtremeClassifier, calibrate, evaluate
from extremax.errors import TrainingInterruptedWarning
from extremax.examples import Examples
from extremax.model import Model
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Moment, Watcher
from timing import machine, make_parser, write_rows

try:
    import torch
except ImportError:
    torch = None

NAME = "quality"
Rows = np.ndarray
Point = tuple[float, float, float]  # seconds, accuracy, log-likelihood
Curve = list[Point]
_COMPILING_ROWS = 2000
_RESERVE_ROWS = 256  # rows that calibrate a model after Ctrl-C


def score(model: ExtremeClassifier | Model, X: Rows, y: Rows, seconds: float) -> Point:
    report = evaluate(model, X, y, ks=(1,))
    return seconds, report.accuracy[1], report.log_likelihood


class Score(Watcher):
    """Scores the model when a budget is used up, and ends training after the last."""

    def __init__(self, clf: ExtremeClassifier, X: Rows, y: Rows, budgets: Sequence[float]) -> None:
        self.clf, self.X, self.y, self.left, self.curve = clf, X, y, list(budgets), Curve()

    def at_start(self, moment: Moment) -> None:
        self.add(moment.model(), moment.record["seconds"])

    def during_epoch(self, moment: Moment) -> None:
        if self.is_due(moment.record):
            self.add(moment.model(), moment.record["seconds"])

    def __call__(self, record: dict[str, Any]) -> bool:
        if self.is_due(record):
            self.add(self.clf, record["seconds"])
        return not self.left

    def is_due(self, record: dict[str, Any]) -> bool:
        return bool(self.left) and record["seconds"] >= self.left[0]

    def add(self, model: ExtremeClassifier | Model, seconds: float) -> None:
        self.curve.append(score(model, self.X, self.y, seconds))
        while self.left and seconds >= self.left[0]:
            self.left.pop(0)


def compile_kernels(parameters: dict[str, Any], data: datasets.BenchmarkData) -> None:
    few = slice(0, _COMPILING_ROWS)
    ExtremeClassifier.with_solver(**{**parameters, "n_epochs": 1}).fit(data.X_train[few], data.y_train[few])


def run_extremax(
    parameters: dict[str, Any], data: datasets.BenchmarkData, X: Rows, y: Rows, budgets: list[float]
) -> tuple[Curve, ExtremeClassifier]:
    """Train once, and score the model on the way."""
    compile_kernels(parameters, data)
    clf = ExtremeClassifier.with_solver(**parameters)
    scores = Score(clf, X, y, budgets)
    clf.fit(data.X_train, data.y_train, callbacks=[scores])
    scores.add(clf, clf.history_[-1]["seconds"])  # with what comes after the epochs
    return scores.curve, clf


def run_default(
    parameters: dict[str, Any], data: datasets.BenchmarkData, X: Rows, y: Rows, budgets: list[float]
) -> tuple[Curve, ExtremeClassifier]:
    """Train once for each budget and press Ctrl-C: what `fit` leaves behind then."""
    compile_kernels(parameters, data)

    def fit_until(stop: float) -> tuple[Point, ExtremeClassifier]:
        clf, started = ExtremeClassifier.with_solver(**parameters), time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingInterruptedWarning)
            clf.fit(data.X_train, data.y_train, callbacks=[Stop(started + stop)])
        return score(clf, X, y, time.perf_counter() - started), clf

    end, clf = fit_until(np.inf)
    some = Examples(data.X_valid[:_RESERVE_ROWS], data.y_valid[:_RESERVE_ROWS].astype(np.int32))
    started = time.perf_counter()
    clf.model_.calibrated(some, n_threads=resolve_threads(clf.n_jobs))
    reserve = time.perf_counter() - started
    return [*(fit_until(budget - reserve)[0] for budget in budgets if budget < end[0]), end], clf


class Stop(Watcher):
    """Ctrl-C at a time."""

    def __init__(self, when: float) -> None:
        self.when = when

    def during_epoch(self, moment: Moment) -> None:
        self(moment.record)

    def __call__(self, record: dict[str, Any]) -> None:
        if time.perf_counter() >= self.when:
            raise KeyboardInterrupt


def run_torch(
    batches: Iterator[float], scores: Callable[[Any], Any], X: Any, y: Any, budgets: list[float]
) -> Curve:
    """Train by the steps of `batches` and score on the way; `scores` returns all scores of some rows."""
    curve, left, spent = Curve(), list(budgets), 0.0
    while left:
        started = time.perf_counter()
        next(batches)
        spent += time.perf_counter() - started
        if spent >= left[0]:
            while left and spent >= left[0]:
                left.pop(0)
            right, total = 0, 0.0
            for i in range(0, len(y), 500):
                s = scores(X[i : i + 500])
                right += int((s.argmax(1) == y[i : i + 500]).sum())
                total += float(torch.log_softmax(s, 1).gather(1, y[i : i + 500, None]).sum())
            curve.append((spent, right / len(y), total / len(y)))
    return curve


def torch_rows(data: datasets.BenchmarkData, X: Rows, y: Rows) -> tuple[Any, ...]:
    scale = np.float32(1.0 / np.sqrt(np.mean(np.sum(np.square(data.X_train, dtype=np.float64), axis=1))))
    tensors = (data.X_train * scale, data.y_train.astype(np.int64), X * scale, y.astype(np.int64))
    return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in tensors)


def torch_softmax(data: datasets.BenchmarkData, X: Rows, y: Rows, budgets: list[float]) -> Curve:
    X_train, y_train, X_test, y_test = torch_rows(data, X, y)
    X_train, X_test = X_train * X_train.shape[1] ** 0.5, X_test * X_train.shape[1] ** 0.5
    layer = torch.nn.Linear(X_train.shape[1], data.n_classes)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.Adagrad(layer.parameters(), lr=0.03)

    def batches() -> Iterator[float]:
        torch.manual_seed(0)
        while True:
            for rows in torch.split(torch.randperm(len(y_train)), 256):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(layer(X_train[rows]), y_train[rows])
                loss.backward()
                optimizer.step()
                yield float(loss.detach())

    return run_torch(batches(), lambda x: layer(x).detach(), X_test, y_test, budgets)


def torch_sampled(
    data: datasets.BenchmarkData,
    X: Rows,
    y: Rows,
    budgets: list[float],
    exponent: float,
    n_shared: int,
    rate: float,
) -> Curve:
    X_train, y_train, X_test, y_test = torch_rows(data, X, y)
    n_classes, n_features = data.n_classes, X_train.shape[1]
    W, b = torch.zeros(n_classes, n_features), torch.zeros(n_classes)
    squares, bias_squares = torch.zeros(n_classes, 1), torch.zeros(n_classes)
    q = torch.bincount(y_train, minlength=n_classes).double() ** exponent
    q /= q.sum()
    cumulative, log_q = q.cumsum(0), q.log().float()

    def batches() -> Iterator[float]:
        torch.manual_seed(0)
        while True:
            for rows in torch.split(torch.randperm(len(y_train)), 512):
                x, labels = X_train[rows], y_train[rows]
                drawn = torch.searchsorted(cumulative, torch.rand(n_shared, dtype=torch.float64)).clamp_(
                    max=n_classes - 1
                )
                logits = x @ W[drawn].T + (b[drawn] - log_q[drawn] - float(np.log(n_shared)))
                logits.masked_fill_(drawn == labels[:, None], -1e30)
                own = (x * W[labels]).sum(1, keepdim=True) + b[labels, None]
                p = torch.softmax(torch.cat([own, logits], 1), 1)
                p[:, 0] -= 1.0
                touched, place = torch.unique(torch.cat([labels, drawn]), return_inverse=True)
                g = torch.zeros(len(touched), n_features).index_add_(0, place[len(labels) :], p[:, 1:].T @ x)
                g.index_add_(0, place[: len(labels)], p[:, :1] * x)
                gb = torch.zeros(len(touched)).index_add_(0, place, torch.cat([p[:, 0], p[:, 1:].sum(0)]))
                squares[touched] += g.pow(2).mean(1, keepdim=True)
                bias_squares[touched] += gb.pow(2)
                W[touched] -= rate * g / (squares[touched].sqrt() + 1e-10)
                b[touched] -= rate * gb / (bias_squares[touched].sqrt() + 1e-10)
                yield float(p[0, 0])

    return run_torch(batches(), lambda x: x @ W.T + b, X_test, y_test, budgets)


def methods(
    data: datasets.BenchmarkData, sizes: list[int], rates: list[float], threads: int
) -> dict[str, dict[str, Any] | tuple[Any, ...]]:
    """Return parameters of extremax, or a function with its last arguments, by name of the method."""
    seed = {"random_state": 0, "n_jobs": threads}
    plain = {
        "solver": "minibatch_softmax",
        "precondition": False,
        "batch_size": 512,
        "n_epochs": 1000,
        **seed,
    }
    found: dict[str, dict[str, Any] | tuple[Any, ...]] = {
        "extremax": seed,
        "paper": {"solver": "negative_sampling", **seed},
    }
    exponents = {"uniform": 0.0, "frequency": 1.0, "frequency^0.75": 0.75}
    for (name, exponent), size, rate in itertools.product(exponents.items(), sizes, rates):
        noise = {"noise": "frequency", "noise_exponent": exponent, "learning_rate": rate}
        found[f"sampled {name} {size} {rate:g}"] = {**plain, **noise, "n_shared": size}
        found[f"torch sampled {name} {size} {rate:g}"] = (torch_sampled, exponent, size, rate)
    if data.n_classes <= 20_000:
        rate = 0.03 * data.X_train.shape[1] ** 0.5  # rows have mean square length one inside
        full = {
            "solver": "minibatch_softmax",
            "n_shared": None,
            "optimizer": "adagrad",
            "learning_rate": rate,
            "batch_size": 256,
        }
        found["softmax"] = {**plain, **full}
        found["torch softmax"] = (torch_softmax,)
    return found


def at(curve: Curve, budget: float) -> tuple[float, float] | None:
    """Return the figures at a budget: of the last point that is no more than a minibatch behind it."""
    usable = [point for point in curve if point[0] <= budget * 1.02 + 0.5]
    return usable[-1][1:] if usable else None


def calibration_errors(
    clf: ExtremeClassifier, data: datasets.BenchmarkData, X: Rows, y: Rows
) -> dict[str, float]:
    """Return the calibration error as fitted, and after `calibrate` on all validation rows."""
    before = evaluate(clf, X, y, ks=(1,)).calibration_error
    calibrate(clf, data.X_valid, data.y_valid)
    after = evaluate(clf, X, y, ks=(1,)).calibration_error
    return {"calibration error": before, "after calibrate()": after}


def compare(data: datasets.BenchmarkData, args: argparse.Namespace) -> tuple[list[str], dict[str, Curve]]:
    """Run all methods on one data set: lines of a Markdown table, and the curves."""
    rows = np.sort(np.random.default_rng(0).permutation(len(data.y_test))[: args.test_rows])
    X, y = data.X_test[rows], data.y_test[rows]
    sizes = f"{len(data.y_train):,} rows, {data.n_classes:,} classes, {data.X_train.shape[1]} features"
    lines = [f"## {data.name}: {sizes}", ""]
    lines.append("| method | " + " | ".join(f"{b:g} s" for b in args.budgets) + " | end |")
    lines.append("|---" * (len(args.budgets) + 2) + "|")
    print("\n".join(lines), flush=True)
    curves: dict[str, Curve] = {}
    for method, settings in methods(data, args.sizes, args.rates, args.threads).items():
        wanted = args.methods
        if wanted and not any(part == method or part in method.split() for part in wanted):
            continue
        errors: dict[str, float] = {}
        if isinstance(settings, tuple):
            if torch is None:
                continue
            curve = settings[0](data, X, y, args.budgets, *settings[1:])
        else:
            train = run_default if method == "extremax" else run_extremax
            curve, clf = train(settings, data, X, y, args.budgets)
            if method == "extremax":
                errors = calibration_errors(clf, data, X, y)
        curves[method] = curve
        cells = [at(curve, budget) for budget in args.budgets]
        shown = " | ".join("-" if c is None else f"{c[0]:.1%} / {c[1]:.2f}" for c in cells)
        seconds, accuracy, log_likelihood = curve[-1]
        note = "".join(f", {name} {value:.3f}" for name, value in errors.items())
        end = f"{accuracy:.1%} / {log_likelihood:.3f} after {seconds:.1f} s{note}"
        lines.append(f"| {method} | {shown} | {end} |")
        print(lines[-1], flush=True)
        row = {"seconds": seconds, "accuracy": accuracy, "log-likelihood": log_likelihood, **errors}
        write_rows(NAME, [{"case": f"{data.name}, {method}", **row}], show=False)
    return [*lines, ""], curves


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "icd10cm", "npm-owner-124k"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[5, 10, 30, 60, 120])
    parser.add_argument("--methods", nargs="+", help="only those whose name contains one of these")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.6])
    parser.add_argument("--test-rows", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="name of the Markdown, JSON and PNG files to write")
    args = parser.parse_args(argv)
    if args.tiny:
        args.data, args.budgets, args.sizes, args.rates = ["planted"], [0.02], [16], [0.1]
    print(machine())
    before = None if torch is None else torch.get_num_threads()
    text: list[str] = []
    curves: dict[str, dict[str, Curve]] = {}
    try:
        if torch is not None:
            torch.set_num_threads(args.threads)
        for data in datasets.load_available(args.data):
            lines, curves[data.name] = compare(data, args)
            text += lines
    finally:
        if before is not None:
            torch.set_num_threads(before)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.with_suffix(".json").write_text(json.dumps(curves, indent=1))
        args.out.with_suffix(".tables.md").write_text("\n".join(text))
        draw(curves, args.out.with_suffix(".png"))


def draw(curves: dict[str, dict[str, Curve]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        2, len(curves), figsize=(4.6 * len(curves), 6.4), squeeze=False, layout="constrained"
    )
    colours = {"extremax": "#009E73", "paper": "#0072B2", "softmax": "#000000", "torch softmax": "#7F7F7F"}
    rest = ["#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#8C510A"]
    for column, (name, methods_of) in enumerate(curves.items()):
        for method, curve in methods_of.items():
            colour = colours.setdefault(method, rest[len(colours) % len(rest)])
            seconds, accuracy, log_likelihood = zip(*curve, strict=True)
            style = {
                "color": colour,
                "linestyle": "--" if method.startswith("torch") else "-",
                "marker": "o",
                "markersize": 3,
            }
            axes[0, column].plot(seconds, [100 * a for a in accuracy], label=method, **style)
            axes[1, column].plot(seconds, log_likelihood, **style)
        axes[0, column].set_title(name)
        axes[1, column].set_xlabel("training seconds")
        for row in (0, 1):
            axes[row, column].set_xscale("log")
            axes[row, column].grid(alpha=0.3)
    axes[0, 0].set_ylabel("test accuracy (%)")
    axes[1, 0].set_ylabel("test log-likelihood (nats)")
    handles = {}
    for axis in axes[0]:
        handles |= dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
