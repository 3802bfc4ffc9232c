"""Runs: one recipe makes one folder.

================  ============================================================================
``config.json``   the recipe with all defaults
``machine.json``  machine, versions and date, of the start and of every time the run was resumed
``curve.jsonl``   the learning curve, one line per point, written as they come
``test_rows``     for each point, hit and log p(y|x) of each test row, for comparisons row by row
``checkpoint-*``  states from which the run can be resumed; deleted when it is finished
``model``         the trained model, for `extremax.load_model`
``summary.json``  the results; written when the run is finished
================  ============================================================================

A run that was killed at any time is resumed from its last checkpoint when it is called again, and ends with
the same model, bit by bit. While it runs, it locks its folder. Kernels are compiled before the clock starts.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from extremax.classifier import ExtremeClassifier
from extremax.errors import TrainingInterruptedWarning
from extremax.experiments.checkpoint import clear_checkpoints, load_checkpoint, save_checkpoint
from extremax.experiments.curve import CurveFile, Evaluator, Point, Schedule, best_point
from extremax.experiments.machine import environment
from extremax.experiments.methods import method_of
from extremax.experiments.recipe import Recipe, comparable, resolve
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.experiments.shared_noise import FittedNoise, TrainingOver, warm_up
from extremax.features.text import TextFeatures
from extremax.loading import load_model
from extremax.model import Model
from extremax.runtime.atomic_files import is_stage, sweep_stages, write_json
from extremax.runtime.locks import LOCK_NAME, hold_folder
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Moment, Record, Watcher
from extremax.text import TextClassifier
from extremax.types import Float32

OnPoint = Callable[[Point], None]
TEST_ROWS = "test_rows"
_LONG_COMPILATION = 5.0  # seconds of compilation that are worth a message


def run(  # noqa: PLR0913 (the parameters are the API)
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    rows: Rows | None = None,
    n_jobs: int | None = None,
    checkpoint_seconds: float = 10.0,
    clock: str = "seconds",
    noise: FittedNoise | None = None,
    keep_model: bool = True,
    log: Log = lambda text: None,
    on_point: OnPoint = lambda point: None,
) -> dict[str, Any]:
    """Run a recipe into the folder `out`, or resume it, and return its summary.

    Parameters
    ----------
    recipe : Recipe
        From `load_recipe`.
    out : path
        New, or the folder of the same recipe: a finished run is not repeated, an unfinished one is resumed.
    rows : Rows, optional
        Rows of the recipe's data, if they are loaded already.
    n_jobs : int, optional
        Threads; the model does not depend on it.
    checkpoint_seconds : float
        Least time between two checkpoints, which are written after whole epochs.
    clock : {"seconds", "cpu_seconds"}
        Time that `max_seconds` limits: elapsed time, or processor time, which runs evenly on a machine that
        others use as well.
    noise : FittedNoise, optional
        The recipe's noise, if it is fitted already; its time counts as training time.
    keep_model : bool
        Whether the model is saved; without it, only the curve is made, and no search index is fitted.
    log, on_point : callable
        Called with messages, and with each point of the curve.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C; the last checkpoint is kept.
    """
    folder = Path(out)
    config = json.loads(json.dumps(resolve(recipe)))
    config["method"] = recipe.method or method_of(config["model"])
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder):
        _open_folder(folder, config)
        wishes = _Wishes(n_jobs, checkpoint_seconds, clock, noise, keep_model, log, on_point)
        return _run(recipe, folder, config, rows, wishes)


@dataclass(frozen=True)
class _Wishes:
    """Arguments of `run` that do not change its model."""

    n_jobs: int | None
    checkpoint_seconds: float
    clock: str
    noise: FittedNoise | None
    keep_model: bool
    log: Log
    on_point: OnPoint


def _run(
    recipe: Recipe, folder: Path, config: dict[str, Any], rows: Rows | None, wishes: _Wishes
) -> dict[str, Any]:
    n_jobs, clock, log = wishes.n_jobs, wishes.clock, wishes.log
    if (folder / "summary.json").exists():
        log(f"{folder} is finished already")
        return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]
    started = time.perf_counter()
    rows = rows or load_rows(recipe, n_jobs=n_jobs, log=log)
    load_seconds = time.perf_counter() - started
    n_rows, n_features = rows.X["train"].shape
    log(f"{rows.name}: {n_rows:,} training rows, {rows.n_classes:,} classes, {n_features:,} features")
    parameters = {**config["model"], "patience": None}
    compile_seconds = warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
    if compile_seconds > _LONG_COMPILATION:
        log(f"compiled in {compile_seconds:.0f} s; later runs find the kernels ready")
    limits = {"valid": recipe.evaluation.valid_rows, "test": recipe.evaluation.test_rows}
    samples = {split: rows.sample(split, limit, recipe.evaluation.seed) for split, limit in limits.items()}
    curve = CurveFile(folder / "curve.jsonl")
    restored = load_checkpoint(folder)
    if wishes.noise is not None:
        parameters["noise"] = wishes.noise.noise
    clf = ExtremeClassifier(**parameters, n_jobs=n_jobs) if restored is None else restored[0]
    plan = WatchPlan(
        Schedule.of(recipe.evaluation),
        clock,
        recipe.evaluation.max_seconds,
        config["model"].get("patience"),
        wishes.checkpoint_seconds,
        wishes.on_point,
        0.0 if wishes.noise is None else wishes.noise.seconds,
        0.0 if wishes.noise is None else wishes.noise.cpu_seconds,
        wishes.keep_model,
    )
    watcher = RunWatcher(clf, folder, curve, Evaluator(samples, n_jobs), n_rows, plan)
    _note_machine(folder)
    _train(clf, rows, watcher, restored, n_jobs, log)
    if wishes.keep_model:
        if watcher.best is not None:
            clf = _reopen(folder / watcher.best["folder"])
        clf.set_params(patience=plan.patience)
        _save_model(folder / "model", clf, rows)
    points = curve.points
    summary = {
        "name": recipe.name,
        "method": config["method"],
        "data": rows.name,
        **rows.sizes(),
        "n_epochs": int(clf.model_.n_epochs),
        "choices": clf.choices_,
        "training_seconds": points[-1]["seconds"],
        "training_cpu_seconds": points[-1]["cpu_seconds"],
        "evaluation_seconds": watcher.evaluation_seconds,
        "compilation_seconds": compile_seconds,
        "loading_seconds": load_seconds,
        "threads": resolve_threads(n_jobs),
        "evaluated_rows": {split: sample.n_rows for split, sample in samples.items()},
        "last": points[-1],
        "best_accuracy": best_point(points, "accuracy"),
        "best_log_likelihood": best_point(points, "log_likelihood"),
        **{key: value for key, value in environment().items() if key != "versions"},
    }
    write_json(folder / "summary.json", summary)
    clear_checkpoints(folder)
    return summary


@dataclass(frozen=True)
class WatchPlan:
    """What a `RunWatcher` does when.

    Attributes
    ----------
    schedule
        Numbers of training rows at which points are due.
    clock
        Clock of `max_seconds`: "seconds" or "cpu_seconds".
    max_seconds
        Time after which training ends; None never ends it.
    patience
        Epochs without a better validation log-likelihood after which training ends; None never ends it.
    checkpoint_seconds
        Least time between two checkpoints.
    on_point
        Called with each point.
    earlier_seconds, earlier_cpu_seconds
        Time of training before the run: that of noise that was fitted already.
    keep_model
        Whether training ends in a model; if not, it ends after the last epoch.
    """

    schedule: Schedule
    clock: str
    max_seconds: float | None
    patience: int | None
    checkpoint_seconds: float
    on_point: OnPoint
    earlier_seconds: float = 0.0
    earlier_cpu_seconds: float = 0.0
    keep_model: bool = True


class RunWatcher(Watcher):
    """Adds points to the curve, writes checkpoints, and ends training by patience or time."""

    def __init__(
        self,
        clf: ExtremeClassifier,
        folder: Path,
        curve: CurveFile,
        evaluate: Evaluator,
        n_rows: int,
        plan: WatchPlan,
    ) -> None:
        self.clf, self.folder, self.curve, self.evaluate = clf, folder, curve, evaluate
        self.n_rows, self.plan = n_rows, plan
        self.saved_at = time.perf_counter()
        self.evaluated_before = 0.0
        self.cpu_offset = (
            plan.earlier_cpu_seconds - time.process_time()
        )  # added to the processor's clock, it gives training time
        self.best: dict[str, Any] | None = None  # epoch, log_likelihood and folder, where there is patience
        self.finished = False
        self.due = 0.0

    @property
    def evaluation_seconds(self) -> float:
        """Time spent in evaluation, also before the run was resumed."""
        return self.evaluated_before + self.evaluate.seconds

    @property
    def cpu_seconds(self) -> float:
        """Processor time of training, all threads together."""
        return self.cpu_offset + time.process_time()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self.curve.cut(state["n_points"])
        self.evaluated_before, self.best = state["evaluation_seconds"], state["best"]
        self.finished = state["finished"]
        self.cpu_offset = state["cpu_seconds"] - time.process_time()
        self.due = self.plan.schedule.next_after(self.curve.points[-1]["samples"])

    def now(self, record: Record) -> float:
        """Return the training time so far, on the clock of the plan."""
        seconds = float(record["seconds"]) + self.plan.earlier_seconds
        return self.cpu_seconds if self.plan.clock == "cpu_seconds" else seconds

    def at_start(self, moment: Moment) -> None:
        if not self.curve.points:
            self._add_point(moment.record, record_samples(moment.record, self.n_rows), moment.model())

    def during_epoch(self, moment: Moment) -> None:
        record = moment.record
        samples = (record["epoch"] - 1) * self.n_rows + record["rows"]
        # the end of an epoch has its own call
        if samples >= self.due and record["rows"] < self.n_rows:
            self._add_point(record, samples, moment.model())

    def __call__(self, record: Record) -> bool:
        plan, samples = self.plan, record_samples(record, self.n_rows)
        stop = plan.max_seconds is not None and self.now(record) >= plan.max_seconds
        if plan.patience is not None or stop or samples >= self.due:
            point = self._add_point(record, samples, self.clf.model_)
            if plan.patience is not None:
                stop |= self._keep_best(point, record["epoch"], plan.patience)
        self.finished = stop
        if not plan.keep_model and (stop or record["epoch"] == self.clf.choices_["n_epochs"]):
            self._close(record)
            raise TrainingOver
        if stop or time.perf_counter() - self.saved_at >= plan.checkpoint_seconds:
            self._save()
        return stop

    def finish(self) -> None:
        """Add the last point, if the curve does not end with the model."""
        if self.plan.keep_model:
            self._close(self.clf.history_[-1])

    def _close(self, record: Record) -> None:
        if self.curve.points[-1]["epoch"] != record["epoch"]:
            self._add_point(record, record_samples(record, self.n_rows), self.clf.model_)

    def _add_point(self, record: Record, samples: int, model: Model) -> Point:
        point = {
            "epoch": samples / self.n_rows,
            "samples": samples,
            "seconds": record["seconds"] + self.plan.earlier_seconds,
            "cpu_seconds": self.cpu_seconds,
            "loss": record.get("loss"),
        }
        before = time.process_time()
        point |= self.evaluate(model)
        if "test" in self.evaluate.by_row:
            save_test_rows(self.folder, len(self.curve.points), self.evaluate.by_row["test"])
        self.curve.add(point)  # after the rows: a line without them would not be made good
        self.due = self.plan.schedule.next_after(samples)
        self.plan.on_point(point)
        self.cpu_offset -= time.process_time() - before
        return point

    def _keep_best(self, point: Point, epoch: int, patience: int) -> bool:
        """Save the model if it is the best so far; return whether patience has run out."""
        value = point["valid_log_likelihood"]
        if self.best is None or value > self.best["log_likelihood"]:
            name = f"best-{epoch:06d}"
            self.clf.save(self.folder / name)
            self.best = {"epoch": epoch, "log_likelihood": value, "folder": name}
        return bool(epoch - self.best["epoch"] >= patience)

    def _save(self) -> None:
        state = {
            "n_points": len(self.curve.points),
            "evaluation_seconds": self.evaluation_seconds,
            "cpu_seconds": self.cpu_seconds,
            "best": self.best,
            "finished": self.finished,
        }
        before = time.process_time()
        save_checkpoint(self.folder, self.clf, state)
        for path in self.folder.glob("best-*"):  # no checkpoint refers to the older ones any more
            if self.best is None or path.name != self.best["folder"]:
                shutil.rmtree(path, ignore_errors=True)
        self.saved_at = time.perf_counter()
        self.cpu_offset -= time.process_time() - before


def record_samples(record: Record, n_rows: int) -> int:
    """Return the training rows seen at the end of the epoch of a record."""
    return int(record["epoch"]) * n_rows


def save_test_rows(folder: Path, number: int, by_row: Float32) -> None:
    """Write hits and log-probabilities of the test rows at a point of the curve."""
    target = folder / TEST_ROWS / f"{number:03d}.npy"
    target.parent.mkdir(exist_ok=True)
    np.save(target, by_row)


def read_test_rows(folder: Path, number: int) -> Float32 | None:
    """Return what `save_test_rows` wrote; None for a run of an older version."""
    path = folder / TEST_ROWS / f"{number:03d}.npy"
    if not path.exists():
        return None
    by_row: Float32 = np.load(path, allow_pickle=False)
    return by_row


def _train(
    clf: ExtremeClassifier,
    rows: Rows,
    watcher: RunWatcher,
    restored: tuple[ExtremeClassifier, Mapping[str, Any]] | None,
    n_jobs: int | None,
    log: Log,
) -> None:
    X, y = rows.X["train"], rows.classes[rows.y["train"]]
    if restored is None:
        watcher.curve.cut(0)
        complete(clf, lambda: clf.fit(X, y, callbacks=[watcher]))
    else:
        log(f"{watcher.folder} is resumed from epoch {clf.model_.n_epochs}")
        clf.set_params(n_jobs=n_jobs)
        watcher.restore(restored[1])
        if not watcher.finished:
            complete(clf, lambda: clf.resume_fit(X, y, callbacks=[watcher]))
    watcher.finish()


def complete(clf: ExtremeClassifier, train: Callable[[], object]) -> None:
    """Train, and raise KeyboardInterrupt if Ctrl-C ended it early: half an epoch is no checkpoint.

    `TrainingOver` of a callback is no failure.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingInterruptedWarning)
        try:
            train()
        except TrainingOver:
            return
    if clf.interrupted_:
        raise KeyboardInterrupt("training was interrupted; the same call resumes it")


# -- the folder


def _entries(folder: Path) -> set[str]:
    """Names in the folder, without the lock and without files that a killed process began."""
    return {path.name for path in folder.iterdir() if path.name != LOCK_NAME and not is_stage(path)}


def _refuse_foreign(folder: Path) -> None:
    """Raise if the folder holds something that is not a run."""
    if folder.exists() and not (folder / "config.json").exists() and _entries(folder):
        raise FileExistsError(
            f"{folder} exists and is not a run, so it is left alone. Choose another folder."
        )


def _open_folder(folder: Path, config: dict[str, Any]) -> None:
    """Make a folder that is held that of a run, or check that it is the folder of this one."""
    sweep_stages(folder)
    path = folder / "config.json"
    if path.exists() and _entries(folder) == {"config.json"}:
        path.unlink()  # of a run that failed before it began, by a wrong parameter or without data
    if path.exists():
        difference = _difference(comparable(json.loads(path.read_text())), comparable(config))
        if difference:
            raise ValueError(
                f"{folder} holds a run of another recipe: {difference}. Choose another folder, or delete it."
            )
        return
    write_json(path, config)


def _difference(there: Any, here: Any, name: str = "") -> str:
    """Word the first difference between two configs; an empty string if there is none."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in {**there, **here}:
            if key in ("search", "name"):  # neither changes a run
                continue
            found = _difference(there.get(key), here.get(key), f"{name}.{key}".lstrip("."))
            if found:
                return found
        return ""
    return "" if there == here else f"{name} is {there!r} there and {here!r} here"


def _note_machine(folder: Path) -> None:
    path = folder / "machine.json"
    sessions = json.loads(path.read_text()) if path.exists() else []
    write_json(path, [*sessions, environment()])


def _reopen(folder: Path) -> ExtremeClassifier:
    return cast("ExtremeClassifier", load_model(folder))


def _save_model(path: Path, clf: ExtremeClassifier, rows: Rows) -> None:
    if rows.text_features is None:
        clf.save(path)
        return
    made = rows.text_features
    texts = TextClassifier(clone(clf), features=TextFeatures(**made.to_options()))
    texts.features_, texts.classifier_ = made, clf
    texts.save(path)
