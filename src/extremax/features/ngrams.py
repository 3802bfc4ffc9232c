"""Sparse features of texts: hashed character n-grams and word runs, TF-IDF.

A text becomes counts of its character n-grams within word boundaries and of its words and word pairs, each
hashed into one of ``2 ** hash_bits`` buckets: those of characters, then those of single words, then those of
longer runs.  Buckets that occur in the training texts are the columns.  A count c of column j has the weight
``(1 + log c) * idf_j`` with ``idf_j = 1 + log((1 + n) / (1 + n_j))``, where n_j of n texts contain it.
Characters and words are scaled to a fixed length each, and then the row to unit length.  N-grams and weights
are those of scikit-learn.

A text that says nothing to the model has a row of zeros: no word of it occurs in the training texts, nor
enough of its character n-grams.  A Bloom filter remembers them: a bucket alone would not do, for an unknown
n-gram may fall into the bucket of a known one.

The fitted state is one byte per column, a filter, and the spelling of some columns, so that it is saved
inside a model without pickle.  No result depends on the thread count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError

from extremax.features.text import check_texts, code_points, cut_tokens, text_blocks
from extremax.kernels.ngram_hash import (
    MOST_TOKENS,
    N_DIGITS,
    N_GROUPS,
    NO_CHARACTERS,
    NO_TOKENS,
    Found,
    Seen,
    Sizes,
    Weighing,
    find_known,
    find_ngrams,
    group_ngrams,
    learn_texts,
    weigh_rows,
)
from extremax.runtime.executor import Executor, Work, current_executor
from extremax.runtime.products import read_only
from extremax.runtime.scratch import Scratch
from extremax.runtime.threads import resolve_threads, run, split
from extremax.storage import checks
from extremax.storage.state import State, register
from extremax.types import Float32, Int32, Int64

KIND = "ngram_features"
FORMAT_VERSION = 1
_FILTER_BITS = 25  # binary logarithm of the filter's size while it is filled: 4 MiB
_FILTER_FILL = 0.25  # the filter is halved as long as no more of its bits are set
_MOST_TABLES = 8  # tables of counts that are filled at the same time: at most as many threads
_GROUP_BLOCKS = 16  # blocks per thread whose rows are made between two calls of `progress`
_SHARES = 4  # of the texts, that each of several places counts one after the other
_TASK_ROWS = 4096  # rows that are weighed at a time
_CACHES = ("idf_", "_weighing")
_BYTE = 255  # counts from here on are stored apart
_LONGEST_NAME = 255  # bytes
# Of single misspelt words of ICD-10-CM, one in a hundred has fewer known character n-grams; half of the words
# of random letters have.
_LEAST_KNOWN, _LEAST_KNOWN_QUANTILE = 0.45, 0.01
_SAMPLE = 1000  # texts that may lower it, and whose words are counted
# In texts, 4-grams alone are as good as all from 2 to 5 or better, with half the entries: lab/tuning.md.
_IN_TEXTS, _IN_NAMES, _WORDS_OF_A_TEXT = (4, 4), (2, 5), 3
_COUNTED = 500  # texts whose n-grams are counted to say what memory all need


class NgramOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `NgramFeatures`, which documents them."""

    char_ngrams: tuple[int, int] = (2, 5)
    word_ngrams: int = 2
    marks: bool = True
    hash_bits: int = 20
    group_weights: tuple[float, float] = (1.0, 1.0)
    count_unknown: bool = True
    least_known: float | None = None
    max_name_bytes: int = 4_000_000
    unicode_words: bool = False  # models that were saved before there was a choice do without

    def __post_init__(self) -> None:
        low, high = self.char_ngrams
        if not (0 <= low <= high <= 64) or (low == 0) != (high == 0):
            raise ValueError(
                f"char_ngrams is {self.char_ngrams}; give the shortest and longest length, (0, 0) for none."
            )
        if not 0 <= self.word_ngrams <= MOST_TOKENS:
            raise ValueError(f"word_ngrams is {self.word_ngrams}; it must be from 0 to {MOST_TOKENS}.")
        if high == 0 and self.word_ngrams == 0:
            raise ValueError("char_ngrams and word_ngrams are both off; a text needs one of them.")
        if not 4 <= self.hash_bits <= 24:
            raise ValueError(f"hash_bits is {self.hash_bits}; it must be from 4 to 24.")
        weights = self.group_weights
        if len(weights) != 2 or not all(0.0 < weight < np.inf for weight in weights):
            raise ValueError(
                f"group_weights is {weights}; give two positive numbers, for characters and for words."
            )
        if self.least_known is not None and not 0.0 <= self.least_known <= 1.0:
            raise ValueError(f"least_known is {self.least_known}; it must be from 0 to 1.")
        if self.max_name_bytes < 0:
            raise ValueError(f"max_name_bytes is {self.max_name_bytes}; it must be at least 0.")

    @property
    def n_buckets(self) -> int:
        """Buckets of all groups."""
        return N_GROUPS << self.hash_bits

    @property
    def sizes(self) -> Sizes:
        """The same for the kernels."""
        return Sizes(*self.char_ngrams, self.word_ngrams, int(self.marks), self.hash_bits)

    def most_ngrams(self, n_characters: int) -> int:
        """Return the most n-grams that `n_characters` can have, spaces included."""
        low, high = self.char_ngrams
        # A word of l characters and a space has at most l + 1 n-grams of each length from two, and l + 2 of
        # length one.
        return n_characters * ((high - low + 2) * (high > 0) + self.word_ngrams)


class Occurrences(NamedTuple):
    """Known n-grams of one text, one entry for each place where one is found.

    Attributes
    ----------
    text : str
        The text in lower case, to which the places refer.
    columns, starts, lengths : int32
        Column, first character (-1 for the space before the text) and number of characters.
    orders : uint8
        Number of words and marks; 0 for character n-grams.
    tokens : list of (int, int, int)
        Beginning, end and kind of each word and mark, known or not.
    """

    text: str
    columns: Int32
    starts: Int32
    lengths: Int32
    orders: NDArray[np.uint8]
    tokens: list[tuple[int, int, int]]

    @property
    def names(self) -> list[str]:
        """The n-grams, spelled as `NgramFeatures.column_names` spells them."""
        return [
            spell(cut_out(self.text, start, length), order == 0)
            for start, length, order in zip(
                self.starts.tolist(), self.lengths.tolist(), self.orders.tolist(), strict=True
            )
        ]


@register("text", KIND)
class NgramFeatures(TransformerMixin, BaseEstimator, auto_wrap_output_keys=()):  # type: ignore[call-arg]
    """Sparse TF-IDF features of texts, as a scikit-learn transformer.

    Parameters
    ----------
    char_ngrams : (int, int), optional
        Shortest and longest character n-gram within word boundaries; (0, 0) for none. By default (4, 4) for
        texts of three words or more on average, and (2, 5) for names and for writing without spaces.
    word_ngrams : int
        Longest run of words, 2 for words and pairs; 0 for none.
    marks : bool
        Whether a punctuation mark counts as a word inside longer runs: ``@ types``.
    hash_bits : int
        Character n-grams, single words and runs of words have ``2 ** hash_bits`` buckets each; those that
        occur are the columns.
    group_weights : (float, float)
        Length of the part of character n-grams and of the part of words, before the row is scaled to unit
        length.
    count_unknown : bool
        Whether n-grams that no training text has count in the length of a row, as those of a single text do:
        the row of a text with new words is then shorter than one, and its scores are closer to one another.
    least_known : float, optional
        A text of which no word is known has a row of zeros, unless this fraction of its character n-grams is
        known. By default 0.45, or less where many training texts have a smaller fraction in common with the
        others: in writing without spaces a word hardly ever occurs twice.
    max_name_bytes : int
        Bytes for the spelling of columns, see `keep_names`.
    unicode_words : bool
        Whether vowel signs and accents belong to the letter before them, and letters of writing without
        spaces (Chinese, hiragana, Thai, ...) are words each. Without, a word ends at every sign.

    Attributes
    ----------
    buckets_ : int32 (n_columns,)
        Hash of each column, rising: characters, words, runs of words, ``2 ** hash_bits`` buckets each.
    text_counts_ : int64 (n_columns,)
        Number of training texts that have the column.
    n_texts_ : int
        Number of training texts.
    idf_ : float32 (n_columns,)
        Weights of the columns.
    least_known_ : float
        The fraction in use.

    Examples
    --------
    >>> from extremax.features.ngrams import NgramFeatures
    >>> texts = ["fell off a ladder", "fell from a ladder", "bitten by a dog", "bitten by a cat"]
    >>> features = NgramFeatures().fit(texts)
    >>> X = features.transform(["a dog's bite", "", "zzzzqqq"])
    >>> X.shape == (3, features.n_features), X.getnnz(axis=1).tolist()[1:]
    (True, [0, 0])
    """

    is_sparse: ClassVar[bool] = True
    buckets_: Int32
    text_counts_: Int64
    n_texts_: int
    least_known_: float

    _filter: NDArray[np.uint8]
    _names: _Names
    _fitted: NgramOptions  # parameters of the last fit
    _first: Int32 | None = None  # (n_columns, 3): text, start and length, until the names are kept

    def __init__(  # noqa: PLR0913 (the parameters are the API)
        self,
        *,
        char_ngrams: tuple[int, int] | None = None,
        word_ngrams: int = 2,
        marks: bool = True,
        hash_bits: int = 20,
        group_weights: tuple[float, float] = (1.0, 1.0),
        count_unknown: bool = True,
        least_known: float | None = None,
        max_name_bytes: int = 4_000_000,
        unicode_words: bool = True,
    ) -> None:
        self.char_ngrams = char_ngrams
        self.word_ngrams = word_ngrams
        self.marks = marks
        self.hash_bits = hash_bits
        self.group_weights = group_weights
        self.count_unknown = count_unknown
        self.least_known = least_known
        self.max_name_bytes = max_name_bytes
        self.unicode_words = unicode_words

    @property
    def options(self) -> NgramOptions:
        """The parameters of the last fit or, before it, those that are set; bad ones are a ValueError."""
        fitted: NgramOptions | None = self.__dict__.get("_fitted")
        return self._options_for([]) if fitted is None else fitted

    @property
    def n_features(self) -> int:
        """Width of the features of a fitted object; one column of zeros if no text had any n-gram."""
        return max(1, len(self.buckets_))

    @cached_property
    def idf_(self) -> Float32:
        """Weights of the columns."""
        idf: Float32 = (1.0 + np.log((1.0 + self.n_texts_) / (1.0 + self.text_counts_))).astype(np.float32)
        return idf

    @property
    def n_character_columns(self) -> int:
        """Number of columns of character n-grams, which come first."""
        return int(np.searchsorted(self.buckets_, 1 << self.options.hash_bits))

    @property
    def first_run(self) -> int:
        """The first column of runs of words, behind those of single words."""
        return int(np.searchsorted(self.buckets_, 2 << self.options.hash_bits))

    @property
    def column_groups(self) -> tuple[int, ...]:
        """First columns of the groups behind character n-grams: single words, runs of words."""
        return self.n_character_columns, self.first_run

    # -- fit and transform ---------------------------------------------------------------------------------

    def fit(
        self,
        texts: Sequence[str],
        y: Any = None,
        *,
        n_jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Find the columns and their weights; `y` is not used.

        `progress` is called with the number of texts done and of all texts.
        """
        self._fit(texts, n_jobs, progress)
        return self

    def _fit(
        self,
        texts: Sequence[str],
        n_jobs: int | None,
        progress: Callable[[int, int], None] | None,
        rows: _Rows | None = None,
    ) -> None:
        """Find the columns and their weights; append buckets and counts of the texts to `rows`."""
        check_texts(texts)
        if len(texts) == 0:
            raise ValueError("texts is empty; fit needs at least one text.")
        self._fitted = self._options_for(texts)
        seen = self._learn(texts, resolve_threads(n_jobs), progress, rows)
        self._forget_caches()
        self.buckets_ = np.flatnonzero(seen.n_texts).astype(np.int32)
        self.text_counts_ = seen.n_texts[self.buckets_].astype(np.int64)
        self.n_texts_ = len(texts)
        self._filter = _fold(seen.filter)
        self._first = seen.first[self.buckets_]
        self._names = _Names.none()
        chosen = self.options.least_known
        self.least_known_ = self._choose_least_known(texts) if chosen is None else chosen

    def fit_bytes(self, texts: Sequence[str], n_threads: int) -> dict[str, int]:
        """Return the bytes that `fit` and `transform` of the texts take, by part, from a sample of them."""
        options = self._options_for(texts)
        sample = texts[:: max(1, len(texts) // _COUNTED)]
        found = [
            buckets.copy()
            for first, last in text_blocks(sample)
            for rows in [_group(sample[first:last], options).rows]
            for buckets in np.split(rows.columns, rows.ends[:-1])
        ]
        factor = len(texts) / max(len(sample), 1)
        entries = int(factor * sum(map(len, found)))
        # Columns grow as a power of the number of texts: that between half of the sample and all of it.
        half, every = (len(np.unique(np.concatenate(part))) if part else 1 for part in (found[::2], found))
        power = np.log2(every / max(half, 1)) if every > half > 0 else 0.0
        columns = min(int(every * factor**power), entries, options.n_buckets)
        counting = min(n_threads, _MOST_TABLES) * (16 * options.n_buckets + (1 << (_FILTER_BITS - 3)))
        kept = 28 * columns
        return {"text features": 8 * entries + 8 * len(texts), "tables of n-grams": counting + kept}

    @property
    def n_bytes(self) -> int:
        """Bytes of the fitted features."""
        first = 0 if self._first is None else self._first.nbytes
        arrays = self.buckets_, self.text_counts_, self.idf_, self._filter, self._weighing.places
        return int(first + sum(array.nbytes for array in arrays))

    def _choose_least_known(self, texts: Sequence[str]) -> float:
        """Return the fraction of known character n-grams that nearly every training text has by the others.

        Texts that are left out of the training texts are like new ones: an n-gram of two texts or more stays
        known.
        """
        sample = texts[:: max(1, len(texts) // _SAMPLE)]
        repeated = np.zeros(self.options.n_buckets, bool)
        repeated[self.buckets_] = self.text_counts_ > 1
        fractions = []
        for first, last in text_blocks(sample):
            buckets, counts, ends = _group(sample[first:last], self.options).rows
            text = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
            counts = counts * (buckets < 1 << self.options.hash_bits)
            known, every = (np.bincount(text, c, len(ends)) for c in (counts * repeated[buckets], counts))
            fractions.append(known[every > 0] / every[every > 0])
        found = np.concatenate(fractions)
        return min(_LEAST_KNOWN, float(np.quantile(found, _LEAST_KNOWN_QUANTILE))) if len(found) else 0.0

    def transform(self, texts: Sequence[str], *, n_jobs: int | None = None) -> sp.csr_matrix:
        """Return TF-IDF of the texts, CSR float32 (n_texts, n_features), columns rising.

        Rows have unit length; with `count_unknown`, those of texts with new n-grams are shorter.
        A text that says nothing to the model is all zero.
        """
        self._check_fitted()
        check_texts(texts)
        blocks = text_blocks(texts)
        # Counting processors takes as long as a short text.
        n_threads = 1 if len(blocks) == 1 and n_jobs != 0 else resolve_threads(n_jobs)
        rows, weighing = _Rows(len(texts)), self._weighing
        for first, last in split(len(blocks), _GROUP_BLOCKS * n_threads):
            parts: list[Any] = [None] * (last - first)

            def weigh(i: int, first: int = first, parts: list[Any] = parts) -> None:
                parts[i] = self._weigh_block(texts[slice(*blocks[first + i])], weighing)

            run(weigh, last - first, n_threads)
            rows.add(parts)
        return rows.matrix(self.n_features)

    def fit_transform(
        self,
        texts: Sequence[str],
        y: Any = None,
        *,
        n_jobs: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> sp.csr_matrix:
        """Fit to the texts and return their features, for half the work of both; `y` is not used."""
        rows = _Rows(len(texts))
        self._fit(texts, n_jobs, progress, rows)
        weighing, tasks = self._weighing, split(len(texts), _TASK_ROWS)

        def weigh(i: int) -> None:
            part = rows.part(*tasks[i])
            part.columns[:] = weighing.places[part.columns]
            weigh_rows(weighing, np.zeros(1), part.ends, part.columns, part.values)

        run(weigh, len(tasks), resolve_threads(n_jobs))
        return rows.matrix(self.n_features)

    def occurrences(self, text: str) -> Occurrences:
        """Return the known n-grams of a text, with their places."""
        self._check_fitted()
        check_texts([text])
        bits = self.options.hash_bits
        keys, *places, orders = _find([text], self.options)[0]
        buckets = (np.minimum(orders, N_GROUPS - 1).astype(np.int64) << bits) + (keys >> (64 - bits)).astype(
            np.int64
        )
        columns = self._weighing.places[buckets]
        known = columns >= 0
        lowered = text.lower()
        tokens = cut_tokens(lowered, self.options.unicode_words)
        starts, lengths, found = (array[known] for array in (*places, orders))
        return Occurrences(lowered, columns[known], starts, lengths, found, tokens)

    # -- names ---------------------------------------------------------------------------------------------

    def keep_names(self, texts: Sequence[str], columns: NDArray[np.integer[Any]]) -> Self:
        """Keep the spelling of some columns: of each the first n-gram of the training texts that it got.

        Parameters
        ----------
        texts : sequence of str
            The texts that `fit` was called with.
        columns : int array
            Columns, most important first: names are kept until `max_name_bytes` are used.
        """
        self._check_fitted()
        if self._first is None:
            raise ValueError("names are kept once, after fit and before the features are saved.")
        self._names = _Names.of(list(texts), self._first, columns, self.options.max_name_bytes)
        self._first = None
        return self

    def column_names(self, columns: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """Return the n-grams of columns.

        A word or a pair is spelled as it is, ``fell off``.  Character n-grams show where they are cut off:
        ``ladd…`` begins a word, ``…dder`` ends one, ``…adde…`` is inside; ``[at]`` is a whole word.  A column
        without a name is shown as ``#`` and its hash.
        """
        self._check_fitted()
        n_characters = self.n_character_columns
        found = ((int(column), self._names.find(int(column))) for column in columns)
        return [
            f"#{self.buckets_[column]}" if name is None else spell(name, column < n_characters)
            for column, name in found
        ]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of all columns, as scikit-learn asks for them; `input_features` is not used.

        Columns have names after `keep_names`; `TextClassifier` calls it for those of the greatest weights.
        """
        self._check_fitted()
        return np.array([*self.column_names(range(len(self.buckets_))), ""][: self.n_features], dtype=object)

    # -- state ---------------------------------------------------------------------------------------------

    def to_options(self) -> dict[str, Any]:
        """Return the parameters: ``NgramFeatures(**features.to_options())`` makes another."""
        options: dict[str, Any] = self.get_params(deep=False)
        return options

    def state(self) -> State:
        """Return the state that a model folder stores: a JSON header and arrays."""
        self._check_fitted()
        header = {
            "kind": KIND,
            "format_version": FORMAT_VERSION,
            "options": msgspec.to_builtins(self._fitted),
            "n_texts": self.n_texts_,
            "least_known": self.least_known_,
        }
        present = np.zeros(self.options.n_buckets, dtype=np.bool_)
        present[self.buckets_] = True
        large = self.text_counts_ >= _BYTE
        arrays: dict[str, NDArray[Any]] = {
            "buckets": np.packbits(present),
            "text_counts": np.where(large, _BYTE, self.text_counts_).astype(np.uint8),
            "large_text_counts": self.text_counts_[large],
            "filter": self._filter,
            **self._names.arrays(len(self.buckets_)),
        }
        return State(header, arrays)

    @classmethod
    def from_state(cls, state: State) -> NgramFeatures:
        """Restore features from their state."""
        header, arrays = state.header, state.arrays
        if header.get("kind") != KIND or header.get("format_version") != FORMAT_VERSION:
            kind, version = header.get("kind"), header.get("format_version")
            raise ValueError(
                f"header says kind {kind!r}, version {version!r}; this reads {KIND!r}, {FORMAT_VERSION}."
            )
        try:
            options = msgspec.convert(checks.get_mapping(header, "options"), NgramOptions)
        except msgspec.ValidationError as error:
            checks.reject(f"options of n-grams: {error}")
        features = cls(**msgspec.structs.asdict(options))
        features._fitted = options
        u1 = ("buckets", "text_counts", "filter", "named", "name_lengths", "name_utf8")
        arrays = {name: checks.get_array(arrays, name, "u1", (None,)) for name in u1} | {
            "large_text_counts": checks.get_array(arrays, "large_text_counts", "i8", (None,))
        }
        n_texts = checks.get_int(header, "n_texts", 0, 2**53)
        present = np.unpackbits(arrays["buckets"])
        counts = arrays["text_counts"].astype(np.int64)
        large = counts == _BYTE
        sizes = len(present), int(present.sum()), int(large.sum())
        if sizes != (features.options.n_buckets, len(counts), len(arrays["large_text_counts"])):
            raise ValueError(
                f"sizes {sizes} of buckets, columns and large counts do not fit the {len(counts)} columns and"
                f" {len(arrays['large_text_counts'])} large counts that are stored."
            )
        n_bits = 8 * len(arrays["filter"])
        if n_bits < 8 or n_bits & (n_bits - 1):
            raise ValueError(f"the filter has {n_bits} bits; it must have a power of two.")
        counts[large] = arrays["large_text_counts"]
        checks.check_range(counts, "text_counts", 0, n_texts + 1)
        features.buckets_ = np.flatnonzero(present).astype(np.int32)
        features.text_counts_, features.n_texts_ = counts, n_texts
        features.least_known_ = checks.get_float(header, "least_known", 0.0, 1.0)
        features._filter = arrays["filter"]
        features._names = _Names.from_arrays(arrays, len(counts))
        return features

    # -- inside --------------------------------------------------------------------------------------------

    def _options_for(self, texts: Sequence[str]) -> NgramOptions:
        """Return the parameters for some texts, with character n-grams that suit them if none are given."""
        given = self.to_options()
        if given["char_ngrams"] is None:
            sample = texts[:: max(1, len(texts) // _SAMPLE)]
            n_words = sum(len(text.split()) for text in sample)
            given["char_ngrams"] = (
                _IN_TEXTS if n_words >= _WORDS_OF_A_TEXT * max(len(sample), 1) else _IN_NAMES
            )
        return NgramOptions(**given)

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("these NgramFeatures are not fitted; call fit(texts) first.")

    def __sklearn_is_fitted__(self) -> bool:
        return "buckets_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _forget_caches(self) -> None:
        for name in _CACHES:
            self.__dict__.pop(name, None)

    @property
    def _unknown_square(self) -> float:
        """Square of the weight of an n-gram of one training text, if unknown ones count as such."""
        return float(1.0 + np.log((1.0 + self.n_texts_) / 2.0)) ** 2 if self.options.count_unknown else 0.0

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _CACHES}

    @cached_property
    def _weighing(self) -> Weighing:
        places = np.full(self.options.n_buckets, NO_TOKENS, dtype=np.int32)
        places[: 1 << self.options.hash_bits] = NO_CHARACTERS
        places[self.buckets_] = np.arange(len(self.buckets_), dtype=np.int32)
        weights = read_only(self.options.group_weights)
        return Weighing(read_only(places, np.int32), read_only(self.idf_), self.n_character_columns, weights)

    def _weigh_block(self, texts: Sequence[str], weighing: Weighing) -> _Part:
        found, ends, _, rows = _group(texts, self.options)
        says = np.empty(len(texts), np.bool_)
        bits = read_only(self._filter, np.uint8)
        find_known(found.keys, found.orders, ends, bits, self.least_known_, says)
        buckets, values, row_ends = _drop(rows, says)
        columns = weighing.places[buckets]
        squares = np.full(int(np.diff(ends, prepend=0).max()) + 1, self._unknown_square)
        squares[0] = 0.0
        weigh_rows(weighing, np.cumsum(squares), row_ends, columns, values)
        return _Part(columns[: row_ends[-1]], values[: row_ends[-1]], row_ends)

    def _learn(
        self,
        texts: Sequence[str],
        n_threads: int,
        progress: Callable[[int, int], None] | None,
        rows: _Rows | None,
    ) -> Seen:
        """Count the n-grams of the training texts by bucket; append the buckets of each text to `rows`."""
        executor = current_executor()
        if executor.n_places > 1:
            return self._learn_apart(texts, executor, progress, rows)
        n_threads = min(n_threads, _MOST_TABLES)
        tables = Scratch(lambda: _empty_seen(self.options.n_buckets))
        blocks = text_blocks(texts)
        for first, last in split(len(blocks), _GROUP_BLOCKS * n_threads):
            parts: list[Any] = [None] * (last - first)

            def learn(i: int, first: int = first, parts: list[Any] = parts) -> None:
                start, stop = blocks[first + i]
                with tables.use() as seen:
                    parts[i] = _learn_block(texts[start:stop], start, self.options, seen)

            run(learn, last - first, n_threads)
            if rows is not None:
                rows.add(parts)
            if progress is not None:
                progress(blocks[last - 1][1], len(texts))
        total, *others = tables.all
        for other in others:
            _add_seen(total, *_known_buckets(other))
        return total

    def _learn_apart(
        self,
        texts: Sequence[str],
        executor: Executor,
        progress: Callable[[int, int], None] | None,
        rows: _Rows | None,
    ) -> Seen:
        """Count the n-grams as `_learn` does, on several machines."""
        total, blocks = _empty_seen(self.options.n_buckets), text_blocks(texts)
        size = -(-len(blocks) // (_SHARES * executor.n_places))
        shares = [(blocks[a][0], blocks[b - 1][1]) for a, b in split(len(blocks), size)]
        shared = self.options, rows is not None

        def task(i: int) -> tuple[list[str], int]:
            first, last = shares[i]
            return list(texts[first:last]), first

        found = executor.map(_begin_ngrams, shared, len(shares), task, 1)
        for (_, last), (parts, *seen) in zip(shares, found, strict=True):
            _add_seen(total, *seen)
            if rows is not None:
                rows.add(parts)
            if progress is not None:
                progress(last, len(texts))
        return total


def _learn_block(texts: Sequence[str], start: int, options: NgramOptions, seen: Seen) -> _Part:
    """Count the n-grams of a block of texts, the first of which has number `start`; return its rows."""
    found, ends, firsts, own = _group(texts, options)
    says = np.empty(len(texts), np.bool_)
    learn_texts(found, ends, start, firsts, own.columns, own.ends, seen, says)
    return _drop(own, says)


def _begin_ngrams(options: NgramOptions, keeps_rows: bool) -> Work:
    """Count the n-grams of some texts; return their rows, and what was seen in the buckets that have any."""

    def count(texts: list[str], start: int) -> tuple[list[_Part], Int64, Int32, NDArray[np.uint8]]:
        seen, parts = _empty_seen(options.n_buckets), []
        for first, last in text_blocks(texts):
            part = _learn_block(texts[first:last], start + first, options, seen)
            if keeps_rows:
                parts.append(part)
        return parts, *_known_buckets(seen)

    return count


def _known_buckets(seen: Seen) -> tuple[Int64, Int32, NDArray[np.uint8]]:
    """Return the buckets that any text has, their lines of the table, and the filter."""
    buckets = np.flatnonzero(seen.n_texts)
    return buckets, seen.table[buckets], seen.filter


def _add_seen(total: Seen, buckets: Int64, lines: Int32, bits: NDArray[np.uint8]) -> None:
    """Add what was seen in other texts."""
    known = total.table[buckets]
    is_earlier = (known[:, 0] == 0) | (lines[:, 1] < known[:, 1])
    counts = known[:, 0] + lines[:, 0]
    known[is_earlier] = lines[is_earlier]
    known[:, 0] = counts
    total.table[buckets] = known
    total.filter[:] |= bits


def cut_out(text: str, start: int, length: int) -> str:
    """Return the n-gram at a place of a text in lower case, with one space for all spaces in a place."""
    piece = text[max(0, start) : start + length]
    before = " " if start < 0 or piece[:1].isspace() else ""
    after = " " if start + length > len(text) or piece[-1:].isspace() else ""
    return before + " ".join(piece.split()) + after


def spell(ngram: str, of_characters: bool) -> str:
    """Return an n-gram as it is shown: see `NgramFeatures.column_names`.

    Examples
    --------
    >>> spell("fell off", False), spell(" fel", True), spell("el", True), spell(" of ", True)
    ('fell off', 'fel…', '…el…', '[of]')
    """
    if not of_characters:
        return ngram
    begins, ends = ngram.startswith(" "), ngram.endswith(" ")
    inside = ngram.strip()
    if begins and ends:
        return f"[{inside}]"
    return f"{'' if begins else '…'}{inside}{'' if ends else '…'}"


class _Part(NamedTuple):
    """Rows of a block: columns or buckets, weights or counts, and the end of each row."""

    columns: Int32
    values: Float32
    ends: Int64


class _Block(NamedTuple):
    """N-grams of a block, the end of each text's, the first in each bucket of a row, and the rows."""

    found: Found
    ends: Int64
    firsts: Int32
    rows: _Part


def _find(texts: Sequence[str], options: NgramOptions) -> tuple[Found, Int64]:
    """Return the n-grams of texts, and the end of those of each."""
    codes, kinds, text_ends = code_points(texts, options.unicode_words)
    most = options.most_ngrams(len(codes))
    found = Found(*(np.empty(most, kind) for kind in (np.uint64, np.int32, np.int32, np.uint8)))
    ends = np.empty(len(texts), np.int64)
    recent = np.empty((2, MOST_TOKENS), np.uint64)
    find_ngrams(codes, kinds, text_ends, options.sizes, recent, found, ends)
    return Found(*(array[: ends[-1]] for array in found)), ends


def _group(texts: Sequence[str], options: NgramOptions) -> _Block:
    """Return the n-grams of texts, and their buckets with the number of n-grams in each."""
    found, ends = _find(texts, options)
    firsts, buckets, counts = (np.empty(ends[-1], kind) for kind in (np.int32, np.int32, np.float32))
    row_ends = np.empty(len(texts), np.int64)
    work = np.empty(2 * int(np.diff(ends, prepend=0).max()) + N_DIGITS, np.int64)
    group_ngrams(found.keys, found.orders, ends, options.hash_bits, work, firsts, buckets, counts, row_ends)
    n = row_ends[-1]
    return _Block(found, ends, firsts, _Part(buckets[:n], counts[:n], row_ends))


def _drop(rows: _Part, says: NDArray[np.bool_]) -> _Part:
    """Empty the rows of texts that say nothing to the model."""
    if says.all():
        return rows
    sizes = np.diff(rows.ends, prepend=0)
    kept = np.repeat(says, sizes)
    return _Part(rows.columns[kept], rows.values[kept], np.cumsum(sizes * says))


class _Rows:
    """Rows of all blocks so far, in arrays that grow; the system moves large ones without a copy."""

    def __init__(self, n_rows: int) -> None:
        self._ends, self._n_rows = np.zeros(1 + n_rows, np.int64), 0
        self._columns, self._values = np.empty(0, np.int32), np.empty(0, np.float32)

    def add(self, parts: list[_Part]) -> None:
        """Append the rows of some blocks."""
        size = int(self._ends[self._n_rows])
        room = size + sum(len(part.columns) for part in parts)
        if room > len(self._columns):
            self._resize(max(room, 3 * len(self._columns) // 2))
        for part in parts:
            first, last = self._n_rows, self._n_rows + len(part.ends)
            self._ends[first + 1 : last + 1] = part.ends + self._ends[first]
            self._n_rows = last
            stored = self.part(first, last)
            stored.columns[:], stored.values[:] = part.columns, part.values

    def part(self, first: int, last: int) -> _Part:
        """Return some rows: views of columns and values, which may be changed, and ends."""
        start, stop = self._ends[first], self._ends[last]
        ends = self._ends[first + 1 : last + 1] - start
        return _Part(self._columns[start:stop], self._values[start:stop], ends)

    def _resize(self, size: int) -> None:
        for array in (self._columns, self._values):
            array.resize(size, refcheck=False)  # no view of them is left

    def matrix(self, n_columns: int) -> sp.csr_matrix:
        """Return the rows as a matrix; the object must not be used any more."""
        size = int(self._ends[-1])
        self._resize(size)
        kind = np.int32 if size <= np.iinfo(np.int32).max else np.int64
        indices, indptr = self._columns.astype(kind, copy=False), self._ends.astype(kind)
        X = sp.csr_matrix((self._values, indices, indptr), shape=(self._n_rows, n_columns))
        X.has_sorted_indices = X.has_canonical_format = True
        return X


def _empty_seen(n_buckets: int) -> Seen:
    return Seen(np.zeros((n_buckets, 4), np.int32), np.zeros(1 << (_FILTER_BITS - 3), np.uint8))


def _fold(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a filter of half the size as long as few of its bits are set."""
    while len(bits) > 1:
        half = bits[: len(bits) // 2] | bits[len(bits) // 2 :]
        if int(np.unpackbits(half).sum()) > _FILTER_FILL * 8 * len(half):
            break
        bits = half
    return bits.copy()


class _Names(NamedTuple):
    """N-grams of some columns: the columns, rising, and the UTF-8 of each n-gram."""

    columns: Int32
    ends: Int64
    utf8: NDArray[np.uint8]

    @classmethod
    def none(cls) -> _Names:
        return cls(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.uint8))

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        first: Int32,
        columns: NDArray[np.integer[Any]],
        max_bytes: int,
    ) -> _Names:
        columns = columns[columns < len(first)]  # texts without n-grams have one column of zeros
        least = np.cumsum(first[columns, 2] + 1, dtype=np.int64)  # a character has at least one byte
        wanted = columns[: int(np.searchsorted(least, max_bytes, side="right"))]
        coded = [b""] * len(wanted)
        number, text = -1, ""
        order = np.argsort(first[wanted, 0], kind="stable")  # each text once
        for i, place in zip(order.tolist(), first[wanted[order]].tolist(), strict=True):
            if place[0] != number:
                number = place[0]
                text = texts[number].lower()
            coded[i] = cut_out(text, place[1], place[2]).encode(errors="replace")
        sizes = np.array([len(name) for name in coded], dtype=np.int64)
        kept = np.flatnonzero((sizes <= _LONGEST_NAME) & (np.cumsum(sizes + 1) <= max_bytes))
        kept = kept[np.argsort(wanted[kept], kind="stable")]
        utf8 = np.frombuffer(b"".join([coded[i] for i in kept.tolist()]), dtype=np.uint8)
        return cls(wanted[kept].astype(np.int32), np.cumsum(sizes[kept], dtype=np.int64), utf8)

    def find(self, column: int) -> str | None:
        """Return the name of a column, or None."""
        at = int(np.searchsorted(self.columns, column))
        if at == len(self.columns) or self.columns[at] != column:
            return None
        start = int(self.ends[at - 1]) if at else 0
        return self.utf8[start : int(self.ends[at])].tobytes().decode(errors="replace")

    def arrays(self, n_columns: int) -> dict[str, NDArray[Any]]:
        named = np.zeros(n_columns, dtype=np.bool_)
        named[self.columns] = True
        lengths = np.diff(self.ends, prepend=0).astype(np.uint8)
        return {"named": np.packbits(named), "name_lengths": lengths, "name_utf8": self.utf8}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], n_columns: int) -> _Names:
        columns = np.flatnonzero(np.unpackbits(arrays["named"], count=n_columns)).astype(np.int32)
        ends = np.cumsum(arrays["name_lengths"], dtype=np.int64)
        if len(columns) != len(ends) or (ends[-1] if len(ends) else 0) != len(arrays["name_utf8"]):
            raise ValueError(
                f"{len(columns)} named columns, {len(ends)} lengths and {len(arrays['name_utf8'])} bytes of"
                " names do not fit together."
            )
        return cls(columns, ends, arrays["name_utf8"])
