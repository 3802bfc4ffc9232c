"""Tuned numbers and open parameters: how they are resolved, stored, and kept when a fit is resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.examples import FeatureLayout
from extremax.solvers import NCE, MinibatchSoftmax, SparseSoftmax
from extremax.solvers.config import FitConfig, resolve, resume
from extremax.tree.noise import UniformNoise
from extremax.tuned import DEFAULTS, Defaults, ProblemSize, replace_numbers

PROBLEM = ProblemSize(n_rows=10_000, n_pairs=10_000, n_features=8, n_classes=300)
NUMBERS = replace_numbers(
    DEFAULTS,
    rows={
        "n_epochs": 3,
        "learning_rate": 0.25,
        "optimizer": "sgd",
        "min_batch": 10,
        "max_batch": 90,
        "classes_per_row": 5,
        "batches_per_epoch": 20,
    },
    batch={
        "max_features": 10,
        "min_batch": 20,
        "max_batch": 200,
        "batches_per_epoch": 40,
        "max_scores": 12_000,
        "min_steps": 500,
        "min_epochs": 4,
        "max_epochs": 30,
        "learning_rate": 0.5,
        "learning_rate_many_classes": 1.5,
        "learning_rate_plain": 0.125,
        "optimizer": "adagrad",
        "many_classes": 6,
    },
)


def config_of(problem=PROBLEM, *, numbers=NUMBERS, streaming=False, **parameters):
    clf = ExtremeClassifier.with_solver(**parameters)
    return resolve(clf.solver, problem, n_epochs=clf.n_epochs, streaming=streaming, numbers=numbers)


def shared(problem=PROBLEM, **parameters):
    return config_of(problem, solver="minibatch_softmax", **parameters)


def sized(**changes):
    return ProblemSize(**{**asdict(PROBLEM), **changes})


# -- what is left open


def test_auto_is_minibatch_softmax_where_whitening_is_cheap():
    assert config_of().solver.name == "minibatch_softmax"
    assert config_of(sized(n_features=10)).solver.name == "minibatch_softmax"
    assert config_of(sized(n_features=11)).solver.name == "negative_sampling"
    assert config_of(streaming=True).solver.name == "minibatch_softmax"


def test_auto_trains_texts_and_pairs_with_sparse_weights():
    for layout in (FeatureLayout(8, groups=(2, 5)), FeatureLayout(8, n_dense=3)):
        assert resolve("auto", PROBLEM, layout=layout).solver == SparseSoftmax()
    with pytest.raises(ValueError, match="NCE cannot use a pair of sparse and dense features"):
        resolve("nce", PROBLEM, layout=FeatureLayout(8, n_dense=3))


def test_step_size_is_larger_where_classes_are_met_rarely():
    # 6 classes for each of 50 shared ones are not many; one more is.
    assert shared(n_shared=50).solver.learning_rate == 0.5
    assert shared(sized(n_classes=301), n_shared=50).solver.learning_rate == 1.5
    assert shared(sized(n_classes=301), n_shared=51).solver.learning_rate == 0.5
    # each class is met in every step
    assert shared(sized(n_classes=301), n_shared=None).solver.learning_rate == 0.5
    assert shared(sized(n_classes=301), n_shared=50, precondition=False).solver.learning_rate == 0.125


@pytest.mark.parametrize(
    ("n_pairs", "n_shared", "size"),
    [
        (10_000, 50, 200),  # the largest
        (4000, 50, 100),  # 40 minibatches an epoch
        (10_000, 100, 120),  # 12,000 scores
        (100, 50, 20),  # the smallest
    ],
)
def test_minibatch_that_shares_classes(n_pairs, n_shared, size):
    assert shared(sized(n_pairs=n_pairs), n_shared=n_shared).solver.batch_size == size


@pytest.mark.parametrize(
    ("n_pairs", "n_classes", "size"),
    [(10_000, 300, 60), (10_000, 10**6, 90), (1000, 300, 50), (10_000, 20, 10)],
)
def test_minibatch_of_rows(n_pairs, n_classes, size):
    problem = sized(n_pairs=n_pairs, n_classes=n_classes)
    assert config_of(problem, solver="negative_sampling").solver.batch_size == size


@pytest.mark.parametrize(
    ("batch_size", "n_epochs"),
    [(1000, 30), (200, 10), (400, 20), (50, 4)],  # 500 steps of 10, 50, 25 and 200 minibatches
)
def test_number_of_epochs_gives_enough_steps(batch_size, n_epochs):
    assert shared(batch_size=batch_size).n_epochs == n_epochs


def test_row_solvers_have_defaults_of_their_own():
    config = config_of(solver="nce")
    assert (config.n_epochs, config.solver.learning_rate, config.solver.optimizer) == (3, 0.25, "sgd")
    assert shared(n_shared=None).solver.optimizer == "adagrad"


@pytest.mark.parametrize("solver", ["minibatch_softmax", "negative_sampling"])
def test_given_parameters_stay(solver):
    given = {"learning_rate": 0.01, "optimizer": "adagrad_row", "batch_size": 33, "tree_components": 7}
    config = config_of(solver=solver, n_epochs=7, **given)
    assert {name: getattr(config.solver, name) for name in given} == given
    assert config.n_epochs == 7
    assert config.numbers is NUMBERS


def test_set_size():
    assert shared(n_shared=50).solver.set_size(300) == 50
    assert shared(n_shared=500).solver.set_size(300) == 300
    assert shared(n_shared=None).solver.set_size(300) == 300


# -- stored


@pytest.mark.identity
@pytest.mark.parametrize("numbers", [DEFAULTS, NUMBERS], ids=["defaults", "others"])
def test_config_survives_json(numbers):
    config = config_of(solver="nce", numbers=numbers, prior_variance=2.0, tree_regularization=0.5)
    again = FitConfig.from_dict(json.loads(json.dumps(config.to_dict())), 8)
    assert again == config
    assert again.numbers == numbers


@pytest.mark.identity
def test_every_number_survives_json():
    """Every field of every config is changed: none is left out, and none comes back as another type."""

    def other(value):
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return value + 1
        if isinstance(value, float):
            return value * 1.5 + 0.25
        if isinstance(value, tuple):
            return tuple(map(other, value))
        return f"other {value}"

    parts = {
        part.name: {
            entry.name: other(getattr(getattr(DEFAULTS, part.name), entry.name))
            for entry in fields(getattr(DEFAULTS, part.name))
        }
        for part in fields(Defaults)
    }
    numbers = replace_numbers(DEFAULTS, **parts)
    config = FitConfig(**{**config_of().__dict__, "numbers": numbers})
    again = FitConfig.from_dict(json.loads(json.dumps(config.to_dict())), 8).numbers
    assert again == numbers
    for part in fields(Defaults):
        ours, default = getattr(again, part.name), getattr(DEFAULTS, part.name)
        for entry in fields(ours):
            assert getattr(ours, entry.name) != getattr(default, entry.name)
            assert type(getattr(ours, entry.name)) is type(getattr(default, entry.name))


def test_numbers_of_other_versions():
    """Numbers that a folder lacks get today's values; those that are no more are left out.

    But a fit that was begun without a temperature by row goes on without one.
    """
    content = config_of().to_dict()
    content["numbers"] = {"rows": {"min_batch": 99, "gone": 1}, "component of the future": {"a": 1}}
    content["parameter of the future"] = 3
    config = FitConfig.from_dict(content, 8)
    without = {"max_tempered_classes": 0}
    assert config.numbers == replace_numbers(DEFAULTS, rows={"min_batch": 99}, calibration=without)


def test_noise_object_is_put_back():
    noise = UniformNoise(300)
    content = config_of(solver="nce", noise=noise).to_dict()
    json.dumps(content)
    assert FitConfig.from_dict(content, 8, noise).solver.noise is noise


# -- resumed


@pytest.mark.parametrize("given", ["auto", MinibatchSoftmax(n_shared=50), NCE(n_negatives=9)])
def test_resumed_fit_keeps_what_was_left_open(given):
    begun = shared(n_shared=50)
    assert resume(begun, given) == begun


def test_resumed_fit_takes_parameters_that_are_given():
    begun = shared(n_shared=50)
    given = MinibatchSoftmax(n_shared=60, learning_rate=0.7, noise="uniform")
    resumed = resume(begun, given, n_epochs=77)
    assert (resumed.n_epochs, resumed.solver.n_shared, resumed.solver.learning_rate) == (77, 60, 0.7)
    assert resumed.solver.noise == "tree"  # that of the first call
    assert resumed.solver.batch_size == begun.solver.batch_size


def test_stream_that_was_whitened_on_the_way_takes_the_rate_of_whitened_rows():
    begun = config_of(solver="minibatch_softmax", precondition=False, streaming=True)
    assert resume(begun, "auto", is_whitened=True).solver.learning_rate == 0.5
    given = MinibatchSoftmax(precondition=False, learning_rate=0.3)
    assert resume(begun, given, is_whitened=True).solver.learning_rate == 0.3


def test_replaced_numbers_leave_the_others():
    changed = replace_numbers(DEFAULTS, pq={"min_classes": 5})
    assert changed.pq.min_classes == 5
    assert changed.rows is DEFAULTS.rows
    with pytest.raises(TypeError):
        replace_numbers(DEFAULTS, pq={"no such number": 5})


def test_numpy_numbers_as_parameters_can_be_saved(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=60)
    X = rng.normal(size=(4, 3))[y] + 0.1 * rng.normal(size=(60, 3))
    given = {"n_epochs": np.int64(2), "learning_rate": np.float32(0.25), "batch_size": np.int32(20)}
    clf = ExtremeClassifier.with_solver(
        "minibatch_softmax", precondition=np.bool_(True), random_state=np.int64(0), **given
    ).fit(X, y)
    clf.save(tmp_path / "model")
