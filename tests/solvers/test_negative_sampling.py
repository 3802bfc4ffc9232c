"""Training with negatives for each row: epochs against a replay in float64, and what must not change them."""

from __future__ import annotations

import functools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import in_turn, pairwise
from extremax import ExtremeClassifier
from extremax.examples import Examples
from extremax.params import OPTIMIZERS
from extremax.solvers import NegativeSampling
from extremax.solvers.order import epoch_seed, shuffled_windows
from extremax.solvers.registry import SOLVERS
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise
from extremax.tuned import DEFAULTS, replace_numbers
from planted import FEW_CLASSES, FEW_FEATURES, few_classes, stored
from scorers import FirstColumns
from trainers import SAMPLING, Progress, assert_same_bits, run_by_rows

STORAGES = ["dense", "csr", "memmap"]
LOSSES = [name for name in reference.LOSSES if name in SOLVERS]
# 50 rows take four windows of 16, in chunks of 8, and the last chunk is short.
WINDOWS = replace_numbers(DEFAULTS, order={"chunk_rows": 8, "window_bytes": 16 * 4 * FEW_FEATURES})
# A look at progress and keyboard after every minibatch, not after a hundred thousand pairs.
LOOKS = replace_numbers(WINDOWS, rows={"progress_pairs": 1})


@functools.cache
def make_noise(kind):
    X, y = few_classes()
    if kind == "uniform":
        return UniformNoise(FEW_CLASSES)
    if kind == "frequency":
        return FrequencyNoise(np.bincount(y, minlength=FEW_CLASSES))
    tree = TreeNoise(LabelTree.fit(X[:, :2], y, n_classes=FEW_CLASSES))
    return tree if kind == "tree" else MixtureNoise(tree, make_noise("frequency"), weight=0.6)


def examples(n_rows=50, storage="dense", weight=None, folder=None):
    X, y = few_classes(n_rows)
    weight = None if weight is None else np.asarray(weight, np.float32)
    return Examples(stored(X, storage, folder), y, weight=weight)


def start(data=None, kind="frequency", noise=None, **options):
    """A trainer on planted rows; the label tree sees their first two features."""
    data = examples() if data is None else data
    return run_by_rows(data, noise or make_noise(kind), projection=FirstColumns(2), **options)


def trained(storage="dense", *, kind="tree", n_rows=50, epochs=2, weight=None, folder=None, **options):
    return start(examples(n_rows, storage, weight, folder), kind, **options).epochs(epochs)


# -- epochs against a replay


def replay(run, epochs, rate, max_batches=None):
    """The same epochs in float64, gradients by central differences; order and draws are the library's."""
    config, data, noise = run.trainer.config, run.prepared.data, run.state.noise
    solver, seed, Z = config.solver, run.trainer.context.seed, run.prepared.Z
    arrays = tuple(a.astype(np.float64) for a in run.arrays)
    X = data.dense().X
    means, done = [], 0
    for epoch in range(epochs):
        losses = 0.0
        windows = shuffled_windows(data.n_pairs, 4 * FEW_FEATURES, seed, epoch, config.numbers.order)
        for number, rows in enumerate(windows):
            negatives, drawn = noise.sample(Z[rows], solver.n_negatives, epoch_seed(seed, epoch, number))
            labels = np.column_stack([data.y[rows], negatives])
            log_noise = np.column_stack([noise.log_prob(Z, data.y)[rows], drawn]).astype(np.float64)
            log_base = log_noise if solver.adds_log_noise else np.zeros_like(log_noise)
            for first in range(0, len(rows), solver.batch_size):
                cut = slice(first, first + solver.batch_size)
                batch = rows[cut], labels[cut], log_base[cut], log_noise[cut], data.pair_weight[rows[cut]]
                sizes = run.state.feature_scale, rate, solver.score_penalty
                step = reference.minibatch_step(solver.optimizer, solver.name, X, *batch, arrays, *sizes)
                losses += step.sum()
                done += 1
                if done == max_batches:
                    return arrays, means
        means.append(losses / data.pair_weight.sum(dtype=np.float64))
    return arrays, means


@pytest.mark.small
@pytest.mark.reference
@in_turn(solver=LOSSES, optimizer=OPTIMIZERS)
def test_epochs_match_reference(solver, optimizer):
    data = examples(weight=np.random.default_rng(1).uniform(0.2, 2.0, 50))
    # windows of up to 16 rows: batches of 6, 6 and 4
    run = start(data, solver=solver, optimizer=optimizer, batch_size=6, numbers=WINDOWS)
    expected, expected_losses = replay(run, epochs=2, rate=0.2)
    run.epochs(2)
    assert run.state.n_epochs == 2
    np.testing.assert_allclose(run.losses, expected_losses, rtol=1e-5)
    for ours, theirs in zip(run.arrays, expected, strict=True):
        # Reciprocal roots good to 6e-6 and float32 scores, over 17 steps that feed back into each other.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=5e-5)


@pytest.mark.reference
@in_turn(kind=["uniform", "tree", "mixture"], storage=STORAGES)
def test_epochs_with_any_noise_and_storage_match_reference(kind, storage, tmp_path):
    run = start(examples(storage=storage, folder=tmp_path), kind)
    expected, _ = replay(run, epochs=1, rate=0.2)
    run.epoch()
    for ours, theirs in zip(run.arrays, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=5e-5)  # as above


@pytest.mark.reference
@pytest.mark.parametrize("batch_size", [1, 7, 50, 1000])
def test_any_batch_size_matches_reference(batch_size):
    run = start(optimizer="sgd", batch_size=batch_size)
    expected, expected_losses = replay(run, epochs=1, rate=0.05)
    np.testing.assert_allclose(run.epoch(0.05), expected_losses[0], rtol=1e-5)
    np.testing.assert_allclose(run.weights, expected[0], atol=1e-5)  # float32
    np.testing.assert_allclose(run.biases, expected[1], atol=1e-5)


def test_training_lowers_the_loss():
    run = start(kind="tree", score_penalty=0.0).epochs(20)
    # the loss of a model that cannot tell data from noise
    assert np.mean(run.losses[-5:]) < 2.0 * np.log(2.0) - 0.1


# -- what must not matter


@pytest.mark.invariance
@pairwise(storage=STORAGES, optimizer=OPTIMIZERS, n_threads=[2, 3])
def test_thread_count_invariant(storage, optimizer, n_threads, tmp_path):
    options = {"optimizer": optimizer, "numbers": WINDOWS, "folder": tmp_path}
    one = trained(storage, n_threads=1, **options)
    assert_same_bits(trained(storage, n_threads=n_threads, **options), one)


@pytest.mark.invariance
@pairwise(storage=STORAGES, n_threads=[1, 3], looks=[(1, 18), (40, 10), (100, 8)])
def test_interval_between_two_looks_invariant(storage, n_threads, looks, tmp_path):
    pairs, fewest_looks = looks
    # One, two and five minibatches of 6 rows with 3 classes each, in four windows of 16, 16, 16 and 2 rows.
    whole = trained(storage, batch_size=6, folder=tmp_path, numbers=WINDOWS)
    numbers = replace_numbers(WINDOWS, rows={"progress_pairs": pairs})
    data = examples(storage=storage, folder=tmp_path)
    run, progress = start(data, "tree", batch_size=6, n_threads=n_threads, numbers=numbers), Progress()
    for _ in range(2):
        run.epoch(progress=progress)
    assert_same_bits(run, whole)
    assert len(progress.reports) >= fewest_looks


@pytest.mark.invariance
def test_small_minibatches_thread_count_invariant():
    # Thousands of waits of threads for one another, more threads than processors among them.
    settings = {"n_rows": 4000, "batch_size": 2, "epochs": 1, "kind": "frequency"}
    one = trained(n_threads=1, **settings)
    for n_threads in (2, 4):
        assert_same_bits(trained(n_threads=n_threads, **settings), one)


@pytest.mark.invariance
@in_turn(solver=SAMPLING, kind=["frequency", "mixture"])
def test_thread_count_of_solvers_and_noises_invariant(solver, kind):
    settings = {"solver": solver, "kind": kind, "n_rows": 9000, "batch_size": 1024, "epochs": 1}
    one = trained(n_threads=1, **settings)
    for n_threads in (2, 5):
        assert_same_bits(trained(n_threads=n_threads, **settings), one)


@pytest.mark.invariance
@in_turn(optimizer=OPTIMIZERS, numbers=[DEFAULTS, WINDOWS])
def test_memmap_invariant(optimizer, numbers, tmp_path):
    in_memory = trained("dense", optimizer=optimizer, numbers=numbers)
    on_disk = trained("memmap", optimizer=optimizer, numbers=numbers, folder=tmp_path)
    assert_same_bits(on_disk, in_memory)


@pytest.mark.small
@in_turn(optimizer=OPTIMIZERS, numbers=[DEFAULTS, WINDOWS])
def test_sparse_agrees_with_dense(optimizer, numbers):
    csr = trained("csr", optimizer=optimizer, numbers=numbers)
    dense = trained(optimizer=optimizer, numbers=numbers)
    for ours, theirs in zip(csr.arrays, dense.arrays, strict=True):
        # The same pairs in the same order; sums of five terms in another order feed back over 8 batches.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.invariance
@in_turn(kind=[sparse.csr_matrix, sparse.csr_array], index=[np.int32, np.int64])
def test_sparse_index_type_invariant(kind, index):
    data = examples()
    X = kind(data.X)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    run = start(data.with_features(X), "tree").epochs(1)
    assert_same_bits(run, trained("csr", epochs=1))


@pytest.mark.identity
def test_one_feature_has_one_kind_of_adagrad():
    # With a single column both optimizers keep one number per class: the same model.
    X, y = few_classes()
    data, noise = Examples(np.ascontiguousarray(X[:, :1]), y), make_noise("frequency")
    runs = [run_by_rows(data, noise, optimizer=name, scale=1.0) for name in ("adagrad", "adagrad_row")]
    assert_same_bits(runs[0].epochs(1), runs[1].epochs(1))
    assert runs[0].weights.any()


# -- what must matter


def test_another_seed_is_another_model():
    assert_same_bits(trained(seed=3), trained(seed=3))
    assert np.any(trained(seed=4).weights != trained(seed=3).weights)


def test_every_epoch_draws_anew():
    seen = []

    class Spy(UniformNoise):
        def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
            labels, log_prob = super().sample(Z, n_draws, seed, n_jobs=n_jobs)
            seen.append((Z.copy(), labels.copy()))
            return labels, log_prob

    start(noise=Spy(FEW_CLASSES)).epochs(2)
    (first_Z, first), (second_Z, second) = seen
    assert first.shape == second.shape == (50, 2)
    assert np.any(first_Z != second_Z)  # another order of the rows
    assert np.any(first != second)


ONE_STEP = {"optimizer": "sgd", "epochs": 1, "batch_size": 64}  # linear in the weights of the rows


@pytest.mark.identity
@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_weight_two_doubles_the_gradient(storage):
    # A factor of two is exact in floating point.
    single = trained(storage, weight=np.ones(50), **ONE_STEP)
    double = trained(storage, weight=np.full(50, 2.0), **ONE_STEP)
    assert single.weights.any()
    np.testing.assert_array_equal(double.weights, 2.0 * single.weights)
    np.testing.assert_array_equal(double.biases, 2.0 * single.biases)


@pytest.mark.identity
def test_rows_add_up():
    half = (np.arange(50) % 2 == 0).astype(np.float32)
    whole, even, odd = (trained(weight=w, **ONE_STEP) for w in (np.ones(50), half, 1.0 - half))
    # float32 sums of 50 steps
    np.testing.assert_allclose(even.weights + odd.weights, whole.weights, atol=1e-6)
    np.testing.assert_allclose(even.biases + odd.biases, whole.biases, atol=1e-6)
    assert np.any(even.weights != odd.weights)


@pytest.mark.identity
def test_loss_is_per_unit_of_weight():
    # one minibatch: the same scores
    losses = [start(examples(weight=np.full(50, w)), batch_size=64).epoch() for w in (1.0, 4.0)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.identity
@in_turn(storage=["dense", "csr"], optimizer=OPTIMIZERS)
def test_scaled_features_change_no_bit(storage, optimizer):
    # Features times 8, their scale divided by 8: powers of two are exact.
    data = examples(storage=storage)
    larger = data.with_features(data.X * np.float32(8.0))
    runs = [
        start(rows, optimizer=optimizer, scale=scale).epochs(1)
        for rows, scale in ((data, 0.5), (larger, 0.0625))
    ]
    assert runs[0].weights.any()
    assert_same_bits(*runs)


@pytest.mark.identity
@pytest.mark.parametrize("storage", STORAGES)
def test_pairs_that_share_rows_match_repeated_rows(storage, tmp_path):
    rng = np.random.default_rng(11)
    counts = rng.integers(0, 4, size=700)  # also rows without a pair
    rows = np.repeat(np.arange(700), counts)
    X = rng.normal(size=(700, 12)).astype(np.float32)
    y, weight = rng.integers(30, size=len(rows)).astype(np.int32), rng.random(len(rows)).astype(np.float32)
    noise = FrequencyNoise(np.bincount(y, minlength=30))
    # several windows, so that rows meet their pairs in different ones
    numbers = replace_numbers(DEFAULTS, order={"chunk_rows": 16, "window_bytes": 16 * 4 * 12 * 20})
    shared = Examples(stored(X, storage, tmp_path), y, rows, weight)
    repeated = Examples(stored(X[rows], storage, tmp_path), y, weight=weight)
    runs = [
        run_by_rows(data, noise, projection=FirstColumns(3), scale=1.0, n_threads=n, numbers=numbers).epochs(
            2
        )
        for data, n in ((shared, 1), (repeated, 1), (shared, 2))
    ]
    assert runs[0].weights.any()
    assert np.isfinite([run.losses for run in runs]).all()
    for other in runs[1:]:
        assert_same_bits(runs[0], other)


# -- numbers that pairs keep


def test_numbers_of_pairs_are_kept_for_the_same_pairs_alone():
    run = start(solver="augment_reduce").epochs(1)
    kept = run.state.pair_values
    assert (kept >= 0.0).all()
    run.epoch()
    assert run.state.pair_values is kept  # updated in place
    other = run.prepared.data.take(np.arange(50) > 0)
    run.prepared = run.trainer.prepare(run.state, other)
    run.epoch()
    assert len(run.state.pair_values) == 49
    moved = replace(run.prepared.data, y=run.prepared.data.y[::-1].copy())  # as many, but others
    before, run.prepared = run.state.pair_values, run.trainer.prepare(run.state, moved)
    run.epoch()
    assert run.state.pair_values is not before


# -- progress and interruption


def test_progress_counts_pairs_and_averages_losses():
    run, progress = start(batch_size=6, numbers=LOOKS), Progress()
    loss = run.epoch(progress=progress)
    done = [pairs for pairs, _ in progress.reports]
    assert done[-1] == 50
    assert all(0 < step <= 6 for step in np.diff([0, *done]))
    assert progress.reports[-1][1] == loss


@pytest.mark.parametrize("storage", STORAGES)
def test_interruption_leaves_the_model_of_the_last_minibatch(storage, tmp_path):
    data = examples(storage=storage, folder=tmp_path)
    run = start(data, optimizer="sgd", batch_size=6, numbers=LOOKS)
    expected, _ = replay(run, epochs=1, rate=0.2, max_batches=4)
    with pytest.raises(KeyboardInterrupt):
        run.epoch(progress=Progress(stop_after=4))
    assert run.state.n_epochs == 0  # the epoch is not counted
    np.testing.assert_allclose(run.weights, expected[0], atol=1e-5)  # float32
    np.testing.assert_allclose(run.biases, expected[1], atol=1e-5)
    run.epoch()  # and goes on
    assert run.state.n_epochs == 1


@pytest.mark.error
def test_state_without_noise_rejects():
    run = start()
    run.state.noise = None
    with pytest.raises(ValueError, match="no noise distribution"):
        run.trainer.prepare(run.state, run.prepared.data)


def test_memory_of_wide_sparse_rows_does_not_grow_with_the_square_of_their_width() -> None:
    n_features = 136_000
    X = sparse.random(60, n_features, density=1e-4, format="csr", random_state=0, dtype=np.float32)
    clf = ExtremeClassifier(NegativeSampling(tree_components=4), n_epochs=1, n_jobs=1, random_state=0)
    tracemalloc.start()
    clf.fit(X, np.arange(60) % 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400 * n_features * 4  # 200 MB; one matrix of the width squared is 69 GiB
    assert clf._fitted.state.whitening is None
