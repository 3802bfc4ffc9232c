"""Checkpoints of a run: a folder with the model, its optimizer state and the state of the run.

``checkpoint-000012`` holds the model after twelve epochs. It is written under another name and then renamed,
and older ones are deleted only afterwards, so that there is a complete one at any time.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

from extremax.classifier import ExtremeClassifier
from extremax.loading import load_model
from extremax.runtime.atomic_files import stage_of, write_json

_PREFIX = "checkpoint-"
_STATE = "state.json"


def save_checkpoint(folder: Path, clf: ExtremeClassifier, state: dict[str, Any]) -> Path:
    """Write the model and `state` as the newest checkpoint of a run."""
    target = folder / f"{_PREFIX}{clf.model_.n_epochs:06d}"
    if (target / _STATE).exists():  # the same model: a run that is repeated comes to the same epochs
        return target
    for remains in folder.glob(f".{_PREFIX}*"):  # of a process that was killed: a run locks its folder
        shutil.rmtree(remains, ignore_errors=True)
    stage = stage_of(target)
    stage.mkdir()
    try:
        clf.save(stage / "model")
        write_json(stage / _STATE, state)
        os.rename(stage, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    for older in folder.glob(f"{_PREFIX}*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)
    return target


def load_checkpoint(folder: Path) -> tuple[ExtremeClassifier, dict[str, Any]] | None:
    """Return the newest checkpoint of a run; None where there is none."""
    found = _complete(folder)
    if not found:
        return None
    state = json.loads((found[-1] / _STATE).read_text(encoding="utf-8"))
    return cast("ExtremeClassifier", load_model(found[-1] / "model")), state


def clear_checkpoints(folder: Path) -> None:
    """Delete all checkpoints, with remains of one that a killed process left."""
    for path in (*folder.glob(f"{_PREFIX}*"), *folder.glob(f".{_PREFIX}*"), *folder.glob("best-*")):
        shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / _STATE).exists())
