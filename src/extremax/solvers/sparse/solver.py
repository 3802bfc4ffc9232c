"""Training of sparse weights: a generative start, what it does not know, and a mixture of both.

The start (`extremax.solvers.sparse.start`) is the paper's auxiliary model in sparse form: it proposes hard
negatives for every row, and its leave-one-out scores are fixed offsets of the correction that is trained on
them (`extremax.solvers.sparse.correction`).  Where all rows can be compared with all classes, one-vs-rest
SVMs are fitted as well.  All parts are linear in the features; the weights with which they are added are
chosen by the likelihood of rows that none of them was trained on.
"""

from __future__ import annotations

import time
import warnings
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.examples import Examples
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_dual import Candidates
from extremax.kernels.sparse_scores import Postings
from extremax.kernels.sparse_start import Numbers
from extremax.runtime.products import square_sums
from extremax.scores.base import Weights
from extremax.scores.sparse import (
    DensePart,
    SparseWeights,
    add_postings,
    csr_rows,
    prune_postings,
    require_sound,
    restore_matrix,
)
from extremax.solvers.base import Progress, Split, TrainerBase, TrainState, labelled_rows
from extremax.solvers.growth import SparseRecord
from extremax.solvers.registry import candidate_count, is_small, svms_are_affordable
from extremax.solvers.sparse import correction as steps
from extremax.solvers.sparse.bilinear import Bilinear, choose_columns, fit_bilinear
from extremax.solvers.sparse.correction import Correction, Job, ProposalSource, TrainingRows
from extremax.solvers.sparse.cross_mix import mix_by_folds
from extremax.solvers.sparse.dense_part import fit_dense
from extremax.solvers.sparse.mix import PARTS, compare, fit_mixture
from extremax.solvers.sparse.start import (
    ClassSums,
    Start,
    check_numbers,
    fit_numbers,
    guess_rival_columns,
    make_start,
)
from extremax.storage import checks
from extremax.storage.state import State, merge
from extremax.tuned import ProblemSize, SparseConfig
from extremax.types import Float32, Int64

# Weights of the parts while nothing is chosen.
_ALONE = {name: float(name in ("start", "correction")) for name in PARTS}
_ROUNDING = 1e-6  # by which sums in another order may differ, at most
_NOTHING = dict.fromkeys(PARTS, 0.0)
_NUMBERS = ("log_weights", "cosine_weights", "bias_weights", "edges", "groups")


@dataclass
class Linear:
    """Weights by class: CSR (n_classes, n_features) and biases."""

    matrix: Any
    biases: Float32

    def copy(self) -> Linear:
        return Linear(self.matrix.copy(), self.biases.copy())

    def take(self, index: Int64) -> Linear:
        """Return the weights of some classes, in a given order."""
        return Linear(self.matrix[index], self.biases[index])

    def plus(self, n: int, bias: float = 0.0) -> Linear:
        """Return the weights with further classes, which have a bias alone, behind the others."""
        nothing = sparse.csr_matrix((n, self.matrix.shape[1]), dtype=np.float32)
        matrix = sparse.vstack([self.matrix, nothing], format="csr")
        return Linear(matrix, np.concatenate([self.biases, np.full(n, bias, np.float32)]))

    def state(self) -> State:
        matrix = self.matrix
        arrays = {"offsets": matrix.indptr, "features": matrix.indices, "values": matrix.data}
        return State({"shape": list(matrix.shape)}, {**arrays, "biases": self.biases})

    @classmethod
    def from_state(cls, state: State) -> Linear:
        matrix = restore_matrix(sparse.csr_matrix, state, "features")
        return cls(matrix, checks.get_array(state.arrays, "biases", "f4", (matrix.shape[0],)))


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
    correction, svm, svm_whole
        Weights by class, or None; the last are SVMs that have seen the held-out rows, too.
    bilinear, dense
        Dense parts, or None: the similarity that all classes share, and weights on dense columns.
    mix
        Weight of each part in the scores.
    duals
        Dual variables of an unfinished correction, (n_pairs, n_slots), or None.
    weights
        The weights for prediction; None where a part has changed.
    """

    sums: ClassSums
    numbers: Numbers
    scale: float = 1.0
    correction: Linear | None = None
    svm: Linear | None = None
    svm_whole: Linear | None = None
    bilinear: Bilinear | None = None
    dense: Bilinear | None = None
    mix: dict[str, float] = field(default_factory=lambda: dict(_ALONE))
    duals: Float32 | None = None
    weights: SparseWeights | None = None
    candidates: Candidates | None = field(default=None, repr=False)  # of this process; not saved
    _made: tuple[ClassSums, Numbers, Start] | None = field(default=None, repr=False)

    kind: ClassVar[str] = "sparse"

    def start(self, n_threads: int) -> Start:
        """Return the weights of the start, computed once for the same sums and numbers."""
        if self._made is None or self._made[0] is not self.sums or self._made[1] is not self.numbers:
            self._made = self.sums, self.numbers, make_start(self.sums.arrays, self.numbers, n_threads)
        return self._made[2]

    def copy(self) -> SparseTables:
        """Return a copy that later training does not change."""
        kept = None if self.correction is None else self.correction.copy()
        return replace(self, correction=kept, mix=dict(self.mix), duals=None, weights=None)

    def restore(self, other: SparseTables) -> None:
        """Take the weights of a copy; dual variables of others are forgotten."""
        self.correction = None if other.correction is None else other.correction.copy()
        self.svm, self.svm_whole = other.svm, other.svm_whole
        self.mix, self.duals = dict(other.mix), None
        self.sums, self.numbers, self.weights = other.sums, other.numbers, None

    def take(self, index: Int64) -> SparseTables:
        """Return what belongs to some classes, in a given order."""
        parts = {name: getattr(self, name) for name in _SAVED}
        taken: dict[str, Any] = {
            name: None if part is None else part.take(index) for name, part in parts.items()
        }
        sums = self.sums.take(index)
        return replace(self, sums=sums, duals=None, weights=None, candidates=None, _made=None, **taken)

    def plus(self, new: ClassSums) -> SparseTables:
        """Return the tables with the sums of further classes behind the others.

        Their start follows from the sums; they have no part in what is trained on top of it yet.
        """
        n = len(new.counts)
        parts: dict[str, Any] = {}
        for name in ("correction", "svm", "svm_whole"):
            part: Linear | None = getattr(self, name)
            parts[name] = None if part is None else part.plus(n, 0.0 if name == "correction" else -1.0)
        for name in ("bilinear", "dense"):
            dense: Bilinear | None = getattr(self, name)
            if dense is not None:
                factors = np.zeros((n, dense.part.factors.shape[1]), np.float32)
                parts[name] = dense.plus(factors, np.zeros(n, np.float32))
        sums = self.sums.stacked(new)
        return replace(self, sums=sums, duals=None, weights=None, candidates=None, _made=None, **parts)

    def check(self) -> None:
        """Refuse arrays of a model folder whose indices lead outside."""
        parts = self.correction, self.svm, self.svm_whole
        require_sound([self.sums.matrix, *(part.matrix for part in parts if part)])

    def training_state(self) -> State:
        """Return what further training needs beside the weights."""
        numbers = self.numbers
        arrays: dict[str, NDArray[Any]] = {name: getattr(numbers, name) for name in _NUMBERS}
        if self.duals is not None:
            arrays["duals"] = self.duals
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
        mix = {**dict.fromkeys(_ALONE, 0.0), **{name: checks.get_float(given, name) for name in given}}
        tables = cls(
            sums,
            numbers,
            scale=checks.get_float(header, "scale"),
            mix=mix,
            duals=arrays.get("duals"),
            weights=found,
            **saved,
        )
        tables.check()
        tables.check_sizes(found)
        return tables

    def check_sizes(self, weights: SparseWeights) -> None:
        """Raise ModelFileError for parts that are not those of the weights of a model."""
        n_classes, n_sparse = weights.n_classes, len(weights.postings.offsets) - 1
        for part in (self.sums, self.correction, self.svm, self.svm_whole):
            if part is not None and part.matrix.shape != (n_classes, n_sparse):
                checks.reject(f"the training state has the shape {part.matrix.shape}")
        for dense in (self.bilinear, self.dense):
            if dense is not None:
                dense.check(n_classes, n_sparse, weights.n_dense)
        check_numbers(self.numbers, n_sparse)
        if not set(self.mix) <= set(_ALONE):
            checks.reject(f"the training state mixes {checks.shown(sorted(self.mix))}")
        if self.duals is not None and (self.duals.ndim != 2 or self.duals.dtype != np.float32):
            checks.reject(f"array 'duals' is {self.duals.dtype} {self.duals.shape}")


_SAVED: dict[str, Any] = {
    "correction": Linear, "svm": Linear, "svm_whole": Linear, "bilinear": Bilinear, "dense": Bilinear
}  # fmt: skip


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
    """What the rounds on the same examples share."""

    training: TrainingRows
    source: Any  # ProposalSource, or None for a correction of finished weights
    correction: Correction | None = None
    before: Linear | None = None  # an earlier correction, part of the offsets
    base: SparseWeights | None = None  # weights of a finished fit

    @property
    def data(self) -> Examples:
        return self.training.data


@dataclass(frozen=True)
class SparseTrainer(TrainerBase):
    """Start, correction and SVMs; an epoch is a round of the correction over all classes."""

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
        own = min(pair_entries, n_classes * problem.n_features)  # entries of the class sums
        several = n_pairs > problem.n_rows
        start_pairs = min(numbers.sample_pairs, n_pairs)
        start_classes = min(1 + numbers.best_candidates + numbers.drawn_candidates, n_classes)
        need = 12 * max(entries, pair_entries) + 30 * own + 40 * n_classes + 24 * problem.n_features
        need += 208 * (1 + len(self.config.layout.groups)) * start_pairs * start_classes
        if problem.n_entries is None:
            need += 12 * entries  # packed
        has_svm = svms_are_affordable(entries, n_classes, numbers, several=several)
        if not self.config.streaming and has_svm and (several or n_classes <= numbers.few_classes):
            return need
        n_candidates = candidate_count(entries, n_pairs, n_classes, numbers) + 1
        n_candidates_all = n_candidates * min(n_pairs, int(numbers.max_proposal_work / n_classes) + 1)
        support = own
        is_wide = n_candidates_all * entries / n_rows <= numbers.wide_entries
        if data is not None and not several and (is_wide or n_candidates > numbers.max_candidates + 1):
            known = float((data.class_counts(n_classes)[data.y] >= 2).mean())  # others have no candidates
            support += int(n_classes * guess_rival_columns(data, known * n_candidates / n_classes))
        return need + 24 * n_candidates_all + 50 * min(support, n_classes * problem.n_features)

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
        if weight is None or self.config.streaming:
            return data
        return replace(data, weight=(weight / weight.mean(dtype=np.float64)).astype(np.float32))

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
        return steps.feature_mean(rows, n_features, labelled_rows(data))

    def pair_key(self, data: Examples) -> int:
        """Return a checksum of the pairs, never zero."""
        X: Any = data.X
        some = slice(None, None, key_stride(len(X.indices)))
        return checksum_pairs(data.y, data.rows, X.indptr, X.indices[some], X.data[some])

    @property
    def start_config(self) -> SparseConfig:
        """The numbers that the start is fitted with."""
        return self.numbers

    def start(self, data: Examples, n_classes: int) -> TrainState:
        """Sum the rows of each class and fit the numbers of the start."""
        log = self.context.progress.log
        n_features, scale = self.config.layout.n_sparse, self._find_scale(data)
        sums = self.class_sums(data, n_classes, n_features, scale)
        arrays, rows = sums.arrays, self._rows(data, scale)
        numbers, likelihood = fit_numbers(
            arrays, rows, data, self.start_config, self.context.seed % 2**31, self.context.n_threads,
            self.config.layout.groups,
        )  # fmt: skip
        if likelihood == likelihood:
            log(f"start: leave-one-out log-likelihood {likelihood:.4f}, smoothing {numbers.smoothing:.3g}")
        tables = SparseTables(sums, numbers, scale)
        chosen: dict[str, Any] = {**self.accepted, "smoothing": numbers.smoothing}
        if likelihood == likelihood:
            chosen["start_log_likelihood"] = likelihood
        return TrainState(tables, 1.0, chosen=chosen)

    def prepare(self, state: TrainState, data: Examples) -> Prepared:
        """Take new rows into the class sums, and compute the start."""
        rows = self._rows(data, state.tables.scale)
        if isinstance(state.tables, FinishedTables):
            return _prepare_more(state.tables.weights, data, rows)
        tables = _tables(state)
        tables.check()
        key = self.pair_key(data)
        is_new = key != state.pair_key
        if is_new and state.pair_key != 0:  # rows of another call of partial_fit
            n_classes, n_features = tables.sums.matrix.shape
            new = self.class_sums(data, n_classes, n_features, tables.scale)
            tables.sums = tables.sums.plus(new)
            tables.numbers, _ = fit_numbers(
                tables.sums.arrays, rows, data, self.numbers, self.context.seed % 2**31,
                self.context.n_threads, self.config.layout.groups,
            )  # fmt: skip
            tables.duals, tables.weights = None, None
        state.pair_key = key
        arrays = tables.sums.arrays
        source = ProposalSource(arrays, tables.numbers, tables.start(self.context.n_threads))
        mean = self.feature_mean(rows, tables.sums.matrix.shape[1], data)
        return Prepared(TrainingRows(data, rows, mean), source)

    def epoch(
        self, state: TrainState, prepared: Prepared, rates: tuple[float, float], progress: Progress
    ) -> float | None:
        """Run one round of the correction; the first finds hard negatives."""
        n_pairs = prepared.data.n_pairs

        def check(fraction: float) -> None:
            progress.check()
            progress.report(int(fraction * n_pairs), float("nan"))

        if prepared.base is not None:
            loss = self._correct_finished(state, prepared, prepared.base, check)
            state.n_epochs += 1
            return loss
        tables = _tables(state)
        correction = self._correction(tables, prepared, check)
        if correction is None:  # what is known of the model in training: its start
            state.n_epochs += 1
            known = state.chosen.get("start_log_likelihood")
            return None if known is None else -float(known)
        try:
            loss = correction.run_round(state.n_epochs, check)
        finally:
            tables.correction = _plus(prepared.before, Linear(correction.matrix, correction.biases))
            # Those of the last correction alone would not be the dual variables of the sum.
            tables.duals = correction.state.duals if prepared.before is None else None
            tables.weights = None
        state.n_epochs += 1
        if state.n_epochs >= self.config.n_epochs:
            tables.duals = None  # finished: nothing to go on with
        return loss

    def _correct_finished(
        self, state: TrainState, prepared: Prepared, base: SparseWeights, check: steps.Check
    ) -> float:
        """Run one round of a correction of finished weights, whose own scores are the offsets."""
        training, job = prepared.training, self._job(check)
        if prepared.correction is None:
            n_candidates = self._n_candidates(training, base.n_classes)
            candidates = steps.propose_by_weights(training, base, n_candidates, job)
            sums = ClassSums.of(training.data, base.n_classes, len(training.mean))
            prepared.correction = Correction.begin(
                training.rows, candidates, sums, job, regularization=self.numbers.regularization_own
            )
        correction = prepared.correction
        try:
            return correction.run_round(state.n_epochs, check)
        finally:
            scale = state.tables.scale
            added = _rescaled(SparseWeights.from_matrix(correction.matrix, correction.biases), scale)
            joined = _combine({"start": replace(base, dense=None), "correction": added}, _ALONE)
            state.tables = replace(state.tables, weights=replace(joined, dense=base.dense))

    def _job(self, check: steps.Check = lambda fraction: None) -> Job:
        return Job(self.numbers, self.context.seed, self.context.n_threads, check)

    def _wants_svm(self, data: Examples, rows: CSRRows, n_classes: int) -> bool:
        several = data.label_edges is not None
        affordable = svms_are_affordable(len(rows.data), n_classes, self.numbers, several=several)
        return affordable and not self.config.streaming

    def _is_small(self, training: TrainingRows, n_classes: int) -> bool:
        """Whether SVMs replace the correction, because rows with one label each are few."""
        data, n_entries = training.data, len(training.rows.data)
        single = data.label_edges is None and n_classes > self.numbers.few_classes
        small = is_small(n_entries, data.n_pairs, n_classes, self.numbers)
        return single and small and not self.config.streaming

    def _correction(self, tables: SparseTables, prepared: Prepared, check: steps.Check) -> Correction | None:
        """Return the correction in training; the first call finds hard negatives."""
        if prepared.correction is not None:
            return prepared.correction
        several, n_classes = prepared.data.label_edges is not None, tables.sums.matrix.shape[0]
        few = n_classes <= self.numbers.few_classes
        if (several or few) and self._wants_svm(prepared.data, prepared.training.rows, n_classes):
            return None  # few classes, or rows with several labels: the SVMs know all negatives
        if self._is_small(prepared.training, n_classes):
            return None
        config, source = self.numbers, prepared.source
        job, rows = self._job(check), prepared.training.rows
        candidates = self._propose(prepared.training, source, job)
        if candidates is None:
            return None
        tables.candidates = candidates
        entries = candidates.classes.size * steps.mean_entries(rows)
        has_many = candidates.classes.shape[1] - 1 > config.max_candidates
        is_wide = not several and (has_many or entries <= config.wide_entries)
        regularization = config.regularization if is_wide else config.regularization_own
        if is_wide and has_many:
            regularization = config.regularization_small
        unfinished = tables.duals is not None and tables.duals.shape == candidates.offsets.shape
        if tables.correction is not None and not unfinished:
            prepared.before = tables.correction
            candidates = _with_offsets(candidates, tables.correction, rows)
        correction = Correction.begin(
            rows, candidates, tables.sums, job, regularization=regularization, is_wide=is_wide
        )
        if unfinished and tables.correction is not None and tables.duals is not None:
            correction.support.values[:] = tables.correction.matrix.data
            correction.support.biases[:] = tables.correction.biases
            correction.state.duals[...] = tables.duals
            correction.refresh()
        prepared.correction = correction
        return correction

    def _propose(self, training: TrainingRows, source: ProposalSource, job: Job) -> Candidates | None:
        """Find hard negatives by the start; None where there are none to find."""
        n_candidates = self._n_candidates(training, len(source.sums.counts))
        pruned = prune_postings(source.start.postings, training.mean, self.numbers.prune)
        pairs = steps.choose_pairs(training, source, pruned, job)
        if len(pairs) == 0 or n_candidates == 0:
            return None
        return steps.propose(training, pairs, source, pruned, n_candidates, job)

    def _n_candidates(self, training: TrainingRows, n_classes: int) -> int:
        return candidate_count(len(training.rows.data), training.data.n_pairs, n_classes, self.numbers)

    def finish(self, state: TrainState, split: Split) -> None:
        """Fit the parts that have no epochs, choose the weights of all by held-out rows, and join them."""
        if isinstance(state.tables, FinishedTables):
            return
        tables, data, held_out = _tables(state), split.training, split.held_out
        rows = self._rows(data, tables.scale)
        mean = self.feature_mean(rows, tables.sums.matrix.shape[1], data)
        training = TrainingRows(data, rows, mean)
        self._fit_parts(tables, training, self._whole(split))
        parts = self._parts(tables)
        found = None
        if held_out is None and set(parts) == {"start", "svm"}:
            shape = tables.sums.matrix.shape
            found = mix_by_folds(training, shape, tables.numbers, self._job(), self.context)
        tables.mix = self._choose_mix(parts, held_out) if found is None else {**_NOTHING, **found}
        weights = _combine(parts, tables.mix)
        given_mean = mean / np.float32(tables.scale)
        if self._is_too_large(weights, given_mean) and parts.pop("bilinear", None) is not None:
            tables.mix = self._choose_mix(parts, held_out)
            weights = _combine(parts, tables.mix)
        state.chosen["mix"] = {name: round(tables.mix[name], 4) for name in parts}
        del parts  # their sum is enough from here on
        tables.weights = self._prune(weights, given_mean, held_out, state.chosen)

    def include(self, state: TrainState, split: Split) -> None:
        """Add the held-out rows to the start and to the SVMs, and keep the weights alone.

        The weights of the parts and the calibration stay as they were chosen.
        """
        if isinstance(state.tables, FinishedTables) or state.cut_short:
            return  # resumed, training goes on with the parts, as if it had never stopped
        tables, whole = _tables(state), self._whole(split)
        weights: Any = self.export(state)
        if whole is not None:
            n_classes, n_features = tables.sums.matrix.shape
            tables.candidates = None
            if tables.svm_whole is not None:
                tables.svm, tables.svm_whole = tables.svm_whole, None
            tables.sums = self.class_sums(whole, n_classes, n_features, tables.scale)
            parts = self._parts(tables)
            rows = self._rows(whole, tables.scale)
            mean = self.feature_mean(rows, n_features, whole) / np.float32(tables.scale)
            weights = self._prune(_combine(parts, tables.mix), mean, None, state.chosen)
            state.chosen["included_rows"] = 0 if split.held_out is None else split.held_out.n_rows
        # What the parts were made of is not needed any more: a finished model costs its weights alone.
        similarity = None if tables.bilinear is None else tables.bilinear.similarity
        record = SparseRecord.of(tables.sums, tables.numbers, tables.mix, similarity)
        state.tables = FinishedTables(weights, tables.scale, record)

    def _whole(self, split: Split) -> Examples | None:
        """Return all pairs, where those of the held-out rows are worth another look; else None."""
        if split.whole is None or split.held_out is None:
            return None
        share = split.held_out.n_rows / max(split.whole.n_rows, 1)
        return self._unit_weight(split.whole) if share >= self.numbers.min_included else None

    def _choose_mix(self, parts: dict[str, SparseWeights], held_out: Examples | None) -> dict[str, float]:
        """Return the weight of each part: by held-out rows, or a default."""
        if held_out is None:
            default = dict(zip(PARTS, self.numbers.default_mix, strict=True))
            return default if "svm" in parts else dict(_ALONE)
        return {**dict.fromkeys(PARTS, 0.0), **self._fit_mixture(parts, held_out)}

    def _is_too_large(self, weights: SparseWeights, mean: Float32) -> bool:
        """Whether a dense part leaves less than half of `max_model_bytes` to the weights it stands beside."""
        limit = self.config.max_model_bytes
        if limit is None or weights.dense is None:
            return False
        return weights.pruned(mean, self.numbers.prune_final).n_bytes > limit < 2 * weights.dense.n_bytes

    def _prune(
        self, weights: SparseWeights, mean: Float32, held_out: Examples | None, chosen: dict[str, Any]
    ) -> SparseWeights:
        """Drop weights that hardly change a score, and say what that costs."""
        threshold = self.numbers.prune_final
        limit = self.config.max_model_bytes
        pruned = weights.pruned(mean, threshold)
        if limit is not None and pruned.n_bytes > limit:
            threshold = max(threshold, weights.threshold_for(mean, limit))
            pruned = weights.pruned(mean, threshold)
        if limit is not None and pruned.n_bytes > limit:
            warnings.warn(
                f"max_model_bytes is {limit:,}, and the model takes {pruned.n_bytes:,} bytes without any"
                " weight of a sparse column; allow more.",
                stacklevel=6,  # the caller of fit
            )
        chosen["n_weights"] = pruned.n_entries
        if held_out is not None and pruned.n_entries < weights.n_entries:
            both = [weights, pruned]
            before, after = compare(both, self.accept(held_out), self.numbers, self.context)
            chosen["pruning_loss"] = round(before - after, 5)
            share = pruned.n_entries / max(weights.n_entries, 1)
            self.context.progress.log(
                f"kept {pruned.n_entries:,} weights, {share:.0%}; the others were worth"
                f" {before - after:.4f} nats on held-out rows"
            )
        return pruned

    def _fit_mixture(self, parts: dict[str, SparseWeights], held_out: Examples) -> dict[str, float]:
        return fit_mixture(parts, self.accept(held_out), self.numbers, self.context)

    def _fit_parts(self, tables: SparseTables, training: TrainingRows, whole: Examples | None) -> None:
        """Fit the parts that have no epochs, where they are affordable and still to be fitted."""
        shape, config = tables.sums.matrix.shape, self.numbers
        if tables.svm is None and self._wants_svm(training.data, training.rows, shape[0]):
            job = self._job(self._show("one-vs-rest SVMs", shape[0]))
            svm, with_held_out = steps.fit_svms(training, shape, job, whole)
            tables.svm = Linear(*svm)
            tables.svm_whole = None if with_held_out is None else Linear(*with_held_out)
        small = shape[0] <= config.bilinear_max_classes and training.data.n_pairs <= config.bilinear_max_pairs
        candidates = tables.candidates
        corrected = tables.correction is not None or self._is_small(training, shape[0])
        if small and tables.bilinear is None and candidates is None and corrected:
            # They are not saved: a fit that was stopped after its last epoch finds them again.
            start = tables.start(self.context.n_threads)
            source = ProposalSource(tables.sums.arrays, tables.numbers, start)
            candidates = self._propose(training, source, self._job())
        if tables.bilinear is None and candidates is not None and small:
            job = self._job(self._show("similarity of rows and classes", len(candidates.rows)))
            first_word = self.config.layout.first_word
            columns = choose_columns(training, first_word, job)
            if len(columns) >= config.bilinear_size:
                of_texts = self.config.layout.is_text
                best = steps.keep_best(candidates, config.max_candidates)
                tables.bilinear = fit_bilinear(training, best, columns, shape[0], job, keeps_length=of_texts)
        if tables.dense is None and self.config.layout.n_dense:
            tables.dense = fit_dense(training.data, shape[0], self.config, self.context)

    def _show(self, label: str, total: int) -> steps.Check:
        """Return what shows the progress of a part."""
        progress, began = self.context.progress, time.perf_counter()

        def show(fraction: float) -> None:
            progress.update(label, int(fraction * total), total, began)
            if fraction == 1.0:
                progress.close()

        return show

    def _parts(self, tables: SparseTables, mix: dict[str, float] | None = None) -> dict[str, SparseWeights]:
        """Return the parts of the weights; where `mix` is given, not the cosine if that has no weight."""
        start = tables.start(self.context.n_threads)
        parts = {"start": SparseWeights(start.postings, start.biases, start.length_biases)}
        for name in ("correction", "svm"):
            part: Linear | None = getattr(tables, name)
            if part is not None:
                parts[name] = SparseWeights.from_matrix(part.matrix, part.biases)
        has_cosine = self.config.layout.is_text and len(start.biases) > self.numbers.few_classes
        if has_cosine and (mix is None or mix.get("centroid", 0.0) > 0.0):
            parts["centroid"] = _centroids(tables.sums)
        parts = {name: _rescaled(weights, tables.scale) for name, weights in parts.items()}
        shape, n_dense = tables.sums.matrix.shape, self.config.layout.n_dense
        if n_dense:  # every part reads the same rows
            none = DensePart.of_columns(np.zeros((shape[0], n_dense), np.float32), n_dense)
            parts = {name: replace(weights, dense=none) for name, weights in parts.items()}
        if tables.bilinear is not None:
            similarity = tables.bilinear.part
            if tables.scale != 1.0 and not similarity.unit_rows:
                similarity = replace(similarity, projection=similarity.projection * np.float32(tables.scale))
            factors = np.hstack([similarity.factors, np.zeros((shape[0], n_dense), np.float32)])
            parts["bilinear"] = _dense_alone(
                shape, replace(similarity, factors=factors, n_dense=n_dense), tables.bilinear.biases
            )
        if tables.dense is not None:
            parts["dense"] = _dense_alone(shape, tables.dense.part, tables.dense.biases)
        return parts

    def export(self, state: TrainState) -> Weights:
        """Return the sum of the parts as one set of weights."""
        if isinstance(state.tables, FinishedTables):
            finished: SparseWeights = state.tables.weights
            return finished
        tables = _tables(state)
        if tables.weights is None:
            tables.weights = _combine(self._parts(tables, tables.mix), tables.mix)
        return tables.weights


def _prepare_more(weights: SparseWeights, data: Examples, rows: CSRRows) -> Prepared:
    """Prepare a correction of the weights of a finished fit."""
    n_features = len(weights.postings.offsets) - 1
    training = TrainingRows(data, rows, np.ones(n_features, np.float32))
    return Prepared(training, None, base=weights)


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


def _with_offsets(candidates: Any, before: Linear, rows: CSRRows) -> Any:
    """Return candidates whose offsets include an earlier correction."""
    weights = SparseWeights.from_matrix(before.matrix, before.biases)
    X = sparse.csr_matrix((len(rows.indptr) - 1, before.matrix.shape[1]), dtype=np.float32)
    X.data, X.indices, X.indptr = rows.data, rows.indices, rows.indptr
    classes = np.maximum(candidates.classes, 0)
    added = weights.score_pairs(X, candidates.rows, classes, 1)
    return candidates._replace(offsets=np.where(candidates.classes >= 0, candidates.offsets + added, -np.inf))


def _plus(before: Linear | None, now: Linear) -> Linear:
    if before is None:
        return now
    return Linear((before.matrix + now.matrix).tocsr(), before.biases + now.biases)


def _centroids(sums: ClassSums) -> SparseWeights:
    """Return the cosine with the summed row of each class as weights."""
    arrays = sums.arrays
    norms = np.sqrt(np.maximum(arrays.squares, 1e-30)).astype(np.float32)
    values = arrays.values / norms[arrays.classes]
    nothing = np.zeros(len(norms), np.float32)
    return SparseWeights(Postings(arrays.offsets, arrays.classes, values), nothing, nothing)


def _rescaled(weights: SparseWeights, scale: float) -> SparseWeights:
    """Return weights for features as given, from those for features times a scale."""
    if scale == 1.0:
        return weights
    factor = np.float32(scale)
    postings = weights.postings._replace(values=weights.postings.values * factor)
    return replace(weights, postings=postings, length_biases=weights.length_biases * factor)


def _dense_alone(shape: tuple[int, int], part: DensePart, biases: Float32) -> SparseWeights:
    """Return weights that have a dense part alone."""
    empty = Postings(np.zeros(shape[1] + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    return SparseWeights(empty, biases, np.zeros(shape[0], np.float32), part)


def _combine(parts: dict[str, SparseWeights], mix: dict[str, float]) -> SparseWeights:
    """Return the weighted sum of the parts."""
    total: Any = None
    n_classes = parts["start"].n_classes
    biases, lengths = np.zeros(n_classes, np.float32), np.zeros(n_classes, np.float32)
    for name, part in parts.items():
        factor = np.float32(mix.get(name, 0.0))
        biases += factor * part.biases
        lengths += factor * part.length_biases
        if total is None:
            total = part.postings._replace(values=factor * part.postings.values)
        elif _same_structure(total, part.postings):
            np.add(total.values, factor * part.postings.values, out=total.values)
        elif factor != 0.0 and part.n_entries:
            total = add_postings(total, part.postings._replace(values=factor * part.postings.values))
    return SparseWeights(total, biases, lengths, _combine_dense(parts, mix))


def _combine_dense(parts: dict[str, SparseWeights], mix: dict[str, float]) -> DensePart | None:
    """Return one dense part: the similarity's coordinates, then the dense columns."""
    bilinear, dense = parts.get("bilinear"), parts.get("dense")
    uses_bilinear = bilinear is not None and mix.get("bilinear", 0.0) > 0.0
    n_dense = parts["start"].n_dense
    if not uses_bilinear and not n_dense:
        return None
    n_classes = parts["start"].n_classes
    factors = np.zeros((n_classes, n_dense), np.float32)
    if dense is not None and dense.dense is not None:
        factors = np.float32(mix.get("dense", 0.0)) * dense.dense.factors
    if not uses_bilinear or bilinear is None or bilinear.dense is None:
        return DensePart.of_columns(factors, n_dense)
    similarity = bilinear.dense
    first = np.float32(mix["bilinear"]) * similarity.factors[:, : similarity.n_projected]
    return replace(similarity, factors=np.hstack([first, factors]), n_dense=n_dense)


def _same_structure(one: Postings, two: Postings) -> bool:
    if len(one.values) != len(two.values) or not np.array_equal(one.offsets, two.offsets):
        return False
    return one.classes is two.classes or np.array_equal(one.classes, two.classes)
