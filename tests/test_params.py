"""The table of parameters: it agrees with the classes, their docstrings and the registry, and loads fast."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from extremax import ExtremeClassifier
from extremax.params import (
    CLASSIFIER_PARAMETERS,
    PARAMETERS,
    SOLVER_CLASSES,
    SOLVER_PARAMETERS,
    check_patience,
    describe,
)
from extremax.solvers import (
    NCE,
    CandidateSoftmax,
    MinibatchSoftmax,
    NegativeSampling,
    OneVsEach,
    SparseSoftmax,
)
from extremax.solvers.registry import SOLVERS
from extremax.tree import LabelTree
from extremax.tree.noise import FrequencyNoise, TreeNoise
from planted import around_means

DEFAULTS = {name: PARAMETERS[name].default for name in CLASSIFIER_PARAMETERS}


def test_signature_is_that_of_the_table() -> None:
    named = {entry.name: entry.default for entry in inspect.signature(ExtremeClassifier).parameters.values()}
    assert named == DEFAULTS
    assert list(named) == list(DEFAULTS)
    assert ExtremeClassifier().get_params() == DEFAULTS


@pytest.mark.parametrize("cls", SOLVERS.values(), ids=list(SOLVERS))
def test_solver_is_that_of_the_table(cls: Any) -> None:
    assert SOLVER_CLASSES[cls.name] == cls.__name__
    owners = {base.__name__ for base in cls.__mro__}
    own = {
        name: PARAMETERS[name].default for name in SOLVER_PARAMETERS if owners & set(PARAMETERS[name].solvers)
    }
    assert cls().get_params() == own
    assert set(cls.fixed) <= set(own)


@pytest.mark.parametrize("cls", [NegativeSampling, MinibatchSoftmax])
def test_choices_are_literal_types(cls: Any) -> None:
    """An editor completes them, and a misspelt one is a type error."""
    hints = get_type_hints(
        cls, localns={"Noise": TreeNoise, "FitConfig": Any, "Context": Any, "Trainer": Any}
    )
    named = {name: PARAMETERS[name].choices for name in cls().get_params() if PARAMETERS[name].choices}
    assert {"noise", "optimizer", "tree_regularization"} <= named.keys()
    for name, choices in named.items():
        kinds = [hints[name], *get_args(hints[name])]
        literals = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        assert literals
        # a mixture is for negatives of rows alone
        assert set(choices) - set(literals) == (
            {"mixture"} if (cls, name) == (MinibatchSoftmax, "noise") else set()
        )


@pytest.mark.parametrize("cls", [ExtremeClassifier, NegativeSampling, MinibatchSoftmax])
def test_docstring_has_the_help_of_the_table(cls: Any) -> None:
    names = [entry for entry in PARAMETERS if entry in cls().get_params()]
    assert " ".join(describe(names).split()) in " ".join((inspect.getdoc(cls) or "").split())


@pytest.mark.parametrize(
    ("module", "heavy"), [("params", {"numpy", "scipy", "sklearn", "numba"}), ("solvers", {"numba"})]
)
def test_module_needs_no_heavy_one(module: str, heavy: set[str]) -> None:
    code = f"import sys, extremax.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(loaded.stdout.split())


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_defaults_are_accepted(solver: str) -> None:
    ExtremeClassifier(solver).check_params()
    if solver != "auto":
        ExtremeClassifier(SOLVERS[solver]()).check_params()
    check_patience(None)


@pytest.mark.parametrize(
    ("clf", "error", "message"),
    [
        (ExtremeClassifier("nse"), ValueError, "The 'solver' parameter of ExtremeClassifier must be one of"),
        (ExtremeClassifier(3), TypeError, "or a solver. Got 3 instead."),
        (
            ExtremeClassifier(NCE(noise="unifrom")),
            ValueError,
            "or a Noise. Got 'unifrom' instead. Did you mean 'uniform'?",
        ),
        (
            ExtremeClassifier(NegativeSampling(noise=3)),
            TypeError,
            "The 'noise' parameter of NegativeSampling must be one of 'tree',",
        ),
        (ExtremeClassifier(n_epochs=-1), ValueError, "must be an integer >= 0 or None. Got -1 instead."),
        (ExtremeClassifier(n_epochs=1.5), TypeError, "must be an integer >= 0 or None. Got 1.5 instead."),
        (
            ExtremeClassifier(MinibatchSoftmax(precondition=1)),
            TypeError,
            "must be a bool. Got 1 instead.",
        ),
        (
            ExtremeClassifier(NegativeSampling(tree_regularization=0.0)),
            ValueError,
            "must be a number > 0.0 or one of 'auto'. Got 0.0 instead.",
        ),
        (
            ExtremeClassifier(random_state="a"),
            TypeError,
            "a numpy Generator or RandomState or None. Got 'a' instead.",
        ),
        (
            ExtremeClassifier(MinibatchSoftmax(noise=FrequencyNoise([1, 2]))),
            ValueError,
            "NegativeSampling takes other noise.",
        ),
        (
            ExtremeClassifier(OneVsEach(penalized_scores="raw")),
            ValueError,
            "penalized_scores is 'raw', but the penalty of OneVsEach has one reading",
        ),
        (
            ExtremeClassifier(NegativeSampling(tree_fit="paper")),
            ValueError,
            "tree_fit='paper' needs a number as tree_regularization, 0.1 in the paper",
        ),
    ],
)
def test_wrong_parameter_rejects(clf: ExtremeClassifier, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        clf.check_params()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SOLVER_PARAMETERS)
def test_parameter_of_a_solver_says_which(name: str) -> None:
    owner = PARAMETERS[name].solvers[0]
    sentence = f"{name} belongs to a solver: ExtremeClassifier(solver={owner}({name}=3))"
    with pytest.raises(TypeError) as caught:
        ExtremeClassifier(**{name: 3})
    assert sentence in str(caught.value)
    with pytest.raises(ValueError) as caught_later:
        ExtremeClassifier().set_params(**{name: 3})
    assert sentence in str(caught_later.value)


def test_parameter_of_another_solver_rejects() -> None:
    with pytest.raises(TypeError, match="objective is now called solver"):
        ExtremeClassifier(objective="nce")
    with pytest.raises(ValueError, match="n_shared needs solver to be one of minibatch_softmax; it is nce"):
        ExtremeClassifier.with_solver("nce", n_shared=3)
    for cls in (CandidateSoftmax, SparseSoftmax):
        assert fields(cls) == ()


def test_noise_objects_are_accepted() -> None:
    tree = LabelTree.fit([[0.0], [1.0]], [0, 1])
    for noise in (FrequencyNoise([1, 2]), TreeNoise(tree)):
        NegativeSampling(noise=noise).check()


def test_patience_without_validation_rejects() -> None:
    with pytest.raises(ValueError, match="patience is 3, but there are no rows to validate on"):
        check_patience(3)


def test_nested_parameters() -> None:
    clf = ExtremeClassifier(NegativeSampling(n_negatives=2))
    copy = clone(clf).set_params(solver__learning_rate=0.5)
    assert (copy.solver.n_negatives, copy.solver.learning_rate, clf.solver.learning_rate) == (2, 0.5, None)
    assert clf.get_params()["solver__n_negatives"] == 2
    assert repr(clf) == "ExtremeClassifier(solver=NegativeSampling(n_negatives=2))"
    assert ExtremeClassifier("nce").set_params(solver__n_negatives=3).solver == NCE(n_negatives=3)
    with pytest.raises(ValueError, match='solver="auto" has no parameters'):
        ExtremeClassifier().set_params(solver__n_negatives=3)


def test_grid_search_over_a_solver() -> None:
    X, y = around_means(60, 3, 4, spread=0.2)
    clf = ExtremeClassifier(NegativeSampling(noise="uniform"), n_epochs=2, random_state=0, n_jobs=1)
    found = GridSearchCV(clf, {"solver__learning_rate": [0.1, 0.3]}, cv=2).fit(X, y)
    assert set(found.best_params_) == {"solver__learning_rate"}
    assert found.best_estimator_.solver.learning_rate in (0.1, 0.3)
