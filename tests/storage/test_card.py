"""The model card: what it says, that labels do nothing in it, and that loading never looks at it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.storage.card import escape
from planted import a_dozen_classes

HOSTILE = [
    "<script>alert(1)</script>",
    "| a | b |\n---",
    "[link](http://x)",
    "`code`\n# title",
    "---\nkey: 1",
]


def card_of(folder):
    return (folder / "README.md").read_text(encoding="utf-8")


def header_of(card):
    yaml = pytest.importorskip("yaml")
    _, header, body = card.split("---\n", 2)
    return yaml.safe_load(header), body


@pytest.fixture(scope="module")
def fitted():
    X, y = a_dozen_classes()
    return ExtremeClassifier(n_epochs=1, random_state=3, validation_fraction=0.2).fit(X, y), X


def test_it_says_what_the_model_is(fitted, tmp_path):
    clf, _ = fitted
    clf.save(tmp_path / "model")
    header, body = header_of(card_of(tmp_path / "model"))
    assert header["library_name"] == "extremax"
    assert header["pipeline_tag"] == "tabular-classification"
    assert "5 features over 12 classes" in body
    assert "load_model" in body
    assert r"random\_state = 3" in body
    assert "validation rows" in body
    assert f"{clf.history_[-1]['valid_accuracy']:.1%}" in body
    assert "Changes since the fit" not in body


def test_changes_are_listed(fitted, tmp_path):
    clf, _ = fitted
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model").remove_classes([3]).merge_classes({1: 2})
    again.save(tmp_path / "changed")
    body = card_of(tmp_path / "changed")
    assert "over 10 classes" in body
    assert "| removed | 1 | 0 | 11 |" in body
    assert "| renamed or merged | 1 | 0 | 10 |" in body


def test_hostile_labels_are_shown_and_do_nothing(tmp_path):
    texts = ["a dog", "the cat", "one bird", "my fish", "no cow"] * 4
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, HOSTILE * 4)
    clf.save(tmp_path / "model")
    card = card_of(tmp_path / "model")
    header, body = header_of(card)
    assert header["pipeline_tag"] == "text-classification"
    assert "key" not in header
    assert "<script" not in card
    assert "](http" not in body.replace(r"\]\(http", "")
    table = [line for line in body.splitlines() if line.endswith("| 4 |")]
    assert len(table) == len(HOSTILE)  # each on a line of its own
    assert load_model(tmp_path / "model").classes_.tolist() == sorted(HOSTILE)


@pytest.mark.parametrize("name", ["", "a" * 500, "a\u202eb\x00c", "  \n "])
def test_names_become_one_short_line(name):
    shown = escape(name)
    assert "\n" not in shown
    assert "\x00" not in shown
    assert "\u202e" not in shown
    assert 0 < len(shown) <= 70


def test_loading_trusts_nothing_of_it(fitted, tmp_path):
    clf, X = fitted
    clf.save(tmp_path / "model")
    expected = clf.predict_proba(X)
    (tmp_path / "model" / "README.md").write_bytes(os.urandom(200))
    assert np.array_equal(load_model(tmp_path / "model", verify=True).predict_proba(X), expected)
    (tmp_path / "model" / "README.md").unlink()
    assert np.array_equal(load_model(tmp_path / "model", verify=True).predict_proba(X), expected)
    clf.save(tmp_path / "model")  # in the place of the other, all at once
    assert card_of(tmp_path / "model").startswith("---\nlibrary_name")
