"""Training of sparse weights: a generative start, what it does not know, and a mixture of both.

The start (`extremax.training.sparse_start`) is the paper's auxiliary model in sparse form: it proposes hard
negatives for every row, and its leave-one-out scores are fixed offsets of the correction that is trained on
them (`extremax.training.sparse_correction`).  Where all rows can be compared with all classes, one-vs-rest
SVMs are fitted as well.  All parts are linear in the features; the weights with which they are added are
chosen by the likelihood of rows that none of them was trained on.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from extremax.defaults import ProblemSize, SparseConfig
from extremax.examples import Examples
from extremax.kernels.row_updates import CSRRows
from extremax.kernels.sparse_scores import Postings
from extremax.kernels.sparse_start import Numbers
from extremax.sparse_weights import SparseWeights, csr_rows
from extremax.storage.state import State, merge
from extremax.training import sparse_correction as steps
from extremax.training.base import Progress, TrainerBase, TrainState
from extremax.training.mixing import PARTS, fit_mixture
from extremax.training.sparse_correction import Correction, Job, ProposalSource, TrainingRows
from extremax.training.sparse_start import ClassSums, fit_numbers, make_start
from extremax.types import Float32
from extremax.weights import Weights

_ALONE = {"start": 1.0, "correction": 1.0, "svm": 0.0, "dense": 0.0}  # while nothing is chosen


@dataclass
class Linear:
    """Weights by class: CSR (n_classes, n_features) and biases."""

    matrix: Any
    biases: Float32

    def state(self) -> State:
        matrix = self.matrix
        arrays = {"offsets": matrix.indptr, "features": matrix.indices, "values": matrix.data}
        return State({"shape": list(matrix.shape)}, {**arrays, "biases": self.biases})

    @classmethod
    def from_state(cls, state: State) -> Linear:
        matrix = sparse.csr_matrix(tuple(state.header["shape"]), dtype=np.float32)
        names = ("offsets", "features", "values")
        matrix.indptr, matrix.indices, matrix.data = (state.arrays[name] for name in names)
        return cls(matrix, state.arrays["biases"])


@dataclass
class SparseTables:
    """What training of sparse weights keeps from epoch to epoch.

    Attributes
    ----------
    sums
        Class sums of all rows so far.
    numbers
        The fitted numbers of the start.
    correction, svm
        Weights by class, or None.
    mix
        Weight of each part in the scores.
    duals
        Dual variables of an unfinished correction, (n_pairs, n_slots), or None.
    weights
        The weights for prediction; None where a part has changed.
    """

    sums: ClassSums
    numbers: Numbers
    correction: Linear | None = None
    svm: Linear | None = None
    mix: dict[str, float] = field(default_factory=lambda: dict(_ALONE))
    duals: Float32 | None = None
    weights: SparseWeights | None = None

    kind: ClassVar[str] = "sparse"

    def copy(self) -> SparseTables:
        """Return a copy that later training does not change."""
        kept = None
        if self.correction is not None:
            matrix = self.correction.matrix.copy()
            kept = Linear(matrix, self.correction.biases.copy())
        return replace(self, correction=kept, mix=dict(self.mix), weights=None)

    def restore(self, other: SparseTables) -> None:
        """Take back the weights of a copy."""
        self.correction, self.svm, self.mix = other.correction, other.svm, dict(other.mix)
        self.sums, self.numbers, self.weights = other.sums, other.numbers, None

    def training_state(self) -> State:
        """Return what further training needs beside the weights."""
        numbers = self.numbers
        arrays: dict[str, NDArray[Any]] = {
            "log_weights": numbers.log_weights, "cosine_weights": numbers.cosine_weights,
            "bias_weights": numbers.bias_weights, "edges": numbers.edges,
        }  # fmt: skip
        if self.duals is not None:
            arrays["duals"] = self.duals
        parts = {"sums": self.sums.state()}
        for name in ("correction", "svm"):
            part: Linear | None = getattr(self, name)
            if part is not None:
                parts[name] = part.state()
        header = {"smoothing": numbers.smoothing, "mix": self.mix, "parts": sorted(parts)}
        return merge(header, parts, arrays)

    @classmethod
    def from_training_state(cls, weights: Weights, state: State) -> SparseTables:
        """Build the tables from the weights of a model and from what `training_state` gave."""
        arrays, header = state.arrays, state.header
        numbers = Numbers(
            float(header["smoothing"]),
            *(np.asarray(arrays[n]) for n in ("log_weights", "cosine_weights", "bias_weights", "edges")),
        )
        linear = {
            name: Linear.from_state(state.nested(name))
            for name in ("correction", "svm")
            if name in header["parts"]
        }
        found: Any = weights
        return cls(
            ClassSums.from_state(state.nested("sums")), numbers, linear.get("correction"), linear.get("svm"),
            dict(header["mix"]), arrays.get("duals"), found,
        )  # fmt: skip


@dataclass
class Prepared:
    """What the rounds on the same examples share."""

    training: TrainingRows
    source: ProposalSource
    correction: Correction | None = None
    before: Linear | None = None  # an earlier correction, part of the offsets
    is_new: bool = True

    @property
    def data(self) -> Examples:
        return self.training.data


class SparseTrainer(TrainerBase):
    """Start, correction and SVMs; an epoch is a round of the correction over all classes."""

    @property
    def numbers(self) -> SparseConfig:
        return self.config.numbers.sparse

    def memory(self, problem: ProblemSize) -> dict[str, int]:
        """Return the bytes that training takes beside X, by part."""
        entries = problem.n_entries or problem.n_rows * problem.n_features
        pair_entries = int(entries * problem.n_pairs / max(problem.n_rows, 1))
        stored = min(pair_entries, problem.n_classes * problem.n_features)
        slots = self._n_candidates(problem.n_pairs, problem.n_classes) + 1
        return {
            "weights": 8 * stored + 8 * problem.n_classes,
            "class sums": 16 * stored,
            "correction": 12 * stored,
            "candidates": 20 * slots * min(problem.n_pairs, self._max_pairs(problem)),
        }

    def _max_pairs(self, problem: ProblemSize) -> int:
        return int(self.numbers.max_proposal_work / max(problem.n_classes, 1)) + 1

    def accept(self, data: Examples) -> Examples:
        """Return the examples with features as a CSR matrix."""
        X: Any = data.X
        if not sparse.issparse(X):
            X = sparse.csr_matrix(X)
        if X.dtype != np.float32 or not X.has_sorted_indices:
            X = X.astype(np.float32)
            X.sort_indices()
        return data if X is data.X else data.with_features(X)

    def start(self, data: Examples, n_classes: int) -> TrainState:
        """Sum the rows of each class and fit the numbers of the start."""
        log = self.context.progress.log
        n_features = int(data.X.shape[1])
        sums = ClassSums.of(data, n_classes, n_features)
        arrays, rows = sums.arrays, csr_rows(data.X)
        numbers, likelihood = fit_numbers(
            arrays, rows, data, self.numbers, self.context.seed % 2**31, self.context.n_threads
        )
        if likelihood == likelihood:
            log(f"start: leave-one-out log-likelihood {likelihood:.4f}, smoothing {numbers.smoothing:.3g}")
        tables = SparseTables(sums, numbers)
        chosen = {"start_log_likelihood": likelihood, "smoothing": numbers.smoothing}
        return TrainState(tables, 1.0, chosen=chosen)

    def prepare(self, state: TrainState, data: Examples) -> Prepared:
        """Take new rows into the class sums, and compute the start."""
        tables = _tables(state)
        key = _pair_key(data)
        rows = csr_rows(data.X)
        is_new = key != state.pair_key
        if is_new and state.pair_key != 0:  # rows of another call of partial_fit
            n_classes, n_features = tables.sums.matrix.shape
            tables.sums = tables.sums.plus(ClassSums.of(data, n_classes, n_features))
            tables.numbers, _ = fit_numbers(
                tables.sums.arrays, rows, data, self.numbers, self.context.seed % 2**31,
                self.context.n_threads,
            )  # fmt: skip
            tables.duals, tables.weights = None, None
        state.pair_key = key
        arrays = tables.sums.arrays
        start = make_start(arrays, tables.numbers, self.context.n_threads)
        source = ProposalSource(arrays, tables.numbers, start)
        mean = steps.feature_mean(rows, tables.sums.matrix.shape[1])
        return Prepared(TrainingRows(data, rows, mean), source, is_new=is_new)

    def epoch(
        self, state: TrainState, prepared: Prepared, rates: tuple[float, float], progress: Progress
    ) -> float:
        """Fit the SVMs, if they are still to be fitted, and run one round of the correction."""
        tables, n_pairs = _tables(state), prepared.data.n_pairs

        def check(fraction: float) -> None:
            progress.check()
            progress.report(int(fraction * n_pairs), float("nan"))

        correction = self._correction(tables, prepared, check)
        if correction is None:
            state.n_epochs += 1
            return 0.0
        try:
            loss = correction.run_round(state.n_epochs, check)
        finally:
            tables.correction = _plus(prepared.before, Linear(correction.matrix, correction.biases))
            tables.duals, tables.weights = correction.state.duals, None
        state.n_epochs += 1
        if state.n_epochs >= self.config.n_epochs:
            tables.duals = None  # finished: nothing to go on with
        return loss

    def _job(self, check: steps.Check = lambda fraction: None) -> Job:
        return Job(self.numbers, self.context.seed, self.context.n_threads, check)

    def _wants_svm(self, rows: CSRRows, n_classes: int) -> bool:
        return len(rows.data) * n_classes <= self.numbers.svm_work

    def _correction(self, tables: SparseTables, prepared: Prepared, check: steps.Check) -> Correction | None:
        """Return the correction in training; the first call finds hard negatives."""
        if prepared.correction is not None:
            return prepared.correction
        several = prepared.data.label_edges is not None
        if several and self._wants_svm(prepared.training.rows, tables.sums.matrix.shape[0]):
            return None  # rows with several labels: the SVMs know all negatives
        config, source, data = self.numbers, prepared.source, prepared.data
        job, rows = self._job(check), prepared.training.rows
        n_classes = len(source.sums.counts)
        n_candidates = self._n_candidates(data.n_pairs, n_classes)
        pruned = steps.prune_postings(source.start.postings, prepared.training.mean, config.prune)
        pairs = steps.choose_pairs(prepared.training, source, pruned, job)
        if len(pairs) == 0 or n_candidates == 0:
            return None
        candidates = steps.propose(prepared.training, pairs, source, pruned, n_candidates, job)
        entries = len(pairs) * (n_candidates + 1) * steps.mean_entries(rows)
        is_wide = not several and entries <= config.wide_entries
        unfinished = tables.duals is not None and tables.duals.shape == candidates.offsets.shape
        if tables.correction is not None and not unfinished:
            prepared.before = tables.correction
            candidates = _with_offsets(candidates, tables.correction, rows)
        correction = Correction.begin(rows, candidates, tables.sums, job, is_wide=is_wide)
        if unfinished and tables.correction is not None and tables.duals is not None:
            correction.support.values[:] = tables.correction.matrix.data
            scale = np.float32(1.0 / config.bias_feature)
            correction.support.biases[:] = tables.correction.biases * scale
            correction.state.duals[...] = tables.duals
            correction.refresh()
        prepared.correction = correction
        return correction

    def _n_candidates(self, n_pairs: int, n_classes: int) -> int:
        config = self.numbers
        wanted = config.many_candidates if n_pairs > config.many_pairs else config.max_candidates
        return min(wanted, n_classes - 1)

    def finish(self, state: TrainState, data: Examples, held_out: Examples | None) -> None:
        """Fit the SVMs, and choose the weights of the parts by the likelihood of held-out rows."""
        tables, shape = _tables(state), _tables(state).sums.matrix.shape
        rows = csr_rows(data.X)
        if tables.svm is None and self._wants_svm(rows, shape[0]):
            training = TrainingRows(data, rows, steps.feature_mean(rows, shape[1]))
            tables.svm = Linear(*steps.fit_svms(training, shape, self._job(self._show("SVMs", shape[0]))))
        parts = self._parts(tables)
        if held_out is None:
            default = dict(zip(PARTS, self.numbers.default_mix, strict=True))
            tables.mix = _ALONE if "svm" not in parts else default
        else:
            tables.mix = fit_mixture(parts, self.accept(held_out), self.numbers, self.context)
        tables.weights = None
        state.chosen["mix"] = {name: round(tables.mix[name], 4) for name in parts}

    def _show(self, label: str, total: int) -> steps.Check:
        """Return what shows the progress of a part."""
        progress, began = self.context.progress, time.perf_counter()

        def show(fraction: float) -> None:
            progress.update(label, int(fraction * total), total, began, unit="classes")
            if fraction == 1.0:
                progress.close()

        return show

    def _parts(self, tables: SparseTables) -> dict[str, SparseWeights]:
        start = make_start(tables.sums.arrays, tables.numbers, self.context.n_threads)
        parts = {"start": SparseWeights(start.postings, start.biases, start.length_biases)}
        for name in ("correction", "svm"):
            part: Linear | None = getattr(tables, name)
            if part is not None:
                parts[name] = SparseWeights.from_matrix(part.matrix, part.biases)
        return parts

    def export(self, state: TrainState) -> Weights:
        """Return the sum of the parts as one set of weights."""
        tables = _tables(state)
        if tables.weights is None:
            tables.weights = _combine(self._parts(tables), tables.mix)
        return tables.weights


def _tables(state: TrainState) -> SparseTables:
    tables: Any = state.tables
    return tables  # type: ignore[no-any-return]


def _pair_key(data: Examples) -> int:
    """Return a checksum of the pairs, never zero."""
    X: Any = data.X
    key = 0
    for array in (data.y, data.rows, X.indptr, X.indices[:: max(1, len(X.indices) // 65536)]):
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
            total = part.to_matrix()
            total.data = factor * total.data
        elif _same_structure(total, part.postings):
            total.data += factor * part.postings.values
        elif factor != 0.0:
            total = (total + factor * part.to_matrix()).tocsc()
    return SparseWeights.from_matrix(total, biases, lengths)


def _same_structure(total: Any, postings: Postings) -> bool:
    return (
        len(total.data) == len(postings.values)
        and np.array_equal(total.indptr, postings.offsets)
        and np.array_equal(total.indices, postings.classes)
    )
