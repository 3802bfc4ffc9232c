"""Small sound models that cases are made from: every kind of weights, noise, search and text features."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax import ExtremeClassifier, MixtureNoise, TextClassifier, UniformNoise, load_model
from extremax.features.ngrams import NgramFeatures
from extremax.scores import PQSearch
from extremax.tree.noise import FrequencyNoise
from extremax.tuned import PQConfig

N_CLASSES, N_FEATURES, N_ROWS = 6, 5, 60
TEXTS = ("fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat") * 5
TEXT_LABELS = ("fall", "fall", "bite", "bite") * 5
CLASS_TEXTS = [{"fall": ["fall from height", "tumble"], "bite": "animal bite"}, {"burn": ["burnt by fire"]}]
GOLDEN = Path(__file__).parent.parent / "golden" / "v2"


@dataclass
class Base:
    """A saved model: header and bytes of its files, rows to ask it about, and what it answers."""

    name: str
    path: Path
    query: Any
    labels: Any
    content: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    expected: Any = None

    def read(self) -> Base:
        """Read the files and the answers."""
        named = (file for file in self.path.iterdir() if not file.name.startswith("."))
        self.files = {file.name: file.read_bytes() for file in named}
        self.content = json.loads(self.files["header.json"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.expected = load_model(self.path).predict_log_proba(self.query)
        return self


def rows(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return planted rows and classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(N_ROWS) % N_CLASSES
    X = rng.normal(size=(N_CLASSES, N_FEATURES))[y] + 0.3 * rng.normal(size=(N_ROWS, N_FEATURES))
    return X.astype(np.float32), y


def make_bases(folder: Path) -> dict[str, Base]:
    """Fit and save the models, unless the folder has them, and read them."""
    X, y = rows()
    csr = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0.0))
    found = [
        Base(name, folder / name, query, labels)
        for name, query, labels in (
            ("dense", X[:4], y), ("beam", X[:4], y), ("tree", X[:4], y), ("mixture", X[:4], y),
            ("sparse", csr[:4], y), ("unfinished", csr[:4], y), ("text", list(TEXTS[:3]), TEXT_LABELS),
            ("named", list(TEXTS[:3]), TEXT_LABELS),
        )
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for base in found:
            if not base.path.exists():
                fit(base.name, X, csr, y).save(base.path)
    old = [
        Base(f"v2_{name}", GOLDEN / name / "model", None, None)
        for name in ("beam_index", "negative_sampling_tree")
    ]
    for base in old:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width = load_model(base.path).n_features_in_
        base.query = np.random.default_rng(1).normal(size=(4, width)).astype(np.float32)
    return {base.name: base.read() for base in (*found, *old)}


def fit(name: str, X: Any, csr: Any, y: Any) -> Any:
    """Return the fitted model of a name."""
    options: dict[str, Any] = {"random_state": 0, "n_jobs": 1, "n_epochs": 1}
    if name in ("dense", "beam"):
        labels = y if name == "dense" else np.fromiter([("a", int(i), 0.5) for i in y], dtype=object)
        clf = ExtremeClassifier.with_solver("minibatch_softmax", **options).fit(X, labels)
        clf.describe_classes([f"class {i}" for i in range(N_CLASSES)])
        if name == "beam":
            costs = dict.fromkeys(("class_cost", "entry_cost", "entry_cost_scalar", "row_cost"), 0.0)
            config = PQConfig(min_width=2, threshold_classes=4, max_candidates=64, **costs)  # type: ignore[arg-type]
            clf.add_search("beam", PQSearch.fit(X, clf.model_.weights, config=config, n_epochs=1))
        return clf
    if name == "tree":
        return ExtremeClassifier.with_solver("negative_sampling", tree_components=3, **options).fit(
            X, y.astype(str)
        )
    if name == "mixture":
        noise = MixtureNoise(UniformNoise(N_CLASSES), FrequencyNoise(np.bincount(y)), weight=0.5)
        return ExtremeClassifier.with_solver("negative_sampling", noise=noise, **options).fit(
            X, [f"label {i}" for i in y]
        )
    if name == "sparse":
        return ExtremeClassifier.with_solver("sparse_softmax", **options).fit(csr, y)
    if name == "unfinished":
        return ExtremeClassifier.with_solver("sparse_softmax", **options).partial_fit(csr, y)
    clf = TextClassifier(ExtremeClassifier(**options), features=NgramFeatures(hash_bits=6))
    return clf.fit(list(TEXTS), list(TEXT_LABELS), class_texts=CLASS_TEXTS if name == "named" else None)
