"""Weights of each class on the rows it is plausible for, against a minimiser of the primal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from extremax.examples import Examples
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse.plausible import (
    Duals,
    Job,
    Plausible,
    TrainingRows,
    feature_mean,
    fit_linear,
    linear_rows,
)
from extremax.tuned import SparseConfig

pytestmark = pytest.mark.small

N_CLASSES, N_FEATURES, N_ROWS, N_SLOTS = 6, 8, 60, 3
EXACT = {"passes": 2000, "tolerance": 1e-5, "prune_linear": 0.0, "regularization": 0.5,
         "regularization_margin": 0.5, "margin_scale": 1.0}  # fmt: skip


def make_rows(seed=0, *, several=False, weighted=False):
    rng = np.random.default_rng(seed)
    y = (np.arange(N_ROWS) % N_CLASSES).astype(np.int32)
    X = 0.8 * rng.normal(size=(N_CLASSES, N_FEATURES))[y] + rng.normal(size=(N_ROWS, N_FEATURES))
    X[rng.random(X.shape) < 0.4] = 0.0
    matrix = sparse.csr_matrix(X.astype(np.float32))
    if not several:
        weight = rng.uniform(0.2, 3.0, N_ROWS).astype(np.float32) if weighted else None
        return Examples(matrix, y, None, weight)
    labels = [np.unique([c, (c + i) % N_CLASSES]) for i, c in enumerate(y)]
    rows = np.repeat(np.arange(N_ROWS), [len(found) for found in labels])
    weight = rng.uniform(0.2, 3.0, len(rows)).astype(np.float32) if weighted else None
    return Examples(matrix, np.concatenate(labels).astype(np.int32), rows, weight)


def make_found(data, seed=1):
    """Some classes that a row does not have, fewer in some rows."""
    rng = np.random.default_rng(seed)
    classes = np.full((data.n_rows, N_SLOTS), -1, np.int32)
    for row in range(data.n_rows):
        others = rng.permutation(np.setdiff1d(np.arange(N_CLASSES), data.y[data.rows == row]))
        n = min(int(rng.integers(0, N_SLOTS + 1)), len(others))
        classes[row, rng.permutation(N_SLOTS)[:n]] = others[:n]
    return Plausible(classes, np.zeros(classes.shape, np.float32), np.empty(0, np.float32))


def fit(
    data,
    found,
    *,
    n_classes=N_CLASSES,
    n_threads=1,
    offsets=None,
    duals=None,
    is_more=False,
    is_text=False,
    seed=3,
    **numbers,
):
    rows = csr_rows(data.X)
    training = TrainingRows(data, rows, feature_mean(rows, data.X.shape[1]))
    job = Job(SparseConfig(**{**EXACT, **numbers}), seed, n_threads, is_text=is_text)
    matrix, biases = fit_linear(training, found, n_classes, job, offsets=offsets, duals=duals)
    assert matrix.shape == (n_classes, data.X.shape[1])
    return matrix, biases


def biases_of(data):
    """Return the log-odds of each class, and one less, as the solver takes them for the bias."""
    largest = [data.pair_weight[data.rows == row].max(initial=0.0) for row in range(data.n_rows)]
    counts = [data.pair_weight[data.y == c].sum() for c in range(N_CLASSES)]
    return np.log(np.array(counts) / sum(largest)) - 1.0


def problem_of(data, found, c, bias, offsets=None):
    """Return rows, targets, weights and offsets of a class, as the formula of the module has them."""
    X = data.X.toarray().astype(np.float64)
    own = np.flatnonzero(data.y == c)
    others, slots = np.nonzero(found.classes == c)
    rows = np.concatenate([data.rows[own], others])
    largest = np.array([data.pair_weight[data.rows == row].max(initial=0.0) for row in range(data.n_rows)])
    weights = np.concatenate([data.pair_weight[own], largest[others]]).astype(np.float64)
    targets = np.concatenate([np.ones(len(own)), np.zeros(len(others))])
    given = np.full(len(rows), np.broadcast_to(bias, N_CLASSES)[c])
    if offsets is not None:
        given = np.concatenate([offsets[0][own], offsets[1][others, slots]]).astype(np.float64)
    return X[rows], targets, weights, given


def objective(w, problem, regularization, has_margin=False):
    X, targets, weights, offsets = problem
    scores = offsets + X @ w
    if has_margin:
        signs = 2.0 * targets - 1.0
        gaps = np.maximum(1.0 - signs * scores, 0.0)
        slope = -2.0 * weights * signs * gaps
        return weights @ gaps**2 + 0.5 * regularization * w @ w, X.T @ slope + regularization * w
    losses = np.logaddexp(0.0, np.where(targets == 1.0, -scores, scores))
    slope = weights * (1.0 / (1.0 + np.exp(-scores)) - targets)
    return weights @ losses + 0.5 * regularization * w @ w, X.T @ slope + regularization * w


def minimum(*arguments):
    start = np.zeros(arguments[0][0].shape[1])
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    return minimize(objective, start, arguments, "L-BFGS-B", jac=True, options=options).x


def assert_minimal(
    matrix, data, found, bias, regularization=EXACT["regularization"], offsets=None, has_margin=False
):
    table = matrix.toarray().astype(np.float64)
    for c in range(N_CLASSES):
        problem = problem_of(data, found, c, bias, offsets)
        best = minimum(problem, regularization, has_margin)
        np.testing.assert_allclose(table[c], best, atol=2e-3)
        lowest = objective(best, problem, regularization, has_margin)[0]
        assert objective(table[c], problem, regularization, has_margin)[0] <= lowest + 1e-4
        assert np.abs(best).max() > 0.1


@pytest.mark.reference
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_weights_minimise_the_primal(weighted, several):
    data = make_rows(several=several, weighted=weighted)
    found = make_found(data)
    matrix, biases = fit(data, found)
    bias = np.full(N_CLASSES, -1.0) if several else biases_of(data)  # a margin for several labels
    np.testing.assert_allclose(biases, bias, rtol=1e-5)
    assert_minimal(matrix, data, found, bias, has_margin=several)


@pytest.mark.parametrize(("max_entries", "many_words", "n_left"), [
    (1000, 1.0, 240), (100, 1.0, 120), (100, 3.0, 240),
])  # fmt: skip
def test_linear_weights_read_words_alone_where_entries_are_many(max_entries, many_words, n_left):
    matrix = sparse.csr_matrix(np.arange(1, 241, dtype=np.float32).reshape(60, 4))
    data = Examples(matrix, np.zeros(60, np.int32))
    rows = csr_rows(matrix)
    job = Job(SparseConfig(max_entries=max_entries, many_words=many_words), 0, 1, first_word=2)
    found = linear_rows(TrainingRows(data, rows, feature_mean(rows, 4)), job).rows
    assert len(found.data) == n_left
    table = sparse.csr_matrix((found.data, found.indices, found.indptr), shape=(60, 4)).toarray()
    np.testing.assert_array_equal(table[:, 2:], matrix.toarray()[:, 2:])


@pytest.mark.small
def test_pairs_of_no_weight_change_nothing_beside_a_margin():
    data = make_rows(several=True)
    found = make_found(data)
    none = replace(data, weight=np.where(data.rows < 5, 0.0, 1.0).astype(np.float32))
    rest = np.flatnonzero(data.rows >= 5)
    kept = Examples(data.X, data.y[rest], data.rows[rest])
    blind = found._replace(classes=np.where(np.arange(N_ROWS)[:, None] < 5, -1, found.classes))
    np.testing.assert_allclose(
        fit(none, found)[0].toarray(), fit(kept, blind)[0].toarray(), atol=2e-3
    )  # fmt: skip


@pytest.mark.reference
@pytest.mark.parametrize("several", [False, True])
def test_corrections_minimise_the_primal_with_their_offsets(several):
    data, rng = make_rows(several=several, weighted=True), np.random.default_rng(5)
    found = make_found(data)
    offsets = (
        rng.normal(size=data.n_pairs).astype(np.float32),
        rng.normal(size=found.classes.shape).astype(np.float32),
    )
    matrix, biases = fit(data, found, offsets=offsets)
    assert (biases == 0.0).all()
    assert_minimal(matrix, data, found, 0.0, offsets=offsets)
    other, _ = fit(data, found, offsets=(offsets[0] + 2.0, offsets[1]))
    assert np.abs(other.toarray() - matrix.toarray()).max() > 0.1


@pytest.mark.reference
@pytest.mark.parametrize("bias_feature", [1.0, 0.4])
def test_bias_is_learnt_where_every_row_is_compared_with_every_class(bias_feature):
    data = make_rows(weighted=True)
    others = [np.delete(np.arange(N_CLASSES), label) for label in data.y]
    found = Plausible(np.array(others, np.int32), np.zeros((N_ROWS, 5), np.float32), np.empty(0, np.float32))
    matrix, biases = fit(data, found, bias_feature=bias_feature)
    bias = biases_of(data)
    for c in range(N_CLASSES):
        X, *others = problem_of(data, found, c, bias)
        problem = np.hstack([X, np.full((len(X), 1), bias_feature)]), *others
        best = minimum(problem, EXACT["regularization"])
        np.testing.assert_allclose(matrix[c].toarray()[0], best[:-1], atol=2e-3)
        assert biases[c] == pytest.approx(bias[c] + bias_feature * best[-1], abs=2e-3)
    assert np.ptp(biases) > 0.1
    offsets = np.zeros(N_ROWS, np.float32), np.zeros((N_ROWS, 5), np.float32)
    assert not fit(data, found, offsets=offsets)[1].any()  # a correction has none


def test_bias_is_fixed_where_rounds_only_have_as_many_slots_as_classes():
    """Two rounds of two classes each, and five classes: still not every row is compared with every class."""
    data = make_rows(several=True)
    found = make_found(data)
    padded = found._replace(classes=np.hstack([found.classes, np.full((N_ROWS, 2), -1, np.int32)]))
    assert padded.classes.shape[1] == N_CLASSES - 1
    assert (fit(data, padded, bias_feature=1.0)[1] == -1.0).all()


def test_one_row_of_two_labels_leaves_the_loss_as_it_is():
    data = make_rows()
    found = make_found(data)
    other = (data.y[0] + 1) % N_CLASSES
    y = np.insert(data.y, 0, min(data.y[0], other))
    y[1] = max(data.y[0], other)
    two = Examples(data.X, y, np.insert(np.arange(N_ROWS), 0, 0))
    free = found._replace(
        classes=np.where(np.isin(found.classes, y[:2]) & (np.arange(N_ROWS)[:, None] == 0), -1, found.classes)
    )
    assert not two.has_several_labels
    assert fit(two, free)[1].max() < -1.5  # log-odds
    assert (fit(make_rows(several=True), found)[1] == -1.0).all()


def test_margins_are_scaled_to_nats():
    data = make_rows(several=True)
    found = make_found(data)
    one, six = fit(data, found), fit(data, found, margin_scale=6.0)
    np.testing.assert_allclose(six[0].toarray(), 6.0 * one[0].toarray(), rtol=1e-6)
    np.testing.assert_allclose(six[1], 6.0 * one[1], rtol=1e-6)


@pytest.mark.reference
def test_strong_regularization_and_long_rows():
    data = make_rows()
    found = make_found(data)
    bias = biases_of(data)
    assert_minimal(fit(data, found, regularization=8.0)[0], data, found, bias, 8.0)
    long = data.with_features(sparse.csr_matrix(3.0 * data.X))
    assert_minimal(fit(long, found, regularization=2.0)[0], long, found, bias, 2.0)


@pytest.mark.identity
def test_bias_is_far_below_zero_but_not_farther_than_the_limit():
    data = make_rows()
    found = make_found(data)
    assert fit(data, found, max_bias=1.5)[1].tolist() == [-1.5] * N_CLASSES
    none = fit(data, found, n_classes=50_000)[1][N_CLASSES:]  # classes without a row
    assert (none == np.float32(-SparseConfig().max_bias)).all()


@pytest.mark.identity
def test_classes_have_the_features_of_the_rows_that_they_are_fitted_on():
    data = make_rows()
    none = Plausible(
        np.full((N_ROWS, N_SLOTS), -1, np.int32), np.zeros((N_ROWS, N_SLOTS), np.float32), np.empty(0)
    )
    X = data.X.toarray().copy()
    X[data.y == 2, 5] = 0.0
    alone = data.with_features(sparse.csr_matrix(X))
    matrix, _ = fit(alone, none)
    for c in range(N_CLASSES):  # own rows only
        np.testing.assert_array_equal(matrix[c].toarray()[0] != 0.0, (X[data.y == c] != 0.0).any(axis=0))
    assert matrix[2, 5] == 0.0
    listed, row = none.classes.copy(), np.flatnonzero(X[:, 5])[0]
    listed[row, 1] = 2
    assert X[row, 5] * fit(alone, none._replace(classes=listed))[0][2, 5] < 0.0
    # rows of other classes that do not list class 3 make no difference to it
    other = X.copy()
    other[(data.y != 3)] *= 2.0
    changed, _ = fit(data.with_features(sparse.csr_matrix(other)), none, prune_linear=0.0)
    np.testing.assert_array_equal(changed[3].toarray(), matrix[3].toarray())


@pytest.mark.identity
def test_classes_without_rows_have_no_weights():
    data = make_rows()
    found = make_found(data)
    classes = found.classes.copy()
    classes[:5, 0] = N_CLASSES  # plausible, and never right
    found = found._replace(classes=classes)
    matrix, biases = fit(data, found, n_classes=N_CLASSES + 2)
    assert matrix[N_CLASSES:].nnz == 0
    assert len(biases) == N_CLASSES + 2
    assert (np.diff(matrix.indptr)[:N_CLASSES] > 0).all()


@pytest.mark.identity
def test_rows_without_a_label_do_not_count():
    data = make_rows()
    found = make_found(data)
    kept = np.flatnonzero(np.arange(N_ROWS) % 4)
    some = Examples(data.X, data.y[kept], kept)
    listed = found.classes.copy()
    listed[::4] = -1
    matrix, _ = fit(some, found._replace(classes=listed))
    alone = Plausible(found.classes[kept], found.scores[kept], found.log_rest)
    expected, _ = fit(Examples(data.X[kept], data.y[kept]), alone)
    np.testing.assert_allclose(matrix.toarray(), expected.toarray(), atol=1e-5)


@pytest.mark.identity
def test_small_contributions_are_dropped():
    data = make_rows()
    found = make_found(data)
    full, _ = fit(data, found)
    matrix, _ = fit(data, found, prune_linear=0.15)
    mean = feature_mean(csr_rows(data.X), N_FEATURES)
    table = full.toarray()
    expected = np.where(np.abs(table) * mean >= 0.15, table, 0.0)
    np.testing.assert_array_equal(matrix.toarray(), expected)
    assert 0 < matrix.nnz < full.nnz


@pytest.mark.invariance
def test_weight_two_is_two_rows_and_weight_zero_none():
    data = make_rows()
    weight = (np.arange(N_ROWS) // 6 % 3).astype(np.float32)
    found = make_found(data)
    once, _ = fit(Examples(data.X, data.y, None, weight), found)
    rows = np.repeat(np.arange(N_ROWS), weight.astype(int))
    twice, _ = fit(
        Examples(data.X[rows], data.y[rows]),
        Plausible(found.classes[rows], found.scores[rows], found.log_rest),
    )
    np.testing.assert_allclose(once.toarray(), twice.toarray(), atol=2e-3)


@pytest.mark.invariance
@pytest.mark.parametrize("passes", [1, 12])
def test_same_bits_for_any_number_of_threads_and_of_tasks(passes, monkeypatch):
    from extremax.solvers.sparse import plausible as steps

    data = make_rows(several=True, weighted=True)
    found = make_found(data)
    first, _ = fit(data, found, passes=passes)
    monkeypatch.setattr(steps, "_TASK_ENTRIES", 50)
    for n_threads in (1, 2, 3):
        again, _ = fit(data, found, passes=passes, n_threads=n_threads)
        for name in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


@pytest.mark.identity
def test_fewer_passes_are_not_as_good_and_seeds_change_the_order():
    data = make_rows()
    found = make_found(data)
    bias = biases_of(data)

    def total(matrix):
        table = matrix.toarray().astype(np.float64)
        return sum(objective(table[c], problem_of(data, found, c, bias), 0.5)[0] for c in range(N_CLASSES))

    values = [total(fit(data, found, passes=passes)[0]) for passes in (1, 3, 12)]
    assert values[0] > values[1] > values[2]
    one, other = (fit(data, found, passes=1, seed=seed)[0].toarray() for seed in (1, 2))
    assert np.abs(one - other).max() > 1e-3


def test_numbers_of_the_config_are_read():
    data = make_rows()
    found = make_found(data)
    base, _ = fit(data, found)
    rows = csr_rows(data.X)
    training = TrainingRows(data, rows, feature_mean(rows, N_FEATURES))
    job = Job(replace(SparseConfig(**EXACT), regularization=99.0), 3, 1)
    strong, _ = fit_linear(training, found, N_CLASSES, job)
    assert np.abs(strong.toarray()).max() < 0.5 * np.abs(base.toarray()).max()


@pytest.mark.reference
def test_bias_is_learnt_beside_a_margin_too():
    data = make_rows(weighted=True)
    others = [np.delete(np.arange(N_CLASSES), label) for label in data.y]
    found = Plausible(np.array(others, np.int32), np.zeros((N_ROWS, 5), np.float32), np.empty(0, np.float32))
    matrix, biases = fit(data, found, bias_feature=1.0, is_text=True, margin_pairs=N_ROWS, many_words=1.0)
    for c in range(N_CLASSES):
        X, *others = problem_of(data, found, c, -1.0)
        best = minimum((np.hstack([X, np.ones((len(X), 1))]), *others), EXACT["regularization"], True)
        np.testing.assert_allclose(matrix[c].toarray()[0], best[:-1], atol=2e-3)
        assert biases[c] == pytest.approx(best[-1] - 1.0, abs=2e-3)
    plain = fit(data, found)[0].toarray()
    for names in ({"many_words": 99.0}, {"margin_pairs": N_ROWS + 1}):  # few words, few pairs: no margin
        given = {"is_text": True, "margin_pairs": N_ROWS, "many_words": 1.0} | names
        np.testing.assert_array_equal(fit(data, found, **given)[0].toarray(), plain)


@pytest.mark.identity
@pytest.mark.parametrize("several", [False, True])
def test_fit_goes_on_with_more_rows_and_classes(several):
    """The dual variables of an earlier fit lead to the same minimum, and are the weights without a pass."""
    data = make_rows(several=several, weighted=True)
    found = make_found(data)
    some = data.take(data.rows % 5 != 0)
    fewer = np.where((np.arange(N_ROWS) % 5 != 0)[:, None], found.classes, -1)[:, :-1]
    before = found._replace(classes=np.ascontiguousarray(fewer), scores=found.scores[:, :-1])
    first = Duals.none(some, before)
    fit(some, before, duals=first)
    assert first.own.any()
    assert first.others.any()
    duals = first.of(some, data, found)
    rows = np.flatnonzero(np.isin(data.rows, some.rows))
    np.testing.assert_array_equal(duals.own[rows], first.own)
    assert not np.delete(duals.own, rows).any()
    again, _ = fit(data, found, duals=duals)
    whole, _ = fit(data, found)
    np.testing.assert_allclose(again.toarray(), whole.toarray(), atol=2e-3)
    unchanged = duals.of(data, data, found)
    same, _ = fit(data, found, duals=unchanged, passes=0)
    np.testing.assert_allclose(same.toarray(), again.toarray(), atol=1e-4)
