"""analyse: tables equal loops over all probabilities, and find what was planted."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from extremax import ExtremeClassifier, TextClassifier, analyse, evaluate
from extremax.report import AnalysisConfig, tables
from planted import around_means, label_lists, softmax
from report.stand_in import StandIn


@pytest.fixture(scope="module")
def problem():
    """A classifier, and rows whose labels are drawn from its probabilities."""
    rng = np.random.default_rng(5)
    weights = 2.0 * rng.normal(size=(40, 8)).astype(np.float32)
    X = rng.normal(size=(3000, 8)).astype(np.float32)
    p = softmax((X @ weights.T).astype(np.float64))
    y = (p.cumsum(axis=1) > rng.random((len(X), 1))).argmax(axis=1)
    counts = rng.integers(1, 60, size=40)
    return StandIn(weights, counts=counts), X, y, p


@pytest.mark.reference
def test_figures_and_tables_match_loops_over_all_probabilities(problem):
    clf, X, y, p = problem
    found = analyse(clf, X, y)
    report = evaluate(clf.model_, X, y)
    model, frequencies = found.tables["figures"].records()
    assert model["accuracy"] == report.accuracy[1] == pytest.approx((p.argmax(axis=1) == y).mean())
    assert model["top5_accuracy"] == report.accuracy[5]
    assert model["log_likelihood"] == pytest.approx(np.log(p[np.arange(len(y)), y]).mean(), abs=1e-5)
    assert model["calibration_error"] == report.calibration_error
    counts = clf.model_.classes.counts
    assert frequencies["accuracy"] == (y == counts.argmax()).mean()
    assert frequencies["top5_accuracy"] == np.isin(y, np.argsort(-counts, kind="stable")[:5]).mean()
    assert frequencies["log_likelihood"] == pytest.approx(np.log(counts[y] / counts.sum()).mean(), abs=1e-6)
    assert (found.n_samples, found.n_pairs, found.n_left_out) == (3000, 3000, 0)

    bins = found.reliability
    assert bins["n"].sum() == 3000
    gaps = (bins["n"] * (bins["accuracy"] - bins["probability"]).abs()).sum() / 3000
    assert gaps == pytest.approx(report.calibration_error)

    groups = found.deciles
    assert groups["n_classes"].sum() == 40
    assert (groups["n_held_out"] * groups["accuracy"]).sum() == pytest.approx(model["accuracy"] * 3000)
    for row in groups.to_dict("records"):
        inside = (counts >= row["least_rows"]) & (counts <= row["most_rows"])
        assert row["n_classes"] == inside.sum()
        mine = inside[y]
        assert row["accuracy"] == pytest.approx((p.argmax(axis=1) == y)[mine].mean())
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"]
    assert groups["least_rows"].is_monotonic_decreasing

    matrix = confusion_matrix(y, p.argmax(axis=1), labels=np.arange(40))
    np.fill_diagonal(matrix, 0)
    confusions = found.confusions
    assert len(confusions) == np.count_nonzero(matrix)
    assert confusions["n"].is_monotonic_decreasing
    for row in confusions.to_dict("records"):
        assert row["n"] == matrix[row["label"], row["predicted"]]
        assert row["n_reverse"] == matrix[row["predicted"], row["label"]]
        assert row["share"] == row["n"] / (y == row["label"]).sum()
    assert found.classes["n_held_out"].tolist() == np.bincount(y, minlength=40).tolist()


@pytest.mark.reference
def test_several_labels_count_like_in_evaluate():
    X, y = label_lists(600)
    clf = ExtremeClassifier(n_epochs=4, random_state=0).fit(X[:400], y[:400])
    found, report = analyse(clf, X[400:], y[400:]), evaluate(clf, X[400:], y[400:])
    model = found.tables["figures"].records()[0]
    assert model["accuracy"] == report.accuracy[1]
    assert model["top5_accuracy"] == report.accuracy[5]
    assert model["log_likelihood"] == report.log_likelihood
    assert model["calibration_error"] == report.calibration_error
    first = clf.predict_topk(X[400:], k=1)[0][:, 0]
    wrong = [(b, a) for b, labels in zip(first, y[400:], strict=True) if b not in labels for a in labels]
    assert found.confusions["n"].sum() == len(wrong)


@pytest.mark.planted
def test_flipped_labels_are_found():
    rng = np.random.default_rng(3)
    X, y = around_means(1200, 30, 12, spread=0.35, seed=1)
    clf = ExtremeClassifier(n_epochs=5, random_state=0).fit(X[:600], y[:600])
    X, given = X[600:], y[600:].copy()
    flipped = rng.choice(600, 40, replace=False)
    given[flipped] = (given[flipped] + rng.integers(1, 30, size=40)) % 30
    clean, found = analyse(clf, X, y[600:]), analyse(clf, X, given)
    rows = found.suspects["row"].tolist()
    right = set(rows) & set(flipped.tolist())
    assert len(right) >= 38  # of 40
    assert len(right) >= 0.9 * len(rows)
    assert set(rows[:30]) <= set(flipped.tolist())  # the least likely labels come first
    assert len(clean.suspects) <= 5
    assert found.suspects["predicted"].tolist()[0] == y[600:][rows[0]]


@pytest.mark.planted
def test_expected_number_of_doubtful_rows_bounds_those_of_right_labels(problem):
    clf, X, y, p = problem
    found = analyse(clf, X, y)  # labels are drawn from the probabilities
    label, best = p[np.arange(len(y)), y], p.max(axis=1)
    expected = (p * (p <= 0.01 * best[:, None])).sum(axis=1)[best >= 0.5].sum()
    listed = ((label <= 0.01 * best) & (best >= 0.5)).sum()
    assert len(found.suspects) == listed
    assert found.n_suspects_by_chance >= expected - 0.05
    assert f"Chance explains up to {found.n_suspects_by_chance:,.0f} of them" in found.tables["suspects"].note
    assert f"{listed} rows to check" in found._repr_html_()
    assert f"<td>{found.tables['figures'].records()[0]['accuracy']:.4g}</td>" in found._repr_html_()
    evidence = found.suspects["predicted_probability"] / found.suspects["probability"]
    assert (np.diff(evidence) <= 1e-6 * evidence[1:]).all()
    assert abs(listed - expected) < 4 * np.sqrt(expected)


@pytest.mark.planted
def test_classes_that_cannot_be_told_apart_are_to_be_merged():
    weights = np.random.default_rng(0).normal(size=(30, 8))
    weights *= 8.0 / np.linalg.norm(weights, axis=1, keepdims=True)  # classes of about the same size
    weights[7] = weights[3] + 0.01  # twins
    clf = StandIn(weights, labels=[f"c{i}" for i in range(30)])
    X, y, _ = from_twins(weights)
    found = analyse(clf, X, y)
    assert found.merge[["label", "other"]].values.tolist() == [["c3", "c7"]]
    assert found.merge["pairs_by_chance"][0] < 1e-6
    assert found.merge["share_confused"][0] == pytest.approx(0.5, abs=0.1)


def from_twins(weights):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, weights.shape[1])).astype(np.float32)
    p = softmax((X @ weights.T).astype(np.float64))
    return X, (p.cumsum(axis=1) > rng.random((len(X), 1))).argmax(axis=1), p


@pytest.mark.planted
def test_errors_that_fall_at_random_give_as_many_pairs_as_stated():
    rng = np.random.default_rng(2)
    weights = np.eye(60, dtype=np.float32) * 20
    n_merged = 0
    for _ in range(20):
        y = rng.integers(60, size=3000)
        said = np.where(rng.random(3000) < 0.5, rng.integers(60, size=3000), y)  # half of the rows
        X = np.eye(60, dtype=np.float32)[said]
        found = analyse(StandIn(weights), X, y, config=AnalysisConfig(merge_min_share=0.0))
        assert len(found.confusions) > 1000
        n_merged += len(found.merge)
    assert n_merged <= 4  # 20 times at most 0.05 are expected: 5 or more have a chance of 0.4%


def test_examples_are_rows_of_the_confusions_with_texts(problem):
    clf, X, y, p = problem
    texts = [f"row {i}" for i in range(len(y))]
    found = analyse(clf, X, y, texts=texts, config=AnalysisConfig(n_examples=2, max_pairs=7))
    pairs = found.confusions.head(7)
    expected = [(a, b) for a, b, n in pairs[["label", "predicted", "n"]].values for _ in range(min(2, n))]
    assert found.examples[["label", "predicted"]].apply(tuple, axis=1).tolist() == expected
    for row in found.examples.to_dict("records"):
        assert (row["label"], row["predicted"]) == (y[row["row"]], p[row["row"]].argmax())
        assert row["text"] == f"row {row['row']}"
        assert row["predicted_probability"] == pytest.approx(p[row["row"]].max(), abs=1e-5)


def test_texts_and_rows_keep_their_numbers_where_labels_are_unknown():
    texts = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
    clf = TextClassifier().fit(texts, ["fall", "fall", "bite", "bite"] * 5)
    found = analyse(clf, ["what", "a ladder fell", "dog bite"], ["never seen", "fall", "fall"])
    assert (found.n_samples, found.n_left_out, found.n_unknown) == (2, 1, 1)
    assert found.examples[["row", "text"]].values.tolist() == [[2, "dog bite"]]


def test_tables_without_pandas(problem, monkeypatch):
    clf, X, y, _ = problem
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    found = analyse(clf, X[:50], y[:50])
    assert found.deciles["n_held_out"].sum() == 50
    assert list(found.figures)[:2] == ["name", "accuracy"]
    with pytest.raises(ImportError, match="pip install pandas"):
        found.deciles.to_frame()


def test_nothing_is_of_the_size_of_all_pairs():
    n_classes, n_rows = 100_000, 1000
    rng = np.random.default_rng(0)
    clf = StandIn(rng.normal(size=(n_classes, 4)).astype(np.float32))
    X = rng.normal(size=(n_rows, 4)).astype(np.float32)
    y = rng.integers(n_classes, size=n_rows)
    evaluate(clf.model_, X[:5], y[:5])  # buffers that stay
    tracemalloc.start()
    try:
        found = analyse(clf, X, y)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6  # one number per row and class would take 400 MB, per pair of classes 40 GB
    assert all(table.n_rows <= max(n_rows * 5, n_classes) for table in found.tables.values())


@pytest.mark.error
def test_wrong_arguments_get_a_sentence(problem):
    clf, X, y, _ = problem
    with pytest.raises(ValueError, match=r"texts has 1 entries and X 3,000 rows; give one text for each row"):
        analyse(clf, X, y, texts=["one"])
    with pytest.raises(ValueError, match="n_bins is 0; it must be at least 1"):
        AnalysisConfig(n_bins=0)
    with pytest.raises(ValueError, match="y has no label of a class of the model"):
        analyse(clf, X[:1], [-5])
    with pytest.raises(TypeError, match="got dict"):
        analyse({}, X, y)


@pytest.mark.property
@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [5, 4, 3, 2, 1], [9] * 30 + [1] * 3, list(range(100))])
def test_frequency_groups_keep_equal_counts_together(counts):
    group = tables.frequency_groups(np.array(counts), 10)
    assert sorted(set(group.tolist())) == list(range(group.max() + 1))
    assert group.max() < 10
    by_count = {}
    for count, number in zip(counts, group.tolist(), strict=True):
        assert by_count.setdefault(count, number) == number
    order = sorted(by_count, reverse=True)
    assert [by_count[count] for count in order] == sorted(by_count[count] for count in order)
    if len(set(counts)) == len(counts) >= 10:
        assert np.ptp(np.bincount(group)) <= 1
