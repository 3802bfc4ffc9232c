"""Prediction: bias removal, exact and beam search, log-likelihood; against full tables of probabilities."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import sparse

import reference
from extremax import metrics, predict
from extremax.kernels import tree_tiles as leaf_tiles
from extremax.linear import LinearModel
from extremax.noise import FrequencyNoise, MixtureNoise, TreeNoise, UniformNoise
from extremax.tree import LabelTree


@dataclass
class Problem:
    """A model, a tree, rows to predict, and the whole table of debiased scores in float64."""

    X: np.ndarray
    Z: np.ndarray
    y: np.ndarray
    model: LinearModel
    tree: LabelTree

    def table(self, noise):
        scores = (
            self.model.feature_scale * self.X.astype(np.float64) @ self.model.weights.T + self.model.biases
        )
        return scores if noise is None else scores + noise.log_prob_all(self.Z)


def make_problem(n=60, n_classes=300, n_features=24, n_components=4, seed=0) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n_features)).astype(np.float32)
    X[rng.random(X.shape) < 0.6] = 0.0  # sparse enough to be a CSR matrix as well
    Z = np.ascontiguousarray(X[:, :n_components])
    model = LinearModel.zeros(n_classes, n_features, feature_scale=0.5)
    model.weights[...] = rng.standard_normal(model.weights.shape)
    model.biases[...] = rng.standard_normal(n_classes)
    centres = rng.standard_normal((n_classes, n_components))
    y = rng.integers(n_classes, size=4 * n_classes)
    tree = LabelTree.fit(
        centres[y] + 0.3 * rng.standard_normal((len(y), n_components)), y, n_classes=n_classes, n_jobs=1
    )
    return Problem(X, Z, rng.integers(n_classes, size=n).astype(np.int32), model, tree)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem()


def noises(p: Problem):
    uniform, tree = UniformNoise(p.tree.n_classes), TreeNoise(p.tree)
    return [
        None,
        FrequencyNoise(np.arange(p.tree.n_classes) % 7),
        tree,
        MixtureNoise(tree, uniform, weight=0.7),
    ]


def assert_same_ranking(labels, log_prob, expected):
    """`expected` is the full table of log-probabilities; classes that differ must be tied in float32."""
    k = labels.shape[1]
    best = reference.ranked(expected, k)
    assert (labels == best).mean() > 0.999
    assert all(len(set(row)) == len(row) for row in labels[:, : expected.shape[1]].tolist())
    # Scores of size 20 in float32, a sum of 24 products each: a few 1e-6.
    np.testing.assert_allclose(log_prob, reference.values_at(expected, labels), rtol=0, atol=2e-5)


# -- exact search
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("k", [1, 5, 300])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_exact_topk_matches_reference(problem, which, k, form):
    noise = noises(problem)[which]
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    labels, log_prob = predict.exact_topk(X, problem.model, noise, problem.Z, k, temperature=1.3)
    assert labels.dtype == np.int32
    assert log_prob.dtype == np.float32
    assert_same_ranking(labels, log_prob, reference.log_softmax(problem.table(noise), 1.3))


@pytest.mark.parametrize("scratch_bytes", [1, 30_000, 1 << 20])
@pytest.mark.parametrize("tile_scores", [1, 4000, 1 << 22])
@pytest.mark.parametrize("small_weights", [0, 1 << 22])
def test_exact_topk_in_blocks_and_tiles_invariant(monkeypatch, scratch_bytes, tile_scores, small_weights):
    p = make_problem(n=37, n_classes=1000)
    monkeypatch.setattr(predict.scan, "_SMALL_WEIGHTS", small_weights)  # by classes or by subtrees
    monkeypatch.setattr(predict.scan, "_TILE_SCORES", tile_scores)
    noise = TreeNoise(p.tree)
    labels, log_prob = predict.exact_topk(p.X, p.model, noise, p.Z, 5, scratch_bytes=scratch_bytes)
    assert_same_ranking(labels, log_prob, reference.log_softmax(p.table(noise)))


@pytest.mark.parametrize("n_classes", [2, 3, 65, 100, 129, 1000])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_exact_topk_subtree_by_subtree_matches_reference(monkeypatch, n_classes, depth):
    p = make_problem(n=40, n_classes=n_classes)
    monkeypatch.setattr(predict.scan, "_TILE_DEPTH", depth)
    monkeypatch.setattr(predict.scan, "_LEAST_DEPTH", depth)
    monkeypatch.setattr(predict.scan, "_NOISE_ROWS", 16)
    noise, k = TreeNoise(p.tree), min(5, n_classes)
    expected = reference.log_softmax(p.table(noise))
    for X in (p.X, sparse.csr_matrix(p.X)):
        assert_same_ranking(*predict.exact_topk(X, p.model, noise, p.Z, k), expected)
    likelihood = predict.log_likelihood(p.X, p.y, p.model, noise, p.Z)
    assert likelihood == pytest.approx(expected[np.arange(40), p.y].mean(), abs=1e-5)  # scores in float32


def test_exact_topk_of_a_tree_that_cannot_be_cut_matches_reference(monkeypatch):
    p = make_problem(n=80)
    monkeypatch.setattr(leaf_tiles, "cut_tree", lambda leaf_class, tile_depth: None)
    noise = TreeNoise(p.tree)
    assert_same_ranking(
        *predict.exact_topk(p.X, p.model, noise, p.Z, 5), reference.log_softmax(p.table(noise))
    )


def test_exact_topk_beyond_the_number_of_classes(problem):
    labels, log_prob = predict.exact_topk(problem.X, problem.model, None, None, 303)
    assert (labels[:, 300:] == -1).all()
    assert np.isneginf(log_prob[:, 300:]).all()
    assert (np.sort(labels[:, :300], axis=1) == np.arange(300)).all()


def test_exact_topk_probabilities_sum_to_one_identity(problem):
    for noise in noises(problem):
        _, log_prob = predict.exact_topk(problem.X, problem.model, noise, problem.Z, 300, temperature=0.7)
        # float32 log-probabilities
        np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


def test_two_classes_are_logistic_regression_identity():
    p = make_problem(n_classes=2)
    labels, log_prob = predict.exact_topk(p.X, p.model, TreeNoise(p.tree), p.Z, 1)
    table = p.table(TreeNoise(p.tree))
    margin = table[:, 1] - table[:, 0]
    np.testing.assert_array_equal(labels[:, 0], margin > 0)
    np.testing.assert_allclose(log_prob[:, 0], -np.log1p(np.exp(-np.abs(margin))), atol=2e-6)  # float32


def test_one_class_is_certain_identity():
    p = make_problem(n_classes=1)
    for search in (
        predict.exact_topk(p.X, p.model, TreeNoise(p.tree), p.Z, 2),
        predict.beam_topk(p.X, p.model, p.tree, p.tree, p.Z, 2),
    ):
        np.testing.assert_array_equal(search[0], [[0, -1]] * len(p.X))
        np.testing.assert_array_equal(search[1], [[0.0, -np.inf]] * len(p.X))


def test_zero_weights_predict_as_the_noise_identity(problem):
    """At the start of training the debiased model is the base distribution."""
    model = LinearModel.zeros(300, 24)
    noise = TreeNoise(problem.tree)
    labels, log_prob = predict.exact_topk(problem.X, model, noise, problem.Z, 300)
    # both are float32 sums
    np.testing.assert_allclose(log_prob, problem.tree.log_prob(problem.Z, labels), atol=1e-5)


def test_no_rows(problem):
    none, Z = problem.X[:0], problem.Z[:0]
    for labels, log_prob in (
        predict.exact_topk(none, problem.model, None, Z, 5),
        predict.exact_topk(sparse.csr_matrix(none), problem.model, TreeNoise(problem.tree), Z, 5),
        predict.beam_topk(none, problem.model, problem.tree, problem.tree, Z, 5),
    ):
        assert labels.shape == log_prob.shape == (0, 5)
    assert predict.predict_log_proba(none, problem.model, None, Z).shape == (0, 300)


def test_exact_topk_class_relabelling_invariant(problem):
    new = np.random.default_rng(3).permutation(300)  # class c becomes new[c]
    model = LinearModel.zeros(300, 24, feature_scale=0.5)
    model.weights[new], model.biases[new] = problem.model.weights, problem.model.biases
    tree = problem.tree
    renamed = LabelTree(tree.weights, tree.biases, np.where(tree.leaf_class >= 0, new[tree.leaf_class], -1))
    labels, log_prob = predict.exact_topk(problem.X, problem.model, TreeNoise(tree), problem.Z, 5)
    labels_new, log_prob_new = predict.exact_topk(problem.X, model, TreeNoise(renamed), problem.Z, 5)
    assert (labels_new == new[labels]).mean() > 0.99  # BLAS may round a product differently in another column
    np.testing.assert_allclose(log_prob_new, log_prob, atol=1e-5)


def test_row_order_and_batch_size_invariant(problem):
    noise = TreeNoise(problem.tree)
    labels, log_prob = predict.exact_topk(problem.X, problem.model, noise, problem.Z, 5)
    order = np.random.default_rng(0).permutation(len(problem.X))
    shuffled = predict.exact_topk(problem.X[order], problem.model, noise, problem.Z[order], 5)
    single = [
        predict.exact_topk(problem.X[i : i + 1], problem.model, noise, problem.Z[i : i + 1], 5) for i in order
    ]
    for got in (shuffled, tuple(np.concatenate(part) for part in zip(*single, strict=True))):
        assert (got[0] == labels[order]).mean() > 0.99  # a matrix-vector product sums in another order
        np.testing.assert_allclose(got[1], log_prob[order], atol=1e-5)


def test_thread_count_invariant():
    p = make_problem(n=150, n_classes=2000)
    noise = TreeNoise(p.tree)
    for search in (
        lambda n_jobs: predict.exact_topk(p.X, p.model, noise, p.Z, 5, n_jobs=n_jobs),
        lambda n_jobs: predict.beam_topk(p.X, p.model, p.tree, noise, p.Z, 5, n_jobs=n_jobs),
        lambda n_jobs: (np.array(predict.evaluate(p.X, p.y, p.model, noise, p.Z, n_jobs=n_jobs)),),
    ):
        one = search(1)
        for n_jobs in (2, 3, 8):
            for a, b in zip(one, search(n_jobs), strict=True):
                np.testing.assert_array_equal(a, b)


def test_memory_mapped_and_read_only_input_invariant(problem, tmp_path):
    noise = TreeNoise(problem.tree)
    np.save(tmp_path / "X.npy", problem.X)
    on_disk = np.load(tmp_path / "X.npy", mmap_mode="r")
    Z = problem.Z.copy()
    Z.flags.writeable = False
    y = problem.y.copy()
    y.flags.writeable = False
    a, b = (
        predict.exact_topk(problem.X, problem.model, noise, problem.Z, 5),
        predict.exact_topk(on_disk, problem.model, noise, Z, 5),
    )
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    a, b = (predict.beam_topk(X, problem.model, problem.tree, noise, Z, 5) for X in (problem.X, on_disk))
    np.testing.assert_array_equal(a[0], b[0])
    assert predict.evaluate(on_disk, y, problem.model, noise, Z) == predict.evaluate(
        problem.X, problem.y, problem.model, noise, problem.Z
    )


def test_exact_topk_never_builds_the_full_table():
    p = make_problem(n=2000, n_classes=3000)
    noise = TreeNoise(p.tree)
    predict.exact_topk(p.X[:2], p.model, noise, p.Z[:2], 5)  # compiled
    scratch = 2 << 20
    tracemalloc.start()
    try:
        predict.exact_topk(p.X, p.model, noise, p.Z, 5, scratch_bytes=scratch, n_jobs=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    results = 2000 * 5 * 8 + 2000 * 8
    # half a megabyte for copies of the block's rows; the table would take 24 MB
    assert peak < scratch + results + (1 << 19)


@pytest.mark.parametrize("n_features", [40, 3000])
def test_wide_sparse_features_match_dense_invariant(n_features):
    """3000 features of which a block of rows uses few: the product runs over those alone."""
    rng = np.random.default_rng(4)
    X = sparse.random_array((30, n_features), density=0.01, rng=rng, dtype=np.float32, format="csr")
    X = sparse.csr_matrix(X)
    model = LinearModel.zeros(500, n_features, feature_scale=2.0)
    model.weights[...] = rng.standard_normal(model.weights.shape)
    sparse_form, dense_form = (predict.exact_topk(form, model, None, None, 4) for form in (X, X.toarray()))
    assert (sparse_form[0] == dense_form[0]).mean() > 0.99  # sums in another order
    np.testing.assert_allclose(sparse_form[1], dense_form[1], atol=1e-5)
    np.testing.assert_allclose(
        predict.debiased_scores(X, model, None, None), 2.0 * X @ model.weights.T, rtol=1e-4, atol=1e-5
    )


# -- beam search
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("k", [1, 7, 310])
def test_beam_as_wide_as_the_tree_is_exact_search_identity(problem, which, form, k):
    noise = noises(problem)[which]
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    labels, log_prob = predict.beam_topk(
        X, problem.model, problem.tree, noise, problem.Z, k, beam_width=512, temperature=1.3
    )
    assert_same_ranking(labels, log_prob, reference.log_softmax(problem.table(noise), 1.3))


@pytest.mark.parametrize("which", range(4))
def test_narrow_beam_rescores_its_candidates_matches_reference(problem, which):
    noise = noises(problem)[which]
    candidates, _ = problem.tree.candidates(problem.Z, 16)
    kept = np.full((60, 300), -np.inf)
    np.put_along_axis(kept, candidates, np.take_along_axis(problem.table(noise), candidates, axis=1), axis=1)
    labels, log_prob = predict.beam_topk(
        problem.X, problem.model, problem.tree, noise, problem.Z, 5, beam_width=16
    )
    assert_same_ranking(labels, log_prob, reference.log_softmax(kept))


def test_beam_is_at_least_k_wide(problem):
    narrow, wide = (
        predict.beam_topk(
            problem.X, problem.model, problem.tree, problem.tree, problem.Z, 6, beam_width=width
        )
        for width in (2, 6)
    )
    np.testing.assert_array_equal(narrow[0], wide[0])
    assert (narrow[0] >= 0).all()
    # normalised over six candidates
    np.testing.assert_allclose(np.exp(narrow[1]).sum(axis=1), 1.0, atol=1e-5)


def test_beam_in_blocks_of_rows_invariant(problem, monkeypatch):
    arguments = (problem.model, problem.tree, TreeNoise(problem.tree), problem.Z, 5)
    whole = predict.beam_topk(problem.X, *arguments)
    monkeypatch.setattr(predict.search, "_BEAM_BLOCK", 7)
    for X in (problem.X, sparse.csr_matrix(problem.X)):
        labels, log_prob = predict.beam_topk(X, *arguments)
        np.testing.assert_array_equal(labels, whole[0])
        np.testing.assert_allclose(log_prob, whole[1], atol=1e-5)  # a sparse row is summed in another order


def test_tree_and_tree_noise_debias_alike_identity(problem):
    by_tree = predict.beam_topk(problem.X, problem.model, problem.tree, problem.tree, problem.Z, 5)
    by_noise = predict.beam_topk(
        problem.X, problem.model, problem.tree, TreeNoise(problem.tree), problem.Z, 5
    )
    np.testing.assert_array_equal(by_tree[0], by_noise[0])
    np.testing.assert_array_equal(by_tree[1], by_noise[1])


# -- all classes at once, likelihood
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_debiased_scores_and_log_proba_match_reference(problem, which, form):
    noise = noises(problem)[which]
    X = problem.X if form == "dense" else sparse.csr_matrix(problem.X)
    table = problem.table(noise)
    scores = predict.debiased_scores(X, problem.model, noise, problem.Z, scratch_bytes=20_000)
    np.testing.assert_allclose(scores, table, atol=2e-5)  # float32 scores of size 20
    log_prob = predict.predict_log_proba(
        X, problem.model, noise, problem.Z, temperature=2.0, scratch_bytes=20_000
    )
    np.testing.assert_allclose(log_prob, reference.log_softmax(table, 2.0), atol=2e-5)
    np.testing.assert_allclose(np.exp(log_prob.astype(np.float64)).sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("which", range(4))
def test_evaluate_equals_metrics_of_the_full_table_identity(problem, which):
    noise = noises(problem)[which]
    # right at rank 1 to 8
    y = reference.ranked(problem.table(noise), 8)[np.arange(60), np.arange(60) % 8].astype(np.int32)
    weight = np.random.default_rng(0).random(60)
    expected = reference.log_softmax(problem.table(noise), 0.8)
    ranked = reference.ranked(expected, 5)
    for w in (None, weight):
        got = predict.evaluate(
            problem.X, y, problem.model, noise, problem.Z, sample_weight=w, temperature=0.8, k=5
        )
        assert got.log_likelihood == pytest.approx(
            metrics.log_likelihood(y, expected, sample_weight=w), abs=1e-5
        )  # float32 scores
        assert got.accuracy == pytest.approx(metrics.accuracy(y, ranked[:, 0], sample_weight=w))
        assert got.top_k_accuracy == pytest.approx(metrics.accuracy_at_k(y, ranked, k=5, sample_weight=w))
        alone = predict.log_likelihood(
            problem.X, y, problem.model, noise, problem.Z, sample_weight=w, temperature=0.8
        )
        assert alone == got.log_likelihood
    assert 0.0 < got.accuracy < got.top_k_accuracy < 1.0


def test_temperature_changes_probabilities_but_no_order_invariant(problem):
    noise = TreeNoise(problem.tree)
    cold, hot = (
        predict.exact_topk(problem.X, problem.model, noise, problem.Z, 10, temperature=t) for t in (0.5, 4.0)
    )
    np.testing.assert_array_equal(cold[0], hot[0])
    assert (cold[1][:, 0] > hot[1][:, 0]).all()


def test_remove_bias_in_place_and_without_bias():
    scores, log_noise = np.array([[1.0, 2.0]], np.float32), np.array([[-3.0, -4.0]], np.float32)
    assert predict.remove_bias(scores, None) is scores
    out = np.empty_like(scores)
    assert predict.remove_bias(scores, None, out=out) is out
    np.testing.assert_array_equal(out, scores)
    assert predict.remove_bias(scores, log_noise, out=scores) is scores
    np.testing.assert_array_equal(scores, [[-2.0, -2.0]])


def test_log_softmax_of_large_scores_matches_reference(monkeypatch):
    monkeypatch.setattr(predict.scores, "_BLOCK_SCORES", 100)  # several blocks of rows
    scores = (200 * np.random.default_rng(1).standard_normal((50, 30))).astype(np.float32)
    np.testing.assert_allclose(
        predict.log_softmax(scores, temperature=2.0), reference.log_softmax(scores, 2.0), atol=1e-4
    )  # size 400


# -- threads of the caller
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("small_weights", [0, 1 << 22])
def test_eight_python_threads_at_once_give_the_serial_answer(monkeypatch, small_weights):
    monkeypatch.setattr(predict.scan, "_SMALL_WEIGHTS", small_weights)  # by classes or by subtrees
    monkeypatch.setattr(predict.scan, "_SMALL_WORK", 0)  # all of them limit BLAS to one thread
    p = make_problem(n=120, n_classes=3000)
    noise, wide = TreeNoise(p.tree), sparse.csr_matrix(p.X)
    searches = [
        lambda a, b: predict.exact_topk(p.X[a:b], p.model, noise, p.Z[a:b], 5),
        lambda a, b: predict.exact_topk(wide[a:b], p.model, noise, p.Z[a:b], 5),
        lambda a, b: predict.beam_topk(p.X[a:b], p.model, p.tree, noise, p.Z[a:b], 5),
        lambda a, b: predict.beam_topk(wide[a:b], p.model, p.tree, noise, p.Z[a:b], 5),
    ]
    calls = [(search, 15 * i, 15 * i + 15) for i in range(8) for search in searches] * 3
    serial = [search(a, b) for search, a, b in calls]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda call: call[0](*call[1:]), calls))
    for (labels, log_prob), (labels_serial, log_prob_serial) in zip(together, serial, strict=True):
        np.testing.assert_array_equal(labels, labels_serial)
        # BLAS may share the work differently
        np.testing.assert_allclose(log_prob, log_prob_serial, rtol=0, atol=1e-5)


# -- refusals
# ----------------------------------------------------------------------------------------------------------------


def test_full_tables_beyond_the_memory_limit_rejects(problem):
    arguments = (problem.X, problem.model, None, None)
    with pytest.raises(
        ValueError, match=r"predict_log_proba would return 60 rows x 300 classes.*predict_topk"
    ):
        predict.predict_log_proba(*arguments, memory_limit=60 * 300 * 4 - 1)
    with pytest.raises(ValueError, match=r"decision_function would return.*predict_topk"):
        predict.debiased_scores(*arguments, memory_limit=1000)
    with pytest.raises(ValueError, match=r"predict_proba would return"):  # in float64
        predict.predict_proba(*arguments, memory_limit=60 * 300 * 8 - 1)
    assert predict.predict_proba(*arguments, memory_limit=60 * 300 * 8).shape == (60, 300)
    assert predict.predict_log_proba(*arguments, memory_limit=60 * 300 * 4).shape == (60, 300)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": 0}, "at least one class"),
        ({"temperature": 0.0}, "must be positive"),
        ({"temperature": float("nan")}, "must be positive"),
        ({"X": np.zeros((60, 5), np.float32)}, "X has 5 features; the model has 24"),
        ({"Z": np.zeros((3, 4), np.float32)}, "Z has 3 rows and X has 60"),
    ],
)
def test_wrong_arguments_rejects(problem, change, sentence):
    given = {"X": problem.X, "Z": problem.Z, "k": 1, "temperature": 1.0} | change
    noise = TreeNoise(problem.tree)
    with pytest.raises(ValueError, match=sentence):
        predict.exact_topk(
            given["X"], problem.model, noise, given["Z"], given["k"], temperature=given["temperature"]
        )
    with pytest.raises(ValueError, match=sentence):
        predict.beam_topk(
            given["X"],
            problem.model,
            problem.tree,
            noise,
            given["Z"],
            given["k"],
            temperature=given["temperature"],
        )


def test_missing_tree_features_rejects(problem):
    with pytest.raises(ValueError, match="Z is None"):
        predict.exact_topk(problem.X, problem.model, TreeNoise(problem.tree), None, 1)


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.full(60, 300), "y holds class 300; the model has classes 0 to 299"),
        (np.full(60, -1), "class -1"),
        (np.zeros(3), "one class"),
    ],
)
def test_wrong_targets_rejects(problem, y, sentence):
    for score in (predict.evaluate, predict.log_likelihood):
        with pytest.raises(ValueError, match=sentence):
            score(problem.X, y.astype(np.int32), problem.model, None, None)
    with pytest.raises(ValueError, match="no rows"):
        predict.evaluate(problem.X[:0], np.zeros(0, np.int32), problem.model, None, None)


def test_floor_of_a_beam_down_the_tree_identity(problem):
    options = {"beam_width": 8, "n_jobs": 1}
    noise = TreeNoise(problem.tree)
    plain = predict.beam_topk(problem.X, problem.model, problem.tree, noise, problem.Z, 3, **options)
    lifted = predict.beam_topk(
        problem.X, problem.model, problem.tree, noise, problem.Z, 3, floor=0.1, **options
    )
    np.testing.assert_array_equal(lifted[0], plain[0])
    np.testing.assert_array_equal(lifted[1], predict.lift(plain[1], 0.1, len(problem.model.weights)))
    assert (lifted[1] != plain[1]).all()
