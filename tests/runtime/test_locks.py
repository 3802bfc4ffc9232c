"""Locks of folders: of living processes alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from extremax.runtime.locks import hold_folder

HOLD = """
import sys
from pathlib import Path
from extremax.runtime.locks import hold_folder
with hold_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.small
def test_held_folder_is_refused_and_free_afterwards(tmp_path: Path) -> None:
    with hold_folder(tmp_path):
        with pytest.raises(BlockingIOError, match=rf"is in use by another process \({os.getpid()} on "):
            hold_folder(tmp_path).__enter__()
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with hold_folder(tmp_path):
        pass


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=f"{other.pid} on .*Wait until it ends, or choose another"):
            hold_folder(tmp_path).__enter__()
        other.kill()
    assert len(list(tmp_path.iterdir())) == 1  # the file is there, the lock is not
    with hold_folder(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
