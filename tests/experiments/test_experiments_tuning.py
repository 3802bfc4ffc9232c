"""Parameter searches: they choose by validation alone, and can be resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from experiment_files import make_recipe, write_recipe
from extremax.cli.app import app
from extremax.experiments import load_recipe, tune, tuning
from extremax.experiments.curve import Evaluator
from extremax.experiments.methods import METHODS
from extremax.experiments.rows import load_rows
from extremax.experiments.tuning import default_space
from extremax.runtime.locks import hold_folder

pytest.importorskip("optuna")
SPACE = """
[search]
n_trials = 4
pruner = 'none'
[search.space]
learning_rate = [1e-4, 0.3]
score_penalty = {low = 1e-5, high = 1e-3}
"""


def test_search_finds_the_better_parameters(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=3, more=SPACE)
    rows = load_rows(recipe)
    del rows.X["test"], rows.y["test"]  # a search that looked at test rows would fail
    result = tune(recipe, tmp_path / "search", rows=rows)
    assert len(result.trials) == 4
    assert {trial.parameters["learning_rate"] for trial in result.trials} == {1e-4, 0.3}
    assert result.best.model["learning_rate"] == 0.3
    assert result.best_trial.score == max(trial.score or -99 for trial in result.trials)
    written = load_recipe(result.path)
    assert written.model == result.best.model
    assert written.data.path == recipe.data.path
    assert result.path.read_text().startswith("# Best of 4 trials by validation log_likelihood: ")
    assert [t["score"] for t in json.loads((tmp_path / "search" / "trials.json").read_text())] == [
        t.score for t in result.trials
    ]


def test_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    recipe = make_recipe(tmp_path, n_epochs=1, more=SPACE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 << 10, before[1]))
    try:
        with pytest.raises(OSError, match=r"study\.db cannot be read or written \(disk I/O error\)"):
            tune(recipe, tmp_path / "search")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_interrupted_search_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1, more=SPACE)
    rows = load_rows(recipe)
    evaluate, calls = tuning.Evaluator.__call__, [0]

    def cut(self: Any, model: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return evaluate(self, model)

    monkeypatch.setattr(tuning.Evaluator, "__call__", cut)
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, tmp_path / "search", rows=rows)
    seen: list[Any] = []
    result = tune(recipe, tmp_path / "search", rows=rows, on_trial=seen.append)
    assert (len(result.trials), len(seen)) == (4, 2)  # two were finished before
    assert (
        tune(recipe, tmp_path / "search", rows=rows, on_trial=lambda trial: pytest.fail("tried again")).trials
        == result.trials
    )
    assert len(tune(recipe, tmp_path / "search", rows=rows, n_trials=5).trials) == 5


def test_no_combination_is_tried_twice(tmp_path: Path) -> None:
    """Four trials try all four combinations of a space, however many are asked for."""
    space = SPACE.replace("{low = 1e-5, high = 1e-3}", "[1e-5, 1e-4]").replace("n_trials = 4", "n_trials = 9")
    said: list[str] = []
    result = tune(make_recipe(tmp_path, n_epochs=1, more=space), tmp_path / "search", log=said.append)
    tried = [tuple(trial.parameters.values()) for trial in result.trials]
    assert sorted(tried) == [(1e-4, 1e-5), (1e-4, 1e-4), (0.3, 1e-5), (0.3, 1e-4)]
    assert said[-1] == "every combination of the space has been tried"


def test_bad_trials_are_pruned(tmp_path: Path) -> None:
    space = (
        SPACE.replace("'none'", "'median'")
        .replace("n_trials = 4", "n_trials = 10")
        .replace("1e-4, 0.3", "0.3, 1e-6")
    )
    result = tune(make_recipe(tmp_path, n_epochs=8, more=space), tmp_path / "search")
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert any(trial.parameters["learning_rate"] == 1e-6 for trial in pruned)
    assert result.best_trial not in pruned
    assert result.best.model["learning_rate"] == 0.3


def test_folder_of_another_search_rejects(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, n_epochs=1, more=SPACE.replace("n_trials = 4", "n_trials = 1"))
    tune(recipe, tmp_path / "search")
    with pytest.raises(ValueError, match=r"another recipe: model\.n_epochs is 1 there and 2 here"):
        tune(recipe.with_model(n_epochs=2), tmp_path / "search")
    with pytest.raises(FileExistsError, match="is not a search"):
        tune(recipe, tmp_path)


def test_longer_runs_keep_the_search(tmp_path: Path) -> None:
    """Trials have epochs of their own: those of the model do not change them."""
    recipe = make_recipe(
        tmp_path, n_epochs=3, more=SPACE.replace("n_trials = 4", "n_trials = 1\nn_epochs = 1")
    )
    first = tune(recipe, tmp_path / "search")
    again = tune(
        recipe.with_model(n_epochs=9), tmp_path / "search", on_trial=lambda trial: pytest.fail("tried again")
    )
    assert again.trials == first.trials
    assert again.best.model["n_epochs"] == 9


def test_default_space_is_the_grid_of_the_paper() -> None:
    exact = METHODS["softmax"].model
    space = default_space({"solver": "negative_sampling", "noise": "uniform"})
    assert {0.0003, 0.001, 0.003, 0.01, 0.03} <= set(space["learning_rate"])
    assert space["score_penalty"] == [1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03]
    assert set(default_space({"solver": "one_vs_each"})) == {"learning_rate", "prior_variance"}
    # The appendix went up to 10 for softmax; nothing is searched that the solver does not use.
    assert max(default_space(exact)["learning_rate"]) == 10.0
    assert [set(default_space({"solver": name})) for name in ("auto", "minibatch_softmax")] == [
        {"learning_rate"}
    ] * 2
    assert default_space(exact)["score_penalty"] == space["score_penalty"]
    # Both readings of Eq. 6, where they differ and the noise does not depend on x.
    assert space["penalized_scores"] == ["debiased", "raw"]
    assert "penalized_scores" not in default_space({"solver": "negative_sampling", "noise": "tree"})


def test_long_trials_are_scored_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At three numbers of samples per decade, from a thousand on, and always after the last epoch."""
    looks = []
    evaluate = Evaluator.__call__

    def count(self: Evaluator, model: Any) -> dict[str, float]:
        looks.append(model.n_epochs)
        return evaluate(self, model)

    monkeypatch.setattr(Evaluator, "__call__", count)
    recipe = make_recipe(tmp_path, n_epochs=19)
    tune(replace(recipe, search=replace(recipe.search, pruner="none")), tmp_path / "search", n_trials=1)
    assert looks == [2, 3, 5, 11, 19]  # 1,000, 2,154, 4,642 and 10,000 samples, in epochs of 960


# -- recipes of the package, and the terminal


def test_terminal_runs_searches_and_draws(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, n_epochs=1, more=SPACE.replace("n_trials = 4", "n_trials = 2"))
    done = CliRunner().invoke(app, ["run", str(recipe), "--out", str(tmp_path / "a"), "--seed", "3"])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0].split("\t")[:3] == ["model", "epoch", "seconds"]
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model"]["random_state"] == 3
    done = CliRunner().invoke(app, ["tune", str(recipe), "--out", str(tmp_path / "s"), "--json"])
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["trials"]) == 2
    done = CliRunner().invoke(app, ["plot", str(tmp_path / "a"), "-o", str(tmp_path / "x.svg")])
    assert done.stdout == f"{tmp_path / 'x.svg'}\n"
    done = CliRunner().invoke(app, ["run", "icd10cm/adverserial", "--out", str(tmp_path / "b")])
    assert done.exit_code == 1
    assert "Did you mean 'icd10cm/adversarial'?" in done.stderr


# -- faults

KILLS = """
import os, sys
from pathlib import Path
import sqlalchemy
from extremax.experiments import load_recipe, tune
from extremax.experiments.rows import load_rows

folder, step = Path(sys.argv[1]), int(sys.argv[2])
recipe = load_recipe(folder / "recipe.toml")
rows = load_rows(recipe)
tune(recipe, folder / "first", rows=rows, n_jobs=1)  # compiles

def write(n_left):
    def count(*arguments, **named):
        n_left[0] -= 1
        if n_left[0] < 0:
            os._exit(9)
    return count

def child(out, n_writes):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            count, replace = write([n_writes]), os.replace
            sqlalchemy.event.listen(sqlalchemy.engine.Engine, "commit", count)
            os.replace = lambda *names: (count(), replace(*names))
            code = 0 if len(tune(recipe, out, rows=rows, n_jobs=1).trials) == 1 else 2
        except BaseException as error:
            print(f"{n_writes}: {error!r}", flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

n_writes = 0
while child(folder / f"out{n_writes}", n_writes) == 9:
    assert child(folder / f"out{n_writes}", 10**6) == 0, n_writes
    n_writes += step
print(n_writes)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_search_killed_before_any_write_is_resumed(tmp_path: Path, step: int) -> None:
    """A process that ends before its first write, the one `step` later, and so on to its last."""
    write_recipe(tmp_path, n_rows=200, n_classes=8, n_epochs=1, more=SPACE.replace("= 4", "= 1"))
    command = [sys.executable, "-c", KILLS, str(tmp_path), str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 15


@pytest.mark.parametrize("command", ["run", "tune"])
def test_second_process_is_told(tmp_path: Path, command: str) -> None:
    recipe = write_recipe(tmp_path, n_epochs=1, more=SPACE.replace("= 4", "= 1"))
    out = tmp_path / "out"
    out.mkdir()
    with hold_folder(out):
        done = CliRunner().invoke(app, [command, str(recipe), "--out", str(out)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"extremax: {out} is in use by another process")
    assert done.stderr.count("\n") == 1
    assert {path.name for path in out.iterdir()} <= {".lock"}
