"""A solver, a noise and a search from one file each: fitted, predicted with, saved and loaded."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from extremax import ExtremeClassifier, load_model
from extremax.errors import ModelFileError
from extremax.kernels import row_losses
from extremax.solvers import NegativeSampling, register_solver
from extremax.solvers.registry import SOLVERS
from extremax.storage import state
from extremax.tree.noise import UniformNoise
from planted import around_means

N_CLASSES = 12
OPTIONS = {"n_epochs": 8, "random_state": 0, "n_jobs": 1}


@pytest.fixture
def extensions():
    """Imports a module of tests/extensions; what it registers is forgotten after the test, or by `forget`."""
    tables = (SOLVERS, row_losses._LOSSES, state._KINDS)
    before = [dict(table) for table in tables]

    class Extensions:
        def load(self, name):
            return importlib.import_module(f"extensions.{name}")

        def forget(self):
            for table, entries in zip(tables, before, strict=True):
                table.clear()
                table.update(entries)
            for name in [name for name in sys.modules if name.startswith("extensions.")]:
                del sys.modules[name]

    found = Extensions()
    yield found
    found.forget()


@pytest.fixture(scope="module")
def data():
    X, y = around_means(240, N_CLASSES, 6, spread=0.3)
    return X, np.array([f"class {i:02d}" for i in range(N_CLASSES)])[y]


def assert_loads_the_same(clf, X, folder, **search):
    clf.save(folder)
    again = load_model(folder)
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    np.testing.assert_array_equal(again.predict_log_proba(X), clf.predict_log_proba(X))
    for a, b in zip(again.predict_topk(X, 3, **search), clf.predict_topk(X, 3, **search), strict=True):
        np.testing.assert_array_equal(a, b)
    return again


# -- a solver


@pytest.mark.small
def test_solver_of_ones_own(extensions, data, tmp_path):
    extensions.load("toy_solver")
    X, y = data
    clf = ExtremeClassifier.with_solver("squared_hinge", noise="uniform", **OPTIONS).fit(X, y)
    losses = [record["loss"] for record in clf.history_[1:]]
    assert losses[-1] < 0.5 * losses[0]
    assert clf.score(X, y) > 0.9
    assert clf.choices_["solver"] == "squared_hinge"
    again = assert_loads_the_same(clf, X, tmp_path / "model")
    again.partial_fit(X, y)
    assert again.model_.n_epochs == 9
    assert again.model_.solver == "squared_hinge"


def test_resumed_solver_of_ones_own_has_the_same_bits(extensions, data, tmp_path):
    extensions.load("toy_solver")
    X, y = data
    whole = ExtremeClassifier.with_solver("squared_hinge", noise="frequency", **OPTIONS).fit(X, y)
    half = ExtremeClassifier.with_solver("squared_hinge", noise="frequency", **OPTIONS)
    half.fit(X, y, callbacks=[lambda record: record["epoch"] == 3]).save(tmp_path / "half")
    again = load_model(tmp_path / "half").resume_fit(X, y)
    np.testing.assert_array_equal(again.model_.weights.to_dense(), whole.model_.weights.to_dense())


@pytest.mark.error
def test_model_of_an_unknown_solver_rejects(extensions, data, tmp_path):
    extensions.load("toy_solver")
    X, y = data
    ExtremeClassifier.with_solver("squared_hinge", noise="uniform", **{**OPTIONS, "n_epochs": 0}).fit(
        X, y
    ).save(tmp_path / "model")
    extensions.forget()
    with pytest.raises(ModelFileError, match=r"solver 'squared_hinge' is unknown \(known: candidate_softmax"):
        load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="solver"):
        ExtremeClassifier("squared_hinge").fit(X, y)


@pytest.mark.error
@pytest.mark.parametrize("taken", ["nce", "auto"])
def test_name_that_is_taken_rejects(taken):
    class Mine(NegativeSampling):
        name = taken

    with pytest.raises(ValueError, match="choose another name"):
        register_solver(Mine)


# -- a noise


def test_noise_of_ones_own(extensions, data, tmp_path):
    ranks = np.random.default_rng(0).permutation(N_CLASSES)
    noise = extensions.load("toy_noise").RankNoise(ranks)
    X, y = data
    clf = ExtremeClassifier.with_solver("negative_sampling", noise=noise, **OPTIONS).fit(X, y)
    assert clf.choices_["solver"] == "negative_sampling"
    assert clf.score(X, y) > 0.9
    assert clf.model_.noise is noise
    again = assert_loads_the_same(clf, X, tmp_path / "model")
    np.testing.assert_array_equal(again.model_.noise.ranks, ranks)
    # The parameter of the loaded classifier is the noise itself, so that it can be trained further.
    assert again.solver.noise is again.model_.noise
    np.testing.assert_array_equal(
        again.partial_fit(X, y).predict_log_proba(X), clf.partial_fit(X, y).predict_log_proba(X)
    )


@pytest.mark.identity
def test_noise_of_equal_ranks_predicts_as_uniform_noise(extensions, data):
    """Before any epoch the model is its noise."""
    X, y = data
    noise = extensions.load("toy_noise").RankNoise(np.zeros(N_CLASSES))
    options = {**OPTIONS, "n_epochs": 0}
    ours = ExtremeClassifier.with_solver("negative_sampling", noise=noise, **options).fit(X, y)
    theirs = ExtremeClassifier.with_solver("negative_sampling", noise="uniform", **options).fit(X, y)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-6)


class FourMethods:
    """A noise with what `Noise` asks for and nothing else."""

    def __init__(self, noise):
        self._noise = noise
        self.n_classes = noise.n_classes
        self.sample, self.log_prob, self.log_prob_all = noise.sample, noise.log_prob, noise.log_prob_all


@pytest.mark.identity
def test_noise_with_four_methods_alone(data, tmp_path):
    X, y = data
    ours = ExtremeClassifier.with_solver(
        "negative_sampling", noise=FourMethods(UniformNoise(N_CLASSES)), **OPTIONS
    ).fit(X, y)
    theirs = ExtremeClassifier.with_solver("negative_sampling", noise=UniformNoise(N_CLASSES), **OPTIONS).fit(
        X, y
    )
    np.testing.assert_array_equal(ours.model_.weights.to_dense(), theirs.model_.weights.to_dense())
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(X), atol=1e-5)
    np.testing.assert_array_equal(ours.predict_topk(X, 3)[0], theirs.predict_topk(X, 3)[0])
    assert ours.log_likelihood(X, y) == pytest.approx(theirs.log_likelihood(X, y), abs=1e-5)
    with pytest.raises(TypeError, match="noise of type FourMethods cannot be saved"):
        ours.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.error
def test_model_of_an_unknown_noise_rejects(extensions, data, tmp_path):
    noise = extensions.load("toy_noise").RankNoise(np.arange(N_CLASSES))
    ExtremeClassifier.with_solver("negative_sampling", noise=noise, **{**OPTIONS, "n_epochs": 0}).fit(
        *data
    ).save(tmp_path / "model")
    extensions.forget()
    with pytest.raises(ModelFileError, match=r"noise is of the unknown kind 'rank' \(known: .*uniform"):
        load_model(tmp_path / "model")


# -- a search


@pytest.mark.parametrize(
    ("solver", "noise"), [("minibatch_softmax", "tree"), ("negative_sampling", "frequency")]
)
def test_search_of_ones_own(extensions, data, tmp_path, solver, noise):
    X, y = data
    clf = ExtremeClassifier.with_solver(solver, noise=noise, **OPTIONS).fit(X, y)
    shortlist = np.random.default_rng(1).permutation(N_CLASSES)
    search = extensions.load("toy_search").ShortlistSearch(shortlist, width=5)
    clf.add_search("shortlist", search)
    labels, log_prob = clf.predict_topk(X, 3, search="shortlist")
    assert np.isin(labels, clf.classes_[shortlist[:5]]).all()
    table = clf.predict_log_proba(X)[:, shortlist[:5]]
    best = np.argsort(-table, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(labels, clf.classes_[shortlist[:5]][best])
    expected = np.take_along_axis(table, best, axis=1) - np.logaddexp.reduce(table, axis=1)[:, None]
    np.testing.assert_allclose(log_prob, expected, atol=1e-4)  # float32
    every_class, _ = clf.predict_topk(X, 3, search="shortlist", beam_width=N_CLASSES)
    np.testing.assert_array_equal(every_class, clf.predict_topk(X, 3)[0])
    again = assert_loads_the_same(clf, X, tmp_path / "model", search="shortlist")
    assert again.model_.search_names == clf.model_.search_names


@pytest.mark.error
def test_model_of_an_unknown_search_rejects(extensions, data, tmp_path):
    clf = ExtremeClassifier.with_solver(**{**OPTIONS, "n_epochs": 0}).fit(*data)
    with pytest.raises(ValueError, match="search"):
        clf.predict_topk(data[0], search="shortlist")
    search = extensions.load("toy_search").ShortlistSearch(np.arange(N_CLASSES), 3)
    clf.add_search("shortlist", search)
    clf.save(tmp_path / "model")
    extensions.forget()
    with pytest.raises(ModelFileError, match=r"search is of the unknown kind 'shortlist' \(known: .*exact"):
        load_model(tmp_path / "model")


def test_registration_is_undone_between_tests():
    assert "squared_hinge" not in SOLVERS
    assert ("noise", "rank") not in state._KINDS
    assert ("search", "shortlist") not in state._KINDS
