"""Bytes of files and pipes, decompressed by their first bytes."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from extremax.data.dataset import DataFileError
from extremax.data.options import Progress
from extremax.runtime.memory import available_memory, format_bytes

Source = str | os.PathLike[str] | IO[bytes]
Read = Callable[[int], bytes]

_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
# formats of binary files, which are never recoded
BINARY = {b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow"}
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
HEAD_BYTES = 1 << 16  # from which compression and format are detected
MAX_LINE_BYTES = 256 << 20  # a longer line means a damaged file, or another format
_BUFFER_BYTES = 1 << 20
_LOOK_BYTES = 64 << 20  # read between two looks at the available memory
_SPARE_BYTES = 128 << 20  # of memory that reading leaves free
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF8 = ("utf-8", "utf-8-sig")
# what the bytes from 0x80 on mean in the texts of Western Europe, beside letters
_CP1252_SIGNS = frozenset("€‚„…‰‹‘’“”•–—›§©«¬®°±²³´µ·¹º»¼½¾×÷£¥¿¡ª¨\xa0")


class ByteStream:
    """Decompressed bytes of a file or pipe; text is UTF-8, whatever encoding the file has.

    Attributes
    ----------
    name : str
        Name for error messages.
    is_file : bool
        False for a pipe, which may be slow.
    compression : str
        "gz", "bz2", "xz", "zst", or "" for none.
    head : bytes
        The first bytes, without a byte order mark.
    is_utf16 : bool
        Whether the file begins with a mark of UTF-16, as Excel's "Unicode Text" does.
    file : BufferedReader
        All bytes, the head included.
    """

    def __init__(
        self,
        source: IO[bytes],
        name: str,
        total: int | None = None,
        progress: Progress | None = None,
        encoding: str | None = None,
    ) -> None:
        self.name, self.is_file = name, total is not None
        # read1 returns what a pipe has by now
        read: Read = getattr(source, "read1", source.read)
        if progress is not None:
            read = _counted(read, lambda done: progress(done, total))
        head = _first_bytes(read)
        self.compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        if self.compression:
            packed = io.BufferedReader(_Joined(head, read), _BUFFER_BYTES)
            read = _decompressor(packed, self.compression, self.name).read
            head = _first_bytes(read)
        self.is_utf16 = head.startswith(_UTF16_MARKS)
        encoding = encoding or ("utf-16" if self.is_utf16 else "utf-8")
        if codecs.lookup(encoding).name not in _UTF8 and not head.startswith(tuple(BINARY)):
            read = _as_utf8(_Joined(head, read).read, encoding, self.name)
            head = _first_bytes(read)
        self.head = head.removeprefix(codecs.BOM_UTF8)
        self.file = io.BufferedReader(_Joined(self.head, _counted(read, self._memory_check())), _BUFFER_BYTES)

    def lines(self) -> Iterator[str]:
        """Yield lines of UTF-8 text with their ends; `bad_utf8` finds bytes that are not UTF-8."""
        text = io.TextIOWrapper(self.file, encoding="utf-8", errors="surrogateescape", newline="")
        number = 1
        while line := text.readline(MAX_LINE_BYTES):
            if len(line) >= MAX_LINE_BYTES:
                raise self._too_long(number)
            yield line
            number += 1

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield whole lines, about `size` bytes at a time, or as many as a pipe has."""
        n_lines = 0
        while data := self.file.read1(size):
            if not data.endswith(b"\n"):
                rest = self.file.readline(MAX_LINE_BYTES)
                if len(rest) >= MAX_LINE_BYTES:
                    raise self._too_long(n_lines + data.count(b"\n") + 1)
                data += rest
            n_lines += data.count(b"\n")
            yield data

    def _too_long(self, line: int) -> DataFileError:
        message = (
            f"the line has more than {MAX_LINE_BYTES:,} bytes; the file is damaged or of another format."
        )
        return DataFileError(self.name, message, line=line)

    def _memory_check(self) -> Callable[[int], None]:
        limit = _LOOK_BYTES

        def check(done: int) -> None:
            nonlocal limit
            if done < limit:
                return
            limit = done + _LOOK_BYTES
            if available_memory() < _SPARE_BYTES:
                message = (
                    f"{format_bytes(done)} are read, the file goes on, and memory is running out; read it"
                )
                message += " in parts with extremax.data.iter_dataset, or give a smaller file."
                raise DataFileError(self.name, message)

        return check


@contextmanager
def open_stream(
    source: Source, progress: Progress | None = None, encoding: str | None = None
) -> Iterator[ByteStream]:
    """Open a file, or take an open binary file, which stays open; damaged compression is a DataFileError.

    `progress` is called with the bytes read so far, as they are in the file, and its size, None for a pipe.
    """
    try:
        "".encode(encoding or "utf-8")
    except LookupError:
        raise ValueError(
            f"encoding is {encoding!r}, which Python does not know; give a name such as 'cp1252' or 'utf-16'."
        ) from None
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file.")
        if path.is_dir():
            raise IsADirectoryError(
                f"{path} is a folder without X.npy; give a file, or a folder that holds X.npy."
            )
        name, total = os.fspath(source), path.stat().st_size
        opened: Any = path.open("rb", buffering=0)
    else:
        name, total, opened = str(getattr(source, "name", "<stream>")), None, nullcontext(source)
    try:
        with opened as file:
            yield ByteStream(file, name, total, progress, encoding)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, OSError) and (error.errno or type(error) not in (OSError, gzip.BadGzipFile)):
            raise  # of the system, not of a decompressor
        message = f"the compressed file is damaged or ends early ({error}); fetch it again."
        raise DataFileError(name, message) from error


@contextmanager
def on_disk(source: Source, stream: ByteStream) -> Iterator[Path]:
    """Yield a file with the bytes of a stream: `source`, or a temporary file for packed bytes and pipes.

    Arrays mapped from a temporary file stay valid on systems that keep a file while it is in use.
    """
    if isinstance(source, str | os.PathLike) and not stream.compression:
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="extremax-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "unpacked"
        with path.open("wb") as file:
            shutil.copyfileobj(stream.file, file, _BUFFER_BYTES)
        yield path


def bad_utf8(text: str) -> int:
    """Return the position of the first byte that is not UTF-8 in text from `ByteStream.lines`, or -1."""
    if text.isascii():
        return -1
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1


def encoding_advice(text: str) -> str:
    """Return what to do about text from `ByteStream.lines` that is not UTF-8."""
    try:
        found = text.encode(errors="surrogateescape").decode("cp1252", errors="replace")
    except UnicodeEncodeError:  # half a character, spelled out in JSON
        return ""
    word = re.search(r"\S*[^\x00-\x7f]\S*", found)
    signs = [new for old, new in zip(text, found, strict=False) if not old.isascii()]
    # each of its bytes has a meaning, and none is part of a character in UTF-8
    fits = len(text) == len(found) and all(sign.isalpha() or sign in _CP1252_SIGNS for sign in signs)
    if word is None or not fits:
        return "name the encoding of the file, as in encoding='cp1252'"
    return f"this looks like cp1252 ({word.group()[:30]!r}): pass encoding='cp1252'"


class _Joined(io.RawIOBase):
    """Some bytes, then what a function reads."""

    def __init__(self, head: bytes, read: Read) -> None:
        self._head, self._read = head, read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)] or self._read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def _as_utf8(read: Read, encoding: str, name: str) -> Read:
    """Return a function that reads text of another encoding as UTF-8."""
    decoder, n_lines = codecs.getincrementaldecoder(encoding)(), 0

    def recoded(n: int) -> bytes:
        nonlocal n_lines
        text, data = "", b"more"
        while data and not text:
            data = read(max(n // 4, 1))  # a byte becomes three at most
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                line = n_lines + 1 + error.object[: error.start].count(b"\n")
                bad = error.object[error.start : error.start + 1].hex()
                message = f"the byte 0x{bad} has no meaning in {encoding}; give another encoding, or none."
                raise DataFileError(name, message, line=line) from None
        n_lines += text.count("\n")
        return text.encode()

    return recoded


def _counted(read: Read, report: Callable[[int], None]) -> Read:
    done = 0

    def counted(n: int) -> bytes:
        nonlocal done
        data = read(n)
        done += len(data)
        report(done)
        return data

    return counted


def _first_bytes(read: Read) -> bytes:
    """Read until there is a whole line: a pipe that has given one may have no more for now."""
    head = b""
    while len(head) < HEAD_BYTES and b"\n" not in head and (more := read(HEAD_BYTES)):
        head += more
    return head


def _decompressor(packed: Any, kind: str, name: str) -> Any:
    if kind == "gz":
        return gzip.GzipFile(fileobj=packed)
    if kind == "bz2":
        return bz2.BZ2File(packed)
    if kind == "xz":
        return lzma.LZMAFile(packed)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(f"{name} is compressed with Zstandard: pip install extremax[parquet].") from error
    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
