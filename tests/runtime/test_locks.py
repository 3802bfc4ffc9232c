"""Locks of folders: of living processes alone."""

from __future__ import annotations

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
    with (
        hold_folder(tmp_path),
        pytest.raises(BlockingIOError, match="is in use by another process"),
        hold_folder(tmp_path),
    ):
        pass
    with hold_folder(tmp_path):
        pass


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(BlockingIOError, match="Wait until it ends, or choose another"),
            hold_folder(tmp_path),
        ):
            pass
        other.kill()
    with hold_folder(tmp_path):
        pass
