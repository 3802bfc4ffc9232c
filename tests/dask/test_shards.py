"""Shards of classes that are trained by themselves, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from coverings import in_turn
from extremax.classifier import ExtremeClassifier
from extremax.dask.shards import (
    DrawingRows,
    Plan,
    class_bounds,
    draw_pairs,
    leave_epoch,
    start_shard,
    train_shard,
)
from extremax.examples import Examples
from extremax.fit import problem_size
from extremax.runtime.context import Context
from extremax.solvers import NegativeSampling
from extremax.solvers.config import resolve
from extremax.solvers.negative_sampling import RowTrainer
from extremax.tuned import DEFAULTS, replace_numbers
from planted import around_means

SMALL_WINDOWS = replace_numbers(DEFAULTS, order={"window_bytes": 1 << 13, "chunk_rows": 16})


class _Silent:
    def check(self) -> None: ...

    def report(self, pairs_done: int, loss: float) -> None: ...


def make_problem(*, is_sparse: bool = False, uneven: bool = False):
    X, y = around_means(400, 37, 75, seed=3)
    if uneven:
        X = X * np.where(np.arange(75) == 0, 1e3, 1.0).astype("f4") + np.float32(5.0)
        X[7] *= 1e4
    if is_sparse:
        X = sparse.csr_array(np.where(np.random.default_rng(0).random(X.shape) < 0.5, X, 0.0).astype("f4"))
    return X, y


def train_both(X, y, n_shards, *, routed=False, weight=None, numbers=DEFAULTS, **parameters):
    """Train as one machine does, and by shards of classes and blocks of rows; return both tables."""
    solver = ExtremeClassifier.with_solver(**parameters).solver
    data = Examples(X, y.astype(np.int32), None, weight)
    n_classes = int(y.max()) + 1
    config = resolve(solver, problem_size(data, n_classes), n_epochs=2, numbers=numbers)
    context = Context(5, 2)
    trainer = RowTrainer(config, context)
    data = trainer.accept(data)
    state = trainer.start(data, n_classes)
    prepared = trainer.prepare(state, data)
    plan = Plan(
        config=config, seed=5, n_rows=len(y), n_features=X.shape[1], n_classes=n_classes,
        bounds=class_bounds(data.class_counts(n_classes), config, n_shards),
        whole_weight=float(data.pair_weight.sum(dtype=np.float64)),
        scale=state.feature_scale, scaling=state.scaling, routed=routed,
    )  # fmt: skip
    shards = [start_shard(plan, s, state.tables.biases.copy()) for s in range(n_shards)]
    cuts = [0, 101, 102, 260, len(y)]
    blocks = [
        DrawingRows(
            a, data.y[a:b], prepared.Z[a:b], prepared.positive_log_noise[a:b],
            None if weight is None else weight[a:b], data.X[a:b] if routed else None,
        )
        for a, b in pairwise(cuts)
    ]  # fmt: skip
    losses = []
    for epoch in range(2):
        losses.append(trainer.epoch(state, prepared, (config.solver.learning_rate,) * 2, _Silent()))
        n_windows = len(plan.order(epoch).windows)
        groups = [[w] for w in range(n_windows)] if routed else [list(range(n_windows))]
        for windows in groups:
            drawn = [draw_pairs(plan, block, state.noise, epoch, windows, 1) for block in blocks]
            shards = [
                train_shard(
                    plan, shard, windows, [pieces[s] for pieces in drawn],
                    None if routed else data.X, weight, 1 + s % 2,
                )
                for s, shard in enumerate(shards)
            ]  # fmt: skip
        mean = sum(shard.loss for shard in shards) / plan.whole_weight
        assert mean == pytest.approx(losses[-1], rel=1e-6)
    return state, shards


def assert_same_bits(state, shards):
    for name in ("weights", "biases", "squares", "bias_squares"):
        joined = np.concatenate([getattr(shard.tables, name) for shard in shards])
        assert joined.tobytes() == np.ascontiguousarray(getattr(state.tables, name)).tobytes(), name
    assert np.abs(state.tables.weights).max() > 0.0


@pytest.mark.invariance
@in_turn(noise=["uniform", "frequency", "tree", "mixture"], is_sparse=[False, False, True, True])
def test_shards_train_the_same_bits(noise, is_sparse) -> None:
    X, y = make_problem(is_sparse=is_sparse)
    routed = noise in ("frequency", "mixture")
    assert_same_bits(*train_both(X, y, 3, noise=noise, solver="negative_sampling", routed=routed))


@pytest.mark.invariance
@pytest.mark.parametrize(
    "parameters",
    [
        {"solver": "nce", "n_negatives": 3},
        {"solver": "negative_sampling", "penalized_scores": "raw", "noise": "uniform"},
        {"solver": "negative_sampling", "optimizer": "adagrad_row", "batch_size": 33},
        {"solver": "negative_sampling", "optimizer": "sgd", "learning_rate": 0.01, "noise": "uniform"},
        {"solver": "negative_sampling", "prior_variance": 0.5, "noise": "frequency"},
    ],
)
def test_parameters_of_shards(parameters) -> None:
    X, y = make_problem()
    weight = None
    if "prior_variance" in parameters:
        weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y)).astype(np.float32)
    state, shards = train_both(X, y, 4, numbers=SMALL_WINDOWS, weight=weight, **parameters)
    assert_same_bits(state, shards)


@pytest.mark.invariance
@pytest.mark.parametrize("routed", [False, True])
def test_standardised_columns_and_windows(routed) -> None:
    X, y = make_problem(uneven=True)
    state, shards = train_both(
        X, y, 3, routed=routed, numbers=SMALL_WINDOWS, solver="negative_sampling", noise="uniform"
    )
    assert state.scaling is not None
    assert_same_bits(state, shards)


@pytest.mark.identity
def test_a_shard_left_inside_an_epoch_has_weights_of_features() -> None:
    X, y = make_problem(uneven=True)
    state, shards = train_both(
        X, y, 2, routed=True, numbers=SMALL_WINDOWS, solver="negative_sampling", noise="uniform"
    )
    plan = Plan(
        config=state_config(state, X, y), seed=5, n_rows=len(y), n_features=X.shape[1], n_classes=37,
        bounds=(0, 20, 37), whole_weight=float(len(y)), scale=state.feature_scale, scaling=state.scaling,
    )  # fmt: skip
    training = shards[0].tables  # as if they were those of standardised rows
    left = leave_epoch(plan, shards[0])
    rows = state.scaling.rows(X[8:50])
    expected = rows @ training.weights.T + training.biases
    found = X[8:50].astype(np.float64) @ left.tables.weights.T * plan.scale + left.tables.biases
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    assert left.tables.squares.tobytes() == training.squares.tobytes()
    assert left.n_epochs == shards[0].n_epochs


@pytest.mark.invariance
def test_a_shard_trained_again_is_the_same() -> None:
    """A task that a worker began, and another repeats, must find its arguments as they were."""
    X, y = make_problem()
    state, _ = train_both(X, y, 2, solver="negative_sampling", noise="uniform")
    plan = Plan(
        config=replace(state_config(state, X, y)), seed=5, n_rows=len(y), n_features=X.shape[1], n_classes=37,
        bounds=(0, 20, 37), whole_weight=float(len(y)), scale=state.feature_scale,
    )  # fmt: skip
    rows = DrawingRows(
        0, y.astype(np.int32), np.empty((len(y), 0), np.float32), np.zeros(len(y), "f4"), None, None
    )
    begun = start_shard(plan, 0, None)
    pieces = [draw_pairs(plan, rows, state.noise, 0, [0], 1)[0]]
    first = train_shard(plan, begun, [0], pieces, X, None, 1)
    again = train_shard(plan, begun, [0], pieces, X, None, 2)
    assert first.tables.weights.tobytes() == again.tables.weights.tobytes()
    assert not begun.tables.weights.any()


def state_config(state, X, y):
    return resolve(NegativeSampling(noise="uniform"), problem_size(Examples(X, y), 37), n_epochs=2)


@pytest.mark.property
@pytest.mark.parametrize("n_shards", [1, 2, 7, 36, 37])
def test_every_shard_has_classes(n_shards) -> None:
    X, y = make_problem()
    config = state_config(None, X, y)
    for counts in (
        np.bincount(y, minlength=37),
        np.r_[np.zeros(36, int), 400],
        np.r_[400, np.zeros(36, int)],
    ):
        bounds = class_bounds(counts, config, n_shards)
        assert len(bounds) == n_shards + 1
        assert bounds[0] == 0
        assert bounds[-1] == 37
        assert (np.diff(bounds) > 0).all()
