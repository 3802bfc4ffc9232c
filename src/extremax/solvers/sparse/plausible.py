"""Plausible classes of each row, and linear weights of each class from the rows it is plausible for.

The start proposes the classes (`extremax.kernels.sparse_start.propose`), so that the cost follows the rows,
not rows times classes.  The solver stands in `extremax.kernels.plausible`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels import plausible, postings, sparse_start
from extremax.kernels.plausible import Listing, Local, Options, Problem
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_dual import Candidates, list_pairs
from extremax.kernels.sparse_start import Numbers, Proposals, Sums
from extremax.runtime.executor import THREADS, Check, Executor, Work, unchecked
from extremax.runtime.products import count_indices, square_sums
from extremax.runtime.scratch import Scratch
from extremax.runtime.threads import run, split
from extremax.scores.sparse import SparseWeights, packed_kinds, prune_postings, running_counts
from extremax.tuned import SparseConfig
from extremax.types import Bool, Float32, Int32, Int64

_ROWS_PER_TASK = 256
_TASK_ENTRIES = 1 << 21  # entries of the rows of the classes of a task
_LINES_AT_ONCE = 1 << 14  # pairs whose candidates are copied at a time


class Job(NamedTuple):
    """How to work: tuned numbers, seed, threads, whom to tell of progress, what columns are, and where."""

    config: SparseConfig
    seed: int
    n_threads: int
    check: Check = unchecked
    first_word: int = 0  # the columns before it are parts of words
    is_text: bool = False
    executor: Executor = THREADS


class TrainingRows(NamedTuple):
    """Pairs, their rows as the kernels take them, and the mean of each feature where it is not zero."""

    data: Examples
    rows: CSRRows
    mean: Float32


def linear_rows(training: TrainingRows, job: Job) -> TrainingRows:
    """Return the rows that linear weights read: where entries are many, without parts of words.

    Nine of ten entries of a text are parts of words, and the start has weights on them. Texts of few words,
    such as names, keep them. Columns keep their numbers.
    """
    rows = training.rows
    kept = rows.indices >= job.first_word
    if len(kept) <= job.config.max_entries or not has_many_words(rows, job) or kept.all():
        return training
    ends = running_counts(kept)[rows.indptr]
    return training._replace(rows=CSRRows(rows.data[kept], rows.indices[kept], ends))


def has_many_words(rows: CSRRows, job: Job) -> bool:
    """Whether texts are of several words; names are not."""
    n_words = np.count_nonzero(rows.indices >= job.first_word)
    return bool(n_words >= job.config.many_words * len(rows.indptr))


class Plausible(NamedTuple):
    """The most plausible other classes of each row of X, by the scores of another model.

    Attributes
    ----------
    classes : int32 (n_rows, n_slots)
        -1 where there are fewer, and for rows without a label.
    scores, log_rest : float32 (n_rows, n_slots), (n_rows,), or both empty
        Scores of the first classes, and the log of the mass of all others.
    """

    classes: Int32
    scores: Float32
    log_rest: Float32

    def joined(self, other: Plausible) -> Plausible:
        """Return these with the classes of another search that are not among them."""
        classes = other.classes.copy()
        for first, last in split(len(classes), _LINES_AT_ONCE // 8):
            known = (classes[first:last, :, None] == self.classes[first:last, None, :]).any(axis=2)
            classes[first:last][known] = -1
        return self._replace(classes=np.hstack([self.classes, classes]))


class Duals(NamedTuple):
    """Dual variables of linear weights, from which a fit on more rows or classes goes on.

    Attributes
    ----------
    own : float32 (n_pairs,)
    others : float32 (n_rows, n_slots)
        Of the plausible classes of each row.
    """

    own: Float32
    others: Float32

    @classmethod
    def none(cls, data: Examples, found: Plausible) -> Duals:
        """Return variables of zero, from which weights of zero follow."""
        return cls(np.zeros(data.n_pairs, np.float32), np.zeros(found.classes.shape, np.float32))

    def of(self, before: Examples, after: Examples, found: Plausible) -> Duals:
        """Return them for further pairs, and with further classes of each row behind the others."""
        more = Duals.none(after, found)
        more.others[:, : self.others.shape[1]] = self.others
        keys = [data.rows * (1 << 32) + data.y for data in (before, after)]
        more.own[np.searchsorted(keys[1], keys[0])] = self.own
        return more


def feature_mean(rows: CSRRows, n_features: int, used: Bool | None = None) -> Float32:
    """Return the mean size of each feature over the rows that have it, of those that are `used`."""
    indices, sizes = rows.indices, np.abs(rows.data)
    if used is not None:
        kept = np.repeat(used, np.diff(rows.indptr))
        indices, sizes = indices[kept], sizes[kept]
    total = np.bincount(indices, weights=sizes, minlength=n_features)
    count = np.bincount(indices, minlength=n_features)
    return (total / np.maximum(count, 1)).astype(np.float32)


def limit_postings(postings: Postings, training: TrainingRows, job: Job, row_work: int) -> Postings:
    """Return the postings that a search reads: without parts of words and longest columns.

    Parts of words, ten times as many as words, are left out where the mean row reads more than
    ``config.row_work`` postings, and then the longest columns until it reads at most `row_work` of them,
    however many rows there are.
    """
    config, lengths = job.config, np.diff(postings.offsets)
    reads = count_indices(training.rows.indices, len(lengths)) * lengths
    n_rows = max(len(training.rows.indptr) - 1, 1)
    if reads.sum() <= config.row_work * n_rows:
        return postings
    reads[: job.first_word] = 0
    by_length = np.argsort(lengths, kind="stable")
    is_kept, work = np.zeros(len(lengths), bool), np.cumsum(reads[by_length])
    is_kept[by_length[: int(np.searchsorted(work, row_work * n_rows, side="right"))]] = True
    is_kept[: job.first_word] = False
    entries, ends = np.repeat(is_kept, lengths), np.append(0, np.cumsum(lengths * is_kept))
    classes, values = postings.classes[entries], postings.values[entries]
    return postings._replace(offsets=ends, classes=classes, values=values)


def find_plausible(
    training: TrainingRows,
    weights: SparseWeights,
    n_slots: int,
    job: Job,
    *,
    needs_rest: bool = False,
    row_work: int | None = None,
) -> Plausible:
    """Find the classes that each row of the examples is most likely to be taken for, its own apart.

    `weights` have no dense part. With `row_work`, scores are those of the postings that `limit_postings`
    leaves: several nats below those of all, with which other models can be compared.
    """
    data, rows, n_rows = training.data, training.rows, len(training.rows.indptr) - 1
    used, first = np.unique(data.rows, return_index=True)
    edges, labels = np.append(first, data.n_pairs).astype(np.int64), np.ascontiguousarray(data.y, np.int32)
    biases = weights.biases, weights.length_biases
    kinds = None if row_work is None else packed_kinds(len(biases[0]))  # enough for what only ranks
    postings = prune_postings(weights.postings, training.mean, job.config.prune, job.n_threads, kinds)
    del weights  # may be many times as large
    if row_work is not None:
        postings = limit_postings(postings, training, job, row_work)
    found = _empty_proposals(n_rows, n_slots, needs_rest)
    cuts = split(len(used), _ROWS_PER_TASK)

    def task(i: int) -> tuple[Any, ...]:
        a, b = cuts[i]
        low, high = used[a], used[b - 1] + 1
        offsets = rows.indptr[low : high + 1]
        some = slice(offsets[0], offsets[-1])
        part = CSRRows(rows.data[some], rows.indices[some], offsets - offsets[0])
        return part, used[a:b] - low, edges[a : b + 1] - edges[a], labels[edges[a] : edges[b]]

    shared = postings, biases, n_slots, needs_rest
    parts = job.executor.map(_begin_search, shared, len(cuts), task, job.n_threads, job.check)
    for (a, b), part in zip(cuts, parts, strict=True):
        for array, values in zip(found, part, strict=True):
            if array.size:
                array[used[a:b]] = values
    return Plausible(found.classes, found.scores, found.log_rest)


def _empty_proposals(n_rows: int, n_slots: int, needs_rest: bool) -> Proposals:
    classes, scores = (
        np.full((n_rows, n_slots), -1, np.int32),
        np.full((n_rows, n_slots), -np.inf, np.float32),
    )
    rest = np.full(n_rows if needs_rest else 0, -np.inf, np.float32)
    return Proposals(classes, scores, rest, np.empty(0, np.float32))


def _begin_search(
    postings: Postings, biases: tuple[Float32, Float32], n_slots: int, needs_rest: bool
) -> Work:
    """Search for the plausible classes of some rows."""
    scratch = Scratch(lambda: sparse_start.make_scratch(len(biases[0])))

    def search(rows: CSRRows, used: Int64, edges: Int64, labels: Int32) -> Proposals:
        found = _empty_proposals(len(used), n_slots, needs_rest)
        with scratch.use() as arrays:
            sparse_start.propose(rows, (used, edges, labels), postings, biases, arrays, found, 0, len(used))
        return found

    return search


def score_own(training: TrainingRows, sums: Sums, numbers: Numbers, job: Job) -> Float32:
    """Return the score of each pair by the start, the row left out of its class."""
    data, tasks = training.data, split(training.data.n_pairs, 1 << 12)
    pairs = sparse_start.Pairs(data.rows, data.y.astype(np.int32), data.pair_weight)
    own = np.empty(data.n_pairs, np.float32)

    def work(i: int) -> None:
        sparse_start.score_own(training.rows, pairs, sums, numbers, own, *tasks[i])

    run(work, len(tasks), job.n_threads)
    return own


def join_candidates(data: Examples, found: Plausible, own: Float32, pairs: Int64) -> Candidates:
    """Return the candidates of some pairs, the own class first; `own` are the scores of all pairs."""
    rows = data.rows[pairs].astype(np.int64)
    classes = _join_own(data.y[pairs].astype(np.int32), found.classes, rows)
    offsets = _join_own(own[pairs], found.scores, rows)
    return Candidates(classes, offsets, found.log_rest[rows], rows, data.pair_weight[pairs])


def _join_own(own: NDArray[Any], others: NDArray[Any], at: Int64) -> NDArray[Any]:
    """Return one line per pair: what belongs to its own class, and the line of its row."""
    joined = np.empty((len(own), 1 + others.shape[1]), own.dtype)
    joined[:, 0] = own
    for first, last in split(len(own), _LINES_AT_ONCE):
        joined[first:last, 1:] = others[at[first:last]]
    return joined


def log_odds(data: Examples, found: Plausible, own: Float32) -> tuple[Float32, Float32]:
    """Return the log-odds of the class of each pair, and those of the plausible classes of each row.

    The normaliser of a pair has its own class and those of `found`; other labels of its row are left out.
    """
    with np.errstate(divide="ignore"):  # no candidate, no mass
        others = np.logaddexp(np.logaddexp.reduce(found.scores, axis=1), found.log_rest)
    best_own = np.full(len(others), -np.inf, np.float32)
    np.maximum.at(best_own, data.rows, own)
    total = np.logaddexp(others, best_own)[:, None]
    total[np.isneginf(total)] = 0.0  # rows without a label
    share = np.exp(np.minimum(found.scores - total, 0.0))
    of_rows = found.scores - total - np.log(np.maximum(1.0 - share, 1e-4))
    return (own - others[data.rows]).astype(np.float32), of_rows.astype(np.float32)


class _Listed(NamedTuple):
    """Which pairs each class has, and which entries of the plausible classes of the rows name it."""

    own_starts: Int64
    own: Int64
    starts: Int64
    entries: NDArray[Any]

    @classmethod
    def of(cls, data: Examples, classes: Int32, n_classes: int) -> _Listed:
        own = np.argsort(data.y, kind="stable").astype(np.int64)
        own_starts = np.searchsorted(data.y[own], np.arange(n_classes + 1)).astype(np.int64)
        size, small = int((classes >= 0).sum()), classes.size < 1 << 31
        starts, entries = np.zeros(n_classes + 1, np.int64), np.empty(size, np.int32 if small else np.int64)
        list_pairs(classes, starts, entries)
        return cls(own_starts, own, starts, entries)

    def of_classes(self, first: int, last: int) -> tuple[Int64, NDArray[Any]]:
        """Return the pairs and the entries of some classes."""
        own, listed = self.own_starts[[first, last]], self.starts[[first, last]]
        return self.own[slice(*own)], self.entries[slice(*listed)]

    def count_rows(self) -> Int64:
        """Return the rows that each class is fitted on."""
        return np.diff(self.own_starts) + np.diff(self.starts)

    def count_entries(self, data: Examples, rows: CSRRows, classes: Int32) -> Int64:
        """Return the entries of the rows that each class is fitted on."""
        lengths, n_classes = np.diff(rows.indptr), len(self.starts) - 1
        total = np.bincount(data.y, weights=lengths[data.rows], minlength=n_classes)
        for column in classes.T:  # all at once would be several times as large as the classes
            kept = column >= 0
            total += np.bincount(column[kept], weights=lengths[kept], minlength=n_classes)
        return total.astype(np.int64)


def _make_local(n: int, e: int, n_features: int) -> Local:
    """Return working memory for classes of up to n rows with e entries."""
    m = min(e, n_features)
    shapes: tuple[tuple[int, Any], ...] = (
        (n, np.int64), (n, np.int64), (n, np.int64), (n, np.int64), (e, np.int32), (e, np.float32),
        (m, np.int32), (m + 1, np.float32), (n, np.float32), (n, np.float32), (n, np.float32),
    )  # fmt: skip
    return Local(*(np.empty(*shape) for shape in shapes))


def fit_linear(
    training: TrainingRows,
    found: Plausible,
    n_classes: int,
    job: Job,
    *,
    offsets: tuple[Float32, Float32] | None = None,
    duals: Duals | None = None,
) -> tuple[Any, Float32]:
    """Fit each class on its own rows and on those that it is plausible for.

    Parameters
    ----------
    offsets
        Log-odds of each pair and of the plausible classes of each row, which the weights correct; None for
        weights that stand alone, whose bias is below zero. These have a margin, the squared hinge, for texts
        of many words and for rows with several labels.
    duals
        Dual variables from which the fit goes on; replaced by those that it finds.

    Returns
    -------
    tuple
        CSC matrix (n_classes, n_features) and biases (n_classes,).
    """
    (data, rows, mean), config = training, job.config
    duals = duals or Duals.none(data, found)
    n_slots, n_features = found.classes.shape[1], len(mean)
    row_weights = np.zeros(len(rows.indptr) - 1, np.float32)
    np.maximum.at(row_weights, data.rows, data.pair_weight)
    n_listed = int((found.classes >= 0).sum()) + data.n_pairs
    is_whole = n_listed >= n_classes * int((data.labels_per_row > 0).sum())  # every row, and every class
    is_long = job.is_text and data.n_pairs >= config.margin_pairs and has_many_words(rows, job)
    biases, has_margin = (
        np.zeros(n_classes, np.float32),
        offsets is None and (is_long or data.has_several_labels),
    )
    regularization = config.regularization_margin if has_margin else config.regularization
    if has_margin:
        biases[:] = -1.0
    elif offsets is None:  # the log-odds of a class before anything is known of a row, and one less
        counts = data.class_counts(n_classes, weighted=True)
        share = counts / max(float(row_weights.sum(dtype=np.float64)), 1e-9)
        biases[:] = -np.minimum(1.0 - np.log(np.maximum(share, 1e-9)), config.max_bias)
    squares = square_sums(rows.indptr, rows.data).astype(np.float64)
    # Frequent features first: what is kept of each lies close together, in the fast part of the memory.
    by_count = np.argsort(-count_indices(rows.indices, n_features), kind="stable").astype(np.int32)
    numbers = np.empty_like(by_count)
    numbers[by_count] = np.arange(n_features, dtype=np.int32)
    rows, mean = rows._replace(indices=numbers[rows.indices]), mean[by_count]
    problem = Problem(rows, squares, row_weights, mean)
    options = Options(
        regularization,
        config.bias_feature if is_whole and offsets is None else 0.0, config.passes, config.tolerance,
        config.prune_linear, job.seed % 2**31, has_margin,
    )  # fmt: skip
    listed = _Listed.of(data, found.classes, n_classes)
    n_entries = listed.count_entries(data, rows, found.classes)
    ends = np.minimum(np.append(0, np.cumsum(n_entries)), 2**62)
    cuts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] + 1, _TASK_ENTRIES), "left"))
    cuts = np.unique(np.concatenate([[0], cuts, [n_classes]]))
    own, others = offsets or (None, None)
    weights, flat, nothing = data.pair_weight, duals.others.reshape(-1), np.empty(0, np.float32)

    def task(i: int) -> tuple[Any, ...]:
        a, b = int(cuts[i]), int(cuts[i + 1])
        pairs, entries = listed.of_classes(a, b)
        listing = Listing(
            listed.own_starts[a : b + 1] - listed.own_starts[a], data.rows[pairs].astype(np.int64),
            weights[pairs].astype(np.float32), nothing if own is None else own[pairs], duals.own[pairs],
            listed.starts[a : b + 1] - listed.starts[a], (entries // n_slots).astype(np.int64),
            nothing if others is None else others.reshape(-1)[entries], flat[entries],
        )  # fmt: skip
        return listing, a, biases[a:b], int(np.minimum(n_entries[a:b], n_features).sum())

    most = int(listed.count_rows().max(initial=0)), int(n_entries.max(initial=0))
    shared, n_tasks = (problem, options, by_count, *most), len(cuts) - 1
    found_parts = job.executor.map(_begin_linear, shared, n_tasks, task, job.n_threads, job.check)
    parts = []
    for i, (part, *learnt) in enumerate(found_parts):
        pairs, entries = listed.of_classes(cuts[i], cuts[i + 1])
        biases[cuts[i] : cuts[i + 1]], duals.own[pairs], flat[entries] = learnt
        parts.append(part)
    matrix = _by_feature(parts, cuts, (n_classes, n_features))
    if has_margin:  # about as large as log-odds
        matrix.data *= np.float32(config.margin_scale)
        biases *= np.float32(config.margin_scale)
    return matrix, biases


def _begin_linear(problem: Problem, options: Options, names: Int32, n_rows: int, n_entries: int) -> Work:
    """Fit some classes; `names` are the features as the results number them."""
    n_features = len(names)
    scratch = Scratch(lambda: (np.full(n_features, -1, np.int32), _make_local(n_rows, n_entries, n_features)))

    def fit(listing: Listing, first: int, biases: Float32, size: int) -> tuple[Any, ...]:
        listing = listing._replace(own_duals=listing.own_duals.copy(), duals=listing.duals.copy())
        biases, stops = biases.copy(), np.zeros(len(biases) + 1, np.int64)
        features, values = np.empty(size, np.int32), np.empty(size, np.float32)
        with scratch.use() as (place, local):
            plausible.fit_classes(
                problem, listing, options, first, place, local, stops, features, values, biases
            )
        n = stops[-1]
        return (stops, names[features[:n]], values[:n].copy()), biases, listing.own_duals, listing.duals

    return fit


def _by_feature(parts: list[Any], cuts: Int64, shape: tuple[int, int]) -> Any:
    """Join weights by class to a CSC matrix, and drop them."""
    matrix = sparse.csc_matrix(shape, dtype=np.float32)
    counts = np.zeros(shape[1], np.int64)
    for _, features, _ in parts:
        counts += count_indices(features, shape[1])
    matrix.indptr = np.append(0, np.cumsum(counts))
    matrix.indices, matrix.data = np.empty(counts.sum(), np.int32), np.empty(counts.sum(), np.float32)
    starts = matrix.indptr[:-1].copy()
    for i, first in enumerate(cuts[:-1].tolist()):
        stops, features, values = parts[i]
        postings.place_lines(stops, features, values, first, starts, matrix.indices, matrix.data)
        parts[i] = None
    return matrix
