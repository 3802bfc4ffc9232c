"""Arrays and columns that are compressed or come from a pipe, and labels in a file of their own."""

from __future__ import annotations

import gzip
import lzma
import tempfile

import numpy as np
import pytest
import scipy.sparse as sp

from extremax.data import DataFileError, iter_dataset, load_dataset


def compress(kind, data):
    if kind == "zst":
        return pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return (gzip if kind == "gz" else lzma).compress(data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("X.npy", "gz"), ("X.npy", "zst"), ("X.npz", "xz"), ("X.parquet", "gz"), ("X.arrow", "zst")],
)
def test_compressed_arrays_are_unpacked(kind, name, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    X = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    y = np.arange(50)
    plain = tmp_path / name
    if name == "X.npy":
        np.save(plain, X)
        np.save(tmp_path / "y.npy", y)
        (tmp_path / f"y.npy.{kind}").write_bytes(compress(kind, (tmp_path / "y.npy").read_bytes()))
        (tmp_path / "y.npy").unlink()
    elif name == "X.npz":
        np.savez(plain, X=X, y=y)
    else:
        table = pa.table({"embedding": pa.array(X.tolist(), pa.list_(pa.float32())), "label": y})
        if name == "X.parquet":
            pq.write_table(table, plain)
        else:
            with pa.ipc.new_file(str(plain), table.schema) as sink:
                sink.write_table(table)
    path = tmp_path / f"{name}.{kind}"
    path.write_bytes(compress(kind, plain.read_bytes()))
    plain.unlink()
    seen = []
    data = load_dataset(path, progress=lambda done, total: seen.append((done, total)))
    assert data.format == name.removeprefix("X.")
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert list(scratch.iterdir()) == []
    np.testing.assert_array_equal(data.X, X)
    np.testing.assert_array_equal(data.y, y)
    batches = list(iter_dataset(path, batch_rows=20))
    np.testing.assert_array_equal(np.concatenate([batch.X for batch in batches]), X)
    with path.open("rb") as stream:
        np.testing.assert_array_equal(load_dataset(stream).X, X)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=rf"{name}\.{kind}: .*damaged or ends early"):
        load_dataset(path)
    assert list(scratch.iterdir()) == []


def test_compressed_array_that_is_none_rejects(tmp_path):
    path = tmp_path / "a.npy.gz"
    path.write_bytes(gzip.compress(b"\x93NUMPY and nothing else"))
    with pytest.raises(DataFileError, match=r"a\.npy\.gz: is not a whole \.npy file"):
        load_dataset(path)


def test_labels_beside_features(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 2), dtype=np.float32))
    labels = tmp_path / "labels.txt"
    labels.write_bytes("\ufeffa, b\r\nc\r\né\r\n".encode())
    assert load_dataset(tmp_path / "a.npy", labels_path=labels).y.tolist() == ["a, b", "c", "é"]
    labels.write_text("label\na\nb\nc\n")
    assert load_dataset(tmp_path / "a.npy", labels_path=labels).y.tolist() == ["a", "b", "c"]
    sp.save_npz(tmp_path / "y.npz", sp.csr_matrix(np.array([[1, 0], [0, 0], [1, 1]])))
    data = load_dataset(tmp_path / "a.npy", labels_path=tmp_path / "y.npz")
    assert data.multilabel
    assert data.y.toarray().tolist() == [[1, 0], [0, 0], [1, 1]]
    labels.write_text("a\n\nc\n")
    with pytest.raises(DataFileError, match=r"labels\.txt, line 2: expected a label, got an empty line"):
        load_dataset(tmp_path / "a.npy", labels_path=labels)
    labels.write_text("a\nb\n")
    with pytest.raises(DataFileError, match=r"one label for each of 3 rows, got shape \(2,\)"):
        load_dataset(tmp_path / "a.npy", labels_path=labels)
    np.savez(tmp_path / "y.npz", y=np.arange(3))
    with pytest.raises(DataFileError, match=r"y\.npz: expected a matrix saved by scipy"):
        load_dataset(tmp_path / "a.npy", labels_path=tmp_path / "y.npz")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_dataset(tmp_path / "a.npy", labels_path=tmp_path / "absent.npy")
