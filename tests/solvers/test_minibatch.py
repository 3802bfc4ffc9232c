"""Softmax with classes shared in a minibatch, against the softmax written out, and in expectation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from coverings import pairwise
from extremax import ExtremeClassifier, LabelTree, load_model
from extremax.examples import Examples
from extremax.features.whitening import Whitening
from extremax.params import OPTIMIZERS
from extremax.runtime.context import Context
from extremax.solvers import MinibatchSoftmax
from extremax.solvers.class_sets import ClassSets, route
from extremax.solvers.minibatch import MinibatchTrainer
from extremax.solvers.optimizers import Tables
from extremax.tuned import DEFAULTS, ProblemSize, replace_numbers
from planted import a_dozen_classes, from_softmax, softmax
from trainers import Progress, assert_same_bits, make_config, random_tables, run_by_batches


@pytest.fixture(scope="module")
def data():
    return a_dozen_classes()


def start(data, sets, optimizer="sgd", *, square=0.5, **options):
    """Twelve classes with random weights."""
    tables = random_tables(12, 5, optimizer, np.random.default_rng(1), square)
    return run_by_batches(data, sets, tables, **options)


def all_classes(y, exponent=0.5):
    return ClassSets.build(np.bincount(y, minlength=12).astype(float), 12, exponent=exponent)


# -- one step


@pytest.mark.small
@pytest.mark.reference
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_step_on_all_classes_matches_reference(data, optimizer):
    X, y = data
    weight = np.random.default_rng(1).uniform(0.5, 2.0, size=len(y)).astype(np.float32)
    run = start(Examples(X, y, weight=weight), all_classes(y), optimizer, batch_size=len(y))
    W, b = run.weights.astype(np.float64), run.biases.astype(np.float64)
    p = softmax(X @ W.T + b)
    residual = weight[:, None] * (p - np.eye(12)[y])
    G, g = residual.T @ X, residual.sum(axis=0)
    loss = -(weight * np.log(p[np.arange(len(y)), y])).sum() / weight.sum()
    assert run.epoch(0.1) == pytest.approx(loss, rel=1e-5)
    if optimizer == "sgd":
        W, b = W - 0.1 * G, b - 0.1 * g
    else:
        squares = 0.5 + (G**2 if optimizer == "adagrad" else (G**2).mean(axis=1, keepdims=True))
        W, b = W - 0.1 * G / np.sqrt(squares), b - 0.1 * g / np.sqrt(0.5 + g**2)
        np.testing.assert_allclose(run.state.tables.squares, squares, rtol=1e-4)
    np.testing.assert_allclose(run.weights, W, atol=2e-4)  # float32 sums of 300 rows
    np.testing.assert_allclose(run.biases, b, atol=2e-4)


@pytest.mark.small
@pytest.mark.reference
def test_steps_up_to_a_limit_match_reference(data):
    X, y = data
    moved = {}
    for limit in (np.inf, 1.5):
        # a large sum of squares: steps of many lengths
        options = {"square": 400.0, "batch_size": len(y), "max_step": limit}
        run = start(Examples(X, y), all_classes(y), "adagrad_row", **options)
        run.state.tables.bias_squares[...] = 0.5
        before = run.weights.copy()
        run.epoch(1.0)
        moved[limit] = run.weights - before
    length = np.linalg.norm(moved[np.inf], axis=1, keepdims=True)
    assert length.min() < 1.5 < length.max()
    # float32
    np.testing.assert_allclose(moved[1.5], moved[np.inf] * np.minimum(1.0, 1.5 / length), atol=1e-5)


@pytest.mark.small
@pytest.mark.gradient
def test_gradient_matches_finite_difference(data):
    X, y = data
    run = start(Examples(X, y), all_classes(y, exponent=0.0), batch_size=len(y))
    W, b = run.weights.astype(np.float64), run.biases.astype(np.float64)

    def loss(W):
        scores = X @ W.T + b
        top = scores.max(axis=1)
        return (np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(y)), y]).sum()

    run.epoch(1e-3)
    for c, k in [(0, 0), (5, 3), (11, 4)]:
        step = np.zeros_like(W)
        step[c, k] = 1e-5
        slope = (loss(W + step) - loss(W - step)) / 2e-5
        # float32 weights, step 1e-3
        assert (W[c, k] - run.weights[c, k]) / 1e-3 == pytest.approx(slope, abs=0.02)


def test_sampled_gradient_is_the_softmax_for_many_classes(data):
    # The sum over classes is unbiased, its inverse nearly so where no class outweighs the rest: with 40 of 60
    # classes the mean gradient is the softmax's.
    rng = np.random.default_rng(3)
    n_classes = 60
    X, y = data[0][:64], rng.integers(n_classes, size=64).astype(np.int32)
    W = 0.2 * rng.normal(size=(n_classes, 5)).astype(np.float32)
    exact = (softmax(X @ W.T.astype(np.float64)) - np.eye(n_classes)[y]).T @ X
    sets = ClassSets.build(np.ones(n_classes), 40, exponent=1.0)
    total = np.zeros_like(exact)
    run = run_by_batches(Examples(X, y), sets, Tables.zeros(n_classes, 5, "sgd"), batch_size=64)
    for seed in range(300):
        run.weights[...], run.biases[...], run.state.n_epochs = W, 0.0, seed
        run.epoch(1.0)
        total += W - run.weights
    error = np.abs(total / 300 - exact).max()
    negatives = softmax(X @ W.T.astype(np.float64)).T @ X
    # what is compared is of this size; 300 draws leave some noise
    assert error < 0.1 * np.abs(negatives).max()


# -- the penalty on scores


def penalized_loss(X, y, W, b, penalty):
    """Softmax of all classes, and lambda [s_y^2 + mean of s^2 over all classes], summed over the rows."""
    scores = X @ W.T + b
    top = scores.max(axis=1)
    own = scores[np.arange(len(y)), y]
    softmax_loss = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - own
    return (softmax_loss + penalty * (own**2 + (scores**2).mean(axis=1))).sum()


@pytest.mark.small
@pytest.mark.gradient
@pytest.mark.parametrize("penalty", [1e-3, 0.3])
def test_penalty_gradient_matches_finite_difference(data, penalty):
    X, y = data
    run = start(Examples(X, y), all_classes(y), batch_size=len(y), score_penalty=penalty)
    W, b = run.weights.astype(np.float64), run.biases.astype(np.float64)
    loss = run.epoch(1e-3)
    assert loss * len(y) == pytest.approx(penalized_loss(X, y, W, b, penalty), rel=1e-5)
    for c, k in [(0, 0), (5, 3), (11, 4)]:
        step = np.zeros_like(W)
        step[c, k] = 1e-5
        slope = penalized_loss(X, y, W + step, b, penalty) - penalized_loss(X, y, W - step, b, penalty)
        # float32 weights, step 1e-3
        assert (W[c, k] - run.weights[c, k]) / 1e-3 == pytest.approx(slope / 2e-5, rel=1e-3, abs=0.02)
        step = np.zeros_like(b)
        step[c] = 1e-5
        slope = penalized_loss(X, y, W, b + step, penalty) - penalized_loss(X, y, W, b - step, penalty)
        assert (b[c] - run.biases[c]) / 1e-3 == pytest.approx(slope / 2e-5, rel=1e-3, abs=0.02)


def test_sampled_penalty_is_unbiased(data):
    """With and without a penalty the same classes are drawn: the difference is the penalty's gradient."""
    X, y = data[0][:64], data[1][:64]
    sets = ClassSets.build(np.bincount(y, minlength=12).astype(float) + 1.0, 5, exponent=1.0)
    runs = [start(Examples(X, y), sets, batch_size=64, score_penalty=p) for p in (0.0, 0.2)]
    W, b = runs[0].weights.copy(), runs[0].biases.copy()
    n_draws, found = 400, []
    for seed in range(n_draws):
        for run in runs:
            run.weights[...], run.biases[...], run.state.n_epochs = W, b, seed
            run.epoch(1.0)
        found.append(
            np.column_stack([a - c for a, c in zip(runs[0].arrays[:2], runs[1].arrays[:2], strict=True)])
        )
    scores = X @ W.T.astype(np.float64) + b
    residual = 2 * 0.2 * scores / 12
    residual[np.arange(64), y] += 2 * 0.2 * scores[np.arange(64), y]
    exact = residual.T @ np.column_stack([X, np.ones(64)])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(n_draws)
    assert np.abs(mean - exact).max() > 0.0  # it is an estimate
    assert (np.abs(mean - exact) < 5 * error + 1e-3).all()  # float32
    assert np.median(error) < 0.1 * np.abs(exact).max()  # ... precise enough for the test to mean something


@pytest.mark.small
@pytest.mark.reference
def test_penalty_leaves_out_other_labels_of_the_row_matches_reference(data):
    X, y = data
    lists = [sorted({int(a), (int(a) + 1) % 12}) for a in y]
    labels = np.array([label for row in lists for label in row], np.int32)
    rows = np.repeat(np.arange(len(lists)), 2)
    sets = ClassSets.build(np.bincount(labels).astype(float), 12, exponent=0.0)
    losses = []
    for penalty in (0.0, 0.1):
        run = start(Examples(X, labels, rows), sets, batch_size=len(rows), score_penalty=penalty)
        W, b = run.weights.astype(np.float64), run.biases.astype(np.float64)
        losses.append(run.epoch(1e-6) * len(rows))
    squares = (X @ W.T + b) ** 2
    expected = 0.0
    for row, label in zip(rows, labels, strict=True):
        others = [c for c in range(12) if c not in lists[row]]
        expected += 0.1 * (squares[row, label] * (1 + 1 / 12) + squares[row, others].sum() / 12)
    assert losses[1] - losses[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.invariance
def test_penalty_thread_count_invariant(data):
    X, y = data
    sets = ClassSets.build(np.bincount(y, minlength=12).astype(float), 7, exponent=0.5)
    runs = [
        start(Examples(X, y), sets, "adagrad", batch_size=50, score_penalty=0.01, n_threads=n).epochs(2)
        for n in (1, 3)
    ]
    assert_same_bits(*runs)


def test_penalty_shrinks_scores(data):
    X, y = data
    lengths = []
    for penalty in (None, 0.0, 1.0):
        options = {
            "solver": "minibatch_softmax",
            "n_shared": None,
            "precondition": False,
            "n_epochs": 20,
            "random_state": 0,
        }
        clf = ExtremeClassifier.with_solver(score_penalty=penalty, **options).fit(X, y)
        lengths.append(float(np.square(clf.decision_function(X)).mean()))
    assert lengths[0] == lengths[1]  # none is the default
    assert lengths[2] < 0.5 * lengths[1]


# -- several labels


@pytest.mark.reference
@pytest.mark.parametrize("n_shared", [pytest.param(12, marks=pytest.mark.small), 7])
def test_labels_of_a_row_are_no_negatives_of_each_other_matches_reference(data, n_shared):
    X, y = data
    lists = [sorted({int(a), (int(a) + 1) % 12, *([3] if i % 3 == 0 else [])}) for i, a in enumerate(y)]
    labels = np.array([label for row in lists for label in row], np.int32)
    rows = np.repeat(np.arange(len(lists)), [len(row) for row in lists])
    sets = ClassSets.build(np.bincount(labels).astype(float), n_shared, exponent=0.0)
    examples = Examples(X, labels, rows)
    run = start(examples, sets, batch_size=len(rows) if n_shared == 12 else 32)
    W, b = run.weights.astype(np.float64), run.biases.astype(np.float64)
    scores = X @ W.T + b
    expected, gradient = 0.0, np.zeros((12, 5))
    for row, label in zip(rows, labels, strict=True):
        e = np.exp(scores[row])
        e[[other for other in lists[row] if other != label]] = 0.0
        p = e / e.sum()
        expected -= np.log(p[label]) / len(rows)
        gradient += np.outer(p - np.eye(12)[label], X[row])
    if n_shared == 12:
        assert run.epoch(0.1) == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(run.weights, W - 0.1 * gradient, atol=5e-4)  # float32 sums of 700 pairs
        return
    for epoch in range(40):  # other classes each time
        run.weights[...], run.biases[...], run.state.n_epochs = W, b, epoch
        run.epoch(0.0)
    # the logarithm of an unbiased estimate is a little low
    assert np.mean(run.losses) == pytest.approx(expected, rel=0.1)


@pytest.mark.small
@pytest.mark.invariance
def test_rows_of_one_label_do_not_change_by_being_pairs(data):
    X, y = data
    sets = ClassSets.build(np.bincount(y).astype(float), 8, exponent=0.5)
    made = []
    for row_index in (None, np.arange(len(y))):
        run = start(Examples(X, y, row_index), sets, "adagrad_row", batch_size=32)
        run.epoch((0.5, 0.1))
        made.append(run.weights)
    np.testing.assert_array_equal(*made)


@pytest.mark.planted
def test_certain_labels_of_a_row_are_found():
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


# -- what must not matter


@pytest.mark.small
@pytest.mark.invariance
def test_thread_count_invariant(data):
    X, y = data
    tree = LabelTree.fit(X, y, n_classes=12)
    cells = route(tree, X, 4, 1)
    sets = ClassSets.build(np.bincount(y).astype(float), 6, exponent=0.5, cells=cells, y=y)
    runs = []
    for n_threads in (1, 3):
        tables = Tables.zeros(12, 5, "adagrad_row")
        options = {"batch_size": 32, "cells": cells, "n_threads": n_threads}
        run = run_by_batches(Examples(X, y), sets, tables, **options)
        runs.append(run.epochs(2, (0.5, 0.1)))
    assert np.array_equal(runs[0].weights, runs[1].weights)
    assert np.array_equal(runs[0].biases, runs[1].biases)


@pytest.mark.small
@pytest.mark.identity
def test_whitened_epoch_without_steps_keeps_the_weights(data):
    """At a step size of zero nothing but the conversion of coordinates happens, in float32."""
    X, y = data
    white = Whitening.fit(np.cov(X.T), X.mean(axis=0))
    run = start(Examples(X, y), all_classes(y), batch_size=300, whitening=white)
    before = run.weights.copy(), run.biases.copy()
    inside = []

    class Look(Progress):
        def check(self):
            inside.append(run.weights.copy())

    run.epoch(0.0, progress=Look())
    assert not np.allclose(inside[0], before[0], atol=0.1)
    np.testing.assert_allclose(run.weights, before[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(run.biases, before[1], rtol=1e-4, atol=1e-4)


@pytest.mark.identity
@pytest.mark.parametrize("whitened", [False, True])
def test_scaled_features_change_no_bit(data, whitened):
    # Features times 8, their scale divided by 8: powers of two are exact.
    X, y = data
    white = Whitening.fit(np.cov(0.5 * X.T), 0.5 * X.mean(axis=0)) if whitened else None
    runs = []
    for factor in (1.0, 8.0):
        examples = Examples(X * np.float32(factor), y)
        run = start(examples, all_classes(y), batch_size=32, scale=0.5 / factor, whitening=white)
        runs.append(run.epochs(1))
    np.testing.assert_array_equal(runs[0].weights, runs[1].weights)
    larger = start(Examples(X, y), all_classes(y), batch_size=32, scale=1.0, whitening=white).epochs(1)
    assert np.any(larger.weights != runs[0].weights)


@pytest.mark.invariance
def test_common_factor_of_all_weights(data):
    X, y = data
    settings = {"noise": "frequency", "n_shared": 8, "n_epochs": 3, "random_state": 0, "n_jobs": 1}
    plain = ExtremeClassifier.with_solver("minibatch_softmax", **settings).fit(X, y)
    light = np.full(len(y), 2.0**-10)
    scaled = ExtremeClassifier.with_solver("minibatch_softmax", **settings).fit(X, y, sample_weight=light)
    # A power of two, so that only the last bits of sums in float64 differ.
    np.testing.assert_allclose(scaled.predict_log_proba(X), plain.predict_log_proba(X), atol=1e-3)


@pytest.mark.invariance
def test_memory_map_and_sparse_rows(data, tmp_path):
    X, y = data
    np.save(tmp_path / "X.npy", X)
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=8), n_epochs=3, random_state=0)
    expected = clf.fit(X, y).model_.weights.to_dense().copy()
    for other in (np.load(tmp_path / "X.npy", mmap_mode="r"), sparse.csr_matrix(X)):
        assert np.array_equal(clf.fit(other, y).model_.weights.to_dense(), expected)


# -- the start, and cells


CELLS = replace_numbers(DEFAULTS, batch={"rows_per_cell": 40, "max_step": 1.25})


def prepared(data, numbers=CELLS, **parameters):
    X, y = data
    examples = Examples(X, y)
    config = make_config(examples, 12, numbers=numbers, **{"solver": "minibatch_softmax", **parameters})
    trainer = MinibatchTrainer(config, Context())
    state = trainer.start(examples, 12)
    return state, trainer.prepare(state, examples)


@pytest.mark.parametrize(
    ("parameters", "limit"),
    [
        ({"n_shared": 8}, 1.25),
        ({"n_shared": 8, "precondition": False}, np.inf),
        ({"n_shared": 8, "noise": "frequency"}, np.inf),
        ({"solver": "minibatch_softmax", "n_shared": None}, np.inf),
    ],
    ids=["cells", "not whitened", "no cells", "all classes"],
)
def test_only_minibatches_of_a_cell_have_a_limit(data, parameters, limit):
    _, batches = prepared(data, **parameters)
    assert batches.max_step == limit


@pytest.mark.parametrize(
    ("numbers", "parameters", "has_tree"),
    [
        (CELLS, {"n_shared": 8}, True),
        (CELLS, {"n_shared": 8, "precondition": False}, True),
        (CELLS, {"n_shared": 12}, False),  # all classes
        (CELLS, {"solver": "minibatch_softmax", "n_shared": None}, False),
        (CELLS, {"n_shared": 8, "noise": "uniform"}, False),
        (DEFAULTS, {"n_shared": 8}, False),  # too few rows for cells
        (replace_numbers(CELLS, batch={"many_classes": 1}), {"n_shared": 8}, False),  # too many classes
    ],
)
def test_tree_is_fitted_where_cells_need_it(data, numbers, parameters, has_tree):
    state, batches = prepared(data, numbers, **parameters)
    assert (batches.cells is not None) == has_tree
    assert (state.noise is not None and state.noise.tree is not None) == has_tree
    assert (state.projection is not None) == has_tree
    assert (state.class_means is not None) == has_tree


@pytest.mark.small
def test_minibatches_hold_rows_of_one_cell(data):
    _, batches = prepared(data, n_shared=8)
    cells = batches.cells
    assert len(np.unique(cells)) > 1
    for cell in np.unique(cells):
        classes, _ = batches.sets.of_cell(cell)
        assert set(classes) == set(data[1][cells == cell])


@pytest.mark.planted
@pytest.mark.parametrize("n_shared", [24, 4096])
def test_shared_softmax_converges_to_the_softmax(n_shared):
    # Few classes and a known answer: p(y|x) is a softmax of linear scores, and both solvers must come near
    # it.
    X, y, p = from_softmax(12000, 80, 4)
    best = np.log(p[np.arange(10000, 12000), y[10000:]]).mean()
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=n_shared), n_epochs=15, random_state=0)
    clf.fit(X[:10000], y[:10000])
    assert clf.log_likelihood(X[10000:], y[10000:]) > best - 0.06
    centred = [
        a - a.mean(axis=1, keepdims=True) for a in (clf.decision_function(X[10000:]), np.log(p[10000:]))
    ]
    assert np.corrcoef(centred[0].ravel(), centred[1].ravel())[0, 1] > 0.97


@pytest.mark.planted
@pairwise(
    n_shared=[8, None],
    noise=["tree", "uniform", "frequency"],
    precondition=[True, False],
    numbers=[DEFAULTS, CELLS],
)
def test_every_setting_learns(data, n_shared, noise, precondition, numbers):
    class Classifier(ExtremeClassifier):
        _numbers = numbers

    X, y = data
    solver = MinibatchSoftmax(
        n_shared=n_shared,
        noise=noise,
        precondition=precondition,
        learning_rate=None if precondition else 0.5,
    )
    clf = Classifier(solver, n_epochs=40, random_state=0).fit(X[:240], y[:240])
    assert clf.score(X[240:], y[240:]) > 0.85


@pytest.mark.small
def test_plain_softmax_steps_at_a_constant_rate(data):
    X, y = data
    rates = {}
    for precondition in (True, False):
        options = {"precondition": precondition, "learning_rate": 0.5, "n_epochs": 4, "random_state": 0}
        clf = ExtremeClassifier.with_solver(
            "minibatch_softmax", n_shared=None, noise="uniform", **options
        ).fit(X, y)
        rates[precondition] = [record["learning_rate"] for record in clf.history_[1:]]
    assert rates == {True: [0.5, 0.375, 0.25, 0.125], False: [0.5] * 4}


@pytest.mark.small
@pytest.mark.invariance
def test_saved_model_with_cells_goes_on_as_if_it_had_never_stopped(data, tmp_path):
    class Classifier(ExtremeClassifier):
        _numbers = CELLS

    X, y = data
    options = {"n_shared": 8, "n_epochs": 6, "random_state": 0}
    whole = Classifier.with_solver("minibatch_softmax", **options).fit(X, y)
    assert whole.model_.tree is not None
    stopped = Classifier.with_solver("minibatch_softmax", **options)
    stopped.fit(X, y, callbacks=[lambda record: record["epoch"] == 3])
    stopped.save(tmp_path / "half")
    again = load_model(tmp_path / "half").resume_fit(X, y)
    assert np.array_equal(again.model_.weights.to_dense(), whole.model_.weights.to_dense())
    assert np.array_equal(again.model_.tree.weights, whole.model_.tree.weights)


def test_memory_counts_a_tree_where_there_is_one(data):
    X, y = data
    examples = Examples(X, y)
    needs = {}
    for name, numbers in {"cells": CELLS, "no cells": DEFAULTS}.items():
        options = {"solver": "minibatch_softmax", "n_shared": 8, "precondition": False}
        trainer = MinibatchTrainer(make_config(examples, 12, numbers=numbers, **options), Context())
        needs[name] = trainer.memory(ProblemSize(300, 300, 5, 12))
    state, _ = prepared(data, n_shared=8)
    tree = state.noise.tree
    assert needs["cells"] - needs["no cells"] >= sum(a.nbytes for a in tree.to_arrays().values())
