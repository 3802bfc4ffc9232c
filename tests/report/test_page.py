"""Documents, pages and reports: complete and bounded; damaged files are refused, hostile texts escaped."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from extremax import TextClassifier, analyse
from extremax.report import (
    ModelPage,
    beside,
    load_analysis,
    make_document,
    report_html,
    save_document,
    write_report,
)
from extremax.report.document import SHOWN
from report.stand_in import StandIn

HOSTILE = "</script><img src=x onerror=alert(1)>"
VERBS = ("bitten by", "fell from", "hit by", "cut by", "burnt by")
THINGS = ("dog", "roof", "car", HOSTILE)


def rows(seed):
    """Texts of twenty labels, some of them given to another."""
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(300):
        verb, thing = rng.integers(len(VERBS)), rng.integers(len(THINGS))
        texts.append(f"{['was ', 'got ', ''][rng.integers(3)]}{VERBS[verb]} a {THINGS[thing]}")
        labels.append(f"{VERBS[verb]} {THINGS[thing]}")
    return texts, labels


@pytest.fixture(scope="module")
def clf():
    fitted = TextClassifier().fit(*rows(0))
    return fitted.describe_classes([f"about {label}" for label in fitted.classes_])


@pytest.fixture(scope="module")
def document(clf):
    texts, labels = rows(1)
    given = [labels[0] if i % 20 == 1 else label for i, label in enumerate(labels)]
    return make_document(clf, analyse(clf, texts, given))


def test_document_survives_a_file(clf, document, tmp_path):
    path = beside(tmp_path / "model")
    assert path == tmp_path / "model.analysis.json"
    save_document(document, path)
    assert load_analysis(path) == document
    page = ModelPage(clf, load_analysis(path))
    assert page.overview()["held_out"]["n_rows"] == 300


def test_document_of_version_1_has_no_shares_inside_of_groups(clf, document, tmp_path):
    held_out = {name: value for name, value in document["held_out"].items() if name != "confusions"}
    save_document({**document, "version": 1, "held_out": held_out, "tree": {}}, tmp_path / "a.json")
    root = ModelPage(clf, load_analysis(tmp_path / "a.json")).node(0)
    assert root == {**ModelPage(clf, document).node(0), "inside": None}


@pytest.mark.invariance
def test_same_model_same_document(clf, document):
    texts, labels = rows(1)
    given = [labels[0] if i % 20 == 1 else label for i, label in enumerate(labels)]
    again = make_document(clf, analyse(clf, texts, given, n_jobs=2))
    assert json.dumps(again) == json.dumps(document)


@pytest.mark.reference
def test_nodes_of_a_page_add_up(clf, document):
    page = ModelPage(clf, document)
    held_out, counts = document["held_out"], clf.model_.classes.counts
    everything = page.tree(0, depth=16)
    assert not everything["truncated"]
    nodes = {node["id"]: node for node in everything["nodes"]}
    assert len(nodes) == page.n_nodes + 20
    classes = [node for node in nodes.values() if node["is_leaf"]]
    assert {node["label"] for node in classes} == set(clf.classes_.tolist())
    for node in nodes.values():
        below = [nodes[child] for child in page.children(node["id"])]
        assert all(child["parent"] == node["id"] and child["depth"] == node["depth"] + 1 for child in below)
        if below:
            for name in ("n_rows", "n_held_out", "n_classes"):
                assert node[name] == sum(child[name] for child in below)
            right = sum((child["accuracy"] or 0) * child["n_held_out"] for child in below)
            assert (node["accuracy"] or 0) * node["n_held_out"] == pytest.approx(right)
            assert node["inside"] is None or node["inside"] >= node["accuracy"]
    for c, label in enumerate(clf.classes_.tolist()):
        path = page.path(c)
        assert [node["depth"] for node in path] == list(range(len(path)))
        last = path[-1]
        assert (last["label"], last["description"]) == (label, f"about {label}")
        assert last["n_rows"] == counts[c]
        assert last["n_held_out"] == held_out["support"][c]
    assert nodes[0]["inside"] == 1.0


def test_page_without_held_out_rows(clf):
    page = ModelPage(clf)
    found = page.overview()
    assert found["held_out"] is None
    assert found["tables"] == {}
    assert page.tree(0, 2)["root"]["accuracy"] is None
    json.dumps(page.tree(0, 16), allow_nan=False)


def test_search_ranks_labels_before_descriptions(clf, document):
    page = ModelPage(clf, document)
    found = page.search("CUT by", limit=3)
    assert found["total"] == 4
    assert all(hit["label"].startswith("cut by") for hit in found["labels"])
    assert page.node(found["labels"][0]["node"])["label"] == found["labels"][0]["label"]
    assert page.search("about cut")["total"] == 4  # descriptions only
    assert page.search("  ") == {"labels": [], "total": 0}


@pytest.mark.error
def test_wrong_questions_get_a_sentence(clf, document):
    page = ModelPage(clf, document)
    for call in (lambda: page.tree(10**6), lambda: page.tree(-1), lambda: page.node(-3)):
        with pytest.raises(ValueError, match=r"the tree has no node -?\d+; nodes are 0 to \d+\."):
            call()
    with pytest.raises(ValueError, match="there is no class 20; classes are 0 to 19"):
        page.path(20)
    with pytest.raises(ValueError, match="depth is 99; give 0 to 16 levels"):
        page.tree(0, 99)


@pytest.mark.error
def test_analysis_of_another_model_is_refused(clf, document):
    other = TextClassifier().fit(["a b", "c d"] * 4, ["x", "y"] * 4)
    with pytest.raises(ValueError, match=r"of another model: its 20 labels are not the 2 of this one"):
        ModelPage(other, document)


def set_at(*path):
    """Return a change of a document: the last argument is put at the place that the others name."""

    def change(document):
        part = document
        for name in path[:-2]:
            part = part[name]
        part[path[-2]] = path[-1]

    return change


@pytest.mark.error
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_at("format", "else"), "$.format"),
        (set_at("version", 9), "$.version"),
        (set_at("model", None), "$.model"),
        (set_at("model", "n_classes", -1), "$.model.n_classes"),
        (set_at("model", "n_classes", 7), "not one for each class"),
        (set_at("held_out", []), "$.held_out"),
        (set_at("held_out", "right", [0]), "not one for each class"),
        (set_at("held_out", "confusions", 0, [0]), "not of classes of the model"),
        (set_at("held_out", "confusions", 1, 0, 20), "not of classes of the model"),
        (set_at("held_out", "confusions", [[]]), "$.held_out.confusions"),
        (set_at("held_out", "support", 0, -1), "$.held_out.support"),
        (set_at("held_out", "support", 0, True), "$.held_out.support"),
        (set_at("tables", "secrets", {}), "'secrets'"),
        (set_at("tables", "merge", {"note": "", "rows": [1]}), "rows[0]"),
        (set_at("tables", "merge", {"note": "", "rows": [{}] * 10**4}), "more lines than a page shows"),
    ],
)
def test_damaged_documents_are_refused(document, tmp_path, change, sentence):
    damaged = json.loads(json.dumps(document))
    change(damaged)
    path = tmp_path / "analysis.json"
    path.write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        load_analysis(path)
    assert "extremax report" in str(caught.value)


@pytest.mark.error
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"{}", b"3"])
def test_files_that_are_no_analysis_are_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is not an analysis"):
        load_analysis(tmp_path / "a.json")


def test_report_is_one_file_without_outside_requests(clf, document, tmp_path):
    path = tmp_path / "report.html"
    write_report(clf, document, path, title=HOSTILE)
    text = path.read_text("utf-8")
    assert HOSTILE not in text
    assert "<img" not in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?https?:", text)
    assert "url(" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert re.search(r"http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';", text)
    data = re.search(r'<script type="application/json" id="report">(.*?)</script>', text, re.DOTALL).group(1)
    found = json.loads(data)
    assert found["title"] == HOSTILE
    assert found["overview"]["held_out"]["n_rows"] == 300
    assert any(HOSTILE in (node["label"] or "") for node in found["nodes"])


def test_excerpt_and_document_are_bounded_for_many_classes():
    n_classes = 20_000
    rng = np.random.default_rng(0)
    labels = [f"class {i} {'long ' * 30}" for i in range(n_classes)]
    clf = StandIn(rng.normal(size=(n_classes, 6)), labels, descriptions=["word " * 200] * n_classes)
    page = ModelPage(clf)
    nodes = page.excerpt(500)
    assert len(nodes) <= 500
    numbers = {node["id"] for node in nodes}
    for node in nodes:
        below = page.children(node["id"])
        assert set(below) <= numbers or not set(below) & numbers
        assert ("n_hidden" in node) == (bool(below) and not set(below) <= numbers)
    shown = sum(node.get("n_hidden", 0) for node in nodes) + sum(node["is_leaf"] for node in nodes)
    assert shown == n_classes
    assert len(report_html(page, title="many", max_nodes=500)) < 1_500_000
    assert len(page.tree(0, 12)["nodes"]) <= 1000


def test_tables_are_cut_for_a_page():
    rng = np.random.default_rng(0)
    clf = StandIn(0.01 * rng.normal(size=(300, 6)))
    X, y = rng.normal(size=(900, 6)).astype(np.float32), rng.integers(300, size=900)
    found = make_document(clf, analyse(clf, X, y, texts=["long text " * 100] * 900))
    confusions = found["tables"]["confusions"]
    assert len(confusions["rows"]) == SHOWN["confusions"] < confusions["n"]
    texts = [example["text"] for row in confusions["rows"] for example in row["examples"]]
    assert texts
    assert max(map(len, texts)) == 400
    json.dumps(found, allow_nan=False)
