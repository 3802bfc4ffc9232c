"""``extremax report``: the files it writes, what it prints, and what it says about wrong arguments."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from extremax import TextClassifier, analyse, load_model
from extremax.cli.app import app
from extremax.report import ModelPage, load_analysis
from extremax.runtime import atomic_files

THINGS = ["ladder", "roof", "bicycle", "horse", "stairs", "boat"]
ROWS = [
    (f"{verb} {at} a {thing}", thing)
    for thing in THINGS
    for verb in ("fell", "jumped")
    for at in ("off", "from")
]


def cli(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    TextClassifier().fit(*zip(*ROWS, strict=True)).save(path / "things")
    with (path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("text", "label"), *ROWS, ("fell off a roof", "horse"), ("what", "unseen")]
        )
    return path


def test_files_by_their_names(folder, tmp_path):
    arguments = ("report", folder / "things", folder / "data.csv", "--label-column", "label")
    done = cli(*arguments, "--out", tmp_path / "a.html", "--json")
    found = json.loads(done.stdout)
    clf = load_model(folder / "things")
    texts, labels = zip(*ROWS, ("fell off a roof", "horse"), strict=True)
    figures = analyse(clf, texts, labels).tables["figures"].records()[0]
    assert found["accuracy"] == pytest.approx(figures["accuracy"])
    assert found["n_samples"] == 25
    assert "1 rows have no label that the model knows" in done.stderr
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "<title>things – extremax report</title>" in text
    cli(*arguments, "--out", tmp_path / "b.json", "--quiet")
    assert ModelPage(clf, load_analysis(tmp_path / "b.json")).overview()["held_out"]["n_rows"] == 25
    done = cli(*arguments, "--out", tmp_path / "both", "--title", "Mine")
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["analysis.json", "report.html"]
    assert "class frequencies" in done.stdout
    assert "<title>Mine" in (tmp_path / "both" / "report.html").read_text("utf-8")


@pytest.mark.error
def test_wrong_names_get_a_sentence(folder, tmp_path):
    done = cli("report", folder / "things", folder / "data.csv", "--out", tmp_path / "a.pdf", code=2)
    assert "must end in .html or .json" in " ".join(done.stderr.replace("\u2502", " ").split())
    done = cli("report", folder / "things", tmp_path / "none.csv", "--out", tmp_path / "a.html", code=1)
    assert "none.csv" in done.stderr
    assert not (tmp_path / "a.html").exists()
    done = cli("report", folder / "things", folder / "data.csv", "--out", tmp_path / "no" / "a.html", code=1)
    assert "no" in done.stderr


def test_merged_and_grown_models_have_a_report(folder, tmp_path):
    (tmp_path / "new.csv").write_text("text,label\nfell from a tall boat,tall\njumped off a tall roof,tall\n")
    cli(
        "update", folder / "things", "--merge", "roof=high", "--merge", "ladder=high", "--remove", "boat",
        "--add", tmp_path / "new.csv", "--out", tmp_path / "changed",
    )  # fmt: skip
    arguments = (folder / "data.csv", "--label-column", "label", "--out", tmp_path / "both", "--json")
    found = json.loads(cli("report", tmp_path / "changed", *arguments).stdout)
    assert found["n_samples"] == 13  # of bicycle, horse and stairs
    clf = load_model(tmp_path / "changed")
    document = load_analysis(tmp_path / "both" / "analysis.json")
    assert document["model"]["n_classes"] == len(clf.classes_) == 5
    page = ModelPage(clf, document)
    assert page.overview()["held_out"]["n_rows"] == 13


def test_a_report_that_fails_leaves_no_folder(folder, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(28, "No space left on device")

    out = ("--out", tmp_path / "out")
    cli("report", folder / "things", tmp_path / "missing.csv", *out, code=1)
    monkeypatch.setattr(atomic_files, "flush", fail)
    done = cli("report", folder / "things", folder / "data.csv", *out, code=1)
    assert done.stderr.endswith("analysis.json: No space left on device.\n")
    assert not (tmp_path / "out").exists()
