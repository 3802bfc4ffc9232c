"""Which labels apply: probabilities of single labels, thresholds, F1, multi-label scorers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.metrics import label_ranking_average_precision_score
from sklearn.model_selection import cross_val_score

from extremax import ExtremeClassifier, TextClassifier, evaluate, load_model
from extremax.calibration import LabelCalibration, best_threshold, fit_label_calibration
from extremax.evaluation import calibrate
from planted import LIST_CLASSES, indicator, label_lists, word_rows

N_TRAIN = 1600


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any]:
    return label_lists(2600)


@pytest.fixture(scope="module")
def fitted(rows: tuple[Any, Any]) -> ExtremeClassifier:
    X, y = rows
    return ExtremeClassifier(random_state=0).fit(X[:N_TRAIN], y[:N_TRAIN])


def word_lists(n_rows: int, seed: int = 0) -> tuple[Any, list[list[int]]]:
    """Rows of words on one or two of thirty topics, with the topics as labels."""
    X, y = word_rows(2 * n_rows, 30, seed=seed)
    several = np.random.default_rng(seed).random(n_rows) < 0.5
    second = sparse.diags_array(several.astype(np.float32)) @ X[n_rows:]
    labels = [
        sorted({int(a), int(b)} if s else {int(a)})
        for a, b, s in zip(y[:n_rows], y[n_rows:], several, strict=False)
    ]
    return sparse.csr_matrix(X[:n_rows] + second), labels


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_labels_that_apply_are_found_and_calibrated(kind: str, tmp_path: Path) -> None:
    X, y = label_lists(2600) if kind == "dense" else word_lists(2600)
    clf = ExtremeClassifier(random_state=0).fit(X[:N_TRAIN], y[:N_TRAIN])
    assert clf.choices_["solver"] == ("minibatch_softmax" if kind == "dense" else "sparse_softmax")
    report = evaluate(clf, X[N_TRAIN:], y[N_TRAIN:])
    assert report.label_calibration_error is not None
    assert report.label_calibration_error < 0.04
    # Any fixed number of labels is worse than those that apply.
    fixed = []
    for k in (1, 2, 3):
        ranked, _ = clf.predict_topk(X[N_TRAIN:], k)
        hits = sum(
            len(set(row) & set(truth)) for row, truth in zip(ranked.tolist(), y[N_TRAIN:], strict=False)
        )
        fixed.append(2.0 * hits / (ranked.size + report.n_pairs))
    assert report.micro_f1 is not None
    assert report.micro_f1 > max(fixed) + 0.02
    clf.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.predict_labels(X[N_TRAIN:]) == clf.predict_labels(X[N_TRAIN:])
    assert loaded.choices_["label_threshold"] == clf.choices_["label_threshold"] == report.label_threshold


def test_threads_and_order_change_no_label_invariance(
    rows: tuple[Any, Any], fitted: ExtremeClassifier
) -> None:
    X, y = rows
    other = ExtremeClassifier(random_state=0, n_jobs=1).fit(X[:N_TRAIN], y[:N_TRAIN])
    assert other.model_.label_calibration == fitted.model_.label_calibration
    few = fitted.predict_labels(X[:50])
    assert [fitted.predict_labels(X[i : i + 1])[0] for i in range(50)] == few


def test_predict_labels_is_a_threshold_of_the_table_identity(
    rows: tuple[Any, Any], fitted: ExtremeClassifier
) -> None:
    X = rows[0][N_TRAIN:]
    table = fitted.predict_label_proba(X)
    assert table.shape == (len(X), LIST_CLASSES)
    for threshold in (1e-6, 0.2, 0.9):  # 1e-6 goes far beyond the first classes that are looked at
        found = fitted.predict_labels(X, threshold)
        for row, prob in zip(found, table, strict=True):
            assert sorted(row) == np.flatnonzero(prob >= threshold).tolist()
            assert (np.diff(prob[row]) <= 1e-9).all()
    assert_labels_by_the_rule(fitted.predict_labels(X), table, fitted.choices_["label_threshold"])


def assert_labels_by_the_rule(found: list[list[int]], table: Any, threshold: float) -> None:
    """The best label of a row, and those from the threshold times the root of its probability on."""
    for row, prob in zip(found, table, strict=True):
        others = np.flatnonzero(prob >= threshold * np.sqrt(prob.max())).tolist()
        assert sorted(row) == sorted({*others, int(prob.argmax())})
        assert row[0] == prob.argmax()


@pytest.mark.parametrize("threshold", [0.0, 1.5, -1.0])
def test_threshold_rejects(rows: tuple[Any, Any], fitted: ExtremeClassifier, threshold: float) -> None:
    with pytest.raises(
        ValueError, match=r"'threshold' parameter of predict_labels must be a number > 0\.0 and"
    ):
        fitted.predict_labels(rows[0][:2], threshold)


def test_without_rows_kept_back_labels_share_the_softmax() -> None:
    X, y = label_lists(300)
    clf = ExtremeClassifier(random_state=0, n_epochs=2).fit(X, y)
    assert "label_threshold" not in clf.choices_
    mean = np.mean([len(labels) for labels in y])
    expected = np.minimum(mean * clf.predict_proba(X), 1.0)
    np.testing.assert_allclose(clf.predict_label_proba(X), expected, rtol=1e-4, atol=1e-7)
    assert_labels_by_the_rule(clf.predict_labels(X), clf.predict_label_proba(X), 0.5)
    X_more, y_more = label_lists(400, seed=5)
    calibrate(clf, X_more, y_more)
    assert clf.choices_["label_rows"] == 400
    streamed = ExtremeClassifier(random_state=0).partial_fit(X, y)
    assert len(streamed.predict_labels(X)) == 300


def test_calibration_by_many_pairs_takes_whole_rows() -> None:
    X, y = label_lists(1500)
    clf = ExtremeClassifier(random_state=0, n_epochs=1).fit(X[:300], y[:300])
    calibrate(clf, X[300:], y[300:], max_rows=600)
    calibration = clf.model_.labels
    assert 200 < calibration.n_rows < 400
    prob = clf.predict_label_proba(X[300:])
    assert prob.sum() == pytest.approx(sum(map(len, y[300:])), rel=0.15)


# -- the regression and its threshold ------------------------------------------------------------------------


def test_logistic_regression_matches_scikit_learn_reference(monkeypatch) -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    scores, level = np.log(rng.dirichlet(np.full(10, 0.4), size=400)), rng.normal(size=400)
    truth = rng.random((400, 10)) < expit(2.0 + 1.2 * scores + 0.7 * level[:, None])
    monkeypatch.setattr("extremax.calibration._LABEL_PENALTY", 1e-6)
    found = fit_label_calibration(scores, level, truth, truth.sum(axis=1))
    columns = np.stack([scores.ravel(), np.repeat(level, 10)], axis=1)
    other = LogisticRegression(C=1e8, max_iter=1000).fit(columns, truth.ravel())
    np.testing.assert_allclose([found.slope, found.level], other.coef_[0], rtol=2e-2)
    np.testing.assert_allclose(found.intercept, other.intercept_[0], rtol=2e-2)


def test_best_threshold_matches_every_threshold_reference() -> None:
    rng = np.random.default_rng(1)
    prob = -np.sort(-(rng.random((60, 7)).round(1) ** 2), axis=1)  # with ties, also of the limits
    truth = rng.random((60, 7)) < prob
    n_labels = truth.sum(axis=1) + rng.integers(0, 2, 60)  # some labels are not among the candidates

    def mean_f1(threshold: float) -> float:
        total = 0.0
        for p, hits, n in zip(prob, truth, n_labels, strict=True):
            chosen = p >= min(threshold * np.sqrt(p[0]), p[0])
            total += 2.0 * float(hits[chosen].sum()) / (chosen.sum() + n)
        return total / len(prob)

    found = best_threshold(prob, truth, n_labels)
    assert mean_f1(found) == pytest.approx(max(mean_f1(t) for t in np.linspace(0.001, 0.999, 999)))


def test_threshold_may_leave_the_best_label_alone() -> None:
    prob = np.array([[0.9, 0.8, 0.7], [0.9, 0.5, 0.1]])
    truth = np.array([[True, False, False], [True, False, False]])
    threshold = best_threshold(prob, truth, np.ones(2, int))
    assert 0.8 / np.sqrt(0.9) < threshold < 1.0


def test_no_label_among_the_candidates_gives_small_probabilities() -> None:
    scores = np.log(np.full((50, 4), 0.25))
    found = fit_label_calibration(scores, np.zeros(50), np.zeros((50, 4), bool), np.ones(50, int))
    assert isinstance(found, LabelCalibration)
    assert (found.prob(scores, np.zeros(50)) < 0.01).all()


# -- scikit-learn --------------------------------------------------------------------------------------------


def test_multilabel_scorers_of_scikit_learn(rows: tuple[Any, Any]) -> None:
    X, y = rows
    Y = indicator(y).toarray()
    clf = ExtremeClassifier(random_state=0, n_epochs=3)
    for scoring in ("f1_micro", "f1_macro", "jaccard_samples"):
        assert cross_val_score(clf, X, Y, scoring=scoring, cv=2, error_score="raise").min() > 0.3
    clf.fit(X[:N_TRAIN], Y[:N_TRAIN])
    ranked = label_ranking_average_precision_score(Y[N_TRAIN:], clf.predict_label_proba(X[N_TRAIN:]))
    assert ranked == pytest.approx(
        label_ranking_average_precision_score(Y[N_TRAIN:], clf.predict_proba(X[N_TRAIN:])), abs=1e-6
    )
    assert ranked > 0.7


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, lambda Y: Y.astype(bool)])
def test_indicator_in_indicator_out(form: Any, rows: tuple[Any, Any], tmp_path: Path) -> None:
    X, y = rows
    Y = form(indicator(y[:N_TRAIN]).toarray())
    clf = ExtremeClassifier(random_state=0, n_epochs=1).fit(X[:N_TRAIN], Y)
    clf.save(tmp_path / "model")
    for model in (clf, load_model(tmp_path / "model")):
        found = model.predict(X[N_TRAIN:])
        assert (sparse.issparse(found), found.dtype) == (sparse.issparse(Y), Y.dtype)
        table = found.toarray() if sparse.issparse(found) else found
        assert [np.flatnonzero(row).tolist() for row in table] == list(
            map(sorted, model.predict_labels(X[N_TRAIN:]))
        )
    lists = ExtremeClassifier(random_state=0, n_epochs=1).fit(X[:N_TRAIN], y[:N_TRAIN])
    assert lists.predict(X[:5]).shape == (5,)  # labels in, labels out


def test_texts_with_several_labels() -> None:
    rng = np.random.default_rng(0)
    words = ["ladder", "roof", "dog", "cat", "bee", "car"]
    y = [sorted(rng.choice(words, size=rng.integers(1, 3), replace=False).tolist()) for _ in range(1500)]
    texts = [" and ".join(f"the {label}" for label in labels) for labels in y]
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts[:1200], y[:1200])
    found = clf.predict_labels([*texts[1200:], "zzzzqqqq"])
    assert np.mean([sorted(a) == b for a, b in zip(found, y[1200:], strict=False)]) > 0.95
    assert found[-1] == []  # no label is that frequent
    assert clf.predict_labels(["zzzzqqqq"], 1e-3)[0][0] in words
    frequencies = np.array([np.mean([label in row for row in y]) for label in clf.classes_])
    np.testing.assert_allclose(clf.predict_label_proba(["zzzzqqqq"])[0], frequencies, atol=0.05)
    report = evaluate(clf, texts[1200:], y[1200:])
    assert report.micro_f1 is not None
    assert report.micro_f1 > 0.95
