"""Training of sparse weights: a generative start, what is learnt on top of it, and a mixture of both.

The start (`extremax.solvers.sparse.start`) is the paper's auxiliary model in sparse form: it tells for which
rows a class is plausible, and each class learns to tell its own rows from these
(`extremax.solvers.sparse.plausible`).  All experts are linear in the features, or in a projection of them;
the weights with which they are added are chosen by rows that none of them was trained on.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels.postings import Postings
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_dual import Candidates
from extremax.kernels.sparse_start import Numbers, Sums
from extremax.runtime.executor import Check, unchecked
from extremax.runtime.products import square_sums
from extremax.scores.base import Weights
from extremax.scores.sparse import (
    DensePart,
    SparseWeights,
    add_postings,
    csr_rows,
    no_postings,
    packed_kinds,
    require_sound,
    restore_matrix,
    scaled_postings,
    transposed,
)
from extremax.solvers.base import Progress, Split, TrainerBase, TrainState, labelled_rows
from extremax.solvers.growth import SparseRecord
from extremax.solvers.sparse import plausible
from extremax.solvers.sparse.bilinear import Bilinear, choose_columns, fit_bilinear
from extremax.solvers.sparse.dense_part import fit_dense
from extremax.solvers.sparse.mix import EXPERTS, compare, fit_mixture
from extremax.solvers.sparse.plausible import Duals, Job, Plausible, TrainingRows
from extremax.solvers.sparse.start import (
    ClassSums,
    by_columns,
    check_numbers,
    fit_numbers,
    join_start,
    make_start,
    mix_numbers,
)
from extremax.solvers.sparse.unseen import fit_unseen_bias, unseen_classes
from extremax.storage import checks
from extremax.storage.state import State, merge
from extremax.tuned import ProblemSize, SparseConfig
from extremax.types import Float32, Int64

# Weights of the experts of a stream, which are never chosen: its linear weights correct the start.
_SUM = {name: float(name in ("start", "linear")) for name in EXPERTS}
_MOST_SEARCHES = 4  # rounds that look for further plausible classes
_SAMPLED_PAIRS, _CLASS_PAIRS = 10_000, 100  # in all and of a class: they tell how many entries sums have
_ROUNDING = 1e-6  # by which sums in another order may differ, at most
_NUMBERS = ("log_weights", "cosine_weights", "bias_weights", "edges", "groups")


@dataclass
class Linear:
    """Weights by feature: CSC (n_classes, n_features), classes ascending, and biases."""

    matrix: Any
    biases: Float32

    @cached_property
    def weights(self) -> SparseWeights:
        """The weights for prediction; they share the memory of the matrix."""
        matrix: Any = self.matrix
        postings = Postings(matrix.indptr, matrix.indices, matrix.data)
        return SparseWeights(postings, self.biases, np.zeros_like(self.biases))

    def take(self, index: Int64) -> Linear:
        """Return the weights of some classes, in a given order."""
        return Linear(by_columns(self.matrix.tocsr()[index]), self.biases[index])

    def plus(self, n: int, bias: float = 0.0) -> Linear:
        """Return the weights with further classes, which have a bias alone, behind the others."""
        nothing = sparse.csr_matrix((n, self.matrix.shape[1]), dtype=np.float32)
        matrix = sparse.vstack([self.matrix.tocsr(), nothing], format="csr")
        return Linear(by_columns(matrix), np.concatenate([self.biases, np.full(n, bias, np.float32)]))

    def state(self) -> State:
        by_class = transposed(self.matrix)
        arrays = {"offsets": by_class.offsets, "features": by_class.classes, "values": by_class.values}
        return State({"shape": list(self.matrix.shape)}, {**arrays, "biases": self.biases})

    @classmethod
    def from_state(cls, state: State) -> Linear:
        matrix = restore_matrix(sparse.csr_matrix, state, "features")
        biases = checks.get_array(state.arrays, "biases", "f4", (matrix.shape[0],))
        require_sound([matrix])
        return cls(by_columns(matrix), biases)


@dataclass
class SparseTables:
    """What training of sparse weights keeps from epoch to epoch.

    Attributes
    ----------
    sums
        Class sums of all rows so far.
    numbers
        The fitted numbers of the start.
    scale
        Factor of the features in training; weights for prediction are those of the features as given.
    linear
        Weights of each class against the rows that it is plausible for, or None.
    bilinear, dense
        Dense experts, or None: the similarity that all classes share, and weights on dense columns.
    names
        The texts of each class, summed to unit length, or None: their cosine with a row.
    mix
        Weight of each expert in the scores.
    weights
        The weights for prediction; None where an expert has changed.
    found, duals
        Plausible classes of the rows of this call, and the dual variables of the linear weights; not saved.
    more_biases
        Biases of classes without a row beside those of the experts, or None; not saved.
    """

    sums: ClassSums
    numbers: Numbers
    scale: float = 1.0
    linear: Linear | None = None
    bilinear: Bilinear | None = None
    dense: Bilinear | None = None
    names: Linear | None = None
    mix: dict[str, float] = field(default_factory=lambda: dict(_SUM))
    weights: SparseWeights | None = None
    found: Plausible | None = field(default=None, repr=False)
    duals: Duals | None = field(default=None, repr=False)
    more_biases: Float32 | None = field(default=None, repr=False)

    kind: ClassVar[str] = "sparse"

    def copy(self) -> SparseTables:
        """Return a copy that later training does not change: it replaces arrays and never fills them."""
        return replace(self, mix=dict(self.mix), weights=None)

    def restore(self, other: SparseTables) -> None:
        """Take the weights of a copy."""
        self.linear, self.mix = other.linear, dict(other.mix)
        self.sums, self.numbers, self.weights, self.found = other.sums, other.numbers, None, other.found
        self.duals = other.duals

    def take(self, index: Int64) -> SparseTables:
        """Return what belongs to some classes, in a given order."""
        experts = {name: getattr(self, name) for name in _SAVED}
        taken: dict[str, Any] = {
            name: None if expert is None else expert.take(index) for name, expert in experts.items()
        }
        return replace(self, sums=self.sums.take(index), **_NOT_MADE, **taken)

    def plus(self, new: ClassSums) -> SparseTables:
        """Return the tables with the sums of further classes behind the others.

        Their start follows from the sums; they have no part in what is trained on top of it yet.
        """
        n = len(new.counts)
        experts: dict[str, Any] = {}
        if self.linear is not None:
            experts["linear"] = self.linear.plus(n, float(self.linear.biases.min(initial=0.0)))
        if self.names is not None:
            experts["names"] = self.names.plus(n)
        for name in ("bilinear", "dense"):
            dense: Bilinear | None = getattr(self, name)
            if dense is not None:
                factors = np.zeros((n, dense.part.factors.shape[1]), np.float32)
                experts[name] = dense.plus(factors, np.zeros(n, np.float32))
        sums = self.sums.stacked(new)
        return replace(self, sums=sums, **_NOT_MADE, **experts)

    def check(self) -> None:
        """Refuse arrays of a model folder whose indices lead outside."""
        require_sound([self.sums.matrix])

    def training_state(self) -> State:
        """Return what further training needs beside the weights."""
        numbers = self.numbers
        arrays: dict[str, NDArray[Any]] = {name: getattr(numbers, name) for name in _NUMBERS}
        parts = {"sums": self.sums.state()}
        for name in _SAVED:
            part: Linear | Bilinear | None = getattr(self, name)
            if part is not None:
                parts[name] = part.state()
        header: dict[str, Any] = {"smoothing": numbers.smoothing, "scale": self.scale, "mix": self.mix}
        header["parts"] = sorted(parts)
        return merge(header, parts, arrays)

    @classmethod
    def from_training_state(cls, weights: Weights, state: State) -> SparseTables:
        """Build the tables from the weights of a model and from what `training_state` gave."""
        arrays, header = state.arrays, state.header
        found: Any = weights
        if not isinstance(weights, SparseWeights):
            checks.reject("the training state is of sparse weights, and the weights are dense")
        A, B, g, edges, groups = (np.asarray(checks.get(arrays, name)) for name in _NUMBERS)
        numbers = Numbers(checks.get_float(header, "smoothing"), A, B, g, edges, groups)
        kept = checks.get_list(header, "parts")
        saved = {name: part.from_state(state.nested(name)) for name, part in _SAVED.items() if name in kept}
        sums = ClassSums.from_state(state.nested("sums"))
        given = checks.get_mapping(header, "mix")
        mix = {name: checks.get_float(given, name) for name in given}
        older = [name for name in _OLDER if name in kept]
        if older:  # of formats 2 to 4: experts that are one now
            weighted = [(mix.get(name, 0.0), Linear.from_state(state.nested(name))) for name in older]
            if any(part.matrix.shape != sums.matrix.shape for _, part in weighted):
                checks.reject("the training state has weights of several shapes")
            saved["linear"], mix["linear"] = _add_linear(weighted), 1.0
        mix = {name: mix.get(name, 0.0) for name in EXPERTS}
        scale = checks.get_float(header, "scale")
        tables = cls(sums, numbers, scale=scale, mix=mix, weights=found, **saved)
        tables.check()
        tables.check_sizes(found)
        return tables

    def check_sizes(self, weights: SparseWeights) -> None:
        """Raise ModelFileError for parts that are not those of the weights of a model."""
        n_classes, n_sparse = weights.n_classes, len(weights.postings.offsets) - 1
        for part in (self.sums, self.linear, self.names):
            if part is not None and part.matrix.shape != (n_classes, n_sparse):
                checks.reject(f"the training state has the shape {part.matrix.shape}")
        for dense in (self.bilinear, self.dense):
            if dense is not None:
                dense.check(n_classes, n_sparse, weights.n_dense)
        check_numbers(self.numbers, n_sparse)


# What follows from the rest, or from the rows of a call
_NOT_MADE: dict[str, Any] = dict.fromkeys(("weights", "found", "duals", "more_biases"))
_SAVED: dict[str, Any] = {"linear": Linear, "bilinear": Bilinear, "dense": Bilinear, "names": Linear}
_OLDER = ("correction", "svm")


def _add_linear(weighted: list[tuple[float, Linear]]) -> Linear:
    """Return the weighted sum of weights by class."""
    matrix = sum(np.float32(factor) * part.matrix for factor, part in weighted)
    biases = sum(np.float32(factor) * part.biases for factor, part in weighted)
    return Linear(by_columns(matrix), np.asarray(biases, np.float32))


@dataclass
class FinishedTables:
    """What a finished fit keeps: its weights alone. Further training is a correction of these."""

    weights: SparseWeights
    scale: float = 1.0
    record: SparseRecord | None = None  # what further classes follow from

    kind: ClassVar[str] = "finished"

    def copy(self) -> FinishedTables:
        """Return the same weights; training replaces them and never changes them."""
        return replace(self)

    def restore(self, other: FinishedTables) -> None:
        """Take back the weights of a copy."""
        self.weights = other.weights

    def take(self, index: Int64) -> FinishedTables:
        """Return the weights of some classes, in a given order."""
        return replace(self, weights=self.weights.take(index))

    def training_state(self) -> State:
        """Return what further training needs beside the weights."""
        parts = {} if self.record is None else {"record": self.record.state()}
        return merge({"scale": self.scale}, parts)

    @classmethod
    def from_training_state(cls, weights: Weights, state: State) -> FinishedTables:
        """Build the tables from the weights of a model."""
        found: Any = weights
        if not isinstance(weights, SparseWeights):
            checks.reject("the training state is of sparse weights, and the weights are dense")
        record = None
        if "record" in state.header:
            record = SparseRecord.from_state(state.nested("record"), found)
        return cls(found, checks.get_float(state.header, "scale"), record)


@dataclass
class Prepared:
    """What the rounds on the same examples share; `base` are the weights of a finished fit."""

    training: TrainingRows
    base: SparseWeights | None = None

    @property
    def data(self) -> Examples:
        return self.training.data


@dataclass(frozen=True)
class SparseTrainer(TrainerBase):
    """Start, linear weights and a similarity; an epoch is a fit of the linear weights of all classes."""

    @property
    def numbers(self) -> SparseConfig:
        return self.config.numbers.sparse

    remedy = "fewer columns, such as no n-grams of characters"

    def memory(self, problem: ProblemSize, data: Examples | None = None) -> int:
        """Return an upper bound of the bytes that a fit takes beside X; the factors are measured."""
        numbers, n_classes, n_pairs = self.numbers, problem.n_classes, problem.n_pairs
        n_rows = max(problem.n_rows, 1)
        entries = problem.n_entries or n_rows * problem.n_features
        pair_entries = entries * n_pairs // n_rows
        own = min(int(_share_distinct(data) * pair_entries), n_classes * problem.n_features)
        start_pairs = min(numbers.sample_pairs, n_pairs)
        start_classes = min(1 + numbers.best_candidates + numbers.drawn_candidates, n_classes)
        n_slots = min(self.config.n_epochs, _MOST_SEARCHES) * self._n_slots(replace(problem, n_entries=1))
        need = 12 * max(entries, pair_entries) + 30 * own + 40 * n_classes + 24 * problem.n_features
        need += 208 * (1 + len(self.config.layout.groups)) * start_pairs * start_classes
        if problem.n_entries is None:
            need += 12 * entries  # packed
        # each thread copies the rows of a class: all of them where classes are few
        share, n_features = min(1.0, 2.0 * (1 + n_slots) / n_classes), problem.n_features
        copied = int(share * entries)
        local = 8 * copied + int(44 * share * n_rows) + 20 * min(copied, n_features) + 4 * n_features
        need += self.context.n_threads * local
        if data is not None and data.n_ordinary is not None:
            need += 12 * own  # linear weights and those of class texts are added
        # candidates, and weights by class and by feature: about as many as entries of the class sums
        return need + 24 * n_slots * n_rows + 24 * own

    def accept(self, data: Examples) -> Examples:
        """Return the examples with features as a CSR matrix."""
        X: Any = data.X
        if not sparse.issparse(X):
            X = sparse.csr_matrix(X)
        if X.dtype != np.float32 or not X.has_sorted_indices:
            X = X.astype(np.float32)
            X.sort_indices()
        X = without_zeros(X, X.shape[1] - self.config.layout.n_dense)
        data = self._unit_weight(data)
        return self.limit_sparse(data if X is data.X else data.with_features(X))

    def _unit_weight(self, data: Examples) -> Examples:
        """Return the examples with weights of mean one: weights that sum to one are as good as others."""
        weight = data.weight
        rows = data.ordinary()
        if weight is None or self.config.streaming or not rows.n_pairs:
            return data
        mean = rows.pair_weight.mean(dtype=np.float64)
        return replace(data, weight=(weight / mean).astype(np.float32))

    def _rows(self, data: Examples, scale: float) -> CSRRows:
        """Return the sparse columns as the kernels take them, times a scale."""
        rows = csr_rows(data.X, self.config.layout.n_dense)
        return rows if scale == 1.0 else rows._replace(data=rows.data * np.float32(scale))

    def _find_scale(self, data: Examples) -> float:
        """Return one over the root mean square length of the rows, or one where it is about that."""
        rows, used = csr_rows(data.X, self.config.layout.n_dense), labelled_rows(data)
        n_rows = data.n_rows if used is None else int(used.sum())
        sums = square_sums(rows.indptr, rows.data)
        rough = float(np.sqrt((sums if used is None else sums[used]).sum() / max(n_rows, 1)))
        if self.is_surely_usual(rough):
            return 1.0  # without a copy of all values in float64
        values = rows.data if used is None else rows.data[np.repeat(used, np.diff(rows.indptr))]
        return self.scale_of_squares(np.square(values, dtype=np.float64).sum(), n_rows)

    def is_surely_usual(self, rough: float) -> bool:
        """Whether rows of about this root mean square length are left as they are."""
        return self._is_usual(rough * (1.0 - _ROUNDING)) and self._is_usual(rough * (1.0 + _ROUNDING))

    def scale_of_squares(self, total: Any, n_rows: int) -> float:
        """Return the scale of rows whose squared entries have this sum."""
        scale = 1.0 / np.sqrt(total / max(n_rows, 1) or 1.0)
        return 1.0 if self._is_usual(1.0 / scale) else float(scale)

    def _is_usual(self, length: float) -> bool:
        """Whether rows of so long a root mean square are left as they are."""
        low, high = self.numbers.usual_length
        return low <= length <= high

    def class_sums(self, data: Examples, n_classes: int, n_features: int, scale: float) -> ClassSums:
        """Sum the rows of each class."""
        return ClassSums.of(data, n_classes, n_features, scale, self.context.n_threads)

    def feature_mean(self, rows: CSRRows, n_features: int, data: Examples) -> Float32:
        """Return the mean size of each feature over the rows of the examples that have it."""
        return plausible.feature_mean(rows, n_features, labelled_rows(data))

    def pair_key(self, data: Examples) -> int:
        """Return a checksum of the pairs, never zero."""
        X: Any = data.X
        some = slice(None, None, key_stride(len(X.indices)))
        return checksum_pairs(data.y, data.rows, X.indptr, X.indices[some], X.data[some])

    @property
    def start_config(self) -> SparseConfig:
        """The numbers that the start is fitted with."""
        return self.numbers

    def _config_of(self, data: Examples) -> SparseConfig:
        """Return the numbers that the start is fitted with: class texts make a search on few pairs stray."""
        config = self.start_config
        return config if data.n_ordinary is None else replace(config, search_pairs=config.sample_pairs)

    def _fit_numbers(
        self, arrays: Sums, rows: CSRRows, data: Examples, config: SparseConfig
    ) -> tuple[Numbers, float]:
        seed, groups = self.context.seed % 2**31, self.config.layout.groups
        return fit_numbers(arrays, rows, data, config, seed, self.context.n_threads, groups)

    def start(self, data: Examples, n_classes: int) -> TrainState:
        """Sum the rows of each class and fit the numbers of the start."""
        log = self.context.progress.log
        log(f"start: {data.n_pairs:,} pairs of {n_classes:,} classes are summed")
        n_features, scale = self.config.layout.n_sparse, self._find_scale(data)
        sums = self.class_sums(data, n_classes, n_features, scale)
        arrays, rows = sums.arrays, self._rows(data, scale)
        numbers, likelihood = self._fit_numbers(arrays, rows, data, self._config_of(data))
        if likelihood == likelihood:
            log(f"start: leave-one-out log-likelihood {likelihood:.4f}, smoothing {numbers.smoothing:.3g}")
        tables = SparseTables(sums, numbers, scale, names=self._names(data, n_classes))
        chosen: dict[str, Any] = {**self.accepted, "smoothing": numbers.smoothing}
        if likelihood == likelihood:
            chosen["start_log_likelihood"] = likelihood
        return TrainState(tables, 1.0, chosen=chosen)

    def _names(self, data: Examples, n_classes: int) -> Linear | None:
        """Return the sum of the texts of each class at unit length; None without class texts."""
        if data.n_ordinary is None:
            return None
        from sklearn.preprocessing import normalize  # imports rich, where it is installed

        X: Any = data.X
        texts = data.take(data.rows >= data.n_ordinary)
        ones = np.ones(texts.n_pairs, np.float32)
        sums = sparse.csr_matrix((ones, (texts.y, texts.rows)), (n_classes, data.n_rows)) @ X
        unit = normalize(sums[:, : X.shape[1] - self.config.layout.n_dense])
        return Linear(by_columns(unit), np.zeros(n_classes, np.float32))

    def prepare(self, state: TrainState, data: Examples) -> Prepared:
        """Take new rows into the class sums."""
        tables: SparseTables | FinishedTables = state.tables
        rows = self._rows(data, tables.scale)
        if isinstance(tables, FinishedTables):
            n_features = len(tables.weights.postings.offsets) - 1
            return Prepared(TrainingRows(data, rows, np.ones(n_features, np.float32)), tables.weights)
        tables.check()
        n_classes, n_features = tables.sums.matrix.shape
        key = self.pair_key(data)
        if key != state.pair_key and state.pair_key != 0:  # rows of another call of partial_fit
            new = self.class_sums(data, n_classes, n_features, tables.scale)
            tables.sums = tables.sums.plus(new)
            tables.numbers, _ = self._fit_numbers(tables.sums.arrays, rows, data, self.numbers)
            tables.weights, tables.found, tables.duals = None, None, None
        state.pair_key = key
        return Prepared(TrainingRows(data, rows, self.feature_mean(rows, n_features, data)))

    def epoch(
        self, state: TrainState, prepared: Prepared, rates: tuple[float, float], progress: Progress
    ) -> float | None:
        """Fit the linear weights of all classes; interrupted, they stay as they were."""
        n_pairs = prepared.data.n_pairs

        def check(fraction: float) -> None:
            progress.check()
            progress.report(int(fraction * n_pairs), float("nan"))

        job = self._job(check)
        if prepared.base is not None:
            state.tables = self._correct(state.tables, prepared.training, prepared.base, job)
        elif self.config.streaming:
            self._correct_stream(_tables(state), prepared.training, job)
        else:
            self._fit_linear(_tables(state), prepared.training, state.n_epochs, job)
        state.n_epochs += 1
        known = state.chosen.get("start_log_likelihood")
        return -known if isinstance(known, float) else None

    def _fit_linear(self, tables: SparseTables, training: TrainingRows, n_rounds: int, job: Job) -> None:
        """Fit weights that stand alone; a second round adds what the first takes rows for."""
        n_classes = tables.sums.matrix.shape[0]
        linear = plausible.linear_rows(training, job)
        n_slots = self._n_slots(self._problem(linear, n_classes))
        if n_slots == 0:
            return
        if tables.found is None and tables.linear is not None:
            self._search_again(tables, training, n_rounds, job)
        found = self._search(tables, training, n_slots, _half(job, 0))
        if found is tables.found:
            return  # nothing new to learn from
        data, duals = training.data, tables.duals
        duals = Duals.none(data, found) if duals is None else duals.of(data, data, found)
        passes = job.config.passes if tables.linear is None else job.config.passes_more
        half = _changed(_half(job, 1), passes=passes)
        fitted = plausible.fit_linear(linear, found, n_classes, half, duals=duals)
        tables.linear, tables.found, tables.duals = Linear(*fitted), found, duals
        tables.mix, tables.weights = dict(self._default_mix), None

    def _search(self, tables: SparseTables, training: TrainingRows, n_slots: int, job: Job) -> Plausible:
        """Find the plausible classes of a round, beside those of the rounds before."""
        before = tables.found
        if before is None or tables.linear is None:
            needs_rest = self._is_similar(tables)
            found = plausible.find_plausible(
                training,
                self._search_weights(tables, training),  # without a name: gone when it is packed
                n_slots,
                job,
                needs_rest=needs_rest,
                row_work=None if needs_rest else job.config.row_work,
            )
            return found if needs_rest else found._replace(scores=found.scores[:0])
        if n_slots == tables.sums.matrix.shape[0] - 1 or before.classes.shape[1] >= _MOST_SEARCHES * n_slots:
            return before  # all classes, or all that matter
        weights, work = tables.linear.weights, job.config.row_work_linear
        return before.joined(plausible.find_plausible(training, weights, n_slots, job, row_work=work))

    def _search_again(self, tables: SparseTables, training: TrainingRows, n_rounds: int, job: Job) -> None:
        """Repeat the searches and fits so far for what a model folder does not hold."""
        quiet = job._replace(check=lambda fraction: job.check(0.0))
        again = replace(tables, linear=None, found=None, duals=None)
        for _ in range(n_rounds):
            self._fit_linear(again, training, 0, quiet)
        tables.found, tables.duals = again.found, again.duals

    def _correct_stream(self, tables: SparseTables, training: TrainingRows, job: Job) -> None:
        """Correct start and weights so far by new rows, each left out of the start of its own classes."""
        n_classes = tables.sums.matrix.shape[0]
        n_slots = self._n_slots(self._problem(training, n_classes))
        if n_slots == 0:
            return
        weights, data = self._start_weights(tables), training.data
        own = plausible.score_own(training, tables.sums.arrays, tables.numbers, job)
        if tables.linear is not None:
            learnt = tables.linear.weights
            weights = _add(weights, learnt, self.context.n_threads)
            X = restored_rows(training.rows, len(training.mean))
            own += learnt.score_pairs(X, data.rows, data.y[:, None], self.context.n_threads)[:, 0]
        found = plausible.find_plausible(training, weights, n_slots, _half(job, 0), needs_rest=True)
        added = self._fit_correction(training, found, own, n_classes, _half(job, 1))
        before = [] if tables.linear is None else [(1.0, tables.linear)]
        tables.linear = _add_linear([*before, (1.0, added)])
        tables.mix, tables.weights = dict(_SUM), None

    def _correct(
        self, tables: FinishedTables, training: TrainingRows, base: SparseWeights, job: Job
    ) -> FinishedTables:
        """Correct the weights of a finished fit by new rows."""
        n_classes, data = base.n_classes, training.data
        n_slots = self._n_slots(self._problem(training, n_classes))
        if n_slots == 0:
            return tables
        scaled = _rescaled(replace(base, dense=None), 1.0 / tables.scale)
        found = plausible.find_plausible(training, scaled, n_slots, _half(job, 0), needs_rest=True)
        own = base.score_pairs(data.X, data.rows, data.y[:, None], self.context.n_threads)[:, 0]
        if base.dense is not None:
            at = np.maximum(found.classes, 0)
            exact = base.score_pairs(data.X, np.arange(data.n_rows), at, self.context.n_threads)
            found = found._replace(scores=np.where(found.classes >= 0, exact, -np.inf).astype(np.float32))
        linear = self._fit_correction(training, found, own, n_classes, _half(job, 1))
        added = _rescaled(linear.weights, tables.scale)
        return replace(tables, weights=_add(base, added, self.context.n_threads))

    def _fit_correction(
        self, training: TrainingRows, found: Plausible, own: Float32, n_classes: int, job: Job
    ) -> Linear:
        offsets = plausible.log_odds(training.data, found, own)
        job = _changed(job, regularization=self.numbers.regularization_more)
        return Linear(*plausible.fit_linear(training, found, n_classes, job, offsets=offsets))

    def _start_weights(self, tables: SparseTables) -> SparseWeights:
        return make_start(tables.sums.arrays, tables.numbers, self.context.n_threads)

    def _search_weights(self, tables: SparseTables, training: TrainingRows) -> SparseWeights:
        """Return the weights of the start that matter to a search."""
        pruning = training.mean, self.numbers.prune
        return join_start(tables.sums.arrays, tables.numbers, pruning, self.context.n_threads)

    def _job(self, check: Check = unchecked) -> Job:
        layout, context = self.config.layout, self.context
        options = layout.first_word, layout.is_text, context.executor
        return Job(self.numbers, context.seed, context.n_threads, check, *options)

    def _n_slots(self, problem: ProblemSize) -> int:
        """Return how many other classes each row is compared with: more where classes have many rows."""
        numbers, n_classes = self.numbers, problem.n_classes
        entries = problem.n_entries or problem.n_rows * problem.n_features
        wanted = numbers.row_candidates * problem.n_pairs / n_classes
        affordable = min(numbers.max_work / max(entries, 1), numbers.max_listed / max(problem.n_rows, 1))
        few, many = numbers.min_candidates, numbers.max_candidates
        return min(int(np.clip(min(wanted, affordable), few, many)), n_classes - 1)

    def _problem(self, training: TrainingRows, n_classes: int) -> ProblemSize:
        data, n_features = training.data, len(training.mean)
        return ProblemSize(data.n_rows, data.n_pairs, n_features, n_classes, len(training.rows.data))

    @property
    def _default_mix(self) -> dict[str, float]:
        return dict.fromkeys(EXPERTS, 0.0) | dict(zip(EXPERTS, self.numbers.default_mix, strict=False))

    def _is_similar(self, tables: SparseTables) -> bool:
        """Whether a similarity of rows and classes is affordable."""
        n_classes, config = tables.sums.matrix.shape[0], self.numbers
        few = tables.sums.counts.sum() <= config.bilinear_max_pairs
        return bool(few) and config.few_classes < n_classes <= config.bilinear_max_classes

    def finish(self, state: TrainState, split: Split, *, interrupted: bool = False) -> None:
        """Fit the experts that have no epochs, choose the weights of all by held-out rows, and join them."""
        if isinstance(state.tables, FinishedTables):
            return
        tables, data, held_out = _tables(state), split.training, split.held_out
        rows = self._rows(data, tables.scale)
        mean = self.feature_mean(rows, tables.sums.matrix.shape[1], data)
        if not interrupted:
            training, is_large = TrainingRows(data, rows, mean), not self._is_similar(tables)
            if is_large and self._whole(split) is None:  # what only the rounds need makes room
                tables.found, tables.duals = None, None
            elif tables.found is None and tables.linear is not None:  # of a model folder
                self._search_again(tables, training, state.n_epochs, self._job())
            self._fit_experts(tables, training)
        given_mean = mean / np.float32(tables.scale)
        tables.mix = self._choose_mix(tables, held_out)
        if self._is_too_large(tables, given_mean):
            tables.bilinear = None
            tables.mix = self._choose_mix(tables, held_out)
        state.chosen["mix"] = {name: round(tables.mix[name], 4) for name in self._experts(tables)}
        tables.more_biases = None
        if held_out is not None and data.n_ordinary is not None:
            some = self.accept(held_out).sample_rows(self.numbers.max_mix_rows)
            weights = self._joined(tables, features=self._columns(some))
            unseen = unseen_classes(data, weights.n_classes)
            state.chosen["unseen_bias"] = fit_unseen_bias(weights, some, unseen, self.context)
        tables.more_biases = self._more_biases(state, data)
        tables.weights = self._prune(tables, given_mean, held_out, state.chosen)

    def include(self, state: TrainState, split: Split) -> None:
        """Add the held-out rows to the start and to the linear weights, and keep the weights alone.

        The weights of the experts and the calibration stay as they were chosen.
        """
        if isinstance(state.tables, FinishedTables) or state.cut_short:
            return  # resumed, training goes on with the experts, as if it had never stopped
        tables, whole = _tables(state), self._whole(split)
        weights: Any = self.export(state)
        if whole is not None:
            n_classes, n_features = tables.sums.matrix.shape
            rows = self._rows(whole, tables.scale)
            mean = self.feature_mean(rows, n_features, whole)
            training = TrainingRows(whole, rows, mean)
            if tables.linear is not None and tables.mix["linear"] > 0.0:
                tables.linear = self._fit_whole(tables, training, split)
            tables.found, tables.duals = None, None
            tables.more_biases = self._more_biases(state, whole)
            tables.sums = self.class_sums(whole, n_classes, n_features, tables.scale)
            given_mean = mean / np.float32(tables.scale)
            weights = self._prune(tables, given_mean, None, state.chosen)
            state.chosen["included_rows"] = 0 if split.held_out is None else split.held_out.n_rows
        # What the experts were made of is not needed any more: a finished model costs its weights alone.
        similarity = None if tables.bilinear is None else tables.bilinear.similarity
        bias = 0.0 if tables.linear is None else -float(tables.linear.biases.min(initial=0.0))
        record = SparseRecord.of(tables.sums, tables.numbers, tables.mix, bias, similarity)
        state.tables = FinishedTables(weights, tables.scale, record)

    def _more_biases(self, state: TrainState, data: Examples) -> Float32 | None:
        """Return the biases that classes without a row have beside those of the experts."""
        bias, n_classes = state.chosen.get("unseen_bias", 0.0), _tables(state).sums.matrix.shape[0]
        return None if not bias else np.float32(bias) * unseen_classes(data, n_classes)

    def _fit_whole(self, tables: SparseTables, training: TrainingRows, split: Split) -> Linear | None:
        """Fit the linear weights on all rows; those held out meet the classes that they were taken for."""
        before, found, duals = tables.linear, tables.found, tables.duals
        if before is None or found is None or duals is None:
            return before
        whole, n_slots = training.data, found.classes.shape[1]
        is_new = ~np.isin(whole.rows, split.training.rows)
        left = training._replace(data=whole.take(is_new))
        job = self._job(self._show("all rows", whole.n_pairs))
        others = plausible.find_plausible(left, before.weights, n_slots, _half(job, 0))
        classes, held_out = found.classes.copy(), np.unique(left.data.rows)
        classes[held_out] = others.classes[held_out]
        joined = found._replace(classes=classes)
        linear = plausible.linear_rows(training, job)
        duals = duals.of(split.training, whole, joined)
        n_classes = tables.sums.matrix.shape[0]
        half = _changed(_half(job, 1), passes=job.config.passes_more)
        return Linear(*plausible.fit_linear(linear, joined, n_classes, half, duals=duals))

    def _whole(self, split: Split) -> Examples | None:
        """Return all pairs, where those of the held-out rows are worth another look; else None."""
        if split.whole is None or split.held_out is None:
            return None
        share = split.held_out.n_rows / max(split.whole.n_rows, 1)
        # what was held out may be the last row of a class that has texts
        is_worth = share >= self.numbers.min_included or split.whole.n_ordinary is not None
        return self._unit_weight(split.whole) if is_worth else None

    def _choose_mix(self, tables: SparseTables, held_out: Examples | None) -> dict[str, float]:
        """Return the weight of each expert: by held-out rows, or a default."""
        if held_out is None:
            return self._default_mix if tables.linear is not None else dict(_SUM)
        some = self.accept(held_out).sample_rows(self.numbers.max_mix_rows)
        parts = self._parts(tables, self._columns(some))
        return {**dict.fromkeys(EXPERTS, 0.0), **fit_mixture(parts, some, self.numbers, self.context)}

    def _is_too_large(self, tables: SparseTables, mean: Float32) -> bool:
        """Whether a bilinear part leaves less than half of `max_model_bytes` to the weights beside it."""
        limit = self.config.max_model_bytes
        if limit is None or tables.bilinear is None:
            return False
        weights = self._joined(tables, (mean, self.numbers.prune_final))
        return weights.dense is not None and weights.n_bytes > limit < 2 * weights.dense.n_bytes

    def _prune(
        self, tables: SparseTables, mean: Float32, held_out: Examples | None, chosen: dict[str, Any]
    ) -> SparseWeights:
        """Join the experts without weights that hardly change a score, and say what that costs."""
        threshold = chosen.get("prune", self.numbers.prune_final)
        if held_out is not None:
            threshold = self._choose_threshold(tables, mean, held_out, chosen)
        limit = self.config.max_model_bytes
        pruned = self._joined(tables, (mean, threshold))
        if limit is not None and pruned.n_bytes > limit:
            pruned = pruned.pruned(mean, pruned.threshold_for(mean, limit))
        if limit is not None and pruned.n_bytes > limit:
            warnings.warn(
                f"max_model_bytes is {limit:,}, and the model takes {pruned.n_bytes:,} bytes without any"
                " weight of a sparse column; allow more.",
                stacklevel=6,  # the caller of fit
            )
        chosen["n_weights"] = pruned.n_entries
        self.context.progress.log(f"kept {pruned.n_entries:,} weights")
        return pruned

    def _choose_threshold(
        self, tables: SparseTables, mean: Float32, held_out: Examples, chosen: dict[str, Any]
    ) -> float:
        """Return the largest threshold of weights that costs next to nothing on held-out rows."""
        config, some = self.numbers, self.accept(held_out).sample_rows(self.numbers.prune_rows)
        most = config.max_prune_loss_several if held_out.has_several_labels else config.max_prune_loss
        best, loss = config.prune_final, 0.0
        weights = self._joined(tables, (mean, best), self._columns(some))
        before = compare([weights], some, config, self.context)[0]
        for _ in range(config.max_prune_steps):
            weights = weights.pruned(
                mean, 2.0 * best
            )  # what a smaller threshold drops, a larger one does too
            lost = before - compare([weights], some, config, self.context)[0]
            if lost > most:
                break
            best, loss = 2.0 * best, lost
        chosen["prune"], chosen["pruning_loss"] = best, round(loss, 5)
        return best

    def _fit_experts(self, tables: SparseTables, training: TrainingRows) -> None:
        """Fit the experts that have no epochs, where they are affordable and still to be fitted."""
        n_classes = tables.sums.matrix.shape[0]
        if tables.bilinear is None and tables.linear is not None and self._is_similar(tables):
            job = self._job(self._show("similarity of rows and classes", training.data.n_pairs))
            columns = choose_columns(training, self.config.layout.first_word, job)
            if len(columns) >= self.numbers.bilinear_size:
                candidates = self._candidates(tables, training)
                of_texts = self.config.layout.is_text
                tables.bilinear = fit_bilinear(
                    training, candidates, columns, n_classes, job, keeps_length=of_texts
                )
        if tables.dense is None and self.config.layout.n_dense:
            tables.dense = fit_dense(training.data, n_classes, self.config, self.context)

    def _candidates(self, tables: SparseTables, training: TrainingRows) -> Candidates:
        """Return the pairs whose class has other rows, with the classes that the start compares them with."""
        data, job, n_classes = training.data, self._job(), tables.sums.matrix.shape[0]
        linear, found = plausible.linear_rows(training, job), tables.found
        n_slots = self._n_slots(self._problem(linear, n_classes))
        if found is None or len(found.log_rest) == 0:
            weights = self._search_weights(tables, training)
            found = plausible.find_plausible(training, weights, n_slots, job, needs_rest=True)
        # of the first round alone: the mass of the others is the rest
        found = found._replace(classes=found.classes[:, :n_slots], scores=found.scores[:, :n_slots])
        own = plausible.score_own(training, tables.sums.arrays, tables.numbers, job)
        pairs = np.flatnonzero(data.class_counts(n_classes)[data.y] >= 2)
        return plausible.join_candidates(data, found, own, pairs)

    def _show(self, label: str, total: int) -> Check:
        """Return what shows the progress of a part."""
        progress, began = self.context.progress, time.perf_counter()

        def show(fraction: float) -> None:
            progress.update(label, int(fraction * total), total, began)
            if fraction == 1.0:
                progress.close()

        return show

    def _columns(self, data: Examples) -> Int64:
        """Return the sparse columns that any row has."""
        return np.unique(csr_rows(data.X, self.config.layout.n_dense).indices).astype(np.int64)

    def _has_cosine(self, tables: SparseTables) -> bool:
        return self.config.layout.is_text and len(tables.sums.counts) > self.numbers.few_classes

    def _experts(self, tables: SparseTables) -> list[str]:
        """Return the names of the experts that there are."""
        has = {
            "start": True,
            "linear": tables.linear is not None,
            "bilinear": tables.bilinear is not None,
            "dense": tables.dense is not None,
            "names": tables.names is not None,
            "centroid": self._has_cosine(tables),
        }
        return [name for name in EXPERTS if has[name]]

    def _parts(self, tables: SparseTables, features: Int64) -> dict[str, SparseWeights]:
        """Return each expert as weights of its own; start and cosine on some features alone."""
        shape, n_dense = tables.sums.matrix.shape, self.config.layout.n_dense
        parts = {}
        for name in self._experts(tables):
            if name in ("linear", "names"):
                parts[name] = _rescaled(getattr(tables, name).weights, tables.scale)
            elif name in ("start", "centroid"):
                numbers = mix_numbers(tables.numbers, float(name == "start"), float(name == "centroid"))
                start = make_start(tables.sums.arrays, numbers, self.context.n_threads, features)
                parts[name] = _rescaled(start, tables.scale)
            else:
                parts[name] = _dense_alone(shape, *self._dense(tables, {name: 1.0}))
        if n_dense:  # every part reads the same rows
            none = DensePart.of_columns(np.zeros((shape[0], n_dense), np.float32), n_dense)
            parts = {
                name: part if part.dense is not None else replace(part, dense=none)
                for name, part in parts.items()
            }
        return parts

    def _dense(self, tables: SparseTables, mix: Mapping[str, float]) -> tuple[DensePart | None, Float32]:
        """Return the dense experts as one: the similarity's coordinates, then the dense columns; biases."""
        n_classes, n_dense = tables.sums.matrix.shape[0], self.config.layout.n_dense
        bilinear, dense = mix.get("bilinear", 0.0), mix.get("dense", 0.0)
        factors, biases = np.zeros((n_classes, n_dense), np.float32), np.zeros(n_classes, np.float32)
        if tables.dense is not None:
            factors = np.float32(dense) * tables.dense.part.factors
            biases += np.float32(dense) * tables.dense.biases
        if tables.bilinear is None or bilinear <= 0.0:
            return (DensePart.of_columns(factors, n_dense) if n_dense else None), biases
        similarity = tables.bilinear.part
        if tables.scale != 1.0 and not similarity.unit_rows:
            similarity = replace(similarity, projection=similarity.projection * np.float32(tables.scale))
        biases += np.float32(bilinear) * tables.bilinear.biases
        first = np.float32(bilinear) * similarity.factors[:, : similarity.n_projected]
        return replace(similarity, factors=np.hstack([first, factors]), n_dense=n_dense), biases

    def _joined(
        self,
        tables: SparseTables,
        pruning: tuple[Float32, float] | None = None,
        features: Int64 | None = None,
    ) -> SparseWeights:
        """Return the mixture of the experts as one set of weights.

        `pruning` leaves out small weights, as `add_postings` does, and packs the others; start and cosine are
        those of `features`.
        """
        mix, n_threads = tables.mix, self.context.n_threads
        n_classes, n_features = tables.sums.matrix.shape
        cosine = mix["centroid"] if self._has_cosine(tables) else 0.0
        numbers = mix_numbers(tables.numbers, mix["start"], cosine)
        linear = None
        if tables.linear is not None and mix["linear"] > 0.0:
            linear = tables.linear.weights.postings, mix["linear"]
        beside = linear
        if tables.names is not None and mix["names"] > 0.0:
            beside = tables.names.weights.postings, mix["names"]
            if linear is not None:
                beside = (
                    add_postings(scaled_postings(*linear), scaled_postings(*beside), None, n_threads),
                    1.0,
                )
        kinds: Any = (np.int32, np.float32) if pruning is None else packed_kinds(n_classes)
        pruning = pruning or (np.ones(n_features, np.float32), 0.0)
        weights = join_start(tables.sums.arrays, numbers, pruning, n_threads, beside, kinds, features)
        if linear is not None and tables.linear is not None:
            biases = weights.biases + np.float32(mix["linear"]) * tables.linear.biases
            weights = replace(weights, biases=biases)
        dense, biases = self._dense(tables, mix)
        weights = _rescaled(weights, tables.scale)
        if tables.more_biases is not None:
            biases += tables.more_biases
        return replace(weights, biases=weights.biases + biases, dense=dense)

    def first_weights(self, state: TrainState) -> Weights:
        """Return no weights: those of the start would take as much memory as the class sums."""
        shape = _tables(state).sums.matrix.shape
        return _dense_alone(shape, None, np.zeros(shape[0], np.float32))

    def export(self, state: TrainState) -> Weights:
        """Return the sum of the parts as one set of weights."""
        if isinstance(state.tables, FinishedTables):
            finished: SparseWeights = state.tables.weights
            return finished
        tables = _tables(state)
        if tables.weights is None:
            tables.weights = self._joined(tables)
        return tables.weights


def _share_distinct(data: Examples | None) -> float:
    """Return about how many entries of the class sums there are for each entry of a pair, or a bound.

    Rows of a class share words: random classes tell how many, by a few rows each, so that a large class
    counts as many smaller ones. One of ten is added for those not drawn.
    """
    if data is None or not sparse.issparse(data.X) or data.n_pairs < _SAMPLED_PAIRS:
        return 1.0
    n_classes = int(data.y.max()) + 1
    order = np.random.default_rng(0).permutation(n_classes)
    counts = np.minimum(data.class_counts(n_classes), _CLASS_PAIRS)
    drawn = order[: 1 + int(np.searchsorted(np.cumsum(counts[order]), _SAMPLED_PAIRS))]
    pairs = np.flatnonzero(np.isin(data.y, drawn))
    pairs = pairs[np.argsort(data.y[pairs], kind="stable")]
    y = data.y[pairs]
    pairs = pairs[np.arange(len(y)) - np.searchsorted(y, y) < _CLASS_PAIRS]
    X: Any = data.X[data.rows[pairs]]
    keys = np.repeat(data.y[pairs].astype(np.int64), np.diff(X.indptr)) * X.shape[1] + X.indices
    return min(1.0, 1.1 * len(np.unique(keys)) / max(len(keys), 1))


def without_zeros(X: Any, n_sparse: int) -> Any:
    """Return the matrix without explicit zeros in its first columns; the dense ones stay explicit."""
    if np.count_nonzero(X.data) == len(X.data):
        return X
    zero = (X.data == 0.0) & (X.indices < n_sparse)
    if not zero.any():
        return X
    ends = np.concatenate([[0], np.cumsum(~zero)])[X.indptr]
    kept = sparse.csr_matrix(X.shape, dtype=np.float32)
    kept.data, kept.indices, kept.indptr = X.data[~zero], X.indices[~zero], ends
    return kept


def _tables(state: TrainState) -> SparseTables:
    tables: Any = state.tables
    return tables  # type: ignore[no-any-return]


def key_stride(n_entries: int) -> int:
    """Return the distance between entries that the checksum of the pairs looks at."""
    return max(1, n_entries // 65536)


def checksum_pairs(*arrays: NDArray[Any]) -> int:
    """Return a checksum of classes, rows, offsets of the rows and some entries; never zero."""
    key = 0
    for array in arrays:
        key = zlib.crc32(np.ascontiguousarray(array).tobytes(), key)
    return key or 1


def restored_rows(rows: CSRRows, n_features: int) -> Any:
    """Return the rows of the kernels as a CSR matrix."""
    X = sparse.csr_matrix((len(rows.indptr) - 1, n_features), dtype=np.float32)
    X.data, X.indices, X.indptr = rows.data, rows.indices, rows.indptr
    return X


def _half(job: Job, number: int) -> Job:
    """Return the job of the first or the second half of an epoch."""
    return job._replace(check=lambda fraction: job.check(0.5 * (number + fraction)))


def _changed(job: Job, **numbers: float) -> Job:
    """Return the job with other tuned numbers."""
    return job._replace(config=replace(job.config, **numbers))  # type: ignore[arg-type]


def _add(
    one: SparseWeights,
    two: SparseWeights,
    n_threads: int,
) -> SparseWeights:
    """Return the sum of weights, the first of which may have a dense part."""
    postings = add_postings(one.postings, two.postings, n_threads=n_threads)
    lengths = one.length_biases + two.length_biases
    return SparseWeights(postings, one.biases + two.biases, lengths, one.dense)


def _rescaled(weights: SparseWeights, scale: float) -> SparseWeights:
    """Return weights for features as given, from those for features times a scale."""
    if scale == 1.0:
        return weights
    lengths = weights.length_biases * np.float32(scale)
    return replace(weights, postings=scaled_postings(weights.postings, scale), length_biases=lengths)


def _dense_alone(shape: tuple[int, int], part: DensePart | None, biases: Float32) -> SparseWeights:
    """Return weights that have a dense part alone."""
    return SparseWeights(no_postings(shape[1]), biases, np.zeros(shape[0], np.float32), part)
