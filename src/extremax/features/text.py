"""Dense features of texts: hashed words and character n-grams, TF-IDF, truncated SVD, random directions.

A text becomes counts of its character n-grams within word boundaries and of its words and word pairs, each
hashed into a table.  A count c of column j has the weight ``(1 + log c) * idf_j`` with
``idf_j = 1 + log((1 + n) / (1 + n_j))``, where n_j of n texts contain it.  The two parts are scaled to unit
length each, projected on the leading right singular vectors of the training texts and on random directions
orthogonal to them, and the result is scaled to unit length.  N-grams, weights and SVD are those of
scikit-learn.

The fitted state is a few arrays and a JSON header, so that it is saved inside a model without pickle.  No
result depends on the thread count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from extremax.features.svd import truncated_svd
from extremax.kernels.ngram_hash import BLANK, OTHER, WORD
from extremax.kernels.text_hash import hash_ngrams
from extremax.runtime.products import read_only, sparse_times_dense
from extremax.runtime.threads import resolve_threads, run
from extremax.storage import checks
from extremax.storage.state import State, register
from extremax.types import Float32, Int32, Int64

FORMAT_VERSION = 1
_BLOCK_TEXTS, _BLOCK_CHARACTERS = 4096, 1 << 17  # texts and characters per task
_COUNTED = 500  # texts whose n-grams are counted to say what memory all need
_UNKNOWN = 255
_kinds = np.full(0x110000, _UNKNOWN, dtype=np.uint8)  # kind of every code point, filled as they appear


@dataclass(frozen=True)
class TextOptions:
    """Parameters of `TextFeatures`, which documents them."""

    n_components: int = 128
    n_random: int = 384
    char_ngrams: tuple[int, int] = (3, 5)
    word_ngrams: int = 2
    hash_bits: int = 18
    min_texts: int = 2
    min_word_texts: int = 1
    max_columns: int = 131_072
    max_svd_texts: int = 150_000
    random_state: int = 0

    def __post_init__(self) -> None:
        low, high = self.char_ngrams
        if not (0 <= low <= high <= 64):
            raise ValueError(
                f"char_ngrams is {self.char_ngrams}; give the shortest and longest length, (0, 0) for none."
            )
        if not 0 <= self.word_ngrams <= 8:
            raise ValueError(f"word_ngrams is {self.word_ngrams}; it must be from 0 to 8.")
        if high == 0 and self.word_ngrams == 0:
            raise ValueError("char_ngrams and word_ngrams are both off; a text needs one of them.")
        if not 4 <= self.hash_bits <= 24:
            raise ValueError(f"hash_bits is {self.hash_bits}; it must be from 4 to 24.")
        if self.n_random < 0:
            raise ValueError(f"n_random is {self.n_random}; it must be at least 0.")
        for name in ("n_components", "min_texts", "min_word_texts", "max_columns", "max_svd_texts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")


@register("text", "text_features")
class TextFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Dense features of texts, as a scikit-learn transformer.

    Parameters
    ----------
    n_components : int
        Features along singular vectors; fewer if the training texts do not have as many dimensions.
    n_random : int
        Features along random directions orthogonal to those: they separate rare words, which leading
        singular vectors do not.  Only added where the texts have more dimensions than `n_components`.
    char_ngrams : (int, int)
        Shortest and longest character n-gram within word boundaries; (0, 0) for none.
    word_ngrams : int
        Longest run of words, 2 for words and pairs; 0 for none.
    hash_bits : int
        Each of the two tables has ``2 ** hash_bits`` columns.
    min_texts : int
        Columns that fewer training texts have are left out.
    min_word_texts : int
        The same for single words, which are informative where a rare n-gram or pair is noise.  Only applies
        with random directions: no leading singular vector represents a word of one text.
    max_columns : int
        Number of columns that are kept, those that most texts have; the state holds as many rows of
        ``n_components + n_random`` floats.
    max_svd_texts : int
        Number of texts for the SVD, drawn at random from more.
    random_state : int
        Seed of that draw and of the SVD.

    Examples
    --------
    >>> from extremax.data import TextFeatures
    >>> texts = ["fell off a ladder", "fell from a ladder", "bitten by a dog", "bitten by a cat"]
    >>> features = TextFeatures(n_components=2, n_random=2).fit(texts)
    >>> features.transform(["a dog's bite", "", "\\N{DOG FACE}"]).shape
    (3, 4)
    """

    is_sparse: ClassVar[bool] = False
    columns_: Int32  # hashed columns that are kept, rising
    idf_: Float32  # their weights
    basis_: Float32  # (n_columns, n_features): right singular vectors, then random directions
    _fitted: TextOptions  # parameters of the last fit

    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        *,
        n_components: int = 128,
        n_random: int = 384,
        char_ngrams: tuple[int, int] = (3, 5),
        word_ngrams: int = 2,
        hash_bits: int = 18,
        min_texts: int = 2,
        min_word_texts: int = 1,
        max_columns: int = 131_072,
        max_svd_texts: int = 150_000,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.n_random = n_random
        self.char_ngrams = char_ngrams
        self.word_ngrams = word_ngrams
        self.hash_bits = hash_bits
        self.min_texts = min_texts
        self.min_word_texts = min_word_texts
        self.max_columns = max_columns
        self.max_svd_texts = max_svd_texts
        self.random_state = random_state

    @property
    def options(self) -> TextOptions:
        """The parameters of the last fit or, before it, those that are set; bad ones are a ValueError."""
        fitted: TextOptions | None = self.__dict__.get("_fitted")
        return TextOptions(**self.to_options()) if fitted is None else fitted

    @property
    def _n_features_out(self) -> int:
        return self.n_features

    @property
    def n_features(self) -> int:
        """Width of the features of a fitted object."""
        return int(self.basis_.shape[1])

    @property
    def column_groups(self) -> tuple[int, ...]:
        """Dense features have no groups of columns."""
        return ()

    def fit(
        self,
        texts: Sequence[str],
        y: Any = None,
        *,
        n_jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Choose the columns, their weights and the singular vectors; `y` is not used.

        `progress` is called with the number of texts done and of all texts.
        """
        check_texts(texts)
        if len(texts) == 0:
            raise ValueError("texts is empty; fit needs at least one text.")
        options = self._fitted = TextOptions(**self.to_options())
        n_texts, n_threads = len(texts), resolve_threads(n_jobs)
        have, have_word = _document_counts(texts, options, n_threads, progress)
        kept = np.flatnonzero(
            (have >= min(options.min_texts, n_texts)) | (have_word >= min(options.min_word_texts, n_texts))
        )
        if len(kept) > options.max_columns:
            # The most frequent, of equally frequent ones the first; then in ascending order again.
            kept = np.sort(kept[np.argsort(-have[kept], kind="stable")[: options.max_columns]])
        self.columns_ = kept.astype(np.int32)
        self.idf_ = (1.0 + np.log((1.0 + n_texts) / (1.0 + have[kept]))).astype(np.float32)
        rng = np.random.default_rng(options.random_state)
        if n_texts > options.max_svd_texts:
            chosen = np.sort(rng.choice(n_texts, options.max_svd_texts, replace=False))
            texts = [texts[i] for i in chosen.tolist()]
        weighted = self.weigh(texts, n_jobs=n_jobs)
        basis, _ = truncated_svd(
            weighted, options.n_components, seed=options.random_state, n_threads=n_threads
        )
        # Texts without any common n-gram still get a feature, which is zero.
        basis = basis if basis.shape[1] else np.zeros((len(kept), 1), dtype=np.float32)
        # Texts of fewer dimensions than `n_components` have nothing outside of the singular vectors.
        has_more = basis.shape[1] == options.n_components and options.n_random > 0
        self.basis_ = np.hstack([basis, _random_directions(basis, options)]) if has_more else basis
        return self

    def fit_bytes(self, texts: Sequence[str], n_threads: int) -> dict[str, int]:
        """Return the bytes that `fit` and `transform` of the texts take at most, by part."""
        options = TextOptions(**self.to_options())
        sample = texts[:: max(1, len(texts) // _COUNTED)]
        per_text = len(_hash(sample, options)[0]) / max(len(sample), 1)
        n_columns = int(min(options.max_columns, 2 << options.hash_bits, per_text * len(texts)))
        width = options.n_components + options.n_random
        entries = int(per_text * min(len(texts), options.max_svd_texts))
        tables = (16 + 4 * n_threads) * (2 << options.hash_bits)
        return {
            "weighted texts": 16 * entries + tables,
            "singular vectors": 4 * n_columns * (2 * width + options.n_random),
            "text features": 4 * len(texts) * width,
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of the fitted features."""
        return int(self.columns_.nbytes + self.idf_.nbytes + self.basis_.nbytes)

    def weigh(self, texts: Sequence[str], *, n_jobs: int | None = None) -> sp.csr_matrix:
        """Return TF-IDF of the texts, CSR float32 (n_texts, n_columns): the features before the SVD."""
        self._check_fitted()
        check_texts(texts)
        blocks = text_blocks(texts)
        place = self._places()
        parts: list[Any] = [None] * len(blocks)

        def weigh(i: int) -> None:
            parts[i] = self._weigh_block(texts[slice(*blocks[i])], place)

        run(weigh, len(blocks), resolve_threads(n_jobs))
        if not parts:
            return sp.csr_matrix((0, len(self.columns_)), dtype=np.float32)
        return sp.vstack(parts, format="csr")

    def transform(self, texts: Sequence[str], *, n_jobs: int | None = None) -> Float32:
        """Return dense features, float32 (n_texts, n_features), in rows of unit length.

        A text without any known n-gram is all zero.
        """
        self._check_fitted()
        check_texts(texts)
        Z = np.empty((len(texts), self.n_features), dtype=np.float32)
        blocks = text_blocks(texts)
        place, basis = self._places(), read_only(self.basis_)

        def project(i: int) -> None:
            rows = sparse_times_dense(self._weigh_block(texts[slice(*blocks[i])], place), basis)
            norm = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
            np.divide(rows, norm, out=rows, where=norm > 0)
            Z[slice(*blocks[i])] = rows

        run(project, len(blocks), resolve_threads(n_jobs))
        return Z

    def fit_transform(
        self,
        texts: Sequence[str],
        y: Any = None,
        *,
        n_jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Float32:
        """Fit to the texts and return their features; `y` is not used."""
        return self.fit(texts, n_jobs=n_jobs, progress=progress).transform(texts, n_jobs=n_jobs)

    def to_options(self) -> dict[str, Any]:
        """Return the parameters: ``TextFeatures(**features.to_options())`` makes another."""
        return {entry.name: getattr(self, entry.name) for entry in fields(TextOptions)}

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return a JSON header and arrays that hold the whole state."""
        self._check_fitted()
        options = {**asdict(self.options), "char_ngrams": list(self.options.char_ngrams)}
        header = {"kind": "text_features", "format_version": FORMAT_VERSION, "options": options}
        return header, {"columns": self.columns_, "idf": self.idf_, "basis": self.basis_}

    @classmethod
    def from_arrays(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TextFeatures:
        """Make features of what `to_arrays` returned."""
        if header.get("kind") != "text_features" or header.get("format_version") != FORMAT_VERSION:
            kind, version = header.get("kind"), header.get("format_version")
            raise ValueError(
                f"header says kind {kind!r}, version {version!r}; this reads 'text_features',"
                f" {FORMAT_VERSION}."
            )
        options = checks.get_mapping(header, "options")
        numbers = {name: checks.get_int(options, name) for name in options if name != "char_ngrams"}
        features = cls(**numbers, char_ngrams=tuple(checks.get_list(options, "char_ngrams", (int,))))
        columns = checks.get_array(arrays, "columns", "i4", (None,))
        idf = checks.get_array(arrays, "idf", "f4", (None,))
        basis = checks.get_array(arrays, "basis", "f4", (None, None))
        table = 2 << features.options.hash_bits
        if idf.shape != columns.shape or basis.shape[:1] != columns.shape or basis.ndim != 2:
            raise ValueError(
                f"shapes {columns.shape}, {idf.shape}, {basis.shape} of columns, idf and basis do not fit"
                " together."
            )
        if len(columns) and (columns.min() < 0 or columns.max() >= table):
            raise ValueError(
                f"columns go from {columns.min()} to {columns.max()}; they must be from 0 to {table - 1}."
            )
        checks.check_finite(idf, "idf")
        if not bool((columns[1:] > columns[:-1]).all()) or basis.shape[1] == 0:
            raise ValueError("columns must rise, and the basis must have a feature.")
        features._fitted = TextOptions(**features.to_options())
        features.columns_, features.idf_, features.basis_ = columns, idf, basis
        return features

    def state(self) -> State:
        """Return what a model folder stores."""
        return State(*self.to_arrays())

    @classmethod
    def from_state(cls, state: State) -> TextFeatures:
        """Make features of what `state` returned."""
        return cls.from_arrays(state.header, state.arrays)

    def _check_fitted(self) -> None:
        if not hasattr(self, "columns_"):
            raise NotFittedError("these TextFeatures are not fitted; call fit(texts) first.")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "columns_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _places(self) -> Int32:
        """Return the position of every hashed column among the kept ones, or -1."""
        place = np.full(2 << self.options.hash_bits, -1, dtype=np.int32)
        place[self.columns_] = np.arange(len(self.columns_), dtype=np.int32)
        return place

    def _weigh_block(self, texts: Sequence[str], place: Int32) -> sp.csr_matrix:
        """Return TF-IDF of a few texts."""
        columns, counts, ends = _hash(texts, self.options)
        at = place[columns]
        known = at >= 0
        rows = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))[known]
        at = at[known]
        values = (1.0 + np.log(counts[known].astype(np.float32))) * self.idf_[at]
        # Characters and words are scaled separately: a text has many more n-grams than words.
        part = 2 * rows + (columns[known] >> self.options.hash_bits)
        norms = np.sqrt(np.bincount(part, weights=values.astype(np.float64) ** 2, minlength=2 * len(ends)))
        values = (values / norms[part]).astype(np.float32)
        matrix = sp.csr_matrix((len(ends), len(self.columns_)), dtype=np.float32)
        matrix.data, matrix.indices = values, at
        matrix.indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(ends)))]).astype(
            np.int32
        )
        # sums must not depend on the order in which the kernel finds columns
        matrix.sort_indices()
        return matrix


def _random_directions(basis: Float32, options: TextOptions) -> Float32:
    """Return random directions less their part along the basis.

    On average they preserve the length of what is orthogonal to the basis.
    """
    rng = np.random.default_rng((options.random_state, 1))
    random = rng.standard_normal((len(basis), options.n_random), dtype=np.float32) / np.float32(
        np.sqrt(options.n_random)
    )
    outside: Float32 = random - basis @ (basis.T @ random)
    return outside


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless `texts` is a sequence of str."""
    if isinstance(texts, str):
        raise TypeError("texts is one string; pass a list of strings.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"texts[{i}] is {text!r} of type {type(text).__name__}; every text must be a str."
            )


def text_blocks(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Cut the texts into ranges of limited length, which depend on the texts alone."""
    blocks, start, characters = [], 0, 0
    for i, text in enumerate(texts):
        if i > start and (characters + len(text) > _BLOCK_CHARACTERS or i - start >= _BLOCK_TEXTS):
            blocks.append((start, i))
            start, characters = i, 0
        characters += len(text)
    if start < len(texts):
        blocks.append((start, len(texts)))
    return blocks


def _document_counts(
    texts: Sequence[str],
    options: TextOptions,
    n_threads: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[Int64, Int64]:
    """Return how many texts have each column, and have it as a single word."""
    have = np.zeros(2 << options.hash_bits, dtype=np.int64)
    have_word = np.zeros_like(have)
    keeps_words = options.n_random > 0 and options.word_ngrams > 0
    words_only = replace(options, char_ngrams=(0, 0), word_ngrams=1) if keeps_words else None
    blocks = text_blocks(texts)
    group_size = 4 * n_threads  # enough for all threads, few enough for progress and little memory
    for first in range(0, len(blocks), group_size):
        group = blocks[first : first + group_size]
        found: list[Int32] = [np.zeros(0, dtype=np.int32)] * len(group)
        words = list(found)

        def count(
            i: int,
            group: list[tuple[int, int]] = group,
            found: list[Int32] = found,
            words: list[Int32] = words,
        ) -> None:
            found[i] = _hash(texts[slice(*group[i])], options)[0]
            if words_only is not None:
                words[i] = _hash(texts[slice(*group[i])], words_only)[0]

        run(count, len(group), n_threads)
        for columns, word_columns in zip(found, words, strict=True):
            have += np.bincount(columns, minlength=len(have))
            have_word += np.bincount(word_columns, minlength=len(have))
        if progress is not None:
            progress(group[-1][1], len(texts))
    return have, have_word


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.uint8], Int64]:
    """Return the code points of the texts in lower case, one after the other, their kinds and the ends."""
    lowered = [text.lower() for text in texts]
    codes = np.frombuffer("".join(lowered).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    ends = np.cumsum([len(text) for text in lowered], dtype=np.int64)
    kinds = _kinds[codes]
    if (kinds == _UNKNOWN).any():
        for code in np.unique(codes[kinds == _UNKNOWN]).tolist():
            character = chr(code)
            _kinds[code] = (
                BLANK if character.isspace() else WORD if character.isalnum() or character == "_" else OTHER
            )
        kinds = _kinds[codes]
    return codes, kinds, ends


def _hash(texts: Sequence[str], options: TextOptions) -> tuple[Int32, Int32, Int64]:
    """Return hashed columns of each text with their counts, and the end of each text's columns.

    Columns of characters come first, those of words above them.
    """
    codes, kinds, ends = code_points(texts)
    low, high = options.char_ngrams
    # A word of l characters has at most l + 2 n-grams of each length; at most half of the characters, rounded
    # up, begin a word.
    limit = (high - low + 1) * (2 * len(codes) + 2 * len(texts)) * (high > 0) + options.word_ngrams * len(
        codes
    )
    columns = np.empty(limit, dtype=np.int32)
    counts = np.empty(limit, dtype=np.int32)
    column_ends = np.empty(len(texts), dtype=np.int64)
    sizes = np.array([low, high, options.word_ngrams, options.hash_bits], dtype=np.int64)
    table = np.zeros(2 << options.hash_bits, dtype=np.int32)
    hash_ngrams(codes, kinds, ends, sizes, table, columns, counts, column_ends)
    total = int(column_ends[-1]) if len(texts) else 0
    return columns[:total].copy(), counts[:total].copy(), column_ends
