"""Commands of the documentation are run, page by page, in a folder that has the files they speak of, and
their output is compared with what the page shows.

Those that take minutes are left to the tests of their own modules; test_docs.py checks that they and their
options exist."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax.cli.app import app
from test_docs import PAGES, blocks_of, commands_of, name_of, same_output

LONG = {"demo", "run", "tune", "plot", "reproduce", "serve", "--install-completion"}
ROWS = [
    (f"{start} {thing} {trouble}", queue)
    for (thing, queue), trouble, start in itertools.product(
        [
            ("printer", "hardware"),
            ("screen", "hardware"),
            ("invoice", "billing"),
            ("payment", "billing"),
            ("password", "access"),
        ],
        ["is broken", "is missing", "does not work"],
        ["the", "my", "where is the"],
    )
]


def commands(page: Path) -> list[list[str]]:
    shell = "\n".join(block.text for block in blocks_of(page) if block.language == "bash")
    return [words for words in commands_of(shell) if words[0] not in LONG]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages speak of."""
    folder = tmp_path_factory.mktemp("shelf")

    def table(name: str, *rows: tuple[str, ...]) -> None:
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)

    for name in ("tickets.csv", "test.csv"):
        table(name, ("text", "label", "body", "queue"), *((*row, *row) for row in ROWS))
    table("new.csv", ("nr", "text", "body"), *((f"T{i}", text, text) for i, (text, _) in enumerate(ROWS[:3])))
    with (folder / "tickets.jsonl").open("w") as file:
        file.writelines(json.dumps({"subject": text, "queue": queue}) + "\n" for text, queue in ROWS)
    (folder / "names.tsv").write_text("camera\tbroken camera\twebcam does not start\n")
    (folder / "more.jsonl").write_text('{"id": "scanner", "prefLabel": "scanner", "altLabel": ["fax"]}\n')
    table("notes.csv", ("text", "label"), *ROWS)
    excel = "".join(
        f"{text};{queue}\r\n" for text, queue in [("text", "label"), *ROWS, ("Tür zum Büro", "access")]
    )
    (folder / "excel.csv").write_bytes(excel.encode("cp1252"))
    (folder / "lines.csv").write_text("text,label\n" + "".join(f"text {i},{i % 3}\n" for i in range(1_000)))
    table(
        "codes.csv",
        ("label", "text"),
        *((queue, f"all about {queue}") for queue in ("hardware", "billing", "access")),
    )
    table("laws.csv", ("text", "label"), *((text, f"{queue};{text.split()[-1]}") for text, queue in ROWS))
    (folder / "questions.txt").write_text("".join(f"{text}\n" for text, _ in ROWS[:3]))
    rng = np.random.default_rng(0)
    for name in ("train.txt.gz", "test.txt.gz"):
        with gzip.open(folder / name, "wt") as file:
            file.write("80 12 6\n")
            for _ in range(80):
                labels = sorted({*rng.integers(6, size=2).tolist()})
                values = " ".join(
                    f"{2 * label + part}:{rng.uniform(1, 2):.3f}" for label in labels for part in (0, 1)
                )
                file.write(",".join(map(str, labels)) + f" {values}\n")
    y = rng.integers(20, size=300)
    np.save(
        folder / "X.npy", (rng.normal(size=(20, 6))[y] + 0.1 * rng.normal(size=(300, 6))).astype(np.float32)
    )
    np.save(folder / "y.npy", y)
    done = CliRunner().invoke(app, ["train", str(folder / "tickets.csv"), "--out", str(folder / "model")])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_commands_run(page: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(shelf, folder)
    monkeypatch.chdir(folder)
    blocks = blocks_of(page)
    for i, block in enumerate(blocks):
        if block.language != "bash":
            continue
        printed, all_words = "", commands_of(block.text)
        for words in all_words:
            if words[0] in LONG:
                continue
            done = CliRunner().invoke(app, words, input=Path("questions.txt").read_text())
            assert done.exit_code == 0, (words, done.output, done.exception)
            printed += done.stdout
            for option in ("--out", "--by-class"):
                if option in words:
                    assert Path(words[words.index(option) + 1]).exists(), words
        if i + 1 < len(blocks) and blocks[i + 1].language == "text":
            assert not [words for words in all_words if words[0] in LONG], (
                "output of a command that is not run"
            )
            assert same_output(printed, blocks[i + 1].text, blocks[i + 1].tolerance), printed


def test_enough_is_run() -> None:
    run = [words[0] for page in PAGES for words in commands(page)]
    assert {"train", "predict", "evaluate", "inspect", "ask"} <= set(run)
    assert len(run) > 20
