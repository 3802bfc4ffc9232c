"""The generative start: each row left out of its class, against sums computed again without it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels import sparse_start as kernels
from extremax.kernels.sparse_start import Numbers
from extremax.scores.sparse import SparseWeights, csr_rows
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


def describe(data, pair, numbers, sizes, seed=3, hidden=()):
    arrays, rows = ClassSums.of(data, N_CLASSES, N_FEATURES).arrays, csr_rows(data.X)
    start = make_start(arrays, numbers, 1)
    n, given = 1 + sum(sizes), pair_of(data, pair)
    scores = (start.biases + rows_of_pair(data, pair).sum() * start.length_biases)[None].astype(np.float32)
    scores[:, list(hidden)] = -np.inf
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


@pytest.mark.identity
@pytest.mark.parametrize("sizes", [(2, 2), (N_CLASSES - 1, 3), (1, N_CLASSES)])
def test_hidden_classes_are_neither_best_nor_drawn(sizes):
    """Other labels of the row, whose sums it is in."""
    data, numbers = make_data("one label"), numbers_of(np.random.default_rng(6))
    for pair in range(12):
        hidden = np.setdiff1d([pair % N_CLASSES, (pair + 3) % N_CLASSES, 8], data.y[pair])
        n, candidates, log_weight, _, _ = describe(data, pair, numbers, sizes, seed=pair, hidden=hidden)
        left = N_CLASSES - 1 - len(hidden)
        n_best = min(sizes[0], left)
        assert n == 1 + n_best + min(sizes[1], left - n_best)
        assert not set(candidates[:n].tolist()) & set(hidden.tolist())
        assert len(set(candidates[:n].tolist())) == n
        total = np.exp(log_weight[1 + n_best : n]).sum()  # the drawn ones stand for all that are left
        assert total == pytest.approx(left - n_best if n > 1 + n_best else 0.0, rel=1e-5)
        assert np.isneginf(log_weight[n:]).all()


@pytest.mark.identity
def test_other_labels_of_a_row_are_not_candidates(monkeypatch):
    """They have the row in their sums: no leave-one-out pair is compared with them."""
    rng = np.random.default_rng(11)
    n_rows, n_classes, n_labels = 300, 320, 40
    labels = np.sort(np.stack([rng.permutation(n_classes)[:n_labels] for _ in range(n_rows)]), axis=1)
    X = sparse.random(n_rows, 60, 0.1, "csr", dtype=np.float32, random_state=1)
    data = Examples(X, labels.ravel().astype(np.int32), np.repeat(np.arange(n_rows), n_labels))
    seen = []

    def keep(rows, pairs, sums, numbers, slot, found, first, last):
        for k in range(first, last):
            seen.append((pairs.rows[k], pairs.classes[k], found.classes[k, : found.sizes[k]].copy()))

    monkeypatch.setattr(kernels, "describe_pairs", keep)
    config = SparseConfig(sample_pairs=60, search_pairs=30, max_smoothing_steps=0)
    arrays = ClassSums.of(data, n_classes, 60).arrays
    fit_numbers(arrays, csr_rows(X), data, config, 0, 1)
    assert len(seen) > 60
    for row, own, candidates in seen:
        assert candidates[0] == own
        assert not set(candidates[1:].tolist()) & set(labels[row].tolist())


# -- proposals


def brute_force(data, table, k, allowed=None):
    """Return the best classes that a row does not have, their scores, and the log of the mass of the rest."""
    expected = []
    for row in range(data.n_rows):
        scores = table[row].copy()
        scores[data.y[data.rows == row]] = -np.inf
        if allowed is not None:
            scores[~allowed[row]] = -np.inf
        best = np.argsort(-scores, kind="stable")[:k]
        best = best[np.isfinite(scores[best])]
        values = scores[best].copy()
        scores[best] = -np.inf
        with np.errstate(divide="ignore"):
            expected.append((best, values, np.logaddexp.reduce(scores)))
    return expected


def propose(data, weights, k, *, needs_rest=True, ranges=None):
    """Call the kernel for all rows of the examples; every row has a label."""
    n_classes = weights.n_classes
    edges = np.searchsorted(data.rows, np.arange(data.n_rows + 1)).astype(np.int64)
    found = kernels.Proposals(
        np.full((data.n_rows, k), 77, np.int32), np.full((data.n_rows, k), 7.0, np.float32),
        np.full(data.n_rows if needs_rest else 0, 7.0, np.float32), np.empty(0, np.float32),
    )  # fmt: skip
    scratch = kernels.make_scratch(n_classes)
    pairs = np.arange(data.n_rows), edges, data.y
    biases = weights.biases, weights.length_biases
    for first, last in ranges or [(0, data.n_rows)]:
        kernels.propose(csr_rows(data.X), pairs, weights.postings, biases, scratch, found, first, last)
        assert not scratch[0].any()
        assert not scratch[1].any()
    return found


def assert_proposed(found, expected, atol=1e-4):
    for row, (best, values, rest) in enumerate(expected):
        n = len(best)
        np.testing.assert_array_equal(found.classes[row, :n], best)
        np.testing.assert_allclose(found.scores[row, :n], values, atol=atol)
        assert (found.classes[row, n:] == -1).all()
        assert np.isneginf(found.scores[row, n:]).all()
        if len(found.log_rest) and rest > -80.0:
            assert found.log_rest[row] == pytest.approx(rest, abs=10 * atol)
        elif len(found.log_rest):  # nothing is left
            assert found.log_rest[row] < -70.0


def make_weights(rng, n_classes, density):
    W = sparse.random(n_classes, N_FEATURES, density, "csc", dtype=np.float32, random_state=3)
    W.data[:] = rng.normal(size=W.nnz)
    biases = rng.normal(size=(2, n_classes)).astype(np.float32)
    return SparseWeights.from_matrix(W, biases[0], biases[1])


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 4, N_CLASSES])
def test_proposals_are_the_best_of_all_classes_where_classes_are_few(kind, k):
    data, weights = make_data(kind), make_weights(np.random.default_rng(10), N_CLASSES, 0.4)
    X = data.X.toarray().astype(np.float64)
    table = X @ weights.to_matrix().toarray().T + weights.biases
    table += X.sum(axis=1, keepdims=True) * weights.length_biases
    expected = brute_force(data, table, k)
    assert_proposed(propose(data, weights, k), expected)
    plain = propose(data, weights, k, needs_rest=False, ranges=[(20, 40), (0, 7), (7, 20)])
    assert_proposed(plain, expected)


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["one label", "several labels"])
def test_proposals_of_many_classes_are_of_those_that_share_a_feature(kind):
    n_classes, rng = kernels.FEW_CLASSES + 251, np.random.default_rng(12)
    data, weights = make_data(kind), make_weights(rng, n_classes, 1.5e-4)
    labels = rng.permutation(n_classes)[:N_CLASSES].astype(np.int32)
    order = np.lexsort([labels[data.y], data.rows])  # labels of a row ascend
    data = Examples(data.X, labels[data.y][order], data.rows[order])
    X, W = data.X.toarray().astype(np.float64), weights.to_matrix().toarray()
    table = X @ W.T + weights.biases + X.sum(axis=1, keepdims=True) * weights.length_biases
    shares = ((X != 0.0).astype(int) @ (W != 0.0).astype(int).T) > 0
    assert 0.0 < shares.mean() < 0.6
    assert (~shares.any(axis=1)).any()  # an empty row shares nothing
    expected = brute_force(data, table, 6, shares)
    assert_proposed(propose(data, weights, 6), expected)


@pytest.mark.reference
@pytest.mark.parametrize("kind", KINDS)
def test_own_scores_match_sums_without_the_row(kind):
    data, numbers = make_data(kind), numbers_of(np.random.default_rng(7))
    if kind == "negative values":  # p_f and m_y are those of positive sums alone, and not exact
        numbers = numbers._replace(log_weights=np.zeros(N_BUCKETS), bias_weights=np.array([0, 0.5, 0]))
    arrays = ClassSums.of(data, N_CLASSES, N_FEATURES).arrays
    found = np.full(data.n_pairs, np.nan, np.float32)
    pairs = kernels.Pairs(data.rows, data.y, data.pair_weight)
    for first, last in ((0, 11), (11, data.n_pairs)):
        kernels.score_own(csr_rows(data.X), pairs, arrays, numbers, found, first, last)
    for pair in range(data.n_pairs):
        expected = SlowSums(data, pair).score(rows_of_pair(data, pair), data.y[pair], numbers)
        assert found[pair] == pytest.approx(expected, abs=5e-4, rel=1e-4)
    whole = [SlowSums(data).score(rows_of_pair(data, p), data.y[p], numbers) for p in range(data.n_pairs)]
    assert np.abs(found - whole).max() > 0.1


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
