"""The linear model: order of the rows, one epoch against a replay in float64, and all that must not change
its result.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax import linear
from extremax.linear import (
    OPTIMIZERS,
    EpochOptions,
    LinearModel,
    TrainingSet,
    aligned,
    epoch_seed,
    feature_scale,
    shuffled_windows,
    train_epoch,
)
from extremax.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise
from extremax.training.objectives import OBJECTIVES
from extremax.tree import LabelTree

N_CLASSES, N_FEATURES = 7, 5
STORAGES = ["dense", "csr", "memmap"]


@functools.cache
def rows_and_labels(n=50, seed=0):
    rng = np.random.default_rng(seed)
    y = np.minimum(rng.geometric(0.3, n) - 1, N_CLASSES - 1).astype(np.int32)
    X = rng.standard_normal((N_CLASSES, N_FEATURES))[y] + rng.standard_normal((n, N_FEATURES))
    X *= rng.random((n, N_FEATURES)) < 0.7
    return X.astype(np.float32), y


@functools.cache
def make_noise(kind):
    X, y = rows_and_labels()
    if kind == "uniform":
        return UniformNoise(N_CLASSES)
    if kind == "frequency":
        return FrequencyNoise(np.bincount(y, minlength=N_CLASSES))
    tree = TreeNoise(LabelTree.fit(X[:, :2], y, n_classes=N_CLASSES))
    return tree if kind == "tree" else MixtureNoise(tree, make_noise("frequency"), weight=0.6)


def training_set(noise, *, n=50, storage="dense", weight=None, folder=None):
    X, y = rows_and_labels(n)
    Z = np.ascontiguousarray(X[:, :2])
    if storage == "csr":
        stored = sparse.csr_matrix(X)
    elif storage == "memmap":
        np.save(folder / "X.npy", X)
        stored = np.load(folder / "X.npy", mmap_mode="r")
    else:
        stored = X
    weight = np.ones(n, np.float32) if weight is None else np.asarray(weight, np.float32)
    return TrainingSet(stored, y, Z, weight, noise.log_prob(Z, y))


def new_model(optimizer="adagrad", objective="negative_sampling", scale=0.4):
    first_bias = -np.log(N_CLASSES) if OBJECTIVES[objective].starts_at_noise else 0.0
    return LinearModel.zeros(
        N_CLASSES, N_FEATURES, optimizer=optimizer, feature_scale=scale, first_bias=first_bias
    )


def options(noise, objective="negative_sampling", **changes):
    values = {"n_negatives": 2, "score_penalty": 0.01, "batch_size": 16, "seed": 3, **changes}
    return EpochOptions(objective=OBJECTIVES[objective], noise=noise, **values)


def trained(
    storage="dense",
    *,
    optimizer="adagrad",
    objective="negative_sampling",
    kind="tree",
    n=50,
    epochs=2,
    **more,
):
    """A model after some epochs; `more` goes to the options, the model's scale and the training set."""
    folder, weight, scale = more.pop("folder", None), more.pop("weight", None), more.pop("scale", 0.4)
    noise, model = make_noise(kind), new_model(optimizer, objective, scale)
    data = training_set(noise, n=n, storage=storage, weight=weight, folder=folder)
    for _ in range(epochs):
        train_epoch(model, data, options(noise, objective, **more), learning_rate=0.2)
    return model


def arrays_of(model):
    return model.weights, model.biases, model.squares, model.bias_squares


def assert_same_bits(first, second):
    for a, b in zip(arrays_of(first), arrays_of(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def several_windows(monkeypatch):
    """Windows of 16 rows in chunks of 8: 50 rows take four of them, and the last chunk is short."""
    monkeypatch.setattr(linear, "_CHUNK_ROWS", 8)
    monkeypatch.setattr(linear, "_WINDOW_BYTES", 16 * 4 * N_FEATURES)


@pytest.fixture
def short_stretches(monkeypatch):
    """A look at progress and keyboard after every minibatch, not after a hundred thousand pairs."""
    monkeypatch.setattr(linear, "_STRETCH_PAIRS", 1)


# -- order of the rows
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.small
@pytest.mark.parametrize("n_rows", [0, 1, 7, 8, 9, 16, 17, 50, 64, 1000])
def test_windows_visit_every_row_once(several_windows, n_rows):
    windows = list(shuffled_windows(n_rows, 4 * N_FEATURES, 0, 0))
    assert len(windows) == max(1, -(-n_rows // 16))
    assert max(map(len, windows)) <= 16  # the memory that was promised
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(n_rows))


def test_windows_default_size_visit_every_row_once():
    n_rows, row_bytes = 20_000, 64 << 10  # 1.2 GiB if they were read: windows of 4,096 rows
    windows = list(shuffled_windows(n_rows, row_bytes, 0, 0))
    assert len(windows) == 5
    assert max(map(len, windows)) * row_bytes <= 256 << 20
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(n_rows))


@pytest.mark.parametrize("row_bytes", [0, 1 << 40])
def test_rows_of_any_size_make_windows(row_bytes):
    windows = list(shuffled_windows(1000, row_bytes, 0, 0))
    assert len(windows) == (1 if row_bytes == 0 else 4)  # a window has at least one chunk of 256 rows
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(1000))


def test_small_data_is_one_fully_shuffled_window():
    (rows,) = shuffled_windows(5000, 4 * 512, 0, 0)
    # A full shuffle: a row lands anywhere.  Mean distance of a uniform permutation is n/3; its standard error
    # here is under 20.
    assert abs(np.abs(rows - np.arange(5000)).mean() - 5000 / 3) < 100


def test_large_data_is_read_in_runs_but_trained_shuffled(several_windows):
    windows = list(shuffled_windows(1000, 4 * N_FEATURES, 0, 0))
    for rows in windows:
        assert set(np.bincount(rows // 8)) <= {0, 8}  # whole chunks
    # Rows of a window are shuffled over its two chunks (a window in order would change chunk once) ...
    assert np.mean([np.count_nonzero(np.diff(rows // 8)) for rows in windows]) > 4
    # ... and the chunks come from all over the data, 125 chunks long (neighbours would lie 1 apart, random
    # ones 42).
    assert np.mean([np.ptp(rows // 8) for rows in windows]) > 20


@pytest.mark.parametrize("n_rows", [40, 1000])
def test_order_differs_by_epoch_and_seed(several_windows, n_rows):
    def order(seed, epoch):
        return np.concatenate(list(shuffled_windows(n_rows, 4 * N_FEATURES, seed, epoch)))

    np.testing.assert_array_equal(order(1, 2), order(1, 2))
    for other in [(1, 3), (2, 2), (2, 1)]:
        assert np.mean(order(*other) == order(1, 2)) < 0.2


def test_epoch_seeds_are_all_different():
    seeds = {
        epoch_seed(seed, epoch, window) for seed in range(5) for epoch in range(5) for window in range(5)
    }
    assert len(seeds) == 125
    assert all(0 <= seed < 2**64 for seed in seeds)


# -- model and scale
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n_features", [1, 5, 512])
def test_zeros_allocates_what_it_says(optimizer, n_features):
    model = LinearModel.zeros(9, n_features, optimizer=optimizer, feature_scale=0.5, first_bias=-2.0)
    columns = {"adagrad": n_features, "adagrad_row": 1, "sgd": 0}[optimizer]
    assert model.weights.shape == (9, n_features)
    assert model.squares.shape == (9, columns)
    assert (model.n_classes, model.n_features, model.feature_scale, model.n_epochs) == (9, n_features, 0.5, 0)
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in arrays_of(model))
    assert sum(a.nbytes for a in arrays_of(model)) == LinearModel.bytes_needed(
        9, n_features, optimizer=optimizer
    )
    assert not model.weights.any()
    assert np.all(model.biases == -2.0)
    assert np.all(model.squares > 0.0)  # Adagrad divides by their root
    assert np.all(model.bias_squares > 0.0)


@pytest.mark.parametrize("shape", [(3, 5), (1,), (4, 512), (6, 0)])
def test_aligned_starts_on_a_cache_line(shape):
    for _ in range(5):
        array = aligned(shape, 1.5)
        assert array.shape == shape
        assert array.dtype == np.float32
        assert array.size == 0 or array.ctypes.data % 64 == 0
        assert np.all(array == 1.5)


@pytest.mark.parametrize("n", [1, 50, 9000])  # 9,000: several blocks
@pytest.mark.parametrize("storage", STORAGES)
def test_feature_scale_matches_reference(n, storage, tmp_path):
    X = training_set(make_noise("uniform"), n=n, storage=storage, folder=tmp_path).X
    dense = np.asarray(X.todense() if sparse.issparse(X) else X, np.float64)
    np.testing.assert_allclose(feature_scale(X), 1.0 / np.sqrt((dense**2).sum(axis=1).mean()), rtol=1e-6)


def test_feature_scale_of_zeros_is_one():
    assert feature_scale(np.zeros((3, 2), np.float32)) == 1.0
    assert feature_scale(sparse.csr_matrix((3, 2), dtype=np.float32)) == 1.0


@pytest.mark.parametrize("magnitude", [1e-12, 1e12])
def test_feature_scale_of_any_magnitude(magnitude):
    X = np.full((4, 9), magnitude, np.float32)
    np.testing.assert_allclose(feature_scale(X) * magnitude * 3.0, 1.0, rtol=1e-6)


# -- one epoch
# -----------------------------------------------------------------------------------------------------------------


def replay(optimizer, objective, data, opts, epochs, rate, scale=0.4, max_batches=None):
    """The same epochs in float64, gradients by central differences; the order of rows and the draws are
    the library's.
    """
    model = new_model(optimizer, objective)
    arrays = tuple(a.astype(np.float64) for a in arrays_of(model))
    X = np.asarray(data.X.todense()) if sparse.issparse(data.X) else data.X
    means, done = [], 0
    for epoch in range(epochs):
        losses = 0.0
        for number, rows in enumerate(shuffled_windows(len(data.y), 4 * N_FEATURES, opts.seed, epoch)):
            negatives, log_noise = opts.noise.sample(
                data.Z[rows], opts.n_negatives, epoch_seed(opts.seed, epoch, number)
            )
            labels = np.column_stack([data.y[rows], negatives])
            log_noise = np.column_stack([opts.noise.log_prob(data.Z, data.y)[rows], log_noise]).astype(
                np.float64
            )
            log_base = log_noise if opts.objective.removes_bias else np.zeros_like(log_noise)
            for start in range(0, len(rows), opts.batch_size):
                cut = slice(start, start + opts.batch_size)
                batch = rows[cut], labels[cut], log_base[cut], log_noise[cut], data.weight[rows[cut]]
                step = reference.minibatch_step(
                    optimizer, objective, X, *batch, arrays, scale, rate, opts.score_penalty
                )
                losses += step.sum()
                done += 1
                if done == max_batches:
                    return arrays, means
        means.append(losses / data.weight.sum(dtype=np.float64))
    return arrays, means


@pytest.mark.small
@pytest.mark.parametrize("objective", reference.LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_epochs_match_reference(objective, optimizer, several_windows):
    noise = make_noise("frequency")
    data = training_set(noise, weight=np.random.default_rng(1).uniform(0.2, 2.0, 50))
    opts = options(noise, objective, batch_size=6)  # windows of up to 16 rows: batches of 6, 6 and 4
    model = new_model(optimizer, objective)
    losses = [train_epoch(model, data, opts, learning_rate=0.2) for _ in range(2)]
    expected, expected_losses = replay(optimizer, objective, data, opts, epochs=2, rate=0.2)
    assert model.n_epochs == 2
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for ours, theirs in zip(arrays_of(model), expected, strict=True):
        # Reciprocal roots good to 6e-6 and float32 scores, over 17 steps that feed back into each other.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("kind", ["uniform", "tree", "mixture"])
@pytest.mark.parametrize("storage", STORAGES)
def test_epochs_with_any_noise_and_storage_match_reference(kind, storage, tmp_path):
    noise = make_noise(kind)
    data = training_set(noise, storage=storage, folder=tmp_path)
    opts, model = options(noise), new_model()
    train_epoch(model, data, opts, learning_rate=0.2)
    expected, _ = replay("adagrad", "negative_sampling", data, opts, epochs=1, rate=0.2)
    for ours, theirs in zip(arrays_of(model), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=5e-5)  # as above


@pytest.mark.parametrize("batch_size", [1, 7, 50, 1000])
def test_any_batch_size_matches_reference(batch_size):
    noise = make_noise("frequency")
    data, opts, model = training_set(noise), options(noise, batch_size=batch_size), new_model("sgd")
    loss = train_epoch(model, data, opts, learning_rate=0.05)
    expected, expected_losses = replay("sgd", "negative_sampling", data, opts, epochs=1, rate=0.05)
    np.testing.assert_allclose(loss, expected_losses[0], rtol=1e-5)
    np.testing.assert_allclose(model.weights, expected[0], atol=1e-5)  # float32
    np.testing.assert_allclose(model.biases, expected[1], atol=1e-5)


def test_training_lowers_the_loss():
    noise = make_noise("tree")
    data, opts, model = training_set(noise), options(noise, score_penalty=0.0), new_model()
    losses = [train_epoch(model, data, opts, learning_rate=0.2) for _ in range(20)]
    # the loss of a model that cannot tell data from noise
    assert np.mean(losses[-5:]) < 2.0 * np.log(2.0) - 0.1


# -- what must not matter
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("n_threads", [2, 3])
def test_thread_count_invariant(storage, optimizer, n_threads, several_windows, tmp_path):
    one = trained(storage, optimizer=optimizer, n_threads=1, folder=tmp_path)
    assert_same_bits(trained(storage, optimizer=optimizer, n_threads=n_threads, folder=tmp_path), one)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("pairs", [1, 40, 100])  # one, two and five minibatches of 6 rows with 3 classes each
def test_stretch_between_two_looks_invariant(
    storage, n_threads, pairs, several_windows, tmp_path, monkeypatch
):
    whole = trained(storage, batch_size=6, folder=tmp_path)
    calls = []
    monkeypatch.setattr(linear, "_STRETCH_PAIRS", pairs)
    run = linear.run_together
    monkeypatch.setattr(linear, "run_together", lambda task, n: calls.append(n) or run(task, n))
    assert_same_bits(trained(storage, batch_size=6, n_threads=n_threads, folder=tmp_path, epochs=2), whole)
    assert set(calls) == {n_threads}
    # four windows of 16, 16, 16 and 2 rows, or the like, twice
    assert len(calls) >= {1: 18, 40: 10, 100: 8}[pairs]


def test_small_minibatches_thread_count_invariant():
    # Thousands of waits of threads for one another, more threads than processors among them.
    settings = {"n": 4000, "batch_size": 2, "epochs": 1, "kind": "frequency"}
    one = trained(n_threads=1, **settings)
    for n_threads in (2, 4):
        assert_same_bits(trained(n_threads=n_threads, **settings), one)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", ["frequency", "mixture"])
def test_thread_count_of_objectives_and_noises_invariant(objective, kind):
    settings = {"objective": objective, "kind": kind, "n": 9000, "batch_size": 1024, "epochs": 1}
    one = trained(n_threads=1, **settings)
    for n_threads in (2, 5):
        assert_same_bits(trained(n_threads=n_threads, **settings), one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("windows", ["one", "several"])
def test_memmap_invariant(optimizer, windows, request, tmp_path):
    if windows == "several":
        request.getfixturevalue("several_windows")
    in_memory = trained("dense", optimizer=optimizer)
    assert_same_bits(trained("memmap", optimizer=optimizer, folder=tmp_path), in_memory)


def test_memmap_is_read_window_by_window(several_windows, tmp_path, monkeypatch):
    data = training_set(make_noise("uniform"), storage="memmap", folder=tmp_path)
    views = {"itself": data.X, "a view": data.X[:], "a plain array over it": np.asarray(data.X)}
    sizes = []
    read = linear.DenseWindows._read
    monkeypatch.setattr(
        linear.DenseWindows, "_read", lambda self, rows: sizes.append(len(rows)) or read(self, rows)
    )
    for X in views.values():
        sizes.clear()
        source = linear.DenseWindows(X)
        order = (linear.Window(rows, rows) for rows in shuffled_windows(50, source.row_bytes(), 0, 0))
        for (_, rows), features, local in source.windows(order):
            assert type(features) is np.ndarray
            assert len(features) == len(rows) <= 16
            np.testing.assert_array_equal(features[local], data.X[rows])
        assert sum(sizes) == 50
    sizes.clear()
    source = linear.DenseWindows(np.array(data.X))
    order = (linear.Window(rows, rows) for rows in shuffled_windows(50, 1, 0, 0))
    assert all(features is source.X for _, features, _ in source.windows(order))
    assert sizes == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("windows", ["one", "several"])
def test_sparse_agrees_with_dense(optimizer, windows, request):
    if windows == "several":
        request.getfixturevalue("several_windows")
    for ours, theirs in zip(
        arrays_of(trained("csr", optimizer=optimizer)), arrays_of(trained(optimizer=optimizer)), strict=True
    ):
        # The same pairs in the same order; sums of five terms in another order feed back over 8 batches.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_index_type_invariant(kind, index):
    noise, model = make_noise("tree"), new_model()
    data = training_set(noise)
    X = kind(data.X)
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    train_epoch(
        model,
        TrainingSet(X, data.y, data.Z, data.weight, data.positive_log_noise),
        options(noise),
        learning_rate=0.2,
    )
    assert_same_bits(model, trained("csr", epochs=1))


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row"])
def test_one_feature_has_one_kind_of_adagrad_identity(optimizer):
    # With a single column both optimisers keep one number per class: the same model.
    noise = make_noise("frequency")
    data = training_set(noise)
    one_column = TrainingSet(
        np.ascontiguousarray(data.X[:, :1]), data.y, data.Z, data.weight, data.positive_log_noise
    )
    models = [LinearModel.zeros(N_CLASSES, 1, optimizer=name) for name in ("adagrad", optimizer)]
    for model in models:
        train_epoch(model, one_column, options(noise), learning_rate=0.2)
    assert_same_bits(*models)


# -- what must matter
# ----------------------------------------------------------------------------------------------------------


def test_another_seed_is_another_model():
    assert_same_bits(trained(seed=3), trained(seed=3))
    assert np.any(trained(seed=4).weights != trained(seed=3).weights)


def test_every_epoch_draws_anew():
    noise, seen = make_noise("uniform"), []

    class Spy(UniformNoise):
        def sample(self, Z, n_draws=1, seed=0, *, n_jobs=None):
            labels, log_prob = super().sample(Z, n_draws, seed, n_jobs=n_jobs)
            seen.append((Z.copy(), labels.copy()))
            return labels, log_prob

    spy, model = Spy(N_CLASSES), new_model()
    data = training_set(noise)
    for _ in range(2):
        train_epoch(model, data, options(spy), learning_rate=0.2)
    (first_Z, first), (second_Z, second) = seen
    assert first.shape == second.shape == (50, 2)
    assert np.any(first_Z != second_Z)  # another order of the rows
    assert np.any(first != second)


@pytest.mark.parametrize("storage", ["dense", "csr"])
def test_weight_two_doubles_the_gradient_identity(storage):
    # One minibatch of plain gradient steps: the change is linear in the weights.  A factor of two is exact in
    # floating point.
    settings = {"optimizer": "sgd", "epochs": 1, "batch_size": 64}
    single = trained(storage, weight=np.ones(50), **settings)
    double = trained(storage, weight=np.full(50, 2.0), **settings)
    assert single.weights.any()
    np.testing.assert_array_equal(double.weights, 2.0 * single.weights)
    np.testing.assert_array_equal(double.biases, 2.0 * single.biases)


def test_rows_add_up_identity():
    # Plain gradient steps from one minibatch: a model trained on all rows is the sum of those trained on two
    # halves.
    settings = {"optimizer": "sgd", "epochs": 1, "batch_size": 64}
    half = (np.arange(50) % 2 == 0).astype(np.float32)
    whole, even, odd = (trained(weight=w, **settings) for w in (np.ones(50), half, 1.0 - half))
    # float32 sums of 50 steps
    np.testing.assert_allclose(even.weights + odd.weights, whole.weights, atol=1e-6)
    np.testing.assert_allclose(even.biases + odd.biases, whole.biases, atol=1e-6)
    assert np.any(even.weights != odd.weights)


def test_loss_is_per_unit_of_weight_identity():
    noise = make_noise("frequency")
    losses = []
    for weight in (1.0, 4.0):
        data = training_set(noise, weight=np.full(50, weight))
        losses.append(train_epoch(new_model(), data, options(noise, batch_size=64), learning_rate=0.2))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)  # one minibatch: the same scores


@pytest.mark.parametrize("storage", ["dense", "csr"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_scaled_features_identity(storage, optimizer):
    # Features times 8, their scale divided by 8: powers of two are exact, so not a bit of the model changes.
    noise = make_noise("frequency")
    data = training_set(noise, storage=storage)
    larger = TrainingSet(data.X * np.float32(8.0), data.y, data.Z, data.weight, data.positive_log_noise)
    models = [new_model(optimizer, scale=0.5), new_model(optimizer, scale=0.0625)]
    for model, rows in zip(models, (data, larger), strict=True):
        train_epoch(model, rows, options(noise), learning_rate=0.2)
    assert models[0].weights.any()
    assert_same_bits(*models)


# -- progress and interruption
# -------------------------------------------------------------------------------------------------


def test_progress_counts_rows_and_averages_losses(several_windows, short_stretches):
    noise, calls = make_noise("frequency"), []
    data = training_set(noise)
    loss = train_epoch(
        new_model(),
        data,
        options(noise, batch_size=6),
        learning_rate=0.2,
        progress=lambda rows, mean: calls.append((rows, mean)),
    )
    rows = [r for r, _ in calls]
    assert rows[-1] == 50
    assert all(0 < step <= 6 for step in np.diff([0, *rows]))
    assert calls[-1][1] == loss


@pytest.mark.parametrize("storage", STORAGES)
def test_interruption_leaves_the_model_of_the_last_minibatch(
    storage, several_windows, short_stretches, tmp_path
):
    noise = make_noise("frequency")
    data = training_set(noise, storage=storage, folder=tmp_path)
    opts, model = options(noise, batch_size=6), new_model("sgd")

    def stop_after_four(rows, mean):
        calls.append(rows)
        if len(calls) == 4:
            raise KeyboardInterrupt

    calls = []
    with pytest.raises(KeyboardInterrupt):
        train_epoch(model, data, opts, learning_rate=0.2, progress=stop_after_four)
    assert model.n_epochs == 0  # the epoch is not counted
    expected, _ = replay("sgd", "negative_sampling", data, opts, epochs=1, rate=0.2, max_batches=4)
    np.testing.assert_allclose(model.weights, expected[0], atol=1e-5)  # float32
    np.testing.assert_allclose(model.biases, expected[1], atol=1e-5)
    train_epoch(model, data, opts, learning_rate=0.2)  # and goes on
    assert model.n_epochs == 1


@pytest.mark.parametrize("storage", ["dense", "csr", "disk"])
def test_pairs_that_share_rows_match_repeated_rows_identity(storage, tmp_path, monkeypatch):
    rng = np.random.default_rng(11)
    counts = rng.integers(0, 4, size=700)  # also rows without a pair
    rows = np.repeat(np.arange(700), counts)
    X, Z = rng.normal(size=(700, 12)).astype(np.float32), rng.normal(size=(700, 3)).astype(np.float32)
    y, weight = rng.integers(30, size=len(rows)).astype(np.int32), rng.random(len(rows)).astype(np.float32)
    noise = FrequencyNoise(np.bincount(y, minlength=30))
    # several windows, so that rows meet their pairs in different ones
    monkeypatch.setattr(linear, "_CHUNK_ROWS", 16)
    monkeypatch.setattr(linear, "_WINDOW_BYTES", 16 * 4 * 12 * 20)

    def stored(array, name):
        if storage == "csr":
            return sparse.csr_array(array)
        if storage == "disk":
            array.tofile(tmp_path / name)
            return np.memmap(tmp_path / name, np.float32, "r", shape=array.shape)
        return array

    log_noise = noise.log_prob(Z[rows], y)
    shared = TrainingSet(stored(X, "shared"), y, Z, weight, log_noise, rows)
    repeated = TrainingSet(stored(X[rows], "repeated"), y, Z[rows], weight, log_noise)
    models = [LinearModel.zeros(30, 12) for _ in range(3)]
    for model, data, threads in zip(models, (shared, repeated, shared), (1, 1, 2), strict=True):
        for _ in range(2):
            loss = train_epoch(model, data, options(noise, n_threads=threads), learning_rate=0.2)
            assert np.isfinite(loss)
    assert models[0].weights.any()
    for other in models[1:]:
        np.testing.assert_array_equal(models[0].weights, other.weights)
        np.testing.assert_array_equal(models[0].biases, other.biases)


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array])
def test_feature_scale_of_some_rows_identity(store):
    X = np.random.default_rng(3).normal(size=(5000, 4)).astype(np.float32)
    used = np.arange(5000) % 3 > 0
    assert linear.feature_scale(store(X), used) == pytest.approx(
        linear.feature_scale(store(X[used])), rel=1e-12
    )
    assert linear.feature_scale(store(X), np.ones(5000, bool)) == linear.feature_scale(store(X))
