"""The similarity that all classes share: gradients against differences, planted analogies, threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from extremax.solvers.sparse.correction import Job, TrainingRows, feature_mean
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.examples import Examples
from extremax.kernels import bilinear as kernels
from extremax.kernels.bilinear import Gradient, Similarity
from extremax.kernels.sparse_dual import Candidates
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse.bilinear import choose_columns, fit_bilinear
from extremax.tuned import DEFAULTS, replace_numbers


class Small(ExtremeClassifier):
    """A classifier whose similarity has few coordinates, for problems of a few hundred rows."""

    _numbers = replace_numbers(
        DEFAULTS,
        sparse={
            "few_classes": 0, "svm_work": 0.0, "svm_work_several": 0.0, "min_held_out_pairs": 200,
            "bilinear_size": 8,
            "bilinear_min_rows": 2, "bilinear_batch": 128, "bilinear_epochs": 30, "bilinear_drawn": 32,
        },
    )  # fmt: skip


def problem(rng, n=5, n_classes=7, size=4, n_slots=3, n_drawn=4):
    classes = np.array([rng.permutation(n_classes)[:n_slots] for _ in range(n)], np.int32)
    candidates = Candidates(
        classes, rng.normal(size=(n, n_slots)).astype(np.float32), rng.normal(size=n).astype(np.float32),
        np.arange(n), (0.5 + rng.random(n)).astype(np.float32),
    )  # fmt: skip
    counts = rng.integers(2, 6, n_classes)
    similarity = Similarity(
        rng.normal(size=(n, size)).astype(np.float32), rng.normal(size=(n, size)).astype(np.float32),
        rng.normal(size=(n_classes, size)).astype(np.float32),
        (1 / counts).astype(np.float32), (1 / (counts - 1)).astype(np.float32),
    )  # fmt: skip
    return candidates, similarity, rng.integers(0, n_classes, n_drawn)


def differentiate(candidates, similarity, drawn):
    n, n_slots = candidates.classes.shape
    gradient = Gradient(
        np.empty_like(similarity.rows), np.empty((n, n_slots), np.float32),
        np.empty((n, len(drawn)), np.float32), np.empty(n),
    )  # fmt: skip
    kernels.differentiate(np.arange(n), candidates, similarity, drawn, gradient, 0, n)
    return gradient


def reference(candidates, similarity, drawn, i):
    """Return the log-likelihood of a pair in float64, from the formulas."""
    z = similarity.rows[i].astype(np.float64)
    scores = []
    for a, c in enumerate(candidates.classes[i]):
        v = similarity.sums[c].astype(np.float64)
        factor = similarity.factor[c]
        if a == 0:
            v, factor = v - similarity.own[i], similarity.own_factor[c]
        scores.append(candidates.offsets[i, a] + factor * z @ v)
    others = [factor_c * z @ similarity.sums[c] for c, factor_c in ((c, similarity.factor[c]) for c in drawn)]
    rest = np.exp(candidates.log_rest[i]) * np.mean(np.exp(others))
    return scores[0] - np.log(np.exp(scores).sum() + rest)


@pytest.mark.small
def test_log_likelihood_and_gradients_match_the_formula():
    rng = np.random.default_rng(3)
    candidates, similarity, drawn = problem(rng)
    gradient = differentiate(candidates, similarity, drawn)
    n, size = similarity.rows.shape
    expected = [reference(candidates, similarity, drawn, i) for i in range(n)]
    np.testing.assert_allclose(gradient.log_likelihood, expected, atol=2e-5)
    step = 1e-3
    for i in range(n):
        for j in range(size):
            values = []
            for sign in (1, -1):
                rows = similarity.rows.astype(np.float64)
                rows[i, j] += sign * step
                values.append(reference(candidates, similarity._replace(rows=rows), drawn, i))
            slope = candidates.weights[i] * (values[0] - values[1]) / (2 * step)
            assert gradient.rows[i, j] == pytest.approx(slope, abs=2e-3)
    for i in range(n):  # by the score of each candidate, times its factor
        for a, c in enumerate(candidates.classes[i]):
            values = []
            for sign in (1, -1):
                offsets = candidates.offsets.astype(np.float64)
                offsets[i, a] += sign * step
                values.append(reference(candidates._replace(offsets=offsets), similarity, drawn, i))
            factor = similarity.own_factor[c] if a == 0 else similarity.factor[c]
            slope = candidates.weights[i] * factor * (values[0] - values[1]) / (2 * step)
            assert gradient.slots[i, a] == pytest.approx(slope, abs=2e-3)


def analogies(n_things=100, seed=0):
    """Return rows of a thing with a side, whose class is the thing, or with a kind: then it is the group.

    A group of five neighbours has three rows of every thing, the thing itself two sides of four at most: only
    a likeness of sides that all things share tells a new side from a kind.
    """
    rng = np.random.default_rng(seed)
    train, test = [], []
    for thing in range(n_things):
        sides = rng.permutation(4)[:3]
        for side in sides:
            row = (1000 + side, thing), f"thing {thing}"
            (test if thing % 2 and side == sides[0] else train).append(row)
        train.extend(((1010 + kind, thing), f"group {thing // 5}") for kind in rng.permutation(4)[:3])
    rng.shuffle(train)

    def matrix(rows):
        X = sparse.lil_matrix((len(rows), 1100), dtype=np.float32)
        for i, (columns, _) in enumerate(rows):
            X[i, [c % 1100 for c in columns]] = 1.0
        return sparse.csr_matrix(X), np.array([label for _, label in rows])

    return *matrix(train), *matrix(test)


@pytest.mark.planted
def test_similarity_alone_finds_the_class_of_new_rows():
    X, y, X_test, y_test = analogies(40)
    names, labels = np.unique(y, return_inverse=True)
    n, n_classes = len(labels), len(names)
    data, rows = Examples(X, labels.astype(np.int32)), csr_rows(X)
    training = TrainingRows(data, rows, feature_mean(rows, X.shape[1]))
    others = np.array([np.setdiff1d(np.arange(n_classes), [label]) for label in labels])
    candidates = Candidates(
        np.column_stack([labels, others]).astype(np.int32), np.zeros((n, n_classes), np.float32),
        np.full(n, -30.0, np.float32), np.arange(n), np.ones(n, np.float32),
    )  # fmt: skip
    known = np.isin(y_test, names)

    def accuracy(rate):
        changes = {"bilinear_epochs": 60, "bilinear_size": 16, "bilinear_rate": rate}
        job = Job(replace(Small._numbers.sparse, **changes), 0, 2)
        found = fit_bilinear(training, candidates, choose_columns(training, 0, job), n_classes, job)
        scores = found.part.coordinates(X_test[known]) @ found.part.factors.T + found.biases
        return (names[scores.argmax(axis=1)] == y_test[known]).mean()

    assert accuracy(0.0) < 0.5  # random projections of the same rows
    assert accuracy(0.02) > 0.9


@pytest.mark.identity
def test_rows_that_keep_their_length_have_that_of_the_training_rows_on_average():
    X, y, X_test, _ = analogies(12)
    X, X_test = X.copy(), X_test.copy()
    rng = np.random.default_rng(0)
    X.data *= np.repeat(rng.uniform(0.5, 1.5, X.shape[0]), np.diff(X.indptr)).astype(np.float32)
    labels = np.unique(y, return_inverse=True)[1].astype(np.int32)
    n, n_classes, rows = len(labels), int(labels.max()) + 1, csr_rows(X)
    training = TrainingRows(Examples(X, labels), rows, feature_mean(rows, X.shape[1]))
    classes = np.column_stack([labels, (labels + 1) % n_classes]).astype(np.int32)
    candidates = Candidates(
        classes, np.zeros((n, 2), np.float32), np.full(n, -30.0, np.float32), np.arange(n),
        np.ones(n, np.float32),
    )  # fmt: skip
    job = Job(replace(Small._numbers.sparse, bilinear_epochs=2), 0, 1)
    columns = choose_columns(training, 0, job)
    unit, kept = (
        fit_bilinear(training, candidates, columns, n_classes, job, keeps_length=keeps).part
        for keeps in (False, True)
    )
    lengths = np.sqrt(X[:, columns].multiply(X[:, columns]).sum(axis=1).A1)
    typical = np.sqrt(np.mean(lengths[lengths > 0] ** 2))
    expected = unit.coordinates(X) * (lengths / typical)[:, None]
    np.testing.assert_allclose(kept.coordinates(X), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(unit.factors, kept.factors)
    np.testing.assert_allclose(kept.coordinates(2 * X_test), 2 * kept.coordinates(X_test), rtol=1e-5)


@pytest.mark.invariance
def test_the_number_of_threads_changes_nothing():
    X, y, X_test, _ = analogies(30)
    models = [Small(random_state=1, n_jobs=n, solver="sparse_softmax").fit(X, y) for n in (1, 3)]
    np.testing.assert_array_equal(*(clf.predict_log_proba(X_test) for clf in models))


@pytest.mark.planted
def test_words_and_embeddings_together_know_more_than_either():
    rng = np.random.default_rng(5)
    n, n_words, n_groups = 1600, 1200, 8
    word, group = rng.integers(0, 8, n), rng.integers(0, n_groups, n)
    y = word * n_groups + group
    noise = sparse.random(n, n_words - 8, 0.004, "csr", dtype=np.float32, random_state=5)
    words = sparse.hstack([sparse.csr_matrix(np.eye(8, dtype=np.float32)[word]), noise], format="csr")
    centres = rng.normal(size=(n_groups, 16))
    embeddings = (centres[group] + 0.3 * rng.normal(size=(n, 16))).astype(np.float32)
    train, test = slice(0, 1400), slice(1400, n)
    both = ExtremeClassifier(random_state=0, n_jobs=2).fit((words[train], embeddings[train]), y[train])
    assert both.model_.solver == "sparse_softmax"
    assert both.choices_["mix"]["dense"] > 0.0
    score = both.score((words[test], embeddings[test]), y[test])
    alone = [
        ExtremeClassifier(random_state=0, n_jobs=2, solver="sparse_softmax").fit(words[train], y[train]),
        ExtremeClassifier(random_state=0, n_jobs=2).fit(embeddings[train], y[train]),
    ]
    others = alone[0].score(words[test], y[test]), alone[1].score(embeddings[test], y[test])
    assert score > max(others) + 0.3, (score, others)
    with pytest.raises(ValueError, match="3 dense features beside sparse ones; the model was fitted on 16"):
        both.predict((words[test], embeddings[test][:, :3]))
    with pytest.raises(ValueError, match="both must describe the same rows"):
        both.predict((words[test], embeddings[train]))
