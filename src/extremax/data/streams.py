"""Bytes of files and pipes, decompressed according to their first bytes, with progress."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from extremax.data.dataset import DataFileError

Progress = Callable[[int, int | None], None]
Source = str | os.PathLike[str] | IO[bytes]

_MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
SUFFIXES = (".gz", ".xz", ".zst")
CHUNK_BYTES = 8 << 20
_DAMAGE = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Counted(io.RawIOBase):
    """A raw file that counts the bytes read and calls the callback."""

    def __init__(self, file: IO[bytes], total: int | None, progress: Progress | None) -> None:
        self._file, self._total, self._progress, self._done = file, total, progress, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._done += len(data)
        if self._progress is not None and data:
            self._progress(self._done, self._total)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class ByteStream:
    """A readable stream of decompressed bytes with a name for error messages.

    Parameters
    ----------
    source : path or binary file object
        A path, or an open binary file such as ``sys.stdin.buffer``, which stays open.
    progress : callable or None
        Called with the bytes read so far, as they are in the file, and its size (None for a pipe).
    chunk_bytes : int
        Size of the chunks of `chunks`.
    """

    def __init__(
        self, source: Source, *, progress: Progress | None = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.chunk_bytes = chunk_bytes
        total: int | None = None
        if isinstance(source, str | os.PathLike):
            self.name = os.fspath(source)
            path = Path(source)
            if not path.exists():
                raise FileNotFoundError(f"{self.name}: there is no such file.")
            if path.is_dir():
                raise IsADirectoryError(
                    f"{self.name} is a folder without X.npy; give a file, or a folder that holds X.npy."
                )
            total = path.stat().st_size
            file: Any = path.open("rb", buffering=0)
        else:
            self.name = str(getattr(source, "name", "<stream>"))
            file = _ShortReads(source, close=False)
        raw = io.BufferedReader(_Counted(file, total, progress), 1 << 20)
        head = raw.peek(6)[:6]
        self.compression = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        self._stream = _Peekable(_decompressed(raw, self.compression, self.name))

    def peek(self, n: int) -> bytes:
        """Return up to n bytes from the current position, without moving it."""
        return self._guard(lambda: self._stream.peek(n))

    def read(self, n: int) -> bytes:
        """Read up to n bytes; fewer at the end of a file, or if a pipe has no more for now."""
        return self._guard(lambda: self._stream.read(n))

    def readable_text(self) -> io.TextIOWrapper:
        """Return the rest as UTF-8 text; `bad_utf8` finds bytes that are no UTF-8."""
        return io.TextIOWrapper(_Guarded(self), encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[arg-type]

    def chunks(self) -> Iterator[bytearray]:
        """Yield whole lines, `chunk_bytes` at a time; the last line gets a newline if it has none."""
        if self.peek(3) == BYTE_ORDER_MARK:
            self.read(3)
        tail = b""
        while data := self.read(self.chunk_bytes):
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                tail += data
                continue
            chunk = bytearray(tail)
            chunk += memoryview(data)[:cut]
            tail = data[cut:]
            yield chunk
        if tail:
            yield bytearray(tail + b"\n")

    def close(self) -> None:
        """Close the stream, and the file if it was opened here."""
        self._stream.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _guard(self, call: Callable[[], bytes]) -> bytes:
        try:
            return call()
        except Exception as error:
            # zstandard is optional: its error is recognised by name
            if isinstance(error, _DAMAGE) or type(error).__name__ == "ZstdError":
                message = f"the compressed file is damaged or ends early ({error}); fetch it again."
                raise DataFileError(self.name, message) from error
            raise


@contextmanager
def in_place(source: Source, stream: ByteStream) -> Iterator[Path]:
    """Yield a path with the bytes of a stream just opened from `source`, for formats that need a file.

    Compressed bytes, and those of a pipe, are unpacked to a temporary file that is removed at the end; arrays
    mapped from it stay valid on systems that keep a file as long as it is in use. Errors name `source`.
    """
    if isinstance(source, str | os.PathLike) and not stream.compression:
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="extremax-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "unpacked"
        try:
            with path.open("wb") as file:
                while data := stream.read(CHUNK_BYTES):
                    file.write(data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            message = f"there is no space in {tempfile.gettempdir()} to unpack it;"
            message += " set TMPDIR to a folder on a larger disk."
            raise DataFileError(stream.name, message) from error
        try:
            yield path
        except DataFileError as error:
            if error.path != str(path):
                raise
            message = str(error).removeprefix(f"{path}: ")
            raise DataFileError(stream.name, message) from error


class _ShortReads(io.RawIOBase):
    """A file whose reads return what a pipe has by now; with ``close=False`` it stays open."""

    def __init__(self, file: IO[bytes], *, close: bool) -> None:
        self._file, self._close = file, close
        self._read = getattr(file, "read1", file.read)

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        return bytes(self._read(n))

    def close(self) -> None:
        if self._close and not self.closed:
            self._file.close()
        super().close()


class _Peekable(io.RawIOBase):
    """A stream with a look-ahead of any length."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._ahead = stream, b""

    def readable(self) -> bool:
        return True

    def peek(self, n: int) -> bytes:
        while (wanted := n - len(self._ahead)) > 0 and (data := self._stream.read(wanted)):
            self._ahead += data
            # a pipe that has given a line may have no more for now
            if len(data) < wanted and b"\n" in self._ahead:
                break
        return self._ahead[:n]

    def read(self, n: int = -1) -> bytes:
        if not self._ahead:
            return bytes(self._stream.read(n))
        data, self._ahead = (self._ahead, b"") if n < 0 else (self._ahead[:n], self._ahead[n:])
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Guarded(io.BufferedIOBase):
    """The methods of a ByteStream that TextIOWrapper needs."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read1(self, n: int = -1) -> bytes:
        return self._stream.read(n if n and n > 0 else 1 << 16)

    def read(self, n: int | None = -1) -> bytes:
        return self.read1(n or -1)


def _decompressed(raw: Any, compression: str, name: str) -> Any:
    if compression == "gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zst":
        return _open_zstd(raw, name)
    return _ShortReads(raw, close=True)


def _open_zstd(raw: Any, name: str) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14 and later

        return zstd.ZstdFile(raw)
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError as error:
        raise ImportError(
            f"{name} is compressed with Zstandard; install a reader for it: pip install zstandard."
        ) from error
    return _ZstdFile(raw, zstandard.ZstdDecompressor().decompressobj)


class _ZstdFile(io.RawIOBase):
    """Frames of Zstandard; unlike zstandard's own reader it notices a file that ends inside a frame."""

    def __init__(self, raw: Any, new_frame: Callable[[], Any]) -> None:
        self._raw, self._new_frame, self._frame, self._rest = raw, new_frame, new_frame(), b""

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        while True:  # any number of bytes may be returned, whatever `n`
            data = self._rest or self._raw.read1(1 << 18)
            self._rest = b""
            if not data:
                if self._started:
                    raise EOFError("the last frame is not complete")
                return b""
            self._started = True
            out: bytes = self._frame.decompress(data)
            if self._frame.eof:
                self._rest, self._frame, self._started = self._frame.unused_data, self._new_frame(), False
            if out:
                return out

    _started = False


def bad_utf8(text: str) -> int:
    """Return the position of the first byte that was no UTF-8 in text decoded with surrogateescape, or -1."""
    if text.isascii():
        return -1
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1
