"""Softmax over the best classes of each row, against the softmax written out and on planted problems."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from extremax import ExtremeClassifier, load_model
from extremax.data import planted_hierarchy
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.kernels import sparse_dual
from extremax.kernels.dense_dual import DenseOptions, Listing, Pairs, train_classes
from extremax.runtime.context import Context
from extremax.solvers import CandidateSoftmax, MinibatchSoftmax
from extremax.solvers.candidate import CandidateTrainer
from extremax.solvers.optimizers import Tables
from extremax.solvers.warm_start import Moments, leave_one_out_shift, start_discriminant
from extremax.tuned import DEFAULTS, ProblemSize, replace_numbers
from planted import around_means
from trainers import Progress, make_config


@pytest.fixture(scope="module")
def planted():
    return planted_hierarchy(3000, 300, 24, seed=1, n_test=1500)


def fit(X, y, **parameters):
    return ExtremeClassifier.with_solver("candidate_softmax", random_state=0, **parameters).fit(X, y)


# -- the solver


def test_wide_sparse_rows_rejects():
    """A principal component of each column was sought, for hours."""
    X = sparse.random(60, 3000, 0.01, format="csr", dtype=np.float32, random_state=0)
    with pytest.raises(ValueError, match=r"all 3,000 columns of a sparse X; use solver='sparse_softmax'"):
        fit(X, np.arange(60) % 6)


@pytest.mark.reference
def test_class_matches_logistic_regression():
    """One class against frozen others: the minimum of its regularised loss."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype(np.float32)
    y = rng.integers(3, size=60).astype(np.int32)
    weight = rng.uniform(0.5, 2.0, 60).astype(np.float32)
    W, b = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    shift = rng.normal(size=60).astype(np.float32)
    classes = np.array([[own, *(c for c in range(3) if c != own)] for own in y], np.int32)
    rest = rng.normal(size=60).astype(np.float32)
    offsets = np.zeros((60, 3), np.float32)
    offsets[:, 0] = shift
    scores = (np.take_along_axis(X @ W.T + b, classes, axis=1) + offsets).astype(np.float32)
    starts, entries = np.zeros(4, np.int64), np.empty(180, np.int64)
    sparse_dual.list_pairs(classes, starts, entries)
    log_partition = np.empty(60, np.float32)
    sparse_dual.sum_candidates(scores, rest, log_partition, 0, 60)
    options = DenseOptions(0.7, 0.5, 300, 0.0, 0)
    squares = np.einsum("ik,ik->i", X, X)
    own = entries[starts[1] : starts[2]]
    listing = Listing(starts[1:3] - starts[1], own, scores.ravel()[own], log_partition[own // 3])
    pairs, trained, bias = Pairs(np.arange(60), weight, shift, 3), W[1:2].copy(), b[1:2].copy()
    train_classes(X, squares, pairs, listing, trained, bias, options, np.array([1]), 0)

    def loss(change):
        s = (X @ W.T + b).astype(np.float64)
        s[:, 1] += X @ change[:4] + 0.5 * change[4]
        s[np.arange(60), y] += shift
        total = np.logaddexp(np.logaddexp.reduce(s, axis=1), rest)
        return weight @ (total - s[np.arange(60), y]) + 0.35 * change @ change

    best = minimize(loss, np.zeros(5), tol=1e-12).x
    np.testing.assert_allclose(trained[0] - W[1], best[:4], atol=2e-3)
    assert bias[0] - b[1] == pytest.approx(0.5 * best[4], abs=2e-3)
    expected = X[own // 3] @ trained[0] + bias[0] + offsets.ravel()[own]
    np.testing.assert_allclose(listing.scores, expected, atol=1e-4)


# -- the start


@pytest.mark.reference
def test_shift_is_what_leaving_a_row_out_changes():
    X, y = around_means(200, 9, 6, seed=3)
    data, config, context = Examples(X, y), DEFAULTS.warm_start, Context()
    tables = Tables.zeros(9, 6, "sgd")
    start = start_discriminant(tables, Moments.from_pca(PCA.fit(X, 6), 1.0), data, config, context)
    shift = leave_one_out_shift(tables, 1.0, start, data, config, 1)
    x, scale = start.whitening.rows(X, 1.0), config.init_scale_factor * start.scale
    for i in (0, 17, 133):
        mates = np.flatnonzero(y == y[i])

        def own_score(rows, i=i):
            mean = x[rows].sum(axis=0) / (len(rows) + config.shrinkage)
            return scale * (x[i] @ mean - mean @ mean / 2)

        assert shift[i] == pytest.approx(own_score(mates[mates != i]) - own_score(mates), abs=1e-3)


@pytest.mark.planted
def test_left_out_rows_choose_the_shrinkage():
    """Class means that are mostly noise are shrunk more."""
    found = {}
    for distance in (0.05, 3.0):
        X, y = around_means(900, 150, 8, spread=1.0, distance=distance, seed=5)
        tables = Tables.zeros(150, 8, "sgd")
        moments = Moments.from_pca(PCA.fit(X, 8), 1.0)
        arguments = (tables, moments, Examples(X, y), DEFAULTS.warm_start, Context())
        found[distance] = start_discriminant(*arguments, shrinkages=(1.0, 16.0)).shrinkage
    assert found == {0.05: 16.0, 3.0: 1.0}


# -- training


@pytest.mark.planted
@pytest.mark.parametrize("n_epochs", [1, 2, 4])
def test_start_is_never_lost(planted, n_epochs):
    """Held-out log-likelihood of every epoch is that of the start or better."""
    clf = ExtremeClassifier("candidate_softmax", n_epochs=n_epochs, random_state=0)
    clf.fit(planted.X, planted.y, eval_set=(planted.X_test, planted.y_test))
    history = [record["valid_log_likelihood"] for record in clf.history_]
    assert len(history) == n_epochs + 1
    assert min(history) > history[0] - 0.05
    assert history[-1] > history[0] + 0.05


@pytest.mark.planted
def test_start_is_never_lost_inside_an_epoch(planted):
    data = Examples(planted.X, planted.y.astype(np.int32))
    n_classes = int(planted.y.max()) + 1
    config = make_config(data, n_classes, solver="candidate_softmax")
    trainer = CandidateTrainer(config, Context(0, 1))
    state = trainer.start(data, n_classes)
    prepared = trainer.prepare(state, data)
    seen = planted.y_test < n_classes
    X, y = planted.X_test[seen], planted.y_test[seen]

    def log_likelihood():
        weights = trainer.export(state)
        scores = X @ weights.weights.T * weights.feature_scale + weights.biases
        return float(np.mean(scores[np.arange(len(y)), y] - np.logaddexp.reduce(scores, axis=1)))

    first, found = log_likelihood(), []

    class Watch(Progress):
        def report(self, pairs_done, loss):
            found.append(log_likelihood())

    trainer.epoch(state, prepared, (1.0, 0.5), Watch())
    assert len(found) == config.numbers.candidates.blocks
    assert min(found) > first - 0.05


@pytest.mark.planted
def test_level_with_full_softmax(planted):
    figures = {}
    solvers = {"candidates": CandidateSoftmax(), "full": MinibatchSoftmax(n_shared=None)}
    for name, solver in solvers.items():
        clf = ExtremeClassifier(solver, random_state=0).fit(planted.X, planted.y)
        known = np.isin(planted.y_test, clf.classes_)
        X, y = planted.X_test[known], planted.y_test[known]
        figures[name] = clf.score(X, y), clf.log_likelihood(X, y)
    assert figures["candidates"][0] > figures["full"][0] - 0.02
    assert figures["candidates"][1] > figures["full"][1] - 0.05


@pytest.mark.invariance
def test_threads_change_no_bit(planted):
    models = [fit(planted.X, planted.y, n_jobs=n_jobs).model_ for n_jobs in (1, 2)]
    first, second = (model.weights.state().arrays for model in models)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.invariance
def test_resumed_fit_equals_uninterrupted(planted, tmp_path):
    whole = fit(planted.X, planted.y, n_epochs=3)
    part = ExtremeClassifier("candidate_softmax", n_epochs=3, random_state=0)
    part.fit(planted.X, planted.y, callbacks=[lambda record: record["epoch"] == 1])
    assert part.history_[-1]["epoch"] == 1
    part.save(tmp_path / "model")
    resumed = load_model(tmp_path / "model").resume_fit(planted.X, planted.y)
    np.testing.assert_array_equal(
        whole.model_.weights.state().arrays["weights"], resumed.model_.weights.state().arrays["weights"]
    )


@pytest.mark.invariance
def test_sum_of_sample_weights_is_of_no_consequence(planted):
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(planted.y)).astype(np.float32)
    found = []
    for factor in (1.0, 8.0):
        clf = ExtremeClassifier("candidate_softmax", random_state=0)
        clf.fit(planted.X, planted.y, sample_weight=factor * weight)
        found.append(clf.model_.weights.state().arrays["weights"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-3)


def test_several_labels_are_no_negatives_of_each_other():
    """Rows of two labels: both end ahead of every other class."""
    rng = np.random.default_rng(2)
    means = 2.0 * rng.normal(size=(20, 12))
    first = rng.integers(20, size=1500)
    second = (first + 1) % 20
    X = (means[first] + means[second] + 0.3 * rng.normal(size=(1500, 12))).astype(np.float32)
    Y = sparse.csr_matrix(
        (np.ones(3000), (np.tile(np.arange(1500), 2), np.concatenate([first, second]))), shape=(1500, 20)
    )
    clf = fit(X, Y)
    best = clf.predict_topk(X[:300], 2)[0]
    expected = np.sort(np.stack([first, second], axis=1)[:300], axis=1)
    assert np.mean((np.sort(best, axis=1) == expected).all(axis=1)) > 0.95


def test_partial_fit_goes_on_from_the_weights(planted):
    half = len(planted.y) // 2
    clf = fit(planted.X[:half], planted.y[:half])
    known = np.isin(planted.y[half:], clf.classes_)
    X, y = planted.X[half:][known], planted.y[half:][known]
    before = clf.log_likelihood(X, y)
    clf.partial_fit(X, y)
    assert clf.log_likelihood(X, y) > before
    assert clf.model_.n_epochs == 3


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (ProblemSize(50_000, 50_000, 384, 10_000), "candidate_softmax"),
        (ProblemSize(50_000, 250_000, 384, 10_000), "minibatch_softmax"),
        (ProblemSize(50_000, 50_000, 384, 1_000), "minibatch_softmax"),
        (ProblemSize(5_000, 5_000, 384, 2_000), "minibatch_softmax"),
        (ProblemSize(900_000, 900_000, 256, 124_000), "minibatch_softmax"),
    ],
)
def test_auto_takes_it_where_all_scores_are_affordable(problem, expected):
    from extremax.solvers.config import resolve

    assert resolve("auto", problem).solver.name == expected


def test_more_epochs_do_not_fit_more():
    """The regularization of a fit is shared out among its epochs."""
    X, y = around_means(600, 60, 10, spread=1.0, seed=8)
    numbers = replace_numbers(DEFAULTS, candidates={"passes": 20})
    data, lengths = Examples(X, y), {}
    for n_epochs in (2, 8):
        config = make_config(data, 60, solver="candidate_softmax", n_epochs=n_epochs, numbers=numbers)
        trainer = CandidateTrainer(config, Context(0, 1))
        state = trainer.start(data, 60)
        start = state.tables.weights.copy()
        prepared = trainer.prepare(state, data)
        for epoch in range(n_epochs):
            rates = (1.0 - epoch / n_epochs, 1.0 - (epoch + 1) / n_epochs)
            trainer.epoch(state, prepared, rates, Progress())
        lengths[n_epochs] = float(np.linalg.norm(state.tables.weights - start))
    assert lengths[8] < 1.3 * lengths[2]
