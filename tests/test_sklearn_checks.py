"""scikit-learn's own checks, on what users get: the default with nothing set, every solver, and texts."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import TransformerTags, estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

from extremax import ExtremeClassifier, TextClassifier
from extremax.data import NgramFeatures

# All names of the documentation; the first is the default.
SOLVERS = (
    "auto",
    "negative_sampling",
    "nce",
    "nce_from_zero",
    "sampled_softmax",
    "one_vs_each",
    "augment_reduce",
    "minibatch_softmax",
    "candidate_softmax",
    "sparse_softmax",
)

# A row of weight two is one row with a doubled gradient.  Two rows take two steps, with draws of their own,
# and change the number of epochs.  In the leave-one-out choice of the start, each of them stays in when the
# other is left out, so that the default fails the check before its first epoch already.
REPEATED_ROWS = "repeated rows take steps and draws of their own; a row of weight two takes one, doubled"
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": REPEATED_ROWS,
    "check_sample_weight_equivalence_on_sparse_data": REPEATED_ROWS,
}
# The first five differ from negative_sampling in the loss of a row: nothing that a check could see.  The last
# one is what the default chooses for so few classes.
SIMILAR = ("nce", "nce_from_zero", "sampled_softmax", "one_vs_each", "augment_reduce", "minibatch_softmax")


def classifiers(names: Iterable[str]) -> list[ExtremeClassifier]:
    return [ExtremeClassifier.with_solver(name, n_epochs=5, n_jobs=1, random_state=0) for name in names]


@parametrize_with_checks(
    [ExtremeClassifier(), *classifiers(name for name in SOLVERS[1:] if name not in SIMILAR)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_classifier(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(classifiers(SIMILAR), expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_classifier_of_a_similar_solver(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_every_solver_is_checked() -> None:
    with pytest.raises(ValueError, match="must be one of") as error:
        ExtremeClassifier("none").fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
    offered, _ = str(error.value).split("Got")
    assert set(re.findall(r"'(\w+)'", offered)) - {"solver"} == set(SOLVERS)
    assert set(SIMILAR) < set(SOLVERS)


# -- texts ---------------------------------------------------------------------------------------------------


class Numbers:
    """An encoder that reads the numbers of a text."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[float.fromhex(word) for word in text.split()] for text in texts], np.float32)

    def __repr__(self) -> str:  # part of the names of the tests, which must be the same in every process
        return "Numbers()"


class RowsAsTexts(TextClassifier):
    """Write rows of numbers as texts and hand them to `TextClassifier`: the checks know no other rows."""

    def _written(self, X: Any, *, reset: bool = False) -> list[str]:
        if isinstance(X, list) and X and isinstance(X[0], str):
            return X
        if not reset and not hasattr(self, "n_features_in_"):
            raise NotFittedError("not fitted yet; call fit first.")
        rows = validate_data(self, X, reset=reset, dtype=np.float64)
        return [" ".join(map(float.hex, row)) for row in rows.tolist()]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        return super().fit(self._written(X, reset=True), y, sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        first = not hasattr(self, "n_features_in_")
        return super().partial_fit(self._written(X, reset=first), y, classes, sample_weight)

    def transform(self, X: Any) -> NDArray[np.float32]:
        return super().transform(self._written(X))

    def predict(self, X: Any) -> NDArray[Any]:
        return super().predict(self._written(X))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        return super().predict_proba(self._written(X))

    def predict_log_proba(self, X: Any) -> NDArray[np.float32]:
        return super().predict_log_proba(self._written(X))

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        return super().decision_function(self._written(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return super().score(self._written(X), y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.string = False
        # The checks refuse to begin with a `transform` without this tag.
        tags.transformer_tags = TransformerTags(preserves_dtype=["float32"])
        return tags


NO_FIT_TRANSFORM = "transform shows the features of a classifier; there is no fit_transform"
TEXT_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": REPEATED_ROWS,
    "check_transformer_general": NO_FIT_TRANSFORM,
    "check_transformer_preserve_dtypes": NO_FIT_TRANSFORM,
    "check_transformer_data_not_an_array": NO_FIT_TRANSFORM,
}


# The seed is the one that scikit-learn gives to estimators which have a `random_state` of their own.
@parametrize_with_checks(
    [RowsAsTexts(ExtremeClassifier(n_epochs=5, n_jobs=1, random_state=1), encoder=Numbers())],
    expected_failed_checks=lambda estimator: TEXT_FAILURES,
)
def test_text_classifier_behind_rows(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


# Checks that make no rows and so apply to the class itself.
CHECKS_WITHOUT_ROWS = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
)


def _text_classifier() -> TextClassifier:
    classifier = ExtremeClassifier(n_epochs=2, n_jobs=1, random_state=0)
    return TextClassifier(classifier, features=NgramFeatures(hash_bits=10))


@pytest.mark.parametrize("name", CHECKS_WITHOUT_ROWS)
@pytest.mark.parametrize("make", [TextClassifier, _text_classifier], ids=["nothing set", "set"])
def test_text_classifier(make: Callable[[], TextClassifier], name: str) -> None:
    getattr(estimator_checks, name)("TextClassifier", make())


TEXTS = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 5
LABELS = ["fall", "fall", "bite", "bite"] * 5
PREDICTING = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "predict_topk",
    "transform",
)


@pytest.mark.parametrize("method", PREDICTING)
def test_text_classifier_not_fitted_rejects(method: str) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(TextClassifier(), method)(TEXTS)
    with pytest.raises(NotFittedError):
        check_is_fitted(TextClassifier())


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return _text_classifier().fit(TEXTS, LABELS)


@pytest.mark.parametrize("method", [name for name in PREDICTING if name != "predict_topk"])
def test_text_classifier_takes_texts_in_any_company(method: str, fitted: TextClassifier) -> None:
    whole = getattr(fitted, method)(TEXTS)
    order = np.random.default_rng(0).permutation(len(TEXTS))
    for places in (order, order[:3], order[:1]):
        part = getattr(fitted, method)([TEXTS[i] for i in places])
        if method == "predict":
            assert part.tolist() == whole[places].tolist()
        elif method == "transform":
            assert (part != whole[places]).nnz == 0
        else:
            np.testing.assert_allclose(
                part, whole[places], rtol=1e-5, atol=1e-6
            )  # float32 sums in another order


def test_text_classifier_fits_again_alike_and_keeps_its_parameters() -> None:
    model = _text_classifier()
    before = {name: repr(value) for name, value in model.get_params().items()}
    assert model.fit(TEXTS, LABELS) is model
    check_is_fitted(model)
    first = model.predict_proba(TEXTS)
    np.testing.assert_array_equal(model.fit(TEXTS, LABELS).predict_proba(TEXTS), first)
    np.testing.assert_array_equal(clone(model).fit(TEXTS, LABELS).predict_proba(TEXTS), first)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(TEXTS), first)
    assert {name: repr(value) for name, value in model.get_params().items()} == before
    assert not hasattr(clone(model), "classifier_")
