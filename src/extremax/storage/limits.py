"""Foreign files and JSON within limits: regular files, sizes, depth, digits.

What is written here stays far below each limit; a file beyond one was made to be so.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np

MAX_HEADER_BYTES = 64 << 20  # a header has 32 kB per GB of arrays, and the names of features
MAX_DEPTH = 64  # lists and mappings inside one another
MAX_DIGITS = 4300  # of a number, as Python itself allows in text
MAX_ARRAYS = 4096
MAX_NAME = 200  # characters of the name of an array

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; raise OSError unless it is a regular file, or a link to one.

    A pipe or a device is not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_limited(path: Path, limit: int = MAX_HEADER_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; raise ValueError for a larger one."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return data


def parse_json(text: bytes) -> Any:
    """Return JSON within the limits; raise ValueError beyond them, and for NaN and infinity.

    Examples
    --------
    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json(b"[" * 65 + b"]" * 65)
    Traceback (most recent call last):
    ...
    ValueError: it has more than 64 lists or mappings inside one another
    """
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"it has more than {MAX_DEPTH} lists or mappings inside one another")
    try:
        return json.loads(
            text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise ValueError("it has too many lists or mappings inside one another") from None


def _depth(text: bytes) -> int:
    """Return how many brackets are open at most, outside of strings, or a bound where they are few."""
    if (few := text.count(b"[") + text.count(b"{")) <= MAX_DEPTH:
        return few
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    marks = marks[np.isin(marks, np.frombuffer(b"[]{}", np.uint8))]
    opens = (marks == ord("[")) | (marks == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1), dtype=np.int64).max(initial=0))


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it has a number of more than {MAX_DIGITS:,} digits")
    return int(text)


def _parse_float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"it has the number {text[:30]}, which no float can hold")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has {name} where a number is needed")
