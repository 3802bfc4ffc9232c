"""The rows of a recipe: features and class ids by split, with a cache of computed features.

Features depend on the recipe and on the files alone, so they are computed once and kept in a folder:
``EXTREMAX_CACHE``, or ``~/.cache/extremax``. The cache may be deleted at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from extremax.data.dataset import Dataset
from extremax.data.readers import load_dataset
from extremax.errors import ModelFileError
from extremax.examples import Examples
from extremax.experiments import catalog
from extremax.experiments.recipe import DataConfig, FeaturesConfig, Recipe
from extremax.features.pca import PCA
from extremax.features.svd import truncated_svd
from extremax.features.text import FORMAT_VERSION as TEXT_VERSION
from extremax.features.text import TextFeatures, TextOptions
from extremax.runtime.memory import format_bytes
from extremax.runtime.products import sparse_times_dense
from extremax.runtime.threads import resolve_threads
from extremax.splits import split_rows
from extremax.storage.folder import load_folder, save_folder
from extremax.types import Bool, Int32, Int64
from extremax.validation.features import check_features
from extremax.validation.labels import LabelIndex, encode_labels

Log = Callable[[str], None]
SPLITS = ("train", "valid", "test")
_KIND = "experiment rows"
_VERSION = 1  # to be raised when features are computed differently: older caches are then not found


@dataclass(frozen=True)
class Rows:
    """Features and class ids of training, validation and test rows; every class has a training row.

    Attributes
    ----------
    name
        Name of the data set.
    X, y
        Features and class ids by split.
    classes
        Label of each class id.
    n_left_out
        By split, the number of rows whose class has no training row.
    text_features
        Transformer of the texts, if the rows are texts.
    """

    name: str
    X: dict[str, Any] = field(repr=False)
    y: dict[str, Int32] = field(repr=False)
    classes: NDArray[Any] = field(repr=False)
    n_left_out: dict[str, int]
    text_features: TextFeatures | None = field(default=None, repr=False)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def sizes(self) -> dict[str, Any]:
        """Return the numbers for the summary of a run."""
        sizes = {f"n_{split}": len(self.y[split]) for split in SPLITS}
        return {
            **sizes,
            "n_features": int(self.X["train"].shape[1]),
            "n_classes": self.n_classes,
            "n_left_out": self.n_left_out,
        }

    def sample(self, split: str, at_most: int, seed: int) -> Examples:
        """Return all rows of a split, or a random sample if there are more than `at_most`."""
        X, y = self.X[split], self.y[split]
        if len(y) <= at_most:
            return Examples(X, y)
        chosen = np.sort(np.random.default_rng(seed).choice(len(y), at_most, replace=False))
        return Examples(X[chosen], y[chosen])


def load_rows(
    recipe: Recipe, *, n_jobs: int | None = None, log: Log = lambda text: None, cache: Path | None = None
) -> Rows:
    """Return the rows of a recipe, from the cache if they are there.

    `cache` is a folder other than `cache_folder()`.
    """
    title = recipe.data.name or Path(recipe.data.path or "").name
    kept = (cache or cache_folder()) / f"{''.join(c if c.isalnum() else '-' for c in title)}-{_key(recipe)}"
    try:
        return _read(kept, title)
    except FileNotFoundError:
        pass
    except ModelFileError as error:
        log(f"the cache is written again: {error}")
    log(f"reading {title}")
    parts = _load(recipe.data)
    for split, part in parts.items():
        if part.n_samples == 0:
            raise ValueError(f"{title} has no {split} rows; give it some in the recipe's [data].")
    classes, ids = encode_labels(parts["train"].y)
    y = {"train": ids}
    known = {"train": np.ones(len(ids), dtype=bool)}
    index = LabelIndex(classes)
    for split in ("valid", "test"):
        ids = index.lookup(parts[split].y, n_samples=parts[split].n_samples, allow_unseen=True)
        known[split] = ids >= 0
        if not known[split].any():
            raise ValueError(
                f"No {split} row of {title} has a class that occurs in training; split the rows another way."
            )
        y[split] = ids[known[split]]
    X, text_features = _features(parts, recipe.features, n_jobs, log)
    X = {split: _take(X[split], known[split]) for split in SPLITS}
    left_out = {split: int((~known[split]).sum()) for split in SPLITS}
    rows = Rows(title, X, y, classes, left_out, text_features)
    if X["train"] is not parts["train"].X or recipe.data.path is None:  # computed, or slow to read
        _write(kept, rows, log)
    return rows


def cache_folder() -> Path:
    """Return the folder of computed features."""
    return Path(os.environ.get("EXTREMAX_CACHE") or Path.home() / ".cache" / "extremax")


# -- data


def _load(data: DataConfig) -> dict[str, Dataset]:
    reduce: Any = data.reduce
    if data.path is None:
        named = catalog.load_named(data.name, reduce=reduce)
        return {"train": named.train, "valid": named.valid, "test": named.test}
    paths = {"train": data.path, "valid": data.valid_path, "test": data.test_path}
    columns: dict[str, Any] = {"text_column": data.text_column, "label_column": data.label_column}
    read = {split: load_dataset(path, **columns) for split, path in paths.items() if path is not None}
    for split, part in read.items():
        if part.y is None:
            raise ValueError(f"{paths[split]} has no labels; a recipe needs rows with a label each.")
    if any(part.multilabel for part in read.values()):
        if any(part.label_names is not None for part in read.values()):
            raise ValueError(
                f"{data.path} has rows with several named labels; a recipe takes one label per row, or XMC"
                " text."
            )
        read = dict(zip(read, catalog.reduce_labels(list(read.values()), reduce or "first"), strict=True))
    fractions = {"valid": data.valid_fraction, "test": data.test_fraction}
    missing = [split for split in ("valid", "test") if split not in read]
    if missing:
        whole = read["train"]
        cut = split_rows(
            np.asarray(whole.y), fractions=tuple(fractions[split] for split in missing), seed=data.seed
        )
        read |= {split: _rows_of(whole, rows) for split, rows in zip(("train", *missing), cut, strict=True)}
    return {split: read[split] for split in SPLITS}


def _rows_of(data: Dataset, rows: Int64) -> Dataset:
    texts = None if data.texts is None else [data.texts[i] for i in rows]
    return Dataset(
        X=None if data.X is None else data.X[rows],
        texts=texts,
        y=np.asarray(data.y)[rows],
        format=data.format,
    )


# -- features


def _features(
    parts: dict[str, Dataset], features: FeaturesConfig, n_jobs: int | None, log: Log
) -> tuple[dict[str, Any], TextFeatures | None]:
    texts = parts["train"].texts is not None
    kind = features.kind if features.kind != "auto" else "text" if texts else "given"
    if (kind == "text") != texts:
        raise ValueError(
            f"features.kind is {kind!r}, but the rows are {'texts' if texts else 'numbers'};"
            " set another kind, or 'auto'."
        )
    if kind == "text":
        log(f"text features of {parts['train'].n_samples:,} texts")
        made = TextFeatures(n_components=features.n_components, **{"n_random": 0, **features.options}).fit(
            parts["train"].texts or [], n_jobs=n_jobs
        )
        return {split: made.transform(part.texts or [], n_jobs=n_jobs) for split, part in parts.items()}, made
    X = {split: check_features(part.X, name=split) for split, part in parts.items()}
    if kind == "given":
        return X, None
    if not sp.issparse(X["train"]):
        raise ValueError(f"features.kind is {kind!r}, but the rows are dense; it is for sparse counts.")
    from sklearn.feature_extraction.text import TfidfTransformer

    reduction = "PCA" if kind == "tfidf_pca" else "SVD"
    log(f"TF-IDF and {reduction} of {X['train'].shape[0]:,} rows to {features.n_components} columns")
    tfidf = TfidfTransformer(sublinear_tf=True).fit(X["train"])
    weighted = {split: tfidf.transform(part).astype(np.float32) for split, part in X.items()}
    n_threads = resolve_threads(n_jobs)
    if kind == "tfidf_pca":
        pca = PCA.fit(weighted["train"], features.n_components, max_rows=None, n_jobs=n_jobs)
        return {name: pca.transform(part, n_jobs=n_jobs) for name, part in weighted.items()}, None
    basis, _ = truncated_svd(weighted["train"], features.n_components, n_iter=5, n_threads=n_threads)
    dense = {name: sparse_times_dense(part, basis, n_threads=n_threads) for name, part in weighted.items()}
    return dense, None


def _take(X: Any, keep: Bool) -> Any:
    return X if keep.all() else X[np.flatnonzero(keep)]


# -- cache


def _key(recipe: Recipe) -> str:
    """Return a checksum of what the rows depend on: parameters, and size and time of the files."""
    data = recipe.data
    if data.path is None:
        files = catalog.source_files(data.name) if data.name in catalog.names() else []
    else:
        files = [Path(path) for path in (data.path, data.valid_path, data.test_path) if path is not None]
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    packages = []
    if data.name == "icd10cm":
        try:
            packages.append(version("simple-icd-10-cm"))
        except PackageNotFoundError:
            packages.append("missing")
    # with the defaults: when one changes, features made with the old one do not fit
    features = {**vars(recipe.features), "options": {**asdict(TextOptions()), **recipe.features.options}}
    content = json.dumps([_VERSION, TEXT_VERSION, vars(data), features, stamps, packages], sort_keys=True)
    return sha256(content.encode()).hexdigest()[:16]


def _write(folder: Path, rows: Rows, log: Log) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for split in SPLITS:
        X = rows.X[split]
        parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"dense": X}
        arrays |= {f"{split}.{name}": np.asarray(array) for name, array in parts.items()}
        arrays[f"{split}.y"] = rows.y[split]
    header: dict[str, Any] = {
        "n_left_out": rows.n_left_out,
        "n_features": int(rows.X["train"].shape[1]),
        "text": None,
    }
    if rows.text_features is not None:
        header["text"], text_arrays = rows.text_features.to_arrays()
        arrays |= {f"text.{name}": array for name, array in text_arrays.items()}
    size = sum(array.nbytes for array in arrays.values())
    try:
        save_folder(folder, kind=_KIND, header=header, arrays=arrays, labels=rows.classes)
    except OSError as error:  # of a full or read-only disk: the next call computes the features again
        log(f"the features are not kept: {error}")
    else:
        log(f"features kept in {folder} ({format_bytes(size)})")


def _read(folder: Path, name: str) -> Rows:
    kept = load_folder(folder, kind=_KIND)
    arrays, header = kept.arrays, kept.header
    X: dict[str, Any] = {}
    for split in SPLITS:
        if f"{split}.dense" in arrays:
            X[split] = np.array(arrays[f"{split}.dense"])  # in memory: training reads it in random order
        else:
            parts = tuple(np.array(arrays[f"{split}.{part}"]) for part in ("data", "indices", "indptr"))
            X[split] = sp.csr_matrix(parts, shape=(len(parts[2]) - 1, header["n_features"]))
    text = None
    if header["text"] is not None:
        text = TextFeatures.from_arrays(
            header["text"], {n[5:]: a for n, a in arrays.items() if n.startswith("text.")}
        )
    y = {split: np.array(arrays[f"{split}.y"]) for split in SPLITS}
    assert kept.labels is not None
    return Rows(name, X, y, kept.labels, header["n_left_out"], text)
