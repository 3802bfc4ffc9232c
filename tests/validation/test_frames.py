"""Data frames and datasets: the same model as from arrays, columns by name, sentences for what cannot be."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier, evaluate
from extremax.data import load_dataset
from extremax.validation.frames import as_frame, frame_inputs, frame_texts
from planted import around_means

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
hf = pytest.importorskip("datasets")

KINDS = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "lazy": pl.LazyFrame,
    "arrow": pa.table,
    "datasets": lambda columns: hf.Dataset.from_dict({name: list(c) for name, c in columns.items()}),
}
PARAMETERS = {"n_epochs": 1, "random_state": 0, "n_jobs": 1}


@pytest.fixture(scope="module")
def problem():
    X, y = around_means(120, 4, 3)
    columns = {name: X[:, i].astype(np.float64) for i, name in enumerate("abc")}
    names = np.array(["red", "green", "blue", "grey"])[y]
    clf = ExtremeClassifier.with_solver(**PARAMETERS).fit(X, names)
    return columns, names, clf.predict_proba(X)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_an_array(problem, kind):
    columns, names, expected = problem
    X = KINDS[kind](columns)
    clf = ExtremeClassifier.with_solver(**PARAMETERS).fit(
        KINDS[kind]({**columns, "colour": names.tolist()}), "colour"
    )
    np.testing.assert_array_equal(clf.predict_proba(X), expected)
    assert clf.feature_names_in_.tolist() == ["a", "b", "c"]
    both = KINDS[kind]({**columns, "colour": names.tolist()})
    assert clf.score(both, "colour") == np.mean(clf.predict(X) == names)
    assert evaluate(clf, both, "colour").accuracy[1] == clf.score(X, names)
    clf.partial_fit(both, "colour")
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(KINDS[kind]({"c": columns["c"], "a": columns["a"], "b": columns["b"]}))


@pytest.mark.parametrize("kind", ["polars", "arrow", "datasets", "pandas"])
def test_columns_of_labels_and_of_vectors(problem, kind):
    columns, names, expected = problem
    X = np.stack(list(columns.values()), axis=1)
    table = KINDS[kind]({"vector": [row.tolist() for row in X], "colour": names.tolist()})
    clf = ExtremeClassifier.with_solver(**PARAMETERS).fit(table, "colour")
    np.testing.assert_array_equal(clf.predict_proba(X), expected)
    clf = ExtremeClassifier.with_solver(**PARAMETERS).fit(X, table["colour"])
    assert clf.classes_.tolist() == ["blue", "green", "grey", "red"]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_a_frame(kind):
    texts, labels = ["a dog", "the cat", "one dog", "my cat"] * 5, ["dog", "cat"] * 10
    table = KINDS[kind]({"id": list(range(20)), "text": texts, "label": labels})
    clf = TextClassifier(ExtremeClassifier.with_solver(**PARAMETERS)).fit(table, "label")
    assert clf.predict(table).tolist() == labels
    assert clf.score(table, "label") == 1.0
    only = KINDS[kind]({"question": texts})
    assert clf.predict(only).tolist() == labels
    with pytest.raises(ValueError, match="none of which is called text"):
        clf.predict(KINDS[kind]({"question": texts, "answer": texts}))
    if kind != "lazy":
        assert clf.predict(table["text"]).tolist() == labels
        data = load_dataset(table)
        assert data.texts == texts
        assert data.y.tolist() == labels


def test_lists_of_labels_in_a_column(problem):
    columns, names, _ = problem
    lists = [[name, "any"] for name in names.tolist()]
    table = pl.DataFrame({**columns, "labels": lists})
    clf = ExtremeClassifier.with_solver(**PARAMETERS).fit(table, "labels")
    assert "any" in clf.classes_
    assert len(clf.classes_) == 5


def test_a_dataset_is_read_in_its_selection():
    table = hf.Dataset.from_dict({"a": [1.0, 2.0, 3.0], "y": ["p", "q", "r"]}).select([2, 0])
    features, labels = frame_inputs(table, "y")
    assert labels == ["r", "p"]
    assert features["a"].to_pylist() == [3.0, 1.0]


def test_sentences():
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    with pytest.raises(ValueError, match="'label', which is not a column of X: 'a'"):
        frame_inputs(frame, "label")
    with pytest.raises(ValueError, match="column 'b' of X does not hold numbers"):
        ExtremeClassifier().fit(pl.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}), ["p", "q"])
    with pytest.raises(ValueError, match="does not hold vectors of one length"):
        as_frame(pl.DataFrame({"v": [[1.0], [1.0, 2.0]]}))
    splits = hf.DatasetDict({"train": hf.Dataset.from_dict({"a": [1.0]})})
    with pytest.raises(TypeError, match="DatasetDict of the splits 'train'; pass one"):
        as_frame(splits)
    with pytest.raises(TypeError, match="IterableDataset"):
        frame_texts(hf.Dataset.from_dict({"text": ["a"]}).to_iterable_dataset())


def test_a_lazy_frame_without_narwhals_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals.stable.v1", None)
    with pytest.raises(ImportError, match=r"pip install extremax\[frames\]"):
        as_frame(pl.LazyFrame({"a": [1.0]}))
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]})
    ExtremeClassifier.with_solver(**PARAMETERS).fit(frame, ["x", "y", "x", "y"]).predict(frame)
