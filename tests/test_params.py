"""The table of parameters: it agrees with the class, its docstring and the registries, and loads fast."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from extremax import ExtremeClassifier
from extremax.params import (
    BATCH_OBJECTIVES,
    CANDIDATE_OBJECTIVES,
    OPTIMIZERS,
    PARAMETERS,
    RENAMED,
    ROW_OBJECTIVES,
    SPARSE_OBJECTIVES,
    canonical_noise,
    check_estimator_parameters,
    check_patience,
    describe_parameters,
    rename_parameters,
)
from extremax.solvers import optimizers
from extremax.solvers.objectives import OBJECTIVES
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, TreeNoise

DEFAULTS = {name: entry.default for name, entry in PARAMETERS.items()}


def test_signature_is_that_of_the_table() -> None:
    signature = inspect.signature(ExtremeClassifier).parameters.values()
    named = {entry.name: entry.default for entry in signature if entry.kind is not entry.VAR_KEYWORD}
    assert named == DEFAULTS
    assert list(named) == list(DEFAULTS)
    assert ExtremeClassifier().get_params() == DEFAULTS


def test_docstring_is_that_of_the_table() -> None:
    docstring = inspect.getdoc(ExtremeClassifier) or ""
    assert " ".join(describe_parameters().split()) in " ".join(docstring.split())


def test_objectives_and_optimizers_are_those_of_the_registries() -> None:
    by_trainer: dict[str, list[str]] = {"rows": [], "batch": [], "candidates": [], "sparse": []}
    for name, objective in OBJECTIVES.items():
        by_trainer[objective.trainer].append(name)
    assert tuple(by_trainer["rows"]) == ROW_OBJECTIVES
    assert tuple(by_trainer["batch"]) == BATCH_OBJECTIVES
    assert tuple(by_trainer["candidates"]) == CANDIDATE_OBJECTIVES
    assert tuple(by_trainer["sparse"]) == SPARSE_OBJECTIVES
    assert optimizers.OPTIMIZERS == OPTIMIZERS


def test_table_needs_no_heavy_module() -> None:
    code = "import sys, extremax.params; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "sklearn", "numba"} & set(loaded.stdout.split())


def test_defaults_are_accepted() -> None:
    check_estimator_parameters(DEFAULTS)
    check_patience(None)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"objective": "nse"},
            ValueError,
            "The 'objective' parameter of ExtremeClassifier must be one of",
        ),
        ({"noise": "unifrom"}, ValueError, "or a Noise. Got 'unifrom' instead. Did you mean 'uniform'?"),
        (
            {"noise": 3},
            TypeError,
            "The 'noise' parameter of ExtremeClassifier must be one of 'adversarial', 'tree',",
        ),
        ({"n_epochs": -1}, ValueError, "must be an integer >= 0 or None. Got -1 instead."),
        ({"n_epochs": 1.5}, TypeError, "must be an integer >= 0 or None. Got 1.5 instead."),
        ({"precondition": 1}, TypeError, "must be a bool. Got 1 instead."),
        (
            {"tree_regularization": 0.0},
            ValueError,
            "must be a number > 0.0 or one of 'auto'. Got 0.0 instead.",
        ),
        ({"random_state": "a"}, TypeError, "a numpy Generator or RandomState or None. Got 'a' instead."),
        (
            {"objective": "softmax", "prior_variance": 2.0},
            ValueError,
            "prior_variance is 2, but objective='softmax' has no prior; it is for objectives whose rows draw",
        ),
        (
            {"objective": "one_vs_each", "penalized_scores": "raw"},
            ValueError,
            "penalized_scores is 'raw', but objective='one_vs_each' has one reading of its penalty alone",
        ),
        (
            {"objective": "negative_sampling", "tree_fit": "paper"},
            ValueError,
            "tree_fit='paper' needs a number as tree_regularization, 0.1 in the paper",
        ),
    ],
)
def test_wrong_parameter_rejects(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        check_estimator_parameters({**DEFAULTS, **given})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_noise_objects_are_accepted() -> None:
    check_estimator_parameters({**DEFAULTS, "noise": FrequencyNoise([1, 2])})
    tree = LabelTree.fit([[0.0], [1.0]], [0, 1])
    check_estimator_parameters({**DEFAULTS, "noise": TreeNoise(tree)})


def test_registered_objectives_are_accepted() -> None:
    given = {**DEFAULTS, "objective": "my_loss"}
    with pytest.raises(ValueError, match="must be one of 'auto', 'negative_sampling'"):
        check_estimator_parameters(given, OBJECTIVES)
    check_estimator_parameters(given, [*OBJECTIVES, "my_loss"])


def test_patience_without_validation_rejects() -> None:
    with pytest.raises(ValueError, match="patience is 3, but there are no rows to validate on"):
        check_patience(3)


def test_old_names_warn() -> None:
    assert set(RENAMED.values()) <= set(PARAMETERS)
    assert not set(RENAMED) & set(PARAMETERS)
    with pytest.warns(FutureWarning, match="n_components is now called tree_components") as caught:
        assert rename_parameters({"n_components": 4, "patience": 1}) == {"tree_components": 4, "patience": 1}
    with pytest.raises(
        ValueError, match="n_components is now called tree_components; give one of them, not both"
    ):
        rename_parameters({"n_components": 4, "tree_components": 4})
    with pytest.warns(FutureWarning) as caught:
        clf = ExtremeClassifier(n_components=4).set_params(regularization=0.1)
    assert (clf.tree_components, clf.tree_regularization) == (4, 0.1)
    assert {warning.filename for warning in caught} == {__file__}


def test_tree_is_another_name_of_adversarial() -> None:
    assert canonical_noise("tree") == canonical_noise("adversarial") == "adversarial"
