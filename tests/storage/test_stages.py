"""Saves that were killed, saves that go on, and readers that meet one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax.errors import ModelFileError
from extremax.storage import folder, stages
from extremax.storage.folder import load_folder, save_folder

SAVE = """
import os, sys
from pathlib import Path
import numpy as np
from extremax.storage import folder

def stop(*_):
    {stop}

folder.{step} = stop
folder.save_folder(sys.argv[1], kind="demo", header={{}}, arrays={{"w": np.ones(9)}})
"""


def save(path: Path, value: float = 0.0, size: int = 50_000) -> Path:
    save_folder(path, kind="demo", header={"value": value}, arrays={"w": np.full(size, value)})
    return path


def run_save(path: Path, step: str, stop: str) -> subprocess.Popen[str]:
    code = SAVE.format(step=step, stop=stop)
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_next_save_sweeps_the_stage_of_a_killed_one(tmp_path: Path) -> None:
    with run_save(tmp_path / "model", "_put_in_place", "os._exit(9)") as killed:
        assert killed.wait() == 9
    assert len(names(tmp_path)) == 1
    (tmp_path / ".model.txt").write_text("not ours")
    (tmp_path / ".model2.0123456789ab").mkdir()  # of another model
    save(tmp_path / "model")
    assert names(tmp_path) == [".model.txt", ".model2.0123456789ab", "model"]


def test_stage_of_a_living_process_stays(tmp_path: Path) -> None:
    stop = "print('ready', flush=True); sys.stdin.read(); os._exit(0)"
    code = SAVE.format(step="_put_in_place", stop=stop)
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        assert living.stdout.readline() == "ready\n"
        save(tmp_path / "model")
        assert len(names(tmp_path)) == 2
        assert any(name.startswith(".model.") for name in names(tmp_path))
        living.communicate()
    save(tmp_path / "model")
    assert names(tmp_path) == ["model"]


def test_kill_between_two_renames_loses_no_model(tmp_path: Path) -> None:
    """Where two names cannot be exchanged in one step, the old model has another name for a moment."""
    save(tmp_path / "model", 4.0)
    os.rename(tmp_path / "model", tmp_path / ".model.0123456789ab.old")
    (tmp_path / ".model.0123456789ab").mkdir()
    stages.sweep(tmp_path / "model")
    assert names(tmp_path) == ["model"]
    assert load_folder(tmp_path / "model", kind="demo").header == {"value": 4.0}


def test_reader_that_meets_a_save_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is of one model, the arrays are of the next."""
    path = save(tmp_path / "model", 1.0)
    read, calls = folder._read_header, []

    def save_after_reading(where: Path) -> dict[str, Any]:
        content = read(where)
        calls.append(1)
        if len(calls) <= 3:
            save(path, 1.0 + len(calls))
        return content

    monkeypatch.setattr(folder, "_read_header", save_after_reading)
    found = load_folder(path, kind="demo")
    assert len(calls) == 4
    assert found.header == {"value": 4.0}
    assert (found.arrays["w"] == 4.0).all()


@pytest.mark.parametrize("has_exchange", [True, False])
def test_readers_during_saves_find_whole_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    # What is seen of a save does not depend on the disk, on which readers would wait for seconds.
    monkeypatch.setattr(folder, "_flush", lambda descriptor: None)
    if not has_exchange:
        monkeypatch.setattr(folder, "_exchange", lambda first, second: False)
    path = save(tmp_path / "model")
    done = threading.Event()
    faults: list[str] = []
    n_reads = [0, 0]

    def read_on(reader: int) -> None:
        while not done.is_set():
            try:
                found = load_folder(path, kind="demo", verify=True)
            except Exception as error:  # whatever it is: the loop below waits for readers or for faults
                faults.append(repr(error))
                return
            if not (found.arrays["w"] == found.header["value"]).all():
                faults.append("parts of two models")
            n_reads[reader] += 1

    readers = [threading.Thread(target=read_on, args=(number,), daemon=True) for number in range(2)]
    for reader in readers:
        reader.start()
    for value in range(60):
        before, deadline = n_reads.copy(), time.monotonic() + 60
        save(path, float(value))
        while not faults and any(map(int.__eq__, n_reads, before)):  # none is kept from its end for ever
            assert time.monotonic() < deadline, "a reader does not come to its end"
            time.sleep(0.0005)
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []


def test_damage_and_absence_are_reported_at_once(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    (path / "w.safetensors").unlink()
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_folder(path, kind="demo")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_folder(tmp_path / "nowhere", kind="demo")


def test_full_disk_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "_flush", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        save(tmp_path / "model")
    assert caught.value.filename == str(tmp_path / "model")
