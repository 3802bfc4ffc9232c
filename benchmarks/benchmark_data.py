"""The data sets of the benchmarks: dense float32 features and integer class ids, built once and cached.

    python benchmarks/benchmark_data.py                  # what there is, and what is cached
    python benchmarks/benchmark_data.py eurlex57k ...    # build these and print their sizes

Text files are read from the folder that EXTREMAX_DATA names, or ../shared/data beside the project.
Features are kept under EXTREMAX_CACHE, or ~/.cache/extremax-bench.

eurlex57k        TF-IDF (sublinear, fitted on train), truncated SVD to 512; class = the rarest label of the
                 row by training count, ties by smaller id.  The complete label sets are in `labels_train`
                 and so on.
bibtex           the same with 256; a tenth of the training rows is the validation set, as there is none.
npm-owner-124k   hashed character 2-5-grams within word boundaries (2**18 columns), TF-IDF (sublinear, fitted
npm-owner-282k   on train), truncated SVD to 256 fitted on 150,000 training rows, rows scaled to unit length;
                 class = owner.
icd10cm          from the package simple-icd-10-cm: each description, inclusion term and "includes" note of a
                 code (without the seventh-character extensions) is a text; its class is the parent code, or
                 for a three-character category the category itself.  Repeated (text, class) pairs count
                 once.  80/10/10 random split, seed 0.  Word 1-2-grams and character 2-5-grams within word
                 boundaries, TF-IDF (sublinear, fitted on train, features of at least two rows), truncated
                 SVD to 512, rows scaled to unit length.
planted          made up, for ``--tiny``: 60 classes, 16 features, two labels in some rows; never cached.
planted-many     the same with 2,100 classes: enough for the index of beam search.

Rows of validation and test whose class never occurs in train are left out and counted.

Texts themselves, for sparse features (`load_texts`), are read anew each time:

icd10cm, npm-owner-124k, npm-owner-282k      as above.
eurlex57k, eurlex57k-all, bibtex             no texts but word counts; the rarest label, or all labels.
debian-section, debian-maintainer,           short descriptions of Debian's packages, from the file that
debian-debtags                               EXTREMAX_DEBIAN names (``apt-cache dumpavail > FILE``), or from
                                             that command.  A description counts once (the first package that
                                             has it), so that none is in two parts; 40,000 random rows (seed
                                             0) are for training, half of the rest each for validation and
                                             test.  For debtags those of them that have tags.
yso-finna, yso-finna-300k, -100k, -30k,      titles of a library's catalogue and their subjects, several each;
-10k                                         all training rows, or so many at random (seed 0).
polish-nouns, german, turkish                word form -> lemma, from the package spacy-lookups-data (or its
                                             folder in EXTREMAX_LOOKUPS), 90/5/5 at random, seed 0.
planted-texts                                made up, for ``--tiny``.
"""

from __future__ import annotations

import importlib.util
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import MultiLabelBinarizer

from extremax.data import has_label, load_dataset, planted_hierarchy, rarest_label
from extremax.data.icd10cm import load_icd10cm
from extremax.experiments import lemmas
from extremax.experiments.lemmas import load_lemmas

PROJECT = Path(__file__).resolve().parent.parent
VERSION = 1  # raise it when the construction of any set changes: old caches are then ignored
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class BenchmarkData:
    """Dense features and class ids 0 .. n_classes - 1; every class has a training row."""

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_valid: np.ndarray
    y_valid: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int
    class_names: list[str] = field(repr=False)
    n_dropped: dict[str, int] = field(default_factory=dict)
    labels_train: sp.csr_matrix | None = field(default=None, repr=False)
    labels_valid: sp.csr_matrix | None = field(default=None, repr=False)
    labels_test: sp.csr_matrix | None = field(default=None, repr=False)


def load_available(names: Iterable[str]) -> Iterator[BenchmarkData]:
    """Load one set after the other; of one that cannot be loaded here, print what is missing."""
    for name in names:
        missing = available(name)
        if missing:
            print(f"left out: {missing}", flush=True)
        else:
            yield load(name)


def load(name: str, *, mmap: bool = False) -> BenchmarkData:
    """Load a set, building it the first time; `mmap` leaves the features on disk."""
    if name in PLANTED:
        return _plant(name, *PLANTED[name])
    if name not in BUILDERS:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(BUILDERS)}.")
    folder = cache_folder() / f"{name}-v{VERSION}"
    if not (folder / "about.json").exists():
        parts = BUILDERS[name]()
        _store(folder, parts)
    about = json.loads((folder / "about.json").read_text())
    arrays: dict[str, Any] = {}
    for split in SPLITS:
        arrays[f"X_{split}"] = np.load(folder / f"X_{split}.npy", mmap_mode="r" if mmap else None)
        arrays[f"y_{split}"] = np.load(folder / f"y_{split}.npy")
        if (folder / f"labels_{split}.npz").exists():
            arrays[f"labels_{split}"] = sp.load_npz(folder / f"labels_{split}.npz").tocsr()
    names = about["class_names"]
    return BenchmarkData(
        name=name, n_classes=len(names), class_names=names, n_dropped=about["n_dropped"], **arrays
    )


def available(name: str) -> str:
    """Return "" if the set can be loaded here, else a sentence on what is missing and how to get it."""
    if name in PLANTED:
        return ""
    if (cache_folder() / f"{name}-v{VERSION}" / "about.json").exists():
        return ""
    if name == "icd10cm":
        try:
            import simple_icd_10_cm  # noqa: F401
        except ImportError:
            return "icd10cm needs the package simple-icd-10-cm: pip install simple-icd-10-cm."
        return ""
    path = data_folder() / ("npm-owner" if name.startswith("npm-owner") else name)
    return (
        ""
        if path.is_dir()
        else f"{name} needs the folder {path}; set EXTREMAX_DATA to the folder that holds {path.name}/."
    )


def data_folder() -> Path:
    return Path(os.environ.get("EXTREMAX_DATA", PROJECT.parent / "shared" / "data"))


def cache_folder() -> Path:
    return Path(os.environ.get("EXTREMAX_CACHE", Path.home() / ".cache" / "extremax-bench"))


# -- made-up sets


def _plant(name: str, n_rows: int, n_classes: int, n_features: int) -> BenchmarkData:
    """Return a planted hierarchy; every third row has a second label, the next class."""
    data = planted_hierarchy(n_rows, n_classes, n_features, seed=0, n_test=n_rows // 4)
    half = len(data.y_test) // 2
    splits = {
        "train": (data.X, data.y),
        "valid": (data.X_test[:half], data.y_test[:half]),
        "test": (data.X_test[half:], data.y_test[half:]),
    }
    known = np.unique(data.y)
    parts: dict[str, Any] = {}
    for split, (X, y) in splits.items():
        seen = np.isin(y, known)
        ids = np.searchsorted(known, y[seen]).astype(np.int32)
        labels = sp.lil_matrix((len(ids), len(known)), dtype=np.float32)
        labels[np.arange(len(ids)), ids] = 1
        labels[np.arange(0, len(ids), 3), (ids[::3] + 1) % len(known)] = 1
        parts |= {f"X_{split}": X[seen], f"y_{split}": ids, f"labels_{split}": labels.tocsr()}
    return BenchmarkData(name, n_classes=len(known), class_names=[str(c) for c in known], **parts)


# -- putting a set together


def _assemble(
    features: dict[str, np.ndarray], classes: dict[str, np.ndarray], labels: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Number the classes of train, and leave out rows of other classes from the rest."""
    names, y_train = np.unique(classes["train"], return_inverse=True)
    parts: dict[str, Any] = {"class_names": [str(c) for c in names], "n_dropped": {}}
    for split in SPLITS:
        place = np.searchsorted(names, classes[split]).clip(max=len(names) - 1)
        known = names[place] == classes[split]
        parts["n_dropped"][split] = int((~known).sum())
        parts[f"X_{split}"] = np.ascontiguousarray(features[split][known], dtype=np.float32)
        parts[f"y_{split}"] = place[known].astype(np.int32)
        if labels is not None:
            parts[f"labels_{split}"] = labels[split][known]
    np.testing.assert_array_equal(parts["y_train"], y_train)
    return parts


def _store(folder: Path, parts: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent))
    for key, value in parts.items():
        if isinstance(value, np.ndarray):
            np.save(work / f"{key}.npy", value)
        elif sp.issparse(value):
            sp.save_npz(work / f"{key}.npz", value)
    (work / "about.json").write_text(json.dumps({key: parts[key] for key in ("class_names", "n_dropped")}))
    shutil.rmtree(folder, ignore_errors=True)
    work.rename(folder)


def _truncated_svd(X: sp.csr_matrix, n_components: int) -> np.ndarray:
    """Right singular vectors (n_features, n_components) of a sparse float32 matrix."""
    from sklearn.utils.extmath import randomized_svd

    _, _, components = randomized_svd(
        X, n_components, n_iter=5, power_iteration_normalizer="LU", random_state=0
    )
    return np.ascontiguousarray(components.T, dtype=np.float32)


def _project(X: sp.csr_matrix, basis: np.ndarray, *, unit: bool) -> np.ndarray:
    Z = np.empty((X.shape[0], basis.shape[1]), dtype=np.float32)
    for start in range(0, len(Z), 50_000):
        block = X[start : start + 50_000] @ basis
        if unit:
            norm = np.linalg.norm(block, axis=1, keepdims=True)
            block /= np.where(norm > 0, norm, 1)
        Z[start : start + 50_000] = block
    return Z


# -- XMC repository text


def _read_xmc(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return counts and labels of rows that have any label; validation rows from train if there are none."""
    X, Y = {}, {}
    for split, file in XMC_FILES[name].items():
        data = load_dataset(data_folder() / name / file)
        X[split], Y[split] = data.X, data.y
    if "valid" not in X:
        order = np.random.default_rng(0).permutation(X["train"].shape[0])
        cut = len(order) // 10
        for split, rows in (("valid", np.sort(order[:cut])), ("train", np.sort(order[cut:]))):
            X[split], Y[split] = X["train"][rows], Y["train"][rows]
    for split in SPLITS:  # rows without any label have nothing to predict
        keep = has_label(Y[split])
        X[split], Y[split] = X[split][keep], Y[split][keep]
    return X, Y


def _build_xmc(name: str, n_components: int) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfTransformer

    X, Y = _read_xmc(name)
    counts = np.asarray(Y["train"].sum(axis=0)).ravel()
    classes = {split: rarest_label(Y[split], counts) for split in SPLITS}
    tfidf = TfidfTransformer(sublinear_tf=True).fit(X["train"])
    weighted = {split: tfidf.transform(X[split]).astype(np.float32) for split in SPLITS}
    basis = _truncated_svd(weighted["train"], n_components)
    return _assemble({split: _project(weighted[split], basis, unit=False) for split in SPLITS}, classes, Y)


# -- texts


def _build_npm(name: str) -> dict[str, Any]:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    texts, owners = _read_npm(name)
    # Counts must stay positive for the logarithm of the sublinear weighting.
    hashing = HashingVectorizer(
        analyzer="char_wb",
        ngram_range=(2, 5),
        n_features=2**18,
        alternate_sign=False,
        norm=None,
        dtype=np.float32,
    )
    counts = {split: hashing.transform(texts[split]) for split in SPLITS}
    del texts
    tfidf = TfidfTransformer(sublinear_tf=True).fit(counts["train"])
    weighted = {split: tfidf.transform(counts.pop(split)).astype(np.float32) for split in SPLITS}
    n_train = weighted["train"].shape[0]
    rows = np.sort(np.random.default_rng(0).choice(n_train, min(150_000, n_train), replace=False))
    basis = _truncated_svd(weighted["train"][rows], 256)
    features = {split: _project(weighted.pop(split), basis, unit=True) for split in SPLITS}
    return _assemble(features, owners)


def _read_npm(name: str) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    owners: dict[str, list[int]] = {split: [] for split in SPLITS}
    with lzma.open(data_folder() / "npm-owner" / f"{name}.tsv.xz", "rt", encoding="utf-8") as file:
        for line in file:
            split, owner, text = line.rstrip("\n").split("\t")
            split = "valid" if split == "val" else split
            texts[split].append(text)
            owners[split].append(int(owner))
    return texts, {split: np.asarray(owners[split]) for split in SPLITS}


def _build_icd10cm() -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    data = load_icd10cm()
    texts, parents = np.asarray(data.texts), np.asarray(data.codes)
    rows = {split: getattr(data, split) for split in SPLITS}
    options: dict[str, Any] = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", **options).fit(
        texts[rows["train"]]
    )
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options).fit(texts[rows["train"]])
    weighted = {
        split: sp.hstack(
            [v.transform(texts[rows[split]]) for v in (words, characters)], format="csr", dtype=np.float32
        )
        for split in SPLITS
    }
    basis = _truncated_svd(weighted["train"], 512)
    features = {split: _project(weighted[split], basis, unit=True) for split in SPLITS}
    return _assemble(features, {split: parents[rows[split]] for split in SPLITS})


XMC_FILES = {
    "eurlex57k": {"train": "train.txt.xz", "valid": "dev.txt.xz", "test": "test.txt.xz"},
    "bibtex": {"train": "train.txt.xz", "test": "test.txt.xz"},
}
PLANTED = {"planted": (1200, 60, 16), "planted-many": (4200, 2100, 16)}  # rows, classes, features
BUILDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "eurlex57k": lambda: _build_xmc("eurlex57k", 512),
    "bibtex": lambda: _build_xmc("bibtex", 256),
    "npm-owner-124k": lambda: _build_npm("npm-owner-124k"),
    "npm-owner-282k": lambda: _build_npm("npm-owner-282k"),
    "icd10cm": _build_icd10cm,
}


# -- texts themselves


@dataclass(frozen=True)
class TextData:
    """Texts or word counts by split, and class ids 0 .. n_classes - 1, or with several labels indicators."""

    name: str
    y: dict[str, Any] = field(repr=False)
    class_names: list[str] = field(repr=False)
    texts: dict[str, list[str]] | None = field(default=None, repr=False)
    counts: dict[str, sp.csr_matrix] | None = field(default=None, repr=False)
    n_dropped: dict[str, int] = field(default_factory=dict)

    @property
    def n_classes(self) -> int:
        return len(self.class_names)

    @property
    def multilabel(self) -> bool:
        return sp.issparse(self.y["train"])

    def n_rows(self, split: str) -> int:
        return int(self.y[split].shape[0])

    def take(self, rows: dict[str, np.ndarray]) -> TextData:
        """Return some rows of each split; the classes stay those of all."""
        texts = None if self.texts is None else {s: [self.texts[s][i] for i in rows[s]] for s in SPLITS}
        counts = None if self.counts is None else {s: self.counts[s][rows[s]] for s in SPLITS}
        y = {split: self.y[split][rows[split]] for split in SPLITS}
        return TextData(self.name, y, self.class_names, texts, counts, self.n_dropped)


def load_texts(name: str) -> TextData:
    """Read a set of texts."""
    if name not in TEXT_BUILDERS:
        raise ValueError(f"unknown set of texts {name!r}; there are {', '.join(TEXT_BUILDERS)}.")
    return TEXT_BUILDERS[name](name)


def texts_available(name: str) -> str:
    """Return "" if the set of texts can be read here, else what is missing and how to get it."""
    if name == "planted-texts":
        return ""
    if name.startswith("debian"):
        if debian_file() is not None or shutil.which("apt-cache"):
            return ""
        return f"{name} needs the output of apt-cache dumpavail: set EXTREMAX_DEBIAN to a file that holds it."
    if name in lemmas.TABLES:
        try:
            return "" if lemmas.lemma_file(name).exists() else f"{name} needs {lemmas.lemma_file(name)}."
        except (ImportError, FileNotFoundError) as error:
            return str(error)
    if name == "icd10cm":
        found = importlib.util.find_spec("simple_icd_10_cm") is not None
        return "" if found else "icd10cm needs the package simple-icd-10-cm: pip install simple-icd-10-cm."
    folder = name.removesuffix("-all")
    family = next((f for f in ("npm-owner", "yso-finna") if folder.startswith(f)), folder)
    path = data_folder() / family
    return "" if path.is_dir() else f"{name} needs the folder {path}; set EXTREMAX_DATA to what holds it."


def _text_classes(
    name: str, texts: dict[str, list[str]] | None, classes: dict[str, np.ndarray], counts: Any = None
) -> TextData:
    """Number the classes of train, and leave out rows of other classes from the rest."""
    names = np.unique(classes["train"])
    dropped, rows, y = {}, {}, {}
    for split in SPLITS:
        place = np.searchsorted(names, classes[split]).clip(max=len(names) - 1)
        known = names[place] == classes[split]
        dropped[split], rows[split] = int((~known).sum()), np.flatnonzero(known)
        y[split] = place.astype(np.int32)
    return TextData(name, y, [str(c) for c in names], texts, counts, dropped).take(rows)


def _text_labels(
    name: str, texts: dict[str, list[str]] | None, Y: dict[str, Any], names: list[str], counts: Any = None
) -> TextData:
    """Keep the labels that train has, and the rows that have one of them."""
    known = np.flatnonzero(np.asarray(Y["train"].sum(axis=0)).ravel() > 0)
    kept = {split: sp.csr_matrix(Y[split])[:, known].astype(np.float32) for split in SPLITS}
    rows = {split: np.flatnonzero(np.diff(kept[split].indptr) > 0) for split in SPLITS}
    dropped = {split: kept[split].shape[0] - len(rows[split]) for split in SPLITS}
    return TextData(name, kept, [names[i] for i in known], texts, counts, dropped).take(rows)


def _text_label_lists(name: str, texts: dict[str, list[str]], labels: dict[str, list[list[str]]]) -> TextData:
    """Number the labels; the rest is that of `_text_labels`."""
    binarizer = MultiLabelBinarizer(sparse_output=True)
    binarizer.fit([row for split in SPLITS for row in labels[split]])
    Y = {split: binarizer.transform(labels[split]) for split in SPLITS}
    return _text_labels(name, texts, Y, binarizer.classes_.tolist())


def _npm_texts(name: str) -> TextData:
    return _text_classes(name, *_read_npm(name))


def _icd10cm_texts(name: str) -> TextData:
    data = load_icd10cm()
    parts = {split: data.rows(getattr(data, split)) for split in SPLITS}
    return _text_classes(name, {s: parts[s][0] for s in SPLITS}, {s: np.asarray(parts[s][1]) for s in SPLITS})


def _xmc_texts(name: str) -> TextData:
    X, Y = _read_xmc(name.removesuffix("-all"))
    if name == "eurlex57k":
        totals = np.asarray(Y["train"].sum(axis=0)).ravel()
        return _text_classes(name, None, {split: rarest_label(Y[split], totals) for split in SPLITS}, X)
    return _text_labels(name, None, Y, [str(label) for label in range(Y["train"].shape[1])], X)


def debian_file() -> Path | None:
    path = os.environ.get("EXTREMAX_DEBIAN")
    return Path(path) if path else None


def debian_packages() -> list[dict[str, str]]:
    """Return the fields of one package per description."""
    path = debian_file()
    if path is None:
        command = ["apt-cache", "dumpavail"]
        content = subprocess.run(command, capture_output=True, check=True).stdout.decode(errors="replace")
    else:
        content = path.read_text(encoding="utf-8")
    packages: dict[str, dict[str, str]] = {}
    for paragraph in content.split("\n\n"):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith(" "):
                fields[key] += line
            else:
                key, _, value = line.partition(":")
                fields[key] = value.strip()
        if fields.get("Description"):
            packages.setdefault(fields["Description"], fields)
    return list(packages.values())


def _debian_texts(name: str) -> TextData:
    packages = debian_packages()
    order = np.random.default_rng(0).permutation(len(packages))
    half = (40_000 + len(order)) // 2
    parts = dict(zip(SPLITS, np.split(order, [40_000, half]), strict=True))
    rows = {split: [packages[i] for i in parts[split]] for split in SPLITS}
    if name == "debian-debtags":
        rows = {split: [fields for fields in rows[split] if fields.get("Tag")] for split in SPLITS}
    texts = {split: [fields["Description"] for fields in rows[split]] for split in SPLITS}
    if name != "debian-debtags":
        key = name.removeprefix("debian-").capitalize()
        return _text_classes(name, texts, {s: np.array([p.get(key, "") for p in rows[s]]) for s in SPLITS})
    tags = {s: [[t.strip() for t in p["Tag"].split(",") if t.strip()] for p in rows[s]] for s in SPLITS}
    return _text_label_lists(name, texts, tags)


def _yso_texts(name: str) -> TextData:
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    subjects: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
    with lzma.open(data_folder() / "yso-finna" / "yso-finna-en.tsv.xz", "rt", encoding="utf-8") as file:
        for line in file:
            split, labels, text = line.rstrip("\n").split("\t")
            texts[split].append(text)
            subjects[split].append(labels.split())
    if name in YSO_ROWS:
        rows = np.random.default_rng(0).permutation(len(texts["train"]))[: YSO_ROWS[name]]
        texts["train"] = [texts["train"][i] for i in rows]
        subjects["train"] = [subjects["train"][i] for i in rows]
    return _text_label_lists(name, texts, subjects)


def _lemma_texts(name: str) -> TextData:
    parts = load_lemmas(name)
    return _text_classes(name, {s: parts[s][0] for s in SPLITS}, {s: parts[s][1] for s in SPLITS})


def _planted_texts(name: str) -> TextData:
    """Return names of made-up things: two words of the class and one of all, 40 classes."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(4, 9))) for _ in range(300)]
    own = rng.integers(0, len(words), (40, 4))
    y = rng.integers(0, 40, 900)
    texts = []
    for label in y:
        first, second = rng.choice(own[label], 2, replace=False)
        texts.append(f"{words[first]} {words[rng.integers(300)]}-{words[second]}")
    rows = dict(zip(SPLITS, np.split(np.arange(900), [600, 750]), strict=True))
    listed = {split: [texts[i] for i in rows[split]] for split in SPLITS}
    return _text_classes(name, listed, {split: y[rows[split]] for split in SPLITS})


YSO_ROWS = {f"yso-finna-{n}k": 1000 * n for n in (10, 30, 100, 300)}
TEXT_BUILDERS: dict[str, Callable[[str], TextData]] = {
    "icd10cm": _icd10cm_texts,
    "npm-owner-124k": _npm_texts,
    "eurlex57k": _xmc_texts,
    "eurlex57k-all": _xmc_texts,
    "bibtex": _xmc_texts,
    "debian-section": _debian_texts,
    "debian-maintainer": _debian_texts,
    "debian-debtags": _debian_texts,
    **dict.fromkeys((*YSO_ROWS, "yso-finna"), _yso_texts),
    "polish-nouns": _lemma_texts,
    "german": _lemma_texts,
    "turkish": _lemma_texts,
    "npm-owner-282k": _npm_texts,
    "planted-texts": _planted_texts,
}


def main(names: list[str]) -> None:
    """Print which sets there are, or build some."""
    if not names:
        for name in BUILDERS:
            cached = (cache_folder() / f"{name}-v{VERSION}" / "about.json").exists()
            print(f"{name:16s} {'cached' if cached else available(name) or 'can be built'}")
    for name in names:
        started = time.perf_counter()
        data = load(name)
        sizes = " / ".join(f"{len(getattr(data, f'y_{split}')):,}" for split in SPLITS)
        print(
            f"{name:16s} rows {sizes}, {data.X_train.shape[1]} features, {data.n_classes:,} classes, "
            f"left out {data.n_dropped}, {time.perf_counter() - started:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
