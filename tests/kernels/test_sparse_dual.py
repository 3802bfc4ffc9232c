"""The solvers of sparse weights against minimisers of the primal, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from extremax.solvers.sparse.correction import Correction, Job, TrainingRows
from scipy import sparse
from scipy.optimize import minimize

from extremax.examples import Examples
from extremax.kernels import sparse_dual
from extremax.kernels.sparse_dual import Candidates
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse import correction as steps
from extremax.solvers.sparse.start import ClassSums
from extremax.tuned import SparseConfig

N_CLASSES, N_FEATURES, N_ROWS, N_SLOTS = 6, 8, 60, 4


def make_rows(seed=0, n_rows=N_ROWS):
    rng = np.random.default_rng(seed)
    y = (np.arange(n_rows) % N_CLASSES).astype(np.int32)
    X = 0.8 * rng.normal(size=(N_CLASSES, N_FEATURES))[y] + rng.normal(size=(n_rows, N_FEATURES))
    X[rng.random(X.shape) < 0.4] = 0.0
    return Examples(sparse.csr_matrix(X.astype(np.float32)), y)


def make_candidates(data, rng):
    """Own class first, three of the others with offsets, the last one missing in some rows, and a rest."""
    n = data.n_rows
    others = np.array(
        [rng.permutation(np.delete(np.arange(N_CLASSES), label))[: N_SLOTS - 1] for label in data.y]
    )
    classes = np.concatenate([data.y[:, None], others], axis=1).astype(np.int32)
    offsets = rng.normal(size=(n, N_SLOTS)).astype(np.float32)
    missing = rng.random(n) < 0.3
    classes[missing, -1], offsets[missing, -1] = -1, -np.inf
    log_rest = rng.normal(size=n).astype(np.float32) - 1.0
    return Candidates(classes, offsets, log_rest, np.arange(n), np.ones(n, np.float32))


def begin(data, candidates, *, n_threads=1, is_wide=True, n_blocks=None, **numbers):
    numbers = {"regularization": 0.5, "regularization_own": 0.5, "min_pairs_wide": 1, **numbers}
    sums = ClassSums.of(data, N_CLASSES, N_FEATURES)
    job = Job(SparseConfig(**numbers), 3, n_threads)
    config = job.config
    regularization = config.regularization if is_wide else config.regularization_own
    found = Correction.begin(
        csr_rows(data.X), candidates, sums, job, regularization=regularization, is_wide=is_wide
    )
    if n_blocks is not None:
        found.n_blocks = n_blocks
    return found


def train(correction, n_rounds, first=0):
    return [correction.run_round(number, lambda fraction: None) for number in range(first, first + n_rounds)]


class Primal:
    """The regularised loss over supports, in float64, with a constant feature for the bias."""

    def __init__(self, data, candidates, correction):
        self.X = np.hstack([data.X.toarray(), np.full((data.n_rows, 1), correction.options.bias_feature)])
        self.X = self.X.astype(np.float64)
        self.candidates, self.strength = candidates, correction.options.regularization
        self.support = np.zeros((N_CLASSES, N_FEATURES + 1), bool)
        support = correction.support
        for c in range(N_CLASSES):
            self.support[c, support.features[support.starts[c] : support.starts[c + 1]]] = True
        self.support[:, -1] = True

    def __call__(self, flat):
        W = np.where(self.support, flat.reshape(self.support.shape), 0.0)
        rows, classes = self.X[self.candidates.rows], self.candidates.classes
        scores = self.candidates.offsets + np.einsum("if,ijf->ij", rows, W[classes])
        scores = np.hstack([np.where(classes >= 0, scores, -np.inf), self.candidates.log_rest[:, None]])
        total = np.logaddexp.reduce(scores, axis=1)
        weight = self.candidates.weights.astype(np.float64)
        value = weight @ (total - scores[:, 0]) + 0.5 * self.strength * (W**2).sum()
        p = np.exp(scores - total[:, None])[:, :-1]
        p[:, 0] -= 1.0
        gradient = self.strength * W
        for j in range(classes.shape[1]):
            listed = classes[:, j] >= 0
            np.add.at(gradient, classes[listed, j], (weight * p[:, j])[listed, None] * rows[listed])
        return value, np.where(self.support, gradient, 0.0).ravel()

    def minimum(self):
        found = minimize(
            self, np.zeros(self.support.size), jac=True, method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-8},
        )  # fmt: skip
        return found.x.reshape(self.support.shape)


def weights_of(correction):
    """Weights with that of the constant feature in the last column."""
    return np.hstack(
        [correction.matrix.toarray(), correction.biases[:, None] / correction.options.bias_feature]
    ).astype(np.float64)


@pytest.mark.small
@pytest.mark.gradient
def test_gradient_of_the_reference():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    primal = Primal(data, candidates, begin(data, candidates))
    at = np.random.default_rng(2).normal(size=primal.support.size) * primal.support.ravel()
    _, gradient = primal(at)
    for k in np.flatnonzero(primal.support.ravel())[::7]:
        step = np.zeros_like(at)
        step[k] = 1e-5
        assert gradient[k] == pytest.approx((primal(at + step)[0] - primal(at - step)[0]) / 2e-5, abs=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("is_wide", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_correction_ends_at_the_minimum_of_the_primal(is_wide, weighted):
    data, rng = make_rows(), np.random.default_rng(1)
    candidates = make_candidates(data, rng)
    if weighted:
        candidates = candidates._replace(weights=rng.uniform(0.3, 3.0, N_ROWS).astype(np.float32))
    correction = begin(data, candidates, is_wide=is_wide)
    losses, primal = train(correction, 60), Primal(data, candidates, correction)
    best = primal.minimum()
    # Steps of dual variables below 1e-5 are not taken.
    np.testing.assert_allclose(weights_of(correction), best, atol=2e-3)
    lowest, reached = primal(best.ravel())[0], primal(weights_of(correction).ravel())[0]
    assert reached == pytest.approx(lowest, rel=1e-5)
    ridge = 0.5 * primal.strength * (best**2).sum()
    assert losses[-1] == pytest.approx((lowest - ridge) / candidates.weights.sum(), abs=1e-3)


@pytest.mark.identity
@pytest.mark.parametrize("n_rounds", [1, 3])
def test_weights_are_the_dual_variables_times_the_rows(n_rounds):
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    correction = begin(data, candidates)
    train(correction, n_rounds)
    primal, duals = Primal(data, candidates, correction), correction.state.duals
    W = np.zeros(primal.support.shape)
    for j in range(N_SLOTS):
        listed = candidates.classes[:, j] >= 0
        np.add.at(W, candidates.classes[listed, j], duals[listed, j, None] * primal.X[listed])
    W = np.where(primal.support, W, 0.0) / correction.options.regularization
    np.testing.assert_allclose(weights_of(correction), W, atol=2e-5)  # steps in float32
    assert (duals[:, 0] >= 0.0).all()
    assert (duals[:, 0] <= 1.0).all()
    assert (duals[:, 1:] <= 0.0).all()
    assert (duals[:, 1:] >= -1.0).all()
    assert (duals[candidates.classes < 0] == 0.0).all()


@pytest.mark.small
@pytest.mark.identity
def test_scores_are_offsets_and_products():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    correction = begin(data, candidates)
    train(correction, 2)
    added = data.X.toarray() @ correction.matrix.toarray().T + correction.biases
    rows = np.arange(N_ROWS)[:, None]
    expected = candidates.offsets + added[rows, np.maximum(candidates.classes, 0)]
    scores = correction.state.scores.copy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    total = np.logaddexp.reduce(np.hstack([scores, candidates.log_rest[:, None]]).astype(float), axis=1)
    np.testing.assert_allclose(correction.state.log_partition, total, atol=1e-5)
    correction.state.scores[...] = 0.0
    correction.state.scores[candidates.classes < 0] = -np.inf
    correction.refresh()
    np.testing.assert_array_equal(correction.state.scores, scores)


@pytest.mark.identity
def test_every_round_lowers_the_regularised_loss():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    correction = begin(data, candidates, n_blocks=N_CLASSES)  # one class at a time
    primal = Primal(data, candidates, correction)
    values = [primal(np.zeros(primal.support.size))[0]]
    for number in range(8):
        train(correction, 1, first=number)
        values.append(primal(weights_of(correction).ravel())[0])
    assert (np.diff(values) < 1e-4).all()
    assert values[1] < 0.9 * values[0]


@pytest.mark.invariance
def test_a_row_of_weight_two_counts_as_two_rows():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    weights = (1.0 + np.arange(N_ROWS) % 2).astype(np.float32)
    once = begin(data, candidates._replace(weights=weights))
    repeated = np.repeat(np.arange(N_ROWS), weights.astype(int))
    several = Candidates(*(part[repeated] for part in candidates))
    twice = begin(data, several)
    train(once, 60)
    train(twice, 60)
    np.testing.assert_allclose(weights_of(once), weights_of(twice), atol=3e-3)  # as far as both converge


@pytest.mark.invariance
def test_correction_is_the_same_for_any_number_of_threads():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    runs = [begin(data, candidates, n_threads=n) for n in (1, 2, 3)]
    losses = [train(run, 3) for run in runs]
    assert losses[0] == losses[1] == losses[2]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.support.values, runs[0].support.values)
        np.testing.assert_array_equal(run.state.duals, runs[0].state.duals)


@pytest.mark.small
@pytest.mark.identity
def test_few_negatives_keep_all_positives():
    data = make_rows()
    candidates = make_candidates(data, np.random.default_rng(1))
    correction = begin(data, candidates, max_negatives=10)
    train(correction, 1)
    used = correction.state.duals != 0.0
    assert used[:, 0].mean() > 0.9
    assert 20 < used[:, 1:].sum() < 100  # about ten of each of six classes


@pytest.mark.small
@pytest.mark.reference
@pytest.mark.parametrize("min_pairs", [1, 2, 4])
def test_supports_are_own_features_and_those_of_enough_competitors(min_pairs):
    data = make_rows(n_rows=14)
    candidates = make_candidates(data, np.random.default_rng(1))
    correction = begin(data, candidates, min_pairs_wide=min_pairs)
    X = data.X.toarray() != 0.0
    for c in range(N_CLASSES):
        own = X[candidates.classes[:, 0] == c].sum(axis=0)
        others = X[(candidates.classes[:, 1:] == c).any(axis=1)].sum(axis=0)
        part = slice(*correction.support.starts[c : c + 2])
        expected = np.flatnonzero((own > 0) | (others >= min_pairs))
        np.testing.assert_array_equal(correction.support.features[part], expected)
    narrow = begin(data, candidates, is_wide=False)
    np.testing.assert_array_equal(
        narrow.support.features, ClassSums.of(data, N_CLASSES, N_FEATURES).matrix.tocsr().indices
    )


@pytest.mark.small
@pytest.mark.reference
def test_pairs_of_each_class():
    classes = np.array([[2, 0, -1], [0, 2, 1], [2, -1, -1]], np.int32)
    starts, entries = np.zeros(5, np.int64), np.empty(6, np.int64)
    sparse_dual.list_pairs(classes, starts, entries)
    assert starts.tolist() == [0, 2, 3, 6, 6]
    assert entries.tolist() == [1, 3, 5, 0, 4, 6]


# -- SVMs ----------------------------------------------------------------------------------------------------


def fit_svms(data, n_classes=N_CLASSES, n_threads=1, whole=None, **numbers):
    numbers = {"svm_passes": 2000, "svm_tolerance": 1e-4, "svm_prune": 0.0, **numbers}
    rows, n_features = csr_rows(data.X), data.X.shape[1]
    training = TrainingRows(data, rows, steps.feature_mean(rows, n_features))
    job = Job(SparseConfig(**numbers), 5, n_threads)
    return steps.fit_svms(training, (n_classes, n_features), job, whole)[0 if whole is None else 1]


@pytest.mark.reference
@pytest.mark.parametrize(("cost", "bias_feature"), [(1.0, 0.5), (0.3, 2.0)])
def test_svms_are_those_of_scikit_learn(cost, bias_feature):
    from sklearn.svm import LinearSVC

    data = make_rows()
    W, biases = fit_svms(data, svm_cost=cost, svm_bias_feature=bias_feature)
    peer = LinearSVC(C=cost, intercept_scaling=bias_feature, dual=True, tol=1e-6, max_iter=100_000)
    peer.fit(data.X, data.y)
    found = data.X.toarray() @ W.toarray().T + biases
    np.testing.assert_allclose(found, peer.decision_function(data.X), atol=1e-2)


@pytest.mark.invariance
def test_weights_of_rows_in_svms():
    """Weight two is two rows, weight zero none; a row without a pair does not count."""
    data = make_rows()
    weight = (np.arange(N_ROWS) // 6 % 3).astype(np.float32)
    W, biases = fit_svms(Examples(data.X, data.y, None, weight))
    rows = np.repeat(np.arange(N_ROWS), weight.astype(int))
    V, others = fit_svms(Examples(data.X[rows], data.y[rows]))
    np.testing.assert_allclose(W.toarray(), V.toarray(), atol=2e-3)
    np.testing.assert_allclose(biases, others, atol=2e-3)
    kept = np.flatnonzero(weight)
    A, a = fit_svms(Examples(data.X, data.y[kept], kept))
    B, b = fit_svms(Examples(data.X[kept], data.y[kept]))
    np.testing.assert_allclose(A.toarray(), B.toarray(), atol=2e-3)
    np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.reference
def test_svms_of_rows_with_several_labels():
    """A row is positive for each of its labels."""
    from sklearn.svm import LinearSVC

    data = make_rows()
    second = ((data.y + 1) % N_CLASSES).astype(np.int32)
    labels, rows = np.sort(np.stack([data.y, second], axis=1), axis=1), np.arange(N_ROWS)
    W, biases = fit_svms(Examples(data.X, labels.ravel(), np.repeat(rows, 2)))
    found = data.X.toarray() @ W.toarray().T + biases
    for c in (0, 3):
        peer = LinearSVC(intercept_scaling=0.5, dual=True, tol=1e-6, max_iter=100_000)
        peer.fit(data.X, (labels == c).any(axis=1))
        np.testing.assert_allclose(found[:, c], peer.decision_function(data.X), atol=1e-2)


@pytest.mark.small
def test_svms_with_few_passes_threads_and_classes_without_rows():
    data = make_rows()
    W, biases = fit_svms(data, N_CLASSES + 2, svm_passes=6, svm_prune=0.05)
    V, others = fit_svms(data, N_CLASSES + 2, svm_passes=6, svm_prune=0.05, n_threads=3)
    np.testing.assert_array_equal(W.toarray(), V.toarray())
    np.testing.assert_array_equal(biases, others)
    assert W.has_sorted_indices
    assert W[N_CLASSES:].nnz == 0
    assert (biases[N_CLASSES:] <= biases[:N_CLASSES].min()).all()
    mean = np.abs(data.X.toarray()).sum(axis=0) / (data.X.toarray() != 0).sum(axis=0)
    assert (np.abs(W.toarray()) * mean)[W.toarray() != 0].min() >= 0.05
    full, _ = fit_svms(data, N_CLASSES + 2, svm_passes=6)
    assert 0 < W.nnz < full.nnz


@pytest.mark.reference
def test_svms_that_go_on_with_more_rows_are_those_of_all_rows():
    data = make_rows()
    kept = np.flatnonzero(np.arange(N_ROWS) % 4)
    some = Examples(data.X, data.y[kept], kept)
    W, biases = fit_svms(some, whole=data, svm_more_passes=2000)
    V, others = fit_svms(data)
    np.testing.assert_allclose(W.toarray(), V.toarray(), atol=2e-3)
    np.testing.assert_allclose(biases, others, atol=2e-3)
    assert np.abs(fit_svms(some)[0].toarray() - V.toarray()).max() > 0.1


@pytest.mark.identity
@pytest.mark.small
def test_candidates_that_are_left_out_keep_their_mass():
    candidates = make_candidates(make_rows(), np.random.default_rng(1))
    fewer = steps.keep_best(candidates, 2)
    assert fewer.classes.shape == (len(candidates.rows), 3)
    total = [np.logaddexp(np.logaddexp.reduce(c.offsets, axis=1), c.log_rest) for c in (candidates, fewer)]
    np.testing.assert_allclose(*total, rtol=1e-5)
    assert steps.keep_best(candidates, candidates.classes.shape[1] - 1) is candidates
