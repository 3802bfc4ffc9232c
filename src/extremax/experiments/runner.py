"""Runs: one recipe makes one folder.

===================  ============================================================================
``config.json``      the recipe with all defaults
``machine.json``     machine, versions and date, of the start and of every time the run was resumed
``curve.jsonl``      the learning curve, one line per point, written as they come
``test_rows``        for each point, hit and log p(y|x) of each test row, for comparisons row by row
``checkpoint``       the model to resume from; deleted when the run is finished
``checkpoint.json``  the state of the run at the epoch of each checkpoint
``model``            the trained model, for `extremax.load_model`
``summary.json``     the results; written when the run is finished
===================  ============================================================================

A killed run is resumed from its last checkpoint when it is called again, and ends with the same model, bit
for bit. While it runs, it locks its folder. Kernels are compiled before the clock starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from extremax.classifier import ExtremeClassifier
from extremax.errors import TrainingInterruptedWarning
from extremax.examples import Examples
from extremax.experiments.curve import (
    CurveFile,
    Evaluator,
    Point,
    Schedule,
    best_point,
    on_plateau,
    save_test_rows,
)
from extremax.experiments.machine import environment
from extremax.experiments.methods import make_classifier, method_of
from extremax.experiments.recipe import EvaluationConfig, Recipe, resolve
from extremax.experiments.rows import Log, Rows, load_rows
from extremax.model import Model
from extremax.runtime.atomic_files import write_json
from extremax.runtime.locks import hold_folder
from extremax.runtime.threads import resolve_threads
from extremax.solvers.loop import Moment, Record, Watcher
from extremax.text import load_model
from extremax.tree.noise import TreeNoise

OnPoint = Callable[[Point], None]
_LONG_COMPILATION = 5.0  # seconds of compilation that are worth a message


class TrainingOver(Exception):
    """Raised by a callback that needs no more of a model: calibration and search index are skipped."""


@dataclass(frozen=True)
class FittedNoise:
    """A tree as noise, and the time it took to fit it and its projection."""

    noise: TreeNoise
    seconds: float
    cpu_seconds: float


def run(  # noqa: PLR0913 (the parameters are the API)
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    rows: Rows | None = None,
    n_jobs: int | None = None,
    checkpoint_seconds: float = 10.0,
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
    noise : FittedNoise, optional
        The recipe's noise, if it is fitted already; its time counts as training time.
    keep_model : bool
        Whether the model is saved; if not, only the curve is made and no search index is fitted.
    log, on_point : callable
        Called with messages, and with each point of the curve.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C; the last checkpoint is kept.
    """
    folder, started = Path(out), time.process_time()
    config = json.loads(json.dumps(resolve(recipe)))
    config["method"] = recipe.method or method_of(config["model"])
    with open_folder(folder, "config.json", config, what="run"):
        if (folder / "summary.json").exists():
            log(f"{folder} is finished already")
            return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]
        rows = rows or load_rows(recipe, n_jobs=n_jobs, log=log)
        X, y = rows.X["train"], rows.classes[rows.y["train"]]
        log(f"{rows.name}: {len(y):,} training rows, {rows.n_classes:,} classes, {X.shape[1]:,} features")
        parameters = dict(config["model"])
        compiled = warm_up(parameters, sparse=sp.issparse(X), n_jobs=n_jobs)
        if compiled > _LONG_COMPILATION:
            log(f"compiled in {compiled:.0f} s; later runs find the kernels ready")
        if noise is not None:
            parameters["noise"] = noise.noise
        clf, state = load_checkpoint(folder) or (make_classifier(parameters, n_jobs=n_jobs), None)
        watcher = RunWatcher(
            clf, folder, rows, recipe.evaluation, n_jobs, noise, checkpoint_seconds, keep_model, on_point
        )
        sessions = folder / "machine.json"
        earlier = json.loads(sessions.read_text()) if sessions.exists() else []
        write_json(sessions, [*earlier, environment()])
        if state is None:
            watcher.curve.cut(0)
            complete(clf, lambda: clf.fit(X, y, callbacks=[watcher]))
        else:
            log(f"{folder} is resumed from epoch {clf.model_.n_epochs}")
            clf.set_params(n_jobs=n_jobs)
            watcher.restore(state)
            if not watcher.finished:
                complete(clf, lambda: clf.resume_fit(X, y, callbacks=[watcher]))
        if keep_model:
            watcher.close(clf.history_[-1])
            clf.save(folder / "model")
        points = watcher.curve.points
        summary = {
            "name": recipe.name,
            "method": config["method"],
            "data": rows.name,
            **rows.sizes(),
            "n_epochs": int(clf.model_.n_epochs),
            "choices": clf.choices_,
            "training_seconds": points[-1]["seconds"],
            "training_cpu_seconds": points[-1]["cpu_seconds"],
            "session_cpu_seconds": time.process_time() - started,  # with evaluation and compilation
            "threads": resolve_threads(n_jobs),
            "last": points[-1],
            "best_accuracy": best_point(points, "accuracy"),
            "best_log_likelihood": best_point(points, "log_likelihood"),
            **{key: value for key, value in environment().items() if key != "versions"},
        }
        write_json(folder / "summary.json", summary)
        shutil.rmtree(folder / "checkpoint", ignore_errors=True)
        (folder / "checkpoint.json").unlink(missing_ok=True)
        return summary


class RunWatcher(Watcher):
    """Adds points to the curve, writes checkpoints, and ends training on the plateau or by time."""

    def __init__(  # noqa: PLR0913 (as in `run`)
        self,
        clf: ExtremeClassifier,
        folder: Path,
        rows: Rows,
        evaluation: EvaluationConfig,
        n_jobs: int | None = None,
        noise: FittedNoise | None = None,
        checkpoint_seconds: float = 10.0,
        keep_model: bool = True,
        on_point: OnPoint = lambda point: None,
    ) -> None:
        limits = {"valid": evaluation.valid_rows, "test": evaluation.test_rows}
        samples = {split: rows.sample(split, n, evaluation.seed) for split, n in limits.items() if n}
        self.clf, self.folder, self.n_rows = clf, folder, len(rows.y["train"])
        self.evaluate, self.evaluation = Evaluator(samples, n_jobs), evaluation
        self.schedule = Schedule.of(evaluation, self.n_rows)
        self.checkpoint_seconds, self.keep_model, self.on_point = checkpoint_seconds, keep_model, on_point
        self.curve = CurveFile(folder / "curve.jsonl")
        self.saved_at, self.due, self.finished = time.perf_counter(), 0.0, False
        self.earlier_seconds = 0.0 if noise is None else noise.seconds
        # Added to the processor's clock, it gives training time.
        self.cpu_offset = (0.0 if noise is None else noise.cpu_seconds) - time.process_time()

    @property
    def cpu_seconds(self) -> float:
        """Processor time of training, all threads together."""
        return self.cpu_offset + time.process_time()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self.curve.cut(state["n_points"])
        self.finished = state["finished"]
        self.cpu_offset = state["cpu_seconds"] - time.process_time()
        self.due = self.schedule.next_after(self.curve.points[-1]["samples"])

    def at_start(self, moment: Moment) -> None:
        if not self.curve.points:
            self._add_point(moment.record, record_samples(moment.record, self.n_rows), moment.model())

    def during_epoch(self, moment: Moment) -> None:
        record = moment.record
        samples = (record["epoch"] - 1) * self.n_rows + record["rows"]
        # The end of an epoch has its own call.
        if samples >= self.due and record["rows"] < self.n_rows:
            self._add_point(record, samples, moment.model())

    def __call__(self, record: Record) -> bool:
        samples = record_samples(record, self.n_rows)
        limit = self.evaluation.max_seconds
        stop = limit is not None and self.cpu_seconds >= limit
        if stop or samples >= self.due:
            self._add_point(record, samples, self.clf.model_)
            stop |= self.evaluation.until_plateau and on_plateau(self.curve.points)
        self.finished = stop
        if not self.keep_model and (stop or record["epoch"] == self.clf.choices_["n_epochs"]):
            self.close(record)
            raise TrainingOver
        if stop or time.perf_counter() - self.saved_at >= self.checkpoint_seconds:
            self._save()
        return stop

    def close(self, record: Record) -> None:
        """Add the last point, if the curve does not end with the model."""
        if self.curve.points[-1]["epoch"] != record["epoch"]:
            self._add_point(record, record_samples(record, self.n_rows), self.clf.model_)

    def _add_point(self, record: Record, samples: int, model: Model) -> None:
        point = {
            "epoch": samples / self.n_rows,
            "samples": samples,
            "seconds": record["seconds"] + self.earlier_seconds,
            "cpu_seconds": self.cpu_seconds,
            "loss": record.get("loss"),
        }
        before = time.process_time()
        point |= self.evaluate(model)
        if "test" in self.evaluate.by_row:
            save_test_rows(self.folder, len(self.curve.points), self.evaluate.by_row["test"])
        self.curve.add(point)  # after the rows, so that every point has its rows
        self.due = self.schedule.next_after(samples)
        self.on_point(point)
        self.cpu_offset -= time.process_time() - before

    def _save(self) -> None:
        before = time.process_time()
        state = {
            "n_points": len(self.curve.points),
            "cpu_seconds": self.cpu_seconds,
            "finished": self.finished,
        }
        save_checkpoint(self.folder, self.clf, state)
        self.saved_at = time.perf_counter()
        self.cpu_offset -= time.process_time() - before


def record_samples(record: Record, n_rows: int) -> int:
    """Return the training rows seen at the end of the epoch of a record."""
    return int(record["epoch"]) * n_rows


def complete(clf: ExtremeClassifier, train: Callable[[], object]) -> None:
    """Train, and raise KeyboardInterrupt if Ctrl-C ended it early: half an epoch is no checkpoint.

    `TrainingOver` from a callback is not a failure.
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


def save_checkpoint(folder: Path, clf: ExtremeClassifier, state: dict[str, Any]) -> None:
    """Save the model, after the state of the run at its epoch: a saved model always has its state."""
    path = folder / "checkpoint.json"
    states = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, {**states, str(clf.model_.n_epochs): state})
    clf.save(folder / "checkpoint")


def load_checkpoint(folder: Path) -> tuple[ExtremeClassifier, dict[str, Any]] | None:
    """Return the model of the checkpoint and the state of its epoch; None without a checkpoint."""
    if not (folder / "checkpoint").exists():
        return None
    clf = cast("ExtremeClassifier", load_model(folder / "checkpoint"))
    return clf, json.loads((folder / "checkpoint.json").read_text())[str(clf.model_.n_epochs)]


@contextlib.contextmanager
def open_folder(folder: Path, name: str, content: dict[str, Any], *, what: str) -> Iterator[None]:
    """Hold the folder of a run or search, which the file `name` describes, while the block runs."""
    path = folder / name
    if folder.exists() and not path.exists() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise FileExistsError(
            f"{folder} exists and is not a {what}, so it is left alone. Choose another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder):
        if [p.name for p in folder.iterdir() if not p.name.startswith(".")] == [name]:
            path.unlink()  # failed before it began, by a wrong parameter or without data
        if not path.exists():
            write_json(path, content)
        difference = _difference(json.loads(path.read_text(encoding="utf-8")), content)
        if difference:
            raise ValueError(
                f"{folder} holds a {what} of another recipe: {difference}. Choose another folder, or delete"
                " it."
            )
        yield


def _difference(there: Any, here: Any, name: str = "") -> str:
    """Word the first difference between two configurations; empty if there is none."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = (key for key in {**there, **here} if name or key not in ("search", "name"))
        found = (_difference(there.get(key), here.get(key), f"{name}.{key}".lstrip(".")) for key in keys)
        return next(filter(None, found), "")
    return "" if there == here else f"{name} is {there!r} there and {here!r} here"


# -- noise


def fit_shared_noise(parameters: Mapping[str, Any], rows: Rows, *, n_jobs: int | None = None) -> FittedNoise:
    """Fit projection and tree of a model with adversarial noise, without training it."""
    warm_up(parameters, sparse=sp.issparse(rows.X["train"]), n_jobs=n_jobs)
    clf = make_classifier({**parameters, "n_epochs": 1}, n_jobs=n_jobs)
    found: list[FittedNoise] = []
    before = time.process_time()

    class Catch(Watcher):
        def at_start(self, moment: Moment) -> None:
            model, cpu_seconds = moment.model(), time.process_time() - before
            if model.noise is None or model.noise.tree is None:
                raise ValueError("noise without a tree is not shared: it takes no time to fit.")
            noise = TreeNoise(model.noise.tree, model.projection)
            found.append(FittedNoise(noise, float(moment.record["seconds"]), cpu_seconds))
            raise TrainingOver

    with contextlib.suppress(TrainingOver):
        clf.fit(rows.X["train"], rows.y["train"], callbacks=[Catch()])
    return found[0]


def warm_up(parameters: Mapping[str, Any], *, sparse: bool, n_jobs: int | None) -> float:
    """Compile the kernels of training and evaluation with these parameters; return the seconds it took."""
    started = time.perf_counter()
    y = np.arange(300) % 40
    X = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    features = sp.csr_matrix(X) if sparse else X
    small = {"n_epochs": 1} | ({"tree_components": 4} if "tree_components" in parameters else {})
    clf = make_classifier({**parameters, **small}, n_jobs=n_jobs)
    clf.fit(features, y)
    clf.model_.evaluate(Examples(features, y.astype(np.int32)), n_threads=resolve_threads(n_jobs))
    return time.perf_counter() - started
