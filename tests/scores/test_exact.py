"""Exact search against full tables of probabilities."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

import reference
from coverings import pairwise
from extremax.scores import ExactSearch, Scorer, TreeBeamSearch
from extremax.scores.base import SearchConfig
from extremax.scores.dense import DenseWeights
from extremax.storage.state import restore
from extremax.tree import LabelTree
from extremax.tree.noise import TreeNoise
from scorers import assert_same_ranking, debiased_scores, evaluate, log_likelihood, make_problem

NOISES = ["none", "frequency", "tree", "mixture"]


@pytest.fixture(scope="module")
def problem():
    return make_problem()


def in_form(X, form):
    return X if form == "dense" else sparse.csr_matrix(X)


@pairwise(which=NOISES, k=[1, 5, 300], form=["dense", "csr"])
def test_exact_topk_matches_reference(problem, which, k, form):
    noise = problem.noises()[which]
    labels, log_prob = ExactSearch().topk(problem.scorer(noise, 1.3), in_form(problem.X, form), k)
    assert labels.dtype == np.int32
    assert log_prob.dtype == np.float32
    assert_same_ranking(labels, log_prob, reference.log_softmax(problem.table(noise), 1.3))


@pairwise(scratch_bytes=[1, 30_000, 1 << 20], tile_scores=[1, 4000, 1 << 22])
def test_exact_topk_in_blocks_and_tiles_invariant(scratch_bytes, tile_scores):
    p = make_problem(n=37, n_classes=1000)
    config = SearchConfig(scratch_bytes=scratch_bytes, tile_scores=tile_scores)
    noise = TreeNoise(p.tree)
    labels, log_prob = ExactSearch(config).topk(p.scorer(noise), p.X, 5)
    assert_same_ranking(labels, log_prob, reference.log_softmax(p.table(noise)))


@pytest.mark.parametrize("n_classes", [2, 3, 65, 100, 129, 1000])
def test_exact_topk_of_any_number_of_classes_matches_reference(n_classes):
    p = make_problem(n=40, n_classes=n_classes)
    noise, k = TreeNoise(p.tree), min(5, n_classes)
    expected = reference.log_softmax(p.table(noise))
    for X in (p.X, sparse.csr_matrix(p.X)):
        assert_same_ranking(*ExactSearch().topk(p.scorer(noise), X, k), expected)
    likelihood = log_likelihood(p.scorer(noise), p.examples)
    assert likelihood == pytest.approx(expected[np.arange(40), p.y].mean(), abs=1e-5)  # scores in float32


def test_exact_topk_beyond_the_number_of_classes(problem):
    labels, log_prob = ExactSearch().topk(problem.scorer(), problem.X, 303)
    assert (labels[:, 300:] == -1).all()
    assert np.isneginf(log_prob[:, 300:]).all()
    assert (np.sort(labels[:, :300], axis=1) == np.arange(300)).all()


@pytest.mark.parametrize("which", NOISES)
def test_exact_topk_probabilities_sum_to_one_identity(problem, which):
    scorer = problem.scorer(problem.noises()[which], 0.7)
    _, log_prob = ExactSearch().topk(scorer, problem.X, 300)
    # float32 log-probabilities
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


def test_two_classes_are_logistic_regression_identity():
    p = make_problem(n_classes=2)
    labels, log_prob = ExactSearch().topk(p.scorer(TreeNoise(p.tree)), p.X, 1)
    table = p.table(TreeNoise(p.tree))
    margin = table[:, 1] - table[:, 0]
    np.testing.assert_array_equal(labels[:, 0], margin > 0)
    np.testing.assert_allclose(log_prob[:, 0], -np.log1p(np.exp(-np.abs(margin))), atol=2e-6)  # float32


@pytest.mark.parametrize("beam", [False, True])
def test_one_class_is_certain_identity(beam):
    p = make_problem(n_classes=1)
    search = TreeBeamSearch(p.tree) if beam else ExactSearch()
    labels, log_prob = search.topk(p.scorer(TreeNoise(p.tree)), p.X, 2)
    np.testing.assert_array_equal(labels, [[0, -1]] * len(p.X))
    np.testing.assert_array_equal(log_prob, [[0.0, -np.inf]] * len(p.X))


def test_zero_weights_predict_as_the_noise_identity(problem):
    """At the start of training the debiased model is the noise distribution."""
    scorer = Scorer(DenseWeights.zeros(300, 24), TreeNoise(problem.tree), problem.projection)
    labels, log_prob = ExactSearch().topk(scorer, problem.X, 300)
    # both are float32 sums
    np.testing.assert_allclose(log_prob, problem.tree.log_prob(problem.Z, labels), atol=1e-5)


def test_no_rows(problem):
    none, scorer = problem.X[:0], problem.scorer(TreeNoise(problem.tree))
    for labels, log_prob in (
        ExactSearch().topk(problem.scorer(), none, 5),
        ExactSearch().topk(scorer, sparse.csr_matrix(none), 5),
        TreeBeamSearch(problem.tree).topk(scorer, none, 5),
    ):
        assert labels.shape == log_prob.shape == (0, 5)


def test_exact_topk_class_relabelling_invariant(problem):
    new = np.random.default_rng(3).permutation(300)  # class c becomes new[c]
    weights = DenseWeights.zeros(300, 24, feature_scale=0.5)
    weights.weights[new], weights.biases[new] = problem.weights.weights, problem.weights.biases
    tree = problem.tree
    renamed = LabelTree(tree.weights, tree.biases, np.where(tree.leaf_class >= 0, new[tree.leaf_class], -1))
    labels, log_prob = ExactSearch().topk(problem.scorer(TreeNoise(tree)), problem.X, 5)
    scorer = Scorer(weights, TreeNoise(renamed), problem.projection)
    labels_new, log_prob_new = ExactSearch().topk(scorer, problem.X, 5)
    assert (labels_new == new[labels]).mean() > 0.99  # BLAS may round a product differently in another column
    np.testing.assert_allclose(log_prob_new, log_prob, atol=1e-5)


def test_row_order_and_batch_size_invariant(problem):
    scorer, X = problem.scorer(TreeNoise(problem.tree)), problem.X
    labels, log_prob = ExactSearch().topk(scorer, X, 5)
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = ExactSearch().topk(scorer, X[order], 5)
    single = [ExactSearch().topk(scorer, X[i : i + 1], 5) for i in order]
    for got in (shuffled, tuple(np.concatenate(part) for part in zip(*single, strict=True))):
        assert (got[0] == labels[order]).mean() > 0.99  # a matrix-vector product sums in another order
        np.testing.assert_allclose(got[1], log_prob[order], atol=1e-5)


def test_thread_count_invariant():
    p = make_problem(n=150, n_classes=2000)
    scorer = p.scorer(TreeNoise(p.tree))
    for search in (
        lambda n_threads: ExactSearch().topk(scorer, p.X, 5, n_threads=n_threads),
        lambda n_threads: TreeBeamSearch(p.tree).topk(scorer, p.X, 5, n_threads=n_threads),
        lambda n_threads: (np.array(evaluate(scorer, p.examples, n_threads=n_threads)),),
    ):
        one = search(1)
        for n_threads in (2, 3, 8):
            for a, b in zip(one, search(n_threads), strict=True):
                np.testing.assert_array_equal(a, b)


def test_memory_mapped_and_read_only_input_invariant(problem, tmp_path):
    scorer = problem.scorer(TreeNoise(problem.tree))
    np.save(tmp_path / "X.npy", problem.X)
    on_disk = np.load(tmp_path / "X.npy", mmap_mode="r")
    for search in (ExactSearch(), TreeBeamSearch(problem.tree)):
        a, b = (search.topk(scorer, X, 5) for X in (problem.X, on_disk))
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


def test_exact_topk_never_builds_the_full_table():
    p = make_problem(n=2000, n_classes=3000)
    scorer, scratch = p.scorer(TreeNoise(p.tree)), 2 << 20
    search = ExactSearch(SearchConfig(scratch_bytes=scratch))
    search.topk(scorer, p.X[:2], 5)  # compiles
    tracemalloc.start()
    try:
        search.topk(scorer, p.X, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    results = 2000 * 5 * 8 + 2000 * 8 + 2000 * 4 * 4
    # half a megabyte for copies of the block's rows; the table would take 24 MB
    assert peak < scratch + results + (1 << 19)


@pytest.mark.parametrize("n_features", [40, 3000])
def test_wide_sparse_features_match_dense_invariant(n_features):
    """3000 features of which a block of rows uses few: the product runs over those alone."""
    rng = np.random.default_rng(4)
    X = sparse.random_array((30, n_features), density=0.01, random_state=rng, dtype=np.float32, format="csr")
    X = sparse.csr_matrix(X)
    weights = DenseWeights.zeros(500, n_features, feature_scale=2.0)
    weights.weights[...] = rng.standard_normal(weights.weights.shape)
    scorer = Scorer(weights)
    sparse_form, dense_form = (ExactSearch().topk(scorer, form, 4) for form in (X, X.toarray()))
    assert (sparse_form[0] == dense_form[0]).mean() > 0.99  # sums in another order
    np.testing.assert_allclose(sparse_form[1], dense_form[1], atol=1e-5)
    expected = 2.0 * X @ weights.weights.T
    np.testing.assert_allclose(debiased_scores(scorer, X), expected, rtol=1e-4, atol=1e-5)


def test_temperature_changes_probabilities_but_no_order_invariant(problem):
    noise = TreeNoise(problem.tree)
    cold, hot = (ExactSearch().topk(problem.scorer(noise, t), problem.X, 10) for t in (0.5, 4.0))
    np.testing.assert_array_equal(cold[0], hot[0])
    assert (cold[1][:, 0] > hot[1][:, 0]).all()


def test_eight_python_threads_at_once_give_the_serial_answer():
    # With no work too small, all of them limit BLAS to one thread.
    config = SearchConfig(small_work=0)
    p = make_problem(n=120, n_classes=3000)
    scorer, wide = p.scorer(TreeNoise(p.tree)), sparse.csr_matrix(p.X)
    searches = [
        lambda a, b, search=search, X=X: search.topk(scorer, X[a:b], 5, n_threads=2)
        for search in (ExactSearch(config), TreeBeamSearch(p.tree, config))
        for X in (p.X, wide)
    ]
    calls = [(search, 15 * i, 15 * i + 15) for i in range(8) for search in searches] * 3
    serial = [search(a, b) for search, a, b in calls]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda call: call[0](*call[1:]), calls))
    for (labels, log_prob), (labels_serial, log_prob_serial) in zip(together, serial, strict=True):
        np.testing.assert_array_equal(labels, labels_serial)
        # BLAS may share the work differently
        np.testing.assert_allclose(log_prob, log_prob_serial, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": 0}, "at least one class"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be positive"),
        ({"temperature": float("nan")}, "must be positive"),
        ({"uniform_mix": 1.0}, "uniform_mix is 1.0"),
        ({"uniform_mix": -0.1}, "uniform_mix is -0.1"),
        ({"X": np.zeros((60, 5), np.float32)}, "X has 5 features; the model has 24"),
    ],
)
@pytest.mark.parametrize("beam", [False, True])
def test_wrong_arguments_rejects(problem, change, sentence, beam):
    given = {"X": problem.X, "k": 1, "temperature": 1.0, "uniform_mix": 0.0} | change
    scorer = problem.scorer(TreeNoise(problem.tree), given["temperature"], given["uniform_mix"])
    search = TreeBeamSearch(problem.tree) if beam else ExactSearch()
    with pytest.raises(ValueError, match=sentence):
        search.topk(scorer, given["X"], given["k"])


def test_tree_without_a_projection_rejects(problem):
    scorer = Scorer(problem.weights, TreeNoise(problem.tree))
    for search in (ExactSearch(), TreeBeamSearch(problem.tree)):
        with pytest.raises(ValueError, match="no projection"):
            search.topk(scorer, problem.X, 1)


def test_exact_search_is_restored_from_its_state():
    assert restore("search", ExactSearch().state()) == ExactSearch()
