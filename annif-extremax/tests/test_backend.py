"""The backend in a real Annif project, through Annif's own commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUBJECTS = {
    "http://example.org/fall": (
        "fall",
        ["fell off a ladder", "a fall from the roof", "slipped and fell down"],
    ),
    "http://example.org/bite": ("bite", ["bitten by a dog", "bite of a cat", "the dog bit the child"]),
    "http://example.org/burn": (
        "burn",
        ["burned by hot water", "a burn of the hand", "scalded by hot steam"],
    ),
    "http://example.org/sting": ("sting", ["stung by a bee", "sting of a wasp", "bees stung him"]),
}


def run(folder: Path, *arguments: str, text: str | None = None, code: int = 0) -> str:
    program = "from annif_extremax import main; main()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("annif")
    (folder / "projects.cfg").write_text(
        "[words]\nname=Words\nlanguage=en\nbackend=extremax\nvocab=accidents\nanalyzer=simple\nlimit=3\n"
    )
    (folder / "subjects.tsv").write_text("".join(f"<{uri}>\t{name}\n" for uri, (name, _) in SUBJECTS.items()))
    rows = [f"{text}\t<{uri}>\n" for uri, (_, texts) in SUBJECTS.items() for text in texts]
    rows.append("fell and was bitten by the dog\t<http://example.org/fall> <http://example.org/bite>\n")
    rows.append("a document without any subject\t\n")
    (folder / "documents.tsv").write_text("".join(rows))
    run(folder, "load-vocab", "accidents", "subjects.tsv", "--language", "en")
    return folder


@pytest.fixture(scope="module")
def trained(project: Path) -> Path:
    run(project, "train", "words", "documents.tsv")
    return project


def test_untrained_project_says_so(project: Path) -> None:
    said = run(project, "suggest", "words", text="a dog", code=1)
    assert "not trained" in said


def test_suggestions_are_ranked_probabilities(trained: Path) -> None:
    lines = [
        line.split("\t")
        for line in run(trained, "suggest", "words", text="she fell off the roof").splitlines()
    ]
    lines = [line for line in lines if line[0].startswith("<")]
    assert lines[0][0] == "<http://example.org/fall>"
    assert len(lines) <= 3
    scores = [float(line[2]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert 0.0 < scores[-1] <= scores[0] <= 1.0


def test_unknown_text_gets_no_suggestion(trained: Path) -> None:
    assert "example.org" not in run(trained, "suggest", "words", text="zzzzqqq")


def test_limit_and_threshold_of_annif_apply(trained: Path) -> None:
    said = run(trained, "suggest", "words", "--limit", "1", text="stung by a wasp")
    assert said.count("example.org") == 1
    assert "sting" in said


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_evaluation_runs_in_one_process_and_in_two(trained: Path, jobs: str) -> None:
    said = run(trained, "eval", "words", "documents.tsv", "--jobs", jobs)
    first = next(line for line in said.splitlines() if line.startswith("Precision@1:"))
    assert float(first.split()[-1]) > 0.9, said


def test_training_again_gives_the_same_suggestions(trained: Path) -> None:
    before = run(trained, "suggest", "words", text="hot steam")
    run(trained, "train", "words", "documents.tsv")
    assert run(trained, "suggest", "words", text="hot steam") == before


def test_bad_values_and_unsupported_requests_are_said(trained: Path) -> None:
    said = run(trained, "train", "words", "documents.tsv", "-b", "extremax.n_epochs=many", code=1)
    assert "n_epochs is 'many'" in said
    assert "nothing to reuse" in run(trained, "train", "words", "--cached", code=1)
    (trained / "one.tsv").write_text("fell\t<http://example.org/fall>\n")
    assert "at least two subjects" in run(trained, "train", "words", "one.tsv", code=1)


def test_labels_of_the_vocabulary_are_class_texts(project: Path) -> None:
    (project / "projects.cfg").write_text(
        "[named]\nname=Named\nlanguage=en\nbackend=extremax\nvocab=named\nanalyzer=simple\nlimit=3\n"
        "use_labels=true\n"
    )
    names = [*((uri, name) for uri, (name, _) in SUBJECTS.items()), ("http://example.org/frost", "frostbite")]
    (project / "named.tsv").write_text("".join(f"<{uri}>\t{name}\n" for uri, name in names))
    run(project, "load-vocab", "named", "named.tsv", "--language", "en")
    run(project, "train", "named", "documents.tsv")
    lines = run(project, "suggest", "named", text="frostbite").splitlines()
    assert next(line for line in lines if line.startswith("<")).startswith("<http://example.org/frost>")
