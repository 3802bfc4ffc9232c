"""What the server answers: the same as the classifier in Python, in the schema of Hugging Face."""

from __future__ import annotations

import json
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier
from extremax.serve.models import Predict, ServedModel
from serve.conftest import make_texts
from serve.live import Live


def expected(clf: Any, rows: Any, k: int) -> list[list[tuple[str, float]]]:
    labels, log_prob = clf.predict_topk(rows, k)
    prob = np.exp(log_prob.astype(np.float64))
    return [
        list(zip(map(str, names), values, strict=True))
        for names, values in zip(labels.tolist(), prob.tolist(), strict=True)
    ]


def shape(answer: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(entry["label"], entry["score"]) for entry in answer]


@pytest.mark.identity
def test_text_is_answered_as_in_python(live: Live, text_model: Any) -> None:
    status, found = live.ask("/predict", {"inputs": "fell off a ladder", "parameters": {"top_k": 3}})
    assert status == 200
    assert shape(found) == expected(text_model, ["fell off a ladder"], 3)[0]
    assert found[0]["description"] == f"about {found[0]['label']}"
    assert [text_model.classes_[entry["id"]] for entry in found] == [entry["label"] for entry in found]
    assert live.ask("/invocations", {"inputs": "fell off a ladder", "parameters": {"top_k": 3}}) == (
        200,
        found,
    )


@pytest.mark.identity
def test_lists_and_logarithms(live: Live, text_model: Any) -> None:
    texts = make_texts()[0][:40]
    status, found = live.ask("/predict", {"inputs": texts})
    assert status == 200
    assert [shape(answer) for answer in found] == expected(text_model, texts, 5)
    body = {"inputs": texts, "parameters": {"function_to_apply": "none", "top_k": 2}}
    logs = [[entry["score"] for entry in answer] for answer in live.ask("/predict", body)[1]]
    assert np.array_equal(np.array(logs, np.float32), text_model.predict_topk(texts, 2)[1])
    assert live.ask("/predict", {"inputs": []}) == (200, [])


@pytest.mark.identity
def test_labels_to_choose_from(live: Live, text_model: Any) -> None:
    texts, among = make_texts()[0][:5], text_model.classes_[[3, 1]].tolist()
    status, found = live.ask("/predict", {"inputs": texts, "parameters": {"among": among}})
    assert status == 200
    labels, log_prob = text_model.predict_topk(texts, 2, among=among)
    assert [[entry["label"] for entry in answer] for answer in found] == labels.tolist()
    scores = [[entry["score"] for entry in answer] for answer in found]
    np.testing.assert_allclose(scores, np.exp(log_prob.astype(np.float64)), rtol=1e-6)
    for wrong, code in ((["nothing"], 404), ([], 422), ("label", 422), ([1], 422), (["x"] * 101, 413)):
        assert live.ask("/predict", {"inputs": texts, "parameters": {"among": wrong}})[0] == code


@pytest.mark.identity
@pytest.mark.parametrize("search", ["exact", "beam"])
def test_requests_at_the_same_time_do_not_change_answers(live: Live, text_model: Any, search: str) -> None:
    texts = make_texts()[0]
    labels, log_prob = text_model.predict_topk(texts, 4, search=search)

    def ask(i: int) -> bool:
        n = 1 + i % 13
        body = {
            "inputs": texts[i % 40 : i % 40 + n],
            "parameters": {"top_k": 4, "search": search, "function_to_apply": "none"},
        }
        status, found = live.ask("/predict", body)
        names = [[entry["label"] for entry in answer] for answer in found]
        scores = np.array([[entry["score"] for entry in answer] for answer in found], np.float32)
        part = slice(i % 40, i % 40 + n)
        return status == 200 and names == labels[part].tolist() and np.array_equal(scores, log_prob[part])

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, range(120)))


@pytest.mark.identity
def test_vectors_dense_and_sparse(live: Live, vector_model: Any) -> None:
    X = np.random.default_rng(1).normal(size=(9, 6)).astype(np.float32)
    status, found = live.ask("/models/vectors/predict", {"inputs": X.tolist()})
    assert status == 200
    assert [shape(answer) for answer in found] == expected(vector_model, X, 5)
    one = live.ask("/predict", {"inputs": X[0].tolist(), "model": "vectors"})[1]
    assert shape(one) == expected(vector_model, X[:1], 5)[0]
    from scipy import sparse

    rows = [{"indices": [4, 1], "values": [1.0, -0.5]}, {"indices": [], "values": []}]
    matrix = sparse.csr_matrix(([-0.5, 1.0], [1, 4], [0, 2, 2]), shape=(2, 6), dtype=np.float32)
    status, found = live.ask("/predict?model=vectors", {"inputs": rows})
    assert status == 200
    assert [shape(answer) for answer in found] == expected(vector_model, matrix, 5)


def test_unknown_text_is_marked(live: Live, text_model: Any) -> None:
    found = live.ask("/predict", {"inputs": ["qqqq", "a ladder"]})[1]
    assert all(entry["known"] is False for entry in found[0])
    assert not any("known" in entry for entry in found[1])
    assert shape(found[0]) == expected(text_model, ["qqqq"], 5)[0]


def test_top_k_of_all_classes(live: Live, text_model: Any) -> None:
    found = live.ask("/predict", {"inputs": "a roof", "parameters": {"top_k": 20}})[1]
    assert len(found) == min(20, len(text_model.classes_))


def test_explanation(live: Live, text_model: Any) -> None:
    status, found = live.ask("/explain", {"inputs": "fell off a ladder", "parameters": {"top_k": 2}})
    assert status == 200
    own = text_model.explain("fell off a ladder", 2).to_dict()
    assert [entry["label"] for entry in found["labels"]] == own["labels"]
    assert [entry["score"] for entry in found["labels"]] == own["probabilities"]
    assert found["score"]["total"] == own["score"]["total"]
    assert found["score"]["words"] == [list(term) for term in own["score"]["words"]]
    assert found["against"][0]["rather_than"] == own["labels"][1]
    status, found = live.ask("/models/vectors/explain", {"inputs": [0.5] * 6})
    assert status == 200
    assert len(found["labels"]) == 3
    assert live.ask("/explain", {"inputs": ["a", "b"]})[0] == 422


def test_labels_and_info(live: Live, text_model: Any) -> None:
    status, found = live.ask("/labels?prefix=w0&limit=3")
    assert status == 200
    assert found["total"] == 8
    assert [entry["label"] for entry in found["labels"]] == ["W00", "W01", "W02"]
    assert found["labels"][0]["n_samples"] == 4
    assert live.ask("/labels?contains=ABOUT%20Z07")[1]["labels"][0]["label"] == "Z07"
    status, info = live.ask("/info")
    assert status == 200
    assert (info["name"], info["input"], info["n_classes"]) == ("words", "texts", len(text_model.classes_))
    assert info["models"] == ["words", "vectors"]
    assert live.ask("/models/vectors/info")[1]["input"] == "vectors"
    assert live.ask("/models")[1] == {"models": ["words", "vectors"], "default": "words"}


def test_metrics_count(live: Live) -> None:
    def value(name: str) -> float:
        text = live.ask("/metrics")[1]
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    rows, unknown = (
        value('extremax_rows_total{model="words"}'),
        value('extremax_unknown_rows_total{model="words"}'),
    )
    batches = value("extremax_batch_rows_count")
    live.ask("/predict", {"inputs": ["a ladder", "qqqq", "a roof"]})
    assert value('extremax_rows_total{model="words"}') == rows + 3
    assert value('extremax_unknown_rows_total{model="words"}') == unknown + 1
    assert value("extremax_batch_rows_count") == batches + 1
    assert 0.0 < value('extremax_top_probability_total{model="words"}') <= rows + 3
    assert value('extremax_requests_total{path="/predict",status="200"}') >= 1
    live.ask("/no/such/path")
    assert value('extremax_requests_total{path="other",status="404"}') >= 1


@pytest.mark.parametrize("path", ["/docs", "/static/docs.js", "/openapi.json", "/"])
def test_pages_need_nothing_from_outside(live: Live, path: str) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{live.port}{path}") as answer:
        text, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "url(" not in text or path == "/"


@pytest.mark.identity
def test_several_labels_have_probabilities_of_their_own() -> None:
    things, places = ["ladder", "roof", "horse", "boat"], ["hospital", "school", "farm"]
    texts = [f"fell off a {thing} at a {place}" for thing in things for place in places] * 6
    labels = [[thing, place] for thing in things for place in places] * 6
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels)
    model = ServedModel("falls", Path("falls"), clf)
    assert model.info()["several_labels"]
    asked = ["a horse at the school", "zzz qqq"]
    expected = clf.predict_label_proba(asked)
    (found,) = model.answer([asked], Predict(model, 3, "exact", "texts", False))
    for answer, prob in zip(map(json.loads, found), expected, strict=True):
        scores = {label["label"]: label["score"] for label in answer}
        assert scores == pytest.approx(
            {name: prob[clf.classes_.tolist().index(name)] for name in scores}, rel=1e-4
        )
    assert sum(label["score"] for label in json.loads(found[0])) > 1.2  # no shares of one
    explained = model.explain(asked[0], "texts", 2)["labels"]
    assert [label["score"] for label in explained] == pytest.approx(
        [label["score"] for label in json.loads(found[0])[:2]], rel=1e-4
    )
