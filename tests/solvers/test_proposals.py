"""The search for plausible classes: which rows and weights it reads, and how much work that is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremax.examples import Examples
from extremax.runtime.products import count_indices
from extremax.scores.sparse import SparseWeights, csr_rows
from extremax.solvers.sparse.plausible import (
    Job,
    TrainingRows,
    feature_mean,
    find_plausible,
    limit_postings,
    score_own,
)
from extremax.solvers.sparse.start import ClassSums, fit_numbers, make_start
from extremax.tuned import SparseConfig
from planted import word_rows

N_CLASSES, N_WORDS = 60, 400
ALL = SparseConfig(prune=0.0, row_work=10**9)


def training_of(X, y, rows=None):
    kernel_rows = csr_rows(X)
    data = Examples(X, np.asarray(y, np.int32), rows)
    return TrainingRows(data, kernel_rows, feature_mean(kernel_rows, X.shape[1]))


def start_of(training, n_classes=N_CLASSES):
    data = training.data
    arrays = ClassSums.of(data, n_classes, data.X.shape[1]).arrays
    numbers, _ = fit_numbers(arrays, training.rows, data, SparseConfig(), 0, 1)
    start = make_start(arrays, numbers, 1)
    return SparseWeights(start.postings, start.biases, start.length_biases), arrays, numbers


@pytest.fixture(scope="module")
def words():
    training = training_of(*word_rows(600, N_CLASSES, N_WORDS))
    return training, start_of(training)[0]


def work_of(training, postings):
    """Multiply-adds of all rows."""
    lengths = np.diff(postings.offsets)
    return int((count_indices(training.rows.indices, len(lengths)) * lengths).sum())


@pytest.mark.identity
@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01])
def test_work_of_a_mean_row_is_bounded(words, share):
    training, weights = words
    n_rows, whole = training.data.n_rows, work_of(training, weights.postings)
    limit = int(np.ceil(share * whole / n_rows))
    found = limit_postings(
        weights.postings, training, Job(SparseConfig(prune=0.0, row_work=limit), 0, 1), limit
    )
    kept, before = np.diff(found.offsets), np.diff(weights.postings.offsets)
    assert work_of(training, found) <= limit * n_rows
    assert ((kept == before) | (kept == 0)).all()  # whole columns
    if share == 1.0:
        assert found is weights.postings
        return
    dropped, left = before[(kept == 0) & (before > 0)], before[kept > 0]
    assert left.max(initial=0) <= dropped.min()  # the longest
    reads = count_indices(training.rows.indices, len(before)) * before
    following = reads[(kept == 0) & (before == dropped.min())].max()
    assert work_of(training, found) + following > limit * n_rows or share < 0.1  # and no more of them
    column = np.flatnonzero(kept)[len(left) // 2]
    part, whole_part = (slice(*p.offsets[column : column + 2]) for p in (found, weights.postings))
    np.testing.assert_array_equal(found.classes[part], weights.postings.classes[whole_part])
    np.testing.assert_array_equal(found.values[part], weights.postings.values[whole_part])


@pytest.mark.identity
def test_parts_of_words_are_dropped_before_words(words):
    training, weights = words
    first, lengths = 150, np.diff(weights.postings.offsets)
    reads = count_indices(training.rows.indices, len(lengths)) * lengths
    of_words = int(reads[first:].sum())
    assert of_words < work_of(training, weights.postings)
    n_rows = training.data.n_rows

    def limited(work):
        most = int(np.ceil(work / n_rows))
        job = Job(SparseConfig(prune=0.0, row_work=most), 0, 1, first_word=first)
        return np.diff(limit_postings(weights.postings, training, job, most).offsets)

    found = limited(of_words)
    assert (found[:first] == 0).all()
    np.testing.assert_array_equal(found[first:], lengths[first:])
    fewer = limited(of_words // 2)
    assert (fewer[:first] == 0).all()
    assert 0 < (fewer[first:] > 0).sum() < (lengths[first:] > 0).sum()
    np.testing.assert_array_equal(limited(reads.sum()), lengths)


@pytest.mark.identity
def test_scores_beside_a_rest_are_of_all_words(words):
    training, weights = words
    few = Job(SparseConfig(prune=0.0, row_work=100), 0, 1, first_word=150)
    whole, found = (
        find_plausible(training, weights, 8, job, needs_rest=True) for job in (Job(ALL, 0, 1), few)
    )
    for expected, given in zip(whole, found, strict=True):
        np.testing.assert_array_equal(given, expected)
    proposed = find_plausible(training, weights, 8, few, row_work=100)
    assert (proposed.scores < whole.scores).mean() > 0.5


@pytest.mark.planted
def test_fewer_words_find_mostly_the_same_classes(words):
    training, weights = words
    whole = find_plausible(training, weights, 8, Job(ALL, 0, 1))
    limit = int(0.5 * work_of(training, weights.postings) / training.data.n_rows)
    some = find_plausible(training, weights, 8, Job(SparseConfig(row_work=limit), 0, 1), row_work=limit)
    same = [len(set(a) & set(b)) / 8 for a, b in zip(whole.classes, some.classes, strict=True)]
    assert 0.5 < np.mean(same) < 1.0  # chance is 0.14


@pytest.mark.reference
@pytest.mark.parametrize("needs_rest", [False, True])
def test_rows_without_a_label_have_no_plausible_classes(words, needs_rest):
    training, weights = words
    X, y = training.data.X, training.data.y
    rng = np.random.default_rng(0)
    labelled = np.flatnonzero(rng.random(len(y)) < 0.6)
    rows, labels = np.repeat(labelled, 2), np.stack([y[labelled], (y[labelled] + 1) % N_CLASSES], axis=1)
    some = training_of(X, np.sort(labels, axis=1).ravel(), rows)
    found = find_plausible(some, weights, 5, Job(ALL, 0, 2), needs_rest=needs_rest)
    assert found.classes.shape == found.scores.shape == (len(y), 5)
    assert found.log_rest.shape == (len(y) if needs_rest else 0,)
    without = np.setdiff1d(np.arange(len(y)), labelled)
    assert (found.classes[without] == -1).all()
    assert np.isneginf(found.scores[without]).all()
    assert np.isneginf(found.log_rest[without if needs_rest else []]).all()
    dense = X.toarray().astype(np.float64)
    table = dense @ weights.to_matrix().toarray().T + weights.biases
    table += dense.sum(axis=1, keepdims=True) * weights.length_biases
    for row, own in zip(labelled, labels, strict=True):
        scores = table[row].copy()
        scores[own] = -np.inf
        best = np.argsort(-scores, kind="stable")[:5]
        np.testing.assert_allclose(found.scores[row], scores[best], atol=1e-3)
        assert not set(own.tolist()) & set(found.classes[row].tolist())
        np.testing.assert_allclose(table[row, found.classes[row]], found.scores[row], atol=1e-3)
        if needs_rest:
            scores[found.classes[row]] = -np.inf
            assert found.log_rest[row] == pytest.approx(np.logaddexp.reduce(scores), abs=1e-3)


@pytest.mark.invariance
def test_same_bits_for_any_number_of_threads(words):
    training, weights = words
    found = [
        find_plausible(training, weights, 5, Job(SparseConfig(), 0, n), needs_rest=True) for n in (1, 2, 3)
    ]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    _, arrays, numbers = start_of(training)
    own = [score_own(training, arrays, numbers, Job(SparseConfig(), 0, n)) for n in (1, 3)]
    np.testing.assert_array_equal(*own)


@pytest.mark.planted
def test_a_row_is_no_evidence_for_its_own_class():
    """Rows of random words: left out, their class is as good as any other; left in, it is the best."""
    rng = np.random.default_rng(0)
    X = sparse.csr_matrix((rng.random((400, 300)) < 0.05).astype(np.float32))
    y = rng.integers(0, 40, 400)
    training = training_of(X, y)
    weights, arrays, numbers = start_of(training, 40)
    # numbers as for rows that say something of their class
    numbers = numbers._replace(
        log_weights=np.full_like(numbers.log_weights, 0.5),
        cosine_weights=np.full_like(numbers.log_weights, 4.0),
    )
    start = make_start(arrays, numbers, 1)
    weights = SparseWeights(start.postings, start.biases, start.length_biases)
    own = score_own(training, arrays, numbers, Job(ALL, 0, 1))
    inside = weights.score_pairs(X, np.arange(400), y[:, None].astype(np.int32), 1)[:, 0]
    best = find_plausible(training, weights, 1, Job(ALL, 0, 1)).scores[:, 0]
    assert (own > best).mean() < 0.1
    assert (inside > best).mean() > 0.9
