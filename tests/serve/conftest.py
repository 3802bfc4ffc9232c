"""Small models that the tests of the server share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from extremax import ExtremeClassifier, TextClassifier, load_model
from serve.live import Live, running

LIMITS: dict[str, Any] = {
    "max_body_bytes": 100_000,
    "max_texts": 50,
    "max_characters": 2000,
    "max_top_k": 20,
    "reload_seconds": 0.0,
}
PLACES = ("ladder", "roof", "stairs", "bed", "tree", "horse", "bridge", "chair")
BITES = ("dog", "cat", "snake", "spider", "bee", "horse", "rat", "bat")


def make_texts() -> tuple[list[str], list[str]]:
    texts, labels = [], []
    for i, place in enumerate(PLACES):
        for verb in ("fell off a", "fall from the", "dropped from a", "tumbled down the"):
            texts.append(f"{verb} {place}")
            labels.append(f"W{i:02d}")
    for i, animal in enumerate(BITES):
        for verb in ("bitten by a", "bite of the", "attacked by a", "stung by the"):
            texts.append(f"{verb} {animal}")
            labels.append(f"Z{i:02d}")
    return texts, labels


def fit_text_model(seed: int = 0, describe: bool = True) -> TextClassifier:
    texts, labels = make_texts()
    clf = TextClassifier(ExtremeClassifier(random_state=seed, n_jobs=1)).fit(texts, labels)
    if describe:
        clf.describe_classes([f"about {label}" for label in clf.classes_])
    return clf


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "words"
    fit_text_model().save(folder)
    return folder


@pytest.fixture(scope="session")
def vector_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 20)
    X = (rng.normal(size=(12, 6))[y] + 0.1 * rng.normal(size=(len(y), 6))).astype(np.float32)
    folder = tmp_path_factory.mktemp("served") / "vectors"
    ExtremeClassifier(n_epochs=2, random_state=0, n_jobs=1).fit(X, y).save(folder)
    return folder


@pytest.fixture(scope="session")
def text_model(text_folder: Path) -> Any:
    clf: Any = load_model(text_folder)
    clf.classifier_.n_jobs = 1
    return clf


@pytest.fixture(scope="session")
def vector_model(vector_folder: Path) -> Any:
    clf: Any = load_model(vector_folder)
    clf.n_jobs = 1
    return clf


@pytest.fixture(scope="session")
def live(text_folder: Path, vector_folder: Path) -> Iterator[Live]:
    """Two models behind small limits."""
    with running({"words": text_folder, "vectors": vector_folder}, **LIMITS) as found:
        yield found
