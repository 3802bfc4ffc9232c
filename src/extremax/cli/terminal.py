"""Output of commands: results on standard output, messages and progress on standard error, files."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from extremax.runtime.atomic_files import naming, replacing
from extremax.runtime.progress import ProgressLine

_quiet = False
STDOUT = "standard output"
# all control characters but the end of a line; they move the cursor, change colours and forge output
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def set_quiet(quiet: bool) -> None:
    """Silence `log` and progress for the rest of this command."""
    global _quiet
    _quiet = quiet


def write(text: str) -> None:
    """Write a line of the result to standard output."""
    with naming(STDOUT):
        sys.stdout.write((printable(text) if sys.stdout.isatty() else text) + "\n")


def printable(text: str) -> str:
    """Return the text with control characters as ``\\u001b``, for a terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def fraction(value: float) -> str:
    """Return a probability, or another fraction of one, as all tables and messages show it.

    Examples
    --------
    >>> fraction(0.12345), fraction(1e-6), fraction(0.0)
    ('0.1235', '<0.0001', '0.0000')
    """
    return "<0.0001" if 0.0 < value < 0.00005 else f"{value:.4f}"


def flush() -> None:
    """Send what was written to standard output."""
    with naming(STDOUT):
        sys.stdout.flush()


def _say(text: str) -> None:
    sys.stderr.write((printable(text) if sys.stderr.isatty() else text) + "\n")
    sys.stderr.flush()


def fail(text: str) -> None:
    """Write an error message to standard error."""
    _say(f"extremax: {text}")


def log(text: str) -> None:
    """Write a message to standard error, unless ``--quiet``."""
    if not _quiet:
        _say(text)


def warn(text: str) -> None:
    """Write a warning to standard error."""
    _say(f"warning: {text}")


def show_json(value: Any) -> None:
    """Write the result as one JSON document; NaN and infinity, which JSON lacks, become null."""
    write(msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode())


def _plain(value: Any) -> Any:
    # numpy arrays and scalars, without importing numpy
    return value.tolist() if hasattr(value, "tolist") else str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Write a table to standard output; in a pipe with tabs, without frame and title.

    Cells are values, formatted by `show`; columns of numbers are aligned to the right.
    """
    rows = list(rows)
    shown = [[show(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (columns, *shown):
            write("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=None if title is None else Text(printable(title), style="table.title"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for i, name in enumerate(columns):
        is_number = any(isinstance(row[i], int | float) for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in shown:
        # Text: a label may hold [brackets]
        table.add_row(*(Text(printable(cell.replace("\n", "\\n"))) for cell in row))
    Console(file=sys.stdout).print(table)


def show(value: Any) -> str:
    """Return a value as tables show it.

    Examples
    --------
    >>> [show(value) for value in (12345, 0.12345, 1234.5, None, {"a_b": 1}, True)]
    ['12,345', '0.1235', '1,234', '', 'a b 1', 'True']
    """
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{str(name).replace('_', ' ')} {show(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(show(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return fraction(value)


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[float, float | None], None]]:
    """Yield a function that shows progress towards a total, unless ``--quiet``.

    Nothing is shown while the total is None.
    """
    line, started = ProgressLine(0 if _quiet else 1, sys.stderr), time.perf_counter()

    def show_done(done: float, total: float | None) -> None:
        if total:
            line.update(label, done, total, started)

    try:
        yield show_done
    finally:
        line.close()


@contextlib.contextmanager
def atomic_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a binary file that gets the name `path` when the block ends without error.

    None is standard output. A device or pipe is written to directly, and never replaced by a file.
    """
    if path is None:
        with naming(STDOUT):
            yield _EscapedOutput() if sys.stdout.isatty() else sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file() and not path.is_dir():
        with naming(path), path.open("wb") as file:
            yield file
        return
    path = path.resolve() if path.is_symlink() else path
    check_file(path)
    with replacing(path) as file:
        yield file


def check_file(path: Path) -> None:
    """Raise if a file cannot be written at `path`; for a call before long work."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: the folder {path.parent} may not be written to.")


class _EscapedOutput(io.BytesIO):
    """Standard output where it is a terminal: control characters are escaped."""

    def write(self, data: Any) -> int:
        sys.stdout.write(printable(bytes(data).decode(errors="replace")))
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()
