"""evaluate: the same figures as loops over the table of all probabilities, for every form of labels and
kind of model.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import extremax
import reference
from extremax import ExtremeClassifier, TextClassifier, evaluation, load_model, metrics
from extremax.calibration import Calibration
from extremax.evaluation import Report, calibrate, evaluate
from extremax.solvers import MinibatchSoftmax

N_CLASSES, N_FEATURES = 30, 12


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(size=(N_CLASSES, N_FEATURES))
    y = [sorted(rng.choice(N_CLASSES, size=rng.integers(1, 4), replace=False).tolist()) for _ in range(n)]
    X = np.stack([means[labels].sum(axis=0) for labels in y]) + 0.4 * rng.normal(size=(n, N_FEATURES))
    return X.astype(np.float32), y


def pairs_of(y):
    return [(row, label) for row, labels in enumerate(y) for label in labels]


@pytest.fixture(scope="module")
def fitted():
    return ExtremeClassifier(n_epochs=4, random_state=0).fit(*make_rows(900))


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_figures_match_reference(fitted, store, monkeypatch):
    monkeypatch.setattr(evaluation, "RECALL_K", 12)  # 100 of 30 classes would hold every label
    X, y = make_rows(200, seed=1)
    plain = fitted.model_
    fitted._replace_model(plain.with_calibration(Calibration(1.7, 0.1)))  # so that a forgotten one shows
    try:
        report = evaluate(fitted, store(X), y)
        log_prob = fitted.predict_log_proba(store(X))
    finally:
        fitted._replace_model(plain)
    assert (report.n_samples, report.n_pairs) == (200, len(pairs_of(y)))
    assert (report.n_left_out, report.n_unknown) == (0, 0)
    assert report.multilabel
    assert list(report.precision) == [1, 3, 5, 10]
    for k in (1, 3, 5, 10):
        expected = reference.pair_figures(log_prob, pairs_of(y), k)
        # log-probabilities are float32 sums in another order
        assert report.log_likelihood == pytest.approx(expected["log_likelihood"], abs=1e-5)
        for name in ("accuracy", "precision", "ndcg", "f1"):
            assert getattr(report, name)[k] == pytest.approx(expected[name], abs=1e-12)
    assert report.precision[1] == report.accuracy[1] > 0.5
    expected = reference.pair_figures(log_prob, pairs_of(y), 12)
    assert report.recall == pytest.approx({12: expected["recall"]}, abs=1e-12)
    rows, labels = np.array(pairs_of(y)).T
    best = log_prob.argmax(axis=1)
    error = metrics.expected_calibration_error(
        best[rows] == labels, np.exp(log_prob[rows, best[rows]].astype(np.float64))
    )
    assert report.calibration_error == pytest.approx(error, abs=1e-5)


def test_f1_is_that_of_the_predicted_labels_matches_reference(fitted):
    X, y = make_rows(200, seed=1)
    report = evaluate(fitted, X, y)
    truth, predicted = np.zeros((2, 200, N_CLASSES), bool)
    for table, labels in ((truth, y), (predicted, fitted.predict_labels(X))):
        for row, chosen in zip(table, labels, strict=True):
            row[chosen] = True
    micro, macro, samples = reference.label_f1(truth, predicted)
    assert (report.micro_f1, report.macro_f1, report.samples_f1) == pytest.approx((micro, macro, samples))
    assert report.recall == {100: 1.0}


def test_propensities_come_from_training_counts_matches_reference(fitted, tmp_path):
    X, y = make_rows(200, seed=1)
    train = make_rows(900)[1]
    counts = np.bincount([label for labels in train for label in labels], minlength=N_CLASSES)
    assert np.array_equal(fitted.model_.classes.counts, counts)
    truth = sparse.csr_array((np.ones(len(pairs_of(y))), np.array(pairs_of(y)).T), shape=(200, N_CLASSES))
    ranked = np.argsort(-fitted.predict_log_proba(X), axis=1, kind="stable")
    chances = metrics.label_propensities(counts, 900)
    expected = metrics.propensity_scored_precision_at_k(truth, ranked, chances, k=3)
    fitted.save(tmp_path / "model")
    for model in (fitted, load_model(tmp_path / "model"), fitted.model_):
        assert evaluate(model, X, y).propensity_scored_precision[3] == expected
    flat = evaluate(fitted, X, y, propensity=np.ones(N_CLASSES)).propensity_scored_precision
    # every row has a label: the best possible is 1
    assert flat[1] == pytest.approx(evaluate(fitted, X, y).precision[1])
    plain = fitted.model_
    fitted._replace_model(replace(plain, classes=replace(plain.classes, counts=None)))
    assert evaluate(fitted, X, y).propensity_scored_precision == {}
    fitted._replace_model(plain)


def test_forms_of_labels_same_everywhere(fitted):
    X, y = make_rows(150, seed=2)
    indicator = sparse.lil_matrix((150, N_CLASSES), dtype=np.int8)
    for row, label in pairs_of(y):
        indicator[row, label] = 1
    report = evaluate(fitted, X, y)
    expected = report.as_dict()
    assert f"<td>accuracy@1</td><td>{expected['accuracy@1']:.4g}</td>" in report._repr_html_()
    for form in (indicator, indicator.tocsc(), indicator.toarray(), [set(labels) for labels in y]):
        assert evaluate(fitted, X, form).as_dict() == expected
    for n_jobs in (1, 2):
        assert evaluate(fitted, X, y, n_jobs=n_jobs).as_dict() == expected
    assert json.loads(json.dumps(expected)) == expected
    assert expected["precision@1"] == fitted.score(X, indicator.tocsr()) == fitted.score(X, y)
    assert expected["log_likelihood"] == pytest.approx(fitted.log_likelihood(X, y), abs=1e-9)


def test_one_label_a_row_identity(fitted):
    X, y = make_rows(150, seed=3)
    one = np.array([labels[0] for labels in y])
    report = evaluate(fitted, X, one)
    assert not report.multilabel
    assert report.accuracy[1] == report.precision[1] == report.ndcg[1] == fitted.score(X, one)
    assert report.log_likelihood == pytest.approx(fitted.log_likelihood(X, one), abs=1e-12)
    assert report.accuracy[5] == pytest.approx(5 * report.precision[5])
    assert evaluate(fitted, X, [[label] for label in one]).as_dict() == report.as_dict()


def test_unknown_labels_are_left_out_and_counted(fitted):
    X, y = make_rows(100, seed=4)
    more = [[*labels, 1000, 2000] for labels in y[:10]] + y[10:] + [[1000], []]
    X_more = np.concatenate([X, X[:2]])
    report = evaluate(fitted, X_more, more)
    assert (report.n_samples, report.n_left_out, report.n_unknown) == (100, 2, 21)
    plain = evaluate(fitted, X, y).as_dict()
    assert report.as_dict() | {"n_left_out": 0, "n_unknown": 0} == plain


def test_more_predictions_than_classes():
    X, y = make_rows(60)
    few = [[label % 3] for labels in y for label in labels[:1]]
    report = evaluate(ExtremeClassifier(n_epochs=1, random_state=0).fit(X, few), X, few, ks=[5])
    assert report.accuracy == {5: 1.0}
    assert report.precision[5] == pytest.approx(0.2)


def test_text_classifier_same_everywhere():
    texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "a dog bit me on a ladder"] * 6
    y = [["fall"], ["fall"], ["bite"], ["bite", "fall"]] * 6
    clf = TextClassifier(ExtremeClassifier(n_epochs=5, random_state=0)).fit(texts, y)
    report = extremax.evaluate(clf, texts, y, ks=(1, 2))
    assert isinstance(report, Report)
    assert report == evaluate(clf.classifier_, clf.transform(texts), y, ks=(1, 2))
    assert report.accuracy[2] == 1.0


BAD_CALLS = [
    (lambda c, X, y: evaluate(c, X, y, ks=()), r"ks is \(\); give one or more numbers of predictions"),
    (lambda c, X, y: evaluate(c, X, y, ks=(0,)), r"ks is \(0,\); give one or more"),
    (lambda c, X, y: evaluate(object(), X, y), r"model must be an ExtremeClassifier, .* got object\."),
    (lambda c, X, y: evaluate(c, X, [[99]] * len(X)), r"y has no label of a class of the model"),
    (
        lambda c, X, y: evaluate(c, X, y[:-1]),
        r"y has 19 lists of labels, but there are 20 rows of features\.",
    ),
    (
        lambda c, X, y: evaluate(c, X, y, propensity=np.ones(3)),
        r"propensity has shape \(3,\); the truth has 30 classes",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), BAD_CALLS)
def test_bad_input_rejects(fitted, call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        call(fitted, *make_rows(20))


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_overflow_rejects(fitted):
    X, y = make_rows(20)
    X[7] = 3e38
    with pytest.raises(ValueError, match=r"The scores of row 7 overflow float32; scale"):
        evaluate(fitted, X, y)


def test_unfitted_rejects():
    with pytest.raises(NotFittedError, match="call fit"):
        evaluate(ExtremeClassifier(), *make_rows(20))
    with pytest.raises(NotFittedError, match="call fit"):
        evaluate(TextClassifier(), ["a"], ["b"])


def test_calibrate_finds_the_temperature_that_was_hidden_recovers(tmp_path):
    rng = np.random.default_rng(0)
    W = 1.5 * rng.normal(size=(40, 4))
    X = rng.normal(size=(9000, 4)).astype(np.float32)
    p = np.exp(X @ W.T - (X @ W.T).max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((9000, 1))).argmax(axis=1)
    clf = ExtremeClassifier(MinibatchSoftmax(n_shared=None), n_epochs=15, random_state=0).fit(
        X[:5000], y[:5000]
    )
    labels = clf.predict(X[7000:])
    for table in (clf.model_.weights.weights, clf.model_.weights.biases):
        table *= 3.0  # probabilities far too extreme

    def error():
        """Of the first guess's probability against the true one, in five bins: labels of 2,000 rows would
        add 0.03 of noise.
        """
        q, rows = clf.predict_proba(X[7000:]), np.arange(2000)
        sure, truth = q.max(axis=1), p[7000:][rows, q.argmax(axis=1)]
        bins = np.minimum((5 * sure).astype(int), 4)
        return sum(abs((sure - truth)[bins == b].sum()) for b in range(5)) / 2000

    before = error()
    temperature, uniform_mix, _ = calibrate(clf, X[5000:7000], y[5000:7000])
    after = error()
    assert temperature == pytest.approx(3.0, rel=0.1)
    assert uniform_mix < 0.01  # the planted softmax has none
    assert after < 0.01 < 0.3 < before
    assert np.array_equal(clf.predict(X[7000:]), labels)
    clf.save(tmp_path / "model")
    assert load_model(tmp_path / "model").model_.calibration.temperature == temperature


@pytest.mark.identity
def test_calibration_error_at_k_pools_the_first_k_predictions() -> None:
    rng = np.random.default_rng(8)
    y = rng.integers(12, size=600)
    X = rng.normal(size=(12, 6))[y] + rng.normal(size=(600, 6))
    clf = ExtremeClassifier(random_state=0, n_epochs=3).fit(X[:400], y[:400])
    report = evaluate(clf, X[400:], y[400:], ks=(1, 3))
    labels, log_prob = clf.predict_topk(X[400:], 3)
    right, p = (labels == y[400:, None]).ravel(), np.exp(log_prob.astype(np.float64)).ravel()
    bins = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
    gaps = [abs((right[bins == b] - p[bins == b]).sum()) for b in range(15)]
    assert report.ece[3] == pytest.approx(sum(gaps) / len(p), abs=1e-6)
    assert report.ece[1] == report.calibration_error
