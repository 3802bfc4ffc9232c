"""train, predict, evaluate, inspect, ask and demo: the same answers as in Python, from files and pipes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.cli import batches as batches_module
from extremax.cli.app import app
from extremax.cli.options import in_options
from extremax.cli.train import cross_validate
from extremax.data import planted_hierarchy
from extremax.params import PARAMETERS
from extremax.storage.folder import folder_checksum
from planted import label_lists

RUN = [sys.executable, "-m", "extremax"]
GOLDEN = Path(__file__).parent.parent / "golden" / "v2"
THINGS = ["ladder", "roof", "bicycle", "horse", "stairs", "boat", "tree", "train"]
ROWS = [
    (f"{verb} {place} a {thing}", thing)
    for thing in THINGS
    for verb in ("fell", "jumped")
    for place in ("off", "from", "near")
]
FREQUENCY = ["--solver", "minibatch_softmax", "--noise", "frequency"]
PARAMETERS_USED = {"n_epochs": 6}


def plain(text: str) -> str:
    """Words of a message that Typer may draw in a frame."""
    return " ".join(text.replace("\u2502", " ").split())


def cli(*arguments: Any, text: str | bytes | None = None, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)
    assert done.exit_code == code, done.output + repr(done.exception)
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of texts, and train a model on it from the command line."""
    path = tmp_path_factory.mktemp("cli")
    with (path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *ROWS])
    cli(
        "train",
        path / "data.csv",
        "--out",
        path / "model",
        "--n-epochs",
        6,
    )
    return path


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder of npy files with integer labels, and train a model on it."""
    path = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    y = rng.integers(20, size=300)
    np.save(
        path / "X.npy", (rng.normal(size=(20, 6))[y] + 0.1 * rng.normal(size=(300, 6))).astype(np.float32)
    )
    np.save(path / "y.npy", y)
    cli("train", path / "X.npy", "--out", path / "model", *FREQUENCY, "--n-epochs", 5, "-q")
    return path


@pytest.fixture(scope="module")
def tree_model(features: Path) -> Path:
    """Train a model of the same rows with a label tree."""
    options = ["--solver", "negative_sampling", "--tree-components", 4, "--n-epochs", 6, "-q"]
    cli("train", features / "X.npy", "--out", features / "tree_model", *options)
    return features / "tree_model"


def test_command_line_same_everywhere(folder: Path) -> None:
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    clf = TextClassifier(
        ExtremeClassifier(random_state=0, **PARAMETERS_USED),
    ).fit(texts, labels)
    reloaded = load_model(folder / "model")
    best, log_prob = clf.predict_topk(texts, k=3)
    np.testing.assert_array_equal(reloaded.predict_topk(texts, k=3)[1], log_prob)
    answers = [
        json.loads(line)
        for line in cli(
            "predict", folder / "model", folder / "data.csv", "-k", 3, "--to", "jsonl"
        ).stdout.splitlines()
    ]
    assert [answer["labels"] for answer in answers] == best.tolist()
    # Files hold seven digits.
    np.testing.assert_allclose([answer["probabilities"] for answer in answers], np.exp(log_prob), rtol=1e-6)
    figures = json.loads(cli("evaluate", folder / "model", folder / "data.csv", "--json").stdout)
    assert figures["log_likelihood"] == pytest.approx(clf.log_likelihood(texts, labels), abs=1e-6)
    assert figures["accuracy@1"] == clf.score(texts, labels)
    one = json.loads(cli("ask", folder / "model", texts[0], "-k", 3, "--json").stdout)
    assert [answer["label"] for answer in one["answers"]] == best[0].tolist()


def test_every_parameter_is_an_option() -> None:
    shown = " ".join(cli("train", "--help").stdout.split())
    for name, parameter in PARAMETERS.items():
        if name in ("random_state", "n_jobs", "verbose"):  # --seed, --threads, and a bar in a terminal
            continue
        option = f"--{name.replace('_', '-')}"
        assert f"{option} " in shown
        assert parameter.help.split(".")[0].split("`")[0] in shown
        if parameter.choices:
            assert "|".join(parameter.choices) in shown
    assert "if no --valid is given" in shown


def test_shell_completes_choices() -> None:
    environment = {
        **os.environ,
        "_EXTREMAX_COMPLETE": "complete_bash",
        "COMP_WORDS": "extremax train --noise ",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(RUN, capture_output=True, text=True, env=environment)
    assert done.stdout.split() == list(PARAMETERS["noise"].choices)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--n-epochs", "-1"], "--n-epochs must be an integer >= 0"),
        (
            ["--solver", "nce", "--tree-regularization", "autp"],
            "--tree-regularization must be a number > 0.0 or one of 'auto'. Got 'autp' instead.",
        ),
        (["--solver", "nce", "--learning-rate", "0"], "--learning-rate must be a number > 0.0"),
    ],
)
def test_parameter_is_checked_before_the_file_is_read_rejects(
    tmp_path: Path, option: list[str], sentence: str
) -> None:
    done = cli("train", tmp_path / "absent.csv", "--out", tmp_path / "model", *option, code=2)
    assert sentence in plain(done.stderr)


def test_nothing_is_written_of_bad_rows_rejects(folder: Path, features: Path, tmp_path: Path) -> None:
    done = cli("predict", folder / "model", features / "X.npy", code=1)
    assert done.stdout == ""
    assert "holds features, but the model takes texts" in done.stderr
    assert cli("predict", folder / "model", text="").stdout == "id,text,label,probability\n"
    done = cli("predict", folder / "model", folder / "data.csv", "--out", tmp_path / "answers.json", code=2)
    assert "answers.json" in plain(done.stderr).replace(" ", "")
    done = cli(
        "predict", folder / "model", folder / "data.csv", "--out", tmp_path / "absent" / "answers.csv", code=1
    )
    assert f"there is no folder {tmp_path / 'absent'}" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"", "a.csv has no rows."),
        ("a.csv", b"text,label\n", "a.csv has no rows."),
        (
            "a.csv",
            b"text\nx\ny\n",
            "a.csv has 2 rows, but no labels; name their column: --label-column NAME.",
        ),
    ],
)
def test_file_without_labels_rejects(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert sentence in cli("train", tmp_path / name, "--out", tmp_path / "model", code=1).stderr


def test_features_without_labels_rejects(features: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.load(features / "X.npy"))
    assert "300 rows, but no labels; give their file: --labels FILE." in cli(
        "train", tmp_path / "a.npy", "--out", tmp_path / "model", code=1
    ).stderr  # fmt: skip


def test_options_reach_the_classifier(features: Path, tmp_path: Path) -> None:
    options = [
        "--solver",
        "negative_sampling",
        "--learning-rate",
        0.1,
        "--tree-regularization",
        0.5,
        "--optimizer",
        "adagrad_row",
        "--n-negatives",
        2,
        "--seed",
        7,
    ]
    done = cli(
        "train",
        features / "X.npy",
        "--out",
        tmp_path / "m",
        "--n-epochs",
        1,
        "--validation-fraction",
        0.2,
        "--json",
        *options,
    )
    clf = load_model(tmp_path / "m")
    assert isinstance(clf, ExtremeClassifier)
    solver: Any = clf.solver
    found = (solver.learning_rate, solver.tree_regularization, solver.optimizer, solver.n_negatives)
    assert found == (0.1, 0.5, "adagrad_row", 2)
    assert clf.random_state == 7
    summary = json.loads(done.stdout)
    assert summary["n_classes"] == 20
    assert summary["valid_accuracy"] == clf.history_[-1]["valid_accuracy"]


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
def test_predictions_as_files(features: Path, tmp_path: Path, to: str) -> None:
    out = tmp_path / f"answers.{to}"
    cli("predict", features / "model", features / "X.npy", "-k", 2, "--out", out)
    X = np.load(features / "X.npy")
    labels, log_prob = load_model(features / "model").predict_topk(X, k=2)
    if to == "csv":
        rows = list(csv.DictReader(io.StringIO(out.read_text())))
        found = [[int(row["label_1"]), int(row["label_2"])] for row in rows]
        p = [[float(row["probability_1"]), float(row["probability_2"])] for row in rows]
    elif to == "jsonl":
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        found, p = [row["labels"] for row in rows], [row["probabilities"] for row in rows]
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(out).to_pydict()
        found, p = table["labels"], table["probabilities"]
    assert found == labels.tolist()  # integers come back as integers
    np.testing.assert_allclose(p, np.exp(log_prob), rtol=1e-6)  # seven digits
    assert [entry.name for entry in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_labels_that_apply_as_files(tmp_path: Path, to: str) -> None:
    X, y = label_lists(300)
    clf = ExtremeClassifier(random_state=0, n_epochs=2).fit(X, y)
    clf.save(tmp_path / "model")
    np.save(tmp_path / "X.npy", X[:40])
    out = tmp_path / f"answers.{to}"
    for given, threshold in (("0.2", 0.2), ("auto", None)):
        cli("predict", tmp_path / "model", tmp_path / "X.npy", "--threshold", given, "--out", out)
        expected = clf.predict_labels(X[:40], threshold)
        if to == "csv":
            rows = list(csv.DictReader(io.StringIO(out.read_text())))
            found = [[int(label) for label in row["labels"].split(";") if label] for row in rows]
            p = [[float(x) for x in row["probabilities"].split(";") if x] for row in rows]
        elif to == "jsonl":
            lines = [json.loads(line) for line in out.read_text().splitlines()]
            found, p = [row["labels"] for row in lines], [row["probabilities"] for row in lines]
        else:
            import pyarrow.parquet as pq

            table = pq.read_table(out).to_pydict()
            found, p = table["labels"], table["probabilities"]
        assert found == expected
        table = clf.predict_label_proba(X[:40])
        for row, labels, prob in zip(table, expected, p, strict=True):
            np.testing.assert_allclose(prob, row[labels], rtol=1e-4)
    done = cli("predict", tmp_path / "model", tmp_path / "X.npy", "--threshold", "2", code=2)
    assert "give a number above 0 and at most 1, or auto" in " ".join(done.stderr.split())


def test_lines_are_answered_as_they_come_and_a_closed_pipe_ends_quietly(folder: Path) -> None:
    command = [*RUN, "predict", str(folder / "model"), "--to", "jsonl"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:  # type: ignore[call-overload]
        for thing in ("ladder", "horse"):
            running.stdin.write(f"near a {thing}, perhaps\n")
            running.stdin.flush()
            # before the next line is written
            assert json.loads(running.stdout.readline())["labels"] == [thing]
        running.stdout.close()
        _, said = running.communicate("fell off a ladder\n" * 1000)
    assert said == ""
    assert running.returncode == 141


def test_table_from_standard_input(folder: Path) -> None:
    done = cli(
        "predict",
        folder / "model",
        "-",
        "--format",
        "csv",
        "--text-column",
        "text",
        text="id,text\n1,a ladder\n2,\n",
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "id,text,label,probability"
    assert lines[1].startswith("0,a ladder,ladder,")
    assert len(lines) == 3


@pytest.mark.filterwarnings("always:Training was interrupted")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_what_there_is(
    folder: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = TextClassifier.fit

    def interrupted(*arguments: Any, **others: Any) -> TextClassifier:
        return fit(*arguments, **others | {"callbacks": [lambda record: signal.raise_signal(number)]})

    monkeypatch.setattr(TextClassifier, "fit", interrupted)
    command = ["train", folder / "data.csv", "--out", tmp_path / "model", "--n-epochs", 100_000_000]
    said = cli(*command, code=130).stderr
    assert f"saved in {tmp_path / 'model'}; training was interrupted" in said
    assert "cross-validated" not in said
    clf = load_model(tmp_path / "model")
    assert 0 < clf.history_[-1]["epoch"] < 100_000_000
    assert len(clf.predict(["fell off a ladder"])) == 1
    # one that is there already is left alone
    saved = folder_checksum(tmp_path / "model")
    done = cli(*command, "--seed", 1, "--json", code=130)
    assert json.loads(done.stdout)["model"] == str(tmp_path / "model-interrupted")
    assert not json.loads(done.stdout)["replaced"]
    assert f"saved in {tmp_path / 'model-interrupted'}; training was interrupted" in done.stderr
    assert folder_checksum(tmp_path / "model") == saved
    cli(*command, "--seed", 1, "--overwrite", code=130)
    assert folder_checksum(tmp_path / "model") != saved


def test_evaluation_counts_unknown_labels(folder: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "test.csv.gz", "wt") as file:
        file.write("text,label\nfell off a ladder,ladder\nfell off a cliff,cliff\n")
    figures = json.loads(
        cli("evaluate", folder / "model", tmp_path / "test.csv.gz", "--json", "-k", "1,2").stdout
    )
    assert (figures["n_samples"], figures["n_left_out"], figures["n_unknown"]) == (1, 1, 1)
    assert figures["accuracy@1"] == figures["ndcg@2"] == figures["propensity_scored_precision@1"] == 1.0
    assert figures["precision@2"] == 0.5
    clf = load_model(folder / "model")
    assert figures["log_likelihood"] == pytest.approx(
        clf.log_likelihood(["fell off a ladder"], ["ladder"]), abs=1e-6
    )
    assert 0.0 <= figures["calibration_error"] <= 1.0


def test_evaluation_of_several_labels(features: Path, tmp_path: Path) -> None:
    X = np.load(features / "X.npy")
    best, _ = load_model(features / "model").predict_topk(X, k=2)
    lines = [
        "2 6 20",
        *(f"{best[i, 1]},{best[i, 0]} " + " ".join(f"{j}:{x}" for j, x in enumerate(X[i])) for i in range(2)),
    ]
    (tmp_path / "test.txt").write_text("\n".join(lines) + "\n")
    command = ["evaluate", features / "model", tmp_path / "test.txt", "-k", "1,2,4"]
    figures = json.loads(cli(*command, "--json").stdout)
    assert figures["precision@1"] == figures["precision@2"] == figures["ndcg@4"] == 1.0
    assert figures["precision@4"] == 0.5
    assert figures["f1@2"] == figures["recall@100"] == 1.0
    shown = [line.split("\t") for line in cli(*command).stdout.splitlines()]
    by_k = shown.index(["figure", "@1", "@2", "@4"])
    assert ["f1", "0.6667", "1.0000", "0.6667"] in shown[by_k:]
    assert ["recall@100", "1.0000"] in shown[:by_k]
    names = {f"{line[0]}@{k}" for line in shown[by_k + 1 :] for k in (1, 2, 4)}
    assert names | {line[0] for line in shown[1:by_k]} == figures.keys()


def test_inspection_tells_sizes_and_tree(tree_model: Path) -> None:
    facts = json.loads(cli("inspect", tree_model, "--json").stdout)
    known = [facts[name] for name in ("input", "n_classes", "n_samples", "tree_depth")]
    assert known == ["features", 20, 300, 5]
    assert facts["frequencies_log_likelihood"] == pytest.approx(-np.log(20), abs=0.05)
    assert sum(facts["memory"].values()) == sum(file.stat().st_size for file in tree_model.iterdir())
    assert {"weights", "noise (TreeNoise)", "label names"} <= set(facts["memory"])
    assert "header" in facts["memory"]
    assert "tree held out log likelihood" in cli("inspect", tree_model).stdout


def test_inspection_of_a_model_without_tree(folder: Path) -> None:
    facts = json.loads(cli("inspect", folder / "model", "--json").stdout)
    assert facts["tree_depth"] is None
    assert facts["temperature"] > 0.0
    assert {"weights", "text features", "label names", "class counts"} <= set(facts["memory"])


def test_inspection_of_a_folder_of_format_2() -> None:
    model = GOLDEN / "text_stream" / "model"
    facts = json.loads(cli("inspect", model, "--json").stdout)
    assert facts["input"] == "texts"
    assert {"weights", "accumulators (for further training)", "text features"} <= set(facts["memory"])
    assert set(facts["memory"]) & {"header"} == {"header"}


def test_inspection_of_a_label_matches_reference(features: Path, tree_model: Path) -> None:
    shown = cli("inspect", tree_model, "--label", "7", "-k", 3, "--json").stdout
    hardest = json.loads(shown)["hardest"]
    clf = load_model(tree_model)
    model = clf.model_
    assert model.projection is not None
    assert model.tree is not None
    Z = model.projection.transform(np.load(features / "X.npy")[np.load(features / "y.npy") == 7])
    p = np.exp(model.tree.log_prob_all(Z.mean(axis=0, keepdims=True))[0])
    p[clf.classes_ == 7] = 0.0
    assert [entry["label"] for entry in hardest] == clf.classes_[np.argsort(-p)[:3]].tolist()
    np.testing.assert_allclose(
        [entry["tree_probability"] for entry in hardest], np.sort(p)[::-1][:3], rtol=0.02
    )  # float16 means


def test_inspection_of_a_label_without_tree(features: Path) -> None:
    hardest = json.loads(cli("inspect", features / "model", "--label", "7", "--json").stdout)["hardest"]
    weights = np.asarray(load_model(features / "model").model_.weights.to_dense(), np.float64)
    unit = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    cosine = unit @ unit[7]
    assert [entry["label"] for entry in hardest] == [i for i in np.argsort(-cosine) if i != 7][:10]


def test_bad_lines_stop_or_are_counted_rejects(tmp_path: Path) -> None:
    text = "text,label\n" + "".join(f"{a},{b}\n" for a, b in ROWS) + "one,two,three\n"
    (tmp_path / "data.csv").write_text(text)
    options = [
        "train",
        tmp_path / "data.csv",
        "--out",
        tmp_path / "m",
        "--n-epochs",
        1,
    ]
    said = cli(*options, code=1).stderr
    assert "data.csv, line 50: expected 2 columns, got 3; correct it, or pass --skip-bad-lines" in said
    assert not (tmp_path / "m").exists()
    said = cli(*options, "--skip-bad-lines").stderr
    assert "warning: 1 bad lines were skipped" in said
    assert (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["train", "nothing.csv", "--out", "m"], 1, "nothing.csv: there is no such file."),
        (["train", "data.csv"], 2, "--out"),
        (["train", "data.csv", "--out", "."], 1, "is not an extremax model, so it is left alone"),
        (["train", "data.csv", "--out", "m", "--n-epochs", "-1"], 2, "--n-epochs must be an integer >= 0"),
        (["train", "data.csv", "--out", "m", "--noise", "loud"], 2, "loud"),
        (["train", "data.csv", "--out", "m", "--label-column", "nope"], 1, "there is no column 'nope'"),
        (["train", "texts.csv", "--out", "m"], 1, "but no labels; name their column"),
        (["predict", "nothing", "data.csv"], 1, "There is no model at nothing"),
        (["predict", "data.csv", "data.csv"], 1, "data.csv is not an extremax model"),
        (["predict", "model", "data.csv", "--keep", "date"], 1, "there is no column 'date'"),
        (["predict", "model", "data.csv", "--id-column", "nr"], 1, "there is no column 'nr'"),
        (["evaluate", "model", "data.csv", "--by-class", "x.xlsx"], 2, ".csv, .tsv or .jsonl"),
        (["evaluate", "model", "data.csv", "--by-class", "absent/x.csv"], 1, "there is no folder absent"),
        (["plot", ".", "--out", "x.gif"], 2, "'gif'"),
        (["reproduce", "--method", "magic"], 2, "--method magic"),
        (["predict", "model", "X.npy"], 1, "holds features, but the model takes texts"),
        (["predict", "model", "data.csv", "--search", "wide"], 2, "wide"),
        (["predict", "model", "data.csv", "--out", "model"], 1, "is a folder"),
        (["evaluate", "model", "texts.csv"], 1, "but no labels; name their column"),
        (["evaluate", "model", "data.csv", "--k", "1,x"], 2, "such as 1,3,5"),
        (["inspect", "model", "--label", "laddr"], 1, "Did you mean ladder"),
    ],
)
def test_mistake_gets_a_sentence_rejects(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, sentence: str
) -> None:
    monkeypatch.chdir(folder)
    Path("texts.csv").write_text("text\nfell\noff\n")
    Path("pairs.csv").write_text("text,label\nfell,a;b\noff,a\n")
    np.save("X.npy", np.zeros((3, 2), np.float32))
    done = cli(*arguments, code=code)
    assert sentence in plain(done.stderr)
    assert not Path("m").exists()


def test_several_labels_are_reduced_or_kept(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("text,label\n" + "fell down,a;b\njumped up,c;b\nup,b\n" * 8)
    cli(
        "train",
        tmp_path / "pairs.csv",
        "--out",
        tmp_path / "m",
        "--label-separator",
        ";",
        "--reduce",
        "rarest",
        "--n-epochs",
        1,
    )
    clf = load_model(tmp_path / "m")
    assert clf.model_.classes.counts.tolist() == [8, 8, 8]
    cli("train", tmp_path / "pairs.csv", "--out", tmp_path / "m", "--label-separator", ";", "--n-epochs", 1)
    clf = load_model(tmp_path / "m")
    assert clf.classes_.tolist() == ["a", "b", "c"]
    assert clf.model_.classes.counts.tolist() == [8, 24, 8]
    figures = json.loads(
        cli("evaluate", tmp_path / "m", tmp_path / "pairs.csv", "--label-separator", ";", "--json").stdout
    )
    assert (figures["n_samples"], figures["n_pairs"]) == (24, 40)


def test_training_says_what_it_does_in_a_pipe(folder: Path, tmp_path: Path) -> None:
    done = cli("train", folder / "data.csv", "--out", tmp_path / "m", "--n-epochs", 1)
    assert done.stdout == ""
    phases = [
        "48 rows of texts",
        "48 texts are read: ",
        "start: leave-one-out",
        "epoch 1 ",
        "kept ",
        "saved in ",
    ]
    said = done.stderr.splitlines()
    assert [phase for line in said for phase in phases if phase in line] == phases
    assert "\r" not in done.stderr
    assert cli("train", folder / "data.csv", "--out", tmp_path / "m", "-q").stderr == ""


def test_help_of_train_begins_with_what_most_people_need() -> None:
    panels = cli("train", "--help").stdout.split("\n\n")
    names = [
        re.findall(r"^ +(?:-\w, )?(--[\w-]+)", panel, flags=re.MULTILINE)
        for panel in panels
        if re.match(r"[A-Z][\w ]+:\n", panel)
    ]
    assert [panel.split(":")[0] for panel in panels[-6:]] == [
        "Options", "Reading the file", "Texts", "Training", "Options of a solver", "More options",
    ]  # fmt: skip
    first = [
        "--out",
        "--text-column",
        "--label-column",
        "--label-separator",
        "--encoding",
        "--valid",
        "--fast",
    ]
    assert names[1] == [*first, "--overwrite", "--seed", "--quiet", "--help"]


def test_first_look_keeps_the_start(folder: Path, tmp_path: Path) -> None:
    command = ["train", folder / "data.csv", "--out", tmp_path / "m", "--fast"]
    assert "no epochs" in cli(*command).stderr
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    clf = TextClassifier(ExtremeClassifier(random_state=0, n_epochs=0)).fit(texts, labels)
    found = load_model(tmp_path / "m").predict_log_proba(texts)
    np.testing.assert_array_equal(found, clf.predict_log_proba(texts))
    assert "leave out --n-epochs" in plain(cli(*command, "--n-epochs", 2, code=2).stderr)


def test_options_reach_the_features_of_texts(folder: Path, features: Path, tmp_path: Path) -> None:
    options = ["--char-ngrams", 3, 4, "--word-ngrams", 1, "--hash-bits", 10]
    cli("train", folder / "data.csv", "--out", tmp_path / "m", "--n-epochs", 1, *options, "-q")
    clf = load_model(tmp_path / "m")
    assert isinstance(clf, TextClassifier)
    assert clf.features is not None
    found = clf.features.get_params()
    assert (found["char_ngrams"], found["word_ngrams"], found["hash_bits"]) == ((3, 4), 1, 10)
    done = cli("train", features / "X.npy", "--out", tmp_path / "m", "--hash-bits", 10, code=2)
    assert "holds features, not texts: --hash-bits does not apply" in plain(done.stderr)
    done = cli("train", "absent.csv", "--out", tmp_path / "m", "--char-ngrams", 3, 2, code=2)
    assert "--char-ngrams is (3, 2)" in plain(done.stderr)


@pytest.mark.parametrize("several", [False, True])
def test_texts_larger_than_memory_are_trained_on_in_batches(tmp_path: Path, several: bool) -> None:
    data = write_tickets(tmp_path / "tickets.csv", 1500)
    if several:
        data.write_text(
            re.sub(r",(c\d)\n", r",\1;all\n", data.read_text())
        )  # c10 and c11 have no other label
    rows = list(csv.DictReader(io.StringIO(data.read_text())))
    texts, labels = [row["text"] for row in rows], [row["label"].split(";") for row in rows]
    options = ["--label-separator", ";"] if several else []
    command = ["train", data, "--out", tmp_path / "m", "--batch-rows", 500, *options]
    done = cli(*command, "--json")
    record = json.loads(done.stdout)
    assert (record["n_samples"], record["n_classes"], record["held_out_rows"]) == (1500, 12 + several, 30)
    assert record["epoch"] > 2  # parts
    assert "held out: accuracy " in done.stderr
    clf = load_model(tmp_path / "m")
    assert clf.score(texts, labels) > 0.8
    assert clf.model_.calibration.temperature != 1.0
    again = cli("train", data, "--out", tmp_path / "n", "--batch-rows", 500, *options, "--json", "-q")
    assert json.loads(again.stdout)["held_out_log_likelihood"] == record["held_out_log_likelihood"]
    assert "does not go with --fast" in plain(cli(*command, "--fast", code=2).stderr)


@pytest.mark.error
def test_batches_are_for_files_of_texts_rejects(folder: Path, features: Path, tmp_path: Path) -> None:
    for source, sentence in (
        ("-", "give a file, not a pipe"),
        (features / "X.npy", "--batch-rows is for texts"),
    ):
        done = cli("train", source, "--out", tmp_path / "m", "--batch-rows", 10, code=2)
        assert sentence in plain(done.stderr)
    for content, sentence in (
        ("text\na b\nc d\n", "has 2 rows, but no labels"),
        ("text,label\n", "has no rows"),
    ):
        (tmp_path / "texts.csv").write_text(content)
        done = cli("train", tmp_path / "texts.csv", "--out", tmp_path / "m", "--batch-rows", 10, code=1)
        assert sentence in done.stderr


def test_batches_that_are_interrupted_leave_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = write_tickets(tmp_path / "tickets.csv", 1500), batches_module._File._parts

    def interrupted(*arguments: Any) -> Any:
        """Read the file for its labels and the sample, and press Ctrl-C in the third reading."""
        readings.append(arguments)
        for i, part in enumerate(read(*arguments)):
            if (len(readings), i) == (3, 2):
                signal.raise_signal(signal.SIGINT)
            yield part

    readings: list[Any] = []
    monkeypatch.setattr(batches_module._File, "_parts", interrupted)
    command = ["train", data, "--out", tmp_path / "m", "--batch-rows", 300]
    assert "saved in" in cli(*command, code=130).stderr
    assert load_model(tmp_path / "m").history_[-1]["epoch"] == 3  # the sample and two parts


@pytest.mark.error
def test_advice_names_options(folder: Path, tmp_path: Path) -> None:
    command = ["train", folder / "data.csv", "--out", tmp_path / "m"]
    said = cli(*command, "--memory-limit", 1000, code=1).stderr
    assert (
        "Ways out: smaller --char-ngrams, --word-ngrams or --hash-bits; fewer texts at a time (--batch-rows)."
        in said
    )
    said = cli(*command, "--patience", 2, code=1).stderr
    assert "give --valid FILE, or set --validation-fraction." in said


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("smaller learning_rate (it is 3), optimizer='sgd'.", "--learning-rate (it is 3), --optimizer sgd."),
        ("fewer tree_components or fewer n_negatives.", "fewer --tree-components or fewer --n-negatives."),
        ("there is no column 'class_weight'; columns", "there is no column 'class_weight'; columns"),
        ("data/n_epochs/batch_size.csv: there is none.", "data/n_epochs/batch_size.csv: there is none."),
    ],
)  # fmt: skip
def test_names_of_parameters_become_options(message: str, expected: str) -> None:
    assert in_options(message).endswith(expected)


@pytest.fixture
def few_rows(tmp_path: Path) -> Path:
    rows = [(text, label) for text, label in ROWS if label in ("ladder", "roof")]
    with (tmp_path / "few.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows[:9], (" ", "roof")])
    return tmp_path / "few.csv"


def test_few_rows_are_cross_validated(few_rows: Path, tmp_path: Path) -> None:
    done = cli("train", few_rows, "--out", tmp_path / "m", "--json")
    record = json.loads(done.stdout)
    shown = re.search(
        r"^cross-validated: accuracy (\d\.\d{3}) ± (\d\.\d{3}), by 5", done.stderr, re.MULTILINE
    )
    assert shown is not None
    assert float(shown[1]) == pytest.approx(record["cross_validated_accuracy"], abs=1e-3)
    assert float(shown[2]) == pytest.approx(record["cross_validated_error"], abs=1e-3)
    assert 0.05 < record["cross_validated_error"] < 0.2
    assert "nan" not in done.stderr
    assert "warning: 1 of 10 texts" in done.stderr
    assert json.loads(cli("train", few_rows, "--out", tmp_path / "m", "--json", "-q").stdout) | {
        "replaced": False, "seconds": 0,
    } == record | {"seconds": 0}  # fmt: skip
    assert (
        "cross-validated" not in cli("train", few_rows, "--out", tmp_path / "m", "--valid", few_rows).stderr
    )
    few_rows.write_text("text,label\na b,x\nc d,y\na e,x\n")
    assert "by 3 models of 2 in 3 rows each" in cli("train", few_rows, "--out", tmp_path / "m").stderr


def test_cross_validation_matches_reference() -> None:
    texts, labels = [text for text, _ in ROWS], np.array([label for _, label in ROWS])
    accuracy, error = cross_validate(TextClassifier(), texts, labels, 0)
    assert accuracy == 1.0  # each text has the name of its class
    assert error == pytest.approx(np.sqrt(50 / 52 * 2 / 52 / 52))
    shuffled = np.random.default_rng(0).permutation(labels)
    assert (
        cross_validate(TextClassifier(), texts, shuffled, 0)[0] < 0.4
    )  # measured on rows of the training, 1
    alone = np.array(["a"] * 9 + ["b"])  # its row leaves one class to train on
    assert cross_validate(TextClassifier(), texts[:10], alone, 0)[0] == 0.9
    assert cross_validate(TextClassifier(), texts[:4], labels[[0, 6, 12, 18]], 0)[0] == 0.0
    lists = [[label, "all"] for label in labels]
    assert cross_validate(TextClassifier(), texts, lists, 0)[0] == 1.0


def test_descriptions_are_saved_and_shown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("ladder,a thing with rungs\nroof,\u00e9lev\u00e9\n")
    options = [
        "--descriptions",
        tmp_path / "names.csv",
        "--n-epochs",
        3,
    ]
    said = cli("train", folder / "data.csv", "--out", tmp_path / "m", *options).stderr
    assert "6 of 8 labels have no description" in said
    answers = json.loads(cli("ask", tmp_path / "m", "a ladder", "-k", 8, "--json").stdout)["answers"]
    described = {answer["label"]: answer["description"] for answer in answers}
    assert described == dict.fromkeys(THINGS, "") | {
        "ladder": "a thing with rungs",
        "roof": "\u00e9lev\u00e9",
    }
    assert "a thing with rungs" in cli("inspect", tmp_path / "m", "--label", "roof").stdout


@pytest.fixture(scope="module")
def word_model(folder: Path) -> Path:
    """Train a model of the same texts on words and n-grams, the default."""
    cli("train", folder / "data.csv", "--out", folder / "word_model")
    return folder / "word_model"


def test_words_and_ngrams_are_the_default(folder: Path, word_model: Path) -> None:
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(texts, labels)
    np.testing.assert_array_equal(
        load_model(word_model).predict_log_proba(texts), clf.predict_log_proba(texts)
    )
    facts = json.loads(cli("inspect", word_model, "--json").stdout)
    assert facts["text_features"] == "words and character n-grams"
    assert facts["nonzero_weights"] == clf.model_.weights.n_entries  # type: ignore[attr-defined]
    assert "nonzero weights" in cli("inspect", word_model).stdout
    shown = json.loads(cli("inspect", word_model, "--label", "ladder", "-k", 3, "--json").stdout)
    assert [name for name, _ in shown["features"]] == [n for n, _ in clf.explain_label("ladder", 3).features]
    assert "feature\tweight" in cli("inspect", word_model, "--label", "ladder").stdout


def test_question_is_answered_with_reasons(word_model: Path) -> None:
    lines = cli("ask", word_model, "--why", "the ladder broke").stdout.splitlines()
    assert lines[1].startswith("ladder\t")
    assert "why ladder" in lines
    words = lines[lines.index("word\tadds") + 1 :]
    score = words.index(next(line for line in words if line.startswith("score\t")))
    added = [float(line.split("\t")[1]) for line in words[: score + 1]]
    assert sum(added[:-1]) == pytest.approx(added[-1], abs=0.05)  # two digits each
    assert any(line.startswith("why ladder rather than ") for line in lines)
    found = json.loads(cli("ask", word_model, "--why", "--json", "the ladder broke").stdout)
    assert found["why"]["labels"][0] == "ladder"
    assert found["why"]["score"]["words"]


def test_each_of_several_labels_has_its_own_probability(tmp_path: Path) -> None:
    rows = [(text, f"{thing};{text.split()[0]}") for text, thing in ROWS]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    cli("train", tmp_path / "data.csv", "--out", tmp_path / "m", "--label-separator", ";", "-q")
    found = json.loads(cli("ask", tmp_path / "m", "fell off a horse", "-k", 3, "--json").stdout)["answers"]
    (tmp_path / "new.txt").write_text("fell off a horse\n")
    command = ["predict", tmp_path / "m", tmp_path / "new.txt", "--format", "lines", "--to", "jsonl"]
    predicted = json.loads(cli(*command, "--threshold", "auto").stdout)
    asked = {answer["label"]: answer["probability"] for answer in found}
    assert set(predicted["labels"]) == {"horse", "fell"}
    for label, probability in zip(predicted["labels"], predicted["probabilities"], strict=True):
        assert asked[label] == pytest.approx(probability, rel=1e-5)
    assert asked["horse"] + asked["fell"] > 1.5  # not shares of one


@pytest.mark.parametrize("text", ["", "zzzzqqq"])
def test_unknown_text_is_said_to_be_unknown(word_model: Path, text: str) -> None:
    done = cli("ask", word_model, "--why", text)
    assert "no known word was found; these are the class frequencies" in done.stderr
    probability = [line.split("\t")[1] for line in done.stdout.splitlines()[1:]]
    assert probability == ["0.1250"] * 5
    found = json.loads(cli("ask", word_model, text, "--json").stdout)
    assert not found["is_known"]


def test_demo_answers(tmp_path: Path) -> None:
    done = cli("demo", "--out", tmp_path / "demo", "--rows", 1000, "--n-epochs", 2)
    lines = done.stdout.splitlines()
    figures = {
        line.split("\t")[0]: [float(cell.rstrip("%")) for cell in line.split("\t")[1:]] for line in lines[1:4]
    }
    assert list(figures) == ["class frequencies", "nearest centroid", "extremax"]
    # far fewer rows and epochs than the demonstration has
    assert figures["extremax"][0] > figures["class frequencies"][0]
    assert figures["nearest centroid"][2] > figures["class frequencies"][2]
    assert lines.count("label\tdescription\tprobability") == 7
    reasons = lines[lines.index("fell off a ladder") :]
    assert sum(line == "word\tadds" for line in reasons) == 2
    assert (tmp_path / "demo" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "ICD-10-CM – extremax report" in (tmp_path / "demo" / "report.html").read_text("utf-8")
    assert "extremax ask" in done.stderr
    best = json.loads(cli("ask", tmp_path / "demo" / "model", "fell off a ladder", "--json").stdout)[
        "answers"
    ]
    assert best[0]["description"]


# -- what commands say, and what they carry through


def write_tickets(path: Path, n_rows: int) -> Path:
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(60)])
    y = rng.integers(12, size=n_rows)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("nr", "text", "label"))
        for i in range(n_rows):
            own = words[5 * y[i] : 5 * y[i] + 5]
            label = y[i] if i % 10 else (y[i] + 1) % 12  # one in ten is wrong
            out.writerow(
                (f"T{i}", " ".join(rng.choice(own, 3)) + " " + " ".join(rng.choice(words, 3)), f"c{label}")
            )
    return path


def test_training_ends_with_held_out_figures_and_says_what_it_replaces(tmp_path: Path) -> None:
    data = write_tickets(tmp_path / "tickets.csv", 1500)
    command = ["train", data, "--out", tmp_path / "m", "--n-epochs", 2, "--json"]
    done = cli(*command)
    said = done.stderr.splitlines()
    assert said[0] == (
        f"{data}: 1,500 rows of texts; CSV with a header: texts from 'text', labels from 'label'"
    )
    figures = re.fullmatch(
        r"held out: accuracy (0\.\d{4}), top-5 accuracy (0\.\d{4}|1\.0000), log-likelihood (-\d\.\d{4}),"
        r" on (\d+) rows that were not trained on",
        said[-1],
    )
    assert figures is not None, said
    record = json.loads(done.stdout)
    assert float(figures[1]) == pytest.approx(record["held_out_accuracy"], abs=1e-4)
    assert float(figures[3]) == pytest.approx(record["held_out_log_likelihood"], abs=1e-4)
    assert int(figures[4]) == record["held_out_rows"] >= 128
    assert 0.5 < record["held_out_accuracy"] <= record["held_out_top_k_accuracy"]
    assert load_model(tmp_path / "m").history_[-1]["held_out_rows"] == record["held_out_rows"]
    assert not record["replaced"]
    assert said[-2] == f"saved in {tmp_path / 'm'}"
    again = cli(*command, "--valid", data)
    assert json.loads(again.stdout)["replaced"]
    said = again.stderr.splitlines()
    assert said[0] == f"{tmp_path / 'm'} holds a model, which this one will replace"
    assert said[-1].startswith("validation: accuracy 0.")
    assert said[-2].endswith(", in place of the model that was there")


def test_figures_without_rows_to_hold_out(tmp_path: Path) -> None:
    made = planted_hierarchy(1000, 10, 4, seed=0)
    np.save(tmp_path / "X.npy", made.X)
    np.save(tmp_path / "y.npy", made.y)
    said = cli("train", tmp_path / "X.npy", "--out", tmp_path / "m", "--fast").stderr
    assert "held out: none, as rows are few; give --valid FILE, or --validation-fraction 0.1" in said


@pytest.mark.parametrize("to", ["csv", "jsonl"])
def test_predictions_carry_columns_through(folder: Path, tmp_path: Path, to: str) -> None:
    rows = [
        {"nr": f"T{i}", "text": text, "label": label, "day": str(i)}
        for i, (text, label) in enumerate(ROWS[:5])
    ]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / f"answers.{to}"

    def answers(*options: str) -> list[dict[str, Any]]:
        cli("predict", folder / "model", tmp_path / "new.jsonl", "--out", out, *options)
        if to == "csv":
            return list(csv.DictReader(io.StringIO(out.read_text())))
        if to == "jsonl":
            return [json.loads(line) for line in out.read_text().splitlines()]
        import pyarrow.parquet as pq

        return pq.read_table(out).to_pylist()  # type: ignore[no-any-return]

    predicted = ["label", "probability"] if to == "csv" else ["labels", "probabilities"]
    found = answers()
    assert list(found[0]) == ["id", "text", *predicted]
    assert [int(row["id"]) for row in found] == [0, 1, 2, 3, 4]
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    found = answers("--id-column", "nr", "--keep", "day,label", "--no-text")
    assert list(found[0]) == ["id", "day", "input_label", *predicted]
    assert [(row["id"], row["day"], row["input_label"]) for row in found] == [
        (row["nr"], row["day"], row["label"]) for row in rows
    ]
    assert list(answers("--keep", "all")[0]) == ["id", "nr", "text", "input_label", "day", *predicted]
    assert list(answers("--keep", "all", "--id-column", 0)[0]) == [
        "id",
        "text",
        "input_label",
        "day",
        *predicted,
    ]


def test_table_of_classes_matches_reference(folder: Path, tmp_path: Path) -> None:
    rows = [*ROWS, ("fell off a ladder", "roof"), ("jumped near a ladder", "roof")]
    with (tmp_path / "test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    command = ["evaluate", folder / "model", tmp_path / "test.csv", "--by-class"]
    cli(*command, tmp_path / "classes.jsonl")
    table = {
        row["label"]: row for row in map(json.loads, (tmp_path / "classes.jsonl").read_text().splitlines())
    }
    guessed = load_model(folder / "model").predict([text for text, _ in rows]).tolist()
    truth = [label for _, label in rows]
    for name, row in table.items():
        hits = sum(a == b == name for a, b in zip(truth, guessed, strict=True))
        assert row["support"] == truth.count(name)
        assert row["precision"] == pytest.approx(hits / guessed.count(name))
        assert row["recall"] == pytest.approx(hits / truth.count(name))
    assert next(iter(table)) == "roof"  # the most frequent
    assert (table["roof"]["confused_with"], table["roof"]["n_confused"]) == ("ladder", 2)
    assert table["ladder"]["confused_with"] is None
    cli(*command, tmp_path / "classes.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "classes.csv").read_text())))
    assert list(lines[0]) == [
        "label",
        "support",
        "predicted",
        "precision",
        "recall",
        "confused_with",
        "n_confused",
    ]
    assert lines[0]["recall"] == f"{table['roof']['recall']:.4f}"


def test_unwritable_targets_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("train", tmp_path / "absent.csv", "--out", tmp_path / "file" / "m", code=1)
    assert done.stderr == f"extremax: {tmp_path / 'file'}: Not a directory.\n"


def test_export_writes_a_graph_that_predicts(features: Path, word_model: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    cli("export", features / "model", "--onnx", tmp_path / "model.onnx", "-k", 2)
    X, clf = np.load(features / "X.npy"), load_model(features / "model")
    labels, prob = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(
        ["top_labels", "top_probabilities"], {"features": X}
    )
    expected, log_prob = clf.predict_topk(X, k=2)
    assert (labels[:, 0] == expected[:, 0]).all()
    np.testing.assert_allclose(prob, np.exp(log_prob), atol=1e-5)
    failed = cli("export", word_model, "--onnx", tmp_path / "words.onnx", code=1)
    assert "sparse features" in failed.stderr
    assert not (tmp_path / "words.onnx").exists()


def test_formulas_are_guarded_in_csv(folder: Path) -> None:
    texts = ["=1+1", "@cmd", " +x", "-y", "-1.5", "fell off"]
    rows = "text\n" + "".join(f'"{text}"\n' for text in texts)
    for option, marks in (("--guard", ["'"] * 4 + ["", ""]), ("--no-guard", [""] * 6)):
        done = cli("predict", folder / "model", "-", "--format", "csv", option, text=rows)
        found = [row["text"] for row in csv.DictReader(done.stdout.splitlines())]
        assert found == [mark + text for mark, text in zip(marks, texts, strict=True)]
    done = cli("predict", folder / "model", "-", "--format", "csv", "--to", "jsonl", text=rows)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == texts
    rows = 'text,"=now()"\nfell off,1\n'
    done = cli("predict", folder / "model", "-", "--format", "csv", "--keep", "all", text=rows)
    assert done.stdout.startswith("id,text,'=now(),label,")
