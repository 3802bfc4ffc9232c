"""Model folders from elsewhere, with checksums that are right: refused as a whole, in one sentence."""

from __future__ import annotations

import json
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extremax import load_model
from extremax.errors import ModelFileError
from fuzz.bases import make_bases
from fuzz.model_cases import read_array, write_array

pytestmark = [pytest.mark.error]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_bases(tmp_path_factory.mktemp("bases"))


class Forgery:
    """A copy of a saved model whose header and arrays can be changed."""

    def __init__(self, base: Any, path: Path) -> None:
        self.path, self.content = path, json.loads(base.files["header.json"])
        path.mkdir()
        for name, data in base.files.items():
            (path / name).write_bytes(data)

    @property
    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = self.content["header"]
        return header

    def array(self, name: str) -> Any:
        return read_array((self.path / f"{name}.safetensors").read_bytes())

    def replace(self, name: str, array: Any) -> None:
        self.content["arrays"][name], data = write_array(name, array)
        (self.path / f"{name}.safetensors").write_bytes(data)

    def sign(self) -> Path:
        """Write the header with a checksum that is right."""
        self.content.pop("checksum", None)
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"))
        document = {"checksum": sha256(text.encode()).hexdigest(), **self.content}
        (self.path / "header.json").write_text(json.dumps(document))
        return self.path


@pytest.fixture
def forge(bases: Any, tmp_path: Path) -> Any:
    return lambda name: Forgery(bases[name], tmp_path / "model")


def rejects(path: Path, match: str) -> None:
    start = time.process_time()
    with pytest.raises(ModelFileError, match=match) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize("wrong", [10**6, -1, "twice"])
def test_an_index_whose_order_is_no_permutation_rejects(forge: Any, wrong: Any) -> None:
    made = forge("beam")
    order = made.array("search_beam.order")
    order[0] = order[1] if wrong == "twice" else wrong
    made.replace("search_beam.order", order)
    rejects(made.sign(), r"array 'order' (goes from|holds a number twice)")


def test_places_of_an_index_without_a_class_must_stay_unreachable(forge: Any) -> None:
    made = forge("beam")
    bases = made.array("search_beam.bases")
    bases[-1, -1] = 0.0
    made.replace("search_beam.bases", bases)
    rejects(made.sign(), "codes for more classes than its order")


@pytest.mark.parametrize(
    ("base", "name", "match"),
    [
        ("dense", "weights.biases", r"array 'biases' is float32 \(5,\) where float32 \(6,\) is needed"),
        ("dense", "classes.counts", "counts are those of 5 classes, weights of 6"),
        ("dense", "training.squares", "array 'squares' is"),
        ("dense", "training.whitening.mean", "array 'matrix' is"),
        ("tree", "projection.mean", r"array 'mean' is float32 \(4,\)"),
        ("tree", "noise.leaf_class", "array 'weights' is"),
        ("tree", "classes.means", "means are those of 5 classes"),
        ("mixture", "noise.second.counts", "noise|MixtureNoise mixes distributions"),
        ("sparse", "weights.offsets", r"array 'steps' is float32 \(5,\) where float32 \(4,\) is needed"),
        ("sparse", "weights.steps", r"array 'steps' is float32 \(4,\) where float32 \(5,\) is needed"),
        ("sparse", "weights.length_biases", "sparse weights of the model do not fit together"),
        ("unfinished", "training.sums.counts", "array 'counts' is"),
        ("unfinished", "training.groups", "array"),
        ("text", "text.buckets", "sizes"),
        ("text", "text.filter", "the filter has"),
        ("dense", "labels", "there are 5 labels for 6 classes"),
    ],
)
def test_an_array_of_another_length_rejects(forge: Any, base: str, name: str, match: str) -> None:
    made = forge(base)
    array = made.array(name)
    made.replace(name, array[:-1] if len(array) else np.zeros(3, array.dtype))
    rejects(made.sign(), match)


@pytest.mark.parametrize("base", ["dense", "beam", "tree", "mixture", "sparse", "unfinished", "text"])
def test_an_array_of_another_type_or_without_a_dimension_rejects(forge: Any, base: str) -> None:
    made = forge(base)
    for name in sorted(made.content["arrays"]):
        array = made.array(name)
        for other in (
            array.astype(np.float64 if array.dtype != np.float64 else np.int8),
            array[None],
        ):
            made.replace(name, other)
            rejects(made.sign(), "model")
        made.replace(name, array)
    load_model(made.sign())


@pytest.mark.parametrize(
    ("base", "name", "value"),
    [
        ("sparse", "weights.classes", 2**16 - 1),
        ("sparse", "weights.offsets", 2**40),
        ("unfinished", "weights.classes", 2**31 - 1),
        ("unfinished", "training.sums.classes", -5),
        ("unfinished", "training.linear.features", 10**6),
        ("tree", "noise.leaf_class", 77),
        ("text", "text.large_text_counts", -1),
        ("dense", "classes.counts", -1),
        ("dense", "classes.descriptions_ends", -9),
    ],
)
def test_an_index_that_leads_outside_rejects(forge: Any, base: str, name: str, value: int) -> None:
    made = forge(base)
    array = made.array(name)
    if not array.size:
        array = np.zeros(1, array.dtype)
    array[array.size // 2] = value
    made.replace(name, array)
    rejects(made.sign(), "model")


@pytest.mark.parametrize(
    ("base", "name"), [("sparse", "weights.offsets"), ("unfinished", "training.sums.offsets")]
)
def test_offsets_whose_differences_overflow_reject(forge: Any, base: str, name: str) -> None:
    made = forge(base)
    offsets = made.array(name).astype(np.int64)
    offsets[2:4] = -(2**63), -(2**31)  # both steps rise where the differences of int64 wrap around
    assert (np.diff(offsets) >= 0).all()
    made.replace(name, offsets)
    rejects(made.sign(), "fit together")


@pytest.mark.parametrize("step", [0, -1])
def test_a_class_twice_or_out_of_order_in_a_column_rejects(forge: Any, step: int) -> None:
    made = forge("sparse")
    classes, offsets = made.array("weights.classes"), made.array("weights.offsets")
    first = int(offsets[np.flatnonzero(np.diff(offsets) > 1)[0]])
    classes[first : first + 2] = 1, 1 + step
    made.replace("weights.classes", classes)
    rejects(made.sign(), "fit together")


@pytest.mark.parametrize("name", ["../weights", "/etc/hosts", "a/b", "..", "x" * 300])
def test_names_that_leave_the_folder_reject(forge: Any, name: str) -> None:
    made = forge("dense")
    made.content["arrays"][name] = made.content["arrays"].pop("weights.weights")
    rejects(made.sign(), "cannot be the name of an array")


@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "loop"])
@pytest.mark.parametrize("name", ["weights.weights.safetensors", "header.json"])
def test_what_is_no_file_rejects_without_waiting(forge: Any, kind: str, name: str) -> None:
    path = forge("dense").sign() / name
    path.unlink()
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path)
    rejects(path.parent, "is missing|no readable header")


def test_links_to_files_are_followed(forge: Any, tmp_path: Path) -> None:
    path = forge("dense").sign()
    for file in list(path.iterdir()):  # as the caches of model hubs have them
        file.rename(tmp_path / f"blob-{file.name}")
        file.symlink_to(tmp_path / f"blob-{file.name}")
    load_model(path)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 10**6 + b"]" * 10**6,
        b'{"format": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"format": ' + b"9" * 10**6 + b"}",
        b'{"format": NaN}',
        b'{"format": 1e999}',
        b" " * ((64 << 20) + 1),
    ],
    ids=["deep", "deep value", "digits", "nan", "infinity", "large"],
)
def test_headers_beyond_the_limits_reject(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "header.json").write_bytes(text)
    rejects(tmp_path, "is not an extremax model: it has no readable header.json")


@pytest.mark.parametrize(
    "labels",
    [
        b'[["fraction","1e9999999"]]',
        b'[["decimal","1e9999999999"]]',
        b'[["numpy","O","00"]]',
        b'[["unknown","x"]]',
        b'[["numpy","<U1","ffffffff"]]',
        b"[" * 70 + b"]" * 70,
        b"[[]]",
        b'[["float",1]]',
        b"[" + b"9" * 5000 + b"]",
        b"{}",
    ],
)
def test_labels_beyond_the_limits_reject(forge: Any, labels: bytes) -> None:
    made = forge("dense")
    made.content["labels"] = {"coding": "json"}
    made.replace("labels", np.frombuffer(labels, np.uint8))
    rejects(made.sign(), "model")


@pytest.mark.parametrize("dtype", ["O", "V8", "<U99999999", "<i8,O", "M8[s]"])
def test_labels_of_a_foreign_type_reject(forge: Any, dtype: str) -> None:
    made = forge("mixture")
    made.content["labels"]["dtype"] = dtype
    rejects(made.sign(), "labels")


def set_at(tree: Any, place: str, value: Any) -> None:
    *path, last = place.split(".")
    for key in path:
        tree = tree[key]
    tree[last] = value


@pytest.mark.parametrize(
    ("base", "place", "value"),
    [
        ("dense", "weights.feature_scale", "1"),
        ("dense", "calibration.temperature", 0),
        ("dense", "calibration.uniform_mix", 2.0),
        ("dense", "model.solver", ["nce"]),
        ("dense", "model.solver", "sparse_softmax"),
        ("dense", "model.config.solver.batch_size", -3),
        ("dense", "model.config.numbers.pq.max_candidates", "x"),
        ("dense", "estimator.parameters.solver", {"name": "negative_sampling", "n_negatives": -1}),
        ("dense", "estimator.parameters.no_such", 1),
        ("dense", "estimator.parameters.solver", {"name": "nce", "noise": 1}),
        ("dense", "estimator.parameters.solver", None),
        ("dense", "estimator.seed", "9" * 5000),
        ("dense", "estimator.history", [3]),
        ("dense", "components", {"a": 1}),
        ("dense", "training.tables", "other"),
        ("mixture", "noise.first.n_classes", 10**12),
        ("mixture", "noise.weight", None),
        ("beam", "search_beam.width", -1),
        ("beam", "search_beam.config.max_candidates", 0),
        ("text", "text.options.hash_bits", 20),
        ("text", "text.options.char_ngrams", ["a", 3]),
        ("unfinished", "training.sums.shape", [10**12, 10**12]),
        ("sparse", "weights.n_dense", -1),
    ],
)
def test_a_header_of_other_types_or_values_rejects(forge: Any, base: str, place: str, value: Any) -> None:
    made = forge(base)
    set_at(made.header, place, value)
    if base == "sparse":
        made.replace("weights.factors", np.zeros((6, 1), np.float32))
    rejects(made.sign(), "model")
