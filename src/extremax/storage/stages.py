"""Stage folders, in which a model is written before it gets its name, and readers that meet a save.

A stage folder is locked as long as its process lives, so that the next save can tell the remains of a killed
one, and remove them, from the work of another process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from extremax.errors import ModelFileError
from extremax.runtime.atomic_files import stage_of
from extremax.runtime.locks import is_at, try_lock

T = TypeVar("T")
OLD = ".old"  # added to the name of a stage: the model that it replaces, for a moment
_LOAD_ATTEMPTS = 50
_WAIT_SECONDS = 0.02  # between two attempts, while a folder has no name


@contextlib.contextmanager
def new_stage(target: Path) -> Iterator[Path]:
    """Make a locked folder beside `target`, and remove what has its name in the end."""
    sweep(target)
    stage, descriptor = _locked_stage(target)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def _locked_stage(target: Path) -> tuple[Path, int | None]:
    while True:
        stage = stage_of(target)
        stage.mkdir()
        descriptor = _open_folder(stage)
        if descriptor is None and stage.exists():
            return stage, None  # a system that cannot open folders
        if descriptor is not None:
            if try_lock(descriptor) is not False and is_at(descriptor, stage):
                return stage, descriptor
            os.close(descriptor)
        # another save has taken it for the remains of a killed one, before it was locked


def sweep(target: Path) -> None:
    """Remove stage folders of saves to `target` that were killed; those of living processes stay."""
    pattern = re.compile(re.escape(f".{target.name}.") + "[0-9a-f]{12}")
    with contextlib.suppress(OSError):
        names = [path.name for path in target.parent.iterdir()]
        for name in names:
            stage = target.with_name(name.removesuffix(OLD))
            if pattern.fullmatch(stage.name):
                _sweep_one(stage, target)


def _sweep_one(stage: Path, target: Path) -> None:
    aside = stage.with_name(stage.name + OLD)
    descriptor = _open_folder(stage)
    try:
        if descriptor is None and stage.exists():
            return  # without locks on folders it may be at work
        if descriptor is not None and try_lock(descriptor) is not True:
            return
        if aside.exists() and not target.exists():  # killed while it exchanged the two by hand
            os.rename(aside, target)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(stage, ignore_errors=True)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_folder(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def read_steadily(folder: Path, read: Callable[[], T]) -> T:
    """Return ``read()``, which opens files of a folder, from one state of the folder.

    Where a save replaced the folder meanwhile, it is read again: its parts would be of two models.
    """
    for attempt in range(_LOAD_ATTEMPTS):
        before = _identity(folder)
        try:
            found = read()
        except (ModelFileError, OSError):
            if attempt + 1 == _LOAD_ATTEMPTS or (
                _identity(folder) == before and not (before is None and _is_moving(folder))
            ):
                raise
            if before is None:
                time.sleep(_WAIT_SECONDS)
            continue
        if _identity(folder) == before:
            return found
    raise ModelFileError(f"{folder} is saved again and again while it is read. Try again later.")


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_moving(folder: Path) -> bool:
    """Tell whether a save is giving a folder that was not there its name, or has just done so."""
    target = Path(os.path.realpath(folder))
    return any(target.parent.glob(f".{target.name}.*{OLD}")) or target.exists()
