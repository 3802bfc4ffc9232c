"""ExtremeClassifier: every public method, storage and threads that change nothing, and its error messages."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from extremax import (
    ExtremeClassifier,
    FrequencyNoise,
    LabelTree,
    MixtureNoise,
    TreeNoise,
    UniformNoise,
    load_model,
)
from extremax.calibration import Calibration
from extremax.errors import NotEnoughMemoryError
from extremax.features.pca import PCA
from extremax.runtime.progress import ProgressLine
from extremax.solvers import (
    NCE,
    AugmentReduce,
    CandidateSoftmax,
    MinibatchSoftmax,
    NegativeSampling,
    SparseSoftmax,
)
from extremax.solvers.registry import SOLVERS

N_CLASSES, N_FEATURES = 60, 10


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(N_CLASSES, N_FEATURES))
    y = rng.integers(N_CLASSES, size=2400)
    X = (means[y] + 0.4 * rng.normal(size=(2400, N_FEATURES))).astype(np.float32)
    return X[:1800], y[:1800], X[1800:], y[1800:]


@pytest.fixture(scope="module")
def fitted(data):
    return ExtremeClassifier(n_epochs=5, random_state=0).fit(data[0], data[1])


def weights(model):
    return model.model_.weights.weights


def eta(model):
    return model._fitted.state.pair_values


def project(model, X):
    scorer = model.scorer
    return np.empty((len(X), 0), np.float32) if scorer.projection is None else scorer.project_for_tree(X, 1)


def test_training_improves_on_the_tree_recovers(data):
    X, y, X_test, y_test = data
    clf = ExtremeClassifier("negative_sampling", random_state=0).fit(X, y, eval_set=(X_test, y_test))
    first, last = clf.history_[0], clf.history_[-1]
    assert first["epoch"] == 0
    assert last["epoch"] == clf.choices_["n_epochs"]
    assert last["valid_log_likelihood"] > first["valid_log_likelihood"] + 0.02
    assert last["valid_accuracy"] > 0.9
    assert last["valid_log_likelihood"] == pytest.approx(clf.log_likelihood(X_test, y_test), abs=1e-6)
    assert last["valid_accuracy"] == clf.score(X_test, y_test)
    seconds = [record["seconds"] for record in clf.history_]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


SAMPLING = [name for name, solver in SOLVERS.items() if solver.uses_noise]


# NCE has to learn by itself what bias removal gives the others, and takes more draws for it.
@pytest.mark.parametrize(
    "solver",
    [
        CandidateSoftmax(),
        SparseSoftmax(),
        *(MinibatchSoftmax(noise=noise, learning_rate=0.3) for noise in ("tree", "uniform", "frequency")),
        MinibatchSoftmax(n_shared=None, learning_rate=0.3),
        *(
            SOLVERS[name](noise=noise, n_negatives=32 if name == "nce" else 8, learning_rate=0.3)
            for name, noise in zip(SAMPLING, itertools.cycle(("tree", "uniform", "frequency", "mixture")))
        ),
    ],
    ids=repr,
)
def test_every_solver_and_noise_learns_recovers(data, solver):
    X, y, X_test, y_test = data
    clf = ExtremeClassifier(solver, n_epochs=30, random_state=0).fit(X, y)
    # Class frequencies alone: -log 60 = -4.1, and an accuracy of 0.017.
    assert clf.log_likelihood(X_test, y_test) > -1.0
    assert clf.score(X_test, y_test) > 0.85


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "sgd"])
def test_every_optimizer_learns_recovers(data, optimizer):
    X, y, X_test, y_test = data
    clf = ExtremeClassifier(
        NegativeSampling(noise="uniform", n_negatives=8, optimizer=optimizer, learning_rate=0.3),
        n_epochs=30,
        random_state=0,
    )
    assert clf.fit(X, y).score(X_test, y_test) > 0.85


def test_prediction_methods_agree_identity(data, fitted):
    X_test, y_test = data[2], data[3]
    log_proba = fitted.predict_log_proba(X_test)
    proba = fitted.predict_proba(X_test)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-5)  # float32 sums of 60 terms
    seen = log_proba > -700  # below, float64 has no number left
    np.testing.assert_allclose(np.log(proba[seen]), log_proba[seen], atol=1e-5)
    scores = fitted.decision_function(X_test)
    shift = scores - fitted.model_.with_calibration(Calibration()).log_prob_all(X_test)
    # float32
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), rtol=1e-6, atol=1e-4)
    assert np.array_equal(fitted.predict(X_test), fitted.classes_[log_proba.argmax(axis=1)])
    labels, top = fitted.predict_topk(X_test, k=N_CLASSES)
    assert np.array_equal(np.sort(labels, axis=1), np.broadcast_to(fitted.classes_, labels.shape))
    # float32, down to -1,400
    np.testing.assert_allclose(top, -np.sort(-log_proba, axis=1), rtol=1e-6, atol=1e-4)
    column = np.searchsorted(fitted.classes_, y_test)
    assert fitted.log_likelihood(X_test, y_test) == pytest.approx(
        log_proba[np.arange(len(y_test)), column].mean(), abs=1e-4
    )
    wide, wide_log_prob = fitted.predict_topk(X_test, k=5, search="beam", beam_width=N_CLASSES)
    exact, exact_log_prob = fitted.predict_topk(X_test, k=5)
    assert np.array_equal(wide, exact)
    np.testing.assert_allclose(wide_log_prob, exact_log_prob, rtol=1e-6, atol=1e-4)


def test_two_classes_give_one_score_identity(data):
    X, y = data[0], data[1] % 2
    clf = ExtremeClassifier(MinibatchSoftmax(), n_epochs=3, random_state=0).fit(X, y)  # not calibrated
    scores = clf.decision_function(X)
    assert scores.shape == (len(X),)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), clf.predict_proba(X)[:, 1], atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "sgd"])
def test_thread_count_changes_no_bit_invariant(data, optimizer):
    X, y = data[:2]
    models = [
        ExtremeClassifier(MinibatchSoftmax(optimizer=optimizer), n_epochs=3, n_jobs=n, random_state=0).fit(
            X, y
        )
        for n in (1, 2, 3)
    ]
    for other in models[1:]:
        assert np.array_equal(weights(models[0]), weights(other))
        assert np.array_equal(models[0].model_.weights.biases, other.model_.weights.biases)
        assert np.array_equal(models[0].predict_log_proba(X[:50]), other.predict_log_proba(X[:50]))
    another_seed = ExtremeClassifier(MinibatchSoftmax(optimizer=optimizer), n_epochs=3, random_state=1).fit(
        X, y
    )
    assert not np.array_equal(weights(models[0]), weights(another_seed))


def test_storage_of_X_invariant(data, tmp_path):
    X, y, X_test, _ = data
    X = np.where(np.abs(X) < 0.2, np.float32(0), X)  # so that a sparse matrix leaves something out
    model = ExtremeClassifier(n_epochs=3, random_state=0)
    dense = clone(model).fit(X, y)
    on_disk = np.memmap(tmp_path / "X", np.float32, "w+", shape=X.shape)
    on_disk[:] = X
    mapped = clone(model).fit(np.memmap(tmp_path / "X", np.float32, "r", shape=X.shape), y)
    assert np.array_equal(weights(dense), weights(mapped))
    csr = clone(model).fit(sparse.csr_array(X), y)
    # sums over stored columns are taken in another order, and 3 epochs carry the last bit along
    np.testing.assert_allclose(weights(csr), weights(dense), rtol=1e-2, atol=2e-3)
    np.testing.assert_allclose(
        csr.predict_proba(sparse.csr_array(X_test)), dense.predict_proba(X_test), atol=5e-3
    )
    double = clone(model).fit(X.astype(np.float64), y)
    assert np.array_equal(weights(dense), weights(double))


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_scale_of_features_invariant(data, factor):
    X, y, X_test, y_test = data
    plain = ExtremeClassifier(n_epochs=5, random_state=0).fit(X, y)
    scaled = ExtremeClassifier(n_epochs=5, random_state=0).fit(X * np.float32(factor), y)
    # the factor changes rounding only, but a draw that falls the other way changes a path
    assert scaled.log_likelihood(X_test * np.float32(factor), y_test) == pytest.approx(
        plain.log_likelihood(X_test, y_test), abs=0.02
    )


def test_features_below_the_normal_numbers(data):
    X, y, X_test, _ = data
    tiny = np.float32(1e-40)
    assert np.isfinite(
        ExtremeClassifier(n_epochs=2, random_state=0).fit(X * tiny, y).predict_log_proba(X_test * tiny)
    ).all()


@pytest.mark.parametrize(
    "name",
    [lambda i: i * 7 - 100, lambda i: f"label {i}", lambda i: ("a", i), lambda i: i / 4, lambda i: b"%d" % i],
    ids=["gaps", "text", "tuples", "floats", "bytes"],
)
def test_labels_of_any_type_invariant(data, fitted, name, tmp_path):
    X, y, X_test, _ = data
    names = [name(int(i)) for i in range(N_CLASSES)]
    clf = ExtremeClassifier(n_epochs=5, random_state=0).fit(X, [names[i] for i in y])
    expected = fitted.predict(X_test)
    order = {label: i for i, label in enumerate(names)}
    got = [
        order[label if not isinstance(label, np.generic) else label.item()] for label in clf.predict(X_test)
    ]
    # classes are sorted by name, so ids and with them the draws differ for text: a few rows may differ
    assert np.mean(np.array(got) == expected) > 0.95
    truth = [names[i] for i in data[3]]
    assert clf.score(X_test, truth) == np.mean([got[i] == data[3][i] for i in range(len(got))])
    clf.save(tmp_path / "model")
    assert list(load_model(tmp_path / "model").predict(X_test[:20])) == list(clf.predict(X_test[:20]))


def test_save_and_load_same_everywhere(data, tmp_path):
    X, y, X_test, y_test = data
    for noise in ("tree", "uniform", "frequency", "mixture"):
        clf = ExtremeClassifier(NegativeSampling(noise=noise), n_epochs=2, random_state=0).fit(X, y)
        clf.save(tmp_path / noise)
        again = load_model(tmp_path / noise)
        assert np.array_equal(clf.predict_proba(X_test), again.predict_proba(X_test))
        assert again.get_params() == clf.get_params()
        np.testing.assert_equal(again.history_, clf.history_)
        clf.partial_fit(X, y)
        again.partial_fit(X, y)
        assert np.array_equal(weights(clf), weights(again))
        assert again.log_likelihood(X_test, y_test) == clf.log_likelihood(X_test, y_test)
        # training never reaches the file
        assert not np.array_equal(weights(load_model(tmp_path / noise)), weights(again))


def test_names_of_features_and_parameters_survive_saving_invariant(data, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = data[:2]
    frame = pandas.DataFrame(X, columns=[f"f{i}" for i in range(N_FEATURES)])
    noise = FrequencyNoise(np.bincount(y), 0.5)
    clf = ExtremeClassifier(
        NegativeSampling(noise=noise, learning_rate=np.float32(0.25)), n_epochs=np.int64(1), random_state=0
    ).fit(frame, y)
    clf.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    other = {"solver": None, "solver__noise": None}
    assert again.get_params() | other == clf.get_params() | other
    assert np.array_equal(again.solver.noise.log_prob_, noise.log_prob_)
    assert np.array_equal(again.predict(frame), clf.predict(frame))
    backwards = frame[frame.columns[::-1]]
    for model in (clf, again):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(backwards)
        with pytest.raises(ValueError, match="feature names should match"):
            model.partial_fit(backwards, y)
    with pytest.raises(ValueError, match="feature names should match"):
        clf.fit(frame, y, eval_set=(backwards, y))


def test_partial_fit_goes_on_identity(data):
    X, y = data[:2]
    whole = ExtremeClassifier("negative_sampling", n_epochs=3, random_state=0).fit(X, y)
    steps = (
        ExtremeClassifier("negative_sampling", n_epochs=1, random_state=0)
        .fit(X, y)
        .partial_fit(X, y)
        .partial_fit(X, y)
    )
    assert np.array_equal(weights(whole), weights(steps))
    from_nothing = ExtremeClassifier("negative_sampling", random_state=0)
    for _ in range(3):
        from_nothing.partial_fit(X, y)
    assert np.array_equal(weights(whole), weights(from_nothing))


def test_augment_reduce_goes_on_identity(data, tmp_path):
    X, y = data[:2]
    whole = ExtremeClassifier(AugmentReduce(noise="uniform"), n_epochs=3, random_state=0).fit(X, y)
    first = ExtremeClassifier(AugmentReduce(noise="uniform"), n_epochs=1, random_state=0).fit(X, y)
    first.save(tmp_path / "model")
    again = load_model(tmp_path / "model").partial_fit(X, y).partial_fit(X, y)
    assert np.array_equal(weights(whole), weights(again))
    assert np.array_equal(eta(whole), eta(again))
    again.partial_fit(X[:900], y[:900])  # other rows: parameters of their own
    assert eta(again).shape == (900,)
    assert (eta(again) >= 0.0).all()


@pytest.mark.parametrize("solver", [name for name, entry in SOLVERS.items() if entry.uses_noise])
def test_prior_draws_weights_to_zero_invariant(data, solver):
    X, y = data[:2]
    models = [
        ExtremeClassifier.with_solver(
            solver, noise="uniform", prior_variance=variance, n_epochs=2, n_jobs=jobs, random_state=0
        ).fit(X, y)
        for variance, jobs in [(None, 1), (0.01, 1), (0.01, 2)]
    ]
    plain, drawn = (np.abs(weights(model)).mean() for model in models[:2])
    assert drawn < 0.6 * plain
    assert np.array_equal(weights(models[1]), weights(models[2]))


def test_partial_fit_keeps_the_solver_invariant(data):
    X, y = data[:2]
    first, second = (ExtremeClassifier(n_epochs=1, random_state=0).fit(X, y) for _ in range(2))
    second.set_params(solver=NCE(optimizer="sgd"))
    assert np.array_equal(weights(first.partial_fit(X, y)), weights(second.partial_fit(X, y)))


def test_partial_fit_in_batches_recovers(data):
    X, y, X_test, y_test = data
    clf = ExtremeClassifier(
        NegativeSampling(noise="frequency", n_negatives=8, learning_rate=0.3), random_state=0
    )
    for _ in range(10):
        for part in np.array_split(np.arange(len(y)), 4):
            clf.partial_fit(X[part], y[part], classes=np.arange(N_CLASSES))
    assert clf.score(X_test, y_test) > 0.85


def test_partial_fit_rejects_undeclared_class(data):
    X, y = data[:2]
    clf = ExtremeClassifier(random_state=0).partial_fit(X[y < 50], y[y < 50])
    with pytest.raises(
        ValueError, match=r"which is not one of the 50 known classes\. Declare every class at the first call"
    ):
        clf.partial_fit(X, y)
    with pytest.raises(ValueError, match="classes differs from the 50 classes of the first call"):
        clf.partial_fit(X, y, classes=np.arange(60))


def test_sample_weight(data):
    X, y, X_test, _ = data
    plain = ExtremeClassifier(n_epochs=3, random_state=0).fit(X, y)
    ones = ExtremeClassifier(n_epochs=3, random_state=0).fit(X, y, sample_weight=np.ones(len(y)))
    assert np.array_equal(weights(plain), weights(ones))
    keep = np.arange(len(y)) % 3 > 0
    kept = ExtremeClassifier(n_epochs=3, random_state=0).fit(X[keep], y[keep])
    zero = ExtremeClassifier(n_epochs=3, random_state=0).fit(X, y, sample_weight=keep.astype(float))
    assert np.array_equal(kept.predict_proba(X_test), zero.predict_proba(X_test))
    heavy = np.where(y == 3, 50.0, 1.0)
    plain = ExtremeClassifier("negative_sampling", n_epochs=3, random_state=0).fit(X, y)
    pulled = ExtremeClassifier("negative_sampling", n_epochs=3, random_state=0).fit(X, y, sample_weight=heavy)
    assert (pulled.predict(X_test) == 3).sum() > (plain.predict(X_test) == 3).sum()
    assert pulled.predict_proba(X_test)[:, 3].mean() > plain.predict_proba(X_test)[:, 3].mean()


def test_zero_epochs_is_the_tree_identity(data):
    X, y, X_test, _ = data
    clf = ExtremeClassifier("negative_sampling", n_epochs=0, random_state=0).fit(X, y)
    Z = project(clf.model_, X_test)
    np.testing.assert_allclose(clf.predict_log_proba(X_test), clf.model_.tree.log_prob_all(Z), atol=1e-5)


@pytest.mark.parametrize("noise", ["tree", "uniform", "frequency"])
def test_nce_starts_at_the_mean_log_noise_identity(data, noise):
    X, y = data[:2]
    model = ExtremeClassifier(NCE(noise=noise), n_epochs=0, random_state=0).fit(X, y).model_
    expected = model.noise.log_prob_all(project(model, X)).mean(axis=0)
    np.testing.assert_allclose(model.weights.biases, expected, rtol=1e-4)  # a float32 mean of 1,800 rows


def test_own_noise_object(data):
    X, y, X_test, y_test = data
    noise = FrequencyNoise(np.bincount(y), 0.5)
    clf = ExtremeClassifier(
        NegativeSampling(noise=noise, n_negatives=8, learning_rate=0.3), n_epochs=20, random_state=0
    ).fit(X, y)
    assert clf.model_.noise is noise
    assert clf.score(X_test, y_test) > 0.85
    with pytest.raises(ValueError, match=r"noise is a distribution over 7 classes, but y has 60\."):
        ExtremeClassifier(NegativeSampling(noise=UniformNoise(7))).fit(X, y)


def test_own_tree_as_noise(data, tmp_path):
    X, y, X_test, y_test = data
    options = {"n_epochs": 3, "random_state": 0}
    clf = ExtremeClassifier.with_solver(
        "negative_sampling", noise=TreeNoise(LabelTree.fit(X, y)), **options
    ).fit(X, y)
    assert clf.choices_["solver"] == "negative_sampling"
    assert clf.score(X_test, y_test) > 0.5
    clf.save(tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X_test), clf.predict(X_test))
    pca = PCA.fit(X, 3)
    tree = LabelTree.fit(pca.transform(X), y)
    projected = ExtremeClassifier.with_solver("negative_sampling", noise=TreeNoise(tree, pca), **options).fit(
        X, y
    )
    expected = tree.log_prob_all(pca.transform(X_test))
    start = ExtremeClassifier(NegativeSampling(noise=TreeNoise(tree, pca)), n_epochs=0, random_state=0).fit(
        X, y
    )
    np.testing.assert_allclose(start.predict_log_proba(X_test), expected, atol=1e-4)  # float32
    assert projected.log_likelihood(X_test, y_test) > start.log_likelihood(X_test, y_test)
    mixed = MixtureNoise(TreeNoise(tree, pca), UniformNoise(60), weight=0.5)
    assert (
        ExtremeClassifier.with_solver("negative_sampling", noise=mixed, **options)
        .fit(X, y)
        .score(X_test, y_test)
        > 0.3
    )
    with pytest.raises(ValueError, match=r"a label tree over 3 features, but X has \d+; say how they are"):
        ExtremeClassifier(NegativeSampling(noise=TreeNoise(tree))).fit(X, y)
    with pytest.raises(ValueError, match="projection has 4 components, but the tree 3"):
        TreeNoise(tree, PCA.fit(X, 4))
    with pytest.raises(ValueError, match=r"the projection of noise takes \d+ features, but X has"):
        ExtremeClassifier(NegativeSampling(noise=TreeNoise(tree, pca))).fit(X[:, 1:], y)


def test_validation_fraction_and_patience(data):
    X, y = data[:2]
    clf = ExtremeClassifier(
        NegativeSampling(learning_rate=2.0, n_negatives=1),
        n_epochs=200,
        validation_fraction=0.2,
        patience=3,
        random_state=0,
    ).fit(X, y)
    valid = [record["valid_log_likelihood"] for record in clf.history_[1:]]
    assert len(valid) < 200
    assert len(valid) - 1 - int(np.argmax(valid)) == 3
    again = ExtremeClassifier(
        NegativeSampling(learning_rate=2.0, n_negatives=1),
        n_epochs=int(np.argmax(valid)) + 1,
        validation_fraction=0.2,
        random_state=0,
    )
    assert np.array_equal(weights(clf), weights(again.fit(X, y)))  # the best epoch was put back


def test_validation_fraction_leaves_every_class_a_row_rejects(data):
    X, y = data[:2]
    two = np.concatenate([np.flatnonzero(y == c)[:2] for c in range(N_CLASSES)])
    clf = ExtremeClassifier(
        MinibatchSoftmax(noise="frequency"), n_epochs=0, validation_fraction=0.4, random_state=0
    ).fit(X[two], y[two])
    assert clf.model_.classes.counts.min() == 1
    assert clf.model_.classes.counts.sum() == 2 * N_CLASSES - round(0.4 * 2 * N_CLASSES)
    with pytest.raises(
        ValueError, match=r"no row can be kept back: each class needs one to train on\. Give an eval_set"
    ):
        clf.fit(X[two[::2]], y[two[::2]])


def test_eval_set_leaves_out_unknown_classes(data):
    X, y, X_test, y_test = data
    known = y < 50
    clf = ExtremeClassifier(MinibatchSoftmax(), n_epochs=1, random_state=0)  # not calibrated
    with pytest.warns(
        UserWarning, match=r"rows of eval_set are of classes that y lacks; they are left out\."
    ):
        clf.fit(X[known], y[known], eval_set=(X_test, y_test))
    kept = y_test < 50
    assert clf.history_[-1]["valid_log_likelihood"] == pytest.approx(
        clf.log_likelihood(X_test[kept], y_test[kept])
    )


def test_callbacks(data):
    X, y = data[:2]
    seen = []

    def stop_after_two(record):
        seen.append(record["epoch"])
        return record["epoch"] == 2

    clf = ExtremeClassifier(n_epochs=9, random_state=0).fit(X, y, callbacks=[stop_after_two])
    assert seen == [1, 2]
    assert len(clf.history_) == 3


def test_ctrl_c_keeps_the_model(data):
    X, y, X_test, y_test = data

    def press(record):
        if record["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted after 2 epochs; the model is kept"):
        clf = ExtremeClassifier(n_epochs=50, random_state=0).fit(X, y, callbacks=[press])
    assert clf.score(X_test, y_test) > 0.85
    clf.partial_fit(X, y)


def test_many_threads_ask_at_once(data, fitted):
    X_test = data[2]
    parts = np.array_split(X_test, 16)
    expected = [(fitted.predict_topk(p), fitted.predict_topk(p, search="beam")) for p in parts]
    start = threading.Barrier(8)

    def ask(worker):
        start.wait()
        return [(fitted.predict_topk(p), fitted.predict_topk(p, search="beam")) for p in parts]

    with ThreadPoolExecutor(8) as pool:
        for answer in pool.map(ask, range(8)):
            for (exact, beam), (exact_alone, beam_alone) in zip(answer, expected, strict=True):
                for got, want in ((exact, exact_alone), (beam, beam_alone)):
                    assert np.array_equal(got[0], want[0])
                    np.testing.assert_allclose(got[1], want[1], atol=1e-5)


def test_works_inside_scikit_learn(data):
    X, y = data[:2]
    pipeline = make_pipeline(StandardScaler(), ExtremeClassifier(n_epochs=5, random_state=0))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.85


def test_predict_proba_refuses_what_does_not_fit_rejects():
    y = np.arange(1000)
    X = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    clf = ExtremeClassifier(MinibatchSoftmax(noise="uniform"), n_epochs=0).fit(X, y)
    X = np.zeros((2_500_000, 2), np.float32)
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        with pytest.raises(
            ValueError, match=rf"{method} would return 2500000 rows x 1000 classes.*Use predict_topk"
        ):
            getattr(clf, method)(X)
    assert clf.predict_topk(X[:3], k=2)[0].shape == (3, 2)


def test_memory_is_stated_and_limited_rejects(data, capsys):
    X, y = data[:2]
    ExtremeClassifier(n_epochs=1, verbose=1, random_state=0).fit(X, y)
    said = capsys.readouterr()
    assert re.search(r"fit needs [\d.]+ [KM]iB \(training", said.err)
    assert "epoch 1 " in said.err
    assert said.out == ""
    message = r"needs .* but 1\.0 KiB are available\. Ways out: .*optimizer='adagrad_row'.*fewer features"
    with pytest.raises(NotEnoughMemoryError, match=message):
        ExtremeClassifier("negative_sampling", memory_limit=1024).fit(X, y)


def test_failed_fit_leaves_no_model_under_new_labels_rejects(data):
    X, y = data[:2]
    clf = ExtremeClassifier(n_epochs=0, random_state=0).fit(X, y)
    with pytest.raises(NotEnoughMemoryError):
        clf.set_params(memory_limit=1024).fit(X, y // 2)
    with pytest.raises(NotFittedError):
        clf.predict(X)


BAD_CALLS = [
    (
        lambda c, X, y: c.set_params(patience=2).fit(X, y),
        r"patience is 2, but there are no rows to validate on; give",
    ),
    (
        lambda c, X, y: c.fit(X * np.float32(1e36), y),
        r"the rows of X are [\d.]+e\+36 long on average, .* divide all features",
    ),
    (
        lambda c, X, y: c.set_params(solver=NCE(optimizer="sgd", learning_rate=1e9), n_epochs=9).fit(X, y),
        r"Training diverged: the loss of",
    ),
    (lambda c, X, y: c.set_params(n_jobs=0).fit(X, y), r"n_jobs is 0"),
    (lambda c, X, y: c.fit(np.full_like(X, np.nan), y), r"X\[0, 0\] is NaN"),
    (lambda c, X, y: c.fit(np.where(X[5, 2] == X, np.inf, X), y), r"X\[5, 2\] is inf"),
    (lambda c, X, y: c.fit(X.astype(str), y), "needs numbers"),
    (lambda c, X, y: c.fit(X + 1j, y), "Complex data not supported"),
    (lambda c, X, y: c.fit(X[:0], y[:0]), "0 sample"),
    (lambda c, X, y: c.fit(X[0], y), "Reshape your data"),
    (lambda c, X, y: c.fit(X, y[:-1]), r"y has 1,799 labels, but there are 1,800 rows"),
    (
        lambda c, X, y: c.fit(X, np.zeros(len(y))),
        r"y has one class, .*0\.0.*; ExtremeClassifier needs rows of at least two",
    ),
    (lambda c, X, y: c.fit(X, y, eval_set=X), r"eval_set must be a pair"),
    (
        lambda c, X, y: c.fit(X, y).predict(X[:, :3]),
        r"X has 3 features, but ExtremeClassifier is expecting 10 features",
    ),
    (
        lambda c, X, y: c.fit(X, y).predict_topk(X, k=61),
        r"The 'k' parameter of predict_topk must be an integer >= 1 and <= 60",
    ),
    (lambda c, X, y: c.fit(X, y).predict_topk(X, search="bean"), r"Did you mean 'beam'\?"),
    (
        lambda c, X, y: c.fit(X, y).predict_topk(X, search="baem"),
        r"'search' .* must be one of 'exact', 'beam'",
    ),
    (
        lambda c, X, y: c.fit(X, y).log_likelihood(X, y + 1),
        r"is 60, which is not one of the 60 known classes\. Leave out rows",
    ),
    (lambda c, X, y: c.set_params(solver=NCE(noise="unifrom")).fit(X, y), r"Did you mean 'uniform'\?"),
    (
        lambda c, X, y: c.set_params(solver=NCE(learning_rate=-1.0)).fit(X, y),
        r"must be a number > 0\.0 or None\. Got -1\.0",
    ),
    (lambda c, X, y: c.set_params(n_epochs=1.5).fit(X, y), r"must be an integer >= 0"),
]


@pytest.mark.parametrize(("call", "sentence"), BAD_CALLS)
def test_bad_input_rejects(data, call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as error:
        call(ExtremeClassifier(n_epochs=0, random_state=0), data[0], data[1])
    assert "\n" not in str(error.value)


def test_beam_without_tree_or_index_is_exact_identity(data):
    X, y, X_test, _ = data
    clf = ExtremeClassifier(MinibatchSoftmax(noise="uniform"), n_epochs=1, random_state=0).fit(X, y)
    exact, beam = clf.predict_topk(X_test), clf.predict_topk(X_test, search="beam", beam_width=9)
    assert np.array_equal(exact[0], beam[0])
    assert np.array_equal(exact[1], beam[1])


def test_unfitted_rejects(data, tmp_path):
    for call in (
        lambda c: c.predict(data[0]),
        lambda c: c.save(tmp_path / "m"),
        lambda c: c.log_likelihood(data[0], data[1]),
    ):
        with pytest.raises(NotFittedError, match="is not fitted yet; call fit"):
            call(ExtremeClassifier())


def test_same_model_in_another_process(data, tmp_path):
    X, y = data[:2]
    np.savez(tmp_path / "data.npz", X=X, y=y)
    code = """
        import sys, numpy as np
        from extremax import ExtremeClassifier
        d = np.load(sys.argv[1])
        clf = ExtremeClassifier(n_epochs=2, n_jobs=2, random_state=5).fit(d["X"], d["y"])
        print(clf.model_.weights.weights.tobytes().hex())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "data.npz")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "2", "OPENBLAS_NUM_THREADS": "2"},
    )
    here = ExtremeClassifier(n_epochs=2, n_jobs=1, random_state=5).fit(X, y)
    assert done.stdout.strip() == weights(here).tobytes().hex()


def test_progress_line_is_drawn_in_a_terminal_only():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        line = ProgressLine(1, stream)
        line.update("epoch 1", 50, 100, time.perf_counter() - 1.0, "loss 0.5")
        line.log("done")
        line.close()
    assert "epoch 1" in terminal.getvalue()
    assert "loss 0.5" in terminal.getvalue()
    assert "left" in terminal.getvalue()
    assert pipe.getvalue() == "done\n"
    silent = Terminal()
    ProgressLine(0, silent).update("epoch 1", 50, 100, 0.0)
    ProgressLine(0, silent).log("done")
    assert silent.getvalue() == ""
