"""Damaged and crafted model folders.

A damaged folder (bytes changed, checksums as they were) must be refused or answer as before. A crafted one
(anything changed, checksums right) must be refused, or answer what a slow computation from its own arrays
gives.
"""

from __future__ import annotations

import copy
import json
import os
import random
import warnings
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy import sparse

from extremax import load_model
from extremax.calibration import CONFIDENCE_OFFSET
from extremax.scores.sparse import SparseWeights
from extremax.solvers.registry import SOLVERS
from extremax.tree.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise
from fuzz.bases import Base
from fuzz.outcome import PASSED, REJECTED, is_sentence, require

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**63,
    10**30,
    1e308,
    -1e308,
    1e-320,
    0.5,
    -0.0,
    "",
    "x",
    "../x",
    "/etc/passwd",
    "a" * 300,
    "\x1b[2J",
    "float32",
    "O",
    "<U4",
    [],
    {},
    [1],
    [0, 0],
    [2**40, 2**40],
    [[[[[]]]]],
    {"kind": "uniform", "n_classes": 10**12},
    ["fraction", "1e9999999"],
)
DTYPES = (
    "bool",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
)
ODD_NUMBERS = (0, 1, -1, 2, 31, 32, 127, -128, 255, 2**15, 2**31 - 1, -(2**31), 2**62, -(2**63))
ODD_FLOATS = (0.0, -1.0, 1e30, -1e30, 1e38, np.inf, -np.inf, np.nan, 1e-40)
LABELS = (
    b'[["fraction","1e9999999"]]',
    b'[["decimal","1e99999999999999999999"]]',
    b'[["numpy","O","00"]]',
    b'[["numpy","<U1","ffffffff"]]',
    b'[["tuple",["tuple"]],["x"]]',
    b"[" * 3000 + b"]" * 3000,
    b"{}",
    b"[1",
    b'[["float","0x1p99999999999999"]]',
    b'[["bytes","zz"]]',
    b'[["uuid","1"]]',
    b"[" + b"9" * 5000 + b"]",
    b'[["numpy","M8[s]","00"]]',
    b"[1,2,3,4,5,6]",
    b'["a","a","a","a","a","a"]',
)


def run_model_case(seed: int, bases: dict[str, Base], folder: Path) -> str:
    """Make the folder of a seed, open it and ask it; return what became of it."""
    rng = random.Random(seed)
    base = bases[rng.choice(sorted(bases))]
    path = folder / "model"
    damaged = rng.random() < 0.25
    for entry in path.iterdir() if path.exists() else ():
        entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    path.mkdir(exist_ok=True)
    (damage if damaged else craft)(rng, base, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_and_ask(rng, base, path, damaged)


def open_and_ask(rng: random.Random, base: Base, path: Path, damaged: bool) -> str:
    """Open a folder and predict; raise unless the answers are right or it is refused in a sentence."""
    try:
        model = load_model(path, verify=rng.random() < 0.2)
    except Exception as error:
        if is_sentence(error):
            return REJECTED
        raise
    try:
        log_prob = model.predict_log_proba(base.query)
        if damaged:
            require(np.array_equal(log_prob, base.expected), "a damaged model answers otherwise")
        best = model.predict(base.query)
        labels, top = model.predict_topk(base.query, k=min(2, len(model.classes_)))
        beam, _ = model.predict_topk(base.query, k=1, search="beam", beam_width=2)
    except Exception as error:
        if is_sentence(error) and not damaged:
            return REJECTED
        raise
    check_answers(model, base, log_prob, best, labels, top, beam)
    if not damaged and rng.random() < 0.2:
        ask_more(rng, model, base)
    if rng.random() < 0.1 and base.labels is not None:
        train_on(model, base)
    return PASSED


def ask_more(rng: random.Random, model: Any, base: Base) -> None:
    """Explain an answer and a class, or take classes away: what reads class texts, names and weights."""
    try:
        if rng.random() < 0.5:
            model.explain(base.query[0] if isinstance(base.query, list) else base.query[:1])
            model.explain_label(model.classes_[-1])
        elif len(model.classes_) > 2:
            model.remove_classes([model.classes_[0]]).predict(base.query)
    except Exception as error:
        if not is_sentence(error):
            raise


def train_on(model: Any, base: Base) -> None:
    """Train a model that was opened for one more epoch: its training state must hold, too."""
    from fuzz.bases import TEXT_LABELS, TEXTS, rows

    X, y = rows()
    if isinstance(base.query, list):
        inputs: Any = list(TEXTS)
        y = np.array([TEXT_LABELS.index(label) for label in TEXT_LABELS]) // 2
    else:
        inputs = sparse.csr_matrix(X) if sparse.issparse(base.query) else X
    labels = [model.classes_[i % len(model.classes_)] for i in y.tolist()]
    try:
        model.partial_fit(inputs, labels)
        model.predict(base.query)
    except Exception as error:
        if not is_sentence(error):
            raise


# -- answers


def check_answers(model: Any, base: Base, log_prob: Any, best: Any, labels: Any, top: Any, beam: Any) -> None:
    """Compare all answers of a model with a slow computation from its arrays."""
    classes = list(model.classes_)
    n = len(log_prob)
    require(log_prob.shape == (n, len(classes)), "log-probabilities of another shape")
    known = set(map(repr, classes))
    require(
        all(repr(x) in known for x in [*best, *labels.ravel(), *beam.ravel()]), "a label that is no class"
    )
    texts = hasattr(model, "classifier_")
    X = model.transform(base.query) if texts else base.query
    expected = reference((model.classifier_ if texts else model).model_, X)
    if expected is None:
        return
    known_rows = np.ones(n, bool) if not texts else model.is_known(base.query)
    error = np.abs(log_prob - expected)[known_rows]
    require(bool((error <= 1e-3 * (1.0 + np.abs(expected[known_rows]))).all()), "log-probabilities are wrong")
    place = {repr(label): i for i, label in reversed(list(enumerate(classes)))}
    if len(place) == len(classes):
        chosen = np.array([place[repr(label)] for label in best])
        loss = expected.max(axis=1) - expected[np.arange(n), chosen]
        require(bool((loss[known_rows] <= 1e-2).all()), "the best class is not the best")


def reference(model: Any, X: Any) -> NDArray[np.float64] | None:
    """Return log p(y|x) from the arrays of a model; None where float32 cannot hold what it takes."""
    dense = np.asarray(X.toarray() if sparse.issparse(X) else X, np.float64)
    weights = model.weights
    with np.errstate(all="ignore"):
        if isinstance(weights, SparseWeights):
            scores = dense @ np.asarray(weights.to_matrix().toarray(), np.float64).T
            scores += dense.sum(axis=1, keepdims=True) * weights.length_biases
            if weights.dense is not None:
                return None
        else:
            scores = weights.feature_scale * (dense @ weights.weights.astype(np.float64).T)
        largest = np.abs(scores).max(initial=0.0)
        scores = scores + weights.biases
        if model.noise is not None and SOLVERS[model.solver].adds_log_noise:
            Z = None
            if model.projection is not None:
                pca = model.projection
                Z = (dense - pca.mean) @ pca.components.astype(np.float64).T
            noise = log_noise(model.noise, Z, len(dense))
            if noise is None:
                return None
            scores = scores + noise
        scores = scores / model.calibration.temperature
        if not np.isfinite(scores).all() or max(largest, np.abs(scores).max()) > 1e3:
            return None
        scores -= scores.max(axis=1, keepdims=True)
        if model.calibration.temperature_slope != 0.0:  # the temperature depends on the highest probability
            highest = 1.0 / np.exp(scores).sum(axis=1, keepdims=True)
            scores /= (highest + CONFIDENCE_OFFSET) ** model.calibration.temperature_slope
        prob = np.exp(scores)
        prob /= prob.sum(axis=1, keepdims=True)
        mix = model.calibration.uniform_mix
        if mix == 0.0:
            return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return np.asarray(np.log((1.0 - mix) * prob + mix / prob.shape[1]))


def log_noise(noise: Any, Z: Any, n: int) -> NDArray[np.float64] | None:
    """Return log p_n of all classes, written out."""
    if isinstance(noise, UniformNoise):
        return np.full((n, noise.n_classes), -np.log(noise.n_classes))
    if isinstance(noise, FrequencyNoise):
        return np.tile(noise.log_prob_.astype(np.float64), (n, 1))
    if isinstance(noise, MixtureNoise):
        first, second = log_noise(noise.first, Z, n), log_noise(noise.second, Z, n)
        if first is None or second is None:
            return None
        return np.logaddexp(first + np.log(noise.weight), second + np.log1p(-noise.weight))
    if not isinstance(noise, TreeNoise) or Z is None:
        return None
    tree = noise.tree
    out = np.zeros((n, tree.n_classes))
    for leaf, label in enumerate(tree.leaf_class):
        node = len(tree.leaf_class) - 1 + leaf
        while node > 0 and label >= 0:
            parent, right = (node - 1) // 2, node % 2 == 0
            logit = Z @ tree.weights[parent].astype(np.float64) + tree.biases[parent]
            out[:, label] -= np.logaddexp(0.0, -logit if right else logit)
            node = parent
    return out if np.isfinite(out).all() else None


# -- folders


def damage(rng: random.Random, base: Base, path: Path) -> None:
    """Write a model with some of its bytes changed, cut off, or files exchanged."""
    files = dict(base.files)
    name = rng.choice(sorted(files))
    kind = rng.randrange(6)
    if kind == 0:
        files.pop(name)
    elif kind == 1:
        files[name] = files[name][: rng.randrange(len(files[name]))]
    elif kind == 2:
        files[name] = files[rng.choice(sorted(files))]
    else:
        data = bytearray(files[name])
        for _ in range(rng.choice((1, 1, 1, 4, 40))):
            place = rng.randrange(len(data))
            data[place] = data[place] ^ (1 << rng.randrange(8)) if kind < 5 else rng.randrange(256)
        files[name] = bytes(data)
    for file, data in files.items():
        (path / file).write_bytes(data)


def craft(rng: random.Random, base: Base, path: Path) -> None:
    """Write a model with header, arrays or labels changed, and checksums that are right for them."""
    content: dict[str, Any] = json.loads(base.files["header.json"])
    arrays = {name: read_array(base.files[f"{name}.safetensors"]) for name in content["arrays"]}
    changed: set[str] = set()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.40:
            change_json(rng, content.get("header", {}))  # an earlier change may have removed it
        elif kind < 0.45:
            change_json(rng, content)
        elif kind < 0.55:
            change_labels(rng, content, arrays, changed)
        else:
            change_array(rng, arrays, changed)
    entries = content.get("arrays")
    if isinstance(entries, dict):
        for name in [name for name in entries if name not in arrays and name in base.content["arrays"]]:
            del entries[name]
        for name in changed & set(arrays):
            entries[name], data = write_array(name, arrays[name])
            (path / f"{name}.safetensors").write_bytes(data)
        if rng.random() < 0.05 and entries:
            name = rng.choice(sorted(map(str, entries)))
            entries[rng.choice(("../x", "/dev/zero", "a/b", "..", "x" * 300, "a\0b"))] = entries.pop(name)
    for name, data in base.files.items():
        if name != "header.json" and not (path / name).exists():
            (path / name).write_bytes(data)
    if rng.random() < 0.03:
        odd_file(rng, path)
    content.pop("checksum", None)
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        text = "{}"
    document = json.dumps({"checksum": sha256(text.encode()).hexdigest(), **json.loads(text)})
    (path / "header.json").write_bytes(document.encode())


def odd_file(rng: random.Random, path: Path) -> None:
    """Put something that is no file in the place of an array."""
    victim = rng.choice(sorted(path.iterdir()))
    victim.unlink()
    kind = rng.randrange(4)
    if kind == 0:
        victim.symlink_to("/dev/zero")
    elif kind == 1:
        os.mkfifo(victim)
    elif kind == 2:
        victim.mkdir()
    else:
        victim.symlink_to(victim)


def read_array(data: bytes) -> NDArray[Any]:
    """Return the array of a file of the folder."""
    return next(iter(load(data).values())).copy()


def write_array(name: str, array: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the entry of an array in the header, and the bytes of its file."""
    data = array.tobytes()
    sums = "".join(f"{zlib.crc32(data[i : i + (1 << 18)]):08x}" for i in range(0, len(data), 1 << 18))
    entry = {"dtype": array.dtype.name, "shape": list(array.shape), "checksums": sums}
    return entry, save({name: np.ascontiguousarray(array).reshape(array.shape)})


def _odd(rng: random.Random) -> Any:
    """Return a copy of an odd value: later changes of it must not reach other cases."""
    return copy.deepcopy(rng.choice(ODD))


def change_json(rng: random.Random, tree: dict[str, Any]) -> None:
    """Change, remove, add or exchange an entry somewhere in a tree of mappings and lists."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in list(items):
            places.append((node, key))
            collect(value)

    collect(tree)
    if not places:
        return
    node, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.7:
        node[key] = _odd(rng)
    elif kind < 0.8:
        del node[key]
    elif kind < 0.9:
        other, other_key = rng.choice(places)
        try:
            node[key] = json.loads(json.dumps(other[other_key]))
        except (KeyError, IndexError, ValueError):
            return
    elif isinstance(node, dict):
        node[rng.choice(("kind", "n_classes", "x", "search_x", "whitening"))] = _odd(rng)
    else:
        node.append(_odd(rng))


def change_labels(
    rng: random.Random, content: dict[str, Any], arrays: dict[str, NDArray[Any]], changed: set[str]
) -> None:
    """Give the labels another coding, or other bytes."""
    if "labels" not in arrays or not isinstance(content.get("labels"), dict):
        return
    kind = rng.randrange(4)
    if kind == 0:
        content["labels"] = {"coding": "json"}
        arrays["labels"] = np.frombuffer(rng.choice(LABELS), np.uint8)
        changed.add("labels")
    elif kind == 1:
        content["labels"]["dtype"] = rng.choice(
            ("O", "<U3", "<M8[s]", "V8", "<f8", "S4", "<i8,O", "U", "<U99999999", 3)
        )
    elif kind == 2:
        content["labels"]["coding"] = rng.choice(("numbers", "characters", "text", "json", "pickle", None))
    else:
        change_array(
            rng, arrays, changed, rng.choice([n for n in ("labels", "label_offsets") if n in arrays])
        )


def change_array(
    rng: random.Random, arrays: dict[str, NDArray[Any]], changed: set[str], name: str | None = None
) -> None:
    """Change the numbers, the type or the shape of an array, or remove or rename it."""
    if not arrays:
        return
    name = name or rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.random()
    changed.add(name)
    if kind < 0.6 and array.size:
        flat = array.reshape(-1).copy()
        for _ in range(rng.choice((1, 1, 2, 5, flat.size))):
            place = rng.randrange(flat.size)
            values: Any = ODD_FLOATS if flat.dtype.kind == "f" else ODD_NUMBERS
            with np.errstate(all="ignore"):
                odd = np.array(rng.choice(values)).astype(flat.dtype)
            flat[place] = odd if rng.random() < 0.8 else flat[rng.randrange(flat.size)]
        arrays[name] = flat.reshape(array.shape)
    elif kind < 0.68:
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(rng.choice(DTYPES))
    elif kind < 0.76:
        shape = list(array.shape) or [1]
        axis = rng.randrange(len(shape))
        shape[axis] = max(0, shape[axis] + rng.choice((-1, 1, 2, -shape[axis], 32)))
        arrays[name] = np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)
    elif kind < 0.82:
        arrays[name] = rng.choice((array.T.copy(), array[None], array.reshape(-1)))
    elif kind < 0.88:
        del arrays[name]
    elif kind < 0.94:
        other = rng.choice(sorted(arrays))
        arrays[name], arrays[other] = arrays[other], arrays[name]
        changed.add(other)
    else:
        flat = array.reshape(-1).copy()
        np.random.default_rng(rng.randrange(2**32)).shuffle(flat)
        arrays[name] = flat.reshape(array.shape)
