"""The memory that a fit states, against what it takes: measured in a process of its own."""

from __future__ import annotations

import json
import os
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
from extremax.runtime.context import Context
from extremax.solvers import NegativeSampling
from extremax.solvers.config import resolve
from extremax.tuned import DEFAULTS, ProblemSize

HERE = Path(__file__).resolve().parent
needs_linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc of Linux")


def measure(kind: str) -> dict[str, Any]:
    """Return peak and statement of a fit of some hundred megabytes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(extremax.__file__).parent.parent)}
    command = [sys.executable, str(HERE / "measure_fit.py"), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["candidates", "shared", "rows", "csr", "pair", "text_few", "text_threads", "text_many"]
)
def test_bound_on_memory_holds_and_is_not_far_off(kind: str) -> None:
    found = measure(kind)
    assert found["stated"] > 100e6
    low, high = (1.0, 1.5) if kind in ("candidates", "shared", "rows") else (1.0, 2.5)
    assert low < found["stated"] / found["peak"] < high, found


@pytest.mark.error
def test_wide_sparse_features_are_not_whitened_rejects() -> None:
    X = sparse.random(60, 136_000, density=1e-4, format="csr", random_state=0, dtype=np.float32)
    clf = ExtremeClassifier("minibatch_softmax", n_epochs=1, n_jobs=1, random_state=0, memory_limit=1 << 36)
    message = r"needs .* TiB \(training .*Ways out: solver="
    with pytest.raises(NotEnoughMemoryError, match=message):
        clf.fit(X, np.arange(60) % 3)


@pytest.mark.error
def test_error_names_two_ways_out_rejects() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 64)).astype(np.float32), rng.integers(4, size=20_000)
    solver = NegativeSampling(tree_components=2, n_negatives=1)
    clf = ExtremeClassifier(solver, memory_limit=1 << 20)
    with pytest.raises(NotEnoughMemoryError, match=r"Ways out: optimizer=[^;]*; fewer features [^;]*$"):
        clf.fit(X, y)
    with pytest.raises(NotEnoughMemoryError, match=r"converted .*Ways out: optimizer=[^;]*; float32"):
        clf.fit(np.asfortranarray(X, dtype=np.float64), y)


@pytest.mark.error
def test_memory_limit_covers_the_features_of_texts_rejects() -> None:
    texts = [f"word{i % 50} of text number {i}" for i in range(400)]
    labels = [i % 100 for i in range(400)]
    small = NgramFeatures(hash_bits=8)
    clf = TextClassifier(ExtremeClassifier(memory_limit=1 << 25, n_jobs=1, random_state=0))
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


def test_memory_of_few_classes_counts_the_rows_that_each_thread_copies() -> None:
    problem = ProblemSize(24_000, 24_000, 100_000, 40, n_entries=3_000_000)
    config = resolve("sparse_softmax", problem, n_epochs=1, numbers=DEFAULTS)
    few, many = (config.make_trainer(Context(0, n)).memory(problem) for n in (2, 12))
    assert many - few >= 10 * 8 * 3_000_000  # features and values of each row
