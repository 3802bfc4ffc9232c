"""Sparse weights through the estimator: quality, bits, folders, interruption, chunks of data, odd input."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from extremax import ExtremeClassifier, load_model
from extremax.errors import ModelFileError, TrainingInterruptedWarning
from extremax.examples import Examples
from extremax.fit import problem_size, split_calibration
from extremax.runtime.context import Context
from extremax.solvers.base import Split
from extremax.solvers.config import resolve
from extremax.solvers.loop import Watcher
from extremax.solvers.sparse import plausible, solver
from extremax.solvers.sparse.mix import EXPERTS
from extremax.solvers.sparse.plausible import fit_linear
from extremax.solvers.sparse.start import ClassSums, make_start
from extremax.storage.folder import load_folder, save_folder
from extremax.storage.models import KIND
from extremax.tuned import DEFAULTS, replace_numbers
from planted import word_rows
from scorers import is_mapped
from trainers import Progress

N_CLASSES, N_WORDS = 24, 1100
CALIBRATION = {"min_pairs": 200, "min_rows": 20, "row_fraction": 0.1, "rows_after_interrupt": 10}
SMALL = {
    "smoothing": (0.1, 1.0),
    "max_smoothing_steps": 1,
    "sample_pairs": 300,
    "search_pairs": 150,
    "bilinear_size": 8,
    "bilinear_epochs": 2,
    "min_held_out_pairs": 200,
    "few_classes": 0,
    "prune_final": 0.0,
    "max_candidates": 6,  # so that a second round finds others
}
LINEAR = {**SMALL, "bilinear_max_pairs": 0}  # start and linear weights
ONLY = {**LINEAR, "min_held_out_pairs": 10**9}  # ... with given weights


class Every(ExtremeClassifier):
    """All parts; held-out rows of a few hundred choose their weights."""

    _numbers = replace_numbers(DEFAULTS, sparse=SMALL, calibration=CALIBRATION)


class Linear(ExtremeClassifier):
    _numbers = replace_numbers(DEFAULTS, sparse=LINEAR, calibration=CALIBRATION)


class Only(ExtremeClassifier):
    _numbers = replace_numbers(DEFAULTS, sparse=ONLY)


class FewClasses(ExtremeClassifier):
    """Start and linear weights alone; all rows are compared with all classes."""

    _numbers = replace_numbers(
        DEFAULTS, sparse={**SMALL, "few_classes": 1000, "max_candidates": 1000}, calibration=CALIBRATION
    )


class Pruned(ExtremeClassifier):
    """All parts, without weights that hardly change a score."""

    _numbers = replace_numbers(DEFAULTS, sparse={**SMALL, "prune_final": 0.003}, calibration=CALIBRATION)


class Similarity(ExtremeClassifier):
    """A similarity that is worth its place."""

    _numbers = replace_numbers(DEFAULTS, sparse={**SMALL, "bilinear_epochs": 30}, calibration=CALIBRATION)


@pytest.fixture(scope="module")
def data():
    return word_rows(420, N_CLASSES, N_WORDS)


@pytest.fixture(scope="module")
def test_rows():
    return word_rows(300, N_CLASSES, N_WORDS, seed=1)


def make(cls=Linear, **options):
    return cls("sparse_softmax", **{"n_epochs": 3, "n_jobs": 1, "random_state": 0, **options})


@pytest.fixture(scope="module")
def fitted(data):
    return make().fit(*data)


@pytest.fixture(scope="module")
def unfinished(data):
    return fit_interrupted(make(), data, 1)


def tables_of(clf):
    return clf._fitted.state.tables


def matrix_of(clf):
    return clf.model_.weights.to_matrix().toarray()


def assert_packed(weights, expected):
    """Packed weights are within half a step of their feature."""
    assert weights.postings.values.dtype == np.int8
    assert (np.abs(weights.to_matrix().toarray() - expected) <= 1e-4 + 0.51 * weights.postings.steps).all()


def assert_same_model(first, second, temperature=0.0):
    for a, b in zip(first.model_.weights.postings, second.model_.weights.postings, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first.model_.weights.biases, second.model_.weights.biases)
    np.testing.assert_array_equal(first.model_.weights.length_biases, second.model_.weights.length_biases)
    expected = pytest.approx(tuple(second.model_.calibration), rel=temperature, abs=0.0)
    assert tuple(first.model_.calibration) == expected


def assert_usable(clf, X):
    prob = clf.predict_proba(X)
    assert prob.shape == (X.shape[0], len(clf.classes_))
    np.testing.assert_allclose(prob.sum(axis=1), 1.0, atol=1e-5)
    labels, log_prob = clf.predict_topk(X, k=min(3, len(clf.classes_)))
    np.testing.assert_allclose(log_prob[:, 0], np.log(prob.max(axis=1)), atol=1e-4)
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))


# -- quality -------------------------------------------------------------------------------------------------


@pytest.mark.planted
def test_better_than_naive_bayes_and_centroids():
    from sklearn.naive_bayes import MultinomialNB

    (X, y), (X_test, y_test) = word_rows(900, 30), word_rows(600, 30, seed=1)
    clf = ExtremeClassifier(n_jobs=1, random_state=0).fit(X, y)
    assert clf.choices_["solver"] == "sparse_softmax"  # nothing was asked for
    bayes = max(MultinomialNB(alpha=a).fit(X, y).score(X_test, y_test) for a in (0.01, 0.1, 1.0))
    means = np.stack([np.asarray(X[y == label].mean(axis=0)).ravel() for label in range(30)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    centroids = ((X_test @ means.T).argmax(axis=1) == y_test).mean()
    # Found 0.875 against 0.828 and 0.818.
    assert clf.score(X_test, y_test) > max(bayes, centroids) + 0.025


@pytest.mark.planted
def test_linear_weights_add_something(data, test_rows):
    (X, y), (X_test, y_test) = data, test_rows
    start = make(Only, n_epochs=0).fit(X, y)
    both = make(Only, n_epochs=1).fit(X, y)
    assert start.score(X_test, y_test) > 0.7
    assert both.score(X_test, y_test) > start.score(X_test, y_test) - 0.02
    assert both.score(X, y) > start.score(X, y)


def begin(data, cls, n_epochs=1, seed=0):
    """Return a trainer, the state of its start, and the examples as it takes them."""
    examples = Examples(*data)
    problem = problem_size(examples, N_CLASSES)
    config = resolve("sparse_softmax", problem, n_epochs=n_epochs, numbers=cls._numbers)
    trainer = config.make_trainer(Context(seed))
    examples = trainer.accept(examples)
    return trainer, trainer.start(examples, N_CLASSES), examples


def train(data, cls, n_epochs, held_out=None, seed=0):
    """Run the trainer; return its tables before they are joined, its state and the weights."""
    trainer, state, examples = begin(data, cls, n_epochs, seed)
    prepared = trainer.prepare(state, examples)
    for _ in range(n_epochs):
        trainer.epoch(state, prepared, (1.0, 1.0), Progress())
    tables = state.tables
    split = Split(examples, None if held_out is None else Examples(*held_out))
    trainer.finish(state, split)
    trainer.include(state, split)
    return tables, state, trainer.export(state)


@pytest.mark.identity
def test_no_epochs_give_the_start(data):
    clf = make(Only, n_epochs=0).fit(*data)
    tables, _, _ = train(data, Only, 0, seed=clf.seed_)
    start = make_start(tables.sums.arrays, tables.numbers, 1)
    assert_packed(clf.model_.weights, start.to_matrix().toarray())
    np.testing.assert_array_equal(clf.model_.weights.biases, start.biases)
    np.testing.assert_array_equal(clf.model_.weights.length_biases, start.length_biases)


@pytest.mark.identity
@pytest.mark.parametrize("chosen", [False, True])
def test_scores_are_the_sum_of_the_parts(data, test_rows, chosen):
    X = test_rows[0]
    tables, state, weights = train(data, Linear, 1, held_out=test_rows if chosen else None)
    start = make_start(tables.sums.arrays, tables.numbers, 1)
    W = start.to_matrix()
    rows = X.toarray().astype(np.float64)
    total = rows @ W.toarray().T + rows.sum(axis=1, keepdims=True) * start.length_biases + start.biases
    total *= tables.mix["start"]
    total += tables.mix["linear"] * (rows @ tables.linear.matrix.toarray().T + tables.linear.biases)
    pairs = np.arange(len(total)), np.tile(np.arange(N_CLASSES, dtype=np.int32), (len(total), 1))
    gaps = np.abs(weights.score_pairs(X, *pairs, 1) - total)
    assert (gaps <= 1e-3 + 0.51 * (np.abs(rows) @ weights.postings.steps)[:, None]).all()
    mix = state.chosen["mix"]
    assert list(mix) == ["start", "linear"]
    assert mix == {name: pytest.approx(tables.mix[name], abs=1e-4) for name in mix}


@pytest.mark.identity
@pytest.mark.parametrize("is_included", [True, False])
def test_held_out_rows_are_included_once_they_have_chosen(data, is_included, monkeypatch):
    numbers = replace_numbers(Linear._numbers, sparse={"min_included": 0.01 if is_included else 1.0})
    whole = Examples(*data)
    problem = problem_size(whole, N_CLASSES)
    config = resolve("sparse_softmax", problem, n_epochs=1, numbers=numbers)
    trainer = config.make_trainer(Context(0))
    some, held_out = split_calibration(trainer.accept(whole), N_CLASSES, config, 0)
    split = Split(some, held_out, whole.with_features(some.X))
    state = trainer.start(some, N_CLASSES)
    trainer.epoch(state, trainer.prepare(state, some), (1.0, 1.0), Progress())
    trainer.finish(state, split)
    tables, mix, before = state.tables, dict(state.chosen["mix"]), trainer.export(state).to_matrix()
    linear, fits = tables.linear, []
    listed = None if tables.found is None else tables.found.classes

    def record(*arguments, **others):
        fits.append(arguments[1])
        return fit_linear(*arguments, **others)

    monkeypatch.setattr(plausible, "fit_linear", record)
    trainer.include(state, split)
    weights = trainer.export(state)
    assert state.tables.kind == "finished"
    assert state.chosen["mix"] == mix
    if not is_included:
        np.testing.assert_array_equal(weights.to_matrix().toarray(), before.toarray())
        assert "included_rows" not in state.chosen
        assert not fits
        return
    (found,) = fits
    assert state.chosen["included_rows"] == held_out.n_rows > 0
    start = make_start(ClassSums.of(whole, N_CLASSES, N_WORDS, tables.scale).arrays, tables.numbers, 1)
    W = tables.mix["start"] * start.to_matrix().toarray()
    W += tables.mix["linear"] * tables.linear.matrix.toarray()
    assert_packed(weights, tables.scale * W)
    assert np.abs(tables.linear.matrix - linear.matrix).max() > 0.01
    # rows that were held out have plausible classes now, others those that they had
    held = np.setdiff1d(np.arange(whole.n_rows), some.rows)
    kept = np.unique(some.rows)
    assert len(held) == held_out.n_rows
    assert (listed[held] == -1).all()
    assert (found.classes[held] >= 0).all()
    assert not (found.classes[held] == whole.y[held, None]).any()
    np.testing.assert_array_equal(found.classes[kept], listed[kept])


@pytest.mark.planted
def test_included_rows_are_learnt(data):
    """Labels of held-out rows that contradict all others: the model knows them in the end."""
    clf = make(n_epochs=1).fit(*data)
    numbers = replace_numbers(Linear._numbers, sparse={"min_included": 1.0})

    class Without(ExtremeClassifier):
        _numbers = numbers

    without = make(Without, n_epochs=1).fit(*data)
    assert "included_rows" not in without.choices_
    X, y = data
    likelihood = [np.log(m.predict_proba(X)[np.arange(len(y)), y]).mean() for m in (clf, without)]
    assert likelihood[0] > likelihood[1]


def test_figures_of_held_out_rows_are_of_a_model_that_has_not_seen_them(data):
    """Half of the labels at random: a model that has been trained on a row knows its label, others do not."""
    (X, y), rng = data, np.random.default_rng(0)
    y = np.where(rng.random(len(y)) < 0.5, rng.permutation(y), y)
    clf = make(n_epochs=1).fit(X, y)
    assert clf.choices_["included_rows"] == clf.history_[-1]["held_out_rows"]
    assert clf.score(X, y) > 0.9
    assert clf.history_[-1]["held_out_accuracy"] < 0.7


@pytest.mark.parametrize("limit", [20_000, 40_000])
def test_size_of_the_model_is_limited(data, test_rows, fitted, limit):
    clf = make(max_model_bytes=limit).fit(*data)
    assert clf.model_.weights.n_bytes <= limit < fitted.model_.weights.n_bytes
    assert_usable(clf, test_rows[0])
    assert clf.score(*test_rows) > 0.6
    assert clf.choices_["n_weights"] == clf.model_.weights.n_entries
    assert np.isfinite(clf.choices_["pruning_loss"])


# -- bits and folders ----------------------------------------------------------------------------------------


@pytest.mark.invariance
@pytest.mark.parametrize("n_jobs", [2, 3])
def test_same_bits_for_any_number_of_threads(data, fitted, n_jobs):
    assert_same_model(make(n_jobs=n_jobs).fit(*data), fitted)


@pytest.mark.invariance
def test_same_predictions_of_every_part_for_any_number_of_threads(data, test_rows):
    found = [make(Every, n_jobs=n, n_epochs=1).fit(*data).predict_log_proba(test_rows[0]) for n in (1, 2)]
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.identity
@pytest.mark.parametrize("cls", [Linear, Every])
def test_folder_holds_the_model(data, test_rows, tmp_path, cls):
    clf = make(cls, n_epochs=1).fit(*data)
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert_same_model(again, clf)
    assert all(is_mapped(part) for part in again.model_.weights.postings)
    X = test_rows[0]
    np.testing.assert_array_equal(again.predict_log_proba(X), clf.predict_log_proba(X))
    np.testing.assert_array_equal(again.predict_topk(X, k=5)[0], clf.predict_topk(X, k=5)[0])
    again.partial_fit(*data)  # nothing of it reaches the files
    np.testing.assert_array_equal(
        load_model(tmp_path / "model").predict_log_proba(X), clf.predict_log_proba(X)
    )


def break_folder(path, **changed):
    """Write the folder again with changed arrays; checksums are right."""
    folder = load_folder(path, kind=KIND)
    arrays = {name: np.array(array) for name, array in folder.arrays.items()}
    for end, change in changed.items():
        (name,) = [name for name in arrays if name.endswith(end.replace("__", "."))]
        change(arrays[name])
    header, labels = folder.header, folder.labels
    save_folder(path, kind=KIND, header=header, arrays=arrays, labels=labels)


def too_large(array):
    array[0] = np.iinfo(array.dtype).max


def falling(array):
    array[1:4] = [2, 1, 3]


@pytest.mark.error
@pytest.mark.parametrize("change", [{"weights__classes": too_large}, {"weights__offsets": falling}])
def test_weights_that_lead_outside_are_refused(fitted, tmp_path, change):
    fitted.save(tmp_path / "model")
    break_folder(tmp_path / "model", **change)
    with pytest.raises(ModelFileError, match="sparse weights of the model do not fit together"):
        load_model(tmp_path / "model")


@pytest.mark.error
@pytest.mark.parametrize(
    "change",
    [
        {"sums__classes": too_large},
        {"sums__offsets": falling},
        {"linear__features": too_large},
        {"linear__offsets": falling},
    ],
)
def test_training_state_that_leads_outside_is_refused(unfinished, tmp_path, change):
    unfinished.save(tmp_path / "model")
    break_folder(tmp_path / "model", **change)
    with pytest.raises(ModelFileError, match="training state of the model does not fit together"):
        load_model(tmp_path / "model")


# -- interruption --------------------------------------------------------------------------------------------


def press():
    os.kill(os.getpid(), signal.SIGINT)


class At(Watcher):
    """Presses Ctrl-C inside an epoch."""

    def __init__(self, epoch):
        self.epoch, self.fired = epoch, False

    def during_epoch(self, moment):
        record = moment.record
        if not self.fired and record["epoch"] == self.epoch and record["rows"] > 0:
            self.fired = True
            press()


def fit_interrupted(clf, data, epoch):
    """Fit with Ctrl-C after an epoch."""
    with pytest.warns(TrainingInterruptedWarning, match=f"after {epoch} epochs"):
        clf.fit(*data, callbacks=[lambda record: press() if record["epoch"] == epoch else None])
    return clf


@pytest.mark.identity
@pytest.mark.parametrize("epoch", [1, 2, 3])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_resumed_fit_has_the_same_bits(data, fitted, epoch, through_a_file, tmp_path):
    X, y = data
    clf = fit_interrupted(make(), data, epoch)
    assert_usable(clf, X)
    if through_a_file:
        clf.save(tmp_path / "model")
        clf = load_model(tmp_path / "model")
    clf.resume_fit(X, y)
    assert clf.model_.n_epochs == 3
    assert_same_model(clf, fitted)
    assert [record["loss"] for record in clf.history_[1:]] == [
        record["loss"] for record in fitted.history_[1:]
    ]


@pytest.mark.identity
@pytest.mark.parametrize("epoch", [1, 3])
def test_resumed_fit_of_rows_and_all_classes_has_the_same_bits(data, epoch, tmp_path):
    whole = make(FewClasses).fit(*data)
    fit_interrupted(make(FewClasses), data, epoch).save(tmp_path / "model")
    clf = load_model(tmp_path / "model")
    clf._numbers = FewClasses._numbers
    assert_same_model(clf.resume_fit(*data), whole)


@pytest.mark.parametrize("moment", ["epoch", "similarity"])
def test_an_interrupted_model_is_mixed_and_pruned(data, test_rows, moment, monkeypatch):
    if moment == "similarity":
        monkeypatch.setattr(solver, "fit_bilinear", lambda *args, **options: press())
    epoch = 1 if moment == "epoch" else 4  # of 3
    clf, whole = make(Pruned), make(Pruned).fit(*data) if moment == "epoch" else None
    with pytest.warns(TrainingInterruptedWarning):
        clf.fit(*data, callbacks=[lambda record: press() if record["epoch"] == epoch else None])
    assert clf.interrupted_ is True
    assert list(clf.choices_["mix"]) == ["start", "linear"]
    unpruned = make(Linear).fit(*data).model_.weights.n_entries
    assert clf.choices_["n_weights"] == clf.model_.weights.n_entries < 0.9 * unpruned
    assert clf.score(*test_rows) > 0.7
    if whole is not None:
        clf.resume_fit(*data)
        np.testing.assert_array_equal(
            clf.predict_log_proba(test_rows[0]), whole.predict_log_proba(test_rows[0])
        )


@pytest.mark.identity
def test_resumed_fit_of_every_part_has_the_same_bits(data, test_rows):
    whole = make(Every).fit(*data)
    clf = fit_interrupted(make(Every), data, 1).resume_fit(*data)
    X = test_rows[0]
    np.testing.assert_array_equal(clf.predict_log_proba(X), whole.predict_log_proba(X))


@pytest.mark.identity
@pytest.mark.parametrize("through_a_file", [False, True])
def test_fit_resumed_after_a_callback_stopped_it_has_the_same_bits(data, test_rows, through_a_file, tmp_path):
    whole = make(Every).fit(*data)
    clf = make(Every).fit(*data, callbacks=[lambda record: record["epoch"] == 1])
    assert clf.model_.n_epochs == 1
    assert clf.interrupted_ is False
    assert "bilinear" in clf.choices_["mix"]  # a model with all its parts
    if through_a_file:
        clf.save(tmp_path / "model")
        clf = load_model(tmp_path / "model")
        clf._numbers = Every._numbers
    clf.resume_fit(*data)
    X = test_rows[0]
    np.testing.assert_array_equal(clf.predict_log_proba(X), whole.predict_log_proba(X))


def test_history_has_the_loss_of_the_start(data):
    clf = make(FewClasses).fit(*data)
    assert list(clf.choices_["mix"]) == ["start", "linear"]
    assert clf.history_[1]["loss"] == -clf.choices_["start_log_likelihood"] > 0.0
    X, y = data
    tiny = make(FewClasses).fit(X[:12], y[:12] % 2)  # too few pairs for a likelihood
    assert np.isnan(tiny.history_[1]["loss"])


def test_max_model_bytes_drops_the_similarity_where_it_takes_too_much(data, test_rows):
    whole = make(Similarity).fit(*data)
    assert whole.model_.weights.dense is not None
    limit = int(1.5 * whole.model_.weights.dense.n_bytes)
    assert whole.model_.weights.n_bytes > limit
    clf = make(Similarity, max_model_bytes=limit).fit(*data)
    assert clf.model_.weights.dense is None
    assert "bilinear" not in clf.choices_["mix"]
    assert clf.model_.weights.n_bytes <= limit
    assert clf.score(*test_rows) > 0.5


@pytest.mark.identity
def test_a_fit_saved_after_its_last_epoch_ends_with_every_part(data, test_rows, tmp_path):
    """Hard negatives are not saved; the similarity that is trained on them must not get lost."""
    (X, y), clf = data, make(Every)
    clf.fit(X, y, callbacks=[lambda record: clf.save(tmp_path / str(record["epoch"]))])
    last = clf.history_[-1]["epoch"]
    resumed = load_model(tmp_path / str(last))
    resumed._numbers = Every._numbers
    resumed.resume_fit(X, y)
    assert "bilinear" in resumed.choices_["mix"]
    np.testing.assert_array_equal(
        resumed.predict_log_proba(test_rows[0]), clf.predict_log_proba(test_rows[0])
    )


@pytest.mark.parametrize("epoch", [1, 2])
def test_ctrl_c_inside_an_epoch_leaves_a_model(data, test_rows, epoch):
    (X, y), clf, watcher = data, make(), At(epoch)
    with pytest.warns(TrainingInterruptedWarning, match=f"after {epoch - 1} epochs"):
        clf.fit(X, y, callbacks=[watcher])
    assert clf.interrupted_ is True
    assert clf.model_.n_epochs == epoch - 1
    assert_usable(clf, X)
    assert clf.score(*test_rows) > 0.7
    clf.resume_fit(X, y)
    assert clf.interrupted_ is False
    assert clf.model_.n_epochs == 3
    assert clf.score(*test_rows) > 0.7


def test_more_epochs_after_a_finished_fit(data, test_rows):
    """A fit that ended is corrected; that may be cut short as well."""
    clf = make(Only, n_epochs=4).fit(*data, callbacks=[lambda record: record["epoch"] == 1])
    assert clf.model_.n_epochs == 1
    clf.resume_fit(*data, callbacks=[lambda record: record["epoch"] == 2])
    clf.resume_fit(*data)
    assert clf.model_.n_epochs == 4
    assert clf.score(*test_rows) > 0.7


@pytest.mark.identity
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
@pytest.mark.parametrize("n_before", [0, 1])
def test_an_interrupted_epoch_keeps_the_weights(data, stop_after, n_before):
    trainer, state, examples = begin(data, Only)
    prepared = trainer.prepare(state, examples)
    for _ in range(n_before):
        trainer.epoch(state, prepared, (1.0, 1.0), Progress())
    tables = state.tables
    before = tables.linear, tables.found, dict(tables.mix), trainer.export(state).to_matrix().toarray()
    with pytest.raises(KeyboardInterrupt):
        trainer.epoch(state, prepared, (1.0, 1.0), Progress(stop_after=stop_after))
    assert state.tables is tables
    assert tables.linear is before[0]
    assert tables.found is before[1]
    assert (tables.mix, state.n_epochs) == (before[2], n_before)
    np.testing.assert_array_equal(trainer.export(state).to_matrix().toarray(), before[3])
    trainer.epoch(state, prepared, (1.0, 1.0), Progress())
    untouched = begin(data, Only)
    other = untouched[0].prepare(untouched[1], untouched[2])
    for _ in range(n_before + 1):
        untouched[0].epoch(untouched[1], other, (1.0, 1.0), Progress())
    np.testing.assert_array_equal(tables.linear.matrix.data, untouched[1].tables.linear.matrix.data)


@pytest.mark.identity
def test_a_second_round_adds_classes_that_the_first_takes_rows_for(data):
    trainer, state, examples = begin(data, Only)
    prepared = trainer.prepare(state, examples)
    trainer.epoch(state, prepared, (1.0, 1.0), Progress())
    first = state.tables.found
    trainer.epoch(state, prepared, (1.0, 1.0), Progress())
    second = state.tables.found
    n_slots = first.classes.shape[1]
    assert n_slots == SMALL["max_candidates"]
    np.testing.assert_array_equal(second.classes[:, :n_slots], first.classes)
    added = second.classes[:, n_slots:]
    assert 0.0 < (added >= 0).mean() < 0.9
    for row, classes in enumerate(second.classes):
        named = classes[classes >= 0].tolist()
        assert len(set(named)) == len(named)
        assert int(examples.y[row]) not in named


# -- validation ----------------------------------------------------------------------------------------------


@pytest.mark.identity
@pytest.mark.parametrize("best", [0, 1, 3])
def test_patience_keeps_the_best_epoch(data, test_rows, best, monkeypatch):
    """The likelihoods are given: they rise to one epoch and fall after it."""
    from extremax.model import Model

    (X, y), found, calls = data, {0: matrix_of(make(Only, n_epochs=0).fit(*data))}, iter(range(100))
    true_evaluate = Model.evaluate

    def evaluate(self, *args, **options):
        figures = true_evaluate(self, *args, **options)
        return figures._replace(log_likelihood=-float(abs(next(calls) - best)))

    monkeypatch.setattr(Model, "evaluate", evaluate)
    clf = make(Only, n_epochs=6, patience=2)

    def keep(record):
        found[record["epoch"]] = matrix_of(clf)

    clf.fit(X, y, eval_set=test_rows, callbacks=[keep])
    assert len(clf.history_) == min(best + 3, 7)
    assert len({array.tobytes() for array in found.values()}) >= 3  # a round may find nothing new
    assert_packed(clf.model_.weights, found[best])
    clf.set_params(patience=None).partial_fit(X, y)
    assert_usable(clf, X)


def test_validation_rows_are_reported(data, test_rows):
    clf = make(validation_fraction=0.2, n_epochs=2).fit(*data)
    assert all(np.isfinite(record["valid_log_likelihood"]) for record in clf.history_)
    clf = make(n_epochs=2).fit(*data, eval_set=test_rows)
    assert clf.history_[-1]["valid_accuracy"] > 0.7


# -- more rows -----------------------------------------------------------------------------------------------


@pytest.mark.identity
@pytest.mark.parametrize("weighted", [False, True])
def test_partial_fit_in_chunks_sums_all_rows(data, test_rows, weighted):
    X, y = data
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y)) if weighted else None
    clf = make()
    chunks = [slice(0, 150), slice(150, 300), slice(300, None)]
    for part in chunks:
        given = None if weight is None else weight[part]
        clf.partial_fit(X[part], y[part], classes=np.arange(N_CLASSES), sample_weight=given)
        assert_usable(clf, test_rows[0])
    sums, whole = tables_of(clf).sums, Examples(X, y, None, None if weight is None else np.float32(weight))
    expected = ClassSums.of(whole, N_CLASSES, N_WORDS)
    np.testing.assert_allclose(sums.matrix.toarray(), expected.matrix.toarray(), atol=1e-4)
    np.testing.assert_allclose(sums.counts, expected.counts, rtol=1e-5)
    assert clf.score(*test_rows) > 0.7
    before = clf.model_.n_epochs
    for part in (chunks[2], chunks[2], chunks[0]):  # the last rows again, and rows from before
        clf.partial_fit(X[part], y[part])
        assert_usable(clf, test_rows[0])
    assert clf.model_.n_epochs == before + 3


def likelihood(clf, X, y):
    return float(np.log(np.maximum(clf.predict_proba(X)[np.arange(len(y)), y], 1e-30)).mean())


@pytest.mark.planted
def test_a_stream_learns_its_new_rows(data, test_rows):
    """A second part whose labels say something else; the linear weights correct the start."""
    (X, y), (X_new, y_new) = data, test_rows
    clf = make(Only).partial_fit(X, y, classes=np.arange(N_CLASSES))
    moved = (y_new + 1) % N_CLASSES
    before = likelihood(clf, X_new, moved)
    found = [likelihood(clf.partial_fit(X_new, moved), X_new, moved) for _ in range(3)]
    assert found[0] > before + 0.5
    assert found[2] > found[0]
    assert tables_of(clf).mix == {**dict.fromkeys(EXPERTS, 0.0), "start": 1.0, "linear": 1.0}


@pytest.mark.planted
@pytest.mark.parametrize("cls", [Linear, Every])
def test_a_finished_fit_learns_new_rows_and_keeps_the_old(data, test_rows, cls):
    (X, y), (X_new, y_new) = data, test_rows
    clf = make(cls, n_epochs=1).fit(X, y)
    assert tables_of(clf).kind == "finished"
    rows = np.random.default_rng(0).random(len(y_new)) < 0.5
    before = likelihood(clf, X_new[rows], y_new[rows]), likelihood(clf, X_new[~rows], y_new[~rows])
    clf.partial_fit(X_new[rows], y_new[rows])
    assert likelihood(clf, X_new[rows], y_new[rows]) > before[0] + 0.02
    assert likelihood(clf, X_new[~rows], y_new[~rows]) > before[1] - 0.1
    assert clf.score(X, y) > 0.9


@pytest.mark.invariance
def test_more_rows_give_the_same_bits_for_any_number_of_threads(data, test_rows):
    (X, y), new = data, test_rows
    streams = [make(n_jobs=n).partial_fit(X, y).partial_fit(*new) for n in (1, 2, 3)]
    fits = [make(n_jobs=n, n_epochs=1).fit(X, y).partial_fit(*new) for n in (1, 2, 3)]
    for first, *others in (streams, fits):
        for other in others:
            assert_same_model(other, first)


def test_new_rows_without_a_label_are_no_trouble(data):
    """Rows of several labels, some of which have none."""
    X, y = data
    labels = [[] if i % 5 == 0 else [int(a), int((a + 1) % N_CLASSES)] for i, a in enumerate(y)]
    clf = make(Linear, n_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.filterwarnings("ignore", message=".* have no label; they are left out")
        clf.partial_fit(X[:200], labels[:200], classes=np.arange(N_CLASSES))
        clf.partial_fit(X[200:], labels[200:])
        assert_usable(clf, X)
        fitted = make(Linear, n_epochs=1).fit(X[:300], labels[:300])
        fitted.partial_fit(X[300:], labels[300:])
    assert np.isfinite(matrix_of(clf)).all()
    assert np.isfinite(matrix_of(fitted)).all()


@pytest.mark.identity
def test_a_folder_of_older_code_has_its_correction_as_linear_weights():
    """The golden folder of a stream was written when experts were called correction and svm."""
    path = Path(__file__).parents[1] / "golden" / "v2" / "text_stream" / "model"
    folder = load_folder(path, kind=KIND)
    names = [name for name in folder.arrays if "correction" in name]
    assert any(name.endswith("correction.values") for name in names), sorted(folder.arrays)
    stored = next(folder.arrays[name] for name in names if name.endswith("correction.values"))
    clf = load_model(path)
    tables = clf.classifier_._fitted.state.tables
    assert tables.kind == "sparse"
    assert tables.mix["linear"] == 1.0
    assert set(tables.mix) == set(EXPERTS)
    assert 0 < tables.linear.matrix.nnz <= len(stored)
    assert set(np.unique(tables.linear.matrix.data)) <= set(np.unique(stored))  # its weight was one
    assert set(tables.training_state().header["parts"]) == {"sums", "linear"}


@pytest.mark.identity
def test_chunks_with_the_same_labels_are_other_rows():
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 60, 5)).astype(np.float32) + 0.1
    y = np.arange(60) % 6
    clf = make(Only).partial_fit(first, y).partial_fit(second, y)
    expected = [(first + second)[y == label].sum(axis=0) for label in range(6)]
    found = tables_of(clf).sums.matrix.toarray() / tables_of(clf).scale
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (tables_of(clf).sums.counts == 20.0).all()
    clf.partial_fit(second, y)
    assert (tables_of(clf).sums.counts == 20.0).all()  # these were there already


@pytest.mark.invariance
def test_the_scale_of_features_and_of_weights_does_not_matter(data, test_rows):
    (X, y), (X_test, _) = data, test_rows
    probabilities = [
        make(Linear, n_epochs=1)
        .fit(X * scale, y, sample_weight=np.full(len(y), weight))
        .predict_proba(X_test * scale)
        for scale, weight in ((2.0**-10, 1.0), (2.0**10, 2.0**-20))  # powers of two are not rounded
    ]
    np.testing.assert_allclose(*probabilities, atol=1e-5)


# -- labels and weights --------------------------------------------------------------------------------------


@pytest.mark.planted
@pytest.mark.parametrize("cls", [Linear, Only, Every])
def test_several_labels_per_row(data, test_rows, cls):
    """Rows are sums of two rows and have the labels of both."""
    (X, y), rng = data, np.random.default_rng(0)
    other = rng.permutation(len(y))
    labels = [sorted({int(a), int(b)}) for a, b in zip(y, y[other], strict=True)]
    clf = make(cls, n_epochs=1).fit(X + X[other], labels)
    X_test, y_test = test_rows
    turned = np.roll(np.arange(len(y_test)), 1)
    found, _ = clf.predict_topk(X_test + X_test[turned], k=2)
    truth = [{int(a), int(b)} for a, b in zip(y_test, y_test[turned], strict=True)]
    hits = np.mean([row[0] in right for row, right in zip(found.tolist(), truth, strict=True)])
    assert hits > 0.7
    assert_usable(clf, X_test)


@pytest.mark.invariance
@pytest.mark.parametrize("cls", [Linear, FewClasses])
def test_several_labels_give_the_same_bits_for_any_number_of_threads(data, cls):
    (X, y), other = data, np.random.default_rng(0).permutation(len(data[1]))
    labels = [sorted({int(a), int(b)}) for a, b in zip(y, y[other], strict=True)]
    first, *others = (make(cls, n_epochs=2, n_jobs=n).fit(X + X[other], labels) for n in (1, 2, 3))
    for clf in others:
        assert_same_model(clf, first)


@pytest.mark.invariance
@pytest.mark.parametrize("n_zero", [1, 100])
def test_rows_of_weight_zero_do_not_count(data, test_rows, n_zero):
    X, y = data
    weight = np.ones(len(y), np.float32)
    weight[30 : 30 + n_zero] = 0.0
    kept = weight > 0.0
    large = sparse.csr_matrix(sparse.diags(np.where(kept, 1.0, 50.0)) @ X, dtype=np.float32)
    with_zeros = make(Only).fit(large, y, sample_weight=weight)
    without = make(Only).fit(X[kept], y[kept], classes=np.arange(N_CLASSES))
    assert with_zeros.choices_["mix"]["linear"] > 0.0
    np.testing.assert_allclose(
        with_zeros.predict_proba(test_rows[0]), without.predict_proba(test_rows[0]), atol=1e-4
    )


def test_classes_without_rows(data, test_rows):
    X, y = data
    for cls in (Only, Linear):
        clf = make(cls).fit(X, y, classes=np.arange(N_CLASSES + 3))
        assert len(clf.classes_) == N_CLASSES + 3
        assert_usable(clf, test_rows[0])
        assert clf.predict(test_rows[0]).max() < N_CLASSES
        assert clf.score(*test_rows) > 0.7


@pytest.mark.parametrize("cls", [Only, Linear])
def test_one_row_per_class(data, cls):
    X, y = data[0][:N_CLASSES], np.arange(N_CLASSES)
    clf = make(cls).fit(X, y)
    assert_usable(clf, X)
    assert clf.score(X, y) > 0.9


# -- features ------------------------------------------------------------------------------------------------


@pytest.mark.invariance
@pytest.mark.parametrize(
    "form", ["array", "explicit zeros", "unsorted", "repeated", "int64", "csc", "float64"]
)
def test_form_of_the_features_does_not_matter(data, fitted, form):
    X, y = data[0].copy(), data[1]
    if form == "array":
        X = X.toarray()
    elif form == "explicit zeros":
        entries = X.tocoo()
        rows, columns = np.arange(len(y)), (7 * np.arange(len(y))) % N_WORDS
        free = np.asarray(X[rows, columns]).ravel() == 0.0
        rows, columns = rows[free], columns[free]
        X = sparse.csr_matrix(
            (
                np.append(entries.data, np.zeros(len(rows), np.float32)),
                (np.append(entries.row, rows), np.append(entries.col, columns)),
            ),
            shape=X.shape,
        )
        assert X.nnz > data[0].nnz
    elif form == "unsorted":
        X.indices, X.data = X.indices.copy(), X.data.copy()
        for start, stop in zip(X.indptr[:-1], X.indptr[1:], strict=True):
            X.indices[start:stop], X.data[start:stop] = X.indices[start:stop][::-1], X.data[start:stop][::-1]
        X.has_sorted_indices = False
    elif form == "repeated":
        X = sparse.csr_matrix(
            (np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr), shape=X.shape
        )
    elif form == "int64":
        X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    elif form == "csc":
        X = X.tocsc()
    else:
        X = X.astype(np.float64)
    before = X.copy()
    assert_same_model(make().fit(X, y), fitted, temperature=1e-6)  # a stored zero changes the sums of scores
    assert (before != X).sum() == 0


@pytest.mark.planted
@pytest.mark.parametrize("form", ["array", "csr"])
def test_negative_values(form):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, 300)
    X = (2.0 * rng.normal(size=(8, 6))[y] + 0.5 * rng.normal(size=(300, 6))).astype(np.float32)
    X = sparse.csr_matrix(X) if form == "csr" else X
    for cls in (Only, Linear):
        clf = make(cls).fit(X[:200], y[:200])
        assert_usable(clf, X)
        assert clf.score(X[200:], y[200:]) > 0.9


@pytest.mark.parametrize("values", ["positive", "both signs", "zero"])
def test_a_single_feature(values):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 100)
    X = rng.gamma(2.0, size=(100, 1)) if values == "positive" else 3.0 * rng.normal(size=(100, 1))
    clf = make().fit(0.0 * X if values == "zero" else X, y)
    assert_usable(clf, X)


@pytest.mark.planted
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("cls", [Linear, Only, Every])
def test_few_classes(n_classes, cls):
    (X, y), (X_test, y_test) = word_rows(300, n_classes), word_rows(200, n_classes, seed=1)
    clf = make(cls, n_epochs=6).fit(X, y)
    assert_usable(clf, X_test)
    assert clf.score(X_test, y_test) > 0.8


def test_few_rows():
    X = sparse.csr_matrix(np.eye(4, 1100, dtype=np.float32))
    clf = make().fit(X, ["a", "b", "a", "b"])
    assert_usable(clf, X)
    assert clf.score(X, ["a", "b", "a", "b"]) == 1.0


def test_empty_rows_count_as_their_class(data):
    X, y = data
    empty = sparse.vstack([X, sparse.csr_matrix((30, N_WORDS), dtype=np.float32)], format="csr")
    clf = make().fit(empty, np.concatenate([y, np.full(30, 7)]))
    assert_usable(clf, empty[-3:])
    assert clf.predict(empty[-1:])[0] == 7


@pytest.mark.reference
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_class_sums_are_a_product_with_the_indicator_matrix(weighted, n_threads):
    rng = np.random.default_rng(0)
    n_rows, n_classes, n_features, n_kept = 3000, 40, 60, 50
    X = sparse.csr_matrix(
        rng.integers(-2, 3, (n_rows, n_features)) * (rng.random((n_rows, n_features)) < 0.2)
    )
    X = X.astype(np.float32)
    y = rng.integers(0, n_classes, n_rows).astype(np.int32)
    weight = rng.random(n_rows).astype(np.float32) if weighted else None
    sums = ClassSums.of(Examples(X, y, None, weight), n_classes, n_kept, 0.5, n_threads)
    pairs = np.ones(n_rows, np.float32) if weight is None else weight
    indicator = sparse.csr_matrix((pairs, (y, np.arange(n_rows))), shape=(n_classes, n_rows))
    expected = 0.5 * (indicator @ X[:, :n_kept]).toarray()
    np.testing.assert_allclose(sums.matrix.toarray(), expected, atol=1e-4)
    assert (sums.matrix.data != 0.0).all()  # what cancels out is not stored
    assert sums.matrix.has_sorted_indices
    mass = np.maximum(expected, 0.0).sum(axis=0)
    np.testing.assert_allclose(sums.arrays.feature_mass, mass, atol=1e-3)


@pytest.mark.reference
def test_entries_of_class_sums_are_estimated_upwards_beside_a_giant_class():
    rng, n_classes, n_rows = np.random.default_rng(1), 4000, 20_000
    giant = int(np.random.default_rng(0).permutation(n_classes)[0])  # the first that the estimate draws
    y = np.where(rng.random(n_rows) < 0.4, giant, rng.integers(n_classes, size=n_rows)).astype(np.int32)
    y[-1] = n_classes - 1
    columns = rng.integers(300, size=(n_rows, 5))
    X = sparse.csr_matrix(
        (np.ones(5 * n_rows, np.float32), columns.ravel(), 5 * np.arange(n_rows + 1)), shape=(n_rows, 300)
    )
    X.sum_duplicates()
    keys = np.repeat(y.astype(np.int64), np.diff(X.indptr)) * 300 + X.indices
    truth = len(np.unique(keys)) / len(keys)
    found = solver._share_distinct(Examples(X, y))
    assert truth <= found <= min(1.0, 2.0 * truth)
    assert solver._share_distinct(Examples(X[:100], y[:100])) == 1.0


def test_no_second_fit_where_every_class_is_listed(monkeypatch):
    calls = []
    fit_linear = plausible.fit_linear
    monkeypatch.setattr(
        plausible, "fit_linear", lambda *args, **options: calls.append(1) or fit_linear(*args, **options)
    )
    rng = np.random.default_rng(0)
    Y = (rng.random((300, 12)) < 0.25).astype(int)
    Y[:, 0] |= Y.sum(axis=1) == 0
    X = sparse.csr_matrix(rng.random((300, 1500)) * (rng.random((300, 1500)) < 0.02))
    clf = ExtremeClassifier("sparse_softmax", random_state=0, n_jobs=1).fit(X, Y)
    assert clf.choices_["n_epochs"] == 2
    assert len(calls) <= 2  # and one on all rows
