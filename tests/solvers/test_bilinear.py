"""The similarity that all classes share: gradients against differences, planted analogies, threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier
from extremax.examples import Examples
from extremax.kernels.sparse_dual import Candidates
from extremax.scores.sparse import csr_rows
from extremax.solvers.sparse.bilinear import _Fitter, choose_columns, fit_bilinear
from extremax.solvers.sparse.plausible import Job, TrainingRows, feature_mean
from extremax.tuned import DEFAULTS, replace_numbers


class Small(ExtremeClassifier):
    """A classifier whose similarity has few coordinates, for problems of a few hundred rows."""

    _numbers = replace_numbers(
        DEFAULTS,
        sparse={
            "few_classes": 0, "min_held_out_pairs": 200,
            "bilinear_size": 8, "bilinear_min_rows": 2, "bilinear_batch": 128, "bilinear_steps": 1000,
            "bilinear_epochs": 30, "bilinear_drawn": 32,
        },
    )  # fmt: skip


def reference(candidates, X, read, labels, drawn, P, Q):
    """Return the mean log-likelihood of the pairs in float64, from the formulas."""
    n_classes = labels.max() + 1
    sums = np.array([X[labels == c].sum(axis=0) for c in range(n_classes)])
    counts = np.bincount(labels)
    total = 0.0
    for i, row in enumerate(candidates.rows):
        z = np.append(read[i] @ P[:, :-1], 1.0)

        def change(c, left_out=0.0, n=0, z=z):
            return z @ ((sums[c] - left_out) @ Q) / max(counts[c] - n, 1)

        scores = [
            candidates.offsets[i, a] + (change(c) if a else change(c, X[row], 1))
            for a, c in enumerate(candidates.classes[i])
            if c >= 0
        ]
        rest = np.exp(candidates.log_rest[i]) * np.mean([np.exp(change(c)) for c in drawn])
        total += candidates.weights[i] * (scores[0] - np.log(np.exp(scores).sum() + rest))
    return total / len(candidates.rows)


@pytest.mark.small
def test_gradients_match_differences_of_the_formula():
    rng = np.random.default_rng(3)
    labels = np.array([0, 0, 1, 1, 1, 2, 3, 3, 4, 4])  # class 2 has a single row
    n, n_classes, n_columns = len(labels), 5, 6
    X = (rng.random((n, n_columns)) * (rng.random((n, n_columns)) < 0.6)).astype(np.float32)
    rows = np.array([0, 3, 5, 7, 7])
    classes = np.array(
        [[labels[r], *rng.permutation(np.setdiff1d(np.arange(5), labels[r]))[:2]] for r in rows]
    )
    classes[1, 2] = -1
    candidates = Candidates(
        classes.astype(np.int32), rng.normal(size=classes.shape).astype(np.float32),
        rng.normal(size=len(rows)).astype(np.float32), rows, (0.5 + rng.random(len(rows))).astype(np.float32),
    )  # fmt: skip
    job = Job(replace(Small._numbers.sparse, bilinear_size=3, bilinear_scale=0.7, bilinear_prune=0.0), 0, 2)
    data = Examples(sparse.csr_matrix(X), labels.astype(np.int32))
    fitter = _Fitter(sparse.csr_matrix(X), data, candidates, n_classes, job)
    fitter.Q += rng.normal(size=fitter.Q.shape).astype(np.float32)
    drawn = np.array([1, 4])
    read = X[rows] * (rng.random((len(rows), n_columns)) < 0.7)
    found = fitter.gradients(candidates, sparse.csr_matrix(X[rows]), sparse.csr_matrix(read), drawn)
    matrices = [fitter.P.astype(np.float64), fitter.Q.astype(np.float64)]
    step = 1e-5
    for which, gradient in enumerate(found):
        for place in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                changed = [matrix.copy() for matrix in matrices]
                changed[which][place] += sign * step
                values.append(reference(candidates, X, read, labels, drawn, *changed))
            slope = (values[0] - values[1]) / (2 * step)
            assert gradient[place] == pytest.approx(slope, abs=1e-5)


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
    assert accuracy(Small._numbers.sparse.bilinear_rate) > 0.9


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
