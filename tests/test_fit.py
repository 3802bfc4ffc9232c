"""The pipeline of a fit: what is computed how often, held back, stored, resumed, and left after a failure."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from coverings import in_turn
from extremax import ExtremeClassifier, calibrate, load_model
from extremax.calibration import Calibration
from extremax.errors import NotEnoughMemoryError
from extremax.examples import Examples
from extremax.features.pca import PCA
from extremax.fit import split_calibration
from extremax.solvers import NCE, MinibatchSoftmax, NegativeSampling
from extremax.solvers.loop import Watcher
from extremax.tree import LabelTree
from extremax.tuned import DEFAULTS, replace_numbers
from planted import a_dozen_classes, around_means
from trainers import make_config

# Cells of the tree for a few hundred rows; a look after every minibatch.
CELLS = replace_numbers(
    DEFAULTS, batch={"rows_per_cell": 40, "progress_batches": 1}, rows={"progress_pairs": 1}
)
CALIBRATED = replace_numbers(
    DEFAULTS, calibration={"min_pairs": 1000, "max_rows": 200, "row_fraction": 0.5, "min_rows": 100}
)


class CellClassifier(ExtremeClassifier):
    _numbers = CELLS


class CalibratedClassifier(ExtremeClassifier):
    _numbers = CALIBRATED


class IndexedClassifier(ExtremeClassifier):
    """Fits an index for a dozen classes."""

    _numbers = replace_numbers(
        DEFAULTS, pq={"min_classes": 10, "min_width_rows": 10, "min_width": 2, "tail_rows": 64}
    )


@pytest.fixture(scope="module")
def data():
    return a_dozen_classes()


def weights_of(clf):
    return clf.model_.weights.to_dense()


# -- few rows: folds choose and calibrate


@pytest.mark.planted
def test_few_rows_are_as_probable_as_by_the_best_logistic_regression():
    X, y = around_means(2400, 40, 64, spread=1.0, distance=0.35, seed=2)
    train = np.arange(len(y)) % 3 == 0
    clf = ExtremeClassifier(random_state=0).fit(X[train], y[train])
    log_prob = clf.predict_log_proba(X[~train])
    figure = log_prob[np.arange(len(log_prob)), y[~train]].mean()
    others = []
    for C in (0.01, 0.1, 1.0):
        other = LogisticRegression(C=C, max_iter=300).fit(X[train], y[train])
        others.append(-log_loss(y[~train], other.predict_proba(X[~train])))
    assert figure > max(others) + 0.05
    confidence = np.exp(log_prob.max(axis=1)).mean()
    assert abs(confidence - clf.score(X[~train], y[~train])) < 0.05


def test_folds_leave_given_solvers_alone_and_are_repeatable(data):
    X, y = data
    chosen = [ExtremeClassifier(random_state=4, n_jobs=n, n_epochs=3).fit(X, y) for n in (1, 2)]
    np.testing.assert_array_equal(weights_of(chosen[0]), weights_of(chosen[1]))
    assert chosen[0].model_.calibration == chosen[1].model_.calibration != Calibration()
    given = ExtremeClassifier(random_state=4, n_epochs=3, solver=MinibatchSoftmax()).fit(X, y)
    assert given.model_.calibration == Calibration()
    once_each = ExtremeClassifier(random_state=4, n_epochs=3).fit(X[:80], np.arange(80))
    assert once_each.model_.calibration == Calibration()


# -- projections, trees


@pytest.fixture
def projected(monkeypatch):
    """The numbers of rows of all projections."""
    calls, transform = [], PCA.transform

    def counted(pca, X, *, n_jobs=None):
        calls.append(X.shape[0])
        return transform(pca, X, n_jobs=n_jobs)

    monkeypatch.setattr(PCA, "transform", counted)
    return calls


@pytest.fixture
def trees(monkeypatch):
    """The trees that are fitted; a tree with tuned regularization counts once."""
    fitted, fit = [], LabelTree.fit.__func__

    def counted(cls, *args, **options):
        fitted.append(fit(cls, *args, **options))
        return fitted[-1]

    monkeypatch.setattr(LabelTree, "fit", classmethod(counted))
    return fitted


@in_turn(
    store=[np.asarray, sparse.csr_array], solver=["negative_sampling", "augment_reduce", "minibatch_softmax"]
)
def test_rows_are_projected_once(data, projected, solver, store):
    X, y = data
    own = {"n_shared": 8} if solver == "minibatch_softmax" else {}
    clf = CellClassifier.with_solver(solver, n_epochs=3, random_state=0, **own)
    clf.fit(store(X), y, eval_set=(X[:30], y[:30]))
    assert clf.model_.tree is not None
    assert projected.count(len(X)) == 1
    projected.clear()
    clf.set_params(n_epochs=5).resume_fit(store(X), y)
    assert projected == [len(X)]
    clf.partial_fit(X, y)
    assert projected == [len(X)] * 2


def test_nothing_is_projected_without_a_tree(data, projected):
    X, y = data
    for solver, noise in [("minibatch_softmax", "tree"), ("negative_sampling", "frequency")]:
        clf = ExtremeClassifier.with_solver(solver, noise=noise, n_epochs=2, random_state=0).fit(X, y)
        assert clf.model_.projection is None
        clf.predict_proba(X)
        clf.predict_topk(X, search="beam")
    assert projected == []


@pytest.mark.parametrize(
    ("kind", "solver", "has_tree"),
    [
        (ExtremeClassifier, MinibatchSoftmax(), False),  # the default, with few classes
        (ExtremeClassifier, MinibatchSoftmax(n_shared=None), False),
        (ExtremeClassifier, MinibatchSoftmax(n_shared=8), False),  # too few rows for cells
        (ExtremeClassifier, NegativeSampling(noise="frequency"), False),
        (ExtremeClassifier, NegativeSampling(tree_regularization=0.1), True),
        (ExtremeClassifier, NCE(noise="mixture", tree_regularization=0.1), True),
        (CellClassifier, MinibatchSoftmax(n_shared=8, tree_regularization=0.1), True),
        (CellClassifier, MinibatchSoftmax(n_shared=8, noise="frequency"), False),
    ],
)
def test_tree_is_fitted_where_something_uses_it(data, trees, kind, solver, has_tree):
    X, y = data
    clf = kind(solver, n_epochs=1, random_state=0).fit(X, y)
    assert (clf.model_.tree is not None) == has_tree
    assert len(trees) == has_tree
    assert (clf.model_.projection is not None) == has_tree
    assert (clf.model_.classes.means is not None) == has_tree


def test_numbers_of_the_tree_reach_it(data):
    X, y = data

    class Rough(ExtremeClassifier):
        _numbers = replace_numbers(DEFAULTS, tree_fit={"max_alternations": 1, "tolerance": 9.0})

    for regularization in (0.1, "auto"):
        solver = NegativeSampling(tree_regularization=regularization)
        kinds = ExtremeClassifier, Rough
        plain, rough = (kind(solver, n_epochs=0, random_state=0).fit(X, y) for kind in kinds)
        assert not np.array_equal(plain.model_.tree.weights, rough.model_.tree.weights)


def test_very_many_classes_need_no_tree(tmp_path):
    y = np.arange(900) % 300
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 6))[y] + 0.3 * rng.normal(size=(900, 6))).astype(np.float32)
    trees = []
    clf = CellClassifier(MinibatchSoftmax(n_shared=4), n_epochs=8, random_state=0)
    clf.fit(X, y, callbacks=[lambda record: trees.append(clf.model_.tree)])
    assert trees == [None] * 8
    assert clf.model_.tree is None
    clf.save(tmp_path / "model")
    for model in (clf, load_model(tmp_path / "model")):
        found, _ = model.predict_topk(X, k=3, search="beam")
        assert np.array_equal(found, model.predict_topk(X, k=3)[0])
    half = CellClassifier(MinibatchSoftmax(n_shared=4), n_epochs=8, random_state=0)
    half.fit(X, y, callbacks=[lambda record: record["epoch"] == 3 and half.save(tmp_path / "half") is None])
    again = load_model(tmp_path / "half").resume_fit(X, y)
    assert np.array_equal(weights_of(again), weights_of(clf))


# -- calibration rows


def test_rows_set_aside_calibrate_the_probabilities(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(40, size=3000)
    y[:3] = [40, 41, 42]  # one row each: these stay
    X = (0.7 * rng.normal(size=(43, 5))[y] + rng.normal(size=(3000, 5))).astype(np.float32)
    clf = CalibratedClassifier(random_state=0, n_epochs=6).fit(X[:2500], y[:2500])
    temperature, uniform_mix, _ = clf.model_.calibration
    assert temperature == clf.choices_["temperature"] != 1.0
    assert uniform_mix == clf.choices_["uniform_mix"]
    assert clf.model_.classes.n_samples == 2300
    assert clf.model_.classes.counts.min() == 1
    assert clf.model_.classes.counts.sum() == 2300
    _, held_out = Examples(X[:2500], y[:2500].astype(np.int32)).set_aside(200, clf.seed_)
    assert clf.model_.calibrated(held_out).calibration == clf.model_.calibration
    half = CalibratedClassifier(random_state=0, n_epochs=6)
    save = lambda record: record["epoch"] == 2 and half.save(tmp_path / "half") is None  # noqa: E731
    half.fit(X[:2500], y[:2500], callbacks=[save])
    again = load_model(tmp_path / "half").resume_fit(X[:2500], y[:2500])
    assert np.array_equal(again.predict_proba(X[2500:]), clf.predict_proba(X[2500:]))
    again.resume_fit(X[:2500], y[:2500])  # nothing left to train: the same rows find the same
    assert again.model_.calibration == clf.model_.calibration
    lists = [[int(a), int((a + 1) % 43)] for a in y]
    several = CalibratedClassifier(random_state=0, n_epochs=6).fit(X, lists)
    assert several.model_.classes.n_samples == 2800


@pytest.mark.parametrize(
    ("changes", "parameters", "n_held_out"),
    [
        ({}, {}, 100),  # half of 300 rows, at most 100
        ({"row_fraction": 0.25}, {}, 75),
        ({"max_scores": 12 * 60}, {}, 60),
        ({"max_scores": 1}, {}, 20),  # the fewest
        ({"min_pairs": 301}, {}, None),
        ({"row_fraction": 0.05}, {}, None),  # 15 rows are fewer than the fewest
        ({}, {"precondition": False}, None),
        ({}, {"solver": "negative_sampling"}, None),
    ],
)
def test_number_of_calibration_rows(data, changes, parameters, n_held_out):
    X, y = data
    numbers = {"min_pairs": 300, "row_fraction": 0.5, "max_rows": 100, "max_scores": 10**9, "min_rows": 20}
    examples = Examples(X, y)
    options = {"numbers": replace_numbers(DEFAULTS, calibration={**numbers, **changes})}
    config = make_config(examples, 12, **{"solver": "minibatch_softmax", **parameters}, **options)
    rest, held_out = split_calibration(examples, 12, config, 0)
    if n_held_out is None:
        assert held_out is None
        assert rest is examples
    else:
        assert held_out.n_rows == n_held_out
        assert rest.n_pairs == 300 - n_held_out


# -- choices_


def test_choices_follow_the_model(data):
    X, y = data
    clf = IndexedClassifier(n_epochs=2, random_state=0).fit(X, y)
    assert clf.choices_["solver"] == "minibatch_softmax"
    assert clf.choices_["n_epochs"] == 2
    assert clf.choices_["init_scale"] in DEFAULTS.warm_start.scales
    before = dict(clf.choices_)
    assert {"beam_width", "beam_recall"} <= set(before)

    # wrong labels: a high temperature
    temperature, uniform_mix, _ = calibrate(clf, X[::2], np.roll(y, 1)[::2])
    assert clf.choices_["temperature"] == temperature == clf.model_.calibration.temperature
    assert clf.choices_["uniform_mix"] == uniform_mix
    assert temperature != before["temperature"]

    clf.fit_index(X[:40])
    index = clf.model_.searches["beam"]
    assert clf.choices_["beam_width"] == index.width
    assert clf.choices_["beam_recall"] == index.recall

    clf.set_params(solver=MinibatchSoftmax(learning_rate=0.0625, batch_size=50)).partial_fit(X, y)
    assert clf.choices_["learning_rate"] == 0.0625
    assert clf.choices_["batch_size"] == 50
    assert clf.choices_["temperature"] == temperature  # as predictions still use it

    clf.set_params(n_epochs=3, solver__learning_rate=None).resume_fit(X, y)
    assert clf.choices_["n_epochs"] == 3
    assert clf.choices_["temperature"] == clf.model_.calibration.temperature

    clf.set_params(solver="negative_sampling").fit(X, y)
    assert clf.choices_["solver"] == "negative_sampling"
    assert "init_scale" not in clf.choices_
    assert "beam_width" not in clf.choices_


def test_changed_choices_change_nothing(data):
    clf = ExtremeClassifier(n_epochs=0, random_state=0).fit(*data)
    temperature = clf.choices_["temperature"]
    clf.choices_["temperature"] = 5.0
    assert clf.choices_["temperature"] == temperature
    assert not hasattr(ExtremeClassifier(), "choices_")


def test_choices_survive_saving(data, tmp_path):
    X, y = data
    clf = CellClassifier(MinibatchSoftmax(n_shared=8), n_epochs=2, random_state=0).fit(X, y)
    assert {"tree_regularization", "tree_held_out_log_likelihood"} <= set(clf.choices_)
    clf.save(tmp_path / "model")
    assert load_model(tmp_path / "model").choices_ == clf.choices_


# -- failures


FITTED = ("model_", "classes_", "history_", "interrupted_", "seed_", "n_features_in_", "choices_")


def broken(record):
    raise RuntimeError("disk full")


class BrokenStart(Watcher):
    def at_start(self, moment):
        raise RuntimeError("disk full")


BEFORE_THE_START = {
    "parameters": lambda clf, X, y: clf.set_params(solver=NCE(learning_rate=-1.0)).fit(X, y),
    "features": lambda clf, X, y: clf.fit(X * np.nan, y),
    "labels": lambda clf, X, y: clf.fit(X, y[:-1]),
    "weights": lambda clf, X, y: clf.fit(X, y, sample_weight=np.zeros(len(y))),
    "one class": lambda clf, X, y: clf.fit(X, np.zeros(len(y))),
    "validation rows": lambda clf, X, y: clf.fit(X, y, eval_set=(X, y + 100)),
    "memory": lambda clf, X, y: clf.set_params(memory_limit=1).fit(X, y),
    "scale": lambda clf, X, y: clf.fit(X * np.float32(1e36), y),
}


@pytest.mark.error
@in_turn(first=["fit", "partial_fit", "nothing"], failure=BEFORE_THE_START)
def test_fit_that_fails_before_the_start_leaves_nothing(data, first, failure):
    X, y = data
    clf = ExtremeClassifier(n_epochs=1, random_state=0)
    if first != "nothing":
        getattr(clf, first)(X, y).describe_classes(["text"] * 12)
        assert all(hasattr(clf, name) for name in FITTED)
    with pytest.raises((ValueError, NotEnoughMemoryError)):
        BEFORE_THE_START[failure](clf, X, y)
    assert not any(hasattr(clf, name) for name in FITTED)
    for call in (clf.predict, clf.predict_proba, lambda X: clf.save("nowhere")):
        with pytest.raises(NotFittedError):
            call(X)
    clf.set_params(solver="auto", memory_limit=None).fit(X, y)  # and works again
    assert clf.score(X, y) > 0.9


@pytest.mark.error
@pytest.mark.parametrize("callback", [broken, BrokenStart()], ids=["after an epoch", "at the start"])
@pytest.mark.parametrize("solver", ["minibatch_softmax", "negative_sampling"])
def test_fit_that_fails_after_the_start_leaves_the_new_model(data, solver, callback):
    X, y = data
    names = np.array([f"new {i}" for i in range(12)])
    clf = CalibratedClassifier.with_solver(solver, n_epochs=1, random_state=0).fit(X, y)
    clf.describe_classes(["text"] * 12)
    calibrate(clf, X, np.roll(y, 1))
    with pytest.raises(RuntimeError, match="disk full"):
        clf.fit(X[:, :4], names[y], callbacks=[callback])
    assert clf.n_features_in_ == 4
    assert clf.model_.n_features == 4
    assert set(clf.predict(X[:, :4])) <= set(names)
    assert clf.model_.classes.descriptions is None
    assert clf.model_.calibration == Calibration()
    assert len(clf.history_) == (2 if callback is broken else 1)
    assert clf.interrupted_ is False
    resumed = clf.resume_fit(X[:, :4], names[y])
    whole = CalibratedClassifier.with_solver(solver, n_epochs=1, random_state=0).fit(X[:, :4], names[y])
    assert np.array_equal(weights_of(resumed), weights_of(whole))


@pytest.mark.error
def test_failed_partial_fit_keeps_the_model(data):
    X, y = data
    clf = ExtremeClassifier(random_state=0).partial_fit(X, y)
    before = clf.predict_proba(X)
    for bad in (lambda: clf.partial_fit(X, y + 1), lambda: clf.partial_fit(X[:, :2], y)):
        with pytest.raises(ValueError, match=r"features|known"):
            bad()
    assert np.array_equal(clf.predict_proba(X), before)
    first = ExtremeClassifier(random_state=0)
    with pytest.raises(ValueError, match="Declare them"):
        first.partial_fit(X, np.zeros(len(y)))
    assert not any(hasattr(first, name) for name in FITTED)


# -- stored numbers


class OtherNumbers(ExtremeClassifier):
    """Other values of numbers that matter in every epoch, of both trainers, and after them."""

    _numbers = replace_numbers(
        CALIBRATED,
        rows={"min_batch": 7, "batches_per_epoch": 500, "augment_reduce_decay": 0.5, "prior_pairs": 1},
        batch={
            "rows_per_cell": 40,
            "class_exponent": 0.9,
            "max_step": 0.5,
            "min_batch": 7,
            "batches_per_epoch": 500,
        },
        order={"chunk_rows": 16, "window_bytes": 16 * 20 * 5},
        calibration={"min_pairs": 100, "min_rows": 20},
    )


@pytest.mark.identity
@pytest.mark.parametrize(
    "parameters",
    [
        {"solver": "minibatch_softmax", "n_shared": 8},
        {"solver": "minibatch_softmax", "n_shared": None},
        {"solver": "negative_sampling", "prior_variance": 4.0},
        {"solver": "augment_reduce", "noise": "mixture"},
    ],
    ids=lambda parameters: parameters["solver"],
)
def test_resumed_fit_uses_the_stored_numbers(data, tmp_path, parameters):
    X, y = data
    options = {**parameters, "n_epochs": 5, "random_state": 0}
    whole = OtherNumbers.with_solver(**options).fit(X, y)
    plain = ExtremeClassifier.with_solver(**options).fit(X, y)
    assert not np.array_equal(weights_of(whole), weights_of(plain))  # the numbers matter
    half = OtherNumbers.with_solver(**options).fit(X, y, callbacks=[lambda record: record["epoch"] == 2])
    half.save(tmp_path / "half")
    again = load_model(tmp_path / "half")
    assert type(again) is ExtremeClassifier
    assert again.model_.config == half.model_.config
    assert again.model_.config.numbers == OtherNumbers._numbers
    again.resume_fit(X, y)
    assert np.array_equal(weights_of(again), weights_of(whole))
    assert np.array_equal(again.predict_log_proba(X), whole.predict_log_proba(X))
    assert again.model_.config.numbers == OtherNumbers._numbers
    one_more = load_model(tmp_path / "half").partial_fit(X, y)
    assert np.array_equal(weights_of(one_more), weights_of(half.partial_fit(X, y)))
    again.save(tmp_path / "whole")
    assert load_model(tmp_path / "whole").model_.config.numbers == OtherNumbers._numbers


@pytest.mark.identity
@pytest.mark.parametrize("solver", ["minibatch_softmax", "negative_sampling"])
def test_model_never_changes_after_it_is_published_at_the_end(data, solver):
    X, y = data
    clf = ExtremeClassifier.with_solver(solver, n_epochs=2, random_state=0).fit(X, y)
    model = clf.model_
    calibrate(clf, X, np.roll(y, 1))
    assert model.calibration == Calibration()
    assert clf.model_ is not model
    assert clf.model_.weights is model.weights


# -- history


def test_callbacks_see_the_current_model(data):
    X, y = data
    seen = []
    clf = ExtremeClassifier(n_epochs=3, random_state=0)

    def look(record):
        seen.append((clf.model_.n_epochs, clf.history_[-1] is record, clf.interrupted_))
        assert clf.log_likelihood(X, y) == pytest.approx(record["valid_log_likelihood"], abs=1e-9)

    clf.fit(X, y, eval_set=(X, y), callbacks=[look])
    assert seen == [(1, True, False), (2, True, False), (3, True, False)]
    assert [record["epoch"] for record in clf.history_] == [0, 1, 2, 3]
    assert "valid_log_likelihood" in clf.history_[0]


def test_what_auto_means(data):
    X, y = data
    assert ExtremeClassifier(n_epochs=1).fit(X, y).choices_["solver"] == "minibatch_softmax"
    wide = np.zeros((len(X), 1 + DEFAULTS.batch.max_features), np.float32)
    wide[:, :5] = X
    assert ExtremeClassifier(n_epochs=1).fit(wide, y).choices_["solver"] == "negative_sampling"
    assert ExtremeClassifier().partial_fit(X, y).choices_["solver"] == "minibatch_softmax"


@pytest.mark.planted
def test_few_rows_of_many_features():
    X, y = around_means(40, 4, 30, spread=0.1)
    assert ExtremeClassifier(random_state=0).fit(X, y).score(X, y) == 1.0


class _Failing:
    """A callback that fails after an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def __call__(self, record):
        if record["epoch"] == self.epoch:
            raise RuntimeError("a fault of the callback")


@pytest.mark.parametrize("solver", ["minibatch_softmax", "negative_sampling"])
def test_model_state_and_history_agree_after_an_error(solver):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 6)).astype(np.float32), np.arange(300) % 30
    clf = ExtremeClassifier.with_solver(solver, n_epochs=5, random_state=0)
    with pytest.raises(RuntimeError, match="a fault of the callback"):
        clf.fit(X, y, callbacks=[_Failing(3)])
    assert clf.model_.n_epochs == clf._fitted.state.n_epochs == clf.history_[-1]["epoch"] == 3
    assert not clf._fitted.state.in_training_coordinates
    whole = ExtremeClassifier.with_solver(solver, n_epochs=5, random_state=0).fit(X, y)
    assert np.array_equal(whole.predict_log_proba(X), clf.resume_fit(X, y).predict_log_proba(X))


def test_what_the_first_call_fixes_stays_true_in_choices():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 6)).astype(np.float32), np.arange(300) % 30
    clf = ExtremeClassifier(NegativeSampling(noise="uniform"), n_epochs=1, random_state=0).fit(X, y)
    begun = clf.choices_
    clf.set_params(solver=NegativeSampling(optimizer="sgd", noise="frequency")).partial_fit(X, y)
    assert clf.choices_["optimizer"] == begun["optimizer"] == "adagrad"
    assert clf.choices_["solver"] == "negative_sampling"
    assert clf.model_.config.solver.noise == "uniform"


def test_few_rows_are_calibrated_from_the_first_epoch_on(tmp_path):
    """A model that is saved midway, and goes on, ends with the calibration of the whole fit."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 10
    X = (0.6 * rng.normal(size=(10, 8))[y] + rng.normal(size=(200, 8))).astype(np.float32)
    clf = ExtremeClassifier(random_state=0)
    clf.fit(X, y, callbacks=[lambda record: clf.save(tmp_path / "midway")])
    assert clf.model_.calibration.temperature != 1.0
    assert load_model(tmp_path / "midway").model_.calibration == clf.model_.calibration
