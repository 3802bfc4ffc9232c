"""Files that are replaced: their mode, and what killed writes leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from extremax.runtime.atomic_files import replacing, stage_of, write_text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("has_nameless_files", [True, False])
def test_mode_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_nameless_files: bool) -> None:
    if not has_nameless_files:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "report.html"
    path.touch(0o600)
    with replacing(path) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600  # before there is anything to read
        file.write(b"new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are of Linux")
def test_killed_write_leaves_nothing(tmp_path: Path) -> None:
    with replacing(tmp_path / "answers.csv") as file:
        file.write(b"text of a user")
        file.flush()
        assert list(tmp_path.iterdir()) == []
    assert (tmp_path / "answers.csv").read_text() == "text of a user"
    assert [path.name for path in tmp_path.iterdir()] == ["answers.csv"]


def test_next_write_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "answers [1].csv"
    killed, running = stage_of(path), stage_of(path)
    others = [tmp_path / name for name in (".answers [1].csv.old", ".other.csv.0123456789ab")]
    for file in (killed, running, *others):
        file.write_text("text of a user")
    for file in (killed, *others):
        os.utime(file, (1e9, 1e9))
    write_text(path, "new")
    assert not killed.exists()
    assert all(file.exists() for file in (running, *others))
