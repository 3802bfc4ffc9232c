"""The estimators inside scikit-learn: searches, scorers, pipelines, weights, and labels of many types."""

from __future__ import annotations

import enum
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from extremax import ExtremeClassifier, TextClassifier, load_model
from extremax.features.ngrams import NgramFeatures
from extremax.solvers import NegativeSampling, SparseSoftmax
from planted import around_means

TEXTS = ["fell off a ladder", "fall from a roof", "bitten by a dog", "bitten by a cat"] * 6
LABELS = ["fall", "fall", "bite", "bite"] * 6
SOLVERS = (
    "negative_sampling", "nce", "sampled_softmax", "one_vs_each", "augment_reduce", "minibatch_softmax",
    "sparse_softmax",
)  # fmt: skip


def rare_and_frequent(n_rows: int = 1500, seed: int = 0) -> tuple[Any, Any]:
    """Words of three classes that overlap; nine rows of ten are of the first."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, size=n_rows, p=[0.9, 0.05, 0.05])
    X = np.zeros((n_rows, 12), np.float32)
    for word in range(6):
        own = rng.random(n_rows) < 0.35
        X[np.arange(n_rows), np.where(own, y * 4 + word % 4, rng.integers(12, size=n_rows))] += 1.0
    return X, y


def test_grid_search_over_parameters_of_classifier_and_features() -> None:
    search = GridSearchCV(TextClassifier(), {"classifier__n_epochs": [0, 1]}, cv=2, refit=False)
    assert search.fit(TEXTS, LABELS).cv_results_["mean_test_score"].shape == (2,)
    grid = {"features__hash_bits": [8], "classifier__random_state": [0]}
    search = GridSearchCV(TextClassifier(), grid, cv=2)
    assert search.fit(TEXTS, LABELS).best_estimator_.features_.hash_bits == 8


def test_nested_parameters_of_none_are_those_of_the_default() -> None:
    texts = TextClassifier().set_params(classifier__n_epochs=3)
    assert isinstance(texts.classifier, ExtremeClassifier)
    assert texts.classifier.n_epochs == 3
    texts = TextClassifier().set_params(features__hash_bits=12, classifier__n_epochs=2)
    assert isinstance(texts.features, NgramFeatures)
    assert texts.features.hash_bits == 12
    assert texts.get_params()["classifier__n_epochs"] == 2
    with pytest.raises(ValueError, match="Invalid parameter 'n_epoch'"):
        TextClassifier().set_params(classifier__n_epoch=3)


def test_text_features_are_a_scikit_learn_transformer() -> None:
    features = NgramFeatures(hash_bits=12)
    copy = clone(features).set_params(word_ngrams=1)
    assert features.word_ngrams == 2
    before = copy.fit(TEXTS).transform(TEXTS)
    copy.set_params(hash_bits=14)  # waits for the next fit
    np.testing.assert_array_equal(copy.transform(TEXTS).toarray(), before.toarray())
    pipeline = make_pipeline(NgramFeatures(), TruncatedSVD(4), LogisticRegression())
    assert cross_val_score(pipeline, TEXTS, LABELS, cv=3).min() == 1.0


def test_first_argument_is_X() -> None:
    clf = TextClassifier(ExtremeClassifier(random_state=0)).fit(X=TEXTS, y=LABELS)
    assert clf.predict(X=TEXTS[:1]).tolist() == ["fall"]
    X, y = around_means(60, 3, 4)
    assert ExtremeClassifier(random_state=0, n_epochs=1).fit(X=X, y=y).score(X=X, y=y) > 0.5


@pytest.mark.parametrize("solver", ["auto", "negative_sampling", "sparse_softmax"])
def test_log_loss_takes_probabilities_without_a_warning(solver: str) -> None:
    X, y = around_means(400, 8, 6)
    clf = ExtremeClassifier.with_solver(solver, random_state=0, n_epochs=2).fit(X, y)
    prob = clf.predict_proba(X)
    np.testing.assert_allclose(prob.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert log_loss(y, prob) == pytest.approx(-clf.log_likelihood(X, y), abs=1e-5)


def test_eval_set_as_in_lightgbm_identity() -> None:
    X, y = around_means(300, 4, 5)
    first, *others = [
        ExtremeClassifier(random_state=0, n_epochs=2).fit(X, y, eval_set=pair).history_
        for pair in ((X, y), [(X, y)], [X, y])
    ]
    losses = [record["valid_log_likelihood"] for record in first]
    assert all([record["valid_log_likelihood"] for record in other] == losses for other in others)
    texts = TextClassifier(ExtremeClassifier(random_state=0)).fit(TEXTS, LABELS, eval_set=[(TEXTS, LABELS)])
    assert texts.history_[-1]["valid_accuracy"] == 1.0
    with pytest.raises(ValueError, match=r"eval_set has 2 pairs; it must contain one \(X_valid, y_valid\)"):
        ExtremeClassifier().fit(X, y, eval_set=[(X, y), (X, y)])
    with pytest.raises(TypeError, match=r"eval_set must be a pair \(X_valid, y_valid\); got list"):
        ExtremeClassifier().fit(X, y, eval_set=[X])


# -- weights -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_class_weight_recovers_rare_classes(solver: str) -> None:
    X, y = rare_and_frequent()
    X_test, y_test = rare_and_frequent(seed=1)
    settings: dict[str, Any] = {"random_state": 0, "n_epochs": 3}

    def balanced_accuracy(**more: Any) -> float:
        clf = ExtremeClassifier.with_solver(solver, **settings, **more).fit(X, y)
        return float(balanced_accuracy_score(y_test, clf.predict(X_test)))

    plain, balanced = balanced_accuracy(), balanced_accuracy(class_weight="balanced")
    named = balanced_accuracy(class_weight={0: 0.05})
    assert balanced > plain + 0.05
    assert named > plain + 0.05


def test_class_weight_is_a_sample_weight_identity(tmp_path: Path) -> None:
    X, y = rare_and_frequent(600)
    names = np.array(["a", "b", "c"])[y]
    weighted = ExtremeClassifier(class_weight={"a": 0.5, "c": 4.0}, random_state=0, n_epochs=2)
    by_rows = ExtremeClassifier(random_state=0, n_epochs=2)
    by_rows.fit(X, names, sample_weight=np.array([0.5, 1.0, 4.0])[y])
    np.testing.assert_array_equal(weighted.fit(X, names).predict_proba(X), by_rows.predict_proba(X))
    balanced = ExtremeClassifier(class_weight="balanced", random_state=0, n_epochs=2).fit(X, names)
    factor = len(y) / (3 * np.bincount(y))
    by_rows.fit(X, names, sample_weight=factor[y])
    np.testing.assert_array_equal(balanced.predict_proba(X), by_rows.predict_proba(X))
    weighted.save(tmp_path / "model")
    assert load_model(tmp_path / "model").class_weight == {"a": 0.5, "c": 4.0}
    streamed = clone(weighted).partial_fit(X, names)
    again = ExtremeClassifier(random_state=0, n_epochs=2)
    again.partial_fit(X, names, sample_weight=np.array([0.5, 1.0, 4.0])[y])
    np.testing.assert_array_equal(streamed.predict_proba(X), again.predict_proba(X))


def test_class_weight_of_several_labels_weighs_pairs() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    y = [sorted(set(rng.integers(6, size=2).tolist())) for _ in X]
    prob = ExtremeClassifier(random_state=0, n_epochs=2).fit(X, y).predict_proba(X)
    more = ExtremeClassifier(class_weight={3: 20.0}, random_state=0, n_epochs=2).fit(X, y).predict_proba(X)
    assert more[:, 3].mean() > 1.5 * prob[:, 3].mean()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": 1.0}, "class_weight names 'x', which is not one of the 3 classes"),
        ({0: -1.0}, "class_weight has the weight -1.0; a weight is a finite number >= 0"),
        ({0: "much"}, "class_weight has the weight 'much'; a weight is a finite number >= 0"),
        ("even", "'class_weight' parameter of ExtremeClassifier must be one of 'balanced', a dict or None"),
    ],
)
def test_class_weight_rejects(given: Any, message: str) -> None:
    X, y = rare_and_frequent(60)
    with pytest.raises(ValueError, match=message):
        ExtremeClassifier(class_weight=given).fit(X, y)


def test_balanced_weights_in_a_stream_rejects() -> None:
    X, y = rare_and_frequent(60)
    with pytest.raises(ValueError, match="class_weight='balanced' needs the labels of all rows"):
        ExtremeClassifier(class_weight="balanced").partial_fit(X, y)


# -- coefficients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("solver", ["auto", NegativeSampling(noise="frequency"), SparseSoftmax()], ids=repr)
def test_coefficients_give_the_decision_function_identity(solver: Any, n_classes: int) -> None:
    X, y = around_means(500, n_classes, 6)
    X = np.abs(X)
    clf = ExtremeClassifier(solver, random_state=0, n_epochs=2).fit(X, y)
    n_lines = 1 if n_classes == 2 else n_classes
    assert clf.coef_.shape == (n_lines, 6)
    assert clf.intercept_.shape == (n_lines,)
    assert sparse.issparse(clf.coef_) == (solver == SparseSoftmax())
    scores = X @ clf.coef_.T + clf.intercept_
    np.testing.assert_allclose(scores.squeeze(), clf.decision_function(X), rtol=1e-4, atol=1e-4)


def test_no_coefficients_says_why() -> None:
    X, y = around_means(200, 4, 6)
    clf = ExtremeClassifier("negative_sampling", random_state=0, n_epochs=1)
    for name in ("coef_", "intercept_"):
        assert not hasattr(clf, name)
        with pytest.raises(AttributeError, match="not fitted yet"):
            getattr(clf, name)
    clf.fit(X, y)
    assert not hasattr(clf, "coef_")
    with pytest.raises(AttributeError, match="solver 'negative_sampling' with a label tree has no coef_"):
        _ = clf.coef_


# -- labels --------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_labels_that_cannot_be_saved_rejects() -> None:
    X = np.eye(4, dtype=np.float32)
    for call in (ExtremeClassifier().fit, ExtremeClassifier().partial_fit):
        with pytest.raises(
            TypeError, match=r"label <Colour.RED: 1> of type Colour, which a saved model cannot hold; use"
        ):
            call(X, [Colour.RED, Colour.BLUE] * 2)
    with pytest.raises(TypeError, match="of type Colour"):
        ExtremeClassifier().fit(X, [["red", Colour.RED], ["red"], [Colour.BLUE], ["red"]])


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy before version 2")
def test_string_dtype_labels(tmp_path: Path) -> None:
    X, y = around_means(120, 3, 4)
    kind = np.dtypes.StringDType()
    names = np.array(["pear", "a very long name of an apple", "fig\N{GREEN APPLE}"], dtype=kind)[y]
    clf = ExtremeClassifier(random_state=0, n_epochs=2).fit(X, names)
    assert clf.classes_.dtype == clf.predict(X).dtype == kind
    assert clf.score(X, names) == np.mean(clf.predict(X) == names) > 0.5
    clf.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.classes_.dtype == kind
    assert loaded.predict(X).tolist() == clf.predict(X).tolist()
    assert loaded.score(X, names.tolist()) == clf.score(X, names)
    missing = names.astype(np.dtypes.StringDType(na_object=None))
    clf = ExtremeClassifier(random_state=0, n_epochs=0).fit(X, missing)
    assert clf.classes_.tolist() == loaded.classes_.tolist()
    missing[7] = None
    with pytest.raises(ValueError, match=r"y\[7\] is None: a missing or infinite value is not a label"):
        ExtremeClassifier().fit(X, missing)


# -- streams -------------------------------------------------------------------------------------------------


def pass_over(clf: Any, X: Any, y: Any, size: int) -> Any:
    """Call partial_fit once for each part of the rows."""
    for start in range(0, len(y), size):
        clf.partial_fit(X[start : start + size], y[start : start + size], classes=np.unique(y))
    return clf


@pytest.mark.parametrize("size", [100, 4000])
def test_stream_is_as_good_per_pass_as_sgd_reference(size: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(20, size=6000)
    means = rng.normal(size=(20, 30))
    X = (means[y] + 1.6 * rng.normal(size=(6000, 30))) * 10.0 ** np.linspace(-0.5, 0.5, 30)
    X = X.astype(np.float32)
    clf, sgd = ExtremeClassifier(random_state=0), SGDClassifier(loss="log_loss", random_state=0)
    for _ in range(2):
        pass_over(clf, X[:4000], y[:4000], size)
        pass_over(sgd, X[:4000], y[:4000], size)
        assert clf.score(X[4000:], y[4000:]) > sgd.score(X[4000:], y[4000:])
    assert clf.choices_["solver"] == "minibatch_softmax"


def test_first_part_of_few_rows_or_classes_is_not_what_features_are_whitened_by() -> None:
    X, y = around_means(2000, 12, 20)
    few = pass_over(ExtremeClassifier(random_state=0), X, y, 10)
    order = np.argsort(y, kind="stable")
    by_class = pass_over(ExtremeClassifier(random_state=0), X[order], y[order], 250)
    whole = pass_over(ExtremeClassifier(random_state=0), X, y, 250)
    assert [clf.model_.config.solver.precondition for clf in (few, by_class, whole)] == [False, False, True]
    assert min(clf.score(X, y) for clf in (few, by_class, whole)) > 0.9


def test_stream_goes_on_after_a_save_identity(tmp_path: Path) -> None:
    X, y = around_means(1200, 10, 8)
    straight = pass_over(ExtremeClassifier(random_state=0, n_jobs=1), X, y, 300)
    first = pass_over(ExtremeClassifier(random_state=0, n_jobs=2), X[:600], y[:600], 300)
    first.save(tmp_path / "model")
    later = load_model(tmp_path / "model")
    for start in (600, 900):
        later.partial_fit(X[start : start + 300], y[start : start + 300])
    np.testing.assert_array_equal(later.predict_proba(X), straight.predict_proba(X))


def predict_in_process(clf: Any, X: Any) -> Any:
    return clf.predict(X)


def proba_in_process(clf: Any, X: Any) -> Any:
    return clf.predict_proba(X)


def test_loaded_model_goes_to_other_processes(tmp_path: Path) -> None:
    X, y = around_means(200, 12, 5)
    ExtremeClassifier(random_state=0).fit(X, y).save(tmp_path / "dense")
    TextClassifier().fit(TEXTS, LABELS).save(tmp_path / "texts")
    for name, rows, labels in (("dense", X, y), ("texts", TEXTS, LABELS)):
        clf: Any = load_model(tmp_path / name)
        tasks = (delayed(predict_in_process)(clf, rows) for _ in range(2))
        for found in Parallel(n_jobs=2, max_nbytes="1K")(tasks):
            assert np.array_equal(found, clf.predict(rows))
        scores = cross_val_score(FrozenEstimator(clf), rows, labels, cv=2, n_jobs=2)
        assert scores.mean() == pytest.approx(clf.score(rows, labels))
        load_model(tmp_path / name).save(tmp_path / name)  # the files that were opened are gone
        (found,) = Parallel(n_jobs=2, max_nbytes=100)([delayed(predict_in_process)(clf, rows)])
        assert np.array_equal(found, clf.predict(rows))


def test_loaded_model_is_searched_over_by_other_processes(tmp_path: Path) -> None:
    X, y = around_means(200, 12, 5)
    ExtremeClassifier(random_state=0).fit(X, y).save(tmp_path / "m")
    search = GridSearchCV(load_model(tmp_path / "m"), {"n_epochs": [0]}, cv=2, n_jobs=2, refit=False)
    assert search.fit(X, y).best_score_ > 0.5


def test_changed_weights_of_a_loaded_model_go_to_other_processes(tmp_path: Path) -> None:
    X, y = around_means(200, 12, 5)
    ExtremeClassifier.with_solver("minibatch_softmax", random_state=0).fit(X, y).save(tmp_path / "m")
    clf: Any = load_model(tmp_path / "m")
    clf.partial_fit(X, np.roll(y, 1))  # in the arrays of the file, in memory alone
    (found,) = Parallel(n_jobs=2, max_nbytes=100)([delayed(proba_in_process)(clf, X)])
    assert np.array_equal(found, clf.predict_proba(X))
