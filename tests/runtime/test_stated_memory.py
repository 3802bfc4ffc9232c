"""The memory that a fit states, against what it takes: measured in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import extremax
from extremax import ExtremeClassifier, TextClassifier
from extremax.errors import NotEnoughMemoryError
from extremax.features.ngrams import NgramFeatures
from extremax.solvers import NegativeSampling

HERE = Path(__file__).resolve().parent
needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")


def measure(kind: str, folder: Path) -> dict[str, Any]:
    """Return peak and statement of a fit of some hundred megabytes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(extremax.__file__).parent.parent)}
    command = [sys.executable, str(HERE / "measure_fit.py"), kind, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def slow(*kinds: str) -> list[Any]:
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@needs_linux
@pytest.mark.parametrize(
    "kind",
    [
        *slow(
            "candidates_float64",
            "csc",
            "candidates",
            "candidates_memmap",
            "shared_memmap",
            "shared_fortran",
            "shared_float64",
        ),
        *slow("rows", "rows_memmap", "rows_fortran"),
        *slow("csr", "csr_float64", "csr_rows", "csr_unpacked", "indicator", "pair"),
        *slow("wide", "wide_rows", "wide_batch"),
        *slow("text_few", "text", "text_many"),
    ],
)
def test_stated_memory_is_what_a_fit_takes(kind: str, tmp_path: Path) -> None:
    found = measure(kind, tmp_path)
    assert found["stated"] > 100e6
    assert 0.7 < found["peak"] / found["stated"] < 1.2, found


@pytest.mark.error
@pytest.mark.parametrize("solver", ["candidate_softmax", "minibatch_softmax", "softmax"])
def test_wide_sparse_features_are_not_whitened_rejects(solver: str) -> None:
    X = sparse.random(60, 136_000, density=1e-4, format="csr", random_state=0, dtype=np.float32)
    clf = ExtremeClassifier.with_solver(solver, n_epochs=1, n_jobs=1, random_state=0, memory_limit=1 << 36)
    message = r"needs .* TiB \(whitening .*Ways out: solver='negative_sampling' does not whiten"
    with pytest.raises(NotEnoughMemoryError, match=message):
        clf.fit(X, np.arange(60) % 3)


@pytest.mark.error
def test_the_largest_part_is_named_with_what_shrinks_it_rejects() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 64)).astype(np.float32), rng.integers(4, size=20_000)
    clf = ExtremeClassifier(NegativeSampling(tree_components=64), memory_limit=1 << 20)
    with pytest.raises(NotEnoughMemoryError, match=r"\(tree features .* Ways out: fewer tree_components"):
        clf.fit(X, y)
    clf.set_params(tree_components=2, n_negatives=60)
    with pytest.raises(NotEnoughMemoryError, match=r"\(rows .* Ways out: fewer n_negatives"):
        clf.fit(X, y)
    clf.set_params(n_negatives=1)
    with pytest.raises(NotEnoughMemoryError, match=r"\(converted features .* Ways out: float32 features"):
        clf.fit(X.astype(np.float64), y)


@pytest.mark.error
def test_memory_limit_covers_the_features_of_texts_rejects() -> None:
    texts = [f"word{i % 50} of text number {i}" for i in range(400)]
    labels = [i % 100 for i in range(400)]
    small = NgramFeatures(hash_bits=8)
    clf = TextClassifier(ExtremeClassifier(memory_limit=1 << 26, n_jobs=1, random_state=0))
    with pytest.raises(NotEnoughMemoryError, match=r"TextClassifier\.fit needs .* \(tables of n-grams"):
        clf.fit(texts, labels)
    need = small.fit_bytes(texts, 1)
    clf = TextClassifier(
        ExtremeClassifier(memory_limit=sum(need.values()), n_jobs=1, random_state=0), features=small
    )
    with pytest.raises(NotEnoughMemoryError, match=r"ExtremeClassifier\.fit needs .*text features"):
        clf.fit(texts, labels)


@pytest.mark.planted
def test_features_of_texts_have_the_bytes_that_were_stated() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in rng.integers(26, size=6)) for _ in range(500)]
    texts = [" ".join(rng.choice(words, 10)) for _ in range(3000)]
    features = NgramFeatures(hash_bits=12)
    X = features.fit_transform(texts, n_jobs=1)
    stated = features.fit_bytes(texts, 1)["text features"]
    assert 0.95 < (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) / stated < 1.05


def test_pages_of_a_file_are_stated_and_not_required(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 500)).astype(np.float32), rng.integers(4, size=4000)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    clf = ExtremeClassifier("candidate_softmax", n_epochs=0, verbose=1, random_state=0)
    clf.fit(mapped, y)
    found = re.search(r"fit needs ([\d.]+) MiB .*pages of the file 7\.6 MiB", capsys.readouterr().err)
    assert found is not None
    without_pages = int((float(found[1]) - 7.0) * 2**20)
    clf.set_params(memory_limit=without_pages).fit(mapped, y)
    with pytest.raises(NotEnoughMemoryError):
        clf.set_params(memory_limit=without_pages - (2 << 20)).fit(mapped, y)
