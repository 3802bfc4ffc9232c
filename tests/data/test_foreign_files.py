"""Data files from elsewhere: damage in one sentence, memory and time in bounds."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from extremax.data import iter_dataset, load_dataset, streams
from extremax.data.dataset import DataFileError

pytestmark = [pytest.mark.error]
zstandard = pytest.importorskip("zstandard")
X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(4)


def archive(path: Path, *, compressed: bool) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, X=X, y=Y)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_any_flipped_byte_of_an_archive_rejects_or_changes_nothing(tmp_path: Path, compressed: bool) -> None:
    path = archive(tmp_path / "X.npz", compressed=compressed)
    whole = path.read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 0x10
        path.write_bytes(data)
        try:
            found = load_dataset(path, format="npz")
        except DataFileError:
            continue
        np.testing.assert_array_equal(found.X, X)
        if found.y is not None:  # a comment in the directory of an archive may hide the array after it
            np.testing.assert_array_equal(found.y, Y)


def test_stored_arrays_are_checked_against_their_checksum(tmp_path: Path) -> None:
    path = archive(tmp_path / "X.npz", compressed=False)
    data = bytearray(path.read_bytes())
    data[data.index(X.tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataFileError, match=r"array X is damaged.*Bad CRC-32"):
        load_dataset(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 3), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (4, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4L, 3L",
        "(" * 400,
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_foreign_headers_of_arrays_reject(tmp_path: Path, header: str, packed: bool) -> None:
    text = header.encode() + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + X.tobytes()
    path = tmp_path / ("X.npz" if packed else "X.npy")
    if packed:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("X.npy", array)
    else:
        path.write_bytes(array)
    with pytest.raises(DataFileError, match=r"X\.np[yz]: "):
        load_dataset(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"1 4294967298 3\n0 4294967297:1\n", "announces 4294967298 features; at most 2,147,483,647"),
        (b"1 3 4294967298\n4294967297 1:1\n", "announces 4294967298 labels; at most 2,147,483,647"),
        (b"1 99999999999999999999999 3\n0 1:1\n", "announces 99999999999999999999999 features"),
        (b"1_0 3 3\n0 1:1\n", "expected three numbers"),
    ],
)
def test_xmc_numbers_beyond_32_bits_reject(text: bytes, match: str) -> None:
    with pytest.raises(DataFileError, match=match):
        load_dataset(io.BytesIO(text), format="xmc")


def test_libsvm_numbers_beyond_32_bits_reject() -> None:
    with pytest.raises(DataFileError, match=r"an index below 2147483647 .*, got '4294967297:1'"):
        load_dataset(io.BytesIO(b"1 4294967297:1\n"), format="libsvm")
    with pytest.raises(ValueError, match="n_features is 4294967298; it must be from 1 to 2,147,483,647"):
        load_dataset(io.BytesIO(b"1 4294967297:1\n"), format="libsvm", n_features=4294967298)


def test_zstandard_is_unpacked_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.zst"
    text = (b"word " * 20 + b"\n") * (1 << 20)  # 100 MiB, in 10 kB
    path.write_bytes(zstandard.ZstdCompressor().compress(text))
    tracemalloc.start()
    n_rows = 0
    for batch in iter_dataset(path, format="lines", batch_rows=1000):
        n_rows += batch.n_samples
        if n_rows > 12_000:  # the second read
            break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20  # one read of a megabyte, as lines; unpacked at once it was all of them


@pytest.mark.identity
@pytest.mark.parametrize("n", [0, 1000, 300_000])
def test_zstandard_frames_come_back_whole(n: int) -> None:
    text = bytes(np.random.default_rng(n).integers(97, 123, n, dtype=np.uint8)) + b"\n"
    packed = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    skipped = b"\x53\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert unpack(packed + skipped + packed) == 2 * text
    for damaged in (packed[:-1], packed + packed[:-1]):
        with pytest.raises(DataFileError, match="ends early"):
            unpack(damaged)


@pytest.mark.parametrize("kind", ["lines", "fasttext", "csv", "libsvm"])
def test_a_line_without_an_end_rejects(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 1 << 20)  # the limit itself is 256 MiB
    endless = gzip.compress(b"1 1:1\n" + b"1" * (20 << 20))
    with pytest.raises(DataFileError, match=r"line 2: the line has more than 1,048,576 bytes"):
        load_dataset(io.BytesIO(endless), format=kind)  # type: ignore[arg-type]


def test_blank_lines_after_the_announced_rows_take_no_memory() -> None:
    def peak(n_blank: int) -> int:
        bomb = gzip.compress(b"1 3 3\n0 1:1\n" + b"\n" * n_blank)
        tracemalloc.start()
        data = load_dataset(io.BytesIO(bomb), format="xmc")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert data.X.shape == (1, 3)
        return most

    most = peak(24 << 20)
    assert most < 1.2 * peak(12 << 20)  # that of a chunk of lines, however many there are
    assert most < 150 << 20  # a chunk is 2 MiB


def unpack(data: bytes) -> bytes:
    with streams.open_stream(io.BytesIO(data)) as stream:
        return stream.file.read()


@pytest.mark.identity
@pytest.mark.parametrize("n", [1, 300, 3 << 19])
def test_xz_streams_come_back_whole(n: int) -> None:
    text = bytes(np.random.default_rng(n).integers(97, 123, n, dtype=np.uint8))
    packed = lzma.compress(text, preset=0)
    assert unpack(packed + lzma.compress(b"more")) == text + b"more"
    for damaged in (packed[:-1], packed + packed[:-1]):
        with pytest.raises(DataFileError, match="damaged or ends early"):
            unpack(damaged)


def test_names_of_arrow_columns_that_are_no_text_reject(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.arrow"
    table = pa.table({"text": ["one", "two"], "label": ["a", "b"]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"label", b"la\xe2el"))
    with pytest.raises(DataFileError, match="is not a whole Parquet or Arrow file"):
        load_dataset(path)
