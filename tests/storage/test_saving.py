"""Saves that were killed, saves that meet, and readers that meet one."""

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
from extremax.runtime import atomic_files
from extremax.storage import folder
from extremax.storage.folder import load_folder, save_folder

SAVE = """
import os, sys
import numpy as np
from extremax.storage import folder

def stop(*_):
    {stop}

folder.write_text = stop  # arrays are written, the header is not
folder.save_folder(sys.argv[1], kind="demo", header={{}}, arrays={{"w": np.ones(9), "more": np.ones(3)}})
"""


def save(path: Path, value: float = 0.0, size: int = 50_000) -> Path:
    save_folder(path, kind="demo", header={"value": value}, arrays={"w": np.full(size, value)})
    return path


def run_save(path: Path, stop: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SAVE.format(stop=stop), str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name != ".saving.lock")


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    path = save(tmp_path / "model", 1.0)
    others = ["notes.safetensors", "w-7.safetensors", ".tmp-notes", "shard-0", "a.txt"]
    for name in others:
        (path / name).write_text("mine")
    for value in (2.0, 3.0):
        save(path, value)
    assert {*others, "header.json", "w-2.safetensors"} == set(names(path))
    assert all((path / name).read_text() == "mine" for name in others)


def test_list_of_old_files_cannot_name_others(tmp_path: Path) -> None:
    path = save(tmp_path / "model", 1.0)
    outside = tmp_path / "other.safetensors"
    outside.write_text("mine")
    (path / "a.txt").write_text("mine")
    (path / ".saving.json").write_text('["../other.safetensors", "a.txt", "header.json", ".."]')
    save(path, 2.0)
    assert outside.exists()
    assert (path / "a.txt").exists()
    assert load_folder(path, kind="demo").header == {"value": 2.0}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_save_keeps_modes(tmp_path: Path) -> None:
    path = save(tmp_path / "model", 1.0)
    path.chmod(0o700)
    (path / "header.json").chmod(0o600)
    save(path, 2.0)
    assert path.stat().st_mode & 0o777 == 0o700
    for name in ("header.json", "w-1.safetensors"):
        assert (path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("n_before", [0, 1])
def test_next_save_removes_what_a_killed_one_left(tmp_path: Path, n_before: int) -> None:
    path = tmp_path / "model"
    for _ in range(n_before):
        save(path, 1.0)
    with run_save(path, "os._exit(9)") as killed:
        assert killed.wait() == 9
    assert any(name.startswith("more") for name in names(path))
    if n_before:
        assert load_folder(path, kind="demo").header == {"value": 1.0}
    save(path, 2.0)
    suffix = "-1" * n_before
    assert names(path) == ["header.json", f"w{suffix}.safetensors"]
    assert load_folder(path, kind="demo", verify=True).header == {"value": 2.0}


def test_save_waits_for_another_process(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with run_save(path, "print('ready', flush=True); sys.stdin.read(); os._exit(0)") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        waiting = threading.Thread(target=save, args=(path, 3.0), daemon=True)
        waiting.start()
        assert not (path / "header.json").exists()
        other.communicate()
        waiting.join(60)
    assert names(path) == ["header.json", "w.safetensors"]
    assert load_folder(path, kind="demo").header == {"value": 3.0}


def test_foreign_files_in_a_model_folder_stay(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    (path / "notes.txt").write_text("mine")
    save(path, 1.0)
    assert names(path) == ["header.json", "notes.txt", "w-1.safetensors"]


def test_reader_that_meets_a_save_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is of one model, the arrays are of the next."""
    path = save(tmp_path / "model", 1.0)
    read, calls = folder._read_header, []

    def save_after_reading(where: Path) -> Any:
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


def test_readers_during_saves_find_whole_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is seen of a save does not depend on the disk, on which readers would wait for seconds.
    monkeypatch.setattr(atomic_files, "flush", lambda descriptor: None)
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
    with pytest.raises(ModelFileError, match="is missing"):
        load_folder(path, kind="demo")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_folder(tmp_path / "nowhere", kind="demo")


def test_full_disk_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "flush", fail)
    with pytest.raises(OSError, match="No space left on device") as caught:
        save(tmp_path / "model")
    assert caught.value.filename == str(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_error_of_safetensors_is_that_of_the_system(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save(tmp_path / "model", size=1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.strerror == "File too large"
    assert not (tmp_path / "model").exists()
