"""Known data sets, read from small files in the layout of the real ones."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from extremax.data import DataFileError
from extremax.experiments import xml_cnn
from extremax.experiments.catalog import LEMMA_SUBSETS, load_named, names, source_files

CLASSES = 5


def write_xml_cnn(folder: Path, n_train: int = 40, n_test: int = 50) -> tuple[np.ndarray, list[list[int]]]:
    """Files as the authors' scripts read them; the training rows, and the labels of the test rows."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    features, label_lists = {}, {}
    for part, n in (("trn", n_train), ("tst", n_test)):
        X = rng.standard_normal((n, 4)).astype(np.float32)
        # Label 9 is never the smallest of a training row; some test rows have nothing else.
        rows = [sorted(rng.choice(CLASSES, 2, replace=False).tolist(), reverse=True) for _ in range(n)]
        if part == "tst":
            rows[3], rows[7] = [9], [9]
        (folder / f"{part}_ft_mat_dense.txt").write_text(
            f"{n} 4\n" + "".join(" ".join(f"{x:.7g}" for x in row) + "\n" for row in X)
        )
        (folder / f"{part}_lbl_mat.txt").write_text(
            f"{n} 10\n" + "".join(" ".join(f"{y}:1" for y in r) + "\n" for r in rows)
        )
        features[part], label_lists[part] = X, rows
    return features["trn"], label_lists["tst"]


def test_xml_cnn_rows_match_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, test_labels = write_xml_cnn(tmp_path / "Amazon-670K")
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    data = load_named("amazon-670k")
    np.testing.assert_allclose(data.train.X, X, rtol=1e-6)  # seven digits in the file
    assert data.train.X.dtype == np.float32
    # Of the 50 test rows two are of a class without training rows; a fifth of the 48 others validates.
    assert (data.valid.n_samples, data.test.n_samples) == (10, 38)
    smallest = [min(row) for row in test_labels if row != [9]]
    assert sorted([*data.valid.y, *data.test.y]) == sorted(smallest)
    assert set(data.train.y) <= set(range(CLASSES))


def test_compressed_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = write_xml_cnn(tmp_path / "Wikipedia-500K")
    path = tmp_path / "Wikipedia-500K" / "trn_ft_mat_dense.txt"
    (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    np.testing.assert_allclose(load_named("wikipedia-500k").train.X, X, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("trn_ft_mat_dense.txt", "", "line 1: starts with ''; expected two numbers"),
        (
            "trn_ft_mat_dense.txt",
            "40\n1 2 3 4\n",
            "line 1: starts with '40'; expected two numbers",
        ),
        ("trn_ft_mat_dense.txt", "40 4\n1 2 3\n", "has 1 rows of 3 numbers; its first line says 40 of 4"),
        (
            "trn_ft_mat_dense.txt",
            "40 4\n1 2 3 4\n1 2 x 4\n",
            "needs 4 numbers in each line: could not convert string 'x'",
        ),
        ("trn_ft_mat_dense.txt", "40 4\n1 2 3 4\n", "has 1 rows of 4 numbers; its first line says 40 of 4"),
        (
            "trn_ft_mat_dense.txt",
            "1 4\n1 2 3 4\n1 2 3 4\n",
            "has 2 rows of 4 numbers; its first line says 1 of 4",
        ),
        (
            "trn_lbl_mat.txt",
            "40 10\n3:1 4:2\n",
            "line 2: has '4:2'; expected labels from 0 to 9, written as '17:1'",
        ),
        ("trn_lbl_mat.txt", "40 10\n10:1\n", "line 2: has '10:1'; expected labels from 0 to 9"),
        ("trn_lbl_mat.txt", "40 10\n1:1\n", "has 1 rows; its first line says 40"),
        ("trn_lbl_mat.txt", "1 10\n1:1\n", "has 1 rows; the features have 40"),
    ],
)
def test_damaged_xml_cnn_file_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, sentence: str
) -> None:
    write_xml_cnn(tmp_path / "Amazon-670K")
    (tmp_path / "Amazon-670K" / name).write_text(text)
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    with pytest.raises(DataFileError, match=sentence):
        load_named("amazon-670k")


def test_missing_file_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_xml_cnn(tmp_path / "Amazon-670K")
    (tmp_path / "Amazon-670K" / "tst_lbl_mat.txt").unlink()
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"has no tst_lbl_mat.txt"):
        load_named("amazon-670k")
    assert set(xml_cnn.FILES) == {
        "trn_ft_mat_dense.txt",
        "trn_lbl_mat.txt",
        "tst_ft_mat_dense.txt",
        "tst_lbl_mat.txt",
    }


def test_eurlex57k_takes_the_rarest_training_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "eurlex57k"
    folder.mkdir()
    rows = {
        # counts: 0 four times, 1 twice, 2 once
        "train": "5 3 4\n0,1 0:2 1:1\n0,1 1:1\n0 2:3\n2,0 0:1\n 0:1\n",
        "dev": "1 3 4\n1,2 0:1\n",
        "test": "2 3 4\n0,1 1:1\n3,0 0:1\n",  # 3 never occurs in training: it is the rarest
    }
    for part, text in rows.items():
        (folder / f"{part}.txt.xz").write_bytes(lzma.compress(text.encode()))
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    data = load_named("eurlex57k")
    assert (data.train.y.tolist(), data.valid.y.tolist(), data.test.y.tolist()) == ([1, 1, 0, 2], [2], [1, 3])
    assert data.train.n_unlabelled == 1
    assert data.train.X.shape == (4, 3)
    assert load_named("eurlex57k", reduce="smallest").test.y.tolist() == [0, 0]
    assert load_named("eurlex57k", reduce="first").test.y.tolist() == [0, 3]


def test_npm_owner_rows_keep_their_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npm-owner").mkdir()
    text = "train\t7\tleft-pad\nval\t7\tright-pad\ntest\t12\t@a/b\ntrain\t12\tc d\n"
    path = tmp_path / "npm-owner" / "npm-owner-124k.tsv.xz"
    path.write_bytes(lzma.compress(text.encode()))
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    data = load_named("npm-owner-124k")
    assert data.train.texts == ["left-pad", "c d"]
    assert (data.train.y.tolist(), data.valid.y.tolist(), data.test.y.tolist()) == ([7, 12], [7], [12])
    path.write_bytes(lzma.compress((text + "train\tx\ty\n").encode()))
    with pytest.raises(DataFileError, match="line 5: expected a split, an owner and a name"):
        load_named("npm-owner-124k")


def test_unknown_name_rejects() -> None:
    with pytest.raises(ValueError, match="'icd10' is not a known data set; did you mean 'icd10cm'"):
        load_named("icd10")


def test_missing_folder_rejects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXTREMAX_DATA", raising=False)
    for name in names():
        if name not in ("icd10cm", "polish-nouns", *LEMMA_SUBSETS):  # of packages
            with pytest.raises(
                FileNotFoundError, match="environment variable EXTREMAX_DATA names, which is not set"
            ):
                source_files(name)
    monkeypatch.setenv("EXTREMAX_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="does not exist; set EXTREMAX_DATA to the folder that holds eurlex57k"
    ):
        load_named("eurlex57k")
