"""The rows of a recipe: features and class ids by split, with a cache of computed features.

Features depend only on the recipe and its files, so they are computed once and kept in a folder:
``EXTREMAX_CACHE``, or ``~/.cache/extremax``. The cache may be deleted at any time.
"""

from __future__ import annotations

import dataclasses
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import scipy.sparse as sp
from msgspec.structs import replace
from numpy.typing import NDArray

from extremax.data.dataset import Dataset
from extremax.data.readers import load_dataset
from extremax.examples import Examples, split_rows
from extremax.experiments import catalog
from extremax.experiments.recipe import DataConfig, FeaturesConfig, Recipe
from extremax.features.ngrams import NgramFeatures
from extremax.features.pca import PCA
from extremax.runtime.atomic_files import stage_of
from extremax.runtime.products import one_blas_thread
from extremax.runtime.threads import resolve_threads
from extremax.types import Int32, Int64
from extremax.validation.features import check_features
from extremax.validation.labels import LabelIndex, encode_labels

Log = Callable[[str], None]
SPLITS = ("train", "valid", "test")
_VERSION = 3  # raised when features are computed differently, so that older caches are not found


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
    feature_seconds
        Processor time of the hidden layer of "learned" features.
    """

    name: str
    X: dict[str, Any] = field(repr=False)
    y: dict[str, Int32] = field(repr=False)
    classes: NDArray[Any] = field(repr=False)
    n_left_out: dict[str, int]
    feature_seconds: float = 0.0

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def sizes(self) -> dict[str, Any]:
        """Return the numbers for the summary of a run."""
        return {
            **{f"n_{split}": len(y) for split, y in self.y.items()},
            "n_features": int(self.X["train"].shape[1]),
            "n_classes": self.n_classes,
            "n_left_out": self.n_left_out,
            "feature_seconds": self.feature_seconds,
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
    name = "".join(c if c.isalnum() else "-" for c in title)
    kept = (cache or cache_folder()) / f"{name}-{_key(recipe)}.npz"
    try:
        return _read(kept, title)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        log(f"the cache is written again: {error}")
    if recipe.features.kind == "learned":
        plain = replace(recipe, features=replace(recipe.features, kind="auto"))
        rows = _learn(load_rows(plain, n_jobs=n_jobs, log=log, cache=cache), recipe.features, n_jobs, log)
        _write(kept, rows, log)
        return rows
    log(f"reading {title}")
    parts = _load(recipe.data)
    for split, part in parts.items():
        if part.n_samples == 0:
            raise ValueError(f"{title} has no {split} rows; give it some in the recipe's [data].")
    classes, ids = encode_labels(parts["train"].y)
    index, y = LabelIndex(classes), {"train": ids}
    for split in ("valid", "test"):
        y[split] = index.lookup(parts[split].y, n_samples=parts[split].n_samples, allow_unseen=True)
        if not (y[split] >= 0).any():
            raise ValueError(
                f"No {split} row of {title} has a class that occurs in training; split the rows another way."
            )
    X = _features(parts, recipe.features, n_jobs, log)
    known = {split: np.flatnonzero(y[split] >= 0) for split in SPLITS}
    left_out = {split: len(y[split]) - len(known[split]) for split in SPLITS}
    if any(left_out.values()):
        X, y = ({split: part[split][known[split]] for split in SPLITS} for part in (X, y))
    rows = Rows(title, X, y, classes, left_out)
    if recipe.data.path is None or parts["train"].X is None or recipe.features.kind.startswith("tfidf"):
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
    X = None if data.X is None else data.X[rows]
    return Dataset(X=X, texts=texts, y=np.asarray(data.y)[rows], format=data.format)


# -- features


def _learn(rows: Rows, features: FeaturesConfig, n_jobs: int | None, log: Log) -> Rows:
    """Return the rows with the features of a hidden layer."""
    from extremax.nn.hidden_layer import learn_features

    if sp.issparse(rows.X["train"]):
        raise ValueError(
            "features.kind is 'learned', but the rows are sparse; it is for texts and dense rows."
        )
    log(f"training a hidden layer of {features.n_components} units on {len(rows.y['train']):,} rows")
    before = time.process_time()
    X = learn_features(
        rows.X, rows.y["train"], n_units=features.n_components, n_threads=resolve_threads(n_jobs)
    )
    seconds = time.process_time() - before
    log(f"learned the features in {seconds:.0f} s of processor time")
    return dataclasses.replace(rows, X=X, feature_seconds=seconds)


def dense_text_features(n_components: int, *, word_ngrams: int = 2, seed: int = 0) -> Any:
    """Return a transformer of texts to rows of unit length: n-grams, then a truncated SVD."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    ngrams = NgramFeatures(char_ngrams=(2, 5), word_ngrams=word_ngrams)
    return make_pipeline(ngrams, TruncatedSVD(n_components, random_state=seed), Normalizer())


def _features(
    parts: dict[str, Dataset], features: FeaturesConfig, n_jobs: int | None, log: Log
) -> dict[str, Any]:
    texts = parts["train"].texts is not None
    kind = features.kind if features.kind != "auto" else "text" if texts else "given"
    if (kind == "text") != texts:
        raise ValueError(
            f"features.kind is {kind!r}, but the rows are {'texts' if texts else 'numbers'};"
            " set another kind, or 'auto'."
        )
    X: dict[str, Any] = {
        split: part.texts if texts else check_features(part.X, name=split) for split, part in parts.items()
    }
    if kind == "given":
        return X
    if not texts and not sp.issparse(X["train"]):
        raise ValueError(f"features.kind is {kind!r}, but the rows are dense; it is for sparse counts.")
    log(f"{features.n_components} features of {parts['train'].n_samples:,} rows")
    make: Any = dense_text_features(features.n_components, word_ngrams=features.word_ngrams)
    if not texts:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfTransformer

        tfidf = TfidfTransformer(sublinear_tf=True).fit(X["train"])
        X = {split: tfidf.transform(part).astype(np.float32) for split, part in X.items()}
        if kind == "tfidf_pca":
            pca = PCA.fit(X["train"], features.n_components, max_rows=None, n_jobs=n_jobs)
            return {split: pca.transform(part, n_jobs=n_jobs) for split, part in X.items()}
        make = TruncatedSVD(features.n_components, random_state=0)
    fitted = X["train"]
    if features.svd_rows is not None and parts["train"].n_samples > features.svd_rows:
        chosen = np.random.default_rng(0).choice(parts["train"].n_samples, features.svd_rows, replace=False)
        fitted = [fitted[i] for i in chosen] if texts else fitted[chosen]
    with one_blas_thread():  # the same bits at any thread count
        make.fit(fitted)
        return {split: np.asarray(make.transform(part), np.float32) for split, part in X.items()}


# -- cache


def _key(recipe: Recipe) -> str:
    """Return a checksum of what the rows depend on: parameters, and size and time of the files."""
    data = recipe.data
    if data.path is None:
        files = catalog.source_files(data.name) if data.name in catalog.names() else []
    else:
        files = [Path(path) for path in (data.path, data.valid_path, data.test_path) if path is not None]
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    try:
        package = version("simple-icd-10-cm") if data.name == "icd10cm" else ""
    except PackageNotFoundError:
        package = ""
    content = msgspec.json.encode([_VERSION, data, recipe.features, stamps, package])
    return sha256(content).hexdigest()[:16]


def _write(path: Path, rows: Rows, log: Log) -> None:
    arrays: dict[str, Any] = {"n_features": rows.X["train"].shape[1], "classes": rows.classes}
    arrays["feature_seconds"] = rows.feature_seconds
    for split in SPLITS:
        X = rows.X[split]
        parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"dense": X}
        arrays |= {f"{split}.{name}": np.asarray(array) for name, array in parts.items()}
        arrays |= {f"{split}.y": rows.y[split], f"{split}.left_out": rows.n_left_out[split]}
    if rows.classes.dtype.kind == "O":
        return  # labels of mixed types
    stage = stage_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with stage.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(stage, path)
        log(f"features kept in {path}")
    except OSError as error:  # a full or read-only disk: the next call computes the features again
        log(f"the features are not kept: {error}")
    finally:
        stage.unlink(missing_ok=True)


def _read(path: Path, name: str) -> Rows:
    with path.open("rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))
    X: dict[str, Any] = {}
    for split in SPLITS:
        X[split] = arrays.get(f"{split}.dense")
        if X[split] is None:
            parts = tuple(arrays[f"{split}.{part}"] for part in ("data", "indices", "indptr"))
            X[split] = sp.csr_matrix(parts, shape=(len(parts[2]) - 1, int(arrays["n_features"])))
    y = {split: arrays[f"{split}.y"] for split in SPLITS}
    left_out = {split: int(arrays[f"{split}.left_out"]) for split in SPLITS}
    return Rows(name, X, y, arrays["classes"], left_out, float(arrays["feature_seconds"]))
