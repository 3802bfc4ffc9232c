"""Weights with which several linear models are added, chosen by the likelihood of held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from extremax.examples import Examples
from extremax.runtime.context import Context
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import run, split
from extremax.scores.base import Buffers
from extremax.scores.sparse import SparseWeights
from extremax.tuned import SparseConfig
from extremax.types import Float32, Float64, Int64

_ROWS_PER_TASK, _TASK_SCORES = 32, 1 << 20
_PENALTY = 1e-4  # of the squared distance from the first guess
EXPERTS = ("start", "linear", "bilinear", "dense", "centroid", "names")


def fit_mixture(
    experts: Mapping[str, SparseWeights], data: Examples, config: SparseConfig, context: Context
) -> dict[str, float]:
    """Choose a weight of at least zero for each model by the likelihood of `data`.

    The normaliser of a pair sums over the best classes of each model and over classes drawn from the others,
    with the weight of those that each stands for. Other labels of the same row are left out (the decoupled
    softmax of arXiv 2310.10636).
    """
    if data.n_rows > config.max_mix_rows:
        data = data.sample_rows(config.max_mix_rows)
    with one_blas_thread():
        phi, log_weight = _describe(list(experts.values()), data, config, context)
        guess = dict(zip(EXPERTS, config.default_mix, strict=False))
        theta = np.array([guess.get(name, 0.5) for name in experts])
        weight = data.pair_weight.astype(np.float64)
        objective = _Objective(phi, log_weight, weight, theta)
        found, bounds = _fit_bounded(objective, theta, list(experts), config)
        factor = _accuracy_weight(experts, data, config)
        if "linear" in experts and factor > 0.0:
            accuracy = factor, config.accuracy_slope
            rows = data.rows if data.label_edges is not None else None
            objective = _Objective(phi, log_weight, weight, theta, accuracy, rows)
            ranking = _rescaled(_maximise(objective, found, bounds), found, objective)
            # Weights of zero make every row a tie, half right to the smoothed accuracy: count the rows.
            if objective.fraction_right(ranking) >= objective.fraction_right(found):
                found = ranking
    return {name: float(value) for name, value in zip(experts, found, strict=True)}


def _accuracy_weight(experts: Mapping[str, SparseWeights], data: Examples, config: SparseConfig) -> float:
    """Return what a smoothed accuracy of one is worth, in nats."""
    if data.label_edges is not None:
        return config.accuracy_weight_several
    few = next(iter(experts.values())).n_classes <= config.few_classes
    return config.accuracy_weight if few else config.accuracy_weight_many


def _rescaled(theta: Float64, found: Float64, objective: _Objective) -> Float64:
    """Return `theta` times the factor of the largest likelihood; `found` tells its size."""
    total = float(theta.sum())
    if total == 0.0:
        return found
    plain = _Objective(objective.phi, objective.log_weight, objective.weight, found)
    unit = theta * (float(found.sum()) / total)
    best = minimize_scalar(lambda log: plain(np.exp(log) * unit)[0], bounds=(-2.0, 2.0), method="bounded")
    return np.asarray(np.exp(best.x) * unit, np.float64)


def _fit_bounded(
    objective: _Objective, theta: Float64, names: list[str], config: SparseConfig
) -> tuple[Float64, list[tuple[float, float | None]]]:
    """Return the best weights and their bounds: those of the config, unless they cost too much likelihood."""
    # Texts have the cosine, and a bilinear part that says little of a text it knows little of.
    limits: dict[str, tuple[float, float | None]] = {"bilinear": (0.0, config.max_bilinear_weight)}
    if "centroid" in names:
        limits = {"centroid": (config.min_centroid_weight, None)}
    free: list[tuple[float, float | None]] = [(0.0, None)] * len(names)
    bounds = [limits.get(name, (0.0, None)) for name in names]
    best = _maximise(objective, theta, free)
    if bounds == free:
        return best, free
    found = _maximise(objective, theta, bounds)
    if objective(found)[0] - objective(best)[0] > config.max_bound_loss:
        return best, free
    return found, bounds


def compare(
    experts: Sequence[SparseWeights], data: Examples, config: SparseConfig, context: Context
) -> list[float]:
    """Return the log-likelihood of `data` under each model, normalised as in `fit_mixture`."""
    if data.n_rows > config.max_mix_rows:
        data = data.sample_rows(config.max_mix_rows)
    weight = data.pair_weight.astype(np.float64)
    with one_blas_thread():
        phi, log_weight = _describe(experts, data, config, context)
    nothing, single = np.zeros(len(experts)), np.eye(len(experts))
    objective = _Objective(phi, log_weight, weight, nothing)
    return [-objective(choice)[0] + _PENALTY for choice in single]


def _describe(
    experts: Sequence[SparseWeights], data: Examples, config: SparseConfig, context: Context
) -> tuple[Float32, Float32]:
    """Return scores of each pair's candidates by each model, own class first, and their log-weights."""
    n_classes = experts[0].n_classes
    n_best, n_drawn = min(config.mix_candidates, n_classes), min(config.mix_drawn, n_classes)
    most_labels = int(data.labels_per_row.max(initial=1))
    n_slots = 1 + len(experts) * (n_best + most_labels) + n_drawn
    phi = np.zeros((data.n_pairs, n_slots, len(experts)), np.float32)
    log_weight = np.full((data.n_pairs, n_slots), -np.inf, np.float32)
    pair_rows = data.rows
    edges = np.searchsorted(pair_rows, np.arange(data.n_rows + 1))
    tasks = split(data.n_rows, max(1, min(_ROWS_PER_TASK, _TASK_SCORES // n_classes)))

    def work(i: int) -> None:
        first, last = tasks[i]
        tables = np.empty((len(experts), last - first, n_classes), np.float32)
        for expert, table in zip(experts, tables, strict=True):
            expert.open_block(data.X, first, last).products(0, n_classes, Buffers(), table)
            table += expert.biases
        for r in range(first, last):
            pairs, scores = np.arange(edges[r], edges[r + 1]), tables[:, r - first]
            if len(pairs) == 0:
                continue
            others, weight = _candidates(scores, data.y[pairs], n_best, n_drawn, (context.seed, 23, r))
            for pair in pairs:
                phi[pair, 0] = scores[:, data.y[pair]]
                phi[pair, 1 : 1 + len(others)] = scores[:, others].T
                log_weight[pair, 0] = 0.0
                log_weight[pair, 1 : 1 + len(others)] = weight

    run(work, len(tasks), context.n_threads)
    return phi, log_weight


def _candidates(
    scores: Float32, labels: np.ndarray, n_best: int, n_drawn: int, seed: tuple[int, ...]
) -> tuple[Int64, Float32]:
    """Return classes without `labels`: the best by each model, and some of the others; log-weights."""
    n_classes = scores.shape[1]
    size = min(n_best + len(labels), n_classes)
    best = np.unique(np.argpartition(-scores, size - 1, axis=1)[:, :size])
    best = np.setdiff1d(best, labels)
    left = n_classes - len(best) - len(np.unique(labels))
    if left <= 0:
        return best, np.zeros(len(best), np.float32)
    drawn = np.random.default_rng(seed).integers(0, n_classes, 2 * n_drawn)
    drawn = np.unique(drawn[~np.isin(drawn, best) & ~np.isin(drawn, labels)])[:n_drawn]
    weight = np.zeros(len(best) + len(drawn), np.float32)
    if len(drawn):
        weight[len(best) :] = np.log(left / len(drawn))
    return np.concatenate([best, drawn]), weight


class _Objective:
    """Log-likelihood of candidate 0, and a smoothed accuracy, as a function of the weights of the models.

    With the `rows` of the pairs, ascending, the accuracy is the mean of that of all labels and that of the
    best label of each row: precision at 1.
    """

    def __init__(
        self,
        phi: Float32,
        log_weight: Float32,
        weight: Float64,
        guess: Float64,
        accuracy: tuple[float, float] = (0.0, 1.0),
        rows: Int64 | None = None,
    ) -> None:
        self.starts = None if rows is None else np.flatnonzero(np.diff(rows, prepend=-1))
        self.phi, self.log_weight, self.weight, self.guess = phi, log_weight, weight / weight.sum(), guess
        self.flat, self.first = phi.reshape(-1, phi.shape[2]), self.weight @ phi[:, 0]
        self.accuracy, self.absent = accuracy, ~np.isfinite(log_weight)

    def __call__(self, theta: Float64) -> tuple[float, Float64]:
        """Return the loss and its gradient."""
        phi, weight = self.phi, self.weight
        scores = (self.flat @ theta.astype(np.float32)).reshape(phi.shape[:2])
        total = scores + self.log_weight
        peak = total.max(axis=1, keepdims=True)
        exp = np.exp(total - peak)
        mass = exp.sum(axis=1, keepdims=True)
        value = float(weight @ (total[:, 0] - peak[:, 0] - np.log(mass[:, 0])))
        exp *= (weight[:, None] / mass).astype(np.float32)
        gap = theta - self.guess
        gradient = self.first - exp.ravel() @ self.flat - 2.0 * _PENALTY * gap
        value -= _PENALTY * float(gap @ gap)
        factor, slope = self.accuracy
        if factor > 0.0 and phi.shape[1] > 1:
            # the probability of the label at a low temperature: smooth, where the best class is not
            scores[self.absent] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            sharp = np.exp(np.float32(slope) * scores)
            sharp /= sharp.sum(axis=1, keepdims=True)
            right = sharp[:, 0].astype(np.float64)
            if self.starts is not None:  # as much for the best label of each row as for all of them
                best = np.maximum.reduceat(right, self.starts)
                is_best = right == np.repeat(best, np.diff(self.starts, append=len(right)))
                weight = 0.5 * (weight + is_best / is_best.sum())
            change = factor * slope * weight * right
            value += factor * float(weight @ right)
            sharp *= change.astype(np.float32)[:, None]
            gradient = gradient + change @ phi[:, 0] - sharp.ravel() @ self.flat
        return -value, -gradient

    def fraction_right(self, theta: Float64) -> float:
        """Return the weighted fraction of pairs whose class has a higher score than every other candidate."""
        scores = (self.flat @ theta.astype(np.float32)).reshape(self.phi.shape[:2])
        scores[self.absent] = -np.inf
        return float(self.weight @ (scores[:, 0] > scores[:, 1:].max(axis=1, initial=-np.inf)))


def _maximise(objective: _Objective, theta: Float64, bounds: Sequence[tuple[float, float | None]]) -> Float64:
    options = {"ftol": 1e-12, "gtol": 1e-7}
    found = minimize(objective, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return np.asarray(found.x, np.float64)
