"""The pipeline of a fit, from labelled rows to a model.

`fit_model` reads top to bottom: set calibration rows aside, start, train, then calibrate and build the index.
`resume_model` goes on with a fit that was cut short, `train_epoch` is one step of `partial_fit`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from extremax.calibration import Calibration, calibrated_log_prob, fit_calibration
from extremax.class_texts import ClassTexts
from extremax.errors import ScoreOverflowError
from extremax.examples import Examples
from extremax.model import ClassInfo, Model
from extremax.runtime.context import Context
from extremax.runtime.memory import (
    available_memory,
    check_memory,
    describe_memory,
)
from extremax.runtime.progress import ProgressLine
from extremax.runtime.threads import split
from extremax.scores.pq import PQSearch, index_bytes, sample_size
from extremax.scores.probabilities import summarize
from extremax.scores.reference import reference_of_fit
from extremax.solvers.base import Split, Trainer, TrainState, labelled_rows
from extremax.solvers.config import FitConfig
from extremax.solvers.loop import Callback, Hooks, Record, Schedule, run_epochs
from extremax.solvers.order import is_on_disk
from extremax.tuned import DEFAULTS, PQConfig, ProblemSize, replace_numbers
from extremax.types import Features, Float32, Int64

_BLOCK_SCORES = 1 << 20  # that are calibrated at a time
_MIDDLING = 0.5  # probability of the best class of a row whose temperature the index is made for


@dataclass
class Fitted:
    """A model, the state from which its training can go on, and its history."""

    model: Model
    state: TrainState
    history: list[Record] = field(default_factory=list)
    interrupted: bool = False


@dataclass(frozen=True)
class Request:
    """Options of a fit other than data and configuration.

    Attributes
    ----------
    validation
        Rows to validate on after each epoch.
    callbacks
        Called after every epoch.
    publish
        Called with the model at the start and after each epoch, before the callbacks.
    patience
        Epochs without a better validation log-likelihood after which to stop.
    held
        Bytes that the caller already holds for this fit, by part: converted features, text features.
    texts
        Texts of the classes, which the model keeps.
    """

    validation: Examples | None = None
    callbacks: Sequence[Callback] = ()
    publish: Callable[[Fitted], None] = lambda fitted: None
    patience: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    texts: ClassTexts | None = None


def fit_model(
    data: Examples, n_classes: int, config: FitConfig, context: Context, request: Request
) -> Fitted:
    """Train from the beginning."""
    whole = data
    data, calibration_rows = split_calibration(data, n_classes, config, context.seed)
    trainer = config.make_trainer(context)
    require_memory(trainer, data, n_classes, config, context, request)
    started = time.perf_counter()
    data = trainer.accept(data)
    calibration = None
    if config.uses_folds and calibration_rows is None and data.label_edges is None:
        config, calibration = choose_by_folds(data, n_classes, config, context)
        trainer = config.make_trainer(context)
    fitted = start_model(trainer, data, n_classes, config, started)
    fitted.model = replace(fitted.model, classes=replace(fitted.model.classes, texts=request.texts))
    if calibration is not None:
        fitted.model = fitted.model.with_calibration(calibration)
    schedule = Schedule(config.n_epochs, config.solver.learning_rate, request.patience, config.decay_epochs)
    prepared_request = replace(request, validation=request.validation and request.validation.compact())
    run_training(trainer, fitted, data, schedule, context, prepared_request)
    finish_model(trainer, fitted, _split(data, calibration_rows, whole), context, request.publish)
    return fitted


def choose_by_folds(
    data: Examples, n_classes: int, config: FitConfig, context: Context
) -> tuple[FitConfig, Calibration]:
    """Choose the learning rate, and the calibration, by rows that fits without them predict."""
    numbers, small = config.numbers, config.numbers.batch
    wanted = min(numbers.calibration.max_rows, max(1, numbers.calibration.max_scores // n_classes))
    n_folds = min(small.folds, -(-wanted * small.folds // data.n_pairs))
    folds = itertools.islice(data.folds(small.folds, context.seed), n_folds)
    parts = [(rest, rows.sample_rows(-(-wanted // n_folds))) for rest, rows in folds if rows.n_pairs]
    if not parts:  # no class has two rows
        return config, Calibration()
    y = np.concatenate([rows.y for _, rows in parts])
    truth = Examples(np.empty((len(y), 0), np.float32), y)
    begin = {"ridge": small.small_ridge, "shrinkages": small.small_shrinkages}
    best, chosen = -np.inf, (config, Calibration())
    quiet = replace(context, progress=ProgressLine(0))
    for share in small.small_rates:
        solver = replace(config.solver, learning_rate=share * config.solver.learning_rate)
        tried = replace(config, solver=solver, numbers=replace_numbers(numbers, warm_start=begin))
        scores = np.concatenate([_scores_of_others(*part, n_classes, tried, quiet) for part in parts])
        found = fit_calibration(
            lambda first, last, scores=scores: scores[first:last].copy(),  # type: ignore[misc]
            truth,
            n_classes,
            by_row=True,
        )
        blocks = split(len(y), max(1, _BLOCK_SCORES // n_classes))
        values = [calibrated_log_prob(scores[a:b], truth.y[a:b], found) for a, b in blocks]
        figure = float(np.concatenate(values).mean())
        if figure > best:
            best, chosen = figure, (tried, found)
    rate, calibration = chosen[0].solver.learning_rate, chosen[1]
    context.progress.log(
        f"learning rate {rate:.3g}, temperature {calibration.temperature:.3f}, by {len(y):,} rows of"
        f" {n_folds} folds"
    )
    return chosen


def _scores_of_others(
    data: Examples, others: Examples, n_classes: int, config: FitConfig, context: Context
) -> Float32:
    """Return the scores of rows by a model of other rows."""
    trainer = config.make_trainer(context)
    fitted = start_model(trainer, data, n_classes, config, time.perf_counter())
    schedule = Schedule(config.n_epochs, config.solver.learning_rate, None, config.decay_epochs)
    run_training(trainer, fitted, data, schedule, context, Request())
    if fitted.interrupted:
        raise KeyboardInterrupt
    _take_weights(trainer, fitted)
    return fitted.model.debiased_scores(others.X, n_threads=context.n_threads)


def resume_model(
    fitted: Fitted, data: Examples, config: FitConfig, context: Context, request: Request
) -> Fitted:
    """Continue an interrupted fit up to its number of epochs."""
    whole = data
    data, calibration_rows = split_calibration(data, fitted.model.n_classes, config, context.seed)
    trainer = config.make_trainer(context)
    data = trainer.accept(data)
    for name in [name for name in fitted.history[-1] if name.startswith("held_out_")]:
        del fitted.history[-1][name]  # of the model that was cut short
    left = max(0, config.n_epochs - fitted.state.n_epochs)
    schedule = Schedule(left, config.solver.learning_rate, request.patience, config.decay_epochs)
    run_training(trainer, fitted, data, schedule, context, request)
    finish_model(trainer, fitted, _split(data, calibration_rows, whole), context, request.publish)
    return fitted


def train_epoch(
    fitted: Fitted | None,
    data: Examples,
    n_classes: int,
    config: FitConfig,
    context: Context,
    request: Request,
) -> Fitted:
    """Train one more epoch, or the first one, on these rows; nothing is calibrated or indexed."""
    trainer = config.make_trainer(context)
    if fitted is None:
        require_memory(trainer, data, n_classes, config, context, request)
    started = time.perf_counter()
    data = trainer.accept(data)
    if fitted is None:
        fitted = start_model(trainer, data, n_classes, config, started)
    fitted.model = fitted.model.with_reference(None)  # that of the model before
    schedule = Schedule(1, config.solver.learning_rate, request.patience)
    run_training(trainer, fitted, data, schedule, context, request)
    _take_weights(trainer, fitted)
    request.publish(fitted)
    return fitted


def split_calibration(
    data: Examples, n_classes: int, config: FitConfig, seed: int
) -> tuple[Examples, Examples | None]:
    """Hold out a few of many rows, to calibrate probabilities and to choose the beam width."""
    numbers, n_rows = config.numbers.calibration, data.n_ordinary or data.n_rows
    scored = max(numbers.min_rows, numbers.max_scores // n_classes)
    wanted = min(numbers.max_rows, int(numbers.row_fraction * n_rows), scored)
    min_pairs, least = numbers.min_pairs, numbers.min_rows
    if config.solver.sparse_weights:  # the rows also choose how the parts are mixed
        mixing = config.numbers.sparse
        wanted = max(numbers.min_rows, min(mixing.max_held_out, int(mixing.row_fraction * n_rows)))
        min_pairs = mixing.min_held_out_pairs
    elif data.label_edges is not None:  # the rows also choose which labels apply
        wanted = max(wanted, min(numbers.max_rows, int(numbers.label_row_fraction * n_rows), scored))
        min_pairs, least = 0, numbers.label_min_rows
    if not config.solver.decays or data.n_pairs < min_pairs or wanted < least:
        return data, None
    rest, held_out = data.set_aside(wanted, seed)
    return (rest, held_out) if held_out.n_rows >= least else (data, None)


def _split(training: Examples, held_out: Examples | None, whole: Examples) -> Split:
    """Return the parts of a fit, all with the features that the trainer accepted."""
    return Split(training, held_out, None if held_out is None else whole.with_features(training.X))


def start_model(
    trainer: Trainer, data: Examples, n_classes: int, config: FitConfig, started: float
) -> Fitted:
    """Make the model before its first epoch; the first record of the history has the time since `started`."""
    state = trainer.start(data, n_classes)
    rows = data.ordinary()
    used = labelled_rows(rows)
    n_samples = data.n_rows if used is None else int(used.sum())
    classes = ClassInfo(rows.class_counts(n_classes), n_samples)
    model = Model(trainer.first_weights(state), config.solver.name, classes=classes).trained(state, config)
    record = {"epoch": 0, "seconds": time.perf_counter() - started, "loss": float("nan")}
    return Fitted(model, state, [{**record, "learning_rate": config.solver.learning_rate}])


def run_training(
    trainer: Trainer, fitted: Fitted, data: Examples, schedule: Schedule, context: Context, request: Request
) -> None:
    """Train a fitted model in place, and publish it after every epoch."""
    started = time.perf_counter()
    state = fitted.state
    prepared = trainer.prepare(state, data)
    fitted.history[-1]["seconds"] += time.perf_counter() - started
    config = trainer.config

    def make_model() -> Model:
        return replace(fitted.model, weights=trainer.export(state)).trained(state, config)

    def publish(model: Model) -> None:
        fitted.model = model
        request.publish(fitted)

    validation = request.validation
    evaluate = None
    if validation is not None:

        def evaluate(model: Model) -> dict[str, float]:
            return model.evaluate(validation, n_threads=context.n_threads)._asdict()

        if len(fitted.history) == 1:
            fitted.history[0] |= {f"valid_{name}": value for name, value in evaluate(make_model()).items()}
    fitted.interrupted = False
    if request.callbacks:
        publish(make_model())
    hooks = Hooks(make_model, publish, evaluate, request.callbacks)
    try:
        fitted.interrupted = run_epochs(trainer, state, prepared, schedule, fitted.history, hooks, context)
    except BaseException:  # model, state and history agree, and what was learnt is not lost
        publish(make_model())
        raise


def finish_model(
    trainer: Trainer, fitted: Fitted, split: Split, context: Context, publish: Callable[[Fitted], None]
) -> None:
    """Calibrate and index the model; Ctrl-C skips what is left.

    Held-out rows choose first; then the weights may include them.
    """
    started = time.perf_counter()
    held_out = split.held_out
    try:
        _finish_training(trainer, fitted, split, context)
        _take_weights(trainer, fitted)
        if held_out is not None:
            rows = held_out
            if fitted.interrupted and fitted.model.config is not None:  # the user is waiting: fewer rows
                rows = rows.sample_rows(fitted.model.config.numbers.calibration.rows_after_interrupt)
            fitted.model = calibrate_model(fitted.model, rows, context)
            training = split.training
            X = training.X if training.n_ordinary is None else training.X[: training.n_ordinary]
            fitted.model, figures = measure_held_out(fitted.model, rows, X, context)
            fitted.history[-1] |= figures
        if not fitted.interrupted:
            trainer.include(fitted.state, split)
            _take_weights(trainer, fitted)
            fitted.model = index_model(fitted.model, split.training, held_out, context)
    except KeyboardInterrupt:
        fitted.interrupted = True
        _take_weights(trainer, fitted)
    except BaseException:
        _take_weights(trainer, fitted)
        publish(fitted)
        raise
    fitted.history[-1]["seconds"] += time.perf_counter() - started


def _finish_training(trainer: Trainer, fitted: Fitted, split: Split, context: Context) -> None:
    """Finish training, or stop where Ctrl-C interrupted it."""
    if not fitted.interrupted:
        try:
            trainer.finish(fitted.state, split)
            return
        except KeyboardInterrupt:
            fitted.interrupted = True
    context.progress.log("interrupted; what was trained so far is made into a model")
    trainer.finish(fitted.state, split, interrupted=True)


def _take_weights(trainer: Trainer, fitted: Fitted) -> None:
    weights = trainer.export(fitted.state)
    if weights is not fitted.model.weights:
        fitted.model = replace(fitted.model, weights=weights).trained(fitted.state, trainer.config)


def calibrate_model(model: Model, held_out: Examples, context: Context) -> Model:
    """Return the model calibrated by held-out rows; uncalibrated if scores of one of them overflow."""
    log, by = context.progress.log, f"by {held_out.n_rows:,} held-out rows"
    try:
        model = model.calibrated(held_out, n_threads=context.n_threads)
    except ScoreOverflowError:  # one row far from all others is no reason to lose the model
        log(f"no calibration {by}: scores of one overflow")
        return model.with_calibration(type(model.calibration)())
    temperature, uniform_mix, slope = model.calibration
    of_row = f", slope {slope:.3f}" if slope else ""
    log(f"temperature {temperature:.3f}{of_row}, uniform mixing {uniform_mix:g}, {by}")
    if model.label_calibration is not None:
        log(f"labels apply from {model.labels.threshold:.3f} times the root of the best probability, {by}")
    return model


def measure_held_out(
    model: Model, held_out: Examples, training: Features, context: Context
) -> tuple[Model, dict[str, float]]:
    """Return the model with a reference for monitors, and figures for the history, from held-out rows.

    The rows have chosen the calibration, two numbers, and for sparse weights how their parts are mixed.
    `training` are the features of all rows.
    """
    numbers = (DEFAULTS if model.config is None else model.config.numbers).calibration
    rows = held_out.sample_rows(max(numbers.min_rows, numbers.max_scores // model.n_classes))
    try:
        ranked = model.rank_pairs(rows, n_threads=context.n_threads)
        figures = summarize(ranked, rows)
    except ScoreOverflowError:
        return model, {}
    layout = model.layout
    reference = reference_of_fit(
        rows.X,
        (ranked.labels[:, 0], ranked.log_prob[:, 0]),
        training,
        model.classes.counts,
        model.n_classes,
        first_word=layout.first_word if layout.is_text else None,
        n_dense=layout.n_dense,
    )
    found = {f"held_out_{name}": value for name, value in figures._asdict().items()}
    return model.with_reference(reference), {"held_out_rows": rows.n_rows} | found


def index_model(model: Model, data: Examples, held_out: Examples | None, context: Context) -> Model:
    """Return the model with an index for beam search, where one makes sense."""
    if not model.takes_index:
        return model
    context.progress.log("fitting the index of beam search")
    labelled = None if data.row_index is None else np.unique(data.row_index)
    unseen = None if held_out is None else held_out.X
    index = fit_index(
        model, data.X, rows=labelled, held_out=unseen, seed=context.seed, n_threads=context.n_threads
    )
    context.progress.log(
        f"beam search: width {index.width}, recall {index.recall:.1%} of the exact best classes"
    )
    return model.with_search("beam", index)


def fit_index(
    model: Model,
    X: Features,
    *,
    rows: Int64 | None = None,
    held_out: Features | None = None,
    seed: int = 0,
    n_threads: int = 1,
) -> PQSearch:
    """Fit the index for beam search on rows like those to be predicted: some thousands of X, or of its
    `rows`.

    `held_out`, rows that the model was not trained on, choose the default width; without them, more rows of
    X."""
    numbers = (DEFAULTS if model.config is None else model.config.numbers).pq
    if not model.takes_index:
        raise ValueError(
            f"fit_index is for scores that are linear in at most {numbers.max_features:,} features, of at"
            f" least {numbers.min_classes:,} classes; this model has others. Use search='exact', or 'beam'"
            " without an index."
        )
    among = np.arange(X.shape[0]) if rows is None else rows
    some, order = index_rows(len(among), model.n_features, numbers, seed)
    chosen = X[among[some]][order]
    unseen = (
        None if held_out is None else _dense(held_out[_some(held_out.shape[0], numbers.max_width_rows, seed)])
    )
    return fit_index_on(model, chosen, unseen, n_threads=n_threads)


def index_rows(n_rows: int, n_features: int, numbers: PQConfig, seed: int) -> tuple[Int64, Int64]:
    """Return the rows that an index is fitted on, by rising number, and a random order of them.

    Without held-out rows, the last of them choose the width.
    """
    some = _some(n_rows, sample_size(n_features, numbers), seed)
    return some, np.random.default_rng((seed, 5)).permutation(len(some))


def fit_index_on(model: Model, chosen: Features, unseen: Float32 | None, *, n_threads: int = 1) -> PQSearch:
    """Fit the index for beam search on chosen rows; `unseen` ones choose the width."""
    numbers = (DEFAULTS if model.config is None else model.config.numbers).pq
    return PQSearch.fit(
        _dense(chosen),
        model.weights,
        held_out=unseen,
        offsets=model.scorer.offsets,
        temperature=float(model.calibration.row_temperature(np.log([_MIDDLING]))[0]),
        n_epochs=model.n_epochs,
        n_threads=n_threads,
        config=numbers,
    )


def _some(n_rows: int, size: int, seed: int) -> Int64:
    """Draw at most `size` random rows, in order: a file is read from front to back."""
    return np.sort(np.random.default_rng((seed, 4)).choice(n_rows, min(n_rows, size), replace=False))


def _dense(X: Features) -> Float32:
    rows: Float32 = X.toarray() if sparse.issparse(X) else X  # type: ignore[union-attr]
    return rows


def problem_size(data: Examples, n_classes: int) -> ProblemSize:
    """Return the shape of a training problem."""
    X: Any = data.X
    n_entries = int(X.nnz) if sparse.issparse(X) else None
    several = data.has_several_labels
    return ProblemSize(data.n_rows, data.n_pairs, int(X.shape[1]), n_classes, n_entries, several)


# Ways to need less of what a caller holds.
_REMEDIES = {
    "converted features": "float32 features, in C order or CSR with int32 indices, which are not copied",
    "text features": "NgramFeatures with smaller char_ngrams or word_ngrams",
    "validation rows": "a smaller validation_fraction",
}


def require_memory(
    trainer: Trainer, data: Examples, n_classes: int, config: FitConfig, context: Context, request: Request
) -> None:
    """Log an upper bound of the memory of a fit besides X, and refuse it if less is available."""
    X: Any = data.X
    problem, solver = problem_size(data, n_classes), config.solver
    need = {"training": trainer.memory(problem, data), **request.held}
    linear = not solver.adds_log_noise or solver.noise in ("uniform", "frequency")
    if linear and not solver.sparse_weights:
        need["training"] += sum(index_bytes(n_classes, problem.n_features, config.numbers.pq))
    if request.patience is not None:
        need["training"] += 4 * n_classes * problem.n_features  # the best epoch
    if is_on_disk(X):
        need["rows read ahead"] = min(2 * config.numbers.order.window_bytes, 4 * X.size)
    validation = request.validation
    if validation is not None and validation.X is data.X:  # rows kept back are copied
        size = X.data.nbytes + X.indices.nbytes if sparse.issparse(X) else 4 * X.size
        need["validation rows"] = size // X.shape[0] * len(np.unique(validation.rows))
    context.progress.log(f"fit needs {describe_memory(need)}")
    limit = context.memory_limit
    free = available_memory(context.n_threads) + sum(request.held.values())
    available = free if limit is None else limit
    largest = max(need.keys() & _REMEDIES.keys(), key=lambda part: need[part], default="")
    hints = [trainer.remedy, _REMEDIES.get(largest, "fewer features or fewer classes")]
    check_memory(need, available=available, hints=hints)
