"""The generative start: each row left out of its class, against sums computed again without it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax.examples import Examples
from extremax.kernels import sparse_start as kernels
from extremax.kernels.sparse_start import Numbers
from extremax.scores.sparse import SparseWeights, csr_rows, prune_postings
from extremax.solvers.sparse import correction as steps
from extremax.solvers.sparse.start import ClassSums, fit_numbers, make_start
from extremax.tuned import SparseConfig

pytestmark = pytest.mark.small

N_CLASSES, N_FEATURES, N_ROWS = 9, 14, 40
EDGES, FIRST_WORD = (2, 4, 7), 5  # columns before the first word have buckets of their own
N_BUCKETS = 2 * (len(EDGES) + 1)
KINDS = ["one label", "several labels", "weights", "negative values"]


def numbers_of(rng, first_word=FIRST_WORD):
    weights = rng.normal(size=(2, N_BUCKETS))
    groups = np.array([first_word], np.int64)
    return Numbers(0.7, *weights, rng.normal(size=3), np.array(EDGES, np.int64), groups)


def make_data(kind):
    """Few entries, so that some features have one class only; every class has at least three rows."""
    rng = np.random.default_rng(KINDS.index(kind))
    X = rng.gamma(1.0, size=(N_ROWS, N_FEATURES))
    X[rng.random(X.shape) < 0.75] = 0.0
    X[:, -1] = 0.0  # one row has the last feature
    X[7, -1] = 0.6
    X[5] = 0.0  # an empty row
    y = (np.arange(N_ROWS) % N_CLASSES).astype(np.int32)
    if kind == "negative values":
        X *= rng.choice([-1.0, 1.0], X.shape)
    matrix = sparse.csr_matrix(X.astype(np.float32))
    weight = rng.uniform(0.5, 3.0, N_ROWS).astype(np.float32) if kind == "weights" else None
    if kind != "several labels":
        return Examples(matrix, y, None, weight)
    labels = [np.unique([c, *rng.integers(0, N_CLASSES, 2)]) if i % 3 else [c] for i, c in enumerate(y)]
    rows = np.repeat(np.arange(N_ROWS), [len(found) for found in labels])
    weight = rng.uniform(0.5, 3.0, len(rows)).astype(np.float32)
    return Examples(matrix, np.concatenate(labels).astype(np.int32), rows, weight)


class SlowSums:
    """Sums in float64 of all pairs but one, and scores from the formula of the module."""

    def __init__(self, data, left_out=None):
        X, kept = data.X.toarray().astype(np.float64), np.arange(data.n_pairs) != left_out
        self.S, self.counts = np.zeros((N_CLASSES, X.shape[1])), np.zeros(N_CLASSES)
        has = np.zeros((N_CLASSES, X.shape[1]), bool)
        for row, label, weight in zip(
            data.rows[kept], data.y[kept], data.pair_weight[kept].astype(float), strict=True
        ):
            self.S[label] += weight * X[row]
            self.counts[label] += weight
            has[label] |= X[row] != 0.0
        self.mass = np.maximum(self.S.sum(axis=1), 1e-3)
        self.norms = np.linalg.norm(self.S, axis=1)
        self.n_having = has.sum(axis=0)
        self.feature_mass = np.maximum(self.S, 0.0).sum(axis=0)

    def terms(self, x, label, numbers):
        """The terms of a score: naive Bayes and cosine by bucket, and three biases."""
        n = N_BUCKETS
        phi, a = np.zeros(2 * n + 3), numbers.smoothing
        for f in np.flatnonzero(x):
            if self.n_having[f] == 0:
                continue
            bucket = sum(self.n_having[f] >= edge for edge in EDGES)
            bucket += len(EDGES) + 1 if f >= numbers.groups[0] else 0
            share = max(self.feature_mass[f], 1e-3) / self.feature_mass.sum()
            value = self.S[label, f]
            phi[bucket] += x[f] * math.log1p(max(value, 0.0) / (a * share))
            phi[n + bucket] += x[f] * value / self.norms[label]
        log_mass = math.log1p(self.mass[label] / a)
        phi[2 * n :] = x.sum() * log_mass, math.log(self.counts[label]), log_mass
        return phi

    def score(self, x, label, numbers):
        theta = np.concatenate([numbers.log_weights, numbers.cosine_weights, numbers.bias_weights])
        return self.terms(x, label, numbers) @ theta


def rows_of_pair(data, pair):
    return data.X[data.rows[pair]].toarray()[0].astype(np.float64)


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_start_match_the_formula(kind):
    data, numbers = make_data(kind), numbers_of(np.random.default_rng(5))
    sums, slow = ClassSums.of(data, N_CLASSES, N_FEATURES), SlowSums(data)
    np.testing.assert_allclose(sums.matrix.toarray(), slow.S, atol=1e-5)
    arrays = sums.arrays
    np.testing.assert_allclose(arrays.counts, slow.counts, rtol=1e-6)
    np.testing.assert_allclose(arrays.mass, slow.mass, rtol=1e-4)  # sums of float32, with both signs
    np.testing.assert_allclose(np.sqrt(arrays.squares), slow.norms, rtol=1e-5)
    np.testing.assert_allclose(arrays.feature_mass, slow.feature_mass, rtol=1e-5)
    start = make_start(arrays, numbers, 1)
    W = sparse.csc_matrix((start.postings.values, start.postings.classes, start.postings.offsets)).toarray()
    X = data.X.toarray().astype(np.float64)
    found = X @ W.T + X.sum(axis=1, keepdims=True) * start.length_biases + start.biases
    expected = [[slow.score(x, label, numbers) for label in range(N_CLASSES)] for x in X]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


def pair_of(data, pair):
    return kernels.Pairs(data.rows[[pair]], data.y[[pair]], data.pair_weight[[pair]])


def describe(data, pair, numbers, sizes, seed=3):
    arrays, rows = ClassSums.of(data, N_CLASSES, N_FEATURES).arrays, csr_rows(data.X)
    start = make_start(arrays, numbers, 1)
    n, given = 1 + sum(sizes), pair_of(data, pair)
    scores = (start.biases + rows_of_pair(data, pair).sum() * start.length_biases)[None].astype(np.float32)
    slot = np.full(N_CLASSES, -1, np.int32)
    found = kernels.Candidates(
        np.full((1, n), -1, np.int32),
        np.zeros((1, n), np.float32),
        np.zeros((1, n, 2 * N_BUCKETS + 3), np.float32),
        np.zeros(1, np.int64),
    )
    best = np.zeros(sizes[0], np.int32), np.zeros(sizes[0], np.float32)
    kernels.choose_candidates(
        rows, given, arrays, start.postings.values, *sizes, seed, scores, slot, best, found, 0, 1
    )
    assert (slot == -1).all()
    kernels.describe_pairs(rows, given, arrays, numbers, slot, found, 0, 1)
    assert (slot == -1).all()
    return found.sizes[0], found.classes[0], found.log_weight[0], found.terms[0], start


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_terms_of_a_row_left_out_match_sums_without_it(kind):
    data, numbers = make_data(kind), numbers_of(np.random.default_rng(6))
    for pair in range(0, data.n_pairs, 3):
        slow, x = SlowSums(data, pair), rows_of_pair(data, pair)
        n, candidates, log_weight, phi, _ = describe(data, pair, numbers, (N_CLASSES - 1, 0))
        assert n == N_CLASSES
        assert candidates[0] == data.y[pair]
        assert sorted(candidates) == list(range(N_CLASSES))
        assert (log_weight == 0.0).all()
        expected = np.array([slow.terms(x, label, numbers) for label in candidates])
        if kind == "negative values":  # p_f and m_y are those of positive sums alone, and not exact
            cosines = slice(N_BUCKETS, 2 * N_BUCKETS)
            assert np.isfinite(phi).all()
            phi, expected = phi[:, cosines], expected[:, cosines]
        np.testing.assert_allclose(phi, expected, atol=2e-4, rtol=1e-4)  # differences of float32 sums


@pytest.mark.gradient
@pytest.mark.parametrize("kind", ["one label", "several labels", "weights"])
def test_slope_by_the_size_of_a_class_matches_differences(kind):
    data, numbers = make_data(kind), numbers_of(np.random.default_rng(6))
    arrays, rows = ClassSums.of(data, N_CLASSES, N_FEATURES).arrays, csr_rows(data.X)
    for pair in range(0, data.n_pairs, 3):
        x, label, found = rows_of_pair(data, pair), int(data.y[pair]), np.zeros(2 * N_BUCKETS + 3)
        kernels.add_count_slopes(rows, pair_of(data, pair), arrays, numbers, found)
        slow = SlowSums(data, pair)
        terms = []
        for factor in (math.exp(-1e-4), math.exp(2e-4)):  # one after the other: 1e-4 on both sides
            for table in (slow.S, slow.counts, slow.mass, slow.norms):
                table[label] *= factor
            terms.append(slow.terms(x, label, numbers))
        np.testing.assert_allclose(found, (terms[1] - terms[0]) / 2e-4, atol=2e-3, rtol=1e-3)


@pytest.mark.identity
def test_candidates_are_the_best_and_some_of_the_others():
    data, numbers = make_data("one label"), numbers_of(np.random.default_rng(6))
    seen = set()
    for pair in range(12):
        n, candidates, log_weight, _, start = describe(data, pair, numbers, (3, 2), seed=pair)
        assert n == 6
        assert len(set(candidates.tolist())) == 6
        W = sparse.csc_matrix((start.postings.values, start.postings.classes, start.postings.offsets))
        x = data.X[pair]
        scores = (x @ W.T).toarray()[0] + x.sum() * start.length_biases + start.biases
        scores[data.y[pair]] = -np.inf
        np.testing.assert_array_equal(candidates[1:4], np.argsort(-scores, kind="stable")[:3])
        # Two of the five other classes are drawn and stand for all five.
        np.testing.assert_allclose(log_weight, [0.0] * 4 + [math.log(5 / 2)] * 2, rtol=1e-6)
        seen |= set(candidates[4:].tolist())
    assert len(seen) >= 4
    n, candidates, log_weight, _, _ = describe(data, 0, numbers, (6, 7))  # more than there are
    assert n == N_CLASSES
    assert (log_weight[:n] == 0.0).all()


def propose(data, numbers, n_candidates, rare, prune=0.0, n_threads=1):
    arrays, rows = ClassSums.of(data, N_CLASSES, N_FEATURES).arrays, csr_rows(data.X)
    start = make_start(arrays, numbers, 1)
    source = steps.ProposalSource(arrays, numbers, start)
    training = steps.TrainingRows(data, rows, steps.feature_mean(rows, N_FEATURES))
    postings = prune_postings(start.postings, training.mean, prune)
    job = steps.Job(SparseConfig(rare_classes=rare), 0, n_threads)
    return steps.propose(training, np.arange(data.n_pairs), source, postings, n_candidates, job)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["one label", "weights", "negative values"])
def test_proposals_match_sums_without_the_row(kind):
    data, numbers = make_data(kind), numbers_of(np.random.default_rng(7))
    if kind == "negative values":  # p_f and m_y are those of positive sums alone, and not exact
        numbers = numbers._replace(log_weights=np.zeros(N_BUCKETS), bias_weights=np.array([0, 0.5, 0]))
    found = propose(data, numbers, 4, rare=N_CLASSES)
    np.testing.assert_array_equal(found.classes[:, 0], data.y)
    np.testing.assert_array_equal(found.rows, data.rows)
    np.testing.assert_array_equal(found.weights, data.pair_weight)
    for pair in range(data.n_pairs):
        slow, x = SlowSums(data, pair), rows_of_pair(data, pair)
        scores = np.array([slow.score(x, label, numbers) for label in range(N_CLASSES)])
        others = np.delete(np.arange(N_CLASSES), data.y[pair])
        np.testing.assert_allclose(found.offsets[pair, 0], scores[data.y[pair]], atol=5e-4, rtol=1e-4)
        best = others[reference.ranked(scores[others][None], 4)[0]]
        np.testing.assert_array_equal(found.classes[pair, 1:], best)
        np.testing.assert_allclose(found.offsets[pair, 1:], scores[best], atol=5e-4, rtol=1e-4)
        rest = np.setdiff1d(others, best)
        expected = np.log(np.exp(scores[rest] - scores.max()).sum()) + scores.max()
        assert found.log_rest[pair] == pytest.approx(expected, abs=1e-3, rel=1e-4)


@pytest.mark.reference
def test_proposals_of_rows_with_several_labels():
    """Own scores leave the pair out; no label of the row is proposed against another."""
    data, numbers = make_data("several labels"), numbers_of(np.random.default_rng(8))
    found = propose(data, numbers, 5, rare=N_CLASSES)
    for pair in range(data.n_pairs):
        slow = SlowSums(data, pair)
        expected = slow.score(rows_of_pair(data, pair), data.y[pair], numbers)
        assert found.offsets[pair, 0] == pytest.approx(expected, abs=5e-4, rel=1e-4)
        labels = data.y[data.rows == data.rows[pair]]
        negatives = found.classes[pair, 1:]
        assert not set(labels.tolist()) & set(negatives[negatives >= 0].tolist())
        assert (negatives >= 0).sum() == min(5, N_CLASSES - len(labels))
        assert np.isneginf(found.offsets[pair, 1:][negatives < 0]).all()


@pytest.mark.reference
def test_frequent_features_are_proposed_by_the_weights_of_all_rows():
    data, numbers = make_data("one label"), numbers_of(np.random.default_rng(9))
    found, slow = propose(data, numbers, N_CLASSES - 1, rare=0), SlowSums(data)
    for pair in range(data.n_pairs):
        x = rows_of_pair(data, pair)
        scores = [slow.score(x, label, numbers) for label in found.classes[pair, 1:]]
        np.testing.assert_allclose(found.offsets[pair, 1:], scores, atol=5e-4, rtol=1e-4)
    pruned = propose(data, numbers, N_CLASSES - 1, rare=0, prune=np.inf)  # the biases alone are left
    start = make_start(ClassSums.of(data, N_CLASSES, N_FEATURES).arrays, numbers, 1)
    scores = start.biases + data.X.toarray().sum(axis=1, keepdims=True) * start.length_biases
    expected = np.take_along_axis(scores, pruned.classes[:, 1:].astype(np.int64), axis=1)
    np.testing.assert_allclose(pruned.offsets[:, 1:], expected, atol=1e-4)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["one label", "several labels"])
def test_proposals_by_given_weights(kind):
    data, rng = make_data(kind), np.random.default_rng(10)
    W, biases = rng.normal(size=(N_CLASSES, N_FEATURES)), rng.normal(size=N_CLASSES)
    weights = SparseWeights.from_matrix(np.where(rng.random(W.shape) < 0.5, W, 0.0), biases)
    training = steps.TrainingRows(data, csr_rows(data.X), np.ones(N_FEATURES, np.float32))
    found = steps.propose_by_weights(training, weights, 4, steps.Job(SparseConfig(), 0, 2))
    table = data.X.toarray().astype(np.float64) @ weights.to_dense().T + weights.biases
    np.testing.assert_array_equal(found.rows, data.rows)
    np.testing.assert_array_equal(found.weights, data.pair_weight)
    for pair in range(data.n_pairs):
        row, labels = data.rows[pair], data.y[data.rows == data.rows[pair]]
        scores = table[row].copy()
        scores[labels] = -np.inf
        best = np.argsort(-scores, kind="stable")[:4]
        np.testing.assert_array_equal(found.classes[pair], [data.y[pair], *best])
        np.testing.assert_allclose(found.offsets[pair], table[row][found.classes[pair]], atol=1e-5)
        scores[best] = -np.inf
        assert found.log_rest[pair] == pytest.approx(np.logaddexp.reduce(scores), abs=1e-4)


@pytest.mark.invariance
def test_proposals_are_the_same_for_any_number_of_threads():
    data, numbers = make_data("several labels"), numbers_of(np.random.default_rng(8))
    first, second = (propose(data, numbers, 5, rare=3, n_threads=n) for n in (1, 3))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.identity
def test_sums_of_two_parts_are_those_of_all_rows(tmp_path):
    data = make_data("weights")
    halves = [
        Examples(data.X[part], data.y[part], None, data.weight[part])
        for part in (slice(0, 17), slice(17, None))
    ]
    first, second = (ClassSums.of(half, N_CLASSES, N_FEATURES) for half in halves)
    whole, both = ClassSums.of(data, N_CLASSES, N_FEATURES), first.plus(second)
    np.testing.assert_allclose(both.matrix.toarray(), whole.matrix.toarray(), rtol=1e-6)
    np.testing.assert_allclose(both.counts, whole.counts)
    again = ClassSums.from_state(both.state())
    for a, b in zip(again.arrays, both.arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    narrow = ClassSums.of(data, N_CLASSES, 6)  # the other columns are dense
    np.testing.assert_allclose(narrow.matrix.toarray(), whole.matrix.toarray()[:, :6], rtol=1e-6)


@pytest.mark.planted
def test_fitted_numbers_are_better_than_the_first_guess_and_reproducible():
    rng = np.random.default_rng(0)
    y = rng.integers(0, N_CLASSES, 200).astype(np.int32)
    own = rng.integers(0, 50, (N_CLASSES, 6))
    X = np.zeros((200, 50), np.float32)
    for i, label in enumerate(y):
        X[i, rng.choice(own[label], 3)] += 1.0
        X[i, rng.integers(0, 50, 4)] += 1.0
    data = Examples(sparse.csr_matrix(X), y)
    config = SparseConfig(smoothing=(0.1, 1.0), max_smoothing_steps=1, bucket_edges=EDGES)
    sums = ClassSums.of(data, N_CLASSES, 50).arrays
    found = [fit_numbers(sums, csr_rows(data.X), data, config, 4, n) for n in (1, 2)]
    numbers, likelihood = found[0]
    assert likelihood > -0.9 * math.log(N_CLASSES)
    for a, b in zip(numbers, found[1][0], strict=True):
        np.testing.assert_array_equal(a, b)
    few, unknown = fit_numbers(
        sums, csr_rows(data.X), data, SparseConfig(min_sample_pairs=1000, bucket_edges=EDGES), 4, 1
    )
    assert math.isnan(unknown)
    assert all(np.isfinite(part).all() for part in few)
