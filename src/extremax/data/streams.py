"""Bytes of files and pipes, decompressed according to their first bytes, with progress."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from extremax.data.dataset import DataFileError
from extremax.runtime.memory import available_memory, format_bytes

Progress = Callable[[int, int | None], None]
Source = str | os.PathLike[str] | IO[bytes]

_MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
SUFFIXES = (".gz", ".xz", ".zst")
CHUNK_BYTES = 8 << 20
MAX_LINE_BYTES = 256 << 20  # of one line: a longer one is no line, but a file of another kind
_SPARE_BYTES = 1 << 30  # of disk space that unpacking leaves free
_XZ_MEMORY = 256 << 20  # bytes that unpacking may take; a file of xz -9 takes 65 MiB
_XZ_BYTES = 1 << 16  # read at a time
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
        self.is_file = isinstance(source, str | os.PathLike)  # and no pipe, which may be slow
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
        for chunk in self.line_chunks(self.chunk_bytes):
            if not chunk.endswith(b"\n"):
                chunk += b"\n"
            yield chunk

    def line_chunks(self, size: int) -> Iterator[bytearray]:
        """Yield whole lines, about `size` bytes at a time; the last one may have no newline.

        Time is linear in the length of a line, and memory that of one line of at most `MAX_LINE_BYTES`.
        """
        if self.peek(3) == BYTE_ORDER_MARK:
            self.read(3)
        tail, n_lines = bytearray(), 0
        while data := self.read(size):
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                tail += data
                if len(tail) > MAX_LINE_BYTES:
                    raise self.too_long(n_lines + 1)
                continue
            tail += memoryview(data)[:cut]
            n_lines += tail.count(b"\n")
            chunk, tail = tail, bytearray(memoryview(data)[cut:])
            yield chunk
        if tail:
            yield tail

    def text_lines(self) -> Generator[str]:
        """Yield the lines of UTF-8 text with their ends; `bad_utf8` finds bytes that are no UTF-8."""
        with self.readable_text() as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                if len(line) >= MAX_LINE_BYTES:
                    raise self.too_long(number)
                yield line

    def too_long(self, line: int) -> DataFileError:
        """Return the error for a line that does not end."""
        message = (
            f"the line has more than {MAX_LINE_BYTES:,} bytes; the file is damaged or of another format."
        )
        return DataFileError(self.name, message, line=line)

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
                    if shutil.disk_usage(folder).free < len(data) + _SPARE_BYTES:
                        raise OSError(errno.ENOSPC, "no space left")
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


def check_room(name: str, size: int) -> None:
    """Raise if the rows read so far, of `size` bytes, leave hardly any memory."""
    if available_memory() < size // 8:
        raise DataFileError(
            name,
            f"{format_bytes(size)} of rows are read, the file goes on, and memory is running out; read it in"
            " parts with extremax.data.iter_dataset, or give a smaller file.",
        )


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
        return _XzFile(raw, name)
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


class _XzFile(io.RawIOBase):
    """Streams of xz, unpacked in bounded memory: a header may ask for a dictionary of gigabytes."""

    def __init__(self, raw: Any, name: str) -> None:
        self._raw, self._name = raw, name
        self._decoder: lzma.LZMADecompressor | None = None

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        while True:
            if self._decoder is None or self._decoder.eof:
                given = self._next_stream()
                if not given:
                    return b""
            else:
                given = self._raw.read(_XZ_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not given:
                    raise EOFError("the last stream is not complete")
            if data := self._unpack(given, n):
                return data

    def _next_stream(self) -> bytes:
        """Begin the next stream; return its first bytes, none at the end of the file."""
        data = b"" if self._decoder is None else self._decoder.unused_data
        while not (data := data.lstrip(b"\0")):  # streams may be padded with zeros
            if not (data := self._raw.read(_XZ_BYTES)):
                return b""
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
        return data

    def _unpack(self, given: bytes, n: int) -> bytes:
        assert self._decoder is not None  # `_next_stream` has made one
        try:
            return self._decoder.decompress(given, max_length=n)
        except lzma.LZMAError as error:
            if "memory usage limit" not in str(error).lower():
                raise
            message = f"unpacking it takes more than {format_bytes(_XZ_MEMORY)}; compress it again with a"
            raise DataFileError(self._name, f"{message} smaller dictionary, such as that of xz -9.") from None


class _ZstdFile(io.RawIOBase):
    """Frames of Zstandard, unpacked block by block: one gives at most 128 KiB, whatever the file holds.

    Unlike zstandard's own reader it notices a file that ends inside a frame.
    """

    def __init__(self, raw: Any, new_frame: Callable[[], Any]) -> None:
        self._raw, self._new_frame = raw, new_frame
        self._blocks: Iterator[bytes] = iter(())
        self._frame: Any = None
        self._out = b""

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        while not self._out and self._fill():
            pass
        if n < 0:
            data, self._out = self._out, b""
        else:
            data, self._out = self._out[:n], self._out[n:]
        return data

    def _fill(self) -> bool:
        """Unpack one more block; return whether there was one."""
        block = next(self._blocks, None)
        if block is None:
            if self._frame is not None and not self._frame.eof:
                raise EOFError("the last frame is not complete")
            magic = self._raw.read(4)
            if not magic:
                self._frame = None
                return False
            if magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50:
                _skip_frame(self._raw)
                return True
            self._frame = self._new_frame()
            self._blocks = _zstd_blocks(self._raw, magic)
            return True
        self._out = self._frame.decompress(block)
        return True


def _skip_frame(raw: Any) -> None:
    """Read over a frame that holds no data: its length, then anything."""
    size = raw.read(4)
    left = int.from_bytes(size, "little")
    while left and (data := raw.read(min(left, 1 << 16))):
        left -= len(data)
    if len(size) < 4 or left:
        raise EOFError("the last frame is not complete")


def _zstd_blocks(raw: Any, magic: bytes) -> Iterator[bytes]:
    """Yield a frame (RFC 8878) in parts that each hold at most one block; one that is cut off ends early."""
    descriptor = raw.read(1)
    yield magic + descriptor
    if magic != b"\x28\xb5\x2f\xfd" or not descriptor:
        return  # the decompressor has refused it, or the file has ended
    flags = descriptor[0]
    single = flags >> 5 & 1
    size_bytes = (1 if single else 0, 2, 4, 8)[flags >> 6]
    yield raw.read((not single) + (0, 1, 2, 4)[flags & 3] + size_bytes)
    last = False
    while not last:
        head = raw.read(3)
        if len(head) < 3:
            yield head
            return
        number = int.from_bytes(head, "little")
        last, kind, size = bool(number & 1), number >> 1 & 3, number >> 3
        yield head + raw.read(1 if kind == 1 else size)
    if flags >> 2 & 1:
        yield raw.read(4)


def bad_utf8(text: str) -> int:
    """Return the position of the first byte that was no UTF-8 in text decoded with surrogateescape, or -1."""
    if text.isascii():
        return -1
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1
