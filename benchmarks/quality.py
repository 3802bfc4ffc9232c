"""Test accuracy and log-likelihood against training seconds: the default classifier beside what else one
could do.

    python benchmarks/quality.py --data eurlex57k icd10cm npm-owner-124k --budgets 5 10 30 60 120 --out
    docs/results/quality

All methods run one after the other in this process, on the same rows and threads. The clock counts training
alone (projection, tree and start included, compilation and evaluation not). A method is scored on a random
sample of test rows at the first minibatch after each budget, and when it ends; a method that ended keeps its
last figures. extremax is fitted anew for each budget and interrupted, as by Ctrl-C, so that it ends there:
setting the probabilities right takes part of the time. PyTorch rows need ``pip install torch``; without it
they are left out.

extremax               ExtremeClassifier() with nothing set
paper                  objective="negative_sampling": per-row negatives from the tree (Eq. 6)
sampled NOISE M R      sampled softmax, M classes shared in a minibatch of 512, row-wise Adagrad, not whitened, from zero;
                       R is the step size for rows of mean square length one
softmax                full softmax, Adagrad 0.03 on features of unit variance, minibatches of 256 (up to 20,000 classes)
torch ...              the same two in PyTorch
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import datasets
from extremax import ExtremeClassifier, calibrate
from extremax.metrics import expected_calibration_error
from extremax.training.loop import Watcher

try:
    import torch
except ImportError:
    torch = None

Curve = list[tuple[float, float, float]]  # seconds, accuracy, log-likelihood


class Score(Watcher):
    """Scores the model when a budget is used up, and stops it after the last."""

    def __init__(self, clf: ExtremeClassifier, X: np.ndarray, y: np.ndarray, budgets: list[float]) -> None:
        self.clf, self.X, self.y, self.left, self.curve = clf, X, y, list(budgets), Curve()

    def wants(self, record: dict) -> bool:
        return bool(self.left) and record["seconds"] >= self.left[0]

    def look(self, record: dict) -> None:
        figures = self.clf.model_.evaluate(self.X, self.y)
        self.curve.append((record["seconds"], figures.accuracy, figures.log_likelihood))
        while self.left and record["seconds"] >= self.left[0]:
            self.left.pop(0)

    def at_start(self, record: dict) -> None:
        self.look(record)

    def during_epoch(self, record: dict) -> None:
        self.look(record)

    def __call__(self, record: dict) -> bool:
        if self.wants(record) or record["epoch"] == self.clf.choices_["n_epochs"]:
            self.look(record)
        return not self.left


def run_extremax(
    parameters: dict, data: datasets.BenchmarkData, X, y, budgets: list[float]
) -> tuple[Curve, ExtremeClassifier]:
    few = slice(0, 2000)
    ExtremeClassifier(**{**parameters, "n_epochs": 1}).fit(data.X_train[few], data.y_train[few])  # compiles
    clf = ExtremeClassifier(**parameters)
    score = Score(clf, X, y, budgets)
    clf.fit(data.X_train, data.y_train, callbacks=[score])
    score.look(clf.history_[-1])  # with what comes after the epochs
    return score.curve, clf


def run_default(
    parameters: dict, data: datasets.BenchmarkData, X, y, budgets: list[float]
) -> tuple[Curve, ExtremeClassifier]:
    """The default as a user meets it who stops it after a time: what `fit` leaves behind then."""
    few = slice(0, 2000)
    ExtremeClassifier(**{**parameters, "n_epochs": 1}).fit(data.X_train[few], data.y_train[few])  # compiles

    def fitted(stop: float) -> tuple[tuple[float, float, float], ExtremeClassifier]:
        clf, started = ExtremeClassifier(**parameters), time.perf_counter()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Training was interrupted")
            clf.fit(data.X_train, data.y_train, callbacks=[Stop(started + stop)])
        seconds = time.perf_counter() - started
        figures = clf.model_.evaluate(X, y)
        return (seconds, figures.accuracy, figures.log_likelihood), clf

    end, clf = fitted(np.inf)
    some = data.X_valid[:256], data.y_valid[:256].astype(np.int32)
    kept, started = (clf.model_.temperature, clf.model_.floor), time.perf_counter()
    clf.model_.calibrate(*some)
    reserve = time.perf_counter() - started
    clf.model_.temperature, clf.model_.floor = kept
    return [*(fitted(budget - reserve)[0] for budget in budgets if budget < end[0]), end], clf


class Stop(Watcher):
    """Ctrl-C at a time."""

    def __init__(self, moment: float) -> None:
        self.moment = moment

    def wants(self, record: dict) -> bool:
        return time.perf_counter() >= self.moment

    def during_epoch(self, record: dict) -> None:
        raise KeyboardInterrupt

    def __call__(self, record: dict) -> bool:
        return False


def run_torch(batches: Iterator[float], scores: Callable, X, y, budgets: list[float]) -> Curve:
    """Each item of `batches` is a training step; `scores` gives all scores of some rows."""
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


def torch_rows(data: datasets.BenchmarkData, X, y) -> tuple:
    scale = np.float32(1.0 / np.sqrt(np.mean(np.sum(np.square(data.X_train, dtype=np.float64), axis=1))))
    tensors = (data.X_train * scale, data.y_train.astype(np.int64), X * scale, y.astype(np.int64))
    return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in tensors)


def torch_softmax(data: datasets.BenchmarkData, X, y, budgets: list[float]) -> Curve:
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
    data: datasets.BenchmarkData, X, y, budgets: list[float], exponent: float, n_shared: int, rate: float
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
) -> dict[str, dict | tuple]:
    seed = {"random_state": 0, "n_jobs": threads}
    plain = {
        "objective": "shared_softmax",
        "precondition": False,
        "batch_size": 512,
        "n_epochs": 1000,
        **seed,
    }
    found: dict[str, dict | tuple] = {"extremax": seed, "paper": {"objective": "negative_sampling", **seed}}
    exponents = {"uniform": 0.0, "frequency": 1.0, "frequency^0.75": 0.75}
    for (name, exponent), size, rate in itertools.product(exponents.items(), sizes, rates):
        noise = {"noise": "frequency", "noise_exponent": exponent, "learning_rate": rate}
        found[f"sampled {name} {size} {rate:g}"] = {**plain, **noise, "n_shared": size}
        found[f"torch sampled {name} {size} {rate:g}"] = (torch_sampled, exponent, size, rate)
    if data.n_classes <= 20_000:
        rate = 0.03 * data.X_train.shape[1] ** 0.5  # rows have mean square length one inside
        full = {"objective": "softmax", "optimizer": "adagrad", "learning_rate": rate, "batch_size": 256}
        found["softmax"] = {**plain, **full}
        found["torch softmax"] = (torch_softmax,)
    return found


def at(curve: Curve, budget: float) -> tuple[float, float] | None:
    """Figures at a budget: of the last point that lies no more than a minibatch's look behind it."""
    usable = [point for point in curve if point[0] <= budget * 1.02 + 0.5]
    return usable[-1][1:] if usable else None


def calibration(clf: ExtremeClassifier, X, y) -> float:
    best, log_prob = clf.model_.top_k(X, 1)
    return expected_calibration_error(best[:, 0] == y, np.exp(log_prob[:, 0].astype(np.float64)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=["eurlex57k", "icd10cm", "npm-owner-124k"])
    parser.add_argument("--budgets", nargs="+", type=float, default=[5, 10, 30, 60, 120])
    parser.add_argument("--methods", nargs="+", help="only those whose name contains one of these")
    parser.add_argument("--sizes", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--rates", nargs="+", type=float, default=[0.1, 0.6])
    parser.add_argument("--test-rows", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="name of the Markdown, JSON and PNG files to write")
    arguments = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(arguments.threads)
    text, curves = [], {}
    for name in arguments.data:
        missing = datasets.available(name)
        if missing:
            print(missing)
            continue
        data = datasets.load(name)
        rows = np.sort(np.random.default_rng(0).permutation(len(data.y_test))[: arguments.test_rows])
        X, y = data.X_test[rows], data.y_test[rows]
        head = f"## {name}: {len(data.y_train):,} rows, {data.n_classes:,} classes, {data.X_train.shape[1]} features"
        lines = [head, "", "| method | " + " | ".join(f"{b:g} s" for b in arguments.budgets) + " | end |"]
        lines.append("|---" * (len(arguments.budgets) + 2) + "|")
        print("\n".join(lines), flush=True)
        curves[name] = {}
        for method, settings in methods(data, arguments.sizes, arguments.rates, arguments.threads).items():
            if arguments.methods and not any(
                part == method or part in method.split() for part in arguments.methods
            ):
                continue
            note = ""
            if isinstance(settings, tuple):
                if torch is None:
                    continue
                curve = settings[0](data, X, y, arguments.budgets, *settings[1:])
            else:
                curve, clf = (run_default if method == "extremax" else run_extremax)(
                    settings, data, X, y, arguments.budgets
                )
                if method == "extremax":
                    note = f", calibration error {calibration(clf, X, y):.3f}"
                    calibrate(clf, data.X_valid, data.y_valid)
                    note += f", {calibration(clf, X, y):.3f} after calibrate() on validation rows"
            curves[name][method] = curve
            cells = [at(curve, budget) for budget in arguments.budgets]
            shown = " | ".join("-" if c is None else f"{c[0]:.1%} / {c[1]:.2f}" for c in cells)
            end = curve[-1]
            lines.append(f"| {method} | {shown} | {end[1]:.1%} / {end[2]:.3f} after {end[0]:.1f} s{note} |")
            print(lines[-1], flush=True)
        text += [*lines, ""]
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.with_suffix(".json").write_text(json.dumps(curves, indent=1))
        arguments.out.with_suffix(".tables.md").write_text("\n".join(text))
        draw(curves, arguments.out.with_suffix(".png"))


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
