"""``extremax update``: the same as the methods, saved with a history, or nothing at all."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.cli.app import app
from extremax.runtime.locks import hold_folder

THINGS = ["ladder", "roof", "horse", "boat"]
TEXTS = [f"{verb} {thing}" for thing in THINGS for verb in ("fell off the", "jumped from a", "near my")]
LABELS = [thing for thing in THINGS for _ in range(3)]
# words that no text of a fit had would say nothing about a class that is added later
TEXTS += ["a tall tree", "the old tree", "my tree"]
LABELS += ["other"] * 3


def cli(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


@pytest.fixture
def model(tmp_path):
    TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS).save(tmp_path / "model")
    return tmp_path / "model"


def test_all_changes_at_once(model, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\na tall tree,tree\nthe tree,tree\nmy old tree,tree\n")
    (tmp_path / "names.txt").write_text("horse=animal or boat\nboat=animal or boat\n")
    out = tmp_path / "out"
    done = cli(
        "update", model, "--remove", "roof", "--remove", "other", "--merge", f"@{tmp_path / 'names.txt'}",
        "--add", tmp_path / "new.csv", "--out", out, "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["n_classes"] == 3
    assert [c["what"] for c in found["changes"]] == ["remove_classes", "merge_classes", "add_classes"]
    clf = load_model(out)
    assert clf.classes_.tolist() == ["animal or boat", "ladder", "tree"]
    assert clf.predict(["that tree", "off the horse"]).tolist() == ["tree", "animal or boat"]
    assert load_model(model).classes_.tolist() == sorted([*THINGS, "other"])
    shown = cli("inspect", out)
    assert "changes of the classes" in shown.stdout
    assert "remove_classes" in shown.stdout
    facts = json.loads(cli("inspect", out, "--json").stdout)
    assert facts["changes"] == clf.changes_
    assert facts["n_merged_classes"] == 1
    cli("update", out, "--merge", "tree=ladder")
    assert len(load_model(out).changes_) == 4


def test_known_classes_are_trained_when_asked(model, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\na tall tree,tree\nthe tree,tree\na roof of tiles,roof\n")
    done = cli("update", model, "--add", tmp_path / "new.csv", code=1)
    assert "'roof', a class of this model already; --add takes rows of further classes" in done.stderr
    assert "--train-known takes rows of both" in done.stderr
    (tmp_path / "known.csv").write_text("text,label\na roof of tiles,roof\n")
    done = cli("update", model, "--add", tmp_path / "known.csv", code=1)
    assert "the label of y is a class of this model already; --train-known trains" in done.stderr
    assert load_model(model).changes_ == []
    cli("update", model, "--add", tmp_path / "new.csv", "--train-known")
    assert "tree" in load_model(model).classes_


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."}


def test_mistakes_leave_the_model_as_it_was(model, tmp_path):
    before = content(model)
    (tmp_path / "latin.txt").write_bytes("straße=road\n".encode("latin-1"))
    for arguments, sentence in [
        ((), "nothing to do"),
        (("--remove", "nobody"), "'nobody' is not one of the model's 5 labels"),
        (("--merge", "nobody=x"), "--merge takes OLD=NEW"),
        (("--merge", f"@{tmp_path / 'latin.txt'}"), "latin.txt is not UTF-8; save it as UTF-8 text."),
        ([word for name in LABELS[2::3][1:] for word in ("--remove", name)], "would leave 1"),
    ]:
        done = CliRunner().invoke(app, ["update", str(model), *arguments])
        assert done.exit_code in (1, 2)
        assert sentence in " ".join(done.stderr.replace("\u2502", " ").split())
    assert content(model) == before


def test_second_update_at_once_is_told(model):
    before = content(model)
    with hold_folder(model):  # as an update does from load to save
        done = cli("update", model, "--remove", "roof", code=1)
        assert "is in use by another process. Wait until it ends" in done.stderr
        assert content(model) == before
        same = model.parent / "none" / ".." / model.name
        model.with_name("none").mkdir()
        cli("update", model, "--remove", "roof", "--out", same, code=1)
        assert content(model) == before
        cli("update", model, "--remove", "roof", "--out", model.with_name("other"))
    cli("update", model, "--remove", "roof")
    assert "roof" not in load_model(model).classes_


def test_update_holds_the_model_from_load_to_save(model, monkeypatch):
    def remove(clf, labels):
        with pytest.raises(BlockingIOError), hold_folder(model):
            pass
        removed.append(labels)

    removed = []
    monkeypatch.setattr(TextClassifier, "remove_classes", remove)
    cli("update", model, "--remove", "roof")
    assert removed == [["roof"]]


@pytest.mark.parametrize("saved", [None, 3])
def test_threads_of_the_call_are_not_saved(tmp_path, saved):
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS)
    clf.classifier_.n_jobs = saved
    clf.save(tmp_path / "model")
    cli("update", tmp_path / "model", "--remove", "roof", "--threads", "1")
    assert load_model(tmp_path / "model").classifier_.n_jobs == saved


def test_numbers_in_a_file_are_those_of_a_model_of_numbers(tmp_path):
    numbers = [THINGS.index(label) if label in THINGS else 9 for label in LABELS]
    TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, numbers).save(tmp_path / "model")
    (tmp_path / "known.csv").write_text("text,label\nfell off the roof,1\nnear my horse,2\n")
    (tmp_path / "new.csv").write_text("text,label\na tall tree,12\nthe old tree,12\n")
    (tmp_path / "odd.csv").write_text("text,label\na tall tree,twelve\n")
    figures = json.loads(cli("evaluate", tmp_path / "model", tmp_path / "known.csv", "--json").stdout)
    assert figures["n_samples"] == 2
    cli("update", tmp_path / "model", "--add", tmp_path / "new.csv")
    assert load_model(tmp_path / "model").classes_.tolist() == [0, 1, 2, 3, 9, 12]
    done = cli("update", tmp_path / "model", "--add", tmp_path / "odd.csv", code=1)
    assert "the label 'twelve', but the classes of this model are numbers" in done.stderr
    assert load_model(tmp_path / "model").classes_.tolist() == [0, 1, 2, 3, 9, 12]
