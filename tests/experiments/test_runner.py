"""Runs: their folder, their clock, and that a killed run ends with the model of an undisturbed one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiment_files import make_recipe, write_recipe
from extremax import ExtremeClassifier, load_model
from extremax.experiments import load_recipe, run, runner
from extremax.experiments.curve import Schedule, read_curve, read_test_rows
from extremax.experiments.recipe import EvaluationConfig, model_defaults, resolve
from extremax.experiments.rows import load_rows
from extremax.experiments.runner import FittedNoise, RunWatcher, fit_shared_noise
from extremax.storage.folder import load_folder
from extremax.tuned import DEFAULTS, replace_numbers

ROWS_PER_EPOCH = 960  # of 1,200; two tenths are held out


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    return load_folder(folder, kind="classifier").arrays


def assert_same_model(ours: Path, theirs: Path) -> None:
    a, b = arrays_of(ours), arrays_of(theirs)
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# -- the folder


def test_folder_of_a_run(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    summary = run(recipe, tmp_path / "out")
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        ".lock",
        "config.json",
        "machine.json",
        "curve.jsonl",
        "model",
        "summary.json",
        "test_rows",
    }
    config = json.loads((out / "config.json").read_text())
    assert config["model"] == {**model_defaults("negative_sampling"), **recipe.model}  # defaults filled in
    assert config["model"]["random_state"] == 0
    assert config["method"] == "adversarial"
    machine = json.loads((out / "machine.json").read_text())
    assert len(machine) == 1
    assert machine[0]["versions"]["numpy"] == np.__version__
    points = read_curve(out / "curve.jsonl")
    assert points[0]["epoch"] == 0
    assert points[-1]["epoch"] == 4
    assert [p["seconds"] for p in points] == sorted(p["seconds"] for p in points)
    assert [p["samples"] for p in points] == [round(ROWS_PER_EPOCH * p["epoch"]) for p in points]
    assert summary["last"] == points[-1] == json.loads((out / "summary.json").read_text())["last"]
    assert (summary["n_train"], summary["n_classes"]) == (ROWS_PER_EPOCH, 24)
    rows = load_rows(recipe)
    model = load_model(out / "model")
    assert model.score(rows.X["test"], rows.classes[rows.y["test"]]) == points[-1]["test_accuracy"] > 0.5


def test_finished_run_is_not_repeated(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1)
    first = run(recipe, tmp_path / "out")
    (tmp_path / "rows.npz").unlink()  # the data are not read again
    messages: list[str] = []
    assert run(recipe, tmp_path / "out", log=messages.append) == json.loads(json.dumps(first))
    assert messages == [f"{tmp_path / 'out'} is finished already"]


def test_folder_of_another_recipe_rejects(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1)
    run(recipe, tmp_path / "out")
    with pytest.raises(ValueError, match=r"another recipe: model.n_epochs is 1 there and 3 here"):
        run(recipe.with_model(n_epochs=3), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError, match="is not a run, so it is left alone"):
        run(recipe, tmp_path / "mine")


def test_run_that_never_began_leaves_its_folder_free(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1)
    with pytest.raises(ValueError, match="learning_rate"):
        run(recipe.with_model(learning_rate=-1.0), tmp_path / "out")
    assert run(recipe, tmp_path / "out")["n_epochs"] == 1


def test_text_run_reduces_ngrams(tmp_path: Path) -> None:
    lines = [f"{animal} {i},{animal}" for i in range(40) for animal in ("dog", "cat", "horse")]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(lines))
    recipe_path = tmp_path / "recipe.toml"
    recipe_path.write_text('[data]\npath = "rows.csv"\n[features]\nn_components = 4\n[model]\nn_epochs = 3')
    recipe = load_recipe(recipe_path)
    rows = load_rows(recipe, cache=tmp_path / "cache")
    assert run(recipe, tmp_path / "out", rows=rows)["last"]["test_accuracy"] == 1.0
    again = load_rows(recipe, cache=tmp_path / "cache", log=pytest.fail)  # nothing is read anew
    assert again.X["train"].shape == (96, 4)
    np.testing.assert_array_equal(again.X["test"], rows.X["test"])
    assert again.classes.tolist() == ["cat", "dog", "horse"]
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    np.testing.assert_array_equal(load_rows(recipe, cache=tmp_path / "cache").X["test"], rows.X["test"])


# -- points and clock


def test_points_are_evenly_spaced_in_log_samples() -> None:
    schedule = Schedule(100, 4)
    due = [schedule.next_after(0)]
    for _ in range(12):
        due.append(schedule.next_after(due[-1]))
    np.testing.assert_allclose(np.diff(np.log10(due)), 0.25, rtol=1e-9)  # rounding of powers
    assert due[-1] == 100_000
    assert schedule.next_after(3000) == pytest.approx(100 * 10**1.5)


@pytest.mark.parametrize("n_rows", [960, 1013, 99_991, 1_234_567])
def test_points_of_a_run_to_its_plateau_double_the_epochs(n_rows: int) -> None:
    schedule = Schedule.of(EvaluationConfig(until_plateau=True), n_rows)
    due = [schedule.next_after(0)]
    for _ in range(9):
        due.append(schedule.next_after(due[-1]))
    assert due == [n_rows * 2**i for i in range(10)]  # exactly: the ends of epochs


def test_points_do_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose clocks run a thousand times as fast, a run has the same points and figures."""
    more = "[evaluation]\nfirst_samples = 500\npoints_per_decade = 5\n"
    recipe = make_recipe(tmp_path, n_epochs=8, more=more)
    run(recipe, tmp_path / "usual", n_jobs=1)
    for name in ("perf_counter", "process_time"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: 1000.0 * clock())
    run(recipe, tmp_path / "slow", n_jobs=1, checkpoint_seconds=1e9)
    monkeypatch.undo()
    usual, slow = (read_curve(tmp_path / name / "curve.jsonl") for name in ("usual", "slow"))
    assert [p["samples"] for p in usual] == [960 * epoch for epoch in (0, 1, 2, 3, 4, 6, 8)]
    without = [
        [{k: v for k, v in p.items() if "seconds" not in k} for p in points] for points in (usual, slow)
    ]
    assert without[0] == without[1]
    assert slow[-1]["cpu_seconds"] > 20 * usual[-1]["cpu_seconds"]


def test_test_rows_of_a_point_have_its_figures(tmp_path: Path) -> None:
    run(make_recipe(tmp_path, n_epochs=2), tmp_path / "out")
    points = read_curve(tmp_path / "out" / "curve.jsonl")
    assert len(list((tmp_path / "out" / "test_rows").iterdir())) == len(points)
    for number, point in enumerate(points):
        by_row = read_test_rows(tmp_path / "out", number)
        assert by_row[0].mean() == pytest.approx(point["test_accuracy"])
        assert by_row[1].mean(dtype=np.float64) == pytest.approx(point["test_log_likelihood"])


@pytest.mark.parametrize("solver", ["negative_sampling", "nce"])
def test_shared_tree_gives_the_same_curve(tmp_path: Path, solver: str) -> None:
    """Bit by bit that of a run that fits the tree itself, with the time of the tree, and after a cut, too."""
    plain = make_recipe(tmp_path, n_epochs=3, solver=solver, tree_fit="paper", random_state=5)
    recipe = plain.with_model(scale_features=False)
    rows = load_rows(recipe)
    run(recipe, tmp_path / "own", rows=rows)
    parameters = resolve(recipe.with_model(random_state=0))["model"]
    late = FittedNoise(fit_shared_noise(parameters, rows).noise, 100.0, 200.0)

    def cut(point: Any) -> None:
        if point["epoch"] >= 2:
            raise Power

    with pytest.raises(Power):
        run(recipe, tmp_path / "out", rows=rows, noise=late, checkpoint_seconds=0.0, on_point=cut)
    summary = run(recipe, tmp_path / "out", rows=rows, noise=late, keep_model=False)
    assert summary["n_epochs"] == 3
    assert not (tmp_path / "out" / "model").exists()
    assert not list((tmp_path / "out").glob("*checkpoint*"))
    own, shared = (read_curve(tmp_path / name / "curve.jsonl") for name in ("own", "out"))
    for mine, other in zip(own, shared, strict=True):
        for name in mine:
            if "seconds" not in name:
                assert mine[name] == other[name] or name == "loss"
    assert shared[0]["seconds"] >= 100.0
    assert shared[0]["cpu_seconds"] >= 200.0


def test_noise_without_a_tree_is_not_shared(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, noise="uniform")
    with pytest.raises(ValueError, match="noise without a tree is not shared"):
        fit_shared_noise(resolve(recipe)["model"], load_rows(recipe))


def test_evaluation_and_checkpoints_are_not_on_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each point takes a second more, and each checkpoint half of one: the time of training is the same."""
    recipe = make_recipe(
        tmp_path, n_epochs=2, more="[evaluation]\nfirst_samples = 1\npoints_per_decade = 50\n"
    )
    save = runner.save_checkpoint
    monkeypatch.setattr(runner, "save_checkpoint", lambda *a: (time.sleep(0.5), save(*a))[1])
    started = time.perf_counter()
    summary = run(recipe, tmp_path / "out", checkpoint_seconds=0.0, on_point=lambda point: time.sleep(1.0))
    waited = 1.0 * len(read_curve(tmp_path / "out" / "curve.jsonl")) + 0.5 * 2
    assert waited >= 4.0
    assert summary["training_seconds"] <= time.perf_counter() - started - waited


class OftenWatched(ExtremeClassifier):
    """Calls watchers after every minibatch."""

    _numbers = replace_numbers(DEFAULTS, rows={"progress_pairs": 1})


def test_points_within_an_epoch(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1)
    rows = load_rows(recipe)
    clf = OftenWatched.with_solver(**recipe.model, random_state=0)
    often = EvaluationConfig(first_samples=1, points_per_decade=1000, valid_rows=100, test_rows=100)
    watcher = RunWatcher(clf, tmp_path, rows, often, n_jobs=1)
    clf.fit(rows.X["train"], rows.y["train"], callbacks=[watcher])
    epochs = [point["epoch"] for point in read_curve(tmp_path / "curve.jsonl")]
    assert epochs == sorted(epochs)
    assert sum(0 < epoch < 1 for epoch in epochs) >= 5


def test_test_rows_are_a_random_sample(tmp_path: Path) -> None:
    rows = load_rows(make_recipe(tmp_path, n_epochs=1))
    sample = rows.sample("test", 50, seed=1)
    assert sample.X.shape == (50, 8)
    assert not np.array_equal(sample.X, rows.X["test"][:50])
    np.testing.assert_array_equal(sample.y, rows.sample("test", 50, seed=1).y)
    assert rows.sample("test", 10**6, seed=1).X is rows.X["test"]


def test_time_limit_ends_the_run(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=10**6, more="[evaluation]\nmax_seconds = 0.5\n")
    summary = run(recipe, tmp_path / "out")
    assert summary["last"]["cpu_seconds"] >= 0.5
    assert summary["n_epochs"] < 10**6


# -- resuming


class Power(BaseException):
    """A failure that no handler of the program expects."""


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"solver": "augment_reduce"},
        {"solver": "minibatch_softmax", "n_negatives": None, "n_shared": 6},
    ],
    ids=str,
)
def test_cut_run_is_resumed_to_the_same_model(tmp_path: Path, parameters: dict[str, Any]) -> None:
    more = "[evaluation]\nfirst_samples = 1\npoints_per_decade = 1000\n"
    recipe = make_recipe(tmp_path, n_epochs=5, more=more, n_rows=400, n_classes=12, **parameters)
    whole = run(recipe, tmp_path / "whole")
    # before the first checkpoint; in epoch 3; in epoch 4, when it is resumed from the second
    for cut_at in (1, 4, 2):
        calls = [0]

        def cut(point: Any, calls: list[int] = calls, cut_at: int = cut_at) -> None:
            calls[0] += 1
            if calls[0] == cut_at:
                raise Power

        with pytest.raises(Power):
            run(recipe, tmp_path / "cut", checkpoint_seconds=0.0, on_point=cut)
        assert not (tmp_path / "cut" / "summary.json").exists()
    resumed = run(recipe, tmp_path / "cut", checkpoint_seconds=0.0)
    assert_same_model(tmp_path / "cut" / "model", tmp_path / "whole" / "model")
    figures = [
        [
            {name: p[name] for name in p if "seconds" not in name}
            for p in read_curve(tmp_path / folder / "curve.jsonl")
        ]
        for folder in ("cut", "whole")
    ]
    assert figures[0] == figures[1]
    assert resumed["n_epochs"] == whole["n_epochs"]


KILLS = """
import os, signal, sys
import extremax.experiments.runner  # once, and no thread is started
from extremax import ExtremeClassifier
from extremax.cli.app import app

def start(epoch, when):
    # a process that ends itself before or after the checkpoint of an epoch is saved
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    save = ExtremeClassifier.save

    def save_or_end(self, path):
        here = path.name == "checkpoint" and self.model_.n_epochs == epoch
        if here and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, path)
        if here and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    ExtremeClassifier.save = save_or_end
    try:
        app(["run", sys.argv[1], "--out", sys.argv[2], "--checkpoint-seconds", "0"])
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code or 0)

print(start(2, "after"), start(6, "before"), os.path.exists(sys.argv[2] + "/summary.json"), start(-1, ""))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_process_is_resumed_to_the_same_model(tmp_path: Path) -> None:
    """SIGKILL, when a checkpoint has just appeared, and again between its state and its model."""
    recipe = write_recipe(tmp_path, n_epochs=8)
    run(load_recipe(recipe), tmp_path / "whole")
    out = tmp_path / "killed"
    command = [sys.executable, "-c", KILLS, str(recipe), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split()[-4:] == ["-9", "-9", "False", "0"], done.stderr
    assert re.findall(r"is resumed from epoch (\d+)", done.stderr) == ["2", "5"]
    assert_same_model(out / "model", tmp_path / "whole" / "model")
    assert not list(out.glob("*checkpoint*"))


def test_killed_between_last_checkpoint_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path, n_epochs=2)

    def cut(*_: Any) -> None:
        raise Power

    monkeypatch.setattr(ExtremeClassifier, "save", cut)
    with pytest.raises(Power):
        run(recipe, tmp_path / "out")
    monkeypatch.undo()
    run(recipe, tmp_path / "out")
    run(recipe, tmp_path / "whole")
    assert_same_model(tmp_path / "out" / "model", tmp_path / "whole" / "model")


def test_ctrl_c_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=6)

    def press(point: dict[str, Any]) -> None:
        if point["epoch"] >= 1:
            os.kill(os.getpid(), signal.SIGINT)

    more = make_recipe(
        tmp_path, n_epochs=6, more="[evaluation]\nfirst_samples = 1\npoints_per_decade = 1000\n"
    )
    assert more.model == recipe.model
    with pytest.raises(KeyboardInterrupt):
        run(more, tmp_path / "out", checkpoint_seconds=0.0, on_point=press)
    run(more, tmp_path / "out")
    run(more, tmp_path / "whole")
    assert_same_model(tmp_path / "out" / "model", tmp_path / "whole" / "model")
    shutil.rmtree(tmp_path / "out")
