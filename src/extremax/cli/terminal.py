"""Output of commands: results on standard output, messages and progress on standard error, files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from extremax.runtime.progress import ProgressLine

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence `log` and progress for the rest of this command."""
    global _quiet
    _quiet = quiet


def write(text: str) -> None:
    """Write a line of the result to standard output."""
    sys.stdout.write(text + "\n")


def log(text: str) -> None:
    """Write a message to standard error, unless ``--quiet``."""
    if not _quiet:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Write a warning to standard error."""
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


def show_json(value: Any) -> None:
    """Write the result as one JSON document; NaN and infinity, which JSON lacks, become null."""
    write(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars, without importing numpy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    right: Sequence[str] = (),
) -> None:
    """Write a table to standard output; in a pipe with tabs, without frame and title.

    Columns named in `right` are aligned to the right.
    """
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            write("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a label may hold [brackets]
    Console(file=sys.stdout).print(table)


def progress_line() -> ProgressLine:
    """Return a progress line that obeys ``--quiet`` and is drawn in a terminal only."""
    return ProgressLine(0 if _quiet else 1, sys.stderr)


class Bar:
    """Progress of work that counts up: ``bar(done, total)``, total None where it is unknown.

    Close it, or use it in a ``with`` statement.
    """

    def __init__(self, label: str) -> None:
        self._label, self._line, self._started = label, progress_line(), time.perf_counter()

    def __call__(self, done: float, total: float | None) -> None:
        if total:
            self._line.update(self._label, done, total, self._started)

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def atomic_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a binary file that gets the name `path` when the block ends without error.

    None is standard output.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}.")
    stage = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with stage.open("xb") as file:
            yield file
        os.replace(stage, path)
    finally:
        stage.unlink(missing_ok=True)
