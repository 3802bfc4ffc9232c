"""Model folders: what goes in comes out, nothing damaged gets in, nothing half-written is seen."""

from __future__ import annotations

import datetime
import json
import os
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from extremax.errors import ModelFileError
from extremax.runtime import atomic_files
from extremax.storage import folder
from extremax.storage.folder import load_folder, save_folder
from extremax.storage.labels import pack_labels, unpack_labels
from scorers import is_mapped

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "weights": np.arange(12, dtype=np.float32).reshape(4, 3),
    "steps": np.array(7, dtype=np.int64),
    "mask": np.array([True, False]),
    "empty": np.zeros((0, 5), dtype=np.float64),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def save(path: Path, **changes: Any) -> Path:
    save_folder(
        path,
        **{
            "kind": "demo",
            "header": {"depth": 3},
            "arrays": ARRAYS,
            "labels": np.array(["a", "b"]),
            **changes,
        },
    )
    return path


def large(path: Path) -> Path:
    """Save a model of 64 chunks, of which a load checks 16."""
    n = 64 * folder.CHUNK_BYTES // 4
    return save(path, arrays={"weights": np.arange(n, dtype=np.float32)})


def names(path: Path) -> list[str]:
    """Return the names in a model folder, without the lock that saves leave."""
    return sorted(entry.name for entry in path.iterdir() if entry.name != ".saving.lock")


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


# -- what goes in comes out


def test_arrays_and_header_identity(tmp_path: Path) -> None:
    header = {"a": [1, 2.5, None, True, "ü"], "b": {"c": 1e-300}, "n": np.int64(3), "t": (1, 2)}
    model = load_folder(save(tmp_path / "model", header=header), kind="demo", verify=True)
    assert model.header == {"a": [1, 2.5, None, True, "ü"], "b": {"c": 1e-300}, "n": 3, "t": [1, 2]}
    assert model.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        got = model.arrays[name]
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.flags.c_contiguous
        assert got.flags.aligned
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("dtype", get_args(get_type_hints(folder.ArrayEntry)["dtype"]))
def test_every_dtype_identity_and_readable_by_safetensors(tmp_path: Path, dtype: str) -> None:
    array = np.arange(-3, 4).astype(dtype)
    path = save(tmp_path / "model", arrays={"x.y_1": array})
    for got in (
        load_folder(path, kind="demo").arrays["x.y_1"],
        load_file(path / "x.y_1.safetensors")["x.y_1"],
    ):
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_other_byte_order_is_stored_as_little_endian(tmp_path: Path) -> None:
    path = save(tmp_path / "model", arrays={"x": np.array([1, 2], dtype=">i4")})
    got = load_folder(path, kind="demo").arrays["x"]
    assert got.dtype == np.dtype("<i4")
    assert got.tolist() == [1, 2]


def test_arrays_are_mapped_aligned_and_read_only(tmp_path: Path) -> None:
    model = load_folder(save(tmp_path / "model"), kind="demo")
    for array in model.arrays.values():
        assert not array.flags.writeable
        assert array.flags.aligned
    weights = model.arrays["weights"]
    with pytest.raises(ValueError, match="read-only"):
        weights[0, 0] = 1
    assert is_mapped(weights)


def test_copy_on_write_changes_memory_only(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    model = load_folder(path, kind="demo", copy_on_write=True)
    model.arrays["weights"][0, 0] = 99
    assert model.arrays["weights"][0, 0] == 99
    assert load_folder(path, kind="demo", verify=True).arrays["weights"][0, 0] == 0


def test_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = save(tmp_path / "one"), save(tmp_path / "two")
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_large_model_is_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save(path, arrays={"weights": np.ones((1 << 15, 1 << 10), dtype=np.float32)})  # 128 MiB
    weights = load_folder(path, kind="demo").arrays["weights"]
    assert is_mapped(weights)


# -- labels


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1, 5, 9]),
        np.array([1, 5, 9], dtype=np.uint8),
        np.array([1, 5, 9], dtype=">i4"),
        np.array([1.5, -0.0], dtype=np.float32),
        np.array([False, True]),
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]"),
        np.array([1, 2], dtype="m8[s]"),
        np.array(["apple", "fig", ""]),
        np.array(["apple", "Äpfel", "苹果", "🍎"]),
        np.array(["x", "y"], dtype=">U3"),
        np.array([b"apple", b"\xff\x00z"]),
        np.array([], dtype="<U3"),
        np.array([""]),
    ],
    ids=lambda labels: f"{labels.dtype.str}-{labels.size}",
)
def test_plain_label_arrays_identity(tmp_path: Path, labels: np.ndarray[Any, Any]) -> None:
    got = load_folder(save(tmp_path / "model", labels=labels), kind="demo").labels
    assert got is not None
    assert got.dtype == labels.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, labels)


ODD_LABELS: list[Any] = [
    "text",
    "",
    "a\0",
    "\ud800",
    1,
    -(2**80),
    True,
    0.1,
    float("inf"),
    1 - 2j,
    b"\x00\xff",
    (),
    (1, "a", (2.5, None)),
    frozenset({1, "b"}),
    datetime.date(2020, 2, 29),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC),
    datetime.time(1, 2),
    uuid.UUID(int=7),
    Decimal("1.10"),
    Fraction(1, 3),
    np.int8(5),
    np.float32(0.1),
    np.str_("n"),
    np.datetime64("2020-01-01"),
    np.bool_(True),
    np.bytes_(b"z"),
    ["not", "hashable"][0],
]


def as_objects(labels: list[Any]) -> np.ndarray[Any, Any]:
    return np.fromiter(labels, dtype=object, count=len(labels))


def test_odd_labels_identity_with_their_types(tmp_path: Path) -> None:
    got = load_folder(save(tmp_path / "model", labels=as_objects(ODD_LABELS)), kind="demo").labels
    assert got is not None
    assert got.dtype == object
    assert [type(label) for label in got] == [type(label) for label in ODD_LABELS]
    assert list(got) == ODD_LABELS
    assert got[12][2] == (2.5, None)
    assert str(got[18]) == "1.10"


def test_object_strings_identity(tmp_path: Path) -> None:
    labels = ["apple", "", "🍎" * 3, "a\0", "\udc80", "x" * 10_000]
    got = load_folder(save(tmp_path / "model", labels=as_objects(labels)), kind="demo").labels
    assert got is not None
    assert got.dtype == object
    assert list(got) == labels


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
)
LABELS = st.recursive(
    SCALARS, lambda parts: st.one_of(st.lists(parts, max_size=3).map(tuple), st.frozensets(parts, max_size=3))
)


@given(st.lists(LABELS, max_size=10))
def test_any_labels_identity(labels: list[Any]) -> None:
    coding, arrays = pack_labels(as_objects(labels))
    got = list(unpack_labels(json.loads(json.dumps(coding)), arrays))
    assert got == labels
    assert repr([type(label) for label in got]) == repr([type(label) for label in labels])


def test_without_labels(tmp_path: Path) -> None:
    assert load_folder(save(tmp_path / "model", labels=None), kind="demo").labels is None


@pytest.mark.parametrize("kind", ["<U", "object"])
def test_many_strings_come_back_identity(tmp_path: Path, kind: str) -> None:
    labels = np.char.add("product ", np.arange(200_000).astype("<U7"))
    labels = labels.astype(object) if kind == "object" else labels
    path = save(tmp_path / "model", labels=labels)
    got = load_folder(path, kind="demo").labels
    np.testing.assert_array_equal(got, labels)


def test_labels_that_cannot_come_back_rejects(tmp_path: Path) -> None:
    class Odd:
        pass

    with pytest.raises(
        TypeError, match="Label 1 is of type Odd, which cannot be saved: use numbers, strings"
    ):
        save(tmp_path / "model", labels=as_objects(["a", Odd()]))
    with pytest.raises(ValueError, match=r"labels have shape \(2, 2\)"):
        save(tmp_path / "model", labels=np.eye(2))
    assert list(tmp_path.iterdir()) == []


# -- nothing damaged gets in


def test_truncated_array_rejects(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    os.truncate(path / "weights.safetensors", 100)
    with pytest.raises(
        ModelFileError, match=r"weights\.safetensors has 100 bytes instead of 120: it was cut off or replaced"
    ):
        load_folder(path, kind="demo")


def test_longer_array_rejects(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    with open(path / "weights.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(ModelFileError, match="has 124 bytes instead of 120"):
        load_folder(path, kind="demo")


@pytest.mark.parametrize("name", ["weights", "labels", "empty", "steps"])
def test_missing_array_rejects(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "model")
    (path / f"{name}.safetensors").unlink()
    with pytest.raises(ModelFileError, match=rf"{name}\.safetensors is missing\. Copy or"):
        load_folder(path, kind="demo")


def test_any_flipped_byte_of_a_small_model_rejects_or_does_no_harm(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        start = 8 + int.from_bytes(whole[:8], "little") if file.suffix == ".safetensors" else 0
        for place in range(0, len(whole), 1 if file.name != "header.json" else 7):
            flip(file, place)
            if 8 <= place < start:
                found = load_folder(path, kind="demo").arrays  # header.json says it as well
                np.testing.assert_equal(found, ARRAYS)
            else:
                message = r"is damaged|is not an extremax model|in format|bytes instead of|holds a"
                with pytest.raises(ModelFileError, match=message):
                    load_folder(path, kind="demo")
            file.write_bytes(whole)
    load_folder(path, kind="demo", verify=True)


def test_flipped_byte_in_a_sampled_chunk_rejects(tmp_path: Path) -> None:
    path = large(tmp_path / "model")
    flip(path / "weights.safetensors", -1)
    with pytest.raises(ModelFileError, match=r"weights\.safetensors is damaged near byte 16,515,1"):
        load_folder(path, kind="demo")


def test_flipped_byte_anywhere_rejects_when_verified(tmp_path: Path) -> None:
    path = large(tmp_path / "model")
    flip(
        path / "weights.safetensors", 128 + 2 * folder.CHUNK_BYTES + 5
    )  # the third chunk is not in the sample
    load_folder(path, kind="demo")
    with pytest.raises(ModelFileError, match="is damaged near byte 524,"):
        load_folder(path, kind="demo", verify=True)


def change_header(path: Path, **changes: Any) -> None:
    content = json.loads((path / "header.json").read_text())
    (path / "header.json").write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("number", "advice"), [(folder.FORMAT_VERSION + 1, "or a later one"), (1, "or fit the model again")]
)
def test_other_format_rejects(tmp_path: Path, number: int, advice: str) -> None:
    path = save(tmp_path / "model")
    change_header(path, format_version=number, package_version="9.9")
    with pytest.raises(
        ModelFileError, match=rf"is in format {number}, written by extremax 9\.9; .* {advice}\."
    ):
        load_folder(path, kind="demo")


def test_edited_header_rejects(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    change_header(path, header={"depth": 4})
    with pytest.raises(ModelFileError, match=r"header\.json is damaged: its checksum does not match"):
        load_folder(path, kind="demo")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"3", b'{"a": 1}', b"\xff\xfe", b'{"format": "other"}', b"null"]
)
def test_foreign_header_rejects(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "header.json").write_bytes(text)
    with pytest.raises(ModelFileError, match="is not an extremax model: "):
        load_folder(tmp_path, kind="demo")


def test_foreign_places_rejects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no model at .*nowhere"):
        load_folder(tmp_path / "nowhere", kind="demo")
    with pytest.raises(ModelFileError, match="is not an extremax model: it has no readable"):
        load_folder(tmp_path, kind="demo")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelFileError, match="is not an extremax model"):
        load_folder(tmp_path / "file", kind="demo")


def test_other_kind_rejects(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="holds a 'demo', not a 'tree'"):
        load_folder(save(tmp_path / "model"), kind="tree")


# -- nothing half-written is seen


def test_model_is_replaced_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = save(tmp_path / "model")
    old = load_folder(path, kind="demo")
    save(path, arrays={"weights": np.full(3, 8.0)}, labels=None)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert names(path) == ["header.json", "weights-1.safetensors"]
    np.testing.assert_array_equal(load_folder(path, kind="demo").arrays["weights"], np.full(3, 8.0))
    # an open model outlives its files
    np.testing.assert_array_equal(old.arrays["weights"], ARRAYS["weights"])


def test_loaded_model_can_be_saved_onto_itself(tmp_path: Path) -> None:
    path = large(tmp_path / "model")
    model = load_folder(path, kind="demo")
    save(path, arrays=model.arrays)
    np.testing.assert_array_equal(
        load_folder(path, kind="demo", verify=True).arrays["weights"], model.arrays["weights"]
    )


@pytest.mark.parametrize("stops_at", range(6))
def test_failed_write_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_at: int
) -> None:
    path = save(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    calls = iter(range(100))

    def fail(descriptor: int) -> None:
        if next(calls) == stops_at:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_files, "flush", fail)
    with pytest.raises(OSError, match="No space left"):
        save(path, arrays={**ARRAYS, "weights": np.zeros(5)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    for name in ("thesis", "file"):
        with pytest.raises(
            FileExistsError, match=f"{name} exists and is not an extremax model, so it is left alone"
        ):
            save(tmp_path / name)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "thesis"]


def test_empty_missing_and_linked_folders_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    save(tmp_path / "a" / "b" / "new")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    save(tmp_path / "link", header={"depth": 5})
    assert (tmp_path / "link").is_symlink()
    assert load_folder(tmp_path / "empty", kind="demo").header == {"depth": 5}
    assert load_folder(tmp_path / "a" / "b" / "new", kind="demo").header == {"depth": 3}


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"arrays": {"../up": np.zeros(1)}}, ValueError, "cannot be the name of an array: use letters"),
        ({"arrays": {"labels": np.zeros(1)}}, ValueError, "it is where the labels are stored"),
        ({"arrays": {"x": np.zeros(1, dtype=complex)}}, TypeError, "Array 'x' has dtype complex128"),
        ({"arrays": {"x": np.array([None])}}, TypeError, "Array 'x' has dtype object"),
        (
            {"header": {"a": object()}},
            TypeError,
            "A model header holds numbers, strings, lists and dicts; got a object",
        ),
        ({"header": {"a": float("nan")}}, ValueError, "not JSON compliant"),
    ],
)
def test_unsavable_content_rejects(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        save(tmp_path / "model", **changes)
    assert list(tmp_path.iterdir()) == []


def test_label_that_cannot_be_compared_rejects() -> None:
    packed = np.frombuffer(b'[["decimal","sNaN"]]', np.uint8)
    with pytest.raises(ModelFileError, match="sNaN"):
        unpack_labels({"coding": "json"}, {"labels": packed})
