"""Softmax with classes shared in a minibatch: against the softmax written out, on all classes and in
expectation.
"""

from __future__ import annotations

import signal

import numpy as np
import pytest

from extremax import ExtremeClassifier, LabelTree, load_model, shared, whitening
from extremax.features.whitening import Whitening
from extremax.kernels.batch_softmax import draw_shared
from extremax.kernels.compile import JIT_DISABLED
from extremax.labelled_rows import LabelledRows
from extremax.linear import LinearModel
from extremax.shared import ClassSets, SharedSet, inclusion, route, train_shared_epoch

pytestmark = pytest.mark.small
compiled = pytest.mark.skipif(JIT_DISABLED, reason="takes minutes without compilation")


def softmax(scores):
    scores = scores - scores.max(axis=1, keepdims=True)
    e = np.exp(scores)
    return e / e.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(12, size=300).astype(np.int32)
    X = (rng.normal(size=(12, 5))[y] + 0.4 * rng.normal(size=(300, 5))).astype(np.float32)
    return X, y


def shared_set(
    X, y, sets, *, batch_size, cells=None, threads=1, weight=None, white=None, rows=None, limit=np.inf
):
    weight = np.ones(len(y), np.float32) if weight is None else weight
    white = Whitening.none(X.shape[1]) if white is None else white
    return SharedSet(X, y, weight, rows, sets, cells, white, 1.0, batch_size, 7, threads, limit)


def start(n_classes, n_features, optimizer, rng):
    model = LinearModel.zeros(n_classes, n_features, optimizer=optimizer)
    model.weights[...] = rng.normal(size=model.weights.shape)
    model.biases[...] = rng.normal(size=n_classes)
    model.squares[...] = 0.5
    model.bias_squares[...] = 0.5
    return model


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "sgd"])
def test_step_on_all_classes_matches_reference(data, optimizer):
    X, y = data
    rng = np.random.default_rng(1)
    model = start(12, 5, optimizer, rng)
    weight = rng.uniform(0.5, 2.0, size=len(y)).astype(np.float32)
    W, b = model.weights.astype(np.float64), model.biases.astype(np.float64)
    p = softmax(X @ W.T + b)
    residual = weight[:, None] * (p - np.eye(12)[y])
    G, g = residual.T @ X, residual.sum(axis=0)
    loss = -(weight * np.log(p[np.arange(len(y)), y])).sum() / weight.sum()
    got = train_shared_epoch(
        model,
        shared_set(
            X,
            y,
            ClassSets.make(np.bincount(y).astype(float), 12, exponent=0.5),
            batch_size=len(y),
            weight=weight,
        ),
        learning_rate=(0.1, 0.1),
    )
    if optimizer == "sgd":
        W, b = W - 0.1 * G, b - 0.1 * g
    else:
        squares = 0.5 + (G**2 if optimizer == "adagrad" else (G**2).mean(axis=1, keepdims=True))
        W, b = W - 0.1 * G / np.sqrt(squares), b - 0.1 * g / np.sqrt(0.5 + g**2)
        np.testing.assert_allclose(model.squares, squares, rtol=1e-4)
    assert got == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(model.weights, W, atol=2e-4)  # float32 sums of 300 rows
    np.testing.assert_allclose(model.biases, b, atol=2e-4)


def test_steps_up_to_a_limit_match_reference(data):
    X, y = data
    sets = ClassSets.make(np.bincount(y).astype(float), 12, exponent=0.5)
    moved = {}
    for limit in (np.inf, 1.5):
        model = start(12, 5, "adagrad_row", np.random.default_rng(1))
        model.squares[...] = 400.0  # steps of many lengths
        before = model.weights.copy()
        train_shared_epoch(
            model, shared_set(X, y, sets, batch_size=len(y), limit=limit), learning_rate=(1.0, 1.0)
        )
        moved[limit] = model.weights - before
    length = np.linalg.norm(moved[np.inf], axis=1, keepdims=True)
    assert length.min() < 1.5 < length.max()
    # float32
    np.testing.assert_allclose(moved[1.5], moved[np.inf] * np.minimum(1.0, 1.5 / length), atol=1e-5)


@compiled
def test_only_minibatches_of_a_cell_have_a_limit():
    from extremax import fitting

    rng = np.random.default_rng(0)
    y = rng.integers(64, size=20_000)
    X = rng.normal(size=(64, 8)).astype(np.float32)[y] + rng.normal(size=(20_000, 8)).astype(np.float32)
    limits = {}
    for name, settings in {
        "cells": {"n_shared": 8},
        "not whitened": {"n_shared": 8, "precondition": False},
        "no cells": {"n_shared": 8, "noise": "frequency"},
        "all classes": {"objective": "softmax"},
    }.items():
        clf = ExtremeClassifier(
            n_epochs=0, random_state=0, **{"objective": "shared_softmax", **settings}
        ).fit(X, y)
        rows = LabelledRows(X, y.astype(np.int32))
        data, _ = fitting.training_set(clf.model_, X, rows.ids, None, clf._options(rows), 0)
        limits[name] = data.limit
    assert limits == {"cells": 1.5, "not whitened": np.inf, "no cells": np.inf, "all classes": np.inf}


def test_cells_without_rows_have_no_classes():
    """Of many cells, some are empty in a small sample; nothing is drawn from them."""
    cells, y = np.array([0, 0, 3, 3], np.int32), np.array([0, 1, 1, 2], np.int32)
    sets = ClassSets.make(np.array([1.0, 2.0, 1.0]), 2, exponent=0.5, cells=cells, y=y)
    assert [sets.of_cell(cell)[0].tolist() for cell in range(4)] == [[0, 1], [], [], [1, 2]]


def test_step_size_is_larger_where_classes_are_met_rarely():
    from extremax.fitting import resolve

    def rate(n_classes, **given):
        parameters = {**ExtremeClassifier().get_params(deep=False), **given}
        return resolve(parameters, (10_000, 8), n_classes, 10_000, 1).learning_rate

    assert rate(1024 * 64) == 0.5
    assert rate(1024 * 64 + 1) == 1.0
    assert rate(1024 * 64 + 1, n_shared=2048) == 0.5
    assert rate(1024 * 64 + 1, objective="softmax") == 0.5  # each class is met in every step
    assert rate(1024 * 64 + 1, precondition=False, objective="shared_softmax") == 0.1


def test_gradient_matches_finite_difference(data):
    X, y = data
    rng = np.random.default_rng(2)
    model = start(12, 5, "sgd", rng)
    W, b = model.weights.astype(np.float64), model.biases.astype(np.float64)

    def loss(W):
        scores = X @ W.T + b
        top = scores.max(axis=1)
        return (np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(y)), y]).sum()

    sets = ClassSets.make(np.bincount(y).astype(float), 12, exponent=0.0)
    train_shared_epoch(model, shared_set(X, y, sets, batch_size=len(y)), learning_rate=(1e-3, 1e-3))
    for c, k in [(0, 0), (5, 3), (11, 4)]:
        step = np.zeros_like(W)
        step[c, k] = 1e-5
        slope = (loss(W + step) - loss(W - step)) / 2e-5
        # float32 weights, step 1e-3
        assert (W[c, k] - model.weights[c, k]) / 1e-3 == pytest.approx(slope, abs=0.02)


def test_inclusion_probabilities_identity():
    weights = np.random.default_rng(0).pareto(1.0, size=500) + 1e-3
    for size in (1, 10, 100, 499):
        pi = inclusion(weights, size)
        assert pi.sum() == pytest.approx(size)
        assert pi.max() <= 1.0
        free = pi < 1.0
        ratio = pi[free] / weights[free]
        np.testing.assert_allclose(ratio, ratio[0])
    assert (inclusion(weights, 500) == 1.0).all()


def test_drawn_sets_have_their_inclusion_probabilities():
    rng = np.random.default_rng(0)
    counts = np.ceil(20 * rng.pareto(1.0, size=60))
    y = np.repeat(np.arange(60), counts.astype(int)).astype(np.int32)
    cells = rng.integers(3, size=len(y)).astype(np.int32)
    sets = ClassSets.make(counts, 20, exponent=0.5, cells=cells, y=y)
    classes, minus = np.empty(40, np.int32), np.empty(40, np.float32)
    scratch = np.empty(80, np.int64)
    seen, stated, n_draws = np.zeros(60), np.zeros(60), 4000
    for first, second in rng.random((n_draws, 2)):
        n = draw_shared(sets.everywhere, *sets.of_cell(1), first, second, classes, minus, scratch)
        assert (np.diff(classes[:n]) > 0).all()
        seen[classes[:n]] += 1
        stated[classes[:n]] = np.exp(-minus[:n])
    assert (seen > 0).sum() > 50
    error = np.sqrt(np.maximum(stated * (1 - stated), 1e-12) / n_draws)
    assert (np.abs(seen / n_draws - stated)[seen > 0] <= 5 * error[seen > 0] + 1e-9).all()


@compiled
def test_sampled_gradient_is_the_softmax_for_many_classes(data):
    # The sum over classes is unbiased, its inverse nearly so where no class outweighs the rest: with 40 of 60
    # classes the mean gradient is the softmax's.
    rng = np.random.default_rng(3)
    n_classes = 60
    X, y = data[0][:64], rng.integers(n_classes, size=64).astype(np.int32)
    W = 0.2 * rng.normal(size=(n_classes, 5)).astype(np.float32)
    exact = (softmax(X @ W.T.astype(np.float64)) - np.eye(n_classes)[y]).T @ X
    sets = ClassSets.make(np.ones(n_classes), 40, exponent=1.0)
    total = np.zeros_like(exact)
    for seed in range(300):
        model = LinearModel.zeros(n_classes, 5, optimizer="sgd")
        model.weights[...] = W
        model.n_epochs = seed
        train_shared_epoch(model, shared_set(X, y, sets, batch_size=64), learning_rate=(1.0, 1.0))
        total += W - model.weights
    error = np.abs(total / 300 - exact).max()
    negatives = softmax(X @ W.T.astype(np.float64)).T @ X
    # what is compared is of this size; 300 draws leave some noise
    assert error < 0.1 * np.abs(negatives).max()


@compiled
@pytest.mark.parametrize("n_shared", [24, 4096])
def test_shared_softmax_converges_to_the_softmax_recovers(n_shared):
    # Few classes and a known answer: p(y|x) is a softmax of linear scores, and both objectives must come near
    # it.
    rng = np.random.default_rng(4)
    W = 1.5 * rng.normal(size=(80, 4))
    X = rng.normal(size=(12000, 4)).astype(np.float32)
    p = softmax(X @ W.T)
    y = (p.cumsum(axis=1) > rng.random((12000, 1))).argmax(axis=1)
    best = np.log(p[np.arange(10000, 12000), y[10000:]]).mean()
    clf = ExtremeClassifier("shared_softmax", n_shared=n_shared, n_epochs=15, random_state=0).fit(
        X[:10000], y[:10000]
    )
    assert clf.log_likelihood(X[10000:], y[10000:]) > best - 0.06
    learned = clf.decision_function(X[10000:])
    true = np.log(p[10000:])
    centred = [a - a.mean(axis=1, keepdims=True) for a in (learned, true)]
    assert np.corrcoef(centred[0].ravel(), centred[1].ravel())[0, 1] > 0.97


def test_thread_count_invariant(data):
    X, y = data
    tree = LabelTree.fit(X, y, n_classes=12)
    cells = route(tree, X, 4, 1)
    counts = np.bincount(y).astype(float)
    models = []
    for threads in (1, 3):
        model = LinearModel.zeros(12, 5, optimizer="adagrad_row")
        sets = ClassSets.make(counts, 6, exponent=0.5, cells=cells, y=y)
        made = shared_set(X, y, sets, batch_size=32, cells=cells, threads=threads)
        for _ in range(2):
            train_shared_epoch(model, made, learning_rate=(0.5, 0.1))
        models.append(model)
    assert np.array_equal(models[0].weights, models[1].weights)
    assert np.array_equal(models[0].biases, models[1].biases)


def test_cells_are_the_subtrees_of_greedy_decisions_matches_reference(data):
    X, y = data
    tree = LabelTree.fit(X, y, n_classes=12)
    for i, cell in enumerate(route(tree, X, 8, 1)):
        node = 0
        for _ in range(3):
            node = 2 * node + 1 + int(tree.weights[node] @ X[i] + tree.biases[node] > 0)
        assert cell == node - 7


@pytest.mark.parametrize("objective", ["shared_softmax", "softmax"])
@pytest.mark.parametrize("noise", ["adversarial", "uniform", "frequency", "mixture"])
@pytest.mark.parametrize("precondition", [True, False])
def test_every_setting_learns_recovers(data, objective, noise, precondition):
    X, y = data
    clf = ExtremeClassifier(
        objective, noise, n_shared=8, precondition=precondition, n_epochs=40, random_state=0
    )
    if not precondition:
        clf.set_params(learning_rate=0.5)
    clf.fit(X[:240], y[:240])
    assert clf.score(X[240:], y[240:]) > 0.85
    assert clf.choices_["objective"] == objective


def test_plain_softmax_steps_at_a_constant_rate(data):
    X, y = data
    rates = {}
    for precondition in (True, False):
        clf = ExtremeClassifier(
            "softmax", "uniform", precondition=precondition, learning_rate=0.5, n_epochs=4, random_state=0
        )
        rates[precondition] = [record["learning_rate"] for record in clf.fit(X, y).history_[1:]]
    assert rates == {True: [0.5, 0.375, 0.25, 0.125], False: [0.5] * 4}


def test_saved_model_goes_on_as_if_it_had_never_stopped_invariant(data, tmp_path):
    X, y = data
    clf = ExtremeClassifier("shared_softmax", n_shared=8, n_epochs=6, random_state=0)
    whole = clf.fit(X, y).model_.linear.weights
    stopped = ExtremeClassifier("shared_softmax", n_shared=8, n_epochs=6, random_state=0)
    stopped.fit(X, y, callbacks=[lambda record: record["epoch"] == 3])
    stopped.save(tmp_path / "half")
    again = load_model(tmp_path / "half").resume_fit(X, y)
    assert np.array_equal(again.model_.linear.weights, whole)


def test_memory_map_and_sparse_rows_invariant(data, tmp_path):
    from scipy import sparse

    X, y = data
    np.save(tmp_path / "X.npy", X)
    expected = ExtremeClassifier(n_shared=8, n_epochs=3, random_state=0).fit(X, y).model_.linear.weights
    for other in (np.load(tmp_path / "X.npy", mmap_mode="r"), sparse.csr_matrix(X)):
        got = ExtremeClassifier(n_shared=8, n_epochs=3, random_state=0).fit(other, y).model_.linear.weights
        assert np.array_equal(got, expected)


def test_noise_of_ones_own_and_prior_rejects(data):
    from extremax.noise import UniformNoise

    X, y = data
    with pytest.raises(
        ValueError, match=r"objective='softmax' draws the classes of a minibatch by itself.*UniformNoise"
    ):
        ExtremeClassifier("softmax", UniformNoise(12)).fit(X, y)
    with pytest.raises(ValueError, match=r"prior_variance is 1, but objective='softmax' has no prior"):
        ExtremeClassifier("softmax", prior_variance=1.0).fit(X, y)


def test_what_auto_means(data):
    X, y = data
    assert ExtremeClassifier(n_epochs=1).fit(X, y).choices_["objective"] == "shared_softmax"
    wide = np.zeros((len(X), 1200), np.float32)
    wide[:, :5] = X
    assert ExtremeClassifier(n_epochs=1).fit(wide, y).choices_["objective"] == "negative_sampling"
    assert ExtremeClassifier().partial_fit(X, y).choices_["objective"] == "negative_sampling"


@pytest.mark.parametrize("n_shared", [12, 7])
def test_labels_of_a_row_are_no_negatives_of_each_other_matches_reference(data, n_shared):
    X, y = data
    lists = [sorted({int(a), (int(a) + 1) % 12, *([3] if i % 3 == 0 else [])}) for i, a in enumerate(y)]
    labels = np.array([label for row in lists for label in row], np.int32)
    rows = np.repeat(np.arange(len(lists)), [len(row) for row in lists])
    model = start(12, 5, "sgd", np.random.default_rng(1))
    W, b = model.weights.astype(np.float64), model.biases.astype(np.float64)
    scores = X @ W.T + b
    sets = ClassSets.make(np.bincount(labels).astype(float), n_shared, exponent=0.0)
    expected, gradient = 0.0, np.zeros((12, 5))
    for row, label in zip(rows, labels, strict=True):
        e = np.exp(scores[row])
        e[[other for other in lists[row] if other != label]] = 0.0
        p = e / e.sum()
        expected -= np.log(p[label]) / len(rows)
        gradient += np.outer(p - np.eye(12)[label], X[row])
    if n_shared == 12:
        pairs = shared_set(X, labels, sets, batch_size=len(rows), rows=rows)
        assert train_shared_epoch(model, pairs, learning_rate=(0.1, 0.1)) == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(model.weights, W - 0.1 * gradient, atol=5e-4)  # float32 sums of 700 pairs
        return
    pairs, losses = shared_set(X, labels, sets, batch_size=32, rows=rows), []
    for epoch in range(40):  # other classes each time
        model.weights[...], model.biases[...], model.n_epochs = W, b, epoch
        losses.append(train_shared_epoch(model, pairs, learning_rate=(0.0, 0.0)))
    # the logarithm of an unbiased estimate is a little low
    assert np.mean(losses) == pytest.approx(expected, rel=0.1)


def test_rows_of_one_label_do_not_change_by_being_pairs_invariant(data):
    X, y = data
    sets = ClassSets.make(np.bincount(y).astype(float), 8, exponent=0.5)
    made = []
    for rows in (None, np.arange(len(y))):
        model = start(12, 5, "adagrad_row", np.random.default_rng(1))
        train_shared_epoch(model, shared_set(X, y, sets, batch_size=32, rows=rows), learning_rate=(0.5, 0.1))
        made.append(model.weights)
    np.testing.assert_array_equal(*made)


def test_certain_labels_of_a_row_are_found_recovers():
    """Three groups of labels that always come together: each row's first three are its group, whatever
    their frequencies.
    """
    rng = np.random.default_rng(0)
    groups = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    kind = rng.integers(3, size=600)
    lists = [[*groups[k], *([9] if i % 2 else [])] for i, k in enumerate(kind)]
    X = (np.eye(3)[kind] + 0.1 * rng.normal(size=(600, 3))).astype(np.float32)
    clf = ExtremeClassifier(n_epochs=20, random_state=0).fit(X, lists)
    labels, _ = clf.predict_topk(X, k=3)
    assert all(sorted(found) == groups[k] for found, k in zip(labels.tolist(), kind, strict=True))


@compiled
def test_with_very_many_classes_the_tree_comes_last(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(900) % 300
    X = (rng.normal(size=(300, 6))[y] + 0.3 * rng.normal(size=(900, 6))).astype(np.float32)
    trees = []
    clf = ExtremeClassifier(n_shared=4, n_epochs=8, random_state=0)
    clf.fit(X, y, callbacks=[lambda record: trees.append(clf.model_.tree)])
    assert trees == [None] * 8
    assert clf.choices_["tree_held_out_log_likelihood"] > -np.log(300)
    clf.save(tmp_path / "model")
    for model in (clf, load_model(tmp_path / "model")):
        wide, _ = model.predict_topk(X, k=3, search="beam", beam_width=300)
        assert np.array_equal(wide, model.predict_topk(X, k=3)[0])
    half = ExtremeClassifier(n_shared=4, n_epochs=8, random_state=0)
    half.fit(X, y, callbacks=[lambda record: record["epoch"] == 3 and half.save(tmp_path / "half") is None])
    again = load_model(tmp_path / "half")
    assert again.model_.tree is None
    again.resume_fit(X, y)
    assert np.array_equal(again.model_.linear.weights, clf.model_.linear.weights)
    assert np.array_equal(again.model_.tree.weights, clf.model_.tree.weights)


@compiled
def test_rows_set_aside_calibrate_the_probabilities(monkeypatch, tmp_path):
    from extremax import fitting

    monkeypatch.setattr(fitting, "_JUDGED_PAIRS", 1000)
    monkeypatch.setattr(fitting, "_JUDGES", 200)
    monkeypatch.setattr(fitting, "_JUDGED_SHARE", 0.5)
    rng = np.random.default_rng(0)
    y = rng.integers(40, size=3000)
    y[:3] = [40, 41, 42]  # one row each: these stay
    X = (0.7 * rng.normal(size=(43, 5))[y] + rng.normal(size=(3000, 5))).astype(np.float32)
    clf = ExtremeClassifier(random_state=0, n_epochs=6).fit(X[:2500], y[:2500])
    assert clf.model_.temperature == clf.choices_["temperature"] != 1.0
    assert clf.model_.floor == clf.choices_["floor"]
    assert clf.model_.n_samples == 2300
    assert clf.model_.class_counts.min() == 1
    assert clf.model_.class_counts.sum() == 2300
    _, judges = LabelledRows(X[:2500], y[:2500].astype(np.int32)).set_aside(200, clf.seed_)
    assert (
        clf.model_.calibrate(judges.X, judges.ids, rows=judges.rows)._asdict().items() <= clf.choices_.items()
    )
    half = ExtremeClassifier(random_state=0, n_epochs=6)
    half.fit(
        X[:2500],
        y[:2500],
        callbacks=[lambda record: record["epoch"] == 2 and half.save(tmp_path / "half") is None],
    )
    again = load_model(tmp_path / "half").resume_fit(X[:2500], y[:2500])
    assert np.array_equal(again.predict_proba(X[2500:]), clf.predict_proba(X[2500:]))
    again.resume_fit(X[:2500], y[:2500])  # nothing left to train: the same judges find the same
    assert again.model_.temperature == clf.model_.temperature
    lists = [[int(a), int((a + 1) % 43)] for a in y]
    several = ExtremeClassifier(random_state=0, n_epochs=6).fit(X, lists)
    assert several.model_.n_samples == 2800


def test_rounding_adds_no_class_to_a_set_rejects():
    # probabilities that sum to a hair more than two
    whole = np.array([0.5, 1.0, 1.5, np.nextafter(2.0, 3.0)])
    classes, minus_log_pi, scratch = np.empty(8, np.int32), np.empty(8, np.float32), np.empty(8, np.int64)
    assert (
        draw_shared(whole, np.empty(0, np.int32), np.empty(0), 0.0, 0.0, classes, minus_log_pi, scratch) == 2
    )


@pytest.mark.parametrize("moment", ["unfold", "epoch", "prediction"])
def test_ctrl_c_leaves_weights_for_the_features_themselves_identity(data, monkeypatch, moment):
    X, y = data
    rng = np.random.default_rng(3)
    white = Whitening.fit(np.cov(X.T), X.mean(axis=0))
    model = start(12, 5, "sgd", rng)
    before = model.weights.copy(), model.biases.copy()
    monkeypatch.setattr(whitening, "_BLOCK", 4)  # three blocks
    monkeypatch.setattr(shared, "_LOOK", 1)
    blocks = []

    def interrupt(*args):
        blocks.append(args)
        if len(blocks) == 2:
            signal.raise_signal(signal.SIGINT)

    pairs = shared_set(X, y, ClassSets.make(np.ones(12), 12, exponent=0.0), batch_size=300, white=white)
    split = whitening._blocks

    def slow(model, n_threads, change):
        split(model, n_threads, lambda w, b: (interrupt(w), change(w, b))[1])

    def look(*_):
        if moment == "epoch":
            signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(whitening, "_blocks", slow)
        with pairs.for_prediction(model):
            pass

    if moment == "unfold":
        monkeypatch.setattr(whitening, "_blocks", slow)
    with pytest.raises(KeyboardInterrupt):
        train_shared_epoch(model, pairs, learning_rate=(0.0, 0.0), progress=look)
    # At a step size of zero nothing but the way there and back happens, in float32.
    np.testing.assert_allclose(model.weights, before[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.biases, before[1], rtol=1e-4, atol=1e-4)


def test_common_factor_of_all_weights_invariant(data):
    X, y = data
    settings = {"noise": "frequency", "n_shared": 8, "n_epochs": 3, "random_state": 0, "n_jobs": 1}
    plain = ExtremeClassifier("shared_softmax", **settings).fit(X, y)
    scaled = ExtremeClassifier("shared_softmax", **settings).fit(
        X, y, sample_weight=np.full(len(y), 2.0**-10)
    )
    # A power of two, so that only the last bits of sums in float64 differ.
    np.testing.assert_allclose(scaled.predict_log_proba(X), plain.predict_log_proba(X), atol=1e-3)
