"""Tuned numbers and open parameters: how they are resolved, stored, and kept when a fit is resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import numpy as np
import pytest

from extremax import ExtremeClassifier
from extremax.solvers.config import RESOLVED, FitConfig, resolve, resume_config
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
    given = ExtremeClassifier(**parameters).get_params(deep=False)
    return resolve(given, problem, streaming=streaming, numbers=numbers)


def sized(**changes):
    return ProblemSize(**{**asdict(PROBLEM), **changes})


# -- what is left open


def test_auto_is_shared_softmax_where_whitening_is_cheap():
    assert config_of().objective == "shared_softmax"
    assert config_of(sized(n_features=10)).objective == "shared_softmax"
    assert config_of(sized(n_features=11)).objective == "negative_sampling"
    assert config_of(noise=UniformNoise(300)).objective == "negative_sampling"
    assert config_of(prior_variance=1.0).objective == "negative_sampling"
    assert config_of(streaming=True).objective == "shared_softmax"
    assert config_of(objective="softmax", streaming=True).objective == "softmax"


def test_step_size_is_larger_where_classes_are_met_rarely():
    # 6 classes for each of 50 shared ones are not many; one more is.
    assert config_of(n_shared=50).learning_rate == 0.5
    assert config_of(sized(n_classes=301), n_shared=50).learning_rate == 1.5
    assert config_of(sized(n_classes=301), n_shared=51).learning_rate == 0.5
    # each class is met in every step
    assert config_of(sized(n_classes=301), n_shared=50, objective="softmax").learning_rate == 0.5
    plain = {"precondition": False, "objective": "shared_softmax"}
    assert config_of(sized(n_classes=301), n_shared=50, **plain).learning_rate == 0.125


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
    assert config_of(sized(n_pairs=n_pairs), n_shared=n_shared).batch_size == size


@pytest.mark.parametrize(
    ("n_pairs", "n_classes", "size"),
    [(10_000, 300, 60), (10_000, 10**6, 90), (1000, 300, 50), (10_000, 20, 10)],
)
def test_minibatch_of_rows(n_pairs, n_classes, size):
    problem = sized(n_pairs=n_pairs, n_classes=n_classes)
    assert config_of(problem, objective="negative_sampling").batch_size == size


@pytest.mark.parametrize(
    ("batch_size", "n_epochs"),
    [(1000, 30), (200, 10), (400, 20), (50, 4)],  # 500 steps of 10, 50, 25 and 200 minibatches
)
def test_number_of_epochs_gives_enough_steps(batch_size, n_epochs):
    assert config_of(batch_size=batch_size).n_epochs == n_epochs


def test_row_objectives_have_defaults_of_their_own():
    config = config_of(objective="nce")
    assert (config.n_epochs, config.learning_rate, config.optimizer) == (3, 0.25, "sgd")
    assert config_of(objective="softmax").optimizer == "adagrad"


@pytest.mark.parametrize("objective", ["softmax", "negative_sampling"])
def test_given_parameters_stay(objective):
    given = {"n_epochs": 7, "learning_rate": 0.01, "optimizer": "adagrad_row", "batch_size": 33}
    config = config_of(objective=objective, n_negatives=9, tree_share=0.3, **given)
    assert {name: getattr(config, name) for name in given} == given
    assert (config.n_negatives, config.tree_share) == (9, 0.3)
    assert config.numbers is NUMBERS


def test_set_size():
    assert config_of(n_shared=50).set_size(300) == 50
    assert config_of(n_shared=500).set_size(300) == 300
    assert config_of(n_shared=50, objective="softmax").set_size(300) == 300


# -- stored


@pytest.mark.identity
@pytest.mark.parametrize("numbers", [DEFAULTS, NUMBERS], ids=["defaults", "others"])
def test_config_survives_json(numbers):
    config = config_of(numbers=numbers, prior_variance=2.0, tree_regularization=0.5)
    again = FitConfig.from_dict(json.loads(json.dumps(config.to_dict())))
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
    again = FitConfig.from_dict(json.loads(json.dumps(config.to_dict()))).numbers
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
    config = FitConfig.from_dict(content)
    without = {"max_tempered_classes": 0}
    assert config.numbers == replace_numbers(DEFAULTS, rows={"min_batch": 99}, calibration=without)


def test_noise_object_is_put_back():
    noise = UniformNoise(300)
    content = config_of(noise=noise).to_dict()
    json.dumps(content)
    assert FitConfig.from_dict(content, noise).noise is noise


# -- resumed


def test_resumed_fit_keeps_what_was_left_open():
    begun = config_of(n_shared=50)
    given = ExtremeClassifier(n_shared=50).get_params(deep=False)
    # Other rows and other defaults would resolve to something else.
    resumed = resume_config(begun, given, sized(n_pairs=100, n_features=999), None)
    assert resumed == begun


def test_resumed_fit_takes_parameters_that_are_given():
    begun = config_of(n_shared=50)
    given = ExtremeClassifier(n_shared=50, n_epochs=77, objective="nce").get_params(deep=False)
    resumed = resume_config(begun, given, PROBLEM, None)
    assert resumed.n_epochs == 77
    assert resumed.objective == begun.objective  # the weights are those of this one
    assert {name: getattr(resumed, name) for name in RESOLVED if name != "n_epochs"} == {
        name: getattr(begun, name) for name in RESOLVED if name != "n_epochs"
    }


def test_resumed_fit_uses_the_noise_of_the_model():
    noise, other = UniformNoise(300), UniformNoise(300)
    begun = config_of(noise=noise)
    given = ExtremeClassifier(noise=other).get_params(deep=False)
    assert resume_config(begun, given, PROBLEM, noise).noise is noise


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
    clf = ExtremeClassifier(random_state=np.int64(0), precondition=np.bool_(True), **given).fit(X, y)
    clf.save(tmp_path / "model")
