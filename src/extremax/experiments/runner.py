"""One recipe makes one folder.

=================  ============================================================================================================
``config.json``    the recipe with every default filled in
``machine.json``   machine, versions and date, at the start and at every time the run went on
``curve.jsonl``    the learning curve, a line per point, written as they come
``checkpoint-*``   where the run can go on; gone when it is finished
``model``          the trained model, for `extremax.load_model`
``summary.json``   what came out; there only when the run is finished
=================  ============================================================================================================

A run that was killed at any moment goes on from its last checkpoint when it is called again, and ends with
the same model, bit by bit. Kernels are compiled before the clock starts."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from extremax.estimator import ExtremeClassifier
from extremax.experiments.checkpoint import clear_checkpoints, load_checkpoint, save_checkpoint
from extremax.experiments.curve import CurveFile, Evaluator, Point, Schedule, best_point
from extremax.experiments.machine import environment
from extremax.experiments.methods import method_of
from extremax.experiments.recipe import Recipe, resolve
from extremax.experiments.recipes import KNOWN
from extremax.experiments.rows import Rows, Say, load_rows
from extremax.features.text import TextFeatures
from extremax.loading import load_model
from extremax.runtime.atomic_files import write_json
from extremax.text_classifier import TextClassifier
from extremax.training.loop import Record, Watcher

OnPoint = Callable[[Point], None]
_WORTH_SAYING = 5.0  # seconds of compilation


def run(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    rows: Rows | None = None,
    n_jobs: int | None = None,
    checkpoint_seconds: float = 10.0,
    clock: str = "seconds",
    say: Say = lambda text: None,
    on_point: OnPoint = lambda point: None,
) -> dict[str, Any]:
    """Run a recipe into the folder `out`, or go on with it, and return its summary.

    Parameters
    ----------
    recipe : Recipe
        From `load_recipe`.
    out : path
        New, or the folder of the same recipe: a finished run is not repeated, an unfinished one goes on.
    rows : Rows, optional
        Rows of the recipe's data, if they are loaded already.
    n_jobs : int, optional
        Threads; the model does not depend on it.
    checkpoint_seconds : float
        Least time between two checkpoints, which are written after whole epochs.
    clock : {"seconds", "cpu_seconds"}
        Which time spaces the points of the curve and is up at `max_seconds`: on the wall, or of the
        processors, which runs evenly on a machine that others use as well.
    say, on_point : callable
        Told what goes on, and each point of the curve.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C; the last checkpoint is kept.
    """
    folder = Path(out)
    settings = json.loads(json.dumps(resolve(recipe, KNOWN)))
    settings["method"] = recipe.method or method_of(settings["model"])
    _open_folder(folder, settings)
    if (folder / "summary.json").exists():
        say(f"{folder} is finished already")
        return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]
    started = time.perf_counter()
    rows = rows or load_rows(recipe, n_jobs=n_jobs, say=say)
    load_seconds = time.perf_counter() - started
    n_rows, n_features = rows.X["train"].shape
    say(f"{rows.name}: {n_rows:,} training rows, {rows.n_classes:,} classes, {n_features:,} features")
    parameters = {**settings["model"], "patience": None}
    compile_seconds = warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
    if compile_seconds > _WORTH_SAYING:
        say(f"compiled what training needs in {compile_seconds:.0f} s; the next run finds it ready")
    limits = {"valid": recipe.evaluation.valid_rows, "test": recipe.evaluation.test_rows}
    samples = {split: rows.sample(split, limit, recipe.evaluation.seed) for split, limit in limits.items()}
    curve = CurveFile(folder / "curve.jsonl")
    restored = load_checkpoint(folder)
    clf = ExtremeClassifier(**parameters, n_jobs=n_jobs) if restored is None else restored[0]
    y = rows.classes[rows.y["train"]]
    evaluate = Evaluator(samples, n_jobs)
    watcher = RunWatcher(
        clf, recipe, settings, folder, curve, evaluate, checkpoint_seconds, on_point, len(y), clock
    )
    _note_machine(folder)
    if restored is None:
        curve.cut(0)
        uninterrupted(lambda: clf.fit(rows.X["train"], y, callbacks=[watcher]))
    else:
        say(f"{folder} goes on from epoch {clf.model_.linear.n_epochs}")
        clf.set_params(n_jobs=n_jobs)
        watcher.restore(restored[1])
        if not watcher.finished:
            uninterrupted(lambda: clf.resume_fit(rows.X["train"], y, callbacks=[watcher]))
    watcher.finish()
    if watcher.best is not None:
        clf = _reopen(folder / watcher.best["folder"])
    clf.set_params(patience=settings["model"].get("patience"))
    _save_model(folder / "model", clf, rows)
    points = curve.points
    summary = {
        "name": recipe.name,
        "method": settings["method"],
        "data": rows.name,
        **rows.sizes(),
        "n_epochs": int(clf.model_.linear.n_epochs),
        "choices": clf.choices_,
        "training_seconds": points[-1]["seconds"],
        "training_cpu_seconds": points[-1]["cpu_seconds"],
        "evaluation_seconds": watcher.evaluation_seconds,
        "compilation_seconds": compile_seconds,
        "loading_seconds": load_seconds,
        "evaluated_rows": {split: len(sample[1]) for split, sample in samples.items()},
        "last": points[-1],
        "best_accuracy": best_point(points, "accuracy"),
        "best_log_likelihood": best_point(points, "log_likelihood"),
        **{key: value for key, value in environment().items() if key != "versions"},
    }
    write_json(folder / "summary.json", summary)
    clear_checkpoints(folder)
    return summary


class RunWatcher(Watcher):
    """Adds points to the curve, writes checkpoints, and ends training by patience or time."""

    def __init__(
        self,
        clf: ExtremeClassifier,
        recipe: Recipe,
        settings: dict[str, Any],
        folder: Path,
        curve: CurveFile,
        evaluate: Evaluator,
        checkpoint_seconds: float,
        on_point: OnPoint,
        n_rows: int,
        clock: str,
    ) -> None:
        self.n_rows, self.clock = n_rows, clock
        self.clf, self.folder, self.curve, self.evaluate, self.on_point = (
            clf,
            folder,
            curve,
            evaluate,
            on_point,
        )
        self.schedule, self.max_seconds = Schedule.of(recipe.evaluation), recipe.evaluation.max_seconds
        self.patience = settings["model"].get("patience")
        self.checkpoint_seconds, self.saved_at = checkpoint_seconds, time.perf_counter()
        self.evaluated_before = 0.0
        self.processor_at = -time.process_time()  # the processor's clock at which training would have begun
        # epoch, log_likelihood and folder; only where there is patience
        self.best: dict[str, Any] | None = None
        self.finished = False
        self.due = 0.0

    @property
    def evaluation_seconds(self) -> float:
        return self.evaluated_before + self.evaluate.seconds

    @property
    def cpu_seconds(self) -> float:
        """Processor time of training, all threads together: on a busy machine a better clock than that on
        the wall.
        """
        return self.processor_at + time.process_time()

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what a checkpoint says."""
        self.curve.cut(state["n_points"])
        self.evaluated_before, self.best, self.finished = (
            state["evaluation_seconds"],
            state["best"],
            state["finished"],
        )
        self.processor_at = state["cpu_seconds"] - time.process_time()
        self.due = self.schedule.next_after(self.curve.points[-1][self.clock])

    def now(self, record: Record) -> float:
        """Training time so far, on the clock that counts."""
        return self.cpu_seconds if self.clock == "cpu_seconds" else float(record["seconds"])

    def at_start(self, record: Record) -> None:
        if not self.curve.points:
            self._add_point(record, float(record["epoch"]))

    def wants(self, record: Record) -> bool:
        # the end of an epoch has its own call
        return bool(self.now(record) >= self.due and record["rows"] < self.n_rows)

    def during_epoch(self, record: Record) -> None:
        if self.wants(record):
            self._add_point(record, record["epoch"] - 1 + record["rows"] / self.n_rows)

    def __call__(self, record: Record) -> bool:
        stop = self.max_seconds is not None and self.now(record) >= self.max_seconds
        if self.patience is not None or stop or self.now(record) >= self.due:
            point = self._add_point(record, float(record["epoch"]))
            stop |= self.patience is not None and self._weigh(point, record["epoch"])
        self.finished = stop
        if stop or time.perf_counter() - self.saved_at >= self.checkpoint_seconds:
            self._save()
        return stop

    def finish(self) -> None:
        """The last point, if the curve does not end with the model."""
        record = self.clf.history_[-1]
        if self.curve.points[-1]["epoch"] != record["epoch"]:
            self._add_point(record, float(record["epoch"]))

    def _add_point(self, record: Record, epoch: float) -> Point:
        point = {
            "epoch": epoch,
            "seconds": record["seconds"],
            "cpu_seconds": self.cpu_seconds,
            "loss": record.get("loss"),
        }
        looked = time.process_time()
        point |= self.evaluate(self.clf.model_)
        self.curve.add(point)
        self.due = self.schedule.next_after(point[self.clock])
        self.on_point(point)
        self.processor_at -= time.process_time() - looked
        return point

    def _weigh(self, point: Point, epoch: int) -> bool:
        """Keep the model if it is the best so far; whether patience is at its end."""
        value = point["valid_log_likelihood"]
        if self.best is None or value > self.best["log_likelihood"]:
            name = f"best-{epoch:06d}"
            self.clf.save(self.folder / name)
            self.best = {"epoch": epoch, "log_likelihood": value, "folder": name}
        return bool(epoch - self.best["epoch"] >= self.patience)

    def _save(self) -> None:
        state = {
            "n_points": len(self.curve.points),
            "evaluation_seconds": self.evaluation_seconds,
            "cpu_seconds": self.cpu_seconds,
            "best": self.best,
            "finished": self.finished,
        }
        looked = time.process_time()
        save_checkpoint(self.folder, self.clf, state)
        for path in self.folder.glob("best-*"):  # no checkpoint speaks of the older ones any more
            if self.best is None or path.name != self.best["folder"]:
                shutil.rmtree(path, ignore_errors=True)
        self.saved_at = time.perf_counter()
        self.processor_at -= time.process_time() - looked


def uninterrupted(train: Callable[[], object]) -> None:
    """Train; Ctrl-C, of which an estimator only warns, is an exception here: half an epoch is no
    checkpoint.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Training was interrupted")
            train()
    except UserWarning:
        raise KeyboardInterrupt("it can go on") from None


def warm_up(parameters: dict[str, Any], *, sparse: bool, n_jobs: int | None) -> float:
    """Compile what training and evaluation with these parameters will call; the seconds it took."""
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    y = np.arange(300) % 40
    X = rng.standard_normal((300, 8)).astype(np.float32)
    features = sp.csr_matrix(X) if sparse else X
    clf = ExtremeClassifier(**{**parameters, "n_epochs": 1, "n_components": 4}, n_jobs=n_jobs).fit(
        features, y
    )
    clf.model_.evaluate(features, y.astype(np.int32), n_jobs=n_jobs)
    return time.perf_counter() - started


# -- the folder
# ----------------------------------------------------------------------------------------------------------------


def _open_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Make the folder of a run, or make sure that it is of this one."""
    path = folder / "config.json"
    if path.exists() and {entry.name for entry in folder.iterdir()} == {"config.json"}:
        path.unlink()  # a run that failed before it began, by a wrong setting or for want of data
    if path.exists():
        difference = _difference(json.loads(path.read_text()), settings)
        if difference:
            raise ValueError(
                f"{folder} holds a run of another recipe: {difference}. Choose another folder, or delete it."
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} exists and is not a run, so it is left alone. Choose another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, settings)


def _difference(there: Any, here: Any, name: str = "") -> str:
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
    clf = load_model(folder)
    assert isinstance(clf, ExtremeClassifier)
    return clf


def _save_model(path: Path, clf: ExtremeClassifier, rows: Rows) -> None:
    if rows.text_features is None:
        clf.save(path)
        return
    made = rows.text_features
    texts = TextClassifier(clone(clf), features=TextFeatures(**made.to_options()))
    texts.features_, texts.classifier_ = made, clf
    texts.save(path)
